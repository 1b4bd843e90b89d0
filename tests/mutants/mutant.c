// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * mutant.c - in user space: FBY_MUTANT=n puts one mutant on, and 0 or none leaves the engine as it
 * is.  FBY_MUTANT_REACHED=FILE notes in the file, a byte each, which mutants a run came past.  It
 * adds to what is there, since a process may start others and may be killed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mutant.h"

#define MANY 32768u

unsigned char fby_mutant_on[MANY];
static unsigned char *reached;

__attribute__((no_sanitize("thread"))) int fby_mutant_hit(unsigned int n)
{
	if (!reached)
		return 1;
	reached[n] = 1;
	fby_mutant_on[n] = 0;
	return 0;
}

/* This runs before the port's own constructor, which has mutants too. */
__attribute__((constructor(101))) static void mutant_setup(void)
{
	const char *chosen = getenv("FBY_MUTANT"), *file = getenv("FBY_MUTANT_REACHED");
	unsigned long n = chosen ? strtoul(chosen, NULL, 10) : 0;

	if (file) {
		int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		if (fd < 0 || ftruncate(fd, MANY) != 0 ||
		    (reached = mmap(NULL, MANY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
			perror(file);
			_exit(2);
		}
		close(fd);
		memset(fby_mutant_on, 1, MANY);
		return;
	}
	if (n >= MANY) {
		fprintf(stderr, "FBY_MUTANT=%lu: there are fewer\n", n);
		_exit(2);
	}
	if (n)
		fby_mutant_on[n] = 1;
}
