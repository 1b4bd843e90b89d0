// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_kept.c - pages that a round of destage keeps: no room for their copies, a slot that
 * cannot be sealed, a round that fails, and how old they are.
 */
#include "inside.h"

#include "drain/round.h"

#define P FBY_PAGE_SECTORS

static u8 buffer[FBY_PAGE];
static u32 wake;

static int put(u64 block)
{
	return write_block(0, block, buffer, &wake);
}

static u32 page_of(u64 block)
{
	struct fby_found f;

	fby_index_find(&pool->cache, fby_key(0, block), &f);
	return f.page;
}

static u64 seq_of(u64 block)
{
	return fby_page_seq(&pool->cache, page_of(block), 0);
}

static int step(struct fby_io *io)
{
	u64 next;

	return fby_destage_step(pool, 1000000000ull, io, &next, &wake);
}

/* Runs up to the phase with all requests done, and without a drain from there on.  The blocks from
 * first to last of the list are kept. */
static void until(enum fby_phase phase, u64 first, u64 last)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 1000 && d->phase != phase; i++)
		if (step(&io) == FBY_ORIGIN)
			fby_destage_complete(pool, io.id, 0);
	EXPECT(d->phase == phase && fby_volume_drain(pool, 0, false) == FBY_DONE);
	for (u32 i = 0; i < d->n; i++)
		d->page[i].keep = d->page[i].k >= first && d->page[i].k <= last;
}

/* --- no room ---------------------------------------------------------------------- */

/* The cut goes below what is kept and has no copy. */
static void cut_below(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 seq = seq_of(16);
	struct fby_io io;

	until(FBY_PH_CARRY, 16, 16);
	pool->space.nfree = 0;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT && d->cut == seq - 1);
	for (u32 i = 0; i < d->n; i++)
		EXPECT(d->page[i].k < 16);
	pool_restore();
}

/* The cut also goes below the kept page if it is the last that the round lists.  The others did not
 * fit into the full list. */
static void cut_below_last(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 seq = seq_of(17);
	struct fby_io io;

	until(FBY_PH_CARRY, 17, 17);
	d->cut = seq;
	pool->space.nfree = 0;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT && d->cut == seq - 1);
	for (u32 i = 0; i < d->n; i++)
		EXPECT(d->page[i].k < 17);
	pool_restore();
}

/* A page overwritten meanwhile needs no copy, and does not lower the cut. */
static void cut_not_below_overwritten(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 seq = seq_of(16);
	struct fby_io io;

	until(FBY_PH_CARRY, 16, 17);
	EXPECT(d->page[d->n - 1].k == 17);
	pool->cache.entry[d->page[d->n - 1].page].state &= ~FBY_ES_LINKED;
	d->page[d->n - 1].page = d->page[1].page; /* an old one, of another block by now */
	pool->space.nfree = 0;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT && d->cut == seq - 1);
	pool_restore();
}

/* Nothing is older than the kept page.  The round ends, and the next one must not have the same
 * result.  Such a pool is too full. */
static void none_older(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 watermark = seq_of(1) - 1;
	struct fby_io io;

	until(FBY_PH_CARRY, 1, 1);
	pool->space.owner[0].rec.watermark = watermark;
	pool->space.nfree = 0;
	pool->space.tight = 3;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_IDLE && d->plan.no_room && !d->failed);
	EXPECT(pool->space.owner[0].tight == 2);
	EXPECT(pool->space.owner[0].rec.watermark == watermark && !pool->space.owner[0].held);
	pool_restore();
}

/* Nothing is older than the refused page.  The round is abandoned, and the next one is short. */
static void none_older_refused(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	until(FBY_PH_CARRY, 1000, 1000);
	EXPECT(d->page[1].k == 1);
	d->page[1].carry = FBY_CARRY_REFUSED;
	pool->space.owner[0].rec.watermark = seq_of(1) - 1;
	pool->space.nfree = 0;
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_BACKOFF && d->failed && d->refused.narrow);
	EXPECT(!d->plan.no_room && pool->drain.volume[0].last_error == 0);
	pool_restore();
}

/* After each failed round the pause doubles, up to half a minute. */
static void backoff(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u64 ns = 100000000;
	struct fby_io io;

	for (u32 i = 0; i < 12; i++) {
		d->phase = FBY_PH_BACKOFF;
		d->failed = true;
		(void)step(&io);
		EXPECT(d->phase == FBY_PH_BACKOFF && !d->failed && d->backoff_ns == ns);
		EXPECT(d->retry_ns == 1000000000ull + ns && pool->drain.retry_ns <= d->retry_ns);
		ns = ns < 15000000000ull ? 2 * ns : 30000000000ull;
		fby_destage_look(&pool->space, 0);
	}
	pool_restore();
}

