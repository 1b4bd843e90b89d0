// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume_io.c - the path of a bio through a volume.
 *
 * host/client_request.c decides what happens to a bio and asks for one step after the other; this
 * file executes them.  A request begins in the caller's context, and mostly ends there: it
 * allocates nothing, uses no queue, and waits only for a full pool.  A request to the origin is a
 * clone of the bio, a flush, or a discard.  A read continues while its parts are in flight; a
 * work resumes all other requests when the origin has completed.
 *
 * There is a shorter path as well.  A write in one piece, to a volume that caches everything
 * and throttles nobody, is one call of the engine.
 *
 * Acknowledged is durable, so the devices announce no volatile write cache and get no flushes; a
 * flush that arrives all the same completes at once.  A volume of a pool on a slow disk does
 * announce one (v->later).
 */
#include <linux/mempool.h>
#include <linux/slab.h>

#include "fbk.h"

#define NVEC 20u
/* The objects in reserve for each volume, and the number of its works that run at a time. */
#define CLONES 16u
#define IOS 32u
#define RANGES 16
#define VOLUME_WORKS 8 /* the waiting, the requests of destage, the ends of what the origin was asked */

static struct kmem_cache *fbk_io_cache;

/* --- the end ------------------------------------------------------------------------- */

static __always_inline void end_status(struct fbk_io *io, blk_status_t status)
{
	struct bio *bio = io->bio;

	if (io->began)
		bio_end_io_acct(bio, io->began);
	if (unlikely(io->memory == FBK_IO_POOLED))
		mempool_free(io, &io->volume->ios);
	bio->bi_status = status;
	bio_endio(bio);
}

/* Releases the engine's state first: when the request's bios have ended, the volume may be
 * stopped. */
static __always_inline void release(struct fbk_io *io)
{
	u32 wake = 0;

	fby_request_end(&io->request, &wake);
	if (unlikely(wake))
		fbk_wake(io->volume->pool, wake);
}

void fbk_end_status(struct fbk_io *io, blk_status_t status)
{
	release(io);
	end_status(io, status);
}

/* Ends one part of a read: the request itself, or a part sent to the origin. */
static void part_done(struct fbk_io *io, blk_status_t status)
{
	if (status)
		WRITE_ONCE(io->status, status);
	if (atomic_dec_and_test(&io->parts))
		fbk_end_status(io, io->status);
}

static void write_next(struct fbk_io *io);

void fbk_give_up(struct fbk_io *io, blk_status_t status)
{
	if (io->request.op == FBY_OP_READ && io->request.foreground)
		part_done(io, status);
	else
		fbk_end_status(io, status);
}

/* Ends the request.  An error of the origin is passed on as the origin reported it. */
static void ended(struct fbk_io *io, int error)
{
	blk_status_t status = BLK_STS_OK;

	if (error)
		status = error == -FBY_E_ORIGIN_IO && io->status ? io->status : errno_to_blk_status(fbk_errno(error));
	if (unlikely(io->then_write) && !error) {
		write_next(io);
		return;
	}
	if (unlikely(io->volume->later) && io->request.op == FBY_OP_WRITE)
		fbk_send_later(io->volume->pool);
	fbk_give_up(io, status);
}

void fbk_remap_end(struct fbk_io *io)
{
	if (!io->remapped)
		return;
	io->remapped = false;
	release(io);
}

/* --- a step of the request ------------------------------------------------------------- */

/* Shows the next pieces of the bio's memory.  Returns their bytes. */
static __always_inline u32 show(struct fbk_io *io, struct fby_vec *vec)
{
	struct fby_request *r = &io->request;
	struct bio *bio = io->bio;
	struct bvec_iter iter;
	u32 n, bytes = 0;

	bvec_iter_advance(bio->bi_io_vec, &io->iter, ((u32)r->done - io->at) * FBY_SECTOR);
	io->at = r->done;
	iter = io->iter;
	for (n = 0; n < NVEC && iter.bi_size && bytes < FBY_BATCH_PAGES * FBY_PAGE; n++) {
		struct bio_vec bv = mp_bvec_iter_bvec(bio->bi_io_vec, iter);

		vec[n].base = page_address(bv.bv_page) + bv.bv_offset;
		vec[n].len = bv.bv_len;
		bytes += bv.bv_len;
		bvec_iter_advance(bio->bi_io_vec, &iter, bv.bv_len);
	}
	while (unlikely(bytes % FBY_SECTOR)) { /* whole sectors, wherever the pieces end */
		u32 cut = min_t(u32, bytes % FBY_SECTOR, vec[n - 1].len);

		vec[n - 1].len -= cut;
		bytes -= cut;
		n -= !vec[n - 1].len;
	}
	fby_request_data(r, vec, n);
	return bytes;
}

