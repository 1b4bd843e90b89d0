// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * again.c - entries whose group could not be written are appended again, in another chunk, from
 * the image.  They keep their place in the order of the log, their names, and their tickets.
 */
#include "log/logs.h"
#include "space/slot.h"

/* Copies lines of the image. */
static bool copy_lines(const struct fby_store *st, u64 to, u64 from, u32 lines, u8 *scratch)
{
	const u32 most = FBY_PAGE / FBY_LINE;

	while (lines > 0) {
		u32 n = lines < most ? lines : most;

		if (!media_read(st->media, scratch, from, n * FBY_LINE))
			return false;
		media_lines(st->media, to, scratch, n * FBY_LINE);
		to += n * FBY_LINE;
		from += n * FBY_LINE;
		lines -= n;
	}
	return true;
}

/* Appends the entry at that line of a chunk to the chunk that is open now; returns the line after
 * it, or 0 if it cannot be read. */
static u32 move_entry(struct fby_logs *p, struct fby_slot *s, u16 log, u32 from, u32 line)
{
	const struct fby_store *st = &p->space->store;
	u32 c = s->volume[log].open, to = fby_stream_line(p->space, log), lines;
	struct fby_chunk *ch = &p->space->chunk[c];
	struct fby_log_entry e;

	if (!fby_log_entry_read(st, from, line, &e))
		return 0;
	lines = fby_entry_lines(e.length);
	if (!copy_lines(st, fby_log_line_at(st, c, to + FBY_ENTRY_LINES),
			fby_log_line_at(st, from, line + FBY_ENTRY_LINES), lines - FBY_ENTRY_LINES, s->scratch))
		return 0;
	e.chunk = c;
	e.line = to;
	e.epoch = ch->epoch;
	e.previous = p->chunk[c].last_line;
	fby_log_entry_finish(st, &e);
	media_lines(st->media, fby_log_line_at(st, c, to), &e, FBY_ENTRY_BYTES);
	(void)fby_stream_join(p->space, log, c, to, lines, e.txg);
	p->chunk[c].last_line = to;
	ch->last_block++;
	if (e.txg > ch->seq_last)
		ch->seq_last = e.txg;
	fby_store(&ch->fill, fby_log_fill_of(st, to + lines));
	return line + lines;
}

static bool move_group(struct fby_logs *p, struct fby_slot *s, u16 log, const struct fby_group *g)
{
	u32 line = g->line + 1;

	for (u32 i = 0; i < g->records && line; i++)
		line = move_entry(p, s, log, g->chunk, line);
	return line == g->end;
}

int fby_logs_again(struct fby_logs *p, u16 log, u32 *wake)
{
	struct fby_slot *s = fby_stream_slot(p->space, log);
	struct fby_group moved[2];
	u32 n;
	int rc;

	if (!fby_slot_try(s))
		return FBY_WAIT_SLOT;
	rc = fby_stream_move(p->space, s, log, moved, &n, wake);
	if (rc == FBY_DONE) {
		fby_logs_chunk_begin(p, s->volume[log].open);
		for (u32 i = 0; i < n && rc == FBY_DONE; i++) {
			if (!move_group(p, s, log, &moved[i]))
				rc = -FBY_E_MEDIUM; /* the image is damaged */
			else if (i + 1 < n)
				fby_stream_close(p->space, log);
		}
		fby_stream_moved(p->space, log, rc == FBY_DONE, wake);
	}
	fby_slot_give(p->space, s, wake);
	return rc == FBY_AGAIN ? FBY_DONE : rc;
}
