// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * check.c - checks all invariants of a pool, from the pool itself.  Damaged media does not break
 * an invariant: check skips a line whose checksum fails; readers report it.
 *
 *	lists	each chunk is free, or on the list of its volume, once; volumes'
 *		lists ascend by seq; open chunks belong to one slot
 *	index	each linked page hangs in its bucket once, alone for its block
 *	chunks	live count = linked pages; nothing linked beyond fill or in a
 *		free chunk; epoch as on the media
 *	lines	a linked page's line says what memory says, above the watermark;
 *		no line of a current epoch above the watermark is newer than the
 *		page linked for its block
 *	volumes	counts of lost blocks; the record on the media; nothing that is
 *		being written past the cache is cached
 */
#include "cache/index.h"
#include "cache/static_requests.h"
#include "format/kind.h"
#include "pool/parts.h"

struct check {
	struct fby_pool *p;
	char *text;
	u32 size, used;
	bool failed;
};

static void put_char(struct check *k, char c)
{
	if (k->used + 1 < k->size)
		k->text[k->used++] = c;
	if (k->size)
		k->text[k->used] = 0;
}

static void put_text(struct check *k, const char *s)
{
	while (*s)
		put_char(k, *s++);
}

/* Hexadecimal, which needs no division of 64 bits. */
static void put_number(struct check *k, u64 n)
{
	u32 shift = 60;

	put_text(k, "0x");
	while (shift > 0 && n >> shift == 0)
		shift -= 4;
	for (;; shift -= 4) {
		put_char(k, "0123456789abcdef"[n >> shift & 15]);
		if (shift == 0)
			break;
	}
}

/* "what: name number, name number".  Only the first violation is reported. */
static bool violated(struct check *k, const char *what, const char *a, u64 x, const char *b, u64 y)
{
	if (k->failed)
		return false;
	k->failed = true;
	put_text(k, what);
	put_text(k, ": ");
	put_text(k, a);
	put_char(k, ' ');
	put_number(k, x);
	put_text(k, ", ");
	put_text(k, b);
	put_char(k, ' ');
	put_number(k, y);
	return false;
}

/* --- lists; the pool lock is held --------------------------------------------- */

static bool check_free_list(struct check *k)
{
	struct fby_pool *p = k->p;
	u32 n = 0;

	for (u32 c = p->space.free_first; n < p->space.nfree; c = p->space.chunk[c].next, n++) {
		if (c >= p->space.store.sb.nchunks)
			return violated(k, "the free list is broken", "after", n, "chunk", c);
		if (p->space.chunk[c].state != FBY_CS_FREE)
			return violated(k, "a chunk in use is on the free list", "chunk", c, "state",
					p->space.chunk[c].state);
		if (fby_chunk_live(&p->space, c) != 0)
			return violated(k, "a free chunk has live pages", "chunk", c, "live",
					fby_chunk_live(&p->space, c));
		if (n + 1 == p->space.nfree && c != p->space.free_last)
			return violated(k, "the free list ends elsewhere", "chunk", c, "last", p->space.free_last);
	}
	return true;
}

static bool check_volume_list(struct check *k, u16 volume, u32 *total)
{
	struct fby_pool *p = k->p;
	struct fby_owner *owner = &p->space.owner[volume];
	u32 before = FBY_NO_CHUNK, n = 0, fill;

	for (u32 c = owner->first; c != FBY_NO_CHUNK; before = c, c = p->space.chunk[c].next, n++) {
		struct fby_chunk *ch;

		if (c >= p->space.store.sb.nchunks || n >= p->space.store.sb.nchunks)
			return violated(k, "a volume's chunk list is broken", "volume", volume, "chunk", c);
		ch = &p->space.chunk[c];
		if (ch->state == FBY_CS_FREE || ch->owner != volume)
			return violated(k, "a chunk is on the wrong list", "chunk", c, "volume", volume);
		if (ch->prev != before)
			return violated(k, "a chunk list does not lead back", "chunk", c, "prev", ch->prev);
		if (before != FBY_NO_CHUNK && p->space.chunk[before].seq_min > ch->seq_min)
			return violated(k, "a volume's chunks are out of order", "chunk", before, "chunk", c);
		fill = fby_load(&ch->fill);
		if (fill < p->space.store.first_page || fill > fby_chunk_kinds[ch->kind].fill_most(&p->space.store))
			return violated(k, "a chunk's fill is out of range", "chunk", c, "fill", fill);
	}
	if (n != owner->nchunks || before != owner->last)
		return violated(k, "a volume's chunk list is miscounted", "volume", volume, "chunks", n);
	*total += n;
	return true;
}

