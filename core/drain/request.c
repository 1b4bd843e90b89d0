// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * request.c - builds large requests to the origin from the pages of a round.  It merges
 * neighbours, and writes unlisted pages along if they fill a gap.
 */
#include "cache/index.h"
#include "drain/round.h"
#include "space/slot.h"

#define LOOK_STEP 1024u	  /* pages looked at for one request */

/* Is the listed page still the same?  A chunk opened after the cut has seq_min above it. */
bool fby_round_listed(struct fby_drain *p, u16 volume, const struct fby_round_page *r, u64 cut)
{
	const struct fby_entry *e = &p->cache->entry[r->page];

	fby_rmb();
	return (fby_load(&e->state) & FBY_ES_LINKED) && fby_load(&e->key) == fby_key(volume, r->k) &&
	       fby_load(&fby_chunk_of(p->space, r->page)->seq_min) <= cut;
}

bool fby_round_is_clean(const struct fby_drain *p, u16 volume, u32 page, u32 state)
{
	return fby_page_is_clean(p->cache, volume, page, state) ||
	       (FBY_BUG(CLEAN_OF_OTHER_ORIGIN) && (state & FBY_ES_CLEAN));
}

/* Does [sector, +n) fit the request?  The first run always does. */
static bool build_fits(struct fby_build *b, u8 op, u64 sector, u64 n)
{
	if (b->n == 0) {
		b->op = op;
		b->sector = sector;
		return true;
	}
	return b->op == op && b->sector + b->n == sector && b->n + n <= b->max;
}

/* Adds the next run of sectors of page[pos].  False: the request is full. */
static bool build_run(struct fby_drain *p, u16 volume, struct fby_build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->pos];
	u32 state = fby_load_acquire(&p->cache->entry[r->page].state);
	u64 key = fby_key(volume, r->k);
	u32 start = 0, n;
	u8 op = FBY_IO_WRITE;

	if (!fby_round_listed(p, volume, r, d->cut))
		goto next_page;
	/* The page stays kept, unless the request has reached it: pages that became dirty since
	 * join runs. */
	if (r->keep && (b->n == 0 || b->op != FBY_IO_WRITE || b->sector + b->n != r->k * FBY_PAGE_SECTORS))
		goto next_page;
	r->keep = false;
	if (fby_round_is_clean(p, volume, r->page, state)) { /* the origin has it, whatever became of it here */
		r->carry = FBY_CARRY_NO;
		goto next_page;
	}
	if (r->carry == FBY_CARRY_REFUSED) /* the origin refused its first sectors */
		goto next_page;
	if (state & FBY_ES_DAMAGED)
		r->carry = FBY_CARRY_DAMAGED;
	else if (FBY_ES_LOST(state) && r->carry == FBY_CARRY_NO)
		r->carry = FBY_CARRY_LOST;
	n = fby_run(FBY_ES_VALID(state), d->run, &start);
	if (n == 0 || r->carry == FBY_CARRY_DAMAGED)
		goto next_page;
	if (((state & FBY_ES_REFUSED) && !d->refused.trying) || fby_refused_leaves(&d->refused, state)) {
		r->carry = FBY_BUG(REFUSED_LEFT_OUT_GOES) ? FBY_CARRY_NO : FBY_CARRY_REFUSED;
		goto next_page;
	}
	if ((state & FBY_ES_REFUSED) && b->n) /* others would be refused with it */
		return false;
	if (FBY_ES_KIND(state) != FBY_KIND_DATA)
		op = FBY_ES_KIND(state) == FBY_KIND_ZERO ? FBY_IO_ZERO : FBY_IO_DISCARD;
	if (!build_fits(b, op, r->k * FBY_PAGE_SECTORS + start, n))
		return false;
	if (op == FBY_IO_WRITE) {
		enum fby_page_result got = fby_page_read(p->cache, r->page, key, state, fby_mask(start, n), start,
							 b->buf + b->n * FBY_SECTOR, !FBY_BUG(DESTAGE_UNVERIFIED));

		if (!fby_round_listed(p, volume, r, d->cut))
			goto next_page;
		if (got != FBY_PAGE_OK) {
			r->carry = FBY_BUG(DAMAGE_DROPPED) ? FBY_CARRY_NO : FBY_CARRY_DAMAGED;
			fby_page_mark(p->cache, r->page, key, FBY_ES_DAMAGED);
			goto next_page;
		}
	}
	b->n += n;
	d->run = start + n;
	if (state & FBY_ES_REFUSED) {
		b->max = b->n;
		b->again = true;
	}
	return true;
next_page:
	d->pos++;
	d->run = 0;
	return true;
}

/* Should the block's page be written along?  Not if it is in an open chunk: a page written
 * recently is likely to be written again.  Not if pages are clean for an earlier origin either,
 * since the bits could not be distinguished: their own round writes them. */
