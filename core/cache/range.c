// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * range.c - discard and write-zeroes.
 *
 * A cached block gets an entry for the discard or zeroing, since recovery would otherwise find
 * its older data; the entry lives until the watermark passes it.  A block that is not cached has
 * all its entries below the watermark, so the host can go to the origin for it, past the cache
 * (bypass.c).  Write-zeroes of up to 64 KiB always become entries, which are durable at once.
 */
#include "cache/index.h"
#include "cache/static_requests.h"

static const u8 zero_block[FBY_PAGE];

/* Part of a block: zeroes are written as data; a discard is advice, and ignored. */
static int range_part(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u32 n, u64 *done, u32 *wake)
{
	u32 written = 0;
	int decision;

	if (kind == FBY_KIND_DISCARD) {
		*done += n;
		return FBY_DONE;
	}
	decision = fby_cache_write(p, volume, sector, n, zero_block, &written, wake);
	*done += written;
	return decision;
}

/* Whole blocks: a batch of entries. */
static int range_entries(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u32 n, u32 flags, u64 *done,
			 u32 *wake)
{
	struct fby_write w;
	int decision = fby_begin(p, &w, volume, kind, sector, n, flags);

	if (decision != FBY_DONE) {
		*wake |= w.wake;
		return decision;
	}
	fby_cache_write_copy(p, &w, NULL, 0, 0);
	fby_cache_write_commit(p, &w);
	fby_count(&p->space->slot[w.slot].ranges[kind], w.npages);
	fby_cache_write_publish(p, &w);
	*done += w.nsectors;
	*wake |= w.wake;
	return FBY_DONE;
}

int fby_cache_range(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done,
	      struct fby_bypass *past, u32 *wake)
{
	const u32 batch = FBY_BATCH_PAGES * FBY_PAGE_SECTORS;
	bool small = kind == FBY_KIND_ZERO && nsectors <= batch;
	int rc = fby_request_check(p, volume, sector, nsectors, *done);

	if (rc == -FBY_E_VOLUME_DETACHED)
		return fby_static_range(p, volume, kind, sector, nsectors, done, past, wake);
	if (rc != FBY_DONE)
		return rc;
	while (*done < nsectors) {
		u64 at = sector + *done, left = nsectors - *done;
		u32 head = (u32)(at % FBY_PAGE_SECTORS);
		u64 n;
		int decision;

		if (head || left < FBY_PAGE_SECTORS) {
			n = FBY_PAGE_SECTORS - head < left ? FBY_PAGE_SECTORS - head : left;
			decision = range_part(p, volume, kind, at, (u32)n, done, wake);
		} else {
			n = left < batch ? left - left % FBY_PAGE_SECTORS : batch;
			decision = range_entries(p, volume, kind, at, (u32)n, small ? 0 : FBY_BEGIN_CACHED, done,
						 wake);
		}
		if (decision != FBY_ORIGIN && decision != FBY_DONE)
			return decision;
		if (decision == FBY_DONE)
			continue;
		decision = fby_past_begin(p, past, volume, kind, at, left - left % FBY_PAGE_SECTORS, 1);
		/* otherwise the block was cached meanwhile and gets an entry after all */
		if (decision != FBY_CACHED)
			return decision == FBY_DONE ? FBY_ORIGIN : decision;
	}
	return FBY_DONE;
}
