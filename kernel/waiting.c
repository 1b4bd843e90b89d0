// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * waiting.c - writes that the engine told to wait, before or after.
 *
 * Each volume has its own lists and its own work: what waits for one origin holds
 * up no other volume.
 *
 * Whoever holds a block or a slot never sleeps with it nor loses its CPU, so those
 * are tried again at once by a work, or soon where that gets nowhere: what goes past
 * the cache holds blocks for as long as the origin takes.  Space comes from destage, or from a write that
 * empties a chunk; the engine tells by a wake mask.  No wake is lost: a bio is
 * put on its list and the work queued, the work announces that it waits and
 * only then tries, and a wake after that queues the work again.  The timer is
 * only a safety net.
 */
#include "fbk.h"

#define SPACE_RETRY nsecs_to_jiffies(FBY_DEFAULT_SPACE_RETRY_NS)
#define AT_ONCE 8u /* tries in a row that get nowhere, before there is a jiffy between them */

static void relist(struct fbk_io *io, enum fby_decision why)
{
	struct fbk_volume *v = io->volume;

	spin_lock(&v->wait_lock);
	list_add_tail(&io->node, why == FBY_WAIT_SPACE ? &v->wait_space : &v->wait_busy);
	spin_unlock(&v->wait_lock);
}

void fbk_wait(struct fbk_io *io, enum fby_decision why)
{
	struct fbk_volume *v = io->volume;

	relist(io, why);
	mod_delayed_work(v->wq, &v->retry, 0);
	if (why == FBY_WAIT_SPACE)
		fbk_kick_destage(v->pool);
}

/* False: it waits again. */
static bool retry(struct fbk_io *io, int *decision)
{
	if (READ_ONCE(io->volume->requeue)) {
		fbk_end_status(io, BLK_STS_DM_REQUEUE);
		return true;
	}
	*decision = fbk_write_more(io);
	if (*decision == FBY_WAIT_SPACE && READ_ONCE(io->volume->policy.full_bypasses) && !fbk_write_past(io, 1))
		return true;
	if (*decision > 0)
		return false;
	if (*decision)
		fbk_end(io, *decision);
	else
		fbk_end_written(io);
	return true;
}

/* Those that wait for a block or a slot, once each.  True: some still do. */
static bool retry_busy(struct fbk_volume *v)
{
	struct fbk_io *io, *next;
	bool again = false, any = false;
	LIST_HEAD(busy);
	int decision;

	spin_lock(&v->wait_lock);
	list_splice_init(&v->wait_busy, &busy);
	spin_unlock(&v->wait_lock);
	list_for_each_entry_safe(io, next, &busy, node) {
		list_del(&io->node);
		if (retry(io, &decision)) {
			any = true;
		} else {
			relist(io, decision);
			again = true;
		}
		cond_resched();
	}
	v->busy_tries = any || !again ? 0 : v->busy_tries + 1;
	return again;
}

/* Those that wait for space stay in order, and behind the first that finds none. */
static int retry_space(struct fbk_volume *v)
{
	int decision = FBY_DONE;
	struct fbk_io *io;

	for (;;) {
		spin_lock(&v->wait_lock);
		io = list_first_entry_or_null(&v->wait_space, struct fbk_io, node);
		if (io)
			list_del(&io->node);
		spin_unlock(&v->wait_lock);
		if (!io)
			return FBY_DONE;
		if (!retry(io, &decision)) {
			spin_lock(&v->wait_lock);
			list_add(&io->node, &v->wait_space);
			spin_unlock(&v->wait_lock);
			return decision;
		}
		cond_resched();
	}
}

void fbk_retry_work(struct work_struct *work)
{
	struct fbk_volume *v = container_of(to_delayed_work(work), struct fbk_volume, retry);
	bool again = retry_busy(v);
	int decision;

	if (fbk_others_wait(v)) /* who is put there now queues the work again */
		fby_wait_prepare(v->pool->engine, FBY_WAIT_SPACE);
	decision = retry_space(v);
	if (decision == FBY_WAIT_SPACE)
		fbk_kick_destage(v->pool);
	if (again || (decision != FBY_DONE && decision != FBY_WAIT_SPACE))
		queue_delayed_work(v->wq, &v->retry, v->busy_tries < AT_ONCE ? 0 : 1);
	else if (decision == FBY_WAIT_SPACE)
		queue_delayed_work(v->wq, &v->retry, SPACE_RETRY);
}

/* Sectors that it may have taken of the cache. */
static u32 taken(const struct fbk_io *io)
{
	u32 n = bio_sectors(io->bio);

	return bio_op(io->bio) == REQ_OP_WRITE ? n - io->past_sectors : min_t(u32, n, FBY_DEFAULT_RANGE_THROTTLED);
}

/*
 * Between the high watermark and full, writes are spaced out by ending them
 * late: they are durable, only their callers are held.  A timer, as a jiffy is
 * longer than most of these pauses.
 */
bool fbk_end_late(struct fbk_io *io)
{
	struct fbk_pool *p = io->volume->pool;
	u64 now = ktime_get_ns();
	u64 delay = fby_policy_delay(p->engine, io->volume->index, taken(io), now);
	struct fbk_io *other;
	unsigned long flags;

	if (!delay)
		return false;
	io = fbk_io_lasting(io);
	if (!io)
		return false;
	io->due_ns = now + delay;
	spin_lock_irqsave(&p->late_lock, flags);
	list_for_each_entry_reverse(other, &p->late, node)
		if (other->due_ns <= io->due_ns)
			break;
	list_add(&io->node, &other->node);
	if (p->late.next == &io->node)
		hrtimer_start(&p->late_timer, ns_to_ktime(io->due_ns), HRTIMER_MODE_ABS_SOFT);
	spin_unlock_irqrestore(&p->late_lock, flags);
	return true;
}

enum hrtimer_restart fbk_late_timer(struct hrtimer *timer)
{
	struct fbk_pool *p = container_of(timer, struct fbk_pool, late_timer);
	u64 now = ktime_get_ns();
	struct fbk_io *io, *next;
	unsigned long flags;
	LIST_HEAD(due);

	spin_lock_irqsave(&p->late_lock, flags);
	list_for_each_entry_safe(io, next, &p->late, node) {
		if (io->due_ns > now) {
			hrtimer_start(timer, ns_to_ktime(io->due_ns), HRTIMER_MODE_ABS_SOFT);
			break;
		}
		list_move_tail(&io->node, &due);
	}
	spin_unlock_irqrestore(&p->late_lock, flags);
	list_for_each_entry_safe(io, next, &due, node)
		fbk_end(io, 0);
	return HRTIMER_NORESTART;
}
