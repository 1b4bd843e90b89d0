// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_media.c - superblocks and volume records, with the method of inside_lines.c; and the
 * layout of the memory that open gets.
 */
#include "inside.h"

static struct fby_superblock *primary(void)
{
	return (struct fby_superblock *)(media.base + FBY_SB_OFFSET);
}

static struct fby_superblock *copy(void)
{
	return (struct fby_superblock *)(media.base + FBY_SB_COPY_OFFSET);
}

static void finish(struct fby_superblock *sb)
{
	sb->crc = fby_crc32c(0, sb, sizeof(*sb) - 4);
}

static int probed(void)
{
	struct fby_probe probe;

	fby_probe(&media, &probe);
	return probe.error;
}

#define SB(result, change) \
	do { \
		struct fby_superblock sb = *primary(); \
\
		change; \
		finish(&sb); \
		*primary() = *copy() = sb; \
		EXPECT(probed() == (result)); \
		pool_restore(); \
	} while (0)

static void superblocks(void)
{
	SB(0, (void)sb);
	SB(-FBY_E_VERSION, sb.version++);
	SB(-FBY_E_VERSION, sb.version--);
	SB(-FBY_E_FEATURE, sb.features_incompat = 1ull << 63);
	SB(-FBY_E_GROUP, sb.group_pages = FBY_BATCH_PAGES + 1);
	SB(-FBY_E_GROUP, sb.group_pages = 0);
	SB(-FBY_E_GEOMETRY, sb.salt = 7);
	SB(-FBY_E_GEOMETRY, sb.features_incompat |= FBY_FEATURE_SALTED);
	SB(0, sb.features_ro = 1; sb.features_compat = 1);
	SB(-FBY_E_GEOMETRY, sb.chunk_size += 4096);
	SB(-FBY_E_GEOMETRY, sb.chunk_size = FBY_CHUNK_PAGES_MIN * FBY_PAGE / 2);
	SB(-FBY_E_GEOMETRY, sb.chunk_size = FBY_CHUNK_PAGES_MAX * FBY_PAGE * 2);
	SB(-FBY_E_GEOMETRY, sb.nvolumes = 0);
	SB(-FBY_E_GEOMETRY, sb.nvolumes = FBY_VOLUMES_MAX + 1; sb.data_offset += sb.chunk_size);
	SB(0, sb.nvolumes = FBY_VOLUMES_MAX; sb.nchunks = 4;
	   sb.data_offset = fby_round_up(FBY_VT_OFFSET + FBY_VOLUMES_MAX * 512, sb.chunk_size));
	SB(0, sb.nchunks = 4);
	SB(-FBY_E_GEOMETRY, sb.nchunks = 3);
	SB(-FBY_E_GEOMETRY, sb.nchunks++); /* beyond the media_size that it tells */
	SB(-FBY_E_GEOMETRY, sb.nchunks = FBY_CHUNKS_MAX + 1; sb.media_size = ~0ull);
	SB(-FBY_E_MEDIA_SIZE, sb.nchunks = FBY_CHUNKS_MAX; sb.media_size = ~0ull);
	SB(-FBY_E_GEOMETRY, sb.chunk_size = 0);
	SB(-FBY_E_NUMBERS, sb.clean_seq = FBY_NUMBER_END);
	SB(-FBY_E_NUMBERS, sb.generation = FBY_NUMBER_END);
	SB(0, sb.clean_seq = sb.generation = FBY_NUMBER_END - 1);
	SB(-FBY_E_MEDIA_SIZE, sb.nchunks++; sb.media_size += sb.chunk_size);
	SB(-FBY_E_GEOMETRY, sb.data_offset += sb.chunk_size; sb.nchunks = 4);
	SB(-FBY_E_GEOMETRY, sb.data_offset = 0);
	SB(-FBY_E_MEDIA_SIZE, sb.media_size++);
	SB(-FBY_E_BAD_SUPERBLOCK, sb.magic++); /* both, but its chunks tell */
}

