// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * media_blk.c - a block device without DAX as the medium: its image in memory, what is written of
 * that in calls that sleep, and the requests of the engine (core/api/groups.h).
 *
 * The image is read by bios, past the page cache: after a write that failed a page cache shows
 * what the device does not have.  Nothing else has the device open for writing.
 *
 * A request of the engine is sent where it was asked for, mostly by the thread that has appended.
 * Its end, in an interrupt, is only noted.  A work tells the engine, sends what comes next, and
 * ends the requests whose tickets are durable by that.  The device has a queue of its own, and
 * nothing in that waits for an origin.
 */
#include <linux/blk-cgroup.h>
#include <linux/delay.h>
#include <linux/ioprio.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "fbk.h"

#define HEAD_BYTES SZ_1M /* superblock and its copy lie before that */
#define PIECE_BYTES (BIO_MAX_VECS * (u64)PAGE_SIZE) /* read at a time */
#define UNIT_LEAST 4096u
#define SPARE_LEAST SZ_64M /* of memory that an image leaves, besides the engine's index */
#define LATE_NS (NSEC_PER_SEC / 1000) /* a group that nobody waits for is sent after so long */
#define WRITE_OPF (REQ_OP_WRITE | REQ_SYNC | REQ_IDLE) /* writers wait: it is not held back as write-back is */

/* --- requests that are waited for ---------------------------------------------------------- */

static sector_t sector_of(const struct fbk_claim *c, u64 at)
{
	return c->start_sector + (at >> SECTOR_SHIFT);
}

/* What is written is of many, and all wait for it.  So it has neither the group nor the I/O priority of
 * the thread that sends it.
 */
static void as_of_all(struct bio *bio)
{
#ifdef CONFIG_BLK_CGROUP
	bio_associate_blkg_from_css(bio, blkcg_root_css);
#endif
	bio->bi_ioprio = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, IOPRIO_BE_NORM);
}

/* Reads or writes [at, at + bytes) of the medium, piece after piece. */
static int transfer(struct fbk_claim *c, void *base, u64 at, u64 bytes, blk_opf_t opf)
{
	struct bio *bio;
	u64 done, n;
	int rc = 0;

	for (done = 0; done < bytes && !rc; done += n) {
		n = min(bytes - done, PIECE_BYTES);
		bio = bio_alloc(c->bdev, DIV_ROUND_UP(n, PAGE_SIZE), opf, GFP_NOIO);
		as_of_all(bio);
		bio->bi_iter.bi_sector = sector_of(c, at + done);
		fbk_bio_add(bio, base + done, n);
		rc = submit_bio_wait(bio);
		bio_put(bio);
		cond_resched();
	}
	return rc;
}

/* --- how a write becomes durable -------------------------------------------------------------- */

/* A disk that is several, or below which others lie, makes a flush of what it has no FUA for, and
 * the engine would not know of its failure.
 */
static bool has_fua(const struct fbk_claim *c)
{
	return !c->no_fua && bdev_fua(c->bdev) && queue_is_mq(bdev_get_queue(c->bdev)) &&
	       strncmp(c->bdev->bd_disk->disk_name, "dm-", 3);
}

static enum fby_durable durable_of(const struct fbk_claim *c)
{
	if (!bdev_write_cache(c->bdev))
		return FBY_DURABLE_THROUGH;
	return has_fua(c) ? FBY_DURABLE_FUA : FBY_DURABLE_FLUSH;
}

/* Somebody may turn a disk's cache on, or its FUA off. */
static void look_at_cache(struct fbk_claim *c)
{
	u32 now = fby_load(&c->device.durable);

	if (likely(now == FBY_DURABLE_FLUSH || now == durable_of(c) || durable_of(c) == FBY_DURABLE_THROUGH))
		return;
	fby_store(&c->device.durable, (u32)FBY_DURABLE_FLUSH);
	pr_warn("forebay: %pg: the disk's write cache was changed: writes are made durable by flushes from now on\n",
		c->bdev);
}

/* Flushes lock held. */
static int flush_device(struct fbk_claim *c)
{
	int rc = blkdev_issue_flush(c->bdev);

	if (rc && c->unsettled)
		c->doubtful = true;
	return rc;
}

/* The time that a durable write takes at best, by those of the last opening. */
static void took(struct fbk_claim *c, u64 began)
{
	u64 ns = ktime_get_ns() - began;

	if (!c->durable_ns || ns < c->durable_ns)
		c->durable_ns = ns;
}

