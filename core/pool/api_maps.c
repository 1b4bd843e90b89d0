// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * api_maps.c - maps of the pool: add, remove, attach, info, check; other calls are passed to
 * their layer.
 */
#include "pool/parts.h"

int fby_map_find(struct fby_pool *p, const char *name, u16 *map)
{
	return fby_table_find(p, FBY_OWNER_MAP, name, map) ? FBY_DONE : -FBY_E_NO_MAP;
}

/* --- the table ------------------------------------------------------------------------- */

static u32 files_by_size(u64 bytes)
{
	u64 n = bytes >> 23; /* one for four frames of 2 MiB */

	return n < 16 ? 16 : n > 4096 ? 4096 : (u32)n;
}

/* Has the pool room for a share of this size?  *first: its first unit. */
static bool find_room(const struct fby_pool *p, u64 bytes, u32 *first)
{
	u64 room = p->space.store.sb.map_bytes, at = 0;
	bool moved;

	do {
		moved = false;
		for (u32 i = 0; i < p->space.store.sb.nvolumes; i++) {
			const struct fby_map_record *r = &p->space.owner[i].map;
			u64 begin = (u64)r->first * FBY_MAP_UNIT, end = begin + (u64)r->units * FBY_MAP_UNIT;

			if (r->kind == FBY_OWNER_MAP && at < end && begin < at + bytes) {
				at = end;
				moved = true;
			}
		}
	} while (moved);
	*first = (u32)(at / FBY_MAP_UNIT);
	return bytes <= room && at <= room - bytes;
}

static int record_of(const struct fby_map_spec *s, struct fby_map_record *r)
{
	if (!fby_text_ends(s->name, sizeof(s->name)) || !fby_name_ok(s->name))
		return -FBY_E_NAME;
	if (s->bytes % FBY_MAP_UNIT || s->bytes > FBY_MAP_BYTES_MAX)
		return -FBY_E_GEOMETRY;
	r->kind = FBY_OWNER_MAP;
	r->units = (u32)(s->bytes / FBY_MAP_UNIT);
	r->frame_bytes = s->frame_bytes ? s->frame_bytes : FBY_FRAME_MAX;
	r->nfiles = s->nfiles ? s->nfiles : files_by_size(s->bytes);
	fby_copy(r->uuid, s->uuid, sizeof(r->uuid));
	for (u32 n = 0; s->name[n]; n++)
		r->name[n] = s->name[n];
	return FBY_DONE;
}

int fby_map_add(struct fby_pool *p, const struct fby_map_spec *s, u16 *map)
{
	struct fby_map_record r = { 0 };
	struct fby_owner *owner;
	int rc = fby_table_writable(p);
	u32 i;

	if (!rc && p->space.store.unit)
		rc = -FBY_E_LOGS_ONLY;
	if (!rc)
		rc = record_of(s, &r);
	if (rc)
		return rc;
	if (fby_table_find(p, FBY_OWNER_KINDS, r.name, map))
		return -FBY_E_VOLUME_EXISTS;
	/* The damaged record may be that of a share. */
	for (i = 0; i < p->space.store.sb.nvolumes; i++)
		if (p->space.owner[i].damaged)
			return -FBY_E_VOLUME_DAMAGED;
	i = fby_table_place(p);
	if (i == p->space.store.sb.nvolumes)
		return -FBY_E_VOLUME_TABLE_FULL;
	if (!find_room(p, s->bytes, &r.first))
		return -FBY_E_MAP_FULL;
	owner = &p->space.owner[i];
	r.counter = owner->rec.counter;
	r.index = i;
	if (!fby_record_sane(i, (const struct fby_volume_record *)&r))
		return -FBY_E_GEOMETRY;
	fby_map_locate(&p->maps, &p->maps.map[i], &r);
	if (!p->maps.map[i].sound)
		return -FBY_E_GEOMETRY;
	/* The share is formatted first: a record must refer to a valid share. */
	fby_map_format(&p->maps, &p->maps.map[i]);
	owner->map = r;
	owner->chunk_kind = FBY_CHUNK_CACHE; /* it has none */
	fby_owner_write(&p->space, (u16)i);
	*map = (u16)i;
	return FBY_DONE;
}

