// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_scenes.c - rare events in the life of a volume, each step by step.  They are: damage while
 * the origin is written, a group without pages that is appended again, an array that is late, and
 * copies that are damaged when their source is gone.
 */
#include "group_test.h"
#include "pool/parts.h"
#include "volume_model.h"

static const struct geometry scene = { 4096, 65536, 8, 0, 1 };
static struct world w, cut;
static struct fby_pool *pool;
static void *memory, *cut_memory, *attach_memory[2], *look_memory[2];
static u64 bytes, cut_bytes, now;
static u32 numbers, nvolumes;

static void start(enum fby_durable durable, u32 n)
{
	const struct fby_format f = { .uuid = { 5 }, .chunk_size = CHUNK, .nvolumes = 3, .unit = UNIT };
	struct fby_recovery_report report;

	world_make(&w, durable);
	world_make(&cut, durable);
	must(fby_format(&w.media, &f) == FBY_DONE, "format");
	world_load(&w);
	w.persists = NULL;
	now = 1;
	numbers = 0;
	nvolumes = n;
	pool = open_pool(&w, &memory, &bytes, &report);
	add_volumes(pool, n, attach_memory);
}

/* Sends the next request, which ends with or without an error.  False: there is none. */
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

/* Writes a block without sending a request. */
static void write_only(u32 block)
{
	u8 data[4096];
	u32 done = 0, wake = 0;

	for (u32 s = 0; s < 8; s++) {
		struct sector *sector = &vm->sector[block * 8 + s];

		bytes_of_version(++vm->versions, data + s * 512);
		sector->version[sector->n++] = vm->versions;
	}
	must(fby_write(pool, vm->index, block * 8, 8, data, &done, &wake) == FBY_DONE, "write");
}

static void written_is_durable(u32 block)
{
	must(fby_ticket_state(pool, fby_volume_ticket(pool, vm->index)) == FBY_TICKET_DURABLE, "it has ended over what is not durable");
	for (u32 s = 0; s < 8; s++)
		vm->sector[block * 8 + s].floor = vm->sector[block * 8 + s].n - 1;
}

/* Writes a block, which is acknowledged. */
static void must_write(u32 block)
{
	write_only(block);
	settle();
	written_is_durable(block);
}

static void look(struct fby_pool *p, bool damaged, const char *what)
{
	struct volume_model *was = vm;
	u32 version[8];

	for (vm = vms; vm < vms + nvolumes; vm++) {
		int rc = attach_volume(p, vm->index, FBY_HOLES_ISOLATE, &look_memory[vm - vms]);

		must(rc == FBY_DONE || (damaged && rc == -FBY_E_HOLES), "attach");
		for (u32 block = 0; block < VBLOCKS && rc == FBY_DONE; block++) {
			int read = read_block(p, &vm->origin, block, version);

			must(read == FBY_DONE || (damaged && read == -FBY_E_LOST), "a block cannot be read");
			must(read != FBY_DONE || block_is_new(block, version), what);
		}
	}
	vm = was;
}

/* Cuts the power.  unreadable: a block that cannot be read then, or 0. */
static void must_find(u32 unreadable, const char *what)
{
	struct fby_recovery_report report;

	world_copy(&cut, &w);
	cut.refuse = 0;
	if (unreadable)
		cut.unreadable[unreadable] = 1;
	world_load(&cut);
	look(open_pool(&cut, &cut_memory, &cut_bytes, &report), unreadable != 0, what);
}

/* A round has begun to write a page to the origin, so the origin's content of the block may
 * be torn. */
static void damaged_in_round(void)
{
	struct fby_io io = { .op = FBY_IO_FLUSH };
	u64 next;
	u32 wake = 0;

	start(FBY_DURABLE_THROUGH, 1);
	must_write(0);
	must(fby_volume_drain(pool, vm->index, true) == FBY_DONE, "drain");
	for (u32 i = 0; i < 100 && io.op != FBY_IO_WRITE; i++) {
		now += 1000000;
		if (fby_destage_step(pool, now, &io, &next, &wake) == FBY_DONE)
			settle(); /* it waits for that */
	}
	must(io.op == FBY_IO_WRITE, "no round begins");
	for (u32 b = CHUNK / UNIT; b < BLOCKS; b++)
		must_find(b, "a page was written to the origin while damage of it passes for a torn group");
}

/* A group without pages that only settles the previous group is the last of its chunk.  It fails,
 * and begins another chunk. */
static void settled_elsewhere(void)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;
	bool failed = false;

	start(FBY_DURABLE_THROUGH, 1);
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

/* --- records, and ends ------------------------------------------------------------------------- */

