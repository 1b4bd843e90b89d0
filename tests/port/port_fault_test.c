// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * port_fault_test.c - faults in mapped media (port/posix_fault.c).
 *
 * Goal: a fault is an error of a read.  For anything else it is the end with the message and the
 * exit code that docs promise.  Faults that are not the media's reach whoever had the signal
 * before.
 * Method: a mapping of a file that is cut short faults for certain.  Each case runs in a process of
 * its own.  What only a machine check brings (an address found bad before anybody touched it) is
 * given to the handler by hand.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "posix_fault.c"

#include "port_test.h"

#define PAGES 4u
#define SIZE (PAGES * 4096u)

/* Maps a file whose pages fault from the second one on. */
static u8 *cut_short(void)
{
	int file = memfd_create("media", MFD_CLOEXEC);
	u8 *p;

	if (file < 0 || ftruncate(file, SIZE) != 0)
		abort();
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	memset(p, 7, SIZE);
	if (p == MAP_FAILED || ftruncate(file, 4096) != 0)
		abort();
	return p;
}

static void touch(u8 *p)
{
	*(volatile u8 *)p = 1;
}

/* --- a read ------------------------------------------------------------------------ */

/* Each kernel's read returns the error each time, and the reads around it are right. */
static void read_what_is_gone(void)
{
	u8 *p = cut_short(), to[8192];
	const char *const *name;
	int persist, again;
	u32 crc;

	if (fby_posix_watch(p, SIZE, "a") != 0)
		_exit(1);
	for (name = fby_posix_kernels(); *name; name++)
		for (persist = FBY_PERSIST_NT; persist <= FBY_PERSIST_MSYNC; persist++)
			for (again = 0; again < 3; again++) {
				const struct fby_media_ops *ops = fby_posix_media_ops((enum fby_persist)persist, *name);

				if (ops->read_crc(MEDIA(p), to, MEDIA_AT, 4096, &crc) != 0 || to[4095] != 7)
					_exit(2);
				if (ops->read_crc(MEDIA(p + 4096), to, MEDIA_AT, 4096, &crc) != 1 || fby_posix_read_guard)
					_exit(3);
				if (ops->read_crc(MEDIA(p + SIZE - 64), NULL, MEDIA_AT, 64, &crc) != 1)
					_exit(4);
				if (ops->read_crc(MEDIA(p), to, MEDIA_AT, 8192, &crc) != 1)
					_exit(5);
			}
}

/* After a read that succeeded nothing catches a store. */
static void store_after_a_read(void)
{
	u8 *p = cut_short(), to[4096];
	u32 crc = 0;

	fby_posix_watch(p, SIZE, "pool-1");
	fby_posix_media_ops(FBY_PERSIST_NT, NULL)->read_crc(MEDIA(p), to, MEDIA_AT, 4096, &crc);
	touch(p + 4096 + 1234);
}

/* --- a store ------------------------------------------------------------------------ */

static void store_to_the_second(void)
{
	u8 *first = cut_short(), *p = cut_short();

	if (fby_posix_watch(first, SIZE, "first") != 0 || fby_posix_watch(p, SIZE, "second") != 1)
		_exit(1);
	touch(p + SIZE - 1);
}

static void store_by_a_long_name(void)
{
	static char name[2000];
	u8 *p = cut_short();

	memset(name, 'n', sizeof(name) - 1);
	fby_posix_watch(p, SIZE, name);
	touch(p + 4096);
}

static const char PREFIX[] = "forebay: pool ";
static const char PLACE[] = ": the memory at byte ";
static const char REST[] =
	" cannot be accessed: it is damaged, its file was cut short, or its file system is full. "
	"The process stops before it acknowledges what it was about to store. What was acknowledged "
	"before is kept: repair the storage under the pool (the system log names the cause), "
	"see `forebay check`, and start again.\n";

