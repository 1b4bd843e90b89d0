// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume_io.c - the way of a bio through a volume.
 *
 * A write is copied to the pool in batches of at most 64 KiB and ended in the
 * caller's context: no allocation, no queue, nothing to wait for but a full
 * pool.  A read takes what is cached from the pool first and has the rest read
 * from the origin after that, in one clone of the bio for each run of sectors;
 * that order is what makes it right, see core/cache/read.c.  Discards and zeroes may
 * need the origin in between, so a work does them.
 *
 * Where that is asked for, large writes and those that find no space go past the
 * cache, in a clone of the bio.  The engine says when to flush the origin for them
 * (flush_io.c), so they are durable too when they are acknowledged.
 *
 * Acknowledged is durable, so the devices announce no volatile write cache and
 * get no flushes; one that comes all the same is answered at once.
 */
#include <linux/delay.h>
#include <linux/mempool.h>
#include <linux/slab.h>

#include "fbk.h"

#define NVEC 20u
/* In reserve for each volume, and how many works of it go on at a time. */
#define CLONES 16u
#define IOS 32u
#define RANGES 16
#define VOLUME_WORKS 8 /* the waiting, the requests of destage, the ends of writes past the cache */

static struct kmem_cache *fbk_io_cache;

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

void fbk_end_status(struct fbk_io *io, blk_status_t status)
{
	end_status(io, status);
}

void fbk_end(struct fbk_io *io, int error)
{
	fbk_end_status(io, error ? errno_to_blk_status(fbk_errno(error)) : BLK_STS_OK);
}

/* In full and durable: only its end may be put off. */
static __always_inline void end_written(struct fbk_io *io)
{
	if (unlikely(fby_write_throttled(io->volume->pool->engine, io->volume->index)) && fbk_end_late(io))
		return;
	end_status(io, BLK_STS_OK);
}

void fbk_end_durable(struct fbk_io *io)
{
	end_written(io);
}

void fbk_end_written(struct fbk_io *io)
{
	if (io->owed)
		fbk_flush(io);
	else
		end_written(io);
}

/* Waits at most for another bio of the volume to end, which needs nothing of this one. */
struct fbk_io *fbk_io_lasting(struct fbk_io *io)
{
	struct fbk_io *copy;

	if (io->memory != FBK_IO_STACK)
		return io;
	copy = mempool_alloc(&io->volume->ios, io->bio->bi_opf & REQ_NOWAIT ? GFP_NOWAIT : GFP_NOIO);
	if (!copy)
		return NULL;
	*copy = *io;
	copy->memory = FBK_IO_POOLED;
	return copy;
}

/* Somebody waits for the origin. */
static void foreground(struct fbk_io *io)
{
	if (io->foreground)
		return;
	io->foreground = true;
	fby_origin_foreground(io->volume->pool->engine, io->volume->index, true);
}

void fbk_remap_end(struct fbk_io *io)
{
	if (!io->foreground)
		return;
	io->foreground = false;
	fby_origin_foreground(io->volume->pool->engine, io->volume->index, false);
}

/* --- write ---------------------------------------------------------------------- */

/* The first pieces of what is left of the bio; returns their sectors. */
static u32 gather(struct bio *bio, struct bvec_iter iter, struct fby_vec *vec, u32 *nvec)
{
	u32 bytes = 0;

	for (*nvec = 0; *nvec < NVEC && iter.bi_size && bytes < FBY_BATCH_PAGES * FBY_PAGE; ++*nvec) {
		struct bio_vec bv = mp_bvec_iter_bvec(bio->bi_io_vec, iter);

		vec[*nvec].base = page_address(bv.bv_page) + bv.bv_offset;
		vec[*nvec].len = bv.bv_len;
		bytes += bv.bv_len;
		bvec_iter_advance(bio->bi_io_vec, &iter, bv.bv_len);
	}
	return bytes / FBY_SECTOR;
}

