// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * recovery.c - from the header arrays to a usable pool.
 *
 *	scan	each chunk by itself, in parallel: its epoch, where its writes
 *		end, what each line is; link the newest entry of each block.
 *		Writes nothing.
 *	finish	remember losses in the volumes' records; void what was dropped,
 *		put damaged lines right; seal; clear the clean flag.  Cut at any
 *		point, it runs again with the same result.
 *
 * Only the last batch of a chunk can be torn by a crash, since each ended with a
 * fence.  The table below decides by a line's place and by what it is.
 */
#include "index.h"
#include "media.h"

/* fby_chunk.recover */
enum {
	CR_LINES = 1u << 0,  /* some of its pages have a line to be written */
	CR_OPEN0 = 1u << 1,  /* its open line of even epochs is not valid */
	CR_OPEN1 = 1u << 2,  /* its open line of odd epochs is not valid */
	CR_CLOSED = 1u << 3, /* has a seal that says closed */
	CR_LOST = 1u << 4,   /* nothing tells what it was */
};

enum place {
	SETTLED, /* fenced long ago: sealed, or before the last batch */
	TAIL,	 /* in the last batch, which a crash may have torn */
	BEYOND,	 /* never written in this epoch */
	PLACES
};

enum action {
	LINK,	    /* an entry */
	CHECK_DATA, /* an entry if its data arrived, else void */
	HOLE,	    /* an entry was here and is lost */
	VOID,	    /* torn, never acknowledged: make sure that it stays nothing */
	NOTHING,
};

/* CURRENT: valid and of the chunk's epoch; OLD: valid, of an earlier one. */
static const u8 decision[PLACES][FBY_LINE_CLASSES] = {
	/*	      CURRENT	  OLD	   BAD */
	[SETTLED] = { LINK,	  HOLE,	   HOLE },
	[TAIL]	  = { CHECK_DATA, VOID,	   VOID },
	[BEYOND]  = { NOTHING,	  NOTHING, NOTHING },
};

/* One chunk while it is scanned. */
struct scan {
	u32 c;
	u32 last;  /* highest place of a CURRENT line; 0: none */
	u32 batch; /* first page of its batch */
	u32 sealed, closed;
	u32 linked;
	u64 last_block; /* of page sealed-1 */
	u64 watermark;
	u64 blocks;
	u16 volume;
	bool ignore; /* the volume is gone */
	u8 class[FBY_CHUNK_PAGES_MAX];
};

static void max_u64(u64 *to, u64 value)
{
	u64 now;

	do
		now = fby_load(to);
	while (now < value && !fby_cmpxchg(to, now, value));
}

/* --- what the chunk is ------------------------------------------------------ */

/* Returns whether there is a valid open line; epoch and volume are of the newest. */
static bool scan_open(struct fby_pool *p, struct scan *s)
{
	struct fby_chunk *ch = &p->chunk[s->c];
	struct fby_open_line l;
	bool found = false;

	ch->epoch = 0;
	s->volume = FBY_NO_VOLUME;
	for (u32 which = 0; which < 2; which++) {
		if (!fby_open_line_read(p, s->c, which, &l)) {
			ch->recover |= which ? CR_OPEN1 : CR_OPEN0;
			fby_fetch_add(&p->report.chunk_headers_lost, 1ull);
			continue;
		}
		if (found && l.epoch < ch->epoch)
			continue;
		found = true;
		ch->epoch = l.epoch;
		ch->seq_min = l.seq_min;
		s->volume = l.kind == FBY_CHUNK_CACHE ? l.volume : FBY_NO_VOLUME;
	}
	return found;
}

static u8 scan_line(struct fby_pool *p, struct scan *s, u32 i, bool *known, u64 *newest)
{
	struct fby_chunk *ch = &p->chunk[s->c];
	struct fby_page_line l;

	if (!fby_page_line_read(p, s->c, i, &l, NULL))
		return FBY_LINE_BAD;
	if (l.epoch > *newest)
		*newest = l.epoch;
	if (l.epoch != ch->epoch)
		return l.epoch < ch->epoch ? FBY_LINE_OLD : FBY_LINE_BAD;
	if (!*known) { /* its open line is lost: the first entry tells */
		s->volume = l.volume;
		ch->seq_min = l.seq;
		*known = true;
	}
	if (l.volume != s->volume)
		return FBY_LINE_BAD;
	s->last = i;
	s->batch = l.batch_first;
	if (l.seq > ch->seq_max)
		ch->seq_max = l.seq;
	if (l.seq < ch->seq_min)
		ch->seq_min = l.seq;
	return FBY_LINE_CURRENT;
}

