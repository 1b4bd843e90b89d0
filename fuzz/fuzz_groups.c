// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_groups.c - patched images of pools on a block device.  Patches change the superblocks and
 * records at the places that such a pool has, the open lines, seals, group lines and entries of
 * its chunks, with corrected checksums or not; blocks move, vanish, and cannot be read.  Then all
 * operations on logs follow (fuzz_walk_logs.c), and where a pool has a volume, reads, writes,
 * zeroes and destage of it.
 *
 * The first byte chooses the base image, the second the options, the third what the claim is told
 * and whether there is a crash after it, and what is done with a volume and when; patches follow, each after a byte that says of which sort
 * it is.
 */
#include <stdlib.h>
#include <string.h>

#include "format/log_entry.h"
#include "fuzz.h"
#include "log.h"

#define BASES 12u
#define BASES_OF_LOGS 8u
#define LOGS 2u

/* Two geometries; of each: open chunks, closed, one log replayed in part and one begun anew, and
 * chunks that were used before.  A third one with a volume beside a log: open chunks, closed, in the
 * middle of destage, and chunks that were used before. */
static const struct {
	u32 chunk, unit, chunks;
} geometry[3] = { { 64u << 10, 4096, 6 }, { 128u << 10, 8192, 5 }, { 64u << 10, 4096, 8 } };

static u8 *base[BASES];

static u32 chunk_of(u32 which)
{
	return geometry[which / 4].chunk;
}

static u32 unit_of(u32 which)
{
	return geometry[which / 4].unit;
}

static u32 bytes_of(u32 which)
{
	return (geometry[which / 4].chunks + 1) * chunk_of(which);
}

/* --- base images, made by the engine ---------------------------------------------------------- */

static void must(int rc, const char *what)
{
	if (rc)
		fuzz_finding(what, (u64)(rc < 0 ? -rc : rc), 0);
}

static void append(struct fby_pool *p, u16 log, u64 txg, bool next, u32 bytes)
{
	static u8 data[24000];
	const struct fby_vec body = { data, bytes };
	struct fby_log_name name;
	u32 wake = 0;
	int rc = FBY_WAIT_TICKET;

	memset(data, (int)bytes, sizeof(data));
	for (u32 i = 0; i < 8 && rc == FBY_WAIT_TICKET; i++) {
		rc = fby_log_append(p, log, txg, next, &body, 1, &name, &wake);
		if (rc == FBY_WAIT_TICKET)
			fuzz_settle(p);
	}
	must(rc, "making a base: append");
}

static void keep(u32 which)
{
	base[which] = malloc(bytes_of(which));
	memcpy(base[which], fuzz_media.base, bytes_of(which));
}

static enum fby_log_verdict first_alone(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	u32 *n = arg;

	(void)node;
	(void)next;
	return (*n)++ ? FBY_LOG_STOP : FBY_LOG_REPLAYED;
}

static void end_log(struct fby_pool *p, u16 log)
{
	int rc = FBY_WAIT_TICKET;
	u32 wake = 0;

	for (u32 i = 0; i < 8 && rc == FBY_WAIT_TICKET; i++) {
		rc = fby_log_destroy(p, log, NULL, &wake);
		fuzz_settle(p);
	}
	must(rc, "making a base: destroy");
}

/* Groups of one entry and of several, in two logs by turns; chunks that are left. */
static void fill(struct fby_pool *p, u64 txg)
{
	for (u32 i = 0; i < 4; i++) {
		append(p, 0, txg, i != 2, 10 + 60 * i);
		append(p, 1, txg, i != 1, 100 * i);
		if (i & 1)
			fuzz_settle(p);
	}
	append(p, 0, txg, true, 20000);
	fuzz_settle(p);
	append(p, 1, txg + 1, true, 5000);
	append(p, 0, txg + 1, true, 20000);
	fuzz_settle(p);
	append(p, 1, txg + 1, false, 30);
	append(p, 0, txg + 1, false, 3000);
	fuzz_settle(p);
}

static struct fby_pool *open_base(void)
{
	const struct fby_options o = { .nslots = 2, .high_watermark = 100, .low_watermark = 90 };
	struct fby_pool *p = fuzz_open(&o);

	if (!p)
		fuzz_finding("making a base: open", 0, 0);
	return p;
}

