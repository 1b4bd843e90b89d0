// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * stress.c - many threads against one pool on the posix port, for ThreadSanitizer, AddressSanitizer
 * and UBSan.  It also finds what they cannot see: a read that returns older data than was
 * acknowledged before it began.
 *
 * Method: each sector of a volume has one writing thread, its owner, and a number that its owner
 * counts up: started[] before a write, acked[] after it.  A reader of the sector loads acked before
 * and started after, and the number that it read must lie between the two.  In volume 0 the owners
 * share each block, so partial pages merge under contention.  In volume 1 they own runs of 64 KiB
 * and discard and zero too.  Volume 2 comes and goes.  One write in four goes past the cache, as
 * far as it may, and lingers on its way to the origin.  The pool is far smaller than the volumes,
 * so destage, reuse of chunks and waits for space never end.  Origin requests complete on threads
 * of their own, now and then with an error.
 *
 * With `statics`, volumes 0 and 1 are static, with shares smaller than the volumes, so that
 * blocks meet in a slot.
 *
 * After each phase all threads stop, fby_check runs, and every sector is compared.  Then the pool
 * is closed or simply left, opened again, recovered by two threads, and compared again.  At last it
 * is drained and the origins are compared alone.
 *
 * Nothing here takes a lock around a call of the engine but the one that the
 * contract asks for, lest it hide a race.  The tables and the origins are
 * relaxed atomics for the same reason.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "forebay.h"
#include "medium/planted.h"

#define MEDIA_BYTES (3u << 20)
#define SHARE_BYTES (24u * 65536)
#define CHUNK_BYTES (64u << 10)
#define VOLUME_SECTORS 4096u /* 2 MiB */
#define NVOLUMES 2u
#define MAX_THREADS 16u
#define IO_THREADS 2u
#define BUFFERS 4u
#define BUFFER_BYTES (32u << 10)
#define MAX_SECTORS 128u

struct origin {
	u64 word[VOLUME_SECTORS * (FBY_SECTOR / 8)];
	u32 started[VOLUME_SECTORS], acked[VOLUME_SECTORS];
};

static struct origin origin[NVOLUMES];
static struct fby_pool *pool;
static struct fby_media media;
static pthread_mutex_t admin = PTHREAD_MUTEX_INITIALIZER; /* destage step, add, remove */
static bool statics;
static u32 stopping;
static u32 nthreads = 4;
static u32 flushing[NVOLUMES]; /* flushes of the origin in flight */
static u64 total_writes, total_reads, total_ranges, total_errors, total_bypasses, total_flushes;

/* Requests for the origins, from the destage thread to those that do them. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t some;
	struct fby_io io[NVOLUMES * BUFFERS];
	u32 n;
	bool end;
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };

static void fail(const char *what, u64 volume, u64 sector, u64 a, u64 b, u64 c)
{
	fprintf(stderr,
		"stress: %s: volume %" PRIu64 " sector %" PRIu64 " (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ")\n",
		what, volume, sector, a, b, c);
	abort();
}

static u64 random_next(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1dull >> 16;
}

/* --- content: every word of a sector says where it belongs and which write it is */

static u64 word_of(u32 volume, u64 sector, u32 version, u32 i)
{
	return ((u64)version << 32 | (sector << 8) | volume << 6 | i) ^ 0x5a5a000000000000ull;
}

/* Versions that leave zeroes. */
static bool version_zeroes(u32 volume, u32 version)
{
	return volume == 1 && version % 8 == 0;
}

static void sector_fill(u64 *words, u32 volume, u64 sector, u32 version)
{
	for (u32 i = 0; i < FBY_SECTOR / 8; i++)
		words[i] = version_zeroes(volume, version) ? 0 : word_of(volume, sector, version, i);
}

/* Whether all words are of one version, or zero. */
static bool sector_whole(const u64 *words, u32 volume, u64 sector)
{
	u32 version = (u32)((words[0] ^ 0x5a5a000000000000ull) >> 32);

	for (u32 i = 0; i < FBY_SECTOR / 8; i++)
		if (words[i] != (words[0] ? word_of(volume, sector, version, i) : 0))
			return false;
	return true;
}

