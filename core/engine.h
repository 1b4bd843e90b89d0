/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * engine.h - the engine's memory: pool, slots, chunks, index, volumes.
 *
 * Locks, by rank (take in this order, release in any):
 *   1 block	bit 31 of a bucket's head: guards the chain of that bucket and
 *		the linked page of each block in it.  Held by a writer from
 *		begin to publish; others only try.
 *   2 slot	fby_slot.busy: guards the slot and the chunks it has open.
 *   3 pool	fby_pool.lock: guards the free list, the volumes' chunk lists
 *		and the state of chunks.  A few instructions long.
 *
 * A page is named by its number: chunk * chunk_pages + place in the chunk.
 * Numbers of the pages of header arrays name no data page; 0 is "none".
 */
#ifndef FBY_ENGINE_H
#define FBY_ENGINE_H

#include "forebay.h"
#include "planted.h"

#define FBY_NO_PAGE 0u
#define FBY_NO_CHUNK (~0u)
#define FBY_NO_VOLUME 0xffffu
#define FBY_NO_SEQ (~0ull)
#define FBY_NO_BLOCK (~0ull)
/* No number on the media is as high as the first.  A pool that has one as high as the
 * second is not opened: counting on from below it, at 10^9 a second, takes 146 years. */
#define FBY_NUMBER_END (1ull << 63)
#define FBY_NUMBER_START (1ull << 62)
#define FBY_BUCKET_LOCK (1u << 31)
#define FBY_SLOTS_MAX 64u
/* Chunks of each attached volume that others leave it, if the pool is not too small: one
 * to write while the other is destaged. */
#define FBY_ENTITLED 2u
#define FBY_SEQ_BLOCK 64u     /* sequence numbers a slot takes at once */
#define FBY_DAMAGED_RING 64u
#define FBY_ALIGNED __attribute__((aligned(64)))
#define FBY_INLINE static inline __attribute__((always_inline))

/* Entry state: what the linked page holds. */
#define FBY_ES_VALID(s) ((u8)(s))
#define FBY_ES_LOST(s) ((u8)((s) >> 8))
#define FBY_ES_KIND(s) (((s) >> 16) & 15u)
#define FBY_ES_LINKED (1u << 20)
#define FBY_ES_VERIFIED (1u << 21) /* checksum seen good since open */
#define FBY_ES_DAMAGED (1u << 22)  /* checksum seen bad: its valid sectors are lost */
#define FBY_ES_CLEAN (1u << 26)	   /* on the flushed origin too: destage need not write it */
/* Of recovery alone, gone when it ends: what is to be written over the line. */
#define FBY_ES_HOLE (1u << 23)	 /* it is lost, and stands for its block as lost; key ~0: block unknown */
#define FBY_ES_VOID (1u << 24)	 /* nothing: a torn tail, or a lost line that is of no account */
#define FBY_ES_REPAIR (1u << 25) /* the line put right */
#define FBY_ES(kind, valid, lost) ((u32)(valid) | (u32)(lost) << 8 | (u32)(kind) << 16)

/* One per page, guarded by its bucket's lock while linked; read without it. */
struct fby_entry {
	u64 key; /* volume << 48 | block */
	u32 next; /* page number, chain of the bucket */
	u32 state;
};

enum fby_chunk_state { FBY_CS_FREE = 0, FBY_CS_OPEN, FBY_CS_CLOSED };
enum fby_pin { FBY_PIN_WALK = 1, FBY_PIN_MOVED = 2 };

