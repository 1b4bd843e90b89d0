// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * linux_copy.c - copying to and from the media in the kernel, with CRC32C.
 *
 * Vector registers would have to be saved and restored at each request, so x86 uses the general
 * ones: movnti past the caches, loads that survive a machine check, and the crc32 instruction.
 * That has a latency of 3 cycles and a throughput of 1, so a page is summed in three lanes at
 * once, joined by a table: multiplying a CRC by x^(8 * LANE) is linear, one lookup for each of
 * its bytes.  An emulator executes that instruction bit by bit: a table is used instead if it is
 * measured to be faster.  Other CPUs use the kernel's own copy and checksum, in pieces that stay
 * in the first-level cache.
 *
 * The kernel's crc32c() leaves both inversions to its caller; "raw" below means
 * that form.  fby_crc32c() is the standard one.
 */
#include <linux/crc32c.h>
#include <linux/kasan-checks.h>
#include <linux/ktime.h>
#include <linux/uaccess.h>

#include "linux.h"

#define PIECE 512u

#ifdef CONFIG_X86_64
#include <asm/asm.h>
#include <asm/cpufeature.h>

#define LANE 1344u /* bytes; three of them and a line make a page */
#define LANES (3 * LANE)

static u32 shift_lane[4][256]; /* [3 - i]: of byte i of a CRC and LANE zero bytes after it */
static u32 crc_table[8][256];  /* [i]: of a byte and i zero bytes after it */
static bool by_table;

/* Returns the contribution of a word's four bytes; the first of the tables is for its last byte. */
static __always_inline u32 look_up(const u32 (*table)[256], u32 word)
{
	return table[3][word & 255] ^ table[2][word >> 8 & 255] ^ table[1][word >> 16 & 255] ^ table[0][word >> 24];
}

/* The raw CRC of what crc is of, followed by LANE zero bytes. */
static u32 shifted(u32 crc)
{
	return look_up(shift_lane, crc);
}

static __always_inline u64 crc_word(u64 crc, u64 word, bool table)
{
	if (!table) {
		asm("crc32q %1, %0" : "+r"(crc) : "r"(word));
		return crc;
	}
	word ^= crc;
	return look_up(crc_table + 4, (u32)word) ^ look_up(crc_table, (u32)(word >> 32));
}

static __always_inline u32 crc_half(u32 crc, u32 half, bool table)
{
	if (!table) {
		asm("crc32l %1, %0" : "+r"(crc) : "r"(half));
		return crc;
	}
	return look_up(crc_table, half ^ crc);
}

static __always_inline void store_word(u64 *dst, u64 word)
{
	asm volatile("movnti %1, %0" : "=m"(*dst) : "r"(word));
}

/* Half a line; each word is read once. */
static __always_inline void store_words(u64 *dst, const u64 *src)
{
	u64 a = READ_ONCE(src[0]), b = READ_ONCE(src[1]);
	u64 c = READ_ONCE(src[2]), d = READ_ONCE(src[3]);

	store_word(&dst[0], a);
	store_word(&dst[1], b);
	store_word(&dst[2], c);
	store_word(&dst[3], d);
}

static __always_inline void store_line(u8 *dst, const u8 *src)
{
	store_words((u64 *)dst, (const u64 *)src);
	store_words((u64 *)(dst + 32), (const u64 *)(src + 32));
}

/* memcpy_flushcache for whole lines, with a third of its loop's instructions less. */
static __always_inline void write_lines(u8 *dst, const u8 *src, size_t n)
{
	for (; n >= 256; n -= 256, dst += 256, src += 256) {
		store_line(dst, src);
		store_line(dst + 64, src + 64);
		store_line(dst + 128, src + 128);
		store_line(dst + 192, src + 192);
	}
	for (; n; n -= 64, dst += 64, src += 64)
		store_line(dst, src);
}

#define LOAD(label, at, reg) #label ":	movq " #at "(%[src]), %%" #reg "\n"
#define STORE(at, reg) "	movq %%" #reg ", " #at "(%[dst])\n"
#define SAFE(label) _ASM_EXTABLE_TYPE(label, 9b, EX_TYPE_DEFAULT_MCE_SAFE)

