/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * inside.h - a small pool whose memory and media a test may spoil.  Each check has to find damage
 * that no call of the engine makes.
 */
#ifndef INSIDE_H
#define INSIDE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/index.h"
#include "pool/parts.h"
#include "space/slot.h"

#define CHUNK_BYTES 65536u
#define NCHUNKS 8u
#define FIRST_PAGE 1u  /* of data */
#define DATA_PAGES 15u /* of a chunk */
#define BLOCKS 8u      /* in the closed chunk, which is not full */
#define VOLUME_SECTORS 1024u

extern struct fby_pool *pool;
extern struct fby_media media;

static inline u8 *memory_at(u64 at)
{
	return media.base + at;
}

extern unsigned int failures, checks, cpu;
extern void (*cpu_meanwhile)(void); /* what another thread does, just before a slot is taken; once */

/* Opens the pool anew, in the state below.  A test may spoil all of its memory and media. */
void pool_make(void);
void pool_recover(struct fby_recovery_report *report); /* recovers as after a crash at this moment */
void pool_save(void);	 /* saves the state for pool_restore */
void pool_restore(void);
/* Opens another pool, with memory of its own instead of *memory, up to the end of recovery. */
int media_open(struct fby_media *m, const struct fby_options *o, u8 **memory, struct fby_pool **out);
bool pool_same(void); /* nothing has changed, not even after the end of the pool's memory */
void expect_at(bool good, const char *file, int line, const char *what);
#define EXPECT(condition) expect_at((condition), __FILE__, __LINE__, #condition)

/* The pool.  It has two slots, of which the first is used.  Volume 0 has block b, b = 0..7, in a
 * closed chunk, pages 1..8.  In its open chunk it has block 0 again, at page 1, and blocks 16 and
 * 17.  Volume 1 has blocks 0 and 1 in its open chunk.  Volume 2 is empty. */
extern u32 closed_chunk, open_chunk, other_chunk;

/* Writes a whole block, with the content `of`. */
static inline int write_block(u16 volume, u64 block, const u8 *of, u32 *wake)
{
	u32 done = 0;

	return fby_write(pool, volume, block * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS, of, &done, wake);
}

/* Runs steps of destage until it needs something of an origin, or is done. */
static inline int next_request(u64 now_ns, struct fby_io *io, u32 *wake)
{
	u64 next;
	int decision;

	do
		decision = fby_destage_step(pool, now_ns, io, &next, wake);
	while (decision == FBY_AGAIN);
	return decision;
}

/* Makes chunks of 8 data pages, for round numbers. */
static inline void eight_pages(void)
{
	pool->space.store.first_page = pool->space.store.chunk_pages - 8;
}

void test_check(void); /* inside_check.c */
void test_lines(void); /* inside_lines.c */
void test_calls(void); /* inside_api.c */
void test_media(void); /* inside_media.c */
void test_paths(void); /* inside_paths.c */
void test_corners(void); /* inside_corners.c */
void test_recovery(void); /* inside_recovery.c */
void test_kinds(void); /* inside_kinds.c */
void test_scan(void); /* inside_scan.c */
void test_destage(void); /* inside_destage.c */
void test_flight(void); /* inside_flight.c */
void test_plan(void); /* inside_plan.c */
void test_refused(void); /* inside_refused.c */
void test_kept(void); /* inside_kept.c */
void test_wakes(void); /* inside_wakes.c */
void test_drained(void);
void test_static(void);
void test_static_lost(void); /* inside_static.c */
void test_map(void); /* inside_map.c */
void test_logs(void); /* inside_logs.c */
void test_log_lines(void); /* inside_log_lines.c */
void test_log_calls(void); /* inside_log_api.c */
void test_log_periods(void); /* inside_log_periods.c */
void test_asserts(void); /* inside_asserts.c */

#endif
