// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * durable.c - every way to write to a file x every way to ask that it be durable.
 *
 *	durable prepare DIRECTORY		files with old content, one for each cell
 *	durable run DIRECTORY RECORD [forget]	each cell: writes, asks, and notes in RECORD,
 *						which lies elsewhere, what was acknowledged
 *	durable check DIRECTORY RECORD [forgot]	what is there of it after a cut
 *	durable map-run COMMAND ...		the same for files of forebay map-run; instead of run:
 *	durable map-run list DIRECTORY		the numbers of the cells
 *	durable map-run cell DIRECTORY RECORD NUMBERS [forget]	one, after which it kills itself
 *
 * A cell is a way to write and a way to ask.  It is durable if every step that was acknowledged is
 * in its file, refused if a call gave an error, and lost otherwise.  With `forget` nobody asks and
 * everything is noted.  That is a mistake that `check forgot` has to see in each cell whose way to
 * write is not durable by itself.  Exit code 1: a cell is lost (forgot: one is not); 2: anything
 * else.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "rings.h"

#define PAGE 4096u
#define OLD (16 * PAGE) /* bytes that a file has at first */
#define MUCH ((1u << 20) + PAGE) /* more than the mount logs in one sync */
#define STEPS 3u

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#define RWF_SYNC 4
#endif
#define OP_FTRUNCATE 55 /* an opcode of io_uring, Linux 6.9 */

enum { KEEP_SIZE = 1, PUNCH = 2, ZERO = 16 };

static const char *directory;
static bool by_map_run;
static int source_fd = -1;
static uint8_t *data, *there;

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fprintf(stderr, "durable: ");
	vfprintf(stderr, format, list);
	fprintf(stderr, ": %s\n", strerror(errno));
	exit(2);
}

/* --- ways to ask ----------------------------------------------------------- */

struct step {
	int fd;
	int rw_flags;
	uint8_t *map;
	off_t at;
	unsigned int n;
	const struct way *way;
};

static int result(long done)
{
	return done < 0 ? -errno : (int)done;
}

static int ask_fsync(struct step *s) { return result(fsync(s->fd)); }
static int ask_fdatasync(struct step *s) { return result(fdatasync(s->fd)); }

static int ask_msync(struct step *s)
{
	size_t whole = (size_t)s->at + s->n, from = (size_t)s->at & ~(size_t)(PAGE - 1);
	uint8_t *map = s->map;
	int done;

	if (!map && (map = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0)) == MAP_FAILED)
		return -errno;
	done = result(msync(map + from, whole - from, MS_SYNC));
	if (!s->map)
		munmap(map, whole);
	return done;
}

/* Syncs another page. */
static int ask_msync_elsewhere(struct step *s)
{
	uint8_t *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, OLD - PAGE);
	int done;

	if (map == MAP_FAILED)
		return -errno;
	done = result(msync(map, PAGE, MS_SYNC));
	munmap(map, PAGE);
	return done;
}

static int ask_range(struct step *s)
{
	return result(sync_file_range(s->fd, s->at, s->n, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
								  SYNC_FILE_RANGE_WAIT_AFTER));
}

static int ask_syncfs(struct step *s) { return result(syncfs(s->fd)); }
static int ask_sync(struct step *s)
{
	(void)s;
	sync();
	return 0;
}

static int aio_ask(struct step *s, unsigned short opcode)
{
	struct iocb request = { .aio_fildes = (uint32_t)s->fd, .aio_lio_opcode = opcode };

	return aio_run(&request);
}
static int ask_aio_fsync(struct step *s) { return aio_ask(s, IOCB_CMD_FSYNC); }
static int ask_aio_fdsync(struct step *s) { return aio_ask(s, IOCB_CMD_FDSYNC); }

