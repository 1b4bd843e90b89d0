/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * forebay.h - the contract between the engine and its hosts.
 *
 * The engine stores to persistent memory and asks its host for everything else.  No call blocks,
 * allocates, or does I/O on an origin.  A call returns a decision (enum fby_decision) or
 * -FBY_E_x; the host acts on it in one switch:
 *
 *	DONE		it is done; a write is durable
 *	WAIT_BLOCK	another request holds the block: try again soon (about 1 us)
 *	WAIT_SLOT	all commit slots are busy: likewise
 *	WAIT_SPACE	the pool is full for this volume: try again when destage has freed
 *			space; others, which have less than they are entitled to, may go on
 *	ORIGIN		the host does the part named in the result on the origin
 *	AGAIN		progress was made or a lock was busy: call again
 *	CACHED		of fby_bypass_begin: write that part through the cache
 *	WAIT_FLUSH	a flush of the origin is in flight: try again when it ended
 *	WAIT_TICKET	of a grouped pool (groups.h): requests to its device have to end first
 *
 * A WAIT decision holds nothing; the caller starts over.  A host that wants to sleep calls
 * fby_wait_prepare(), tries once more, sleeps, and is woken by whoever gets the matching bit in a
 * wake mask (enum fby_wake).  WAIT_FLUSH and WAIT_TICKET need no announcement: whoever ends a flush
 * or a request to the device has the bit.
 *
 * Threads: fby_write*, fby_read_block, fby_range, fby_bypass_*, fby_flush_*, the info calls and
 * fby_destage_complete may run in any number of threads; fby_bypass_end, fby_flush_end and
 * fby_destage_complete in interrupts, too.  The host orders format, open, recovery and close;
 * fby_recover_chunks may run in parallel on disjoint ranges.  Volume add, remove, attach and
 * detach and fby_destage_step exclude each other (the host holds one mutex per pool around them);
 * they may run concurrently with I/O, except that remove and detach exclude I/O on the same
 * volume.
 *
 * Units: sector is 512 bytes, block and page 4 KiB, time nanoseconds of any monotonic clock of
 * the host's.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include "medium/port.h"
#include "api/errors.h"
#include "format/format.h"

struct fby_pool;

enum fby_decision {
	FBY_DONE = 0,
	FBY_WAIT_BLOCK,
	FBY_WAIT_SLOT,
	FBY_WAIT_SPACE,
	FBY_ORIGIN,
	FBY_AGAIN,
	FBY_CACHED,
	FBY_WAIT_FLUSH,
	FBY_WAIT_TICKET,
};

/* Bits of a wake mask: whom the host should wake. */
enum fby_wake {
	FBY_WAKE_BLOCK = 1u << FBY_WAIT_BLOCK,
	FBY_WAKE_SLOT = 1u << FBY_WAIT_SLOT,
	FBY_WAKE_SPACE = 1u << FBY_WAIT_SPACE,
	FBY_WAKE_DESTAGE = 1u << 7, /* call fby_destage_step */
	FBY_WAKE_FLUSH = 1u << 8,   /* callers that fby_flush_begin told to wait */
	FBY_WAKE_TICKET = 1u << 9,  /* of a grouped pool: tickets may have changed; see groups.h */
};

int fby_error_errno(int error); /* error: a (negative) return value; a positive errno number */
const char *fby_error_message(int error);
const char *fby_error_name(int error);

/* --- media: formatting and what is on it (pool.c) ----------------------- */

struct fby_format {
	u8 uuid[16];	/* of the new pool; random, from the host */
	u32 chunk_size; /* bytes; a power of two, 64 KiB to 2 MiB; 0: 2 MiB */
	u32 nvolumes;	/* 1 to 64; 0: 64 */
	u64 static_bytes; /* bytes at the end of the media for shares of static volumes; multiple of 64 KiB */
	u64 map_bytes; /* bytes after those, for shares of maps; multiple of 2 MiB */
	/* of a grouped pool (groups.h): bytes of a block, a power of two from 4096 to 65536, at
	 * least the device's; the pool holds logs, and volumes if it is 4096; 0: it is in memory */
	u32 unit;
	u32 salt; /* random, from the host; 0: none, and who knows the UUID can forge lines */
};

