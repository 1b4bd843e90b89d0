// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * chunk.c - commit slots, the chunks they append to, and sequence numbers.
 *
 * A slot belongs to one writer at a time and has at most one chunk open for
 * each volume, so all entries of a chunk are of one volume: an origin that
 * fails holds back its own chunks and no other's.
 *
 * Sequence numbers are handed to slots in blocks, so writers do not share the
 * counter's cache line for each write.  Two rules keep that sound: a write
 * takes a fresh block when its own numbers might not exceed that of a page it
 * replaces, and a slot shows in floor a bound below all it may still publish,
 * which the destage cut respects.
 */
#include "media.h"
#include "slot.h"

void fby_slot_retire(struct fby_slot *s)
{
	FBY_ASSERT(fby_load(&s->busy) == 1);
	s->seq_next = s->seq_end = 0;
	fby_store_release(&s->floor, FBY_NO_SEQ);
}

void fby_chunk_list_append(struct fby_pool *p, struct fby_volume *v, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	ch->next = FBY_NO_CHUNK;
	ch->prev = v->last;
	if (v->last != FBY_NO_CHUNK)
		p->chunk[v->last].next = c;
	else
		v->first = c;
	v->last = c;
	fby_store(&v->nchunks, v->nchunks + 1);
}

static void chunk_list_remove(struct fby_pool *p, struct fby_volume *v, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	FBY_ASSERT(v->nchunks > 0);
	if (ch->prev != FBY_NO_CHUNK)
		p->chunk[ch->prev].next = ch->next;
	else
		v->first = ch->next;
	if (ch->next != FBY_NO_CHUNK)
		p->chunk[ch->next].prev = ch->prev;
	else
		v->last = ch->prev;
	fby_store(&v->nchunks, v->nchunks - 1);
}

void fby_chunk_to_free(struct fby_pool *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	ch->state = FBY_CS_FREE;
	ch->volume = FBY_NO_VOLUME;
	ch->next = FBY_NO_CHUNK;
	if (p->nfree == 0)
		p->free_first = c;
	else
		p->chunk[p->free_last].next = c;
	p->free_last = c;
	fby_store(&p->nfree, p->nfree + 1);
}

/*
 * Pool lock held.  The pages of an empty chunk are superseded by durable ones
 * or below the watermark, so it may be opened again at once.  Whoever saw the
 * live count fall to 0 comes here, perhaps late: the chunk may be free by now,
 * or have been opened again.
 */
static void free_if_empty(struct fby_pool *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	/* Acquire: all that was done with its pages is done. */
	if (ch->state != FBY_CS_CLOSED || ch->pinned || fby_load_acquire(&ch->live) != 0)
		return;
	chunk_list_remove(p, &p->volume[ch->volume], c);
	fby_chunk_to_free(p, c);
}

void fby_chunk_free(struct fby_pool *p, u32 c, u32 *wake)
{
	fby_lock(&p->lock);
	free_if_empty(p, c);
	fby_unlock(&p->lock);
	if (fby_fetch_and(&p->wait_mask, ~(u32)FBY_WAKE_SPACE) & FBY_WAKE_SPACE)
		*wake |= FBY_WAKE_SPACE;
}

static u32 chunk_open(struct fby_pool *p, struct fby_slot *s, u16 volume, bool reserve)
{
	struct fby_open_line l = { .magic = FBY_OPEN_MAGIC, .kind = FBY_CHUNK_CACHE, .volume = volume };
	struct fby_chunk *ch;
	u32 c;

	fby_lock(&p->lock);
	if (p->nfree <= (reserve ? 0 : FBY_RESERVE_CHUNKS)) {
		fby_unlock(&p->lock);
		return FBY_NO_CHUNK;
	}
	c = p->free_first;
	ch = &p->chunk[c];
	p->free_first = ch->next;
	fby_store(&p->nfree, p->nfree - 1);
	FBY_ASSERT(ch->state == FBY_CS_FREE && fby_load(&ch->live) == 0);
	ch->state = FBY_CS_OPEN;
	ch->volume = volume;
	fby_store(&ch->fill, FBY_FIRST_PAGE);
	ch->sealed = ch->tick_fill = FBY_FIRST_PAGE;
	ch->last_block = FBY_NO_BLOCK;
	ch->opened_ns = fby_load(&p->now_ns);
	/* Release: who sees opens moved sees what was unlinked before; who sees
	 * the new epoch sees opens moved. */
	fby_store_release(&p->opens, p->opens + 1);
	if (!FBY_BUG(STALE_EPOCH))
		fby_store_release(&ch->epoch, ch->epoch + 1);
	fby_store(&ch->seq_max, FBY_NO_SEQ);
	fby_store(&ch->live, FBY_LIVE_BIAS);
	fby_store(&ch->seq_min, fby_load(&p->seq));
	ch->seq_last = ch->seq_min;
	fby_chunk_list_append(p, &p->volume[volume], c);
	fby_count(&p->chunks_opened, 1);
	fby_unlock(&p->lock);
	/* readers see the new epoch before any new byte, new entries after opens */
	fby_wmb();
	fby_slot_retire(s); /* so that no seq in the chunk is below seq_min */
	fby_store(&s->volume[volume].open, c);
	l.chunk = c;
	l.epoch = ch->epoch;
	l.seq_min = ch->seq_min;
	fby_line_finish(p->line_seed, &l);
	media_lines(p->media, fby_line_at(p, c, FBY_LINE_OPEN + (l.epoch & 1)), &l, FBY_LINE);
	/* Before any page line: else a crash could tear lines of the epoch before
	 * under an open line that still says that one. */
	if (!FBY_BUG(OPEN_NO_FENCE))
		media_fence_chunk(p, c);
	return c;
}

