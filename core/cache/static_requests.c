// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * static_requests.c - requests on static volumes.  They come from the branches that refuse requests on
 * detached volumes.
 *
 * A request is a block at a time.  As in the cache, the code takes the block first, and then
 * checks the ranges that are being written past the cache (bypass.c).
 */
#include "cache/static_requests.h"
#include "cache/index.h"
#include "space/slot.h"

static struct fby_static *static_of(const struct fby_cache *p, u16 volume)
{
	if (volume >= p->space->store.sb.nvolumes || !p->statics || !p->statics->volume[volume].attached)
		return NULL;
	return &p->statics->volume[volume];
}

static int check(const struct fby_cache *p, u16 volume, u64 sector, u64 nsectors, u64 least)
{
	const struct fby_owner *o = &p->space->owner[volume];

	if (p->space->opt.read_only)
		return -FBY_E_READ_ONLY;
	if (nsectors < least || sector > o->rec.origin_sectors || nsectors > o->rec.origin_sectors - sector)
		return -FBY_E_RANGE;
	if (o->rec.block_size == FBY_PAGE && ((sector | nsectors) % FBY_PAGE_SECTORS) != 0)
		return -FBY_E_ALIGNMENT;
	return FBY_DONE;
}

static int wait_for(struct fby_cache *p, int decision)
{
	if (decision > 0)
		fby_fetch_add(&p->waits[decision], 1ull);
	return decision;
}

/* Takes the block's stripe and chooses the place of its next page. */
FBY_INLINE int place_take(struct fby_cache *p, u16 volume, struct fby_static *v, struct fby_place *w, u64 block, u8 mask,
		    u64 stores, u32 *wake)
{
	int decision = FBY_WAIT_BLOCK;

	w->block = block;
	w->slot = fby_static_slot(v, block);
	media_prefetch(p->space->store.media, fby_static_line_at(v, w->slot), FBY_LINE);
	/* Whichever of the two pages the write takes, the page-table walk for its address runs in
	 * parallel with the walk for the line's.  The prefetch avoids the line that is stored
	 * first.  A write takes 501 ns instead of 631. */
	media_prefetch(p->space->store.media, fby_static_page_at(v, w->slot, 0) + FBY_PAGE - FBY_LINE, FBY_LINE);
	w->stripe = fby_stripe(p->statics, v, w->slot);
	if (fby_unlikely(!fby_stripe_try(w->stripe, stores)))
		return wait_for(p, FBY_WAIT_BLOCK);
	if (fby_likely(!fby_load(&p->volume[volume].bypassing) ||
		       !fby_bypass_meets(&p->volume[volume], block)))
		decision = fby_place_choose(p->statics, v, w, mask, wake);
	if (fby_likely(decision == FBY_DONE))
		return FBY_DONE;
	fby_stripe_release(w->stripe);
	return wait_for(p, decision);
}

static inline void done(struct fby_cache *p, struct fby_place *w, u32 *wake)
{
	fby_stripe_release(w->stripe);
	*wake |= fby_load(&p->space->wait_mask) & FBY_WAKE_BLOCK;
}

/* A whole block from one piece of memory. */
static int write_whole(struct fby_cache *p, u16 volume, struct fby_static *v, u64 block, const u8 *buf, u32 *wake)
{
	struct fby_place w fby_uninitialized;
	int decision = place_take(p, volume, v, &w, block, 0xff, FBY_STRIPE_STORES, wake);

	if (fby_unlikely(decision != FBY_DONE))
		return decision;
	w.valid = 0xff;
	w.lost = 0;
	w.kind = FBY_KIND_DATA;
	fby_place_put(p->statics, v, &w, buf, 0, FBY_PAGE_SECTORS);
	done(p, &w, wake);
	return FBY_DONE;
}

