// SPDX-License-Identifier: MIT OR Apache-2.0
/* A library whose destructor stores to a mapping of the program (ends.c). */
#include <string.h>

char *end_memory;

__attribute__((destructor)) static void last(void)
{
	if (end_memory)
		strcpy(end_memory, "last, by the destructor of a library");
}