static struct io_uring_sqe ring_sync(int fd, unsigned int flags)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_FSYNC, .fd = fd, .fsync_flags = flags };
}
static int ask_ring_fsync(struct step *s)
{
	struct io_uring_sqe q = ring_sync(s->fd, 0);

	return ring_run(&q, 1);
}
static int ask_ring_fdatasync(struct step *s)
{
	struct io_uring_sqe q = ring_sync(s->fd, IORING_FSYNC_DATASYNC);

	return ring_run(&q, 1);
}
static int ask_ring_range(struct step *s)
{
	struct io_uring_sqe q = ring_sync(s->fd, IORING_FSYNC_DATASYNC);

	q.off = (uint64_t)s->at;
	q.len = s->n;
	return ring_run(&q, 1);
}
static int ask_ring_sync_file_range(struct step *s)
{
	struct io_uring_sqe q = { .opcode = IORING_OP_SYNC_FILE_RANGE, .fd = s->fd, .off = (uint64_t)s->at,
				  .len = s->n, .sync_range_flags = SYNC_FILE_RANGE_WRITE };

	return ring_run(&q, 1);
}

/*
 * NOTHING: it does not ask for durability, and may be lost.  RANGE: neither, but map-run promises it.
 * MAP_RUN: only there; the kernel does not pass it to a file system by FUSE.  ELSEWHERE: of another
 * part of the file; it asks for all that was written by calls, unless the kernel holds that back
 * (WRITE_BACK in the environment).
 */
enum { NOTHING = 1, LINKED, RANGE, MAP_RUN, ELSEWHERE };
static const struct ask {
	const char *name;
	int (*ask)(struct step *s); /* after the write */
	int open_flags, rw_flags, how;
	unsigned int link_flags;
} asks[] = {
	{ "fsync", ask_fsync, 0, 0, 0, 0 },
	{ "fdatasync", ask_fdatasync, 0, 0, 0, 0 },
	{ "msync", ask_msync, 0, 0, 0, 0 },
	{ "aio-fsync", ask_aio_fsync, 0, 0, 0, 0 },
	{ "aio-fdsync", ask_aio_fdsync, 0, 0, 0, 0 },
	{ "uring-fsync", ask_ring_fsync, 0, 0, 0, 0 },
	{ "uring-fdatasync", ask_ring_fdatasync, 0, 0, 0, 0 },
	{ "uring-range", ask_ring_range, 0, 0, 0, 0 },
	{ "uring-linked-fsync", NULL, 0, 0, LINKED, 0 },
	{ "uring-linked-fdatasync", NULL, 0, 0, LINKED, IORING_FSYNC_DATASYNC },
	{ "O_SYNC", NULL, O_SYNC, 0, 0, 0 },
	{ "O_DSYNC", NULL, O_DSYNC, 0, 0, 0 },
	{ "RWF_SYNC", NULL, 0, RWF_SYNC, 0, 0 },
	{ "RWF_DSYNC", NULL, 0, RWF_DSYNC, 0, 0 },
	{ "sync_file_range", ask_range, 0, 0, RANGE, 0 },
	{ "uring-sync_file_range", ask_ring_sync_file_range, 0, 0, NOTHING, 0 },
	{ "msync-elsewhere", ask_msync_elsewhere, 0, 0, ELSEWHERE, 0 },
	{ "sync", ask_sync, 0, 0, MAP_RUN, 0 },
	{ "syncfs", ask_syncfs, 0, 0, MAP_RUN, 0 },
};
#define ASKS (sizeof(asks) / sizeof(asks[0]))

static bool asks_nothing(const struct ask *a)
{
	return a->how == NOTHING || (a->how == RANGE && !by_map_run) || (a->how == ELSEWHERE && getenv("WRITE_BACK"));
}

/* --- ways to write --------------------------------------------------------- */

static int write_plain(struct step *s)
{
	struct iovec v = { data, s->n };

	return result(pwritev2(s->fd, &v, 1, s->at, s->rw_flags));
}

/* These functions of the C library are one call to the kernel, and different calls for map-run. */
static int write_write(struct step *s)
{
	return lseek(s->fd, s->at, SEEK_SET) < 0 ? -errno : result(write(s->fd, data, s->n));
}
static int write_writev(struct step *s)
{
	struct iovec v[] = { { data, 10 }, { data + 10, s->n - 10 } };

	return lseek(s->fd, s->at, SEEK_SET) < 0 ? -errno : result(writev(s->fd, v, 2));
}
static int write_pwrite(struct step *s) { return result(pwrite(s->fd, data, s->n, s->at)); }
static int write_pwritev(struct step *s)
{
	struct iovec v[] = { { data, 10 }, { data + 10, s->n - 10 } };

	return result(pwritev(s->fd, v, 2, s->at));
}