/* Pages that were carried ahead make room once their chunk is free. */
static void ahead_is_room(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	until(FBY_PH_CARRY, 17, 17);
	for (u64 block = 1; block < BLOCKS; block++)
		EXPECT(put(block) == FBY_DONE);
	for (u64 block = 40; block < 40 + DATA_PAGES - BLOCKS + 1; block++)
		EXPECT(put(block) == FBY_DONE);
	d->ahead = 1;
	pool->space.nfree = 1; /* kept for what is lost */
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_CARRY && d->ahead == 0);
	EXPECT(pool->space.chunk[closed_chunk].state == FBY_CS_FREE);
	EXPECT(step(&io) == FBY_AGAIN && d->phase == FBY_PH_COMMIT && pool->drain.volume[0].moved == 1);
	pool_restore();
}

/* --- seals ------------------------------------------------------------------------- */

static const struct fby_media_ops *sound;
static struct fby_media_ops hooked;
static u64 where;

/* When block 5 is read, another slot comes into use, and the first one becomes busy. */
static int hooked_read(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	int r = sound->read_crc(m, dst, at, n, crc);

	if (cpu == 1)
		pool->space.slot[0].busy = 1;
	if (at <= where && where < at + n)
		cpu = 1;
	return r;
}

/* The chunks that copies come from are held until the copies are sealed, whether they went ahead or
 * not. */
static void held_until_sealed(bool ahead)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	const struct fby_owner *owner = &pool->space.owner[0];
	struct fby_io io;

	until(ahead ? FBY_PH_FLUSH : FBY_PH_CARRY, 1, 7);
	EXPECT(!ahead || step(&io) == FBY_ORIGIN);
	sound = media.ops;
	hooked = *sound;
	hooked.read_crc = hooked_read;
	where = fby_page_at(&pool->space.store, page_of(5));
	media.ops = &hooked;
	EXPECT(step(&io) == FBY_AGAIN);
	media.ops = sound;
	cpu = 0;
	EXPECT(pool->drain.volume[0].moved == 7 && d->copied_slots == 1 && owner->held);
	EXPECT(step(&io) == FBY_AGAIN && d->copied_slots == 1 && owner->held);
	EXPECT(d->phase == (ahead ? FBY_PH_FLUSHING : FBY_PH_CARRY));
	pool->space.slot[0].busy = 0;
	(void)step(&io);
	EXPECT(d->copied_slots == 0 && !owner->held);
	pool_restore();
}

/* Requests continue while a slot cannot be sealed, and the seal is tried again. */
static void issued_unsealed(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;
	u32 n = 0;

	until(FBY_PH_WRITE, 1000, 1000);
	d->copied_slots = 2;
	pool->space.owner[0].held = true;
	pool->space.slot[1].busy = 1;
	while (d->pos < d->n && n < 3)
		n += step(&io) == FBY_ORIGIN;
	EXPECT(n == 2 && d->outstanding == n && step(&io) == FBY_AGAIN && pool->space.owner[0].held);
	pool->space.slot[1].busy = 0;
	EXPECT(step(&io) == FBY_DONE && d->copied_slots == 0 && !pool->space.owner[0].held);
	pool_restore();
}

/* The copies of a round are sealed and its chunks released, whatever its result. */
static void sealed_anyway(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_io io;

	owner->held = true;
	d->copied_slots = 1;
	d->phase = FBY_PH_BACKOFF;
	d->retry_ns = FBY_NO_SEQ;
	(void)fby_destage_volume(&pool->drain, 0, &io, &wake);
	EXPECT(d->phase == FBY_PH_BACKOFF && d->copied_slots == 0 && !owner->held);
	pool_restore();

	owner->held = true;
	EXPECT(fby_volume_detach(pool, 0) == FBY_DONE && !owner->held);
	pool_restore();
}

/* --- ahead ----------------------------------------------------------------------------- */

/* No copies are made ahead while writers wait for chunks, or in a round that has failed. */
static void not_ahead(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	for (u32 i = 0; i < 3; i++) {
		until(FBY_PH_FLUSH, 5, 5);
		EXPECT(step(&io) == FBY_ORIGIN);
		EXPECT(put(40) == FBY_DONE); /* there is an open chunk */
		if (i == 1)
			pool->space.nfree = fby_owed(&pool->space) + fby_reserve(&pool->space);
		d->failed = i == 2;
		(void)step(&io);
		EXPECT(d->phase == FBY_PH_FLUSHING && pool->drain.volume[0].moved == !i);
		pool_restore();
	}
	d->ahead = 5; /* left by an earlier round */
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->n > 0 && d->ahead == 0);
	pool_restore();
}

