/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log.h - named logs, to hosts.  A log holds what its consumer has promised and not
 * yet put where it belongs: each append is durable when it returns; entries become
 * obsolete together, by transaction group (txg), when the consumer has synced it; after
 * a crash what is left is handed back in order, once.
 *
 * A log is in one of three states: none, logging, replaying (enum fby_log_state).
 *
 *	none --create--> logging --crash, then claim--> replaying --replay, done--> none
 *
 * Its header says so, and where replay stands.  It has one of two homes.  Embedded: the
 * engine keeps it in the log's record, and each call below that changes it has made that
 * durable when it returns.  With the consumer (FBY_LOG_CONSUMER): the call hands out the
 * new header, and the consumer stores it, together with the effect of an entry where the
 * call is replay's.
 *
 * After ZIL-PMEM (Schwarz, KIT 2021), chapter 5; docs/log.md says what differs.
 */
#ifndef FOREBAY_LOG_H
#define FOREBAY_LOG_H

#include "api/forebay.h"
#include "format/log_format.h"

/* A new log, in state none.  Embedded unless flags say else. */
int fby_log_add(struct fby_pool *p, const char *name, u32 flags, u16 *log);
/* Refused while it is not in state none, unless discard: its entries are gone then.  (Where
 * its record is damaged, nobody knows that it was one: fby_volume_remove.) */
int fby_log_remove(struct fby_pool *p, u16 log, bool discard);
int fby_log_find(struct fby_pool *p, const char *name, u16 *log);

/*
 * Calls on one log but for append, read and info exclude each other, and those that add,
 * remove or attach a volume, and fby_destage_step: by the mutex that the host holds
 * around these.  header: where the new one is put, or NULL if it is embedded.
 */

/* From state none.  guid: random, from the host, and of no other log: -FBY_E_LOG_GUID.
 * synced: the consumer's last synced txg; the first entries are of the three after it.
 * A consumer with its own header appends only when it has stored it. */
int fby_log_create(struct fby_pool *p, u16 log, const u8 guid[16], u64 synced, struct fby_log_header *header,
		   u32 *wake);

struct fby_log_name {
	u64 gen, id;
};

/*
 * Appends an entry of txg, which depends on all those of earlier generations and on
 * none of its own; new_generation: it begins one.  Durable when it returns DONE.
 * WAIT_SLOT: slots or earlier generations are busy; WAIT_SPACE: the pool is full for
 * this log; nothing is held, call again.  Any number of threads.
 * -FBY_E_LOG_OBSOLETE, _SKIPS: txg is not one of the three after the synced one.
 * -FBY_E_LOG_TOO_LARGE: see fby_log_info.most.  -FBY_E_LOG_STATE, _UNCLAIMED.
 */
int fby_log_append(struct fby_pool *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		   struct fby_log_name *name, u32 *wake);

/* The same in two steps.  begin: the body is stored, and the entry has its place in the
 * log.  commit: durable when it returns.  Nothing may run between the two that waits for
 * another append. */
struct fby_append { /* the caller's memory; the engine's fields */
	u16 log;
	u32 slot;
	u32 chunk;
	struct fby_log_entry entry;
};
int fby_log_append_begin(struct fby_pool *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			 const struct fby_vec *vec, u32 nvec, u32 *wake);
void fby_log_append_commit(struct fby_pool *p, struct fby_append *a, struct fby_log_name *name, u32 *wake);

/* Entries up to txg are obsolete: the consumer has made durable elsewhere what they say.
 * Those that have no other with them give their chunks back.  Not backwards. */
int fby_log_sync(struct fby_pool *p, u16 log, u64 txg, struct fby_log_header *header, u32 *wake);

/* What of an entry's header says where it belongs. */
struct fby_log_node {
	u64 txg; /* from 1 */
	u64 gen; /* generation, from 1 */
	u64 id;	 /* within the generation, from 1 */
	struct fby_log_counters before; /* entries of earlier generations */
	u64 place; /* the caller's: where the entry lies */
};

enum fby_log_verdict {
	FBY_LOG_REPLAYED = 0, /* its effect is durable: and a consumer's the new position with it */
	FBY_LOG_DAMAGED,      /* the entry cannot be read: as if it were missing */
	FBY_LOG_STOP,	      /* not replayed; the position is as before the call */
	FBY_LOG_APPLIED,      /* replayed, but not durable yet: cut off now, it is to come again */
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
 * Claim: after an open, for each log that is not in state none, before anything else.
 * Lists its entries in node[0..*n), for which the host gives room for *n: fby_log_info
 * says how many there are.  synced: of a consumer's log, what it has synced; else 0.
 * From logging the log goes to replaying; replaying already, it stays where it was.
 * *header: of a consumer's log in: what it has stored; out: what it has to store.
 * *result: what a replay would come to.  In a pool that is open read-only nothing is
 * written, and the log may be looked at: claim, read, replay.
 */
int fby_log_claim(struct fby_pool *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		  u64 *n, struct fby_log_result *result);

/*
 * Replays node[0..n) of the claim from where the log stands, in order; the callback does
 * what the entry says.  Embedded: its position is durable after each, so that an entry
 * whose effect was cut off before that comes again.  The log may be replayed as often as
 * its end is not COMPLETE: entries that could not be read may be there the next time.
 */
int fby_log_replay(struct fby_pool *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay, void *arg,
		   struct fby_log_result *result);

/* Copies the body of a claimed entry to dst, which has room for its bytes rounded up to
 * 64: verified, header and body, as it lies there now.  -FBY_E_LOG_ENTRY: it is not what
 * it was at the claim, or cannot be read. */
int fby_log_read(struct fby_pool *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length);

/* To state none: all entries are obsolete, or given up.  Embedded: their chunks are
 * free.  A consumer's: they are when it has stored the header and calls
 * fby_log_release. */
int fby_log_destroy(struct fby_pool *p, u16 log, struct fby_log_header *header, u32 *wake);
int fby_log_release(struct fby_pool *p, u16 log, u32 *wake);

struct fby_log_info {
	char name[FBY_NAME_MAX + 1];
	bool used;    /* the record is of a log */
	bool damaged; /* both copies of the record are */
	bool consumer;
	bool claimed; /* since open; or created */
	bool incomplete; /* entries of chunks of this log cannot be read */
	struct fby_log_header header; /* as the engine has it */
	u32 chunks;
	u32 most; /* bytes of the largest entry */
	u64 found; /* entries in its chunks that the recovery has found, obsolete ones too */
	u64 missing; /* of those that there were, how many at least it has not */
	u64 appends, bytes; /* since open */
	u64 unsynced; /* entries of unsynced txgs, while entries are appended */
	u32 unsynced_txgs; /* that have some */
};
int fby_log_info(struct fby_pool *p, u16 log, struct fby_log_info *out);

/* Looking at a chunk of a log, entry by entry. */
struct fby_log_cursor { /* the caller's, zeroed to begin with */
	u32 line; /* where it goes on */
	u32 last; /* where the last entry found begins */
};
struct fby_log_entry_info {
	bool found; /* false: there are no more */
	bool gap;   /* lines before it are no entry: one was there, or some */
	bool data_ok; /* its body, if that was checked */
	struct fby_log_node node;
	struct fby_log_entry entry;
};
/* The next one.  -FBY_E_NO_LOG: the chunk is not a log's. */
int fby_log_entry_info(struct fby_pool *p, u32 chunk, struct fby_log_cursor *at, bool check_data,
		       struct fby_log_entry_info *out);

#endif
