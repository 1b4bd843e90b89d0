// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * nbdload.c - load on an export whose every promise is known after a power cut.
 *
 *	nbdload load SOCKET EXPORT LOG SECONDS SEED [past|losing]
 *	nbdload verify SOCKET EXPORT LOG
 *	nbdload verify-file FILE LOG
 *
 * Each sector holds its number, a generation and a pattern made from both, or zeroes: these are
 * every eighth generation.  Each thread has a connection and sectors of its own, and one request in
 * flight.  The request is a write of 1 to 128 sectors, one in eight with FUA, now and then zeroes,
 * up to 256 sectors, or a flush, or a read.  A read must give what was acknowledged.  LOG is
 * mapped, so it outlives the client and the server.
 *
 * A cut must keep what LOG calls kept: each acknowledged write.  With `past`, for servers that
 * write past the cache, it must keep zeroes, and writes that were acknowledged with FUA or before
 * the begin of a flush that succeeded.  After a flush that failed, writes acknowledged before its
 * end may be lost, and no later flush vouches for them.  `losing` is `past` on a disk that loses
 * writes when a flush fails.
 *
 * A request that is not answered within LIMIT_S fails the load, because everything must end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "nbd_client.h"

#define THREADS 8u
#define PART 4096u /* sectors of a thread */
#define TOTAL (THREADS * PART)
#define MOST 128u
#define ZERO_MOST 256u
#define ZERO_EACH 8u /* generations that are divided by it are zeroes */

struct sector {
	_Atomic uint32_t issued, acked, kept;
	_Atomic uint32_t doubted; /* acknowledged, and a flush said that it may be lost */
};
static struct sector *sectors;
static bool past, losing;
static time_t until;
static uint64_t seed;
static atomic_uint flush_failures;
static atomic_ulong writes, flushes, failed;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static void fill(uint64_t *words, uint32_t sector, uint32_t gen)
{
	uint64_t x = (uint64_t)sector << 32 | gen;

	words[0] = x;
	for (unsigned int i = 1; i < SECTOR / 8; i++)
		words[i] = x = mix(x);
}

/* Whether the sector holds a whole generation from low to high.  Returns it in *gen; for zeroes
 * that is the highest possible one. */
static bool holds(const uint64_t *words, uint32_t sector, uint32_t low, uint32_t high, uint32_t *gen)
{
	static const uint64_t zero[SECTOR / 8];
	uint64_t want[SECTOR / 8];

	*gen = (uint32_t)words[0];
	if (memcmp(words, zero, SECTOR) == 0) {
		*gen = high / ZERO_EACH * ZERO_EACH;
		return *gen >= low;
	}
	fill(want, sector, *gen);
	return memcmp(words, want, SECTOR) == 0 && *gen >= low && *gen <= high;
}

static void say_bad(FILE *to, const char *what, uint32_t sector, uint32_t gen)
{
	const struct sector *s = &sectors[sector];

	fprintf(to, "%s: sector %u: generation %u; kept %u, acknowledged %u, issued %u\n", what, sector, gen,
		s->kept, s->acked, s->issued);
}

/* --- load -------------------------------------------------------------------- */

static void issue(uint32_t sector, bool zero)
{
	uint32_t gen = sectors[sector].issued;

	if (zero)
		gen += ZERO_EACH - gen % ZERO_EACH;
	else
		gen += (gen + 1) % ZERO_EACH ? 1 : 2;
	sectors[sector].issued = gen;
}

/* Does a write, or writes zeroes if buf is NULL. */
static int do_write(int fd, uint64_t *buf, uint32_t first, uint32_t n, bool fua)
{
	uint32_t before = flush_failures;
	int error;

	for (uint32_t i = 0; i < n; i++) {
		issue(first + i, !buf);
		if (buf)
			fill(buf + i * SECTOR / 8, first + i, sectors[first + i].issued);
	}
	error = request(fd, buf ? NBD_WRITE : NBD_WRITE_ZEROES, fua ? NBD_FUA : 0, first, n, buf);
	if (error)
		return error;
	for (uint32_t i = 0; i < n; i++) {
		struct sector *s = &sectors[first + i];

		/* The order of these stores lets do_flush see it as doubted rather than not. */
		if (before != flush_failures)
			s->doubted = 1;
		s->acked = s->issued;
		s->doubted = before != flush_failures;
		if (fua || !past || !buf)
			s->kept = s->issued;
	}
	writes++;
	return 0;
}

/* The number is odd while the thread's flush is on its way, and until everything that it doubts is
 * marked. */
static _Atomic uint32_t flushing[THREADS];

/* Waits until each flush of another thread that is on its way now has its result. */
static void others_end(uint32_t self)
{
	for (uint32_t i = 0; i < THREADS; i++)
		for (uint32_t now = flushing[i]; i != self && now % 2 && flushing[i] == now;)
			usleep(100);
}

/*
 * Two flushes may overlap.  The one that fails may have been first and have reported the loss.
 * Then the success of the other one does not vouch for the lost data.
 */