/* Formats [0, size) of the media.  The host decides whether that is allowed, see fby_probe.
 * Superblocks are written last: an interrupted format leaves no pool.  On a device: -FBY_E_UNIT,
 * -FBY_E_MEDIUM. */
int fby_format(struct fby_media *m, const struct fby_format *f);

enum fby_probe_state {
	FBY_PROBE_BLANK,      /* nothing of Forebay's found */
	FBY_PROBE_POOL,	      /* at least one valid superblock */
	FBY_PROBE_DAMAGED,    /* no valid superblock, but traces of a pool */
};

struct fby_probe {
	enum fby_probe_state state;
	int error;	    /* why it cannot be opened, -FBY_E_x, or 0 */
	bool primary_valid; /* superblock at 0 */
	bool copy_valid;    /* the superblock's copy */
	struct fby_superblock sb; /* the one that counts, if state is POOL */
};

/* Only reads. */
void fby_probe(struct fby_media *m, struct fby_probe *out);

/* --- pool (pool.c, recovery.c) ------------------------------------------ */

enum fby_verify {
	FBY_VERIFY_ALWAYS = 0, /* every read from the pool */
	FBY_VERIFY_FIRST,      /* the first read of a page since open */
	FBY_VERIFY_NEVER,
};

/* How an attach treats lost entries. */
enum fby_holes {
	FBY_HOLES_FAIL = 0, /* refuse */
	FBY_HOLES_ISOLATE,  /* continue: blocks that can be named answer EIO; refuse if some cannot be named */
	FBY_HOLES_ACCEPT,   /* continue: those that cannot be named may show older data */
	FBY_HOLES_RESCUE,   /* continue, and keep them as lost; what cannot be named may get older data on the origin */
};

#define FBY_SLOTS_MAX 64u
#define FBY_HIGH_WATERMARK 60u
#define FBY_WATERMARK_GAP 10u /* the low watermark is this much below the high one */

struct fby_options {
	u32 nslots;	  /* commit slots, 1 to FBY_SLOTS_MAX; 0: 4 */
	bool read_only;	  /* nothing is written to the media */
	/* new writes carry no data checksum and need two fences; does not apply to static volumes */
	bool no_checksums;
	bool statics; /* the host knows static volumes; else a pool with room for them is refused */
	bool maps; /* likewise maps */
	enum fby_verify verify;
	u32 high_watermark; /* per cent of chunks in use where destage starts; 0: FBY_HIGH_WATERMARK */
	u32 low_watermark;  /* ... and where it stops; 0: FBY_WATERMARK_GAP less */
	u64 max_age_ns;	    /* destage older entries; 0: no limit */
	u64 idle_ns;	    /* destage a volume that was not written for this long; 0: never */
};

/* Bytes of zeroed, 64-byte aligned memory that fby_pool_open needs. */
u64 fby_pool_bytes(const struct fby_superblock *sb, u32 nslots);

/* Reads superblock and volume table, lays the pool out in mem, which stays the
 * host's and must outlive it.  I/O is possible after fby_recover_finish. */
int fby_pool_open(struct fby_pool **out, void *mem, u64 bytes, struct fby_media *m,
		  const struct fby_options *o);

/* The result of recovery.  The first few dropped entries and holes are named. */
#define FBY_REPORT_MAX 32
struct fby_report_block {
	u64 block; /* ~0: unknown */
	u32 chunk;
	u16 page;
	u16 volume; /* 0xffff: unknown */
};
struct fby_recovery_report {
	bool clean; /* the pool had been closed cleanly */
	u64 chunks;
	u64 entries; /* valid, above their watermark */
	u64 blocks;  /* linked: the newest of each block */
	u64 dropped; /* torn tail pages of writes never acknowledged */
	u64 damaged; /* entries whose data failed its checksum and that cannot be torn */
	u64 holes;   /* entries lost */
	u64 lines_repaired; /* single-bit errors in lines, corrected */
	u64 chunk_headers_lost; /* open or seal lines found damaged */
	u64 groups_lost; /* of a grouped pool: groups of entries that the device had said to be durable, and lost */
	u32 unknown_at; /* with -FBY_E_CHUNK_KIND the chunk, with -FBY_E_OWNER_KIND the record: the first */
	u32 unknown_kind; /* ... and its kind */
	u32 ndropped_named;
	u32 nholes_named;
	u32 ngroups_named;
	struct fby_report_block dropped_named[FBY_REPORT_MAX];
	struct fby_report_block holes_named[FBY_REPORT_MAX];
	struct fby_report_block groups_named[FBY_REPORT_MAX]; /* volume: the log; page: the line in the chunk */
};

