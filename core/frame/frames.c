// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * frames.c - takes, shows and drops frames, and finds those that a crash has left.
 */
#include "frame/frame.h"

static void free_push(struct fby_map *m, u32 frame)
{
	struct fby_map_frame *f = &m->frame[frame];

	f->state = FBY_FRAME_FREE;
	f->stray = false;
	f->next = m->free_first;
	m->free_first = frame;
	m->nfree++;
}

static void refer(struct fby_map *m, const struct fby_map_frame *f, u32 n)
{
	if (!f->stray)
		m->file[f->file].frames += n;
}

int fby_frames_take(struct fby_map *m, u32 file, u64 segment, u32 *frame)
{
	struct fby_map_frame *f;

	if (m->file[file].state != FBY_FILE_USED)
		return m->file[file].state == FBY_FILE_DAMAGED ? -FBY_E_MAP_DAMAGED : -FBY_E_NO_MAP;
	if (segment >= FBY_NUMBER_START >> __builtin_ctz(m->frame_bytes))
		return -FBY_E_RANGE;
	if (!m->nfree)
		return -FBY_E_MAP_FULL;
	*frame = m->free_first;
	f = &m->frame[*frame];
	m->free_first = f->next;
	m->nfree--;
	f->state = FBY_FRAME_TAKEN;
	f->file = file;
	f->segment = segment;
	refer(m, f, 1);
	return FBY_DONE;
}

/* Words are written first, then the line that makes them count. */
int fby_frames_show(const struct fby_maps *p, struct fby_map *m, u32 frame)
{
	struct fby_map_frame *f = &m->frame[frame];
	struct fby_map_line l;

	if (f->state != FBY_FRAME_TAKEN)
		return -FBY_E_BUSY;
	FBY_ASSERT(m, (f->epoch & 1) == 0);
	fby_zero(&l, sizeof(l));
	l.epoch = f->epoch + 1;
	if (FBY_BUG(MAP_EPOCH_NOT_RAISED) && l.epoch > 2)
		l.epoch -= 2;
	l.segment = f->segment;
	l.file = f->file;
	l.file_epoch = m->file[f->file].epoch;
	if (!FBY_BUG(MAP_STALE_WORDS))
		fby_descriptor_clean(p, m, frame, l.epoch);
	fby_descriptor_write(p, m, frame, &l);
	f->epoch = l.epoch;
	f->state = FBY_FRAME_USED;
	m->nused++;
	return FBY_DONE;
}

static void drop(const struct fby_maps *p, struct fby_map *m, u32 frame)
{
	struct fby_map_frame *f = &m->frame[frame];
	struct fby_map_line l;

	fby_zero(&l, sizeof(l));
	f->epoch += f->epoch & 1 ? 1 : 2; /* a damaged one: whatever its epoch was, none is newer */
	l.epoch = f->epoch;
	if (!FBY_BUG(MAP_DROP_NOT_RECORDED))
		fby_descriptor_write(p, m, frame, &l);
}

/* Makes every later sync of the frame fail.  False: a sync has just made a page dirty. */
static bool close_words(const struct fby_maps *p, struct fby_map *m, u32 frame, bool discard)
{
	struct fby_pages dirty, unknown;
	struct fby_frame f;

	fby_descriptor_pages(p, m, frame, m->frame[frame].epoch, &dirty, &unknown);
	return !fby_frames_get(p, m, frame, &f) && fby_frame_close(&f, &unknown, discard);
}

int fby_frames_drop(const struct fby_maps *p, struct fby_map *m, u32 frame, bool discard)
{
	struct fby_map_frame *f = &m->frame[frame];
	u32 unknown;

	switch (f->state) {
	case FBY_FRAME_FREE:
		return -FBY_E_NO_MAP;
	case FBY_FRAME_TAKEN:
		break;
	case FBY_FRAME_DAMAGED:
		if (!discard)
			return -FBY_E_MAP_DIRTY;
		if (f->epoch >= FBY_NUMBER_START)
			return -FBY_E_NUMBERS;
		m->ndamaged--;
		/* Its words may be of any epoch.  In the next use none is dirty, and a process
		 * that still has the frame from before syncs nothing more. */
		fby_descriptor_clean(p, m, frame, (f->epoch | 1) + 2);
		drop(p, m, frame);
		free_push(m, frame);
		return FBY_DONE;
	default:
		if (!discard && !FBY_BUG(MAP_DROP_DIRTY) &&
		    (fby_descriptor_dirty(p, m, frame, f->epoch, &unknown) || unknown))
			return -FBY_E_MAP_DIRTY;
		if (!close_words(p, m, frame, discard || FBY_BUG(MAP_DROP_DIRTY)))
			return -FBY_E_MAP_DIRTY;
		drop(p, m, frame);
		m->nused--;
		break;
	}
	refer(m, f, ~0u);
	free_push(m, frame);
	return FBY_DONE;
}

