// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: several mappings of one file live and end by themselves under `forebay map-run`.  A size
 * that is not possible leaves the file as it was.
 * Method: this program checks what each call gives, and is run both ways by run.sh.
 *
 *	twice mappings FILE    mmap twice, munmap once, in each order; parts; mremap; another file
 *	twice random FILE      random mmap, munmap and mremap of two files, against a model
 *	twice sizes FILE       sizes and mappings that are not possible
 *	twice appends FILE     an append from a mapping of the file, with memory for a copy of it and without
 *	twice child FILE       more room while a child lives
 *	twice past FILE        calls of a range that begins in a mapping and ends behind it
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB (1l << 20)
#define PAGES 64

static int make(const char *path, const char *end, char with)
{
	char name[512], page[PAGE];
	int fd, i;

	snprintf(name, sizeof(name), "%s%s", path, end);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	memset(page, with, PAGE);
	for (i = 0; i < PAGES; i++)
		CHECK(write(fd, page, PAGE) == PAGE);
	return fd;
}

static char *get(int fd, long page, long pages)
{
	char *p = mmap(NULL, (size_t)(pages * PAGE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, page * PAGE);

	CHECK(p != MAP_FAILED);
	return p;
}

static void is(const char *p, char with)
{
	CHECK(p[0] == with && p[PAGE - 1] == with);
}

/* Checks that a store through a mapping is in the file of that name and in no other. */
static void is_in(const char *path, const char *end, long page, char with)
{
	char name[512], c = 0;
	int fd;

	snprintf(name, sizeof(name), "%s%s", path, end);
	fd = open(name, O_RDONLY);
	CHECK(fd >= 0 && pread(fd, &c, 1, page * PAGE) == 1 && close(fd) == 0);
	CHECK(c == with);
}

static void mappings(const char *path)
{
	int first, fd, other;
	char *a, *b, *c;

	for (first = 0; first < 2; first++) {
		/* The two mappings are of the same file.  The descriptor is closed, one mapping is
		 * unmapped, and another file is opened. */
		fd = make(path, "", 'a');
		a = get(fd, 0, PAGES);
		b = get(fd, 0, PAGES);
		CHECK(close(fd) == 0 && munmap(first ? a : b, PAGES * PAGE) == 0);
		other = make(path, ".other.map", 'o');
		c = get(other, 0, PAGES);
		b = first ? b : a;
		is(b, 'a');
		b[0] = 'B';
		CHECK(msync(b, PAGE, MS_SYNC) == 0);
		is(c, 'o');
		CHECK(munmap(b, PAGES * PAGE) == 0 && munmap(c, PAGES * PAGE) == 0 && close(other) == 0);
		is_in(path, "", 0, 'B');
		is_in(path, ".other.map", 0, 'o');
	}
	/* One mapping lies within the other.  Parts of one are unmapped, and all of the other
	 * stays. */
	fd = make(path, "", 'a');
	a = get(fd, 0, PAGES);
	b = get(fd, 4, 8);
	CHECK(close(fd) == 0 && munmap(a, 8 * PAGE) == 0 && munmap(a + 16 * PAGE, (PAGES - 16) * PAGE) == 0);
	is(b + 7 * PAGE, 'a');
	memset(b + 3 * PAGE, 'c', PAGE);
	CHECK(munmap(a + 8 * PAGE, 8 * PAGE) == 0);
	is(b, 'a');
	is(b + 3 * PAGE, 'c');
	CHECK(msync(b, 8 * PAGE, MS_SYNC) == 0 && munmap(b, 8 * PAGE) == 0);
	is_in(path, "", 7, 'c');
	/* Nothing is mapped in the range any more. */
	CHECK(munmap(b, 8 * PAGE) == 0);

	/* A part of a mapping gets longer and shorter, next to another one. */
	fd = make(path, "", 'a');
	a = get(fd, 0, 8);
	b = get(fd, 0, 8);
	CHECK(close(fd) == 0);
	a = mremap(a, 8 * PAGE, PAGES * PAGE, MREMAP_MAYMOVE);
	CHECK(a != MAP_FAILED);
	is(a + (PAGES - 1) * PAGE, 'a');
	a[32 * PAGE] = 'L';
	CHECK(munmap(b, 8 * PAGE) == 0);
	is(a, 'a');
	c = mremap(a + 4 * PAGE, 4 * PAGE, 2 * PAGE, 0);
	CHECK(c == a + 4 * PAGE);
	is(c + PAGE, 'a');
	is(a + 8 * PAGE, 'a' == a[8 * PAGE] ? 'a' : 'L');
	CHECK(a[32 * PAGE] == 'L');
	/* A second mapping of the file is made without its descriptor. */
	b = mremap(a, 0, 4 * PAGE, MREMAP_MAYMOVE);
	CHECK(b != MAP_FAILED && munmap(a, PAGES * PAGE) == 0);
	is(b + 3 * PAGE, 'a');
	b[2 * PAGE] = 'D';
	CHECK(munmap(b, 4 * PAGE) == 0);
	is_in(path, "", 32, 'L');
	is_in(path, "", 2, 'D');
	CHECK(mremap(b, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
}

struct view {
	char *p;
	int file;
	long page, pages;
};

/* Each mapping shows its file's bytes until it is unmapped. */
static void at_random(const char *path)
{
	static char model[2][PAGES];
	struct view all[24];
	uint64_t seed = 7;
	int fd[2], n = 0, round, i;

	fd[0] = make(path, "", 0);
	fd[1] = make(path, ".other.map", 0);
	for (round = 0; round < 20000; round++) {
		long r = (long)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33);
		struct view *v = n ? &all[r % n] : all;
		long page, pages;

		switch (r / 64 % 4) {
		case 0:
			if (n == 24)
				break;
			v = &all[n++];
			v->file = (int)(r / 256 % 2);
			v->page = r / 512 % PAGES;
			v->pages = 1 + r / 65536 % (PAGES - v->page);
			v->p = get(fd[v->file], v->page, v->pages);
			break;
		case 1:
			if (!n)
				break;
			CHECK(munmap(v->p, (size_t)(v->pages * PAGE)) == 0);
			*v = all[--n];
			break;
		case 2:
			if (!n)
				break;
			pages = 1 + r / 512 % (PAGES - v->page);
			v->p = mremap(v->p, (size_t)(v->pages * PAGE), (size_t)(pages * PAGE), MREMAP_MAYMOVE);
			CHECK(v->p != MAP_FAILED);
			v->pages = pages;
			break;
		default:
			if (!n)
				break;
			page = r / 512 % v->pages;
			v->p[page * PAGE] = model[v->file][v->page + page] = (char)(r / 131072);
		}
		/* Descriptors are opened and closed.  The mappings keep the files. */
		if (round % 97 == 0) {
			i = round / 97 % 2;
			CHECK(close(fd[i]) == 0);
			char name[512];

			snprintf(name, sizeof(name), "%s%s", path, i ? ".other.map" : "");
			fd[i] = open(name, O_RDWR);
			CHECK(fd[i] >= 0);
		}
		for (i = 0; i < n; i++)
			CHECK(all[i].p[0] == model[all[i].file][all[i].page] &&
			      all[i].p[(all[i].pages - 1) * PAGE] ==
				      model[all[i].file][all[i].page + all[i].pages - 1]);
	}
	while (n--)
		CHECK(munmap(all[n].p, (size_t)(all[n].pages * PAGE)) == 0);
}

static off_t size(int fd)
{
	struct stat st;

	CHECK(fstat(fd, &st) == 0);
	return st.st_size;
}

/* The file is unchanged since before the last call. */
static void is_whole(int fd, off_t was, const char *bytes)
{
	char found[8] = "";

	CHECK(size(fd) == was && pread(fd, found, 4, 8 * PAGE) == 4 && memcmp(found, bytes, 4) == 0);
	CHECK(pwrite(fd, bytes, 4, 8 * PAGE) == 4 && fdatasync(fd) == 0);
}

static void sizes(const char *path)
{
	int fd = make(path, "", 'a');
	off_t was = size(fd);
	char *p;

	CHECK(pwrite(fd, "here", 4, 8 * PAGE) == 4);
	if (ftruncate(fd, 1l << 40) == 0)
		CHECK(!is_mapped_run() && ftruncate(fd, was) == 0);
	is_whole(fd, was, "here");
	if (posix_fallocate(fd, 0, 1l << 50) == 0)
		CHECK(0);
	is_whole(fd, was, "here");
	if (pwrite(fd, "far", 3, 1l << 39) == 3)
		CHECK(!is_mapped_run() && ftruncate(fd, was) == 0);
	is_whole(fd, was, "here");
	p = mmap(NULL, 300l << 30, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		CHECK(!is_mapped_run() && munmap(p, 300l << 30) == 0);
	is_whole(fd, was, "here");
	/* A mapped file keeps its mapping. */
	p = get(fd, 0, PAGES);
	if (ftruncate(fd, 1l << 40) == 0)
		CHECK(!is_mapped_run() && ftruncate(fd, was) == 0);
	memcpy(p + 8 * PAGE, "HERE", 4);
	is_whole(fd, was, "HERE");
	CHECK(munmap(p, PAGES * PAGE) == 0);
	CHECK(close(fd) == 0);
}

/* A living child has the descriptors, and does not keep the file from getting more room. */
static void child(const char *path)
{
	int fd = make(path, "", 'a'), ends[2], status;
	off_t was = size(fd);
	pid_t child;
	char c;

	CHECK(pwrite(fd, "HERE", 4, 8 * PAGE) == 4 && pipe(ends) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[1]);
		_exit(read(ends[0], &c, 1) == 0 ? 0 : 1);
	}
	close(ends[0]);
	CHECK(pwrite(fd, "more", 4, 3l << 30) == 4 && ftruncate(fd, was) == 0);
	is_whole(fd, was, "HERE");
	close(ends[1]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pwrite(fd, "more", 4, 3l << 30) == 4 && ftruncate(fd, was) == 0);
	is_whole(fd, was, "HERE");
	CHECK(close(fd) == 0);
}

/* Without memory for a copy an append fails, and the file is unchanged. */
static void appends(const char *path)
{
	const long len = 24 * MIB;
	struct rlimit old, low;
	unsigned long pages;
	struct stat st;
	FILE *statm;
	long i, n;
	char *p;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);

	CHECK(fd >= 0 && ftruncate(fd, len) == 0);
	p = mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	for (i = 0; i < len; i += PAGE)
		p[i] = (char)(i / PAGE % 100 + 1);
	statm = fopen("/proc/self/statm", "r");
	CHECK(statm && fscanf(statm, "%lu", &pages) == 1 && fclose(statm) == 0);
	CHECK(getrlimit(RLIMIT_AS, &old) == 0);
	low = old;
	low.rlim_cur = pages * PAGE + 16 * MIB;
	CHECK(setrlimit(RLIMIT_AS, &low) == 0);
	n = write(fd, p, (size_t)len);
	CHECK(n == len || (is_mapped_run() && n == -1 && errno == ENOMEM));
	CHECK(setrlimit(RLIMIT_AS, &old) == 0);
	CHECK(fstat(fd, &st) == 0 && st.st_size == (n < 0 ? len : 2 * len));
	CHECK(n == len || write(fd, p, (size_t)len) == len);
	CHECK(fstat(fd, &st) == 0 && st.st_size == 2 * len);
	for (i = 0; i < len; i += PAGE) {
		char c;

		CHECK(pread(fd, &c, 1, len + i) == 1 && c == p[i]);
	}
	CHECK(close(fd) == 0 && munmap(p, (size_t)len) == 0);
}

/* Returns the end of a mapping's addresses, with those that belong to it. */
static char *end_of(const char *p)
{
	unsigned long from, to, end = (unsigned long)p;
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= end && end < to)
			end = to;
	CHECK(fclose(maps) == 0);
	return (char *)end;
}

