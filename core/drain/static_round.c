// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * static_round.c - rounds of destage of static volumes.  They have no index: a hand moves over
 * the groups of slots that may have dirty pages (one bit each), and reads their lines.
 *
 *	settle	end the era, if the pages to list are not settled.  Afterwards no cut can tear a
 *		listed page, so the page still counts if the cut also interrupts its write to
 *		the origin
 *	collect	first slots in which writers collide, then what the hand finds
 *	write, flush	as in other volumes' rounds
 *	release	free each page by a store of its line, unless it was written again
 *
 * A page that the origin refuses is not released, and its slot is for a later pass, which tries
 * it again after a pause, alone (refused.c).
 *
 * A pass of the hand covers all groups.  A pass is due by age, when nobody writes, by the amount
 * of dirty pages, or by order.
 */
#include "cache/static_requests.h"
#include "drain/round.h"
#include "drain/sort.h"

#define SURVEY_STEP 1024u /* slots */
#define SURVEY_NS 1000000ull
#define ERA_NS 1000000ull /* eras are finite: at most one ends in this time */
#define LOOK_GROUPS 4096u /* groups whose clear bits are checked in one step */
#define RELEASE_STEP 256u
#define BACKOFF_MIN_NS 100000000ull
#define BACKOFF_MAX_NS 30000000000ull

/* --- list entries: block, place, and what the stamp has of it ------------------------- */

static u64 entry_block(const struct fby_round_page *r)
{
	return r->k >> 16;
}

static u32 entry_slot(const struct fby_round_page *r)
{
	return r->page >> 1;
}

static u32 entry_way(const struct fby_round_page *r)
{
	return r->page & 1;
}

/* Stores 24 bits of the era and the full number within the slot.  No round that lists a page
 * lasts for so many eras, which are hours. */
static void entry_make(struct fby_round_page *r, u32 slot, u32 way, const struct fby_static_tag *t)
{
	r->k = FBY_ST_BLOCK(t) << 16 | (FBY_ST_ERA(t) & 0xffffu);
	r->page = slot << 1 | way;
	r->stamp = (u32)(FBY_ST_ERA(t) >> 16) << 24 | FBY_ST_NUMBER(t) << 4 | FBY_ST_KIND(t);
}

static bool entry_same(const struct fby_round_page *a, const struct fby_round_page *b)
{
	return a->k == b->k && a->page == b->page && a->stamp == b->stamp;
}

static bool entry_is(const struct fby_round_page *r, const struct fby_static_view *s)
{
	const struct fby_static_tag *t = &s->line.tag[entry_way(r)];
	struct fby_round_page now;

	if (!fby_static_counts(s, entry_way(r)) || (s->unknown >> entry_way(r) & 1))
		return false;
	entry_make(&now, entry_slot(r), entry_way(r), t);
	return entry_same(&now, r);
}

/* --- collect ---------------------------------------------------------------------------- */

static void again(struct fby_statics *p, const struct fby_static *v, u32 slot)
{
	fby_static_dirty_set(p, v, slot / FBY_GROUP_SLOTS);
}

/* The line does not name the page's block.  Reports the first candidate that answers with an
 * error. */
static void unknown_lost(struct fby_drain *p, const struct fby_static *v, const struct fby_static_view *s)
{
	u32 way;

	for (u64 block = s->slot; block < v->blocks; block += v->slots) {
		if (fby_static_find(s, block, &way) == FBY_HAS_LOST) {
			fby_static_lost(p->cache, (u16)(v - p->statics->volume), block);
			return;
		}
	}
}

static bool entry_listed(const struct fby_destage *d, u32 n, const struct fby_round_page *r)
{
	for (u32 i = 0; i < n; i++)
		if (entry_same(&d->page[i], r))
			return true;
	return false;
}

/* Lists the pages of the slot that are not among the first so many.  False: not all, for lack of
 * room, or because the era of a page has not ended. */
static bool collect_slot(struct fby_drain *p, struct fby_static *v, struct fby_destage *d, u32 slot, u32 before)
{
	struct fby_static_view s;
	bool all = true;

	if (d->n + FBY_STATIC_WAYS > d->cap) {
		again(p->statics, v, slot);
		return false;
	}
	fby_place_snapshot(p->statics, v, slot, &s);
	if (s.unknown)
		unknown_lost(p, v, &s);
	for (u32 way = 0; way < FBY_STATIC_WAYS; way++) {
		const struct fby_static_tag *t = &s.line.tag[way];

		if (!fby_static_counts(&s, way) || (s.unknown >> way & 1))
			continue;
		if (FBY_ST_ERA(t) > v->head.settled) {
			again(p->statics, v, slot);
			/* If an era could not end in time, the page may be older than the pass. */
			v->gave_back |= FBY_ST_ERA(t) <= v->pass_era;
			all = false;
			continue;
		}
		entry_make(&d->page[d->n], slot, way, t);
		if (!entry_listed(d, before, &d->page[d->n]))
			d->n++;
	}
	return all;
}

