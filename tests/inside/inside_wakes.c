// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_wakes.c - what is due at once and would come later otherwise: who is woken, what
 * is looked at, what is counted.  No data is wrong without it, so nothing else tells.
 */
#include "inside.h"

static u32 wake;

static int step(u64 now)
{
	struct fby_io io;
	u64 next;
	int decision;

	do {
		decision = fby_destage_step(pool, now, &io, &next, &wake);
		if (decision == FBY_ORIGIN)
			fby_destage_complete(pool, io.id, 0);
	} while (decision != FBY_DONE);
	return decision;
}

/* Who waits for space hears of a chunk that the hand found empty. */
static void swept(void)
{
	wake = 0;
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	fby_chunk_sweep(&pool->space, NCHUNKS, &wake);
	EXPECT(!(wake & FBY_WAKE_SPACE));
	fby_dead_row(&pool->space, NULL)[closed_chunk] += BLOCKS - 1; /* block 0 was replaced */
	fby_chunk_sweep(&pool->space, NCHUNKS, &wake);
	EXPECT((wake & FBY_WAKE_SPACE) && pool->space.chunk[closed_chunk].state == FBY_CS_FREE);
	pool_restore();
}

/* A chunk that is closed while writers get none: destage looks at it. */
static void closed(void)
{
	struct fby_slot *slot = &pool->space.slot[0];

	for (u32 nfree = 1; nfree < 3; nfree++) {
		wake = 0;
		pool->space.ready = 0;
		pool->space.nfree = nfree;
		slot->busy = 1;
		fby_slot_close(&pool->space, slot, 1, &wake);
		EXPECT(!(wake & FBY_WAKE_DESTAGE) == (nfree > 1) && !(pool->space.ready & 2) == (nfree > 1));
		pool_restore();
	}
}

/* What is open for a volume with nothing to destage goes back when others need it. */
static void idle_closed(void)
{
	u64 now = 5000000000ull;

	pool->space.opt.max_age_ns = 1;
	step(now);
	EXPECT(fby_volume_clean(pool, 1) && pool->space.slot[0].volume[1].open == other_chunk);
	pool->space.nfree = 1;
	step(now + 1000000000ull);
	EXPECT(pool->space.slot[0].volume[1].open == FBY_NO_CHUNK);
	pool_restore();
}

/* Too much is live: all volumes are looked at in that very step. */
static void pressed(void)
{
	u64 now = 5000000000ull;

	step(now);
	EXPECT(!pool->space.pressure && pool->space.ready == 0 && pool->drain.volume[0].rounds == 0);
	pool->space.opt.high_watermark = 10;
	pool->space.opt.low_watermark = 5;
	step(now);
	EXPECT(pool->drain.volume[0].rounds == 1);
	pool_restore();
}

/* Volumes are counted by the tick, and when a round has let go of their pages. */
static void counted(void)
{
	struct fby_owner *owner = pool->space.owner;
	u64 now = 5000000000ull;

	owner[0].counted = 0;
	owner[2].counted = 7;
	step(now);
	EXPECT(owner[0].counted == fby_owner_pages(&pool->space, 0) && owner[0].counted > owner[1].counted);
	EXPECT(owner[1].counted == 2 && owner[2].counted == 0);
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	step(now); /* no tick */
	EXPECT(fby_volume_clean(pool, 0) && owner[0].counted == 0);
	pool_restore();
}

/* While somebody reads from the origin a quarter of the depth, unless writers are held up. */
static void depth(void)
{
	struct fby_pace *pace = &pool->drain.volume[0].pace;

	pace->depth = 8;
	EXPECT(fby_pace_depth(&pool->drain, 0) == 8);
	pace->foreground = 1;
	EXPECT(fby_pace_depth(&pool->drain, 0) == 2);
	pool->space.owner[0].level = 1;
	EXPECT(fby_pace_depth(&pool->drain, 0) == 8);
	pool_restore();
}

/* The range of the throttle is of the chunks that are owed to nobody. */
static void span(void)
{
	struct fby_span r;

	pool->space.store.sb.nchunks = 44;
	pool->space.owed = 4;
	pool->space.opt.high_watermark = 60;
	r = fby_throttled_span(&pool->space);
	EXPECT(r.start == 33 * DATA_PAGES * 80 / 100 && r.top == 33 * DATA_PAGES * 95 / 100);
	pool_restore();
}

void test_wakes(void)
{
	swept();
	closed();
	idle_closed();
	pressed();
	counted();
	depth();
	span();
}