/* Does a step of destage, and carries out its requests. */
static void destage(void)
{
	struct fby_io io;
	u32 wake = 0;
	u64 next;

	now += 1000;
	if (fby_destage_step(pool, now, &io, &next, &wake) != FBY_ORIGIN)
		return;
	for (vm = vms; vm->index != io.volume; vm++)
		;
	origin_io(&vm->origin, &io, ++numbers);
	if (io.op == FBY_IO_FLUSH)
		origin_flushed(&vm->origin);
	else
		origin_ended(&vm->origin, numbers, true);
	fby_destage_complete(pool, io.id, 0);
	vm = vms;
}

/* The other volume fills chunks and frees them. */
static void other_writes(u32 n)
{
	vm = &vms[1];
	for (u32 i = 0; i < n; i++)
		must_write(i % 3);
	vm = vms;
}

/* A record with a watermark cannot be written several times in a row. */
static void watermark_refused(u32 refuse)
{
	struct fby_volume_info info;

	start(FBY_DURABLE_THROUGH, 1);
	for (u32 block = 0; block < VBLOCKS; block++)
		must_write(block);
	must(fby_volume_drain(pool, vm->index, true) == FBY_DONE, "drain");
	w.refuse = refuse;
	for (u32 i = 0; i < 400 && !fby_volume_clean(pool, vm->index); i++) {
		now += 50000000;
		destage();
		settle();
		must_find(0, "a block is lost when a watermark cannot be recorded");
	}
	must(fby_volume_clean(pool, vm->index), "a drain does not end when a watermark cannot be recorded");
	must(fby_volume_info(pool, vm->index, &info) == FBY_DONE, "info");
	must((refuse > 2) == (w.below.failed != 0) && (refuse > 2) == (info.pages != 0), "a pool has failed or not");
	for (u32 s = 0; s < VSECTORS; s++)
		must(vm->origin.durable[s] == vm->sector[s].version[vm->sector[s].n - 1], "the origin lacks a block after a drain");
}

enum change { CHANGE_ADD, CHANGE_REMOVE, CHANGE_REBIND, CHANGE_MARK, CHANGE_ATTACH, CHANGES };

static int change_volume(enum change what)
{
	struct fby_volume_spec spec = { .name = "c", .identity = "i", .origin_sectors = VSECTORS, .block_size = 512 };
	u32 marks;
	u16 third;

	switch (what) {
	case CHANGE_ADD:
		return fby_volume_add(pool, &spec, &third);
	case CHANGE_REMOVE:
		return fby_volume_remove(pool, vm->index, true);
	case CHANGE_REBIND:
		return fby_volume_rebind(pool, vm->index, "j", 2 * VSECTORS);
	case CHANGE_MARK:
		return fby_volume_mark(pool, vm->index, FBY_MARK_BEGIN, &marks);
	default:
		return attach_volume(pool, vm->index, FBY_HOLES_ISOLATE, &look_memory[0]);
	}
}

/* The device fails while a record is written.  No change is reported as made, and the volume is
 * unchanged. */
static void record_refused(enum change what)
{
	struct fby_volume_info was, is;
	u16 third;

	start(FBY_DURABLE_THROUGH, 1);
	must(fby_volume_detach(pool, vm->index) == FBY_DONE, "detach");
	if (what == CHANGE_ATTACH) /* as recovery leaves it when it finds a hole */
		pool->space.owner[vm->index].rec.flags = FBY_VF_HOLES;
	must(fby_volume_info(pool, vm->index, &was) == FBY_DONE, "info");
	w.refuse = ~0u;
	for (u32 times = 0; times < 2; times++) {
		must(change_volume(what) == -FBY_E_MEDIUM, "a record that a failed device does not have is told to be there");
		must(w.below.failed, "a record cannot be written, and the pool has not failed");
		must(fby_volume_info(pool, vm->index, &is) == FBY_DONE && memcmp(&is.spec, &was.spec, sizeof(is.spec)) == 0 &&
		     is.used && is.marks == was.marks && is.holes == was.holes && !is.attached,
		     "a change that was refused has been made");
		must(fby_volume_find(pool, "c", &third) == -FBY_E_NO_VOLUME, "a volume that was refused is there");
	}
}

static struct fby_write late_write;

static void publish_late(const char *what)
{
	if (!strstr(what, "seq_min"))
		return;
	race = NULL;
	fby_write_publish(pool, &late_write);
}

/* The device has failed, and a write to a part of a block takes the place of its page while a round
 * lists its pages.  The round lists neither page. */
