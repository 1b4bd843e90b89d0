// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * scan.c - the first half of recovery: each chunk separately, in parallel.  It finds the chunk's
 * epoch, the end of its writes and the class of each line, and links the newest entry of each
 * block.  It writes nothing; recovery.c does the rest.
 *
 * Only the last batch of a chunk can be torn by a crash, since each ended with a fence.  The
 * table below decides by a line's place and class.
 */
#include "cache/index.h"
#include "recover/recovery.h"

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
	VOID,	    /* torn, never acknowledged: recovery makes sure that it remains nothing */
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
	u32 opens, seals; /* number of its valid open lines and seals */
	u32 sealed, closed;
	u32 linked;
	struct fby_seal_line seal; /* the newest */
	u64 last_block; /* of page sealed-1 */
	u64 watermark;
	u64 blocks;
	u16 volume;
	bool known;  /* seq_min and volume belong to the epoch */
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

static bool unknown(struct fby_recovery *p, u32 c, u32 kind)
{
	bool known = kind < FBY_CHUNK_KINDS, pages = known && kind != FBY_CHUNK_FREE && !fby_chunk_kinds[kind].whole;

	if (known && (!pages || fby_volumes_allowed(p->space)))
		return false;
	fby_recovery_unknown(p, known ? -FBY_E_LOGS_ONLY : -FBY_E_CHUNK_KIND, c, kind);
	return true;
}

/* Takes epoch and volume from the newest valid open line.  False: one is of an unknown kind. */
static bool scan_open(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	struct fby_open_line l;

	s->opens = 0;
	s->known = false;
	s->volume = FBY_NO_OWNER;
	ch->epoch = ch->seq_min = 0;
	ch->kind = FBY_CHUNK_FREE;
	for (u32 which = 0; which < 2; which++) {
		if (!fby_open_line_read(&p->space->store, s->c, which, &l)) {
			p->scanned[s->c].found |= which ? CR_OPEN1 : CR_OPEN0;
			fby_fetch_add(&p->report.chunk_headers_lost, 1ull);
			continue;
		}
		if (unknown(p, s->c, l.kind))
			return false;
		if (s->opens++ && l.epoch < ch->epoch)
			continue;
		ch->epoch = l.epoch;
		ch->kind = (u8)l.kind;
		ch->seq_min = l.seq_min;
		s->known = l.kind != FBY_CHUNK_FREE;
		s->volume = s->known ? l.owner : FBY_NO_OWNER;
	}
	return true;
}

/* If an open line is lost, it may have been the newest.  Then the first entry of the chunk says
 * so, if its kind owns whole chunks, or its newest group.  (Bytes at its place were never anybody's
 * data.) */
static void scan_first(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	struct fby_open_line l;

	for (u32 kind = 0; kind < FBY_CHUNK_KINDS && s->opens < 2; kind++) {
		if (!fby_chunk_kinds[kind].first || !fby_chunk_kinds[kind].first(&p->space->store, s->c, &l) ||
		    l.epoch <= ch->epoch || (!fby_chunk_kinds[kind].whole && !fby_volumes_allowed(p->space)))
			continue;
		ch->epoch = l.epoch;
		ch->kind = (u8)l.kind;
		ch->seq_min = l.seq_min;
		s->volume = l.owner;
		s->known = fby_chunk_kinds[kind].whole; /* else the first line says its lowest seq */
	}
}

/* Finds the newest valid seal.  If its epoch is above the chunk's, the open line of that epoch is
 * lost. */
