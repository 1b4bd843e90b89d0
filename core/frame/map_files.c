// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * map_files.c - file records: which files a map has, and how much of each is durable in its file
 * system.  Each record has two copies, one of which is intact at any moment.
 */
#include "frame/frame.h"

static u64 record_at(const struct fby_map *m, u32 file, u32 copy)
{
	return m->at + (2 * (u64)file + copy) * FBY_PAGE;
}

static u32 record_crc(const struct fby_map *m, const struct fby_map_file_record *r)
{
	return fby_crc32c(m->seed, r, __builtin_offsetof(struct fby_map_file_record, crc));
}

static bool flags_sane(const struct fby_map_file_record *r)
{
	if (r->flags & ~(FBY_MAP_FILE_USED | FBY_MAP_FILE_CUT | FBY_MAP_FILE_GROWS))
		return false;
	if (r->flags && !(r->flags & FBY_MAP_FILE_USED))
		return false;
	if (r->flags & FBY_MAP_FILE_GROWS)
		return r->made <= r->size && r->size <= r->ahead && r->ahead < FBY_NUMBER_START;
	return r->made == 0 && r->ahead == 0;
}

static bool record_sane(const struct fby_map_file_record *r, u32 file)
{
	u8 any = 0;

	for (u32 i = 0; i < sizeof(r->reserved); i++)
		any |= r->reserved[i];
	return r->magic == FBY_MAP_FILE_MAGIC && r->id == file && r->counter < FBY_NUMBER_END &&
	       r->epoch < FBY_NUMBER_END && r->size < FBY_NUMBER_START && any == 0 &&
	       flags_sane(r) && r->identity_bytes <= FBY_MAP_IDENTITY_MAX && r->path_bytes <= FBY_MAP_PATH_MAX &&
	       r->path[r->path_bytes] == 0;
}

static bool read_one(const struct fby_maps *p, const struct fby_map *m, u32 file, u32 copy,
		     struct fby_map_file_record *out)
{
	u32 unused = 0;

	return media_read_crc(p->store->media, out, record_at(m, file, copy), sizeof(*out), &unused) &&
	       record_crc(m, out) == out->crc && record_sane(out, file);
}

bool fby_file_read(const struct fby_maps *p, struct fby_map *m, u32 file, bool *repaired)
{
	bool a_ok = read_one(p, m, file, 0, m->record), b_ok = read_one(p, m, file, 1, m->copy);

	*repaired = a_ok != b_ok || (a_ok && m->record->counter != m->copy->counter);
	if (b_ok && (!a_ok || m->copy->counter > m->record->counter))
		fby_copy(m->record, m->copy, sizeof(*m->record));
	return a_ok || b_ok;
}

void fby_file_write(const struct fby_maps *p, struct fby_map *m, u32 file)
{
	u64 a = 0, b = 0;
	bool a_ok = read_one(p, m, file, 0, m->copy);
	u32 first;

	a = m->copy->counter;
	b = read_one(p, m, file, 1, m->copy) ? m->copy->counter + 1 : 0;
	/* The one that counts is written last: a cut may have left the other torn. */
	first = a_ok && a + 1 > b;
	m->record->magic = FBY_MAP_FILE_MAGIC;
	m->record->id = file;
	m->record->counter++;
	m->record->crc = record_crc(m, m->record);
	for (u32 i = 0; i < 2; i++) {
		u64 at = record_at(m, file, first ^ i);

		media_lines(p->store->media, at, m->record, sizeof(*m->record));
		if (!FBY_BUG(MAP_FILE_NO_FENCE))
			media_fence(p->store->media, at, sizeof(*m->record));
	}
}

/* --- calls ------------------------------------------------------------------------------------- */

static u32 text_length(const char *s, u32 most)
{
	u32 n = 0;

	while (n <= most && s[n])
		n++;
	return n;
}