static int do_flush(int fd, uint32_t self)
{
	uint32_t *acked = malloc(TOTAL * sizeof(*acked)), before = flush_failures;
	int error;

	flushing[self]++;
	for (uint32_t i = 0; i < TOTAL; i++) {
		acked[i] = sectors[i].acked;
		if (sectors[i].doubted)
			acked[i] = 0;
	}
	error = request(fd, NBD_FLUSH, 0, 0, 0, NULL);
	if (error > 0) { /* counted twice: who begins in between has not seen all marks */
		flush_failures++;
		for (uint32_t i = 0; i < TOTAL; i++)
			if (sectors[i].acked > sectors[i].kept)
				sectors[i].doubted = 1;
		flush_failures++;
	}
	flushing[self]++;
	if (!error)
		others_end(self);
	for (uint32_t i = 0; i < TOTAL && !error && flush_failures == before; i++) {
		uint32_t kept = sectors[i].kept;

		while (acked[i] > kept && !atomic_compare_exchange_weak(&sectors[i].kept, &kept, acked[i]))
			;
	}
	free(acked);
	flushes += !error;
	return error;
}

static int do_read(int fd, uint64_t *buf, uint32_t first, uint32_t n)
{
	int error = request(fd, NBD_READ, 0, first, n, buf);

	for (uint32_t i = 0; i < n && !error; i++) {
		const struct sector *s = &sectors[first + i];
		uint32_t gen;

		/* A disk that loses unflushed data may show the loss before it reports an error. */
		if (!holds(buf + i * SECTOR / 8, first + i, losing ? s->kept : s->acked, s->issued, &gen)) {
			say_bad(stderr, "read", first + i, gen);
			exit(4);
		}
	}
	return error;
}

static void *worker(void *arg)
{
	uint32_t self = (uint32_t)(uintptr_t)arg;
	uint64_t *buf = malloc(MOST * SECTOR), random = mix(seed + self);
	int fd = connect_export(false), error = 0;

	while (time(NULL) < until && error != NO_ANSWER) {
		uint32_t n, first;

		random = mix(random);
		n = random % 3 == 0 ? 1 + (uint32_t)(random >> 8) % MOST : random % 3 == 1 ? 8 : 1;
		first = (uint32_t)(random >> 32) % (PART - n);
		if (random % 3 == 1)
			first &= ~7u;
		first += self * PART;
		switch (random >> 16 & 31) {
		case 0:
			error = do_flush(fd, self);
			break;
		case 1:
			error = do_read(fd, buf, first, n);
			break;
		case 2:
			n = 1 + (uint32_t)(random >> 24) % ZERO_MOST;
			error = do_write(fd, NULL, self * PART + (first - self * PART) % (PART - n), n, false);
			break;
		default:
			error = do_write(fd, buf, first, n, (random >> 20 & 7) == 0);
		}
		failed += error > 0;
		usleep(error > 0 ? 20000 : 0);
	}
	request(fd, NBD_DISC, 0, 0, 0, NULL);
	close(fd);
	free(buf);
	return (void *)(uintptr_t)(error == NO_ANSWER);
}

static int load(void)
{
	pthread_t thread[THREADS];
	bool gone = false;

	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, worker, (void *)i))
			die("thread");
	for (unsigned int i = 0; i < THREADS; i++) {
		void *result;

		pthread_join(thread[i], &result);
		gone |= result != NULL;
	}
	printf("nbdload: %lu writes, %lu flushes, %lu failed%s\n", writes, flushes, failed,
	       gone ? ", the server is gone" : "");
	return 0;
}

/* --- verify ------------------------------------------------------------------ */

static int verify(int fd, bool file)
{
	uint64_t *buf = malloc(MOST * SECTOR);
	uint32_t bad = 0, written = 0, older = 0;

	for (uint32_t first = 0; first < TOTAL; first += MOST) {
		if (file ? pread(fd, buf, MOST * SECTOR, (off_t)first * SECTOR) != (ssize_t)(MOST * SECTOR) :
			   request(fd, NBD_READ, 0, first, MOST, buf) != 0)
			die("reading");
		for (uint32_t i = 0; i < MOST; i++) {
			struct sector *s = &sectors[first + i];
			uint32_t gen;

			written += s->acked > 0;
			if (!holds(buf + i * SECTOR / 8, first + i, s->kept, s->issued, &gen)) {
				if (bad++ < 10)
					say_bad(stdout, "verify", first + i, gen);
				continue;
			}
			older += gen < s->acked;
			/* The power is back, so the data that is there is on the media or the
			 * origin. */
			s->issued = s->acked = s->kept = gen;
			s->doubted = 0;
		}
	}
	printf("nbdload: %u sectors acknowledged, %u lost as they may, %u bad\n", written, older, bad);
	return bad != 0;
}

static void map_log(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, TOTAL * sizeof(*sectors)))
		die(path);
	sectors = mmap(NULL, TOTAL * sizeof(*sectors), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sectors == MAP_FAILED)
		die(path);
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "verify-file") == 0) {
		int fd = open(argv[2], O_RDONLY);

		if (fd < 0)
			die(argv[2]);
		map_log(argv[3]);
		return verify(fd, true);
	}
	if (argc < 5)
		return 2;
	socket_path = argv[2];
	export_name = argv[3];
	map_log(argv[4]);
	if (strcmp(argv[1], "verify") == 0)
		return verify(connect_export(false), false);
	if (argc < 7)
		return 2;
	until = time(NULL) + atol(argv[5]);
	seed = strtoull(argv[6], NULL, 10);
	losing = argc > 7 && strcmp(argv[7], "losing") == 0;
	past = losing || (argc > 7 && strcmp(argv[7], "past") == 0);
	return load();
}
