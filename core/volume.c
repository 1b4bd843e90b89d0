// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume.c - the volume table: records on the media, add, remove, attach.
 */
#include "index.h"
#include "media.h"
#include "slot.h"

static u64 record_at(u32 volume, u32 copy)
{
	return FBY_VT_OFFSET + (volume * 2u + copy) * sizeof(struct fby_volume_record);
}

static u32 record_crc(const struct fby_pool *p, const struct fby_volume_record *r)
{
	return fby_crc32c(p->line_seed, r, sizeof(*r) - 4);
}

static bool text_ends(const char *s, u32 n)
{
	while (n > 0 && *s++)
		n--;
	return n > 0;
}

static bool record_sane(const struct fby_pool *p, u32 volume, const struct fby_volume_record *r)
{
	u8 any = 0;

	for (u32 i = 0; i < sizeof(r->reserved); i++)
		any |= r->reserved[i];
	if (any || (r->flags & ~FBY_VF_ALL) || r->index != volume || r->state > FBY_VOL_USED || r->watermark >= FBY_NUMBER_END ||
	    r->counter >= FBY_NUMBER_END ||
	    !text_ends(r->name, sizeof(r->name)) || !text_ends(r->identity, sizeof(r->identity)))
		return false;
	(void)p;
	return r->state == FBY_VOL_FREE ||
	       ((r->block_size == FBY_SECTOR || r->block_size == FBY_PAGE) && r->origin_sectors > 0 &&
		r->origin_sectors <= 1ull << (FBY_BLOCK_BITS + 3) &&
		(r->origin_sectors & (r->block_size / FBY_SECTOR - 1)) == 0);
}

bool fby_record_read(struct fby_pool *p, u16 volume, u32 copy, struct fby_volume_record *out)
{
	u32 unused = 0;

	return media_read_crc(p->media, out, record_at(volume, copy), sizeof(*out), &unused) &&
	       record_crc(p, out) == out->crc && record_sane(p, volume, out);
}

/* Both copies, a fence after each: a crash leaves at least one whole, and the
 * state of the volume is at any moment the older or the newer.  The copy that
 * counts is written last: a crash or damage may have left the other one torn. */
void fby_record_write(struct fby_pool *p, u16 volume)
{
	struct fby_volume_record *r = &p->volume[volume].rec, a, b;
	bool a_ok = fby_record_read(p, volume, 0, &a), b_ok = fby_record_read(p, volume, 1, &b);
	u32 first = a_ok && (!b_ok || a.counter > b.counter);

	r->counter++;
	r->index = volume;
	r->crc = record_crc(p, r);
	for (u32 i = 0; i < 2; i++) {
		u32 copy = first ^ i;

		media_lines(p->media, record_at(volume, copy), r, sizeof(*r));
		if (!FBY_BUG(WATERMARK_NO_FENCE))
			media_fence(p->media, record_at(volume, copy), sizeof(*r));
	}
}

/* Of a name that ends. */
static bool name_ok(const char *name)
{
	for (u32 n = 0; name[n]; n++) {
		char c = name[n];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
		      c == '_' || c == '-'))
			return false;
	}
	return name[0] != 0;
}

static bool name_equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

int fby_volume_find(struct fby_pool *p, const char *name, u16 *index)
{
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		if (p->volume[i].rec.state == FBY_VOL_USED && name_equal(p->volume[i].rec.name, name)) {
			*index = (u16)i;
			return FBY_DONE;
		}
	}
	return -FBY_E_NO_VOLUME;
}

static int writable(const struct fby_pool *p)
{
	if (p->opt.read_only)
		return -FBY_E_READ_ONLY;
	return p->usable ? FBY_DONE : -FBY_E_RECOVERY_INCOMPLETE;
}

