/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What rare.c and used.c share. */
#include <setjmp.h>

#include "check.h"
#include "raw.h"

#define MIB (1l << 20)

extern const char *path, *other;
extern sigjmp_buf away;

int opened(void);
char *mapped(int fd, long len);
void jumps(int signal);

/* The cases of used.c. */
void submits(void), reads_late(void), moves(void), jumps_out(void), interrupted(void), lists(void), cipher(void), zerocopy_before(void), remote(void), rings(void);
