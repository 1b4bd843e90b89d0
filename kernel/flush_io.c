// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * flush_io.c - what went past the cache is made durable before its bio ends.
 *
 * All flushes of an origin go through the engine's gate (core/cache/flush.c), one at a
 * time, so bios that come together share one.  A work asks for each that waits;
 * the one that is let in sends a flush, the others stay on the list until the end
 * of a flush, whose wake mask queues the work again.  A wake is not lost: the
 * work that is queued while it runs runs once more.
 */
#include "fbk.h"

static void flushed(struct fbk_io *io, int rc)
{
	if (rc < 0)
		fbk_end(io, rc);
	else
		fbk_end_durable(io);
}

static void flush_ended(struct work_struct *work)
{
	struct fbk_io *io = container_of(work, struct fbk_io, work);
	struct fbk_pool *p = io->volume->pool;
	u32 wake = 0;
	int rc = fby_flush_end(p->engine, &io->ticket, -blk_status_to_errno(io->status), &wake);

	fbk_wake(p, wake);
	flushed(io, rc);
}

static void flush_bio_end(struct bio *bio)
{
	struct fbk_io *io = bio->bi_private;

	io->status = bio->bi_status;
	bio_uninit(bio);
	INIT_WORK(&io->work, flush_ended);
	queue_work(io->volume->wq, &io->work);
}

/* The volume's bio is free: the engine lets in one flush at a time. */
static void flush_send(struct fbk_io *io)
{
	struct fbk_volume *v = io->volume;

	bio_init(&v->flush_bio, v->origin, NULL, 0, REQ_OP_WRITE | REQ_PREFLUSH);
	v->flush_bio.bi_private = io;
	v->flush_bio.bi_end_io = flush_bio_end;
	submit_bio_noacct(&v->flush_bio);
}

void fbk_flush_work(struct work_struct *work)
{
	struct fbk_volume *v = container_of(work, struct fbk_volume, flush);
	struct fbk_io *io, *next;
	LIST_HEAD(waiting);

	spin_lock(&v->wait_lock);
	list_splice_init(&v->wait_flush, &waiting);
	spin_unlock(&v->wait_lock);
	list_for_each_entry_safe(io, next, &waiting, node) {
		int rc = fby_flush_begin(v->pool->engine, v->index, &io->ticket);

		if (rc == FBY_WAIT_FLUSH)
			continue;
		list_del(&io->node);
		if (rc == FBY_ORIGIN)
			flush_send(io);
		else
			flushed(io, rc);
		cond_resched();
	}
	spin_lock(&v->wait_lock);
	list_splice(&waiting, &v->wait_flush);
	spin_unlock(&v->wait_lock);
}

void fbk_flush_cover(struct fbk_io *io)
{
	if (!io->owed)
		memset(&io->ticket, 0, sizeof(io->ticket));
	io->owed = true;
	fby_flush_cover(io->volume->pool->engine, &io->ticket, &io->past);
}

void fbk_flush(struct fbk_io *io)
{
	struct fbk_volume *v = io->volume;

	spin_lock(&v->wait_lock);
	list_add_tail(&io->node, &v->wait_flush);
	spin_unlock(&v->wait_lock);
	queue_work(v->wq, &v->flush);
}
