/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * medium.h - every load, store, flush and fence of the media, by offset.  No other file of the
 * engine accesses the media, so the simulator sees every access, and the media need not be
 * memory.
 */
#ifndef FBY_MEDIUM_H
#define FBY_MEDIUM_H

#include "medium/device.h"
#include "medium/small.h"

/* Stores data of one page: sectors at offset at; returns their CRC, continued. */
static inline u32 media_data(struct fby_media *m, u64 at, const void *src, u32 bytes, u32 crc, bool checksum)
{
	if (checksum)
		return fby_port_write_crc(m, at, src, bytes, crc);
	fby_port_write(m, at, src, bytes);
	return 0;
}

/* n whole lines, or whole records. */
static inline void media_lines(struct fby_media *m, u64 at, const void *src, u32 bytes)
{
	fby_port_write(m, at, src, bytes);
}

/* Makes durable what this thread stored before. */
static inline void media_fence(struct fby_media *m, u64 at, u64 bytes)
{
	fby_port_fence(m, at, bytes);
}

/* Has the device failed?  Then nothing that is stored becomes durable. */
static inline bool media_failed(struct fby_media *m)
{
	const struct fby_device *device = fby_media_device(m);

	return fby_unlikely(device != NULL) && fby_load(&device->failed) != 0;
}

static inline void media_fail(struct fby_media *m)
{
	fby_store(&fby_media_device(m)->failed, 1u);
}

/* Writes blocks of the image to the device: those of the unit that contain [at, at + bytes).
 * more: another such call follows, and makes them durable.  False: it was tried again or given up,
 * so what earlier calls with more wrote may be lost, and has to be written again. */
static inline bool media_persist(struct fby_media *m, u32 unit, u64 at, u64 bytes, bool more)
{
	struct fby_device *device = fby_media_device(m);
	u64 first = at & ~(u64)(unit - 1), end = fby_round_up(at + bytes, unit);

	for (u32 i = 0; i < FBY_DEVICE_TRIES && !fby_load(&device->failed); i++)
		if (device->persist(m, first, end - first, more) == 0 || FBY_BUG(GROUP_PERSIST_IGNORED))
			return i == 0;
	media_fail(m);
	return false;
}

/* Reads whole lines to dst; NULL: checks that they are readable.  False: the media reported an
 * error. */
static inline bool media_read(struct fby_media *m, void *dst, u64 at, u32 bytes)
{
	return fby_port_read(m, dst, at, bytes) == 0;
}

/* Reads, and continues their CRC. */
static inline bool media_read_crc(struct fby_media *m, void *dst, u64 at, u32 bytes, u32 *crc)
{
	return fby_port_read_crc(m, dst, at, bytes, crc) == 0;
}

/* Prefetches bytes that will be read soon.  Inline, since gcc drops calls of functions that only
 * prefetch. */
FBY_INLINE void media_prefetch(struct fby_media *m, u64 at, u32 bytes)
{
	const u8 *p = fby_media_direct(m, at, bytes);

	if (!p)
		return;
	for (u32 i = 0; i < bytes; i += 64)
		fby_prefetch(p + i);
}

#endif
