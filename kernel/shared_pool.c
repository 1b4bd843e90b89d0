// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * shared_pool.c - pools, by cache device: opened and recovered for the first
 * device that names them, closed after the last.  Volumes start and stop as
 * their devices resume and suspend; one work per pool drives destage.
 */
#include <linux/delay.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uuid.h>
#include <linux/vmalloc.h>

#include "fbk.h"

#define STEPS_AT_ONCE 1024u /* steps of destage before others get the CPU */
#define RECOVER_STEP 16u    /* chunks */
#define RECOVER_HELPERS 15u /* more threads would only wait for the media */

static DEFINE_MUTEX(fbk_pools_lock);
static LIST_HEAD(fbk_pools);

int fbk_errno(int error)
{
	return error < 0 ? -fby_error_errno(error) : error;
}

static int engine_error(int error, char **text)
{
	*text = (char *)fby_error_message(error);
	return fbk_errno(error);
}

/* --- destage ------------------------------------------------------------------ */

void fbk_kick_destage(struct fbk_pool *p)
{
	if (READ_ONCE(p->closing))
		return;
	mod_delayed_work(p->wq, &p->destage, 0);
}

/* The work of each volume finds out whether its bios wait: it may be working on them. */
static void wake_volumes(struct fbk_pool *p, bool space, bool flush)
{
	struct fbk_volume *v;

	spin_lock(&p->started_lock);
	list_for_each_entry(v, &p->started, list) {
		if (space)
			mod_delayed_work(v->wq, &v->retry, 0);
		if (flush)
			queue_work(v->wq, &v->flush);
	}
	spin_unlock(&p->started_lock);
}

void fbk_wake(struct fbk_pool *p, u32 wake)
{
	if (wake & FBY_WAKE_DESTAGE)
		fbk_kick_destage(p);
	if (wake & FBY_WAKE_SPACE)
		wake_volumes(p, true, false);
	if (wake & FBY_WAKE_FLUSH)
		wake_volumes(p, false, true);
}

int fbk_pool_enter(struct fbk_pool *p)
{
	mutex_lock(&p->lock);
	if (!p->gone)
		return 0;
	mutex_unlock(&p->lock);
	return -ENODEV;
}

/* The cache device is being unbound.  After this returns, nobody touches it any more. */
static void pool_gone(struct fbk_claim *c)
{
	struct fbk_pool *p = container_of(c, struct fbk_pool, claim);

	WRITE_ONCE(p->gone, true);
	synchronize_rcu(); /* reads and writes */
	mutex_lock(&p->lock); /* a start, destage */
	mutex_unlock(&p->lock);
	pr_err("forebay: %pg: the cache device was taken away: its volumes answer with errors; what they hold is on it\n",
	       c->bdev);
	wake_volumes(p, true, true);
}

/* If new data bypasses the cache, the pool's content is drained again and again. */
static void rearm_drains(struct fbk_pool *p)
{
	u32 i;

	for (i = 0; i < FBY_VOLUMES_MAX; i++)
		if (p->volume[i] && READ_ONCE(p->volume[i]->policy.mode) != FBY_MODE_WRITE_BACK &&
		    !fby_volume_clean(p->engine, i))
			fby_volume_drain(p->engine, i, true);
}

/* Returns an error if the engine may not be called any more. */
static int destage_step(struct fbk_pool *p, u64 *next)
{
	struct fbk_volume *v = NULL;
	struct fby_io io;
	u32 wake = 0;
	int rc;

	if (fbk_pool_enter(p))
		return -FBY_E_LOST;
	/* The lock is held, because volumes are stopped without the engine after a failed
	 * assertion.
	 */
	rc = fby_asserts_hold(&p->asserts) ? fby_destage_step(p->engine, ktime_get_ns(), &io, next, &wake) :
					     -FBY_E_INVARIANT;
	if (rc == FBY_ORIGIN)
		v = fbk_origin_expect(p, &io);
	mutex_unlock(&p->lock);
	fbk_wake(p, wake & ~(u32)FBY_WAKE_DESTAGE);
	if (v)
		fbk_origin_submit(v, &io);
	return rc;
}

