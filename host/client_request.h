/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * client_request.h - a client's request, as a state machine that never blocks.
 *
 * The engine's calls decide about one block, one batch or one part.  This file decides about a
 * whole request, once for all hosts: which parts go through the cache and which past it, which
 * sectors are read from the origin in one piece, when the flush is due, what the request waits
 * for, and how long the throttle delays it.  A host does what it is asked and resumes the request
 * with the result, on any thread, one call at a time.  It needs no thread for each request, and
 * no memory except struct fby_request.
 *
 *	r->pool ... r->flags are set;		 the host's memory, for as long as it lasts
 *	next = fby_request_begin(r);
 *	for (;;) {
 *		whoever r->wake names is woken
 *		next is an error or DONE: the request has ended; fby_request_end(r)
 *		else: do it, now or later; next = fby_request_resume(r, result);
 *	}
 *
 * next		what the host does		    result of resume
 * <0		nothing: -FBY_E_x, it has failed
 * DONE		nothing: it is acknowledged
 * WAIT		waits until the bit of r->why comes in a wake mask (fby_wait_prepare, one
 *		more try, sleep), or tries again	0
 *		FBY_WAIT_TICKET: until r->awaits is not pending any more (api/groups.h); 0: until
 *		any request to the pool's device has ended, or one is sent
 * ORIGIN	r->io on the origin			0 or an errno number; of READ also SENT
 * DATA		names the next pieces of its memory,
 *		at least a sector of it		    0
 * THROTTLE	waits for fby_request_delay()		0
 * DRAIN	fby_volume_drain(on), destage kicked;
 *		waits about FBY_DEFAULT_DRAIN_LOOK_NS	0, or an errno number: gives that up
 * LOST		notes that a block is lost: that of
 *		sector r->lost; the rest is read yet	0
 * STEP		looks at its clock			0, at once, over the same memory
 *
 * WAIT, DATA, DRAIN, LOST and THROTTLE hold nothing in the engine: a host may also abandon the
 * request there, with fby_request_end.  It may do so while ORIGIN is asked for, too; that request
 * then counts as failed.
 *
 * docs/design/architecture.md has the table of states.
 */
#ifndef FBY_CLIENT_REQUEST_H
#define FBY_CLIENT_REQUEST_H

#include "api/groups.h"
#include "host/policy.h"

enum fby_request_op {
	FBY_OP_READ = 0,
	FBY_OP_WRITE,
	FBY_OP_DISCARD,
	FBY_OP_ZERO,
	FBY_OP_FLUSH,
};

enum fby_request_flags {
	FBY_REQ_DURABLE = 1,  /* writes: durable when it is done, in any case */
	FBY_REQ_METADATA = 2, /* writes: of a file system's metadata */
	/* writes: never past the cache, so only for write-back volumes; the host ends the request
	 * where it would wait */
	FBY_REQ_NOWAIT = 4,
	FBY_REQ_BEHIND = 8,   /* writes: others already wait for space, so begin takes none */
	FBY_REQ_ASIDE = 16,   /* flushes: see struct fby_flush */
	FBY_REQ_CLIENT = 32,  /* flushes: likewise; told is set before */
	/* the pool is grouped: what the request has appended is durable before it is acknowledged */
	FBY_REQ_TICKETS = 64,
	/* ... but for a write whose durability is not asked for: a later flush makes it durable */
	FBY_REQ_LATER = 128,
};

/* Apart from enum fby_decision. */
enum fby_next {
	FBY_NEXT_DONE = 0,
	FBY_NEXT_WAIT = 16,
	FBY_NEXT_ORIGIN,
	FBY_NEXT_DATA,
	FBY_NEXT_THROTTLE,
	FBY_NEXT_DRAIN,
	FBY_NEXT_LOST,
	FBY_NEXT_STEP,
};

/* Result of an ORIGIN that reads: it is on its way.  The request goes on, and has ended when
 * it has and all that was sent has; the host keeps count of these, and of their errors. */
#define FBY_SENT (-1)

/* Sectors to be read from the origin, counted from the request's first. */
struct fby_run {
	u32 start, end;
};

/*
 * A request to the origin.  A READ has one run, which is all of [sector, sector + nsectors) and
 * goes to its place in the client's memory; or several, r->runs[0, nruns), with cached sectors
 * between them: the host reads the whole into its own memory and copies only the runs to their
 * places.  If that read fails, the host is asked for the runs one by one.
 */
struct fby_asked {
	u8 op; /* enum fby_request_op */
	u32 nruns;
	u64 sector;
	u64 nsectors;
};

struct fby_request {
	/* The host's.  Of a READ up to 2^31 sectors. */
	struct fby_pool *pool;
	const struct fby_policy *policy;
	u64 sector;
	u64 nsectors;
	struct fby_run *runs; /* reads: memory for max_runs, at least one, that stay until the end */
	u32 max_runs;
	u16 volume;
	u8 op;	  /* enum fby_request_op */
	u8 flags; /* enum fby_request_flags */
	struct fby_write *steps; /* writes: STEP after each step of the engine's; NULL: none */

	/* The host's before each call, by fby_request_data: the memory of the sectors from
	 * done on, or of the first of them. */
	const struct fby_vec *data;
	u32 ndata;
	u32 skip; /* bytes at the start of data that are dealt with */

	/* Results; begin sets all of them. */
	u32 wake; /* enum fby_wake, of the last call */
	u8 why;	  /* WAIT: enum fby_decision */
	u8 step;  /* STEP: 1 begun, 2 copied, 3 committed, 0 published */
	bool foreground; /* the engine knows that somebody waits for the origin */
	struct fby_asked io;
	u64 lost;
	u64 done; /* sectors */
	u32 told; /* flushes of a client: see struct fby_flush */
	u64 past_sectors; /* of them past the cache */
	u64 awaits; /* WAIT for a ticket: the ticket, or 0 */

	/* Private. */
	u8 state;
	u8 asked; /* enum fby_next: the request whose result resume expects */
	bool covered; /* the ticket stands for something */
	bool watching; /* failures was taken before the request waited for destage */
	bool gave_up; /* destage will not do it: the wait was abandoned */
	bool any_lost;
	bool alone; /* the runs are read one by one */
	u8 missing; /* sectors of a block that are yet to be put in runs */
	u32 base;   /* that block's first sector, from the request's first: may be "negative" */
	u32 nruns;
	u32 run;
	u32 least; /* least sectors of a write past the cache */
	u32 looks;
	u64 through; /* a write goes through the cache up to here */
	u64 settled;
	u64 failures;
	u64 appended; /* the ticket of what it has appended, or of what a flush makes durable */
	struct fby_bypass past;
	struct fby_flush ticket;
};

static inline void fby_request_data(struct fby_request *r, const struct fby_vec *data, u32 n)
{
	r->data = data;
	r->ndata = n;
	r->skip = 0;
}

/* Makes fby_request_end valid before begin, and done readable. */
static inline void fby_request_unbegun(struct fby_request *r)
{
	r->step = 0;
	r->foreground = false;
	r->done = 0;
	r->asked = FBY_NEXT_DONE;
}

int fby_request_begin(struct fby_request *r);
int fby_request_resume(struct fby_request *r, int result);
/* THROTTLE: nanoseconds, 0 to some; now_ns is the clock of fby_destage_step. */
u64 fby_request_delay(const struct fby_request *r, u64 now_ns);
/* Once, when it has ended, with all that was sent; or to give it up.  May come in an
 * interrupt when it has ended.  *wake is added to. */
void fby_request_end(struct fby_request *r, u32 *wake);

#endif