/* Classes of all lines.  Where they show that the newest open line is lost, the
 * epoch they have is the chunk's, and all are looked at again: once. */
static bool scan_lines(struct fby_pool *p, struct scan *s)
{
	struct fby_chunk *ch = &p->chunk[s->c];
	bool opened = scan_open(p, s), known = s->volume != FBY_NO_VOLUME;
	u64 newest = ch->epoch;

	for (u32 pass = 0; pass < 2; pass++) {
		s->last = s->batch = 0;
		ch->seq_max = 0;
		for (u32 i = FBY_FIRST_PAGE; i < p->chunk_pages; i++)
			s->class[i] = scan_line(p, s, i, &known, &newest);
		if (newest == ch->epoch)
			break;
		ch->epoch = newest;
		ch->recover |= newest & 1 ? CR_OPEN1 : CR_OPEN0; /* stale: a cut kept it from arriving */
		known = false;
		opened = true;
	}
	if (ch->seq_max == 0)
		ch->seq_max = ch->seq_min;
	return opened;
}

static void scan_seals(struct fby_pool *p, struct scan *s)
{
	struct fby_chunk *ch = &p->chunk[s->c];
	struct fby_seal_line l;
	u32 best = 0;

	ch->seal_counter = 0;
	s->sealed = s->closed = 0;
	s->last_block = FBY_NO_BLOCK;
	for (u32 which = 0; which < 2; which++) {
		if (!fby_seal_line_read(p, s->c, which, &l))
			continue;
		if (l.counter > ch->seal_counter)
			ch->seal_counter = l.counter;
		if (l.epoch != ch->epoch || l.counter < best)
			continue;
		best = l.counter;
		s->sealed = l.fill;
		s->closed = l.closed;
		s->last_block = l.last_block;
		if (l.seq_max > ch->seq_max)
			ch->seq_max = l.seq_max;
	}
	if (p->report.clean && !s->closed) { /* that seal is lost */
		s->closed = 1;
		if (s->last + 1 > s->sealed)
			s->sealed = s->last + 1;
	}
}

static void scan_volume(struct fby_pool *p, struct scan *s)
{
	const struct fby_volume *v;

	s->ignore = true;
	s->watermark = 0;
	s->blocks = 1ull << FBY_BLOCK_BITS;
	if (s->volume == FBY_NO_VOLUME)
		return;
	v = &p->volume[s->volume];
	if (v->damaged) {
		s->ignore = false;
		return;
	}
	s->ignore = v->rec.state != FBY_VOL_USED;
	s->blocks = v->blocks;
	if (!FBY_BUG(WATERMARK_IGNORED))
		s->watermark = v->rec.watermark;
}

static enum place place_of(const struct scan *s, u32 i)
{
	if (i < s->sealed)
		return SETTLED;
	if (s->closed || i > s->last)
		return BEYOND;
	return i < s->batch ? SETTLED : TAIL;
}

/* --- linking ------------------------------------------------------------------ */

/* Of a lost line at place i, no seq in it was above this: lines of a chunk ascend,
 * and each says the seq of the one before it. */
static u64 seq_before(const struct fby_page_line *next, u32 i)
{
	u64 last = next->prev_seq ? next->prev_seq : next->seq - 1;
	u32 between = next->page - 1 - i;

	return last > between ? last - between : 1;
}

static u64 hole_seq(struct fby_pool *p, u32 c, u32 i)
{
	struct fby_page_line l;
	bool repaired; /* as the scan reads it: its bound is to be the same */

	for (u32 n = i + 1; n < p->chunk_pages; n++) {
		if (fby_page_line_read(p, c, n, &l, &repaired) && l.epoch == p->chunk[c].epoch)
			return seq_before(&l, i);
	}
	return p->chunk[c].seq_max;
}

/* Seq of a linked page; ~0 if its line cannot be read a second time. */
static u64 linked_seq(struct fby_pool *p, u32 page)
{
	if (fby_load(&p->entry[page].state) & FBY_ES_HOLE)
		return hole_seq(p, fby_page_chunk(p, page), fby_page_place(p, page));
	return fby_page_seq(p, page, FBY_NO_SEQ);
}

