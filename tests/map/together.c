// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a program runs correctly in several processes that have one file and do not know of
 * Forebay.
 *
 *	together append FILE WHO COUNT      appends records (O_APPEND), each synced
 *	together appended FILE WHO COUNT..  sees that all are there, whole and in order
 *	together watches FILE COUNT         sees each of COUNT records of another process with its bytes, by
 *	                                    read and by a mapping, as soon as the size has it
 *	together count FILE COUNT           adds to a number in a mapping, under a lock of fcntl
 *	together counted FILE               says the number
 *	together holds FILE                 has a lock; says the pid of its child, which ends
 *	                                    a minute later
 *	together closes FILE                the same, without a child, and closes another
 *	                                    descriptor of the file
 *	together tests FILE locked|free     whether that lock is there for others
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS 31 /* not a power of two, so that records lie across pages */

static void ok(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static void append(const char *path, uint64_t who, long count)
{
	uint64_t record[WORDS];
	int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
	long i;
	size_t w;

	ok(fd >= 0, "open");
	for (i = 0; i < count; i++) {
		for (w = 0; w < WORDS; w++)
			record[w] = who << 32 | (uint64_t)(i + 1);
		ok(write(fd, record, sizeof(record)) == (ssize_t)sizeof(record), "write");
		if (i % 16 == 0)
			ok(fdatasync(fd) == 0, "fdatasync");
	}
	ok(fsync(fd) == 0, "fsync");
	ok(close(fd) == 0, "close");
}

static int appended(const char *path, int argc, char **argv)
{
	uint64_t record[WORDS], next[16] = { 0 };
	FILE *f = fopen(path, "r");
	size_t w;
	int i;

	ok(f != NULL, "fopen");
	while (fread(record, sizeof(record), 1, f) == 1) {
		for (w = 1; w < WORDS; w++)
			if (record[w] != record[0])
				return 1;
		if (record[0] >> 32 >= 16 || ++next[record[0] >> 32] != (uint32_t)record[0])
			return 1;
	}
	ok(feof(f) && !ferror(f), "fread");
	for (i = 0; i + 1 < argc; i += 2)
		if (next[atoi(argv[i])] != (uint64_t)atol(argv[i + 1]))
			return 1;
	return 0;
}

static long zeroes(const uint64_t *words, size_t n)
{
	long found = 0;

	while (n--)
		found += *words++ == 0;
	return found;
}

static int watches(const char *path, long count)
{
	const off_t all = count * (off_t)sizeof(uint64_t[WORDS]);
	static uint64_t words[1 << 16];
	long by_read = 0, by_mapping = 0, looks = 0;
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	const char *p = mmap(NULL, all, PROT_READ, MAP_SHARED, fd, 0);
	off_t seen = 0;

	ok(fd >= 0 && p != MAP_FAILED, "open");
	while (seen < all) {
		struct stat st;
		ssize_t n = pread(fd, words, sizeof(words), seen);

		ok(n >= 0, "pread");
		by_read += zeroes(words, n / sizeof(*words));
		ok(fstat(fd, &st) == 0, "fstat");
		if (st.st_size > seen)
			by_mapping += zeroes((const uint64_t *)(p + seen), (st.st_size - seen) / sizeof(*words));
		looks += st.st_size > seen;
		seen = st.st_size;
	}
	printf("%ld looks, %ld zeroes by read, %ld by a mapping\n", looks, by_read, by_mapping);
	return by_read + by_mapping > 0;
}

static void count_to(const char *path, long count)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	struct flock lock = { .l_whence = SEEK_SET, .l_start = 0, .l_len = 8 };
	volatile uint64_t *number;

	ok(fd >= 0, "open");
	lock.l_type = F_WRLCK;
	ok(fcntl(fd, F_SETLKW, &lock) == 0, "lock");
	ok(ftruncate(fd, 4096) == 0, "ftruncate");
	lock.l_type = F_UNLCK;
	ok(fcntl(fd, F_SETLK, &lock) == 0, "unlock");
	number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ok(number != MAP_FAILED, "mmap");
	while (count--) {
		uint64_t now;

		lock.l_type = F_WRLCK;
		ok(fcntl(fd, F_SETLKW, &lock) == 0, "lock");
		now = *number;
		if (count % 64 == 0)
			usleep(10);
		*number = now + 1;
		lock.l_type = F_UNLCK;
		ok(fcntl(fd, F_SETLK, &lock) == 0, "unlock");
	}
	ok(msync((void *)number, 4096, MS_SYNC) == 0, "msync");
	ok(munmap((void *)number, 4096) == 0, "munmap");
	ok(close(fd) == 0, "close");
}

#define LOCKED_FROM 100
#define LOCKED 10

static void holds(const char *path, int closes)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	pid_t child = 1;

	ok(fd >= 0, "open");
	ok(lseek(fd, LOCKED_FROM, SEEK_SET) == LOCKED_FROM, "lseek");
	ok(lockf(fd, F_TLOCK, LOCKED) == 0, "lock");
	if (closes)
		ok(close(open(path, O_RDONLY)) == 0, "close");
	else
		child = fork();
	ok(child >= 0, "fork");
	if (child > 0) {
		printf("%d\n", (int)child);
		fflush(stdout);
	}
	sleep(60);
}

/* Queries the lock above and the range before it. */
static int tests(const char *path, int locked)
{
	struct flock before = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = LOCKED_FROM };
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_RDWR);

	ok(fd >= 0, "open");
	ok(fcntl(fd, F_GETLK, &before) == 0 && fcntl(fd, F_GETLK, &all) == 0, "a lock");
	ok(lseek(fd, LOCKED_FROM, SEEK_SET) == LOCKED_FROM, "lseek");
	if (before.l_type != F_UNLCK || (lockf(fd, F_TEST, LOCKED) != 0) != locked)
		return 1;
	if (!locked)
		return all.l_type != F_UNLCK;
	return all.l_type != F_WRLCK || all.l_start != LOCKED_FROM || all.l_len != LOCKED;
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "append") == 0) {
		append(argv[2], (uint64_t)atol(argv[3]), atol(argv[4]));
	} else if (argc > 3 && strcmp(argv[1], "appended") == 0) {
		return appended(argv[2], argc - 3, argv + 3);
	} else if (argc == 4 && strcmp(argv[1], "watches") == 0) {
		return watches(argv[2], atol(argv[3]));
	} else if (argc == 4 && strcmp(argv[1], "count") == 0) {
		count_to(argv[2], atol(argv[3]));
	} else if (argc == 3 && strcmp(argv[1], "counted") == 0) {
		uint64_t n = 0;
		int fd = open(argv[2], O_RDONLY);

		ok(fd >= 0 && read(fd, &n, sizeof(n)) == (ssize_t)sizeof(n), "read");
		printf("%llu\n", (unsigned long long)n);
	} else if (argc == 3 && strcmp(argv[1], "holds") == 0) {
		holds(argv[2], 0);
	} else if (argc == 3 && strcmp(argv[1], "closes") == 0) {
		holds(argv[2], 1);
	} else if (argc == 4 && strcmp(argv[1], "tests") == 0) {
		return tests(argv[2], strcmp(argv[3], "locked") == 0);
	} else {
		return 2;
	}
	return 0;
}
