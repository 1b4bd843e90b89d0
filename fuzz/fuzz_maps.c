// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_maps.c - a pool with a map whose record, file records, identity lines and words are
 * patched, their checksums put right or not; then all that a host does with it.
 *
 * The first byte chooses how the pool is opened; the rest is patches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "api/map.h"
#include "format/store.h"

#define MEDIA (4u << 20)
#define SHARE (2u << 20) /* begins there, too */
#define FRAME (128u << 10)
#define NFILES 3u
#define CHANGED (FRAME) /* of the share, at most: records and descriptors */
#define HEAD (64u << 10) /* of the media: superblocks, table */

static u8 *base;
static u8 *attached;
static u16 map;

static void flush(void *host, const void *p, size_t n)
{
	(void)host;
	if ((const u8 *)p < fuzz_media.base || (const u8 *)p + n > fuzz_media.base + MEDIA)
		fuzz_finding("a flush outside of the media", (uintptr_t)p, n);
}

static void fence(void *host)
{
	(void)host;
}

static const struct fby_frame_port port = { flush, fence };

/* --- the base image ----------------------------------------------------------------------- */

static int attach(struct fby_pool *p, u16 which, struct fby_map_report *r)
{
	struct fby_map_attach a = { .port = &port, .mem_bytes = fby_map_bytes(p, which) };

	if (a.mem_bytes > MEDIA)
		fuzz_finding("more memory than the media justifies", a.mem_bytes, which);
	free(attached);
	a.mem = attached = aligned_alloc(64, (a.mem_bytes + 64) & ~63ull);
	memset(attached, 0, a.mem_bytes);
	return fby_map_attach(p, which, &a, r);
}

static void fill(struct fby_pool *p)
{
	struct fby_map_report r;
	u32 id;

	if (attach(p, map, &r))
		fuzz_finding("the base image cannot be attached", 0, 0);
	for (u32 i = 0; i < 4; i++) {
		struct fby_map_file f = { .size = 200 * FBY_PAGE, .identity_bytes = 4, .path = { '/', (char)('a' + i) } };
		struct fby_pages pages = { { 5ull << i } };
		struct fby_frame view;
		u32 frame;

		if (i < 2 && fby_map_file_add(p, map, &f, &id))
			fuzz_finding("the base image: no file", i, 0);
		if (fby_map_take(p, map, i & 1, i, &frame) || fby_map_show(p, map, frame) ||
		    fby_map_frame(p, map, frame, &view))
			fuzz_finding("the base image: no frame", i, 0);
		if (i < 3)
			fby_frame_sync(&view, &pages);
		else
			fby_map_drop(p, map, frame, false);
	}
	fby_map_file_cut(p, map, 1, 100 * FBY_PAGE);
}

static void make_base(void)
{
	static const u8 nothing[FBY_PAGE];
	const struct fby_format f = { .uuid = { 3 }, .chunk_size = FUZZ_CHUNK, .nvolumes = 4, .map_bytes = SHARE };
	const struct fby_map_spec s = { .name = "m", .uuid = { 4 }, .bytes = SHARE, .frame_bytes = FRAME,
					.nfiles = NFILES };
	const struct fby_options o = { .nslots = 1, .maps = true };
	struct fby_pool *p;

	fuzz_media_set(nothing, sizeof(nothing), MEDIA);
	if (fby_format(&fuzz_media, &f) || !(p = fuzz_open(&o)) || fby_map_add(p, &s, &map))
		fuzz_finding("no base image", 0, 0);
	fill(p);
	base = malloc(MEDIA);
	memcpy(base, fuzz_media.base, MEDIA);
}

/* --- patches ------------------------------------------------------------------------------------ */

static u32 pool_seed(void)
{
	return fby_crc32c(0, ((const struct fby_superblock *)base)->uuid, 16);
}

static u32 map_seed(void)
{
	const struct fby_map_record *r = (const void *)(base + FBY_VT_OFFSET);

	return fby_crc32c(pool_seed(), r->uuid, sizeof(r->uuid));
}