static int persist_locked(struct fbk_claim *c, u64 at, u64 n, bool more)
{
	blk_opf_t opf = WRITE_OPF | (c->device.durable == FBY_DURABLE_FUA ? REQ_FUA : 0);
	u64 began = ktime_get_ns();
	int rc;

	if (c->doubtful)
		return -EIO;
	rc = transfer(c, c->media.base + at, at, n, opf);
	if (rc)
		return rc;
	if (c->device.durable == FBY_DURABLE_FLUSH) {
		if (more) {
			c->unsettled = true;
			return 0;
		}
		rc = flush_device(c);
		if (rc) {
			fby_fetch_add(&c->device.lost, 1u);
			return rc;
		}
		c->unsettled = false;
	}
	took(c, began);
	return 0;
}

static void tell(struct fbk_claim *c, const char *what, u64 at, int rc)
{
	pr_err_ratelimited("forebay: %pg: %s failed at byte %llu (error %d)\n", c->bdev, what, at, rc);
}

static int persist(struct fby_media *m, u64 at, u64 n, bool more)
{
	struct fbk_claim *c = container_of(m, struct fbk_claim, media);
	int rc;

	look_at_cache(c); /* nothing may have been sent since it was turned on */
	mutex_lock(&c->flushes);
	rc = persist_locked(c, at, n, more);
	mutex_unlock(&c->flushes);
	if (rc)
		tell(c, "a durable write", at, rc);
	return rc;
}

/* --- the image -------------------------------------------------------------------------------- */

/* Finds the pool's size by its superblock, or the copy of that, and that of the engine's index. */
static int pool_size(struct fbk_claim *c, u64 *bytes, u64 *index, char **text)
{
	u64 all = (bdev_nr_sectors(c->bdev) - c->start_sector) << SECTOR_SHIFT;
	struct fby_probe *probe = kzalloc(sizeof(*probe), GFP_KERNEL);
	struct fby_media head = { .size = min_t(u64, all, HEAD_BYTES) & ~(u64)(UNIT_LEAST - 1) };
	int rc = -ENOMEM;

	*text = "No memory to look at the cache device";
	head.base = vmalloc(HEAD_BYTES);
	if (!probe || !head.base)
		goto out;
	*text = "The cache device cannot be read";
	rc = transfer(c, head.base, 0, head.size, REQ_OP_READ);
	if (rc)
		goto out;
	fby_probe(&head, probe);
	*text = "The cache device has no DAX access, as a pmem device in fsdax mode has, and no pool written in groups is on it: make one with forebay create --medium ssd";
	rc = -EOPNOTSUPP;
	if (probe->state != FBY_PROBE_POOL || !probe->sb.unit)
		goto out;
	*text = "The cache device is smaller than its pool: see that all of it is there";
	rc = -EINVAL;
	*bytes = probe->sb.media_size;
	*index = fby_pool_bytes(&probe->sb, FBY_DEFAULT_SLOTS_MAX);
	if (*bytes <= all && !(*bytes % PAGE_SIZE))
		rc = 0;
out:
	vfree(head.base);
	kfree(probe);
	return rc;
}

int fbk_image_load(struct fbk_claim *c, char **text)
{
	u64 bytes, index, spare;
	int rc = pool_size(c, &bytes, &index, text);

	if (rc)
		return rc;
	*text = "Too little memory is free for the image of the pool, which is as large as the pool, and for others beside it";
	spare = index + max(bytes / 16, (u64)SPARE_LEAST);
	if ((bytes + spare) >> PAGE_SHIFT > max(si_mem_available(), 0l))
		return -ENOMEM;
	/* No process is killed for it. */
	c->media.base = vmalloc_huge(bytes, GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL);
	if (!c->media.base)
		return -ENOMEM;
	c->media.size = bytes;
	c->media.device = &c->device;
	c->device.unit = max(UNIT_LEAST, bdev_physical_block_size(c->bdev));
	c->device.durable = durable_of(c);
	c->device.persist = persist;
	mutex_init(&c->flushes);
	*text = "The cache device has blocks that cannot be read: serve the pool (forebay serve), which tells what is lost, or copy what can be read (ddrescue) and attach the copy";
	rc = transfer(c, c->media.base, 0, bytes, REQ_OP_READ);
	if (!rc) {
		/* What was read may be in the device's cache alone, and recovery relies on it. */
		*text = "The cache device cannot be flushed";
		rc = blkdev_issue_flush(c->bdev);
	}
	if (rc)
		fbk_image_free(c);
	return rc;
}

