// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a program sees of its files under `forebay map-run` what it sees without.
 * Method: this program checks what each call gives, and run.sh and planted.sh run it both ways.
 * It does not know about Forebay.
 *
 *	program calls FILE             all calls; ends with 0 if all is as it should be
 *	program write|dsync|fsync|msync|raw FILE
 *	                               says "N" when N is durable, for ever; to be killed
 *	                               (raw: msync by an instruction of its own)
 *	program log FILE               the same, as records that are appended to a mapping
 *	program lines FILE             the same, as lines that are written to its end
 *	program last|last-log FILE     the highest N in the file
 *	program last-line FILE         likewise; nothing follows its last line
 *	program close FILE             writes, and closes without a sync
 *	program exit FILE              stores, and ends without a sync
 *	program busy FILE              the same, while threads store to FILE.busy.map
 *	program across FILE            syncs from below the mapping on, and is killed
 *	program replaced FILE          writes to a file that was replaced, more than 4 MiB
 *	program fork FILE              a child is refused, the parent goes on
 *	program daemon FILE            forks first: the child is as good as the program
 *	program exec FILE PROGRAM      exec with the file open
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"
#include "raw.h"

#define MIB (1l << 20)
#define SLOTS 512

static void has(int fd, off_t at, const char *bytes)
{
	char found[64] = "";
	size_t n = strlen(bytes);

	CHECK(pread(fd, found, n, at) == (ssize_t)n);
	CHECK(memcmp(found, bytes, n) == 0);
}

static off_t size_of(int fd, const char *path)
{
	struct stat a, b;

	CHECK(fstat(fd, &a) == 0 && stat(path, &b) == 0);
	CHECK(a.st_size == b.st_size && a.st_ino == b.st_ino && S_ISREG(a.st_mode));
	return a.st_size;
}

