// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fsx.c - a file or a block device against a copy of it in memory.
 *
 *	fsx FILE OPS SEED [BYTES]		a file, made anew
 *	fsx --device DEVICE OPS SEED [BYTES]	its first BYTES
 *	    --plant KIND AT			make mistakes from operation AT on
 *
 * After the program of the same name that file systems have been tried with since 1991.  It makes
 * random reads and writes - through the page cache, past it and through a mapping -, truncates,
 * holes, zeroes, allocation, copies of ranges (copy_file_range), syncs, closing and opening again,
 * one after the other.  Each is done to the copy too, and whatever is read must be what the copy
 * says.  A device has no length to change: zeroes take the place of truncates, and a discard is
 * followed by a write, since it promises nothing about what is read.  What was written depends on
 * the operation, so that older data is told from newer.
 *
 * The mistakes of --plant, in a few writes, are those that fsx must find. "lost": a write that is
 * not done; "stale": one that puts back what was there; "byte": a changed byte; "moved": a write
 * one sector off.  Exit code 1: a difference; 2: anything else.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTOR 512u
#define PAGE 4096u
#define MOST 65536u /* bytes of an operation */
#define REMEMBERED 24u
#define FULL_CHECK 5000u /* operations between two looks at everything */

#define OPS(X)                                                                                                        \
	X(READ, 14) X(READ_DIRECT, 8) X(READ_MAPPED, 8) X(WRITE, 20) X(WRITE_DIRECT, 16) X(WRITE_MAPPED, 10)          \
	X(RESIZE, 6) X(HOLE, 4) X(ZERO, 4) X(ALLOCATE, 3) X(COPY, 4) X(FSYNC, 4) X(FDATASYNC, 4) X(REOPEN, 2)
enum op {
#define X(name, weight) OP_##name,
	OPS(X)
#undef X
	OP_COUNT
};
static const char *const op_name[OP_COUNT] = {
#define X(name, weight) #name,
	OPS(X)
#undef X
};
static const unsigned int op_weight[OP_COUNT] = {
#define X(name, weight) weight,
	OPS(X)
#undef X
};

static const char *path;
static int file = -1, direct = -1;
static int is_device, direct_refused;
static uint32_t space = 262144, length; /* most bytes, bytes now */
static uint8_t *model, *buf;
static uint64_t random_state, data_seed, now, total;
static uint64_t done[OP_COUNT], skipped;
static const char *plant = "";
static uint64_t plant_at;
static unsigned int plant_times = 64; /* a few may be overwritten before they are read */

struct step {
	uint64_t at;
	enum op op;
	uint32_t first, bytes;
};
static struct step steps[REMEMBERED];

