// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_media.c - the media in memory, base images, patches.  See fuzz.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

#define POISON_MAX 8u

static u64 poison[POISON_MAX];
static u32 npoison;
void (*fuzz_media_beside)(void);

void fuzz_finding(const char *what, u64 a, u64 b)
{
	fprintf(stderr, "fuzz: %s (%" PRIu64 ", %" PRIu64 ")\n", what, a, b);
	abort();
}

u32 fuzz_take(struct fuzz_input *in, u32 bytes)
{
	u32 v = 0;

	for (u32 i = 0; i < bytes && fuzz_left(in); i++)
		v |= (u32)*in->at++ << (8 * i);
	return v;
}

/* --- operations of the media --------------------------------------------------- */

static void check_range(const struct fby_media *m, u64 at, size_t n)
{
	if (at > m->size || n > m->size - at)
		fuzz_finding("access outside the media", at, n);
	if (n % FBY_LINE || at % FBY_LINE)
		fuzz_finding("access of part of a line", at, n);
}

static void media_write(struct fby_media *m, u64 at, const void *src, size_t n)
{
	check_range(m, at, n);
	memcpy(m->base + at, src, n);
}

static u32 media_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc)
{
	media_write(m, at, src, n);
	return fby_crc32c(crc, src, n);
}

static void media_fence(struct fby_media *m, u64 at, size_t n)
{
	check_range(m, at, n);
	if (m->device)
		fuzz_finding("a fence on a device", at, n);
}

static int media_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	void (*beside)(void) = fuzz_media_beside;

	check_range(m, at, n);
	fuzz_media_beside = NULL;
	if (beside)
		beside();
	for (u32 i = 0; i < npoison; i++)
		if (poison[i] >= at && poison[i] < at + n)
			return 1;
	*crc = fby_crc32c(*crc, m->base + at, n);
	if (dst)
		memcpy(dst, m->base + at, n);
	return 0;
}

static const struct fby_media_ops media_ops = {
	.write = media_write,
	.write_crc = media_write_crc,
	.fence = media_fence,
	.read_crc = media_read_crc,
};

struct fby_media fuzz_media = { .ops = &media_ops };

/* The device has what the image has: what is tested is the engine's view of what it finds. */
static int device_persist(struct fby_media *m, u64 at, u64 n, bool more)
{
	(void)more;
	check_range(m, at, n);
	if (n == 0 || at % m->device->unit || n % m->device->unit)
		fuzz_finding("a request that is not of whole blocks", at, n);
	return 0;
}

void fuzz_media_device(u32 unit)
{
	static struct fby_device device;

	device = (struct fby_device){ .unit = unit, .durable = FBY_DURABLE_FLUSH, .persist = device_persist };
	fuzz_media.device = unit ? &device : NULL;
}

/* A block of its own, exactly as large: the sanitizer guards its ends. */
void fuzz_media_set(const u8 *image, u32 bytes, u32 size)
{
	size &= ~(FBY_PAGE - 1);
	if (bytes > size)
		bytes = size;
	if (fuzz_media.size != size || !fuzz_media.base) {
		free(fuzz_media.base);
		fuzz_media.base = aligned_alloc(FBY_PAGE, size ? size : FBY_PAGE);
		fuzz_media.size = size;
	}
	if (bytes)
		memcpy(fuzz_media.base, image, bytes);
	memset(fuzz_media.base + bytes, 0, size - bytes);
	npoison = 0;
}

void fuzz_media_poison(u64 offset)
{
	if (npoison < POISON_MAX)
		poison[npoison++] = offset;
}

void fuzz_media_heal(void)
{
	npoison = 0;
}

/* --- base images, made by the engine -------------------------------------------- */

static u8 *base_image[FUZZ_BASES];
static u32 base_bytes = (FUZZ_CHUNKS + 1) * FUZZ_CHUNK;

static void base_fail(const char *what, int rc)
{
	fprintf(stderr, "fuzz: making the base images: %s: %d\n", what, rc);
	abort();
}

static void base_write(struct fby_pool *p, u16 volume, u64 sector, u32 n, u8 fill)
{
	static u8 buf[128 * FBY_SECTOR];
	u32 done = 0, wake = 0;
	int rc;

	memset(buf, fill, n * FBY_SECTOR);
	rc = fby_write(p, volume, sector, n, buf, &done, &wake);
	if (rc)
		base_fail("write", rc);
}

