// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * asked.c - every command of NBD that changes a volume x every way to ask that it be durable.
 *
 *	asked bytes				of the volume: room for all cells
 *	asked cells BLOCK			the numbers of those that are run alone
 *	asked run-one SOCKET EXPORT NUMBER BLOCK	prints what the record has of it
 *	asked run SOCKET EXPORT DISK RECORD BLOCK [early]
 *	asked check SOCKET EXPORT RECORD BLOCK MAY_BE_LOST [one]
 *	asked check-file FILE RECORD BLOCK MAY_BE_LOST
 *
 * A cell is a way to write, a way to ask, and simple or structured replies.  It has a range of the
 * volume of its own, which holds old bytes at first, and connections of its own.  As soon as the
 * last answer has come, the cell's range of DISK (volatile_disk.c, the volume's origin) is cut, and
 * the answer is noted in RECORD. So what a later cell flushes does not count for it.
 *
 * After the server was killed, a cell is durable if its range has what was acknowledged, through a
 * new server or in FILE, the origin alone.  It is refused if a command gave an error, and lost
 * otherwise.  MAY_BE_LOST names the ways, with commas, that this server acknowledges before they
 * are durable.  Where nobody asks, each of these has to be lost, or the cut takes nothing away and
 * the table means nothing.  BLOCK is the volume's; ways that are no multiple of it are left out.
 *
 * A pool's disk cannot be cut in ranges.  So a cell is also run alone, with its range at the start of
 * the volume, and the script cuts all disks when its answer has come.  Each way to write and to ask is
 * then run with simple or with structured replies.
 *
 * With `early` the command itself is never sent, and everything is noted as acknowledged: what a
 * server does that answers and forgets.  Each cell that changes bytes must then be found lost.
 *
 * Exit code 1: a cell is not as it has to be; 2: anything else.
 */
#define _GNU_SOURCE
#include <sys/xattr.h>

#include "nbd_client.h"

#define RANGE 288u   /* sectors of a cell */
#define PLACE 8u     /* where in it the bytes are */
#define SCRATCH 152u /* and those of other requests */
#define SHORT 8u
#define LONG 136u /* more than the cache takes of zeroes */
#define OLD_BYTE 0xa5 /* of which the disk is full at first */
#define MOST LONG

static uint32_t block; /* sectors */
static bool alone; /* one cell has the volume */
static uint8_t old[MOST * SECTOR], data[MOST * SECTOR], there[MOST * SECTOR], zero[MOST * SECTOR];

struct cell {
	unsigned int number;
	bool structured;
	int fd, other; /* connections */
};

static uint64_t place(const struct cell *c, uint32_t at)
{
	return (alone ? 0 : (uint64_t)c->number * RANGE) + at;
}

enum version { OLD, BEFORE, NEW };

static void fill(uint8_t *to, unsigned int number, enum version version)
{
	uint32_t x = number * 7919 + version * 104729 + 1;

	for (uint32_t i = 0; i < MOST * SECTOR; i++) {
		if (version == OLD) {
			to[i] = OLD_BYTE;
			continue;
		}
		x = x * 1664525 + 1013904223;
		to[i] = (uint8_t)(x >> 24) | 1; /* no zeroes */
	}
}

/* --- ways to ask ----------------------------------------------------------- */

static int flush(int fd) { return request(fd, NBD_FLUSH, 0, 0, 0, NULL); }
static int ask_flush(struct cell *c) { return flush(c->fd); }
static int ask_other(struct cell *c) { return flush(c->other); }

