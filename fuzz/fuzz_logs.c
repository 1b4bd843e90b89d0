// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_logs.c - patched pools with logs and a volume.  Patches change the structures that
 * fuzz_patch() reaches, and the headers and bodies of entries, with corrected checksums or not.
 * Then all operations on logs follow (fuzz_walk_logs.c).
 *
 * The first byte chooses the base image, the second the options, the third what the claim
 * is told, which header a consumer has, and whether there is a crash after it; patches
 * follow, each after a byte that says of which sort it is.
 */
#include <stdlib.h>
#include <string.h>

#include "format/log_entry.h"
#include "fuzz.h"
#include "log.h"

#define BASES 3u /* logging, unclean; closed; one log replayed in part, another begun anew */
#define BASE_BYTES ((FUZZ_CHUNKS + 1) * FUZZ_CHUNK)

static u8 *base[BASES];
static struct fby_log_header consumer[BASES]; /* the header that it has stored */

static void must(int rc, const char *what)
{
	if (rc)
		fuzz_finding(what, (u64)(rc < 0 ? -rc : rc), 0);
}

static void append(struct fby_pool *p, u16 log, u64 txg, bool next, u32 bytes)
{
	static u8 data[40000];
	const struct fby_vec body = { data, bytes };
	struct fby_log_name name;
	u32 wake = 0;

	memset(data, (int)bytes, sizeof(data));
	must(fby_log_append(p, log, txg, next, &body, 1, &name, &wake), "making a base: append");
}

static void keep(u32 i)
{
	base[i] = malloc(BASE_BYTES);
	memcpy(base[i], fuzz_media.base, BASE_BYTES);
}

static enum fby_log_verdict first_alone(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	u32 *n = arg;

	(void)node;
	(void)next;
	return (*n)++ ? FBY_LOG_STOP : FBY_LOG_REPLAYED;
}

static void make_bases(void)
{
	const struct fby_options o = { .nslots = 2, .high_watermark = 100, .low_watermark = 90 };
	static const u8 guid[3][16] = { { 1 }, { 2 }, { 3 } };
	struct fby_volume_spec s = { .name = "volume", .identity = "id", .origin_sectors = FUZZ_SECTORS, .block_size = 512 };
	static u8 page[FBY_PAGE];
	struct fby_log_result result;
	struct fby_log_node node[16];
	struct fby_pool *p;
	u32 done = 0, wake = 0, replayed = 0;
	u16 volume, embedded, with;
	u64 n = 16;

	fuzz_media_base(0);
	p = fuzz_open(&o);
	must(fby_volume_add(p, &s, &volume), "making a base: volume");
	must(fuzz_attach(p, volume, FBY_HOLES_FAIL), "making a base: attach");
	must(fby_log_add(p, "embedded", 0, &embedded), "making a base: log");
	must(fby_log_add(p, "with", FBY_LOG_CONSUMER, &with), "making a base: log");
	must(fby_log_create(p, embedded, guid[0], 3, NULL, &wake), "making a base: create");
	must(fby_log_create(p, with, guid[1], 0, &consumer[0], &wake), "making a base: create");
	for (u32 i = 0; i < 5; i++) {
		append(p, embedded, 4 + i / 2, i != 2, 10 + 60 * i);
		append(p, with, 1 + i / 2, i != 1, 100 * i);
	}
	append(p, embedded, 6, true, 40000);
	append(p, embedded, 5, false, 30000);
	must(fby_log_sync(p, embedded, 4, NULL, &wake), "making a base: sync");
	must(fby_write(p, volume, 0, FBY_PAGE_SECTORS, page, &done, &wake), "making a base: write");
	keep(0);
	must(fby_volume_detach(p, volume), "making a base: detach");
	must(fby_pool_close(p), "making a base: close");
	consumer[1] = consumer[0];
	keep(1);
	p = fuzz_open(&o);
	must(fby_log_claim(p, embedded, 0, NULL, node, &n, &result), "making a base: claim");
	must(fby_log_replay(p, embedded, node, n, first_alone, &replayed, &result), "making a base: replay");
	n = 16;
	must(fby_log_claim(p, with, 0, &consumer[1], node, &n, &result), "making a base: claim");
	must(fby_log_destroy(p, with, NULL, &wake), "making a base: destroy");
	must(fby_log_release(p, with, &wake), "making a base: release");
	must(fby_log_create(p, with, guid[2], 0, &consumer[2], &wake), "making a base: create");
	append(p, with, 1, true, 20);
	consumer[1] = consumer[0];
	keep(2);
	fuzz_free();
}

