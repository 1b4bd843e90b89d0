// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_hostile.c - goal: whatever the media holds, a pool with volumes is opened, checked, read
 * and destaged, and each ends with an answer, never with a fault or an assertion.
 *
 * Method: lines of a pool that has lived are changed, most of them with a right checksum, and lines and
 * blocks are copied or cleared.  Then everything is done that a host does.
 */
#include "format/store.h"
#include "group_test.h"
#include "pool/parts.h"
#include "volume_model.h"

static struct world hostile;
static void *memory, *attach_memory[2];
static u64 refused, used;

static void change_line(u32 seed_of_lines)
{
	u8 *line = hostile.durable + CHUNK + (u64)chance((u32)((MEDIA - CHUNK) / FBY_LINE)) * FBY_LINE;

	/* Most of the important fields are at the beginning of a block. */
	if (chance(3))
		line = hostile.durable + CHUNK + (u64)chance(BLOCKS - CHUNK / UNIT) * UNIT + chance(8) * FBY_LINE;
	for (u32 i = 1 + chance(3); i > 0; i--)
		line[chance(FBY_LINE - 4)] = (u8)(chance(3) ? chance(256) : chance(2) * 255);
	if (chance(4))
		fby_line_finish(seed_of_lines, line);
}

/* Makes a group claim other pages than it has. */
static void change_group(u32 seed_of_lines)
{
	struct fby_group_line g;
	u8 *at = hostile.durable + CHUNK + (u64)chance(BLOCKS - CHUNK / UNIT) * UNIT;

	memcpy(&g, at, sizeof(g));
	if (g.magic != FBY_GROUP_PAGES_MAGIC)
		return;
	g.records = (u16)chance(66);
	g.lines = (u16)((g.records + 1) * FBY_GROUP_PAGE_LINES);
	fby_line_finish(seed_of_lines, &g);
	memcpy(at, &g, sizeof(g));
}

static void move_bytes(u32 bytes)
{
	u32 n = (u32)(MEDIA / bytes), from = chance(n), to = chance(n);

	if ((u64)to * bytes < CHUNK) /* superblocks and records are others' matter */
		return;
	if (chance(4))
		memmove(hostile.durable + (u64)to * bytes, hostile.durable + (u64)from * bytes, bytes);
	else
		memset(hostile.durable + (u64)to * bytes, chance(2) ? 0xff : 0, bytes);
}

/* Claims the logs, whatever they contain. */
static void find_some(struct fby_pool *p)
{
	static struct fby_log_node node[ENTRIES];

	for (u32 i = 0; i < nlogs; i++) {
		static u8 body[BODY_MOST + 64];
		struct fby_log_header header = { 0 };
		struct fby_log_result result;
		u64 n = ENTRIES;
		u32 length, wake = 0;

		if (fby_log_claim(p, logs[i].index, 0, &header, node, &n, &result) != FBY_DONE)
			continue;
		for (u64 k = 0; k < n; k++)
			(void)fby_log_read(p, logs[i].index, &node[k], body, sizeof(body), &length);
		(void)fby_log_destroy(p, logs[i].index, NULL, &wake);
	}
}

static void use(struct fby_pool *p)
{
	struct fby_medium_io medium;
	u8 bytes[4096], from_origin, gone;
	u32 wake = 0;
	char text[200];

	(void)fby_check(p, true, text, sizeof(text));
	for (u32 c = 0; c < CHUNKS; c++) {
		struct fby_chunk_info chunk;
		struct fby_entry_info entry;

		(void)fby_chunk_info(p, c, &chunk);
		for (u32 i = 0; i < CHUNK / 4096; i++)
			(void)fby_entry_info(p, c, i, true, &entry);
	}
	find_some(p);
	if (attach_volume(p, vm->index, FBY_HOLES_ACCEPT, &attach_memory[vm - vms]) != FBY_DONE)
		return;
	used++;
	for (u32 block = 0; block < VBLOCKS; block++)
		(void)fby_read_block(p, vm->index, block, 0, 8, bytes, &from_origin, &gone);
	(void)fby_volume_drain(p, vm->index, true);
	for (u32 i = 0; i < 60; i++) {
		u64 next, n = i;
		u32 done = 0;
		struct fby_io io;

		if (i % 8 == 0)
			(void)fby_write(p, vm->index, chance(VBLOCKS) * 8, 8, bytes, &done, &wake);
		if (fby_destage_step(p, n * 50000000, &io, &next, &wake) == FBY_ORIGIN)
			fby_destage_complete(p, io.id, 0);
		while (fby_medium_next(p, &medium, &wake) == FBY_DONE)
			fby_medium_end(p, &medium, 0, &wake);
	}
}

void volume_hostile(const struct world *from, u32 images)
{
	const struct fby_options o = { .nslots = 2 };

	struct volume_model *was = vm;

	world_make(&hostile, from->below.durable);
	for (u32 i = 0; i < images; i++) {
		struct fby_recovery_report report;
		struct fby_probe probe;
		struct fby_pool *p;
		u64 bytes;

		memcpy(hostile.durable, from->durable, MEDIA);
		memcpy(hostile.unreadable, from->unreadable, BLOCKS);
		world_load(&hostile);
		fby_probe(&hostile.media, &probe);
		must(probe.error == 0, "the pool is not found");
		bytes = fby_pool_bytes(&probe.sb, o.nslots);
		free(memory);
		memory = aligned_alloc(64, (bytes + 63) & ~63ull);
		memset(memory, 0, bytes);
		must(fby_pool_open(&p, memory, bytes, &hostile.media, &o) == FBY_DONE, "the pool does not open");
		for (u32 n = 1 + chance(6); n > 0; n--) {
			change_group(p->space.store.line_seed);
			if (chance(5))
				change_line(p->space.store.line_seed);
			else
				move_bytes(chance(2) ? FBY_LINE : UNIT);
		}
		if (chance(4) == 0)
			hostile.unreadable[chance(BLOCKS - CHUNK / UNIT) + CHUNK / UNIT] = 1;
		world_load(&hostile);
		vm = nlogs ? &vms[i % 2] : was; /* where there is a log there are two volumes */
		memset(memory, 0, bytes);
		if (fby_pool_open(&p, memory, bytes, &hostile.media, &o) != FBY_DONE ||
		    fby_recover_chunks(p, 0, CHUNKS) != FBY_DONE || fby_recover_finish(p, &report) != FBY_DONE) {
			refused++;
			continue;
		}
		use(p);
	}
	vm = was;
}

void volume_hostile_told(void)
{
	printf("volumes: hostile images: %llu refused, %llu used\n", (unsigned long long)refused, (unsigned long long)used);
}
