// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_recovery.c - recovery with one spoilt line or record: its report, and the state that it
 * leaves in memory.
 */
#include "inside.h"
#include "log/log_order.h"

static struct fby_recovery_report report;

static struct fby_page_line *line(u32 chunk, u32 nth)
{
	return (struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, chunk, FIRST_PAGE + nth));
}

static void finish(struct fby_page_line *l)
{
	fby_line_finish(pool->space.store.line_seed, l);
}

static struct fby_volume_record *record(u32 volume, u32 copy)
{
	return (struct fby_volume_record *)(media.base + FBY_VT_OFFSET) + volume * 2 + copy;
}

static void recover(void)
{
	pool_recover(&report);
	for (u32 page = 0; page < NCHUNKS << pool->space.store.chunk_shift; page++)
		EXPECT(!(pool->cache.entry[page].state & (FBY_ES_HOLE | FBY_ES_VOID | FBY_ES_REPAIR)));
}

/* The data of the last batch did not arrive.  It is dropped for good. */
static void torn(void)
{
	memory_at(fby_page_at(&pool->space.store, fby_page_number(&pool->space, open_chunk, FIRST_PAGE + 2)))[7] ^= 1;
	recover();
	EXPECT(report.dropped == 1 && report.ndropped_named == 1 && report.dropped_named[0].block == 17);
	EXPECT(report.dropped_named[0].chunk == open_chunk && report.dropped_named[0].volume == 0);
	EXPECT(report.dropped_named[0].page == FIRST_PAGE + 2);
	EXPECT(pool->space.owner[0].recovered == BLOCKS + 1 && pool->space.owner[0].rec.flags == 0);
	EXPECT(line(open_chunk, 2)->kind == FBY_KIND_VOID);
	recover();
	EXPECT(report.dropped == 0 && report.entries == BLOCKS + 4);
	pool_restore();
}

/* One bit of a settled line is wrong.  It is repaired in memory and on the media. */
static void repaired(void)
{
	struct fby_page_line was = *line(open_chunk, 1);

	((u8 *)line(open_chunk, 1))[8] ^= 4;
	recover();
	EXPECT(report.lines_repaired == 1 && report.holes == 0 && report.dropped == 0);
	EXPECT(memcmp(&was, line(open_chunk, 1), sizeof(was)) == 0);
	EXPECT(pool->space.owner[0].recovered == BLOCKS + 2);
	pool_restore();
}

/* A settled line of block 16 is gone.  The block answers EIO, and that is remembered. */
static void hole(u16 volume, u32 chunk, u32 nth, u64 block)
{
	u32 pages = volume ? 2 : BLOCKS + 2;

	fby_chunk_seal(&pool->space, chunk, false);
	memset(line(chunk, nth), 0, FBY_LINE);
	recover();
	EXPECT(report.holes == 1 && report.nholes_named == 1 && report.holes_named[0].block == block);
	EXPECT(report.holes_named[0].volume == volume && report.holes_named[0].page == FIRST_PAGE + nth);
	for (u16 v = 0; v < 3; v++) {
		EXPECT(pool->space.owner[v].rec.flags == (v == volume ? FBY_VF_HOLES : 0));
		EXPECT(pool->cache.volume[v].lost_blocks == (v == volume) && pool->cache.volume[v].lost_only == (v == volume));
	}
	EXPECT(pool->space.owner[volume].recovered == pages && pool->recovery.volume[volume].holes == 1);
	recover(); /* a second start knows it, too */
	EXPECT(pool->space.owner[volume].rec.flags == FBY_VF_HOLES && pool->cache.volume[volume].lost_blocks == 1);
	pool_restore();
}

/* The highest number of all was in a lost line.  The seal shows it, and it is not used again. */
static void last_number(void)
{
	u64 lost = line(other_chunk, 1)->seq;

	EXPECT(lost == pool->space.chunk[other_chunk].seq_last);
	fby_chunk_seal(&pool->space, other_chunk, false);
	memset(line(other_chunk, 1), 0, FBY_LINE);
	recover();
	EXPECT(pool->space.seq > lost && report.holes == 1);
	pool_restore();
}

