// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_verify.c - the origin of a volume, and the comparison after a cut.
 */
#include "volume_model.h"

struct volume_model vms[2], *vm = vms;

void bytes_of_version(u32 version, u8 *to)
{
	for (u32 i = 0; i < 512; i += 4) {
		u32 word = version ? version * 2654435761u + i : 0;

		memcpy(to + i, &word, 4);
	}
}

u32 version_of_bytes(const u8 *bytes)
{
	u8 be[512];
	u32 word, version;

	memcpy(&word, bytes, 4);
	version = word * 244002641u; /* the inverse of the factor above */
	bytes_of_version(version, be);
	return memcmp(be, bytes, 512) == 0 ? version : ~0u;
}

/* --- the origin ------------------------------------------------------------------------- */

void origin_write(struct origin *o, u32 sector, u32 version, u32 io)
{
	if (o->npending == ORIGIN_PENDING)
		lost("too much is pending for the origin");
	o->pending[o->npending].sector = sector;
	o->pending[o->npending].version = version;
	o->pending[o->npending].io = io;
	o->pending[o->npending++].covered = false;
}

void origin_ended(struct origin *o, u32 io, bool good)
{
	u32 n = 0;

	for (u32 i = 0; i < o->npending; i++) {
		if (o->pending[i].io == io) {
			if (!good && chance(2))
				continue;
			o->pending[i].io = ~0u;
		}
		o->pending[n++] = o->pending[i];
	}
	o->npending = n;
}

void origin_flush_sent(struct origin *o)
{
	for (u32 i = 0; i < o->npending; i++)
		o->pending[i].covered = o->pending[i].io == ~0u;
}

void origin_flushed(struct origin *o)
{
	u32 n = 0;

	for (u32 i = 0; i < o->npending; i++) {
		if (o->pending[i].covered)
			o->durable[o->pending[i].sector] = o->pending[i].version;
		else
			o->pending[n++] = o->pending[i];
	}
	o->npending = n;
}

u32 origin_sees(const struct origin *o, u32 sector)
{
	u32 version = o->durable[sector];

	for (u32 i = 0; i < o->npending; i++)
		if (o->pending[i].sector == sector && o->pending[i].io == ~0u)
			version = o->pending[i].version;
	return version;
}

void origin_cut(struct origin *o, const struct origin *from)
{
	memcpy(o->durable, from->durable, sizeof(o->durable));
	for (u32 i = 0; i < from->npending; i++)
		if (chance(2))
			o->durable[from->pending[i].sector] = from->pending[i].version;
	o->npending = 0;
}

void origin_io(struct origin *o, const struct fby_io *io, u32 number)
{
	const u8 *bytes = io->buf;

	if (io->op == FBY_IO_FLUSH) {
		origin_flush_sent(o);
		return;
	}
	for (u64 s = 0; s < io->nsectors; s++) {
		u32 version = io->op == FBY_IO_WRITE ? version_of_bytes(bytes + s * 512) : 0;

		must(io->sector + s < VSECTORS, "the origin is written past its end");
		must(version != ~0u, "the origin gets bytes that nobody wrote");
		origin_write(o, (u32)(io->sector + s), version, number);
	}
}

/* --- the volume --------------------------------------------------------------------------- */

int attach_volume(struct fby_pool *p, u16 index, enum fby_holes holes, void **memory)
{
	struct fby_attach a = { .origin_sectors = VSECTORS, .identity = "i", .round_pages = 64, .nrequests = 4,
				.buffer_bytes = 16384, .holes = holes };

	a.mem_bytes = fby_volume_bytes(p, a.round_pages, a.nrequests, a.buffer_bytes);
	if (!*memory)
		*memory = aligned_alloc(4096, (a.mem_bytes + 4095) & ~4095ull);
	memset(*memory, 0, a.mem_bytes);
	a.mem = *memory;
	return fby_volume_attach(p, index, &a);
}

