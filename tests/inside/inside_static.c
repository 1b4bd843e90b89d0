// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_static.c - a static volume whose lines, pages and head are spoilt.
 *
 * Goal: a damaged page is lost, and never shows the earlier content.  The same holds for each bit
 * of a line and of the head.  fby_check finds what a line cannot show.
 * Method: see inside_static.h.
 */
#include "inside_static.h"

/* --- places ------------------------------------------------------------------------- */

static void places(void)
{
	u64 bytes[] = { 4096, 65536, 131072, 1 << 20, 1 << 30, 8ull << 30, 1ull << 40 };
	struct fby_static v = { .slots = 1000003 };
	u16 index;

	for (u32 i = 0; i < 7; i++) {
		u64 n = fby_static_slots(bytes[i]);
		u64 used = FBY_PAGE + fby_round_up(n * FBY_LINE + FBY_STATIC_HEAD, FBY_PAGE) + n * 2 * FBY_PAGE;
		u64 more = FBY_PAGE + fby_round_up((n + 1) * FBY_LINE + FBY_STATIC_HEAD, FBY_PAGE) +
			   (n + 1) * 2 * FBY_PAGE;

		EXPECT(n == 0 ? i == 0 : used <= bytes[i] && more > bytes[i]);
	}
	for (u64 block = 1; block < 1ull << 47; block = block * 3 + 1) {
		EXPECT(fby_static_slot(&v, block) == block % v.slots);
		EXPECT(fby_static_far_slot(block, (1u << 31) - 1) == block % ((1u << 31) - 1));
	}
	make();
	EXPECT(add("odd", SHARE + 4096, &index) == -FBY_E_GEOMETRY);
	EXPECT(add("large", 2 * SHARE, &index) == -FBY_E_STATIC_FULL);
	EXPECT(add("t", SHARE, &index) == FBY_DONE && index == 1);
	EXPECT(add("u", SHARE, &index) == -FBY_E_STATIC_FULL);
	EXPECT(sp->space.owner[1].share.first == sp->space.owner[0].share.first + SHARE / FBY_STATIC_UNIT);
	EXPECT(fby_volume_remove(sp, 0, false) == -FBY_E_VOLUME_BUSY);
	EXPECT(fby_volume_remove(sp, 1, false) == FBY_DONE && add("t", SHARE, &index) == FBY_DONE);
	EXPECT(fby_volume_find(sp, "s", &index) == FBY_DONE && index == 0);
	EXPECT(sound());
}

/* --- the cases ---------------------------------------------------------------------------- */

static void cases(void)
{
	struct fby_volume_info info;

	make();
	EXPECT(get(0) == -2 && put(0, 1) == FBY_DONE && get(0) == 1 && live() == 1);
	EXPECT(put(0, 2) == FBY_DONE && get(0) == 2 && live() == 1);
	EXPECT(put(7, 3) == FBY_DONE && get(7) == 3 && get(0) == 2 && get(14) == -2 && live() == 2);
	wake = 0;
	EXPECT(put(0, 4) == FBY_WAIT_SPACE && (wake & FBY_WAKE_DESTAGE) && put(14, 4) == FBY_WAIT_SPACE);
	EXPECT(get(0) == 2 && get(7) == 3 && sound());
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.conflicts == 2);
	drain();
	EXPECT(origin_has[0] == 2 && origin_has[7] == 3 && get(0) == -2 && live() == 0);
	EXPECT(put(14, 5) == FBY_DONE && get(14) == 5 && sound());
	EXPECT(put_part(14, 3, 2, 6) == FBY_DONE && get(14) == -3 && live() == 1);
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && get(14) == -3 && attach() == FBY_DONE);
	EXPECT(ST->surveyed == SLOTS && live() == 1 && put(14, 7) == FBY_DONE && get(14) == 7);
	again();
	EXPECT(ST->surveyed == 0 && ST->nwindows == 1 && get(14) == 7);
	drain();
	EXPECT(ST->nwindows == 0 && ST->head.nwindows == 0 && origin_has[14] == 7 && live() == 0 && sound());
}

/* A writer holds an era open when destage would end it, and others write meanwhile.  A later drain
 * includes their pages, even while a third block waits for one of their slots. */
