/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * groups.h - the hosts' interface to a grouped pool (medium/device.h): which writes and flushes
 * its device needs, and when an entry is durable.
 *
 * An append stores its entry to the image and joins a group.  It returns a ticket at once.  The
 * entry is durable when its ticket is, and nobody may be told of it before.  The engine says by
 * fby_medium_next what is to be written, and the host reports by fby_medium_end how that ended:
 *
 *	fby_log_append		name.ticket
 *	fby_medium_next		DONE: io is to be sent to the device, now
 *	... the host writes, or flushes, as io says ...
 *	fby_medium_end		FBY_WAKE_TICKET: tickets may have changed
 *	fby_ticket_state	DURABLE: the append may be acknowledged
 *
 * Any thread may carry out any request.  A simple host lets the thread that has appended call
 * fby_medium_next until its ticket is durable or there is nothing to send; in the latter case
 * another thread has a request in flight, and the thread sleeps until that ends.
 *
 * Not only entries have to be sent.  A chunk is freed when its header array is durable, and nobody
 * has a ticket for that.  So a host also calls fby_medium_next, and carries out what it gets, until
 * there is nothing to send: after each fby_medium_end; after each call that returned WAIT_TICKET or
 * WAIT_SPACE; and after fby_log_sync and fby_log_destroy, fby_log_release and fby_log_remove.
 *
 * A log has one stream of groups.  One group of a stream is in flight at a time, so a group is
 * sent when all before it are durable, and the durable entries of a log are a prefix of it.
 *
 * Write errors: the engine appends the group again, in another chunk, from the image.  Flush
 * errors: it does so with all groups that had been sent and were not durable, since a later flush
 * that succeeds does not prove that they are there.  If no chunk is free, it writes the group to
 * its place again.  A group that fails three times is not tried again: the pool has failed.  Then
 * no ticket becomes durable any more, all calls that would change something return -FBY_E_MEDIUM,
 * and reads go on from the image.
 *
 * In a pool in memory each append is durable when it returns: its ticket is 0, which is always
 * durable, and there is never anything to send.
 *
 * Threads: all calls here may run in any number of threads, concurrently with appends and all
 * other calls, but not in interrupts.
 */
#ifndef FOREBAY_GROUPS_H
#define FOREBAY_GROUPS_H

#include "api/forebay.h"
#include "medium/device.h"

enum fby_medium_kind {
	FBY_MEDIUM_WRITE = 1, /* [at, at + n) of the image goes to the same place on the device */
	FBY_MEDIUM_FLUSH, /* all writes that have ended become durable */
};

enum fby_medium_flags {
	FBY_MEDIUM_FUA = 1u << 0, /* the write is durable when it has ended */
};

/* A request to the device. */
struct fby_medium_io {
	u32 kind; /* enum fby_medium_kind */
	u32 flags; /* enum fby_medium_flags */
	u64 at, n; /* multiples of the unit; 0, 0 of a flush */
	u32 id; /* the engine's */
	u32 reserved;
};

/*
 * DONE: *io is to be sent now.  Its bytes of the image do not change until its end.  Requests may
 * be in flight together, and may end in any order.  At most one flush is in flight.  WAIT_TICKET:
 * there is nothing to send until a request in flight has ended, or an append.  WAIT_SLOT: a slot
 * is held, by an append between its two steps or for a moment by another call.  The host waits for
 * it as for any other (fby_wait_prepare, FBY_WAKE_SLOT), or leaves that to a thread that appends,
 * which calls fby_medium_next after the second step.
 * -FBY_E_MEDIUM: the pool has failed.
 */
int fby_medium_next(struct fby_pool *p, struct fby_medium_io *io, u32 *wake);

/* The request has ended, with an error or not (0).  After an error any part of a write may be on
 * the device, and it may not arrive later.  Called once for each DONE of fby_medium_next. */
void fby_medium_end(struct fby_pool *p, const struct fby_medium_io *io, int error, u32 *wake);

/* The ticket of all that was appended to the volume: what a flush waits for.  0: nothing is. */
u64 fby_volume_ticket(struct fby_pool *p, u16 volume);

enum fby_ticket_state {
	FBY_TICKET_DURABLE = 0, /* survives a power cut, as does all of its log before it */
	FBY_TICKET_PENDING, /* not known yet */
	FBY_TICKET_FAILED, /* the pool has failed first: the entry may be there after a restart or not */
};
enum fby_ticket_state fby_ticket_state(const struct fby_pool *p, u64 ticket);

/* How many entries wait, for a host that wants them to share a write. */
struct fby_medium_load {
	bool in_flight; /* a group of the ticket's stream is in flight */
	u32 waiting; /* entries of the stream that have not been sent */
	u32 last; /* entries of the last group that became durable */
};
void fby_medium_load(struct fby_pool *p, u64 ticket, struct fby_medium_load *out);

struct fby_medium_info {
	bool grouped;
	bool failed;
	u32 unit;
	u64 groups, records; /* that became durable since open */
	u64 writes, written_bytes, flushes; /* requests that ended well */
	u64 write_errors, flush_errors;
	u64 again; /* groups that were appended again */
};
void fby_medium_info(struct fby_pool *p, struct fby_medium_info *out);

#endif