bool fby_round_dirty(struct fby_drain *p, u16 volume, u64 block, struct fby_found *f)
{
	if (block >= p->cache->volume[volume].blocks)
		return false;
	fby_index_find(p->cache, fby_key(volume, block), f);
	return f->page != FBY_NO_PAGE && FBY_ES_KIND(f->state) == FBY_KIND_DATA && FBY_ES_VALID(f->state) == 0xff &&
	       !(f->state & (FBY_ES_DAMAGED | FBY_ES_CLEAN | FBY_ES_REFUSED)) && fby_may_be_clean(p->space, volume, f->page) &&
	       fby_load(&fby_chunk_of(p->space, f->page)->seq_max) != FBY_NO_SEQ &&
	       (fby_likely(!p->space->store.unit) || fby_page_settled(p->space, f->page));
}

/* Adds an unlisted block at the end of the request. */
static bool pull(struct fby_drain *p, u16 volume, struct fby_build *b, u64 block)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_round_page *r = &d->page[d->cap - 1 - d->pulled];
	struct fby_found f;

	if (d->n + d->pulled >= d->cap || b->n + FBY_PAGE_SECTORS > b->max || block < d->issued ||
	    !fby_round_dirty(p, volume, block, &f) ||
	    fby_page_read(p->cache, f.page, fby_key(volume, block), f.state, 0xff, 0, b->buf + b->n * FBY_SECTOR,
			  true) != FBY_PAGE_OK)
		return false;
	fby_rmb();
	if (fby_load(&fby_chunk_of(p->space, f.page)->epoch) != f.epoch)
		return false;
	r->k = block;
	r->page = f.page;
	r->epoch = (u32)f.epoch;
	d->pulled++;
	b->n += FBY_PAGE_SECTORS;
	return true;
}

/* Begins the request with unlisted neighbours before the next page, if the request begins at that
 * page's first sector. */
static void pull_before(struct fby_drain *p, u16 volume, struct fby_build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	const struct fby_round_page *r = &d->page[d->pos];
	u32 state = fby_load_acquire(&p->cache->entry[r->page].state), before = d->pulled;
	u64 first = r->k;
	struct fby_found f;

	if (d->run || r->keep || !fby_round_listed(p, volume, r, d->cut) || FBY_ES_KIND(state) != FBY_KIND_DATA ||
	    !(FBY_ES_VALID(state) & 1) || (state & (FBY_ES_DAMAGED | FBY_ES_REFUSED)) || fby_round_is_clean(p, volume, r->page, state))
		return;
	while (first > d->issued && r->k - first < FBY_RUN_MOST - 1 && fby_round_dirty(p, volume, first - 1, &f))
		first--;
	b->op = FBY_IO_WRITE;
	b->sector = first * FBY_PAGE_SECTORS;
	for (; first < r->k; first++) {
		if (pull(p, volume, b, first))
			continue;
		d->pulled = before; /* replaced meanwhile: drops it and the neighbours before it */
		b->n = 0;
		b->sector = (first + 1) * FBY_PAGE_SECTORS;
	}
}

/* Continues with unlisted neighbours where the list has a gap. */
static bool pull_after(struct fby_drain *p, u16 volume, struct fby_build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 end = b->sector + b->n, block = end / FBY_PAGE_SECTORS;

	return b->n && b->op == FBY_IO_WRITE && end % FBY_PAGE_SECTORS == 0 &&
	       (d->pos == d->n || (d->run == 0 && d->page[d->pos].k > block)) && pull(p, volume, b, block);
}

void fby_round_request(struct fby_drain *p, u16 volume, struct fby_build *b)
{
	struct fby_destage *d = &p->volume[volume].destage;

	for (u32 look = 0; look < LOOK_STEP; look++) {
		if (pull_after(p, volume, b))
			continue;
		if (d->pos == d->n)
			break;
		if (b->n == 0)
			pull_before(p, volume, b);
		if (!build_run(p, volume, b))
			break;
	}
	if (b->n)
		d->issued = (b->sector + b->n + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
}

/* After the flush, marks pages that were written along as clean, if they have not changed. */
void fby_round_clean(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_owner *o = &p->space->owner[volume];

	for (; d->pulled > 0; d->pulled--) {
		const struct fby_round_page *r = &d->page[d->cap - d->pulled];
		u64 key = fby_key(volume, r->k);
		u32 b = fby_index_bucket(p->cache, key);
		struct fby_entry *e = &p->cache->entry[r->page];

		if (r->page == FBY_NO_PAGE || !fby_index_try(p->cache, b))
			continue;
		if (fby_index_get_locked(p->cache, b, key) == r->page &&
		    ((u32)fby_load(&fby_chunk_of(p->space, r->page)->epoch) == r->epoch ||
		     FBY_BUG(CLEAN_ANY_EPOCH))) {
			if (FBY_BUG(ALONG_LET_GO)) {
				fby_index_del_locked(p->cache, b, r->page);
				fby_page_dead(p->space, r->page, fby_dead_row(p->space, NULL), &o->dead);
				fby_index_release(p->cache, b);
				continue;
			}
			fby_store(&fby_chunk_of(p->space, r->page)->clean_for, p->space->owner[volume].attachment);
			if (!(fby_load(&e->state) & FBY_ES_CLEAN))
				fby_store(&o->cleaned, o->cleaned + 1);
			fby_store(&e->state, fby_load(&e->state) | FBY_ES_CLEAN);
		}
		fby_index_release(p->cache, b);
	}
}

