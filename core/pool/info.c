// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * info.c - counters and states.
 */
#include "pool/parts.h"

#define BREATH_PAGES 4096u /* between two breaths of a loop over all pages */

void fby_pool_info(struct fby_pool *p, struct fby_pool_info *out)
{
	fby_zero(out, sizeof(*out));
	out->sb = p->space.store.sb;
	out->memory_bytes = p->memory_bytes;
	out->nslots = p->space.opt.nslots;
	out->chunks_free = fby_load(&p->space.nfree);
	out->chunks_used = p->space.store.sb.nchunks - out->chunks_free;
	out->chunks_reserved = fby_reserve(&p->space);
	out->pages = (u64)p->space.store.sb.nchunks * (p->space.store.chunk_pages - p->space.store.first_page);
	out->seq = fby_load(&p->space.seq);
	for (u32 v = 0; v < p->space.store.sb.nvolumes; v++)
		out->pages_linked += fby_owner_pages(&p->space, (u16)v);
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		const struct fby_slot *s = &p->space.slot[i];

		for (u32 v = 0; v < p->space.store.sb.nvolumes; v++) {
			if (p->space.owner[v].rec.kind != FBY_OWNER_LOG) { /* else: appends, and bytes */
				out->writes += fby_load(&s->volume[v].writes);
				out->written_sectors += fby_load(&s->volume[v].sectors);
			}
			out->chunks_open += fby_load(&s->volume[v].open) != FBY_NO_CHUNK;
		}
		out->commits += fby_load(&s->commits);
		out->media_bytes += fby_load(&s->media_bytes);
		out->merges += fby_load(&s->merges);
		out->discards += fby_load(&s->ranges[FBY_KIND_DISCARD]);
		out->zeroes += fby_load(&s->ranges[FBY_KIND_ZERO]);
		out->flushes += fby_load(&s->flushes);
	}
	for (u32 i = 0; i < FBY_READ_STRIPES; i++) {
		out->reads += fby_load(&p->cache.read_stats[i].reads);
		out->read_hit_sectors += fby_load(&p->cache.read_stats[i].hit_sectors);
		out->read_miss_sectors += fby_load(&p->cache.read_stats[i].miss_sectors);
	}
	out->chunks_opened = fby_load(&p->space.chunks_opened);
	out->waits_block = fby_load(&p->cache.waits[FBY_WAIT_BLOCK]);
	out->waits_slot = fby_load(&p->cache.waits[FBY_WAIT_SLOT]);
	out->waits_space = fby_load(&p->cache.waits[FBY_WAIT_SPACE]);
	out->damaged_pages = fby_load(&p->cache.damaged_pages);
}

u32 fby_damaged_list(struct fby_pool *p, struct fby_report_block *out, u32 max)
{
	u32 n;

	fby_lock(&p->space.lock);
	n = p->cache.ndamaged < FBY_DAMAGED_RING ? p->cache.ndamaged : FBY_DAMAGED_RING;
	if (n > max)
		n = max;
	for (u32 i = 0; i < n; i++)
		out[i] = p->cache.damaged[(p->cache.ndamaged - 1 - i) % FBY_DAMAGED_RING];
	fby_unlock(&p->space.lock);
	return n;
}

u32 fby_lost_list(struct fby_pool *p, u16 volume, struct fby_lost_at *at, struct fby_report_block *out, u32 max)
{
	u32 n = 0, end = fby_page_number(&p->space, p->space.store.sb.nchunks, 0);
	u32 stop = fby_lost_stop(at, end);

	if (volume < p->space.store.sb.nvolumes && p->space.owner[volume].rec.kind == FBY_OWNER_STATIC)
		return fby_pool_static_lost(p, volume, at, out, max);
	for (; p->space.usable && n < max && at->page < stop; at->page++) {
		const struct fby_entry *e = &p->cache.entry[at->page];
		u32 state = fby_load(&e->state);
		u64 key = fby_load(&e->key);

		if (at->page % BREATH_PAGES == 0)
			fby_breathe();
		if (!(state & FBY_ES_LINKED) || !((state & FBY_ES_DAMAGED) || FBY_ES_LOST(state)) ||
		    key >> FBY_BLOCK_BITS != volume)
			continue;
		out[n].block = fby_key_block(key);
		out[n].chunk = fby_page_chunk(&p->space.store, at->page);
		out[n].page = (u16)fby_page_place(&p->space.store, at->page);
		out[n++].volume = volume;
	}
	at->ended = n == 0 && (at->page >= end || !p->space.usable);
	return n;
}

