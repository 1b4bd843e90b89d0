// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume_drain.c - a drain of a volume that somebody waits for: by the command "flush", when a
 * device is suspended, before one is detached.  When it has ended, and whether the origin is
 * complete then, is decided by host/drained.c.
 */
#include <linux/delay.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "fbk.h"

#define LOOK_MS 2u	/* between two looks */
#define LOST_LISTED 64u /* lost blocks that are listed in one call */

/* Relocation moves nothing within the pool while there is a drainer. */
static int drain_begin(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info)
{
	int rc = fbk_pool_enter(v->pool);

	if (rc)
		return rc;
	rc = fby_drained_begin(d, v->pool->engine, v->index, info);
	v->drainers += !rc;
	mutex_unlock(&v->pool->lock);
	return rc < 0 ? fbk_errno(rc) : 0;
}

static void drain_end(struct fbk_volume *v)
{
	mutex_lock(&v->pool->lock);
	if (--v->drainers == 0 && !v->pool->gone)
		fby_volume_drain(v->pool->engine, v->index, false);
	mutex_unlock(&v->pool->lock);
}

/* Destage does nothing any more after a failed assertion. */
int fbk_drain_on(struct fbk_volume *v)
{
	int rc = fbk_pool_enter(v->pool);

	if (rc)
		return rc;
	rc = fby_asserts_hold(&v->pool->asserts) ? fby_volume_drain(v->pool->engine, v->index, true) : -FBY_E_INVARIANT;
	mutex_unlock(&v->pool->lock);
	fbk_kick_destage(v->pool);
	return rc < 0 ? fbk_errno(rc) : 0;
}

void fbk_mode_set(struct fbk_volume *v)
{
	struct fbk_pool *p = v->pool;

	if (!v->started || fbk_pool_enter(p))
		return;
	if (READ_ONCE(v->policy.mode) == FBY_MODE_WRITE_BACK && !v->drainers)
		fby_volume_drain(p->engine, v->index, false);
	mutex_unlock(&p->lock);
	fbk_kick_destage(p);
}

/* Returns DONE, AGAIN, or a negative errno. */
static int drain_look(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info)
{
	int rc = fbk_pool_enter(v->pool);

	if (rc)
		return rc;
	rc = fby_asserts_hold(&v->pool->asserts) ? fby_drained_look(d, info) : -FBY_E_INVARIANT;
	mutex_unlock(&v->pool->lock);
	if (rc == -FBY_E_ORIGIN_IO && d->origin)
		return -d->origin;
	return rc < 0 ? fbk_errno(rc) : rc;
}

/* Waits until all earlier writes are on the origin, or a newer version of their block is in the
 * pool.  It does not wait until the volume is clean, because others may continue to write.
 */
static int wait_drained(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info)
{
	int rc;

	while ((rc = drain_look(v, d, info)) == FBY_AGAIN) {
		fbk_kick_destage(v->pool);
		if (msleep_interruptible(LOOK_MS))
			return -EINTR;
	}
	return rc;
}

/* Writes that bypassed the cache before a crash are on the origin, but may not be durable there. */
static int flush_owed(struct fbk_volume *v)
{
	struct fbk_pool *p = v->pool;
	struct fby_flush ticket = {};
	u32 wake = 0;
	int rc;

	for (;;) {
		rcu_read_lock();
		rc = fbk_usable(p) ? fby_flush_begin(p->engine, v->index, &ticket) : fbk_unusable(p);
		rcu_read_unlock();
		if (rc != FBY_WAIT_FLUSH)
			break;
		if (msleep_interruptible(LOOK_MS))
			return -EINTR;
	}
	if (rc == FBY_ORIGIN) {
		rc = fby_flush_end(p->engine, &ticket, -blkdev_issue_flush(v->origin), &wake);
		fbk_wake(p, wake);
	}
	return rc < 0 ? fbk_errno(rc) : 0;
}

/* Returns DONE, AGAIN, or a negative errno. */
static int look_at_part(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info,
			struct fby_report_block *blocks)
{
	int rc = fbk_pool_enter(v->pool);

	if (rc)
		return rc;
	rc = fby_asserts_hold(&v->pool->asserts) ? fby_drained_lost(d, info, blocks, LOST_LISTED) : -FBY_E_INVARIANT;
	mutex_unlock(&v->pool->lock);
	return rc < 0 ? fbk_errno(rc) : rc;
}

/* Reads all of the media, which takes long.  The pool's lock keeps the media from going.
 * Between two parts it is released, so that others get it.  Returns DONE, or a negative errno.
 */
static int look_for_lost(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info)
{
	struct fby_report_block *blocks = kmalloc_array(LOST_LISTED, sizeof(*blocks), GFP_NOIO);
	int rc;

	if (!blocks)
		return -ENOMEM;
	do {
		rc = signal_pending(get_current()) ? -EINTR : look_at_part(v, d, info, blocks);
		cond_resched();
	} while (rc == FBY_AGAIN);
	kfree(blocks);
	return rc;
}

/* Drains: everything that a drain can write back is on the origin, durable, and the origin
 * answers. */