/* Both copies of the record are damaged: the volume's cached pages stay, until it is removed. */
static void record_lost(void)
{
	struct fby_volume_spec again = { .name = "again", .identity = "i", .origin_sectors = VOLUME_SECTORS,
					 .block_size = 512 };
	u16 index;

	memset(media.base + FBY_VT_OFFSET + 2 * sizeof(struct fby_volume_record), 0x55,
	       2 * sizeof(struct fby_volume_record));
	recover();
	EXPECT(pool->space.owner[1].damaged && !pool->space.owner[0].damaged && pool->space.owner[1].recovered == 2);
	EXPECT(pool->space.chunk[other_chunk].state == FBY_CS_CLOSED && pool->space.chunk[other_chunk].owner == 1);
	EXPECT(fby_volume_remove(pool, 1, true) == FBY_DONE && pool->space.chunk[other_chunk].state == FBY_CS_FREE);
	/* Its place in the table is free for chunks of a kind that recovery knows. */
	EXPECT(fby_volume_add(pool, &again, &index) == FBY_DONE && index == 1 &&
	       pool->space.owner[1].chunk_kind == FBY_CHUNK_CACHE);
	pool_restore();
}

/* A line names a block that the volume does not have. */
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

/* A line at its volume's watermark does not count. */
static void beyond_and_destaged(void)
{
	struct fby_page_line *l = line(open_chunk, 1);

	l->block = VOLUME_SECTORS / FBY_PAGE_SECTORS;
	finish(l);
	for (u32 i = 0; i < 2; i++) {
		record(0, i)->watermark = l->seq;
		record(0, i)->crc = fby_crc32c(pool->space.store.line_seed, record(0, i), sizeof(*record(0, i)) - 4);
	}
	recover();
	EXPECT(report.damaged == 0 && report.holes == 0 && pool->space.owner[0].recovered == 1);
	pool_restore();
}

/* Two lines next to each other are lost.  The second one's block has a name, and the first one's
 * has none. */
static void hole_without_name(void)
{
	fby_chunk_seal(&pool->space, open_chunk, false);
	memset(line(open_chunk, 0), 0, 2 * FBY_LINE);
	recover();
	EXPECT(report.holes == 2 && pool->recovery.volume[0].holes == 1 && pool->recovery.volume[0].holes_unknown == 1);
	EXPECT(pool->space.owner[0].rec.flags == (FBY_VF_HOLES | FBY_VF_HOLES_UNKNOWN) && pool->space.owner[1].rec.flags == 0);
	pool_restore();
}

/* Numbers and blocks of a line make impossible claims about the lines before it. */
static void neighbours_that_lie(void)
{
	struct fby_page_line *l = line(open_chunk, 1);

	l->block = 0; /* the page before it in its batch would be block -1 */
	l->batch_first = FIRST_PAGE;
	l->batch_count = 2;
	finish(l);
	memset(line(open_chunk, 0), 0, FBY_LINE);
	fby_chunk_seal(&pool->space, open_chunk, false);
	recover();
	EXPECT(report.holes == 1 && pool->recovery.volume[0].holes_unknown == 1);
	pool_restore();

	l = line(open_chunk, 2);
	l->prev_seq = 1; /* two lines are before it, and their numbers were 0 and 1 then: on the origin */
	finish(l);
	memset(line(open_chunk, 0), 0, 2 * FBY_LINE);
	fby_chunk_seal(&pool->space, open_chunk, false);
	recover();
	EXPECT(report.holes == 0 && pool->space.owner[0].rec.watermark >= 1);
	pool_restore();
}

/* A settled line of an earlier epoch has a wrong bit.  After a repair it does not belong to this
 * epoch. */
static void repaired_in_vain(void)
{
	struct fby_page_line *l = line(open_chunk, 1);

	fby_chunk_seal(&pool->space, open_chunk, false);
	l->epoch--;
	finish(l);
	l->block ^= 4;
	recover();
	EXPECT(report.lines_repaired == 0 && report.holes == 1 && report.holes_named[0].block == 16);
	pool_restore();
}

