// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * bypass.c - writes that go past the cache, straight to the origin, and the
 * flushes that they need.
 *
 * Only blocks that are not cached may.  A block stops being cached when a round
 * of destage lets go of its page, and then the origin has it and was flushed,
 * no origin write of it is in flight, and the watermark, durable, is above all
 * its entries.  So there is nothing to wait for, nothing that a start could
 * bring back, and no marker is needed.
 *
 * While the origin's write is in flight its blocks stand in a range that whoever
 * writes them through the cache waits for.  Else the older data, still on its way
 * to the origin, could arrive after the newer was destaged.  No lock is held
 * across the write, and the order of looks makes it exact: begin shows the range
 * and then takes each block's bucket for a moment; a writer takes the bucket and
 * then looks at the ranges.  Whoever had the bucket second has seen the other: a
 * writer the range, begin the page that was published.
 */
#include "index.h"

#define BYPASS_BLOCKS 2048u /* of one range: 8 MiB */

bool fby_bypass_meets(const struct fby_volume *v, u64 block)
{
	u32 busy = fby_load_acquire(&v->bypassing);

	if (FBY_BUG(BYPASS_OVERTAKEN))
		return false;
	for (; busy; busy &= busy - 1) {
		const struct fby_bypass_range *r = &v->range[__builtin_ctz(busy)];

		if (block >= fby_load(&r->first) && block < fby_load(&r->end))
			return true;
	}
	return false;
}

/* Shows [first, *end), less from where another range begins.  False: the first
 * block is in another, or too many are in use. */
static bool range_claim(struct fby_pool *p, struct fby_volume *v, u64 first, u64 *end, u16 *place)
{
	u32 busy, others;
	bool room;

	fby_lock(&p->lock);
	busy = fby_load_acquire(&v->bypassing);
	room = busy != ~0u;
	/* Nothing is owed: what destage was told so far is of no account. */
	if (busy == 0 && fby_load(&v->bypass_flushed) >= fby_load(&v->bypass_ended))
		fby_store(&v->flush_told, fby_load(&v->flush_failures));
	for (others = busy; others; others &= others - 1) {
		const struct fby_bypass_range *r = &v->range[__builtin_ctz(others)];

		if (first < fby_load(&r->end) && *end > fby_load(&r->first))
			*end = fby_load(&r->first);
	}
	room = room && *end > first;
	if (room) {
		*place = (u16)__builtin_ctz(~busy);
		fby_store(&v->range[*place].first, first);
		fby_store(&v->range[*place].end, *end);
		fby_fetch_or(&v->bypassing, 1u << *place);
	}
	fby_unlock(&p->lock);
	return room;
}

static void range_release(struct fby_volume *v, u16 place)
{
	FBY_ASSERT(fby_load(&v->bypassing) >> place & 1);
	fby_fetch_and(&v->bypassing, ~(1u << place));
}

/* The first block of [block, end) that is cached or busy, or end. */
static u64 uncached_until(struct fby_pool *p, u16 volume, u64 block, u64 end, bool *cached)
{
	for (*cached = false; block < end; block++) {
		u64 key = fby_key(volume, block);
		u32 b = fby_index_bucket(p, key);

		if (!fby_index_try(p, b))
			break;
		*cached = fby_index_get_locked(p, b, key) != FBY_NO_PAGE && !FBY_BUG(BYPASS_OVER_CACHED);
		fby_index_release(p, b);
		if (*cached)
			break;
	}
	return block;
}

/* The first block of [block, end) that is not cached, or end: a hint. */
static u64 cached_until(struct fby_pool *p, u16 volume, u64 block, u64 end)
{
	struct fby_found f;

	for (; block < end; block++) {
		fby_index_find(p, fby_key(volume, block), &f);
		if (f.page == FBY_NO_PAGE)
			break;
	}
	return block;
}

/* Sectors of the request before the block. */
static u32 sectors_until(u64 block, u64 sector, u32 nsectors)
{
	u64 n = block * FBY_PAGE_SECTORS > sector ? block * FBY_PAGE_SECTORS - sector : 0;

	return n < nsectors ? (u32)n : nsectors;
}

