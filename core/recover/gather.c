// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * gather.c - what the groups of a chunk say whose header array was not written: where its records
 * end, and how many there are.  The rest of recovery then treats the chunk as a closed one.
 *
 * Each group was sent when the one before was durable.  So a group that is followed by another is
 * settled, and damage in it is damage.  The last one may be torn: then it was never acknowledged,
 * and none of it counts, since a record of it may depend on one that did not arrive.
 */
#include "recover/recovery.h"

bool fby_group_next(const struct fby_space *p, u32 c, u16 owner, u32 line, u32 previous, struct fby_group_line *g)
{
	const struct fby_store *st = &p->store;
	const u32 from = line;

	for (; line < fby_log_lines(st); line = fby_group_start(st, line + 1)) {
		if (!fby_group_line_read(st, c, line, g) || g->epoch != p->chunk[c].epoch || g->owner != owner) {
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