/* Scans chunks [first, first+n); each chunk exactly once, in any order, from any number of
 * threads.  Writes nothing. */
int fby_recover_chunks(struct fby_pool *p, u32 first, u32 n);

/* Finishes recovery after all chunks were scanned: decides, then voids dropped entries and closes
 * chunks (unless read-only).  After that the pool is usable.  With -FBY_E_CHUNK_KIND and
 * -FBY_E_OWNER_KIND the report names the chunk or record, and nothing was written; a pool opened
 * read-only shows the content of known kinds. */
int fby_recover_finish(struct fby_pool *p, struct fby_recovery_report *report);

/* Closes every chunk and, if all went well, marks the pool clean.  No request
 * may be in flight.  Does not drain.  A grouped pool: WAIT_TICKET until all that was appended is
 * durable and all chunks are closed on the device; -FBY_E_MEDIUM. */
int fby_pool_close(struct fby_pool *p);

void fby_pool_options(struct fby_pool *p, struct fby_options *out);
/* Changes the options that may change while the pool is open: verify, watermarks, ages,
 * no_checksums.  Requests may be under way; calls for volumes, options and destage may not. */
int fby_pool_set_options(struct fby_pool *p, const struct fby_options *o);

struct fby_pool_info {
	struct fby_superblock sb;
	u64 memory_bytes; /* the engine's memory: mem of open */
	u32 nslots;
	u32 chunks_free;
	u32 chunks_open;
	u32 chunks_used; /* includes open ones */
	u32 chunks_reserved; /* of the free ones: writers that have a chunk get none of these */
	u64 pages;	 /* data pages the pool can hold */
	u64 pages_linked;
	u64 seq; /* next */
	/* since open */
	u64 writes, written_sectors, merges;
	u64 commits, media_bytes;
	u64 reads; /* blocks */
	u64 read_hit_sectors, read_miss_sectors;
	u64 discards, zeroes, flushes;
	u64 chunks_opened;
	u64 waits_block, waits_slot, waits_space;
	u64 damaged_pages; /* found since open */
};
void fby_pool_info(struct fby_pool *p, struct fby_pool_info *out);

/* Last damaged blocks found; returns how many of max were filled. */
u32 fby_damaged_list(struct fby_pool *p, struct fby_report_block *out, u32 max);
/* Lists blocks of a volume whose newest data is known to be lost: a drain cannot write them.  The
 * list begins at *at, which the caller zeroes first, and advances it.  Returns how many of max
 * were filled, 0 at the end.  All pages of a static volume are verified for the list.  If it is
 * unknown which block was lost, each candidate is listed, up to 64 for a slot; max is at least
 * 64.  A page that destage found damaged may be readable by then; the next drain takes it.
 * at->passed_over counts such pages: a drain that has ended must not report them as being on the
 * origin. */
struct fby_lost_at {
	u32 page; /* or slot */
	u32 listed, passed_over;
	u32 found; /* blocks known to be lost when the list began; private to the engine */
	u32 most;  /* set by the caller: slots or pages that one call examines, or 0 for all */
	u32 ended; /* set at the end; with most, a call may return 0 before that */
};
u32 fby_lost_list(struct fby_pool *p, u16 volume, struct fby_lost_at *at, struct fby_report_block *out, u32 max);
/* Returns how many pages of the volume its origin has refused and lacks; *first: the lowest block
 * of these.  Examines all pages of the pool.  Returns 0 for a static volume, whose refused pages
 * are not marked. */
