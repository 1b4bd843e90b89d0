/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * kind.h - the properties of a kind of chunk, and of owner, for code that treats all kinds alike.
 * The tables are in pool/kinds.c, above all layers, so that a row can name each layer's functions
 * for its kind.  Those tables and the enums of format.h list the kinds.
 */
#ifndef FBY_KIND_H
#define FBY_KIND_H

#include "format/store.h"

struct fby_pool;

/* The violation that fby_check found: "what: a x, b y". */
struct fby_violation {
	const char *what, *a, *b;
	u64 x, y;
};

/*
 * A kind of chunk.  In some kinds each page lives and dies separately, and has a line that
 * recovery and check examine (recover/scan.c, pool/check.c).  In the others a chunk is in use, or
 * free, as a whole: it counts as full, and only its own layer knows its content.
 */
struct fby_chunk_kind_row {
	bool whole;
	u32 (*fill_most)(const struct fby_store *st); /* no chunk's fill is higher */
	/* Reads the open line that the first entry of the chunk refers to, when the open line
	 * itself is lost.  False: there is none.  NULL: of no chunk of this kind. */
	bool (*first)(const struct fby_store *st, u32 c, struct fby_open_line *out);
	/* The next functions are only for kinds of whole chunks. */
	/* Recovery: epoch and owner are known; sets fill, sealed, seq_max, seq_last and
	 * last_block.  seal: the newest of the epoch, or NULL.  True: the chunk is in use. */
	bool (*scan)(struct fby_pool *p, u32 c, const struct fby_seal_line *seal);
	bool (*check)(struct fby_pool *p, u32 c, struct fby_violation *v); /* false: see v */
};

/* A kind of owner. */
struct fby_owner_kind_row {
	u8 chunk; /* enum fby_chunk_kind of the owner's chunks */
	bool (*sane)(const struct fby_volume_record *r); /* checks that concern records of this kind alone */
	/* Whether the pool has room, and so memory, for owners of this kind; NULL: each has. A
	 * record of one that it has no room for is damaged, so that no layer gets to see it. */
	bool (*room)(const struct fby_superblock *sb);
	void (*open)(struct fby_pool *p, u16 owner); /* called when its record was read */
};

extern const struct fby_chunk_kind_row fby_chunk_kinds[];
extern const struct fby_owner_kind_row fby_owner_kinds[];

#endif