static void destage_work(struct work_struct *work)
{
	struct fbk_pool *p = container_of(to_delayed_work(work), struct fbk_pool, destage);
	u64 now, next = 0;
	u32 steps;
	int rc = FBY_AGAIN;

	if (fbk_pool_enter(p))
		return;
	rearm_drains(p);
	mutex_unlock(&p->lock);
	for (steps = 0; steps < STEPS_AT_ONCE && rc > FBY_DONE; steps++) {
		rc = destage_step(p, &next);
		if (rc != FBY_ORIGIN) {
			fbk_origin_send(p);
			cond_resched();
		}
	}
	fbk_origin_send(p);
	fbk_send(p);
	if (rc < 0) {
		/* Nobody else will: whoever waits ends with an error. */
		wake_volumes(p, true, true);
		fbk_kick_sender(p);
		return;
	}
	now = ktime_get_ns();
	/* This has no effect if a completion has already queued the work. */
	queue_delayed_work(p->wq, &p->destage,
			   rc == FBY_DONE && next > now ? nsecs_to_jiffies(min_t(u64, next - now, NSEC_PER_SEC)) + 1 :
							  0);
}

/* --- open and close ------------------------------------------------------------ */

static int make_pool(struct fbk_pool *p, char **text)
{
	struct fby_format f = {};
	int rc;

	*text = "The cache device is not blank: zero its start, or make the pool with forebay create";
	if (!fbk_claim_blank(&p->claim))
		return -EEXIST;
	generate_random_uuid(f.uuid);
	f.salt = get_random_u32() | 1;
	rc = fby_format(&p->claim.media, &f);
	return rc < 0 ? engine_error(rc, text) : 0;
}

/* Refuses a pool that is open by another name of its device: each opening would overwrite what the
 * other acknowledged.  The caller holds the pools lock, which guards the text's memory, too.
 */
static int check_single(const struct fbk_pool *p, char **text)
{
	static char twice[200];
	struct fbk_pool *other;

	list_for_each_entry(other, &fbk_pools, list) {
		if (memcmp(other->uuid, p->uuid, sizeof(p->uuid)))
			continue;
		snprintf(twice, sizeof(twice),
			 "The pool is in use already, by the device %s: the two are names of one disk, or one is a copy; detach the volumes of %s first",
			 other->name, other->name);
		*text = twice;
		return -EBUSY;
	}
	return 0;
}

static int probe_pool(struct fbk_pool *p, const struct fbk_open *o, u64 *bytes, char **text)
{
	struct fby_probe *probe = kzalloc(sizeof(*probe), GFP_KERNEL);
	int rc = 0;

	if (!probe)
		return -ENOMEM;
	fby_probe(&p->claim.media, probe);
	if (probe->state == FBY_PROBE_BLANK && o->create) {
		rc = make_pool(p, text);
		if (!rc)
			fby_probe(&p->claim.media, probe);
	}
	if (!rc && probe->error)
		rc = engine_error(probe->error, text);
	memcpy(p->uuid, probe->sb.uuid, sizeof(p->uuid));
	if (!rc)
		rc = check_single(p, text);
	if (!rc)
		*bytes = fby_pool_bytes(&probe->sb, o->options.nslots);
	kfree(probe);
	return rc;
}

static void report_recovery(struct fbk_pool *p, u64 began)
{
	const struct fby_recovery_report *r = &p->report;
	u64 ms = (ktime_get_ns() - began) >> 20;

	pr_info("forebay: %pg: %s, %llu entries of %llu blocks in %llu chunks, about %llu ms\n", p->claim.bdev,
		r->clean ? "closed cleanly" : "recovered", r->entries, r->blocks, r->chunks, ms);
	if (r->dropped || r->lines_repaired || r->chunk_headers_lost)
		pr_info("forebay: %pg: %llu torn writes dropped, %llu headers repaired, %llu chunk headers lost\n",
			p->claim.bdev, r->dropped, r->lines_repaired, r->chunk_headers_lost);
	if (r->holes || r->damaged)
		pr_warn("forebay: %pg: %llu entries lost, %llu damaged\n", p->claim.bdev, r->holes, r->damaged);
}

/* Several works read the chunks' header arrays.  Each work takes the next few chunks until none
 * is left.
 */
struct recovery {
	struct fby_pool *engine;
	u32 nchunks;
	atomic_t next; /* next chunk */
	int error;     /* the last error of the engine */
};

struct recovery_work {
	struct work_struct work;
	struct recovery *all;
};

static void recover_chunks(struct recovery *r)
{
	u32 at;
	int rc;

	while (!READ_ONCE(r->error)) {
		at = atomic_fetch_add(RECOVER_STEP, &r->next);
		if (at >= r->nchunks)
			return;
		rc = fby_recover_chunks(r->engine, at, min(RECOVER_STEP, r->nchunks - at));
		if (rc < 0)
			WRITE_ONCE(r->error, rc);
		cond_resched();
	}
}

