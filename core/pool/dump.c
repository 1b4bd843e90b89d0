// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * dump.c - examines a pool for tools: the state of a chunk, the content of a line, whether its
 * data is sound.  It only reads.
 */
#include "pool/parts.h"

int fby_chunk_info(struct fby_pool *p, u32 chunk, struct fby_chunk_info *out)
{
	const struct fby_chunk *ch;

	fby_zero(out, sizeof(*out));
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (chunk >= p->space.store.sb.nchunks)
		return -FBY_E_GEOMETRY;
	ch = &p->space.chunk[chunk];
	fby_lock(&p->space.lock);
	out->number = chunk;
	out->kind = ch->kind;
	out->volume = ch->owner;
	out->state = ch->state;
	out->epoch = fby_load(&ch->epoch);
	out->seq_min = fby_load(&ch->seq_min);
	out->seq_max = ch->state == FBY_CS_OPEN ? ch->seq_last : fby_load(&ch->seq_max);
	out->fill = fby_load(&ch->fill);
	out->live = fby_chunk_live(&p->space, chunk);
	fby_unlock(&p->space.lock);
	return FBY_DONE;
}

u32 fby_refused_pages(struct fby_pool *p, u16 volume, u64 *first)
{
	u32 n = 0, end = fby_page_number(&p->space, p->space.store.sb.nchunks, 0);

	*first = FBY_NO_SEQ;
	for (u32 page = 0; p->space.usable && page < end; page++) {
		const struct fby_entry *e = &p->cache.entry[page];
		u32 state = fby_load(&e->state);
		u64 key = fby_load(&e->key);

		if (!(state & FBY_ES_LINKED) || !(state & FBY_ES_REFUSED) || (state & FBY_ES_CLEAN) ||
		    key >> FBY_BLOCK_BITS != volume)
			continue;
		if (fby_key_block(key) < *first)
			*first = fby_key_block(key);
		n++;
	}
	return n;
}

int fby_entry_info(struct fby_pool *p, u32 chunk, u32 page, bool check_data, struct fby_entry_info *out)
{
	const struct fby_entry *e;
	u32 number;

	fby_zero(out, sizeof(*out));
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (chunk >= p->space.store.sb.nchunks || page < p->space.store.first_page || page >= p->space.store.chunk_pages)
		return -FBY_E_GEOMETRY;
	number = fby_page_number(&p->space, chunk, page);
	e = &p->cache.entry[number];
	out->valid = fby_page_line_read(&p->space, chunk, page, &out->line, NULL);
	out->current = out->valid && out->line.epoch == fby_load(&p->space.chunk[chunk].epoch);
	out->linked = (fby_load(&e->state) & FBY_ES_LINKED) &&
		      (!out->valid || fby_load(&e->key) == fby_key(out->line.volume, out->line.block));
	out->data_ok = out->valid && (!check_data || fby_page_data_ok(&p->cache, number, &out->line));
	return FBY_DONE;
}

int fby_log_entry_info(struct fby_pool *p, u32 chunk, struct fby_log_cursor *at, bool check_data,
		       struct fby_log_entry_info *out)
{
	const struct fby_store *st = &p->space.store;
	const struct fby_chunk *ch;
	struct fby_log_walk w;

	fby_zero(out, sizeof(*out));
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (chunk >= st->sb.nchunks)
		return -FBY_E_GEOMETRY;
	ch = &p->space.chunk[chunk];
	if (ch->owner == FBY_NO_OWNER || ch->kind != FBY_CHUNK_LOG)
		return -FBY_E_NO_LOG;
	w = fby_log_walk(st, chunk, fby_log_line_of(st, fby_load(&ch->fill)));
	if (at->line > w.end) /* the cursor is not one that this call returned */
		return FBY_DONE;
	if (at->line > w.line) {
		w.line = at->line;
		w.last = at->last;
	}
	out->found = fby_log_next(&p->space, &w, &out->entry);
	at->line = w.line;
	at->last = w.last;
	if (!out->found)
		return FBY_DONE;
	out->gap = w.gap;
	out->data_ok = check_data && fby_log_body_read(st, &out->entry, NULL);
	fby_log_node_of(st, &out->entry, &out->node);
	return FBY_DONE;
}
