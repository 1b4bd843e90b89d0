// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * device_asked.c - every way to write to a block device x every way to ask that it be durable.
 *
 *	device_asked run DEVICE VIEW MAPPED RECORD	each cell, on a disk of old bytes
 *	device_asked check DEVICE RECORD	what is there of it after a cut
 *	device_asked old DEVICE		fills it with them
 *	device_asked sectors, cell	sectors of the device, and of a cell
 *
 * A cell is a way to write and a way to ask, with a range of its own.  When its last call has
 * returned, MAPPED, the mapping of dm-log-writes below the volume, gets the mark "cNUMBER".
 * replay.c gives each range its disk of that time.  VIEW is a second device over DEVICE. VIEW's
 * page cache knows nothing of DEVICE's, so a direct read there gives what the volume has.  What is
 * acknowledged must be in both; a cell that only the page cache has is lost.
 *
 * If nobody asks, writes through the page cache must be found lost.
 * Exit code 1: a cell is not as it has to be; 2: anything else.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "../mount/rings.h"

#define SECTOR 512u
#define RANGE 160u /* sectors of a cell */
#define PLACE 8u   /* where in it the bytes are */
#define PAGE 4096u
#define LONG (68u << 10)
#define OLD_BYTE 0xa5

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#define RWF_SYNC 4
#endif

enum { KEEP_SIZE = 1, PUNCH = 2, ZERO = 16 };

static uint8_t *data, *there, *map;
static int pipe_end[2], control = -1;

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "device_asked: %s: %s\n", what, strerror(errno));
	exit(2);
}

static int result(long done)
{
	return done < 0 ? -errno : (int)done;
}

struct step {
	int fd, rw_flags;
	off_t at;
	unsigned int n;
};

/* --- ways to ask ----------------------------------------------------------- */

static int ask_fsync(struct step *s) { return result(fsync(s->fd)); }
static int ask_fdatasync(struct step *s) { return result(fdatasync(s->fd)); }
static int ask_msync(struct step *s)
{
	off_t from = s->at & ~(off_t)(PAGE - 1);
	size_t whole = (size_t)(s->at - from) + s->n;
	uint8_t *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, from);
	int done;

	if (p == MAP_FAILED)
		return -errno;
	done = result(msync(p, whole, MS_SYNC));
	munmap(p, whole);
	return done;
}
static int ask_range(struct step *s)
{
	return result(sync_file_range(s->fd, s->at, s->n, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
								  SYNC_FILE_RANGE_WAIT_AFTER));
}
static int ask_sync(struct step *s)
{
	(void)s;
	sync();
	return 0;
}
static int ask_ioctl(struct step *s) { return result(ioctl(s->fd, BLKFLSBUF, 0)); }
static int aio_ask(struct step *s, unsigned short opcode)
{
	struct iocb request = { .aio_fildes = (uint32_t)s->fd, .aio_lio_opcode = opcode };

	return aio_run(&request);
}
static int ask_aio_fsync(struct step *s) { return aio_ask(s, IOCB_CMD_FSYNC); }
static int ask_aio_fdsync(struct step *s) { return aio_ask(s, IOCB_CMD_FDSYNC); }
static int ring_ask(struct step *s, unsigned int flags, bool range)
{
	struct io_uring_sqe q = { .opcode = IORING_OP_FSYNC, .fd = s->fd, .fsync_flags = flags,
				  .off = range ? (uint64_t)s->at : 0, .len = range ? s->n : 0 };

	return ring_run(&q, 1);
}
static int ask_ring_fsync(struct step *s) { return ring_ask(s, 0, false); }
static int ask_ring_fdatasync(struct step *s) { return ring_ask(s, IORING_FSYNC_DATASYNC, false); }
static int ask_ring_range(struct step *s) { return ring_ask(s, IORING_FSYNC_DATASYNC, true); }
static int ask_nobody(struct step *s)
{
	(void)s;
	return 0;
}

