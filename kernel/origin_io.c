// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * origin_io.c - what destage asks of an origin: writes from its buffers,
 * zeroes, discards, flushes.  A completion is only noted, and destage kicked.
 */
#include <linux/mm.h>
#include <linux/wait.h>

#include "fbk.h"

#define RESERVE 64u

struct request {
	struct fbk_pool *pool;
	struct fbk_volume *volume;
	struct fby_io io;
	struct list_head node;
	bool advice; /* a discard of what reads as zeroes: that it fails is no error */
	struct bio bio; /* last */
};

static struct bio_set fbk_requests;
/* Of the module's life, so that the last completion may still ring it. */
static DECLARE_WAIT_QUEUE_HEAD(fbk_idle);

static void request_done(struct request *r, int error)
{
	struct fbk_pool *p = r->pool;
	struct fbk_volume *v = r->volume;

	fby_destage_complete(p->engine, r->io.id, error);
	fbk_kick_destage(p);
	bio_put(&r->bio);
	/* The volume and the pool may be gone after this. */
	if (atomic_dec_and_test(&v->in_flight))
		wake_up_all(&fbk_idle);
}

static void request_end(struct bio *bio)
{
	struct request *r = container_of(bio, struct request, bio);
	struct fbk_pool *p = r->pool;
	unsigned long flags;

	if (r->advice) {
		request_done(r, 0);
		return;
	}
	/* Zeroes are to be written, if the origin cannot; then comes the advice.  Not from
	 * here.
	 */
	if ((bio_op(bio) == REQ_OP_WRITE_ZEROES && bio->bi_status) ||
	    (r->io.op == FBY_IO_DISCARD && !bio->bi_status && bdev_max_discard_sectors(r->volume->origin))) {
		spin_lock_irqsave(&p->zero_lock, flags);
		list_add_tail(&r->node, &p->zero_again);
		spin_unlock_irqrestore(&p->zero_lock, flags);
		fbk_kick_destage(p);
		return;
	}
	request_done(r, -blk_status_to_errno(bio->bi_status));
}

static void add_buffer(struct bio *bio, void *buf, u64 bytes)
{
	while (bytes > 0) {
		u32 n = min_t(u64, bytes, PAGE_SIZE);
		struct page *page = !buf ? ZERO_PAGE(0) : is_vmalloc_addr(buf) ? vmalloc_to_page(buf) :
										   virt_to_page(buf);

		__bio_add_page(bio, page, n, 0);
		if (buf)
			buf += n;
		bytes -= n;
	}
}

enum means { AS_ASKED, ZEROES_WRITTEN, ADVICE };

/* nsectors is at most a buffer's, so the bio holds it. */
static void request_send(struct fbk_pool *p, struct fbk_volume *v, const struct fby_io *io, enum means means)
{
	u64 bytes = io->nsectors * FBY_SECTOR;
	blk_opf_t opf = REQ_OP_WRITE;
	unsigned short pages = 0;
	struct request *r;
	struct bio *bio;

	if (io->op == FBY_IO_FLUSH)
		opf |= REQ_PREFLUSH;
	else if (means == ADVICE)
		opf = REQ_OP_DISCARD;
	else if (io->op != FBY_IO_WRITE && means == AS_ASKED)
		opf = REQ_OP_WRITE_ZEROES;
	else
		pages = DIV_ROUND_UP_ULL(bytes, PAGE_SIZE);
	bio = bio_alloc_bioset(v->origin, pages, opf, GFP_NOIO, &fbk_requests);
	r = container_of(bio, struct request, bio);
	r->pool = p;
	r->volume = v;
	r->io = *io;
	r->advice = means == ADVICE;
	bio->bi_end_io = request_end;
	bio->bi_iter.bi_sector = io->sector;
	if (pages) {
		if (io->buf)
			flush_kernel_vmap_range(io->buf, bytes);
		add_buffer(bio, io->buf, bytes);
	} else {
		bio->bi_iter.bi_size = bytes;
	}
	submit_bio_noacct(bio);
}

void fbk_origin_submit(struct fbk_pool *p, const struct fby_io *io)
{
	struct fbk_volume *v = p->volume[io->volume];

	if (unlikely(!v) || READ_ONCE(v->stopping)) {
		fby_destage_complete(p->engine, io->id, ECANCELED);
		return;
	}
	atomic_inc(&v->in_flight);
	request_send(p, v, io, bdev_write_zeroes_sectors(v->origin) ? AS_ASKED : ZEROES_WRITTEN);
}

void fbk_origin_again(struct fbk_pool *p)
{
	struct request *r;

	for (;;) {
		struct fbk_volume *v;
		enum means means;
		struct fby_io io;

		spin_lock_irq(&p->zero_lock);
		r = list_first_entry_or_null(&p->zero_again, struct request, node);
		if (r)
			list_del(&r->node);
		spin_unlock_irq(&p->zero_lock);
		if (!r)
			return;
		io = r->io;
		v = r->volume;
		means = r->bio.bi_status ? ZEROES_WRITTEN : ADVICE;
		bio_put(&r->bio);
		request_send(p, v, &io, means);
	}
}

void fbk_origin_wait_idle(struct fbk_volume *v)
{
	wait_event(fbk_idle, atomic_read(&v->in_flight) == 0);
}

int fbk_origin_init(void)
{
	return bioset_init(&fbk_requests, RESERVE, offsetof(struct request, bio), BIOSET_NEED_BVECS);
}

void fbk_origin_exit(void)
{
	bioset_exit(&fbk_requests);
}
