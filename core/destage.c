// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * destage.c - cached pages to the origin, in rounds, one volume at a time each:
 *
 *	collect	choose the cut, a sequence number; list every linked page at or
 *		below it (what is superseded costs nothing), sorted by block
 *	write	to the origin, neighbours merged into large requests; a neighbour
 *		above the cut is written along, and when the flush is done it is
 *		clean: a later round lets go of it without writing it
 *	flush	the origin
 *	carry	what is lost goes forward as fresh entries, so the cut can pass it
 *	commit	the watermark, durable
 *	release	the pages
 *
 * A round writes each block once and the next begins when it has ended: never
 * two origin writes for a block in flight.  On an error of the origin the round
 * is given up and nothing is released; a new one begins after a pause.
 */
#include "index.h"
#include "media.h"
#include "sort.h"
#include "slot.h"

#define BACKOFF_MIN_NS 100000000ull
#define BACKOFF_MAX_NS 30000000000ull
#define RELEASE_STEP 256u /* pages let go in one step */
#define LOOK_STEP 1024u	  /* pages looked at for one request */

enum carry { CARRY_NO = 0, CARRY_LOST, CARRY_DAMAGED };

/* --- collect -------------------------------------------------------------- */

/* Every seq at or below the result is published or will never be used.  Seals on
 * the way what idle slots have written for the volume. */
static u64 cut_below_in_flight(struct fby_pool *p, u16 volume)
{
	u64 cut = fby_load_acquire(&p->seq) - 1;

	for (u32 i = 0; i < p->opt.nslots; i++) {
		struct fby_slot *s = &p->slot[i];
		u64 floor;

		if (fby_slot_try(s)) {
			u32 c = s->volume[volume].open;

			if (c != FBY_NO_CHUNK && fby_load(&p->chunk[c].sealed) != fby_load(&p->chunk[c].fill))
				fby_chunk_seal(p, c, false);
			fby_slot_retire(s);
			fby_slot_release(s);
			continue;
		}
		floor = fby_load_acquire(&s->floor);
		if (floor != FBY_NO_SEQ && floor - 1 < cut && !FBY_BUG(CUT_PAST_IN_FLIGHT))
			cut = floor - 1;
	}
	return cut;
}

/* Closes the chunks that idle slots have open for the volume. */
static void close_open_chunks(struct fby_pool *p, u16 volume, u32 *wake)
{
	for (u32 i = 0; i < p->opt.nslots; i++) {
		struct fby_slot *s = &p->slot[i];

		if (!fby_slot_try(s))
			continue;
		fby_slot_close(p, s, volume, wake);
		fby_slot_release(s);
	}
}

static bool any_closed(struct fby_pool *p, u16 volume)
{
	bool found = false;

	fby_lock(&p->lock);
	for (u32 c = p->volume[volume].first; c != FBY_NO_CHUNK && !found; c = p->chunk[c].next)
		found = p->chunk[c].state == FBY_CS_CLOSED;
	fby_unlock(&p->lock);
	return found;
}

/* *low: no page from here on in this chunk has a lower seq.  A page whose line
 * is damaged is taken for that: early enough in any case. */
static void collect_page(struct fby_pool *p, struct fby_destage *d, u32 cap, u32 page, u64 *low, u64 *evicted)
{
	struct fby_round_page r = { .k = *low, .page = page };
	u32 state = fby_load_acquire(&p->entry[r.page].state);
	struct fby_page_line l;
	bool repaired;
	u64 out;

	if (!(state & FBY_ES_LINKED))
		return;
	if (fby_page_line_read(p, fby_page_chunk(p, page), fby_page_place(p, page), &l, &repaired))
		r.k = l.seq;
	else
		r.carry = CARRY_DAMAGED;
	*low = r.k + 1;
	if (r.k > d->cut)
		return;
	out = fby_heap_add(d->page, &d->n, cap, r);
	if (out < *evicted)
		*evicted = out;
}