/* Writes n sectors of a block, from first on. */
static int write_part(struct fby_cache *p, u16 volume, struct fby_static *v, u64 block, u32 first, u32 n,
		      const u8 *buf, u32 *wake)
{
	struct fby_place w fby_uninitialized;
	u8 mask = fby_mask(first, n);
	struct fby_slot *s = fby_slot_take(p->space);
	int decision;

	if (!s)
		return wait_for(p, FBY_WAIT_SLOT);
	decision = place_take(p, volume, v, &w, block, mask, FBY_STRIPE_STORES, wake);
	if (decision == FBY_DONE) {
		w.kind = FBY_KIND_DATA;
		if (fby_place_merge(p->statics, v, &w, mask, s->scratch)) {
			fby_copy(s->scratch + first * FBY_SECTOR, buf, n * FBY_SECTOR);
			fby_place_put(p->statics, v, &w, s->scratch, 0, n);
			fby_count(&s->merges, 1);
		} else {
			fby_place_put(p->statics, v, &w, buf, first, n);
		}
		done(p, &w, wake);
	}
	fby_slot_release(s);
	*wake |= fby_load(&p->space->wait_mask) & FBY_WAKE_SLOT;
	return decision;
}

static int write_block(struct fby_cache *p, u16 volume, struct fby_static *v, u64 sector, u32 n, const u8 *buf,
		       u32 *wake)
{
	u64 block = sector / FBY_PAGE_SECTORS;

	if (fby_likely(n == FBY_PAGE_SECTORS))
		return write_whole(p, volume, v, block, buf, wake);
	return write_part(p, volume, v, block, sector % FBY_PAGE_SECTORS, n, buf, wake);
}

/* Sectors of sector's block from sector on, at most left. */
static u32 of_block(u64 sector, u64 left)
{
	u32 n = FBY_PAGE_SECTORS - sector % FBY_PAGE_SECTORS;

	return n < left ? n : (u32)left;
}

int fby_static_write(struct fby_cache *p, u16 volume, u64 sector, u32 nsectors, const u8 *buf, u32 *done_sectors,
		     u32 *wake)
{
	struct fby_static *v = static_of(p, volume);
	int decision;

	if (!v)
		return -FBY_E_VOLUME_DETACHED;
	decision = check(p, volume, sector, nsectors, 1);
	while (decision == FBY_DONE && *done_sectors < nsectors) {
		u64 at = sector + *done_sectors;
		u32 n = of_block(at, nsectors - *done_sectors);

		decision = write_block(p, volume, v, at, n, buf + (u64)*done_sectors * FBY_SECTOR, wake);
		if (decision == FBY_DONE)
			*done_sectors += n;
	}
	return decision;
}

/* --- step by step ------------------------------------------------------------------------
 *
 * The steps are those of other volumes, so that hosts need no second path: begin takes the block,
 * and copy does everything else.  A batch of no pages belongs to a static volume.
 *
 * copy uses the slot's line as begin read it.  The stripe is held, so nobody stores there, and on
 * damaged media a second read may return something else. */

/* begin keeps the place here: such a batch has no pages. */
#define KEPT(w) ((void *)&(w)->page[1])
FBY_STATIC_ASSERT(sizeof(struct fby_place) <= (FBY_BATCH_PAGES - 1) * sizeof(struct fby_wpage), "room for a place");

int fby_static_write_begin(struct fby_cache *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors)
{
	struct fby_static *v = static_of(p, volume);
	struct fby_place at fby_uninitialized;
	struct fby_slot *s;
	int decision;

	if (!v)
		return -FBY_E_VOLUME_DETACHED;
	decision = check(p, volume, sector, nsectors, 1);
	if (decision != FBY_DONE)
		return decision;
	s = fby_slot_take(p->space);
	if (!s)
		return wait_for(p, FBY_WAIT_SLOT);
	w->volume = volume;
	w->kind = FBY_KIND_DATA;
	w->npages = 0;
	w->wake = w->ticket = 0;
	w->nsectors = of_block(sector, nsectors);
	w->slot = (u32)(s - p->space->slot);
	w->page[0].block = sector / FBY_PAGE_SECTORS;
	w->page[0].mask = fby_mask(sector % FBY_PAGE_SECTORS, w->nsectors);
	decision = place_take(p, volume, v, &at, w->page[0].block, w->page[0].mask, 0, &w->wake);
	if (decision == FBY_DONE)
		fby_copy(KEPT(w), &at, sizeof(at));
	else
		fby_slot_release(s);
	return decision;
}

