// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * stream.c - a stream (group.h) as appends see it: the group that fills, the chunks that are
 * opened and left, and what is appended again after an error.
 */
#include "space/stream.h"

struct fby_slot *fby_stream_slot(const struct fby_space *p, u16 owner)
{
	return &p->slot[owner % p->opt.nslots];
}

static u32 free_line(const struct fby_space *p, u32 c)
{
	return fby_fill_line(&p->store, p->chunk[c].kind, fby_load(&p->chunk[c].fill));
}

/* Lines before the records of a group. */
static u32 head_lines(const struct fby_space *p, u32 c)
{
	return p->chunk[c].kind == FBY_CHUNK_CACHE ? FBY_GROUP_PAGE_LINES : 1;
}

/* --- the group that fills; slot held --------------------------------------------------- */

u32 fby_stream_line(const struct fby_space *p, u16 owner)
{
	u32 c = fby_stream_open(p, owner), line = free_line(p, c);

	if (fby_stream_of(p, owner)->fills.records)
		return line;
	return (FBY_BUG(GROUP_BLOCK_SHARED) ? line : fby_group_start(&p->store, line)) + head_lines(p, c);
}

u32 fby_stream_group_lines(const struct fby_store *st)
{
	u32 most = fby_group_most(st), pages = FBY_GROUP_PAGES * (FBY_PAGE / FBY_LINE);

	return most < pages ? most : pages;
}

static bool fits(const struct fby_space *p, u16 owner, u32 lines)
{
	const struct fby_group *g = &fby_stream_of(p, owner)->fills;
	u32 end = fby_stream_line(p, owner) + lines;

	if (end > fby_log_lines(&p->store))
		return false;
	return g->records == 0 || (g->records < FBY_GROUP_RECORDS &&
				   fby_group_start(&p->store, end) - g->line <= fby_stream_group_lines(&p->store));
}

u64 fby_stream_join(struct fby_space *p, u16 owner, u32 chunk, u32 line, u32 lines, u64 txg)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	const struct fby_chunk *ch = &p->chunk[chunk];
	struct fby_group *g = &s->fills;

	if (g->records == 0)
		*g = (struct fby_group){ .chunk = chunk, .line = line - 1, .previous = s->last_line, .fill = ch->fill,
					 .before = (u32)ch->last_block, .txg_before = ch->seq_last };
	g->end = line + lines;
	g->txg = txg > ch->seq_last ? txg : ch->seq_last;
	fby_store(&g->records, g->records + 1);
	return fby_ticket(owner, s->filling);
}

/* Durable groups, of the stream itself if they are in another chunk, and of others. */
static void choose_witnesses(const struct fby_space *p, u16 owner, u32 chunk, struct fby_witness *w)
{
	u32 n = 0;

	for (u32 i = 0; i < p->store.sb.nvolumes && n < FBY_WITNESSES; i++) {
		const struct fby_stream *s = &p->streams.stream[(owner + i) % p->store.sb.nvolumes];

		if (s->durable && s->at.chunk != chunk)
			w[n++] = s->at;
	}
	for (; n < FBY_WITNESSES; n++)
		w[n] = (struct fby_witness){ .chunk = FBY_NO_CHUNK };
}

static void zero_lines(struct fby_space *p, u32 c, u32 from, u32 to)
{
	static const u8 zero[FBY_PAGE];
	const u32 most = sizeof(zero) / FBY_LINE;

	for (; from < to; from += most)
		media_lines(p->store.media, fby_log_line_at(&p->store, c, from), zero,
			    (to - from < most ? to - from : most) * FBY_LINE);
}

void fby_group_close(struct fby_space *p, u16 owner)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	struct fby_group *g = &s->fills;
	struct fby_group_line l = { .magic = FBY_GROUP_MAGIC, .chunk = g->chunk, .owner = owner };

	l.epoch = p->chunk[g->chunk].epoch;
	l.seq_max = g->txg;
	l.line = (u16)g->line;
	l.lines = (u16)(g->end - g->line);
	l.previous = (u16)g->previous;
	l.records = (u16)g->records;
	l.before = (u16)g->before;
	if (p->chunk[g->chunk].kind == FBY_CHUNK_CACHE) {
		l.magic = FBY_GROUP_PAGES_MAGIC;
		l.records--;
		zero_lines(p, g->chunk, g->line + 1 + l.records, g->line + FBY_GROUP_PAGE_LINES);
	}
	choose_witnesses(p, owner, g->chunk, l.witness);
	fby_line_finish(p->store.line_seed, &l);
	media_lines(p->store.media, fby_log_line_at(&p->store, g->chunk, g->line), &l, FBY_LINE);
	zero_lines(p, g->chunk, g->end, fby_group_start(&p->store, g->end));
	s->last_line = g->line;
	s->replacing ^= 1;
	s->flight = *g;
	s->flight.state = FBY_SEND_WAITS;
	s->filling++;
	fby_store(&g->records, 0u);
}

