// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_lines.c - the content of the media is hostile until it was checked.  Each field of each
 * kind of line is refused one off its bound, with a right checksum, and accepted at its bound.
 */
#include "inside.h"

/* Reads the line as recovery does, without repair. */
static bool page_ok(const struct fby_page_line *l)
{
	struct fby_page_line *at = (struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, open_chunk, FIRST_PAGE + 1)), out;
	bool good;

	*at = *l;
	fby_line_finish(pool->space.store.line_seed, at);
	good = fby_page_line_read(&pool->space, open_chunk, FIRST_PAGE + 1, &out, NULL);
	EXPECT(!good || memcmp(&out, at, sizeof(out)) == 0);
	return good;
}

#define PAGE(good, change) \
	do { \
		struct fby_page_line l = was; \
\
		change; \
		EXPECT(page_ok(&l) == (good)); \
	} while (0)

static void page_line(void)
{
	const struct fby_page_line was = *(struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, open_chunk, FIRST_PAGE + 1));

	PAGE(true, (void)l);
	PAGE(false, l.chunk++);
	PAGE(false, l.chunk = 0);
	PAGE(false, l.page++; l.batch_first = l.page);
	PAGE(false, l.volume = (u16)pool->space.store.sb.nvolumes);
	PAGE(true, l.volume = (u16)(pool->space.store.sb.nvolumes - 1));
	PAGE(false, l.seq = 0; l.prev_seq = 0);
	PAGE(true, l.seq = 1; l.prev_seq = 0);
	PAGE(false, l.seq = FBY_NUMBER_END);
	PAGE(true, l.seq = FBY_NUMBER_END - 1);
	PAGE(false, l.epoch = FBY_NUMBER_END);
	PAGE(true, l.epoch = FBY_NUMBER_END - 1);
	PAGE(false, l.block = 1ull << FBY_BLOCK_BITS);
	PAGE(true, l.block = (1ull << FBY_BLOCK_BITS) - 1);
	PAGE(false, l.batch_count = 0);
	PAGE(false, l.batch_count = FBY_BATCH_PAGES + 1);
	PAGE(false, l.batch_count = DATA_PAGES); /* beyond the chunk */
	PAGE(true, l.batch_count = BLOCKS - 1);
	PAGE(false, l.batch_first = FIRST_PAGE - 1; l.batch_count = 4);
	PAGE(true, l.batch_first = FIRST_PAGE; l.batch_count = 2);
	PAGE(false, l.batch_first = FIRST_PAGE; l.batch_count = 1); /* ends before it */
	PAGE(false, l.batch_first = FIRST_PAGE + 2; l.batch_count = 2); /* begins after it */
	PAGE(true, l.flags = FBY_PF_NOCRC);
	PAGE(false, l.flags = 2);
	PAGE(false, l.prev_seq = l.seq);
	PAGE(true, l.prev_seq = l.seq - 1);
	PAGE(false, l.reserved = 1);

	PAGE(false, l.kind = 0);
	PAGE(false, l.kind = FBY_KIND_VOID + 1);
	PAGE(false, l.valid = 0; l.lost = 0);
	PAGE(false, l.valid = 1; l.lost = 1);
	PAGE(true, l.valid = 1; l.lost = 2);
	PAGE(true, l.valid = 0; l.lost = 1);
	PAGE(true, l.kind = FBY_KIND_ZERO);
	PAGE(true, l.kind = FBY_KIND_DISCARD);
	PAGE(false, l.kind = FBY_KIND_ZERO; l.valid = 0x7f);
	PAGE(false, l.kind = FBY_KIND_DISCARD; l.lost = 1);
	PAGE(false, l.kind = FBY_KIND_VOID);
	PAGE(true, l.kind = FBY_KIND_VOID; l.valid = 0);
	PAGE(false, l.kind = FBY_KIND_VOID; l.valid = 0; l.lost = 1);
	PAGE(true, l.kind = FBY_KIND_BYPASS; l.valid = 0);
	pool_restore();
}

/* A flipped bit is repaired if the caller asks for that, and refused otherwise.  Two flipped bits
 * are never repaired. */
