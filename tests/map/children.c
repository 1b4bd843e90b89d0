// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: a child of a process that maps files onto a pool has no byte of the pool, by an address or
 * by a descriptor.  This holds before and after the child drops its rights and executes another
 * program.
 * Method: the parent stores a word, syncs it, and notes where it has the pool mapped.  Each kind of
 * child looks at all of these addresses, at its own list of mappings, and at each descriptor that
 * it has.  Then children are forked while another thread opens and closes the pool.  By map-run, a
 * file that was closed can be opened at once, whatever children there are.
 *
 *	children alone POOL FILE	by the library (compiled with -DLIBRARY)
 *	children run POOL FILE		by forebay map-run
 *	children look DEVICE INODE	what a child executes
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
#include "forebay_map.h"
#endif

#define PAGE 4096ul
#define NOBODY 65534
#define RANGES 4096

extern char **environ;

static dev_t device;
static ino_t inode;
/* The ranges in which the parent has the pool mapped. */
static struct { unsigned long from, to; } ranges[RANGES];
static int nranges;
static const char *self;

static void must(int is, const char *what, int line)
{
	if (!is) {
		fprintf(stderr, "children.c:%d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
		_exit(3);
	}
}
#define MUST(what) must((what) != 0, #what, __LINE__)

/* Counts mappings of the pool in this process.  `note`: remembers them. */
static int mapped(int note)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[1024];
	int n = 0;

	MUST(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to, ino;
		unsigned int major_, minor_;

		if (sscanf(line, "%lx-%lx %*s %*x %x:%x %lu", &from, &to, &major_, &minor_, &ino) != 5)
			continue;
		if (ino != inode || makedev(major_, minor_) != device)
			continue;
		n++;
		if (note) {
			MUST(nranges < RANGES);
			ranges[nranges].from = from;
			ranges[nranges++].to = to;
		}
	}
	fclose(maps);
	return n;
}

/* Counts the pages at the parent's addresses that this process can touch. */
static long touchable(void)
{
	long n = 0;

	for (int i = 0; i < nranges; i++)
		for (unsigned long at = ranges[i].from; at < ranges[i].to; at += PAGE) {
			unsigned char in;

			n += mincore((void *)at, PAGE, &in) == 0;
		}
	return n;
}

/* Counts descriptors by which the pool, or the parent's memory, can be reached. */
static int reachable(const char *who)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int n = 0;

	MUST(dir);
	while ((entry = readdir(dir))) {
		static const char *const kinds[] = { "userfaultfd", "pagemap", "socket:", "eventfd", "forebay-shared-file" };
		char link[64], path[512] = "";
		int fd = atoi(entry->d_name), is = 0;
		struct stat st;

		if (entry->d_name[0] == '.' || fstat(fd, &st))
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		is |= readlink(link, path, sizeof(path) - 1) > 0 && st.st_dev == device && st.st_ino == inode;
		/* The test inherits these: a terminal, files, pipes. */
		for (unsigned int i = 0; fd > 2 && i < sizeof(kinds) / sizeof(*kinds); i++)
			is |= strstr(path, kinds[i]) != NULL;
		if (is)
			fprintf(stderr, "%s: descriptor %d is %s\n", who, fd, path);
		n += is;
	}
	closedir(dir);
	return n;
}

static int look(const char *who, int executed)
{
	int maps = mapped(0), fds = reachable(who);
	long pages = executed ? 0 : touchable();

	if (maps || fds || pages)
		fprintf(stderr, "%s: %d mappings, %ld pages, %d descriptors of the pool\n", who, maps, pages, fds);
	return maps || fds || pages;
}

static void drop_rights(void)
{
	MUST(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0);
	MUST(setresuid(NOBODY, NOBODY, NOBODY) == 0);
}

static char dev_text[32], ino_text[32];

static char **look_again(void)
{
	static char *argv[] = { "children", "look", dev_text, ino_text, NULL };

	snprintf(dev_text, sizeof(dev_text), "%lu", (unsigned long)device);
	snprintf(ino_text, sizeof(ino_text), "%lu", (unsigned long)inode);
	return argv;
}

static int ended(pid_t pid)
{
	int status;

	MUST(waitpid(pid, &status, 0) == pid);
	return !WIFEXITED(status) || WEXITSTATUS(status);
}

enum how { DROPS = 1, EXECUTES = 2 };

static int child(const char *who, int how)
{
	char **argv = look_again();
	pid_t pid = fork();

	MUST(pid >= 0);
	if (pid == 0) {
		if (how & DROPS)
			drop_rights();
		if (how & EXECUTES) {
			execve(self, argv, environ);
			_exit(4);
		}
		_exit(look(who, 0));
	}
	return ended(pid);
}

static int other_children(void)
{
	char **argv = look_again();
	int wrong = 0;
	pid_t pid;

	MUST(posix_spawn(&pid, self, NULL, NULL, argv, environ) == 0);
	wrong |= ended(pid);
	pid = vfork();
	if (pid == 0) {
		execve(self, argv, environ);
		_exit(4);
	}
	wrong |= ended(pid);
	/* A child of a child. */
	pid = fork();
	if (pid == 0)
		_exit(child("grandchild", 0) | child("grandchild that drops its rights", geteuid() ? 0 : DROPS));
	wrong |= ended(pid);
	/* This child is made without the C library, which runs no handler.  It has no memory of the
	 * pool. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(mapped(0) || touchable());
	if (ended(pid)) {
		fprintf(stderr, "a child by clone(2) has memory of the pool\n");
		wrong = 1;
	}
	return wrong;
}

static int all_children(void)
{
	int wrong = 0;

	mapped(1);
	/* Without these the test could find nothing. */
	MUST(nranges > 0 && touchable() > 0);
	wrong |= child("child", 0);
	wrong |= child("child that executes", EXECUTES);
	if (geteuid() == 0) {
		wrong |= child("child that drops its rights", DROPS);
		wrong |= child("child that drops its rights and executes", DROPS | EXECUTES);
	}
	wrong |= other_children();
	/* The parent still has the memory. */
	MUST(touchable() > 0);
	return wrong;
}

