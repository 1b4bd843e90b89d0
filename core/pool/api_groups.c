// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * api_groups.c - the hosts' calls for a grouped pool, passed on to the layers.
 */
#include "pool/parts.h"

int fby_medium_next(struct fby_pool *p, struct fby_medium_io *io, u32 *wake)
{
	u16 owner;
	int rc;

	if (!p->space.store.unit)
		return FBY_WAIT_TICKET;
	for (;;) {
		rc = fby_streams_next(&p->space, io, &owner, wake);
		if (rc != FBY_AGAIN)
			return rc;
		rc = p->space.owner[owner].chunk_kind == FBY_CHUNK_CACHE ? fby_cache_again(&p->cache, owner, wake) :
									   fby_logs_again(&p->logs, owner, wake);
		if (rc != FBY_DONE)
			return rc;
	}
}

void fby_medium_end(struct fby_pool *p, const struct fby_medium_io *io, int error, u32 *wake)
{
	fby_streams_end(&p->space, io, error, wake);
}

u64 fby_volume_ticket(struct fby_pool *p, u16 volume)
{
	if (!p->space.store.unit || volume >= p->space.store.sb.nvolumes)
		return 0;
	return fby_stream_appended(&p->space, volume);
}

enum fby_ticket_state fby_ticket_state(const struct fby_pool *p, u64 ticket)
{
	return fby_stream_ticket(&p->space, ticket);
}

void fby_medium_load(struct fby_pool *p, u64 ticket, struct fby_medium_load *out)
{
	fby_stream_load(&p->space, ticket, out);
}

void fby_medium_info(struct fby_pool *p, struct fby_medium_info *out)
{
	fby_zero(out, sizeof(*out));
	if (!p->space.store.unit)
		return;
	fby_lock(&p->space.streams.lock);
	*out = p->space.streams.info;
	fby_unlock(&p->space.streams.lock);
	out->grouped = true;
	out->failed = media_failed(p->space.store.media);
	out->unit = p->space.store.unit;
}
