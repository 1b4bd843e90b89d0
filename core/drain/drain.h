/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * drain.h - which pages go to the origin, when, and how fast; and the pool's housekeeping.
 */
#ifndef FBY_DRAIN_H
#define FBY_DRAIN_H

#include "cache/cache.h"

/* A page of a destage round. */
struct fby_round_page {
	u64 k; /* seq while collecting, block after */
	u32 page;
	union {
		struct { /* of a listed page */
			u8 carry; /* the page is carried: lost or damaged, as a fresh entry; refused, as it is */
			bool keep; /* not written: the page is carried as it is */
			/* length of the run of dirty blocks that the page is in; 0: it is written
			 * in any case */
			u8 run;
			bool leads; /* the page is the first of its run in the list */
		};
		u32 epoch; /* epoch of the chunk of a page that is written along */
		u32 stamp; /* stamp of a static volume's page (static_round.c) */
	};
};

#define FBY_RUN_MOST 64u /* blocks; longer runs count as this long */

/* Which pages a round keeps and which it writes; see plan.c. */
struct fby_plan {
	bool keeps; /* the round may keep pages */
	bool no_room; /* the previous round had no room for the pages that it should keep */
	bool few_kept; /* most pages on the previous round's list had to be written in any case */
	u32 gained; /* pages found dead or clean in the range that the round passes */
	u64 past; /* blocks below this belong to runs that are already measured */
	u32 runs[FBY_RUN_MOST + 1]; /* of the list, by length; 0: single pages that are written in any case */
	u32 listed[FBY_RUN_MOST + 1]; /* pages of the list in these runs */
	/* shares: 64ths of requests that the listed pages would cause, if all were written;
	 * shared: the pages that this counts */
	u32 shares, shared;
	/* from round to round */
	u32 scale; /* pages listed for each 16 that the round before the previous one gained */
	u32 request_ns; /* time of the origin for one request; 0: unknown */
	u32 page_ns; /* time for each page of the list, whatever its fate */
	u32 written_ns; /* time of all requests of a round; 0: unknown */
	u32 flush_ns; /* time of the round's flush */
	u64 all_ns; /* time that all dirty pages would take, by their runs */
	u32 requests; /* requests of this round */
	u64 refused_ns; /* time in which only refused requests completed */
	u64 began_ns;
	u32 copy_ns; /* recent time to copy one kept page */
	bool copied; /* the previous step kept pages */
	u32 moved; /* pages of the volume copied before that step; modulo 2^32 */
	u64 copied_ns; /* when that step began */
	u32 appended, overwritten; /* counts when the previous round was planned; modulo 2^32 */
	u32 share; /* of 256 appended pages, how many overwrite a dirty one */
	u64 asked_ns; /* planned time of this round's requests; 0: unknown */
	u32 judged; /* pages of the volume copied when the previous round ended; modulo 2^32 */
};

enum fby_io_status { FBY_IOS_FREE = 0, FBY_IOS_BUSY, FBY_IOS_DONE };

struct fby_io_slot {
	u32 status; /* enum fby_io_status */
	int error;
	u64 start_ns;
	bool alone; /* nothing else was in flight when the request was issued */
	bool again; /* the request is of a page that the origin refused before */
	u64 sector, nsectors;
	u32 pages;  /* pages of the ring, including those skipped at its end */
	u8 *buf;
};

enum fby_phase {
	FBY_PH_IDLE = 0,
	FBY_PH_PLAN,
	FBY_PH_WRITE,
	FBY_PH_FLUSH, /* to be sent */
	FBY_PH_FLUSHING,
	FBY_PH_CARRY,
	FBY_PH_COMMIT,
	FBY_PH_RELEASE,
	FBY_PH_BACKOFF,
};

/* Requests that were refused in a row. */
struct fby_refused_streak {
	u32 failed;
	u32 leave; /* pages are still to be left out */
	u32 most; /* bound of pages to leave out */
};

#define FBY_REFUSED_AREAS 16u

/* Requests and pages of a volume that the origin has refused; see refused.c. */
struct fby_refused {
	/* of a round */
	bool trying; /* this round retries refused pages */
	bool doubt; /* nothing was taken since a request was refused: only one request is in flight */
	bool again_taken, again_failed; /* outcome of requests for pages that were refused before */
	bool reserve; /* copies may take the reserve: at least as many pages are released */
	u32 failed; /* refused requests */
	struct fby_refused_streak streak[2]; /* [0]: of first tries; [1]: of retries */
	u32 held; /* pages of a static volume that are not tried */
	/* from round to round */
	u32 random;
	bool narrow; /* the previous round had no room for the copies */
	bool cut_short; /* a round was cut short since one has ended: fby_refused_heals */
	u32 asked; /* pages that the round should list */
	bool longer; /* asked is more than twice what it would be without behind */
	u32 behind; /* additional pages to list: as many as were refused, if nothing else was found */
	bool waits; /* wait until retry_ns, or, unless that is ~0, until the volume is written to */
	u64 waits_writes;
	u64 retry_ns, pause_ns; /* when to retry, and after how long */
	u64 last; /* highest seq of a refused page; 0: none was refused, or all are on the origin */
	/* of a static volume, instead of a bit for each page: blocks of refused requests */
	struct fby_refused_area {
		u64 first, end;
	} area[FBY_REFUSED_AREAS];
	u32 areas; /* noted so far */
};

