/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * device.h - the block device below a grouped pool.
 *
 * A pool is in memory, or it is grouped: it lies on a block device or in a plain file, and the
 * engine works on an image of all of it in DRAM.  Stores go to the image.  What is to be durable
 * goes to the device in whole blocks: by the requests of api/groups.h on the hot paths, and by
 * persist in calls that may sleep.
 *
 * What must be true of the device:
 *
 *   1. A write that has ended and is followed by a flush that succeeded, or that had FUA, or that
 *	went to a device without a volatile cache, survives.
 *   2. A write that was cut leaves each of its blocks old, new, mixed or unreadable, and changes
 *	no other block.
 *   3. What is durable stays readable, or is unreadable.
 *
 * Order between writes and atomic writes are not needed.
 */
#ifndef FBY_DEVICE_H
#define FBY_DEVICE_H

#include "medium/port.h"

/* When a write is durable. */
enum fby_durable {
	FBY_DURABLE_THROUGH = 0, /* when it has ended: the device has no volatile cache */
	FBY_DURABLE_FUA, /* when it has ended, since each write has FBY_MEDIUM_FUA */
	FBY_DURABLE_FLUSH, /* when a flush that was sent after its end has succeeded */
};

/*
 * A host that gives a device waits for tickets before it acknowledges anything.  Without a device a
 * grouped pool is refused (fby_probe).
 * The host reads the image from the device itself, past a page cache: after a write or a flush that
 * failed, a page cache shows what the device does not have, and goes on to do so for the next
 * process.  Recovery relies on what it reads once a flush has succeeded.
 *
 * The host fills it, zeroes the engine's fields, and keeps it as long as the media.
 */
struct fby_device {
	u32 unit; /* bytes of a block, a power of two, at least 4096; no block is shared or written in place */
	u32 durable; /* enum fby_durable */
	/* Writes [at, at + n) of the image to the device, whole blocks, and makes them durable.
	 * 0: they are.  Otherwise they may be or not.  more: it need not make them durable, since
	 * a call without more follows, which makes durable what all these calls wrote; if one of
	 * them fails, none of what they wrote is relied on.  It may sleep.  The engine calls it
	 * for superblocks, records and what recovery and format write, and for no block of a
	 * request that is in flight.  With FBY_DURABLE_FLUSH the host holds one lock around
	 * persist, and around each flush together with its fby_medium_end.  A flush in persist
	 * that fails adds one to lost under that lock. */
	int (*persist)(struct fby_media *m, u64 at, u64 n, bool more);
	/* the engine's, apart from what is said above; the host zeroes them */
	u32 lost; /* flushes that failed: what had ended and was not durable before may be lost */
	u32 failed; /* the device cannot be written: nothing more becomes durable */
};

/* Tries of persist, and of appending a group, before the pool has failed. */
#define FBY_DEVICE_TRIES 3u

#endif
