/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Stops a thread of the program in the middle of a close, like slow storage. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int slow_says[2], slow_goes_on[2];

/* Whether the library is in a file's close before the sync.  It has removed the file from its
 * tables by then, has made the duplicate of the file's descriptor, and holds no lock of all files.
 */
static int is_closing(pid_t thread)
{
	static int has_duplicate;
	/* The library makes the duplicate one of its own by these calls. */
	static const long keeps[] = { SYS_fcntl, SYS_futex, SYS_prlimit64 };
	size_t i;
	struct __ptrace_syscall_info info;

	CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) > 0);
	if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return 0;
	has_duplicate |= info.entry.nr == SYS_fcntl && info.entry.args[1] == F_DUPFD_CLOEXEC;
	for (i = 0; i < sizeof(keeps) / sizeof(*keeps); i++)
		if ((long)info.entry.nr == keeps[i])
			return 0;
	return has_duplicate;
}

static void stop_in_close(pid_t thread, unsigned seconds)
{
	int status;
	char c = 0;

	CHECK(ptrace(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACESYSGOOD) == 0);
	CHECK(ptrace(PTRACE_INTERRUPT, thread, 0, 0) == 0);
	CHECK(waitpid(thread, &status, __WALL) == thread);
	CHECK(write(slow_says[1], &c, 1) == 1);
	do {
		CHECK(ptrace(PTRACE_SYSCALL, thread, 0, 0) == 0);
		CHECK(waitpid(thread, &status, __WALL) == thread);
	} while (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80) || !is_closing(thread));
	if (seconds == 0)
		CHECK(kill(getppid(), SIGKILL) == 0);
	CHECK(write(slow_says[1], &c, 1) == 1);
	struct pollfd goes_on = { .fd = slow_goes_on[0], .events = POLLIN };

	poll(&goes_on, 1, (int)seconds * 1000);
	/* The program may have ended by then. */
	ptrace(PTRACE_DETACH, thread, 0, 0);
	_exit(0);
}

/* A child stops the thread within its next close for that many seconds, or until slow_goes_on has a byte.  With
 * zero it kills the program then. */
static void slow_down(pid_t thread, unsigned seconds)
{
	char c;

	CHECK(pipe(slow_says) == 0 && pipe(slow_goes_on) == 0);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		stop_in_close(thread, seconds);
	CHECK(read(slow_says[0], &c, 1) == 1);
}

static volatile pid_t closer;
static volatile int closes_now;

/* A thread that closes a file is slowed down in its close, if the library does that.  The thread
 * says who it is in `closer`, and waits for `closes_now`. */
static pthread_t slow_close(void *(*closes)(void *), unsigned seconds)
{
	pthread_t thread;
	char c;

	CHECK(pthread_create(&thread, NULL, closes, NULL) == 0);
	while (!closer)
		;
	if (is_mapped_run())
		slow_down(closer, seconds);
	closes_now = 1;
	if (is_mapped_run())
		CHECK(read(slow_says[0], &c, 1) == 1);
	return thread;
}

/* Makes a file of this length, and maps it. */
static char *mapped(int *fd, const char *name, long len)
{
	char *p;

	*fd = open(name, O_RDWR | O_CREAT, 0600);
	CHECK(*fd >= 0 && ftruncate(*fd, len) == 0);
	p = mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}
