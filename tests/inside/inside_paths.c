// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_paths.c - effects of a path that no caller sees: wakes, seals, pins, marks on pages, and
 * the measured speed of the origin.
 */
#include "inside.h"

#define P FBY_PAGE_SECTORS

static u8 buffer[FBY_PAGE * 16];
static u32 wake;

static int put(u16 volume, u64 block)
{
	wake = 0;
	return write_block(volume, block, buffer, &wake);
}

static int get(u64 block, u8 *into)
{
	u8 origin, lost;

	return fby_read_block(pool, 0, block, 0, P, into, &origin, &lost);
}

static int step(u64 now_ns, struct fby_io *io)
{
	return next_request(now_ns, io, &wake);
}

/* --- pieces of memory ----------------------------------------------------- */

/* Two blocks and a bit come from three pieces of any length, from any offset in them. */
static void pieces(void)
{
	static u8 from[FBY_PAGE * 4], apart[3][FBY_PAGE * 4], want[FBY_PAGE], got[FBY_PAGE];
	u32 n = 13 * FBY_SECTOR, skip = 3 * FBY_SECTOR;

	for (u32 i = 0; i < sizeof(from); i++)
		from[i] = (u8)(i * 7 + i / 251);
	for (u32 a = 0; a <= n + skip; a += 611)
		for (u32 b = a; b <= n + skip; b += 977) {
			struct fby_vec vec[] = { { apart[0], a }, { apart[1], b - a }, { apart[2], n + skip - b } };
			struct fby_write w;

			memset(apart, 0, sizeof(apart)); /* bytes after a piece do not belong to it */
			memcpy(apart[0], from, a);
			memcpy(apart[1], from + a, b - a);
			memcpy(apart[2], from + b, n + skip - b);
			memset(&w, 0xff, sizeof(w));
			EXPECT(fby_write_begin(pool, &w, 0, 20 * P + 3, 13) == FBY_DONE && w.wake == 0 && w.ticket == 0);
			EXPECT(w.npages == 2 && w.nsectors == 13);
			fby_write_copy(pool, &w, vec, 3, skip);
			fby_write_commit(pool, &w);
			fby_write_publish(pool, &w);
			EXPECT(get(21, got) == FBY_DONE);
			memcpy(want, from + skip + 5 * FBY_SECTOR, FBY_PAGE);
			EXPECT(memcmp(got, want, FBY_PAGE) == 0);
			EXPECT(get(20, got) == FBY_ORIGIN);
			EXPECT(memcmp(got + 3 * FBY_SECTOR, from + skip, 5 * FBY_SECTOR) == 0);
			pool_restore();
		}
}

/* --- wakes ---------------------------------------------------------------- */

/* From the high watermark on, with 3 of 8 chunks free, an opened chunk wakes destage. */
static void due(void)
{
	u64 block = 30;

	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	while (pool->space.nfree > 3)
		EXPECT(put(0, block++) == FBY_DONE && !(wake & FBY_WAKE_SPACE)); /* none was freed */
	pool_restore();
	block = 30;
	wake = 0;
	for (u32 free = pool->space.nfree; free > 1; free--) {
		while (pool->space.nfree == free) {
			EXPECT(!(wake & FBY_WAKE_DESTAGE) || pool->space.nfree <= 3);
			EXPECT(put(0, block++) == FBY_DONE);
		}
		EXPECT(!(wake & FBY_WAKE_DESTAGE) == (pool->space.nfree > 3));
		wake = 0;
	}
	while (put(0, block) == FBY_DONE)
		block++;
	EXPECT(pool->space.nfree == 1 && put(0, block) == FBY_WAIT_SPACE && pool->cache.waits[FBY_WAIT_SPACE] == 2);
	pool_restore();
	pool->space.opt.high_watermark = 50; /* 4 of 8 are free: not below, and that is enough */
	for (block = 30; pool->space.nfree > 4; block++)
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(wake & FBY_WAKE_DESTAGE);
	pool_restore();
	EXPECT(fby_volume_detach(pool, 1) == FBY_DONE && fby_volume_remove(pool, 1, true) == FBY_DONE);
	pool->space.opt.high_watermark = 38; /* 5 of 8 are more than 62 in a hundred */
	for (block = 30; pool->space.nfree > 5; block++)
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(!(wake & FBY_WAKE_DESTAGE));
	pool_restore();
}

/* A waiter for room is woken when the last pin of a chunk is removed. */
static void unpinned(void)
{
	u32 told = 0;

	pool->space.chunk[closed_chunk].pinned = FBY_PIN_MOVED | FBY_PIN_WALK;
	for (u64 block = 1; block < BLOCKS; block++)
		EXPECT(put(0, block) == FBY_DONE);
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	fby_chunk_unpin(&pool->space, closed_chunk, FBY_PIN_MOVED, &told);
	EXPECT(told == 0 && pool->space.chunk[closed_chunk].state == FBY_CS_CLOSED);
	fby_chunk_unpin(&pool->space, closed_chunk, FBY_PIN_WALK, &told);
	EXPECT(told == FBY_WAKE_SPACE && pool->space.chunk[closed_chunk].state == FBY_CS_FREE);
	EXPECT(!(pool->space.wait_mask & FBY_WAKE_SPACE));
	pool_restore();
}

