// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_static_lost.c - a static volume with lost or torn pages and lines.
 *
 * Goal: a lost block stays lost until it is written whole, and is reported and counted.  A write
 * that a cut has torn counts as never made.  Readers concurrent with writers see durable, whole
 * blocks.  The test makes each step by hand, where only threads would meet.
 */
#include <pthread.h>
#include <unistd.h>

#include "inside_static.h"

/* Nothing is left of a line, or of a head. */
static void gone(void)
{
	fill();
	keep();
	memset(line(1), 0, FBY_LINE);
	EXPECT(get(1) == -1 && get(8) == -1 && get(0) == 2);
	EXPECT(put(1, 9) == FBY_DONE && get(1) == 9 && get(8) == -1);
	again();
	EXPECT(get(1) == 9 && get(8) == -1 && get(0) == 2 && sound());
	drain();
	EXPECT(origin_has[1] == 9 && get(8) == -1 && get(1) == -1); /* which was lost is not known */
	restore();
	memset(small.base + ST->at, 0, FBY_PAGE);
	memset(small.base + ST->pages - FBY_STATIC_HEAD, 0, FBY_STATIC_HEAD);
	EXPECT(opened(true) == FBY_DONE && attach() == -FBY_E_VOLUME_DAMAGED);
	EXPECT(fby_volume_remove(sp, 0, false) == -FBY_E_VOLUME_DIRTY);
	EXPECT(fby_volume_remove(sp, 0, true) == FBY_DONE);
}

/* A line that is filled with one byte is lost, even if a check of 12 bits accepts its words.  One
 * word that says "empty" is not believed if another one has any other value. */
static void wiped(void)
{
	const u64 bits = (1ull << FBY_SC_CHECK_SHIFT) - 1;

	for (u32 what = 0; what < 2; what++) {
		u64 word = what ? ~0ull : 0;
		u32 seed;

		fill();
		seed = ST->seed;
		while (fby_static_control(ST, 3, word & bits) != word)
			ST->seed++;
		memset(line(3), what ? 0xff : 0, FBY_LINE);
		EXPECT(get(3) == -1);
		memset(line(3), what ? 0 : 0xff, FBY_LINE); /* now the copy says so */
		EXPECT(get(3) == -1);
		ST->seed = seed;
	}
	fill();
	EXPECT(get(3) == -2 && line(3)->copy == ~line(3)->control);
	for (u32 n = 1; n < 64; n++) { /* so many bits of one of the two are others */
		u64 *word = n % 2 ? &line(3)->control : &line(3)->copy, was = *word;

		*word ^= (1ull << n) - 1;
		EXPECT(get(3) == (n <= 8 ? -2 : -1));
		*word = was;
	}
}

/* Both pages of a slot are lost.  Others are told, and a whole write heals each block. */
static void both_lost(void)
{
	fill();
	*page(1, 0) ^= 1;
	*page(1, 1) ^= 1;
	EXPECT(get(1) == -1 && get(8) == -1 && put_part(8, 0, 1, 5) == -FBY_E_LOST);
	EXPECT(put(8, 5) == FBY_DONE && get(8) == 5 && get(1) == -1);
	again();
	EXPECT(get(8) == 5 && get(1) == -1);
	drain();
	EXPECT(origin_has[8] == 5 && put(1, 6) == FBY_DONE && get(1) == 6 && sound());
}

/* A line that cannot be read does not show what was counted.  After a whole write to its slot an
 * attach counts anew, so that the page is not missed. */
static void counted_anew(void)
{
	struct fby_volume_info info;

	volume_sectors = SLOTS * P;
	make();
	memset(line(2), 0, FBY_LINE);
	EXPECT(put(2, 5) == FBY_DONE && get(2) == 5);
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && !info.counted);
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && fby_volume_info(sp, 0, &info) == FBY_DONE && !info.counted);
	EXPECT(fby_volume_remove(sp, 0, false) == -FBY_E_VOLUME_DIRTY);
	EXPECT(attach() == FBY_DONE && get(2) == 5);
	origin_has[2] = 0;
	drain();
	EXPECT(origin_has[2] == 5 && live() == 0 && sound());
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.counted);
	volume_sectors = VOLUME_BLOCKS * P;
}

/* A drain counts doubtful slots anew, so that the volume is known to be empty.  It does not do so
 * while a writer has a stripe, because that writer counts by the old state. */
