/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * avx2_copy.c - the copy kernel for CPUs with AVX2 and PCLMULQDQ (Haswell to
 * Cascade Lake, Zen 1 to 3): a cache line is two registers, folded into the CRC
 * as four chains of 128 bits.
 */
#if defined(__x86_64__)
#include "x86_fold.h"

#define ISA "avx2,pclmul,sse4.2"

struct avx2_line {
	__m256i low, high;
};

static bool avx2_usable(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") &&
	       __builtin_cpu_supports("sse4.2");
}

/* Read once: the compiler must not load the line again for its second use. */
FBY_WORKER(ISA)
struct avx2_line avx2_take_put(u8 *dst, const u8 *src, enum fby_put put)
{
	__m256i low = _mm256_loadu_si256((const __m256i *)src);
	__m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

	__asm__ volatile("" : "+x"(low), "+x"(high));
	if (put == FBY_PUT_STREAM) {
		_mm256_stream_si256((__m256i *)dst, low);
		_mm256_stream_si256((__m256i *)(dst + 32), high);
	} else if (put == FBY_PUT_STORE) {
		_mm256_storeu_si256((__m256i *)dst, low);
		_mm256_storeu_si256((__m256i *)(dst + 32), high);
	}
	return (struct avx2_line){ low, high };
}

FBY_WORKER(ISA)
void avx2_move(u8 *dst, const u8 *src, size_t n, enum fby_put put)
{
	size_t at;

	for (at = 0; at < n; at += 64)
		avx2_take_put(dst + at, src + at, put);
}

/* n >= 64 */
FBY_WORKER(ISA)
u32 avx2_move_crc(u8 *dst, const u8 *src, size_t n, u32 crc, enum fby_put put)
{
	const __m128i k64 = _mm_setr_epi32(FBY_FOLD_64);
	struct avx2_line l = avx2_take_put(dst, src, put);
	__m128i a = _mm_xor_si128(_mm256_castsi256_si128(l.low), _mm_cvtsi32_si128((int)~crc));
	__m128i b = _mm256_extracti128_si256(l.low, 1);
	__m128i c = _mm256_castsi256_si128(l.high);
	__m128i d = _mm256_extracti128_si256(l.high, 1);
	size_t at;

	for (at = 64; at < n; at += 64) {
		l = avx2_take_put(dst + at, src + at, put);
		a = fby_fold_128(a, k64, _mm256_castsi256_si128(l.low));
		b = fby_fold_128(b, k64, _mm256_extracti128_si256(l.low, 1));
		c = fby_fold_128(c, k64, _mm256_castsi256_si128(l.high));
		d = fby_fold_128(d, k64, _mm256_extracti128_si256(l.high, 1));
	}
	return fby_fold_chains(a, b, c, d);
}

FBY_KERNEL_MOVES(avx2, ISA)
FBY_MEDIA_KERNEL_OPS(avx2)

const struct fby_media_kernel fby_kernel_avx2 = {
	.name = "avx2",
	.usable = avx2_usable,
	FBY_MEDIA_KERNEL_TABLE(avx2),
};
#else
typedef int fby_avx2_copy_unused;
#endif