/* Seven bytes and up to four: the chunk and the line of a header, what of it, how much, and
 * whether the checksums of the header (bit 7) and of the body (bit 6) are left. */
static void patch_entry(struct fuzz_input *in)
{
	u32 chunk = fuzz_take(in, 1) % FUZZ_CHUNKS, line = fuzz_take(in, 2) % 256, place = fuzz_take(in, 1) % 192;
	u32 how = fuzz_take(in, 1), n = 1 + (how & 7), seed;
	u64 value = fuzz_take(in, 4), at = (u64)(chunk + 1) * FUZZ_CHUNK + (FBY_CHUNK_LINES + line) * FBY_LINE;
	struct fby_log_entry e;

	if (at + 4 * FBY_LINE > fuzz_media.size)
		return;
	if (n == 8)
		value = value & 1 ? ~0ull - (value >> 1) : value << (value >> 26);
	memcpy(fuzz_media.base + at + place, &value, place + n > FBY_ENTRY_BYTES && place < FBY_ENTRY_BYTES ?
							     FBY_ENTRY_BYTES - place : n);
	memcpy(&e, fuzz_media.base + at, sizeof(e));
	if (!(how & 0x40) && e.length <= FUZZ_CHUNK && at + fby_entry_lines(e.length) * (u64)FBY_LINE <= fuzz_media.size)
		e.body_crc = fby_crc32c(0, fuzz_media.base + at + FBY_ENTRY_BYTES,
					(fby_entry_lines(e.length) - FBY_ENTRY_LINES) * FBY_LINE);
	if (!(how & 0x80)) {
		seed = fby_crc32c(0, ((struct fby_superblock *)fuzz_media.base)->uuid, 16);
		e.crc = fby_crc32c(seed, &e, sizeof(e) - 4);
	}
	memcpy(fuzz_media.base + at, &e, sizeof(e));
}

/* The header of another entry, or what was there, in this place: chunk, line, and line to. */
static void move_lines(struct fuzz_input *in)
{
	u32 from = fuzz_take(in, 2) % (BASE_BYTES / FBY_LINE), to = fuzz_take(in, 2) % (BASE_BYTES / FBY_LINE);
	u32 n = 1 + fuzz_take(in, 1) % 4;

	if (from + n <= BASE_BYTES / FBY_LINE && to + n <= BASE_BYTES / FBY_LINE)
		memmove(fuzz_media.base + (u64)to * FBY_LINE, fuzz_media.base + (u64)from * FBY_LINE, n * FBY_LINE);
}

static void patches(struct fuzz_input *in)
{
	for (u32 i = 0; i < 64 && fuzz_left(in); i++) {
		switch (fuzz_take(in, 1) % 4) {
		case 0:
			fuzz_patch(in);
			break;
		case 1:
			move_lines(in);
			break;
		default:
			patch_entry(in);
		}
	}
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };
	u32 which = fuzz_take(&in, 1) % BASES, bits = fuzz_take(&in, 1), told = fuzz_take(&in, 1);
	struct fby_options o = { .nslots = 1 + (bits & 3), .read_only = (bits & 0x1c) == 0x1c,
				 .high_watermark = 100, .low_watermark = 90 };
	struct fby_log_header header;
	struct fby_pool *p;

	if (size < 4)
		return 0;
	if (!base[0])
		make_bases();
	fuzz_media_set(base[which], BASE_BYTES, BASE_BYTES);
	header = consumer[told & 0x10 ? (which + 1) % BASES : which];
	if (told & 0x20) { /* the consumer's header may be spoilt as well */
		u32 place = fuzz_take(&in, 1) % sizeof(header);

		((u8 *)&header)[place] = (u8)fuzz_take(&in, 1);
	}
	patches(&in);
	p = fuzz_open(&o);
	if (!p)
		return 0;
	fuzz_look(p);
	fuzz_use_logs(&p, &o, told, &header);
	fuzz_attach(p, 0, FBY_HOLES_ACCEPT);
	fuzz_read_volume(p, 0, 64);
	if (!o.read_only && !fuzz_destage(p, NULL, 20000))
		fuzz_finding("destage does not come to rest", which, bits);
	if (!fuzz_open(&o))
		fuzz_finding("a pool that opened does not open again", which, bits);
	fuzz_free();
	return 0;
}
