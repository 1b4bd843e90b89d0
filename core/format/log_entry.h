/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log_entry.h - entries of a log on a pool's media: where they are, and when bytes count as one.
 */
#ifndef FBY_LOG_ENTRY_H
#define FBY_LOG_ENTRY_H

#include "format/log_format.h"
#include "format/store.h"

/* Lines of a chunk; entries, and the groups of a grouped pool, lie in [log_first, this). */
static inline u32 fby_log_lines(const struct fby_store *st)
{
	return st->sb.chunk_size / FBY_LINE;
}

static inline u64 fby_log_line_at(const struct fby_store *st, u32 c, u32 line)
{
	return fby_chunk_at(st, c) + (u64)line * FBY_LINE;
}

/* Converts between the first line after a chunk's entries and the chunk's fill. */
static inline u32 fby_log_line_of(const struct fby_store *st, u32 fill)
{
	return fill - st->first_page + st->log_first;
}

static inline u32 fby_log_fill_of(const struct fby_store *st, u32 line)
{
	return line - st->log_first + st->first_page;
}

/* The first line after what a chunk of a grouped pool has, by its kind and fill. */
static inline u32 fby_fill_line(const struct fby_store *st, u32 kind, u32 fill)
{
	return kind == FBY_CHUNK_LOG ? fby_log_line_of(st, fill) : fill * FBY_GROUP_PAGE_LINES;
}

/* Lines of an entry with a body of so many bytes. */
static inline u32 fby_entry_lines(u32 length)
{
	return FBY_ENTRY_LINES + (length + FBY_LINE - 1) / FBY_LINE;
}

/* The line of the first group that may begin at or after this one.  In memory each line may. */
static inline u32 fby_group_start(const struct fby_store *st, u32 line)
{
	return st->unit ? (u32)fby_round_up(line, st->unit / FBY_LINE) : line;
}

/* The lines that a group of one record may take, so that two such groups fit into one chunk. */
static inline u32 fby_group_most(const struct fby_store *st)
{
	u32 half = (fby_log_lines(st) - st->log_first) / 2;

	return half & ~(st->unit / FBY_LINE - 1);
}

/* The longest body: one entry alone in a chunk, or in a group. */
static inline u32 fby_entry_most(const struct fby_store *st)
{
	u32 lines = st->unit ? fby_group_most(st) - 1 : fby_log_lines(st) - st->log_first;

	return (lines - FBY_ENTRY_LINES) * FBY_LINE;
}

void fby_log_entry_finish(const struct fby_store *st, struct fby_log_entry *e);
/* Copies the header that begins at the line and checks that it is of this place, and of this
 * epoch or an earlier one.  False: there is none. */
bool fby_log_entry_read(const struct fby_store *st, u32 c, u32 line, struct fby_log_entry *e);
/* Reads the open line that the chunk's first entry refers to, or its newest group.  False: the
 * chunk has no entry. */
bool fby_log_first(const struct fby_store *st, u32 c, struct fby_open_line *out);
/* Does the body match its header?  Copies it to dst (whole lines), unless dst is NULL. */
bool fby_log_body_read(const struct fby_store *st, const struct fby_log_entry *e, void *dst);
/* Is each record of the group there, header and body? */
bool fby_log_group_whole(const struct fby_store *st, const struct fby_group_line *g);
bool fby_log_header_sane(const struct fby_log_header *h);

#endif
