/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * space.h - commit slots, chunks and their owners, sequence numbers, and how full the pool is.
 * The layers above know the content of the chunks.
 *
 * Locks, by rank (take in this order, release in any):
 *   1 block	bit 31 of a bucket's head (cache/index.h): guards the chain of that
 *		bucket and the linked page of each block in it.  Held by a writer from
 *		begin to publish; others only try.
 *   2 slot	fby_slot.busy: guards the slot and the chunks it has open.
 *   3 pool	fby_space.lock: guards the free list, the owners' chunk lists
 *		and the state of chunks.  A few instructions long.
 *
 * In each layer p is that layer's view of the pool.
 */
#ifndef FBY_SPACE_H
#define FBY_SPACE_H

#include "api/forebay.h"
#include "format/log_format.h"
#include "format/static_format.h"
#include "format/store.h"
#include "space/group.h"

#define FBY_SEQ_BLOCK 64u     /* sequence numbers a slot takes at once */

enum fby_chunk_state { FBY_CS_FREE = 0, FBY_CS_OPEN, FBY_CS_CLOSED };
enum fby_pin { FBY_PIN_WALK = 1, FBY_PIN_MOVED = 2, FBY_PIN_GROUP = 4 };

struct fby_chunk {
	/* written by the slot that has it open, and under the pool lock */
	u64 seq_min; /* no entry of this epoch is lower; ascending along a volume's list */
	u64 seq_last; /* last one used */
	u64 last_block; /* of page fill-1 */
	u64 opened_ns; /* pool's coarse clock; nothing that waits for destage is older, except copies */
	u64 copies_ns; /* when the oldest of these copies was written; ~0: there is none */
	u64 seal_counter; /* of the last seal */
	u32 fill; /* first page not written */
	u32 sealed; /* fill of the seal on the media */
	u32 tick_fill; /* fill at the last housekeeping */
	u32 next, prev; /* volume's list, or free list (next) */
	u16 owner;
	u8 state;  /* enum fby_chunk_state */
	u8 pinned; /* enum fby_pin: freeing waits */
	bool stays; /* it has only lost pages left, so relocation cannot empty it */
	/* read by all who look at its pages, written when it is opened or closed */
	u64 epoch FBY_ALIGNED; /* of the media's open line */
	u64 seq_max; /* highest seq in it; ~0 while open */
	u32 durable; /* in a grouped pool: pages from this place on can be taken back by a cut */
	u16 dead_base; /* sum of its dead counts when it was opened */
	u8 kind; /* enum fby_chunk_kind, by its open line */
	u32 clean_for; /* the attachment whose origin has its clean pages; 0: it has none.  Owned by destage */
};

struct fby_slot_volume {
	u32 open; /* chunk this slot has open for the volume */
	u32 clean_replaced; /* clean pages unlinked, modulo 2^32 */
	u64 writes;
	union {
		u64 sectors;
		u64 bytes; /* of a log */
	};
	u64 pages; /* appended; counted before they are linked */
	u64 dead; /* pages unlinked */
};

/*
 * Pages die in counts that have one writer each: a slot's own, by chunk (ever, modulo 2^16) and
 * by volume, and destage's.  So unlinking a page takes no locked instruction and shares no line
 * with other writers.  The live pages of a chunk are its fill less the sum of its counts, and a
 * hand that sweeps over the chunks finds those that have become empty.
 */

/* One writer at a time.  Lives as long as the pool. */
struct fby_slot {
	u32 busy FBY_ALIGNED;
	/* guarded by busy, except floor, which destage reads */
	u64 floor; /* no lower seq will be published by this slot; ~0: it holds none */
	u64 seq_next, seq_end;
	u32 log; /* log whose entry is in flight; FBY_NO_VOLUME: none */
	u64 commits, media_bytes, merges, ranges[6], flushes;
	u16 *dead; /* pages unlinked, by chunk */
	struct fby_slot_volume volume[FBY_VOLUMES_MAX];
	struct fby_page_line line[FBY_BATCH_PAGES] FBY_ALIGNED;
	u8 scratch[FBY_PAGE] FBY_ALIGNED;
};