static void eras(void)
{
	for (u32 waits = 0; waits < 2; waits++) {
		u64 *stripe;

		make();
		again();
		stripe = fby_stripe(&sp->statics, ST, 5);
		EXPECT(put(0, 1) == FBY_DONE);
		EXPECT(fby_stripe_try(stripe, FBY_STRIPE_STORES) && !fby_static_settle(&sp->statics, 0));
		EXPECT(put(7, 2) == FBY_DONE && put(1, 3) == FBY_DONE);
		fby_stripe_release(stripe);
		if (waits)
			EXPECT(put(14, 4) == FBY_WAIT_SPACE);
		for (u32 i = 0; i < VOLUME_BLOCKS; i++)
			origin_has[i] = 0;
		drain_pass();
		EXPECT(origin_has[0] == 1 && origin_has[7] == 2 && origin_has[1] == 3 && sound());
	}
}

/* Writers follow each other so closely that a stripe is never seen free.  It is enough that each
 * writer was once seen to have left. */
static void eras_end(void)
{
	u64 *a, *b;

	make();
	a = fby_stripe(&sp->statics, ST, 3);
	b = fby_stripe(&sp->statics, ST, 5);
	EXPECT(put(0, 1) == FBY_DONE && fby_stripe_try(b, FBY_STRIPE_STORES));
	EXPECT(!fby_static_settle(&sp->statics, 0));
	fby_stripe_release(b);
	EXPECT(fby_stripe_try(b, FBY_STRIPE_STORES) && fby_static_settle(&sp->statics, 0));
	/* For the next era each stripe is examined anew, whatever was seen of it. */
	EXPECT(put(0, 1) == FBY_DONE && !fby_static_settle(&sp->statics, 0));
	EXPECT(fby_stripe_try(a, FBY_STRIPE_STORES) && !fby_static_settle(&sp->statics, 0));
	fby_stripe_release(b);
	EXPECT(fby_static_settle(&sp->statics, 0) && put(0, 1) == FBY_DONE && !fby_static_settle(&sp->statics, 0));
	fby_stripe_release(a);
	EXPECT(fby_static_settle(&sp->statics, 0) && sound());
}

/* Sets the eras in both copies of the head of a detached share. */
static void eras_of(u64 limit)
{
	for (u32 copy = 0; copy < 2; copy++) {
		struct fby_static_head *h = (void *)(small.base + (copy ? ST->pages - FBY_STATIC_HEAD : ST->at));

		h->settled = h->limit = limit;
		h->crc = fby_crc32c(ST->seed, h, offsetof(struct fby_static_head, crc));
	}
}

static u32 eras_percent(void)
{
	struct fby_volume_info info;

	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE);
	return info.eras_percent;
}

/* An empty share begins anew from half of the eras on.  This holds after a cut in the middle too,
 * with lines and the head's copies in any mixed state. */
static void begun_anew(void)
{
	struct fby_volume_info info;

	make();
	for (u32 n = 0; n < 300; n++)
		EXPECT(put(0, 1) == FBY_DONE);
	drain();
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE);
	eras_of(FBY_ERA_HALF);
	EXPECT(attach() == FBY_DONE && ST->era == FBY_ERA_HALF + 1 && eras_percent() == 50);
	EXPECT(put(0, 2) == FBY_DONE && fby_volume_detach(sp, 0) == FBY_DONE);
	eras_of(FBY_ERA_HALF + 1); /* not empty */
	EXPECT(attach() == FBY_DONE && ST->era == FBY_ERA_HALF + 2 && get(0) == 2);
	drain();
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && eras_percent() == 50);
	keep();
	EXPECT(attach() == FBY_DONE && ST->era == 1 && eras_percent() == 0 && put(7, 3) == FBY_DONE && get(7) == 3);
	restore();
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE);
	for (u32 slots = 0; slots <= SLOTS + 1; slots++) {
		restore();
		EXPECT(opened(true) == FBY_DONE && fby_static_open(&sp->statics, 0));
		for (u32 slot = 0; slot < slots && slot < SLOTS; slot++) {
			memset(line(slot), 0, FBY_LINE);
			fby_static_say(ST, slot, 0, line(slot));
		}
		if (slots > SLOTS) { /* one copy of the head, as attach writes it */
			struct fby_static_head *h = (void *)(small.base + ST->at);

			h->counter++;
			h->flags = 0;
			h->settled = 0;
			h->limit = 2;
			h->crc = fby_crc32c(ST->seed, h, offsetof(struct fby_static_head, crc));
		}
		EXPECT(attach() == FBY_DONE && ST->era <= 3 && get(0) == -2 && get(7) == -2);
		EXPECT(put(7, 3) == FBY_DONE && get(7) == 3);
		again();
		EXPECT(get(7) == 3 && get(0) == -2);
		drain();
		EXPECT(origin_has[7] == 3 && live() == 0 && sound());
	}
}

