// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * same_tree.h - what same.c compares: results of operations, attributes, whole trees;
 * and what it says of a difference.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define SIDES 2
#define FILES 8
#define BYTES_MAX (256u << 10)
#define SHARED_RANGE 65536u
#define SET_TIME 1500000000 /* older times were set by the test */

static struct {
	const char *directory[SIDES];
	uint64_t ops, processes, seed, every, user, tmpfile, old, wrong, compare;
} want = { .ops = 20000, .processes = 2, .seed = 1, .every = 500 };

/* The result of an operation. */
struct result {
	int64_t value;
	int error;
	uint64_t sum; /* of the bytes that it returned */
	size_t length;
};

static uint64_t state, op_number;
static unsigned process;
static char history[16][400];
static int files[FILES][SIDES];
static bool file_direct[FILES];
static uint8_t *data, *got[SIDES];
static uint64_t succeeded, failed;

static uint64_t random_number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t n)
{
	return (random_number() >> 11) % n;
}

static bool one_in(uint64_t n)
{
	return below(n) == 0;
}

static void note(const char *format, ...)
{
	char *line = history[op_number % 16];
	int n = snprintf(line, sizeof(history[0]), "%llu ", (unsigned long long)op_number);
	va_list list;

	va_start(list, format);
	vsnprintf(line + n, sizeof(history[0]) - n, format, list);
	va_end(list);
}

static void __attribute__((format(printf, 1, 2))) differ(const char *format, ...)
{
	va_list list;

	flockfile(stderr);
	fprintf(stderr, "same: process %u, seed %llu: ", process, (unsigned long long)want.seed);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\nthe operations before it:\n");
	for (unsigned i = 15; i < 16; i--) {
		if (op_number >= i)
			fprintf(stderr, "  %s\n", history[(op_number - i) % 16]);
	}
	funlockfile(stderr);
	_exit(1);
}

static void need(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "same: %s: %s\n", what, strerror(errno));
		_exit(2);
	}
}

static uint64_t sum_of(const uint8_t *p, size_t n)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return h;
}

/* ---- comparing results ------------------------------------------------ */

static void compare(const struct result *r)
{
	if (r[0].value >= 0)
		succeeded++;
	else
		failed++;
	if (r[0].value != r[1].value || r[0].error != r[1].error)
		differ("%s: %lld (%s) and %lld (%s)", history[op_number % 16], (long long)r[0].value,
		       r[0].error ? strerrorname_np(r[0].error) : "-", (long long)r[1].value,
		       r[1].error ? strerrorname_np(r[1].error) : "-");
	if (r[0].length != r[1].length || r[0].sum != r[1].sum)
		differ("%s: other bytes", history[op_number % 16]);
}

static void both(int64_t (*call)(int side, void *arg), void *arg)
{
	struct result r[SIDES] = { 0 };

	for (int side = 0; side < SIDES; side++) {
		errno = 0;
		r[side].value = call(side, arg);
		r[side].error = r[side].value < 0 ? errno : 0;
	}
	compare(r);
}

/* The call is an expression in `side`; `also` checks its effect, r_[side]. */
#define BOTH_AND(expression, also) \
	do { \
		struct result r_[SIDES] = { 0 }; \
		for (int side = 0; side < SIDES; side++) { \
			errno = 0; \
			r_[side].value = (expression); \
			r_[side].error = r_[side].value < 0 ? errno : 0; \
			also; \
		} \
		compare(r_); \
	} while (0)

#define BOTH(expression) BOTH_AND(expression, (void)0)

/* Like BOTH, for a call that returns the number of bytes in got[side]. */
#define BOTH_GOT(expression) \
	BOTH_AND(expression, if (r_[side].value > 0) { \
		r_[side].length = r_[side].value; \
		r_[side].sum = sum_of(got[side], r_[side].length); \
	})

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	if (a->tv_sec < SET_TIME || b->tv_sec < SET_TIME)
		return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
	return labs(a->tv_sec - b->tv_sec) < 600; /* both are of this run */
}

