/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log.h - the hosts' interface to named logs.  A log holds what its consumer has promised but not
 * yet stored in its final place.  Each append is durable when it returns.  Entries become
 * obsolete together, by transaction group (txg), when the consumer has synced the group.  After a
 * crash the engine hands back the remaining entries in order, once.
 *
 * A log is in one of three states: none, logging, replaying (enum fby_log_state).
 *
 *	none --create--> logging --crash, then claim--> replaying --replay, done--> none
 *
 * The log's header holds the state and the position of replay.  The header has one of two homes.
 * Embedded: the engine keeps it in the log's record, and each call below that changes it has made
 * the change durable when it returns.  With the consumer (FBY_LOG_CONSUMER): the call returns the
 * new header, and the consumer stores it; during replay, together with the effect of the entry.
 *
 * Threads: append (in both forms), read, info and entry_info may run in any number of threads,
 * concurrently with each other and with all other calls except add and remove.  No call that
 * names a log may run while that log is added or removed, except an append, which is then
 * refused.  All other calls exclude each other on all logs, and the volume calls and
 * fby_destage_step, by the mutex that the host holds around those (forebay.h).
 *
 * Any call may return these errors, which are not repeated at each: -FBY_E_NO_LOG (log is no
 * log's number), -FBY_E_VOLUME_DAMAGED (neither copy of its record can be read; append and info
 * say -FBY_E_NO_LOG), -FBY_E_RECOVERY_INCOMPLETE, and, from calls that change something, except
 * claim and replay, -FBY_E_READ_ONLY.  A call that returns an error has changed nothing, unless
 * its comment says otherwise.
 *
 * After ZIL-PMEM (Schwarz, KIT 2021), chapter 5; docs/design/log.md says what differs.
 */
#ifndef FOREBAY_LOG_H
#define FOREBAY_LOG_H

#include "api/forebay.h"
#include "format/log_format.h"

/* A new log, in state none and claimed.  Embedded unless flags say else: enum
 * fby_log_flags, others are -FBY_E_GEOMETRY.  -FBY_E_NAME, -FBY_E_VOLUME_EXISTS (volumes
 * and logs have one name space), -FBY_E_VOLUME_TABLE_FULL.  -FBY_E_VOLUME_DAMAGED: the
 * record of one cannot be read, which may be a log of this name, with entries. */
int fby_log_add(struct fby_pool *p, const char *name, u32 flags, u16 *log);
/* -FBY_E_LOG_STATE if the log is not in state none, -FBY_E_LOG_UNCLAIMED if its consumer may know
 * it in another; with discard the log is removed all the same, and its entries are gone.
 * WAIT_SLOT: an entry is being appended; the log has ended (fby_log_destroy), call again.  (A
 * damaged record may be anything's: use fby_volume_remove.) */
int fby_log_remove(struct fby_pool *p, u16 log, bool discard);
int fby_log_find(struct fby_pool *p, const char *name, u16 *log);

/* header, in the calls below: the new header is stored there; NULL if nobody needs it. */

/* Begins a period; the log must be in state none: otherwise -FBY_E_LOG_STATE.  A log whose header
 * is with its consumer must be claimed first: -FBY_E_LOG_UNCLAIMED.  guid: random, from the host,
 * not zero, and neither another log's nor that of this log's last period: -FBY_E_LOG_GUID.
 * synced: the consumer's last synced txg (may be lower than in an earlier period; -FBY_E_NUMBERS:
 * too high); the first entries are of the three txgs after it.  WAIT_SLOT: a busy slot has a
 * chunk of the last period open.  The record is written even for a consumer's log: a claim uses
 * its GUID to distinguish the newest period from earlier ones.  A consumer with its own header
 * appends only after it has stored that header. */
int fby_log_create(struct fby_pool *p, u16 log, const u8 guid[16], u64 synced, struct fby_log_header *header,
		   u32 *wake);

struct fby_log_name {
	u64 gen, id;
	u64 ticket; /* 0: the entry is durable; else see groups.h */
};

/*
 * Appends an entry of txg.  The entry depends on all entries of earlier generations and on none
 * of its own; new_generation: it begins a new one.  The entry is durable when the call returns
 * DONE; in a grouped pool, when its ticket is.  There, WAIT_TICKET: groups of the log have to be
 * written first; -FBY_E_MEDIUM.  WAIT_SLOT: slots or earlier generations are busy; WAIT_SPACE: the pool is full for this
 * log.  Nothing is held then, and the caller may call again or not.  If a generation was to
 * begin, the next entry begins it, whoever appends it.  So a caller that tries again does so
 * without new_generation; otherwise others that append all the time may overtake it for ever.
 * -FBY_E_LOG_OBSOLETE, _SKIPS: txg is not one of the three after the synced one.
 * -FBY_E_LOG_TOO_LARGE: see fby_log_info.most.  -FBY_E_LOG_UNCLAIMED: the log is from before the
 * pool was opened, and was logging then, or may have been (only its consumer knows);
 * -FBY_E_LOG_STATE: it is not logging, or is being destroyed.
 */
