// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a system call that a program makes without the C library works like the C library's
 * function, or is an error.  None is acknowledged and not done.
 * Method: this program makes such calls and compares, with and without `forebay map-run`.
 *
 *	raw calls FILE         instructions at the addresses of a mapping
 *	raw child FILE         a child that is unknown to the C library
 *	raw nest FILE N        opens, syncs and closes it, and runs itself N times more
 *	raw run FILE PROGRAM.. opens it, and runs a program in a child
 *	raw closes FILE        closes by the C library all that it has not opened
 *	raw closed FILE        the same by instructions; other files get the numbers
 *	raw stale FILE         closes its descriptor by an instruction; another file gets the number
 *	raw others FILE        the same instructions at a mapping of another file: as ever
 *	raw cost FILE          what a system call costs, in ns, without such a file and with one
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
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "raw.h"

#define BYTES (16 * PAGE)
#define SYS_MSEAL 462
#define SYS_PROCESS_MADVISE 440
#define SYS_PIDFD_OPEN 434

static char *mapped(const char *path, int *fd)
{
	char *p;

	*fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(*fd >= 0 && ftruncate(*fd, BYTES) == 0);
	p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void has(int fd, off_t at, const char *bytes)
{
	char found[64] = "";
	ssize_t n = (ssize_t)strlen(bytes);

	CHECK(pread(fd, found, strlen(bytes), at) == n && memcmp(found, bytes, strlen(bytes)) == 0);
}

static volatile sig_atomic_t own_signals;

static void own_handler(int signal)
{
	own_signals += signal == SIGSYS;
}

static char *_Atomic thread_at;

/* This thread was there before the file was opened. */
static void *early_thread(void *unused)
{
	(void)unused;
	while (!thread_at)
		usleep(1000);
	CHECK(raw(SYS_msync, P(thread_at), PAGE, MS_SYNC, 0, 0, 0) == 0);
	if (is_mapped_run())
		CHECK(raw(SYS_mprotect, P(thread_at), PAGE, PROT_READ, 0, 0, 0) == -EACCES);
	return NULL;
}

/* Makes calls that would remove the memory or put other memory there. */
static void refused(int fd, char *p)
{
	long elsewhere = P(mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), id, self;
	const long fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, move = MREMAP_MAYMOVE | MREMAP_FIXED;
	struct iovec all = { p, BYTES };

	CHECK(raw(SYS_madvise, P(p), BYTES, MADV_REMOVE, 0, 0, 0) == -EINVAL);
	CHECK(raw(SYS_madvise, P(p), BYTES, MADV_DOFORK, 0, 0, 0) == -EINVAL);
	CHECK(raw(SYS_mprotect, P(p), PAGE, PROT_READ, 0, 0, 0) == -EACCES);
	CHECK(raw(SYS_pkey_mprotect, P(p), PAGE, PROT_READ, -1, 0, 0) == -EPERM);
	CHECK(raw(SYS_mmap, P(p), PAGE, PROT_READ, fixed, -1, 0) == -EINVAL);
	CHECK(raw(SYS_mremap, elsewhere, PAGE, PAGE, move, P(p), 0) == -EINVAL);
	CHECK(raw(SYS_mremap, P(p), PAGE, PAGE, move, elsewhere, 0) == -EINVAL);
	CHECK(raw(SYS_remap_file_pages, P(p), PAGE, 0, 1, 0, 0) == -EPERM);
	CHECK(raw(SYS_MSEAL, P(p), PAGE, 0, 0, 0, 0) == -EPERM);
	CHECK(raw(SYS_munmap, P(p) - (1l << 41), 2l << 41, 0, 0, 0, 0) == -EINVAL);
	id = shmget(IPC_PRIVATE, PAGE, 0600);
	CHECK(id >= 0 && raw(SYS_shmat, id, P(p), SHM_REMAP, 0, 0, 0) == -EINVAL);
	CHECK(shmctl((int)id, IPC_RMID, NULL) == 0);
	self = raw(SYS_PIDFD_OPEN, getpid(), 0, 0, 0, 0, 0);
	CHECK(self < 0 || raw(SYS_PROCESS_MADVISE, self, P(&all), 1, MADV_REMOVE, 0, 0) == -EINVAL);
	CHECK(raw(SYS_fsync, fd, 0, 0, 0, 0, 0) == -EBADF);
	/* The same calls are made by number. */
	CHECK(syscall(SYS_madvise, p, BYTES, MADV_REMOVE) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_mmap, p, PAGE, PROT_READ, fixed, -1, 0) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_mremap, elsewhere, PAGE, PAGE, move, p) == -1 && errno == EINVAL);
	CHECK(mremap((void *)elsewhere, PAGE, PAGE, (int)move, p) == MAP_FAILED && errno == EINVAL);
	CHECK(syscall(SYS_remap_file_pages, p, PAGE, 0, 1, 0) == -1 && errno == EPERM);
	CHECK(munmap((void *)elsewhere, BYTES) == 0);
}

