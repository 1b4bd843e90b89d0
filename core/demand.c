// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * demand.c - when a volume's pages are to go to the origin: when too much of the
 * pool is live, when entries grow old, when nobody writes, or on demand.
 */
#include "engine.h"

bool fby_volume_clean(struct fby_pool *p, u16 index)
{
	return fby_volume_pages(p, index) == fby_load(&p->volume[index].lost_only);
}

bool fby_volume_aged(const struct fby_pool *p, const struct fby_volume *v)
{
	u64 oldest;

	if (p->opt.max_age_ns == 0 || v->first == FBY_NO_CHUNK)
		return false;
	oldest = p->chunk[v->first].opened_ns;
	if (v->moved_seq > v->rec.watermark && v->moved_ns < oldest)
		oldest = v->moved_ns;
	return p->now_ns - oldest >= p->opt.max_age_ns;
}

static bool too_old(struct fby_pool *p, const struct fby_volume *v)
{
	bool old;

	fby_lock(&p->lock);
	old = fby_volume_aged(p, v);
	fby_unlock(&p->lock);
	return old;
}

static bool idle_long(struct fby_pool *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	u64 writes = 0;

	if (p->opt.idle_ns == 0)
		return false;
	for (u32 i = 0; i < p->opt.nslots; i++)
		writes += fby_load(&p->slot[i].volume[volume].writes);
	if (writes != d->idle_writes) {
		d->idle_writes = writes;
		d->idle_since_ns = p->now_ns;
	}
	return p->now_ns - d->idle_since_ns >= p->opt.idle_ns;
}

/* Would the blocks that are lost, and nothing else, fit in fewer chunks?  By a single
 * round: several would leave chunks half full between them, and never end. */
static bool worth_packing(struct fby_pool *p, const struct fby_volume *v)
{
	u32 room = p->chunk_pages - FBY_FIRST_PAGE, n = fby_load(&v->nchunks), lost = fby_load(&v->lost_blocks);

	return n > 1 && (u64)lost <= (u64)(n - 1) * room && lost <= fby_round_most(&v->destage);
}

bool fby_destage_wanted(struct fby_pool *p, u16 volume)
{
	struct fby_volume *v = &p->volume[volume];
	bool idle = idle_long(p, volume);

	if (!v->destage.drain && !p->pressure && !idle && !too_old(p, v))
		return false;
	if (!fby_volume_clean(p, volume))
		return true;
	fby_store(&v->destage.drain, false);
	/* only lost blocks are left: carried forward again just for space */
	return fby_starved(p) && (worth_packing(p, v) || FBY_BUG(PACKED_FOR_EVER));
}