/* A read returns a whole sector, between acked before and started after. */
static void sector_verify(const u64 *words, u32 volume, u64 sector, u32 low, u32 high)
{
	u32 version = (u32)((words[0] ^ 0x5a5a000000000000ull) >> 32);
	bool zero_allowed = low == 0;

	if (words[0] == 0) {
		for (u32 v = low; v <= high; v++)
			zero_allowed |= version_zeroes(volume, v);
		if (!zero_allowed)
			fail("zeroes in place of data", volume, sector, low, high, 0);
	} else if (version < low || version > high) {
		fail("not what was acknowledged", volume, sector, low, high, version);
	}
	if (!sector_whole(words, volume, sector))
		fail("torn sector", volume, sector, low, high, version);
}

/* --- the origins: memory, as relaxed words -------------------------------- */

/* A disk's sector is never torn by a concurrent write, so a torn one is read again. */
static void origin_copy_out(u32 volume, u64 sector, u64 *dst)
{
	const u64 *src = &origin[volume].word[sector * (FBY_SECTOR / 8)];

	do {
		for (u64 i = 0; i < FBY_SECTOR / 8; i++)
			dst[i] = fby_load(&src[i]);
	} while (!sector_whole(dst, volume, sector));
}

static void origin_store(u32 volume, u64 sector, u64 n, const u64 *src)
{
	u64 *dst = &origin[volume].word[sector * (FBY_SECTOR / 8)];

	for (u64 i = 0; i < n * (FBY_SECTOR / 8); i++)
		fby_store(&dst[i], src ? src[i] : 0ull);
}

/* Origin writes in flight, by block: one past the cache alone, or any number of destage's. Destage
 * may write a page that holds sectors here and there, and then each run is a request. */
#define OF_DESTAGE 1u
#define PAST_CACHE 0x10000u
static u32 in_flight[NVOLUMES][VOLUME_SECTORS / FBY_PAGE_SECTORS];

static void in_flight_begin(u32 volume, u64 sector, u64 n, u32 kind)
{
	for (u64 b = sector / FBY_PAGE_SECTORS; b * FBY_PAGE_SECTORS < sector + n; b++) {
		u32 others = __atomic_fetch_add(&in_flight[volume][b], kind, __ATOMIC_RELAXED);

		if (kind == PAST_CACHE ? others != 0 : others >= PAST_CACHE)
			fail("two origin writes in flight for a block", volume, b * FBY_PAGE_SECTORS, sector, n,
			     others);
	}
}

static void in_flight_end(u32 volume, u64 sector, u64 n, u32 kind)
{
	for (u64 b = sector / FBY_PAGE_SECTORS; b * FBY_PAGE_SECTORS < sector + n; b++)
		__atomic_fetch_sub(&in_flight[volume][b], kind, __ATOMIC_RELAXED);
}

/* Only one flush of an origin runs at a time, whoever sends it. */
static void flush_one(u32 volume)
{
	if (fby_fetch_add(&flushing[volume], 1u))
		fail("two flushes of one origin in flight", volume, 0, 0, 0, 0);
	sched_yield();
	fby_fetch_add(&flushing[volume], ~0u);
}

static void *io_thread(void *arg)
{
	u64 seed = 77 + (uintptr_t)arg;
	struct fby_io io;

	for (;;) {
		bool broken;

		pthread_mutex_lock(&queue.lock);
		while (queue.n == 0 && !queue.end)
			pthread_cond_wait(&queue.some, &queue.lock);
		if (queue.n == 0) {
			pthread_mutex_unlock(&queue.lock);
			return NULL;
		}
		io = queue.io[--queue.n]; /* the newest first: the origin may reorder */
		pthread_mutex_unlock(&queue.lock);
		broken = random_next(&seed) % 400 == 0;
		if (io.op != FBY_IO_FLUSH && io.sector + io.nsectors > VOLUME_SECTORS)
			fail("origin request out of range", io.volume, io.sector, io.nsectors, 0, 0);
		if (io.op == FBY_IO_FLUSH)
			flush_one(io.volume);
		in_flight_begin(io.volume, io.sector, io.nsectors, OF_DESTAGE);
		if (io.op != FBY_IO_FLUSH && !broken)
			origin_store(io.volume, io.sector, io.nsectors, io.op == FBY_IO_WRITE ? io.buf : NULL);
		in_flight_end(io.volume, io.sector, io.nsectors, OF_DESTAGE);
		if (broken)
			fby_fetch_add(&total_errors, 1ull);
		fby_destage_complete(pool, io.id, broken ? EIO : 0);
	}
}

