// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: calls of files that programs make seldom have the answers that they have without
 * `forebay map-run`.
 * Method: it says each answer; run.sh compares what it says with and without map-run.
 *
 *	answers all FILE       one line for each call
 *	answers limit FILE     a limit for the size of files that the program was started with
 *	answers stdio FILE     a file as stdout: printf is not lost in silence
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utime.h>

#include "check.h"

static void says(const char *what, long result)
{
	int why = errno;

	printf("%s: %ld %s\n", what, result, result == -1 ? strerrorname_np(why) : "");
	errno = 0;
}

static void ready(int fd, const char *kind)
{
	struct timespec second = { 1, 0 };
	struct timeval long_time = { 5, 0 };
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd all[3] = { { fd, POLLIN | POLLOUT, 0 }, { -1, POLLIN, 7 }, { fd, POLLPRI, 7 } };
	int epoll = epoll_create1(0), ends[2];
	fd_set r, w, e;

	CHECK(epoll >= 0 && pipe(ends) == 0);
	puts(kind);
	says("poll", poll(all, 1, 10000));
	says("revents", all[0].revents);
	all[1].fd = ends[0];
	says("poll of three", ppoll(all, 3, &second, NULL));
	printf("%d %d %d\n", all[0].revents, all[1].revents, all[2].revents);
	CHECK(write(ends[1], "x", 1) == 1);
	says("poll of three", poll(all, 3, -1));
	printf("%d %d %d\n", all[0].revents, all[1].revents, all[2].revents);
	all[0].events = POLLPRI;
	says("poll for nothing", poll(all, 1, 10));
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&e);
	FD_SET(fd, &r);
	FD_SET(fd, &w);
	FD_SET(fd, &e);
	FD_SET(ends[0], &r);
	says("select", select(fd + 20, &r, &w, &e, &long_time));
	printf("%d %d %d %d\n", FD_ISSET(fd, &r), FD_ISSET(fd, &w), FD_ISSET(fd, &e), FD_ISSET(ends[0], &r));
	says("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	close(epoll);
	close(ends[0]);
	close(ends[1]);
}

static void vectors(int fd)
{
	char a[8] = "", b[8] = "";
	struct iovec v[2] = { { a, 3 }, { b, 3 } };

	says("lseek", lseek(fd, 10, SEEK_SET));
	memcpy(a, "abc", 3);
	memcpy(b, "def", 3);
	says("pwritev2 at the position", pwritev2(fd, v, 2, -1, 0));
	says("position", lseek(fd, 0, SEEK_CUR));
	says("pwritev2 at the position, durable", pwritev2(fd, v, 1, -1, RWF_DSYNC));
	says("position", lseek(fd, 0, SEEK_CUR));
	says("pwritev2 before the start", pwritev2(fd, v, 1, -2, 0));
	says("lseek", lseek(fd, 10, SEEK_SET));
	says("preadv2 at the position", preadv2(fd, v, 2, -1, 0));
	printf("%.3s%.3s\n", a, b);
	says("preadv2 before the start", preadv2(fd, v, 1, -2, 0));
	says("position", lseek(fd, 0, SEEK_CUR));
}

/* Tests fcntl(2): the commands that are no locks, and those of locks with wrong arguments. */
static void commands(int fd)
{
	struct flock by_pid = { .l_type = F_RDLCK, .l_pid = 1 };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 1 };
	int again = dup(fd), other;

	says("F_OFD_SETLK with a process", fcntl(fd, F_OFD_SETLK, &by_pid));
	says("F_OFD_GETLK with a process", fcntl(fd, F_OFD_GETLK, &by_pid));
	says("F_OFD_SETLKW", fcntl(fd, F_OFD_SETLKW, &lock));
	says("F_OFD_SETLK by a duplicate", fcntl(again, F_OFD_SETLK, &lock));
	says("F_OFD_GETLK by a duplicate", fcntl(again, F_OFD_GETLK, &lock));
	printf("%d\n", lock.l_type);
	lock.l_type = F_UNLCK;
	says("unlock", fcntl(again, F_OFD_SETLK, &lock));
	says("F_GETOWN", fcntl(fd, F_GETOWN));
	says("F_GETSIG", fcntl(fd, F_GETSIG));
	says("F_GETLEASE", fcntl(fd, F_GETLEASE));
	says("F_NOTIFY", fcntl(fd, F_NOTIFY, DN_MODIFY));
	says("F_GETPIPE_SZ", fcntl(fd, F_GETPIPE_SZ));
	says("F_SETPIPE_SZ", fcntl(fd, F_SETPIPE_SZ, 4096));
	says("F_SETFD", fcntl(fd, F_SETFD, FD_CLOEXEC));
	says("F_GETFD", fcntl(fd, F_GETFD));
	other = fcntl(fd, F_DUPFD, 100);
	says("F_DUPFD", other);
	says("F_GETFD", fcntl(other, F_GETFD));
	close(other);
	other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	says("F_DUPFD_CLOEXEC", other);
	says("F_GETFD", fcntl(other, F_GETFD));
	close(other);
	says("F_DUPFD past the limit", fcntl(fd, F_DUPFD, -1));
	close(again);
}