static void collect(struct fby_pool *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 evicted = FBY_NO_SEQ;
	u32 c = FBY_NO_CHUNK, cap = fby_round_most(d);

	if (!fby_volume_clean(p, volume)) /* else it only packs, and not by halves */
		cap = fby_pace_round(p, volume, cap);
	d->n = d->pos = d->run = d->pulled = 0;
	d->issued = 0;
	d->failed = false;
	d->lost = fby_load_acquire(&p->volume[volume].gate.lost);
	d->cut = cut_below_in_flight(p, volume);
	while ((c = fby_chunk_walk(p, volume, c, wake)) != FBY_NO_CHUNK) {
		u64 seq_min = fby_load(&p->chunk[c].seq_min), low = seq_min;
		u32 sealed = fby_load(&p->chunk[c].sealed);

		if (seq_min > d->cut)
			break; /* and so are all after it */
		if (d->n == cap && seq_min > d->page[0].k) {
			if (seq_min < evicted) /* the round is full: its pages fall out unseen */
				evicted = seq_min;
			break;
		}
		for (u32 i = FBY_FIRST_PAGE; i < sealed; i++)
			collect_page(p, d, cap, (c << p->chunk_shift) + i, &low, &evicted);
		/* Not what is unsealed: a write to the origin may be torn, and
		 * then damage to the page here must not pass for a torn tail. */
		if (fby_load(&p->chunk[c].fill) > sealed && low < evicted)
			evicted = low;
	}
	fby_chunk_walk_end(p, c, wake);
	if (evicted <= d->cut)
		d->cut = evicted - 1;
	for (u32 i = 0; i < d->n;) { /* a tie with what fell out must fall out too */
		if (d->page[i].k > d->cut) {
			d->page[i] = d->page[--d->n];
			continue;
		}
		d->page[i].k = fby_key_block(fby_load(&p->entry[d->page[i].page].key));
		i++;
	}
	fby_heap_sort(d->page, d->n);
}

/* Is the page listed still what it was?  A chunk opened after the cut has
 * seq_min above it. */
static bool still_listed(struct fby_pool *p, u16 volume, const struct fby_round_page *r, u64 cut)
{
	const struct fby_entry *e = &p->entry[r->page];

	fby_rmb();
	return (fby_load(&e->state) & FBY_ES_LINKED) && fby_load(&e->key) == fby_key(volume, r->k) &&
	       fby_load(&p->chunk[fby_page_chunk(p, r->page)].seq_min) <= cut;
}

/* --- write ---------------------------------------------------------------- */

/*
 * Pages become clean when a round has written them along.  That holds for the origin
 * that was attached then: the chunk says which, and its pages are none the cleaner for
 * another.  They are not written along either then, since the bits could not be told
 * apart; their own round writes them.
 */
static bool may_be_clean(const struct fby_pool *p, u16 volume, u32 page)
{
	u32 clean_for = fby_load(&p->chunk[fby_page_chunk(p, page)].clean_for);

	return clean_for == 0 || clean_for == p->volume[volume].attachment;
}

static bool is_clean(const struct fby_pool *p, u16 volume, u32 page, u32 state)
{
	return (state & FBY_ES_CLEAN) && (may_be_clean(p, volume, page) || FBY_BUG(CLEAN_OF_OTHER_ORIGIN));
}

struct build {
	u8 op;
	u64 sector;
	u64 n;
	u8 *buf;
	u64 max;
};

/* Would sectors [sector, +n) go on the request?  The first always does. */
static bool build_fits(struct build *b, u8 op, u64 sector, u64 n)
{
	if (b->n == 0) {
		b->op = op;
		b->sector = sector;
		return true;
	}
	return b->op == op && b->sector + b->n == sector && b->n + n <= b->max;
}