/* A line has a sector of the last block that the volume does not have. */
static void beyond_in_part(void)
{
	struct fby_page_line *l = line(open_chunk, 1);

	for (u32 i = 0; i < 2; i++) {
		record(0, i)->origin_sectors = VOLUME_SECTORS - 4;
		record(0, i)->crc = fby_crc32c(pool->space.store.line_seed, record(0, i), sizeof(*record(0, i)) - 4);
	}
	l->block = VOLUME_SECTORS / FBY_PAGE_SECTORS - 1;
	l->valid = 0x1f;
	finish(l);
	recover();
	EXPECT(report.damaged == 1);
	pool_restore();
	for (u32 i = 0; i < 2; i++) {
		record(0, i)->origin_sectors = VOLUME_SECTORS - 4;
		record(0, i)->crc = fby_crc32c(pool->space.store.line_seed, record(0, i), sizeof(*record(0, i)) - 4);
	}
	l->block = VOLUME_SECTORS / FBY_PAGE_SECTORS - 1;
	l->valid = 0x0f;
	l->flags = FBY_PF_NOCRC;
	finish(l);
	recover();
	EXPECT(report.damaged == 0 && report.dropped == 0);
	pool_restore();
}

/* A line says that the newest data is on the origin.  Nobody writes such lines yet. */
static void bypass_line(void)
{
	struct fby_page_line *l = line(open_chunk, 1);
	u8 origin, lost, data[FBY_PAGE];

	l->kind = FBY_KIND_BYPASS;
	l->valid = 0;
	finish(l);
	recover();
	EXPECT(report.damaged == 0 && pool->cache.volume[0].lost_blocks == 0 && pool->cache.volume[0].lost_only == 0);
	pool->space.owner[0].attached = true;
	EXPECT(fby_read_block(pool, 0, 16, 0, FBY_PAGE_SECTORS, data, &origin, &lost) == FBY_ORIGIN && origin == 0xff);
	pool_restore();
}

/* The first line of a chunk that has lost its open lines is repaired.  No entry is older than its
 * chunk; recover() checks that. */
static void repaired_first(void)
{
	fby_chunk_seal(&pool->space, open_chunk, false);
	((u8 *)line(open_chunk, 0))[8] ^= 4;
	memset(memory_at(fby_open_at(&pool->space.store, open_chunk, 0)), 0, 2 * FBY_LINE);
	for (u32 i = 0; i < FBY_SEALS; i++) { /* that one alone is left which says where it ends */
		struct fby_seal_line *l = (struct fby_seal_line *)memory_at(fby_seal_at(&pool->space.store, open_chunk, i));

		if (l->counter != pool->space.chunk[open_chunk].seal_counter)
			memset(l, 0, FBY_LINE);
	}
	recover();
	EXPECT(report.lines_repaired == 1 && report.holes == 0);
	EXPECT(pool->space.chunk[open_chunk].seq_min <= line(open_chunk, 0)->seq);
	pool_restore();
}

/* More blocks are lost than the report has names for. */
static void many_holes(void)
{
	u32 done = 0, wake = 0, holes = 0;
	static u8 data[FBY_PAGE];

	for (u64 block = 40; fby_write(pool, 0, block * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS, data, &done, &wake) == FBY_DONE;)
		block++;
	for (u32 c = 0; c < NCHUNKS; c++)
		if (pool->space.chunk[c].state == FBY_CS_CLOSED && c != closed_chunk) {
			memset(line(c, 0), 0, BLOCKS * FBY_LINE);
			holes += BLOCKS;
		}
	EXPECT(holes > FBY_REPORT_MAX);
	recover();
	EXPECT(report.holes == holes && report.nholes_named == FBY_REPORT_MAX && report.ndropped_named == 0);
	pool_restore();
}

/* --- lines of the chunk itself -------------------------------------------- */

static void lose_seals(u32 c, u32 which) /* by bit */
{
	for (u32 i = 0; i < FBY_SEALS; i++)
		if (which >> i & 1)
			memset(memory_at(fby_seal_at(&pool->space.store, c, i)), 0, FBY_LINE);
}

static void lose_open(u32 c, u32 which)
{
	memset(memory_at(fby_open_at(&pool->space.store, c, which)), 0, FBY_LINE);
}

static u64 counter_of(u32 c, u32 which)
{
	struct fby_seal_line l;

	return fby_seal_line_read(&pool->space.store, c, which, &l) ? l.counter : ~0ull;
}

static u64 epoch_of(u32 c, u32 which)
{
	struct fby_open_line l;

	return fby_open_line_read(&pool->space.store, c, which, &l) ? l.epoch : ~0ull;
}

