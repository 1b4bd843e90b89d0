/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * log_format.h - the format of a log: entries, in chunks of kind log, and a header, in the log's
 * record or with its consumer.
 *
 * A chunk of a log has the open and seal lines of any chunk.  Entries follow each other from line
 * 8 on: a header of two lines, then the body, which starts at a line and is padded with zeroes to
 * the end of a line.  Only the previous entry tells where an entry begins, so each header names
 * its own place: after an unreadable entry, the reader finds the next by checking each line.
 */
#ifndef FBY_LOG_FORMAT_H
#define FBY_LOG_FORMAT_H

#include "format/format.h"

#define FBY_LOG_TXGS 3u /* unsynced txgs at any time: open, quiescing, syncing */
#define FBY_ENTRY_MAGIC 0x4e454f46u /* "FOEN" */
#define FBY_ENTRY_LINES 2u
#define FBY_ENTRY_BYTES (FBY_ENTRY_LINES * FBY_LINE)

/* The numbers of entries of txg, txg - 1 and txg - 2.  Older ones are synced, so three numbers
 * are enough for a log's whole life.  (ZIL-PMEM keeps a table of four by txg modulo 4; it holds
 * the same information above the synced txg.) */
struct fby_log_counters {
	u64 txg; /* 0: none at all */
	u64 n[FBY_LOG_TXGS];
};

/*
 * A log's position: all that append or replay has to remember.  Replay returns a new one with
 * each entry.  Stored together with the entry's effect, it is the checkpoint from which a later
 * replay continues.  Zeroed: an empty log.
 */
struct fby_log_position {
	u64 synced;   /* entries of this txg and older are obsolete */
	u64 gen, id;  /* last entry appended or replayed; 0, 0: none */
	struct fby_log_counters live; /* entries so far */
	struct fby_log_counters last; /* of the generations before gen */
	u64 seal_gen; /* 0: no seal; else the claim found no entry at or above it */
	struct fby_log_counters seal; /* entries below seal_gen */
};

enum fby_log_flags {
	FBY_LOG_CONSUMER = 1u << 0, /* its header is with the consumer */
	/* only in the record: the consumer is known to have stored the header of this period */
	FBY_LOG_STORED = 1u << 1,
};

enum fby_log_state {
	FBY_LOG_NONE = 0,  /* no entries, and none can be appended */
	FBY_LOG_LOGGING,   /* entries are appended; only synced of the position is maintained */
	FBY_LOG_REPLAYING, /* claimed: entries above the position are held for replay */
};

/* Kept in the log's record, or with its consumer, who stores it together with the data that the
 * log protects. */
struct fby_log_header {
	/* new for each logging period; identifies its entries.  In state none: that of the last
	 * period; zero: there was none */
	u8 guid[16];
	u32 state;   /* enum fby_log_state */
	u32 reserved;
	struct fby_log_position at;
};

/* The record of a log in the pool's table: like a volume's, except for the fields of a log. */
struct fby_log_record {
	u64 counter;
	u32 index;
	u32 kind; /* FBY_OWNER_LOG */
	u8 guid[16]; /* as in the header; for a consumer's log, that of the newest period */
	/* as in the header; for a consumer's log: logging from the beginning of the period until
	 * the release */
	u32 state;
	u32 home; /* enum fby_log_flags */
	u64 reserved0;
	char name[FBY_NAME_MAX + 1];
	struct fby_log_position at;
	u32 reserved1;
	u32 flags; /* enum fby_volume_flags */
	u32 reserved2;
	u32 crc;
};

struct fby_log_entry {
	u32 magic;
	u32 chunk;  /* own place */
	u32 line;   /* own place: first line of the header */
	u32 length; /* of the body, bytes */
	u64 epoch;  /* of the chunk */
	u64 txg;
	u64 gen;
	u64 id;
	struct fby_log_counters before;
	u8 guid[16]; /* of the log's period */
	u32 previous; /* line of the previous entry in this chunk; 0 for the first */
	u16 log;      /* owner of the chunk */
	u8 reserved[18];
	u32 body_crc; /* of the body and of the zeroes after it */
	u32 crc;      /* of all before it, from the CRC of the pool's UUID and salt */
};

FBY_STATIC_ASSERT(sizeof(struct fby_log_header) == 152, "log header");
FBY_STATIC_ASSERT(sizeof(struct fby_log_record) == sizeof(struct fby_volume_record), "log record");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_log_record, name) ==
			  __builtin_offsetof(struct fby_volume_record, name),
		  "one place for a name");
FBY_STATIC_ASSERT(sizeof(struct fby_log_entry) == FBY_ENTRY_BYTES, "log entry");
FBY_STATIC_ASSERT(__builtin_offsetof(struct fby_log_entry, crc) == FBY_ENTRY_BYTES - 4, "log entry crc");

#endif
