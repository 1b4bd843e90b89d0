// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_plan.c - the pages that a round of destage finds worth a request, and the numbers that it
 * decides by.
 */
#include "inside.h"

#include "drain/round.h"

static u8 buffer[FBY_PAGE];
static u32 wake;

static int put(u16 volume, u64 block)
{
	return write_block(volume, block, buffer, &wake);
}

/* Lets the next round keep pages. */
static void may_keep(void)
{
	fby_owner_count(&pool->space, 0);
	pool->space.pressure = true;
	pool->space.share = 1;
	pool->drain.volume[0].destage.forced = false;
}

static u64 seq_of(u32 c, u32 place)
{
	return fby_page_seq(&pool->cache, fby_page_number(&pool->space, c, place), 0);
}

/* Blocks 0 to 3 of the closed chunk are overwritten.  Pages that rounds have passed, or that lie
 * above the cut, are not gained again. */
static void gained_once(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	for (u64 block = 1; block < 4; block++)
		EXPECT(put(0, block) == FBY_DONE);
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->plan.keeps && d->plan.gained == 4 && d->n == BLOCKS + 2);
	pool->space.owner[0].rec.watermark = seq_of(closed_chunk, FIRST_PAGE + 2);
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->plan.gained == 1);
	pool->space.owner[0].rec.watermark = 0;
	pool->space.slot[1].floor = seq_of(closed_chunk, FIRST_PAGE + 2); /* the cut is below this */
	pool->space.slot[1].busy = 1;
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->plan.gained == 2 && d->n == 0);
	pool_restore();
}

static void measured(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->plan.keeps && d->plan.gained == 1 && d->n == BLOCKS + 2);
}

/* A clean or overwritten page needs no request.  It counts as room, once. */
static void room_alone(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_found f;

	fby_index_find(&pool->cache, fby_key(0, 5), &f);
	measured();
	pool->cache.entry[f.page].state |= FBY_ES_CLEAN;
	pool->space.chunk[closed_chunk].clean_for = pool->space.owner[0].attachment;
	EXPECT(put(0, 6) == FBY_DONE);
	EXPECT(fby_plan_step(&pool->drain, 0));
	EXPECT(d->plan.gained == 3 && d->plan.listed[0] == 0 && d->plan.runs[0] == 0);
	pool_restore();
}

/* A round keeps nothing if it has to write everything, if the volume has less than half of its
 * share, or if at most one free chunk is not owed.  Nor does it after a round that had no room for
 * its copies. */
static void who_keeps(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 owed = fby_owed(&pool->space);

	may_keep();
	d->forced = true;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && !d->plan.keeps);
	d->forced = false;
	pool->space.share = 2 * (u32)pool->space.owner[0].counted;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && d->plan.keeps);
	pool->space.share++;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && !d->plan.keeps);
	may_keep();
	pool->space.nfree = owed + 2;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && d->plan.keeps);
	pool->space.nfree = owed + 1;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && !d->plan.keeps);
	pool->space.nfree = owed + 2;
	d->plan.no_room = true;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && !d->plan.keeps);
	EXPECT(fby_plan_pages(&pool->drain, 0) > 0 && d->plan.keeps);
	pool_restore();
}

/* While writers wait for a chunk, a round that keeps nothing is short, unless it has to write
 * everything. */
static void starved_round(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	pool->drain.volume[0].pace.rate = 1u << 20;
	pool->drain.volume[0].pace.measured = true;
	d->cap = 1u << 20;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 256);
	pool->space.nfree = 0;
	EXPECT(fby_plan_pages(&pool->drain, 0) == 256);
	d->forced = true;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 256);
	pool_restore();
}

/* A page half as old as max_age is written whatever its neighbours are, and so is a zeroed block.
 */