/* A batch.  Not initialized: the kernel would clear 750 bytes for each write. */
static int write_gathered(struct fbk_io *io, u32 *sectors, u32 *wake)
{
	struct fby_pool *engine = io->volume->pool->engine;
	struct fby_vec vec[NVEC] __uninitialized;
	struct fby_write w __uninitialized;
	u32 nvec, n = gather(io->bio, io->iter, vec, &nvec);
	int decision = fby_write_begin(engine, &w, io->volume->index, io->sector + io->done, n);

	if (decision)
		return decision;
	fby_write_copy(engine, &w, vec, nvec, 0);
	fby_write_commit(engine, &w);
	fby_write_publish(engine, &w);
	*sectors = w.nsectors;
	*wake = w.wake;
	return FBY_DONE;
}

static __always_inline int write_pieces(struct fbk_io *io)
{
	struct fbk_volume *v = io->volume;
	u32 spins = 0;

	if (unlikely(!fbk_usable(v->pool)))
		return fbk_unusable(v->pool);
	while (io->iter.bi_size) {
		struct bio_vec bv = mp_bvec_iter_bvec(io->bio->bi_io_vec, io->iter);
		u32 sectors = 0, wake = 0;
		int decision;

		/* All that is left lies in one piece, as it mostly does: a call and no list. */
		if (likely(bv.bv_len == io->iter.bi_size))
			decision = fby_write(v->pool->engine, v->index, io->sector + io->done,
					     bv.bv_len / FBY_SECTOR, page_address(bv.bv_page) + bv.bv_offset,
					     &sectors, &wake);
		else
			decision = write_gathered(io, &sectors, &wake);
		if (wake)
			fbk_wake(v->pool, wake);
		if (likely(decision == FBY_DONE && sectors * FBY_SECTOR == io->iter.bi_size)) {
			io->iter.bi_size = 0;
			return FBY_DONE;
		}
		if (sectors) {
			io->done += sectors;
			bvec_iter_advance(io->bio->bi_io_vec, &io->iter, sectors * FBY_SECTOR);
		}
		if (decision != FBY_DONE && decision != FBY_WAIT_BLOCK && decision != FBY_WAIT_SLOT)
			return decision;
		if (decision == FBY_DONE)
			continue;
		if (spins++ == FBY_DEFAULT_WAIT_SPINS)
			return decision;
		cpu_relax();
	}
	return FBY_DONE;
}

static __always_inline int write_more(struct fbk_io *io)
{
	int decision;

	rcu_read_lock();
	decision = write_pieces(io);
	rcu_read_unlock();
	return decision;
}

int fbk_write_more(struct fbk_io *io)
{
	return write_more(io);
}

/* Sectors of the write's start that must not be cached for it to go past the
 * cache; 0: it goes through.
 */
static __always_inline u32 write_past_least(const struct fbk_io *io)
{
	u32 least = fby_policy_past(&io->volume->policy, bio_sectors(io->bio), io->bio->bi_opf & REQ_META);

	return likely(!least) || (io->bio->bi_opf & REQ_NOWAIT) ? 0 : least;
}

static __always_inline void map_write(struct fbk_io *io)
{
	struct bio *bio = io->bio;
	int decision = FBY_WAIT_SPACE;
	u32 least = write_past_least(io);

	io->iter = bio->bi_iter;
	io->done = 0;
	if (unlikely(least)) {
		io = fbk_io_lasting(io);
		if (!fbk_write_past(io, least))
			return;
	}
	if (likely(!fbk_others_wait(io->volume)))
		decision = write_more(io);
	if (likely(decision == FBY_DONE))
		end_written(io);
	else if (decision < 0)
		fbk_end(io, decision);
	else if (bio->bi_opf & REQ_NOWAIT)
		fbk_end_status(io, BLK_STS_AGAIN);
	else
		fbk_wait(fbk_io_lasting(io), decision);
}

