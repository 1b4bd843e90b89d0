// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * hostile_mutate.c - changes to the image of a pool.  See hostile.h.
 *
 * The checksum is computed bit by bit here, so that a mistake in the engine's would show.
 */
#include <stdio.h>
#include <string.h>

#include "hostile.h"

struct field {
	const char *name;
	u16 at, bytes;
};

#define FIELD(type, name) { #name, __builtin_offsetof(struct type, name), sizeof(((struct type *)0)->name) }

static const struct field superblock[] = {
	FIELD(fby_superblock, magic), FIELD(fby_superblock, version), FIELD(fby_superblock, flags),
	FIELD(fby_superblock, features_compat), FIELD(fby_superblock, features_ro),
	FIELD(fby_superblock, features_incompat), FIELD(fby_superblock, uuid), FIELD(fby_superblock, generation),
	FIELD(fby_superblock, media_size), FIELD(fby_superblock, data_offset), FIELD(fby_superblock, chunk_size),
	FIELD(fby_superblock, nchunks), FIELD(fby_superblock, nvolumes), FIELD(fby_superblock, group_pages),
	FIELD(fby_superblock, clean_entries), FIELD(fby_superblock, clean_digest), FIELD(fby_superblock, clean_seq),
	FIELD(fby_superblock, reserved),
};

static const struct field record[] = {
	FIELD(fby_volume_record, counter), FIELD(fby_volume_record, index), FIELD(fby_volume_record, kind),
	FIELD(fby_volume_record, watermark), FIELD(fby_volume_record, origin_sectors), FIELD(fby_volume_record, uuid),
	FIELD(fby_volume_record, name), FIELD(fby_volume_record, identity), FIELD(fby_volume_record, block_size),
	FIELD(fby_volume_record, flags), FIELD(fby_volume_record, reserved),
};

static const struct field open_line[] = {
	FIELD(fby_open_line, magic), FIELD(fby_open_line, kind), FIELD(fby_open_line, owner),
	FIELD(fby_open_line, chunk), FIELD(fby_open_line, epoch), FIELD(fby_open_line, seq_min),
	FIELD(fby_open_line, reserved),
};

static const struct field seal_line[] = {
	FIELD(fby_seal_line, owner), FIELD(fby_seal_line, kind), FIELD(fby_seal_line, fill), FIELD(fby_seal_line, closed),
	FIELD(fby_seal_line, chunk), FIELD(fby_seal_line, counter), FIELD(fby_seal_line, epoch),
	FIELD(fby_seal_line, seq_max), FIELD(fby_seal_line, last_block),
};

static const struct field page_line[] = {
	FIELD(fby_page_line, seq), FIELD(fby_page_line, block), FIELD(fby_page_line, epoch),
	FIELD(fby_page_line, prev_block), FIELD(fby_page_line, chunk), FIELD(fby_page_line, page),
	FIELD(fby_page_line, volume), FIELD(fby_page_line, batch_first), FIELD(fby_page_line, batch_count),
	FIELD(fby_page_line, kind), FIELD(fby_page_line, valid), FIELD(fby_page_line, lost),
	FIELD(fby_page_line, flags), FIELD(fby_page_line, prev_seq), FIELD(fby_page_line, data_crc),
};

void image_note(struct image *m, const char *format, ...)
{
	size_t n = strlen(m->text);
	va_list args;

	va_start(args, format);
	vsnprintf(m->text + n, sizeof(m->text) - n, format, args);
	va_end(args);
}

/* --- checksums ------------------------------------------------------------------------- */

