/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * fbk.h - the module: pools that several devices share, their volumes, and the
 * way of a bio through them.  The engine (core/api/forebay.h) decides; this does
 * what it asks for.
 *
 *	target.c	the device-mapper target
 *	native.c	the native block device, and its control device
 *	setup.c		what both have in common: options, status, commands
 *	shared_pool.c	pools by cache device; start and stop of volumes; destage
 *	volume_io.c	bios: reads, writes, ranges
 *	waiting.c	bios that wait for a block, a slot or space
 *	flush_io.c	making durable what went past the cache
 *	origin_io.c	requests of destage to an origin
 *	media_dax.c	claiming and mapping the cache device
 *
 * Locks, by rank:
 *   1 pools	fbk_pools_lock: the list of pools, their reference counts
 *     claims	in media_dax.c: the claimed media
 *   2 pool	fbk_pool.lock: what the engine wants ordered: destage step,
 *		volume add, attach and detach.  No I/O is waited for under it.
 *   3 started	fbk_pool.started_lock: the list of started volumes
 *     wait	fbk_volume.wait_lock: its waiting bios
 *     late	fbk_pool.late_lock: those done whose end is put off
 *     send	fbk_volume.send_lock
 */
#ifndef FBK_H
#define FBK_H

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/mempool.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "host/policy.h"
#pragma pop_macro("current")
#pragma pop_macro("noinline")
#pragma pop_macro("round_up")

struct dax_device;
struct file;

/* The cache device, ours alone from claim to release. */
struct fbk_claim {
	struct list_head list; /* claims lock */
	void (*gone)(struct fbk_claim *c); /* the device is being taken away: use it no more */
	struct block_device *bdev;
	struct file *file; /* its opening, from 6.9 on */
	struct dax_device *dax;
	bool vmapped; /* base is a mapping of our own */
	u64 start_sector; /* of the device, where the media begins */
	struct fby_media media;
};

/* Opens a block device for reading and writing, and for holder alone. */
int fbk_bdev_open(dev_t dev, void *holder, struct file **file, struct block_device **bdev);
void fbk_bdev_close(struct file *file, struct block_device *bdev);
/* All from start_sector on, a whole number of pages; ->gone is the caller's to set.
 * text: why not, for whoever set it up.
 */
int fbk_claim(struct fbk_claim *c, dev_t dev, u64 start_sector, char **text);
void fbk_release(struct fbk_claim *c);
/* Is the start of the media, where others keep their superblocks, all zero? */
bool fbk_claim_blank(struct fbk_claim *c);

/* By cache device; opened by the first user, closed cleanly after the last. */
struct fbk_pool {
	struct list_head list; /* pools lock */
	u32 refs;	       /* pools lock */
	dev_t dev;

	struct fbk_claim claim;
	struct fby_pool *engine;
	void *mem; /* the engine's */
	struct fby_recovery_report report;

	struct mutex lock; /* one call at a time of those that the engine wants so; volume[] */
	struct fbk_volume *volume[FBY_VOLUMES_MAX]; /* started ones; lock */

	/* The media is being unbound.  Whoever calls the engine looks at it first, in
	 * the same RCU read section or under lock; those have ended when it may go.
	 */
	bool gone;

	struct workqueue_struct *wq; /* destage */
	struct delayed_work destage;

	spinlock_t started_lock;
	struct list_head started; /* volumes, that a wake may concern; started_lock */

	spinlock_t late_lock; /* taken in softirq */
	struct list_head late; /* soonest first */
	struct hrtimer late_timer;
};

/* May the engine be called?  Looked at in an RCU read section or under the pool's lock. */
static inline bool fbk_usable(const struct fbk_pool *p)
{
	return fby_asserts_hold() && likely(!READ_ONCE(p->gone));
}

/* Why it may not, as an error of the engine's. */
static inline int fbk_unusable(const struct fbk_pool *p)
{
	return READ_ONCE(p->gone) ? -FBY_E_LOST : -FBY_E_INVARIANT;
}

/* Takes the pool's lock, or fails as the media is gone. */
int fbk_pool_enter(struct fbk_pool *p);