u32 fby_refused_pages(struct fby_pool *p, u16 volume, u64 *first);

/* Verifies the invariants that check.c lists, on the whole pool.  No request may be in flight,
 * unless quiet is false; then only those that hold at any moment are verified.  0 or
 * -FBY_E_INVARIANT; text names the invariant and the place. */
int fby_check(struct fby_pool *p, bool quiet, char *text, u32 text_bytes);

/* --- volumes (volume.c) ------------------------------------------------- */

struct fby_volume_spec {
	char name[FBY_NAME_MAX + 1];
	char identity[FBY_IDENTITY_MAX + 1];
	u8 uuid[16];
	u64 origin_sectors;
	u32 block_size; /* 512 or 4096 */
	/* of a static volume: interval at which everything goes to the origin; 0: max_age_ns
	 * decides */
	u32 flush_us;
	/* of a static volume: its share of the pool, multiple of 64 KiB; 0: the volume has chunks */
	u64 static_bytes;
};

enum fby_destage_state {
	FBY_DESTAGE_IDLE = 0,
	FBY_DESTAGE_WRITING,
	FBY_DESTAGE_FLUSHING,
	FBY_DESTAGE_COMMITTING,
	FBY_DESTAGE_BACKOFF, /* the origin failed; retried later */
};

struct fby_volume_info {
	struct fby_volume_spec spec;
	u64 watermark; /* of a static volume: the last pass of destage that wrote back everything it had to */
	/* Everything written up to this number is on the flushed origin, or was overwritten.  It
	 * is the watermark, or 0 while a copy made within the pool is above the watermark.
	 * Compare it only with the number that fby_volume_drain_upto returned.  When the device of a
	 * grouped pool has failed, it is how far rounds have come without a watermark. */
	u64 home;
	u32 marks;	/* of fby_volume_mark */
	bool used;	/* the record is in use */
	bool damaged;	/* both copies of the record are */
	bool attached;
	u64 pages;	/* linked */
	u64 lost_blocks; /* linked pages with lost sectors */
	u64 holes, holes_unknown; /* lost entries that no attach has accepted yet (at least) */
	u32 chunks;
	enum fby_destage_state destage;
	bool draining;
	int last_error;	   /* errno number of the origin's last failure, 0 after a success */
	u64 origin_errors; /* since attach */
	u64 origin_writes; /* requests: data, discards, zeroes */
	u64 origin_sectors_written; /* data that the origin has taken */
	u64 origin_flushes;
	u64 pages_destaged; /* entries whose data went to the origin */
	u64 pages_relocated; /* copied within the pool: kept by destage, or moved out of mostly dead chunks */
	u64 writes, written_sectors;
	u64 rounds;
	u64 throttle_ns; /* total delay requested by fby_write_delay */
	u32 intake_limit; /* pages a second that may be written now; 0: no limit */
	u32 drain_rate;	  /* pages a second that destage frees, averaged over about a second */
	u32 origin_depth; /* origin writes in flight that destage aims at */
	u32 bypassing;	  /* bypassed writes in flight */
	u64 bypasses, bypassed_sectors; /* since attach */
	bool flush_owed;  /* the next flush goes to the origin */
	/* Nothing more goes to the origin: lost blocks come first, and no chunk is free for them. */
	bool lost_stuck;
	/* The next fields are of a static volume; others are always counted.  pages: those
	 * counted so far; lost_blocks: those found since attach, or by the last complete
	 * fby_lost_list. */
	u32 slots; /* 0: the volume is not static */
	bool counted; /* pages is complete; false after a crash, until the survey ends */
	u64 passes; /* passes of destage that have begun */
	u64 conflicts; /* writes that waited until another block was on the origin */
	/* Eras used: at 100 the volume takes no writes (-FBY_E_ERAS).  From 50 on, the eras begin
	 * anew when the volume is attached empty. */
	u32 eras_percent;
};

