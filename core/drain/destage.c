// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * destage.c - writes cached pages back to the origin, in rounds, each for one volume:
 *
 *	collect	choose the cut, a sequence number; list every linked page at or
 *		below it (superseded pages cost nothing), sorted by block
 *	plan	choose which of these are written, and which are kept (plan.c)
 *	write	to the origin, neighbours merged into large requests; a neighbour
 *		above the cut is written along, and when the flush is done it is
 *		clean: a later round releases it without writing it
 *	flush	the origin
 *	carry	append kept pages and lost blocks as fresh entries, so that
 *		the cut can pass them, and seal these. Kept pages are appended while the origin
 *		is still busy
 *	commit	the watermark, durable
 *	release	the pages
 *
 * A round writes each block once, and the next round begins when it has ended: there are never
 * two origin writes for a block in flight.  Pages that the origin refuses are carried, too
 * (refused.c).  If the flush fails, or the origin takes nothing, destage abandons the round and
 * releases nothing; a new one begins after a pause.
 */
#include "cache/index.h"
#include "cache/static_requests.h"
#include "drain/planted_round.h"
#include "space/slot.h"

#define BACKOFF_MIN_NS 100000000ull
#define BACKOFF_MAX_NS 30000000000ull
#define RELEASE_STEP 256u /* pages released in one step */
#define FORWARD_STEP 64u  /* pages copied in one step */
#define AHEAD_STEP 16u	  /* pages copied in one step while the origin may need the next request */

static void go_on_to(struct fby_drain *p, u16 volume, enum fby_phase next)
{
	fby_planted_phase(p, volume, next);
	fby_store(&p->volume[volume].destage.phase, next);
}

/* --- carry ------------------------------------------------------------------- */

/* No room to carry the pages from page[pos] on: lowers the cut below them.  The older pages are
 * released, which may make room for the next round.  False: nothing is older. */
static bool carry_less(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 cut = d->cut;
	u32 n = 0;

	for (u32 i = d->pos; i < d->n; i++) {
		const struct fby_round_page *r = &d->page[i];
		u64 seq = fby_page_seq(p->cache, r->page, fby_load(&fby_chunk_of(p->space, r->page)->seq_min));

		if ((r->keep || r->carry != FBY_CARRY_NO) && fby_round_listed(p, volume, r, d->cut) && seq <= cut)
			cut = seq - 1;
	}
	if (cut <= p->space->owner[volume].rec.watermark)
		return false;
	for (u32 i = 0; i < d->n; i++) /* pages above the cut stay until a later round */
		if (fby_page_seq(p->cache, d->page[i].page, FBY_NO_SEQ) <= cut)
			d->page[n++] = d->page[i];
	d->n = n;
	d->cut = cut;
	return true;
}

/* While copies of acknowledged or lost pages may be mistaken for a torn tail, no chunk that they
 * come from is opened again. */
static void hold_chunks(struct fby_drain *p, u16 volume, bool held)
{
	struct fby_owner *o = &p->space->owner[volume];

	if (o->held == held)
		return;
	fby_lock(&p->space->lock);
	o->held = held;
	fby_unlock(&p->space->lock);
}

/* Carries the page forward in the log: as it is, or only the mark that it is lost. */
static int forward(struct fby_drain *p, u16 volume, struct fby_round_page *r, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 since_ns = fby_page_since(p->cache, r->page);
	int decision;
	u32 slot;

	hold_chunks(p, volume, true);
	if (r->keep || r->carry == FBY_CARRY_REFUSED) {
		bool refused = !r->keep;

		/* A drain waits for the numbers given out before it began, and a copy has a
		 * higher one.  So nothing is kept any more, as if there were no room. */
		if (!refused && fby_load(&d->drain) && !FBY_BUG(DRAIN_KEEPS))
			return FBY_WAIT_SPACE;
		decision = fby_move(p->cache, volume, r->k, r->page, !refused ? FBY_BEGIN_RELOCATE :
				    FBY_BEGIN_REFUSED | (d->refused.reserve ? FBY_BEGIN_RESERVE : FBY_BEGIN_RELOCATE),
				    &slot, wake);
		if (decision != FBY_DONE)
			return decision;
		if (slot != ~0u) {
			d->copied_slots |= 1ull << slot;
			/* Its age must not count: it is retried anyway, and an old page would
			 * make destage write the whole volume at once. */
			fby_moved_note(p, volume, refused || FBY_BUG(KEPT_AGE_LOST) ? p->space->now_ns : since_ns);
			if (refused)
				d->refused.last = p->volume[volume].moved_last;
			return FBY_DONE;
		}
		if (!fby_round_listed(p, volume, r, d->cut)) /* overwritten meanwhile */
			return FBY_DONE;
		r->keep = false;
		r->carry = FBY_CARRY_DAMAGED;
		fby_page_mark(p->cache, r->page, fby_key(volume, r->k), FBY_ES_DAMAGED);
	}
	decision = fby_carry(p->cache, volume, r->k, r->page, r->carry == FBY_CARRY_DAMAGED, &slot, wake);
	if (decision == FBY_DONE && slot != ~0u && !FBY_BUG(CARRIED_UNSEALED))
		d->copied_slots |= 1ull << slot;
	return decision;
}

