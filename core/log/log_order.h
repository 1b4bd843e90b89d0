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

#include "medium/port.h"

#define FBY_LOG_TXGS 3u /* unsynced at any time: open, quiescing, syncing */

/* How many entries of txg, txg - 1 and txg - 2 there are.  Older ones are synced: so
 * three numbers do for a log's whole life.  (ZIL-PMEM keeps a table of four by txg
 * modulo 4; what it can tell above the synced txg is the same.) */
struct fby_log_counters {
	u64 txg; /* 0: none at all */
	u64 n[FBY_LOG_TXGS];
};

/* What of an entry's header says where it belongs. */
struct fby_log_node {
	u64 txg; /* from 1 */
	u64 gen; /* generation, from 1 */
	u64 id;	 /* within the generation, from 1 */
	struct fby_log_counters before; /* entries of earlier generations */
	u64 place; /* the caller's: where the entry lies */
};

/*
 * Where a log stands: all that append or replay has to remember.  Replay hands a
 * new one out with each entry; stored together with the entry's effect it is the
 * checkpoint from which a later replay goes on.  Zeroed: an empty log.
 */
struct fby_log_position {
	u64 synced;   /* entries of this txg and older are obsolete */
	u64 gen, id;  /* last entry appended or replayed; 0, 0: none */
	struct fby_log_counters live; /* entries so far */
	struct fby_log_counters last; /* of the generations before gen */
	u64 seal_gen; /* 0: no seal; else no entry at or above it was there at the claim */
	struct fby_log_counters seal; /* entries below seal_gen */
};

enum fby_log_refusal {
	FBY_LOG_OK = 0,
	FBY_LOG_OBSOLETE, /* the txg is synced already */
	FBY_LOG_SKIPS,	  /* the txg is more than three above the synced one */
	FBY_LOG_BACKWARDS, /* sync: a later txg is synced already */
	FBY_LOG_FULL,	   /* generation or id have no successor */
};

/* Numbers the next entry and fills node but for place.  Not changed if refused.
 * The caller orders appends of one log. */
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

enum fby_log_verdict {
	FBY_LOG_REPLAYED = 0, /* and the new position is stored */
	FBY_LOG_DAMAGED,      /* the entry cannot be read: as if it were missing */
	FBY_LOG_STOP,	      /* not replayed; the position is as before the call */
};

/* next: the position once the entry is replayed. */
typedef enum fby_log_verdict fby_log_replay_fn(void *arg, const struct fby_log_node *node,
					       const struct fby_log_position *next);

enum fby_log_end {
	FBY_LOG_COMPLETE = 0, /* all that was there at the claim is replayed */
	FBY_LOG_MISSING,      /* an entry before the witness is missing or damaged */
	FBY_LOG_STOPPED,      /* by the callback */
};

struct fby_log_result {
	enum fby_log_end end;
	u64 replayed;
	u64 obsolete; /* of synced txgs */
	u64 earlier;  /* replayed before, or appeared behind the position */
	u64 twins;    /* two entries of one generation and id: neither is taken */
	u64 damaged;
	u64 left;     /* not replayed, from the witness or the stop on */
	struct fby_log_node witness; /* gen 0: none; at seal_gen with id 0: the seal */
	struct fby_log_node first_damaged; /* gen 0: none */
};

/*
 * Replays node[0..n) from *at on, in order of generation and id.  *at follows each
 * entry replayed.  An entry is replayed only if all that it depends on was.
 * Sorts the nodes; no memory of its own, O(n log n).
 */
void fby_log_replay_order(struct fby_log_position *at, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
			  void *arg, struct fby_log_result *result);

#endif