bool fby_slot_open(struct fby_pool *p, struct fby_slot *s, u16 volume, bool reserve, u32 *wake)
{
	FBY_ASSERT(s->volume[volume].open == FBY_NO_CHUNK);
	if (chunk_open(p, s, volume, reserve) == FBY_NO_CHUNK)
		return false;
	if (fby_load(&p->nfree) * 100ull <= (u64)p->sb.nchunks * (100 - p->opt.high_watermark))
		*wake |= FBY_WAKE_DESTAGE;
	fby_pace_update(p, volume);
	return true;
}

void fby_chunk_seal(struct fby_pool *p, u32 c, bool closed)
{
	struct fby_chunk *ch = &p->chunk[c];
	struct fby_seal_line l = { .magic = FBY_SEAL_MAGIC, .chunk = c };

	l.fill = (u16)ch->fill;
	l.closed = closed;
	l.counter = ++ch->seal_counter;
	l.epoch = ch->epoch;
	l.seq_max = ch->seq_last;
	l.last_block = ch->last_block;
	fby_line_finish(p->line_seed, &l);
	media_lines(p->media, fby_line_at(p, c, FBY_LINE_SEAL + (l.counter & 1)), &l, FBY_LINE);
	/* Before the chunk can be freed and sealed again by another CPU, whose
	 * store this one must not overtake. */
	media_fence_chunk(p, c);
	fby_store(&ch->sealed, ch->fill);
}

void fby_slot_close(struct fby_pool *p, struct fby_slot *s, u16 volume, u32 *wake)
{
	u32 c = s->volume[volume].open;
	struct fby_chunk *ch;
	u32 filled;

	FBY_ASSERT(fby_load(&s->busy) == 1);
	if (c == FBY_NO_CHUNK)
		return;
	ch = &p->chunk[c];
	filled = ch->fill - FBY_FIRST_PAGE;
	fby_chunk_seal(p, c, true);
	fby_store(&s->volume[volume].open, FBY_NO_CHUNK);
	fby_store(&ch->seq_max, ch->seq_last);
	fby_lock(&p->lock);
	ch->state = FBY_CS_CLOSED;
	fby_unlock(&p->lock);
	/* Once the bias is gone the chunk may be freed and opened again by others. */
	if (fby_fetch_add(&ch->live, filled - FBY_LIVE_BIAS) + filled == FBY_LIVE_BIAS)
		fby_chunk_free(p, c, wake);
}

/* Pool lock held. */
static void walk_unpin(struct fby_pool *p, u32 at)
{
	p->chunk[at].pinned = 0;
	free_if_empty(p, at);
}

u32 fby_chunk_walk(struct fby_pool *p, u16 volume, u32 after, u32 *wake)
{
	u32 c;

	fby_lock(&p->lock);
	c = after == FBY_NO_CHUNK ? p->volume[volume].first : p->chunk[after].next;
	if (c != FBY_NO_CHUNK)
		p->chunk[c].pinned = 1;
	if (after != FBY_NO_CHUNK)
		walk_unpin(p, after);
	fby_unlock(&p->lock);
	if (fby_load(&p->wait_mask) & FBY_WAKE_SPACE)
		*wake |= FBY_WAKE_SPACE;
	return c;
}

void fby_chunk_walk_end(struct fby_pool *p, u32 at, u32 *wake)
{
	if (at == FBY_NO_CHUNK)
		return;
	fby_lock(&p->lock);
	walk_unpin(p, at);
	fby_unlock(&p->lock);
	if (fby_load(&p->wait_mask) & FBY_WAKE_SPACE)
		*wake |= FBY_WAKE_SPACE;
}
