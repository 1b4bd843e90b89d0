// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_ops.c - a sequence of operations decoded from bytes, against a model.
 *
 * The model (fuzz_ops_model.h) is one number for each sector: which write it has to
 * show.  Requests (fuzz_ops_requests.h) go step by step, several at once: writes, reads,
 * writes past the cache, zeroings and discards, flushes, and those of destage to failing
 * and reordering origins, while the pool is closed, crashes and recovers.  A read also has
 * others between two of its own looks at the media.  The origins have a volatile cache
 * that a crash empties, or a flush that fails, and what had gone past our own with it,
 * unless a flush came between.  A crash here loses no store that the engine made: what
 * the hardware may leave is the crash explorer's subject, this one's is the order of
 * operations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_ops_requests.h"

static struct fby_options options;
static struct fuzz_input *input;

/* --- the pool comes and goes ------------------------------------------------------------ */

static void check_now(void)
{
	char text[200] = "";

	if (fby_check(pool, !held_any(), text, sizeof(text))) {
		fprintf(stderr, "fuzz: invariant: %s\n", text);
		abort();
	}
}

static void attach_all(void)
{
	model_open();
	for (u32 v = 0; v < NVOL; v++) {
		if (fuzz_attach(pool, (u16)v, FBY_HOLES_FAIL))
			fuzz_finding("attach fails", v, 0);
		model_attach(v);
	}
}

static void open_pool(void)
{
	pool = fuzz_open(&options);
	if (!pool)
		fuzz_finding("the pool does not open", 0, 0);
}

static void read_all(void)
{
	for (u32 v = 0; v < NVOL; v++)
		for (u64 b = 0; b < volume_sectors[v] / FBY_PAGE_SECTORS; b++)
			read_now(v, b, 0, FBY_PAGE_SECTORS);
	read_now(0, 63, 0, 5);
}

/* The host ends, or power fails: committed writes are there, others are not, and without power
 * the origin forgets unflushed data. */
static void crash(u32 how)
{
	held_crash(how & 1);
	model_crash(how & 2);
	open_pool();
	attach_all();
	read_all();
}

static void close_and_open(void)
{
	struct fby_pool_info info;
	u32 tries = 0;

	held_finish();
	check_now();
	while (fby_pool_close(pool)) { /* busy until a step has seen the completions */
		destage_step(1);
		while (destage_pending())
			destage_complete(0x10);
		if (tries++ > 1000)
			fuzz_finding("close fails", 0, 0);
	}
	fby_pool_info(pool, &info);
	if (!(info.sb.flags & FBY_SB_CLEAN))
		fuzz_finding("a closed pool is not clean", info.sb.flags, 0);
	open_pool();
	attach_all();
	read_all();
}

static void change_options(u32 bits)
{
	options.verify = bits % 3;
	options.no_checksums = bits >> 2 & 1;
	options.high_watermark = bits >> 3 & 1 ? 60 : 100;
	options.low_watermark = bits >> 3 & 1 ? 30 : 90;
	options.max_age_ns = bits >> 4 & 1 ? 50000000 : 0;
	options.idle_ns = bits >> 5 & 1 ? 20000000 : 0;
	if (fby_pool_set_options(pool, &options))
		fuzz_finding("options refused", bits, 0);
}

static void detach_attach(u16 volume)
{
	int rc = fby_volume_detach(pool, volume);

	if (rc == -FBY_E_BUSY)
		return;
	if (rc || fuzz_attach(pool, volume, FBY_HOLES_FAIL))
		fuzz_finding("detach and attach fail", volume, (u64)-rc);
	model_attach(volume);
}

/* Destage to its rest, or so far. */
static void settle(u32 steps)
{
	for (u32 i = 0; i < steps; i++) {
		destage_step(20);
		while (destage_pending())
			destage_complete(0x10);
	}
}

enum { WRITE, WRITE_PAST, READ, RANGE, BEGIN, ADVANCE, ADVANCE_2, DESTAGE, DESTAGE_2, DESTAGE_3, COMPLETE, COMPLETE_2,
       DRAIN, REOPEN, OPTIONS, DETACH, PAST, PAST_ON, PAST_ON_2, FLUSH, FLUSH_ON, READ_BESIDE, READ_ON, SETTLE, STEPS };
static const char *const step_name[STEPS] = {
	"write",    "write",	"read",	 "range",   "begin",  "advance", "advance",  "destage",
	"destage",  "destage",	"complete", "complete", "drain", "reopen", "options", "detach",
	"past",	    "past on",	"past on", "flush", "flush on", "read beside", "read on", "settle",
};

static void step(struct fuzz_input *in);

static u32 steps_beside;
static void beside(void)
{
	for (; steps_beside > 0; steps_beside--)
		step(input);
}

static void past_of(u32 volume, u64 sector, u32 n, u32 kind)
{
	if (kind < 2)
		past_hold(volume, sector, n);
	else
		range_hold(volume, kind == 2 ? FBY_KIND_ZERO : FBY_KIND_DISCARD, sector, n);
}

