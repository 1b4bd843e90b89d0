// SPDX-License-Identifier: MIT OR Apache-2.0
// What a program changes of a file besides its bytes, and then asks to be durable.
//
//	metadata KIND FILE	says done once it is acknowledged, and then waits
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

int main(int n, char **v)
{
	CHECK(n == 3);
	const char *kind = v[1], *file = v[2];
	char page[4096], other[4096];
	int fd = open(file, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	memset(page, 'a', sizeof page);
	CHECK(pwrite(fd, page, sizeof page, 0) == sizeof page && fsync(fd) == 0);
	sleep(1); // it is written back, and more
	// A write-back is under way.
	for (int i = 0; i < 200 && strcmp(kind, "syncfs"); i++)
		CHECK(pwrite(fd, page, sizeof page, 4096 * i) == sizeof page && fsync(fd) == 0);
	if (!strcmp(kind, "mode"))
		CHECK(fchmod(fd, 0600) == 0);
	if (!strcmp(kind, "owner"))
		CHECK(fchown(fd, 1234, 1234) == 0);
	if (!strcmp(kind, "attribute"))
		CHECK(fsetxattr(fd, "user.answer", "42", 2, 0) == 0);
	if (!strcmp(kind, "by-path"))
		CHECK(chmod(file, 0600) == 0);
	if (!strcmp(kind, "time")) {
		struct timespec times[2] = {{1000000, 0}, {2000000, 0}};
		CHECK(futimens(fd, times) == 0);
	}
	if (!strcmp(kind, "name")) {
		snprintf(other, sizeof other, "%s.second", file);
		CHECK(link(file, other) == 0);
	}
	if (!strcmp(kind, "syncfs")) {
		snprintf(other, sizeof other, "%s.other", file);
		int plain = open(other, O_RDWR | O_CREAT, 0644);
		CHECK(plain >= 0 && write(plain, "hello", 5) == 5 && syncfs(fd) == 0);
	} else {
		CHECK(fsync(fd) == 0);
	}
	printf("done\n");
	fflush(stdout);
	pause();
	return 0;
}