static void count_lost(struct fby_pool *p, u16 volume, u32 state, u32 by)
{
	if (FBY_ES_LOST(state))
		fby_fetch_add(&p->volume[volume].lost_blocks, by);
	if (fby_lost_only(state | FBY_ES_LINKED))
		fby_fetch_add(&p->volume[volume].lost_only, by);
}

/* Bucket held: old gives way to a newer one. */
static void supersede(struct fby_pool *p, u16 volume, u32 old, u32 was)
{
	count_lost(p, volume, was, ~0u);
	fby_fetch_add(&p->chunk[fby_page_chunk(p, old)].linked, ~0u);
	fby_store(&p->entry[old].state, was & FBY_ES_HOLE ? FBY_ES_VOID : was & FBY_ES_REPAIR);
}

/* Links the page unless the block has a newer one.  Any thread. */
static void link_page(struct fby_pool *p, struct scan *s, u32 i, u64 block, u32 state, u64 seq)
{
	u32 page = (s->c << p->chunk_shift) + i, old, was;
	u64 key = fby_key(s->volume, block);
	u32 b = fby_index_bucket(p, key);

	while (!fby_index_try(p, b))
		fby_relax();
	old = fby_index_get_locked(p, b, key);
	was = old == FBY_NO_PAGE ? 0 : fby_load(&p->entry[old].state);
	if (old == FBY_NO_PAGE || (linked_seq(p, old) < seq && !FBY_BUG(LOWEST_SEQ_WINS))) {
		fby_index_put_locked(p, b, key, page, state, old);
		count_lost(p, s->volume, state, 1);
		s->linked++;
		if (old != FBY_NO_PAGE)
			supersede(p, s->volume, old, was);
	} else {
		fby_store(&p->entry[page].state, state & FBY_ES_HOLE ? FBY_ES_VOID : state & FBY_ES_REPAIR);
	}
	fby_index_release(p, b);
}

/* --- entries -------------------------------------------------------------------- */

static void mark(struct fby_pool *p, const struct scan *s, u32 i, u32 state)
{
	struct fby_entry *e = &p->entry[(s->c << p->chunk_shift) + i];

	e->key = FBY_NO_BLOCK;
	fby_store(&e->state, state);
	p->chunk[s->c].recover |= CR_LINES;
}

/* The data of an entry as its line says it. */
static bool data_arrived(struct fby_pool *p, u32 page, const struct fby_page_line *l)
{
	return (l->flags & FBY_PF_NOCRC) || FBY_BUG(TORN_TAIL_ACCEPTED) || fby_page_data_ok(p, page, l);
}

static void report_block(struct fby_report_block *list, u32 *n, const struct fby_report_block *b)
{
	if (*n < FBY_REPORT_MAX)
		list[(*n)++] = *b;
}

static void drop(struct fby_pool *p, struct scan *s, u32 i, const struct fby_page_line *l)
{
	const struct fby_report_block b = { .block = l->block, .chunk = s->c, .page = (u16)i, .volume = s->volume };

	mark(p, s, i, FBY_ES_VOID);
	fby_fetch_add(&p->report.dropped, 1ull);
	fby_lock(&p->lock);
	report_block(p->report.dropped_named, &p->report.ndropped_named, &b);
	fby_unlock(&p->lock);
}

/* Sectors that the volume has not: the image contradicts itself, and the line is
 * as good as lost.  The origin must never see them. */
static bool out_of_range(struct fby_pool *p, const struct scan *s, const struct fby_page_line *l)
{
	u64 sectors = p->volume[s->volume].rec.origin_sectors;

	if (s->ignore || l->kind == FBY_KIND_VOID || l->seq <= s->watermark)
		return false;
	if (l->block >= s->blocks)
		return true;
	return !p->volume[s->volume].damaged && l->valid &&
	       l->block * FBY_PAGE_SECTORS + 32u - (u32)__builtin_clz(l->valid) > sectors;
}