/* Whether to retry the request at once.  The holder of a block or a slot releases it soon. */
static bool again(const struct fby_request *r, int next, u32 *spins)
{
	if (next == FBY_NEXT_DATA || next == FBY_NEXT_LOST)
		return true;
	if (next != FBY_NEXT_WAIT || (r->why != FBY_WAIT_BLOCK && r->why != FBY_WAIT_SLOT))
		return false;
	cpu_relax();
	return (*spins)++ < FBY_DEFAULT_WAIT_SPINS;
}

/* Begins the request or resumes it.  If the engine may not be called any more, the request ends
 * with an error, and fby_request_end releases what it holds.  Reads continue after a failed
 * assertion as long as the media is there.  The list is not initialized: the kernel would clear
 * it for each bio. */
static __always_inline int step(struct fbk_io *io, bool begin, int result)
{
	struct fbk_pool *p = io->volume->pool;
	struct fby_vec vec[NVEC] __uninitialized;
	struct fby_request *r = &io->request;
	u32 spins = 0;
	int next;

	rcu_read_lock();
	do {
		next = fbk_unusable(p);
		if (unlikely(r->op == FBY_OP_READ ? READ_ONCE(p->gone) : !fbk_usable(p)))
			break;
		next = -FBY_E_RANGE; /* a sector in more pieces than that */
		if (r->op <= FBY_OP_WRITE && unlikely(!show(io, vec)) && io->iter.bi_size)
			break;
		next = begin ? fby_request_begin(r) : fby_request_resume(r, result);
		if (unlikely(r->wake))
			fbk_wake(p, r->wake);
		begin = false;
		result = 0;
	} while (unlikely(next) && again(r, next, &spins));
	rcu_read_unlock();
	/* Nothing becomes durable any more. */
	if (unlikely(next == FBY_NEXT_WAIT && r->why == FBY_WAIT_TICKET && !fby_asserts_hold(&p->asserts)))
		next = -FBY_E_INVARIANT;
	return next;
}

int fbk_resume(struct fbk_io *io, int result)
{
	return step(io, false, result);
}

/* --- what is asked of the origin -------------------------------------------------------- */

/* The origin has completed, and the request continues where it may sleep. */
static void origin_work(struct work_struct *work)
{
	struct fbk_io *io = container_of(work, struct fbk_io, work);

	fbk_go_on(io, fbk_resume(io, -blk_status_to_errno(io->status)));
}

static void origin_ended(struct fbk_io *io, blk_status_t status)
{
	io->status = status;
	INIT_WORK(&io->work, origin_work);
	queue_work(io->volume->wq, &io->work);
}

static void write_clone_end(struct bio *clone)
{
	struct fbk_io *io = clone->bi_private;
	blk_status_t status = clone->bi_status;

	bio_put(clone);
	origin_ended(io, status);
}

static void read_clone_end(struct bio *clone)
{
	struct fbk_io *io = clone->bi_private;
	blk_status_t status = clone->bi_status;

	bio_put(clone);
	part_done(io, status);
}

/* False: there is no memory now, or the origin may sleep and the bio may not wait. */
static bool send_clone(struct fbk_io *io, bio_end_io_t *end)
{
	const struct fby_asked *asked = &io->request.io;
	bool nowait = io->bio->bi_opf & REQ_NOWAIT;
	struct fbk_volume *v = io->volume;
	struct bio *clone;

	if (nowait && !bdev_nowait(v->origin))
		return false;
	clone = bio_alloc_clone(v->origin, io->bio, nowait ? GFP_NOWAIT : GFP_NOIO, &v->clones);
	if (!clone)
		return false;
	bio_advance(clone, (asked->sector - io->sector) * FBY_SECTOR);
	clone->bi_iter.bi_size = asked->nsectors * FBY_SECTOR;
	clone->bi_iter.bi_sector = asked->sector;
	/* Flushes go through the gate only. */
	clone->bi_opf &= ~(REQ_POLLED | REQ_PREFLUSH | REQ_FUA);
	clone->bi_private = io;
	clone->bi_end_io = end;
	if (end == read_clone_end)
		atomic_inc(&io->parts);
	submit_bio_noacct(clone);
	return true;
}