void fby_stream_close(struct fby_space *p, u16 owner)
{
	fby_lock(&p->streams.lock);
	fby_group_close(p, owner);
	fby_unlock(&p->streams.lock);
}

/* --- chunks of a stream; slot held ------------------------------------------------------ */

/* Lock held: an open part that nothing depends on; FBY_PARTS: there is none now. */
static u32 free_part(const struct fby_stream *s, u32 open)
{
	for (u32 i = 0; i < FBY_PART_ARRAY; i++) {
		const struct fby_part *part = &s->part[i];

		if (part->state == FBY_SEND_NONE)
			return i;
		if (part->state == FBY_SEND_READY && part->chunk != open && !fby_group_in(s, part->chunk) &&
		    !(s->ahead && i != s->open))
			return i;
	}
	return FBY_PARTS;
}

/* Opens a chunk: the one that fills, or the one after it. */
static int open_next(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 flags, bool ahead, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	u32 i, c;

	fby_lock(&p->streams.lock);
	i = free_part(s, slot->volume[owner].open);
	if (i == FBY_PARTS)
		s->hurry = true;
	fby_unlock(&p->streams.lock);
	if (i == FBY_PARTS)
		return FBY_WAIT_TICKET;
	c = fby_slot_open_chunk(p, slot, owner, flags, ahead, wake);
	if (c == FBY_NO_CHUNK)
		return FBY_WAIT_SPACE;
	fby_lock(&p->streams.lock);
	s->part[i] = (struct fby_part){ .chunk = c, .state = FBY_SEND_WAITS };
	s->ahead = ahead;
	if (!ahead) {
		s->open = i;
		s->last_line = 0;
	}
	if (s->filling == 0)
		s->filling = 1;
	fby_unlock(&p->streams.lock);
	return FBY_DONE;
}

static void close_chunk(struct fby_space *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	fby_store(&ch->seq_max, ch->seq_last);
	fby_lock(&p->lock);
	ch->state = FBY_CS_CLOSED;
	fby_unlock(&p->lock);
}

/* Lock held: drops a chunk without a group.  False: its open line is in flight. */
static bool drop_chunk(struct fby_space *p, struct fby_stream *s, u32 c, u32 *wake)
{
	struct fby_part *part = fby_stream_part(s, c);

	if (part && fby_in_flight(part->state))
		return false;
	if (part)
		part->state = FBY_SEND_NONE;
	p->chunk[c].seq_last = 0;
	close_chunk(p, c);
	fby_chunk_unpin(p, c, FBY_PIN_GROUP, wake);
	return true;
}

/* Lock held: leaves the chunk that fills, in which no group fills.  False: requests have to end
 * first. */
static bool leave_chunk(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	u32 c = slot->volume[owner].open;

	if (p->chunk[c].fill == p->store.first_page) {
		if (!drop_chunk(p, s, c, wake))
			return false;
	} else {
		if (s->part[FBY_PART_ARRAY].state != FBY_SEND_NONE)
			return false;
		s->part[FBY_PART_ARRAY] = (struct fby_part){ .chunk = c, .state = FBY_SEND_WAITS, .upto = s->filling - 1 };
		close_chunk(p, c);
	}
	fby_store(&slot->volume[owner].open, FBY_NO_CHUNK);
	return true;
}

/* Lock held, no chunk fills: the one that was opened ahead does, if there is one. */
static void take_ahead(struct fby_space *p, struct fby_slot *slot, u16 owner)
{
	struct fby_stream *s = fby_stream_of(p, owner);

	if (!s->ahead)
		return;
	s->open ^= 1;
	s->ahead = false;
	s->last_line = 0;
	fby_store(&slot->volume[owner].open, s->part[s->open].chunk);
}