/* m: if DONE. */
static int map_of(struct fby_pool *p, u16 map, struct fby_map **m)
{
	if (map < p->space.store.sb.nvolumes && p->space.owner[map].damaged)
		return -FBY_E_VOLUME_DAMAGED;
	if (map >= p->space.store.sb.nvolumes || p->space.owner[map].rec.kind != FBY_OWNER_MAP)
		return -FBY_E_NO_MAP;
	if (!p->maps.map || !p->maps.map[map].sound)
		return -FBY_E_MAP_DAMAGED;
	*m = &p->maps.map[map];
	return FBY_DONE;
}

#define WORD_OF(line, member) ((line)[__builtin_offsetof(struct fby_map_file_record, member) / 8])

/* May a file be shorter than was promised?  A detached map has no memory for a record, so its
 * check is ignored: true if either copy says so. */
static bool any_promised(struct fby_pool *p, const struct fby_map *m)
{
	u64 line[FBY_LINE / 8];

	for (u32 copy = 0; copy < 2 * m->nfiles; copy++) {
		if (media_read(p->space.store.media, line, m->at + (u64)copy * FBY_PAGE, sizeof(line)) &&
		    ((u32)WORD_OF(line, flags) & FBY_MAP_FILE_GROWS) && WORD_OF(line, made) < WORD_OF(line, size))
			return true;
	}
	return false;
}

/* Does a file lack data, or might it? */
static bool any_dirty(struct fby_pool *p, const struct fby_map *m)
{
	if (any_promised(p, m))
		return true;
	for (u32 i = 0; i < m->nframes; i++) {
		struct fby_map_seen s;
		u32 unknown;

		fby_descriptor_look(&p->maps, m, i, &s);
		if (!s.any || s.hidden)
			return true;
		if ((s.line.epoch & 1) && (fby_descriptor_dirty(&p->maps, m, i, s.line.epoch, &unknown) || unknown))
			return true;
	}
	return false;
}

int fby_map_remove(struct fby_pool *p, u16 map, bool discard)
{
	struct fby_owner *owner;
	struct fby_map *m = NULL;
	int rc = fby_table_writable(p);

	if (!rc)
		rc = map_of(p, map, &m);
	if (rc && !(rc == -FBY_E_MAP_DAMAGED && discard))
		return rc;
	if (m && m->attached)
		return -FBY_E_VOLUME_BUSY;
	if (m && !discard && any_dirty(p, m))
		return -FBY_E_MAP_DIRTY;
	owner = &p->space.owner[map];
	owner->map = (struct fby_map_record){ .counter = owner->map.counter, .index = map };
	owner->rec.watermark = fby_load_acquire(&p->space.seq) - 1;
	fby_owner_write(&p->space, map);
	return FBY_DONE;
}

int fby_map_info(struct fby_pool *p, u16 map, struct fby_map_info *out)
{
	const struct fby_map_record *r;
	struct fby_map *m;
	int rc = map_of(p, map, &m);

	fby_zero(out, sizeof(*out));
	out->damaged = rc == -FBY_E_MAP_DAMAGED || rc == -FBY_E_VOLUME_DAMAGED;
	if (rc == -FBY_E_NO_MAP || rc == -FBY_E_VOLUME_DAMAGED)
		return rc;
	r = &p->space.owner[map].map;
	fby_copy(out->spec.name, r->name, sizeof(out->spec.name));
	fby_copy(out->spec.uuid, r->uuid, sizeof(out->spec.uuid));
	out->spec.bytes = (u64)r->units * FBY_MAP_UNIT;
	out->spec.frame_bytes = r->frame_bytes;
	out->spec.nfiles = r->nfiles;
	if (rc)
		return FBY_DONE;
	out->nframes = m->nframes;
	out->attached = m->attached;
	if (!m->attached)
		return FBY_DONE;
	out->free = m->nfree;
	out->used = m->nused;
	out->damaged_frames = m->ndamaged;
	out->files = m->files;
	out->damaged_files = m->damaged_files;
	return FBY_DONE;
}

