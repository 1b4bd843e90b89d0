/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * round.h - a round of destage: what destage.c, its state machine, asks of the parts that
 * choose the pages (collect.c) and make requests of them (request.c).
 */
#ifndef FBY_ROUND_H
#define FBY_ROUND_H

#include "drain/drain.h"

enum carry { CARRY_NO = 0, CARRY_LOST, CARRY_DAMAGED };

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
/* The next request; b->n is 0 if there is none yet, or no more. */
void fby_round_request(struct fby_drain *p, u16 volume, struct fby_build *b);
/* After the flush: what was written along is clean. */
void fby_round_clean(struct fby_drain *p, u16 volume);

#endif
