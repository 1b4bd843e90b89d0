// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * pool.c - the pool in memory: open, close, options.
 */
#include "cache/static_requests.h"
#include "format/kind.h"
#include "pool/parts.h"
#include "space/slot.h"

static u32 slots_of(u32 nslots)
{
	return nslots ? nslots : 4;
}

static u32 buckets_of(const struct fby_superblock *sb)
{
	u64 pages = (u64)sb->nchunks * (sb->chunk_size / FBY_PAGE);

	return (u32)fby_round_up(pages, 16);
}

/* Places in mem, in order; sizes are multiples of 64. */
struct layout {
	u64 slots, chunks, owners, logs, log_parts, log_chunks, cached, drained, recovered, scanned, dead, buckets,
		entries, statics, stripes, dirty, maps, streams, total;
};

/* Stripes of static volumes: a power of two, as many as slots up to a limit. */
static u32 stripes_of(const struct fby_superblock *sb)
{
	u64 slots = sb->static_bytes / (FBY_STATIC_WAYS * FBY_PAGE);
	u32 n = FBY_STRIPES_MIN;

	while (n < FBY_STRIPES_MAX && n < slots)
		n *= 2;
	return sb->static_bytes ? n : 0;
}

static struct layout layout_of(const struct fby_superblock *sb, u32 nslots)
{
	u64 pages = (u64)sb->nchunks * (sb->chunk_size / FBY_PAGE);
	struct layout l;

	l.slots = fby_round_up(sizeof(struct fby_pool), 64);
	l.chunks = l.slots + fby_round_up(nslots * sizeof(struct fby_slot), 64);
	l.owners = l.chunks + fby_round_up(sb->nchunks * sizeof(struct fby_chunk), 64);
	l.logs = l.owners + fby_round_up(sb->nvolumes * sizeof(struct fby_owner), 64);
	l.log_parts = l.logs + fby_round_up(sb->nvolumes * sizeof(struct fby_log), 64);
	l.log_chunks = l.log_parts + (u64)nslots * sb->nvolumes * sizeof(struct fby_log_part);
	l.cached = l.log_chunks + fby_round_up(sb->nchunks * sizeof(struct fby_log_chunk), 64);
	l.drained = l.cached + fby_round_up(sb->nvolumes * sizeof(struct fby_cached), 64);
	l.recovered = l.drained + fby_round_up(sb->nvolumes * sizeof(struct fby_drained), 64);
	l.scanned = l.recovered + fby_round_up(sb->nvolumes * sizeof(struct fby_recovered), 64);
	l.dead = l.scanned + fby_round_up(sb->nchunks * sizeof(struct fby_scanned), 64);
	l.buckets = l.dead + fby_round_up(fby_dead_rows(sb, nslots) * (u64)sb->nchunks * sizeof(u16), 64);
	l.entries = l.buckets + fby_round_up((u64)buckets_of(sb) * sizeof(u32), 64);
	l.statics = l.entries + fby_round_up(pages * sizeof(struct fby_entry), 64);
	l.stripes = l.statics + (sb->static_bytes ? sb->nvolumes * sizeof(struct fby_static) : 0);
	l.dirty = l.stripes + fby_round_up(stripes_of(sb) * sizeof(u64), 64);
	l.maps = l.dirty + fby_round_up(sb->static_bytes / FBY_STATIC_UNIT / 8 + (sb->static_bytes ? 8 : 0), 64);
	l.streams = l.maps + (sb->map_bytes ? fby_round_up(sb->nvolumes * sizeof(struct fby_map), 64) : 0);
	l.total = l.streams + (sb->unit ? fby_round_up(sb->nvolumes * sizeof(struct fby_stream), 64) : 0);
	return l;
}

u64 fby_pool_bytes(const struct fby_superblock *sb, u32 nslots)
{
	return layout_of(sb, slots_of(nslots)).total;
}

static int options_normalize(struct fby_options *o)
{
	o->nslots = slots_of(o->nslots);
	if (!o->high_watermark)
		o->high_watermark = FBY_HIGH_WATERMARK;
	if (!o->low_watermark)
		o->low_watermark =
			o->high_watermark > FBY_WATERMARK_GAP ? o->high_watermark - FBY_WATERMARK_GAP : 0;
	if (o->nslots > FBY_SLOTS_MAX || o->high_watermark > 100 || o->low_watermark > o->high_watermark ||
	    o->verify > FBY_VERIFY_NEVER)
		return -FBY_E_GEOMETRY;
	return FBY_DONE;
}