static void gather(u8 *to, const struct fby_vec *vec, u32 nvec, u64 skip, u32 n)
{
	for (u32 i = 0; i < nvec && n > 0; i++) {
		u64 have = vec[i].len;
		u32 part;

		if (skip >= have) {
			skip -= have;
			continue;
		}
		part = have - skip < n ? (u32)(have - skip) : n;
		fby_copy(to, (const u8 *)vec[i].base + skip, part);
		to += part;
		n -= part;
		skip = 0;
	}
	FBY_ASSERT(to, n == 0);
}

void fby_static_write_copy(struct fby_cache *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip)
{
	struct fby_static *v = &p->statics->volume[w->volume];
	struct fby_slot *s = &p->space->slot[w->slot];
	struct fby_place at fby_uninitialized;
	u8 mask = w->page[0].mask;
	u32 first = (u32)__builtin_ctz(mask);

	fby_copy(&at, KEPT(w), sizeof(at));
	at.kind = FBY_KIND_DATA;
	fby_fetch_or(at.stripe, FBY_STRIPE_STORES);
	(void)fby_place_merge(p->statics, v, &at, mask, s->scratch);
	gather(s->scratch + first * FBY_SECTOR, vec, nvec, skip, w->nsectors * FBY_SECTOR);
	fby_place_put(p->statics, v, &at, s->scratch, 0, w->nsectors);
	done(p, &at, &w->wake);
	fby_slot_release(s);
	w->wake |= fby_load(&p->space->wait_mask) & FBY_WAKE_SLOT;
}

/* --- reading -------------------------------------------------------------------------------- */

int fby_static_read_block(struct fby_cache *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin,
			  u8 *lost)
{
	struct fby_static *v = static_of(p, volume);
	struct fby_read_stats *rs = &p->read_stats[fby_cpu() % FBY_READ_STRIPES];
	int rc;

	if (!v)
		return -FBY_E_VOLUME_DETACHED;
	if (n == 0 || first >= FBY_PAGE_SECTORS || n > FBY_PAGE_SECTORS - first || block >= v->blocks)
		return -FBY_E_RANGE;
	fby_fetch_add(&rs->reads, 1ull);
	rc = fby_place_get(p->statics, v, block, fby_mask(first, n), first, dst, origin, lost);
	fby_fetch_add(&rs->miss_sectors, (u64)fby_mask_count(*origin));
	fby_fetch_add(&rs->hit_sectors, (u64)n - fby_mask_count(*origin));
	if (rc == -FBY_E_LOST)
		fby_static_lost(p, volume, block);
	return rc;
}

void fby_static_lost(struct fby_cache *p, u16 volume, u64 block)
{
	struct fby_static *v = &p->statics->volume[volume];
	struct fby_report_block *d;
	bool known = false;

	fby_lock(&p->space->lock);
	for (u32 i = 0; i < p->ndamaged && i < FBY_DAMAGED_RING && !known; i++)
		known = p->damaged[i].volume == volume && p->damaged[i].block == block;
	if (!known) {
		d = &p->damaged[p->ndamaged++ % FBY_DAMAGED_RING];
		d->block = block;
		d->volume = volume;
		d->chunk = FBY_NO_CHUNK;
		d->page = 0;
		fby_count(&p->damaged_pages, 1);
	}
	/* The entries in the ring may be from before an attach, or healed since. */
	if (!known || !fby_load(&v->lost)) {
		fby_store(&v->lost, v->lost + 1);
		fby_store(&v->found, v->found + 1);
	}
	fby_unlock(&p->space->lock);
}

