// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * port_features.c - a CPU that lacks something: a bit of what __builtin_cpu_supports looks
 * at is cleared after libgcc's constructor and before the port's.  In a file without that
 * builtin, since clang declares these names in its own way.
 */
#include <stdlib.h>

#include "port_test.h"

extern struct {
	unsigned int vendor, type, subtype, features;
} __cpu_model;
extern unsigned int __cpu_features2[];
int __cpu_indicator_init(void);

__attribute__((constructor(201))) static void leave_out_feature(void)
{
	const char *without = getenv("PORT_TEST_WITHOUT");
	int bit = without ? atoi(without) : -1;

	__cpu_indicator_init();
	if (bit >= 32)
		__cpu_features2[0] &= ~(1u << (bit - 32));
	else if (bit >= 0)
		__cpu_model.features &= ~(1u << bit);
}
