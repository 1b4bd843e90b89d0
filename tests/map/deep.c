// SPDX-License-Identifier: MIT OR Apache-2.0
/* A library that is loaded with RTLD_DEEPBIND: its open is the C library's (past.c). */
#include <fcntl.h>

int deep_open(const char *path, int flags);

int deep_open(const char *path, int flags)
{
	return open(path, flags);
}