static const struct ask {
	const char *name;
	int (*ask)(struct step *s); /* after the write */
	int open_flags, rw_flags;
	bool linked; /* to the write, by io_uring */
	unsigned int link_flags;
} asks[] = {
	{ "fsync", ask_fsync, 0, 0, false, 0 },
	{ "fdatasync", ask_fdatasync, 0, 0, false, 0 },
	{ "msync", ask_msync, 0, 0, false, 0 },
	{ "sync_file_range", ask_range, 0, 0, false, 0 },
	{ "sync", ask_sync, 0, 0, false, 0 },
	{ "BLKFLSBUF", ask_ioctl, 0, 0, false, 0 },
	{ "aio-fsync", ask_aio_fsync, 0, 0, false, 0 },
	{ "aio-fdsync", ask_aio_fdsync, 0, 0, false, 0 },
	{ "uring-fsync", ask_ring_fsync, 0, 0, false, 0 },
	{ "uring-fdatasync", ask_ring_fdatasync, 0, 0, false, 0 },
	{ "uring-range", ask_ring_range, 0, 0, false, 0 },
	{ "uring-linked-fsync", ask_nobody, 0, 0, true, 0 },
	{ "uring-linked-fdatasync", ask_nobody, 0, 0, true, IORING_FSYNC_DATASYNC },
	{ "O_SYNC", ask_nobody, O_SYNC, 0, false, 0 },
	{ "O_DSYNC", ask_nobody, O_DSYNC, 0, false, 0 },
	{ "RWF_SYNC", ask_nobody, 0, RWF_SYNC, false, 0 },
	{ "RWF_DSYNC", ask_nobody, 0, RWF_DSYNC, false, 0 },
	{ "nobody", NULL, 0, 0, false, 0 },
};
#define ASKS (sizeof(asks) / sizeof(asks[0]))

/* --- ways to write --------------------------------------------------------- */

static int write_plain(struct step *s)
{
	struct iovec v = { data, s->n };

	return result(pwritev2(s->fd, &v, 1, s->at, s->rw_flags));
}
static int write_aio(struct step *s)
{
	struct iocb request = { .aio_fildes = (uint32_t)s->fd, .aio_lio_opcode = IOCB_CMD_PWRITE,
				.aio_buf = (uint64_t)(uintptr_t)data, .aio_nbytes = s->n, .aio_offset = s->at,
				.aio_rw_flags = s->rw_flags };

	return aio_run(&request);
}
static struct io_uring_sqe fill_write(const struct step *s)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = s->fd, .addr = (uint64_t)(uintptr_t)data,
				      .len = s->n, .off = (uint64_t)s->at, .rw_flags = s->rw_flags };
}
static int write_mapped(struct step *s)
{
	map = mmap(NULL, s->n, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, s->at);
	if (map == MAP_FAILED)
		return -errno;
	memcpy(map, data, s->n);
	return (int)s->n;
}
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
static int source(unsigned int n)
{
	int fd = memfd_create("source", 0);

	if (fd < 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
		die("a source");
	return fd;
}
static int write_sendfile(struct step *s)
{
	int from = source(s->n), done;
	off_t start = 0;

	if (lseek(s->fd, s->at, SEEK_SET) < 0)
		die("seeking");
	done = result(sendfile(s->fd, from, &start, s->n));
	close(from);
	return done;
}
static int write_copy(struct step *s)
{
	int from = source(s->n), done;
	loff_t start = 0, at = s->at;

	done = result(copy_file_range(from, &start, s->fd, &at, s->n, 0));
	close(from);
	return done;
}
static int allocate(struct step *s, int mode)
{
	return fallocate(s->fd, mode, s->at, s->n) ? -errno : (int)s->n;
}
static int write_zero_range(struct step *s) { return allocate(s, ZERO | KEEP_SIZE); }
static int write_punch(struct step *s) { return allocate(s, PUNCH | KEEP_SIZE); }
static struct io_uring_sqe fill_zero_range(const struct step *s)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_FALLOCATE, .fd = s->fd, .off = (uint64_t)s->at,
				      .addr = s->n, .len = ZERO | KEEP_SIZE };
}
static int by_ioctl(struct step *s, unsigned long command)
{
	uint64_t range[2] = { (uint64_t)s->at, s->n };

	return ioctl(s->fd, command, range) ? -errno : (int)s->n;
}
static int write_zeroout(struct step *s) { return by_ioctl(s, BLKZEROOUT); }
static int write_discard(struct step *s) { return by_ioctl(s, BLKDISCARD); }

