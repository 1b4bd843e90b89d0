// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * replay.c - a disk after a power cut, from the log of dm-log-writes.
 *
 *	replay LOG DISK MARK [SECTORS]
 *
 * The log has a write when a flush that followed it is done, or when the mapping is removed.  So
 * the writes before MARK survive any power cut: they go to DISK, and nothing else does.  Prints
 * how many writes that were, and how many came after the mark: those were written and never
 * flushed.
 *
 * With SECTORS, each mark "cN" is a cut of the range of SECTORS sectors that begins at N times
 * SECTORS. What the log has of it after that mark does not survive.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x6a736677736872ull
#define DISCARDED 4u
#define MARKED 8u

struct super {
	uint64_t magic, version, entries;
	uint32_t sector_bytes;
};

struct entry {
	uint64_t sector, sectors, flags, data_bytes;
};

static void die(const char *what)
{
	fprintf(stderr, "replay: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void read_at(int fd, void *to, size_t n, uint64_t at)
{
	if (pread(fd, to, n, (off_t)at) != (ssize_t)n)
		die("reading the log");
}

static int disk;
static uint64_t range_sectors, sector_bytes;
static uint8_t gone[1 << 16]; /* of each range: it was cut */

static void write_disk(const void *data, uint64_t bytes, uint64_t sector)
{
	if (pwrite(disk, data, bytes, (off_t)(sector * sector_bytes)) != (ssize_t)bytes)
		die("writing the disk");
}

/* Writes the parts of a write that cut ranges leave. */
static void write_ranges(const uint8_t *data, uint64_t sector, uint64_t sectors)
{
	for (uint64_t i = 0; i < sectors; i++)
		if ((sector + i) / range_sectors >= sizeof(gone) || !gone[(sector + i) / range_sectors])
			write_disk(data + i * sector_bytes, sector_bytes, sector + i);
}

int main(int argc, char **argv)
{
	uint64_t before = 0, after = 0, i, at;
	struct super super;
	int log, found = 0;

	if (argc < 4)
		return 2;
	range_sectors = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
	log = open(argv[1], O_RDONLY);
	disk = open(argv[2], O_WRONLY);
	if (log < 0 || disk < 0)
		die("opening");
	read_at(log, &super, sizeof(super), 0);
	if (super.magic != MAGIC || super.version != 1 || super.sector_bytes < 512)
		die("no log");
	at = sector_bytes = super.sector_bytes;
	for (i = 0; i < super.entries; i++) {
		char name[64] = "";
		struct entry e;
		size_t bytes;
		void *data;

		read_at(log, &e, sizeof(e), at);
		if (e.flags & MARKED) {
			read_at(log, name, e.data_bytes < sizeof(name) ? e.data_bytes : sizeof(name) - 1, at + sizeof(e));
			found |= !strcmp(name, argv[3]);
			if (range_sectors && name[0] == 'c' && strspn(name + 1, "0123456789") == strlen(name + 1) && name[1])
				gone[strtoul(name + 1, NULL, 10) % sizeof(gone)] = 1;
		}
		at += super.sector_bytes;
		bytes = e.sectors * super.sector_bytes;
		before += !found && bytes;
		after += found && bytes;
		data = calloc(1, bytes + 1);
		if (!data)
			die("memory");
		if (!(e.flags & DISCARDED)) {
			read_at(log, data, bytes, at);
			at += bytes;
		}
		if (!found && range_sectors)
			write_ranges(data, e.sector, e.sectors);
		else if (!found)
			write_disk(data, bytes, e.sector);
		free(data);
	}
	if (!found)
		die("no such mark");
	printf("replay: %llu writes were flushed, %llu were not\n", (unsigned long long)before, (unsigned long long)after);
	return fsync(disk) ? 1 : 0;
}
