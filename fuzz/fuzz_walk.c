// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_walk.c - opens what lies on the media and does all that can be done
 * with it.  See fuzz.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

#define ROUND_PAGES 16u
#define BUFFERS 2u
#define BUFFER_BYTES (16u << 10)

u64 fuzz_now_ns = 1;
static void *pool_memory;
static void *volume_memory[FBY_VOLUMES_MAX];

void fuzz_free(void)
{
	free(pool_memory);
	pool_memory = NULL;
	for (u32 v = 0; v < FBY_VOLUMES_MAX; v++) {
		free(volume_memory[v]);
		volume_memory[v] = NULL;
	}
}

static void *zeroed(size_t align, u64 bytes)
{
	void *p = aligned_alloc(align, (bytes + align - 1) & ~(u64)(align - 1));

	memset(p, 0, bytes);
	return p;
}

/* Memory is bounded by the media, not by a field: an entry and a bucket a page,
 * chunks, slots and volumes. */
static void check_memory(u64 bytes, u32 nslots)
{
	u64 most = fuzz_media.size / FBY_PAGE * 64 + fuzz_media.size / (FBY_CHUNK_PAGES_MIN * FBY_PAGE) * 1024 +
		   nslots * (16u << 10) + FBY_VOLUMES_MAX * (16u << 10) + (64u << 10);

	if (bytes > most)
		fuzz_finding("more memory than the media justifies", bytes, most);
}

static void check_report(const struct fby_recovery_report *r)
{
	u64 pages = fuzz_media.size / FBY_PAGE;

	if (r->entries > pages || r->blocks > r->entries + r->holes || r->ndropped_named > FBY_REPORT_MAX ||
	    r->nholes_named > FBY_REPORT_MAX)
		fuzz_finding("recovery report out of range", r->entries, r->blocks);
}

static void check_invariants(struct fby_pool *p, bool quiet)
{
	char text[200] = "";

	if (fby_check(p, quiet, text, sizeof(text))) {
		fprintf(stderr, "fuzz: invariant: %s\n", text);
		abort();
	}
}

struct fby_pool *fuzz_open(const struct fby_options *o)
{
	struct fby_recovery_report report;
	struct fby_pool *p = NULL;
	struct fby_probe probe;
	u64 bytes;
	u32 step;

	fuzz_free();
	fby_probe(&fuzz_media, &probe);
	if (probe.error) {
		if (!fby_error_message(probe.error) || !fby_error_errno(probe.error))
			fuzz_finding("error without a message", (u64)-probe.error, 0);
		return NULL;
	}
	bytes = fby_pool_bytes(&probe.sb, o->nslots);
	check_memory(bytes, o->nslots);
	pool_memory = zeroed(64, bytes);
	if (fby_pool_open(&p, pool_memory, bytes, &fuzz_media, o)) {
		fuzz_free();
		return NULL;
	}
	step = probe.sb.nchunks / 3 + 1;
	for (u32 c = 0; c < probe.sb.nchunks; c += step) {
		u32 n = probe.sb.nchunks - c < step ? probe.sb.nchunks - c : step;

		if (fby_recover_chunks(p, c, n) < 0) {
			fuzz_free();
			return NULL;
		}
	}
	if (fby_recover_finish(p, &report) < 0) {
		fuzz_free();
		return NULL;
	}
	check_report(&report);
	check_invariants(p, true);
	return p;
}

void fuzz_settle(struct fby_pool *p)
{
	const struct fby_device *device = fuzz_media.device;
	u32 wake = 0;

	for (u64 i = 0; i < fuzz_media.size / FBY_PAGE + 1000; i++) {
		struct fby_medium_io io;
		int rc = fby_medium_next(p, &io, &wake);

		if (rc == FBY_WAIT_TICKET)
			return;
		if (rc != FBY_DONE)
			fuzz_finding("the next request", (u64)(rc < 0 ? -rc : rc), i);
		if (io.kind == FBY_MEDIUM_WRITE && (io.n == 0 || io.at % device->unit || io.n % device->unit ||
						    io.at > fuzz_media.size || io.n > fuzz_media.size - io.at))
			fuzz_finding("a request that is not of blocks of the media", io.at, io.n);
		fby_medium_end(p, &io, 0, &wake);
	}
	fuzz_finding("requests without end", 0, 0);
}