static void counted_in_use(void)
{
	struct fby_volume_info info;
	u64 *stripe;

	volume_sectors = SLOTS * P;
	make();
	memset(line(2), 0, FBY_LINE);
	EXPECT(put(2, 5) == FBY_DONE && put(3, 6) == FBY_DONE);
	stripe = fby_stripe(&sp->statics, ST, 5);
	EXPECT(fby_stripe_try(stripe, 0) && fby_volume_drain(sp, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 1000 && !ST->recounting; i++)
		drain_step();
	EXPECT(origin_has[2] == 5 && ST->recounting && ST->miscounted && ST->surveyed == 0);
	drain_step();
	EXPECT(ST->recounting && !fby_volume_clean(sp, 0) && sp->drain.volume[0].destage.drain && sound());
	fby_stripe_release(stripe);
	drain();
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.counted && info.pages == 0 && sound());
	/* Nothing but the count keeps it from being clean. */
	memset(line(4), 0, FBY_LINE);
	EXPECT(put(4, 8) == FBY_DONE);
	drain();
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.counted && info.pages == 0 && sound());
	EXPECT(put(2, 7) == FBY_DONE && live() == 1);
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && fby_volume_info(sp, 0, &info) == FBY_DONE);
	EXPECT(info.counted && info.pages == 1 && attach() == FBY_DONE && get(2) == 7);
	volume_sectors = VOLUME_BLOCKS * P;
}

/* A cut between the two control words of a slot, or damage to one, leaves them different.  The
 * survey makes them equal. */
static void one_word(void)
{
	const u64 bits = (1ull << FBY_SC_CHECK_SHIFT) - 1;

	for (u32 which = 0; which < 3; which++) {
		u64 word;

		make();
		EXPECT(put(3, 1) == FBY_DONE);
		drain();
		word = line(3)->control;
		if (which == 0)
			line(3)->copy = ~fby_static_control(ST, 3, (word & bits) - FBY_SC_ERA(1));
		else if (which == 1)
			line(3)->control = fby_static_control(ST, 3, (word & bits) - FBY_SC_ERA(1));
		else
			line(3)->control ^= 4;
		again();
		drain();
		EXPECT(line(3)->control == word && line(3)->copy == ~word && get(3) == -2 && sound());
	}
}

static u64 lost_now(void)
{
	struct fby_volume_info info;

	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE);
	return info.lost_blocks;
}

static u32 lost_listed(void)
{
	struct fby_report_block blocks[64];
	struct fby_lost_at at = { 0 };
	u32 n = 0, found;

	while ((found = fby_lost_list(sp, 0, &at, blocks, 64)) != 0)
		n += found;
	return n;
}

/* A loss is reported again after a detach, and when a healed block is lost again. */
static void told_again(void)
{
	fill();
	*newest(0) ^= 1;
	EXPECT(get(0) == -1 && get(0) == -1 && lost_now() == 1 && lost_listed() == 1);
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && attach() == FBY_DONE);
	EXPECT(get(0) == -1 && lost_now() == 1 && lost_listed() == 1 && lost_now() == 1);
	EXPECT(put(0, 6) == FBY_DONE && lost_listed() == 0 && lost_now() == 0);
	*newest(0) ^= 1;
	EXPECT(get(0) == -1 && lost_now() == 1 && lost_listed() == 1);
}

/* Two lists are read at once, and a block is found lost meanwhile. */
static void listed_at_once(void)
{
	struct fby_report_block blocks[64];
	struct fby_lost_at at = { 0 };

	fill();
	*newest(0) ^= 1;
	EXPECT(get(0) == -1 && lost_now() == 1);
	EXPECT(fby_lost_list(sp, 0, &at, blocks, 64) == 1 && lost_now() == 1);
	EXPECT(lost_listed() == 1 && lost_now() == 1);
	EXPECT(fby_lost_list(sp, 0, &at, blocks, 64) == 0 && lost_now() == 1 && at.listed == 1);
	*newest(0) ^= 1;
	memset(&at, 0, sizeof(at));
	EXPECT(fby_lost_list(sp, 0, &at, blocks, 64) == 0 && lost_now() == 0);
	memset(&at, 0, sizeof(at));
	*newest(0) ^= 1;
	EXPECT(fby_lost_list(sp, 0, &at, blocks, 64) == 1);
	*newest(1) ^= 1;
	EXPECT(get(8) == -1 && fby_lost_list(sp, 0, &at, blocks, 64) == 0 && lost_now() == 2);
}

/* A page that destage found damaged and that is readable later is reported until it is on the
 * origin, however often it is listed. */