static void collect_wanted(struct fby_drain *p, struct fby_static *v, struct fby_destage *d)
{
	for (u32 i = 0; i < FBY_WANTED; i++) {
		u32 slot = fby_load(&v->wanted[i]) ? fby_fetch_and(&v->wanted[i], 0u) : 0;

		for (u32 n = 0; n < d->n; n++)
			if (entry_slot(&d->page[n]) == slot - 1)
				slot = 0;
		/* A slot that cannot be listed yet is for the next round, unless others have
		 * asked since. */
		if (slot && !collect_slot(p, v, d, slot - 1, 0)) {
			(void)fby_cmpxchg(&v->wanted[i], 0u, slot);
			v->era_asked = true;
		}
	}
}

/* Moves the hand until the round is full, or the pass has covered all groups. */
static void collect_pass(struct fby_drain *p, struct fby_static *v, struct fby_destage *d)
{
	u32 wanted = d->n, looks = LOOK_GROUPS;

	v->crowded = false;
	for (; v->left > 0 && looks > 0; v->left--, looks--) {
		u32 first = v->hand * FBY_GROUP_SLOTS, end = first + FBY_GROUP_SLOTS;

		if (fby_static_dirty(p->statics, v, v->hand)) {
			if (d->n + FBY_GROUP_SLOTS * FBY_STATIC_WAYS > d->cap) {
				v->crowded = wanted && d->n == wanted;
				return;
			}
			/* The bit is cleared first: later writers set it again. */
			fby_static_dirty_clear(p->statics, v, v->hand);
			for (u32 slot = first; slot < end && slot < v->slots; slot++)
				(void)collect_slot(p, v, d, slot, wanted);
		}
		v->hand = v->hand + 1 < fby_static_groups(v) ? v->hand + 1 : 0;
	}
}

/* The round ends without releasing its pages. */
static void give_back(struct fby_drain *p, struct fby_static *v, struct fby_destage *d)
{
	for (; d->pos < d->n; d->pos++)
		again(p->statics, v, entry_slot(&d->page[d->pos]));
	d->n = d->pos = 0;
	v->gave_back = true;
}

/* --- what the origin refuses -------------------------------------------------------------- */

static bool refused_before(const struct fby_refused *f, u64 block)
{
	for (u32 i = 0; i < f->areas && i < FBY_REFUSED_AREAS; i++)
		if (f->area[i].first <= block && block < f->area[i].end)
			return true;
	return false;
}

/* The page stays, for another pass. */
static void leave(struct fby_drain *p, u16 volume, struct fby_round_page *r)
{
	struct fby_static *v = &p->statics->volume[volume];

	again(p->statics, v, entry_slot(r));
	v->gave_back = true;
	p->volume[volume].destage.refused.last = 1;
	if (!FBY_BUG(STATIC_REFUSED_GOES))
		r->stamp = ~0u; /* matches no page: it is not released */
}