static int drain(struct fbk_volume *v, struct fby_drain_wait *d, struct fby_volume_info *info, char **text)
{
	int rc;

	do {
		*text = "What the pool holds could not be written to the origin: see the kernel's log for the device that fails; what is cached stays safe in the pool";
		rc = drain_begin(v, d, info);
		if (rc)
			return rc;
		rc = wait_drained(v, d, info);
		drain_end(v);
		if (!rc)
			rc = look_for_lost(v, d, info);
	} while (!rc && d->anew);
	if (rc)
		return rc;
	*text = "The origin cannot be flushed: what was written past the cache before a crash may not be durable there; see the kernel's log for the device that fails, and flush again";
	rc = flush_owed(v);
	if (rc)
		return rc;
	*text = "The origin does not answer, or is smaller than the volume: see the kernel's log for the device that fails";
	return fbk_origin_answers(v);
}

enum fby_completeness fbk_volume_judge(struct fbk_volume *v, struct fby_volume_info *info, bool drained)
{
	struct fby_complete c;

	fby_complete_of(&c, info, drained);
	return fby_complete_judge(&c);
}

static int completeness_errno(enum fby_completeness c)
{
	switch (c) {
	case FBY_IS_WHOLE:
		return 0;
	case FBY_IS_RECORD_DAMAGED:
		return -EBADMSG;
	case FBY_IS_LOST_ENTRIES:
	case FBY_IS_LOST_BLOCKS:
		return -ENODATA; /* all else is on the origin */
	default:
		return -EIO;
	}
}

bool fbk_medium_failed(struct fbk_pool *p)
{
	struct fby_medium_info m;

	fby_medium_info(p->engine, &m);
	return m.grouped && m.failed;
}

/* When the pool's device has failed, nobody writes any more, and all that is in memory goes to the
 * origin once more.
 */
static int wait_rescued(struct fbk_volume *v, struct fby_volume_info *info, char **text)
{
	struct fbk_pool *p = v->pool;

	*text = "The origin fails, and so did the pool's device: see the kernel's log";
	while (fbk_usable(p) && fbk_medium_failed(p) && !fby_volume_clean(p->engine, v->index)) {
		fby_volume_info(p->engine, v->index, info);
		if (info->last_error)
			return -EIO;
		fbk_kick_destage(p);
		if (msleep_interruptible(LOOK_MS))
			return -EINTR;
	}
	return 0;
}

int fbk_volume_drain(struct fbk_volume *v, char **text)
{
	struct fby_volume_info *info = kmalloc(sizeof(*info), GFP_NOIO);
	struct fby_drain_wait d = {};
	enum fby_completeness c;
	int rc;

	*text = "No memory";
	if (!info)
		return -ENOMEM;
	rc = drain(v, &d, info, text);
	if (!rc)
		rc = wait_rescued(v, info, text);
	if (!rc) {
		c = fbk_volume_judge(v, info, true);
		*text = (char *)fby_complete_text(c);
		rc = completeness_errno(c);
	}
	if (rc == -EINTR)
		*text = "Interrupted: what is cached stays safe in the pool";
	if (rc == -ENODEV)
		*text = "The cache device was taken away: what is cached is on it";
	kfree(info);
	return rc;
}

/* --- a pool whose device has failed -------------------------------------------------------- */

/* Nothing may have been written since the device failed. */
static bool is_dead(struct fbk_pool *p)
{
	return fbk_medium_failed(p) || (p->claim.media.device && !fbk_image_answers(&p->claim));
}

bool fbk_memory_alone(struct fbk_volume *v)
{
	return v->started && !fby_volume_clean(v->pool->engine, v->index) && is_dead(v->pool);
}

/* A pool whose device has failed releases nothing. */
u64 fbk_not_at_home(struct fbk_pool *p, u16 index, struct fby_volume_info *info)
{
	if (READ_ONCE(p->at_home[index]) || fby_volume_info(p->engine, index, info) || !(info->used || info->damaged))
		return 0;
	return fby_volume_clean(p->engine, index) ? 0 : info->pages * FBY_PAGE;
}

bool fbk_pool_alone(struct fbk_pool *p, const struct fbk_volume *but, char *text, size_t bytes)
{
	struct fby_volume_info *info;
	bool found = false;
	size_t at = 0;
	u16 i;

	if (!p->claim.media.device || !fbk_usable(p))
		return false;
	info = kzalloc(sizeof(*info), GFP_NOIO | __GFP_NOFAIL);
	for (i = 0; i < FBY_VOLUMES_MAX; i++) {
		u64 n = but && but->index == i ? 0 : fbk_not_at_home(p, i, info);
		const char *name = info->damaged ? "with a damaged record" : info->spec.name;

		if (!n)
			continue;
		if (!found && !is_dead(p))
			break;
		if (text)
			at += scnprintf(text + at, bytes - at, "%s%s (%llu bytes)", found ? ", " : "", name, n);
		else
			pr_err("forebay: %pg: volume %s: %llu bytes that memory alone had are lost: the device has failed\n",
			       p->claim.bdev, name, n);
		found = true;
	}
	kfree(info);
	return found;
}

void fbk_volume_rescue(struct fbk_volume *v)
{
	char *text = "no reason is known";
	int rc;

	if (!fbk_memory_alone(v))
		return;
	pr_warn("forebay: volume %s: the pool's device has failed: what memory alone has is written to the origin now\n",
		v->name);
	rc = fbk_volume_drain(v, &text);
	if (rc)
		pr_err("forebay: volume %s: the origin may lack what memory alone had, which is lost when the pool is closed: error %d: %s\n",
		       v->name, rc, text);
}
