/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * sort.h - a heap of round pages by k: it keeps the smallest of a stream in bounded memory, and
 * sorts in place without additional memory.
 */
#ifndef FBY_SORT_H
#define FBY_SORT_H

#include "drain/drain.h"

/* Restores the max-heap [0, n) below i. */
static inline void fby_heap_down(struct fby_round_page *a, u32 n, u32 i)
{
	struct fby_round_page x = a[i];

	for (;;) {
		u32 child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && a[child + 1].k > a[child].k)
			child++;
		if (a[child].k <= x.k)
			break;
		a[i] = a[child];
		i = child;
	}
	a[i] = x;
}

/* Adds x to the max-heap [0, *n), at most cap: the largest falls out.  Returns
 * the k that fell out, or ~0. */
static inline u64 fby_heap_add(struct fby_round_page *a, u32 *n, u32 cap, struct fby_round_page x)
{
	u64 out;
	u32 i;

	if (*n == cap) {
		if (x.k >= a[0].k)
			return x.k;
		out = a[0].k;
		a[0] = x;
		fby_heap_down(a, cap, 0);
		return out;
	}
	for (i = (*n)++; i > 0 && a[(i - 1) / 2].k < x.k; i = (i - 1) / 2)
		a[i] = a[(i - 1) / 2];
	a[i] = x;
	return ~0ull;
}

/* Ascending by k. */
static inline void fby_heap_sort(struct fby_round_page *a, u32 n)
{
	for (u32 i = n / 2; i-- > 0;)
		fby_heap_down(a, n, i);
	while (n > 1) {
		struct fby_round_page x = a[--n];

		a[n] = a[0];
		a[0] = x;
		fby_heap_down(a, n, 0);
	}
}

#endif
