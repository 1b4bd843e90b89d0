// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_scenes.c - what a life of a volume meets seldom, each step by step: damage while the origin
 * is written, and a group without pages that is appended again.
 */
#include "group_test.h"
#include "volume_model.h"

static const struct geometry scene = { 4096, 65536, 8, 0, 1 };
static struct world w, cut;
static struct fby_pool *pool;
static void *memory, *cut_memory, *attach_memory;
static u64 bytes, cut_bytes, now;
static u32 numbers;

static void start(enum fby_durable durable)
{
	const struct fby_format f = { .uuid = { 5 }, .chunk_size = CHUNK, .nvolumes = 2, .unit = UNIT };
	struct fby_volume_spec spec = { .name = "v", .identity = "i", .origin_sectors = VSECTORS, .block_size = 512 };
	struct fby_recovery_report report;

	world_make(&w, durable);
	world_make(&cut, durable);
	must(fby_format(&w.media, &f) == FBY_DONE, "format");
	world_load(&w);
	memset(&vm, 0, sizeof(vm));
	now = 1;
	pool = open_pool(&w, &memory, &bytes, &report);
	must(fby_volume_add(pool, &spec, &vm.index) == FBY_DONE, "add");
	must(attach_volume(pool, vm.index, FBY_HOLES_FAIL, &attach_memory) == FBY_DONE, "attach");
	for (u32 i = 0; i < VSECTORS; i++) {
		vm.sector[i].version[0] = vm.origin.durable[i] = ++vm.versions;
		vm.sector[i].n = 1;
	}
}

/* The next request, which is sent, and ends with or without an error.  False: there is none. */
static bool request(int error)
{
	struct fby_medium_io io;
	u32 wake = 0;

	if (fby_medium_next(pool, &io, &wake) != FBY_DONE)
		return false;
	world_send(&w, &io, ++numbers);
	world_end(&w, &io, numbers, error);
	fby_medium_end(pool, &io, error, &wake);
	return true;
}

static void settle(void)
{
	for (u32 i = 0; request(0); i++)
		must(i < 1000, "requests without end");
}

/* Writes a block, which is acknowledged. */
static void must_write(u32 block)
{
	u8 data[4096];
	u32 done = 0, wake = 0;

	for (u32 s = 0; s < 8; s++) {
		struct sector *sector = &vm.sector[block * 8 + s];

		bytes_of_version(++vm.versions, data + s * 512);
		sector->version[sector->n] = vm.versions;
		sector->floor = sector->n++;
	}
	must(fby_write(pool, vm.index, block * 8, 8, data, &done, &wake) == FBY_DONE, "write");
	settle();
	must(fby_ticket_state(pool, fby_volume_ticket(pool, vm.index)) == FBY_TICKET_DURABLE, "a write is not durable");
}

static void look(struct fby_pool *p, bool damaged, const char *what)
{
	static void *mem;
	u32 version[8];
	int rc = attach_volume(p, vm.index, FBY_HOLES_ISOLATE, &mem);

	must(rc == FBY_DONE || (damaged && rc == -FBY_E_HOLES), "attach");
	for (u32 block = 0; block < VBLOCKS && rc == FBY_DONE; block++) {
		int read = read_block(p, &vm.origin, block, version);

		must(read == FBY_DONE || (damaged && read == -FBY_E_LOST), "a block cannot be read");
		must(read != FBY_DONE || block_is_new(block, version), what);
	}
}

/* The power is cut; unreadable: a block that cannot be read then, or 0. */
static void must_find(u32 unreadable, const char *what)
{
	struct fby_recovery_report report;

	world_copy(&cut, &w);
	if (unreadable)
		cut.unreadable[unreadable] = 1;
	world_load(&cut);
	look(open_pool(&cut, &cut_memory, &cut_bytes, &report), unreadable != 0, what);
}

/* A round has begun to write a page to the origin: what the origin has of it may be torn. */
static void damaged_in_round(void)
{
	struct fby_io io = { .op = FBY_IO_FLUSH };
	u64 next;
	u32 wake = 0;

	start(FBY_DURABLE_THROUGH);
	must_write(0);
	must(fby_volume_drain(pool, vm.index, true) == FBY_DONE, "drain");
	for (u32 i = 0; i < 100 && io.op != FBY_IO_WRITE; i++) {
		now += 1000000;
		if (fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE)
			settle(); /* it waits for that */
	}
	must(io.op == FBY_IO_WRITE, "no round begins");
	for (u32 b = CHUNK / UNIT; b < BLOCKS; b++)
		must_find(b, "a page was written to the origin while damage of it passes for a torn group");
}

/* A group that only settles the one before is the last of its chunk, fails, and begins another one. */
static void settled_elsewhere(void)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;
	bool failed = false;

	start(FBY_DURABLE_THROUGH);
	must_write(0);
	for (u32 i = 0; i < 100 && !failed; i++) {
		now += 150000000;
		(void)fby_destage_step(pool, now, &io, &next, &wake);
		failed = request(5);
	}
	must(failed, "nothing settles a page");
	settle();
	for (u32 block = 1; block < VBLOCKS; block++) {
		must_write(block);
		must_find(0, "a page is lost behind a group without pages");
	}
}

void volume_scenes(void)
{
	const struct geometry *was = geometry;

	geometry = &scene;
	volumes = true;
	damaged_in_round();
	settled_elsewhere();
	volumes = false;
	geometry = was;
}
