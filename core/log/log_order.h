/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log_order.h - the order in which the entries of a log depend on each other, and how replay
 * notices a missing one.  It works on copies of entry headers and does not access the media.
 *
 * A log is a sequence of generations.  Entries of one generation do not depend on
 * each other; each depends on all entries of the generations before its own.  A
 * transaction group (txg) says when an entry becomes obsolete: once the consumer
 * has synced it.  At most three txgs are unsynced at any time.
 *
 * Each entry carries, for up to three txgs, the number of entries of that txg in earlier
 * generations.  Replay counts again; if the numbers differ, an entry is missing.  The entry that
 * shows it is the witness.  After ZIL-PMEM (Schwarz, KIT 2021), sections 5.3 to 5.7 and 7.2.1.
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
/* Counts one more entry of txg.  False: a txg three later was counted, so it is obsolete. */
bool fby_log_count(struct fby_log_counters *c, u64 txg);
/* Adds counters that were kept separately. */
void fby_log_count_all(struct fby_log_counters *c, const struct fby_log_counters *more);

/* For one append after the other: numbers the next entry and fills node except place.  Changes
 * nothing if refused.  (append.c has several in flight, to the same effect.) */
enum fby_log_refusal fby_log_append_order(struct fby_log_position *at, u64 txg, bool new_generation,
					  struct fby_log_node *node);

/* Is entry b a copy of entry a, and then which of the two counts? */
enum fby_log_copy { FBY_LOG_ANOTHER = 0, FBY_LOG_COPY_DROPPED, FBY_LOG_COPY_COUNTS };
typedef enum fby_log_copy fby_log_copy_fn(void *arg, const struct fby_log_node *a, const struct fby_log_node *b);

/* Keeps one of each entry that is there several times.  Sorts the nodes; returns how many remain. */
u64 fby_log_copies_drop(struct fby_log_node *node, u64 n, fby_log_copy_fn *copy, void *arg);

/* Makes entries up to txg obsolete. */
enum fby_log_refusal fby_log_sync_order(struct fby_log_position *at, u64 txg);

/*
 * Claim: computes the position from which a log whose entries are in node[0..n) is replayed.  The
 * seal says how many entries there must be, so that the loss of some of the last generation is
 * noticed from now on.  Sorts the nodes.
 */
void fby_log_claim_order(struct fby_log_position *at, u64 synced, struct fby_log_node *node, u64 n);

/*
 * Replays node[0..n) from *at on, in order of generation and id.  *at follows each replayed
 * entry.  An entry is replayed only if everything that it depends on was.  Sorts the nodes; needs
 * no memory, O(n log n).
 */
void fby_log_replay_order(struct fby_log_position *at, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
			  void *arg, struct fby_log_result *result);

#endif