static void always_written(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_bypass past;
	u64 done = 0;

	for (u32 old = 0; old < 2; old++) {
		pool->space.opt.max_age_ns = 1000000;
		pool->space.chunk[closed_chunk].opened_ns = 0;
		pool->space.chunk[open_chunk].opened_ns = pool->space.now_ns = 499999 + old;
		measured();
		EXPECT(fby_plan_step(&pool->drain, 0));
		EXPECT(d->plan.listed[0] == (old ? BLOCKS - 1 : 0) && d->plan.runs[0] == d->plan.listed[0]);
		pool_restore();
	}
	/* A page is written too if it would be too old once all dirty pages are written. */
	for (u32 old = 0; old < 2; old++) {
		pool->space.opt.max_age_ns = 1000000;
		pool->space.chunk[closed_chunk].opened_ns = 100000;
		pool->space.chunk[open_chunk].opened_ns = pool->space.now_ns = 100001;
		d->plan.all_ns = 999998 + old;
		measured();
		EXPECT(fby_plan_step(&pool->drain, 0));
		EXPECT(d->plan.listed[0] == (old ? BLOCKS - 1 : 0) && d->plan.shared > 0);
		pool_restore();
	}
	/* The runs in that range take this long. */
	measured();
	d->plan.request_ns = 64000;
	EXPECT(fby_plan_step(&pool->drain, 0) && d->plan.shared == BLOCKS + 2);
	EXPECT(d->plan.all_ns == pool->space.owner[0].counted * 1000 * (d->plan.shares / (BLOCKS + 2) + 1));
	pool_restore();
	/* If each page has to be written, one of eight is measured and counts for all of them, as a
	 * run of seven. */
	pool->space.opt.max_age_ns = pool->space.now_ns = 1000000;
	pool->space.chunk[closed_chunk].opened_ns = pool->space.chunk[open_chunk].opened_ns = 0;
	measured();
	EXPECT(fby_plan_step(&pool->drain, 0) && d->plan.listed[0] == BLOCKS + 2);
	EXPECT(d->plan.shared == 8 && d->plan.shares == 8 * (FBY_RUN_MOST / 7));
	pool_restore();
	/* A page that would be too old after another round is written too, while others of its
	 * chunk are kept.  It was copied there and is older than they are. */
	for (u32 old = 0; old < 2; old++) {
		struct fby_found f;

		fby_index_find(&pool->cache, fby_key(0, 5), &f);
		pool->cache.entry[f.page].state |= FBY_ES_COPY;
		pool->space.opt.max_age_ns = 1000000;
		pool->space.chunk[closed_chunk].opened_ns = 500000;
		pool->space.chunk[closed_chunk].copies_ns = 1 - old;
		pool->space.chunk[open_chunk].opened_ns = pool->space.now_ns = 750000;
		measured();
		EXPECT(fby_plan_step(&pool->drain, 0) && d->plan.listed[0] == old);
		pool_restore();
	}
	EXPECT(fby_range(pool, 0, FBY_KIND_ZERO, 17 * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS, &done, &past, &wake) == FBY_DONE);
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(fby_plan_step(&pool->drain, 0) && d->plan.listed[0] == 1 && d->plan.runs[0] == 1);
	pool_restore();
}

/* A block belongs to one run.  Block 8 does not belong to the run of 0 to 7, because its own chunk
 * is open.  The next round looks at all blocks again: block 1 belongs to the run of 2, which is the
 * first that it lists. */
static void runs_once(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	EXPECT(put(0, 8) == FBY_DONE);
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(fby_plan_step(&pool->drain, 0));
	EXPECT(d->plan.runs[8] == 1 && d->plan.listed[8] == 8 && d->plan.runs[1] == 3 && d->plan.runs[9] == 0);
	may_keep();
	fby_round_collect(&pool->drain, 0, &wake);
	d->n -= 2;
	memmove(d->page, d->page + 2, d->n * sizeof(d->page[0]));
	EXPECT(d->page[0].k == 2 && fby_plan_step(&pool->drain, 0));
	EXPECT(d->plan.runs[7] == 1 && d->plan.listed[7] == 6);
	pool_restore();
}

/* Returns how many of n runs are written.  Each has `run` blocks and one listed page, requests and
 * copies take these times, and `gained` pages are room already. */
static u32 written(u32 n, u32 run, u32 gained, u32 request_ns, u32 copy_ns)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 left = 0;

	EXPECT(n <= d->cap);
	memset(d->plan.runs, 0, sizeof(d->plan.runs));
	memset(d->plan.listed, 0, sizeof(d->plan.listed));
	memset(d->page, 0, n * sizeof(d->page[0]));
	for (u32 i = 0; i < n; i++) {
		d->page[i].run = (u8)run;
		d->page[i].leads = true;
	}
	d->plan.runs[run] = d->plan.listed[run] = d->n = d->pos = n; /* measured */
	d->plan.gained = gained;
	d->plan.request_ns = request_ns;
	d->plan.copy_ns = copy_ns;
	d->plan.keeps = true;
	d->plan.share = 0;
	d->plan.appended = 0u - 8; /* too few since to say */
	EXPECT(fby_plan_step(&pool->drain, 0));
	for (u32 i = 0; i < n; i++)
		left += d->page[i].keep;
	return n - left;
}