/* copy_mc_to_kernel for whole lines: that goes by rep movsb, which is made for what
 * lies in the caches and is a loop over bytes where it is emulated.  0, or what is
 * left when a load met poison.
 */
static size_t read_lines(void *dst, const void *src, size_t n)
{
	kasan_check_write(dst, n);
	asm volatile(
		LOAD(1, 0, rax) LOAD(2, 8, rcx) LOAD(3, 16, rdx) LOAD(4, 24, r8)
		STORE(0, rax) STORE(8, rcx) STORE(16, rdx) STORE(24, r8)
		LOAD(5, 32, rax) LOAD(6, 40, rcx) LOAD(7, 48, rdx) LOAD(8, 56, r8)
		STORE(32, rax) STORE(40, rcx) STORE(48, rdx) STORE(56, r8)
		"	addq $64, %[src]\n"
		"	addq $64, %[dst]\n"
		"	subq $64, %[n]\n"
		"	jnz 1b\n"
		"9:\n"
		SAFE(1b) SAFE(2b) SAFE(3b) SAFE(4b) SAFE(5b) SAFE(6b) SAFE(7b) SAFE(8b)
		: [dst] "+r"(dst), [src] "+r"(src), [n] "+r"(n)
		:
		: "rax", "rcx", "rdx", "r8", "memory", "cc");
	return n;
}

/* Adds one line to the CRC and, unless dst is NULL, stores it to the media.  Each word is read
 * once: the CRC covers exactly the stored bytes, even if others change the source. */
static __always_inline u64 line_crc(u64 *dst, const u64 *src, u64 crc, bool table)
{
	u32 i;

	for (i = 0; i < 8; i++) {
		u64 word = READ_ONCE(src[i]);

		if (dst)
			store_word(&dst[i], word);
		crc = crc_word(crc, word, table);
	}
	return crc;
}

static __always_inline u32 lines_by_instruction(u8 *dst, const u8 *src, size_t n, u32 raw)
{
	u64 crc = raw;
	size_t at = 0;

	for (; n - at >= LANES; at += LANES) {
		u64 b = 0, c = 0;
		size_t i;

		for (i = at; i < at + LANE; i += 64) {
			u8 *to = dst ? dst + i : NULL;

			crc = line_crc((u64 *)to, (const u64 *)(src + i), crc, false);
			b = line_crc((u64 *)(dst ? to + LANE : NULL), (const u64 *)(src + i + LANE), b, false);
			c = line_crc((u64 *)(dst ? to + 2 * LANE : NULL), (const u64 *)(src + i + 2 * LANE), c,
				     false);
		}
		crc = shifted(shifted((u32)crc) ^ (u32)b) ^ (u32)c;
	}
	for (; at < n; at += 64)
		crc = line_crc((u64 *)(dst ? dst + at : NULL), (const u64 *)(src + at), crc, false);
	return (u32)crc;
}

static __always_inline u32 lines_by_table(u8 *dst, const u8 *src, size_t n, u32 raw)
{
	u64 crc = raw;
	size_t at;

	for (at = 0; at < n; at += 64)
		crc = line_crc((u64 *)(dst ? dst + at : NULL), (const u64 *)(src + at), crc, true);
	return (u32)crc;
}

/* n is a multiple of 64 in these two. */
static u32 write_lines_crc(u8 *dst, const u8 *src, size_t n, u32 raw)
{
	return by_table ? lines_by_table(dst, src, n, raw) : lines_by_instruction(dst, src, n, raw);
}

static u32 raw_lines(const void *p, size_t n, u32 raw)
{
	return by_table ? lines_by_table(NULL, p, n, raw) : lines_by_instruction(NULL, p, n, raw);
}

static __always_inline u32 bytes(const u8 *p, size_t n, u32 raw, bool table)
{
	u64 crc = raw;

	for (; n >= 8; n -= 8, p += 8)
		crc = crc_word(crc, *(const u64 *)p, table);
	if (n >= 4) {
		crc = crc_half((u32)crc, *(const u32 *)p, table);
		n -= 4;
		p += 4;
	}
	for (; n > 0; n--, p++)
		crc = (u32)crc >> 8 ^ crc_table[0][(crc ^ *p) & 255];
	return (u32)crc;
}

