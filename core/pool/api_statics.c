// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * api_statics.c - what the pool does for static volumes: add, info, check.
 */
#include "cache/static_requests.h"
#include "format/kind.h"
#include "pool/parts.h"

#define BREATH_SLOTS 256u /* slots whose pages are verified between two calls of fby_breathe */

int fby_pool_static_add(struct fby_pool *p, u32 index, const struct fby_volume_spec *s, struct fby_volume_record *r)
{
	struct fby_static_record share;
	u32 first;

	if (s->static_bytes % FBY_STATIC_UNIT || !fby_static_slots(s->static_bytes))
		return -FBY_E_GEOMETRY;
	/* The damaged record may be that of a share. */
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++)
		if (p->space.owner[i].damaged)
			return -FBY_E_VOLUME_DAMAGED;
	if (!fby_share_find(&p->statics, s->static_bytes, &first))
		return -FBY_E_STATIC_FULL;
	fby_copy(&share, r, sizeof(share));
	share.kind = FBY_OWNER_STATIC;
	share.first = first;
	share.slots = fby_static_slots(s->static_bytes);
	fby_copy(r, &share, sizeof(share));
	if (!fby_record_sane(index, r))
		return -FBY_E_GEOMETRY;
	/* The share is formatted first: a record must refer to a valid share. */
	fby_share_format(&p->statics, &share, s->flush_us);
	return FBY_DONE;
}

/* Avoids a division of 64 bits. */
static u32 percent_of(u64 era)
{
	return (u32)(era >> 20) / (u32)((FBY_ERA_LAST >> 20) / 100);
}

void fby_pool_static_info(struct fby_pool *p, u16 index, struct fby_volume_info *out)
{
	const struct fby_static *v = &p->statics.volume[index];
	u32 recounts;

	out->watermark = 0;
	out->counted = false;
	out->eras_percent = 0;
	out->slots = p->space.owner[index].share.slots;
	out->attached = fby_is_static(&p->cache, index);
	if (!p->statics.nstripes || !v->sound) { /* it has no share, or one without a head */
		out->damaged = true;
		return;
	}
	out->spec.static_bytes = v->bytes;
	out->spec.flush_us = v->head.flush_us;
	if (!out->attached) {
		out->counted = v->head.flags & FBY_STATIC_COUNTED;
		out->pages = out->counted ? v->head.live : 0;
		out->eras_percent = percent_of(v->head.limit);
		return;
	}
	out->watermark = fby_load(&v->passes_done);
	out->passes = fby_load(&v->passes);
	recounts = fby_load_acquire(&v->recounts);
	out->eras_percent = percent_of(fby_load(&v->era));
	out->counted = fby_static_counted(v); /* read first: the count may become known in between */
	out->pages = fby_static_live(v);
	fby_rmb();
	out->counted = out->counted && fby_load(&v->recounts) == recounts;
	out->lost_blocks = fby_load(&v->lost);
	out->flush_owed = fby_load(&p->cache.volume[index].gate.flushed) < fby_load(&p->cache.volume[index].gate.ended);
	for (u32 i = 0; i < FBY_STATIC_COUNTS; i++) {
		out->writes += fby_load(&v->count[i].writes);
		out->written_sectors += fby_load(&v->count[i].sectors);
		out->conflicts += fby_load(&v->count[i].conflicts);
	}
}

static bool violated(struct fby_violation *v, const char *what, u16 volume, u64 x, const char *b, u64 y)
{
	(void)volume;
	*v = (struct fby_violation){ what, "slot", b, x, y };
	return false;
}

/* Must destage find the slot without being told? */
static bool to_be_found(const struct fby_pool *p, u16 index, u32 slot)
{
	const struct fby_destage *d = &p->drain.volume[index].destage;

	for (u32 i = 0; i < d->n; i++)
		if (d->page[i].page >> 1 == slot)
			return true;
	return fby_static_dirty(&p->statics, &p->statics.volume[index], slot / FBY_GROUP_SLOTS);
}

static bool check_slot(struct fby_pool *p, u16 index, u32 slot, u64 *live, bool *damaged, struct fby_violation *v)
{
	const struct fby_static *st = &p->statics.volume[index];
	struct fby_static_view s;
	bool found = p->space.opt.read_only || to_be_found(p, index, slot);

	fby_static_look(&p->statics, st, slot, &s);
	if (slot < st->surveyed)
		*live += fby_static_counts(&s, 0) + fby_static_counts(&s, 1);
	*damaged |= s.unknown;
	if (s.unknown)
		return true; /* which breaks no invariant */
	if (!s.torn && s.line.control != ~s.line.copy && !st->nwindows)
		return violated(v, "the two control words of a slot differ", index, slot, "control", s.line.control);
	for (u32 way = 0; way < FBY_STATIC_WAYS; way++) {
		const struct fby_static_tag *t = &s.line.tag[way];

		if (!fby_static_counts(&s, way))
			continue;
		if (FBY_ST_ERA(t) > st->era)
			return violated(v, "a page is of an era to come", index, slot, "era", FBY_ST_ERA(t));
		/* A lost page stays where it is, and destage does not look for it. */
		if (!found && !FBY_ST_LOST(t) && fby_place_read(&p->statics, st, slot, way, t, 0, 0, NULL))
			return violated(v, "destage would not find a page", index, slot, "live", s.live);
	}
	if (fby_static_counts(&s, 0) && fby_static_counts(&s, 1) &&
	    FBY_ST_BLOCK(&s.line.tag[0]) == FBY_ST_BLOCK(&s.line.tag[1]))
		return violated(v, "both ways of a slot have the newest page of a block", index, slot, "block",
				FBY_ST_BLOCK(&s.line.tag[0]));
	if (s.sole && !(s.live >> s.newest & 1))
		return violated(v, "an older page is left without the newer", index, slot, "newest", s.newest);
	return true;
}