static void published_in_rescue(void)
{
	u8 data[512];
	const struct fby_vec vec = { data, sizeof(data) };

	start(FBY_DURABLE_THROUGH, 1);
	must_write(0);
	must(fby_write_begin(pool, &late_write, vm->index, 0, 1) == FBY_DONE, "begin");
	bytes_of_version(++vm->versions, data);
	vm->sector[0].version[vm->sector[0].n++] = vm->versions;
	fby_write_copy(pool, &late_write, &vec, 1, 0);
	fby_write_commit(pool, &late_write);
	w.refuse = ~0u;
	must(change_volume(CHANGE_ADD) == -FBY_E_MEDIUM && w.below.failed, "the pool has not failed");
	must(fby_volume_drain(pool, vm->index, true) == FBY_DONE, "drain");
	race = publish_late;
	for (u32 i = 0; i < 1000 && (race || !fby_volume_clean(pool, vm->index)); i++) {
		now += 1000000;
		destage();
	}
	must(!race && fby_volume_clean(pool, vm->index), "no round lists pages, or a drain does not end");
	for (u32 s = 0; s < 8; s++)
		must(vm->origin.durable[s] == vm->sector[s].version[vm->sector[s].n - 1],
		     "the origin lacks a page that was published while a round listed others");
}

/* --- chunks that are used again -------------------------------------------------------------- */

#define GROUPS_OF_CHUNK ((CHUNK / UNIT - 3) / 2) /* of one page */

/* All pages of a chunk are replaced and durable while its array is on its way. */
static void array_late(enum fby_durable durable)
{
	struct fby_medium_io late, io;
	u32 late_number, wake = 0;

	start(durable, 2);
	for (u32 i = 0; i < GROUPS_OF_CHUNK; i++)
		must_write(i);
	write_only(0);
	must(fby_medium_next(pool, &late, &wake) == FBY_DONE && late.kind == FBY_MEDIUM_WRITE, "no array");
	late_number = ++numbers;
	world_send(&w, &late, late_number);
	must(late.at % CHUNK == 2 * UNIT, "the array does not come first");
	settle();
	for (u32 i = 1; i < GROUPS_OF_CHUNK; i++) {
		write_only(i);
		settle();
	}
	other_writes(CHUNKS * GROUPS_OF_CHUNK);
	world_end(&w, &late, late_number, 0);
	fby_medium_end(pool, &late, 0, &wake);
	while (fby_medium_next(pool, &io, &wake) == FBY_DONE) {
		world_send(&w, &io, ++numbers);
		world_end(&w, &io, numbers, 0);
		fby_medium_end(pool, &io, 0, &wake);
	}
	for (u32 i = 0; i < GROUPS_OF_CHUNK; i++)
		written_is_durable(i);
	must_find(0, "a block is lost when an array is late");
}

/* The origin has all data that was written before a block, and a group without pages follows
 * the block. */
static void damaged_after_round(void)
{
	start(FBY_DURABLE_THROUGH, 1);
	must_write(0);
	must(fby_volume_drain(pool, vm->index, true) == FBY_DONE, "drain");
	for (u32 i = 0; i < 400 && !fby_volume_clean(pool, vm->index); i++) {
		now += 50000000;
		destage();
		settle();
	}
	must(fby_volume_clean(pool, vm->index), "a drain does not end");
	must(fby_volume_drain(pool, vm->index, false) == FBY_DONE, "drain");
	must_write(1);
	for (u32 i = 0; i < 4; i++) {
		now += 150000000;
		destage();
		settle();
	}
	for (u32 b = CHUNK / UNIT; b < BLOCKS; b++)
		must_find(b, "a settled block is lost without a word");
}

static u64 copies(void)
{
	struct fby_volume_info info;

	must(fby_volume_info(pool, vms[0].index, &info) == FBY_DONE, "info");
	return info.pages_relocated;
}

/* The other volume writes, and each of its chunks keeps a page.  Relocation has its turn. */
static void other_keeps(u32 i)
{
	vm = &vms[1];
	must_write(i % (GROUPS_OF_CHUNK - 1) ? VBLOCKS - 1 : i / (GROUPS_OF_CHUNK - 1) % (VBLOCKS - 1));
	vm = vms;
	for (u32 n = 0; n < 4; n++) {
		destage();
		settle();
	}
}

/* A page is copied out of a mostly dead chunk, and the chunk is used again.  Nobody writes to the
 * volume meanwhile, and no time passes.  So a group stays unsettled unless the copy needs it
 * settled. */
static void copy_is_last(void)
{
	u32 i = 0;

	start(FBY_DURABLE_THROUGH, 2);
	for (u32 block = 0; block < GROUPS_OF_CHUNK; block++)
		must_write(block);
	for (u32 block = 0; block + 1 < GROUPS_OF_CHUNK; block++)
		must_write(block);
	for (; i < 400 && copies() == 0; i++)
		other_keeps(i);
	must(copies() > 0, "no page is copied");
	for (u32 end = i + 2 * CHUNKS * GROUPS_OF_CHUNK; i < end; i++)
		other_keeps(i);
	nvolumes = 1; /* the other one's last group may pass for a torn one */
	for (u32 b = CHUNK / UNIT; b < BLOCKS; b++)
		must_find(b, "a copy is lost without a word, and its source was freed");
}