struct fbk_open {
	bool create; /* format if the media is blank; never otherwise */
	u64 start_sector; /* of the cache device, where the pool begins */
	struct fby_options options;
};

/* A reference to the pool on the device; options count for the first. */
struct fbk_pool *fbk_pool_get(dev_t dev, const struct fbk_open *o, char **text);
void fbk_pool_put(struct fbk_pool *p);

/* A volume as a device uses it.  The owner's memory, zeroed; stopped when freed. */
struct fbk_volume {
	struct fbk_pool *pool;
	u16 index;
	char name[FBY_NAME_MAX + 1];
	struct block_device *origin;
	char identity[FBY_IDENTITY_MAX + 1]; /* of the origin, as it was recorded when this was prepared */
	u64 sectors;
	u32 block_size;
	const void *owner; /* whose device: tells a reload from a second user */
	u32 nbuffers, buffer_bytes, round_pages;
	enum fby_holes holes;
	bool by_name;  /* what the origin is called may be its id */
	bool whole;    /* the device is as large as the volume, which may be rounded down */
	struct fby_policy policy; /* what goes past the cache */
	bool cleaner;  /* destage all the time */
	bool stopping; /* requests of destage fail at once */
	bool requeue;  /* waiting bios go back to whence they came */
	bool started;
	void *mem; /* the engine's, for destage */
	u64 mem_bytes;
	atomic_t in_flight; /* requests of destage */
	struct bio flush_bio; /* of whoever the engine lets in */
	u32 drainers; /* fbk_pool.lock */

	/* Its own, so that an origin that hangs holds up nobody else. */
	struct workqueue_struct *wq;	   /* the waiting, and what goes to the origin */
	struct workqueue_struct *range_wq; /* discards and zeroes */
	mempool_t ios;
	struct bio_set clones;	 /* of clients' bios */
	struct bio_set requests; /* of destage */

	struct list_head list; /* fbk_pool.started */
	struct delayed_work retry;
	unsigned int busy_tries; /* in a row that got nowhere; the work's */
	spinlock_t wait_lock;
	struct list_head wait_busy;  /* for a block or a slot; wait_lock */
	struct list_head wait_space; /* wait_lock */
	struct list_head wait_flush; /* wait_lock */
	struct work_struct flush;

	spinlock_t send_lock; /* taken in interrupts */
	struct list_head send; /* requests of destage to be sent; send_lock */
	struct work_struct send_work;
};

/* Checks name, size, identity, memory; nothing is attached yet. */
int fbk_volume_prepare(struct fbk_volume *v, const char *origin_id, bool create, bool accept_changed,
		       char **text);
void fbk_volume_free(struct fbk_volume *v);
/* From now on bios may come; until stop has returned. */
int fbk_volume_start(struct fbk_volume *v);
void fbk_volume_stop(struct fbk_volume *v);
/* Destage all that was written before; -EINTR when the caller got a signal, else an error of the origin. */
int fbk_volume_drain(struct fbk_volume *v);
void fbk_kick_destage(struct fbk_pool *p);
/* Does what a wake mask says. */
void fbk_wake(struct fbk_pool *p, u32 wake);
/* A (negative) error of the engine as a negative errno. */
int fbk_errno(int error);

/* Counters at the last clear_stats. */
struct fbk_baseline {
	u64 writes, written_sectors, reads, hits, misses, merges, discards, zeroes;
	u64 waits_block, waits_slot, waits_space;
	u64 origin_writes, origin_sectors, origin_flushes, origin_errors, pages_destaged, pages_relocated, rounds;
};

/* setup.c: a device's options and its volume; zeroed at first. */
struct fbk_setup {
	struct fbk_open open;
	struct fbk_volume volume;
	dev_t cache;
	char origin_id[FBY_IDENTITY_MAX + 1];
	bool accept_changed;
	bool flush_on_suspend;
	bool slots_given;
	struct fbk_baseline base;
};

int fbk_setup_parse(struct fbk_setup *s, unsigned int argc, char **argv, char **error);
/* In any case fbk_setup_close after it. */
int fbk_setup_open(struct fbk_setup *s, struct block_device *origin, u64 sectors, const char *cache,
		   const char *volume, const void *owner, char **error);
