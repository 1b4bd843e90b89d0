// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_destage.c - destage and relocation with an event between two of their steps, or within
 * one.  A page is replaced while it is read, the gate or a slot is held, or an origin fails.
 * Threads do this by chance, and the test does it at a chosen place.
 */
#include "inside.h"

#include "drain/round.h"

#define P FBY_PAGE_SECTORS

static u8 buffer[FBY_PAGE];
static const u64 now = 1000000000ull;
static u32 wake;

static int put(u16 volume, u64 block)
{
	return write_block(volume, block, buffer, &wake);
}

static int zero(u64 block)
{
	struct fby_bypass past;
	u64 done = 0;

	return fby_range(pool, 0, FBY_KIND_ZERO, block * P, P, &done, &past, &wake);
}

static int get(u64 block)
{
	u8 origin, lost;

	return fby_read_block(pool, 0, block, 0, P, buffer, &origin, &lost);
}

static u32 page_of(u64 block)
{
	struct fby_found f;

	fby_index_find(&pool->cache, fby_key(0, block), &f);
	return f.page;
}

static int step(struct fby_io *io)
{
	u64 next;

	return fby_destage_step(pool, now, io, &next, &wake);
}

static int next_io(struct fby_io *io)
{
	return next_request(now, io, &wake);
}

/* Runs up to the phase, and completes all requests. */
static void until(enum fby_phase phase)
{
	struct fby_io io;

	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 1000 && pool->drain.volume[0].destage.phase != phase; i++)
		if (step(&io) == FBY_ORIGIN)
			fby_destage_complete(pool, io.id, 0);
	EXPECT(pool->drain.volume[0].destage.phase == phase);
}

static void drained(void)
{
	struct fby_io io;

	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	while (next_io(&io) == FBY_ORIGIN)
		fby_destage_complete(pool, io.id, 0);
	EXPECT(fby_volume_clean(pool, 0));
}

/* --- while a page is read -------------------------------------------------- */

static const struct fby_media_ops *sound;
static struct fby_media_ops hooked;
static u64 where;
static void (*meanwhile)(void);

static int hooked_read(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	int r = sound->read_crc(m, dst, at, n, crc);

	if (meanwhile && at <= where && where < at + n) {
		void (*call)(void) = meanwhile;

		meanwhile = NULL;
		call();
	}
	return r;
}

/* Calls the function the next time that the block's data is read, and only then. */
static void when_read(u64 block, void (*call)(void))
{
	where = fby_page_at(&pool->space.store, page_of(block));
	meanwhile = call;
	if (media.ops != &hooked) {
		sound = media.ops;
		hooked = *sound;
		hooked.read_crc = hooked_read;
		media.ops = &hooked;
	}
}

static void unhook(void)
{
	EXPECT(meanwhile == NULL);
	media.ops = sound;
	pool_restore();
}

static void put_3(void)
{
	EXPECT(put(0, 3) == FBY_DONE);
}

static void reopen(void)
{
	pool->space.chunk[open_chunk].epoch++;
}

/* A page is replaced while it is copied for the origin, so the copy is not written. */
static void replaced(void)
{
	struct fby_io io;

	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE && step(&io) == FBY_AGAIN);
	when_read(3, put_3);
	EXPECT(next_io(&io) == FBY_ORIGIN && io.sector == 0 && io.nsectors == 3 * P);
	fby_destage_complete(pool, io.id, 0);
	EXPECT(next_io(&io) == FBY_ORIGIN && io.sector == 4 * P && io.nsectors == 4 * P);
	fby_destage_complete(pool, io.id, 0);
	drained();
	unhook();
}

/* The state is that of inside_paths.c: blocks 0 to 7, 16 and 17 are listed, and 8, 15, 18 and 19
 * are later. */
static void with_neighbours(void)
{
	cpu = 1;
	EXPECT(put(0, 100) == FBY_DONE);
	pool->space.slot[1].busy = 1;
	cpu = 0;
	EXPECT(put(0, 100) == FBY_DONE && put(0, 18) == FBY_DONE && put(0, 19) == FBY_DONE);
	EXPECT(put(0, 8) == FBY_DONE && put(0, 15) == FBY_DONE);
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
}