bool fbk_image_answers(struct fbk_claim *c)
{
	void *page = kmalloc(PAGE_SIZE, GFP_NOIO); /* volumes may be suspended */
	int rc = page ? transfer(c, page, 0, PAGE_SIZE, REQ_OP_READ) : 0;

	kfree(page);
	if (rc)
		tell(c, "a read before the end", 0, rc);
	return !rc;
}

void fbk_image_free(struct fbk_claim *c)
{
	vfree(c->media.base);
	mutex_destroy(&c->flushes);
	c->media = (struct fby_media){};
}

/* --- requests of the engine ------------------------------------------------------------------- */

/* Pages of a request: a group of a volume, or the header array of a chunk. */
#define SENT_PAGES 66u

struct fbk_sent {
	struct fbk_pool *pool;
	struct fby_medium_io io;
	int error;
	struct llist_node ended;
	struct list_head free; /* send_lock */
	struct work_struct flush;
	struct bio bio;
	struct bio_vec vecs[SENT_PAGES];
};

static struct fbk_sent *take(struct fbk_pool *p)
{
	struct fbk_sent *s;

	spin_lock(&p->send_lock);
	s = list_first_entry_or_null(&p->send_free, struct fbk_sent, free);
	if (s) {
		list_del(&s->free);
		p->taken++;
	}
	spin_unlock(&p->send_lock);
	return s;
}

static void give(struct fbk_pool *p, struct fbk_sent *s)
{
	spin_lock(&p->send_lock);
	list_add(&s->free, &p->send_free);
	p->taken--;
	spin_unlock(&p->send_lock);
}

/* The engine is told.  Others may be told next, so *wake is only gathered. */
static void end(struct fbk_pool *p, struct fbk_sent *s, u32 *wake)
{
	if (s->error)
		tell(&p->claim, s->io.kind == FBY_MEDIUM_FLUSH ? "a flush" : "a write of a group", s->io.at, s->error);
	fby_medium_end(p->engine, &s->io, s->error, wake);
	give(p, s);
}

/* A flush and the report of its end are one step for all others (core/medium/device.h). */
static void flush_device_work(struct work_struct *work)
{
	struct fbk_sent *s = container_of(work, struct fbk_sent, flush);
	struct fbk_pool *p = s->pool;
	u32 wake = 0;

	mutex_lock(&p->claim.flushes);
	s->error = flush_device(&p->claim);
	end(p, s, &wake);
	mutex_unlock(&p->claim.flushes);
	fbk_wake(p, wake);
	fbk_kick_sender(p);
}

static void write_end(struct bio *bio)
{
	struct fbk_sent *s = bio->bi_private;
	struct fbk_pool *p = s->pool;

	s->error = blk_status_to_errno(bio->bi_status);
	bio_uninit(bio);
	rcu_read_lock(); /* the pool stays, though the work may have found the request before this ends */
	llist_add(&s->ended, &p->send_ended);
	fbk_kick_sender(p);
	rcu_read_unlock();
}

/* The thread may be in a bio of a volume.  Then the block layer would keep this one until all those
 * of the thread are done, and one of them may wait for a request that waits for this one.
 */
static void submit_now(struct bio *bio)
{
	struct bio_list *outer = get_current()->bio_list;

	get_current()->bio_list = NULL;
	submit_bio(bio);
	get_current()->bio_list = outer;
}

static void submit(struct fbk_pool *p, struct fbk_sent *s)
{
	void *at = p->claim.media.base + s->io.at;
	blk_opf_t opf = WRITE_OPF;

	if (s->io.kind == FBY_MEDIUM_FLUSH) {
		queue_work(p->send_wq, &s->flush);
		return;
	}
	if (s->io.flags & FBY_MEDIUM_FUA)
		opf |= REQ_FUA;
	bio_init(&s->bio, p->claim.bdev, s->vecs, SENT_PAGES, opf);
	as_of_all(&s->bio);
	s->bio.bi_iter.bi_sector = sector_of(&p->claim, s->io.at);
	s->bio.bi_private = s;
	s->bio.bi_end_io = write_end;
	if (WARN_ON_ONCE(s->io.n > SENT_PAGES * PAGE_SIZE)) {
		bio_io_error(&s->bio);
		return;
	}
	flush_kernel_vmap_range(at, s->io.n);
	fbk_bio_add(&s->bio, at, s->io.n);
	submit_now(&s->bio);
}