/* unknown: the volumes, by bit, that may have lost something. */
static void told(u64 holes, u32 unknown)
{
	recover();
	EXPECT(report.holes == holes && report.nholes_named == 0);
	for (u32 v = 0; v < 3; v++) {
		EXPECT(pool->space.owner[v].rec.flags == (unknown >> v & 1 ? FBY_VF_HOLES_UNKNOWN : 0));
		EXPECT(record(v, 0)->flags == pool->space.owner[v].rec.flags);
	}
	for (u32 c = 0; c < NCHUNKS; c++) /* all are put right */
		for (u32 i = 0; i < FBY_SEALS; i++)
			EXPECT(counter_of(c, i) != ~0ull && epoch_of(c, i & 1) != ~0ull);
}

/* A chunk has fewer seal lines than any crash leaves. */
static void seals_lost(void)
{
	u32 unused = NCHUNKS - 1;

	lose_seals(other_chunk, 5);
	told(0, 0); /* two are left */
	EXPECT(report.chunk_headers_lost == 2 && pool->space.owner[1].recovered == 2);
	pool_restore();
	lose_seals(other_chunk, 13);
	told(1, 2);
	pool_restore();
	lose_seals(other_chunk, 15);
	told(1, 2);
	pool_restore();
	lose_seals(other_chunk, 15);
	lose_open(other_chunk, 0); /* its entries tell the volume */
	told(1, 2);
	EXPECT(pool->space.owner[1].recovered == 2 && epoch_of(other_chunk, 0) == 2 && epoch_of(other_chunk, 1) == 1);
	pool_restore();
	lose_seals(other_chunk, 15);
	lose_open(other_chunk, 1); /* there may have been a later one */
	told(1, 7);
	pool_restore();
	lose_seals(unused, 15); /* as formatted, by both open lines */
	told(0, 0);
	pool_restore();
	lose_seals(unused, 15);
	lose_open(unused, 1); /* perhaps it was more than that */
	told(1, 7);
	EXPECT(pool->space.chunk[unused].epoch == 3 && epoch_of(unused, 0) == 0 && epoch_of(unused, 1) == 3);
	pool_restore();
	lose_seals(unused, 15);
	lose_open(unused, 0);
	lose_open(unused, 1); /* above every epoch that there is */
	told(1, 7);
	EXPECT(pool->space.chunk[unused].epoch == 3 && epoch_of(unused, 0) == 2 && epoch_of(unused, 1) == 3);
	pool_restore();
}

/* An intact seal stays as it is until the others are intact. */
static void seals_kept(void)
{
	u32 unused = NCHUNKS - 1;

	lose_seals(unused, 10);
	told(0, 0);
	EXPECT(counter_of(unused, 0) == 0 && counter_of(unused, 2) == 0);
	EXPECT(counter_of(unused, 1) == 1 && counter_of(unused, 3) == 1);
	pool_restore();
	lose_seals(unused, 4); /* its copy */
	told(0, 0);
	EXPECT(counter_of(unused, 2) == 0 && counter_of(unused, 1) == 1 && counter_of(unused, 3) == 1);
	pool_restore();
}

/* Seals state an epoch that no chunk has, and there is no open line. */
static void epoch_of_nothing(void)
{
	u32 unused = NCHUNKS - 1;

	for (u32 i = 0; i < FBY_SEALS; i++) {
		struct fby_seal_line *l = (struct fby_seal_line *)memory_at(fby_seal_at(&pool->space.store, unused, i));

		l->epoch = 0;
		fby_line_finish(pool->space.store.line_seed, l);
	}
	lose_open(unused, 0);
	lose_open(unused, 1);
	told(0, 0);
	EXPECT(pool->space.chunk[unused].epoch == 1 && epoch_of(unused, 0) == 0 && epoch_of(unused, 1) == 1);
	pool_restore();
}

/* A chunk may have held more, in a pool that was closed.  The recorded count decides, unless a loss
 * stands in for an entry. */
