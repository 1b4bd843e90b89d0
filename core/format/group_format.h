/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * group_format.h - the format of a grouped pool, which lies on a block device.
 *
 * A block has `unit` bytes of the superblock.  What changes separately has blocks of its own, so
 * a torn block never takes anything with it that was durable before.
 *
 *	0			superblock
 *	g			records, copy A: a block each
 *	chunk size / 4		superblock, copy
 *	chunk size / 4 + g	records, copy B
 *	chunk size		chunk 0 .. nchunks-1
 *
 * g is a 32nd of the chunk size and at least a block: 64 KiB of 2 MiB.  All records of a copy end
 * before the next quarter of a chunk.
 *
 * A chunk:
 *
 *	block 0, 1	open line of even, of odd epochs
 *	block 2 ..	header array of today: lines 2, 3, 6, 7 are seals.  Written when the chunk
 *			is closed.  A chunk of a log has only the first block of it
 *	then		groups, one after the other, each from the beginning of a block on
 *
 * A group of a log: a group line, then entries (log_format.h), zeroes to the end of its last
 * block.  It is written by one request.  A chunk has one group in flight at a time, so all groups
 * but the last are durable.  Recovery takes the last one wholly or not at all.  Once the chunk is
 * closed, the seal says where its entries end.
 *
 * A group of a volume:
 *
 *	block g		group line, then the lines of its pages (format.h), zeroes
 *	block g+1 ..	the pages, in the order of the lines
 *
 * A page has the number of its block in the chunk.  Block g holds no page: its line in the header
 * array is void.  A chunk of a volume has all of the header array, and it is a second copy of the
 * lines once it is written.  Of the last group, recovery takes each page that has arrived.
 */
#ifndef FBY_GROUP_FORMAT_H
#define FBY_GROUP_FORMAT_H

#include "format/format.h"

#define FBY_UNIT_MIN 4096u
#define FBY_UNIT_MAX 65536u
#define FBY_GROUP_PAGES 64u	/* 256 KiB: the largest group of more than one record */
#define FBY_GROUP_RECORDS 63u	/* the most records of one */
#define FBY_GROUP_MAGIC 0x52474f46u /* "FOGR", of a log */
#define FBY_GROUP_PAGES_MAGIC 0x50474f46u /* "FOGP", of a volume */
#define FBY_GROUP_PAGE_LINES 64u /* lines of a block of a volume's group */
#define FBY_WITNESSES 2u

/* A group of another stream that was durable when this one was made; chunk ~0: none.  If its
 * chunk still is of that epoch and has no such group, then the device has lost what it had said
 * to be durable. */
struct fby_witness {
	u32 chunk;
	u32 epoch; /* of the chunk, its low bits */
	u16 line;
	u16 owner;
};

struct fby_group_line {
	u32 magic;
	u32 chunk; /* own place */
	u64 epoch; /* of the chunk */
	u64 seq_max; /* highest txg, or seq, of the chunk up to the end of this group */
	u16 line; /* own place in the chunk */
	u16 lines; /* up to the end of its last record; the group line, or its block, counts */
	u16 previous; /* line of the group before in this chunk; 0 for the first */
	u16 records; /* of a volume perhaps none: it only settles the group before */
	u16 before; /* of a log: records of the groups before in this chunk */
	u16 owner; /* of the chunk */
	struct fby_witness witness[FBY_WITNESSES];
	u32 crc; /* from the CRC of the pool's UUID and salt */
};

FBY_STATIC_ASSERT(sizeof(struct fby_group_line) == FBY_LINE, "group line");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_group_line, crc) == 60, "group line crc");

#endif
