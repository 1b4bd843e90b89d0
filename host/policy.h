/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * policy.h - what every host of the engine decides, decided once: the defaults of
 * options, which writes go past the cache, how long the throttle holds a request,
 * whether an origin is a volume's, and the exit code of each error.
 *
 * A layer above the engine: it sees core/api/forebay.h and nothing below that.  Like
 * the engine it is freestanding C, allocates nothing, blocks never, and does no I/O.
 */
#ifndef FBY_POLICY_H
#define FBY_POLICY_H

#include "api/forebay.h"

/* --- defaults, and the limits of options ---------------------------------------- */

/* X(name, value, what it is) - the command's help, the library's options and the
 * module's take these. */
#define FBY_DEFAULTS(X) \
	X(CHUNK_SIZE, FBY_CHUNK_PAGES_MAX * FBY_PAGE, "bytes of a chunk, and the most") \
	X(CHUNK_SIZE_MIN, FBY_CHUNK_PAGES_MIN * FBY_PAGE, "the least") \
	X(HIGH_WATERMARK, FBY_HIGH_WATERMARK, "per cent of chunks in use where destage starts") \
	X(WATERMARK_GAP, FBY_WATERMARK_GAP, "and so much less where it stops") \
	X(QUEUE_DEPTH, 64u, "origin writes of destage in flight") \
	X(QUEUE_DEPTH_MAX, 64u, "most that may be asked for") \
	X(BUFFER_BYTES, 256u << 10, "largest origin write of destage") \
	X(ROUND_PAGES, 16384u, "most pages written before the origin is flushed") \
	X(ROUND_PAGES_MIN, 16u, "least that may be asked for") \
	X(SLOTS_MAX, FBY_SLOTS_MAX, "most commit slots") \
	X(BYPASS_LEAST, 128u, "sectors between cached blocks that are worth a request past the cache") \
	X(JOIN_GAP, 128u, "sectors read from the origin and not used, rather than asking twice") \
	X(RANGE_THROTTLED, 128u, "sectors of a range that the throttle counts, as more is not cached") \
	X(THROTTLE_SHORTEST_NS, 100000u, "a shorter delay is not worth a sleep: it adds to that of the next write") \
	X(DRAIN_LOOK_NS, 1000000u, "between two looks at what destage has let go of") \
	X(NEARLY_CLEAN_PAGES, 16384u, "from here on a cleaner's writes wait for the blocks that they meet") \
	X(CLEANER_PATIENCE, 100u, "looks for which they wait") \
	X(WAIT_SPINS, 64u, "tries in a row for a block or a slot before the CPU is given away") \
	X(SPACE_RETRY_NS, 20000000u, "without a wake, what waits for space is tried again after so long") \
	X(FLUSH_RETRY_NS, 500000000u, "the same of what waits for a flush of another") \
	X(SLOW_DURABLE_NS, 200000u, "a durable write to the pool's disk that takes so long is left to flushes")

enum fby_default {
#define FBY_DEFAULT_ENUM(name, value, what) FBY_DEFAULT_##name = value,
	FBY_DEFAULTS(FBY_DEFAULT_ENUM)
#undef FBY_DEFAULT_ENUM
};

/* --- what goes past the cache ----------------------------------------------------- */

/* How a volume uses the pool. */
enum fby_mode {
	FBY_MODE_WRITE_BACK = 0,
	FBY_MODE_WRITE_THROUGH, /* a write is acknowledged when the origin has it, flushed */
	FBY_MODE_CLEANER,	/* nothing new enters the pool, except data that overwrites its content */
};

/* The policy of an attached volume, in the host's memory.  Each field may change at any time,
 * with fby_store. */
struct fby_policy {
	u32 bypass_sectors; /* writes of at least so many sectors bypass the cache; 0: none */
	u8 mode;	    /* enum fby_mode */
	u8 full_bypasses;   /* writes that find no space bypass it, too */
	u8 metadata_only;   /* so do all requests that are not marked as metadata */
	u8 durable;	    /* the host's clients send no flushes: each write past the cache is flushed */
};

/* Converts bytes to sectors, rounding up: the meaning of a limit in bytes. */
u32 fby_policy_limit(u64 bytes);

/* Does a write of so many sectors bypass the cache, as far as it may?  If so, returns the least
 * number of sectors between cached blocks that bypasses it; 0: the write goes through the cache. */
static inline u32 fby_policy_past(const struct fby_policy *y, u64 nsectors, bool metadata)
{
	u32 limit = fby_load(&y->bypass_sectors);

	if (fby_unlikely(fby_load(&y->mode) != FBY_MODE_WRITE_BACK))
		return 1;
	if (fby_unlikely(fby_load(&y->metadata_only)) && !metadata)
		return 1;
	return fby_unlikely(limit != 0) && nsectors >= limit ? FBY_DEFAULT_BYPASS_LEAST : 0;
}

