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

#include "format/group_format.h"
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
	u32 unit; /* bytes of a block of the device; 0: the pool is in memory */
	u32 open_step; /* from an open line to the other */
	u32 array_at; /* where a chunk's header array begins, in the chunk */
	u32 log_first; /* line of a chunk at which a log's entries, or its groups, begin */
	u64 copy_at; /* of the superblock's copy */
};

/* --- lines.c: build and validate lines; copies only ----------------------- */
enum fby_line_class { FBY_LINE_CURRENT = 0, FBY_LINE_OLD, FBY_LINE_BAD, FBY_LINE_CLASSES };

void fby_line_finish(u32 seed, void *line); /* fills the crc of any line */
/* Copies the line of a chunk and checks that it is a group line of that place, of any epoch.
 * kind: of the chunk, enum fby_chunk_kind. */
bool fby_group_line_read(const struct fby_store *st, u32 c, u32 kind, u32 line, struct fby_group_line *out);
/* Copies the line of the group's page, by number from 0, and checks that it is of its place, and of
 * the group's epoch and owner.  repaired: as below; NULL. */
bool fby_group_page_line(const struct fby_store *st, const struct fby_group_line *g, u32 n, struct fby_page_line *out,
			 bool *repaired);
/* Makes the line, in the header array, of the block of a group's lines.  first: the line of the
 * group's first page, or what that would say of the page before it. */
void fby_group_void_line(const struct fby_store *st, const struct fby_page_line *first, u32 place, u64 seq_min,
			 struct fby_page_line *out);
/* Reads the open line that the chunk's newest group of pages refers to, whatever its epoch. */
bool fby_group_pages_first(const struct fby_store *st, u32 c, struct fby_open_line *out);
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
/* Computes where everything is, by a superblock whose geometry is right. */
void fby_store_place(struct fby_store *st, struct fby_media *m, const struct fby_superblock *sb);
/* Starts a store whose superblock was found and is valid. */
void fby_store_start(struct fby_store *st, struct fby_media *m, const struct fby_superblock *sb);
/* Copies the superblock at offset; true if its checksum holds. */
bool fby_sb_read(struct fby_media *m, u64 offset, struct fby_superblock *sb);
/* Stores it at offset; durable. */
void fby_sb_store(struct fby_media *m, u64 offset, const struct fby_superblock *sb);
/* Returns the address of the second copy, as the first copy says. */
u64 fby_sb_copy_at(const struct fby_superblock *sb);
/* A superblock that lies where a grouped pool of this chunk size has its copy, and is one.
 * Without such a pool's first superblock the copy has to be searched for: for each size. */
bool fby_sb_grouped_copy(struct fby_media *m, u32 chunk_size, struct fby_superblock *sb);
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
/* Returns the address of a copy of a record. */
u64 fby_record_at(const struct fby_store *st, u32 volume, u32 copy);
/* The gap before the records of a grouped pool, in each quarter of a chunk that has a copy. */
static inline u32 fby_group_gap(const struct fby_superblock *sb)
{
	return sb->chunk_size / 32 > sb->unit ? sb->chunk_size / 32 : sb->unit;
}
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

/* The page, by its place in the chunk, that begins at the line of a chunk. */
static inline u32 fby_place_of_line(u32 line)
{
	return line / FBY_GROUP_PAGE_LINES;
}

/* The header array of a chunk of a grouped pool, in bytes. */
static inline u64 fby_array_bytes(const struct fby_store *st)
{
	return (u64)st->first_page * FBY_PAGE - st->array_at;
}

/* A cut tears at most this many pages at the end of a chunk: a batch. */
static inline u32 fby_group_pages(const struct fby_store *st)
{
	return st->sb.group_pages;
}

static inline u64 fby_open_at(const struct fby_store *st, u32 c, u32 which)
{
	return fby_chunk_at(st, c) + FBY_LINE_OPEN * FBY_LINE + (u64)which * st->open_step;
}

static inline u64 fby_seal_at(const struct fby_store *st, u32 c, u32 which)
{
	return fby_chunk_at(st, c) + st->array_at +
	       (FBY_LINE_SEAL + (which & 1) + (which >> 1) * FBY_LINE_SEAL_COPY) * FBY_LINE;
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

/* Outside of the hot paths: makes durable what was stored to [at, at + bytes). */
static inline void fby_settle(const struct fby_store *st, u64 at, u64 bytes)
{
	if (st->unit)
		(void)media_persist(st->media, st->unit, at, bytes, false);
	else
		media_fence(st->media, at, bytes);
}

/* Likewise of a line of the chunk, of which in memory the fence names all. */
static inline void fby_settle_line(const struct fby_store *st, u32 c, u64 at)
{
	if (st->unit)
		(void)media_persist(st->media, st->unit, at, FBY_LINE, false);
	else
		fby_fence_chunk(st, c);
}

#endif