/* The owner of chunks, of any kind, and its share of the pool. */
struct fby_owner {
	union { /* as on the media */
		struct fby_volume_record rec;
		struct fby_log_record log;
		struct fby_static_record share;
		struct fby_map_record map;
	};
	bool damaged; /* its record cannot be read */
	bool attached;
	u8 chunk_kind; /* kind of the chunks that are opened for it */
	bool active; /* an attached volume, or a log: entitled to chunks */
	u32 level; /* how full the pool is for this owner; fby_level_update */
	u32 tight; /* the value of space.tight that suits this owner; fby_fullness_judge */
	/* guarded by the pool lock */
	u32 first, last; /* its chunks, oldest first */
	u32 nchunks;
	u64 counted; /* its dirty pages at the last count; the sum is space.live */
	u64 recovered; /* pages linked by recovery */
	bool held; /* copies of its pages are not sealed yet: none of its chunks is freed */
	u64 dead FBY_ALIGNED; /* unlinked by destage and removal, who take turns */
	u32 cleaned; /* pages that became clean, less those that they unlinked since; modulo 2^32 */
	u32 attachment; /* how often it was attached since the pool was opened; owned by attach */
};

struct fby_space {
	/* fixed after open */
	struct fby_store store;
	struct fby_options opt;
	struct fby_chunk *chunk;
	struct fby_slot *slot;
	struct fby_owner *owner;
	struct fby_streams streams; /* of a grouped pool */
	u16 *dead; /* dead counts: a row of nchunks for each slot, and one for destage */
	bool usable; /* recovered */
	u32 entitled; /* chunks that each attached volume can have; fby_entitled */

	u64 seq FBY_ALIGNED; /* next sequence number; slots take blocks of it */
	u64 opens FBY_ALIGNED; /* chunk openings: entries may have been recycled if it moved */
	u32 wait_mask FBY_ALIGNED; /* enum fby_wake: somebody sleeps for it */
	u32 wake_owed; /* bits of calls that cannot reach their host; fby_destage_step passes them on */
	u64 ready FBY_ALIGNED; /* volumes that fby_destage_step has to visit, by bit */

	/* guarded by lock; nfree, owed, holders and live are read without it */
	struct fby_lock lock FBY_ALIGNED;
	u32 free_first, free_last, nfree;
	u32 owed; /* chunks that attached volumes lack of their entitlement, in total */
	u32 owed_first; /* those of volumes that have none */
	u32 holders; /* attached volumes and logs that have a chunk */
	u64 live; /* dirty pages, as of the last count of each volume; of a log, those of its chunks */
	u32 hand; /* next chunk that the sweep looks at */
	u64 chunks_opened;

	/* written by fby_destage_step */
	u64 now_ns FBY_ALIGNED; /* coarse clock */
	u32 attached; /* volumes, counted at the last tick */
	u32 share; /* pages of the pool that a volume may hold if others need it, too; fby_share_update */
	u32 tight; /* 0 to FBY_TIGHT_MOST: how much closer to full the throttle's range is; fby_share_update */
	u64 looked_opens; /* chunks_opened when relocation had examined all chunks in vain */
	u64 stepped_opens; /* chunks_opened at the last step */
	bool pressure;
};

/* May volumes have chunks?  In a grouped pool only if a page is a block. */
static inline bool fby_volumes_allowed(const struct fby_space *p)
{
	return !p->store.unit || p->store.unit == FBY_PAGE;
}

/* The purpose of a wanted chunk. */
enum fby_begin_flags {
	FBY_BEGIN_CACHED = 1u << 0, /* stop at a block that is not cached; none: FBY_ORIGIN */
	FBY_BEGIN_RESERVE = 1u << 1, /* destage: may take the reserve */
	FBY_BEGIN_RELOCATE = 1u << 2, /* relocation: all of it but one */
	FBY_BEGIN_REFUSED = 1u << 3, /* fby_move: include the page's lost sectors, and count it as new */
};

/* --- fullness.c ---------------------------------------------------------------- */
/* Free chunks that writers must leave. */
u32 fby_reserve(const struct fby_space *p);
/* Chunks reserved for volumes that have fewer than they are entitled to. */
u32 fby_owed(const struct fby_space *p);
/* Free chunks that are not owed. */
u32 fby_spare(const struct fby_space *p);
/* Number of free chunks, besides owed ones, that the planner aims at. */
u32 fby_spare_wanted(const struct fby_space *p);
/* Chunks that others leave to each attached volume, in a pool of this geometry. */
u32 fby_entitled(const struct fby_store *st);
u32 fby_owed_to(const struct fby_space *p, const struct fby_owner *v);
/* Pool lock held.  add: 1, or ~0 before a change of the volume's chunks or of its attachment. */
void fby_owed_count(struct fby_space *p, const struct fby_owner *v, u32 add);
/* The volume is attached or detached, so it is or was entitled to chunks. */
void fby_entitle(struct fby_space *p, struct fby_owner *v, bool attached);
/* Pool lock held: free chunks that the volume must leave: the reserve and the entitlement of
 * others.  flags: of enum fby_begin_flags. */