static bool scan_seals(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	u64 counter[2] = { 0, 0 };
	struct fby_seal_line l;

	s->seals = 0;
	ch->seal_counter = 0;
	fby_zero(&s->seal, sizeof(s->seal));
	for (u32 which = 0; which < FBY_SEALS; which++) {
		if (!fby_seal_line_read(&p->space->store, s->c, which, &l)) {
			p->scanned[s->c].found |= CR_SEALS;
			fby_fetch_add(&p->report.chunk_headers_lost, 1ull);
			continue;
		}
		if (unknown(p, s->c, l.kind))
			return false;
		if (which >= 2 && l.counter != counter[which & 1])
			p->scanned[s->c].found |= CR_SEALS;
		counter[which & 1] = l.counter;
		if (l.counter > ch->seal_counter)
			ch->seal_counter = l.counter;
		if (s->seals++ == 0 || l.epoch > s->seal.epoch ||
		    (l.epoch == s->seal.epoch && l.counter > s->seal.counter))
			s->seal = l;
	}
	if (s->seal.epoch > ch->epoch && !FBY_BUG(SEAL_EPOCH_IGNORED)) {
		ch->epoch = s->seal.epoch;
		ch->kind = (u8)s->seal.kind;
		ch->seq_min = 1;
		s->volume = s->seal.owner;
		s->known = false;
	}
	return true;
}

static u8 scan_line(struct fby_recovery *p, struct scan *s, u32 i, u64 *newest)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	struct fby_page_line l;

	if (!fby_page_line_read(p->space, s->c, i, &l, NULL))
		return FBY_LINE_BAD;
	if (l.epoch > *newest)
		*newest = l.epoch;
	if (l.epoch != ch->epoch)
		return l.epoch < ch->epoch ? FBY_LINE_OLD : FBY_LINE_BAD;
	if (!s->known) { /* its open line is lost: the first entry tells */
		s->volume = l.volume;
		ch->seq_min = l.seq;
		s->known = true;
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

/* Classifies all lines.  If they show that the newest open line is lost, their epoch becomes the
 * chunk's, and all are classified again: once. */
static void scan_lines(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	u64 newest = ch->epoch;

	for (u32 pass = 0; pass < 2; pass++) {
		s->last = s->batch = 0;
		ch->seq_max = 0;
		for (u32 i = p->space->store.first_page; i < p->space->store.chunk_pages; i++)
			s->class[i] = scan_line(p, s, i, &newest);
		if (newest == ch->epoch)
			break;
		ch->epoch = newest;
		ch->kind = FBY_CHUNK_CACHE; /* only cache chunks have such lines */
		s->known = false;
	}
	if (ch->seq_max == 0)
		ch->seq_max = ch->seq_min;
}

/*
 * A crash leaves at least two seal lines valid.  With fewer the chunk is damaged, and its content
 * beyond its readable lines is unknown.  It counts against its volume, if both open lines or an
 * entry name one, otherwise against all volumes.
 */
static void scan_doubt(struct fby_recovery *p, struct scan *s, u64 opened)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];

	if (ch->epoch != opened)
		p->scanned[s->c].found |= ch->epoch & 1 ? CR_OPEN1 : CR_OPEN0; /* lost, or stale: a cut kept it from arriving */
	/* In a grouped pool the seals are one block, which a cut may take; the groups remain. */
	if (p->space->store.unit && (s->opens || s->seals))
		return;
	if (s->seals >= 2 || FBY_BUG(HEADERS_LOST_SILENT))
		return;
	if (s->opens == 2 || (s->opens == 1 && ch->epoch > opened))
		p->scanned[s->c].found |= s->volume == FBY_NO_OWNER ? 0 : CR_DOUBT;
	else
		p->scanned[s->c].found |= CR_LOST;
}

/* Returns the newest seal, if it matches the chunk's present state; otherwise NULL.  A seal whose
 * fill is that of another kind of chunk is forged. */
static const struct fby_seal_line *own_seal(const struct fby_recovery *p, const struct scan *s)
{
	const struct fby_chunk *ch = &p->space->chunk[s->c];

	if (!s->seals || (s->seal.epoch != ch->epoch && !FBY_BUG(GROUP_ARRAY_OF_BEFORE)) ||
	    fby_chunk_kinds[s->seal.kind].whole != fby_chunk_kinds[ch->kind].whole)
		return NULL;
	return &s->seal;
}

