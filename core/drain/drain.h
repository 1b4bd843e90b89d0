/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * drain.h - what goes to the origin, when, and how fast; and the pool's housekeeping.
 */
#ifndef FBY_DRAIN_H
#define FBY_DRAIN_H

#include "cache/cache.h"

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

/* Of a volume; owned by fby_destage_step but for what pace shares. */
struct fby_drained {
	u32 attachment; /* attached so many times since the pool was opened */
	u64 moved; /* pages relocated */
	u64 moved_seq, moved_ns; /* the highest seq of these, and how old the oldest was */
	struct fby_destage destage;
	struct fby_pace pace;
	int last_error;
	u64 origin_errors, origin_writes, origin_sectors, origin_flushes, pages_destaged, rounds;
};

/* Owned by fby_destage_step. */
struct fby_drain {
	struct fby_space *space;
	struct fby_cache *cache;
	struct fby_statics *statics; /* or NULL */
	struct fby_drained *volume;
	u64 tick_ns, sweep_ns;
	u32 sweep_left; /* chunks until the hand has come round */
	u32 look, look_left; /* relocation: next chunk to look at, and how many until all were */
	u64 retry_ns; /* when a volume whose origin failed is to be tried again */
	u32 moved_from; /* pinned until what was moved out of it is sealed */
	u64 moved_slots; /* those that it was moved through, by bit */
	u32 next_volume, next_placed;
};

/* One step of the volume's round: as fby_destage_step, and *io then goes to issue. */
int fby_destage_volume(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake);
void fby_destage_issue(struct fby_drain *p, u16 volume, struct fby_io *io);
/* Lets go of what a round at its end has yet to release; no other I/O on the volume. */
void fby_destage_settle(struct fby_drain *p, u16 volume);

/* Pages that a round lists at most; the rest is for those that it writes along. */
static inline u32 fby_round_most(const struct fby_destage *d)
{
	return d->cap - d->cap / 4;
}

/* --- placed_round.c: static volumes ---- */
/* One step of those whose turn it is: as fby_destage_step. */
int fby_placed_step(struct fby_drain *p, struct fby_io *io, u64 *next_ns, u32 *wake);
void fby_placed_tick(struct fby_drain *p); /* from time to time: what was written so far is settled */
bool fby_placed_clean(const struct fby_drain *p, u16 volume);

/* --- demand.c ---- */
/* Has the volume an entry that max_age wants on the origin?  Pool lock held. */
bool fby_volume_aged(const struct fby_drain *p, u16 volume);
bool fby_destage_wanted(struct fby_drain *p, u16 volume); /* now? */

/* --- relocate.c ---- */
/* One chunk's worth of relocation, if there is cause; true: call again soon. */
bool fby_relocate_step(struct fby_drain *p, u32 *wake);
/* No slot has a chunk of the volume open. */
void fby_relocate_settle(struct fby_drain *p, u16 volume, u32 *wake);

/* --- pace.c ------------------------------------------------------------------- */
void fby_pace_start(struct fby_pace *pace, u32 nbuffers);
void fby_pace_tick(struct fby_drain *p, u16 volume);
u32 fby_pace_intake(const struct fby_drain *p, u16 volume); /* pages a second that may be written; 0: no limit */
u32 fby_pace_round(const struct fby_drain *p, u16 volume, u32 cap); /* pages of the next round */
u32 fby_pace_depth(struct fby_drain *p, u16 volume);
void fby_pace_latency(struct fby_pace *pace, u32 ns, bool alone);
void fby_pace_adapt(struct fby_pace *pace, u32 nbuffers);

/* --- what hosts call; forebay.h says what each does ------------------------------- */
int fby_drain_step(struct fby_drain *p, u64 now_ns, struct fby_io *io, u64 *next_ns, u32 *wake);
void fby_drain_complete(struct fby_drain *p, u32 id, int error);
int fby_drain_start(struct fby_drain *p, u16 index, bool on);
bool fby_drain_clean(struct fby_drain *p, u16 index);
u64 fby_pace_delay(struct fby_drain *p, u16 volume, u32 nsectors, u64 now_ns);
void fby_pace_foreground(struct fby_drain *p, u16 volume, bool begin);

#endif
