/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Functions for the programs that map-run runs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096l

static inline void check(int is, const char *file, int line, const char *what)
{
	const char *slash = strrchr(file, '/');

	if (!is) {
		fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", slash ? slash + 1 : file, line, what, errno, strerror(errno));
		exit(1);
	}
}
#define CHECK(what) check((what) != 0, __FILE__, __LINE__, #what)

static inline int is_mapped_run(void)
{
	return getenv("FOREBAY_MAP_RUN_POOL") != NULL;
}