int fby_bypass_begin(struct fby_pool *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors, u32 least)
{
	u64 first = sector / FBY_PAGE_SECTORS, last, end, stop;
	int decision = fby_request_check(p, volume, sector, nsectors, 1);
	struct fby_volume *v;
	bool cached;

	if (decision != FBY_DONE)
		return decision;
	v = &p->volume[volume];
	b->volume = volume;
	last = (sector + nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	end = last - first < BYPASS_BLOCKS ? last : first + BYPASS_BLOCKS;
	if (!range_claim(p, v, first, &end, &b->place)) {
		fby_fetch_add(&p->waits[FBY_WAIT_BLOCK], 1ull);
		return FBY_WAIT_BLOCK;
	}
	stop = uncached_until(p, volume, first, end, &cached);
	b->nsectors = sectors_until(stop, sector, nsectors);
	if (b->nsectors && (!cached || b->nsectors >= least)) {
		fby_store(&v->range[b->place].end, stop);
		return FBY_DONE;
	}
	range_release(v, b->place);
	if (!cached) {
		fby_fetch_add(&p->waits[FBY_WAIT_BLOCK], 1ull);
		return FBY_WAIT_BLOCK;
	}
	b->nsectors = sectors_until(cached_until(p, volume, stop + 1, end), sector, nsectors);
	return FBY_CACHED;
}

void fby_bypass_end(struct fby_pool *p, struct fby_bypass *b, int error, u32 *wake)
{
	struct fby_volume *v = &p->volume[b->volume];

	if (error) {
		fby_fetch_add(&v->host_failures, 1u);
	} else {
		fby_fetch_add(&v->bypasses, 1ull);
		fby_fetch_add(&v->bypassed_sectors, (u64)b->nsectors);
	}
	/* One that failed may have come to a part. */
	fby_fetch_add(&v->bypass_ended, 1ull);
	range_release(v, b->place);
	*wake |= fby_load(&p->wait_mask) & FBY_WAKE_BLOCK;
}

/* --- flush -------------------------------------------------------------------- */

int fby_flush(struct fby_pool *p, u16 volume, u64 *upto)
{
	struct fby_volume *v;

	*upto = 0;
	if (volume >= p->sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	v = &p->volume[volume];
	if (!v->attached)
		return -FBY_E_VOLUME_DETACHED;
	fby_fetch_add(&p->slot[fby_cpu() % p->opt.nslots].flushes, 1ull);
	if (p->opt.read_only || FBY_BUG(FLUSH_FORGETS_BYPASS))
		return FBY_DONE;
	*upto = fby_load_acquire(&v->bypass_ended);
	return fby_load_acquire(&v->bypass_flushed) >= *upto ? FBY_DONE : FBY_ORIGIN;
}

/* False: destage was told that something is lost, and nobody here was. */
static bool flush_all_told(struct fby_volume *v)
{
	u32 failures = fby_load_acquire(&v->flush_failures);
	bool told = fby_load(&v->flush_told) == failures;

	fby_store(&v->flush_told, failures);
	return told;
}

int fby_flush_end(struct fby_pool *p, u16 volume, u64 upto, int error)
{
	struct fby_volume *v = &p->volume[volume];
	u64 now;

	FBY_ASSERT(volume < p->sb.nvolumes);
	if (error) {
		fby_fetch_add(&v->host_failures, 1u);
		return -FBY_E_ORIGIN_IO;
	}
	if (FBY_BUG(FLUSH_TAKES_LATER))
		upto = fby_load(&v->bypass_ended);
	do {
		now = fby_load(&v->bypass_flushed);
		if (now >= upto)
			return FBY_DONE;
	} while (!fby_cmpxchg(&v->bypass_flushed, now, upto));
	/* 1: nothing was bypassed since the attach. */
	return flush_all_told(v) || upto == 1 ? FBY_DONE : -FBY_E_ORIGIN_IO;
}

void fby_flush_failed(struct fby_volume *v)
{
	fby_fetch_add(&v->flush_failures, 1u);
}