/* True: all copies are sealed, and chunks may be freed. */
static bool seal_kept(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (FBY_BUG(KEPT_UNSEALED))
		d->copied_slots = 0;
	if (!fby_seal_copies(p, volume, &d->copied_slots))
		return false;
	hold_chunks(p, volume, false);
	return true;
}

/* These chunks hold nothing above the cut, so most are empty now. */
static void release_chunks(struct fby_drain *p, u16 volume, u64 cut, u32 *wake)
{
	u32 c = FBY_NO_CHUNK;

	do
		c = fby_chunk_walk(p->space, volume, c, wake);
	while (c != FBY_NO_CHUNK && fby_load(&p->space->chunk[c].seq_min) <= cut);
	fby_chunk_walk_end(p->space, c, wake);
}

static int no_room(struct fby_drain *p, u16 volume, const struct fby_round_page *r)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (carry_less(p, volume))
		return FBY_DONE;
	if (r->keep) { /* the next round writes it */
		d->plan.no_room = true;
		fby_fullness_judge(p->space, volume, FBY_COPIES_DEAR);
		go_on_to(p, volume, FBY_PH_IDLE);
		return FBY_AGAIN;
	}
	if (r->carry == FBY_CARRY_REFUSED)
		d->refused.narrow = true;
	else /* more pages are lost than the reserve holds */
		fby_store(&d->lost_stuck, true);
	d->failed = true;
	go_on_to(p, volume, FBY_PH_BACKOFF);
	return FBY_AGAIN;
}

static bool goes_forward(struct fby_drain *p, u16 volume, struct fby_round_page *r)
{
	if (r->keep && fby_round_is_clean(p, volume, r->page, fby_load(&p->cache->entry[r->page].state)))
		r->keep = false; /* it was written along */
	return (r->keep || r->carry != FBY_CARRY_NO) && !(r->keep && FBY_BUG(KEPT_NOT_MOVED)) &&
	       !(r->carry == FBY_CARRY_REFUSED && FBY_BUG(REFUSED_NOT_MOVED)) &&
	       fby_round_listed(p, volume, r, p->volume[volume].destage.cut);
}

/*
 * Carries kept pages while the origin is busy, if no later request of the round can reach their
 * blocks.  If the round fails, they were merely relocated.  Rounds that retry do not carry ahead
 * again, so a failing origin does not spread its pages over the pool.  This takes only room that
 * is free: carry_step handles the case without room, and none is taken while writers wait for it.
 * True: call again.
 */
static bool carry_ahead(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u32 n = 0;

	if (d->failed || d->backoff_ns || fby_starved(p->space))
		return false;
	for (; d->ahead < d->pos && n < AHEAD_STEP; d->ahead++) {
		struct fby_round_page *r = &d->page[d->ahead];

		if (d->pos < d->n && r->k >= d->issued)
			break;
		if (!r->keep || !goes_forward(p, volume, r))
			continue;
		if (forward(p, volume, r, wake) != FBY_DONE)
			break;
		n++;
	}
	(void)seal_kept(p, volume);
	d->plan.copied = n > 0;
	return n > 0;
}

