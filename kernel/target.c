// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * target.c - the device-mapper target.
 *
 *	START LEN forebay ORIGIN CACHE VOLUME [#ARGS [OPTION [VALUE]]...]
 *
 * The volume is attached from resume to suspend, so that a table can be replaced while the device
 * is in use.  The old table detaches before the new one attaches.
 */
#include <linux/device-mapper.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "fbk.h"

struct target {
	struct dm_dev *origin;
	struct fbk_setup setup;
};

static void target_free(struct dm_target *ti, struct target *t)
{
	fbk_setup_close(&t->setup);
	if (t->origin)
		dm_put_device(ti, t->origin);
	kfree(t);
}

/* Whether there is a table, of whatever kind, that announces no volatile cache. */
static bool announces_none(struct mapped_device *md)
{
	struct block_device *present = dm_disk(md)->part0;

	return bdev_nr_sectors(present) && !bdev_write_cache(present);
}

static int target_open(struct dm_target *ti, struct target *t, unsigned int argc, char **argv)
{
	static const struct dm_arg count[] = { { 0, 64, "Invalid number of options" } };
	struct dm_arg_set as = { argc - 3, argv + 3 };
	unsigned int n = 0;
	int rc;

	if (as.argc) {
		rc = dm_read_arg_group(count, &as, &n, &ti->error);
		if (rc)
			return rc;
	}
	ti->error = "Too many arguments";
	if (as.argc != n)
		return -EINVAL;
	rc = fbk_setup_parse(&t->setup, n, as.argv, &ti->error);
	if (rc)
		return rc;
	t->setup.volume.no_cache = announces_none(dm_table_get_md(ti->table));
	ti->error = "The origin cannot be opened";
	rc = dm_get_device(ti, argv[0], dm_table_get_mode(ti->table), &t->origin);
	if (rc)
		return rc;
	return fbk_setup_open(&t->setup, t->origin->bdev, ti->len, argv[1], argv[2], dm_table_get_md(ti->table),
			      &ti->error);
}

static int forebay_ctr(struct dm_target *ti, unsigned int argc, char **argv)
{
	struct target *t;
	int rc;

	ti->error = "Wanted: ORIGIN CACHE VOLUME [#ARGS [OPTION [VALUE]]...]";
	if (argc < 3)
		return -EINVAL;
	ti->error = "No memory";
	t = kzalloc(sizeof(*t), GFP_KERNEL);
	if (!t)
		return -ENOMEM;
	rc = target_open(ti, t, argc, argv);
	if (rc) {
		target_free(ti, t);
		return rc;
	}
	ti->private = t;
	ti->per_io_data_size = sizeof(struct fbk_io);
	/* Else an acknowledged write is durable: there is nothing to flush. */
	ti->num_flush_bios = t->setup.volume.later;
	ti->flush_supported = t->setup.volume.later;
	ti->num_discard_bios = 1;
	ti->num_write_zeroes_bios = 1;
	fbk_setup_stay(&t->setup);
	return 0;
}

static void forebay_dtr(struct dm_target *ti)
{
	target_free(ti, ti->private);
}

/* --- I/O and life ------------------------------------------------------------------------ */

static int forebay_map(struct dm_target *ti, struct bio *bio)
{
	struct target *t = ti->private;
	struct fbk_io *io = dm_per_bio_data(bio, sizeof(*io));
	sector_t sector = dm_target_offset(ti, bio->bi_iter.bi_sector);

	io->memory = FBK_IO_OWNED;
	io->began = 0;
	if (fbk_map(&t->setup.volume, io, bio, sector) == FBK_TAKEN)
		return DM_MAPIO_SUBMITTED;
	bio_set_dev(bio, t->origin->bdev);
	bio->bi_iter.bi_sector = sector;
	return DM_MAPIO_REMAPPED;
}

static int forebay_end_io(struct dm_target *ti, struct bio *bio, blk_status_t *error)
{
	fbk_remap_end(dm_per_bio_data(bio, sizeof(struct fbk_io)));
	return DM_ENDIO_DONE;
}

/* Writes that wait for space would block a suspend for as long as the origin fails.  In a
 * suspend without a flush they may go back to the mapper.
 */
static void forebay_presuspend(struct dm_target *ti)
{
	struct target *t = ti->private;

	if (!dm_noflush_suspending(ti))
		return;
	WRITE_ONCE(t->setup.volume.requeue, true);
	mod_delayed_work(t->setup.volume.wq, &t->setup.volume.retry, 0);
}

static void forebay_presuspend_undo(struct dm_target *ti)
{
	struct target *t = ti->private;

	WRITE_ONCE(t->setup.volume.requeue, false);
}

static void forebay_postsuspend(struct dm_target *ti)
{
	struct target *t = ti->private;
	char *error;
	int rc;

	if (!t->setup.volume.started)
		return;
	if (t->setup.flush_on_suspend) {
		rc = fbk_volume_drain(&t->setup.volume, &error);
		if (rc)
			pr_warn("forebay: volume %s: not drained on suspend: error %d: %s\n", t->setup.volume.name, rc,
				error);
	}
	if (!dm_noflush_suspending(ti)) /* a removal, too, which cannot be refused */
		fbk_volume_rescue(&t->setup.volume);
	fbk_volume_stop(&t->setup.volume);
}

static int forebay_preresume(struct dm_target *ti)
{
	struct target *t = ti->private;

	return fbk_volume_start(&t->setup.volume);
}

static int forebay_iterate_devices(struct dm_target *ti, iterate_devices_callout_fn fn, void *data)
{
	struct target *t = ti->private;

	return fn(ti, t->origin, 0, ti->len, data);
}

static void forebay_io_hints(struct dm_target *ti, struct queue_limits *limits)
{
	struct target *t = ti->private;

	limits->logical_block_size = max_t(unsigned int, limits->logical_block_size, t->setup.volume.block_size);
	limits->physical_block_size = max_t(unsigned int, limits->physical_block_size, FBY_PAGE);
	limits->io_min = max_t(unsigned int, limits->io_min, FBY_PAGE);
#ifdef BLK_FEAT_STABLE_WRITES
	limits->features &= ~(BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA);
	if (t->setup.volume.later)
		limits->features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
#endif
}

static void forebay_status(struct dm_target *ti, status_type_t type, unsigned int flags, char *result,
			   unsigned int maxlen)
{
	struct target *t = ti->private;
	unsigned int sz = 0;

	switch (type) {
	case STATUSTYPE_INFO:
		fbk_setup_status(&t->setup, result, maxlen);
		break;
	case STATUSTYPE_TABLE:
		DMEMIT("%s %u:%u ", t->origin->name, MAJOR(t->setup.cache), MINOR(t->setup.cache));
		fbk_setup_options(&t->setup, result + sz, maxlen - sz);
		break;
	case STATUSTYPE_IMA:
		*result = '\0';
		break;
	}
}

static int forebay_message(struct dm_target *ti, unsigned int argc, char **argv, char *result, unsigned int maxlen)
{
	struct target *t = ti->private;
	char *error = NULL;
	int rc = fbk_setup_command(&t->setup, argc, argv, &error);

	if (rc && error) /* the mapper passes on a number alone */
		pr_warn("forebay: volume %s: %s: error %d: %s\n", t->setup.volume.name, argv[0], rc, error);
	return rc;
}

static struct target_type forebay_target = {
	.name = "forebay",
	.version = { 1, 0, 0 },
	.module = THIS_MODULE,
	.features = DM_TARGET_NOWAIT,
	.ctr = forebay_ctr,
	.dtr = forebay_dtr,
	.map = forebay_map,
	.end_io = forebay_end_io,
	.presuspend = forebay_presuspend,
	.presuspend_undo = forebay_presuspend_undo,
	.postsuspend = forebay_postsuspend,
	.preresume = forebay_preresume,
	.status = forebay_status,
	.message = forebay_message,
	.iterate_devices = forebay_iterate_devices,
	.io_hints = forebay_io_hints,
};

int fbk_target_init(void)
{
	return dm_register_target(&forebay_target);
}

void fbk_target_exit(void)
{
	dm_unregister_target(&forebay_target);
}