static void reads_and_writes(const char *path)
{
	char a[8] = "", b[8] = "";
	struct iovec v[2] = { { a, 3 }, { b, 4 } };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), other, append;

	CHECK(fd >= 0 && size_of(fd, path) == 0);
	CHECK(write(fd, "hello", 5) == 5 && lseek(fd, 0, SEEK_CUR) == 5);
	CHECK(lseek(fd, 1, SEEK_SET) == 1 && read(fd, a, 8) == 4 && memcmp(a, "ello", 4) == 0);
	CHECK(read(fd, a, 8) == 0);
	CHECK(pwrite(fd, "far", 3, 3 * MIB) == 3 && size_of(fd, path) == 3 * MIB + 3);
	has(fd, 3 * MIB, "far");
	CHECK(lseek(fd, -3, SEEK_END) == 3 * MIB && read(fd, a, 3) == 3 && memcmp(a, "far", 3) == 0);
	CHECK(lseek(fd, -1, SEEK_SET) == -1 && errno == EINVAL);
	memcpy(a, "abc", 3);
	memcpy(b, "defg", 4);
	CHECK(pwritev(fd, v, 2, 100) == 7);
	has(fd, 100, "abcdefg");
	memset(a, 0, 8);
	CHECK(preadv(fd, v, 2, 103) == 7 && memcmp(a, "def", 3) == 0 && b[0] == 'g' && b[1] == 0);
	CHECK(lseek(fd, 200, SEEK_SET) == 200 && writev(fd, v, 1) == 3 && lseek(fd, 200, SEEK_SET) == 200);
	CHECK(readv(fd, v, 1) == 3 && memcmp(a, "def", 3) == 0);
	CHECK(pwritev2(fd, v, 1, 300, RWF_DSYNC) == 3);
	has(fd, 300, "def");
	CHECK(pread(fd, a, 8, 100 * MIB) == 0);
	CHECK(pread(fd, a, 1, -1) == -1 && errno == EINVAL);
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && sync_file_range(fd, 0, 0, 7) == 0 && syncfs(fd) == 0);

	/* Another description has its own position, and a duplicate has not. */
	other = dup(fd);
	CHECK(other >= 0 && lseek(fd, 100, SEEK_SET) == 100 && read(other, a, 3) == 3);
	CHECK(memcmp(a, "abc", 3) == 0 && lseek(fd, 0, SEEK_CUR) == 103);
	CHECK(close(fd) == 0);
	CHECK(read(other, a, 4) == 4 && memcmp(a, "defg", 4) == 0);
	CHECK(read(fd, a, 1) == -1 && errno == EBADF);
	fd = fcntl(other, F_DUPFD, 50);
	CHECK(fd == 50 && dup2(fd, 60) == 60 && dup3(fd, 61, O_CLOEXEC) == 61 && dup2(fd, fd) == fd);
	CHECK(fcntl(61, F_GETFD) == FD_CLOEXEC && fcntl(60, F_GETFD) == 0);
	has(60, 100, "abc");
	has(61, 100, "abc");
	CHECK(close(60) == 0 && close_range(61, 61, 0) == 0 && fcntl(61, F_GETFD) == -1);
	append = open(path, O_WRONLY | O_APPEND);
	CHECK(append >= 0 && (fcntl(append, F_GETFL) & (O_ACCMODE | O_APPEND)) == (O_WRONLY | O_APPEND));
	CHECK(read(append, a, 1) == -1 && errno == EBADF);
	CHECK(write(append, "end", 3) == 3 && lseek(append, 0, SEEK_CUR) == 3 * MIB + 6);
	has(fd, 3 * MIB + 3, "end");
	CHECK(lseek(append, 0, SEEK_SET) == 0 && write(append, "more", 4) == 4);
	has(fd, 3 * MIB + 6, "more");
	CHECK(close(append) == 0);
	append = open(path, O_RDONLY);
	CHECK(append >= 0 && write(append, "x", 1) == -1 && errno == EBADF);
	CHECK(ftruncate(append, 0) == -1);
	CHECK(close(append) == 0 && close(other) == 0 && close(fd) == 0);
	CHECK(open(path, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
}

static void sizes(const char *path)
{
	char byte;
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0 && pwrite(fd, "cut off", 7, 200) == 7);
	CHECK(ftruncate(fd, 101) == 0 && size_of(fd, path) == 101);
	CHECK(ftruncate(fd, 3 * PAGE) == 0 && pread(fd, &byte, 1, 101) == 1 && byte == 0);
	CHECK(pread(fd, &byte, 1, 200) == 1 && byte == 0);
	has(fd, 100, "a");
	CHECK(truncate(path, 5 * PAGE) == 0 && size_of(fd, path) == 5 * PAGE);
	CHECK(fallocate(fd, 0, 4 * PAGE, 4 * PAGE) == 0 && size_of(fd, path) == 8 * PAGE);
	CHECK(posix_fallocate(fd, 9 * PAGE, PAGE) == 0 && size_of(fd, path) == 10 * PAGE);
	CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0 && size_of(fd, path) == 10 * PAGE);
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
	CHECK(pread(fd, &byte, 1, 100) == 1 && byte == 0);
	CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
	/* The file grows beyond its size at the open, and gets room. */
	CHECK(pwrite(fd, "large", 5, 40 * MIB) == 5 && size_of(fd, path) == 40 * MIB + 5);
	has(fd, 40 * MIB, "large");
	CHECK(ftruncate(fd, 4 * MIB) == 0);
	CHECK(flock(fd, LOCK_EX) == 0 && lockf(fd, F_TLOCK, 0) == 0);
	CHECK(fchmod(fd, 0640) == 0 && close(fd) == 0);
	fd = open(path, O_RDWR | O_TRUNC);
	CHECK(fd >= 0 && size_of(fd, path) == 0 && ftruncate(fd, 4 * MIB) == 0 && close(fd) == 0);
}