/* A neighbour's chunk is opened again while the neighbour is copied. */
static void neighbour_gone(void)
{
	struct fby_io io;

	with_neighbours();
	when_read(8, reopen);
	EXPECT(next_io(&io) == FBY_ORIGIN && io.sector == 0 && io.nsectors == 8 * P);
	unhook();
}

/* A neighbour's chunk has pages that are clean for an earlier origin. */
static void neighbour_of_another(void)
{
	struct fby_io io;

	with_neighbours();
	pool->space.chunk[open_chunk].clean_for = pool->space.owner[0].attachment + 1;
	EXPECT(next_io(&io) == FBY_ORIGIN && io.sector == 0 && io.nsectors == 8 * P);
	fby_destage_complete(pool, io.id, 0);
	EXPECT(next_io(&io) == FBY_ORIGIN && io.sector == 16 * P && io.nsectors == 2 * P);
	pool_restore();
}

/* The chunk of a listed page is opened again, so no neighbour of the page is written along. */
static void listed_gone(void)
{
	struct fby_io io;

	with_neighbours();
	EXPECT(step(&io) == FBY_AGAIN && step(&io) == FBY_AGAIN);
	pool->space.chunk[open_chunk].seq_min = FBY_NO_SEQ;
	pool->drain.volume[0].destage.pos = BLOCKS; /* blocks 16 and 17 alone, not 15 for their sake */
	EXPECT(next_io(&io) == FBY_ORIGIN && io.op == FBY_IO_FLUSH);
	pool_restore();
}

/* --- the gate ---------------------------------------------------------------- */

/* A client's flush fails when the round has written everything.  The round is repeated, and holds
 * the gate from its start. */
static void again_with_gate(void)
{
	struct fby_flush t = { 0 };
	struct fby_io io;

	until(FBY_PH_FLUSH);
	EXPECT(fby_flush_begin(pool, 0, &t) == FBY_ORIGIN && fby_volume_detach(pool, 0) == -FBY_E_BUSY);
	EXPECT(next_io(&io) == FBY_DONE && pool->drain.volume[0].destage.phase == FBY_PH_FLUSH);
	EXPECT(fby_flush_end(pool, &t, 5, &wake) == -FBY_E_ORIGIN_IO);
	EXPECT(step(&io) == FBY_AGAIN && pool->drain.volume[0].destage.phase == FBY_PH_IDLE && pool->drain.volume[0].destage.gate);
}

static bool gate_free(void)
{
	struct fby_flush t = { 0 };

	return fby_flush_begin(pool, 0, &t) == FBY_ORIGIN && fby_flush_end(pool, &t, 0, &wake) == FBY_DONE;
}

static void gate_left(void)
{
	struct fby_flush t = { 0 };
	struct fby_io io;

	again_with_gate(); /* nothing is wanted any more */
	wake = 0;
	EXPECT(fby_flush_begin(pool, 0, &t) == FBY_WAIT_FLUSH && fby_volume_drain(pool, 0, false) == FBY_DONE);
	EXPECT(next_io(&io) == FBY_DONE && (wake & FBY_WAKE_FLUSH) && !pool->drain.volume[0].destage.gate && gate_free());
	pool_restore();

	again_with_gate(); /* its writes fail */
	EXPECT(next_io(&io) == FBY_ORIGIN && io.op == FBY_IO_WRITE);
	fby_destage_complete(pool, io.id, 5);
	wake = 0;
	while (next_io(&io) == FBY_ORIGIN)
		fby_destage_complete(pool, io.id, 5);
	EXPECT(pool->drain.volume[0].destage.phase == FBY_PH_BACKOFF && (wake & FBY_WAKE_FLUSH) && gate_free());
	pool_restore();

	again_with_gate(); /* it goes well */
	drained();
	EXPECT(fby_owner_pages(&pool->space, 0) == 0 && pool->drain.volume[0].rounds == 1);
	EXPECT(pool->space.nfree == NCHUNKS - 1); /* its chunks, at once */
	pool_restore();

	again_with_gate(); /* and detached in between */
	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE);
	pool_restore();
}