/* --- write, past the cache --------------------------------------------------------- */

/* The origin ended the part that it was sent; the rest goes through the cache. */
static void past_work(struct work_struct *work)
{
	struct fbk_io *io = container_of(work, struct fbk_io, work);
	struct fbk_pool *p = io->volume->pool;
	u32 n = io->past.nsectors, wake = 0;
	int decision;

	fby_bypass_end(p->engine, &io->past, -blk_status_to_errno(io->status), &wake);
	if (wake)
		fbk_wake(p, wake);
	fbk_remap_end(io);
	if (io->status) {
		fbk_end_status(io, io->status);
		return;
	}
	fbk_flush_cover(io);
	io->done += n;
	io->past_sectors += n;
	bvec_iter_advance(io->bio->bi_io_vec, &io->iter, n * FBY_SECTOR);
	if (!io->iter.bi_size) {
		fbk_flush(io);
		return;
	}
	decision = fbk_write_more(io);
	if (decision == FBY_DONE)
		fbk_end_written(io);
	else if (decision < 0)
		fbk_end(io, decision);
	else
		fbk_wait(io, decision);
}

static void past_clone_end(struct bio *clone)
{
	struct fbk_io *io = clone->bi_private;

	io->status = clone->bi_status;
	bio_put(clone);
	INIT_WORK(&io->work, past_work);
	queue_work(io->volume->wq, &io->work);
}

int fbk_write_past(struct fbk_io *io, u32 least)
{
	u32 left = io->iter.bi_size / FBY_SECTOR;
	struct fbk_volume *v = io->volume;
	struct bio *clone;
	int rc;

	if (unlikely(!fbk_usable(v->pool)))
		return fbk_unusable(v->pool);
	rc = fby_bypass_begin(v->pool->engine, &io->past, v->index, io->sector + io->done, left, min(least, left));
	if (rc)
		return rc;
	clone = bio_alloc_clone(v->origin, io->bio, GFP_NOIO, &v->clones);
	clone->bi_iter = io->iter;
	clone->bi_iter.bi_size = io->past.nsectors * FBY_SECTOR;
	clone->bi_iter.bi_sector = io->sector + io->done;
	/* Its flush comes by the gate, and none otherwise. */
	clone->bi_opf &= ~(REQ_POLLED | REQ_PREFLUSH | REQ_FUA);
	clone->bi_private = io;
	clone->bi_end_io = past_clone_end;
	foreground(io);
	submit_bio_noacct(clone);
	return 0;
}

/* --- read ----------------------------------------------------------------------- */

static void read_part_done(struct fbk_io *io, blk_status_t status)
{
	if (status)
		WRITE_ONCE(io->status, status);
	if (!atomic_dec_and_test(&io->parts))
		return;
	fbk_remap_end(io);
	fbk_end_status(io, io->status);
}

static void read_clone_end(struct bio *clone)
{
	struct fbk_io *io = clone->bi_private;
	blk_status_t status = clone->bi_status;

	bio_put(clone);
	read_part_done(io, status);
}

/* Sectors of the bio that are to come from the origin; n is 0 when there are none. */
struct run {
	u32 at, n;
};

/* The io moves to memory that lasts with the first. */
static void read_run(struct fbk_io **at, struct run *r)
{
	struct fbk_io *io = *at, *lasting;
	struct fbk_volume *v = io->volume;
	bool nowait = io->bio->bi_opf & REQ_NOWAIT;
	struct bio *clone;

	if (!r->n)
		return;
	lasting = nowait && !bdev_nowait(v->origin) ? NULL : fbk_io_lasting(io);
	if (!lasting) {
		io->status = BLK_STS_AGAIN;
		return;
	}
	io = *at = lasting;
	clone = bio_alloc_clone(v->origin, io->bio, nowait ? GFP_NOWAIT : GFP_NOIO, &v->clones);
	if (!clone) {
		io->status = BLK_STS_AGAIN;
		return;
	}
	bio_advance(clone, r->at * FBY_SECTOR);
	clone->bi_iter.bi_size = r->n * FBY_SECTOR;
	clone->bi_iter.bi_sector = io->sector + r->at;
	clone->bi_opf &= ~REQ_POLLED;
	clone->bi_private = io;
	clone->bi_end_io = read_clone_end;
	atomic_inc(&io->parts);
	foreground(io);
	submit_bio_noacct(clone);
	r->n = 0;
}

