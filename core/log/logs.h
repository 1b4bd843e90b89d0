/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * logs.h - logs in the pool.  Entries are appended to chunks of the log by the commit
 * slots; order.h says what entries are to each other.
 *
 * Writers of a generation share no memory that they store to: each slot counts the entries that
 * it has appended to a log (fby_log_part), and numbers them on its own.  The thread that begins a
 * generation waits until no entry is in flight, and adds these up.
 *
 *	an append			who begins a generation, or ends the log
 *	slot.log = the log (locked)	gate: NEXT set, or OPEN cleared (locked)
 *	loads gate: OPEN, not NEXT	loads each slot.log: of none
 *	... its entry, the fence	adds up, gate: NEXT cleared
 *	slot.log = none (release)
 *
 * So one of the two sees the other.  fby_log.lock, below slot in rank, serialises the threads
 * that begin a generation.
 */
#ifndef FBY_LOGS_H
#define FBY_LOGS_H

#include "format/kind.h"
#include "format/log_entry.h"
#include "log/log_order.h"
#include "space/space.h"

enum fby_log_gate {
	FBY_GATE_OPEN = 1u << 0, /* entries may be appended: logging, and created since the pool was opened */
	FBY_GATE_NEXT = 1u << 1, /* somebody waits to begin a generation: the next append begins one */
};

struct fby_log {
	/* read by each append, written by the holder of the gate; all of it is in two lines */
	u32 gate FBY_ALIGNED;
	bool claimed;
	u64 gen;
	u64 synced;
	u8 guid[16];
	struct fby_log_counters last; /* entries of the generations before gen */
	/* guarded by the lock */
	struct fby_log_counters live FBY_ALIGNED; /* all entries, as of the beginning of gen */
	struct fby_lock lock;
	/* as it is stored; of position only synced is maintained while the log is open */
	struct fby_log_header header;
};

/* A slot's part of the last generation that it has appended to. */
struct fby_log_part {
	u64 gen FBY_ALIGNED;
	u64 entries;
	struct fby_log_counters live;
};

/*
 * The state of a log's chunk in addition to fby_chunk.  For logs, fill of fby_chunk counts lines,
 * seq_last and seq_max are the highest txg, and last_block is the number of entries.  A seal
 * stores these.
 */
struct fby_log_chunk {
	u32 last_line; /* where the last entry begins; 0: there is none */
	u32 found; /* entries that recovery found */
	u32 missing; /* lower bound of the entries that it did not find */
};

struct fby_logs {
	struct fby_space *space;
	struct fby_log *log; /* by owner */
	struct fby_log_part *part; /* by slot and owner */
	struct fby_log_chunk *chunk;
};

static inline struct fby_log_part *fby_log_part(const struct fby_logs *p, u32 slot, u16 log)
{
	return &p->part[slot * p->space->store.sb.nvolumes + log];
}

/* --- append.c --------------------------------------------------------------------- */
int fby_logs_append(struct fby_logs *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		    struct fby_log_name *name, u32 *wake);
int fby_logs_append_begin(struct fby_logs *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			  const struct fby_vec *vec, u32 nvec, u32 *wake);
void fby_logs_append_commit(struct fby_logs *p, struct fby_append *a, struct fby_log_name *name, u32 *wake);

/* Slot held: the counts of a chunk without entries begin at zero. */
void fby_logs_chunk_begin(struct fby_logs *p, u32 c);

/* --- again.c ---------------------------------------------------------------------- */
/* After fby_streams_next said AGAIN: appends the log's entries that are not durable again, in
 * another chunk.  DONE, WAIT_SLOT, WAIT_TICKET, -FBY_E_MEDIUM. */
int fby_logs_again(struct fby_logs *p, u16 log, u32 *wake);

/* Is an entry of the log in flight? */
bool fby_logs_in_flight(const struct fby_logs *p, u16 log);

