// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_refused.c - rounds of which the origin refused some requests.  The tests check which pages
 * count, when they are tried again, which may be copied, and how much the next round lists.
 */
#include "inside.h"

#include "drain/round.h"

#define P FBY_PAGE_SECTORS
#define SECOND 1000000000ull

static u32 wake;

static struct fby_destage *destage(void)
{
	return &pool->drain.volume[0].destage;
}

static u32 page_of(u64 block)
{
	struct fby_found f;

	fby_index_find(&pool->cache, fby_key(0, block), &f);
	return f.page;
}

static bool marked(u64 block)
{
	return pool->cache.entry[page_of(block)].state & FBY_ES_REFUSED;
}

static int step(struct fby_io *io)
{
	u64 next;

	return fby_destage_step(pool, pool->space.now_ns, io, &next, &wake);
}

/* A round lists all blocks: 0 to 7, 16 and 17. */
static void listed(void)
{
	pool->space.now_ns = 100 * SECOND;
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(destage()->n == BLOCKS + 2);
}

static struct fby_io_slot request(u64 sector, u64 nsectors, bool again)
{
	return (struct fby_io_slot){ .sector = sector, .nsectors = nsectors, .again = again };
}

static void refuse(u64 sector, u64 nsectors, bool again)
{
	struct fby_io_slot io = request(sector, nsectors, again);

	fby_refused_failed(&pool->drain, 0, &io);
}

static void taken(bool again)
{
	struct fby_io_slot io = request(0, P, again);

	fby_refused_taken(destage(), &io);
}

/* --- which pages ------------------------------------------------------------------------ */

/* Each page counts as refused if one of its sectors was in the request, and no other. */
static void pages(void)
{
	struct fby_destage *d = destage();

	listed();
	refuse(2 * P + 7, 2 * P - 6, false); /* the end of 2, 3, and a sector of 4 */
	for (u32 i = 0; i < d->n; i++) {
		bool meets = d->page[i].k >= 2 && d->page[i].k <= 4;

		EXPECT((d->page[i].carry == FBY_CARRY_REFUSED) == meets && marked(d->page[i].k) == meets);
	}
	EXPECT(d->refused.last == pool->space.seq - 1 && d->refused.failed == 1 && d->refused.doubt);
	pool_restore();
}

/* Neighbours that were written along count too.  The first two of three were in the request. */
static void along(void)
{
	struct fby_destage *d = destage();

	listed();
	d->n = 0;
	d->pulled = 3;
	for (u32 i = 1; i <= 3; i++) {
		d->page[d->cap - i].k = 3 + i;
		d->page[d->cap - i].page = page_of(3 + i);
	}
	refuse(4 * P, 2 * P, false);
	EXPECT(d->page[d->cap - 1].page == FBY_NO_PAGE && d->page[d->cap - 2].page == FBY_NO_PAGE);
	EXPECT(d->page[d->cap - 3].page == page_of(6) && marked(4) && marked(5) && !marked(6));
	pool_restore();
}

/* A page that is not tried is neither a choice nor room. */
static void not_planned(void)
{
	struct fby_destage *d = destage();

	for (u32 tried = 0; tried < 2; tried++) {
		pool->cache.entry[page_of(16)].state |= FBY_ES_REFUSED;
		d->refused.retry_ns = tried ? 0 : FBY_NO_SEQ;
		listed();
		d->plan.keeps = true;
		d->plan.gained = 0;
		while (!fby_plan_step(&pool->drain, 0))
			;
		EXPECT(d->plan.listed[0] == tried && d->plan.runs[0] == tried && d->plan.gained == 0);
		EXPECT(!d->page[8].keep && d->page[8].k == 16);
		pool_restore();
	}
}

/* --- when ------------------------------------------------------------------------------- */

/* Refused pages are tried after the pause, and in each round after one that was given up. */
static void tried(void)
{
	struct fby_destage *d = destage();

	pool->space.now_ns = 100 * SECOND;
	d->refused.retry_ns = 100 * SECOND + 1;
	fby_refused_begin(&pool->drain, 0);
	EXPECT(!d->refused.trying && !d->refused.doubt);
	d->refused.retry_ns--;
	fby_refused_begin(&pool->drain, 0);
	EXPECT(d->refused.trying && !d->refused.doubt);
	d->refused.retry_ns = FBY_NO_SEQ;
	d->backoff_ns = 1;
	fby_refused_begin(&pool->drain, 0);
	EXPECT(d->refused.trying && d->refused.doubt);
	taken(false);
	EXPECT(!d->refused.doubt);
	pool_restore();
}