int fby_log_append(struct fby_pool *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		   struct fby_log_name *name, u32 *wake);

/* Does the same in two steps.  begin: the body is stored, and the entry has its place in the log.
 * commit: the entry is durable when it returns, or has a ticket; it must follow each begin that returned DONE.
 * Between the two a slot is held, and appends that begin a generation, and destroy, return
 * WAIT_SLOT.  So the thread may not wait for another append in between. */
struct fby_append { /* the caller provides the memory, the engine owns the fields */
	u16 log;
	u32 slot;
	u32 chunk;
	struct fby_log_entry entry;
};
int fby_log_append_begin(struct fby_pool *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			 const struct fby_vec *vec, u32 nvec, u32 *wake);
void fby_log_append_commit(struct fby_pool *p, struct fby_append *a, struct fby_log_name *name, u32 *wake);

/*
 * Makes entries up to txg obsolete: the consumer has made their content durable elsewhere.
 * Chunks without other entries are freed if they are closed.  Those that slots have open are
 * freed only if chunks are scarce, now or by a later fby_destage_step.  -FBY_E_LOG_BACKWARDS: a
 * later txg is synced; the same txg again is no error.  -FBY_E_LOG_STATE, -FBY_E_LOG_UNCLAIMED:
 * as for append.  -FBY_E_NUMBERS: too high.
 *
 * Appends may run concurrently.  An append of a txg up to this one is refused as obsolete, or, if
 * it began before, acknowledged and obsolete.  A consumer has none of these under way when it
 * calls this, or does not rely on them.  An append of a txg that only this sync makes room for is
 * refused until the record says so.  A consumer's own header says so only when the consumer has
 * stored it.  So before the call the consumer makes sure that after a crash it would claim with
 * this txg (synced of fby_log_claim).
 */
int fby_log_sync(struct fby_pool *p, u16 log, u64 txg, struct fby_log_header *header, u32 *wake);

/* The part of an entry's header that determines its place in the order. */
struct fby_log_node {
	u64 txg; /* from 1 */
	u64 gen; /* generation, from 1 */
	u64 id;	 /* within the generation, from 1 */
	struct fby_log_counters before; /* entries of earlier generations */
	u64 place; /* private to the caller: where the entry lies */
};

enum fby_log_verdict {
	FBY_LOG_REPLAYED = 0, /* the effect is durable; for a consumer's log, together with the new position */
	FBY_LOG_DAMAGED,      /* the entry cannot be read: it counts as missing */
	FBY_LOG_STOP,	      /* not replayed; the position is as before the call */
	FBY_LOG_APPLIED,      /* replayed, but not durable yet: after a cut it is replayed again */
};

/* next: the position once the entry is replayed. */
typedef enum fby_log_verdict fby_log_replay_fn(void *arg, const struct fby_log_node *node,
					       const struct fby_log_position *next);

enum fby_log_end {
	FBY_LOG_COMPLETE = 0, /* everything that existed at the claim is replayed */
	FBY_LOG_MISSING,      /* an entry before the witness is missing or damaged */
	FBY_LOG_STOPPED,      /* the callback returned FBY_LOG_STOP */
};

struct fby_log_result {
	enum fby_log_end end;
	u64 replayed;
	u64 obsolete; /* of synced txgs */
	u64 earlier;  /* replayed before, or appeared before the position */
	u64 twins;    /* two entries of one generation and id: neither is used */
	u64 damaged;
	u64 left;     /* not replayed: entries from the witness or the stop on */
	struct fby_log_node witness; /* gen 0: none; at seal_gen with id 0: the seal */
	struct fby_log_node first_damaged; /* gen 0: none */
};

/*
 * Claims a log: after an open, once for each log that is not in state none, before the log is
 * synced, replayed, or created; a consumer's log in any state.  (A log may be destroyed without a
 * claim.)  Lists its entries in node[0..*n), which the host allocates: found of fby_log_info
 * entries are enough.  synced: the txg that the consumer has synced, if it knows that by other
 * means than the log; else 0.  A log in state logging becomes replaying; one that is already
 * replaying keeps its position.  *header, for a consumer's log: in: the header that it has
 * stored, zeroed if there is none yet; out: the header that it has to store before it replays.
 * Chunks with nothing of the header's period are freed.  *result: what a replay would find.  In a
 * pool that is open read-only nothing is written, and the log can be examined: claim, read,
 * replay.  -FBY_E_LOG_STATE: it is claimed.  -FBY_E_NO_MEMORY: room for *n is not enough; call
 * again.  -FBY_E_NUMBERS: synced is too high.  For a consumer's log, -FBY_E_LOG_HEADER: the
 * header is missing or impossible; -FBY_E_LOG_GUID: it is another log's; -FBY_E_LOG_PERIOD: it is
 * older than the newest period (zeroed: older than all), so that this claim would discard that
 * period, or it is of a released one; see docs/design/log.md.
 */
