// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * format_pool.c - formats an empty pool.
 */
#include "api/forebay.h"
#include "format/static_format.h"
#include "format/store.h"

static void format_volumes(const struct fby_store *st)
{
	for (u32 i = 0; i < st->sb.nvolumes; i++) {
		struct fby_volume_record r = { .counter = 1, .index = i, .kind = FBY_OWNER_FREE };

		r.crc = fby_crc32c(st->line_seed, &r, sizeof(r) - 4);
		for (u32 copy = 0; copy < 2; copy++)
			media_lines(st->media, fby_record_at(st, i, copy), &r, sizeof(r));
	}
}

static void format_zero(struct fby_media *m, u64 at, u64 end)
{
	static const u8 zero[FBY_PAGE];

	for (; at < end; at += sizeof(zero))
		media_lines(m, at, zero, sizeof(zero));
}

/* Superblocks of other layouts, which a probe would find if those of this one were lost.  Not
 * inlined, to save stack. */
__attribute__((noinline)) static void format_forget(struct fby_media *m, u32 unit, u64 copy_at)
{
	struct fby_superblock sb;

	for (u32 size = FBY_CHUNK_PAGES_MIN * FBY_PAGE; size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE; size *= 2) {
		if (size / 4 != copy_at && fby_sb_grouped_copy(m, size, &sb)) {
			format_zero(m, size / 4, size / 4 + FBY_PAGE);
			if (unit)
				(void)media_persist(m, unit, size / 4, FBY_PAGE, false);
		}
	}
}

/* Writes all open and seal lines, so that later a chunk without them is known to be damaged. */
static bool format_chunk(const struct fby_store *st, u32 c)
{
	static const u8 zero[FBY_CHUNK_LINES * FBY_LINE];
	struct fby_media *m = st->media;
	u64 at = fby_chunk_at(st, c), header = st->array_at + st->unit;

	if (st->unit)
		format_zero(m, at, at + header);
	else
		media_lines(m, at, zero, sizeof(zero));
	for (u32 i = 0; i < 2; i++) {
		struct fby_open_line open = { .magic = FBY_OPEN_MAGIC, .chunk = c, .epoch = i };
		struct fby_seal_line seal = { .magic = FBY_SEAL_MAGIC, .fill = (u16)st->first_page, .closed = 1,
					      .chunk = c, .owner = FBY_NO_OWNER, .counter = i, .epoch = 1,
					      .last_block = FBY_NO_BLOCK };

		fby_line_finish(st->line_seed, &open);
		fby_line_finish(st->line_seed, &seal);
		media_lines(m, fby_open_at(st, c, i), &open, FBY_LINE);
		media_lines(m, fby_seal_at(st, c, i), &seal, FBY_LINE);
		media_lines(m, fby_seal_at(st, c, i + FBY_SEALS / 2), &seal, FBY_LINE);
	}
	return !st->unit || media_persist(m, st->unit, at, header, true);
}

static u32 volumes_most(const struct fby_superblock *sb)
{
	u32 most;

	if (!sb->unit)
		return FBY_VOLUMES_MAX;
	most = (sb->chunk_size / 4 - fby_group_gap(sb)) >> __builtin_ctz(sb->unit);
	return most < FBY_VOLUMES_MAX ? most : FBY_VOLUMES_MAX;
}

/* Returns 0, or why there can be no pool on blocks of this size. */
static int unit_error(struct fby_media *m, const struct fby_format *f, const struct fby_superblock *sb)
{
	const struct fby_device *device = fby_media_device(m);

	if (!f->unit)
		return device ? -FBY_E_NOT_GROUPED : FBY_DONE;
	if (!device)
		return -FBY_E_GROUPED;
	if (f->static_bytes || f->map_bytes)
		return -FBY_E_LOGS_ONLY;
	if (f->unit < device->unit)
		return -FBY_E_UNIT;
	if (!fby_power_of_two(f->unit) || f->unit < FBY_UNIT_MIN || f->unit > FBY_UNIT_MAX ||
	    sb->chunk_size < 16 * f->unit)
		return -FBY_E_GEOMETRY;
	return FBY_DONE;
}