/* Ends a round that tries them: some pages that were refused before failed, or some were taken. */
static u64 pause_after(bool trying, bool failed, bool was_taken)
{
	struct fby_refused *f = &destage()->refused;

	f->trying = trying;
	f->failed = failed;
	f->again_failed = failed;
	f->again_taken = was_taken;
	fby_refused_pause(&pool->drain, f);
	return f->retry_ns - pool->space.now_ns;
}

static void pauses(void)
{
	struct fby_refused *f = &destage()->refused;
	u64 least = SECOND / 10, ns = least;

	pool->space.now_ns = 100 * SECOND;
	EXPECT(pause_after(true, true, false) == least);
	for (u32 i = 0; i < 8; i++)
		EXPECT(pause_after(true, true, false) == (ns *= 2));
	EXPECT(pause_after(true, true, false) == 30 * SECOND && pause_after(true, true, false) == 30 * SECOND);
	pool->space.now_ns += SECOND;
	EXPECT(pause_after(false, true, false) == 29 * SECOND); /* others, in a round that does not try these */
	EXPECT(pause_after(true, true, true) == least && f->pause_ns == least);
	f->again_failed = false; /* one that was not refused before */
	f->again_taken = false;
	fby_refused_pause(&pool->drain, f);
	EXPECT(f->pause_ns == least);
	pool_restore();
}

/* From the fourth refusal in a row on, pages are left out, each kind by itself, until one is taken.
 */
static void streaks(void)
{
	struct fby_refused *f = &destage()->refused;
	u32 most = 0, left = 0;

	fby_refused_begin(&pool->drain, 0);
	for (u32 i = 1; i < 12; i++) {
		refuse(1000 * P, P, true);
		most = i < 4 ? 0 : 4 * most + 1;
		EXPECT(f->streak[1].most == most && f->streak[1].leave <= most && f->streak[0].failed == 0);
	}
	f->streak[1].leave = 2;
	EXPECT(!fby_refused_leaves(f, 0));
	while (fby_refused_leaves(f, FBY_ES_REFUSED))
		left++;
	EXPECT(left == 2);
	taken(false);
	EXPECT(f->streak[1].most == most);
	taken(true);
	EXPECT(f->streak[1].most == 0 && f->streak[1].failed == 0 && f->again_taken);
	for (u32 again = 0; again < 2; again++) /* nor is what comes to the next round */
		f->streak[again].failed = f->streak[again].most = f->streak[again].leave = 7;
	fby_refused_begin(&pool->drain, 0);
	for (u32 again = 0; again < 2; again++)
		EXPECT(f->streak[again].failed == 0 && f->streak[again].most == 0 && !fby_refused_leaves(f, again * FBY_ES_REFUSED));
	pool_restore();
}

/* --- what becomes of the round ------------------------------------------------------------ */

/* Judges a list of `refused` pages that the origin refused and `goes` that it did not. */
static enum fby_phase judged(u32 refused, u32 goes, bool trying, u32 failed)
{
	struct fby_destage *d = destage();
	u32 asked = d->refused.asked;

	d->cap = 64;
	listed();
	d->cap = 400;
	d->refused.asked = asked;
	EXPECT(refused + goes <= 200);
	d->n = refused + goes;
	for (u32 i = 0; i < d->n; i++) { /* the same page many times: it is looked at alone */
		d->page[i] = (struct fby_round_page){ .k = 5, .page = page_of(5) };
		d->page[i].carry = i < refused ? FBY_CARRY_REFUSED : FBY_CARRY_NO;
	}
	d->refused.trying = trying;
	d->refused.failed = failed;
	d->refused.last = 1;
	return fby_refused_judge(&pool->drain, 0);
}

static void copies_bounded(void)
{
	struct fby_refused *f = &destage()->refused;

	EXPECT(judged(0, 9, false, 0) == FBY_PH_FLUSH && f->reserve);
	EXPECT(judged(9, 9, false, 0) == FBY_PH_FLUSH && f->reserve);
	EXPECT(judged(10, 9, false, 0) == FBY_PH_FLUSH && !f->reserve);
	EXPECT(judged(127, 1, false, 0) == FBY_PH_FLUSH);
	EXPECT(judged(127, 1, false, 3) == FBY_PH_FLUSH);
	EXPECT(judged(128, 1, true, 3) == FBY_PH_FLUSH);
	f->behind = ~0u; /* it has looked as far as it can */
	EXPECT(judged(128, 1, false, 0) == FBY_PH_IDLE && f->waits && f->waits_writes == FBY_NO_SEQ);
	EXPECT(judged(128, 1, false, 3) == FBY_PH_BACKOFF && destage()->failed && f->behind == 256);
	EXPECT(judged(12, 0, true, 3) == FBY_PH_BACKOFF && f->behind == 24);
	pool_restore();
}

