// SPDX-License-Identifier: MIT OR Apache-2.0
/* The cases of alike.c about many signals. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alike.h"

static struct {
	volatile int last, count, off, wrong;
	char *stack;
	pthread_t to;
	int all;
} queue;

static void queued(int signal, siginfo_t *info, void *context)
{
	char here;

	(void)signal, (void)context;
	queue.wrong += info->si_value.sival_int != queue.last + 1;
	queue.last = info->si_value.sival_int;
	queue.off += &here < queue.stack || &here >= queue.stack + 16 * PAGE;
	queue.count++;
}

static void beside(int signal)
{
	(void)signal;
}

static void *queues(void *p)
{
	int i;

	for (i = 1; i <= queue.all; i++) {
		union sigval value = { .sival_int = i };

		while (pthread_sigqueue(queue.to, SIGRTMIN + 1, value) != 0)
			sched_yield();
		/* One that is recorded before it, and runs while the next is pending. */
		while (pthread_sigqueue(queue.to, SIGRTMIN + 2, value) != 0)
			sched_yield();
	}
	return p;
}

/* All signals that are queued arrive, in their order and on the stack that they have. */
void in_order(void)
{
	struct sigaction action = { .sa_sigaction = queued, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART };
	struct rlimit few = { 200, 200 };
	stack_t stack = { .ss_size = 16 * PAGE };
	int fd = opened(), round;
	pthread_t thread;

	queue.stack = stack.ss_sp = malloc(16 * PAGE);
	queue.to = pthread_self();
	CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGRTMIN + 1, &action, NULL) == 0);
	CHECK(sigaction(SIGRTMIN + 2, &(struct sigaction){ .sa_handler = beside, .sa_flags = SA_RESTART }, NULL) == 0);
	for (round = 0; round < 2; round++) {
		time_t begun = time(NULL);

		queue.last = queue.count = queue.off = queue.wrong = 0;
		queue.all = 20000;
		CHECK(round == 0 || setrlimit(RLIMIT_SIGPENDING, &few) == 0);
		CHECK(pthread_create(&thread, NULL, queues, NULL) == 0);
		while (queue.count < queue.all && time(NULL) < begun + 30)
			CHECK(pwrite(fd, "main", 4, 0) == 4);
		CHECK(pthread_join(thread, NULL) == 0);
		printf("%d arrived, %d out of order, %d on another stack\n", queue.count, queue.wrong, queue.off);
	}
}

enum { KINDS = 7, ROUNDS = 40 };
static volatile int *came;

static int kind(int i)
{
	return i == 0 ? SIGUSR1 : i == 1 ? SIGUSR2 : SIGRTMIN + i;
}

static int all_came(int round)
{
	int i;

	for (i = 0; i < KINDS; i++)
		if (came[i] < round)
			return 0;
	return 1;
}

static void comes(int signal)
{
	int i;

	for (i = 0; i < KINDS; i++)
		came[i] += signal == kind(i);
}

/* Stops its parent and sends it three signals, which come when it goes on. */
static void sends_at_once(void)
{
	char name[64], state;
	pid_t parent = getppid();
	int round, i;

	CHECK(snprintf(name, sizeof(name), "/proc/%d/stat", parent) > 0);
	for (round = 1; round <= ROUNDS; round++) {
		time_t begun = time(NULL);

		usleep(2000 + round * 13);
		CHECK(kill(parent, SIGSTOP) == 0);
		do {
			FILE *f = fopen(name, "r");

			CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && fclose(f) == 0);
		} while (state != 'T');
		for (i = 0; i < KINDS; i++)
			CHECK(kill(parent, kind(i)) == 0);
		CHECK(kill(parent, SIGCONT) == 0);
		while (!all_came(round) && time(NULL) < begun + 3)
			usleep(100);
		if (!all_came(round))
			break;
	}
	_exit(0);
}