/* A block is busy, and then a slot. */
static void busy(void)
{
	u32 done = 0;
	struct fby_bypass b;
	struct fby_write w;
	u32 bucket = fby_index_bucket(&pool->cache, fby_key(0, 30));

	EXPECT(fby_index_try(&pool->cache, bucket) && !fby_index_try(&pool->cache, bucket));
	EXPECT(fby_bypass_begin(pool, &b, 0, 30 * P, P, 1) == FBY_WAIT_BLOCK);
	EXPECT(put(0, 30) == FBY_WAIT_BLOCK && fby_write_begin(pool, &w, 0, 30 * P, 2 * P) == FBY_WAIT_BLOCK);
	EXPECT(fby_write_begin(pool, &w, 0, 29 * P, 2 * P) == FBY_DONE && w.npages == 1);
	EXPECT(pool->cache.waits[FBY_WAIT_BLOCK] == 3);
	fby_index_release(&pool->cache, bucket);
	wake = 0;
	EXPECT(fby_write(pool, 0, 31 * P, 3 * P + 1, buffer, &done, &wake) == FBY_DONE && done == 3 * P + 1);
	EXPECT(wake == 0);
	fby_wait_prepare(pool, FBY_WAIT_BLOCK); /* whoever waits is told by any way to write */
	EXPECT(put(0, 30) == FBY_DONE && wake == FBY_WAKE_BLOCK);
	wake = FBY_WAKE_SPACE;
	done = 0;
	EXPECT(fby_write(pool, 0, 30 * P, 1, buffer, &done, &wake) == FBY_DONE);
	EXPECT(wake == (FBY_WAKE_SPACE | FBY_WAKE_BLOCK));
	pool_restore();
	pool->space.slot[0].busy = 1; /* the other one is taken */
	EXPECT(put(0, 30) == FBY_DONE && pool->space.slot[1].volume[0].open != FBY_NO_CHUNK);
	pool->space.slot[1].busy = 1;
	EXPECT(put(0, 30) == FBY_WAIT_SLOT && fby_write_begin(pool, &w, 0, 8, 8) == FBY_WAIT_SLOT);
	EXPECT(pool->cache.waits[FBY_WAIT_SLOT] == 2);
	EXPECT(!(pool->cache.bucket[bucket] & FBY_BUCKET_LOCK));
	pool_restore();
}

/* --- verification --------------------------------------------------------- */

static int read_after(enum fby_verify verify, bool once_before)
{
	u8 *data = memory_at(fby_page_at(&pool->space.store, fby_page_number(&pool->space, open_chunk, FIRST_PAGE + 1)));
	int r;

	pool->space.opt.verify = verify;
	if (once_before)
		EXPECT(get(16, buffer) == FBY_DONE);
	data[100] ^= 1;
	r = get(16, buffer);
	pool_restore();
	return r;
}

static void verifying(void)
{
	EXPECT(read_after(FBY_VERIFY_ALWAYS, false) == -FBY_E_LOST);
	EXPECT(read_after(FBY_VERIFY_ALWAYS, true) == -FBY_E_LOST);
	EXPECT(read_after(FBY_VERIFY_FIRST, false) == -FBY_E_LOST);
	EXPECT(read_after(FBY_VERIFY_FIRST, true) == FBY_DONE);
	EXPECT(read_after(FBY_VERIFY_NEVER, false) == FBY_DONE);
}

/* --- destage -------------------------------------------------------------- */

/* Old entries are destaged at once, including those that idle slots have not sealed yet. */
static void aged(void)
{
	struct fby_io io;
	u64 now = 1000000000ull, next;
	bool seen[32] = { false };

	EXPECT(fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE && next == now + 100000000);
	EXPECT(pool->drain.volume[0].destage.phase == FBY_PH_IDLE);
	pool->space.opt.max_age_ns = 5000000000ull;
	now += 3999999999ull; /* all chunks were opened at 0 */
	EXPECT(step(now, &io) == FBY_DONE);
	EXPECT(put(0, 18) == FBY_DONE);
	EXPECT(pool->space.chunk[open_chunk].sealed < pool->space.chunk[open_chunk].fill);
	while (step(now + 100000000, &io) == FBY_ORIGIN) { /* the next tick */
		for (u64 s = io.sector; io.volume == 0 && s < io.sector + io.nsectors; s++)
			seen[s / P] = true;
		fby_destage_complete(pool, io.id, 0);
	}
	for (u32 block = 0; block < 19; block++)
		EXPECT(seen[block] == (block < BLOCKS || block >= 16));
	EXPECT(fby_volume_clean(pool, 0) && fby_volume_clean(pool, 1) && pool->drain.volume[0].rounds == 1);
	EXPECT(pool->drain.volume[0].pages_destaged == BLOCKS + 3 && pool->drain.volume[0].origin_flushes == 1);
	EXPECT(pool->drain.volume[0].origin_sectors == (BLOCKS + 3) * P && pool->drain.volume[0].origin_errors == 0);
	EXPECT(pool->space.owner[0].rec.watermark >= pool->space.chunk[open_chunk].seq_last);
	pool_restore();
}

