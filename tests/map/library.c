// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: each call of forebay_map.h does what the header says, with good arguments and bad.
 * Method: a pool that library.sh has made, and files of its own; run once for each
 * compiler and each form of the library.
 *
 *	library POOL DIR [SERVER]	SERVER: the process that serves the pool; it is killed
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forebay_map.h"

#define MIB (1ul << 20)

static const char *path_of(const char *dir, const char *name)
{
	static char paths[4][512];
	static unsigned int next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

static void wrong(int line, const char *what, int code)
{
	fprintf(stderr, "library.c:%d: %s: %s: %s\n", line, what, forebay_map_error_name(code),
		forebay_map_error());
	exit(1);
}

#define OK(call)                                      \
	do {                                          \
		int code_ = (call);                   \
		if (code_)                            \
			wrong(__LINE__, #call, code_); \
	} while (0)

/* A call fails with that code, and its text contains these words. */
#define FAILS(expected, words, call)                                                \
	do {                                                                        \
		int code_ = (call);                                                 \
		if (code_ != (expected) || !strstr(forebay_map_error(), words))     \
			wrong(__LINE__, #call " is not " #expected ": " words, code_); \
	} while (0)

#define CHECK(what)                                 \
	do {                                        \
		if (!(what))                        \
			wrong(__LINE__, #what, -1); \
	} while (0)

static void make_file(const char *path, size_t bytes)
{
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && close(fd) == 0);
}

/* Checks the bytes in the file system. */
static void file_has(const char *path, off_t at, const char *bytes)
{
	char found[64] = "";
	int fd = open(path, O_RDONLY);

	CHECK(fd >= 0 && pread(fd, found, strlen(bytes), at) == (ssize_t)strlen(bytes));
	CHECK(memcmp(found, bytes, strlen(bytes)) == 0);
	close(fd);
}

static void names(void)
{
	CHECK(strcmp(forebay_map_error_name(0), "FOREBAY_MAP_OK") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_ARGUMENT), "FOREBAY_MAP_E_ARGUMENT") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_HANDLE), "FOREBAY_MAP_E_HANDLE") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_CHILD), "FOREBAY_MAP_E_CHILD") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_SYSTEM), "FOREBAY_MAP_E_SYSTEM") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_POOL), "FOREBAY_MAP_E_POOL") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_FULL), "FOREBAY_MAP_E_FULL") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_LOCKED), "FOREBAY_MAP_E_LOCKED") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_REFUSED), "FOREBAY_MAP_E_REFUSED") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_IN_USE), "FOREBAY_MAP_E_IN_USE") == 0);
	CHECK(strcmp(forebay_map_error_name(FOREBAY_MAP_E_BUSY), "FOREBAY_MAP_E_BUSY") == 0);
	CHECK(strcmp(forebay_map_error_name(11), "unknown") == 0);
	CHECK(strcmp(forebay_map_error_name(-1), "unknown") == 0);
	CHECK(strlen(forebay_map_version()) >= 5);
	CHECK(forebay_map_error()[0] == 0 && forebay_map_errno() == 0);
}

static void pool_arguments(const char *path, const char *dir)
{
	struct forebay_map_pool *pool = NULL;
	struct forebay_map_options o = { .struct_bytes = sizeof(o) };

	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_pool_open(NULL, NULL, NULL, &pool));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_pool_open(path, NULL, NULL, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "UTF-8", forebay_map_pool_open("\xff", NULL, NULL, &pool));
	FAILS(FOREBAY_MAP_E_POOL, "nowhere",
	      forebay_map_pool_open(path_of(dir, "nowhere"), NULL, NULL, &pool));
	FAILS(FOREBAY_MAP_E_POOL, "other", forebay_map_pool_open(path, "other", NULL, &pool));
	o.flags = 4;
	FAILS(FOREBAY_MAP_E_ARGUMENT, "flags", forebay_map_pool_open(path, NULL, &o, &pool));
	o.flags = 0;
	o.persist = "paper";
	FAILS(FOREBAY_MAP_E_ARGUMENT, "paper", forebay_map_pool_open(path, NULL, &o, &pool));
	/* Members beyond struct_bytes are not read. */
	o.struct_bytes = offsetof(struct forebay_map_options, persist);
	OK(forebay_map_pool_open(path, "db", &o, &pool));
	OK(forebay_map_pool_close(pool));
	o.struct_bytes = 0;
	FAILS(FOREBAY_MAP_E_ARGUMENT, "sizeof", forebay_map_pool_open(path, NULL, &o, &pool));
	FAILS(FOREBAY_MAP_E_HANDLE, "closed", forebay_map_pool_close(pool));
	FAILS(FOREBAY_MAP_E_HANDLE, "NULL", forebay_map_pool_close(NULL));
}