static void mappings(const char *path)
{
	int fd = open(path, O_RDWR), reads;
	char *shared, *more, *private, byte;

	CHECK(fd >= 0 && pwrite(fd, "before", 6, 0) == 6);
	shared = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED && memcmp(shared, "before", 6) == 0);
	memcpy(shared + PAGE, "stored", 6);
	has(fd, PAGE, "stored");
	CHECK(pwrite(fd, "written", 7, 2 * PAGE) == 7 && memcmp(shared + 2 * PAGE, "written", 7) == 0);
	CHECK(msync(shared + PAGE, PAGE, MS_SYNC) == 0 && msync(shared, 4 * MIB, MS_ASYNC) == 0);
	CHECK(msync(shared + 1, 1, MS_SYNC) == -1 && errno == EINVAL);
	CHECK(msync(shared, PAGE, MS_SYNC | MS_ASYNC) == -1 && errno == EINVAL);
	more = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	CHECK(more != MAP_FAILED && memcmp(more, "stored", 6) == 0);
	memcpy(shared + PAGE, "STORED", 6);
	CHECK(memcmp(more, "STORED", 6) == 0 && munmap(more, PAGE) == 0);
	/* A private mapping has the present content, and its stores are its own. */
	memcpy(shared + 3 * PAGE, "for all", 7);
	private = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(private != MAP_FAILED && memcmp(private + 3 * PAGE, "for all", 7) == 0);
	private[3 * PAGE] = 'X';
	has(fd, 3 * PAGE, "for all");
	CHECK(munmap(private, 4 * MIB) == 0);
	CHECK(mlock(shared, PAGE) == 0 && munlock(shared, PAGE) == 0);
	CHECK(madvise(shared, 4 * MIB, MADV_RANDOM) == 0 && madvise(shared, 4 * MIB, MADV_DONTNEED) == 0);
	CHECK(posix_madvise(shared, 4 * MIB, POSIX_MADV_WILLNEED) == 0);
	CHECK(memcmp(shared + PAGE, "STORED", 6) == 0);
	CHECK(mprotect(shared, PAGE, PROT_READ | PROT_WRITE) == 0);
	/* The kernel reads into the mapping, and writes from it. */
	reads = open("/dev/zero", O_RDONLY);
	CHECK(reads >= 0 && read(reads, shared + PAGE, 6) == 6 && close(reads) == 0);
	CHECK(pread(fd, &byte, 1, PAGE) == 1 && byte == 0);
	memcpy(shared + 5 * PAGE, "itself", 6);
	CHECK(pwrite(fd, shared + 5 * PAGE, 6, 6 * PAGE) == 6 && memcmp(shared + 6 * PAGE, "itself", 6) == 0);
	CHECK(munmap(shared + MIB, PAGE) == 0);
	CHECK(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED && errno == EINVAL);
	reads = open(path, O_RDONLY);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reads, 0) == MAP_FAILED);
	CHECK(errno == EACCES && close(reads) == 0);
	/* A mapping outlives its descriptor. */
	CHECK(close(fd) == 0);
	memcpy(shared + 7 * PAGE, "outlives", 8);
	CHECK(msync(shared + 7 * PAGE, PAGE, MS_SYNC) == 0);
	CHECK(munmap(shared, MIB) == 0 && munmap(shared + MIB + PAGE, 3 * MIB - PAGE) == 0);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	has(fd, 7 * PAGE, "outlives");
	has(fd, 6 * PAGE, "itself");
	CHECK(close(fd) == 0);
}