/* In a grouped pool copies have to wait for requests.  When these end, destage looks again. */
static int waits(const struct fby_drain *p, int decision)
{
	return p->space->store.unit && (decision == FBY_WAIT_TICKET || decision < 0) ? FBY_DONE : FBY_AGAIN;
}

static int carry_step(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	for (u32 n = 0; d->pos < d->n && n < FORWARD_STEP; d->pos++) {
		struct fby_round_page *r = &d->page[d->pos];
		bool held = p->space->owner[volume].held;
		int decision;

		if (!goes_forward(p, volume, r))
			continue;
		decision = forward(p, volume, r, wake);
		n++;
		if (decision == FBY_WAIT_SPACE) {
			if (!seal_kept(p, volume))
				return waits(p, FBY_WAIT_TICKET);
			/* again: the chunks that were held, or the pages carried ahead, may give
			 * room */
			if (held || d->ahead) {
				d->ahead = 0;
				release_chunks(p, volume, d->cut, wake);
				return FBY_AGAIN;
			}
			decision = no_room(p, volume, r);
			if (decision != FBY_DONE)
				return decision;
			d->pos = d->n;
			break;
		}
		if (decision != FBY_DONE)
			return waits(p, decision);
	}
	/* Relocation's copies must be sealed, too: the watermark may pass their sources. */
	if (!seal_kept(p, volume) || (d->pos == d->n && !fby_relocate_sealed(p, volume)))
		return waits(p, FBY_WAIT_TICKET);
	if (d->pos == d->n) {
		d->ticket = p->space->store.unit ? fby_stream_appended(p->space, volume) : 0;
		go_on_to(p, volume, FBY_PH_COMMIT);
	}
	return FBY_AGAIN;
}

/* --- write, flush, commit, release --------------------------------------------- */

static int write_step(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_build b = { 0 };
	u32 id, most = d->refused.doubt ? 1 : fby_pace_depth(p, volume);
	bool heals = fby_refused_heals(d);

	if (d->failed || heals || d->outstanding >= most || d->pos == d->n || !fby_flight_room(d, &id)) {
		if (d->outstanding == 0 && heals) {
			go_on_to(p, volume, fby_refused_cut_short(p, volume));
			return FBY_AGAIN;
		}
		if (d->outstanding == 0) {
			fby_pace_adapt(&p->volume[volume].pace, d->nrequests);
			fby_plan_written(p, volume);
			go_on_to(p, volume, d->failed ? FBY_PH_BACKOFF :
				 d->rescue.round ? FBY_PH_FLUSH : fby_refused_judge(p, volume));
			return FBY_AGAIN;
		}
		return carry_ahead(p, volume, wake) ? FBY_AGAIN : FBY_DONE;
	}
	b.buf = d->io[id].buf;
	b.max = d->buffer_sectors;
	fby_round_request(p, volume, &b);
	if (b.n == 0)
		return FBY_AGAIN;
	d->plan.requests++;
	d->io[id].again = b.again;
	io->op = b.op;
	io->sector = b.sector;
	io->nsectors = b.n;
	io->buf = b.op == FBY_IO_WRITE ? b.buf : NULL;
	io->id = volume * 64u + id;
	return FBY_ORIGIN;
}

int fby_round_flush(struct fby_drain *p, u16 volume, struct fby_io *io)
{
	struct fby_cached *cv = &p->cache->volume[volume];
	struct fby_destage *d = &p->volume[volume].destage;

	if (!d->gate && !fby_gate_destage(cv))
		return FBY_DONE;
	d->gate = true;
	/* The gate is held from the start, so that this happens only once in a round. */
	if (fby_load_acquire(&cv->gate.lost) != d->lost && !FBY_BUG(HOST_FAILURE_IGNORED))
		return FBY_AGAIN;
	d->gate = false; /* the request owns the gate now */
	fby_gate_destage_sends(cv);
	io->op = FBY_IO_FLUSH;
	io->id = volume * 64u;
	io->sector = io->nsectors = 0;
	io->buf = NULL;
	return FBY_ORIGIN;
}

static int flush_step(struct fby_drain *p, u16 volume, struct fby_io *io)
{
	int decision = fby_round_flush(p, volume, io);

	if (decision != FBY_DONE)
		go_on_to(p, volume, decision == FBY_ORIGIN ? FBY_PH_FLUSHING : FBY_PH_IDLE);
	return decision;
}