/* The watermark has passed the pages, and they are not released yet.  No later step could release
 * them. */
static void released_by(bool close)
{
	char text[200];

	until(FBY_PH_RELEASE);
	EXPECT(fby_owner_pages(&pool->space, 0) != 0);
	EXPECT((close ? fby_pool_close(pool) : fby_volume_detach(pool, 0)) == FBY_DONE);
	EXPECT(fby_owner_pages(&pool->space, 0) == 0);
	pool->space.usable = true;
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	pool_restore();
}

/* --- what is lost -------------------------------------------------------------- */

static void damage_data(u64 block)
{
	memory_at(fby_page_at(&pool->space.store, page_of(block)))[9] ^= 1;
}

/* If the slots or the block are busy, the carry is repeated at once. */
static void carry_waits(void)
{
	u32 bucket = fby_index_bucket(&pool->cache, fby_key(0, 16));
	struct fby_io io;

	damage_data(16);
	until(FBY_PH_CARRY);
	pool->space.slot[0].busy = pool->space.slot[1].busy = 1;
	EXPECT(step(&io) == FBY_AGAIN && step(&io) == FBY_AGAIN && pool->drain.volume[0].destage.phase == FBY_PH_CARRY);
	pool->space.slot[0].busy = pool->space.slot[1].busy = 0;
	EXPECT(fby_index_try(&pool->cache, bucket));
	EXPECT(step(&io) == FBY_AGAIN && step(&io) == FBY_AGAIN && pool->drain.volume[0].destage.phase == FBY_PH_CARRY);
	fby_index_release(&pool->cache, bucket);
	drained();
	EXPECT(pool->cache.volume[0].lost_only == 1 && pool->cache.volume[0].lost_blocks == 1 && get(16) == -FBY_E_LOST);
	pool_restore();
}

/* Some sectors of a block are lost, and the others were written anew.  Those reach the origin. */
static void carry_part(void)
{
	u8 origin, lost;
	u32 done = 0;

	damage_data(16);
	EXPECT(get(16) == -FBY_E_LOST);
	EXPECT(fby_write(pool, 0, 16 * P, 1, buffer, &done, &wake) == FBY_DONE);
	drained();
	EXPECT(fby_read_block(pool, 0, 16, 0, 1, buffer, &origin, &lost) == FBY_ORIGIN && origin == 1 && lost == 0);
	EXPECT(fby_read_block(pool, 0, 16, 1, 7, buffer, &origin, &lost) == -FBY_E_LOST && origin == 0 && lost == 0xfe);
	pool_restore();
}

/* There is no room for a copy, and one of two lost blocks was replaced meanwhile.  The cut goes
 * below the other one. */
static void carry_less(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 seq = fby_page_seq(&pool->cache, page_of(16), 0);
	struct fby_io io;

	damage_data(16);
	damage_data(17);
	until(FBY_PH_CARRY);
	pool->cache.entry[page_of(17)].state &= ~FBY_ES_LINKED;
	pool->space.nfree = 0;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT && d->cut == seq - 1 && !d->failed);
	EXPECT(d->n == BLOCKS); /* with block 0, which is older */
	pool_restore();
}

/* An entry of a lost block does not pass for a torn tail, once the watermark has passed the older
 * entry of that block. */
static void carried_sealed(void)
{
	struct fby_recovery_report report;
	const struct fby_chunk *ch;
	u32 page;

	damage_data(16);
	until(FBY_PH_COMMIT);
	page = page_of(16);
	ch = &pool->space.chunk[fby_page_chunk(&pool->space.store, page)];
	EXPECT(ch->sealed == ch->fill && !pool->space.owner[0].held);
	until(FBY_PH_IDLE);
	memset(memory_at(fby_line_at(&pool->space.store, fby_page_chunk(&pool->space.store, page), fby_page_place(&pool->space.store, page))), 0, FBY_LINE);
	pool_recover(&report);
	EXPECT(report.holes == 1 && pool->space.live == report.blocks); /* counted before a volume is attached */
	pool_restore();
}

/* Blocks are copied until there is no more room.  Chunks that are empty by then count as room once
 * the copies in them are sealed. */