static void seals_lost_clean(void)
{
	EXPECT(fby_pool_close(pool) == FBY_DONE);
	lose_seals(other_chunk, 7);
	told(0, 0);
	pool_restore();
	fby_chunk_seal(&pool->space, other_chunk, false);
	EXPECT(fby_pool_close(pool) == FBY_DONE);
	lose_seals(other_chunk, 5 << (pool->space.chunk[other_chunk].seal_counter & 1)); /* the closing one */
	told(0, 0);
	pool_restore();
	EXPECT(fby_pool_close(pool) == FBY_DONE);
	lose_seals(closed_chunk, 15);
	memset(line(other_chunk, 0), 0, FBY_LINE);
	recover();
	EXPECT(report.holes == 2 && pool->space.owner[0].rec.flags == FBY_VF_HOLES_UNKNOWN);
	EXPECT(pool->space.owner[1].rec.flags == FBY_VF_HOLES);
	pool_restore();
}

/* The chunk has more entries than were recorded, besides a loss.  So the record was not about this
 * chunk. */
static void more_than_closed(void)
{
	EXPECT(fby_pool_close(pool) == FBY_DONE);
	for (u32 at = 0; at <= FBY_PAGE; at += FBY_PAGE) {
		struct fby_superblock *sb = (struct fby_superblock *)memory_at(at);

		sb->clean_entries = BLOCKS;
		sb->crc = fby_sb_crc(sb);
	}
	memset(line(other_chunk, 0), 0, FBY_LINE);
	recover();
	EXPECT(report.clean && (pool->space.owner[0].rec.flags & FBY_VF_HOLES_UNKNOWN));
	pool_restore();
}

/* A clean close's digest changes with each page that is linked. */
static void digested(void)
{
	u64 n, all = fby_digest(&pool->cache, &n), fewer;
	u32 found = 0, of_first = 0;

	for (u32 page = 0; page < pool->space.store.sb.nchunks * pool->space.store.chunk_pages; page++) {
		u32 *state = &pool->cache.entry[page].state, was = *state;

		if (!(was & FBY_ES_LINKED))
			continue;
		*state = 0;
		EXPECT(fby_digest(&pool->cache, &fewer) != all && fewer == n - 1);
		*state = was;
		found++;
		of_first += page < pool->space.store.chunk_pages;
	}
	EXPECT(found == n && of_first > 0);
}

/* The pool was closed cleanly, with entries that were destaged.  They return for a volume whose
 * records are gone, and the others have lost nothing. */
static void record_lost_clean(u16 volume)
{
	u64 now = 1000000000ull, next;
	u32 wake = 0;
	struct fby_io io;

	EXPECT(fby_volume_drain(pool, volume, true) == FBY_DONE);
	for (int r = FBY_AGAIN; r != FBY_DONE; now++) {
		r = fby_destage_step(pool, now, &io, &next, &wake);
		if (r == FBY_ORIGIN)
			fby_destage_complete(pool, io.id, 0);
	}
	EXPECT(fby_volume_clean(pool, volume) && fby_pool_close(pool) == FBY_DONE);
	memset(record(volume, 0), 0x55, 2 * sizeof(*record(0, 0)));
	recover();
	EXPECT(report.clean && pool->space.owner[volume].damaged && report.holes == 0);
	for (u16 v = 0; v < 3; v++)
		EXPECT(pool->recovery.volume[v].holes_unknown == 0);
	pool_restore();
}

