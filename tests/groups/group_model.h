/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_model.h - the expected content of a pool's logs, and the checks of a recovery.
 */
#ifndef GROUP_MODEL_H
#define GROUP_MODEL_H

#include "group_device.h"

#define LOGS 2u
#define ENTRIES 4096u
#define BODY_MOST 120000u

/* A log: its entries, by index from 1 in the order of their appends. */
struct model {
	u16 index;
	struct {
		u64 txg, ticket;
		u32 length;
	} entry[ENTRIES];
	u32 appended, acknowledged;
	u64 synced, syncing; /* txg: synced for certain; perhaps */
	u64 period;
	bool logging;
};
extern struct model logs[LOGS], *it; /* it: the one that is looked at */
extern u32 nlogs;

void must(bool good, const char *what);

/* A life in which there are logs. */
struct log_host {
	struct fby_pool *pool;
	struct world *w;
	u32 *errors; /* that may still be made */
	void (*between)(void); /* what another thread does between the steps of an append */
	void (*pump)(void); /* carries out requests */
};
/* These act on the log under test. */
void log_append(struct log_host *h);
void log_sync(struct log_host *h); /* up to what is acknowledged */
void log_next_period(struct log_host *h);
void log_look(struct fby_pool *p); /* which entries are acknowledged by now */

/* Opens a pool, and recovers it. */
struct fby_pool *open_pool(struct world *w, void **memory, u64 *bytes, struct fby_recovery_report *report);
void body_of(u32 i, u8 *to, u32 length);
/* Checks the state after a power cut: nothing acknowledged is lost, nothing is reported, and no
 * other entry exists. */
void verify(struct fby_pool *p, const struct fby_recovery_report *report);
/* Checks the state when a block that was durable cannot be read.  A loss must be reported, except
 * that the last group of a chunk that was open may pass for a torn one.  whole: nothing may be
 * lost. */
void verify_damage(struct fby_pool *p, const struct fby_recovery_report *report, u32 last, bool whole);

/* The entries that claims find in all logs. */
struct found {
	u64 n, sum;
	bool said_missing;
};
void find_all(struct fby_pool *p, const struct fby_recovery_report *report, struct found *out);

#endif
