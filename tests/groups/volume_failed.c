// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_failed.c - goal: when the pool's device has failed, the origin gets all acknowledged data
 * from the image in memory.
 *
 * Method: two volumes live by seed, and the device fails for good at each of their requests in
 * turn. The host continues: it destages, and the origin refuses a few requests.  The drain must
 * end.  Each sector of each origin must then be the last version that was acknowledged, or a newer
 * one, and durable.  Reads continue, and both volumes can be detached.  The device may return with
 * a new host. Then the pool, too, must show the acknowledged data.
 */
#include "group_test.h"
#include "volume_model.h"

#define STEPS 60u

static const struct geometry small = { 4096, 65536, 12, 0, 1 };
static struct world w;
static struct fby_pool *pool;
static void *memory, *attach_memory[2], *again_memory[2];
static u64 bytes, now, moments, pages_saved;
static u32 numbers, requests, fails_at, origin_errors;

static void start(enum fby_durable durable)
{
	const struct fby_format f = { .uuid = { 6 }, .chunk_size = CHUNK, .nvolumes = 2, .unit = UNIT };
	struct fby_recovery_report report;

	world_make(&w, durable);
	must(fby_format(&w.media, &f) == FBY_DONE, "format");
	world_load(&w);
	now = 1;
	numbers = requests = 0;
	pool = open_pool(&w, &memory, &bytes, &report);
	add_volumes(pool, 2, attach_memory);
}

static void look_at_tickets(void)
{
	for (vm = vms; vm < vms + 2; vm++)
		for (u32 i = 0; i < VSECTORS; i++) {
			struct sector *s = &vm->sector[i];

			while (s->floor + 1 < s->n && fby_ticket_state(pool, s->ticket[s->floor + 1]) == FBY_TICKET_DURABLE)
				s->floor++;
		}
	vm = vms;
}

static bool request(void)
{
	struct fby_medium_io io;
	u32 wake = 0;
	int error;

	if (fby_medium_next(pool, &io, &wake) != FBY_DONE)
		return false;
	world_send(&w, &io, ++numbers);
	error = requests++ >= fails_at ? 5 : 0;
	if (error) /* nor can records be written */
		w.refuse = ~0u;
	world_end(&w, &io, numbers, error);
	fby_medium_end(pool, &io, error, &wake);
	look_at_tickets();
	return true;
}

/* Does a step of destage, with the request that it needs. */
static void destage(void)
{
	struct fby_io io;
	u32 wake = 0;
	u64 next;
	bool fails;

	now += chance(3) ? 1000000 : 120000000;
	if (fby_destage_step(pool, now, &io, &next, &wake) != FBY_ORIGIN)
		return;
	for (vm = vms; vm->index != io.volume; vm++)
		;
	fails = origin_errors && chance(4) == 0;
	origin_errors -= fails;
	origin_io(&vm->origin, &io, ++numbers);
	if (io.op != FBY_IO_FLUSH)
		origin_ended(&vm->origin, numbers, !fails);
	else if (!fails)
		origin_flushed(&vm->origin);
	fby_destage_complete(pool, io.id, fails ? 5 : 0);
	vm = vms;
}

static void write_some(void)
{
	u8 data[8 * 512];
	u32 n = chance(3) ? 8 : 1 + chance(7), sector = chance(VBLOCKS) * 8 + (n < 8 ? chance(8 - n) : 0), done = 0, wake = 0;
	int rc;

	vm = &vms[chance(2)];
	for (u32 i = 0; i < n; i++)
		bytes_of_version(++vm->versions, data + i * 512);
	rc = fby_write(pool, vm->index, sector, n, data, &done, &wake);
	must(rc == FBY_DONE || rc == FBY_WAIT_SPACE || rc == FBY_WAIT_TICKET || rc == FBY_WAIT_SLOT || rc == -FBY_E_MEDIUM, "write");
	for (u32 i = 0; i < done; i++) {
		struct sector *s = &vm->sector[sector + i];

		s->version[s->n] = vm->versions - n + 1 + i;
		s->ticket[s->n++] = fby_volume_ticket(pool, vm->index);
	}
	vm = vms;
}