/* Makes each call with an invalid file handle. */
static void bad_handle(struct forebay_map_file *f)
{
	char byte = 0;
	size_t n;
	uint64_t u;
	uint32_t b;
	int i;

	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_file_close(f));
	CHECK(!forebay_map_address(f));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_size(f, &u));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_room(f, &u));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_sync(f, 0, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_lock(f, 0, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_unlock(f, 0, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_drop(f, 0, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_read(f, 0, &byte, 1, &n));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_write(f, 0, &byte, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_truncate(f, 0));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_allocate(f, 0, 1));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_write_back(f));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_is_dirty(f, &i));
	FAILS(FOREBAY_MAP_E_HANDLE, "file", forebay_map_features(f, &b));
}

static void bad_arguments(struct forebay_map_file *f)
{
	char byte = 0;
	size_t n = 5;

	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_size(f, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_room(f, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_is_dirty(f, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_features(f, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "buffer", forebay_map_read(f, 0, NULL, 1, &n));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "done", forebay_map_read(f, 0, &byte, 1, NULL));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "more than any", forebay_map_read(f, 0, &byte, SIZE_MAX, &n));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "buffer", forebay_map_write(f, 0, NULL, 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_write(f, 8 * MIB - 1, &byte, 2));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_write(f, UINT64_MAX, &byte, 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_truncate(f, 8 * MIB + 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_allocate(f, 7 * MIB, 2 * MIB));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_sync(f, 0, 8 * MIB + 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_sync(f, 9 * MIB, FOREBAY_MAP_REST));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_lock(f, UINT64_MAX - 1, 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_unlock(f, 8 * MIB, 1));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "room", forebay_map_drop(f, 1, 8 * MIB));
	OK(forebay_map_read(f, 0, NULL, 0, &n));
	CHECK(n == 0);
	OK(forebay_map_write(f, 8 * MIB, NULL, 0));
	OK(forebay_map_sync(f, 8 * MIB, 0));
}

static void content(struct forebay_map_file *f, const char *path)
{
	char *memory = forebay_map_address(f);
	char buffer[16] = "";
	uint32_t features = 99;
	uint64_t size = 0, room = 0;
	size_t n = 0;
	int dirty = -1;

	CHECK(memory && (uintptr_t)memory % FOREBAY_MAP_SEGMENT == 0);
	OK(forebay_map_size(f, &size));
	OK(forebay_map_room(f, &room));
	CHECK(size == 3 * MIB && room == 8 * MIB);
	OK(forebay_map_features(f, &features));
	CHECK(features < 8);

	/* A read returns stored data, and a load returns written data.  Both are synced, by a range
	 * that is not aligned. */
	memcpy(memory + 5000, "stored", 6);
	OK(forebay_map_read(f, 5000, buffer, 6, &n));
	CHECK(n == 6 && memcmp(buffer, "stored", 6) == 0);
	OK(forebay_map_write(f, 2 * MIB + 10, "written", 7));
	CHECK(memcmp(memory + 2 * MIB + 10, "written", 7) == 0);
	OK(forebay_map_sync(f, 5001, 1));
	OK(forebay_map_sync(f, 2 * MIB, FOREBAY_MAP_REST));
	OK(forebay_map_write_back(f));
	file_has(path, 5000, "stored");
	file_has(path, 2 * MIB + 10, "written");
	OK(forebay_map_is_dirty(f, &dirty));
	CHECK(dirty == 0);
	OK(forebay_map_read(f, 3 * MIB - 2, buffer, 16, &n));
	CHECK(n == 2);
	OK(forebay_map_read(f, 100 * MIB, buffer, 16, &n));
	CHECK(n == 0);

	/* Bytes after the end do not return. */
	memcpy(memory + MIB, "cut off", 7);
	OK(forebay_map_sync(f, 0, FOREBAY_MAP_REST));
	OK(forebay_map_truncate(f, MIB));
	OK(forebay_map_truncate(f, 2 * MIB));
	OK(forebay_map_read(f, MIB, buffer, 7, &n));
	CHECK(n == 7 && memcmp(buffer, "\0\0\0\0\0\0\0", 7) == 0);
	OK(forebay_map_allocate(f, 5 * MIB, MIB));
	OK(forebay_map_size(f, &size));
	CHECK(size == 6 * MIB);
	OK(forebay_map_write(f, 7 * MIB, "grown", 5));
	OK(forebay_map_size(f, &size));
	CHECK(size == 7 * MIB + 5);

	/* After a drop synced data stays, and other data is lost. */
	OK(forebay_map_sync(f, 0, FOREBAY_MAP_REST));
	memcpy(memory + 4 * MIB, "not synced", 10);
	OK(forebay_map_drop(f, 0, FOREBAY_MAP_REST));
	CHECK(memory[4 * MIB] == 0 && memcmp(memory + 5000, "stored", 6) == 0);

	/* Locked segments are not dropped. */
	OK(forebay_map_lock(f, 4 * MIB + 1, 1));
	memcpy(memory + 4 * MIB, "locked", 6);
	OK(forebay_map_drop(f, 4 * MIB, 2 * MIB));
	CHECK(memcmp(memory + 4 * MIB, "locked", 6) == 0);
	FAILS(FOREBAY_MAP_E_REFUSED, "segments to be locked", forebay_map_lock(f, 0, 8 * MIB));
	OK(forebay_map_unlock(f, 4 * MIB, 1));
	OK(forebay_map_sync(f, 4 * MIB, 6));
	OK(forebay_map_is_dirty(f, &dirty));
}

static void *store_and_sync(void *argument)
{
	struct forebay_map_file *f = argument;
	static _Atomic int next;
	int me = next++;
	char *page = (char *)forebay_map_address(f) + (size_t)me * FOREBAY_MAP_PAGE;
	int turn;

	for (turn = 0; turn < 200; turn++) {
		page[turn] = (char)me;
		OK(forebay_map_sync(f, (uint64_t)me * FOREBAY_MAP_PAGE, FOREBAY_MAP_PAGE));
	}
	/* The error belongs to a thread. */
	CHECK(forebay_map_error()[0] == 0);
	FAILS(FOREBAY_MAP_E_HANDLE, "NULL", forebay_map_sync(NULL, 0, 1));
	return NULL;
}

static void threads(struct forebay_map_file *f)
{
	pthread_t of[4];
	int i;

	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&of[i], NULL, store_and_sync, f) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(of[i], NULL) == 0);
}

