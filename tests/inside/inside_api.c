// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_api.c - the refusals of the engine's calls, at each bound, and the numbers that they
 * report: every counter after known operations.
 */
#include "inside.h"
#include "drain/sort.h"

#define P FBY_PAGE_SECTORS

static u8 buffer[FBY_PAGE * 4];

/* --- requests ------------------------------------------------------------- */

static int write_at(u16 volume, u64 sector, u32 nsectors)
{
	u32 done = 0, wake = 0;

	return fby_write(pool, volume, sector, nsectors, buffer, &done, &wake);
}

static int range_at(u64 sector, u64 nsectors)
{
	struct fby_bypass past;
	u64 done = 0;
	u32 wake = 0;

	return fby_range(pool, 0, FBY_KIND_ZERO, sector, nsectors, &done, &past, &wake);
}

static int read_at(u16 volume, u64 block, u32 first, u32 n)
{
	u8 origin, lost;

	return fby_read_block(pool, volume, block, first, n, buffer, &origin, &lost);
}

static int bypass_at(u64 sector, u32 nsectors)
{
	struct fby_bypass b;
	u32 wake = 0;
	int decision = fby_bypass_begin(pool, &b, 0, sector, nsectors, 1);

	if (decision == FBY_DONE)
		fby_bypass_end(pool, &b, 0, &wake);
	return decision;
}

static void bounds(void)
{
	u64 end = VOLUME_SECTORS;

	EXPECT(write_at(3, 0, P) == -FBY_E_NO_VOLUME);
	EXPECT(write_at(3, 1, 1) == -FBY_E_NO_VOLUME);
	EXPECT(write_at(2, end - P, P) == FBY_DONE);
	EXPECT(write_at(2, end - 1, 1) == FBY_DONE);
	EXPECT(write_at(2, end, 1) == -FBY_E_RANGE);
	EXPECT(write_at(2, end - 1, 2) == -FBY_E_RANGE);
	EXPECT(write_at(2, end, P) == -FBY_E_RANGE);
	EXPECT(write_at(2, end + P, P) == -FBY_E_RANGE);
	EXPECT(write_at(2, end + 1, 1) == -FBY_E_RANGE);
	EXPECT(write_at(2, ~0ull, 1) == -FBY_E_RANGE);
	EXPECT(write_at(2, 0, 0) == -FBY_E_RANGE);
	EXPECT(range_at(end, P) == -FBY_E_RANGE);
	EXPECT(range_at(end + P, P) == -FBY_E_RANGE);
	EXPECT(range_at(8, ~0ull) == -FBY_E_RANGE);
	EXPECT(range_at(end - 3, 3) == FBY_DONE);
	EXPECT(bypass_at(end - P, P) == FBY_DONE || bypass_at(end - P, P) == FBY_CACHED);
	EXPECT(bypass_at(end, 1) == -FBY_E_RANGE);
	EXPECT(bypass_at(end + 8, 1) == -FBY_E_RANGE);
	EXPECT(bypass_at(0, 0) == -FBY_E_RANGE);
	EXPECT(read_at(3, 0, 0, 8) == -FBY_E_NO_VOLUME);
	EXPECT(read_at(0, end / P, 0, 8) == -FBY_E_RANGE);
	EXPECT(read_at(0, end / P - 2, 0, 8) == FBY_ORIGIN);
	EXPECT(read_at(0, 0, 0, 0) == -FBY_E_RANGE);
	EXPECT(read_at(0, 0, 8, 1) == -FBY_E_RANGE);
	EXPECT(read_at(0, 0, 7, 2) == -FBY_E_RANGE);
	EXPECT(read_at(0, 0, 7, 1) == FBY_DONE);
	for (u32 first = 0; first < P; first++) { /* into the sectors that were asked for, and no other */
		memset(buffer, 0xee, FBY_PAGE);
		EXPECT(read_at(0, 3, first, 1) == FBY_DONE && buffer[FBY_SECTOR - 1] == 4);
		EXPECT(buffer[FBY_SECTOR] == 0xee && !memcmp(buffer + FBY_SECTOR, buffer + FBY_SECTOR + 1, FBY_PAGE - FBY_SECTOR - 1));
	}
	pool->space.owner[2].rec.block_size = FBY_PAGE;
	EXPECT(write_at(2, 0, P) == FBY_DONE);
	EXPECT(write_at(2, 0, 1) == -FBY_E_ALIGNMENT);
	EXPECT(write_at(2, 1, P) == -FBY_E_ALIGNMENT);
	pool->space.owner[2].attached = false;
	EXPECT(write_at(2, 0, P) == -FBY_E_VOLUME_DETACHED);
	EXPECT(read_at(2, 0, 0, 8) == -FBY_E_VOLUME_DETACHED);
	pool->space.opt.read_only = true;
	EXPECT(write_at(1, 0, P) == -FBY_E_READ_ONLY);
	pool_restore();
}