/* --- throttle ------------------------------------------------------------------------- */

/* How long a request that took so many sectors into the cache is held before it is
 * acknowledged; 0: not at all.  To be asked where fby_write_throttled() says so. */
u64 fby_policy_delay(struct fby_pool *p, u16 volume, u64 nsectors, u64 now_ns);

/* --- is it the volume's origin? --------------------------------------------------------- */

/*
 * The recorded identity of an origin is "id|path".  An id that begins with "name:" is
 * what the system calls the device today, which tells no two disks apart: it is taken
 * by an explicit order only, and the record says so that the order was given.  Up to
 * version 0.1 a name was recorded without asking, as "blk:" and the name.
 */

/* The origin that the host found at the given path. */
struct fby_origin_found {
	const char *id;	  /* without a path, zero-terminated; "name:..." if nothing better is known */
	u64 sectors;
	u32 logical_block; /* bytes */
	bool accept_changed; /* ordered by the user: another id, or a larger size, is accepted */
	bool by_name;	     /* by an order: the name will do */
	bool cannot_see_ids; /* the host knows names alone, so that id is one says nothing of the device */
	bool same_path;	     /* the recorded path leads to it */
};

/* X(name, cause) */
#define FBY_ORIGINS(X) \
	X(SAME, "it is the volume's origin") \
	X(RENEWED, "it is the volume's origin, and its id or size is to be recorded anew") \
	X(BLOCK, "its logical block is larger than the volume's") \
	X(OTHER, "it is not the one that the volume was made for") \
	X(NAME, "the system knows it by its name alone, which another disk may have after a restart") \
	X(SMALLER, "it is smaller than the volume") \
	X(LARGER, "it is larger than the volume")

enum fby_origin_verdict {
#define FBY_ORIGIN_ENUM(name, cause) FBY_ORIGIN_IS_##name,
	FBY_ORIGINS(FBY_ORIGIN_ENUM)
#undef FBY_ORIGIN_ENUM
	FBY_ORIGIN_COUNT
};

enum fby_origin_verdict fby_origin_judge(const struct fby_volume_spec *recorded, const struct fby_origin_found *found);
const char *fby_origin_cause(enum fby_origin_verdict v);
/* Is the id only the system's name of a device? */
bool fby_origin_is_name(const char *id);
/* The recorded id is the same name, but nobody confirmed that a name is acceptable. */
bool fby_origin_is_unasked_name(const char *recorded, const char *id);
/* Sectors of a whole number of the volume's blocks. */
u64 fby_origin_usable(u32 block_size, u64 sectors);

/* --- is the pool the one that marked the origin? ------------------------------------------- */

/* A mark says the least number that the volume's record has in the pool that made it
 * (fby_volume_mark), and whose record: a volume that was removed, and one that was added
 * later by its name, count each for itself.  X(name, cause) */
#define FBY_MARKS(X) \
	X(RIGHT, "it goes with the pool") \
	X(NEWER, "the pool is an older copy of the one that marked the origin") \
	X(OLDER, "the origin is an older state of itself: the pool has marked it again since, or has taken that mark away") \
	X(OTHER, "the mark is of another volume that has, or had, this name in the pool") \
	X(MISSING, "the pool had marked the origin, whose mark is gone")

enum fby_mark_verdict {
#define FBY_MARK_ENUM(name, cause) FBY_MARK_IS_##name,
	FBY_MARKS(FBY_MARK_ENUM)
#undef FBY_MARK_ENUM
	FBY_MARK_COUNT
};

struct fby_mark_found {
	bool marked; /* the origin bears a mark, that says: */
	bool names;  /* uuid; those that were set up to version 0.1 do not */
	bool exact;  /* the origin itself bears the mark, and the mark says the last number that was
		      * set; without a mark, one would be on the origin */
	u32 least;
	u8 uuid[16]; /* of the volume */
};

/* The pool holds data that the origin lacks, or may lack. */
bool fby_volume_holds(const struct fby_volume_info *v);
/* For callers that attach the volume, and for callers that remove the mark. */
enum fby_mark_verdict fby_mark_judge(const struct fby_volume_info *v, const struct fby_mark_found *found);
const char *fby_mark_cause(enum fby_mark_verdict v);

/* --- exit codes --------------------------------------------------------------------------- */

/* Exit code of a command that fails with this (negative) error of the engine. */
u32 fby_error_exit(int error);
/* Exit code for an error of the system: a positive errno number. */
u32 fby_errno_exit(int error);

#endif