static bool check_lists(struct check *k)
{
	struct fby_pool *p = k->p;
	u32 total = p->space.nfree, owed = 0, first = 0, holders = 0;

	if (!check_free_list(k))
		return false;
	for (u32 v = 0; v < p->space.store.sb.nvolumes; v++) {
		owed += fby_owed_to(&p->space, &p->space.owner[v]);
		first += fby_owed_to(&p->space, &p->space.owner[v]) == p->space.entitled;
		holders += p->space.owner[v].active && p->space.owner[v].nchunks;
	}
	if (owed != p->space.owed || first != p->space.owed_first || holders != p->space.holders)
		return violated(k, "what volumes are entitled to is miscounted", "owed", p->space.owed, "counted",
				owed);
	for (u32 v = 0; v < p->space.store.sb.nvolumes; v++)
		if (!check_volume_list(k, (u16)v, &total))
			return false;
	if (total != p->space.store.sb.nchunks)
		return violated(k, "chunks are on no list", "listed", total, "of", p->space.store.sb.nchunks);
	return true;
}

/* --- slots ------------------------------------------------------------------------ */

static u32 owners(const struct fby_pool *p, u32 c)
{
	u32 n = 0;

	for (u32 i = 0; i < p->space.opt.nslots; i++)
		for (u32 v = 0; v < p->space.store.sb.nvolumes; v++)
			n += p->space.slot[i].volume[v].open == c;
	if (p->space.store.unit && p->space.chunk[c].owner < p->space.store.sb.nvolumes)
		n += fby_stream_ahead(&p->space, p->space.chunk[c].owner, c);
	return n;
}

static bool check_slots(struct check *k)
{
	struct fby_pool *p = k->p;

	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		const struct fby_slot *s = &p->space.slot[i];

		if (s->busy)
			return violated(k, "a slot is busy while all is quiet", "slot", i, "busy", s->busy);
		if (s->seq_next > s->seq_end || s->seq_end > p->space.seq)
			return violated(k, "a slot has sequence numbers not given out", "slot", i, "end", s->seq_end);
		if (s->seq_next < s->seq_end && s->floor > s->seq_next)
			return violated(k, "a slot's floor is above its next", "slot", i, "floor", s->floor);
		for (u32 v = 0; v < p->space.store.sb.nvolumes; v++) {
			u32 c = s->volume[v].open;

			if (c == FBY_NO_CHUNK)
				continue;
			if (c >= p->space.store.sb.nchunks || p->space.chunk[c].state != FBY_CS_OPEN ||
			    p->space.chunk[c].owner != v)
				return violated(k, "a slot's open chunk is not open", "slot", i, "chunk", c);
		}
	}
	for (u32 c = 0; c < p->space.store.sb.nchunks; c++)
		if (p->space.chunk[c].state == FBY_CS_OPEN && owners(p, c) != 1)
			return violated(k, "an open chunk has not one slot", "chunk", c, "slots", owners(p, c));
	return true;
}

/* --- index -------------------------------------------------------------------------- */