/* A volume was removed, and another volume with its name was added. */
static void look_at_removed(struct fby_pool *p)
{
	u32 version[8];

	must(attach_volume(p, vm->index, FBY_HOLES_FAIL, &look_memory[0]) == FBY_DONE, "attach");
	for (u32 block = 0; block < VBLOCKS; block++) {
		must(read_block(p, &vm->origin, block, version) == FBY_DONE, "a block of a new volume cannot be read");
		for (u32 s = 0; s < 8; s++)
			must(version[s] == vm->origin.durable[block * 8 + s], "a new volume shows what a removed one had");
	}
}

/* A volume is detached and removed before anything of it was sent, while another volume with the
 * same slot writes.  Neither call may wait by itself. */
static void left_in_flight(void)
{
	struct fby_volume_spec spec = { .name = "c", .identity = "i", .origin_sectors = VSECTORS, .block_size = 512 };
	struct fby_recovery_report report;
	u8 data[4096] = { 1 };
	const struct fby_vec vec = { data, sizeof(data) };
	struct fby_write write;
	u16 third;
	int rc;

	start(FBY_DURABLE_FLUSH, 2);
	must(fby_volume_add(pool, &spec, &third) == FBY_DONE, "add");
	must_write(0);
	write_only(1);
	must(fby_write_begin(pool, &write, vm->index, 16, 8) == FBY_DONE, "begin");
	must(fby_volume_detach(pool, vm->index) == FBY_WAIT_SLOT, "a volume is detached under a write");
	must(fby_volume_remove(pool, third, true) == FBY_WAIT_SLOT, "a volume is removed while its slot is held");
	fby_write_copy(pool, &write, &vec, 1, 0);
	fby_write_commit(pool, &write);
	fby_write_publish(pool, &write);
	rc = fby_volume_detach(pool, vm->index);
	must(rc == FBY_WAIT_TICKET, "a volume is detached before its writes are durable");
	for (u32 i = 0; i < 100 && rc == FBY_WAIT_TICKET; i++) {
		must(request(0), "a detach waits for nothing");
		rc = fby_volume_detach(pool, vm->index);
	}
	must(rc == FBY_DONE, "detach");
	written_is_durable(1);
	nvolumes = 0;
	must_find(0, "");
	must(fby_volume_remove(pool, vm->index, false) == -FBY_E_VOLUME_DIRTY, "a volume with pages is removed");
	must(fby_volume_remove(pool, vm->index, true) == FBY_DONE, "remove");
	must(fby_volume_remove(pool, third, true) == FBY_DONE, "remove");
	spec.name[0] = 'a';
	must(fby_volume_add(pool, &spec, &vm->index) == FBY_DONE, "add again");
	settle();
	world_copy(&cut, &w);
	world_load(&cut);
	look_at_removed(open_pool(&cut, &cut_memory, &cut_bytes, &report));
}

/* Closes cleanly, and then closes again what the next host finds. */
static void closed_clean(void)
{
	struct fby_recovery_report report;
	int rc = FBY_WAIT_TICKET;

	start(FBY_DURABLE_FLUSH, 2);
	for (u32 block = 0; block < VBLOCKS; block++)
		must_write(block);
	other_writes(5);
	write_only(3);
	for (u32 times = 0; times < 2; times++) {
		rc = fby_pool_close(pool);
		must(times || rc == FBY_WAIT_TICKET, "a pool is closed over what is not durable");
		for (u32 i = 0; i < 100 && rc == FBY_WAIT_TICKET; i++) {
			must(request(0), "a close waits for nothing");
			rc = fby_pool_close(pool);
		}
		must(rc == FBY_DONE, "close");
		if (times == 0)
			written_is_durable(3);
		world_load(&w);
		pool = open_pool(&w, &memory, &bytes, &report);
		must(report.clean && report.holes == 0 && report.damaged == 0, "a pool that was closed is not clean");
		must_find(0, "a block is lost by a clean close");
	}
}

void volume_scenes(void)
{
	const struct geometry *was = geometry;

	geometry = &scene;
	damaged_in_round();
	settled_elsewhere();
	for (u32 refuse = 1; refuse <= 3; refuse++)
		watermark_refused(refuse);
	for (u32 what = 0; what < CHANGES; what++)
		record_refused((enum change)what);
	published_in_rescue();
	for (u32 durable = 0; durable < 3; durable++)
		array_late((enum fby_durable)durable);
	copy_is_last();
	damaged_after_round();
	left_in_flight();
	closed_clean();
	geometry = was;
}
