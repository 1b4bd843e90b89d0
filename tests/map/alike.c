// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: programs that give up rights, get many signals, have private mappings or make small calls do with a file
 * of `forebay map-run` what they do with a plain one.
 * Method: each case says what it finds; alike.sh compares that with and without map-run.
 *
 *	alike list                  the cases
 *	alike CASE FILE             runs it with a file that does not exist
 *	alike holds FILE WORDS      for alike.sh: has a private mapping until a line of WORDS
 *	alike ends FILE HOW         for alike.sh: changes rights while it has the file open
 *	alike ends-thread FILE HOW  the same, in a thread of its own
 *	alike grows FILE            for alike.sh: needs more room after it has become another user
 *	alike filter                for alike.sh: a filter of its own, and no file
 */
#define _GNU_SOURCE
#include <execinfo.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <printf.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "alike.h"
#include "raw.h"

const char *path;

int opened(void)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);

	CHECK(fd >= 0);
	return fd;
}

static char *mapped(int fd, long len)
{
	char *p;

	CHECK(ftruncate(fd, len) == 0);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

enum { NOBODY = 65534 };

extern int capset(struct __user_cap_header_struct *, const struct __user_cap_data_struct *);

/* Changes rights of this thread alone, or of the process. */
static void changes_itself(const char *how)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };

	if (strcmp(how, "setresuid-syscall") == 0)
		CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
	else if (strcmp(how, "setgroups-syscall") == 0)
		CHECK(syscall(SYS_setgroups, 1l, &(gid_t){ NOBODY }) == 0);
	else if (strcmp(how, "setfsuid") == 0)
		CHECK(setfsuid(NOBODY) == 0);
	else if (strcmp(how, "setfsgid") == 0)
		CHECK(setfsgid(NOBODY) == 0);
	else if (strcmp(how, "capset") == 0)
		CHECK(capset(&header, none) == 0);
	else if (strcmp(how, "capset-own-number") == 0) {
		header.pid = gettid();
		CHECK(capset(&header, none) == 0);
	} else if (strcmp(how, "seteuid-readonly") == 0)
		CHECK(chown(path, NOBODY, NOBODY) == 0 && chmod(path, 0444) == 0 && seteuid(NOBODY) == 0);
	else if (strcmp(how, "capset-syscall") == 0)
		CHECK(syscall(SYS_capset, &header, none) == 0);
	else if (strcmp(how, "capset-instruction") == 0)
		CHECK(raw(SYS_capset, P(&header), P(none), 0, 0, 0, 0) == 0);
	else if (strcmp(how, "keepcaps") == 0)
		CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
	else if (strcmp(how, "securebits") == 0)
		CHECK(syscall(SYS_prctl, PR_SET_SECUREBITS, 1 << 2, 0l, 0l, 0l) == 0);
	else if (strcmp(how, "given-away") == 0)
		CHECK(chown(path, NOBODY, NOBODY) == 0 && seteuid(NOBODY) == 0);
	else if (strcmp(how, "seteuid") == 0)
		CHECK(seteuid(NOBODY) == 0);
	else
		CHECK(!"such a way");
}

/* The answer of a call, and its error. */
void says(const char *call, long answer)
{
	if (answer == -1)
		printf("%s: error %d\n", call, errno);
	else
		printf("%s: %ld\n", call, answer);
}

static void *in_thread(void *how)
{
	changes_itself(how);
	return how;
}

/* For alike.sh: a program changes rights, also in a thread alone, while it has a file open. */
static void ends(const char *how, int by_thread)
{
	int fd = opened();
	pthread_t thread;

	CHECK(pwrite(fd, "acknowledged", 12, 0) == 12 && fsync(fd) == 0 && pwrite(fd, "not synced", 10, 100) == 10);
	if (by_thread)
		CHECK(pthread_create(&thread, NULL, in_thread, (void *)how) == 0 && pthread_join(thread, NULL) == 0);
	else
		changes_itself(how);
	puts("goes on");
}

/* What a program asks that makes sure that it has given up its rights. */
static void has_none(void)
{
	says("setuid", setuid(0));
	says("setuid", setuid(NOBODY - 1));
	says("seteuid", seteuid(0));
	says("setgid", setgid(0));
	says("setgroups", setgroups(0, NULL));
	says("initgroups", initgroups("root", 0));
}