/* How far rounds have come since the device of a grouped pool failed; see rescue.c. */
struct fby_rescue {
	bool round; /* the present round is for that */
	/* shared */
	u64 upto; /* pages up to this number are on the origin, and flushed there, */
	u64 refused; /* but for those that it refused; the lowest; 0: none */
	bool all; /* everything was, when so many pages had been appended */
	u64 appended;
};

/* Owned by fby_destage_step. */
struct fby_destage {
	enum fby_phase phase;
	struct fby_round_page *page; /* host memory of attach */
	u32 cap, n, pos;
	u32 pulled; /* neighbours written along, listed from the end of page[] down */
	u32 ahead; /* kept pages of page[] before this are carried already, while the origin is busy */
	u64 issued; /* no request of this round will go to a block below this */
	u32 run; /* next sector of page[pos] to look at */
	u32 outstanding;
	u64 heard_ns; /* time when a request last ended, or the first was issued */
	u64 cut;
	u32 lost; /* gate.lost when the round began */
	u64 retry_ns, backoff_ns;
	bool failed;
	bool lost_stuck; /* rounds fail: no chunk is free for the lost blocks that the watermark would pass */
	bool gate; /* the round already holds the gate */
	bool drain;
	bool forced; /* the whole list is to be written: a drain, or it is old, or nobody writes */
	u64 idle_since_ns, idle_writes;
	struct fby_plan plan;
	struct fby_refused refused;
	u64 ticket; /* in a grouped pool: of what must be durable before the watermark is */
	u64 copied_slots; /* slots with unsealed copies of kept pages, by bit */
	struct fby_rescue rescue;
	/* flight.c: a ring; taken requests begin at io[oldest] */
	u32 nrequests, oldest, taken;
	u8 *ring;
	u32 ring_pages, ring_head, ring_used; /* pages */
	u32 buffer_sectors; /* the longest request */
	struct fby_io_slot io[64];
};

/* How fast a volume takes in data and how hard destage drives its origin; see pace.c. */
struct fby_pace {
	/* shared by writers, while they are throttled */
	u64 next_ns FBY_ALIGNED; /* when the next page may be taken in */
	u64 delay_ns; /* waited in all */
	/* written by fby_destage_step and by who opens a chunk */
	u64 read_ns FBY_ALIGNED; /* coarse time when a foreground read of the origin last ended */
	u32 foreground; /* origin reads that somebody waits for */
	u32 rate; /* pages a second that destage frees */
	/* owned by fby_destage_step */
	u32 depth; /* origin writes in flight */
	bool measured; /* rate is measured, not a guess */
	u32 base_ns, latency_ns; /* base_ns: of a request alone; latency_ns: of all */
	u64 sample_ns, gone;
};

/* A volume's destage; owned by fby_destage_step except what pace shares. */
struct fby_drained {
	u64 moved; /* pages copied within the pool */
	/* Age of the oldest moved page: of those moved since seq moved_since, and of those moved
	 * before it.  These are void when the watermark has passed moved_last, and moved_since. */
	u64 moved_ns, moved_before_ns, moved_since, moved_last;
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
	u64 look_again_ns; /* when to look again, after chunks of a running round were left alone; 0: none were */
	u64 retry_ns; /* when to retry a volume whose origin failed */
	u32 moved_from; /* pinned until the copies of its pages are sealed */
	u64 moved_slots; /* slots that hold these copies, by bit */
	u32 next_volume, next_static;
	bool static_turn; /* a static volume gets the next request, if it has one */
};

/* Number of buffers of the longest request for so many requests together. */
static inline u32 fby_flight_buffers(u32 nrequests)
{
	return nrequests < 16 ? nrequests : 16;
}
void fby_flight_start(struct fby_destage *d, u8 *ring, u32 nrequests, u32 buffer_bytes);
/* True: io[*id].buf has room for the longest request.  Takes nothing. */
bool fby_flight_room(struct fby_destage *d, u32 *id);
/* Puts the request in flight, with the buffer space of so many sectors; 0: none. */
void fby_flight_take(struct fby_destage *d, u32 id, u64 nsectors);
/* Takes completed requests out of flight and reports the pages that an error concerns. */
void fby_flight_reap(struct fby_drain *p, u16 volume);

