/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * generic_copy.c - the copy kernel of any CPU: 8-byte words, CRC a line at a time.  It has no
 * non-temporal stores.  If the persist method asks for them, it stores through the caches and
 * flushes, which is as durable.
 */
#include "posix_copy.h"

#define LINE_WORDS 8

static bool generic_usable(void)
{
	return true;
}

/* The media's side is read and written by several threads at once, and the
 * engine decides afterwards whether what it read counts: atomic words. */
static void line_to_media(u64 *dst, const u64 *line)
{
	int i;

	for (i = 0; i < LINE_WORDS; i++)
		fby_store(&dst[i], line[i]);
}

static void line_from_media(u64 *line, const u64 *src)
{
	int i;

	for (i = 0; i < LINE_WORDS; i++)
		line[i] = fby_load(&src[i]);
}

/* Keeps the compiler from reading the source again after line was filled. */
static void line_from_memory(u64 *line, const u8 *src)
{
	fby_copy(line, src, 64);
	__asm__ volatile("" : "+m"(*(u64(*)[LINE_WORDS])line));
}

static void generic_store(void *dst, const void *src, size_t n)
{
	u64 line[LINE_WORDS];
	size_t at;

	for (at = 0; at < n; at += 64) {
		line_from_memory(line, (const u8 *)src + at);
		line_to_media((u64 *)((u8 *)dst + at), line);
	}
}

static u32 generic_store_crc(void *dst, const void *src, size_t n, u32 crc)
{
	u64 line[LINE_WORDS];
	size_t at;

	for (at = 0; at < n; at += 64) {
		line_from_memory(line, (const u8 *)src + at);
		crc = fby_crc32c(crc, line, 64);
		line_to_media((u64 *)((u8 *)dst + at), line);
	}
	return crc;
}

static void generic_stream(void *dst, const void *src, size_t n)
{
	generic_store(dst, src, n);
	fby_posix_flush(dst, n);
}

static u32 generic_stream_crc(void *dst, const void *src, size_t n, u32 crc)
{
	crc = generic_store_crc(dst, src, n, crc);
	fby_posix_flush(dst, n);
	return crc;
}

static u32 generic_load_crc(void *dst, const void *src, size_t n, u32 crc)
{
	u64 line[LINE_WORDS];
	size_t at;

	for (at = 0; at < n; at += 64) {
		line_from_media(line, (const u64 *)((const u8 *)src + at));
		crc = fby_crc32c(crc, line, 64);
		if (dst)
			fby_copy((u8 *)dst + at, line, 64);
	}
	return crc;
}

FBY_MEDIA_KERNEL_OPS(generic)

const struct fby_media_kernel fby_kernel_generic = {
	.name = "generic",
	.usable = generic_usable,
	FBY_MEDIA_KERNEL_TABLE(generic),
};