void fby_static_refused(struct fby_drain *p, u16 volume, const struct fby_io_slot *io)
{
	u64 first = io->sector / FBY_PAGE_SECTORS;
	u64 end = (io->sector + io->nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;

	for (u32 i = fby_round_from(d, first << 16); i < d->n && entry_block(&d->page[i]) < end; i++)
		leave(p, volume, &d->page[i]);
	if (!io->again)
		f->area[f->areas++ % FBY_REFUSED_AREAS] = (struct fby_refused_area){ first, end };
	fby_refused_note(f, io);
}

/* --- when --------------------------------------------------------------------------------- */

static bool any_dirty(const struct fby_drain *p, const struct fby_static *v)
{
	for (u32 g = 0; g < fby_static_groups(v); g++) {
		u32 bit = v->bit + g;

		if (bit % 64 == 0 && g + 64 <= fby_static_groups(v) && !fby_load(&p->statics->dirty[bit / 64]))
			g += 63;
		else if (fby_static_dirty(p->statics, v, g))
			return true;
	}
	return false;
}

static bool any_wanted(const struct fby_static *v)
{
	for (u32 i = 0; i < FBY_WANTED; i++)
		if (fby_load(&v->wanted[i]))
			return true;
	return false;
}

static bool idle_long(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	const struct fby_static *v = &p->statics->volume[volume];
	u64 writes = 0, idle_ns = fby_load(&p->space->opt.idle_ns);

	for (u32 i = 0; i < FBY_STATIC_COUNTS; i++)
		writes += fby_load(&v->count[i].writes);
	if (writes != d->idle_writes) {
		d->idle_writes = writes;
		d->idle_since_ns = p->space->now_ns;
	}
	return idle_ns && p->space->now_ns - d->idle_since_ns >= idle_ns;
}

/* Without collisions half of the ways are never in use, so the measure is slots. */
static void pressure_update(struct fby_drain *p, struct fby_static *v)
{
	u64 live = fby_static_live(v) * 100;

	if (live >= (u64)v->slots * fby_load(&p->space->opt.high_watermark))
		v->pressure = true;
	else if (live <= (u64)v->slots * fby_load(&p->space->opt.low_watermark))
		v->pressure = false;
}

/* Interval between passes. */
static u64 period_ns(struct fby_drain *p, u16 volume)
{
	u64 own_ns = p->statics->volume[volume].head.flush_us * 1000ull;

	return own_ns ? own_ns : fby_load(&p->space->opt.max_age_ns);
}

static bool pass_due(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_static *v = &p->statics->volume[volume];
	u64 age_ns = period_ns(p, volume);
	bool idle = idle_long(p, volume);

	pressure_update(p, v);
	return d->drain || v->pressure || idle || (age_ns && p->space->now_ns - v->pass_ns >= age_ns);
}

static void pass_begin(struct fby_static *v)
{
	v->left = fby_static_groups(v);
	v->passing = true;
	/* Later writes are not part of the pass, if their era has none so far. */
	v->pass_era = fby_static_settled(v) ? v->head.settled : v->era;
	v->gave_back = false;
	fby_store(&v->passes, v->passes + 1);
}

/* Callable in any thread.  Pages on a round's list are no longer marked as dirty.  So the round
 * must be non-idle before the first bit is cleared, and none may begin between the checks: first
 * the phase is set, then collects is incremented, then bits are cleared. */
bool fby_static_clean(const struct fby_drain *p, u16 volume)
{
	const struct fby_static *v = &p->statics->volume[volume];
	u32 collects = fby_load_acquire(&v->collects);

	if ((fby_load_acquire(&p->volume[volume].destage.phase) != FBY_PH_IDLE && !FBY_BUG(STATIC_CLEAN_IN_ROUND)) ||
	    !fby_static_counted(v) || any_dirty(p, v))
		return false;
	fby_rmb();
	return fby_load(&v->collects) == collects;
}

/* --- requests --------------------------------------------------------------------------------- */

struct static_build {
	u8 op;
	u64 sector;
	u32 n, max;
	u8 *buf;
	bool again; /* the request is of a page that was refused before */
};

static bool build_fits(struct static_build *b, u8 op, u64 sector, u32 n)
{
	if (b->n == 0) {
		b->op = op;
		b->sector = sector;
		return true;
	}
	return b->op == op && b->sector + b->n == sector && b->n + n <= b->max;
}

static u8 op_of(u32 kind)
{
	return kind == FBY_KIND_DATA ? FBY_IO_WRITE : kind == FBY_KIND_ZERO ? FBY_IO_ZERO : FBY_IO_DISCARD;
}

/* The page was found damaged.  It stays where it is, so that its block answers with an error. */
static void page_bad(struct fby_drain *p, u16 volume, struct fby_round_page *r)
{
	struct fby_static_view s;

	fby_place_snapshot(p->statics, &p->statics->volume[volume], entry_slot(r), &s);
	if (entry_is(r, &s))
		fby_static_lost(p->cache, volume, entry_block(r));
	r->stamp = ~0u; /* matches no page: it is not released */
}

/* Adds the next run of page[pos].  False: the request is full. */
static bool build_run(struct fby_drain *p, u16 volume, struct static_build *b)
{
	const struct fby_static *v = &p->statics->volume[volume];
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->pos];
	const struct fby_static_tag *t;
	bool before = refused_before(&d->refused, entry_block(r));
	struct fby_static_view s;
	u32 start = 0, n;
	u8 op;

	fby_place_snapshot(p->statics, v, entry_slot(r), &s);
	t = &s.line.tag[entry_way(r)];
	if (!entry_is(r, &s))
		goto next;
	if (FBY_ST_LOST(t)) { /* its sound sectors go to the origin, and the page stays */
		fby_static_lost(p->cache, volume, entry_block(r));
		if (!FBY_ST_VALID(t))
			goto next;
	}
	n = fby_run(FBY_ST_VALID(t), d->run, &start);
	if (n == 0)
		goto next;
	if ((before && !d->refused.trying) || fby_refused_leaves(&d->refused, before ? FBY_ES_REFUSED : 0)) {
		leave(p, volume, r);
		d->refused.held++;
		goto next;
	}
	if (before && b->n) /* others would be refused with it */
		return false;
	op = op_of(FBY_ST_KIND(t));
	if (!build_fits(b, op, entry_block(r) * FBY_PAGE_SECTORS + start, n))
		return false;
	if (op == FBY_IO_WRITE &&
	    !fby_place_read(p->statics, v, s.slot, entry_way(r), t, fby_mask(start, n), start,
			    b->buf + b->n * FBY_SECTOR)) {
		page_bad(p, volume, r);
		goto next;
	}
	if (op == FBY_IO_WRITE) { /* another write may have replaced the page while it was read */
		struct fby_static_view after;

		fby_place_snapshot(p->statics, v, entry_slot(r), &after);
		if (!entry_is(r, &after))
			goto next;
	}
	b->n += n;
	d->run = start + n;
	if (before) {
		b->max = b->n;
		b->again = true;
	}
	return true;
next:
	d->pos++;
	d->run = 0;
	return true;
}

