// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * port_test.c - the port for user space, function by function.
 *
 * Goal: each promise of port/posix.h is seen to be kept where the engine's own tests cannot tell.
 * The promises are that a fence is one, that every line is written back, that a checksum alone
 * stores nothing, and that a CPU without an instruction is not given a kernel that uses it.
 * Method: posix.c is included, so that its statics can be looked at and the calls of the system can
 * be replaced.  Single steps show which instructions ran: the CPU's trap flag, and a handler that
 * looks at each instruction.  A CPU with fewer features is this program started again, with bits
 * cleared of what libgcc knows of the CPU (port_features.c).  The copies themselves:
 * crates/forebay-sys/tests/kernels.rs.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static int given_cpu = -2; /* -2: the system's answer */
static int msync_calls, msync_flags, msync_result;
static char *msync_start;
static size_t msync_bytes;

static int test_getcpu(void)
{
	return given_cpu == -2 ? sched_getcpu() : given_cpu;
}

static int test_msync(void *start, size_t n, int flags)
{
	msync_calls++;
	msync_start = start;
	msync_bytes = n;
	msync_flags = flags;
	errno = EIO;
	return msync_result;
}

static int given_cpuid = -2; /* -2: the CPU's answer; -1: it has no such leaf */

static int test_cpuid(unsigned int leaf, unsigned int sub, unsigned int *a, unsigned int *b, unsigned int *c,
		      unsigned int *d)
{
	int known = __get_cpuid_count(leaf, sub, a, b, c, d);

	if (given_cpuid == -2)
		return known;
	*b = leaf == 7 && sub == 0 ? (unsigned int)given_cpuid : 0;
	return given_cpuid != -1;
}

#define __get_cpuid_count test_cpuid
#define sched_getcpu test_getcpu
#define msync(start, n, flags) test_msync(start, n, flags)
#include "posix.c"
#undef __get_cpuid_count
#undef sched_getcpu
#undef msync

#include "port_test.h"

static unsigned int failures, checks;

void expect_at(bool good, const char *file, int line, const char *what)
{
	checks++;
	if (good)
		return;
	failures++;
	fprintf(stderr, "port: %s:%d: %s\n", file, line, what);
}

int in_child(void (*function)(void), char *error)
{
	int status, ends[2];
	size_t n = 0;
	ssize_t got;
	pid_t child;

	if (pipe(ends) != 0)
		abort();
	fflush(NULL);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		alarm(60);
		function();
		_exit(0);
	}
	close(ends[1]);
	while (n < 4095 && (got = read(ends[0], error + n, 4095 - n)) > 0)
		n += (size_t)got;
	error[n] = 0;
	close(ends[0]);
	waitpid(child, &status, 0);
	return status;
}

/* --- assertions, locks, the CPU -------------------------------------------- */

static void fail_assertion(void)
{
	fby_assert_failed("1 == 2", "file.c", 77);
}

static void test_assertion(void)
{
	char error[4096];
	int status = in_child(fail_assertion, error);

	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	EXPECT(strcmp(error, "forebay: assertion failed: 1 == 2 (file.c:77)\n") == 0);
}

static struct fby_lock lock;
static unsigned int taken;

static void *wait_for_lock(void *unused)
{
	(void)unused;
	fby_lock_slow(&lock);
	fby_store(&taken, 1u + fby_load(&lock.word));
	return NULL;
}

static void test_lock(void)
{
	pthread_t thread;
	int i;

	fby_lock_init(&lock);
	fby_lock_slow(&lock); /* free: at once */
	EXPECT(lock.word == 1);
	pthread_create(&thread, NULL, wait_for_lock, NULL);
	for (i = 0; i < 1000; i++) {
		sched_yield();
		EXPECT(!fby_load(&taken));
	}
	fby_unlock(&lock);
	pthread_join(thread, NULL);
	EXPECT(taken == 2 && lock.word == 1);
}

static void test_cpu(void)
{
	unsigned int cpus[] = { 0, 1, 5, 0x1234, 0xffff };
	size_t i;

	for (i = 0; i < sizeof(cpus) / sizeof(cpus[0]); i++) {
		given_cpu = (int)cpus[i];
		EXPECT(fby_cpu() == cpus[i]);
	}
	given_cpu = 0x12345;
	EXPECT(fby_cpu() == 0x2345);
	given_cpu = -1;
	EXPECT(fby_cpu() == 0);
	given_cpu = -2;
}

