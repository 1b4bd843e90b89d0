// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_ops.c - a sequence of operations decoded from bytes, against a model.
 *
 * The model is one number for each sector: which write it has to show.  Writes
 * go step by step, up to three at once, while reads, discards, destage, failing
 * and reordered origin requests, close, crash and recovery happen in between.
 * The origins have a volatile cache that a crash empties, and what had gone past
 * our own with it, unless a flush came between.  A crash here loses
 * no store that the engine made: what the hardware may leave is the crash
 * explorer's subject, this one's is the order of operations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

#define NVOL 2u
#define NHELD 3u
#define NPENDING 4u
#define BATCH_SECTORS (FBY_BATCH_PAGES * FBY_PAGE_SECTORS)

static const u32 volume_sectors[NVOL] = { 509, 512 };
static const u32 volume_block[NVOL] = { 512, 4096 };

/* Versions, a sector each: what is acknowledged; what the origin would answer;
 * what it would answer after a loss of power. */
static u32 model[NVOL][512], cached[NVOL][512], durable[NVOL][512];
/* The model's version went past the cache and was not flushed since. */
static bool past[NVOL][512];
static u32 version;

/* Writes between begin and publish. */
static struct held {
	struct fby_write w;
	u64 sector;
	u32 version;
	enum { HELD_NONE, HELD_BEGUN, HELD_COPIED, HELD_COMMITTED } stage;
} held[NHELD];

static struct fby_io pending[NPENDING];
static u32 npending;
static struct fby_pool *pool;
static struct fby_options options;

static void put(u8 *sector, u32 value)
{
	for (u32 i = 0; i < FBY_SECTOR; i += 4)
		memcpy(sector + i, &value, 4);
}

static u32 get(const u8 *sector, u32 volume, u64 at)
{
	u32 value, other;

	memcpy(&value, sector, 4);
	for (u32 i = 4; i < FBY_SECTOR; i += 4) {
		memcpy(&other, sector + i, 4);
		if (other != value)
			fuzz_finding("torn sector", volume, at);
	}
	return value;
}

static bool any_held(void)
{
	for (u32 i = 0; i < NHELD; i++)
		if (held[i].stage)
			return true;
	return false;
}

/* --- the origin ------------------------------------------------------------------- */

static int origin_do(const struct fby_io *io)
{
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "  origin: op %u volume %u sector %llu n %llu\n", io->op, io->volume,
			(unsigned long long)io->sector, (unsigned long long)io->nsectors);
	switch (io->op) {
	case FBY_IO_WRITE:
		for (u64 s = 0; s < io->nsectors; s++)
			cached[io->volume][io->sector + s] =
				get((const u8 *)io->buf + s * FBY_SECTOR, io->volume, io->sector + s);
		break;
	case FBY_IO_ZERO:
	case FBY_IO_DISCARD:
		for (u64 s = 0; s < io->nsectors; s++)
			cached[io->volume][io->sector + s] = 0;
		break;
	case FBY_IO_FLUSH:
		memcpy(durable[io->volume], cached[io->volume], sizeof(durable[0]));
		break;
	default:
		fuzz_finding("unknown origin request", io->op, 0);
	}
	return 0;
}

static void destage_step(u32 ms)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;

	if (npending == NPENDING)
		return;
	fuzz_now_ns += ms * 1000000ull;
	if (fby_destage_step(pool, fuzz_now_ns, &io, &next, &wake) != FBY_ORIGIN)
		return;
	for (u32 i = 0; i < npending; i++)
		if (io.op != FBY_IO_FLUSH && pending[i].op != FBY_IO_FLUSH && io.volume == pending[i].volume &&
		    io.sector / 8 < (pending[i].sector + pending[i].nsectors + 7) / 8 &&
		    pending[i].sector / 8 < (io.sector + io.nsectors + 7) / 8 &&
		    io.sector < pending[i].sector + pending[i].nsectors && pending[i].sector < io.sector + io.nsectors)
			fuzz_finding("two origin writes for one block in flight", io.sector, pending[i].sector);
	if (io.op != FBY_IO_FLUSH && (io.nsectors == 0 || io.sector + io.nsectors > volume_sectors[io.volume]))
		fuzz_finding("origin request out of range", io.sector, io.nsectors);
	pending[npending++] = io;
}

