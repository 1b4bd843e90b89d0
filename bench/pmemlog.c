// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pmemlog.c - appends to PMDK's libpmemlog, for `forebay bench log --pmemlog PROGRAM`.
 *
 *	cc -O2 -pthread bench/pmemlog.c -lpmemlog -o pmemlog
 *	pmemlog BYTES THREADS LOGS
 *
 * For each line "N" on its input each thread appends N times; the answer is how many
 * appends all did in a second.  A full log is rewound, which is not counted.  The logs are
 * files in /dev/shm, told to be persistent memory (PMEM_IS_PMEM_FORCE), as the pool is.
 */
#define _GNU_SOURCE
#include <libpmemlog.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_BYTES (512ul << 20)
#define SOURCE_BYTES (128u << 10)

static PMEMlogpool *logs[32];
static unsigned nlogs, nthreads, bytes;
static long batch;
static pthread_barrier_t go, done;
static double rate[32];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void append(PMEMlogpool *log, const char *from)
{
	if (pmemlog_append(log, from, bytes) == 0)
		return;
	pmemlog_rewind(log);
	if (pmemlog_append(log, from, bytes) != 0) {
		perror("pmemlog_append");
		exit(1);
	}
}

static void *writer(void *arg)
{
	unsigned n = (unsigned)(size_t)arg;
	PMEMlogpool *log = logs[n % nlogs];
	char *source = malloc(SOURCE_BYTES + bytes);
	cpu_set_t cpus;
	size_t at = 0;

	CPU_ZERO(&cpus);
	CPU_SET(n, &cpus);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
	for (size_t i = 0; i < SOURCE_BYTES + bytes; i++)
		source[i] = (char)(i * 2654435761u >> 13);
	for (;;) {
		double start;

		pthread_barrier_wait(&go);
		start = now();
		for (long i = 0; i < batch; i++) {
			append(log, source + at);
			at = (at + bytes) % SOURCE_BYTES;
		}
		rate[n] = batch / (now() - start);
		pthread_barrier_wait(&done);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	bytes = argc > 3 ? (unsigned)atoi(argv[1]) : 0;
	nthreads = argc > 3 ? (unsigned)atoi(argv[2]) : 0;
	nlogs = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
	if (bytes < 1 || nthreads < 1 || nthreads > 32 || nlogs < 1 || nlogs > nthreads) {
		fprintf(stderr, "usage: %s BYTES THREADS LOGS\n", argv[0]);
		return 2;
	}
	setenv("PMEM_IS_PMEM_FORCE", "1", 1);
	for (unsigned i = 0; i < nlogs; i++) {
		char path[64];

		snprintf(path, sizeof(path), "/dev/shm/forebay-pmemlog-%d-%u", getpid(), i);
		logs[i] = pmemlog_create(path, LOG_BYTES, 0600);
		unlink(path);
		if (!logs[i]) {
			perror("pmemlog_create");
			return 1;
		}
		/* Each page is there before the first turn. */
		while (pmemlog_append(logs[i], argv[0], 1) == 0 && pmemlog_tell(logs[i]) < 1)
			;
	}
	pthread_barrier_init(&go, NULL, nthreads + 1);
	pthread_barrier_init(&done, NULL, nthreads + 1);
	for (unsigned i = 0; i < nthreads; i++)
		pthread_create(&thread, NULL, writer, (void *)(size_t)i);
	while (scanf("%ld", &batch) == 1) {
		double all = 0;

		pthread_barrier_wait(&go);
		pthread_barrier_wait(&done);
		for (unsigned i = 0; i < nthreads; i++)
			all += rate[i];
		printf("%f\n", all);
		fflush(stdout);
	}
	return 0;
}