/* Whole and partial pages, replaced ones, batches, a discard, a zeroing. */
static void base_fill(struct fby_pool *p, const u16 *volume)
{
	struct fby_bypass past;
	u64 done = 0;
	u32 wake = 0;

	base_write(p, volume[0], 0, 40, 1);
	base_write(p, volume[1], 3, 2, 2);
	base_write(p, volume[0], 8, 8, 3);
	base_write(p, volume[0], 17, 3, 4);
	fby_range(p, volume[0], FBY_KIND_DISCARD, 24, 8, &done, &past, &wake);
	done = 0;
	fby_range(p, volume[1], FBY_KIND_ZERO, 16, 16, &done, &past, &wake);
	base_write(p, volume[1], 496, 16, 5);
}

static struct fby_pool *base_open(const u16 *volume, u32 n, bool no_checksums)
{
	const struct fby_options o = { .nslots = 2, .high_watermark = 100, .low_watermark = 90,
				       .no_checksums = no_checksums, .statics = true };
	struct fby_pool *p = fuzz_open(&o);

	if (!p)
		base_fail("open", 0);
	for (u32 v = 0; v < n; v++)
		if (fuzz_attach(p, volume[v], FBY_HOLES_FAIL))
			base_fail("attach", (int)v);
	return p;
}

static void base_add(struct fby_pool *p, const char *name, u32 block_size, u64 static_bytes, u16 *volume)
{
	struct fby_volume_spec s = { .identity = "id|path", .origin_sectors = FUZZ_SECTORS, .block_size = block_size,
				     .static_bytes = static_bytes };
	int rc;

	strcpy(s.name, name);
	rc = fby_volume_add(p, &s, volume);
	if (rc)
		base_fail("volume", rc);
}

static void base_keep(u32 i)
{
	base_image[i] = malloc(base_bytes);
	memcpy(base_image[i], fuzz_media.base, base_bytes);
}

/* A formatted pool with two volumes, open. */
static struct fby_pool *base_start(u16 *volume, bool no_checksums)
{
	struct fby_pool *p;

	fuzz_media_set(base_image[0], base_bytes, base_bytes);
	p = base_open(volume, 0, false);
	base_add(p, "first", 512, 0, &volume[0]);
	base_add(p, "second", 512, 0, &volume[1]);
	fuzz_free();
	return base_open(volume, 2, no_checksums);
}

static void base_drain(struct fby_pool *p, u16 volume)
{
	if (fby_volume_drain(p, volume, true) || !fuzz_destage(p, NULL, 10000))
		base_fail("drain", volume);
}

/* A static volume: slots with one block and with two, partial pages, one released; as a process
 * that dies leaves it, and closed. */
static void base_static(const struct fby_format *with_chunks)
{
	struct fby_format f = *with_chunks;
	struct fby_pool *p;
	u16 volume;
	int rc;

	f.static_bytes = FUZZ_CHUNK;
	fuzz_media_set(NULL, 0, base_bytes);
	rc = fby_format(&fuzz_media, &f);
	if (rc)
		base_fail("format with room", rc);
	p = base_open(&volume, 0, false);
	base_add(p, "static", 512, f.static_bytes, &volume);
	if (fuzz_attach(p, volume, FBY_HOLES_FAIL))
		base_fail("attach", volume);
	base_write(p, volume, 40, 16, 1);
	base_drain(p, volume);
	base_write(p, volume, 0, 16, 2);
	base_write(p, volume, 56, 8, 3);
	base_write(p, volume, 9, 3, 4);
	base_keep(5);
	rc = fby_pool_close(p);
	if (rc)
		base_fail("close", rc);
	base_keep(6);
	fuzz_free();
}

static void base_make(void)
{
	const struct fby_format f = { .uuid = { 'f', 'u', 'z', 'z' }, .chunk_size = FUZZ_CHUNK,
				      .nvolumes = FUZZ_VOLUMES };
	struct fby_pool *p;
	u16 volume[2];
	int rc;

	fuzz_media_set(NULL, 0, base_bytes);
	rc = fby_format(&fuzz_media, &f);
	if (rc)
		base_fail("format", rc);
	base_keep(0);
	base_fill(base_start(volume, true), volume);
	base_keep(4);
	fuzz_free();
	p = base_start(volume, false);
	base_fill(p, volume);
	base_drain(p, volume[0]);
	base_fill(p, volume);
	base_keep(1);
	rc = fby_pool_close(p);
	if (rc)
		base_fail("close", rc);
	base_keep(2);
	fuzz_free();
	p = base_open(volume, 2, false);
	base_drain(p, volume[0]);
	base_drain(p, volume[1]);
	base_keep(3);
	fuzz_free();
	base_static(&f);
}