int fby_log_claim(struct fby_pool *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		  u64 *n, struct fby_log_result *result);

/*
 * Replays node[0..n) of the claim from the log's position, in order; the callback applies the
 * entry.  Embedded: the position is durable after each entry that is REPLAYED, so an entry whose
 * effect was interrupted before that is replayed again.  A consumer stores *next together with
 * the effect, as the position of its header.  The log may be replayed as often as the consumer
 * likes: an entry that was replayed is not replayed again, and entries that could not be read may
 * be readable the next time.  *result reports lost entries, which are no error.
 * -FBY_E_LOG_UNCLAIMED, -FBY_E_LOG_STATE: it is not claimed, not replaying.
 *
 * The callback runs under the host's mutex.  It may call fby_log_read and calls that need no
 * mutex, but it must not wait for anything that needs the mutex, such as space in the pool.  For
 * that it stops, and the host continues the replay afterwards.
 */
int fby_log_replay(struct fby_pool *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay, void *arg,
		   struct fby_log_result *result);

/* Copies the body of a claimed entry to dst, which has room for its bytes rounded up to 64;
 * verifies header and body as they are on the media now.  -FBY_E_LOG_ENTRY: the entry has changed
 * since the claim, or cannot be read; dst may be written.  -FBY_E_NO_MEMORY: not enough room;
 * fby_log_info.most, rounded up, is enough for any entry. */
int fby_log_read(struct fby_pool *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length);

/* Changes the log from any state to none: all entries are obsolete or discarded, claimed or not.
 * Embedded: their chunks are free.  A consumer's chunks become free when it has stored the header
 * and calls fby_log_release.  WAIT_SLOT: an entry is being appended, or a slot that has a chunk
 * open is busy; appends are refused from now on, and the log may have ended: call again until it
 * is DONE. */
int fby_log_destroy(struct fby_pool *p, u16 log, struct fby_log_header *header, u32 *wake);
/* Frees the log's chunks; the log must be in state none.  A consumer has stored the header that
 * says so: any header of its other periods is refused from now on.  Otherwise -FBY_E_LOG_STATE,
 * or -FBY_E_LOG_UNCLAIMED for a consumer's log that is not claimed.  WAIT_SLOT: a slot is busy,
 * call again. */
int fby_log_release(struct fby_pool *p, u16 log, u32 *wake);

struct fby_log_info {
	char name[FBY_NAME_MAX + 1];
	bool used;    /* the record is a log's */
	bool damaged; /* both copies of the record are */
	bool consumer;
	bool claimed; /* since the open, or by its creation */
	bool incomplete; /* entries of chunks of this log cannot be read */
	struct fby_log_header header; /* as the engine knows it */
	u32 chunks;
	u32 most; /* bytes of the largest entry */
	u64 found; /* entries that recovery found in its chunks, including obsolete ones */
	/* Lower bound of the entries that existed and that recovery did not find.  Before the
	 * claim of a log whose header is with its consumer, earlier periods are included. */
	u64 missing;
	u64 appends, bytes; /* since open */
	u64 unsynced; /* entries of unsynced txgs, while entries are appended */
	u32 unsynced_txgs; /* txgs that have unsynced entries */
};
/* Each figure that changes during the call is a value from some moment of the call.
 * -FBY_E_NO_LOG is also returned if the record is damaged; the field damaged says so. */
int fby_log_info(struct fby_pool *p, u16 log, struct fby_log_info *out);

/* Examines a chunk of a log, entry by entry. */
struct fby_log_cursor { /* the caller zeroes it to begin */
	u32 line; /* where the search continues */
	u32 last; /* where the last entry found begins */
};
struct fby_log_entry_info {
	bool found; /* false: there are no more */
	bool gap;   /* the lines before it hold no readable entry: at least one is missing */
	bool data_ok; /* the body is sound, if it was checked */
	struct fby_log_node node;
	struct fby_log_entry entry;
};
/* Finds the next entry.  -FBY_E_NO_LOG: the chunk is not a log's.  -FBY_E_GEOMETRY: there is no
 * such chunk.  If the chunk is freed meanwhile, the walk may show entries of two uses, or end
 * early. */
int fby_log_entry_info(struct fby_pool *p, u32 chunk, struct fby_log_cursor *at, bool check_data,
		       struct fby_log_entry_info *out);

#endif