static bool ends_with(void (*function)(void), const char *name, unsigned long byte)
{
	char error[4096], want[2048];
	int status = in_child(function, error);

	snprintf(want, sizeof(want), "%s%s%s%lu%s", PREFIX, name, PLACE, byte, REST);
	return WIFEXITED(status) && WEXITSTATUS(status) == FBY_POSIX_FAULT_EXIT && strcmp(error, want) == 0;
}

static void number_of_media(void)
{
	/* 0 and the largest number; the text never leaves its line. */
	char line[64];
	size_t n = add_number(line, 0, sizeof(line), 0);

	if (n != 1 || line[0] != '0')
		_exit(1);
	n = add_number(line, n, sizeof(line), 18446744073709551615ull);
	if (n != 21 || memcmp(line, "018446744073709551615", 21) != 0)
		_exit(2);
	line[24] = '!';
	if (add_text(line, n, 24, "abcdef") != 24 || memcmp(line + 21, "abc!", 4) != 0)
		_exit(3);
	if (add_text(line, 24, 24, "x") != 24 || line[24] != '!')
		_exit(4);
}

/* --- what is watched ---------------------------------------------------------------- */

static void all_places(void)
{
	static u8 bytes[300 * 64];
	int i;

	fby_posix_unwatch(-1);
	for (i = 0; i < 256; i++)
		if (fby_posix_watch(bytes + 64 * i, 64, "x") != i)
			_exit(1);
	if (fby_posix_watch(bytes + 64 * 256, 64, "x") != -1 || watched_at((uintptr_t)bytes + 64 * 256) != -1)
		_exit(2);
	for (i = 0; i < 256; i++)
		if (watched_at((uintptr_t)bytes + 64 * (u64)i) != i || watched_at((uintptr_t)bytes + 64 * (u64)i + 63) != i)
			_exit(3);
	if (watched_at((uintptr_t)bytes - 1) != -1)
		_exit(4);
	fby_posix_unwatch(0);
	fby_posix_unwatch(77);
	if (watched_at((uintptr_t)bytes) != -1 || watched_at((uintptr_t)bytes + 64 * 77) != -1)
		_exit(5);
	if (fby_posix_watch(bytes, 32, "y") != 0 || fby_posix_watch(bytes, 32, "z") != 77)
		_exit(6);
	if (watched_at((uintptr_t)bytes + 32) != -1 || watched_at((uintptr_t)bytes + 31) != 0)
		_exit(7);
	fby_posix_unwatch(255);
	fby_posix_unwatch(-1);
	if (fby_posix_watch(bytes, 32, "w") != 255)
		_exit(8);
}

static void store_after_unwatch(void)
{
	u8 *p = cut_short();

	fby_posix_unwatch(fby_posix_watch(p, SIZE, "gone"));
	touch(p + 4096);
}

static void store_to_what_nobody_watches(void)
{
	u8 *p = cut_short(), *other = cut_short();

	fby_posix_watch(p, SIZE, "other");
	touch(other + 4096);
}

/* --- the handler that was there before ------------------------------------------------- */

static u8 *fault_place, line[64];

static void plain_handler(int signal)
{
	static const char text[] = "plain\n";

	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(signal == SIGBUS ? 40 : 1);
}

static void info_handler(int signal, siginfo_t *info, void *context)
{
	_exit(signal == SIGBUS && context && (info->si_code <= 0 || info->si_addr == fault_place) ? 41 : 1);
}

static void take_signal(bool with_info, u8 *p)
{
	struct sigaction action = { .sa_flags = with_info ? SA_SIGINFO : 0 };

	if (with_info)
		action.sa_sigaction = info_handler;
	else
		action.sa_handler = plain_handler;
	sigaction(SIGBUS, &action, NULL);
	fby_posix_watch(p, SIZE, "a");
	fby_posix_watch(line, sizeof(line), "b"); /* installs no second handler: it would call itself */
}

