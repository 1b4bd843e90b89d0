// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * regroup.c - pages whose group could not be written are appended again, in another chunk, from the
 * image.  They keep their order and their tickets, and get sequence numbers of the new chunk.
 */
#include "cache/index.h"
#include "space/slot.h"

/* The index shows the page in its new place, if it shows it at all. */
static void relink(struct fby_cache *p, u64 key, u32 from, u32 to)
{
	u32 b = fby_index_bucket(p, key), state;

	while (!fby_index_try(p, b)) /* whoever holds it waits for no slot */
		fby_relax();
	if (fby_index_get_locked(p, b, key) == from && !FBY_BUG(PAGES_FAILED_STAY)) {
		state = fby_load(&p->entry[from].state);
		fby_index_put_locked(p, b, key, to, state, from);
	}
	fby_index_release(p, b);
}

/* Copies the page to its new place. */
static bool copy_content(struct fby_cache *p, struct fby_slot *s, u32 from, u32 to)
{
	const struct fby_store *st = &p->space->store;

	if (!media_read(st->media, s->scratch, fby_page_at(st, from), FBY_PAGE))
		return false;
	(void)media_data(st->media, fby_page_at(st, to), s->scratch, FBY_PAGE, 0, false);
	return true;
}

/* Any two groups fit into a chunk. */
static bool move_page(struct fby_cache *p, struct fby_slot *s, u16 volume, u32 from)
{
	const struct fby_store *st = &p->space->store;
	u32 c = s->volume[volume].open, place = fby_place_of_line(fby_stream_line(p->space, volume));
	u32 to = fby_page_number(p->space, c, place);
	struct fby_chunk *ch = &p->space->chunk[c];
	struct fby_page_line *l = &s->line[0];

	if (!fby_page_line(p->space, from, l, NULL) || !copy_content(p, s, from, to))
		return false;
	if (!FBY_BUG(PAGES_AGAIN_OLD_NUMBER))
		l->seq = fby_slot_seq(p->space, s, 1, false);
	l->epoch = ch->epoch;
	l->prev_block = ch->last_block;
	l->prev_seq = ch->last_block != FBY_NO_BLOCK ? ch->seq_last : 0;
	l->chunk = c;
	l->page = (u16)place;
	l->batch_first = (u16)place;
	l->batch_count = 1;
	fby_line_finish(st->line_seed, l);
	media_lines(st->media, fby_line_at(st, c, place), l, FBY_LINE);
	(void)fby_stream_pages_join(p->space, volume, c, l, 1);
	ch->last_block = l->block;
	ch->seq_last = l->seq;
	fby_store(&ch->fill, place + 1);
	/* One more was appended, and one more is dead. */
	fby_count(&s->volume[volume].pages, 1);
	relink(p, fby_key(volume, l->block), from, to);
	fby_store_release(&s->volume[volume].dead, fby_load(&s->volume[volume].dead) + 1);
	fby_stream_pages_moved(p->space, volume, from, to);
	return true;
}

static bool move_group(struct fby_cache *p, struct fby_slot *s, u16 volume, const struct fby_group *g)
{
	u32 place = fby_place_of_line(g->line) + 1, end = fby_place_of_line(g->end);

	if (place == end) {
		fby_stream_pages_none(p->space, s, volume);
		return true;
	}
	for (; place < end; place++)
		if (!move_page(p, s, volume, fby_page_number(p->space, g->chunk, place)))
			return false;
	return true;
}

int fby_cache_again(struct fby_cache *p, u16 volume, u32 *wake)
{
	struct fby_slot *s = fby_stream_slot(p->space, volume);
	struct fby_group moved[2];
	u32 n;
	int rc;

	if (!fby_slot_try(s))
		return FBY_WAIT_SLOT;
	rc = fby_stream_move(p->space, s, volume, moved, &n, wake);
	if (rc == FBY_DONE) {
		for (u32 i = 0; i < n && rc == FBY_DONE; i++) {
			if (!move_group(p, s, volume, &moved[i]))
				rc = -FBY_E_MEDIUM; /* the image is damaged */
			else if (i + 1 < n)
				fby_stream_close(p->space, volume);
		}
		fby_stream_moved(p->space, volume, rc == FBY_DONE, wake);
		fby_store_release(&s->floor, s->seq_next < s->seq_end ? s->seq_next : FBY_NO_SEQ);
	}
	fby_slot_give(p->space, s, wake);
	return rc == FBY_AGAIN ? FBY_DONE : rc;
}
