// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * waiting.c - writes that the engine told to wait, before or after.
 *
 * Whoever holds a block or a slot never sleeps with it, so those are tried
 * again at once by a work, or soon where writes past the cache hold blocks for as
 * long as the origin takes.  Space comes from destage, or from a write that
 * empties a chunk; the engine tells by a wake mask.  No wake is lost: a bio is
 * put on its list and the work queued, the work announces that it waits and
 * only then tries, and a wake after that queues the work again.  The timer is
 * only a safety net.
 */
#include "fbk.h"

#define SPACE_RETRY (HZ / 10)

static void relist(struct fbk_io *io, enum fby_decision why)
{
	struct fbk_pool *p = io->volume->pool;

	spin_lock(&p->wait_lock);
	list_add_tail(&io->node, why == FBY_WAIT_SPACE ? &p->wait_space : &p->wait_busy);
	spin_unlock(&p->wait_lock);
}

void fbk_wait(struct fbk_io *io, enum fby_decision why)
{
	struct fbk_pool *p = io->volume->pool;

	relist(io, why);
	mod_delayed_work(p->wq, &p->retry, 0);
	if (why == FBY_WAIT_SPACE)
		fbk_kick_destage(p);
}

/* False: it waits again. */
static bool retry(struct fbk_io *io, int *decision)
{
	if (READ_ONCE(io->volume->requeue)) {
		fbk_end_status(io, BLK_STS_DM_REQUEUE);
		return true;
	}
	*decision = fbk_write_more(io);
	if (*decision == FBY_WAIT_SPACE && READ_ONCE(io->volume->bypass_full) && !fbk_write_past(io, 1))
		return true;
	if (*decision > 0)
		return false;
	if (*decision)
		fbk_end(io, *decision);
	else
		fbk_end_written(io);
	return true;
}

/* Those that wait for space stay in order, and behind the first that finds none. */
void fbk_retry_work(struct work_struct *work)
{
	struct fbk_pool *p = container_of(to_delayed_work(work), struct fbk_pool, retry);
	LIST_HEAD(busy);
	LIST_HEAD(space);
	struct fbk_io *io, *next;
	bool again = false;
	unsigned long pause = 0; /* jiffies */
	int decision = FBY_DONE;

	spin_lock(&p->wait_lock);
	list_splice_init(&p->wait_busy, &busy);
	spin_unlock(&p->wait_lock);
	list_for_each_entry_safe(io, next, &busy, node) {
		list_del(&io->node);
		if (!retry(io, &decision)) {
			if (READ_ONCE(io->volume->bypass_sectors) || READ_ONCE(io->volume->bypass_full))
				pause = 1;
			relist(io, decision);
			again = true;
		}
		cond_resched();
	}

	fby_wait_prepare(p->engine, FBY_WAIT_SPACE);
	for (;;) {
		spin_lock(&p->wait_lock);
		io = list_first_entry_or_null(&p->wait_space, struct fbk_io, node);
		if (io)
			list_del(&io->node);
		spin_unlock(&p->wait_lock);
		if (!io)
			break;
		if (!retry(io, &decision)) {
			spin_lock(&p->wait_lock);
			list_add(&io->node, &p->wait_space);
			spin_unlock(&p->wait_lock);
			break;
		}
		cond_resched();
	}
	if (io && decision == FBY_WAIT_SPACE) {
		fbk_kick_destage(p);
		queue_delayed_work(p->wq, &p->retry, SPACE_RETRY);
	} else if (io || again) {
		queue_delayed_work(p->wq, &p->retry, pause);
	}
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
	u64 delay = fby_write_delay(p->engine, io->volume->index, bio_sectors(io->bio), now);
	struct fbk_io *other;
	unsigned long flags;

	if (!delay)
		return false;
	io = fbk_io_lasting(io);
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
