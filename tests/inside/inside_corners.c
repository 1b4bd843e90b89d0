// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_corners.c - branches that no other test reaches: calls at a wrong time, media that cannot
 * be read, requests and pools at their limits.
 */
#include "inside.h"

#define P FBY_PAGE_SECTORS

static u8 buffer[FBY_PAGE];
static u32 wake;

static int put(u16 volume, u64 block)
{
	return write_block(volume, block, buffer, &wake);
}

static int get(u16 volume, u64 block)
{
	u8 origin, lost;

	return fby_read_block(pool, volume, block, 0, P, buffer, &origin, &lost);
}

/* --- format, open, close -------------------------------------------------- */

static int format(u64 bytes, u32 chunk_size, u32 nvolumes)
{
	struct fby_media m = media;
	struct fby_format f = { .chunk_size = chunk_size, .nvolumes = nvolumes };
	int r;

	m.size = bytes;
	r = fby_format(&m, &f);
	pool_restore();
	return r;
}

static void formats(void)
{
	EXPECT(format(media.size, CHUNK_BYTES, 1) == FBY_DONE);
	EXPECT(format(5 * CHUNK_BYTES, CHUNK_BYTES, 1) == FBY_DONE);
	EXPECT(format(5 * CHUNK_BYTES - 1, CHUNK_BYTES, 1) == -FBY_E_MEDIA_SMALL);
	EXPECT(format(media.size, 0, 0) == -FBY_E_MEDIA_SMALL); /* chunks of 2 MiB */
	EXPECT(format(media.size, CHUNK_BYTES + 4096, 1) == -FBY_E_GEOMETRY);
	EXPECT(format(media.size, CHUNK_BYTES / 2, 1) == -FBY_E_GEOMETRY);
	EXPECT(format(media.size, FBY_CHUNK_PAGES_MAX * FBY_PAGE * 2, 1) == -FBY_E_GEOMETRY);
	EXPECT(format(media.size, CHUNK_BYTES, FBY_VOLUMES_MAX + 1) == -FBY_E_GEOMETRY);
	EXPECT(format(media.size, CHUNK_BYTES, FBY_VOLUMES_MAX) == FBY_DONE);
}