/* Adds the next run of sectors of page[pos].  False: the request is full. */
static bool build_run(struct fby_pool *p, u16 volume, struct build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->pos];
	u32 state = fby_load_acquire(&p->entry[r->page].state);
	u64 key = fby_key(volume, r->k);
	u32 start = 0, n;
	u8 op = FBY_IO_WRITE;

	if (!still_listed(p, volume, r, d->cut))
		goto next_page;
	if (is_clean(p, volume, r->page, state)) { /* whatever became of it here, the origin has it */
		r->carry = CARRY_NO;
		goto next_page;
	}
	if (state & FBY_ES_DAMAGED)
		r->carry = CARRY_DAMAGED;
	else if (FBY_ES_LOST(state) && r->carry == CARRY_NO)
		r->carry = CARRY_LOST;
	n = fby_run(FBY_ES_VALID(state), d->run, &start);
	if (n == 0 || r->carry == CARRY_DAMAGED)
		goto next_page;
	if (FBY_ES_KIND(state) != FBY_KIND_DATA)
		op = FBY_ES_KIND(state) == FBY_KIND_ZERO ? FBY_IO_ZERO : FBY_IO_DISCARD;
	if (!build_fits(b, op, r->k * FBY_PAGE_SECTORS + start, n))
		return false;
	if (op == FBY_IO_WRITE) {
		enum fby_page_result got = fby_page_read(p, r->page, key, state, fby_mask(start, n), start,
							 b->buf + b->n * FBY_SECTOR, !FBY_BUG(DESTAGE_UNVERIFIED));

		if (!still_listed(p, volume, r, d->cut))
			goto next_page;
		if (got != FBY_PAGE_OK) {
			r->carry = FBY_BUG(DAMAGE_DROPPED) ? CARRY_NO : CARRY_DAMAGED;
			fby_page_mark(p, r->page, key, FBY_ES_DAMAGED);
			goto next_page;
		}
	}
	b->n += n;
	d->run = start + n;
	return true;
next_page:
	d->pos++;
	d->run = 0;
	return true;
}

/* Is the block's page one to be written along?  Not in an open chunk: what is
 * written now is likely to be written again. */
static bool pull_find(struct fby_pool *p, u16 volume, u64 block, struct fby_found *f)
{
	if (block >= p->volume[volume].blocks)
		return false;
	fby_index_find(p, fby_key(volume, block), f);
	return f->page != FBY_NO_PAGE && FBY_ES_KIND(f->state) == FBY_KIND_DATA && FBY_ES_VALID(f->state) == 0xff &&
	       !(f->state & (FBY_ES_DAMAGED | FBY_ES_CLEAN)) && may_be_clean(p, volume, f->page) &&
	       fby_load(&p->chunk[fby_page_chunk(p, f->page)].seq_max) != FBY_NO_SEQ;
}

/* Adds a block that is not listed, at the end of the request. */
static bool pull(struct fby_pool *p, u16 volume, struct build *b, u64 block)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->cap - 1 - d->pulled];
	struct fby_found f;

	if (d->n + d->pulled >= d->cap || b->n + FBY_PAGE_SECTORS > b->max || block < d->issued ||
	    !pull_find(p, volume, block, &f) ||
	    fby_page_read(p, f.page, fby_key(volume, block), f.state, 0xff, 0, b->buf + b->n * FBY_SECTOR, true) !=
		    FBY_PAGE_OK)
		return false;
	fby_rmb();
	if (fby_load(&p->chunk[fby_page_chunk(p, f.page)].epoch) != f.epoch)
		return false;
	r->k = block;
	r->page = f.page;
	r->carry = (u32)f.epoch;
	d->pulled++;
	b->n += FBY_PAGE_SECTORS;
	return true;
}

/* Begins the request with neighbours before the page that is next, if it begins
 * at its first sector. */
static void pull_before(struct fby_pool *p, u16 volume, struct build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	const struct fby_round_page *r = &d->page[d->pos];
	u32 state = fby_load_acquire(&p->entry[r->page].state), before = d->pulled;
	u64 first = r->k;
	struct fby_found f;

	if (d->run || !still_listed(p, volume, r, d->cut) || FBY_ES_KIND(state) != FBY_KIND_DATA ||
	    !(FBY_ES_VALID(state) & 1) || (state & FBY_ES_DAMAGED) || is_clean(p, volume, r->page, state))
		return;
	while (first > d->issued && r->k - first < FBY_BATCH_PAGES && pull_find(p, volume, first - 1, &f))
		first--;
	b->op = FBY_IO_WRITE;
	b->sector = first * FBY_PAGE_SECTORS;
	for (; first < r->k; first++) {
		if (pull(p, volume, b, first))
			continue;
		d->pulled = before; /* replaced meanwhile: without it, and what is before it */
		b->n = 0;
		b->sector = (first + 1) * FBY_PAGE_SECTORS;
	}
}