/*
 * In a grouped pool the watermark passes pages that were replaced by others, which a cut may take
 * back, and then the replaced ones have to be there.  So it waits for all that was appended until
 * the round had its last look.
 */
static bool replaced_durable(struct fby_drain *p, u16 volume)
{
	u64 ticket = p->volume[volume].destage.ticket;

	return fby_stream_ticket(p->space, ticket) == FBY_TICKET_DURABLE || FBY_BUG(PAGES_WATERMARK_EARLY);
}

static int commit(struct fby_drain *p, u16 volume)
{
	struct fby_owner *o = &p->space->owner[volume];
	struct fby_drained *v = &p->volume[volume];

	if (fby_unlikely(v->destage.ticket) && !replaced_durable(p, volume))
		return FBY_DONE;
	if (v->destage.cut > o->rec.watermark) {
		fby_store_release(&o->rec.watermark, v->destage.cut); /* ordered after the last move */
		if (!FBY_BUG(FREE_BEFORE_WATERMARK))
			fby_owner_write(p->space, volume);
	}
	if (fby_rescues(p)) /* its record may not be there */
		return FBY_AGAIN;
	v->destage.pos = 0;
	go_on_to(p, volume, FBY_PH_RELEASE);
	return FBY_AGAIN;
}

/* False: the block is busy. */
static bool release_page(struct fby_drain *p, u16 volume, const struct fby_round_page *r, u64 cut)
{
	struct fby_owner *o = &p->space->owner[volume];
	struct fby_cached *cv = &p->cache->volume[volume];
	struct fby_drained *v = &p->volume[volume];
	u64 key = fby_key(volume, r->k);
	u32 b = fby_index_bucket(p->cache, key);
	u32 page, state;

	if (!fby_index_try(p->cache, b))
		return false;
	page = fby_planted_release(p, b, key);
	if (page == FBY_NO_PAGE && fby_round_listed(p, volume, r, cut) && !fby_planted_stays(r))
		page = r->page;
	if (page == FBY_NO_PAGE) {
		fby_index_release(p->cache, b);
		return true;
	}
	FBY_ASSERT(p, fby_index_get_locked(p->cache, b, key) == page);
	state = fby_load(&p->cache->entry[page].state);
	if ((state & FBY_ES_DAMAGED) || FBY_ES_LOST(state))
		fby_fetch_add(&cv->lost_blocks, ~0u);
	if (fby_lost_only(state))
		fby_fetch_add(&cv->lost_only, ~0u);
	if (fby_page_is_clean(p->cache, volume, page, state))
		fby_store(&o->cleaned, o->cleaned - 1);
	fby_index_del_locked(p->cache, b, page);
	fby_index_release(p->cache, b);
	fby_page_dead(p->space, page, fby_dead_row(p->space, NULL), &o->dead);
	fby_count(&v->pages_destaged, 1);
	return true;
}

static int release_step(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_drained *v = &p->volume[volume];
	struct fby_destage *d = &v->destage;

	for (u32 i = 0; i < RELEASE_STEP && d->pos < d->n; i++, d->pos++)
		if (!release_page(p, volume, &d->page[d->pos], d->cut))
			return FBY_AGAIN;
	if (d->pos < d->n)
		return FBY_AGAIN;
	release_chunks(p, volume, d->cut, wake);
	fby_count(&v->rounds, 1);
	fby_refused_passed(p, volume, p->space->owner[volume].rec.watermark);
	fby_store(&d->lost_stuck, false);
	d->backoff_ns = 0;
	d->refused.cut_short = false;
	d->n = 0;
	fby_owner_count(p->space, volume);
	fby_level_update(p->space, volume);
	go_on_to(p, volume, FBY_PH_IDLE);
	return FBY_AGAIN;
}

void fby_destage_settle(struct fby_drain *p, u16 volume)
{
	u32 wake = 0;

	while (p->volume[volume].destage.phase == FBY_PH_RELEASE)
		release_step(p, volume, &wake);
	hold_chunks(p, volume, false); /* all are closed */
	fby_fetch_or(&p->space->wake_owed, wake);
}

/* --- idle ------------------------------------------------------------------ */

