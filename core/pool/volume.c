// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume.c - volumes: add, remove, rebind, attach, detach.
 */
#include "cache/index.h"
#include "cache/static_requests.h"
#include "format/kind.h"
#include "pool/parts.h"
#include "space/slot.h"

int fby_volume_find(struct fby_pool *p, const char *name, u16 *index)
{
	return fby_table_find(p, FBY_OWNER_VOLUME, name, index) || fby_table_find(p, FBY_OWNER_STATIC, name, index) ?
		       FBY_DONE :
		       -FBY_E_NO_VOLUME;
}

/* The counts belong to the volume that had the index before. */
static void forget_counts(struct fby_pool *p, u16 index)
{
	struct fby_cached *cv = &p->cache.volume[index];
	struct fby_drained *dv = &p->drain.volume[index];

	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		struct fby_slot_volume *v = &p->space.slot[i].volume[index];

		fby_store(&v->writes, 0);
		fby_store(&v->sectors, 0);
	}
	fby_store(&cv->bypasses, 0);
	fby_store(&cv->bypassed_sectors, 0);
	fby_store(&dv->moved, 0);
	fby_store(&dv->last_error, 0);
	fby_store(&dv->origin_errors, 0);
	fby_store(&dv->origin_writes, 0);
	fby_store(&dv->origin_sectors, 0);
	fby_store(&dv->origin_flushes, 0);
	fby_store(&dv->pages_destaged, 0);
	fby_store(&dv->rounds, 0);
	fby_zero(&dv->pace, sizeof(dv->pace));
}

