/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_ops_requests.h - the requests of the target `ops`.  Each is done at once, or held
 * between two of its steps so that others come between: writes through the cache, what
 * goes past it, reads, flushes, and what destage asks of the origins.
 */
#ifndef FBY_FUZZ_OPS_REQUESTS_H
#define FBY_FUZZ_OPS_REQUESTS_H

#include "fuzz_ops_model.h"

extern struct fby_pool *pool;

/* "how" and "shape" are bits of the input: which of those held, and how it goes on. */

void write_now(u32 volume, u64 sector, u32 n);
void write_hold(u32 volume, u64 sector, u32 n);
void write_go_on(u32 how, u32 shape);

/* As far as it goes past the cache; the rest goes through it. */
void past_now(u32 volume, u64 sector, u32 n);
void past_hold(u32 volume, u64 sector, u32 n);
void past_go_on(u32 which, u32 how);
void range_now(u32 volume, enum fby_kind kind, u64 sector, u64 n);
void range_hold(u32 volume, enum fby_kind kind, u64 sector, u64 n);

void read_now(u32 volume, u64 block, u32 first, u32 n);
/* Calls beside before the first look at the media, for anything that may happen concurrently with
 * a read.  read_go_on reads uncached sectors from the origin. */
void read_hold(u32 volume, u64 block, u32 first, u32 n, void (*beside)(void));
void read_go_on(u32 which);

int flush_now(u32 volume);
void flush_hold(u32 volume, bool aside);
void flush_go_on(u32 which, u32 how);
void flush_waiting(void); /* all that wait; none may have to, since nothing else happens */

void destage_step(u32 ms);
void destage_complete(u32 how);
bool destage_pending(void);
int origin_at_once(const struct fby_io *io);

bool held_any(void); /* any request of a caller's */
bool held_of(u32 volume);
void held_finish(void);
/* A crash: committed writes are there.  late: destage's requests are executed. */
void held_crash(bool late);

#endif
