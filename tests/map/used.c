// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The part of rare.c about memory of a mapping that the kernel uses after the call, or after the mapping
 * is closed, and about lists of buffers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/if_alg.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rare.h"

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

static long submitted(long n, struct iocb **list)
{
	int by_function = io_submit ? io_submit(context, n, list) : -1;
	long done;

	if (io_submit && by_function < 0)
		errno = -by_function;
	done = io_submit ? (by_function < 0 ? -1 : by_function) : syscall(SYS_io_submit, context, n, list);
	return done;
}

/* A request with memory of a mapping is refused, and those before it are not. */
void submits(void)
{
	struct late late = late_of();
	int zero = open("/dev/zero", O_RDWR), one_by_one;
	char *own = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec two[2] = { { own, PAGE }, { late.p + 64 * PAGE, 16 * PAGE } };
	struct iocb all[3] = {
		{ .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = P(own), .aio_nbytes = PAGE },
		{ .aio_lio_opcode = IOCB_CMD_PWRITEV, .aio_buf = P(two), .aio_nbytes = 2 },
		{ .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = P(late.p), .aio_nbytes = 32 * PAGE },
	}, *list[3];
	struct io_event events[4];
	long i, n;

	CHECK(zero >= 0 && own != MAP_FAILED && syscall(SYS_io_setup, 8, &context) == 0);
	for (i = 0; i < 3; i++) {
		all[i].aio_fildes = zero;
		list[i] = &all[i];
	}
	for (one_by_one = 0; one_by_one < 2; one_by_one++) {
		n = one_by_one ? submitted(3, list) : syscall(SYS_io_submit, context, 3l, list);
		CHECK(n == (is_mapped_run() ? 1 : 3));
		for (i = 0; i < n; i += syscall(SYS_io_getevents, context, 1l, 4l, events, NULL))
			;
	}
	for (i = 1; i < 3 && is_mapped_run(); i++) {
		struct iocb before = all[i];

		CHECK(syscall(SYS_io_submit, context, 1l, list + i) == -1 && errno == EINVAL);
		CHECK(submitted(1, list + i) == -1 && errno == EINVAL);
		CHECK(memcmp(&before, &all[i], sizeof(before)) == 0);
	}
	/* What is no request. */
	n = submitted(1, (struct iocb **)8);
	printf("%ld %d\n", n, errno);
	list[0] = (struct iocb *)8;
	n = submitted(1, list);
	printf("%ld %d\n", n, errno);
	all[1].aio_buf = 8;
	n = submitted(1, list + 1);
	printf("%ld %d\n", n, errno);
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
void reads_late(void)
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

/* Memory of a mapping that is closed stays the file's while a call reads to it. */
void moves(void)
{
	struct late late = late_of();
	int fd, others = 0;
	char *q;

	reads_into = &late;
	slow_fd = slow_file();
	CHECK(pthread_create(&reader, NULL, reads, NULL) == 0);
	while (!is_reading)
		usleep(1000);
	usleep(100000);
	CHECK(munmap(late.p, MIB) == 0);
	/* More than its room. */
	fd = (int)pwrite(late.fd, "far", 3, 70 * MIB);
	CHECK(is_mapped_run() ? fd == -1 && errno == EFBIG : fd == 3);
	fd = open(other, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	q = mapped(fd, MIB);
	memset(q, 'b', MIB);
	has_read(&late);
	for (long at = 0; at < MIB; at++)
		others += q[at] != 'b';
	printf("%d others\n", others);
	CHECK(pwrite(late.fd, "far", 3, 70 * MIB) == 3);
}

/* Whether nobody has the file open: the library's lease refuses such an open. */
static void is_closed(void)
{
	long fd = raw(SYS_openat, AT_FDCWD, P(path), O_WRONLY | O_NONBLOCK, 0, 0, 0);

	printf("%s\n", fd >= 0 ? "closed" : "open");
	CHECK(fd < 0 || close((int)fd) == 0);
}

/* A handler jumps out of a read to a mapping. */
void jumps_out(void)
{
	struct sigaction action = { .sa_handler = jumps };
	struct itimerval soon = { { 0, 0 }, { 0, 50000 } };
	struct late late = late_of();
	int slow = slow_file();

	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	if (sigsetjmp(away, 1) == 0) {
		CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
		printf("%zd bytes\n", pread(slow, late.p, 64 * PAGE, 0));
	} else {
		puts("away");
	}
	CHECK(munmap(late.p, MIB) == 0 && close(late.fd) == 0);
	is_closed();
	truncate(path, 0);
}

static volatile int arrived;

static void arrives(int signal)
{
	(void)signal;
	arrived++;
}

static int sends, receives;

static void *sends_on(void *p)
{
	for (;;)
		send(sends, p, MIB, MSG_ZEROCOPY);
	return p;
}

/* Calls that wait for a peer are interrupted, left and cancelled. */
void interrupted(void)
{
	struct sigaction action = { .sa_handler = arrives };
	struct itimerval often = { { 0, 100000 }, { 0, 100000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct late late = late_of();
	struct iovec some = { late.p, MIB };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &some, .msg_iovlen = 1 } };
	int pair[2];
	pthread_t thread;
	void *result;
	ssize_t n;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
	sends = pair[0];
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	n = send(sends, late.p, MIB, MSG_ZEROCOPY);
	puts(n > 0 && n < MIB && arrived ? "a part" : "other");
	n = send(sends, late.p, MIB, MSG_ZEROCOPY);
	printf("%zd %d\n", n, errno);
	n = sendmsg(sends, &message.msg_hdr, MSG_ZEROCOPY);
	printf("%zd %d\n", n, errno);
	n = sendmmsg(sends, &message, 1, MSG_ZEROCOPY);
	printf("%zd %d\n", n, errno);
	n = syscall(SYS_sendto, sends, late.p, MIB, MSG_ZEROCOPY, NULL, 0);
	printf("%zd %d\n", n, errno);
	action.sa_handler = jumps;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	if (sigsetjmp(away, 1) == 0)
		send(sends, late.p, MIB, MSG_ZEROCOPY);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, sends_on, late.p) == 0);
	usleep(100000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	puts(result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
	CHECK(munmap(late.p, MIB) == 0 && close(late.fd) == 0);
	is_closed();
}

static void answered(const char *call, long n)
{
	printf("%s: %ld %d\n", call, n, n < 0 ? errno : 0);
}

/* Lists that are no memory. */
static void lists_of(struct iovec *bad, unsigned long n)
{
	struct msghdr message = { .msg_iov = bad, .msg_iovlen = n };
	struct mmsghdr one = { .msg_hdr = message };
	int zero = open("/dev/zero", O_RDWR), pair[2];
	struct iovec good = { &zero, sizeof(zero) };

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "some", 4) == 4);
	answered("readv", readv(zero, bad, (int)n));
	answered("readv of none", readv(-1, bad, (int)n));
	answered("readv of a socket", readv(pair[0], bad, (int)n));
	answered("writev", writev(pair[0], bad, (int)n));
	answered("writev of none", writev(-1, bad, (int)n));
	answered("preadv", preadv(zero, bad, (int)n, 0));
	answered("pwritev", pwritev(zero, bad, (int)n, 0));
	answered("preadv2", preadv2(zero, bad, (int)n, 0, 0));
	answered("pwritev2", pwritev2(zero, bad, (int)n, 0, 0));
	answered("syscall, readv", syscall(SYS_readv, zero, bad, n));
	answered("syscall, writev", syscall(SYS_writev, zero, bad, n));
	answered("sendmsg", sendmsg(pair[0], &message, MSG_ZEROCOPY));
	answered("sendmmsg", sendmmsg(pair[0], &one, 1, MSG_ZEROCOPY));
	answered("sendmsg of none", sendmsg(pair[0], (struct msghdr *)bad, MSG_ZEROCOPY));
	answered("sendmmsg of none", sendmmsg(pair[0], (struct mmsghdr *)bad, 1, MSG_ZEROCOPY));
	answered("process_vm_readv", process_vm_readv(getpid(), bad, n, &good, 1, 0));
	answered("process_vm_writev", process_vm_writev(getpid(), &good, 1, bad, n, 0));
	CHECK(close(zero) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

void lists(void)
{
	char *two = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;
	struct iovec *last = (struct iovec *)(two + PAGE) - 1;
	struct iovec good = { two, 4 };
	int fd, pair[2];

	CHECK(two != MAP_FAILED && mprotect(two + PAGE, PAGE, PROT_NONE) == 0);
	*last = good;
	lists_of((struct iovec *)8, 1);
	fd = opened();
	p = mapped(fd, MIB);
	lists_of((struct iovec *)8, 1);
	lists_of(NULL, 2);
	lists_of(last, 2);
	lists_of(last, 2000);
	/* A list of many, of which the last buffer is in the mapping, and a list in it. */
	CHECK(pipe(pair) == 0);
	for (int i = 0; i < 40; i++)
		((struct iovec *)two)[i] = (struct iovec){ i < 39 ? (char *)&good : p, i < 39 ? 0 : 5 };
	memcpy(p, "words", 5);
	answered("writev", writev(pair[1], (struct iovec *)two, 40));
	memcpy(p + PAGE, two, 40 * sizeof(struct iovec));
	answered("writev", writev(pair[1], (struct iovec *)(p + PAGE), 40));
	answered("read", read(pair[0], p + 3 * PAGE, 10));
	printf("%.10s\n", p + 3 * PAGE);
	memset(p + PAGE, 0, PAGE);
}

/* A cipher of the kernel writes to a mapping. */
void cipher(void)
{
	struct sockaddr_alg of = { .salg_family = AF_ALG, .salg_type = "hash", .salg_name = "sha256" };
	char *p = mapped(opened(), MIB);
	struct iovec half = { p + 100, 16 };
	int of_kind = socket(AF_ALG, SOCK_SEQPACKET, 0), one, pair[2];

	/* And any other socket. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "some words", 10) == 10);
	answered("recv", recv(pair[0], p + 2 * PAGE, 4, 0));
	answered("recvfrom", recvfrom(pair[0], p + 2 * PAGE + 4, 6, 0, NULL, NULL));
	answered("recv of nothing", recv(pair[0], p + 2 * PAGE, 4, MSG_DONTWAIT));
	printf("%s\n", p + 2 * PAGE);
	if (of_kind < 0 || bind(of_kind, (struct sockaddr *)&of, sizeof(of)) != 0) {
		puts("none here");
		return;
	}
	one = accept(of_kind, NULL, NULL);
	CHECK(one >= 0);
	memset(p + PAGE, 'A', PAGE);
	answered("write", write(one, p + PAGE, PAGE));
	answered("read", read(one, p, 32));
	answered("send", send(one, p + PAGE, PAGE, 0));
	answered("recv", recv(one, p + 32, 32, 0));
	answered("send", send(one, p + PAGE, PAGE, 0));
	answered("readv", readv(one, &half, 1));
	CHECK(memcmp(p, p + 32, 32) == 0 && memcmp(p, p + 100, 16) == 0);
}

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
void zerocopy_before(void)
{
	struct late late = late_of();
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(at);
	int listens = socket(AF_INET, SOCK_STREAM, 0), one = 1, much = 8 * MIB, little = 4096, others;
	struct iovec some = { late.p, 64 * PAGE };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &some, .msg_iovlen = 1 } };
	struct msghdr *m = &message.msg_hdr;
	static struct mmsghdr many[1025];

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
	/* More than the kernel takes: it takes as many as it does. */
	many[0] = message;
	CHECK(sendmmsg(sends, many, 1025, MSG_ZEROCOPY) == 1024 && many[0].msg_len == 64 * PAGE);
	CHECK(syscall(SYS_sendmmsg, sends, many, 1025, MSG_ZEROCOPY) == 1024);
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
void remote(void)
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

/* Gets a ring that a process has made, which was forked before. */
static int ring_of_other(int from, pid_t maker)
{
	int other_process = (int)syscall(SYS_pidfd_open, maker, 0), number, ring;

	CHECK(other_process >= 0 && read(from, &number, sizeof(number)) == sizeof(number));
	ring = (int)syscall(SYS_pidfd_getfd, other_process, number, 0);
	CHECK(ring >= 0 && write(from, "", 1) == 1 && waitpid(maker, NULL, 0) == maker);
	return ring;
}

static void makes_ring(int to)
{
	struct io_uring_params params = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
	char byte;

	CHECK(ring >= 0 && write(to, &ring, sizeof(ring)) == sizeof(ring) && read(to, &byte, 1) == 1);
	_exit(0);
}

/* A program has rings or a mapping. */
void rings(void)
{
	struct io_uring_params params = { 0 };
	int pair[2], before, fd, status, ring;
	char *of_ring;
	pid_t maker;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	maker = fork();
	if (maker == 0)
		makes_ring(pair[1]);
	before = (int)syscall(SYS_io_uring_setup, 4, &params);
	fd = opened();
	CHECK(before >= 0 && ftruncate(fd, MIB) == 0);
	of_ring = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, before, IORING_OFF_SQ_RING);
	CHECK(of_ring != MAP_FAILED);
	if (is_mapped_run())
		CHECK(mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBUSY);
	/* The ring works as before. */
	CHECK(syscall(SYS_io_uring_enter, before, 0, 0, 0, NULL, 0) == 0);
	CHECK(close(before) == 0 && write(fd, "read", 4) == 4);
	if (is_mapped_run())
		CHECK(mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBUSY);
	CHECK(munmap(of_ring, PAGE) == 0 && mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	memset(&params, 0, sizeof(params));
	before = (int)syscall(SYS_io_uring_setup, 4, &params);
	CHECK(is_mapped_run() ? before == -1 && errno == EPERM : before >= 0);
	before = (int)raw(SYS_io_uring_setup, 4, P(&params), 0, 0, 0, 0);
	CHECK(is_mapped_run() ? before == -EPERM : before >= 0);
	ring = ring_of_other(pair[0], maker);
	before = (int)raw(SYS_io_uring_enter, ring, 0, 0, 0, 0, 0);
	CHECK(before == (is_mapped_run() ? -EPERM : 0));
	before = (int)raw(SYS_io_uring_register, ring, IORING_UNREGISTER_EVENTFD, 0, 0, 0, 0);
	CHECK(before == (is_mapped_run() ? -EPERM : -ENXIO));
	if (fork() == 0)
		execlp("true", "true", NULL);
	CHECK(wait(&status) > 0);
	printf("%d\n", status);
}
