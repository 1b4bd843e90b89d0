/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * posix_fault.c - faults in mapped media: SIGBUS where memory is poisoned, a file
 * was cut short, or a file system has no room for a hole.
 *
 * A load during a read of the media returns to the read, which reports an error of the media; the
 * engine handles that.  A store, or any other access, has nobody to report to.  A write with such
 * a store must not be acknowledged, so the process ends at once, with a message.  Everything
 * acknowledged before is in the pool, and the current write counts as torn.
 *
 * The handler belongs to the whole process: it passes faults outside watched media to the
 * previous handler.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "posix_copy.h"

_Thread_local jmp_buf *volatile fby_posix_read_guard;

/* A place is free while size is 0; size is stored last and cleared first. */
#define MEDIA_MAX 256
static struct {
	uintptr_t base;
	u64 size;
	const char *name;
} watched[MEDIA_MAX];
static pthread_mutex_t watched_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;

static int watched_at(uintptr_t at)
{
	u64 size;
	int i;

	for (i = 0; i < MEDIA_MAX; i++) {
		size = fby_load_acquire(&watched[i].size);
		if (size && at - watched[i].base < size)
			return i;
	}
	return -1;
}

static size_t add_text(char *line, size_t n, size_t max, const char *text)
{
	size_t len = strnlen(text, max - n);

	memcpy(line + n, text, len);
	return n + len;
}

static size_t add_number(char *line, size_t n, size_t max, u64 number)
{
	char digits[24];
	size_t at = sizeof(digits) - 1;

	digits[at] = 0;
	do {
		digits[--at] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	return add_text(line, n, max, digits + at);
}

/* Only what a signal handler may call. */
_Noreturn static void end_process(int i, uintptr_t at)
{
	char line[1024];
	size_t n = 0, max = sizeof(line);

	n = add_text(line, n, max, "forebay: pool ");
	n = add_text(line, n, max / 2, watched[i].name);
	n = add_text(line, n, max, ": the memory at byte ");
	n = add_number(line, n, max, at - watched[i].base);
	n = add_text(line, n, max,
		     " cannot be accessed: it is damaged, its file was cut short, or its file system is full. "
		     "The process stops before it acknowledges what it was about to store. What was acknowledged "
		     "before is kept: repair the storage under the pool (the system log names the cause), "
		     "see `forebay check`, and start again.\n");
	fby_posix_say(line, n);
	_exit(FBY_POSIX_FAULT_EXIT);
}

static void pass_on(int signal, siginfo_t *info, void *context)
{
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(signal, info, context);
	else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)
		sigaction(signal, &before, NULL); /* the access faults again */
	else
		before.sa_handler(signal);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	jmp_buf *guard = fby_posix_read_guard;
	uintptr_t at = (uintptr_t)info->si_addr;
	int i = info->si_code > 0 ? watched_at(at) : -1;

	if (i < 0) {
		pass_on(signal, info, context);
		return;
	}
#ifdef BUS_MCEERR_AO
	/* Found by the machine, touched by nobody yet. */
	if (info->si_code == BUS_MCEERR_AO)
		return;
#endif
	if (guard) {
		fby_posix_read_guard = NULL;
		_longjmp(*guard, 1);
	}
	end_process(i, at);
}

int fby_posix_watch(const void *base, u64 size, const char *name)
{
	static bool installed;
	struct sigaction action = { .sa_sigaction = on_fault };
	int i;

	/* Left by a jump, so the signal must not be blocked meanwhile. */
	action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
	pthread_mutex_lock(&watched_lock);
	for (i = 0; i < MEDIA_MAX && watched[i].size; i++)
		;
	if (i < MEDIA_MAX) {
		watched[i].base = (uintptr_t)base;
		watched[i].name = name;
		fby_store_release(&watched[i].size, size);
		if (!installed)
			installed = sigaction(SIGBUS, &action, &before) == 0;
	}
	pthread_mutex_unlock(&watched_lock);
	return i < MEDIA_MAX ? i : -1;
}

void fby_posix_unwatch(int place)
{
	if (place < 0)
		return;
	pthread_mutex_lock(&watched_lock);
	fby_store_release(&watched[place].size, (u64)0);
	pthread_mutex_unlock(&watched_lock);
}
