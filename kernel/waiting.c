// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * waiting.c - requests that wait: before, between two steps, or after the last.
 *
 * Each volume has its own lists and its own works: a wait for one origin delays no other volume.
 *
 * The holder of a block or a slot neither sleeps nor loses its CPU meanwhile, so a work retries
 * requests that wait for one at once.  If that fails, it retries soon: bypassing requests hold
 * blocks for as long as the origin takes, and so do requests that wait for destage.  Space comes
 * from destage, or from a write that empties a chunk; the end of a flush admits the next one.
 * The engine reports both in a wake mask.  In a pool written in groups, requests wait for their
 * tickets, and the ends of requests to the pool's device look for them.  No wake is lost: a request is put on its list and the
 * work is queued; the work announces that it waits and only then tries.  A later wake queues the
 * work again.  A work that is queued while it runs, runs once more.  The timer is only a safety
 * net, except for requests that check what destage has released: nobody wakes them.
 */
#include "fbk.h"

#define SPACE_RETRY nsecs_to_jiffies(FBY_DEFAULT_SPACE_RETRY_NS)
#define AT_ONCE 8u /* futile tries in a row before the work waits a jiffy between them */

enum awaited { NOTHING, BUSY, DESTAGE, SPACE, FLUSH, TICKET };

static enum awaited awaited(const struct fbk_io *io, int next)
{
	if (next == FBY_NEXT_DRAIN)
		return DESTAGE;
	if (next != FBY_NEXT_WAIT)
		return NOTHING;
	switch (io->request.why) {
	case FBY_WAIT_SPACE:
		return SPACE;
	case FBY_WAIT_FLUSH:
		return FLUSH;
	case FBY_WAIT_TICKET:
		return TICKET;
	default:
		return BUSY;
	}
}

static bool pends(const struct fbk_pool *p, u64 ticket)
{
	return ticket && fby_asserts_hold(&p->asserts) && fby_ticket_state(p->engine, ticket) == FBY_TICKET_PENDING;
}

/* A request is on the list of those that wait for the ticket, or for room in a group.  What ends
 * from now on finds it there; what has ended before shows here.
 */
static void ticket_wanted(struct fbk_pool *p, u64 ticket)
{
	fbk_send(p);
	if (ticket && !pends(p, ticket))
		fbk_kick_sender(p);
	else if (!ticket)
		fbk_send_later(p); /* what it waits for may have ended a moment before */
}

static struct list_head *list_of(struct fbk_volume *v, enum awaited what)
{
	switch (what) {
	case SPACE:
		return &v->wait_space;
	case FLUSH:
		return &v->wait_flush;
	case TICKET:
		return &v->wait_ticket;
	default:
		return &v->wait_busy;
	}
}

static void relist(struct fbk_io *io, enum awaited what)
{
	struct fbk_volume *v = io->volume;
	u64 ticket = io->request.awaits;

	if (what == DESTAGE)
		fbk_drain_on(v);
	io->due_ns = what == DESTAGE ? ktime_get_ns() + FBY_DEFAULT_DRAIN_LOOK_NS : 0;
	spin_lock(&v->wait_lock);
	list_add_tail(&io->node, list_of(v, what));
	spin_unlock(&v->wait_lock);
	if (what == FLUSH)
		queue_work(v->wq, &v->flush);
	if (what == TICKET)
		ticket_wanted(v->pool, ticket);
}

void fbk_wait(struct fbk_io *io, int next)
{
	enum awaited what = awaited(io, next);
	struct fbk_volume *v = io->volume;

	relist(io, what);
	if (what != FLUSH && what != TICKET)
		mod_delayed_work(v->wq, &v->retry, 0);
	if (what == SPACE)
		fbk_kick_destage(v->pool);
}

/* --- tickets: what makes an append durable, in a pool written in groups --------------------- */

/* Whether the request is done when its ticket is durable, and needs nothing more: neither the
 * origin nor a copy.
 */
static bool is_last_wait(const struct fbk_io *io)
{
	return io->request.op != FBY_OP_READ && io->request.awaits && !io->then_write;
}

/* Takes those whose tickets are not pending any more.  Others than those that end now go on where
 * they may wait.
 */
static void take_durable(struct fbk_volume *v, struct list_head *done)
{
	struct fbk_io *io, *next;
	bool others = false;

	spin_lock(&v->wait_lock);
	list_for_each_entry_safe(io, next, &v->wait_ticket, node) {
		if (pends(v->pool, io->request.awaits))
			continue;
		others |= !is_last_wait(io);
		list_move_tail(&io->node, is_last_wait(io) ? done : &v->wait_busy);
	}
	spin_unlock(&v->wait_lock);
	if (others)
		mod_delayed_work(v->wq, &v->retry, 0);
}

void fbk_tickets_ended(struct fbk_pool *p)
{
	struct fbk_io *io, *next;
	struct fbk_volume *v;
	LIST_HEAD(done);

	spin_lock(&p->started_lock);
	list_for_each_entry(v, &p->started, list)
		take_durable(v, &done);
	spin_unlock(&p->started_lock);
	list_for_each_entry_safe(io, next, &done, node) {
		list_del(&io->node);
		fbk_go_on(io, fbk_resume(io, 0));
	}
}