static void scan_end(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	const struct fby_seal_line *seal = own_seal(p, s);

	s->sealed = s->closed = 0;
	s->last_block = FBY_NO_BLOCK;
	if (seal) {
		s->sealed = seal->fill;
		s->closed = seal->closed;
		s->last_block = seal->last_block;
		if (seal->seq_max > ch->seq_max)
			ch->seq_max = seal->seq_max;
	}
	if (s->closed)
		p->scanned[s->c].found |= CR_CLOSED;
	else if (p->report.clean) { /* that seal is lost */
		s->closed = 1;
		if (s->last + 1 > s->sealed)
			s->sealed = s->last + 1;
	}
}

static void scan_volume(struct fby_recovery *p, struct scan *s)
{
	const struct fby_owner *o;
	const struct fby_cached *cv;

	s->ignore = true;
	s->watermark = 0;
	s->blocks = 1ull << FBY_BLOCK_BITS;
	if (s->volume == FBY_NO_OWNER)
		return;
	o = &p->space->owner[s->volume];
	cv = &p->cache->volume[s->volume];
	if (o->damaged) {
		s->ignore = false;
		return;
	}
	s->ignore = o->rec.kind != FBY_OWNER_VOLUME;
	s->blocks = cv->blocks;
	if (!FBY_BUG(WATERMARK_IGNORED))
		s->watermark = o->rec.watermark;
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

/* Upper bound of the seq of a lost line at place i: lines of a chunk ascend, and each states the
 * seq of the one before it. */
static u64 seq_before(const struct fby_page_line *next, u32 i)
{
	u64 last = next->prev_seq ? next->prev_seq : next->seq - 1;
	u32 between = next->page - 1 - i;

	return last > between ? last - between : 1;
}

/* Lines before this place were fenced long ago: SETTLED, according to the scan. */
static u32 settled_end(const struct fby_recovery *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	struct fby_page_line l;

	/* In a grouped pool all of the last group is the tail. */
	if (p->space->store.unit || ch->fill <= ch->sealed || !fby_page_line_read(p->space, c, ch->fill - 1, &l, NULL) ||
	    l.batch_first < ch->sealed)
		return ch->sealed;
	return l.batch_first;
}

u64 fby_hole_seq(struct fby_recovery *p, u32 c, u32 i)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	/* Bytes that a cut left past the end are no line, even if they can be repaired: a bound
	 * from there would be above all that is written next. */
	u32 end = FBY_BUG(HOLE_SEQ_BEYOND) ? p->space->store.chunk_pages : ch->fill;
	u32 settled = FBY_BUG(HOLE_SEQ_BEYOND) ? end : settled_end(p, c);
	struct fby_page_line l;
	bool repaired; /* a repaired line counts, as in the scan: both must find the same bound */

	for (u32 n = i + 1; n < end; n++) {
		if (fby_page_line_read(p->space, c, n, &l, n < settled ? &repaired : NULL) && l.epoch == ch->epoch)
			return seq_before(&l, i);
	}
	return ch->seq_max;
}

/* Seq of a linked page; ~0 if its line cannot be read a second time. */
static u64 linked_seq(struct fby_recovery *p, u32 page)
{
	if (fby_load(&p->cache->entry[page].state) & FBY_ES_HOLE)
		return fby_hole_seq(p, fby_page_chunk(&p->space->store, page), fby_page_place(&p->space->store, page));
	return fby_page_seq(p->cache, page, FBY_NO_SEQ);
}

static void count_lost(struct fby_recovery *p, u16 volume, u32 state, u32 by)
{
	if (FBY_ES_LOST(state))
		fby_fetch_add(&p->cache->volume[volume].lost_blocks, by);
	if (fby_lost_only(state | FBY_ES_LINKED))
		fby_fetch_add(&p->cache->volume[volume].lost_only, by);
}

