// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_wakes.c - wakes, looks and counts that are due at once and would otherwise come later.  No
 * data is wrong without them, so no other test notices.
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

/* A waiter for space is woken if the hand finds an empty chunk. */
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

/* A writer that was refused a chunk in favour of a leaving volume is woken too. */
static void left(void)
{
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	EXPECT(pool->space.owner[2].nchunks == 0 && fby_volume_detach(pool, 2) == FBY_DONE);
	EXPECT((pool->space.wake_owed & FBY_WAKE_SPACE) && !(pool->space.wait_mask & FBY_WAKE_SPACE));
	EXPECT(pool->space.attached == 2); /* by whom the pool is divided */
	pool_restore();
}

/* If a chunk is closed while writers get none, destage looks at it. */
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

/* Both pages of volume 1 are dead, so its open chunk is free as soon as it is closed.  Writers wait
 * for that. */
static void closes_free(void)
{
	wake = pool->space.wake_owed = 0;
	fby_dead_row(&pool->space, NULL)[other_chunk] += 2;
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
}

static bool freed(u32 told)
{
	bool free = pool->space.chunk[other_chunk].state == FBY_CS_FREE;

	pool_restore();
	return free && (told & FBY_WAKE_SPACE);
}

/* A call that closes a chunk which becomes free wakes the waiters, or leaves that to the next step
 * of destage.  The calls are a slot's own close, a detach, and the close of the pool, which a busy
 * slot refuses. */
static void closed_and_free(void)
{
	struct fby_slot *slot = pool->space.slot;
	u32 c;

	closes_free();
	slot->busy = 1;
	fby_slot_close(&pool->space, slot, 1, &wake);
	EXPECT(freed(wake));
	closes_free();
	slot[1].busy = 1;
	EXPECT(fby_volume_detach(pool, 1) == -FBY_E_BUSY);
	EXPECT(freed(pool->space.wake_owed));
	closes_free();
	slot[1].busy = 1;
	EXPECT(fby_pool_close(pool) == -FBY_E_BUSY);
	EXPECT(freed(pool->space.wake_owed));
	/* A call that opens a chunk frees empty chunks that it passes. */
	closes_free();
	slot->busy = 1;
	fby_slot_close(&pool->space, slot, 1, &(u32){ 0 });
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	pool->space.hand = closed_chunk;
	fby_dead_row(&pool->space, NULL)[closed_chunk] += BLOCKS - 1;
	c = fby_slot_open_chunk(&pool->space, slot, 2, 0, false, &wake);
	EXPECT(c != FBY_NO_CHUNK && pool->space.chunk[closed_chunk].state == FBY_CS_FREE && (wake & FBY_WAKE_SPACE));
	pool_restore();
}

/* If a chunk of the reserve is opened, writers of the volume may use the room in it. */
static void reserve_opened(void)
{
	static const u32 flags[] = { 0, FBY_BEGIN_RESERVE, FBY_BEGIN_RELOCATE };

	for (u32 i = 0; i < 3; i++) {
		wake = 0;
		fby_wait_prepare(pool, FBY_WAIT_SPACE);
		pool->space.slot[0].busy = 1;
		EXPECT(fby_slot_open_chunk(&pool->space, &pool->space.slot[0], 2, flags[i], false, &wake) != FBY_NO_CHUNK);
		EXPECT(!(wake & FBY_WAKE_SPACE) == (flags[i] == 0));
		pool_restore();
	}
}

/* If a writer fills its chunk while others get none, destage looks at the chunk. */
static void filled(void)
{
	static u8 buffer[FBY_PAGE];

	for (u64 block = 2; block < DATA_PAGES; block++) {
		wake = 0;
		pool->space.nfree = 1;
		EXPECT(write_block(1, block, buffer, &wake) == FBY_DONE);
		EXPECT(!(wake & FBY_WAKE_DESTAGE) == (block < DATA_PAGES - 1));
	}
	pool_restore();
}

/* An open chunk with a lost block stays open when everything else is on the origin.  Its room may
 * be all that the volume can write to.  A chunk without a page is freed, and waiters are woken. */
