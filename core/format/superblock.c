// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * superblock.c - the superblock and its copy: when one is valid, and which one counts.
 */
#include "format/static_format.h"
#include "format/store.h"

u32 fby_sb_crc(const struct fby_superblock *sb)
{
	return fby_crc32c(0, sb, sizeof(*sb) - 4);
}

bool fby_power_of_two(u64 x)
{
	return x && (x & (x - 1)) == 0;
}

static u64 media_needed(const struct fby_superblock *sb)
{
	u64 end = sb->data_offset + (u64)sb->nchunks * sb->chunk_size + sb->static_bytes;

	return sb->map_bytes ? fby_round_up(end, FBY_MAP_UNIT) + sb->map_bytes : end;
}

static bool grouped(const struct fby_superblock *sb)
{
	return sb->features_incompat & FBY_FEATURE_GROUPED;
}

/* Superblocks and records, or where chunk 0 begins. */
static bool places_ok(const struct fby_superblock *sb)
{
	if (!grouped(sb))
		return sb->unit == 0 &&
		       sb->data_offset == fby_round_up(FBY_VT_OFFSET + sb->nvolumes * 512u, sb->chunk_size);
	return fby_power_of_two(sb->unit) && sb->unit >= FBY_UNIT_MIN && sb->unit <= FBY_UNIT_MAX &&
	       sb->chunk_size >= 16 * sb->unit && sb->data_offset == sb->chunk_size &&
	       fby_group_gap(sb) + (u64)sb->nvolumes * sb->unit <= sb->chunk_size / 4 && sb->static_bytes == 0 &&
	       sb->map_bytes == 0;
}

bool fby_sb_geometry_ok(const struct fby_superblock *sb)
{
	return fby_power_of_two(sb->chunk_size) && sb->chunk_size >= FBY_CHUNK_PAGES_MIN * FBY_PAGE &&
	       sb->chunk_size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE && sb->nvolumes >= 1 &&
	       sb->nvolumes <= FBY_VOLUMES_MAX && sb->nchunks >= FBY_CHUNKS_MIN && sb->nchunks <= FBY_CHUNKS_MAX &&
	       places_ok(sb) &&
	       sb->static_bytes % FBY_STATIC_UNIT == 0 && sb->static_bytes <= FBY_STATIC_BYTES_MAX &&
	       (sb->static_bytes == 0 || (sb->features_incompat & FBY_FEATURE_STATIC)) &&
	       sb->map_bytes % FBY_MAP_UNIT == 0 && sb->map_bytes <= FBY_MAP_BYTES_MAX &&
	       (sb->map_bytes == 0 || (sb->features_incompat & FBY_FEATURE_MAP)) &&
	       (sb->salt == 0) == !(sb->features_incompat & FBY_FEATURE_SALTED) &&
	       sb->media_size >= media_needed(sb);
}

void fby_store_place(struct fby_store *st, struct fby_media *m, const struct fby_superblock *sb)
{
	st->media = m;
	st->sb = *sb;
	st->chunk_pages = sb->chunk_size / FBY_PAGE;
	st->chunk_shift = (u32)__builtin_ctz(st->chunk_pages);
	st->unit = sb->unit;
	st->open_step = st->unit ? st->unit : FBY_LINE;
	st->array_at = 2 * st->unit;
	st->copy_at = fby_sb_copy_at(sb);
	st->first_page = (u32)fby_round_up(st->array_at + fby_first_page(st->chunk_pages) * FBY_PAGE,
					   st->unit ? st->unit : FBY_PAGE) / FBY_PAGE;
	st->log_first = st->unit ? st->first_page * (FBY_PAGE / FBY_LINE) : FBY_CHUNK_LINES;
	st->page_lines = sb->data_offset + st->array_at + FBY_CHUNK_LINES * FBY_LINE - (u64)st->first_page * FBY_LINE;
	st->line_seed = fby_crc32c(0, sb->uuid, 16);
	if (sb->salt)
		st->line_seed = fby_crc32c(st->line_seed, &sb->salt, sizeof(sb->salt));
}

void fby_store_start(struct fby_store *st, struct fby_media *m, const struct fby_superblock *sb)
{
	FBY_ASSERT(m, fby_sb_geometry_ok(sb));
	fby_store_place(st, m, sb);
	/* The array holds the last line, and no data page has number 0, which is "none". */
	FBY_ASSERT(m, fby_line_of_page(st->chunk_pages, st->chunk_pages - 1) < st->first_page * (FBY_PAGE / FBY_LINE));
	FBY_ASSERT(m, st->first_page > 0 && (st->unit || st->first_page <= FBY_CHUNK_LINES));
}

u64 fby_sb_copy_at(const struct fby_superblock *sb)
{
	return grouped(sb) ? sb->chunk_size / 4 : FBY_SB_COPY_OFFSET;
}

bool fby_sb_grouped_copy(struct fby_media *m, u32 chunk_size, struct fby_superblock *sb)
{
	return fby_sb_read(m, chunk_size / 4, sb) && grouped(sb) && sb->chunk_size == chunk_size;
}

bool fby_sb_read(struct fby_media *m, u64 offset, struct fby_superblock *sb)
{
	u32 unused = 0;

	if (fby_media_size(m) < offset + sizeof(*sb) ||
	    !media_read_crc(m, sb, offset, sizeof(*sb), &unused)) {
		fby_zero(sb, sizeof(*sb));
		return false;
	}
	return sb->magic == FBY_MAGIC && fby_sb_crc(sb) == sb->crc;
}

void fby_sb_store(struct fby_media *m, u64 offset, const struct fby_superblock *sb)
{
	media_lines(m, offset, sb, sizeof(*sb));
	if (sb->unit)
		(void)media_persist(m, sb->unit, offset, sizeof(*sb), false);
	else
		media_fence(m, offset, sizeof(*sb));
}

/* Would an open use the copy and not the primary? */
static bool copy_counts(const struct fby_store *st)
{
	struct fby_superblock sb;
	bool primary = fby_sb_read(st->media, FBY_SB_OFFSET, &sb);
	u64 generation = sb.generation;

	return fby_sb_read(st->media, st->copy_at, &sb) && (!primary || sb.generation > generation);
}

void fby_sb_write(struct fby_store *st, bool clean)
{
	bool counts = copy_counts(st);

	st->sb.generation++;
	st->sb.flags = clean ? FBY_SB_CLEAN : 0;
	if (!clean)
		st->sb.clean_entries = st->sb.clean_digest = 0;
	st->sb.crc = fby_sb_crc(&st->sb);
	/* The one that counts is written last: a crash or damage may have left the other one
	 * torn. */
	fby_sb_store(st->media, counts ? FBY_SB_OFFSET : st->copy_at, &st->sb);
	fby_sb_store(st->media, counts ? st->copy_at : FBY_SB_OFFSET, &st->sb);
}
