// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * api.c - the hosts' calls, passed on to the layer that implements them.
 */
#include "cache/static_requests.h"
#include "pool/parts.h"

/* --- cache ------------------------------------------------------------------ */

int fby_write(struct fby_pool *p, u16 volume, u64 sector, u32 nsectors, const void *buf, u32 *done, u32 *wake)
{
	return fby_cache_write(&p->cache, volume, sector, nsectors, buf, done, wake);
}

int fby_write_begin(struct fby_pool *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors)
{
	return fby_cache_write_begin(&p->cache, w, volume, sector, nsectors);
}

void fby_write_copy(struct fby_pool *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip)
{
	fby_cache_write_copy(&p->cache, w, vec, nvec, skip);
}

void fby_write_commit(struct fby_pool *p, struct fby_write *w)
{
	fby_cache_write_commit(&p->cache, w);
}

void fby_write_publish(struct fby_pool *p, struct fby_write *w)
{
	fby_cache_write_publish(&p->cache, w);
}

int fby_read_block(struct fby_pool *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin, u8 *lost)
{
	return fby_cache_read_block(&p->cache, volume, block, first, n, dst, origin, lost);
}

int fby_range(struct fby_pool *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done,
	      struct fby_bypass *past, u32 *wake)
{
	return fby_cache_range(&p->cache, volume, kind, sector, nsectors, done, past, wake);
}

int fby_bypass_begin(struct fby_pool *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors, u32 least)
{
	return fby_cache_bypass_begin(&p->cache, b, volume, sector, nsectors, least);
}

void fby_bypass_end(struct fby_pool *p, struct fby_bypass *b, int error, u32 *wake)
{
	fby_cache_bypass_end(&p->cache, b, error, wake);
}

int fby_flush_begin(struct fby_pool *p, u16 volume, struct fby_flush *t)
{
	return fby_cache_flush_begin(&p->cache, volume, t);
}

int fby_flush_end(struct fby_pool *p, struct fby_flush *t, int error, u32 *wake)
{
	return fby_cache_flush_end(&p->cache, t, error, wake);
}

void fby_flush_cover(struct fby_pool *p, struct fby_flush *t, const struct fby_bypass *b)
{
	fby_cache_flush_cover(&p->cache, t, b);
}

u32 fby_flush_told(struct fby_pool *p, u16 volume)
{
	return fby_cache_flush_told(&p->cache, volume);
}

int fby_flush_later(struct fby_pool *p, struct fby_flush *t)
{
	return fby_cache_flush_later(&p->cache, t);
}

void fby_wait_prepare(struct fby_pool *p, enum fby_decision d)
{
	fby_fetch_or(&p->space.wait_mask, 1u << d);
}

/* --- drain ------------------------------------------------------------------- */

bool fby_write_throttled(const struct fby_pool *p, u16 volume)
{
	return volume < p->space.store.sb.nvolumes && fby_load(&p->space.owner[volume].level) != 0;
}

u64 fby_write_delay(struct fby_pool *p, u16 volume, u32 nsectors, u64 now_ns)
{
	return fby_pace_delay(&p->drain, volume, nsectors, now_ns);
}

void fby_origin_foreground(struct fby_pool *p, u16 volume, bool begin)
{
	fby_pace_foreground(&p->drain, volume, begin);
}

int fby_destage_step(struct fby_pool *p, u64 now_ns, struct fby_io *io, u64 *next_ns, u32 *wake)
{
	bool statics = p->drain.statics && !p->space.opt.read_only && p->space.usable;
	u64 tick_ns = p->drain.tick_ns;
	int decision, of_statics;

	/* After a request for another volume it is the static volumes' turn, so that neither kind
	 * starves if both always have a request. */
	if (statics && p->drain.static_turn) {
		p->drain.static_turn = false;
		*next_ns = ~0ull;
		fby_store(&p->space.now_ns, now_ns);
		if (fby_static_step(&p->drain, io, next_ns, wake) == FBY_ORIGIN)
			return FBY_ORIGIN;
	}
	decision = fby_drain_step(&p->drain, now_ns, io, next_ns, wake);
	if (p->drain.tick_ns != tick_ns) {
		fby_logs_tick(&p->logs, wake);
		fby_static_tick(&p->drain);
	}
	if (decision == FBY_ORIGIN || !statics) {
		p->drain.static_turn = statics && !FBY_BUG(STATIC_STARVED);
		return decision;
	}
	of_statics = fby_static_step(&p->drain, io, next_ns, wake);
	return of_statics == FBY_DONE ? decision : of_statics;
}

void fby_destage_complete(struct fby_pool *p, u32 id, int error)
{
	fby_drain_complete(&p->drain, id, error);
}

int fby_volume_drain(struct fby_pool *p, u16 index, bool on)
{
	return fby_drain_start(&p->drain, index, on);
}

int fby_volume_drain_upto(struct fby_pool *p, u16 index, u64 *upto)
{
	int rc = fby_drain_start(&p->drain, index, true);

	if (rc)
		return rc;
	/* A running pass may be past the newest writes; the next pass is not. */
	if (fby_is_static(&p->cache, index))
		*upto = fby_load(&p->statics.volume[index].passes) + 1;
	else
		*upto = fby_load_acquire(&p->space.seq) - 1;
	return FBY_DONE;
}

bool fby_volume_clean(struct fby_pool *p, u16 index)
{
	return fby_drain_clean(&p->drain, index);
}

/* --- recovery ------------------------------------------------------------------ */

int fby_recover_chunks(struct fby_pool *p, u32 first, u32 n)
{
	return fby_recovery_scan(&p->recovery, first, n);
}

int fby_recover_finish(struct fby_pool *p, struct fby_recovery_report *report)
{
	return fby_recovery_finish(&p->recovery, report);
}
