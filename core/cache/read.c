// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * read.c - reads take no lock: they find the page, copy it, and then verify that it was the
 * block's page all the while; otherwise they look again.
 *
 * Cached sectors are copied first, and the host reads the origin after that.  This order needs no
 * second lookup: a sector that was not cached at the lookup is on the origin, and the origin's
 * data only gets newer.
 */
#include "cache/index.h"
#include "cache/static_requests.h"

static bool verify_now(const struct fby_cache *p, u32 state)
{
	u32 verify = fby_load(&p->space->opt.verify);

	if (FBY_BUG(READ_UNVERIFIED))
		return false;
	return verify == FBY_VERIFY_ALWAYS || (verify == FBY_VERIFY_FIRST && !(state & FBY_ES_VERIFIED));
}

static bool still_there(const struct fby_cache *p, const struct fby_found *f)
{
	fby_rmb();
	return fby_load(&fby_chunk_of(p->space, f->page)->epoch) == f->epoch;
}

/* False: the page was recycled meanwhile, look again. */
static bool read_cached(struct fby_cache *p, u64 key, const struct fby_found *f, u32 first, u8 want, u8 *dst,
			u8 *lost)
{
	u8 here = FBY_ES_VALID(f->state) & want;
	enum fby_page_result r = FBY_PAGE_OK;

	*lost = FBY_ES_LOST(f->state) & want;
	if (f->state & FBY_ES_DAMAGED) {
		*lost |= here;
	} else if (FBY_ES_KIND(f->state) == FBY_KIND_DATA && here) {
		bool verify = verify_now(p, f->state);

		r = fby_page_read(p, f->page, key, f->state, here, first, dst, verify);
		if (!still_there(p, f))
			return false;
		if (r != FBY_PAGE_OK) {
			fby_page_mark(p, f->page, key, FBY_ES_DAMAGED);
			*lost |= here;
		} else if (verify && fby_load(&p->space->opt.verify) == FBY_VERIFY_FIRST) {
			fby_page_mark(p, f->page, key, FBY_ES_VERIFIED);
		}
	} else if (here) { /* zeroed or discarded: the whole block */
		FBY_ASSERT(p, here == want);
		fby_zero(dst, fby_mask_count(want) * FBY_SECTOR);
	}
	return true;
}

int fby_cache_read_block(struct fby_cache *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin, u8 *lost)
{
	struct fby_read_stats *rs = &p->read_stats[fby_cpu() % FBY_READ_STRIPES];
	u64 key = fby_key(volume, block);
	struct fby_found f;
	u8 want;

	*origin = *lost = 0;
	if (fby_unlikely(volume >= p->space->store.sb.nvolumes))
		return -FBY_E_NO_VOLUME;
	if (fby_unlikely(!p->space->owner[volume].attached))
		return fby_static_read_block(p, volume, block, first, n, dst, origin, lost);
	if (fby_unlikely(n == 0 || first >= FBY_PAGE_SECTORS || n > FBY_PAGE_SECTORS - first ||
			 block >= p->volume[volume].blocks))
		return -FBY_E_RANGE;
	want = fby_mask(first, n);
	fby_fetch_add(&rs->reads, 1ull);
	do {
		fby_index_find(p, key, &f);
		if (f.page == FBY_NO_PAGE) {
			*origin = want;
			fby_fetch_add(&rs->miss_sectors, (u64)n);
			return FBY_ORIGIN;
		}
		if (fby_unlikely(p->space->store.unit) && !fby_page_durable(p->space, f.page) && !FBY_BUG(PAGES_READ_EARLY))
			return media_failed(p->space->store.media) ? -FBY_E_MEDIUM : FBY_WAIT_TICKET;
	} while (!read_cached(p, key, &f, first, want, dst, lost));
	*origin = want & ~(FBY_ES_VALID(f.state) | FBY_ES_LOST(f.state));
	fby_fetch_add(&rs->hit_sectors, (u64)fby_mask_count(want & (u8)~*origin));
	if (*lost)
		return -FBY_E_LOST;
	return *origin ? FBY_ORIGIN : FBY_DONE;
}