static void entry(struct fby_pool *p, struct scan *s, u32 i, const struct fby_page_line *l, bool check, bool repaired)
{
	u32 page = (s->c << p->chunk_shift) + i;
	u32 state = FBY_ES(l->kind, l->valid, l->lost);

	if (repaired) {
		fby_fetch_add(&p->report.lines_repaired, 1ull);
		mark(p, s, i, FBY_ES_REPAIR);
		state |= FBY_ES_REPAIR;
		if (l->seq < p->chunk[s->c].seq_min)
			p->chunk[s->c].seq_min = l->seq;
		if (l->seq > p->chunk[s->c].seq_max)
			p->chunk[s->c].seq_max = l->seq;
	}
	if (s->ignore || l->kind == FBY_KIND_VOID || l->seq <= s->watermark)
		return;
	if (check && !data_arrived(p, page, l)) {
		drop(p, s, i, l);
		return;
	}
	fby_fetch_add(&p->report.entries, 1ull);
	if (FBY_BUG(DISCARD_FORGOTTEN) && (l->kind == FBY_KIND_DISCARD || l->kind == FBY_KIND_ZERO))
		return;
	link_page(p, s, i, l->block, state, l->seq);
}

/* The block of a lost line, from a neighbour of its batch, from the next line,
 * or from the seal; ~0: unknown. */
static u64 hole_block(const struct scan *s, u32 i, const struct fby_page_line *prev, const struct fby_page_line *next)
{
	if (prev && prev->batch_first + prev->batch_count > i)
		return prev->block + (i - prev->page);
	if (next && next->batch_first <= i)
		return next->block >= next->page - i ? next->block - (next->page - i) : FBY_NO_BLOCK;
	if (next)
		return next->page == i + 1 ? next->prev_block : FBY_NO_BLOCK;
	return i + 1 == s->sealed ? s->last_block : FBY_NO_BLOCK;
}

/* Pages [from, to) have no valid line of the epoch; prev and next do. */
static void gap(struct fby_pool *p, struct scan *s, u32 from, u32 to, const struct fby_page_line *prev,
		const struct fby_page_line *next)
{
	for (u32 i = from; i < to; i++) {
		enum action a = (enum action)decision[place_of(s, i)][s->class[i]];
		u64 block, most;

		if (a == VOID)
			mark(p, s, i, FBY_ES_VOID);
		/* At or below the watermark the origin has what is lost here. */
		most = next ? seq_before(next, i) : p->chunk[s->c].seq_max;
		if (a != HOLE || s->ignore || most <= s->watermark)
			continue;
		block = hole_block(s, i, prev, next);
		mark(p, s, i, FBY_ES_HOLE);
		if (block < s->blocks)
			link_page(p, s, i, block, FBY_ES(FBY_KIND_DATA, 0, 0xff) | FBY_ES_HOLE, most);
	}
}

static void scan_entries(struct fby_pool *p, struct scan *s)
{
	struct fby_page_line line[2], *l = &line[0], *prev = NULL;
	u32 end = p->chunk[s->c].fill, from = FBY_FIRST_PAGE;

	for (u32 i = FBY_FIRST_PAGE; i < end; i++) {
		enum place place = place_of(s, i);
		/* Only where no crash can have torn it is a line put right. */
		bool may = place == SETTLED && s->class[i] == FBY_LINE_BAD, repaired = false;

		if (place == BEYOND || (s->class[i] != FBY_LINE_CURRENT && !may) ||
		    !fby_page_line_read(p, s->c, i, l, may ? &repaired : NULL) ||
		    l->epoch != p->chunk[s->c].epoch || l->volume != s->volume)
			continue;
		if (out_of_range(p, s, l)) {
			fby_fetch_add(&p->report.damaged, 1ull);
			s->class[i] = FBY_LINE_BAD;
			continue;
		}
		gap(p, s, from, i, prev, l);
		entry(p, s, i, l, decision[place][FBY_LINE_CURRENT] == CHECK_DATA, repaired);
		from = i + 1;
		prev = l;
		l = prev == &line[0] ? &line[1] : &line[0];
	}
	gap(p, s, from, end, prev, NULL);
}

static void scan_chunk(struct fby_pool *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];
	struct scan s;

	s.c = c;
	s.linked = 0;
	ch->recover = 0;
	ch->seq_min = 0;
	if (!scan_lines(p, &s)) {
		ch->recover |= CR_LOST;
		ch->volume = FBY_NO_VOLUME;
		ch->fill = FBY_FIRST_PAGE;
		return;
	}
	scan_seals(p, &s);
	scan_volume(p, &s);
	ch->volume = s.volume;
	ch->fill = s.sealed > FBY_FIRST_PAGE ? s.sealed : FBY_FIRST_PAGE;
	if (!s.closed && s.last + 1 > ch->fill)
		ch->fill = s.last + 1;
	ch->sealed = s.sealed;
	if (s.closed)
		ch->recover |= CR_CLOSED;
	scan_entries(p, &s);
	max_u64(&p->max_epoch, ch->epoch);
	max_u64(&p->max_seq, ch->seq_max);
	fby_fetch_add(&ch->linked, s.linked);
}