static void hang_up(struct cell *c, bool good_bye)
{
	if (good_bye)
		request(c->fd, NBD_DISC, 0, 0, 0, NULL);
	close(c->fd);
	c->fd = connect_export(c->structured);
}
static int ask_later(struct cell *c)
{
	int fd = connect_export(c->structured), error = flush(fd);

	close(fd);
	return error;
}
static int ask_after_disc(struct cell *c)
{
	hang_up(c, true);
	return flush(c->other);
}
static int ask_after_close(struct cell *c)
{
	hang_up(c, false);
	return flush(c->fd);
}
/* Sends a flush while another command has not been answered. */
static int ask_behind(struct cell *c)
{
	int first, second;

	if (!put_request(c->fd, NBD_WRITE, 0, place(c, SCRATCH), LONG, old) || !put_request(c->fd, NBD_FLUSH, 0, 0, 0, NULL))
		return NO_ANSWER;
	first = get_reply(c->fd, 0, NULL);
	second = get_reply(c->fd, 0, NULL);
	return first ? first : second;
}
/* Sends two flushes at a time; the one that was sent later counts. */
static int ask_two(struct cell *c)
{
	int first, second;

	if (!put_request(c->fd, NBD_FLUSH, 0, 0, 0, NULL))
		return NO_ANSWER;
	second = flush(c->other);
	first = get_reply(c->fd, 0, NULL);
	return second ? second : first;
}
static int ask_disc(struct cell *c)
{
	hang_up(c, true);
	return 0;
}
static int ask_nobody(struct cell *c)
{
	(void)c;
	return 0;
}

static const struct ask {
	const char *name;
	unsigned int flags;
	int (*ask)(struct cell *c);
	bool nothing; /* is asked */
} asks[] = {
	{ "FUA", NBD_FUA, ask_nobody, false },
	{ "FLUSH", 0, ask_flush, false },
	{ "FLUSH-other", 0, ask_other, false },
	{ "FLUSH-later", 0, ask_later, false },
	{ "FLUSH-after-DISC", 0, ask_after_disc, false },
	{ "FLUSH-after-close", 0, ask_after_close, false },
	{ "FLUSH-behind", 0, ask_behind, false },
	{ "FLUSH-two", 0, ask_two, false },
	{ "DISC", 0, ask_disc, true },
	{ "nobody", 0, ask_nobody, true },
};
#define ASKS (sizeof(asks) / sizeof(asks[0]))

/* --- ways to write --------------------------------------------------------- */

/* The content afterwards: DATA; ZEROES; KEPT, zeroes or what was there before, of each sector. */
enum effect { DATA, ZEROES, KEPT };
static const struct way {
	const char *name;
	uint32_t at, n; /* sectors, after PLACE */
	unsigned int command, flags;
	enum effect effect;
	/* Before the write, the range is written with FUA, so that the cache has it if it may, or
	 * it is trimmed. */
	enum { PLAIN, CACHED, TRIMMED } before;
} ways[] = {
	{ "write-sector", 3, 1, NBD_WRITE, 0, DATA, PLAIN },
	{ "write-part", 5, 21, NBD_WRITE, 0, DATA, PLAIN },
	{ "write", 0, SHORT, NBD_WRITE, 0, DATA, PLAIN },
	{ "write-long", 0, LONG, NBD_WRITE, 0, DATA, PLAIN },
	{ "write-cached", 0, SHORT, NBD_WRITE, 0, DATA, CACHED },
	{ "write-long-cached", 0, LONG, NBD_WRITE, 0, DATA, CACHED },
	{ "write-trimmed", 0, SHORT, NBD_WRITE, 0, DATA, TRIMMED },
	{ "write-long-trimmed", 0, LONG, NBD_WRITE, 0, DATA, TRIMMED },
	{ "zeroes-part", 5, 21, NBD_WRITE_ZEROES, 0, ZEROES, PLAIN },
	{ "zeroes", 0, SHORT, NBD_WRITE_ZEROES, 0, ZEROES, PLAIN },
	{ "zeroes-long", 0, LONG, NBD_WRITE_ZEROES, 0, ZEROES, PLAIN },
	{ "zeroes-cached", 0, SHORT, NBD_WRITE_ZEROES, 0, ZEROES, CACHED },
	{ "zeroes-long-cached", 0, LONG, NBD_WRITE_ZEROES, 0, ZEROES, CACHED },
	{ "zeroes-no-hole", 0, SHORT, NBD_WRITE_ZEROES, NBD_NO_HOLE, ZEROES, PLAIN },
	{ "zeroes-long-no-hole", 0, LONG, NBD_WRITE_ZEROES, NBD_NO_HOLE, ZEROES, PLAIN },
	{ "zeroes-fast", 0, SHORT, NBD_WRITE_ZEROES, NBD_FAST_ZERO, ZEROES, PLAIN },
	{ "zeroes-long-fast", 0, LONG, NBD_WRITE_ZEROES, NBD_FAST_ZERO, ZEROES, PLAIN },
	{ "trim", 0, SHORT, NBD_TRIM, 0, KEPT, PLAIN },
	{ "trim-long", 0, LONG, NBD_TRIM, 0, KEPT, PLAIN },
	{ "trim-cached", 0, SHORT, NBD_TRIM, 0, KEPT, CACHED },
	{ "trim-long-cached", 0, LONG, NBD_TRIM, 0, KEPT, CACHED },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))
