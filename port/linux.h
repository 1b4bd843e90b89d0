/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * linux.h - the port for the Linux kernel, 6.1 and later: READ_ONCE and the
 * atomics for shared memory, DAX for the media.  core/medium/port.h lists the names.
 *
 * Shared words are plain integers to the engine and atomic_t to the kernel's
 * operations, which have the same layout; so KCSAN and KASAN see every access.
 */
#ifndef FBY_PORT_LINUX_H
#define FBY_PORT_LINUX_H

#include <linux/atomic.h>
#include <linux/build_bug.h>
#include <linux/bug.h>
#include <linux/compiler.h>
#include <linux/list.h>
#include <linux/preempt.h>
#include <linux/prefetch.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/types.h>

#if !defined(CONFIG_64BIT) || defined(__BIG_ENDIAN)
#error "the engine needs a 64-bit little-endian kernel"
#endif

#define FBY_STATIC_ASSERT(cond, text) _Static_assert(cond, text)

/*
 * An open pool, as linux_assert.c knows it.  A pool whose assertion fails is broken: a warning
 * names it, its host no longer calls the engine for it, and the machine and all other pools go
 * on.  If the address belongs to no pool, all pools are broken, later ones too.
 */
struct fby_linux_pool {
	struct list_head list;
	const char *name; /* for the warning */
	const struct fby_media *media;
	const void *mem; /* the engine's memory, [mem, mem + bytes) */
	u64 bytes;
	bool broken;
};

/* Before the engine is first called for its media; name and media are set, the rest is zero. */
void fby_linux_pool_add(struct fby_linux_pool *p);
/* The memory that fby_pool_open gets; NULL, 0: before it is freed. */
void fby_linux_pool_memory(struct fby_linux_pool *p, const void *mem, u64 bytes);
void fby_linux_pool_remove(struct fby_linux_pool *p);
static inline bool fby_asserts_hold(const struct fby_linux_pool *p)
{
	return likely(!READ_ONCE(p->broken));
}

void fby_assert_failed(const void *in, const char *cond, const char *file, int line);
#define FBY_ASSERT(in, cond) (likely(cond) ? (void)0 : fby_assert_failed((in), #cond, __FILE__, __LINE__))

#define fby_likely(x) likely(x)
#define fby_unlikely(x) unlikely(x)
#define fby_prefetch(p) prefetch(p)
#define fby_prefetchw(p) prefetchw(p)

#define fby_load(p) READ_ONCE(*(p))
#define fby_store(p, v) WRITE_ONCE(*(p), (v))
#define fby_load_acquire(p) smp_load_acquire(p)
#define fby_store_release(p, v) smp_store_release((p), (v))
#define fby_cmpxchg(p, old, new) \
	({ \
		typeof(*(p)) fby_old_ = (old); \
		cmpxchg((p), fby_old_, (new)) == fby_old_; \
	})

/* op: add, or, and; 4 or 8 bytes. */
#define FBY_FETCH(op, p, v) \
	({ \
		BUILD_BUG_ON(sizeof(*(p)) != 4 && sizeof(*(p)) != 8); \
		(typeof(*(p)))(sizeof(*(p)) == 8 ? (u64)atomic64_fetch_##op((s64)(v), (atomic64_t *)(p)) : \
						   (u32)atomic_fetch_##op((int)(v), (atomic_t *)(p))); \
	})
#define fby_fetch_add(p, v) FBY_FETCH(add, p, v)
#define fby_fetch_or(p, v) FBY_FETCH(or, p, v)
#define fby_fetch_and(p, v) FBY_FETCH(and, p, v)

#define fby_mb_after_atomic() smp_mb__after_atomic()
#define fby_rmb() smp_rmb()
#define fby_wmb() wmb() /* orders non-temporal stores too */
#define fby_relax() cpu_relax()

/* Taken by process context alone: the module calls the engine from nowhere else.
 * Raw, because it is taken while pinned: with PREEMPT_RT the other kind sleeps.
 */
struct fby_lock {
	raw_spinlock_t lock; /* a spinlock, as the engine asks for */
};

#define fby_lock_init(l) raw_spin_lock_init(&(l)->lock)
#define fby_lock(l) raw_spin_lock(&(l)->lock)
#define fby_unlock(l) raw_spin_unlock(&(l)->lock)

#define fby_cpu() ((u32)raw_smp_processor_id())
/* The longest between them is the copy of a batch, 64 KiB. */
#define fby_pin() preempt_disable()
#define fby_unpin() preempt_enable()

#define fby_copy(dst, src, n) ((void)memcpy((dst), (src), (n)))
#define fby_zero(dst, n) ((void)memset((dst), 0, (n)))
#define fby_equal(a, b, n) (memcmp((a), (b), (n)) == 0)

u32 fby_crc32c(u32 crc, const void *p, size_t n);

struct fby_media {
	u8 *base; /* mapped for as long as a pool is open on it */
	u64 size;
	struct fby_device *device; /* whose image this is; NULL: it is persistent memory */
};

#define fby_media_direct(m, at, n) ((m)->base + (at))
#define fby_media_size(m) ((m)->size)
#define fby_media_device(m) ((m)->device)

void fby_port_write(struct fby_media *m, u64 at, const void *src, size_t n);
u32 fby_port_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc);
static inline void fby_port_fence(struct fby_media *m, u64 at, size_t n)
{
	(void)m;
	(void)at;
	(void)n;
	pmem_wmb();
}

int fby_port_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc); /* crc may be NULL */
#define fby_port_read(m, dst, at, n) fby_port_read_crc((m), (dst), (at), (n), NULL)
#define fby_uninitialized __uninitialized
#define fby_breathe() cond_resched()

/* Tables of the checksum; before anything else of the port. */
void fby_linux_init(void);

/* Macros of the kernel's that are names of the engine's own.  kernel/fbk.h,
 * which needs them, brings them back.
 */
#pragma push_macro("current")
#pragma push_macro("noinline")
#pragma push_macro("round_up")
#undef current
#undef noinline
#undef round_up

#endif
