// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * gather.c - what the groups of a chunk say whose header array was not written: where its records
 * end, and how many there are.  The rest of recovery then treats the chunk as a closed one.
 *
 * Each group was sent when the one before was durable.  So a group that is followed by another is
 * settled, and damage in it is damage.  The last one may be torn: then it was never acknowledged.
 * A log takes nothing of it, since a record of it may depend on one that did not arrive.  A volume
 * takes each page that has arrived: no page depends on another.
 */
#include "recover/recovery.h"

bool fby_group_next(const struct fby_space *p, u32 c, u16 owner, u32 line, u32 previous, struct fby_group_line *g)
{
	const struct fby_store *st = &p->store;
	const u32 from = line;

	for (; line < fby_log_lines(st); line = fby_group_start(st, line + 1)) {
		if (!fby_group_line_read(st, c, p->chunk[c].kind, line, g) || g->epoch != p->chunk[c].epoch || g->owner != owner) {
			if (FBY_BUG(GROUP_GAP_ENDS_WALK))
				return false;
			continue;
		}
		if (line == from ? g->previous == previous : g->previous >= from)
			return true;
	}
	return false;
}

void fby_gather(const struct fby_space *p, u32 c, u16 owner, struct fby_seal_line *seal)
{
	const struct fby_store *st = &p->store;
	struct fby_group_line g, last = { 0 };
	u32 line = st->log_first, end = line, records = 0;
	u64 seq_max = 0, seq_before = 0;

	while (fby_group_next(p, c, owner, line, last.line, &g)) {
		seq_before = g.previous == last.line ? seq_max : g.seq_max;
		seq_max = g.seq_max;
		last = g;
		line = fby_group_start(st, (u32)g.line + g.lines);
	}
	if (last.records && (FBY_BUG(GROUP_HALF_TAKEN) || fby_log_group_whole(st, &last))) {
		end = (u32)last.line + last.lines;
		records = (u32)last.before + last.records;
	} else if (last.records) {
		end = last.line;
		records = last.before;
		seq_max = seq_before;
	}
	*seal = (struct fby_seal_line){
		.magic = FBY_SEAL_MAGIC,
		.fill = (u16)fby_log_fill_of(st, end),
		.closed = 1,
		.chunk = c,
		.owner = owner,
		.kind = p->chunk[c].kind,
		.epoch = p->chunk[c].epoch,
		.seq_max = seq_max,
		.last_block = records,
	};
}

/* --- of a volume: the lines of its pages -------------------------------------------------- */

/* Is the line of the array one of the chunk's epoch? */
static bool line_there(const struct fby_space *p, u32 c, u32 place)
{
	struct fby_page_line l;

	return fby_page_line_judge(&p->store, c, place, &p->chunk[c].epoch, &l, NULL) && l.epoch == p->chunk[c].epoch;
}

static void line_store(const struct fby_space *p, u32 c, u32 place, const struct fby_page_line *l)
{
	media_lines(p->store.media, fby_line_at(&p->store, c, place), l, FBY_LINE);
}

/* An upper bound of the sequence numbers before the group.  If the group before it was not found, this
 * one says it: its numbers ascend, and without pages it has the number of that group. */
static u64 seq_before_group(const struct fby_group_line *g, const struct fby_group_line *last, u64 seq)
{
	if (g->previous == last->line || FBY_BUG(PAGES_GAP_DATED_OLD))
		return seq;
	return g->seq_max > g->records ? g->seq_max - g->records : seq;
}

/* The line of the group's own block.  seq: the highest before the group, if the first page does not
 * say it. */
static void gather_void(const struct fby_space *p, const struct fby_group_line *g, u64 seq)
{
	const struct fby_chunk *ch = &p->chunk[g->chunk];
	struct fby_page_line first, l;

	if (!g->records || !fby_group_page_line(&p->store, g, 0, &first, NULL))
		first = (struct fby_page_line){ .epoch = g->epoch, .prev_block = FBY_NO_BLOCK, .prev_seq = seq,
						.chunk = g->chunk, .volume = g->owner };
	fby_group_void_line(&p->store, &first, fby_place_of_line(g->line), ch->seq_min, &l);
	line_store(p, g->chunk, fby_place_of_line(g->line), &l);
}

/* Copies the lines that the array does not have.  closed: the array was written, so a line of the
 * group that cannot be relied on is no better than that of the array. */
static u32 gather_lines(const struct fby_space *p, const struct fby_group_line *g, u64 seq, bool closed)
{
	u32 place = fby_place_of_line(g->line), copied = 0;

	if (!line_there(p, g->chunk, place)) {
		gather_void(p, g, seq);
		copied++;
	}
	for (u32 n = 0; n < g->records; n++) {
		struct fby_page_line l;
		bool good = fby_group_page_line(&p->store, g, n, &l, NULL);

		if (line_there(p, g->chunk, place + 1 + n) || (!good && closed))
			continue;
		/* A wrong bit is corrected where the line is read again. */
		if (!good && !media_read(p->store.media, &l, fby_chunk_at(&p->store, g->chunk) + (u64)(g->line + 1 + n) * FBY_LINE,
					 FBY_LINE))
			continue;
		line_store(p, g->chunk, place + 1 + n, &l);
		copied++;
	}
	return copied;
}

void fby_gather_pages(const struct fby_space *p, u32 c, u16 owner, u32 closed_fill, struct fby_gathered *out)
{
	const struct fby_store *st = &p->store;
	u32 line = st->log_first, end = closed_fill ? closed_fill * FBY_GROUP_PAGE_LINES : fby_log_lines(st);
	struct fby_group_line g, last = { 0 };
	u64 seq = 0;

	*out = (struct fby_gathered){ .last = st->first_page, .end = st->first_page };
	while (fby_group_next(p, c, owner, line, last.line, &g) && (u32)g.line + g.lines <= end) {
		out->last = fby_place_of_line(g.line);
		out->copied += gather_lines(p, &g, seq_before_group(&g, &last, seq), closed_fill != 0);
		seq = g.seq_max;
		last = g;
		line = (u32)g.line + g.lines;
		out->end = fby_place_of_line(line);
	}
	out->seq_max = seq;
}