int fby_recover_chunks(struct fby_pool *p, u32 first, u32 n)
{
	if (p->usable)
		return -FBY_E_BUSY;
	if (first > p->sb.nchunks || n > p->sb.nchunks - first)
		return -FBY_E_GEOMETRY;
	for (u32 c = first; c < first + n; c++)
		scan_chunk(p, c);
	fby_fetch_add(&p->report.chunks, (u64)n);
	return FBY_DONE;
}

/* --- finish: losses ----------------------------------------------------------------- */

static void unknown_loss(struct fby_pool *p, u16 volume)
{
	struct fby_volume *v = &p->volume[volume];

	if (v->rec.state == FBY_VOL_USED || v->damaged)
		v->holes_unknown++;
}

static void count_holes(struct fby_pool *p, u32 c)
{
	for (u32 i = FBY_FIRST_PAGE; i < p->chunk[c].fill; i++) {
		struct fby_entry *e = &p->entry[(c << p->chunk_shift) + i];
		u32 state = fby_load(&e->state);
		struct fby_report_block b = { .block = FBY_NO_BLOCK, .chunk = c, .page = (u16)i,
					      .volume = p->chunk[c].volume };

		if (!(state & FBY_ES_HOLE))
			continue;
		if (state & FBY_ES_LINKED) {
			b.block = fby_key_block(e->key);
			p->volume[b.volume].holes++;
		} else {
			unknown_loss(p, b.volume);
		}
		p->report.holes++;
		report_block(p->report.holes_named, &p->report.nholes_named, &b);
	}
}

/* After a clean close, what is linked must be what was.  Holes that have a name
 * stand in for their entries; each that has none explains one that is missing,
 * and its chunk says of which volume. */
static bool clean_mismatch(struct fby_pool *p)
{
	u64 entries, digest = fby_digest(p, &entries), unnamed = 0;

	if (p->report.holes == 0)
		return entries != p->sb.clean_entries || digest != p->sb.clean_digest;
	for (u32 v = 0; v < p->sb.nvolumes; v++)
		unnamed += p->volume[v].holes_unknown;
	return entries > p->sb.clean_entries || p->sb.clean_entries - entries > unnamed;
}

static void find_losses(struct fby_pool *p)
{
	bool lost = false, countable = p->report.clean;

	for (u32 v = 0; v < p->sb.nvolumes; v++)
		if (p->volume[v].damaged) /* what it has released is not known any more */
			countable = false;
	for (u32 c = 0; c < p->sb.nchunks; c++) {
		if (p->chunk[c].recover & CR_LOST)
			lost = true;
		if (p->chunk[c].recover & CR_LINES)
			count_holes(p, c);
	}
	/* A clean close that adds up shows that what is lost held nothing. */
	if (countable ? clean_mismatch(p) : lost) {
		for (u32 v = 0; v < p->sb.nvolumes; v++)
			unknown_loss(p, (u16)v);
		p->report.holes++;
	}
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		struct fby_volume *v = &p->volume[i];

		v->rec.flags |= (v->holes ? FBY_VF_HOLES : 0) | (v->holes_unknown ? FBY_VF_HOLES_UNKNOWN : 0);
	}
}

/* Before anything else is written: a second start must not miss what this one
 * found. */
static void write_losses(struct fby_pool *p)
{
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		const struct fby_volume *v = &p->volume[i];

		if (!v->damaged && (v->holes || v->holes_unknown))
			fby_record_write(p, (u16)i);
	}
}

/* --- finish: lines -------------------------------------------------------------------- */

/* The line of the last page written, which names the last batch; its kind is 0
 * if the chunk has none. */
static void last_line(struct fby_pool *p, u32 c, struct fby_page_line *l)
{
	u32 i = p->chunk[c].fill - 1;

	if (i < FBY_FIRST_PAGE || !fby_page_line_read(p, c, i, l, NULL) || l->epoch != p->chunk[c].epoch)
		l->kind = 0;
}

