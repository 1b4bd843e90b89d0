// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * group.c - streams of groups (group.h): what is sent to the device and when, what has become
 * durable, and what an error of the device means.
 */
#include "space/stream.h"

#define FLUSH_ID (~0u)
#define GROUP_ID FBY_PARTS /* of a request: owner * 4, plus the part or this */

/* --- what is sent; lock held ------------------------------------------------------------ */

static void send(struct fby_space *p, struct fby_medium_io *io, u16 owner, u32 what, u64 at, u64 n)
{
	*io = (struct fby_medium_io){ .kind = FBY_MEDIUM_WRITE, .at = at, .n = n, .id = owner * 4u + what };
	if (fby_stream_device(p)->durable == FBY_DURABLE_FUA && !FBY_BUG(GROUP_NO_FUA))
		io->flags = FBY_MEDIUM_FUA;
}

static int send_part(struct fby_space *p, u16 owner, u32 i, struct fby_medium_io *io)
{
	struct fby_part *part = &fby_stream_of(p, owner)->part[i];
	const struct fby_chunk *ch = &p->chunk[part->chunk];
	u64 bytes = p->store.unit;

	if (i != FBY_PART_ARRAY) {
		send(p, io, owner, i, fby_open_at(&p->store, part->chunk, ch->epoch & 1), bytes);
	} else {
		fby_chunk_seal_store(p, part->chunk, true);
		if (ch->kind == FBY_CHUNK_CACHE)
			bytes = fby_array_bytes(&p->store);
		send(p, io, owner, i, fby_chunk_at(&p->store, part->chunk) + p->store.array_at, bytes);
	}
	part->state = FBY_SEND_SENT;
	return FBY_DONE;
}

static int send_group(struct fby_space *p, u16 owner, struct fby_medium_io *io)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	struct fby_group *g = &s->flight;
	u32 line = FBY_BUG(GROUP_BLOCK_SHARED) ? g->line & ~(p->store.unit / FBY_LINE - 1) : g->line;
	u64 lines = fby_group_start(&p->store, g->end) - line;

	send(p, io, owner, GROUP_ID, fby_log_line_at(&p->store, g->chunk, line), lines * FBY_LINE);
	fby_store(&g->state, (u32)FBY_SEND_SENT);
	if (FBY_BUG(GROUP_ACK_SENT))
		fby_store_release(&s->durable, s->filling - 1);
	return FBY_DONE;
}

static bool ready(struct fby_stream *s, u32 c)
{
	const struct fby_part *part = fby_stream_part(s, c);

	return part && (part->state == FBY_SEND_READY || FBY_BUG(GROUP_BEFORE_OPEN));
}

/* The array waits for the groups of its chunk, unless it says that they are elsewhere. */
static bool array_due(const struct fby_stream *s)
{
	const struct fby_part *array = &s->part[FBY_PART_ARRAY];

	return array->state == FBY_SEND_WAITS && !s->moving &&
	       (array->barrier || !fby_group_in(s, array->chunk) || FBY_BUG(GROUP_CLOSED_EARLY));
}

static bool barrier_up(const struct fby_stream *s)
{
	return s->part[FBY_PART_ARRAY].state != FBY_SEND_NONE && s->part[FBY_PART_ARRAY].barrier;
}

/* DONE, AGAIN, WAIT_TICKET; WAIT_SLOT: the slot is held. */
static int stream_next(struct fby_space *p, u16 owner, struct fby_medium_io *io, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	struct fby_slot *slot = fby_stream_slot(p, owner);

	if (array_due(s))
		return send_part(p, owner, FBY_PART_ARRAY, io);
	if (s->again)
		return fby_stream_can_move(s, fby_stream_open(p, owner)) ? FBY_AGAIN : FBY_WAIT_TICKET;
	for (u32 i = 0; i < FBY_PART_ARRAY; i++)
		if (s->part[i].state == FBY_SEND_WAITS && (i == s->open || fby_group_in(s, s->part[i].chunk)))
			return send_part(p, owner, i, io);
	if (s->flight.state == FBY_SEND_WAITS && ready(s, s->flight.chunk) && !barrier_up(s))
		return send_group(p, owner, io);
	if (s->ahead && s->part[s->open ^ 1].state == FBY_SEND_WAITS)
		return send_part(p, owner, s->open ^ 1, io);
	if ((s->flight.state != FBY_SEND_NONE && !(FBY_BUG(PAGES_TWO_IN_FLIGHT) && s->flight.state == FBY_SEND_ENDED)) ||
	    !fby_load(&s->fills.records) || barrier_up(s) ||
	    !ready(s, s->part[s->open].chunk))
		return FBY_WAIT_TICKET;
	/* Whoever has the slot may be between the two steps of an append. */
	if (!FBY_BUG(GROUP_OVER_APPEND) && !fby_slot_try(slot))
		return FBY_WAIT_SLOT;
	if (s->fills.records) {
		fby_group_close(p, owner);
		(void)send_group(p, owner, io);
	}
	if (!FBY_BUG(GROUP_OVER_APPEND))
		fby_slot_give(p, slot, wake);
	return s->flight.state == FBY_SEND_SENT ? FBY_DONE : FBY_WAIT_TICKET;
}