/* The sectors in mask, of a block whose sector 0 is at base of the bio. */
static void add_runs(struct fbk_io **io, struct run *r, u32 base, u8 mask)
{
	u32 s;

	for (s = 0; s < FBY_PAGE_SECTORS; s++) {
		if (!(mask >> s & 1))
			continue;
		if (r->n && r->at + r->n != base + s)
			read_run(io, r);
		if (!r->n)
			r->at = base + s;
		r->n++;
	}
}

static int read_block(struct fbk_volume *v, u64 sector, u32 n, void *to, u8 *origin)
{
	struct fbk_pool *p = v->pool;
	u8 lost;
	int rc;

	rcu_read_lock();
	rc = unlikely(READ_ONCE(p->gone)) ? fbk_unusable(p) :
		     fby_read_block(p->engine, v->index, sector / FBY_PAGE_SECTORS, sector % FBY_PAGE_SECTORS, n, to,
				    origin, &lost);
	rcu_read_unlock();
	return rc;
}

/* One sector, whose memory lies in pieces. */
static int read_split(struct fbk_io *io, struct bvec_iter iter, u64 sector, u8 *origin)
{
	struct bio *bio = io->bio;
	u8 data[FBY_SECTOR] __uninitialized;
	u32 at = 0;
	int rc = read_block(io->volume, sector, 1, data, origin);

	while (rc == FBY_DONE && at < FBY_SECTOR) {
		struct bio_vec bv = bio_iter_iovec(bio, iter);
		u32 n = min(bv.bv_len, FBY_SECTOR - at);

		memcpy(page_address(bv.bv_page) + bv.bv_offset, data + at, n);
		bvec_iter_advance(bio->bi_io_vec, &iter, n);
		at += n;
	}
	return rc;
}

static enum fbk_map map_read(struct fbk_io *io)
{
	struct bio *bio = io->bio;
	struct bvec_iter iter = bio->bi_iter;
	u32 total = bio_sectors(bio), at = 0;
	struct run run = {};

	atomic_set(&io->parts, 1);
	io->status = BLK_STS_OK;
	while (at < total && !io->status) {
		struct bio_vec bv = mp_bvec_iter_bvec(bio->bi_io_vec, iter);
		u64 sector = io->sector + at;
		u32 first = sector % FBY_PAGE_SECTORS;
		u32 n = min3(FBY_PAGE_SECTORS - first, total - at, bv.bv_len / FBY_SECTOR);
		u8 origin;
		int rc;

		if (likely(n)) {
			rc = read_block(io->volume, sector, n, page_address(bv.bv_page) + bv.bv_offset, &origin);
		} else {
			n = 1;
			rc = read_split(io, iter, sector, &origin);
		}
		if (rc < 0)
			io->status = errno_to_blk_status(fbk_errno(rc));
		else if (rc == FBY_ORIGIN)
			add_runs(&io, &run, at - first, origin);
		bvec_iter_advance(bio->bi_io_vec, &iter, n * FBY_SECTOR);
		at += n;
	}
	if (!io->status) {
		if (run.n == total && io->memory == FBK_IO_OWNED) {
			foreground(io);
			return FBK_REMAP;
		}
		read_run(&io, &run);
	}
	if (likely(io->memory != FBK_IO_POOLED && !io->foreground))
		end_status(io, io->status); /* no part is on its way */
	else
		read_part_done(io, BLK_STS_OK);
	return FBK_TAKEN;
}

