// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * target.c - the device-mapper target.
 *
 *	START LEN forebay ORIGIN CACHE VOLUME [#ARGS [OPTION [VALUE]]...]
 *
 * The options have dm-writecache's names where they mean the same.  Options of
 * the pool (watermarks, ages, verify, checksums, slots) are those of whoever
 * came first; `message set` changes them for all that share it.
 *
 * The volume is attached from resume to suspend, so that a table can be
 * replaced while the device is in use: the old one lets go before the new takes.
 */
#include <linux/device-mapper.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "fbk.h"

#define JOBS_DEFAULT 16u
#define BUFFER_BYTES (256u << 10)
#define ROUND_PAGES 16384u
#define NS_PER_MS 1000000ull

/* Counters at the last clear_stats. */
struct baseline {
	u64 writes, written_sectors, reads, hits, misses, merges, discards, zeroes;
	u64 waits_block, waits_slot, waits_space;
	u64 origin_writes, origin_sectors, origin_flushes, origin_errors, pages_destaged, rounds;
};

struct target {
	struct dm_dev *origin;
	char cache[32]; /* as major:minor */
	char origin_id[FBY_IDENTITY_MAX + 1];
	struct fbk_open open;
	struct fbk_volume volume;
	bool accept_changed;
	bool flush_on_suspend;
	bool slots_given;
	struct baseline base;
};

/* --- options ------------------------------------------------------------------------ */

static int parse_choice(const char *value, const char *const *names, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		if (!strcmp(value, names[i]))
			return i;
	return -EINVAL;
}

static const char *const verify_names[] = { "always", "first", "never" };
static const char *const holes_names[] = { "fail", "isolate", "accept" };
static const char *const switch_names[] = { "off", "on" };

/* The pool's; 1: not one of them. */
static int parse_pool_option(struct fby_options *o, const char *name, const char *value)
{
	unsigned int n = 0;
	int choice;
	int rc = kstrtouint(value, 10, &n);

	if (!strcmp(name, "verify")) {
		choice = parse_choice(value, verify_names, ARRAY_SIZE(verify_names));
		if (choice < 0)
			return choice;
		o->verify = choice;
		return 0;
	}
	if (!strcmp(name, "checksums")) {
		choice = parse_choice(value, switch_names, ARRAY_SIZE(switch_names));
		if (choice < 0)
			return choice;
		o->no_checksums = choice == 0;
		return 0;
	}
	if (!strcmp(name, "high_watermark"))
		o->high_watermark = n;
	else if (!strcmp(name, "low_watermark"))
		o->low_watermark = n;
	else if (!strcmp(name, "max_age"))
		o->max_age_ns = n * NS_PER_MS;
	else if (!strcmp(name, "idle"))
		o->idle_ns = n * NS_PER_MS;
	else
		return 1;
	return rc;
}

/* With a value; 1: not one of them. */
static int parse_target_option(struct target *t, const char *name, const char *value)
{
	unsigned int n = 0;
	int choice, rc = kstrtouint(value, 10, &n);

	if (!strcmp(name, "writeback_jobs")) {
		t->volume.nbuffers = n;
		return rc || n < 1 || n > 64 ? -EINVAL : 0;
	}
	if (!strcmp(name, "slots")) {
		t->open.options.nslots = n;
		t->slots_given = true;
		return rc || n < 1 || n > 64 ? -EINVAL : 0;
	}
	if (!strcmp(name, "holes")) {
		choice = parse_choice(value, holes_names, ARRAY_SIZE(holes_names));
		if (choice < 0)
			return choice;
		t->volume.holes = choice;
		return 0;
	}
	if (!strcmp(name, "origin_id"))
		return strscpy(t->origin_id, value, sizeof(t->origin_id)) < 0 ? -EINVAL : 0;
	return 1;
}

static bool parse_flag(struct target *t, const char *name)
{
	if (!strcmp(name, "create"))
		t->open.create = true;
	else if (!strcmp(name, "accept_changed_origin"))
		t->accept_changed = true;
	else if (!strcmp(name, "cleaner"))
		t->volume.cleaner = true;
	else if (!strcmp(name, "flush_on_suspend"))
		t->flush_on_suspend = true;
	else
		return false;
	return true;
}

static int parse_options(struct target *t, struct dm_arg_set *as, char **error)
{
	static const struct dm_arg count[] = { { 0, 64, "Invalid number of options" } };
	unsigned int n = 0;
	int rc;

	if (as->argc == 0)
		return 0;
	rc = dm_read_arg_group(count, as, &n, error);
	if (rc)
		return rc;
	while (n > 0) {
		const char *name = dm_shift_arg(as);

		n--;
		if (parse_flag(t, name))
			continue;
		*error = "Unknown option, or its value is missing";
		if (n-- == 0)
			return -EINVAL;
		rc = parse_pool_option(&t->open.options, name, as->argv[0]);
		if (rc == 1)
			rc = parse_target_option(t, name, as->argv[0]);
		if (rc == 1)
			return -EINVAL;
		*error = "Invalid value of an option";
		if (rc)
			return rc;
		dm_shift_arg(as);
	}
	*error = "Too many arguments";
	return as->argc ? -EINVAL : 0;
}

/* --- construct -------------------------------------------------------------------------- */

static int cache_device(const char *path, dev_t *dev)
{
	unsigned int major, minor;
	char dummy;

	if (sscanf(path, "%u:%u%c", &major, &minor, &dummy) == 2) {
		*dev = MKDEV(major, minor);
		return MAJOR(*dev) == major && MINOR(*dev) == minor ? 0 : -EOVERFLOW;
	}
	return lookup_bdev(path, dev);
}

static void target_free(struct dm_target *ti, struct target *t)
{
	if (t->volume.pool) {
		fbk_volume_free(&t->volume);
		fbk_pool_put(t->volume.pool);
	}
	if (t->origin)
		dm_put_device(ti, t->origin);
	kfree(t);
}

static int target_open(struct dm_target *ti, struct target *t, char **argv)
{
	struct fbk_volume *v = &t->volume;
	struct fbk_pool *p;
	dev_t dev;
	int rc;

	ti->error = "The origin cannot be opened";
	rc = dm_get_device(ti, argv[0], dm_table_get_mode(ti->table), &t->origin);
	if (rc)
		return rc;
	ti->error = "No such cache device";
	rc = cache_device(argv[1], &dev);
	if (rc)
		return rc;
	ti->error = "The volume's name is too long";
	if (strscpy(v->name, argv[2], sizeof(v->name)) < 0)
		return -EINVAL;
	ti->error = "Origin and cache are the same device";
	if (dev == t->origin->bdev->bd_dev)
		return -EINVAL;
	format_dev_t(t->cache, dev);
	p = fbk_pool_get(dev, &t->open, &ti->error);
	if (IS_ERR(p))
		return PTR_ERR(p);
	v->pool = p;
	v->origin = t->origin->bdev;
	v->sectors = ti->len;
	v->owner = dm_table_get_md(ti->table);
	return fbk_volume_prepare(v, t->origin_id[0] ? t->origin_id : NULL, t->open.create, t->accept_changed,
				  &ti->error);
}

static int forebay_ctr(struct dm_target *ti, unsigned int argc, char **argv)
{
	struct dm_arg_set as = { argc, argv };
	struct target *t;
	int rc;

	ti->error = "Wanted: ORIGIN CACHE VOLUME [#ARGS [OPTION [VALUE]]...]";
	if (argc < 3)
		return -EINVAL;
	ti->error = "No memory";
	t = kzalloc(sizeof(*t), GFP_KERNEL);
	if (!t)
		return -ENOMEM;
	t->volume.nbuffers = JOBS_DEFAULT;
	t->volume.buffer_bytes = BUFFER_BYTES;
	t->volume.round_pages = ROUND_PAGES;
	t->open.options.nslots = clamp(num_online_cpus(), 1u, 64u);
	dm_consume_args(&as, 3);
	rc = parse_options(t, &as, &ti->error);
	if (!rc)
		rc = target_open(ti, t, argv);
	if (rc) {
		target_free(ti, t);
		return rc;
	}
	ti->private = t;
	ti->per_io_data_size = sizeof(struct fbk_io);
	ti->num_flush_bios = 0; /* what is acknowledged is durable: there is nothing to flush */
	ti->num_discard_bios = 1;
	ti->num_write_zeroes_bios = 1;
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

	if (fbk_map(&t->volume, io, bio, sector) == FBK_TAKEN)
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

/* Writes that wait for space would hold a suspend for as long as the origin
 * fails; without a flush they may go back to the mapper. */
static void forebay_presuspend(struct dm_target *ti)
{
	struct target *t = ti->private;

	if (!dm_noflush_suspending(ti))
		return;
	WRITE_ONCE(t->volume.requeue, true);
	mod_delayed_work(t->volume.pool->wq, &t->volume.pool->retry, 0);
}

static void forebay_presuspend_undo(struct dm_target *ti)
{
	struct target *t = ti->private;

	WRITE_ONCE(t->volume.requeue, false);
}

static void forebay_postsuspend(struct dm_target *ti)
{
	struct target *t = ti->private;
	int rc;

	if (!t->volume.started)
		return;
	if (t->flush_on_suspend) {
		rc = fbk_volume_drain(&t->volume);
		if (rc)
			pr_warn("forebay: volume %s: not drained on suspend: error %d\n", t->volume.name, rc);
	}
	fbk_volume_stop(&t->volume);
}

static int forebay_preresume(struct dm_target *ti)
{
	struct target *t = ti->private;

	return fbk_volume_start(&t->volume);
}

static int forebay_iterate_devices(struct dm_target *ti, iterate_devices_callout_fn fn, void *data)
{
	struct target *t = ti->private;

	return fn(ti, t->origin, 0, ti->len, data);
}

static void forebay_io_hints(struct dm_target *ti, struct queue_limits *limits)
{
	struct target *t = ti->private;

	limits->logical_block_size = max_t(unsigned int, limits->logical_block_size, t->volume.block_size);
	limits->physical_block_size = max_t(unsigned int, limits->physical_block_size, FBY_PAGE);
	limits->io_min = max_t(unsigned int, limits->io_min, FBY_PAGE);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	limits->features &= ~(BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA);
#endif
}

/* --- status, messages ------------------------------------------------------------------------ */

struct counters {
	struct fby_pool_info pool;
	struct fby_volume_info volume;
};

static void read_counters(struct target *t, struct counters *c, struct baseline *b)
{
	fby_pool_info(t->volume.pool->engine, &c->pool);
	fby_volume_info(t->volume.pool->engine, t->volume.index, &c->volume);
	*b = (struct baseline){
		.writes = c->volume.writes,
		.written_sectors = c->volume.written_sectors,
		.reads = c->pool.reads,
		.hits = c->pool.read_hit_sectors,
		.misses = c->pool.read_miss_sectors,
		.merges = c->pool.merges,
		.discards = c->pool.discards,
		.zeroes = c->pool.zeroes,
		.waits_block = c->pool.waits_block,
		.waits_slot = c->pool.waits_slot,
		.waits_space = c->pool.waits_space,
		.origin_writes = c->volume.origin_writes,
		.origin_sectors = c->volume.origin_sectors_written,
		.origin_flushes = c->volume.origin_flushes,
		.origin_errors = c->volume.origin_errors,
		.pages_destaged = c->volume.pages_destaged,
		.rounds = c->volume.rounds,
	};
}

static const char *state_name(const struct target *t, const struct counters *c)
{
	if (!fby_asserts_hold())
		return "broken";
	if (!t->volume.started)
		return "suspended";
	if (c->volume.last_error)
		return "origin_failed";
	if (c->volume.lost_blocks || c->volume.holes || c->volume.holes_unknown)
		return "lost_data";
	return "ok";
}

static void status_info(struct target *t, char *result, unsigned int maxlen)
{
	static const char *const destage[] = { "idle", "writing", "flushing", "committing", "backoff" };
	struct counters *c = kzalloc(sizeof(*c), GFP_NOIO);
	const struct baseline *z = &t->base;
	struct baseline b;
	unsigned int sz = 0;

	if (!c) {
		DMEMIT("no_memory");
		return;
	}
	read_counters(t, c, &b);
	DMEMIT("%s pool=%pU volume=%s", state_name(t, c), c->pool.sb.uuid, t->volume.name);
	DMEMIT(" chunks=%u chunks_free=%u chunks_volume=%u pages=%llu lost_blocks=%llu holes=%llu holes_unknown=%llu",
	       c->pool.sb.nchunks, c->pool.chunks_free, c->volume.chunks, c->volume.pages, c->volume.lost_blocks,
	       c->volume.holes, c->volume.holes_unknown);
	DMEMIT(" destage=%s draining=%u last_error=%d damaged_pages=%llu watermark=%llu memory=%llu",
	       destage[c->volume.destage], c->volume.draining, c->volume.last_error, c->pool.damaged_pages,
	       c->volume.watermark, c->pool.memory_bytes);
	DMEMIT(" writes=%llu written_sectors=%llu reads=%llu read_hit_sectors=%llu read_miss_sectors=%llu merges=%llu",
	       b.writes - z->writes, b.written_sectors - z->written_sectors, b.reads - z->reads, b.hits - z->hits,
	       b.misses - z->misses, b.merges - z->merges);
	DMEMIT(" discards=%llu zeroes=%llu waits_block=%llu waits_slot=%llu waits_space=%llu throttle_ns=%llu",
	       b.discards - z->discards, b.zeroes - z->zeroes, b.waits_block - z->waits_block,
	       b.waits_slot - z->waits_slot, b.waits_space - z->waits_space,
	       c->volume.throttle_ns);
	DMEMIT(" origin_writes=%llu origin_sectors=%llu origin_flushes=%llu origin_errors=%llu pages_destaged=%llu rounds=%llu",
	       b.origin_writes - z->origin_writes, b.origin_sectors - z->origin_sectors,
	       b.origin_flushes - z->origin_flushes, b.origin_errors - z->origin_errors,
	       b.pages_destaged - z->pages_destaged, b.rounds - z->rounds);
	kfree(c);
}

/* Recreates the device: all but what its first creation alone needed. */
static void status_table(struct target *t, char *result, unsigned int maxlen)
{
	struct fby_options o;
	unsigned int sz = 0, n = 2 * 7;

	fby_pool_options(t->volume.pool->engine, &o);
	n += 2 * !!t->origin_id[0] + 2 * t->slots_given + t->volume.cleaner + t->flush_on_suspend;
	DMEMIT("%s %s %s %u", t->origin->name, t->cache, t->volume.name, n);
	DMEMIT(" high_watermark %u low_watermark %u max_age %llu idle %llu verify %s checksums %s writeback_jobs %u",
	       o.high_watermark, o.low_watermark, div64_u64(o.max_age_ns, NS_PER_MS), div64_u64(o.idle_ns, NS_PER_MS),
	       verify_names[o.verify], switch_names[!o.no_checksums], t->volume.nbuffers);
	if (t->slots_given)
		DMEMIT(" slots %u", t->open.options.nslots);
	if (t->origin_id[0])
		DMEMIT(" origin_id %s", t->origin_id);
	if (t->volume.cleaner)
		DMEMIT(" cleaner");
	if (t->flush_on_suspend)
		DMEMIT(" flush_on_suspend");
}

static void forebay_status(struct dm_target *ti, status_type_t type, unsigned int flags, char *result,
			   unsigned int maxlen)
{
	struct target *t = ti->private;

	switch (type) {
	case STATUSTYPE_INFO:
		status_info(t, result, maxlen);
		break;
	case STATUSTYPE_TABLE:
		status_table(t, result, maxlen);
		break;
	case STATUSTYPE_IMA:
		*result = '\0';
		break;
	}
}

static int message_set(struct target *t, const char *name, const char *value)
{
	struct fbk_pool *p = t->volume.pool;
	struct fby_options o;
	int rc;

	mutex_lock(&p->lock);
	fby_pool_options(p->engine, &o);
	rc = parse_pool_option(&o, name, value) ? -FBY_E_GEOMETRY : 0;
	if (!rc)
		rc = fby_pool_set_options(p->engine, &o);
	mutex_unlock(&p->lock);
	if (rc < 0) {
		pr_err("forebay: set %s %s: not a valid value beside the other options\n", name, value);
		return fbk_errno(rc);
	}
	fbk_kick_destage(p);
	return rc;
}

static int forebay_message(struct dm_target *ti, unsigned int argc, char **argv, char *result, unsigned int maxlen)
{
	struct target *t = ti->private;
	struct counters *c;

	if (argc == 3 && !strcasecmp(argv[0], "set"))
		return message_set(t, argv[1], argv[2]);
	if (argc != 1)
		return -EINVAL;
	if (!strcasecmp(argv[0], "flush") || !strcasecmp(argv[0], "drain"))
		return t->volume.started ? fbk_volume_drain(&t->volume) : -EBUSY;
	if (!strcasecmp(argv[0], "flush_on_suspend")) {
		t->flush_on_suspend = true;
		return 0;
	}
	if (!strcasecmp(argv[0], "cleaner")) {
		WRITE_ONCE(t->volume.cleaner, true);
		fbk_kick_destage(t->volume.pool);
		return 0;
	}
	if (!strcasecmp(argv[0], "clear_stats")) {
		c = kzalloc(sizeof(*c), GFP_KERNEL);
		if (!c)
			return -ENOMEM;
		read_counters(t, c, &t->base);
		kfree(c);
		return 0;
	}
	return -EINVAL;
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