/* The media is larger than the place where the first chunks of a pool of small chunks would be. */
static void large_blank(void)
{
	struct fby_media large = { .size = 66 * CHUNK_BYTES, .ops = media.ops };
	struct fby_open_line *l;
	struct fby_probe probe;

	large.base = aligned_alloc(FBY_PAGE, large.size);
	memset(large.base, 0, large.size);
	fby_probe(&large, &probe);
	EXPECT(probe.state == FBY_PROBE_BLANK && probe.error == -FBY_E_NO_SUPERBLOCK);
	l = (struct fby_open_line *)(large.base + 65 * CHUNK_BYTES);
	l->magic = FBY_OPEN_MAGIC; /* a pool has some before it */
	fby_probe(&large, &probe);
	EXPECT(probe.state == FBY_PROBE_BLANK);
	l = (struct fby_open_line *)(large.base + 64 * CHUNK_BYTES);
	l[1].magic = FBY_OPEN_MAGIC;
	fby_probe(&large, &probe);
	EXPECT(probe.state == FBY_PROBE_DAMAGED && probe.error == -FBY_E_BAD_SUPERBLOCK);
	free(large.base);
}

static void two_superblocks(void)
{
	struct fby_probe probe;
	u64 generation = primary()->generation;

	copy()->generation++;
	finish(copy());
	fby_probe(&media, &probe);
	EXPECT(probe.primary_valid && probe.copy_valid && probe.sb.generation == generation + 1);
	copy()->generation--;
	copy()->clean_digest++;
	finish(copy());
	fby_probe(&media, &probe); /* of two equally new copies the primary counts */
	EXPECT(probe.sb.generation == generation && probe.sb.clean_digest == primary()->clean_digest);
	copy()->generation--;
	finish(copy());
	fby_probe(&media, &probe);
	EXPECT(probe.sb.generation == generation);
	primary()->crc++;
	fby_probe(&media, &probe);
	EXPECT(!probe.primary_valid && probe.copy_valid && probe.state == FBY_PROBE_POOL && !probe.error);
	EXPECT(probe.sb.generation == generation - 1);
	copy()->crc++;
	fby_probe(&media, &probe);
	EXPECT(probe.state == FBY_PROBE_DAMAGED && probe.error == -FBY_E_BAD_SUPERBLOCK);
	memset(media.base, 0, FBY_VT_OFFSET); /* the chunks still tell */
	fby_probe(&media, &probe);
	EXPECT(probe.state == FBY_PROBE_DAMAGED && probe.error == -FBY_E_BAD_SUPERBLOCK);
	memset(media.base, 0, media.size);
	fby_probe(&media, &probe);
	EXPECT(probe.state == FBY_PROBE_BLANK && probe.error == -FBY_E_NO_SUPERBLOCK);
	pool_restore();
	large_blank();
}

/* --- records -------------------------------------------------------------- */

static struct fby_volume_record *record(u32 volume, u32 which)
{
	return (struct fby_volume_record *)(media.base + FBY_VT_OFFSET) + volume * 2 + which;
}

#define RECORD(good, change) \
	do { \
		struct fby_volume_record r = *record(1, 1), out; \
\
		change; \
		r.crc = fby_crc32c(pool->space.store.line_seed, &r, sizeof(r) - 4); \
		*record(1, 1) = r; \
		EXPECT(fby_record_read(&pool->space.store, 1, 1, &out) == (good)); \
		pool_restore(); \
	} while (0)

static void records(void)
{
	RECORD(true, (void)r);
	RECORD(false, r.index = 0);
	RECORD(false, r.index = 2);
	RECORD(true, r.kind = FBY_OWNER_KINDS; r.flags = FBY_VF_ALL + 1; r.block_size = 0); /* one to come */
	RECORD(false, r.kind = FBY_OWNER_KINDS; r.index = 0);
	RECORD(true, r.flags = FBY_VF_ALL);
	RECORD(false, r.flags = FBY_VF_ALL + 1);
	RECORD(false, r.watermark = 1ull << 63);
	RECORD(true, r.watermark = (1ull << 62));
	RECORD(false, memset(r.name, 'n', sizeof(r.name)));
	RECORD(true, memset(r.name, 'n', sizeof(r.name) - 1));
	RECORD(false, memset(r.identity, 'i', sizeof(r.identity)));
	RECORD(true, memset(r.identity, 'i', sizeof(r.identity) - 1));
	RECORD(false, r.block_size = 0);
	RECORD(false, r.block_size = 1024);
	RECORD(true, r.block_size = FBY_PAGE);
	RECORD(false, r.block_size = FBY_PAGE; r.origin_sectors = VOLUME_SECTORS + 4);
	RECORD(true, r.origin_sectors = VOLUME_SECTORS + 1);
	RECORD(false, r.origin_sectors = 0);
	RECORD(true, r.origin_sectors = 1);
	RECORD(true, r.origin_sectors = 1ull << (FBY_BLOCK_BITS + 3));
	RECORD(false, r.origin_sectors = (1ull << (FBY_BLOCK_BITS + 3)) + 1);
	RECORD(true, r.kind = FBY_OWNER_FREE; r.origin_sectors = 0; r.block_size = 0);
	RECORD(true, r.marks = ~0u);
	for (u32 i = 0; i < sizeof(struct fby_volume_record) * 8; i++) {
		struct fby_volume_record out;

		((u8 *)record(1, 0))[i / 8] ^= (u8)(1u << i % 8);
		EXPECT(!fby_record_read(&pool->space.store, 1, 0, &out) && fby_record_read(&pool->space.store, 1, 1, &out));
		((u8 *)record(1, 0))[i / 8] ^= (u8)(1u << i % 8);
	}
}

