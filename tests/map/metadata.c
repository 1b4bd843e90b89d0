// SPDX-License-Identifier: MIT OR Apache-2.0
// What a program changes of a file besides its bytes, and then asks to be durable.
//
//	metadata KIND FILE	says done once it is acknowledged, and is stopped then
//	metadata rwf-sync-KIND FILE, o-sync-KIND FILE	the same by a write that is synchronous, instead of fsync
//	metadata hold FILE	says ready, syncs the file system once FILE.go is there, and tells
//				whether another thread could give the file more room meanwhile
//
// Stopped, none of its threads syncs anything more.  KIND control asks for nothing.
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static void *sync_all(void *fd)
{
	CHECK(syncfs(*(int *)fd) == 0);
	return 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// The kernel is made to wait for 5 s in syncfs.
static int held(const char *file, int fd)
{
	char go[4096];
	pthread_t syncs;
	snprintf(go, sizeof go, "%s.go", file);
	printf("ready\n");
	fflush(stdout);
	while (access(go, F_OK))
		usleep(10000);
	double begun = now();
	CHECK(pthread_create(&syncs, 0, sync_all, &fd) == 0);
	usleep(1000000);
	double from = now();
	CHECK(pwrite(fd, "x", 1, 64 << 20) == 1);
	double took = now() - from;
	CHECK(pthread_join(syncs, 0) == 0 && now() - begun > 4.5);
	printf(took < 2 ? "done\n" : "held up for %.1f s\n", took);
	return fflush(stdout);
}

int main(int n, char **v)
{
	CHECK(n == 3);
	const char *kind = v[1], *file = v[2];
	char page[4096], other[4096];
	int fd = open(file, O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	memset(page, 'a', sizeof page);
	CHECK(pwrite(fd, page, sizeof page, 0) == sizeof page && fsync(fd) == 0);
	if (!strcmp(kind, "hold"))
		return held(file, fd);
	bool by_flag = !strncmp(kind, "rwf-sync-", 9), by_open = !strncmp(kind, "o-sync-", 7);
	kind += by_flag ? 9 : by_open ? 7 : 0;
	sleep(1); // it is written back, and more
	// A write-back is under way.
	bool quiet = !strcmp(kind, "syncfs") || !strcmp(kind, "control");
	for (int i = 0; i < 200 && !quiet; i++)
		CHECK(pwrite(fd, page, sizeof page, 4096 * i) == sizeof page && fsync(fd) == 0);
	if (!strcmp(kind, "mode"))
		CHECK(fchmod(fd, 0600) == 0);
	if (!strcmp(kind, "owner"))
		CHECK(fchown(fd, 1234, 1234) == 0);
	if (!strcmp(kind, "attribute"))
		CHECK(fsetxattr(fd, "user.answer", "42", 2, 0) == 0);
	if (!strcmp(kind, "by-path") || !strcmp(kind, "sync") || !strcmp(kind, "control"))
		CHECK(chmod(file, 0600) == 0);
	if (!strcmp(kind, "owner-by-path"))
		CHECK(chown(file, 1234, 1234) == 0);
	if (!strcmp(kind, "list") || !strcmp(kind, "list-by-path")) {
		// rw for its user, as mode 0600
		static const struct {
			uint32_t version;
			struct {
				uint16_t who, may;
				uint32_t id;
			} all[3];
		} list = {2, {{1, 6, -1}, {4, 0, -1}, {32, 0, -1}}};
		const char *acl = "system.posix_acl_access";
		CHECK((!strcmp(kind, "list") ? fsetxattr(fd, acl, &list, sizeof list, 0) :
			setxattr(file, acl, &list, sizeof list, 0)) == 0);
	}
	if (!strcmp(kind, "attribute-by-path"))
		CHECK(setxattr(file, "user.answer", "42", 2, 0) == 0);
	if (!strcmp(kind, "attribute-gone")) {
		CHECK(fsetxattr(fd, "user.answer", "41", 2, 0) == 0 && fsync(fd) == 0);
		CHECK(fremovexattr(fd, "user.answer") == 0);
	}
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
	} else if (by_flag) {
		struct iovec one = {page, 1};
		CHECK(pwritev2(fd, &one, 1, 0, RWF_SYNC) == 1);
	} else if (by_open) {
		int other_fd = open(file, O_RDWR | O_SYNC);
		CHECK(other_fd >= 0 && pwrite(other_fd, page, 1, 0) == 1);
	} else if (!strcmp(kind, "sync")) {
		sync();
	} else if (strcmp(kind, "control")) {
		CHECK(fsync(fd) == 0);
	}
	printf("done\n");
	fflush(stdout);
	raise(SIGSTOP);
	return 0;
}