static void recovery_work(struct work_struct *work)
{
	recover_chunks(container_of(work, struct recovery_work, work)->all);
}

/* Uses as many helpers as there are other CPUs, or none if there is no memory. */
static int recover_pool(struct fbk_pool *p, u32 nchunks, char **text)
{
	struct recovery r = { .engine = p->engine, .nchunks = nchunks };
	u32 i, n = min3(num_online_cpus() - 1, RECOVER_HELPERS, nchunks / RECOVER_STEP);
	struct recovery_work *helper = kcalloc(n, sizeof(*helper), GFP_KERNEL);
	u64 began = ktime_get_ns();
	int rc;

	if (!helper)
		n = 0;
	for (i = 0; i < n; i++) {
		helper[i].all = &r;
		INIT_WORK(&helper[i].work, recovery_work);
		queue_work(system_unbound_wq, &helper[i].work);
	}
	recover_chunks(&r);
	for (i = 0; i < n; i++)
		flush_work(&helper[i].work);
	kfree(helper);
	rc = r.error ? r.error : fby_recover_finish(p->engine, &p->report);
	if (rc == -FBY_E_CHUNK_KIND || rc == -FBY_E_OWNER_KIND)
		pr_err("forebay: %pg: %s %u is of kind %u\n", p->claim.bdev, rc == -FBY_E_CHUNK_KIND ? "chunk" : "record",
		       p->report.unknown_at, p->report.unknown_kind);
	if (rc < 0)
		return engine_error(rc, text);
	report_recovery(p, began);
	return 0;
}

static void free_engine(struct fbk_pool *p)
{
	fby_linux_pool_memory(&p->asserts, NULL, 0);
	vfree(p->mem);
}

static int open_engine(struct fbk_pool *p, const struct fbk_open *o, char **text)
{
	struct fby_pool_info *info;
	u32 nchunks;
	u64 bytes;
	int rc = probe_pool(p, o, &bytes, text);

	if (rc)
		return rc;
	*text = "No memory for the pool's index";
	p->mem = vmalloc_huge(bytes, GFP_KERNEL | __GFP_ZERO);
	info = kmalloc(sizeof(*info), GFP_KERNEL);
	rc = -ENOMEM;
	if (!p->mem || !info)
		goto fail;
	fby_linux_pool_memory(&p->asserts, p->mem, bytes);
	rc = fby_pool_open(&p->engine, p->mem, bytes, &p->claim.media, &o->options);
	if (rc < 0) {
		rc = engine_error(rc, text);
		goto fail;
	}
	fby_pool_info(p->engine, info);
	nchunks = info->sb.nchunks;
	rc = recover_pool(p, nchunks, text);
	if (rc)
		goto fail;
	*text = "No memory for requests to the cache device";
	rc = fbk_sender_init(p, info->sb.nvolumes);
	if (rc)
		goto fail;
	kfree(info);
	return 0;
fail:
	kfree(info);
	free_engine(p);
	return rc;
}

static void pool_free(struct fbk_pool *p)
{
	fby_linux_pool_remove(&p->asserts);
	fbk_release(&p->claim);
	mutex_destroy(&p->lock);
	kfree(p);
}

/* BUSY, or a wait: in a pool written in groups, not everything is on the device yet. */
static int close_step(struct fbk_pool *p)
{
	int rc = fby_asserts_hold(&p->asserts) ? fby_pool_close(p->engine) : -FBY_E_INVARIANT;

	mutex_unlock(&p->lock);
	if ((rc != -FBY_E_BUSY && rc <= FBY_DONE) || !p->sent_all)
		return rc;
	fbk_send(p);
	usleep_range(200, 1000);
	return FBY_AGAIN;
}

static void close_engine(struct fbk_pool *p)
{
	const char *why = NULL;
	int rc = FBY_AGAIN;

	while (rc == FBY_AGAIN && !why) {
		if (fbk_pool_enter(p))
			why = "the device was taken away";
		else
			rc = close_step(p);
	}
	if (rc < 0)
		why = fby_error_message(rc);
	if (why) {
		pr_warn("forebay: %pg: not closed cleanly: %s\n", p->claim.bdev, why);
		fbk_pool_alone(p, NULL, NULL, 0);
	}
	fbk_sender_exit(p);
	free_engine(p);
}