static u32 raw_bytes(const u8 *p, size_t n, u32 raw)
{
	return by_table ? bytes(p, n, raw, true) : bytes(p, n, raw, false);
}

/* Nanoseconds for some lines, the best of a few tries: others may run meanwhile. */
static u64 time_lines(const u8 *p, size_t n, bool table)
{
	u64 best = U64_MAX, began;
	u32 i, sum = 0;

	for (i = 0; i < 8; i++) {
		began = ktime_get_ns();
		sum += table ? lines_by_table(NULL, p, n, sum) : lines_by_instruction(NULL, p, n, sum);
		barrier_data(&sum);
		best = min(best, ktime_get_ns() - began);
	}
	return best;
}

static void crc_init(void)
{
	static const u8 zero[LANE];
	u32 i, byte;

	for (i = 0; i < 4; i++)
		for (byte = 0; byte < 256; byte++)
			shift_lane[3 - i][byte] = crc32c(byte << (8 * i), zero, LANE);
	for (i = 0; i < 8; i++)
		for (byte = 0; byte < 256; byte++)
			crc_table[i][byte] = crc32c(byte, zero, i + 1);
	by_table = !boot_cpu_has(X86_FEATURE_XMM4_2) ||
		   time_lines(zero, LANE, true) < time_lines(zero, LANE, false);
}
#else
static void write_lines(u8 *dst, const u8 *src, size_t n)
{
	memcpy_flushcache(dst, src, n);
}

static size_t read_lines(void *dst, const void *src, size_t n)
{
	return copy_mc_to_kernel(dst, src, n);
}

static u32 raw_lines(const void *p, size_t n, u32 raw)
{
	return crc32c(raw, p, n);
}

static u32 raw_bytes(const u8 *p, size_t n, u32 raw)
{
	return crc32c(raw, p, n);
}

/* The CRC covers exactly the stored bytes, even if others change the source. */
static u32 write_lines_crc(u8 *dst, const u8 *src, size_t n, u32 raw)
{
	u8 piece[PIECE] __aligned(8) __uninitialized;
	size_t at, part;

	for (at = 0; at < n; at += part) {
		part = min_t(size_t, n - at, PIECE);
		memcpy(piece, src + at, part);
		raw = raw_lines(piece, part, raw);
		memcpy_flushcache(dst + at, piece, part);
	}
	return raw;
}

static void crc_init(void)
{
}
#endif

void fby_linux_init(void)
{
	crc_init();
}

u32 fby_crc32c(u32 crc, const void *p, size_t n)
{
	return ~raw_bytes(p, n, ~crc);
}

/* The image of a device is memory like any other: no fence follows that would order stores past
 * the caches, and they are read again soon.  Sums what lies there, since others may change the
 * source.
 */
void fby_port_write(struct fby_media *m, u64 at, const void *src, size_t n)
{
	if (unlikely(m->device))
		memcpy(m->base + at, src, n);
	else
		write_lines(m->base + at, src, n);
}

u32 fby_port_write_crc(struct fby_media *m, u64 at, const void *src, size_t n, u32 crc)
{
	if (unlikely(m->device)) {
		memcpy(m->base + at, src, n);
		return ~raw_lines(m->base + at, n, ~crc);
	}
	return ~write_lines_crc(m->base + at, src, n, ~crc);
}

/*
 * Sums what lies on the media rather than the copy, which may be a page that a
 * process scribbles in meanwhile.  The checked copy has just had those lines in
 * its hands, so this does not meet an error that it did not.
 */
int fby_port_read_crc(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	const u8 *src = m->base + at;
	u8 piece[PIECE] __aligned(8) __uninitialized;
	u32 raw = crc ? ~*crc : 0;
	size_t done, part;

	for (done = 0; done < n; done += part) {
		void *to = dst ? (u8 *)dst + done : piece;

		part = dst ? n - done : min_t(size_t, n - done, PIECE);
		if (read_lines(to, src + done, part))
			return 1;
		if (crc)
			raw = raw_lines(src + done, part, raw);
	}
	if (crc)
		*crc = ~raw;
	return 0;
}
