// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * plan.c - chooses which pages of a round's list are worth the origin's time;
 * docs/design/destage.md has the model.
 *
 * A round passes the oldest pages of the log, and each dirty one has to leave its place: to the
 * origin, or forward in the log.  A copy in persistent memory costs less than a microsecond, a
 * request of an origin up to some milliseconds, whether it carries one block or sixty-four.  So
 * each page of the list is judged by the length of its run of adjacent dirty blocks, wherever in
 * the pool these are.  The longest runs are written, the others kept, until both balances hold:
 *
 *	room	what the round makes dirty no more is what the chunks that it passes give
 *		back, less what writers overwrite meanwhile; less of it while few chunks
 *		are free, more of it while many are
 *	time	its copies take no more than half of the time of its requests, which
 *		are under way meanwhile, and these three tenths of a second at most
 *
 * The throttle bounds the number of dirty pages (pace.c).  A round keeps nothing in a drain, nor
 * for a volume that grows old, that nobody writes, or that holds little of the pool.
 */
#include "drain/round.h"

#define MEASURE_STEP 1024u /* lookups in one step */
#define WRITTEN_STEP 8u /* pages that are written in any case: one of so many is measured */
#define COPY_NS 1000u /* until it is known */
#define COPY_NS_MOST 1000000u
#define COPIES_TELL 8u /* a step with at least so many copies gives a sample of copy_ns */
#define COPY_PARTS 2u /* copies may take one part in so many of a round's time */
/* likewise for keeping pages, and for all other copies, to run a fuller pool; twice as much is
 * dear */
#define CHEAP_PARTS 8u
#define ROUND_NS 300000000u /* writers may have to wait for the end of a round */
#define ROUND_REQUESTS 32u
#define ROUND_LEAST 64u /* pages */
#define REQUEST_NS (ROUND_NS / ROUND_REQUESTS) /* until it is known, which is soon */
#define FLUSH_PARTS 16u /* the flush may take one part in so many of the round's requests */
#define SHARE_MOST 224u
#define SHARE_HOT 160u /* most writes overwrite cached pages, and runs matter little */
#define STARVED_PAGES 256u
#define SCALE_MOST (16u * 8u)

void fby_plan_start(struct fby_plan *plan)
{
	plan->scale = 4 * 16;
	plan->copy_ns = COPY_NS;
}

static u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

/* --- how much ------------------------------------------------------------------------ */

/* May pages of the volume be kept?  If it holds little of the pool, its pages would be copied
 * round after round for the sake of others. */
static bool may_keep(const struct fby_drain *p, u16 volume, u32 spare)
{
	const struct fby_destage *d = &p->volume[volume].destage;

	if (FBY_BUG(KEPT_IN_DRAIN) && d->drain)
		return true;
	return p->space->pressure && !d->forced && spare > 1 &&
	       2 * fby_load(&p->space->owner[volume].counted) >= fby_load(&p->space->share);
}

/* How many pages the next round lists, for so much room: half of it, or up to three quarters if
 * the flush is dear compared with the requests of so short a round. */
static u64 list_room(const struct fby_plan *plan, u64 room)
{
	u32 flush_ns = (u32)min_u64(plan->flush_ns, ~0u / FLUSH_PARTS);
	u32 wanted = plan->page_ns ? flush_ns * FLUSH_PARTS / plan->page_ns : 0;

	return wanted <= room / 2 ? room / 2 : min_u64(wanted, room - room / 4);
}

static u32 list_pages(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_plan *plan = &d->plan;
	u32 most = fby_round_most(d), chunk = p->space->store.chunk_pages - p->space->store.first_page;
	u32 spare = fby_spare(p->space);
	u64 n;

	n = fby_pace_round(p, volume, most);
	plan->keeps = may_keep(p, volume, spare) && !plan->no_room && !d->refused.behind;
	plan->no_room = false;
	if (plan->keeps) {
		/* Copies need room before the round frees any, and so do writers. */
		u64 room = list_room(plan, (u64)(spare - 1) * chunk);

		n = min_u64(min_u64(n * plan->scale / 16, room), most);
		if (plan->few_kept && plan->page_ns) /* the length of the round is not bounded by a choice */
			n = min_u64(n, ROUND_NS / plan->page_ns > ROUND_LEAST ? ROUND_NS / plan->page_ns : ROUND_LEAST);
	} else if (fby_starved(p->space) && !d->forced) {
		n = min_u64(n, chunk > STARVED_PAGES ? chunk : STARVED_PAGES); /* somebody waits for a chunk */
	}
	return (u32)n;
}