int fby_volume_add(struct fby_pool *p, const struct fby_volume_spec *s, u16 *index)
{
	struct fby_volume_record r = { 0 };
	struct fby_volume *v;
	u32 i = 0;
	int rc = writable(p);

	if (rc)
		return rc;
	if (!text_ends(s->name, sizeof(s->name)) || !name_ok(s->name) ||
	    !text_ends(s->identity, sizeof(s->identity)))
		return -FBY_E_NAME;
	if (fby_volume_find(p, s->name, index) == FBY_DONE)
		return -FBY_E_VOLUME_EXISTS;
	while (i < p->sb.nvolumes && (p->volume[i].rec.state != FBY_VOL_FREE || p->volume[i].damaged))
		i++;
	if (i == p->sb.nvolumes)
		return -FBY_E_VOLUME_TABLE_FULL;
	v = &p->volume[i];
	r.counter = v->rec.counter;
	r.index = i;
	r.state = FBY_VOL_USED;
	/* Nothing written so far can be taken for this volume's own: its first
	 * chunk takes a fresh block of sequence numbers. */
	r.watermark = FBY_BUG(NEW_VOLUME_OLD_WATERMARK) ? 0 : fby_load_acquire(&p->seq) - 1;
	r.origin_sectors = s->origin_sectors;
	r.block_size = s->block_size;
	fby_copy(r.uuid, s->uuid, 16);
	for (u32 n = 0; s->name[n]; n++)
		r.name[n] = s->name[n];
	for (u32 n = 0; s->identity[n]; n++)
		r.identity[n] = s->identity[n];
	if (!record_sane(p, i, &r))
		return -FBY_E_GEOMETRY;
	v->rec = r;
	v->blocks = (r.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	v->lost_blocks = v->lost_only = v->holes = v->holes_unknown = 0;
	fby_record_write(p, (u16)i);
	*index = (u16)i;
	return FBY_DONE;
}

u64 fby_volume_dead(const struct fby_pool *p, u16 volume)
{
	u64 dead = fby_load_acquire(&p->volume[volume].dead);

	for (u32 i = 0; i < p->opt.nslots; i++)
		dead += fby_load_acquire(&p->slot[i].volume[volume].dead);
	return dead;
}

/* The dead first: a page is counted before it is linked, and so before it can
 * die.  The other way round what is replaced meanwhile would be subtracted. */
u64 fby_volume_pages(const struct fby_pool *p, u16 volume)
{
	u64 dead = fby_volume_dead(p, volume), pages = p->volume[volume].recovered;

	for (u32 i = 0; i < p->opt.nslots; i++)
		pages += fby_load(&p->slot[i].volume[volume].pages);
	return pages - dead;
}

void fby_volume_count(struct fby_pool *p, u16 volume)
{
	struct fby_volume *v = &p->volume[volume];
	u64 pages;

	fby_lock(&p->lock);
	pages = fby_volume_pages(p, volume);
	fby_store(&p->live, p->live + pages - v->counted);
	fby_store(&v->counted, pages);
	fby_unlock(&p->lock);
}

/* Unlinks all; the record is free already, so nothing of it comes back. */
static void forget_pages(struct fby_pool *p, u16 volume)
{
	u32 wake = 0, c = FBY_NO_CHUNK;

	for (u32 i = 0; i < p->opt.nslots; i++) {
		struct fby_slot *s = &p->slot[i];

		while (!fby_slot_try(s))
			fby_relax();
		fby_slot_close(p, s, volume, &wake);
		fby_slot_release(s);
	}
	while ((c = fby_chunk_walk(p, volume, c, &wake)) != FBY_NO_CHUNK) {
		for (u32 page = (c << p->chunk_shift) + FBY_FIRST_PAGE; page < (c + 1) << p->chunk_shift; page++) {
			struct fby_entry *e = &p->entry[page];
			u32 b;

			if (!(fby_load(&e->state) & FBY_ES_LINKED))
				continue;
			b = fby_index_bucket(p, e->key);
			while (!fby_index_try(p, b))
				fby_relax();
			fby_index_del_locked(p, b, page);
			fby_index_release(p, b);
			fby_page_dead(p, page, fby_dead_row(p, NULL), &p->volume[volume].dead);
		}
	}
	fby_volume_count(p, volume);
	fby_fetch_or(&p->wake_owed, wake);
}

int fby_volume_remove(struct fby_pool *p, u16 index, bool discard)
{
	struct fby_volume *v;
	int rc = writable(p);

	if (rc)
		return rc;
	if (index >= p->sb.nvolumes || (p->volume[index].rec.state == FBY_VOL_FREE && !p->volume[index].damaged))
		return -FBY_E_NO_VOLUME;
	v = &p->volume[index];
	if (v->attached)
		return -FBY_E_VOLUME_BUSY;
	if (!discard && (v->damaged || v->rec.flags || fby_volume_pages(p, index) > 0))
		return -FBY_E_VOLUME_DIRTY;
	v->rec.state = FBY_VOL_FREE;
	v->rec.flags = 0;
	v->rec.watermark = fby_load_acquire(&p->seq) - 1;
	fby_record_write(p, index);
	v->damaged = false;
	forget_pages(p, index);
	v->lost_blocks = v->lost_only = v->holes = v->holes_unknown = 0;
	return FBY_DONE;
}

int fby_volume_rebind(struct fby_pool *p, u16 index, const char *identity, u64 origin_sectors)
{
	struct fby_volume *v;
	struct fby_volume_record r;
	int rc = writable(p);
	u32 n;

	if (rc)
		return rc;
	if (index >= p->sb.nvolumes || p->volume[index].rec.state == FBY_VOL_FREE)
		return -FBY_E_NO_VOLUME;
	v = &p->volume[index];
	if (v->attached)
		return -FBY_E_VOLUME_BUSY;
	r = v->rec;
	if (origin_sectors < r.origin_sectors)
		return -FBY_E_ORIGIN_SIZE;
	r.origin_sectors = origin_sectors;
	fby_zero(r.identity, sizeof(r.identity));
	for (n = 0; identity[n] && n < FBY_IDENTITY_MAX; n++)
		r.identity[n] = identity[n];
	if (identity[n] || !record_sane(p, index, &r))
		return -FBY_E_NAME;
	v->rec = r;
	v->blocks = (r.origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	fby_record_write(p, index);
	return FBY_DONE;
}

/* --- attach and detach ------------------------------------------------------- */

u64 fby_volume_bytes(struct fby_pool *p, u32 round_pages, u32 nbuffers, u32 buffer_bytes)
{
	(void)p;
	return fby_round_up((u64)round_pages * sizeof(struct fby_round_page), FBY_PAGE) + (u64)nbuffers * buffer_bytes;
}

static void attach_memory(struct fby_volume *v, const struct fby_attach *a)
{
	struct fby_destage *d = &v->destage;
	u8 *buf = (u8 *)a->mem + fby_round_up((u64)a->round_pages * sizeof(struct fby_round_page), FBY_PAGE);

	fby_zero(d, sizeof(*d));
	d->page = a->mem;
	d->cap = a->round_pages;
	d->nbuffers = a->nbuffers;
	d->buffer_sectors = a->buffer_bytes / FBY_SECTOR;
	for (u32 i = 0; i < a->nbuffers; i++)
		d->io[i].buf = buf + (u64)i * a->buffer_bytes;
}

/* Entries that recovery found lost: go on as the policy says, and remember that
 * it was said. */
static int attach_holes(struct fby_pool *p, u16 index, enum fby_holes policy)
{
	struct fby_volume *v = &p->volume[index];

	if (v->rec.flags == 0)
		return FBY_DONE;
	if ((v->rec.flags & FBY_VF_HOLES_UNKNOWN) && policy != FBY_HOLES_ACCEPT)
		return -FBY_E_HOLES;
	if (policy == FBY_HOLES_FAIL)
		return -FBY_E_HOLES_KNOWN;
	v->rec.flags = 0;
	v->holes = v->holes_unknown = 0;
	if (!p->opt.read_only)
		fby_record_write(p, index);
	return FBY_DONE;
}

int fby_volume_attach(struct fby_pool *p, u16 index, const struct fby_attach *a)
{
	struct fby_volume *v;
	int rc;

	if (!p->usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (index >= p->sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	v = &p->volume[index];
	if (v->damaged)
		return -FBY_E_VOLUME_DAMAGED;
	if (v->rec.state != FBY_VOL_USED)
		return -FBY_E_NO_VOLUME;
	if (v->attached)
		return -FBY_E_VOLUME_BUSY;
	if (a->origin_sectors != v->rec.origin_sectors)
		return -FBY_E_ORIGIN_SIZE;
	if (!name_equal(a->identity, v->rec.identity))
		return -FBY_E_ORIGIN_IDENTITY;
	if (a->nbuffers < 1 || a->nbuffers > 64 || a->buffer_bytes < FBY_PAGE || a->buffer_bytes % FBY_PAGE ||
	    a->round_pages < 16)
		return -FBY_E_GEOMETRY;
	if (a->mem_bytes < fby_volume_bytes(p, a->round_pages, a->nbuffers, a->buffer_bytes))
		return -FBY_E_NO_MEMORY;
	rc = attach_holes(p, index, a->holes);
	if (rc)
		return rc;
	attach_memory(v, a);
	v->attachment++; /* what was written along before is clean for another origin */
	fby_zero(&v->pace, sizeof(v->pace));
	fby_pace_start(&v->pace, a->nbuffers);
	v->last_error = 0;
	fby_zero(&v->gate, sizeof(v->gate));
	v->gate.ended = FBY_BUG(ATTACH_FORGETS_BYPASS) ? 0 : 1; /* before a crash of the host, perhaps */
	v->bypasses = v->bypassed_sectors = 0;
	fby_entitle(p, v, true);
	fby_share_update(p);
	fby_level_update(p, index);
	fby_destage_look(p, index);
	return FBY_DONE;
}

int fby_volume_detach(struct fby_pool *p, u16 index)
{
	struct fby_volume *v;
	bool busy = false;
	u32 wake = 0;

	if (index >= p->sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	v = &p->volume[index];
	if (!v->attached)
		return -FBY_E_VOLUME_DETACHED;
	if (v->destage.outstanding > 0 || fby_load(&v->bypassing) ||
	    ((fby_load(&v->gate.held) & FBY_GATE_HELD) && !v->destage.gate))
		return -FBY_E_BUSY;
	if (!p->opt.read_only) {
		for (u32 i = 0; i < p->opt.nslots; i++) {
			busy = !fby_slot_try(&p->slot[i]);
			if (busy)
				break;
			fby_slot_close(p, &p->slot[i], index, &wake);
			fby_slot_release(&p->slot[i]);
		}
	}
	if (!busy)
		fby_relocate_settle(p, index, &wake);
	fby_fetch_or(&p->wake_owed, wake);
	if (busy)
		return -FBY_E_BUSY;
	fby_destage_settle(p, index);
	fby_entitle(p, v, false);
	fby_share_update(p);
	fby_zero(&v->destage, sizeof(v->destage));
	return FBY_DONE;
}

static enum fby_destage_state public_state(enum fby_phase phase)
{
	static const u8 state[] = {
		[FBY_PH_IDLE] = FBY_DESTAGE_IDLE,	    [FBY_PH_WRITE] = FBY_DESTAGE_WRITING,
		[FBY_PH_FLUSH] = FBY_DESTAGE_FLUSHING,	    [FBY_PH_FLUSHING] = FBY_DESTAGE_FLUSHING,
		[FBY_PH_CARRY] = FBY_DESTAGE_COMMITTING,    [FBY_PH_COMMIT] = FBY_DESTAGE_COMMITTING,
		[FBY_PH_RELEASE] = FBY_DESTAGE_COMMITTING,  [FBY_PH_BACKOFF] = FBY_DESTAGE_BACKOFF,
	};

	return (enum fby_destage_state)state[phase];
}

int fby_volume_info(struct fby_pool *p, u16 index, struct fby_volume_info *out)
{
	struct fby_volume *v;

	fby_zero(out, sizeof(*out));
	if (index >= p->sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	v = &p->volume[index];
	fby_copy(out->spec.name, v->rec.name, sizeof(out->spec.name));
	fby_copy(out->spec.identity, v->rec.identity, sizeof(out->spec.identity));
	fby_copy(out->spec.uuid, v->rec.uuid, 16);
	out->spec.origin_sectors = v->rec.origin_sectors;
	out->spec.block_size = v->rec.block_size;
	out->watermark = fby_load(&v->rec.watermark);
	out->used = v->rec.state == FBY_VOL_USED;
	out->damaged = v->damaged;
	out->attached = v->attached;
	out->pages = fby_volume_pages(p, index);
	out->lost_blocks = fby_load(&v->lost_blocks);
	out->holes = v->holes || !(v->rec.flags & FBY_VF_HOLES) ? v->holes : 1;
	out->holes_unknown = v->holes_unknown || !(v->rec.flags & FBY_VF_HOLES_UNKNOWN) ? v->holes_unknown : 1;
	out->chunks = fby_load(&v->nchunks);
	out->destage = public_state(fby_load(&v->destage.phase));
	out->draining = fby_load(&v->destage.drain);
	out->last_error = fby_load(&v->last_error);
	out->origin_errors = fby_load(&v->origin_errors);
	out->origin_writes = fby_load(&v->origin_writes);
	out->origin_sectors_written = fby_load(&v->origin_sectors);
	out->origin_flushes = fby_load(&v->origin_flushes);
	out->pages_destaged = fby_load(&v->pages_destaged);
	out->pages_relocated = fby_load(&v->moved);
	out->rounds = fby_load(&v->rounds);
	out->throttle_ns = fby_load(&v->pace.delay_ns);
	out->intake_limit = fby_pace_intake(p, index);
	out->drain_rate = fby_load(&v->pace.rate);
	out->origin_depth = fby_load(&v->pace.depth);
	for (u32 busy = fby_load(&v->bypassing); busy; busy &= busy - 1)
		out->bypassing++;
	out->bypasses = fby_load(&v->bypasses);
	out->bypassed_sectors = fby_load(&v->bypassed_sectors);
	out->flush_owed = v->attached && fby_load(&v->gate.flushed) < fby_load(&v->gate.ended);
	for (u32 i = 0; i < p->opt.nslots; i++) {
		out->writes += fby_load(&p->slot[i].volume[index].writes);
		out->written_sectors += fby_load(&p->slot[i].volume[index].sectors);
	}
	return FBY_DONE;
}
