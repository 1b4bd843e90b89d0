// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_device.c - the device: its durable content, the blocks that are pending, and the
 * engine's operations on the image.
 */
#include "group_device.h"

u64 seed = 1;

const struct geometry geometries[GEOMETRIES] = {
	{ 4096, 65536, 6, 3000, 1 },
	{ 4096, 2 << 20, 4, 120000, 12 }, /* ten blocks before the groups */
	{ 65536, 1 << 20, 5, 120000, 8 },
};
const struct geometry *geometry = geometries;

void (*race)(const char *what);

void group_loaded(const char *what)
{
	if (race)
		race(what);
}

u32 chance(u32 below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (u32)((seed * 0x2545f4914f6cdd1dull >> 33) % below);
}

/* --- the image --------------------------------------------------------------------- */

/* A store to an unreadable block makes it readable; the rest of it is zeroes. */
static void image_write(struct fby_media *m, u64 at, const void *src, size_t n)
{
	struct world *w = m->host;

	if (at + n > MEDIA)
		lost("a store past the end of the media");

	for (u64 b = at / UNIT; b <= (at + n - 1) / UNIT; b++) {
		if (w->image_unreadable[b])
			memset(w->image + b * UNIT, 0, UNIT);
		w->image_unreadable[b] = 0;
	}
	memcpy(w->image + at, src, n);
}

static u32 image_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc)
{
	image_write(m, at, src, n);
	return fby_crc32c(crc, src, n);
}

static void image_fence(struct fby_media *m, u64 at, size_t n)
{
	(void)m;
	(void)at;
	(void)n;
	lost("a fence on a device");
}

static int image_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	const struct world *w = m->host;

	if (at >= MEDIA || n > MEDIA - at)
		lost("a load past the end of the media");
	for (u64 b = at / UNIT; b <= (at + n - 1) / UNIT; b++)
		if (w->image_unreadable[b])
			return 5;
	if (dst)
		memcpy(dst, w->image + at, n);
	*crc = fby_crc32c(*crc, w->image + at, n);
	return 0;
}

static const struct fby_media_ops image_ops = { image_write, image_write_crc, image_fence, image_read_crc };

static void drop(struct world *w, u32 i);

void world_load(struct world *w)
{
	memcpy(w->image, w->durable, MEDIA);
	memcpy(w->image_unreadable, w->unreadable, BLOCKS);
	w->npending = 0;
	w->below.lost = w->below.failed = 0;
}

void world_kill(struct world *w)
{
	memcpy(w->image, w->durable, MEDIA);
	memcpy(w->image_unreadable, w->unreadable, BLOCKS);
	for (u32 i = 0; i < w->npending;) {
		struct pending *p = &w->pending[i];

		if (p->gone || (!p->ended && chance(2))) {
			drop(w, i);
			continue;
		}
		p->ended = true;
		p->io = 0;
		memcpy(w->image + (u64)p->block * UNIT, p->bytes, UNIT);
		w->image_unreadable[p->block] = 0;
		i++;
	}
	w->below.lost = w->below.failed = 0;
}

void world_copy(struct world *to, const struct world *from)
{
	memcpy(to->image, from->image, MEDIA);
	memcpy(to->durable, from->durable, MEDIA);
	memcpy(to->image_unreadable, from->image_unreadable, BLOCKS);
	memcpy(to->unreadable, from->unreadable, BLOCKS);
	to->npending = from->npending;
	for (u32 i = 0; i < from->npending; i++) {
		u8 *bytes = to->pending[i].bytes;

		memcpy(bytes, from->pending[i].bytes, UNIT);
		to->pending[i] = from->pending[i];
		to->pending[i].bytes = bytes;
	}
	to->refuse = from->refuse;
	to->refuse_after = from->refuse_after;
	to->more = from->more;
	to->below = from->below;
	to->persists = from->persists;
}

void world_cut(struct world *to, const struct world *from, const u8 *which)
{
	memcpy(to->durable, from->durable, MEDIA);
	memcpy(to->unreadable, from->unreadable, BLOCKS);
	to->below.durable = from->below.durable;
	for (u32 i = 0; i < from->npending; i++)
		world_variant(to, &from->pending[i], which[i]);
}

void world_cut_again(struct world *w, void **memory, u32 *depth, void (*try_state)(void))
{
	static struct world saved;
	void *before = *memory;

	if (chance(3))
		return;
	if (!saved.image)
		world_make(&saved, w->below.durable);
	world_copy(&saved, w);
	*memory = NULL;
	(*depth)++;
	for (u32 i = 0; i < saved.npending; i++)
		world_variant(w, &saved.pending[i], chance(4));
	try_state();
	(*depth)--;
	free(*memory);
	*memory = before;
	world_copy(w, &saved);
}

/* --- the device ---------------------------------------------------------------------- */

static void pend(struct world *w, u64 at, u64 n, u32 io)
{
	if (at % UNIT || n % UNIT || n == 0 || at + n > MEDIA)
		lost("a request is not of whole blocks of the media");
	for (u64 b = at / UNIT; b < (at + n) / UNIT; b++) {
		struct pending *p = &w->pending[w->npending];

		if (w->npending++ == PENDING)
			lost("too many blocks are pending");
		*p = (struct pending){ .block = (u32)b, .io = io, .bytes = p->bytes };
		memcpy(p->bytes, w->image + b * UNIT, UNIT);
	}
}

static void settle(struct world *w, const struct pending *p)
{
	memcpy(w->durable + (u64)p->block * UNIT, p->bytes, UNIT);
	w->unreadable[p->block] = 0;
}

