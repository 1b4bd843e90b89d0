/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * fbk.h - the module: pools that several devices share, their volumes, and the path of a bio
 * through them.  The engine (core/api/forebay.h) decides; the module does what the engine asks
 * for.
 *
 *	target.c	the device-mapper target
 *	native.c	the native block device, and its control device
 *	setup.c		what both have in common: options, status, commands
 *	shared_pool.c	pools by cache device; start and stop of volumes; destage
 *	volume_origin.c	whether an origin is the one of its volume
 *	volume_drain.c	drains that somebody waits for
 *	volume_io.c	bios: a request each, and what it asks for
 *	waiting.c	those that wait for a block, a slot, space or a flush
 *	origin_io.c	requests of destage to an origin
 *	media_dax.c	claiming and mapping the cache device
 *	media_blk.c	one without DAX: its image, and what is written to it
 *
 * Locks, by rank:
 *   1 pools	fbk_pools_lock: the list of pools, their reference counts
 *     claims	in media_dax.c: the claimed media
 *   2 pool	fbk_pool.lock: what the engine wants ordered: destage step,
 *		volume add, attach and detach.  No origin is waited for under it.
 *     flushes	fbk_claim.flushes: persist, and each flush with its report
 *   3 started	fbk_pool.started_lock: the list of started volumes
 *     wait	fbk_volume.wait_lock: its waiting bios
 *     late	fbk_pool.late_lock: those done whose end is put off
 *     send	fbk_volume.send_lock, fbk_pool.send_lock
 */
#ifndef FBK_H
#define FBK_H

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/mempool.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/workqueue.h>

#include "host/client_request.h"
#include "host/drained.h"
#pragma pop_macro("current")
#pragma pop_macro("noinline")
#pragma pop_macro("round_up")

struct dax_device;
struct dev_pagemap;
struct file;

/* The cache device, ours alone from claim to release. */
struct fbk_claim {
	struct list_head list; /* claims lock */
	void (*gone)(struct fbk_claim *c); /* the device is being removed: stop using it */
	struct block_device *bdev;
	struct file *file; /* its opening; NULL on kernels without such a file */
	struct dax_device *dax;
	bool vmapped; /* the module made the mapping at base */
	struct dev_pagemap **held; /* references to the memory's owners, so that they stay */
	u32 nheld;
	u64 start_sector; /* sector of the device at which the media begins */
	struct fby_media media;

	/* Of a device without DAX, media.base is its image. */
	struct fby_device device;
	struct mutex flushes; /* guards the fields below */
	bool no_fua;	  /* a durable write is a write and a flush, also where there is FUA */
	bool unsettled;	  /* persist has written what no flush has covered */
	bool doubtful;	  /* a flush failed while that was so */
	u64 durable_ns;	  /* a durable write took at best; 0: none was made */
};

/* Opens a block device for reading and writing, exclusively for holder.  -EROFS: it is read-only. */
int fbk_bdev_open(dev_t dev, void *holder, struct file **file, struct block_device **bdev);
void fbk_bdev_close(struct file *file, struct block_device *bdev);
/* Claims everything from start_sector on, a whole number of pages.  The caller sets ->gone.
 * text: the reason for a failure, for the user who set the device up.
 */
int fbk_claim(struct fbk_claim *c, dev_t dev, u64 start_sector, char **text);
void fbk_release(struct fbk_claim *c);
/* The device has no DAX: reads its image. */
int fbk_image_load(struct fbk_claim *c, char **text);
void fbk_image_free(struct fbk_claim *c);
/* Such a device can still be read. */
bool fbk_image_answers(struct fbk_claim *c);
/* Whether the start of the media, where others keep their superblocks, is all zero. */
bool fbk_claim_blank(struct fbk_claim *c);
void fbk_media_exit(void);

struct fbk_sent;

/* A pool, by its cache device.  The first user opens it, and the last one closes it cleanly. */
struct fbk_pool {
	struct list_head list; /* pools lock */
	u32 refs;	       /* pools lock */
	u32 leaving;	       /* of refs, those that may soon be given back; pools lock */
	dev_t dev;

	struct fbk_claim claim;
	struct fby_linux_pool asserts; /* do those of the engine hold for this pool? */
	char name[DISK_NAME_LEN + 8]; /* of the cache device */
	u8 uuid[16];
	struct fby_pool *engine;
	void *mem; /* the engine's */
	struct fby_recovery_report report;

	struct mutex lock; /* one call at a time of those that the engine wants so; volume[] */
	struct fbk_volume *volume[FBY_VOLUMES_MAX]; /* started ones; lock */
	/* Stopped ones of a pool whose device has failed, all of which was on the origin then; lock.
	 * The engine forgets that. */
	bool at_home[FBY_VOLUMES_MAX];

