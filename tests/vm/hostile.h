/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hostile.h - feeds mutated pools to the module, in the guest.
 *
 * Goal: whatever a pool holds, the module refuses it or answers with errors for what is lost.  The
 * kernel reports nothing (the run is for one with KASAN and lockdep), and nobody hangs.  Nothing of
 * the origin but the volume's own range is ever written, what was written after is read back, and
 * what the module left opens again.
 * Method: pools made by the module in several states are changed field by field, most with the
 * checksum put right, written to the media and used.  They are attached on the native device or by
 * the mapper, read whole, written, drained, detached and attached again.  The volumes are windows
 * of a larger disk whose other parts are compared each time, and the kernel's log is read after
 * each pool.  A seed tells all of a run.
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <stdarg.h>

#include "format/format.h"

#define MEDIA_MAX (64u << 20)
#define BASES_MAX 12u
#define COUNT(a) ((u32)(sizeof(a) / sizeof((a)[0])))

/* --- numbers from a seed ---------------------------------------------------------- */

struct rng {
	u64 state;
};

static inline u64 rng_next(struct rng *r)
{
	u64 z = (r->state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline u64 rng_below(struct rng *r, u64 n)
{
	return rng_next(r) % n;
}

static inline bool rng_one_in(struct rng *r, u64 n)
{
	return rng_below(r, n) == 0;
}

/* --- images, mutate.c ---------------------------------------------------------------- */

/* A whole media.  text says what was done to it, for a finding. */
struct image {
	const char *media; /* the media that it belongs on */
	u8 *bytes;
	u64 size;
	char text[4096];
};

/* Makes one change, at a place and of a kind that the seed chooses; other is a pool to take parts
 * from. */
void mutate(struct image *m, const struct image *other, struct rng *r);

__attribute__((format(printf, 2, 3))) void image_note(struct image *m, const char *format, ...);

#endif
