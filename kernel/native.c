// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * native.c - /dev/forebayN, without the device mapper: its cost is a third of a
 * write with fsync, and its setup is a table.
 *
 * Devices are made and removed by lines of text written to /dev/forebay-control; a read from
 * the same open file gives the answer.  This is a character device rather than configfs or
 * netlink.  It is there when the module is, and needs no file system mounted, no second socket
 * and no attribute for each option.  An answer can say in words what went wrong.
 *
 *	attach CACHE ORIGIN VOLUME [OPTION [VALUE]]...	"forebayN"
 *	detach forebayN [clean|give-up]	clean: only if the origin has all that is not lost;
 *		give-up: also if memory alone has something, of this volume or, as the last device
 *		of the pool, of any; "medium_failed" and those volumes, if the pool's device failed
 *	status forebayN
 *	command forebayN flush|cleaner|clear_stats|set OPTION VALUE
 *	list		a line each: name, cache, origin, volume, options
 *
 * An answer begins with "ok" or with "error NUMBER TEXT".  An origin that hangs while its
 * device is attached or detached delays no other command: list and status show the device
 * meanwhile, and other commands that name it get EBUSY.
 *
 * /sys/block/forebayN/forebay/ has the names that udev makes stable links of:
 * volume, pool.
 */
#include <linux/capability.h>
#include <linux/idr.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string_helpers.h>
#include <linux/uaccess.h>

#include "fbk.h"

#define COMMAND_MAX 1024u
#define ARGS_MAX 64u
#define ANSWER_BYTES (8u << 10) /* at first */
#define ANSWER_LINE (4u << 10)	/* and no line is as long as this */
#define WHY_BYTES (FBK_ALONE_BYTES + 256u) /* less than ANSWER_BYTES */

struct native {
	struct list_head list; /* lock */
	struct gendisk *disk;
	int number;
	char name[DISK_NAME_LEN];
	unsigned int commands; /* running on it; lock */
	bool changing; /* being attached or detached, by the only one that may touch it; lock */
	bool removed; /* disk->open_mutex */
	dev_t origin_dev;
	struct file *origin_file;
	struct block_device *origin;
	struct fbk_setup setup;
};

/* Guards the list and its devices; released during anything that waits for an origin.  Each entry
 * of the list has an open setup. */
static DEFINE_MUTEX(fbk_native_lock);
static LIST_HEAD(fbk_natives);
static DEFINE_IDA(fbk_numbers);

/* --- the disk ------------------------------------------------------------------------ */

static void native_submit(struct bio *bio)
{
	struct native *n = bio->bi_bdev->bd_disk->private_data;
	struct fbk_io io __uninitialized; /* nor cleared: fbk_map sets the rest */

	io.memory = FBK_IO_STACK;
	io.began = 0;
	if (blk_queue_io_stat(n->disk->queue))
		io.began = bio_start_io_acct(bio);
	fbk_map(&n->setup.volume, &io, bio, bio->bi_iter.bi_sector);
}

