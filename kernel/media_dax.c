// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * media_dax.c - claims the cache device exclusively and maps it.
 *
 * The pool opens the device itself, not through the device mapper, because the pool may serve
 * several mapped devices and outlives each of them.  The mapper's claim would also let any other
 * mapped device share the cache device.
 *
 * The memory must not disappear while the pool is open.  Unbinding a pmem device notifies its
 * holder, which is this module if the pool is directly on the device.  If the pool is on a mapped
 * device above it, the mapper is not notified, and notifies nobody.  So the module holds the
 * memory itself through its users' reference count: unbinding waits for that count, and a check
 * each second notices the wait.
 */
#include <linux/dax.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "fbk.h"

/* A page frame, as the DAX calls give it. */
#ifndef FBK_HAVE_PFN_T
typedef unsigned long frame_t;

static struct page *frame_page(frame_t frame)
{
	return pfn_valid(frame) ? pfn_to_page(frame) : NULL;
}
#else
#include <linux/pfn_t.h>
typedef pfn_t frame_t;

static struct page *frame_page(frame_t frame)
{
	return pfn_t_has_page(frame) ? pfn_t_to_page(frame) : NULL;
}
#endif

#define BLANK_BYTES BIT(20)
#define LOOK_JIFFIES HZ /* between two looks at whether memory that is held is to go */

/* Pools may lie on partitions of one device.  The device has one holder, which is all these
 * pools.
 */
static DEFINE_MUTEX(claims_lock);
static LIST_HEAD(claims);

static void look_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(claims_look, look_work);

void fbk_bdev_close(struct file *file, struct block_device *bdev)
{
#ifdef BLK_FEAT_STABLE_WRITES
	bdev_fput(file);
#else
	blkdev_put(bdev, FMODE_READ | FMODE_WRITE | FMODE_EXCL);
#endif
}

int fbk_bdev_open(dev_t dev, void *holder, struct file **file, struct block_device **bdev)
{
#ifdef BLK_FEAT_STABLE_WRITES
	*file = bdev_file_open_by_dev(dev, BLK_OPEN_READ | BLK_OPEN_WRITE, holder, NULL);
	if (IS_ERR(*file))
		return PTR_ERR(*file);
	*bdev = file_bdev(*file);
#elif !defined(BLK_OPEN_READ)
	*bdev = blkdev_get_by_dev(dev, FMODE_READ | FMODE_WRITE | FMODE_EXCL, holder);
	if (IS_ERR(*bdev))
		return PTR_ERR(*bdev);
#else
#error "block devices are opened and limited otherwise in kernels 6.5 to 6.10; use 6.1 to 6.4, or 6.11 and later"
#endif
	if (!bdev_read_only(*bdev)) /* nobody else looks: an open by number does not, and a bio is only warned of */
		return 0;
	fbk_bdev_close(*file, *bdev);
	return -EROFS;
}

/* --- the memory is held ------------------------------------------------------------ */

static struct dev_pagemap *pagemap_of(struct page *page)
{
	if (!is_zone_device_page(page))
		return NULL;
#ifdef FBK_HAVE_PAGE_PGMAP
	return page_pgmap(page);
#else
	return page->pgmap;
#endif
}

/* The caller holds the claims lock. */
static int hold_pagemap(struct fbk_claim *c, struct dev_pagemap *map)
{
	struct dev_pagemap **held;
	u32 i;

	for (i = 0; i < c->nheld; i++)
		if (c->held[i] == map)
			return 0;
	held = krealloc(c->held, (c->nheld + 1) * sizeof(*held), GFP_KERNEL);
	if (!held)
		return -ENOMEM;
	c->held = held;
	if (!percpu_ref_tryget_live(&map->ref))
		return -ENODEV;
	held[c->nheld++] = map;
	return 0;
}

/* A piece of the device's memory stays as long as the DAX read lock is held. */
static int hold_memory(struct fbk_claim *c, frame_t frame)
{
	struct page *page = frame_page(frame);
	struct dev_pagemap *map = page ? pagemap_of(page) : NULL;
	int rc;

	if (!map) /* nothing would keep it from going */
		return -EOPNOTSUPP;
	mutex_lock(&claims_lock);
	rc = hold_pagemap(c, map);
	mutex_unlock(&claims_lock);
	return rc;
}