/* The content afterwards: DATA, ZEROES, or KEPT: each sector is zeroes or as before. */
enum effect { DATA, ZEROES, KEPT };
static const struct way {
	const char *name;
	int (*write)(struct step *s);
	struct io_uring_sqe (*fill)(const struct step *s);
	int open_flags;
	bool rw;   /* takes RWF flags */
	bool held; /* by the page cache, until somebody asks */
	bool whole; /* returns the bytes, not 0 */
	enum effect effect;
	unsigned int n;
} ways[] = {
	{ "write", write_plain, NULL, 0, true, true, true, DATA, PAGE },
	{ "write-bytes", write_plain, NULL, 0, true, true, true, DATA, 100 },
	{ "write-long", write_plain, NULL, 0, true, true, true, DATA, LONG },
	{ "write-aio", write_aio, NULL, 0, true, true, true, DATA, PAGE },
	{ "write-uring", NULL, fill_write, 0, true, true, true, DATA, PAGE },
	{ "direct", write_plain, NULL, O_DIRECT, true, false, true, DATA, PAGE },
	{ "direct-sector", write_plain, NULL, O_DIRECT, true, false, true, DATA, SECTOR },
	{ "direct-long", write_plain, NULL, O_DIRECT, true, false, true, DATA, LONG },
	{ "direct-aio", write_aio, NULL, O_DIRECT, true, false, true, DATA, PAGE },
	{ "direct-aio-long", write_aio, NULL, O_DIRECT, true, false, true, DATA, LONG },
	{ "direct-uring", NULL, fill_write, O_DIRECT, true, false, true, DATA, PAGE },
	{ "direct-uring-long", NULL, fill_write, O_DIRECT, true, false, true, DATA, LONG },
	{ "mapped", write_mapped, NULL, 0, false, true, true, DATA, PAGE },
	{ "mapped-long", write_mapped, NULL, 0, false, true, true, DATA, LONG },
	{ "splice", write_splice, NULL, 0, false, true, true, DATA, PAGE },
	{ "splice-uring", NULL, fill_splice, 0, false, true, true, DATA, PAGE },
	{ "sendfile", write_sendfile, NULL, 0, false, true, true, DATA, PAGE },
	{ "copy_file_range", write_copy, NULL, 0, false, true, true, DATA, PAGE },
	{ "zero-range", write_zero_range, NULL, 0, false, false, true, ZEROES, PAGE },
	{ "zero-range-long", write_zero_range, NULL, 0, false, false, true, ZEROES, LONG },
	{ "zero-range-uring", NULL, fill_zero_range, 0, false, false, false, ZEROES, PAGE },
	{ "punch", write_punch, NULL, 0, false, false, true, ZEROES, PAGE },
	{ "punch-long", write_punch, NULL, 0, false, false, true, ZEROES, LONG },
	{ "BLKZEROOUT", write_zeroout, NULL, 0, false, false, true, ZEROES, PAGE },
	{ "BLKZEROOUT-long", write_zeroout, NULL, 0, false, false, true, ZEROES, LONG },
	{ "BLKDISCARD", write_discard, NULL, 0, false, false, true, KEPT, PAGE },
	{ "BLKDISCARD-long", write_discard, NULL, 0, false, false, true, KEPT, LONG },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))
#define CELLS (WAYS * ASKS)

static bool is_cell(const struct way *w, const struct ask *a)
{
	/* A store into memory cannot be linked to a request. */
	if (a->linked)
		return w->fill != NULL;
	if (a->rw_flags)
		return w->rw;
	return !a->open_flags || w->write != write_mapped;
}

static off_t place_of(unsigned int cell)
{
	return ((off_t)cell * RANGE + PLACE) * SECTOR;
}

static void fill(unsigned int cell, unsigned int n)
{
	uint32_t x = cell * 7919 + 1;

	for (unsigned int i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		data[i] = (uint8_t)(x >> 24) | 1;
	}
}

static int run_step(struct step *s, const struct way *w, const struct ask *a)
{
	int done;

	if (w->fill) {
		struct io_uring_sqe q[2] = { w->fill(s) };

		q[0].flags = a->linked ? IOSQE_IO_LINK : 0;
		q[1] = (struct io_uring_sqe){ .opcode = IORING_OP_FSYNC, .fd = s->fd, .fsync_flags = a->link_flags };
		done = ring_run(q, a->linked ? 2 : 1);
	} else {
		done = w->write(s);
	}
	if (done >= 0 && w->whole && done != (int)s->n)
		return -EIO;
	return done < 0 || !a->ask ? done : a->ask(s);
}

/* --- the cut of a cell ------------------------------------------------------- */

static void mark(const char *mapped, unsigned int cell)
{
	static union {
		struct dm_ioctl head;
		char bytes[1024];
	} u;
	struct dm_target_msg *message = (void *)(u.bytes + sizeof(u.head));

	memset(&u, 0, sizeof(u));
	u.head.version[0] = DM_VERSION_MAJOR;
	u.head.data_size = sizeof(u);
	u.head.data_start = sizeof(u.head);
	snprintf(u.head.name, sizeof(u.head.name), "%s", mapped);
	snprintf(message->message, 64, "mark c%u", cell);
	if (ioctl(control, DM_TARGET_MSG, &u))
		die("a mark");
}