/* --- which of two copies is stored first ------------------------------------ */

static const struct fby_media_ops *sound;
static u64 first_stored;
#define NOTHING (~0ull)

static void noting_write(struct fby_media *m, u64 at, const void *src, size_t n)
{
	if (first_stored == NOTHING)
		first_stored = at;
	sound->write(m, at, src, n);
}

/* Copies by whether they are whole and how new: the one that counts is stored last. */
static void stored_last(bool whole0, bool whole1, u64 newer0, u64 newer1, u32 first)
{
	struct fby_media_ops noting = *media.ops;
	struct fby_superblock *sb[2] = { primary(), copy() };
	struct fby_volume_record *r[2] = { record(1, 0), record(1, 1) };
	u64 newer[2] = { newer0, newer1 };
	bool whole[2] = { whole0, whole1 };

	for (u32 i = 0; i < 2; i++) {
		sb[i]->generation += newer[i];
		finish(sb[i]);
		sb[i]->crc += !whole[i];
		r[i]->counter += newer[i];
		r[i]->crc = fby_crc32c(pool->space.store.line_seed, r[i], sizeof(*r[i]) - 4) + !whole[i];
	}
	sound = media.ops;
	noting.write = noting_write;
	media.ops = &noting;
	first_stored = NOTHING;
	fby_record_write(&pool->space.store, 1, &pool->space.owner[1].rec);
	EXPECT(memory_at(first_stored) == (u8 *)r[first]);
	first_stored = NOTHING;
	fby_sb_write(&pool->space.store, false);
	EXPECT(memory_at(first_stored) == (u8 *)sb[first] || (whole0 == whole1 && newer0 == newer1));
	media.ops = sound;
	EXPECT(sb[0]->crc == sb[1]->crc && memcmp(r[0], r[1], sizeof(*r[0])) == 0);
	pool_restore();
}

/* --- names ---------------------------------------------------------------- */

static int add(const char *name)
{
	struct fby_volume_spec s = { .identity = "i", .origin_sectors = 8, .block_size = 512 };
	u16 index;
	int r;

	memcpy(s.name, name, strlen(name));
	pool->space.owner[2].rec.kind = FBY_OWNER_FREE;
	r = fby_volume_add(pool, &s, &index);
	pool_restore();
	return r;
}

static void names(void)
{
	char name[FBY_NAME_MAX + 2] = { 0 };

	EXPECT(add("v2") == FBY_DONE && add("v1") == -FBY_E_VOLUME_EXISTS && add("") == -FBY_E_NAME);
	for (u32 c = 1; c < 256; c++) {
		bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			    strchr("._-", (int)c);

		name[0] = 'n';
		name[1] = (char)c;
		EXPECT(add(name) == (good ? FBY_DONE : -FBY_E_NAME));
	}
	EXPECT(add(".") == -FBY_E_NAME && add("..") == -FBY_E_NAME && add("...") == FBY_DONE);
	EXPECT(add(".x") == FBY_DONE && add("..x") == FBY_DONE && add("-") == -FBY_E_NAME && add("-x") == -FBY_E_NAME);
	memset(name, 'n', FBY_NAME_MAX);
	EXPECT(add(name) == FBY_DONE);
	name[FBY_NAME_MAX] = 'n';
	EXPECT(add(name) == -FBY_E_NAME);
}

/* --- memory --------------------------------------------------------------- */

