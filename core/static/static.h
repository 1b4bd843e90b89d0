/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * static.h - static volumes: each block has a fixed slot with two ways.  There is no index; a
 * slot's line on the media has all information.  docs/design/static.md.
 *
 * Locks: a stripe, shared by many slots, of rank 1 as a block of the cache.  Its word: bit 0, a
 * writer holds it; bit 1, the writer stores to the media, and readers wait; the bits above count
 * how often bit 1 was set.  A reader compares the word before and after.
 */
#ifndef FBY_STATIC_H
#define FBY_STATIC_H

#include "format/static_format.h"
#include "space/space.h"

#define FBY_STRIPE_LOCKED 1ull
#define FBY_STRIPE_STORES 2ull
#define FBY_STRIPE_ONE 4ull
#define FBY_STRIPES_MIN 16u
#define FBY_STRIPES_MAX 2048u
#define FBY_GROUP_SLOTS 8u /* each has a bit: may one of its slots have pages for destage? */
#define FBY_STATIC_COUNTS 8u
#define FBY_WANTED 16u
#define FBY_LOST_OF_SLOT 64u /* blocks that are listed for a slot if the lost block is unknown */

/* One for each group of CPUs, so that writers share no line. */
struct fby_static_count {
	u64 live FBY_ALIGNED; /* this CPU's change to the number of pages that the origin lacks */
	u64 writes, sectors, conflicts;
};

struct fby_static {
	/* fixed while it is attached */
	u64 at, lines, pages; /* offsets of the share, its lines, its pages */
	u64 bytes; /* of the share */
	u64 blocks; /* of the volume */
	u32 slots, seed;
	u32 bit; /* bit of its first group */
	u32 stripe; /* stripe of its first slot */
	u8 tail; /* sectors that the last block has */
	bool attached;
	bool told; /* the count at attach came from the head, not from a survey */
	bool sound; /* head is what the media has, or is about to have */
	/* owned by attach, detach and fby_destage_step */
	struct fby_static_head head;
	u32 hand; /* next group of the pass */
	u32 left; /* groups that the pass has not visited yet */
	bool settling; /* the era has advanced, and a writer may still be in the previous one */
	u32 settling_at; /* stripes below it were seen without such a writer */
	u64 settling_word; /* word of the stripe there when it was first seen; 0: not seen yet */
	u64 settled_writes; /* number of writes when the era advanced */
	u64 era_ns; /* when destage last advanced the era */
	bool era_asked; /* a slot in which writers collide has unsettled pages */
	u64 pass_ns; /* when the last pass began */
	u64 passes, passes_done; /* passes: begun; passes_done: the last that wrote back everything it had to */
	u32 collects; /* rounds that have begun; incremented before they take anything */
	u64 pass_era; /* the last era that existed when the pass began */
	bool passing, gave_back; /* passing: a pass is running; gave_back: it has left a page */
	bool crowded; /* slots in which writers collide left the hand no room in the last round */
	bool pressure;
	/* owned likewise, and read by writers */
	u64 era FBY_ALIGNED;
	u32 nwindows;
	u32 surveyed; /* slots below it are counted, and have no torn page; slots: all */
	struct fby_static_window window[FBY_STATIC_WINDOWS + 1];
	u32 lost; /* blocks found lost since attach, and pages that destage has skipped as lost */
	u32 found; /* added to these since; pool lock */
	u64 done_era; /* pass_era of the last complete pass */
	u64 over_era; /* newest era of the pages that were found skipped; pool lock */
	bool miscounted; /* a counted line became unreadable: all lines must be counted again */
	bool recounting; /* nothing counts as surveyed, and a writer may not know that yet */
	u32 recounting_at; /* stripes below it were seen without such a writer */
	u32 recounts; /* recounts that have begun */
	u32 wanted[FBY_WANTED]; /* slots + 1 in which writers collide; 0: none */
	struct fby_static_count count[FBY_STATIC_COUNTS];
};

struct fby_statics {
	/* fixed after open */
	struct fby_space *space;
	struct fby_static *volume;
	u64 *stripe;
	u32 nstripes; /* a power of two; 0: the pool has no room for static volumes */
	u64 *dirty; /* by group */
};

/* The content of a slot. */
struct fby_static_view {
	struct fby_static_line line;
	u32 slot, number; /* number: of the newest write */
	u64 era;
	u8 live; /* ways, by bit; without torn pages */
	u8 unknown; /* ways of these that are lost, and whose block is unknown */
	u8 newest;
	bool sole; /* the other way has an older page of the newest's block */
	bool over;
	bool torn; /* the newest page on the media is torn */
	bool gone; /* nothing of the line is readable */
};

