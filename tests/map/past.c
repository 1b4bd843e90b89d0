// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: an access that bypasses the library's functions never reaches a stale file that `forebay
 * map-run` has mapped.  It sees the same content, or the program ends with one message and
 * everything is in the file.  A file that is already open in such a way is not mapped.
 * Method: past.sh runs each way of the table in both orders.
 *
 *	past list                      the ways
 *	past after WAY FILE LIBRARY    opens FILE, stores, then goes past; says "went past" if it could
 *	past before WAY FILE LIBRARY   goes past, then opens FILE; says "refused" or "mapped"
 *	past reader FILE               opens FILE, stores, says "stored", and waits for its input to end
 *	past child FILE                opens and closes FILE; a child of it does as "reader"
 *	past grows FILE                as "reader", but at a byte of its input FILE gets more room first
 *	past busy FILE GROWS           says "stored", and stores and syncs until that fails; if GROWS is
 *				       "grows" FILE gets longer too
 *	past becomes HOW FILE          opens FILE and stores, then changes its user by HOW, writes, says
 *				       "stored", and waits for its input to end
 *	past between FILE OTHER        opens both and stores, then has three users: OTHER's (real), FILE's
 *			       (effective) and another (saved); says "stored" and is killed
 *	past alone FILE                opens FILE and stores, then changes its user where no process can be made
 *	past chroot FILE DIR           opens FILE, then again below DIR, as a bind mount
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "raw.h"

static const char *library;
static int handle_mount;
static struct {
	struct file_handle handle;
	char bytes[128];
} handle;

static int by_open(const char *path, int flags)
{
	return (int)raw(SYS_openat, AT_FDCWD, P(path), flags, 0, 0, 0);
}

static int by_openat2(const char *path, int flags)
{
	struct open_how how = { .flags = (uint64_t)flags };

	return (int)raw(SYS_openat2, AT_FDCWD, P(path), P(&how), sizeof(how), 0, 0);
}

static int by_handle(const char *path, int flags)
{
	char dir[512];

	(void)path;
	if (!handle_mount) {
		snprintf(dir, sizeof(dir), "%s", path);
		*strrchr(dir, '/') = 0;
		handle_mount = (int)raw(SYS_openat, AT_FDCWD, P(dir), O_RDONLY | O_DIRECTORY, 0, 0, 0);
	}
	return (int)raw(SYS_open_by_handle_at, handle_mount, P(&handle), flags, 0, 0, 0);
}

static int by_deep_binding(const char *path, int flags)
{
	void *bound = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	int (*opens)(const char *, int) = bound ? (int (*)(const char *, int))dlsym(bound, "deep_open") : NULL;

	CHECK(opens);
	return opens(path, flags);
}

static int by_creat(const char *path, int flags)
{
	(void)flags;
#ifdef SYS_creat
	return (int)raw(SYS_creat, P(path), 0600, 0, 0, 0, 0);
#else
	return (int)raw(SYS_openat, AT_FDCWD, P(path), O_CREAT | O_WRONLY | O_TRUNC, 0600, 0, 0);
#endif
}

static int by_truncate(const char *path, int flags)
{
	(void)flags;
	return (int)raw(SYS_truncate, P(path), 1, 0, 0, 0, 0);
}

static int by_vfork(const char *path, int flags)
{
	static volatile int fd;
	pid_t child = (pid_t)raw(SYS_clone, 0x100 | 0x400 | 0x4000 | SIGCHLD, 0, 0, 0, 0, 0); /* VM, FILES, VFORK */

	if (child == 0) {
		fd = (int)raw(SYS_openat, AT_FDCWD, P(path), flags, 0, 0, 0);
		raw(SYS_exit, 0, 0, 0, 0, 0, 0);
	}
	return fd;
}

/* The mapping stays, and its descriptor does not. */
static int by_mapping(const char *path, int flags)
{
	int fd = by_open(path, flags);
	long p = raw(SYS_mmap, 0, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(fd >= 0 && p > 0 && raw(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
	return fd;
}

static const struct way {
	const char *name;
	int (*go)(const char *path, int flags);
	int flags;
	int leaves; /* an open descriptor */
} ways[] = {
	{ "open-write", by_open, O_RDWR, 1 },
	{ "open-read", by_open, O_RDONLY, 1 },
	{ "open-append", by_open, O_WRONLY | O_APPEND, 1 },
	{ "open-trunc", by_open, O_WRONLY | O_TRUNC, 1 },
	{ "openat2-write", by_openat2, O_RDWR, 1 },
	{ "openat2-read", by_openat2, O_RDONLY, 1 },
	{ "handle-write", by_handle, O_RDWR, 1 },
	{ "handle-read", by_handle, O_RDONLY, 1 },
	{ "deep-write", by_deep_binding, O_RDWR, 1 },
	{ "deep-read", by_deep_binding, O_RDONLY, 1 },
	{ "vfork-write", by_vfork, O_RDWR, 1 },
	{ "creat", by_creat, O_WRONLY, 1 },
	{ "truncate", by_truncate, O_WRONLY, 0 },
	{ "mmap-read", by_mapping, O_RDONLY, 1 },
};

static const struct way *way_of(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		if (strcmp(ways[i].name, name) == 0)
			return &ways[i];
	CHECK(!"such a way");
	return NULL;
}

static void remember(const char *path)
{
	int mount;

	handle.handle.handle_bytes = sizeof(handle.bytes);
	/* overlayfs may have none. */
	CHECK(name_to_handle_at(AT_FDCWD, path, &handle.handle, &mount, 0) == 0 || errno == EOPNOTSUPP);
}

static char *open_and_store(const char *path, int *fd)
{
	char *p;

	*fd = open(path, O_RDWR);
	CHECK(*fd >= 0);
	p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(p != MAP_FAILED);
	strcpy(p + 2 * PAGE, "stored");
	CHECK(pwrite(*fd, "written", 7, 3 * PAGE) == 7);
	return p;
}

static void after(const struct way *way, const char *path)
{
	int fd, past;

	open_and_store(path, &fd);
	remember(path);
	past = way->go(path, way->flags);
	/* The library may need a moment to notice.  Reads and writes until then are not reported.
	 */
	usleep(300000);
	printf("went past: %d\n", past);
}

static void before(const struct way *way, const char *path)
{
	int past, fd;

	remember(path);
	past = way->go(path, way->flags);
	CHECK(past >= 0);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 || errno == EBUSY);
	puts(fd < 0 ? "refused" : "mapped");
}

/* An older mapping has no descriptor any more. */
static void older_mapping(const char *path)
{
	int past = by_open(path, O_RDWR), fd;
	char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, past, 0);

	CHECK(past >= 0 && p != MAP_FAILED && close(past) == 0);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0 || errno == EBUSY);
	puts(fd < 0 ? "refused" : "mapped");
}

static void reader(const char *path)
{
	int fd, round;
	char *p = open_and_store(path, &fd), c;

	puts("stored");
	fflush(stdout);
	CHECK(read(0, &c, 1) == 0);
	/* The library has its lease again, and is unchanged. */
	for (round = 0; round < 100; round++) {
		p[PAGE] = (char)round;
		CHECK(msync(p, 4 * PAGE, MS_SYNC) == 0 && pread(fd, &c, 1, PAGE) == 1 && c == (char)round);
	}
	puts("done");
}

static void child_reads(const char *path)
{
	int fd = open(path, O_RDWR), status;
	pid_t child;

	CHECK(fd >= 0 && close(fd) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		reader(path);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void grows(const char *path)
{
	int fd = open(path, O_RDWR);
	long more;
	char c;

	CHECK(fd >= 0 && pwrite(fd, "stored", 6, 2 * PAGE) == 6);
	puts("stored");
	/* Somebody reads the file meanwhile. */
	CHECK(read(0, &c, 1) == 1);
	for (more = 20; more <= 60; more += 4)
		CHECK(ftruncate(fd, more << 20) == 0);
	CHECK(pwrite(fd, "written", 7, 3 * PAGE) == 7);
	puts("grown");
	CHECK(read(0, &c, 1) == 0);
	puts("done");
}

/* Stores and syncs until that fails. */
static void busy(const char *path, int longer)
{
	int fd = open(path, O_RDWR), i;
	char bytes[100];
	uint64_t n;
	char *p;

	CHECK(fd >= 0 && ftruncate(fd, 8 << 20) == 0);
	p = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	memset(bytes, 'a', sizeof(bytes));
	for (n = 1;; n++) {
		*(volatile uint64_t *)(p + 5 * PAGE) = n;
		for (i = 0; i < 50; i++)
			p[(16 + (n * 7 + (uint64_t)i * 13) % 1024) * PAGE] = (char)n;
		CHECK(msync(p, 8 << 20, MS_SYNC) == 0);
		CHECK(!longer || pwrite(fd, bytes, 100, (off_t)((8 << 20) + n % 1000 * 100)) == 100);
		CHECK(!longer || fdatasync(fd) == 0);
		if (n == 100)
			puts("stored");
		usleep(3000);
	}
}

#define NOBODY 65534
#define OTHER 1

static volatile int in_handler;

/* A handler may have interrupted the C library while it makes a thread. */
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*f)(void *), void *p)
{
	int (*make)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");

	if (in_handler) {
		puts("a thread is made in a handler");
		_exit(1);
	}
	return make(thread, how, f, p);
}

static void becomes_nobody(int signal)
{
	(void)signal;
	in_handler = 1;
	CHECK(setuid(NOBODY) == 0);
	in_handler = 0;
}

static void becomes(const char *how, const char *path)
{
	int fd = open(path, O_RDWR);
	char c;

	CHECK(fd >= 0 && pwrite(fd, "stored", 6, 2 * PAGE) == 6);
	if (strcmp(how, "setuid") == 0)
		CHECK(setuid(NOBODY) == 0);
	else if (strcmp(how, "setreuid") == 0)
		CHECK(setreuid(NOBODY, NOBODY) == 0);
	else if (strcmp(how, "setresuid") == 0)
		CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0);
	else if (strcmp(how, "seteuid") == 0)
		CHECK(seteuid(NOBODY) == 0 && seteuid(0) == 0);
	else if (strcmp(how, "in-steps") == 0)
		CHECK(seteuid(NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
	else if (strcmp(how, "other-user") == 0)
		CHECK(setresuid(OTHER, 0, 0) == 0 && setresuid(0, NOBODY, 0) == 0 && seteuid(0) == 0);
	else if (strcmp(how, "handler") == 0)
		CHECK(signal(SIGUSR1, becomes_nobody) != SIG_ERR && raise(SIGUSR1) == 0);
	else
		CHECK(!"such a way");
	CHECK(getuid() == (geteuid() == 0 ? 0 : NOBODY));
	CHECK(pwrite(fd, "written", 7, 3 * PAGE) == 7 && fsync(fd) == 0);
	puts("stored");
	CHECK(read(0, &c, 1) == 0);
	puts("done");
}

static void between(const char *path, const char *second)
{
	int fd, other;

	open_and_store(second, &other);
	open_and_store(path, &fd);
	CHECK(fsync(fd) == 0 && fsync(other) == 0);
	CHECK(setresuid(OTHER, NOBODY, OTHER + 1) == 0);
	CHECK(geteuid() == NOBODY && getuid() == OTHER);
	puts("stored");
	/* Each user would complete its file. */
	raise(SIGKILL);
}

/* The kernel refuses clone here. */
static void alone(const char *path)
{
	struct sock_filter refuse[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(refuse) / sizeof(*refuse), refuse };
	int fd;

	open_and_store(path, &fd);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	CHECK(setuid(NOBODY) == 0);
	puts("stored");
}

static void chrooted(const char *path, const char *dir)
{
	int fd, again, plain;
	char *p = open_and_store(path, &fd), found[8] = "", name[512];

	snprintf(name, sizeof(name), "%s/other.map", dir);
	plain = open(name, O_RDWR | O_CREAT, 0600);
	CHECK(plain >= 0 && close(plain) == 0);
	CHECK(chroot(dir) == 0 && chdir("/") == 0);
	again = open("/same.map", O_RDWR);
	CHECK(again >= 0);
	CHECK(pread(again, found, 6, 2 * PAGE) == 6 && strcmp(found, "stored") == 0);
	CHECK(pwrite(again, "again", 5, 2 * PAGE) == 5 && memcmp(p + 2 * PAGE, "again", 5) == 0);
	plain = open("/other.map", O_RDWR);
	CHECK(is_mapped_run() ? plain == -1 && errno == EBUSY : plain >= 0);
	CHECK(fsync(again) == 0 && close(again) == 0);
}

int main(int argc, char **argv)
{
	size_t i;

	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (i = 0; i < sizeof(ways) / sizeof(*ways); i++)
			printf("%s %d\n", ways[i].name, ways[i].leaves);
		return 0;
	}
	library = argc > 4 ? argv[4] : "";
	if (argc == 5 && strcmp(argv[1], "after") == 0)
		after(way_of(argv[2]), argv[3]);
	else if (argc == 5 && strcmp(argv[1], "before") == 0)
		before(way_of(argv[2]), argv[3]);
	else if (argc == 3 && strcmp(argv[1], "mapping") == 0)
		older_mapping(argv[2]);
	else if (argc == 3 && strcmp(argv[1], "reader") == 0)
		reader(argv[2]);
	else if (argc == 3 && strcmp(argv[1], "child") == 0)
		child_reads(argv[2]);
	else if (argc == 3 && strcmp(argv[1], "grows") == 0)
		grows(argv[2]);
	else if (argc == 4 && strcmp(argv[1], "busy") == 0)
		busy(argv[2], strcmp(argv[3], "grows") == 0);
	else if (argc == 4 && strcmp(argv[1], "becomes") == 0)
		becomes(argv[2], argv[3]);
	else if (argc == 4 && strcmp(argv[1], "between") == 0)
		between(argv[2], argv[3]);
	else if (argc == 3 && strcmp(argv[1], "alone") == 0)
		alone(argv[2]);
	else if (argc == 4 && strcmp(argv[1], "chroot") == 0)
		chrooted(argv[2], argv[3]);
	else
		CHECK(0);
	return 0;
}