/* The state after format: lines of both parities, and a pool that begins with the first numbers. */
static void formatted(void)
{
	struct fby_format f = { .uuid = { 1, 2, 3 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3 };
	struct fby_open_line open;
	struct fby_seal_line seal;

	memset(media.base, 0, media.size);
	EXPECT(fby_format(&media, &f) == FBY_DONE);
	for (u32 c = 0; c < NCHUNKS; c++) {
		for (u32 which = 0; which < 2; which++) {
			EXPECT(fby_open_line_read(&pool->space.store, c, which, &open) && open.epoch == which);
			EXPECT(open.kind == FBY_CHUNK_FREE && open.seq_min == 0);
		}
		for (u32 which = 0; which < FBY_SEALS; which++) {
			EXPECT(fby_seal_line_read(&pool->space.store, c, which, &seal) && seal.counter == (which & 1));
			EXPECT(seal.epoch == 1 && seal.closed && seal.fill == FIRST_PAGE);
			EXPECT(seal.owner == FBY_NO_OWNER && seal.last_block == FBY_NO_BLOCK);
		}
	}
	recover();
	EXPECT(report.clean && report.entries == 0);
	EXPECT(record(0, 0)->counter == 1 && record(2, 1)->counter == 1 && pool->space.store.sb.generation == 2);
	EXPECT(pool->space.nfree == NCHUNKS);
	EXPECT(pool->space.seq == 2);
	pool_restore();
}

/* --- the order of a log ---------------------------------------------------- */

static enum fby_log_verdict replay(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	(void)arg;
	(void)node;
	(void)next;
	return FBY_LOG_REPLAYED;
}

/* An entry counts more txgs than are possible.  Three of them are read, as it has. */
static void log_that_lies(void)
{
	struct fby_log_node node = { .txg = 1, .gen = 1, .id = 1, .before = { 10, { 1, 2, 3 } }, .place = 77 };
	struct fby_log_node twin[2] = { { .txg = 1, .gen = 1, .id = 1 }, { .txg = 1, .gen = 1, .id = 1 } };
	struct fby_log_position at;
	struct fby_log_result r;

	fby_log_claim_order(&at, 0, &node, 1);
	EXPECT(at.seal_gen == 2 && at.seal.txg == 10);
	EXPECT(at.seal.n[0] == 1 && at.seal.n[1] == 2 && at.seal.n[2] == 3);
	memset(&at, 0, sizeof(at));
	memset(node.before.n, 0, sizeof(node.before.n));
	fby_log_replay_order(&at, &node, 1, replay, NULL, &r);
	EXPECT(r.replayed == 1 && r.end == FBY_LOG_COMPLETE);
	memset(&at, 0, sizeof(at));
	memset(&node.before, 0, sizeof(node.before));
	at.gen = 1;
	at.live.txg = 5; /* which cannot be, with nothing synced */
	fby_log_replay_order(&at, &node, 1, replay, NULL, &r);
	EXPECT(r.replayed == 0 && r.end == FBY_LOG_MISSING && r.witness.id == 1);
	memset(&at, 0, sizeof(at));
	at.gen = 1;
	at.last = (struct fby_log_counters){ .txg = 1, .n = { 1 } };
	node.before.txg = 9; /* so far on that it says nothing of txg 1, which is not synced */
	fby_log_replay_order(&at, &node, 1, replay, NULL, &r);
	EXPECT(r.replayed == 0 && r.end == FBY_LOG_MISSING);
	fby_log_claim_order(&at, 0, twin, 2); /* nobody can tell which is false: neither counts */
	EXPECT(at.seal_gen == 1 && at.seal.txg == 0);
}

/* --- kinds that are to come -------------------------------------------------- */

static int opened(bool read_only)
{
	struct fby_options o = { .nslots = 2, .read_only = read_only };
	u64 bytes = pool->memory_bytes;

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE);
	return fby_recover_finish(pool, &report);
}

/* The open is refused by name, and nothing is written.  Read-only, the rest can be read. */
static void refused(int error, u32 at, u32 kind)
{
	u8 *before = malloc(media.size);
	struct fby_chunk_info c;
	struct fby_entry_info e;
	char text[200];

	memcpy(before, media.base, media.size);
	EXPECT(opened(false) == error && report.unknown_at == at && report.unknown_kind == kind);
	EXPECT(memcmp(before, media.base, media.size) == 0);
	EXPECT(opened(true) == FBY_DONE && report.unknown_at == at && report.unknown_kind == kind);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	EXPECT(fby_entry_info(pool, closed_chunk, FIRST_PAGE + 3, true, &e) == FBY_DONE && e.linked && e.data_ok);
	EXPECT(fby_chunk_info(pool, closed_chunk, &c) == FBY_DONE && c.kind == FBY_CHUNK_CACHE && c.live > 0);
	if (error == -FBY_E_CHUNK_KIND)
		EXPECT(fby_chunk_info(pool, at, &c) == FBY_DONE && c.volume == FBY_NO_OWNER && c.live == 0);
	EXPECT(memcmp(before, media.base, media.size) == 0);
	free(before);
	pool_restore();
}

static void chunk_to_come(bool seal, u32 which, u32 kind)
{
	struct fby_open_line *o = (void *)memory_at(fby_open_at(&pool->space.store, open_chunk, which));
	struct fby_seal_line *l = (void *)memory_at(fby_seal_at(&pool->space.store, open_chunk, which));

	if (seal)
		l->kind = (u16)kind;
	else
		o->kind = (u16)kind;
	fby_line_finish(pool->space.store.line_seed, seal ? (void *)l : (void *)o);
	refused(-FBY_E_CHUNK_KIND, open_chunk, kind);
}