static bool destage_idle(void)
{
	struct fby_volume_info info;

	for (u32 v = 0; v < NVOLUMES; v++)
		if (fby_volume_info(pool, (u16)v, &info) < 0 || info.destage != FBY_DESTAGE_IDLE)
			return false;
	return true;
}

/* The clock runs 1 ms a step, so back-offs pass quickly. */
static void *destage_thread(void *arg)
{
	u64 now = 0;

	(void)arg;
	for (;;) {
		struct fby_io io;
		u64 next;
		u32 wake = 0;
		int decision;

		pthread_mutex_lock(&admin);
		decision = fby_destage_step(pool, now += 1000000, &io, &next, &wake);
		pthread_mutex_unlock(&admin);
		if (decision < 0)
			fail("destage step", 0, 0, (u64)-decision, 0, 0);
		if (decision == FBY_ORIGIN) {
			pthread_mutex_lock(&queue.lock);
			queue.io[queue.n++] = io;
			pthread_cond_signal(&queue.some);
			pthread_mutex_unlock(&queue.lock);
		} else if (decision == FBY_DONE) {
			if (fby_load(&stopping) == 2 && destage_idle())
				return NULL;
			sched_yield();
		}
	}
}

/* --- writers and readers --------------------------------------------------- */

struct worker {
	pthread_t thread;
	u32 id;
	u32 version;
	u64 seed;
	u64 writes, reads, ranges;
	u64 buf[MAX_SECTORS * FBY_SECTOR / 8];
};

static void wait_a_little(struct worker *w, int decision)
{
	switch (decision) {
	case FBY_WAIT_BLOCK:
	case FBY_WAIT_SLOT:
		sched_yield();
		return;
	case FBY_WAIT_SPACE:
		fby_wait_prepare(pool, FBY_WAIT_SPACE);
		usleep(50);
		return;
	}
	fail("unexpected decision", 0, 0, w->id, (u64)(decision < 0 ? -decision : decision), 0);
}

/* Flushes through the gate; some of the flushes fail. */
static void pass_gate(struct worker *w, u32 volume, struct fby_flush *t)
{
	bool broken = random_next(&w->seed) % 50 == 0;
	u32 wake = 0;
	int decision;

	while ((decision = fby_flush_begin(pool, (u16)volume, t)) == FBY_WAIT_FLUSH)
		sched_yield();
	if (decision == FBY_ORIGIN) {
		flush_one(volume);
		decision = fby_flush_end(pool, t, broken ? EIO : 0, &wake);
		if (broken && decision == FBY_DONE)
			fail("a flush that failed is acknowledged", volume, 0, 0, 0, 0);
	}
	if (decision != FBY_DONE && decision != -FBY_E_ORIGIN_IO)
		fail("flush", volume, 0, (u64)-decision, 0, 0);
	fby_fetch_add(&total_flushes, 1ull);
}

static void write_through(struct worker *w, u32 volume, u64 sector, u32 n, const u64 *data)
{
	u32 done = 0, wake = 0;
	int decision;

	while ((decision = fby_write(pool, (u16)volume, sector, n, data, &done, &wake)) != FBY_DONE)
		wait_a_little(w, decision);
}

/* The origin fails now and then, and then the part goes through the cache. */
static void write_past(struct worker *w, u32 volume, u64 sector, u32 n, const u64 *data)
{
	while (n > 0) {
		bool broken = random_next(&w->seed) % 200 == 0;
		u32 least = 1 + (u32)random_next(&w->seed) % 16, wake = 0;
		struct fby_bypass b;
		int decision = fby_bypass_begin(pool, &b, (u16)volume, sector, n, least);

		if (decision != FBY_DONE && decision != FBY_CACHED) {
			wait_a_little(w, decision);
			continue;
		}
		if (b.nsectors == 0 || b.nsectors > n)
			fail("bypassed sectors", volume, sector, n, b.nsectors, (u64)decision);
		if (decision == FBY_DONE) {
			in_flight_begin(volume, sector, b.nsectors, PAST_CACHE);
			sched_yield();
			if (!broken)
				origin_store(volume, sector, b.nsectors, data);
			in_flight_end(volume, sector, b.nsectors, PAST_CACHE);
			fby_bypass_end(pool, &b, broken ? EIO : 0, &wake);
			if (least > 12) {
				struct fby_flush t = { 0 };

				if (least % 2) /* else for all */
					fby_flush_cover(pool, &t, &b);
				pass_gate(w, volume, &t);
			}
			fby_fetch_add(broken ? &total_errors : &total_bypasses, 1ull);
		}
		if (decision == FBY_CACHED || broken)
			write_through(w, volume, sector, b.nsectors, data);
		sector += b.nsectors;
		data += b.nsectors * (FBY_SECTOR / 8);
		n -= b.nsectors;
	}
}