/* A waiter for a block is woken when entries of a range release it. */
static void range_wakes(void)
{
	struct fby_bypass past;
	u64 done = 0;
	u32 wake = 0;

	fby_wait_prepare(pool, FBY_WAIT_BLOCK);
	EXPECT(fby_range(pool, 0, FBY_KIND_DISCARD, 16 * P, P, &done, &past, &wake) == FBY_DONE && done == P);
	EXPECT(wake & FBY_WAKE_BLOCK);
	pool_restore();
}

/* Flushes the origin with success, if a flush is due. */
static int flush(u16 volume)
{
	struct fby_flush t = { 0 };
	int decision = fby_flush_begin(pool, volume, &t);
	u32 wake = 0;

	if (decision == FBY_ORIGIN)
		EXPECT(fby_flush_end(pool, &t, 0, &wake) == FBY_DONE);
	return decision;
}

/* --- past the cache: which part may --------------------------------------- */

/* Blocks 16 and 17 are cached, those around them are not. */
static void bypass_parts(void)
{
	struct fby_bypass a, b;
	u32 wake = 0;

	EXPECT(fby_bypass_begin(pool, &a, 0, 12 * P, 8 * P, 4 * P) == FBY_DONE && a.nsectors == 4 * P);
	EXPECT(write_at(0, 15 * P, P) == FBY_WAIT_BLOCK && write_at(0, 12 * P + 1, 1) == FBY_WAIT_BLOCK);
	EXPECT(write_at(0, 11 * P, P) == FBY_DONE && write_at(0, 16 * P, P) == FBY_DONE);
	EXPECT(fby_bypass_begin(pool, &b, 0, 13 * P, P, 1) == FBY_WAIT_BLOCK);
	EXPECT(fby_bypass_begin(pool, &b, 0, 15 * P, 2 * P, 1) == FBY_WAIT_BLOCK);
	fby_bypass_end(pool, &a, 0, &wake);
	EXPECT(write_at(0, 15 * P, P) == FBY_DONE);
	pool_restore();
	for (u32 i = 0; i < 32; i++)
		EXPECT(fby_bypass_begin(pool, &a, 0, (40 + i) * P, P, 1) == FBY_DONE);
	EXPECT(fby_bypass_begin(pool, &b, 0, 80 * P, P, 1) == FBY_WAIT_BLOCK); /* too many are in flight */
	fby_bypass_end(pool, &a, 0, &wake);
	EXPECT(fby_bypass_begin(pool, &b, 0, 80 * P, P, 1) == FBY_DONE);
	pool_restore();
	EXPECT(fby_bypass_begin(pool, &a, 0, 60 * P, P, 1) == FBY_DONE);
	EXPECT(fby_bypass_begin(pool, &b, 0, 40 * P, 3, 1) == FBY_DONE && b.nsectors == 3); /* that block alone */
	EXPECT(pool->cache.volume[0].range[b.place].first == 40 && pool->cache.volume[0].range[b.place].end == 41);
	pool_restore();
	EXPECT(fby_bypass_begin(pool, &a, 0, 12 * P, 8 * P, 4 * P + 1) == FBY_CACHED);
	EXPECT(a.nsectors == 6 * P); /* the part before, and with it all that is cached */
	EXPECT(fby_bypass_begin(pool, &a, 0, 16 * P, 8 * P, 1) == FBY_CACHED && a.nsectors == 2 * P);
	EXPECT(fby_bypass_begin(pool, &a, 0, 16 * P + 3, 8, 1) == FBY_CACHED && a.nsectors == 8);
	EXPECT(fby_bypass_begin(pool, &a, 0, 18 * P, 3, 1000) == FBY_DONE && a.nsectors == 3);
	EXPECT(fby_bypass_begin(pool, &b, 0, 18 * P + 3, 1, 1) == FBY_WAIT_BLOCK); /* the same block */
	EXPECT(fby_bypass_begin(pool, &b, 0, 19 * P, 1, 1) == FBY_DONE);
	EXPECT(fby_bypass_begin(pool, &b, 1, 18 * P, P, 1) == FBY_DONE); /* of another volume */
	pool_restore();
}