	/* The media is being unbound.  Every caller of the engine checks this first, in the
	 * same RCU read section or under lock.  Those callers have finished when the media may
	 * go.
	 */
	bool gone;

	struct workqueue_struct *wq; /* destage */
	struct delayed_work destage;
	struct fbk_volume *unsent; /* counted in its in_flight; the work's */
	u32 nunsent;

	spinlock_t started_lock;
	struct list_head started; /* volumes, that a wake may concern; started_lock */

	spinlock_t late_lock; /* taken in softirq */
	struct list_head late; /* soonest first */
	struct hrtimer late_timer;

	/* Requests of the engine to a device without DAX: media_blk.c. */
	struct fbk_sent *sent_all; /* NULL: there are none */
	spinlock_t send_lock;
	struct list_head send_free; /* send_lock */
	u32 taken;		    /* send_lock */
	struct llist_head send_ended;
	struct work_struct sent; /* for ends, and what comes after them */
	struct hrtimer send_timer;
	bool send_armed;
	struct workqueue_struct *send_wq;
	bool closing; /* destage is not kicked any more, and the timer not started */
	bool failure_told;
};

/* Whether the engine may be called.  Checked in an RCU read section or under the pool's lock. */
static inline bool fbk_usable(const struct fbk_pool *p)
{
	return fby_asserts_hold(&p->asserts) && likely(!READ_ONCE(p->gone));
}

/* The reason why the engine may not be called, as one of its errors. */
static inline int fbk_unusable(const struct fbk_pool *p)
{
	return READ_ONCE(p->gone) ? -FBY_E_LOST : -FBY_E_INVARIANT;
}

/* Takes the pool's lock, or fails if the media is gone. */
int fbk_pool_enter(struct fbk_pool *p);

struct fbk_open {
	bool create; /* format if the media is blank; never otherwise */
	bool no_fua;
	u64 start_sector; /* sector of the cache device at which the pool begins */
	struct fby_options options;
};

/* Returns a reference to the pool on the device; only the first caller's options count. */
struct fbk_pool *fbk_pool_get(dev_t dev, const struct fbk_open *o, char **text);
/* leaving: the reference counts among those that may soon be given back, as it does at first. */
void fbk_pool_put(struct fbk_pool *p, bool leaving);
/* The reference may soon be given back.  True: nothing makes sure that the pool stays open then. */
bool fbk_pool_leave(struct fbk_pool *p);
void fbk_pool_stay(struct fbk_pool *p);

enum fbk_durable {
	FBK_DURABLE_AUTO = 0, /* each write, unless a durable one takes long */
	FBK_DURABLE_ALWAYS,
	FBK_DURABLE_FLUSH,
};

/* A volume as a device uses it.  The owner provides zeroed memory.  Freeing stops the volume. */
struct fbk_volume {
	struct fbk_pool *pool;
	u16 index;
	char name[FBY_NAME_MAX + 1];
	struct block_device *origin;
	char identity[FBY_IDENTITY_MAX + 1]; /* identity of the origin as recorded when the volume was prepared */
	u64 sectors;
	u32 block_size;
	const void *owner; /* owner of the device: distinguishes a reload from a second user */
	u32 nrequests, buffer_bytes, round_pages;
	enum fby_holes holes;
	bool by_name;  /* the origin's name may serve as its id */
	bool marked;   /* the command has marked the origin; otherwise nobody does */
	struct fby_mark_found mark; /* the mark that it had before */
	bool whole;    /* the device is as large as the volume, which may be rounded down */
	bool tickets;  /* the pool's device makes an append durable, and requests wait for that */
	bool later;    /* a write waits only if its durability is asked for: a volatile cache */
	u8 durable;    /* enum fbk_durable: what was asked for */
	bool no_cache; /* the device says that it has none, and devices above rely on that */
	struct fby_policy policy; /* which requests bypass the cache */
	bool stopping; /* requests of destage fail at once */
	bool requeue;  /* waiting bios return to their queue */
	bool started;
	void *mem; /* the engine's, for destage */
	u64 mem_bytes;
	atomic_t in_flight; /* requests of destage */
	struct bio flush_bio; /* belongs to the flush that the engine admits */
	u32 drainers; /* fbk_pool.lock */

	/* Each volume has its own queues, so that a hanging origin delays no other volume. */
	struct workqueue_struct *wq;	   /* waiting requests, and requests to the origin */
	struct workqueue_struct *range_wq; /* discards and zeroes */
	mempool_t ios;
	struct bio_set clones;	 /* of clients' bios */
	struct bio_set requests; /* of destage */