static bool check_chain(struct check *k, u32 b, u64 *total)
{
	struct fby_pool *p = k->p;
	u32 pages = fby_page_number(&p->space, p->space.store.sb.nchunks, 0), n = 0;

	for (u32 page = p->cache.bucket[b]; page != FBY_NO_PAGE; page = p->cache.entry[page].next) {
		struct fby_entry *e;
		u32 other;

		if (page >= pages)
			return violated(k, "a bucket's chain is broken or held", "bucket", b, "page", page);
		e = &p->cache.entry[page];
		if (!(e->state & FBY_ES_LINKED))
			return violated(k, "a page in a chain is not linked", "bucket", b, "page", page);
		if (fby_index_bucket(&p->cache, e->key) != b)
			return violated(k, "a page hangs in the wrong bucket", "bucket", b, "page", page);
		/* Bounded: a corrupt chain may lead into a ring, whose pages come twice. */
		other = e->next;
		for (u32 left = pages; left > 0 && other != FBY_NO_PAGE && other < pages; left--) {
			if (p->cache.entry[other].key == e->key)
				return violated(k, "a block has two pages", "page", page, "page", other);
			other = p->cache.entry[other].next;
		}
		n++;
	}
	*total += n;
	return true;
}

static bool check_index(struct check *k)
{
	u64 chained = 0, linked = 0;
	struct fby_pool *p = k->p;

	for (u32 b = 0; b < p->cache.nbuckets; b++)
		if (!check_chain(k, b, &chained))
			return false;
	for (u32 page = 0; page < fby_page_number(&p->space, p->space.store.sb.nchunks, 0); page++)
		linked += (p->cache.entry[page].state & FBY_ES_LINKED) != 0;
	if (linked != chained)
		return violated(k, "linked pages are in no chain", "linked", linked, "chained", chained);
	return true;
}

/* --- chunks and lines ----------------------------------------------------------------- */

/* Is the page above the watermark, or about to be released by the round that moved it? */
static bool above_watermark(const struct fby_pool *p, const struct fby_page_line *l)
{
	const struct fby_owner *owner = &p->space.owner[l->volume];

	return l->seq > owner->rec.watermark;
}

static bool check_linked_line(struct check *k, u32 page, const struct fby_page_line *l)
{
	struct fby_pool *p = k->p;
	const struct fby_entry *e = &p->cache.entry[page];
	const struct fby_owner *owner = &p->space.owner[l->volume];
	const struct fby_cached *cv = &p->cache.volume[l->volume];
	const struct fby_drained *dv = &p->drain.volume[l->volume];

	if (fby_key(l->volume, l->block) != e->key || l->volume != fby_chunk_of(&p->space, page)->owner)
		return violated(k, "a line and the index differ on the block", "page", page, "block", l->block);
	if (FBY_ES_VALID(e->state) != l->valid || FBY_ES_LOST(e->state) != l->lost ||
	    FBY_ES_KIND(e->state) != l->kind)
		return violated(k, "a line and the index differ on the content", "page", page, "block", l->block);
	if (l->seq >= p->space.seq)
		return violated(k, "a sequence number was never given out", "page", page, "seq", l->seq);
	if (l->seq < fby_chunk_of(&p->space, page)->seq_min)
		return violated(k, "a page is older than its chunk", "page", page, "seq", l->seq);
	if (!above_watermark(p, l) && dv->destage.phase != FBY_PH_RELEASE)
		return violated(k, "a page below the watermark is linked", "page", page, "seq", l->seq);
	if (!owner->damaged && l->block >= cv->blocks)
		return violated(k, "a block is beyond its volume", "page", page, "block", l->block);
	return true;
}

/* Does recovery read entries of this block? */
static bool replayed(const struct fby_pool *p, u16 volume, u64 block)
{
	const struct fby_owner *owner = &p->space.owner[volume];

	return owner->damaged || (owner->rec.kind == FBY_OWNER_VOLUME && block < p->cache.volume[volume].blocks);
}