static bool is_there(int fd, unsigned int cell, const struct way *w)
{
	unsigned int bytes = (w->n + SECTOR - 1) / SECTOR * SECTOR;
	bool all = true;

	memset(there, 0xee, bytes);
	if (pread(fd, there, bytes, place_of(cell)) != (ssize_t)bytes)
		die("reading");
	fill(cell, w->n);
	for (unsigned int i = 0; i < w->n; i++)
		all &= w->effect == DATA ? there[i] == data[i] : !there[i] || (w->effect == KEPT && there[i] == OLD_BYTE);
	return all;
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags);

	if (fd < 0)
		die(path);
	return fd;
}

static void run(const char *device, const char *view_path, const char *mapped, const char *record_path)
{
	FILE *record = fopen(record_path, "w");
	int view = opened(view_path, O_RDONLY | O_DIRECT), kept = opened(device, O_RDONLY);

	control = opened("/dev/mapper/control", O_RDWR);
	if (!record || pipe2(pipe_end, O_NONBLOCK) || !aio_open() || !ring_open())
		die("a record, a pipe, aio or io_uring");
	for (unsigned int cell = 0; cell < CELLS; cell++) {
		const struct way *w = &ways[cell / ASKS];
		const struct ask *a = &asks[cell % ASKS];
		struct step s = { .at = place_of(cell), .n = w->n, .rw_flags = a->rw_flags };
		bool seen;
		int done;

		if (!is_cell(w, a))
			continue;
		s.fd = opened(device, O_RDWR | w->open_flags | a->open_flags);
		fill(cell, s.n);
		done = run_step(&s, w, a);
		mark(mapped, cell);
		seen = done >= 0 && is_there(view, cell, w);
		if (map && map != MAP_FAILED)
			munmap(map, s.n);
		map = NULL;
		close(s.fd);
		fprintf(record, "%u %d %d\n", cell, done < 0 ? done : 0, seen);
	}
	/* The last close of a device writes back everything, so it comes last. */
	close(kept);
	fclose(record);
}

/* --- after the cut ----------------------------------------------------------- */

static int check(const char *device, const char *record_path)
{
	unsigned int cell, cells = 0, expected = 0, durable = 0, refused = 0, lost = 0, unasked = 0, wrong = 0;
	FILE *record = fopen(record_path, "r");
	int error, seen, fd = opened(device, O_RDONLY | O_DIRECT);

	if (!record)
		die(record_path);
	for (unsigned int i = 0; i < CELLS; i++)
		expected += is_cell(&ways[i / ASKS], &asks[i % ASKS]);
	while (fscanf(record, "%u %d %d", &cell, &error, &seen) == 3) {
		const struct way *w = &ways[cell / ASKS];
		const struct ask *a = &asks[cell % ASKS];
		bool loses = !a->ask && w->held, found;

		cells++;
		if (error) {
			refused++;
			printf("asked: refused: %s %s: %s\n", w->name, a->name, strerror(-error));
			continue;
		}
		found = seen && is_there(fd, cell, w);
		if (found != loses) {
			durable += found;
			unasked += !found;
			continue;
		}
		lost += !found;
		wrong++;
		printf("asked: %s %s: %s\n", w->name, a->name,
		       found ? "there, though the page cache had it" :
		       seen  ? "LOST: the volume had it, and the cut took it" :
			       "LOST: the volume never had it");
	}
	if (cells != expected)
		die("cells are missing in the record");
	printf("asked: %u cells: %u durable, %u refused, %u lost; %u lost where nobody asked\n", cells, durable, refused,
	       lost, unasked);
	return wrong ? 1 : 0;
}

static void make_old(const char *device)
{
	int fd = opened(device, O_WRONLY | O_DIRECT);

	memset(data, OLD_BYTE, RANGE * SECTOR);
	for (unsigned int cell = 0; cell < CELLS; cell++)
		if (pwrite(fd, data, RANGE * SECTOR, (off_t)cell * RANGE * SECTOR) != RANGE * SECTOR)
			die(device);
}

int main(int argc, char **argv)
{
	if (posix_memalign((void **)&data, PAGE, RANGE * SECTOR) || posix_memalign((void **)&there, PAGE, RANGE * SECTOR))
		return 2;
	if (argc > 5 && strcmp(argv[1], "run") == 0)
		run(argv[2], argv[3], argv[4], argv[5]);
	else if (argc > 3 && strcmp(argv[1], "check") == 0)
		return check(argv[2], argv[3]);
	else if (argc > 2 && strcmp(argv[1], "old") == 0)
		make_old(argv[2]);
	else if (argc > 1 && strcmp(argv[1], "sectors") == 0)
		printf("%zu\n", CELLS * RANGE);
	else if (argc > 1 && strcmp(argv[1], "cell") == 0)
		printf("%u\n", RANGE);
	else
		return 2;
	return 0;
}
