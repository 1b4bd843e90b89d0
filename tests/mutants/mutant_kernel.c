// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * mutant_kernel.c - mutant.ko, which says to a forebay.ko with mutants which one is on:
 * the number in its parameter `on`, 0 none.  With -1 all are noted that are come past,
 * and none is on; `reached` has these as a bitmap, in hexadecimal.
 */
#include <linux/bitmap.h>
#include <linux/module.h>

#include "mutant.h"

#define MANY 8192

unsigned char fby_mutant_on[MANY];
EXPORT_SYMBOL_GPL(fby_mutant_on);

static DECLARE_BITMAP(reached, MANY);
static bool noting;

int fby_mutant_hit(unsigned int n)
{
	if (!noting)
		return 1;
	set_bit(n, reached);
	WRITE_ONCE(fby_mutant_on[n], 0);
	return 0;
}
EXPORT_SYMBOL_GPL(fby_mutant_hit);

static int set_on(const char *text, const struct kernel_param *unused)
{
	int n, rc = kstrtoint(text, 10, &n);

	if (rc || n < -1 || n >= MANY)
		return -EINVAL;
	noting = n < 0;
	memset(fby_mutant_on, noting, MANY);
	bitmap_zero(reached, MANY);
	if (n > 0)
		fby_mutant_on[n] = 1;
	return 0;
}

static int get_reached(char *to, const struct kernel_param *unused)
{
	return scnprintf(to, PAGE_SIZE, "%*pb\n", MANY, reached);
}

static const struct kernel_param_ops on_ops = { .set = set_on };
static const struct kernel_param_ops reached_ops = { .get = get_reached };
module_param_cb(on, &on_ops, NULL, 0200);
module_param_cb(reached, &reached_ops, NULL, 0400);

MODULE_DESCRIPTION("Which mutant of the module is on");
MODULE_LICENSE("Dual MIT/GPL");