static void held_is_room(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	for (u64 block = 1; block < 4; block++)
		EXPECT(put(0, block) == FBY_DONE);
	until(FBY_PH_CARRY);
	EXPECT(fby_volume_drain(pool, 0, false) == FBY_DONE);
	for (u32 i = 0; i < d->n; i++)
		d->page[i].keep = (d->page[i].k >= 4 && d->page[i].k < 8) || d->page[i].k == 17; /* all of the closed chunk */
	for (u64 block = 40; block < 40 + DATA_PAGES - 4; block++)
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(pool->space.chunk[pool->space.slot[0].volume[0].open].fill == pool->space.store.chunk_pages - 4);
	pool->space.nfree = 1; /* kept for what is lost */
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_CARRY);
	EXPECT(pool->space.chunk[closed_chunk].state == FBY_CS_FREE && !pool->space.owner[0].held);
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT);
	EXPECT(pool->drain.volume[0].moved == 5);
	pool_restore();
}

/* A watermark that is already as high is not written again. */
static void committed_before(void)
{
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_io io;
	u64 counter;

	until(FBY_PH_COMMIT);
	counter = owner->rec.counter;
	owner->rec.watermark = pool->drain.volume[0].destage.cut;
	EXPECT(step(&io) == FBY_AGAIN && pool->drain.volume[0].destage.phase == FBY_PH_RELEASE);
	EXPECT(owner->rec.counter == counter);
	pool_restore();
}

/* Most pages of a round are gone, so the round skips them in portions. */
static void long_round(void)
{
	struct fby_destage *d = &pool->drain.volume[2].destage;
	struct fby_attach a = { .origin_sectors = VOLUME_SECTORS, .identity = "memory", .round_pages = 2048,
				.nrequests = 2, .buffer_bytes = 65536 };
	struct fby_io io;

	EXPECT(fby_volume_detach(pool, 2) == FBY_DONE);
	a.mem_bytes = fby_volume_bytes(pool, a.round_pages, a.nrequests, a.buffer_bytes);
	a.mem = aligned_alloc(FBY_PAGE, a.mem_bytes);
	memset(a.mem, 0, a.mem_bytes);
	EXPECT(fby_volume_attach(pool, 2, &a) == FBY_DONE);
	d->phase = FBY_PH_WRITE;
	d->n = 1500;
	for (u32 i = 0; i < d->n; i++)
		d->page[i].page = FIRST_PAGE; /* another volume's */
	EXPECT(step(&io) == FBY_AGAIN && d->pos == 1024 && d->phase == FBY_PH_WRITE);
	EXPECT(step(&io) == FBY_AGAIN && d->pos == 1500 && d->phase == FBY_PH_WRITE);
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_FLUSH);
	free(a.mem);
	pool_restore();
}

/* The line of a zeroed block is damaged, so its number is unknown.  If the page were released,
 * the line might be readable at the next start, above the watermark, and override something
 * newer. */
static void zeroed_line_damaged(void)
{
	EXPECT(zero(16) == FBY_DONE);
	memory_at(fby_line_at(&pool->space.store, fby_page_chunk(&pool->space.store, page_of(16)), fby_page_place(&pool->space.store, page_of(16))))[8] ^= 3;
	EXPECT(get(16) == FBY_DONE);
	drained();
	EXPECT(pool->cache.volume[0].lost_blocks == 1 && get(16) == -FBY_E_LOST);
	pool_restore();
}

/* Nothing is clean for the origin that is attached next, and nothing counts as clean: neither while
 * it is linked nor when it is replaced. */