/* Reads the record of a file in use into m->record. */
static int load_used(const struct fby_maps *p, struct fby_map *m, u32 file)
{
	bool repaired;

	if (m->file[file].state == FBY_FILE_FREE)
		return -FBY_E_NO_MAP;
	if (m->file[file].state == FBY_FILE_DAMAGED || !fby_file_read(p, m, file, &repaired))
		return -FBY_E_MAP_DAMAGED;
	return FBY_DONE;
}

static void put_path(struct fby_map_file_record *r, const char *path)
{
	r->path_bytes = (u16)text_length(path, FBY_MAP_PATH_MAX);
	fby_zero(r->path, sizeof(r->path));
	fby_copy(r->path, path, r->path_bytes);
}

static void put_identity(struct fby_map_file_record *r, const void *identity, u16 bytes)
{
	r->identity_bytes = bytes;
	fby_zero(r->identity, sizeof(r->identity));
	fby_copy(r->identity, identity, bytes);
}

static void put_size(struct fby_map_file_record *r, u64 size, u32 flags)
{
	r->size = size;
	r->flags = flags;
	if (!(flags & FBY_MAP_FILE_GROWS))
		r->made = r->ahead = 0;
	else if (r->made > size && !FBY_BUG(MAP_CUT_KEEPS_MADE))
		r->made = size;
}

int fby_files_add(const struct fby_maps *p, struct fby_map *m, const struct fby_map_file *f, u32 *file)
{
	u32 i = 0;
	bool repaired;

	if (f->identity_bytes > FBY_MAP_IDENTITY_MAX || text_length(f->path, FBY_MAP_PATH_MAX) > FBY_MAP_PATH_MAX)
		return -FBY_E_NAME;
	if (f->size >= FBY_NUMBER_START)
		return -FBY_E_RANGE;
	while (i < m->nfiles && (m->file[i].state != FBY_FILE_FREE || m->file[i].frames))
		i++;
	if (i == m->nfiles)
		return -FBY_E_MAP_FULL;
	if (!fby_file_read(p, m, i, &repaired))
		return -FBY_E_MAP_DAMAGED;
	m->record->epoch++;
	put_size(m->record, f->size, FBY_MAP_FILE_USED);
	put_identity(m->record, f->identity, f->identity_bytes);
	put_path(m->record, f->path);
	fby_file_write(p, m, i);
	m->file[i].epoch = m->record->epoch;
	m->file[i].size = f->size;
	m->file[i].state = FBY_FILE_USED;
	m->file[i].cut = false;
	m->files++;
	*file = i;
	return FBY_DONE;
}

int fby_files_info(const struct fby_maps *p, struct fby_map *m, u32 file, struct fby_map_file *out)
{
	int rc;

	fby_zero(out, sizeof(*out));
	out->frames = m->file[file].frames;
	rc = load_used(p, m, file);
	/* Its frames wait for it, even if it became unreadable only now. */
	out->damaged = rc == -FBY_E_MAP_DAMAGED;
	if (rc)
		return rc;
	out->used = true;
	out->size = m->record->size;
	out->cut = m->file[file].cut;
	out->grows = m->record->flags & FBY_MAP_FILE_GROWS;
	out->made = out->grows ? m->record->made : out->size;
	out->ahead = out->grows ? m->record->ahead : out->size;
	out->identity_bytes = m->record->identity_bytes;
	fby_copy(out->identity, m->record->identity, sizeof(out->identity));
	fby_copy(out->path, m->record->path, sizeof(out->path));
	return FBY_DONE;
}

int fby_files_path(const struct fby_maps *p, struct fby_map *m, u32 file, const char *path)
{
	int rc = load_used(p, m, file);

	if (rc)
		return rc;
	if (text_length(path, FBY_MAP_PATH_MAX) > FBY_MAP_PATH_MAX)
		return -FBY_E_NAME;
	put_path(m->record, path);
	fby_file_write(p, m, file);
	return FBY_DONE;
}