/* Is there anything that was written and somebody waits for? */
static bool flush_due(const struct fby_space *p, u16 owner)
{
	const struct fby_stream *s = fby_stream_of(p, owner);

	if (s->flight.state == FBY_SEND_ENDED)
		return true;
	for (u32 i = 0; i < FBY_PARTS; i++) {
		const struct fby_part *part = &s->part[i];

		if (part->state == FBY_SEND_ENDED &&
		    (s->hurry || s->again || part->barrier || i == s->open || fby_group_in(s, part->chunk) || fby_short(p)))
			return true;
	}
	return false;
}

static int send_flush(struct fby_space *p, struct fby_medium_io *io)
{
	bool due = false;

	for (u32 i = 0; i < p->store.sb.nvolumes && !due; i++)
		due = flush_due(p, (u16)i);
	if (!due || p->streams.flushing)
		return FBY_WAIT_TICKET;
	for (u32 i = 0; i < p->store.sb.nvolumes; i++) {
		struct fby_stream *s = &p->streams.stream[i];

		s->hurry = false;
		if (s->flight.state == FBY_SEND_ENDED)
			fby_store(&s->flight.state, (u32)FBY_SEND_COVERED);
		for (u32 part = 0; part < FBY_PARTS; part++)
			if (s->part[part].state == FBY_SEND_ENDED)
				s->part[part].state = FBY_SEND_COVERED;
	}
	p->streams.flushing = true;
	if (FBY_BUG(STREAM_LOST_READ_LATE))
		p->streams.lost = fby_load(&fby_stream_device(p)->lost);
	*io = (struct fby_medium_io){ .kind = FBY_MEDIUM_FLUSH, .id = FLUSH_ID };
	return FBY_DONE;
}

/* --- what has become durable, and what has not; lock held ------------------------------- */

static void group_durable(struct fby_space *p, struct fby_stream *s)
{
	struct fby_group *g = &s->flight;

	s->at = (struct fby_witness){ .chunk = g->chunk, .epoch = (u32)p->chunk[g->chunk].epoch, .line = (u16)g->line,
				      .owner = (u16)(s - p->streams.stream) };
	s->last = g->records - (p->chunk[g->chunk].kind == FBY_CHUNK_CACHE);
	s->failures = 0;
	p->streams.info.groups++;
	p->streams.info.records += s->last;
	if (p->chunk[g->chunk].kind == FBY_CHUNK_CACHE)
		fby_stream_pages_durable(p, s);
	fby_store(&g->state, (u32)FBY_SEND_NONE);
	/* The tickets of this group and of all before it. */
	fby_store_release(&s->durable, s->filling - 1);
}

/* All that the chunk has is settled. */
static void array_written(struct fby_space *p, struct fby_stream *s)
{
	struct fby_part *array = &s->part[FBY_PART_ARRAY];
	struct fby_chunk *ch = &p->chunk[array->chunk];

	array->state = FBY_SEND_NONE;
	s->sealed = array->upto;
	fby_store(&ch->sealed, fby_load(&ch->fill));
	fby_destage_look(p, (u16)(s - p->streams.stream));
}

static void part_durable(struct fby_space *p, struct fby_stream *s, u32 i, u32 *wake)
{
	struct fby_part *part = &s->part[i];

	part->tries = 0;
	if (i != FBY_PART_ARRAY) {
		part->state = FBY_SEND_READY;
		return;
	}
	array_written(p, s);
	fby_chunk_unpin(p, part->chunk, FBY_PIN_GROUP, wake);
}

