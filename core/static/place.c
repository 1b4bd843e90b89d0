// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * place.c - reading, writing and releasing pages of a static volume.
 *
 * A write goes to the way of its slot that is not needed, by the three cases of First Responder:
 *
 *	1  both ways are free: either
 *	2  one has the newest page of a block, the other is free, or has an older one of the
 *	   same block: that other one.  If the block is the same, the line says that one has
 *	   taken the place of the other (sole)
 *	3  both have the newest page of a block: the writer waits until destage has released
 *	   one
 *
 * The page and the line are stored in any order, followed by one fence: the tag has the data's
 * checksum, and the control word selects the tag.  slot_line.c explains the states after a cut.
 */
#include "static/static.h"

/* --- reading ------------------------------------------------------------------------ */

bool fby_place_read(const struct fby_statics *p, const struct fby_static *v, u32 slot, u32 way,
		    const struct fby_static_tag *t, u8 want, u32 base, u8 *dst)
{
	u64 at = fby_static_page_at(v, slot, way);
	u8 valid = FBY_ST_VALID(t);
	u32 crc = 0, n;

	if (FBY_ST_KIND(t) != FBY_KIND_DATA)
		return true;
	for (u32 s = 0; s < FBY_PAGE_SECTORS; s += n) {
		bool wanted = dst && (want >> s & 1), held = valid >> s & 1;

		for (n = 1; s + n < FBY_PAGE_SECTORS && (dst && (want >> (s + n) & 1)) == wanted &&
			    (bool)(valid >> (s + n) & 1) == held;
		     n++)
			;
		if (held && !media_read_crc(p->space->store.media, wanted ? dst + (s - base) * FBY_SECTOR : NULL,
					    at + s * FBY_SECTOR, n * FBY_SECTOR, &crc))
			return false;
	}
	return crc == t->data_crc || FBY_BUG(STATIC_READ_UNVERIFIED);
}

/* Returns the stripe's word at a moment when nobody stores. */
static u64 stripe_quiet(const u64 *stripe)
{
	u64 word;

	while ((word = fby_load_acquire(stripe)) & FBY_STRIPE_STORES)
		fby_relax();
	return word & ~FBY_STRIPE_LOCKED;
}

static bool stripe_same(const u64 *stripe, u64 word)
{
	fby_rmb();
	return (fby_load(stripe) & ~FBY_STRIPE_LOCKED) == word;
}

void fby_place_snapshot(const struct fby_statics *p, const struct fby_static *v, u32 slot, struct fby_static_view *s)
{
	const u64 *stripe = fby_stripe(p, v, slot);
	u64 word;

	do {
		word = stripe_quiet(stripe);
		fby_static_look(p, v, slot, s);
	} while (!stripe_same(stripe, word));
}

/* Reads once; the result is void if the stripe's word has changed afterwards. */
static int get_once(const struct fby_statics *p, const struct fby_static *v, u64 block, u8 want, u32 base, u8 *dst,
		    u8 *origin, u8 *lost)
{
	struct fby_static_view s;
	const struct fby_static_tag *t;
	u32 way;
	u8 here;

	*origin = *lost = 0;
	fby_static_look(p, v, fby_static_slot(v, block), &s);
	switch (fby_static_find(&s, block, &way)) {
	case FBY_HAS_NOTHING:
		*origin = want;
		return FBY_ORIGIN;
	case FBY_HAS_LOST:
		*lost = want;
		return -FBY_E_LOST;
	case FBY_HAS_PAGE:
		break;
	}
	t = &s.line.tag[way];
	here = FBY_ST_VALID(t) & want;
	*lost = FBY_ST_LOST(t) & want;
	*origin = want & (u8)~(FBY_ST_VALID(t) | FBY_ST_LOST(t));
	if (FBY_ST_KIND(t) != FBY_KIND_DATA)
		fby_zero(dst, fby_mask_count(want) * FBY_SECTOR);
	else if (here && !fby_place_read(p, v, s.slot, way, t, here, base, dst))
		*lost |= here;
	if (*lost)
		return -FBY_E_LOST;
	return *origin ? FBY_ORIGIN : FBY_DONE;
}