static void clean_for_one(void)
{
	struct fby_attach a = { .origin_sectors = VOLUME_SECTORS, .identity = "memory", .round_pages = 64,
				.nrequests = 2, .buffer_bytes = 65536 };
	u32 page;
	char text[200];

	page = fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 5);
	pool->cache.entry[page].state |= FBY_ES_CLEAN;
	pool->space.chunk[closed_chunk].clean_for = pool->space.owner[0].attachment;
	pool->space.owner[0].cleaned = 1;
	fby_owner_count(&pool->space, 0);
	EXPECT(fby_owner_clean(&pool->space, 0) == 1 && pool->space.owner[0].counted == BLOCKS + 1);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE);
	a.mem_bytes = fby_volume_bytes(pool, a.round_pages, a.nrequests, a.buffer_bytes);
	a.mem = aligned_alloc(FBY_PAGE, a.mem_bytes);
	pool->space.tight = 2;
	EXPECT(fby_volume_attach(pool, 0, &a) == FBY_DONE);
	EXPECT(pool->space.owner[0].tight == 2); /* it has said nothing yet */
	EXPECT(fby_owner_clean(&pool->space, 0) == 0 && pool->space.owner[0].counted == BLOCKS + 2);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	EXPECT(put(0, 5) == FBY_DONE && fby_owner_clean(&pool->space, 0) == 0);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE);
	free(a.mem);
	pool_restore();
}

/* A zeroing on the origin counts as a request, not as data. */
static void data_written(void)
{
	EXPECT(zero(16) == FBY_DONE && zero(17) == FBY_DONE);
	drained();
	EXPECT(pool->drain.volume[0].origin_writes == 2 && pool->drain.volume[0].origin_sectors == BLOCKS * P);
	pool_restore();
}

/* A page that is to be kept, and was written along, is not copied. */
static void kept_along(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;
	u32 page = page_of(5);

	until(FBY_PH_CARRY);
	EXPECT(fby_volume_drain(pool, 0, false) == FBY_DONE);
	for (u32 i = 0; i < d->n; i++)
		d->page[i].keep = d->page[i].k == 5 || d->page[i].k == 6;
	pool->cache.entry[page].state |= FBY_ES_CLEAN;
	pool->space.chunk[closed_chunk].clean_for = pool->space.owner[0].attachment;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT);
	EXPECT(pool->drain.volume[0].moved == 1 && page_of(5) == page && page_of(6) != page + 1);
	pool_restore();
}

/* Kept pages are appended and sealed while the origin is busy.  If the round fails, each page is
 * there once, and the next round, which retries, carries them at its end. */
static void kept_meanwhile(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_drained *v = &pool->drain.volume[0];
	struct fby_io io;
	u32 page, n = 0, id[8];
	int decision;

	EXPECT(put(0, 40) == FBY_DONE);
	page = page_of(40);
	for (u32 round = 0; round < 2; round++) {
		until(FBY_PH_WRITE);
		EXPECT(fby_volume_drain(pool, 0, false) == FBY_DONE);
		for (u32 i = 0; i < d->n; i++)
			d->page[i].keep = d->page[i].k == 40;
		EXPECT(d->page[d->n - 1].keep);
		for (n = 0; n < 8 && d->pos < d->n;) {
			decision = step(&io);
			if (decision == FBY_ORIGIN)
				id[n++] = io.id;
			else if (decision == FBY_DONE && n > !round) /* the next round has one until that is taken */
				fby_destage_complete(pool, id[--n], 0);
		}
		EXPECT(d->pos == d->n && d->outstanding == n && n > 0);
		decision = step(&io);
		EXPECT(d->phase == FBY_PH_WRITE && v->moved == 1 && !pool->space.owner[0].held && d->copied_slots == 0);
		EXPECT(decision == (round ? FBY_DONE : FBY_AGAIN) && step(&io) == FBY_DONE && page_of(40) != page);
		while (n > 0)
			fby_destage_complete(pool, id[--n], 0);
		EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_FLUSH);
		EXPECT(get(40) == FBY_DONE);
		if (round == 0) {
			EXPECT(step(&io) == FBY_ORIGIN && io.op == FBY_IO_FLUSH);
			fby_destage_complete(pool, io.id, 5);
			EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_BACKOFF);
			(void)step(&io);
			d->retry_ns = 0; /* as if the pause were over */
			EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
		}
	}
	for (u32 i = 0; i < 100 && d->phase != FBY_PH_IDLE; i++)
		if (step(&io) == FBY_ORIGIN)
			fby_destage_complete(pool, io.id, 0);
	EXPECT(v->moved == 2 && get(40) == FBY_DONE && d->backoff_ns == 0);
	pool_restore();
}