/* --- checksums ---------------------------------------------------------------- */

static u32 crc_by_bits(u32 crc, const u8 *p, size_t n)
{
	int i;

	crc = ~crc;
	for (; n; n--, p++)
		for (crc ^= *p, i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	return ~crc;
}

static u8 *noise(size_t n)
{
	u8 *p = aligned_alloc(4096, n);
	u64 state = 88172645463325252ull;
	size_t i;

	for (i = 0; i < n; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		p[i] = (u8)(state >> 32);
	}
	return p;
}

static void test_crc(void)
{
	u8 *bytes = noise(4096);
	size_t from, n;

	EXPECT(fby_crc32c_table(0, "123456789", 9) == 0xe3069283u);
	for (from = 0; from < 9; from++)
		for (n = 0; n < 80; n++) {
			u32 want = crc_by_bits((u32)n, bytes + from, n);

			EXPECT(fby_crc32c_table((u32)n, bytes + from, n) == want);
			EXPECT(fby_crc32c((u32)n, bytes + from, n) == want);
		}
	free(bytes);
}

/* --- which instructions ran --------------------------------------------------- */

#define LINES 5u
static struct {
	unsigned int fences, stream_bytes, other;
	const u8 *written_back[4 * LINES];
	unsigned int n; /* entries of written_back */
	const char *by;
	int fence_after; /* lines written back before the last fence */
} seen;

static u64 register_of(const mcontext_t *m, int number)
{
	static const int names[] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
				     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };

	return (u64)m->gregs[names[number]];
}

/* The address of an operand base + displacement, which is all that compilers make of these. */
static const u8 *operand(const mcontext_t *m, const u8 *modrm, u8 rex)
{
	int mod = *modrm >> 6, base = (*modrm & 7) | (rex & 1) << 3;
	int32_t displacement = 0;

	if ((*modrm & 7) == 4 || (mod == 0 && (*modrm & 7) == 5))
		seen.other++;
	if (mod == 1)
		displacement = (int8_t)modrm[1];
	if (mod == 2)
		memcpy(&displacement, modrm + 1, 4);
	return (const u8 *)(register_of(m, base) + (u64)(int64_t)displacement);
}

static void on_step(int signal, siginfo_t *info, void *context)
{
	const mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
	const u8 *p = (const u8 *)m->gregs[REG_RIP];
	bool wide = *p == 0x66;
	u8 rex = 0;

	(void)signal;
	(void)info;
	p += wide;
	if ((*p & 0xf0) == 0x40)
		rex = *p++;
	if (p[0] == 0x0f && p[1] == 0xae && p[2] == 0xf8) {
		seen.fences++;
		seen.fence_after = (int)seen.n;
	} else if (p[0] == 0x0f && p[1] == 0xae && p[2] >> 6 != 3 && (p[2] >> 3 & 7) >= 6) {
		if (seen.n < 4 * LINES)
			seen.written_back[seen.n++] = operand(m, p + 2, rex);
		seen.by = !wide ? "clflush" : (p[2] >> 3 & 7) == 6 ? "clwb" : "clflushopt";
	} else if (p[0] == 0x0f && (p[1] == 0xe7 || p[1] == 0x2b)) {
		seen.stream_bytes += 16;
	} else if ((p[0] == 0xc5 && (p[2] == 0xe7 || p[2] == 0x2b)) ||
		   (p[0] == 0xc4 && (p[3] == 0xe7 || p[3] == 0x2b))) {
		seen.stream_bytes += p[p[0] == 0xc5 ? 1 : 2] & 4 ? 32 : 16;
	} else if (p[0] == 0x62 && (p[4] == 0xe7 || p[4] == 0x2b)) {
		seen.stream_bytes += 16u << (p[3] >> 5 & 3);
	}
}