/* A child is refused, and its end leaves the parent's map as it is. */
static void children(struct forebay_map_pool *pool, struct forebay_map_file *f, const char *path)
{
	struct forebay_map_file *other;
	int status = -1;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0) {
		FAILS(FOREBAY_MAP_E_CHILD, "child", forebay_map_sync(f, 0, 1));
		FAILS(FOREBAY_MAP_E_CHILD, "child", forebay_map_file_open(pool, path, 0, &other));
		FAILS(FOREBAY_MAP_E_CHILD, "child", forebay_map_file_close(f));
		FAILS(FOREBAY_MAP_E_CHILD, "child", forebay_map_pool_close(pool));
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* A child that touches the mapping is killed. */
	child = fork();
	if (child == 0)
		_exit(((volatile char *)forebay_map_address(f) + 1)[0] == 0);
	CHECK(waitpid(child, &status, 0) == child && status != 0);
	strcpy((char *)forebay_map_address(f) + 9000, "after");
	OK(forebay_map_sync(f, 9000, 5));
}

static void files(struct forebay_map_pool *pool, const char *dir)
{
	struct forebay_map_file *f, *other = NULL;
	const char *path = path_of(dir, "data");

	make_file(path, 3 * MIB);
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_file_open(pool, NULL, 0, &f));
	FAILS(FOREBAY_MAP_E_ARGUMENT, "null", forebay_map_file_open(pool, path, 0, NULL));
	FAILS(FOREBAY_MAP_E_HANDLE, "pool", forebay_map_file_open(NULL, path, 0, &f));
	FAILS(FOREBAY_MAP_E_SYSTEM, "nowhere",
	      forebay_map_file_open(pool, path_of(dir, "nowhere"), 0, &f));
	CHECK(forebay_map_errno() == ENOENT);
	FAILS(FOREBAY_MAP_E_REFUSED, "regular", forebay_map_file_open(pool, "/dev/null", 0, &f));
	make_file(path_of(dir, "empty"), 0);
	FAILS(FOREBAY_MAP_E_REFUSED, "empty",
	      forebay_map_file_open(pool, path_of(dir, "empty"), 0, &f));

	OK(forebay_map_file_open(pool, path, 8 * MIB, &f));
	CHECK(forebay_map_file_open(pool, path, 0, &other) != 0 && !other);
	FAILS(FOREBAY_MAP_E_IN_USE, "data", forebay_map_pool_close(pool));
	bad_arguments(f);
	content(f, path);
	threads(f);
	children(pool, f, path);
	bad_handle(NULL);
	bad_handle((struct forebay_map_file *)pool);
	bad_handle((struct forebay_map_file *)((char *)f + 1));
	OK(forebay_map_file_close(f));
	bad_handle(f);
	file_has(path, 9000, "after");
	file_has(path, 4 * MIB, "locked");
	file_has(path, 7 * MIB, "grown");
}

