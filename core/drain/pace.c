// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * pace.c - smooth behaviour when more is written than the origin takes.
 *
 * Throttle: between the high watermark and full, a volume's writes are spaced so that its intake
 * matches what it frees: pages destaged, and pages overwritten.  The lower half of that range
 * takes a burst at full speed.  In the middle of the upper half the two are equal; above it the
 * intake is lower, below it higher.  So the level settles there, and the pool becomes full only
 * when an origin has stopped.  Each volume is measured separately: one that cannot drain does not
 * slow the others.
 *
 * Depth: as many origin writes in flight as leave a request's latency below about twice that of a
 * request which finds the origin idle.  More would add waiting and no throughput.
 */
#include "drain/drain.h"

#define RATE_START 16384u  /* pages a second, until it is known */
#define ROUND_FIRST 256u  /* pages of a round, until then */
#define RATE_MIN 8u	   /* a stalled origin: writers crawl, they do not hang */
#define RATE_MAX 0x3fffffffu
#define BURST_NS 5000000ull /* unused time that a volume may save up */
#define DELAY_MAX_NS 1000000000ull
#define READ_RECENT_NS 10000000ull

void fby_pace_start(struct fby_pace *pace, u32 nrequests)
{
	pace->rate = RATE_START;
	pace->depth = nrequests < 4 ? nrequests : 4;
}

/* Pages a second that the volume may take in at this level. */
static u32 intake(u32 rate, u32 level)
{
	u32 share = level < FBY_LEVEL_FULL ? 2 * (FBY_LEVEL_FULL - level) : 0;
	u64 pages = (u64)rate * share >> 10;
	/* In a pool of few chunks one more chunk is most of the range: the intake is never much
	 * slower than the rate of freeing. */
	u32 least = rate >> 4 > RATE_MIN ? rate >> 4 : RATE_MIN;

	return pages > least ? (u32)pages : least;
}

/* Nanoseconds that a page has to wait; 0: not throttled. */
static u64 page_cost(const struct fby_drain *p, u16 volume)
{
	u32 level = fby_load(&p->space->owner[volume].level);

	return level ? 1000000000u / intake(fby_load(&p->volume[volume].pace.rate), level) : 0;
}

u32 fby_pace_intake(const struct fby_drain *p, u16 volume)
{
	u64 cost = page_cost(p, volume);

	return cost ? 1000000000u / (u32)cost : 0;
}

void fby_pace_tick(struct fby_drain *p, u16 volume)
{
	struct fby_pace *pace = &p->volume[volume].pace;
	/* Pages that are no longer dirty: overwritten, released, or clean. */
	u64 sum = fby_owner_dead(p->space, volume) - p->volume[volume].moved + fby_owner_clean(p->space, volume);
	u64 gone = sum - pace->gone;
	u64 ms = (p->space->now_ns - pace->sample_ns) >> 20; /* of 1.05 ms */
	u32 now;

	pace->gone = sum;
	pace->sample_ns = p->space->now_ns;
	if (ms > 0 && ms < 2048 && gone < RATE_MAX) {
		now = (u32)((gone * (u64)(954u * 256u / (u32)ms)) >> 8); /* 954 of these make a second */
		if (now > RATE_MAX)
			now = RATE_MAX;
		/* The origin shows its speed only while destage keeps it busy. */
		if ((p->space->pressure || fby_short(p->space)) && (pace->measured || gone >= ROUND_FIRST / 2)) {
			fby_store(&pace->rate, pace->measured ? pace->rate - (pace->rate >> 3) + (now >> 3) : now);
			pace->measured = true;
		}
	}
	fby_level_update(p->space, volume);
}

