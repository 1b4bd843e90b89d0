// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * requests.c - single requests of every shape to a device, one after the other, and a
 * copy in memory of what it has to hold.
 *
 *	requests DEVICE FILE PHASE...	FILE keeps the copy from one call to the next
 *
 * Phases:
 *	fill	8 blocks of each 64, by single writes of a block
 *	shapes	writes from each sector of a block, of 1 to 17 sectors, in one piece of
 *		memory and in several
 *	large	writes of 64 KiB to 1 MiB, in up to 40 pieces
 *	zeroes	zeroings of a sector to 300 KiB, from each sector of a block
 *	discards	the same; each sector reads as before or as zeroes
 *	nowait	writes and reads that may not wait
 *	late	writes that are begun together, and may be held back; each ends, in full, and
 *		they do not end in reverse
 *	whole	28 MiB, by writes of 2 MiB whose memory is one piece, a huge page
 *	wholly	these, read at their places; the copy has which version
 *	read	all, by reads of each shape, against the copy
 * Prints for each phase how many requests it made, and of how many sectors.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512u
#define BYTES (4u << 20)
#define SECTORS (BYTES / SECTOR)
#define PIECES 40u
#define WHOLE (2u << 20)
#define WHOLES 14u

static int device;
static uint8_t *copy, *memory;
static uint64_t random_state = 1, requests, sectors;

static void die(const char *what, uint32_t first, uint32_t n)
{
	printf("requests: %s, sectors %u to %u: %s\n", what, first, first + n, strerror(errno));
	exit(1);
}

static uint64_t random_number(void)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static void counted(uint32_t n)
{
	requests++;
	sectors += n;
}

/* Puts the memory of a request in that many pieces, each apart from the next, in pages of their own
 * and not at their start.
 */
static void in_pieces(struct iovec *v, uint32_t npieces, uint32_t n)
{
	uint8_t *at = memory;

	for (uint32_t i = 0; i < npieces; i++) {
		uint32_t share = n / npieces + (i < n % npieces);

		at += SECTOR * (1 + i % 7);
		v[i] = (struct iovec){ at, (size_t)share * SECTOR };
		at += (size_t)share * SECTOR + SECTOR;
	}
}

static void write_new(uint32_t first, uint32_t n, uint32_t npieces, int flags)
{
	struct iovec v[PIECES];
	uint32_t sector = first;

	in_pieces(v, npieces, n);
	for (uint32_t i = 0; i < npieces; i++)
		for (uint64_t *w = v[i].iov_base, *end = w + v[i].iov_len / 8; w < end; w++)
			*w = random_number();
	if (pwritev2(device, v, (int)npieces, (off_t)first * SECTOR, flags) != (ssize_t)n * SECTOR)
		die("writing", first, n);
	for (uint32_t i = 0; i < npieces; sector += v[i++].iov_len / SECTOR)
		memcpy(copy + sector * SECTOR, v[i].iov_base, v[i].iov_len);
	counted(n);
}

static void read_same(uint32_t first, uint32_t n, uint32_t npieces, int flags)
{
	struct iovec v[PIECES];
	uint32_t sector = first;

	in_pieces(v, npieces, n);
	for (uint32_t i = 0; i < npieces; i++)
		memset(v[i].iov_base, 0xa5, v[i].iov_len);
	if (preadv2(device, v, (int)npieces, (off_t)first * SECTOR, flags) != (ssize_t)n * SECTOR)
		die("reading", first, n);
	for (uint32_t i = 0; i < npieces; sector += v[i++].iov_len / SECTOR)
		if (memcmp(copy + sector * SECTOR, v[i].iov_base, v[i].iov_len)) {
			errno = EILSEQ;
			die("other data", first, n);
		}
	counted(n);
}

static void range(unsigned long request, uint32_t first, uint32_t n)
{
	uint64_t r[2] = { (uint64_t)first * SECTOR, (uint64_t)n * SECTOR };

	if (ioctl(device, request, r))
		die("a range", first, n);
	counted(n);
}