/* --- check ------------------------------------------------------------------------------ */

static bool violated(struct fby_violation *v, const char *what, u64 frame, const char *b, u64 y)
{
	*v = (struct fby_violation){ what, "frame", b, frame, y };
	return false;
}

static bool check_frame(struct fby_pool *p, const struct fby_map *m, u32 frame, struct fby_violation *v)
{
	const struct fby_map_frame *f = &m->frame[frame];
	bool in_use = f->state == FBY_FRAME_USED || f->state == FBY_FRAME_FOUND;
	struct fby_map_seen s;

	if (f->state == FBY_FRAME_DAMAGED)
		return true;
	if (f->epoch % 2 != in_use && !p->maps.read_only)
		return violated(v, "a frame's epoch is not of its state", frame, "epoch", f->epoch);
	fby_descriptor_look(&p->maps, m, frame, &s);
	if (s.any && !s.hidden && !s.bad && s.line.epoch != f->epoch)
		return violated(v, "a frame's epoch is not that of the media", frame, "epoch", s.line.epoch);
	if (in_use && s.any && !s.bad && (s.line.file != f->file || s.line.segment != f->segment))
		return violated(v, "a frame is of another file or segment on the media", frame, "file", s.line.file);
	if (f->state == FBY_FRAME_USED && m->file[f->file].epoch != s.line.file_epoch && s.any && !s.bad)
		return violated(v, "a frame is of an earlier file", frame, "file", f->file);
	return true;
}

static bool same_segment(const struct fby_map *m, u32 a, u32 b)
{
	return m->frame[a].file == m->frame[b].file && m->frame[a].segment == m->frame[b].segment;
}

static bool earlier_segment(const struct fby_map *m, u32 a, u32 b)
{
	const struct fby_map_frame *x = &m->frame[a], *y = &m->frame[b];

	return x->file != y->file ? x->file < y->file : x->segment < y->segment;
}

/* Merges two lists of frames, both in the order of their segments. */
static u32 merged(const struct fby_map *m, u32 a, u32 b)
{
	u32 first, *end = &first;

	while (a != FBY_NO_FRAME && b != FBY_NO_FRAME) {
		u32 *least = earlier_segment(m, b, a) ? &b : &a;

		*end = *least;
		end = &m->frame[*least].next;
		*least = *end;
	}
	*end = a != FBY_NO_FRAME ? a : b;
	return first;
}

/*
 * Used frames are on no list, so their next is free to build one.  It is sorted by merging lists
 * of 1, 2, 4, ... frames, at most one of each length.
 */
static bool check_segments(const struct fby_map *m, struct fby_violation *v)
{
	u32 sorted[32], all = FBY_NO_FRAME, n;

	for (n = 0; n < 32; n++)
		sorted[n] = FBY_NO_FRAME;
	for (u32 i = 0; i < m->nframes; i++) {
		u32 list = i;

		if (m->frame[i].state != FBY_FRAME_USED)
			continue;
		m->frame[i].next = FBY_NO_FRAME;
		for (n = 0; sorted[n] != FBY_NO_FRAME; n++) {
			list = merged(m, sorted[n], list);
			sorted[n] = FBY_NO_FRAME;
		}
		sorted[n] = list;
	}
	for (n = 0; n < 32; n++)
		all = merged(m, sorted[n], all);
	if (all == FBY_NO_FRAME)
		return true;
	for (u32 i = all, next; (next = m->frame[i].next) != FBY_NO_FRAME; i = next)
		if (same_segment(m, i, next))
			return violated(v, "a segment has two frames", next, "and", i);
	return true;
}

