/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * format.h - the on-media format, version 2.  docs/design/format.md describes it in prose; change
 * both together.
 *
 *	0        superblock            one 4 KiB page, 512 bytes used
 *	4096     superblock, copy
 *	8192     volume table          nvolumes records, two 256-byte copies each
 *	data_offset (aligned to the chunk size)
 *	         chunk 0 .. nchunks-1
 *	         static_bytes of shares of static volumes (static_format.h)
 *	         map_bytes of shares of maps (map_format.h), from a multiple of 2 MiB on
 *
 * A chunk, of 16 to 512 pages of 4 KiB (production: 512 = 2 MiB):
 *
 *	page 0 .. h-1      header array: lines of 64 bytes
 *	           line 0, 1  open line, even and odd epochs
 *	           line 2, 3  seals of even and of odd counters
 *	           line 6, 7  copies of these
 *	           line 4, 5  reserved
 *	           line 8 ..  one a data page: line i - h + 8 describes page i
 *	page h .. pages-1  data
 *
 *	h is the fewest pages that hold these lines: 1 of 16, 2 of 64, 8 of 512.
 *
 * Everything is little endian; the engine refuses to build elsewhere.  Every
 * checksum is CRC32C.  Those of lines start from the CRC of the pool's UUID and salt,
 * so that a line of another pool is never taken for one of this.  Reserved
 * bytes are written as zero; a line with others in them is not valid.
 */
#ifndef FBY_FORMAT_H
#define FBY_FORMAT_H

#include "medium/port.h"

#define FBY_SECTOR 512u
#define FBY_PAGE 4096u
#define FBY_PAGE_SECTORS 8u
#define FBY_LINE 64u

#define FBY_MAGIC 0x3159414245524f46ull /* "FOREBAY1" */
#define FBY_VERSION 2u

#define FBY_SB_OFFSET 0u
#define FBY_SB_COPY_OFFSET 4096u
#define FBY_VT_OFFSET 8192u

#define FBY_CHUNK_PAGES_MIN 16u
#define FBY_CHUNK_PAGES_MAX 512u
#define FBY_CHUNK_LINES 8u /* lines of the chunk itself, before those of its pages */
#define FBY_LINE_OPEN 0u  /* + (epoch & 1) */
#define FBY_LINE_SEAL 2u  /* + (counter & 1), + FBY_LINE_SEAL_COPY for the copy */
#define FBY_LINE_SEAL_COPY 4u

#define FBY_VOLUMES_MAX 64u
#define FBY_NAME_MAX 63u
#define FBY_IDENTITY_MAX 127u
#define FBY_BATCH_PAGES 16u	    /* 64 KiB: the largest commit */
#define FBY_BLOCK_BITS 48	    /* blocks of 4 KiB: 2^60 bytes a volume */
#define FBY_CHUNKS_MAX (1u << 22)   /* 8 TiB of 2 MiB chunks: page numbers stay in 31 bits */

/* No number on the media reaches FBY_NUMBER_END.  A pool with a number at or above
 * FBY_NUMBER_START is not opened: counting from below that to the end, at 10^9 a second, takes
 * 146 years. */
#define FBY_NUMBER_END (1ull << 63)
#define FBY_NUMBER_START (1ull << 62)

/* Returns the first data page of a chunk of so many pages.  The pages before it hold the header
 * array: the chunk's own lines and one line for each data page. */
static inline u32 fby_first_page(u32 chunk_pages)
{
	const u32 lines = FBY_PAGE / FBY_LINE; /* lines in a page */

	return (chunk_pages + FBY_CHUNK_LINES + lines) / (lines + 1);
}

/* Returns the line of the header array that describes the page. */
static inline u32 fby_line_of_page(u32 chunk_pages, u32 page)
{
	return page - fby_first_page(chunk_pages) + FBY_CHUNK_LINES;
}

/* Bit of features_incompat: there is room for static volumes after the chunks.  Bits 0 and 1 had
 * that meaning for earlier layouts of shares (docs/design/format.md). */
#define FBY_FEATURE_STATIC 8ull
/* Bit of features_incompat: there is room for maps, after the static volumes. */
#define FBY_FEATURE_MAP 4ull
/* Bit of features_incompat: records of mapped files may promise a size that the file does not
 * have yet. */
#define FBY_FEATURE_MAP_GROWS 16ull
/* Bit of features_incompat: the pool is grouped, on a block device (group_format.h). */
#define FBY_FEATURE_GROUPED 32ull
/* Bit of features_incompat: the checksums of lines begin with the pool's salt, too. */
#define FBY_FEATURE_SALTED 64ull
#define FBY_FEATURES \
	(FBY_FEATURE_STATIC | FBY_FEATURE_MAP | FBY_FEATURE_MAP_GROWS | FBY_FEATURE_GROUPED | FBY_FEATURE_SALTED)