u32 fby_plan_pages(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;
	u32 most = fby_round_most(d), chunk = p->space->store.chunk_pages - p->space->store.first_page;

	d->plan.keeps = false;
	d->plan.asked_ns = 0;
	f->longer = false;
	if (fby_drain_clean(p, volume)) /* the round only packs lost blocks, and does so completely */
		return most;
	f->asked = list_pages(p, volume);
	if (f->narrow) {
		f->asked = (u32)min_u64(f->asked, chunk);
	} else if (!FBY_BUG(REFUSED_HIDES_REST)) {
		f->longer = f->behind > f->asked;
		f->asked = (u32)min_u64((u64)f->asked + f->behind, most);
	}
	f->narrow = false;
	return f->asked;
}

/* Measures how many of 256 appended pages overwrite a dirty one, since the previous round. */
static void measure_overwrites(struct fby_drain *p, u16 volume)
{
	struct fby_plan *plan = &p->volume[volume].destage.plan;
	u32 appended = 0, overwritten = 0, n;

	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		const struct fby_slot_volume *v = &p->space->slot[i].volume[volume];

		appended += (u32)fby_load(&v->pages);
		overwritten += (u32)fby_load(&v->dead) - fby_load(&v->clean_replaced);
	}
	appended -= (u32)p->volume[volume].moved;
	overwritten -= (u32)p->volume[volume].moved;
	n = appended - plan->appended;
	if (n >= 16) {
		u32 dead = overwritten - plan->overwritten;

		if (dead >> 31) /* negative: it is counted while others write */
			dead = 0;
		for (; n >> 24; n >>= 1)
			dead >>= 1;
		plan->share = (3 * plan->share + (dead < n ? dead * 256 / n : 256) + 2) / 4;
		plan->appended = appended;
		plan->overwritten = overwritten;
	}
}

/* --- runs ---------------------------------------------------------------------------- */

/* Counts the run of dirty blocks around this one, not before past; *last is its end. */
static u32 run_around(struct fby_drain *p, u16 volume, u64 block, u64 past, u64 *last)
{
	u64 first = block, end = block + 1;
	struct fby_found f;

	while (first > past && block - first < FBY_RUN_MOST - 1 && fby_round_dirty(p, volume, first - 1, &f))
		first--;
	while (end - first < FBY_RUN_MOST && fby_round_dirty(p, volume, end, &f))
		end++;
	*last = end - 1;
	return (u32)(end - first);
}

enum fate {
	FATE_GONE, /* overwritten, or clean: only its room counts */
	FATE_WRITTEN, /* whatever its neighbours are */
	FATE_EITHER,
	FATE_REFUSED, /* refused before, and not tried again yet */
};

static enum fate fate_of(struct fby_drain *p, u16 volume, const struct fby_round_page *r)
{
	u64 max_age_ns = fby_load(&p->space->opt.max_age_ns);
	u64 age_ns = p->space->now_ns - fby_page_since(p->cache, r->page);
	u64 turn_ns = p->space->now_ns - fby_load(&fby_chunk_of(p->space, r->page)->opened_ns);
	u32 state = fby_load_acquire(&p->cache->entry[r->page].state);

	if (!fby_round_listed(p, volume, r, p->volume[volume].destage.cut) ||
	    fby_round_is_clean(p, volume, r->page, state))
		return FATE_GONE;
	if ((state & FBY_ES_REFUSED) && !(state & FBY_ES_DAMAGED))
		return p->volume[volume].destage.refused.trying ? FATE_WRITTEN : FATE_REFUSED;
	if (r->carry != FBY_CARRY_NO || (state & FBY_ES_DAMAGED) || FBY_ES_LOST(state) ||
	    FBY_ES_KIND(state) != FBY_KIND_DATA)
		return FATE_WRITTEN;
	/* Pages that could be too old at the next turn are written.  A turn takes as long as this
	 * one, or as all earlier pages take if none of them may be kept any more. */
	if (turn_ns < p->volume[volume].destage.plan.all_ns)
		turn_ns = p->volume[volume].destage.plan.all_ns;
	return max_age_ns == 0 || age_ns + turn_ns < max_age_ns ? FATE_EITHER : FATE_WRITTEN;
}

