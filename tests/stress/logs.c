// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * logs.c - many threads append to the logs of one pool, for ThreadSanitizer and
 * AddressSanitizer, and for what they cannot see.
 *
 * Method: each entry has its appender and its number among the entries of that appender.  All media
 * operations go through this file, which gives each header a number when it is stored and another
 * when its fence is done.  No header of a generation may be stored before the last of the
 * generations before it is durable.  One thread syncs.  After each phase all stop, and fby_check
 * runs.  The pool is closed or simply left, opened again, and recovered by two threads.  Each log
 * is claimed and replayed: all entries that were acknowledged and are unsynced, in order, each
 * once, and no other.  Then the log begins anew.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/log.h"
#include "medium/planted.h"

#define MEDIA_BYTES (6u << 20)
#define CHUNK_BYTES (64u << 10)
#define LOGS 3u
#define MAX_THREADS 16u
#define MAX_ENTRIES 40000u /* for each thread in a phase */
#define MAX_BODY 6000u

struct appended {
	struct fby_log_name name;
	u64 txg;
	u32 log;
	u32 length;
	u64 stored, durable; /* numbers of the clock below */
	u32 replayed;
};

static struct appended *list[MAX_THREADS];
static u32 nlist[MAX_THREADS];
static struct fby_pool *pool;
static struct fby_media media;
static const struct fby_media_ops *under;
static pthread_mutex_t admin = PTHREAD_MUTEX_INITIALIZER;
static u64 synced[LOGS], clock_now, total, total_waits;
static u32 stopping, nthreads = 4;
static u16 log_of[LOGS];
static __thread u64 stored_at, durable_at;

static void fail(const char *what, u64 log, u64 gen, u64 id)
{
	fprintf(stderr, "stress: %s: log %" PRIu64 " entry (%" PRIu64 ", %" PRIu64 ")\n", what, log, gen, id);
	abort();
}

static u64 tick(void)
{
	return __atomic_add_fetch(&clock_now, 1, __ATOMIC_RELAXED);
}

/* --- media ------------------------------------------------------------------------- */

static void op_write(struct fby_media *m, u64 at, const void *src, size_t n)
{
	u32 magic;

	memcpy(&magic, src, 4);
	if (n == FBY_ENTRY_BYTES && magic == FBY_ENTRY_MAGIC)
		stored_at = tick();
	under->write(m, at, src, n);
}

static u32 op_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc)
{
	return under->write_crc(m, at, src, n, crc);
}

static void op_fence(struct fby_media *m, u64 at, size_t n)
{
	under->fence(m, at, n);
	durable_at = tick();
}

static int op_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	return under->read_crc(m, dst, at, n, crc);
}

static const struct fby_media_ops ops = { op_write, op_write_crc, op_fence, op_read_crc };

/* --- entries ------------------------------------------------------------------------- */

static u64 random_next(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Thread, number and length determine the body. */
static void body_of(u32 thread, u32 n, u32 length, u8 *out)
{
	u32 head[2] = { thread, n };

	for (u32 i = 0; i < length; i++)
		out[i] = (u8)(thread * 31 + n * 7 + i * 13 + (i >> 8));
	memcpy(out, head, sizeof(head));
}

static void *writer(void *arg)
{
	u32 thread = (u32)(uintptr_t)arg;
	u64 state = 0x9e3779b97f4a7c15ull * (thread + 1) + tick();
	u8 body[MAX_BODY];

	while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED) && nlist[thread] < MAX_ENTRIES) {
		struct appended *a = &list[thread][nlist[thread]];
		u64 r = random_next(&state);
		struct fby_vec vec[2];
		u32 wake = 0, cut;
		int decision;

		a->log = (u32)(r % LOGS);
		a->length = r >> 8 & 15 ? 8 + (r >> 16) % 300 : 8 + (r >> 16) % (MAX_BODY - 8);
		a->txg = __atomic_load_n(&synced[a->log], __ATOMIC_RELAXED) + 1 + (r >> 40) % 3;
		a->replayed = 0;
		body_of(thread, nlist[thread], a->length, body);
		cut = (u32)((r >> 24) % a->length);
		vec[0] = (struct fby_vec){ body, cut };
		vec[1] = (struct fby_vec){ body + cut, a->length - cut };
		decision = fby_log_append(pool, log_of[a->log], a->txg, r >> 60 < 5, vec, 2, &a->name, &wake);
		if (decision == FBY_DONE) {
			a->stored = stored_at;
			a->durable = durable_at;
			nlist[thread]++;
		} else if (decision == -FBY_E_LOG_OBSOLETE) {
			continue; /* synced meanwhile */
		} else if (decision == FBY_WAIT_SLOT || decision == FBY_WAIT_SPACE) {
			__atomic_fetch_add(&total_waits, 1, __ATOMIC_RELAXED);
			sched_yield();
		} else {
			fail(fby_error_name(decision), a->log, a->txg, (u64)-decision);
		}
	}
	return NULL;
}