/* O_APPEND: writes at the end of the file. */
static int write_append(struct step *s)
{
	struct iovec v = { data, s->n };

	return result(pwritev2(s->fd, &v, 1, -1, s->rw_flags));
}

static int write_aio(struct step *s)
{
	struct iocb request = { .aio_fildes = (uint32_t)s->fd, .aio_lio_opcode = IOCB_CMD_PWRITE,
				.aio_buf = (uint64_t)(uintptr_t)data, .aio_nbytes = s->n,
				.aio_offset = s->at, .aio_rw_flags = s->rw_flags };

	return aio_run(&request);
}

static struct io_uring_sqe fill_write(const struct step *s)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = s->fd, .addr = (uint64_t)(uintptr_t)data,
				      .len = s->n, .off = (uint64_t)s->at, .rw_flags = s->rw_flags };
}

static int write_mapped(struct step *s)
{
	if (!s->map && (s->map = mmap(NULL, OLD + MUCH, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0)) == MAP_FAILED) {
		s->map = NULL;
		return -errno;
	}
	memcpy(s->map + s->at, data, s->n);
	return (int)s->n;
}

static int pipe_end[2];
static void fill_pipe(unsigned int n)
{
	while (read(pipe_end[0], there, PAGE) > 0)
		; /* what a refused call has left */
	if (write(pipe_end[1], data, n) != (ssize_t)n)
		die("a pipe");
}

static int write_splice(struct step *s)
{
	loff_t at = s->at;

	fill_pipe(s->n);
	return result(splice(pipe_end[0], NULL, s->fd, &at, s->n, 0));
}

static struct io_uring_sqe fill_splice(const struct step *s)
{
	fill_pipe(s->n);
	return (struct io_uring_sqe){ .opcode = IORING_OP_SPLICE, .fd = s->fd, .len = s->n, .off = (uint64_t)s->at,
				      .splice_off_in = (uint64_t)-1, .splice_fd_in = pipe_end[0] };
}

static int write_sendfile(struct step *s)
{
	int from = memfd_create("from", 0);
	off_t start = 0;
	int done;

	if (from < 0 || pwrite(from, data, s->n, 0) != (ssize_t)s->n || lseek(s->fd, s->at, SEEK_SET) < 0)
		die("the source of a sendfile");
	done = result(sendfile(s->fd, from, &start, s->n));
	close(from);
	return done;
}

/* Copies from a file of the same mount, which nobody syncs. */
static int write_copy(struct step *s)
{
	loff_t from = 0, at = s->at;
	size_t left = s->n;

	if (pwrite(source_fd, data, s->n, 0) != (ssize_t)s->n)
		die("the source of a copy");
	while (left > 0) {
		int done = result(copy_file_range(source_fd, &from, s->fd, &at, left, 0));

		if (done <= 0)
			return done < 0 ? done : -EIO;
		left -= (size_t)done;
	}
	return (int)s->n;
}

static struct io_uring_sqe fill_fallocate(const struct step *s)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_FALLOCATE, .fd = s->fd, .off = (uint64_t)s->at,
				      .addr = s->n, .len = ZERO | KEEP_SIZE };
}
static int write_zero(struct step *s) { return result(fallocate(s->fd, ZERO | KEEP_SIZE, s->at, s->n)); }
static int write_punch(struct step *s) { return result(fallocate(s->fd, PUNCH | KEEP_SIZE, s->at, s->n)); }
static int write_extend(struct step *s) { return result(fallocate(s->fd, 0, s->at, s->n)); }
static int write_posix_extend(struct step *s) { return -posix_fallocate(s->fd, s->at, s->n); }
static int write_size_by_path(struct step *s)
{
	char link[32], path[4096];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", s->fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return -errno;
	path[n] = 0;
	return result(truncate(path, s->at));
}
static int write_size(struct step *s) { return result(ftruncate(s->fd, s->at)); }
static struct io_uring_sqe fill_size(const struct step *s)
{
	return (struct io_uring_sqe){ .opcode = OP_FTRUNCATE, .fd = s->fd, .off = (uint64_t)s->at };
}

