// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * ackload.c - load whose every acknowledged write is known after a power cut.
 *
 *	ackload verify DEVICE LOG	checks the writes that LOG says were acknowledged
 *	ackload load DEVICE LOG SECONDS SEED [zero]
 *
 * Each sector holds its number, a generation and a pattern made from both.  A thread has one write
 * in flight, of 1 to 128 sectors in its own part of the device.  When it is acknowledged the
 * generations go to LOG, another device, which the power cut must not affect.  After a cut a sector
 * may have the generation in LOG or the one after it, never an older one or a mixture.  With `zero`
 * one request in eight zeroes 1 to 1024 sectors, which is a generation too; LOG says before it
 * which sectors it may reach.
 *
 * For a device with a volatile cache ACKLOAD_SYNC says how a write is made durable before it counts
 * as acknowledged: "flush", by a flush after it; "fua", by itself (O_DSYNC).
 *
 * With ACKLOAD_NEWER verify allows any later generation: LOG is a copy from before the cut, and the
 * load went on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SECTOR 512u
#define THREADS 4u
#define PART 8192u /* sectors of a thread */
#define TOTAL (THREADS * PART)
#define MOST 128u
#define MOST_ZEROED 1024u
/* Flags in LOG, next to a sector's generation. */
#define ZEROED (1u << 31) /* the generation was a zeroing */
#define ZEROING (1u << 30) /* one is in flight */
#define GENERATION (ZEROING - 1)
#define LOG_ENTRIES (SECTOR / sizeof(uint32_t))

static int device, log_device;
static uint32_t *generation; /* acknowledged, by sector; as in LOG */
static time_t until;
static int zeroing;
static enum { NO, FUA, FLUSH } flushing; /* what makes a write durable */
static uint64_t seed;
static uint64_t writes[THREADS];