struct fby_chunk {
	/* written by the slot that has it open, and under the pool lock */
	u64 seq_min; /* no entry of this epoch is lower; ascending along a volume's list */
	u64 seq_last; /* last one used */
	u64 last_block; /* of page fill-1 */
	u64 opened_ns; /* pool's coarse clock */
	u64 seal_counter; /* of the last seal */
	u32 fill; /* first page not written */
	u32 sealed; /* fill of the seal on the media */
	u32 tick_fill; /* fill at the last housekeeping */
	u32 next, prev; /* volume's list, or free list (next) */
	u16 volume;
	u8 state;  /* enum fby_chunk_state */
	u8 pinned; /* enum fby_pin: freeing waits */
	/* read by all who look at its pages, written when it is opened or closed */
	u64 epoch FBY_ALIGNED; /* of the media's open line */
	u64 seq_max; /* highest seq in it; ~0 while open */
	u32 linked; /* of recovery: linked pages */
	u16 dead_base; /* sum of its dead counts when it was opened */
	u8 recover; /* enum in recovery.h */
	u32 clean_for; /* the attachment whose origin has its clean pages; 0: it has none.  Of destage */
};

struct fby_slot_volume {
	u32 open; /* chunk this slot has open for the volume */
	u32 pad;
	u64 writes;
	u64 sectors;
	u64 pages; /* appended; counted before they are linked */
	u64 dead; /* pages unlinked */
};

/*
 * Pages die in counts that have one writer each: a slot's own, by chunk (ever,
 * modulo 2^16) and by volume, and destage's.  So unlinking one costs no locked
 * instruction and shares no line with other writers; what is left of a chunk is
 * its fill less the sum of its counts, and a hand that sweeps over the chunks
 * finds those that have become empty.
 */

/* One writer at a time.  Lives as long as the pool. */
struct fby_slot {
	u32 busy FBY_ALIGNED;
	/* guarded by busy, but floor is read by destage */
	u64 floor; /* no lower seq will be published by this slot; ~0: it holds none */
	u64 seq_next, seq_end;
	u64 commits, media_bytes, merges, ranges[6], flushes;
	u16 *dead; /* by chunk: pages unlinked */
	struct fby_slot_volume volume[FBY_VOLUMES_MAX];
	struct fby_page_line line[FBY_BATCH_PAGES] FBY_ALIGNED;
	u8 scratch[FBY_PAGE] FBY_ALIGNED;
};

/* A page of a destage round. */
struct fby_round_page {
	u64 k; /* seq while collecting, block after */
	u32 page;
	u32 carry; /* lost or damaged: goes forward as a fresh entry */
};

enum fby_io_status { FBY_IOS_FREE = 0, FBY_IOS_BUSY, FBY_IOS_DONE };

struct fby_io_slot {
	u32 status; /* enum fby_io_status */
	int error;
	u64 start_ns;
	bool alone; /* nothing else was in flight when it was issued */
	u8 *buf;
};

enum fby_phase {
	FBY_PH_IDLE = 0,
	FBY_PH_WRITE,
	FBY_PH_FLUSH, /* to be sent */
	FBY_PH_FLUSHING,
	FBY_PH_CARRY,
	FBY_PH_COMMIT,
	FBY_PH_RELEASE,
	FBY_PH_BACKOFF,
};

/* Owned by fby_destage_step. */
struct fby_destage {
	enum fby_phase phase;
	struct fby_round_page *page; /* host memory of attach */
	u32 cap, n, pos;
	u32 pulled; /* neighbours written along, from the end of page[] down */
	u64 issued; /* no block below this goes to the origin any more in this round */
	u32 run; /* next sector of page[pos] to look at */
	u32 nbuffers, buffer_sectors, outstanding;
	u64 cut;
	u32 lost; /* gate.lost when the round began */
	u64 retry_ns, backoff_ns;
	bool failed;
	bool gate; /* the round holds the gate already */
	bool drain;
	u64 idle_since_ns, idle_writes;
	struct fby_io_slot io[64];
};

/* How fast a volume takes in and how hard its origin is worked; see pace.c. */
struct fby_pace {
	/* shared by writers, while they are throttled */
	u64 next_ns FBY_ALIGNED; /* when the next page may be taken in */
	u64 delay_ns; /* waited in all */
	/* written by fby_destage_step and by who opens a chunk */
	u64 read_ns FBY_ALIGNED; /* coarse time when an origin read that somebody waited for ended last */
	u32 foreground; /* origin reads that somebody waits for */
	u32 rate; /* pages a second that are let go */
	/* owned by fby_destage_step */
	u32 depth; /* origin writes in flight */
	bool measured; /* rate is more than a guess */
	u32 base_ns, latency_ns; /* of one alone; of all */
	u64 sample_ns, dead;
};