/* A line of the chunk's epoch that names another volume does not belong to the chunk. */
static void of_another(bool sealed)
{
	if (sealed)
		fby_chunk_seal(&pool->space, open_chunk, false);
	line(open_chunk, 1)->volume = 1;
	fby_line_finish(pool->space.store.line_seed, line(open_chunk, 1));
	recover();
	EXPECT(report.holes == 1 && report.holes_named[0].block == 16 && report.holes_named[0].volume == 0);
	EXPECT(pool->cache.volume[0].lost_blocks == 1 && pool->cache.volume[1].lost_blocks == 0);
	EXPECT(pool->space.owner[1].recovered == 2);
	pool_restore();
}

/* A seal of the chunk's epoch counts fill in lines, and the chunk's fill is in pages.  The seal is
 * forged and does not belong to this chunk. */
static void seal_of_another_kind(u16 fill)
{
	struct fby_seal_line *l;
	u32 which;

	fby_chunk_seal(&pool->space, open_chunk, false);
	which = (pool->space.chunk[open_chunk].seal_counter & 1) ^ 1;
	for (u32 copy = which; copy < FBY_SEALS; copy += 2) {
		l = (void *)memory_at(fby_seal_at(&pool->space.store, open_chunk, copy));
		*l = *(struct fby_seal_line *)memory_at(fby_seal_at(&pool->space.store, open_chunk, which ^ 1));
		l->counter++;
		l->kind = FBY_CHUNK_LOG;
		l->fill = fill;
		fby_line_finish(pool->space.store.line_seed, l);
	}
	recover();
	EXPECT(pool->space.chunk[open_chunk].kind == FBY_CHUNK_CACHE && pool->space.owner[0].recovered == BLOCKS + 2);
	EXPECT(pool->space.chunk[open_chunk].fill == FIRST_PAGE + 3);
	pool_restore();
}

static void scan_in_order(u32 first, u32 second, int error, u32 at)
{
	struct fby_options o = { .nslots = 2 };
	u64 bytes = pool->memory_bytes;

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, first, 1) == FBY_DONE);
	if (second != first)
		EXPECT(fby_recover_chunks(pool, second, 1) == FBY_DONE);
	for (u32 c = 0; c < NCHUNKS; c++)
		if (c != first && c != second)
			EXPECT(fby_recover_chunks(pool, c, 1) == FBY_DONE);
	EXPECT(fby_recover_finish(pool, NULL) == error); /* nobody need want the report */
	EXPECT(fby_recover_finish(pool, &report) == error && report.unknown_at == at);
}

/* Only the first of several is reported, in whichever order they are found.  A record comes before
 * chunks. */
static void several_to_come(void)
{
	const u32 chunks[] = { closed_chunk, open_chunk, other_chunk };
	u32 least = closed_chunk;

	for (u32 i = 0; i < 3; i++) {
		struct fby_open_line *o = (void *)memory_at(fby_open_at(&pool->space.store, chunks[i], 0));

		o->kind = FBY_CHUNK_KINDS;
		fby_line_finish(pool->space.store.line_seed, o);
		least = chunks[i] < least ? chunks[i] : least;
	}
	for (u32 i = 0; i < 9; i++)
		scan_in_order(chunks[i / 3], chunks[i % 3], -FBY_E_CHUNK_KIND, least);
	for (u32 copy = 0; copy < 2; copy++) {
		record(2, copy)->kind = FBY_OWNER_KINDS;
		record(2, copy)->crc = fby_crc32c(pool->space.store.line_seed, record(2, copy), sizeof(struct fby_volume_record) - 4);
	}
	scan_in_order(chunks[0], chunks[1], -FBY_E_OWNER_KIND, 2);
	pool_restore();
}

/* A chunk with nothing left may have belonged to any volume.  This version cannot judge the losses
 * of a volume of an unknown kind. */
