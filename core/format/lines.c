// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * lines.c - the 64-byte lines of a chunk: checksums and validation.  The media is never trusted:
 * a line is copied once, and only the copy is checked and used.
 */
#include "format/kind.h"

#define LINE_CRC_BYTES (FBY_LINE - 4)
#define CRC32C_POLY_REFLECTED 0x82f63b78u

static u32 line_crc(u32 seed, const void *line)
{
#ifdef FBY_PLANTED_BUGS
	if (FBY_BUG(CRC_SKIPS_LOST)) {
		struct fby_page_line l = *(const struct fby_page_line *)line;

		l.valid = l.lost = 0;
		return fby_crc32c(seed, &l, LINE_CRC_BYTES);
	}
#endif
	return fby_crc32c(seed, line, LINE_CRC_BYTES);
}

static u32 line_stored_crc(const void *line)
{
	u32 crc;

	fby_copy(&crc, (const u8 *)line + LINE_CRC_BYTES, 4);
	return crc;
}

void fby_line_finish(u32 seed, void *line)
{
	u32 crc = line_crc(seed, line);

	fby_copy((u8 *)line + LINE_CRC_BYTES, &crc, 4);
}

bool fby_line_crc_ok(const struct fby_store *st, const void *line)
{
	return line_crc(st->line_seed, line) == line_stored_crc(line);
}

/*
 * CRC is linear: flipping a bit changes it by an amount that depends only on the bit's distance
 * from the end.  Stepping through those amounts finds the bit, 1 ns a step; two wrong bits at
 * most 2^31 apart are never mistaken for one.
 */
static bool crc_single_bit(u32 diff, u32 n, u32 *bit)
{
	u32 s = CRC32C_POLY_REFLECTED; /* syndrome of an error in the last bit of the last byte */
	u32 i = n * 8;

	while (i-- > 0) {
		if (s == diff) {
			*bit = i;
			return true;
		}
		s = (s >> 1) ^ (s & 1 ? CRC32C_POLY_REFLECTED : 0);
	}
	return false;
}

static bool line_repair(const struct fby_store *st, void *line)
{
	u32 diff = line_crc(st->line_seed, line) ^ line_stored_crc(line);
	u32 bit;

	if ((diff & (diff - 1)) == 0) { /* the flip is in the checksum */
		fby_line_finish(st->line_seed, line);
		return true;
	}
	if (!crc_single_bit(diff, LINE_CRC_BYTES, &bit))
		return false;
	((u8 *)line)[bit / 8] ^= (u8)(1u << (bit % 8));
	return fby_line_crc_ok(st, line);
}

static bool all_zero(const u8 *bytes, u32 n)
{
	u8 any = 0;

	while (n-- > 0)
		any |= *bytes++;
	return any == 0;
}

static bool page_line_sane(const struct fby_store *st, u32 c, u32 i, const struct fby_page_line *l)
{
	bool masks;

	switch (l->kind) {
	case FBY_KIND_DATA:
		masks = (l->valid & l->lost) == 0 && (l->valid | l->lost) != 0;
		break;
	case FBY_KIND_ZERO:
	case FBY_KIND_DISCARD:
		masks = l->valid == 0xff && l->lost == 0;
		break;
	case FBY_KIND_BYPASS:
	case FBY_KIND_VOID:
		masks = l->valid == 0 && l->lost == 0;
		break;
	default:
		return false;
	}
	return masks && l->chunk == c && l->page == i && l->volume < st->sb.nvolumes && l->seq > 0 &&
	       l->seq < FBY_NUMBER_END && l->epoch < FBY_NUMBER_END && l->block < 1ull << FBY_BLOCK_BITS &&
	       l->batch_count >= 1 && l->batch_count <= fby_group_pages(st) && l->batch_first >= st->first_page &&
	       l->batch_first <= i && i - l->batch_first < l->batch_count &&
	       l->batch_first + l->batch_count <= st->chunk_pages &&
	       (l->flags & ~(st->unit ? 0u : FBY_PF_NOCRC)) == 0 &&
	       l->prev_seq < l->seq && l->reserved == 0;
}