/* No call leaves an open file under another name. */
static void renames(const char *path, const char *other)
{
	int fd = open(other, O_RDWR | O_CREAT, 0600);
	struct stat one, two;

	CHECK(fd >= 0);
	CHECK(renameat2(AT_FDCWD, other, AT_FDCWD, path, RENAME_EXCHANGE) == -1 && errno == EBUSY);
	CHECK(syscall(SYS_renameat2, AT_FDCWD, other, AT_FDCWD, path, RENAME_EXCHANGE) == -1 && errno == EBUSY);
	CHECK(unlink(other) == 0 && link(path, other) == 0);
	CHECK(unlink(path) == -1 && errno == EBUSY);
	CHECK(unlinkat(AT_FDCWD, path, 0) == -1 && errno == EBUSY);
	CHECK(remove(path) == -1 && errno == EBUSY);
	CHECK(syscall(SYS_unlinkat, AT_FDCWD, path, 0) == -1 && errno == EBUSY);
#ifdef SYS_unlink
	CHECK(syscall(SYS_unlink, path) == -1 && errno == EBUSY);
#endif
	CHECK(close(fd) == 0 && stat(path, &one) == 0 && stat(other, &two) == 0 && one.st_ino == two.st_ino);
	/* The other name is no one's. */
	CHECK(unlink(other) == 0);
	fd = open(other, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && close(fd) == 0 && remove(other) == 0 && mkdir(other, 0700) == 0 && remove(other) == 0);
}