static void lost_beside_one_to_come(void)
{
	struct fby_volume_info v;

	for (u32 copy = 0; copy < 2; copy++) {
		record(2, copy)->kind = FBY_OWNER_KINDS;
		record(2, copy)->crc = fby_crc32c(pool->space.store.line_seed, record(2, copy), sizeof(struct fby_volume_record) - 4);
	}
	memset(memory_at(fby_chunk_at(&pool->space.store, other_chunk)), 0x55, CHUNK_BYTES);
	EXPECT(opened(true) == FBY_DONE && report.unknown_kind == FBY_OWNER_KINDS && report.holes == 1);
	EXPECT(pool->recovery.volume[0].holes_unknown == 1 && pool->recovery.volume[1].holes_unknown == 1);
	EXPECT(pool->recovery.volume[2].holes_unknown == 0);
	EXPECT(fby_volume_info(pool, 2, &v) == FBY_DONE && !v.used && v.holes_unknown == 0);
	EXPECT(fby_volume_info(pool, 1, &v) == FBY_DONE && v.used && v.holes_unknown == 1);
	pool_restore();
}

static void unreported(void)
{
	struct fby_options o = { .nslots = 2 };
	u64 bytes = pool->memory_bytes;

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, NULL) == FBY_DONE);
	EXPECT(pool->space.owner[0].recovered == BLOCKS + 2);
	pool_restore();
}

static void kinds_to_come(void)
{
	struct fby_open_line *o;

	for (u32 which = 0; which < 2; which++)
		chunk_to_come(false, which, FBY_CHUNK_KINDS);
	for (u32 which = 0; which < FBY_SEALS; which++)
		chunk_to_come(true, which, 0xffff);
	for (u32 copy = 0; copy < 2; copy++) {
		record(2, copy)->kind = FBY_OWNER_KINDS;
		record(2, copy)->crc = fby_crc32c(pool->space.store.line_seed, record(2, copy), sizeof(struct fby_volume_record) - 4);
	}
	refused(-FBY_E_OWNER_KIND, 2, FBY_OWNER_KINDS);
	/* A flipped bit of the line is damage. */
	o = (void *)memory_at(fby_open_at(&pool->space.store, open_chunk, 0));
	o->kind ^= 8;
	recover();
	EXPECT(report.chunk_headers_lost == 1 && report.unknown_kind == 0 && report.holes == 0);
	pool_restore();
}

/* A cut comes between the two copies of a volume's record.  The newer one counts, whichever it is,
 * and the next write begins with the older one. */
static void record_cut(u32 newer)
{
	u64 at = FBY_VT_OFFSET + (1 - newer) * sizeof(struct fby_volume_record);
	struct fby_volume_record older;
	struct fby_recovery_report report;

	pool_restore();
	memcpy(&older, memory_at(at), sizeof(older));
	pool->space.owner[0].rec.marks += 2;
	fby_owner_write(&pool->space, 0);
	memcpy(memory_at(at), &older, sizeof(older));
	pool_recover(&report);
	EXPECT(pool->space.owner[0].rec.marks == older.marks + 2);
	pool_restore();
}

void test_recovery(void)
{
	record_cut(0);
	record_cut(1);
	log_that_lies();
	torn();
	repaired();
	hole(0, closed_chunk, 3, 3);
	hole(0, open_chunk, 1, 16);
	hole(0, open_chunk, 2, 17);
	hole(1, other_chunk, 0, 0);
	last_number();
	record_lost();
	beyond(FBY_KIND_DATA, 0xff, 0, VOLUME_SECTORS / FBY_PAGE_SECTORS, true);
	beyond(FBY_KIND_DATA, 0, 1, VOLUME_SECTORS / FBY_PAGE_SECTORS, true);
	beyond(FBY_KIND_VOID, 0, 0, VOLUME_SECTORS / FBY_PAGE_SECTORS, false);
	beyond_and_destaged();
	hole_without_name();
	seals_lost();
	seals_kept();
	epoch_of_nothing();
	neighbours_that_lie();
	repaired_in_vain();
	beyond_in_part();
	bypass_line();
	repaired_first();
	many_holes();
	seals_lost_clean();
	more_than_closed();
	digested();
	record_lost_clean(0);
	record_lost_clean(1);
	formatted();
	of_another(false);
	of_another(true);
	seal_of_another_kind(FIRST_PAGE + 2);
	seal_of_another_kind((u16)(CHUNK_BYTES / FBY_LINE - FBY_CHUNK_LINES + FIRST_PAGE));
	kinds_to_come();
	several_to_come();
	lost_beside_one_to_come();
	unreported();
}
