/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * slow_disk.c - nbdkit plugin: a file that answers like a disk of a given speed,
 * whatever the machine does.  Requests are served in order at a steady rate, each
 * with a latency on top, so many of them overlap; a flush has a latency of its
 * own.  The same model as crates/forebay-load/src/origin.rs.
 *
 * nbdkit's own delay filter has steps of a millisecond and no delay of a flush.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static char *file;
static unsigned int requests_per_s = 20000, megabytes_per_s = 400, latency_us = 80, flush_us = 500;
static int fd = -1;
static uint64_t free_at_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int disk_config(const char *key, const char *value)
{
	static const struct {
		const char *key;
		unsigned int *value;
	} numbers[] = {
		{ "requests-per-s", &requests_per_s },
		{ "megabytes-per-s", &megabytes_per_s },
		{ "latency-us", &latency_us },
		{ "flush-us", &flush_us },
	};

	if (strcmp(key, "file") == 0) {
		free(file);
		file = nbdkit_realpath(value);
		return file ? 0 : -1;
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (strcmp(key, numbers[i].key) == 0)
			return nbdkit_parse_unsigned(key, value, numbers[i].value);
	nbdkit_error("%s: not known; use file, requests-per-s, megabytes-per-s, latency-us or flush-us", key);
	return -1;
}

static int disk_config_complete(void)
{
	if (file && requests_per_s && megabytes_per_s)
		return 0;
	nbdkit_error("file=PATH is needed, and rates above 0");
	return -1;
}

static int disk_get_ready(void)
{
	fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0)
		return 0;
	nbdkit_error("%s: %m", file);
	return -1;
}

static void disk_unload(void)
{
	if (fd >= 0)
		close(fd);
	free(file);
}

static void *disk_open(int readonly)
{
	(void)readonly;
	return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t disk_get_size(void *handle)
{
	struct stat st;

	(void)handle;
	if (fstat(fd, &st) == 0)
		return st.st_size;
	nbdkit_error("%s: %m", file);
	return -1;
}

static int disk_can_multi_conn(void *handle)
{
	(void)handle;
	return 1;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void serve(uint32_t bytes)
{
	uint64_t cost = 1000000000 / requests_per_s, transfer = (uint64_t)bytes * 1000 / megabytes_per_s;
	uint64_t now = now_ns(), end;

	if (transfer > cost)
		cost = transfer;
	pthread_mutex_lock(&lock);
	if (free_at_ns < now)
		free_at_ns = now;
	free_at_ns += cost;
	end = free_at_ns + latency_us * 1000ull;
	pthread_mutex_unlock(&lock);
	sleep_until(end);
}

static int disk_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	(void)flags;
	serve(count);
	while (count > 0) {
		ssize_t n = pread(fd, buf, count, (off_t)offset);

		if (n <= 0) {
			nbdkit_error("%s: read: %m", file);
			return -1;
		}
		buf = (char *)buf + n;
		count -= (uint32_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

static int disk_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	(void)flags;
	serve(count);
	while (count > 0) {
		ssize_t n = pwrite(fd, buf, count, (off_t)offset);

		if (n < 0) {
			nbdkit_error("%s: write: %m", file);
			return -1;
		}
		buf = (const char *)buf + n;
		count -= (uint32_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* The file stands in for the disk: what it holds is as durable as need be. */
static int disk_flush(void *handle, uint32_t flags)
{
	(void)handle;
	(void)flags;
	sleep_until(now_ns() + flush_us * 1000ull);
	return 0;
}

static int punch(int mode, uint32_t count, uint64_t offset)
{
	serve(0);
	if (fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, count) == 0)
		return 0;
	nbdkit_set_error(errno);
	return -1;
}

static int disk_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	(void)flags;
	return punch(FALLOC_FL_PUNCH_HOLE, count, offset);
}

static int disk_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	(void)flags;
	return punch(FALLOC_FL_PUNCH_HOLE, count, offset);
}

static struct nbdkit_plugin plugin = {
	.name = "slow-disk",
	.version = "1",
	.longname = "a file with the speed of a disk",
	.config = disk_config,
	.config_complete = disk_config_complete,
	.config_help = "file=PATH  requests-per-s=N  megabytes-per-s=N  latency-us=N  flush-us=N",
	.get_ready = disk_get_ready,
	.unload = disk_unload,
	.open = disk_open,
	.get_size = disk_get_size,
	.can_multi_conn = disk_can_multi_conn,
	.pread = disk_pread,
	.pwrite = disk_pwrite,
	.flush = disk_flush,
	.trim = disk_trim,
	.zero = disk_zero,
	.errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN(plugin)