/* Tests the kernel's locks of processes, or of descriptions. */
static void lock(int fd, const char *mode, size_t from)
{
	static const short types[] = { F_RDLCK, F_WRLCK, F_UNLCK, 7 }, whence[] = { SEEK_SET, SEEK_CUR, SEEK_END, 9 };
	static const long starts[] = { 0, -5, 100, INT64_MAX }, lengths[] = { 0, 10, -3, -300, INT64_MAX };
	static const int what[] = { F_SETLK, F_GETLK, F_OFD_SETLK, F_OFD_GETLK };
	size_t i, j, k, l, m;
	char name[64];

	for (i = 0; i < 4; i++)
		for (j = 0; j < 4; j++)
			for (k = 0; k < 4; k++)
				for (l = 0; l < 5; l++)
					for (m = from; m < from + 2; m++) {
						struct flock f = { .l_type = types[i], .l_whence = whence[j],
								   .l_start = starts[k], .l_len = lengths[l] };

						snprintf(name, sizeof(name), "lock %s %zu %zu %zu %zu %zu", mode, i, j, k, l, m);
						errno = 0;
						says(name, fcntl(fd, what[m], &f));
						if (what[m] == F_GETLK || what[m] == F_OFD_GETLK)
							printf("%d\n", f.l_type);
					}
}

/* A pipe keeps the bytes that were put into it, whoever has the memory by then. */
static void spliced(const char *path)
{
	char other[512], found[PAGE];
	int ends[2], fd = open(path, O_RDWR), i;
	struct iovec v = { 0, PAGE };

	snprintf(other, sizeof(other), "%s.other.map", path);
	CHECK(fd >= 0 && pipe(ends) == 0 && ftruncate(fd, PAGE) == 0);
	v.iov_base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(v.iov_base != MAP_FAILED);
	memset(v.iov_base, 'a', PAGE);
	says("vmsplice", vmsplice(ends[1], &v, 1, 0));
	CHECK(munmap(v.iov_base, PAGE) == 0 && close(fd) == 0);
	for (i = 0; i < 2; i++) {
		fd = open(other, O_RDWR | O_CREAT, 0600);
		CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
		v.iov_base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		memset(v.iov_base, 'b', PAGE);
		CHECK(munmap(v.iov_base, PAGE) == 0 && close(fd) == 0);
	}
	CHECK(read(ends[0], found, PAGE) == PAGE);
	printf("%c%c\n", found[0], found[PAGE - 1]);
}

static volatile int signals;

static void counts(int signal)
{
	signals += signal == SIGXFSZ;
}

/* A write passes the limit of the process for the size of files.  The rest of it is written, then
 * there is a signal. */
static void limited(const char *path)
{
	const struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY }, some = { 10000, RLIM_INFINITY };
	char bytes[8] = "limited";
	struct iovec two[2] = { { bytes, 4 }, { bytes + 4, 4 } };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), i;

	CHECK(fd >= 0 && ftruncate(fd, 40000) == 0 && signal(SIGXFSZ, counts) != SIG_ERR);
	for (i = 0; i < 4; i++) {
		switch (i) {
		case 0: CHECK(setrlimit(RLIMIT_FSIZE, &some) == 0); break;
		case 1: CHECK(prlimit(0, RLIMIT_FSIZE, &some, NULL) == 0); break;
		case 2: CHECK(syscall(SYS_setrlimit, RLIMIT_FSIZE, &some) == 0); break;
		case 3: CHECK(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &some, NULL) == 0); break;
		}
		says("within", pwrite(fd, bytes, 8, 9992));
		says("a part", pwrite(fd, bytes, 8, 9995));
		says("a part of two", pwritev(fd, two, 2, 9995));
		says("none", pwrite(fd, bytes, 8, 10000));
		says("none, within the file", pwrite(fd, bytes, 8, 30000));
		says("nothing", pwrite(fd, bytes, 0, 30000));
		says("far", pwrite(fd, bytes, 8, 1l << 40));
		says("lseek", lseek(fd, 9998, SEEK_SET));
		says("write", write(fd, bytes, 8));
		says("write", write(fd, bytes, 8));
		says("append", pwritev2(fd, two, 2, -1, RWF_APPEND));
		says("ftruncate", ftruncate(fd, 40001));
		says("fsync", fsync(fd));
		says("signals", signals);
		CHECK((i < 3 ? setrlimit(RLIMIT_FSIZE, &none) : syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &none, NULL)) == 0);
		says("without a limit", pwrite(fd, bytes, 8, 30000));
	}
	CHECK(close(fd) == 0);
}