/* Goes on with neighbours where the list leaves a gap. */
static bool pull_after(struct fby_pool *p, u16 volume, struct build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 end = b->sector + b->n, block = end / FBY_PAGE_SECTORS;

	return b->n && b->op == FBY_IO_WRITE && end % FBY_PAGE_SECTORS == 0 &&
	       (d->pos == d->n || (d->run == 0 && d->page[d->pos].k > block)) && pull(p, volume, b, block);
}

static void build_request(struct fby_pool *p, u16 volume, struct build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;

	for (u32 look = 0; look < LOOK_STEP; look++) {
		if (pull_after(p, volume, b))
			continue;
		if (d->pos == d->n)
			break;
		if (b->n == 0)
			pull_before(p, volume, b);
		if (!build_run(p, volume, b))
			break;
	}
	if (b->n)
		d->issued = (b->sector + b->n + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
}

/* After the flush: what was written along need not be written again, if it is
 * still what it was. */
static void pulled_clean(struct fby_pool *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;

	for (; d->pulled > 0; d->pulled--) {
		const struct fby_round_page *r = &d->page[d->cap - d->pulled];
		u64 key = fby_key(volume, r->k);
		u32 b = fby_index_bucket(p, key);
		struct fby_entry *e = &p->entry[r->page];

		if (!fby_index_try(p, b))
			continue;
		if (fby_index_get_locked(p, b, key) == r->page &&
		    ((u32)fby_load(&p->chunk[fby_page_chunk(p, r->page)].epoch) == r->carry ||
		     FBY_BUG(CLEAN_ANY_EPOCH))) {
			fby_store(&p->chunk[fby_page_chunk(p, r->page)].clean_for, p->volume[volume].attachment);
			fby_store(&e->state, fby_load(&e->state) | FBY_ES_CLEAN);
		}
		fby_index_release(p, b);
	}
}

static int write_step(struct fby_pool *p, u16 volume, struct fby_io *io)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct build b = { 0 };
	u32 id;

	for (id = 0; id < d->nbuffers && fby_load(&d->io[id].status) != FBY_IOS_FREE; id++)
		;
	if (d->failed || d->outstanding >= fby_pace_depth(p, volume) || id == d->nbuffers || d->pos == d->n) {
		if (d->outstanding == 0) {
			fby_pace_adapt(&p->volume[volume].pace, d->nbuffers);
			fby_store(&d->phase, d->failed ? FBY_PH_BACKOFF : FBY_PH_FLUSH);
		}
		return d->outstanding == 0 ? FBY_AGAIN : FBY_DONE;
	}
	b.buf = d->io[id].buf;
	b.max = d->buffer_sectors;
	build_request(p, volume, &b);
	if (b.n == 0)
		return FBY_AGAIN;
	io->op = b.op;
	io->sector = b.sector;
	io->nsectors = b.n;
	io->buf = b.op == FBY_IO_WRITE ? b.buf : NULL;
	io->id = volume * 64u + id;
	return FBY_ORIGIN;
}

/* --- flush, carry, commit, release ---------------------------------------- */

static int flush_step(struct fby_pool *p, u16 volume, struct fby_io *io)
{
	struct fby_volume *v = &p->volume[volume];
	struct fby_destage *d = &v->destage;

	if (!d->gate && !fby_gate_destage(v))
		return FBY_DONE; /* the end of that flush wakes destage */
	d->gate = true;
	/* The origin told another that it lost something, perhaps of this round: again.
	 * With the gate held from the start, so that this happens to a round but once. */
	if (fby_load_acquire(&v->gate.lost) != d->lost && !FBY_BUG(HOST_FAILURE_IGNORED)) {
		fby_store(&d->phase, FBY_PH_IDLE);
		return FBY_AGAIN;
	}
	if (FBY_BUG(CLEAN_BEFORE_FLUSH))
		pulled_clean(p, volume);
	d->gate = false; /* the request has it */
	fby_gate_destage_sends(v);
	io->op = FBY_IO_FLUSH;
	io->id = volume * 64u;
	io->sector = io->nsectors = 0;
	io->buf = NULL;
	fby_store(&d->phase, FBY_PH_FLUSHING);
	return FBY_ORIGIN;
}