static void make_bases(u32 first)
{
	const struct fby_format f = { .uuid = { 'f', 'u', 'z', 'z', 'g' }, .chunk_size = chunk_of(first), .nvolumes = LOGS,
				      .unit = unit_of(first) };
	static const u8 guid[5][16] = { { 1 }, { 2 }, { 3 }, { 4 }, { 5 } };
	struct fby_log_result result;
	struct fby_log_node node[64];
	struct fby_pool *p;
	u32 wake = 0, replayed = 0;
	u16 log[LOGS];
	u64 n = 64;

	fuzz_media_device(unit_of(first));
	fuzz_media_set(NULL, 0, bytes_of(first));
	must(fby_format(&fuzz_media, &f), "making a base: format");
	p = open_base();
	for (u32 i = 0; i < LOGS; i++) {
		must(fby_log_add(p, i ? "second" : "first", 0, &log[i]), "making a base: log");
		must(fby_log_create(p, log[i], guid[i], 0, NULL, &wake), "making a base: create");
	}
	fill(p, 1);
	keep(first);
	for (int rc = FBY_WAIT_TICKET; rc; fuzz_settle(p))
		if ((rc = fby_pool_close(p)) != FBY_WAIT_TICKET)
			must(rc, "making a base: close");
	keep(first + 1);
	p = open_base();
	must(fby_log_claim(p, 0, 0, NULL, node, &n, &result), "making a base: claim");
	must(fby_log_replay(p, 0, node, n, first_alone, &replayed, &result), "making a base: replay");
	n = 64;
	must(fby_log_claim(p, 1, 0, NULL, node, &n, &result), "making a base: claim");
	end_log(p, 1);
	must(fby_log_create(p, 1, guid[2], 0, NULL, &wake), "making a base: create");
	append(p, 1, 1, true, 20);
	fuzz_settle(p);
	keep(first + 2);
	end_log(p, 0);
	must(fby_log_create(p, 0, guid[3], 0, NULL, &wake), "making a base: create");
	for (u64 txg = 1; txg < 8; txg++) {
		fill(p, 2 * txg);
		for (u16 i = 0; i < LOGS; i++)
			must(fby_log_sync(p, i, 2 * txg, NULL, &wake), "making a base: sync");
	}
	keep(first + 3);
	fuzz_free();
}

#define VOLUME 0u
#define BLOCKS 12u

static int to_origin(const struct fby_io *io)
{
	(void)io;
	return 0;
}

/* Destages, with the requests that it waits for. */
static void destage(struct fby_pool *p, u32 rounds)
{
	for (u32 i = 0; i < rounds; i++) {
		(void)fuzz_destage(p, to_origin, 8);
		fuzz_settle(p);
	}
}

/* A client may be told only this of a volume, whatever lies on the media. */
static void may_be(int rc, const char *what)
{
	if (rc > FBY_DONE || rc == FBY_DONE || rc == -FBY_E_LOST || rc == -FBY_E_MEDIUM || rc == -FBY_E_READ_ONLY)
		return;
	fuzz_finding(what, (u64)-rc, 0);
}

static int write_sectors(struct fby_pool *p, u64 sector, u32 n)
{
	static u8 data[4 * FBY_PAGE];
	u32 done = 0, wake = 0;
	int rc = FBY_WAIT_TICKET;

	memset(data, (int)(sector + n), sizeof(data));
	for (u32 i = 0; i < 8 && rc == FBY_WAIT_TICKET; i++) {
		rc = fby_write(p, VOLUME, sector + done, n - done, data, &done, &wake);
		if (rc == FBY_WAIT_TICKET)
			fuzz_settle(p);
	}
	return rc;
}

/* Whole and part blocks, by themselves and in groups; zeroes. */
static void write_some(struct fby_pool *p)
{
	struct fby_bypass past;
	u32 wake = 0;
	u64 done = 0;

	for (u32 i = 0; i < 8; i++) {
		may_be(write_sectors(p, i * 5 % BLOCKS * 8, i % 3 ? 8 : 24), "a write");
		if (i & 1)
			fuzz_settle(p);
	}
	may_be(write_sectors(p, 3, 2), "a write of a part");
	if (fby_range(p, VOLUME, FBY_KIND_ZERO, 32, 8, &done, &past, &wake) == FBY_ORIGIN)
		fby_bypass_end(p, &past, 0, &wake);
	fuzz_settle(p);
}

static void use_volume(struct fby_pool *p, u32 bits)
{
	if (fuzz_attach(p, VOLUME, bits & 1 ? FBY_HOLES_ACCEPT : FBY_HOLES_ISOLATE) != FBY_DONE)
		return;
	fuzz_read_volume(p, VOLUME, 2 * BLOCKS);
	if (bits & 2)
		write_some(p);
	(void)fby_volume_drain(p, VOLUME, true);
	destage(p, 12);
	write_some(p);
	fuzz_read_volume(p, VOLUME, 2 * BLOCKS);
	destage(p, 4);
}