int fby_place_get(const struct fby_statics *p, const struct fby_static *v, u64 block, u8 want, u32 base, u8 *dst,
		  u8 *origin, u8 *lost)
{
	u32 slot = fby_static_slot(v, block);
	const u64 *stripe = fby_stripe(p, v, slot);
	u64 word;
	int rc;

	media_prefetch(p->space->store.media, fby_static_line_at(v, slot), FBY_LINE);
	do {
		word = stripe_quiet(stripe);
		rc = get_once(p, v, block, want, base, dst, origin, lost);
	} while (!stripe_same(stripe, word));
	return rc;
}

/* Was the page passed over?  It was dirty before a completed pass, so it should be on the origin,
 * or destage would not visit it.  It was found damaged, and is readable again; or a round has it. */
static bool passed_over(const struct fby_statics *p, const struct fby_static *v, u32 slot,
			const struct fby_static_tag *t)
{
	return v->attached && !FBY_BUG(STATIC_BAD_FORGOTTEN) &&
	       (FBY_ST_ERA(t) <= fby_load(&v->done_era) || FBY_ST_ERA(t) <= fby_load(&v->over_era) ||
		!fby_static_dirty(p, v, slot / FBY_GROUP_SLOTS));
}

static u32 lost_once(const struct fby_statics *p, const struct fby_static *v, u32 slot, u64 *block, u32 max,
		     struct fby_static_over *over)
{
	struct fby_static_view s;
	u32 n = 0, way;

	over->n = 0;
	over->era = 0;
	fby_static_look(p, v, slot, &s);
	for (way = 0; way < FBY_STATIC_WAYS; way++) {
		const struct fby_static_tag *t = &s.line.tag[way];

		if (!fby_static_counts(&s, way) || (s.unknown >> way & 1))
			continue;
		if (FBY_ST_LOST(t) || !fby_place_read(p, v, slot, way, t, 0, 0, NULL))
			block[n++] = FBY_ST_BLOCK(t);
		else if (passed_over(p, v, slot, t)) {
			over->n++;
			if (FBY_ST_ERA(t) > over->era)
				over->era = FBY_ST_ERA(t);
		}
	}
	for (u64 b = slot; s.unknown && b < v->blocks && n < max; b += v->slots)
		if (fby_static_find(&s, b, &way) == FBY_HAS_LOST)
			block[n++] = b;
	return n;
}

u32 fby_place_lost(const struct fby_statics *p, const struct fby_static *v, u32 slot, u64 *block, u32 max,
		   struct fby_static_over *over)
{
	const u64 *stripe = fby_stripe(p, v, slot);
	u64 word;
	u32 n;

	do {
		word = stripe_quiet(stripe);
		n = lost_once(p, v, slot, block, max, over);
	} while (!stripe_same(stripe, word));
	return n;
}

/* --- writing ---------------------------------------------------------------------------- */

/* Can destage release the page? */
static bool destageable(const struct fby_statics *p, const struct fby_static *v, const struct fby_static_view *s,
			u32 way)
{
	const struct fby_static_tag *t = &s->line.tag[way];

	return !(s->unknown >> way & 1) && FBY_ST_VALID(t) && !FBY_ST_LOST(t) &&
	       fby_place_read(p, v, s->slot, way, t, 0, 0, NULL);
}

/* Both ways are in use.  A lost page stays until it is overwritten as a whole. */
static int choose_none(struct fby_statics *p, struct fby_static *v, struct fby_place *w, u8 mask,
		       enum fby_static_has has, u32 *wake)
{
	u32 place;

	if (destageable(p, v, &w->s, 0) || destageable(p, v, &w->s, 1)) {
		place = fby_cpu() % FBY_WANTED;
		fby_store(&v->wanted[place], w->slot + 1);
		fby_fetch_add(&v->count[fby_cpu() % FBY_STATIC_COUNTS].conflicts, 1ull);
		*wake |= FBY_WAKE_DESTAGE;
		return FBY_WAIT_SPACE;
	}
	if (has != FBY_HAS_PAGE || (fby_static_sectors(v, w->block) & (u8)~mask))
		return -FBY_E_LOST;
	w->over = true;
	return FBY_DONE;
}