/* Recovery would accept this line as an entry: is the block's linked page this one, or newer? */
static bool check_unlinked_line(struct check *k, u32 page, const struct fby_page_line *l)
{
	struct fby_pool *p = k->p;
	struct fby_page_line newer;
	struct fby_found f;

	if (l->kind == FBY_KIND_VOID || !above_watermark(p, l) || !replayed(p, l->volume, l->block))
		return true;
	if (p->space.opt.read_only) /* what recovery dropped is still there */
		return true;
	fby_index_find(&p->cache, fby_key(l->volume, l->block), &f);
	if (f.page == FBY_NO_PAGE)
		return violated(k, "recovery would bring back a block that is not cached", "page", page, "block",
				l->block);
	if (fby_page_line(&p->space, f.page, &newer, NULL) &&
	    newer.seq < l->seq)
		return violated(k, "recovery would bring back another page of a block", "page", page, "instead of",
				f.page);
	return true;
}

static bool check_epoch(struct check *k, u32 c)
{
	struct fby_pool *p = k->p;
	struct fby_open_line a, b;
	bool a_ok = fby_open_line_read(&p->space.store, c, 0, &a), b_ok = fby_open_line_read(&p->space.store, c, 1, &b);
	u64 newest = a_ok && (!b_ok || a.epoch > b.epoch) ? a.epoch : b.epoch;

	/* the damaged copy may have been the newest; it is not repaired */
	if (!a_ok || !b_ok || p->space.opt.read_only)
		return true;
	if (newest != p->space.chunk[c].epoch)
		return violated(k, "a chunk's epoch is not that of the media", "chunk", c, "epoch",
				p->space.chunk[c].epoch);
	return true;
}

static bool check_whole(struct check *k, u32 c)
{
	struct fby_violation v;

	if (!fby_chunk_kinds[k->p->space.chunk[c].kind].check(k->p, c, &v))
		return violated(k, v.what, v.a, v.x, v.b, v.y);
	return check_epoch(k, c);
}

static bool check_chunk(struct check *k, u32 c)
{
	struct fby_pool *p = k->p;
	struct fby_chunk *ch = &p->space.chunk[c];
	u32 linked = 0;

	if (ch->owner != FBY_NO_OWNER && fby_chunk_kinds[ch->kind].whole)
		return check_whole(k, c);
	for (u32 i = p->space.store.first_page; i < p->space.store.chunk_pages; i++) {
		u32 page = fby_page_number(&p->space, c, i);
		bool is_linked = p->cache.entry[page].state & FBY_ES_LINKED;
		struct fby_page_line l;
		bool readable = fby_page_line_read(&p->space, c, i, &l, NULL) && l.epoch == ch->epoch &&
				(l.volume == ch->owner || !p->space.opt.read_only);

		linked += is_linked;
		if (is_linked && (ch->state == FBY_CS_FREE || i >= ch->fill))
			return violated(k, "a page is linked where nothing was written", "chunk", c, "page", i);
		/* In a read-only pool, a line that counts as lost is still there. */
		if (p->space.opt.read_only && fby_lost_only(p->cache.entry[page].state))
			continue;
		if (is_linked && readable && !check_linked_line(k, page, &l))
			return false;
		if (!is_linked && readable && i < ch->fill && !check_unlinked_line(k, page, &l))
			return false;
	}
	if (fby_chunk_live(&p->space, c) != linked + fby_stream_dying(&p->space, c))
		return violated(k, "a chunk's live count is wrong", "chunk", c, "live", fby_chunk_live(&p->space, c));
	return (ch->state != FBY_CS_OPEN && linked == 0) || check_epoch(k, c);
}

/* --- static volumes ------------------------------------------------------------------------ */

static bool check_static(struct check *k, u16 volume)
{
	struct fby_violation v;

	if (!fby_is_static(&k->p->cache, volume) || fby_pool_static_check(k->p, volume, &v))
		return true;
	return violated(k, v.what, v.a, v.x, v.b, v.y);
}

static bool check_map(struct check *k, u16 map)
{
	struct fby_violation v;

	if (fby_pool_map_check(k->p, map, &v))
		return true;
	return violated(k, v.what, v.a, v.x, v.b, v.y);
}