/* Slot held. */
static bool open_is_empty(struct fby_drain *p, const struct fby_slot *s, u16 volume)
{
	u32 c = s->volume[volume].open;
	bool empty;

	fby_lock(&p->space->lock);
	empty = c != FBY_NO_CHUNK && fby_chunk_live(p->space, c) == 0;
	fby_unlock(&p->space->lock);
	return empty;
}

/* Closes the chunks that idle slots have open for the volume; empty: only those that become free. */
static void close_open_chunks(struct fby_drain *p, u16 volume, bool empty, u32 *wake)
{
	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		struct fby_slot *s = &p->space->slot[i];

		if (!fby_slot_try(s))
			continue;
		if (!empty || open_is_empty(p, s, volume))
			fby_slot_close(p->space, s, volume, wake);
		fby_slot_give(p->space, s, wake);
	}
}

static bool any_closed(struct fby_drain *p, u16 volume)
{
	bool found = false;

	fby_lock(&p->space->lock);
	for (u32 c = p->space->owner[volume].first; c != FBY_NO_CHUNK && !found; c = p->space->chunk[c].next)
		found = p->space->chunk[c].state == FBY_CS_CLOSED;
	fby_unlock(&p->space->lock);
	return found;
}

/* The device of the pool has failed. */
static int rescue_step(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (fby_rescued(p, volume)) {
		fby_store(&d->drain, false);
		return FBY_DONE;
	}
	fby_rescue_collect(p, volume, wake);
	if (d->n == 0 && !d->failed)
		return FBY_DONE;
	go_on_to(p, volume, d->n ? FBY_PH_PLAN : FBY_PH_BACKOFF);
	return FBY_AGAIN;
}

/* It has: nothing that the round needs becomes durable, so the round ends where it is. */
static void rescue_begin(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (d->phase == FBY_PH_CARRY || d->phase == FBY_PH_COMMIT)
		fby_rescue_flushed(p, volume);
	else if (d->phase != FBY_PH_PLAN || d->rescue.round)
		return;
	go_on_to(p, volume, FBY_PH_IDLE);
}

static int idle_step(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	/* This excludes chunks that no other volume could have: idle slots fill them. */
	bool needed = fby_starved(p->space) && fby_load(&p->space->owner[volume].nchunks) > p->space->entitled;

	/* Another volume may need the chunks that idle slots keep open without use.  One with lost
	 * blocks does not become free, and its room may be all that this volume can write to. */
	if (fby_starved(p->space) && fby_drain_clean(p, volume))
		close_open_chunks(p, volume, true, wake);
	if (!fby_destage_wanted(p, volume) || fby_refused_waits(p, volume))
		return FBY_DONE;
	if (d->drain || (needed && !any_closed(p, volume)))
		close_open_chunks(p, volume, false, wake);
	fby_round_collect(p, volume, wake);
	if (d->n == 0)
		return FBY_DONE;
	go_on_to(p, volume, FBY_PH_PLAN);
	return FBY_AGAIN;
}

/* --- the machine ------------------------------------------------------------ */

void fby_destage_issue(struct fby_drain *p, u16 volume, struct fby_io *io)
{
	struct fby_drained *v = &p->volume[volume];
	struct fby_io_slot *slot = &v->destage.io[io->id % 64];

	io->volume = volume;
	slot->sector = io->sector;
	slot->nsectors = io->nsectors;
	slot->error = 0;
	slot->start_ns = p->space->now_ns;
	slot->alone = v->destage.outstanding == 0;
	if (slot->alone)
		v->destage.heard_ns = p->space->now_ns;
	fby_flight_take(&v->destage, io->id % 64, io->op == FBY_IO_WRITE ? io->nsectors : 0);
	fby_store(&slot->status, (u32)FBY_IOS_BUSY);
	v->destage.outstanding++;
	if (io->op == FBY_IO_FLUSH) {
		fby_count(&v->origin_flushes, 1);
	} else {
		fby_count(&v->origin_writes, 1);
	}
}

static void leave_gate(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_drained *v = &p->volume[volume];

	if (v->destage.gate)
		fby_gate_destage_leaves(&p->cache->volume[volume], wake);
	v->destage.gate = false;
}