static void opens(void)
{
	u64 bytes = pool->memory_bytes;
	void *mem = aligned_alloc(FBY_PAGE, fby_round_up(bytes + 64, FBY_PAGE));
	struct fby_options good = { .nslots = 2 }, bad = { .nslots = FBY_SLOTS_MAX + 1 };
	struct fby_pool *p;

	memset(mem, 0, bytes + 64);
	EXPECT(fby_pool_open(&p, mem, bytes - 1, &media, &good) == -FBY_E_NO_MEMORY);
	EXPECT(fby_pool_open(&p, (u8 *)mem + 8, bytes, &media, &good) == -FBY_E_NO_MEMORY);
	EXPECT(fby_pool_open(&p, mem, bytes, &media, &bad) == -FBY_E_GEOMETRY);
	memset(media.base, 0, media.size);
	EXPECT(fby_pool_open(&p, mem, bytes, &media, &good) == -FBY_E_NO_SUPERBLOCK);
	pool_restore();
	((struct fby_superblock *)media.base)->features_ro = 1;
	((struct fby_superblock *)media.base)->crc =
		fby_crc32c(0, media.base, sizeof(struct fby_superblock) - 4);
	memset(media.base + FBY_SB_COPY_OFFSET, 0, FBY_PAGE);
	EXPECT(fby_pool_open(&p, mem, bytes, &media, &good) == -FBY_E_FEATURE_RO);
	good.read_only = true;
	EXPECT(fby_pool_open(&p, mem, bytes, &media, &good) == FBY_DONE && p->recovery.report.chunk_headers_lost == 1);
	EXPECT(fby_recover_chunks(p, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(p, NULL) == FBY_DONE);
	EXPECT(fby_recover_finish(p, NULL) != FBY_DONE); /* once */
	EXPECT(fby_pool_close(p) == FBY_DONE);
	free(mem);
	pool_restore();
}

static void closes(void)
{
	struct fby_io io;
	u64 next;

	pool->space.slot[1].busy = 1;
	EXPECT(fby_pool_close(pool) == -FBY_E_BUSY && pool->space.usable);
	EXPECT(pool->space.slot[0].busy == 0 && put(0, 50) == FBY_DONE);
	pool->space.slot[1].busy = 0;
	pool->drain.volume[1].destage.outstanding = 1;
	EXPECT(fby_pool_close(pool) == -FBY_E_BUSY && fby_volume_detach(pool, 1) == -FBY_E_BUSY);
	pool->drain.volume[1].destage.outstanding = 0;
	EXPECT(fby_pool_close(pool) == FBY_DONE && !pool->space.usable && (pool->space.store.sb.flags & FBY_SB_CLEAN));
	EXPECT(fby_pool_close(pool) == FBY_DONE);
	EXPECT(fby_destage_step(pool, 1, &io, &next, &wake) == FBY_DONE && next == ~0ull);
	pool_restore();
}

/* --- media that cannot be read -------------------------------------------- */

static const struct fby_media_ops *sound;
static u64 bad_first, bad_end;

static int failing_read(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	return at < bad_end && at + n > bad_first ? 1 : sound->read_crc(m, dst, at, n, crc);
}

static void unreadable(void)
{
	struct fby_media_ops failing = *media.ops;
	u32 place = FIRST_PAGE + 1, page = fby_page_number(&pool->space, open_chunk, place);
	struct fby_volume_record record;
	struct fby_page_line line;
	struct fby_open_line open;
	struct fby_seal_line seal;
	struct fby_probe probe;
	bool repaired;

	sound = media.ops;
	failing.read_crc = failing_read;
	media.ops = &failing;
	bad_first = 0;
	bad_end = media.size;
	EXPECT(!fby_record_read(&pool->space.store, 0, 0, &record) && !fby_open_line_read(&pool->space.store, 0, 0, &open));
	EXPECT(!fby_seal_line_read(&pool->space.store, 0, 0, &seal) && !fby_page_line_read(&pool->space, 0, place, &line, &repaired));
	EXPECT(fby_page_seq(&pool->cache, page, 77) == 77);
	fby_probe(&media, &probe);
	EXPECT(probe.state == FBY_PROBE_BLANK); /* nothing tells of a pool */
	bad_end = FBY_VT_OFFSET;
	fby_probe(&media, &probe);
	EXPECT(probe.state == FBY_PROBE_DAMAGED && !probe.primary_valid && !probe.copy_valid);
	EXPECT(fby_page_seq(&pool->cache, page, 77) != 77);
	bad_first = fby_page_at(&pool->space.store, page) + FBY_PAGE - 64;
	bad_end = bad_first + 64;
	EXPECT(get(0, 16) == -FBY_E_LOST && get(0, 17) == FBY_DONE && get(0, 0) == FBY_DONE);
	media.ops = sound;
	EXPECT(get(0, 16) == -FBY_E_LOST); /* it stays so until it is written */
	EXPECT(put(0, 16) == FBY_DONE && get(0, 16) == FBY_DONE && pool->cache.volume[0].lost_blocks == 0);
	pool_restore();
}

/* An entry whose key in the index differs from the block in its line is reported as not linked. */
static void linked_otherwise(void)
{
	u32 page = fby_page_number(&pool->space, open_chunk, FIRST_PAGE + 1);
	struct fby_entry_info e;

	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE + 1, true, &e) == FBY_DONE && e.valid && e.linked);
	pool->cache.entry[page].key ^= 1;
	EXPECT(fby_entry_info(pool, open_chunk, FIRST_PAGE + 1, true, &e) == FBY_DONE && e.valid && !e.linked);
	pool_restore();
}

/* --- pages ---------------------------------------------------------------- */

