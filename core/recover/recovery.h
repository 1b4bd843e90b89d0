/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * recovery.h - the results of the scan (scan.c) for the finish (recovery.c).
 */
#ifndef FBY_RECOVERY_H
#define FBY_RECOVERY_H

#include "cache/cache.h"
#include "format/kind.h"
#include "format/log_entry.h"

/* fby_scanned.found */
enum {
	CR_LINES = 1u << 0,  /* some of its pages have a line to be written */
	CR_OPEN0 = 1u << 1,  /* its open line of even epochs is not valid */
	CR_OPEN1 = 1u << 2,  /* its open line of odd epochs is not valid */
	CR_SEALS = 1u << 3,  /* a seal line is not valid, or not the same as its copy */
	CR_CLOSED = 1u << 4, /* has a seal that says closed */
	CR_DOUBT = 1u << 5,  /* so few seals are left that entries of its volume may be missing */
	CR_LOST = 1u << 6,   /* as CR_DOUBT, and the volume is unknown, too */
	CR_WITNESSED = 1u << 7, /* a group of it was durable and is gone: the chunk is to be closed */
};

/* The scan notes this about a chunk for the finish.  It is not in struct fby_chunk, where it
 * would share cache lines with fields that each write reads; 8 bytes a chunk in a separate array. */
struct fby_scanned {
	u32 linked; /* pages of it, counted by all threads */
	u8 found; /* the CR_ bits above */
};

struct fby_recovered {
	u32 holes, holes_unknown; /* of a volume */
};

/* All threads add to the counters. */
struct fby_recovery {
	struct fby_pool *pool; /* for the rows of kinds */
	struct fby_space *space;
	struct fby_cache *cache;
	struct fby_recovered *volume;
	struct fby_scanned *scanned; /* by chunk; meaningless after recovery */
	struct fby_recovery_report report FBY_ALIGNED;
	u64 max_epoch, max_seq;
	int unknown; /* -FBY_E_x: a record or chunk is of an unknown kind; see the report */
};

/* --- what hosts call; forebay.h says what each does ------------------------------- */
int fby_recovery_scan(struct fby_recovery *p, u32 first, u32 n);
int fby_recovery_finish(struct fby_recovery *p, struct fby_recovery_report *report);

/* --- gather.c: of a grouped pool ------------------------------------------------- */
/* Reads the next group of the chunk's epoch at or after the line; previous: line of the group
 * before, 0 for none.  A group that does not begin there names one in the gap, which cannot be
 * read, as the group before it. */
bool fby_group_next(const struct fby_space *p, u32 c, u16 owner, u32 line, u32 previous, struct fby_group_line *g);
/* Makes the seal that a chunk of a log would have, from its groups.  The chunk's epoch and kind are
 * known. */
void fby_gather(const struct fby_space *p, u32 c, u16 owner, struct fby_seal_line *seal);

/* The groups of a chunk of a volume. */
struct fby_gathered {
	u32 last, end; /* place of the last group, and that after it */
	u32 copied; /* lines that the array did not have */
	u64 seq_max;
};
/* Completes the header array, in the image, by the lines in the groups.  closed_fill: by the seal of
 * a closed chunk; 0: the array was not written.  The chunk's epoch and kind are known. */
void fby_gather_pages(const struct fby_space *p, u32 c, u16 owner, u32 closed_fill, struct fby_gathered *out);

/* --- witness.c: of a grouped pool, after the scan -------------------------------- */
/* Finds groups that were durable and are gone, and counts them as losses of their logs. */
void fby_witness_all(struct fby_recovery *p);

/* Upper bound of the seq that the unreadable line of page (c, i) may have had. */
u64 fby_hole_seq(struct fby_recovery *p, u32 c, u32 i);

/* Only the first chunk, or record, of an unknown kind is reported. */
static inline void fby_recovery_unknown(struct fby_recovery *p, int error, u32 at, u32 kind)
{
	fby_lock(&p->space->lock);
	if (!p->unknown || (p->unknown == error && at < p->report.unknown_at)) {
		p->unknown = error;
		p->report.unknown_at = at;
		p->report.unknown_kind = kind;
	}
	fby_unlock(&p->space->lock);
}

static inline void fby_report_add(struct fby_report_block *list, u32 *n, const struct fby_report_block *b)
{
	if (*n < FBY_REPORT_MAX)
		list[(*n)++] = *b;
}

#endif