static void bad_for_a_time(void)
{
	struct fby_report_block blocks[64];

	for (u32 line_too = 0; line_too < 2; line_too++) {
		u8 *at;

		fill();
		at = line_too ? (u8 *)line(1) : newest(1);
		memcpy(kept, at, FBY_LINE);
		memset(at, 0, FBY_LINE);
		origin_has[8] = 0;
		drain();
		EXPECT(origin_has[8] == 0 && lost_now() == 1);
		memcpy(at, kept, FBY_LINE);
		for (u32 times = 0; times < 2; times++) {
			struct fby_lost_at list = { 0 };

			EXPECT(fby_lost_list(sp, 0, &list, blocks, 64) == 0);
			EXPECT(list.passed_over == 1 + line_too && lost_now() == 1 + line_too);
		}
		EXPECT(!fby_volume_clean(sp, 0));
		drain();
		EXPECT(origin_has[8] == 4 && live() == 0 && lost_listed() == 0 && lost_now() == 0 && sound());
	}
}

/* The last block is not a whole one.  The origin's part of it is enough. */
static void last_block(void)
{
	u8 data[FBY_PAGE], origin, lost;

	volume_sectors = VOLUME_BLOCKS * P - 3;
	make();
	EXPECT(put_part(14, 0, 5, 1) == FBY_DONE);
	memset(line(0), 0, FBY_LINE);
	EXPECT(fby_read_block(sp, 0, 14, 0, 5, data, &origin, &lost) == -FBY_E_LOST);
	EXPECT(put_part(14, 0, 5, 2) == FBY_DONE);
	EXPECT(fby_read_block(sp, 0, 14, 0, 5, data, &origin, &lost) == FBY_DONE && data[0] == 2);
	EXPECT(lost_listed() == 2); /* the others of the slot */
	drain();
	EXPECT(origin_has[14] == 2 && sound());
	make();
	EXPECT(put(7, 1) == FBY_DONE && put_part(14, 0, 5, 1) == FBY_DONE);
	*page(0, 0) ^= 1;
	*page(0, 1) ^= 1;
	EXPECT(put_part(14, 0, 4, 2) == -FBY_E_LOST && put_part(14, 0, 5, 2) == FBY_DONE);
	EXPECT(fby_read_block(sp, 0, 14, 0, 5, data, &origin, &lost) == FBY_DONE && data[0] == 2);
	origin_has[14] = 0;
	drain();
	EXPECT(origin_has[14] == 2 && get(7) == -1 && put(7, 3) == FBY_DONE && get(7) == 3 && sound());
	volume_sectors = VOLUME_BLOCKS * P;
}

/* Each copy of the head has a page of its own.  One of these pages is lost as a whole. */
static void head_pages(void)
{
	for (u32 which = 0; which < 2; which++) {
		fill();
		memset(small.base + (which ? ST->pages - FBY_PAGE : ST->at), 0, FBY_PAGE);
		EXPECT(opened(true) == FBY_DONE && attach() == FBY_DONE);
		EXPECT(get(0) == (which ? -1 : 2));
		again();
		EXPECT(get(0) == (which ? -1 : 2));
	}
}

/* Sectors that a partial write finds lost stay lost. */
static void partly(void)
{
	u8 data[FBY_PAGE], origin, lost;

	fill();
	*newest(0) ^= 1;
	EXPECT(get(0) == -1 && put_part(0, 2, 2, 5) == FBY_DONE);
	EXPECT(fby_read_block(sp, 0, 0, 0, P, data, &origin, &lost) == -FBY_E_LOST && lost == 0xf3 && origin == 0);
	EXPECT(data[2 * FBY_SECTOR] == 5 && data[4 * FBY_SECTOR - 1] == 5);
	origin_has[0] = 0;
	drain(); /* sound blocks go to the origin and stay */
	EXPECT(origin_has[0] == 5 && get(0) == -1 && put(0, 6) == FBY_DONE && get(0) == 6 && sound());
}

/* A lost page is overwritten, and that write is torn.  The loss is not forgotten, though the other
 * page of the slot has been destaged meanwhile. */
static void over_torn(void)
{
	for (u32 released = 0; released < 2; released++) {
		struct fby_destage *d;

		fill();
		d = &sp->drain.volume[0].destage;
		EXPECT(!released || fby_volume_drain(sp, 0, true) == FBY_DONE);
		while (released && d->phase != FBY_PH_COMMIT)
			drain_step();
		*page(1, 0) ^= 1;
		*page(1, 1) ^= 1;
		EXPECT(put(8, 5) == FBY_DONE && (line(1)->control & FBY_SC_OVER));
		while (d->phase == FBY_PH_COMMIT)
			drain_step();
		EXPECT((line(1)->control & 3) == (released ? FBY_SC_LIVE(newest(1) != page(1, 0)) : 3));
		*newest(1) ^= 1;
		again();
		EXPECT(get(8) == -1);
	}
}