#define CELLS (WAYS * ASKS * 2)

static bool is_cell(const struct way *w)
{
	return w->at % block == 0 && w->n % block == 0;
}

/* Returns 0, or the error of the first command that failed. */
static int run_cell(struct cell *c, const struct way *w, const struct ask *a, bool early)
{
	int error = 0;

	if (w->before == CACHED) {
		fill(data, c->number, BEFORE);
		for (uint32_t at = 0; at < w->n && !error; at += SHORT)
			error = request(c->fd, NBD_WRITE, NBD_FUA, place(c, PLACE + at), SHORT, data + at * SECTOR);
	} else if (w->before == TRIMMED) {
		error = request(c->fd, NBD_TRIM, 0, place(c, PLACE), w->n, NULL);
	}
	/* A dead server may have left writes that need this first flush. */
	if (error || (error = flush(c->fd)))
		return error;
	fill(data, c->number, NEW);
	if (!early)
		error = request(c->fd, w->command, w->flags | a->flags, place(c, PLACE + w->at), w->n, data);
	return error ? error : a->ask(c);
}

static bool is_run_alone(unsigned int number)
{
	return is_cell(&ways[number / (ASKS * 2)]) && number % 2 == (number / 2 % ASKS + number / (ASKS * 2)) % 2;
}

static void run_one(unsigned int number)
{
	struct cell c = { .number = number, .structured = number % 2 };
	int error;

	alone = true;
	c.fd = connect_export(c.structured);
	c.other = connect_export(c.structured);
	error = run_cell(&c, &ways[number / (ASKS * 2)], &asks[number / 2 % ASKS], false);
	if (error == NO_ANSWER)
		die("the server is gone");
	printf("%u %d\n", number, error);
	fflush(stdout);
}

static void run(const char *disk, const char *record_path, bool early)
{
	FILE *record = fopen(record_path, "w");

	if (!record)
		die(record_path);
	fill(old, 0, OLD);
	for (unsigned int w = 0; w < WAYS; w++)
		for (unsigned int i = 0; i < ASKS * 2; i++) {
			struct cell c = { .number = w * ASKS * 2 + i, .structured = i % 2 };
			char range[64];
			int error;

			if (!is_cell(&ways[w]))
				continue;
			c.fd = connect_export(c.structured);
			c.other = connect_export(c.structured);
			error = run_cell(&c, &ways[w], &asks[i / 2], early);
			snprintf(range, sizeof(range), "%u %u", c.number * RANGE * SECTOR, RANGE * SECTOR);
			if (setxattr(disk, "user.cut", range, strlen(range), 0))
				die(disk);
			if (error == NO_ANSWER)
				die("the server is gone");
			fprintf(record, "%u %d\n", c.number, error);
			close(c.fd);
			close(c.other);
		}
	fclose(record);
}

/* --- after the cut --------------------------------------------------------- */

enum state { NO_CELL, DURABLE, REFUSED, LOST };

static enum state state_of(unsigned int number, const struct way *w, int fd)
{
	struct cell c = { .number = number };
	uint64_t at = place(&c, PLACE + w->at);
	enum version version = w->effect == DATA ? NEW : w->before == CACHED ? BEFORE : OLD;
	bool all = true;