/* A call that would bypass the mapping is an error under map-run, and nothing worse. */
static void refused(const char *path)
{
	char other[512], byte;
	int fd = open(path, O_RDWR), out, i;
	char *shared;

	snprintf(other, sizeof(other), "%s.renamed", path);
	out = open("/dev/null", O_WRONLY);
	CHECK(fd >= 0 && out >= 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	if (is_mapped_run()) {
		CHECK(syscall(SYS_pread64, fd, &byte, 1, 0) == -1 && errno == EBADF);
		CHECK(syscall(SYS_fsync, fd) == -1 && errno == EBADF);
		CHECK(sendfile(out, fd, NULL, 1) == -1 && errno == EINVAL);
		CHECK(copy_file_range(fd, NULL, out, NULL, 1, 0) == -1 && errno == EINVAL);
		CHECK(!fopen(path, "r") && errno == EBUSY);
		CHECK(!fdopen(fd, "r") && errno == EINVAL);
		CHECK(rename(path, other) == -1 && errno == EBUSY);
		renames(path, other);
		CHECK(daemon(1, 1) == -1 && errno == EBUSY);
		CHECK(mprotect(shared, PAGE, PROT_READ) == -1 && errno == EACCES);
		CHECK(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE) == -1 && errno == EOPNOTSUPP);
		CHECK(mmap(shared, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED);
		CHECK(mmap(shared, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
		/* A private mapping of the same file there would replace the pool's memory. */
		for (i = 0; i < 2; i++) {
			const int both = PROT_READ | PROT_WRITE, fixed = MAP_PRIVATE | MAP_FIXED;

			CHECK(mmap(shared - i * PAGE, 2 * PAGE, both, fixed, fd, 0) == MAP_FAILED && errno == EINVAL);
			CHECK(syscall(SYS_mmap, shared, PAGE, both, fixed, fd, 0) == -1 && errno == EINVAL);
		}
		CHECK(pwrite(fd, "stays", 5, 0) == 5 && fsync(fd) == 0 && memcmp(shared, "stays", 5) == 0);
		/* A direct system call acknowledges it without making it durable. */
		shared[0] = 'S';
		CHECK(syscall(SYS_msync, shared, PAGE, MS_SYNC) == 0);
	}
	CHECK(munmap(shared, PAGE) == 0 && close(fd) == 0 && close(out) == 0);
	CHECK(rename(path, other) == 0 && rename(other, path) == 0);
}

/* Maps other memory that ends where the file's mapping begins.  MAP_FAILED: that is impossible. */
static char *below(char *shared)
{
	return mmap(shared - PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		    -1, 0);
}

/* Tests calls that reach into a mapping from outside. */
static void from_outside(const char *path)
{
	int fd = open(path, O_RDWR), plain;
	char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *other;
	FILE *file;

	CHECK(fd >= 0 && shared != MAP_FAILED);
	strcpy(shared + 64, "inside");
	other = below(shared);
	CHECK(!is_mapped_run() || other == shared - PAGE);
	if (is_mapped_run()) {
		CHECK(mremap(other, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, shared) == MAP_FAILED);
		CHECK(mremap(other, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
		CHECK(mprotect(other, 2 * PAGE, PROT_READ) == -1 && errno == EACCES);
		CHECK(madvise(other, 2 * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
		CHECK(munmap(other, 2 * PAGE) == -1 && errno == EINVAL);
		CHECK(syscall(SYS_munmap, other, 2 * PAGE) == -1 && errno == EINVAL);
		CHECK(msync(other, 2 * PAGE, MS_SYNC) == 0 && strcmp(shared + 64, "inside") == 0);
		CHECK(munmap(other, PAGE) == 0);
	}
	/* A direct system call opens the same file. */
	plain = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR);
	CHECK(plain >= 0 && pwrite(plain, "INSIDE", 6, 64) == 6 && strcmp(shared + 64, "INSIDE") == 0);
	CHECK(close(plain) == 0 && munmap(shared, PAGE) == 0 && close(fd) == 0);
	file = fopen(path, "r+");
	CHECK(file);
	if (is_mapped_run())
		CHECK(open(path, O_RDWR) == -1 && errno == EBUSY);
	CHECK(fclose(file) == 0);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 && close(fd) == 0);
}

static void attributes(const char *path)
{
	struct timespec times[2] = { { 1000, 7 }, { 1000000000, 0 } };
	struct stat st;
	char value[8];
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0 && pwrite(fd, "changed", 7, 128) == 7);
	CHECK(futimens(fd, times) == 0 && fstat(fd, &st) == 0 && st.st_mtime == 1000000000);
	if (fsetxattr(fd, "user.forebay-test", "some", 4, 0) == 0) {
		CHECK(fgetxattr(fd, "user.forebay-test", value, 8) == 4 && memcmp(value, "some", 4) == 0);
		CHECK(flistxattr(fd, NULL, 0) >= 18 && fremovexattr(fd, "user.forebay-test") == 0);
	} else {
		CHECK(errno == EOPNOTSUPP);
	}
	CHECK(close(fd) == 0 && stat(path, &st) == 0 && st.st_mtime == 1000000000);
	CHECK(st.st_atime == 1000);
}

static void calls(const char *path)
{
	reads_and_writes(path);
	sizes(path);
	mappings(path);
	refused(path);
	from_outside(path);
	attributes(path);
}

static void across(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	char *shared, *other;

	CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	strcpy(shared, "from below");
	other = below(shared);
	CHECK(other == shared - PAGE && msync(other, 2 * PAGE, MS_SYNC) == 0);
	kill(getpid(), SIGKILL);
}

/* The file that now has the name is another one. */
static void replaced(const char *path)
{
	static char many[5 * MIB];
	char other[512], found[16] = "";
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), new;

	snprintf(other, sizeof(other), "%s.new", path);
	new = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && new >= 0 && write(new, "another", 7) == 7 && close(new) == 0);
	CHECK(rename(other, path) == 0);
	if (pwrite(fd, many, sizeof(many), 0) < 0)
		CHECK(is_mapped_run() && errno == EFBIG);
	CHECK(fsync(fd) == 0 && close(fd) == 0);
	new = open(path, O_RDONLY);
	CHECK(new >= 0 && read(new, found, 16) == 7 && strcmp(found, "another") == 0);
}

static void *stores(void *shared)
{
	for (uint64_t n = 0;; n++)
		((volatile uint64_t *)shared)[n % (MIB / 8)] = n;
	return NULL;
}

/* Stores number n in slot n % SLOTS, and then makes it durable in one way. */
static void count(const char *way, const char *path)
{
	int dsync = strcmp(way, "dsync") == 0, writes = strcmp(way, "write") == 0;
	int fd = open(path, O_RDWR | O_CREAT | (dsync ? O_DSYNC : 0), 0600);
	uint64_t n = 1, found;
	char *shared, line[32];
	int i;

	CHECK(fd >= 0 && ftruncate(fd, SLOTS * PAGE) == 0);
	shared = mmap(NULL, SLOTS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	for (i = 0; i < SLOTS; i++) {
		memcpy(&found, shared + i * PAGE, 8);
		n = found >= n ? found + 1 : n;
	}
	for (;; n++) {
		off_t at = (off_t)(n % SLOTS) * PAGE;

		if (dsync || writes)
			CHECK(pwrite(fd, &n, 8, at) == 8);
		else
			memcpy(shared + at, &n, 8);
		if (writes)
			CHECK(fdatasync(fd) == 0);
		else if (strcmp(way, "fsync") == 0)
			CHECK(fsync(fd) == 0);
		else if (strcmp(way, "raw") == 0)
			CHECK(raw(SYS_msync, P(shared + at), PAGE, MS_SYNC, 0, 0, 0) == 0);
		else if (!dsync)
			CHECK(msync(shared + at, PAGE, MS_SYNC) == 0);
		i = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)n);
		CHECK(write(1, line, (size_t)i) == i);
	}
}

/* Prints the numbers that must be there: each slot has the last number that went to it. */
static void last(const char *path)
{
	uint64_t all[SLOTS], most = 0;
	int fd = open(path, O_RDONLY), i;

	for (i = 0; i < SLOTS; i++) {
		CHECK(pread(fd, &all[i], 8, i * PAGE) == 8);
		most = all[i] > most ? all[i] : most;
	}
	for (i = 0; i < SLOTS && most > (uint64_t)i; i++) {
		uint64_t n = most - (uint64_t)i;

		if (all[n % SLOTS] != n) {
			fprintf(stderr, "%llu was lost\n", (unsigned long long)n);
			exit(1);
		}
	}
	printf("%llu\n", (unsigned long long)most);
}

#define LOG_ROOM (64 * MIB)

struct record {
	uint64_t n, check;
	uint32_t bytes, check_bytes;
};

/* Returns how far the records of a log are whole; *n is the last one. */
static size_t log_end(const char *memory, size_t size, uint64_t *n)
{
	struct record r;
	size_t at = 0, i;

	for (*n = 0; at + sizeof(r) <= size; at += r.bytes, *n = r.n) {
		memcpy(&r, memory + at, sizeof(r));
		if (r.n != *n + 1 || r.check != ~r.n || r.bytes != ~r.check_bytes || at + r.bytes > size)
			break;
		for (i = sizeof(r); i < r.bytes; i++)
			if (memory[at + i] != (char)r.n)
				return at;
	}
	return at;
}

/* The file grows under the mapping, which was made for its final size. */
static void append(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600), i;
	off_t size = size_of(fd, path);
	char *memory, line[32];
	struct record r;
	size_t at, first;
	uint64_t n;

	memory = mmap(NULL, LOG_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED);
	at = log_end(memory, (size_t)size, &n);
	for (;;) {
		r.n = ++n;
		r.check = ~r.n;
		r.bytes = (uint32_t)(sizeof(r) + n * 7919 % 9000);
		r.check_bytes = ~r.bytes;
		if ((off_t)(at + r.bytes) > size) {
			size += 256 << 10;
			CHECK(size <= LOG_ROOM && ftruncate(fd, size) == 0);
		}
		memcpy(memory + at, &r, sizeof(r));
		memset(memory + at + sizeof(r), (char)n, r.bytes - sizeof(r));
		first = at / PAGE * PAGE;
		at += r.bytes;
		CHECK(msync(memory + first, at - first, MS_SYNC) == 0);
		i = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)n);
		CHECK(write(1, line, (size_t)i) == i);
		if (at > LOG_ROOM - MIB)
			pause();
	}
}