/*
 * The effect of a step: the bytes of DATA; zeroes; a size of at least its end (GROWS) or of its
 * offset (SIZE).  IN_PLACE lies in the file, BEYOND at its end, CUT goes down from there.
 */
enum effect { DATA, ZEROES, GROWS, SIZE };
enum place { IN_PLACE, BEYOND, CUT };
static const struct way {
	const char *name;
	int (*write)(struct step *s);
	struct io_uring_sqe (*fill)(const struct step *s); /* by io_uring */
	int open_flags;
	bool rw; /* takes RWF flags */
	enum place place;
	enum effect effect;
	unsigned int n;
	bool map_run; /* only there */
} ways[] = {
	/* The long writes come first: the file system itself syncs them, and such a sync includes
	 * other dirty data. */
	{ "write-long", write_plain, NULL, 0, true, IN_PLACE, DATA, MUCH, false },
	{ "direct-long", write_plain, NULL, O_DIRECT, true, IN_PLACE, DATA, MUCH, false },
	{ "direct-aio-long", write_aio, NULL, O_DIRECT, true, IN_PLACE, DATA, MUCH, false },
	{ "mapped-long", write_mapped, NULL, 0, false, IN_PLACE, DATA, MUCH, false },
	{ "copy_file_range-long", write_copy, NULL, 0, false, IN_PLACE, DATA, MUCH, false },
	{ "write", write_plain, NULL, 0, true, IN_PLACE, DATA, PAGE, false },
	{ "write-bytes", write_plain, NULL, 0, true, IN_PLACE, DATA, 100, false },
	{ "write-beyond", write_plain, NULL, 0, true, BEYOND, DATA, PAGE, false },
	{ "append", write_append, NULL, O_APPEND, true, BEYOND, DATA, 100, false },
	{ "write-aio", write_aio, NULL, 0, true, IN_PLACE, DATA, PAGE, false },
	{ "write-aio-beyond", write_aio, NULL, 0, true, BEYOND, DATA, PAGE, false },
	{ "write-uring", NULL, fill_write, 0, true, IN_PLACE, DATA, PAGE, false },
	{ "write-uring-beyond", NULL, fill_write, 0, true, BEYOND, DATA, PAGE, false },
	{ "direct", write_plain, NULL, O_DIRECT, true, IN_PLACE, DATA, PAGE, false },
	{ "direct-beyond", write_plain, NULL, O_DIRECT, true, BEYOND, DATA, PAGE, false },
	{ "direct-aio", write_aio, NULL, O_DIRECT, true, IN_PLACE, DATA, PAGE, false },
	{ "direct-aio-beyond", write_aio, NULL, O_DIRECT, true, BEYOND, DATA, PAGE, false },
	{ "direct-uring", NULL, fill_write, O_DIRECT, true, IN_PLACE, DATA, PAGE, false },
	{ "direct-uring-beyond", NULL, fill_write, O_DIRECT, true, BEYOND, DATA, PAGE, false },
	{ "mapped", write_mapped, NULL, 0, false, IN_PLACE, DATA, PAGE, false },
	{ "splice", write_splice, NULL, 0, false, IN_PLACE, DATA, PAGE, false },
	{ "splice-uring", NULL, fill_splice, 0, false, IN_PLACE, DATA, PAGE, false },
	{ "splice-direct", write_splice, NULL, O_DIRECT, false, IN_PLACE, DATA, PAGE, false },
	{ "sendfile", write_sendfile, NULL, 0, false, IN_PLACE, DATA, PAGE, false },
	{ "sendfile-beyond", write_sendfile, NULL, 0, false, BEYOND, DATA, PAGE, false },
	{ "copy_file_range", write_copy, NULL, 0, false, IN_PLACE, DATA, PAGE, false },
	{ "copy_file_range-beyond", write_copy, NULL, 0, false, BEYOND, DATA, PAGE, false },
	{ "fallocate-zero", write_zero, NULL, 0, false, IN_PLACE, ZEROES, PAGE, false },
	{ "fallocate-zero-uring", NULL, fill_fallocate, 0, false, IN_PLACE, ZEROES, PAGE, false },
	{ "fallocate-punch", write_punch, NULL, 0, false, IN_PLACE, ZEROES, PAGE, false },
	{ "fallocate-beyond", write_extend, NULL, 0, false, BEYOND, GROWS, PAGE, false },
	{ "truncate", write_size, NULL, 0, false, CUT, SIZE, PAGE, false },
	{ "truncate-beyond", write_size, NULL, 0, false, BEYOND, SIZE, PAGE, false },
	{ "write(2)", write_write, NULL, 0, false, IN_PLACE, DATA, PAGE, true },
	{ "writev", write_writev, NULL, 0, false, IN_PLACE, DATA, PAGE, true },
	{ "writev-beyond", write_writev, NULL, 0, false, BEYOND, DATA, PAGE, true },
	{ "pwrite", write_pwrite, NULL, 0, false, IN_PLACE, DATA, PAGE, true },
	{ "pwritev", write_pwritev, NULL, 0, false, IN_PLACE, DATA, PAGE, true },
	{ "posix_fallocate-beyond", write_posix_extend, NULL, 0, false, BEYOND, GROWS, PAGE, true },
	{ "truncate-by-path", write_size_by_path, NULL, 0, false, CUT, SIZE, PAGE, true },
	{ "truncate-uring", NULL, fill_size, 0, false, CUT, SIZE, PAGE, false },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* O_DSYNC at the open says nothing about stores through a mapping. */
static bool is_cell(const struct way *w, const struct ask *a)
{
	if (a->how == ELSEWHERE)
		return !by_map_run && !w->map_run && w->write != write_mapped;
	return (by_map_run || (!w->map_run && a->how != MAP_RUN)) && (!a->rw_flags || w->rw) && (a->how != LINKED || w->fill) &&
	       (!a->open_flags || w->write != write_mapped);
}

/* --- a cell ---------------------------------------------------------------- */

static char *path_of(const struct way *w, const struct ask *a)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/%s.%s%s", directory, w->name, a->name, by_map_run ? ".map" : "");
	return path;
}