static void step(u32 i)
{
	switch (chance(8)) {
	case 0: case 1: case 2:
		write_some();
		break;
	case 3: case 4: case 5:
		(void)request();
		break;
	default:
		destage();
	}
	if (i % 16 == 15)
		(void)fby_volume_drain(pool, vms[chance(2)].index, chance(2));
}

static bool all_home(void)
{
	return fby_volume_clean(pool, vms[0].index) && fby_volume_clean(pool, vms[1].index);
}

static void must_be_saved(void)
{
	struct fby_volume_info info;
	u32 version[8];
	u64 upto;

	for (vm = vms; vm < vms + 2; vm++) {
		must(fby_volume_drain_upto(pool, vm->index, &upto) == FBY_DONE, "drain");
		must(fby_volume_info(pool, vm->index, &info) == FBY_DONE && info.home >= upto, "a drain does not say that it has ended");
		for (u32 block = 0; block < VBLOCKS; block++) {
			int rc;

			for (u32 i = 0; i < 8; i++)
				version[i] = vm->origin.durable[block * 8 + i];
			must(block_is_new(block, version), "an acknowledged write is not on the origin when the device has failed");
			rc = read_block(pool, &vm->origin, block, version);
			must(rc == -FBY_E_MEDIUM || (rc == FBY_DONE && block_is_new(block, version)), "a read of a pool that has failed");
		}
		must(fby_volume_detach(pool, vm->index) == FBY_DONE, "detach from a pool that has failed");
		pages_saved += info.pages;
	}
	vm = vms;
}

/* Lets the device return, with a new host. */
static void must_come_back(void)
{
	struct fby_recovery_report report;
	u32 version[8];

	w.refuse = 0;
	world_load(&w);
	pool = open_pool(&w, &memory, &bytes, &report);
	for (vm = vms; vm < vms + 2; vm++) {
		must(attach_volume(pool, vm->index, FBY_HOLES_FAIL, &again_memory[vm - vms]) == FBY_DONE, "attach again");
		for (u32 block = 0; block < VBLOCKS; block++)
			must(read_block(pool, &vm->origin, block, version) == FBY_DONE && block_is_new(block, version),
			     "a device that comes back does not have what was acknowledged");
	}
	vm = vms;
}

/* False: the life has no request with this number. */
static bool fails(u64 life, u32 at)
{
	seed = life * 0x9e3779b97f4a7c15ull | 1;
	for (u32 i = 0; i < 4; i++)
		(void)chance(2);
	fails_at = at;
	origin_errors = life % 3 == 0 ? 4 : 0;
	start((enum fby_durable)(life % 3));
	for (u32 i = 0; i < STEPS && !w.below.failed; i++)
		step(i);
	if (requests <= at && !w.below.failed)
		return false;
	for (u32 i = 0; i < 500 && !w.below.failed; i++) {
		write_some();
		(void)request();
	}
	must(w.below.failed, "a device fails for good, and the pool does not");
	(void)fby_volume_drain(pool, vms[0].index, true);
	(void)fby_volume_drain(pool, vms[1].index, true);
	for (u32 i = 0; i < 3000 && !all_home(); i++)
		destage();
	must(all_home(), "the device has failed, and a drain does not end");
	must_be_saved();
	must_come_back();
	moments++;
	return true;
}

void volume_failed(u64 first, u64 lives)
{
	const struct geometry *was = geometry;

	geometry = &small;
	for (this_seed = first; this_seed < first + lives; this_seed++)
		for (u32 at = 0; fails(this_seed, at); at++)
			;
	geometry = was;
}

void volume_failed_told(void)
{
	printf("volumes: the device failed at %llu requests: all that was acknowledged is on the origins, with %llu pages left\n",
	       (unsigned long long)moments, (unsigned long long)pages_saved);
}
