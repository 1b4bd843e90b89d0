// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_drained.c - the end of a drain, and the verdict about the origin (host/drained.c).
 *
 * Goal: an origin is never called complete that is not, by the code that every host asks.
 * Method: a table of kinds of volume (cache, static) by states of volume and origin: empty,
 * dirty, dirty again after each of eight drains, with writes during the drain, damaged, killed;
 * an origin that fails to write or to flush, and one that is well again.  The origin has a
 * volatile cache, so only what was flushed counts.
 */
#include "inside_static.h"
#include "host/drained.h"

#define STEPS 20000u
#define WRITTEN 10u /* blocks */
#define PART 4u     /* slots that one look for lost blocks reads, at most */

static struct row {
	const char *kind;
	u64 static_bytes;
	u16 index;
	void *memory;
} rows[] = { { "cache", 0, 0, NULL }, { "static", SHARE, 0, NULL } };

static const struct row *row;
static u8 acked[VOLUME_BLOCKS], cached[VOLUME_BLOCKS], durable[VOLUME_BLOCKS];
static int write_error, flush_error; /* of the origin */
static u32 parts; /* searches for lost blocks in the last drain */
static u32 beside; /* the step of the drain at which a write comes */

static void fill_block(u64 block, u8 what)
{
	static u8 data[FBY_PAGE];
	u32 done = 0;

	memset(data, what, sizeof(data));
	EXPECT(fby_write(sp, row->index, block * P, P, data, &done, &wake) == FBY_DONE);
	acked[block] = what;
}

static void fill_blocks(u8 what)
{
	for (u64 block = 0; block < WRITTEN; block++)
		fill_block(block, what);
}

static void origin_step(void)
{
	struct fby_io io;
	u64 next;

	now_ns += 100000;
	if (fby_destage_step(sp, now_ns, &io, &next, &wake) != FBY_ORIGIN)
		return;
	if (io.op == FBY_IO_FLUSH) {
		if (!flush_error)
			memcpy(durable, cached, sizeof(durable));
		fby_destage_complete(sp, io.id, flush_error);
		return;
	}
	for (u64 s = 0; s < io.nsectors && !write_error; s++)
		cached[(io.sector + s) / P] = ((u8 *)io.buf)[s * FBY_SECTOR];
	fby_destage_complete(sp, io.id, write_error);
}

/* Waits as a host does. */
static int wait_drained(struct fby_drain_wait *d, struct fby_volume_info *info)
{
	struct fby_report_block blocks[64];
	u32 slots;
	int rc;

	parts = 0;
	do {
		rc = fby_drained_begin(d, sp, row->index, info);
		for (u32 i = 0; i < STEPS && rc == FBY_DONE; i++) {
			rc = fby_drained_look(d, info);
			if (rc != FBY_AGAIN)
				break;
			rc = FBY_DONE;
			origin_step();
			if (i == beside && i)
				fill_block(3, acked[3] ^ 0x40);
			if (i + 1 == STEPS)
				return -FBY_E_BUSY;
		}
		if (rc != FBY_DONE)
			break;
		do {
			slots = d->lost.page;
			rc = fby_drained_lost(d, info, blocks, 64);
			EXPECT(d->lost.page - slots <= PART);
			parts++;
		} while (rc == FBY_AGAIN);
	} while (d->anew);
	EXPECT(fby_volume_drain(sp, row->index, false) == FBY_DONE);
	return rc;
}

static enum fby_completeness judged(const struct fby_volume_info *info, bool drained)
{
	struct fby_complete c;

	fby_complete_of(&c, info, drained);
	return fby_complete_judge(&c);
}

/* The drain ends with success, and the origin alone has everything. */
static void drains(const char *state)
{
	struct fby_volume_info info;
	struct fby_drain_wait d = { 0 };
	u8 before[VOLUME_BLOCKS];
	int rc;

	memcpy(before, acked, sizeof(before));
	rc = wait_drained(&d, &info);
	if (rc != FBY_DONE || judged(&info, true) != FBY_IS_WHOLE)
		fprintf(stderr, "inside: %s, %s: %s, %s\n", row->kind, state, rc ? fby_error_name(rc) : "ended",
			fby_complete_text(judged(&info, true)));
	EXPECT(rc == FBY_DONE && judged(&info, true) == FBY_IS_WHOLE);
	for (u32 b = 0; b < VOLUME_BLOCKS; b++) {
		bool newer = acked[b] != before[b]; /* which the pool has */

		if (durable[b] != before[b] && !newer)
			fprintf(stderr, "inside: %s, %s: block %u is not on the origin\n", row->kind, state, b);
		EXPECT(durable[b] == before[b] || newer);
	}
}

static void fails(int error)
{
	struct fby_volume_info info;
	struct fby_drain_wait d = { 0 };
	enum fby_completeness c;

	EXPECT(wait_drained(&d, &info) == -FBY_E_ORIGIN_IO && d.origin == error);
	EXPECT(fby_volume_info(sp, row->index, &info) == FBY_DONE);
	c = judged(&info, false);
	EXPECT(c == FBY_IS_ORIGIN_FAILS || c == FBY_IS_CACHED || c == FBY_IS_UNKNOWN);
	for (u32 i = 0; i < 100; i++) /* other requests in flight fail too */
		origin_step();
	now_ns += 60000000000ull; /* the pause after it */
}