static void calls(const char *path)
{
	pthread_t early;
	int fd;
	char *p;

	CHECK(signal(SIGSYS, own_handler) == SIG_DFL);
	CHECK(pthread_create(&early, NULL, early_thread, NULL) == 0);
	p = mapped(path, &fd);
	strcpy(p, "kept");
	errno = 7;
	CHECK(raw(SYS_msync, P(p), BYTES, MS_SYNC, 0, 0, 0) == 0 && errno == 7);
	CHECK(raw(SYS_msync, P(p) + 1, PAGE, MS_SYNC, 0, 0, 0) == -EINVAL);
	CHECK(raw(SYS_msync, P(p), PAGE, MS_SYNC | MS_ASYNC, 0, 0, 0) == -EINVAL);
	if (is_mapped_run())
		refused(fd, p);
	CHECK(raw(SYS_madvise, P(p), BYTES, MADV_DONTNEED, 0, 0, 0) == 0);
	has(fd, 0, "kept");
	thread_at = p;
	CHECK(pthread_join(early, NULL) == 0);
	/* The program's own signals reach it, before and after. */
	CHECK(own_signals == 0 && raise(SIGSYS) == 0 && own_signals == 1);
	CHECK(signal(SIGSYS, SIG_IGN) == own_handler && raw(SYS_msync, P(p), PAGE, MS_SYNC, 0, 0, 0) == 0);
	/* Earlier stores are in the file, though the memory is gone. */
	strcpy(p + PAGE, "before munmap");
	CHECK(raw(SYS_munmap, P(p), BYTES, 0, 0, 0, 0) == 0 && fsync(fd) == 0);
	has(fd, PAGE, "before munmap");
	raw(SYS_sync, 0, 0, 0, 0, 0, 0);
	syscall(SYS_sync);
	CHECK(syscall(SYS_syncfs, fd) == 0 && close(fd) == 0);
	fd = open(path, O_RDONLY);
	has(fd, 0, "kept");
	has(fd, PAGE, "before munmap");
	CHECK(close(fd) == 0);
}

