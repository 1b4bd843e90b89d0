// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * demand.c - when a volume's pages go to the origin: when too much of the pool is live, when
 * entries grow old, when nobody writes, or on request.
 */
#include "cache/static_requests.h"
#include "drain/round.h"

bool fby_drain_clean(struct fby_drain *p, u16 index)
{
	if (index >= p->space->store.sb.nvolumes)
		return true;
	if (fby_is_static(p->cache, index))
		return fby_static_clean(p, index);
	if (fby_rescues(p) && fby_rescued(p, index))
		return true;
	return fby_owner_pages(p->space, index) == fby_load(&p->cache->volume[index].lost_only);
}

bool fby_volume_aged(const struct fby_drain *p, u16 volume)
{
	const struct fby_owner *o = &p->space->owner[volume];
	const struct fby_drained *v = &p->volume[volume];
	u64 oldest, max_age_ns = fby_load(&p->space->opt.max_age_ns);

	if (max_age_ns == 0 || o->first == FBY_NO_CHUNK)
		return false;
	oldest = p->space->chunk[o->first].opened_ns;
	if (v->moved_last > o->rec.watermark && v->moved_ns < oldest)
		oldest = v->moved_ns;
	if (v->moved_since > o->rec.watermark && v->moved_before_ns < oldest)
		oldest = v->moved_before_ns;
	return p->space->now_ns - oldest >= max_age_ns;
}

static bool too_old(struct fby_drain *p, u16 volume)
{
	bool old;

	fby_lock(&p->space->lock);
	old = fby_volume_aged(p, volume);
	fby_unlock(&p->space->lock);
	return old;
}

static bool idle_long(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 writes = 0, idle_ns = fby_load(&p->space->opt.idle_ns);

	if (idle_ns == 0)
		return false;
	for (u32 i = 0; i < p->space->opt.nslots; i++)
		writes += fby_load(&p->space->slot[i].volume[volume].writes);
	if (writes != d->idle_writes) {
		d->idle_writes = writes;
		d->idle_since_ns = p->space->now_ns;
	}
	return p->space->now_ns - d->idle_since_ns >= idle_ns;
}

/* Would the lost blocks alone fit in fewer chunks?  Only a single round may pack them: several
 * would leave half-full chunks between them, and never end. */
static bool worth_packing(struct fby_drain *p, u16 volume)
{
	u32 room = p->space->store.chunk_pages - p->space->store.first_page, n = fby_load(&p->space->owner[volume].nchunks);
	u32 lost = fby_load(&p->cache->volume[volume].lost_blocks);

	return n > 1 && (u64)lost <= (u64)(n - 1) * room && lost <= fby_round_most(&p->volume[volume].destage);
}

bool fby_destage_wanted(struct fby_drain *p, u16 volume)
{
	struct fby_drained *v = &p->volume[volume];
	bool idle = idle_long(p, volume);

	v->destage.forced = v->destage.drain || idle || too_old(p, volume);
	if (!v->destage.forced && !p->space->pressure)
		return false;
	if (!fby_drain_clean(p, volume))
		return true;
	fby_store(&v->destage.drain, false);
	if (v->destage.refused.last) /* the refused pages were overwritten, and the new ones are on the origin */
		fby_refused_passed(p, volume, FBY_NO_SEQ);
	/* only lost blocks are left: carrying them forward again only gains space */
	return fby_starved(p->space) && (worth_packing(p, volume) || FBY_BUG(PACKED_FOR_EVER));
}
