// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a program sees the same as without the library when several threads, signals and other
 * programs act at the same moment.
 * Method: edges.sh runs each with and without map-run, and does its part meanwhile.
 *
 *	edges list              those that need no other process
 *	edges closes FILE       two threads close two duplicates of a descriptor at once
 *	edges makes FILE        two threads make a file at once, and one by a dangling link
 *	edges jumps FILE        a handler is left by a jump, then a file is opened by deeper calls
 *	edges signals FILE      the process waits for signals while a file is open
 *	edges forks FILE        children while threads open and close files
 *	edges numbers FILE      the descriptors that threads of the library open, while FILE is written
 *				back and read
 *	edges others FILE       threads open, rename and change other files while FILE is closed
 *	edges syncs FILE        syncs while others read FILE and another file is closed
 *	edges room FILE         stores, says "stored", waits for a byte of its input; then FILE gets more
 *				room, with a private mapping of it and whoever reads it by then
 *	edges holds FILE        stores, says "stored", waits for its input to end, and says "done"
 *	edges fills FILE        the same, but at a byte of its input it stores without a sync
 *	edges make FILE         makes it
 *	edges stops FILE COMMAND...   runs it until it is to make FILE; says "stopped", and continues
 *				it at a byte of its input
 *	edges writes FILE SEEN  stores all the time, and to the plain file SEEN after that; says "stored"
 *	edges comes FILE SEEN MS   opens FILE to write without a wait, MS later with one; what SEEN had
 *				by then is in FILE, and it writes there
 *	edges leaves FILE OTHER stores to FILE, says "stored", waits for a byte of its input; ends
 *				while a thread opens OTHER again and again
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "raw.h"

#define MIB (1l << 20)

static const char *path;
static volatile int stop;

static pthread_t begin(void *(*f)(void *), void *p)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, f, p) == 0);
	return thread;
}

static int made(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0);
	return fd;
}

/* The threads of a round begin together, as nearly as possible. */
static pthread_barrier_t both;
static volatile int arrived;
static int two[2];

static void together(int threads, int round)
{
	int tries;

	__atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
	for (tries = 0; arrived < threads * (round + 1); tries++)
		if (tries > 20000)
			usleep(1);
}

static void *closes_one(void *p)
{
	int i, which = p != NULL;

	for (i = 0; i < 3000; i++) {
		pthread_barrier_wait(&both);
		together(2, i);
		CHECK(close(two[which]) == 0);
		pthread_barrier_wait(&both);
	}
	return NULL;
}

static void closes(void)
{
	pthread_t one, other;
	int i, kept = made(path), last;
	char c;

	CHECK(pthread_barrier_init(&both, NULL, 3) == 0);
	one = begin(closes_one, NULL);
	other = begin(closes_one, &both);
	for (i = 0; i < 3000; i++) {
		c = (char)i;
		two[0] = made(path);
		two[1] = dup(two[0]);
		CHECK(two[1] >= 0);
		pthread_barrier_wait(&both);
		pthread_barrier_wait(&both);
		/* Another description has the file open all the time. */
		CHECK(pwrite(kept, &c, 1, 0) == 1);
		last = made(path);
		CHECK(pread(last, &c, 1, 0) == 1 && c == (char)i && close(last) == 0);
	}
	pthread_join(one, NULL);
	pthread_join(other, NULL);
	CHECK(fsync(kept) == 0 && close(kept) == 0);
}

static void *makes_one(void *p)
{
	int i, fd;

	for (i = 0; i < 60; i++) {
		pthread_barrier_wait(&both);
		fd = made(path);
		CHECK(pwrite(fd, "made", 4, p ? 0 : 4) == 4);
		pthread_barrier_wait(&both);
		CHECK(close(fd) == 0);
		pthread_barrier_wait(&both);
		if (p)
			CHECK(unlink(path) == 0);
	}
	return NULL;
}

