/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * waits WAY FILE NUMBER: stores pages of that number to all of a file, half by a mapping and half
 * by pwrite, syncs, says so, and ends by the WAY:
 *
 *   kill   it kills itself
 *   child  so it does, and a child that has copies of its descriptors lives on
 *   exec   an instruction executes a program that does not end
 *   exit   it returns from main
 */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "raw.h"

int main(int argc, char **argv)
{
	static char *sleeps[] = { "/bin/sleep", "60", NULL };
	static char *none[] = { NULL };
	static char page[PAGE];
	struct stat st;
	char *p;
	int fd;

	CHECK(argc == 4);
	memset(page, atoi(argv[3]), PAGE);
	fd = open(argv[2], O_RDWR);
	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	p = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	if (strcmp(argv[1], "child") == 0) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			sleep(60);
			_exit(0);
		}
	}
	for (long at = 0; at < st.st_size / 2; at += PAGE)
		memcpy(p + at, page, PAGE);
	CHECK(msync(p, st.st_size, MS_SYNC) == 0);
	for (long at = st.st_size / 2; at < st.st_size; at += PAGE)
		CHECK(pwrite(fd, page, PAGE, at) == PAGE);
	CHECK(fsync(fd) == 0);
	CHECK(printf("%s\n", argv[3]) > 0 && fflush(stdout) == 0);
	if (strcmp(argv[1], "exec") == 0)
		raw(SYS_execve, P(sleeps[0]), P(sleeps), P(none), 0, 0, 0);
	if (strcmp(argv[1], "exit") != 0)
		kill(getpid(), SIGKILL);
	return 0;
}
