/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * cache.h - blocks of volumes in the pool: the index, reads, writes, and requests that bypass the
 * cache.
 */
#ifndef FBY_CACHE_H
#define FBY_CACHE_H

#include "space/space.h"

#define FBY_DAMAGED_RING 64u
#define FBY_BUCKET_LOCK (1u << 31)

/* The state of an entry: the content of the linked page. */
#define FBY_ES_VALID(s) ((u8)(s))
#define FBY_ES_LOST(s) ((u8)((s) >> 8))
#define FBY_ES_KIND(s) (((s) >> 16) & 15u)
#define FBY_ES_LINKED (1u << 20)
#define FBY_ES_VERIFIED (1u << 21) /* the checksum was right at some read since open */
#define FBY_ES_DAMAGED (1u << 22)  /* the checksum was wrong: its valid sectors are lost */
#define FBY_ES_CLEAN (1u << 26)	   /* on the flushed origin too: destage need not write it */
#define FBY_ES_COPY (1u << 27)	   /* copied within the pool: counts as old as its source */
#define FBY_ES_REFUSED (1u << 28) /* the origin refused it, or the page that it was copied from */
#define FBY_ES_COUNTED (0xff00u | FBY_ES_DAMAGED | FBY_ES_CLEAN) /* pages with one of these are counted */
/* The next three are set only during recovery.  They say how to rewrite the line. */
#define FBY_ES_HOLE (1u << 23)	 /* the page is lost and marks its block as lost; key ~0: block unknown */
#define FBY_ES_VOID (1u << 24)	 /* write nothing valid: the line is a torn tail, or lost and irrelevant */
#define FBY_ES_REPAIR (1u << 25) /* write the line with its bit error corrected */
#define FBY_ES(kind, valid, lost) ((u32)(valid) | (u32)(lost) << 8 | (u32)(kind) << 16)

/* One per page, guarded by its bucket's lock while linked; read without it. */
struct fby_entry {
	u64 key; /* volume << 48 | block */
	u32 next; /* page number, chain of the bucket */
	u32 state;
};

/* State of the flushes of an origin, one at a time; see flush.c.  All fields except held outlive
 * a detach: they live as long as the volume, or the open pool. */
#define FBY_GATE_HELD 1u
#define FBY_GATE_DESTAGE 2u /* destage waits, and is next */
struct fby_gate {
	u32 held; /* who has the flush in flight */
	u32 lost; /* failures that may have lost bypassed writes, or destage's blocks */
	u32 told; /* number of failures that a flush of everything need not report any more */
	u64 lost_upto; /* requests that had ended at the last failure; ~0: unknown yet */
	u64 ended; /* bypassing requests, and parts of them, that have ended, plus one */
	u64 flushed; /* value of ended when the last successful flush began */
	u64 upto; /* value of ended when the flush in flight began; owned by its holder */
};

/* Blocks that are being written past the cache; see bypass.c. */
#define FBY_BYPASS_MAX 32u
struct fby_bypass_range {
	u64 first, end;
};

struct fby_cached {
	/* writers look at it each time */
	u32 bypassing; /* those of range[] that are in use, by bit; set under the pool lock */
	u32 lost_blocks; /* linked pages with lost sectors, or damaged */
	u32 lost_only;	 /* linked pages without any other sectors: never destaged */
	u64 blocks; /* 4 KiB units, rounded up */
	struct fby_bypass_range range[FBY_BYPASS_MAX] FBY_ALIGNED;
	struct fby_gate gate FBY_ALIGNED;
	u64 bypasses, bypassed_sectors;
};

/* Counters that readers share; striped by CPU to keep readers apart. */
struct fby_read_stats {
	u64 reads FBY_ALIGNED;
	u64 hit_sectors, miss_sectors;
};
#define FBY_READ_STRIPES 16u

struct fby_statics;

