/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * sse_copy.c - the copy kernels for the other x86 CPUs: with SSE4.2 and
 * PCLMULQDQ (Westmere and later) and with nothing but SSE2, which all have;
 * there the CRC comes from tables, a line at a time.
 */
#if defined(__x86_64__)
#include "x86_fold.h"

#define ISA "sse4.2,pclmul"

struct sse_line {
	__m128i a, b, c, d;
};

static bool sse4_usable(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static bool sse2_usable(void)
{
	return true;
}

/* Read once: the compiler must not load the line again for its second use. */
FBY_WORKER("sse2")
struct sse_line sse_take_put(u8 *dst, const u8 *src, enum fby_put put)
{
	__m128i a = _mm_loadu_si128((const __m128i *)src);
	__m128i b = _mm_loadu_si128((const __m128i *)(src + 16));
	__m128i c = _mm_loadu_si128((const __m128i *)(src + 32));
	__m128i d = _mm_loadu_si128((const __m128i *)(src + 48));

	__asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
	if (put == FBY_PUT_STREAM) {
		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	} else if (put == FBY_PUT_STORE) {
		_mm_storeu_si128((__m128i *)dst, a);
		_mm_storeu_si128((__m128i *)(dst + 16), b);
		_mm_storeu_si128((__m128i *)(dst + 32), c);
		_mm_storeu_si128((__m128i *)(dst + 48), d);
	}
	return (struct sse_line){ a, b, c, d };
}

FBY_WORKER("sse2")
void sse_move(u8 *dst, const u8 *src, size_t n, enum fby_put put)
{
	size_t at;

	for (at = 0; at < n; at += 64)
		sse_take_put(dst + at, src + at, put);
}

#define sse4_move sse_move
#define sse2_move sse_move

/* n >= 64 */
FBY_WORKER(ISA)
u32 sse4_move_crc(u8 *dst, const u8 *src, size_t n, u32 crc, enum fby_put put)
{
	const __m128i k64 = _mm_setr_epi32(FBY_FOLD_64);
	struct sse_line l = sse_take_put(dst, src, put);
	__m128i a = _mm_xor_si128(l.a, _mm_cvtsi32_si128((int)~crc));
	__m128i b = l.b, c = l.c, d = l.d;
	size_t at;

	for (at = 64; at < n; at += 64) {
		l = sse_take_put(dst + at, src + at, put);
		a = fby_fold_128(a, k64, l.a);
		b = fby_fold_128(b, k64, l.b);
		c = fby_fold_128(c, k64, l.c);
		d = fby_fold_128(d, k64, l.d);
	}
	return fby_fold_chains(a, b, c, d);
}

FBY_WORKER("sse2")
u32 sse2_move_crc(u8 *dst, const u8 *src, size_t n, u32 crc, enum fby_put put)
{
	struct sse_line l;
	size_t at;

	for (at = 0; at < n; at += 64) {
		l = sse_take_put(dst + at, src + at, put);
		crc = fby_crc32c_table(crc, &l, 64);
	}
	return crc;
}

FBY_KERNEL_MOVES(sse4, ISA)
FBY_KERNEL_MOVES(sse2, "sse2")
FBY_MEDIA_KERNEL_OPS(sse4)
FBY_MEDIA_KERNEL_OPS(sse2)

const struct fby_media_kernel fby_kernel_sse4 = {
	.name = "sse4",
	.usable = sse4_usable,
	FBY_MEDIA_KERNEL_TABLE(sse4),
};

const struct fby_media_kernel fby_kernel_sse2 = {
	.name = "sse2",
	.usable = sse2_usable,
	FBY_MEDIA_KERNEL_TABLE(sse2),
};
#else
typedef int fby_sse_copy_unused;
#endif