static void flush_end(struct bio *bio)
{
	struct fbk_io *io = bio->bi_private;
	blk_status_t status = bio->bi_status;

	bio_uninit(bio);
	origin_ended(io, status);
}

/* The volume's bio is free, because the engine admits one flush at a time. */
static void send_flush(struct fbk_io *io)
{
	struct fbk_volume *v = io->volume;

	bio_init(&v->flush_bio, v->origin, NULL, 0, REQ_OP_WRITE | REQ_PREFLUSH);
	v->flush_bio.bi_private = io;
	v->flush_bio.bi_end_io = flush_end;
	submit_bio_noacct(&v->flush_bio);
}

static int origin_range(struct fbk_volume *v, struct bio *bio, u64 sector, u64 n)
{
	int rc;

	if (bio_op(bio) == REQ_OP_DISCARD) {
		rc = blkdev_issue_discard(v->origin, sector, n, GFP_NOIO);
		return rc == -EOPNOTSUPP ? 0 : rc;
	}
	return blkdev_issue_zeroout(v->origin, sector, n, GFP_NOIO,
				    bio->bi_opf & REQ_NOUNMAP ? BLKDEV_ZERO_NOUNMAP : 0);
}

/* Sleeps until the origin has completed. */
static void range_work(struct work_struct *work)
{
	struct fbk_io *io = container_of(work, struct fbk_io, work);
	const struct fby_asked *asked = &io->request.io;
	int rc = origin_range(io->volume, io->bio, asked->sector, asked->nsectors);

	io->status = errno_to_blk_status(rc);
	fbk_go_on(io, fbk_resume(io, -rc));
}

static void queue_range(struct fbk_io *io, work_func_t work)
{
	INIT_WORK(&io->work, work);
	queue_work(io->volume->range_wq, &io->work);
}

/* --- on, until it ends or is on its way ----------------------------------------------------- */

/* True: the request is on its way.  False: it continues with *next. */
static bool to_origin(struct fbk_io *io, int *next)
{
	switch (io->request.io.op) {
	case FBY_OP_READ:
		if (!send_clone(io, read_clone_end))
			break;
		*next = fbk_resume(io, FBY_SENT);
		return false;
	case FBY_OP_WRITE:
		if (!send_clone(io, write_clone_end))
			break;
		return true;
	case FBY_OP_FLUSH:
		send_flush(io);
		return true;
	default:
		queue_range(io, range_work);
		return true;
	}
	io->status = BLK_STS_AGAIN;
	*next = -FBY_E_ORIGIN_IO;
	return false;
}

/* Whether the origin gets all of a read, so that the mapper may send it there itself. */
static bool may_remap(const struct fbk_io *io, int next)
{
	const struct fby_request *r = &io->request;

	return next == FBY_NEXT_ORIGIN && r->op == FBY_OP_READ && io->memory == FBK_IO_OWNED &&
	       r->io.nsectors == r->nsectors;
}

/* Waits at most for another bio of the volume to end, which needs nothing from this one. */
static struct fbk_io *in_lasting_memory(struct fbk_io *io)
{
	struct fbk_io *copy;

	if (io->memory != FBK_IO_STACK)
		return io;
	copy = mempool_alloc(&io->volume->ios, io->bio->bi_opf & REQ_NOWAIT ? GFP_NOWAIT : GFP_NOIO);
	if (!copy)
		return NULL;
	*copy = *io;
	copy->memory = FBK_IO_POOLED;
	copy->request.runs = &copy->run;
	return copy;
}

/* in_map: the caller is the one who has the bio, and does what is returned. */
static enum fbk_map go_on(struct fbk_io *io, int next, bool in_map)
{
	if (in_map && may_remap(io, next)) {
		io->remapped = true;
		return FBK_REMAP;
	}
	while (next > 0) {
		struct fbk_io *lasting = in_lasting_memory(io);

		if (!lasting) { /* a write that the throttle would hold is done */
			fbk_give_up(io, next == FBY_NEXT_THROTTLE ? BLK_STS_OK : BLK_STS_AGAIN);
			return FBK_TAKEN;
		}
		io = lasting;
		if (next == FBY_NEXT_ORIGIN) {
			if (to_origin(io, &next))
				return FBK_TAKEN;
		} else if (next == FBY_NEXT_THROTTLE && io->volume->later && io->request.past_sectors) {
			next = fbk_resume(io, 0); /* a flush of the origin that failed meanwhile is told here */
		} else if (next == FBY_NEXT_THROTTLE) {
			if (fbk_end_late(io))
				return FBK_TAKEN;
			next = FBY_NEXT_DONE;
		} else if (io->bio->bi_opf & REQ_NOWAIT) {
			fbk_give_up(io, BLK_STS_AGAIN);
			return FBK_TAKEN;
		} else {
			fbk_wait(io, next);
			return FBK_TAKEN;
		}
	}
	ended(io, next);
	return FBK_TAKEN;
}

