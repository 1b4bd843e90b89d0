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
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
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

#include "check.h"
#include "raw.h"

#define MIB (1l << 20)

static const char *path, *other;

static int opened(void)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);

	CHECK(fd >= 0);
	return fd;
}

static char *mapped(int fd, long len)
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

static sigjmp_buf away;

static void jumps(int signal)
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

/* Memory of a mapping that the kernel uses after the call, or after the mapping is closed. */

struct late {
	int fd;
	char *p;
	long n;
};

/* Closes the mapping, and another file gets memory.  Returns how many of its bytes are not its own
 * after `over`. */
static int others_after(struct late *late, void (*over)(struct late *))
{
	int fd, others = 0;
	char *q;

	CHECK(munmap(late->p, MIB) == 0 && close(late->fd) == 0);
	fd = open(other, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	q = mapped(fd, 30 * MIB);
	memset(q, 'b', 30 * MIB);
	CHECK(msync(q, 30 * MIB, MS_SYNC) == 0);
	over(late);
	for (long at = 0; at < 30 * MIB; at++)
		others += q[at] != 'b';
	return others;
}

static struct late late_of(void)
{
	struct late late = { .fd = opened() };

	late.p = mapped(late.fd, MIB);
	memset(late.p, 'A', MIB);
	CHECK(msync(late.p, MIB, MS_SYNC) == 0);
	return late;
}

static int slow_file(void)
{
	int fd = open(getenv("LATE"), O_RDWR | O_DIRECT);

	CHECK(fd >= 0);
	return fd;
}

/* The function of libaio, if there is one. */
extern int io_submit(aio_context_t, long, struct iocb **) __attribute__((weak));
static aio_context_t context;

static void completes(struct late *late)
{
	struct io_event events[4];
	long i, sum = 0;

	for (i = 0; i < 4; i += syscall(SYS_io_getevents, context, 1, 4 - i, events + i, NULL))
		;
	for (i = 0; i < 4; i++) {
		CHECK(events[i].data == ((struct iocb *)(uintptr_t)events[i].obj)->aio_data);
		sum += events[i].res;
	}
	late->n = sum;
}

static void submits(void)
{
	struct late late = late_of();
	int slow = slow_file(), others;
	char *own = mmap(NULL, 256 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec two[2] = { { late.p + 64 * PAGE, 16 * PAGE }, { own, 16 * PAGE } };
	struct iocb all[4] = {
		{ .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = P(late.p), .aio_nbytes = 64 * PAGE },
		{ .aio_lio_opcode = IOCB_CMD_PREADV, .aio_buf = P(two), .aio_nbytes = 2, .aio_offset = MIB },
		{ .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = P(own + 32 * PAGE), .aio_nbytes = PAGE },
		{ .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = P(late.p + 128 * PAGE), .aio_nbytes = 32 * PAGE, .aio_offset = 2 * MIB },
	}, *list[4];
	long i;

	CHECK(syscall(SYS_io_setup, 8, &context) == 0);
	for (i = 0; i < 4; i++) {
		all[i].aio_fildes = slow;
		all[i].aio_data = 100 + i;
		list[i] = &all[i];
	}
	CHECK((io_submit ? io_submit(context, 2, list) : syscall(SYS_io_submit, context, 2, list)) == 2);
	CHECK(syscall(SYS_io_submit, context, 2, list + 2) == 2);
	others = others_after(&late, completes);
	CHECK(pread(slow, own + 64 * PAGE, 32 * PAGE, 2 * MIB) == 32 * PAGE);
	for (i = 0; i < 32 * PAGE; i++)
		others += own[64 * PAGE + i] != 'A';
	for (i = 0; i < 16 * PAGE; i++)
		others += own[i] != 'X';
	printf("%ld bytes, %d others\n", late.n, others);
	/* What cannot be read says so in its result. */
	list[0]->aio_fildes = open(path, O_WRONLY);
	list[1]->aio_offset = -1;
	printf("%ld", syscall(SYS_io_submit, context, 1, list));
	printf(" %ld\n", syscall(SYS_io_submit, context, 1, list + 1));
}

static int slow_fd;
static volatile int is_reading;
static struct late *reads_into;

static void *reads(void *p)
{
	is_reading = 1;
	reads_into->n = pread(slow_fd, reads_into->p, 64 * PAGE, 0);
	return p;
}

static pthread_t reader;

static void has_read(struct late *late)
{
	CHECK(pthread_join(reader, NULL) == 0 && late->n == 64 * PAGE);
}

/* One thread reads into a mapping that another one closes. */
static void reads_late(void)
{
	struct late late = late_of();

	reads_into = &late;
	slow_fd = slow_file();
	CHECK(pthread_create(&reader, NULL, reads, NULL) == 0);
	while (!is_reading)
		usleep(1000);
	usleep(150000);
	printf("%d others\n", others_after(&late, has_read));
}

static int sends, receives;

static void receives_all(struct late *late)
{
	static char bytes[64 * PAGE];
	long n;

	CHECK(shutdown(sends, SHUT_WR) == 0);
	while ((n = read(receives, bytes, sizeof(bytes))) > 0)
		for (long i = 0; i < n; i++)
			late->n += bytes[i] != 'A';
	CHECK(n == 0);
}

/* A socket that had SO_ZEROCOPY before the program, as by an instruction. */
static void zerocopy_before(void)
{
	struct late late = late_of();
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(at);
	int listens = socket(AF_INET, SOCK_STREAM, 0), one = 1, much = 8 * MIB, little = 4096, others;
	struct iovec some = { late.p, 64 * PAGE };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &some, .msg_iovlen = 1 } };
	struct msghdr *m = &message.msg_hdr;

	sends = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(setsockopt(listens, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little)) == 0);
	CHECK(bind(listens, (struct sockaddr *)&at, len) == 0 && listen(listens, 1) == 0);
	CHECK(getsockname(listens, (struct sockaddr *)&at, &len) == 0);
	CHECK(raw(SYS_setsockopt, sends, SOL_SOCKET, SO_ZEROCOPY, P(&one), sizeof(one), 0) == 0);
	CHECK(setsockopt(sends, SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof(much)) == 0);
	CHECK(connect(sends, (struct sockaddr *)&at, len) == 0);
	receives = accept(listens, NULL, NULL);
	CHECK(send(sends, late.p, 64 * PAGE, MSG_ZEROCOPY) == 64 * PAGE);
	CHECK(sendmsg(sends, m, MSG_ZEROCOPY) == 64 * PAGE);
	CHECK(sendmmsg(sends, &message, 1, MSG_ZEROCOPY) == 1 && message.msg_len == 64 * PAGE);
	CHECK(syscall(SYS_sendto, sends, late.p, 64 * PAGE, MSG_ZEROCOPY, NULL, 0) == 64 * PAGE);
	CHECK(syscall(SYS_sendmsg, sends, m, MSG_ZEROCOPY) == 64 * PAGE);
	CHECK(syscall(SYS_sendmmsg, sends, &message, 1, MSG_ZEROCOPY) == 1);
	others = others_after(&late, receives_all);
	printf("%ld and %d others\n", late.n, others);
}

