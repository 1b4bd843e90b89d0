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

/* Is it on a medium of its kind? */
static int medium_error(struct fby_media *m, const struct fby_superblock *sb)
{
	const struct fby_device *device = fby_media_device(m);
	bool grouped = sb->features_incompat & FBY_FEATURE_GROUPED;

	if (!device)
		return grouped ? -FBY_E_GROUPED : 0;
	if (!grouped)
		return -FBY_E_NOT_GROUPED;
	return device->unit > sb->unit ? -FBY_E_UNIT : 0;
}

static int sb_error(const struct fby_superblock *sb, u64 media_size)
{
	u32 group = sb->features_incompat & FBY_FEATURE_GROUPED ? FBY_GROUP_PAGES : FBY_BATCH_PAGES;

	if (sb->version != FBY_VERSION)
		return -FBY_E_VERSION;
	if (sb->features_incompat & ~FBY_FEATURES)
		return -FBY_E_FEATURE;
	if (sb->group_pages != group)
		return -FBY_E_GROUP;
	if (!fby_sb_geometry_ok(sb))
		return -FBY_E_GEOMETRY;
	if (sb->media_size > media_size)
		return -FBY_E_MEDIA_SIZE;
	if (sb->clean_seq >= FBY_NUMBER_END || sb->generation >= FBY_NUMBER_END)
		return -FBY_E_NUMBERS;
	return 0;
}

/* Does the first superblock say where its copy is?  A forged one may have any chunk size. */
static bool names_copy(const struct fby_superblock *first)
{
	return !(first->features_incompat & FBY_FEATURE_GROUPED) ||
	       (fby_power_of_two(first->chunk_size) && first->chunk_size >= FBY_CHUNK_PAGES_MIN * FBY_PAGE &&
		first->chunk_size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE);
}

/* Not inlined, to save stack.  Reads the copy of the superblock from where the first says, or from wherever there is one. */
__attribute__((noinline)) static bool read_copy(struct fby_media *m, const struct fby_superblock *first, struct fby_superblock *copy)
{
	u32 size = FBY_CHUNK_PAGES_MIN * FBY_PAGE;
	struct fby_superblock at;

	if (first && names_copy(first))
		return fby_sb_read(m, fby_sb_copy_at(first), copy);
	if (fby_sb_read(m, FBY_SB_COPY_OFFSET, copy))
		return true;
	for (; size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE; size *= 2) {
		if (fby_sb_grouped_copy(m, size, &at)) {
			*copy = at;
			return true;
		}
	}
	return false;
}

void fby_probe(struct fby_media *m, struct fby_probe *out)
{
	struct fby_superblock copy;

	fby_zero(out, sizeof(*out));
	out->primary_valid = fby_sb_read(m, FBY_SB_OFFSET, &out->sb);
	out->copy_valid = read_copy(m, out->primary_valid ? &out->sb : NULL, &copy);
	if (out->primary_valid || out->copy_valid) {
		if (!out->primary_valid || (out->copy_valid && copy.generation > out->sb.generation))
			out->sb = copy;
		out->state = FBY_PROBE_POOL;
		out->error = sb_error(&out->sb, fby_media_size(m));
		if (!out->error)
			out->error = medium_error(m, &out->sb);
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
