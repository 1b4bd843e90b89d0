/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * inside_static.h - a pool with one share of 7 slots, and a volume of 15 blocks, so that blocks 0,
 * 7 and 14 have slot 0.  Each file that includes it has its own pool.
 */
#ifndef INSIDE_STATIC_H
#define INSIDE_STATIC_H

#include "inside.h"

#define P FBY_PAGE_SECTORS
#define SHARE 65536u
#define SLOTS 7u
#define VOLUME_BLOCKS 15u

static struct fby_media small;
static struct fby_pool *sp;
static u8 *small_memory, *kept;
static void *attached;
static u32 wake;
static u64 volume_sectors = VOLUME_BLOCKS * P;
static u32 round_pages = 64, nrequests = 2;

#define ST (&sp->statics.volume[0])

static inline int opened(bool statics)
{
	struct fby_options o = { .nslots = 2, .statics = statics };
	struct fby_recovery_report report;
	int rc = media_open(&small, &o, &small_memory, &sp);

	if (rc)
		return rc;
	EXPECT(fby_recover_finish(sp, &report) == FBY_DONE && report.holes == 0);
	return FBY_DONE;
}

static inline int attach(void)
{
	struct fby_attach a = { .origin_sectors = volume_sectors, .identity = "memory", .round_pages = round_pages,
				.nrequests = nrequests, .buffer_bytes = 65536 };

	a.mem_bytes = fby_volume_bytes(sp, a.round_pages, a.nrequests, a.buffer_bytes);
	free(attached);
	a.mem = attached = aligned_alloc(FBY_PAGE, fby_round_up(a.mem_bytes, FBY_PAGE));
	memset(attached, 0, a.mem_bytes);
	return fby_volume_attach(sp, 0, &a);
}

static u32 flush_us;

static inline int add(const char *name, u64 bytes, u16 *index)
{
	struct fby_volume_spec s = { .identity = "memory", .origin_sectors = volume_sectors, .block_size = 512,
				     .flush_us = flush_us, .static_bytes = bytes };

	strcpy(s.name, name);
	return fby_volume_add(sp, &s, index);
}

static inline void make(void)
{
	struct fby_format f = { .uuid = { 7 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3, .static_bytes = 2 * SHARE };
	u16 index;

	small.size = 5 * CHUNK_BYTES + 2 * SHARE;
	if (!small.base) {
		small.base = aligned_alloc(FBY_PAGE, small.size);
		small.ops = fby_posix_media_ops(FBY_PERSIST_EADR, NULL);
		kept = malloc(small.size);
	}
	memset(small.base, 0, small.size);
	EXPECT(fby_format(&small, &f) == FBY_DONE);
	EXPECT(opened(false) == -FBY_E_FEATURE);
	EXPECT(opened(true) == FBY_DONE && sp->space.store.sb.nchunks == 4);
	EXPECT(add("s", SHARE, &index) == FBY_DONE && index == 0);
	EXPECT(attach() == FBY_DONE && ST->slots == SLOTS);
}

/* Opens the pool again, as after the death of a process. */
static inline void again(void)
{
	EXPECT(opened(true) == FBY_DONE);
	EXPECT(attach() == FBY_DONE);
}

static inline int put(u64 block, u8 what)
{
	static u8 data[FBY_PAGE];
	u32 done = 0;

	memset(data, what, sizeof(data));
	return fby_write(sp, 0, block * P, P, data, &done, &wake);
}

static inline int put_part(u64 block, u32 first, u32 n, u8 what)
{
	static u8 data[FBY_PAGE];
	u32 done = 0;

	memset(data, what, sizeof(data));
	return fby_write(sp, 0, block * P + first, n, data, &done, &wake);
}

/* Returns the byte that fills the block.  -1: lost, -2: on the origin, -3: anything else. */
static inline int get(u64 block)
{
	u8 data[FBY_PAGE], origin, lost;
	int rc = fby_read_block(sp, 0, block, 0, P, data, &origin, &lost);

	if (rc == -FBY_E_LOST)
		return -1;
	if (rc == FBY_ORIGIN && origin == 0xff)
		return -2;
	for (u32 i = 1; i < sizeof(data); i++)
		if (rc != FBY_DONE || data[i] != data[0])
			return -3;
	return data[0];
}

static inline bool sound(void)
{
	char text[200];
	bool ok = fby_check(sp, true, text, sizeof(text)) == FBY_DONE;

	if (!ok)
		fprintf(stderr, "inside: static: %s\n", text);
	return ok;
}

static inline bool complains(const char *of)
{
	char text[200];

	return fby_check(sp, true, text, sizeof(text)) == -FBY_E_INVARIANT && strstr(text, of);
}

static inline struct fby_static_line *line(u32 slot)
{
	return (struct fby_static_line *)(small.base + fby_static_line_at(ST, slot));
}

static inline u8 *page(u32 slot, u32 way)
{
	return small.base + fby_static_page_at(ST, slot, way);
}

static inline u8 *newest(u32 slot)
{
	return page(slot, (line(slot)->control & FBY_SC_NEWEST) != 0);
}

/* Runs destage to its end.  origin_has holds the origin's content, by block. */
static int origin_has[VOLUME_BLOCKS];
static u64 now_ns = 1000000;

static inline void drain_step(void)
{
	struct fby_io io;
	u64 next;

	now_ns += 1000;
	if (fby_destage_step(sp, now_ns, &io, &next, &wake) != FBY_ORIGIN)
		return;
	if (io.op == FBY_IO_WRITE)
		for (u64 s = 0; s < io.nsectors; s++)
			origin_has[(io.sector + s) / P] = ((u8 *)io.buf)[s * FBY_SECTOR];
	fby_destage_complete(sp, io.id, 0);
}

static inline void drain(void)
{
	EXPECT(fby_volume_drain(sp, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 10000 && !fby_volume_clean(sp, 0); i++) {
		drain_step();
	}
	EXPECT(fby_volume_clean(sp, 0));
}

/* One pass of a drain, with writes during it. */
static inline void drain_pass(void)
{
	u64 pass = ST->passes + 1;

	EXPECT(fby_volume_drain(sp, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 10000 && ST->passes_done < pass; i++) {
		drain_step();
	}
	EXPECT(ST->passes_done >= pass);
}

static inline u64 live(void)
{
	struct fby_volume_info info;

	EXPECT(fby_volume_info(sp, 0, &info) == FBY_DONE && info.slots == SLOTS && info.attached && info.used);
	return info.pages;
}

static inline void keep(void)
{
	memcpy(kept, small.base, small.size);
}

static inline void restore(void)
{
	memcpy(small.base, kept, small.size);
}

/* Writes 1 and then 2 to block 0, and 3 to block 1 and 4 to block 8, which share slot 1.  All are
 * settled. */
static inline void fill(void)
{
	make();
	EXPECT(put(0, 1) == FBY_DONE && put(0, 2) == FBY_DONE && put(1, 3) == FBY_DONE && put(8, 4) == FBY_DONE);
	EXPECT(fby_static_settle(&sp->statics, 0));
}

static inline void static_done(void)
{
	free(small_memory);
	free(attached);
	free(small.base);
	free(kept);
}

#endif