static void last_of_log(const char *path)
{
	int fd = open(path, O_RDONLY);
	off_t size = size_of(fd, path);
	uint64_t n = 0;
	char *memory;

	if (size > 0) {
		memory = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(memory != MAP_FAILED);
		log_end(memory, (size_t)size, &n);
	}
	printf("%llu\n", (unsigned long long)n);
}

#define LINE 100

static void line_of(char *line, uint64_t n)
{
	snprintf(line, LINE, "%098llu", (unsigned long long)n);
	line[LINE - 2] = '.';
	line[LINE - 1] = '\n';
}

/* Returns how many bytes of line n are there, if the rest is zero from the start of a page on: the
 * new size of an unfinished sync may be durable before its last page.  -1: the line is damaged. */
static int begun(const char *is, uint64_t n)
{
	off_t at = (off_t)(n - 1) * LINE;
	char line[LINE];
	int i = 0;

	line_of(line, n);
	while (i < LINE && is[i] == line[i])
		i++;
	for (int j = i; j < LINE; j++)
		if (is[j] != 0)
			return -1;
	return i == LINE || (at + i) % PAGE == 0 ? i : -1;
}

static void lines(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
	uint64_t n = (uint64_t)size_of(fd, path) / LINE;
	char line[LINE], said[32];

	if (n > 0 && pread(fd, line, LINE, (off_t)(n - 1) * LINE) == LINE && begun(line, n) < LINE)
		CHECK(ftruncate(fd, (off_t)--n * LINE) == 0);
	while (++n) {
		int i = snprintf(said, sizeof(said), "%llu\n", (unsigned long long)n);

		line_of(line, n);
		CHECK(write(fd, line, LINE) == LINE && fdatasync(fd) == 0);
		CHECK(write(1, said, (size_t)i) == i);
	}
}

