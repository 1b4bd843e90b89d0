// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_map.c - a map whose records, descriptors and words are spoilt.
 *
 * Goal: every synced page is found after a crash.  Damaged media either changes nothing or is
 * reported.  No dirty page is lost without a report.
 * Method: a pool of its own with one share of 2 MiB and frames of 128 KiB.
 */
#include <sys/mman.h>
#include <time.h>

#include "inside.h"

#define FRAME 131072u
#define SHARE (2u << 20)
#define NFILES 2u
#define MANY_SHARE (1u << 30) /* of 64 KiB frames; little of it is touched */

static struct fby_media small;
static struct fby_pool *mp;
static u8 *small_memory, *kept;
static void *attached;
static struct fby_map_report found;
static u16 map;

#define MAP (&mp->maps.map[0])

static u32 flushed, fences; /* bytes by the port; of the port and the media */

static void port_flush(void *host, const void *p, size_t n)
{
	(void)host, (void)p;
	flushed += (u32)n;
}

static void port_fence(void *host)
{
	(void)host;
	fences++;
}

static const struct fby_frame_port memory_port = { port_flush, port_fence };

static struct fby_media_ops counted;

static void media_fence_counted(struct fby_media *m, u64 at, size_t n)
{
	(void)m, (void)at, (void)n;
	fences++;
}

static bool cost(u32 bytes, u32 n)
{
	bool as_told = flushed == bytes && fences == n;

	if (!as_told)
		fprintf(stderr, "inside: %u bytes flushed, %u fences\n", flushed, fences);
	flushed = fences = 0;
	return as_told;
}

static int opened(bool maps)
{
	struct fby_options o = { .nslots = 2, .maps = maps };
	struct fby_recovery_report report;
	int rc = media_open(&small, &o, &small_memory, &mp);

	return rc ? rc : fby_recover_finish(mp, &report);
}

static int attach(void)
{
	struct fby_map_attach a = { .port = &memory_port, .mem_bytes = fby_map_bytes(mp, 0) };
	int rc;

	free(attached);
	a.mem = attached = aligned_alloc(FBY_PAGE, fby_round_up(a.mem_bytes + 1, FBY_PAGE));
	memset(attached, 0, a.mem_bytes);
	rc = fby_map_attach(mp, 0, &a, &found);
	return rc;
}

static int again(void)
{
	int rc = opened(true);

	return rc ? rc : attach();
}

static bool whole(void)
{
	char text[200];
	int rc = fby_check(mp, true, text, sizeof(text));

	if (rc)
		fprintf(stderr, "check: %s\n", text);
	return rc == FBY_DONE;
}

static int add(const char *name, u64 bytes)
{
	struct fby_map_spec s = { .uuid = { 9 }, .bytes = bytes, .frame_bytes = FRAME, .nfiles = NFILES };

	strcpy(s.name, name);
	return fby_map_add(mp, &s, &map);
}

