// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * hostile.c - the bases, and what is done with each mutated pool.  See hostile.h.
 *
 *	hostile SMALL LARGE DISK FOREBAY COUNT SEED
 *
 * Pools of 64 KiB chunks lie on the media SMALL, some of 2 MiB on LARGE; FOREBAY
 * is the command, which makes them.  From SEED on, until COUNT pools were
 * attached; those that are refused come on top.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hostile.h"
#include "hostile_host.h"

#define PIECE (256u << 10)
#define MARKS 8u
#define PATIENCE_S 120

static struct image base[BASES_MAX], work;
static u32 nbases;
static u8 *buffer; /* PIECE bytes, aligned */
static struct {
	u64 pools, used, attached[2], by_mapper, refused_all, reopened, reads_failed, writes, writes_failed, full, drains,
		drains_failed;
	u64 slowest_ms;
	u64 ms[5]; /* for media, attach, use, detach, judging */
} count;

/* --- the media ------------------------------------------------------------------------- */

/* Adds the time since began to a phase. */
static u64 phase(u32 which, u64 began)
{
	u64 now = host_ms();

	count.ms[which] += now - began;
	return now;
}

static void media_io(struct image *m, bool store)
{
	int fd = open(m->media, (store ? O_RDWR : O_RDONLY) | O_DIRECT);

	if (fd < 0)
		die("%s: %s", m->media, strerror(errno));
	for (u64 at = 0; at < m->size;) {
		u64 n = m->size - at < 4u << 20 ? m->size - at : 4u << 20;
		ssize_t got = store ? pwrite(fd, m->bytes + at, n, at) : pread(fd, m->bytes + at, n, at);

		if (got <= 0)
			die("%s at %llu: %s", m->media, (unsigned long long)at, strerror(errno));
		at += (u64)got;
	}
	close(fd);
}

static void image_init(struct image *m, const char *media)
{
	int fd = open(media, O_RDONLY);

	m->media = media;
	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &m->size) || m->size > MEDIA_MAX)
		die("%s: not a device of at most %u MiB", media, MEDIA_MAX >> 20);
	close(fd);
	m->bytes = aligned_alloc(FBY_PAGE, m->size);
	if (!m->bytes)
		die("no memory for an image of %llu bytes", (unsigned long long)m->size);
}

/* --- bases ------------------------------------------------------------------------------- */

static void keep(const char *text)
{
	struct image *m = &base[nbases++];

	if (nbases > BASES_MAX)
		die("too many bases");
	image_init(m, host.media);
	media_io(m, false);
	snprintf(m->text, sizeof(m->text), "base %s", text);
	host_log_check(m->text);
}

static void fill(struct device *d, struct rng *r, u32 writes)
{
	for (u32 i = 0; i < writes; i++) {
		u32 n = 512u * (1 + (u32)rng_below(r, rng_one_in(r, 8) ? 256 : 24));
		u64 at = rng_below(r, (WINDOW - n) / 512) * 512;
		u64 range[2] = { at & ~4095ull, FBY_PAGE * (1 + rng_below(r, 8)) };

		if (rng_one_in(r, 16))
			ioctl(d->fd, rng_one_in(r, 2) ? BLKDISCARD : BLKZEROOUT, range);
		memset(buffer, (int)i, n);
		if (pwrite(d->fd, buffer, n, at) != (ssize_t)n)
			die("making a base: write: %s", strerror(errno));
	}
}

#define STILL "writeback_jobs 2 idle 0 max_age 0 high_watermark 99 low_watermark 98"

static void start(struct device d[2], const char *options, u32 writes, struct rng *r)
{
	char text[200];

	snprintf(text, sizeof(text), "create %s", options);
	for (u32 v = 0; v < 2; v++) {
		if (!device_attach(&d[v], v, false, text) || !device_open(&d[v]))
			die("making a base: attach %s: %s", volume_name[v], d[v].answer);
		fill(&d[v], r, writes);
	}
}

static void stop(struct device d[2])
{
	for (u32 v = 0; v < 2; v++)
		if (!device_detach(&d[v]))
			die("making a base: detach: %s", d[v].answer);
}

static void drain_all(struct device d[2])
{
	for (u32 v = 0; v < 2; v++)
		if (!device_command(&d[v], "flush"))
			die("making a base: drain: %s", d[v].answer);
}