/* What is to stand at (c, i).  False: nothing is to be written. */
static bool new_line(struct fby_pool *p, u32 c, u32 i, const struct fby_page_line *last, struct fby_page_line *l)
{
	struct fby_entry *e = &p->entry[(c << p->chunk_shift) + i];
	u32 state = fby_load(&e->state);
	bool repaired;

	if (state & FBY_ES_REPAIR)
		return fby_page_line_read(p, c, i, l, &repaired);
	if (!(state & (FBY_ES_HOLE | FBY_ES_VOID)) || (FBY_BUG(DROPPED_NOT_VOIDED) && (state & FBY_ES_VOID)))
		return false;
	fby_zero(l, sizeof(*l));
	l->seq = hole_seq(p, c, i);
	if (l->seq < p->chunk[c].seq_min) /* its open line is lost too */
		p->chunk[c].seq_min = l->seq;
	l->epoch = p->chunk[c].epoch;
	l->prev_block = FBY_NO_BLOCK;
	l->chunk = c;
	l->page = (u16)i;
	l->volume = p->chunk[c].volume;
	l->batch_first = (u16)i;
	l->batch_count = 1;
	l->kind = FBY_KIND_VOID;
	if (state & FBY_ES_LINKED) {
		l->block = fby_key_block(e->key);
		l->kind = FBY_KIND_DATA;
		l->lost = 0xff;
	} else if (last->kind && i >= last->batch_first) {
		/* Still of the last batch: cut short before its other lines are
		 * there, they must not be taken for settled ones. */
		l->batch_first = last->batch_first;
		l->batch_count = last->batch_count;
		l->block = last->block - (last->page - i);
	}
	fby_line_finish(p->line_seed, l);
	return true;
}

static void write_lines(struct fby_pool *p, u32 c)
{
	struct fby_page_line l, last;

	last_line(p, c, &last);
	/* From the end, so that what hole_seq finds is the same in a second run. */
	for (u32 i = p->chunk[c].fill; i-- > FBY_FIRST_PAGE;) {
		if (new_line(p, c, i, &last, &l))
			media_lines(p->media, fby_line_at(p, c, i), &l, FBY_LINE);
	}
	media_fence_chunk(p, c);
}

static void write_open(struct fby_pool *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	for (u32 which = 0; which < 2; which++) {
		struct fby_open_line l = { .magic = FBY_OPEN_MAGIC, .chunk = c };

		if (!(ch->recover & (which ? CR_OPEN1 : CR_OPEN0)))
			continue;
		l.epoch = (ch->epoch & 1) == which ? ch->epoch : ch->epoch - 1;
		if (l.epoch == ch->epoch && ch->volume != FBY_NO_VOLUME) {
			l.kind = FBY_CHUNK_CACHE;
			l.volume = ch->volume;
			l.seq_min = ch->seq_min;
		}
		fby_line_finish(p->line_seed, &l);
		media_lines(p->media, fby_line_at(p, c, FBY_LINE_OPEN + which), &l, FBY_LINE);
		media_fence_chunk(p, c);
	}
}

/* Closes it where it ends: what comes after is no longer of any account. */
static void write_seal(struct fby_pool *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];
	struct fby_page_line l;

	if (FBY_BUG(TAIL_RESEALED_SHORT) && ch->fill > FBY_FIRST_PAGE)
		ch->fill--;
	ch->seq_last = ch->seq_max;
	ch->last_block = FBY_NO_BLOCK;
	if (ch->fill > FBY_FIRST_PAGE && fby_page_line_read(p, c, ch->fill - 1, &l, NULL))
		ch->last_block = l.block;
	fby_chunk_seal(p, c, true);
}

static void write_records(struct fby_pool *p)
{
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		struct fby_volume_record a, b;

		if (!p->volume[i].damaged && (!fby_record_read(p, (u16)i, 0, &a) ||
					      !fby_record_read(p, (u16)i, 1, &b) || !fby_equal(&a, &b, sizeof(a))))
			fby_record_write(p, (u16)i);
	}
}

static void finish_media(struct fby_pool *p)
{
	write_losses(p);
	if (!FBY_BUG(CLEAN_NOT_CLEARED))
		fby_sb_write(p, false);
	for (u32 c = 0; c < p->sb.nchunks; c++) {
		struct fby_chunk *ch = &p->chunk[c];

		if (ch->recover & CR_LINES)
			write_lines(p, c);
		if (ch->recover & (CR_OPEN0 | CR_OPEN1))
			write_open(p, c);
		if (!(ch->recover & (CR_CLOSED | CR_LOST)) && ch->fill > FBY_FIRST_PAGE)
			write_seal(p, c);
	}
	write_records(p);
}