/* A run is written as a whole.  The list has two pages of each of ten runs. */
static void whole_runs(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_plan *plan = &d->plan;
	u32 kept = 0;

	(void)written(20, 8, 0, 1000, 0);
	for (u32 i = 1; i < 20; i += 2)
		d->page[i].leads = false;
	plan->runs[8] = 10;
	plan->listed[8] = d->pos = 20;
	plan->gained = 0;
	EXPECT(fby_plan_step(&pool->drain, 0));
	for (u32 i = 0; i < 20; i++)
		kept += d->page[i].keep;
	EXPECT(kept == 16 && !d->page[3].keep && d->page[4].keep); /* an eighth of twenty is two runs */
	pool_restore();
}

/* Tests each of the balances by itself, while the others hold. */
static void balances(void)
{
	u32 wanted = fby_spare_wanted(&pool->space), owed = fby_owed(&pool->space);

	pool->drain.volume[0].destage.plan.appended = 0;
	/* room: 8 r >= 30 + r, and half of that */
	pool->space.nfree = owed + wanted;
	EXPECT(written(16, 8, 30, 1000, 0) == 5);
	if (wanted % 2 == 0) {
		pool->space.nfree = owed + wanted / 2;
		EXPECT(written(16, 8, 30, 1000, 0) == 2);
	}
	pool->space.nfree = owed + wanted;
	for (u32 times = 4; times <= 8; times *= 2) { /* four times as much, and no more: 8 r >= 4 (10 + r) */
		pool->space.nfree = owed + times * wanted;
		EXPECT(written(16, 8, 10, 1000, 0) == 10);
	}
	pool->space.nfree = owed + wanted;
	EXPECT(written(40, 64, 0, 1000, 0) == 5); /* an eighth */
	EXPECT(written(40, 64, 0, 8000, 4000) == 20); /* time: 2 (40 - r) 4000 <= r 8000 */
	EXPECT(written(48, 64, 0, 10000000, 100000000) == 32); /* three tenths of a second */
	pool_restore();
}

/* Returns the range that a round asks for, starting from 3.  The round's requests take 1 ms.  So
 * many copies of 1 us were made since the round before, including those of relocation. */
static u32 tight_after(u32 copies, u32 flush_ns)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;

	plan->asked_ns = 1000000;
	plan->copy_ns = 1000;
	plan->flush_ns = flush_ns;
	pool->drain.volume[0].moved += copies;
	pool->space.tight = pool->space.owner[0].tight = 3;
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns - flush_ns);
	return pool->space.owner[0].tight;
}

/* The pool runs fuller if copies take at most an eighth of the requests' time and the flush at most
 * a sixteenth.  It runs less full if either takes twice as much. */
static void fuller(void)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;
	struct fby_span r;

	pool->space.store.sb.nchunks = 256;
	pool->space.nfree = fby_owed(&pool->space) + fby_spare_wanted(&pool->space);
	pool->space.tight = 3;
	r = fby_throttled_span(&pool->space);
	pool->space.live = pool->space.owner[0].counted = (r.start + r.top) / 2;
	pool->space.share = (u32)pool->space.live;
	plan->judged = (u32)pool->drain.volume[0].moved;
	EXPECT(tight_after(125, 0) == 4 && tight_after(126, 0) == 3);
	EXPECT(tight_after(250, 0) == 3 && tight_after(251, 0) == 2);
	EXPECT(tight_after(0, 62500) == 4 && tight_after(0, 62501) == 3);
	EXPECT(tight_after(0, 125000) == 3 && tight_after(0, 125001) == 2);
	plan->share = 160;
	EXPECT(tight_after(0, 0) == 4);
	plan->share++;
	EXPECT(tight_after(0, 0) == 3 && tight_after(251, 0) == 2);
	plan->share = 0;
	pool->space.opt.max_age_ns = 1;
	EXPECT(tight_after(0, 0) == 2);
	/* Everything had to be written, as after it has grown old. */
	plan->asked_ns = 0;
	pool->space.owner[0].tight = 9;
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns);
	EXPECT(pool->space.owner[0].tight == 2);
	pool->space.opt.max_age_ns = 0;
	EXPECT(tight_after(0, 0) == 4);
	/* The round reports no time of its requests: the time is unknown, or everything had to be
	 * written. */
	plan->asked_ns = 0;
	pool->space.owner[0].tight = 9;
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns);
	EXPECT(pool->space.owner[0].tight == 9);
	pool->drain.volume[0].moved += 1000; /* and its copies are not the next one's */
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns);
	EXPECT(pool->space.owner[0].tight == 9 && tight_after(125, 0) == 4);
	pool_restore();
	EXPECT(written(16, 8, 30, 1000, 0) > 0 && plan->asked_ns % 1000 == 0 && plan->asked_ns > 0);
	plan->asked_ns = 1;
	EXPECT(written(16, 8, 30, 0, 0) > 0 && plan->asked_ns == 0);
	plan->asked_ns = 1;
	(void)fby_plan_pages(&pool->drain, 0);
	EXPECT(plan->asked_ns == 0);
	pool_restore();
}