enum fby_sb_flags {
	FBY_SB_CLEAN = 1u << 0, /* set by a clean close, cleared by the open that follows */
};

/* Written by format, by open (clean cleared) and by close (clean set): first the copy that does
 * not count, then a fence, then the other copy, then a fence.  The valid one with the highest
 * generation counts. */
struct fby_superblock {
	u64 magic;
	u32 version;
	u32 flags; /* enum fby_sb_flags */
	u64 features_compat;
	u64 features_ro;
	u64 features_incompat;
	u8 uuid[16];
	u64 generation; /* incremented at each write */
	u64 media_size; /* bytes */
	u64 data_offset; /* bytes */
	u32 chunk_size; /* bytes */
	u32 nchunks;
	u32 nvolumes; /* records in the volume table */
	/* most pages that one cut tears at a chunk's end: FBY_BATCH_PAGES; of a grouped pool
	 * FBY_GROUP_PAGES */
	u32 group_pages;
	u64 clean_entries; /* with CLEAN: linked pages at close */
	u64 clean_digest;  /* with CLEAN: sum of a hash of each, independent of the order */
	u64 clean_seq;	   /* with CLEAN: the next sequence number */
	/* size of the area after the chunks for shares of static volumes; with FBY_FEATURE_STATIC */
	u64 static_bytes;
	/* size of the area after that, at a multiple of 2 MiB, for shares of maps; with
	 * FBY_FEATURE_MAP */
	u64 map_bytes;
	/* with FBY_FEATURE_GROUPED: bytes of a block of the device, a power of two, at least
	 * 4096; else 0 */
	u32 unit;
	/* with FBY_FEATURE_SALTED: random, and shown to nobody, since the UUID is public.  Users
	 * choose what is in pages and entries: they could put lines there that recovery takes for
	 * real ones.  Else 0 */
	u32 salt;
	u8 reserved[364];
	u32 crc; /* of all before it */
};

/* The kind of an owner of chunks.  One table holds owners of all kinds, so one number names any
 * of them: in a chunk's lines, in each slot, in the engine's bit masks.  A record of an unknown
 * kind refuses the open. */
enum fby_owner_kind {
	FBY_OWNER_FREE = 0, /* nobody: the record is free */
	FBY_OWNER_VOLUME = 1,
	FBY_OWNER_LOG = 2,
	FBY_OWNER_STATIC = 3, /* a volume that has a share of its own, and no chunks */
	FBY_OWNER_MAP = 4, /* a map: files mapped onto memory of the pool; it has a share, too */
	FBY_OWNER_KINDS
};

/* Set by recovery before it writes anything else, cleared by an attach that was told how to treat
 * the loss: a second start never forgets a loss. */
enum fby_volume_flags {
	FBY_VF_HOLES = 1u << 0,		/* entries were lost; their blocks are known and answer EIO */
	FBY_VF_HOLES_UNKNOWN = 1u << 1, /* entries of unknown blocks were lost */
};
#define FBY_VF_ALL 3u

/* Both copies of a record are written, one after the other with a fence between, so at rest they
 * are equal, and a single damaged copy is always recognized.  The valid one with the higher
 * counter counts. */
struct fby_volume_record {
	u64 counter;
	/* the record's own place in the table; index, counter and crc are the same in records of
	 * any kind */
	u32 index;
	u32 kind; /* enum fby_owner_kind */
	u64 watermark; /* every entry with seq <= this is on the flushed origin */
	u64 origin_sectors; /* size of the origin, 512-byte sectors */
	u8 uuid[16];
	char name[FBY_NAME_MAX + 1]; /* zero-terminated */
	char identity[FBY_IDENTITY_MAX + 1]; /* of the origin, from the host; zero-terminated */
	u32 block_size; /* logical block: 512 or 4096 */
	u32 flags; /* enum fby_volume_flags */
	u32 marks; /* counts the marks of the origin; odd: it bears one; fby_volume_mark */
	u32 crc;
};

#define FBY_OPEN_MAGIC 0x4e504f46u /* "FOPN" */
#define FBY_SEAL_MAGIC 0x4c534f46u /* "FOSL" */

/* What a chunk holds.  An intact open line of an unknown kind is not damage; it refuses the open. */
enum fby_chunk_kind {
	FBY_CHUNK_FREE = 0, /* as formatted */
	FBY_CHUNK_CACHE = 1, /* blocks of a volume */
	FBY_CHUNK_LOG = 2, /* entries of a log */
	FBY_CHUNK_KINDS
};