static void plain_before(void)
{
	fault_place = cut_short() + 4096;
	take_signal(false, cut_short());
	touch(fault_place);
}

static void info_before(void)
{
	fault_place = cut_short() + 4096;
	take_signal(true, cut_short());
	touch(fault_place);
}

/* This signal was sent by kill and is no fault.  It does not belong to the port, whatever its
 * address is. */
static void sent_before(void)
{
	take_signal(true, cut_short());
	raise(SIGBUS);
}

static void ignored_before(void)
{
	signal(SIGBUS, SIG_IGN);
	fby_posix_watch(cut_short(), SIZE, "a");
	raise(SIGBUS);
	raise(SIGBUS);
}

static void default_before(void)
{
	fby_posix_watch(cut_short(), SIZE, "a");
	raise(SIGBUS);
	/* The earlier handler is installed again. */
	raise(SIGBUS);
}

/* The handler runs on the alternate stack of the thread, and with the signal unblocked, because a
 * jump leaves it. */
static void how_installed(void)
{
	struct sigaction now;

	fby_posix_watch(cut_short(), SIZE, "a");
	sigaction(SIGBUS, NULL, &now);
	if (now.sa_sigaction != on_fault || (now.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_ONSTACK)) !=
						    (SA_SIGINFO | SA_NODEFER | SA_ONSTACK))
		_exit(1);
	if (now.sa_flags & (int)SA_RESETHAND)
		_exit(2);
}

/* The machine found the address bad, and nobody has touched it yet.  The handler does nothing. */
static void found_by_the_machine(void)
{
	siginfo_t info = { .si_signo = SIGBUS, .si_code = BUS_MCEERR_AO };
	jmp_buf guard;
	u8 *p = cut_short();

	fby_posix_watch(p, SIZE, "a");
	info.si_addr = p + 4096;
	on_fault(SIGBUS, &info, NULL);
	if (_setjmp(guard))
		_exit(1); /* not even during a read */
	fby_posix_read_guard = &guard;
	on_fault(SIGBUS, &info, NULL);
	if (fby_posix_read_guard != &guard)
		_exit(2);
}

static void not_a_fault_during_a_read(void)
{
	siginfo_t info = { .si_signo = SIGBUS, .si_code = 0 };
	jmp_buf guard;
	u8 *p = cut_short();

	take_signal(true, p);
	info.si_addr = p;
	if (_setjmp(guard))
		_exit(1);
	fby_posix_read_guard = &guard;
	on_fault(SIGBUS, &info, &info);
}

void test_faults(void)
{
	static char half[2048];
	char error[4096];
	int status;

	EXPECT(in_child(read_what_is_gone, error) == 0);
	EXPECT(ends_with(store_after_a_read, "pool-1", 4096 + 1234));
	EXPECT(ends_with(store_to_the_second, "second", SIZE - 1));
	memset(half, 'n', 512 - strlen(PREFIX));
	EXPECT(ends_with(store_by_a_long_name, half, 4096));
	EXPECT(in_child(number_of_media, error) == 0);
	EXPECT(in_child(all_places, error) == 0);
	status = in_child(store_after_unwatch, error);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && !error[0]);
	status = in_child(store_to_what_nobody_watches, error);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && !error[0]);
	EXPECT(WEXITSTATUS(in_child(plain_before, error)) == 40 && strcmp(error, "plain\n") == 0);
	EXPECT(WEXITSTATUS(in_child(info_before, error)) == 41);
	EXPECT(WEXITSTATUS(in_child(sent_before, error)) == 41);
	EXPECT(in_child(ignored_before, error) == 0);
	status = in_child(default_before, error);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && !error[0]);
	EXPECT(in_child(how_installed, error) == 0);
	EXPECT(in_child(found_by_the_machine, error) == 0);
	EXPECT(WEXITSTATUS(in_child(not_a_fault_during_a_read, error)) == 41);
}