/* At the end of the eras nothing is written, and the content can be read and is destaged. */
static void eras_used_up(void)
{
	struct fby_bypass b;
	u64 done = 0;

	make();
	EXPECT(put(0, 1) == FBY_DONE && fby_volume_detach(sp, 0) == FBY_DONE);
	eras_of(FBY_ERA_LAST - 1);
	EXPECT(attach() == FBY_DONE && eras_percent() == 100 && put(1, 2) == FBY_DONE && put(0, 5) == FBY_DONE);
	EXPECT(fby_static_settle(&sp->statics, 0) && put(1, 3) == -FBY_E_ERAS && put_part(0, 1, 2, 3) == -FBY_E_ERAS);
	EXPECT(fby_range(sp, 0, FBY_KIND_ZERO, 0, P, &done, &b, &wake) == -FBY_E_ERAS && get(0) == 5 && get(1) == 2);
	drain();
	EXPECT(origin_has[0] == 5 && origin_has[1] == 2 && live() == 0 && sound());
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && attach() == FBY_DONE && put(1, 3) == FBY_DONE && get(1) == 3);
	/* No pool can have this head. */
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE);
	eras_of(FBY_ERA_MAX - 3);
	EXPECT(attach() == -FBY_E_ERAS);
	eras_of(FBY_ERA_MAX - 4);
	EXPECT(attach() == FBY_DONE && get(1) == 3 && put(1, 4) == -FBY_E_ERAS);
	drain();
	EXPECT(origin_has[1] == 3 && sound());
}

/* An era does not end if the pages to be listed are settled, nor twice within a millisecond.  A
 * writer that waits for it then waits no longer. */
static void eras_saved(void)
{
	u64 era;

	make();
	now_ns += 1000000;
	EXPECT(put(0, 1) == FBY_DONE);
	drain();
	era = ST->era;
	for (u32 i = 0; i < 20; i++) {
		EXPECT(put(0, (u8)i) == FBY_DONE);
		now_ns -= 1000 * 1000; /* a drain's steps by a clock that stands */
		EXPECT(fby_volume_drain(sp, 0, true) == FBY_DONE);
		for (u32 step = 0; step < 1000; step++)
			drain_step();
	}
	EXPECT(ST->era - era <= 2);
	drain();
	EXPECT(origin_has[0] == 19 && live() == 0);
	era = ST->era;
	EXPECT(put(0, 1) == FBY_DONE && fby_static_settle(&sp->statics, 0) && ST->era == era + 1);
	EXPECT(put(1, 2) == FBY_DONE && put(7, 3) == FBY_DONE && put(14, 4) == FBY_WAIT_SPACE);
	ST->era_ns = now_ns; /* another era has just begun: what is settled of the slot makes room */
	for (u32 i = 0; i < 50; i++)
		drain_step();
	EXPECT(origin_has[0] == 1 && ST->era == era + 1 && put(14, 4) == FBY_DONE && get(14) == 4 && sound());
}