/* --- relocation ------------------------------------------------------------------ */

/* A call must not rely on the content of its stack. */
__attribute__((noinline)) static void spoil_stack(void)
{
	volatile u8 bytes[4096];

	for (u32 i = 0; i < sizeof(bytes); i++)
		bytes[i] = 0xff;
}

/* A zeroed block is moved as a line without data. */
static void zero_moved(void)
{
	const struct fby_page_line *l;
	u64 bytes;
	u32 slot;

	EXPECT(zero(16) == FBY_DONE);
	bytes = pool->space.slot[0].media_bytes;
	spoil_stack();
	EXPECT(fby_move(&pool->cache, 0, 16, page_of(16), FBY_BEGIN_RELOCATE, &slot, &wake) == FBY_DONE && slot == 0);
	EXPECT(pool->space.slot[0].media_bytes == bytes + FBY_LINE);
	l = (void *)memory_at(fby_line_at(&pool->space.store, fby_page_chunk(&pool->space.store, page_of(16)), fby_page_place(&pool->space.store, page_of(16))));
	EXPECT(l->kind == FBY_KIND_ZERO && l->valid == 0xff && l->lost == 0 && l->flags == 0 && l->data_crc == 0);
	EXPECT(FBY_ES_LOST(pool->cache.entry[page_of(16)].state) == 0 && get(16) == FBY_DONE);
	pool_restore();
}

static void take_slot(void)
{
	pool->space.slot[0].busy = 1;
}

static void other_cpu(void)
{
	cpu = 1;
	when_read(6, take_slot);
}

/* Relocation has copied blocks of the closed chunk, and a writer has taken the slot that the first
 * of them went through. */
static void copy_some(void)
{
	for (u64 block = 40; pool->space.nfree > 2; block++)
		EXPECT(put(0, block) == FBY_DONE);
	for (u64 block = 1; block < BLOCKS - 3; block++)
		EXPECT(put(0, block) == FBY_DONE);
	when_read(5, other_cpu);
	EXPECT(fby_relocate_step(&pool->drain, &wake) && pool->drain.moved_from == closed_chunk && pool->drain.moved_slots == 1);
	EXPECT(pool->space.chunk[closed_chunk].pinned == FBY_PIN_MOVED && pool->drain.volume[0].moved == 3);
}

/* The chunk stays until the copies are sealed, by relocation or by an earlier tick. */
static void copies_unsealed(bool tick)
{
	u64 counter;
	u32 open;

	copy_some();
	pool->space.slot[0].busy = 0;
	open = pool->space.slot[0].volume[0].open;
	if (tick)
		fby_chunk_seal(&pool->space, open, false);
	counter = pool->space.chunk[open].seal_counter;
	EXPECT(fby_relocate_step(&pool->drain, &wake) && pool->drain.moved_from == FBY_NO_CHUNK && pool->drain.moved_slots == 0);
	EXPECT(pool->space.chunk[open].seal_counter == counter + !tick);
	EXPECT(pool->space.chunk[closed_chunk].state == FBY_CS_FREE);
	cpu = 0;
	unhook();
}

/* A watermark does not pass the sources of copies. */
static void copies_before_commit(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	copy_some();
	d->phase = FBY_PH_CARRY;
	EXPECT(fby_destage_volume(&pool->drain, 0, &io, &wake) == FBY_AGAIN && d->phase == FBY_PH_CARRY);
	pool->space.slot[0].busy = 0;
	EXPECT(fby_destage_volume(&pool->drain, 0, &io, &wake) == FBY_AGAIN && d->phase == FBY_PH_COMMIT);
	cpu = 0;
	unhook();
}

/* Few chunks are free, and the closed one holds block 7 alone. */
static void mostly_dead(void)
{
	for (u64 block = 40; pool->space.nfree > 2; block++)
		EXPECT(put(0, block) == FBY_DONE);
	for (u64 block = 1; block < BLOCKS - 1; block++)
		EXPECT(put(0, block) == FBY_DONE);
	EXPECT(fby_chunk_live(&pool->space, closed_chunk) == 1 && fby_short(&pool->space));
}