/* how: low bits choose which; then done, failed, or failed after half of it. */
static void complete_one(u32 how)
{
	u32 i = how % (npending ? npending : 1);
	struct fby_io io;

	if (!npending)
		return;
	io = pending[i];
	pending[i] = pending[--npending];
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "  complete: op %u volume %u sector %llu n %llu%s\n", io.op, io.volume,
			(unsigned long long)io.sector, (unsigned long long)io.nsectors, how >> 4 & 3 ? "" : " fails");
	if (how >> 4 & 3)
		origin_do(&io);
	else if (io.op == FBY_IO_WRITE && how >> 6) {
		struct fby_io half = io;

		half.nsectors = (half.nsectors + 1) / 2;
		origin_do(&half);
	}
	fby_destage_complete(pool, io.id, how >> 4 & 3 ? 0 : 5);
}

/* --- reads and writes ---------------------------------------------------------------- */

static void read_block(u32 volume, u64 block, u32 first, u32 n)
{
	u64 sector = block * FBY_PAGE_SECTORS + first;
	u8 buf[FBY_PAGE], origin, lost;
	int rc;

	if (sector + n > volume_sectors[volume])
		return;
	memset(buf, 0xee, sizeof(buf));
	rc = fby_read_block(pool, (u16)volume, block, first, n, buf, &origin, &lost);
	if (rc != FBY_DONE && rc != FBY_ORIGIN)
		fuzz_finding("read fails", sector, (u64)-rc);
	for (u32 i = 0; i < n; i++) {
		u32 got = origin >> (first + i) & 1 ? cached[volume][sector + i] :
						      get(buf + i * FBY_SECTOR, volume, sector + i);

		if (got != model[volume][sector + i])
			fuzz_finding("not what was acknowledged", got, model[volume][sector + i]);
	}
}

static void read_all(void)
{
	for (u32 v = 0; v < NVOL; v++)
		for (u64 b = 0; b < volume_sectors[v] / FBY_PAGE_SECTORS; b++)
			read_block(v, b, 0, FBY_PAGE_SECTORS);
	read_block(0, 63, 0, 5);
}

/* An error must be the one that the arguments ask for. */
static void check_refusal(int rc, u32 volume, u64 sector, u64 n)
{
	bool beyond = n == 0 || sector + n > volume_sectors[volume];
	bool odd = volume_block[volume] == 4096 && (sector | n) % FBY_PAGE_SECTORS;

	if (rc >= 0 ? beyond || odd : !(rc == -FBY_E_RANGE && beyond) && !(rc == -FBY_E_ALIGNMENT && odd))
		fuzz_finding("wrong answer to arguments", sector, n);
}

static void set_model(u32 volume, u64 sector, u64 n, u32 value)
{
	for (u64 i = 0; i < n; i++) {
		model[volume][sector + i] = value;
		past[volume][sector + i] = false;
	}
}

static void write_now(u32 volume, u64 sector, u32 n)
{
	static u8 buf[256 * FBY_SECTOR];
	u32 done = 0, wake = 0;
	int rc;

	version++;
	for (u32 i = 0; i < n; i++)
		put(buf + i * FBY_SECTOR, version);
	rc = fby_write(pool, (u16)volume, sector, n, buf, &done, &wake);
	if (done > n || (rc == FBY_DONE && done != n))
		fuzz_finding("a write counts wrong", done, n);
	if (rc < 0 || rc == FBY_DONE)
		check_refusal(rc, volume, sector, n);
	set_model(volume, sector, done, version);
}

/* Past the cache, as far as it may. */
static void write_past(u32 volume, u64 sector, u32 n)
{
	struct fby_bypass b;
	u32 wake = 0;
	int rc;

	while ((rc = fby_bypass_begin(pool, &b, (u16)volume, sector, n, 1 + sector % 12)) == FBY_DONE ||
	       rc == FBY_CACHED) {
		if (b.nsectors == 0 || b.nsectors > n)
			fuzz_finding("bypassed sectors", b.nsectors, n);
		check_refusal(FBY_DONE, volume, sector, n);
		if (rc == FBY_CACHED) {
			write_now(volume, sector, b.nsectors);
		} else {
			version++;
			set_model(volume, sector, b.nsectors, version);
			for (u32 i = 0; i < b.nsectors; i++) {
				cached[volume][sector + i] = version;
				past[volume][sector + i] = true;
			}
			fby_bypass_end(pool, &b, 0, &wake);
		}
		sector += b.nsectors;
		n -= b.nsectors;
		if (n == 0)
			return;
	}
	if (rc < 0)
		check_refusal(rc, volume, sector, n);
}

/* Of destage a flush may have failed: then it is told once; or it is in flight. */
static int pass_gate(u32 volume, struct fby_flush *t)
{
	int rc = fby_flush_begin(pool, (u16)volume, t);
	u32 wake = 0;

	if (rc == FBY_ORIGIN) {
		for (u32 i = 0; i < npending; i++)
			if (pending[i].op == FBY_IO_FLUSH && pending[i].volume == volume)
				fuzz_finding("two flushes of one origin", volume, 0);
		memcpy(durable[volume], cached[volume], sizeof(durable[0]));
		rc = fby_flush_end(pool, t, 0, &wake);
	}
	if (rc != FBY_DONE && rc != -FBY_E_ORIGIN_IO && rc != FBY_WAIT_FLUSH)
		fuzz_finding("flush", volume, (u64)-rc);
	return rc;
}