static void makes(void)
{
	char link[512], target[512];
	pthread_t one, other;
	int fd;

	CHECK(unlink(path) == 0);
	CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
	one = begin(makes_one, NULL);
	other = begin(makes_one, &both);
	pthread_join(one, NULL);
	pthread_join(other, NULL);
	snprintf(link, sizeof(link), "%s.link.map", path);
	snprintf(target, sizeof(target), "%s.target.map", path);
	CHECK(symlink(target, link) == 0);
	fd = made(link);
	CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK) && write(fd, "by a link", 9) == 9 && close(fd) == 0);
	CHECK(open(link, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
	CHECK(access(target, R_OK) == 0 && unlink(link) == 0 && unlink(target) == 0);
	CHECK(open(path, O_RDWR) == -1 && errno == ENOENT);
	CHECK(close(made(path)) == 0);
}

static sigjmp_buf out, *within;
static int opened_within;

static void leaves(int signal)
{
	(void)signal;
	/* The handler jumps within itself.  It still runs, wherever the target of the jump is
	 * stored. */
	if (sigsetjmp(*within, 0) == 0)
		siglongjmp(*within, 1);
	opened_within = open(path, O_RDWR);
	if (is_mapped_run())
		CHECK(opened_within == -1 && errno == EBUSY);
	else
		CHECK(opened_within >= 0 && close(opened_within) == 0);
	siglongjmp(out, 1);
}

__attribute__((noinline)) static void deeper(int depth)
{
	volatile char room[4096];
	int fd;

	room[0] = room[4095] = (char)depth;
	if (depth > 0) {
		deeper(depth - 1);
	} else {
		fd = made(path);
		CHECK(pwrite(fd, "deep", 4, 0) == 4 && close(fd) == 0);
	}
	room[1] = room[0];
}

static void *jumps_here(void *p)
{
	static char stack[65536];
	stack_t other = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct sigaction action = { .sa_handler = leaves };
	volatile int round;

	within = malloc(sizeof(*within));
	CHECK(within);
	for (round = 0; round < 4; round++) {
		action.sa_flags = round % 2 ? SA_ONSTACK : 0;
		CHECK(sigaltstack(&other, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
		if (sigsetjmp(out, 1) == 0)
			raise(SIGUSR1);
		deeper(20);
	}
	other.ss_flags = SS_DISABLE;
	CHECK(sigaltstack(&other, NULL) == 0);
	return p;
}

static void waits_for(int signal)
{
	struct timespec second = { 2, 0 };
	sigset_t set;
	int i;

	sigemptyset(&set);
	sigaddset(&set, signal);
	for (i = 0; i < 50; i++) {
		CHECK(kill(getpid(), signal) == 0);
		/* The pause lets another thread be the first. */
		usleep(500);
		CHECK(sigtimedwait(&set, NULL, &second) == signal);
	}
}

static void signals(void)
{
	int fd = made(path), signal;
	sigset_t set;

	CHECK(pwrite(fd, "open", 4, 0) == 4);
	sigfillset(&set);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	for (signal = 1; signal <= SIGRTMAX; signal++)
		if (signal == SIGIO || signal == SIGUSR1 || signal >= SIGRTMIN)
			waits_for(signal);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
	/* The C library sends a signal to each thread, and waits. */
	alarm(20);
	CHECK(setgid(getgid()) == 0 && setuid(getuid()) == 0);
	alarm(0);
	CHECK(fsync(fd) == 0 && close(fd) == 0);
}

static void *opens_and_closes(void *p)
{
	char name[512];
	int fd;

	snprintf(name, sizeof(name), "%s.%s.map", path, (const char *)p);
	while (!stop) {
		fd = made(name);
		CHECK(pwrite(fd, "x", 1, 0) == 1 && close(fd) == 0);
		usleep(rand() % 300);
	}
	return NULL;
}

/* Makes calls that look at open files and at mappings. */
static void *maps_nothing(void *p)
{
	while (!stop)
		close(dup(0));
	return p;
}

static void forks(void)
{
	pthread_t one = begin(opens_and_closes, "one"), other = begin(maps_nothing, NULL);
	time_t begun = time(NULL);
	int status, fd, n = 0, opened = 0;
	pid_t child;

	while (time(NULL) < begun + 2) {
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(10);
			fd = open(path, O_RDWR | O_CREAT, 0600);
			if (fd < 0)
				_exit(2);
			_exit(pwrite(fd, "child", 5, 0) == 5 && close(fd) == 0 ? 0 : 1);
		}
		CHECK(waitpid(child, &status, 0) == child);
		/* A child may not have such a file open if its parent has one. */
		CHECK(status == 0 || (is_mapped_run() && WIFEXITED(status)));
		opened += status == 0;
		n++;
	}
	stop = 1;
	pthread_join(one, NULL);
	pthread_join(other, NULL);
	printf("%d children, %d with a file\n", n, opened);
}

static void syncs(void)
{
	pthread_t one = begin(opens_and_closes, "one"), other = begin(opens_and_closes, "other");
	time_t begun = time(NULL);
	int fd = made(path);
	uint64_t n;

	CHECK(pwrite(fd, "stored", 6, 2 * PAGE) == 6);
	puts("stored");
	for (n = 0; time(NULL) < begun + 4; n++)
		CHECK(pwrite(fd, &n, sizeof(n), 0) == sizeof(n) && fsync(fd) == 0);
	stop = 1;
	pthread_join(one, NULL);
	pthread_join(other, NULL);
	puts("done");
}

static void room(void)
{
	int fd = made(path);
	char *p, c, found[8] = "";

	CHECK(pwrite(fd, "stored", 6, 2 * PAGE) == 6);
	puts("stored");
	CHECK(read(0, &c, 1) == 1);
	p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(p != MAP_FAILED && strcmp(p + 2 * PAGE, "stored") == 0);
	CHECK(ftruncate(fd, 64 * MIB) == 0 && pwrite(fd, "grown", 5, 48 * MIB) == 5 && fsync(fd) == 0);
	CHECK(pread(fd, found, 6, 2 * PAGE) == 6 && strcmp(found, "stored") == 0);
	CHECK(munmap(p, 4 * PAGE) == 0);
	puts("grown");
	CHECK(read(0, &c, 1) == 0);
	CHECK(ftruncate(fd, 160 * MIB) == 0 && pwrite(fd, "again", 5, 100 * MIB) == 5 && close(fd) == 0);
	puts("done");
}

static void holds(void)
{
	int fd = open(path, O_RDWR), n;
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), c;

	CHECK(fd >= 0 && p != MAP_FAILED);
	strcpy(p + 2 * PAGE, "stored");
	CHECK(pwrite(fd, "written", 7, 3 * PAGE) == 7);
	puts("stored");
	/* The program uses its mapping until its input ends. */
	CHECK(fcntl(0, F_SETFL, O_NONBLOCK) == 0);
	for (n = 0; read(0, &c, 1) != 0; n++) {
		p[PAGE] = (char)n;
		CHECK(msync(p, 4 * PAGE, MS_SYNC) == 0 && pread(fd, &c, 1, PAGE) == 1 && c == (char)n);
		usleep(1000);
	}
	CHECK(strcmp(p + 2 * PAGE, "stored") == 0 && fsync(fd) == 0);
	puts("done");
}

static void fills(void)
{
	int fd = open(path, O_RDWR);
	char *p = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), c;

	CHECK(fd >= 0 && p != MAP_FAILED);
	strcpy(p + 2 * PAGE, "stored");
	CHECK(msync(p, 4 * PAGE, MS_SYNC) == 0);
	puts("stored");
	CHECK(read(0, &c, 1) == 1);
	strcpy(p + 6 * MIB, "not synced");
	puts("more");
	CHECK(read(0, &c, 1) == 0);
	puts("done");
}