static struct fbk_pool *pool_open(dev_t dev, const struct fbk_open *o, char **text)
{
	struct fbk_pool *p = kzalloc(sizeof(*p), GFP_KERNEL);
	unsigned int noio;
	int rc;

	*text = "No memory for the pool";
	if (!p)
		return ERR_PTR(-ENOMEM);
	p->dev = dev;
	p->refs = 1;
	p->leaving = 1;
	mutex_init(&p->lock);
	spin_lock_init(&p->started_lock);
	spin_lock_init(&p->late_lock);
	INIT_LIST_HEAD(&p->late);
	INIT_LIST_HEAD(&p->started);
	INIT_DELAYED_WORK(&p->destage, destage_work);
	fbk_sender_prepare(p);
	fbk_timer_init(&p->late_timer, fbk_late_timer, HRTIMER_MODE_ABS_SOFT);
	p->claim.gone = pool_gone;
	p->claim.no_fua = o->no_fua;
	rc = fbk_claim(&p->claim, dev, o->start_sector, text);
	if (rc) {
		mutex_destroy(&p->lock);
		kfree(p);
		return ERR_PTR(rc);
	}
	snprintf(p->name, sizeof(p->name), "%pg", p->claim.bdev);
	p->asserts.name = p->name;
	p->asserts.media = &p->claim.media;
	fby_linux_pool_add(&p->asserts);
	*text = "The cache device was taken away";
	rc = fbk_pool_enter(p);
	if (!rc) {
		noio = memalloc_noio_save(); /* bios of other pools take a lock of this kind */
		rc = open_engine(p, o, text);
		memalloc_noio_restore(noio);
		mutex_unlock(&p->lock);
	}
	if (rc) {
		pool_free(p);
		return ERR_PTR(rc);
	}
	p->wq = alloc_workqueue("forebay", WQ_MEM_RECLAIM | WQ_UNBOUND, 1);
	if (!p->wq) {
		p->closing = true;
		close_engine(p);
		pool_free(p);
		return ERR_PTR(-ENOMEM);
	}
	fbk_kick_destage(p);
	return p;
}

static void pool_close(struct fbk_pool *p)
{
	WRITE_ONCE(p->closing, true);
	if (p->sent_all)
		flush_workqueue(p->send_wq); /* whatever runs there next sees that */
	cancel_delayed_work_sync(&p->destage);
	destroy_workqueue(p->wq);
	hrtimer_cancel(&p->late_timer);
	close_engine(p);
	pool_free(p);
}

struct fbk_pool *fbk_pool_get(dev_t dev, const struct fbk_open *o, char **text)
{
	struct fbk_pool *p;

	mutex_lock(&fbk_pools_lock);
	list_for_each_entry(p, &fbk_pools, list) {
		if (p->dev != dev)
			continue;
		*text = "The cache device was taken away";
		if (READ_ONCE(p->gone)) {
			p = ERR_PTR(-ENODEV);
			goto out;
		}
		*text = "The pool is open with another start_sector";
		if (p->claim.start_sector != o->start_sector) {
			p = ERR_PTR(-EINVAL);
			goto out;
		}
		p->refs++;
		p->leaving++;
		goto out;
	}
	p = pool_open(dev, o, text);
	if (!IS_ERR(p))
		list_add(&p->list, &fbk_pools);
out:
	mutex_unlock(&fbk_pools_lock);
	return p;
}

bool fbk_pool_leave(struct fbk_pool *p)
{
	bool last;

	mutex_lock(&fbk_pools_lock);
	last = ++p->leaving == p->refs;
	mutex_unlock(&fbk_pools_lock);
	return last;
}

void fbk_pool_stay(struct fbk_pool *p)
{
	mutex_lock(&fbk_pools_lock);
	p->leaving--;
	mutex_unlock(&fbk_pools_lock);
}

void fbk_pool_put(struct fbk_pool *p, bool leaving)
{
	mutex_lock(&fbk_pools_lock);
	p->leaving -= leaving;
	if (--p->refs == 0) {
		list_del(&p->list);
		pool_close(p);
	}
	mutex_unlock(&fbk_pools_lock);
}

/* --- volumes --------------------------------------------------------------------- */

/* Whether both copies of a volume's record are damaged.  Such a volume has no name any more. */
static bool has_damaged_volume(struct fby_pool *engine)
{
	struct fby_volume_info *info = kzalloc(sizeof(*info), GFP_KERNEL);
	bool found = !info;
	u16 i;

	for (i = 0; !found && i < FBY_VOLUMES_MAX; i++) /* a log has no such info, and others may follow it */
		found = !fby_volume_info(engine, i, info) && info->damaged;
	kfree(info);
	return found;
}