/* Starts a child that has the file, until it is killed. */
static pid_t has_file(const char *pool_path, const char *path)
{
	struct forebay_map_pool *pool;
	struct forebay_map_file *f;
	int says[2];
	char byte;
	pid_t child;

	CHECK(pipe(says) == 0);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		OK(forebay_map_pool_open(pool_path, NULL, NULL, &pool));
		OK(forebay_map_file_open(pool, path, 0, &f));
		strcpy((char *)forebay_map_address(f) + 100, "child's");
		OK(forebay_map_sync(f, 100, 7));
		CHECK(write(says[1], "", 1) == 1);
		for (;;)
			pause();
	}
	close(says[1]);
	CHECK(read(says[0], &byte, 1) == 1);
	close(says[0]);
	return child;
}

/* Another process has the pool, or a share of it next to this one's. */
static void neighbours(const char *pool_path, const char *dir, int served)
{
	struct forebay_map_options o = { .struct_bytes = sizeof(o), .flags = FOREBAY_MAP_RECOVER };
	const char *path = path_of(dir, "neighbour"), *own = path_of(dir, "own");
	struct forebay_map_pool *pool;
	struct forebay_map_file *f, *mine;
	char number[32];
	int status;
	pid_t child;

	make_file(path, MIB);
	make_file(own, MIB);
	child = has_file(pool_path, path);
	snprintf(number, sizeof(number), "process %d ", (int)child);
	if (served) {
		OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
		FAILS(FOREBAY_MAP_E_LOCKED, "has it", forebay_map_file_open(pool, path, 0, &f));
		CHECK(strstr(forebay_map_error(), number));
		OK(forebay_map_file_open(pool, own, 0, &mine));
		strcpy((char *)forebay_map_address(mine) + 200, "mine");
		OK(forebay_map_sync(mine, 200, 4));
		OK(forebay_map_file_close(mine));
		file_has(own, 200, "mine");
	} else {
		FAILS(FOREBAY_MAP_E_BUSY, "forebay serve",
		      forebay_map_pool_open(pool_path, NULL, &o, &pool));
		CHECK(strstr(forebay_map_error(), number));
	}
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	/* The server recovers the data that the child left, or this process does. */
	if (!served)
		OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
	OK(forebay_map_file_open(pool, path, 0, &f));
	file_has(path, 100, "child's");
	OK(forebay_map_file_close(f));
	OK(forebay_map_pool_close(pool));
}

static void ends(pid_t process)
{
	int tries;

	CHECK(kill(process, SIGKILL) == 0);
	for (tries = 0; kill(process, 0) == 0; tries++) {
		CHECK(tries < 10000);
		usleep(1000);
	}
}

static volatile int told; /* a segment that could not be brought in was reported */
static int told_at_the_signal;
static const char *told_path;
static sigjmp_buf behind;

static void unreadable(const char *path, uint64_t offset, const char *why)
{
	told = strcmp(path, told_path) == 0 && offset == 2 * MIB && strstr(why, "has ended") ? 1 : -1;
}

static void at_the_signal(int signal)
{
	(void)signal;
	told_at_the_signal = told;
	siglongjmp(behind, 1);
}

/* The cause is reported before the signal. */
static void cannot_be_touched(const char *memory, const char *path)
{
	told_path = path;
	CHECK(signal(SIGBUS, at_the_signal) != SIG_ERR);
	if (sigsetjmp(behind, 1) == 0) {
		(void)*(const volatile char *)(memory + 2 * MIB);
		CHECK(!"it was brought in");
	}
	CHECK(signal(SIGBUS, SIG_DFL) != SIG_ERR);
	CHECK(told_at_the_signal == 1);
}

/* Calls that need the server report that it has ended.  What is acknowledged is durable without
 * it. */