/* Other blocks share slots in every round of a drain, and the round has no room for both. */
static void drained_beside_conflicts(void)
{
	u64 pass;

	round_pages = 16;
	make();
	round_pages = 64;
	pass = ST->passes + 1;
	origin_has[1] = 0;
	EXPECT(put(1, 1) == FBY_DONE && fby_volume_drain(sp, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 2000 && ST->passes_done < pass; i++) {
		(void)put(0, 2);
		(void)put(7, 3);
		(void)put(14, 4);
		drain_step();
	}
	EXPECT(origin_has[1] == 1 && sound());
}

/* The round that a writer waits for fails.  The writer tries again, and so requests a round again.
 */
static void asked_again(void)
{
	struct fby_io io;
	u64 next;
	u32 woken = 0;

	make();
	EXPECT(put(0, 1) == FBY_DONE && put(7, 2) == FBY_DONE && put(14, 3) == FBY_WAIT_SPACE);
	sp->space.wait_mask |= FBY_WAKE_SPACE;
	for (u32 i = 0; i < 200 && !woken; i++) {
		if (fby_destage_step(sp, now_ns, &io, &next, &woken) == FBY_ORIGIN)
			fby_destage_complete(sp, io.id, 5);
		now_ns += 1000000;
		woken &= FBY_WAKE_SPACE;
	}
	EXPECT(woken && put(14, 3) == FBY_WAIT_SPACE && ST->wanted[fby_cpu() % FBY_WANTED] == 1);
}

/* A volume has its own period.  It is destaged each time that the period has passed, and not
 * before. */
static void periods(void)
{
	struct fby_io io;
	u64 next, begun_ns = 0;
	u32 got = 0;

	flush_us = 10000;
	make();
	flush_us = 0;
	again();
	EXPECT(ST->head.flush_us == 10000 && put(0, 1) == FBY_DONE);
	for (u32 i = 0; i < 20000 && got < 3; i++) {
		int decision = fby_destage_step(sp, now_ns, &io, &next, &wake);

		if (decision == FBY_ORIGIN) {
			if (io.op == FBY_IO_WRITE) {
				EXPECT(!begun_ns || now_ns - begun_ns >= 10000000);
				begun_ns = now_ns;
				got++;
				EXPECT(put(0, (u8)(got + 1)) == FBY_DONE);
			}
			fby_destage_complete(sp, io.id, 0);
		} else if (decision == FBY_DONE) {
			EXPECT(next <= now_ns + 10000000);
			now_ns += 1000000;
		}
	}
	EXPECT(got == 3 && sound());
}

/* --- past it --------------------------------------------------------------------------------- */

static void past(void)
{
	struct fby_bypass b, c;

	make();
	EXPECT(fby_bypass_begin(sp, &b, 0, 0, 2 * P, 1) == FBY_DONE && b.nsectors == 2 * P);
	EXPECT(put(1, 1) == FBY_WAIT_BLOCK && put_part(0, 1, 1, 1) == FBY_WAIT_BLOCK && put(2, 1) == FBY_DONE);
	EXPECT(fby_bypass_begin(sp, &c, 0, 2 * P, P, 1) == FBY_CACHED && c.nsectors == P);
	EXPECT(fby_bypass_begin(sp, &c, 0, P, P, 1) == FBY_WAIT_BLOCK);
	fby_bypass_end(sp, &b, 0, &wake);
	EXPECT(put(1, 1) == FBY_DONE && get(1) == 1);
	EXPECT(fby_bypass_begin(sp, &c, 0, 0, 3 * P, 1) == FBY_DONE && c.nsectors == P);
	fby_bypass_end(sp, &c, 0, &wake);
	EXPECT(sound());
}

/* --- each bit ------------------------------------------------------------------------------- */

/* The block has the right content or is lost.  It never shows older content or the origin's. */
static bool right_or_lost(u64 block, int right)
{
	int is = get(block);

	return is == right || is == -1;
}

static void flips(bool crash)
{
	u32 lost = 0;

	fill();
	keep();
	for (u32 bit = 0; bit < 2 * FBY_LINE * 8; bit++) {
		u8 *at = (u8 *)line(0) + bit / 8;

		*at ^= (u8)(1u << (bit % 8));
		if (crash)
			again();
		EXPECT(right_or_lost(0, 2) && right_or_lost(1, 3) && right_or_lost(8, 4));
		lost += get(0) == -1 || get(1) == -1 || get(8) == -1;
		if (crash) {
			drain();
			EXPECT(origin_has[0] != 1 && right_or_lost(2, -2) && sound());
		}
		restore();
	}
	EXPECT(lost > 400); /* but for the control word, which is there twice, and what is old */
	for (u32 bit = 0; bit < 3 * 2 * FBY_PAGE * 8; bit += 401) {
		u8 *at = page(0, 0) + bit / 8;

		*at ^= (u8)(1u << (bit % 8));
		if (crash)
			again();
		EXPECT(right_or_lost(0, 2) && right_or_lost(1, 3) && right_or_lost(8, 4));
		restore();
	}
	for (u32 bit = 0; bit < 2 * FBY_STATIC_HEAD * 8; bit++) {
		u8 *at = small.base + (bit / 8 < FBY_STATIC_HEAD ? ST->at : ST->pages - 2 * FBY_STATIC_HEAD);

		at[bit / 8] ^= (u8)(1u << (bit % 8));
		again();
		EXPECT(get(0) == 2 && get(1) == 3 && get(8) == 4 && ST->nwindows == 1);
		restore();
	}
}

/* --- what the check sees -------------------------------------------------------------------------- */

static void judged(void)
{
	const u64 bits = (1ull << FBY_SC_CHECK_SHIFT) - 1;
	struct fby_static_line *l;

	fill();
	keep();
	EXPECT(sound());
	sp->statics.dirty[0] = 0;
	EXPECT(complains("destage would not find a page"));
	fby_static_dirty_set(&sp->statics, ST, 0);
	ST->count[0].live++;
	EXPECT(complains("miscounted"));
	ST->count[0].live--;
	l = line(0);
	fby_static_say(ST, 0, l->control & bits & ~FBY_SC_SOLE, l);
	EXPECT(complains("both ways of a slot have the newest page"));
	fby_static_say(ST, 0, (l->control & bits & ~3ull) | FBY_SC_SOLE, l);
	EXPECT(complains("an older page is left without the newer"));
	restore();
	ST->era = 0;
	EXPECT(complains("an era to come"));
	ST->era = ST->head.limit - 1;
	EXPECT(sound());
}

/* --- requests in flight ------------------------------------------------------------------------ */

/* Starts a round of seven requests.  Returns how many were in flight before one ended; all have
 * ended then. */
static u32 in_flight(void)
{
	struct fby_io io;
	u32 deepest = 0;
	u64 next;

	EXPECT(fby_volume_drain(sp, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 1000 && !fby_volume_clean(sp, 0); i++) {
		u32 ids[64], n = 0;
		int decision;

		do {
			decision = fby_destage_step(sp, now_ns += 1000, &io, &next, &wake);
			if (decision == FBY_ORIGIN)
				ids[n++] = io.id;
		} while (decision != FBY_DONE);
		deepest = n > deepest ? n : deepest;
		while (n)
			fby_destage_complete(sp, ids[--n], 0);
		now_ns += 1000000; /* an era may end */
	}
	EXPECT(fby_volume_clean(sp, 0) && fby_volume_drain(sp, 0, false) == FBY_DONE);
	return deepest;
}

static u32 depth_with(u32 depth, bool read, bool waiting)
{
	for (u64 block = 0; block < 14; block += 2)
		EXPECT(put(block, 1) == FBY_DONE);
	sp->drain.volume[0].pace.depth = depth;
	if (read)
		fby_origin_foreground(sp, 0, true);
	if (waiting)
		fby_fetch_or(&sp->space.wait_mask, (u32)FBY_WAKE_SPACE);
	depth = in_flight();
	if (read)
		fby_origin_foreground(sp, 0, false);
	now_ns += 1000000000; /* and it is long ago */
	fby_fetch_and(&sp->space.wait_mask, ~(u32)FBY_WAKE_SPACE);
	return depth;
}

/* The origin gets as many requests as for any volume.  There are no more than leave a request
 * quick, and fewer while somebody reads from it, except if a writer waits for room. */
static void depths(void)
{
	struct fby_volume_info info;
	struct fby_pace *pace;

	nrequests = 40;
	make();
	pace = &sp->drain.volume[0].pace;
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.origin_depth == 16);
	EXPECT(depth_with(40, false, false) == 7);
	EXPECT(depth_with(3, false, false) == 3);
	EXPECT(depth_with(12, true, false) == 3);
	EXPECT(depth_with(12, true, true) == 7);
	pace->base_ns = 100;
	pace->latency_ns = 1000000000;
	EXPECT(depth_with(4, true, true) == 4 && pace->depth == 3);
	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.origin_depth == 3);
	pace->base_ns = pace->latency_ns = 1000000000;
	EXPECT(depth_with(3, true, true) == 3 && pace->depth == 4);
	nrequests = 2;
}