#define TRAP_FLAG(change) \
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\t" change ", (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" \
			 ::: "memory", "cc")
#define STEPS(call) \
	do { \
		memset(&seen, 0, sizeof(seen)); \
		TRAP_FLAG("orq $0x100"); \
		call; \
		TRAP_FLAG("andq $~0x100"); \
	} while (0)

/* Whether each line of the range was written back once, in order, and before the last fence. */
static bool wrote_back(const u8 *start, unsigned int lines)
{
	unsigned int i;

	for (i = 0; i < seen.n && i < lines; i++)
		if (((uintptr_t)seen.written_back[i] & ~(uintptr_t)63) != (uintptr_t)start + 64 * i)
			return false;
	return seen.n == lines && seen.other == 0;
}

static bool cpuid_7(unsigned int bit)
{
	unsigned int a, b = 0, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> bit & 1;
}

static void test_instructions_of(const char *name, enum fby_persist persist, u8 *to, const u8 *from)
{
	const struct fby_media_ops *ops = fby_posix_media_ops(persist, name);
	bool generic = strcmp(name, "generic") == 0;
	bool streams = persist == FBY_PERSIST_NT && !generic;
	bool flushes = persist == FBY_PERSIST_CLWB || (persist == FBY_PERSIST_NT && generic);
	unsigned int lines;
	u32 crc;

	for (lines = 1; lines <= LINES; lines += LINES - 1) {
		STEPS(ops->write(MEDIA(to), MEDIA_AT, from, 64 * lines));
		EXPECT(seen.stream_bytes == (streams ? 64 * lines : 0));
		EXPECT(wrote_back(to, flushes ? lines : 0));
		STEPS(crc = ops->write_crc(MEDIA(to), MEDIA_AT, from, 64 * lines, 5));
		EXPECT(crc == crc_by_bits(5, from, 64 * lines));
		EXPECT(seen.stream_bytes == (streams ? 64 * lines : 0));
		EXPECT(wrote_back(to, flushes ? lines : 0));
		EXPECT(seen.fences == 0);
		STEPS(ops->fence(MEDIA(to), MEDIA_AT, 64 * lines));
		EXPECT(seen.fences == (persist != FBY_PERSIST_MSYNC));
	}
}

static void test_instructions(void)
{
	struct sigaction trap = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO }, old;
	const char *by = cpuid_7(24) ? "clwb" : cpuid_7(23) ? "clflushopt" : "clflush";
	u8 *from = noise(4096), *to = aligned_alloc(4096, 4096);
	const char *const *name;
	int persist;

	sigaction(SIGTRAP, &trap, &old);
	for (name = fby_posix_kernels(); *name; name++)
		for (persist = FBY_PERSIST_NT; persist <= FBY_PERSIST_MSYNC; persist++)
			test_instructions_of(*name, (enum fby_persist)persist, to, from);
	STEPS(fby_posix_flush(to, 192));
	EXPECT(wrote_back(to, 3) && strcmp(seen.by, by) == 0);
	STEPS(fby_posix_flush(to + 63, 2)); /* two lines in part */
	EXPECT(wrote_back(to, 2));
	STEPS(fby_posix_flush(to, 0));
	EXPECT(wrote_back(to, 0));
	STEPS(fby_posix_fence_store(NULL, 0, 64));
	EXPECT(seen.fences == 1 && seen.n == 0);
	sigaction(SIGTRAP, &old, NULL);
	free(from);
	free(to);
}

/* --- msync --------------------------------------------------------------------- */

static void fail_msync(void)
{
	msync_result = -1;
	fby_posix_fence_msync(MEDIA(8192), MEDIA_AT, 100);
}

static void test_msync_fence(void)
{
	const struct fby_media_ops *ops = fby_posix_media_ops(FBY_PERSIST_MSYNC, NULL);
	char error[4096];
	char *page = (char *)0x10000;
	int status;

	msync_calls = 0;
	ops->fence(MEDIA(page + 4096 + 64), MEDIA_AT, 200);
	EXPECT(msync_calls == 1 && msync_start == page + 4096 && msync_bytes == 264 && msync_flags == MS_SYNC);
	ops->fence(MEDIA(page + 4095), MEDIA_AT, 2);
	EXPECT(msync_calls == 2 && msync_start == page && msync_bytes == 4097);
	ops->fence(MEDIA(page), MEDIA_AT, 4096);
	EXPECT(msync_calls == 3 && msync_start == page && msync_bytes == 4096);
	status = in_child(fail_msync, error);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	EXPECT(strstr(error, "forebay: msync of 100 bytes of the pool failed: Input/output error. ") == error);
}

/* --- what a read must not do ------------------------------------------------------ */

