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
 * Threads: append (in both forms), read, info and entry_info may run in any number of
 * threads, beside each other and beside all other calls, but for add and remove: no call
 * that names a log may run while that log is added or removed, except an append, which is
 * then refused.  All other calls exclude each other on all logs, and the volume calls and
 * fby_destage_step, by the mutex that the host holds around those (forebay.h).
 *
 * Errors that any call may return, and that are not repeated at each: -FBY_E_NO_LOG (log is
 * no log's number), -FBY_E_VOLUME_DAMAGED (neither copy of its record can be read; append
 * and info say -FBY_E_NO_LOG), -FBY_E_RECOVERY_INCOMPLETE, and of those that change
 * something, all but claim and replay, -FBY_E_READ_ONLY.  A call that returns an error has
 * changed nothing, unless it says so.
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
/* -FBY_E_LOG_STATE while it is not in state none, -FBY_E_LOG_UNCLAIMED where its consumer
 * may know it in another; with discard it is removed all the same, and its entries are
 * gone.  WAIT_SLOT: an entry is being appended; it has ended (fby_log_destroy), call
 * again.  (Where its record is damaged, nobody knows that it was one: fby_volume_remove.) */
int fby_log_remove(struct fby_pool *p, u16 log, bool discard);
int fby_log_find(struct fby_pool *p, const char *name, u16 *log);

/* header, of the calls below: where the new one is put, or NULL if nobody wants it. */

/* From state none: else -FBY_E_LOG_STATE; of a log whose header is with its consumer, only
 * once it is claimed: -FBY_E_LOG_UNCLAIMED.  guid: random, from the host, not zero, and
 * neither of another log nor of this one's last period: -FBY_E_LOG_GUID.  synced: the
 * consumer's last synced txg (may be lower than in an earlier period; -FBY_E_NUMBERS: too
 * high); the first entries are of the three after it.  WAIT_SLOT: a slot has a chunk of the last period open, and is busy.
 * The record is written, of a consumer's log too: by its GUID a claim tells the newest
 * period from those before.
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
 * this log; nothing is held, call again, or not: where a generation was to begin, the next
 * entry begins it, whoever appends that.  So who calls again does so without
 * new_generation, or others that append all the time may overtake it for ever.
 * -FBY_E_LOG_OBSOLETE, _SKIPS: txg is not one of the three after the synced one.
 * -FBY_E_LOG_TOO_LARGE: see fby_log_info.most.  -FBY_E_LOG_UNCLAIMED: it is from before
 * the pool was opened, and was logging then, or may have been as its consumer knows it;
 * -FBY_E_LOG_STATE: it is not logging, or is being destroyed.
 */
int fby_log_append(struct fby_pool *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		   struct fby_log_name *name, u32 *wake);

/* The same in two steps.  begin: the body is stored, and the entry has its place in the
 * log.  commit: durable when it returns; it follows each begin that returned DONE.  Between
 * the two a slot is held, and appends that begin a generation, and destroy, return
 * WAIT_SLOT: so the thread may not wait there for another append. */
struct fby_append { /* the caller's memory; the engine's fields */
	u16 log;
	u32 slot;
	u32 chunk;
	struct fby_log_entry entry;
};
int fby_log_append_begin(struct fby_pool *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			 const struct fby_vec *vec, u32 nvec, u32 *wake);
void fby_log_append_commit(struct fby_pool *p, struct fby_append *a, struct fby_log_name *name, u32 *wake);