int fby_place_choose(struct fby_statics *p, struct fby_static *v, struct fby_place *w, u8 mask, u32 *wake)
{
	enum fby_static_has has;
	u32 way = 0, other;

	if (fby_unlikely(fby_load(&v->era) > FBY_ERA_LAST))
		return -FBY_E_ERAS;
	fby_static_look(p, v, w->slot, &w->s);
	has = fby_static_find(&w->s, w->block, &way);
	w->over = false;
	if (FBY_BUG(STATIC_IN_PLACE) && has == FBY_HAS_PAGE)
		w->way = way;
	else if (!fby_static_counts(&w->s, !w->s.newest))
		w->way = !w->s.newest;
	else if (!(w->s.live >> w->s.newest & 1) || FBY_BUG(STATIC_CONFLICT_DROPS))
		w->way = w->s.newest;
	else if (choose_none(p, v, w, mask, has, wake) == FBY_WAIT_SPACE)
		return FBY_WAIT_SPACE;
	else if (!w->over)
		return -FBY_E_LOST;
	else
		w->way = way;
	other = !w->way;
	/* A lost page of an unknown block is this block's, if no other block uses the slot. */
	w->sole = fby_static_counts(&w->s, other) && !FBY_BUG(STATIC_SOLE_FORGOTTEN) &&
		  ((has == FBY_HAS_PAGE && way == other) || (has == FBY_HAS_LOST && fby_static_alone(v, w->slot)));
	return FBY_DONE;
}

bool fby_place_merge(const struct fby_statics *p, const struct fby_static *v, struct fby_place *w, u8 mask,
		     u8 *scratch)
{
	const struct fby_static_tag *t;
	u8 rest = fby_static_sectors(v, w->block) & (u8)~mask, keep;
	u32 way = 0;

	w->valid = mask;
	w->lost = 0;
	switch (fby_static_find(&w->s, w->block, &way)) {
	case FBY_HAS_NOTHING:
		return false;
	case FBY_HAS_LOST:
		w->lost = rest;
		return false;
	case FBY_HAS_PAGE:
		break;
	}
	t = &w->s.line.tag[way];
	keep = FBY_ST_VALID(t) & rest;
	w->lost = FBY_ST_LOST(t) & rest;
	if (!keep || FBY_BUG(STATIC_MERGE_LOSES))
		return false;
	if (FBY_ST_KIND(t) != FBY_KIND_DATA) {
		fby_zero(scratch, FBY_PAGE);
	} else if (!fby_place_read(p, v, w->slot, way, t, FBY_ST_VALID(t), 0, scratch)) {
		w->lost |= keep;
		return false;
	}
	w->valid = mask | keep;
	return true;
}

/* Stripe held, and readers wait. */
static u32 put_data(const struct fby_statics *p, const struct fby_static *v, const struct fby_place *w, const u8 *src,
		    u32 base)
{
	u64 at = fby_static_page_at(v, w->slot, w->way);
	u32 crc = 0, s = 0, n;

	if (w->kind != FBY_KIND_DATA)
		return 0;
	if (fby_likely(w->valid == 0xff))
		return media_data(p->space->store.media, at, src, FBY_PAGE, 0, true);
	while ((n = fby_run(w->valid, s, &s)) != 0) {
		crc = media_data(p->space->store.media, at + s * FBY_SECTOR, src + (s - base) * FBY_SECTOR,
				 n * FBY_SECTOR, crc, true);
		s += n;
	}
	return crc;
}

/* Counts before the data is stored: a later locked instruction would wait for the data as the
 * fence does, and the next write's loads would wait with it. */
static inline void put_count(struct fby_static *v, const struct fby_place *w, u32 sectors)
{
	struct fby_static_count *c = &v->count[fby_cpu() % FBY_STATIC_COUNTS];
	const struct fby_static_view *s = &w->s;
	u32 before = fby_static_counts(s, 0) + fby_static_counts(s, 1);
	u32 after = 1 + (!w->sole && fby_static_counts(s, !w->way));

	fby_fetch_add(&c->writes, 1ull);
	fby_fetch_add(&c->sectors, (u64)sectors);
	if (fby_unlikely((s->gone || s->torn) && w->slot < fby_load(&v->surveyed)))
		fby_store(&v->miscounted, true); /* it was counted as what it was */
	if (before != after && w->slot < fby_load(&v->surveyed))
		fby_fetch_add(&c->live, (u64)after - before);
}