/* A line that was never written is not repaired: two of the three fields that state its place
 * must match. */
static bool page_line_repairable(u32 c, u32 i, const u64 *epoch, const struct fby_page_line *l)
{
	u32 fits = (l->chunk == c) + (l->page == i) + (l->epoch == fby_load(epoch));

	return fits >= 2;
}

static bool page_line_at(const struct fby_store *st, u64 at, u32 c, u32 i, const u64 *epoch, struct fby_page_line *out,
			 bool *repaired)
{
	if (repaired)
		*repaired = false;
	if (!media_read(st->media, out, at, FBY_LINE))
		return false;
	if (!fby_line_crc_ok(st, out)) {
		if (!repaired || !page_line_repairable(c, i, epoch, out) || !line_repair(st, out))
			return false;
		*repaired = true;
	}
	return page_line_sane(st, c, i, out);
}

bool fby_page_line_judge(const struct fby_store *st, u32 c, u32 i, const u64 *epoch, struct fby_page_line *out,
			 bool *repaired)
{
	FBY_ASSERT(st, i >= st->first_page && i < st->chunk_pages);
	return page_line_at(st, fby_line_at(st, c, i), c, i, epoch, out, repaired);
}

/* Further checks of a line whose kind is known. */
static bool open_line_sane(const struct fby_store *st, const struct fby_open_line *l)
{
	return (l->owner < st->sb.nvolumes || l->kind == FBY_CHUNK_FREE) && l->seq_min < FBY_NUMBER_END &&
	       l->reserved0 == 0 && all_zero(l->reserved, sizeof(l->reserved));
}

bool fby_open_line_read(const struct fby_store *st, u32 c, u32 which, struct fby_open_line *out)
{
	if (!media_read(st->media, out, fby_open_at(st, c, which), FBY_LINE))
		return false;
	return fby_line_crc_ok(st, out) && out->magic == FBY_OPEN_MAGIC && out->chunk == c &&
	       out->epoch < FBY_NUMBER_END && (out->epoch & 1) == which &&
	       (out->kind >= FBY_CHUNK_KINDS || open_line_sane(st, out));
}

static bool seal_line_sane(const struct fby_store *st, const struct fby_seal_line *l)
{
	return l->fill >= st->first_page && l->fill <= fby_chunk_kinds[l->kind].fill_most(st) && l->closed <= 1 &&
	       (l->owner < st->sb.nvolumes || l->owner == FBY_NO_OWNER) && l->seq_max < FBY_NUMBER_END &&
	       l->reserved0 == 0 && all_zero(l->reserved, sizeof(l->reserved));
}

bool fby_seal_line_read(const struct fby_store *st, u32 c, u32 which, struct fby_seal_line *out)
{
	if (!media_read(st->media, out, fby_seal_at(st, c, which), FBY_LINE))
		return false;
	return fby_line_crc_ok(st, out) && out->magic == FBY_SEAL_MAGIC && out->chunk == c &&
	       (out->counter & 1) == (which & 1) && out->counter < FBY_NUMBER_END && out->epoch < FBY_NUMBER_END &&
	       (out->kind >= FBY_CHUNK_KINDS || seal_line_sane(st, out));
}

static bool witness_sane(const struct fby_store *st, const struct fby_witness *w)
{
	if (w->chunk == FBY_NO_CHUNK)
		return w->epoch == 0 && w->line == 0 && w->owner == 0;
	return w->chunk < st->sb.nchunks && w->owner < st->sb.nvolumes &&
	       w->line >= st->first_page * (FBY_PAGE / FBY_LINE) && w->line < st->sb.chunk_size / FBY_LINE;
}