	struct list_head list; /* fbk_pool.started */
	struct delayed_work retry;
	unsigned int busy_tries; /* futile tries in a row; owned by the work */
	spinlock_t wait_lock;
	struct list_head wait_busy;  /* for a block or a slot; wait_lock */
	struct list_head wait_space; /* wait_lock */
	struct list_head wait_flush; /* wait_lock */
	struct list_head wait_ticket; /* wait_lock */
	struct work_struct flush;

	spinlock_t send_lock; /* taken in interrupts */
	struct list_head send; /* requests of destage to be sent; send_lock */
	struct work_struct send_work;
};

/* Checks name, size, identity and memory.  Attaches nothing yet. */
int fbk_volume_prepare(struct fbk_volume *v, const char *origin_id, bool create, bool accept_changed,
		       char **text);
void fbk_volume_free(struct fbk_volume *v);
/* Bios may come from this call on, until stop has returned. */
int fbk_volume_start(struct fbk_volume *v);
void fbk_volume_stop(struct fbk_volume *v);
/* Destages all earlier writes.  0: the origin alone has everything, durable, and answers.
 * -ENODATA: the same, except for lost blocks.  -EINTR: the caller got a signal.  text: the
 * reason for a failure.
 */
int fbk_volume_drain(struct fbk_volume *v, char **text);
/* Judges the state of the origin.  drained: for writes before the drain. */
enum fby_completeness fbk_volume_judge(struct fbk_volume *v, struct fby_volume_info *info, bool drained);
/* A pool that is written in groups takes nothing more. */
bool fbk_medium_failed(struct fbk_pool *p);
/* The pool's device has failed, and the origin lacks what memory has.  Waits for the device. */
bool fbk_memory_alone(struct fbk_volume *v);
#define FBK_ALONE_BYTES (FBY_VOLUMES_MAX * (FBY_NAME_MAX + 32u))
/* How many bytes of a volume the origin lacks, at most.  info is for use meanwhile. */
u64 fbk_not_at_home(struct fbk_pool *p, u16 index, struct fby_volume_info *info);
/* The same of any volume of the pool but this one, or of any at all (NULL).  text, of at most
 * FBK_ALONE_BYTES, gets "NAME (N bytes), ..."; NULL: the kernel's log gets them, as lost.
 */
bool fbk_pool_alone(struct fbk_pool *p, const struct fbk_volume *but, char *text, size_t bytes);
/* Drains such a volume before it is stopped; the kernel's log says if that fails. */
void fbk_volume_rescue(struct fbk_volume *v);
/* Keeps destage going for a caller who looks again later. */
int fbk_drain_on(struct fbk_volume *v);
/* The policy was changed: starts or stops draining the pool all the time. */
void fbk_mode_set(struct fbk_volume *v);
void fbk_kick_destage(struct fbk_pool *p);
/* Wakes everybody that a wake mask names. */
void fbk_wake(struct fbk_pool *p, u32 wake);
/* A (negative) error of the engine as a negative errno. */
int fbk_errno(int error);

/* volume_origin.c */
/* What the volume's record says of its origin. */
int fbk_identity_of(const struct fbk_volume *v, const char *origin_id, char *identity, size_t bytes, char **text);
/* Whether the origin is the one that the volume was made for, and fit for it.  renewed: the
 * record must be updated.
 */
int fbk_check_origin(struct fbk_volume *v, struct fby_volume_info *info, const char *origin_id, bool accept_changed,
		     bool *renewed, char **text);
/* Whether this pool marked the origin.  An older copy of the pool would undo later writes. */
int fbk_check_mark(struct fbk_volume *v, struct fby_volume_info *info, char **text);

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
	bool leaving; /* see fbk_pool_leave */
	struct fbk_baseline base;
};

int fbk_setup_parse(struct fbk_setup *s, unsigned int argc, char **argv, char **error);
extern const char fbk_read_only_origin[]; /* the text for -EROFS */
/* fbk_setup_close follows in any case. */
int fbk_setup_open(struct fbk_setup *s, struct block_device *origin, u64 sectors, const char *cache,
		   const char *volume, const void *owner, char **error);
void fbk_setup_close(struct fbk_setup *s);
/* The device exists, and stays until fbk_setup_leave. */
void fbk_setup_stay(struct fbk_setup *s);
bool fbk_setup_leave(struct fbk_setup *s);
int fbk_device_number(const char *path, dev_t *dev);
void fbk_setup_status(struct fbk_setup *s, char *result, unsigned int maxlen);
/* Prints the volume's name, the number of options, and the options. */
void fbk_setup_options(struct fbk_setup *s, char *result, unsigned int maxlen);
/* error: the reason for a failure, if it is known. */
int fbk_setup_command(struct fbk_setup *s, unsigned int argc, char **argv, char **error);

