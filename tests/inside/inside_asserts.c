// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The last pools that were opened, by memory; a test may hold several.
 */
#include "host/client_request.h"
#include "inside.h"

/* The pool was opened long ago, and its memory was copied back since. */
#define POOLS 64u
static struct {
	const u8 *mem;
	u64 bytes;
	const struct fby_media *media;
} opened[POOLS];
static unsigned int openings;

int __real_fby_pool_open(struct fby_pool **out, void *mem, u64 bytes, struct fby_media *m, const struct fby_options *o);
int __wrap_fby_pool_open(struct fby_pool **out, void *mem, u64 bytes, struct fby_media *m, const struct fby_options *o);
int __wrap_fby_pool_open(struct fby_pool **out, void *mem, u64 bytes, struct fby_media *m, const struct fby_options *o)
{
	unsigned int at = openings++ % POOLS;

	opened[at].mem = mem;
	opened[at].bytes = bytes;
	opened[at].media = m;
	return __real_fby_pool_open(out, mem, bytes, m, o);
}

static bool within(const void *in, const void *mem, u64 bytes)
{
	return in >= mem && (u64)((const u8 *)in - (const u8 *)mem) < bytes;
}

/* pool was opened long ago, and its memory was copied back since. */
static bool of_a_pool(const void *in)
{
	bool found = (pool && within(in, pool, pool->memory_bytes)) || in == &media;

	for (unsigned int i = 0; !found && i < POOLS; i++)
		found = in == opened[i].media || within(in, opened[i].mem, opened[i].bytes);
	return found;
}

void assert_passed(struct assert_site *site, const void *in)
{
	site->passed++;
	site->astray += !of_a_pool(in);
}

extern struct assert_site *const __start_assert_sites[], *const __stop_assert_sites[];

static bool same(const struct assert_site *a, const struct assert_site *b)
{
	return a->line == b->line && !strcmp(a->file, b->file) && !strcmp(a->cond, b->cond);
}

/* A header's assertion has a site in each file that includes it: they count as one. */
static void judge(struct assert_site *const *at)
{
	unsigned int passed = 0, astray = 0;

	for (struct assert_site *const *other = __start_assert_sites; other < __stop_assert_sites; other++) {
		if (!same(*other, *at))
			continue;
		if (other < at)
			return;
		passed += (*other)->passed;
		astray += (*other)->astray;
	}
	passed += !strcmp((*at)->cond, "false");
	if (passed == 0 || astray)
		printf("inside: %s:%d: FBY_ASSERT(..., %s): passed %u times, %u times with an address of no pool\n",
		       (*at)->file, (*at)->line, (*at)->cond, passed, astray);
	EXPECT(passed > 0);
	EXPECT(astray == 0);
}

/* Makes the calls that no other test here makes.  These are requests of a host, also some that may
 * not wait, and a write to the second block of a bucket. */
static void host_calls(void)
{
	struct fby_policy policy = {};
	struct fby_run run;
	u8 sectors[FBY_PAGE] = {};
	u64 other = 1;
	struct fby_vec vec = { sectors, sizeof(sectors) };
	struct fby_request r = { .pool = pool, .policy = &policy, .op = FBY_OP_READ, .runs = &run, .max_runs = 1,
				 .sector = 64 * FBY_PAGE_SECTORS, .nsectors = FBY_PAGE_SECTORS };
	u32 wake = 0;

	pool_restore();
	fby_request_data(&r, &vec, 1);
	EXPECT(fby_request_begin(&r) == FBY_NEXT_ORIGIN);
	EXPECT(fby_request_resume(&r, 0) == FBY_NEXT_DONE);
	fby_request_end(&r, &wake);
	r.op = FBY_OP_WRITE;
	r.flags = FBY_REQ_NOWAIT;
	for (policy.mode = FBY_MODE_WRITE_BACK; policy.mode <= FBY_MODE_CLEANER; policy.mode++) {
		/* A request that bypasses the cache would wait for the origin. */
		bool waits = policy.mode != FBY_MODE_WRITE_BACK;

		fby_request_data(&r, &vec, 1);
		EXPECT(fby_request_begin(&r) == (waits ? FBY_NEXT_WAIT : FBY_NEXT_DONE));
		EXPECT(!waits || r.why == FBY_WAIT_SPACE);
		fby_request_end(&r, &wake);
	}
	EXPECT(fby_flush_told(pool, 0) == 0);
	while (fby_index_bucket(&pool->cache, fby_key(1, other)) != fby_index_bucket(&pool->cache, fby_key(1, 0)))
		other++;
	EXPECT(write_block(1, other, sectors, &wake) == FBY_DONE);
	EXPECT(write_block(1, 0, sectors, &wake) == FBY_DONE);
	pool_restore();
}

void test_asserts(void)
{
	host_calls();
	for (struct assert_site *const *at = __start_assert_sites; at < __stop_assert_sites; at++)
		judge(at);
}