/* The origin owes a flush after a write or a zeroing of it, and not after a discard. */
static void owed(void)
{
	struct fby_flush one = { 0 }, all = { 0 };
	struct fby_bypass past;
	u64 done = 0;
	u32 wake = 0;

	EXPECT(flush(0) == FBY_ORIGIN && flush(0) == FBY_DONE);
	EXPECT(fby_range(pool, 0, FBY_KIND_DISCARD, 64 * P, 32 * P, &done, &past, &wake) == FBY_ORIGIN);
	fby_bypass_end(pool, &past, 0, &wake);
	EXPECT(past.nsectors == 32 * P && flush(0) == FBY_DONE && pool->cache.volume[0].bypasses == 0);
	EXPECT(fby_range(pool, 0, FBY_KIND_ZERO, 64 * P, 32 * P, &done, &past, &wake) == FBY_ORIGIN);
	EXPECT(flush(0) == FBY_DONE); /* it has not ended */
	fby_bypass_end(pool, &past, 0, &wake);
	EXPECT(flush(0) == FBY_ORIGIN && flush(0) == FBY_DONE && pool->cache.volume[0].bypasses == 0);
	EXPECT(bypass_at(64 * P, P) == FBY_DONE && flush(0) == FBY_ORIGIN && flush(0) == FBY_DONE);
	EXPECT(pool->cache.volume[0].bypasses == 1 && pool->cache.volume[0].bypassed_sectors == P);
	EXPECT(fby_bypass_begin(pool, &past, 0, 64 * P, P, 1) == FBY_DONE);
	fby_bypass_end(pool, &past, 5, &wake); /* may have come to a part */
	EXPECT(pool->cache.volume[0].bypasses == 1 && flush(0) == FBY_ORIGIN);
	memset(&past, 0xff, sizeof(past));
	EXPECT(fby_bypass_begin(pool, &past, 0, 64 * P, P, 1) == FBY_DONE);
	fby_bypass_end(pool, &past, 0, &wake);
	fby_flush_cover(pool, &one, &past); /* nothing has failed since it began */
	EXPECT(fby_flush_later(pool, &one) == FBY_DONE);
	EXPECT(fby_flush_begin(pool, 0, &one) == FBY_ORIGIN && fby_flush_end(pool, &one, 0, &wake) == FBY_DONE);
	EXPECT(bypass_at(80 * P, P) == FBY_DONE && fby_bypass_begin(pool, &past, 0, 64 * P, P, 1) == FBY_DONE);
	EXPECT(fby_flush_begin(pool, 0, &all) == FBY_ORIGIN && fby_flush_end(pool, &all, 5, &wake) < 0);
	fby_bypass_end(pool, &past, 0, &wake);
	memset(&one, 0, sizeof(one));
	fby_flush_cover(pool, &one, &past);
	EXPECT(fby_flush_later(pool, &one) == -FBY_E_ORIGIN_IO); /* a flush failed while it was on its way */
	pool_restore();
}

/* --- what is told --------------------------------------------------------- */