/* The copy shows that a page is damaged.  The page counts as lost, and is not forgotten. */
static void damaged(void)
{
	u8 origin, lost;
	struct fby_io io;

	until(FBY_PH_CARRY, 5, 5);
	memory_at(fby_page_at(&pool->space.store, page_of(5)))[9] ^= 1;
	for (u32 i = 0; i < 100 && pool->drain.volume[0].destage.phase != FBY_PH_IDLE; i++)
		EXPECT(step(&io) == FBY_AGAIN);
	EXPECT(fby_read_block(pool, 0, 5, 0, P, buffer, &origin, &lost) == -FBY_E_LOST);
	pool_restore();
}

/* --- requests --------------------------------------------------------------------------- */

/* A page that a request has reached is written, and not kept. */
static void written_or_kept(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	until(FBY_PH_WRITE, 4, 4);
	EXPECT(step(&io) == FBY_ORIGIN && io.sector == 0 && io.nsectors == BLOCKS * P);
	for (u32 i = 0; i < d->n; i++)
		EXPECT(!d->page[i].keep);
	pool_restore();
}

/* A run is longer than a request, and no block of it is written twice. */
static void once(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	until(FBY_PH_WRITE, 1000, 1000);
	d->buffer_sectors = 4 * P;
	EXPECT(step(&io) == FBY_ORIGIN && io.sector == 0 && io.nsectors == 4 * P && d->issued == 4);
	fby_destage_complete(pool, io.id, 0);
	EXPECT(step(&io) == FBY_ORIGIN && io.sector == 4 * P && io.nsectors == 4 * P);
	pool_restore();
}

/* A page is not kept if a request contains a part of it, even if the page was written anew
 * meanwhile.  Otherwise the later of the two writes would win. */
static void once_in_part(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;
	u32 done = 0;

	EXPECT(fby_write(pool, 0, 20 * P, 4, buffer, &done, &wake) == FBY_DONE && put(21) == FBY_DONE);
	until(FBY_PH_WRITE, 1000, 1000);
	for (u32 i = 0; i < 2; i++) {
		EXPECT(step(&io) == FBY_ORIGIN && io.sector == 16 * P * i);
		fby_destage_complete(pool, io.id, 0);
	}
	EXPECT(step(&io) == FBY_ORIGIN && io.sector == 20 * P && io.nsectors == 4);
	EXPECT(put(20) == FBY_DONE);
	fby_slot_take(&pool->space);
	fby_slot_close(&pool->space, &pool->space.slot[0], 0, &wake);
	fby_slot_release(&pool->space.slot[0]);
	EXPECT(step(&io) == FBY_ORIGIN && io.sector == 21 * P && io.nsectors == P && d->pulled == 0);
	pool_restore();
}

/* Unsealed pages, whose slot is busy, are not part of the round. */
static void sealed_alone(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	pool->space.slot[0].busy = 1;
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->n == BLOCKS - 1 && d->cut == seq_of(0) - 1);
	pool_restore();
}

/* --- age ----------------------------------------------------------------------------------- */

/* The age of the oldest moved page counts until the watermark has passed all pages that were moved
 * with it.  It counts even if others were moved since. */
static void moved_ages(void)
{
	struct fby_drained *v = &pool->drain.volume[0];
	u64 *watermark = &pool->space.owner[0].rec.watermark;

	pool->space.opt.max_age_ns = 100;
	pool->space.chunk[closed_chunk].opened_ns = 1000;
	pool->space.chunk[open_chunk].opened_ns = 1000;
	pool->space.now_ns = 1050;
	pool->space.seq = 1000;
	fby_moved_note(&pool->drain, 0, 949);
	EXPECT(fby_volume_aged(&pool->drain, 0));
	*watermark = 500;
	pool->space.seq = 2000;
	fby_moved_note(&pool->drain, 0, 1001);
	fby_moved_note(&pool->drain, 0, 1002);
	EXPECT(v->moved_ns == 1001 && v->moved_before_ns == 949 && fby_volume_aged(&pool->drain, 0));
	*watermark = 999; /* all of the first time */
	EXPECT(!fby_volume_aged(&pool->drain, 0));
	pool_restore();
}

/* The age of an open chunk is that of its oldest page that the origin lacks, and not that of its
 * first page.  Otherwise all later pages would be destaged at once, for ever. */