static int step(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	int decision;

	switch (d->phase) {
	case FBY_PH_IDLE:
		decision = fby_rescues(p) ? rescue_step(p, volume, wake) : idle_step(p, volume, wake);
		if (d->phase == FBY_PH_IDLE)
			leave_gate(p, volume, wake);
		return decision;
	case FBY_PH_PLAN:
		if (fby_plan_step(p, volume))
			go_on_to(p, volume, FBY_PH_WRITE);
		return FBY_AGAIN;
	case FBY_PH_WRITE:
		return write_step(p, volume, io, wake);
	case FBY_PH_FLUSH:
		return flush_step(p, volume, io);
	case FBY_PH_FLUSHING:
		if (d->outstanding > 0)
			return carry_ahead(p, volume, wake) ? FBY_AGAIN : FBY_DONE;
		d->pos = 0;
		if (!d->failed) {
			fby_plan_flushed(p, volume, d->io[0].start_ns);
			fby_round_clean(p, volume);
			fby_owner_count(p->space, volume);
			fby_level_update(p->space, volume);
		}
		go_on_to(p, volume, d->failed ? FBY_PH_BACKOFF : FBY_PH_CARRY);
		return FBY_AGAIN;
	case FBY_PH_CARRY:
		return carry_step(p, volume, wake);
	case FBY_PH_COMMIT:
		return commit(p, volume);
	case FBY_PH_RELEASE:
		return release_step(p, volume, wake);
	case FBY_PH_BACKOFF:
		if (d->failed) { /* just come here */
			d->failed = false;
			leave_gate(p, volume, wake);
			d->backoff_ns = d->backoff_ns ? d->backoff_ns * 2 : BACKOFF_MIN_NS;
			if (d->backoff_ns > BACKOFF_MAX_NS)
				d->backoff_ns = BACKOFF_MAX_NS;
			d->retry_ns = p->space->now_ns + d->backoff_ns;
		}
		if (p->space->now_ns >= d->retry_ns) {
			go_on_to(p, volume, FBY_PH_IDLE);
			return FBY_AGAIN;
		}
		if (d->retry_ns < p->retry_ns)
			p->retry_ns = d->retry_ns;
		return FBY_DONE;
	}
	FBY_ASSERT(p, false);
	return FBY_DONE;
}

int fby_destage_volume(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	bool unsealed;
	int decision;

	fby_flight_reap(p, volume);
	fby_plan_took(p, volume);
	/* No phase of the round may follow copies that may pass for a torn tail, except its
	 * requests: the chunks that the copies came from are held. */
	if (fby_rescues(p))
		rescue_begin(p, volume);
	unsealed = d->copied_slots && !fby_rescues(p) && !seal_kept(p, volume);
	if (unsealed && (d->phase < FBY_PH_WRITE || d->phase > FBY_PH_FLUSHING))
		return waits(p, FBY_WAIT_TICKET);
	decision = step(p, volume, io, wake);
	return unsealed && decision == FBY_DONE ? waits(p, FBY_WAIT_TICKET) : decision;
}

void fby_drain_complete(struct fby_drain *p, u32 id, int error)
{
	struct fby_io_slot *io;

	FBY_ASSERT(p, id / 64 < p->space->store.sb.nvolumes);
	if (id / 64 >= p->space->store.sb.nvolumes)
		return;
	io = &p->volume[id / 64].destage.io[id % 64];
	FBY_ASSERT(p, fby_load(&io->status) == FBY_IOS_BUSY);
	if (fby_load(&p->volume[id / 64].destage.phase) == FBY_PH_FLUSHING)
		fby_gate_destage_ends(p->cache, &p->cache->volume[id / 64], error);
	io->error = error;
	fby_store_release(&io->status, (u32)FBY_IOS_DONE);
	fby_destage_look(p->space, (u16)(id / 64));
}

int fby_drain_start(struct fby_drain *p, u16 index, bool on)
{
	if (index >= p->space->store.sb.nvolumes || !p->space->owner[index].rec.kind)
		return -FBY_E_NO_VOLUME;
	if (!p->space->owner[index].attached && !fby_is_static(p->cache, index))
		return -FBY_E_VOLUME_DETACHED;
	if (p->space->opt.read_only)
		return -FBY_E_READ_ONLY;
	fby_store(&p->volume[index].destage.drain, on);
	fby_destage_look(p->space, index);
	return FBY_DONE;
}
