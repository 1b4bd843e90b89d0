/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * broken_pools.c - Goal: a failed assertion breaks the pool that it is about, and no other.
 * Method: port/linux_assert.c in user space, with two pools; an address of each kind fails.
 */
#include "port/linux_assert.c"

int printf(const char *text, ...);
int vsnprintf(char *to, size_t n, const char *text, __builtin_va_list list);
char *strstr(const char *in, const char *text);

static unsigned int passed, failed;
static int held;
static char said[512];

void stub_warn(const char *text, ...)
{
	__builtin_va_list list;

	__builtin_va_start(list, text);
	vsnprintf(said, sizeof(said), text, list);
	__builtin_va_end(list);
}

void stub_spin_lock(raw_spinlock_t *l)
{
	(void)l;
	held++;
}

void stub_spin_unlock(raw_spinlock_t *l)
{
	(void)l;
	held--;
}

static struct {
	u8 before, a[100], between, b[100], after;
} memory;
static struct fby_media media_a, media_b;
static struct fby_linux_pool a, b;

static void add(struct fby_linux_pool *p, const char *name, const struct fby_media *media)
{
	*p = (struct fby_linux_pool){ .name = name, .media = media };
	fby_linux_pool_add(p);
}

/* Checks which pool is broken, and what names it in the warning. */
static void expect(const char *what, const void *in, bool breaks_a, bool breaks_b, const char *named)
{
	a.broken = b.broken = false;
	FBY_ASSERT(in, held > 0);
	if (a.broken == breaks_a && b.broken == breaks_b && strstr(said, named) && strstr(said, "held > 0") && held == 0) {
		passed++;
		return;
	}
	failed++;
	printf("broken pools: %s: a %d, b %d; %s", what, a.broken, b.broken, said);
}

int main(void)
{
	add(&a, "pmem-a", &media_a);
	add(&b, "pmem-b", &media_b);
	expect("the media of one that has no memory yet", &media_a, true, false, "pmem-a");
	fby_linux_pool_memory(&a, memory.a, sizeof(memory.a));
	fby_linux_pool_memory(&b, memory.b, sizeof(memory.b));
	expect("the first byte", memory.a, true, false, "pmem-a");
	expect("the last byte", &memory.a[99], true, false, "pmem-a");
	expect("the other pool", &memory.b[50], false, true, "pmem-b");
	expect("the other pool's media", &media_b, false, true, "pmem-b");
	FBY_ASSERT(memory.a, held == 0);
	expect("before the memory", &memory.before, true, true, "no known pool");
	all_broken = false;
	expect("between two memories", &memory.between, true, true, "no known pool");
	all_broken = false;
	expect("after the memory", &memory.after, true, true, "no known pool");
	fby_linux_pool_remove(&b);
	add(&b, "later", &media_b);
	if (fby_asserts_hold(&b) || fby_asserts_hold(&a)) {
		failed++;
		printf("broken pools: one that is added later is not\n");
	}
	all_broken = false;
	fby_linux_pool_remove(&b);
	b.broken = false;
	expect("a pool that was closed", memory.b, true, false, "no known pool");
	all_broken = false;
	fby_linux_pool_memory(&a, NULL, 0);
	expect("memory that was freed", memory.a, true, false, "no known pool");
	printf("broken pools: %u passed, %u failed\n", passed, failed);
	return failed != 0;
}