static void make(void)
{
	struct fby_format f = { .uuid = { 8 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3, .map_bytes = SHARE };

	small.size = 2 * SHARE;
	if (!small.base) {
		small.base = aligned_alloc(2u << 20, small.size);
		counted = *fby_posix_media_ops(FBY_PERSIST_EADR, NULL);
		counted.fence = media_fence_counted;
		small.ops = &counted;
		kept = malloc(small.size);
	}
	memset(small.base, 0, small.size);
	EXPECT(fby_format(&small, &f) == FBY_DONE);
	EXPECT(opened(false) == -FBY_E_FEATURE);
	EXPECT(opened(true) == FBY_DONE);
	EXPECT(add("m", SHARE) == FBY_DONE && map == 0);
	EXPECT(attach() == FBY_DONE && found.frames == 0 && found.damaged_frames == 0);
}

static u32 file_add(const char *path, u64 size)
{
	struct fby_map_file f = { .size = size, .identity_bytes = 3, .identity = "abc" };
	u32 file = ~0u;

	strcpy(f.path, path);
	EXPECT(fby_map_file_add(mp, 0, &f, &file) == FBY_DONE);
	return file;
}

/* Fills a frame with the byte `what`. */
static u32 bring_in(u32 file, u64 segment, u8 what)
{
	struct fby_frame f;
	u32 frame = ~0u;

	EXPECT(fby_map_take(mp, 0, file, segment, &frame) == FBY_DONE);
	EXPECT(fby_map_frame(mp, 0, frame, &f) == FBY_DONE);
	memset(f.memory, what, FRAME);
	EXPECT(fby_map_show(mp, 0, frame) == FBY_DONE);
	return frame;
}

static int sync(u32 frame, u32 first, u32 n)
{
	struct fby_pages pages = { { 0 } };
	struct fby_frame f;
	int rc = fby_map_frame(mp, 0, frame, &f);

	fby_pages_set(&pages, first, n);
	return rc ? rc : fby_frame_sync(&f, &pages);
}

static u32 dirty_pages(u32 frame, u32 *unknown)
{
	struct fby_pages dirty, not_known;
	struct fby_frame f;
	u32 n;

	*unknown = 0;
	if (fby_map_frame(mp, 0, frame, &f))
		return 0;
	n = fby_frame_dirty(&f, &dirty, &not_known);
	for (u32 i = 0; i < f.npages; i++)
		*unknown += fby_pages_has(&not_known, i);
	return n;
}

static u32 write_back(u32 frame)
{
	struct fby_pages pages;
	struct fby_frame f;

	EXPECT(fby_map_frame(mp, 0, frame, &f) == FBY_DONE);
	memset(&pages, 0xff, sizeof(pages));
	fby_frame_write_begin(&f, &pages);
	return fby_frame_write_end(&f, &pages);
}

static void what_was_synced_is_found(void)
{
	struct fby_frame_info info;
	struct fby_map_file file;
	u32 unknown, a, b;

	make();
	EXPECT(fby_map_remove(mp, 0, false) == -FBY_E_VOLUME_BUSY);
	a = file_add("/a", 5 * FRAME);
	b = file_add("/b", FBY_PAGE + 1);
	EXPECT(bring_in(a, 3, 1) == 0 && bring_in(b, 0, 2) == 1 && bring_in(a, 4, 3) == 2);
	EXPECT(sync(0, 5, 20) == FBY_DONE && sync(1, 0, 2) == FBY_DONE);
	EXPECT(sync(1, 1, 2) == FBY_ORIGIN);
	EXPECT(dirty_pages(0, &unknown) == 20 && !unknown);
	EXPECT(fby_map_drop(mp, 0, 0, false) == -FBY_E_MAP_DIRTY);
	EXPECT(fby_map_file_remove(mp, 0, a) == -FBY_E_BUSY);
	EXPECT(whole());
	EXPECT(again() == FBY_DONE);
	EXPECT(found.frames == 2 && found.dirty == 22 && found.unknown == 0 && found.repaired == 0);
	EXPECT(whole());
	EXPECT(fby_map_frame_info(mp, 0, 0, &info) == FBY_DONE);
	EXPECT(info.state == FBY_FRAME_FOUND && info.file == a && info.segment == 3 && info.at % FRAME == 0);
	EXPECT(fby_map_file_info(mp, 0, b, &file) == FBY_DONE);
	EXPECT(file.size == FBY_PAGE + 1 && !strcmp(file.path, "/b") && file.frames == 1 &&
	       !memcmp(file.identity, "abc", 3));
	EXPECT(write_back(0) == 0 && fby_map_drop(mp, 0, 0, false) == FBY_DONE);
	EXPECT(fby_map_file_remove(mp, 0, a) == FBY_DONE);
	EXPECT(fby_map_detach(mp, 0) == FBY_DONE);
	EXPECT(fby_map_remove(mp, 0, false) == -FBY_E_MAP_DIRTY);
	EXPECT(attach() == FBY_DONE && found.frames == 1 && found.dirty == 2);
	EXPECT(write_back(1) == 0 && fby_map_detach(mp, 0) == FBY_DONE);
	EXPECT(fby_map_remove(mp, 0, false) == FBY_DONE && fby_map_find(mp, "m", &map) == -FBY_E_NO_MAP);
	EXPECT(add("n", SHARE) == FBY_DONE && attach() == FBY_DONE && found.frames == 0 && whole());
}

static void a_sync_beside_a_write_back(void)
{
	struct fby_pages pages = { { 0 } };
	struct fby_frame f;
	u32 unknown;

	make();
	bring_in(file_add("/a", FRAME), 0, 1);
	EXPECT(sync(0, 0, 3) == FBY_DONE && fby_map_frame(mp, 0, 0, &f) == FBY_DONE);
	fby_pages_set(&pages, 1, 4);
	EXPECT(fby_frame_write_begin(&f, &pages) == 2 && pages.bit[0] == 6);
	EXPECT(sync(0, 2, 1) == FBY_DONE);
	EXPECT(fby_frame_write_end(&f, &pages) == 1 && pages.bit[0] == 4);
	EXPECT(dirty_pages(0, &unknown) == 2 && whole());
}

static void a_file_is_cut(void)
{
	u32 unknown, a;

	make();
	a = file_add("/a", 2 * FRAME);
	bring_in(a, 0, 1);
	bring_in(a, 1, 2);
	EXPECT(sync(0, 0, 32) == FBY_DONE && sync(1, 0, 32) == FBY_DONE);
	EXPECT(fby_map_file_cut(mp, 0, a, 2 * FBY_PAGE + 7) == FBY_DONE);
	EXPECT(fby_map_file_size(mp, 0, a, 2 * FRAME) == -FBY_E_BUSY);
	EXPECT(again() == FBY_DONE && found.cut == 1 && found.dirty == 64);
	EXPECT(fby_map_file_cut_end(mp, 0, a) == FBY_DONE);
	EXPECT(dirty_pages(0, &unknown) == 3 && dirty_pages(1, &unknown) == 0);
	EXPECT(memory_at(0) && small.base[fby_frame_at(MAP, 0) + 2 * FBY_PAGE + 6] == 1 &&
	       small.base[fby_frame_at(MAP, 0) + 2 * FBY_PAGE + 7] == 0);
	EXPECT(again() == FBY_DONE && found.cut == 0 && found.dirty == 3 && found.frames == 1 && whole());
	EXPECT(fby_map_file_size(mp, 0, a, FRAME) == FBY_DONE);
}

/* A size is promised.  After the next attach the promise is there, and so is the least length of
 * the file. */
static void a_size_is_promised(void)
{
	static struct fby_map_file f;
	u32 a;

	make();
	a = file_add("/a", FBY_PAGE + 7);
	bring_in(a, 0, 1);
	EXPECT(fby_map_file_promise(mp, 0, a, 2 * FBY_PAGE) == -FBY_E_RANGE);
	EXPECT(fby_map_file_grows(mp, 0, a, FBY_PAGE) == -FBY_E_RANGE);
	EXPECT(fby_map_file_grows(mp, 0, a, FBY_NUMBER_START) == -FBY_E_RANGE);
	flushed = fences = 0;
	EXPECT(fby_map_file_grows(mp, 0, a, 9 * FBY_PAGE) == FBY_DONE && cost(0, 2));
	EXPECT(fby_map_file_grows(mp, 0, a, 8 * FBY_PAGE) == FBY_DONE && cost(0, 0));
	EXPECT(fby_map_file_promise(mp, 0, a, 10 * FBY_PAGE) == -FBY_E_RANGE);
	EXPECT(fby_map_file_promise(mp, 0, a, FBY_PAGE) == -FBY_E_RANGE);
	EXPECT(sync(0, 3, 1) == FBY_ORIGIN);
	EXPECT(fby_map_file_promise(mp, 0, a, 4 * FBY_PAGE) == FBY_DONE && cost(0, 2));
	EXPECT(sync(0, 3, 1) == FBY_DONE && sync(0, 4, 1) == FBY_ORIGIN);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && f.grows && f.size == 4 * FBY_PAGE &&
	       f.made == FBY_PAGE + 7 && f.ahead == 9 * FBY_PAGE);
	EXPECT(again() == FBY_DONE && found.dirty == 1);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && f.grows && f.made == FBY_PAGE + 7);
	EXPECT(fby_map_file_cut(mp, 0, a, 3) == FBY_DONE && fby_map_file_promise(mp, 0, a, 9) == -FBY_E_BUSY);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && f.cut && f.grows && f.made == 3 && f.size == 3);
	EXPECT(fby_map_file_cut_end(mp, 0, a) == FBY_DONE);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && !f.cut && !f.grows && f.made == 3 && f.ahead == 3);
	/* The file may be shorter, so the map is not removed silently. */
	EXPECT(fby_map_file_grows(mp, 0, a, 9) == FBY_DONE && fby_map_file_promise(mp, 0, a, 8) == FBY_DONE);
	EXPECT(fby_map_drop(mp, 0, 0, true) == FBY_DONE && fby_map_detach(mp, 0) == FBY_DONE);
	EXPECT(fby_map_remove(mp, 0, false) == -FBY_E_MAP_DIRTY && again() == FBY_DONE);
	EXPECT(fby_map_file_size(mp, 0, a, 8) == FBY_DONE);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && !f.grows && f.size == 8);
	/* A pool of a version that knows no promises. */
	mp->space.store.sb.features_incompat &= ~FBY_FEATURE_MAP_GROWS;
	EXPECT(fby_map_file_grows(mp, 0, a, 9) == FBY_ORIGIN && fby_map_file_promise(mp, 0, a, 9) == FBY_ORIGIN);
	mp->space.store.sb.features_incompat |= FBY_FEATURE_MAP_GROWS;
	EXPECT(fby_map_detach(mp, 0) == FBY_DONE && fby_map_remove(mp, 0, false) == FBY_DONE);
}