static void attach_row(struct row *r)
{
	struct fby_attach a = { .origin_sectors = volume_sectors, .identity = "memory", .round_pages = 64,
				.nrequests = 2, .buffer_bytes = 65536 };

	a.mem_bytes = fby_volume_bytes(sp, a.round_pages, a.nrequests, a.buffer_bytes);
	free(r->memory);
	a.mem = r->memory = aligned_alloc(FBY_PAGE, fby_round_up(a.mem_bytes, FBY_PAGE));
	memset(a.mem, 0, a.mem_bytes);
	EXPECT(fby_volume_attach(sp, r->index, &a) == FBY_DONE);
}

/* Spoils one byte of the page on the media that is full of this byte. */
static void spoil(u8 what)
{
	for (u64 at = 0; at < small.size; at += FBY_PAGE) {
		u32 n = 0;

		while (n < FBY_PAGE && small.base[at + n] == what)
			n++;
		if (n == FBY_PAGE) {
			small.base[at + 77] ^= 1;
			return;
		}
	}
	EXPECT(!"the page is on the media");
}

static void loses(void)
{
	struct fby_volume_info info;
	struct fby_drain_wait d = { 0 };

	fill_block(5, 0xa5);
	fill_block(6, 0xa6);
	spoil(0xa5);
	EXPECT(wait_drained(&d, &info) == FBY_DONE && info.lost_blocks == 1);
	EXPECT(judged(&info, true) == FBY_IS_LOST_BLOCKS && judged(&info, false) == FBY_IS_LOST_BLOCKS);
	/* The search for lost blocks has many parts, so a host delays nobody for the whole share.
	 */
	EXPECT(info.slots ? info.slots > PART && parts > info.slots / PART : parts == 1);
	EXPECT(durable[6] == 0xa6 && durable[5] != 0xa5);
	fill_block(5, 0xb5);
	drains("overwritten after a loss");
}

static void states(void)
{
	memset(acked, 0, sizeof(acked));
	memset(cached, 0, sizeof(cached));
	memset(durable, 0, sizeof(durable));
	drains("empty");
	for (u8 n = 1; n <= 8; n++) {
		fill_blocks(n);
		drains("dirty");
		drains("drained before");
	}
	for (beside = 1; beside < 20; beside++) {
		fill_blocks((u8)(0x20 + beside));
		drains("written beside");
	}
	beside = 0;
	drains("after what was written beside");
	fill_blocks(0x51);
	write_error = 5;
	fails(5);
	fails(5);
	write_error = 0;
	drains("well again");
	fill_blocks(0x52);
	flush_error = 28;
	fails(28);
	flush_error = 0;
	drains("flushes again");
	loses();
}

/* The state after the death of a process: the page count of a static volume is unknown. */
static void killed(struct row *r)
{
	fill_blocks(0x61);
	EXPECT(opened(true) == FBY_DONE);
	attach_row(r);
	drains("killed");
	EXPECT(fby_volume_detach(sp, r->index) == FBY_DONE);
}

static void verdicts(void)
{
	for (u32 bits = 0; bits < 1u << 8; bits++) {
		struct fby_complete c = { .damaged = bits & 1, .origin_changed = bits >> 1 & 1, .attached = bits >> 2 & 1,
					  .failing = bits >> 3 & 1, .counted = bits >> 4 & 1, .lost_entries = bits >> 5 & 1,
					  .lost_blocks = bits >> 6 & 1, .pages_left = bits >> 7 & 1 };
		bool whole = c.counted && !c.damaged && !c.origin_changed && !c.lost_entries && !c.lost_blocks && !c.pages_left;

		EXPECT((fby_complete_judge(&c) == FBY_IS_WHOLE) == whole);
		EXPECT(fby_complete_text(fby_complete_judge(&c)) != NULL);
	}
}

/* A drain does not end while a copy made within the pool is above the watermark.  The copy may be
 * of a page that was below. */
static void waits_for_copies(void)
{
	u64 *watermark = &sp->space.owner[row->index].rec.watermark, before = *watermark;
	u64 *moved = &sp->drain.volume[row->index].moved_last, moved_before = *moved;
	struct fby_volume_info info;
	struct fby_drain_wait d;

	fill_block(2, 0x77);
	EXPECT(fby_drained_begin(&d, sp, row->index, &info) == FBY_DONE && d.upto > 0);
	EXPECT(fby_drained_look(&d, &info) == FBY_AGAIN);
	*watermark = d.upto;
	*moved = d.upto + 1;
	EXPECT(fby_drained_look(&d, &info) == FBY_AGAIN);
	*moved = d.upto;
	EXPECT(fby_drained_look(&d, &info) == FBY_DONE);
	*watermark = before;
	*moved = moved_before;
	drains("after a copy");
}

void test_drained(void)
{
	struct fby_drain_wait d = { 0 };
	struct fby_volume_info info;

	verdicts();
	for (u32 i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		make();
		EXPECT(fby_volume_detach(sp, 0) == FBY_DONE && fby_volume_remove(sp, 0, true) == FBY_DONE);
		row = &rows[i];
		EXPECT(add("v", row->static_bytes, &rows[i].index) == FBY_DONE);
		EXPECT(fby_drained_begin(&d, sp, row->index, &info) == -FBY_E_VOLUME_DETACHED);
		attach_row(&rows[i]);
		states();
		if (!row->static_bytes)
			waits_for_copies();
		killed(&rows[i]);
	}
}
