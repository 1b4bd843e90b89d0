/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * map_test.h - a small world for maps.  It has media that knows what is durable, file systems whose
 * writes may be lost until an fsync, programs and a server as coroutines, and the expected content
 * of each page.
 */
#ifndef MAP_TEST_H
#define MAP_TEST_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/parts.h"

/* --- media (map_media.c) ------------------------------------------------------------- */

#define LINE_WORDS 8u
#define ACTORS 3u

/* The content of a line, from a change on until the next. */
struct version {
	u64 words[LINE_WORDS];
	u32 flushed; /* by whom since, a bit each: his next fence makes it durable */
};

struct pending {
	u32 line;
	u32 n, room;
	struct version *version;
};

/* Persistent memory with caches in front of it.  A word that was not flushed and fenced since it
 * changed may be durable with any of the values that it has had. */
struct medium {
	struct fby_media media; /* base: what loads see */
	u8 *durable, *latest; /* latest: with all versions that are known */
	struct pending *pending;
	u32 npending, room;
	u32 *at; /* by line: its place in pending, plus 1 */
	u32 actor;
	void (*event)(struct medium *m); /* before each flush, fence and write */
	u64 events;
	u32 *touched; /* lines that are not as the image was, perhaps; for media_back */
	u32 ntouched;
	u8 *is_touched;
};

extern const struct fby_frame_port medium_port; /* host: the medium */

void medium_make(struct medium *m, u64 bytes);
/* Records a change of [at, at + n), which the medium cannot see, since it is memory. */
void medium_settle(struct medium *m, u64 at, u64 n);
/* Makes everything durable. */
void medium_power_off(struct medium *m);
void medium_set_line(struct medium *m, u32 line, const u64 words[LINE_WORDS]);

/* --- randomness ------------------------------------------------------------------------ */
extern u64 random_state;

static inline u64 random_next(void)
{
	random_state += 0x9e3779b97f4a7c15ull;
	return fby_mix(random_state * 0xff51afd7ed558ccdull);
}

static inline u32 below(u32 n)
{
	return (u32)(random_next() >> 33) % n;
}

static inline bool one_in(u32 n)
{
	return below(n) == 0;
}

/* --- the world (map_world.c) ------------------------------------------------------------- */

#define NFILES 2u
#define FRAME_PAGES 32u
#define FRAME_BYTES (FRAME_PAGES * FBY_PAGE)
#define SEGMENTS 2u
#define FILE_PAGES (SEGMENTS * FRAME_PAGES)
#define HALVES 2u /* of a page: its first line, its last one */
#define PENDING_OPS 512u

/* The content of a file: two words a page, which stand for the rest. */
struct content {
	u64 size;
	u64 blocks; /* so many pages, from the first on, have theirs */
	u64 page[FILE_PAGES][HALVES];
};

struct file_op {
	bool sized, allotted; /* else a page */
	u32 page;
	u64 size;
	u64 word[HALVES];
};

struct disk_file {
	struct content durable, visible;
	struct file_op op[PENDING_OPS]; /* since the last fsync */
	u32 nops;
};

/* The values that half a page may be read as. */
struct expected {
	u64 live; /* stored last */
	u64 least; /* nothing older than this moment */
	u64 zeroed; /* when it was zero last */
};

struct model_file {
	bool known; /* the map has a record */
	u64 size, cut; /* cut: a truncation to it is under way; ~0: none */
	u64 growing; /* or it grows to this; 0: it does not */
	u64 ahead; /* the map was told of this; 0: it was not */
	struct expected half[FILE_PAGES][HALVES];
};

struct world {
	struct medium medium;
	struct fby_pool *pool;
	void *memory, *attached;
	u64 memory_bytes, attached_bytes;
	struct disk_file disk[NFILES];
	struct model_file file[NFILES];
	u64 appended[NFILES]; /* to this by somebody else, since the cut; 0: by nobody */
};

extern struct world now, other; /* as it runs, and a recovery */
extern u64 moment; /* counts stores and truncations */
extern char wrong[300]; /* describes a violation; empty: none */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void disk_write(struct disk_file *d, u32 page, const u64 word[HALVES]);
void disk_resize(struct disk_file *d, u64 size);
/* Allocates blocks for the first pages. */
void disk_allot(struct disk_file *d, u64 pages);
void disk_fsync(struct disk_file *d);
/* Cuts the power: any part of the data that was not fsynced is there; pick chooses. */
void disk_crash(struct disk_file *d, u64 pick);
/* An image of the medium is opened, recovered as a host does it, and judged. */
void world_make(struct world *w);
int world_open(struct world *w);
bool world_opens(struct world *w); /* the pool alone */
int world_recover(struct world *w, bool damaged);
void world_judge(const struct world *w);
static inline u64 word_at(const struct world *w, u64 at)
{
	u64 word;

	memcpy(&word, w->medium.media.base + at, sizeof(word));
	return word;
}
static inline u64 half_in_page(u32 half)
{
	return half ? FBY_PAGE - FBY_LINE : 0;
}

/* Mistakes of a host.  The engine cannot see them, so the explorer has to. */
#define HOST_BUGS(X) \
	X(END_BEFORE_FSYNC, "pages are clean before their file is fsynced") \
	X(COPIED_BEFORE_BEGIN, "pages are copied out before the write back has begun") \
	X(SIZE_BEFORE_FSYNC, "the map has a size that the file system may lose") \
	X(TRUNCATED_FIRST, "a file is truncated before the map knows") \
	X(UNSYNCED_DROPPED, "what is out of sync is dropped with its frame") \
	X(FOUND_BEFORE_FSYNC, "recovery ends a write back before it fsyncs the file") \
	X(CUT_NOT_ENDED, "recovery does not truncate again") \
	X(WRITTEN_PAST_DIRTY, "a file is written past a page that is dirty") \
	X(PROMISED_UNALLOTTED, "a size is promised before its blocks are durable") \
	X(REMOVED_PROMISED, "a record goes before the file has the size that was promised") \
	X(SETTLED_BEFORE_FSYNC, "a promised size counts as made before it is durable") \
	X(PROMISE_IGNORED, "recovery leaves a file shorter than was promised") \
	X(TAIL_LEFT, "recovery leaves the zeroes by which a file was grown ahead") \
	X(APPENDED_CUT, "recovery cuts what somebody else has appended") \
	X(TAIL_NOT_READ, "recovery cuts what is not longer than was told, without a look at it")
enum host_bug {
	NO_HOST_BUG,
#define HOST_BUG_ENUM(name, what) HOST_##name,
	HOST_BUGS(HOST_BUG_ENUM)
#undef HOST_BUG_ENUM
	HOST_BUG_COUNT
};
extern u32 host_bug;
#define HOST_BUG(name) (host_bug == HOST_##name)

/* --- scripts (map_script.c) ---------------------------------------------------------------- */
/* Runs programs and a server for that many steps, by the seed. */
void script_run(u64 seed, u32 steps);
extern u32 script_did[16]; /* how often what was done */

/* --- explorer (map_explore.c) ----------------------------------------------------------------- */
struct explored {
	u64 images, distinct, cuts, nested;
};
extern struct explored explored;
extern u32 images_of_cut;
void explore_begin(void);
void explore_cut(void); /* of the world in its present state */
void explore_table(void); /* maps are added and removed */

/* --- damage (map_damage.c), threads (map_threads.c) ---------------------------------------------- */
u64 damage_all(void); /* bits that were flipped */
int threads_run(u32 seconds);

#endif