/* Signals of several kinds that come at the same moment all arrive. */
void at_once(void)
{
	struct sigaction action = { .sa_handler = comes, .sa_flags = SA_RESTART };
	pid_t child;
	int fd, i, status = 1;

	came = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(came != MAP_FAILED);
	for (i = 0; i < KINDS; i++)
		CHECK(sigaction(kind(i), &action, NULL) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		sends_at_once();
	fd = opened();
	while (waitpid(child, &status, WNOHANG) == 0)
		CHECK(pwrite(fd, "main", 4, 0) == 4 && fsync(fd) == 0);
	printf("%d, %d\n", status, all_came(ROUNDS));
}

static volatile int is_over, alarms;
static int writes_to;

static void counts(int signal)
{
	(void)signal;
	alarms++;
}

static void *asks_for_its_group(void *p)
{
	while (!is_over)
		CHECK(setresgid(getgid(), getgid(), getgid()) == 0);
	return p;
}

static void every(int microseconds, void (*handler)(int))
{
	struct itimerval often = { { 0, microseconds }, { 0, microseconds } };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* Files are opened and closed beside signals and a thread that asks for the group that it has. */
void own_group(void)
{
	struct itimerval never = { 0 };
	time_t begun = time(NULL);
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, asks_for_its_group, NULL) == 0);
	every(400, counts);
	while (time(NULL) < begun + 4) {
		int fd = opened();

		CHECK(pwrite(fd, "opened", 6, 0) == 6 && close(fd) == 0);
	}
	is_over = 1;
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && alarms > 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void writes(int signal)
{
	(void)signal;
	CHECK(pwrite(writes_to, "handler", 7, 0) == 7);
}

/* Calls beside a handler's leave the state of cancellation as it is. */
void cancel_state(void)
{
	struct itimerval never = { 0 };
	time_t begun = time(NULL);
	int old, wrong = 0;

	writes_to = opened();
	every(40, writes);
	while (time(NULL) < begun + 6) {
		CHECK(lseek(writes_to, 0, SEEK_SET) == 0 && pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old) == 0);
		wrong += old != PTHREAD_CANCEL_ENABLE;
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	printf("off %d times\n", wrong);
}

static void *goes_on(void *p)
{
	for (;;)
		CHECK(lseek(writes_to, 0, SEEK_SET) == 0);
	return p;
}

static void ends(int signal)
{
	(void)signal;
	pthread_exit(&writes_to);
}

/* A handler ends the thread that it has interrupted in a call. */
void thread_ends(void)
{
	struct sigaction action = { .sa_handler = ends };
	void *result;
	int i;

	writes_to = opened();
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (i = 0; i < 2000; i++) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
		usleep(100 + i % 37);
		CHECK(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, &result) == 0 && result == &writes_to);
	}
	says("write", write(writes_to, "all ended", 9));
}

static volatile int in_sys, nested, runs;

static void on_sys(int signal)
{
	(void)signal;
	in_sys = 1;
	CHECK(raise(SIGUSR1) == 0);
	in_sys = 0;
	runs++;
}

static void on_other(int signal)
{
	(void)signal;
	nested += in_sys;
}

/* A handler of SIGSYS has a mask, and is there for one signal. */
void sys_handler(void)
{
	struct sigaction sys = { .sa_handler = on_sys }, other = { .sa_handler = on_other }, now;
	int fd = opened();

	says("write", write(fd, "a file", 6));
	CHECK(sigaddset(&sys.sa_mask, SIGUSR1) == 0 && sigaction(SIGUSR1, &other, NULL) == 0);
	CHECK(sigaction(SIGSYS, &sys, NULL) == 0 && raise(SIGSYS) == 0);
	printf("nested %d, runs %d\n", nested, runs);
	sys.sa_flags = SA_RESETHAND;
	CHECK(sigaction(SIGSYS, &sys, NULL) == 0 && raise(SIGSYS) == 0 && sigaction(SIGSYS, NULL, &now) == 0);
	printf("reset %d, runs %d\n", now.sa_handler == SIG_DFL, runs);
}

static int leaves_with;

static void writes_late(int signal)
{
	(void)signal;
	if (pwrite(leaves_with, "late", 4, 0) != 4)
		CHECK(write(STDOUT_FILENO, "late\n", 5) == 5);
}

/* Handlers that write come while the program ends. */
void leaves(void)
{
	int i, failed = 0;

	for (i = 0; i < 40; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			leaves_with = opened();
			CHECK(pwrite(leaves_with, "here", 4, 0) == 4);
			every(30, writes_late);
			usleep(2000 + 100 * i);
			_Exit(0);
		}
		CHECK(waitpid(child, &failed, 0) == child && failed == 0);
	}
	CHECK(truncate(path, 0) == 0);
}