int fby_files_identity(const struct fby_maps *p, struct fby_map *m, u32 file, const void *identity, u16 bytes)
{
	int rc = load_used(p, m, file);

	if (rc)
		return rc;
	if (bytes > FBY_MAP_IDENTITY_MAX)
		return -FBY_E_NAME;
	put_identity(m->record, identity, bytes);
	fby_file_write(p, m, file);
	return FBY_DONE;
}

/* --- sizes --------------------------------------------------------------------------------------- */

/* Writes m->record; flags: in addition to USED. */
static void write_size(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size, u32 flags)
{
	put_size(m->record, size, FBY_MAP_FILE_USED | flags);
	fby_file_write(p, m, file);
	m->file[file].size = size;
	m->file[file].cut = flags & FBY_MAP_FILE_CUT;
}

int fby_files_size(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size)
{
	int rc = load_used(p, m, file);

	if (rc)
		return rc;
	if (m->file[file].cut)
		return -FBY_E_BUSY;
	if (size < m->file[file].size || size >= FBY_NUMBER_START)
		return -FBY_E_RANGE;
	if (size > m->file[file].size || (m->record->flags & FBY_MAP_FILE_GROWS))
		write_size(p, m, file, size, FBY_BUG(MAP_SIZE_KEEPS_GROWS) ? m->record->flags : 0);
	return FBY_DONE;
}

/* Reads the record of a file that may grow into m->record. */
static int load_growing(const struct fby_maps *p, struct fby_map *m, u32 file)
{
	int rc;

	if (!(p->store->sb.features_incompat & FBY_FEATURE_MAP_GROWS))
		return FBY_ORIGIN;
	rc = load_used(p, m, file);
	return !rc && m->file[file].cut ? -FBY_E_BUSY : rc;
}

int fby_files_grows(const struct fby_maps *p, struct fby_map *m, u32 file, u64 ahead)
{
	struct fby_map_file_record *r = m->record;
	int rc = load_growing(p, m, file);

	if (rc)
		return rc;
	if (ahead < r->size || ahead >= FBY_NUMBER_START)
		return -FBY_E_RANGE;
	if (!(r->flags & FBY_MAP_FILE_GROWS))
		r->made = r->size;
	else if (ahead <= r->ahead)
		return FBY_DONE;
	r->ahead = ahead;
	write_size(p, m, file, r->size, FBY_MAP_FILE_GROWS);
	return FBY_DONE;
}

int fby_files_promise(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size)
{
	struct fby_map_file_record *r = m->record;
	int rc = load_growing(p, m, file);

	if (rc)
		return rc;
	if (!(r->flags & FBY_MAP_FILE_GROWS) || size < r->size || size > r->ahead)
		return -FBY_E_RANGE;
	if (FBY_BUG(MAP_PROMISE_NO_FENCE))
		m->file[file].size = size;
	else if (size > r->size)
		write_size(p, m, file, size, FBY_MAP_FILE_GROWS);
	return FBY_DONE;
}

/* From here on recovery completes the cut: dirty pages past the new end are not written any more,
 * whether or not the file has been truncated yet. */
int fby_files_cut(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size)
{
	int rc = load_used(p, m, file);

	if (rc)
		return rc;
	if (size > m->file[file].size)
		return -FBY_E_RANGE;
	/* Until the cut is done, the file may be shorter still, as it was before. */
	write_size(p, m, file, size,
		   (FBY_BUG(MAP_CUT_NOT_RECORDED) ? 0 : FBY_MAP_FILE_CUT) | (m->record->flags & FBY_MAP_FILE_GROWS));
	m->file[file].cut = true;
	return FBY_DONE;
}

/* Zeroes the rest of the page in which the file ends: it becomes part of the file when the file
 * grows. */
static void zero_tail(const struct fby_frame *f, u64 in_frame)
{
	u32 first = (u32)in_frame & (FBY_PAGE - 1);
	u8 *at = f->memory + in_frame;

	if (!first || FBY_BUG(MAP_CUT_TAIL_STAYS))
		return;
	fby_zero(at, FBY_PAGE - first);
	f->port->flush(f->host, at, FBY_PAGE - first);
	f->port->fence(f->host);
}