static void fill(unsigned int w, unsigned int a, unsigned int version, unsigned int n)
{
	uint64_t x = ((uint64_t)w << 40) + ((uint64_t)a << 20) + version + 1;

	for (unsigned int i = 0; i < n; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		data[i] = (uint8_t)(x >> 33) | 1; /* never a zero */
	}
}

static unsigned int old_bytes(const struct way *w)
{
	return w->n > PAGE ? OLD + MUCH : OLD;
}

static off_t place_of(const struct way *w, unsigned int step)
{
	switch (w->place) {
	case IN_PLACE:
		return (off_t)(w->n > PAGE ? PAGE : PAGE + step * 2 * PAGE);
	case BEYOND:
		return (off_t)(old_bytes(w) + (w->effect == SIZE ? step + 1 : step) * w->n);
	default:
		return (off_t)(OLD - (step + 1) * PAGE);
	}
}

static void prepare(void)
{
	for (unsigned int w = 0; w < WAYS; w++)
		for (unsigned int a = 0; a < ASKS; a++) {
			unsigned int n = old_bytes(&ways[w]);
			int fd;

			if (!is_cell(&ways[w], &asks[a]))
				continue;
			fill(w, a, 99, n);
			fd = open(path_of(&ways[w], &asks[a]), O_WRONLY | O_CREAT | O_TRUNC, 0600);
			if (fd < 0 || write(fd, data, n) != (ssize_t)n)
				die("%s", path_of(&ways[w], &asks[a]));
			close(fd);
		}
}