static void page_line_repair(void)
{
	u32 place = FIRST_PAGE + 1;
	u8 *at = memory_at(fby_line_at(&pool->space.store, open_chunk, place)), was[FBY_LINE];
	struct fby_page_line out;
	bool repaired;

	memcpy(was, at, sizeof(was));
	for (u32 bit = 0; bit < FBY_LINE * 8; bit++) {
		at[bit / 8] ^= (u8)(1u << bit % 8);
		EXPECT(!fby_page_line_read(&pool->space, open_chunk, place, &out, NULL));
		repaired = false;
		EXPECT(fby_page_line_read(&pool->space, open_chunk, place, &out, &repaired) && repaired);
		EXPECT(memcmp(&out, was, sizeof(was)) == 0);
		at[(bit + 77) / 8 % FBY_LINE] ^= 4;
		EXPECT(!fby_page_line_read(&pool->space, open_chunk, place, &out, &repaired));
		memcpy(at, was, sizeof(was));
	}
	repaired = true;
	EXPECT(fby_page_line_read(&pool->space, open_chunk, place, &out, &repaired) && !repaired);
	pool_restore();
}

#define LINE(kind, which, good, change) \
	do { \
		struct fby_##kind##_line *at = at_##kind(which), l = *at, out; \
		const struct fby_##kind##_line before = l; \
\
		change; \
		fby_line_finish(pool->space.store.line_seed, &l); \
		*at = l; \
		EXPECT(fby_##kind##_line_read(&pool->space.store, closed_chunk, which, &out) == (good)); \
		*at = before; \
	} while (0)

static struct fby_open_line *at_open(u32 which)
{
	return (struct fby_open_line *)memory_at(fby_open_at(&pool->space.store, closed_chunk, which));
}

static struct fby_seal_line *at_seal(u32 which)
{
	return (struct fby_seal_line *)memory_at(fby_seal_at(&pool->space.store, closed_chunk, which));
}

static void open_line(u32 which)
{
	LINE(open, which, true, (void)l);
	LINE(open, which, false, l.magic++);
	LINE(open, which, false, l.chunk++);
	/* A line of a future kind is accepted, and nothing else of it is checked. */
	LINE(open, which, true, l.kind = FBY_CHUNK_KINDS; l.reserved0 = 1; l.seq_min = l.owner = 0xffff; l.reserved[3] = 1);
	LINE(open, which, false, l.kind = FBY_CHUNK_KINDS; l.chunk++);
	LINE(open, which, false, l.kind = FBY_CHUNK_KINDS; l.epoch++);
	LINE(open, which, true, l.kind = FBY_CHUNK_CACHE; l.owner = (u16)(pool->space.store.sb.nvolumes - 1));
	LINE(open, which, false, l.kind = FBY_CHUNK_CACHE; l.owner = (u16)pool->space.store.sb.nvolumes);
	LINE(open, which, true, l.kind = FBY_CHUNK_FREE; l.owner = FBY_NO_OWNER);
	LINE(open, which, false, l.epoch++);
	LINE(open, which, true, l.epoch += 2);
	LINE(open, which, false, l.epoch = FBY_NUMBER_END + which);
	LINE(open, which, false, l.seq_min = FBY_NUMBER_END);
	LINE(open, which, true, l.seq_min = FBY_NUMBER_END - 1);
	LINE(open, which, false, l.reserved0 = 1);
	for (u32 i = 0; i < sizeof(at_open(0)->reserved); i++)
		LINE(open, which, false, l.reserved[i] = 1);
}

static void seal_line(u32 which)
{
	LINE(seal, which, true, (void)l);
	LINE(seal, which, false, l.magic++);
	LINE(seal, which, false, l.chunk++);
	LINE(seal, which, true, l.fill = FIRST_PAGE);
	LINE(seal, which, false, l.fill = FIRST_PAGE - 1);
	LINE(seal, which, true, l.fill = (u16)pool->space.store.chunk_pages);
	LINE(seal, which, false, l.fill = (u16)(pool->space.store.chunk_pages + 1));
	LINE(seal, which, true, l.closed = 1);
	LINE(seal, which, false, l.closed = 2);
	LINE(seal, which, false, l.counter++);
	LINE(seal, which, true, l.counter += 2);
	LINE(seal, which, false, l.epoch = FBY_NUMBER_END);
	LINE(seal, which, true, l.epoch = FBY_NUMBER_END - 1);
	LINE(seal, which, false, l.seq_max = FBY_NUMBER_END);
	LINE(seal, which, true, l.seq_max = FBY_NUMBER_END - 1);
	LINE(seal, which, false, l.counter = FBY_NUMBER_END + (which & 1));
	LINE(seal, which, true, l.owner = (u16)(pool->space.store.sb.nvolumes - 1));
	LINE(seal, which, false, l.owner = (u16)pool->space.store.sb.nvolumes);
	LINE(seal, which, true, l.owner = FBY_NO_OWNER);
	LINE(seal, which, true, l.kind = FBY_CHUNK_CACHE);
	LINE(seal, which, true, l.kind = FBY_CHUNK_KINDS; l.reserved0 = 1; l.fill = 0; l.reserved[3] = 1);
	LINE(seal, which, false, l.kind = FBY_CHUNK_KINDS; l.counter++);
	LINE(seal, which, false, l.reserved0 = 1);
	for (u32 i = 0; i < sizeof(at_seal(0)->reserved); i++)
		LINE(seal, which, false, l.reserved[i] = 1);
}

/* Tests small functions that everything relies on, with all possible arguments. */
static void masks(void)
{
	for (u32 mask = 0; mask < 256; mask++) {
		u32 n = 0;

		for (u32 bit = 0; bit < 8; bit++)
			n += mask >> bit & 1;
		EXPECT(fby_mask_count((u8)mask) == n);
		for (u32 from = 0; from <= 9; from++) {
			u32 start = 77, first = from, end, got = fby_run((u8)mask, from, &start);

			while (first < 8 && !(mask >> first & 1))
				first++;
			for (end = first; end < 8 && (mask >> end & 1); end++)
				;
			EXPECT(first >= 8 ? got == 0 : got == end - first && start == first);
		}
	}
	for (u32 first = 0; first < 8; first++)
		for (u32 n = 0; first + n <= 8; n++)
			for (u32 bit = 0; bit < 8; bit++)
				EXPECT((fby_mask(first, n) >> bit & 1) == (bit >= first && bit < first + n));
	EXPECT(fby_round_up(0, 64) == 0 && fby_round_up(1, 64) == 64 && fby_round_up(64, 64) == 64);
}

/* A stranger who knows the UUID can make lines that count, but only in a pool without a salt. */
static void forged(void)
{
	const u32 known = fby_crc32c(0, pool->space.store.sb.uuid, 16);
	struct fby_store plain = pool->space.store, salted, other;
	struct fby_superblock sb = plain.sb;
	struct fby_group_line line = { .magic = FBY_GROUP_MAGIC };
	struct fby_log_entry e = { .magic = FBY_ENTRY_MAGIC };

	sb.features_incompat |= FBY_FEATURE_SALTED;
	sb.salt = 7;
	fby_store_place(&salted, &media, &sb);
	sb.salt = 8;
	fby_store_place(&other, &media, &sb);
	EXPECT(plain.line_seed == known);
	fby_line_finish(known, &line);
	EXPECT(fby_line_crc_ok(&plain, &line) && !fby_line_crc_ok(&salted, &line));
	fby_line_finish(salted.line_seed, &line);
	EXPECT(fby_line_crc_ok(&salted, &line) && !fby_line_crc_ok(&plain, &line) && !fby_line_crc_ok(&other, &line));
	fby_log_entry_finish(&salted, &e);
	EXPECT(e.crc != fby_crc32c(known, &e, sizeof(e) - 4) && e.crc == fby_crc32c(salted.line_seed, &e, sizeof(e) - 4));
}

void test_lines(void)
{
	page_line();
	page_line_repair();
	open_line(0);
	open_line(1);
	for (u32 which = 0; which < 4; which++)
		seal_line(which);
	masks();
	forged();
}
