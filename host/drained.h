/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * drained.h - when a drain has ended, and whether an origin is complete then.  Every host
 * asks here: no other code compares the numbers of a volume to find that out.
 *
 *	fby_drained_begin()	notes what is to be on the origin
 *	fby_drained_look()	again and again, with destage kicked between: is it there?
 *	the host flushes what is owed, and asks the origin for a block
 *	fby_complete_of(), fby_complete_judge()	and only COMPLETE is a success
 */
#ifndef FBY_DRAINED_H
#define FBY_DRAINED_H

#include "api/forebay.h"

/* A drain that somebody waits for; the host's memory. */
struct fby_drain_wait {
	struct fby_pool *pool;
	u16 volume;
	u64 upto;   /* of fby_volume_drain_upto */
	u64 errors; /* of the origin, when it began */
	u32 again;  /* how often it began anew for pages that were passed over */
	bool anew;  /* fby_drained_lost found that it has to begin anew */
	struct fby_lost_at lost; /* of fby_drained_lost */
	int origin; /* with -FBY_E_ORIGIN_IO: the origin's errno number */
};

/* again is 0 at first.  *info is the host's memory.  Excludes fby_destage_step, as does every
 * call that begins or ends a drain. */
int fby_drained_begin(struct fby_drain_wait *d, struct fby_pool *p, u16 volume, struct fby_volume_info *info);
/*
 * DONE: everything acknowledged before is on the flushed origin, was overwritten, or is lost.
 * AGAIN: destage continues; call again later.  -FBY_E_ORIGIN_IO: the origin has failed since the
 * drain began.  *info: the present state of the volume.  Excludes fby_destage_step.
 */
int fby_drained_look(struct fby_drain_wait *d, struct fby_volume_info *info);
/*
 * Called after DONE, if info says that blocks are lost: verifies that they are.  Those of a
 * static volume may have been overwritten since, or be readable again.  blocks: memory for max
 * blocks, at least 64.  Each call reads a part of the volume: AGAIN until everything is read.  It
 * may run concurrently with any other call, and the host can release its locks between two calls.
 * DONE: info->lost_blocks is right; with d->anew some blocks are readable and not on the origin,
 * and the drain has to begin anew, with fby_drained_begin.
 */
int fby_drained_lost(struct fby_drain_wait *d, struct fby_volume_info *info, struct fby_report_block *blocks, u32 max);

/* X(name, message about the origin) - the first that applies counts, from the top. */
#define FBY_COMPLETENESS(X) \
	X(RECORD_DAMAGED, "both copies of the volume's record are damaged") \
	X(ORIGIN_CHANGED, "the origin does not answer, or is not what it was when it was attached") \
	X(LOST_ENTRIES, "entries are lost, and nobody accepted that yet") \
	X(LOST_BLOCKS, "the newest data of some blocks is lost: the origin has older data there, or none") \
	X(NOT_ATTACHED, "the volume is not attached, and the pool holds what its origin lacks") \
	X(ORIGIN_FAILS, "the origin does not take what the pool holds") \
	X(CACHED, "the pool holds what the origin lacks") \
	X(UNKNOWN, "it is not known yet how much the pool holds that the origin lacks") \
	X(WHOLE, "the origin alone is complete")

enum fby_completeness {
#define FBY_COMPLETENESS_ENUM(name, what) FBY_IS_##name,
	FBY_COMPLETENESS(FBY_COMPLETENESS_ENUM)
#undef FBY_COMPLETENESS_ENUM
	FBY_COMPLETENESS_COUNT
};

/* The facts that decide it. */
struct fby_complete {
	bool damaged;	     /* the volume's record */
	bool origin_changed; /* or it does not answer, or it is smaller than the volume */
	bool attached;
	bool failing;	     /* the origin's last error persists */
	bool counted;	     /* pages_left is all */
	u64 lost_entries;    /* that nobody accepted */
	u64 lost_blocks;
	u64 pages_left;	     /* of those that the question concerns */
};

/* drained: everything that the question concerns was drained and flushed; the pool's content is
 * newer. */
void fby_complete_of(struct fby_complete *c, const struct fby_volume_info *v, bool drained);
enum fby_completeness fby_complete_judge(const struct fby_complete *c);
const char *fby_complete_text(enum fby_completeness c);

#endif