void fby_place_put(struct fby_statics *p, struct fby_static *v, const struct fby_place *w, const u8 *src, u32 base,
		   u32 sectors)
{
	struct fby_static_line l = w->s.line;
	struct fby_static_tag *t = &l.tag[w->way];
	u64 era = fby_load(&v->era), bits;
	u32 number = (w->s.number + 1) % FBY_ST_NUMBERS, other = !w->way;

	put_count(v, w, sectors);
	t->data_crc = put_data(p, v, w, src, base);
	t->block = w->block | (u64)w->valid << 48 | (u64)w->lost << 56;
	t->stamp = FBY_ST_STAMP(era, number, w->kind);
	fby_static_tag_finish(v, w->slot, w->way, t);
	bits = FBY_SC_LIVE(w->way) | (w->way ? FBY_SC_NEWEST : 0) | (w->sole ? FBY_SC_SOLE : 0) |
	       (w->over ? FBY_SC_OVER : 0) | FBY_SC_NUMBER(number) | FBY_SC_ERA(era);
	if (fby_static_counts(&w->s, other)) {
		bits |= FBY_SC_LIVE(other);
		if (fby_unlikely(w->s.unknown >> other & 1)) /* it stays lost, whatever becomes of the line */
			l.tag[other].stamp |= 15; /* no kind */
	}
	fby_static_say(v, w->slot, bits, &l);
	media_lines(p->space->store.media, fby_static_line_at(v, w->slot), &l, sizeof(l));
	if (!FBY_BUG(STATIC_NO_FENCE))
		media_fence(p->space->store.media, v->at, v->bytes);
	/* Ordered after the line.  A thread that clears the bit without seeing the line sees the
	 * stripe held: a bit that is seen set is cleared after the stripe was taken. */
	fby_mb_after_atomic();
	fby_static_dirty_set(p, v, w->slot / FBY_GROUP_SLOTS);
}

/* --- release ---------------------------------------------------------------------------------- */

bool fby_place_release(struct fby_statics *p, struct fby_static *v, u32 slot, u32 way, u64 block, u64 stamp)
{
	u64 *stripe = fby_stripe(p, v, slot), bits;
	struct fby_static_view s;
	u32 before;

	if (!fby_stripe_try(stripe, FBY_STRIPE_STORES))
		return false;
	fby_static_look(p, v, slot, &s);
	if (!fby_static_counts(&s, way) || (s.unknown >> way & 1) || FBY_ST_BLOCK(&s.line.tag[way]) != block ||
	    (s.line.tag[way].stamp != stamp && !FBY_BUG(STATIC_RELEASE_NEWER))) {
		fby_stripe_release(stripe);
		return true;
	}
	before = fby_static_counts(&s, 0) + fby_static_counts(&s, 1);
	bits = s.live & ~(1ull << way);
	/* The newest page goes together with the one that it replaced. */
	if (way == s.newest && s.sole && !FBY_BUG(STATIC_RELEASE_HALF))
		bits = 0;
	if (s.over && way != s.newest)
		bits |= FBY_SC_OVER;
	bits |= (s.newest ? FBY_SC_NEWEST : 0) | FBY_SC_NUMBER(s.number) | FBY_SC_ERA(s.era);
	fby_static_say(v, slot, bits, &s.line);
	media_lines(p->space->store.media, fby_static_line_at(v, slot), &s.line, sizeof(s.line));
	/* Fenced before the way is written again: a cut must not leave the old word with the new
	 * data. */
	if (!FBY_BUG(STATIC_RELEASE_NO_FENCE))
		media_fence(p->space->store.media, v->at, v->bytes);
	fby_static_look(p, v, slot, &s);
	if (slot < fby_load(&v->surveyed))
		fby_fetch_add(&v->count[0].live, (u64)fby_static_counts(&s, 0) + fby_static_counts(&s, 1) - before);
	fby_stripe_release(stripe);
	return true;
}