static void tell_failed(struct fbk_pool *p)
{
	if (xchg(&p->failure_told, true))
		return;
	fbk_kick_sender(p);
	pr_err("forebay: %pg: the pool has failed and takes nothing more: all that was acknowledged as durable is in memory, and goes from there to the origins; drain its volumes (flush) before the machine stops, and replace the device\n",
	       p->claim.bdev);
}

void fbk_send(struct fbk_pool *p)
{
	struct fbk_sent *s;
	u32 wake = 0;
	int rc = FBY_DONE;

	if (!p->sent_all)
		return;
	look_at_cache(&p->claim);
	while (rc == FBY_DONE && fby_asserts_hold(&p->asserts)) {
		s = take(p);
		if (!s) { /* others ask, or all are in flight */
			fbk_send_later(p);
			break;
		}
		rc = fby_medium_next(p->engine, &s->io, &wake);
		if (rc == FBY_DONE)
			submit(p, s);
		else
			give(p, s);
	}
	if (rc == -FBY_E_MEDIUM)
		tell_failed(p);
	if (rc == FBY_WAIT_SLOT) /* whoever has it sends, or this does */
		fbk_send_later(p);
	if (wake)
		fbk_wake(p, wake);
}

void fbk_kick_sender(struct fbk_pool *p)
{
	if (p->sent_all)
		queue_work(p->send_wq, &p->sent);
}

void fbk_send_later(struct fbk_pool *p)
{
	if (p->sent_all && !READ_ONCE(p->closing) && !xchg(&p->send_armed, true))
		hrtimer_start(&p->send_timer, ns_to_ktime(LATE_NS), HRTIMER_MODE_REL_SOFT);
}

static enum hrtimer_restart send_timer(struct hrtimer *timer)
{
	struct fbk_pool *p = container_of(timer, struct fbk_pool, send_timer);

	xchg(&p->send_armed, false); /* what is appended from now on arms it again */
	fbk_kick_sender(p);
	return HRTIMER_NORESTART;
}

static void sent_work(struct work_struct *work)
{
	struct fbk_pool *p = container_of(work, struct fbk_pool, sent);
	struct llist_node *ended = llist_reverse_order(llist_del_all(&p->send_ended));
	struct fbk_sent *s, *next;
	u32 wake = 0;

	look_at_cache(&p->claim); /* first: what ends may be in a cache that was turned on */
	llist_for_each_entry_safe(s, next, ended, ended)
		end(p, s, &wake);
	fbk_send(p);
	fbk_tickets_ended(p);
	if (wake)
		fbk_wake(p, wake);
}

int fbk_sender_init(struct fbk_pool *p, u32 nvolumes)
{
	u32 i, n = 4 * nvolumes + 1; /* a group and three parts of a stream; a flush */
	struct fbk_sent *all;

	if (!p->claim.media.device)
		return 0;
	all = kvcalloc(n, sizeof(*all), GFP_KERNEL);
	p->send_wq = alloc_workqueue("forebay_send", WQ_MEM_RECLAIM | WQ_UNBOUND | WQ_HIGHPRI, 0);
	if (!all || !p->send_wq) {
		if (p->send_wq)
			destroy_workqueue(p->send_wq);
		kvfree(all);
		return -ENOMEM;
	}
	for (i = 0; i < n; i++) {
		all[i].pool = p;
		INIT_WORK(&all[i].flush, flush_device_work);
		list_add(&all[i].free, &p->send_free);
	}
	p->sent_all = all;
	return 0;
}

void fbk_sender_exit(struct fbk_pool *p)
{
	if (!p->sent_all)
		return;
	do { /* a work may have looked once more */
		while (READ_ONCE(p->taken))
			usleep_range(200, 1000);
		flush_workqueue(p->send_wq);
	} while (READ_ONCE(p->taken));
	synchronize_rcu(); /* write_end */
	hrtimer_cancel(&p->send_timer); /* and the pool is closing */
	destroy_workqueue(p->send_wq);
	kvfree(p->sent_all);
	p->sent_all = NULL;
}

void fbk_sender_prepare(struct fbk_pool *p)
{
	spin_lock_init(&p->send_lock);
	INIT_LIST_HEAD(&p->send_free);
	init_llist_head(&p->send_ended);
	INIT_WORK(&p->sent, sent_work);
	fbk_timer_init(&p->send_timer, send_timer, HRTIMER_MODE_REL_SOFT);
}