int fby_volume_add(struct fby_pool *p, const struct fby_volume_spec *s, u16 *index);
/* Refused while the volume is attached, and while it holds data, unless discard is set.  In a grouped
 * pool WAIT_TICKET: requests have to end first (groups.h); WAIT_SLOT. */
int fby_volume_remove(struct fby_pool *p, u16 index, bool discard);
int fby_volume_find(struct fby_pool *p, const char *name, u16 *index);
int fby_volume_info(struct fby_pool *p, u16 index, struct fby_volume_info *out);
/* Checks everything that would make an attach fail whatever the origin is, before anything is
 * changed for the attach. */
int fby_volume_ready(struct fby_pool *p, u16 index, enum fby_holes holes);
/* Records a new identity or a larger size for a detached volume. */
int fby_volume_rebind(struct fby_pool *p, u16 index, const char *identity, u64 origin_sectors);

/*
 * A host marks an origin before it acknowledges the first write that the origin lacks, and
 * removes the mark when the origin lacks none.  The volume's record counts these steps.  The
 * count distinguishes an older copy of the pool from the one that made the mark, and an origin
 * whose mark was removed without the pool's knowledge from one that was never marked:
 *
 *	BEGIN	even: a first mark may be set from now on, with a number that was never there
 *	AGAIN	another mark may replace the one that is there, with a new number: odd as
 *		before; or even, if the present mark was to be taken away
 *	SET	odd: that mark is durable
 *	CLEARED	even: the origin lacks nothing, and the mark may be taken away
 *	GONE	even: it was taken away
 *
 * Odd: the origin bears a mark.  Even: it may bear none.  Every version of Forebay counts like
 * this.  For marks that state the last number, the number modulo 8 says more (fby_mark_judge of
 * host/policy.h).  Earlier versions left any number there.
 *
 *	mod 8	after			marks that may be there
 *	0	BEGIN			this number, or none
 *	1	SET			this number - 1
 *	2	CLEARED, from 1		this number - 2, or none
 *	3	AGAIN, from 1		this number - 3 or + 5
 *	4	CLEARED, from 3; AGAIN, from 2	this number - 4 or + 4, or none
 *	6	GONE			none
 * The call is durable when it returns, and returns the new number.  It excludes the other calls
 * for volumes and fby_destage_step.
 */
enum fby_mark_step { FBY_MARK_BEGIN, FBY_MARK_SET, FBY_MARK_CLEARED, FBY_MARK_AGAIN, FBY_MARK_GONE };
/* The number that a mark carries after BEGIN, AGAIN and SET. */
u32 fby_mark_number(u32 marks);

int fby_volume_mark(struct fby_pool *p, u16 index, enum fby_mark_step step, u32 *marks);

/* Memory that attach needs for the volume's destage: the round list, and bounce buffers
 * for nrequests requests in flight, of buffer_bytes (multiple of 4096) at most; 16 of the
 * longest have room at once, and more of shorter ones. */
u64 fby_volume_bytes(struct fby_pool *p, u32 round_pages, u32 nrequests, u32 buffer_bytes);

struct fby_attach {
	u64 origin_sectors;   /* as the host finds it now */
	const char *identity; /* likewise */
	enum fby_holes holes;
	void *mem;	  /* fby_volume_bytes of zeroed memory, 4 KiB aligned; the host's, until detach */
	u64 mem_bytes;
	u32 round_pages;  /* most pages in one destage round */
	u32 nrequests;	  /* most origin requests in flight, 1 to 64 */
	u32 buffer_bytes; /* largest origin write */
};
int fby_volume_attach(struct fby_pool *p, u16 index, const struct fby_attach *a);
/* No request of the volume may be in flight, including destage: otherwise BUSY.  Cached pages
 * stay cached.  In a grouped pool what was appended has to be durable first: WAIT_TICKET, WAIT_SLOT;
 * the host waits, carries out requests of the device (groups.h), and calls again. */
int fby_volume_detach(struct fby_pool *p, u16 index);

/* --- I/O ---------------------------------------------------------------- */

struct fby_vec {
	const void *base;
	u32 len; /* bytes */
};