/* Tests the times of requests: the time of one, and the total. */
static void timed(void)
{
	struct fby_pace *pace = &pool->drain.volume[0].pace;
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io first, second, none;
	u64 now = 1000000000ull;

	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	d->buffer_sectors = 2 * P;
	EXPECT(step(now, &first) == FBY_ORIGIN && first.op == FBY_IO_WRITE && first.nsectors == 2 * P);
	EXPECT(d->io[first.id].alone && d->io[first.id].start_ns == now && d->outstanding == 1);
	EXPECT(step(now + 1000, &second) == FBY_ORIGIN && !d->io[second.id].alone && d->outstanding == 2);
	EXPECT(step(now + 2000, &none) == FBY_DONE); /* two buffers */
	fby_destage_complete(pool, first.id, 0);
	fby_destage_complete(pool, second.id, 0);
	EXPECT(step(now + 4000, &none) == FBY_ORIGIN);
	EXPECT(pace->base_ns == 4000 && pace->latency_ns == 4000 - 250 + 187);
	fby_destage_complete(pool, none.id, 5);
	/* One request was refused, and its flush fails. */
	while (step(now + 4500, &none) == FBY_ORIGIN && none.op != FBY_IO_FLUSH)
		fby_destage_complete(pool, none.id, 0);
	EXPECT(none.op == FBY_IO_FLUSH && pool->drain.volume[0].last_error == 5);
	EXPECT(d->refused.failed == 1 && pool->drain.volume[0].origin_errors == 1);
	fby_destage_complete(pool, none.id, 5);
	EXPECT(step(now + 5000, &none) == FBY_DONE && d->phase == FBY_PH_BACKOFF);
	EXPECT(pool->drain.volume[0].origin_errors == 2 && d->outstanding == 0);
	EXPECT(step(now + 100004999, &none) == FBY_DONE && step(now + 100005000, &none) == FBY_ORIGIN);
	/* All requests are refused, one at a time. */
	for (; d->outstanding == 1; (void)step(now + 100006000, &none))
		fby_destage_complete(pool, none.id, 5);
	EXPECT(d->phase == FBY_PH_BACKOFF && d->backoff_ns == 200000000);
	pool_restore();
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	EXPECT(step(now, &first) == FBY_ORIGIN && step(now, &second) == FBY_ORIGIN);
	fby_destage_complete(pool, first.id, 0);
	EXPECT(step(now + (1ull << 31), &none) != FBY_AGAIN && pace->latency_ns == 0); /* too long to count */
	fby_destage_complete(pool, second.id, 0);
	EXPECT(step(now + (1ull << 31) - 1, &none) == FBY_ORIGIN && pace->latency_ns != 0);
	pool_restore();
}

/* Neighbours above the cut are written along and become clean: the next round releases them. */
static void neighbours(void)
{
	static const u8 along[] = { 18, 19, 8, 15 }; /* 8: in a gap of what is listed */
	struct fby_io io;
	struct fby_found f;
	u64 now = 1000000000ull;
	u32 writes = 0;

	cpu = 1;
	EXPECT(put(0, 100) == FBY_DONE);
	pool->space.slot[1].busy = 1; /* a write of it is in flight: the cut stays below */
	cpu = 0;
	EXPECT(put(0, 100) == FBY_DONE);
	for (u32 i = 0; i < 4; i++)
		EXPECT(put(0, along[i]) == FBY_DONE);
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	for (; step(now, &io) == FBY_ORIGIN && pool->drain.volume[0].rounds == 0; now += 1000) {
		if (io.op == FBY_IO_WRITE) {
			EXPECT(writes++ == 0 ? io.sector == 0 && io.nsectors == 9 * P :
					       io.sector == 15 * P && io.nsectors == 5 * P);
			for (u32 i = 0; i < 8 && io.sector == 0; i++)
				EXPECT(((u8 *)io.buf)[i * FBY_PAGE] == i + 1);
		}
		fby_destage_complete(pool, io.id, 0);
	}
	EXPECT(writes == 2 && fby_owner_pages(&pool->space, 0) == 5);
	for (u32 i = 0; i < 4; i++) {
		fby_index_find(&pool->cache, fby_key(0, along[i]), &f);
		EXPECT(f.page != FBY_NO_PAGE && (f.state & FBY_ES_CLEAN));
	}
	fby_index_find(&pool->cache, fby_key(0, 100), &f);
	EXPECT(f.page != FBY_NO_PAGE && !(f.state & FBY_ES_CLEAN));
	pool->space.slot[1].busy = 0;
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	for (writes = 0; step(now, &io) == FBY_ORIGIN; now += 1000) {
		writes += io.op == FBY_IO_WRITE;
		EXPECT(io.op != FBY_IO_WRITE || (io.sector == 100 * P && io.nsectors == P));
		fby_destage_complete(pool, io.id, 0);
	}
	EXPECT(writes == 1 && fby_owner_pages(&pool->space, 0) == 0 && pool->drain.volume[0].rounds == 2);
	pool_restore();
}

