// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * walk.c - the entries of one chunk: a walk that no damaged header stops, and the results for
 * recovery and check.
 */
#include "log/logs.h"

/*
 * The next entry follows the last one, and says so.  If that place has none, the walk searches
 * line by line.  A header found there may be part of the body of an unreadable entry, if the
 * consumer wrote such bytes; but a real header names a previous entry that lies in the gap.
 *
 * In a grouped pool the last entry may be the last one of its group.  Then the next one is at the
 * beginning of the group that follows.
 */
static bool fits(const struct fby_space *p, const struct fby_log_walk *w, u32 line, const struct fby_log_entry *e)
{
	const struct fby_chunk *ch = &p->chunk[w->c];
	u32 place = w->last ? w->line : p->store.log_first;
	bool next = line == place || (p->store.unit && line == fby_group_start(&p->store, place) + 1);

	if ((e->epoch != ch->epoch && !FBY_BUG(ENTRY_EPOCH_IGNORED)) || e->log != ch->owner ||
	    line + fby_entry_lines(e->length) > w->end)
		return false;
	return (next && e->previous == w->last) || (line != place && e->previous >= w->line);
}

bool fby_log_next(const struct fby_space *p, struct fby_log_walk *w, struct fby_log_entry *e)
{
	for (u32 line = w->line; line + FBY_ENTRY_LINES <= w->end; line++) {
		if (!fby_log_entry_read(&p->store, w->c, line, e) || !fits(p, w, line, e)) {
			if (FBY_BUG(HEADER_ENDS_WALK))
				return false;
			continue;
		}
		w->gap = e->previous != w->last;
		w->last = line;
		w->line = line + fby_entry_lines(e->length);
		return true;
	}
	return false;
}

/* Sealed entries that were not found.  A seal that counts more than a chunk can hold is forged. */
static u32 unsettled(const struct fby_store *st, const struct fby_seal_line *seal, u32 settled)
{
	u64 most = fby_log_lines(st), n = seal ? seal->last_block : 0;

	if (n > most)
		n = most;
	return n > settled ? (u32)n - settled : 0;
}

/*
 * Sealed entries are complete.  After the seal a crash can tear only the last entry, since each
 * was fenced before the next began.  If its body did not arrive, it was never acknowledged.
 */
void fby_logs_scan(struct fby_logs *p, u32 c, const struct fby_seal_line *seal)
{
	const struct fby_store *st = &p->space->store;
	struct fby_chunk *ch = &p->space->chunk[c];
	u32 sealed = seal ? fby_log_line_of(st, seal->fill) : st->log_first;
	struct fby_log_walk w = fby_log_walk(st, c, seal && seal->closed ? sealed : fby_log_lines(st));
	struct fby_log_entry e;
	u32 found = 0, settled = 0, gaps = 0, end = sealed;
	u64 txg = seal ? seal->seq_max : 0;

	while (fby_log_next(p->space, &w, &e)) {
		bool last = w.last >= sealed && !fby_log_body_read(st, &e, NULL) && !FBY_BUG(TORN_ENTRY_ACCEPTED);

		if (last) {
			struct fby_log_walk after = w;
			struct fby_log_entry next;

			if (!fby_log_next(p->space, &after, &next))
				break;
		}
		if (w.last < sealed)
			settled++;
		else
			gaps += w.gap;
		found++;
		if (e.txg > txg)
			txg = e.txg;
		if (w.line > end)
			end = w.line;
	}
	p->chunk[c].found = found;
	p->chunk[c].missing = FBY_BUG(MISSING_NOT_COUNTED) ? 0 : gaps + unsettled(st, seal, settled);
	ch->fill = fby_log_fill_of(st, end);
	ch->sealed = fby_log_fill_of(st, sealed);
	ch->seq_max = ch->seq_last = txg;
	ch->last_block = found + p->chunk[c].missing;
}

bool fby_logs_earlier(const struct fby_logs *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	struct fby_log_walk w = fby_log_walk(&p->space->store, c, fby_log_line_of(&p->space->store, ch->fill));
	struct fby_log_entry e;

	return fby_log_next(p->space, &w, &e) && !fby_equal(e.guid, p->log[ch->owner].header.guid, sizeof(e.guid)) &&
	       !FBY_BUG(EARLIER_PERIOD_HELD);
}

bool fby_logs_held(const struct fby_logs *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	const struct fby_log *l;

	if (ch->owner == FBY_NO_OWNER || ch->last_block == 0)
		return false;
	if (p->space->owner[ch->owner].damaged)
		return true;
	if (p->space->owner[ch->owner].rec.kind != FBY_OWNER_LOG)
		return false;
	if (p->space->owner[ch->owner].log.home & FBY_LOG_CONSUMER)
		return true;
	l = &p->log[ch->owner];
	return l->header.state != FBY_LOG_NONE && ch->seq_max > l->header.at.synced && !fby_logs_earlier(p, c);
}

bool fby_logs_check_chunk(const struct fby_logs *p, u32 c, struct fby_violation *v)
{
	const struct fby_space *space = p->space;
	const struct fby_chunk *ch = &space->chunk[c];
	u32 live = fby_chunk_live(space, c), used = ch->fill - space->store.first_page;
	struct fby_log_walk w = fby_log_walk(&space->store, c, fby_log_line_of(&space->store, ch->fill));
	struct fby_log_entry e;
	u64 n = 0;

	while (fby_log_next(space, &w, &e)) {
		n++;
		if (e.txg > ch->seq_last) {
			*v = (struct fby_violation){ "an entry is of a later txg than its chunk", "chunk", "txg", c, e.txg };
			return false;
		}
	}
	if (n > ch->last_block) {
		*v = (struct fby_violation){ "a chunk's entries are miscounted", "chunk", "counted", c, n };
		return false;
	}
	*v = (struct fby_violation){ "a log's chunk is neither held nor free", "chunk", "live", c, live };
	return live == used || (live == 0 && (ch->pinned & FBY_PIN_GROUP)); /* free once it is closed on the device */
}