static int faults_fd, went_on[2], is_held[2];
static char *held;

static void *holds(void *p)
{
	static char bytes[PAGE];
	struct uffd_msg message;
	int i;

	memset(bytes, 'Z', PAGE);
	for (i = 0; i < 2; i++) {
		struct uffdio_copy copy = { P(held + i * PAGE), P(bytes), PAGE, 0, 0 };
		char c = 0;

		CHECK(read(faults_fd, &message, sizeof(message)) == sizeof(message));
		CHECK(write(is_held[1], &c, 1) == 1 && read(went_on[0], &c, 1) == 1);
		CHECK(ioctl(faults_fd, UFFDIO_COPY, &copy) == 0);
	}
	return p;
}

static char *copied_to;

static void *copies(void *p)
{
	struct iovec here = { held, PAGE }, there = { copied_to + PAGE, PAGE };
	pid_t me = getpid();

	CHECK(process_vm_writev(me, &here, 1, &there, 1, 0) == PAGE);
	here.iov_base = held + PAGE;
	there.iov_base = copied_to + 3 * PAGE;
	me = (pid_t)syscall(SYS_gettid);
	CHECK(syscall(SYS_process_vm_writev, me, &here, 1l, &there, 1l, 0l) == PAGE);
	return p;
}

/* A sync and a write-back between the moment when the kernel has the memory and the one when it copies. */
static void remote(void)
{
	struct uffdio_api api = { UFFD_API, 0, 0 };
	struct uffdio_register range = { { 0, 2 * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	struct iovec here, there;
	pthread_t threads[2];
	char c = 0, found[PAGE];
	int fd = opened(), i;

	copied_to = mapped(fd, MIB);
	memset(copied_to, 'A', MIB);
	CHECK(msync(copied_to, MIB, MS_SYNC) == 0);
	faults_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	held = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = P(held);
	CHECK(faults_fd >= 0 && ioctl(faults_fd, UFFDIO_API, &api) == 0);
	CHECK(ioctl(faults_fd, UFFDIO_REGISTER, &range) == 0 && pipe(went_on) == 0 && pipe(is_held) == 0);
	CHECK(pthread_create(&threads[0], NULL, holds, NULL) == 0);
	CHECK(pthread_create(&threads[1], NULL, copies, NULL) == 0);
	for (i = 0; i < 2; i++) {
		CHECK(read(is_held[0], &c, 1) == 1);
		CHECK(futimens(fd, NULL) == 0 && msync(copied_to, MIB, MS_SYNC) == 0 && write(went_on[1], &c, 1) == 1);
	}
	CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
	here = (struct iovec){ found, PAGE };
	there = (struct iovec){ copied_to + 3 * PAGE, PAGE };
	CHECK(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == PAGE && found[7] == 'Z');
	/* As far as there is memory. */
	there.iov_base = (char *)8;
	printf("%zd", process_vm_writev(getpid(), &here, 1, &there, 1, 0));
	here = (struct iovec){ (char *)8, PAGE };
	there.iov_base = copied_to;
	printf(" %zd\n", process_vm_writev(getpid(), &here, 1, &there, 1, 0));
	fflush(stdout);
	CHECK(msync(copied_to, MIB, MS_SYNC) == 0);
	kill(getpid(), SIGKILL);
}

/* A program has rings or a mapping. */
static void rings(void)
{
	struct io_uring_params params = { 0 };
	int before = (int)syscall(SYS_io_uring_setup, 4, &params), fd = opened(), status;

	CHECK(ftruncate(fd, MIB) == 0);
	if (is_mapped_run())
		CHECK(mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBUSY);
	CHECK(before >= 0 && close(before) == 0 && write(fd, "read", 4) == 4);
	memset(&params, 0, sizeof(params));
	before = (int)syscall(SYS_io_uring_setup, 4, &params);
	CHECK(is_mapped_run() ? before == -1 && errno == EPERM : before >= 0);
	CHECK(mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	before = (int)raw(SYS_io_uring_setup, 4, P(&params), 0, 0, 0, 0);
	CHECK(is_mapped_run() ? before == -EPERM : before >= 0);
	if (fork() == 0)
		execlp("true", "true", NULL);
	CHECK(wait(&status) > 0);
	printf("%d\n", status);
}

static const struct one {
	const char *name;
	void (*run)(void);
} all[] = {
	{ "printed", printed }, { "blocked", blocked }, { "jump", jump }, { "handler", handler },
	{ "vfork", forked }, { "ends", ends }, { "advice", advice }, { "times", times_by_path },
	{ "zerocopy", zerocopy }, { "vmsplice", spliced }, { "unshare", own_table }, { "leader", without_leader },
	{ "aio", submits }, { "direct", reads_late }, { "zerocopy-before", zerocopy_before }, { "remote", remote },
	{ "rings", rings },
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