static void put(struct fuzz_input *in, u8 *at, u32 bytes)
{
	u32 where = fuzz_take(in, 2) % bytes, n = 1 + fuzz_take(in, 1) % 8;

	for (u32 i = 0; i < n && where + i < bytes; i++)
		at[where + i] = (u8)fuzz_take(in, 1);
}

static void fix(u8 *at, u32 bytes, u32 seed)
{
	u32 crc = fby_crc32c(seed, at, bytes - 4);

	memcpy(at + bytes - 4, &crc, 4);
}

static void patch_word(struct fuzz_input *in, u8 *descriptor, u32 frame)
{
	struct {
		u64 epoch, frame;
	} of = { fuzz_take(in, 1) % 6, frame };
	u32 i = fuzz_take(in, 1) % 4, word[2] = { fuzz_take(in, 4), i };
	u64 is = (u64)fby_crc32c(fby_crc32c(map_seed(), &of, sizeof(of)), word, sizeof(word)) << 32 | word[0];

	memcpy(descriptor + FBY_MAP_WORDS_AT + i * 8, &is, 8);
}

static void patch(struct fuzz_input *in)
{
	u32 kind = fuzz_take(in, 1), which = fuzz_take(in, 1);
	u8 *share = fuzz_media.base + SHARE, *descriptor = share + (2 * NFILES + which % 15) * FBY_PAGE;
	u8 *at;

	switch (kind % 5) {
	case 0:
		at = share + which % (2 * NFILES) * FBY_PAGE;
		put(in, at, FBY_PAGE);
		if (kind & 64)
			fix(at, FBY_PAGE, map_seed());
		break;
	case 1:
	case 2:
		at = descriptor + (which >> 4 & 1) * FBY_LINE + (which >> 5 & 1) * FBY_MAP_LINE_COPY;
		put(in, at, FBY_LINE);
		if (kind & 64)
			fix(at, FBY_LINE, map_seed());
		break;
	case 3:
		patch_word(in, descriptor, which % 15);
		break;
	default:
		at = fuzz_media.base + (which & 1 ? FBY_VT_OFFSET + (which >> 1 & 7) * 256 : which >> 1 & 1 ? 4096 : 0);
		put(in, at, which & 1 ? 256 : 512);
		if (kind & 64)
			fix(at, which & 1 ? 256 : 512, which & 1 ? pool_seed() : 0);
	}
}

/* --- use ------------------------------------------------------------------------------------------- */

static void files(struct fby_pool *p, u16 which, u32 nfiles)
{
	static struct fby_map_file f;

	for (u32 i = 0; i <= nfiles; i++) {
		int rc = fby_map_file_info(p, which, i, &f);

		if (rc && i == nfiles && rc != -FBY_E_NO_MAP)
			fuzz_finding("a file that there cannot be", i, (u64)-rc);
		if (rc)
			continue;
		if (!memchr(f.path, 0, sizeof(f.path)) || f.identity_bytes > FBY_MAP_IDENTITY_MAX)
			fuzz_finding("a file's texts have no end", i, f.identity_bytes);
		if (f.cut && fby_map_file_cut_end(p, which, i))
			fuzz_finding("a truncation cannot be ended", i, f.size);
		fby_map_file_size(p, which, i, f.size + 5 * FBY_PAGE);
	}
}

