// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * rescue.c - rounds of a volume whose pool's device has failed.
 *
 * The image has everything that was acknowledged, and nothing is appended any more.  So rounds go on
 * from the image: they list each linked page, settled or not, in the order of the log, write all of
 * them, and flush.  No watermark can be recorded, so no page is released: a later start may find the
 * device again, with these pages, and no write past the cache may be older than they are.  How far
 * the rounds have come is known until the volume is attached anew.
 *
 * A page whose group never became durable may be written in place of the one that it replaced.  Its
 * writer is told of an error, so either may be there; and it holds what the replaced page had and
 * the writer did not change.
 */
#include "drain/round.h"

/* Pages that were ever appended: one that is published late makes it grow. */
static u64 appended(const struct fby_drain *p, u16 volume)
{
	return fby_owner_dead(p->space, volume) + fby_owner_pages(p->space, volume);
}

bool fby_rescued(const struct fby_drain *p, u16 volume)
{
	const struct fby_rescue *r = &p->volume[volume].destage.rescue;

	return fby_load_acquire(&r->all) && fby_load(&r->appended) == appended(p, volume);
}

u64 fby_rescue_home(const struct fby_drain *p, u16 volume)
{
	const struct fby_rescue *r = &p->volume[volume].destage.rescue;
	u64 before = fby_load_acquire(&r->refused);
	u64 upto = fby_load_acquire(&r->upto);
	u64 refused = fby_load(&r->refused);

	/* A round may end between these loads: what it found refused counts, and so does what it took up. */
	if (before && (!refused || before < refused))
		refused = before;
	return refused && refused <= upto ? refused - 1 : upto;
}

void fby_rescue_collect(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_rescue *r = &d->rescue;

	fby_store_release(&r->all, false);
	/* Counted first: a page that is published while the round lists pages, it may not have. */
	fby_store(&r->appended, appended(p, volume));
	r->round = true;
	fby_round_collect(p, volume, wake);
	if (FBY_BUG(PAGES_RESCUE_COUNTED_LATE))
		fby_store(&r->appended, appended(p, volume));
	if (d->n)
		return;
	if (r->refused == 0) {
		fby_store_release(&r->all, true);
		fby_store(&d->drain, false);
		return;
	}
	/* Once more from the first page that the origin has refused, after a pause. */
	fby_store(&r->upto, r->refused - 1);
	fby_store_release(&r->refused, (u64)0);
	d->failed = true;
}

void fby_rescue_flushed(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_rescue *r = &d->rescue;

	if (!r->round)
		return;
	for (u32 i = 0; i < d->n; i++) {
		const struct fby_round_page *page = &d->page[i];
		u64 seq;

		if (page->carry != FBY_CARRY_REFUSED || !fby_round_listed(p, volume, page, d->cut))
			continue;
		seq = fby_page_seq(p->cache, page->page, fby_load(&fby_chunk_of(p->space, page->page)->seq_min));
		if ((r->refused == 0 || seq < r->refused) && !FBY_BUG(PAGES_RESCUE_REFUSED))
			fby_store(&r->refused, seq);
	}
	if (d->cut > r->upto)
		fby_store_release(&r->upto, d->cut);
	if (r->refused == 0)
		d->backoff_ns = 0;
	r->round = false;
	fby_count(&p->volume[volume].rounds, 1);
}