static void write_some(struct worker *w, u32 volume, u64 sector, u32 n)
{
	for (u32 i = 0; i < n; i++) {
		sector_fill(&w->buf[i * (FBY_SECTOR / 8)], volume, sector + i, w->version);
		fby_store(&origin[volume].started[sector + i], w->version);
	}
	if (random_next(&w->seed) % 4)
		write_through(w, volume, sector, n, w->buf);
	else
		write_past(w, volume, sector, n, w->buf);
	for (u32 i = 0; i < n; i++)
		fby_store(&origin[volume].acked[sector + i], w->version);
	w->writes++;
}

static void clear_some(struct worker *w, u32 volume, u64 sector, u32 n, enum fby_kind kind)
{
	struct fby_flush t = { 0 };
	struct fby_bypass b;
	u64 done = 0;
	u32 wake = 0;
	int decision;

	for (u32 i = 0; i < n; i++)
		fby_store(&origin[volume].started[sector + i], w->version);
	while ((decision = fby_range(pool, (u16)volume, kind, sector, n, &done, &b, &wake)) != FBY_DONE) {
		if (decision == FBY_ORIGIN) {
			in_flight_begin(volume, sector + done, b.nsectors, PAST_CACHE);
			sched_yield();
			origin_store(volume, sector + done, b.nsectors, NULL);
			in_flight_end(volume, sector + done, b.nsectors, PAST_CACHE);
			fby_bypass_end(pool, &b, 0, &wake);
			if (kind == FBY_KIND_ZERO)
				fby_flush_cover(pool, &t, &b);
			done += b.nsectors;
		} else {
			wait_a_little(w, decision);
		}
	}
	if (t.state)
		pass_gate(w, volume, &t);
	for (u32 i = 0; i < n; i++)
		fby_store(&origin[volume].acked[sector + i], w->version);
	w->ranges++;
}

static void read_some(struct worker *w, u32 volume, u64 block, u32 first, u32 n)
{
	u64 sector = block * FBY_PAGE_SECTORS + first;
	u32 low[FBY_PAGE_SECTORS];
	u8 missing, lost;
	int decision;

	for (u32 i = 0; i < n; i++)
		low[i] = fby_load(&origin[volume].acked[sector + i]);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	decision = fby_read_block(pool, (u16)volume, block, first, n, w->buf, &missing, &lost);
	if (decision != FBY_DONE && decision != FBY_ORIGIN)
		fail("read", volume, sector, (u64)(decision < 0 ? -decision : decision), missing, lost);
	for (u32 i = 0; i < n; i++)
		if (missing >> (first + i) & 1)
			origin_copy_out(volume, sector + i, &w->buf[i * (FBY_SECTOR / 8)]);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	for (u32 i = 0; i < n; i++)
		sector_verify(&w->buf[i * (FBY_SECTOR / 8)], volume, sector + i, low[i],
			      fby_load(&origin[volume].started[sector + i]));
	w->reads++;
}

/* A run of sectors that the worker owns. */
static u64 own_sector(struct worker *w, u32 volume)
{
	u64 run = volume == 0 ? 2 : MAX_SECTORS;
	u64 runs = VOLUME_SECTORS / run / nthreads;

	return (random_next(&w->seed) % runs * nthreads + w->id) * run;
}