/* --- volumes ------------------------------------------------------------------------------ */

static bool check_record(struct check *k, u16 volume)
{
	struct fby_pool *p = k->p;
	struct fby_volume_record r;

	for (u32 copy = 0; copy < 2 && !p->space.opt.read_only; copy++) {
		if (fby_record_read(&p->space.store, volume, copy, &r) &&
		    !fby_equal(&r, &p->space.owner[volume].rec, sizeof(r)))
			return violated(k, "a volume's record is not that of the media", "volume", volume, "copy",
					copy);
	}
	return true;
}

static bool check_bypassing(struct check *k, u16 volume)
{
	struct fby_pool *p = k->p;
	const struct fby_cached *cv = &p->cache.volume[volume];

	for (u32 busy = cv->bypassing; busy; busy &= busy - 1) {
		const struct fby_bypass_range *r = &cv->range[__builtin_ctz(busy)];
		struct fby_found f;

		for (u64 block = r->first; block < r->end; block++) {
			fby_index_find(&p->cache, fby_key(volume, block), &f);
			if (f.page != FBY_NO_PAGE)
				return violated(k, "a block is cached while it is written past the cache", "volume",
						volume, "block", block);
		}
	}
	return true;
}

static bool check_volume(struct check *k, u16 volume)
{
	struct fby_pool *p = k->p;
	struct fby_owner *owner = &p->space.owner[volume];
	struct fby_cached *cv = &p->cache.volume[volume];
	u32 lost = 0, only = 0;
	u64 linked = 0, clean = 0;

	for (u32 c = owner->first; c != FBY_NO_CHUNK; c = p->space.chunk[c].next) {
		for (u32 i = p->space.store.first_page; i < p->space.store.chunk_pages; i++) {
			u32 page = fby_page_number(&p->space, c, i), state = p->cache.entry[page].state;

			linked += (state & FBY_ES_LINKED) != 0;
			lost += (state & FBY_ES_LINKED) && ((state & FBY_ES_DAMAGED) || FBY_ES_LOST(state));
			only += fby_lost_only(state);
			clean += (state & FBY_ES_LINKED) && fby_page_is_clean(&p->cache, volume, page, state);
		}
	}
	if (linked != fby_owner_pages(&p->space, volume))
		return violated(k, "a volume's pages are miscounted", "volume", volume, "counted", linked);
	if (clean != fby_owner_clean(&p->space, volume))
		return violated(k, "a volume's clean pages are miscounted", "volume", volume, "counted", clean);
	if (lost != cv->lost_blocks || only != cv->lost_only)
		return violated(k, "a volume's lost blocks are miscounted", "volume", volume, "counted", lost);
	if (owner->rec.kind == FBY_OWNER_VOLUME && owner->rec.watermark >= p->space.seq)
		return violated(k, "a watermark is above all sequence numbers", "volume", volume, "watermark",
				owner->rec.watermark);
	return check_bypassing(k, volume) && (owner->damaged || check_record(k, volume));
}

int fby_check(struct fby_pool *p, bool quiet, char *text, u32 text_bytes)
{
	struct check k = { .p = p, .text = text, .size = text_bytes };

	if (text_bytes)
		text[0] = 0;
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	fby_lock(&p->space.lock);
	check_lists(&k);
	fby_unlock(&p->space.lock);
	if (k.failed || !quiet)
		return k.failed ? -FBY_E_INVARIANT : FBY_DONE;
	if (check_slots(&k) && check_index(&k)) {
		for (u32 c = 0; c < p->space.store.sb.nchunks && !k.failed; c++)
			check_chunk(&k, c);
		for (u32 v = 0; v < p->space.store.sb.nvolumes && !k.failed; v++)
			if (check_volume(&k, (u16)v))
				if (check_static(&k, (u16)v))
					check_map(&k, (u16)v);
	}
	return k.failed ? -FBY_E_INVARIANT : FBY_DONE;
}