void fbk_setup_close(struct fbk_setup *s);
int fbk_device_number(const char *path, dev_t *dev);
void fbk_setup_status(struct fbk_setup *s, char *result, unsigned int maxlen);
/* The volume's name, the number of options, the options. */
void fbk_setup_options(struct fbk_setup *s, char *result, unsigned int maxlen);
int fbk_setup_command(struct fbk_setup *s, unsigned int argc, char **argv);

enum fbk_memory {
	FBK_IO_OWNED = 0, /* the device has memory for each bio */
	FBK_IO_STACK,	  /* of who submits: moved to the pool when that returns before the end */
	FBK_IO_POOLED,
};

/* A bio on its way. */
struct fbk_io {
	struct fbk_volume *volume;
	struct bio *bio;
	u64 sector; /* of the volume */
	/* writes */
	struct bvec_iter iter; /* what is left */
	u32 done;	       /* sectors */
	struct list_head node;
	u64 due_ns; /* when it may end */
	struct fby_bypass past; /* the part that is on its way to the origin */
	struct fby_flush ticket; /* covers what went past the cache, if it is owed */
	/* ranges, and writes past the cache */
	struct work_struct work;
	/* reads: one for whoever looks up, one for each part sent to the origin */
	atomic_t parts;
	blk_status_t status;
	u8 memory; /* enum fbk_memory */
	bool owed; /* a flush, before it may end well */
	unsigned long began; /* of the accounting, or 0 */
	bool foreground; /* the engine was told that somebody waits for the origin */
	u32 past_sectors; /* of it that went past the cache: the throttle does not count them */
};

enum fbk_map {
	FBK_TAKEN, /* the bio is ended, or will be */
	FBK_REMAP, /* all of it is to be read at the same sector of the origin; fbk_remap_end after */
};

/* io->memory and ->began are the caller's to set.  Not owned: never FBK_REMAP. */
enum fbk_map fbk_map(struct fbk_volume *v, struct fbk_io *io, struct bio *bio, u64 sector);
void fbk_remap_end(struct fbk_io *io);
/* A piece of a write: 0 all done, else the engine's decision or error. */
int fbk_write_more(struct fbk_io *io);
/* The first of what is left, past the cache, if it is least sectors or all: 0 when
 * it is on its way; the io, in lasting memory, is then dealt with.
 */
int fbk_write_past(struct fbk_io *io, u32 least);
void fbk_end(struct fbk_io *io, int error);
void fbk_end_status(struct fbk_io *io, blk_status_t status);
/* The same in memory that lasts; NULL: it may not wait for that. */
struct fbk_io *fbk_io_lasting(struct fbk_io *io);
/* Of a write or range, in full: now, or when it is durable and the throttle lets it. */
void fbk_end_written(struct fbk_io *io);
/* The same of one that is durable. */
void fbk_end_durable(struct fbk_io *io);

/* waiting.c */
void fbk_wait(struct fbk_io *io, enum fby_decision why);
static inline bool fbk_others_wait(struct fbk_volume *v)
{
	return !list_empty_careful(&v->wait_space);
}

/* False: the throttle lets it end now. */
bool fbk_end_late(struct fbk_io *io);
void fbk_retry_work(struct work_struct *work);
enum hrtimer_restart fbk_late_timer(struct hrtimer *timer);

/* flush_io.c */
/* ->past has ended; before the io ends well, it is to be made durable. */
void fbk_flush_cover(struct fbk_io *io);
/* That, and then the end. */
void fbk_flush(struct fbk_io *io);
void fbk_flush_work(struct work_struct *work);

/* origin_io.c */
void fbk_origin_submit(struct fbk_pool *p, const struct fby_io *io);
void fbk_origin_wait_idle(struct fbk_volume *v);
int fbk_origin_init(struct fbk_volume *v);
void fbk_origin_exit(struct fbk_volume *v);

int fbk_io_init(void);
void fbk_io_exit(void);
int fbk_io_volume_init(struct fbk_volume *v);
void fbk_io_volume_exit(struct fbk_volume *v);
int fbk_target_init(void);
void fbk_target_exit(void);
int fbk_native_init(void);
void fbk_native_exit(void);

#endif
