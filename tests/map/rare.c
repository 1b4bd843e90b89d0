// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: calls that programs make seldom do with a file of `forebay map-run` what they do with a plain
 * one, or are refused.
 * Method: each case says what it finds; rare.sh compares that with and without map-run.
 *
 *	rare list                  the cases
 *	rare CASE FILE OTHER       runs it with two files that do not exist
 */
#define _GNU_SOURCE
#define _XOPEN_SOURCE 700
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rare.h"

const char *path, *other;

int opened(void)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);

	CHECK(fd >= 0);
	return fd;
}

char *mapped(int fd, long len)
{
	char *p;

	CHECK(ftruncate(fd, len) == 0);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void printed(void)
{
	int fd = opened(), i, lines = 0;
	char text[4096] = "";
	void *frames[4];

	CHECK(write(fd, "first\n", 6) == 6);
	for (i = 0; i < 3; i++)
		CHECK(dprintf(fd, "%d %s %.1f %d %d %d %d %.2f\n", i, "two", 3.5, 4, 5, 6, 7, 8.25) == 23);
	backtrace_symbols_fd(frames, backtrace(frames, 2), fd);
	CHECK(pread(fd, text, sizeof(text) - 1, 0) > 75);
	for (i = 0; text[i]; i++)
		lines += text[i] == '\n';
	printf("%.75s%d lines\n", text, lines);
}

static struct shared {
	pthread_mutex_t lock;
	sem_t sem;
	long n;
} *shared;

static void *counts(void *p)
{
	int i;

	for (i = 0; i < 100000; i++) {
		pthread_mutex_lock(&shared->lock);
		shared->n++;
		pthread_mutex_unlock(&shared->lock);
	}
	return p;
}

static void *waits(void *p)
{
	CHECK(sem_wait(&shared->sem) == 0);
	return p;
}

static void posts(int signal)
{
	(void)signal;
	sem_post(&shared->sem);
}

static void *posts_blocked(void *p)
{
	usleep(200000);
	sem_post(&shared->sem);
	return p;
}

/* Locks of processes in a mapping, in threads and handlers that block all signals. */
static void blocked(void)
{
	struct timespec moment = { 0, 1000 };
	struct sigaction action = { .sa_handler = posts };
	struct epoll_event event;
	pthread_mutexattr_t how;
	pthread_t threads[4];
	sigset_t all;
	int i;

	shared = (struct shared *)mapped(opened(), MIB);
	CHECK(pthread_mutexattr_init(&how) == 0 && pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_mutex_init(&shared->lock, &how) == 0 && sem_init(&shared->sem, 1, 0) == 0);
	sigfillset(&action.sa_mask);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&threads[0], NULL, waits, NULL) == 0);
	usleep(200000);
	CHECK(raise(SIGUSR1) == 0 && pthread_join(threads[0], NULL) == 0);
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0 && sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	CHECK(ppoll(NULL, 0, &moment, &all) == 0 && pselect(0, NULL, NULL, NULL, &moment, &all) == 0);
	CHECK(epoll_pwait(epoll_create1(0), &event, 1, 1, &all) == 0);
	CHECK(pthread_create(&threads[0], NULL, posts_blocked, NULL) == 0 && sem_wait(&shared->sem) == 0);
	CHECK(pthread_join(threads[0], NULL) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, counts, NULL) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	printf("%ld\n", shared->n);
}

sigjmp_buf away;

void jumps(int signal)
{
	siglongjmp(away, signal);
}

/* The handler of a fault in the middle of a call jumps away. */
static void jump(void)
{
	struct sigaction action = { .sa_handler = jumps };
	int fd = opened(), round;
	char *none = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char found[6] = "";

	CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && write(fd, "before", 6) == 6);
	alarm(30);
	for (round = 0; round < 5; round++) {
		struct iovec two[2] = { { found, 1 }, { none, PAGE } };

		errno = 0;
		if (sigsetjmp(away, 1) != 0)
			continue;
		CHECK((round == 0 ? write(fd, none, PAGE) : round == 1 ? pwrite(fd, none, PAGE, 0) :
		       round == 2 ? pread(fd, none, PAGE, 0) : round == 3 ? writev(fd, two + 1, 1) :
		       (lseek(fd, 0, SEEK_SET), read(fd, none, PAGE))) == -1 && errno == EFAULT);
	}
	CHECK(lseek(fd, 6, SEEK_SET) == 6 && write(fd, "after", 5) == 5 && fsync(fd) == 0);
	CHECK(ftruncate(fd, 100) == 0 && pread(fd, found, 5, 6) == 5 && close(fd) == 0);
	puts(found);
}

static int ticks_to;
static volatile long ticks;

