// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * pool.c - superblocks, geometry, format, open and close.
 */
#include "media.h"
#include "slot.h"

#define CHUNKS_MIN 4u
#define PROBE_CHUNKS 64u

static u32 sb_crc(const struct fby_superblock *sb)
{
	return fby_crc32c(0, sb, sizeof(*sb) - 4);
}

static bool power_of_two(u64 x)
{
	return x && (x & (x - 1)) == 0;
}

static bool sb_geometry_ok(const struct fby_superblock *sb)
{
	return power_of_two(sb->chunk_size) && sb->chunk_size >= FBY_CHUNK_PAGES_MIN * FBY_PAGE &&
	       sb->chunk_size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE && sb->nvolumes >= 1 &&
	       sb->nvolumes <= FBY_VOLUMES_MAX && sb->nchunks >= CHUNKS_MIN && sb->nchunks <= FBY_CHUNKS_MAX &&
	       sb->data_offset == fby_round_up(FBY_VT_OFFSET + sb->nvolumes * 512u, sb->chunk_size) &&
	       sb->media_size >= sb->data_offset + (u64)sb->nchunks * sb->chunk_size;
}

/* Copies the superblock at offset; true if its checksum holds. */
static bool sb_read(struct fby_media *m, u64 offset, struct fby_superblock *sb)
{
	u32 unused = 0;

	if (fby_media_size(m) < offset + sizeof(*sb) ||
	    !media_read_crc(m, sb, offset, sizeof(*sb), &unused)) {
		fby_zero(sb, sizeof(*sb));
		return false;
	}
	return sb->magic == FBY_MAGIC && sb_crc(sb) == sb->crc;
}

/* Chunks say their own number: look for one where a pool would have it. */
static bool chunk_traces(struct fby_media *m)
{
	for (u64 size = FBY_CHUNK_PAGES_MIN * FBY_PAGE; size <= FBY_CHUNK_PAGES_MAX * FBY_PAGE; size *= 2) {
		for (u64 at = size; at <= size * PROBE_CHUNKS && at + FBY_PAGE <= fby_media_size(m); at += size) {
			struct fby_open_line l[2];
			u32 unused = 0;

			if (media_read_crc(m, l, at, sizeof(l), &unused) &&
			    (l[0].magic == FBY_OPEN_MAGIC || l[1].magic == FBY_OPEN_MAGIC))
				return true;
		}
	}
	return false;
}

static int sb_error(const struct fby_superblock *sb, u64 media_size)
{
	if (sb->version != FBY_VERSION)
		return -FBY_E_VERSION;
	if (sb->features_incompat)
		return -FBY_E_FEATURE;
	if (!sb_geometry_ok(sb))
		return -FBY_E_GEOMETRY;
	if (sb->media_size > media_size)
		return -FBY_E_MEDIA_SIZE;
	if (sb->clean_seq >= FBY_NUMBER_END || sb->generation >= FBY_NUMBER_END)
		return -FBY_E_NUMBERS;
	return 0;
}

void fby_probe(struct fby_media *m, struct fby_probe *out)
{
	struct fby_superblock copy;

	fby_zero(out, sizeof(*out));
	out->primary_valid = sb_read(m, FBY_SB_OFFSET, &out->sb);
	out->copy_valid = sb_read(m, FBY_SB_COPY_OFFSET, &copy);
	if (out->primary_valid || out->copy_valid) {
		if (!out->primary_valid || (out->copy_valid && copy.generation > out->sb.generation))
			out->sb = copy;
		out->state = FBY_PROBE_POOL;
		out->error = sb_error(&out->sb, fby_media_size(m));
		return;
	}
	if (out->sb.magic == FBY_MAGIC || copy.magic == FBY_MAGIC || chunk_traces(m)) {
		out->state = FBY_PROBE_DAMAGED;
		out->error = -FBY_E_BAD_SUPERBLOCK;
		return;
	}
	out->state = FBY_PROBE_BLANK;
	out->error = -FBY_E_NO_SUPERBLOCK;
}

/* --- format -------------------------------------------------------------------- */

static void sb_store(struct fby_media *m, u64 offset, const struct fby_superblock *sb)
{
	media_lines(m, offset, sb, sizeof(*sb));
	media_fence(m, offset, sizeof(*sb));
}

static void format_volumes(struct fby_media *m, u32 seed, u32 nvolumes)
{
	for (u32 i = 0; i < nvolumes; i++) {
		struct fby_volume_record r = { .counter = 1, .index = i, .state = FBY_VOL_FREE };
		u64 at = FBY_VT_OFFSET + i * 2u * sizeof(r);

		r.crc = fby_crc32c(seed, &r, sizeof(r) - 4);
		media_lines(m, at, &r, sizeof(r));
		media_lines(m, at + sizeof(r), &r, sizeof(r));
	}
}

