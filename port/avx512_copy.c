/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * avx512_copy.c - the copy kernel for CPUs with AVX-512 and VPCLMULQDQ (Ice
 * Lake, Zen 4 and later): a cache line is one register, stored by one
 * non-temporal store and folded into the CRC by two multiplications.
 */
#if defined(__x86_64__)
#include "x86_fold.h"

#define ISA "avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2"

static bool avx512_usable(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
	       __builtin_cpu_supports("sse4.2");
}

/* Read once: the compiler must not load the line again for its second use. */
FBY_WORKER(ISA)
__m512i avx512_take(const u8 *src)
{
	__m512i line = _mm512_loadu_si512(src);

	__asm__ volatile("" : "+v"(line));
	return line;
}

FBY_WORKER(ISA)
__m512i avx512_take_put(u8 *dst, const u8 *src, enum fby_put put)
{
	__m512i line = avx512_take(src);

	if (put == FBY_PUT_STREAM)
		_mm512_stream_si512((void *)dst, line);
	else if (put == FBY_PUT_STORE)
		_mm512_storeu_si512(dst, line);
	return line;
}

FBY_WORKER(ISA)
__m512i avx512_fold(__m512i acc, __m512i k, __m512i line)
{
	__m512i low = _mm512_clmulepi64_epi128(acc, k, 0x00);
	__m512i high = _mm512_clmulepi64_epi128(acc, k, 0x11);

	return _mm512_ternarylogic_epi64(low, high, line, 0x96); /* xor of three */
}

FBY_WORKER(ISA)
u32 avx512_fold_end(__m512i acc)
{
	return fby_fold_chains(_mm512_extracti32x4_epi32(acc, 0), _mm512_extracti32x4_epi32(acc, 1),
			       _mm512_extracti32x4_epi32(acc, 2), _mm512_extracti32x4_epi32(acc, 3));
}

FBY_WORKER(ISA)
void avx512_move(u8 *dst, const u8 *src, size_t n, enum fby_put put)
{
	size_t at;

	for (at = 0; at < n; at += 64)
		avx512_take_put(dst + at, src + at, put);
}

/* Four lines at a time, so that their chains overlap; n >= 64. */
FBY_WORKER(ISA)
u32 avx512_move_crc(u8 *dst, const u8 *src, size_t n, u32 crc, enum fby_put put)
{
	const __m512i k64 = _mm512_broadcast_i32x4(_mm_setr_epi32(FBY_FOLD_64));
	const __m512i k256 = _mm512_broadcast_i32x4(_mm_setr_epi32(FBY_FOLD_256));
	__m512i a = avx512_take_put(dst, src, put), b, c, d;
	size_t at = 64;

	a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
	if (n >= 256) {
		b = avx512_take_put(dst + 64, src + 64, put);
		c = avx512_take_put(dst + 128, src + 128, put);
		d = avx512_take_put(dst + 192, src + 192, put);
		for (at = 256; at + 256 <= n; at += 256) {
			a = avx512_fold(a, k256, avx512_take_put(dst + at, src + at, put));
			b = avx512_fold(b, k256, avx512_take_put(dst + at + 64, src + at + 64, put));
			c = avx512_fold(c, k256, avx512_take_put(dst + at + 128, src + at + 128, put));
			d = avx512_fold(d, k256, avx512_take_put(dst + at + 192, src + at + 192, put));
		}
		a = avx512_fold(avx512_fold(avx512_fold(a, k64, b), k64, c), k64, d);
	}
	for (; at < n; at += 64)
		a = avx512_fold(a, k64, avx512_take_put(dst + at, src + at, put));
	return avx512_fold_end(a);
}

FBY_KERNEL_MOVES(avx512, ISA)
FBY_MEDIA_KERNEL_OPS(avx512)

const struct fby_media_kernel fby_kernel_avx512 = {
	.name = "avx512",
	.usable = avx512_usable,
	FBY_MEDIA_KERNEL_TABLE(avx512),
};
#else
typedef int fby_avx512_copy_unused;
#endif