static enum fby_destage_state public_state(enum fby_phase phase)
{
	static const u8 state[] = {
		[FBY_PH_IDLE] = FBY_DESTAGE_IDLE,
		[FBY_PH_PLAN] = FBY_DESTAGE_WRITING,	    [FBY_PH_WRITE] = FBY_DESTAGE_WRITING,
		[FBY_PH_FLUSH] = FBY_DESTAGE_FLUSHING,	    [FBY_PH_FLUSHING] = FBY_DESTAGE_FLUSHING,
		[FBY_PH_CARRY] = FBY_DESTAGE_COMMITTING,    [FBY_PH_COMMIT] = FBY_DESTAGE_COMMITTING,
		[FBY_PH_RELEASE] = FBY_DESTAGE_COMMITTING,  [FBY_PH_BACKOFF] = FBY_DESTAGE_BACKOFF,
	};

	return (enum fby_destage_state)state[phase];
}

int fby_volume_info(struct fby_pool *p, u16 index, struct fby_volume_info *out)
{
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_drained *dv;
	struct fby_recovered *rv;

	fby_zero(out, sizeof(*out));
	if (index >= p->space.store.sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	if (owner->rec.kind == FBY_OWNER_LOG || owner->rec.kind == FBY_OWNER_MAP)
		return -FBY_E_NO_VOLUME;
	cv = &p->cache.volume[index];
	dv = &p->drain.volume[index];
	rv = &p->recovery.volume[index];
	fby_copy(out->spec.name, owner->rec.name, sizeof(out->spec.name));
	fby_copy(out->spec.identity, owner->rec.identity, sizeof(out->spec.identity));
	fby_copy(out->spec.uuid, owner->rec.uuid, 16);
	out->spec.origin_sectors = owner->rec.origin_sectors;
	out->spec.block_size = owner->rec.block_size;
	out->marks = owner->rec.marks;
	out->watermark = fby_load_acquire(&owner->rec.watermark);
	out->used = fby_is_volume(owner->rec.kind);
	out->damaged = owner->damaged;
	out->attached = owner->attached;
	out->pages = fby_owner_pages(&p->space, index);
	out->lost_blocks = fby_load(&cv->lost_blocks);
	out->holes = rv->holes || !(owner->rec.flags & FBY_VF_HOLES) ? rv->holes : 1;
	out->holes_unknown = rv->holes_unknown || !(owner->rec.flags & FBY_VF_HOLES_UNKNOWN) ? rv->holes_unknown : 1;
	out->chunks = fby_load(&owner->nchunks);
	out->counted = true;
	out->destage = public_state(fby_load(&dv->destage.phase));
	out->draining = fby_load(&dv->destage.drain);
	out->last_error = fby_load(&dv->last_error);
	out->lost_stuck = fby_load(&dv->destage.lost_stuck);
	out->origin_errors = fby_load(&dv->origin_errors);
	out->origin_writes = fby_load(&dv->origin_writes);
	out->origin_sectors_written = fby_load(&dv->origin_sectors);
	out->origin_flushes = fby_load(&dv->origin_flushes);
	out->pages_destaged = fby_load(&dv->pages_destaged);
	out->pages_relocated = fby_load(&dv->moved);
	out->rounds = fby_load(&dv->rounds);
	out->throttle_ns = fby_load(&dv->pace.delay_ns);
	out->intake_limit = fby_pace_intake(&p->drain, index);
	out->drain_rate = fby_load(&dv->pace.rate);
	out->origin_depth = fby_load(&dv->pace.depth);
	for (u32 busy = fby_load(&cv->bypassing); busy; busy &= busy - 1)
		out->bypassing++;
	out->bypasses = fby_load(&cv->bypasses);
	out->bypassed_sectors = fby_load(&cv->bypassed_sectors);
	out->flush_owed = owner->attached && fby_load(&cv->gate.flushed) < fby_load(&cv->gate.ended);
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		out->writes += fby_load(&p->space.slot[i].volume[index].writes);
		out->written_sectors += fby_load(&p->space.slot[i].volume[index].sectors);
	}
	if (owner->rec.kind == FBY_OWNER_STATIC)
		fby_pool_static_info(p, index, out);
	/* moved_last is read after the watermark: pages that were below the watermark and have
	 * been moved are included. */
	out->home = fby_load(&dv->moved_last) <= out->watermark || FBY_BUG(COPIES_NOT_TOLD) ? out->watermark : 0;
	if (fby_rescues(&p->drain)) {
		u64 home = fby_rescued(&p->drain, index) ? fby_load_acquire(&p->space.seq) - 1 : fby_rescue_home(&p->drain, index);

		if (home > out->home)
			out->home = home;
	}
	return FBY_DONE;
}