/* leads: the first of a run of so many. */
static void note(struct fby_plan *plan, struct fby_round_page *r, enum fate fate, u32 run, bool leads)
{
	r->run = fate == FATE_EITHER ? (u8)run : 0;
	r->leads = fate == FATE_WRITTEN || (fate == FATE_EITHER && leads);
	if (fate == FATE_REFUSED)
		return;
	if (fate == FATE_GONE) {
		plan->gained++;
		return;
	}
	if (r->run) {
		plan->shares += FBY_RUN_MOST / run;
		plan->shared++;
	}
	plan->listed[r->run]++;
	plan->runs[r->run] += r->leads;
}

/* Measures the run of page[pos], and moves past the listed pages of it.  Returns how many blocks
 * were looked up. */
static u32 measure(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->pos++];
	enum fate fate = fate_of(p, volume, r);
	struct fby_plan *plan = &d->plan;
	u64 last = r->k;
	u32 n = 1;

	/* A sample of these is measured, too, although their own runs do not matter. */
	if (fate == FATE_WRITTEN && d->pos % WRITTEN_STEP == 0) {
		n = run_around(p, volume, r->k, 0, &last);
		plan->shares += WRITTEN_STEP * (FBY_RUN_MOST / n);
		plan->shared += WRITTEN_STEP;
	}
	if (fate == FATE_EITHER && FBY_ES_VALID(fby_load(&p->cache->entry[r->page].state)) == 0xff)
		n = run_around(p, volume, r->k, plan->past, &last);
	note(plan, r, fate, n, true);
	if (fate != FATE_EITHER)
		return n;
	plan->past = last + 1;
	for (; d->pos < d->n && d->page[d->pos].k <= last; d->pos++)
		note(plan, &d->page[d->pos], fate_of(p, volume, &d->page[d->pos]), n, false);
	return n + 2;
}

/* --- the choice ------------------------------------------------------------------------ */

struct balance {
	u64 written; /* pages that the round makes clean, or releases */
	u64 gained; /* room that the round frees */
	u64 kept, requests;
	u64 weight; /* of 256: weight of writing against room gained */
	u64 least; /* the least that a round has to achieve */
	u64 request_ns, copy_ns;
};

static bool long_enough(const struct balance *b)
{
	return b->requests * b->request_ns >= ROUND_NS && b->requests >= ROUND_REQUESTS;
}

static bool balanced(const struct balance *b)
{
	return b->written * 256 >= b->gained * b->weight && b->gained >= b->least &&
	       b->kept * b->copy_ns * COPY_PARTS <= b->requests * b->request_ns;
}

static void choose(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_plan *plan = &d->plan;
	u32 spare = 16 * fby_spare(p->space) / fby_spare_wanted(p->space), length, taken = 0, scale;
	struct balance b = { .written = plan->listed[0], .gained = plan->gained + plan->listed[0],
			     .requests = plan->runs[0], .least = (d->n + 7) / 8,
			     .request_ns = plan->request_ns ? plan->request_ns : REQUEST_NS, .copy_ns = plan->copy_ns };

	for (length = 1; length <= FBY_RUN_MOST; length++)
		b.kept += plan->listed[length];
	plan->few_kept = 2 * plan->listed[0] > d->n;
	if (plan->shared)
		plan->all_ns = fby_load(&p->space->owner[volume].counted) *
			       ((u64)plan->request_ns * (plan->shares / plan->shared + 1) / FBY_RUN_MOST);
	measure_overwrites(p, volume);
	spare = spare < 4 ? 4 : spare > 64 ? 64 : spare;
	b.weight = spare * (256 - (plan->share < SHARE_MOST ? plan->share : SHARE_MOST)) / 16;
	for (length = FBY_RUN_MOST; length > 0; length--) {
		u32 n = plan->runs[length], each = n ? plan->listed[length] / n : 0;

		for (taken = 0; taken < n && !balanced(&b) && !long_enough(&b); taken++) {
			b.written += length;
			b.gained += each;
			b.kept -= each;
			b.requests++;
		}
		if (taken < n)
			break;
	}
	plan->asked_ns = plan->request_ns ? b.requests * b.request_ns : 0;
	/* Longer runs are written, and so many of this length. */
	for (u32 i = 0; i < d->n; i++) {
		struct fby_round_page *r = &d->page[i];

		if (r->run == length && r->run && r->leads && taken-- == 0) {
			length++; /* no more */
		}
		r->keep = r->run != 0 && r->run < length;
	}
	if (long_enough(&b) && !plan->few_kept) /* otherwise the round says little about the next */
		return;
	scale = 16 * d->n / (b.gained ? (u32)b.gained : 1);
	scale = scale < 16 ? 16 : scale > SCALE_MOST ? SCALE_MOST : scale;
	plan->scale = (3 * plan->scale + scale) / 4;
}

