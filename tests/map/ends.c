// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a program that ends in any way that runs code of its own keeps what it has stored.
 * Signals, jumps and cancellation leave the library whole.
 * Method: ends.sh runs each way with and without map-run, and looks at the files.
 *
 *	ends list             the ways to end, each with where it stores last
 *	ends end WAY FILE     stores to FILE and ends so, without a sync
 *	ends syncs FILE       sync(2) while another thread closes FILE, and a kill
 *	ends acks CALL ACK FILE   exits, in a handler where CALL ends with -handler, while a thread stores to
 *			      FILE and syncs it by CALL (msync, fsync, store: not at all), and keeps in ACK
 *			      what it was told is durable, or what it has stored
 *	ends acked ACK FILE   whether FILE has that
 *	ends signals FILE     handlers that open, write, sync and jump while threads and they are at it
 *	ends cancel FILE      threads are cancelled while they write, sync and read
 *	ends futex FILE       a process-shared lock in a mapping, while its memory moves
 *	ends children FILE    handlers in children, before FILE is opened, while it is open, and after
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "slow.h"

#define MIB (1l << 20)

static const char *path;
static char *memory;
static int file;

static void store(const char *what)
{
	strcpy(memory, what);
}

static void at_end(void)
{
	store("last, by atexit");
}

__attribute__((destructor)) static void destroyed(void)
{
	if (memory && memory[0] == 'D')
		store("Destroyed: last, by a destructor");
}

static void *opens(void *p)
{
	char name[512];
	unsigned i;

	(void)p;
	for (i = 0;; i++) {
		snprintf(name, sizeof(name), "%s.%u.map", path, i % 4);
		int fd = open(name, O_RDWR | O_CREAT, 0600);

		CHECK(fd >= 0 && close(fd) == 0);
	}
	return NULL;
}

static void ends_in_handler(int signal)
{
	store("last, in a handler");
	if (signal == SIGUSR1)
		_exit(0);
	exit(0);
}

static void *allocates(void *p)
{
	for (;;)
		free(malloc(1000));
	return p;
}

static void *exits(void *p)
{
	(void)p;
	_exit(0);
}

/* Closes FILE as its last user, with much to write to it. */
static void *closes(void *p)
{
	long at;

	(void)p;
	for (at = MIB; at < 4 * MIB; at += MIB)
		CHECK(pwrite(file, memory, MIB, at) == MIB);
	CHECK(munmap(memory, 4 * MIB) == 0);
	memory = NULL;
	closer = gettid();
	while (!closes_now)
		;
	CHECK(close(file) == 0);
	for (;;)
		pause();
	return NULL;
}

static volatile int duplicated = -1;

static void *duplicates(void *p)
{
	for (;;) {
		int fd = dup(duplicated);

		CHECK(fd >= 0 ? close(fd) == 0 : errno == EBADF);
	}
	return p;
}

/* The last descriptor of another file is closed while others duplicate it. */
static void duplicate_beside_close(void)
{
	pthread_t thread;
	char name[512];
	int round, i;

	snprintf(name, sizeof(name), "%s.other.map", path);
	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&thread, NULL, duplicates, NULL) == 0);
	for (round = 0; round < 300; round++) {
		int fd = open(name, O_RDWR | O_CREAT, 0600);

		CHECK(fd >= 0);
		/* The number is above those that the others make, so it is not reused. */
		duplicated = fcntl(fd, F_DUPFD, 500);
		CHECK(duplicated >= 500 && close(fd) == 0);
		usleep((unsigned)(round % 10) * 20);
		CHECK(close(duplicated) == 0);
	}
}

static int copy;

/* Copies from a mapping of one file to another file, and back. */
static void *copies(void *p)
{
	for (;;) {
		CHECK(pwrite(copy, memory + MIB, 2 * MIB, 0) == 2 * MIB);
		CHECK(pread(copy, memory + 3 * MIB, MIB, 0) == MIB);
	}
	return p;
}

/* The thread has blocked SIGSEGV, so a touch of a withdrawn mapping would end the program. */
static void *touches_blocked(void *p)
{
	volatile char *at = memory + 2 * MIB;
	sigset_t all;

	(void)p;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	for (;;)
		(void)*at;
	return NULL;
}