/* A cut may leave any of the four states of the block, and nobody knows which. */
static void spoil(struct world *w, const struct pending *p)
{
	switch (chance(4)) {
	case 0:
		settle(w, p);
		break;
	case 1:
		for (u32 s = 0; s < UNIT; s += 512)
			if (chance(2))
				memcpy(w->durable + (u64)p->block * UNIT + s, p->bytes + s, 512);
		break;
	case 2:
		w->unreadable[p->block] = 1;
		break;
	}
}

static void drop(struct world *w, u32 i)
{
	u8 *bytes = w->pending[i].bytes;

	memmove(&w->pending[i], &w->pending[i + 1], (--w->npending - i) * sizeof(struct pending));
	w->pending[w->npending].bytes = bytes;
}

/* Drops requests that have ended.  Requests that are written and have not ended may be dropped
 * too. */
static void drop_cache(struct world *w, u32 n)
{
	for (u32 i = 0; i < n;) {
		struct pending *p = &w->pending[i];

		if (p->ended) {
			spoil(w, p);
			drop(w, i);
			n--;
			continue;
		}
		if (!p->gone && chance(2)) {
			spoil(w, p);
			p->gone = true;
		}
		i++;
	}
}

void world_variant(struct world *to, const struct pending *p, u32 which)
{
	u8 *at = to->durable + (u64)p->block * UNIT;

	switch (which) {
	case 1:
		memcpy(at, p->bytes, UNIT);
		to->unreadable[p->block] = 0;
		break;
	case 2:
		for (u32 s = 0; s < UNIT; s += 512)
			if (chance(2))
				memcpy(at + s, p->bytes + s, 512);
		break;
	case 3:
		to->unreadable[p->block] = 1;
		break;
	}
}

void world_flush_fails(struct world *w)
{
	w->below.lost++;
	drop_cache(w, w->npending);
}

void world_send(struct world *w, const struct fby_medium_io *io, u32 number)
{
	if (io->kind == FBY_MEDIUM_WRITE) {
		pend(w, io->at, io->n, number);
		return;
	}
	for (u32 i = 0; i < w->npending; i++)
		w->pending[i].covered = w->pending[i].ended;
}

static void flush_end(struct world *w, int result)
{
	if (result && chance(2)) {
		drop_cache(w, w->npending);
		return;
	}
	for (u32 i = 0; i < w->npending;) {
		struct pending *p = &w->pending[i];

		if (result == 0 && p->covered)
			settle(w, p);
		else {
			p->covered = false;
			i++;
			continue;
		}
		drop(w, i);
	}
}

void world_end(struct world *w, const struct fby_medium_io *io, u32 number, int result)
{
	bool through = w->below.durable == FBY_DURABLE_THROUGH || (io->flags & FBY_MEDIUM_FUA);

	if (io->kind == FBY_MEDIUM_FLUSH) {
		flush_end(w, result);
		return;
	}
	for (u32 i = 0; i < w->npending;) {
		struct pending *p = &w->pending[i];

		if (p->io != number) {
			i++;
			continue;
		}
		if (memcmp(p->bytes, w->image + (u64)p->block * UNIT, UNIT) != 0)
			lost("a block changed in flight");
		if (!result && !through) {
			p->ended = true;
			p->io = 0;
			if (p->gone)
				drop(w, i);
			else
				i++;
			continue;
		}
		if (result)
			spoil(w, p);
		else
			settle(w, p);
		drop(w, i);
	}
}

static int persist(struct fby_media *m, u64 at, u64 n, bool more)
{
	struct world *w = m->host;
	u32 first = w->npending;

	/* This test cuts no format. */
	if (!w->more && (n > 4 * UNIT || more)) {
		memcpy(w->durable + at, w->image + at, n);
		return 0;
	}
	pend(w, at, n, ~0u);
	if (more) { /* as what has ended */
		for (u32 i = first; i < w->npending; i++)
			w->pending[i].ended = true;
		return 0;
	}
	if (w->persists)
		w->persists(w);
	if (w->refuse && w->refuse_after-- == 0) {
		w->refuse--;
		w->refuse_after = 0;
		if (w->below.durable == FBY_DURABLE_FLUSH || w->more) { /* its flush failed, for all that had ended */
			u32 before = w->npending;

			w->below.lost++;
			drop_cache(w, first);
			first -= before - w->npending;
		}
		while (w->npending > first) {
			spoil(w, &w->pending[first]);
			drop(w, first);
		}
		return 5;
	}
	for (u32 i = 0; i < first && (w->more || w->killed);) { /* the flush is for all that has ended */
		settle(w, &w->pending[i]);
		drop(w, i);
		first--;
	}
	while (w->npending > first) {
		settle(w, &w->pending[first]);
		drop(w, first);
	}
	return 0;
}

static u8 *room(u8 *old, size_t bytes)
{
	u8 *to = old ? old : aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

	memset(to, 0, bytes);
	return to;
}

void world_make(struct world *w, enum fby_durable durable)
{
	struct world was = *w;

	memset(w, 0, sizeof(*w));
	/* An image has the size of the largest pool, and is used again. */
	w->image = was.image ? was.image : aligned_alloc(4096, MEDIA_MOST);
	w->durable = was.durable ? was.durable : aligned_alloc(4096, MEDIA_MOST);
	memset(w->image, 0, MEDIA);
	memset(w->durable, 0, MEDIA);
	w->image_unreadable = room(was.image_unreadable, BLOCKS_MOST);
	w->unreadable = room(was.unreadable, BLOCKS_MOST);
	for (u32 i = 0; i < PENDING; i++)
		w->pending[i].bytes = was.pending[i].bytes ? was.pending[i].bytes : malloc(UNIT_MOST);
	w->below = (struct fby_device){ .unit = UNIT, .durable = durable, .persist = persist };
	w->media = (struct fby_media){ .base = w->image, .size = MEDIA, .ops = &image_ops, .host = w, .device = &w->below };
}
