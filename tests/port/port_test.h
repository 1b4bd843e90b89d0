/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* port_test.h - what the two halves of the port's test share. */
#ifndef PORT_TEST_H
#define PORT_TEST_H

#include <stdbool.h>

#include "posix.h"

/* Media that has p at offset MEDIA_AT. */
#define MEDIA_AT 192
#define MEDIA(p) (&(struct fby_media){ .base = (u8 *)((uintptr_t)(p) - MEDIA_AT) })

void expect_at(bool good, const char *file, int line, const char *what);
#define EXPECT(condition) expect_at((condition), __FILE__, __LINE__, #condition)

/* Runs the function in a process of its own and returns wait's status.  error: the child's
 * stderr, up to 4095 bytes and a zero. */
int in_child(void (*function)(void), char *error);

/* Features that a CPU may lack: numbers of libgcc's bits.  PORT_TEST_WITHOUT=n omits n. */
enum { SSE4_2 = 8, AVX2 = 10, AVX512F = 15, PCLMUL = 19, AVX512VL = 20, VPCLMULQDQ = 33 };

void test_faults(void); /* port_fault_test.c */
void test_say(void); /* port_say_test.c */

#endif
