/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log_order.h - in which order the entries of a log depend on each other, and
 * how replay notices that one is missing.  Works on copies of entry headers; it
 * knows no media.
 *
 * A log is a sequence of generations.  Entries of one generation do not depend on
 * each other; each depends on all entries of the generations before its own.  A
 * transaction group (txg) says when an entry becomes obsolete: once the consumer
 * has synced it.  At most three txgs are unsynced at any time.
 *
 * Each entry carries, for up to three txgs, how many entries of that txg were
 * appended in the generations before its own.  Replay counts again, and where the
 * numbers differ an entry is missing; the entry that shows it is the witness.
 * After ZIL-PMEM (Schwarz, KIT 2021), sections 5.3 to 5.7 and 7.2.1.
 */
#ifndef FBY_LOG_ORDER_H
#define FBY_LOG_ORDER_H

#include "api/log.h"

enum fby_log_refusal {
	FBY_LOG_OK = 0,
	FBY_LOG_OBSOLETE, /* the txg is synced already */
	FBY_LOG_SKIPS,	  /* the txg is more than three above the synced one */
	FBY_LOG_BACKWARDS, /* sync: a later txg is synced already */
	FBY_LOG_FULL,	   /* generation or id have no successor */
};

/* May an entry of this txg be appended? */
enum fby_log_refusal fby_log_admit(u64 synced, u64 txg);
/* One entry more of txg.  False: a txg three later was counted, so it is obsolete. */
bool fby_log_count(struct fby_log_counters *c, u64 txg);
/* Entries counted apart, all together. */
void fby_log_count_all(struct fby_log_counters *c, const struct fby_log_counters *more);

/* One append after the other: numbers the next entry and fills node but for place.  Not
 * changed if refused.  (append.c has several at a time, to the same effect.) */
enum fby_log_refusal fby_log_append_order(struct fby_log_position *at, u64 txg, bool new_generation,
					  struct fby_log_node *node);

/* Entries up to txg are obsolete. */
enum fby_log_refusal fby_log_sync_order(struct fby_log_position *at, u64 txg);

/*
 * Claim: the position from which a log whose entries are in node[0..n) is
 * replayed.  The seal says how many entries there have to be, so that the loss of
 * some of the last generation shows from now on.  Sorts the nodes.
 */
void fby_log_claim_order(struct fby_log_position *at, u64 synced, struct fby_log_node *node, u64 n);

/*
 * Replays node[0..n) from *at on, in order of generation and id.  *at follows each
 * entry replayed.  An entry is replayed only if all that it depends on was.
 * Sorts the nodes; no memory of its own, O(n log n).
 */
void fby_log_replay_order(struct fby_log_position *at, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
			  void *arg, struct fby_log_result *result);

#endif
