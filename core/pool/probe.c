// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * probe.c - what a media holds: a pool that may or may not be opened, nothing, or traces of a
 * pool.
 */
#include "pool/parts.h"

#define PROBE_CHUNKS 64u

/* Each chunk states its number: looks for one at the place where a pool would have it. */
static bool chunk_traces(struct fby_media *m)
{
	for (u64 size = FBY_CHUNK_PAGES_MIN * FBY_PAGE; size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE; size *= 2) {
		for (u64 at = size; at <= size * PROBE_CHUNKS && at + FBY_PAGE <= fby_media_size(m); at += size) {
			struct fby_open_line l[2];
			u32 unused = 0;

			if (media_read_crc(m, l, at, sizeof(l), &unused) &&
			    (l[0].magic == FBY_OPEN_MAGIC || l[1].magic == FBY_OPEN_MAGIC))
				return true;
		}
	}
	return false;
}

static int sb_error(const struct fby_superblock *sb, u64 media_size)
{
	if (sb->version != FBY_VERSION)
		return -FBY_E_VERSION;
	if (sb->features_incompat & ~FBY_FEATURES)
		return -FBY_E_FEATURE;
	if (sb->group_pages != FBY_BATCH_PAGES)
		return -FBY_E_GROUP;
	if (!fby_sb_geometry_ok(sb))
		return -FBY_E_GEOMETRY;
	if (sb->media_size > media_size)
		return -FBY_E_MEDIA_SIZE;
	if (sb->clean_seq >= FBY_NUMBER_END || sb->generation >= FBY_NUMBER_END)
		return -FBY_E_NUMBERS;
	return 0;
}

void fby_probe(struct fby_media *m, struct fby_probe *out)
{
	struct fby_superblock copy;

	fby_zero(out, sizeof(*out));
	out->primary_valid = fby_sb_read(m, FBY_SB_OFFSET, &out->sb);
	out->copy_valid = fby_sb_read(m, FBY_SB_COPY_OFFSET, &copy);
	if (out->primary_valid || out->copy_valid) {
		if (!out->primary_valid || (out->copy_valid && copy.generation > out->sb.generation))
			out->sb = copy;
		out->state = FBY_PROBE_POOL;
		out->error = sb_error(&out->sb, fby_media_size(m));
		return;
	}
	if (out->sb.magic == FBY_MAGIC || copy.magic == FBY_MAGIC || chunk_traces(m)) {
		out->state = FBY_PROBE_DAMAGED;
		out->error = -FBY_E_BAD_SUPERBLOCK;
		return;
	}
	out->state = FBY_PROBE_BLANK;
	out->error = -FBY_E_NO_SUPERBLOCK;
}
