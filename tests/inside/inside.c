// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside.c - tests that look into the engine.
 *
 * Goal: the checks notice what they must: each invariant of fby_check, and each field of a line at
 * its bound.  A check that compares nothing passes every test of an engine without bugs.
 * Method: the engine makes a pool of 8 chunks.  Then the test spoils one thing in its memory or on
 * its media, runs the check, and restores everything.
 */
#include "inside.h"

struct fby_pool *pool;
unsigned int failures, checks;
u32 closed_chunk, open_chunk, other_chunk;

struct fby_media media;
static u8 *memory, *saved_memory, *saved_media;
static u64 memory_bytes, saved_bytes; /* the saved bytes include some after the memory */
static void *attach_memory[3];

unsigned int breaths; /* of long loops */
unsigned int cpu; /* chooses the slot */
void (*cpu_meanwhile)(void);
unsigned int __wrap_fby_cpu(void); /* in the port's place: linked with --wrap=fby_cpu */

unsigned int __wrap_fby_cpu(void)
{
	void (*meanwhile)(void) = cpu_meanwhile;

	cpu_meanwhile = NULL;
	if (meanwhile)
		meanwhile();
	return cpu;
}

void expect_at(bool good, const char *file, int line, const char *what)
{
	checks++;
	if (good)
		return;
	failures++;
	fprintf(stderr, "inside: %s:%d: %s\n", file, line, what);
}

static void must(const char *what, int decision)
{
	if (decision == FBY_DONE)
		return;
	fprintf(stderr, "inside: %s: %s\n", what, fby_error_name(decision));
	exit(1);
}

static void *zeroed(u64 bytes)
{
	void *p = aligned_alloc(FBY_PAGE, fby_round_up(bytes, FBY_PAGE));

	memset(p, 0, fby_round_up(bytes, FBY_PAGE));
	return p;
}

static void volume_make(u16 number)
{
	struct fby_volume_spec s = { .name = "v0", .identity = "memory", .origin_sectors = VOLUME_SECTORS,
				     .block_size = 512 };
	struct fby_attach a = { .origin_sectors = VOLUME_SECTORS, .identity = "memory", .round_pages = 64,
				.nrequests = 2, .buffer_bytes = 65536 };
	u16 index;

	s.name[1] = (char)('0' + number);
	s.uuid[0] = (u8)(number + 1);
	must("volume add", fby_volume_add(pool, &s, &index));
	a.mem_bytes = fby_volume_bytes(pool, a.round_pages, a.nrequests, a.buffer_bytes);
	free(attach_memory[number]);
	a.mem = attach_memory[number] = zeroed(a.mem_bytes);
	must("attach", fby_volume_attach(pool, index, &a));
}

static void put(u16 volume, u64 block)
{
	static u8 data[FBY_PAGE];
	u32 done = 0, wake = 0;

	memset(data, (int)(block + volume + 1), sizeof(data));
	must("write", fby_write(pool, volume, block * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS, data, &done, &wake));
}

void pool_make(void)
{
	struct fby_format f = { .uuid = { 1, 2, 3 }, .chunk_size = CHUNK_BYTES, .nvolumes = 3 };
	struct fby_options o = { .nslots = 2 };
	struct fby_recovery_report report;
	struct fby_probe probe;
	u32 wake = 0;

	if (!media.base) {
		media.size = (NCHUNKS + 1) * CHUNK_BYTES;
		media.base = zeroed(media.size);
		media.ops = fby_posix_media_ops(FBY_PERSIST_EADR, NULL);
	}
	memset(media.base, 0, media.size);
	must("format", fby_format(&media, &f));
	fby_probe(&media, &probe);
	memory_bytes = fby_pool_bytes(&probe.sb, 2);
	saved_bytes = memory_bytes + 4 * FBY_PAGE;
	if (!memory)
		memory = zeroed(saved_bytes);
	memset(memory, 0, saved_bytes);
	must("open", fby_pool_open(&pool, memory, memory_bytes, &media, &o));
	must("recovery", fby_recover_chunks(pool, 0, pool->space.store.sb.nchunks));
	must("recovery", fby_recover_finish(pool, &report));
	for (u16 v = 0; v < 3; v++)
		volume_make(v);
	for (u64 block = 0; block < BLOCKS; block++)
		put(0, block);
	fby_slot_take(&pool->space);
	fby_slot_close(&pool->space, &pool->space.slot[0], 0, &wake);
	fby_slot_release(&pool->space.slot[0]);
	closed_chunk = pool->space.owner[0].first;
	put(0, 0);
	put(0, 16);
	put(0, 17);
	open_chunk = pool->space.owner[0].last;
	put(1, 0);
	put(1, 1);
	other_chunk = pool->space.owner[1].first;
}

void pool_recover(struct fby_recovery_report *report)
{
	struct fby_options o = { .nslots = 2 };
	u64 bytes = pool->memory_bytes;
	char text[200];

	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, report) == FBY_DONE);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
}

int media_open(struct fby_media *m, const struct fby_options *o, u8 **memory, struct fby_pool **out)
{
	struct fby_probe probe;
	u64 bytes;
	int rc;

	fby_probe(m, &probe);
	if (probe.error)
		return probe.error;
	bytes = fby_pool_bytes(&probe.sb, o->nslots);
	free(*memory);
	*memory = aligned_alloc(FBY_PAGE, fby_round_up(bytes, FBY_PAGE));
	memset(*memory, 0, bytes);
	rc = fby_pool_open(out, *memory, bytes, m, o);
	if (rc)
		return rc;
	EXPECT(fby_recover_chunks(*out, 0, (*out)->space.store.sb.nchunks) == FBY_DONE);
	return FBY_DONE;
}

void pool_save(void)
{
	if (!saved_memory) {
		saved_memory = zeroed(saved_bytes);
		saved_media = zeroed(media.size);
	}
	memcpy(saved_memory, memory, saved_bytes);
	memcpy(saved_media, media.base, media.size);
}

void pool_restore(void)
{
	memcpy(memory, saved_memory, saved_bytes);
	memcpy(media.base, saved_media, media.size);
}

bool pool_same(void)
{
	return memcmp(memory, saved_memory, saved_bytes) == 0 && memcmp(media.base, saved_media, media.size) == 0;
}

int main(void)
{
	pool_make();
	pool_save();
	test_check();
	test_lines();
	test_calls();
	test_media();
	test_paths();
	test_corners();
	test_recovery();
	test_kinds();
	test_scan();
	test_destage();
	test_flight();
	test_plan();
	test_refused();
	test_kept();
	test_wakes();
	test_drained();
	test_static();
	test_static_lost();
	test_map();
	test_logs();
	test_log_lines();
	test_log_calls();
	test_log_periods();
	test_asserts(); /* of all that was passed before */
	printf("inside: %u checks, %u failures\n", checks, failures);
	return failures != 0;
}
