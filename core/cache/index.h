/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * index.h - finds the linked page of (volume, block): buckets of chained page numbers, fixed in
 * size.  Adjacent blocks share a line of buckets.
 *
 * Writers hold the bucket (bit 31 of its head).  Readers take no lock: fby_index_find may follow
 * an entry that is recycled meanwhile.  It notices that, because recycling needs a chunk to be
 * opened, and pool.opens changes before any entry does.  A block that is replaced keeps its place
 * in the chain, so a reader that misses was not raced by a replacement.
 */
#ifndef FBY_INDEX_H
#define FBY_INDEX_H

#include "cache/cache.h"

static inline u32 fby_index_bucket(const struct fby_cache *p, u64 key)
{
	u64 h = fby_mix(key >> 4);
	u32 group = (u32)(((h >> 32) * (u64)(p->nbuckets >> 4)) >> 32);

	return group << 4 | (u32)((key ^ h) & 15);
}

static inline bool fby_index_try(struct fby_cache *p, u32 b)
{
	u32 head = fby_load(&p->bucket[b]);

	if (head & FBY_BUCKET_LOCK)
		return false;
	fby_pin();
	if (fby_likely(fby_cmpxchg(&p->bucket[b], head, head | FBY_BUCKET_LOCK)))
		return true;
	fby_unpin();
	return false;
}

static inline bool fby_index_held(const struct fby_cache *p, u32 b)
{
	return fby_load(&p->bucket[b]) & FBY_BUCKET_LOCK;
}

static inline void fby_index_release(struct fby_cache *p, u32 b)
{
	u32 head = fby_load(&p->bucket[b]);

	FBY_ASSERT(p, head & FBY_BUCKET_LOCK);
	fby_store_release(&p->bucket[b], head & ~FBY_BUCKET_LOCK);
	fby_unpin();
}

/* Bucket held: the page linked for key, or none. */
static inline u32 fby_index_get_locked(const struct fby_cache *p, u32 b, u64 key)
{
	u32 page = fby_load(&p->bucket[b]) & ~FBY_BUCKET_LOCK;

	FBY_ASSERT(p, fby_index_held(p, b));
	while (page != FBY_NO_PAGE && p->entry[page].key != key)
		page = p->entry[page].next;
	return page;
}

/* Bucket held.  Returns the place in the chain that holds the number of page; of a pool that is
 * broken, NULL. */
static inline u32 *fby_index_place_locked(struct fby_cache *p, u32 b, u32 page)
{
	u32 *at = &p->bucket[b], here;

	while ((here = fby_load(at) & ~FBY_BUCKET_LOCK) != page) {
		FBY_ASSERT(p, here != FBY_NO_PAGE);
		if (here == FBY_NO_PAGE)
			return NULL;
		at = &p->entry[here].next;
	}
	return at;
}

/* Bucket held: links page for key, in the place of old if there is one. */
static inline void fby_index_put_locked(struct fby_cache *p, u32 b, u64 key, u32 page, u32 state, u32 old)
{
	struct fby_entry *e = &p->entry[page];
	u32 *at = old == FBY_NO_PAGE ? &p->bucket[b] : fby_index_place_locked(p, b, old);
	u32 next;

	if (!at) {
		at = &p->bucket[b];
		old = FBY_NO_PAGE;
	}
	next = old == FBY_NO_PAGE ? fby_load(at) & ~FBY_BUCKET_LOCK : p->entry[old].next;
	FBY_ASSERT(p, fby_index_held(p, b));
	FBY_ASSERT(p, !(fby_load(&e->state) & FBY_ES_LINKED));
	fby_store(&e->key, key);
	fby_store(&e->next, next);
	fby_store_release(&e->state, state | FBY_ES_LINKED);
	fby_store_release(at, page | (fby_load(at) & FBY_BUCKET_LOCK));
	if (old != FBY_NO_PAGE)
		fby_store(&p->entry[old].state, 0u);
}

/* Bucket held. */
static inline void fby_index_del_locked(struct fby_cache *p, u32 b, u32 page)
{
	u32 *at = fby_index_place_locked(p, b, page);

	FBY_ASSERT(p, fby_load(&p->entry[page].state) & FBY_ES_LINKED);
	if (!at)
		return;
	fby_store_release(at, p->entry[page].next | (fby_load(at) & FBY_BUCKET_LOCK));
	fby_store(&p->entry[page].state, 0u);
}

struct fby_found {
	u32 page;  /* FBY_NO_PAGE: none */
	u32 state; /* of its entry */
	u64 epoch; /* of the page's chunk: the page was the block's as long as this is unchanged */
};

/* Lock-free lookup.  False: it raced with a change; look again. */
static inline bool fby_index_find_once(struct fby_cache *p, u32 b, u64 key, struct fby_found *f)
{
	u64 opens = fby_load_acquire(&p->space->opens);
	u32 head = fby_load_acquire(&p->bucket[b]) & ~FBY_BUCKET_LOCK;
	u32 page = head;
	u32 steps = 0;

	while (page != FBY_NO_PAGE && fby_load(&p->entry[page].key) != key) {
		page = fby_load_acquire(&p->entry[page].next);
		if (fby_unlikely((++steps & 63) == 0 && fby_load_acquire(&p->space->opens) != opens))
			return false;
	}
	f->page = page;
	if (page != FBY_NO_PAGE) {
		f->epoch = fby_load_acquire(&fby_chunk_of(p->space, page)->epoch);
		f->state = fby_load_acquire(&p->entry[page].state);
	}
	fby_rmb();
	if (fby_load(&p->space->opens) != opens)
		return false;
	if (page != FBY_NO_PAGE)
		return f->state & FBY_ES_LINKED;
	return (fby_load(&p->bucket[b]) & ~FBY_BUCKET_LOCK) == head;
}

static inline void fby_index_find(struct fby_cache *p, u64 key, struct fby_found *f)
{
	u32 b = fby_index_bucket(p, key);

	while (!fby_index_find_once(p, b, key, f))
		fby_relax();
}

#endif