enum fby_static_has { FBY_HAS_NOTHING = 0, FBY_HAS_PAGE, FBY_HAS_LOST };

/* --- share.c: the share, its head, eras ---------------------------------------------- */
u32 fby_static_slots(u64 bytes); /* slots in a share of this size */
/* Has the pool room for a share of this size?  *first: its first unit. */
bool fby_share_find(const struct fby_statics *p, u64 bytes, u32 *first);
/* Formats an empty share, before its record is written. */
void fby_share_format(struct fby_statics *p, const struct fby_static_record *r, u32 flush_us);
/* Computes the layout and reads the head.  False: neither is known. */
bool fby_static_open(struct fby_statics *p, u16 volume);
int fby_static_attach(struct fby_statics *p, u16 volume);
void fby_static_detach(struct fby_statics *p, u16 volume);
/* Ends the era, if anything was written in it.  True: the writes of the previous era are settled,
 * or all writes if there were none since the last call: no cut can tear them. */
bool fby_static_settle(struct fby_statics *p, u16 volume);
/* is everything settled, so that fby_static_settle would end no era? */
bool fby_static_settled(const struct fby_static *v);
/* Examines up to n more slots, after a cut: removes torn pages, counts the others. */
void fby_static_survey(struct fby_statics *p, u16 volume, u32 n);
/* Begins the survey again, for the counts alone. */
void fby_static_recount(struct fby_statics *p, u16 volume);
u64 fby_static_live(const struct fby_static *v);
/* Is the number of pages known?  A count read after this returned true is right, if no other
 * recount has begun meanwhile. */
static inline bool fby_static_counted(const struct fby_static *v)
{
	/* Doubt is cleared after the survey was reset. */
	return !fby_load_acquire(&v->miscounted) && fby_load_acquire(&v->surveyed) == v->slots;
}
bool fby_static_any(struct fby_statics *p, u16 volume); /* examines all slots */

/* --- slot_line.c: what a line says ------------------------------------------------------ */
u64 fby_static_control(const struct fby_static *v, u32 slot, u64 bits);
/* Sets both words of the line. */
static inline void fby_static_say(const struct fby_static *v, u32 slot, u64 bits, struct fby_static_line *l)
{
	l->control = fby_static_control(v, slot, bits);
	l->copy = ~l->control;
}
/* Reads the line as it is; a caller without the lock compares the stripe before and after. */
void fby_static_look(const struct fby_statics *p, const struct fby_static *v, u32 slot, struct fby_static_view *out);
void fby_static_tag_finish(const struct fby_static *v, u32 slot, u32 way, struct fby_static_tag *t);
/* Finds the block in the view; *way, if it has a page. */
enum fby_static_has fby_static_find(const struct fby_static_view *s, u64 block, u32 *way);
/* Is the way a page that the origin lacks, and the newest of its block? */
static inline bool fby_static_counts(const struct fby_static_view *s, u32 way)
{
	return (s->live >> way & 1) && (way == s->newest || !s->sole);
}

/* --- place.c: pages ------------------------------------------------------------------------ */
/* Copies the sectors in want (subset of valid) to dst, sector s at dst + (s - base) * 512;
 * false: its checksum is wrong.  dst NULL: is it sound? */
bool fby_place_read(const struct fby_statics *p, const struct fby_static *v, u32 slot, u32 way,
		    const struct fby_static_tag *t, u8 want, u32 base, u8 *dst);
/* The result of a lock-free lookup; the view existed at some moment. */
void fby_place_snapshot(const struct fby_statics *p, const struct fby_static *v, u32 slot, struct fby_static_view *s);
/* Reads the sectors of want that the pool has of one block. */
int fby_place_get(const struct fby_statics *p, const struct fby_static *v, u64 block, u8 want, u32 base, u8 *dst,
		  u8 *origin, u8 *lost);

/* Sound pages that destage has skipped. */
struct fby_static_over {
	u32 n;
	u64 era; /* the last */
};
/* Blocks of the slot that answer with an error; all its pages are verified. */
u32 fby_place_lost(const struct fby_statics *p, const struct fby_static *v, u32 slot, u64 *block, u32 max,
		   struct fby_static_over *over);

/* A write in progress. */
struct fby_place {
	u64 block;
	u32 slot, way;
	u64 *stripe;
	u8 valid, lost, kind;
	bool sole, over;
	struct fby_static_view s;
};
/* Stripe held: chooses the way for the block's next page.  WAIT_SPACE: none is free until another
 * block is on the origin; -FBY_E_LOST: none, and destage cannot help. */