/* A page whose sound sectors were taken, while the rest is lost, is no room.  It is carried too. */
static void lost_is_no_room(void)
{
	struct fby_destage *d = destage();

	EXPECT(judged(9, 9, false, 0) == FBY_PH_FLUSH && d->refused.reserve);
	for (u32 i = 9; i < 18; i++)
		d->page[i].carry = FBY_CARRY_LOST;
	EXPECT(fby_refused_judge(&pool->drain, 0) == FBY_PH_FLUSH && !d->refused.reserve);
	pool_restore();
}

/* After a list of refused pages alone, later pages are examined as long as more are found.  A round
 * that ends begins anew. */
static void looks_behind(void)
{
	struct fby_destage *d = destage();
	struct fby_refused *f = &d->refused;

	f->asked = 40;
	EXPECT(judged(40, 0, false, 0) == FBY_PH_IDLE && !f->waits && f->behind == 40);
	f->asked = 80;
	EXPECT(judged(80, 0, false, 0) == FBY_PH_IDLE && !f->waits && f->behind == 80);
	f->asked = 120;
	EXPECT(judged(80, 0, false, 0) == FBY_PH_IDLE && f->waits && f->behind == 80);
	f->behind = 0;
	d->cap = 400;
	f->asked = fby_round_most(d);
	EXPECT(judged(80, 0, false, 0) == FBY_PH_IDLE && f->waits);
	f->behind = 80;
	EXPECT(judged(80, 40, false, 0) == FBY_PH_FLUSH && f->behind == 0);
	f->behind = 80;
	EXPECT(judged(80, 40, true, 3) == FBY_PH_FLUSH && f->behind == 0); /* some were refused anew */
	pool_restore();
}

/* Nothing of the longer list is kept, and a list that must be short is not longer. */
static void longer_lists(void)
{
	struct fby_destage *d = destage();
	u32 n;

	d->cap = 4000;
	pool->space.pressure = true;
	pool->space.share = 1;
	fby_owner_count(&pool->space, 0);
	(void)fby_plan_pages(&pool->drain, 0);
	EXPECT(d->plan.keeps);
	d->plan.keeps = false;
	d->refused.behind = 1; /* it does not keep */
	n = fby_plan_pages(&pool->drain, 0) - 1;
	EXPECT(!d->plan.keeps && d->refused.asked == n + 1 && !d->refused.longer);
	d->refused.behind = n;
	EXPECT(fby_plan_pages(&pool->drain, 0) == 2 * n && !d->refused.longer);
	d->refused.behind = 700;
	EXPECT(n < 700 && fby_plan_pages(&pool->drain, 0) == n + 700 && d->refused.longer);
	d->refused.behind = ~0u;
	EXPECT(fby_plan_pages(&pool->drain, 0) == fby_round_most(d));
	d->refused.narrow = true;
	EXPECT(fby_plan_pages(&pool->drain, 0) == DATA_PAGES && !d->refused.narrow && !d->refused.longer);
	pool->drain.volume[2].destage.refused.longer = true; /* from the round before: this round only packs */
	(void)fby_plan_pages(&pool->drain, 2);
	EXPECT(!pool->drain.volume[2].destage.refused.longer);
	pool_restore();
}

/* A write arrives during a round that was made long to look past refused pages.  The round is given
 * up once the requests in flight have ended.  It releases nothing, and the next round is a usual
 * one.  This happens only once until a round has ended. */
