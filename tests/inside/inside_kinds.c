// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_kinds.c - records of kinds that the pool has no room for.
 *
 * Goal: a record on the media never causes an access to memory that the pool does not have, and
 * never harms another volume.
 * Method: a record of each kind that needs room, whole and with its checksum, in a pool that
 * was made without; with the kind's feature bit and without it; then each call that takes the
 * number of an owner.
 */
#include "inside.h"

#define WHERE 2u

static struct fby_pool *kp;
static u8 *kinds_memory;

static void static_record(void *record)
{
	struct fby_static_record *r = record;

	r->first = 0;
	r->slots = 1000;
	r->origin_sectors = VOLUME_SECTORS;
	r->block_size = FBY_SECTOR;
	memcpy(r->identity, "memory", 7);
	memcpy(r->name, "odd", 4);
}

static void map_record(void *record)
{
	struct fby_map_record *r = record;

	r->first = 0;
	r->units = 1;
	r->frame_bytes = FBY_FRAME_MIN;
	r->nfiles = 1;
	memcpy(r->name, "odd", 4);
}

static const struct {
	u32 kind;
	u64 feature;
	void (*make)(void *record);
} kind[] = {
	{ FBY_OWNER_STATIC, FBY_FEATURE_STATIC, static_record },
	{ FBY_OWNER_MAP, FBY_FEATURE_MAP, map_record },
};

static void feature(u64 bits)
{
	for (u32 copy = 0; copy < 2; copy++) {
		struct fby_superblock *sb = (void *)memory_at(copy * FBY_PAGE);

		sb->features_incompat = bits;
		sb->crc = fby_crc32c(0, sb, sizeof(*sb) - 4);
	}
}

static void put_record(u32 i)
{
	for (u32 copy = 0; copy < 2; copy++) {
		struct fby_volume_record *r = (struct fby_volume_record *)memory_at(FBY_VT_OFFSET) + WHERE * 2 + copy;

		memset(r, 0, sizeof(*r));
		kind[i].make(r);
		r->kind = kind[i].kind;
		r->index = WHERE;
		r->counter = 9;
		EXPECT(fby_record_sane(WHERE, r));
		r->crc = fby_crc32c(pool->space.store.line_seed, r, sizeof(*r) - 4);
	}
}

/* Passes its number to all calls that take one. */
static void calls(void)
{
	static u8 data[FBY_PAGE];
	struct fby_attach a = { .origin_sectors = VOLUME_SECTORS, .identity = "memory", .round_pages = 64,
				.nrequests = 2, .buffer_bytes = 65536 };
	struct fby_map_attach ma = { .mem = data, .mem_bytes = sizeof(data) };
	struct fby_static_slot_info slot;
	struct fby_report_block lost[4];
	struct fby_map_report map_report;
	struct fby_lost_at at = { 0 };
	struct fby_volume_info info;
	struct fby_log_header header;
	struct fby_map_file file = { 0 };
	struct fby_map_info map;
	struct fby_log_info log;
	u32 done = 0, wake = 0, marks = 0, number;
	u8 origin, lost_mask, guid[16] = { 1 };
	u64 first, upto;
	u16 index;

	EXPECT(fby_volume_info(kp, WHERE, &info) == FBY_DONE && info.damaged && !info.attached);
	EXPECT(fby_lost_list(kp, WHERE, &at, lost, 4) == 0);
	EXPECT(fby_refused_pages(kp, WHERE, &first) == 0);
	EXPECT(fby_volume_ready(kp, WHERE, FBY_HOLES_ACCEPT) == -FBY_E_VOLUME_DAMAGED);
	EXPECT(fby_volume_rebind(kp, WHERE, "memory", VOLUME_SECTORS) < 0);
	EXPECT(fby_volume_mark(kp, WHERE, FBY_MARK_BEGIN, &marks) < 0);
	EXPECT(fby_volume_attach(kp, WHERE, &a) == -FBY_E_VOLUME_DAMAGED);
	EXPECT(fby_volume_detach(kp, WHERE) < 0);
	EXPECT(fby_volume_drain(kp, WHERE, true) < 0);
	EXPECT(fby_volume_drain_upto(kp, WHERE, &upto) < 0);
	(void)fby_volume_clean(kp, WHERE);
	EXPECT(fby_write(kp, WHERE, 0, FBY_PAGE_SECTORS, data, &done, &wake) < 0);
	EXPECT(fby_read_block(kp, WHERE, 0, 0, 8, data, &origin, &lost_mask) < 0);
	EXPECT(fby_static_slot_info(kp, WHERE, 0, true, &slot) < 0);
	EXPECT(fby_log_info(kp, WHERE, &log) < 0 && fby_log_remove(kp, WHERE, false) < 0);
	EXPECT(fby_log_create(kp, WHERE, guid, 0, &header, &wake) < 0);
	EXPECT(fby_map_info(kp, WHERE, &map) < 0 || map.damaged);
	EXPECT(fby_map_attach(kp, WHERE, &ma, &map_report) < 0 && fby_map_detach(kp, WHERE) < 0);
	EXPECT(fby_map_file_add(kp, WHERE, &file, &number) < 0);
	/* Either answer is right, and the sanitizers see what the call touches. */
	(void)fby_map_remove(kp, WHERE, true);
	EXPECT(fby_volume_find(kp, "v0", &index) == FBY_DONE && index == 0);
	EXPECT(fby_volume_info(kp, 0, &info) == FBY_DONE && !info.damaged && info.pages == BLOCKS + 2);
}

void test_kinds(void)
{
	struct fby_options o = { .nslots = 2, .statics = true, .maps = true };
	struct fby_recovery_report report;
	char text[200];

	pool_save();
	for (u32 i = 0; i < 2; i++) {
		for (u32 on = 0; on < 2; on++) {
			put_record(i);
			feature(on ? kind[i].feature : 0);
			EXPECT(media_open(&media, &o, &kinds_memory, &kp) == FBY_DONE);
			EXPECT(fby_recover_finish(kp, &report) == FBY_DONE);
			EXPECT(kp->space.owner[WHERE].damaged && kp->space.owner[WHERE].rec.kind == FBY_OWNER_FREE);
			EXPECT(fby_check(kp, true, text, sizeof(text)) == FBY_DONE);
			calls();
			/* It can be removed, and its place is a volume's again. */
			EXPECT(fby_volume_remove(kp, WHERE, false) == -FBY_E_VOLUME_DIRTY);
			EXPECT(fby_volume_remove(kp, WHERE, true) == FBY_DONE && !kp->space.owner[WHERE].damaged);
			EXPECT(fby_check(kp, true, text, sizeof(text)) == FBY_DONE);
			pool_restore();
		}
	}
	free(kinds_memory);
	kinds_memory = NULL;
}