/* Bucket held: replaces old by a newer page. */
static void supersede(struct fby_recovery *p, u16 volume, u32 old, u32 was)
{
	count_lost(p, volume, was, ~0u);
	fby_fetch_add(&p->scanned[fby_page_chunk(&p->space->store, old)].linked, ~0u);
	fby_store(&p->cache->entry[old].state, was & FBY_ES_HOLE ? FBY_ES_VOID : was & FBY_ES_REPAIR);
}

/* Links the page unless the block has a newer one.  Any thread. */
static void link_page(struct fby_recovery *p, struct scan *s, u32 i, u64 block, u32 state, u64 seq)
{
	u32 page = fby_page_number(p->space, s->c, i), old, was;
	u64 key = fby_key(s->volume, block);
	u32 b = fby_index_bucket(p->cache, key);

	while (!fby_index_try(p->cache, b))
		fby_relax();
	old = fby_index_get_locked(p->cache, b, key);
	was = old == FBY_NO_PAGE ? 0 : fby_load(&p->cache->entry[old].state);
	if (old == FBY_NO_PAGE || (linked_seq(p, old) < seq && !FBY_BUG(LOWEST_SEQ_WINS))) {
		fby_index_put_locked(p->cache, b, key, page, state, old);
		count_lost(p, s->volume, state, 1);
		s->linked++;
		if (old != FBY_NO_PAGE)
			supersede(p, s->volume, old, was);
	} else {
		fby_store(&p->cache->entry[page].state, state & FBY_ES_HOLE ? FBY_ES_VOID : state & FBY_ES_REPAIR);
	}
	fby_index_release(p->cache, b);
}

/* --- entries -------------------------------------------------------------------- */

static void mark(struct fby_recovery *p, const struct scan *s, u32 i, u32 state)
{
	struct fby_entry *e = &p->cache->entry[fby_page_number(p->space, s->c, i)];

	e->key = FBY_NO_BLOCK;
	fby_store(&e->state, state);
	p->scanned[s->c].found |= CR_LINES;
}

/* Reads the data of an entry as described by its line. */
static bool data_arrived(struct fby_recovery *p, u32 page, const struct fby_page_line *l)
{
	return (l->flags & FBY_PF_NOCRC) || FBY_BUG(TORN_TAIL_ACCEPTED) || fby_page_data_ok(p->cache, page, l);
}

static void drop(struct fby_recovery *p, struct scan *s, u32 i, const struct fby_page_line *l)
{
	const struct fby_report_block b = { .block = l->block, .chunk = s->c, .page = (u16)i, .volume = s->volume };

	mark(p, s, i, FBY_ES_VOID);
	fby_fetch_add(&p->report.dropped, 1ull);
	fby_lock(&p->space->lock);
	fby_report_add(p->report.dropped_named, &p->report.ndropped_named, &b);
	fby_unlock(&p->space->lock);
}

/* Are there sectors past the end of the volume?  Then the image contradicts itself, and the line
 * counts as lost.  The origin must never get them. */
static bool out_of_range(struct fby_recovery *p, const struct scan *s, const struct fby_page_line *l)
{
	u64 sectors = p->space->owner[s->volume].rec.origin_sectors;

	if (s->ignore || l->kind == FBY_KIND_VOID || l->seq <= s->watermark)
		return false;
	if (l->block >= s->blocks)
		return true;
	return !p->space->owner[s->volume].damaged && l->valid &&
	       l->block * FBY_PAGE_SECTORS + 32u - (u32)__builtin_clz(l->valid) > sectors;
}