bool fby_stream_next_chunk(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	bool left;

	fby_lock(&p->streams.lock);
	left = leave_chunk(p, slot, owner, wake);
	if (left)
		take_ahead(p, slot, owner);
	else
		s->hurry = true;
	fby_unlock(&p->streams.lock);
	return left;
}

static void open_ahead(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 *wake)
{
	u32 lines = fby_log_lines(&p->store), used = free_line(p, slot->volume[owner].open);

	if (used < lines - lines / 8 || fby_stream_of(p, owner)->ahead || fby_short(p))
		return;
	(void)open_next(p, slot, owner, 0, true, wake);
}

int fby_stream_make_room(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 lines, u32 flags, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	int rc;

	/* A closed group, the next chunk, its opening, and the room in it. */
	for (u32 i = 0; i < 4; i++) {
		if (media_failed(p->store.media))
			return -FBY_E_MEDIUM;
		if (fby_load(&s->again))
			return FBY_WAIT_TICKET;
		/* The last leave may have kept the chunk that was opened ahead. */
		if (slot->volume[owner].open == FBY_NO_CHUNK && !FBY_BUG(STREAM_AHEAD_FORGOTTEN)) {
			fby_lock(&p->streams.lock);
			take_ahead(p, slot, owner);
			fby_unlock(&p->streams.lock);
		}
		if (slot->volume[owner].open == FBY_NO_CHUNK) {
			rc = open_next(p, slot, owner, flags, false, wake);
			if (rc != FBY_DONE)
				return rc;
		}
		if (fits(p, owner, lines)) {
			open_ahead(p, slot, owner, wake);
			return FBY_DONE;
		}
		if (s->fills.records) {
			if (fby_load(&s->flight.state) != FBY_SEND_NONE)
				return FBY_WAIT_TICKET;
			fby_stream_close(p, owner);
		} else if (!fby_stream_next_chunk(p, slot, owner, wake)) {
			return FBY_WAIT_TICKET;
		}
	}
	return FBY_WAIT_TICKET;
}

int fby_stream_room(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 lines, u32 *wake)
{
	return fby_stream_make_room(p, slot, owner, lines, 0, wake);
}

bool fby_stream_leave(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	bool left = true;

	fby_lock(&p->streams.lock);
	if (s->again || (s->fills.records && s->flight.state != FBY_SEND_NONE)) {
		left = false;
	} else {
		if (s->fills.records)
			fby_group_close(p, owner);
		if (slot->volume[owner].open != FBY_NO_CHUNK)
			left = leave_chunk(p, slot, owner, wake);
		if (left && s->ahead) {
			left = drop_chunk(p, s, s->part[s->open ^ 1].chunk, wake);
			s->ahead = !left;
		}
	}
	s->hurry = true;
	fby_unlock(&p->streams.lock);
	return left;
}

bool fby_stream_quiet(struct fby_space *p, u16 owner)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	bool quiet;

	fby_lock(&p->streams.lock);
	quiet = !s->again && !s->ahead && fby_load(&s->fills.records) == 0 && s->flight.state == FBY_SEND_NONE &&
		s->part[FBY_PART_ARRAY].state == FBY_SEND_NONE && fby_stream_open(p, owner) == FBY_NO_CHUNK;
	s->hurry |= !quiet;
	fby_unlock(&p->streams.lock);
	return quiet;
}

bool fby_stream_ahead(const struct fby_space *p, u16 owner, u32 chunk)
{
	const struct fby_stream *s = fby_stream_of(p, owner);

	return s->ahead && s->part[s->open ^ 1].chunk == chunk;
}

/* --- again, in another chunk; slot held ------------------------------------------------- */

bool fby_stream_can_move(const struct fby_stream *s, u32 open)
{
	const struct fby_part *array = &s->part[FBY_PART_ARRAY];
	u32 first = s->flight.state != FBY_SEND_NONE ? s->flight.chunk : open;

	for (u32 i = 0; i < FBY_PARTS; i++)
		if (fby_in_flight(s->part[i].state))
			return false;
	if (s->flight.state != FBY_SEND_NONE && s->flight.state != FBY_SEND_WAITS && s->flight.state != FBY_SEND_FAILED)
		return false;
	return array->state == FBY_SEND_NONE || (array->state == FBY_SEND_WAITS && array->chunk == first);
}