/* Must the rest of the page in which the file ends be zeroed, and is that possible?  Nobody uses
 * a clean page of a frame that was found.  A store to bad memory may fault. */
static int tail_of(const struct fby_maps *p, struct fby_map *m, u32 frame, u64 in_frame, bool *zeroed)
{
	u32 page = (u32)(in_frame / FBY_PAGE);
	struct fby_pages dirty, unknown;

	*zeroed = false;
	if (in_frame % FBY_PAGE == 0)
		return FBY_DONE;
	if (m->frame[frame].state == FBY_FRAME_FOUND) {
		fby_descriptor_pages(p, m, frame, m->frame[frame].epoch, &dirty, &unknown);
		if (!fby_pages_has(&dirty, page) && !fby_pages_has(&unknown, page))
			return FBY_DONE;
	}
	*zeroed = media_read(p->store->media, m->copy, fby_frame_at(m, frame) + (u64)page * FBY_PAGE, FBY_PAGE);
	return *zeroed ? FBY_DONE : -FBY_E_LOST;
}

int fby_files_cut_end(const struct fby_maps *p, struct fby_map *m, u32 file)
{
	u64 size = m->file[file].size;
	int rc = load_used(p, m, file);

	if (rc)
		return rc;
	if (!m->file[file].cut)
		return FBY_DONE;
	for (u32 i = 0; i < m->nframes; i++) {
		struct fby_map_frame *s = &m->frame[i];
		struct fby_frame f;
		u64 begin;
		bool tail;

		if (s->state == FBY_FRAME_FREE || s->state == FBY_FRAME_DAMAGED || s->stray || s->file != file)
			continue;
		begin = s->segment * m->frame_bytes;
		if (begin + m->frame_bytes <= size || fby_frames_get(p, m, i, &f))
			continue;
		if (begin < size) {
			rc = tail_of(p, m, i, size - begin, &tail);
			if (rc)
				return rc;
			if (tail)
				zero_tail(&f, size - begin);
		}
		/* A frame that is only taken has no words yet. */
		if (s->state != FBY_FRAME_TAKEN && !FBY_BUG(MAP_CUT_KEEPS_BITS))
			fby_frame_forget(&f, begin < size ? (u32)(fby_round_up(size - begin, FBY_PAGE) / FBY_PAGE) : 0);
	}
	write_size(p, m, file, size, 0);
	return FBY_DONE;
}

/* A damaged record may be removed: no frame refers to it any more, so nothing is lost with it. */
int fby_files_remove(const struct fby_maps *p, struct fby_map *m, u32 file)
{
	struct fby_map_known *k = &m->file[file];
	bool repaired, damaged = k->state == FBY_FILE_DAMAGED;

	if (k->state == FBY_FILE_FREE)
		return -FBY_E_NO_MAP;
	if (k->frames && !FBY_BUG(MAP_FILE_FREED_EARLY))
		return -FBY_E_BUSY;
	if (damaged) {
		/* Frames refer to the record by an epoch that is unknown. */
		for (u32 i = 0; i < m->nframes; i++)
			if (m->frame[i].state != FBY_FRAME_FREE && m->frame[i].stray && m->frame[i].file == file)
				return -FBY_E_BUSY;
		fby_zero(m->record, sizeof(*m->record));
	} else if (!fby_file_read(p, m, file, &repaired)) {
		return -FBY_E_MAP_DAMAGED;
	}
	put_size(m->record, 0, 0);
	m->record->identity_bytes = m->record->path_bytes = 0;
	fby_zero(m->record->identity, sizeof(m->record->identity));
	fby_zero(m->record->path, sizeof(m->record->path));
	fby_file_write(p, m, file);
	k->epoch = m->record->epoch;
	k->state = FBY_FILE_FREE;
	k->cut = false;
	m->files -= !damaged;
	m->damaged_files -= damaged;
	return FBY_DONE;
}