static void entry(struct fby_recovery *p, struct scan *s, u32 i, const struct fby_page_line *l, bool check,
		  bool repaired)
{
	u32 page = fby_page_number(p->space, s->c, i);
	u32 state = FBY_ES(l->kind, l->valid, l->lost);

	if (repaired) {
		fby_fetch_add(&p->report.lines_repaired, 1ull);
		mark(p, s, i, FBY_ES_REPAIR);
		state |= FBY_ES_REPAIR;
		if (l->seq < p->space->chunk[s->c].seq_min)
			p->space->chunk[s->c].seq_min = l->seq;
		if (l->seq > p->space->chunk[s->c].seq_max)
			p->space->chunk[s->c].seq_max = l->seq;
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

/* Finds the block of a lost line from a neighbour in its batch, from the next line, or from the
 * seal; ~0: unknown. */
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
static void gap(struct fby_recovery *p, struct scan *s, u32 from, u32 to, const struct fby_page_line *prev,
		const struct fby_page_line *next)
{
	for (u32 i = from; i < to; i++) {
		enum action a = (enum action)decision[place_of(s, i)][s->class[i]];
		u64 block, most;

		if (a == VOID)
			mark(p, s, i, FBY_ES_VOID);
		/* At or below the watermark, the origin has the lost data. */
		most = next ? seq_before(next, i) : p->space->chunk[s->c].seq_max;
		if (a != HOLE || s->ignore || most <= s->watermark)
			continue;
		block = hole_block(s, i, prev, next);
		mark(p, s, i, FBY_ES_HOLE);
		if (block < s->blocks)
			link_page(p, s, i, block, FBY_ES(FBY_KIND_DATA, 0, 0xff) | FBY_ES_HOLE, most);
	}
}

static void scan_entries(struct fby_recovery *p, struct scan *s)
{
	struct fby_page_line line[2], *l = &line[0], *prev = NULL;
	u32 end = p->space->chunk[s->c].fill, from = p->space->store.first_page;

	for (u32 i = p->space->store.first_page; i < end; i++) {
		enum place place = place_of(s, i);
		/* A line is repaired only where no crash can have torn it. */
		bool may = place == SETTLED && s->class[i] == FBY_LINE_BAD, repaired = false;

		if (place == BEYOND || (s->class[i] != FBY_LINE_CURRENT && !may) ||
		    !fby_page_line_read(p->space, s->c, i, l, may ? &repaired : NULL) ||
		    l->epoch != p->space->chunk[s->c].epoch || l->volume != s->volume)
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

/* A chunk of an unknown kind has no entries for a pool that is opened read-only. */
static void scan_nothing(struct fby_recovery *p, u32 c)
{
	struct fby_chunk *ch = &p->space->chunk[c];

	p->scanned[c].found = 0;
	ch->epoch = ch->seq_min = ch->seq_max = 0;
	ch->owner = FBY_NO_OWNER;
	ch->fill = ch->sealed = p->space->store.first_page;
}

/* A chunk that is in use or free as a whole: its layer decides. */
static void scan_whole(struct fby_recovery *p, struct scan *s, u64 opened)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	const struct fby_seal_line *seal = own_seal(p, s);
	bool used;

	scan_doubt(p, s, opened);
	ch->owner = s->volume;
	if (seal && seal->closed) {
		p->scanned[s->c].found |= CR_CLOSED;
	} else if (p->space->store.unit) {
		fby_gather(p->space, s->c, s->volume, &s->seal);
		seal = &s->seal;
	}
	used = fby_chunk_kinds[ch->kind].scan(p->pool, s->c, seal);
	max_u64(&p->max_epoch, ch->epoch);
	max_u64(&p->max_seq, ch->seq_min);
	fby_store(&p->scanned[s->c].linked, used ? ch->fill - p->space->store.first_page : 0);
}

/* A chunk of a grouped pool that nobody has had: it has no pages, and nothing is read from it. */
static void scan_unused(struct fby_recovery *p, struct scan *s, u64 opened)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	const struct fby_seal_line *seal = own_seal(p, s);

	scan_doubt(p, s, opened);
	if (seal && seal->closed)
		p->scanned[s->c].found |= CR_CLOSED;
	ch->owner = s->volume;
	ch->fill = ch->sealed = p->space->store.first_page;
	ch->seq_max = ch->seq_min;
	max_u64(&p->max_epoch, ch->epoch);
	max_u64(&p->max_seq, ch->seq_max);
}

/*
 * Finds where the groups of a chunk of a volume end, if it was not closed.  All groups but the last
 * are settled; after a clean close that is, too, and its array is lost.
 */
static void scan_groups(struct fby_recovery *p, struct scan *s)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];
	const struct fby_seal_line *seal;
	struct fby_gathered groups = { 0 };

	scan_lines(p, s); /* they may say that the newest open line is lost */
	seal = own_seal(p, s);
	s->closed = seal && seal->closed;
	if (!s->closed || !FBY_BUG(PAGES_ARRAY_ALONE))
		fby_gather_pages(p->space, s->c, s->volume, s->closed ? seal->fill : 0, &groups);
	if (groups.copied) {
		p->scanned[s->c].found |= CR_SEALS; /* the array is written */
		scan_lines(p, s);
	}
	s->last_block = FBY_NO_BLOCK;
	if (s->closed) {
		p->scanned[s->c].found |= CR_CLOSED;
		s->sealed = seal->fill;
		s->last_block = seal->last_block;
		if (seal->seq_max > ch->seq_max)
			ch->seq_max = seal->seq_max;
		return;
	}
	s->closed = p->report.clean;
	s->sealed = s->closed ? groups.end : groups.last;
	s->batch = groups.last;
	if (FBY_BUG(PAGES_TAIL_TOO_LONG) && !s->closed)
		s->sealed = s->batch = p->space->store.first_page;
	s->last = groups.end - 1;
}