u32 fby_kept_free(const struct fby_space *p, u16 owner, u32 flags);
/*
 * Free chunks that must remain after a volume opens its first one.  It may come from the chunks
 * reserved for relocation: those of detached volumes never become free, and the volume would wait
 * for ever.  Only the last chunk is free where the pool reserves none for relocation, and where a
 * cut ended relocation of a volume that is now detached.  It carries lost blocks, and no round
 * needs it while no entitled volume has any chunk.  Exact with the pool lock held.
 */
u32 fby_first_leaves(const struct fby_space *p);
bool fby_starved(const struct fby_space *p); /* writers get no chunk, except entitled ones */
bool fby_short(const struct fby_space *p); /* so few chunks are free that relocation begins */
bool fby_destage_due(const struct fby_space *p); /* has destage something to look at? */
void fby_pressure_update(struct fby_space *p); /* is too much of the pool live? */
struct fby_span {
	u64 start, top; /* dirty pages */
};
struct fby_span fby_throttled_span(const struct fby_space *p);
#define FBY_TIGHT_MOST 64u
void fby_share_update(struct fby_space *p); /* computes space.share and .tight; call it before the levels */
/* A round of the volume reports whether its copies are cheap, so that dirty pages may come closer
 * to full, or dear, or neither.  The range moves by a step, and only while the number of dirty
 * pages is near its middle. */
enum fby_copies { FBY_COPIES_CHEAP, FBY_COPIES_FAIR, FBY_COPIES_DEAR };
void fby_fullness_judge(struct fby_space *p, u16 owner, enum fby_copies copies);
void fby_fullness_start(struct fby_space *p); /* after recovery: restores the range from the dirty pages */
/* Computes the volume's level, how full the pool is for it: from 0, below the start of
 * throttling, to FBY_LEVEL_FULL.  Any thread. */
#define FBY_LEVEL_FULL 1024u
void fby_level_update(struct fby_space *p, u16 owner);

/* --- chunk.c: slots, chunks, sequence numbers ------------------------------ */
/* Returns a slot with an open chunk of the volume: s, which is held and has none, after opening
 * one; or another, and s is released.  NULL: *decision, and nothing is held.  flags: of enum
 * fby_begin_flags, for the reserve. */
struct fby_slot *fby_slot_open(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, u32 *wake,
			       int *decision);
/* Slot held: opens a chunk; ahead: it is not the one that the slot has open.  FBY_NO_CHUNK: the
 * pool has none for this owner. */
u32 fby_slot_open_chunk(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, bool ahead, u32 *wake);
/* Drops unused sequence numbers.  Slot held. */
void fby_slot_retire(struct fby_slot *s);
/* Stores a seal twice: the pages below fill are complete. */
void fby_chunk_seal_store(struct fby_space *p, u32 c, bool closed);
/* Writes the seal durably. */
void fby_chunk_seal(struct fby_space *p, u32 c, bool closed);
/* Slot held: seals its open chunk of the volume, if any, unless everything is sealed that it has,
 * or (before) that it had at the previous such call. */
void fby_slot_seal(struct fby_space *p, struct fby_slot *s, u16 owner, bool before);
/* Slot held: if everything in its open chunk of the volume is at or below the watermark, the
 * chunk's age counts from now on.  A chunk that fills slowly counts as old as its remaining
 * pages.  If the volume has a newer chunk, the chunk is closed instead: max_age reads the first
 * chunk, and no later one may be older. */
void fby_slot_age(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake);
/* Slot held: closes its open chunk of the volume, if any.  In a grouped pool it begins to, or does
 * nothing if requests have to end first: fby_stream_quiet says when it is closed. */
void fby_slot_close(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake);
/* Linked pages of the chunk.  Exact when it is closed and has none; otherwise the present number
 * or that of a moment ago.  Pool lock held, or all is quiet. */
