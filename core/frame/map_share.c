// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * map_share.c - the share of a map: its layout, and how an empty one is formatted.
 */
#include "frame/frame.h"

static u64 frames_begin(u64 nframes, u32 nfiles, u32 frame_bytes)
{
	return fby_round_up((2 * (u64)nfiles + nframes) * FBY_PAGE, frame_bytes);
}

static u64 used_by(u64 nframes, u32 nfiles, u32 frame_bytes)
{
	return frames_begin(nframes, nfiles, frame_bytes) + nframes * frame_bytes;
}

u32 fby_map_frames(u64 bytes, u32 nfiles, u32 frame_bytes)
{
	u32 shift = (u32)__builtin_ctz(frame_bytes);
	u64 files = 2 * (u64)nfiles * FBY_PAGE, n;

	if (bytes <= files)
		return 0;
	n = (bytes - files) >> shift;
	n -= n >> (shift - 12); /* a page of a descriptor for each frame: rounds to a few too many */
	while (n && used_by(n, nfiles, frame_bytes) > bytes)
		n--;
	while (used_by(n + 1, nfiles, frame_bytes) <= bytes)
		n++;
	return n < 1u << 31 ? (u32)n : 0;
}

void fby_map_locate(const struct fby_maps *p, struct fby_map *m, const struct fby_map_record *r)
{
	u64 begin = (u64)r->first * FBY_MAP_UNIT, bytes = (u64)r->units * FBY_MAP_UNIT;

	m->sound = false;
	if (bytes > p->store->sb.map_bytes || begin > p->store->sb.map_bytes - bytes)
		return;
	m->at = fby_maps_at(p->store) + begin;
	m->bytes = bytes;
	m->nfiles = r->nfiles;
	m->frame_bytes = r->frame_bytes;
	m->frame_pages = r->frame_bytes / FBY_PAGE;
	m->nframes = fby_map_frames(bytes, r->nfiles, r->frame_bytes);
	m->descriptors = m->at + 2 * (u64)r->nfiles * FBY_PAGE;
	m->frames = m->at + frames_begin(m->nframes, r->nfiles, r->frame_bytes);
	m->seed = fby_crc32c(p->store->line_seed, r->uuid, sizeof(r->uuid));
	m->sound = m->nframes > 0;
}

/* Called before the record is written.  The line of epoch 0 is enough for a descriptor: the frame
 * is free, and has no words.  A file record does not fit on the stack: it is written line by
 * line. */
static void format_record(const struct fby_maps *p, const struct fby_map *m, u64 at, u32 file)
{
	u32 line[FBY_LINE / 4] = { FBY_MAP_FILE_MAGIC, file }, crc = m->seed;

	for (u32 i = 0; i < FBY_PAGE / FBY_LINE - 1; i++) {
		crc = fby_crc32c(crc, line, sizeof(line));
		media_lines(p->store->media, at + (u64)i * FBY_LINE, line, sizeof(line));
		fby_zero(line, sizeof(line));
	}
	line[FBY_LINE / 4 - 1] = fby_crc32c(crc, line, sizeof(line) - sizeof(crc));
	media_lines(p->store->media, at + FBY_PAGE - FBY_LINE, line, sizeof(line));
}

void fby_map_format(const struct fby_maps *p, const struct fby_map *m)
{
	static const u8 zero[FBY_LINE];

	for (u32 copy = 0; copy < 2 * m->nfiles; copy++)
		format_record(p, m, m->at + (u64)copy * FBY_PAGE, copy / 2);
	for (u64 at = m->descriptors; at < m->descriptors + (u64)m->nframes * FBY_PAGE; at += FBY_LINE)
		media_lines(p->store->media, at, zero, sizeof(zero));
	media_fence(p->store->media, m->at, m->bytes);
	for (u32 frame = 0; frame < m->nframes; frame++) {
		struct fby_map_line l;

		fby_zero(&l, sizeof(l));
		fby_descriptor_write(p, m, frame, &l);
	}
}

u64 fby_map_memory(const struct fby_map *m)
{
	return fby_round_up((u64)m->nframes * sizeof(struct fby_map_frame), 64) +
	       fby_round_up((u64)m->nfiles * sizeof(struct fby_map_known), 64) + 2 * FBY_PAGE;
}

void fby_map_lay_out(struct fby_map *m, void *mem)
{
	m->frame = mem;
	m->file = (void *)((u8 *)mem + fby_round_up((u64)m->nframes * sizeof(struct fby_map_frame), 64));
	m->record = (void *)((u8 *)m->file + fby_round_up((u64)m->nfiles * sizeof(struct fby_map_known), 64));
	m->copy = m->record + 1;
}
