// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a close of a file holds up no other file and loses no data.
 * Method: closes.sh runs each with and without map-run.
 *
 *	closes paths FILE     truncate and utimensat by the path of FILE while a thread opens and closes it
 *	closes others FILE    mmap and munmap of FILE, and open of a third one, while a close of another file is slow,
 *			      which it is until the input ends; says "closing"
 *	closes numbers FILE   uses FILE, whose last library descriptor it has closed by an instruction,
 *			      while a close of another file is slow; both keep what is theirs
 *	closes readers FILE SLOW N   stores to N files SLOW.1.map ... and then to FILE; says "stored", and ends
 *			      when its input ends; closes.sh freezes the file system of the N files meanwhile
 *	closes silent FILE SILENT 0   has FILE, and a plain file SILENT; says "stored", waits for input, and uses its
 *			      files; closes.sh has FILE open to read meanwhile, and stops the server of SILENT
 *	closes mute FILE      is refused a call, and then ended by the library, while its stderr is a full pipe
 *	closes killed FILE    stores to FILE and to FILE.2.map, ends, and is killed in the first close of its end
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "raw.h"
#include "slow.h"

#define LENGTH (64l << 10)
/* No call takes so many seconds on a busy machine, if it does not wait for the slow file. */
#define SLOW 20

static const char *path;

static const char *other_name(void)
{
	static char name[512];

	snprintf(name, sizeof(name), "%s.2.map", path);
	return name;
}

static volatile int stop;

static void *opens_and_closes(void *p)
{
	while (!stop) {
		int fd = open(path, O_RDWR);

		CHECK(fd >= 0 && close(fd) == 0);
	}
	return p;
}

static void paths(void)
{
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };
	pthread_t thread;
	struct stat st;
	int i, fd = open(path, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0 && close(fd) == 0);
	CHECK(pthread_create(&thread, NULL, opens_and_closes, NULL) == 0);
	for (i = 1; i <= 20000; i++) {
		off_t size = i % 5 * 1000;

		CHECK(truncate(path, size) == 0);
		CHECK(stat(path, &st) == 0 && st.st_size == size);
		times[1].tv_sec = 2000 + i;
		CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
		CHECK(stat(path, &st) == 0 && st.st_mtim.tv_sec == 2000 + i);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
}

static int other;
static void *closes(void *p)
{
	closer = gettid();
	while (!closes_now)
		;
	CHECK(close(other) == 0);
	return p;
}

static double now(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void others(void)
{
	pthread_t thread;
	double begun;
	int fd, i, third;
	char c, *p, *second, name[512];

	/* The library looks at the files in the order in which they were opened. */
	other = open(other_name(), O_RDWR | O_CREAT, 0600);
	CHECK(other >= 0 && pwrite(other, "other", 5, 0) == 5);
	p = mapped(&fd, path, LENGTH);
	strcpy(p, "stored");
	thread = slow_close(closes, 2 * SLOW);
	puts("closing");
	fflush(stdout);
	begun = now();
	for (i = 0; i < 100; i++) {
		second = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4 * PAGE);
		CHECK(second != MAP_FAILED);
		second[0] = (char)i;
		CHECK(msync(second, PAGE, MS_SYNC) == 0 && p[4 * PAGE] == (char)i);
		CHECK(munmap(second, PAGE) == 0);
	}
	/* The last mapping is removed and made again. */
	CHECK(munmap(p, LENGTH) == 0);
	p = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED && p[4 * PAGE] == 99);
	if (is_mapped_run() && now() - begun > SLOW)
		fprintf(stderr, "mmap and munmap of a file wait %.1f s for a close of another one\n", now() - begun);
	CHECK(now() - begun <= SLOW);
	/* A third file is opened, gets more room, and is closed. */
	begun = now();
	snprintf(name, sizeof(name), "%s.3.map", path);
	for (i = 0; i < 3; i++) {
		third = open(name, O_RDWR | O_CREAT, 0600);
		CHECK(third >= 0 && pwrite(third, "third", 5, (16 << 20) * i) == 5);
		CHECK(fsync(third) == 0 && close(third) == 0);
	}
	if (is_mapped_run() && now() - begun > SLOW)
		fprintf(stderr, "open and close of a file wait %.1f s for a close of another one\n", now() - begun);
	CHECK(now() - begun <= SLOW);
	CHECK(read(STDIN_FILENO, &c, 1) == 0);
	if (is_mapped_run())
		CHECK(write(slow_goes_on[1], &c, 1) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Closes the last descriptor of the file at `path` by an instruction. */
static void close_last(void)
{
	char link[64], name[512];
	int fd, last = -1;

	for (fd = 0; fd < 8192; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, name, sizeof(name));

		if (n == (ssize_t)strlen(path) && memcmp(name, path, (size_t)n) == 0)
			last = fd;
	}
	CHECK(last > 100 && raw(SYS_close, last, 0, 0, 0, 0, 0) == 0);
}