static void numbers(void)
{
	struct fby_pool_info i;
	struct fby_volume_info v;
	struct fby_chunk_info c;
	struct fby_entry_info e;
	struct fby_report_block damaged[4];
	struct fby_flush first = { 0 };
	u32 wake = 0;

	fby_pool_info(pool, &i);
	EXPECT(i.sb.nchunks == NCHUNKS && i.sb.chunk_size == CHUNK_BYTES);
	EXPECT(i.memory_bytes == pool->memory_bytes && i.nslots == 2 && i.seq == pool->space.seq);
	EXPECT(i.chunks_free == NCHUNKS - 3 && i.chunks_used == 3 && i.chunks_open == 2 && i.chunks_opened == 3);
	EXPECT(i.pages == NCHUNKS * DATA_PAGES && i.pages_linked == BLOCKS + 2 + 2);
	EXPECT(i.writes == BLOCKS + 5 && i.written_sectors == i.writes * P && i.commits == i.writes);
	EXPECT(i.media_bytes == i.writes * (FBY_PAGE + FBY_LINE) && i.merges == 0);
	EXPECT(i.reads == 0 && i.discards == 0 && i.zeroes == 0 && i.flushes == 0 && i.damaged_pages == 0);
	EXPECT(i.waits_block == 0 && i.waits_slot == 0 && i.waits_space == 0);

	EXPECT(read_at(0, 0, 0, 8) == FBY_DONE && read_at(0, 1, 2, 3) == FBY_DONE);
	EXPECT(read_at(0, 100, 0, 5) == FBY_ORIGIN);
	EXPECT(write_at(0, 16 * P, 1) == FBY_DONE); /* merged */
	EXPECT(range_at(2 * P, 2 * P) == FBY_DONE);
	EXPECT(fby_flush_begin(pool, 0, &first) == FBY_ORIGIN); /* a crash may have left dirty data */
	fby_pool_info(pool, &i);
	EXPECT(i.reads == 3 && i.read_hit_sectors == 11 && i.read_miss_sectors == 5);
	EXPECT(i.merges == 1 && i.zeroes == 2 && i.discards == 0 && i.flushes == 1);
	EXPECT(i.writes == BLOCKS + 7 && i.pages_linked == BLOCKS + 2 + 2);
	pool->space.slot[0].ranges[FBY_KIND_DISCARD] = 3;
	pool->space.slot[1].ranges[FBY_KIND_DISCARD] = 4;
	fby_pool_info(pool, &i);
	EXPECT(i.discards == 7 && i.zeroes == 2);

	EXPECT(fby_volume_info(pool, 3, &v) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_info(pool, 0, &v) == FBY_DONE);
	EXPECT(v.used && v.attached && !v.damaged);
	EXPECT(v.pages == BLOCKS + 2);
	EXPECT(v.chunks == 2);
	EXPECT(v.writes == BLOCKS + 5 && v.written_sectors == (BLOCKS + 3) * P + 1 + 2 * P);
	EXPECT(v.spec.origin_sectors == VOLUME_SECTORS && v.spec.block_size == 512 && v.spec.uuid[0] == 1);
	EXPECT(strcmp(v.spec.name, "v0") == 0 && strcmp(v.spec.identity, "memory") == 0);
	EXPECT(v.flush_owed && v.bypassing == 0 && v.intake_limit == 0 && v.last_error == 0 && !v.draining);
	pool->space.owner[0].attached = false;
	EXPECT(fby_volume_info(pool, 0, &v) == FBY_DONE && !v.flush_owed && !v.attached);
	pool->space.owner[0].attached = true;
	EXPECT(fby_flush_end(pool, &first, 0, &wake) == FBY_DONE && (wake & FBY_WAKE_FLUSH));
	EXPECT(flush(0) == FBY_DONE);
	EXPECT(bypass_at(100 * P, 16) == FBY_DONE);
	fby_store(&pool->space.owner[0].level, 512u);
	fby_store(&pool->drain.volume[0].pace.rate, 1000000000u);
	EXPECT(fby_volume_info(pool, 0, &v) == FBY_DONE);
	EXPECT(v.flush_owed && v.bypasses == 1 && v.bypassed_sectors == 16 && v.intake_limit == 1000000000);
	EXPECT(flush(0) == FBY_ORIGIN && flush(0) == FBY_DONE);
	EXPECT(fby_volume_info(pool, 0, &v) == FBY_DONE && !v.flush_owed);
	pool_restore();

	EXPECT(fby_chunk_info(pool, NCHUNKS, &c) == -FBY_E_GEOMETRY);
	EXPECT(fby_chunk_info(pool, closed_chunk, &c) == FBY_DONE && c.number == closed_chunk && c.volume == 0);
	EXPECT(c.state == FBY_CS_CLOSED && c.fill == FIRST_PAGE + BLOCKS && c.live == BLOCKS - 1);
	EXPECT(c.seq_max == c.seq_min + BLOCKS - 1 && c.epoch == pool->space.chunk[closed_chunk].epoch && c.epoch > 0);
	EXPECT(fby_chunk_info(pool, open_chunk, &c) == FBY_DONE && c.state == FBY_CS_OPEN && c.live == 3);
	EXPECT(c.seq_max == c.seq_min + 2);
	EXPECT(fby_entry_info(pool, NCHUNKS, FIRST_PAGE, true, &e) == -FBY_E_GEOMETRY);
	EXPECT(fby_entry_info(pool, 0, FIRST_PAGE - 1, true, &e) == -FBY_E_GEOMETRY);
	EXPECT(fby_entry_info(pool, 0, pool->space.store.chunk_pages, true, &e) == -FBY_E_GEOMETRY);
	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE, true, &e) == FBY_DONE);
	EXPECT(e.valid && e.current && e.linked && e.data_ok && e.line.block == 0);
	EXPECT(fby_entry_info(pool, closed_chunk, FIRST_PAGE, true, &e) == FBY_DONE && !e.linked && e.data_ok);
	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE + 3, true, &e) == FBY_DONE && !e.valid && !e.data_ok);
	memory_at(fby_page_at(&pool->space.store, fby_page_number(&pool->space, open_chunk, FIRST_PAGE)))[9] ^= 1;
	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE, true, &e) == FBY_DONE && e.valid && !e.data_ok);
	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE, false, &e) == FBY_DONE && e.data_ok);

	EXPECT(fby_damaged_list(pool, damaged, 4) == 0);
	EXPECT(read_at(0, 0, 0, 8) == -FBY_E_LOST && read_at(0, 0, 0, 8) == -FBY_E_LOST);
	memory_at(fby_page_at(&pool->space.store, fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 5)))[9] ^= 1;
	EXPECT(read_at(0, 5, 0, 8) == -FBY_E_LOST);
	EXPECT(fby_damaged_list(pool, damaged, 4) == 2 && damaged[0].block == 5 && damaged[1].block == 0);
	EXPECT(damaged[1].chunk == open_chunk && damaged[1].page == FIRST_PAGE && damaged[1].volume == 0);
	damaged[1].block = 77;
	EXPECT(fby_damaged_list(pool, damaged, 1) == 1 && damaged[0].block == 5 && damaged[1].block == 77);
	fby_lock(&pool->space.lock); /* it was given back */
	fby_unlock(&pool->space.lock);
	fby_pool_info(pool, &i);
	EXPECT(i.damaged_pages == 2);
	EXPECT(fby_volume_info(pool, 0, &v) == FBY_DONE && v.lost_blocks == 2);
	pool->space.usable = false;
	EXPECT(fby_chunk_info(pool, 0, &c) == -FBY_E_RECOVERY_INCOMPLETE);
	EXPECT(fby_entry_info(pool, 0, FIRST_PAGE, true, &e) == -FBY_E_RECOVERY_INCOMPLETE);
	pool_restore();
}

