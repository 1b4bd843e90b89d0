// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * recovery.c - the second half of recovery, from the result of the scan (scan.c) to a usable
 * pool.  It records losses in the volumes' records, voids dropped entries, repairs damaged lines,
 * seals, and clears the clean flag.  If it is interrupted at any point, it runs again with the
 * same result.
 */
#include "recover/recovery.h"

/* --- finish: losses ----------------------------------------------------------------- */

static void unknown_loss(struct fby_recovery *p, u16 volume)
{
	struct fby_owner *o = &p->space->owner[volume];
	struct fby_recovered *v = &p->volume[volume];

	/* Static volumes and maps have no chunks. */
	if (o->rec.kind == FBY_OWNER_VOLUME || o->rec.kind == FBY_OWNER_LOG || o->damaged)
		v->holes_unknown++;
}

static void count_holes(struct fby_recovery *p, u32 c)
{
	for (u32 i = p->space->store.first_page; i < p->space->chunk[c].fill; i++) {
		struct fby_entry *e = &p->cache->entry[fby_page_number(p->space, c, i)];
		u32 state = fby_load(&e->state);
		struct fby_report_block b = { .block = FBY_NO_BLOCK, .chunk = c, .page = (u16)i,
					      .volume = p->space->chunk[c].owner };

		if (!(state & FBY_ES_HOLE))
			continue;
		if (state & FBY_ES_LINKED) {
			b.block = fby_key_block(e->key);
			p->volume[b.volume].holes++;
		} else {
			unknown_loss(p, b.volume);
		}
		p->report.holes++;
		fby_report_add(p->report.holes_named, &p->report.nholes_named, &b);
	}
}

/* After a clean close, the linked pages must be those of the close.  A hole with a known block
 * stands in for its entry; each unknown one explains a missing entry, and its chunk names the
 * volume. */
static bool clean_mismatch(struct fby_recovery *p)
{
	u64 entries, digest = fby_digest(p->cache, &entries), unnamed = 0;

	if (p->report.holes == 0)
		return entries != p->space->store.sb.clean_entries || digest != p->space->store.sb.clean_digest;
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		unnamed += p->volume[v].holes_unknown;
	return entries > p->space->store.sb.clean_entries || p->space->store.sb.clean_entries - entries > unnamed;
}

/* Does a clean close count the owner's pages?  It counts linked pages only. */
static bool uncounted(const struct fby_recovery *p, u16 owner)
{
	return owner != FBY_NO_OWNER && fby_chunk_kinds[p->space->owner[owner].chunk_kind].whole;
}

/* only: consider only owners that a clean close does not count. */
static void any_loss(struct fby_recovery *p, bool only)
{
	bool any = !only;

	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++) {
		if (only && !uncounted(p, (u16)v))
			continue;
		any = true;
		unknown_loss(p, (u16)v);
	}
	p->report.holes += any;
}

/* Counts chunks that may have held more entries than are left; only: as above. */
static void count_doubts(struct fby_recovery *p, bool only)
{
	bool lost = false;

	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		if (p->scanned[c].found & CR_LOST)
			lost = true;
		if (!(p->scanned[c].found & CR_DOUBT) || (only && !uncounted(p, p->space->chunk[c].owner)))
			continue;
		unknown_loss(p, p->space->chunk[c].owner);
		p->report.holes++;
	}
	if (lost)
		any_loss(p, only);
}

static void find_losses(struct fby_recovery *p)
{
	bool doubt = false, countable = p->report.clean;

	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		if (p->space->owner[v].damaged) /* its watermark is unknown */
			countable = false;
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		if (p->scanned[c].found & (CR_LOST | CR_DOUBT))
			doubt = true;
		if (p->scanned[c].found & CR_LINES)
			count_holes(p, c);
		fby_breathe();
	}
	/* A clean close whose sums match shows that the lost lines held nothing; the match is
	 * exact only if nothing stands in for a lost entry. */
	if (!countable || (doubt && p->report.holes))
		count_doubts(p, false);
	else if (clean_mismatch(p))
		any_loss(p, false);
	else if (doubt)
		count_doubts(p, true);
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++) {
		struct fby_owner *o = &p->space->owner[i];
		struct fby_recovered *v = &p->volume[i];

		o->rec.flags |= (v->holes ? FBY_VF_HOLES : 0) | (v->holes_unknown ? FBY_VF_HOLES_UNKNOWN : 0);
	}
}

/* Comes before any other write: a second start must not miss the losses that this one found. */
static void write_losses(struct fby_recovery *p)
{
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++) {
		const struct fby_owner *o = &p->space->owner[i];
		const struct fby_recovered *v = &p->volume[i];

		if (!o->damaged && (v->holes || v->holes_unknown))
			fby_owner_write(p->space, (u16)i);
	}
}