static void works_on(int fd)
{
	says("write", pwrite(fd, "after", 5, 0));
	says("fsync", fsync(fd));
	says("ftruncate", ftruncate(fd, 8 * MIB));
	says("write, far", pwrite(fd, "far", 3, 7 * MIB));
	says("fsync", fsync(fd));
	/* The mark goes, and comes again. */
	sleep(3);
	says("write, later", pwrite(fd, "later", 5, MIB));
	says("fsync", fsync(fd));
	says("ftruncate, less", ftruncate(fd, 2 * MIB));
}

static void becomes_nobody(void)
{
	CHECK(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
}

/* A daemon gives up its rights before it opens a file. */
static void before(void)
{
	int fd = opened();

	CHECK(fchown(fd, NOBODY, NOBODY) == 0 && close(fd) == 0);
	CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
	becomes_nobody();
	changes_itself("capset-syscall");
	has_none();
	fd = opened();
	works_on(fd);
	has_none();
	says("close", close(fd));
	has_none();
}

/* A daemon gives up its rights for a user who owns the open file. */
static void owner(void)
{
	int fd = opened();

	CHECK(fchown(fd, NOBODY, NOBODY) == 0);
	becomes_nobody();
	works_on(fd);
	has_none();
	says("close", close(fd));
	has_none();
}

/* For alike.sh: the file would need more room than it has. */
static void grows(void)
{
	int fd = opened();

	CHECK(fchown(fd, NOBODY, NOBODY) == 0);
	becomes_nobody();
	CHECK(ftruncate(fd, 1000 * MIB) == -1 && errno == EPERM);
	CHECK(write(fd, "after", 5) == 5 && fsync(fd) == 0 && ftruncate(fd, MIB) == 0 && close(fd) == 0);
}

/* Rights that are given up by an instruction are not seen. */
static void unseen(void)
{
	int fd = opened();

	CHECK(write(fd, "before", 6) == 6);
	changes_itself("capset-instruction");
	has_none();
	works_on(fd);
	says("close", close(fd));
	has_none();
}

/* Changes that change nothing. */
static void no_change(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct all[2];
	int fd = opened(), n;
	gid_t groups[64];

	CHECK(write(fd, "before", 6) == 6);
	CHECK(syscall(SYS_capget, &header, all) == 0 && (n = getgroups(64, groups)) >= 0);
	says("capset", capset(&header, all));
	says("capset", syscall(SYS_capset, &header, all));
	says("capset of nothing", capset(NULL, all));
	says("setfsuid", setfsuid(0));
	says("setfsuid", setfsuid(-1));
	says("setfsgid", setfsgid(0));
	says("setresuid", syscall(SYS_setresuid, 0, 0, 0));
	says("setgroups", syscall(SYS_setgroups, (long)n, groups));
	says("setgroups", setgroups(n, groups));
	says("setgroups of too many", setgroups(1 << 20, groups));
	says("initgroups", initgroups("root", 0));
	says("keep", prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0));
	says("keep, wrong", prctl(PR_SET_KEEPCAPS, 77, 0, 0, 0));
	says("dumpable", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
	works_on(fd);
	says("close", close(fd));
	says("dumpable", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
}

/* A program whose files are closed may have users of its own. */
static void user_namespace(void)
{
	int fd = opened();

	CHECK(write(fd, "before", 6) == 6 && close(fd) == 0);
	says("unshare", unshare(CLONE_NEWUSER));
	says("capset", (changes_itself("capset"), 0));
	has_none();
}

static volatile int is_over, alarms;

static void *asks_for_a_user(void *p)
{
	int refused = 0, others = 0;

	while (!is_over) {
		if (seteuid(NOBODY - 2) == -1 && errno == EPERM)
			refused++;
		else
			others++;
	}
	puts(refused > 0 && others == 0 ? "always refused" : "not always refused");
	return p;
}

static void counts(int signal)
{
	(void)signal;
	alarms++;
}

/* All threads are asked to change their user again and again, which is refused, while one works on its file. */
static void users(void)
{
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { 0 };
	struct sigaction action = { .sa_handler = counts, .sa_flags = SA_RESTART };
	pthread_t thread;
	int fd = opened(), i;

	CHECK(fchown(fd, NOBODY, NOBODY) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(seteuid(NOBODY) == 0);
	CHECK(pthread_create(&thread, NULL, asks_for_a_user, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (i = 0; i < 30; i++) {
		CHECK(ftruncate(fd, (2 + i * 2) * MIB) == 0 && pwrite(fd, "written", 7, i * MIB) == 7 && fsync(fd) == 0);
		CHECK(fchmod(fd, 0444) == 0 && fchmod(fd, 0644) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && alarms > 0);
	is_over = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	says("close", close(fd));
}

/* A mode without the right to write, before or after what is written. */
static void modes(void)
{
	int fd = opened();

	says("fchmod", fchmod(fd, 0444));
	says("write", write(fd, "first", 5));
	says("fsync", fsync(fd));
	says("close", close(fd));
	CHECK(chmod(path, 0600) == 0);
	fd = opened();
	says("write", write(fd, "second", 6));
	says("fsync", fsync(fd));
	says("fchmod", fchmod(fd, 0444));
	says("close", close(fd));
	CHECK(chmod(path, 0644) == 0);
	fd = opened();
	says("write", pwrite(fd, "third", 5, PAGE));
	says("fsync", fsync(fd));
	says("chmod", chmod(path, 0));
	says("write", pwrite(fd, "fourth", 6, 2 * PAGE));
	says("fsync", fsync(fd));
	says("close", close(fd));
	CHECK(fchmodat(AT_FDCWD, path, 0644, 0) == 0);
	fd = opened();
	says("write", pwrite(fd, "fifth", 5, 3 * PAGE));
	says("fsync", fsync(fd));
	says("fchmodat", fchmodat(AT_FDCWD, path, 0400, 0));
	says("close", close(fd));
	CHECK(syscall(SYS_fchmodat, AT_FDCWD, path, 0644) == 0);
	fd = opened();
	says("write", pwrite(fd, "sixth", 5, 4 * PAGE));
	says("fsync", fsync(fd));
	says("fchmod by its number", syscall(SYS_fchmod, fd, 0444));
	says("fchown by its number", syscall(SYS_fchown, fd, -1, -1));
	says("fsetxattr by its number", syscall(SYS_fsetxattr, fd, "user.answer", "42", 2l, 0l));
	says("close", close(fd));
	/* fchmodat2(2) */
	CHECK(syscall(452, AT_FDCWD, path, 0644, 0l) == 0);
	fd = opened();
	says("write", pwrite(fd, "seventh", 7, 5 * PAGE));
	says("fsync", fsync(fd));
	says("fchmodat2", syscall(452, fd, "", 0444, AT_EMPTY_PATH));
	says("close", close(fd));
	CHECK(chmod(path, 0644) == 0);
	fd = opened();
	says("write", pwrite(fd, "eighth", 6, 6 * PAGE));
	says("fsync", fsync(fd));
	says("fchmodat2", syscall(452, AT_FDCWD, path, 0444, 0l));
	says("close", close(fd));
	CHECK(chmod(path, 0644) == 0);
}

/* Who may read and write a file by its list (ACL), which is its mode if it names nobody. */
static int lists(int fd, int how, int mode)
{
	struct {
		uint32_t version;
		struct {
			uint16_t who, may;
			uint32_t id;
		} all[3];
	} list = { 2, { { 1, mode >> 6 & 7, -1 }, { 4, mode >> 3 & 7, -1 }, { 32, mode & 7, -1 } } };
	const char *name = "system.posix_acl_access";

	switch (how) {
	case 0:
		return fsetxattr(fd, name, &list, sizeof(list), 0);
	case 1:
		return setxattr(path, name, &list, sizeof(list), 0);
	case 2:
		return lsetxattr(path, name, &list, sizeof(list), 0);
	case 3:
		return syscall(SYS_fsetxattr, fd, name, &list, sizeof(list), 0l);
	default:
		return syscall(SYS_setxattr, path, name, &list, sizeof(list), 0l);
	}
}

/* A list that takes the right to write away. */
static void access_lists(void)
{
	int how;

	for (how = 0; how < 5; how++) {
		int fd = opened();
		struct stat st;

		says("write", pwrite(fd, "listed", 6, how * PAGE));
		says("fsync", fsync(fd));
		says("a list", lists(fd, how, 0444));
		CHECK(fstat(fd, &st) == 0);
		printf("mode %o\n", st.st_mode & 0777);
		says("write", pwrite(fd, "again", 5, how * PAGE));
		says("close", close(fd));
		CHECK(chmod(path, 0644) == 0);
	}
}

/* A signal that somebody sends and the program ignores. */
static void ignored(void)
{
	struct sigaction action = { .sa_handler = counts };
	int fd = opened();

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && write(fd, "ignored", 7) == 7);
	CHECK(signal(SIGSYS, SIG_IGN) == SIG_DFL && kill(getpid(), SIGSYS) == 0 && raise(SIGSYS) == 0);
	printf("goes on: %d\n", signal(SIGSYS, counts) == SIG_IGN);
	CHECK(raise(SIGSYS) == 0 && raise(SIGUSR1) == 0);
	printf("handled: %d, %d\n", alarms, signal(SIGSYS, SIG_DFL) == counts);
}

static volatile int ends_now;

static void *works(void *file)
{
	while (!ends_now)
		CHECK(pwrite(*(int *)file, "ordinary", 8, 0) == 8);
	return file;
}

/* A thread with a fixed priority waits for an ordinary one on the same CPU, and does not spin. */
static void priority(void)
{
	struct sched_param high = { 1 };
	struct timespec before, after;
	long worst = 0, took;
	int fd = opened(), i;
	pthread_t thread;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	CHECK(pthread_create(&thread, NULL, works, &fd) == 0);
	if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &high) == 0) {
		for (i = 0; i < 20000; i++) {
			usleep(60 + i % 40);
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
			CHECK(pwrite(fd, "high", 4, PAGE) == 4);
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
			took = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
			worst = took > worst ? took : worst;
		}
	}
	ends_now = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	fprintf(stderr, "at most %ld us\n", worst);
	puts(worst < 100000 ? "no spinning" : "it spins");
}

/* A private mapping outlives the last close of its file. */
static void outlives(void)
{
	char *first, *second;
	int fd = opened();

	CHECK(write(fd, "first", 5) == 5);
	first = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(first != MAP_FAILED && close(fd) == 0);
	fd = opened();
	CHECK(pwrite(fd, "second", 6, 0) == 6 && fsync(fd) == 0);
	second = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(second != MAP_FAILED && close(fd) == 0 && first[PAGE - 1] == 0);
	first[0] = 'F';
	fd = opened();
	CHECK(pwrite(fd, "third", 5, PAGE) == 5);
	printf("%c, %s\n", first[0], second);
	CHECK(munmap(first, PAGE) == 0 && munmap(second, PAGE) == 0 && close(fd) == 0);
	fd = opened();
	CHECK(ftruncate(fd, 2 * PAGE) == 0 && close(fd) == 0);
}

/* A file with a private mapping, which the program may open no more. */
static void not_again(void)
{
	int fd = opened();
	char *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);

	CHECK(p != MAP_FAILED && write(fd, "first", 5) == 5 && close(fd) == 0 && chmod(path, 0600) == 0);
	says("seteuid", seteuid(NOBODY));
	says("open", open(path, O_RDWR));
	says("seteuid", seteuid(0));
	fd = opened();
	says("write", write(fd, "again", 5));
	CHECK(munmap(p, PAGE) == 0);
}

/* Private mappings that outlive the close of their file come and go. */
static void come_and_go(void)
{
	time_t begun = time(NULL);

	while (time(NULL) < begun + 4) {
		int fd = opened();
		char *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);

		CHECK(p != MAP_FAILED && close(fd) == 0 && munmap(p, PAGE) == 0);
	}
	sleep(1);
	says("write", write(opened(), "then", 4));
}

/* A file with a private mapping, which goes after a line. */
static void holds(const char *other)
{
	int fd = opened();
	FILE *words = fopen(other, "r");
	char *p, line[8];

	p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(p != MAP_FAILED && close(fd) == 0 && words);
	puts("1");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), words) && munmap(p, PAGE) == 0);
	puts("2");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), words));
}