/* The call passes these numbers on.  Each has a value of its own. */
static void volume_numbers(void)
{
	static const enum fby_destage_state state[] = {
		[FBY_PH_IDLE] = FBY_DESTAGE_IDLE, [FBY_PH_PLAN] = FBY_DESTAGE_WRITING, [FBY_PH_WRITE] = FBY_DESTAGE_WRITING,
		[FBY_PH_FLUSH] = FBY_DESTAGE_FLUSHING, [FBY_PH_FLUSHING] = FBY_DESTAGE_FLUSHING,
		[FBY_PH_CARRY] = FBY_DESTAGE_COMMITTING, [FBY_PH_COMMIT] = FBY_DESTAGE_COMMITTING,
		[FBY_PH_RELEASE] = FBY_DESTAGE_COMMITTING, [FBY_PH_BACKOFF] = FBY_DESTAGE_BACKOFF,
	};
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_cached *cv = &pool->cache.volume[0];
	struct fby_drained *dv = &pool->drain.volume[0];
	struct fby_recovered *rv = &pool->recovery.volume[0];
	struct fby_volume_info i;

	owner->rec.watermark = 11;
	cv->lost_blocks = 12;
	dv->destage.drain = true;
	dv->last_error = 13;
	dv->origin_errors = 14;
	dv->origin_writes = 15;
	dv->origin_sectors = 16;
	dv->origin_flushes = 17;
	dv->pages_destaged = 18;
	dv->moved = 19;
	dv->rounds = 20;
	dv->pace.delay_ns = 21;
	dv->pace.rate = 22;
	dv->pace.depth = 23;
	cv->bypassing = 0x10005;
	cv->bypasses = 24;
	cv->bypassed_sectors = 25;
	EXPECT(fby_volume_info(pool, 0, &i) == FBY_DONE);
	EXPECT(i.watermark == 11 && i.lost_blocks == 12 && i.draining && i.last_error == 13 && i.origin_errors == 14);
	EXPECT(i.origin_writes == 15 && i.origin_sectors_written == 16 && i.origin_flushes == 17);
	EXPECT(i.pages_destaged == 18 && i.pages_relocated == 19 && i.rounds == 20 && i.throttle_ns == 21);
	EXPECT(i.drain_rate == 22 && i.origin_depth == 23 && i.bypassing == 3 && i.bypasses == 24);
	EXPECT(i.bypassed_sectors == 25 && i.holes == 0 && i.holes_unknown == 0);
	owner->rec.flags = FBY_VF_HOLES; /* found by a start before this one: at least one */
	EXPECT(fby_volume_info(pool, 0, &i) == FBY_DONE && i.holes == 1 && i.holes_unknown == 0);
	owner->rec.flags = FBY_VF_HOLES_UNKNOWN;
	EXPECT(fby_volume_info(pool, 0, &i) == FBY_DONE && i.holes == 0 && i.holes_unknown == 1);
	rv->holes = 26;
	rv->holes_unknown = 27;
	EXPECT(fby_volume_info(pool, 0, &i) == FBY_DONE && i.holes == 26 && i.holes_unknown == 27);
	for (u32 phase = FBY_PH_IDLE; phase <= FBY_PH_BACKOFF; phase++) {
		dv->destage.phase = phase;
		EXPECT(fby_volume_info(pool, 0, &i) == FBY_DONE && i.destage == state[phase]);
	}
	pool_restore();
}