/* --- records and options --------------------------------------------------------------------------- */

static void records(void)
{
	struct fby_static_record r;
	u32 marks;
	u16 index;

	fill();
	r = sp->space.owner[0].share;
#define RECORD(good, change) do { struct fby_static_record had = r; change; \
	EXPECT(fby_record_sane(0, (void *)&r) == (good)); r = had; } while (0)
	RECORD(true, (void)0);
	RECORD(false, r.slots = 0);
	RECORD(false, r.slots = 1u << 31);
	RECORD(true, r.first = ~0u); /* whether the pool has it is seen by attach */
	RECORD(true, r.marks = ~0u);
	RECORD(false, r.flags = 1);
	RECORD(false, r.block_size = 1024);
	RECORD(false, r.origin_sectors = 0);
	RECORD(false, memset(r.name, 'x', sizeof(r.name)));
	/* The share is not within the pool's, or its head states another size. */
	EXPECT(fby_volume_detach(sp, 0) == FBY_DONE);
	sp->space.owner[0].share.first += 2 * SHARE / FBY_STATIC_UNIT;
	EXPECT(attach() == -FBY_E_VOLUME_DAMAGED);
	sp->space.owner[0].share.first = ~0u;
	EXPECT(attach() == -FBY_E_VOLUME_DAMAGED);
	sp->space.owner[0].share = r;
	sp->space.owner[0].share.slots--;
	EXPECT(attach() == -FBY_E_VOLUME_DAMAGED);
	sp->space.owner[0].share = r;
	EXPECT(attach() == FBY_DONE && get(0) == 2);
	/* Marks are counted in the same place as in other records, and leave the share alone. */
	EXPECT(fby_volume_mark(sp, 0, FBY_MARK_BEGIN, &marks) == FBY_DONE && marks == 8);
	EXPECT(fby_volume_mark(sp, 0, FBY_MARK_SET, &marks) == FBY_DONE && marks == 9);
	/* If a record is unreadable, its share may be anywhere. */
	sp->space.owner[2].damaged = true;
	EXPECT(add("t", SHARE, &index) == -FBY_E_VOLUME_DAMAGED);
	sp->space.owner[2].damaged = false;
	EXPECT(fby_pool_close(sp) == FBY_DONE);
	EXPECT(opened(true) == FBY_DONE && attach() == FBY_DONE && ST->surveyed == SLOTS && live() == 3 && get(0) == 2);
	EXPECT(sp->space.owner[0].share.marks == 9);
}

