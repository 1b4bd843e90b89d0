// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * collect.c - the content of a round of destage: the cut, and every linked page at or below it,
 * sorted by block.
 */
#include "drain/round.h"
#include "drain/sort.h"
#include "space/slot.h"

/* Every seq at or below the result is published or will never be used.  Also seals the volume's
 * entries in idle slots. */
static u64 cut_below_in_flight(struct fby_drain *p, u16 volume)
{
	u64 cut = fby_load_acquire(&p->space->seq) - 1;

	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		struct fby_slot *s = &p->space->slot[i];
		u64 floor;

		if (fby_slot_try(s)) {
			fby_slot_seal(p->space, s, volume, false);
			fby_slot_retire(s);
			fby_slot_give_owed(p->space, s);
			continue;
		}
		floor = fby_load_acquire(&s->floor);
		if (floor != FBY_NO_SEQ && floor - 1 < cut && !FBY_BUG(CUT_PAST_IN_FLIGHT))
			cut = floor - 1;
	}
	return cut;
}

/* *low: no later page of this chunk has a lower seq.  A page whose line is damaged counts as that
 * low, which is early enough. */
static void collect_page(struct fby_drain *p, struct fby_destage *d, u32 cap, u32 page, u64 *low, u64 *evicted)
{
	struct fby_round_page r = { .k = *low, .page = page };
	u32 state = fby_load_acquire(&p->cache->entry[r.page].state);
	struct fby_page_line l;
	bool repaired;
	u64 out;

	if (!(state & FBY_ES_LINKED))
		return;
	if (fby_page_line(p->space, page, &l, &repaired))
		r.k = l.seq;
	else
		r.carry = FBY_CARRY_DAMAGED;
	*low = r.k + 1;
	if (r.k > d->cut || r.k <= d->rescue.upto)
		return;
	out = fby_heap_add(d->page, &d->n, cap, r);
	if (out < *evicted)
		*evicted = out;
}

/* First page of the chunk that is above seq; unreadable lines count as below. */
static u32 first_above(struct fby_drain *p, u32 c, u64 seq)
{
	u32 from = p->space->store.first_page, to = fby_load(&p->space->chunk[c].fill);

	while (from < to) {
		u32 middle = from + (to - from) / 2;

		if (fby_page_seq(p->cache, fby_page_number(p->space, c, middle), 0) <= seq)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* Counts dead pages between the watermark and the cut.  Earlier rounds have counted those below
 * the watermark; later rounds count those above the cut. */
static u32 count_dead(struct fby_drain *p, u16 volume, u64 cut, u32 *wake)
{
	u64 watermark = p->space->owner[volume].rec.watermark;
	u32 c = FBY_NO_CHUNK, n = 0;

	while ((c = fby_chunk_walk(p->space, volume, c, wake)) != FBY_NO_CHUNK) {
		const struct fby_chunk *ch = &p->space->chunk[c];
		u32 from = p->space->store.first_page, end = fby_load(&ch->fill);

		if (fby_load(&ch->seq_min) > cut)
			break;
		if (fby_load(&ch->seq_min) <= watermark)
			from = first_above(p, c, watermark);
		if (fby_load(&ch->seq_max) > cut)
			end = first_above(p, c, cut);
		for (; from < end; from++)
			n += !(fby_load(&p->cache->entry[fby_page_number(p->space, c, from)].state) & FBY_ES_LINKED);
	}
	fby_chunk_walk_end(p->space, c, wake);
	return n;
}

void fby_round_collect(struct fby_drain *p, u16 volume, u32 *wake)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 evicted = FBY_NO_SEQ;
	bool rescues = d->rescue.round;
	u32 c = FBY_NO_CHUNK, cap = fby_plan_pages(p, volume);

	if (rescues) {
		cap = fby_round_most(d);
		d->plan.keeps = d->refused.longer = false;
	}
	d->n = d->pos = d->run = d->pulled = d->ahead = 0;
	d->issued = 0;
	d->failed = false;
	fby_refused_begin(p, volume);
	d->lost = fby_load_acquire(&p->cache->volume[volume].gate.lost);
	d->cut = cut_below_in_flight(p, volume);
	while ((c = fby_chunk_walk(p->space, volume, c, wake)) != FBY_NO_CHUNK) {
		u64 seq_min = fby_load(&p->space->chunk[c].seq_min), low = seq_min;
		/* A group that could not be appended again lies behind the end of its chunk. */
		u32 sealed = rescues && !FBY_BUG(PAGES_RESCUE_SETTLED) ? p->space->store.chunk_pages : fby_load(&p->space->chunk[c].sealed);

		if (seq_min > d->cut)
			break; /* and so are all after it */
		if (d->n == cap && seq_min > d->page[0].k) {
			if (seq_min < evicted) /* the round is full: pages of this chunk fall out unseen */
				evicted = seq_min;
			break;
		}
		for (u32 i = p->space->store.first_page; i < sealed; i++)
			collect_page(p, d, cap, fby_page_number(p->space, c, i), &low, &evicted);
		/* Unsealed pages are not listed: a write to the origin may be torn, and then
		 * damage to the page here must not be mistaken for a torn tail. */
		if (fby_load(&p->space->chunk[c].fill) > sealed && low < evicted)
			evicted = low;
	}
	fby_chunk_walk_end(p->space, c, wake);
	if (evicted <= d->cut)
		d->cut = evicted - 1;
	for (u32 i = 0; i < d->n;) { /* pages that tie with the one that fell out must fall out, too */
		if (d->page[i].k > d->cut) {
			d->page[i] = d->page[--d->n];
			continue;
		}
		d->page[i].k = fby_key_block(fby_load(&p->cache->entry[d->page[i].page].key));
		i++;
	}
	fby_heap_sort(d->page, d->n);
	d->plan.gained = d->plan.keeps ? count_dead(p, volume, d->cut, wake) : 0;
}
