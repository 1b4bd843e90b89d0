// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * stream_pages.c - pages of volumes in a stream (group.h): their places, what they replace, and what
 * is settled.
 *
 * A group begins with a block for its lines, and that block has a place in the chunk as a page has.
 * It is dead from the beginning, but counts so when the group is durable: a group that could not be
 * written is not in its chunk any more, and neither is that block.
 *
 * Damage in the last group of an open chunk passes for a torn group.  So a copy, whose source was
 * acknowledged long ago, has to be settled before the source is freed: a group follows it in its
 * chunk, or the chunk has its array.  If nobody appends, a group without pages settles it.
 */
#include "space/stream.h"

static u32 place_of(const struct fby_space *p, u16 owner)
{
	return fby_place_of_line(fby_stream_line(p, owner));
}

/* Pages that the group that fills takes, from that place on. */
static u32 room_at(const struct fby_space *p, u16 owner, u32 place)
{
	const struct fby_group *g = &fby_stream_of(p, owner)->fills;
	u32 begin = g->records ? fby_place_of_line(g->line) : place - 1, taken = g->records ? g->records : 1;
	u32 end = begin + fby_place_of_line(fby_stream_group_lines(&p->store)), n;

	if (end > p->store.chunk_pages)
		end = p->store.chunk_pages;
	n = end - place;
	return n < FBY_GROUP_RECORDS - taken ? n : FBY_GROUP_RECORDS - taken;
}

int fby_stream_pages_room(struct fby_space *p, struct fby_slot *slot, u16 owner, u32 flags, u32 *place, u32 *n, u32 *wake)
{
	int rc = fby_stream_make_room(p, slot, owner, FBY_GROUP_PAGE_LINES, flags, wake);

	if (rc != FBY_DONE)
		return rc;
	*place = place_of(p, owner);
	*n = room_at(p, owner, *place);
	return FBY_DONE;
}

/* Begins a group: its block is void in the array. */
static void begin_group(struct fby_space *p, struct fby_stream *s, u32 chunk, const struct fby_page_line *first)
{
	struct fby_chunk *ch = &p->chunk[chunk];
	u32 place = fby_load(&ch->fill);
	struct fby_page_line l;

	s->fills = (struct fby_group){ .chunk = chunk, .line = place * FBY_GROUP_PAGE_LINES, .previous = s->last_line,
				       .fill = place, .txg = ch->seq_last, .txg_before = ch->seq_last };
	fby_group_void_line(&p->store, first, place, ch->seq_min, &l);
	media_lines(p->store.media, fby_line_at(&p->store, chunk, place), &l, FBY_LINE);
	s->fills.end = s->fills.line + FBY_GROUP_PAGE_LINES;
	fby_store(&s->fills.records, 1u);
}

u64 fby_stream_pages_join(struct fby_space *p, u16 owner, u32 chunk, const struct fby_page_line *line, u32 n)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	struct fby_group *g = &s->fills;

	if (g->records == 0)
		begin_group(p, s, chunk, line);
	media_lines(p->store.media, fby_log_line_at(&p->store, chunk, g->line + g->records), line, n * FBY_LINE);
	g->end += n * FBY_GROUP_PAGE_LINES;
	g->txg = line[n - 1].seq;
	/* Pages that are appended again do not lower it. */
	if (s->filling > s->paged)
		fby_store(&s->paged, s->filling);
	fby_store(&g->records, g->records + n);
	return fby_ticket(owner, s->filling);
}

void fby_stream_replaces(struct fby_space *p, u16 owner, u32 page, bool copy)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	struct fby_replaced *r = &s->replaced[s->replacing];

	/* A group has fewer pages than that.  One that is not noted keeps its chunk, and is not lost. */
	if (r->n < FBY_GROUP_PAGES)
		r->page[r->n++] = page;
	if (copy)
		s->copied = s->filling;
}

/*
 * By the highest number that a page ever got, and not by the group that fills: while groups are
 * appended again, that one has a lower number than the last page that was acknowledged or waits to be.
 * A group keeps its number when it is appended again, so this number comes.  A higher one might not:
 * a group without pages ends with the next page.
 */
u64 fby_stream_appended(struct fby_space *p, u16 owner)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	u64 number = fby_load(&s->paged);

	if (FBY_BUG(PAGES_FLUSH_AGAIN))
		number = fby_load(&s->fills.records) ? s->filling : s->filling ? s->filling - 1 : 0;
	if (FBY_BUG(PAGES_FLUSH_OF_SENT) && s->flight.state == FBY_SEND_NONE)
		number = s->durable;
	return number ? fby_ticket(owner, number) : 0;
}