static void small_calls(void)
{
	int fd = opened(), number = 1, ends_of[2];
	struct termios terminal;
	char name[64], *p;
	long flags;

	CHECK(write(fd, "0123456789", 10) == 10 && lseek(fd, 4, SEEK_SET) == 4);
	says("FIONREAD", ioctl(fd, FIONREAD, &number));
	printf("%d bytes\n", number);
	says("the same by syscall", syscall(SYS_ioctl, fd, FIONREAD, &number));
	number = 1;
	says("FIONBIO", ioctl(fd, FIONBIO, &number));
	says("flags", fcntl(fd, F_GETFL) & O_NONBLOCK);
	says("FIOCLEX", ioctl(fd, FIOCLEX));
	says("flags of the descriptor", fcntl(fd, F_GETFD));
	says("FIONCLEX", ioctl(fd, FIONCLEX));
	says("flags of the descriptor", fcntl(fd, F_GETFD));
	says("FIGETBSZ", ioctl(fd, FIGETBSZ, &number));
	says("FS_IOC_GETFLAGS", ioctl(fd, FS_IOC_GETFLAGS, &flags));
	says("TCGETS", ioctl(fd, TCGETS, &terminal));
	says("no request", ioctl(fd, 0x7777));
	errno = 0;
	says("isatty", isatty(fd));
	printf("errno %d\n", errno);
	says("tcgetattr", tcgetattr(fd, &terminal));
	says("ttyname_r", ttyname_r(fd, name, sizeof(name)));
	says("readahead", readahead(fd, 0, 10));
	says("posix_fadvise", posix_fadvise(fd, 0, 10, POSIX_FADV_WILLNEED));
	says("posix_fadvise, wrong", posix_fadvise(fd, 0, 10, 77));
	CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
	says("write of nothing", write(fd, "", 0));
	says("position", lseek(fd, 0, SEEK_CUR));
	says("write", write(fd, "a", 1));
	says("position", lseek(fd, 0, SEEK_CUR));
	p = mapped(fd, 4 * PAGE);
	CHECK(munmap(p + 2 * PAGE, 2 * PAGE) == 0);
	says("msync", msync(p, 2 * PAGE, MS_SYNC));
	says("msync of more", msync(p, 4 * PAGE, MS_SYNC));
	says("msync of more", msync(p, 4 * PAGE, MS_ASYNC));
	says("msync of nothing", msync(p + 2 * PAGE, PAGE, MS_SYNC));
	says("munlock", munlock(p, 2 * PAGE));
	says("munlock of nothing", munlock(p + 2 * PAGE, PAGE));
	says("mlock of nothing", mlock(p + 2 * PAGE, PAGE));
	says("madvise", madvise(p, 2 * PAGE, MADV_WILLNEED));
	says("madvise of nothing", madvise(p + 2 * PAGE, PAGE, MADV_WILLNEED));
	says("madvise, wrong", madvise(p, PAGE, 77));
	says("madvise, wrong address", madvise(p + 1, PAGE, MADV_WILLNEED));
	says("madvise, free", madvise(p, PAGE, MADV_FREE));
	says("posix_madvise", posix_madvise(p, PAGE, POSIX_MADV_RANDOM));
	says("posix_madvise, wrong", posix_madvise(p, PAGE, 77));
	CHECK(munmap(p, 2 * PAGE) == 0);
	/* The program's other descriptors are as before. */
	CHECK(pipe(ends_of) == 0 && write(ends_of[1], "abc", 3) == 3);
	says("FIONREAD of a pipe", ioctl(ends_of[0], FIONREAD, &number));
	printf("%d bytes\n", number);
	says("isatty of a pipe", isatty(ends_of[0]));
}