/* --- finish: memory -------------------------------------------------------------------- */

/* Epochs of chunks that have lost all count: above any that can be in them. */
static void settle_epoch(struct fby_pool *p, struct fby_chunk *ch)
{
	if (ch->recover & CR_LOST)
		ch->epoch = p->max_epoch + 1;
	if (ch->epoch == 0)
		ch->epoch = 1;
}

static void clear_marks(struct fby_pool *p, u32 c)
{
	for (u32 page = (c << p->chunk_shift) + FBY_FIRST_PAGE; page < (c + 1) << p->chunk_shift; page++) {
		u32 state = fby_load(&p->entry[page].state);

		fby_store(&p->entry[page].state,
			  state & FBY_ES_LINKED ? state & ~(FBY_ES_HOLE | FBY_ES_VOID | FBY_ES_REPAIR) : 0u);
	}
}

static u32 merge_by_seq(struct fby_pool *p, u32 a, u32 b)
{
	u32 first = FBY_NO_CHUNK, *at = &first;

	while (a != FBY_NO_CHUNK && b != FBY_NO_CHUNK) {
		u32 *less = p->chunk[a].seq_min <= p->chunk[b].seq_min ? &a : &b;

		*at = *less;
		at = &p->chunk[*less].next;
		*less = *at;
	}
	*at = a != FBY_NO_CHUNK ? a : b;
	return first;
}

/* The volume's chunks, chained by next in any order: oldest first.  A merge sort
 * of runs of 2^i chunks. */
static u32 sort_by_seq(struct fby_pool *p, u32 c)
{
	u32 run[32], i;

	for (i = 0; i < 32; i++)
		run[i] = FBY_NO_CHUNK;
	while (c != FBY_NO_CHUNK) {
		u32 one = c;

		c = p->chunk[c].next;
		p->chunk[one].next = FBY_NO_CHUNK;
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

static void build_lists(struct fby_pool *p)
{
	for (u32 c = 0; c < p->sb.nchunks; c++) {
		struct fby_chunk *ch = &p->chunk[c];

		ch->pinned = 0;
		ch->opened_ns = 0;
		ch->tick_fill = ch->fill;
		/* The counts are 0: those that died before are in the base. */
		ch->dead_base = (u16)(fby_load(&ch->linked) - (ch->fill - FBY_FIRST_PAGE));
		if (fby_load(&ch->linked) == 0) {
			fby_chunk_to_free(p, c);
			continue;
		}
		FBY_ASSERT(ch->volume != FBY_NO_VOLUME);
		ch->state = FBY_CS_CLOSED;
		ch->next = p->volume[ch->volume].first;
		p->volume[ch->volume].first = c;
		p->volume[ch->volume].recovered += fby_load(&ch->linked);
	}
	for (u32 i = 0; i < p->sb.nvolumes; i++) {
		struct fby_volume *v = &p->volume[i];
		u32 c = sort_by_seq(p, v->first);

		v->first = v->last = FBY_NO_CHUNK;
		while (c != FBY_NO_CHUNK) {
			u32 next = p->chunk[c].next;

			fby_chunk_list_append(p, v, c);
			c = next;
		}
	}
}

int fby_recover_finish(struct fby_pool *p, struct fby_recovery_report *report)
{
	if (p->usable || p->report.chunks != p->sb.nchunks)
		return -FBY_E_RECOVERY_INCOMPLETE;
	find_losses(p);
	for (u32 c = 0; c < p->sb.nchunks; c++)
		settle_epoch(p, &p->chunk[c]);
	p->seq = FBY_BUG(NEXT_SEQ_REUSED) ? 1 : p->max_seq + 1;
	if (!p->opt.read_only)
		finish_media(p);
	p->free_first = p->free_last = FBY_NO_CHUNK;
	build_lists(p);
	for (u32 c = 0; c < p->sb.nchunks; c++)
		if (p->chunk[c].recover & CR_LINES)
			clear_marks(p, c);
	for (u32 v = 0; v < p->sb.nvolumes; v++)
		p->report.blocks += fby_volume_pages(p, (u16)v);
	p->usable = true;
	if (report)
		*report = p->report;
	return FBY_DONE;
}