static void same_stat(const struct stat *a, const struct stat *b, const char *what)
{
#define SAME(field) \
	if (a->field != b->field) \
		differ("%s: " #field " is %llo and %llo (octal)", what, (unsigned long long)a->field, (unsigned long long)b->field)

	SAME(st_mode);
	SAME(st_uid);
	SAME(st_gid);
	SAME(st_rdev);
	SAME(st_nlink);
	if (!S_ISDIR(a->st_mode))
		SAME(st_size);
	if (!same_time(&a->st_mtim, &b->st_mtim))
		differ("%s: modified at %lld.%09ld and %lld.%09ld", what, (long long)a->st_mtim.tv_sec, a->st_mtim.tv_nsec,
		       (long long)b->st_mtim.tv_sec, b->st_mtim.tv_nsec);
	if (!same_time(&a->st_ctim, &b->st_ctim))
		differ("%s: changed at other times", what);
}

/* ---- comparing trees -------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t names_of(const char *directory, char **names, size_t most)
{
	DIR *d = opendir(directory);
	struct dirent *e;
	size_t n = 0;

	if (!d)
		differ("%s: cannot be listed: %s", directory, strerror(errno));
	while ((e = readdir(d))) {
		if (n < most && strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			names[n++] = strdup(e->d_name);
	}
	closedir(d);
	qsort(names, n, sizeof(*names), by_text);
	return n;
}

static void same_xattrs(char *const *name)
{
	static char list[SIDES][65536];
	static char *names[SIDES][128];
	ssize_t length[SIDES];
	size_t count[SIDES] = { 0 };

	for (int side = 0; side < SIDES; side++) {
		length[side] = llistxattr(name[side], list[side], sizeof(list[0]));
		for (ssize_t at = 0; at < length[side] && count[side] < 128; at += strlen(list[side] + at) + 1)
			names[side][count[side]++] = list[side] + at;
		qsort(names[side], count[side], sizeof(char *), by_text);
	}
	if (count[0] != count[1])
		differ("%s: %zu and %zu extended attributes", name[0], count[0], count[1]);
	for (size_t i = 0; i < count[0]; i++) {
		ssize_t n[SIDES];

		if (strcmp(names[0][i], names[1][i]))
			differ("%s: extended attribute %s or %s", name[0], names[0][i], names[1][i]);
		for (int side = 0; side < SIDES; side++)
			n[side] = lgetxattr(name[side], names[side][i], got[side], BYTES_MAX);
		if (n[0] != n[1] || (n[0] > 0 && memcmp(got[0], got[1], n[0])))
			differ("%s: the extended attribute %s has other bytes", name[0], names[0][i]);
	}
}

static void same_range(const int *fd, off_t at, off_t end, const char *name)
{
	while (at < end) {
		size_t most = end - at < (off_t)BYTES_MAX ? (size_t)(end - at) : BYTES_MAX;
		ssize_t n[SIDES];

		for (int side = 0; side < SIDES; side++)
			n[side] = pread(fd[side], got[side], most, at);
		if (n[0] != n[1] || n[0] <= 0)
			differ("%s: %zd and %zd bytes at %lld", name, n[0], n[1], (long long)at);
		for (ssize_t i = 0; i < n[0]; i++) {
			if (got[0][i] != got[1][i])
				differ("%s: byte %lld is %02x and %02x", name, (long long)at + i, got[0][i], got[1][i]);
		}
		at += n[0];
	}
}

static void same_bytes(char *const *name, off_t size)
{
	int fd[SIDES];

	for (int side = 0; side < SIDES; side++) {
		fd[side] = open(name[side], O_RDONLY | O_NOFOLLOW);
		need(fd[side] >= 0, name[side]);
	}
	/* Only both ends of a large sparse file are compared. */
	same_range(fd, 0, size < 4 * (off_t)BYTES_MAX ? size : 2 * (off_t)BYTES_MAX, name[0]);
	if (size >= 4 * (off_t)BYTES_MAX)
		same_range(fd, size - 2 * (off_t)BYTES_MAX, size, name[0]);
	for (int side = 0; side < SIDES; side++)
		close(fd[side]);
}

/* Maps inodes of one side to the other. */
static struct {
	ino_t ino[SIDES];
} inodes[8192];
static size_t inodes_known;

static void same_inode(const struct stat *st, const char *name)
{
	for (size_t i = 0; i < inodes_known; i++) {
		bool same[SIDES];

		for (int side = 0; side < SIDES; side++)
			same[side] = inodes[i].ino[side] == st[side].st_ino;
		if (same[0] != same[1])
			differ("%s: is one inode with another name on one side alone", name);
		if (same[0])
			return;
	}
	if (inodes_known < sizeof(inodes) / sizeof(inodes[0])) {
		for (int side = 0; side < SIDES; side++)
			inodes[inodes_known].ino[side] = st[side].st_ino;
		inodes_known++;
	}
}

static void same_tree(const char *a, const char *b)
{
	const char *root[SIDES] = { a, b };
	char **names[SIDES];
	size_t n[SIDES];

	for (int side = 0; side < SIDES; side++) {
		names[side] = calloc(4096, sizeof(char *));
		n[side] = names_of(root[side], names[side], 4096);
	}
	for (size_t i = 0; i < n[0] || i < n[1]; i++) {
		if (i >= n[0] || i >= n[1] || strcmp(names[0][i], names[1][i]))
			differ("%s: has %s and %s", a, i < n[0] ? names[0][i] : "-", i < n[1] ? names[1][i] : "-");
	}
	for (size_t i = 0; i < n[0]; i++) {
		char *name[SIDES];
		struct stat st[SIDES];

		for (int side = 0; side < SIDES; side++) {
			need(asprintf(&name[side], "%s/%s", root[side], names[side][i]) > 0, "asprintf");
			if (lstat(name[side], &st[side]))
				differ("%s: listed and not there: %s", name[side], strerror(errno));
			free(names[side][i]);
		}
		same_stat(&st[0], &st[1], name[0]);
		same_inode(st, name[0]);
		same_xattrs(name);
		if (S_ISREG(st[0].st_mode))
			same_bytes(name, st[0].st_size);
		if (S_ISDIR(st[0].st_mode))
			same_tree(name[0], name[1]);
		for (int side = 0; side < SIDES; side++)
			free(name[side]);
	}
	for (int side = 0; side < SIDES; side++)
		free(names[side]);
}

static void same_part(void)
{
	char part[SIDES][4200];

	inodes_known = 0;
	for (int side = 0; side < SIDES; side++)
		snprintf(part[side], sizeof(part[0]), "%s/p%u", want.directory[side], process);
	same_tree(part[0], part[1]);
}