/* No room for what is lost from page[pos] on: the cut goes below it, so that what
 * is older is let go, which may make room for the next round.  False: nothing is
 * older. */
static bool carry_less(struct fby_pool *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 cut = d->cut;
	u32 n = 0;

	for (u32 i = d->pos; i < d->n; i++) {
		const struct fby_round_page *r = &d->page[i];
		u64 seq = fby_page_seq(p, r->page, fby_load(&p->chunk[fby_page_chunk(p, r->page)].seq_min));

		if (r->carry != CARRY_NO && still_listed(p, volume, r, d->cut) && seq <= cut)
			cut = seq - 1;
	}
	if (cut <= p->volume[volume].rec.watermark)
		return false;
	for (u32 i = 0; i < d->n; i++) /* what is above the cut stays until a later round */
		if (fby_page_seq(p, d->page[i].page, FBY_NO_SEQ) <= cut)
			d->page[n++] = d->page[i];
	d->n = n;
	d->cut = cut;
	return true;
}

static int carry_step(struct fby_pool *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	for (; d->pos < d->n; d->pos++) {
		struct fby_round_page *r = &d->page[d->pos];

		int decision;

		if (r->carry == CARRY_NO || !still_listed(p, volume, r, d->cut))
			continue;
		decision = fby_carry(p, volume, r->k, r->page, r->carry == CARRY_DAMAGED, wake);
		if (decision == FBY_WAIT_SPACE && carry_less(p, volume))
			break;
		if (decision == FBY_WAIT_SPACE) { /* more is lost than the reserve holds */
			fby_store(&p->volume[volume].last_error, fby_error_errno(-FBY_E_LOST));
			d->failed = true;
			fby_store(&d->phase, FBY_PH_BACKOFF);
			return FBY_AGAIN;
		}
		if (decision != FBY_DONE)
			return FBY_AGAIN;
	}
	fby_store(&d->phase, FBY_PH_COMMIT);
	return FBY_AGAIN;
}

static void commit(struct fby_pool *p, u16 volume)
{
	struct fby_volume *v = &p->volume[volume];

	if (v->destage.cut > v->rec.watermark) {
		fby_store(&v->rec.watermark, v->destage.cut);
		if (!FBY_BUG(FREE_BEFORE_WATERMARK))
			fby_record_write(p, volume);
	}
	v->destage.pos = 0;
	fby_store(&v->destage.phase, FBY_PH_RELEASE);
}

/* False: the block is busy. */
static bool release_page(struct fby_pool *p, u16 volume, const struct fby_round_page *r, u64 cut)
{
	struct fby_volume *v = &p->volume[volume];
	u64 key = fby_key(volume, r->k);
	u32 b = fby_index_bucket(p, key);
	u32 page = r->page;

	if (!fby_index_try(p, b))
		return false;
#ifdef FBY_PLANTED_BUGS
	if (FBY_BUG(RELEASE_NEWER) && fby_index_get_locked(p, b, key) != FBY_NO_PAGE)
		page = fby_index_get_locked(p, b, key);
	else
#endif
	if (!still_listed(p, volume, r, cut)) {
		fby_index_release(p, b);
		return true;
	}
	FBY_ASSERT(fby_index_get_locked(p, b, key) == page);
	if ((fby_load(&p->entry[page].state) & FBY_ES_DAMAGED) || FBY_ES_LOST(fby_load(&p->entry[page].state)))
		fby_fetch_add(&v->lost_blocks, ~0u);
	if (fby_lost_only(fby_load(&p->entry[page].state)))
		fby_fetch_add(&v->lost_only, ~0u);
	fby_index_del_locked(p, b, page);
	fby_index_release(p, b);
	fby_page_dead(p, page, fby_dead_row(p, NULL), &v->dead);
	fby_count(&v->pages_destaged, 1);
	return true;
}