/* All but the superblocks; durable when it returns. */
static void format_rest(const struct fby_store *st)
{
	struct fby_media *m = st->media;
	bool all;

	if (st->unit) {
		format_zero(m, 0, st->sb.data_offset);
		(void)media_persist(m, st->unit, 0, st->sb.data_offset, false);
	} else {
		format_zero(m, FBY_SB_OFFSET, FBY_PAGE);
		format_zero(m, FBY_SB_COPY_OFFSET, FBY_SB_COPY_OFFSET + FBY_PAGE);
		media_fence(m, 0, FBY_VT_OFFSET);
	}
	format_forget(m, st->unit, st->copy_at);
	format_volumes(st);
	if (!st->unit) {
		for (u32 c = 0; c < st->sb.nchunks; c++)
			(void)format_chunk(st, c);
		media_fence(m, 0, st->sb.media_size);
		return;
	}
	/* After an error all of it is written again: what was written before may be lost, too. */
	for (u32 i = 0; i < FBY_DEVICE_TRIES; i++) {
		all = true;
		for (u32 c = 0; c < st->sb.nchunks; c++)
			all &= format_chunk(st, c);
		all &= media_persist(m, st->unit, 0, st->sb.data_offset, false);
		if (all || FBY_BUG(STREAM_FORMAT_HALF))
			return;
	}
	media_fail(m);
}

int fby_format(struct fby_media *m, const struct fby_format *f)
{
	struct fby_store st = { .sb = { .magic = FBY_MAGIC, .version = FBY_VERSION, .generation = 1 } };
	struct fby_superblock *const sb = &st.sb;
	u64 chunks, shares, end;
	int rc;

	sb->chunk_size = f->chunk_size ? f->chunk_size : FBY_CHUNK_PAGES_MAX * FBY_PAGE;
	if (!fby_power_of_two(sb->chunk_size) || sb->chunk_size < FBY_CHUNK_PAGES_MIN * FBY_PAGE ||
	    sb->chunk_size > FBY_CHUNK_PAGES_MAX * FBY_PAGE)
		return -FBY_E_GEOMETRY;
	rc = unit_error(m, f, sb);
	if (rc)
		return rc;
	sb->unit = f->unit;
	sb->salt = f->salt;
	sb->group_pages = f->unit ? FBY_GROUP_PAGES : FBY_BATCH_PAGES;
	sb->nvolumes = f->nvolumes ? f->nvolumes : volumes_most(sb);
	if (sb->nvolumes > volumes_most(sb))
		return -FBY_E_GEOMETRY;
	sb->media_size = fby_media_size(m);
	sb->data_offset = f->unit ? sb->chunk_size :
				   fby_round_up(FBY_VT_OFFSET + sb->nvolumes * 512u, sb->chunk_size);
	sb->static_bytes = f->static_bytes;
	sb->map_bytes = f->map_bytes;
	sb->features_incompat = (sb->static_bytes ? FBY_FEATURE_STATIC : 0) |
			       (sb->map_bytes ? FBY_FEATURE_MAP | FBY_FEATURE_MAP_GROWS : 0) |
			       (sb->unit ? FBY_FEATURE_GROUPED : 0) |
			       (sb->salt ? FBY_FEATURE_SALTED : 0);
	if (sb->static_bytes % FBY_STATIC_UNIT || sb->static_bytes > FBY_STATIC_BYTES_MAX ||
	    sb->map_bytes % FBY_MAP_UNIT || sb->map_bytes > FBY_MAP_BYTES_MAX)
		return -FBY_E_GEOMETRY;
	/* Shares of maps begin at a multiple of their unit. */
	shares = sb->static_bytes + sb->map_bytes;
	end = sb->map_bytes ? sb->media_size & ~(u64)(FBY_MAP_UNIT - 1) : sb->media_size;
	if (end < sb->data_offset + (u64)FBY_CHUNKS_MIN * sb->chunk_size + shares)
		return -FBY_E_MEDIA_SMALL;
	chunks = (end - sb->data_offset - shares) >> __builtin_ctz(sb->chunk_size);
	sb->nchunks = chunks > FBY_CHUNKS_MAX ? FBY_CHUNKS_MAX : (u32)chunks;
	sb->flags = FBY_SB_CLEAN;
	sb->clean_seq = 1;
	fby_copy(sb->uuid, f->uuid, 16);
	sb->crc = fby_sb_crc(sb);
	fby_store_place(&st, m, sb);
	format_rest(&st);
	fby_sb_store(m, st.copy_at, sb);
	fby_sb_store(m, FBY_SB_OFFSET, sb);
	return media_failed(m) ? -FBY_E_MEDIUM : FBY_DONE;
}
