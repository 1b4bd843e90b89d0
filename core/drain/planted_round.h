/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * planted_round.h - planted bugs of a round of destage.  They are placed at its seams, so that
 * its state machine (destage.c) reads without them: where it enters a phase, where a request has
 * failed, where a page is released.  Without planted bugs these functions do nothing.
 */
#ifndef FBY_PLANTED_ROUND_H
#define FBY_PLANTED_ROUND_H

#include "cache/index.h"
#include "drain/round.h"

#ifdef FBY_PLANTED_BUGS

/* Before the round goes on to the phase. */
static inline void fby_planted_phase(struct fby_drain *p, u16 volume, enum fby_phase next)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (FBY_BUG(WATERMARK_BEFORE_FLUSH) && next == FBY_PH_FLUSH) {
		p->space->owner[volume].rec.watermark = d->cut;
		fby_owner_write(p->space, volume);
	}
	if (FBY_BUG(CLEAN_BEFORE_FLUSH) && next == FBY_PH_FLUSHING)
		fby_round_clean(p, volume);
	if (FBY_BUG(FREE_BEFORE_WATERMARK) && d->phase == FBY_PH_RELEASE)
		fby_owner_write(p->space, volume);
}

/* A request has failed: is that overlooked? */
static inline bool fby_planted_overlooked(struct fby_drain *p, u16 volume)
{
	enum fby_phase phase = p->volume[volume].destage.phase;

	if (FBY_BUG(FLUSH_FAILURE_TOLD_LATE) && phase == FBY_PH_FLUSHING)
		fby_gate_destage_failed(&p->cache->volume[volume]);
	return (FBY_BUG(ORIGIN_ERROR_DROPS) && phase == FBY_PH_WRITE) ||
	       (FBY_BUG(FLUSH_ERROR_IGNORED) && phase == FBY_PH_FLUSHING);
}

/* Bucket held.  Returns the page to release in place of the listed one; FBY_NO_PAGE: the listed
 * one. */
static inline u32 fby_planted_release(struct fby_drain *p, u32 bucket, u64 key)
{
	return FBY_BUG(RELEASE_NEWER) ? fby_index_get_locked(p->cache, bucket, key) : FBY_NO_PAGE;
}

/* Is the page left linked, though the watermark has passed it? */
static inline bool fby_planted_stays(const struct fby_round_page *r)
{
	return r->carry == FBY_CARRY_REFUSED && FBY_BUG(REFUSED_NOT_MOVED);
}

#else

static inline void fby_planted_phase(struct fby_drain *p, u16 volume, enum fby_phase next)
{
	(void)p, (void)volume, (void)next;
}

static inline bool fby_planted_overlooked(struct fby_drain *p, u16 volume)
{
	(void)p, (void)volume;
	return false;
}

static inline u32 fby_planted_release(struct fby_drain *p, u32 bucket, u64 key)
{
	(void)p, (void)bucket, (void)key;
	return FBY_NO_PAGE;
}

static inline bool fby_planted_stays(const struct fby_round_page *r)
{
	(void)r;
	return false;
}

#endif

#endif