/* Nothing in them is above the cut, so most are empty now. */
static void release_chunks(struct fby_pool *p, u16 volume, u64 cut, u32 *wake)
{
	u32 c = FBY_NO_CHUNK;

	do
		c = fby_chunk_walk(p, volume, c, wake);
	while (c != FBY_NO_CHUNK && fby_load(&p->chunk[c].seq_min) <= cut);
	fby_chunk_walk_end(p, c, wake);
}

static int release_step(struct fby_pool *p, u16 volume, u32 *wake)
{
	struct fby_volume *v = &p->volume[volume];
	struct fby_destage *d = &v->destage;

	for (u32 i = 0; i < RELEASE_STEP && d->pos < d->n; i++, d->pos++)
		if (!release_page(p, volume, &d->page[d->pos], d->cut))
			return FBY_AGAIN;
	if (d->pos < d->n)
		return FBY_AGAIN;
	release_chunks(p, volume, d->cut, wake);
	if (FBY_BUG(FREE_BEFORE_WATERMARK))
		fby_record_write(p, volume);
	fby_count(&v->rounds, 1);
	fby_store(&v->last_error, 0);
	d->backoff_ns = 0;
	d->n = 0;
	fby_volume_count(p, volume);
	fby_level_update(p, volume);
	fby_store(&d->phase, FBY_PH_IDLE);
	return FBY_AGAIN;
}

void fby_destage_settle(struct fby_pool *p, u16 volume)
{
	u32 wake = 0;

	while (p->volume[volume].destage.phase == FBY_PH_RELEASE)
		release_step(p, volume, &wake);
	fby_fetch_or(&p->wake_owed, wake);
}

/* --- idle ------------------------------------------------------------------ */

static int idle_step(struct fby_pool *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	/* Not of what no other volume could have: idle slots fill it. */
	bool needed = fby_starved(p) && fby_load(&p->volume[volume].nchunks) > FBY_ENTITLED;

	/* What idle slots keep open for nothing, another volume may need. */
	if (fby_starved(p) && fby_volume_clean(p, volume))
		close_open_chunks(p, volume, wake);
	if (!fby_destage_wanted(p, volume))
		return FBY_DONE;
	if (d->drain || (needed && !any_closed(p, volume)))
		close_open_chunks(p, volume, wake);
	collect(p, volume, wake);
	if (d->n == 0)
		return FBY_DONE;
	fby_store(&d->phase, FBY_PH_WRITE);
	return FBY_AGAIN;
}

/* --- the machine ------------------------------------------------------------ */

static void reap(struct fby_pool *p, u16 volume)
{
	struct fby_volume *v = &p->volume[volume];
	struct fby_destage *d = &v->destage;

	for (u32 i = 0; i < d->nbuffers && d->outstanding > 0; i++) {
		struct fby_io_slot *io = &d->io[i];

		if (fby_load_acquire(&io->status) != FBY_IOS_DONE)
			continue;
		if (io->error) {
			fby_store(&v->last_error, io->error);
			fby_count(&v->origin_errors, 1);
			if (FBY_BUG(FLUSH_FAILURE_TOLD_LATE) && d->phase == FBY_PH_FLUSHING)
				fby_gate_destage_failed(v);
			if (!(FBY_BUG(ORIGIN_ERROR_DROPS) && d->phase == FBY_PH_WRITE) &&
			    !(FBY_BUG(FLUSH_ERROR_IGNORED) && d->phase == FBY_PH_FLUSHING))
				d->failed = true;
		}
		if (d->phase == FBY_PH_WRITE && p->now_ns - io->start_ns < 1ull << 31)
			fby_pace_latency(&v->pace, (u32)(p->now_ns - io->start_ns), io->alone);
		fby_store(&io->status, (u32)FBY_IOS_FREE);
		d->outstanding--;
	}
}

