// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * format_pool.c - formats an empty pool.
 */
#include "api/forebay.h"
#include "format/static_format.h"
#include "format/store.h"

static void format_volumes(struct fby_media *m, u32 seed, u32 nvolumes)
{
	for (u32 i = 0; i < nvolumes; i++) {
		struct fby_volume_record r = { .counter = 1, .index = i, .kind = FBY_OWNER_FREE };
		u64 at = FBY_VT_OFFSET + i * 2u * sizeof(r);

		r.crc = fby_crc32c(seed, &r, sizeof(r) - 4);
		media_lines(m, at, &r, sizeof(r));
		media_lines(m, at + sizeof(r), &r, sizeof(r));
	}
}

/* Writes all open and seal lines, so that later a chunk without them is known to be damaged. */
static void format_chunk(struct fby_media *m, u32 seed, const struct fby_superblock *sb, u32 c)
{
	u64 at = sb->data_offset + (u64)c * sb->chunk_size;
	u16 first = (u16)fby_first_page(sb->chunk_size / FBY_PAGE);
	static const u8 zero[FBY_CHUNK_LINES * FBY_LINE];

	media_lines(m, at, zero, sizeof(zero));
	for (u32 i = 0; i < 2; i++) {
		struct fby_open_line open = { .magic = FBY_OPEN_MAGIC, .chunk = c, .epoch = i };
		struct fby_seal_line seal = { .magic = FBY_SEAL_MAGIC, .fill = first, .closed = 1, .chunk = c,
					      .owner = FBY_NO_OWNER, .counter = i, .epoch = 1,
					      .last_block = FBY_NO_BLOCK };

		fby_line_finish(seed, &open);
		fby_line_finish(seed, &seal);
		media_lines(m, at + (FBY_LINE_OPEN + i) * FBY_LINE, &open, FBY_LINE);
		media_lines(m, at + (FBY_LINE_SEAL + i) * FBY_LINE, &seal, FBY_LINE);
		media_lines(m, at + (FBY_LINE_SEAL + FBY_LINE_SEAL_COPY + i) * FBY_LINE, &seal, FBY_LINE);
	}
}

int fby_format(struct fby_media *m, const struct fby_format *f)
{
	struct fby_superblock sb = { .magic = FBY_MAGIC, .version = FBY_VERSION, .generation = 1 };
	static const u8 zero[FBY_PAGE];
	u64 chunks, shares, end;
	u32 seed;

	sb.chunk_size = f->chunk_size ? f->chunk_size : FBY_CHUNK_PAGES_MAX * FBY_PAGE;
	sb.group_pages = FBY_BATCH_PAGES;
	sb.nvolumes = f->nvolumes ? f->nvolumes : FBY_VOLUMES_MAX;
	if (!fby_power_of_two(sb.chunk_size) || sb.chunk_size < FBY_CHUNK_PAGES_MIN * FBY_PAGE ||
	    sb.chunk_size > FBY_CHUNK_PAGES_MAX * FBY_PAGE || sb.nvolumes > FBY_VOLUMES_MAX)
		return -FBY_E_GEOMETRY;
	sb.media_size = fby_media_size(m);
	sb.data_offset = fby_round_up(FBY_VT_OFFSET + sb.nvolumes * 512u, sb.chunk_size);
	sb.static_bytes = f->static_bytes;
	sb.map_bytes = f->map_bytes;
	sb.features_incompat = (sb.static_bytes ? FBY_FEATURE_STATIC : 0) |
			       (sb.map_bytes ? FBY_FEATURE_MAP | FBY_FEATURE_MAP_GROWS : 0);
	if (sb.static_bytes % FBY_STATIC_UNIT || sb.static_bytes > FBY_STATIC_BYTES_MAX ||
	    sb.map_bytes % FBY_MAP_UNIT || sb.map_bytes > FBY_MAP_BYTES_MAX)
		return -FBY_E_GEOMETRY;
	/* Shares of maps begin at a multiple of their unit. */
	shares = sb.static_bytes + sb.map_bytes;
	end = sb.map_bytes ? sb.media_size & ~(u64)(FBY_MAP_UNIT - 1) : sb.media_size;
	if (end < sb.data_offset + (u64)FBY_CHUNKS_MIN * sb.chunk_size + shares)
		return -FBY_E_MEDIA_SMALL;
	chunks = (end - sb.data_offset - shares) >> __builtin_ctz(sb.chunk_size);
	sb.nchunks = chunks > FBY_CHUNKS_MAX ? FBY_CHUNKS_MAX : (u32)chunks;
	sb.flags = FBY_SB_CLEAN;
	sb.clean_seq = 1;
	fby_copy(sb.uuid, f->uuid, 16);
	sb.crc = fby_sb_crc(&sb);
	seed = fby_crc32c(0, sb.uuid, 16);

	media_lines(m, FBY_SB_OFFSET, zero, FBY_PAGE);
	media_lines(m, FBY_SB_COPY_OFFSET, zero, FBY_PAGE);
	media_fence(m, 0, FBY_VT_OFFSET);
	format_volumes(m, seed, sb.nvolumes);
	for (u32 c = 0; c < sb.nchunks; c++)
		format_chunk(m, seed, &sb, c);
	media_fence(m, 0, sb.media_size);
	fby_sb_store(m, FBY_SB_COPY_OFFSET, &sb);
	fby_sb_store(m, FBY_SB_OFFSET, &sb);
	return FBY_DONE;
}

