// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_scan.c - the claims that recovery's scan believes, and the state that it keeps.  That
 * state is numbers of the chunks, losses that a newer page repairs, and lines of a torn batch.
 */
#include "inside_log.h"

static struct fby_recovery_report report;

static struct fby_page_line *line(u32 nth)
{
	return (struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, open_chunk, FIRST_PAGE + nth));
}

/* A chunk that was closed keeps its numbers. */
static void numbers_kept(void)
{
	const struct fby_chunk was = pool->space.chunk[closed_chunk];
	u64 seq_min = pool->space.chunk[open_chunk].seq_min;

	EXPECT(was.seq_min > 0 && was.seal_counter > 0);
	pool_recover(&report);
	EXPECT(pool->space.chunk[closed_chunk].seq_min == was.seq_min);
	EXPECT(pool->space.chunk[closed_chunk].seal_counter == was.seal_counter);
	EXPECT(pool->space.chunk[open_chunk].seq_min == seq_min);
	pool_restore();
}

/* The counter of a record that was written more often than a pool lives is not continued. */
static void record_counted_out(void)
{
	struct fby_options o = { .nslots = 2 };

	for (u32 more = 0; more < 2; more++) {
		struct fby_volume_record *r = (struct fby_volume_record *)(media.base + FBY_VT_OFFSET) + 2 * 2;
		u64 bytes = pool->memory_bytes;

		for (u32 copy = 0; copy < 2; copy++) {
			r[copy].counter = FBY_NUMBER_START - 1 + more;
			r[copy].crc = fby_crc32c(pool->space.store.line_seed, &r[copy], sizeof(*r) - 4);
		}
		memset(pool, 0, bytes);
		EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
		EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE);
		EXPECT(fby_recover_finish(pool, &report) == (more ? -FBY_E_NUMBERS : FBY_DONE));
		pool_restore();
	}
}

/* If both open lines are there, no entry of a log overrides them. */
static void open_lines_are_believed(void)
{
	struct fby_log_entry *e;
	u64 epoch;
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	epoch = pool->space.chunk[c].epoch;
	e = (struct fby_log_entry *)memory_at(fby_log_line_at(&pool->space.store, c, FBY_CHUNK_LINES));
	e->epoch += 2;
	fby_log_entry_finish(&pool->space.store, e);
	pool_recover(&report);
	EXPECT(pool->space.chunk[c].epoch == epoch && log_info().found == 0);
	pool_restore();
}

/* A seal of a chunk without an owner claims pages.  Nobody has lost them. */
static void sealed_for_nobody(void)
{
	u32 c = pool->space.free_first;

	EXPECT(pool->space.chunk[c].owner == FBY_NO_OWNER);
	for (u32 which = 0; which < FBY_SEALS; which++) {
		struct fby_seal_line *l = (void *)memory_at(fby_seal_at(&pool->space.store, c, which));

		l->epoch = pool->space.chunk[c].epoch;
		l->owner = FBY_NO_OWNER;
		l->fill = FIRST_PAGE + 2;
		l->seq_max = 1;
		l->last_block = 1;
		l->closed = 1;
		fby_line_finish(pool->space.store.line_seed, l);
	}
	pool_recover(&report);
	EXPECT(report.holes == 0 && pool->space.chunk[c].state == FBY_CS_FREE);
	pool_restore();
}

/* The older page of a block is lost, and the newer one is there.  Nothing is lost. */
static void made_good(void)
{
	EXPECT(closed_chunk < open_chunk);
	memset(memory_at(fby_line_at(&pool->space.store, closed_chunk, FIRST_PAGE)), 0, FBY_LINE);
	pool_recover(&report);
	EXPECT(report.holes == 0 && pool->cache.volume[0].lost_blocks == 0 && pool->cache.volume[0].lost_only == 0);
	EXPECT(pool->space.owner[0].rec.flags == 0);
	pool_restore();
}

/* Makes the open chunk's pages one batch. */
static void one_batch(void)
{
	for (u32 i = 0; i < 3; i++) {
		line(i)->batch_first = FIRST_PAGE;
		line(i)->batch_count = 3;
		line(i)->block = 20 + i;
		fby_line_finish(pool->space.store.line_seed, line(i));
	}
}

/* A line of the last batch seems not to have arrived.  It is not repaired, and the line that is
 * written in its place belongs to that batch. */
static void torn_in_the_middle(void)
{
	one_batch();
	((u8 *)line(1))[8] ^= 4;
	pool_recover(&report);
	EXPECT(report.lines_repaired == 0 && report.holes == 0);
	EXPECT(line(1)->kind == FBY_KIND_VOID && line(1)->batch_first == FIRST_PAGE && line(1)->batch_count == 3);
	EXPECT(line(1)->block == 21);
	pool_restore();
}

/* The batch of an unreadable line is not used. */
static void last_line_lost(void)
{
	one_batch();
	fby_chunk_seal(&pool->space, open_chunk, false);
	memset(line(0), 0, 2 * FBY_LINE);
	((u8 *)line(2))[FBY_LINE - 1] ^= 3;
	pool_recover(&report);
	EXPECT(report.holes == 3 && pool->recovery.volume[0].holes == 1 && pool->recovery.volume[0].holes_unknown == 2);
	EXPECT(line(1)->kind == FBY_KIND_VOID && line(1)->batch_first == FIRST_PAGE + 1 && line(1)->batch_count == 1);
	pool_restore();
}

/* A volume whose record is damaged is also known to have lost something. */
static void lost_of_a_damaged_one(void)
{
	memset(media.base + FBY_VT_OFFSET, 0x55, 2 * sizeof(struct fby_volume_record));
	fby_chunk_seal(&pool->space, open_chunk, false);
	memset(line(0), 0, 2 * FBY_LINE);
	pool_recover(&report);
	EXPECT(pool->space.owner[0].damaged && pool->recovery.volume[0].holes_unknown == 1);
	pool_restore();
}

void test_scan(void)
{
	numbers_kept();
	record_counted_out();
	open_lines_are_believed();
	sealed_for_nobody();
	made_good();
	torn_in_the_middle();
	last_line_lost();
	lost_of_a_damaged_one();
}
