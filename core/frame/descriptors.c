// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * descriptors.c - the state of a frame on the media: free, or its owner; and its words, if nobody
 * has them in memory.
 */
#include "frame/frame.h"

static u64 line_at(const struct fby_map *m, u32 frame, u32 parity, u32 copy)
{
	return fby_descriptor_at(m, frame) + (u64)copy * FBY_MAP_LINE_COPY + (u64)parity * FBY_LINE;
}

static u32 line_crc(const struct fby_map *m, const struct fby_map_line *l)
{
	return fby_crc32c(m->seed, l, __builtin_offsetof(struct fby_map_line, crc));
}

static bool line_sane(const struct fby_map_line *l, u32 frame, u32 parity)
{
	u8 any = 0;

	for (u32 i = 0; i < sizeof(l->reserved); i++)
		any |= l->reserved[i];
	if (l->magic != FBY_MAP_LINE_MAGIC || l->frame != frame || l->epoch >= FBY_NUMBER_END ||
	    (l->epoch & 1) != parity || any)
		return false;
	return parity || (l->segment == 0 && l->file == 0 && l->file_epoch == 0);
}

static bool line_read(const struct fby_maps *p, const struct fby_map *m, u32 frame, u32 parity, u32 copy,
		      struct fby_map_line *out)
{
	return media_read(p->store->media, out, line_at(m, frame, parity, copy), sizeof(*out)) &&
	       line_crc(m, out) == out->crc && line_sane(out, frame, parity);
}

/* Do the words of an epoch have a dirty page?  Then a frame in use had that epoch. */
static bool words_tell(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch)
{
	u32 unknown;

	return fby_descriptor_dirty(p, m, frame, epoch, &unknown) > 0;
}

void fby_descriptor_look(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_map_seen *out)
{
	struct fby_map_line l;

	fby_zero(out, sizeof(*out));
	for (u32 i = 0; i < 4; i++) {
		if (!line_read(p, m, frame, i & 1, i >> 1, &l))
			continue;
		if (!out->any || l.epoch > out->line.epoch)
			out->line = l;
		out->any = true;
	}
	if (!out->any)
		return;
	for (u32 copy = 0; copy < 2; copy++)
		if (!line_read(p, m, frame, out->line.epoch & 1, copy, &l) || l.epoch != out->line.epoch)
			out->bad |= (u8)(1 << copy);
	/* A cut can tear the lines of the next use only before any page of it is dirty. */
	out->hidden = !(out->line.epoch & 1) && words_tell(p, m, frame, out->line.epoch + 1);
}

void fby_descriptor_write(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_map_line *l)
{
	struct fby_media *media = p->store->media;

	l->magic = FBY_MAP_LINE_MAGIC;
	l->frame = frame;
	l->crc = line_crc(m, l);
	for (u32 copy = 0; copy < 2; copy++)
		media_lines(media, line_at(m, frame, l->epoch & 1, copy), l, sizeof(*l));
	if (!FBY_BUG(MAP_LINE_NO_FENCE))
		media_fence(media, fby_descriptor_at(m, frame), FBY_PAGE);
}

void fby_descriptor_clean(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch)
{
	u32 seed = fby_frame_seed(m->seed, frame, epoch), words = m->frame_pages / 16;
	u64 at = fby_descriptor_at(m, frame) + FBY_MAP_WORDS_AT;
	u64 line[FBY_LINE / 8];

	for (u32 i = 0; i < words; i += FBY_LINE / 8) {
		for (u32 k = 0; k < FBY_LINE / 8; k++)
			line[k] = i + k < words ? fby_frame_word(seed, i + k, 0) : 0;
		media_lines(p->store->media, at + i * sizeof(u64), line, sizeof(line));
	}
	if (!FBY_BUG(MAP_SHOWN_BEFORE_WORDS))
		media_fence(p->store->media, fby_descriptor_at(m, frame), FBY_PAGE);
}

void fby_descriptor_pages(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch,
			  struct fby_pages *dirty, struct fby_pages *unknown)
{
	u32 seed = fby_frame_seed(m->seed, frame, epoch), words = m->frame_pages / 16;
	u64 at = fby_descriptor_at(m, frame) + FBY_MAP_WORDS_AT;
	u64 line[FBY_LINE / 8];

	fby_zero(dirty, sizeof(*dirty));
	fby_zero(unknown, sizeof(*unknown));
	for (u32 i = 0; i < words; i++) {
		u64 word;

		if (i % (FBY_LINE / 8) == 0 && !media_read(p->store->media, line, at + i * sizeof(u64), sizeof(line)))
			fby_zero(line, sizeof(line)); /* which no word is */
		word = line[i % (FBY_LINE / 8)];
		if (fby_frame_word_ok(seed, i, word))
			dirty->bit[i / 4] |= (u64)FBY_MW_DIRTY(word) << (i % 4 * 16);
		else
			unknown->bit[i / 4] |= 0xffffull << (i % 4 * 16);
	}
}

static u32 count_pages(const struct fby_pages *pages)
{
	u32 n = 0;

	for (u32 i = 0; i < sizeof(*pages); i++)
		n += fby_mask_count(((const u8 *)pages)[i]);
	return n;
}

u32 fby_descriptor_dirty(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch, u32 *unknown)
{
	struct fby_pages dirty, not_known;

	fby_descriptor_pages(p, m, frame, epoch, &dirty, &not_known);
	*unknown = count_pages(&not_known);
	return count_pages(&dirty);
}