static void worker_step(struct worker *w)
{
	u64 r = random_next(&w->seed);
	u32 volume = r >> 8 & 1, n, first;
	u64 sector;

	switch (r % 4) {
	case 0:
	case 1:
		first = r >> 16 & 7;
		read_some(w, volume, (r >> 24) % (VOLUME_SECTORS / FBY_PAGE_SECTORS), first,
			  1 + (u32)(r >> 40) % (FBY_PAGE_SECTORS - first));
		return;
	}
	w->version++;
	sector = own_sector(w, volume);
	if (version_zeroes(1, w->version)) {
		sector = own_sector(w, 1);
		n = FBY_PAGE_SECTORS * (1 + (u32)(r >> 16) % 8);
		clear_some(w, 1, sector + (r >> 32 & 7) * FBY_PAGE_SECTORS, n,
			   r >> 40 & 1 ? FBY_KIND_DISCARD : FBY_KIND_ZERO);
	} else if (volume == 0) {
		n = 1 + (r >> 16 & 1);
		write_some(w, 0, sector + (n == 1 ? r >> 17 & 1 : 0), n);
	} else {
		n = r >> 16 & 1 ? MAX_SECTORS : 1 + (u32)(r >> 20) % MAX_SECTORS;
		write_some(w, 1, sector + (r >> 40) % (MAX_SECTORS - n + 1), n);
	}
}

static void *worker_thread(void *arg)
{
	struct worker *w = arg;

	while (!fby_load(&stopping))
		worker_step(w);
	return NULL;
}

/* --- phases ------------------------------------------------------------------ */

static struct worker worker[MAX_THREADS];
static void *pool_memory, *attach_memory[NVOLUMES];

static void check_ok(const char *what, int rc)
{
	if (rc < 0) {
		fprintf(stderr, "stress: %s: %s\n", what, fby_error_message(rc));
		abort();
	}
}

static void check_invariants(bool quiet)
{
	char text[256] = "";

	if (fby_check(pool, quiet, text, sizeof(text))) {
		fprintf(stderr, "stress: invariant: %s\n", text);
		abort();
	}
}

static void *recover_half(void *arg)
{
	struct fby_pool_info info;
	u32 half = (uintptr_t)arg != 0;

	fby_pool_info(pool, &info);
	check_ok("recovery of chunks",
		 half ? fby_recover_chunks(pool, info.sb.nchunks / 2, info.sb.nchunks - info.sb.nchunks / 2) :
			fby_recover_chunks(pool, 0, info.sb.nchunks / 2));
	return NULL;
}

/* Each phase has another copy kernel and persist method.  Under ThreadSanitizer it is the one that
 * accesses the media by atomic words, which the sanitizer understands. */
static void choose_media_ops(u32 phase)
{
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
	media.ops = fby_posix_media_ops(FBY_PERSIST_EADR, "generic");
	return;
#endif
#endif
	static const enum fby_persist persist[] = { FBY_PERSIST_NT, FBY_PERSIST_EADR, FBY_PERSIST_CLWB };
	const char *const *kernels = fby_posix_kernels();
	u32 n = 0;

	while (kernels[n])
		n++;
	media.ops = fby_posix_media_ops(persist[phase % 3], kernels[phase % n]);
}

static void pool_open(u32 phase)
{
	struct fby_options o = { .nslots = 3,
				 .statics = statics,
				 .verify = phase % 3,
				 .no_checksums = phase % 4 == 3,
				 .high_watermark = 70,
				 .low_watermark = 40,
				 .max_age_ns = phase % 3 == 1 ? 500000000ull : 0 };
	struct fby_recovery_report report;
	struct fby_probe probe;
	pthread_t half[2];
	u64 bytes;

	choose_media_ops(phase);
	fby_probe(&media, &probe);
	check_ok("probe", probe.error);
	bytes = fby_pool_bytes(&probe.sb, o.nslots);
	free(pool_memory);
	pool_memory = aligned_alloc(64, bytes);
	memset(pool_memory, 0, bytes);
	check_ok("open", fby_pool_open(&pool, pool_memory, bytes, &media, &o));
	for (u32 i = 0; i < 2; i++)
		pthread_create(&half[i], NULL, recover_half, (void *)(uintptr_t)i);
	for (u32 i = 0; i < 2; i++)
		pthread_join(half[i], NULL);
	check_ok("recovery", fby_recover_finish(pool, &report));
	if (report.dropped || report.damaged || report.holes || report.chunk_headers_lost)
		fail("recovery of a whole pool reports damage", 0, 0, report.dropped, report.damaged, report.holes);
	check_invariants(true);
}