static void die(const char *what)
{
	fprintf(stderr, "ackload: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *aligned(size_t bytes)
{
	void *p = NULL;

	if (posix_memalign(&p, 4096, bytes))
		die("memory");
	memset(p, 0, bytes);
	return p;
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static void fill(uint64_t *words, uint32_t sector, uint32_t gen)
{
	uint64_t x = (uint64_t)sector << 32 | gen;

	words[0] = x;
	for (unsigned int i = 1; i < SECTOR / 8; i++)
		words[i] = x = mix(x);
}

/* Returns the generation that the sector holds as a whole; -1 if it holds none. */
static int64_t holds(const uint64_t *words, uint32_t sector)
{
	uint64_t want[SECTOR / 8];
	unsigned int i = 0;

	while (i < SECTOR / 8 && words[i] == 0)
		i++;
	if (i == SECTOR / 8)
		return 0;
	fill(want, sector, (uint32_t)words[0]);
	return memcmp(words, want, SECTOR) ? -1 : (int64_t)(uint32_t)words[0];
}

static void write_log(uint32_t first, uint32_t n)
{
	uint32_t from = first / LOG_ENTRIES * LOG_ENTRIES;
	uint32_t to = (first + n + LOG_ENTRIES - 1) / LOG_ENTRIES * LOG_ENTRIES;
	ssize_t bytes = (to - from) * sizeof(uint32_t);

	if (pwrite(log_device, generation + from, bytes, from * sizeof(uint32_t)) != bytes)
		die("writing the log");
}

static void zero(uint32_t first, uint32_t n)
{
	uint64_t range[2] = { (uint64_t)first * SECTOR, (uint64_t)n * SECTOR };

	for (uint32_t i = first; i < first + n; i++)
		generation[i] |= ZEROING;
	write_log(first, n);
	if (ioctl(device, BLKZEROOUT, range))
		die("zeroing");
	if (flushing && fdatasync(device))
		die("flushing");
	for (uint32_t i = first; i < first + n; i++)
		generation[i] = ((generation[i] & GENERATION) + 1) | ZEROED;
	write_log(first, n);
}

static void overwrite(uint64_t *buf, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		fill(buf + i * SECTOR / 8, first + i, (generation[first + i] & GENERATION) + 1);
	if (pwrite(device, buf, n * SECTOR, (off_t)first * SECTOR) != (ssize_t)(n * SECTOR))
		die("writing");
	if (flushing == FLUSH && fdatasync(device))
		die("flushing");
	for (uint32_t i = first; i < first + n; i++)
		generation[i] = (generation[i] & GENERATION) + 1;
	write_log(first, n);
}

static void *writer(void *arg)
{
	uint32_t self = (uint32_t)(uintptr_t)arg;
	uint64_t *buf = aligned(MOST * SECTOR), random = mix(seed + self);

	while (time(NULL) < until) {
		uint32_t n, first;

		random = mix(random);
		n = random % 3 == 0 ? 1 + (uint32_t)(random >> 8) % MOST : random % 3 == 1 ? 8 : 1;
		if (zeroing && (random >> 56) % 8 == 0)
			n = 1 + (uint32_t)(random >> 8) % MOST_ZEROED;
		first = (uint32_t)(random >> 32) % (PART - n);
		if (random % 3 == 1)
			first &= ~7u;
		first += self * PART;
		if (zeroing && (random >> 56) % 8 == 0)
			zero(first, n);
		else
			overwrite(buf, first, n);
		writes[self]++;
	}
	free(buf);
	return NULL;
}

static int verify(void)
{
	uint64_t *buf = aligned(MOST * SECTOR);
	uint32_t newer = 0, bad = 0, written = 0;
	bool any_newer = getenv("ACKLOAD_NEWER");

	for (uint32_t first = 0; first < TOTAL; first += MOST) {
		if (pread(device, buf, MOST * SECTOR, (off_t)first * SECTOR) != (ssize_t)(MOST * SECTOR))
			die("reading");
		for (uint32_t i = 0; i < MOST; i++) {
			int64_t g = holds(buf + i * SECTOR / 8, first + i);
			uint32_t logged = generation[first + i], acknowledged = logged & GENERATION;

			written += acknowledged > 0;
			generation[first + i] &= ~ZEROING;
			if (g == (logged & ZEROED ? 0 : acknowledged))
				continue;
			if (g == (logged & ZEROING ? 0 : (int64_t)acknowledged + 1)) {
				newer++;
				generation[first + i] = (acknowledged + 1) | (logged & ZEROING ? ZEROED : 0);
				continue;
			}
			if (any_newer && !(logged & (ZEROED | ZEROING)) && g > acknowledged) {
				newer++;
				generation[first + i] = (uint32_t)g;
				continue;
			}
			if (bad++ < 10)
				printf("sector %u: generation %lld, acknowledged %u%s%s\n", first + i, (long long)g,
				       acknowledged, logged & ZEROED ? ", zeroed" : "",
				       logged & ZEROING ? ", a zeroing in flight" : "");
		}
	}
	write_log(0, TOTAL);
	free(buf);
	printf("ackload: %u sectors acknowledged, %u newer, %u bad\n", written, newer, bad);
	return bad != 0;
}

static int load(void)
{
	pthread_t thread[THREADS];
	uint64_t sum = 0;

	printf("ackload: started, seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, writer, (void *)i))
			die("thread");
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		sum += writes[i];
	}
	printf("ackload: %llu writes\n", (unsigned long long)sum);
	return 0;
}

/* A copy of a device may be a file on a file system without O_DIRECT. */
static int open_direct(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_DIRECT | flags);

	if (fd < 0 && errno == EINVAL)
		fd = open(path, O_RDWR | flags);
	if (fd < 0)
		die(path);
	return fd;
}

int main(int argc, char **argv)
{
	const ssize_t bytes = TOTAL * sizeof(uint32_t);
	const char *sync = getenv("ACKLOAD_SYNC");

	if (argc != 4 && argc != 6 && (argc != 7 || strcmp(argv[6], "zero")))
		return 2;
	zeroing = argc == 7;
	flushing = !sync ? NO : strcmp(sync, "fua") ? FLUSH : FUA;
	device = open_direct(argv[2], flushing == FUA ? O_DSYNC : 0);
	log_device = open_direct(argv[3], 0);
	generation = aligned((size_t)bytes);
	if (pread(log_device, generation, (size_t)bytes, 0) != bytes)
		die("reading the log");
	if (!strcmp(argv[1], "verify"))
		return verify();
	until = time(NULL) + atol(argv[4]);
	seed = strtoull(argv[5], NULL, 10);
	return load();
}