/* All open and seal lines valid, so that afterwards a chunk without them is damaged. */
static void format_chunk(struct fby_media *m, u32 seed, const struct fby_superblock *sb, u32 c)
{
	u64 at = sb->data_offset + (u64)c * sb->chunk_size;
	static const u8 zero[FBY_FIRST_PAGE * FBY_LINE];

	media_lines(m, at, zero, sizeof(zero));
	for (u32 i = 0; i < 2; i++) {
		struct fby_open_line open = { .magic = FBY_OPEN_MAGIC, .chunk = c, .epoch = i };
		struct fby_seal_line seal = { .magic = FBY_SEAL_MAGIC, .fill = FBY_FIRST_PAGE, .closed = 1, .chunk = c,
					      .volume = FBY_NO_VOLUME, .counter = i, .epoch = 1,
					      .last_block = FBY_NO_BLOCK };

		fby_line_finish(seed, &open);
		fby_line_finish(seed, &seal);
		media_lines(m, at + (FBY_LINE_OPEN + i) * FBY_LINE, &open, FBY_LINE);
		media_lines(m, at + (FBY_LINE_SEAL + i) * FBY_LINE, &seal, FBY_LINE);
		media_lines(m, at + (FBY_LINE_SEAL + FBY_LINE_SEAL_COPY + i) * FBY_LINE, &seal, FBY_LINE);
	}
}

int fby_format(struct fby_media *m, const struct fby_format *f)
{
	struct fby_superblock sb = { .magic = FBY_MAGIC, .version = FBY_VERSION, .generation = 1 };
	static const u8 zero[FBY_PAGE];
	u64 chunks;
	u32 seed;

	sb.chunk_size = f->chunk_size ? f->chunk_size : FBY_CHUNK_PAGES_MAX * FBY_PAGE;
	sb.nvolumes = f->nvolumes ? f->nvolumes : FBY_VOLUMES_MAX;
	if (!power_of_two(sb.chunk_size) || sb.chunk_size < FBY_CHUNK_PAGES_MIN * FBY_PAGE ||
	    sb.chunk_size > FBY_CHUNK_PAGES_MAX * FBY_PAGE || sb.nvolumes > FBY_VOLUMES_MAX)
		return -FBY_E_GEOMETRY;
	sb.media_size = fby_media_size(m);
	sb.data_offset = fby_round_up(FBY_VT_OFFSET + sb.nvolumes * 512u, sb.chunk_size);
	if (sb.media_size < sb.data_offset + (u64)CHUNKS_MIN * sb.chunk_size)
		return -FBY_E_MEDIA_SMALL;
	chunks = (sb.media_size - sb.data_offset) >> __builtin_ctz(sb.chunk_size);
	sb.nchunks = chunks > FBY_CHUNKS_MAX ? FBY_CHUNKS_MAX : (u32)chunks;
	sb.flags = FBY_SB_CLEAN;
	sb.clean_seq = 1;
	fby_copy(sb.uuid, f->uuid, 16);
	sb.crc = sb_crc(&sb);
	seed = fby_crc32c(0, sb.uuid, 16);

	media_lines(m, FBY_SB_OFFSET, zero, FBY_PAGE);
	media_lines(m, FBY_SB_COPY_OFFSET, zero, FBY_PAGE);
	media_fence(m, 0, FBY_VT_OFFSET);
	format_volumes(m, seed, sb.nvolumes);
	for (u32 c = 0; c < sb.nchunks; c++)
		format_chunk(m, seed, &sb, c);
	media_fence(m, 0, sb.media_size);
	sb_store(m, FBY_SB_COPY_OFFSET, &sb);
	sb_store(m, FBY_SB_OFFSET, &sb);
	return FBY_DONE;
}

/* --- open ----------------------------------------------------------------------- */

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
	u64 slots, chunks, volumes, dead, buckets, entries, total;
};

static struct layout layout_of(const struct fby_superblock *sb, u32 nslots)
{
	u64 pages = (u64)sb->nchunks * (sb->chunk_size / FBY_PAGE);
	struct layout l;

	l.slots = fby_round_up(sizeof(struct fby_pool), 64);
	l.chunks = l.slots + fby_round_up(nslots * sizeof(struct fby_slot), 64);
	l.volumes = l.chunks + fby_round_up(sb->nchunks * sizeof(struct fby_chunk), 64);
	l.dead = l.volumes + fby_round_up(sb->nvolumes * sizeof(struct fby_volume), 64);
	l.buckets = l.dead + fby_round_up((nslots + 1) * (u64)sb->nchunks * sizeof(u16), 64);
	l.entries = l.buckets + fby_round_up((u64)buckets_of(sb) * sizeof(u32), 64);
	l.total = l.entries + fby_round_up(pages * sizeof(struct fby_entry), 64);
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
		o->high_watermark = 60;
	if (!o->low_watermark)
		o->low_watermark = o->high_watermark > 10 ? o->high_watermark - 10 : 0;
	if (o->nslots > FBY_SLOTS_MAX || o->high_watermark > 100 || o->low_watermark > o->high_watermark ||
	    o->verify > FBY_VERIFY_NEVER)
		return -FBY_E_GEOMETRY;
	return FBY_DONE;
}