bool fby_pool_static_check(struct fby_pool *p, u16 index, struct fby_violation *v)
{
	const struct fby_static *st = &p->statics.volume[index];
	const struct fby_cached *cv = &p->cache.volume[index];
	bool damaged = false;
	u64 live = 0;

	for (u32 slot = 0; slot < st->slots; slot++)
		if (!check_slot(p, index, slot, &live, &damaged, v))
			return false;
	for (u32 busy = cv->bypassing; busy; busy &= busy - 1) {
		const struct fby_bypass_range *r = &cv->range[__builtin_ctz(busy)];

		for (u64 block = r->first; block < r->end; block++) {
			struct fby_static_view s;
			u32 way;

			fby_static_look(&p->statics, st, fby_static_slot(st, block), &s);
			if (fby_static_find(&s, block, &way) == FBY_HAS_PAGE)
				return violated(v, "a block is cached while it is written past the cache", index,
						s.slot, "block", block);
		}
	}
	/* A damaged line counts for another number of pages than before. */
	if (live != fby_static_live(st) && !damaged && !st->told && !st->miscounted) {
		*v = (struct fby_violation){ "a static volume's pages are miscounted", "volume", "counted", index, live };
		return false;
	}
	return true;
}

/* --- looking into it ----------------------------------------------------------------------- */

/* Destage has to visit the slot before anybody reports that nothing of it is lost; until then
 * each list includes it. */
static void take_again(struct fby_pool *p, struct fby_static *v, u32 slot, u64 era)
{
	fby_static_dirty_set(&p->statics, v, slot / FBY_GROUP_SLOTS);
	fby_lock(&p->space.lock);
	if (era > v->over_era)
		fby_store(&v->over_era, era);
	fby_unlock(&p->space.lock);
}

/* The list has reached its end. */
static void lost_known(struct fby_pool *p, struct fby_static *v, const struct fby_lost_at *at)
{
	fby_lock(&p->space.lock);
	fby_store(&v->lost, at->listed + at->passed_over + (v->found - at->found));
	fby_unlock(&p->space.lock);
}

u32 fby_pool_static_lost(struct fby_pool *p, u16 volume, struct fby_lost_at *at, struct fby_report_block *out, u32 max)
{
	struct fby_static *v = &p->statics.volume[volume];
	u64 block[FBY_LOST_OF_SLOT];
	struct fby_static_over over;
	u32 n = 0, found, stop;

	/* A pool without stripes has no memory for static volumes, whatever the records on the media say. */
	at->ended = !p->statics.nstripes || !v->sound;
	if (at->ended)
		return 0;
	stop = fby_lost_stop(at, v->slots);
	if (at->page == 0)
		at->found = fby_load(&v->found);
	for (; at->page < stop; at->page++) {
		found = fby_place_lost(&p->statics, v, at->page, block, FBY_LOST_OF_SLOT, &over);
		if (found > max - n)
			break;
		if (over.n)
			take_again(p, v, at->page, over.era);
		at->passed_over += over.n;
		if (at->page % BREATH_SLOTS == 0)
			fby_breathe();
		for (u32 i = 0; i < found; i++)
			out[n++] = (struct fby_report_block){ block[i], FBY_NO_CHUNK, 0, volume };
	}
	at->listed += n;
	at->ended = n == 0 && at->page >= v->slots;
	if (at->ended && fby_is_static(&p->cache, volume))
		lost_known(p, v, at);
	return n;
}

int fby_static_slot_info(struct fby_pool *p, u16 volume, u64 block, bool check_data, struct fby_static_slot_info *out)
{
	const struct fby_static *v = &p->statics.volume[volume];
	struct fby_static_view s;

	fby_zero(out, sizeof(*out));
	if (volume >= p->space.store.sb.nvolumes || p->space.owner[volume].rec.kind != FBY_OWNER_STATIC)
		return -FBY_E_NO_VOLUME;
	if (!p->statics.nstripes || !v->sound)
		return -FBY_E_VOLUME_DAMAGED;
	if (block >= v->blocks)
		return -FBY_E_RANGE;
	out->slot = fby_static_slot(v, block);
	fby_place_snapshot(&p->statics, v, out->slot, &s);
	out->torn = s.torn;
	for (u32 way = 0; way < FBY_STATIC_WAYS; way++) {
		const struct fby_static_tag *t = &s.line.tag[way];
		struct fby_static_way_info *w = &out->way[way];

		w->live = s.live >> way & 1;
		w->lost = s.unknown >> way & 1;
		w->newest = way == s.newest;
		w->superseded = w->live && !fby_static_counts(&s, way);
		w->block = FBY_ST_BLOCK(t);
		w->era = FBY_ST_ERA(t);
		w->number = FBY_ST_NUMBER(t);
		w->kind = FBY_ST_KIND(t);
		w->valid = FBY_ST_VALID(t);
		w->lost_sectors = FBY_ST_LOST(t);
		w->data_crc = t->data_crc;
		w->data_ok = w->live && !w->lost &&
			     (!check_data || fby_place_read(&p->statics, v, s.slot, way, t, 0, 0, NULL));
	}
	return FBY_DONE;
}