/* Lists lost blocks of a volume from a page on, with a limit on how many a call lists. */
static void lost_blocks(void)
{
	u32 first = fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 5);
	u32 second = fby_page_number(&pool->space, open_chunk, FIRST_PAGE + 1);
	struct fby_report_block b[3];
	struct fby_lost_at at = { 0 };

	EXPECT(fby_lost_list(pool, 0, &at, b, 3) == 0 && at.page == NCHUNKS << pool->space.store.chunk_shift);
	fby_page_mark(&pool->cache, first, fby_key(0, 5), FBY_ES_DAMAGED);
	fby_page_mark(&pool->cache, fby_page_number(&pool->space, other_chunk, FIRST_PAGE), fby_key(1, 0), FBY_ES_DAMAGED);
	pool->cache.entry[second].state |= FBY_ES(0, 0, 1);
	at.page = 0;
	memset(b, 0x55, sizeof(b));
	EXPECT(fby_lost_list(pool, 0, &at, b, 3) == 2 && at.page == NCHUNKS << pool->space.store.chunk_shift);
	EXPECT(b[0].block == 5 && b[0].chunk == closed_chunk && b[0].page == FIRST_PAGE + 5 && b[0].volume == 0);
	EXPECT(b[1].block == 16 && b[1].chunk == open_chunk && b[1].page == FIRST_PAGE + 1 && b[1].volume == 0);
	EXPECT(b[2].block == 0x5555555555555555ull && fby_lost_list(pool, 0, &at, b, 3) == 0);
	at.page = 0;
	memset(b, 0x55, sizeof(b));
	EXPECT(fby_lost_list(pool, 0, &at, b, 1) == 1 && at.page == first + 1 && b[1].block == 0x5555555555555555ull);
	EXPECT(fby_lost_list(pool, 0, &at, b, 1) == 1 && at.page == second + 1 && b[0].block == 16);
	EXPECT(fby_lost_list(pool, 0, &at, b, 1) == 0);
	at.page = 0;
	EXPECT(fby_lost_list(pool, 1, &at, b, 3) == 1 && b[0].block == 0 && b[0].volume == 1);
	at.page = 0;
	pool->space.usable = false;
	EXPECT(fby_lost_list(pool, 0, &at, b, 3) == 0);
	pool_restore();
}

/* --- volumes -------------------------------------------------------------- */

static struct fby_attach again(void)
{
	return (struct fby_attach){ .origin_sectors = VOLUME_SECTORS, .identity = "memory",
				    .mem = pool->drain.volume[2].destage.page, .round_pages = 64, .nrequests = 2,
				    .buffer_bytes = 65536,
				    .mem_bytes = fby_volume_bytes(pool, 64, 2, 65536) };
}

#define ATTACH(result, change) \
	do { \
		struct fby_attach a = good; \
\
		change; \
		EXPECT(fby_volume_attach(pool, 2, &a) == (result)); \
	} while (0)