/* --- walk.c ------------------------------------------------------------------------ */
/* A walk over the entries of a chunk's epoch, in [line, end). */
struct fby_log_walk {
	u32 c, end;
	u32 line; /* where the walk continues */
	u32 last; /* where the last entry found begins; 0: none yet */
	bool gap; /* lines before the last entry found were skipped */
};

static inline struct fby_log_walk fby_log_walk(const struct fby_store *st, u32 c, u32 end)
{
	return (struct fby_log_walk){ .c = c, .end = end, .line = st->log_first };
}

/* Recovery: reads the chunk's entries.  seal: the newest of its epoch, if there is one. */
void fby_logs_scan(struct fby_logs *p, u32 c, const struct fby_seal_line *seal);
/* After recovery: are the chunk's entries of a period that has ended?  All entries of a chunk are
 * of one period, since the end of a period closes all chunks of its log.  False if no entry can
 * be read. */
bool fby_logs_earlier(const struct fby_logs *p, u32 c);
/* After recovery: is there anything in the chunk that a claim may need? */
bool fby_logs_held(const struct fby_logs *p, u32 c);
bool fby_log_next(const struct fby_space *p, struct fby_log_walk *w, struct fby_log_entry *e);
/* fby_check: does the state of the chunk match its entries? */
bool fby_logs_check_chunk(const struct fby_logs *p, u32 c, struct fby_violation *v);

/* --- period.c: what happens to a log as a whole -------------------------------------- */
/* 0 for a log whose record can be read, in an open pool; otherwise -FBY_E_x. */
int fby_logs_check(const struct fby_logs *p, u16 log);
/* Why a log that is not open takes no entries.  Before the claim only the consumer knows in which
 * state its log was left. */
int fby_logs_shut(const struct fby_logs *p, u16 log);
void fby_logs_open(struct fby_logs *p, u16 log); /* Reads the header from its record. */
/* the new header, for concurrent readers */
void fby_logs_header(struct fby_log *l, const struct fby_log_header *h);
void fby_logs_write(struct fby_logs *p, u16 log); /* writes the header to its record if it is embedded */
/* A consumer's call shows that it has the header of the newest period: notes that in the record. */
void fby_logs_stored(struct fby_logs *p, u16 log);
bool fby_logs_guid_none(const u8 guid[16]);
bool fby_logs_guid_taken(const struct fby_logs *p, u16 log, const u8 guid[16]);
/* While the log is open: its entries above the synced txg, and how many txgs have some. */
void fby_logs_unsynced(struct fby_logs *p, u16 log, u64 *entries, u32 *txgs);
/* Frees the closed chunks that have nothing above txg. */
void fby_logs_free(struct fby_logs *p, u16 log, u64 txg, u32 *wake);
/* Periodically frees chunks of logs whose consumers have fallen silent, if chunks are scarce. */
void fby_logs_tick(struct fby_logs *p, u32 *wake);
int fby_logs_create(struct fby_logs *p, u16 log, const u8 guid[16], u64 synced, struct fby_log_header *header,
		    u32 *wake);
int fby_logs_sync(struct fby_logs *p, u16 log, u64 txg, struct fby_log_header *header, u32 *wake);
int fby_logs_destroy(struct fby_logs *p, u16 log, struct fby_log_header *header, u32 *wake);
int fby_logs_release(struct fby_logs *p, u16 log, u32 *wake);

/* --- claim.c ------------------------------------------------------------------------- */
int fby_logs_claim(struct fby_logs *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		   u64 *n, struct fby_log_result *result);
int fby_logs_replay(struct fby_logs *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
		    void *arg, struct fby_log_result *result);
int fby_logs_read(struct fby_logs *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length);

void fby_log_node_of(const struct fby_store *st, const struct fby_log_entry *e, struct fby_log_node *node);

/* An entry's place, and back. */
static inline u64 fby_log_place(const struct fby_store *st, u32 c, u32 line)
{
	return (u64)c * fby_log_lines(st) + line;
}

#endif