/* Writes back like recovery; gives up pages that cannot be written back. */
static void frame_home(struct fby_pool *p, u16 which, u32 frame)
{
	struct fby_pages pages, dirty, unknown;
	static u8 page[FBY_PAGE];
	struct fby_frame_info info;
	struct fby_frame view;

	if (fby_map_frame_info(p, which, frame, &info))
		fuzz_finding("a frame is not known", frame, 0);
	if (info.at % FBY_PAGE || info.at + FRAME / 2 > MEDIA || info.descriptor_at >= MEDIA)
		fuzz_finding("a frame outside of the media", frame, info.at);
	if (info.state == FBY_FRAME_DAMAGED || info.state == FBY_FRAME_FREE) {
		fby_map_drop(p, which, frame, true);
		return;
	}
	if (fby_map_frame(p, which, frame, &view))
		fuzz_finding("a frame cannot be had", frame, info.state);
	if (view.limit > view.npages || view.npages > FBY_FRAME_MAX / FBY_PAGE)
		fuzz_finding("a frame's limit is out of range", view.limit, view.npages);
	memset(&pages, 0xff, sizeof(pages));
	fby_frame_sync(&view, &pages);
	fby_frame_write_begin(&view, &pages);
	for (u32 i = 0; i < view.npages; i++)
		if (fby_pages_has(&pages, i) && (i >= view.limit || fby_map_page_read(p, which, frame, i, page)))
			fuzz_finding("a page that is to be written cannot be", frame, i);
	if (fby_frame_write_end(&view, &pages))
		fuzz_finding("pages stay dirty that nobody has synced", frame, 0);
	fby_frame_dirty(&view, &dirty, &unknown);
	if (fby_map_drop(p, which, frame, false) && fby_map_drop(p, which, frame, true))
		fuzz_finding("a frame cannot be dropped", frame, 0);
}

static void look(struct fby_pool *p)
{
	char text[200];

	if (fby_check(p, true, text, sizeof(text))) {
		fprintf(stderr, "fuzz: invariant: %s\n", text);
		abort();
	}
}

static void use(struct fby_pool *p, u16 which, bool read_only)
{
	struct fby_map_report r;
	struct fby_map_info info;
	struct fby_map_file f = { .size = 3 * FBY_PAGE, .path = "/new" };
	struct fby_frame_info frame_info;
	u32 file, frame;

	if (fby_map_info(p, which, &info) || attach(p, which, &r))
		return;
	if (r.frames + r.damaged_frames > info.nframes || r.dirty + r.unknown > (u64)info.nframes * 512)
		fuzz_finding("a report out of range", r.frames, r.dirty);
	look(p);
	if (read_only)
		return;
	files(p, which, info.spec.nfiles);
	for (u32 i = 0; i < info.nframes; i++)
		frame_home(p, which, i);
	look(p);
	if (fby_map_frame_info(p, which, info.nframes, &frame_info) != -FBY_E_NO_MAP)
		fuzz_finding("a frame that there cannot be", info.nframes, 0);
	for (u32 i = 0; i < info.spec.nfiles; i++)
		fby_map_file_remove(p, which, i);
	if (fby_map_file_add(p, which, &f, &file) == FBY_DONE && fby_map_take(p, which, file, 0, &frame) == FBY_DONE) {
		struct fby_pages pages = { { 7 } };
		struct fby_frame view;

		if (fby_map_show(p, which, frame) || fby_map_frame(p, which, frame, &view) ||
		    fby_frame_sync(&view, &pages))
			fuzz_finding("a new frame cannot be synced", which, frame);
	} else {
		frame = ~0u;
	}
	look(p);
	fby_map_detach(p, which);
	if (attach(p, which, &r) || (frame != ~0u && (r.frames != 1 || r.dirty != 3)))
		fuzz_finding("what was synced is not there", r.frames, r.dirty);
	fby_map_detach(p, which);
	if (frame != ~0u && fby_map_remove(p, which, false) != -FBY_E_MAP_DIRTY)
		fuzz_finding("a map with a dirty page is removed", which, 0);
	if (fby_map_remove(p, which, true))
		fuzz_finding("a map cannot be removed", which, 0);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };
	u32 bits = fuzz_take(&in, 1);
	const struct fby_options o = { .nslots = 1, .maps = true, .statics = bits & 1, .read_only = (bits & 14) == 14 };
	struct fby_pool *p;

	if (!base)
		make_base();
	memcpy(fuzz_media.base, base, HEAD);
	memcpy(fuzz_media.base + SHARE, base + SHARE, CHANGED);
	for (u32 i = 0; i < 32 && fuzz_left(&in); i++)
		patch(&in);
	p = fuzz_open(&o);
	for (u16 which = 0; p && which < 4; which++)
		use(p, which, o.read_only);
	if (p && !fuzz_open(&o))
		fuzz_finding("a pool that opened does not open again", bits, 0);
	fuzz_free();
	return 0;
}