/* The areas that open lays out do not overlap, and are within the memory that it asked for. */
static void layout(void)
{
	const u8 *mem = (u8 *)pool, *end = mem + pool->memory_bytes;
	const struct { const void *at; u64 bytes; } part[] = {
		{ pool, sizeof(*pool) },
		{ pool->space.slot, 2 * sizeof(*pool->space.slot) },
		{ pool->space.chunk, NCHUNKS * sizeof(*pool->space.chunk) },
		{ pool->space.owner, 3 * sizeof(*pool->space.owner) },
		{ pool->logs.log, 3 * sizeof(*pool->logs.log) },
		{ pool->logs.part, 2 * 3 * sizeof(*pool->logs.part) },
		{ pool->logs.chunk, NCHUNKS * sizeof(*pool->logs.chunk) },
		{ pool->cache.volume, 3 * sizeof(*pool->cache.volume) },
		{ pool->drain.volume, 3 * sizeof(*pool->drain.volume) },
		{ pool->recovery.volume, 3 * sizeof(*pool->recovery.volume) },
		{ pool->recovery.scanned, NCHUNKS * sizeof(*pool->recovery.scanned) },
		{ pool->space.dead, 3 * NCHUNKS * sizeof(*pool->space.dead) },
		{ pool->cache.bucket, pool->cache.nbuckets * sizeof(*pool->cache.bucket) },
		{ pool->cache.entry, (NCHUNKS << pool->space.store.chunk_shift) * sizeof(*pool->cache.entry) },
	};
	u32 n = sizeof(part) / sizeof(part[0]);

	for (u32 i = 0; i < n; i++) {
		const u8 *at = part[i].at, *next = i + 1 < n ? part[i + 1].at : end;

		EXPECT((u64)(at - mem) % 64 == 0 && at + part[i].bytes <= next && next < at + part[i].bytes + 64);
	}
	EXPECT(pool->cache.nbuckets % 16 == 0 && pool->cache.nbuckets >= NCHUNKS << pool->space.store.chunk_shift);
	EXPECT(fby_pool_bytes(&pool->space.store.sb, 2) == pool->memory_bytes);
	EXPECT(fby_pool_bytes(&pool->space.store.sb, 0) == fby_pool_bytes(&pool->space.store.sb, 4));
}

#define OPTIONS(result, ...) \
	do { \
		struct fby_options o = { __VA_ARGS__ }; \
\
		EXPECT(fby_pool_set_options(pool, &o) == (result)); \
	} while (0)

static void options(void)
{
	struct fby_options o;

	OPTIONS(-FBY_E_GEOMETRY, .high_watermark = 101);
	OPTIONS(-FBY_E_GEOMETRY, .high_watermark = 50, .low_watermark = 51);
	OPTIONS(-FBY_E_GEOMETRY, .verify = FBY_VERIFY_NEVER + 1);
	fby_pool_options(pool, &o);
	EXPECT(o.high_watermark == 60 && o.low_watermark == 50);
	OPTIONS(FBY_DONE, .high_watermark = 100, .low_watermark = 100, .verify = FBY_VERIFY_NEVER, .max_age_ns = 7,
		.idle_ns = 8, .no_checksums = true, .nslots = 9, .read_only = true);
	fby_pool_options(pool, &o);
	EXPECT(o.high_watermark == 100 && o.low_watermark == 100 && o.verify == FBY_VERIFY_NEVER && o.no_checksums);
	EXPECT(o.max_age_ns == 7 && o.idle_ns == 8 && o.nslots == 2 && !o.read_only);
	OPTIONS(FBY_DONE, .high_watermark = 11);
	fby_pool_options(pool, &o);
	EXPECT(o.low_watermark == 1);
	OPTIONS(FBY_DONE, .high_watermark = 10);
	fby_pool_options(pool, &o);
	EXPECT(o.low_watermark == 0);
	pool_restore();
}

void test_media(void)
{
	superblocks();
	two_superblocks();
	records();
	stored_last(true, true, 0, 0, 0);
	stored_last(true, true, 1, 0, 1);
	stored_last(true, true, 0, 1, 0);
	stored_last(true, false, 0, 0, 1);
	stored_last(true, false, 0, 1, 1);
	stored_last(false, true, 0, 0, 0);
	stored_last(false, true, 1, 0, 0);
	stored_last(false, false, 0, 0, 0);
	names();
	layout();
	options();
}
