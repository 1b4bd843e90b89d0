/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a program does with its file on a full disk, with the modes of a file, and while others look.
 *
 *	disk full FILE REST     overwrites; the disk is full, and has space again without REST
 *	disk modes DIR          makes files that it may not open again
 *	disk opens FILE         opens the file, which another process replaces
 *	disk size FILE CHUNK    looks at the size and at the bytes while a thread appends
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define MIB (1l << 20)
#define MOST (64 * MIB)

static char bytes[MIB];

static int full(const char *file, const char *rest)
{
	int fd = open(file, O_RDWR);

	CHECK(fd >= 0);
	memset(bytes, 'y', sizeof bytes);
	/* Blocks that it has. */
	CHECK(pwrite(fd, bytes, MIB, MIB) == MIB && fsync(fd) == 0);
	CHECK(ftruncate(fd, 4 * MIB - PAGE) == 0 && fsync(fd) == 0);
	CHECK(pwrite(fd, bytes, PAGE, 0) == PAGE && fsync(fd) == 0 && close(fd) == 0);
	fd = open(file, O_RDWR);
	CHECK(fd >= 0 && pread(fd, bytes, PAGE, MIB) == PAGE && bytes[0] == 'y');
	/* A hole cannot be filled.  More than the room of the mapping needs all of the file written. */
	CHECK(ftruncate(fd, 6 * MIB) == 0);
	CHECK(pwrite(fd, bytes, MIB, 5 * MIB) != MIB || fsync(fd) != 0);
	CHECK(pwrite(fd, bytes, MIB, 20 * MIB) != MIB || fsync(fd) != 0);
	/* With space again the file goes on. */
	CHECK(pread(fd, bytes, PAGE, MIB) == PAGE && bytes[0] == 'y');
	CHECK(unlink(rest) == 0);
	CHECK(pwrite(fd, "space", 5, 20 * MIB) == 5 && fsync(fd) == 0 && close(fd) == 0);
	return 0;
}

static int modes(const char *dir)
{
	char name[4096];
	int fd;

	snprintf(name, sizeof name, "%s/read.map", dir);
	fd = open(name, O_RDWR | O_CREAT, 0444);
	CHECK(fd >= 0 && write(fd, "read", 4) == 4 && fsync(fd) == 0 && close(fd) == 0);
	snprintf(name, sizeof name, "%s/write.map", dir);
	fd = open(name, O_WRONLY | O_CREAT, 0200);
	CHECK(fd >= 0 && write(fd, "wri", 3) == 3 && fsync(fd) == 0 && close(fd) == 0);
	fd = open(name, O_WRONLY | O_APPEND);
	CHECK(fd >= 0 && write(fd, "te", 2) == 2 && fsync(fd) == 0 && close(fd) == 0);
	return 0;
}

static int opens(const char *file)
{
	time_t end = time(NULL) + 3;

	while (time(NULL) < end) {
		int fd = open(file, O_RDWR);

		CHECK(fd >= 0 && close(fd) == 0);
	}
	return 0;
}

static int tail;
static long chunk;
static volatile int stop;

static void *appends(void *none)
{
	char *all = malloc(chunk);

	CHECK(all);
	memset(all, 'x', chunk);
	for (long n = chunk; !stop && n < MOST; n += chunk) {
		CHECK(write(tail, all, chunk) == chunk);
		usleep(100);
	}
	free(all);
	return none;
}

static int size(const char *file, const char *len)
{
	long last = 0, looks = 0;
	time_t end = time(NULL) + 3;
	struct stat st;
	pthread_t thread;
	char *at;

	chunk = atol(len);
	tail = open(file, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	CHECK(tail >= 0);
	at = mmap(NULL, MOST, PROT_READ, MAP_SHARED, tail, 0);
	CHECK(at != MAP_FAILED && pthread_create(&thread, NULL, appends, NULL) == 0);
	while (time(NULL) < end) {
		CHECK(fstat(tail, &st) == 0);
		if (st.st_size == last)
			continue;
		last = st.st_size;
		CHECK(at[last - 1] == 'x');
		looks++;
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0 && looks > 0);
	return 0;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	if (strcmp(argv[1], "modes") == 0)
		return modes(argv[2]);
	if (strcmp(argv[1], "opens") == 0)
		return opens(argv[2]);
	CHECK(argc == 4);
	return strcmp(argv[1], "full") == 0 ? full(argv[2], argv[3]) : size(argv[2], argv[3]);
}
