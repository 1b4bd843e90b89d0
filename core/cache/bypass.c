// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * bypass.c - requests that bypass the cache and go straight to the origin: writes, and discards
 * and zeroes of blocks that are not cached.
 *
 * Only blocks that are not cached may bypass it.  A block stops being cached when a round of
 * destage releases its page.  Then the origin has the page and was flushed, no origin write of
 * the block is in flight, and the durable watermark is above all its entries.  So there is
 * nothing to wait for, a restart cannot find an older entry, and no marker is needed.
 *
 * While the origin's write is in flight, its blocks are listed in a range; a writer through the
 * cache waits for that range.  Otherwise the older data, still in flight to the origin, could
 * arrive after the newer was destaged.  No lock is held across the write.  The order of the
 * checks is sufficient: begin publishes the range and then takes each block's bucket briefly; a
 * writer takes the bucket and then reads the ranges.  Whoever took the bucket second sees the
 * other: the writer sees the range, or begin sees the published page.
 */
#include "cache/index.h"
#include "cache/static_requests.h"

#define BYPASS_BLOCKS 2048u   /* of one range: 8 MiB */
#define DISCARD_BLOCKS 65536u /* blocks of one discard, which is quick: 256 MiB */

bool fby_bypass_meets(const struct fby_cached *v, u64 block)
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

/* Publishes [first, *end), shortened where another range begins.  False: the first block is in
 * another range, or too many are in use. */
static bool range_claim(struct fby_cache *p, struct fby_cached *v, u64 first, u64 *end, u16 *place)
{
	u32 busy, others;
	bool room;

	fby_lock(&p->space->lock);
	busy = fby_load_acquire(&v->bypassing);
	room = busy != ~0u;
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
	fby_unlock(&p->space->lock);
	return room;
}

static void range_release(struct fby_cached *v, u16 place)
{
	FBY_ASSERT(v, fby_load(&v->bypassing) >> place & 1);
	fby_fetch_and(&v->bypassing, ~(1u << place));
}

/* The first block of [block, end) that is cached or busy, or end. */
static u64 uncached_until(struct fby_cache *p, u16 volume, u64 block, u64 end, bool *cached)
{
	if (fby_is_static(p, volume))
		return fby_static_uncached_until(p, volume, block, end, cached);
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
static u64 cached_until(struct fby_cache *p, u16 volume, u64 block, u64 end)
{
	struct fby_found f;

	if (fby_is_static(p, volume))
		return fby_static_cached_until(p, volume, block, end);
	for (; block < end; block++) {
		fby_index_find(p, fby_key(volume, block), &f);
		if (f.page == FBY_NO_PAGE)
			break;
	}
	return block;
}

/* Sectors of the request before the block. */
static u32 sectors_until(u64 block, u64 sector, u64 nsectors)
{
	u64 n = block * FBY_PAGE_SECTORS > sector ? block * FBY_PAGE_SECTORS - sector : 0;

	return (u32)(n < nsectors ? n : nsectors);
}

int fby_past_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u8 kind, u64 sector, u64 nsectors, u32 least)
{
	u64 first = sector / FBY_PAGE_SECTORS, last, end, stop;
	u32 most = kind == FBY_KIND_DISCARD ? DISCARD_BLOCKS : BYPASS_BLOCKS;
	struct fby_cached *v = &p->volume[volume];
	bool cached;

	b->volume = volume;
	b->kind = kind;
	last = (sector + nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	end = last - first < most ? last : first + most;
	if (!range_claim(p, v, first, &end, &b->place)) {
		fby_fetch_add(&p->waits[FBY_WAIT_BLOCK], 1ull);
		return FBY_WAIT_BLOCK;
	}
	/* A flush that fails from now on may lose this write. */
	b->seen = fby_load(&v->gate.lost);
	stop = uncached_until(p, volume, first, end, &cached);
	b->nsectors = sectors_until(stop, sector, nsectors);
	if (b->nsectors && (!cached || b->nsectors >= least)) {
		fby_store(&v->range[b->place].end, stop);
		if (FBY_BUG(RANGE_UNCLAIMED) && kind != FBY_KIND_DATA)
			range_release(v, b->place);
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

int fby_cache_bypass_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors, u32 least)
{
	int decision = fby_request_check(p, volume, sector, nsectors, 1);

	if (decision == -FBY_E_VOLUME_DETACHED)
		return fby_static_bypass_begin(p, b, volume, sector, nsectors, least);
	return decision == FBY_DONE ? fby_past_begin(p, b, volume, FBY_KIND_DATA, sector, nsectors, least) : decision;
}

void fby_cache_bypass_end(struct fby_cache *p, struct fby_bypass *b, int error, u32 *wake)
{
	struct fby_cached *v = &p->volume[b->volume];

	if (!error && b->kind == FBY_KIND_DATA) {
		fby_fetch_add(&v->bypasses, 1ull);
		fby_fetch_add(&v->bypassed_sectors, (u64)b->nsectors);
	}
	/* A failed request may have changed part of it.  A discard need not be durable. */
	if (b->kind != FBY_KIND_DISCARD)
		fby_fetch_add(&v->gate.ended, 1ull);
	if (!FBY_BUG(RANGE_UNCLAIMED) || b->kind == FBY_KIND_DATA)
		range_release(v, b->place);
	*wake |= fby_load(&p->space->wait_mask) & FBY_WAKE_BLOCK;
}
