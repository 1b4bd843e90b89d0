// SPDX-License-Identifier: MIT OR Apache-2.0
/* The cases of alike.c about the library's mark: for the program it is no attribute of its files, and it goes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "alike.h"
#include "raw.h"

#define MARK "user.forebay"

/* The C library's functions by descriptor, path and link, the calls by their numbers, and those of Linux 6.13. */
enum { WAYS = 7, AT = 6, SETXATTRAT = 463, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT };

struct value {
	uint64_t at;
	uint32_t size, flags;
};

static long gets_it(int way, int fd, const char *file, const char *name, void *to, size_t n)
{
	struct value value = { P(to), n, 0 };

	switch (way) {
	case 0:
		return fgetxattr(fd, name, to, n);
	case 1:
		return getxattr(file, name, to, n);
	case 2:
		return lgetxattr(file, name, to, n);
	case 3:
		return syscall(SYS_fgetxattr, fd, name, to, n);
	case 4:
		return syscall(SYS_getxattr, file, name, to, n);
	case 5:
		return syscall(SYS_lgetxattr, file, name, to, n);
	default:
		return syscall(GETXATTRAT, AT_FDCWD, file, 0l, name, &value, sizeof(value));
	}
}

static long sets_it(int way, int fd, const char *file, const char *name, const char *text)
{
	struct value value = { P(text), strlen(text), 0 };
	size_t n = strlen(text);

	switch (way) {
	case 0:
		return fsetxattr(fd, name, text, n, 0);
	case 1:
		return setxattr(file, name, text, n, 0);
	case 2:
		return lsetxattr(file, name, text, n, 0);
	case 3:
		return syscall(SYS_fsetxattr, fd, name, text, n, 0l);
	case 4:
		return syscall(SYS_setxattr, file, name, text, n, 0l);
	case 5:
		return syscall(SYS_lsetxattr, file, name, text, n, 0l);
	default:
		return syscall(SETXATTRAT, AT_FDCWD, file, 0l, name, &value, sizeof(value));
	}
}

static long removes_it(int way, int fd, const char *file, const char *name)
{
	switch (way) {
	case 0:
		return fremovexattr(fd, name);
	case 1:
		return removexattr(file, name);
	case 2:
		return lremovexattr(file, name);
	case 3:
		return syscall(SYS_fremovexattr, fd, name);
	case 4:
		return syscall(SYS_removexattr, file, name);
	case 5:
		return syscall(SYS_lremovexattr, file, name);
	default:
		return syscall(REMOVEXATTRAT, AT_FDCWD, file, 0l, name);
	}
}

static long lists_it(int way, int fd, const char *file, char *to, size_t n)
{
	switch (way) {
	case 0:
		return flistxattr(fd, to, n);
	case 1:
		return listxattr(file, to, n);
	case 2:
		return llistxattr(file, to, n);
	case 3:
		return syscall(SYS_flistxattr, fd, to, n);
	case 4:
		return syscall(SYS_listxattr, file, to, n);
	case 5:
		return syscall(SYS_llistxattr, file, to, n);
	default:
		return syscall(LISTXATTRAT, AT_FDCWD, file, 0l, to, n);
	}
}

/* What a program does that gives a file exactly the attributes that it should have. */
static void asks(int way, int fd, const char *file)
{
	char names[4096], text[16], other[32];
	long len, room, at;

	snprintf(other, sizeof(other), "user.answer%d", way);
	says("set another", sets_it(way, fd, file, other, "42"));
	says("get another", gets_it(way, fd, file, other, text, sizeof(text)));
	says("get another", gets_it(way, fd, file, other, text, 1));
	len = lists_it(way, fd, file, NULL, 0);
	says("list", len);
	/* As large as it is said to be, one byte less, and as large as the mark needs. */
	for (room = len - 1; len > 0 && room <= len + 14; room += room == len ? 14 : 1) {
		memset(names, '?', sizeof(names));
		says("list", lists_it(way, fd, file, names, room));
		for (at = 0; room >= len && at < len; at += strlen(names + at) + 1)
			printf("has %s\n", names + at);
		CHECK(names[room] == '?');
	}
	says("get it", gets_it(way, fd, file, MARK, names, sizeof(names)));
	says("get it", gets_it(way, fd, file, MARK, NULL, 0));
	says("get it", gets_it(way, -1, "not there", MARK, NULL, 0));
	says("remove it", removes_it(way, fd, file, MARK));
	says("remove it", removes_it(way, -1, "not there", MARK));
	says("set it", sets_it(way, -1, "not there", MARK, "wrong"));
	/* A plain file may have it. */
	if (is_mapped_run())
		CHECK(sets_it(way, fd, file, MARK, "wrong") == -1 && errno == EPERM);
	says("remove another", removes_it(way, fd, file, other));
	says("remove another", removes_it(way, fd, file, other));
}

static void keeps(const char *file)
{
	char value[4096];

	if (is_mapped_run())
		CHECK(raw(SYS_getxattr, P(file), P(MARK), P(value), sizeof(value), 0, 0) > 5);
}

/* The marks of the file that is open, and of another one that somebody else has marked. */
void mark(void)
{
	int fd = opened(), other, way, status;
	char plain[4096];
	pid_t child;

	snprintf(plain, sizeof(plain), "%s.plain", path);
	other = open(plain, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(other >= 0 && fremovexattr(other, "user.before") == -1);
	if (errno == EOPNOTSUPP || lists_it(AT, 0, path, NULL, 0) == -1) {
		printf("such attributes or such calls are not here\n");
		return;
	}
	says("write", write(fd, "marked", 6));
	says("fsync", fsync(fd));
	if (is_mapped_run())
		CHECK(raw(SYS_fsetxattr, other, P(MARK), P("somebody's mark"), 15, 0, 0) == 0);
	for (way = 0; way < WAYS; way++) {
		asks(way, fd, path);
		asks(way, other, plain);
		says("write", pwrite(fd, "again", 5, way));
		says("fsync", fsync(fd));
		keeps(path);
		keeps(plain);
	}
	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		says("in a child", removexattr(path, MARK));
		says("in a child", listxattr(path, NULL, 0));
		fflush(stdout);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	keeps(path);
	CHECK(unlink(plain) == 0);
	says("close", close(fd));
}

/* A program that may open nothing more (Landlock), with a file that it has open. */
void sandboxed(void)
{
	struct landlock_ruleset_attr rules = {
		.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
				     LANDLOCK_ACCESS_FS_READ_DIR,
	};
	int fd = opened(), all;

	says("write", write(fd, "first", 5));
	says("fsync", fsync(fd));
	all = syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0l);
	if (all < 0) {
		printf("Landlock is not here\n");
		return;
	}
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	says("landlock_restrict_self", syscall(SYS_landlock_restrict_self, all, 0l));
	CHECK(open("/", O_RDONLY) == -1 && errno == EACCES);
	says("write", write(fd, "second", 6));
	says("fsync", fsync(fd));
	says("close", close(fd));
}