/* A checksum alone stores nothing: the media may be mapped read-only. */
static void sum_what_is_read_only(void)
{
	u8 *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *bytes = noise(8192);
	const char *const *name;
	u32 crc;

	memcpy(p, bytes, 8192);
	mprotect(p, 8192, PROT_READ);
	for (name = fby_posix_kernels(); *name; name++) {
		const struct fby_media_ops *ops = fby_posix_media_ops(FBY_PERSIST_NT, *name);

		crc = 9;
		if (ops->read_crc(MEDIA(p), NULL, MEDIA_AT, 8192, &crc) != 0 || crc != crc_by_bits(9, bytes, 8192))
			_exit(1);
		if (fby_posix_read_guard)
			_exit(2);
	}
}

static void test_reads(void)
{
	char error[4096];

	EXPECT(in_child(sum_what_is_read_only, error) == 0);
}

/* --- a CPU with fewer features ------------------------------------------------------ */

static void expected_kernels(int without, char *list)
{
	bool sse4_2 = without != SSE4_2 && __builtin_cpu_supports("sse4.2");
	bool pclmul = without != PCLMUL && __builtin_cpu_supports("pclmul");
	bool avx2 = without != AVX2 && __builtin_cpu_supports("avx2");
	bool avx512 = without != AVX512F && without != AVX512VL && without != VPCLMULQDQ &&
		      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
		      __builtin_cpu_supports("vpclmulqdq");

	sprintf(list, "%s%s%ssse2 generic crc %s\n", avx512 && sse4_2 && pclmul ? "avx512 " : "",
		avx2 && sse4_2 && pclmul ? "avx2 " : "", sse4_2 && pclmul ? "sse4 " : "",
		sse4_2 ? "sse4.2" : "table");
}

static void test_choice_of_flush(void)
{
	static const struct {
		int cpuid;
		void (*flush)(const void *start, size_t n);
	} cases[] = { { -1, flush_clflush },
		      { 0, flush_clflush },
		      { ~(3 << 23), flush_clflush },
		      { 1 << 23, flush_clflushopt },
		      { 1 << 24, flush_clwb },
		      { 3 << 23, flush_clwb } };
	void (*own)(const void *start, size_t n) = flush;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		given_cpuid = cases[i].cpuid;
		flush = flush_clflush;
		choose_flush();
		EXPECT(flush == cases[i].flush);
	}
	given_cpuid = -2;
	flush = own;
}

static const char *program;
static char without_text[16];

static void list_kernels_without(void)
{
	setenv("PORT_TEST_WITHOUT", without_text, 1);
	execl(program, program, "kernels", NULL);
	_exit(9);
}

static void test_choice(void)
{
	static const int left_out[] = { -1, SSE4_2, AVX2, AVX512F, PCLMUL, AVX512VL, VPCLMULQDQ };
	char error[4096], list[256];
	size_t i;

	for (i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) {
		sprintf(without_text, "%d", left_out[i]);
		EXPECT(in_child(list_kernels_without, error) == 0);
		expected_kernels(left_out[i], list);
		EXPECT(strcmp(error, list) == 0);
	}
	EXPECT(fby_posix_media_ops(FBY_PERSIST_NT, "none such") == NULL);
	EXPECT(fby_posix_media_ops((enum fby_persist)9, NULL) == NULL);
	EXPECT(fby_posix_media_ops(FBY_PERSIST_NT, NULL) == &usable_kernels[0]->nt);
	EXPECT(fby_posix_media_ops(FBY_PERSIST_CLWB, "sse2") == &fby_kernel_sse2.clwb);
	EXPECT(fby_posix_media_ops(FBY_PERSIST_EADR, "generic") == &fby_kernel_generic.eadr);
	EXPECT(fby_posix_media_ops(FBY_PERSIST_MSYNC, "generic") == &all_kernels[NKERNELS - 1]->msync);
}

int main(int argc, char **argv)
{
	static void (*const tests[])(void) = { test_assertion, test_lock, test_cpu, test_crc, test_msync_fence,
					       test_reads, test_choice_of_flush, test_choice, test_faults, test_say,
					       test_instructions };
	const char *const *name;
	size_t i;

	program = "/proc/self/exe";
	if (argc == 2 && strcmp(argv[1], "kernels") == 0) {
		for (name = fby_posix_kernels(); *name; name++)
			fprintf(stderr, "%s ", *name);
		fprintf(stderr, "crc %s\n", fby_posix_crc_kernel());
		return 0;
	}
	for (i = 0; i < sizeof(tests) / sizeof(tests[0]) && !failures; i++)
		tests[i]();
	printf("port: %u checks, %u failed\n", checks, failures);
	return failures != 0;
}
