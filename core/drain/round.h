/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * round.h - a round of destage.  destage.c, its state machine, calls these parts, which choose
 * the pages (collect.c) and build requests from them (request.c).
 */
#ifndef FBY_ROUND_H
#define FBY_ROUND_H

#include "cache/index.h"
#include "drain/drain.h"

enum fby_carry { FBY_CARRY_NO = 0, FBY_CARRY_LOST, FBY_CARRY_DAMAGED, FBY_CARRY_REFUSED };

/* A request while it is built. */
struct fby_build {
	u8 op;
	u64 sector;
	u64 n;
	u8 *buf;
	u64 max;
	bool again; /* the request is of a page that was refused before */
};

/* Chooses the cut and lists the pages: d->n of them, none if there is nothing to do. */
void fby_round_collect(struct fby_drain *p, u16 volume, u32 *wake);
/* Is the listed page still the same? */
bool fby_round_listed(struct fby_drain *p, u16 volume, const struct fby_round_page *r, u64 cut);
/* Is the page clean, so that it need not be written? */
bool fby_round_is_clean(const struct fby_drain *p, u16 volume, u32 page, u32 state);
/* Is the block's page whole, dirty, and one that may be written along? */
bool fby_round_dirty(struct fby_drain *p, u16 volume, u64 block, struct fby_found *f);
/* Builds the next request; b->n is 0 if there is none yet, or no more. */
void fby_round_request(struct fby_drain *p, u16 volume, struct fby_build *b);
/* After the flush: pages that were written along become clean. */
void fby_round_clean(struct fby_drain *p, u16 volume);

/* First page of the list that is not before this key, or d->n. */
static inline u32 fby_round_from(const struct fby_destage *d, u64 k)
{
	u32 from = 0, to = d->n;

	while (from < to) {
		u32 middle = from + (to - from) / 2;

		if (d->page[middle].k < k)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* --- refused.c ---- */
void fby_refused_begin(struct fby_drain *p, u16 volume); /* a round begins */
/* A request has ended: it was taken, or refused, which is noted for its pages. */
void fby_refused_taken(struct fby_destage *d, const struct fby_io_slot *io);
void fby_refused_note(struct fby_refused *f, const struct fby_io_slot *io);
void fby_refused_failed(struct fby_drain *p, u16 volume, const struct fby_io_slot *io);
/* Is a page of this state left out of the round, after refused requests? */
bool fby_refused_leaves(struct fby_refused *f, u32 state);
/* Should the round be abandoned for a shorter one, as the origin has recovered?  When its
 * requests have ended, it enters the phase that fby_refused_cut_short returns. */
bool fby_refused_heals(const struct fby_destage *d);
enum fby_phase fby_refused_cut_short(struct fby_drain *p, u16 volume);
/* All requests have ended; returns the next phase: FLUSH; BACKOFF, the origin took nothing; IDLE,
 * nothing was tried. */
enum fby_phase fby_refused_judge(struct fby_drain *p, u16 volume);
/* The origin took a part of the round: sets the time to retry refused pages. */
void fby_refused_pause(struct fby_drain *p, struct fby_refused *f);
/* Has the volume only refused pages whose time to retry has not come? */
bool fby_refused_waits(struct fby_drain *p, u16 volume);
/* The watermark has moved: are all refused pages on the origin now? */
void fby_refused_passed(struct fby_drain *p, u16 volume, u64 watermark);

#endif