static bool group_line_sane(const struct fby_store *st, const struct fby_group_line *l)
{
	u32 start = st->first_page * (FBY_PAGE / FBY_LINE), end = st->sb.chunk_size / FBY_LINE;

	return l->records <= FBY_GROUP_RECORDS && (u32)l->line + l->lines <= end &&
	       (l->previous == 0 || (l->previous >= start && l->previous < l->line)) &&
	       l->epoch < FBY_NUMBER_END && l->seq_max < FBY_NUMBER_END && l->owner < st->sb.nvolumes &&
	       witness_sane(st, &l->witness[0]) && witness_sane(st, &l->witness[1]);
}

/* Its blocks are those of its records: of a volume a block each, and one more. */
static bool group_records_sane(u32 kind, const struct fby_group_line *l)
{
	if (kind == FBY_CHUNK_LOG)
		return l->records >= 1 && l->lines > l->records;
	return l->lines == (l->records + 1u) * FBY_GROUP_PAGE_LINES && l->line % FBY_GROUP_PAGE_LINES == 0 &&
	       l->previous % FBY_GROUP_PAGE_LINES == 0 && l->before == 0;
}

bool fby_group_line_read(const struct fby_store *st, u32 c, u32 kind, u32 line, struct fby_group_line *out)
{
	u32 magic = kind == FBY_CHUNK_LOG ? FBY_GROUP_MAGIC : FBY_GROUP_PAGES_MAGIC;

	if (!media_read(st->media, out, fby_chunk_at(st, c) + (u64)line * FBY_LINE, FBY_LINE))
		return false;
	return out->magic == magic && out->chunk == c && out->line == line && fby_line_crc_ok(st, out) &&
	       group_line_sane(st, out) && group_records_sane(kind, out);
}

bool fby_group_page_line(const struct fby_store *st, const struct fby_group_line *g, u32 n, struct fby_page_line *out,
			 bool *repaired)
{
	u64 at = fby_chunk_at(st, g->chunk) + (u64)(g->line + 1 + n) * FBY_LINE;

	return page_line_at(st, at, g->chunk, fby_place_of_line(g->line) + 1 + n, &g->epoch, out, repaired) &&
	       out->epoch == g->epoch && out->volume == g->owner;
}

/*
 * Numbers and blocks are such that a line which is lost beside it is named and dated as if this one
 * were not there: it says of the page before what the next page says of it, and its number lies
 * between the two.
 */
void fby_group_void_line(const struct fby_store *st, const struct fby_page_line *first, u32 place, u64 seq_min,
			 struct fby_page_line *out)
{
	*out = (struct fby_page_line){
		.seq = first->prev_seq ? first->prev_seq + 1 : seq_min ? seq_min : 1,
		.block = first->prev_block < 1ull << FBY_BLOCK_BITS ? first->prev_block : 0,
		.epoch = first->epoch,
		.prev_block = first->prev_block,
		.prev_seq = first->prev_seq,
		.batch_first = (u16)place,
		.batch_count = 1,
		.kind = FBY_KIND_VOID,
		.chunk = first->chunk,
		.page = (u16)place,
		.volume = first->volume,
	};
	fby_line_finish(st->line_seed, out);
}

bool fby_group_pages_first(const struct fby_store *st, u32 c, struct fby_open_line *out)
{
	struct fby_group_line g;
	bool any = false;

	if (st->unit != FBY_PAGE)
		return false;
	for (u32 i = st->first_page; i < st->chunk_pages; i++) {
		if (!fby_group_line_read(st, c, FBY_CHUNK_CACHE, i * FBY_GROUP_PAGE_LINES, &g) ||
		    (any && g.epoch <= out->epoch))
			continue;
		*out = (struct fby_open_line){ .kind = FBY_CHUNK_CACHE, .owner = g.owner, .epoch = g.epoch, .seq_min = 1 };
		any = true;
	}
	return any;
}
