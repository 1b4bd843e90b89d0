/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * types.h - all that port/linux.h takes from the kernel's headers, declared and not defined, so
 * that core/ compiles by the kernel's rules without a kernel.  The other headers here include
 * this one.  A call that costs something in the kernel is named stub_*.  Any other symbol that an
 * object needs is a bug, and tests/kernel-flavour/run reports it.
 */
#ifndef STUB_LINUX_TYPES_H
#define STUB_LINUX_TYPES_H

#define CONFIG_64BIT 1

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed long long s64;
typedef __SIZE_TYPE__ size_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define prefetch(p) __builtin_prefetch(p)
#define prefetchw(p) __builtin_prefetch((p), 1)
#define BUILD_BUG_ON(cond) _Static_assert(!(cond), #cond)

#define barrier() __asm__ volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) ((void)(*(volatile __typeof__(x) *)&(x) = (v)))
#define smp_load_acquire(p) \
	({ \
		__typeof__(*(p)) stub_v_ = READ_ONCE(*(p)); \
		barrier(); \
		stub_v_; \
	})
#define smp_store_release(p, v) \
	({ \
		barrier(); \
		WRITE_ONCE(*(p), (v)); \
	})
#define smp_mb__after_atomic() barrier()
#define smp_rmb() barrier()
#define wmb() barrier()
#define pmem_wmb() wmb()
#define __uninitialized
#define cpu_relax() barrier()

typedef struct {
	int counter;
} atomic_t;
typedef struct {
	s64 counter;
} atomic64_t;
u64 stub_cmpxchg(volatile void *p, u64 old, u64 new, size_t size);
int stub_fetch(const char *op, int v, atomic_t *p);
s64 stub_fetch64(const char *op, s64 v, atomic64_t *p);
#define cmpxchg(p, old, new) ((__typeof__(*(p)))stub_cmpxchg((p), (old), (new), sizeof(*(p))))
#define atomic_fetch_add(v, p) stub_fetch("add", (v), (p))
#define atomic_fetch_or(v, p) stub_fetch("or", (v), (p))
#define atomic_fetch_and(v, p) stub_fetch("and", (v), (p))
#define atomic64_fetch_add(v, p) stub_fetch64("add", (v), (p))
#define atomic64_fetch_or(v, p) stub_fetch64("or", (v), (p))
#define atomic64_fetch_and(v, p) stub_fetch64("and", (v), (p))

typedef struct {
	u32 word;
} raw_spinlock_t;
void stub_spin_lock_init(raw_spinlock_t *l);
void stub_spin_lock(raw_spinlock_t *l);
void stub_spin_unlock(raw_spinlock_t *l);
#define raw_spin_lock_init(l) stub_spin_lock_init(l)
#define raw_spin_lock(l) stub_spin_lock(l)
#define raw_spin_unlock(l) stub_spin_unlock(l)
#define DEFINE_RAW_SPINLOCK(l) raw_spinlock_t l
#define raw_spin_lock_irqsave(l, flags) ((flags) = 0, stub_spin_lock(l))
#define raw_spin_unlock_irqrestore(l, flags) ((void)(flags), stub_spin_unlock(l))
u32 stub_processor_id(void);
#define raw_smp_processor_id() stub_processor_id()

#define container_of(p, type, member) ((type *)((char *)(p) - __builtin_offsetof(type, member)))
struct list_head {
	struct list_head *next, *prev;
};
#define LIST_HEAD(l) struct list_head l = { &(l), &(l) }
#define list_for_each_entry(p, head, member) \
	for (p = container_of((head)->next, __typeof__(*p), member); &p->member != (head); \
	     p = container_of(p->member.next, __typeof__(*p), member))
static inline void list_add(struct list_head *new, struct list_head *head)
{
	*new = (struct list_head){ head->next, head };
	head->next = head->next->prev = new;
}
static inline void list_del(struct list_head *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
}

__attribute__((format(printf, 1, 2))) void stub_warn(const char *text, ...);
#define WARN(condition, ...) ((condition) ? stub_warn(__VA_ARGS__) : (void)0)

void *memcpy(void *dst, const void *src, size_t n);
void *memset(void *dst, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);

#endif