/* Flushes of the origin, one at a time; see flush.c. */
#define FBY_GATE_HELD 1u
#define FBY_GATE_DESTAGE 2u /* destage waits, and is next */
struct fby_gate {
	u32 held; /* by whose flush is in flight */
	u32 lost; /* failures that may have lost what went past the cache, or destage's blocks */
	u32 told; /* so many of them need not be told any more to a flush of all that was written */
	u64 lost_upto; /* so many requests had ended at the last one; ~0: not known yet */
	u64 ended; /* requests past the cache, and parts of them, that ended so far, and one */
	u64 flushed; /* so many of them had ended when a flush began that succeeded */
	u64 upto; /* ended, when the flush in flight began; its holder's */
};

/* Blocks that are being written past the cache; see bypass.c. */
#define FBY_BYPASS_MAX 32u
struct fby_bypass_range {
	u64 first, end;
};

struct fby_volume {
	struct fby_volume_record rec; /* as on the media */
	bool damaged;
	bool attached;
	u32 attachment; /* attached so many times since the pool was opened */
	/* writers look at these two each time */
	u32 bypassing; /* those of range[] that are in use, by bit; set under the pool lock */
	u32 level; /* how full the pool is for it; fby_level_update */
	u64 blocks; /* 4 KiB units, rounded up */
	/* guarded by the pool lock */
	u32 first, last; /* its chunks, oldest first */
	u32 nchunks;
	u64 counted; /* its pages when they were counted last; the sum is pool.live */
	/* shared */
	u32 lost_blocks; /* linked pages with lost sectors, or damaged */
	u32 lost_only;	 /* linked pages that hold nothing else: never destaged */
	u32 holes, holes_unknown; /* found by recovery */
	u64 recovered; /* pages linked by recovery */
	u64 dead; /* unlinked by destage and removal, who take turns */
	/* owned by fby_destage_step */
	u64 moved; /* pages relocated */
	u64 moved_seq, moved_ns; /* the highest seq of these, and how old the oldest was */
	struct fby_destage destage;
	struct fby_pace pace;
	int last_error;
	u64 origin_errors, origin_writes, origin_sectors, origin_flushes, pages_destaged, rounds;
	/* bypass */
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

struct fby_pool {
	/* fixed after open */
	struct fby_media *media;
	struct fby_superblock sb;
	struct fby_options opt;
	struct fby_entry *entry;
	u32 *bucket;
	struct fby_chunk *chunk;
	struct fby_slot *slot;
	struct fby_volume *volume;
	u16 *dead; /* dead counts: a row of nchunks for each slot, and one for destage */
	u64 memory_bytes;
	u32 chunk_pages, chunk_shift, nbuckets;
	u32 line_seed;
	bool usable;

	u64 seq FBY_ALIGNED; /* next sequence number; slots take blocks of it */
	u64 opens FBY_ALIGNED; /* chunk openings: entries may have been recycled if it moved */
	u32 wait_mask FBY_ALIGNED; /* enum fby_wake: somebody sleeps for it */
	u32 wake_owed; /* by calls that cannot tell their host; fby_destage_step does */
	u64 ready FBY_ALIGNED; /* volumes, by bit, at which fby_destage_step is to look */

	/* guarded by lock; nfree, owed and live are read without it */
	struct fby_lock lock FBY_ALIGNED;
	u32 free_first, free_last, nfree;
	u32 owed; /* what attached volumes have less than FBY_ENTITLED chunks, in all */
	u32 owed_first; /* those that have none */
	u64 live; /* linked pages, as of the last count of each volume */
	u32 hand; /* next chunk that the sweep looks at */
	u64 chunks_opened;
	u64 damaged_pages;
	u32 ndamaged;
	struct fby_report_block damaged[FBY_DAMAGED_RING];