bool fby_plan_step(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_plan *plan = &d->plan;

	if (plan->keeps) {
		if (d->pos == 0) {
			fby_zero(plan->runs, sizeof(plan->runs));
			fby_zero(plan->listed, sizeof(plan->listed));
			plan->past = 0;
			plan->shares = plan->shared = 0;
		}
		for (u32 looked = 0; looked < MEASURE_STEP && d->pos < d->n;)
			looked += measure(p, volume);
		if (d->pos < d->n)
			return false;
		choose(p, volume);
	}
	d->pos = 0;
	plan->requests = 0;
	plan->refused_ns = 0;
	plan->began_ns = p->space->now_ns;
	return true;
}

/* Pages moved by relocation meanwhile count as well.  A single slow step is not believed: the
 * host may have been preempted, or have served others. */
void fby_plan_took(struct fby_drain *p, u16 volume)
{
	struct fby_plan *plan = &p->volume[volume].destage.plan;
	u64 ns = min_u64(p->space->now_ns - plan->copied_ns, ~0u), most = 2 * (u64)plan->copy_ns + 100;
	u32 moved = (u32)p->volume[volume].moved, n = moved - plan->moved;

	if (plan->copied && n >= COPIES_TELL)
		plan->copy_ns = (u32)(7 * (u64)plan->copy_ns + min_u64((u32)ns / n, min_u64(most, COPY_NS_MOST)) + 7) / 8;
	plan->copied = false;
	plan->moved = moved;
	plan->copied_ns = p->space->now_ns;
}

/* Combines the known value with the new sample.  Never 0, which means unknown. */
static u32 smoothed(u32 known_ns, u32 ns)
{
	if (known_ns)
		ns = (u32)((3ull * known_ns + ns) / 4);
	return ns ? ns : 1;
}

void fby_plan_written(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_plan *plan = &d->plan;
	u32 ns = (u32)min_u64(p->space->now_ns - plan->began_ns - plan->refused_ns, ~0u); /* slow enough to say so */
	u32 taken = plan->requests - d->refused.failed;

	/* If many requests were refused, few were in flight. */
	if (d->failed || taken == 0 || d->refused.failed > taken / 8)
		return;
	plan->written_ns = smoothed(plan->written_ns, ns);
	if (taken < 8)
		return;
	plan->request_ns = smoothed(plan->request_ns, ns / taken);
	plan->page_ns = smoothed(plan->page_ns, ns / d->n);
}

/* The fuller the pool, the longer are the runs, the more copies are made for room, and the
 * shorter are the rounds, each of which has a flush.  So the pool runs fuller as long as neither
 * takes much of the time of the requests.  It does not if most writes overwrite dirty pages
 * anyway, or if pages may grow too old: they do so many at a time, and only free room absorbs
 * writes until these are written. */
static void weigh_fullness(struct fby_drain *p, u16 volume)
{
	struct fby_plan *plan = &p->volume[volume].destage.plan;
	u32 moved = (u32)p->volume[volume].moved;
	u64 copies_ns = (u64)(moved - plan->judged) * plan->copy_ns, flush_ns = (u64)plan->flush_ns * FLUSH_PARTS;
	enum fby_copies copies = FBY_COPIES_FAIR;

	plan->judged = moved;
	if (fby_load(&p->space->opt.max_age_ns))
		copies = FBY_COPIES_DEAR;
	else if (plan->asked_ns == 0)
		return;
	else if (copies_ns * CHEAP_PARTS <= plan->asked_ns && flush_ns <= plan->asked_ns && plan->share <= SHARE_HOT)
		copies = FBY_COPIES_CHEAP;
	else if (copies_ns * CHEAP_PARTS > plan->asked_ns * 2 || flush_ns > plan->asked_ns * 2)
		copies = FBY_COPIES_DEAR;
	fby_fullness_judge(p->space, volume, copies);
}

void fby_plan_flushed(struct fby_drain *p, u16 volume, u64 began_ns)
{
	struct fby_plan *plan = &p->volume[volume].destage.plan;

	plan->flush_ns = smoothed(plan->flush_ns, (u32)min_u64(p->space->now_ns - began_ns, ~0u));
	weigh_fullness(p, volume);
}
