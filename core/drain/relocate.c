// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * relocate.c - moves live pages out of mostly dead chunks.
 *
 * Random overwrites leave dead pages in every chunk of the log.  Without relocation the pool
 * would fill with them, and destage would write hot pages to the origin only to free their space.
 * So when few chunks are free the live pages of the emptiest are appended once more, as a writer
 * of the same bytes would append them, and the chunk is free: the cleaning of a log-structured
 * file system (Rosenblum and Ousterhout, 1992), greedy among a sample of chunks, with a bound on
 * live pages, so that a write costs at most one more.  Destage handles live pages, and relocation
 * yields to it if entries grow old or the volume is drained, as long as the origin works.
 *
 * Bytes that were acknowledged long ago must not be mistaken for a torn tail, so the source chunk
 * is kept until the copies are sealed.
 */
#include "drain/drain.h"
#include "space/slot.h"

#define LOOK 256u /* chunks compared at once */
#define SOON_NS 2000000000u /* a round ends within this time, unless its origin is slow */

/* Did the origin's last request fail, or has a round been under way for long? */
static bool stands_still(const struct fby_drain *p, const struct fby_destage *d)
{
	return d->backoff_ns || d->refused.waits || (d->phase >= FBY_PH_WRITE && d->phase <= FBY_PH_FLUSHING &&
				 p->space->now_ns - d->plan.began_ns >= SOON_NS);
}

/* Has the origin also completed nothing for that long?  Its flush may take twice the usual time. */
static bool hangs(const struct fby_drain *p, const struct fby_destage *d)
{
	u64 most = d->phase == FBY_PH_FLUSHING ? 2ull * d->plan.flush_ns : 0;

	return d->backoff_ns || d->refused.waits || p->space->now_ns - d->heard_ns >= (most > SOON_NS ? most : SOON_NS);
}

/* Is destage about to release the chunk's pages?  If relocation moved them now, the copies would
 * stay, in room that was opened to carry lost blocks: round after round, without use. */
static bool let_go_soon(const struct fby_destage *d, const struct fby_chunk *ch)
{
	return d->phase >= FBY_PH_CARRY && d->phase <= FBY_PH_RELEASE && ch->seq_min <= d->cut;
}

/*
 * Would the origin soon have the chunk's pages?
 *  - All of the volume is to go there, as fast as it takes that.
 *  - What the round before left of a chunk is the oldest there is, and first in the next:
 *    moved, it would come last, and the pool would lose a copy's room.
 *  - Of a round that is under way they would be dirty again in a new place; and when what
 *    is kept has gone ahead, little else is left of it.
 */
static bool home_soon(const struct fby_drain *p, const struct fby_destage *d, const struct fby_chunk *ch)
{
	if (fby_load(&d->drain) || fby_volume_aged(p, ch->owner))
		return true;
	if (d->phase >= FBY_PH_WRITE && d->phase <= FBY_PH_FLUSHING && d->ahead && ch->seq_min <= d->cut)
		return true;
	return p->space->pressure && ch->seq_min <= p->space->owner[ch->owner].rec.watermark;
}

/* Pool lock held: number of pages to move to free the chunk; ~0: not worth it, or not allowed. */
static u32 price(struct fby_drain *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	const struct fby_destage *d = &p->volume[ch->owner].destage;
	u32 live;

	if (ch->state != FBY_CS_CLOSED || ch->pinned || ch->stays)
		return ~0u;
	if (!p->space->owner[ch->owner].attached || let_go_soon(d, ch))
		return ~0u;
	/* Unless the volume stands still: writers would wait for it in a pool of dead pages.  A
	 * drain waits for the copies made meanwhile; with a slow but working origin it would
	 * never end. */
	if (home_soon(p, d, ch) &&
	    (!stands_still(p, d) || (fby_load(&d->drain) && !hangs(p, d) && !FBY_BUG(SLOW_TAKEN_FOR_HUNG)) ||
	     FBY_BUG(HANG_STOPS_RELOCATION))) {
		p->look_again_ns = p->space->now_ns + SOON_NS;
		return ~0u;
	}
	live = fby_chunk_live(p->space, c);
	return 2 * live <= p->space->store.chunk_pages - p->space->store.first_page ? live : ~0u;
}

/* Returns the cheapest of the next chunks, pinned; or none. */
static u32 choose(struct fby_drain *p)
{
	u32 best = FBY_NO_CHUNK, least = ~0u;

	fby_lock(&p->space->lock);
	for (u32 i = 0; i < LOOK && p->look_left > 0; i++, p->look_left--) {
		u32 cost = price(p, p->look);

		if (cost < least) {
			least = cost;
			best = p->look;
		}
		p->look = p->look + 1 < p->space->store.sb.nchunks ? p->look + 1 : 0;
	}
	if (best != FBY_NO_CHUNK)
		p->space->chunk[best].pinned |= FBY_PIN_MOVED;
	fby_unlock(&p->space->lock);
	return best;
}

/*
 * Moving a page must not reset its age.  When the watermark has passed all pages moved before
 * some time, each of them was written, or moved again and noted again, so the older note is void.
 * The oldest age is therefore kept for two spans of time, and a volume does not count as old for
 * longer than it is.
 */