static atomic_int over, opened;
static const char *pool_path, *file_path;

static void *open_and_close(void *unused)
{
	(void)unused;
	while (!atomic_load(&over)) {
#ifdef LIBRARY
		struct forebay_map_pool *pool;
		struct forebay_map_file *file;

		if (forebay_map_pool_open(pool_path, NULL, NULL, &pool))
			continue;
		if (forebay_map_file_open(pool, file_path, 0, &file) == 0) {
			*(volatile char *)forebay_map_address(file) = 1;
			forebay_map_file_close(file);
			atomic_fetch_add(&opened, 1);
		}
		forebay_map_pool_close(pool);
#else
		int fd = open(file_path, O_RDWR);

		if (fd < 0)
			continue;
		MUST(pwrite(fd, "x", 1, 0) == 1 && close(fd) == 0);
		atomic_fetch_add(&opened, 1);
#endif
	}
	return NULL;
}

/* Forks while a thread opens and closes the pool. */
static int beside(void)
{
	int wrong = 0, children = 0;
	pthread_t thread;

	nranges = 0;
	MUST(pthread_create(&thread, NULL, open_and_close, NULL) == 0);
	while (!wrong && (children < 60 || (atomic_load(&opened) < 8 && children < 3000))) {
		pid_t pid = fork();

		MUST(pid >= 0);
		if (pid == 0)
			_exit(look("child beside an open", 0));
		wrong |= ended(pid);
		children++;
	}
	atomic_store(&over, 1);
	MUST(pthread_join(thread, NULL) == 0);
	MUST(atomic_load(&opened) >= 8);
	return wrong;
}

#ifdef LIBRARY
static int work(void)
{
	struct forebay_map_pool *pool;
	struct forebay_map_file *file;
	int wrong;

	MUST(forebay_map_pool_open(pool_path, NULL, NULL, &pool) == 0);
	MUST(forebay_map_file_open(pool, file_path, 0, &file) == 0);
	strcpy(forebay_map_address(file), "secret");
	MUST(forebay_map_sync(file, 0, 4096) == 0);
	wrong = all_children();
	MUST(forebay_map_sync(file, 0, 4096) == 0);
	MUST(forebay_map_file_close(file) == 0 && forebay_map_pool_close(pool) == 0);
	return wrong | beside();
}
#else
static void *spawn(void *unused)
{
	char **argv = look_again();

	(void)unused;
	while (!atomic_load(&over)) {
		pid_t pid;

		MUST(posix_spawn(&pid, self, NULL, NULL, argv, environ) == 0);
		waitpid(pid, NULL, 0);
	}
	return NULL;
}

/* Opens fail although this process alone has the file, because a child has its parent's descriptors
 * for a while. */
static int refused(int times)
{
	int n = 0;

	while (times-- > 0) {
		int fd = open(file_path, O_RDWR);

		n += fd < 0;
		MUST(fd < 0 || (pwrite(fd, "x", 1, 0) == 1 && close(fd) == 0));
	}
	return n;
}

static int opens(void)
{
	int fd = open(file_path, O_RDWR), lives, spawns;
	pthread_t thread;
	pid_t pid;

	/* This child was forked with the file open, and stays. */
	MUST(fd >= 0);
	pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	MUST(pid > 0 && close(fd) == 0);
	lives = refused(10);
	MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	/* Another thread's children are about to execute a program. */
	atomic_store(&over, 0);
	MUST(pthread_create(&thread, NULL, spawn, NULL) == 0);
	spawns = refused(60);
	atomic_store(&over, 1);
	MUST(pthread_join(thread, NULL) == 0);
	if (lives || spawns)
		fprintf(stderr, "%d of 10 opens fail while a child lives, %d of 60 beside posix_spawn\n", lives, spawns);
	return lives || spawns;
}

static int work(void)
{
	int fd = open(file_path, O_RDWR), wrong;
	char *at;

	MUST(fd >= 0);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(at != MAP_FAILED);
	strcpy(at, "secret");
	MUST(msync(at, PAGE, MS_SYNC) == 0);
	wrong = all_children();
	MUST(msync(at, PAGE, MS_SYNC) == 0 && munmap(at, PAGE) == 0 && close(fd) == 0);
	return wrong | beside() | opens();
}
#endif

int main(int argc, char **argv)
{
	struct stat st;
	int fd;

	MUST(argc == 4);
	self = "/proc/self/exe";
	if (strcmp(argv[1], "look") == 0) {
		device = strtoul(argv[2], NULL, 10);
		inode = strtoul(argv[3], NULL, 10);
		return look("program that a child executes", 1);
	}
	pool_path = argv[2];
	file_path = argv[3];
	MUST(stat(pool_path, &st) == 0);
	device = st.st_dev;
	inode = st.st_ino;
	fd = open(file_path, O_CREAT | O_RDWR | O_TRUNC, 0600);
	MUST(fd >= 0 && ftruncate(fd, 1 << 20) == 0 && close(fd) == 0);
	MUST(mapped(0) == 0 && reachable("the test itself") == 0);
	return work();
}