/* A chunk of pages, each with its line. */
static void scan_pages(struct fby_recovery *p, struct scan *s, u64 opened)
{
	struct fby_chunk *ch = &p->space->chunk[s->c];

	if (p->space->store.unit) {
		scan_doubt(p, s, opened);
		scan_groups(p, s);
	} else {
		scan_lines(p, s);
		scan_doubt(p, s, opened);
		scan_end(p, s);
	}
	scan_volume(p, s);
	ch->owner = s->volume;
	ch->fill = s->sealed > p->space->store.first_page ? s->sealed : p->space->store.first_page;
	if (!s->closed && s->last + 1 > ch->fill)
		ch->fill = s->last + 1;
	ch->sealed = s->sealed;
	scan_entries(p, s);
	max_u64(&p->max_epoch, ch->epoch);
	max_u64(&p->max_seq, ch->seq_max);
	fby_fetch_add(&p->scanned[s->c].linked, s->linked);
}

static void scan_chunk(struct fby_recovery *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	struct scan s;
	u64 opened;

	s.c = c;
	s.linked = 0;
	p->scanned[c].found = 0;
	if (!scan_open(p, &s)) {
		scan_nothing(p, c);
		return;
	}
	opened = ch->epoch;
	if (!scan_seals(p, &s)) {
		scan_nothing(p, c);
		return;
	}
	scan_first(p, &s);
	if (fby_chunk_kinds[ch->kind].whole)
		scan_whole(p, &s, opened);
	else if (p->space->store.unit && ch->kind == FBY_CHUNK_FREE)
		scan_unused(p, &s, opened);
	else
		scan_pages(p, &s, opened);
}

int fby_recovery_scan(struct fby_recovery *p, u32 first, u32 n)
{
	if (p->space->usable)
		return -FBY_E_BUSY;
	if (first > p->space->store.sb.nchunks || n > p->space->store.sb.nchunks - first)
		return -FBY_E_GEOMETRY;
	for (u32 c = first; c < first + n; c++)
		scan_chunk(p, c);
	fby_fetch_add(&p->report.chunks, (u64)n);
	return FBY_DONE;
}