/* Snapshots of a pool in use are what a power cut leaves. */
static void make_bases(const char *media, const char *chunk, struct rng *r)
{
	struct device d[2];
	char text[100];

	host.media = media;
	host_run("%s create --force --chunk-size %s --volumes 4 %s >/dev/null", host.forebay, chunk, host.media);
	snprintf(text, sizeof(text), "%s formatted", chunk);
	keep(text);
	start(d, STILL, 60, r);
	snprintf(text, sizeof(text), "%s in use", chunk);
	keep(text);
	stop(d);
	snprintf(text, sizeof(text), "%s closed", chunk);
	keep(text);
	start(d, STILL, 20, r);
	drain_all(d);
	fill(&d[0], r, 20);
	snprintf(text, sizeof(text), "%s drained, in use again", chunk);
	keep(text);
	stop(d);
	host_run("%s create --force --chunk-size %s --volumes 4 %s >/dev/null", host.forebay, chunk, host.media);
	start(d, "checksums off " STILL, 100, r);
	snprintf(text, sizeof(text), "%s without checksums, in use", chunk);
	keep(text);
	stop(d);
}

/* --- one pool ------------------------------------------------------------------------------ */

struct mark {
	u64 at;
	u64 stamp;
	bool written;
};

static void stamp_block(u64 stamp)
{
	for (u32 i = 0; i < FBY_PAGE / 8; i++)
		((u64 *)buffer)[i] = stamp ^ (u64)i << 32;
}

static bool block_stamped(u64 stamp)
{
	for (u32 i = 0; i < FBY_PAGE / 8; i++)
		if (((u64 *)buffer)[i] != (stamp ^ (u64)i << 32))
			return false;
	return true;
}

static void read_all(struct device *d)
{
	for (u64 at = 0; at < d->bytes; at += PIECE) {
		u64 n = d->bytes - at < PIECE ? d->bytes - at : PIECE;

		if (pread(d->fd, buffer, n, (off_t)at) == (ssize_t)n)
			continue;
		for (u64 i = at; i < at + n; i += FBY_PAGE)
			if (pread(d->fd, buffer, FBY_PAGE, (off_t)i) != FBY_PAGE)
				count.reads_failed++;
	}
}

static void write_some(struct device *d, struct rng *r)
{
	for (u32 i = 0; i < 24; i++) {
		u64 blocks = d->bytes / d->block;
		u64 n = 1 + rng_below(r, rng_one_in(r, 4) ? 256 : 20), range[2];
		u64 at;

		n = n * d->block > PIECE ? PIECE / d->block : n;
		n = n > blocks ? blocks : n;
		at = rng_below(r, blocks - n + 1);
		range[0] = at * d->block;
		range[1] = n * d->block;
		if (rng_one_in(r, 8)) {
			ioctl(d->fd, rng_one_in(r, 2) ? BLKDISCARD : BLKZEROOUT, range);
			continue;
		}
		memset(buffer, (int)(0x80 | i), range[1]);
		count.writes++;
		if (pwrite(d->fd, buffer, range[1], (off_t)range[0]) != (ssize_t)range[1])
			count.writes_failed++;
	}
}

static void write_marks(struct device *d, struct mark *m, struct rng *r)
{
	for (u32 i = 0; i < MARKS; i++) {
		m[i].at = rng_below(r, d->bytes / FBY_PAGE / MARKS) * MARKS * FBY_PAGE + i * FBY_PAGE;
		m[i].stamp = rng_next(r);
		stamp_block(m[i].stamp);
		m[i].written = pwrite(d->fd, buffer, FBY_PAGE, (off_t)m[i].at) == FBY_PAGE;
	}
}

static void read_marks(struct device *d, const struct mark *m, const char *when)
{
	for (u32 i = 0; i < MARKS; i++) {
		if (!m[i].written)
			continue;
		if (pread(d->fd, buffer, FBY_PAGE, (off_t)m[i].at) != FBY_PAGE)
			finding("%s: block %llu of %s, written and acknowledged, cannot be read: %s", when,
				(unsigned long long)(m[i].at / FBY_PAGE), d->name, strerror(errno));
		if (!block_stamped(m[i].stamp))
			finding("%s: block %llu of %s, written and acknowledged, reads otherwise", when,
				(unsigned long long)(m[i].at / FBY_PAGE), d->name);
	}
}