/* After a failed flush nothing is clean, and everything is written again. */
static void flush_fails(void)
{
	struct fby_io io;
	struct fby_found f;
	u64 now = 1000000000ull;
	u32 writes = 0;

	cpu = 1;
	EXPECT(put(0, 100) == FBY_DONE);
	pool->space.slot[1].busy = 1;
	cpu = 0;
	EXPECT(put(0, 100) == FBY_DONE);
	for (u64 block = 18; block < 22; block++)
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	while (step(now, &io) == FBY_ORIGIN && pool->drain.volume[0].destage.phase != FBY_PH_BACKOFF) {
		writes += io.op == FBY_IO_WRITE;
		fby_destage_complete(pool, io.id, io.op == FBY_IO_FLUSH ? 5 : 0);
	}
	EXPECT(writes == 2 && pool->drain.volume[0].destage.phase == FBY_PH_BACKOFF);
	EXPECT(pool->drain.volume[0].last_error == 5);
	EXPECT(fby_owner_pages(&pool->space, 0) == BLOCKS + 2 + 5 && pool->drain.volume[0].rounds == 0);
	for (u64 block = 16; block < 22; block++) {
		fby_index_find(&pool->cache, fby_key(0, block), &f);
		EXPECT(f.page != FBY_NO_PAGE && !(f.state & FBY_ES_CLEAN));
	}
	EXPECT(pool->space.owner[0].rec.watermark < pool->space.chunk[closed_chunk].seq_min);
	pool->space.slot[1].busy = 0;
	for (now += 1000000000, writes = 0; step(now, &io) == FBY_ORIGIN; now += 1000) {
		for (u64 s = io.sector; io.op == FBY_IO_WRITE && s < io.sector + io.nsectors; s += P)
			writes++;
		fby_destage_complete(pool, io.id, 0);
	}
	EXPECT(writes == BLOCKS + 2 + 5 && fby_owner_pages(&pool->space, 0) == 0);
	EXPECT(pool->drain.volume[0].last_error == 0);
	pool_restore();
}

/* Pages are moved out of a mostly dead chunk.  The chunk is freed when the copies are sealed,
 * whichever slot they went through.  Lost pages stay where they are. */
static void moved(u32 through)
{
	struct fby_io io;
	u64 next, block = 40, seq;
	u32 from = closed_chunk, copy = FBY_NO_PAGE, slot = 5;
	struct fby_found f;

	while (pool->space.nfree > 2)
		EXPECT(put(0, block++) == FBY_DONE);
	for (block = 1; block < BLOCKS - 1; block++) /* block 7 alone is still in it */
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(fby_chunk_live(&pool->space, from) == 1 && fby_short(&pool->space));
	cpu = through;
	seq = pool->space.seq;
	pool->space.opt.high_watermark = pool->space.opt.low_watermark = 100;
	fby_wait_prepare(pool, FBY_WAIT_SPACE);
	EXPECT(fby_destage_step(pool, 1000000000ull, &io, &next, &wake) == FBY_AGAIN); /* all of it in one step */
	EXPECT(pool->space.chunk[from].state == FBY_CS_FREE && pool->drain.moved_from == FBY_NO_CHUNK);
	EXPECT(pool->drain.volume[0].moved == 1 && pool->space.chunk[from].pinned == 0 && pool->drain.moved_slots == 0);
	fby_index_find(&pool->cache, fby_key(0, 7), &f);
	copy = f.page;
	EXPECT(through == 0 || fby_page_chunk(&pool->space.store, copy) == pool->space.slot[1].volume[0].open);
	EXPECT(pool->space.chunk[fby_page_chunk(&pool->space.store, copy)].sealed > fby_page_place(&pool->space.store, copy));
	EXPECT(fby_page_seq(&pool->cache, copy, 0) >= seq - FBY_SEQ_BLOCK);
	EXPECT(get(7, buffer) == FBY_DONE && buffer[0] == 8);
	wake = 0;
	EXPECT(fby_move(&pool->cache, 0, 7, copy - 1, FBY_BEGIN_RELOCATE, &slot, &wake) == FBY_DONE && slot == ~0u); /* not its page */
	EXPECT(fby_move(&pool->cache, 0, 99, copy, FBY_BEGIN_RELOCATE, &slot, &wake) == FBY_DONE && slot == ~0u); /* not cached */
	slot = 5;
	fby_page_mark(&pool->cache, copy, fby_key(0, 7), FBY_ES_DAMAGED);
	EXPECT(fby_move(&pool->cache, 0, 7, copy, FBY_BEGIN_RELOCATE, &slot, &wake) == FBY_DONE && slot == ~0u && wake == 0);
	EXPECT(pool->space.slot[through].busy == 0);
	cpu = 0;
	pool_restore();
}