#ifdef BLK_OPEN_READ
static int native_open(struct gendisk *disk, blk_mode_t mode)
{
	struct native *n = disk->private_data;
#else
static int native_open(struct block_device *bdev, fmode_t mode)
{
	struct native *n = bdev->bd_disk->private_data;
#endif
	return n->removed ? -ENXIO : 0;
}

static const struct block_device_operations native_fops = {
	.owner = THIS_MODULE,
	.submit_bio = native_submit,
	.open = native_open,
};

/* Copies, by name, the origin's limits that matter for requests passed on unchanged.  The volume
 * does not promise anything else that an origin can do, and does not pass on limits of newer
 * kernels by chance.  The other limits are the volume's own: it takes bios of any size, and
 * announces no volatile cache where an acknowledged write is durable.  A request that may not
 * wait goes to the origin only if the origin supports that.  I/O is not accounted unless somebody
 * turns queue/iostats on, as on the bare device: accounting takes a thirtieth of a write. */
static void set_limits(const struct native *n, const struct queue_limits *origin, struct queue_limits *limits)
{
	limits->logical_block_size = n->setup.volume.block_size;
	limits->physical_block_size = max_t(unsigned int, origin->physical_block_size, FBY_PAGE);
	limits->alignment_offset = origin->alignment_offset;
	limits->io_min = max_t(unsigned int, origin->io_min, FBY_PAGE);
	limits->io_opt = origin->io_opt;
	limits->dma_alignment = origin->dma_alignment;
	limits->virt_boundary_mask = origin->virt_boundary_mask;
	limits->seg_boundary_mask = origin->seg_boundary_mask;
	limits->max_segments = origin->max_segments;
	limits->max_segment_size = origin->max_segment_size;
	limits->max_hw_sectors = UINT_MAX;
	limits->max_write_zeroes_sectors = UINT_MAX >> SECTOR_SHIFT;
	limits->max_hw_discard_sectors = bdev_max_discard_sectors(n->origin) ? UINT_MAX >> SECTOR_SHIFT : 0;
	limits->discard_granularity = limits->max_hw_discard_sectors ? FBY_PAGE : 0;
	limits->discard_alignment = 0;
}

#ifdef BLK_FEAT_STABLE_WRITES
static struct gendisk *alloc_disk(const struct native *n)
{
	struct queue_limits origin, limits = {}; /* 0 means the kernel's default */

	blk_set_stacking_limits(&origin);
	queue_limits_stack_bdev(&origin, n->origin, 0, "forebay");
	limits.features = origin.features & BLK_FEAT_STABLE_WRITES;
	if (!n->setup.volume.tickets)
		limits.features |= BLK_FEAT_NOWAIT;
	if (n->setup.volume.later)
		limits.features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
	set_limits(n, &origin, &limits);
	return blk_alloc_disk(&limits, NUMA_NO_NODE);
}
#else
static struct gendisk *alloc_disk(const struct native *n)
{
	struct gendisk *disk = blk_alloc_disk(NUMA_NO_NODE);
	struct queue_limits origin;
	struct request_queue *q;

	if (!disk)
		return ERR_PTR(-ENOMEM);
	q = disk->queue;
	blk_set_stacking_limits(&q->limits);
	disk_stack_limits(disk, n->origin, 0);
	origin = q->limits;
	blk_set_stacking_limits(&q->limits);
	set_limits(n, &origin, &q->limits);
	blk_queue_max_hw_sectors(q, UINT_MAX);
	blk_queue_max_discard_sectors(q, q->limits.max_hw_discard_sectors);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
	if (!n->setup.volume.tickets)
		blk_queue_flag_set(QUEUE_FLAG_NOWAIT, q);
	blk_queue_write_cache(q, n->setup.volume.later, n->setup.volume.later);
	blk_queue_flag_clear(QUEUE_FLAG_IO_STAT, q);
	if (bdev_stable_writes(n->origin))
		blk_queue_flag_set(QUEUE_FLAG_STABLE_WRITES, q);
	return disk;
}
#endif

static ssize_t volume_show(struct device *dev, struct device_attribute *attr, char *to)
{
	struct native *n = dev_to_disk(dev)->private_data;

	return sysfs_emit(to, "%s\n", n->setup.volume.name);
}
static DEVICE_ATTR_RO(volume);

static ssize_t pool_show(struct device *dev, struct device_attribute *attr, char *to)
{
	struct native *n = dev_to_disk(dev)->private_data;
	struct fby_pool_info *info = kmalloc(sizeof(*info), GFP_KERNEL);
	ssize_t bytes;

	if (!info)
		return -ENOMEM;
	fby_pool_info(n->setup.volume.pool->engine, info);
	bytes = sysfs_emit(to, "%pU\n", info->sb.uuid);
	kfree(info);
	return bytes;
}
static DEVICE_ATTR_RO(pool);

static struct attribute *native_attrs[] = { &dev_attr_volume.attr, &dev_attr_pool.attr, NULL };
static const struct attribute_group native_group = { .name = "forebay", .attrs = native_attrs };
static const struct attribute_group *native_groups[] = { &native_group, NULL };

static int add_native_disk(struct native *n, char **error)
{
	int rc;

	*error = "No memory for the disk";
	n->disk = alloc_disk(n);
	if (IS_ERR(n->disk)) {
		rc = PTR_ERR(n->disk);
		n->disk = NULL;
		return rc;
	}
	*error = "The disk could not be added";
	strscpy(n->disk->disk_name, n->name, sizeof(n->disk->disk_name));
	n->disk->fops = &native_fops;
	n->disk->private_data = n;
	set_capacity(n->disk, n->setup.volume.sectors);
	return device_add_disk(NULL, n->disk, native_groups);
}

static int native_enter(char **error)
{
	*error = "Interrupted while a pool was opened";
	return mutex_lock_interruptible(&fbk_native_lock) ? -EINTR : 0;
}

/* The disk is gone or was never added. */
static void native_free(struct native *n)
{
	fbk_volume_stop(&n->setup.volume);
	mutex_lock(&fbk_native_lock);
	list_del(&n->list);
	mutex_unlock(&fbk_native_lock);
	fbk_setup_close(&n->setup);
	if (n->disk)
		put_disk(n->disk);
	if (n->number >= 0)
		ida_free(&fbk_numbers, n->number);
	if (n->origin)
		fbk_bdev_close(n->origin_file, n->origin);
	kfree(n);
}

static int open_origin(struct native *n, const char *path, char **error)
{
	int rc;

	*error = "No such origin";
	rc = fbk_device_number(path, &n->origin_dev);
	if (rc)
		return rc;
	*error = "The origin cannot be opened for us alone: unmount it or stop what has it open";
	rc = fbk_bdev_open(n->origin_dev, n, &n->origin_file, &n->origin);
	if (rc == -EROFS)
		*error = (char *)fbk_read_only_origin;
	if (rc)
		n->origin = NULL;
	return rc;
}

/* Opens the pool and puts the device into the list.  The caller holds the lock: two attaches of
 * one volume are told apart here, before either may change the record of its origin.
 */
static int open_volume(struct native *n, const char *cache, const char *volume, char **error)
{
	struct native *other;
	dev_t dev;
	int rc;

	*error = "No such cache device";
	rc = fbk_device_number(cache, &dev);
	if (rc)
		return rc;
	*error = "The volume is in use by another device";
	list_for_each_entry(other, &fbk_natives, list)
		if (other->setup.cache == dev && !strcmp(other->setup.volume.name, volume))
			return -EBUSY;
	rc = fbk_setup_open(&n->setup, n->origin, bdev_nr_sectors(n->origin), cache, volume, n, error);
	if (rc)
		return rc;
	*error = "No number for the disk";
	n->number = ida_alloc(&fbk_numbers, GFP_KERNEL);
	if (n->number < 0)
		return n->number;
	snprintf(n->name, sizeof(n->name), "forebay%d", n->number);
	n->changing = true;
	list_add_tail(&n->list, &fbk_natives);
	return 0;
}

/* Waits for the origin as long as that takes, with no lock. */
static int native_start(struct native *n, char **error)
{
	int rc;

	*error = "The volume could not be attached; the kernel's log says why";
	rc = fbk_volume_start(&n->setup.volume);
	return rc ? rc : add_native_disk(n, error);
}

/* Notes in the volume's record that the origin bears the mark, or may lose it. */
static void count_mark(struct fbk_volume *v, bool marked)
{
	u32 unused;

	if (!v->marked || fbk_pool_enter(v->pool))
		return;
	if (marked && fby_volume_mark(v->pool->engine, v->index, FBY_MARK_BEGIN, &unused) == FBY_DONE)
		fby_volume_mark(v->pool->engine, v->index, FBY_MARK_SET, &unused);
	else if (!marked)
		fby_volume_mark(v->pool->engine, v->index, FBY_MARK_CLEARED, &unused);
	mutex_unlock(&v->pool->lock);
}

/* argv: CACHE ORIGIN VOLUME OPTIONS...  Returns the device's number. */
static int native_attach(unsigned int argc, char **argv, char **error)
{
	struct native *n;
	int rc;

	*error = "Wanted: attach CACHE ORIGIN VOLUME [OPTION [VALUE]]...";
	if (argc < 3)
		return -EINVAL;
	*error = "No memory";
	n = kzalloc(sizeof(*n), GFP_KERNEL);
	if (!n)
		return -ENOMEM;
	INIT_LIST_HEAD(&n->list);
	n->number = -1;
	rc = fbk_setup_parse(&n->setup, argc - 3, argv + 3, error);
	n->setup.volume.whole = true;
	if (!rc)
		rc = open_origin(n, argv[1], error);
	if (!rc)
		rc = native_enter(error);
	if (!rc) {
		rc = open_volume(n, argv[0], argv[2], error);
		mutex_unlock(&fbk_native_lock);
	}
	if (!rc)
		rc = native_start(n, error);
	if (rc) {
		native_free(n);
		return rc;
	}
	count_mark(&n->setup.volume, true);
	fbk_setup_stay(&n->setup);
	mutex_lock(&fbk_native_lock);
	rc = n->number;
	n->changing = false;
	mutex_unlock(&fbk_native_lock);
	return rc;
}

/* Called while nobody writes.  0: everything that can be is on the flushed origin.  If nothing
 * else is left, the volume's record says so.
 */
static int detach_clean(struct fbk_volume *v, char **error)
{
	struct fby_volume_info *info = kmalloc(sizeof(*info), GFP_KERNEL);
	int rc = -EAGAIN;

	*error = "No memory";
	if (!info)
		return -ENOMEM;
	*error = "Something was written since it was flushed";
	if (fby_volume_clean(v->pool->engine, v->index)) {
		fby_volume_info(v->pool->engine, v->index, info);
		rc = info->flush_owed ? -EAGAIN : 0;
	}
	if (!rc && fbk_volume_judge(v, info, false) == FBY_IS_WHOLE)
		count_mark(v, false);
	kfree(info);
	return rc;
}

enum detach {
	DETACH,
	DETACH_CLEAN,
	DETACH_GIVE_UP,
};

/* The caller holds the lock.  0: the caller may remove the device. */
static int detach_begin(struct native *n, enum detach how, char **error)
{
	struct fbk_volume *v = &n->setup.volume;
	int rc = 0;

	*error = "A command is running on the device: wait for it";
	if (n->commands)
		return -EBUSY;
	*error = "The device is open: unmount it or stop what uses it";
	if (!mutex_trylock(&n->disk->open_mutex)) /* whoever has it may wait for the origin */
		return -EBUSY;
	if (disk_openers(n->disk))
		rc = -EBUSY;
	else if (how == DETACH_CLEAN)
		rc = detach_clean(v, error);
	if (!rc) {
		n->removed = true;
		n->changing = true;
	}
	mutex_unlock(&n->disk->open_mutex);
	return rc;
}

/* The caller of detach_begin does not remove the device, and has no lock; it has one after. */
static void detach_undo(struct native *n)
{
	mutex_lock(&n->disk->open_mutex);
	n->removed = false;
	mutex_unlock(&n->disk->open_mutex);
	mutex_lock(&fbk_native_lock);
	n->changing = false;
}

static struct native *native_find(const char *name, char **error)
{
	struct native *n;

	*error = "No such device";
	list_for_each_entry(n, &fbk_natives, list)
		if (!strcmp(n->name, name))
			return n;
	return NULL;
}

/* --- the control device ------------------------------------------------------------------ */

struct control {
	struct mutex lock; /* guards the fields below */
	size_t room, bytes, at; /* of the answer: allocated bytes; its length; bytes read so far */
	char *answer;
	char *why; /* the text of an error that names things */
};

__printf(2, 3) static void answer(struct control *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	c->bytes += vscnprintf(c->answer + c->bytes, c->room - c->bytes, format, args);
	va_end(args);
}

/* Makes room for one more line, so that no answer is ever truncated. */
static int answer_room(struct control *c)
{
	char *more;

	if (c->room - c->bytes >= ANSWER_LINE)
		return 0;
	more = kvmalloc(2 * c->room, GFP_KERNEL);
	if (!more)
		return -ENOMEM;
	memcpy(more, c->answer, c->bytes);
	kvfree(c->answer);
	c->answer = more;
	c->room *= 2;
	return 0;
}

static int answer_list(struct control *c, char **error)
{
	struct native *n;

	answer(c, "ok\n");
	list_for_each_entry(n, &fbk_natives, list) {
		*error = "No memory for the list";
		if (answer_room(c))
			return -ENOMEM;
		answer(c, "%s %u:%u %pg ", n->name, MAJOR(n->setup.cache), MINOR(n->setup.cache), n->origin);
		fbk_setup_options(&n->setup, c->answer + c->bytes, c->room - c->bytes);
		c->bytes += strlen(c->answer + c->bytes);
		answer(c, "\n");
	}
	return 0;
}

static void answer_status(struct control *c, struct native *n)
{
	answer(c, "ok ");
	fbk_setup_status(&n->setup, c->answer + c->bytes, c->room - c->bytes - 1);
	c->bytes += strlen(c->answer + c->bytes);
	answer(c, "\n");
}

/* Refuses a detach that loses what memory alone has.  The last device of a pool takes all of it. */
static int check_loss(struct control *c, struct native *n, bool last, char **error)
{
	struct fbk_volume *v = &n->setup.volume;
	size_t at = scnprintf(c->why, WHY_BYTES, "The pool's device has failed, and memory alone has what the origins of detached volumes lack: ");

	if (!last || !fbk_pool_alone(v->pool, v, c->why + at, FBK_ALONE_BYTES))
		return 0;
	at = strlen(c->why);
	scnprintf(c->why + at, WHY_BYTES - at, ": attach each and detach it with --rescue, before this one; or lose it (--give-up)");
	*error = c->why;
	return -EIO;
}

/* Says in c->why what a detach gives up. */
static void note_loss(struct control *c, struct native *n, bool last)
{
	struct fbk_volume *v = &n->setup.volume;

	*c->why = '\0';
	if (last)
		fbk_pool_alone(v->pool, NULL, c->why, FBK_ALONE_BYTES);
	else if (fbk_memory_alone(v))
		strscpy(c->why, "kept", WHY_BYTES);
}

static int run_detach(struct control *c, struct native *n, unsigned int argc, char **argv, char **error)
{
	static const char *const names[] = { "", "clean", "give-up" }; /* enum detach */
	int rc, how = match_string(names, ARRAY_SIZE(names), argc ? argv[0] : "");
	bool failed, last;

	*error = "Wanted: detach DEVICE [clean|give-up]";
	if (how < 0 || argc > 1)
		return -EINVAL;
	rc = detach_begin(n, how, error);
	if (rc)
		return rc;
	mutex_unlock(&fbk_native_lock);
	last = fbk_setup_leave(&n->setup);
	*error = "The pool's device has failed, and memory alone has what the origin lacks: write it there (forebay detach --flush), or lose it (--give-up)";
	if (how == DETACH && fbk_memory_alone(&n->setup.volume))
		rc = -EIO;
	else if (how != DETACH_GIVE_UP)
		rc = check_loss(c, n, last, error);
	if (rc) {
		fbk_setup_stay(&n->setup);
		detach_undo(n);
		return rc;
	}
	*c->why = '\0';
	if (how == DETACH_GIVE_UP)
		note_loss(c, n, last);
	failed = *c->why || fbk_medium_failed(n->setup.volume.pool);
	del_gendisk(n->disk);
	native_free(n);
	mutex_lock(&fbk_native_lock);
	answer(c, "ok%s%s%s\n", failed ? " medium_failed" : "", *c->why ? " " : "", c->why);
	return 0;
}

static int run_setup_command(struct native *n, unsigned int argc, char **argv, char **error)
{
	int rc;

	*error = "The command failed; the kernel's log may say why";
	n->commands++;
	mutex_unlock(&fbk_native_lock);
	rc = fbk_setup_command(&n->setup, argc, argv, error);
	mutex_lock(&fbk_native_lock);
	n->commands--;
	return rc;
}

/* Called with the lock held; commands that wait release it.  argv: the command, the device, and
 * the options. */
static int run_on_device(struct control *c, unsigned int argc, char **argv, char **error)
{
	struct native *n = native_find(argv[1], error);
	int rc;

	if (!n)
		return -ENODEV;
	if (!strcmp(argv[0], "status")) {
		answer_status(c, n);
		return 0;
	}
	*error = "The device is being attached or detached: wait for that";
	if (n->changing)
		return -EBUSY;
	if (!strcmp(argv[0], "detach"))
		return run_detach(c, n, argc - 2, argv + 2, error);
	rc = run_setup_command(n, argc - 2, argv + 2, error);
	if (!rc)
		answer(c, "ok\n");
	return rc;
}

static int run_command(struct control *c, unsigned int argc, char **argv, char **error)
{
	static const char *const to_device[] = { "detach", "status", "command" };
	bool list = argc && !strcmp(argv[0], "list");
	int rc;

	*error = "Wanted: attach, detach, status, command or list";
	if (argc && !strcmp(argv[0], "attach")) {
		rc = native_attach(argc - 1, argv + 1, error);
		if (rc >= 0)
			answer(c, "ok forebay%d\n", rc);
		return min(rc, 0);
	}
	if (!list && (argc < 2 || match_string(to_device, ARRAY_SIZE(to_device), argv[0]) < 0))
		return -EINVAL;
	rc = native_enter(error);
	if (rc)
		return rc;
	if (list)
		rc = answer_list(c, error);
	else
		rc = run_on_device(c, argc, argv, error);
	mutex_unlock(&fbk_native_lock);
	return rc;
}

static void run_text(struct control *c, char *text)
{
	char *argv[ARGS_MAX], *word, *error = "";
	unsigned int argc = 0;
	int rc = -E2BIG;

	while ((word = strsep(&text, " \t\n")) && argc < ARGS_MAX)
		if (*word)
			argv[argc++] = word;
	c->bytes = 0;
	c->at = 0;
	if (!word)
		rc = run_command(c, argc, argv, &error);
	if (rc) {
		c->bytes = 0;
		answer(c, "error %d %s\n", -rc, error);
	}
}

static ssize_t control_write(struct file *file, const char __user *from, size_t n, loff_t *unused)
{
	struct control *c = file->private_data;
	char *text;

	/* Not for a descriptor that somebody handed to a more trusted program. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (n > COMMAND_MAX)
		return -E2BIG;
	text = memdup_user_nul(from, n);
	if (IS_ERR(text))
		return PTR_ERR(text);
	mutex_lock(&c->lock);
	run_text(c, text);
	mutex_unlock(&c->lock);
	kfree(text);
	return n;
}

static ssize_t control_read(struct file *file, char __user *to, size_t n, loff_t *unused)
{
	struct control *c = file->private_data;

	mutex_lock(&c->lock);
	n = min(n, c->bytes - c->at);
	if (copy_to_user(to, c->answer + c->at, n)) {
		mutex_unlock(&c->lock);
		return -EFAULT;
	}
	c->at += n;
	mutex_unlock(&c->lock);
	return n;
}

static int control_open(struct inode *inode, struct file *file)
{
	struct control *c;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		return -ENOMEM;
	c->room = ANSWER_BYTES;
	c->answer = kvmalloc(c->room, GFP_KERNEL);
	c->why = kvmalloc(WHY_BYTES, GFP_KERNEL);
	if (!c->answer || !c->why) {
		kvfree(c->answer);
		kvfree(c->why);
		kfree(c);
		return -ENOMEM;
	}
	mutex_init(&c->lock);
	file->private_data = c;
	return stream_open(inode, file);
}

static int control_release(struct inode *inode, struct file *file)
{
	struct control *c = file->private_data;

	kvfree(c->answer);
	kvfree(c->why);
	kfree(c);
	return 0;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = control_open,
	.release = control_release,
	.read = control_read,
	.write = control_write,
};

static struct miscdevice control_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "forebay-control",
	.mode = 0600,
	.fops = &control_fops,
};

int fbk_native_init(void)
{
	return misc_register(&control_device);
}

/* Devices hold the module only while they are open, so unused devices are removed with it. */
void fbk_native_exit(void)
{
	struct native *n, *next;

	misc_deregister(&control_device);
	list_for_each_entry_safe(n, next, &fbk_natives, list) {
		del_gendisk(n->disk);
		fbk_volume_rescue(&n->setup.volume);
		native_free(n);
	}
	ida_destroy(&fbk_numbers);
}
