// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * setup.c - what the device-mapper target and the native device have in common:
 * options, opening a volume, status, commands.
 *
 * The options have dm-writecache's names where they mean the same.  Options of
 * the pool (watermarks, ages, verify, checksums, slots) are those of whoever
 * came first; the command "set" changes them for all that share it.
 */
#include <linux/kernel.h>
#include <linux/slab.h>

#include "fbk.h"

#define NS_PER_MS 1000000ull

/* --- options ------------------------------------------------------------------------ */

static const char *const verify_names[] = { "always", "first", "never" };
static const char *const holes_names[] = { "fail", "isolate", "accept" };
static const char *const mode_names[] = { "write-back", "write-through", "cleaner" }; /* enum fby_mode */
static const char *const full_names[] = { "wait", "bypass" };
static const char *const switch_names[] = { "off", "on" };
static const char *const durable_names[] = { "auto", "always", "flush" }; /* enum fbk_durable */
static const char *const without_effect[] = { "autocommit_blocks", "autocommit_time", "pause_writeback" };

/* Parses an option of the pool.  1: not one of them. */
static int parse_pool_option(struct fby_options *o, const char *name, const char *value)
{
	unsigned int n = 0;
	int rc = kstrtouint(value, 10, &n);

	if (!strcmp(name, "verify")) {
		rc = match_string(verify_names, ARRAY_SIZE(verify_names), value);
		if (rc >= 0)
			o->verify = rc;
		return min(rc, 0);
	}
	if (!strcmp(name, "checksums")) {
		rc = match_string(switch_names, ARRAY_SIZE(switch_names), value);
		if (rc >= 0)
			o->no_checksums = rc == 0;
		return min(rc, 0);
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

/* Parses the options that decide which requests bypass the cache; 1: not one of them. */
static int parse_bypass_option(struct fbk_volume *v, const char *name, const char *value)
{
	u64 bytes;
	int rc;

	if (!strcmp(name, "bypass_limit")) {
		rc = kstrtou64(value, 10, &bytes);
		if (rc || bytes > (u64)U32_MAX * FBY_SECTOR)
			return -EINVAL;
		WRITE_ONCE(v->policy.bypass_sectors, fby_policy_limit(bytes));
		return 0;
	}
	if (!strcmp(name, "mode")) {
		rc = match_string(mode_names, ARRAY_SIZE(mode_names), value);
		if (rc >= 0)
			WRITE_ONCE(v->policy.mode, rc);
		return min(rc, 0);
	}
	if (!strcmp(name, "metadata_only")) { /* to change it; a table has the flag */
		rc = match_string(switch_names, ARRAY_SIZE(switch_names), value);
		if (rc >= 0)
			WRITE_ONCE(v->policy.metadata_only, rc == 1);
		return min(rc, 0);
	}
	if (!strcmp(name, "when_full")) {
		rc = match_string(full_names, ARRAY_SIZE(full_names), value);
		if (rc >= 0)
			WRITE_ONCE(v->policy.full_bypasses, rc == 1);
		return min(rc, 0);
	}
	return 1;
}

/* Parses an option of the device that has a value.  1: not one of them. */
static int parse_device_option(struct fbk_setup *s, const char *name, const char *value)
{
	unsigned int n = 0;
	int rc = kstrtouint(value, 10, &n);

	if (!strcmp(name, "writeback_jobs")) {
		s->volume.nrequests = n;
		return rc || n < 1 || n > FBY_DEFAULT_QUEUE_DEPTH_MAX ? -EINVAL : 0;
	}
	if (!strcmp(name, "slots")) {
		s->open.options.nslots = n;
		s->slots_given = true;
		return rc || n < 1 || n > FBY_DEFAULT_SLOTS_MAX ? -EINVAL : 0;
	}
	if (!strcmp(name, "holes")) {
		rc = match_string(holes_names, ARRAY_SIZE(holes_names), value);
		if (rc >= 0)
			s->volume.holes = rc;
		return min(rc, 0);
	}
	if (!strcmp(name, "start_sector")) {
		rc = kstrtou64(value, 10, &s->open.start_sector);
		return rc || s->open.start_sector % (PAGE_SIZE / SECTOR_SIZE) ? -EINVAL : 0;
	}
	if (!strcmp(name, "durable")) {
		rc = match_string(durable_names, ARRAY_SIZE(durable_names), value);
		if (rc >= 0)
			s->volume.durable = rc;
		return min(rc, 0);
	}
	if (match_string(without_effect, ARRAY_SIZE(without_effect), name) >= 0) {
		pr_info("forebay: %s has no effect: a group is sent as soon as somebody waits for it, and destage goes at the origin's pace\n",
			name);
		return rc;
	}
	if (!strcmp(name, "mark")) {
		s->volume.marked = true;
		s->volume.mark.marked = strcmp(value, "new") != 0;
		s->volume.mark.least = n;
		return s->volume.mark.marked ? rc : 0;
	}
	if (!strcmp(name, "mark_volume")) {
		s->volume.mark.names = true;
		return uuid_parse(value, (uuid_t *)s->volume.mark.uuid);
	}
	if (!strcmp(name, "origin_id"))
		return strscpy(s->origin_id, value, sizeof(s->origin_id)) < 0 ? -EINVAL : 0;
	return parse_bypass_option(&s->volume, name, value);
}

static bool parse_flag(struct fbk_setup *s, const char *name)
{
	if (!strcmp(name, "create"))
		s->open.create = true;
	else if (!strcmp(name, "accept_changed_origin"))
		s->accept_changed = true;
	else if (!strcmp(name, "origin_by_name"))
		s->volume.by_name = true;
	else if (!strcmp(name, "cleaner"))
		s->volume.policy.mode = FBY_MODE_CLEANER;
	else if (!strcmp(name, "metadata_only"))
		s->volume.policy.metadata_only = true;
	else if (!strcmp(name, "flush_on_suspend"))
		s->flush_on_suspend = true;
	else if (!strcmp(name, "fua") || !strcmp(name, "nofua"))
		s->open.no_fua = name[0] == 'n';
	else
		return false;
	return true;
}

int fbk_setup_parse(struct fbk_setup *s, unsigned int argc, char **argv, char **error)
{
	unsigned int at = 0;
	int rc;

	s->volume.nrequests = FBY_DEFAULT_QUEUE_DEPTH;
	s->volume.buffer_bytes = FBY_DEFAULT_BUFFER_BYTES;
	s->volume.round_pages = FBY_DEFAULT_ROUND_PAGES;
	s->volume.policy.durable = true; /* the devices announce no volatile write cache */
	s->open.options.nslots = clamp(num_online_cpus(), 1u, (u32)FBY_DEFAULT_SLOTS_MAX);
	s->open.options.statics = true;
	while (at < argc) {
		const char *name = argv[at++];

		if (parse_flag(s, name))
			continue;
		*error = "Unknown option, or its value is missing";
		if (at == argc)
			return -EINVAL;
		rc = parse_pool_option(&s->open.options, name, argv[at]);
		if (rc == 1)
			rc = parse_device_option(s, name, argv[at]);
		if (rc == 1)
			return -EINVAL;
		*error = "Invalid value of an option";
		if (rc)
			return rc;
		at++;
	}
	return 0;
}

/* --- open and close -------------------------------------------------------------------- */

int fbk_device_number(const char *path, dev_t *dev)
{
	unsigned int major, minor;
	char dummy;

	if (sscanf(path, "%u:%u%c", &major, &minor, &dummy) == 2) {
		*dev = MKDEV(major, minor);
		return MAJOR(*dev) == major && MINOR(*dev) == minor ? 0 : -EOVERFLOW;
	}
	return lookup_bdev(path, dev);
}

const char fbk_read_only_origin[] = "The origin is read-only: make it writable (blockdev --setrw) if it may be written";

int fbk_setup_open(struct fbk_setup *s, struct block_device *origin, u64 sectors, const char *cache,
		   const char *volume, const void *owner, char **error)
{
	struct fbk_volume *v = &s->volume;
	struct fbk_pool *p;
	int rc;

	*error = "No such cache device";
	rc = fbk_device_number(cache, &s->cache);
	if (rc)
		return rc;
	*error = "The volume's name is too long";
	if (strscpy(v->name, volume, sizeof(v->name)) < 0)
		return -EINVAL;
	*error = "The origin is a zoned disk, which takes writes in the order of its zones alone: use a disk without zones, or one behind dm-zoned";
	if (bdev_is_zoned(origin))
		return -EOPNOTSUPP;
	*error = (char *)fbk_read_only_origin;
	if (bdev_read_only(origin)) /* the mapper does not look */
		return -EROFS;
	*error = "Origin and cache are the same device";
	if (s->cache == origin->bd_dev)
		return -EINVAL;
	p = fbk_pool_get(s->cache, &s->open, error);
	if (IS_ERR(p))
		return PTR_ERR(p);
	s->leaving = true;
	v->pool = p;
	v->origin = origin;
	v->sectors = sectors;
	v->owner = owner;
	return fbk_volume_prepare(v, s->origin_id[0] ? s->origin_id : NULL, s->open.create, s->accept_changed, error);
}

void fbk_setup_close(struct fbk_setup *s)
{
	if (!s->volume.pool)
		return;
	fbk_volume_free(&s->volume);
	fbk_pool_put(s->volume.pool, s->leaving);
	s->volume.pool = NULL;
}

void fbk_setup_stay(struct fbk_setup *s)
{
	s->leaving = false;
	fbk_pool_stay(s->volume.pool);
}

bool fbk_setup_leave(struct fbk_setup *s)
{
	s->leaving = true;
	return fbk_pool_leave(s->volume.pool);
}

/* --- status ------------------------------------------------------------------------ */

/* Appends to result, as DMEMIT does. */
#define EMIT(x...) (sz += sz >= maxlen ? 0 : scnprintf(result + sz, maxlen - sz, x))

struct counters {
	struct fby_pool_info pool;
	struct fby_volume_info volume;
};

static void read_counters(struct fbk_setup *s, struct counters *c, struct fbk_baseline *b)
{
	fby_pool_info(s->volume.pool->engine, &c->pool);
	fby_volume_info(s->volume.pool->engine, s->volume.index, &c->volume);
	*b = (struct fbk_baseline){
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
		.pages_relocated = c->volume.pages_relocated,
		.rounds = c->volume.rounds,
	};
}

static const char *state_name(const struct fbk_setup *s, const struct counters *c)
{
	if (!fby_asserts_hold(&s->volume.pool->asserts))
		return "broken";
	if (READ_ONCE(s->volume.pool->gone))
		return "media_gone";
	if (!s->volume.started)
		return "suspended";
	if (fbk_medium_failed(s->volume.pool))
		return "medium_failed";
	if (c->volume.last_error)
		return "origin_failed";
	if (c->volume.lost_blocks || c->volume.holes || c->volume.holes_unknown)
		return "lost_data";
	return "ok";
}

static unsigned int emit_ratio(char *result, unsigned int maxlen, unsigned int sz, const char *name, u64 n, u64 of)
{
	u32 hundredths;
	u64 whole = div_u64_rem(div64_u64(n * 100 + of / 2, of), 100, &hundredths);

	EMIT(" %s=%llu.%02u", name, whole, hundredths);
	return sz;
}

/* The fields that `forebay status` shows of a served volume, by the same names. */
static unsigned int emit_origin_use(char *result, unsigned int maxlen, unsigned int sz, const struct fbk_baseline *b,
				    const struct fbk_baseline *z)
{
	u64 page = FBY_PAGE / FBY_SECTOR, requests = b->origin_writes - z->origin_writes;
	u64 written = b->written_sectors - z->written_sectors;

	if (!requests)
		return sz;
	sz = emit_ratio(result, maxlen, sz, "written_pages_per_request", written, requests * page);
	sz = emit_ratio(result, maxlen, sz, "pages_per_request", b->origin_sectors - z->origin_sectors,
			requests * page);
	return emit_ratio(result, maxlen, sz, "copies_per_written_page",
			  (b->pages_relocated - z->pages_relocated) * page, max(written, page));
}

/* What is cached of volumes that no device has. */
static u64 detached_bytes(struct fbk_pool *p)
{
	struct fby_volume_info *info = kzalloc(sizeof(*info), GFP_NOIO);
	u64 n, bytes = 0;
	u16 i;

	for (i = 0; info && i < FBY_VOLUMES_MAX; i++) {
		n = fbk_not_at_home(p, i, info);
		bytes += info->attached ? 0 : n;
	}
	kfree(info);
	return bytes;
}

/* What went to the device of a pool that is written in groups. */
static unsigned int emit_medium(char *result, unsigned int maxlen, unsigned int sz, const struct fbk_setup *s)
{
	static const char *const means[] = { "through", "fua", "flush" }; /* enum fby_durable */
	const struct fbk_claim *claim = &s->volume.pool->claim;
	struct fby_medium_info m;

	fby_medium_info(s->volume.pool->engine, &m);
	if (!m.grouped)
		return sz;
	EMIT(" medium=%s medium_by=%s volatile=%u durable_write_ns=%llu", m.failed ? "failed" : "ok",
	     means[claim->device.durable], s->volume.later, claim->durable_ns);
	EMIT(" groups=%llu records=%llu medium_writes=%llu medium_bytes=%llu medium_flushes=%llu", m.groups, m.records,
	     m.writes, m.written_bytes, m.flushes);
	EMIT(" medium_write_errors=%llu medium_flush_errors=%llu groups_again=%llu", m.write_errors, m.flush_errors,
	     m.again);
	if (m.failed)
		EMIT(" detached_bytes=%llu", detached_bytes(s->volume.pool));
	return sz;
}

void fbk_setup_status(struct fbk_setup *s, char *result, unsigned int maxlen)
{
	static const char *const destage[] = { "idle", "writing", "flushing", "committing", "backoff" };
	struct counters *c = kzalloc(sizeof(*c), GFP_NOIO);
	const struct fbk_baseline *z = &s->base;
	struct fbk_baseline b;
	unsigned int sz = 0;

	if (!c) {
		EMIT("no_memory");
		return;
	}
	read_counters(s, c, &b);
	EMIT("%s pool=%pU volume=%s", state_name(s, c), c->pool.sb.uuid, s->volume.name);
	EMIT(" chunks=%u chunks_free=%u chunks_volume=%u pages=%llu lost_blocks=%llu holes=%llu holes_unknown=%llu",
	       c->pool.sb.nchunks, c->pool.chunks_free, c->volume.chunks, c->volume.pages, c->volume.lost_blocks,
	       c->volume.holes, c->volume.holes_unknown);
	EMIT(" destage=%s draining=%u last_error=%d damaged_pages=%llu watermark=%llu memory=%llu",
	       destage[c->volume.destage], c->volume.draining, c->volume.last_error, c->pool.damaged_pages,
	       c->volume.watermark, c->pool.memory_bytes);
	EMIT(" writes=%llu written_sectors=%llu reads=%llu read_hit_sectors=%llu read_miss_sectors=%llu merges=%llu",
	       b.writes - z->writes, b.written_sectors - z->written_sectors, b.reads - z->reads, b.hits - z->hits,
	       b.misses - z->misses, b.merges - z->merges);
	EMIT(" discards=%llu zeroes=%llu waits_block=%llu waits_slot=%llu waits_space=%llu throttle_ns=%llu",
	       b.discards - z->discards, b.zeroes - z->zeroes, b.waits_block - z->waits_block,
	       b.waits_slot - z->waits_slot, b.waits_space - z->waits_space,
	       c->volume.throttle_ns);
	EMIT(" origin_writes=%llu origin_sectors=%llu origin_flushes=%llu origin_errors=%llu",
	       b.origin_writes - z->origin_writes, b.origin_sectors - z->origin_sectors,
	       b.origin_flushes - z->origin_flushes, b.origin_errors - z->origin_errors);
	EMIT(" bypasses=%llu bypassed_sectors=%llu", c->volume.bypasses, c->volume.bypassed_sectors);
	EMIT(" pages_destaged=%llu pages_relocated=%llu rounds=%llu",
	       b.pages_destaged - z->pages_destaged, b.pages_relocated - z->pages_relocated,
	       b.rounds - z->rounds);
	sz = emit_origin_use(result, maxlen, sz, &b, z);
	EMIT(" lost_stuck=%u", c->volume.lost_stuck);
	EMIT(" volume_uuid=%pU marks=%u", c->volume.spec.uuid, c->volume.marks);
	if (c->volume.slots)
		EMIT(" slots=%u counted=%u conflicts=%llu eras_percent=%u", c->volume.slots, c->volume.counted,
		       c->volume.conflicts, c->volume.eras_percent);
	EMIT(" intake_limit=%u drain_rate=%u origin_depth=%u bypassing=%u", c->volume.intake_limit,
	       c->volume.drain_rate, c->volume.origin_depth, c->volume.bypassing);
	sz = emit_medium(result, maxlen, sz, s);
	kfree(c);
}

/* Prints the options that recreate the device, without those that only its first creation
 * needed.
 */
void fbk_setup_options(struct fbk_setup *s, char *result, unsigned int maxlen)
{
	struct fby_options o;
	unsigned int sz = 0, n = 2 * 7;
	u8 mode = READ_ONCE(s->volume.policy.mode);

	fby_pool_options(s->volume.pool->engine, &o);
	n += 2 * !!s->origin_id[0] + 2 * s->slots_given + 2 * !!s->open.start_sector;
	n += 2 * !!s->volume.policy.bypass_sectors + 2 * s->volume.policy.full_bypasses;
	n += s->volume.by_name + s->volume.policy.metadata_only + s->flush_on_suspend;
	n += s->open.no_fua + 2 * !!s->volume.durable;
	n += mode == FBY_MODE_CLEANER ? 1 : mode == FBY_MODE_WRITE_THROUGH ? 2 : 0;
	EMIT("%s %u", s->volume.name, n);
	EMIT(" high_watermark %u low_watermark %u max_age %llu idle %llu verify %s checksums %s writeback_jobs %u",
	     o.high_watermark, o.low_watermark, div64_u64(o.max_age_ns, NS_PER_MS), div64_u64(o.idle_ns, NS_PER_MS),
	     verify_names[o.verify], switch_names[!o.no_checksums], s->volume.nrequests);
	if (s->slots_given)
		EMIT(" slots %u", s->open.options.nslots);
	if (s->open.start_sector)
		EMIT(" start_sector %llu", s->open.start_sector);
	if (s->origin_id[0])
		EMIT(" origin_id %s", s->origin_id);
	if (s->volume.policy.bypass_sectors)
		EMIT(" bypass_limit %llu", (u64)s->volume.policy.bypass_sectors * FBY_SECTOR);
	if (s->volume.policy.full_bypasses)
		EMIT(" when_full bypass");
	if (s->volume.by_name)
		EMIT(" origin_by_name");
	if (mode == FBY_MODE_CLEANER)
		EMIT(" cleaner");
	if (mode == FBY_MODE_WRITE_THROUGH)
		EMIT(" mode write-through");
	if (s->volume.policy.metadata_only)
		EMIT(" metadata_only");
	if (s->flush_on_suspend)
		EMIT(" flush_on_suspend");
	if (s->open.no_fua)
		EMIT(" nofua");
	if (s->volume.durable)
		EMIT(" durable %s", durable_names[s->volume.durable]);
}

/* --- commands ---------------------------------------------------------------------------- */

static int command_set(struct fbk_setup *s, const char *name, const char *value)
{
	struct fbk_pool *p = s->volume.pool;
	struct fby_options o;
	int rc;

	rc = parse_bypass_option(&s->volume, name, value);
	if (!rc)
		fbk_mode_set(&s->volume);
	if (rc != 1)
		return rc;
	rc = fbk_pool_enter(p);
	if (rc)
		return rc;
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
	return 0;
}

int fbk_setup_command(struct fbk_setup *s, unsigned int argc, char **argv, char **error)
{
	struct counters *c;

	if (argc == 3 && !strcasecmp(argv[0], "set"))
		return command_set(s, argv[1], argv[2]);
	if (argc != 1)
		return -EINVAL;
	if (!strcasecmp(argv[0], "flush") || !strcasecmp(argv[0], "drain"))
		return s->volume.started ? fbk_volume_drain(&s->volume, error) : -EBUSY;
	if (!strcasecmp(argv[0], "flush_on_suspend")) {
		s->flush_on_suspend = true;
		return 0;
	}
	if (!strcasecmp(argv[0], "cleaner")) {
		WRITE_ONCE(s->volume.policy.mode, FBY_MODE_CLEANER);
		fbk_mode_set(&s->volume);
		return 0;
	}
	if (!strcasecmp(argv[0], "clear_stats")) {
		c = kzalloc(sizeof(*c), GFP_KERNEL);
		if (!c)
			return -ENOMEM;
		read_counters(s, c, &s->base);
		kfree(c);
		return 0;
	}
	return -EINVAL;
}