static void end(const char *way)
{
	pthread_t thread;
	int i;

	memset(memory, 'x', 64);
	if (strcmp(way, "return") == 0) {
		store("last, by return");
	} else if (strcmp(way, "exit") == 0) {
		store("last, by exit");
		exit(0);
	} else if (strcmp(way, "_exit") == 0) {
		store("last, by _exit");
		_exit(0);
	} else if (strcmp(way, "quick_exit") == 0) {
		store("last, by quick_exit");
		quick_exit(0);
	} else if (strcmp(way, "atexit") == 0) {
		atexit(at_end);
	} else if (strcmp(way, "destructor") == 0) {
		store("D");
	} else if (strcmp(way, "library") == 0) {
		/* The destructor of endlib.c. */
		char **at = dlsym(RTLD_DEFAULT, "end_memory");

		CHECK(at);
		*at = memory;
	} else if (strcmp(way, "beside-open") == 0) {
		CHECK(pthread_create(&thread, NULL, opens, NULL) == 0);
		usleep(20000);
		store("last, beside an open");
		exit(0);
	} else if (strcmp(way, "beside-last-close") == 0) {
		store("last, beside the last close");
		slow_close(closes, 3);
		_exit(0);
	} else if (strcmp(way, "beside-close") == 0) {
		/* Another file stays open. */
		char name[512];

		snprintf(name, sizeof(name), "%s.stays.map", path);
		CHECK(open(name, O_RDWR | O_CREAT, 0600) >= 0);
		store("last, beside a close");
		slow_close(closes, 3);
		_exit(0);
	} else if (strcmp(way, "beside-copy") == 0) {
		char name[512];

		snprintf(name, sizeof(name), "%s.copy.map", path);
		copy = open(name, O_RDWR | O_CREAT, 0600);
		CHECK(copy >= 0 && pthread_create(&thread, NULL, copies, NULL) == 0);
		usleep(20000);
		store("last, beside a copy");
		_exit(0);
	} else if (strcmp(way, "beside-blocked") == 0) {
		CHECK(pthread_create(&thread, NULL, touches_blocked, NULL) == 0);
		usleep(20000);
		store("last, beside a thread that blocks all signals");
		_exit(0);
	} else if (strcmp(way, "duplicates") == 0) {
		duplicate_beside_close();
		store("last, after duplicates");
		_exit(0);
	} else if (strcmp(way, "handler-_exit") == 0 || strcmp(way, "handler-exit") == 0) {
		/* The timer interrupts any code: the library's, and the C library's allocator. */
		struct itimerval in = { { 0, 0 }, { 0, 3000 } };

		signal(SIGALRM, ends_in_handler);
		signal(SIGUSR1, ends_in_handler);
		if (strcmp(way, "handler-exit") == 0) {
			CHECK(setitimer(ITIMER_REAL, &in, NULL) == 0);
			for (;;)
				CHECK(pwrite(file, "again", 5, PAGE) == 5 && fsync(file) == 0);
		}
		CHECK(pthread_create(&thread, NULL, allocates, NULL) == 0);
		usleep(5000);
		pthread_kill(thread, SIGUSR1);
		pause();
	} else if (strcmp(way, "two-exits") == 0) {
		store("last, by several");
		for (i = 0; i < 4; i++)
			CHECK(pthread_create(&thread, NULL, exits, NULL) == 0);
		_exit(0);
	} else {
		CHECK(!"such a way");
	}
}

static void syncs(void)
{
	char name[512];

	snprintf(name, sizeof(name), "%s.stays.map", path);
	CHECK(open(name, O_RDWR | O_CREAT, 0600) >= 0);
	store("last, before a sync");
	slow_close(closes, 3);
	sync();
	raise(SIGKILL);
}

static volatile uint64_t *acknowledged;
static int by_msync, stores_only;

static void *acknowledges(void *p)
{
	volatile uint64_t *count = (uint64_t *)(memory + 5 * PAGE);
	uint64_t n;

	for (n = 1;; n++) {
		*count = n;
		/* A program that sees this counts on the store, because the program does not end by
		 * a kill. */
		if (stores_only || (by_msync ? msync(memory, 8 * PAGE, MS_SYNC) : fdatasync(file)) == 0)
			*acknowledged = n;
	}
	return p;
}