void fbk_go_on(struct fbk_io *io, int next)
{
	go_on(io, next, false);
}

/* --- the beginning -------------------------------------------------------------------------- */

static u8 flags_of(const struct fbk_volume *v, blk_opf_t opf)
{
	u8 flags = (opf & REQ_META ? FBY_REQ_METADATA : 0) | (opf & REQ_NOWAIT ? FBY_REQ_NOWAIT : 0);

	if (v->tickets)
		flags |= FBY_REQ_TICKETS | (v->later ? FBY_REQ_LATER : 0) |
			 (op_is_flush(opf) ? FBY_REQ_DURABLE : 0);
	return flags;
}

/* Prepares a request for all but the first done sectors. */
static __always_inline void prepare(struct fbk_io *io, enum fby_request_op op, u32 done)
{
	struct fby_request *r = &io->request;
	struct fbk_volume *v = io->volume;

	fby_request_unbegun(r);
	r->pool = v->pool->engine;
	r->policy = &v->policy;
	r->sector = io->sector + done;
	r->nsectors = bio_sectors(io->bio) - done;
	r->runs = &io->run;
	r->max_runs = 1;
	r->volume = v->index;
	r->op = op;
	r->flags = flags_of(v, io->bio->bi_opf);
	r->steps = NULL;
	io->iter = io->bio->bi_iter;
	if (unlikely(done))
		bvec_iter_advance(io->bio->bi_io_vec, &io->iter, done * FBY_SECTOR);
	io->at = 0;
	io->status = BLK_STS_OK;
}

static __always_inline enum fbk_map begin(struct fbk_io *io)
{
	int next = step(io, true, 0);

	if (unlikely(next || io->request.foreground || io->then_write))
		return go_on(io, next, true);
	fbk_end_status(io, BLK_STS_OK);
	return FBK_TAKEN;
}

static void range_begin_work(struct work_struct *work)
{
	begin(container_of(work, struct fbk_io, work));
}

static enum fbk_map begin_range(struct fbk_io *io, enum fby_request_op op)
{
	if (io->bio->bi_opf & REQ_NOWAIT) {
		end_status(io, BLK_STS_AGAIN);
		return FBK_TAKEN;
	}
	io = in_lasting_memory(io);
	prepare(io, op, 0);
	queue_range(io, range_begin_work);
	return FBK_TAKEN;
}

/* Returns the sectors that are written, as many as one call does. */
static __always_inline u32 write_in_one_piece(struct fbk_io *io)
{
	struct bio *bio = io->bio;
	struct bio_vec bv = mp_bvec_iter_bvec(bio->bi_io_vec, bio->bi_iter);
	struct fbk_volume *v = io->volume;
	struct fbk_pool *p = v->pool;
	u32 done = 0, wake = 0;

	if (unlikely(v->tickets && (!v->later || op_is_flush(bio->bi_opf))))
		return 0;
	if (unlikely(bv.bv_len != bio->bi_iter.bi_size || fbk_others_wait(v) ||
		     fby_policy_past(&v->policy, bio_sectors(bio), bio->bi_opf & REQ_META) ||
		     fby_write_throttled(p->engine, v->index)))
		return 0;
	rcu_read_lock();
	if (likely(fbk_usable(p)))
		fby_write(p->engine, v->index, io->sector, bio_sectors(bio), page_address(bv.bv_page) + bv.bv_offset,
			  &done, &wake);
	if (wake)
		fbk_wake(p, wake);
	rcu_read_unlock();
	return done;
}

