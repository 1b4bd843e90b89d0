/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * parts.h - the pool: its layers, side by side.
 */
#ifndef FBY_PARTS_H
#define FBY_PARTS_H

#include "drain/drain.h"
#include "log/logs.h"
#include "recover/recovery.h"

bool fby_name_ok(const char *name); /* of one that ends */

struct fby_pool {
	struct fby_space space;
	struct fby_cache cache;
	struct fby_logs logs;
	struct fby_drain drain;
	struct fby_recovery recovery;
	u64 memory_bytes;
};

#endif
