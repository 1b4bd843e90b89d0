/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * posix.c - the port for user space: assertions, locks, fences and flushes, the
 * CRC of lines, and the choice of a copy kernel (posix_copy.h) for a media.
 *
 * When data becomes durable, by persist method:
 *
 *	NT	non-temporal stores; the fence waits until they have left the
 *		write-combining buffers for the memory controller, which is in
 *		the power-fail domain (ADR)
 *	CLWB	cached stores, each line written back right after; the fence as
 *		above. clwb, clflushopt, or clflush, as the CPU supports
 *	EADR	cached stores; the caches are in the power-fail domain.  The
 *		fence orders them before the acknowledgement
 *	MSYNC	cached stores to the page cache; the fence is msync(2)
 *
 * On x86 sfence is the fence of the first three: it makes all stores before it
 * visible before any after it, and an acknowledgement is a store.  On aarch64
 * NT and CLWB are cached stores and dc cvap (clean to the point of
 * persistence), and are refused where the CPU lacks it; the fence is dsb.  On
 * other machines both are refused: MSYNC remains.
 *
 * Poisoned lines, and files that lost their blocks, raise SIGBUS: posix_fault.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "posix_copy.h"

void fby_assert_failed(const char *cond, const char *file, int line)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "forebay: assertion failed: %s (%s:%d)\n", cond, file, line);

	fby_posix_say(text, n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1);
	abort();
}

/* Spin for about as long as a holder needs (1 us); longer means that it lost
 * its CPU. */
void fby_lock_slow(struct fby_lock *l)
{
	unsigned int spins = 0;

	for (;;) {
		while (fby_load(&l->word)) {
			if (++spins % 64 == 0)
				sched_yield();
			else
				fby_relax();
		}
		if (fby_cmpxchg(&l->word, 0u, 1u))
			return;
	}
}

/* glibc reads it from the thread's rseq area, 2 ns: nothing to cache. */
unsigned int fby_cpu(void)
{
	int cpu = sched_getcpu();

	return cpu < 0 ? 0 : (unsigned int)cpu & 0xffff;
}

/* --- fences and flushes -------------------------------------------------- */

