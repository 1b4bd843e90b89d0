// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * flight.c - the requests to the origin that a round has in flight, and their buffers.
 *
 * The buffers are a ring; a request takes as many pages of it as it is long.  So the memory of a
 * few long requests is enough for many short ones, which a slow but parallel origin needs.
 * Buffers are released in the order in which they were taken, and each request finds room for the
 * longest in one piece.
 */
#include "cache/static_requests.h"
#include "drain/planted_round.h"

static u32 slot_after(const struct fby_destage *d, u32 id, u32 n)
{
	id += n;
	return id < d->nrequests ? id : id - d->nrequests;
}

void fby_flight_start(struct fby_destage *d, u8 *ring, u32 nrequests, u32 buffer_bytes)
{
	d->ring = ring;
	d->nrequests = nrequests;
	d->buffer_sectors = buffer_bytes / FBY_SECTOR;
	d->ring_pages = fby_flight_buffers(nrequests) * (buffer_bytes / FBY_PAGE);
}

bool fby_flight_room(struct fby_destage *d, u32 *id)
{
	u32 most = d->buffer_sectors / FBY_PAGE_SECTORS, at = d->ring_head, left_out = 0;

	if (d->taken == d->nrequests)
		return false;
	if (at + most > d->ring_pages) {
		left_out = d->ring_pages - at;
		at = 0;
	}
	if (d->ring_used + left_out + most > d->ring_pages && !FBY_BUG(BUFFER_IN_FLIGHT))
		return false;
	*id = slot_after(d, d->oldest, d->taken);
	d->io[*id].buf = d->ring + (u64)at * FBY_PAGE;
	d->io[*id].pages = left_out;
	return true;
}

void fby_flight_take(struct fby_destage *d, u32 id, u64 nsectors)
{
	struct fby_io_slot *io = &d->io[id];
	u32 pages = (u32)((nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS);

	FBY_ASSERT(d, id == slot_after(d, d->oldest, d->taken));
	if (pages) {
		d->ring_head = (u32)((u64)(io->buf - d->ring) / FBY_PAGE) + pages;
		io->pages += pages;
	} else {
		io->pages = 0;
	}
	d->ring_used += io->pages;
	d->taken++;
}

/* A failed flush: writes may be lost.  A failed request: its pages are not on the origin. */
static void failed(struct fby_drain *p, u16 volume, const struct fby_io_slot *io)
{
	struct fby_destage *d = &p->volume[volume].destage;

	if (d->phase != FBY_PH_WRITE)
		d->failed = true;
	else if (fby_is_static(p->cache, volume))
		fby_static_refused(p, volume, io);
	else
		fby_refused_failed(p, volume, io);
}

void fby_flight_reap(struct fby_drain *p, u16 volume)
{
	struct fby_drained *v = &p->volume[volume];
	struct fby_destage *d = &v->destage;

	for (u32 i = 0; i < d->taken && d->outstanding > 0; i++) {
		struct fby_io_slot *io = &d->io[slot_after(d, d->oldest, i)];

		if (fby_load_acquire(&io->status) != FBY_IOS_DONE)
			continue;
		if (io->error) {
			fby_store(&v->last_error, io->error);
			fby_count(&v->origin_errors, 1);
			if (!fby_planted_overlooked(p, volume))
				failed(p, volume, io);
			/* A disk may retry for seconds; such a time says nothing about requests
			 * that it takes. */
			if (d->phase == FBY_PH_WRITE)
				d->plan.refused_ns += p->space->now_ns - d->heard_ns;
		} else if (d->phase == FBY_PH_WRITE) {
			fby_refused_taken(d, io);
			if (io->pages) /* data: pages are counted, not the request alone */
				fby_count(&v->origin_sectors, io->nsectors);
			if (p->space->now_ns - io->start_ns < 1ull << 31)
				fby_pace_latency(&v->pace, (u32)(p->space->now_ns - io->start_ns), io->alone);
		}
		fby_store(&io->status, (u32)FBY_IOS_FREE);
		d->heard_ns = p->space->now_ns;
		d->outstanding--;
	}
	for (; d->taken > 0 && fby_load(&d->io[d->oldest].status) == FBY_IOS_FREE; d->taken--) {
		d->ring_used -= d->io[d->oldest].pages;
		d->oldest = slot_after(d, d->oldest, 1);
	}
	if (d->taken == 0)
		d->ring_head = d->oldest = 0;
}