static void ticked(int signal)
{
	(void)signal;
	ticks++;
	CHECK(pwrite(ticks_to, "tick", 4, 2 * PAGE) == 4);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* A handler that sigset(3) sets uses the file, too. */
static void handler(void)
{
	struct itimerval often = { { 0, 300 }, { 0, 300 } };
	void (*before)(int);
	long i;

	ticks_to = opened();
	alarm(30);
	before = sigset(SIGPROF, ticked);
	CHECK(before == SIG_DFL && setitimer(ITIMER_PROF, &often, NULL) == 0);
	for (i = 0; ticks < 100; i++)
		CHECK(pwrite(ticks_to, "main", 4, 0) == 4);
	before = sigset(SIGPROF, SIG_HOLD);
	CHECK(before == ticked && sigset(SIGPROF, SIG_IGN) == SIG_HOLD);
	puts("ticked");
}

static void in_parent(int signal)
{
	(void)signal;
	CHECK(write(1, "parent\n", 7) == 7);
}

static void in_child(int signal)
{
	(void)signal;
	CHECK(write(1, "child\n", 6) == 6);
}

/* What a child of vfork sets is its own. */
static void forked(void)
{
	static char bytes[2 * PAGE];
	int fd = opened();

	CHECK(signal(SIGUSR1, in_parent) == SIG_DFL);
	if (vfork() == 0) {
		struct rlimit limit = { PAGE, PAGE };

		setrlimit(RLIMIT_FSIZE, &limit);
		signal(SIGUSR1, in_child);
		_exit(0);
	}
	wait(NULL);
	printf("%zd %zd\n", write(fd, bytes, sizeof(bytes)), write(fd, bytes, sizeof(bytes)));
	fflush(stdout);
	CHECK(raise(SIGUSR1) == 0);
}

/* The end by syscall(2). */
static void ends(void)
{
	CHECK(write(opened(), "stored", 6) == 6);
	syscall(SYS_exit_group, 0);
}

static void advice(void)
{
	char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec all = { p, MIB };
	int me = (int)syscall(SYS_pidfd_open, getpid(), 0);

	opened();
	printf("%ld\n", syscall(SYS_process_madvise, me, &all, 1l, MADV_COLD, 0l));
}

/* Times that are set by the path are no change by others. */
static void times_by_path(void)
{
	struct timespec two[2] = { { 1000000, 0 }, { 1000000, 0 } };
	static char bytes[2 * PAGE];
	int fd = opened();

	memset(bytes, 'a', sizeof(bytes));
	CHECK(write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && fsync(fd) == 0);
	sleep(1);
	CHECK(syscall(SYS_utimensat, AT_FDCWD, path, two, 0) == 0);
	memset(bytes, 'z', sizeof(bytes));
	CHECK(pwrite(fd, bytes, sizeof(bytes), 0) == sizeof(bytes) && fsync(fd) == 0);
	kill(getpid(), SIGKILL);
}

static void zerocopy(void)
{
	int socket_fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, i;

	for (i = 0; i < 2; i++) {
		int done = i == 0 ? setsockopt(socket_fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) :
				    (int)syscall(SYS_setsockopt, socket_fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one));

		CHECK(is_mapped_run() ? done == -1 && errno == EOPNOTSUPP : done == 0);
	}
	CHECK(setsockopt(socket_fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
	puts("set");
}

/* A pipe has the bytes that the memory had. */
static void spliced(void)
{
	char *p = mapped(opened(), MIB), *q, found[16 * PAGE];
	struct iovec some = { p, sizeof(found) };
	int ends_of[2], fd, i, others = 0;

	memset(p, 'A', MIB);
	CHECK(msync(p, MIB, MS_SYNC) == 0 && pipe(ends_of) == 0);
	fd = open(other, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	q = mapped(fd, 60 * MIB);
	CHECK(syscall(SYS_vmsplice, ends_of[1], &some, 1l, 0l) == sizeof(found));
	for (long at = 0; at < 60 * MIB; at += PAGE)
		memset(q + at, 'b', PAGE);
	CHECK(msync(q, 60 * MIB, MS_SYNC) == 0 && read(ends_of[0], found, sizeof(found)) == sizeof(found));
	for (i = 0; i < (int)sizeof(found); i++)
		others += found[i] != 'A';
	printf("%d other bytes\n", others);
}

static void *has_own(void *p)
{
	int i;

	for (i = 0; i < 3; i++) {
		int done = i == 0 ? unshare(CLONE_FILES) :
			   i == 1 ? (int)syscall(SYS_unshare, CLONE_FILES) :
				    close_range(1000000, 1000001, CLOSE_RANGE_UNSHARE);

		CHECK(is_mapped_run() ? done == -1 && errno == EBUSY : done == 0);
	}
	return p;
}

static void own_table(void)
{
	pthread_t thread;

	opened();
	CHECK(pthread_create(&thread, NULL, has_own, NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(unshare(0) == 0);
	puts("unshared");
}

static pthread_t leader;
static int led;

static void *follows(void *p)
{
	struct stat st;

	pthread_join(leader, NULL);
	usleep(100000);
	CHECK(fchmod(led, 0600) == 0 && fchown(led, getuid(), getgid()) == 0 && futimens(led, NULL) == 0);
	CHECK(write(led, "led", 3) == 3 && fsync(led) == 0 && close(led) == 0);
	led = opened();
	CHECK(pwrite(led, "after", 5, 3) == 5 && fsync(led) == 0 && stat(path, &st) == 0);
	printf("%o\n", st.st_mode & 0777);
	exit(0);
	return p;
}

/* The main thread has ended. */
static void without_leader(void)
{
	pthread_t thread;

	leader = pthread_self();
	led = opened();
	CHECK(pthread_create(&thread, NULL, follows, NULL) == 0);
	pthread_exit(NULL);
}

static const struct one {
	const char *name;
	void (*run)(void);
} all[] = {
	{ "printed", printed }, { "blocked", blocked }, { "jump", jump }, { "handler", handler },
	{ "vfork", forked }, { "ends", ends }, { "advice", advice }, { "times", times_by_path },
	{ "zerocopy", zerocopy }, { "vmsplice", spliced }, { "unshare", own_table }, { "leader", without_leader },
	{ "aio", submits }, { "direct", reads_late }, { "zerocopy-before", zerocopy_before }, { "remote", remote },
	{ "rings", rings }, { "moved", moves }, { "jump-direct", jumps_out }, { "interrupted", interrupted },
	{ "lists", lists }, { "cipher", cipher },
};

int main(int argc, char **argv)
{
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (argc == 2)
			puts(all[i].name);
		else if (strcmp(argv[1], all[i].name) == 0) {
			path = argv[2];
			other = argv[3];
			all[i].run();
			return 0;
		}
	}
	CHECK(argc == 2);
	return 0;
}