/* If nobody waits for room, readers of the origin have priority. */
static u32 depth(struct fby_drain *p, u16 volume)
{
	if (fby_load(&p->space->wait_mask) & FBY_WAKE_SPACE)
		return p->volume[volume].pace.depth;
	return fby_pace_depth(p, volume);
}

/* All requests have ended: the round goes on to the flush, or is abandoned. */
static enum fby_phase judge(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u32 goes = 0;

	if (d->refused.failed + d->refused.held == 0)
		return FBY_PH_FLUSH;
	for (u32 i = 0; i < d->n; i++)
		goes += d->page[i].stamp != ~0u;
	if (goes) {
		fby_refused_pause(p, &d->refused);
		return FBY_PH_FLUSH;
	}
	d->failed = d->refused.failed > 0;
	if (!d->failed) { /* nothing was tried */
		d->n = 0;
		d->retry_ns = p->space->now_ns + BACKOFF_MIN_NS;
	}
	return FBY_PH_BACKOFF;
}

static int write_step(struct fby_drain *p, u16 volume, struct fby_io *io)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct static_build b = { 0 };
	u32 id, most = d->refused.doubt ? 1 : depth(p, volume);

	if (d->outstanding >= most || d->pos == d->n || !fby_flight_room(d, &id)) {
		if (d->outstanding)
			return FBY_DONE;
		fby_pace_adapt(&p->volume[volume].pace, d->nrequests);
		fby_store(&d->phase, judge(p, volume));
		d->pos = 0;
		return FBY_AGAIN;
	}
	b.buf = d->io[id].buf;
	b.max = d->buffer_sectors;
	while (d->pos < d->n && build_run(p, volume, &b))
		;
	if (b.n == 0)
		return FBY_AGAIN;
	d->io[id].again = b.again;
	io->op = b.op;
	io->sector = b.sector;
	io->nsectors = b.n;
	io->buf = b.op == FBY_IO_WRITE ? b.buf : NULL;
	io->id = volume * 64u + id;
	return FBY_ORIGIN;
}

/* --- flush, release ---------------------------------------------------------------------------- */

/* Pages were released, or the round did not reach the page that somebody waited for: waiting
 * writers ask again. */
static void wake_space(struct fby_drain *p, u32 *wake)
{
	if (fby_load(&p->space->wait_mask) & FBY_WAKE_SPACE)
		*wake |= fby_fetch_and(&p->space->wait_mask, ~(u32)FBY_WAKE_SPACE) & FBY_WAKE_SPACE;
}

static int flush_step(struct fby_drain *p, u16 volume, struct fby_io *io, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	int decision;

	if (FBY_BUG(STATIC_RELEASE_EARLY)) {
		fby_store(&d->phase, FBY_PH_COMMIT);
		return FBY_AGAIN;
	}
	decision = fby_round_flush(p, volume, io);
	if (decision == FBY_AGAIN) {
		give_back(p, &p->statics->volume[volume], d);
		wake_space(p, wake);
		fby_store_release(&d->phase, FBY_PH_IDLE);
	} else if (decision == FBY_ORIGIN) {
		fby_store(&d->phase, FBY_PH_FLUSHING);
	}
	return decision;
}