static void volume_add(const char *name, bool is_static, u16 *index)
{
	struct fby_volume_spec s = { .identity = "memory",
				     .origin_sectors = VOLUME_SECTORS,
				     .block_size = 512,
				     .static_bytes = is_static ? SHARE_BYTES : 0 };

	strcpy(s.name, name);
	check_ok("volume add", fby_volume_add(pool, &s, index));
}

static void attach_all(void)
{
	for (u32 v = 0; v < NVOLUMES; v++) {
		struct fby_attach a = { .origin_sectors = VOLUME_SECTORS,
					.identity = "memory",
					.round_pages = 64,
					.nrequests = BUFFERS,
					.buffer_bytes = BUFFER_BYTES };

		a.mem_bytes = fby_volume_bytes(pool, a.round_pages, a.nrequests, a.buffer_bytes);
		free(attach_memory[v]);
		a.mem = attach_memory[v] = aligned_alloc(FBY_PAGE, (a.mem_bytes + FBY_PAGE - 1) & ~(u64)(FBY_PAGE - 1));
		memset(a.mem, 0, a.mem_bytes);
		check_ok("attach", fby_volume_attach(pool, (u16)v, &a));
	}
}

/* No thread runs, so every sector equals its last acknowledged version. */
static void verify_all(void)
{
	struct worker *w = &worker[0];

	for (u32 v = 0; v < NVOLUMES; v++)
		for (u64 b = 0; b < VOLUME_SECTORS / FBY_PAGE_SECTORS; b++)
			read_some(w, v, b, 0, FBY_PAGE_SECTORS);
}

static void verify_origins(void)
{
	for (u32 v = 0; v < NVOLUMES; v++)
		for (u64 s = 0; s < VOLUME_SECTORS; s++)
			sector_verify(&origin[v].word[s * (FBY_SECTOR / 8)], v, s, origin[v].acked[s],
				      origin[v].acked[s]);
}

/* During the others' I/O a third volume is added, read and removed, and options change. */
static void administer(void)
{
	struct fby_volume_info info;
	struct fby_pool_info pool_info;
	struct fby_options o;
	u16 index;

	pthread_mutex_lock(&admin);
	volume_add("guest", false, &index);
	fby_pool_options(pool, &o);
	o.verify = (o.verify + 1) % 3;
	o.high_watermark = o.high_watermark == 60 ? 70 : 60;
	o.max_age_ns = o.max_age_ns ? 0 : 1000000000;
	o.idle_ns = o.idle_ns ? 0 : 1000000000;
	check_ok("options", fby_pool_set_options(pool, &o));
	pthread_mutex_unlock(&admin);
	fby_volume_info(pool, 0, &info);
	fby_volume_info(pool, 1, &info);
	fby_pool_info(pool, &pool_info);
	check_invariants(false);
	pthread_mutex_lock(&admin);
	check_ok("drain", fby_volume_drain(pool, pool_info.seq / 64 % NVOLUMES, true));
	check_ok("volume remove", fby_volume_remove(pool, index, false));
	pthread_mutex_unlock(&admin);
}

static pthread_t helper[IO_THREADS + 1];

static void start_helpers(void)
{
	queue.end = false;
	for (u32 i = 0; i < IO_THREADS; i++)
		pthread_create(&helper[i], NULL, io_thread, (void *)(uintptr_t)i);
	pthread_create(&helper[IO_THREADS], NULL, destage_thread, NULL);
}

static bool all_clean(void)
{
	bool clean = true;

	pthread_mutex_lock(&admin);
	for (u32 v = 0; v < NVOLUMES; v++)
		clean = clean && fby_volume_clean(pool, (u16)v);
	pthread_mutex_unlock(&admin);
	return clean;
}

static void drain_all(bool on)
{
	pthread_mutex_lock(&admin);
	for (u32 v = 0; v < NVOLUMES; v++)
		check_ok("drain", fby_volume_drain(pool, (u16)v, on));
	pthread_mutex_unlock(&admin);
}