/* Line 0 or 1, by the parity of the epoch, so that a torn open leaves the previous line readable.
 * Written when a slot opens the chunk, and fenced before any page line: so a page line torn by a
 * crash is never mistaken for a damaged one of the previous epoch.  A chunk always has at least
 * one valid open line; otherwise it is lost. */
struct fby_open_line {
	u32 magic;
	u16 kind; /* enum fby_chunk_kind; the fields up to here, and epoch, are the same for any kind */
	u16 owner; /* all entries of a chunk are of one */
	u32 chunk; /* own number */
	u32 reserved0;
	u64 epoch; /* incremented at each opening */
	u64 seq_min; /* no entry of this epoch has a lower seq */
	u8 reserved[28];
	u32 crc;
};

/* Lines 2 and 6, or 3 and 7, by the parity of the counter: each seal is written twice, with one
 * fence.  A seal says that pages up to fill are complete on the media, so damage among them is
 * never mistaken for a torn tail.  Written when the slot leaves the chunk (closed), by an idle
 * host, and by recovery.  A crash tears at most the two lines of one parity, and format leaves
 * all four valid: a chunk with fewer than two valid ones is damaged, and entries of it may be
 * missing.  No range of lines holds both lines of one parity and none of the other. */
struct fby_seal_line {
	u32 magic;
	u16 fill; /* first page not written */
	u8 closed; /* 1: nothing will be appended in this epoch */
	u8 reserved0;
	u32 chunk;
	u16 owner; /* as in the open line; 0xffff in a chunk as formatted */
	u16 kind; /* likewise; enum fby_chunk_kind */
	u64 counter; /* of the valid seals of this epoch, the highest counter is the newest */
	u64 epoch;
	u64 seq_max; /* highest seq below fill */
	u64 last_block; /* block of page fill-1, to name it if its line is lost */
	u8 reserved[12];
	u32 crc;
};

enum fby_kind {
	FBY_KIND_DATA = 1,
	FBY_KIND_ZERO = 2,    /* whole block, reads as zeroes; destaged as write-zeroes */
	FBY_KIND_DISCARD = 3, /* whole block, reads as zeroes; destaged as discard */
	FBY_KIND_BYPASS = 4,  /* the newest data is on the origin */
	FBY_KIND_VOID = 5,    /* written by recovery over a torn, never acknowledged entry */
};

enum fby_page_flags {
	FBY_PF_NOCRC = 1u << 0, /* written with checksums off: data_crc is 0 */
};

/* One cache line, stored as one group: describes one data page.  crc covers the whole line;
 * data_crc covers the valid sectors in order. */
struct fby_page_line {
	u64 seq;
	u64 block; /* 4 KiB units */
	u64 epoch; /* of the chunk */
	/* block of the previous page in this chunk; ~0 for the first: names that page if its line
	 * is lost */
	u64 prev_block;
	/* seq of the previous page in this chunk; 0 for the first: dates that page if its line is
	 * lost */
	u64 prev_seq;
	u16 batch_first; /* first page of the write that this page belongs to */
	u8 batch_count; /* its pages, 1 to 16 */
	u8 kind; /* enum fby_kind */
	u8 valid; /* sectors held here, bit 0 first */
	u8 lost;  /* sectors whose data was lost; disjoint from valid */
	u8 flags; /* enum fby_page_flags */
	u8 reserved;
	/* A tag that authenticates line and data would make the following fields needless.  The
	 * first three follow from the place of the line, so they can go into the tag's seed. */
	u32 chunk;
	u16 page; /* own place in the chunk */
	u16 volume; /* the chunk's owner */
	u32 data_crc;
	u32 crc;
};

FBY_STATIC_ASSERT(sizeof(struct fby_superblock) == 512, "superblock");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_superblock, crc) == 508, "superblock crc");
FBY_STATIC_ASSERT(sizeof(struct fby_volume_record) == 256, "volume record");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_volume_record, crc) == 252, "volume record crc");
FBY_STATIC_ASSERT(sizeof(struct fby_open_line) == FBY_LINE, "open line");
FBY_STATIC_ASSERT(sizeof(struct fby_seal_line) == FBY_LINE, "seal line");
FBY_STATIC_ASSERT(sizeof(struct fby_page_line) == FBY_LINE, "page line");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_page_line, crc) == 60, "page line crc");
/* chunk, page, volume and data_crc leave 12 bytes for a tag of 96 bits, or 16 together with crc. */
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_page_line, chunk) == 48 &&
			  __builtin_offsetof(struct fby_page_line, page) == 52 &&
			  __builtin_offsetof(struct fby_page_line, volume) == 54 &&
			  __builtin_offsetof(struct fby_page_line, data_crc) == 56,
		  "page line: room for a tag");

#endif
