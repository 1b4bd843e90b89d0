// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * digest.c - a digest of all linked pages, to compare a clean close with the next open.
 */
#include "cache/cache.h"

/* Digest of all linked pages, independent of their order; taken at a clean close and compared at
 * the next open. */
u64 fby_digest(struct fby_cache *p, u64 *entries)
{
	u64 digest = 0, n = 0;

	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		for (u32 i = p->space->store.first_page; i < p->space->store.chunk_pages; i++) {
			u32 page = fby_page_number(p->space, c, i);
			u32 state = fby_load(&p->entry[page].state);

			if (!(state & FBY_ES_LINKED))
				continue;
			digest += fby_mix(p->entry[page].key ^ fby_mix((u64)page << 32 | (state & 0xfffffu)));
			n++;
		}
		fby_breathe();
	}
	*entries = n;
	return digest;
}