struct fby_cache {
	/* fixed after open */
	struct fby_space *space;
	struct fby_entry *entry;
	u32 *bucket;
	u32 nbuckets;
	struct fby_cached *volume;
	struct fby_statics *statics; /* NULL: the pool has no room for static volumes */

	u64 damaged_pages FBY_ALIGNED;
	u32 ndamaged; /* guarded by the pool lock, as is the ring */
	struct fby_report_block damaged[FBY_DAMAGED_RING];
	u64 waits[4];
	struct fby_read_stats read_stats[FBY_READ_STRIPES];
};

/* --- page.c: reading a page of the pool, verified --------------------------- */
enum fby_page_result { FBY_PAGE_OK = 0, FBY_PAGE_DAMAGED };
/* Copies the sectors in want (subset of valid) to dst, sector s at dst + (s - base) * 512; verifies all. */
enum fby_page_result fby_page_read(struct fby_cache *p, u32 page, u64 key, u32 state, u8 want, u32 base, u8 *dst,
				   bool verify);
/* Returns the seq of the page's line, after correcting one wrong bit; unknown if it cannot be
 * read. */
u64 fby_page_seq(struct fby_cache *p, u32 page, u64 unknown);
/* True if all sectors that the line marks as valid can be read and match the line's checksum, if
 * it has one. */
bool fby_page_data_ok(struct fby_cache *p, u32 page, const struct fby_page_line *l);
/* Marks the page as damaged, if it still is the block's.  Tries to lock the block; does nothing
 * if that fails. */
void fby_page_mark(struct fby_cache *p, u32 page, u64 key, u32 flag);

/* --- write.c ----------------------------------------------------------------- */
int fby_begin(struct fby_cache *p, struct fby_write *w, u16 volume, enum fby_kind kind, u64 sector, u32 nsectors,
	      u32 flags);
/* Replaces the block's page with an entry that lists its lost sectors, if the page still is the
 * block's.  DONE, *slot: the slot used, or ~0; or WAIT. */
int fby_carry(struct fby_cache *p, u16 volume, u64 block, u32 page, bool damaged, u32 *slot, u32 *wake);

/* Appends the page's content once more, if the page still is the block's, sound and whole: the
 * same bytes under a new seq, and the new chunk counts as old as the page's.  flags: of enum
 * fby_begin_flags; they say which room the copy may take, and whether the page was refused.
 * DONE, *slot: the slot used, or ~0; or WAIT. */
int fby_move(struct fby_cache *p, u16 volume, u64 block, u32 page, u32 flags, u32 *slot, u32 *wake);

/* --- regroup.c: of a grouped pool ------------------------------------------------- */
/* Pages whose group could not be written are appended again, in another chunk.  DONE, or WAIT. */
int fby_cache_again(struct fby_cache *p, u16 volume, u32 *wake);

/* --- bypass.c ------------------------------------------------------------------- */
/* Is the block, whose bucket the caller holds, being written past the cache? */
bool fby_bypass_meets(const struct fby_cached *v, u64 block);
/* fby_bypass_begin for any kind, of whole blocks unless it is FBY_KIND_DATA. */
int fby_past_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u8 kind, u64 sector, u64 nsectors, u32 least);

/* --- flush.c -------------------------------------------------------------------- */
/* Resets the gate.  A flush is owed, because a host that crashed may have left unflushed writes.
 * Failures that nobody was told of are still to be reported. */
void fby_gate_attach(struct fby_cached *v);
/* Takes the gate for destage.  False: a flush is in flight.  Its end wakes destage, and no other
 * flush begins meanwhile. */
bool fby_gate_destage(struct fby_cached *v);
void fby_gate_destage_sends(struct fby_cached *v);
/* Destage's flush is over; any context. */
void fby_gate_destage_ends(struct fby_cache *p, struct fby_cached *v, int error);
/* The flush failed, and bypassed writes may be lost with it. */
void fby_gate_destage_failed(struct fby_cached *v);
/* The gate is not needed after all. */
void fby_gate_destage_leaves(struct fby_cached *v, u32 *wake);