/* Not inlined, for the stack: its caller holds a superblock. */
__attribute__((noinline)) static void open_volumes(struct fby_pool *p)
{
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		struct fby_volume *v = &p->volume[i];
		struct fby_volume_record a, b;
		bool a_ok = fby_record_read(p, (u16)i, 0, &a), b_ok = fby_record_read(p, (u16)i, 1, &b);

		v->first = v->last = FBY_NO_CHUNK;
		v->damaged = !a_ok && !b_ok;
		if (v->damaged)
			continue;
		v->rec = a_ok && (!b_ok || a.counter >= b.counter) ? a : b;
		v->blocks = (v->rec.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
		if (v->rec.watermark > p->max_seq)
			p->max_seq = v->rec.watermark;
	}
}

static void open_slots(struct fby_pool *p)
{
	for (u32 i = 0; i < p->opt.nslots; i++) {
		p->slot[i].floor = FBY_NO_SEQ;
		p->slot[i].dead = fby_dead_row(p, &p->slot[i]);
		for (u32 v = 0; v < FBY_VOLUMES_MAX; v++)
			p->slot[i].volume[v].open = FBY_NO_CHUNK;
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
	if (probe.sb.features_ro && !opt.read_only)
		return -FBY_E_FEATURE_RO;
	l = layout_of(&probe.sb, opt.nslots);
	if (bytes < l.total || (uintptr_t)mem % 64)
		return -FBY_E_NO_MEMORY;
	p->media = m;
	p->sb = probe.sb;
	p->opt = opt;
	p->memory_bytes = l.total;
	p->slot = (void *)((u8 *)mem + l.slots);
	p->chunk = (void *)((u8 *)mem + l.chunks);
	p->volume = (void *)((u8 *)mem + l.volumes);
	p->dead = (void *)((u8 *)mem + l.dead);
	p->bucket = (void *)((u8 *)mem + l.buckets);
	p->entry = (void *)((u8 *)mem + l.entries);
	p->chunk_pages = p->sb.chunk_size / FBY_PAGE;
	p->chunk_shift = (u32)__builtin_ctz(p->chunk_pages);
	p->nbuckets = buckets_of(&p->sb);
	p->line_seed = fby_crc32c(0, p->sb.uuid, 16);
	p->report.clean = p->sb.flags & FBY_SB_CLEAN;
	p->report.chunk_headers_lost = !probe.primary_valid + !probe.copy_valid;
	p->max_seq = p->sb.clean_seq;
	fby_lock_init(&p->lock);
	open_volumes(p);
	p->moved_from = FBY_NO_CHUNK;
	p->share = ~0u;
	p->retry_ns = FBY_NO_SEQ;
	p->looked_opens = FBY_NO_SEQ;
	open_slots(p);
	*out = p;
	return FBY_DONE;
}

/* Is the copy, not the primary, the one that an open would take? */
static bool copy_counts(struct fby_media *m)
{
	struct fby_superblock sb;
	bool primary = sb_read(m, FBY_SB_OFFSET, &sb);
	u64 generation = sb.generation;

	return sb_read(m, FBY_SB_COPY_OFFSET, &sb) && (!primary || sb.generation > generation);
}

int fby_sb_write(struct fby_pool *p, bool clean)
{
	bool counts = copy_counts(p->media);

	p->sb.generation++;
	p->sb.flags = clean ? FBY_SB_CLEAN : 0;
	p->sb.clean_entries = p->sb.clean_digest = 0;
	if (clean) {
		p->sb.clean_seq = p->seq;
		p->sb.clean_digest = fby_digest(p, &p->sb.clean_entries);
	}
	p->sb.crc = sb_crc(&p->sb);
	/* The one that counts last: a crash or damage may have left the other
	 * one torn. */
	sb_store(p->media, counts ? FBY_SB_OFFSET : FBY_SB_COPY_OFFSET, &p->sb);
	sb_store(p->media, counts ? FBY_SB_COPY_OFFSET : FBY_SB_OFFSET, &p->sb);
	return FBY_DONE;
}

/* What is linked, whatever the order: at a clean close and at the next open. */
u64 fby_digest(struct fby_pool *p, u64 *entries)
{
	u64 digest = 0, n = 0;

	for (u32 c = 0; c < p->sb.nchunks; c++) {
		for (u32 i = FBY_FIRST_PAGE; i < p->chunk_pages; i++) {
			u32 page = (c << p->chunk_shift) + i;
			u32 state = fby_load(&p->entry[page].state);

			if (!(state & FBY_ES_LINKED))
				continue;
			digest += fby_mix(p->entry[page].key ^ fby_mix((u64)page << 32 | (state & 0xfffffu)));
			n++;
		}
	}
	*entries = n;
	return digest;
}

int fby_pool_close(struct fby_pool *p)
{
	u32 wake = 0;

	if (p->opt.read_only || !p->usable)
		return FBY_DONE;
	for (u32 i = 0; i < p->sb.nvolumes; i++)
		if (p->volume[i].destage.outstanding > 0)
			return -FBY_E_BUSY;
	for (u32 i = 0; i < p->opt.nslots; i++) {
		struct fby_slot *s = &p->slot[i];

		if (!fby_slot_try(s)) {
			fby_fetch_or(&p->wake_owed, wake);
			return -FBY_E_BUSY;
		}
		for (u32 v = 0; v < p->sb.nvolumes; v++)
			fby_slot_close(p, s, (u16)v, &wake);
		fby_slot_release(s);
	}
	for (u32 i = 0; i < p->sb.nvolumes; i++)
		fby_destage_settle(p, (u16)i);
	p->usable = false;
	return fby_sb_write(p, true);
}

void fby_pool_options(struct fby_pool *p, struct fby_options *out)
{
	*out = p->opt;
}

int fby_pool_set_options(struct fby_pool *p, const struct fby_options *o)
{
	struct fby_options n = *o;
	int rc;

	n.nslots = p->opt.nslots;
	n.read_only = p->opt.read_only;
	rc = options_normalize(&n);
	if (rc)
		return rc;
	fby_store(&p->opt.no_checksums, n.no_checksums);
	p->opt.verify = n.verify;
	p->opt.high_watermark = n.high_watermark;
	p->opt.low_watermark = n.low_watermark;
	p->opt.max_age_ns = n.max_age_ns;
	p->opt.idle_ns = n.idle_ns;
	return FBY_DONE;
}

void fby_pool_info(struct fby_pool *p, struct fby_pool_info *out)
{
	fby_zero(out, sizeof(*out));
	out->sb = p->sb;
	out->memory_bytes = p->memory_bytes;
	out->nslots = p->opt.nslots;
	out->chunks_free = fby_load(&p->nfree);
	out->chunks_used = p->sb.nchunks - out->chunks_free;
	out->pages = (u64)p->sb.nchunks * (p->chunk_pages - FBY_FIRST_PAGE);
	out->seq = fby_load(&p->seq);
	for (u32 v = 0; v < p->sb.nvolumes; v++)
		out->pages_linked += fby_volume_pages(p, (u16)v);
	for (u32 i = 0; i < p->opt.nslots; i++) {
		const struct fby_slot *s = &p->slot[i];

		for (u32 v = 0; v < p->sb.nvolumes; v++) {
			out->writes += fby_load(&s->volume[v].writes);
			out->written_sectors += fby_load(&s->volume[v].sectors);
			out->chunks_open += fby_load(&s->volume[v].open) != FBY_NO_CHUNK;
		}
		out->commits += fby_load(&s->commits);
		out->media_bytes += fby_load(&s->media_bytes);
		out->merges += fby_load(&s->merges);
		out->discards += fby_load(&s->ranges[FBY_KIND_DISCARD]);
		out->zeroes += fby_load(&s->ranges[FBY_KIND_ZERO]);
		out->flushes += fby_load(&s->flushes);
	}
	for (u32 i = 0; i < FBY_READ_STRIPES; i++) {
		out->reads += fby_load(&p->read_stats[i].reads);
		out->read_hit_sectors += fby_load(&p->read_stats[i].hit_sectors);
		out->read_miss_sectors += fby_load(&p->read_stats[i].miss_sectors);
	}
	out->chunks_opened = fby_load(&p->chunks_opened);
	out->waits_block = fby_load(&p->waits[FBY_WAIT_BLOCK]);
	out->waits_slot = fby_load(&p->waits[FBY_WAIT_SLOT]);
	out->waits_space = fby_load(&p->waits[FBY_WAIT_SPACE]);
	out->damaged_pages = fby_load(&p->damaged_pages);
}

u32 fby_damaged_list(struct fby_pool *p, struct fby_report_block *out, u32 max)
{
	u32 n;

	fby_lock(&p->lock);
	n = p->ndamaged < FBY_DAMAGED_RING ? p->ndamaged : FBY_DAMAGED_RING;
	if (n > max)
		n = max;
	for (u32 i = 0; i < n; i++)
		out[i] = p->damaged[(p->ndamaged - 1 - i) % FBY_DAMAGED_RING];
	fby_unlock(&p->lock);
	return n;
}