static void ends_at_once(int signal)
{
	(void)signal;
	_exit(0);
}

/* The close of this file takes a while, and so does the close of another one. */
static void acks(const char *ack, const char *call)
{
	pthread_t thread;
	char name[512], *other;
	int fd;

	snprintf(name, sizeof(name), "%s.other.map", path);
	memory = mapped(&file, path, 24 * MIB);
	other = mapped(&fd, name, 24 * MIB);
	acknowledged = (uint64_t *)mapped(&fd, ack, PAGE);
	*acknowledged = 0;
	by_msync = strncmp(call, "msync", 5) == 0;
	stores_only = strncmp(call, "store", 5) == 0;
	CHECK(pthread_create(&thread, NULL, acknowledges, NULL) == 0);
	while (*acknowledged < 3)
		usleep(1000);
	memset(memory + MIB, 7, 12 * MIB);
	memset(other + MIB, 7, 20 * MIB);
	if (!strchr(call, '-'))
		exit(0);
	signal(SIGUSR1, ends_at_once);
	CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
	pause();
}

static void acked(const char *ack)
{
	int fd = open(path, O_RDONLY), in = open(ack, O_RDONLY);
	uint64_t there, was;

	CHECK(fd >= 0 && pread(fd, &there, sizeof(there), 5 * PAGE) == sizeof(there));
	CHECK(in >= 0 && pread(in, &was, sizeof(was), 0) == sizeof(was) && was > 0);
	if (there < was)
		fprintf(stderr, "%lu is there, and %lu was acknowledged\n", (unsigned long)there, (unsigned long)was);
	CHECK(there >= was);
}

static sigjmp_buf back;
static volatile int jumps, handled;
static int by_handler = -1;

static void jumps_away(int signal)
{
	(void)signal;
	jumps++;
	siglongjmp(back, 1);
}

/* Makes the calls that POSIX allows in a handler. */
static void calls(int signal)
{
	char c = 'h';

	(void)signal;
	handled++;
	CHECK(pwrite(file, &c, 1, 3 * PAGE) == 1 && pread(file, &c, 1, 3 * PAGE) == 1 && c == 'h');
	CHECK(fsync(file) == 0);
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0 && write(fd, "again", 5) == 5 && close(fd) == 0);
	/* A file that is not open yet is refused by name, and there is never a deadlock. */
	char name[512] = "";

	strcat(strcpy(name, path), ".other.map");
	fd = open(name, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 || (is_mapped_run() && errno == EBUSY));
	by_handler = fd < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
}

static void signals(void)
{
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = calls }, old;
	uint64_t n = 0;
	time_t begun;
	int fd;

	sigemptyset(&action.sa_mask);
	action.sa_flags = SA_RESTART;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(sigaction(SIGALRM, NULL, &old) == 0 && old.sa_handler == calls && old.sa_flags & SA_RESTART);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (begun = time(NULL); time(NULL) < begun + 2; n++) {
		free(malloc(100 + n % 100000));
		CHECK(pwrite(file, &n, 8, PAGE) == 8);
		if (n % 8 == 0)
			CHECK(fsync(file) == 0 && msync(memory, PAGE, MS_SYNC) == 0);
		fd = dup(file);
		CHECK(fd >= 0 && close(fd) == 0);
		fd = open(path, O_RDWR);
		CHECK(fd >= 0 && close(fd) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && handled > 10);
	CHECK(signal(SIGALRM, jumps_away) == calls);
	sigsetjmp(back, 1);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (jumps < 500) {
		CHECK(pwrite(file, "jump", 4, 2 * PAGE) == 4 && fsync(file) == 0);
		CHECK(msync(memory, PAGE, MS_SYNC) == 0);
		fd = open(path, O_RDWR);
		CHECK(fd >= 0);
		close(fd);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(signal(SIGALRM, SIG_DFL) == jumps_away && signal(SIGALRM, SIG_IGN) == SIG_DFL);
	/* Nothing has changed, and the library can do work that needs all of it. */
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 && pwrite(fd, "whole", 5, 0) == 5 && fsync(fd) == 0 && memcmp(memory, "whole", 5) == 0);
	for (n = 3; n < 1024; n++)
		close((int)n);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 && munmap(memory, 4 * MIB) == 0 && ftruncate(fd, 100 * MIB) == 0 && close(fd) == 0);
	memory = NULL;
}

