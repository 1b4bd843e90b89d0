/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * posix.h - the port for user space: compiler builtins for shared memory, a
 * table of functions for the media, so that one build of the engine serves
 * real media, plain files and the simulator.  core/medium/port.h lists the names.
 */
#ifndef FBY_PORT_POSIX_H
#define FBY_PORT_POSIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the on-media format is little endian and so must the machine be"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define FBY_STATIC_ASSERT(cond, text) _Static_assert(cond, text)

/* The process ends, and with it every pool that it has: in is not asked for. */
_Noreturn void fby_assert_failed(const char *cond, const char *file, int line);
#ifndef FBY_ASSERT
#define FBY_ASSERT(in, cond) ((cond) ? (void)sizeof(in) : fby_assert_failed(#cond, __FILE__, __LINE__))
#endif

#define fby_likely(x) __builtin_expect(!!(x), 1)
#define fby_unlikely(x) __builtin_expect(!!(x), 0)
#define fby_prefetch(p) __builtin_prefetch((p), 0, 3)
#if defined(__x86_64__)
/* The builtin only prefetches for reading, unless the compiler knows that the CPU has PREFETCHW.
 * On CPUs without it the instruction does nothing. */
#define fby_prefetchw(p) __asm__ volatile("prefetchw %0" : : "m"(*(const char *)(p)))
#else
#define fby_prefetchw(p) __builtin_prefetch((p), 1, 3)
#endif

#define fby_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define fby_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define fby_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define fby_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define fby_cmpxchg(p, old, new) \
	({ \
		__typeof__(*(p)) fby_old_ = (old); \
		__atomic_compare_exchange_n((p), &fby_old_, (new), false, __ATOMIC_ACQ_REL, \
					    __ATOMIC_RELAXED); \
	})
#define fby_fetch_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define fby_fetch_or(p, v) __atomic_fetch_or((p), (v), __ATOMIC_ACQ_REL)
#define fby_fetch_and(p, v) __atomic_fetch_and((p), (v), __ATOMIC_ACQ_REL)

#if defined(__x86_64__)
#define fby_mb_after_atomic() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define fby_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define fby_wmb() __builtin_ia32_sfence()
#define fby_relax() __builtin_ia32_pause()
#else
#define fby_mb_after_atomic() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define fby_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define fby_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define fby_relax() ((void)0)
#endif

struct fby_lock {
	u32 word;
};

static inline void fby_lock_init(struct fby_lock *l)
{
	fby_store(&l->word, 0u);
}

void fby_lock_slow(struct fby_lock *l);

static inline void fby_lock(struct fby_lock *l)
{
	if (!fby_cmpxchg(&l->word, 0u, 1u))
		fby_lock_slow(l);
}

static inline void fby_unlock(struct fby_lock *l)
{
	fby_store_release(&l->word, 0u);
}

unsigned int fby_cpu(void);
#define fby_pin() ((void)0) /* a program cannot */
#define fby_unpin() ((void)0)

#define fby_copy(dst, src, n) __builtin_memcpy((dst), (src), (n))
#define fby_zero(dst, n) __builtin_memset((dst), 0, (n))
#define fby_equal(a, b, n) (__builtin_memcmp((a), (b), (n)) == 0)

u32 fby_crc32c(u32 crc, const void *p, size_t n);

/* The implementation of the port's names for one kind of media; see core/medium/port.h. */
struct fby_media;
struct fby_device;
struct fby_media_ops {
	void (*write)(struct fby_media *m, u64 at, const void *src, size_t n);
	u32 (*write_crc)(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc);
	void (*fence)(struct fby_media *m, u64 at, size_t n);
	int (*read_crc)(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc);
};

/* The host owns it; it outlives the pool opened on it. */
struct fby_media {
	u8 *base; /* mapped, 4 KiB aligned; NULL: it is no memory */
	u64 size;
	const struct fby_media_ops *ops;
	void *host; /* for the ops */
	struct fby_device *device; /* core/medium/device.h; NULL: the media is memory */
};

#define fby_media_direct(m, at, n) ((m)->base ? (m)->base + (at) : NULL)
#define fby_media_size(m) ((m)->size)
#define fby_media_device(m) ((m)->device)
#define fby_port_write(m, at, src, n) ((m)->ops->write((m), (at), (src), (n)))
#define fby_port_write_crc(m, at, src, n, crc) ((m)->ops->write_crc((m), (at), (src), (n), (crc)))
#define fby_port_fence(m, at, n) ((m)->ops->fence((m), (at), (n)))
#define fby_port_read_crc(m, dst, at, n, crc) ((m)->ops->read_crc((m), (dst), (at), (n), (crc)))
/* The checksum costs nothing in addition to the copy here. */
#define fby_port_read(m, dst, at, n) fby_port_read_crc((m), (dst), (at), (n), &(u32){ 0 })
#ifndef fby_breathe /* a test counts them */
#define fby_breathe() ((void)0)
#endif
#define fby_uninitialized

/*
 * Ready-made media operations of port/posix.c, by persist method and copy
 * kernel; kernel is one of the names fby_posix_kernels() lists, or NULL for
 * the best of this CPU.  NULL if the CPU lacks it.
 */
enum fby_persist {
	FBY_PERSIST_NT,	    /* non-temporal stores, sfence */
	FBY_PERSIST_CLWB,   /* cached stores, clwb (or clflushopt, clflush), sfence */
	FBY_PERSIST_EADR,   /* caches are in the power-fail domain: cached stores, sfence */
	FBY_PERSIST_MSYNC,  /* page cache: cached stores, msync of the range */
};
const struct fby_media_ops *fby_posix_media_ops(enum fby_persist persist, const char *kernel);
/*
 * From now on a fault in this memory (poison, a file cut short) is an error of a
 * read by the operations above, and ends the process with a message and the exit
 * code where it is anything else.  The name stays valid as long as the process.
 * unwatch takes what watch returned; beyond 256 media nothing is watched.
 */
#define FBY_POSIX_FAULT_EXIT 7
int fby_posix_watch(const void *base, u64 size, const char *name);
void fby_posix_unwatch(int place);

/*
 * Writes a message of n bytes to standard error, if it is still that (posix_say.c), or by the
 * function that the host has given.  A signal handler may call it, and its errors are not told.
 */
void fby_posix_say(const char *text, size_t n);
void fby_posix_say_by(void (*say)(const char *text, size_t n));
/* Whether messages may be written to descriptor 2. */
bool fby_posix_has_stderr(void);

/* A process's implementation of struct fby_frame_port of core/api/map.h.  host is the persist
 * method, as (void *)(uintptr_t). */
void fby_posix_frame_flush(void *persist, const void *p, size_t n);
void fby_posix_frame_fence(void *persist);

const char *const *fby_posix_kernels(void); /* NULL-terminated, those this CPU can run, best first */
const char *fby_posix_crc_kernel(void);

#endif