void fby_stream_pages_none(struct fby_space *p, struct fby_slot *slot, u16 owner)
{
	u32 c = slot->volume[owner].open;
	struct fby_chunk *ch = &p->chunk[c];
	const struct fby_page_line none = { .epoch = ch->epoch, .prev_block = ch->last_block, .chunk = c, .volume = owner,
					    .prev_seq = ch->last_block != FBY_NO_BLOCK ? ch->seq_last : 0 };

	begin_group(p, fby_stream_of(p, owner), c, &none);
	fby_store(&ch->fill, ch->fill + 1);
}

void fby_stream_pages_moved(struct fby_space *p, u16 owner, u32 from, u32 to)
{
	struct fby_stream *s = fby_stream_of(p, owner);

	for (u32 which = 0; which < 2; which++)
		for (u32 i = 0; i < s->replaced[which].n; i++)
			if (s->replaced[which].page[i] == from)
				s->replaced[which].page[i] = to;
}

/* --- when a group is durable; lock held ---------------------------------------------------- */

static void count_dead_page(struct fby_space *p, u32 page)
{
	u16 *n = &fby_stream_dead_row(p)[fby_page_chunk(&p->store, page)];

	fby_store_release(n, (u16)(fby_load(n) + 1));
}

void fby_stream_pages_durable(struct fby_space *p, struct fby_stream *s)
{
	struct fby_replaced *r = &s->replaced[s->replacing ^ 1];
	const struct fby_group *g = &s->flight;
	struct fby_chunk *ch = &p->chunk[g->chunk];

	for (u32 i = 0; i < r->n && !FBY_BUG(PAGES_DEAD_AT_PUBLISH); i++)
		count_dead_page(p, r->page[i]);
	r->n = 0;
	count_dead_page(p, fby_page_number(p, g->chunk, g->fill));
	/* The groups before it are settled. */
	fby_store(&ch->sealed, FBY_BUG(PAGES_LISTED_UNSETTLED) ? fby_place_of_line(g->end) : g->fill);
	fby_store_release(&ch->durable, fby_place_of_line(g->end));
	fby_destage_look(p, (u16)(s - p->streams.stream));
}

/* --- what is settled; slot held --------------------------------------------------------------- */

/* Lock held.  Groups up to this number are settled. */
static u64 settled(const struct fby_stream *s)
{
	const struct fby_part *array = &s->part[FBY_PART_ARRAY];
	u64 number = s->durable ? s->durable - 1 : 0;

	if (s->sealed > number)
		number = s->sealed;
	if (array->state != FBY_SEND_NONE && array->upto <= number)
		number = array->upto - 1;
	return number;
}

static u64 wanted(struct fby_stream *s, enum fby_settle what)
{
	u64 number = what == FBY_SETTLE_COPIES ? s->copied : what == FBY_SETTLE_PAGES ? s->paged : s->ticked;

	if (what == FBY_SETTLE_TICK)
		s->ticked = s->paged;
	return number;
}

bool fby_stream_settle(struct fby_space *p, struct fby_slot *slot, u16 owner, enum fby_settle what, u32 *wake)
{
	struct fby_stream *s = fby_stream_of(p, owner);
	u32 c = slot->volume[owner].open;
	bool done, quiet;

	fby_lock(&p->streams.lock);
	done = settled(s) >= wanted(s, what);
	quiet = !s->again && s->fills.records == 0 && s->flight.state == FBY_SEND_NONE;
	s->hurry |= !done;
	fby_unlock(&p->streams.lock);
	/* Requests under way settle it, too. */
	if (done || !quiet || c == FBY_NO_CHUNK || s->last_line == 0)
		return done;
	if (fby_stream_line(p, owner) > fby_log_lines(&p->store))
		(void)fby_stream_next_chunk(p, slot, owner, wake);
	else
		fby_stream_pages_none(p, slot, owner);
	return false;
}

u32 fby_stream_dying(const struct fby_space *p, u32 chunk)
{
	u32 n = 0;

	if (!p->streams.stream || p->chunk[chunk].kind != FBY_CHUNK_CACHE)
		return 0;
	for (u32 i = 0; i < p->store.sb.nvolumes; i++) {
		const struct fby_stream *s = &p->streams.stream[i];

		n += s->fills.records && s->fills.chunk == chunk;
		n += s->flight.state != FBY_SEND_NONE && s->flight.chunk == chunk;
		for (u32 which = 0; which < 2; which++)
			for (u32 k = 0; k < s->replaced[which].n; k++)
				n += fby_page_chunk(&p->store, s->replaced[which].page[k]) == chunk;
	}
	return n;
}