static void list(void)
{
	for (unsigned int w = 0; w < WAYS; w++)
		for (unsigned int a = 0; a < ASKS; a++)
			if (is_cell(&ways[w], &asks[a]))
				printf("%u %u\n", w, a);
}

static int write_and_ask(struct step *s, const struct ask *a, bool forget)
{
	unsigned int n = 1;
	int done;

	if (s->way->fill) {
		struct io_uring_sqe q[2] = { s->way->fill(s) };

		if (a->how == LINKED && !forget) {
			q[0].flags |= IOSQE_IO_LINK;
			q[1] = ring_sync(s->fd, a->link_flags);
			n = 2;
		}
		done = ring_run(q, n);
	} else {
		done = s->way->write(s);
	}
	if (done < 0)
		return done;
	if (s->way->effect == DATA && done != (int)s->n)
		return -EIO;
	return a->ask && !forget ? a->ask(s) : 0;
}

static void run_cell(unsigned int w, unsigned int a, FILE *record, bool forget)
{
	const struct way *way = &ways[w];
	const struct ask *ask = &asks[a];
	int flags = O_RDWR | way->open_flags | (forget ? 0 : ask->open_flags);
	struct step s = { .fd = open(path_of(way, ask), flags), .way = way, .rw_flags = forget ? 0 : ask->rw_flags };
	unsigned int steps = way->n > PAGE ? 1 : STEPS;

	if (s.fd < 0)
		die("%s", path_of(way, ask));
	for (unsigned int step = 0; step < steps; step++) {
		int done;

		s.at = place_of(way, step);
		s.n = way->n;
		fill(w, a, step, s.n);
		done = write_and_ask(&s, ask, forget);
		/* The record is written after the call has returned, and not before. */
		fprintf(record, "%u %u %u %d\n", w, a, step, done < 0 ? done : 0);
		fflush(record);
		if (done < 0)
			break;
	}
	if (by_map_run)
		raise(SIGKILL); /* the close would write back everything */
	if (s.map)
		munmap(s.map, OLD + MUCH);
	close(s.fd);
}

static void run(const char *record_path, char *const *cell, bool forget)
{
	FILE *record = fopen(record_path, cell ? "a" : "w");
	char source[4096];

	snprintf(source, sizeof(source), "%s/source", directory);
	source_fd = open(source, O_RDWR | O_CREAT, 0600);
	if (!record || source_fd < 0)
		die("%s", record ? source : record_path);
	/* By map-run a program has a mapping or rings: one is made where it is used. */
	if (pipe2(pipe_end, O_NONBLOCK) || !aio_open() || (!by_map_run && !ring_open()))
		die("a pipe, aio or io_uring");
	if (cell)
		run_cell((unsigned int)atoi(cell[0]), (unsigned int)atoi(cell[1]), record, forget);
	for (unsigned int w = 0; w < WAYS && !cell; w++)
		for (unsigned int a = 0; a < ASKS; a++)
			if (is_cell(&ways[w], &asks[a]))
				run_cell(w, a, record, forget);
	fclose(record);
}

/* --- after the cut --------------------------------------------------------- */

enum state { NO_CELL, DURABLE, REFUSED, LOST };

static bool is_there(unsigned int w, unsigned int a, unsigned int step)
{
	const struct way *way = &ways[w];
	off_t at = place_of(way, step);
	bool all = true;
	struct stat st;
	int fd = open(path_of(way, &asks[a]), O_RDONLY);

	if (fd < 0 || fstat(fd, &st))
		die("%s", path_of(way, &asks[a]));
	if (way->effect == SIZE) {
		/* The size is that of the last step, and it moves in one direction. */
		all = way->place == CUT ? st.st_size <= at : st.st_size >= at;
	} else if (way->effect == GROWS) {
		all = st.st_size >= at + (off_t)way->n;
	} else {
		if (way->effect == DATA)
			fill(w, a, step, way->n);
		else
			memset(data, 0, way->n);
		memset(there, 0xee, way->n);
		all = pread(fd, there, way->n, at) == (ssize_t)way->n && memcmp(there, data, way->n) == 0;
	}
	close(fd);
	return all;
}

