/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * stream.h - what stream.c and group.c share: a stream, its parts and its device.
 */
#ifndef FBY_STREAM_H
#define FBY_STREAM_H

#include "space/slot.h"

static inline struct fby_device *fby_stream_device(const struct fby_space *p)
{
	return fby_media_device(p->store.media);
}

/* The pool has failed: nothing more becomes durable. */
static inline void fby_stream_fail(struct fby_space *p)
{
	media_fail(p->store.media);
}

static inline struct fby_stream *fby_stream_of(const struct fby_space *p, u16 owner)
{
	return &p->streams.stream[owner];
}

/* Has the device a request of this state, whose end is not reported? */
static inline bool fby_in_flight(u32 state)
{
	return state == FBY_SEND_SENT || state == FBY_SEND_DOUBTED;
}

/* The chunk that fills. */
static inline u32 fby_stream_open(const struct fby_space *p, u16 owner)
{
	return fby_load(&fby_stream_slot(p, owner)->volume[owner].open);
}

/* Is the group that is not durable in this chunk? */
static inline bool fby_group_in(const struct fby_stream *s, u32 c)
{
	return s->flight.state != FBY_SEND_NONE && s->flight.chunk == c;
}

/* The part that is the open line of the chunk; NULL: none. */
static inline struct fby_part *fby_stream_part(struct fby_stream *s, u32 c)
{
	for (u32 i = 0; i < FBY_PART_ARRAY; i++)
		if (s->part[i].state != FBY_SEND_NONE && s->part[i].chunk == c)
			return &s->part[i];
	return NULL;
}

/* The lines that a group of several records may take. */
u32 fby_stream_group_lines(const struct fby_store *st);
/* fby_stream_room; flags: of enum fby_begin_flags, for the chunk. */
int fby_stream_make_room(struct fby_space *p, struct fby_slot *s, u16 owner, u32 lines, u32 flags, u32 *wake);
/* Slot held, no group fills: leaves the chunk, and goes on to the one that was opened ahead, if there
 * is one.  False: requests have to end first. */
bool fby_stream_next_chunk(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake);
/* Lock held: the group that was in flight is durable; of a volume. */
void fby_stream_pages_durable(struct fby_space *p, struct fby_stream *s);

/* Slot and lock held, no group in flight: the one that fills becomes that. */
void fby_group_close(struct fby_space *p, u16 owner);
/* Lock held: can what is not durable be appended again now?  Nothing of it is in flight, and the
 * array that it needs is free.  open: the chunk that fills. */
bool fby_stream_can_move(const struct fby_stream *s, u32 open);

#endif
