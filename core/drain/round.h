/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * round.h - a round of destage: what destage.c, its state machine, asks of the parts that
 * choose the pages (collect.c) and make requests of them (request.c).
 */
#ifndef FBY_ROUND_H
#define FBY_ROUND_H

#include "cache/index.h"
#include "drain/drain.h"

enum fby_carry { FBY_CARRY_NO = 0, FBY_CARRY_LOST, FBY_CARRY_DAMAGED };

/* A request while it is built. */
struct fby_build {
	u8 op;
	u64 sector;
	u64 n;
	u8 *buf;
	u64 max;
};

/* Chooses the cut and lists the pages: d->n of them, none if there is nothing to do. */
void fby_round_collect(struct fby_drain *p, u16 volume, u32 *wake);
/* Is the page listed still what it was? */
bool fby_round_listed(struct fby_drain *p, u16 volume, const struct fby_round_page *r, u64 cut);
/* Need the page not be written?  It is clean. */
bool fby_round_is_clean(const struct fby_drain *p, u16 volume, u32 page, u32 state);
/* Is the block's page whole, dirty, and one that may be written along? */
bool fby_round_dirty(struct fby_drain *p, u16 volume, u64 block, struct fby_found *f);
/* The next request; b->n is 0 if there is none yet, or no more. */
void fby_round_request(struct fby_drain *p, u16 volume, struct fby_build *b);
/* After the flush: what was written along is clean. */
void fby_round_clean(struct fby_drain *p, u16 volume);

#endif
