// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A program on forebay_map.h that reports what it has synced and checks the file later.
 *
 *	mapload load POOL FILE FIRST	for ever; values begin at FIRST
 *	mapload verify FILE SYNCED	SYNCED has lines as load has said them
 *	mapload features POOL FILE	what of the kernel is used
 *
 * Two threads store to pages of their own: of the whole file, and mostly of a few segments,
 * so that others are quiet.  A page is full of one number: a value that rises, and the page.
 */
#include <err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "forebay_map.h"

#define PAGE FOREBAY_MAP_PAGE
#define PAGE_BITS 16
#define BATCH 6

static struct forebay_map_file *file;
static uint64_t *mapped;
static uint64_t npages;
static atomic_ullong next_value;

static void must(int code, const char *what)
{
	if (code)
		errx(1, "%s: %s", what, forebay_map_error());
}

static void open_file(const char *pool_path, const char *path)
{
	struct forebay_map_pool *pool;
	uint64_t size;

	must(forebay_map_pool_open(pool_path, NULL, NULL, &pool), "open the pool");
	must(forebay_map_file_open(pool, path, 0, &file), "open the file");
	must(forebay_map_size(file, &size), "its size");
	mapped = forebay_map_address(file);
	npages = size / PAGE;
	if (!npages || npages >> PAGE_BITS)
		errx(1, "a file of %llu pages", (unsigned long long)npages);
}

static void fill(uint64_t page, uint64_t value)
{
	uint64_t word = value << PAGE_BITS | page;
	size_t i;

	for (i = 0; i < PAGE / 8; i++)
		mapped[page * (PAGE / 8) + i] = word;
}

static void *work(void *arg)
{
	uint64_t thread = (uintptr_t)arg, random = getpid() * 2 + thread + 1;

	for (;;) {
		uint64_t value = atomic_fetch_add(&next_value, 1), pages[BATCH];
		size_t n, i, length = 0;
		char said[BATCH * 48];
		int whole;

		random = random * 6364136223846793005u + 1442695040888963407u;
		n = 1 + (random >> 33) % BATCH;
		whole = (random >> 40) % 8 == 0;
		for (i = 0; i < n; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			pages[i] = (random >> 20) % (npages / 2) * 2 + thread;
			if ((random >> 50) % 8)
				pages[i] %= 1024;
			fill(pages[i], value);
		}
		if (whole)
			must(forebay_map_sync(file, 0, FOREBAY_MAP_REST), "sync");
		for (i = 0; i < n; i++) {
			if (!whole)
				must(forebay_map_sync(file, pages[i] * PAGE, PAGE), "sync");
			length += sprintf(said + length, "synced %llu %llu .\n",
					  (unsigned long long)pages[i], (unsigned long long)value);
		}
		/* One write reports a line as a whole. */
		if (write(1, said, length) != (ssize_t)length)
			err(1, "write");
		usleep(20000);
	}
	return NULL;
}

static int load(const char *pool, const char *path, uint64_t first)
{
	pthread_t threads[2];
	uintptr_t i;

	atomic_store(&next_value, first);
	open_file(pool, path);
	for (i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			errx(1, "a thread");
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return 1;
}

/* Each word belongs to that page, or is zero if the page was never stored to. */
static void check_page(const uint64_t *words, uint64_t page, uint64_t synced)
{
	size_t i;

	for (i = 0; i < PAGE / 8; i++) {
		uint64_t value = words[i] >> PAGE_BITS;

		if (words[i] && (words[i] & ((1 << PAGE_BITS) - 1)) != page)
			errx(1, "page %llu has what is not its own: %llx",
			     (unsigned long long)page, (unsigned long long)words[i]);
		/* The page may have been stored to since, and the rest of a page that was being
		 * stored is older. */
		if (value < synced)
			errx(1, "page %llu: %llu was synced, %llu is there",
			     (unsigned long long)page, (unsigned long long)synced,
			     (unsigned long long)value);
	}
}

static int verify(const char *path, const char *synced_path)
{
	static uint64_t synced[1 << PAGE_BITS];
	unsigned long long page, value, judged = 0, last = 0;
	FILE *lines = fopen(synced_path, "r"), *f = fopen(path, "r");
	uint64_t words[PAGE / 8];
	char line[256];

	if (!lines || !f)
		err(1, "%s or %s", path, synced_path);
	while (fgets(line, sizeof(line), lines)) {
		char end;

		if (sscanf(line, "synced %llu %llu %c", &page, &value, &end) != 3 || end != '.')
			continue;
		if (page >= 1 << PAGE_BITS)
			errx(1, "%s", line);
		if (synced[page] < value)
			synced[page] = value;
		if (last < value)
			last = value;
	}
	for (page = 0; fread(words, sizeof(words), 1, f) == 1; page++) {
		check_page(words, page, synced[page]);
		judged += synced[page] != 0;
		synced[page] = 0;
	}
	for (; page < 1 << PAGE_BITS; page++)
		if (synced[page])
			errx(1, "page %llu is not there", page);
	printf("%llu pages that were synced are there, the last value %llu\n", judged, last);
	return 0;
}

static int features(const char *pool, const char *path)
{
	uint32_t has;

	open_file(pool, path);
	must(forebay_map_features(file, &has), "features");
	printf("used of the kernel: faults %d, watch %d, scan %d\n", !!(has & FOREBAY_MAP_FAULTS),
	       !!(has & FOREBAY_MAP_WATCH), !!(has & FOREBAY_MAP_SCAN));
	must(forebay_map_file_close(file), "close");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "load"))
		return load(argv[2], argv[3], strtoull(argv[4], NULL, 10));
	if (argc == 4 && !strcmp(argv[1], "verify"))
		return verify(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "features"))
		return features(argv[2], argv[3]);
	errx(2, "mapload load|verify|features");
}