void add_volumes(struct fby_pool *p, u32 n, void **memory)
{
	for (vm = vms; vm < vms + n; vm++) {
		struct fby_volume_spec spec = { .name = "a", .identity = "i", .origin_sectors = VSECTORS, .block_size = 512 };

		memset(vm, 0, sizeof(*vm));
		vm->versions = FIRST_VERSION(vm);
		spec.name[0] += (char)(vm - vms);
		must(fby_volume_add(p, &spec, &vm->index) == FBY_DONE, "add");
		must(attach_volume(p, vm->index, FBY_HOLES_FAIL, &memory[vm - vms]) == FBY_DONE, "attach");
		for (u32 i = 0; i < VSECTORS; i++) {
			vm->sector[i].version[0] = vm->origin.durable[i] = ++vm->versions;
			vm->sector[i].n = 1;
		}
	}
	vm = vms;
}

int read_block(struct fby_pool *p, const struct origin *o, u32 block, u32 version[8])
{
	u8 bytes[4096], origin, gone;
	int rc = fby_read_block(p, vm->index, block, 0, 8, bytes, &origin, &gone);

	if (rc != FBY_DONE && rc != FBY_ORIGIN)
		return rc;
	for (u32 s = 0; s < 8; s++) {
		version[s] = origin >> s & 1 ? origin_sees(o, block * 8 + s) : version_of_bytes(bytes + s * 512);
		must(version[s] != ~0u, "a read shows bytes that nobody wrote");
	}
	return FBY_DONE;
}

bool block_is_new(u32 block, const u32 version[8])
{
	for (u32 i = 0; i < 8; i++) {
		const struct sector *s = &vm->sector[block * 8 + i];
		u32 k = s->n;

		while (k > s->floor && s->version[k - 1] != version[i])
			k--;
		if (k == s->floor)
			return false;
	}
	return true;
}

static bool all_clean(struct fby_pool *p, u32 n)
{
	for (u32 i = 0; i < n; i++)
		if (!fby_volume_clean(p, vms[i].index))
			return false;
	return true;
}

/* Destages everything, and carries out all requests for that. */
static void drain_all(struct fby_pool *p, struct origin *o, u32 n)
{
	u64 now = 1, next;
	u32 wake = 0, number = 1;
	struct fby_medium_io medium;
	struct fby_io io;

	for (u32 i = 0; i < n; i++)
		must(fby_volume_drain(p, vms[i].index, true) == FBY_DONE, "drain");
	for (u32 i = 0; i < 2000 && !all_clean(p, n); i++) {
		int rc = fby_destage_step(p, now, &io, &next, &wake);

		if (rc == FBY_ORIGIN) {
			struct origin *of = &o[vms[0].index == io.volume ? 0 : 1];

			origin_io(of, &io, ++number);
			if (io.op == FBY_IO_FLUSH)
				origin_flushed(of);
			else
				origin_ended(of, number, true);
			fby_destage_complete(p, io.id, 0);
			continue;
		}
		while (fby_medium_next(p, &medium, &wake) == FBY_DONE)
			fby_medium_end(p, &medium, 0, &wake);
		now += 50000000;
	}
	must(all_clean(p, n), "a recovered volume cannot be destaged");
}

void verify_volumes(struct fby_pool *p, const struct fby_recovery_report *report, struct origin *o, u32 n, bool drain)
{
	static void *memory[2];
	u32 is[2][VSECTORS], version[8];
	struct volume_model *was = vm;
	char text[200];

	if (fby_check(p, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
	must(report->holes == 0 && report->damaged == 0 && report->groups_lost == 0, "a plain cut is reported as a loss");
	for (vm = vms; vm < vms + n; vm++) {
		must(attach_volume(p, vm->index, FBY_HOLES_FAIL, &memory[vm - vms]) == FBY_DONE, "attach after a cut");
		for (u32 block = 0; block < VBLOCKS; block++) {
			must(read_block(p, &o[vm - vms], block, version) == FBY_DONE, "a block cannot be read after a cut");
			must(block_is_new(block, version), "a block shows an older version than was acknowledged");
			memcpy(&is[vm - vms][block * 8], version, sizeof(version));
		}
	}
	vm = was;
	if (!drain)
		return;
	drain_all(p, o, n);
	for (u32 i = 0; i < n; i++)
		for (u32 s = 0; s < VSECTORS; s++)
			must(origin_sees(&o[i], s) == is[i][s], "the origin has something else than the volume showed");
	if (fby_check(p, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
}