/* --- the media changes under a request --------------------------------------------------------- */

/* The line that slot 0 had with both of its places in use appears again after begin has found a
 * free place.  That must not stop the engine. */
static void line_comes_back(u32 first, u32 n)
{
	struct fby_static_line full;
	struct fby_write w;
	u8 data[FBY_PAGE];
	struct fby_vec vec = { data, n * FBY_SECTOR };

	make();
	EXPECT(put(0, 1) == FBY_DONE && put(7, 2) == FBY_DONE);
	full = *line(0);
	drain();
	memset(data, 3, sizeof(data));
	EXPECT(fby_write_begin(sp, &w, 0, 14 * P + first, n) == FBY_DONE && w.nsectors == n);
	*line(0) = full;
	fby_write_copy(sp, &w, &vec, 1, 0);
	fby_write_commit(sp, &w);
	fby_write_publish(sp, &w);
	EXPECT(n < P || get(14) == 3);
	drain();
}

static bool breathed(void)
{
	bool any = breaths > 0;

	breaths = 0;
	return any;
}

/* Each loop over all slots or chunks lets others have the CPU. */
static void breathes(void)
{
	struct fby_lost_at at = { 0 };
	struct fby_report_block lost[64];
	u16 index;

	make();
	breaths = 0;
	EXPECT(add("t", SHARE, &index) == FBY_DONE && breathed());
	EXPECT(put(3, 1) == FBY_DONE && !breathed());
	EXPECT(fby_lost_list(sp, 0, &at, lost, 64) == 0 && breathed());
	again();
	EXPECT(breathed());
	drain();
	EXPECT(breathed()); /* the survey */
	EXPECT(fby_pool_close(sp) == FBY_DONE && breaths >= sp->space.store.sb.nchunks);
}

void test_static(void)
{
	line_comes_back(0, P);
	line_comes_back(2, 3);
	breathes();
	places();
	cases();
	periods();
	eras_end();
	begun_anew();
	eras_used_up();
	eras_saved();
	drained_beside_conflicts();
	asked_again();
	past();
	flips(false);
	flips(true);
	eras();
	judged();
	depths();
	records();
	static_done();
}
