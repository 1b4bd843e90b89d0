/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * volume_model.h - a volume in front of an origin with a volatile cache.  The model knows the data
 * that was written to it, and the data that a cut may leave.
 */
#ifndef VOLUME_MODEL_H
#define VOLUME_MODEL_H

#include "group_model.h"

#define VBLOCKS 12u
#define VSECTORS (VBLOCKS * 8u)
#define VERSIONS 2048u /* of a sector */
#define ORIGIN_PENDING 512u

/* A version of a sector is a number, which its bytes show.  0: zeroes. */
struct sector {
	u32 version[VERSIONS]; /* in the order in which they were written; [0]: of the origin */
	u64 ticket[VERSIONS];
	u32 n; /* versions */
	u32 floor; /* no older one may be seen: it was acknowledged, or read */
};

/* Writes that have reached the origin or are on their way.  A flush makes durable those that had
 * ended. */
struct origin {
	u32 durable[VSECTORS];
	struct {
		u32 sector, version;
		u32 io; /* of which request; ~0: it has ended */
		bool covered;
	} pending[ORIGIN_PENDING];
	u32 npending;
};

struct volume_model {
	u16 index;
	struct sector sector[VSECTORS];
	u32 versions;
	struct origin origin;
	void *memory; /* of attach */
};
extern struct volume_model vms[2], *vm; /* vm: the one that is looked at */
/* No two volumes have a version in common.  So no volume can show the bytes of another
 * unnoticed. */
#define FIRST_VERSION(v) ((u32)((v) - vms) << 24)

void bytes_of_version(u32 version, u8 *to); /* a sector */
u32 version_of_bytes(const u8 *bytes); /* ~0: they are no version's */

void origin_write(struct origin *o, u32 sector, u32 version, u32 io);
void origin_ended(struct origin *o, u32 io, bool good);
void origin_flush_sent(struct origin *o);
void origin_flushed(struct origin *o);
u32 origin_sees(const struct origin *o, u32 sector); /* what a read shows */
void origin_cut(struct origin *o, const struct origin *from); /* any of what is pending, by sector */

/* A destage request, as the origin carries it out. */
void origin_io(struct origin *o, const struct fby_io *io, u32 number);

int attach_volume(struct fby_pool *p, u16 index, enum fby_holes holes, void **memory);
/* Adds n volumes to an empty pool, attaches them, and gives each sector of their origins a version.
 */
void add_volumes(struct fby_pool *p, u32 n, void **memory);
/* Reads a block as a host does.  Returns DONE, or the engine's answer. */
int read_block(struct fby_pool *p, const struct origin *o, u32 block, u32 version[8]);
/* Whether each sector of a block that was read shows its acknowledged version, or a newer one. */
bool block_is_new(u32 block, const u32 version[8]);
/* Checks the first n volumes and their origins after a cut: each sector shows its acknowledged
 * version, or a newer one, and nothing is reported.  drain: the origins then get the content of the
 * volumes. */
void verify_volumes(struct fby_pool *p, const struct fby_recovery_report *report, struct origin *o, u32 n, bool drain);

/* volume_hostile.c: changes that many copies of what the device has, and uses them. */
void volume_hostile(const struct world *from, u32 images);
void volume_hostile_told(void);

#endif