/* --- recovery's report ---------------------------------------------------- */

static void recovered(void)
{
	struct fby_options o = { .nslots = 2 };
	struct fby_recovery_report r;
	u64 bytes = pool->memory_bytes, seq = pool->space.seq;

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 1, NCHUNKS) == -FBY_E_GEOMETRY);
	EXPECT(fby_recover_chunks(pool, NCHUNKS + 1, 0) == -FBY_E_GEOMETRY);
	EXPECT(fby_recover_chunks(pool, 0, 3) == FBY_DONE);
	EXPECT(fby_recover_finish(pool, &r) == -FBY_E_RECOVERY_INCOMPLETE);
	EXPECT(fby_recover_chunks(pool, 3, NCHUNKS - 3) == FBY_DONE);
	EXPECT(fby_recover_finish(pool, &r) == FBY_DONE);
	EXPECT(!r.clean && r.chunks == NCHUNKS && r.entries == BLOCKS + 5);
	EXPECT(r.dropped == 0 && r.holes == 0 && r.damaged == 0 && r.lines_repaired == 0 && r.chunk_headers_lost == 0);
	EXPECT(pool->space.owner[0].recovered == BLOCKS + 2 && pool->space.owner[1].recovered == 2);
	EXPECT(pool->space.seq > seq - FBY_SEQ_BLOCK && fby_recover_chunks(pool, 0, 1) == -FBY_E_BUSY);
	EXPECT(pool->space.chunk[open_chunk].last_block == 17 && pool->space.chunk[other_chunk].last_block == 1);
	EXPECT(fby_check(pool, true, NULL, 0) == FBY_DONE);
	pool_restore();
}

/* --- pace ----------------------------------------------------------------- */

static void latency(void)
{
	struct fby_pace pace = { 0 };

	fby_pace_start(&pace, 3);
	EXPECT(pace.depth == 3 && pace.rate == 16384);
	fby_pace_start(&pace, 9);
	EXPECT(pace.depth == 4);
	pace.foreground = 1;
	fby_pace_latency(&pace, 1000, true); /* held up by reads */
	EXPECT(pace.base_ns == 0 && pace.latency_ns == 0);
	pace.foreground = 0;
	fby_pace_latency(&pace, 1600, true);
	EXPECT(pace.base_ns == 1600 && pace.latency_ns == 1600);
	fby_pace_latency(&pace, 3200, false);
	EXPECT(pace.base_ns == 1600 && pace.latency_ns == 1700);
	fby_pace_latency(&pace, 800, true);
	EXPECT(pace.base_ns == 1500 && pace.latency_ns == 1644);
	fby_pace_latency(&pace, 8000, false); /* counts for four times the base */
	EXPECT(pace.base_ns == 1500 && pace.latency_ns == 1644 - 102 + 375);

	pace.base_ns = 1000;
	pace.latency_ns = 1499;
	fby_pace_adapt(&pace, 5);
	EXPECT(pace.depth == 5);
	fby_pace_adapt(&pace, 5);
	EXPECT(pace.depth == 5);
	pace.latency_ns = 1500;
	fby_pace_adapt(&pace, 64);
	EXPECT(pace.depth == 5);
	pace.latency_ns = 2500;
	fby_pace_adapt(&pace, 64);
	EXPECT(pace.depth == 5);
	pace.latency_ns = 2501;
	for (u32 i = 0; i < 9; i++)
		fby_pace_adapt(&pace, 64);
	EXPECT(pace.depth == 1);
}