	/* owned by fby_destage_step */
	u64 now_ns FBY_ALIGNED; /* coarse clock */
	u64 tick_ns, sweep_ns;
	u32 sweep_left; /* chunks until the hand has come round */
	u32 look, look_left; /* relocation: next chunk to look at, and how many until all were */
	u32 attached; /* volumes, counted at the last tick */
	u32 share; /* pages of the pool that a volume may hold where others want it too; fby_share_update */
	u64 retry_ns; /* when a volume whose origin failed is to be tried again */
	u64 looked_opens; /* chunks_opened when all had been looked at in vain */
	u64 stepped_opens; /* chunks_opened at the last step */
	u32 moved_from; /* pinned until what was moved out of it is sealed */
	u64 moved_slots; /* those that it was moved through, by bit */
	u32 next_volume;
	bool pressure;

	/* recovery; counters are added to by all its threads */
	struct fby_recovery_report report;
	u64 max_epoch, max_seq, digest;

	u64 waits[4];
	struct fby_read_stats read_stats[FBY_READ_STRIPES];
};

/* A chunk's seal lines by number: bit 0 is the parity of the counter, bit 1 tells the copy. */
#define FBY_SEALS 4u

/* --- lines.c: build and validate lines; copies only ----------------------- */
enum fby_line_class { FBY_LINE_CURRENT = 0, FBY_LINE_OLD, FBY_LINE_BAD, FBY_LINE_CLASSES };

void fby_line_finish(u32 seed, void *line); /* fills the crc of any line */
bool fby_line_crc_ok(const struct fby_pool *p, const void *line);
/* Copy page line (c, i) and judge it; repair: put single-bit errors right in the copy. */
bool fby_page_line_read(struct fby_pool *p, u32 c, u32 i, struct fby_page_line *out, bool *repaired);
bool fby_open_line_read(struct fby_pool *p, u32 c, u32 which, struct fby_open_line *out);
bool fby_seal_line_read(struct fby_pool *p, u32 c, u32 which, struct fby_seal_line *out); /* which: of FBY_SEALS */

/* --- fullness.c ---------------------------------------------------------------- */
/* Free chunks that writers leave alone. */
u32 fby_reserve(const struct fby_pool *p);
/* Chunks that are kept for volumes which have fewer than they are entitled to. */
u32 fby_owed(const struct fby_pool *p);
/* Free chunks besides these. */
u32 fby_spare(const struct fby_pool *p);
u32 fby_owed_to(const struct fby_volume *v);
/* Pool lock held.  add: 1, or ~0 before the volume's chunks or whether it is attached
 * change. */
void fby_owed_count(struct fby_pool *p, const struct fby_volume *v, u32 add);
/* The volume is attached or detached: it is, or was, entitled to chunks. */
void fby_entitle(struct fby_pool *p, struct fby_volume *v, bool attached);
/* Pool lock held: free chunks that the volume has to leave, the reserve and what
 * others are entitled to.  flags: of enum fby_begin_flags. */
u32 fby_kept_free(const struct fby_pool *p, u16 volume, u32 flags);
bool fby_starved(const struct fby_pool *p); /* writers get no chunk, but for what they are entitled to */
bool fby_short(const struct fby_pool *p); /* so few chunks are free that relocation begins */
bool fby_destage_due(const struct fby_pool *p); /* has destage something to look at? */
void fby_pressure_update(struct fby_pool *p); /* is too much of the pool live? */
struct fby_span {
	u64 start, top; /* live pages */
};
struct fby_span fby_throttled_span(const struct fby_pool *p);
void fby_share_update(struct fby_pool *p); /* works out pool.share; before the levels */
/* Works out the volume's level, how full the pool is for it: 0, below where throttling
 * begins, to FBY_LEVEL_FULL.  Any thread. */
#define FBY_LEVEL_FULL 1024u
void fby_level_update(struct fby_pool *p, u16 volume);

/* --- chunk.c: slots, chunks, sequence numbers ------------------------------ */
/* A slot with an open chunk of the volume: s, which is held and has none, one being
 * opened, or another, and s is released.  NULL: *decision, and nothing is held.
 * flags: of enum fby_begin_flags, for what is kept in reserve. */
struct fby_slot *fby_slot_open(struct fby_pool *p, struct fby_slot *s, u16 volume, u32 flags, u32 *wake,
			       int *decision);
/* Counts the volume's pages into pool.live. */
void fby_volume_count(struct fby_pool *p, u16 volume);
/* Drops unused sequence numbers.  Slot held. */
void fby_slot_retire(struct fby_slot *s);
/* Says twice, with one fence, that the pages below fill are complete. */
void fby_chunk_seal(struct fby_pool *p, u32 c, bool closed);
/* Slot held: closes its open chunk of the volume, if any. */
void fby_slot_close(struct fby_pool *p, struct fby_slot *s, u16 volume, u32 *wake);
/* Linked pages of the chunk.  Exact when it is closed and they are none; else what
 * it is or was a moment ago.  Pool lock held, or all is quiet. */
u32 fby_chunk_live(const struct fby_pool *p, u32 c);
/* Pages unlinked by slot s, or by destage if it is NULL. */
u16 *fby_dead_row(const struct fby_pool *p, const struct fby_slot *s);
/* Moves the hand over n chunks, and those that have become empty to the free list. */
void fby_chunk_sweep(struct fby_pool *p, u32 n, u32 *wake);
u32 fby_sweep_most(const struct fby_pool *p); /* as many at once as hold the lock for microseconds */
void fby_chunk_list_append(struct fby_pool *p, struct fby_volume *v, u32 c); /* pool lock or recovery */
void fby_chunk_to_free(struct fby_pool *p, u32 c); /* likewise */
void fby_chunk_unpin(struct fby_pool *p, u32 c, enum fby_pin pin, u32 *wake);
/* Walks a volume's chunks, oldest first, each pinned while it is looked at. */
u32 fby_chunk_walk(struct fby_pool *p, u16 volume, u32 after, u32 *wake);
void fby_chunk_walk_end(struct fby_pool *p, u32 at, u32 *wake);

/* --- page.c: reading a page of the pool, verified --------------------------- */
enum fby_page_result { FBY_PAGE_OK = 0, FBY_PAGE_DAMAGED };
/* Copies the sectors in want (subset of valid) to dst, sector s at dst + (s - base) * 512; verifies all. */
enum fby_page_result fby_page_read(struct fby_pool *p, u32 page, u64 key, u32 state, u8 want, u32 base, u8 *dst,
				   bool verify);
/* Seq that its line says, one wrong bit put right; unknown if it cannot be read. */
u64 fby_page_seq(struct fby_pool *p, u32 page, u64 unknown);
/* All that the line says is valid could be read, and has its checksum if it carries one. */
bool fby_page_data_ok(struct fby_pool *p, u32 page, const struct fby_page_line *l);
/* Notes that the page is damaged, if it still is the block's; needs the block, tries for it. */
void fby_page_mark(struct fby_pool *p, u32 page, u64 key, u32 flag);

/* --- write.c ----------------------------------------------------------------- */
enum fby_begin_flags {
	FBY_BEGIN_CACHED = 1u << 0, /* stop at a block that is not cached; none: FBY_ORIGIN */
	FBY_BEGIN_RESERVE = 1u << 1, /* destage: may take the reserve */
	FBY_BEGIN_RELOCATE = 1u << 2, /* relocation: all of it but one */
};
int fby_begin(struct fby_pool *p, struct fby_write *w, u16 volume, enum fby_kind kind, u64 sector, u32 nsectors,
	      u32 flags);
/* Appends an entry of what is lost of the page's block, in its place, if it still is
 * the block's.  DONE or WAIT. */
int fby_carry(struct fby_pool *p, u16 volume, u64 block, u32 page, bool damaged, u32 *wake);

/* Appends what page holds once more, if it is still the block's, sound and whole: the
 * same bytes under a new seq.  DONE, *slot: where, or ~0; or WAIT. */
int fby_move(struct fby_pool *p, u16 volume, u64 block, u32 page, u32 *slot, u32 *wake);

/* --- destage.c ---- */
/* The next step is to look at the volume. */
static inline void fby_destage_look(struct fby_pool *p, u16 volume)
{
	fby_fetch_or(&p->ready, 1ull << volume);
}

/* One step of the volume's round: as fby_destage_step, and *io then goes to issue. */
int fby_destage_volume(struct fby_pool *p, u16 volume, struct fby_io *io, u32 *wake);
void fby_destage_issue(struct fby_pool *p, u16 volume, struct fby_io *io);
/* Lets go of what a round at its end has yet to release; no other I/O on the volume. */
void fby_destage_settle(struct fby_pool *p, u16 volume);

/* Pages that a round lists at most; the rest is for those that it writes along. */
static inline u32 fby_round_most(const struct fby_destage *d)
{
	return d->cap - d->cap / 4;
}

/* --- demand.c ---- */
/* Has the volume an entry that max_age wants on the origin?  Pool lock held. */
bool fby_volume_aged(const struct fby_pool *p, const struct fby_volume *v);
bool fby_destage_wanted(struct fby_pool *p, u16 volume); /* now? */

/* --- relocate.c ---- */
/* One chunk's worth of relocation, if there is cause; true: call again soon. */
bool fby_relocate_step(struct fby_pool *p, u32 *wake);
/* No slot has a chunk of the volume open. */
void fby_relocate_settle(struct fby_pool *p, u16 volume, u32 *wake);

/* --- pace.c ------------------------------------------------------------------- */
void fby_pace_start(struct fby_pace *pace, u32 nbuffers);
void fby_pace_tick(struct fby_pool *p, u16 volume);
u32 fby_pace_intake(const struct fby_pool *p, u16 volume); /* pages a second that may be written; 0: no limit */
u32 fby_pace_round(const struct fby_pool *p, u16 volume, u32 cap); /* pages of the next round */
u32 fby_pace_depth(struct fby_pool *p, u16 volume);
void fby_pace_latency(struct fby_pace *pace, u32 ns, bool alone);
void fby_pace_adapt(struct fby_pace *pace, u32 nbuffers);

/* --- bypass.c ------------------------------------------------------------------- */
/* Is the block, whose bucket the caller holds, being written past the cache? */
bool fby_bypass_meets(const struct fby_volume *v, u64 block);
/* fby_bypass_begin for any kind, of whole blocks unless it is FBY_KIND_DATA. */
int fby_past_begin(struct fby_pool *p, struct fby_bypass *b, u16 volume, u8 kind, u64 sector, u64 nsectors, u32 least);

/* --- flush.c -------------------------------------------------------------------- */
/* Takes the gate for destage.  False: a flush is in flight; whose end wakes destage,
 * and meanwhile no other gets in. */
bool fby_gate_destage(struct fby_volume *v);
void fby_gate_destage_sends(struct fby_volume *v);
/* Its flush is over; any context. */
void fby_gate_destage_ends(struct fby_pool *p, struct fby_volume *v, int error);
/* It failed, and what went past the cache may be lost with it. */
void fby_gate_destage_failed(struct fby_volume *v);
/* The gate is not needed after all. */
void fby_gate_destage_leaves(struct fby_volume *v, u32 *wake);

/* --- pool.c, volume.c --------------------------------------------------------- */
int fby_sb_write(struct fby_pool *p, bool clean);
void fby_record_write(struct fby_pool *p, u16 volume);
bool fby_record_read(struct fby_pool *p, u16 volume, u32 copy, struct fby_volume_record *out);
u64 fby_volume_pages(const struct fby_pool *p, u16 volume); /* linked; never fewer than stay linked meanwhile */
u64 fby_volume_dead(const struct fby_pool *p, u16 volume); /* unlinked since open */
u64 fby_digest(struct fby_pool *p, u64 *entries);

/* --- small helpers -------------------------------------------------------------- */
/* to: a power of two */
static inline u64 fby_round_up(u64 x, u64 to)
{
	return (x + to - 1) & ~(to - 1);
}

static inline u64 fby_key(u16 volume, u64 block)
{
	return (u64)volume << FBY_BLOCK_BITS | block;
}

static inline u64 fby_key_block(u64 key)
{
	return key & ((1ull << FBY_BLOCK_BITS) - 1);
}

static inline u32 fby_page_chunk(const struct fby_pool *p, u32 page)
{
	return page >> p->chunk_shift;
}

static inline u32 fby_page_place(const struct fby_pool *p, u32 page)
{
	return page & (p->chunk_pages - 1);
}

/* Offsets on the media. */
static inline u64 fby_chunk_at(const struct fby_pool *p, u32 c)
{
	return p->sb.data_offset + (u64)c * p->sb.chunk_size;
}

static inline u64 fby_line_at(const struct fby_pool *p, u32 c, u32 i)
{
	return fby_chunk_at(p, c) + (u64)i * FBY_LINE;
}

static inline u64 fby_seal_at(const struct fby_pool *p, u32 c, u32 which)
{
	return fby_line_at(p, c, FBY_LINE_SEAL + (which & 1) + (which >> 1) * FBY_LINE_SEAL_COPY);
}

static inline u64 fby_page_at(const struct fby_pool *p, u32 page)
{
	return p->sb.data_offset + ((u64)page << 12);
}

static inline u8 fby_mask(u32 first, u32 n)
{
	return (u8)(((1u << n) - 1) << first);
}

/* Sectors in mask.  Not the compiler's builtin: that is a call into its library
 * where the CPU's instruction may not be assumed, and the kernel has no such. */
static inline u32 fby_mask_count(u8 mask)
{
	u32 m = mask;

	m -= m >> 1 & 0x55;
	m = (m & 0x33) + (m >> 2 & 0x33);
	return (m + (m >> 4)) & 15;
}

/* The first run of ones in mask at or after bit from: length, 0 if none. */
static inline u32 fby_run(u8 mask, u32 from, u32 *start)
{
	u32 m = from < 8 ? (u32)mask >> from << from : 0;

	if (!m)
		return 0;
	*start = (u32)__builtin_ctz(m);
	return (u32)__builtin_ctz(~(m >> *start));
}

/* Does an entry of this state hold nothing but the news that its block is lost? */
static inline bool fby_lost_only(u32 state)
{
	return (state & FBY_ES_LINKED) && FBY_ES_VALID(state) == 0 && FBY_ES_LOST(state) != 0;
}

static inline u64 fby_mix(u64 x)
{
	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 32;
	return x;
}

/* May the user write, discard or zero [sector, +nsectors), at least so many? */
FBY_INLINE int fby_request_check(const struct fby_pool *p, u16 volume, u64 sector, u64 nsectors, u64 least)
{
	const struct fby_volume *v;

	if (fby_unlikely(volume >= p->sb.nvolumes))
		return -FBY_E_NO_VOLUME;
	v = &p->volume[volume];
	if (fby_unlikely(!v->attached))
		return -FBY_E_VOLUME_DETACHED;
	if (fby_unlikely(p->opt.read_only))
		return -FBY_E_READ_ONLY;
	if (fby_unlikely(nsectors < least || sector > v->rec.origin_sectors ||
			 nsectors > v->rec.origin_sectors - sector))
		return -FBY_E_RANGE;
	if (fby_unlikely(v->rec.block_size == FBY_PAGE && ((sector | nsectors) % FBY_PAGE_SECTORS) != 0))
		return -FBY_E_ALIGNMENT;
	return FBY_DONE;
}

static inline void fby_count(u64 *counter, u64 n)
{
	fby_store(counter, fby_load(counter) + n);
}

#endif