/* The records that are not durable are appended again, in another chunk. */
static void stream_failed(struct fby_space *p, struct fby_stream *s)
{
	fby_store(&s->again, true);
	if (++s->failures >= FBY_DEVICE_TRIES)
		fby_stream_fail(p);
}

static void group_failed(struct fby_space *p, struct fby_stream *s)
{
	fby_store(&s->flight.state, (u32)FBY_SEND_FAILED);
	stream_failed(p, s);
}

/* A part holds nothing that counts, so it is written to its place again; but a block that keeps
 * failing is given up, and with an open line the chunk. */
static void part_failed(struct fby_space *p, struct fby_stream *s, u32 i)
{
	struct fby_part *part = &s->part[i];

	part->state = FBY_SEND_WAITS;
	if (++part->tries < FBY_DEVICE_TRIES)
		return;
	if (i != FBY_PART_ARRAY) {
		stream_failed(p, s);
	} else if (part->barrier) {
		fby_stream_fail(p); /* nothing else keeps the group from counting twice */
	} else {
		array_written(p, s); /* recovery reads the groups; the chunk stays pinned */
	}
}

/* A flush has failed: all that was written and not durable is not there.  A write in flight may
 * have been written, too, and its end not be reported yet: that shows when it ends. */
static void lose_written(struct fby_space *p)
{
	u32 lost = fby_load(&fby_stream_device(p)->lost); /* first: one that fails from here on counts again */
	bool doubted = fby_stream_device(p)->durable == FBY_DURABLE_FLUSH && !FBY_BUG(STREAM_SENT_TRUSTED);

	for (u32 o = 0; o < p->store.sb.nvolumes; o++) {
		struct fby_stream *s = &p->streams.stream[o];

		if (s->flight.state == FBY_SEND_ENDED || s->flight.state == FBY_SEND_COVERED)
			group_failed(p, s);
		else if (s->flight.state == FBY_SEND_SENT && doubted)
			fby_store(&s->flight.state, (u32)FBY_SEND_DOUBTED);
		for (u32 i = 0; i < FBY_PARTS; i++) {
			if (s->part[i].state == FBY_SEND_ENDED || s->part[i].state == FBY_SEND_COVERED)
				part_failed(p, s, i);
			else if (s->part[i].state == FBY_SEND_SENT && doubted)
				s->part[i].state = FBY_SEND_DOUBTED;
		}
	}
	p->streams.lost = lost;
}

#ifdef FBY_PLANTED_BUGS
static void uncover(struct fby_space *p)
{
	for (u32 o = 0; o < p->store.sb.nvolumes; o++) {
		struct fby_stream *s = &p->streams.stream[o];

		if (s->flight.state == FBY_SEND_COVERED)
			s->flight.state = FBY_SEND_ENDED;
		for (u32 i = 0; i < FBY_PARTS; i++)
			if (s->part[i].state == FBY_SEND_COVERED)
				s->part[i].state = FBY_SEND_ENDED;
	}
}
#else
static void uncover(struct fby_space *p)
{
	(void)p;
}
#endif

static void flush_ended(struct fby_space *p, int error, u32 *wake)
{
	struct fby_device *device = fby_stream_device(p);

	p->streams.flushing = false;
	if (error && FBY_BUG(GROUP_FLUSH_ERROR_FORGOTTEN)) {
		uncover(p);
		return;
	}
	if (error) {
		fby_store(&device->lost, fby_load(&device->lost) + 1);
		p->streams.info.flush_errors++;
	} else {
		p->streams.info.flushes++;
	}
	/* Another flush may have failed since the last look, so also before this one was sent:
	 * then this one proves nothing. */
	if (fby_load(&device->lost) != p->streams.lost && !FBY_BUG(GROUP_LOST_ELSEWHERE)) {
		lose_written(p);
		return;
	}
	for (u32 o = 0; o < p->store.sb.nvolumes; o++) {
		struct fby_stream *s = &p->streams.stream[o];

		if (s->flight.state == FBY_SEND_COVERED ||
		    (FBY_BUG(GROUP_FLUSH_COVERS_SENT) && s->flight.state == FBY_SEND_SENT))
			group_durable(p, s);
		for (u32 i = 0; i < FBY_PARTS; i++)
			if (s->part[i].state == FBY_SEND_COVERED)
				part_durable(p, s, i, wake);
	}
}