/* --- digest.c ------------------------------------------------------------------------ */
u64 fby_digest(struct fby_cache *p, u64 *entries);

static inline u64 fby_key(u16 volume, u64 block)
{
	return (u64)volume << FBY_BLOCK_BITS | block;
}

static inline u64 fby_key_block(u64 key)
{
	return key & ((1ull << FBY_BLOCK_BITS) - 1);
}

/* The linked page is not older than this; 0 for one of a recovered chunk. */
static inline u64 fby_page_since(const struct fby_cache *p, u32 page)
{
	const struct fby_chunk *ch = fby_chunk_of(p->space, page);
	u64 opened_ns = fby_load(&ch->opened_ns), copies_ns = fby_load(&ch->copies_ns);

	return (fby_load(&p->entry[page].state) & FBY_ES_COPY) && copies_ns < opened_ns ? copies_ns : opened_ns;
}

/* Is the linked page on the flushed origin that is attached now? */
static inline bool fby_page_is_clean(const struct fby_cache *p, u16 volume, u32 page, u32 state)
{
	return (state & FBY_ES_CLEAN) && fby_may_be_clean(p->space, volume, page);
}

/* Does an entry of this state only say that its block is lost? */
static inline bool fby_lost_only(u32 state)
{
	return (state & FBY_ES_LINKED) && FBY_ES_VALID(state) == 0 && FBY_ES_LOST(state) != 0;
}

/* May the user write, discard or zero [sector, +nsectors), at least so many? */
FBY_INLINE int fby_request_check(const struct fby_cache *p, u16 volume, u64 sector, u64 nsectors, u64 least)
{
	const struct fby_owner *o;

	if (fby_unlikely(volume >= p->space->store.sb.nvolumes))
		return -FBY_E_NO_VOLUME;
	o = &p->space->owner[volume];
	if (fby_unlikely(!o->attached))
		return -FBY_E_VOLUME_DETACHED;
	if (fby_unlikely(p->space->opt.read_only))
		return -FBY_E_READ_ONLY;
	if (fby_unlikely(nsectors < least || sector > o->rec.origin_sectors ||
			 nsectors > o->rec.origin_sectors - sector))
		return -FBY_E_RANGE;
	if (fby_unlikely(o->rec.block_size == FBY_PAGE && ((sector | nsectors) % FBY_PAGE_SECTORS) != 0))
		return -FBY_E_ALIGNMENT;
	return FBY_DONE;
}

/* --- what hosts call; forebay.h says what each does ------------------------------- */
int fby_cache_write(struct fby_cache *p, u16 volume, u64 sector, u32 nsectors, const void *buf, u32 *done, u32 *wake);
int fby_cache_write_begin(struct fby_cache *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors);
void fby_cache_write_copy(struct fby_cache *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip);
void fby_cache_write_commit(struct fby_cache *p, struct fby_write *w);
void fby_cache_write_publish(struct fby_cache *p, struct fby_write *w);
int fby_cache_read_block(struct fby_cache *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin,
			 u8 *lost);
int fby_cache_range(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done,
		    struct fby_bypass *past, u32 *wake);
int fby_cache_bypass_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors, u32 least);
void fby_cache_bypass_end(struct fby_cache *p, struct fby_bypass *b, int error, u32 *wake);
int fby_cache_flush_begin(struct fby_cache *p, u16 volume, struct fby_flush *t);
int fby_cache_flush_end(struct fby_cache *p, struct fby_flush *t, int error, u32 *wake);
u32 fby_cache_flush_told(struct fby_cache *p, u16 volume);
int fby_cache_flush_later(struct fby_cache *p, struct fby_flush *t);
void fby_cache_flush_cover(struct fby_cache *p, struct fby_flush *t, const struct fby_bypass *b);

#endif