u32 fby_chunk_live(const struct fby_space *p, u32 c);
/* Pages unlinked by slot s, or by destage if it is NULL. */
u16 *fby_dead_row(const struct fby_space *p, const struct fby_slot *s);
/* In a grouped pool: pages whose successors have become durable; fby_streams.lock. */
static inline u16 *fby_stream_dead_row(const struct fby_space *p)
{
	return p->dead + (u64)(p->opt.nslots + 1) * p->store.sb.nchunks;
}
/* Rows of the counts of dead pages. */
static inline u32 fby_dead_rows(const struct fby_superblock *sb, u32 nslots)
{
	return nslots + 1 + (sb->unit != 0);
}
/* Frees a log's chunk, which is closed and pinned: nothing in it counts any more.  For callers
 * that count in destage's row. */
void fby_chunk_give_back(struct fby_space *p, u32 c);
/* Moves the hand over n chunks, and moves empty ones to the free list. */
void fby_chunk_sweep(struct fby_space *p, u32 n, u32 *wake);
u32 fby_sweep_most(const struct fby_space *p); /* as many as keep the lock held for microseconds */
void fby_chunk_list_append(struct fby_space *p, struct fby_owner *v, u32 c); /* pool lock or recovery */
void fby_chunk_to_free(struct fby_space *p, u32 c); /* likewise */
void fby_chunk_unpin(struct fby_space *p, u32 c, enum fby_pin pin, u32 *wake);
/* Walks a volume's chunks, oldest first, each pinned while it is looked at. */
u32 fby_chunk_walk(struct fby_space *p, u16 owner, u32 after, u32 *wake);
void fby_chunk_walk_end(struct fby_space *p, u32 at, u32 *wake);

/* --- owner.c ------------------------------------------------------------------- */
void fby_owner_write(struct fby_space *p, u16 owner); /* increments its record's counter and writes it; durable */
/* linked pages; never fewer than those that stay linked meanwhile */
u64 fby_owner_pages(const struct fby_space *p, u16 owner);
u64 fby_owner_dead(const struct fby_space *p, u16 owner); /* unlinked since open */
/* Linked pages that the origin has, too: a round releases them without writing them. */
u64 fby_owner_clean(const struct fby_space *p, u16 owner);
/* Another origin is attached, or the same one again: no page is clean any more.  The caller makes
 * sure that nobody writes the volume. */
void fby_owner_attach(struct fby_space *p, u16 owner);
/* Counts the volume's dirty pages into space.live. */
void fby_owner_count(struct fby_space *p, u16 owner);

/* Makes the next fby_destage_step visit the volume. */
static inline void fby_destage_look(struct fby_space *p, u16 owner)
{
	fby_fetch_or(&p->ready, 1ull << owner);
}

static inline u32 fby_page_number(const struct fby_space *p, u32 c, u32 place)
{
	return (c << p->store.chunk_shift) + place;
}

static inline struct fby_chunk *fby_chunk_of(const struct fby_space *p, u32 page)
{
	return &p->chunk[fby_page_chunk(&p->store, page)];
}

/*
 * Pages become clean when a round has written them along.  That holds for the origin attached
 * then: the chunk names it, and for another origin its pages are not clean.
 */
static inline bool fby_may_be_clean(const struct fby_space *p, u16 owner, u32 page)
{
	u32 clean_for = fby_load(&fby_chunk_of(p, page)->clean_for);

	return clean_for == 0 || clean_for == p->owner[owner].attachment;
}

/* In a grouped pool: no cut takes the page back.  Read after the chunk's epoch. */
static inline bool fby_page_durable(const struct fby_space *p, u32 page)
{
	return fby_page_place(&p->store, page) < fby_load_acquire(&fby_chunk_of(p, page)->durable);
}

/* In a grouped pool: damage of the page does not pass for a torn group. */
static inline bool fby_page_settled(const struct fby_space *p, u32 page)
{
	return fby_page_place(&p->store, page) < fby_load_acquire(&fby_chunk_of(p, page)->sealed);
}

/* Copies page line (c, i) and checks it; repair: corrects single-bit errors in the copy. */
static inline bool fby_page_line_read(struct fby_space *p, u32 c, u32 i, struct fby_page_line *out, bool *repaired)
{
	return fby_page_line_judge(&p->store, c, i, &p->chunk[c].epoch, out, repaired);
}

static inline bool fby_page_line(struct fby_space *p, u32 page, struct fby_page_line *out, bool *repaired)
{
	return fby_page_line_read(p, fby_page_chunk(&p->store, page), fby_page_place(&p->store, page), out, repaired);
}

#endif