/* Destage releases exactly the page that was written to the origin. */
static void another_page(void)
{
	u32 way;
	u64 stamp;

	make();
	EXPECT(put(3, 1) == FBY_DONE);
	way = newest(3) != page(3, 0);
	stamp = line(3)->tag[way].stamp;
	EXPECT(put(3, 2) == FBY_DONE && put(3, 3) == FBY_DONE);
	EXPECT(fby_place_release(&sp->statics, ST, 3, way, 3, stamp) && get(3) == 3 && sound());
	sp->space.opt.read_only = true;
	EXPECT(put(3, 4) == -FBY_E_READ_ONLY);
	sp->space.opt.read_only = false;
	/* Writes meet in the slot, and its era has not ended.  The next round takes it. */
	EXPECT(put(0, 1) == FBY_DONE && put(7, 2) == FBY_DONE && put(14, 3) == FBY_WAIT_SPACE);
	ST->settled_writes = ST->count[0].writes;
	drain_step();
	EXPECT(ST->wanted[fby_cpu() % FBY_WANTED] == 1);
	ST->settled_writes = 0;
	for (u32 i = 0; i < 100; i++)
		drain_step();
	EXPECT(put(14, 3) == FBY_DONE && sound());
}

/* --- a torn write, by hand ----------------------------------------------------------------------- */

/* Until the survey a torn write is in doubt, and the older content counts.  After the survey a bad
 * page is lost. */
static void torn(void)
{
	fill();
	EXPECT(put(0, 9) == FBY_DONE); /* in an era that does not end */
	*newest(0) ^= 1;
	EXPECT(get(0) == -1);
	keep();
	again();
	EXPECT(get(0) == 2 && put(0, 10) == FBY_DONE && get(0) == 10);
	restore();
	again();
	drain();
	EXPECT(origin_has[0] == 2 && sound());
	fill();
	EXPECT(put(0, 9) == FBY_DONE && fby_static_settle(&sp->statics, 0));
	*newest(0) ^= 1;
	again();
	EXPECT(get(0) == -1);
	/* After as many cuts as the head has windows, attach surveys all slots. */
	for (u32 i = 0; i < FBY_STATIC_WINDOWS; i++) {
		EXPECT(ST->nwindows == i + 1);
		again();
	}
	EXPECT(ST->nwindows == 0 && ST->surveyed == SLOTS && get(0) == -1);
}

/* --- readers in the middle of a store ------------------------------------------ */

static const struct fby_media_ops *whole;
static bool armed;

static int read_beside(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	if (armed && at >= ST->pages) {
		armed = false;
		EXPECT(put(3, 8) == FBY_DONE && put(3, 9) == FBY_DONE);
	}
	return whole->read_crc(m, dst, at, n, crc);
}

static u32 read_done;
static int read_got;

static void *reader(void *unused)
{
	read_got = get(3);
	fby_store(&read_done, 1u);
	return unused;
}

static pthread_t reading;
static bool read_early;

static void fence_beside(struct fby_media *m, u64 at, size_t n)
{
	if (armed) {
		armed = false;
		fby_store(&read_done, 0u);
		EXPECT(pthread_create(&reading, NULL, reader, NULL) == 0);
		usleep(20000);
		read_early = fby_load(&read_done);
	}
	whole->fence(m, at, n);
}

/* A reader meets two writes to the place that it reads, and a write whose fence is missing. */
static void beside_writers(void)
{
	static u8 data[FBY_PAGE];
	struct fby_vec vec = { data, FBY_PAGE };
	struct fby_media_ops hooked;
	struct fby_write w;

	make();
	whole = small.ops;
	hooked = *whole;
	small.ops = &hooked;
	hooked.read_crc = read_beside;
	EXPECT(put(3, 7) == FBY_DONE);
	armed = true;
	EXPECT(get(3) == 9 && !armed);
	hooked.read_crc = whole->read_crc;
	hooked.fence = fence_beside;
	for (u32 steps = 0; steps < 2; steps++) {
		armed = true;
		if (steps) {
			memset(data, 11, sizeof(data));
			EXPECT(fby_write_begin(sp, &w, 0, 3 * P, P) == FBY_DONE);
			EXPECT(get(3) == 10); /* nothing is stored yet */
			fby_write_copy(sp, &w, &vec, 1, 0);
			fby_write_commit(sp, &w);
			fby_write_publish(sp, &w);
		} else {
			EXPECT(put(3, 10) == FBY_DONE);
		}
		EXPECT(!armed && pthread_join(reading, NULL) == 0);
		EXPECT(!read_early && read_got == (int)(10 + steps));
	}
	small.ops = whole;
	EXPECT(sound());
}

void test_static_lost(void)
{
	beside_writers();
	gone();
	wiped();
	listed_at_once();
	bad_for_a_time();
	both_lost();
	counted_anew();
	counted_in_use();
	one_word();
	told_again();
	last_block();
	head_pages();
	partly();
	over_torn();
	another_page();
	torn();
	static_done();
}