/* --- finish: lines -------------------------------------------------------------------- */

/* Reads the line of the last written page, which names the last batch; its kind is 0 if the chunk
 * has none. */
static void last_line(struct fby_recovery *p, u32 c, struct fby_page_line *l)
{
	u32 i = p->space->chunk[c].fill - 1;

	if (i < p->space->store.first_page || !fby_page_line_read(p->space, c, i, l, NULL) || l->epoch != p->space->chunk[c].epoch)
		l->kind = 0;
}

/* Computes the line to write at (c, i).  False: nothing is to be written. */
static bool new_line(struct fby_recovery *p, u32 c, u32 i, const struct fby_page_line *last, struct fby_page_line *l)
{
	struct fby_entry *e = &p->cache->entry[fby_page_number(p->space, c, i)];
	u32 state = fby_load(&e->state);
	bool repaired;

	if (state & FBY_ES_REPAIR)
		return fby_page_line_read(p->space, c, i, l, &repaired);
	if (!(state & (FBY_ES_HOLE | FBY_ES_VOID)) || (FBY_BUG(DROPPED_NOT_VOIDED) && (state & FBY_ES_VOID)))
		return false;
	fby_zero(l, sizeof(*l));
	l->seq = fby_hole_seq(p, c, i);
	if (l->seq < p->space->chunk[c].seq_min) /* its open line is lost too */
		p->space->chunk[c].seq_min = l->seq;
	l->epoch = p->space->chunk[c].epoch;
	l->prev_block = FBY_NO_BLOCK;
	l->chunk = c;
	l->page = (u16)i;
	l->volume = p->space->chunk[c].owner;
	l->batch_first = (u16)i;
	l->batch_count = 1;
	l->kind = FBY_KIND_VOID;
	if (state & FBY_ES_LINKED) {
		l->block = fby_key_block(e->key);
		l->kind = FBY_KIND_DATA;
		l->lost = 0xff;
	} else if (last->kind && i >= last->batch_first) {
		/* It stays in the last batch: if the writing of the other lines is interrupted,
		 * the lines must not count as settled. */
		l->batch_first = last->batch_first;
		l->batch_count = last->batch_count;
		l->block = last->block - (last->page - i);
	}
	fby_line_finish(p->space->store.line_seed, l);
	return true;
}

/* The lines that were stored are durable.  In a grouped pool all of the array is written. */
static void settle_lines(struct fby_recovery *p, u32 c)
{
	const struct fby_store *st = &p->space->store;

	if (st->unit)
		fby_settle(st, fby_chunk_at(st, c) + st->array_at, fby_array_bytes(st));
	else
		fby_fence_chunk(st, c);
}

static void write_lines(struct fby_recovery *p, u32 c)
{
	struct fby_page_line l, last;

	last_line(p, c, &last);
	/* From the end, so that fby_hole_seq returns the same in a second run. */
	for (u32 i = p->space->chunk[c].fill; i-- > p->space->store.first_page;) {
		if (new_line(p, c, i, &last, &l))
			media_lines(p->space->store.media, fby_line_at(&p->space->store, c, i), &l, FBY_LINE);
	}
	settle_lines(p, c);
}

static void write_open(struct fby_recovery *p, u32 c)
{
	struct fby_chunk *ch = &p->space->chunk[c];

	for (u32 which = 0; which < 2; which++) {
		struct fby_open_line l = { .magic = FBY_OPEN_MAGIC, .chunk = c };

		if (!(p->scanned[c].found & (which ? CR_OPEN1 : CR_OPEN0)))
			continue;
		l.epoch = (ch->epoch & 1) == which ? ch->epoch : ch->epoch - 1;
		if (l.epoch == ch->epoch && ch->owner != FBY_NO_OWNER) {
			l.kind = ch->kind;
			l.owner = ch->owner;
			l.seq_min = ch->seq_min;
		}
		fby_line_finish(p->space->store.line_seed, &l);
		media_lines(p->space->store.media, fby_open_at(&p->space->store, c, which), &l, FBY_LINE);
		fby_settle_line(&p->space->store, c, fby_open_at(&p->space->store, c, which));
	}
}

/* Repairs a seal of which a crash left only one line, before the next seal overwrites the
 * previous one. */
