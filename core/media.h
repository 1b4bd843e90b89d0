/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * media.h - every store, flush and fence to the media.  Nothing else in the
 * engine writes to it, so the simulator sees all there is.
 */
#ifndef FBY_MEDIA_H
#define FBY_MEDIA_H

#include "engine.h"

/* Data of one page: sectors at dst, their CRC continued. */
static inline u32 media_data(struct fby_media *m, void *dst, const void *src, u32 bytes, u32 crc, bool checksum)
{
	if (checksum)
		return fby_port_write_crc(m, dst, src, bytes, crc);
	fby_port_write(m, dst, src, bytes);
	return 0;
}

/* n whole lines, or whole records. */
static inline void media_lines(struct fby_media *m, void *dst, const void *src, u32 bytes)
{
	fby_port_write(m, dst, src, bytes);
}

/* What this thread stored before is durable when it returns. */
static inline void media_fence(struct fby_media *m, const void *start, u64 bytes)
{
	fby_port_fence(m, start, bytes);
}

static inline void media_fence_chunk(struct fby_pool *p, u32 c)
{
	media_fence(p->media, fby_chunk_base(p, c), p->sb.chunk_size);
}

#endif