static int add_volume(struct fbk_volume *v, const char *origin_id, char **text)
{
	struct fby_volume_spec *s;
	int rc;

	/* The damaged record may be this volume's.  An empty volume in its place would let
	 * older data show.
	 */
	*text = "No volume has that name, but the record of one is damaged, which may be it; forebay check tells more";
	if (has_damaged_volume(v->pool->engine))
		return -EBADMSG;
	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return -ENOMEM;
	strscpy(s->name, v->name, sizeof(s->name));
	rc = fbk_identity_of(v, origin_id, s->identity, sizeof(s->identity), text);
	if (rc) {
		kfree(s);
		return rc;
	}
	generate_random_uuid(s->uuid);
	s->origin_sectors = v->sectors;
	s->block_size = bdev_logical_block_size(v->origin);
	*text = "The cache device was taken away";
	rc = fbk_pool_enter(v->pool);
	if (!rc) {
		rc = fby_volume_add(v->pool->engine, s, &v->index);
		mutex_unlock(&v->pool->lock);
	}
	kfree(s);
	if (rc == -ENODEV)
		return rc;
	return rc < 0 ? engine_error(rc, text) : 0;
}

/* Called when all checks have passed: cached data then goes to this origin, and to no other. */
static int rebind_volume(struct fbk_volume *v, const char *origin_id, char **text)
{
	int rc = fbk_identity_of(v, origin_id, v->identity, sizeof(v->identity), text);

	if (rc)
		return rc;
	*text = "The cache device was taken away";
	rc = fbk_pool_enter(v->pool);
	if (rc)
		return rc;
	rc = fby_volume_ready(v->pool->engine, v->index, v->holes);
	if (!rc)
		rc = fby_volume_rebind(v->pool->engine, v->index, v->identity, v->sectors);
	mutex_unlock(&v->pool->lock);
	return rc < 0 ? engine_error(rc, text) : 0;
}

/* By the writes that the opening of the pool made durable. */
static bool is_slow(const struct fbk_claim *c)
{
	return !c->durable_ns || c->durable_ns >= FBY_DEFAULT_SLOW_DURABLE_NS;
}

/* Whether the devices say that they have a volatile cache. */
static void volume_durable(struct fbk_volume *v)
{
	const struct fbk_claim *c = &v->pool->claim;

	v->tickets = c->media.device;
	v->later = v->tickets && (v->durable == FBK_DURABLE_FLUSH ||
				  (v->durable == FBK_DURABLE_AUTO && !v->no_cache && is_slow(c)));
	v->policy.durable = !v->later;
}

/* Refuses a volume of another device.  A new table may not say that there is a cache where the
 * present one says that there is none: devices above have asked, and send no flushes.
 */
static int check_device(struct fbk_volume *v, char **text)
{
	struct fbk_pool *p = v->pool;
	struct fbk_volume *other;
	int rc;

	*text = "The volume is in use by another device";
	mutex_lock(&p->lock);
	other = p->volume[v->index];
	rc = other && other->owner != v->owner ? -EBUSY : 0;
	mutex_unlock(&p->lock);
	if (rc || !v->later || !v->no_cache)
		return rc;
	*text = "The device says that it has no volatile cache, and devices above rely on that: remove it, and make it again for durable flush";
	return -EINVAL;
}

