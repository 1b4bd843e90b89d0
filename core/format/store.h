/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * store.h - the layout of a pool's media: geometry, offsets, and the checks of superblocks,
 * records and lines.
 *
 * A page is named by its number: chunk * chunk_pages + place in the chunk.
 * Numbers of the pages of header arrays name no data page; 0 is "none".
 */
#ifndef FBY_STORE_H
#define FBY_STORE_H

#include "format/map_format.h"
#include "medium/medium.h"

#define FBY_NO_PAGE 0u
#define FBY_NO_CHUNK (~0u)
#define FBY_NO_OWNER 0xffffu
#define FBY_NO_BLOCK (~0ull)
#define FBY_CHUNKS_MIN 4u
/* A chunk's seal lines by number: bit 0 is the parity of the counter, bit 1 selects the copy. */
#define FBY_SEALS 4u

/* Fixed while the pool is open, except for the fields that fby_sb_write changes. */
struct fby_store {
	struct fby_media *media;
	struct fby_superblock sb;
	u32 chunk_pages, chunk_shift;
	u32 first_page; /* data begins there in each chunk */
	u32 line_seed;
	u64 page_lines; /* offset of the line of page 0 of chunk 0, if it had one */
};

/* --- lines.c: build and validate lines; copies only ----------------------- */
enum fby_line_class { FBY_LINE_CURRENT = 0, FBY_LINE_OLD, FBY_LINE_BAD, FBY_LINE_CLASSES };

void fby_line_finish(u32 seed, void *line); /* fills the crc of any line */
bool fby_line_crc_ok(const struct fby_store *st, const void *line);
/* Copies page line (c, i) and checks it.  repair: single-bit errors are corrected in the copy, if
 * the line is of the chunk's epoch.  Another thread may be changing the epoch. */
bool fby_page_line_judge(const struct fby_store *st, u32 c, u32 i, const u64 *epoch, struct fby_page_line *out,
			 bool *repaired);
/* Also true of a line of an unknown kind, of which nothing else is checked. */
bool fby_open_line_read(const struct fby_store *st, u32 c, u32 which, struct fby_open_line *out);
/* which: of FBY_SEALS */
bool fby_seal_line_read(const struct fby_store *st, u32 c, u32 which, struct fby_seal_line *out);

/* --- superblock.c ------------------------------------------------------------- */
bool fby_power_of_two(u64 x);
u32 fby_sb_crc(const struct fby_superblock *sb);
bool fby_sb_geometry_ok(const struct fby_superblock *sb);
/* Called when a valid superblock was found. */
void fby_store_start(struct fby_store *st, struct fby_media *m, const struct fby_superblock *sb);
/* Copies the superblock at offset; true if its checksum holds. */
bool fby_sb_read(struct fby_media *m, u64 offset, struct fby_superblock *sb);
void fby_sb_store(struct fby_media *m, u64 at, const struct fby_superblock *sb);
/* Writes st->sb with the next generation to both places.  clean: the caller has set sb.clean_*. */
void fby_sb_write(struct fby_store *st, bool clean);

/* --- record.c ------------------------------------------------------------------- */
bool fby_text_ends(const char *s, u32 n);
bool fby_record_sane(u32 volume, const struct fby_volume_record *r);
/* Checks that concern records of one kind: of a volume or a free record, of a log, of a static
 * volume, of a map. */
bool fby_volume_record_sane(const struct fby_volume_record *r);
bool fby_log_record_sane(const struct fby_volume_record *r);
bool fby_static_record_sane(const struct fby_volume_record *r);
bool fby_map_record_sane(const struct fby_volume_record *r);
bool fby_record_read(const struct fby_store *st, u16 volume, u32 copy, struct fby_volume_record *out);
/* Increments r's counter and writes both copies; durable. */
void fby_record_write(const struct fby_store *st, u16 volume, struct fby_volume_record *r);

/* --- where things are ------------------------------------------------------------- */
static inline u64 fby_chunk_at(const struct fby_store *st, u32 c)
{
	return st->sb.data_offset + (u64)c * st->sb.chunk_size;
}

/* The shares of static volumes. */
static inline u64 fby_shares_at(const struct fby_store *st)
{
	return st->sb.data_offset + (u64)st->sb.nchunks * st->sb.chunk_size;
}

/* The shares of maps: their frames can be mapped as huge pages. */
static inline u64 fby_maps_at(const struct fby_store *st)
{
	return fby_round_up(fby_shares_at(st) + st->sb.static_bytes, FBY_MAP_UNIT);
}

/* A cut tears at most this many pages at the end of a chunk: a batch. */
static inline u32 fby_group_pages(const struct fby_store *st)
{
	return st->sb.group_pages;
}

static inline u64 fby_open_at(const struct fby_store *st, u32 c, u32 which)
{
	return fby_chunk_at(st, c) + (FBY_LINE_OPEN + which) * FBY_LINE;
}

static inline u64 fby_seal_at(const struct fby_store *st, u32 c, u32 which)
{
	return fby_chunk_at(st, c) + (FBY_LINE_SEAL + (which & 1) + (which >> 1) * FBY_LINE_SEAL_COPY) * FBY_LINE;
}

/* The line of a data page. */
static inline u64 fby_line_at(const struct fby_store *st, u32 c, u32 i)
{
	return st->page_lines + (u64)c * st->sb.chunk_size + (u64)i * FBY_LINE;
}

static inline u64 fby_page_at(const struct fby_store *st, u32 page)
{
	return st->sb.data_offset + ((u64)page << 12);
}

static inline u32 fby_page_chunk(const struct fby_store *st, u32 page)
{
	return page >> st->chunk_shift;
}

static inline u32 fby_page_place(const struct fby_store *st, u32 page)
{
	return page & (st->chunk_pages - 1);
}

static inline void fby_fence_chunk(const struct fby_store *st, u32 c)
{
	media_fence(st->media, fby_chunk_at(st, c), st->sb.chunk_size);
}

#endif
