// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * origin_io.c - what destage asks of an origin: writes from its buffers,
 * zeroes, discards, flushes.  A completion is only noted, and destage kicked.
 */
#include <linux/completion.h>
#include <linux/mm.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "fbk.h"

#define RESERVE 2u /* in addition to one for each request of destage */
#define STROKE 8u  /* requests submitted to the origin at once */

enum means {
	AS_ASKED,
	ZEROES_WRITTEN, /* zeroes are written, if the origin has no operation for them */
	ADVICE,		/* a discard of what reads as zeroes: that it fails is no error */
};

struct request {
	struct fbk_volume *volume;
	struct fby_io io;
	struct list_head node;
	enum means means;
	struct bio bio; /* last */
};

/* Lives as long as the module, so that the last completion may still wake it. */
static DECLARE_WAIT_QUEUE_HEAD(fbk_idle);

/* Ends a use of the volume.  The volume and the pool may be gone after this. */
static void let_go(struct fbk_volume *v)
{
	if (atomic_dec_and_test(&v->in_flight))
		wake_up_all(&fbk_idle);
}

static void request_done(struct request *r, int error)
{
	struct fbk_volume *v = r->volume;

	fby_destage_complete(v->pool->engine, r->io.id, error);
	fbk_kick_destage(v->pool);
	bio_put(&r->bio);
	let_go(v);
}

/* Queues a request.  From then on it may end at any time, and with it the volume. */
static void request_add(struct request *r, bool send)
{
	struct fbk_volume *v = r->volume;
	unsigned long flags;

	spin_lock_irqsave(&v->send_lock, flags);
	list_add_tail(&r->node, &v->send);
	if (send)
		queue_work(v->wq, &v->send_work);
	spin_unlock_irqrestore(&v->send_lock, flags);
}

static void request_end(struct bio *bio)
{
	struct request *r = container_of(bio, struct request, bio);

	/* If the origin cannot zero, zeroes are written.  The discard that follows is only
	 * advice.
	 */
	if (r->means == ADVICE) {
		request_done(r, 0);
	} else if (bio_op(bio) == REQ_OP_WRITE_ZEROES && bio->bi_status) {
		r->means = ZEROES_WRITTEN;
		request_add(r, true);
	} else if (r->io.op == FBY_IO_DISCARD && !bio->bi_status && bdev_max_discard_sectors(r->volume->origin)) {
		r->means = ADVICE;
		request_add(r, true);
	} else {
		request_done(r, -blk_status_to_errno(bio->bi_status));
	}
}

void fbk_bio_add(struct bio *bio, void *buf, u64 bytes)
{
	while (bytes > 0) {
		u32 at = buf ? offset_in_page(buf) : 0, n = min_t(u64, bytes, PAGE_SIZE - at);
		struct page *page = !buf ? ZERO_PAGE(0) : is_vmalloc_addr(buf) ? vmalloc_to_page(buf) :
										   virt_to_page(buf);

		__bio_add_page(bio, page, n, at);
		if (buf)
			buf += n;
		bytes -= n;
	}
}

/* nsectors is at most a buffer's, so the bio can hold the request. */
static void request_submit(struct request *r)
{
	const struct fby_io *io = &r->io;
	u64 bytes = io->nsectors * FBY_SECTOR;
	blk_opf_t opf = REQ_OP_WRITE;
	struct bio *bio = &r->bio;

	if (io->op == FBY_IO_FLUSH)
		opf |= REQ_PREFLUSH;
	else if (r->means == ADVICE)
		opf = REQ_OP_DISCARD;
	else if (io->op != FBY_IO_WRITE && r->means == AS_ASKED)
		opf = REQ_OP_WRITE_ZEROES;
	bio_reset(bio, r->volume->origin, opf);
	bio->bi_end_io = request_end;
	bio->bi_iter.bi_sector = io->sector;
	if (opf == REQ_OP_WRITE) {
		if (io->buf)
			flush_kernel_vmap_range(io->buf, bytes);
		fbk_bio_add(bio, io->buf, bytes);
	} else {
		bio->bi_iter.bi_size = bytes;
	}
	submit_bio_noacct(bio);
}

/* If an origin has no room for more requests, this sleeps, and delays only its own volume.  All
 * queued requests go to the device at once: one doorbell for all of them. */
static void send_work(struct work_struct *work)
{
	struct fbk_volume *v = container_of(work, struct fbk_volume, send_work);
	struct blk_plug plug;
	struct request *r;

	blk_start_plug(&plug);
	for (;;) {
		spin_lock_irq(&v->send_lock);
		r = list_first_entry_or_null(&v->send, struct request, node);
		if (r)
			list_del(&r->node);
		spin_unlock_irq(&v->send_lock);
		if (!r)
			break;
		request_submit(r);
	}
	blk_finish_plug(&plug);
}

struct fbk_volume *fbk_origin_expect(struct fbk_pool *p, const struct fby_io *io)
{
	struct fbk_volume *v = p->volume[io->volume];

	atomic_inc(&v->in_flight);
	return v;
}