static void open_and_young(void)
{
	struct fby_io io;
	u64 now = 6000000000ull;

	pool->space.opt.max_age_ns = 5000000000ull;
	while (next_request(now, &io, &wake) == FBY_ORIGIN)
		fby_destage_complete(pool, io.id, 0);
	EXPECT(fby_volume_clean(pool, 0) && pool->drain.volume[0].rounds == 1);
	now += 100000000;
	EXPECT(next_request(now, &io, &wake) == FBY_DONE); /* a tick that finds all of it on the origin */
	EXPECT(put(19) == FBY_DONE);
	for (u32 i = 0; i < 48; i++)
		EXPECT(next_request(now += 100000000, &io, &wake) == FBY_DONE && !fby_volume_aged(&pool->drain, 0));
	EXPECT(!fby_volume_clean(pool, 0));
	now += 300000000;
	EXPECT(next_request(now, &io, &wake) == FBY_ORIGIN && io.sector == 19 * P);
	fby_destage_complete(pool, io.id, 0);
	while (next_request(now, &io, &wake) == FBY_ORIGIN)
		fby_destage_complete(pool, io.id, 0);
	EXPECT(fby_volume_clean(pool, 0) && pool->drain.volume[0].rounds == 2);
	pool_restore();
}

static u64 round_at(u64 now)
{
	struct fby_io io;

	while (next_request(now, &io, &wake) == FBY_ORIGIN)
		fby_destage_complete(pool, io.id, 0);
	EXPECT(fby_volume_clean(pool, 0));
	return now;
}

/* The origin has all pages of an open chunk.  If the volume has a newer open chunk, the old one is
 * closed.  Its age would otherwise count from then on and hide the age of the newer chunk, whose
 * pages would never count as old.  Without a limit of age the chunk stays open, as the newest chunk
 * always does. */
static void closed_with_a_newer(void)
{
	struct fby_slot *slot = pool->space.slot;
	struct fby_chunk *ch = &pool->space.chunk[open_chunk];
	u64 now = 6000000000ull;

	for (u32 newer = 0; newer < 2; newer++) {
		for (u32 limited = 0; limited < 2; limited++) {
			struct fby_io io;
			u32 other;

			pool->space.opt.max_age_ns = 5000000000ull;
			cpu = 1;
			EXPECT(!newer || put(20) == FBY_DONE);
			cpu = 0;
			now = round_at(now);
			other = slot[1].volume[0].open;
			pool->space.opt.max_age_ns = limited ? 5000000000ull : 0;
			ch->copies_ns = 5;
			wake = 0;
			fby_wait_prepare(pool, FBY_WAIT_SPACE);
			now += 100000000;
			EXPECT(next_request(now, &io, &wake) == FBY_DONE);
			if (newer && limited) {
				EXPECT(slot[0].volume[0].open == FBY_NO_CHUNK && ch->state == FBY_CS_FREE);
				EXPECT((wake & FBY_WAKE_SPACE) && pool->space.owner[0].first == other);
			} else {
				EXPECT(slot[0].volume[0].open == open_chunk && ch->opened_ns == now);
				EXPECT(!(wake & FBY_WAKE_SPACE) && ch->copies_ns == FBY_NO_SEQ);
			}
			EXPECT(slot[1].volume[0].open == other);
			cpu = 1;
			EXPECT(!newer || put(21) == FBY_DONE);
			cpu = 0;
			for (u32 i = 0; newer && limited && i < 48; i++)
				EXPECT(next_request(now += 100000000, &io, &wake) == FBY_DONE);
			now += 300000000;
			if (newer && limited)
				EXPECT(next_request(now, &io, &wake) == FBY_ORIGIN && io.sector == 21 * P);
			pool_restore();
		}
	}
}

/* A chunk is as old as the oldest copy in it.  A copy of a page that the origin refused does not
 * count: otherwise all later copies in that chunk would be destaged at once. */
static void copies_age(void)
{
	u64 *opened_ns = &pool->space.chunk[closed_chunk].opened_ns;

	for (u32 refused = 0; refused < 2; refused++) {
		u32 slot;

		*opened_ns = 7;
		EXPECT(fby_move(&pool->cache, 0, 5, page_of(5), FBY_BEGIN_RELOCATE | (refused ? FBY_BEGIN_REFUSED : 0),
				&slot, &wake) == FBY_DONE && slot == 0);
		EXPECT(fby_page_chunk(&pool->space.store, page_of(5)) == open_chunk);
		EXPECT(pool->space.chunk[open_chunk].copies_ns == (refused ? FBY_NO_SEQ : 7));
		pool_restore();
	}
}

void test_kept(void)
{
	cut_below();
	cut_below_last();
	cut_not_below_overwritten();
	none_older();
	none_older_refused();
	backoff();
	ahead_is_room();
	held_until_sealed(false);
	held_until_sealed(true);
	issued_unsealed();
	sealed_anyway();
	not_ahead();
	damaged();
	written_or_kept();
	once();
	once_in_part();
	sealed_alone();
	moved_ages();
	copies_age();
	open_and_young();
	closed_with_a_newer();
}