/* Checks the cost of each step that docs/design/map.md states. */
static void fences_are_counted(void)
{
	struct fby_pages pages = { { 1ull << 3 | 1ull << 20 } };
	struct fby_frame f;
	u32 a, frame;

	make();
	flushed = fences = 0;
	a = file_add("/a", FRAME);
	EXPECT(cost(0, 2));
	EXPECT(fby_map_take(mp, 0, a, 0, &frame) == FBY_DONE && cost(0, 0));
	EXPECT(fby_map_show(mp, 0, frame) == FBY_DONE && cost(0, 2));
	EXPECT(sync(frame, 4, 1) == FBY_DONE && cost(FBY_PAGE + 8, 2));
	EXPECT(sync(frame, 4, 1) == FBY_DONE && cost(FBY_PAGE + 8, 2));
	EXPECT(sync(frame, 0, 32) == FBY_DONE && cost(FRAME + 16, 2));
	EXPECT(fby_map_frame(mp, 0, frame, &f) == FBY_DONE);
	EXPECT(fby_frame_write_begin(&f, &pages) == 2 && cost(0, 0));
	EXPECT(fby_frame_write_end(&f, &pages) == 0 && cost(16, 1));
	EXPECT(write_back(frame) == 0 && cost(16, 1));
	EXPECT(fby_map_drop(mp, 0, frame, false) == FBY_DONE && cost(0, 1));
	EXPECT(fby_map_file_size(mp, 0, a, 2 * FRAME) == FBY_DONE && cost(0, 2));
	EXPECT(fby_map_file_size(mp, 0, a, 2 * FRAME) == FBY_DONE && cost(0, 0));
}