/* Compares the stamp with that of the listing.  False: it is another page. */
static bool release_one(struct fby_drain *p, u16 volume, const struct fby_round_page *r, bool *busy)
{
	struct fby_static *v = &p->statics->volume[volume];
	struct fby_static_view s;

	fby_place_snapshot(p->statics, v, entry_slot(r), &s);
	if (!entry_is(r, &s) && !(FBY_BUG(STATIC_RELEASE_NEWER) && r->stamp != ~0u))
		return false;
	if (FBY_ST_LOST(&s.line.tag[entry_way(r)])) /* partly lost: it stays */
		return false;
	*busy = !fby_place_release(p->statics, v, entry_slot(r), entry_way(r), entry_block(r),
				   s.line.tag[entry_way(r)].stamp);
	return !*busy;
}

static int release_step(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_drained *dv = &p->volume[volume];
	struct fby_destage *d = &dv->destage;
	bool busy = false;

	for (u32 i = 0; i < RELEASE_STEP && d->pos < d->n; i++, d->pos++) {
		if (release_one(p, volume, &d->page[d->pos], &busy))
			fby_count(&dv->pages_destaged, 1);
		if (busy)
			return FBY_AGAIN;
	}
	wake_space(p, wake);
	if (d->pos < d->n)
		return FBY_AGAIN;
	fby_count(&dv->rounds, 1);
	if (!d->refused.last)
		fby_store(&dv->last_error, 0);
	d->backoff_ns = 0;
	d->n = d->pos = 0;
	fby_store_release(&d->phase, FBY_PH_IDLE);
	return FBY_AGAIN;
}

/* --- the machine --------------------------------------------------------------------------------- */

static void leave_gate(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (d->gate)
		fby_gate_destage_leaves(&p->cache->volume[volume], wake);
	d->gate = false;
}

/* Has the era ended, or was nothing written in it?  False: a writer is still in it, or the
 * previous era has just begun. */
static bool era_ended(struct fby_drain *p, u16 volume)
{
	struct fby_static *v = &p->statics->volume[volume];

	if (!v->settling && !fby_static_settled(v)) {
		if (p->space->now_ns < v->era_ns + ERA_NS && !FBY_BUG(STATIC_ERA_EACH_STEP))
			return false;
		v->era_ns = p->space->now_ns;
	}
	if (!fby_static_settle(p->statics, volume))
		return false;
	v->era_asked = false;
	return true;
}

static int idle_step(struct fby_drain *p, u16 volume, u64 *next_ns)
{
	struct fby_static *v = &p->statics->volume[volume];
	struct fby_destage *d = &p->volume[volume].destage;
	u64 age_ns = period_ns(p, volume);
	bool wanted = any_wanted(v), hand = true, unsettled;

	if (v->surveyed < v->slots || v->nwindows) {
		u32 before = v->surveyed;

		fby_static_survey(p->statics, volume, SURVEY_STEP);
		if (v->surveyed == before && *next_ns > p->space->now_ns + SURVEY_NS)
			*next_ns = p->space->now_ns + SURVEY_NS; /* a writer has the slot */
		/* Doubtful pages must not go to the origin: see settle, above. */
		if (v->nwindows || (!wanted && !d->drain))
			return v->surveyed == before ? FBY_DONE : FBY_AGAIN;
	}
	if (v->left == 0 && v->passing) {
		v->passing = false;
		if (!v->gave_back) {
			if (d->refused.last)
				fby_refused_passed(p, volume, FBY_NO_SEQ);
			fby_store(&v->done_era, v->pass_era);
			fby_store(&v->passes_done, v->passes);
		}
	}
	if (v->left == 0 && pass_due(p, volume)) {
		v->pass_ns = p->space->now_ns;
		if (any_dirty(p, v)) {
			pass_begin(v);
		} else {
			/* Done here, where it is rare and few slots are left. */
			if (fby_load(&v->miscounted) && v->surveyed == v->slots)
				fby_static_recount(p->statics, volume);
			fby_store(&d->drain, d->drain && v->surveyed < v->slots);
		}
	}
	if (age_ns && v->pass_ns + age_ns < *next_ns)
		*next_ns = v->pass_ns + age_ns;
	if (v->left == 0 && !wanted)
		return v->surveyed < v->slots ? FBY_AGAIN : FBY_DONE;
	unsettled = v->left > 0 && v->head.settled < v->pass_era;
	if ((unsettled || (wanted && v->era_asked) || FBY_BUG(STATIC_ERA_EACH_STEP)) && !era_ended(p, volume)) {
		if (v->settling)
			return FBY_AGAIN;
		/* Slots that need no settled era continue. */
		hand = v->left > 0 && !unsettled;
		wanted = wanted && !v->era_asked;
		if (!hand && !wanted) {
			if (v->era_ns + ERA_NS < *next_ns)
				*next_ns = v->era_ns + ERA_NS;
			return FBY_DONE;
		}
	}
	fby_store(&d->phase, FBY_PH_WRITE);
	fby_fetch_add(&v->collects, 1u);
	d->n = d->pos = d->run = 0;
	d->failed = false;
	fby_refused_begin(p, volume);
	d->lost = fby_load_acquire(&p->cache->volume[volume].gate.lost);
	if (wanted && !(v->crowded && hand)) /* else it is the hand's turn */
		collect_wanted(p, v, d);
	if (hand)
		collect_pass(p, v, d);
	if (d->n > 0)
		fby_heap_sort(d->page, d->n);
	else
		fby_store_release(&d->phase, FBY_PH_IDLE);
	return FBY_AGAIN;
}

