// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_threads.c - threads that sync pages of one frame beside a thread that writes them back.
 *
 * Goal: a page that is not dirty is in the file as its last sync left it; no lost bit.
 * Method: rounds; in each, three threads store to pages they share and sync them while one
 * writes back; then all is quiet, and what is clean has to be the file's.  Under the thread
 * sanitizer the words must be free of races; pages are atomic here, since programs race on
 * them by right.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "map_test.h"

#define WRITERS 3u
#define PAGES 48u /* three words, so that threads share them */

static u64 words[FBY_FRAME_WORDS] __attribute__((aligned(64)));
static u64 memory[FRAME_PAGES * 2][FBY_PAGE / 8], in_file[PAGES];
static u32 going, rounds_begun, at_work;
static pthread_barrier_t barrier;
static u64 syncs, writes_back, stayed;

static void no_flush(void *host, const void *p, size_t n)
{
	(void)host, (void)p, (void)n;
}

static void no_fence(void *host)
{
	(void)host;
}

static const struct fby_frame_port no_port = { no_flush, no_fence };
static const struct fby_frame frame = { .words = words, .memory = (u8 *)memory, .port = &no_port,
					.npages = PAGES, .limit = PAGES, .seed = 77 };

static void *writer(void *argument)
{
	u64 state = (uintptr_t)argument, n = 0;

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!fby_load(&going))
			break;
		for (u32 i = 0; i < 2000; i++) {
			struct fby_pages pages = { { 0 } };
			u32 page = (u32)(fby_mix(++state) % PAGES);

			__atomic_fetch_add(&memory[page][0], 1, __ATOMIC_RELAXED);
			fby_pages_set(&pages, page, 1);
			if (fby_frame_sync(&frame, &pages))
				fail("a sync was refused");
			if (++n % 32 == 0)
				sched_yield();
		}
		fby_fetch_add(&at_work, ~0u);
		pthread_barrier_wait(&barrier);
	}
	__atomic_fetch_add(&syncs, n, __ATOMIC_RELAXED);
	return NULL;
}

static void write_once(u64 *state)
{
	struct fby_pages pages = { { fby_mix(++*state) | fby_mix(*state + 1) } };

	if (!fby_frame_write_begin(&frame, &pages))
		return;
	for (u32 page = 0; page < PAGES; page++)
		if (fby_pages_has(&pages, page))
			in_file[page] = __atomic_load_n(&memory[page][0], __ATOMIC_RELAXED);
	if (++*state % 2)
		sched_yield(); /* as a file takes its time */
	stayed += fby_frame_write_end(&frame, &pages);
	writes_back++;
}

static void judge(void)
{
	struct fby_pages dirty, unknown;

	fby_frame_dirty(&frame, &dirty, &unknown);
	if (unknown.bit[0])
		fail("a word is damaged");
	for (u32 page = 0; page < PAGES; page++)
		if (!fby_pages_has(&dirty, page) && in_file[page] != memory[page][0])
			fail("page %u is clean, and in the file is %llu, not %llu", page,
			     (unsigned long long)in_file[page], (unsigned long long)memory[page][0]);
}

int threads_run(u32 seconds)
{
	time_t end = time(NULL) + seconds;
	pthread_t thread[WRITERS];
	u64 state = 9;

	pthread_barrier_init(&barrier, NULL, WRITERS + 1);
	for (u32 i = 0; i < PAGES / 16; i++)
		words[i] = fby_frame_word(frame.seed, i, 0);
	for (uintptr_t i = 0; i < WRITERS; i++)
		pthread_create(&thread[i], NULL, writer, (void *)(i << 40));
	fby_store(&going, 1u);
	while (!wrong[0] && time(NULL) < end) {
		rounds_begun++;
		fby_store(&at_work, WRITERS);
		pthread_barrier_wait(&barrier);
		while (fby_load(&at_work))
			write_once(&state);
		pthread_barrier_wait(&barrier);
		judge();
	}
	fby_store(&going, 0u);
	pthread_barrier_wait(&barrier);
	for (u32 i = 0; i < WRITERS; i++)
		pthread_join(thread[i], NULL);
	if (wrong[0]) {
		printf("map: threads: %s\n", wrong);
		return 1;
	}
	printf("map: %u rounds, %llu syncs beside %llu writes back, after which %llu pages stayed dirty\n", rounds_begun,
	       (unsigned long long)syncs, (unsigned long long)writes_back, (unsigned long long)stayed);
	return 0;
}