/* A frame that is only taken must not be synced, and neither must a page after the end of its file.
 */
static void what_is_refused(void)
{
	static struct fby_map_file f = { .size = FBY_PAGE, .identity_bytes = FBY_MAP_IDENTITY_MAX + 1, .path = "/a" };
	struct fby_map_info info;
	u32 a, file, frame;

	make();
	EXPECT(fby_map_file_add(mp, 0, &f, &file) == -FBY_E_NAME);
	f.identity_bytes = 0;
	memset(f.path, 'p', sizeof(f.path));
	EXPECT(fby_map_file_add(mp, 0, &f, &file) == -FBY_E_NAME);
	f.path[FBY_MAP_PATH_MAX] = 0;
	EXPECT(fby_map_file_add(mp, 0, &f, &file) == FBY_DONE && fby_map_file_path(mp, 0, file, "/b") == FBY_DONE);
	a = file_add("/a", FBY_PAGE);
	EXPECT(fby_map_file_add(mp, 0, &f, &file) == -FBY_E_MAP_FULL);
	EXPECT(fby_map_take(mp, 0, NFILES, 0, &frame) == -FBY_E_NO_MAP);
	EXPECT(fby_map_take(mp, 0, a, 0, &frame) == FBY_DONE && sync(frame, 0, 1) == FBY_ORIGIN);
	EXPECT(fby_map_show(mp, 0, frame) == FBY_DONE && fby_map_show(mp, 0, frame) == -FBY_E_BUSY);
	EXPECT(sync(frame, 0, 1) == FBY_DONE && sync(frame, 0, 2) == FBY_ORIGIN);
	EXPECT(fby_map_file_size(mp, 0, a, 7) == -FBY_E_RANGE && fby_map_file_cut(mp, 0, a, FRAME) == -FBY_E_RANGE);
	EXPECT(fby_map_info(mp, 0, &info) == FBY_DONE && info.used == 1 && info.files == 2 &&
	       info.free + info.used == info.nframes && info.nframes == MAP->nframes);
	for (u32 n = 1; n < info.nframes; n++)
		EXPECT(fby_map_take(mp, 0, a, n, &frame) == FBY_DONE);
	EXPECT(fby_map_take(mp, 0, a, 100, &frame) == -FBY_E_MAP_FULL);
	EXPECT(fby_map_drop(mp, 0, frame, false) == FBY_DONE && fby_map_drop(mp, 0, frame, false) == -FBY_E_NO_MAP);
	EXPECT(whole());
	EXPECT(add("m", SHARE) == -FBY_E_VOLUME_EXISTS && add("n", SHARE) == -FBY_E_MAP_FULL);
	EXPECT(add("n", SHARE / 2) == -FBY_E_GEOMETRY && add("..", SHARE) == -FBY_E_NAME);
	EXPECT(fby_volume_remove(mp, 0, true) == -FBY_E_NO_VOLUME);
}