void fby_posix_fence_store(struct fby_media *m, u64 at, size_t n)
{
	(void)m;
	(void)at;
	(void)n;
#if defined(__x86_64__)
	_mm_sfence();
#elif defined(__aarch64__)
	__asm__ volatile("dsb sy" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/*
 * The fence is a promise that cannot be taken back: when msync fails, the
 * kernel may have dropped the dirty pages, a second msync would succeed without
 * them, and the caller is about to acknowledge.  So the process ends here, with
 * nothing acknowledged; recovery treats the write as torn.
 */
static void msync_range(const u8 *at, size_t n)
{
	static long page_bytes;
	uintptr_t first, end;
	static int stops;
	char text[512];
	int error, length;

	if (fby_unlikely(!fby_load(&page_bytes)))
		fby_store(&page_bytes, sysconf(_SC_PAGESIZE));
	first = (uintptr_t)at & ~((uintptr_t)fby_load(&page_bytes) - 1);
	end = (uintptr_t)at + n;
	if (msync((void *)first, end - first, MS_SYNC) == 0) {
		/* The kernel tells an error once, and another thread may have been told of this one. */
		while (fby_unlikely(fby_load_acquire(&stops)))
			pause();
		return;
	}
	error = errno;
	fby_store_release(&stops, 1);
	length = snprintf(
		text, sizeof(text),
		"forebay: msync of %zu bytes of the pool failed: %s. Writes cannot be made durable, "
		"so the process stops before it acknowledges one. Repair the storage under the pool "
		"and start again: what was acknowledged is kept.\n",
		(size_t)(end - first), strerror(error));
	fby_posix_say(text, length < (int)sizeof(text) ? (size_t)length : sizeof(text) - 1);
	abort();
}

void fby_posix_fence_msync(struct fby_media *m, u64 at, size_t n)
{
	msync_range(m->base + at, n);
}

#if defined(__x86_64__)
#define FLUSH_LOOP(name, isa, instruction) \
	__attribute__((target(isa))) static void name(const void *start, size_t n) \
	{ \
		const char *p = (const char *)((uintptr_t)start & ~(uintptr_t)63); \
		const char *end = (const char *)start + n; \
\
		for (; p < end; p += 64) \
			instruction((void *)p); \
	}
FLUSH_LOOP(flush_clwb, "clwb", _mm_clwb)
FLUSH_LOOP(flush_clflushopt, "clflushopt", _mm_clflushopt)
FLUSH_LOOP(flush_clflush, "sse2", _mm_clflush)

static void (*flush)(const void *start, size_t n) = flush_clflush;

static void choose_flush(void)
{
	unsigned int a, b, c, d;

	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return;
	if (b & (1u << 24))
		flush = flush_clwb;
	else if (b & (1u << 23))
		flush = flush_clflushopt;
}

static bool can_flush(void)
{
	return true;
}

void fby_posix_flush(const void *start, size_t n)
{
	flush(start, n);
}
#elif defined(__aarch64__)
static void choose_flush(void)
{
}

static bool can_flush(void)
{
	return getauxval(AT_HWCAP) & HWCAP_DCPOP;
}

void fby_posix_flush(const void *start, size_t n)
{
	uintptr_t p, ctr, line;

	__asm__("mrs %0, ctr_el0" : "=r"(ctr));
	line = (uintptr_t)4 << (ctr >> 16 & 15);
	for (p = (uintptr_t)start & ~(line - 1); p < (uintptr_t)start + n; p += line)
		__asm__ volatile("sys #3, c7, c12, #1, %0" ::"r"(p) : "memory"); /* dc cvap */
}
#else
static void choose_flush(void)
{
}

static bool can_flush(void)
{
	return false;
}

void fby_posix_flush(const void *start, size_t n)
{
	(void)start;
	(void)n;
}
#endif

/* Memory of frames is stored to by programs, with whatever instructions these have. */
void fby_posix_frame_flush(void *persist, const void *p, size_t n)
{
	switch ((enum fby_persist)(uintptr_t)persist) {
	case FBY_PERSIST_NT:
	case FBY_PERSIST_CLWB:
		fby_posix_flush(p, n);
		break;
	case FBY_PERSIST_EADR:
		break;
	case FBY_PERSIST_MSYNC:
		msync_range(p, n);
		break;
	}
}

void fby_posix_frame_fence(void *persist)
{
	if ((enum fby_persist)(uintptr_t)persist != FBY_PERSIST_MSYNC)
		fby_posix_fence_store(NULL, 0, 0);
}

/* --- CRC32C of lines ------------------------------------------------------ */

#define CRC32C_POLY 0x82f63b78u /* Castagnoli, bits reversed */

static u32 crc_table[8][256];

static void build_crc_table(void)
{
	u32 i, j, crc;

	for (i = 0; i < 256; i++) {
		crc = i;
		for (j = 0; j < 8; j++)
			crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLY : 0);
		crc_table[0][i] = crc;
	}
	for (j = 1; j < 8; j++)
		for (i = 0; i < 256; i++)
			crc_table[j][i] = crc_table[j - 1][i] >> 8 ^
					  crc_table[0][crc_table[j - 1][i] & 0xff];
}

u32 fby_crc32c_table(u32 crc, const void *buf, size_t n)
{
	const u8 *p = buf;
	u64 word;
	int i;

	crc = ~crc;
	for (; n >= 8; n -= 8, p += 8) {
		fby_copy(&word, p, 8);
		word ^= crc;
		crc = 0;
		for (i = 0; i < 8; i++)
			crc ^= crc_table[7 - i][word >> (8 * i) & 0xff];
	}
	for (; n; n--, p++)
		crc = crc >> 8 ^ crc_table[0][(crc ^ *p) & 0xff];
	return ~crc;
}

static u32 (*crc32c)(u32 crc, const void *p, size_t n) = fby_crc32c_table;
static const char *crc32c_name = "table";

#if defined(__x86_64__)
/* For lines of 60 bytes, so one lane: 8 bytes in 3 cycles.  What is longer goes
 * through a copy kernel. */
__attribute__((target("sse4.2"))) static u32 crc32c_sse42(u32 crc, const void *buf, size_t n)
{
	const u8 *p = buf;
	u64 word, sum = ~crc;

	for (; n >= 8; n -= 8, p += 8) {
		fby_copy(&word, p, 8);
		sum = _mm_crc32_u64(sum, word);
	}
	if (n >= 4) {
		u32 half;

		fby_copy(&half, p, 4);
		sum = _mm_crc32_u32((u32)sum, half);
		n -= 4;
		p += 4;
	}
	for (; n; n--, p++)
		sum = _mm_crc32_u8((u32)sum, *p);
	return ~(u32)sum;
}

static void choose_crc32c(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("sse4.2")) {
		crc32c = crc32c_sse42;
		crc32c_name = "sse4.2";
	}
}
#else
static void choose_crc32c(void)
{
}
#endif

u32 fby_crc32c(u32 crc, const void *p, size_t n)
{
	return crc32c(crc, p, n);
}

const char *fby_posix_crc_kernel(void)
{
	return crc32c_name;
}

/* --- the choice ----------------------------------------------------------- */

static const struct fby_media_kernel *const all_kernels[] = {
#if defined(__x86_64__)
	&fby_kernel_avx512,
	&fby_kernel_avx2,
	&fby_kernel_sse4,
	&fby_kernel_sse2,
#endif
	&fby_kernel_generic,
};
#define NKERNELS (sizeof(all_kernels) / sizeof(all_kernels[0]))

static const struct fby_media_kernel *usable_kernels[NKERNELS + 1];
static const char *usable_names[NKERNELS + 1];

/* Before main, so that no call pays for it and threads need no order. */
__attribute__((constructor)) static void posix_port_setup(void)
{
	size_t i, n = 0;

	build_crc_table();
	choose_crc32c();
	choose_flush();
	for (i = 0; i < NKERNELS; i++) {
		if (!all_kernels[i]->usable())
			continue;
		usable_kernels[n] = all_kernels[i];
		usable_names[n++] = all_kernels[i]->name;
	}
}

const char *const *fby_posix_kernels(void)
{
	return usable_names;
}

const struct fby_media_ops *fby_posix_media_ops(enum fby_persist persist, const char *kernel)
{
	const struct fby_media_kernel *const *k;

	for (k = usable_kernels; *k; k++) {
		if (kernel && strcmp(kernel, (*k)->name) != 0)
			continue;
		switch (persist) {
		case FBY_PERSIST_NT:
			return can_flush() ? &(*k)->nt : NULL;
		case FBY_PERSIST_CLWB:
			return can_flush() ? &(*k)->clwb : NULL;
		case FBY_PERSIST_EADR:
			return &(*k)->eadr;
		case FBY_PERSIST_MSYNC:
			return &(*k)->msync;
		}
		return NULL;
	}
	return NULL;
}