/* Lock held: the chunk ends after its durable groups.  Until its array says so, on the device, no
 * group is sent, or a group that failed and is there all the same would count twice.  After that
 * it is a closed chunk like others, and may be freed. */
static void end_chunk(struct fby_space *p, struct fby_stream *s, u32 c, const struct fby_group *first)
{
	struct fby_chunk *ch = &p->chunk[c];

	if (first) {
		fby_store(&ch->fill, first->fill);
		ch->last_block = ch->kind == FBY_CHUNK_LOG ? first->before : FBY_NO_BLOCK;
		ch->seq_last = first->txg_before;
	}
	close_chunk(p, c);
	if (!FBY_BUG(GROUP_AGAIN_TWICE))
		s->part[FBY_PART_ARRAY] = (struct fby_part){ .chunk = c, .state = FBY_SEND_WAITS, .barrier = true, .upto = s->durable };
}

/* Lock held: a chunk of which no group was sent holds nothing. */
static void empty_chunk(struct fby_space *p, u32 c)
{
	fby_store(&p->chunk[c].fill, p->store.first_page);
	p->chunk[c].last_block = 0;
	p->chunk[c].seq_last = 0;
	close_chunk(p, c);
}

/* Lock held, no chunk is free: what failed is written to its place again, which holds nothing that
 * counts.  It is counted as the others are, so it is not tried for ever. */
static void again_in_place(struct fby_stream *s)
{
	if (s->flight.state == FBY_SEND_FAILED)
		fby_store(&s->flight.state, (u32)FBY_SEND_WAITS);
	fby_store(&s->again, false);
}

int fby_stream_move(struct fby_space *p, struct fby_slot *slot, u16 owner, struct fby_group moved[2], u32 *n, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	u32 open = slot->volume[owner].open, first, c;
	bool can;

	*n = 0;
	fby_lock(&p->streams.lock);
	can = s->again && fby_stream_can_move(s, open);
	if (s->flight.state != FBY_SEND_NONE)
		moved[(*n)++] = s->flight;
	if (s->fills.records)
		moved[(*n)++] = s->fills;
	fby_unlock(&p->streams.lock);
	if (!can)
		return FBY_WAIT_TICKET;
	first = *n ? moved[0].chunk : open;
	c = fby_slot_open_chunk(p, slot, owner, FBY_BEGIN_RESERVE, true, wake);
	fby_lock(&p->streams.lock);
	if (c == FBY_NO_CHUNK) {
		again_in_place(s);
		fby_unlock(&p->streams.lock);
		*n = 0;
		return FBY_AGAIN;
	}
	/* Until the groups are copied, the chunks that they are in stay what they are. */
	s->moving = true;
	s->emptied = FBY_NO_CHUNK;
	if (first != FBY_NO_CHUNK)
		end_chunk(p, s, first, *n ? &moved[0] : NULL);
	if (open != FBY_NO_CHUNK && open != first) {
		empty_chunk(p, open);
		s->emptied = open;
	}
	if (s->ahead) {
		empty_chunk(p, s->part[s->open ^ 1].chunk);
		fby_chunk_unpin(p, s->part[s->open ^ 1].chunk, FBY_PIN_GROUP, wake);
	}
	if (s->flight.state != FBY_SEND_NONE) {
		s->filling--;
		s->replacing ^= 1; /* it fills again */
	}
	fby_store(&s->flight.state, (u32)FBY_SEND_NONE);
	fby_store(&s->fills.records, 0u);
	s->part[0] = (struct fby_part){ .chunk = c, .state = FBY_SEND_WAITS };
	s->part[1] = (struct fby_part){ .state = FBY_SEND_NONE };
	s->open = 0;
	s->ahead = false;
	s->last_line = 0;
	p->streams.info.again += *n;
	fby_store(&slot->volume[owner].open, c);
	fby_unlock(&p->streams.lock);
	return FBY_DONE;
}

void fby_stream_moved(struct fby_space *p, u16 owner, bool all, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);

	if (!all)
		fby_stream_fail(p);
	fby_lock(&p->streams.lock);
	fby_store(&s->again, false);
	s->moving = false;
	if (s->emptied != FBY_NO_CHUNK && all)
		fby_chunk_unpin(p, s->emptied, FBY_PIN_GROUP, wake);
	fby_unlock(&p->streams.lock);
}
