// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_refusals.c - a grouped pool refuses by name what it does not support.  Its superblock is
 * found by the copy.  After the device can no longer be written, nothing counts as durable.
 */
#include "group_device.h"
#include "group_test.h"
#include "api/map.h"

static struct world w;
static void *memory;

static void expect(int is, int be, const char *what)
{
	if (is == be)
		return;
	printf("groups: %s: %s instead of %s\n", what, fby_error_name(is), fby_error_name(be));
	lost("a refusal");
}

static struct fby_format format_of(u32 chunk, u32 unit)
{
	return (struct fby_format){ .uuid = { 7 }, .chunk_size = chunk, .nvolumes = 2, .unit = unit };
}

static int open_it(struct fby_pool **p)
{
	const struct fby_options o = { .nslots = 2 };
	struct fby_recovery_report report;
	struct fby_probe probe;
	u64 bytes;
	int rc;

	fby_probe(&w.media, &probe);
	if (probe.error)
		return probe.error;
	bytes = fby_pool_bytes(&probe.sb, o.nslots);
	free(memory);
	memory = aligned_alloc(64, (bytes + 63) & ~63ull);
	memset(memory, 0, bytes);
	rc = fby_pool_open(p, memory, bytes, &w.media, &o);
	if (rc == FBY_DONE)
		rc = fby_recover_chunks(*p, 0, probe.sb.nchunks);
	return rc == FBY_DONE ? fby_recover_finish(*p, &report) : rc;
}

static void formats(void)
{
	static const struct {
		u32 chunk, unit, device; /* device: its block; 0: memory */
		u64 static_bytes, map_bytes;
		int rc;
	} row[] = {
		{ 65536, 4096, 4096, 0, 0, FBY_DONE },
		{ 65536, 4096, 512, 0, 0, FBY_DONE },
		{ 65536, 0, 4096, 0, 0, -FBY_E_NOT_GROUPED },
		{ 65536, 4096, 0, 0, 0, -FBY_E_GROUPED },
		{ 65536, 4096, 8192, 0, 0, -FBY_E_UNIT },
		{ 65536, 4096, 4096, 65536, 0, -FBY_E_LOGS_ONLY },
		{ 65536, 4096, 4096, 0, 2 << 20, -FBY_E_LOGS_ONLY },
		{ 65536, 2048, 512, 0, 0, -FBY_E_GEOMETRY },
		{ 65536, 6144, 512, 0, 0, -FBY_E_GEOMETRY },
		{ 65536, 8192, 4096, 0, 0, -FBY_E_GEOMETRY }, /* a chunk has at least 16 blocks */
	};

	for (u32 i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct fby_format f = format_of(row[i].chunk, row[i].unit);

		world_make(&w, FBY_DURABLE_FUA);
		w.below.unit = row[i].device;
		if (!row[i].device)
			w.media.device = NULL;
		f.static_bytes = row[i].static_bytes;
		f.map_bytes = row[i].map_bytes;
		expect(fby_format(&w.media, &f), row[i].rc, "format");
	}
}

static void opens(void)
{
	const struct fby_format f = format_of(CHUNK, 4096);
	const struct fby_volume_spec of_statics = { .name = "v", .identity = "i", .origin_sectors = 8, .block_size = 512,
						.static_bytes = 65536 };
	const struct fby_map_spec map = { .name = "m", .bytes = 2 << 20, .frame_bytes = 65536, .nfiles = 1 };
	struct fby_pool *p;
	u16 index;

	world_make(&w, FBY_DURABLE_FUA);
	expect(fby_format(&w.media, &f), FBY_DONE, "format");
	expect(open_it(&p), FBY_DONE, "open");
	expect(fby_volume_add(p, &of_statics, &index), -FBY_E_LOGS_ONLY, "a static volume");
	expect(fby_map_add(p, &map, &index), -FBY_E_LOGS_ONLY, "a map");
	expect(fby_log_add(p, "l", 0, &index), FBY_DONE, "a log");
	expect(fby_pool_close(p), FBY_DONE, "close");
	world_load(&w);
	w.media.device = NULL;
	expect(open_it(&p), -FBY_E_GROUPED, "open as memory");
	w.media.device = &w.below;
	w.below.unit = 8192;
	expect(open_it(&p), -FBY_E_UNIT, "open on larger blocks");
	w.below.unit = 4096;
	/* the first superblock is lost, and then both */
	memset(w.image, 0, UNIT);
	expect(open_it(&p), FBY_DONE, "open by the copy");
	memset(w.image, 0, UNIT);
	memset(w.image + CHUNK / 4, 0x55, UNIT);
	expect(open_it(&p), -FBY_E_BAD_SUPERBLOCK, "open without superblocks");
}

/* In larger blocks there are no volumes. */
static void larger_blocks(void)
{
	const struct geometry *was = geometry;
	struct fby_volume_spec volume = { .name = "v", .identity = "i", .origin_sectors = 8, .block_size = 512 };
	struct fby_pool *p;
	u16 index;

	for (geometry = geometries; geometry < geometries + GEOMETRIES; geometry++) {
		const struct fby_format f = format_of(CHUNK, UNIT);

		world_make(&w, FBY_DURABLE_FUA);
		expect(fby_format(&w.media, &f), FBY_DONE, "format");
		expect(open_it(&p), FBY_DONE, "open");
		expect(fby_volume_add(p, &volume, &index), UNIT == 4096 ? FBY_DONE : -FBY_E_LOGS_ONLY, "a volume");
		expect(fby_pool_close(p), FBY_DONE, "close");
	}
	geometry = was;
}

/* If records cannot be written, the pool fails, and pending entries stay unacknowledged. */
static void failures(void)
{
	const struct fby_format f = format_of(CHUNK, 4096);
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	const u8 guid[16] = { 1 };
	struct fby_medium_io io;
	struct fby_log_name name;
	struct fby_pool *p;
	u32 wake = 0;
	u16 log;

	world_make(&w, FBY_DURABLE_FUA);
	expect(fby_format(&w.media, &f), FBY_DONE, "format");
	expect(open_it(&p), FBY_DONE, "open");
	expect(fby_log_add(p, "l", 0, &log), FBY_DONE, "a log");
	w.refuse = FBY_DEVICE_TRIES - 1;
	expect(fby_log_create(p, log, guid, 0, NULL, &wake), FBY_DONE, "create, at the last try");
	expect(fby_log_append(p, log, 1, false, &body, 1, &name, &wake), FBY_DONE, "append");
	expect((int)fby_ticket_state(p, name.ticket), FBY_TICKET_PENDING, "a ticket");
	w.refuse = FBY_DEVICE_TRIES;
	expect(fby_log_destroy(p, log, NULL, &wake), -FBY_E_MEDIUM, "destroy, without a device");
	expect((int)fby_ticket_state(p, name.ticket), FBY_TICKET_FAILED, "a ticket of a failed pool");
	expect(fby_log_append(p, log, 1, false, &body, 1, &name, &wake), -FBY_E_LOG_STATE, "append to it");
	expect(fby_medium_next(p, &io, &wake), -FBY_E_MEDIUM, "next of it");
	expect(fby_pool_close(p), -FBY_E_MEDIUM, "close of it");
}

void group_refusals(void)
{
	formats();
	opens();
	larger_blocks();
	failures();
	free(memory);
	memory = NULL;
}