static __always_inline enum fbk_map begin_write(struct fbk_io *io)
{
	u32 done = write_in_one_piece(io);

	if (unlikely(io->volume->later))
		fbk_send_later(io->volume->pool);
	if (likely(done == bio_sectors(io->bio))) {
		end_status(io, BLK_STS_OK);
		return FBK_TAKEN;
	}
	prepare(io, FBY_OP_WRITE, done);
	if (fbk_others_wait(io->volume))
		io->request.flags |= FBY_REQ_BEHIND;
	return begin(io);
}

/* The flush that a write asks for comes before it, and then the write is durable by itself. */
static void write_next(struct fbk_io *io)
{
	release(io);
	io->then_write = false;
	prepare(io, FBY_OP_WRITE, 0);
	if (fbk_others_wait(io->volume))
		io->request.flags |= FBY_REQ_BEHIND;
	begin(io);
}

static enum fbk_map begin_flush(struct fbk_io *io, bool then_write)
{
	io->then_write = then_write;
	prepare(io, FBY_OP_FLUSH, 0);
	return begin(io);
}

static __always_inline enum fbk_map begin_read(struct fbk_io *io)
{
	prepare(io, FBY_OP_READ, 0);
	atomic_set(&io->parts, 1);
	return begin(io);
}

enum fbk_map fbk_map(struct fbk_volume *v, struct fbk_io *io, struct bio *bio, u64 sector)
{
	io->volume = v;
	io->bio = bio;
	io->sector = sector;
	io->remapped = false;
	io->then_write = false;
	/* A write to the pool's device is waited for. */
	if (unlikely(v->tickets && bio->bi_opf & REQ_NOWAIT && bio_op(bio) != REQ_OP_READ)) {
		end_status(io, BLK_STS_AGAIN);
		return FBK_TAKEN;
	}
	switch (bio_op(bio)) {
	case REQ_OP_READ:
		return begin_read(io);
	case REQ_OP_WRITE:
		if (unlikely(v->later && bio->bi_opf & REQ_PREFLUSH))
			return begin_flush(io, bio_sectors(bio));
		if (likely(bio_sectors(bio)))
			return begin_write(io);
		fallthrough;
	case REQ_OP_FLUSH:
		if (unlikely(v->later))
			return begin_flush(io, false);
		end_status(io, BLK_STS_OK);
		return FBK_TAKEN;
	case REQ_OP_DISCARD:
		return begin_range(io, FBY_OP_DISCARD);
	case REQ_OP_WRITE_ZEROES:
		return begin_range(io, FBY_OP_ZERO);
	default:
		end_status(io, BLK_STS_NOTSUPP);
		return FBK_TAKEN;
	}
}

/* --- a volume's ------------------------------------------------------------------------------- */

int fbk_io_volume_init(struct fbk_volume *v)
{
	int rc;

	INIT_DELAYED_WORK(&v->retry, fbk_retry_work);
	INIT_LIST_HEAD(&v->wait_busy);
	INIT_LIST_HEAD(&v->wait_space);
	INIT_LIST_HEAD(&v->wait_flush);
	INIT_LIST_HEAD(&v->wait_ticket);
	INIT_WORK(&v->flush, fbk_flush_work);
	spin_lock_init(&v->wait_lock);
	rc = mempool_init_slab_pool(&v->ios, IOS, fbk_io_cache);
	if (!rc)
		rc = bioset_init(&v->clones, CLONES, 0, BIOSET_NEED_RESCUER);
	if (!rc)
		rc = fbk_origin_init(v);
	if (rc)
		return rc;
	v->wq = alloc_workqueue("forebay_volume", WQ_MEM_RECLAIM | WQ_UNBOUND, VOLUME_WORKS);
	v->range_wq = alloc_workqueue("forebay_range", WQ_MEM_RECLAIM | WQ_UNBOUND, RANGES);
	return v->wq && v->range_wq ? 0 : -ENOMEM;
}

/* Also accepts a volume that was never initialized. */
void fbk_io_volume_exit(struct fbk_volume *v)
{
	if (v->range_wq)
		destroy_workqueue(v->range_wq);
	if (v->wq)
		destroy_workqueue(v->wq);
	fbk_origin_exit(v);
	bioset_exit(&v->clones);
	mempool_exit(&v->ios);
}

int fbk_io_init(void)
{
	fbk_io_cache = KMEM_CACHE(fbk_io, SLAB_HWCACHE_ALIGN);
	return fbk_io_cache ? 0 : -ENOMEM;
}

void fbk_io_exit(void)
{
	kmem_cache_destroy(fbk_io_cache);
}