/* Chunks may be held by volumes that nobody attached, and writers would wait for them. */
static bool has_room(struct device *d)
{
	return device_counter(d, "chunks_free") >= 4 || device_counter(d, "chunks_free") * 4 >= device_counter(d, "chunks");
}

static void drain(struct device *d)
{
	count.drains++;
	if (!device_command(d, "flush"))
		count.drains_failed++;
}

static void use(struct device *d, struct mark *m, struct rng *r)
{
	memset(m, 0, MARKS * sizeof(*m));
	if (!device_open(d))
		finding("%s is attached but cannot be opened: %s", d->name, strerror(errno));
	if (d->bytes > WINDOW)
		finding("%s has %llu bytes, more than its origin", d->name, (unsigned long long)d->bytes);
	read_all(d);
	if (rng_one_in(r, 2) || !has_room(d))
		drain(d);
	if (has_room(d)) {
		write_some(d, r);
		if (d->bytes >= 2 * MARKS * FBY_PAGE && has_room(d))
			write_marks(d, m, r);
		read_marks(d, m, "after the write");
	} else {
		count.full++;
	}
	if (rng_one_in(r, 2)) {
		drain(d);
		read_marks(d, m, "after the drain");
	}
	if (rng_one_in(r, 4))
		read_all(d);
}

static const char *const holes[] = { "", "holes isolate", "holes accept" };

/* Attaches with more and more consent to losses. */
static bool attach(struct device *d, u32 volume, bool mapper, const char *options)
{
	char text[300];

	for (u32 i = 0; i < COUNT(holes); i++) {
		u64 began = host_ms();
		bool ok;

		snprintf(text, sizeof(text), "%s %s", options, holes[i]);
		ok = device_attach(d, volume, mapper, text);
		if (host_ms() - began > count.slowest_ms)
			count.slowest_ms = host_ms() - began;
		if (ok)
			return true;
	}
	return false;
}

/* A pool that was only formatted has no volumes yet. */
static void some_options(char *text, size_t bytes, const struct image *from, struct rng *r)
{
	static const char *const verify[] = { "always", "first", "never" };
	u32 high = 1 + (u32)rng_below(r, 99);

	snprintf(text, bytes, "verify %s checksums %s high_watermark %u low_watermark %u idle %u slots %u writeback_jobs %u%s%s",
		 verify[rng_below(r, 3)], rng_one_in(r, 4) ? "off" : "on", high, (u32)rng_below(r, high),
		 rng_one_in(r, 2) ? 5u : 0u, 1 + (u32)rng_below(r, 4), 1 + (u32)rng_below(r, 3),
		 from == &base[0] || from == &base[nbases / 2] || rng_one_in(r, 4) ? " create" : "",
		 rng_one_in(r, 6) ? " cleaner" : "");
}

static void use_pool(const struct image *from, struct rng *r)
{
	struct mark mark[2][MARKS];
	struct device d[2] = { 0 };
	bool on[2], mapper = rng_one_in(r, 12);
	u32 which = rng_one_in(r, 3) ? 3 : 1u << rng_below(r, 2); /* volumes */
	char options[200];
	u64 began;

	some_options(options, sizeof(options), from, r);
	image_note(&work, "; %s%s", mapper ? "mapper " : "", options);
	began = host_ms();
	for (u32 v = 0; v < 2; v++) {
		on[v] = (which >> v & 1) && attach(&d[v], v, mapper, options);
		count.attached[v] += on[v];
	}
	began = phase(1, began);
	count.by_mapper += mapper && (on[0] || on[1]);
	if (!on[0] && !on[1]) {
		count.refused_all++;
		host_count_refusal(d[which == 2].answer);
		return;
	}
	count.used++;
	for (u32 v = 0; v < 2; v++)
		if (on[v])
			use(&d[v], mark[v], r);
	began = phase(2, began);
	for (u32 v = 0; v < 2; v++)
		if (on[v] && !device_detach(&d[v]))
			finding("%s cannot be detached: %s", d[v].name, d[v].answer);
	began = phase(3, began);
	if (!rng_one_in(r, 3))
		return;
	/* The library must open the pool that the module left. */
	for (u32 v = 0; v < 2; v++) {
		if (!on[v])
			continue;
		if (!attach(&d[v], v, mapper, STILL))
			finding("volume %s was attached, and is not again: %s", volume_name[v], d[v].answer);
		if (!device_open(&d[v]))
			finding("%s is attached but cannot be opened: %s", d[v].name, strerror(errno));
		read_marks(&d[v], mark[v], "after it was attached again");
		count.reopened++;
	}
	began = phase(1, began);
	for (u32 v = 0; v < 2; v++)
		if (on[v] && !device_detach(&d[v]))
			finding("%s cannot be detached: %s", d[v].name, d[v].answer);
	phase(3, began);
}

