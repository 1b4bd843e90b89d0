/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * broken_loops.c - Goal: code that continues after a failed assertion, as it does in the kernel,
 * ends and stays in the pool's memory.  Method: the index and the end of a request in user space.
 * The index has a page that is in no chain; the request has the number of a volume that does not
 * exist.
 */
#include "core/drain/destage.c"

int printf(const char *text, ...);
unsigned int alarm(unsigned int seconds);

static unsigned int asserts, failed;

void fby_assert_failed(const void *in, const char *cond, const char *file, int line)
{
	(void)in;
	(void)cond;
	(void)file;
	(void)line;
	asserts++;
}

static void expect(const char *what, bool good)
{
	if (good && asserts > 0) {
		asserts = 0;
		return;
	}
	failed++;
	printf("broken loops: %s: %u assertions failed\n", what, asserts);
}

#define LOCKED(page) ((page) | FBY_BUCKET_LOCK)

int main(void)
{
	static struct fby_entry entry[8];
	static u32 bucket[1] = { LOCKED(1u) };
	static struct fby_space space;
	static struct fby_cache cache = { .entry = entry, .bucket = bucket, .nbuckets = 1, .space = &space };
	static struct fby_drain drain = { .space = &space };

	alarm(20);
	entry[1].next = 2;
	expect("a page in no chain has a place", fby_index_place_locked(&cache, 0, 5) == NULL);
	fby_index_del_locked(&cache, 0, 5);
	expect("a page in no chain is unlinked", bucket[0] == LOCKED(1u) && entry[1].next == 2 && entry[2].next == 0);
	fby_index_put_locked(&cache, 0, 7, 3, 0, 5);
	expect("a page in no chain is replaced", bucket[0] == LOCKED(3u) && entry[3].next == 1 && entry[2].next == 0);
	fby_drain_complete(&drain, 64, 0);
	expect("a request of no volume ends", true);
	printf("broken loops: %u failed\n", failed);
	return failed != 0;
}