/* Features that the host knows. */
static u64 known_features(const struct fby_options *o)
{
	/* Whoever has opened a device knows that its pool is grouped: fby_probe. */
	return (o->statics ? FBY_FEATURE_STATIC : 0) | (o->maps ? FBY_FEATURE_MAP | FBY_FEATURE_MAP_GROWS : 0) |
	       FBY_FEATURE_GROUPED | FBY_FEATURE_SALTED;
}

/* Not inlined, to save stack: its caller holds a superblock. */
__attribute__((noinline)) static void open_volumes(struct fby_pool *p)
{
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++) {
		struct fby_owner *owner = &p->space.owner[i];
		struct fby_volume_record a, b;
		bool a_ok = fby_record_read(&p->space.store, (u16)i, 0, &a);
		bool b_ok = fby_record_read(&p->space.store, (u16)i, 1, &b);

		fby_lock_init(&p->logs.log[i].lock);
		owner->first = owner->last = FBY_NO_CHUNK;
		owner->damaged = !a_ok && !b_ok;
		if (owner->damaged)
			continue;
		owner->rec = a_ok && (!b_ok || a.counter >= b.counter) ? a : b;
		if (owner->rec.kind >= FBY_OWNER_KINDS) {
			fby_recovery_unknown(&p->recovery, -FBY_E_OWNER_KIND, i, owner->rec.kind);
			continue;
		}
		if (p->space.store.unit && owner->rec.kind != FBY_OWNER_FREE && owner->rec.kind != FBY_OWNER_LOG &&
		    !(owner->rec.kind == FBY_OWNER_VOLUME && fby_volumes_allowed(&p->space)))
			fby_recovery_unknown(&p->recovery, -FBY_E_LOGS_ONLY, i, owner->rec.kind);
		owner->chunk_kind = fby_owner_kinds[owner->rec.kind].chunk;
		fby_owner_kinds[owner->rec.kind].open(p, (u16)i);
	}
}

static void open_slots(struct fby_pool *p)
{
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		p->space.slot[i].floor = FBY_NO_SEQ;
		p->space.slot[i].log = FBY_NO_OWNER;
		p->space.slot[i].dead = fby_dead_row(&p->space, &p->space.slot[i]);
		for (u32 v = 0; v < FBY_VOLUMES_MAX; v++)
			p->space.slot[i].volume[v].open = FBY_NO_CHUNK;
	}
}

int fby_pool_open(struct fby_pool **out, void *mem, u64 bytes, struct fby_media *m, const struct fby_options *o)
{
	struct fby_pool *p = mem;
	struct fby_options opt = *o;
	struct fby_probe probe;
	struct layout l;
	int rc = options_normalize(&opt);

	if (rc)
		return rc;
	fby_probe(m, &probe);
	if (probe.error)
		return probe.error;
	if (probe.sb.features_incompat & ~known_features(&opt))
		return -FBY_E_FEATURE;
	if (probe.sb.features_ro && !opt.read_only)
		return -FBY_E_FEATURE_RO;
	l = layout_of(&probe.sb, opt.nslots);
	if (bytes < l.total || (uintptr_t)mem % 64)
		return -FBY_E_NO_MEMORY;
	fby_store_start(&p->space.store, m, &probe.sb);
	p->space.entitled = fby_entitled(&p->space.store);
	p->space.opt = opt;
	p->memory_bytes = l.total;
	p->space.slot = (void *)((u8 *)mem + l.slots);
	p->space.chunk = (void *)((u8 *)mem + l.chunks);
	p->space.owner = (void *)((u8 *)mem + l.owners);
	p->logs.log = (void *)((u8 *)mem + l.logs);
	p->logs.part = (void *)((u8 *)mem + l.log_parts);
	p->logs.chunk = (void *)((u8 *)mem + l.log_chunks);
	p->cache.volume = (void *)((u8 *)mem + l.cached);
	p->drain.volume = (void *)((u8 *)mem + l.drained);
	p->recovery.volume = (void *)((u8 *)mem + l.recovered);
	p->recovery.scanned = (void *)((u8 *)mem + l.scanned);
	p->cache.space = p->drain.space = p->recovery.space = p->logs.space = &p->space;
	p->recovery.pool = p;
	p->drain.cache = p->recovery.cache = &p->cache;
	p->space.dead = (void *)((u8 *)mem + l.dead);
	p->cache.bucket = (void *)((u8 *)mem + l.buckets);
	p->cache.entry = (void *)((u8 *)mem + l.entries);
	p->statics.space = &p->space;
	p->statics.volume = (void *)((u8 *)mem + l.statics);
	p->statics.stripe = (void *)((u8 *)mem + l.stripes);
	p->statics.dirty = (void *)((u8 *)mem + l.dirty);
	p->statics.nstripes = stripes_of(&probe.sb);
	p->cache.statics = p->drain.statics = p->statics.nstripes ? &p->statics : NULL;
	p->maps.store = &p->space.store;
	p->maps.map = probe.sb.map_bytes ? (void *)((u8 *)mem + l.maps) : NULL;
	p->maps.read_only = opt.read_only;
	p->space.streams.stream = probe.sb.unit ? (void *)((u8 *)mem + l.streams) : NULL;
	fby_lock_init(&p->space.streams.lock);
	p->cache.nbuckets = buckets_of(&p->space.store.sb);
	p->recovery.report.clean = p->space.store.sb.flags & FBY_SB_CLEAN;
	p->recovery.report.chunk_headers_lost = !probe.primary_valid + !probe.copy_valid;
	p->recovery.max_seq = p->space.store.sb.clean_seq;
	fby_lock_init(&p->space.lock);
	open_volumes(p);
	p->drain.moved_from = FBY_NO_CHUNK;
	p->space.share = ~0u;
	p->drain.retry_ns = FBY_NO_SEQ;
	p->space.looked_opens = FBY_NO_SEQ;
	open_slots(p);
	*out = p;
	return FBY_DONE;
}

