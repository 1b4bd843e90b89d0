/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * inside_breath.h - included before everything else.  It counts the breaths that the engine takes
 * in its long loops, and each assertion that is passed notes whether it names a pool
 * (inside_asserts.c).
 */
#ifndef INSIDE_BREATH_H
#define INSIDE_BREATH_H

extern unsigned int breaths;
static inline void take_breath(void)
{
	breaths++;
}
#define fby_breathe() take_breath()

struct assert_site {
	const char *file, *cond;
	int line;
	unsigned int passed, astray; /* how often; how often with an address of no pool */
};
void assert_passed(struct assert_site *site, const void *in);

#define FBY_ASSERT(in, cond) \
	do { \
		static struct assert_site site_ = { __FILE__, #cond, __LINE__, 0, 0 }; \
		static struct assert_site *const listed_ __attribute__((section("assert_sites"), used, \
									 no_sanitize("address"))) = &site_; \
		(void)listed_; \
		if (cond) \
			assert_passed(&site_, (in)); \
		else \
			fby_assert_failed(#cond, __FILE__, __LINE__); \
	} while (0)

#endif
