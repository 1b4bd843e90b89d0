/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * port.h - all that the engine needs from its environment, a counted list.  Each environment has
 * one header in port/ that supplies it: port/posix.h for user space (the simulator is user space
 * with another table of media operations), and port/linux.h for the kernel.
 *
 *  types and compiler
 *   1 u8 u16 u32 u64	fixed-width unsigned types; bool, size_t, NULL
 *   2 FBY_STATIC_ASSERT(cond, text)
 *   3 FBY_ASSERT(in, cond)	conditions of our own making, never media content.  in is
 *			any address in the memory of the pool that the condition is about, or
 *			that pool's media: where it fails, it says which pool is broken
 *   4 fby_likely(x) fby_unlikely(x)
 *   5 fby_prefetch(p) fby_prefetchw(p)
 *
 *  memory shared between threads; all relaxed but where the name says it
 *   6 fby_load(p) fby_store(p, v)
 *   7 fby_load_acquire(p) fby_store_release(p, v)
 *   8 fby_cmpxchg(p, old, new)	true if it was old; acquire and release
 *   9 fby_fetch_add(p, v)	value before; acquire and release
 *  10 fby_fetch_or(p, v) fby_fetch_and(p, v)	likewise
 *  11 fby_rmb()		loads before it are done before loads after it
 *  12 fby_wmb()		stores before it, non-temporal too, are seen
 *			before stores after it
 *  13 fby_relax()	a hint in a spin loop
 *  14 struct fby_lock, fby_lock_init(l) fby_lock(l) fby_unlock(l)
 *			a spinlock for the slow paths; never held across media
 *			reads of more than a few lines
 *  15 fby_cpu()	a number below 2^16 that differs between CPUs: a hint
 *  16 fby_pin() fby_unpin()	between them the thread keeps its CPU, where the world
 *			can see to that: others spin for what it holds, a slot or a
 *			block.  They nest, up to 100 deep; nothing waits between them
 *
 *  plain memory
 *  17 fby_copy(dst, src, n) fby_zero(dst, n) fby_equal(a, b, n)
 *  18 fby_crc32c(crc, p, n)	CRC32C (Castagnoli), not inverted in or out
 *			by the caller: fby_crc32c(fby_crc32c(0, a), b) is the
 *			CRC of a then b
 *
 *  media: struct fby_media, opaque to the engine but for size
 *  19 fby_media_direct(m, at, n)	[at, at+n) in memory, or NULL where the
 *			media is none: to prefetch, nothing else
 *  20 fby_media_size(m)	bytes
 *  21 fby_port_write(m, at, src, n)	copy to the media at offset at, past the
 *			caches where the media has them; at and n multiples of 64,
 *			src of any alignment
 *  22 fby_port_write_crc(m, at, src, n, crc)	the same; returns the
 *			CRC32C of src continued from crc, computed in the same pass
 *  23 fby_port_fence(m, at, n)	all that this thread wrote before is
 *			durable when it returns; [at, at+n) bounds it, for
 *			media that need a system call
 *  24 fby_port_read_crc(m, dst, at, n, &crc)	copy from the media and
 *			continue crc; dst may be NULL (checksum only); at and n
 *			multiples of 64; 0, or nonzero when the media reported an
 *			error (machine check): dst and crc are then void
 *  25 fby_port_read(m, dst, at, n)	the same without a checksum; dst may be
 *			NULL: is it readable?
 *  26 fby_mb_after_atomic()	behind one of 8 to 10: stores before it are seen before
 *			loads after it are done
 *  27 fby_uninitialized	of a variable: spare clearing it where the compiler would
 *  28 fby_media_device(m)	struct fby_device of device.h, whose image the media is; NULL
 *			where the media is memory
 *
 *  long work
 *  29 fby_breathe()	in a loop over all of the media or of the index, of open, close and
 *			calls of volumes, each few thousand steps: others may have the CPU, where
 *			nobody takes it away.  Nothing is held that other threads spin for
 */
#ifndef FBY_PORT_H
#define FBY_PORT_H

#ifdef __KERNEL__
#include "../../port/linux.h"
#else
#include "../../port/posix.h"
#endif

#endif