/* --- discards and zeroes ------------------------------------------------------------------------ */

/* Has the pool anything of the block, even if only that it is lost? */
static bool has(const struct fby_cache *p, const struct fby_static *v, u64 block)
{
	struct fby_static_view s;
	u32 way;

	fby_place_snapshot(p->statics, v, fby_static_slot(v, block), &s);
	return fby_static_find(&s, block, &way) != FBY_HAS_NOTHING && !FBY_BUG(STATIC_PAST_CACHED);
}

/* Discards or zeroes a whole block.  ORIGIN: only for a cached block, and this one is not. */
static int range_block(struct fby_cache *p, u16 volume, struct fby_static *v, enum fby_kind kind, u64 block,
		       bool cached, u32 *wake)
{
	struct fby_place w fby_uninitialized;
	int decision;

	if (cached && !has(p, v, block))
		return FBY_ORIGIN;
	decision = place_take(p, volume, v, &w, block, 0xff, FBY_STRIPE_STORES, wake);
	if (decision != FBY_DONE)
		return decision;
	w.valid = 0xff;
	w.lost = 0;
	w.kind = (u8)kind;
	fby_place_put(p->statics, v, &w, NULL, 0, 0);
	done(p, &w, wake);
	return FBY_DONE;
}

static const u8 zero_part[FBY_PAGE];

int fby_static_range(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done_sectors,
		     struct fby_bypass *past, u32 *wake)
{
	bool small = kind == FBY_KIND_ZERO && nsectors <= FBY_BATCH_PAGES * FBY_PAGE_SECTORS;
	struct fby_static *v = static_of(p, volume);
	int decision;

	if (!v)
		return -FBY_E_VOLUME_DETACHED;
	decision = check(p, volume, sector, nsectors, *done_sectors);
	while (decision == FBY_DONE && *done_sectors < nsectors) {
		u64 at = sector + *done_sectors, left = nsectors - *done_sectors;
		u32 n = of_block(at, left);

		if (n == FBY_PAGE_SECTORS)
			decision = range_block(p, volume, v, kind, at / FBY_PAGE_SECTORS, !small, wake);
		else if (kind == FBY_KIND_ZERO)
			decision = write_block(p, volume, v, at, n, zero_part, wake);
		if (decision == FBY_DONE) {
			*done_sectors += n;
			continue;
		}
		if (decision != FBY_ORIGIN)
			return decision;
		decision = fby_past_begin(p, past, volume, kind, at, left - left % FBY_PAGE_SECTORS, 1);
		if (decision == FBY_DONE)
			return FBY_ORIGIN;
		if (decision == FBY_CACHED) /* since */
			decision = FBY_DONE;
	}
	return decision;
}

/* --- past it ---------------------------------------------------------------------------------------- */

int fby_static_bypass_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors,
			    u32 least)
{
	int decision = static_of(p, volume) ? check(p, volume, sector, nsectors, 1) : -FBY_E_VOLUME_DETACHED;

	return decision == FBY_DONE ? fby_past_begin(p, b, volume, FBY_KIND_DATA, sector, nsectors, least) : decision;
}

u64 fby_static_uncached_until(struct fby_cache *p, u16 volume, u64 block, u64 end, bool *cached)
{
	struct fby_static *v = &p->statics->volume[volume];

	for (*cached = false; block < end; block++) {
		u64 *stripe = fby_stripe(p->statics, v, fby_static_slot(v, block));

		if (!fby_stripe_try(stripe, 0))
			break;
		*cached = has(p, v, block);
		fby_stripe_release(stripe);
		if (*cached)
			break;
	}
	return block;
}

u64 fby_static_cached_until(struct fby_cache *p, u16 volume, u64 block, u64 end)
{
	struct fby_static *v = &p->statics->volume[volume];

	while (block < end && has(p, v, block))
		block++;
	return block;
}