static int backoff_step(struct fby_drain *p, u16 volume, u64 *next_ns, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;

	leave_gate(p, volume, wake);
	if (d->failed) { /* just come here */
		d->failed = false;
		d->pos = 0;
		give_back(p, &p->statics->volume[volume], d);
		d->backoff_ns = d->backoff_ns ? d->backoff_ns * 2 : BACKOFF_MIN_NS;
		if (d->backoff_ns > BACKOFF_MAX_NS)
			d->backoff_ns = BACKOFF_MAX_NS;
		d->retry_ns = p->space->now_ns + d->backoff_ns;
	}
	if (p->space->now_ns < d->retry_ns) {
		if (d->retry_ns < *next_ns)
			*next_ns = d->retry_ns;
		return FBY_DONE;
	}
	wake_space(p, wake);
	fby_store_release(&d->phase, FBY_PH_IDLE);
	return FBY_AGAIN;
}

static int static_volume(struct fby_drain *p, u16 volume, struct fby_io *io, u64 *next_ns, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	int decision;

	fby_flight_reap(p, volume);
	switch (d->phase) {
	case FBY_PH_IDLE:
		decision = idle_step(p, volume, next_ns);
		if (d->phase == FBY_PH_IDLE)
			leave_gate(p, volume, wake);
		return decision;
	case FBY_PH_WRITE:
		return write_step(p, volume, io);
	case FBY_PH_FLUSH:
		return flush_step(p, volume, io, wake);
	case FBY_PH_FLUSHING:
		if (d->outstanding > 0)
			return FBY_DONE;
		d->pos = 0;
		fby_store(&d->phase, d->failed ? FBY_PH_BACKOFF : FBY_PH_COMMIT);
		return FBY_AGAIN;
	case FBY_PH_COMMIT:
		return release_step(p, volume, wake);
	case FBY_PH_BACKOFF:
		return backoff_step(p, volume, next_ns, wake);
	case FBY_PH_PLAN: /* other volumes' */
	case FBY_PH_CARRY:
	case FBY_PH_RELEASE:
		break;
	}
	FBY_ASSERT(p, false);
	return FBY_DONE;
}

int fby_static_step(struct fby_drain *p, struct fby_io *io, u64 *next_ns, u32 *wake)
{
	int decision = FBY_DONE;

	for (u32 i = 0; p->statics && i < p->space->store.sb.nvolumes; i++) {
		u16 volume = (u16)p->next_static;
		int r;

		p->next_static = p->next_static + 1 < p->space->store.sb.nvolumes ? p->next_static + 1 : 0;
		if (!p->statics->volume[volume].attached)
			continue;
		r = static_volume(p, volume, io, next_ns, wake);
		if (r == FBY_ORIGIN) {
			fby_destage_issue(p, volume, io);
			return FBY_ORIGIN;
		}
		if (r == FBY_AGAIN)
			decision = FBY_AGAIN;
	}
	return decision;
}

void fby_static_tick(struct fby_drain *p)
{
	for (u32 i = 0; p->statics && i < p->space->store.sb.nvolumes; i++)
		if (p->statics->volume[i].attached)
			(void)fby_static_settle(p->statics, (u16)i);
}