/* Writes are spaced by the cost of a page, after a burst of 5 ms. */
static void delay(void)
{
	struct fby_pace *pace = &pool->drain.volume[0].pace;
	u64 now = 10000000000ull;

	EXPECT(fby_write_delay(pool, 3, P, now) == 0 && !fby_write_throttled(pool, 3));
	EXPECT(fby_volume_clean(pool, 3) && fby_volume_clean(pool, 0xffff));
	EXPECT(fby_write_delay(pool, 0, P, now) == 0 && !fby_write_throttled(pool, 0));
	fby_store(&pool->space.owner[0].level, 512u); /* as much as is released */
	fby_store(&pace->rate, 1000u);
	EXPECT(fby_write_throttled(pool, 0));
	for (u32 i = 0; i < 5; i++)
		EXPECT(fby_write_delay(pool, 0, P, now) == 0);
	EXPECT(fby_write_delay(pool, 0, 1, now) == 1000000);
	EXPECT(fby_write_delay(pool, 0, P + 1, now) == 3000000 && pace->delay_ns == 4000000);
	EXPECT(fby_write_delay(pool, 0, P, now + 4000000) == 0);
	EXPECT(fby_write_delay(pool, 0, 2000 * P, now) == 1000000000); /* a second at most */
	EXPECT(fby_write_delay(pool, 0, P, now) == 1000000000);
	EXPECT(pace->next_ns == now + 1000000000 + 1000000);
	EXPECT(fby_write_delay(pool, 0, P, now + 5000000000ull) == 0);

	pool_restore();
	fby_origin_foreground(pool, 3, true);
	EXPECT(pool_same());
	fby_origin_foreground(pool, 3, false);
	EXPECT(pool_same());
	fby_origin_foreground(pool, 0, true);
	fby_origin_foreground(pool, 0, true);
	fby_origin_foreground(pool, 0, false);
	EXPECT(pace->foreground == 1);
	pool->space.now_ns = 77;
	fby_origin_foreground(pool, 0, false);
	EXPECT(pace->foreground == 0 && pace->read_ns == 77);
	pool_restore();
}

/* Tests the rate at which pages are freed, from one second to the next. */
static void rate(void)
{
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_drained *dv = &pool->drain.volume[0];
	struct fby_pace *pace = &dv->pace;

	pool->space.pressure = true;
	pool->space.now_ns = 1ull << 30; /* 1024 ms of 1.05 */
	owner->dead += 126; /* and block 0, before */
	fby_pace_tick(&pool->drain, 0);
	EXPECT(!pace->measured && pace->rate == 16384); /* too few to tell */
	pool->space.now_ns += 1ull << 30;
	owner->dead += 1000;
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->measured && pace->rate == 929);
	pool->space.now_ns += 1ull << 30;
	owner->dead += 1000;
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 929);
	pool->space.now_ns += 1ull << 30;
	owner->dead += 2000;
	dv->moved += 1000; /* within the pool, so not released */
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 929);
	pool->space.pressure = false; /* nobody works on it: it shows nothing */
	pool->space.now_ns += 1ull << 30;
	owner->dead += 5000;
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 929);
	pool->space.pressure = true;
	pace->measured = false;
	pool->space.now_ns += 1ull << 20;
	owner->dead += 0x3ffffffe;
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 0x3fffffff);
	fby_pace_tick(&pool->drain, 0); /* at the same moment */
	EXPECT(pace->rate == 0x3fffffff);
	pool->space.now_ns += 1ull << 30;
	owner->dead += 0x3fffffff; /* that many are an error */
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 0x3fffffff);
	pool->space.now_ns += 1ull << 30;
	fby_pace_tick(&pool->drain, 0);
	EXPECT(pace->rate == 0x3fffffff - 0x7ffffff);
	pool_restore();
}

/* Tests the numbers for pools larger than this one. */
static void levels(void)
{
	pool->space.owed = 0;
	pool->space.store.sb.nchunks = 80;
	pool->space.nfree = 10;
	EXPECT(!fby_short(&pool->space));
	pool->space.nfree = 9;
	EXPECT(fby_short(&pool->space));
	pool->space.store.sb.nchunks = 16;
	pool->space.nfree = 4;
	EXPECT(!fby_short(&pool->space) && fby_reserve(&pool->space) == 2);
	pool->space.nfree = 3;
	EXPECT(fby_short(&pool->space));
	pool->space.store.sb.nchunks = 15;
	EXPECT(fby_reserve(&pool->space) == 1);
	pool->space.store.sb.nchunks = 256;
	pool->space.owner[0].nchunks = 200;
	pool->space.attached = 1;
	pool->space.nfree = 256 - 240;
	fby_level_update(&pool->space, 0);
	EXPECT(pool->space.owner[0].level == 0);
	pool->space.nfree = 256 - 251;
	fby_level_update(&pool->space, 0);
	EXPECT(pool->space.owner[0].level == 512);
	pool->space.nfree = 2;
	fby_level_update(&pool->space, 0);
	EXPECT(pool->space.owner[0].level == 1024);
	pool->drain.volume[0].pace.rate = 127; /* a sixteenth of it, and 8 at least */
	fby_level_update(&pool->space, 0);
	EXPECT(fby_pace_intake(&pool->drain, 0) == 8);
	pool->drain.volume[0].pace.rate = 144;
	fby_level_update(&pool->space, 0);
	EXPECT(fby_pace_intake(&pool->drain, 0) == 9);
	pool_restore();
}