/* Sets how many pages a step kept, and how long ago it began. */
static void copies(u32 n, u64 ns)
{
	fby_plan_took(&pool->drain, 0);
	pool->drain.volume[0].destage.plan.copied = true;
	pool->drain.volume[0].moved += n;
	pool->space.now_ns += ns;
	fby_plan_took(&pool->drain, 0);
}

/* The time of a copy follows the clock over steps that made copies. */
static void copy_time(void)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;

	plan->copy_ns = 1000;
	copies(10, 18000);
	EXPECT(plan->copy_ns == 1100 && !plan->copied);
	copies(7, 1000000); /* too few to say */
	EXPECT(plan->copy_ns == 1100);
	pool->drain.volume[0].moved += 100; /* relocation's alone */
	pool->space.now_ns += 1000000000;
	fby_plan_took(&pool->drain, 0);
	EXPECT(plan->copy_ns == 1100);
	copies(10, 0);
	EXPECT(plan->copy_ns == (7 * 1100 + 7) / 8);
	for (u32 i = 0; i < 200; i++)
		copies(8, 60000000000ull);
	EXPECT(plan->copy_ns > 500000);
	for (u32 i = 0; i < 300; i++)
		copies(16, 8000);
	EXPECT(plan->copy_ns >= 500 && plan->copy_ns < 510);
	pool_restore();
}

/* No copies are made if they take longer than requests. */
static void copies_are_dear(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	for (u32 dear = 0; dear < 2; dear++) {
		u32 kept = 0;

		for (u64 block = 40; block < 60; block += 4)
			EXPECT(put(0, block) == FBY_DONE);
		fby_round_collect(&pool->drain, 0, &wake);
		pool->space.nfree = fby_owed(&pool->space) + 1; /* so that little has to be written */
		d->plan.keeps = true;
		d->plan.request_ns = 100000;
		d->plan.copy_ns = dear ? 1000000 : 100;
		while (!fby_plan_step(&pool->drain, 0))
			;
		for (u32 i = 0; i < d->n; i++)
			kept += d->page[i].keep;
		EXPECT(d->n > 10 && (dear ? kept == 0 : kept > 0));
		pool_restore();
	}
}

/* The time of a request is right even after a very slow round, but not after a failed one. */
static void request_time(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	pool->space.now_ns = 100000000000ull;
	d->n = 40;
	d->plan.requests = 10;
	d->plan.request_ns = 1000;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns > 100000000);
	d->plan.request_ns = 1000;
	d->plan.began_ns = pool->space.now_ns - 20000;
	d->failed = true;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns == 1000);
	EXPECT(d->plan.written_ns == 4294967295u); /* the time of the slow one */
	d->failed = false;
	d->plan.page_ns = 1000;
	d->plan.written_ns = 0;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns == 1250 && d->plan.page_ns == 875 && d->plan.written_ns == 20000);
	d->plan.requests = 1; /* says how long the round was, and little of requests */
	d->plan.began_ns -= 4000;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns == 1250 && d->plan.page_ns == 875 && d->plan.written_ns == 21000);
	d->plan.requests = 0;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.written_ns == 21000);
	/* A refused request does not count, and neither does its time.  If many were refused, the
	 * others waited. */
	d->plan.request_ns = d->plan.page_ns = d->plan.written_ns = 0;
	d->plan.requests = 17;
	d->plan.began_ns = pool->space.now_ns - 10016000;
	d->plan.refused_ns = 10000000;
	d->refused.failed = 3;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns == 0 && d->plan.written_ns == 0);
	d->refused.failed = 1;
	fby_plan_written(&pool->drain, 0);
	EXPECT(d->plan.request_ns == 1000 && d->plan.page_ns == 400 && d->plan.written_ns == 16000);
	pool_restore();
}

/* A round is as long as a quarter of a second of requests, whatever the flush takes. */
static void flush_not_counted(void)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;
	struct fby_pace *pace = &pool->drain.volume[0].pace;

	pool->space.pressure = false;
	pace->measured = true;
	pace->rate = 4000;
	EXPECT(fby_pace_round(&pool->drain, 0, 1u << 20) == 1000);
	plan->flush_ns = 24000;
	EXPECT(fby_pace_round(&pool->drain, 0, 1u << 20) == 1000);
	plan->written_ns = 16 * 999;
	EXPECT(fby_pace_round(&pool->drain, 0, 1u << 20) == 2500);
	pool_restore();
}