/* The limit that a script has set. */
static void started_with_limit(const char *path)
{
	char bytes[8] = "limited";
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct rlimit limit;

	CHECK(fd >= 0 && signal(SIGXFSZ, counts) != SIG_ERR);
	CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY);
	says("within", pwrite(fd, bytes, 8, (long)limit.rlim_cur - 8));
	says("a part", pwrite(fd, bytes, 8, (long)limit.rlim_cur - 5));
	says("none", pwrite(fd, bytes, 8, (long)limit.rlim_cur));
	says("signals", signals);
	CHECK(close(fd) == 0);
}

/* Calls by path, and calls that set times. */
static void by_path(int fd, const char *path)
{
	const struct timespec times[2] = { { 1000000, 0 }, { 2000000, 0 } };
	const struct timeval others[2] = { { 3000000, 0 }, { 4000000, 0 } };
	const struct utimbuf two = { 5000000, 6000000 };
	struct stat st;

	says("truncate", truncate(path, 200l * (1 << 20) + 3));
	says("truncate by number", syscall(SYS_truncate, path, 200l * (1 << 20) + 2));
	says("utimensat", utimensat(AT_FDCWD, path, times, 0));
	says("utimensat, now", utimensat(AT_FDCWD, path, NULL, 0));
	says("utimes", utimes(path, others));
	says("utime", utime(path, &two));
	says("futimens", futimens(fd, times));
	says("futimens, now", futimens(fd, NULL));
	says("futimes", futimes(fd, others));
	CHECK(fstat(fd, &st) == 0);
	says("size", st.st_size);
	says("written", st.st_mtime < 10000000 ? st.st_mtime : 0);
}

static void all(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), reads, writes;

	CHECK(fd >= 0 && ftruncate(fd, 4 * PAGE) == 0);
	/* The file is open once. */
	commands(fd);
	lock(fd, "both, of descriptions", 2);
	reads = open(path, O_RDONLY);
	writes = open(path, O_WRONLY);
	CHECK(reads >= 0 && writes >= 0);
	ready(fd, "read and write");
	ready(reads, "read");
	ready(writes, "write");
	vectors(fd);
	lock(fd, "both", 0);
	lock(reads, "reads", 0);
	lock(writes, "writes", 0);
	CHECK(close(reads) == 0 && close(writes) == 0 && close(fd) == 0);
	spliced(path);
	limited(path);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	by_path(fd, path);
	CHECK(close(fd) == 0 && unlink(path) == 0);
}

static void as_stdout(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), keeps = dup(1), kept;
	char found[16] = "";

	CHECK(fd >= 0 && keeps >= 0);
	if (dup2(fd, 1) == 1) {
		CHECK(printf("printed\n") == 8 && fflush(stdout) == 0);
		CHECK(pread(fd, found, 8, 0) == 8 && strcmp(found, "printed\n") == 0 && dup2(keeps, 1) == 1);
	} else {
		CHECK(is_mapped_run() && errno == EBUSY && printf("as it was\n") == 10 && fflush(stdout) == 0);
	}
	/* Another way to open it does not help either. */
	close(0);
	kept = dup(fd);
	CHECK(kept == 0 || (is_mapped_run() && kept == -1 && errno == EBUSY));
	close(0);
	kept = open(path, O_RDWR);
	CHECK(kept == 0 || (is_mapped_run() && kept == -1 && errno == EBUSY));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (strcmp(argv[1], "all") == 0)
		all(argv[2]);
	else if (strcmp(argv[1], "limit") == 0)
		started_with_limit(argv[2]);
	else if (strcmp(argv[1], "stdio") == 0)
		as_stdout(argv[2]);
	else
		CHECK(0);
	return 0;
}