int fby_frames_get(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_frame *out)
{
	const struct fby_map_frame *f = &m->frame[frame];
	u64 end, begin;

	fby_zero(out, sizeof(*out));
	if (f->state == FBY_FRAME_FREE || f->state == FBY_FRAME_DAMAGED)
		return f->state == FBY_FRAME_FREE ? -FBY_E_NO_MAP : -FBY_E_MAP_DAMAGED;
	out->words = (u64 *)fby_media_direct(p->store->media, fby_descriptor_at(m, frame) + FBY_MAP_WORDS_AT,
					     FBY_FRAME_WORDS * sizeof(u64));
	out->memory = fby_media_direct(p->store->media, fby_frame_at(m, frame), m->frame_bytes);
	out->port = m->port;
	out->host = m->host;
	out->npages = m->frame_pages;
	out->seed = fby_frame_seed(m->seed, frame, f->epoch);
	if (f->state == FBY_FRAME_TAKEN)
		out->words = NULL; /* none yet, and nothing to sync */
	if (f->state == FBY_FRAME_TAKEN || f->stray)
		return FBY_DONE; /* the frame has no file, so no page is within it */
	begin = f->segment * m->frame_bytes;
	end = fby_round_up(m->file[f->file].size, FBY_PAGE);
	if (end > begin)
		out->limit = end - begin < m->frame_bytes ? (u32)(end - begin) / FBY_PAGE : m->frame_pages;
	return FBY_DONE;
}

/* --- attach ------------------------------------------------------------------------------ */

static void find_files(const struct fby_maps *p, struct fby_map *m, struct fby_map_report *r)
{
	for (u32 i = 0; i < m->nfiles; i++) {
		struct fby_map_known *k = &m->file[i];
		bool repaired;

		if (!fby_file_read(p, m, i, &repaired) || m->record->counter >= FBY_NUMBER_START ||
		    m->record->epoch >= FBY_NUMBER_START) {
			k->state = FBY_FILE_DAMAGED;
			m->damaged_files++;
			continue;
		}
		if (repaired && !p->read_only) {
			fby_file_write(p, m, i);
			r->repaired++;
		}
		k->epoch = m->record->epoch;
		k->size = m->record->size;
		k->state = m->record->flags & FBY_MAP_FILE_USED ? FBY_FILE_USED : FBY_FILE_FREE;
		k->cut = m->record->flags & FBY_MAP_FILE_CUT;
		m->files += k->state == FBY_FILE_USED;
		r->cut += k->cut;
	}
	r->damaged_files = m->damaged_files;
}

static void found_damaged(struct fby_map *m, u32 frame, const struct fby_map_seen *s)
{
	m->frame[frame].state = FBY_FRAME_DAMAGED;
	m->frame[frame].epoch = s->any ? s->line.epoch : 0;
	m->ndamaged++;
}

static void found_used(const struct fby_maps *p, struct fby_map *m, u32 frame, const struct fby_map_line *l,
		       struct fby_map_report *r)
{
	struct fby_map_frame *f = &m->frame[frame];
	u32 unknown, dirty = fby_descriptor_dirty(p, m, frame, l->epoch, &unknown);

	f->stray = l->file >= m->nfiles || m->file[l->file].state != FBY_FILE_USED ||
		   m->file[l->file].epoch != l->file_epoch || l->segment >= FBY_NUMBER_START >> __builtin_ctz(m->frame_bytes);
	f->file = l->file;
	f->segment = l->segment;
	if (FBY_BUG(MAP_UNKNOWN_DROPPED))
		unknown = 0;
	f->state = FBY_FRAME_FOUND;
	if (!dirty && !unknown) {
		if (p->read_only || close_words(p, m, frame, false)) {
			if (!p->read_only)
				drop(p, m, frame);
			free_push(m, frame);
			return;
		}
		dirty = fby_descriptor_dirty(p, m, frame, l->epoch, &unknown);
	}
	refer(m, f, 1);
	m->nused++;
	r->frames++;
	r->dirty += dirty;
	r->unknown += unknown;
	r->stray += f->stray;
}

void fby_frames_find(const struct fby_maps *p, struct fby_map *m, struct fby_map_report *r)
{
	find_files(p, m, r);
	m->free_first = FBY_NO_FRAME;
	for (u32 i = m->nframes; i-- > 0;) {
		struct fby_map_seen s;

		fby_descriptor_look(p, m, i, &s);
		/* A number this high leaves no room to count on. */
		if (!s.any || s.hidden || s.line.epoch >= FBY_NUMBER_START) {
			found_damaged(m, i, &s);
			continue;
		}
		m->frame[i].epoch = s.line.epoch;
		if (s.bad && !p->read_only) {
			fby_descriptor_write(p, m, i, &s.line);
			r->repaired++;
		}
		if (s.line.epoch & 1)
			found_used(p, m, i, &s.line, r);
		else
			free_push(m, i);
	}
	r->damaged_frames = m->ndamaged;
}