void fuzz_media_base(u32 i)
{
	if (!base_image[0])
		base_make();
	fuzz_media_set(base_image[i % FUZZ_BASES], base_bytes, base_bytes);
}

/* --- checksums put right --------------------------------------------------------- */

static u32 line_seed(void)
{
	return fby_crc32c(0, ((struct fby_superblock *)fuzz_media.base)->uuid, 16);
}

/* The last four bytes of [at, at + n) become the CRC of those before. */
static void fix(u64 offset, u32 n, u32 seed)
{
	u32 crc;

	if (offset + n > fuzz_media.size)
		return;
	crc = fby_crc32c(seed, fuzz_media.base + offset, n - 4);
	memcpy(fuzz_media.base + offset + n - 4, &crc, 4);
}

void fuzz_fix_all(void)
{
	struct fby_superblock sb;

	if (fuzz_media.size < FBY_VT_OFFSET)
		return;
	memcpy(&sb, fuzz_media.base, sizeof(sb));
	fix(FBY_SB_OFFSET, sizeof(sb), 0);
	fix(FBY_SB_COPY_OFFSET, sizeof(sb), 0);
	for (u64 i = 0; i < sb.nvolumes && i < FBY_VOLUMES_MAX * 2; i++)
		fix(FBY_VT_OFFSET + i * sizeof(struct fby_volume_record), sizeof(struct fby_volume_record),
		    line_seed());
	if (sb.chunk_size < FBY_PAGE || sb.data_offset >= fuzz_media.size)
		return;
	for (u64 at = sb.data_offset; at < fuzz_media.size; at += sb.chunk_size)
		for (u32 i = 0; i < sb.chunk_size / FBY_PAGE && i < FBY_CHUNK_PAGES_MAX; i++)
			fix(at + i * FBY_LINE, FBY_LINE, line_seed());
}

/*
 * Nine bytes: what (3 bits: superblock, volume record, open line, seal line,
 * page line, data, poison; bit 7: leave the checksum), two numbers to choose
 * which, the place in it, how many bytes, and up to four bytes.
 */
void fuzz_patch(struct fuzz_input *in)
{
	u32 what = fuzz_take(in, 1), a = fuzz_take(in, 1), b = fuzz_take(in, 1), place = fuzz_take(in, 1);
	u32 n = 1 + fuzz_take(in, 1) % 8, value = fuzz_take(in, 4), bytes, seed = line_seed();
	u32 first = fby_first_page(FUZZ_PAGES);
	u64 chunk = FUZZ_CHUNK + (u64)(a % FUZZ_CHUNKS) * FUZZ_CHUNK, at;
	u64 wide = value;

	switch (what & 7) {
	case 0:
		at = a & 1 ? FBY_SB_COPY_OFFSET : FBY_SB_OFFSET;
		bytes = sizeof(struct fby_superblock);
		place %= 136; /* the fields in use and a few after */
		seed = 0;
		break;
	case 1:
		bytes = sizeof(struct fby_volume_record);
		at = FBY_VT_OFFSET + a % (2 * FUZZ_VOLUMES) * bytes;
		break;
	case 2:
		bytes = FBY_LINE;
		at = chunk + (FBY_LINE_OPEN + b % 2) * FBY_LINE;
		break;
	case 3:
		bytes = FBY_LINE;
		at = chunk + (FBY_LINE_SEAL + b % 2 + (b >> 1) % 2 * FBY_LINE_SEAL_COPY) * FBY_LINE;
		break;
	case 5:
		bytes = FBY_PAGE;
		at = chunk + (first + b % (FUZZ_PAGES - first)) * FBY_PAGE;
		what |= 0x80;
		break;
	case 6:
		fuzz_media_poison((chunk + b * FBY_LINE) % fuzz_media.size);
		return;
	default:
		bytes = FBY_LINE;
		at = chunk + fby_line_of_page(FUZZ_PAGES, first + b % (FUZZ_PAGES - first)) * FBY_LINE;
		break;
	}
	if (n == 8) /* a wide field: small numbers, or the largest */
		wide = value & 1 ? ~0ull - (value >> 1) : (u64)value << (value >> 26);
	place %= bytes;
	if (n > bytes - place)
		n = bytes - place;
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "patch: kind %u at %#" PRIx64 " + %u: %u bytes of %#" PRIx64 "%s\n", what & 7, at, place, n,
			wide, what & 0x80 ? "" : ", checksum put right");
	memcpy(fuzz_media.base + at + place, &wide, n);
	if (!(what & 0x80))
		fix(at, bytes, seed);
}
