// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * linux_assert.c - which pool an assertion is about: the open pools, by their memory and media.
 */
#include "linux.h"

/* Guards the list, and which memory each pool has.  Assertions fail in any context and under any
 * lock of the engine's, so nothing else is taken under this one. */
static DEFINE_RAW_SPINLOCK(pools_lock);
static LIST_HEAD(pools);
static bool all_broken; /* the address of a failed assertion was in no pool */

void fby_linux_pool_add(struct fby_linux_pool *p)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&pools_lock, flags);
	p->broken = all_broken;
	list_add(&p->list, &pools);
	raw_spin_unlock_irqrestore(&pools_lock, flags);
}

void fby_linux_pool_memory(struct fby_linux_pool *p, const void *mem, u64 bytes)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&pools_lock, flags);
	p->mem = mem;
	p->bytes = bytes;
	raw_spin_unlock_irqrestore(&pools_lock, flags);
}

void fby_linux_pool_remove(struct fby_linux_pool *p)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&pools_lock, flags);
	list_del(&p->list);
	raw_spin_unlock_irqrestore(&pools_lock, flags);
}

static bool has(const struct fby_linux_pool *p, const void *in)
{
	return in == p->media || (in >= p->mem && (u64)((const u8 *)in - (const u8 *)p->mem) < p->bytes);
}

/* Returns the pool, which stays while somebody is in the engine for it; NULL: all pools. */
static const struct fby_linux_pool *break_pool(const void *in)
{
	struct fby_linux_pool *p, *found = NULL;
	unsigned long flags;

	raw_spin_lock_irqsave(&pools_lock, flags);
	list_for_each_entry(p, &pools, list)
		if (has(p, in))
			found = p;
	if (!found)
		all_broken = true;
	list_for_each_entry(p, &pools, list)
		if (!found || p == found)
			WRITE_ONCE(p->broken, true);
	raw_spin_unlock_irqrestore(&pools_lock, flags);
	return found;
}

void fby_assert_failed(const void *in, const char *cond, const char *file, int line)
{
	const struct fby_linux_pool *p = break_pool(in);

	WARN(1, "forebay: %s: assertion failed: %s, %s:%d; %s\n", p ? p->name : "of no known pool", cond, file, line,
	     p ? "this pool takes no more writes until all its devices are detached; others go on" :
		 "no pool takes any more writes until the module is loaded again");
}