#define NOT_MOVED(...) \
	do { \
		mostly_dead(); \
		__VA_ARGS__; \
		while (fby_relocate_step(&pool->drain, &wake)) \
			; \
		EXPECT(page_of(7) == fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 7)); \
		EXPECT(pool->space.chunk[closed_chunk].pinned == 0 || pool->space.chunk[closed_chunk].pinned == FBY_PIN_WALK); \
		pool_restore(); \
	} while (0)

#define MOVED(...) \
	do { \
		mostly_dead(); \
		__VA_ARGS__; \
		EXPECT(fby_relocate_step(&pool->drain, &wake) && \
		       page_of(7) != fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 7)); \
		pool_restore(); \
	} while (0)

/* Tests each reason to leave a chunk where it is, by itself. */
static void not_moved(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_chunk *ch = &pool->space.chunk[closed_chunk];

	mostly_dead();
	EXPECT(fby_relocate_step(&pool->drain, &wake) && page_of(7) != fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 7));
	pool_restore();
	NOT_MOVED(ch->pinned = FBY_PIN_WALK);
	NOT_MOVED(pool->space.owner[0].attached = false);
	NOT_MOVED(d->drain = true);
	NOT_MOVED(pool->space.opt.max_age_ns = 1; pool->space.now_ns = 1);
	NOT_MOVED(d->phase = FBY_PH_CARRY; d->cut = ch->seq_min);
	NOT_MOVED(d->phase = FBY_PH_RELEASE; d->cut = ch->seq_min);
	NOT_MOVED(d->phase = FBY_PH_WRITE; d->cut = ch->seq_min; d->ahead = 1);
	NOT_MOVED(d->phase = FBY_PH_FLUSHING; d->cut = ch->seq_min; d->ahead = 1);
	NOT_MOVED(pool->space.pressure = true; pool->space.owner[0].rec.watermark = ch->seq_min);
	NOT_MOVED(pool->space.nfree = 3);
	/* Relocation does not wait for an origin that has failed or hangs, and does not free a
	 * chunk twice. */
	MOVED(d->drain = true; d->backoff_ns = 1);
	MOVED(pool->space.opt.max_age_ns = 1; pool->space.now_ns = 1; d->backoff_ns = 1);
	MOVED(d->drain = true; d->refused.waits = true);
	MOVED(pool->space.opt.max_age_ns = 1; pool->space.now_ns = 1; d->refused.waits = true);
	MOVED(d->drain = true; d->phase = FBY_PH_WRITE; pool->space.now_ns = 3000000000ull; d->plan.began_ns = 1000000000);
	MOVED(d->drain = true; d->phase = FBY_PH_FLUSHING; pool->space.now_ns = 3000000000ull; d->plan.began_ns = 1000000000);
	NOT_MOVED(d->drain = true; d->phase = FBY_PH_WRITE; pool->space.now_ns = 3000000000ull; d->plan.began_ns = 1000000001);
	NOT_MOVED(d->drain = true; d->phase = FBY_PH_PLAN; pool->space.now_ns = 3000000000ull);
	NOT_MOVED(d->phase = FBY_PH_CARRY; d->cut = ch->seq_min; d->backoff_ns = 1);
	MOVED(pool->space.pressure = true; pool->space.owner[0].rec.watermark = ch->seq_min; d->backoff_ns = 1);
	mostly_dead(); /* and what is none */
	d->phase = FBY_PH_CARRY;
	d->cut = ch->seq_min - 1;
	pool->space.pressure = true;
	EXPECT(fby_relocate_step(&pool->drain, &wake) && page_of(7) != fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 7));
	pool_restore();
}

/* A drain that waits for the watermark waits for pages that were copied since, too. */
static void copies_count_for_home(void)
{
	struct fby_volume_info info;

	pool->space.owner[0].rec.watermark = 1000;
	pool->space.seq = 1001;
	fby_moved_note(&pool->drain, 0, 0);
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.watermark == 1000 && info.home == 1000);
	pool->space.seq = 1002;
	fby_moved_note(&pool->drain, 0, 0);
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.watermark == 1000 && info.home == 0);
	pool->space.owner[0].rec.watermark = 1001;
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.home == 1001);
	pool_restore();
}