static int is_mapped(void *p)
{
	unsigned char in;

	return mincore(p, PAGE, &in) == 0;
}

static void past(const char *path)
{
	const int both = PROT_READ | PROT_WRITE, fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	int fd = make(path, "", 'a');
	char *p = get(fd, 0, PAGES), *end;
	size_t len;

	if (is_mapped_run()) {
		/* All of its room is mapped: nothing else lies between. */
		end = end_of(p);
		CHECK(munmap(p, PAGES * PAGE) == 0 && mmap(NULL, end - p, both, MAP_SHARED, fd, 0) == p);
	} else {
		/* Nothing follows this one. */
		char *q = mmap(NULL, 2 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(q != MAP_FAILED && munmap(p, PAGES * PAGE) == 0);
		p = mmap(q, PAGES * PAGE, both, MAP_SHARED | MAP_FIXED, fd, 0);
		CHECK(p == q);
		end = p + PAGES * PAGE;
	}
	CHECK(mmap(end, PAGE, both, fixed, -1, 0) == end);
	len = (size_t)(end - p) + PAGE;
	end[0] = 'x';
	p[0] = 'b';
	CHECK(mprotect(end, PAGE, PROT_READ) == 0 && mprotect(p, len, both) == 0);
	end[0] = 'y';
	if (is_mapped_run())
		p[PAGE] = 'c';
	CHECK(msync(p, len, MS_SYNC) == 0);
	CHECK(madvise(p, len, MADV_DONTNEED) == 0 && end[0] == 0 && p[0] == 'b');
	CHECK(mremap(p, len, PAGE, 0) == p && !is_mapped(end));
	CHECK(mmap(end, PAGE, both, fixed, -1, 0) == end);
	CHECK(munmap(p, len) == 0 && !is_mapped(end));
	CHECK(close(fd) == 0);
	is_in(path, "", 0, 'b');
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (strcmp(argv[1], "mappings") == 0)
		mappings(argv[2]);
	else if (strcmp(argv[1], "random") == 0)
		at_random(argv[2]);
	else if (strcmp(argv[1], "sizes") == 0)
		sizes(argv[2]);
	else if (strcmp(argv[1], "appends") == 0)
		appends(argv[2]);
	else if (strcmp(argv[1], "child") == 0)
		child(argv[2]);
	else if (strcmp(argv[1], "past") == 0)
		past(argv[2]);
	else
		CHECK(0);
	return 0;
}