/* A damaged record is reported by name.  The words are read from the media without loads. */
static void what_a_recovery_asks(void)
{
	static struct fby_map_file f;
	struct fby_pages dirty, unknown;
	u32 a, b;

	make();
	a = file_add("/a", FRAME);
	b = file_add("/b", FRAME);
	EXPECT(fby_map_file_identity(mp, 0, a, "mine", 4) == FBY_DONE);
	EXPECT(fby_map_file_identity(mp, 0, a, "mine", FBY_MAP_IDENTITY_MAX + 1) == -FBY_E_NAME);
	EXPECT(fby_map_file_identity(mp, 0, 3, "mine", 4) == -FBY_E_NO_MAP);
	bring_in(a, 0, 1);
	EXPECT(sync(0, 17, 2) == FBY_DONE && again() == FBY_DONE);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && f.used && !f.damaged && f.identity_bytes == 4 &&
	       !memcmp(f.identity, "mine\0", 5) && !strcmp(f.path, "/a"));
	EXPECT(fby_map_frame_dirty(mp, 0, 0, &dirty, &unknown) == FBY_DONE && dirty.bit[0] == 3ull << 17 &&
	       unknown.bit[0] == 0);
	small.base[fby_descriptor_at(MAP, 0) + FBY_MAP_WORDS_AT] ^= 1;
	EXPECT(fby_map_frame_dirty(mp, 0, 0, &dirty, &unknown) == FBY_DONE && dirty.bit[0] == 3ull << 17 &&
	       unknown.bit[0] == 0xffff);
	small.base[fby_descriptor_at(MAP, 0) + FBY_MAP_WORDS_AT] ^= 1;
	EXPECT(fby_map_frame_dirty(mp, 0, 1, &dirty, &unknown) == -FBY_E_NO_MAP);
	for (u32 copy = 0; copy < 2; copy++)
		small.base[MAP->at + (2 * b + copy) * FBY_PAGE + 70] ^= 1;
	EXPECT(fby_map_file_info(mp, 0, b, &f) == -FBY_E_MAP_DAMAGED && f.damaged && !f.used);
	EXPECT(again() == FBY_DONE && found.damaged_files == 1 && found.dirty == 2);
	EXPECT(fby_map_file_info(mp, 0, b, &f) == -FBY_E_MAP_DAMAGED && f.damaged && !f.used);
	EXPECT(fby_map_file_info(mp, 0, a, &f) == FBY_DONE && !f.damaged && f.frames == 1);
	EXPECT(fby_map_file_remove(mp, 0, b) == FBY_DONE && whole());
	EXPECT(fby_map_drop(mp, 0, 0, true) == FBY_DONE && fby_map_file_remove(mp, 0, a) == FBY_DONE);
}