/* Relocation leaves the chunks of a round alone, but not while the origin hangs.  The same holds if
 * no chunk is opened meanwhile. */
static void moved_later(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 page = fby_page_number(&pool->space, closed_chunk, FIRST_PAGE + 7);

	mostly_dead();
	d->phase = FBY_PH_WRITE;
	d->cut = pool->space.chunk[closed_chunk].seq_min;
	d->ahead = 1;
	pool->space.now_ns = d->plan.began_ns = 5000000000ull;
	while (fby_relocate_step(&pool->drain, &wake))
		;
	pool->space.now_ns += 1999999999;
	while (fby_relocate_step(&pool->drain, &wake))
		;
	EXPECT(page_of(7) == page);
	pool->space.now_ns += 1;
	EXPECT(fby_relocate_step(&pool->drain, &wake) && page_of(7) != page);
	pool_restore();
}

/* Each request finds room in the ring of buffers for the longest run in one piece, and no request
 * has another's pages, whichever ends first. */
static void ring(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u8 *const start = d->ring;
	u32 id;

	fby_flight_start(d, start, 4, 4 * FBY_PAGE);
	EXPECT(d->ring_pages == 16 && d->buffer_sectors == 4 * P);
	for (u32 i = 0, at = 0; i < 4; at += i ? 4 : 1, i++) { /* one page, then four each */
		EXPECT(fby_flight_room(d, &id) && id == i && d->io[id].buf == start + (u64)at * FBY_PAGE);
		fby_flight_take(d, id, i ? 4 * P : P - 3);
		d->io[id].status = FBY_IOS_BUSY;
		d->outstanding++;
	}
	EXPECT(!fby_flight_room(d, &id)); /* four requests */
	d->io[0].status = FBY_IOS_DONE;
	fby_flight_reap(&pool->drain, 0);
	EXPECT(d->outstanding == 3 && d->taken == 3 && d->ring_used == 12 && !fby_flight_room(d, &id));
	d->io[2].status = FBY_IOS_DONE; /* before one that is older */
	fby_flight_reap(&pool->drain, 0);
	EXPECT(d->outstanding == 2 && d->taken == 3 && d->ring_used == 12 && !fby_flight_room(d, &id));
	d->io[1].status = FBY_IOS_DONE;
	fby_flight_reap(&pool->drain, 0);
	EXPECT(d->outstanding == 1 && d->taken == 1 && d->ring_used == 4);
	EXPECT(fby_flight_room(d, &id) && id == 0 && d->io[0].buf == start);
	fby_flight_take(d, id, 2 * P);
	EXPECT(d->ring_used == 4 + 3 + 2 && d->ring_head == 2);
	d->io[0].status = FBY_IOS_BUSY;
	d->outstanding++;
	EXPECT(fby_flight_room(d, &id) && id == 1);
	fby_flight_take(d, id, 0); /* a flush */
	EXPECT(d->ring_used == 4 + 3 + 2 && d->ring_head == 2 && d->taken == 3);
	d->io[0].status = d->io[1].status = d->io[3].status = FBY_IOS_DONE;
	d->outstanding++;
	fby_flight_reap(&pool->drain, 0);
	EXPECT(d->outstanding == 0 && d->taken == 0 && d->ring_used == 0 && d->ring_head == 0 && d->oldest == 0);
	EXPECT(fby_flight_buffers(15) == 15 && fby_flight_buffers(16) == 16 && fby_flight_buffers(64) == 16);
	pool_restore();
}

void test_destage(void)
{
	ring();
	replaced();
	neighbour_gone();
	neighbour_of_another();
	listed_gone();
	gate_left();
	released_by(false);
	released_by(true);
	carry_waits();
	carry_part();
	carry_less();
	carried_sealed();
	held_is_room();
	committed_before();
	long_round();
	zeroed_line_damaged();
	clean_for_one();
	data_written();
	kept_along();
	kept_meanwhile();
	zero_moved();
	copies_unsealed(false);
	copies_unsealed(true);
	copies_before_commit();
	not_moved();
	copies_count_for_home();
	moved_later();
}