static unsigned int ways_there(void)
{
	unsigned int n = 0;

	for (unsigned int w = 0; w < WAYS; w++)
		n += by_map_run || !ways[w].map_run;
	return n;
}

static void show(enum state cells[WAYS][ASKS], const int errors[WAYS][ASKS], bool forgot)
{
	static const char *const say[] = { "", "durable", "refused", "LOST" };

	for (unsigned int w = 0; w < WAYS; w++)
		for (unsigned int a = 0; a < ASKS; a++) {
			enum state c = cells[w][a];

			if (c == REFUSED)
				printf("  %s %s: refused, %s\n", ways[w].name, asks[a].name, strerror(-errors[w][a]));
			else if (c != NO_CELL && forgot == (c == DURABLE) && !asks_nothing(&asks[a]))
				printf("  %s %s: %s\n", ways[w].name, asks[a].name, say[c]);
		}
}

static int check(const char *record_path, bool forgot)
{
	static enum state cells[WAYS][ASKS];
	static int errors[WAYS][ASKS];
	FILE *record = fopen(record_path, "r");
	unsigned int w, a, step, counts[4] = { 0 }, steps = 0, unasked = 0, wrong = 0;
	int error;

	if (!record)
		die("%s", record_path);
	while (fscanf(record, "%u %u %u %d", &w, &a, &step, &error) == 4) {
		if (w >= WAYS || a >= ASKS || step >= STEPS)
			die("%s: not a record", record_path);
		steps++;
		if (error) {
			cells[w][a] = cells[w][a] == LOST ? LOST : REFUSED;
			errors[w][a] = error;
		} else if (!is_there(w, a, step)) {
			cells[w][a] = LOST;
		} else if (cells[w][a] == NO_CELL) {
			cells[w][a] = DURABLE;
		}
	}
	fclose(record);
	for (w = 0; w < WAYS; w++)
		for (a = 0; a < ASKS; a++) {
			enum state c = cells[w][a];

			/* By map-run some cells may be left out. */
			if (c == NO_CELL ? is_cell(&ways[w], &asks[a]) && !by_map_run : !is_cell(&ways[w], &asks[a]))
				die("%s %s: not in the record", ways[w].name, asks[a].name);
			if (c == NO_CELL)
				continue;
			if (asks_nothing(&asks[a])) {
				unasked++;
				continue;
			}
			counts[c]++;
			/* Sizes and allocation are durable before anybody asks. */
			wrong += forgot ? ways[w].effect == DATA && c == DURABLE : c == LOST;
		}
	for (w = 0, a = 0; a < ASKS; a++)
		w += asks[a].how != (by_map_run ? ELSEWHERE : MAP_RUN);
	printf("%u ways to write x %u ways to ask, %u steps: %u cells durable, %u refused, %u lost; %u ask for nothing\n",
	       ways_there(), w, steps, counts[DURABLE], counts[REFUSED], counts[LOST], unasked);
	show(cells, errors, forgot);
	return wrong ? 1 : 0;
}

int main(int argc, char **argv)
{
	bool mistaken;

	if (argc > 1 && strcmp(argv[1], "map-run") == 0) {
		by_map_run = true;
		argc--;
		argv++;
	}
	mistaken = argc > 4 && strncmp(argv[argc - 1], "forg", 4) == 0;
	if (argc < 3 || posix_memalign((void **)&data, PAGE, OLD + MUCH) ||
	    posix_memalign((void **)&there, PAGE, OLD + MUCH))
		return 2;
	directory = argv[2];
	if (strcmp(argv[1], "prepare") == 0)
		prepare();
	else if (argc > 3 && strcmp(argv[1], "run") == 0)
		run(argv[3], NULL, mistaken);
	else if (strcmp(argv[1], "list") == 0)
		list();
	else if (argc > 5 && strcmp(argv[1], "cell") == 0)
		run(argv[3], &argv[4], mistaken);
	else if (argc > 3 && strcmp(argv[1], "check") == 0)
		return check(argv[3], mistaken);
	else
		return 2;
	return 0;
}
