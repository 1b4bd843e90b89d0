/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * static_requests.h - the implementation of the cache's calls for a static volume.
 */
#ifndef FBY_STATIC_REQUESTS_H
#define FBY_STATIC_REQUESTS_H

#include "cache/cache.h"
#include "static/static.h"

int fby_static_write(struct fby_cache *p, u16 volume, u64 sector, u32 nsectors, const u8 *buf, u32 *done_sectors,
		     u32 *wake);
int fby_static_write_begin(struct fby_cache *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors);
void fby_static_write_copy(struct fby_cache *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip);
int fby_static_read_block(struct fby_cache *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin,
			  u8 *lost);
int fby_static_range(struct fby_cache *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done_sectors,
		     struct fby_bypass *past, u32 *wake);
int fby_static_bypass_begin(struct fby_cache *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors,
			    u32 least);
/* Like those of bypass.c. */
u64 fby_static_uncached_until(struct fby_cache *p, u16 volume, u64 block, u64 end, bool *cached);
u64 fby_static_cached_until(struct fby_cache *p, u16 volume, u64 block, u64 end);
/* The block was found to be lost. */
void fby_static_lost(struct fby_cache *p, u16 volume, u64 block);

static inline bool fby_is_static(const struct fby_cache *p, u16 volume)
{
	return p->statics && p->statics->volume[volume].attached;
}

#endif