bool fby_pool_map_check(struct fby_pool *p, u16 map, struct fby_violation *v)
{
	const struct fby_map *m;
	u32 n = 0, refer = 0;

	if (!p->maps.map || p->space.owner[map].rec.kind != FBY_OWNER_MAP || !p->maps.map[map].attached)
		return true;
	m = &p->maps.map[map];
	for (u32 i = m->free_first; n < m->nfree; i = m->frame[i].next, n++)
		if (i >= m->nframes || m->frame[i].state != FBY_FRAME_FREE)
			return violated(v, "a map's free list is broken", i, "after", n);
	for (u32 i = 0; i < m->nframes; i++) {
		refer += m->frame[i].state != FBY_FRAME_FREE && m->frame[i].state != FBY_FRAME_DAMAGED &&
			 !m->frame[i].stray;
		n += m->frame[i].state != FBY_FRAME_FREE;
		if (!check_frame(p, m, i, v))
			return false;
	}
	if (n != m->nframes)
		return violated(v, "a map's frames are on no list", n, "of", m->nframes);
	if (!check_segments(m, v))
		return false;
	for (u32 i = 0; i < m->nfiles; i++)
		refer -= m->file[i].frames;
	if (refer)
		return violated(v, "frames of files are miscounted", refer, "of", m->nused);
	return true;
}

/* --- attach ----------------------------------------------------------------------------- */

u64 fby_map_bytes(struct fby_pool *p, u16 map)
{
	struct fby_map *m;

	return map_of(p, map, &m) ? 0 : fby_map_memory(m);
}

int fby_map_attach(struct fby_pool *p, u16 map, const struct fby_map_attach *a, struct fby_map_report *report)
{
	const u8 *memory;
	struct fby_map *m;
	int rc;

	fby_zero(report, sizeof(*report));
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	rc = map_of(p, map, &m);
	if (rc)
		return rc;
	if (m->attached)
		return -FBY_E_VOLUME_BUSY;
	memory = fby_media_direct(p->space.store.media, m->at, m->bytes);
	if (!memory)
		return -FBY_E_MAP_MEDIA;
	if (a->mem_bytes < fby_map_memory(m) || (uintptr_t)a->mem % 64)
		return -FBY_E_NO_MEMORY;
	fby_map_lay_out(m, a->mem);
	m->port = a->port;
	m->host = a->host;
	m->nfree = m->nused = m->ndamaged = m->files = m->damaged_files = 0;
	fby_frames_find(&p->maps, m, report);
	m->attached = true;
	return FBY_DONE;
}

static int attached(struct fby_pool *p, u16 map, bool writes, struct fby_map **m)
{
	int rc = map_of(p, map, m);

	if (rc)
		return rc;
	if (!(*m)->attached)
		return -FBY_E_VOLUME_DETACHED;
	return writes && p->space.opt.read_only ? -FBY_E_READ_ONLY : FBY_DONE;
}

int fby_map_detach(struct fby_pool *p, u16 map)
{
	struct fby_map *m;
	int rc = attached(p, map, false, &m);

	if (!rc)
		m->attached = false;
	return rc;
}

/* --- files ------------------------------------------------------------------------------ */

static int file_of(struct fby_pool *p, u16 map, u32 file, bool writes, struct fby_map **m)
{
	int rc = attached(p, map, writes, m);

	return !rc && file >= (*m)->nfiles ? -FBY_E_NO_MAP : rc;
}

int fby_map_file_add(struct fby_pool *p, u16 map, const struct fby_map_file *f, u32 *file)
{
	struct fby_map *m;
	int rc = attached(p, map, true, &m);

	return rc ? rc : fby_files_add(&p->maps, m, f, file);
}

int fby_map_file_info(struct fby_pool *p, u16 map, u32 file, struct fby_map_file *out)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, false, &m);

	return rc ? rc : fby_files_info(&p->maps, m, file, out);
}

int fby_map_file_size(struct fby_pool *p, u16 map, u32 file, u64 size)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_size(&p->maps, m, file, size);
}

int fby_map_file_grows(struct fby_pool *p, u16 map, u32 file, u64 ahead)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_grows(&p->maps, m, file, ahead);
}

int fby_map_file_promise(struct fby_pool *p, u16 map, u32 file, u64 size)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_promise(&p->maps, m, file, size);
}