struct fby_wpage { /* private to write.c */
	u64 block;
	u32 bucket;
	u32 old; /* linked page it replaces, or 0 */
	u32 data_crc;
	u8 mask;  /* sectors this request writes */
	u8 valid; /* sectors the new page holds */
	u8 lost;
	u8 flags; /* enum fby_page_flags */
};

/* A write in flight, in the caller's memory.  All fields except the results belong to the engine.
 * A request longer than 64 KiB takes several writes. */
struct fby_write {
	u16 volume;
	u8 kind; /* enum fby_kind */
	u8 npages;
	u32 nsectors; /* result of begin: sectors this batch takes, from the first on */
	u32 wake;     /* result of publish: enum fby_wake */
	/* Result of commit: 0, the batch is durable; in a grouped pool what to wait for before it
	 * is acknowledged (groups.h). */
	u64 ticket;
	u32 slot;
	u32 chunk;
	u32 first_page;
	u64 seq;
	struct fby_wpage page[FBY_BATCH_PAGES];
};

/*
 * The steps of a write, in order; fby_write() is their sum.
 * begin: locks blocks, takes a slot and room.  DONE, or WAIT holding nothing, or
 *	an error.
 * copy: stores the data.  vec holds at least nsectors; pieces of any length.
 * commit: sequence numbers, headers, fence.  Durable when it returns.
 * publish: makes it visible, releases all.
 * Nothing may run between begin and publish that waits for another write.
 */
int fby_write_begin(struct fby_pool *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors);
void fby_write_copy(struct fby_pool *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec,
		    u64 skip); /* skip: bytes at the start of vec not part of this batch */
void fby_write_commit(struct fby_pool *p, struct fby_write *w);
void fby_write_publish(struct fby_pool *p, struct fby_write *w);

/* Writes nsectors from buf.  *done counts the sectors written so far, where the next call
 * continues: zero it first, and call again with the same arguments after a WAIT.  *wake collects
 * wake bits. */
int fby_write(struct fby_pool *p, u16 volume, u64 sector, u32 nsectors, const void *buf, u32 *done,
	      u32 *wake);

/*
 * Reads sectors [first, first+n), n >= 1, of one block into dst (n * 512 bytes).  Cached sectors
 * are copied and verified.  *origin is the mask of sectors (bit 0: sector 0 of the block) that
 * the caller reads from the origin, after this call and without touching the others; *lost is the
 * mask of lost sectors.  DONE; ORIGIN if *origin is not empty; -FBY_E_LOST if *lost is not.
 */
int fby_read_block(struct fby_pool *p, u16 volume, u64 block, u32 first, u32 n, void *dst, u8 *origin,
		   u8 *lost);

/*
 * Throttling: after a write (or range), how long the host should let the caller
 * wait before it is acknowledged, so that intake matches what the origin takes.
 * 0, after one load, while there is room.  At most 1 s; now_ns is the clock of
 * fby_destage_step.  The write itself is durable already.
 */
u64 fby_write_delay(struct fby_pool *p, u16 volume, u32 nsectors, u64 now_ns);
/* False: fby_write_delay would return 0; the host need not read its clock. */
bool fby_write_throttled(const struct fby_pool *p, u16 volume);

/* Brackets a read of the origin that somebody waits for, so that destage leaves room for it. */
void fby_origin_foreground(struct fby_pool *p, u16 volume, bool begin);

/*
 * Bypass: a write that goes past the cache, straight to the origin.  Only blocks
 * that are not cached may: the origin has the newest of them, and no entry of
 * theirs can come back at a start.
 * begin: DONE: the host writes sectors [sector, + b->nsectors) to the origin and
 *	then calls end; writes through the cache to these blocks wait meanwhile.
 *	CACHED: the first b->nsectors are to be written through the cache.  Fewer
 *	than least sectors before a cached block are CACHED too.  WAIT_BLOCK: some
 *	request holds the first block, or too many are in flight.
 * end: before the write is acknowledged, also if the origin failed.
 * Acknowledged, it is as durable as the origin makes it: until the next flush of
 * the origin, not at all.  So a host that bypasses has to pass on flushes, or to
 * make each such write durable before it acknowledges it; see fby_flush_begin and
 * fby_flush_later.
 * The write itself flushes nothing (no FUA): its error is its own.
 */