	memset(there, 0xee, sizeof(there));
	if (*socket_path ? request(fd, NBD_READ, 0, at, w->n, there) != 0 :
			   pread(fd, there, w->n * SECTOR, (off_t)(at * SECTOR)) != (ssize_t)(w->n * SECTOR))
		die("reading");
	if (w->effect == ZEROES)
		return memcmp(there, zero, w->n * SECTOR) ? LOST : DURABLE;
	fill(data, number, version);
	for (uint32_t i = 0; i < w->n; i++) {
		const uint8_t *sector = there + i * SECTOR;

		all &= memcmp(sector, data + i * SECTOR, SECTOR) == 0 ||
		       (w->effect == KEPT && memcmp(sector, zero, SECTOR) == 0);
	}
	return all ? DURABLE : LOST;
}

static bool is_named(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = list; (at = strstr(at, name)); at += n)
		if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n]))
			return true;
	return strcmp(list, "all") == 0;
}

static int check(const char *record_path, const char *may_be_lost, const int fd[2])
{
	FILE *record = fopen(record_path, "r");
	unsigned int number, counts[4] = { 0 }, cells = 0, unasked = 0, lost_unasked = 0, wrong = 0, expected = 0;
	bool early = strcmp(may_be_lost, "all") == 0;
	int error;

	if (!record)
		die(record_path);
	for (unsigned int w = 0; w < WAYS; w++)
		expected += is_cell(&ways[w]) ? ASKS * 2 : 0;
	while (fscanf(record, "%u %d", &number, &error) == 2) {
		const struct way *w = &ways[number / (ASKS * 2)];
		const struct ask *a = &asks[number / 2 % ASKS];
		bool nothing = early || a->nothing, lose = is_named(may_be_lost, w->name) && w->effect != KEPT;
		enum state is;

		if (number >= CELLS)
			die(record_path);
		is = error ? REFUSED : state_of(number, w, fd[number % 2]);
		cells++;
		if (nothing && lose) {
			lost_unasked += is == LOST;
			unasked++;
		} else {
			counts[is]++;
		}
		if (is == REFUSED || (is == LOST) != (nothing && lose))
			printf("  %s %s, %s replies: %s%s\n", w->name, a->name, number % 2 ? "structured" : "simple",
			       is == REFUSED ? "refused, " : is == LOST ? "LOST" : "durable, though nobody asked",
			       is == REFUSED ? strerror(error) : "");
		wrong += is != REFUSED && (is == LOST) != (nothing && lose);
	}
	fclose(record);
	if (cells != (alone ? 1 : expected))
		die("cells are missing in the record");
	printf("%u cells: %u durable, %u refused, %u lost; %u lost where nobody asked\n", cells, counts[DURABLE],
	       counts[REFUSED], counts[LOST], lost_unasked);
	return wrong ? 1 : 0;
}

int main(int argc, char **argv)
{
	int fd[2];

	if (argc == 2 && strcmp(argv[1], "bytes") == 0) {
		printf("%zu\n", CELLS * RANGE * SECTOR);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "cells") == 0) {
		block = (uint32_t)atoi(argv[2]) / SECTOR;
		for (unsigned int number = 0; number < CELLS; number++)
			if (is_run_alone(number))
				printf("%u\n", number);
		return 0;
	}
	if (argc == 6 && strcmp(argv[1], "run-one") == 0) {
		socket_path = argv[2];
		export_name = argv[3];
		block = (uint32_t)atoi(argv[5]) / SECTOR;
		run_one((unsigned int)atoi(argv[4]));
	} else if (argc > 6 && strcmp(argv[1], "run") == 0) {
		socket_path = argv[2];
		export_name = argv[3];
		block = (uint32_t)atoi(argv[6]) / SECTOR;
		run(argv[4], argv[5], argc > 7);
	} else if (argc > 6 && strcmp(argv[1], "check") == 0) {
		socket_path = argv[2];
		export_name = argv[3];
		block = (uint32_t)atoi(argv[5]) / SECTOR;
		alone = argc > 7;
		fd[0] = connect_export(false);
		fd[1] = connect_export(true);
		return check(argv[4], argv[6], fd);
	} else if (argc > 5 && strcmp(argv[1], "check-file") == 0) {
		socket_path = "";
		block = (uint32_t)atoi(argv[4]) / SECTOR;
		fd[0] = fd[1] = open(argv[2], O_RDONLY);
		if (fd[0] < 0)
			die(argv[2]);
		return check(argv[3], argv[5], fd);
	} else {
		return 2;
	}
	return 0;
}