/* Makes two frames claim the same segment, on the media as well; the check names them. */
static void claimed_twice(u32 frame, u32 by)
{
	struct fby_map_frame *f = &MAP->frame[frame], *g = &MAP->frame[by];
	struct fby_map_seen s;
	u64 segment = g->segment;
	char text[200];

	fby_descriptor_look(&mp->maps, MAP, by, &s);
	g->segment = s.line.segment = f->segment;
	fby_descriptor_write(&mp->maps, MAP, by, &s.line);
	EXPECT(fby_check(mp, true, text, sizeof(text)) == -FBY_E_INVARIANT && strstr(text, "a segment has two frames"));
	g->segment = s.line.segment = segment;
	fby_descriptor_write(&mp->maps, MAP, by, &s.line);
	EXPECT(whole());
}

/* The time of a check does not grow with the square of the frames. */
static void many_frames(void)
{
	struct fby_format f = { .uuid = { 8 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3, .map_bytes = MANY_SHARE };
	struct fby_map_spec spec = { .uuid = { 9 }, .bytes = MANY_SHARE, .frame_bytes = FBY_FRAME_MIN, .nfiles = NFILES,
				     .name = "m" };
	struct timespec before, after;
	u32 file, frame, n;

	small.size = MANY_SHARE + (16u << 20);
	small.base = mmap(NULL, small.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(small.base != MAP_FAILED && fby_format(&small, &f) == FBY_DONE && opened(true) == FBY_DONE);
	EXPECT(fby_map_add(mp, &spec, &map) == FBY_DONE && attach() == FBY_DONE);
	n = MAP->nframes;
	EXPECT(n > 15000);
	file = file_add("/a", (u64)n * FBY_FRAME_MIN);
	EXPECT(file_add("/b", (u64)n * FBY_FRAME_MIN) == file + 1);
	for (u32 i = 0; i < n - 1; i++) /* each segment but a few once, in no order, a few of both files */
		EXPECT(fby_map_take(mp, 0, file + i % 2, (u64)i * 7919 % n, &frame) == FBY_DONE &&
		       fby_map_show(mp, 0, frame) == FBY_DONE);
	clock_gettime(CLOCK_MONOTONIC, &before);
	EXPECT(whole());
	clock_gettime(CLOCK_MONOTONIC, &after);
	printf("inside: %u frames of a map checked in %.1f ms\n", n - 1,
	       (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6);
	claimed_twice(0, 2);
	claimed_twice(2, 0);
	claimed_twice(0, (n / 4) * 2);
	claimed_twice(1, (n - 4) | 1);
	/* Both lists, of the free and of the used ones, are what they were. */
	EXPECT(fby_map_drop(mp, 0, 5, false) == FBY_DONE && whole());
	EXPECT(fby_map_take(mp, 0, file, n - 1, &frame) == FBY_DONE && frame == 5 && whole());
	munmap(small.base, small.size);
	small.base = NULL;
}

/* A process that has a frame from before its drop must not get a success for a sync of it. */
static void a_frame_that_was_given_up(void)
{
	struct fby_pages pages = { { 1 << 3 } }, none = { { 0 } }, dirty, unknown;
	struct fby_frame old, f;
	u32 a, b, frame;

	make();
	a = file_add("/a", FRAME);
	b = file_add("/b", FRAME);
	frame = bring_in(a, 0, 1);
	EXPECT(fby_map_frame(mp, 0, frame, &old) == FBY_DONE && fby_frame_sync(&old, &pages) == FBY_DONE);
	/* A frame that cannot be dropped is unchanged. */
	EXPECT(fby_map_drop(mp, 0, frame, false) == -FBY_E_MAP_DIRTY && !fby_frame_close(&old, &none, false));
	EXPECT(sync(frame, 0, 32) == FBY_DONE && write_back(frame) == 0);
	EXPECT(fby_map_drop(mp, 0, frame, false) == FBY_DONE);
	memcpy(kept, small.base, small.size);
	EXPECT(fby_frame_sync(&old, &pages) == -FBY_E_NO_MAP);
	EXPECT(fby_frame_dirty(&old, &dirty, &unknown) == 0 && unknown.bit[0] == 0);
	EXPECT(fby_frame_write_begin(&old, &pages) == 0);
	pages.bit[0] = 1 << 3;
	EXPECT(fby_frame_write_end(&old, &pages) == 0);
	fby_frame_forget(&old, 0);
	EXPECT(!memcmp(kept, small.base, small.size));
	EXPECT(bring_in(b, 0, 2) == frame && fby_map_frame(mp, 0, frame, &f) == FBY_DONE);
	pages.bit[0] = 1 << 3;
	EXPECT(fby_frame_sync(&old, &pages) == -FBY_E_MAP_DAMAGED);
	EXPECT(fby_frame_dirty(&f, &dirty, &unknown) == 0 && unknown.bit[0] == 0);
	/* A frame with a dirty page and a damaged word is dropped by order. */
	EXPECT(fby_frame_sync(&f, &pages) == FBY_DONE);
	f.words[1] ^= 1;
	EXPECT(fby_map_drop(mp, 0, frame, false) == -FBY_E_MAP_DIRTY && fby_frame_sync(&f, &pages) == FBY_DONE);
	EXPECT(fby_map_drop(mp, 0, frame, true) == FBY_DONE && fby_frame_sync(&f, &pages) == -FBY_E_NO_MAP);
	pages.bit[0] = 1 << 16;
	EXPECT(fby_frame_sync(&f, &pages) == -FBY_E_MAP_DAMAGED && whole());
	/* The next attachment finds this frame clean, while a process outlives the attachment
	 * before. */
	pages.bit[0] = 1 << 3;
	EXPECT(bring_in(b, 0, 3) == frame && fby_map_frame(mp, 0, frame, &old) == FBY_DONE);
	EXPECT(again() == FBY_DONE && found.frames == 0 && fby_frame_sync(&old, &pages) == -FBY_E_NO_MAP);
	EXPECT(again() == FBY_DONE && found.frames == 0 && found.damaged_frames == 0 && whole());
	/* A cut comes before the line was written.  Closed words count as clean. */
	EXPECT(bring_in(b, 0, 4) == frame && fby_map_frame(mp, 0, frame, &f) == FBY_DONE);
	EXPECT(fby_frame_close(&f, &none, false) && again() == FBY_DONE);
	EXPECT(found.frames == 0 && found.unknown == 0 && found.damaged_frames == 0 && whole());
	/* The descriptor of this frame is lost, and is given up by order. */
	EXPECT(bring_in(b, 0, 5) == frame && fby_map_frame(mp, 0, frame, &old) == FBY_DONE);
	for (u32 copy = 0; copy < 2; copy++)
		memset(small.base + fby_descriptor_at(MAP, frame) + copy * FBY_MAP_LINE_COPY, 0, 2 * FBY_LINE);
	EXPECT(again() == FBY_DONE && found.damaged_frames == 1 && fby_map_drop(mp, 0, frame, true) == FBY_DONE);
	EXPECT(fby_frame_sync(&old, &pages) == -FBY_E_MAP_DAMAGED);
	EXPECT(again() == FBY_DONE && found.damaged_frames == 0 && whole());
}

void test_map(void)
{
	a_frame_that_was_given_up();
	what_a_recovery_asks();
	fences_are_counted();
	what_is_refused();
	what_was_synced_is_found();
	a_sync_beside_a_write_back();
	a_file_is_cut();
	a_size_is_promised();
	free(small.base);
	many_frames();
	free(kept);
	free(small_memory);
	free(attached);
}