extern int __open(const char *, int, ...), __close(int), __dup2(int, int), __fcntl(int, int, ...);
extern int __open64(const char *, int, ...), __poll(struct pollfd *, nfds_t, int);
extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
extern ssize_t __pread64(int, void *, size_t, off_t), __pwrite64(int, const void *, size_t, off_t);
extern off_t __lseek(int, off_t, int);

/* Other names of the C library's functions. */
static void aliases(void)
{
	int fd = opened();
	struct pollfd one = { fd, POLLIN, 0 };
	char found[8] = "";

	says("write", __write(fd, "written", 7));
	says("pwrite", __pwrite64(fd, "W", 1, 0));
	says("lseek", __lseek(fd, 0, SEEK_SET));
	says("read", __read(fd, found, 3));
	says("pread", __pread64(fd, found + 3, 4, 3));
	puts(found);
	says("poll", __poll(&one, 1, 0));
	says("dup2", __dup2(fd, 20));
	says("fcntl", __fcntl(20, F_GETFL) & O_ACCMODE);
	says("close", __close(fd));
	says("close", __close(20));
	fd = __open64(path, O_RDONLY);
	says("read", read(fd, found, 7));
	says("close", close(fd));
	fd = __open(path, O_RDWR | O_APPEND);
	says("write", write(fd, "more", 4));
}