/* The caller holds the claims lock, and nobody touches the memory any more. */
static void let_memory_go(struct fbk_claim *c)
{
	while (c->nheld)
		percpu_ref_put(&c->held[--c->nheld]->ref);
	kfree(c->held);
	c->held = NULL;
}

static bool is_to_go(const struct fbk_claim *c)
{
	u32 i;

	for (i = 0; i < c->nheld; i++)
		if (percpu_ref_is_dying(&c->held[i]->ref))
			return true;
	return false;
}

/* The caller holds the claims lock.  The device is being removed, which waits for this. */
static void claim_gone(struct fbk_claim *c)
{
	c->gone(c);
	let_memory_go(c);
}

static void look_work(struct work_struct *work)
{
	struct fbk_claim *c;

	mutex_lock(&claims_lock);
	list_for_each_entry(c, &claims, list)
		if (is_to_go(c))
			claim_gone(c);
	if (!list_empty(&claims))
		schedule_delayed_work(&claims_look, LOOK_JIFFIES);
	mutex_unlock(&claims_lock);
}

void fbk_media_exit(void)
{
	cancel_delayed_work_sync(&claims_look);
}

/* --- mapping ------------------------------------------------------------------------ */

/* Maps pages from first on that lie in sequence at *kaddr.  A page known to be poisoned is
 * mapped as well: reading it fails, as it should, and writing heals it.
 */
static long map_some(struct dax_device *dax, pgoff_t first, long n, void **kaddr, frame_t *frame)
{
	long got = dax_direct_access(dax, first, n, DAX_ACCESS, kaddr, frame);

	if (got == -EHWPOISON || got == -EIO)
		got = dax_direct_access(dax, first, 1, DAX_RECOVERY_WRITE, kaddr, frame);
	return got == 0 ? -ENXIO : got;
}

/* The device's pages lie in pieces, and one mapping of our own covers them all. */
static int map_pieces(struct fbk_claim *c, pgoff_t start, long pages)
{
	struct page **list = kvmalloc_array(pages, sizeof(*list), GFP_KERNEL);
	long at = 0, got, i;

	if (!list)
		return -ENOMEM;
	while (at < pages) {
		void *kaddr;
		struct page *page;
		frame_t frame;

		got = map_some(c->dax, start + at, pages - at, &kaddr, &frame);
		if (got > 0) {
			int rc = hold_memory(c, frame);

			got = rc ? rc : got;
		}
		if (got < 0) {
			kvfree(list);
			return got;
		}
		page = frame_page(frame);
		for (i = 0; i < got && at < pages; i++, at++)
			list[at] = pfn_to_page(page_to_pfn(page) + i);
		cond_resched();
	}
	c->media.base = vmap(list, pages, VM_MAP, PAGE_KERNEL);
	kvfree(list);
	c->vmapped = true;
	return c->media.base ? 0 : -ENOMEM;
}

static int map_all(struct fbk_claim *c, u64 start_bytes)
{
	u64 skipped = c->start_sector << SECTOR_SHIFT;
	pgoff_t start = (start_bytes + skipped) >> PAGE_SHIFT;
	long pages = (bdev_nr_bytes(c->bdev) - skipped) >> PAGE_SHIFT, at, got;

	int rc;

	c->media.size = (u64)pages << PAGE_SHIFT;
	for (at = 0; at < pages; at += got) {
		void *kaddr;
		frame_t frame;

		got = map_some(c->dax, start + at, pages - at, &kaddr, &frame);
		if (got < 0)
			return got;
		rc = hold_memory(c, frame);
		if (rc)
			return rc;
		if (at == 0)
			c->media.base = kaddr;
		else if ((u8 *)kaddr != c->media.base + ((u64)at << PAGE_SHIFT))
			return map_pieces(c, start, pages);
	}
	return 0;
}

/* The kernel calls this when the device is unbound, and waits for it.  It also calls this for a
 * page that failed.  Then it must continue as for a device without a holder.
 */
static int notify_failure(struct dax_device *dax, u64 offset, u64 len, int flags)
{
	struct fbk_claim *c;

	if (offset || len != U64_MAX)
		return -EOPNOTSUPP;
	mutex_lock(&claims_lock);
	list_for_each_entry(c, &claims, list)
		if (c->dax == dax)
			claim_gone(c);
	mutex_unlock(&claims_lock);
	return 0;
}

