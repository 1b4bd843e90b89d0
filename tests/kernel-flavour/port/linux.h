/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * linux.h - a stand-in for the kernel's port, for compiling core/ by the
 * kernel's rules where no kernel is.  It declares exactly the names that
 * core/port.h lists, as a kernel would supply them, and no header of the C
 * library; tests/kernel-flavour/run checks what the objects still ask for.
 *
 * It is found because core/port.h asks for ../port/linux.h and this directory's
 * include/ is on the search path.  A real port/linux.h, once there is one, is
 * found before it.
 */
#ifndef FBY_PORT_LINUX_STAND_IN_H
#define FBY_PORT_LINUX_STAND_IN_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __SIZE_TYPE__ size_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define FBY_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
void fby_stub_bug(void); /* BUG() */
#define FBY_ASSERT(cond) ((cond) ? (void)0 : fby_stub_bug())
#define fby_likely(x) __builtin_expect(!!(x), 1)
#define fby_unlikely(x) __builtin_expect(!!(x), 0)
#define fby_prefetch(p) __builtin_prefetch(p)
#define fby_prefetchw(p) __builtin_prefetch((p), 1)

/* READ_ONCE and its kin; read-modify-write by calls, so that no width of it
 * turns into a helper of the compiler's. */
#define fby_load(p) (*(const volatile __typeof__(*(p)) *)(p))
#define fby_store(p, v) ((void)(*(volatile __typeof__(*(p)) *)(p) = (v)))
#define fby_load_acquire(p) \
	({ \
		__typeof__(*(p)) fby_v_ = fby_load(p); \
		__asm__ volatile("" ::: "memory"); \
		fby_v_; \
	})
#define fby_store_release(p, v) \
	({ \
		__asm__ volatile("" ::: "memory"); \
		fby_store((p), (v)); \
	})
bool fby_stub_cmpxchg(volatile void *p, u64 old, u64 new, size_t size);
u64 fby_stub_fetch(volatile void *p, u64 v, size_t size, char op);
#define fby_cmpxchg(p, old, new) fby_stub_cmpxchg((p), (old), (new), sizeof(*(p)))
#define FBY_STUB_FETCH(p, v, op) \
	({ \
		__typeof__(*(p)) fby_v_ = (__typeof__(*(p)))fby_stub_fetch((p), (u64)(v), sizeof(*(p)), op); \
		fby_v_; \
	})
#define fby_fetch_add(p, v) FBY_STUB_FETCH(p, v, '+')
#define fby_fetch_or(p, v) FBY_STUB_FETCH(p, v, '|')
#define fby_fetch_and(p, v) FBY_STUB_FETCH(p, v, '&')
#define fby_rmb() __asm__ volatile("" ::: "memory")
#define fby_wmb() __asm__ volatile("" ::: "memory")
#define fby_relax() __asm__ volatile("" ::: "memory")

struct fby_lock {
	u32 word;
};
void fby_stub_lock(struct fby_lock *l);
void fby_stub_unlock(struct fby_lock *l);
#define fby_lock_init(l) ((void)((l)->word = 0))
#define fby_lock(l) fby_stub_lock(l)
#define fby_unlock(l) fby_stub_unlock(l)
u32 fby_stub_cpu(void);
#define fby_cpu() fby_stub_cpu()

void *memcpy(void *dst, const void *src, size_t n);
void *memset(void *dst, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
#define fby_copy(dst, src, n) ((void)memcpy((dst), (src), (n)))
#define fby_zero(dst, n) ((void)memset((dst), 0, (n)))
#define fby_equal(a, b, n) (memcmp((a), (b), (n)) == 0)
u32 fby_crc32c(u32 crc, const void *p, size_t n);

struct fby_media {
	u8 *base;
	u64 size;
};
#define fby_media_base(m) ((m)->base)
#define fby_media_size(m) ((m)->size)
void fby_port_write(struct fby_media *m, void *dst, const void *src, size_t n);
u32 fby_port_write_crc(struct fby_media *m, void *dst, const void *src, size_t n, u32 crc);
void fby_port_fence(struct fby_media *m, const void *start, size_t n);
int fby_port_read_crc(struct fby_media *m, void *dst, const void *src, size_t n, u32 *crc);

#endif