/* --- the others ------------------------------------------------------------------------------- */

/* Retries the request; returns what it waits for now, if it waits. */
static enum awaited retry(struct fbk_io *io)
{
	enum awaited what;
	int next;

	if (READ_ONCE(io->volume->requeue)) {
		fbk_give_up(io, BLK_STS_DM_REQUEUE);
		return NOTHING;
	}
	next = fbk_resume(io, 0);
	what = awaited(io, next);
	if (what == NOTHING)
		fbk_go_on(io, next);
	return what;
}

/* The result of a pass over waiting requests. */
struct pass {
	bool any;   /* one made progress */
	bool busy;  /* some wait for a block or a slot */
	bool looks; /* some check again after a while */
	bool space;
};

/* Retries each request that waits for a block or a slot once, and those that check what destage
 * has released, if it is time. */
static void retry_busy(struct fbk_volume *v, struct pass *pass)
{
	struct fbk_io *io, *next;
	enum awaited what;
	LIST_HEAD(busy);

	spin_lock(&v->wait_lock);
	list_splice_init(&v->wait_busy, &busy);
	spin_unlock(&v->wait_lock);
	list_for_each_entry_safe(io, next, &busy, node) {
		if (io->due_ns > ktime_get_ns() && !READ_ONCE(v->requeue)) {
			pass->looks = true;
			continue;
		}
		list_del(&io->node);
		what = retry(io);
		if (what != NOTHING)
			relist(io, what);
		pass->busy |= what == BUSY;
		pass->looks |= what == DESTAGE;
		pass->any |= what != BUSY && what != DESTAGE;
		cond_resched();
	}
	spin_lock(&v->wait_lock);
	list_splice(&busy, &v->wait_busy);
	spin_unlock(&v->wait_lock);
}

/* Requests that wait for space stay in order.  They stop at the first that finds none, or whose
 * block is held. */
static void retry_space(struct fbk_volume *v, struct pass *pass)
{
	enum awaited what;
	struct fbk_io *io;

	for (;;) {
		spin_lock(&v->wait_lock);
		io = list_first_entry_or_null(&v->wait_space, struct fbk_io, node);
		if (io)
			list_del(&io->node);
		spin_unlock(&v->wait_lock);
		if (!io)
			return;
		what = retry(io);
		if (what == SPACE || what == BUSY) {
			spin_lock(&v->wait_lock);
			list_add(&io->node, &v->wait_space);
			spin_unlock(&v->wait_lock);
			pass->space |= what == SPACE;
			pass->busy |= what == BUSY;
			return;
		}
		if (what != NOTHING)
			relist(io, what);
		pass->looks |= what == DESTAGE;
		pass->any = true;
		cond_resched();
	}
}

void fbk_retry_work(struct work_struct *work)
{
	struct fbk_volume *v = container_of(to_delayed_work(work), struct fbk_volume, retry);
	struct pass pass = {};

	retry_busy(v, &pass);
	if (fbk_others_wait(v)) /* who is put there now queues the work again */
		fby_wait_prepare(v->pool->engine, FBY_WAIT_SPACE);
	retry_space(v, &pass);
	if (pass.space)
		fbk_kick_destage(v->pool);
	v->busy_tries = pass.any || !pass.busy ? 0 : v->busy_tries + 1;
	if (pass.busy)
		queue_delayed_work(v->wq, &v->retry, v->busy_tries < AT_ONCE ? 0 : 1);
	else if (pass.looks)
		queue_delayed_work(v->wq, &v->retry, nsecs_to_jiffies(FBY_DEFAULT_DRAIN_LOOK_NS) + 1);
	else if (pass.space)
		queue_delayed_work(v->wq, &v->retry, SPACE_RETRY);
}

/* Bios that arrive together share a flush.  One of them is admitted, and the others stay on the
 * list until it ends.
 */
void fbk_flush_work(struct work_struct *work)
{
	struct fbk_volume *v = container_of(work, struct fbk_volume, flush);
	struct fbk_io *io, *other;
	LIST_HEAD(waiting);

	spin_lock(&v->wait_lock);
	list_splice_init(&v->wait_flush, &waiting);
	spin_unlock(&v->wait_lock);
	list_for_each_entry_safe(io, other, &waiting, node) {
		int next = fbk_resume(io, 0);

		if (awaited(io, next) == FLUSH)
			continue;
		list_del(&io->node);
		fbk_go_on(io, next);
		cond_resched();
	}
	spin_lock(&v->wait_lock);
	list_splice(&waiting, &v->wait_flush);
	spin_unlock(&v->wait_lock);
}

/*
 * Between the high watermark and full, writes are spaced out by ending them late: they are
 * durable, and only their callers wait.  A timer does that, because a jiffy is longer than most
 * of these pauses.
 */
bool fbk_end_late(struct fbk_io *io)
{
	struct fbk_pool *p = io->volume->pool;
	u64 now = ktime_get_ns();
	u64 delay = fby_request_delay(&io->request, now);
	struct fbk_io *other;
	unsigned long flags;

	if (!delay)
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
		fbk_end_status(io, BLK_STS_OK);
	return HRTIMER_NORESTART;
}
