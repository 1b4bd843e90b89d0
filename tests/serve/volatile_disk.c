// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volatile_disk.c - a disk with a volatile write cache, as a file that any program
 * can open: a FUSE file system with one file, `disk`.
 *
 *	volatile_disk DIRECTORY PLATTER BYTES [KEY=NUMBER]...
 *
 * PLATTER holds what survives a power cut.  A write reaches it when an fsync that began after the
 * write had ended is done, and not before.  A write that is to be durable when it ends (O_DSYNC,
 * RWF_DSYNC) has an fsync of its own.  Everything that a program does to the file arrives
 * here, through whichever system call or io_uring, since the file bypasses the page cache.
 *
 *	SIGUSR1	cuts the power: of what was not synced each sector keeps one of its
 *		versions or the one below; PLATTER is written, and each request from
 *		then on fails.  The cut waits for a write that is not synced, at most wait_ms
 *	SIGTERM	the same, then unmounts and ends
 *	user.cut	setting this extended attribute to "OFFSET LENGTH" cuts a range: what was not
 *		synced there is lost, nothing reaches it any more, and writes to it fail.  So
 *		one disk serves many cases, each with a cut of its own.
 *
 * Keys: seed; keep (what the cut leaves of unsynced sectors: 0 nothing, 1 any
 * version of each); wait_ms (0); unit (so many sectors of a write are kept or lost together: 1);
 * write_us, flush_us (how long each takes, side by side); fail (each so many fsyncs fail
 * once, and what was not synced is lost as by a cut); fail_write, fail_flush, fail_read (the
 * request of this number fails once, a flush as above); lie (which a test must find: 1, an fsync
 * does nothing, 2, the one of a durable write does nothing); lie_after (so many fsyncs are
 * honest before that: 0).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SECTOR 512u
#define FILE_NODE 2u
#define WRITE_MOST (128u << 10)
#define THREADS 16

/* A write that was not synced, of n sectors; data is NULL for zeroes. */
struct unsynced {
	struct unsynced *next;
	uint64_t number;
	uint64_t sector;
	uint64_t n;
	uint8_t *data;
};