void fby_destage_issue(struct fby_pool *p, u16 volume, struct fby_io *io)
{
	struct fby_volume *v = &p->volume[volume];
	struct fby_io_slot *slot = &v->destage.io[io->id % 64];

	io->volume = volume;
	slot->error = 0;
	slot->start_ns = p->now_ns;
	slot->alone = v->destage.outstanding == 0;
	fby_store(&slot->status, (u32)FBY_IOS_BUSY);
	v->destage.outstanding++;
	if (io->op == FBY_IO_FLUSH) {
		fby_count(&v->origin_flushes, 1);
	} else {
		fby_count(&v->origin_writes, 1);
		fby_count(&v->origin_sectors, io->nsectors);
	}
}

static void leave_gate(struct fby_pool *p, u16 volume, u32 *wake)
{
	struct fby_volume *v = &p->volume[volume];

	if (v->destage.gate)
		fby_gate_destage_leaves(v, wake);
	v->destage.gate = false;
}

int fby_destage_volume(struct fby_pool *p, u16 volume, struct fby_io *io, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	int decision;

	reap(p, volume);
	switch (d->phase) {
	case FBY_PH_IDLE:
		decision = idle_step(p, volume, wake);
		if (d->phase == FBY_PH_IDLE)
			leave_gate(p, volume, wake);
		return decision;
	case FBY_PH_WRITE:
		if (FBY_BUG(WATERMARK_BEFORE_FLUSH) && d->pos == d->n && d->outstanding == 0 && !d->failed) {
			p->volume[volume].rec.watermark = d->cut;
			fby_record_write(p, volume);
		}
		return write_step(p, volume, io);
	case FBY_PH_FLUSH:
		return flush_step(p, volume, io);
	case FBY_PH_FLUSHING:
		if (d->outstanding > 0)
			return FBY_DONE;
		d->pos = 0;
		if (!d->failed)
			pulled_clean(p, volume);
		fby_store(&d->phase, d->failed ? FBY_PH_BACKOFF : FBY_PH_CARRY);
		return FBY_AGAIN;
	case FBY_PH_CARRY:
		return carry_step(p, volume, wake);
	case FBY_PH_COMMIT:
		commit(p, volume);
		return FBY_AGAIN;
	case FBY_PH_RELEASE:
		return release_step(p, volume, wake);
	case FBY_PH_BACKOFF:
		if (d->failed) { /* just come here */
			d->failed = false;
			leave_gate(p, volume, wake);
			d->backoff_ns = d->backoff_ns ? d->backoff_ns * 2 : BACKOFF_MIN_NS;
			if (d->backoff_ns > BACKOFF_MAX_NS)
				d->backoff_ns = BACKOFF_MAX_NS;
			d->retry_ns = p->now_ns + d->backoff_ns;
		}
		if (p->now_ns >= d->retry_ns) {
			fby_store(&d->phase, FBY_PH_IDLE);
			return FBY_AGAIN;
		}
		if (d->retry_ns < p->retry_ns)
			p->retry_ns = d->retry_ns;
		return FBY_DONE;
	}
	FBY_ASSERT(false);
	return FBY_DONE;
}

void fby_destage_complete(struct fby_pool *p, u32 id, int error)
{
	struct fby_io_slot *io;

	FBY_ASSERT(id / 64 < p->sb.nvolumes);
	io = &p->volume[id / 64].destage.io[id % 64];
	FBY_ASSERT(fby_load(&io->status) == FBY_IOS_BUSY);
	if (fby_load(&p->volume[id / 64].destage.phase) == FBY_PH_FLUSHING)
		fby_gate_destage_ends(p, &p->volume[id / 64], error);
	io->error = error;
	fby_store_release(&io->status, (u32)FBY_IOS_DONE);
	fby_destage_look(p, (u16)(id / 64));
}

int fby_volume_drain(struct fby_pool *p, u16 index, bool on)
{
	if (index >= p->sb.nvolumes || !p->volume[index].rec.state)
		return -FBY_E_NO_VOLUME;
	if (!p->volume[index].attached)
		return -FBY_E_VOLUME_DETACHED;
	if (p->opt.read_only)
		return -FBY_E_READ_ONLY;
	fby_store(&p->volume[index].destage.drain, on);
	fby_destage_look(p, index);
	return FBY_DONE;
}