/* --- discard, write-zeroes --------------------------------------------------------- */

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

/* The part that the engine has left to the origin; then a zeroing has to be made
 * durable, before it ends.
 */
static int range_past(struct fbk_io *io, u64 sector)
{
	struct fbk_volume *v = io->volume;
	int rc = origin_range(v, io->bio, sector, io->past.nsectors);
	u32 wake = 0;

	fby_bypass_end(v->pool->engine, &io->past, -rc, &wake);
	fbk_wake(v->pool, wake);
	if (!rc && bio_op(io->bio) == REQ_OP_WRITE_ZEROES)
		fbk_flush_cover(io);
	return rc;
}

static void range_work(struct work_struct *work)
{
	struct fbk_io *io = container_of(work, struct fbk_io, work);
	struct fbk_volume *v = io->volume;
	enum fby_kind kind = bio_op(io->bio) == REQ_OP_DISCARD ? FBY_KIND_DISCARD : FBY_KIND_ZERO;
	u64 total = bio_sectors(io->bio), done = 0;
	int rc;

	for (;;) {
		u32 wake = 0;

		rcu_read_lock();
		rc = fbk_usable(v->pool) ? fby_range(v->pool->engine, v->index, kind, io->sector, total, &done,
						     &io->past, &wake) :
					   fbk_unusable(v->pool);
		rcu_read_unlock();
		fbk_wake(v->pool, wake);
		if (rc <= FBY_DONE)
			break;
		if (rc == FBY_ORIGIN) {
			rc = range_past(io, io->sector + done);
			if (rc) {
				fbk_end_status(io, errno_to_blk_status(rc));
				return;
			}
			done += io->past.nsectors;
		} else if (rc == FBY_WAIT_SPACE && READ_ONCE(v->requeue)) {
			fbk_end_status(io, BLK_STS_DM_REQUEUE);
			return;
		} else if (rc == FBY_WAIT_SPACE) {
			fbk_kick_destage(v->pool);
			usleep_range(1000, 4000);
		} else {
			/* Perhaps for as long as the origin takes to write the block. */
			usleep_range(50, 200);
		}
	}
	if (rc == FBY_DONE)
		fbk_end_written(io);
	else
		fbk_end(io, rc);
}

/* --- all ----------------------------------------------------------------------------- */

enum fbk_map fbk_map(struct fbk_volume *v, struct fbk_io *io, struct bio *bio, u64 sector)
{
	io->volume = v;
	io->bio = bio;
	io->sector = sector;
	io->foreground = false;
	io->owed = false;
	io->past_sectors = 0;
	switch (bio_op(bio)) {
	case REQ_OP_READ:
		return map_read(io);
	case REQ_OP_WRITE:
		if (likely(bio_sectors(bio))) {
			map_write(io);
			return FBK_TAKEN;
		}
		fallthrough;
	case REQ_OP_FLUSH:
		fbk_end(io, 0);
		return FBK_TAKEN;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		if (bio->bi_opf & REQ_NOWAIT) {
			fbk_end_status(io, BLK_STS_AGAIN);
			return FBK_TAKEN;
		}
		io = fbk_io_lasting(io);
		INIT_WORK(&io->work, range_work);
		queue_work(v->range_wq, &io->work);
		return FBK_TAKEN;
	default:
		fbk_end_status(io, BLK_STS_NOTSUPP);
		return FBK_TAKEN;
	}
}

int fbk_io_volume_init(struct fbk_volume *v)
{
	int rc;

	INIT_DELAYED_WORK(&v->retry, fbk_retry_work);
	INIT_LIST_HEAD(&v->wait_busy);
	INIT_LIST_HEAD(&v->wait_space);
	INIT_LIST_HEAD(&v->wait_flush);
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

/* Of one that was never initialized, too. */
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