int fbk_volume_prepare(struct fbk_volume *v, const char *origin_id, bool create, bool accept_changed, char **text)
{
	struct fby_pool *engine = v->pool->engine;
	struct fby_volume_info *info;
	bool renewed = false;
	int rc = fby_volume_find(engine, v->name, &v->index);

	if (rc == -FBY_E_NO_VOLUME && create)
		rc = add_volume(v, origin_id, text);
	else if (rc < 0)
		rc = engine_error(rc, text);
	if (rc)
		return rc;
	volume_durable(v);
	rc = check_device(v, text);
	if (rc)
		return rc;
	*text = "No memory for the volume";
	info = kzalloc(sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	fby_volume_info(engine, v->index, info);
	v->block_size = info->spec.block_size;
	rc = fbk_check_origin(v, info, origin_id, accept_changed, &renewed, text);
	if (!rc)
		rc = fbk_check_mark(v, info, text);
	kfree(info);
	if (rc)
		return rc;
	*text = "No memory for the volume's buffers";
	rc = fbk_io_volume_init(v);
	if (rc)
		return rc;
	v->mem_bytes = fby_volume_bytes(engine, v->round_pages, v->nrequests, v->buffer_bytes);
	v->mem = vzalloc(v->mem_bytes);
	if (!v->mem)
		return -ENOMEM;
	return renewed ? rebind_volume(v, origin_id, text) : 0;
}

void fbk_volume_free(struct fbk_volume *v)
{
	fbk_volume_stop(v);
	fbk_io_volume_exit(v);
	vfree(v->mem);
}

/* Another host of the pool may have sent writes past the cache and crashed.  The
 * devices here announce no volatile cache, so no flush will come later.  begun: by
 * fby_flush_begin, before destage could flush.
 */
static void flush_once(struct fbk_volume *v, struct fby_flush *ticket, int begun)
{
	int rc = begun;
	u32 wake = 0;

	if (rc == FBY_ORIGIN) {
		rc = fby_flush_end(v->pool->engine, ticket, -blkdev_issue_flush(v->origin), &wake);
		fbk_wake(v->pool, wake);
	}
	if (rc)
		pr_warn("forebay: volume %s: the origin cannot be flushed (error %d): what was written past the cache before a crash may not be durable yet\n",
			v->name, fbk_errno(rc));
}

/* The engine refuses the attach if another device has accepted another origin for the volume
 * since it was prepared.  A table may wait for its resume for any time.
 */
int fbk_volume_start(struct fbk_volume *v)
{
	struct fbk_pool *p = v->pool;
	struct fby_attach a = {
		.origin_sectors = v->sectors,
		.identity = v->identity,
		.holes = v->holes,
		.mem = v->mem,
		.mem_bytes = v->mem_bytes,
		.round_pages = v->round_pages,
		.nrequests = v->nrequests,
		.buffer_bytes = v->buffer_bytes,
	};
	struct fby_flush ticket = {};
	int rc, flush = FBY_DONE;

	if (v->started)
		return 0;
	v->stopping = false;
	v->requeue = false;
	memset(v->mem, 0, v->mem_bytes);
	rc = fbk_pool_enter(p);
	if (rc)
		return rc;
	rc = fby_volume_attach(p->engine, v->index, &a);
	if (!rc) {
		p->volume[v->index] = v;
		WRITE_ONCE(p->at_home[v->index], false);
		flush = fby_flush_begin(p->engine, v->index, &ticket);
	}
	mutex_unlock(&p->lock);
	if (rc) {
		pr_err("forebay: volume %s: %s\n", v->name, fby_error_message(rc));
		return fbk_errno(rc);
	}
	v->started = true;
	spin_lock(&p->started_lock);
	list_add_tail(&v->list, &p->started);
	spin_unlock(&p->started_lock);
	flush_once(v, &ticket, flush);
	fbk_kick_destage(p);
	return 0;
}

/* Whether the volume is still attached, so that the detach is called again.  Requests are in
 * flight.  In a grouped pool, appended data may not be durable yet, or the slot of the stream is
 * held.
 */
static bool detach_waits(int rc)
{
	return rc == -FBY_E_BUSY || rc == FBY_WAIT_TICKET || rc == FBY_WAIT_SLOT;
}

/* Stops a volume.  Destage's requests in flight end and later ones fail, so the round is
 * abandoned.  Nothing is lost: the pool still holds everything.
 */
void fbk_volume_stop(struct fbk_volume *v)
{
	struct fbk_pool *p = v->pool;
	bool home;
	int rc;

	if (!v->started)
		return;
	WRITE_ONCE(v->stopping, true);
	for (;;) {
		mutex_lock(&p->lock);
		home = !p->gone && fbk_medium_failed(p) && fby_volume_clean(p->engine, v->index);
		WRITE_ONCE(p->at_home[v->index], home);
		rc = p->gone ? 0 : fby_volume_detach(p->engine, v->index);
		if (!detach_waits(rc) || !fby_asserts_hold(&p->asserts))
			p->volume[v->index] = NULL;
		mutex_unlock(&p->lock);
		if (!detach_waits(rc) || (!fby_asserts_hold(&p->asserts) && !atomic_read(&v->in_flight)))
			break;
		fbk_kick_destage(p);
		fbk_send(p);
		usleep_range(500, 2000);
	}
	fbk_origin_wait_idle(v);
	spin_lock(&p->started_lock);
	list_del(&v->list);
	spin_unlock(&p->started_lock);
	cancel_delayed_work_sync(&v->retry);
	cancel_work_sync(&v->flush);
	v->started = false;
}
