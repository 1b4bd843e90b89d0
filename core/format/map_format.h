/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * map_format.h - the format of a map: a record in the table, and a share of the pool after chunks
 * and static volumes.  docs/design/map.md explains why.
 *
 *	0	file records	two copies of 4 KiB each, one after the other
 *	...	descriptors	a page of 4 KiB a frame
 *	...	frames		frame_bytes each, at a multiple of that
 *
 * A descriptor:
 *
 *	0	identity of even epochs: the frame is free
 *	64	identity of odd epochs: it is in use
 *	256	words, one of 8 bytes for 16 pages
 *	2048	copies of the first two lines
 *
 * A frame has the bytes of a file as programs see them, and nothing else.  Programs store to it
 * without calling Forebay, so no checksum of it could be kept up to date.
 */
#ifndef FBY_MAP_FORMAT_H
#define FBY_MAP_FORMAT_H

#include "format/format.h"

#define FBY_MAP_UNIT (2u << 20) /* shares begin and end at multiples of it, on the media */
#define FBY_MAP_BYTES_MAX (1ull << 44) /* of all shares of a pool */
#define FBY_FRAME_MIN 65536u
#define FBY_FRAME_MAX (2u << 20)
#define FBY_FRAME_WORDS (FBY_FRAME_MAX / FBY_PAGE / 16)
#define FBY_MAP_FILES_MAX 65536u
#define FBY_MAP_FILE_MAGIC 0x464d4f46u /* "FOMF" */
#define FBY_MAP_LINE_MAGIC 0x444d4f46u /* "FOMD" */
#define FBY_MAP_WORDS_AT 256u
#define FBY_MAP_LINE_COPY 2048u
#define FBY_MAP_IDENTITY_MAX 256u
#define FBY_MAP_PATH_MAX 3771u

/* The record in the pool's table. */
struct fby_map_record {
	u64 counter;
	u32 index;
	u32 kind; /* FBY_OWNER_MAP */
	u32 first; /* start of its share, in units from the start of the area for maps */
	u32 units;
	u32 frame_bytes; /* a power of two */
	u32 nfiles;
	u8 uuid[16];
	char name[FBY_NAME_MAX + 1];
	u8 reserved[132]; /* covers the fields that other kinds use for identity and block size */
	u32 flags; /* none is set */
	u32 reserved1;
	u32 crc;
};

enum fby_map_file_flags {
	FBY_MAP_FILE_USED = 1u << 0,
	FBY_MAP_FILE_CUT = 1u << 1, /* a truncation to size is under way: recovery completes it */
	FBY_MAP_FILE_GROWS = 1u << 2, /* size is a promise: the file may be shorter, or longer */
};

/* Two copies; the one that counts is written last, with a fence after each.  The record is
 * durable before a frame refers to it, and freed only when no frame does any more. */
struct fby_map_file_record {
	u32 magic;
	u32 id; /* own place */
	u64 counter; /* incremented at each write; the valid copy with the higher counter counts */
	u64 epoch; /* incremented at each use of the place */
	u64 size; /* size of the file; without GROWS at most the size that its file system has made durable */
	u32 flags; /* enum fby_map_file_flags */
	u16 identity_bytes;
	u16 path_bytes;
	u64 made; /* with GROWS: the durable size of the file */
	u64 ahead; /* with GROWS: the host extends the file up to this size without recording it here */
	u8 reserved[8];
	u8 identity[FBY_MAP_IDENTITY_MAX]; /* the host's */
	char path[FBY_MAP_PATH_MAX + 1]; /* zero-terminated */
	u32 crc; /* of all before it, from the map's seed */
};

/* Two lines, chosen by the parity of the epoch, so that a cut that tears one leaves the previous
 * one.  Each has two copies, so that a damaged line is not mistaken for a torn one. */
struct fby_map_line {
	u32 magic;
	u32 frame; /* own place */
	u64 epoch; /* incremented at each change; odd: in use, and the words are of this epoch */
	u64 segment; /* if in use: index of the segment of frame_bytes in the file */
	u64 file_epoch;
	u32 file;
	u8 reserved[24];
	u32 crc; /* of all before it, from the map's seed */
};

/*
 * A word, of pages 16 i to 16 i + 15:
 *	bit 0 to 15	dirty: the page is durable here, and the file lacks it
 *	bit 16 to 31	writing: it is being written to the file, and was not synced since; set only
 *			for dirty pages; all set and none dirty: the word is closed, that
 *			is, clean, and no sync changes it any more
 *	bit 32 to 63	check: of the bits, from a seed of map, frame, epoch and i
 */
#define FBY_MW_DIRTY(w) ((u32)(w) & 0xffffu)
#define FBY_MW_WRITING(w) ((u32)(w) >> 16)
#define FBY_MW_BITS(dirty, writing) ((u32)(dirty) | (u32)(writing) << 16)
#define FBY_MW_CLOSED 0xffff0000u

FBY_STATIC_ASSERT(sizeof(struct fby_map_record) == sizeof(struct fby_volume_record), "map record");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_map_record, name) ==
			  __builtin_offsetof(struct fby_volume_record, name),
		  "one place for a name");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_map_record, flags) ==
			  __builtin_offsetof(struct fby_volume_record, flags),
		  "one place for flags");
FBY_STATIC_ASSERT(sizeof(struct fby_map_file_record) == FBY_PAGE, "map file record");
FBY_STATIC_ASSERT(sizeof(struct fby_map_line) == FBY_LINE, "map line");

#endif
