/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * posix_copy.h - the copy kernels of the media operations of posix.c.  A kernel moves cache lines
 * and computes their CRC32C in the same pass, for one family of CPUs.
 *
 * Every kernel reads each byte of its source once, and its CRC covers exactly the bytes that it
 * stores.  If another thread changes the source meanwhile, the data is the old or the new, and
 * its checksum always fits.
 *
 * n is a multiple of 64.  dst of stream and store, and src of load, are 64-byte
 * aligned (the media); the other side has any alignment.  Lines are stored
 * whole and in ascending order.
 */
#ifndef FBY_POSIX_COPY_H
#define FBY_POSIX_COPY_H

#include <setjmp.h>

#include "posix.h"

struct fby_media_kernel {
	const char *name;
	bool (*usable)(void);
	struct fby_media_ops nt, clwb, eadr, msync;
};

/* Functions of posix.c for the kernels' tables. */
void fby_posix_fence_store(struct fby_media *m, u64 at, size_t n);
void fby_posix_fence_msync(struct fby_media *m, u64 at, size_t n);
/* Writes back the cache lines of [start, start+n); ordered by fence_store. */
void fby_posix_flush(const void *start, size_t n);

/* CRC32C by table, 8 bytes a step; the tables are built before main. */
u32 fby_crc32c_table(u32 crc, const void *p, size_t n);

/* Execution continues here after a fault in watched media (posix_fault.c) during a read of it. */
extern _Thread_local jmp_buf *volatile fby_posix_read_guard;

/* Best first. */
#if defined(__x86_64__)
extern const struct fby_media_kernel fby_kernel_avx512, fby_kernel_avx2, fby_kernel_sse4,
	fby_kernel_sse2;
#endif
extern const struct fby_media_kernel fby_kernel_generic;

/*
 * The twelve media operations of a kernel from its six moves:
 *	stream(dst, src, n), stream_crc(dst, src, n, crc)  past the caches
 *	store(dst, src, n), store_crc(dst, src, n, crc)    through the caches
 *	load_crc(dst, src, n, crc)                         dst may be NULL
 */
#define FBY_MEDIA_KERNEL_OPS(k) \
	static void k##_nt_write(struct fby_media *m, u64 at, const void *src, size_t n) \
	{ \
		k##_stream(m->base + at, src, n); \
	} \
	static u32 k##_nt_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc) \
	{ \
		return k##_stream_crc(m->base + at, src, n, crc); \
	} \
	static void k##_clwb_write(struct fby_media *m, u64 at, const void *src, size_t n) \
	{ \
		k##_store(m->base + at, src, n); \
		fby_posix_flush(m->base + at, n); \
	} \
	static u32 k##_clwb_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc) \
	{ \
		crc = k##_store_crc(m->base + at, src, n, crc); \
		fby_posix_flush(m->base + at, n); \
		return crc; \
	} \
	static void k##_cached_write(struct fby_media *m, u64 at, const void *src, size_t n) \
	{ \
		k##_store(m->base + at, src, n); \
	} \
	static u32 k##_cached_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc) \
	{ \
		return k##_store_crc(m->base + at, src, n, crc); \
	} \
	static int k##_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc) \
	{ \
		jmp_buf guard; \
\
		if (fby_unlikely(_setjmp(guard))) \
			return 1; \
		fby_posix_read_guard = &guard; \
		__asm__ volatile("" ::: "memory"); \
		*crc = k##_load_crc(dst, m->base + at, n, *crc); \
		__asm__ volatile("" ::: "memory"); \
		fby_posix_read_guard = NULL; \
		return 0; \
	}

#define FBY_MEDIA_KERNEL_TABLE(k) \
	.nt = { k##_nt_write, k##_nt_write_crc, fby_posix_fence_store, k##_read_crc }, \
	.clwb = { k##_clwb_write, k##_clwb_write_crc, fby_posix_fence_store, k##_read_crc }, \
	.eadr = { k##_cached_write, k##_cached_write_crc, fby_posix_fence_store, k##_read_crc }, \
	.msync = { k##_cached_write, k##_cached_write_crc, fby_posix_fence_msync, k##_read_crc }

#endif