static volatile pid_t caught_by;

static void catches(int signal)
{
	(void)signal;
	caught_by = getpid();
	handled++;
}

/* A handler runs in the child, and none runs for the parent's signals. */
static void in_child(void)
{
	sigset_t blocked;
	int i, state;

	CHECK(caught_by != getpid());
	handled = 0;
	for (i = 1; i <= 3; i++)
		CHECK(raise(SIGUSR1) == 0 && handled == i);
	CHECK(caught_by == getpid());
	CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0 && sigisemptyset(&blocked));
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
	_exit(0);
}

static void catch_in_child(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0)
		in_child();
	while (waitpid(child, &status, 0) != child)
		CHECK(errno == EINTR);
	CHECK(status == 0);
}

static void catch_in_children(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	int i;

	catch_in_child();
	/* A signal arrives in the parent while it forks. */
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (i = 0; i < 30; i++)
		catch_in_child();
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void children(void)
{
	CHECK(signal(SIGUSR1, catches) == SIG_DFL && signal(SIGALRM, catches) == SIG_DFL);
	catch_in_children();
	file = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(file >= 0 && pwrite(file, "open", 4, 0) == 4);
	catch_in_children();
	CHECK(fsync(file) == 0 && close(file) == 0);
	catch_in_children();
}

static int ends[2];

static void *writes_for_ever(void *p)
{
	(void)p;
	for (;;)
		CHECK(pwrite(file, "cancelled", 9, PAGE) == 9);
	return NULL;
}

static void *syncs_for_ever(void *p)
{
	(void)p;
	for (;;) {
		memory[PAGE]++;
		CHECK(fsync(file) == 0);
	}
	return NULL;
}

static void *reads_for_ever(void *p)
{
	char c;

	(void)p;
	CHECK(read(ends[0], &c, 1) == 1);
	return NULL;
}

static void *opens_for_ever(void *p)
{
	(void)p;
	for (;;) {
		int fd = open(path, O_RDWR);

		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void cancel(void)
{
	void *(*const all[])(void *) = { writes_for_ever, syncs_for_ever, reads_for_ever, opens_for_ever };
	pthread_t thread;
	void *result;
	int round;

	CHECK(pipe(ends) == 0);
	for (round = 0; round < 200; round++) {
		CHECK(pthread_create(&thread, NULL, all[round % 4], NULL) == 0);
		usleep((unsigned)(round % 7) * 300);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
		CHECK(pwrite(file, "whole", 5, 0) == 5 && fsync(file) == 0);
	}
}

struct shared {
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	int turn;
};

static struct shared *both;

static void *turns(void *p)
{
	int me = p != NULL, i;

	for (i = 0; i < 200; i++) {
		CHECK(pthread_mutex_lock(&both->mutex) == 0);
		while (both->turn != me)
			CHECK(pthread_cond_wait(&both->cond, &both->mutex) == 0);
		both->turn = !me;
		CHECK(pthread_cond_broadcast(&both->cond) == 0 && pthread_mutex_unlock(&both->mutex) == 0);
		if (me && i % 10 == 0)
			usleep(20000);
	}
	return NULL;
}

/* The file is larger than the pool, so its segments come and go. */
static void *sweeps(void *stop)
{
	long at = 2 * MIB, size = 192 * MIB;

	while (!*(volatile int *)stop) {
		((volatile char *)both)[at]++;
		at = at + 2 * MIB < size ? at + 2 * MIB : 2 * MIB;
	}
	return NULL;
}

/* Waits by the call for several locks.  The waking thread uses the first lock. */
static void *waits(void *word)
{
	struct futex_waitv one = { .val = 0, .uaddr = (uintptr_t)word, .flags = FUTEX_32 };
	struct timespec until;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
	until.tv_sec += 20;
	while (!*(volatile int *)word)
		CHECK(syscall(SYS_futex_waitv, &one, 1, 0, &until, CLOCK_MONOTONIC) == 0 || errno == EAGAIN || errno == EINTR);
	return NULL;
}

static void wakes(void)
{
	int *word = (int *)((char *)both + 4096);
	pthread_t waiter;

	CHECK(pthread_create(&waiter, NULL, waits, word) == 0);
	usleep(200000);
	*(volatile int *)word = 1;
	CHECK(syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) >= 0);
	CHECK(pthread_join(waiter, NULL) == 0);
}

/* The kernel refuses so many and reads none of them: there is no memory after the first one. */
static void too_many(int *word)
{
	const size_t counts[] = { 0, 129, 1ul << 31, ~0u };
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct futex_waitv *last = (struct futex_waitv *)(pages + 4096) - 1;
	struct timespec now;
	size_t i;

	CHECK(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	*last = (struct futex_waitv){ .val = !*word, .uaddr = (uintptr_t)word, .flags = FUTEX_32 };
	for (i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		CHECK(syscall(SYS_futex_waitv, last, counts[i], 0, &now, CLOCK_MONOTONIC) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_futex_waitv, NULL, 1, 0, &now, CLOCK_MONOTONIC) == -1 && errno == EINVAL);
	/* The kernel counts with 32 bits. */
	CHECK(syscall(SYS_futex_waitv, last, (1ul << 32) + 1, 0, &now, CLOCK_MONOTONIC) == -1 && errno == EAGAIN);
	CHECK(munmap(pages, 8192) == 0);
}

static void futexes(void)
{
	pthread_t one, two, sweeper;
	pthread_mutexattr_t mutex;
	pthread_condattr_t cond;
	int stop = 0;

	CHECK(munmap(memory, 4 * MIB) == 0 && ftruncate(file, 192 * MIB) == 0);
	both = mmap(NULL, 192 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(both != MAP_FAILED);
	CHECK(pthread_mutexattr_init(&mutex) == 0 && pthread_condattr_init(&cond) == 0);
	CHECK(pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_mutex_init(&both->mutex, &mutex) == 0 && pthread_cond_init(&both->cond, &cond) == 0);
	CHECK(pthread_create(&sweeper, NULL, sweeps, &stop) == 0);
	CHECK(pthread_create(&one, NULL, turns, NULL) == 0 && pthread_create(&two, NULL, turns, &stop) == 0);
	CHECK(pthread_join(one, NULL) == 0 && pthread_join(two, NULL) == 0);
	wakes();
	too_many((int *)((char *)both + 4096));
	stop = 1;
	CHECK(pthread_join(sweeper, NULL) == 0);
}

int main(int argc, char **argv)
{
	static const char *const ways[] = { "return", "exit", "_exit", "quick_exit", "atexit", "destructor",
					    "library", "beside-open", "beside-close", "beside-last-close", "beside-copy", "duplicates",
					    "handler-_exit", "handler-exit", "two-exits" };
	size_t i;

	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (i = 0; i < sizeof(ways) / sizeof(*ways); i++)
			puts(ways[i]);
		return 0;
	}
	CHECK(argc >= 3);
	path = argv[argc - 1];
	if (strcmp(argv[1], "children") == 0) {
		children();
		return 0;
	}
	if (strcmp(argv[1], "acks") == 0 || strcmp(argv[1], "acked") == 0) {
		CHECK(argc >= 4);
		if (strcmp(argv[1], "acks") == 0)
			acks(argv[3], argv[2]);
		acked(argv[2]);
		return 0;
	}
	file = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(file >= 0 && ftruncate(file, 4 * MIB) == 0);
	memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(memory != MAP_FAILED);
	if (strcmp(argv[1], "end") == 0)
		end(argv[2]);
	else if (strcmp(argv[1], "syncs") == 0)
		syncs();
	else if (strcmp(argv[1], "signals") == 0)
		signals();
	else if (strcmp(argv[1], "cancel") == 0)
		cancel();
	else if (strcmp(argv[1], "futex") == 0)
		futexes();
	else
		CHECK(0);
	return 0;
}