static void numbers(void)
{
	int fd, i;
	char *p = mapped(&fd, path, LENGTH), *second = mapped(&other, other_name(), LENGTH);
	struct stat st;
	pthread_t thread;

	strcpy(p, "first");
	CHECK(msync(p, LENGTH, MS_SYNC) == 0);
	memset(second, 'o', LENGTH);
	CHECK(munmap(second, LENGTH) == 0);
	if (is_mapped_run())
		close_last();
	thread = slow_close(closes, 2);
	for (i = 1; i < 8; i++) {
		strcpy(p + i * PAGE, "first");
		if (is_mapped_run()) {
			msync(p, LENGTH, MS_SYNC);
			CHECK(ftruncate(fd, LENGTH + i * PAGE) == -1 && errno == EIO);
		}
	}
	CHECK(pthread_join(thread, NULL) == 0);
	if (is_mapped_run())
		CHECK(ftruncate(fd, 2 * LENGTH) == -1 && errno == EIO);
	other = open(other_name(), O_RDWR);
	CHECK(other >= 0 && fstat(other, &st) == 0 && st.st_size == LENGTH);
	second = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, other, 0);
	CHECK(second != MAP_FAILED);
	for (i = 0; i < LENGTH; i++)
		CHECK(second[i] == 'o');
}

static void killed(void)
{
	int fd;
	char *first = mapped(&fd, path, LENGTH), *second = mapped(&fd, other_name(), LENGTH);

	CHECK(msync(first, LENGTH, MS_SYNC) == 0 && msync(second, LENGTH, MS_SYNC) == 0);
	strcpy(first, "last, before the end");
	strcpy(second, "last, before the end");
	if (is_mapped_run())
		slow_down(gettid(), 0);
	_exit(0);
}

static void readers(const char *slow_name, int slow)
{
	char name[512], c;
	int fd, i;

	/* The library looks at the files in the order in which they were opened. */
	for (i = 1; i <= slow; i++) {
		snprintf(name, sizeof(name), "%s.%d.map", slow_name, i);
		strcpy(mapped(&fd, name, LENGTH), "stored");
	}
	strcpy(mapped(&fd, path, LENGTH), "stored");
	puts("stored");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) == 1)
		;
}

/* Makes stderr a pipe that is full.  Returns what it was. */
static int mute_stderr(void)
{
	static const char page[PAGE];
	int fds[2], before = dup(STDERR_FILENO);

	CHECK(before >= 0 && pipe(fds) == 0);
	CHECK(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(fds[1], page, PAGE) > 0)
		;
	CHECK(fcntl(fds[1], F_SETFL, 0) == 0);
	CHECK(dup2(fds[1], STDERR_FILENO) == STDERR_FILENO);
	return before;
}

static void mute(void)
{
	int fd, before;
	double begun;
	FILE *file;
	char c, *p = mapped(&fd, path, LENGTH);

	strcpy(p, "stored");
	before = mute_stderr();
	begun = now();
	file = fopen(path, "r");
	begun = now() - begun;
	CHECK(dup2(before, STDERR_FILENO) == STDERR_FILENO);
	CHECK(file == NULL && errno == EBUSY);
	if (begun > 3)
		fprintf(stderr, "a refused call waits %.1f s for a reader of its message\n", begun);
	CHECK(begun <= 3);
	mute_stderr();
	puts("stored");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) == 1)
		;
	_exit(9); /* The library has ended the program before this. */
}

static void took(const char *what, double begun)
{
	if (now() - begun > SLOW)
		fprintf(stderr, "%s waits %.1f s for a file that has nothing to do with it\n", what, now() - begun);
	CHECK(now() - begun <= SLOW);
}

static void silent(const char *silent_name)
{
	int i, fd, second, status, plain = open(silent_name, O_RDWR);
	double begun;
	char c, *p = mapped(&fd, path, LENGTH), *q;

	CHECK(plain >= 0);
	strcpy(p, "stored");
	puts("stored");
	fflush(stdout);
	CHECK(read(STDIN_FILENO, &c, 1) == 0);
	for (i = 0; i < 20; i++) {
		begun = now();
		q = mapped(&second, other_name(), LENGTH);
		strcpy(q, "other");
		CHECK(msync(q, LENGTH, MS_SYNC) == 0);
		CHECK(munmap(q, LENGTH) == 0 && close(second) == 0);
		took("another file", begun);

		begun = now();
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		took("fork", begun);

		begun = now();
		p[PAGE] = (char)i;
		CHECK(msync(p, LENGTH, MS_SYNC) == 0);
		took("a sync of the file itself", begun);
		usleep(20000);
	}
	begun = now();
	CHECK(munmap(p, LENGTH) == 0 && close(fd) == 0);
	took("a close of the file itself", begun);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3 || argc == 5);
	path = argv[2];
	if (strcmp(argv[1], "paths") == 0)
		paths();
	else if (strcmp(argv[1], "others") == 0)
		others();
	else if (strcmp(argv[1], "numbers") == 0)
		numbers();
	else if (strcmp(argv[1], "readers") == 0 && argc == 5)
		readers(argv[3], atoi(argv[4]));
	else if (strcmp(argv[1], "silent") == 0 && argc == 5)
		silent(argv[3]);
	else if (strcmp(argv[1], "mute") == 0)
		mute();
	else if (strcmp(argv[1], "killed") == 0)
		killed();
	else
		CHECK(!"such a case");
	return 0;
}
