// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * port_say_test.c - the message of a process that has to end (port/posix_say.c).
 *
 * Goal: it reaches standard error, and never a file, device or connection that the program has
 * opened at that number since.
 * Method: each case puts something at descriptor 2 in a process of its own and says a word.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "posix_say.c"

#include "port_test.h"

static int regular_file(void)
{
	int fd = memfd_create("other", MFD_CLOEXEC);

	if (fd < 0 || write(fd, "data", 4) != 4 || lseek(fd, 0, SEEK_SET) != 0)
		abort();
	return fd;
}

static void say_word(void)
{
	fby_posix_say("word", 4);
}

/* As if the program had begun with what is at descriptor 2 now. */
static void begin_with(int fd)
{
	if (dup2(fd, STDERR_FILENO) != STDERR_FILENO)
		abort();
	note_standard_error();
}

static void expect_content(int fd, const char *want)
{
	char text[64] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) < 0 || strcmp(text, want) != 0)
		_exit(1);
}

static void file_of_the_start(void)
{
	int fd = regular_file();

	begin_with(fd);
	say_word();
	expect_content(fd, "word");
}

static void file_since_the_start(void)
{
	int fd = regular_file();

	begin_with(regular_file());
	if (dup2(fd, STDERR_FILENO) != STDERR_FILENO)
		abort();
	say_word();
	expect_content(fd, "data");
}

static void file_where_nothing_was(void)
{
	int fd = regular_file();

	close(STDERR_FILENO);
	note_standard_error();
	if (dup2(fd, STDERR_FILENO) != STDERR_FILENO)
		abort();
	say_word();
	expect_content(fd, "data");
}

static void connection_since_the_start(void)
{
	char byte;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || dup2(ends[0], STDERR_FILENO) != STDERR_FILENO)
		abort();
	say_word();
	if (recv(ends[1], &byte, 1, MSG_DONTWAIT) != -1)
		_exit(1);
	note_standard_error();
	say_word();
	if (recv(ends[1], &byte, 1, MSG_DONTWAIT) != 1 || byte != 'w')
		_exit(2);
}

static void pipe_since_the_start(void)
{
	char text[8] = "";
	int ends[2];

	if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) != STDERR_FILENO)
		abort();
	say_word();
	if (read(ends[0], text, 4) != 4 || strcmp(text, "word") != 0)
		_exit(1);
}

/* Nobody reads it: the process waits for a while, and not for ever. */
static void full_pipe(void)
{
	char text[4096] = "";
	int ends[2];

	if (pipe2(ends, O_NONBLOCK) != 0)
		abort();
	while (write(ends[1], text, sizeof(text)) > 0)
		;
	if (fcntl(ends[1], F_SETFL, 0) != 0 || dup2(ends[1], STDERR_FILENO) != STDERR_FILENO)
		abort();
	alarm(20);
	say_word();
}

static void closed_since_the_start(void)
{
	close(STDERR_FILENO);
	say_word();
}

static char said[16];

static void keep_it(const char *text, size_t n)
{
	memcpy(said, text, n);
}

static void host_says_it(void)
{
	fby_posix_say_by(keep_it);
	say_word();
	if (strcmp(said, "word") != 0)
		_exit(1);
	fby_posix_say_by(NULL);
	say_word();
}

void test_say(void)
{
	char error[4096];

	EXPECT(in_child(say_word, error) == 0 && strcmp(error, "word") == 0);
	EXPECT(in_child(file_of_the_start, error) == 0);
	EXPECT(in_child(file_since_the_start, error) == 0);
	EXPECT(in_child(file_where_nothing_was, error) == 0);
	EXPECT(in_child(connection_since_the_start, error) == 0);
	EXPECT(in_child(pipe_since_the_start, error) == 0);
	EXPECT(in_child(full_pipe, error) == 0);
	EXPECT(in_child(closed_since_the_start, error) == 0);
	EXPECT(in_child(host_says_it, error) == 0 && strcmp(error, "word") == 0);
}