static void attaching(void)
{
	const struct fby_volume_spec spec = { .name = "w", .identity = "i", .origin_sectors = 8, .block_size = 512 };
	const struct fby_attach good = again();
	u64 counter;
	u16 index;

	ATTACH(-FBY_E_VOLUME_BUSY, (void)a);
	EXPECT(fby_volume_rebind(pool, 2, "other", VOLUME_SECTORS) == -FBY_E_VOLUME_BUSY);
	EXPECT(fby_volume_remove(pool, 2, true) == -FBY_E_VOLUME_BUSY);
	EXPECT(fby_volume_detach(pool, 3) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE && fby_volume_detach(pool, 2) == -FBY_E_VOLUME_DETACHED);
	ATTACH(-FBY_E_ORIGIN_SIZE, a.origin_sectors++);
	ATTACH(-FBY_E_ORIGIN_SIZE, a.origin_sectors--);
	ATTACH(-FBY_E_ORIGIN_IDENTITY, a.identity = "memor");
	ATTACH(-FBY_E_ORIGIN_IDENTITY, a.identity = "memory2");
	ATTACH(-FBY_E_GEOMETRY, a.nrequests = 0);
	ATTACH(-FBY_E_GEOMETRY, a.nrequests = 65);
	ATTACH(-FBY_E_GEOMETRY, a.buffer_bytes = 0);
	ATTACH(-FBY_E_GEOMETRY, a.buffer_bytes = FBY_PAGE + 512);
	ATTACH(-FBY_E_GEOMETRY, a.round_pages = 15);
	ATTACH(-FBY_E_NO_MEMORY, a.mem_bytes--);
	pool->space.owner[2].rec.flags = FBY_VF_HOLES;
	ATTACH(-FBY_E_HOLES_KNOWN, a.holes = FBY_HOLES_FAIL);
	pool->space.owner[2].rec.flags = FBY_VF_HOLES | FBY_VF_HOLES_UNKNOWN;
	ATTACH(-FBY_E_HOLES, a.holes = FBY_HOLES_ISOLATE);
	pool->recovery.volume[2].holes = 3;
	pool->recovery.volume[2].holes_unknown = 4;
	pool->space.owner[2].damaged = true;
	ATTACH(-FBY_E_VOLUME_DAMAGED, (void)a);
	pool->space.owner[2].damaged = false;
	ATTACH(FBY_DONE, a.holes = FBY_HOLES_ACCEPT);
	EXPECT(pool->recovery.volume[2].holes == 0 && pool->recovery.volume[2].holes_unknown == 0);
	EXPECT(pool->space.owner[2].rec.flags == 0 && pool->drain.volume[2].destage.buffer_sectors == 65536 / FBY_SECTOR);
	EXPECT(pool->drain.volume[2].destage.ring_pages == 2 * 65536 / FBY_PAGE);

	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE);
	EXPECT(fby_volume_rebind(pool, 3, "other", VOLUME_SECTORS) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_rebind(pool, 2, "other", VOLUME_SECTORS - 1) == -FBY_E_ORIGIN_SIZE);
	EXPECT(fby_volume_rebind(pool, 2, "other", VOLUME_SECTORS) == FBY_DONE);
	EXPECT(pool->cache.volume[2].blocks == VOLUME_SECTORS / P);
	EXPECT(fby_volume_rebind(pool, 2, "other", VOLUME_SECTORS + 9) == FBY_DONE);
	EXPECT(pool->cache.volume[2].blocks == VOLUME_SECTORS / P + 2);
	EXPECT(strcmp(pool->space.owner[2].rec.identity, "other") == 0 && pool->cache.volume[2].blocks == VOLUME_SECTORS / P + 2);
	memset(buffer, 'x', 200);
	buffer[FBY_IDENTITY_MAX + 1] = 0;
	EXPECT(fby_volume_rebind(pool, 2, (char *)buffer, VOLUME_SECTORS + 9) == -FBY_E_NAME);
	buffer[FBY_IDENTITY_MAX] = 0;
	EXPECT(fby_volume_rebind(pool, 2, (char *)buffer, VOLUME_SECTORS + 9) == FBY_DONE);
	EXPECT(strcmp(pool->space.owner[2].rec.identity, (char *)buffer) == 0);
	pool->space.owner[2].rec.block_size = FBY_PAGE; /* the origin has a whole number of blocks */
	pool->space.owner[2].rec.origin_sectors = VOLUME_SECTORS;
	EXPECT(fby_volume_rebind(pool, 2, "other", VOLUME_SECTORS + P) == FBY_DONE);
	EXPECT(fby_volume_rebind(pool, 2, "another", VOLUME_SECTORS + P + 1) != FBY_DONE);
	EXPECT(strcmp(pool->space.owner[2].rec.identity, "other") == 0);
	EXPECT(pool->space.owner[2].rec.origin_sectors == VOLUME_SECTORS + P);

	EXPECT(fby_volume_find(pool, "v2", &index) == FBY_DONE && index == 2);
	EXPECT(fby_volume_find(pool, "v", &index) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_find(pool, "v21", &index) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_remove(pool, 3, true) == -FBY_E_NO_VOLUME);
	pool->space.owner[2].rec.flags = FBY_VF_HOLES; /* something was lost */
	EXPECT(fby_volume_remove(pool, 2, false) == -FBY_E_VOLUME_DIRTY);
	pool->space.owner[2].rec.flags = 0;
	EXPECT(fby_volume_remove(pool, 2, false) == FBY_DONE && fby_volume_remove(pool, 2, false) == -FBY_E_NO_VOLUME);
	EXPECT(pool->space.owner[2].rec.watermark == pool->space.seq - 1);
	counter = pool->space.owner[2].rec.counter; /* the newer record wins at a start */
	EXPECT(fby_volume_add(pool, &spec, &index) == FBY_DONE && index == 2);
	EXPECT(pool->space.owner[2].rec.counter > counter);
	EXPECT(fby_volume_detach(pool, 1) == FBY_DONE && fby_volume_remove(pool, 1, false) == -FBY_E_VOLUME_DIRTY);
	EXPECT(fby_volume_remove(pool, 1, true) == FBY_DONE && pool->space.nfree == NCHUNKS - 2);
	pool->space.usable = false;
	EXPECT(fby_volume_remove(pool, 1, true) == -FBY_E_RECOVERY_INCOMPLETE);
	EXPECT(fby_volume_rebind(pool, 0, "other", VOLUME_SECTORS) == -FBY_E_RECOVERY_INCOMPLETE);
	ATTACH(-FBY_E_RECOVERY_INCOMPLETE, (void)a);
	pool->space.opt.read_only = true;
	EXPECT(fby_volume_remove(pool, 1, true) == -FBY_E_READ_ONLY);
	pool_restore();
}

