// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_recovery.c - what recovery makes of one spoilt line or record: what it reports, and
 * what it leaves in memory for those who come after it.
 */
#include "inside.h"

static struct fby_recovery_report report;

static struct fby_page_line *line(u32 chunk, u32 nth)
{
	return (struct fby_page_line *)fby_line_at(pool, chunk, FBY_FIRST_PAGE + nth);
}

static void finish(struct fby_page_line *l)
{
	fby_line_finish(pool->line_seed, l);
}

/* As after a crash, now. */
static void recover(void)
{
	struct fby_options o = { .nslots = 2 };
	u64 bytes = pool->memory_bytes;
	char text[200];

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, &report) == FBY_DONE);
	for (u32 page = 0; page < NCHUNKS << pool->chunk_shift; page++)
		EXPECT(!(pool->entry[page].state & (FBY_ES_HOLE | FBY_ES_VOID | FBY_ES_REPAIR)));
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
}

/* The data of the last batch did not arrive: dropped, and gone for good. */
static void torn(void)
{
	fby_page_data(pool, (open_chunk << pool->chunk_shift) + FBY_FIRST_PAGE + 2)[7] ^= 1;
	recover();
	EXPECT(report.dropped == 1 && report.ndropped_named == 1 && report.dropped_named[0].block == 17);
	EXPECT(report.dropped_named[0].chunk == open_chunk && report.dropped_named[0].volume == 0);
	EXPECT(report.dropped_named[0].page == FBY_FIRST_PAGE + 2);
	EXPECT(pool->volume[0].recovered == DATA_PAGES + 1 && pool->volume[0].rec.flags == 0);
	EXPECT(line(open_chunk, 2)->kind == FBY_KIND_VOID);
	recover();
	EXPECT(report.dropped == 0 && report.entries == DATA_PAGES + 4);
	pool_restore();
}

/* One bit of a line that is settled: put right, here and on the media. */
static void repaired(void)
{
	struct fby_page_line was = *line(open_chunk, 1);

	((u8 *)line(open_chunk, 1))[8] ^= 4;
	recover();
	EXPECT(report.lines_repaired == 1 && report.holes == 0 && report.dropped == 0);
	EXPECT(memcmp(&was, line(open_chunk, 1), sizeof(was)) == 0);
	EXPECT(pool->volume[0].recovered == DATA_PAGES + 2);
	pool_restore();
}

/* A settled line of block 16 is gone: the block answers EIO, and that is remembered. */
static void hole(u16 volume, u32 chunk, u32 nth, u64 block)
{
	u32 pages = volume ? 2 : DATA_PAGES + 2;

	fby_chunk_seal(pool, chunk, false);
	memset(line(chunk, nth), 0, FBY_LINE);
	recover();
	EXPECT(report.holes == 1 && report.nholes_named == 1 && report.holes_named[0].block == block);
	EXPECT(report.holes_named[0].volume == volume && report.holes_named[0].page == FBY_FIRST_PAGE + nth);
	for (u16 v = 0; v < 3; v++) {
		EXPECT(pool->volume[v].rec.flags == (v == volume ? FBY_VF_HOLES : 0));
		EXPECT(pool->volume[v].lost_blocks == (v == volume) && pool->volume[v].lost_only == (v == volume));
	}
	EXPECT(pool->volume[volume].recovered == pages && pool->volume[volume].holes == 1);
	recover(); /* a second start knows it, too */
	EXPECT(pool->volume[volume].rec.flags == FBY_VF_HOLES && pool->volume[volume].lost_blocks == 1);
	pool_restore();
}

/* The highest number of all was in a lost line: the seal tells it, and it is not used again. */
static void last_number(void)
{
	u64 lost = line(other_chunk, 1)->seq;

	EXPECT(lost == pool->chunk[other_chunk].seq_last);
	fby_chunk_seal(pool, other_chunk, false);
	memset(line(other_chunk, 1), 0, FBY_LINE);
	recover();
	EXPECT(pool->seq > lost && report.holes == 1);
	pool_restore();
}

/* Both copies of the record: what is cached of it stays, until it is removed. */
static void record_lost(void)
{
	memset(media.base + FBY_VT_OFFSET + 2 * sizeof(struct fby_volume_record), 0x55,
	       2 * sizeof(struct fby_volume_record));
	recover();
	EXPECT(pool->volume[1].damaged && !pool->volume[0].damaged && pool->volume[1].recovered == 2);
	EXPECT(pool->chunk[other_chunk].state == FBY_CS_CLOSED && pool->chunk[other_chunk].volume == 1);
	EXPECT(fby_volume_remove(pool, 1, true) == FBY_DONE && pool->chunk[other_chunk].state == FBY_CS_FREE);
	pool_restore();
}

/* A line of a block that the volume has not. */
static void beyond(u8 kind, u8 valid, u8 lost, u64 block, bool counts)
{
	struct fby_page_line *l = line(open_chunk, 1);

	l->kind = kind;
	l->valid = valid;
	l->lost = lost;
	l->block = block;
	finish(l);
	recover();
	EXPECT(report.damaged == counts && report.holes == counts);
	pool_restore();
}

/* What format leaves: lines of both parities, and a pool that begins with the first numbers. */
static void formatted(void)
{
	struct fby_format f = { .uuid = { 1, 2, 3 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3 };
	struct fby_open_line open;
	struct fby_seal_line seal;

	memset(media.base, 0, media.size);
	EXPECT(fby_format(&media, &f) == FBY_DONE);
	for (u32 c = 0; c < NCHUNKS; c++) {
		for (u32 which = 0; which < 2; which++) {
			EXPECT(fby_open_line_read(pool, c, which, &open) && open.epoch == which);
			EXPECT(open.kind == FBY_CHUNK_FREE && open.seq_min == 0);
		}
		for (u32 which = 0; which < FBY_SEALS; which++) {
			EXPECT(fby_seal_line_read(pool, c, which, &seal) && seal.counter == (which & 1));
			EXPECT(seal.epoch == 1 && seal.closed && seal.fill == FBY_FIRST_PAGE);
			EXPECT(seal.volume == FBY_NO_VOLUME && seal.last_block == FBY_NO_BLOCK);
		}
	}
	recover();
	EXPECT(report.clean && report.entries == 0);
	EXPECT(pool->nfree == NCHUNKS);
	EXPECT(pool->seq == 2);
	pool_restore();
}

void test_recovery(void)
{
	torn();
	repaired();
	hole(0, open_chunk, 1, 16);
	hole(0, open_chunk, 2, 17);
	hole(1, other_chunk, 0, 0);
	last_number();
	record_lost();
	beyond(FBY_KIND_DATA, 0xff, 0, VOLUME_SECTORS / FBY_PAGE_SECTORS, true);
	beyond(FBY_KIND_DATA, 0, 1, VOLUME_SECTORS / FBY_PAGE_SECTORS, true);
	beyond(FBY_KIND_VOID, 0, 0, VOLUME_SECTORS / FBY_PAGE_SECTORS, false);
	formatted();
}