/* A volume that is attached in a full pool is throttled from its first write on. */
static void level_of_attach(void)
{
	static u8 memory[16 * 1024 + FBY_PAGE] __attribute__((aligned(4096)));
	struct fby_attach a = { .identity = "memory", .origin_sectors = VOLUME_SECTORS, .round_pages = 64,
				.nrequests = 1, .buffer_bytes = FBY_PAGE, .mem = memory, .mem_bytes = sizeof(memory) };

	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE);
	pool->space.owner[0].level = 0;
	pool->space.owner[0].recovered = 1u << 20;
	EXPECT(fby_volume_attach(pool, 0, &a) == FBY_DONE && fby_write_throttled(pool, 0));
	pool_restore();
}

/* A pool has 100 chunks of 8 pages for writers: 576 pages for bursts, and 684 at most. */
static void large_pool(u64 live, u64 a, u64 b, u64 c)
{
	u64 counted[] = { a, b, c };

	eight_pages();
	pool->space.store.sb.nchunks = 102;
	pool->space.owed = 0;
	pool->space.nfree = 102;
	pool->space.live = live;
	for (u32 v = 0; v < 3; v++) {
		pool->space.owner[v].counted = counted[v];
		pool->space.owner[v].nchunks = 0;
	}
}

static u32 shared(u64 a, u64 b, u64 c, bool first_attached)
{
	u32 share;

	large_pool(0, a, b, c);
	pool->space.owner[0].active = first_attached;
	fby_share_update(&pool->space);
	EXPECT(pool->space.attached == 2u + first_attached);
	share = pool->space.share;
	pool_restore();
	return share;
}

/* The pool is divided among the volumes that hold at least half of such a share; pages of the
 * others are subtracted. */
static void shares(void)
{
	EXPECT(shared(0, 0, 0, true) == 684);
	EXPECT(shared(550, 100, 20, true) == 564);
	EXPECT(shared(350, 250, 20, true) == 332);
	EXPECT(shared(114, 114, 114, true) == 228);
	EXPECT(shared(113, 114, 114, true) == 343);
	EXPECT(shared(300, 350, 0, false) == 384);
	EXPECT(shared(600, 0, 0, false) == 84 && shared(684, 0, 0, false) == 0 && shared(2000, 7, 0, false) == 0);
}

static u32 level(u32 share, u64 mine, u64 live)
{
	u32 l;

	large_pool(live, mine, 0, 0);
	pool->space.opt.high_watermark = mine & 1 ? 61 : 60; /* half of 161 is 80, too */
	pool->space.share = share;
	fby_level_update(&pool->space, 0);
	l = pool->space.owner[0].level;
	pool_restore();
	return l;
}

/* Tests the level of a volume that holds its share, more than that, and less than half of it. */
static void live_levels(void)
{
	EXPECT(level(680, 600, 576) == 0 && level(680, 600, 577) == 9 && level(680, 600, 630) == 512);
	EXPECT(level(680, 340, 630) == 512 && level(680, 680, 630) == 512);
	EXPECT(level(680, 722, 630) == 512 + 252 && level(680, 765, 630) == 1024 && level(680, 722, 570) == 0);
	EXPECT(level(680, 600, 684) == 1024);
	EXPECT(level(400, 100, 760) == 269 && level(500, 200, 766) == 455 && level(400, 60, 760) == 0);
	EXPECT(level(400, 10, 800) == 393 && level(500, 201, 766) == 461);
	EXPECT(level(400, 199, 950) == 1024 && level(400, 100, 1000) == 1024);
}

/* Tests the level by chunks in use, for volumes that use many. */
static u32 use_level(u32 mine, u32 attached, u32 nfree)
{
	u32 l;

	large_pool(0, 0, 0, 0);
	pool->space.owner[0].nchunks = mine;
	pool->space.attached = attached;
	pool->space.nfree = nfree;
	fby_level_update(&pool->space, 0);
	l = pool->space.owner[0].level;
	pool_restore();
	return l;
}

static void use_levels(void)
{
	EXPECT(use_level(25, 2, 5) == 0 && use_level(26, 2, 5) == 512 && use_level(51, 1, 5) == 0);
	EXPECT(use_level(52, 1, 8) == 0 && use_level(52, 1, 7) == 170 && use_level(52, 1, 2) == 1024);
	EXPECT(use_level(2, 60, 2) == 0 && use_level(3, 60, 2) == 1024);
}

static bool pressed(u64 live, bool before)
{
	bool now;

	large_pool(live, 0, 0, 0);
	pool->space.owed = 10;
	pool->space.pressure = before;
	fby_pressure_update(&pool->space);
	now = pool->space.pressure;
	pool_restore();
	return now;
}

