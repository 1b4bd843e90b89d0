// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_threads.c - threads that sync pages of one frame while a thread writes them back and gives
 * the frame up.
 *
 * Goal: a clean page is in the file as its last sync left it.  No bit is lost.  All acknowledged
 * data of a frame that was given up is in the file.
 * Method: rounds.  In each, three threads store to pages that they share and sync them while one
 * writes back.  Then all threads stop, and clean pages must equal the file's.  In most rounds the
 * frame is given up at a moment when it is clean, during the syncs.  Under the thread sanitizer
 * the words must be free of races; pages are atomic here, since programs may race on them.
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
static u64 syncs, writes_back, stayed, refused, given_up, kept_open;
static u64 acknowledged[WRITERS][PAGES]; /* the values stored before the last acknowledged sync */

static void no_flush(void *host, const void *p, size_t n)
{
	(void)host, (void)p, (void)n;
}

static void no_fence(void *host)
{
	(void)host;
}

static const struct fby_frame_port no_port = { no_flush, no_fence };
static struct fby_frame frame = { .words = words, .memory = (u8 *)memory, .port = &no_port,
					.npages = PAGES, .limit = PAGES, .seed = 77 };

static bool giving_up(void)
{
	return rounds_begun % 16 != 0;
}

static bool store_and_sync(u32 who, u32 page)
{
	struct fby_pages pages = { { 1ull << page } };
	u64 now = __atomic_add_fetch(&memory[page][0], 1, __ATOMIC_RELAXED);
	int rc = fby_frame_sync(&frame, &pages);

	if (rc == -FBY_E_NO_MAP && giving_up())
		return false;
	if (rc)
		fail("a sync was refused");
	acknowledged[who][page] = now;
	return true;
}

static void *writer(void *argument)
{
	u32 who = (u32)(uintptr_t)argument;
	u64 state = (u64)who << 40, n = 0, no = 0;

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!fby_load(&going))
			break;
		for (u32 i = 0; i < (giving_up() ? 50 : 2000); i++) {
			if (!store_and_sync(who, (u32)(fby_mix(++state) % PAGES))) {
				no++;
				break;
			}
			/* Pauses let the frame become clean, so that it can be given up. */
			if (++n % 32 == 0 || giving_up())
				sched_yield();
		}
		fby_fetch_add(&at_work, ~0u);
		pthread_barrier_wait(&barrier);
	}
	__atomic_fetch_add(&syncs, n, __ATOMIC_RELAXED);
	__atomic_fetch_add(&refused, no, __ATOMIC_RELAXED);
	return NULL;
}

static void write_once(u64 *state)
{
	struct fby_pages pages = { { giving_up() ? ~0ull : fby_mix(++*state) | fby_mix(*state + 1) } };

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

/* A use of the frame begins: pages without an earlier sync are as in the file. */
static void words_begin(void)
{
	frame.seed++;
	for (u32 page = 0; page < PAGES; page++)
		memory[page][0] = in_file[page];
	for (u32 i = 0; i < PAGES / 16; i++)
		fby_store(&words[i], fby_frame_word(frame.seed, i, 0));
}

/* No other thread closes or opens words. */
static bool give_up(void)
{
	static const struct fby_pages none;

	if (fby_frame_close(&frame, &none, false)) {
		given_up++;
		return true;
	}
	kept_open++;
	for (u32 i = 0; i < PAGES / 16; i++)
		if ((u32)fby_load(&words[i]) == FBY_MW_CLOSED)
			fail("a frame that was not given up has a closed word");
	return false;
}

static void serve(u64 *state)
{
	u32 before = (u32)(fby_mix(++*state) % 30);
	bool open = true;

	while (fby_load(&at_work) && open) {
		write_once(state);
		if (giving_up() && before == 0)
			open = !give_up();
		else if (giving_up())
			before--, sched_yield();
	}
	while (open && giving_up()) {
		write_once(state);
		open = !give_up();
	}
}

static void judge(void)
{
	struct fby_pages dirty, unknown;

	for (u32 page = 0; page < PAGES && giving_up(); page++)
		for (u32 who = 0; who < WRITERS; who++)
			if (acknowledged[who][page] > in_file[page])
				fail("page %u is given up, and in the file is %llu, not %llu", page,
				     (unsigned long long)in_file[page], (unsigned long long)acknowledged[who][page]);

	fby_frame_dirty(&frame, &dirty, &unknown);
	if (unknown.bit[0])
		fail("a word is damaged");
	for (u32 page = 0; page < PAGES && !giving_up(); page++)
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
	words_begin();
	for (uintptr_t i = 0; i < WRITERS; i++)
		pthread_create(&thread[i], NULL, writer, (void *)i);
	fby_store(&going, 1u);
	while (!wrong[0] && time(NULL) < end) {
		rounds_begun++;
		fby_store(&at_work, WRITERS);
		pthread_barrier_wait(&barrier);
		serve(&state);
		pthread_barrier_wait(&barrier);
		judge();
		if (giving_up())
			words_begin();
	}
	fby_store(&going, 0u);
	pthread_barrier_wait(&barrier);
	for (u32 i = 0; i < WRITERS; i++)
		pthread_join(thread[i], NULL);
	if (wrong[0]) {
		printf("map: threads: %s\n", wrong);
		return 1;
	}
	printf("map: %u rounds, %llu syncs beside %llu writes back, after which %llu pages stayed dirty; given up %llu "
	       "times, not so %llu times, %llu syncs refused\n",
	       rounds_begun, (unsigned long long)syncs, (unsigned long long)writes_back, (unsigned long long)stayed,
	       (unsigned long long)given_up, (unsigned long long)kept_open, (unsigned long long)refused);
	return 0;
}