static void make_volume_bases(void)
{
	const u32 first = BASES_OF_LOGS;
	const struct fby_format f = { .uuid = { 'f', 'u', 'z', 'z', 'v' }, .chunk_size = chunk_of(first), .nvolumes = LOGS,
				      .unit = unit_of(first) };
	const struct fby_volume_spec spec = { .name = "volume", .identity = "volume", .origin_sectors = BLOCKS * 8,
					      .block_size = 512 };
	static const u8 guid[16] = { 1 };
	struct fby_pool *p;
	u32 wake = 0;
	u16 volume, log;

	fuzz_media_device(unit_of(first));
	fuzz_media_set(NULL, 0, bytes_of(first));
	must(fby_format(&fuzz_media, &f), "making a base: format");
	p = open_base();
	must(fby_volume_add(p, &spec, &volume) || volume != VOLUME, "making a base: volume");
	must(fby_log_add(p, "log", 0, &log), "making a base: log");
	must(fby_log_create(p, log, guid, 0, NULL, &wake), "making a base: create");
	must(fuzz_attach(p, VOLUME, FBY_HOLES_FAIL), "making a base: attach");
	write_some(p);
	append(p, log, 1, true, 300);
	append(p, log, 1, true, 5000);
	fuzz_settle(p);
	write_some(p);
	keep(first);
	for (int rc = FBY_WAIT_TICKET; rc; fuzz_settle(p))
		if ((rc = fby_pool_close(p)) != FBY_WAIT_TICKET)
			must(rc, "making a base: close");
	keep(first + 1);
	p = open_base();
	must(fuzz_attach(p, VOLUME, FBY_HOLES_FAIL), "making a base: attach");
	must(fby_volume_drain(p, VOLUME, true), "making a base: drain");
	destage(p, 2);
	keep(first + 2);
	destage(p, 30);
	must(!fby_volume_clean(p, VOLUME), "making a base: a drain that does not end");
	for (u32 i = 0; i < 12; i++) {
		write_some(p);
		destage(p, 2);
	}
	keep(first + 3);
	fuzz_free();
}

/* --- patches ---------------------------------------------------------------------------------- */

static u32 seed(void)
{
	return fby_crc32c(0, ((struct fby_superblock *)fuzz_media.base)->uuid, 16);
}

/* The place in a structure, how many bytes and which: six bytes.  Puts the checksum right, which
 * begins with crc, unless they say that it is left. */
static void change(struct fuzz_input *in, u64 at, u32 bytes, u32 most, u32 crc)
{
	u32 place = fuzz_take(in, 1) % most, how = fuzz_take(in, 1), n = 1 + (how & 7);
	u64 value = fuzz_take(in, 4);

	if (n == 8) /* a wide field: small numbers, or the largest */
		value = value & 1 ? ~0ull - (value >> 1) : value << (value >> 26);
	if (n > bytes - place)
		n = bytes - place;
	memcpy(fuzz_media.base + at + place, &value, n);
	if (how & 0x80)
		return;
	crc = fby_crc32c(crc, fuzz_media.base + at, bytes - 4);
	memcpy(fuzz_media.base + at + bytes - 4, &crc, 4);
}

static void change_superblock(struct fuzz_input *in, u32 which, u32 what)
{
	u64 copy = chunk_of(which) / 4, at = what & 1 ? copy : 0;
	const u32 bytes = sizeof(struct fby_superblock);

	change(in, at, bytes, 160, 0); /* the fields in use and a few after */
	if (what & 2) /* both say it */
		memcpy(fuzz_media.base + copy - at, fuzz_media.base + at, bytes);
}

static void change_entry(struct fuzz_input *in, u64 at)
{
	struct fby_log_entry e;
	u32 what = fuzz_take(in, 1);

	if (at + FBY_ENTRY_BYTES > fuzz_media.size)
		return;
	change(in, at, FBY_ENTRY_BYTES, FBY_ENTRY_BYTES, seed());
	memcpy(&e, fuzz_media.base + at, sizeof(e));
	if ((what & 1) || e.length > FUZZ_MEDIA_MAX || at + fby_entry_lines(e.length) * (u64)FBY_LINE > fuzz_media.size)
		return;
	e.body_crc = fby_crc32c(0, fuzz_media.base + at + FBY_ENTRY_BYTES,
				(fby_entry_lines(e.length) - FBY_ENTRY_LINES) * FBY_LINE);
	e.crc = fby_crc32c(seed(), &e, sizeof(e) - 4);
	memcpy(fuzz_media.base + at, &e, sizeof(e));
}