/* 736 pages are owed to nobody.  With them, pressure begins at 60 percent and ends at 50. */
static void pressures(void)
{
	EXPECT(!pressed(441, false) && pressed(442, false));
	EXPECT(pressed(369, true) && !pressed(368, true) && pressed(441, true) && !pressed(369, false));
}

/* Nothing but lost blocks is left.  A single round carries them again if that frees a chunk, and if
 * chunks are short. */
static bool packed(u32 nchunks, u32 lost, u32 cap, u32 nfree)
{
	struct fby_destage *d = &pool->drain.volume[2].destage;
	bool wanted;

	pool->space.pressure = true;
	pool->space.nfree = nfree;
	pool->space.owner[2].nchunks = nchunks;
	pool->cache.volume[2].lost_blocks = lost;
	d->cap = cap;
	d->drain = true;
	eight_pages();
	wanted = fby_destage_wanted(&pool->drain, 2);
	EXPECT(!d->drain);
	pool_restore();
	return wanted;
}

static void packing(void)
{
	EXPECT(packed(2, 8, 64, 1) && !packed(2, 9, 64, 1) && packed(3, 16, 64, 1) && !packed(3, 17, 64, 1));
	EXPECT(!packed(1, 0, 64, 1) && !packed(1, 1, 64, 1) && !packed(2, 8, 64, 2));
	EXPECT(packed(9, 48, 64, 1) && !packed(9, 49, 64, 1));
}

/* Each attached volume is measured at each tick. */
static void ticks(void)
{
	struct fby_io io;
	u64 next;

	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE);
	EXPECT(fby_destage_step(pool, 1000000000ull, &io, &next, &wake) == FBY_DONE);
	EXPECT(pool->drain.volume[0].pace.sample_ns == 1000000000ull && pool->drain.volume[1].pace.sample_ns == 1000000000ull);
	EXPECT(pool->drain.volume[2].pace.sample_ns == 0 && pool->space.attached == 2);
	EXPECT(fby_destage_step(pool, 1099999999ull, &io, &next, &wake) == FBY_DONE && next == 1100000000ull);
	EXPECT(pool->drain.volume[0].pace.sample_ns == 1000000000ull);
	EXPECT(fby_destage_step(pool, 1100000000ull, &io, &next, &wake) == FBY_DONE);
	EXPECT(pool->drain.volume[0].pace.sample_ns == 1100000000ull);
	pool_restore();
}

/* Tests the level half way between the start of spacing and full, in a pool of 256 GiB. */
static void large_level(void)
{
	struct fby_owner *owner = &pool->space.owner[0];
	u64 pages = 1ull << 25;

	eight_pages();
	pool->space.store.sb.nchunks = 1u << 22;
	pool->space.owed = 0;
	pool->space.share = 1;
	owner->counted = 1;
	pool->space.nfree = 1u << 21;
	pool->space.live = pages / 128 * 105;
	fby_level_update(&pool->space, 0);
	EXPECT(owner->level >= 511 && owner->level <= 513);
	pool_restore();
}

/* Tests a round's pages, and which volumes the throttle slows. */
static void rounds(void)
{
	struct fby_drained *dv = &pool->drain.volume[0];

	dv->pace.measured = true;
	dv->pace.rate = 400;
	EXPECT(fby_pace_round(&pool->drain, 0, 1000) == 100 && fby_pace_round(&pool->drain, 0, 99) == 99);
	dv->pace.rate = 255;
	EXPECT(fby_pace_round(&pool->drain, 0, 1000) == 64);
	pool_restore();
}

/* The media writes of an entry without data. */
static void without_data(void)
{
	struct fby_write w;

	memset(&w, 0xff, sizeof(w));
	EXPECT(fby_begin(&pool->cache, &w, 0, FBY_KIND_ZERO, 30 * P, P, 0) == FBY_DONE && w.wake == 0);
	fby_write_copy(pool, &w, NULL, 0, 0);
	EXPECT(w.page[0].data_crc == 0 && w.page[0].flags == 0 && w.page[0].lost == 0 && w.page[0].valid == 0xff);
	fby_write_commit(pool, &w);
	fby_write_publish(pool, &w);
	EXPECT(get(30, buffer) == FBY_DONE && buffer[0] == 0 && buffer[FBY_PAGE - 1] == 0);
	pool_restore();
}

void test_paths(void)
{
	pieces();
	due();
	unpinned();
	busy();
	verifying();
	aged();
	timed();
	neighbours();
	flush_fails();
	moved(0);
	moved(1);
	recovered();
	latency();
	delay();
	rate();
	levels();
	large_level();
	level_of_attach();
	shares();
	live_levels();
	use_levels();
	pressures();
	packing();
	ticks();
	rounds();
	without_data();
}