static void read_beside(u32 volume, u64 block, u32 bits)
{
	u32 first = bits % 8;

	if (steps_beside > 0)
		return;
	steps_beside = bits / 64 * 3;
	read_hold(volume, block, first, 1 + bits / 8 % (8 - first), steps_beside ? beside : NULL);
	steps_beside = 0;
}

static void step(struct fuzz_input *in)
{
	u32 what = fuzz_take(in, 1) % STEPS, a = fuzz_take(in, 1), b = fuzz_take(in, 1);
	u32 volume = a & 1, n = volume_block[volume] / FBY_SECTOR * (1 + b % 24);
	u64 sector = (a >> 1) * 4;

	if (a >= 0xfc) /* anything, aligned or not */
		sector = b * 3, n = b % 11;
	else if (volume)
		sector &= ~7u;
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "%s: volume %u sector %llu n %u, %u %u\n", step_name[what], volume,
			(unsigned long long)sector, n, a, b);
	switch (what) {
	case WRITE:
	case WRITE_PAST:
		if (what == WRITE_PAST && b >= 0xb0)
			past_now(volume, sector, n);
		else
			write_now(volume, sector, n);
		break;
	case READ:
		read_now(volume, sector / FBY_PAGE_SECTORS, b % 8, 1 + b / 8 % (8 - b % 8));
		break;
	case RANGE:
		range_now(volume, b & 1 ? FBY_KIND_ZERO : FBY_KIND_DISCARD, sector, n);
		break;
	case BEGIN:
		write_hold(volume, sector, n);
		break;
	case ADVANCE:
	case ADVANCE_2:
		write_go_on(a, b);
		break;
	case DESTAGE:
	case DESTAGE_2:
	case DESTAGE_3:
		for (u32 i = 0; i <= a % 16; i++)
			destage_step(b % 32);
		break;
	case COMPLETE:
	case COMPLETE_2:
		destage_complete(b);
		break;
	case DRAIN:
		fby_volume_drain(pool, (u16)volume, b & 1);
		break;
	case REOPEN: /* not beside a read */
		if (steps_beside == 0 && b % 4 == 0)
			close_and_open();
		else if (steps_beside == 0)
			crash(b >> 2);
		break;
	case OPTIONS:
		change_options(b);
		break;
	case DETACH:
		if (a & 2 && !held_of(volume))
			detach_attach((u16)volume);
		flush_now(volume);
		check_now();
		break;
	case PAST:
		past_of(volume, sector, n, b / 24 % 4);
		break;
	case PAST_ON:
	case PAST_ON_2:
		past_go_on(a, b);
		break;
	case FLUSH:
		flush_hold(volume, b % 4 == 3);
		break;
	case FLUSH_ON:
		flush_go_on(a, b);
		break;
	case READ_BESIDE:
		read_beside(volume, sector / FBY_PAGE_SECTORS, b);
		break;
	case READ_ON:
		read_go_on(a);
		break;
	case SETTLE:
		settle(b);
		break;
	}
}

static void start(u32 head)
{
	held_crash(false);
	model_reset();
	fuzz_now_ns = 1;
	options = (struct fby_options){ .nslots = 1 + head % 3, .high_watermark = 100, .low_watermark = 90 };
	fuzz_media_base(0);
	open_pool();
	for (u32 v = 0; v < NVOL; v++) {
		struct fby_volume_spec s = { .name = { (char)('a' + v) }, .identity = "id|path",
					     .origin_sectors = volume_sectors[v], .block_size = volume_block[v] };
		u16 index;

		if (fby_volume_add(pool, &s, &index) || index != v)
			fuzz_finding("volume add fails", v, 0);
	}
	attach_all();
}

/* With all requests ended a drain comes to its end, and the origins alone are complete. */
static void finish(void)
{
	held_finish();
	while (destage_pending())
		destage_complete(0x10);
	check_now();
	read_all();
	for (u16 v = 0; v < NVOL; v++)
		fby_volume_drain(pool, v, true);
	if (!fuzz_destage(pool, origin_at_once, 100000))
		fuzz_finding("destage does not come to rest", 0, 0);
	if (!fby_volume_clean(pool, 0) || !fby_volume_clean(pool, 1))
		fuzz_finding("a drained volume is not clean", 0, 0);
	flush_waiting();
	for (u32 v = 0; v < NVOL; v++) {
		flush_now(v); /* may tell of a failed one */
		if (flush_now(v) != FBY_DONE)
			fuzz_finding("a flush does not succeed", v, 0);
	}
	for (u32 v = 0; v < NVOL; v++)
		for (u32 s = 0; s < volume_sectors[v]; s++)
			if (sector_of[v][s].durable != sector_of[v][s].shown)
				fuzz_finding("the drained origin differs", sector_of[v][s].durable | (u64)s << 32,
					     sector_of[v][s].shown | (u64)v << 32);
	check_now();
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };

	if (size < 4)
		return 0;
	input = &in;
	start(fuzz_take(&in, 1));
	while (fuzz_left(&in))
		step(&in);
	finish();
	fuzz_free();
	return 0;
}