static void phase_fill(void)
{
	for (uint32_t i = 0; i < SECTORS / 8; i += 64)
		for (uint32_t b = i; b < i + 8; b++)
			write_new(b * 8, 8, 1, 0);
}

static void phase_shapes(void)
{
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t n = 1; n <= 17; n++) {
			uint32_t at = (from * 17 + n) * 56 + from;

			write_new(at, n, 1, 0);
			if (n > 2)
				write_new(at + 24, n, n % 5 + 2 < n ? n % 5 + 2 : n, 0);
		}
}

static void phase_large(void)
{
	static const uint32_t most[] = { 127, 128, 129, 256, 1000, 2048 };

	for (uint32_t i = 0; i < 12; i++) {
		uint32_t n = most[i % 6];

		write_new((uint32_t)(random_number() % (SECTORS - n)), n, i < 6 ? 1 : PIECES, 0);
	}
}

static void phase_zeroes(void)
{
	static const uint32_t many[] = { 1, 3, 8, 9, 16, 25, 128, 129, 600 };

	for (uint32_t i = 0; i < 36; i++) {
		uint32_t n = many[i % 9], first = (i * 199 + i % 8) % (SECTORS - n);

		range(BLKZEROOUT, first, n);
		memset(copy + first * SECTOR, 0, (size_t)n * SECTOR);
	}
}

static void phase_discards(void)
{
	static const uint32_t many[] = { 4, 8, 9, 16, 24, 128, 136, 600 };
	static uint8_t zeroes[SECTOR];

	for (uint32_t i = 0; i < 32; i++) {
		uint32_t n = many[i % 8], first = (i * 211 + (i % 3 ? 0 : i % 8)) % (SECTORS - n);

		range(BLKDISCARD, first, n);
		if (pread(device, memory, n * SECTOR, (off_t)first * SECTOR) != (ssize_t)n * SECTOR)
			die("reading", first, n);
		for (uint32_t i = 0; i < n; i++)
			if (!memcmp(memory + i * SECTOR, zeroes, SECTOR))
				memset(copy + (first + i) * SECTOR, 0, SECTOR);
	}
}

static void phase_nowait(void)
{
	for (uint32_t i = 0; i < 24; i++) {
		write_new(i * 40 + i % 8, 8, 1, RWF_NOWAIT);
		read_same(i * 40 + i % 8, 8, 1, RWF_NOWAIT);
	}
}

/* Returns the longest of those that ended later though they were begun earlier. */
static uint32_t longest_in_reverse(const struct io_event *ended, uint32_t n)
{
	uint32_t most = 0, length[64];

	for (uint32_t i = 0; i < n; i++) {
		length[i] = 1;
		for (uint32_t j = 0; j < i; j++)
			if (ended[j].data > ended[i].data && length[j] >= length[i])
				length[i] = length[j] + 1;
		most = length[i] > most ? length[i] : most;
	}
	return most;
}

/* These writes are outside the range of the other phases, and not in the copy.  Requests that are
 * held back end in their order, and so do the others.  Two in reverse are one of each.  A third had
 * to wait for a slot.
 */
static void phase_late(void)
{
	enum { N = 16, BIG = 64u << 10 };
	static struct iocb all[N], *list[N];
	struct io_event ended[N];
	aio_context_t context = 0;

	if (syscall(SYS_io_setup, N, &context))
		die("io_setup", 0, 0);
	for (uint64_t i = 0; i < N; i++) {
		all[i] = (struct iocb){ .aio_data = i, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)device,
					.aio_buf = (uintptr_t)memory, .aio_nbytes = BIG, .aio_offset = (int64_t)((24u << 20) + i * BIG) };
		list[i] = &all[i];
	}
	if (syscall(SYS_io_submit, context, (long)N, list) != N ||
	    syscall(SYS_io_getevents, context, (long)N, (long)N, ended, NULL) != N)
		die("writing", 0, N * BIG / SECTOR);
	for (uint64_t i = 0; i < N; i++) {
		if (ended[i].res != BIG) {
			printf("requests: write %llu ended with %lld\n", (unsigned long long)ended[i].data,
			       (long long)ended[i].res);
			exit(1);
		}
		counted(BIG / SECTOR);
	}
	if (longest_in_reverse(ended, N) > 4) {
		printf("requests: writes ended in reverse:");
		for (uint64_t i = 0; i < N; i++)
			printf(" %llu", (unsigned long long)ended[i].data);
		printf("\n");
		exit(1);
	}
	syscall(SYS_io_destroy, context);
}