static void flush_now(u32 volume)
{
	struct fby_flush t = { 0 };

	if (pass_gate(volume, &t) == FBY_DONE)
		memset(past[volume], 0, sizeof(past[0]));
}

static void range_now(u32 volume, enum fby_kind kind, u64 sector, u64 n)
{
	struct fby_flush t = { 0 };
	struct fby_bypass part;
	u32 wake = 0, rounds = 0;
	u64 done = 0, before;
	int rc;

	do {
		before = done;
		rc = fby_range(pool, (u16)volume, kind, sector, n, &done, &part, &wake);
		if (done > n || (rc == FBY_ORIGIN && (part.nsectors == 0 || part.nsectors > n - done)))
			fuzz_finding("a range counts wrong", done, n);
		for (u64 s = before; s < done; s++) /* a discard of part of a block is advice */
			if (kind == FBY_KIND_ZERO ||
			    ((sector + s) / 8 * 8 >= sector && (sector + s) / 8 * 8 + 8 <= sector + n))
				model[volume][sector + s] = 0;
		if (rc == FBY_ORIGIN) {
			set_model(volume, sector + done, part.nsectors, 0);
			for (u32 i = 0; i < part.nsectors; i++) {
				cached[volume][sector + done + i] = 0;
				past[volume][sector + done + i] = kind == FBY_KIND_ZERO;
				if (kind == FBY_KIND_DISCARD) /* no flush vouches for it */
					durable[volume][sector + done + i] = 0;
			}
			fby_bypass_end(pool, &part, 0, &wake);
			if (kind == FBY_KIND_ZERO)
				fby_flush_cover(pool, &t, &part);
			done += part.nsectors;
		}
		if (rounds++ > 600)
			fuzz_finding("a range does not end", sector, n);
	} while (rc == FBY_ORIGIN);
	if (rc == FBY_DONE && t.state && pass_gate(volume, &t) == FBY_DONE)
		memset(past[volume], 0, sizeof(past[0]));
	if (rc < 0 && n)
		check_refusal(rc, volume, sector, n);
}

static void held_start(u32 volume, u64 sector, u32 n)
{
	for (u32 i = 0; i < NHELD; i++) {
		struct held *h = &held[i];
		int rc;

		if (h->stage)
			continue;
		rc = fby_write_begin(pool, &h->w, (u16)volume, sector, n);
		if (rc < 0 || rc == FBY_DONE)
			check_refusal(rc, volume, sector, n);
		if (rc != FBY_DONE)
			return;
		h->sector = sector;
		h->version = ++version;
		h->stage = HELD_BEGUN;
		return;
	}
}

/* Data in pieces, the first bytes of the vector not part of the batch. */
static void held_copy(struct held *h, u32 shape)
{
	static u8 buf[BATCH_SECTORS * FBY_SECTOR + 64];
	u32 skip = shape % 64, bytes = h->w.nsectors * FBY_SECTOR, cut = skip + shape * 37 % (bytes + 1);
	struct fby_vec vec[2] = { { buf, cut }, { buf + cut, skip + bytes - cut } };

	for (u32 i = 0; i < h->w.nsectors; i++)
		put(buf + skip + i * FBY_SECTOR, h->version);
	fby_write_copy(pool, &h->w, vec, 2, skip);
}

static void held_advance(struct held *h, u32 shape)
{
	switch (h->stage) {
	case HELD_NONE:
		return;
	case HELD_BEGUN:
		held_copy(h, shape);
		h->stage = HELD_COPIED;
		return;
	case HELD_COPIED:
		fby_write_commit(pool, &h->w);
		h->stage = HELD_COMMITTED;
		return;
	case HELD_COMMITTED:
		fby_write_publish(pool, &h->w);
		set_model(h->w.volume, h->sector, h->w.nsectors, h->version);
		h->stage = HELD_NONE;
		return;
	}
}

static void held_finish(void)
{
	for (u32 i = 0; i < NHELD; i++)
		while (held[i].stage)
			held_advance(&held[i], 3);
}

/* --- the pool comes and goes ------------------------------------------------------------ */

static void check_now(void)
{
	char text[200] = "";

	if (fby_check(pool, !any_held(), text, sizeof(text))) {
		fprintf(stderr, "fuzz: invariant: %s\n", text);
		abort();
	}
}

