/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_ops_model.h - what the target `ops` knows of each sector, of the origins below
 * the volumes, and of what the engine owes to those who read and flush.
 *
 * Everything happens one after another, but not at once: a read, a write past the cache
 * or a flush begins at one step and ends at a later one.  So what happens has a time, and
 *
 *	- a read may show what its sector showed at any time between its begin and its end;
 *	- a flush that succeeds has made durable what was acknowledged before it began;
 *	- a flush fails if something is lost that was acknowledged before it began, and
 *	  of which no flush of all was told yet;
 *	- it fails only if a flush of its origin failed of which no such flush was told.
 */
#ifndef FBY_FUZZ_OPS_MODEL_H
#define FBY_FUZZ_OPS_MODEL_H

#include "fuzz.h"

#define NVOL 2u
#define SECTORS 512u
#define NREADING 3u
#define NTICKET 4u
#define MODEL_NEVER (~0u) /* a time */

extern const u32 volume_sectors[NVOL], volume_block[NVOL];

/* Versions: which write it is; 0: zeroes. */
struct sector {
	u32 shown;   /* what a read has to show */
	u32 origin;  /* what the origin answers */
	u32 sent;    /* what it answered when the flush in flight was sent */
	u32 durable; /* what it would answer after a loss of power */
	u32 acked;   /* of what went past the cache: when that was acknowledged */
	bool past;   /* what is shown went past the cache, and no flush vouches for it */
	bool untold; /* that was acknowledged, is lost, and no flush of all was told */
};
extern struct sector sector_of[NVOL][SECTORS];

/* A read between its begin and its end, of sectors of one block. */
struct reading {
	bool on;
	u32 volume, n;
	u64 sector;
	u8 from_origin; /* bit i: sector + i has still to be read there */
	u32 nmay[FBY_PAGE_SECTORS];
	u32 may[FBY_PAGE_SECTORS][16]; /* what it may show; any, if that is full */
};
extern struct reading reading[NREADING];

/* A flush that somebody waits for: of all, or of the sectors of one request. */
struct ticket {
	struct fby_flush t;
	enum { TICKET_NONE, TICKET_WAITS, TICKET_SENT } stage;
	u32 volume, began, told;
	bool all, aside, must_fail;
	u64 sector; /* unless it is of all */
	u64 n;
	u32 version;
};
extern struct ticket ticket[NTICKET];

void model_reset(void);
u32 model_now(void); /* later than all that was before */
u32 model_version(void); /* of a new write */

/* The sectors show the version from now on. */
void model_show(u32 volume, u64 sector, u64 n, u32 version);
/* The origin has taken the version, past the cache. */
void model_past(u32 volume, u64 sector, u64 n, u32 version, enum fby_kind kind);
/* That was acknowledged. */
void model_ack(u32 volume, u64 sector, u64 n, u32 version);
/* A pool that is opened has forgotten what nobody was told of. */
void model_open(void);
/* The volume is attached anew, and with it all that was in flight is gone. */
void model_attach(u32 volume);
void model_crash(bool power);

void model_read_begin(struct reading *r, u32 volume, u64 sector, u32 n);
/* The read of sector + i got the version. */
void model_read(const struct reading *r, u32 i, u32 version);

/* The flush in flight makes durable what the origin had when it was sent, at least. */
void model_flush_sent(u32 volume);
void model_flush_done(u32 volume, bool what_came_later);
void model_flush_failed(u32 volume, bool loses);

/* A ticket of all; for one of a request began, sector, n and version are the caller's. */
void model_ticket(struct ticket *t, u32 volume, bool aside);
/* It was answered. */
void model_ticket_done(struct ticket *t);
void model_ticket_told(struct ticket *t);
/* A request that began then is told of a failure, which must not be one before. */
void model_told(u32 volume, u32 began);

#endif
