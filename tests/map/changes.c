// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A program that changes its own file while the file is open, in a way that a recovery could take
 * for another program's. It sets the times, or renames the directory.  Then it stores a number,
 * syncs it and reports it, again and again, until it is killed.
 *
 *	changes WAY DIRECTORY/NAME
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#include <utime.h>

#include "check.h"

static const char *path;

static void by_utimensat(int i)
{
	struct timespec to[2] = { { 1000000000 + i, 5 }, { 1000000000 + i, 7 } };

	CHECK(utimensat(AT_FDCWD, path, to, 0) == 0);
}

static void by_utimes(int i)
{
	struct timeval to[2] = { { 1000000000 + i, 5 }, { 1000000000 + i, 7 } };

	CHECK(utimes(path, to) == 0);
}

static void by_lutimes(int i)
{
	struct timeval to[2] = { { 1000000000 + i, 5 }, { 1000000000 + i, 7 } };

	CHECK(lutimes(path, to) == 0);
}

static void by_utime(int i)
{
	struct utimbuf to = { 1000000000 + i, 1000000000 + i };

	CHECK(utime(path, &to) == 0);
}

static void rename_directory(int i)
{
	char now[512], new[600];

	snprintf(now, sizeof(now), "%s", path);
	*strrchr(now, '/') = 0;
	snprintf(new, sizeof(new), "%s.renamed", now);
	CHECK(i > 0 || rename(now, new) == 0);
}

static const struct {
	const char *name;
	void (*change)(int i);
} ways[] = {
	{ "utimensat", by_utimensat }, { "utimes", by_utimes }, { "lutimes", by_lutimes },
	{ "utime", by_utime }, { "rename", rename_directory },
};

int main(int argc, char **argv)
{
	struct stat st;
	long *at;
	int fd;

	CHECK(argc == 3);
	path = argv[2];
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	for (unsigned int way = 0; way < sizeof(ways) / sizeof(*ways); way++)
		for (int i = 0; strcmp(ways[way].name, argv[1]) == 0; i++) {
			ways[way].change(i);
			CHECK(i == 0 || argv[1][0] != 'u' || (stat(path, &st) == 0 && st.st_mtime == 1000000000 + i));
			*at = i + 1;
			CHECK(msync(at, PAGE, MS_SYNC) == 0);
			printf("%d\n", i + 1);
			fflush(stdout);
		}
	CHECK(!"no such way");
}