static void copy_seal(struct fby_recovery *p, u32 c, u32 parity)
{
	u32 which[2] = { parity, parity + FBY_SEALS / 2 };
	struct fby_seal_line l[2];
	bool ok[2];
	u32 from;

	for (u32 i = 0; i < 2; i++)
		ok[i] = fby_seal_line_read(&p->space->store, c, which[i], &l[i]);
	from = !ok[0] || (ok[1] && l[1].counter > l[0].counter);
	if ((!ok[0] && !ok[1]) || (ok[0] && ok[1] && l[0].counter == l[1].counter) || FBY_BUG(SEAL_COPY_NOT_HEALED))
		return;
	media_lines(p->space->store.media, fby_seal_at(&p->space->store, c, which[!from]), &l[from], FBY_LINE);
	fby_settle_line(&p->space->store, c, fby_seal_at(&p->space->store, c, which[!from]));
}

static bool seals_whole(struct fby_recovery *p, u32 c)
{
	struct fby_seal_line l;

	for (u32 which = 0; which < FBY_SEALS; which++)
		if (!fby_seal_line_read(&p->space->store, c, which, &l))
			return false;
	return true;
}

/* Closes the chunk at its end: recovery ignores later lines.  No remaining seal is overwritten
 * before another one is intact. */
static void write_seals(struct fby_recovery *p, u32 c)
{
	struct fby_chunk *ch = &p->space->chunk[c];
	struct fby_page_line l;

	if (FBY_BUG(TAIL_RESEALED_SHORT) && ch->fill > p->space->store.first_page)
		ch->fill--;
	ch->seq_last = ch->seq_max;
	if (p->space->store.unit && ch->kind == FBY_CHUNK_CACHE && !(p->scanned[c].found & CR_LINES))
		settle_lines(p, c); /* those that the groups had */
	if (!fby_chunk_kinds[ch->kind].whole) {
		ch->last_block = FBY_NO_BLOCK;
		if (ch->fill > p->space->store.first_page && fby_page_line_read(p->space, c, ch->fill - 1, &l, NULL))
			ch->last_block = l.block;
	}
	for (u32 parity = 0; parity < 2; parity++)
		copy_seal(p, c, parity);
	if (!(p->scanned[c].found & CR_CLOSED))
		fby_chunk_seal(p->space, c, true);
	for (u32 n = 0; n < 2 && !seals_whole(p, c); n++)
		fby_chunk_seal(p->space, c, true);
}

static bool record_whole(const struct fby_store *st, u16 volume)
{
	struct fby_volume_record a, b;

	return fby_record_read(st, volume, 0, &a) && fby_record_read(st, volume, 1, &b) && fby_equal(&a, &b, sizeof(a));
}

static void write_records(struct fby_recovery *p)
{
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++)
		if (!p->space->owner[i].damaged && !record_whole(&p->space->store, (u16)i))
			fby_owner_write(p->space, (u16)i);
}

static void finish_media(struct fby_recovery *p)
{
	if (!FBY_BUG(LOSS_FORGOTTEN_AFTER_CLEAN))
		write_losses(p);
	if (!FBY_BUG(CLEAN_NOT_CLEARED))
		fby_sb_write(&p->space->store, false);
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		struct fby_chunk *ch = &p->space->chunk[c];

		if (p->scanned[c].found & CR_LINES)
			write_lines(p, c);
		if (p->scanned[c].found & (CR_OPEN0 | CR_OPEN1))
			write_open(p, c);
		if ((p->scanned[c].found & (CR_SEALS | CR_WITNESSED)) ||
		    (!(p->scanned[c].found & CR_CLOSED) && ch->fill > p->space->store.first_page))
			write_seals(p, c);
		fby_breathe();
	}
	if (FBY_BUG(LOSS_FORGOTTEN_AFTER_CLEAN))
		write_losses(p);
	write_records(p);
}

/* --- finish: memory -------------------------------------------------------------------- */

/* For a chunk that has lost everything: chooses an epoch above any that can be in it. */
static void settle_epoch(struct fby_recovery *p, u32 c)
{
	struct fby_chunk *ch = &p->space->chunk[c];

	if (ch->epoch == 0)
		ch->epoch = p->scanned[c].found & CR_LOST ? p->max_epoch + 1 : 1;
}

static void clear_marks(struct fby_recovery *p, u32 c)
{
	u32 end = fby_page_number(p->space, c + 1, 0);

	for (u32 page = fby_page_number(p->space, c, p->space->store.first_page); page < end; page++) {
		u32 state = fby_load(&p->cache->entry[page].state);

		fby_store(&p->cache->entry[page].state,
			  state & FBY_ES_LINKED ? state & ~(FBY_ES_HOLE | FBY_ES_VOID | FBY_ES_REPAIR) : 0u);
	}
}