void fby_moved_note(struct fby_drain *p, u16 volume, u64 since_ns)
{
	struct fby_drained *v = &p->volume[volume];
	u64 watermark = p->space->owner[volume].rec.watermark;

	if (v->moved_last <= watermark)
		v->moved_ns = FBY_NO_SEQ;
	if (v->moved_since <= watermark) {
		v->moved_before_ns = v->moved_ns;
		v->moved_ns = FBY_NO_SEQ;
		v->moved_since = v->moved_last;
	}
	if (since_ns < v->moved_ns)
		v->moved_ns = since_ns;
	fby_store(&v->moved_last, fby_load_acquire(&p->space->seq) - 1);
	fby_count(&v->moved, 1);
}

/* False: there is no room or no slot now. */
static bool move_pages(struct fby_drain *p, u32 c, u32 *wake)
{
	struct fby_chunk *ch = &p->space->chunk[c];
	u32 end = fby_page_number(p->space, c, ch->fill), slot;
	bool stays = true; /* nothing in it can be moved */

	for (u32 page = fby_page_number(p->space, c, p->space->store.first_page); page < end; page++) {
		const struct fby_entry *e = &p->cache->entry[page];
		u64 since_ns = fby_page_since(p->cache, page);
		bool refused = fby_load(&e->state) & FBY_ES_REFUSED;
		int decision;

		if (!(fby_load_acquire(&e->state) & FBY_ES_LINKED))
			continue;
		decision = fby_move(p->cache, ch->owner, fby_key_block(fby_load(&e->key)), page,
				    FBY_BEGIN_RELOCATE, &slot, wake);
		if (decision == FBY_WAIT_SPACE || decision == FBY_WAIT_SLOT || decision == FBY_WAIT_TICKET || decision < 0)
			return false;
		stays = stays && decision == FBY_DONE && slot == ~0u;
		if (decision != FBY_DONE || slot == ~0u)
			continue;
		p->moved_slots |= 1ull << slot;
		fby_moved_note(p, ch->owner, since_ns);
		if (refused)
			p->volume[ch->owner].destage.refused.last = p->volume[ch->owner].moved_last;
	}
	/* Otherwise it would be the cheapest again, step after step without end. */
	ch->stays = stays;
	return true;
}

/* Pool lock is taken: the chunk may be freed now. */
static void let_go(struct fby_drain *p, u32 *wake)
{
	u32 c = p->moved_from;

	p->moved_from = FBY_NO_CHUNK;
	p->moved_slots = 0;
	fby_chunk_unpin(p->space, c, FBY_PIN_MOVED, wake);
}

/* A grouped pool holds the chunks that the copies came from until no cut takes the copies back, and
 * until damage of a copy cannot pass for a torn group. */
static bool settle_copies(struct fby_drain *p, u16 volume, u64 *slots)
{
	struct fby_slot *s = fby_stream_slot(p->space, volume);
	u32 wake = 0;

	if (*slots == 0)
		return true;
	if (!fby_slot_try(s))
		return false;
	if (fby_stream_settle(p->space, s, volume, FBY_SETTLE_COPIES, &wake) || FBY_BUG(PAGES_COPY_UNSETTLED))
		*slots = 0;
	fby_slot_give_owed(p->space, s);
	if (wake)
		fby_fetch_or(&p->space->wake_owed, wake);
	return *slots == 0;
}

bool fby_seal_copies(struct fby_drain *p, u16 volume, u64 *slots)
{
	if (fby_unlikely(p->space->store.unit))
		return settle_copies(p, volume, slots);
	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		struct fby_slot *s = &p->space->slot[i];

		if (!(*slots >> i & 1) || !fby_slot_try(s))
			continue;
		fby_slot_seal(p->space, s, volume, false);
		fby_slot_give_owed(p->space, s);
		*slots &= ~(1ull << i);
	}
	return *slots == 0;
}

static bool seal_moved(struct fby_drain *p)
{
	return fby_seal_copies(p, p->space->chunk[p->moved_from].owner, &p->moved_slots);
}

bool fby_relocate_sealed(struct fby_drain *p, u16 volume)
{
	return p->moved_from == FBY_NO_CHUNK || p->space->chunk[p->moved_from].owner != volume || seal_moved(p);
}

void fby_relocate_settle(struct fby_drain *p, u16 volume, u32 *wake)
{
	if (p->moved_from != FBY_NO_CHUNK && p->space->chunk[p->moved_from].owner == volume)
		let_go(p, wake);
}

bool fby_relocate_step(struct fby_drain *p, u32 *wake)
{
	u64 opened = fby_load(&p->space->chunks_opened);
	bool room;
	u32 c;

	if (p->moved_from != FBY_NO_CHUNK) {
		if (!seal_moved(p))
			return !p->space->store.unit; /* there it waits for requests to end */
		let_go(p, wake);
		return true;
	}
	if (p->look_again_ns && p->space->now_ns >= p->look_again_ns) {
		p->look_again_ns = 0;
		p->space->looked_opens = FBY_NO_SEQ;
	}
	if (!fby_short(p->space) || p->space->looked_opens == opened)
		return false;
	if (p->look_left == 0)
		p->look_left = p->space->store.sb.nchunks;
	c = choose(p);
	if (c == FBY_NO_CHUNK) {
		if (p->look_left == 0)
			p->space->looked_opens = opened;
		return p->look_left > 0;
	}
	room = move_pages(p, c, wake);
	p->look_left = 0;
	p->moved_from = c;
	if (seal_moved(p))
		let_go(p, wake);
	return room;
}