static void lost_stays_open(void)
{
	struct fby_slot *slot = pool->space.slot;
	u64 now = 5000000000ull;

	for (u32 lost = 0; lost < 2; lost++) {
		pool->space.opt.max_age_ns = 1;
		step(now);
		EXPECT(fby_volume_clean(pool, 1) && slot->volume[1].open == other_chunk);
		if (lost) {
			static u8 buffer[FBY_PAGE];

			EXPECT(write_block(1, 3, buffer, &wake) == FBY_DONE);
			pool->cache.volume[1].lost_only = 1;
		}
		wake = 0;
		fby_wait_prepare(pool, FBY_WAIT_SPACE);
		pool->space.opt.max_age_ns = 0;
		pool->space.nfree = 1;
		step(now + 1000000000ull);
		EXPECT(slot->volume[1].open == (lost ? other_chunk : FBY_NO_CHUNK));
		EXPECT(lost || (wake & FBY_WAKE_SPACE));
		pool_restore();
	}
}

/* An open chunk of a volume with nothing to destage is freed when others need it. */
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

/* A volume with more chunks than its entitlement, none of them closed, closes those that others
 * need. */
static void open_closed(void)
{
	struct fby_io io;

	for (u32 entitled = 0; entitled < 2; entitled++) {
		pool->space.entitled = entitled; /* volume 1 has one chunk */
		pool->space.nfree = 0;
		(void)next_request(5000000000ull, &io, &wake);
		EXPECT((pool->space.slot[0].volume[1].open == FBY_NO_CHUNK) == (entitled == 0));
		pool_restore();
	}
}

/* Too many pages are live, so all volumes are examined in the same step. */
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

/* Volumes are counted by the tick, and when a round has released their pages. */
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

/* While somebody reads from the origin, the depth is a quarter, unless writers are held up. */
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

/* The range of the throttle covers the chunks that are owed to nobody. */
static void span(void)
{
	struct fby_span r;

	pool->space.store.sb.nchunks = 44;
	pool->space.owed = 4;
	pool->space.opt.high_watermark = 60;
	r = fby_throttled_span(&pool->space);
	EXPECT(r.start == 33 * DATA_PAGES * 80 / 100 && r.top == 33 * DATA_PAGES * 95 / 100);
	pool->space.tight = FBY_TIGHT_MOST;
	r = fby_throttled_span(&pool->space);
	EXPECT(r.start == 33 * DATA_PAGES * 875 / 1000 && r.top == 33 * DATA_PAGES * 1025 / 1000);
	pool->space.tight = FBY_TIGHT_MOST / 2;
	r = fby_throttled_span(&pool->space);
	EXPECT(r.start == 33 * DATA_PAGES * 8375 / 10000 && r.top == 33 * DATA_PAGES * 9875 / 10000);
	pool->space.opt.high_watermark = 100;
	r = fby_throttled_span(&pool->space);
	EXPECT(r.start == 40 * DATA_PAGES && r.top == r.start);
	pool_restore();
}

/* The range moves a step at a time to the lowest place that a volume wants.  Only attached volumes
 * that hold at least half of a share count. */
static void lowest_of_those_who_hold_much(void)
{
	struct fby_owner *v = pool->space.owner;

	v[0].attached = v[1].attached = v[2].attached = true;
	v[0].active = v[1].active = v[2].active = true;
	v[0].tight = 5;
	v[1].tight = 9;
	v[2].tight = 1;
	v[0].counted = v[1].counted = 40;
	v[2].counted = 0;
	for (u32 i = 0; i < 20; i++) {
		fby_share_update(&pool->space);
		EXPECT(pool->space.tight == (i < 5 ? i + 1 : 5));
	}
	v[0].counted = pool->space.share / 4;
	fby_share_update(&pool->space);
	EXPECT(pool->space.tight == 6);
	v[0].counted = 40;
	v[1].attached = false; /* a log, or what is left of a volume: it plans nothing */
	v[1].tight = 0;
	fby_share_update(&pool->space);
	EXPECT(pool->space.tight == 5);
	v[0].active = v[2].active = false; /* nobody else */
	fby_share_update(&pool->space);
	EXPECT(pool->space.tight == 5);
	pool_restore();
}

