/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What alike.c, often.c and mark.c share. */
#include "check.h"

#define MIB (1l << 20)

extern const char *path;

int opened(void);
/* Says the answer of a call, and its error. */
void says(const char *call, long answer);

/* The cases of often.c. */
void in_order(void), at_once(void), own_group(void), cancel_state(void), thread_ends(void), sys_handler(void),
	leaves(void);
/* The cases of mark.c. */
void mark(void), sandboxed(void);