static void pages(void)
{
	struct fby_page_line *l = (struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, open_chunk, FIRST_PAGE + 1));
	u32 page = fby_page_number(&pool->space, open_chunk, FIRST_PAGE + 1), slot;
	struct fby_report_block list[80];
	u64 key = fby_key(0, 16);

	l->valid = 0x7f;
	fby_line_finish(pool->space.store.line_seed, l);
	EXPECT(get(0, 16) == -FBY_E_LOST);
	pool_restore();
	l->block = 18;
	fby_line_finish(pool->space.store.line_seed, l);
	EXPECT(get(0, 16) == -FBY_E_LOST);
	pool_restore();

	fby_page_mark(&pool->cache, page - 1, key, FBY_ES_DAMAGED); /* not its page */
	EXPECT(pool->cache.damaged_pages == 0);
	fby_page_mark(&pool->cache, page, key, FBY_ES_DAMAGED);
	fby_page_mark(&pool->cache, page, key, FBY_ES_DAMAGED); /* once */
	EXPECT(pool->cache.damaged_pages == 1 && pool->cache.volume[0].lost_blocks == 1 && pool->cache.ndamaged == 1);
	EXPECT(fby_carry(&pool->cache, 0, 16, page - 1, true, &slot, &wake) == FBY_DONE && slot == ~0u); /* not its page */
	EXPECT(fby_carry(&pool->cache, 0, 99, page, true, &slot, &wake) == FBY_DONE && slot == ~0u);
	EXPECT(pool->space.chunk[open_chunk].fill == FIRST_PAGE + 3);
	EXPECT(fby_carry(&pool->cache, 0, 16, page, true, &slot, &wake) == FBY_DONE && slot == 0);
	EXPECT(pool->space.chunk[open_chunk].fill == FIRST_PAGE + 4);
	EXPECT(pool->cache.volume[0].lost_blocks == 1 && pool->cache.volume[0].lost_only == 1 && get(0, 16) == -FBY_E_LOST);
	pool->space.slot[0].busy = pool->space.slot[1].busy = 1;
	EXPECT(fby_move(&pool->cache, 0, 17, page + 1, FBY_BEGIN_RELOCATE, &slot, &wake) == FBY_WAIT_SLOT && slot == ~0u);
	pool->space.slot[0].busy = pool->space.slot[1].busy = 0;
	pool->cache.ndamaged = FBY_DAMAGED_RING + 5; /* it has come round */
	pool->cache.damaged[4].block = 444;
	EXPECT(fby_damaged_list(pool, list, 80) == FBY_DAMAGED_RING && list[0].block == 444);
	pool_restore();
}

/* --- limits --------------------------------------------------------------- */

static void large(void)
{
	struct fby_bypass b[33], past;
	u64 done = 0, sectors = 1ull << 40;

	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE);
	EXPECT(fby_volume_rebind(pool, 2, "memory", sectors) == FBY_DONE);
	pool->space.owner[2].attached = true;
	EXPECT(fby_bypass_begin(pool, &past, 2, 3, 8192 * P, 1) == FBY_DONE && past.nsectors == 2048 * P - 3);
	fby_bypass_end(pool, &past, 0, &wake);
	EXPECT(fby_range(pool, 2, FBY_KIND_DISCARD, 0, sectors, &done, &past, &wake) == FBY_ORIGIN);
	EXPECT(past.nsectors == 65536ull * P && done == 0);
	fby_bypass_end(pool, &past, 0, &wake);
	EXPECT(fby_range(pool, 2, FBY_KIND_ZERO, 0, sectors, &done, &past, &wake) == FBY_ORIGIN);
	EXPECT(past.nsectors == 2048 * P && done == 0);
	fby_bypass_end(pool, &past, 0, &wake);
	for (u32 i = 0; i < 32; i++)
		EXPECT(fby_bypass_begin(pool, &b[i], 2, i * P, P, 1) == FBY_DONE);
	EXPECT(fby_bypass_begin(pool, &b[32], 2, 40 * P, P, 1) == FBY_WAIT_BLOCK);
	fby_bypass_end(pool, &b[7], 0, &wake);
	EXPECT(fby_bypass_begin(pool, &b[32], 2, 40 * P, P, 1) == FBY_DONE);
	EXPECT(fby_volume_detach(pool, 2) == -FBY_E_BUSY);
	pool_restore();

	fby_store(&pool->space.owner[0].level, 512u);
	fby_store(&pool->drain.volume[0].pace.rate, 1000000u);
	fby_store(&pool->drain.volume[0].pace.next_ns, ~0ull / 2); /* a clock that went back */
	EXPECT(fby_write_delay(pool, 0, P, 10000000000ull) == 1000000000);
	EXPECT(pool->drain.volume[0].pace.next_ns == 10000000000ull + 1000000000 + 1000);
	pool_restore();
}

