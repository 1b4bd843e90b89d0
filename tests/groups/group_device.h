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

#define UNIT 4096u
#define CHUNK 65536u
#define CHUNKS 6u
#define MEDIA ((CHUNKS + 1) * CHUNK)
#define BLOCKS (MEDIA / UNIT)
#define PENDING 64u

/* A block on its way to the device: until it is durable, a cut leaves it as it was, as it is to
 * be, something of both, or unreadable. */
struct pending {
	u32 block;
	u32 io; /* of which request; 0: it has ended */
	bool ended, covered;
	u8 bytes[UNIT];
};

/* A device, its image, and what the engine sees of them. */
struct world {
	u8 image[MEDIA] __attribute__((aligned(4096)));
	u8 image_unreadable[BLOCKS];
	u8 durable[MEDIA];
	u8 unreadable[BLOCKS];
	struct pending pending[PENDING];
	u32 npending;
	u32 refuse; /* the next so many calls of persist fail */
	struct fby_device below;
	struct fby_media media;
	void (*persists)(struct world *w); /* called while the blocks of a persist are pending */
};

void world_make(struct world *w, enum fby_durable durable);
/* The machine starts again: the image is what the device has. */
void world_load(struct world *w);
void world_send(struct world *w, const struct fby_medium_io *io, u32 number);
/* result: 0, or the error, after which the seed says what the blocks have. */
void world_end(struct world *w, const struct fby_medium_io *io, u32 number, int result);

u32 chance(u32 below); /* the seed's next number */
extern u64 seed;

_Noreturn void lost(const char *what); /* prints it with the seed */

#endif