static struct {
	const char *directory, *path;
	uint64_t bytes;
	uint8_t *platter, *seen;
	uint8_t *gone; /* of each sector: it lies in a range that was cut */
	struct unsynced *first, **last;
	uint64_t writes, flushes, failed;
	bool cut;
	int fuse;
	uint64_t seed, keep, unit, write_us, flush_us, fail, lie, lie_after, wait_ms;
	uint64_t fail_write, fail_flush, fail_read, reads, asked; /* asked: writes, those that failed too */
} disk = { .last = &disk.first, .keep = 1, .unit = 1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what)
{
	fprintf(stderr, "volatile_disk: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *memory(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		die("memory");
	return p;
}

static uint64_t random_number(void)
{
	uint64_t x = disk.seed += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static void pass_us(uint64_t us)
{
	struct timespec t = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

	if (us)
		nanosleep(&t, NULL);
}

static void store(uint8_t *to, const struct unsynced *w, uint64_t i)
{
	if (w->data)
		memcpy(to + (w->sector + i) * SECTOR, w->data + i * SECTOR, SECTOR);
	else
		memset(to + (w->sector + i) * SECTOR, 0, SECTOR);
}

static void store_synced(const struct unsynced *w, uint64_t i)
{
	if (!disk.gone[w->sector + i])
		store(disk.platter, w, i);
}

static void forget_first(void)
{
	struct unsynced *w = disk.first;

	disk.first = w->next;
	if (!disk.first)
		disk.last = &disk.first;
	free(w->data);
	free(w);
}

/* Chooses the state after a cut.  Each version of a sector is as likely as the others. */
static uint64_t lose_unsynced(void)
{
	uint8_t *versions = memory(disk.bytes / SECTOR);
	uint64_t lost = 0;

	for (; disk.first; forget_first()) {
		uint64_t decided = UINT64_MAX;
		bool kept = false;

		for (uint64_t i = 0; i < disk.first->n; i++) {
			uint64_t unit = (disk.first->sector + i) / disk.unit;

			if (unit != decided) {
				versions[unit] += versions[unit] < 254;
				kept = disk.keep && random_number() % (versions[unit] + 1u) == 0;
				decided = unit;
			}
			if (kept)
				store_synced(disk.first, i);
		}
	}
	for (uint64_t i = 0; i < disk.bytes / SECTOR; i++)
		lost += memcmp(disk.platter + i * SECTOR, disk.seen + i * SECTOR, SECTOR) != 0;
	memcpy(disk.seen, disk.platter, disk.bytes);
	free(versions);
	return lost;
}

static void save_platter(void)
{
	int fd = open(disk.path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	for (uint64_t at = 0; at < disk.bytes;) {
		ssize_t n = fd < 0 ? -1 : pwrite(fd, disk.platter + at, disk.bytes - at, (off_t)at);

		if (n <= 0)
			die(disk.path);
		at += (uint64_t)n;
	}
	close(fd);
}

/* --- the file -------------------------------------------------------------- */

static int disk_write(uint64_t offset, const uint8_t *data, uint64_t n)
{
	struct unsynced *w = memory(sizeof(*w));
	int error = 0;

	if (offset % SECTOR || n % SECTOR || offset > disk.bytes || n > disk.bytes - offset) {
		free(w);
		return -EINVAL;
	}
	*w = (struct unsynced){ .sector = offset / SECTOR, .n = n / SECTOR };
	if (data) {
		w->data = memory(n);
		memcpy(w->data, data, n);
	}
	pass_us(disk.write_us);
	pthread_mutex_lock(&lock);
	if (++disk.asked == disk.fail_write)
		error = -EIO;
	disk.failed += error != 0;
	if (error || disk.cut || memchr(disk.gone + w->sector, 1, w->n)) {
		error = -EIO;
		free(w->data);
		free(w);
	} else {
		for (uint64_t i = 0; i < w->n; i++)
			store(disk.seen, w, i);
		w->number = disk.writes++;
		*disk.last = w;
		disk.last = &w->next;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static int disk_flush(void)
{
	uint64_t before;
	int error = 0;

	pthread_mutex_lock(&lock);
	before = disk.writes;
	pthread_mutex_unlock(&lock);
	pass_us(disk.flush_us);
	pthread_mutex_lock(&lock);
	disk.flushes++;
	if (disk.cut) {
		error = -EIO;
	} else if ((disk.fail && disk.flushes % disk.fail == 0) || disk.flushes == disk.fail_flush) {
		disk.failed++;
		lose_unsynced();
		error = -EIO;
	} else if (disk.lie != 1 || disk.flushes <= disk.lie_after) {
		for (; disk.first && disk.first->number < before; forget_first())
			for (uint64_t i = 0; i < disk.first->n; i++)
				store_synced(disk.first, i);
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static int disk_read(uint64_t offset, uint8_t *to, uint32_t *n)
{
	int error = 0;

	if (offset >= disk.bytes)
		*n = 0;
	else if (*n > disk.bytes - offset)
		*n = (uint32_t)(disk.bytes - offset);
	pthread_mutex_lock(&lock);
	if (++disk.reads == disk.fail_read)
		disk.failed++;
	if (disk.cut || disk.reads == disk.fail_read)
		error = -EIO;
	else
		memcpy(to, disk.seen + offset, *n);
	pthread_mutex_unlock(&lock);
	return error;
}

static int disk_cut_range(const char *range, size_t n)
{
	unsigned long long offset, length;
	char text[64] = "";

	if (n >= sizeof(text))
		return -EINVAL;
	memcpy(text, range, n);
	if (sscanf(text, "%llu %llu", &offset, &length) != 2 || offset % SECTOR || length % SECTOR ||
	    offset > disk.bytes || length > disk.bytes - offset)
		return -EINVAL;
	pthread_mutex_lock(&lock);
	memset(disk.gone + offset / SECTOR, 1, length / SECTOR);
	memcpy(disk.seen + offset, disk.platter + offset, length);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* --- FUSE ------------------------------------------------------------------ */

static void answer(uint64_t unique, int error, const void *body, size_t n)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + n), .error = error, .unique = unique };
	struct iovec part[2] = { { &out, sizeof(out) }, { (void *)body, n } };

	if (error) {
		out.len = sizeof(out);
		part[1].iov_len = 0;
	}
	if (writev(disk.fuse, part, 2) < 0 && errno != ENOENT)
		die("answering");
}

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr a = { .ino = node, .nlink = 1, .blksize = 4096 };

	a.mode = node == FILE_NODE ? S_IFREG | 0600 : S_IFDIR | 0700;
	a.size = node == FILE_NODE ? disk.bytes : 0;
	a.blocks = a.size / 512;
	return a;
}

static void handle(const struct fuse_in_header *in, uint8_t *scratch)
{
	const void *body = in + 1;

	switch (in->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out o = { .major = 7, .minor = 31, .max_write = WRITE_MOST,
					   .max_background = 64, .congestion_threshold = 48,
					   .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO };

		return answer(in->unique, 0, &o, sizeof(o));
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out o = { .nodeid = FILE_NODE, .attr = attributes(FILE_NODE) };

		return answer(in->unique, strcmp(body, "disk") ? -ENOENT : 0, &o, sizeof(o));
	}
	case FUSE_GETATTR:
	case FUSE_SETATTR: {
		struct fuse_attr_out o = { .attr = attributes(in->nodeid) };

		return answer(in->unique, 0, &o, sizeof(o));
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		struct fuse_open_out o = { .open_flags = in->opcode == FUSE_OPEN ?
							 FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES : 0 };

		return answer(in->unique, 0, &o, sizeof(o));
	}
	case FUSE_READ: {
		const struct fuse_read_in *r = body;
		uint32_t n = r->size;
		int error = disk_read(r->offset, scratch, &n);

		return answer(in->unique, error, scratch, n);
	}
	case FUSE_WRITE: {
		const struct fuse_write_in *w = body;
		struct fuse_write_out o = { .size = w->size };
		int error = disk_write(w->offset, (const uint8_t *)(w + 1), w->size);

		/* The kernel leaves it to us for a file that bypasses its page cache. */
		if (!error && (w->flags & O_DSYNC) && disk.lie != 2)
			error = disk_flush();
		return answer(in->unique, error, &o, sizeof(o));
	}
	case FUSE_FALLOCATE: { /* a hole, or zeroes: the library asks for nothing else */
		const struct fuse_fallocate_in *f = body;

		return answer(in->unique, disk_write(f->offset, NULL, f->length), NULL, 0);
	}
	case FUSE_SETXATTR: {
		const struct fuse_setxattr_in *x = body;
		const char *name = (const char *)body + FUSE_COMPAT_SETXATTR_IN_SIZE;

		return answer(in->unique,
			      strcmp(name, "user.cut") ? -EOPNOTSUPP : disk_cut_range(name + strlen(name) + 1, x->size),
			      NULL, 0);
	}
	case FUSE_FSYNC:
		return answer(in->unique, disk_flush(), NULL, 0);
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_ACCESS:
		return answer(in->unique, 0, NULL, 0);
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(in->unique, -ENOSYS, NULL, 0);
	}
}

static void *serve(void *unused)
{
	const size_t most = WRITE_MOST + 4096;
	uint8_t *request = memory(most), *scratch = memory(most);

	(void)unused;
	for (;;) {
		ssize_t n = read(disk.fuse, request, most);

		if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
			continue;
		if (n < 0)
			return NULL; /* unmounted */
		handle((const struct fuse_in_header *)request, scratch);
	}
}

static void mount_it(void)
{
	char options[128];

	disk.fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (disk.fuse < 0)
		die("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%u", disk.fuse,
		 WRITE_MOST);
	if (mount("volatile_disk", disk.directory, "fuse", MS_NOSUID | MS_NODEV, options))
		die("mounting");
}

/* A cut just after a flush would remove nothing. */
static void wait_for_unsynced(void)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	bool there = false;

	for (uint64_t waited = 0; !there && waited < disk.wait_ms; waited++) {
		pthread_mutex_lock(&lock);
		there = disk.first != NULL || disk.cut;
		pthread_mutex_unlock(&lock);
		if (!there)
			nanosleep(&ms, NULL);
	}
}

static void power_cut(void)
{
	uint64_t lost = 0;

	pthread_mutex_lock(&lock);
	if (!disk.cut) {
		disk.cut = true;
		lost = lose_unsynced();
		save_platter();
	}
	printf("cut: %llu writes, %llu flushes, %llu failed, %llu sectors lost\n", (unsigned long long)disk.writes,
	       (unsigned long long)disk.flushes, (unsigned long long)disk.failed, (unsigned long long)lost);
	fflush(stdout);
	pthread_mutex_unlock(&lock);
}

static void load_platter(void)
{
	int fd = open(disk.path, O_RDONLY);

	disk.platter = memory(disk.bytes);
	disk.seen = memory(disk.bytes);
	disk.gone = memory(disk.bytes / SECTOR);
	if (fd >= 0) {
		if (read(fd, disk.platter, disk.bytes) < 0)
			die(disk.path);
		close(fd);
	}
	memcpy(disk.seen, disk.platter, disk.bytes);
}

static void option(const char *text)
{
	static const struct {
		const char *key;
		uint64_t *value;
	} keys[] = {
		{ "seed=", &disk.seed }, { "keep=", &disk.keep }, { "unit=", &disk.unit }, { "write_us=", &disk.write_us },
		{ "flush_us=", &disk.flush_us }, { "fail=", &disk.fail }, { "lie=", &disk.lie },
		{ "lie_after=", &disk.lie_after }, { "wait_ms=", &disk.wait_ms }, { "fail_write=", &disk.fail_write },
		{ "fail_flush=", &disk.fail_flush }, { "fail_read=", &disk.fail_read },
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		size_t n = strlen(keys[i].key);

		if (strncmp(text, keys[i].key, n) == 0) {
			*keys[i].value = strtoull(text + n, NULL, 10);
			return;
		}
	}
	fprintf(stderr, "volatile_disk: %s: not known\n", text);
	exit(2);
}

int main(int argc, char **argv)
{
	sigset_t signals;
	pthread_t thread;
	int got;

	if (argc < 4)
		return 2;
	disk.directory = argv[1];
	disk.path = argv[2];
	disk.bytes = strtoull(argv[3], NULL, 10) / SECTOR * SECTOR;
	for (int i = 4; i < argc; i++)
		option(argv[i]);
	if (!disk.unit)
		return 2;
	load_platter();
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	mount_it();
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, NULL, serve, NULL))
			die("thread");
	do {
		if (sigwait(&signals, &got))
			die("waiting for signals");
		if (got == SIGUSR1)
			wait_for_unsynced();
		power_cut();
	} while (got == SIGUSR1);
	umount2(disk.directory, MNT_DETACH);
	return 0;
}