static void die(const char *what)
{
	fprintf(stderr, "fsx: operation %llu: %s %s: %s\n", (unsigned long long)now, what, path, strerror(errno));
	exit(2);
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static uint32_t below(uint32_t n)
{
	random_state = mix(random_state);
	return n ? (uint32_t)((random_state >> 16) % n) : 0;
}

static void *aligned(size_t bytes)
{
	void *p = NULL;

	if (posix_memalign(&p, PAGE, bytes))
		die("memory for");
	memset(p, 0, bytes);
	return p;
}

static void tell_steps(void)
{
	for (uint64_t i = now < REMEMBERED ? 0 : now - REMEMBERED + 1; i <= now; i++) {
		const struct step *s = &steps[i % REMEMBERED];

		printf("  %8llu %-12s %7u +%u\n", (unsigned long long)s->at, op_name[s->op], s->first, s->bytes);
	}
}

/* A mapping has no bytes after the end of the file.  Either the end is in the wrong place, or the
 * bytes cannot be read. */
static void bus_error(int signal)
{
	static char text[256];
	struct stat is = { .st_size = -1 };
	int n;

	(void)signal;
	fstat(file, &is);
	n = snprintf(text, sizeof(text), "fsx: operation %llu: a mapped byte cannot be read or written: %u+%u of %lld bytes, not %u\n",
		     (unsigned long long)now, steps[now % REMEMBERED].first, steps[now % REMEMBERED].bytes,
		     (long long)is.st_size, length);
	if (write(STDOUT_FILENO, text, (size_t)n) < 0)
		_exit(2);
	_exit(1);
}

static void compare(const uint8_t *is, uint32_t first, uint32_t bytes, const char *how)
{
	uint32_t i = 0, n = 0;

	if (!memcmp(is, model + first, bytes))
		return;
	while (is[i] == model[first + i])
		i++;
	for (uint32_t j = i; j < bytes; j++)
		n += is[j] != model[first + j];
	printf("fsx: %s: operation %llu: %s of %u bytes at %u: byte %u is %02x, not %02x; %u bytes differ\n", path,
	       (unsigned long long)now, how, bytes, first, first + i, is[i], model[first + i], n);
	tell_steps();
	exit(1);
}

static void open_file(int flags)
{
	file = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
	if (file < 0)
		die("opening");
	direct = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
	if (direct < 0) {
		if (errno != EINVAL)
			die("opening, past the page cache,");
		direct_refused = 1;
		direct = open(path, O_RDWR | O_CLOEXEC);
	}
}

static void close_file(void)
{
	if (close(direct) || close(file))
		die("closing");
}

static void fill(uint8_t *to, uint32_t bytes)
{
	uint64_t x = mix(data_seed + now);

	for (uint32_t i = 0; i < bytes; i += 8, x += 0x9e3779b97f4a7c15ull)
		memcpy(to + i, &x, bytes - i < 8 ? bytes - i : 8);
}

/* Returns 1 if the write was done, in the wrong way. */
static int planted_write(int fd, uint32_t first, uint32_t bytes)
{
	if (!*plant || now < plant_at || !plant_times)
		return 0;
	if (!strcmp(plant, "stale")) {
		if (pwrite(fd, model + first, bytes, first) != (ssize_t)bytes)
			die("writing");
	} else if (!strcmp(plant, "byte")) {
		buf[bytes / 2] ^= 0x10;
		if (pwrite(fd, buf, bytes, first) != (ssize_t)bytes)
			die("writing");
		buf[bytes / 2] ^= 0x10;
	} else if (!strcmp(plant, "moved")) {
		if (pwrite(fd, buf, bytes, first + SECTOR) != (ssize_t)bytes)
			die("writing");
	} else if (strcmp(plant, "lost")) {
		fprintf(stderr, "fsx: --plant: lost, stale, byte or moved, not %s\n", plant);
		exit(2);
	}
	plant_times--;
	return 1;
}

static void grown_to(uint32_t end)
{
	if (end > length)
		length = end;
}

static void do_write(int fd, uint32_t first, uint32_t bytes)
{
	ssize_t n;

	fill(buf, bytes);
	if (!planted_write(fd, first, bytes)) {
		n = pwrite(fd, buf, bytes, first);
		if (n != (ssize_t)bytes)
			die("writing");
	}
	memcpy(model + first, buf, bytes);
	grown_to(first + bytes);
}

static void do_read(int fd, uint32_t first, uint32_t bytes, const char *how)
{
	ssize_t want = first >= length ? 0 : bytes < length - first ? bytes : length - first;
	ssize_t n = pread(fd, buf, bytes, first);

	if (n < 0)
		die("reading");
	if (n != want) {
		printf("fsx: %s: operation %llu: %s of %u bytes at %u gave %zd, not %zd\n", path,
		       (unsigned long long)now, how, bytes, first, n, want);
		tell_steps();
		exit(1);
	}
	compare(buf, first, (uint32_t)n, how);
}

static void do_mapped(uint32_t first, uint32_t bytes, int write)
{
	uint32_t from = first & ~(PAGE - 1);
	uint8_t *map = mmap(NULL, first + bytes - from, PROT_READ | PROT_WRITE, MAP_SHARED, file, from);

	if (map == MAP_FAILED)
		die("mapping");
	if (write) {
		fill(buf, bytes);
		memcpy(map + (first - from), buf, bytes);
		memcpy(model + first, buf, bytes);
		if (below(2) && msync(map, first + bytes - from, MS_SYNC))
			die("msync of");
	} else {
		compare(map + (first - from), first, bytes, "mapped read");
	}
	if (munmap(map, first + bytes - from))
		die("unmapping");
}

static void do_zero(uint32_t first, uint32_t bytes)
{
	uint64_t range[2] = { first, bytes };

	if (is_device ? ioctl(file, BLKZEROOUT, range) : fallocate(file, FALLOC_FL_ZERO_RANGE, first, bytes)) {
		if (errno != EOPNOTSUPP)
			die("zeroing");
		skipped++;
		return;
	}
	memset(model + first, 0, bytes);
	grown_to(first + bytes);
}

static void do_hole(uint32_t first, uint32_t bytes)
{
	uint64_t range[2] = { first, bytes };
	int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	if (is_device ? ioctl(file, BLKDISCARD, range) : fallocate(file, mode, first, bytes)) {
		if (errno != EOPNOTSUPP)
			die("punching a hole into");
		skipped++;
		return;
	}
	if (is_device)
		do_write(direct, first, bytes);
	else if (first < length)
		memset(model + first, 0, first + bytes < length ? bytes : length - first);
}

/* A device has all of its blocks already. */
static void do_allocate(uint32_t first, uint32_t bytes)
{
	int keep = below(2);

	if (is_device || fallocate(file, keep ? FALLOC_FL_KEEP_SIZE : 0, first, bytes)) {
		if (!is_device && errno != EOPNOTSUPP)
			die("allocating");
		skipped++;
		return;
	}
	if (!keep)
		grown_to(first + bytes);
}

/* Copies the range to another one, which does not overlap it. */
static void do_copy(uint32_t first, uint32_t bytes)
{
	off_t from = first, to;
	ssize_t n;

	if (first >= length || bytes > space - bytes)
		bytes = 0;
	else if (bytes > length - first)
		bytes = length - first;
	to = below(space - bytes + 1);
	if (!bytes || is_device || (to < from + bytes && from < to + bytes)) {
		skipped++;
		return;
	}
	for (uint32_t left = bytes, at = first, where = (uint32_t)to; left; left -= (uint32_t)n) {
		n = copy_file_range(file, &from, file, &to, left, 0);
		if (n <= 0)
			die("copying in");
		memcpy(model + where, model + at, (size_t)n);
		grown_to(where + (uint32_t)n);
		at += (uint32_t)n;
		where += (uint32_t)n;
	}
}

static void do_resize(uint32_t to)
{
	if (ftruncate(file, to))
		die("truncating");
	if (to < length)
		memset(model + to, 0, length - to); /* the bytes that a longer file then has there */
	length = to;
}

static void do_reopen(void)
{
	close_file();
	open_file(0);
	if (lseek(file, 0, SEEK_END) < (off_t)length) {
		printf("fsx: %s: operation %llu: it is shorter than %u bytes\n", path, (unsigned long long)now, length);
		exit(1);
	}
}

/* Checks everything, read from below the page cache. */
static void check_all(void)
{
	if (fsync(file))
		die("fsync of");
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	for (uint32_t at = 0; at < length; at += MOST)
		do_read(direct_refused ? file : direct, at, space - at < MOST ? space - at : MOST, "full check");
}

static enum op choose(void)
{
	uint32_t sum = 0, at;
	enum op op = 0;

	for (unsigned int i = 0; i < OP_COUNT; i++)
		sum += op_weight[i];
	for (at = below(sum); at >= op_weight[op]; op++)
		at -= op_weight[op];
	return op == OP_RESIZE && is_device ? OP_ZERO : op;
}

/* Chooses a range that the operation can take: sectors past the page cache and on devices,
 * present bytes in a mapping. */
static void choose_range(enum op op, uint32_t *first, uint32_t *bytes)
{
	int sectors = op == OP_READ_DIRECT || op == OP_WRITE_DIRECT || (is_device && (op == OP_ZERO || op == OP_HOLE));
	uint32_t most = below(4) ? PAGE : MOST, end = op == OP_READ_MAPPED || op == OP_WRITE_MAPPED ? length : space;

	*first = below(end);
	*bytes = 1 + below(most);
	if (sectors) {
		*first &= ~(SECTOR - 1);
		*bytes = (*bytes + SECTOR - 1) & ~(SECTOR - 1);
	}
	if (*bytes > end - *first)
		*bytes = end - *first;
}

static void one(void)
{
	enum op op = choose();
	uint32_t first, bytes;

	choose_range(op, &first, &bytes);
	steps[now % REMEMBERED] = (struct step){ now, op, first, bytes };
	if (!bytes && op != OP_RESIZE)
		return;
	done[op]++;
	switch (op) {
	case OP_READ:
		return do_read(file, first, bytes, "read");
	case OP_READ_DIRECT:
		return do_read(direct, first, bytes, "direct read");
	case OP_READ_MAPPED:
		return do_mapped(first, bytes, 0);
	case OP_WRITE:
		return do_write(file, first, bytes);
	case OP_WRITE_DIRECT:
		return do_write(direct, first, bytes);
	case OP_WRITE_MAPPED:
		return do_mapped(first, bytes, 1);
	case OP_RESIZE:
		return do_resize(first);
	case OP_HOLE:
		return do_hole(first, bytes);
	case OP_ZERO:
		return do_zero(first, bytes);
	case OP_ALLOCATE:
		return do_allocate(first, bytes);
	case OP_COPY:
		return do_copy(first, bytes);
	case OP_FSYNC:
	case OP_FDATASYNC:
		if (op == OP_FSYNC ? fsync(file) : fdatasync(file))
			die("syncing");
		return;
	case OP_REOPEN:
		return do_reopen();
	case OP_COUNT:
		break;
	}
}

static void begin(void)
{
	open_file(is_device ? 0 : O_CREAT | O_TRUNC);
	model = aligned(space + MOST);
	buf = aligned(MOST + PAGE);
	if (!is_device)
		return;
	length = space;
	for (uint32_t at = 0; at < space; at += MOST)
		if (pread(file, model + at, space - at < MOST ? space - at : MOST, at) < 0)
			die("reading");
}

static int usage(void)
{
	fprintf(stderr, "usage: fsx [--device] [--plant lost|stale|byte|moved AT] FILE OPS SEED [BYTES]\n");
	return 2;
}

int main(int argc, char **argv)
{
	for (; argc > 1 && !strncmp(argv[1], "--", 2); argc--, argv++) {
		if (!strcmp(argv[1], "--device")) {
			is_device = 1;
		} else if (!strcmp(argv[1], "--plant") && argc > 3) {
			plant = argv[2];
			plant_at = strtoull(argv[3], NULL, 10);
			argc -= 2;
			argv += 2;
		} else {
			return usage();
		}
	}
	if (argc != 4 && argc != 5)
		return usage();
	path = argv[1];
	total = strtoull(argv[2], NULL, 10);
	random_state = mix(strtoull(argv[3], NULL, 10));
	data_seed = mix(random_state + (*plant != 0)); /* else a lost write may be what a run before left */
	if (argc == 5)
		space = (uint32_t)strtoul(argv[4], NULL, 10) & ~(MOST - 1);
	if (!space)
		return usage();
	signal(SIGBUS, bus_error);
	begin();
	for (now = 0; now < total; now++) {
		one();
		if (now % FULL_CHECK == FULL_CHECK - 1)
			check_all();
	}
	now--;
	check_all();
	close_file();
	printf("fsx: %llu operations, seed %s, %u bytes at the end:", (unsigned long long)total, argv[3], length);
	for (unsigned int i = 0; i < OP_COUNT; i++)
		printf(" %llu %s%s", (unsigned long long)done[i], op_name[i], i + 1 < OP_COUNT ? "," : "");
	printf("; %llu not supported%s\n", (unsigned long long)skipped, direct_refused ? "; O_DIRECT refused" : "");
	return 0;
}