static void last_line(const char *path)
{
	FILE *f = fopen(path, "r");
	uint64_t n = 0;
	char is[LINE];
	size_t got;

	CHECK(f);
	while ((got = fread(is, 1, LINE, f)) > 0) {
		int there = got == LINE ? begun(is, n + 1) : -1;

		CHECK(there >= 0);
		if (there < LINE) { /* nothing may follow */
			CHECK(fread(is, 1, 1, f) == 0);
			break;
		}
		n++;
	}
	printf("%llu\n", (unsigned long long)n);
}

static void ends(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	char *shared;

	CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	strcpy(shared, "not synced");
}

static void ends_busy(const char *path)
{
	char other[512], *shared;
	pthread_t thread;
	int fd, i;

	snprintf(other, sizeof(other), "%s.busy.map", path);
	fd = open(other, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && ftruncate(fd, MIB) == 0);
	shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	ends(path);
	for (i = 0; i < 2; i++)
		CHECK(pthread_create(&thread, NULL, stores, shared) == 0);
	while (((volatile uint64_t *)shared)[1] == 0)
		usleep(1000);
}

static void closes(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0 && write(fd, "closed", 6) == 6 && close(fd) == 0);
}

/* A child executes another program with all of its arguments, some of them on the stack. */
static void lists(void)
{
	static const char says[] = "[ $# = 8 ] && [ $0$1$5$8 = 0158 ]";
	char *env[] = { "V=v", NULL };
	int status, i;

	for (i = 0; i < 3; i++) {
		pid_t child = fork();

		if (child == 0 && i == 0)
			execl("/bin/sh", "sh", "-c", says, "0", "1", "2", "3", "4", "5", "6", "7", "8", NULL);
		if (child == 0 && i == 1)
			execlp("sh", "sh", "-c", says, "0", "1", "2", "3", "4", "5", "6", "7", "8", NULL);
		if (child == 0)
			execle("/bin/sh", "sh", "-c", "[ $1$8$V = 18v ]", "0", "1", "2", "3", "4", "5", "6", "7", "8", NULL, env);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

static void forks(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600), status;
	char *shared, byte;
	pid_t child;

	CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	strcpy(shared, "parent");
	child = fork();
	if (child == 0) {
		CHECK(pread(fd, &byte, 1, 0) == -1 && errno == EBADF);
		CHECK(fsync(fd) == -1 && errno == EBADF);
		CHECK(msync(shared, PAGE, MS_SYNC) == -1);
		CHECK(open(path, O_RDWR) == -1 && errno == EBUSY);
		CHECK(close(fd) == 0);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile char *)shared == 'p');
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	/* The child executes another program, with the descriptor inherited, also by vfork. */
	CHECK(system("true") == 0);
	child = vfork();
	if (child == 0) {
		close(fd);
		execlp("true", "true", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	lists();
	strcpy(shared, "parent goes on");
	CHECK(msync(shared, PAGE, MS_SYNC) == 0);
	has(fd, 0, "parent goes on");
}

static void child_first(const char *path)
{
	int status, fd;
	pid_t child = fork();

	if (child == 0) {
		ends(path);
		fd = open(path, O_RDWR);
		if (is_mapped_run())
			CHECK(syscall(SYS_fsync, fd) == -1 && errno == EBADF);
		CHECK(fsync(fd) == 0 && syscall(SYS_close, fd) == 0 && fsync(fd) == -1);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	has(fd, 0, "not synced");
}

/* A call that would replace the program is refused, in each form, and so is a new name. */
static void keeps(const char *path, char *program)
{
	char *argv[] = { program, NULL }, *env[] = { NULL };
	int fd = open(program, O_RDONLY | O_CLOEXEC), i;

	CHECK(fd >= 0);
	for (i = 0; i < 9; i++) {
		errno = 0;
		switch (i) {
		case 0: execv(program, argv); break;
		case 1: execl(program, program, NULL); break;
		case 2: execlp(program, program, NULL); break;
		case 3: execle(program, program, NULL, env); break;
		case 4: execvpe(program, argv, env); break;
		case 5: fexecve(fd, argv, env); break;
		case 6: execveat(AT_FDCWD, program, argv, env, 0); break;
		case 7: syscall(SYS_execve, program, argv, env); break;
		case 8: syscall(SYS_execveat, AT_FDCWD, program, argv, env, 0); break;
		}
		CHECK(errno == EBUSY);
	}
	CHECK(rename(path, "other") == -1 && errno == EBUSY);
	CHECK(syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, "other", 0) == -1 && errno == EBUSY);
	CHECK(syscall(SYS_renameat, AT_FDCWD, path, AT_FDCWD, "other") == -1 && errno == EBUSY);
	CHECK(close(fd) == 0 && printf("refused\n") > 0);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "calls") == 0)
		calls(argv[2]);
	else if (strcmp(argv[1], "last") == 0)
		last(argv[2]);
	else if (strcmp(argv[1], "log") == 0)
		append(argv[2]);
	else if (strcmp(argv[1], "last-log") == 0)
		last_of_log(argv[2]);
	else if (strcmp(argv[1], "lines") == 0)
		lines(argv[2]);
	else if (strcmp(argv[1], "last-line") == 0)
		last_line(argv[2]);
	else if (strcmp(argv[1], "close") == 0)
		closes(argv[2]);
	else if (strcmp(argv[1], "exit") == 0)
		ends(argv[2]);
	else if (strcmp(argv[1], "busy") == 0)
		ends_busy(argv[2]);
	else if (strcmp(argv[1], "across") == 0)
		across(argv[2]);
	else if (strcmp(argv[1], "replaced") == 0)
		replaced(argv[2]);
	else if (strcmp(argv[1], "daemon") == 0)
		child_first(argv[2]);
	else if (strcmp(argv[1], "fork") == 0)
		forks(argv[2]);
	else if (strcmp(argv[1], "exec") == 0) {
		ends(argv[2]);
		keeps(argv[2], argv[3]);
	} else
		count(argv[1], argv[2]);
	return 0;
}