void fuzz_look(struct fby_pool *p)
{
	struct fby_report_block damaged[FBY_REPORT_MAX];
	struct fby_pool_info info;
	struct fby_volume_info v;
	struct fby_chunk_info c;
	struct fby_entry_info e;
	u32 pages;

	fby_pool_info(p, &info);
	pages = info.sb.chunk_size / FBY_PAGE;
	for (u32 i = 0; i < info.sb.nchunks; i++) {
		if (fby_chunk_info(p, i, &c) < 0)
			continue;
		for (u32 page = fby_first_page(pages); page < pages; page++)
			fby_entry_info(p, i, page, true, &e);
	}
	fby_chunk_info(p, info.sb.nchunks, &c);
	fby_entry_info(p, 0, pages, true, &e);
	for (u32 i = 0; i <= info.sb.nvolumes; i++) {
		struct fby_report_block lost[64];
		struct fby_static_slot_info slot;
		struct fby_lost_at at = { 0 };

		fby_volume_info(p, (u16)i, &v);
		while (fby_lost_list(p, (u16)i, &at, lost, 64))
			;
		for (u64 block = 0; block < 16; block++)
			fby_static_slot_info(p, (u16)i, block, true, &slot);
	}
	fby_damaged_list(p, damaged, FBY_REPORT_MAX);
	check_invariants(p, true);
}

int fuzz_attach(struct fby_pool *p, u16 volume, enum fby_holes holes)
{
	struct fby_attach a = { .holes = holes, .round_pages = ROUND_PAGES, .nrequests = BUFFERS,
				.buffer_bytes = BUFFER_BYTES };
	struct fby_volume_info info;
	int rc = fby_volume_info(p, volume, &info);

	if (rc)
		return rc;
	a.origin_sectors = info.spec.origin_sectors;
	a.identity = info.spec.identity;
	a.mem_bytes = fby_volume_bytes(p, a.round_pages, a.nrequests, a.buffer_bytes);
	if (!volume_memory[volume])
		volume_memory[volume] = zeroed(FBY_PAGE, a.mem_bytes);
	a.mem = volume_memory[volume];
	return fby_volume_attach(p, volume, &a);
}

static int sink_nowhere(const struct fby_io *io)
{
	(void)io;
	return 0;
}

static void check_io(struct fby_pool *p, const struct fby_io *io)
{
	struct fby_volume_info info;

	if (fby_volume_info(p, io->volume, &info) || !info.attached)
		fuzz_finding("origin request for a volume that is not there", io->volume, io->op);
	if (io->op == FBY_IO_FLUSH)
		return;
	if (io->nsectors == 0 || io->sector >= info.spec.origin_sectors ||
	    io->nsectors > info.spec.origin_sectors - io->sector)
		fuzz_finding("origin request out of range", io->sector, io->nsectors);
	if (io->op == FBY_IO_WRITE && io->nsectors * FBY_SECTOR > BUFFER_BYTES)
		fuzz_finding("origin write larger than its buffer", io->sector, io->nsectors);
}

/* After an error an origin is retried later: completely, or in a drain only for refused pages. */
static bool backing_off(struct fby_pool *p)
{
	struct fby_volume_info info;

	for (u32 v = 0; fby_volume_info(p, (u16)v, &info) == 0; v++)
		if (info.attached && (info.destage == FBY_DESTAGE_BACKOFF || (info.draining && info.last_error)))
			return true;
	return false;
}

bool fuzz_destage(struct fby_pool *p, fuzz_sink sink, u32 steps)
{
	struct fby_io io;
	u64 next;
	u32 wake;

	while (steps-- > 0) {
		int decision = fby_destage_step(p, fuzz_now_ns += 1000000, &io, &next, &wake);

		if (decision < 0)
			fuzz_finding("destage step fails", (u64)-decision, 0);
		if (decision == FBY_ORIGIN) {
			check_io(p, &io);
			fby_destage_complete(p, io.id, (sink ? sink : sink_nowhere)(&io));
		} else if (decision == FBY_DONE) {
			if (!backing_off(p))
				return true;
			fuzz_now_ns = next > fuzz_now_ns ? next : fuzz_now_ns;
		}
	}
	return false;
}

void fuzz_read_volume(struct fby_pool *p, u16 volume, u64 max)
{
	struct fby_volume_info info;
	u8 buf[FBY_PAGE], origin, lost;
	u64 blocks;

	if (fby_volume_info(p, volume, &info) || !info.attached)
		return;
	blocks = (info.spec.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	for (u64 b = 0; b < blocks && b < max; b++) {
		int rc = fby_read_block(p, volume, b, 0, FBY_PAGE_SECTORS, buf, &origin, &lost);

		if (rc == -FBY_E_LOST ? !lost : (rc != FBY_DONE && rc != FBY_ORIGIN) || lost)
			fuzz_finding("read", b, (u64)(rc < 0 ? -rc : rc));
		if (rc == FBY_ORIGIN && !origin)
			fuzz_finding("read sends to the origin for nothing", b, 0);
	}
}