void fbk_origin_submit(struct fbk_volume *v, const struct fby_io *io)
{
	struct fbk_pool *p = v->pool;
	struct request *r;

	if (READ_ONCE(v->stopping)) {
		fby_destage_complete(v->pool->engine, io->id, ECANCELED);
		let_go(v);
		return;
	}
	/* A buffer begins within a page where these are larger than the engine's. */
	r = container_of(bio_alloc_bioset(v->origin, DIV_ROUND_UP(v->buffer_bytes, PAGE_SIZE) + (PAGE_SIZE > FBY_PAGE),
					  REQ_OP_WRITE, GFP_NOIO, &v->requests),
			 struct request, bio);
	r->volume = v;
	r->io = *io;
	r->means = bdev_write_zeroes_sectors(v->origin) ? AS_ASKED : ZEROES_WRITTEN;
	if (p->unsent != v) {
		fbk_origin_send(p);
		atomic_inc(&v->in_flight);
		p->unsent = v;
	}
	p->nunsent++;
	request_add(r, false);
	/* An idle origin gets the request now. */
	if (p->nunsent == STROKE || atomic_read(&v->in_flight) == 2)
		fbk_origin_send(p);
}

void fbk_origin_send(struct fbk_pool *p)
{
	struct fbk_volume *v = p->unsent;

	if (!v)
		return;
	p->unsent = NULL;
	p->nunsent = 0;
	queue_work(v->wq, &v->send_work);
	let_go(v);
}

/* --- does it answer? --------------------------------------------------------------- */

/* A question and its two users: the caller, who may leave before there is an answer, and the
 * completion.
 */
struct question {
	refcount_t refs;
	struct fbk_volume *volume; /* counted in its in_flight */
	struct completion answered;
	blk_status_t status;
	struct page *page;
	struct bio_vec vec;
	struct bio bio;
};

static void question_put(struct question *q)
{
	if (!refcount_dec_and_test(&q->refs))
		return;
	__free_page(q->page);
	kfree(q);
}

static void question_end(struct bio *bio)
{
	struct question *q = bio->bi_private;
	struct fbk_volume *v = q->volume;

	q->status = bio->bi_status;
	bio_uninit(bio);
	complete(&q->answered);
	question_put(q);
	let_go(v);
}

/* Reads the logical block at a sector. */
static int ask(struct fbk_volume *v, u64 sector)
{
	struct question *q = kzalloc(sizeof(*q), GFP_NOIO);
	u32 bytes = bdev_logical_block_size(v->origin);
	int rc;

	if (!q)
		return -ENOMEM;
	q->page = alloc_page(GFP_NOIO);
	if (!q->page) {
		kfree(q);
		return -ENOMEM;
	}
	refcount_set(&q->refs, 2);
	q->volume = v;
	init_completion(&q->answered);
	bio_init(&q->bio, v->origin, &q->vec, 1, REQ_OP_READ);
	__bio_add_page(&q->bio, q->page, bytes, 0);
	q->bio.bi_iter.bi_sector = sector;
	q->bio.bi_private = q;
	q->bio.bi_end_io = question_end;
	atomic_inc(&q->volume->in_flight);
	submit_bio_noacct(&q->bio);
	if (wait_for_completion_interruptible(&q->answered))
		rc = -EINTR;
	else if (q->status == BLK_STS_MEDIUM) /* a disk that says so of a block is there */
		rc = 0;
	else
		rc = blk_status_to_errno(q->status);
	question_put(q);
	return rc;
}

/* Reads blocks at the end of the origin.  A flush does not show that a disk is gone, because a
 * disk without a volatile cache gets none.  A disk may have lost only its end: a file that was
 * truncated, a part of a stripe.  A disk with some bad blocks answers, and some drivers have one
 * error for all failures.  So blocks before the last one are read as well, but none far from the
 * end.
 */
int fbk_origin_answers(struct fbk_volume *v)
{
	static const u32 before[] = { 0, SZ_64K / SECTOR_SIZE, SZ_1M / SECTOR_SIZE };
	u32 block = bdev_logical_block_size(v->origin) / SECTOR_SIZE, i;
	u64 last = (v->sectors / block - 1) * block;
	int rc = 0;

	if (bdev_nr_sectors(v->origin) < v->sectors)
		return -EIO;
	for (i = 0; i < ARRAY_SIZE(before); i++) {
		rc = ask(v, last - min_t(u64, before[i], last));
		/* A disk that is away may take long for each answer, so it is not asked again. */
		if (rc != -EIO)
			break;
	}
	return rc;
}

void fbk_origin_wait_idle(struct fbk_volume *v)
{
	wait_event(fbk_idle, atomic_read(&v->in_flight) == 0);
}

int fbk_origin_init(struct fbk_volume *v)
{
	INIT_WORK(&v->send_work, send_work);
	INIT_LIST_HEAD(&v->send);
	spin_lock_init(&v->send_lock);
	return bioset_init(&v->requests, v->nrequests + RESERVE, offsetof(struct request, bio), BIOSET_NEED_BVECS);
}

void fbk_origin_exit(struct fbk_volume *v)
{
	bioset_exit(&v->requests);
}