enum fbk_memory {
	FBK_IO_OWNED = 0, /* the device has memory for each bio */
	FBK_IO_STACK,	  /* the submitter's stack: moved to the pool if the submitter returns before the end */
	FBK_IO_POOLED,
};

/* A bio in progress. */
struct fbk_io {
	struct fbk_volume *volume;
	struct bio *bio;
	u64 sector; /* of the volume */
	struct fby_request request; /* all of the bio, except what was written at once */
	struct fby_run run;	    /* the request's run */
	struct bvec_iter iter;	    /* iterator over the memory of its sectors from at on */
	u32 at;
	u8 memory;	/* enum fbk_memory */
	bool remapped;	/* see FBK_REMAP */
	bool then_write; /* the request is a flush, and the bio is written after it */
	atomic_t parts; /* reads: one for the request, one for each part sent to the origin */
	blk_status_t status; /* status of the requests to the origin */
	struct work_struct work;
	struct list_head node; /* in a list of waiting requests */
	u64 due_ns;	       /* earliest end of the request */
	unsigned long began;   /* start for the accounting, or 0 */
};

enum fbk_map {
	FBK_TAKEN, /* the bio is ended, or will be */
	FBK_REMAP, /* all of it is to be read at the same sector of the origin; fbk_remap_end after */
};

/* The caller sets io->memory and ->began.  An io that is not owned never gets FBK_REMAP. */
enum fbk_map fbk_map(struct fbk_volume *v, struct fbk_io *io, struct bio *bio, u64 sector);
void fbk_remap_end(struct fbk_io *io);
/* Does the next step of the request.  The host layer decides the result. */
int fbk_resume(struct fbk_io *io, int result);
/* Acts on such a result; the io is no longer the caller's then.  May sleep. */
void fbk_go_on(struct fbk_io *io, int next);
/* Gives up the request, if it has not ended, and ends the bio. */
void fbk_end_status(struct fbk_io *io, blk_status_t status);
/* The same; parts of a read that the origin has end first. */
void fbk_give_up(struct fbk_io *io, blk_status_t status);

/* media_blk.c */
void fbk_sender_prepare(struct fbk_pool *p);
/* For a pool with so many places for volumes. */
int fbk_sender_init(struct fbk_pool *p, u32 nvolumes);
/* The engine has nothing more to be sent. */
void fbk_sender_exit(struct fbk_pool *p);
/* Sends what the engine has to write now.  May sleep.  Of no effect for a pool in memory. */
void fbk_send(struct fbk_pool *p);
/* Sends what nobody waits for, in a millisecond. */
void fbk_send_later(struct fbk_pool *p);
/* Soon: tells the engine what has ended, sends, and wakes those whose wait is over.  Any context. */
void fbk_kick_sender(struct fbk_pool *p);

/* waiting.c */
/* Some requests to the pool's device have ended. */
void fbk_tickets_ended(struct fbk_pool *p);
/* Queues the request until the condition in `next` holds, which is WAIT or DRAIN.  Then it
 * continues.
 */
void fbk_wait(struct fbk_io *io, int next);
static inline bool fbk_others_wait(struct fbk_volume *v)
{
	return !list_empty_careful(&v->wait_space);
}

/* False: the throttle lets the request end now. */
bool fbk_end_late(struct fbk_io *io);
void fbk_retry_work(struct work_struct *work);
void fbk_flush_work(struct work_struct *work);
enum hrtimer_restart fbk_late_timer(struct hrtimer *timer);

static inline void fbk_timer_init(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *),
				  enum hrtimer_mode mode)
{
#ifdef FBK_HAVE_HRTIMER_SETUP
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, mode);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, mode);
	timer->function = function;
#endif
}

/* origin_io.c */
/* Called under the pool's lock, which is held since destage has asked for io.  From here on the
 * owner of io waits for it, and stays until it has ended.
 */
struct fbk_volume *fbk_origin_expect(struct fbk_pool *p, const struct fby_io *io);
/* Only the destage work calls this, and calls fbk_origin_send before it does anything else. */
void fbk_origin_submit(struct fbk_volume *v, const struct fby_io *io);
void fbk_origin_send(struct fbk_pool *p);
void fbk_origin_wait_idle(struct fbk_volume *v);
/* Whether the origin is as large as the volume, and some block at its end can be read.  -EINTR:
 * the caller got a signal.
 */
int fbk_origin_answers(struct fbk_volume *v);
/* Adds memory of the kernel, vmalloc's too, or zeroes (NULL). */
void fbk_bio_add(struct bio *bio, void *buf, u64 bytes);
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