static void *syncer(void *arg)
{
	u64 now = 0, next, wake_ns;
	u32 wake = 0, log = 0;
	struct fby_io io;

	(void)arg;
	while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
		pthread_mutex_lock(&admin);
		if (fby_log_sync(pool, log_of[log], synced[log] + 1, NULL, &wake) != FBY_DONE)
			fail("sync", log, synced[log] + 1, 0);
		__atomic_store_n(&synced[log], synced[log] + 1, __ATOMIC_RELAXED);
		now += 60000000;
		if (fby_destage_step(pool, now, &io, &next, &wake) < 0)
			fail("step", log, 0, 0);
		pthread_mutex_unlock(&admin);
		log = (log + 1) % LOGS;
		wake_ns = 200000;
		nanosleep(&(struct timespec){ .tv_nsec = (long)wake_ns }, NULL);
	}
	return NULL;
}

/* --- what must hold -------------------------------------------------------------------- */

static int by_place(const void *x, const void *y)
{
	const struct appended *a = *(struct appended *const *)x, *b = *(struct appended *const *)y;

	if (a->log != b->log)
		return a->log < b->log ? -1 : 1;
	if (a->name.gen != b->name.gen)
		return a->name.gen < b->name.gen ? -1 : 1;
	return a->name.id < b->name.id ? -1 : a->name.id > b->name.id;
}

/* Names are unique, and a generation is stored after those before it are durable. */
static void check_generations(void)
{
	u32 n = 0, at = 0;
	struct appended **all;
	u64 durable = 0, newest = 0;

	for (u32 t = 0; t < nthreads; t++)
		n += nlist[t];
	all = malloc((n + 1) * sizeof(*all));
	for (u32 t = 0; t < nthreads; t++)
		for (u32 i = 0; i < nlist[t]; i++)
			all[at++] = &list[t][i];
	qsort(all, n, sizeof(*all), by_place);
	for (u32 i = 0; i < n; i++) {
		struct appended *a = all[i];

		if (i > 0 && by_place(&all[i - 1], &all[i]) == 0)
			fail("two entries of one name", a->log, a->name.gen, a->name.id);
		if (i == 0 || all[i - 1]->log != a->log)
			durable = newest = 0;
		else if (all[i - 1]->name.gen != a->name.gen)
			durable = newest;
		if (a->stored < durable)
			fail("stored before the generation before it was durable", a->log, a->name.gen, a->name.id);
		if (a->durable > newest)
			newest = a->durable;
	}
	free(all);
	total += n;
}

struct replaying {
	u32 log;
	u64 gen, id, n;
};

static enum fby_log_verdict replay(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	struct replaying *r = arg;
	u8 body[MAX_BODY + 64], want[MAX_BODY];
	struct appended *a;
	u32 head[2], length;

	(void)next;
	if (node->gen < r->gen || (node->gen == r->gen && node->id <= r->id))
		fail("replayed out of order", r->log, node->gen, node->id);
	r->gen = node->gen;
	r->id = node->id;
	if (fby_log_read(pool, log_of[r->log], node, body, sizeof(body), &length) != FBY_DONE)
		fail("cannot be read", r->log, node->gen, node->id);
	memcpy(head, body, sizeof(head));
	if (length < 8 || head[0] >= nthreads || head[1] >= nlist[head[0]])
		fail("was never appended", r->log, node->gen, node->id);
	a = &list[head[0]][head[1]];
	body_of(head[0], head[1], a->length, want);
	if (a->log != r->log || a->length != length || memcmp(want, body, length) != 0 || a->name.gen != node->gen ||
	    a->name.id != node->id || a->txg != node->txg)
		fail("is not what was appended", r->log, node->gen, node->id);
	if (a->txg <= synced[r->log])
		fail("is obsolete", r->log, node->gen, node->id);
	if (a->replayed++)
		fail("was replayed before", r->log, node->gen, node->id);
	r->n++;
	return FBY_LOG_APPLIED;
}

static void replay_log(u32 log)
{
	struct replaying r = { .log = log };
	struct fby_log_result result;
	struct fby_log_info info;
	struct fby_log_node *node;
	u64 n;

	if (fby_log_info(pool, log_of[log], &info) != FBY_DONE || info.missing)
		fail("entries are missing", log, info.missing, 0);
	n = info.found;
	node = malloc((n + 1) * sizeof(*node));
	if (fby_log_claim(pool, log_of[log], 0, NULL, node, &n, &result) != FBY_DONE || result.end != FBY_LOG_COMPLETE)
		fail("a claim finds some missing", log, result.witness.gen, result.witness.id);
	if (fby_log_replay(pool, log_of[log], node, n, replay, &r, &result) != FBY_DONE ||
	    result.end != FBY_LOG_COMPLETE)
		fail("replay does not end well", log, result.witness.gen, result.witness.id);
	free(node);
	for (u32 t = 0; t < nthreads; t++)
		for (u32 i = 0; i < nlist[t]; i++)
			if (list[t][i].log == log && list[t][i].txg > synced[log] && !list[t][i].replayed)
				fail("was acknowledged and not replayed", log, list[t][i].name.gen,
				     list[t][i].name.id);
}