/* Writes the first bytes of the version of that sector. */
static void number(uint8_t *at, uint64_t version, uint64_t sector)
{
	uint64_t words[] = { version, sector };

	memcpy(at, words, sizeof(words));
	memset(at + sizeof(words), (int)(version + sector), SECTOR - sizeof(words));
}

/* Each request has a size that the kernel takes as one bio with one piece of memory. */
static void each_whole(bool writes)
{
	uint64_t *version = (uint64_t *)copy;
	uint8_t wanted[SECTOR];
	uint8_t *page = mmap(NULL, WHOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (page == MAP_FAILED)
		die("a huge page", 0, 0);
	*version += writes;
	for (uint32_t at = 0; at < WHOLES * WHOLE; at += WHOLE) {
		for (uint32_t i = 0; writes && i < WHOLE; i += SECTOR)
			number(page + i, *version, (at + i) / SECTOR);
		if ((writes ? pwrite(device, page, WHOLE, at) : pread(device, page, WHOLE, at)) != WHOLE)
			die(writes ? "writing" : "reading", at / SECTOR, WHOLE / SECTOR);
		for (uint32_t i = 0; !writes && i < WHOLE; i += SECTOR) {
			number(wanted, *version, (at + i) / SECTOR);
			errno = EILSEQ;
			if (memcmp(wanted, page + i, SECTOR))
				die("other data", (at + i) / SECTOR, 1);
		}
		counted(WHOLE / SECTOR);
	}
	munmap(page, WHOLE);
}

static void phase_whole(void)
{
	each_whole(true);
}

static void phase_wholly(void)
{
	each_whole(false);
}

static void phase_read(void)
{
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t n = 1; n <= 17; n++)
			read_same((from * 17 + n) * 56 + from, n, n % 4 < 2 ? 1 : 2, 0);
	for (uint32_t at = 0; at < SECTORS; at += 512)
		read_same(at, 512, at % 1024 ? 1 : 7, 0);
	for (uint32_t at = 4; at + 2048 < SECTORS; at += 2048)
		read_same(at, 2048, PIECES, 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} phases[] = {
		{ "fill", phase_fill }, { "shapes", phase_shapes }, { "large", phase_large },
		{ "zeroes", phase_zeroes }, { "discards", phase_discards }, { "nowait", phase_nowait },
		{ "late", phase_late }, { "whole", phase_whole }, { "wholly", phase_wholly }, { "read", phase_read },
	};
	int file;

	if (argc < 4)
		return 2;
	device = open(argv[1], O_RDWR | O_DIRECT);
	file = open(argv[2], O_RDWR | O_CREAT, 0600);
	if (device < 0 || file < 0 || posix_memalign((void **)&memory, 4096, BYTES) || posix_memalign((void **)&copy, 4096, BYTES))
		die("opening", 0, 0);
	memset(copy, 0, BYTES);
	if (pread(file, copy, BYTES, 0) == BYTES)
		random_state = *(uint64_t *)(copy + 8) | 1;
	for (int i = 3; i < argc; i++) {
		size_t p = 0;

		while (p < sizeof(phases) / sizeof(phases[0]) && strcmp(phases[p].name, argv[i]))
			p++;
		if (p == sizeof(phases) / sizeof(phases[0]))
			return 2;
		requests = sectors = 0;
		phases[p].run();
		printf("%s %llu %llu\n", argv[i], (unsigned long long)requests, (unsigned long long)sectors);
	}
	return pwrite(file, copy, BYTES, 0) == BYTES ? 0 : 1;
}