u64 fby_pace_delay(struct fby_drain *p, u16 volume, u32 nsectors, u64 now_ns)
{
	struct fby_pace *pace;
	u64 cost, next, from;

	if (volume >= p->space->store.sb.nvolumes)
		return 0;
	pace = &p->volume[volume].pace;
	cost = page_cost(p, volume);
	if (fby_likely(cost == 0))
		return 0;
	cost *= (nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	for (;;) {
		next = fby_load(&pace->next_ns);
		from = next + BURST_NS < now_ns ? now_ns - BURST_NS : next;
		if (from > now_ns + DELAY_MAX_NS) /* the clock changed, or the rate is long outdated */
			from = now_ns + DELAY_MAX_NS;
		if (fby_cmpxchg(&pace->next_ns, next, from + cost))
			break;
	}
	next = from + cost;
	if (next <= now_ns)
		return 0;
	next -= now_ns;
	if (next > DELAY_MAX_NS)
		next = DELAY_MAX_NS;
	fby_fetch_add(&pace->delay_ns, next);
	return next;
}

/* Pages freed in a quarter of a second, without the time of flushes.  The rate includes the
 * flushes: with the rate alone a slow flush would shorten the rounds, and these lower the rate,
 * down to a few pages per flush. */
static u64 quarter(const struct fby_drain *p, u16 volume)
{
	const struct fby_plan *plan = &p->volume[volume].destage.plan;
	u64 pages = p->volume[volume].pace.rate / 4;

	/* In sixteenths, without a division of 64 bits. */
	return plan->written_ns ? pages + pages * (plan->flush_ns / (plan->written_ns / 16 + 1)) / 16 : pages;
}

u32 fby_pace_round(const struct fby_drain *p, u16 volume, u32 cap)
{
	const struct fby_pace *pace = &p->volume[volume].pace;
	struct fby_span live = fby_throttled_span(p->space);
	u64 pages = quarter(p, volume);
	/* Pages are released in steps that are small compared with the throttle's range;
	 * otherwise the level swings from one end to the other. */
	u64 step = live.top > live.start ? (live.top - live.start) / 8 : 0;

	if (!pace->measured) /* somebody waits for the first of them */
		step = ROUND_FIRST;
	if (p->space->pressure && pages > step)
		pages = step;
	if (pages < 64)
		pages = 64;
	return pages < cap ? (u32)pages : cap;
}

u32 fby_pace_depth(struct fby_drain *p, u16 volume)
{
	struct fby_pace *pace = &p->volume[volume].pace;
	u64 last = fby_load(&pace->read_ns);
	/* Foreground reads have priority, unless writers wait for space: a slower drain would
	 * delay these, and stay slow, since they are admitted at its rate.  A client that reads
	 * one block after the other will be back, so the queue is not filled in between. */
	bool reads = fby_load(&pace->foreground) || (last && p->space->now_ns - last < READ_RECENT_NS);

	if (reads && FBY_BUG(READS_LEAVE_NONE))
		return 0;
	return reads && fby_load(&p->space->owner[volume].level) == 0 ? (pace->depth + 3) / 4 : pace->depth;
}

void fby_pace_latency(struct fby_pace *pace, u32 ns, bool alone)
{
	/* A request that foreground reads delayed says nothing about the queue; one delayed by
	 * other causes says little. */
	if (fby_load(&pace->foreground))
		return;
	if (pace->base_ns && ns >> 2 > pace->base_ns)
		ns = pace->base_ns << 2;
	if (alone)
		pace->base_ns = pace->base_ns ? pace->base_ns - (pace->base_ns >> 3) + (ns >> 3) : ns;
	pace->latency_ns = pace->latency_ns ? pace->latency_ns - (pace->latency_ns >> 4) + (ns >> 4) : ns;
}

void fby_pace_adapt(struct fby_pace *pace, u32 nrequests)
{
	u32 more = pace->depth + 1 + pace->depth / 4; /* few rounds a second, and many writes to send */

	if (pace->latency_ns < pace->base_ns + (pace->base_ns >> 1) && pace->depth < nrequests)
		fby_store(&pace->depth, more < nrequests ? more : nrequests);
	else if (pace->latency_ns > 2 * (u64)pace->base_ns + (pace->base_ns >> 1) && pace->depth > 1)
		fby_store(&pace->depth, pace->depth - 1);
}

void fby_pace_foreground(struct fby_drain *p, u16 volume, bool begin)
{
	struct fby_pace *pace;

	if (volume >= p->space->store.sb.nvolumes)
		return;
	pace = &p->volume[volume].pace;
	if (!begin)
		fby_store(&pace->read_ns, fby_load(&p->space->now_ns));
	fby_fetch_add(&pace->foreground, begin ? 1u : ~0u);
}