/* The destage thread ends when nothing is left to do or in flight. */
static void stop_helpers(bool drain)
{
	drain_all(drain);
	while (drain && !all_clean())
		usleep(100);
	fby_store(&stopping, 2u);
	pthread_join(helper[IO_THREADS], NULL);
	pthread_mutex_lock(&queue.lock);
	queue.end = true;
	pthread_cond_broadcast(&queue.some);
	pthread_mutex_unlock(&queue.lock);
	for (u32 i = 0; i < IO_THREADS; i++)
		pthread_join(helper[i], NULL);
}

static u64 now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (u64)t.tv_sec * 1000 + (u64)t.tv_nsec / 1000000;
}

/* A race that ThreadSanitizer must report, to show that it is on. */
static u32 raced;

static void *race_thread(void *arg)
{
	for (u32 i = 0; i < 1000; i++)
		raced += i + (u32)(uintptr_t)arg;
	return NULL;
}

static int race(void)
{
	pthread_t other;

	pthread_create(&other, NULL, race_thread, NULL);
	race_thread(&other);
	pthread_join(other, NULL);
	printf("stress: raced to %u\n", raced);
	return 0;
}

#ifdef FBY_PLANTED_BUGS
static void plant(const char *name)
{
	for (fby_planted = 1; fby_planted < FBY_BUG_COUNT; fby_planted++)
		if (!strcmp(fby_planted_name(fby_planted), name))
			return;
	fprintf(stderr, "stress: no planted bug is called %s\n", name);
	exit(2);
}
#endif

int main(int argc, char **argv)
{
	u64 seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 5;
	u64 seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	struct fby_format f = { .uuid = { 1, 2, 3 }, .chunk_size = CHUNK_BYTES, .nvolumes = 4 };
	u64 end = now_ms() + seconds * 1000;
	u32 phase = 0;
	u16 index;

	if (argc == 2 && !strcmp(argv[1], "race"))
		return race();
	statics = argc > 3 && !strcmp(argv[argc - 1], "statics");
	argc -= statics;
#ifdef FBY_PLANTED_BUGS
	if (argc == 4)
		plant(argv[3]);
	argc = argc == 4 ? 3 : argc;
#endif
	if (argc > 3 || seconds == 0) {
		fprintf(stderr, "usage: stress [SECONDS SEED [statics]] | stress race\n");
		return 2;
	}
	f.static_bytes = statics ? NVOLUMES * SHARE_BYTES : 0;
	media.size = MEDIA_BYTES + f.static_bytes;
	media.base = aligned_alloc(FBY_PAGE, media.size);
	choose_media_ops(0);
	check_ok("format", fby_format(&media, &f));
	for (u32 i = 0; i < nthreads; i++) {
		worker[i].id = i;
		worker[i].seed = seed * 1000003 + i * 7919 + 1;
	}
	pool_open(phase);
	volume_add("shared", statics, &index);
	volume_add("runs", statics, &index);
	do {
		u64 until = now_ms() + 1000;

		attach_all();
		verify_all();
		fby_store(&stopping, 0u);
		start_helpers();
		for (u32 i = 0; i < nthreads; i++)
			pthread_create(&worker[i].thread, NULL, worker_thread, &worker[i]);
		while (now_ms() < until) {
			usleep(20000);
			administer();
		}
		fby_store(&stopping, 1u);
		for (u32 i = 0; i < nthreads; i++)
			pthread_join(worker[i].thread, NULL);
		verify_all();
		stop_helpers(phase % 3 == 2);
		if (phase % 3 == 2)
			verify_origins();
		check_invariants(true);
		verify_all();
		if (phase % 2)
			check_ok("close", fby_pool_close(pool));
		pool_open(++phase);
	} while (now_ms() < end);
	for (u32 i = 0; i < nthreads; i++) {
		total_writes += worker[i].writes;
		total_reads += worker[i].reads;
		total_ranges += worker[i].ranges;
	}
	printf("stress: seed %" PRIu64 ", %u phases, %" PRIu64 " writes, %" PRIu64 " past the cache, %" PRIu64
	       " reads, %" PRIu64 " discards and zeroes, %" PRIu64 " flushes, %" PRIu64
	       " origin errors: all sectors as acknowledged\n",
	       seed, phase, total_writes, total_bypasses, total_reads, total_ranges, total_flushes, total_errors);
	return 0;
}
