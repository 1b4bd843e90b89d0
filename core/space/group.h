/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * group.h - streams of groups: how entries of logs, and pages of volumes, become durable in a grouped
 * pool.
 *
 * An owner has one stream.  Its entries are appended, under one slot, to the group that fills.
 * When that group is closed, it becomes the one in flight: there is one at most.  It is sent when
 * the open line of its chunk is durable.  So groups become durable in the order of their numbers,
 * and a ticket names the owner and the number.
 *
 *	fills --close--> WAITS --sent--> SENT --ended--> ENDED --flush--> durable
 *			   ^						(without ENDED where a write
 *			   `-- appended again in another chunk		 that has ended is durable)
 *
 * A stream also has single blocks to write, its parts: the open line of the chunk that fills, that
 * of the next chunk, which is opened ahead, and the header array of the chunk that it left.  The
 * latter is written when all groups of that chunk are durable; until it is durable itself the
 * chunk is pinned.
 *
 * fby_streams.lock guards all of this, except the group that fills, which the slot guards.  Its
 * rank is between slot and pool.
 */
#ifndef FBY_GROUP_H
#define FBY_GROUP_H

#include "api/groups.h"
#include "format/log_entry.h"

struct fby_space;
struct fby_slot;

enum fby_sending {
	FBY_SEND_NONE = 0,
	FBY_SEND_WAITS, /* to be sent */
	FBY_SEND_SENT,
	FBY_SEND_DOUBTED, /* sent; a flush has failed since, which may have lost it: its end proves nothing */
	FBY_SEND_ENDED, /* written, not flushed */
	FBY_SEND_COVERED, /* likewise, and a flush was sent since */
	FBY_SEND_FAILED, /* of a group: to be appended again */
	FBY_SEND_READY, /* of an open line: durable */
};

struct fby_group {
	u32 chunk;
	u32 line; /* of its group line */
	u32 end; /* the first line after its entries */
	u32 previous; /* line of the group before in its chunk; 0: it is the first */
	u32 fill; /* the chunk's fill before it */
	/* its own, and those of the groups before in its chunk.  Of a volume its own block counts, so
	 * that a group without pages is one, too */
	u32 records, before;
	u64 txg, txg_before; /* highest, or seq, of the chunk with it, and without */
	u32 state; /* enum fby_sending */
};

enum { FBY_PART_OPEN = 0, /* and 1: of two chunks in turn */ FBY_PART_ARRAY = 2, FBY_PARTS = 3 };

struct fby_part {
	u32 chunk;
	u32 state; /* enum fby_sending */
	u32 tries; /* that failed */
	/* of an array: the group that was to follow is appended elsewhere, once this says that it
	 * is not here */
	bool barrier;
	u64 upto; /* of an array: number of the last group in its chunk, or in one before */
};

/* The pages that those of a group replace.  Their chunks are not freed before it is durable. */
struct fby_replaced {
	u32 n;
	u32 page[FBY_GROUP_PAGES];
};

struct fby_stream {
	struct fby_group fills; /* records 0: it is not begun */
	struct fby_group flight; /* state NONE: there is none */
	struct fby_part part[FBY_PARTS];
	u32 open; /* which part is the open line of the chunk that fills */
	bool ahead; /* the other open part is of a chunk that is opened ahead */
	bool hurry; /* somebody waits for parts to be durable */
	bool again; /* what is not durable is to be appended again in another chunk */
	bool moving; /* it is being so */
	u32 emptied; /* meanwhile: a chunk that it is copied from, and that holds nothing then */
	u32 failures; /* in a row */
	u32 last; /* records of the last group that became durable */
	u32 last_line; /* line of the group last closed in the chunk that fills; 0: none */
	struct fby_witness at; /* the last durable group */
	u64 filling; /* number of the group that fills, from 1; 0: the stream was never used */
	u64 durable; /* number of the last durable group */
	/* of a volume */
	struct fby_replaced replaced[2]; /* by the group that fills, and by that in flight */
	u32 replacing; /* which is that of the group that fills */
	u64 sealed; /* number of the last group of all whose chunk has its array */
	u64 copied; /* number of the last group that has a copy of a page */
	u64 paged, ticked; /* of the last one that has a page, written under the slot; the same at the last tick */
};

struct fby_streams {
	struct fby_stream *stream; /* by owner; NULL: the pool is in memory */
	struct fby_lock lock;
	bool flushing; /* a flush is in flight */
	u32 lost; /* fby_device.lost at the last look: what it means for groups is done */
	u32 turn; /* owner that is looked at first */
	struct fby_medium_info info;
};

#define FBY_TICKET_BITS 48

static inline u64 fby_ticket(u16 owner, u64 number)
{
	return ((u64)owner + 1) << FBY_TICKET_BITS | number;
}

/* The slot whose holder may append for the owner. */
struct fby_slot *fby_stream_slot(const struct fby_space *p, u16 owner);
/*
 * Slot held.  Makes room for a record of so many lines in the group that fills, closing it and
 * opening chunks as needed.  DONE: it begins at fby_stream_line.  WAIT_TICKET, WAIT_SPACE,
 * -FBY_E_MEDIUM.
 */
int fby_stream_room(struct fby_space *p, struct fby_slot *s, u16 owner, u32 lines, u32 *wake);
/* Slot held: the line at which the next record of the chunk that fills begins. */
u32 fby_stream_line(const struct fby_space *p, u16 owner);
/* Slot held: the record that begins there was stored.  The chunk's fill and counts do not include
 * it yet.  Returns its ticket. */
u64 fby_stream_join(struct fby_space *p, u16 owner, u32 chunk, u32 line, u32 lines, u64 txg);
/*
 * Slot held: makes room for a page of a volume, or for n of them; flags: of enum fby_begin_flags,
 * for the chunk.  DONE: the first one has that place of the slot's open chunk; as above.
 */
int fby_stream_pages_room(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, u32 *place, u32 *n, u32 *wake);
/* Slot held: n pages were stored from that place on, and their lines in the array; the chunk's fill
 * does not include them.  Returns their ticket. */
u64 fby_stream_pages_join(struct fby_space *p, u16 owner, u32 chunk, const struct fby_page_line *line, u32 n);
/* Slot held: the page joined last replaces this one, which dies when it is durable.  copy: it has
 * the same data. */
void fby_stream_replaces(struct fby_space *p, u16 owner, u32 page, bool copy);
/* Slot held: begins a group without pages, which settles the one before. */
void fby_stream_pages_none(struct fby_space *p, struct fby_slot *s, u16 owner);
/* Slot held: what replaces a page that was appended again replaces it where it is now. */
void fby_stream_pages_moved(struct fby_space *p, u16 owner, u32 from, u32 to);
/* The ticket of all pages that were appended for the owner: what a flush waits for. */
u64 fby_stream_appended(struct fby_space *p, u16 owner);
/* Pages that are to be settled, so that damage of them can pass for no torn group. */
enum fby_settle {
	FBY_SETTLE_COPIES, /* all copies */
	FBY_SETTLE_PAGES, /* all pages */
	FBY_SETTLE_TICK, /* pages that there were at the last such call */
};
/* Slot held: is that settled?  False: the stream sees to it, by requests that are to be sent. */
bool fby_stream_settle(struct fby_space *p, struct fby_slot *s, u16 owner, enum fby_settle what, u32 *wake);
/* Pages of the chunk, and blocks of groups, that are dead when groups are durable.  All is quiet. */
u32 fby_stream_dying(const struct fby_space *p, u32 chunk);
/* Slot held: closes the group that fills, and leaves the chunks that are open.  False: requests
 * have to end first. */
bool fby_stream_leave(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake);
/* Is everything of the owner durable, and all its chunks closed? */
bool fby_stream_quiet(struct fby_space *p, u16 owner);
/* Is the chunk opened ahead, by no slot yet? */
bool fby_stream_ahead(const struct fby_space *p, u16 owner, u32 chunk);

/* What is to be sent.  AGAIN: the owner's groups are to be appended again: call
 * fby_stream_move, under its slot. */
int fby_streams_next(struct fby_space *p, struct fby_medium_io *io, u16 *owner, u32 *wake);
void fby_streams_end(struct fby_space *p, const struct fby_medium_io *io, int error, u32 *wake);
enum fby_ticket_state fby_stream_ticket(const struct fby_space *p, u64 ticket);
void fby_stream_load(struct fby_space *p, u64 ticket, struct fby_medium_load *out);

/*
 * Slot held: begins to append again what is not durable.  Opens another chunk; the one that has
 * durable groups ends after them.  moved[0..n): the groups, whose records the caller appends in
 * order by fby_stream_join, closing the first of two by fby_stream_close.  Then it calls
 * fby_stream_moved.  FBY_DONE; FBY_AGAIN: no chunk is free, so they are written to their place
 * again, and there is nothing to do; WAIT_TICKET: requests have to end first.
 */
int fby_stream_move(struct fby_space *p, struct fby_slot *s, u16 owner, struct fby_group moved[2], u32 *n, u32 *wake);
void fby_stream_moved(struct fby_space *p, u16 owner, bool all, u32 *wake); /* all: it could append all of them */
/* Slot held, no group in flight: the group that fills, which has records, becomes that one. */
void fby_stream_close(struct fby_space *p, u16 owner);

#endif