static u32 crc_of(u32 seed, const u8 *p, size_t n)
{
	u32 crc = ~seed;

	while (n-- > 0) {
		crc ^= *p++;
		for (u32 bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

static u32 line_seed(const struct image *m)
{
	const struct fby_superblock *sb = (const struct fby_superblock *)m->bytes;
	u32 seed = crc_of(0, sb->uuid, 16);

	return sb->salt ? crc_of(seed, (const u8 *)&sb->salt, sizeof(sb->salt)) : seed;
}

/* Sets the last four of n bytes to the checksum of those before. */
static void put_right(u8 *at, u32 n, u32 seed)
{
	u32 crc = crc_of(seed, at, n - 4);

	memcpy(at + n - 4, &crc, 4);
}

/* --- geometry, as the image had it before it was changed ---------------------------------- */

static u64 image_chunks(const struct image *m)
{
	const struct fby_superblock *sb = (const struct fby_superblock *)m->bytes;

	if (sb->magic != FBY_MAGIC || sb->chunk_size < FBY_CHUNK_PAGES_MIN * FBY_PAGE ||
	    sb->chunk_size > FBY_CHUNK_PAGES_MAX * FBY_PAGE || sb->data_offset >= m->size)
		return 0;
	return (m->size - sb->data_offset) / sb->chunk_size;
}

static u8 *chunk_at(const struct image *m, u64 chunk)
{
	const struct fby_superblock *sb = (const struct fby_superblock *)m->bytes;

	return m->bytes + sb->data_offset + chunk * sb->chunk_size;
}

/* Chooses a page line, one in use if a few tries find one. */
static u8 *some_page_line(const struct image *m, struct rng *r, u32 *chunk, u32 *page)
{
	const struct fby_superblock *sb = (const struct fby_superblock *)m->bytes;
	u32 pages = sb->chunk_size / FBY_PAGE, first = fby_first_page(pages);
	u8 *at = NULL;

	for (u32 tries = 0; tries < 64; tries++) {
		*chunk = (u32)rng_below(r, image_chunks(m));
		*page = first + (u32)rng_below(r, rng_one_in(r, 2) ? 8 : pages - first);
		at = chunk_at(m, *chunk) + fby_line_of_page(pages, *page) * FBY_LINE;
		if (((const struct fby_page_line *)at)->kind)
			break;
	}
	return at;
}

/* --- values --------------------------------------------------------------------------------- */

/* Makes a number that a field may not accept: near the old one, at the ends, or any. */
static u64 bad_number(u64 was, u32 bytes, struct rng *r)
{
	u64 top = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;

	switch (rng_below(r, 10)) {
	case 0:
		return 0;
	case 1:
		return top;
	case 2:
		return top >> 1;
	case 3:
		return (top >> 1) + 1;
	case 4:
		return was + 1 + rng_below(r, 3);
	case 5:
		return was - 1 - rng_below(r, 3);
	case 6:
		return was ^ 1ull << rng_below(r, 8 * bytes);
	case 7:
		return was << rng_below(r, 8);
	case 8: /* small */
		return rng_below(r, 70);
	default: /* any length */
		return rng_next(r) >> rng_below(r, 64);
	}
}

static void change_field(struct image *m, u8 *at, const struct field *f, struct rng *r)
{
	u64 was = 0, now;

	if (f->bytes > 8) {
		u32 i = (u32)rng_below(r, f->bytes), n = 1 + (u32)rng_below(r, f->bytes - i);

		image_note(m, " %s[%u..%u]", f->name, i, i + n);
		for (; n > 0; n--, i++)
			at[f->at + i] = (u8)rng_next(r);
		return;
	}
	memcpy(&was, at + f->at, f->bytes);
	now = bad_number(was, f->bytes, r);
	memcpy(at + f->at, &now, f->bytes);
	image_note(m, " %s %llx to %llx", f->name, (unsigned long long)was, (unsigned long long)now);
}

/* Changes one to three fields of a structure.  Its checksum is put right seven times of eight. */
static void change_fields(struct image *m, const char *what, u8 *at, u32 bytes, u32 seed, const struct field *f, u32 n,
			  struct rng *r)
{
	image_note(m, "; %s", what);
	do
		change_field(m, at, &f[rng_below(r, n)], r);
	while (rng_one_in(r, 3));
	if (rng_one_in(r, 8))
		image_note(m, ", checksum left");
	else
		put_right(at, bytes, seed);
}

/* --- changes ---------------------------------------------------------------------------------- */

static void change_superblock(struct image *m, struct rng *r)
{
	const u32 bytes = sizeof(struct fby_superblock);
	u8 *first = m->bytes + FBY_SB_OFFSET, *copy = m->bytes + FBY_SB_COPY_OFFSET;
	u8 *at = rng_one_in(r, 2) ? first : copy;

	change_fields(m, "superblock", at, bytes, 0, superblock, COUNT(superblock), r);
	if (rng_one_in(r, 2)) {
		memcpy(at == first ? copy : first, at, bytes);
		image_note(m, " in both");
	}
}

static void change_record(struct image *m, struct rng *r)
{
	const u32 bytes = sizeof(struct fby_volume_record);
	u32 i = (u32)rng_below(r, rng_one_in(r, 4) ? FBY_VOLUMES_MAX : 3);
	u8 *pair = m->bytes + FBY_VT_OFFSET + i * 2 * bytes;
	u32 copy = (u32)rng_below(r, 2);

	image_note(m, "; volume %u", i);
	if (rng_one_in(r, 6)) { /* a second one of a name that there is */
		memcpy(pair, m->bytes + FBY_VT_OFFSET, 2 * bytes);
		((struct fby_volume_record *)pair)->index = i;
		put_right(pair, bytes, line_seed(m));
		memcpy(pair + bytes, pair, bytes);
	}
	change_fields(m, "record", pair + copy * bytes, bytes, line_seed(m), record, COUNT(record), r);
	if (!rng_one_in(r, 3))
		memcpy(pair + !copy * bytes, pair + copy * bytes, bytes);
}

static void change_chunk_line(struct image *m, struct rng *r)
{
	u32 chunk = (u32)rng_below(r, image_chunks(m)), line = (u32)rng_below(r, 4);
	u8 *at = chunk_at(m, chunk) + line * FBY_LINE;

	image_note(m, "; chunk %u line %u", chunk, line);
	if (line < FBY_LINE_SEAL)
		change_fields(m, "open", at, FBY_LINE, line_seed(m), open_line, COUNT(open_line), r);
	else {
		change_fields(m, "seal", at, FBY_LINE, line_seed(m), seal_line, COUNT(seal_line), r);
		memcpy(at + FBY_LINE_SEAL_COPY * FBY_LINE, at, FBY_LINE);
	}
}

static void change_page_line(struct image *m, struct rng *r)
{
	u32 chunk, page;
	u8 *at = some_page_line(m, r, &chunk, &page);

	image_note(m, "; chunk %u page %u", chunk, page);
	change_fields(m, "line", at, FBY_LINE, line_seed(m), page_line, COUNT(page_line), r);
}

/* Copies a line to another place, as if it belonged there. */
static void copy_page_line(struct image *m, struct rng *r)
{
	u32 from_chunk, from_page, chunk, page;
	const u8 *from = some_page_line(m, r, &from_chunk, &from_page);
	struct fby_page_line *l = (struct fby_page_line *)some_page_line(m, r, &chunk, &page);
	const struct fby_open_line *open = (const struct fby_open_line *)chunk_at(m, chunk);

	image_note(m, "; line of chunk %u page %u to chunk %u page %u", from_chunk, from_page, chunk, page);
	memcpy(l, from, FBY_LINE);
	l->chunk = chunk;
	l->page = (u16)page;
	l->batch_first = (u16)page;
	l->batch_count = 1;
	l->epoch = open[0].epoch > open[1].epoch ? open[0].epoch : open[1].epoch;
	if (rng_one_in(r, 2))
		l->seq = bad_number(l->seq, 8, r);
	put_right((u8 *)l, FBY_LINE, line_seed(m));
}

static void flip_bits(struct image *m, struct rng *r)
{
	u64 from = 0, n = m->size;

	if (!rng_one_in(r, 4)) { /* in a header array, or before the first chunk */
		u64 chunk = rng_below(r, image_chunks(m) + 1);

		from = chunk ? (u64)(chunk_at(m, chunk - 1) - m->bytes) : 0;
		n = chunk ? FBY_CHUNK_PAGES_MIN * FBY_LINE : 3 * FBY_PAGE;
	}
	for (u64 flips = 1 + rng_below(r, 64); flips > 0; flips--) {
		u64 bit = rng_below(r, 8 * n);

		m->bytes[from + bit / 8] ^= (u8)(1u << bit % 8);
	}
	image_note(m, "; bits in %llx + %llx", (unsigned long long)from, (unsigned long long)n);
}

/* Writes zeroes, ones, or noise over a few lines or pages. */
static void wipe(struct image *m, struct rng *r)
{
	u64 unit = rng_one_in(r, 2) ? FBY_LINE : FBY_PAGE, n = unit * (1 + rng_below(r, 8));
	u64 at = rng_below(r, (rng_one_in(r, 3) ? m->size : 4 * FBY_PAGE) / unit) * unit, how = rng_below(r, 3);

	if (n > m->size - at)
		n = m->size - at;
	image_note(m, "; %s over %llx + %llx", how == 0 ? "zeroes" : how == 1 ? "ones" : "noise",
		   (unsigned long long)at, (unsigned long long)n);
	for (u64 i = at; i < at + n; i++)
		m->bytes[i] = how == 0 ? 0 : how == 1 ? 0xff : (u8)rng_next(r);
}

/* Copies a part of another pool: its superblock, table, or a chunk. */
static void transplant(struct image *m, const struct image *other, struct rng *r)
{
	u64 size = m->size < other->size ? m->size : other->size;
	u64 chunk = ((const struct fby_superblock *)other->bytes)->chunk_size, at, n;

	switch (rng_below(r, 3)) {
	case 0:
		at = rng_one_in(r, 2) ? FBY_SB_OFFSET : FBY_SB_COPY_OFFSET;
		n = FBY_PAGE;
		break;
	case 1:
		at = FBY_VT_OFFSET;
		n = FBY_VOLUMES_MAX * 512u;
		break;
	default:
		n = chunk;
		at = rng_below(r, size / chunk) * chunk;
		break;
	}
	if (at + n > size)
		n = size - at;
	image_note(m, "; another pool's %llx + %llx", (unsigned long long)at, (unsigned long long)n);
	memcpy(m->bytes + at, other->bytes + at, n);
}

void mutate(struct image *m, const struct image *other, struct rng *r)
{
	u64 what = rng_below(r, 32);

	if (what == 0 && rng_one_in(r, 2))
		change_superblock(m, r);
	else if (what < 5)
		change_record(m, r);
	else if (what == 5)
		wipe(m, r);
	else if (what == 6)
		transplant(m, other, r);
	else if (!image_chunks(m))
		change_superblock(m, r);
	else if (what < 11)
		flip_bits(m, r);
	else if (what < 16)
		copy_page_line(m, r);
	else if (what < 22)
		change_chunk_line(m, r);
	else
		change_page_line(m, r);
}