/* The counters of a new volume do not include those of the volume before it. */
static void counted_anew(void)
{
	const struct fby_volume_spec spec = { .name = "w", .identity = "i", .origin_sectors = 8, .block_size = 512 };
	struct fby_drained *v = &pool->drain.volume[1];
	struct fby_volume_info info;
	u16 index;

	v->moved = v->origin_errors = v->origin_writes = v->origin_sectors = v->origin_flushes = 7;
	v->pages_destaged = v->rounds = v->pace.delay_ns = v->pace.rate = v->pace.depth = 7;
	v->last_error = 5;
	pool->cache.volume[1].bypasses = pool->cache.volume[1].bypassed_sectors = 7;
	EXPECT(fby_volume_info(pool, 1, &info) == FBY_DONE && info.writes > 0 && info.rounds == 7);
	EXPECT(fby_volume_detach(pool, 1) == FBY_DONE && fby_volume_remove(pool, 1, true) == FBY_DONE);
	EXPECT(fby_volume_add(pool, &spec, &index) == FBY_DONE && index == 1);
	EXPECT(fby_volume_info(pool, 1, &info) == FBY_DONE && info.pages == 0 && info.writes == 0 &&
	       info.written_sectors == 0 && info.last_error == 0);
	EXPECT(info.origin_errors + info.origin_writes + info.origin_sectors_written + info.origin_flushes == 0);
	EXPECT(info.pages_destaged + info.pages_relocated + info.rounds + info.throttle_ns == 0);
	EXPECT(info.drain_rate + info.origin_depth + info.bypasses + info.bypassed_sectors == 0);
	pool_restore();
}

/* --- pins and rounds ------------------------------------------------------ */

/* A chunk is not opened again while a walk passes over it. */
static void walking(void)
{
	u32 wake = 0, before = pool->space.nfree, c = fby_chunk_walk(&pool->space, 0, FBY_NO_CHUNK, &wake);

	EXPECT(c == closed_chunk && pool->space.chunk[c].pinned == FBY_PIN_WALK);
	for (u64 block = 1; block < BLOCKS; block++) /* all that it still held */
		EXPECT(write_at(0, block * P, P) == FBY_DONE);
	EXPECT(fby_chunk_live(&pool->space, c) == 0);
	fby_chunk_sweep(&pool->space, NCHUNKS, &wake);
	EXPECT(pool->space.chunk[c].state == FBY_CS_CLOSED && pool->space.nfree == before);
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	wake = 0;
	EXPECT(fby_chunk_walk(&pool->space, 0, c, &wake) == open_chunk);
	EXPECT(pool->space.chunk[c].state == FBY_CS_FREE && pool->space.nfree == before + 1 && wake == FBY_WAKE_SPACE);
	EXPECT(pool->space.chunk[open_chunk].pinned == FBY_PIN_WALK);
	fby_chunk_walk_end(&pool->space, open_chunk, &wake);
	EXPECT(pool->space.chunk[open_chunk].pinned == 0);
	fby_chunk_walk_end(&pool->space, FBY_NO_CHUNK, &wake);
	pool_restore();
}

/* If nobody writes for a while, the volume is destaged, and not before. */
static void idle(void)
{
	struct fby_options o;
	struct fby_io io;
	u64 now = 1000000000ull, next;
	u32 wake = 0;

	fby_pool_options(pool, &o);
	o.idle_ns = 500000000;
	EXPECT(fby_pool_set_options(pool, &o) == FBY_DONE);
	for (u32 i = 0; i < 5; i++, now += 400000000) {
		EXPECT(fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE && next <= now + 500000000);
		EXPECT(write_at(0, 20 * P, P) == FBY_DONE);
		EXPECT(write_at(1, 20 * P, P) == FBY_DONE);
	}
	EXPECT(fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE);
	EXPECT(write_at(1, 20 * P, P) == FBY_DONE);
	now += 499999999;
	EXPECT(fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE);
	now += 100000000; /* the next tick */
	while (fby_destage_step(pool, now, &io, &next, &wake) == FBY_AGAIN)
		;
	EXPECT(io.volume == 0 && io.op == FBY_IO_WRITE);
	pool_restore();
}

/* A round takes the least of many entries, sorted. */
static void heap(void)
{
	struct fby_round_page a[16];
	u64 random = 88172645463325252ull;

	for (u32 many = 0; many < 40; many++) {
		u64 in[40], out = ~0ull, kept = ~0ull;
		u32 n = 0;

		for (u32 i = 0; i < many; i++) {
			random ^= random << 13, random ^= random >> 7, random ^= random << 17;
			in[i] = random % 50;
			kept = fby_heap_add(a, &n, 16, (struct fby_round_page){ .k = in[i], .page = i });
			EXPECT((i < 16) == (kept == ~0ull));
			if (kept < out)
				out = kept;
		}
		EXPECT(n == (many < 16 ? many : 16));
		fby_heap_sort(a, n);
		for (u32 i = 0; i < n; i++)
			EXPECT(a[i].k == in[a[i].page] && (i == 0 || a[i - 1].k <= a[i].k) && a[i].k <= out);
	}
}

void test_calls(void)
{
	bounds();
	range_wakes();
	bypass_parts();
	owed();
	numbers();
	volume_numbers();
	counted_anew();
	lost_blocks();
	attaching();
	walking();
	idle();
	heap();
}