static void one_pool(u64 seed)
{
	struct rng r = { seed };
	/* Large media come first, and seldom. */
	const struct image *from = &base[rng_one_in(&r, 8) ? rng_below(&r, nbases) : nbases / 2 + rng_below(&r, nbases / 2)];
	u32 changes = rng_one_in(&r, 8) ? 40 : 1 + (u32)rng_below(&r, 5);
	u64 began = host_ms();

	host_begin(seed, work.text, PATIENCE_S);
	host.media = work.media = from->media;
	work.size = from->size;
	memcpy(work.bytes, from->bytes, work.size);
	snprintf(work.text, sizeof(work.text), "%s", from->text);
	for (u32 i = 0; i < changes; i++)
		mutate(&work, &base[rng_below(&r, nbases)], &r);
	media_io(&work, true);
	phase(0, began);
	use_pool(from, &r);
	began = host_ms();
	host_guards_check();
	host_log_check(work.text);
	phase(4, began);
	count.pools++;
}

static void summary(u64 seed)
{
	printf("hostile: %llu pools from seed %llu: %llu attached, %llu refused; %llu + %llu volumes, %llu times by the mapper\n",
	       (unsigned long long)count.pools, (unsigned long long)seed, (unsigned long long)count.used,
	       (unsigned long long)count.refused_all, (unsigned long long)count.attached[0], (unsigned long long)count.attached[1],
	       (unsigned long long)count.by_mapper);
	printf("hostile: %llu attached again; %llu blocks answered EIO; %llu writes, %llu failed; %llu drains, %llu failed\n",
	       (unsigned long long)count.reopened, (unsigned long long)count.reads_failed,
	       (unsigned long long)count.writes, (unsigned long long)count.writes_failed,
	       (unsigned long long)count.drains, (unsigned long long)count.drains_failed);
	printf("hostile: %llu too full to write; slowest attach %llu ms; memory %+lld KiB since pool 100\n",
	       (unsigned long long)count.full, (unsigned long long)count.slowest_ms, (long long)host_memory_grown());
	printf("hostile: seconds: media %llu, attach %llu, use %llu, detach %llu, judge %llu\n",
	       (unsigned long long)count.ms[0] / 1000, (unsigned long long)count.ms[1] / 1000,
	       (unsigned long long)count.ms[2] / 1000, (unsigned long long)count.ms[3] / 1000,
	       (unsigned long long)count.ms[4] / 1000);
	host_print_refusals();
}

int main(int argc, char **argv)
{
	u64 pools, seed, began;
	struct rng r = { 1 };

	if (argc != 7) {
		fprintf(stderr, "usage: hostile SMALL LARGE DISK FOREBAY COUNT SEED\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	host.disk = argv[3];
	host.forebay = argv[4];
	pools = strtoull(argv[5], NULL, 0);
	seed = strtoull(argv[6], NULL, 0);
	buffer = aligned_alloc(FBY_PAGE, PIECE);
	host_init();
	image_init(&work, argv[2]);
	make_bases(argv[2], "2M", &r);
	make_bases(argv[1], "64K", &r);
	printf("hostile: %u bases\n", nbases);
	began = host_ms();
	for (u64 i = 0; count.used < pools; i++) {
		if (i >= 2 * pools + 100)
			die("only %llu of %llu pools were attached", (unsigned long long)count.used, (unsigned long long)i);
		one_pool(seed + i);
		if (i == 99)
			host_memory_mark();
		if (i % 50 == 49)
			printf("hostile: %llu pools, %llu attached, %llu s\n", (unsigned long long)count.pools,
			       (unsigned long long)count.used, (unsigned long long)(host_ms() - began) / 1000);
	}
	summary(seed);
	return host_memory_grown() > 64 << 10 ? 1 : 0;
}