/* Makes pages of volume 0 dirty.  Their number lies at `thousandths` of the way from the start of
 * the range to its top. */
static void dirty(u32 thousandths)
{
	struct fby_span r = fby_throttled_span(&pool->space);

	pool->space.live = pool->space.owner[0].counted = r.start + (r.top - r.start) * thousandths / 1000;
	pool->space.share = (u32)pool->space.live;
}

static u32 judged(u32 thousandths, enum fby_copies copies)
{
	pool->space.tight = 7;
	dirty(thousandths);
	fby_fullness_judge(&pool->space, 0, copies);
	return pool->space.owner[0].tight;
}

/* A volume asks for a step of the range, up or down, while its dirty pages are near the middle.  It
 * asks for none up if there are few chunks, and for one down if few of them are free. */
static void asks_for_a_step(void)
{
	struct fby_space *space = &pool->space;
	u32 owed;

	space->store.sb.nchunks = 4096; /* so that a page is little of the range */
	space->opt.high_watermark = 60;
	owed = fby_owed(space);
	space->nfree = owed + fby_spare_wanted(space);
	EXPECT(judged(500, FBY_COPIES_CHEAP) == 8 && judged(500, FBY_COPIES_DEAR) == 6);
	EXPECT(judged(500, FBY_COPIES_FAIR) == 7);
	EXPECT(judged(240, FBY_COPIES_CHEAP) == 7 && judged(260, FBY_COPIES_CHEAP) == 8);
	EXPECT(judged(760, FBY_COPIES_DEAR) == 7 && judged(740, FBY_COPIES_DEAR) == 6);
	space->nfree = owed + 127; /* some of the last 128 */
	EXPECT(judged(500, FBY_COPIES_CHEAP) == 6 && judged(500, FBY_COPIES_FAIR) == 6);
	space->nfree = owed + 128;
	EXPECT(judged(500, FBY_COPIES_CHEAP) == 8);
	space->tight = 0;
	dirty(500);
	fby_fullness_judge(space, 0, FBY_COPIES_DEAR);
	EXPECT(space->owner[0].tight == 0);
	space->tight = FBY_TIGHT_MOST;
	dirty(500);
	fby_fullness_judge(space, 0, FBY_COPIES_CHEAP);
	EXPECT(space->owner[0].tight == FBY_TIGHT_MOST);
	space->store.sb.nchunks = 28 + owed;
	space->nfree = owed + fby_spare_wanted(space);
	EXPECT(judged(500, FBY_COPIES_CHEAP) == 7); /* a quarter of them */
	space->store.sb.nchunks = 32 + owed;
	EXPECT(judged(500, FBY_COPIES_CHEAP) == 8);
	space->store.sb.nchunks = 24 + owed; /* more is owed now */
	EXPECT(judged(500, FBY_COPIES_FAIR) == 6);
	pool_restore();
}

/* In a pool that was full when it was opened, the range starts at most half way to the top. */
static void starts_where_it_was(void)
{
	struct fby_space *space = &pool->space;
	struct fby_span r;

	space->opt.high_watermark = 60;
	fby_fullness_start(space);
	EXPECT(space->tight == 0);
	space->store.sb.nchunks = 256;
	space->tight = 20;
	r = fby_throttled_span(space);
	space->tight = 0;
	for (u32 v = 0; v < space->store.sb.nvolumes; v++) /* counted anew, and added to the rest */
		fby_owner_count(space, (u16)v);
	space->live = (r.start + r.top) / 2;
	fby_fullness_start(space);
	EXPECT(space->tight >= 19 && space->tight <= 21);
	pool_restore();
}

void test_wakes(void)
{
	swept();
	left();
	closed();
	closed_and_free();
	reserve_opened();
	filled();
	lost_stays_open();
	idle_closed();
	open_closed();
	pressed();
	counted();
	depth();
	span();
	lowest_of_those_who_hold_much();
	asks_for_a_step();
	starts_where_it_was();
}
