/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mutant.h - which of the changes that generate.py made is on.  Only copies of the
 * engine that are built to be wrong include it.
 */
#ifndef FBY_MUTANT_H
#define FBY_MUTANT_H

/* For each mutant by number: whether it is on, or whether reaching it is noted. */
extern unsigned char fby_mutant_on[];
int fby_mutant_hit(unsigned int n);
#define FBY_M(n) (__builtin_expect(fby_mutant_on[n], 0) && fby_mutant_hit(n))

#endif
