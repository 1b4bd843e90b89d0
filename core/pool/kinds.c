// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * kinds.c - the table of kinds of chunk and of owner, with each layer's functions for them.
 */
#include "format/kind.h"
#include "pool/parts.h"

/* --- chunks ---------------------------------------------------------------------- */

static u32 pages_most(const struct fby_store *st)
{
	return st->chunk_pages;
}

static u32 log_most(const struct fby_store *st)
{
	return fby_log_fill_of(st, fby_log_lines(st));
}

static bool log_scan(struct fby_pool *p, u32 c, const struct fby_seal_line *seal)
{
	fby_logs_scan(&p->logs, c, seal);
	return fby_logs_held(&p->logs, c);
}

static bool log_check(struct fby_pool *p, u32 c, struct fby_violation *v)
{
	return fby_logs_check_chunk(&p->logs, c, v);
}

const struct fby_chunk_kind_row fby_chunk_kinds[FBY_CHUNK_KINDS] = {
	[FBY_CHUNK_FREE] = { .fill_most = pages_most },
	[FBY_CHUNK_CACHE] = { .fill_most = pages_most, .first = fby_group_pages_first },
	[FBY_CHUNK_LOG] = { true, log_most, fby_log_first, log_scan, log_check },
};

/* --- owners ---------------------------------------------------------------------- */

/* A free record may be that of a removed volume. */
static void volume_open(struct fby_pool *p, u16 owner)
{
	const struct fby_volume_record *r = &p->space.owner[owner].rec;

	p->cache.volume[owner].blocks = (r->origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	if (r->watermark > p->recovery.max_seq)
		p->recovery.max_seq = r->watermark;
}

static void log_open(struct fby_pool *p, u16 owner)
{
	fby_logs_open(&p->logs, owner);
	fby_entitle(&p->space, &p->space.owner[owner], true);
}

/* The content of the head is known from now on; an attach refuses a volume whose head is
 * unreadable. */
static void static_open(struct fby_pool *p, u16 owner)
{
	(void)fby_static_open(&p->statics, owner);
}

static void map_open(struct fby_pool *p, u16 owner)
{
	if (p->maps.map)
		fby_map_locate(&p->maps, &p->maps.map[owner], &p->space.owner[owner].map);
}

static bool static_room(const struct fby_superblock *sb)
{
	return sb->static_bytes > 0;
}

static bool map_room(const struct fby_superblock *sb)
{
	return sb->map_bytes > 0;
}

const struct fby_owner_kind_row fby_owner_kinds[FBY_OWNER_KINDS] = {
	[FBY_OWNER_FREE] = { FBY_CHUNK_CACHE, fby_volume_record_sane, NULL, volume_open },
	[FBY_OWNER_VOLUME] = { FBY_CHUNK_CACHE, fby_volume_record_sane, NULL, volume_open },
	[FBY_OWNER_LOG] = { FBY_CHUNK_LOG, fby_log_record_sane, NULL, log_open },
	[FBY_OWNER_STATIC] = { FBY_CHUNK_CACHE, fby_static_record_sane, static_room, static_open }, /* it has no chunk */
	[FBY_OWNER_MAP] = { FBY_CHUNK_CACHE, fby_map_record_sane, map_room, map_open }, /* likewise */
};