static const struct dax_holder_operations holder_ops = { .notify_failure = notify_failure };

/* The caller holds the claims lock.  The first claim of a device makes the module its holder,
 * and the last one ends that.
 */
static bool is_held(struct dax_device *dax)
{
	struct fbk_claim *c;

	list_for_each_entry(c, &claims, list)
		if (c->dax == dax)
			return true;
	return false;
}

static int hold_dax(struct fbk_claim *c, u64 *start)
{
	mutex_lock(&claims_lock);
	c->dax = fs_dax_get_by_bdev(c->bdev, start, NULL, NULL);
	if (c->dax && !is_held(c->dax)) {
		fs_put_dax(c->dax, NULL);
		c->dax = fs_dax_get_by_bdev(c->bdev, start, &claims, &holder_ops);
	}
	if (c->dax) {
		list_add(&c->list, &claims);
		schedule_delayed_work(&claims_look, LOOK_JIFFIES);
	}
	mutex_unlock(&claims_lock);
	return c->dax ? 0 : -EOPNOTSUPP;
}

static void drop_dax(struct fbk_claim *c)
{
	mutex_lock(&claims_lock);
	let_memory_go(c);
	list_del(&c->list);
	fs_put_dax(c->dax, is_held(c->dax) ? NULL : &claims);
	mutex_unlock(&claims_lock);
}

static int claim_image(struct fbk_claim *c, char **text)
{
	int rc = fbk_image_load(c, text);

	if (rc)
		fbk_bdev_close(c->file, c->bdev);
	return rc;
}

int fbk_claim(struct fbk_claim *c, dev_t dev, u64 start_sector, char **text)
{
	u64 start = 0;
	int rc, id;

	rc = fbk_bdev_open(dev, c, &c->file, &c->bdev);
	if (rc) {
		*text = rc == -EBUSY ? "The cache device is in use: unmount it or stop what has it open" :
			rc == -EROFS ? "The cache device is read-only: make it writable (blockdev --setrw) if it may be written" :
				       "Opening the cache device";
		return rc;
	}
	c->start_sector = start_sector;
	rc = -EINVAL;
	*text = "start_sector lies beyond the end of the cache device";
	if (start_sector >= bdev_nr_sectors(c->bdev))
		goto no_dax;
	*text = "What others wrote to the cache device cannot be written";
	/* Data that others wrote through the page cache must be on the media first. */
	rc = sync_blockdev(c->bdev);
	if (rc)
		goto no_dax;
	rc = hold_dax(c, &start);
	if (rc == -EOPNOTSUPP)
		return claim_image(c, text);
	if (rc)
		goto no_dax;
	*text = "The cache device needs a system call to make data durable, which the module cannot do";
	rc = -EOPNOTSUPP;
	if (!dax_synchronous(c->dax))
		goto no_map;
	*text = "Mapping the cache device";
	id = dax_read_lock();
	rc = map_all(c, start);
	dax_read_unlock(id);
	if (rc == -EOPNOTSUPP)
		*text = "The cache device's memory could go while it is used: a pmem device in fsdax mode is wanted";
	if (rc)
		goto no_map;
	return 0;
no_map:
	drop_dax(c);
no_dax:
	fbk_bdev_close(c->file, c->bdev);
	return rc;
}

void fbk_release(struct fbk_claim *c)
{
	bool image = c->media.device;

	if (image)
		fbk_image_free(c);
	else if (c->vmapped)
		vunmap(c->media.base);
	/* The page cache has not seen what we wrote. */
	invalidate_bdev(c->bdev);
	if (!image)
		drop_dax(c);
	fbk_bdev_close(c->file, c->bdev);
}

bool fbk_claim_blank(struct fbk_claim *c)
{
	u64 n = min_t(u64, c->media.size, BLANK_BYTES), at;
	u8 piece[256];
	u32 crc = 0;

	for (at = 0; at < n; at += sizeof(piece))
		if (fby_port_read_crc(&c->media, piece, at, sizeof(piece), &crc) ||
		    memchr_inv(piece, 0, sizeof(piece)))
			return false;
	return true;
}