static void cut_short(void)
{
	struct fby_destage *d = destage();
	u64 rounds = pool->drain.volume[0].rounds;
	struct fby_io io;

	for (u32 before = 0; before < 2; before++) {
		listed();
		d->phase = FBY_PH_WRITE;
		d->backoff_ns = SECOND;
		d->refused.doubt = true;
		d->refused.behind = 100;
		d->refused.longer = true;
		d->refused.cut_short = before;
		d->refused.last = FBY_NO_SEQ - 1; /* more is refused still */
		d->drain = true;
		EXPECT(step(&io) == FBY_ORIGIN && io.op == FBY_IO_WRITE && step(&io) == FBY_DONE);
		fby_destage_complete(pool, io.id, 0);
		EXPECT(step(&io) == (before ? FBY_ORIGIN : FBY_AGAIN) && d->refused.cut_short);
		EXPECT(d->phase == (before ? FBY_PH_WRITE : FBY_PH_IDLE));
		EXPECT(d->refused.behind == (before ? 100 : 0) && d->backoff_ns == (before ? SECOND : 0));
		if (!before) { /* refused pages are tried at once, and nothing is destaged */
			EXPECT(d->refused.retry_ns == pool->space.now_ns && page_of(0) != FBY_NO_PAGE && page_of(17) != FBY_NO_PAGE);
			pool_restore();
			continue;
		}
		for (u32 i = 0; i < 100 && pool->drain.volume[0].rounds == rounds; i++) {
			fby_destage_complete(pool, io.id, 0);
			for (u32 k = 0; k < 100 && pool->drain.volume[0].rounds == rounds && step(&io) != FBY_ORIGIN; k++)
				;
		}
		EXPECT(pool->drain.volume[0].rounds == rounds + 1 && !d->refused.cut_short);
		pool_restore();
	}
	listed(); /* not while a request is in flight */
	d->phase = FBY_PH_WRITE;
	EXPECT(step(&io) == FBY_ORIGIN && d->outstanding == 1);
	d->backoff_ns = SECOND;
	d->refused.longer = true;
	EXPECT(fby_refused_heals(d) && step(&io) == FBY_DONE && d->phase == FBY_PH_WRITE);
	fby_destage_complete(pool, io.id, 0);
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_IDLE && d->outstanding == 0);
	pool_restore();
	listed();
	d->backoff_ns = SECOND;
	d->refused.longer = true;
	d->pos = d->n; /* nor where all has been sent */
	EXPECT(!fby_refused_heals(d));
	d->pos--;
	EXPECT(fby_refused_heals(d));
	d->refused.doubt = true;
	EXPECT(!fby_refused_heals(d));
	d->refused.doubt = false;
	d->refused.longer = false;
	EXPECT(!fby_refused_heals(d));
	d->refused.longer = true;
	d->backoff_ns = 0;
	EXPECT(!fby_refused_heals(d));
	pool_restore();
}

/* The volume rests until its time, or until it is written to if nothing else was found. */
static void rests(void)
{
	struct fby_refused *f = &destage()->refused;
	struct fby_io io;

	for (u32 other = 0; other < 2; other++) {
		f->behind = ~0u;
		f->retry_ns = 200 * SECOND;
		EXPECT(judged(150, other, false, 0) == FBY_PH_IDLE && fby_refused_waits(&pool->drain, 0));
		EXPECT(pool->drain.retry_ns <= 200 * SECOND);
		pool->space.slot[0].volume[0].writes++;
		EXPECT(fby_refused_waits(&pool->drain, 0) == other);
		pool->space.now_ns = 200 * SECOND - 1;
		EXPECT(fby_refused_waits(&pool->drain, 0) == other);
		pool->space.now_ns = 200 * SECOND;
		EXPECT(!fby_refused_waits(&pool->drain, 0) && !f->waits);
		pool_restore();
	}
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE); /* nor does a drain begin a round */
	f->waits = true;
	f->waits_writes = FBY_NO_SEQ;
	f->retry_ns = pool->space.now_ns + SECOND;
	EXPECT(step(&io) == FBY_DONE && destage()->phase == FBY_PH_IDLE && destage()->drain);
	pool->space.now_ns += SECOND;
	EXPECT(step(&io) == FBY_AGAIN && destage()->phase == FBY_PH_PLAN);
	pool_restore();
}

/* The error stays until the watermark has passed the last refused page. */
static void told(void)
{
	struct fby_drained *v = &pool->drain.volume[0];

	v->last_error = 5;
	v->destage.refused.last = 100;
	v->destage.refused.pause_ns = v->destage.refused.areas = 7;
	fby_refused_passed(&pool->drain, 0, 99);
	EXPECT(v->last_error == 5 && v->destage.refused.last == 100 && v->destage.refused.areas == 7);
	fby_refused_passed(&pool->drain, 0, 100);
	EXPECT(v->last_error == 0 && v->destage.refused.last == 0 && v->destage.refused.pause_ns == 0);
	EXPECT(v->destage.refused.areas == 0);
	pool_restore();
}

void test_refused(void)
{
	pages();
	along();
	not_planned();
	tried();
	pauses();
	streaks();
	copies_bounded();
	lost_is_no_room();
	looks_behind();
	longer_lists();
	cut_short();
	rests();
	told();
}
