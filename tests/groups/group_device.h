/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_device.h - a block device with a volatile cache, and the image of a pool on it.
 */
#ifndef GROUP_DEVICE_H
#define GROUP_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/groups.h"
#include "api/log.h"

/* The pool of the present life. */
struct geometry {
	u32 unit, chunk, chunks;
	u32 body_most; /* of an entry */
	u32 rare; /* so much is done to one of so many states: 1 of a small pool */
};
extern const struct geometry geometries[];
#define GEOMETRIES 3u /* the first one is small */
extern const struct geometry *geometry;

#define UNIT geometry->unit
#define CHUNK geometry->chunk
#define CHUNKS geometry->chunks
#define MEDIA ((u64)(CHUNKS + 1) * CHUNK)
#define BLOCKS (u32)(MEDIA / UNIT)
#define UNIT_MOST 65536u
#define MEDIA_MOST (10u << 20)
#define BLOCKS_MOST (MEDIA_MOST / 4096)
#define PENDING 256u

/* A block on its way to the device.  Until it is durable, a cut leaves the old content, the new
 * content, a mixture of both, or an unreadable block. */
struct pending {
	u32 block;
	u32 io; /* of which request; 0: it has ended */
	bool ended, covered;
	bool gone; /* it was dropped with the cache before its end is reported */
	u8 *bytes;
};

/* A device, its image, and what the engine sees of them. */
struct world {
	u8 *image, *image_unreadable;
	u8 *durable, *unreadable;
	struct pending pending[PENDING];
	u32 npending;
	u32 refuse; /* the next so many calls of persist fail */
	u32 refuse_after; /* but first so many do not */
	bool more; /* calls of persist with more keep their blocks pending */
	bool killed; /* what is pending is of a host before */
	struct fby_device below;
	struct fby_media media;
	void (*persists)(struct world *w); /* called while the blocks of a persist are pending */
};

void world_make(struct world *w, enum fby_durable durable);
/* Restarts the machine: the image gets the content of the device. */
void world_load(struct world *w);
void world_send(struct world *w, const struct fby_medium_io *io, u32 number);
/* Lets a flush of another thread fail, and drops the cache. */
void world_flush_fails(struct world *w);
/* Kills the host and starts it again while the device stays on: reads show the content of its
 * cache. */
void world_kill(struct world *w);
/* Gives a pending block the state that a cut leaves.  0: the old content; 1: the new content; 2: a
 * mixture of both, by sectors; 3: unreadable. */
void world_variant(struct world *to, const struct pending *p, u32 which);
void world_copy(struct world *to, const struct world *from);
/* Gives `to` a state that a cut leaves of `from`.  which: the variant of each pending
 * block. */
void world_cut(struct world *to, const struct world *from, const u8 *which);
/* Cuts the power once more in a recovery, one time in three: try_state looks at the result, and
 * then the recovery continues.  memory: that of the pool; depth: counts such cuts under way. */
void world_cut_again(struct world *w, void **memory, u32 *depth, void (*try_state)(void));
/* Ends a request.  result: 0, or an error, after which the seed decides the content of
 * the blocks. */
void world_end(struct world *w, const struct fby_medium_io *io, u32 number, int result);

u32 chance(u32 below); /* the seed's next number */
extern u64 seed;

/* Called when the engine has loaded this (group_race.h), to act as another thread at that
 * moment. */
extern void (*race)(const char *what);

_Noreturn void lost(const char *what); /* prints it with the seed */

#endif