static void attach_all(void)
{
	for (u32 v = 0; v < NVOL; v++)
		if (fuzz_attach(pool, (u16)v, FBY_HOLES_FAIL))
			fuzz_finding("attach fails", v, 0);
}

static void open_pool(void)
{
	pool = fuzz_open(&options);
	if (!pool)
		fuzz_finding("the pool does not open", 0, 0);
}

/* Power fails: what was committed is there, what was not is not, and the
 * origin forgets what it had not flushed. */
static void crash(u32 how)
{
	for (u32 i = 0; i < NHELD; i++) {
		if (held[i].stage == HELD_COMMITTED)
			set_model(held[i].w.volume, held[i].sector, held[i].w.nsectors, held[i].version);
		held[i].stage = HELD_NONE;
	}
	while (npending)
		if (how & 1)
			origin_do(&pending[--npending]);
		else
			npending--;
	if (how & 2)
		memcpy(cached, durable, sizeof(cached));
	for (u32 i = 0; (how & 2) && i < NVOL * 512; i++)
		if (past[i / 512][i % 512])
			model[i / 512][i % 512] = durable[i / 512][i % 512];
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
		while (npending)
			complete_one(0x10);
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
}

static const char *const step_name[16] = { "write",   "write",	  "read",     "range", "begin", "advance",
					   "advance", "destage",  "destage",  "destage", "complete", "complete",
					   "drain",   "reopen",	  "options",  "detach" };

static void step(struct fuzz_input *in)
{
	u32 what = fuzz_take(in, 1), a = fuzz_take(in, 1), b = fuzz_take(in, 1);
	u32 volume = a & 1, n = volume_block[volume] / FBY_SECTOR * (1 + b % 24);
	u64 sector = (a >> 1) * 4;

	if (a >= 0xfc) /* anything, aligned or not */
		sector = b * 3, n = b % 11;
	else if (volume)
		sector &= ~7u;
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "%s: volume %u sector %llu n %u, %u %u\n", step_name[what % 16], volume,
			(unsigned long long)sector, n, a, b);
	switch (what % 16) {
	case 0:
	case 1:
		if (what % 16 == 1 && b >= 0xb0)
			write_past(volume, sector, n);
		else
			write_now(volume, sector, n);
		break;
	case 2:
		read_block(volume, sector / FBY_PAGE_SECTORS, b % 8, 1 + b / 8 % (8 - b % 8));
		break;
	case 3:
		range_now(volume, b & 1 ? FBY_KIND_ZERO : FBY_KIND_DISCARD, sector, n);
		break;
	case 4:
		held_start(volume, sector, n);
		break;
	case 5:
	case 6:
		held_advance(&held[a % NHELD], b);
		break;
	case 7:
	case 8:
	case 9:
		for (u32 i = 0; i <= a % 16; i++)
			destage_step(b % 32);
		break;
	case 10:
	case 11:
		complete_one(b);
		break;
	case 12:
		fby_volume_drain(pool, (u16)volume, b & 1);
		break;
	case 13:
		if (b % 4 == 0)
			close_and_open();
		else
			crash(b >> 2);
		break;
	case 14:
		change_options(b);
		break;
	case 15:
		if (a & 2 && !any_held())
			detach_attach((u16)volume);
		flush_now(volume);
		check_now();
		break;
	}
}

static void start(u32 head)
{
	memset(model, 0, sizeof(model));
	memset(cached, 0, sizeof(cached));
	memset(durable, 0, sizeof(durable));
	memset(held, 0, sizeof(held));
	memset(past, 0, sizeof(past));
	npending = version = 0;
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

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };

	if (size < 4)
		return 0;
	start(fuzz_take(&in, 1));
	while (fuzz_left(&in))
		step(&in);
	held_finish();
	while (npending)
		complete_one(0x10);
	check_now();
	read_all();
	for (u16 v = 0; v < NVOL; v++)
		fby_volume_drain(pool, v, true);
	if (!fuzz_destage(pool, origin_do, 100000))
		fuzz_finding("destage does not come to rest", 0, 0);
	if (!fby_volume_clean(pool, 0) || !fby_volume_clean(pool, 1))
		fuzz_finding("a drained volume is not clean", 0, 0);
	for (u32 v = 0; v < NVOL; v++) {
		flush_now(v); /* may tell of a failed one */
		flush_now(v);
	}
	for (u32 v = 0; v < NVOL; v++)
		for (u32 s = 0; s < volume_sectors[v]; s++)
			if (durable[v][s] != model[v][s])
				fuzz_finding("the drained origin differs", durable[v][s] | (u64)s << 32, model[v][s] | (u64)v << 32);
	check_now();
	fuzz_free();
	return 0;
}
