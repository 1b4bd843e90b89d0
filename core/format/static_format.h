/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * static_format.h - the format of a static volume: a record in the table, and a share of the pool
 * after its chunks.  docs/design/static.md explains why.
 *
 *	0	head		256 bytes, filled up to 4 KiB
 *	4096	lines		one of 64 bytes a slot, filled up to 256 bytes below the next 4 KiB
 *	...	head		its copy: a page that cannot be read has one of the two at most
 *	...	pages		two of 4 KiB a slot: the ways of a slot
 *
 * Block b belongs to slot b modulo slots, in either way.  A line is stored as a whole, and a cut
 * may tear it between any two of its words.  So one word decides, the control word, which carries
 * its own check: it is the old one, the new one, or damaged, and the check distinguishes these.
 * The line holds it twice, the second time with all bits inverted, so that a line filled with one
 * byte value is never valid.
 */
#ifndef FBY_STATIC_FORMAT_H
#define FBY_STATIC_FORMAT_H

#include "format/format.h"

#define FBY_STATIC_WAYS 2u
#define FBY_STATIC_UNIT 65536u /* shares begin and end at multiples of it */
#define FBY_STATIC_BYTES_MAX ((u64)FBY_STATIC_UNIT << 32) /* of all shares of a pool */
#define FBY_STATIC_MAGIC 0x54534f46u /* "FOST" */
#define FBY_STATIC_HEAD 256u /* bytes */
#define FBY_STATIC_WINDOWS 10u

/* The record in the pool's table: like a volume's, except for the fields of the share. */
struct fby_static_record {
	u64 counter;
	u32 index;
	u32 kind; /* FBY_OWNER_STATIC */
	u32 first; /* start of its share, in units from the start of the area for shares */
	u32 slots;
	u64 origin_sectors;
	u8 uuid[16];
	char name[FBY_NAME_MAX + 1];
	char identity[FBY_IDENTITY_MAX + 1];
	u32 block_size;
	u32 flags; /* enum fby_volume_flags; none is set */
	u32 marks; /* as in the record of any volume */
	u32 crc;
};

/* Eras in which a cut may have torn writes: those above after, up to upto. */
struct fby_static_window {
	u64 after, upto;
};

enum fby_static_head_flags {
	FBY_STATIC_CLEAN = 1u << 0, /* detached: no write was under way */
	FBY_STATIC_COUNTED = 1u << 1, /* with CLEAN: live is known */
};

/* Written by add, attach and detach, and at the end of an era: both copies, one after the other
 * with a fence after each, so that at rest they are equal. */
struct fby_static_head {
	u32 magic;
	u32 flags; /* enum fby_static_head_flags */
	u64 counter; /* incremented at each write; the valid copy with the higher counter counts */
	u8 uuid[16]; /* of the volume */
	u64 settled; /* no write of this era or an earlier one was under way, except in a window */
	u64 limit; /* no write has a later era */
	u64 live; /* with COUNTED: pages that the origin lacks */
	u32 slots;
	u32 nwindows;
	struct fby_static_window window[FBY_STATIC_WINDOWS];
	u32 flush_us; /* interval at which everything goes to the origin; 0: the pool's options decide */
	u8 reserved[24];
	u32 crc; /* of all before it, from the volume's seed */
};

/* The tag that describes a page.  crc starts from the volume's seed and the page's place. */
struct fby_static_tag {
	u64 block; /* 48 bits; valid sectors << 48; lost sectors << 56 */
	u64 stamp; /* enum fby_kind; the write's number in its slot << 4; its era << 24 */
	u32 data_crc; /* CRC32C of the valid sectors, in order */
	u32 crc;
};

/*
 * The control word:
 *	bit 0, 1	live: the page of way 0, 1 is one that the origin lacks
 *	bit 2		newest: the way that was written last
 *	bit 3		sole: the other way has an older page of the same block
 *	bit 4		over: the newest was written over a page that is lost
 *	bit 5 to 11	number of the newest write of the slot
 *	bit 12 to 51	its era
 *	bit 52 to 63	check: of all before it, from the volume's seed and the slot
 */
struct fby_static_line {
	u64 control;
	struct fby_static_tag tag[2];
	u64 copy; /* ~control */
};

#define FBY_SC_LIVE(way) (1ull << (way))
#define FBY_SC_NEWEST 4ull
#define FBY_SC_SOLE 8ull
#define FBY_SC_OVER 16ull
#define FBY_SC_NUMBERS 0x80u /* number of different values */
#define FBY_SC_NUMBER(n) ((u64)((n) & (FBY_SC_NUMBERS - 1)) << 5)
#define FBY_SC_NUMBER_OF(c) ((u32)((c) >> 5) & (FBY_SC_NUMBERS - 1))
#define FBY_SC_ERA(e) ((u64)(e) << 12)
#define FBY_SC_ERA_OF(c) ((c) >> 12 & FBY_ERA_MAX)
#define FBY_SC_CHECK_SHIFT 52
#define FBY_ERA_MAX ((1ull << 40) - 1)
/* last era of a write: later ones are for attaches, and for eras that destage ends */
#define FBY_ERA_LAST (FBY_ERA_MAX - (1u << 20))
#define FBY_ERA_HALF (FBY_ERA_MAX / 2) /* from this era on, a share that is attached empty begins anew */

#define FBY_ST_NUMBERS 0x100000u
#define FBY_ST_STAMP(era, n, kind) ((u64)(era) << 24 | (u64)((n) & (FBY_ST_NUMBERS - 1)) << 4 | (u64)(kind))
#define FBY_ST_ERA(t) ((t)->stamp >> 24)
#define FBY_ST_NUMBER(t) ((u32)((t)->stamp >> 4) & (FBY_ST_NUMBERS - 1))
#define FBY_ST_KIND(t) ((u32)(t)->stamp & 15u)
#define FBY_ST_BLOCK(t) ((t)->block & ((1ull << FBY_BLOCK_BITS) - 1))
#define FBY_ST_VALID(t) ((u8)((t)->block >> 48))
#define FBY_ST_LOST(t) ((u8)((t)->block >> 56))

FBY_STATIC_ASSERT(sizeof(struct fby_static_record) == sizeof(struct fby_volume_record), "static record");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_static_record, name) ==
			  __builtin_offsetof(struct fby_volume_record, name),
		  "one place for a name");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_static_record, block_size) ==
			  __builtin_offsetof(struct fby_volume_record, block_size),
		  "one place for a block size");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_static_record, marks) ==
			  __builtin_offsetof(struct fby_volume_record, marks),
		  "one place for marks");
FBY_STATIC_ASSERT(sizeof(struct fby_static_head) == FBY_STATIC_HEAD, "static head");
FBY_STATIC_ASSERT(sizeof(struct fby_static_line) == FBY_LINE, "static line");

#endif
