/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * x86_fold.h - CRC32C of a stream of cache lines by carry-less multiplication
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel 2009).  The lines are in registers anyway, for the copy.
 *
 * A 128-bit register stands for its place in the message.  Moving it D bits
 * towards the end multiplies it by x^D modulo the polynomial: its low half by
 * x^(D+31), its high half by x^(D-33) (bit-reflected, hence the odd numbers),
 * after which it is added to what stands there.  So a line of 64 bytes is four
 * independent chains, each moved by one line, or more, at a step.
 */
#ifndef FBY_X86_FOLD_H
#define FBY_X86_FOLD_H

#include <immintrin.h>

#include "posix_copy.h"

/* FBY_FOLD_n: { x^(8n+31), 0, x^(8n-33), 0 } mod P, reflected: moves by n bytes. */
#define FBY_FOLD_16 (int)0xf20c0dfe, 0, (int)0x493c7d27, 0
#define FBY_FOLD_64 (int)0x740eef02, 0, (int)0x9e4addf8, 0
#define FBY_FOLD_256 (int)0xdcb17aa4, 0, (int)0xb9e02b86, 0

/* The destination of a line's bytes, in addition to the CRC. */
enum fby_put {
	FBY_PUT_STREAM, /* dst aligned */
	FBY_PUT_STORE,
	FBY_PUT_NOWHERE, /* dst any address of n bytes: nothing is stored */
};

/*
 * The worker of a kernel; put is a constant in each of its callers.  The
 * media's side is read and written by several threads at once and the engine
 * decides afterwards whether what it read counts, so ThreadSanitizer must not
 * look at it; vector loads cannot be marked atomic one by one.
 */
#define FBY_WORKER(isa) \
	static inline \
		__attribute__((always_inline, target(isa), no_sanitize("thread")))
#define FBY_MOVE(isa) static __attribute__((target(isa), no_sanitize("thread")))

/* 16 bytes that stand for the whole message: its CRC register. */
FBY_WORKER("sse4.2")
u32 fby_fold_end(__m128i x)
{
	u64 half[2];

	_mm_storeu_si128((__m128i *)half, x);
	return ~(u32)_mm_crc32_u64(_mm_crc32_u64(0, half[0]), half[1]);
}

FBY_WORKER("sse4.2,pclmul")
__m128i fby_fold_128(__m128i acc, __m128i k, __m128i x)
{
	__m128i low = _mm_clmulepi64_si128(acc, k, 0x00);
	__m128i high = _mm_clmulepi64_si128(acc, k, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), x);
}

/* The four chains of a line, in order, into one. */
FBY_WORKER("sse4.2,pclmul")
u32 fby_fold_chains(__m128i a, __m128i b, __m128i c, __m128i d)
{
	const __m128i k16 = _mm_setr_epi32(FBY_FOLD_16);

	b = fby_fold_128(a, k16, b);
	c = fby_fold_128(b, k16, c);
	d = fby_fold_128(c, k16, d);
	return fby_fold_end(d);
}

/* The six moves that FBY_MEDIA_KERNEL_OPS wants, from the kernel's two workers:
 * k_move(dst, src, n, put) and k_move_crc(dst, src, n, crc, put). */
#define FBY_KERNEL_MOVES(k, isa) \
	FBY_MOVE(isa) void k##_stream(void *dst, const void *src, size_t n) \
	{ \
		k##_move(dst, src, n, FBY_PUT_STREAM); \
	} \
	FBY_MOVE(isa) void k##_store(void *dst, const void *src, size_t n) \
	{ \
		k##_move(dst, src, n, FBY_PUT_STORE); \
	} \
	FBY_MOVE(isa) u32 k##_stream_crc(void *dst, const void *src, size_t n, u32 crc) \
	{ \
		return n ? k##_move_crc(dst, src, n, crc, FBY_PUT_STREAM) : crc; \
	} \
	FBY_MOVE(isa) u32 k##_store_crc(void *dst, const void *src, size_t n, u32 crc) \
	{ \
		return n ? k##_move_crc(dst, src, n, crc, FBY_PUT_STORE) : crc; \
	} \
	FBY_MOVE(isa) u32 k##_load_crc(void *dst, const void *src, size_t n, u32 crc) \
	{ \
		if (!n) \
			return crc; \
		if (!dst) \
			return k##_move_crc((u8 *)(uintptr_t)src, src, n, crc, FBY_PUT_NOWHERE); \
		return k##_move_crc(dst, src, n, crc, FBY_PUT_STORE); \
	}

#endif
