// SPDX-License-Identifier: MIT OR Apache-2.0
// A file whose right to write is taken away while it is open.
//
//	taken WAY FILE		by WAY; says what the calls say
//	taken kill-WAY FILE	by WAY; then it writes and stores, and is killed
//	taken failing FILE	says ready; once FILE.go is there, it writes a segment past the pool, and
//				syncs by an append and by fsync, while the sync of the mark is made to fail
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FCHMODAT2 452
#define SEGMENT (2 << 20)

static void says(const char *what, long result)
{
	printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
	fflush(stdout);
}

static long taken(const char *way, const char *file, int fd)
{
	if (!strcmp(way, "chmod"))
		return chmod(file, 0444);
	if (!strcmp(way, "nothing"))
		return chmod(file, 0);
	if (!strcmp(way, "fchmod"))
		return fchmod(fd, 0444);
	if (!strcmp(way, "lchmod"))
		return lchmod(file, 0444);
	if (!strcmp(way, "fchmodat2"))
		return syscall(FCHMODAT2, AT_FDCWD, file, 0444, AT_SYMLINK_NOFOLLOW);
	if (!strcmp(way, "empty-path"))
		return syscall(FCHMODAT2, fd, "", 0444, AT_EMPTY_PATH);
	if (!strcmp(way, "of-another")) {
		int other = open(file, O_PATH);
		return syscall(FCHMODAT2, other, "", 0444, AT_EMPTY_PATH);
	}
	CHECK(!strcmp(way, "not"));
	return 0;
}

static int failing(const char *file, int fd)
{
	char *segment = malloc(SEGMENT);
	memset(segment, 'n', SEGMENT);
	puts("ready");
	fflush(stdout);
	char go[4096];
	snprintf(go, sizeof go, "%s.go", file);
	while (access(go, F_OK))
		usleep(10000);
	says("write", pwrite(fd, segment, SEGMENT, 0));
	says("append", pwrite(fd, "end", 3, lseek(fd, 0, SEEK_END)));
	says("fsync", fsync(fd));
	says("again", fsync(fd));
	return 0;
}

int main(int n, char **v)
{
	CHECK(n == 3);
	const char *way = v[1], *file = v[2];
	int fd = open(file, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	if (!strcmp(way, "failing"))
		return failing(file, fd);
	CHECK(ftruncate(fd, 1 << 20) == 0 && pwrite(fd, "acknowledged", 12, 0) == 12 && fsync(fd) == 0);
	char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	bool killed = !strncmp(way, "kill-", 5);
	says("taken", taken(way + (killed ? 5 : 0), file, fd));
	memcpy(p + 4096, "stored", 6);
	says("write", pwrite(fd, "written", 7, 8192));
	if (killed) {
		says("append", pwrite(fd, "appended", 8, 1 << 20));
		kill(getpid(), SIGKILL);
	}
	says("fsync", fsync(fd));
	says("write", pwrite(fd, "last", 4, 12288));
	CHECK(munmap(p, 1 << 20) == 0);
	says("close", close(fd));
	return 0;
}