static u32 merge_by_seq(struct fby_recovery *p, u32 a, u32 b)
{
	u32 first = FBY_NO_CHUNK, *at = &first;

	while (a != FBY_NO_CHUNK && b != FBY_NO_CHUNK) {
		u32 *less = p->space->chunk[a].seq_min <= p->space->chunk[b].seq_min ? &a : &b;

		*at = *less;
		at = &p->space->chunk[*less].next;
		*less = *at;
	}
	*at = a != FBY_NO_CHUNK ? a : b;
	return first;
}

/* Sorts the volume's chunks, chained by next in any order: oldest first.  A merge sort of runs of
 * 2^i chunks. */
static u32 sort_by_seq(struct fby_recovery *p, u32 c)
{
	u32 run[32], i;

	for (i = 0; i < 32; i++)
		run[i] = FBY_NO_CHUNK;
	while (c != FBY_NO_CHUNK) {
		u32 one = c;

		c = p->space->chunk[c].next;
		p->space->chunk[one].next = FBY_NO_CHUNK;
		for (i = 0; i < 31 && run[i] != FBY_NO_CHUNK; i++) {
			one = merge_by_seq(p, run[i], one);
			run[i] = FBY_NO_CHUNK;
		}
		run[i] = one;
	}
	for (i = 0; i < 32; i++)
		c = merge_by_seq(p, run[i], c);
	return c;
}

static void build_lists(struct fby_recovery *p)
{
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		struct fby_chunk *ch = &p->space->chunk[c];

		ch->pinned = 0;
		ch->opened_ns = 0;
		ch->tick_fill = ch->durable = ch->fill;
		if (p->space->store.unit && ch->kind == FBY_CHUNK_CACHE && !p->space->opt.read_only)
			ch->sealed = ch->fill;
		/* The counts are 0: pages that died before are in the base. */
		ch->dead_base = (u16)(fby_load(&p->scanned[c].linked) - (ch->fill - p->space->store.first_page));
		if (fby_load(&p->scanned[c].linked) == 0) {
			fby_chunk_to_free(p->space, c);
			continue;
		}
		FBY_ASSERT(p, ch->owner != FBY_NO_OWNER);
		ch->state = FBY_CS_CLOSED;
		ch->next = p->space->owner[ch->owner].first;
		p->space->owner[ch->owner].first = c;
		if (!fby_chunk_kinds[ch->kind].whole)
			p->space->owner[ch->owner].recovered += fby_load(&p->scanned[c].linked);
	}
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++) {
		struct fby_owner *o = &p->space->owner[i];
		u32 c = sort_by_seq(p, o->first);

		o->first = o->last = FBY_NO_CHUNK;
		while (c != FBY_NO_CHUNK) {
			u32 next = p->space->chunk[c].next;

			fby_chunk_list_append(p->space, o, c);
			c = next;
		}
	}
}

/* Is there room above each number for a pool's lifetime?  Otherwise a number too high would be
 * written, and the next start would reject it. */
static bool numbers_low(const struct fby_recovery *p)
{
	u64 most = p->max_seq > p->max_epoch ? p->max_seq : p->max_epoch;

	if (p->space->store.sb.generation > most)
		most = p->space->store.sb.generation;
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++)
		if (p->space->chunk[c].seal_counter > most)
			most = p->space->chunk[c].seal_counter;
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		if (p->space->owner[v].rec.counter > most)
			most = p->space->owner[v].rec.counter;
	return most < FBY_NUMBER_START;
}

int fby_recovery_finish(struct fby_recovery *p, struct fby_recovery_report *report)
{
	if (p->space->usable || p->report.chunks != p->space->store.sb.nchunks)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (p->unknown && !p->space->opt.read_only) {
		if (report)
			*report = p->report;
		return p->unknown;
	}
	if (p->space->store.unit)
		fby_witness_all(p);
	if (!p->space->opt.read_only && !numbers_low(p))
		return -FBY_E_NUMBERS;
	find_losses(p);
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++)
		settle_epoch(p, c);
	p->space->seq = FBY_BUG(NEXT_SEQ_REUSED) ? 1 : p->max_seq + 1;
	if (!p->space->opt.read_only)
		finish_media(p);
	if (media_failed(p->space->store.media))
		return -FBY_E_MEDIUM;
	p->space->free_first = p->space->free_last = FBY_NO_CHUNK;
	build_lists(p);
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		if (p->scanned[c].found & CR_LINES)
			clear_marks(p, c);
		fby_breathe();
	}
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		p->report.blocks += fby_owner_pages(p->space, (u16)v);
	p->space->usable = true;
	fby_fullness_start(p->space);
	if (report)
		*report = p->report;
	return FBY_DONE;
}