static void without_server(const char *pool_path, const char *dir, pid_t server)
{
	struct forebay_map_options o = { .struct_bytes = sizeof(o), .interval_ms = 1000000,
					 .unreadable = unreadable };
	const char *path = path_of(dir, "alone"), *longer = path_of(dir, "longer");
	struct forebay_map_file *f, *grows, *other;
	struct forebay_map_pool *pool, *again;
	char *memory;

	make_file(path, 3 * MIB);
	make_file(longer, MIB);
	OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
	OK(forebay_map_file_open(pool, path, 8 * MIB, &f));
	OK(forebay_map_file_open(pool, longer, 8 * MIB, &grows));
	memory = forebay_map_address(f);
	strcpy(memory + 5000, "before");
	OK(forebay_map_sync(f, 5000, 6));
	OK(forebay_map_truncate(grows, MIB + MIB / 2));
	strcpy((char *)forebay_map_address(grows) + MIB + 10, "grown");
	ends(server);
	/* Changes of a file are already announced for this time. */
	sleep(2);

	strcpy(memory + 5000, "after!");
	OK(forebay_map_sync(f, 5000, 6));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_sync(grows, MIB, 20));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_sync(grows, 0, 1));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_lock(f, 2 * MIB, 1));
	cannot_be_touched(memory, path);
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_truncate(f, 4 * MIB));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_truncate(f, MIB));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_write(f, 7 * MIB, "far", 3));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_write_back(f));
	FAILS(FOREBAY_MAP_E_POOL, "has ended",
	      forebay_map_file_open(pool, path_of(dir, "own"), 0, &other));
	FAILS(FOREBAY_MAP_E_BUSY, "in use", forebay_map_pool_open(pool_path, NULL, &o, &again));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_file_close(grows));
	FAILS(FOREBAY_MAP_E_POOL, "has ended", forebay_map_file_close(f));
	OK(forebay_map_pool_close(pool));
	/* Nothing is mapped any more, so the pool is available. */
	o.flags = FOREBAY_MAP_RECOVER;
	OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
	file_has(path, 5000, "after!");
	OK(forebay_map_pool_close(pool));
}

/* A process is killed with synced data, which the next open or the server recovers. */
static void crash(const char *pool_path, const char *dir, int served)
{
	struct forebay_map_options o = { .struct_bytes = sizeof(o), .interval_ms = 1000000 };
	struct forebay_map_pool *pool;
	struct forebay_map_file *f;
	const char *path = path_of(dir, "crash");
	int status;
	pid_t child;

	make_file(path, MIB);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		OK(forebay_map_pool_open(pool_path, "db", &o, &pool));
		OK(forebay_map_file_open(pool, path, 0, &f));
		strcpy((char *)forebay_map_address(f) + 12345, "synced");
		OK(forebay_map_sync(f, 12345, 6));
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	if (!served) {
		OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
		FAILS(FOREBAY_MAP_E_REFUSED, "since a crash",
		      forebay_map_file_open(pool, path, 0, &f));
		OK(forebay_map_pool_close(pool));
	}
	o.flags = FOREBAY_MAP_RECOVER;
	OK(forebay_map_pool_open(pool_path, NULL, &o, &pool));
	/* A server has recovered it by then. */
	if (!served)
		file_has(path, 12345, "synced");
	OK(forebay_map_file_open(pool, path, 0, &f));
	file_has(path, 12345, "synced");
	OK(forebay_map_file_close(f));
	OK(forebay_map_pool_close(pool));
}

/* Called before this process opens anything, because children open pools of their own only then. */
static void in_a_process(void (*test)(const char *, const char *, int), const char *pool_path,
			 const char *dir, int served)
{
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0) {
		test(pool_path, dir, served);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	struct forebay_map_options o = { .struct_bytes = sizeof(o), .most_locked_segments = 2 };
	struct forebay_map_pool *pool;
	int served = argc == 4;

	if (argc < 3 || argc > 4)
		return 2;
	names();
	in_a_process(crash, argv[1], argv[2], served);
	in_a_process(neighbours, argv[1], argv[2], served);
	pool_arguments(argv[1], argv[2]);
	OK(forebay_map_pool_open(argv[1], NULL, &o, &pool));
	files(pool, argv[2]);
	OK(forebay_map_pool_close(pool));
	FAILS(FOREBAY_MAP_E_HANDLE, "closed", forebay_map_pool_close(pool));
	if (served)
		without_server(argv[1], argv[2], (pid_t)atoi(argv[3]));
	return 0;
}