static bool streams_quiet(struct fby_pool *p)
{
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++)
		if (!fby_stream_quiet(&p->space, (u16)i))
			return false;
	return true;
}

int fby_pool_close(struct fby_pool *p)
{
	u32 wake = 0;

	if (p->space.opt.read_only || !p->space.usable)
		return FBY_DONE;
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++)
		if (p->drain.volume[i].destage.outstanding > 0)
			return -FBY_E_BUSY;
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		struct fby_slot *s = &p->space.slot[i];

		if (!fby_slot_try(s)) {
			fby_fetch_or(&p->space.wake_owed, wake);
			return -FBY_E_BUSY;
		}
		for (u32 v = 0; v < p->space.store.sb.nvolumes; v++)
			fby_slot_close(&p->space, s, (u16)v, &wake);
		fby_slot_give(&p->space, s, &wake);
	}
	if (p->space.store.unit && !streams_quiet(p)) {
		fby_fetch_or(&p->space.wake_owed, wake);
		return media_failed(p->space.store.media) ? -FBY_E_MEDIUM : FBY_WAIT_TICKET;
	}
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++) {
		if (fby_is_static(&p->cache, (u16)i))
			fby_static_detach(&p->statics, (u16)i);
		else
			fby_destage_settle(&p->drain, (u16)i);
	}
	p->space.usable = false;
	p->space.store.sb.clean_seq = p->space.seq;
	p->space.store.sb.clean_digest = fby_digest(&p->cache, &p->space.store.sb.clean_entries);
	fby_sb_write(&p->space.store, true);
	return media_failed(p->space.store.media) ? -FBY_E_MEDIUM : FBY_DONE;
}

void fby_pool_options(struct fby_pool *p, struct fby_options *out)
{
	*out = p->space.opt;
}

int fby_pool_set_options(struct fby_pool *p, const struct fby_options *o)
{
	struct fby_options n = *o;
	int rc;

	n.nslots = p->space.opt.nslots;
	n.read_only = p->space.opt.read_only;
	n.statics = p->space.opt.statics;
	n.maps = p->space.opt.maps;
	rc = options_normalize(&n);
	if (rc)
		return rc;
	/* Requests read them concurrently. */
	fby_store(&p->space.opt.no_checksums, n.no_checksums);
	fby_store(&p->space.opt.verify, n.verify);
	fby_store(&p->space.opt.high_watermark, n.high_watermark);
	fby_store(&p->space.opt.low_watermark, n.low_watermark);
	fby_store(&p->space.opt.max_age_ns, n.max_age_ns);
	fby_store(&p->space.opt.idle_ns, n.idle_ns);
	return FBY_DONE;
}