int fby_map_file_path(struct fby_pool *p, u16 map, u32 file, const char *path)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_path(&p->maps, m, file, path);
}

int fby_map_file_identity(struct fby_pool *p, u16 map, u32 file, const void *identity, u16 bytes)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_identity(&p->maps, m, file, identity, bytes);
}

int fby_map_file_cut(struct fby_pool *p, u16 map, u32 file, u64 size)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_cut(&p->maps, m, file, size);
}

int fby_map_file_cut_end(struct fby_pool *p, u16 map, u32 file)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_cut_end(&p->maps, m, file);
}

int fby_map_file_remove(struct fby_pool *p, u16 map, u32 file)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_files_remove(&p->maps, m, file);
}

/* --- frames ------------------------------------------------------------------------------ */

static int frame_of(struct fby_pool *p, u16 map, u32 frame, bool writes, struct fby_map **m)
{
	int rc = attached(p, map, writes, m);

	return !rc && frame >= (*m)->nframes ? -FBY_E_NO_MAP : rc;
}

int fby_map_take(struct fby_pool *p, u16 map, u32 file, u64 segment, u32 *frame)
{
	struct fby_map *m;
	int rc = file_of(p, map, file, true, &m);

	return rc ? rc : fby_frames_take(m, file, segment, frame);
}

int fby_map_show(struct fby_pool *p, u16 map, u32 frame)
{
	struct fby_map *m;
	int rc = frame_of(p, map, frame, true, &m);

	return rc ? rc : fby_frames_show(&p->maps, m, frame);
}

int fby_map_frame(struct fby_pool *p, u16 map, u32 frame, struct fby_frame *out)
{
	struct fby_map *m;
	int rc = frame_of(p, map, frame, false, &m);

	return rc ? rc : fby_frames_get(&p->maps, m, frame, out);
}

int fby_map_drop(struct fby_pool *p, u16 map, u32 frame, bool discard)
{
	struct fby_map *m;
	int rc = frame_of(p, map, frame, true, &m);

	return rc ? rc : fby_frames_drop(&p->maps, m, frame, discard);
}

int fby_map_frame_info(struct fby_pool *p, u16 map, u32 frame, struct fby_frame_info *out)
{
	const struct fby_map_frame *f;
	struct fby_map *m;
	int rc = frame_of(p, map, frame, false, &m);

	fby_zero(out, sizeof(*out));
	if (rc)
		return rc;
	f = &m->frame[frame];
	out->state = (enum fby_frame_state)f->state;
	out->epoch = f->epoch;
	out->at = fby_frame_at(m, frame);
	out->descriptor_at = fby_descriptor_at(m, frame);
	if (f->state == FBY_FRAME_FREE || f->state == FBY_FRAME_DAMAGED)
		return FBY_DONE;
	out->file = f->file;
	out->segment = f->segment;
	out->stray = f->stray;
	return FBY_DONE;
}

int fby_map_frame_dirty(struct fby_pool *p, u16 map, u32 frame, struct fby_pages *dirty, struct fby_pages *unknown)
{
	struct fby_map *m;
	int rc = frame_of(p, map, frame, false, &m);

	if (rc)
		return rc;
	if (m->frame[frame].state != FBY_FRAME_USED && m->frame[frame].state != FBY_FRAME_FOUND)
		return -FBY_E_NO_MAP;
	fby_descriptor_pages(&p->maps, m, frame, m->frame[frame].epoch, dirty, unknown);
	return FBY_DONE;
}

int fby_map_page_read(struct fby_pool *p, u16 map, u32 frame, u32 page, void *dst)
{
	struct fby_map *m;
	int rc = frame_of(p, map, frame, false, &m);

	if (rc)
		return rc;
	if (page >= m->frame_pages)
		return -FBY_E_NO_MAP;
	return media_read(p->space.store.media, dst, fby_frame_at(m, frame) + (u64)page * FBY_PAGE, FBY_PAGE) ?
		       FBY_DONE :
		       -FBY_E_LOST;
}