/* If a flush is expensive compared with the requests of a short round, the list becomes longer,
 * within the room.  It takes up to three quarters of the room, or half before anything is known. */
static void flush_is_dear(void)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;
	u32 room = (fby_spare(&pool->space) - 1) * (pool->space.store.chunk_pages - FIRST_PAGE), between = room * 5 / 8;

	may_keep();
	pool->drain.volume[0].pace.rate = 1u << 20;
	pool->drain.volume[0].pace.measured = true;
	plan->scale = 1u << 20;
	pool->drain.volume[0].destage.cap = 1u << 20; /* only room is in the way */
	EXPECT(fby_plan_pages(&pool->drain, 0) == room / 2);
	plan->page_ns = 1600;
	plan->flush_ns = 100;
	EXPECT(fby_plan_pages(&pool->drain, 0) == room / 2);
	plan->flush_ns = 100 * between;
	EXPECT(fby_plan_pages(&pool->drain, 0) == between);
	plan->flush_ns = ~0u;
	EXPECT(fby_plan_pages(&pool->drain, 0) == room - room / 4);
	/* The flush is measured like requests. */
	plan->flush_ns = 0;
	pool->space.now_ns += 1000;
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns - 1000);
	EXPECT(plan->flush_ns == 1000);
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns - 2000);
	EXPECT(plan->flush_ns == 1250);
	fby_plan_flushed(&pool->drain, 0, pool->space.now_ns - 1);
	for (u32 i = 0; i < 30; i++)
		fby_plan_flushed(&pool->drain, 0, pool->space.now_ns);
	EXPECT(plan->flush_ns == 1);
	pool_restore();
}

/* A round of the greatest length shows how much it releases if most of it must be written anyway.
 * Otherwise its time was up before. */
static void learnt_by_long_rounds(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_plan *plan = &d->plan;

	measured();
	d->pos = d->n;
	plan->gained = 0;
	plan->runs[0] = plan->listed[0] = 40; /* which are all to be written */
	plan->request_ns = 1000000000;
	plan->scale = 64;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->scale == (3 * 64 + 16) / 4);
	d->pos = d->n;
	plan->listed[0] = 1;
	plan->scale = 16;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->scale == 16);
	pool_restore();
}

/* A list of pages that must all be written is as long as the requests of three tenths of a second.
 */
static void few_kept_bounds(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_plan *plan = &d->plan;

	measured();
	d->pos = d->n;
	plan->listed[0] = d->n / 2;
	EXPECT(fby_plan_step(&pool->drain, 0) && !plan->few_kept);
	d->pos = d->n;
	plan->listed[0]++;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->few_kept);
	pool->drain.volume[0].pace.rate = 1u << 20;
	pool->drain.volume[0].pace.measured = true;
	d->cap = 1u << 20;
	pool->space.store.chunk_pages = 10000;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 300);
	plan->page_ns = 1000000;
	EXPECT(fby_plan_pages(&pool->drain, 0) == 300);
	plan->page_ns = 10000000;
	EXPECT(fby_plan_pages(&pool->drain, 0) == 64);
	plan->few_kept = false;
	EXPECT(fby_plan_pages(&pool->drain, 0) > 300);
	pool_restore();
}

/* A seventh of the pages written meanwhile overwrote others, and is not rounded to none.  If there
 * are fewer dead pages than before, none did. */
static void overwrites(void)
{
	struct fby_plan *plan = &pool->drain.volume[0].destage.plan;

	measured();
	plan->share = 0;
	plan->appended -= 100;
	plan->overwritten = 1000;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->share == 0);
	pool->drain.volume[0].destage.pos = 0;
	plan->appended -= 700;
	plan->overwritten -= 100;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->share == (36 + 2) / 4);
	/* Copies append pages, and their sources die.  That counts as no overwrite. */
	pool->drain.volume[0].destage.pos = 0;
	plan->share = 0;
	plan->appended -= 700;
	pool->drain.volume[0].moved += 350;
	pool->space.slot[0].volume[0].pages += 350;
	pool->space.slot[0].volume[0].dead += 350;
	EXPECT(fby_plan_step(&pool->drain, 0) && plan->share == 0);
	pool_restore();
}

void test_plan(void)
{
	gained_once();
	room_alone();
	who_keeps();
	starved_round();
	always_written();
	runs_once();
	balances();
	whole_runs();
	fuller();
	copy_time();
	copies_are_dear();
	request_time();
	flush_not_counted();
	flush_is_dear();
	few_kept_bounds();
	learnt_by_long_rounds();
	overwrites();
}