/* Lines or blocks are copied, or become zeroes or ones. */
static void move(struct fuzz_input *in, u32 bytes)
{
	u64 places = fuzz_media.size / bytes;
	u64 from = fuzz_take(in, 2) % places, to = fuzz_take(in, 2) % places, n = 1 + fuzz_take(in, 1) % 4;
	u32 how = fuzz_take(in, 1);

	if (from + n > places || to + n > places)
		return;
	if (how % 4 == 0)
		memset(fuzz_media.base + to * bytes, how & 4 ? 0xff : 0, n * bytes);
	else
		memmove(fuzz_media.base + to * bytes, fuzz_media.base + from * bytes, n * bytes);
}

static void poison(u64 at, u32 bytes)
{
	for (u32 line = 0; line < bytes; line += FBY_LINE)
		if (line == 0 || line == bytes / 2)
			fuzz_media_poison(at + line);
}

static void patch(struct fuzz_input *in, u32 which)
{
	u32 what = fuzz_take(in, 1), a = fuzz_take(in, 1), b = fuzz_take(in, 1);
	u32 unit = unit_of(which), chunk = chunk_of(which), blocks = chunk / unit;
	u64 at = chunk + (u64)(a % geometry[which / 4].chunks) * chunk;

	switch (what % 10) {
	case 0:
		change_superblock(in, which, a);
		break;
	case 1: /* a record */
		at = (b & 1) * (chunk / 4) + (chunk / 32 > unit ? chunk / 32 : unit) + a % LOGS * unit;
		change(in, at, sizeof(struct fby_volume_record), 255, seed());
		break;
	case 2:
		change(in, at + FBY_LINE_OPEN * FBY_LINE + b % 2 * unit, FBY_LINE, FBY_LINE, seed());
		break;
	case 3:
		at += 2 * unit + (FBY_LINE_SEAL + b % 2 + (b >> 1) % 2 * FBY_LINE_SEAL_COPY) * FBY_LINE;
		change(in, at, FBY_LINE, FBY_LINE, seed());
		break;
	case 4:
	case 5: /* a group line, or what lies at the beginning of a block */
		change(in, at + (u64)(b % blocks) * unit, FBY_LINE, FBY_LINE, seed());
		break;
	case 6: /* an entry: the first of a group, or another */
		at += (u64)(b % blocks) * unit + FBY_LINE;
		change_entry(in, what & 0x80 ? at + (what >> 4 & 7) * FBY_LINE : at);
		break;
	case 7:
		move(in, what & 0x80 ? unit : FBY_LINE);
		break;
	case 8: /* an entry at any line */
		change_entry(in, at + (a >> 4 << 8 | b) % (chunk / FBY_LINE) * FBY_LINE);
		break;
	default:
		at = what & 0x80 ? a * (u64)unit : at + (u64)(b % blocks) * unit;
		poison(at % fuzz_media.size, unit);
	}
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };
	u32 byte = fuzz_take(&in, 1), bits = fuzz_take(&in, 1), told = fuzz_take(&in, 1);
	u32 which = byte < 0xc0 ? byte % BASES_OF_LOGS : BASES_OF_LOGS + byte % (BASES - BASES_OF_LOGS);
	struct fby_options o = { .nslots = 1 + (bits & 3), .read_only = (bits & 0x1c) == 0x1c,
				 .high_watermark = 100, .low_watermark = 90 };
	const struct fby_log_header none = { 0 };
	struct fby_pool *p;

	if (size < 4)
		return 0;
	if (!base[BASES - 1]) {
		make_bases(0);
		make_bases(4);
		make_volume_bases();
	}
	fuzz_media_set(base[which], bytes_of(which), bytes_of(which));
	for (u32 i = 0; i < 64 && fuzz_left(&in); i++)
		patch(&in, which);
	fuzz_media_device(bits & 0x20 ? 512u << (bits >> 6) : unit_of(which));
	p = fuzz_open(&o);
	if (p) {
		fuzz_look(p);
		if (which >= BASES_OF_LOGS && (told & 4))
			use_volume(p, told);
		fuzz_use_logs(&p, &o, told, &none);
		if (which >= BASES_OF_LOGS && !(told & 4))
			use_volume(p, told);
		fuzz_look(p);
		/* Poisoned lines can be read by now, which recovery has written unless it may not. */
		if (!fuzz_open(&o) && !o.read_only)
			fuzz_finding("a pool that opened does not open again", which, bits);
	}
	fuzz_free();
	return 0;
}