static void child(const char *path)
{
	int fd, status;
	char *p = mapped(path, &fd), byte;
	long pid;

	strcpy(p, "parent");
	pid = raw(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
	if (pid == 0) {
		CHECK(raw(SYS_msync, P(p), PAGE, MS_SYNC, 0, 0, 0) < 0);
		CHECK(msync(p, PAGE, MS_SYNC) == -1);
		CHECK(pread(fd, &byte, 1, 0) == -1 && errno == EBADF);
		CHECK(pwrite(fd, "child", 5, 0) == -1 && errno == EBADF);
		CHECK(fsync(fd) == -1 && errno == EBADF);
		CHECK(open(path, O_RDWR) == -1);
		CHECK(close(fd) == 0);
		_exit(0);
	}
	CHECK(pid > 0 && waitpid((pid_t)pid, &status, 0) == pid && status == 0);
	has(fd, 0, "parent");
	strcpy(p, "goes on");
	CHECK(raw(SYS_msync, P(p), PAGE, MS_SYNC, 0, 0, 0) == 0 && munmap(p, BYTES) == 0);
	has(fd, 0, "goes on");
	CHECK(close(fd) == 0);
}

/* Lists descriptors of this process without those of the program: no more than 64. */
static int not_its_own(const int *own, int *found)
{
	int fd, n = 0, i;

	for (fd = 3; fd < 1 << 16 && n < 64; fd++) {
		for (i = 0; own[i] >= 0 && own[i] != fd; i++)
			;
		if (own[i] < 0 && fcntl(fd, F_GETFD) >= 0)
			found[n++] = fd;
	}
	return n;
}

/* The program closes all descriptors, as a cautious daemon does. */
static void closes(const char *path)
{
	int fd, found[64], n, i, plain;
	char *p, beside[512];

	closefrom(3);
	p = mapped(path, &fd);
	snprintf(beside, sizeof(beside), "%s.beside", path);
	CHECK(msync(p, BYTES, MS_SYNC) == 0);
	n = not_its_own((int[]){ fd, -1 }, found);
	CHECK((n > 0) == is_mapped_run());
	for (i = 0; i < n; i++) {
		CHECK(found[i] > 100);
		CHECK(close(found[i]) == -1 && errno == EBADF);
		CHECK(syscall(SYS_close, found[i]) == -1 && errno == EBADF);
		CHECK(dup2(0, found[i]) == -1 && errno == EBUSY);
		CHECK(syscall(SYS_dup3, 0, found[i], 0) == -1 && errno == EBUSY);
		CHECK(fcntl(found[i], F_SETFD, 0) == -1 && errno == EBADF);
	}
	CHECK(close_range((unsigned int)fd + 1, ~0u, 0) == 0);
	CHECK(close_range((unsigned int)fd + 1, 1000, 0) == 0);
	CHECK(syscall(SYS_close_range, fd + 1, ~0u, 0) == 0);
	CHECK(close_range((unsigned int)fd + 1, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
	closefrom(fd + 1);
	CHECK(close_range(5, 4, 0) == -1 && errno == EINVAL);
	/* A program may close what it opened itself. */
	plain = open(beside, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(plain == fd + 1 && dup2(plain, 90) == 90 && write(90, "beside", 6) == 6);
	CHECK(close_range(90, 90, 0) == 0 && write(90, "x", 1) == -1 && errno == EBADF);
	strcpy(p + PAGE, "tracked");
	CHECK(msync(p, BYTES, MS_SYNC) == 0);
	strcpy(p + PAGE, "watched");
	CHECK(pwrite(fd, "written", 7, 2 * PAGE) == 7 && fsync(fd) == 0);
	has(fd, PAGE, "watched");
	CHECK(munmap(p, BYTES) == 0 && close(fd) == 0);
	CHECK(not_its_own((int[]){ plain, -1 }, found) == 0);
	has(plain, 0, "beside");
	fd = open(path, O_RDONLY);
	has(fd, PAGE, "watched");
	has(fd, 2 * PAGE, "written");
	CHECK(close(fd) == 0 && close(plain) == 0 && unlink(beside) == 0);
}

/* Afterwards nothing more is acknowledged, and the other files are unchanged. */
static void closed(const char *path)
{
	int fd, found[64], n, i, plain;
	char *p, beside[512], another[1024], byte[4096];
	struct stat st;
	int more;

	closefrom(3);
	p = mapped(path, &fd);
	snprintf(beside, sizeof(beside), "%s.beside", path);
	strcpy(p, "synced before");
	CHECK(msync(p, BYTES, MS_SYNC) == 0);
	n = not_its_own((int[]){ fd, -1 }, found);
	plain = open(beside, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(plain >= 0 && write(plain, "beside", 6) == 6 && lseek(plain, 0, SEEK_SET) == 0);
	for (i = 0; i < n; i++) {
		raw(SYS_close, found[i], 0, 0, 0, 0, 0);
		if (i % 2 == 0)
			CHECK(raw(SYS_dup3, plain, found[i], 0, 0, 0, 0) == found[i]);
	}
	if (is_mapped_run()) {
		strcpy(p + PAGE, "not synced");
		CHECK(msync(p, BYTES, MS_SYNC) == -1 && errno == EIO);
		CHECK(raw(SYS_msync, P(p), BYTES, MS_SYNC, 0, 0, 0) == -EIO);
		CHECK(fsync(fd) == -1 && errno == EIO);
		CHECK(pwrite(fd, "x", 1, 20 * PAGE) == -1 || fsync(fd) == -1);
		/* Another file of the library gets none of these numbers. */
		snprintf(another, sizeof(another), "%s.another.map", path);
		more = open(another, O_RDWR | O_CREAT | O_TRUNC, 0600);
		CHECK(more == -1 || pwrite(more, "more", 4, 0) == -1 || fsync(more) <= 0);
		sleep(2);
		for (i = 0; i < n; i += 2)
			CHECK(fstat(found[i], &st) == 0 && st.st_size == 6);
	}
	CHECK(pread(plain, byte, sizeof(byte), 0) == 6 && memcmp(byte, "beside", 6) == 0);
	CHECK(lseek(plain, 0, SEEK_CUR) == 0);
}

static void stale(const char *path)
{
	int fd, plain;
	char *p = mapped(path, &fd), beside[512];

	snprintf(beside, sizeof(beside), "%s.beside", path);
	strcpy(p, "of the mapping");
	CHECK(raw(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
	plain = open(beside, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(plain == fd && pwrite(plain, "beside", 6, 0) == 6 && fsync(plain) == 0);
	has(plain, 0, "beside");
	CHECK(strcmp(p, "of the mapping") == 0 && msync(p, BYTES, MS_SYNC) == 0 && munmap(p, BYTES) == 0);
	CHECK(raw(SYS_close, plain, 0, 0, 0, 0, 0) == 0 && fsync(plain) == -1 && errno == EBADF);
	fd = open(path, O_RDONLY);
	has(fd, 0, "of the mapping");
	CHECK(close(fd) == 0 && unlink(beside) == 0);
}

static void runs(char **argv)
{
	int fd, status;
	char *p = mapped(argv[2], &fd);
	pid_t pid;

	CHECK(raw(SYS_msync, P(p), PAGE, MS_SYNC, 0, 0, 0) == 0);
	pid = vfork();
	if (pid == 0) {
		execv(argv[3], argv + 3);
		_exit(1);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(munmap(p, BYTES) == 0 && close(fd) == 0);
}

static void nest(char **argv)
{
	char left[16];
	int fd;
	char *p = mapped(argv[2], &fd);

	snprintf(p, PAGE, "with %s left", argv[3]);
	CHECK(raw(SYS_msync, P(p), PAGE, MS_SYNC, 0, 0, 0) == 0);
	if (is_mapped_run())
		CHECK(raw(SYS_madvise, P(p), PAGE, MADV_REMOVE, 0, 0, 0) == -EINVAL);
	CHECK(munmap(p, BYTES) == 0 && close(fd) == 0);
	if (atoi(argv[3]) == 0)
		return;
	snprintf(left, sizeof(left), "%d", atoi(argv[3]) - 1);
	execv("/proc/self/exe", (char *[]){ argv[0], argv[1], argv[2], left, NULL });
	CHECK(!"exec");
}

static void others(const char *path)
{
	int fd;
	char *p = mapped(path, &fd);
	long over;

	strcpy(p, "as ever");
	strcpy(p + PAGE, "second");
	CHECK(raw(SYS_msync, P(p), BYTES, MS_SYNC, 0, 0, 0) == 0);
	CHECK(raw(SYS_fsync, fd, 0, 0, 0, 0, 0) == 0);
	CHECK(raw(SYS_mprotect, P(p), PAGE, PROT_READ, 0, 0, 0) == 0);
	over = raw(SYS_mmap, P(p), PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, PAGE);
	CHECK(over == P(p) && strcmp(p, "second") == 0);
	CHECK(raw(SYS_munmap, P(p), BYTES, 0, 0, 0, 0) == 0);
	has(fd, 0, "as ever");
	CHECK(close(fd) == 0);
}

static double ns_of(long n, long a, long b, long c)
{
	double best = 1e9, ns;
	struct timespec from, to;
	int round, i;

	for (round = 0; round < 20; round++) {
		clock_gettime(CLOCK_MONOTONIC, &from);
		for (i = 0; i < 20000; i++)
			raw(n, a, b, c, 0, 0, 0);
		clock_gettime(CLOCK_MONOTONIC, &to);
		ns = ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / 20000;
		best = ns < best ? ns : best;
	}
	return best;
}

static void cost(const char *path)
{
	char *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *p;
	int fd;

	printf("getppid %.0f, msync of other memory %.0f\n", ns_of(SYS_getppid, 0, 0, 0),
	       ns_of(SYS_msync, P(own), PAGE, MS_ASYNC));
	p = mapped(path, &fd);
	printf("with the filter: getppid %.0f, msync of other memory %.0f; of the mapping, with nothing to do, by an instruction %.0f\n",
	       ns_of(SYS_getppid, 0, 0, 0), ns_of(SYS_msync, P(own), PAGE, MS_ASYNC),
	       ns_of(SYS_msync, P(p), PAGE, MS_ASYNC));
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "calls") == 0)
		calls(argv[2]);
	else if (strcmp(argv[1], "child") == 0)
		child(argv[2]);
	else if (strcmp(argv[1], "nest") == 0 && argc > 3)
		nest(argv);
	else if (strcmp(argv[1], "closes") == 0)
		closes(argv[2]);
	else if (strcmp(argv[1], "closed") == 0)
		closed(argv[2]);
	else if (strcmp(argv[1], "stale") == 0)
		stale(argv[2]);
	else if (strcmp(argv[1], "run") == 0 && argc > 3)
		runs(argv);
	else if (strcmp(argv[1], "others") == 0)
		others(argv[2]);
	else if (strcmp(argv[1], "cost") == 0)
		cost(argv[2]);
	else
		return 2;
	return 0;
}