struct fby_bypass {
	u16 volume;
	u16 place; /* private, as are seen and kind */
	u32 nsectors; /* result of begin */
	u32 seen;
	u8 kind; /* enum fby_kind */
};
int fby_bypass_begin(struct fby_pool *p, struct fby_bypass *b, u16 volume, u64 sector, u32 nsectors, u32 least);
void fby_bypass_end(struct fby_pool *p, struct fby_bypass *b, int error, u32 *wake);

/*
 * Discards or zeroes (kind: FBY_KIND_DISCARD or FBY_KIND_ZERO) a prefix of the
 * range.  *done counts sectors, as in fby_write.  DONE: all of it.  ORIGIN: the
 * host discards or zeroes [sector + *done, + past->nsectors) on the origin, calls
 * fby_bypass_end for past, adds past->nsectors to *done if the origin did not
 * fail, and calls again.  Before a zeroing is acknowledged, what went to the
 * origin is made durable as a bypassed write is: fby_flush_cover for each part.
 */
int fby_range(struct fby_pool *p, u16 volume, enum fby_kind kind, u64 sector, u64 nsectors, u64 *done,
	      struct fby_bypass *past, u32 *wake);

/*
 * Flushes.  An origin reports only once, to the first flush, that it lost writes of its cache.
 * So all flushes of an origin go through these calls, one at a time, including destage's, and no
 * other request to the origin may contain a flush.
 *
 * A ticket is the memory of one flush that somebody waits for.  A zeroed ticket stands for
 * everything acknowledged before.  After fby_flush_cover it stands for that bypassed write or
 * zeroing alone (call it after fby_bypass_end, for each part).
 * begin: DONE: everything that the ticket stands for is durable; immediately if
 *	nothing was bypassed.  (The first flush after an attach goes to the origin:
 *	a host that crashed may have left some.)  ORIGIN: the host flushes the
 *	origin, and calls end, once.  WAIT_FLUSH: call again with the same ticket
 *	after a wake.  -FBY_E_ORIGIN_IO: something that the ticket stands for may
 *	be lost.
 * end: error is the origin's result, 0 or an errno number; the call returns the result of
 *	the whole flush, DONE or -FBY_E_ORIGIN_IO.
 * later: for a ticket that covers a bypassed write, before that is acknowledged without
 *	being durable.  DONE: a later flush of everything makes it so, or fails.
 *	-FBY_E_ORIGIN_IO: a flush failed since it began, and what it wrote may be lost.
 * A failed flush, destage's or another's, is reported to every ticket that stands for something
 * which may be lost by it: to those waiting at that moment, and then to each ticket for
 * everything, until one was told that began after all that may be lost was acknowledged.  If a
 * volume has several clients, the failure is reported once to each (as Linux reports it to each
 * open file).  The host keeps `told` for each client, starting with fby_flush_told, and copies it
 * into the client's tickets.
 */
struct fby_flush { /* private, except told, client and aside */
	u64 upto;
	u32 seen;
	u32 told; /* in: failures that the client was told of before; out: failures that it was told of by this */
	u16 volume;
	u8 state;
	bool all;
	/* the flush is the host's own, not a writer's: what it is told, the next ticket is told
	 * as well */
	bool aside;
	bool client; /* the ticket is of one of several clients, each of which is told separately */
};
/* The failures that a new client need not be told of: as many as somebody was told of. */
u32 fby_flush_told(struct fby_pool *p, u16 volume);
int fby_flush_begin(struct fby_pool *p, u16 volume, struct fby_flush *t);
int fby_flush_end(struct fby_pool *p, struct fby_flush *t, int error, u32 *wake);
void fby_flush_cover(struct fby_pool *p, struct fby_flush *t, const struct fby_bypass *b);
int fby_flush_later(struct fby_pool *p, struct fby_flush *t);

/* Announces that the caller is about to sleep for a WAIT decision. */
void fby_wait_prepare(struct fby_pool *p, enum fby_decision d);