/* A volume is entitled to two chunks, and to as many as hold 64 pages if that is at most an eighth
 * of the pool. */
static void entitled(void)
{
	static const struct { u32 pages, nchunks, chunks; } is[] = {
		{ 16, 4, 2 }, { 16, 23, 2 }, { 16, 24, 3 }, { 16, 39, 4 }, { 16, 40, 5 }, { 16, 4000, 5 },
		{ 32, 23, 2 }, { 32, 24, 3 }, { 32, 4000, 3 }, { 64, 4000, 2 }, { 512, 63, 2 },
	};
	struct fby_store st = pool->space.store;

	for (u32 i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
		st.chunk_pages = is[i].pages;
		st.first_page = fby_first_page(st.chunk_pages);
		st.sb.nchunks = is[i].nchunks;
		EXPECT(fby_entitled(&st) == is[i].chunks);
	}
	EXPECT(pool->space.entitled == 2);
}

/* In a pool of 20 chunks a volume leaves two chunks in reserve, and two for each other volume that
 * has none. */
static void kept_free(u32 volumes)
{
	struct fby_media m = { .size = 21 * CHUNK_BYTES, .ops = media.ops };
	struct fby_format f = { .uuid = { 7 }, .chunk_size = CHUNK_BYTES, .nvolumes = 2 };
	struct fby_volume_spec s = { .name = "a", .identity = "i", .origin_sectors = 8192, .block_size = 512 };
	struct fby_options o = { .nslots = 1 };
	struct fby_attach a = { .origin_sectors = 8192, .identity = "i", .round_pages = 64, .nrequests = 1,
				.buffer_bytes = FBY_PAGE };
	u32 kept = 2 + (volumes - 1) * pool->space.entitled, done = 0;
	void *attach[2], *memory;
	struct fby_probe probe;
	struct fby_pool *p;
	u64 bytes;
	u16 index;

	m.base = aligned_alloc(FBY_PAGE, m.size);
	memset(m.base, 0, m.size);
	EXPECT(fby_format(&m, &f) == FBY_DONE);
	fby_probe(&m, &probe);
	bytes = fby_pool_bytes(&probe.sb, 1);
	memory = aligned_alloc(FBY_PAGE, fby_round_up(bytes, FBY_PAGE));
	memset(memory, 0, bytes);
	EXPECT(fby_pool_open(&p, memory, bytes, &m, &o) == FBY_DONE && fby_recover_chunks(p, 0, 20) == FBY_DONE);
	EXPECT(fby_recover_finish(p, NULL) == FBY_DONE);
	a.mem_bytes = fby_volume_bytes(p, 64, 1, FBY_PAGE);
	for (u32 v = 0; v < volumes; v++, s.name[0]++) {
		a.mem = attach[v] = aligned_alloc(FBY_PAGE, a.mem_bytes);
		memset(a.mem, 0, a.mem_bytes);
		EXPECT(fby_volume_add(p, &s, &index) == FBY_DONE && fby_volume_attach(p, index, &a) == FBY_DONE);
	}
	for (u64 block = 0; fby_write(p, 0, block * P, P, buffer, &done, &wake) == FBY_DONE; block++)
		;
	EXPECT(p->space.nfree == kept && p->space.owner[0].nchunks == 20 - kept);
	/* For the first chunk of a volume that has none, two free chunks are enough: the second one
	 * wakes it. */
	p->space.nfree = 1;
	wake = 0;
	fby_wait_prepare(p, FBY_WAIT_SPACE);
	fby_dead_row(&p->space, NULL)[p->space.owner[0].first] += fby_chunk_live(&p->space, p->space.owner[0].first);
	fby_chunk_sweep(&p->space, 20, &wake);
	EXPECT(p->space.nfree == 2 && (wake & FBY_WAKE_SPACE));
	for (u32 v = 0; v < volumes; v++)
		free(attach[v]);
	free(memory);
	free(m.base);
}