/* A traced process is stopped in the system call that makes the file. */
static int makes_it(pid_t pid)
{
	struct __ptrace_syscall_info info;
	char name[512] = "";
	struct iovec here = { name, strlen(path) + 1 }, there;

	CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) > 0);
	if (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != SYS_openat || !(info.entry.args[2] & O_CREAT))
		return 0;
	there = (struct iovec){ (void *)(uintptr_t)info.entry.args[1], here.iov_len };
	return process_vm_readv(pid, &here, 1, &there, 1, 0) > 0 && strcmp(name, path) == 0;
}

static void stops(char **command)
{
	pid_t pid = fork();
	int status;
	char c;

	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
		execvp(command[0], command);
		CHECK(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
	do {
		int signal = WSTOPSIG(status);

		signal = signal == SIGTRAP || signal == (SIGTRAP | 0x80) ? 0 : signal;
		CHECK(ptrace(PTRACE_SYSCALL, pid, 0, signal) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	} while (WSTOPSIG(status) != (SIGTRAP | 0x80) || !makes_it(pid));
	puts("stopped");
	CHECK(read(0, &c, 1) == 1);
	CHECK(ptrace(PTRACE_DETACH, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

static void *opens_other(void *p)
{
	for (;;)
		close(open(p, O_RDWR | O_CREAT, 0600));
	return NULL;
}

static void ends(char *other)
{
	int fd = made(path);
	char c;

	CHECK(pwrite(fd, "stored", 6, 2 * PAGE) == 6);
	puts("stored");
	CHECK(read(0, &c, 1) == 1);
	begin(opens_other, other);
	usleep(300000);
	CHECK(pwrite(fd, "last", 4, 3 * PAGE) == 4);
	exit(0);
}

static volatile uint64_t *seen;

static void seen_at(const char *name)
{
	int fd = made(name);

	CHECK(ftruncate(fd, PAGE) == 0);
	seen = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(seen != MAP_FAILED && close(fd) == 0);
}

static void *counts(void *p)
{
	volatile uint64_t *count = (uint64_t *)((char *)p + 2 * PAGE);
	uint64_t n;

	for (n = 1;; n++) {
		*count = n;
		*(volatile uint64_t *)((char *)p + 5 * PAGE) = n;
		*seen = n;
		usleep(100);
	}
	return NULL;
}

static void writes(const char *name)
{
	int fd = made(path);
	char *p, *other;

	CHECK(ftruncate(fd, 24 * MIB) == 0);
	p = mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	seen_at(name);
	begin(counts, p);
	memset(p + 4 * MIB, 1, 20 * MIB);
	puts("stored");
	for (;;) {
		/* Much data is written back. */
		other = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
		CHECK(other != MAP_FAILED && munmap(other, PAGE) == 0);
		memset(p + 4 * MIB, rand(), 20 * MIB);
	}
}

static void comes(const char *name, int ms)
{
	uint64_t before, there;
	int fd;

	seen_at(name);
	CHECK(open(path, O_WRONLY | O_NONBLOCK) == -1 && errno == EAGAIN);
	usleep((useconds_t)ms * 1000);
	before = *seen;
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 && pread(fd, &there, sizeof(there), 2 * PAGE) == sizeof(there));
	CHECK(pwrite(fd, "other", 5, 5 * PAGE + 100) == 5 && fsync(fd) == 0 && close(fd) == 0);
	if (there < before)
		printf("%lu is there of %lu\n", (unsigned long)there, (unsigned long)before);
}

/* Looks whether another file is a mapped one. */
static int opens_it(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	return fd < 0 || close(fd) != 0;
}

static int opens_stream(const char *name)
{
	FILE *f = fopen(name, "w");

	return !f || fclose(f) != 0;
}

static int renames(const char *name)
{
	char to[512];

	snprintf(to, sizeof(to), "%s.renamed", name);
	return rename(name, to) != 0 || rename(to, name) != 0;
}

static int truncates(const char *name)
{
	return truncate(name, 4096) != 0;
}

static int sets_times(const char *name)
{
	return utimensat(AT_FDCWD, name, NULL, 0) != 0;
}

static struct {
	const char *name;
	int (*call)(const char *);
	volatile unsigned long calls;
} other_calls[] = {
	{ "open", opens_it, 0 }, { "fopen", opens_stream, 0 }, { "rename", renames, 0 },
	{ "truncate", truncates, 0 }, { "utimensat", sets_times, 0 },
};
#define OTHERS (sizeof(other_calls) / sizeof(*other_calls))

static void *calls_other(void *p)
{
	size_t i = (size_t)p;
	char name[512];

	snprintf(name, sizeof(name), "%s.%s.plain", path, other_calls[i].name);
	CHECK(opens_it(name) == 0);
	while (!stop) {
		CHECK(other_calls[i].call(name) == 0);
		other_calls[i].calls++;
		usleep(500);
	}
	return NULL;
}

static void others(void)
{
	unsigned long before[OTHERS], during[OTHERS];
	pthread_t threads[OTHERS];
	int fd = made(path);
	size_t i;
	char *p;

	CHECK(ftruncate(fd, 40 * MIB) == 0);
	p = mmap(NULL, 40 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	for (i = 0; i < OTHERS; i++)
		threads[i] = begin(calls_other, (void *)i);
	memset(p, 7, 40 * MIB);
	CHECK(munmap(p, 40 * MIB) == 0);
	for (i = 0; i < OTHERS; i++)
		before[i] = other_calls[i].calls;
	CHECK(close(fd) == 0);
	for (i = 0; i < OTHERS; i++)
		during[i] = other_calls[i].calls - before[i];
	stop = 1;
	for (i = 0; i < OTHERS; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		/* A call that had begun ends, and so does one that had looked before the close
		 * began. */
		if (is_mapped_run() && during[i] < 4)
			fprintf(stderr, "%s: %lu calls during the close\n", other_calls[i].name, during[i]);
		CHECK(!is_mapped_run() || during[i] >= 4);
	}
}

static void *stores_and_syncs(void *p)
{
	int i;

	for (i = 1; !stop; i++) {
		*(volatile int *)p = i;
		CHECK(msync(p, PAGE, MS_SYNC) == 0);
		usleep(20000);
	}
	return NULL;
}

/* The threads of the library, and the system call of each. */
static struct {
	pid_t thread;
	uint64_t call;
} traced[16];
static size_t traces;

static void trace_library(void)
{
	char name[300], comm[32] = "";
	struct dirent *entry;
	DIR *tasks;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/task", getppid());
	tasks = opendir(name);
	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		snprintf(name, sizeof(name), "/proc/%d/task/%s/comm", getppid(), entry->d_name);
		file = fopen(name, "r");
		if (!file || !fgets(comm, sizeof(comm), file) || strncmp(comm, "map-", 4) != 0)
			continue;
		CHECK(traces < sizeof(traced) / sizeof(*traced));
		traced[traces].thread = atoi(entry->d_name);
		CHECK(ptrace(PTRACE_SEIZE, traced[traces].thread, 0, PTRACE_O_TRACESYSGOOD) == 0);
		CHECK(ptrace(PTRACE_INTERRUPT, traced[traces].thread, 0, 0) == 0);
		traces++;
	}
	CHECK(traces || !is_mapped_run());
}

static int is_new_descriptor(uint64_t call)
{
	return call == SYS_openat || call == SYS_dup || call == SYS_dup3 || call == SYS_eventfd2 ||
	       call == SYS_socket || call == SYS_accept4 || call == SYS_memfd_create;
}

/* Traces the library's threads, and fails if one of them takes a number that the program may
 * expect for itself. */
static void traces_numbers(void)
{
	struct __ptrace_syscall_info info;
	time_t begun = time(NULL);
	int status;
	pid_t pid;
	size_t i;

	/* The library releases its lease for this reader, and checks who has the file. */
	CHECK((int)raw(SYS_openat, AT_FDCWD, P(path), O_RDONLY, 0, 0, 0) >= 0);
	trace_library();
	while (time(NULL) < begun + 3) {
		pid = waitpid(-1, &status, __WALL | WNOHANG);
		if (pid <= 0) {
			usleep(100);
			continue;
		}
		for (i = 0; i < traces && traced[i].thread != pid; i++)
			;
		if (!WIFSTOPPED(status) || i == traces)
			continue;
		if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
			ptrace(PTRACE_SYSCALL, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
			continue;
		}
		CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) > 0);
		if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
			traced[i].call = info.entry.nr;
		else if (is_new_descriptor(traced[i].call) && info.exit.rval >= 0 && info.exit.rval < 100)
			CHECK(!"a thread of the library takes a low descriptor");
		ptrace(PTRACE_SYSCALL, pid, 0, 0);
	}
	_exit(0);
}

static void numbers(void)
{
	int fd = made(path), status;
	pthread_t thread;
	pid_t child;
	char *p;

	CHECK(ftruncate(fd, MIB) == 0);
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	thread = begin(stores_and_syncs, p);
	while (!*(volatile int *)p)
		usleep(1000);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		execl("/proc/self/exe", "edges", "traces", path, NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0 && close(fd) == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
	int alone;
} all[] = {
	{ "others", others, 1 },
	{ "closes", closes, 1 },
	{ "makes", makes, 1 },
	{ "signals", signals, 1 },
	{ "forks", forks, 1 },
	{ "numbers", numbers, 1 },
	{ "syncs", syncs, 0 },
	{ "room", room, 0 },
	{ "holds", holds, 0 },
	{ "fills", fills, 0 },
};

int main(int argc, char **argv)
{
	size_t i;

	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc >= 2);
	path = argv[argc > 2 ? 2 : 1];
	if (strcmp(argv[1], "list") == 0)
		puts("jumps");
	for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (strcmp(argv[1], "list") == 0 && all[i].alone)
			puts(all[i].name);
		if (strcmp(argv[1], all[i].name) == 0)
			all[i].run();
	}
	if (strcmp(argv[1], "jumps") == 0) {
		jumps_here(NULL);
		CHECK(pthread_join(begin(jumps_here, NULL), NULL) == 0);
	}
	if (strcmp(argv[1], "traces") == 0)
		traces_numbers();
	if (strcmp(argv[1], "make") == 0)
		CHECK(close(made(path)) == 0);
	if (strcmp(argv[1], "stops") == 0)
		stops(argv + 3);
	if (strcmp(argv[1], "writes") == 0)
		writes(argv[3]);
	if (strcmp(argv[1], "comes") == 0)
		comes(argv[3], atoi(argv[4]));
	if (strcmp(argv[1], "leaves") == 0)
		ends(argv[3]);
	return 0;
}