/* --- destage (destage.c) ------------------------------------------------- */

enum fby_io_op {
	FBY_IO_WRITE = 1,
	FBY_IO_ZERO,
	/* The sectors read as zeroes afterwards, as with ZERO.  Then the origin may discard them
	 * if it can; a failure of that is no error. */
	FBY_IO_DISCARD,
	FBY_IO_FLUSH,
};

/* A request for the origin of a volume; buf is valid until it is completed. */
struct fby_io {
	u32 id;
	u16 volume;
	u8 op; /* enum fby_io_op */
	u8 pad;
	u64 sector;
	u64 nsectors;
	void *buf;
};

/*
 * Runs one step.  ORIGIN: *io is a request to start; call again.  AGAIN: call again soon.  DONE:
 * nothing to do until a completion, a WAKE_DESTAGE, or *next_ns (~0: never).  *wake: whom to
 * wake.
 */
int fby_destage_step(struct fby_pool *p, u64 now_ns, struct fby_io *io, u64 *next_ns, u32 *wake);

/* The error of a request that the host abandoned before the origin had it, for instance for a
 * detach: ECANCELED.  An abandoned flush loses nothing, and is owed as before. */
#define FBY_NOT_SENT 125

/* error: 0 or an errno number.  Records the result; from now on a failed flush is reported to the
 * tickets that it concerns. */
void fby_destage_complete(struct fby_pool *p, u32 id, int error);

/* Destages until nothing remains of what was written before (drain), and as long as on is set;
 * ends when the volume is clean.  Progress is in fby_volume_info. */
int fby_volume_drain(struct fby_pool *p, u16 index, bool on);
/* Does the same for a caller who waits.  *upto is the number that home of fby_volume_info reaches
 * when everything acknowledged before is on the flushed origin, unless it is lost.  The numbers
 * of a static volume are passes and those of others are writes, so no caller may compute one.
 * Hosts wait with host/drained.h. */
int fby_volume_drain_upto(struct fby_pool *p, u16 index, u64 *upto);

/* True when the volume has nothing to destage: everything linked is lost. */
bool fby_volume_clean(struct fby_pool *p, u16 index);

/* --- looking into a pool (dump.c): for tools, on an open pool ------------- */

struct fby_static_way_info {
	bool live; /* the origin lacks its page */
	bool lost; /* ... and the page's block is unknown */
	bool superseded; /* ... and the other way has the newer page of the block */
	bool newest; /* written last */
	bool data_ok; /* live, and its checksum is right, if check_data asked for that */
	u8 valid, lost_sectors; /* by bit */
	u32 kind; /* enum fby_kind */
	u32 number; /* of the write within the slot */
	u32 data_crc;
	u64 block, era;
};
struct fby_static_slot_info {
	u32 slot;
	bool torn; /* the last write was never acknowledged */
	struct fby_static_way_info way[2];
};
/* Looks at the slot that belongs to the block of a static volume, attached or not. */
int fby_static_slot_info(struct fby_pool *p, u16 volume, u64 block, bool check_data, struct fby_static_slot_info *out);

struct fby_chunk_info {
	u32 number;
	u16 kind; /* enum fby_chunk_kind; of a free chunk its last kind */
	u16 volume; /* 0xffff: none */
	u8 state;   /* 0 free, 1 open, 2 closed */
	u64 epoch;
	u64 seq_min, seq_max;
	u32 fill; /* first page not written */
	u32 live;
};
int fby_chunk_info(struct fby_pool *p, u32 chunk, struct fby_chunk_info *out);

struct fby_entry_info {
	bool valid;  /* the line's checksum and fields are sound */
	bool current; /* the line is of the chunk's epoch */
	bool linked; /* the page is the newest of its block */
	bool data_ok; /* the data has its checksum */
	struct fby_page_line line; /* as read */
};
/* page: fby_first_page() up to the chunk's pages. */
int fby_entry_info(struct fby_pool *p, u32 chunk, u32 page, bool check_data, struct fby_entry_info *out);

#endif
