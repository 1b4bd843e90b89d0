/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * small.h - small helpers of all layers.
 */
#ifndef FBY_SMALL_H
#define FBY_SMALL_H

#include "medium/planted.h"
#include "medium/port.h"

#define FBY_NO_SEQ (~0ull)
#define FBY_ALIGNED __attribute__((aligned(64)))
#define FBY_INLINE static inline __attribute__((always_inline))

/* to: a power of two */
static inline u64 fby_round_up(u64 x, u64 to)
{
	return (x + to - 1) & ~(to - 1);
}

static inline u8 fby_mask(u32 first, u32 n)
{
	return (u8)(((1u << n) - 1) << first);
}

/* Sectors in mask.  Not the compiler's builtin: that is a library call if the CPU's instruction
 * may not be assumed, and the kernel has no such library. */
static inline u32 fby_mask_count(u8 mask)
{
	u32 m = mask;

	m -= m >> 1 & 0x55;
	m = (m & 0x33) + (m >> 2 & 0x33);
	return (m + (m >> 4)) & 15;
}

/* The first run of ones in mask at or after bit from: length, 0 if none. */
static inline u32 fby_run(u8 mask, u32 from, u32 *start)
{
	u32 m = from < 8 ? (u32)mask >> from << from : 0;

	if (!m)
		return 0;
	*start = (u32)__builtin_ctz(m);
	return (u32)__builtin_ctz(~(m >> *start));
}

static inline u64 fby_mix(u64 x)
{
	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 32;
	return x;
}

static inline void fby_count(u64 *counter, u64 n)
{
	fby_store(counter, fby_load(counter) + n);
}

#endif