/* --- calls at a wrong time ------------------------------------------------ */

static void refused(void)
{
	struct fby_volume_spec spec = { .name = "n", .identity = "i", .origin_sectors = 8, .block_size = 512 };
	struct fby_flush flush = { 0 };
	struct fby_attach a = { 0 };
	u16 index;

	EXPECT(fby_flush_begin(pool, 3, &flush) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_drain(pool, 3, true) == -FBY_E_NO_VOLUME && fby_volume_attach(pool, 3, &a) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_VOLUME_TABLE_FULL);
	memset(spec.identity, 'i', sizeof(spec.identity));
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_NAME);
	spec.identity[5] = 0;
	memset(spec.name, 'n', sizeof(spec.name));
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_NAME);
	spec.name[5] = 0;
	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE && fby_volume_drain(pool, 2, true) == -FBY_E_VOLUME_DETACHED);
	EXPECT(fby_flush_begin(pool, 2, &flush) == -FBY_E_VOLUME_DETACHED);
	pool->space.owner[2].damaged = true;
	pool->space.owner[2].rec.kind = FBY_OWNER_FREE;
	/* the damaged volume may come back */
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_VOLUME_TABLE_FULL);
	EXPECT(fby_volume_remove(pool, 2, false) == -FBY_E_VOLUME_DIRTY);
	EXPECT(fby_volume_remove(pool, 2, true) == FBY_DONE && !pool->space.owner[2].damaged);
	EXPECT(fby_volume_attach(pool, 2, &a) == -FBY_E_NO_VOLUME);
	spec.block_size = 4096;
	spec.origin_sectors = 9;
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_GEOMETRY);
	spec.origin_sectors = 16;
	EXPECT(fby_volume_add(pool, &spec, &index) == FBY_DONE && index == 2 && pool->cache.volume[2].blocks == 2);
	pool->space.opt.read_only = true;
	EXPECT(fby_volume_add(pool, &spec, &index) == -FBY_E_READ_ONLY);
	EXPECT(fby_volume_drain(pool, 0, true) == -FBY_E_READ_ONLY && fby_flush_begin(pool, 0, &flush) == FBY_DONE);
	pool_restore();
	EXPECT(strcmp(fby_error_name(-FBY_E_RANGE), fby_error_name(-100000)) != 0);
	EXPECT(strcmp(fby_error_name(1), fby_error_name(-100000)) == 0 || fby_error_name(1) != NULL);
}

/* A chunk whose pages were moved is held until their copies are sealed. */
static void held(void)
{
	pool->drain.moved_from = closed_chunk;
	pool->drain.moved_slots = 2;
	pool->space.chunk[closed_chunk].pinned = FBY_PIN_MOVED;
	pool->space.slot[1].busy = 1; /* a copy went through it */
	EXPECT(fby_relocate_step(&pool->drain, &wake) && pool->drain.moved_from == closed_chunk && pool->drain.moved_slots == 2);
	fby_relocate_settle(&pool->drain, 1, &wake);
	EXPECT(pool->drain.moved_from == closed_chunk && pool->space.chunk[closed_chunk].pinned == FBY_PIN_MOVED);
	pool->space.slot[1].busy = 0;
	EXPECT(fby_relocate_step(&pool->drain, &wake) && pool->drain.moved_from == FBY_NO_CHUNK);
	EXPECT(pool->space.chunk[closed_chunk].pinned == 0 && pool->space.slot[1].busy == 0);
	pool_restore();
	pool->drain.moved_from = closed_chunk;
	pool->space.chunk[closed_chunk].pinned = FBY_PIN_MOVED;
	EXPECT(fby_volume_detach(pool, 1) == FBY_DONE && pool->drain.moved_from == closed_chunk);
	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE && pool->drain.moved_from == FBY_NO_CHUNK);
	EXPECT(pool->space.chunk[closed_chunk].pinned == 0 && pool->space.wake_owed == 0); /* nobody waits */
	pool_restore();
}

void test_corners(void)
{
	entitled();
	formats();
	opens();
	closes();
	unreadable();
	linked_otherwise();
	pages();
	large();
	refused();
	held();
	kept_free(1);
	kept_free(2);
}