int fby_volume_add(struct fby_pool *p, const struct fby_volume_spec *s, u16 *index)
{
	struct fby_volume_record r = { 0 }, was;
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_recovered *rv;
	u32 i;
	int rc = fby_table_writable(p);

	if (rc)
		return rc;
	if (!fby_volumes_allowed(&p->space) || (p->space.store.unit && s->static_bytes))
		return -FBY_E_LOGS_ONLY;
	if (!fby_text_ends(s->name, sizeof(s->name)) || !fby_name_ok(s->name) ||
	    !fby_text_ends(s->identity, sizeof(s->identity)))
		return -FBY_E_NAME;
	if (fby_table_find(p, FBY_OWNER_KINDS, s->name, index))
		return -FBY_E_VOLUME_EXISTS;
	i = fby_table_place(p);
	if (i == p->space.store.sb.nvolumes)
		return -FBY_E_VOLUME_TABLE_FULL;
	owner = &p->space.owner[i];
	cv = &p->cache.volume[i];
	rv = &p->recovery.volume[i];
	r.counter = owner->rec.counter;
	r.index = i;
	r.kind = FBY_OWNER_VOLUME;
	/* Nothing written so far may count as this volume's: its first chunk takes a fresh block
	 * of sequence numbers. */
	r.watermark = FBY_BUG(NEW_VOLUME_OLD_WATERMARK) ? 0 : fby_load_acquire(&p->space.seq) - 1;
	r.origin_sectors = s->origin_sectors;
	r.block_size = s->block_size;
	fby_copy(r.uuid, s->uuid, 16);
	for (u32 n = 0; s->name[n]; n++)
		r.name[n] = s->name[n];
	for (u32 n = 0; s->identity[n]; n++)
		r.identity[n] = s->identity[n];
	if (!fby_record_sane(i, &r))
		return -FBY_E_GEOMETRY;
	if (s->static_bytes) {
		rc = fby_pool_static_add(p, i, s, &r);
		if (rc)
			return rc;
	}
	was = owner->rec;
	owner->rec = r;
	owner->chunk_kind = FBY_CHUNK_CACHE;
	fby_zero(&cv->gate, sizeof(cv->gate)); /* discard the gate of the previous volume */
	forget_counts(p, (u16)i);
	cv->blocks = (r.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	cv->lost_blocks = cv->lost_only = rv->holes = rv->holes_unknown = 0;
	rc = fby_table_record(p, (u16)i, &was);
	if (rc)
		return rc;
	*index = (u16)i;
	return FBY_DONE;
}

/* Unlinks all pages; the record is already free, so a restart finds none of them. */
static void forget_pages(struct fby_pool *p, u16 volume)
{
	u32 wake = 0, c = FBY_NO_CHUNK;

	/* Those of a grouped pool were closed before the record was written. */
	for (u32 i = 0; i < p->space.opt.nslots && !p->space.store.unit; i++) {
		struct fby_slot *s = &p->space.slot[i];

		while (!fby_slot_try(s))
			fby_relax();
		fby_slot_close(&p->space, s, volume, &wake);
		fby_slot_give(&p->space, s, &wake);
	}
	while ((c = fby_chunk_walk(&p->space, volume, c, &wake)) != FBY_NO_CHUNK) {
		u32 end = fby_page_number(&p->space, c + 1, 0);

		if (fby_chunk_kinds[p->space.chunk[c].kind].whole) { /* a log's chunk under this damaged record */
			fby_chunk_give_back(&p->space, c);
			continue;
		}
		for (u32 page = fby_page_number(&p->space, c, p->space.store.first_page); page < end; page++) {
			struct fby_entry *e = &p->cache.entry[page];
			u32 b;

			if (!(fby_load(&e->state) & FBY_ES_LINKED))
				continue;
			b = fby_index_bucket(&p->cache, e->key);
			while (!fby_index_try(&p->cache, b))
				fby_relax();
			if (fby_page_is_clean(&p->cache, volume, page, fby_load(&e->state)))
				fby_store(&p->space.owner[volume].cleaned, p->space.owner[volume].cleaned - 1);
			fby_index_del_locked(&p->cache, b, page);
			fby_index_release(&p->cache, b);
			fby_page_dead(&p->space, page, fby_dead_row(&p->space, NULL), &p->space.owner[volume].dead);
		}
	}
	fby_owner_count(&p->space, volume);
	fby_fetch_or(&p->space.wake_owed, wake);
}

/* In a grouped pool.  DONE: everything that was appended to the volume is durable, and none of its
 * chunks is open.  WAIT_SLOT, WAIT_TICKET. */
static int leave_stream(struct fby_pool *p, u16 index)
{
	struct fby_slot *s = fby_stream_slot(&p->space, index);
	u32 wake = 0;

	if (!fby_slot_try(s))
		return FBY_WAIT_SLOT;
	fby_slot_close(&p->space, s, index, &wake);
	fby_slot_give(&p->space, s, &wake);
	fby_fetch_or(&p->space.wake_owed, wake);
	return fby_stream_quiet(&p->space, index) || FBY_BUG(PAGES_DETACH_EARLY) ? FBY_DONE : FBY_WAIT_TICKET;
}

int fby_volume_remove(struct fby_pool *p, u16 index, bool discard)
{
	struct fby_volume_record was;
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_recovered *rv;
	int rc = fby_table_writable(p);

	if (rc)
		return rc;
	if (index >= p->space.store.sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	cv = &p->cache.volume[index];
	rv = &p->recovery.volume[index];
	if (!fby_is_volume(owner->rec.kind) && !owner->damaged)
		return -FBY_E_NO_VOLUME;
	if (owner->attached || fby_is_static(&p->cache, index))
		return -FBY_E_VOLUME_BUSY;
	if (!discard && (owner->damaged || owner->rec.flags || fby_owner_pages(&p->space, index) > 0 ||
			 (owner->rec.kind == FBY_OWNER_STATIC && fby_static_any(&p->statics, index))))
		return -FBY_E_VOLUME_DIRTY;
	rc = p->space.store.unit ? leave_stream(p, index) : FBY_DONE;
	if (rc)
		return rc;
	was = owner->rec;
	owner->rec.kind = FBY_OWNER_FREE;
	owner->rec.flags = 0;
	owner->rec.watermark = fby_load_acquire(&p->space.seq) - 1;
	rc = fby_table_record(p, index, &was);
	if (rc)
		return rc;
	owner->damaged = false;
	forget_pages(p, index);
	cv->lost_blocks = cv->lost_only = rv->holes = rv->holes_unknown = 0;
	return FBY_DONE;
}

int fby_volume_rebind(struct fby_pool *p, u16 index, const char *identity, u64 origin_sectors)
{
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_volume_record r, was;
	int rc = fby_table_writable(p);
	u32 n;

	if (rc)
		return rc;
	if (index >= p->space.store.sb.nvolumes || !fby_is_volume(p->space.owner[index].rec.kind))
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	cv = &p->cache.volume[index];
	if (owner->attached || fby_is_static(&p->cache, index))
		return -FBY_E_VOLUME_BUSY;
	r = owner->rec;
	if (origin_sectors < r.origin_sectors)
		return -FBY_E_ORIGIN_SIZE;
	r.origin_sectors = origin_sectors;
	fby_zero(r.identity, sizeof(r.identity));
	for (n = 0; identity[n] && n < FBY_IDENTITY_MAX; n++)
		r.identity[n] = identity[n];
	if (identity[n] || !fby_record_sane(index, &r))
		return -FBY_E_NAME;
	was = owner->rec;
	owner->rec = r;
	rc = fby_table_record(p, index, &was);
	if (rc)
		return rc;
	cv->blocks = (r.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	return FBY_DONE;
}

u32 fby_mark_number(u32 marks)
{
	u32 rest = marks & 7;

	return rest == 3 || rest == 4 ? (marks | 7) + 1 : marks & ~1u;
}

/* The number after a step; see fby_mark_step.  Numbers that a mark may already carry are skipped. */
static u32 number_after(u32 marks, enum fby_mark_step step)
{
	u32 rest = marks & 7;

	switch (step) {
	case FBY_MARK_SET:
		return fby_mark_number(marks) | 1;
	case FBY_MARK_CLEARED:
		return marks + (marks & 1);
	case FBY_MARK_GONE:
		return ((marks + 4) | 7) - 1;
	case FBY_MARK_AGAIN:
		if (rest == 1 || rest == 2)
			return marks + 2;
		if (rest == 3 || rest == 4)
			return marks + 8;
		break;
	default:
		break;
	}
	return ((marks + 5) | 7) + 1;
}

int fby_volume_mark(struct fby_pool *p, u16 index, enum fby_mark_step step, u32 *marks)
{
	struct fby_volume_record was;
	struct fby_owner *owner;
	int rc = fby_table_writable(p);
	u32 next;

	if (rc)
		return rc;
	if (index >= p->space.store.sb.nvolumes || !fby_is_volume(p->space.owner[index].rec.kind))
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	was = owner->rec;
	next = number_after(was.marks, step);
	*marks = next;
	if (next == was.marks || FBY_BUG(MARK_NOT_RECORDED))
		return FBY_DONE;
	owner->rec.marks = FBY_BUG(MARK_NUMBER_AGAIN) ? next & 1 : next;
	*marks = owner->rec.marks;
	/* If the device fails, the next number is not based on this one, which the device may lack. */
	return fby_table_record(p, index, &was);
}

/* --- attach and detach ------------------------------------------------------- */

u64 fby_volume_bytes(struct fby_pool *p, u32 round_pages, u32 nrequests, u32 buffer_bytes)
{
	(void)p;
	return fby_round_up((u64)round_pages * sizeof(struct fby_round_page), FBY_PAGE) +
	       (u64)fby_flight_buffers(nrequests) * buffer_bytes;
}

static void attach_memory(struct fby_drained *v, const struct fby_attach *a)
{
	struct fby_destage *d = &v->destage;
	u8 *buf = (u8 *)a->mem + fby_round_up((u64)a->round_pages * sizeof(struct fby_round_page), FBY_PAGE);

	fby_zero(d, sizeof(*d));
	fby_plan_start(&d->plan);
	d->page = a->mem;
	d->cap = a->round_pages;
	fby_flight_start(d, buf, a->nrequests, a->buffer_bytes);
}

/* Accepts entries that recovery found lost, as the policy says, and records that in the volume. */
static int accept_holes(struct fby_pool *p, u16 index, enum fby_holes policy)
{
	struct fby_owner *owner = &p->space.owner[index];
	struct fby_recovered *rv = &p->recovery.volume[index];
	struct fby_volume_record was = owner->rec;
	int rc = FBY_DONE;

	if (was.flags == 0 || policy == FBY_HOLES_RESCUE)
		return FBY_DONE;
	owner->rec.flags = 0;
	if (!p->space.opt.read_only)
		rc = fby_table_record(p, index, &was);
	if (!rc)
		rv->holes = rv->holes_unknown = 0;
	return rc;
}

int fby_volume_ready(struct fby_pool *p, u16 index, enum fby_holes policy)
{
	struct fby_owner *owner;

	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (index >= p->space.store.sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	if (owner->damaged)
		return -FBY_E_VOLUME_DAMAGED;
	if (!fby_is_volume(owner->rec.kind))
		return -FBY_E_NO_VOLUME;
	if (owner->attached || fby_is_static(&p->cache, index))
		return -FBY_E_VOLUME_BUSY;
	if (policy == FBY_HOLES_RESCUE)
		return FBY_DONE;
	if ((owner->rec.flags & FBY_VF_HOLES_UNKNOWN) && policy != FBY_HOLES_ACCEPT)
		return -FBY_E_HOLES;
	return owner->rec.flags && policy == FBY_HOLES_FAIL ? -FBY_E_HOLES_KNOWN : FBY_DONE;
}

int fby_volume_attach(struct fby_pool *p, u16 index, const struct fby_attach *a)
{
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_drained *dv;
	int rc = fby_volume_ready(p, index, a->holes);

	if (rc && rc != -FBY_E_HOLES && rc != -FBY_E_HOLES_KNOWN)
		return rc;
	owner = &p->space.owner[index];
	cv = &p->cache.volume[index];
	dv = &p->drain.volume[index];
	if (a->origin_sectors != owner->rec.origin_sectors)
		return -FBY_E_ORIGIN_SIZE;
	if (!fby_name_equal(a->identity, owner->rec.identity))
		return -FBY_E_ORIGIN_IDENTITY;
	if (a->nrequests < 1 || a->nrequests > 64 || a->buffer_bytes < FBY_PAGE || a->buffer_bytes % FBY_PAGE ||
	    a->round_pages < 16)
		return -FBY_E_GEOMETRY;
	if (a->mem_bytes < fby_volume_bytes(p, a->round_pages, a->nrequests, a->buffer_bytes))
		return -FBY_E_NO_MEMORY;
	if (rc)
		return rc;
	rc = accept_holes(p, index, a->holes);
	if (rc)
		return rc;
	rc = owner->rec.kind == FBY_OWNER_STATIC ? fby_static_attach(&p->statics, index) : FBY_DONE;
	if (rc)
		return rc;
	attach_memory(dv, a);
	/* pages that were written along before are not clean for another origin */
	fby_owner_attach(&p->space, index);
	fby_zero(&dv->pace, sizeof(dv->pace));
	fby_pace_start(&dv->pace, a->nrequests);
	dv->last_error = 0;
	fby_gate_attach(cv);
	cv->bypasses = cv->bypassed_sectors = 0;
	if (owner->rec.kind == FBY_OWNER_STATIC) {
		dv->pace.depth = fby_flight_buffers(a->nrequests); /* its measurements throttle nobody */
		return FBY_DONE;
	}
	fby_entitle(&p->space, owner, true);
	owner->tight = p->space.tight; /* until its rounds know this origin */
	owner->attached = true;
	fby_share_update(&p->space);
	fby_level_update(&p->space, index);
	fby_destage_look(&p->space, index);
	return FBY_DONE;
}

/* Closes the volume's chunks.  DONE: all are. */
static int close_chunks(struct fby_pool *p, u16 index)
{
	int rc = FBY_DONE;
	u32 wake = 0;

	/* When the device has failed there is nothing to wait for, and no chunk is opened again. */
	if (p->space.store.unit)
		return media_failed(p->space.store.media) ? FBY_DONE : leave_stream(p, index);
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		if (!fby_slot_try(&p->space.slot[i])) {
			rc = -FBY_E_BUSY;
			break;
		}
		fby_slot_close(&p->space, &p->space.slot[i], index, &wake);
		fby_slot_give(&p->space, &p->space.slot[i], &wake);
	}
	fby_fetch_or(&p->space.wake_owed, wake);
	return rc;
}

int fby_volume_detach(struct fby_pool *p, u16 index)
{
	struct fby_owner *owner;
	struct fby_cached *cv;
	struct fby_drained *dv;
	u32 wake = 0;
	int rc;

	if (index >= p->space.store.sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	owner = &p->space.owner[index];
	cv = &p->cache.volume[index];
	dv = &p->drain.volume[index];
	if (!owner->attached && !fby_is_static(&p->cache, index))
		return -FBY_E_VOLUME_DETACHED;
	if (dv->destage.outstanding > 0 || fby_load(&cv->bypassing) ||
	    ((fby_load(&cv->gate.held) & FBY_GATE_HELD) && !dv->destage.gate))
		return -FBY_E_BUSY;
	if (!owner->attached) {
		fby_static_detach(&p->statics, index);
		fby_zero(&dv->destage, sizeof(dv->destage));
		return FBY_DONE;
	}
	rc = p->space.opt.read_only ? FBY_DONE : close_chunks(p, index);
	if (rc)
		return rc;
	fby_relocate_settle(&p->drain, index, &wake);
	fby_fetch_or(&p->space.wake_owed, wake);
	fby_destage_settle(&p->drain, index);
	owner->attached = false;
	fby_entitle(&p->space, owner, false);
	fby_share_update(&p->space);
	fby_zero(&dv->destage, sizeof(dv->destage));
	return FBY_DONE;
}

