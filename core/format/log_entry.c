// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * log_entry.c - a log's entries and header: checksums and validation.  The media is never
 * trusted: a header is copied once, and only the copy is checked and used.
 */
#include "format/log_entry.h"

#define CRC_BYTES (FBY_ENTRY_BYTES - 4)

void fby_log_entry_finish(const struct fby_store *st, struct fby_log_entry *e)
{
	e->crc = fby_crc32c(st->line_seed, e, CRC_BYTES);
}

static bool counters_sane(const struct fby_log_counters *c, u64 end)
{
	u64 any = 0;

	for (u32 i = 0; i < FBY_LOG_TXGS; i++) {
		if (c->n[i] >= end)
			return false;
		if (c->txg <= i)
			any |= c->n[i]; /* there is no such txg */
	}
	return c->txg < end && any == 0;
}

/* Its numbers are low enough that the numbers which a header derives from them are sane. */
static bool entry_sane(const struct fby_store *st, u32 c, u32 line, const struct fby_log_entry *e)
{
	u8 any = 0;

	for (u32 i = 0; i < sizeof(e->reserved); i++)
		any |= e->reserved[i];
	return e->magic == FBY_ENTRY_MAGIC && e->chunk == c && e->line == line && e->length <= fby_entry_most(st) &&
	       line + fby_entry_lines(e->length) <= fby_log_lines(st) && e->epoch < FBY_NUMBER_END &&
	       e->txg > 0 && e->txg < FBY_NUMBER_START && e->gen > 0 && e->gen < FBY_NUMBER_START && e->id > 0 &&
	       e->id < FBY_NUMBER_START && counters_sane(&e->before, FBY_NUMBER_START) && e->log < st->sb.nvolumes &&
	       (e->previous == 0 || (e->previous >= st->log_first && e->previous < line)) && any == 0;
}

bool fby_log_entry_read(const struct fby_store *st, u32 c, u32 line, struct fby_log_entry *e)
{
	if (line < st->log_first || line + FBY_ENTRY_LINES > fby_log_lines(st))
		return false;
	if (!media_read(st->media, e, fby_log_line_at(st, c, line), FBY_ENTRY_BYTES))
		return false;
	/* Most lines examined are no header: cheap tests come first. */
	return e->magic == FBY_ENTRY_MAGIC && e->line == line && fby_crc32c(st->line_seed, e, CRC_BYTES) == e->crc &&
	       entry_sane(st, c, line, e);
}

/* Any group of a grouped chunk says which epoch the chunk has: the first may be damaged. */
static bool group_newest(const struct fby_store *st, u32 c, struct fby_open_line *out)
{
	struct fby_group_line g;
	bool any = false;

	for (u32 line = st->log_first; line < fby_log_lines(st); line = fby_group_start(st, line + 1)) {
		if (!fby_group_line_read(st, c, FBY_CHUNK_LOG, line, &g) || (any && g.epoch <= out->epoch))
			continue;
		*out = (struct fby_open_line){ .kind = FBY_CHUNK_LOG, .owner = g.owner, .epoch = g.epoch, .seq_min = 1 };
		any = true;
	}
	return any;
}

bool fby_log_group_whole(const struct fby_store *st, const struct fby_group_line *g)
{
	u32 line = g->line + 1, previous = 0;

	for (u32 i = 0; i < g->records; i++) {
		struct fby_log_entry e;

		if (!fby_log_entry_read(st, g->chunk, line, &e) || e.epoch != g->epoch || e.log != g->owner ||
		    (i && e.previous != previous) || !fby_log_body_read(st, &e, NULL))
			return false;
		previous = line;
		line += fby_entry_lines(e.length);
	}
	return line == (u32)g->line + g->lines;
}

bool fby_log_first(const struct fby_store *st, u32 c, struct fby_open_line *out)
{
	struct fby_log_entry e;

	if (st->unit)
		return group_newest(st, c, out);
	if (!fby_log_entry_read(st, c, st->log_first, &e))
		return false;
	*out = (struct fby_open_line){ .kind = FBY_CHUNK_LOG, .owner = e.log, .epoch = e.epoch, .seq_min = 1 };
	return true;
}

bool fby_log_body_read(const struct fby_store *st, const struct fby_log_entry *e, void *dst)
{
	u32 lines = fby_entry_lines(e->length) - FBY_ENTRY_LINES, crc = 0;

	if (lines && !media_read_crc(st->media, dst, fby_log_line_at(st, e->chunk, e->line + FBY_ENTRY_LINES),
				     lines * FBY_LINE, &crc))
		return false;
	return crc == e->body_crc;
}

bool fby_log_header_sane(const struct fby_log_header *h)
{
	const struct fby_log_position *at = &h->at;

	return h->state <= FBY_LOG_REPLAYING && h->reserved == 0 && at->synced < FBY_NUMBER_END &&
	       at->gen < FBY_NUMBER_END && at->id < FBY_NUMBER_END && at->seal_gen < FBY_NUMBER_END &&
	       (at->seal_gen > 0 || h->state != FBY_LOG_REPLAYING) && counters_sane(&at->live, FBY_NUMBER_END) &&
	       counters_sane(&at->last, FBY_NUMBER_END) && counters_sane(&at->seal, FBY_NUMBER_END);
}