int fby_place_choose(struct fby_statics *p, struct fby_static *v, struct fby_place *w, u8 mask, u32 *wake);
/* Merges the sectors that the pool has of the block and that are not in mask, into scratch: valid
 * and lost. */
bool fby_place_merge(const struct fby_statics *p, const struct fby_static *v, struct fby_place *w, u8 mask,
		     u8 *scratch);
/* Stores sectors of valid from src, which begins at sector base, and the line; durable. */
void fby_place_put(struct fby_statics *p, struct fby_static *v, const struct fby_place *w, const u8 *src, u32 base,
		   u32 sectors);
/* The page with this stamp is on the flushed origin: frees it.  False: the stripe is held. */
bool fby_place_release(struct fby_statics *p, struct fby_static *v, u32 slot, u32 way, u64 block, u64 stamp);

/* --- stripes ------------------------------------------------------------------------------- */
static inline u64 *fby_stripe(const struct fby_statics *p, const struct fby_static *v, u32 slot)
{
	return &p->stripe[(v->stripe + slot) & (p->nstripes - 1)];
}

/* stores: FBY_STRIPE_STORES, or 0 if the stores come later. */
static inline bool fby_stripe_try(u64 *stripe, u64 stores)
{
	u64 word = fby_load(stripe);

	if (word & FBY_STRIPE_LOCKED)
		return false;
	fby_pin();
	if (fby_likely(fby_cmpxchg(stripe, word, word | FBY_STRIPE_LOCKED | stores)))
		return true;
	fby_unpin();
	return false;
}

static inline void fby_stripe_release(u64 *stripe)
{
	u64 word = fby_load(stripe);

	FBY_ASSERT(stripe, word & FBY_STRIPE_LOCKED);
	/* Changed even if nothing was stored, so that the next writer is seen to be another. */
	word += word & FBY_STRIPE_STORES ? FBY_STRIPE_ONE : 0;
	fby_store_release(stripe, word & ~(FBY_STRIPE_LOCKED | FBY_STRIPE_STORES));
	fby_unpin();
}

/* --- small ----------------------------------------------------------------------------------- */
u32 fby_static_far_slot(u64 block, u32 slots);

/* block mod slots, without a division of 64 bits. */
static inline u32 fby_static_slot(const struct fby_static *v, u64 block)
{
	if (block < v->slots)
		return (u32)block;
	return fby_likely(block >> 32 == 0) ? (u32)block % v->slots : fby_static_far_slot(block, v->slots);
}

static inline u64 fby_static_line_at(const struct fby_static *v, u32 slot)
{
	return v->lines + (u64)slot * FBY_LINE;
}

static inline u64 fby_static_page_at(const struct fby_static *v, u32 slot, u32 way)
{
	return v->pages + ((u64)slot * 2 + way) * FBY_PAGE;
}

/* May a cut have torn unacknowledged writes of this era? */
static inline bool fby_in_doubt(const struct fby_static *v, u64 era)
{
	u32 n = fby_load(&v->nwindows);

	for (u32 i = 0; i < n; i++)
		if (era > v->window[i].after && era <= v->window[i].upto)
			return true;
	return false;
}

/* Sectors of the block that the origin has. */
static inline u8 fby_static_sectors(const struct fby_static *v, u64 block)
{
	return fby_likely(block + 1 != v->blocks) ? 0xff : v->tail;
}

/* Can no other block of the volume have this slot? */
static inline bool fby_static_alone(const struct fby_static *v, u32 slot)
{
	return (u64)slot + v->slots >= v->blocks;
}

static inline bool fby_static_dirty(const struct fby_statics *p, const struct fby_static *v, u32 group)
{
	u32 bit = v->bit + group;

	return fby_load(&p->dirty[bit / 64]) >> (bit % 64) & 1;
}

static inline void fby_static_dirty_set(struct fby_statics *p, const struct fby_static *v, u32 group)
{
	u32 bit = v->bit + group;

	if (!(fby_load(&p->dirty[bit / 64]) >> (bit % 64) & 1))
		fby_fetch_or(&p->dirty[bit / 64], 1ull << (bit % 64));
}

static inline void fby_static_dirty_clear(struct fby_statics *p, const struct fby_static *v, u32 group)
{
	u32 bit = v->bit + group;

	fby_fetch_and(&p->dirty[bit / 64], ~(1ull << (bit % 64)));
	fby_mb_after_atomic();
}

static inline u32 fby_static_groups(const struct fby_static *v)
{
	return (v->slots + FBY_GROUP_SLOTS - 1) / FBY_GROUP_SLOTS;
}

#endif
