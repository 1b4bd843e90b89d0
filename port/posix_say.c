/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * posix_say.c - the message of a process that has to end.
 *
 * The engine may be a guest in a program that has closed its standard error and got another file
 * at that number since: a database, a device, a client's connection.  Nothing is written there.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "posix_copy.h"

/* How long a message waits for its reader: a pipe may be full, a terminal stopped. */
#define WAIT_MS 1000

static struct stat at_start;
static void (*said_by)(const char *text, size_t n);

/* Before main, and so before the program can close it. */
__attribute__((constructor)) static void note_standard_error(void)
{
	if (fstat(STDERR_FILENO, &at_start) != 0)
		at_start.st_mode = 0;
}

/* Pipes, terminals and /dev/null (1:3) take messages, whoever has opened them. */
bool fby_posix_has_stderr(void)
{
	struct stat now;

	if (fstat(STDERR_FILENO, &now) != 0)
		return false;
	if (S_ISFIFO(now.st_mode) || isatty(STDERR_FILENO) ||
	    (S_ISCHR(now.st_mode) && now.st_rdev == makedev(1, 3)))
		return true;
	return at_start.st_mode && now.st_dev == at_start.st_dev && now.st_ino == at_start.st_ino;
}

static void to_standard_error(const char *text, size_t n)
{
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };

	if (!fby_posix_has_stderr() || poll(&fd, 1, WAIT_MS) <= 0 || !(fd.revents & POLLOUT) ||
	    (fd.revents & POLLERR))
		return;
	if (write(STDERR_FILENO, text, n) < 0) {
		/* Nobody listens. */
	}
}

void fby_posix_say_by(void (*say)(const char *text, size_t n))
{
	fby_store_release(&said_by, say);
}

void fby_posix_say(const char *text, size_t n)
{
	void (*say)(const char *, size_t) = fby_load_acquire(&said_by);

	(say ? say : to_standard_error)(text, n);
}