static void unwound(void);
static int found_way;

static int shows(FILE *to, const struct printf_info *info, const void *const *args)
{
	void *frames[64];
	int i, n = backtrace(frames, 64);

	(void)info, (void)args;
	for (i = 0; i < n; i++)
		found_way |= (char *)frames[i] >= (char *)unwound && (char *)frames[i] < (char *)unwound + 256;
	return fprintf(to, "shown");
}

static int takes(const struct printf_info *info, size_t n, int *types, int *sizes)
{
	(void)info, (void)n, (void)types, (void)sizes;
	return 0;
}

#pragma GCC diagnostic ignored "-Wformat"
#pragma GCC diagnostic ignored "-Wformat-extra-args"

/* Whoever unwinds the stack, as a cancellation, finds the way out of dprintf(3). */
static __attribute__((noinline)) void unwound(void)
{
	int fd = opened();

	CHECK(register_printf_specifier('Q', shows, takes) == 0);
	CHECK(dprintf(fd, "%Q\n") == 6);
	puts(found_way ? "found" : "lost");
}

static volatile int traps;

static void trapped(int signal)
{
	(void)signal;
	traps++;
}

/* A filter of the program's own traps a call that the library knows, too. */
static void filter(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = { sizeof(rules) / sizeof(*rules), rules };
	struct sigaction action = { .sa_handler = trapped };
	char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	CHECK(sigaction(SIGTERM, &action, NULL) == 0);
	CHECK(sigaction(SIGSYS, &action, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0);
	(void)syscall(SYS_mremap, at, MIB, 2 * MIB, MREMAP_MAYMOVE);
	(void)raise(SIGTERM);
	printf("%d traps\n", traps);
}

static const struct one {
	const char *name;
	void (*run)(void);
} all[] = {
	{ "before", before }, { "owner", owner }, { "unseen", unseen }, { "no-change", no_change },
	{ "user-namespace", user_namespace }, { "signals", in_order }, { "at-once", at_once },
	{ "group", own_group }, { "cancel-state", cancel_state },
	{ "thread-ends", thread_ends }, { "priority", priority }, { "private", outlives }, { "not-again", not_again },
	{ "users", users }, { "modes", modes }, { "lists", access_lists }, { "mark", mark },
	{ "sandboxed", sandboxed },
	{ "ignored", ignored }, { "sys-handler", sys_handler }, { "leaves", leaves }, { "come-and-go", come_and_go },
	{ "small", small_calls }, { "aliases", aliases }, { "unwound", unwound },
};

int main(int argc, char **argv)
{
	size_t i;

	path = argv[2];
	if (argc == 2 && strcmp(argv[1], "filter") == 0) {
		filter();
		return 0;
	}
	if (argc == 4 && strcmp(argv[1], "holds") == 0) {
		holds(argv[3]);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "grows") == 0) {
		grows();
		return 0;
	}
	if (argc == 4 && (strcmp(argv[1], "ends") == 0 || strcmp(argv[1], "ends-thread") == 0)) {
		ends(argv[3], strcmp(argv[1], "ends-thread") == 0);
		return 0;
	}
	for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (argc == 2)
			puts(all[i].name);
		else if (strcmp(argv[1], all[i].name) == 0) {
			all[i].run();
			return 0;
		}
	}
	CHECK(argc == 2);
	return 0;
}
