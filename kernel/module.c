// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * module.c - loading and unloading.
 */
#include <linux/module.h>

#include "fbk.h"

static int __init fbk_init(void)
{
	int rc;

	fby_linux_init();
	rc = fbk_io_init();
	if (rc)
		return rc;
	rc = fbk_target_init();
	if (rc)
		goto no_target;
	rc = fbk_native_init();
	if (rc)
		goto no_native;
	return 0;
no_native:
	fbk_target_exit();
no_target:
	fbk_io_exit();
	return rc;
}

static void __exit fbk_exit(void)
{
	fbk_native_exit();
	fbk_target_exit();
	fbk_media_exit();
	fbk_io_exit();
}

module_init(fbk_init);
module_exit(fbk_exit);

MODULE_DESCRIPTION("Forebay: a persistent-memory write cache for block devices");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_ALIAS("dm-forebay");