/* --- phases ------------------------------------------------------------------------------ */

static void *scan(void *arg)
{
	u32 n = media.size > 0 ? (u32)((media.size - CHUNK_BYTES) / CHUNK_BYTES) : 0, half = (u32)(uintptr_t)arg;
	struct fby_pool_info info;

	fby_pool_info(pool, &info);
	n = info.sb.nchunks;
	if (fby_recover_chunks(pool, half ? n / 2 : 0, half ? n - n / 2 : n / 2))
		fail("scan", half, 0, 0);
	return NULL;
}

static void open_pool(void *mem, u64 bytes)
{
	struct fby_options o = { .nslots = 3 };
	struct fby_recovery_report report;
	pthread_t t[2];

	memset(mem, 0, bytes);
	if (fby_pool_open(&pool, mem, bytes, &media, &o))
		fail("open", 0, 0, 0);
	for (u32 i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, scan, (void *)(uintptr_t)i);
	for (u32 i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	if (fby_recover_finish(pool, &report) || report.holes)
		fail("recovery", report.holes, 0, 0);
}

static void begin(u32 log, u32 phase)
{
	u8 guid[16] = { (u8)(log + 1), (u8)phase, (u8)(phase >> 8) };
	u32 wake = 0;

	if (fby_log_create(pool, log_of[log], guid, synced[log], NULL, &wake))
		fail("create", log, phase, 0);
}

static void check(void)
{
	char text[256];

	if (fby_check(pool, true, text, sizeof(text))) {
		fprintf(stderr, "stress: %s\n", text);
		abort();
	}
}

static void phase_run(void)
{
	pthread_t t[MAX_THREADS + 1];

	__atomic_store_n(&stopping, 0, __ATOMIC_RELAXED);
	for (u32 i = 0; i < nthreads; i++) {
		nlist[i] = 0;
		pthread_create(&t[i], NULL, writer, (void *)(uintptr_t)i);
	}
	pthread_create(&t[nthreads], NULL, syncer, NULL);
	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
	__atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
	for (u32 i = 0; i <= nthreads; i++)
		pthread_join(t[i], NULL);
}

static void plant(const char *name)
{
#ifdef FBY_PLANTED_BUGS
	for (u32 id = 1; id < FBY_BUG_COUNT; id++)
		if (strcmp(fby_planted_name(id), name) == 0)
			fby_planted = id;
#else
	(void)name;
#endif
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	struct fby_format f = { .uuid = { 9 }, .chunk_size = CHUNK_BYTES, .nvolumes = 4 };
	struct fby_probe probe;
	u32 phase = 0, wake = 0;
	time_t end;
	void *mem;
	u64 bytes;

	nthreads = argc > 2 ? (u32)atoi(argv[2]) : 4;
	if (nthreads < 1 || nthreads > MAX_THREADS)
		return 2;
	if (argc > 3)
		plant(argv[3]);
	under = fby_posix_media_ops(FBY_PERSIST_CLWB, NULL);
	media = (struct fby_media){ .base = aligned_alloc(4096, MEDIA_BYTES), .size = MEDIA_BYTES, .ops = &ops };
	memset(media.base, 0, MEDIA_BYTES);
	for (u32 i = 0; i < nthreads; i++)
		list[i] = calloc(MAX_ENTRIES + 1, sizeof(struct appended));
	if (fby_format(&media, &f))
		fail("format", 0, 0, 0);
	fby_probe(&media, &probe);
	bytes = (fby_pool_bytes(&probe.sb, 3) + 4095) & ~4095ull;
	mem = aligned_alloc(4096, bytes);
	open_pool(mem, bytes);
	for (u32 log = 0; log < LOGS; log++) {
		char name[64] = { 'l', (char)('0' + log) };

		if (fby_log_add(pool, name, 0, &log_of[log]))
			fail("add", log, 0, 0);
		begin(log, 0);
	}
	end = time(NULL) + (time_t)seconds;
	do {
		phase_run();
		check();
		check_generations();
		if (phase % 2 && fby_pool_close(pool))
			fail("close", phase, 0, 0);
		open_pool(mem, bytes);
		for (u32 log = 0; log < LOGS; log++)
			replay_log(log);
		check();
		phase++;
		for (u32 log = 0; log < LOGS; log++) {
			if (fby_log_destroy(pool, log_of[log], NULL, &wake))
				fail("destroy", log, phase, 0);
			begin(log, phase);
		}
		check();
	} while (time(NULL) < end);
	printf("stress: %u phases, %" PRIu64 " entries, %" PRIu64 " waits\n", phase, total, total_waits);
	return total ? 0 : 1;
}