static void write_ended(struct fby_space *p, const struct fby_medium_io *io, int error, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, (u16)(io->id / 4));
	bool flushed = fby_stream_device(p)->durable != FBY_DURABLE_FLUSH;
	u32 i = io->id % 4;

	if (error) {
		p->streams.info.write_errors++;
	} else {
		p->streams.info.writes++;
		p->streams.info.written_bytes += io->n;
	}
	if (i == GROUP_ID) {
		if (!fby_in_flight(s->flight.state)) /* the host has reported it twice */
			return;
		if ((error || s->flight.state == FBY_SEND_DOUBTED) && !FBY_BUG(GROUP_ERROR_IGNORED))
			group_failed(p, s);
		else if (flushed)
			group_durable(p, s);
		else
			fby_store(&s->flight.state, (u32)FBY_SEND_ENDED);
		return;
	}
	if (!fby_in_flight(s->part[i].state))
		return;
	if (error || s->part[i].state == FBY_SEND_DOUBTED)
		part_failed(p, s, i);
	else if (flushed)
		part_durable(p, s, i, wake);
	else
		s->part[i].state = FBY_SEND_ENDED;
}

/* --- the hosts' calls ------------------------------------------------------------------- */

int fby_streams_next(struct fby_space *p, struct fby_medium_io *io, u16 *owner, u32 *wake)
{
	struct fby_streams *all = &p->streams;
	u32 n = p->store.sb.nvolumes;
	bool busy = false;
	int rc = FBY_WAIT_TICKET;

	fby_lock(&all->lock);
	if (!all->flushing && fby_load(&fby_stream_device(p)->lost) != all->lost && !FBY_BUG(GROUP_LOST_ELSEWHERE))
		lose_written(p);
	for (u32 i = 0; i < n && !media_failed(p->store.media); i++) {
		*owner = (u16)((all->turn + i) % n);
		rc = stream_next(p, *owner, io, wake);
		if (rc == FBY_DONE || rc == FBY_AGAIN)
			break;
		busy |= rc == FBY_WAIT_SLOT;
		rc = FBY_WAIT_TICKET;
	}
	if (rc == FBY_DONE || rc == FBY_AGAIN)
		all->turn = (*owner + 1u) % n;
	else if (media_failed(p->store.media))
		rc = -FBY_E_MEDIUM;
	else
		rc = send_flush(p, io);
	fby_unlock(&all->lock);
	return rc == FBY_WAIT_TICKET && busy ? FBY_WAIT_SLOT : rc;
}

void fby_streams_end(struct fby_space *p, const struct fby_medium_io *io, int error, u32 *wake)
{
	fby_lock(&p->streams.lock);
	if (io->kind == FBY_MEDIUM_FLUSH)
		flush_ended(p, error, wake);
	else
		write_ended(p, io, error, wake);
	fby_unlock(&p->streams.lock);
	*wake |= FBY_WAKE_TICKET;
	if (fby_volumes_allowed(p))
		*wake |= FBY_WAKE_DESTAGE; /* it may wait for the ticket */
}

enum fby_ticket_state fby_stream_ticket(const struct fby_space *p, u64 ticket)
{
	u64 number = ticket & ((1ull << FBY_TICKET_BITS) - 1);

	if (ticket == 0)
		return FBY_TICKET_DURABLE;
	if (!p->streams.stream || ticket >> FBY_TICKET_BITS > p->store.sb.nvolumes)
		return FBY_TICKET_FAILED; /* no append returned it */
	if (fby_load_acquire(&fby_stream_of(p, (u16)((ticket >> FBY_TICKET_BITS) - 1))->durable) >= number)
		return FBY_TICKET_DURABLE;
	return media_failed(p->store.media) ? FBY_TICKET_FAILED : FBY_TICKET_PENDING;
}

void fby_stream_load(struct fby_space *p, u64 ticket, struct fby_medium_load *out)
{
	const struct fby_stream *s;

	fby_zero(out, sizeof(*out));
	if (ticket == 0 || !p->streams.stream || ticket >> FBY_TICKET_BITS > p->store.sb.nvolumes)
		return;
	s = fby_stream_of(p, (u16)((ticket >> FBY_TICKET_BITS) - 1));
	fby_lock(&p->streams.lock);
	out->in_flight = s->flight.state > FBY_SEND_WAITS;
	out->waiting = fby_load(&s->fills.records) + (s->flight.state == FBY_SEND_WAITS ? s->flight.records : 0);
	out->last = s->last;
	fby_unlock(&p->streams.lock);
}