/* Runs one step of the volume's round, like fby_destage_step; the caller passes *io to issue. */
int fby_destage_volume(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake);
void fby_destage_issue(struct fby_drain *p, u16 volume, struct fby_io *io);
/* Flushes a round's writes, also for static volumes: DONE, another flush is under way, and its
 * end wakes destage; AGAIN, the origin reported a loss, perhaps of this round's writes; ORIGIN,
 * *io. */
int fby_round_flush(struct fby_drain *p, u16 volume, struct fby_io *io);
/* Releases the pages of a round that has reached its end; no other I/O on the volume. */
void fby_destage_settle(struct fby_drain *p, u16 volume);

/* Most pages that a round lists; the rest of page[] is for pages written along. */
static inline u32 fby_round_most(const struct fby_destage *d)
{
	return d->cap - d->cap / 4;
}

/* --- static_round.c: static volumes ---- */
/* One step of the static volume whose turn it is, like fby_destage_step. */
int fby_static_step(struct fby_drain *p, struct fby_io *io, u64 *next_ns, u32 *wake);
/* A request of the round was refused. */
void fby_static_refused(struct fby_drain *p, u16 volume, const struct fby_io_slot *io);
void fby_static_tick(struct fby_drain *p); /* periodically: everything written so far becomes settled */
bool fby_static_clean(const struct fby_drain *p, u16 volume);

/* --- demand.c ---- */
/* Has the volume an entry that exceeds max_age?  Pool lock held. */
bool fby_volume_aged(const struct fby_drain *p, u16 volume);
bool fby_destage_wanted(struct fby_drain *p, u16 volume); /* now? */

/* --- rescue.c ---- */
/* Has the device of the pool failed? */
static inline bool fby_rescues(const struct fby_drain *p)
{
	return media_failed(p->space->store.media);
}
/* It has: is everything on the origin that it takes? */
bool fby_rescued(const struct fby_drain *p, u16 volume);
/* ... all pages up to this number. */
u64 fby_rescue_home(const struct fby_drain *p, u16 volume);
/* Lists the pages of a round.  None, and d->failed: those that were refused are tried after a pause. */
void fby_rescue_collect(struct fby_drain *p, u16 volume, u32 *wake);
void fby_rescue_flushed(struct fby_drain *p, u16 volume); /* the round's flush has succeeded */

/* --- plan.c ---- */
void fby_plan_start(struct fby_plan *plan);
/* How many pages the next round should list. */
u32 fby_plan_pages(struct fby_drain *p, u16 volume);
/* Measures runs of the list, and chooses when all are measured: true, the round can begin. */
bool fby_plan_step(struct fby_drain *p, u16 volume);
/* A step begins: measures the previous step, if it kept pages. */
void fby_plan_took(struct fby_drain *p, u16 volume);
/* Called when all of the round's requests have ended. */
void fby_plan_written(struct fby_drain *p, u16 volume);
/* Called when the flush, which was sent then, has ended. */
void fby_plan_flushed(struct fby_drain *p, u16 volume, u64 began_ns);

/* --- relocate.c ---- */
/* Seals the volume's entries in these slots, by bit, and removes the slots from the set.  True:
 * all. */
bool fby_seal_copies(struct fby_drain *p, u16 volume, u64 *slots);
/* Notes that a page of this age was moved. */
void fby_moved_note(struct fby_drain *p, u16 volume, u64 since_ns);
/* True: all moved pages of the volume are sealed. */
bool fby_relocate_sealed(struct fby_drain *p, u16 volume);
/* Relocates up to one chunk's worth, if there is cause; true: call again soon. */
bool fby_relocate_step(struct fby_drain *p, u32 *wake);
/* Makes sure that no slot has a chunk of the volume open. */
void fby_relocate_settle(struct fby_drain *p, u16 volume, u32 *wake);

/* --- pace.c ------------------------------------------------------------------- */
void fby_pace_start(struct fby_pace *pace, u32 nrequests);
void fby_pace_tick(struct fby_drain *p, u16 volume);
u32 fby_pace_intake(const struct fby_drain *p, u16 volume); /* pages a second that may be written; 0: no limit */
u32 fby_pace_round(const struct fby_drain *p, u16 volume, u32 cap); /* pages of the next round */
u32 fby_pace_depth(struct fby_drain *p, u16 volume);
void fby_pace_latency(struct fby_pace *pace, u32 ns, bool alone);
void fby_pace_adapt(struct fby_pace *pace, u32 nrequests);

/* --- what hosts call; forebay.h says what each does ------------------------------- */
int fby_drain_step(struct fby_drain *p, u64 now_ns, struct fby_io *io, u64 *next_ns, u32 *wake);
void fby_drain_complete(struct fby_drain *p, u32 id, int error);
int fby_drain_start(struct fby_drain *p, u16 index, bool on);
bool fby_drain_clean(struct fby_drain *p, u16 index);
u64 fby_pace_delay(struct fby_drain *p, u16 volume, u32 nsectors, u64 now_ns);
void fby_pace_foreground(struct fby_drain *p, u16 volume, bool begin);

#endif