/*
 * Entries up to txg are obsolete: the consumer has made durable elsewhere what they say.
 * Chunks without others are given back: those that are closed; the ones that slots have
 * open only where chunks are few, now or by a later fby_destage_step.
 * -FBY_E_LOG_BACKWARDS: a later txg is synced; the same once more is no error.
 * -FBY_E_LOG_STATE, -FBY_E_LOG_UNCLAIMED as of append.  -FBY_E_NUMBERS: too high.
 *
 * Appends may go on meanwhile.  One of a txg up to this one is refused as obsolete, or,
 * where it began before, acknowledged and obsolete: a consumer has none of these under way
 * when it calls this, or does not count on them.  One of a txg that only this sync makes
 * room for is refused until the record says so.  A consumer's own header says so only when
 * it has stored that; so it makes sure, before it calls this, that after a crash it would
 * claim with this txg (synced of fby_log_claim).
 */
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
 * Claim: after an open, once for each log that is not in state none, before it is synced,
 * replayed, or created; a consumer's log in any state.  (Destroyed it may be, unread.)
 * Lists its entries in node[0..*n), for which the host gives room for *n: found of
 * fby_log_info is enough.  synced: what the consumer has synced, if it knows that by
 * other means than the log; else 0.
 * From logging the log goes to replaying; replaying already, it stays where it was.
 * *header: of a consumer's log in: what it has stored, zeroed if it has none yet; out: what
 * it has to store before it replays.  Chunks with nothing of the header's period are given
 * back.  *result: what a replay would come to.  In a pool that is open read-only nothing is
 * written, and the log may be looked at: claim, read, replay.
 * -FBY_E_LOG_STATE: it is claimed.  -FBY_E_NO_MEMORY: room for *n is not enough; call again.
 * -FBY_E_NUMBERS: synced is too high.  Of a consumer's log -FBY_E_LOG_HEADER: the header
 * is missing, or none that can be; -FBY_E_LOG_GUID: it is that of another log;
 * -FBY_E_LOG_PERIOD: it is older than the newest period (zeroed: than all), so that this
 * claim would give that up, or it is of one that was released; see docs/design/log.md.
 */
int fby_log_claim(struct fby_pool *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		  u64 *n, struct fby_log_result *result);

/*
 * Replays node[0..n) of the claim from where the log stands, in order; the callback does
 * what the entry says.  Embedded: its position is durable after each that is REPLAYED, so
 * that an entry whose effect was cut off before that comes again.  A consumer stores *next
 * together with the effect, as position of its header.  The log may be replayed as often
 * as the consumer likes: what was replayed does not come again, and entries that could not
 * be read may be there the next time.  Entries that are lost are said in *result, and are
 * no error.  -FBY_E_LOG_UNCLAIMED, -FBY_E_LOG_STATE: it is not claimed, not replaying.
 *
 * The callback runs under the host's mutex: it may call fby_log_read, and what needs no
 * mutex, but wait for nothing that does, as space in the pool.  For that it stops, and the
 * log is replayed on afterwards.
 */
int fby_log_replay(struct fby_pool *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay, void *arg,
		   struct fby_log_result *result);

/* Copies the body of a claimed entry to dst, which has room for its bytes rounded up to
 * 64: verified, header and body, as it lies there now.  -FBY_E_LOG_ENTRY: it is not what
 * it was at the claim, or cannot be read; dst may be written.  -FBY_E_NO_MEMORY: room is
 * not enough, as fby_log_info.most, rounded up, is for any. */
int fby_log_read(struct fby_pool *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length);

/* From any state to none: all entries are obsolete, or given up, claimed or not.  Embedded:
 * their chunks are free.  A consumer's: they are when it has stored the header and calls
 * fby_log_release.  WAIT_SLOT: an entry is being appended, or a slot that has a chunk open
 * is busy; appends are refused from now on, and the log may have ended: call again until
 * it is DONE. */
int fby_log_destroy(struct fby_pool *p, u16 log, struct fby_log_header *header, u32 *wake);
/* In state none: gives back what chunks it has.  A consumer has stored the header that says
 * so: any other of its periods is refused from now on.  Else -FBY_E_LOG_STATE; of a consumer's log
 * that is not claimed -FBY_E_LOG_UNCLAIMED.  WAIT_SLOT: a slot is busy, call again. */
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
	/* Of those that there were, how many at least it has not.  Of a log whose header is with
	 * its consumer before the claim: of earlier periods, too. */
	u64 missing;
	u64 appends, bytes; /* since open */
	u64 unsynced; /* entries of unsynced txgs, while entries are appended */
	u32 unsynced_txgs; /* that have some */
};
/* Of what changes meanwhile each figure is of some moment during the call.  -FBY_E_NO_LOG:
 * also where the record is damaged; damaged says so. */
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
/* The next one.  -FBY_E_NO_LOG: the chunk is not a log's.  -FBY_E_GEOMETRY: there is no
 * such chunk.  A chunk that is given back meanwhile may show entries of two uses, or end
 * early. */
int fby_log_entry_info(struct fby_pool *p, u32 chunk, struct fby_log_cursor *at, bool check_data,
		       struct fby_log_entry_info *out);

#endif
