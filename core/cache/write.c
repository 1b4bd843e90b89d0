// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * write.c - the write path.  From top to bottom: begin, copy, commit, publish;
 * docs/design/write-path.md describes the state after a crash at each point.
 *
 * The commit is one fence (ZIL-PMEM needs two, or a checksum as here): data and
 * headers are stored in any order, and the data's checksum in the header tells
 * recovery whether all of it arrived.  4 KiB, one thread, DRAM: copy, fence,
 * header, fence 688 ns; copy with checksum, header, fence 573 ns.
 */
#include "cache/index.h"
#include "cache/static_requests.h"
#include "space/slot.h"

#define FBY_OLD_UNKNOWN (~0u) /* fby_wpage.old: not looked up yet */

/*
 * Finds the block's present page.  The lookup comes as late as possible, after the data's stores
 * were issued: these keep the CPU busy for longer than the lookup's cache misses take.  Begin
 * only prefetches the lines.
 */
FBY_INLINE void find_old(struct fby_cache *p, const struct fby_write *w, struct fby_wpage *g)
{
	if (g->old != FBY_OLD_UNKNOWN)
		return;
	g->old = fby_index_get_locked(p, g->bucket, fby_key(w->volume, g->block));
	if (g->old != FBY_NO_PAGE)
		fby_prefetch(&fby_chunk_of(p->space, g->old)->epoch);
}

/* The first page of the bucket is most likely the one to be replaced: prefetches its entry and
 * its chunk's highest seq. */
static inline void begin_prefetch(struct fby_cache *p, u32 page)
{
	if (page == FBY_NO_PAGE)
		return;
	fby_prefetchw(&p->entry[page]);
	fby_prefetch(&fby_chunk_of(p->space, page)->epoch);
}

/* Locks the blocks of the batch, up to the first that is busy. */
FBY_INLINE int begin_lock(struct fby_cache *p, struct fby_write *w, u64 sector, u32 nsectors, u32 flags)
{
	u32 head = (u32)(sector % FBY_PAGE_SECTORS);
	u64 block = sector / FBY_PAGE_SECTORS;

	w->npages = 0;
	w->nsectors = 0;
	while (nsectors > 0 && w->npages < FBY_BATCH_PAGES) {
		struct fby_wpage *g = &w->page[w->npages];
		u32 n = nsectors < FBY_PAGE_SECTORS - head ? nsectors : FBY_PAGE_SECTORS - head;

		g->block = block;
		g->bucket = fby_index_bucket(p, fby_key(w->volume, block));
		g->old = FBY_OLD_UNKNOWN;
		if (!fby_index_try(p, g->bucket))
			return w->npages ? FBY_DONE : FBY_WAIT_BLOCK;
		begin_prefetch(p, fby_load(&p->bucket[g->bucket]) & ~FBY_BUCKET_LOCK);
		if (flags & FBY_BEGIN_CACHED) {
			find_old(p, w, g);
			if (g->old == FBY_NO_PAGE) {
				fby_index_release(p, g->bucket);
				return w->npages ? FBY_DONE : FBY_ORIGIN;
			}
		}
		block++;
		g->mask = fby_mask(head, n);
		head = 0;
		nsectors -= n;
		w->nsectors += n;
		w->npages++;
	}
	return FBY_DONE;
}

/* Keeps the first n blocks of the batch and releases the others. */
FBY_INLINE void begin_shrink(struct fby_cache *p, struct fby_write *w, u32 n)
{
	while (w->npages > n) {
		struct fby_wpage *g = &w->page[--w->npages];

		w->nsectors -= fby_mask_count(g->mask);
		fby_index_release(p, g->bucket);
	}
}

/* Ends the batch before the first block that is being written past the cache. */
static void begin_bypassing(struct fby_cache *p, struct fby_write *w)
{
	u32 n = 0;

	while (n < w->npages && !fby_bypass_meets(&p->volume[w->volume], w->page[n].block))
		n++;
	begin_shrink(p, w, n);
}

static int count_wait(struct fby_cache *p, int decision)
{
	if (decision > FBY_DONE && decision <= FBY_WAIT_SPACE)
		fby_fetch_add(&p->waits[decision], 1ull);
	return decision;
}

static int begin_wait(struct fby_cache *p, struct fby_write *w, int decision)
{
	begin_shrink(p, w, 0);
	return count_wait(p, decision);
}

/* begin_slot of a grouped pool, where a volume has one slot. */
static struct fby_slot *slot_of_stream(struct fby_cache *p, struct fby_write *w, u32 flags, u32 *room, u32 *wake,
				       int *decision)
{
	struct fby_slot *s = fby_stream_slot(p->space, w->volume);

	*decision = FBY_WAIT_SLOT;
	if (!fby_slot_try(s))
		return NULL;
	*decision = fby_stream_pages_room(p->space, s, w->volume, flags, &w->first_page, room, wake);
	if (*decision != FBY_DONE) {
		fby_slot_give(p->space, s, wake);
		return NULL;
	}
	w->chunk = s->volume[w->volume].open;
	return s;
}

/* Takes a slot with room for at least a page, or so many.  NULL: *decision, and nothing is held. */
FBY_INLINE struct fby_slot *begin_slot(struct fby_cache *p, struct fby_write *w, u32 flags, u32 *room, u32 *wake,
				       int *decision)
{
	struct fby_slot *s;

	if (fby_unlikely(p->space->store.unit))
		return slot_of_stream(p, w, flags, room, wake, decision);
	s = fby_slot_take(p->space);
	if (fby_unlikely(!s)) {
		*decision = FBY_WAIT_SLOT;
		return NULL;
	}
	if (fby_unlikely(s->volume[w->volume].open == FBY_NO_CHUNK)) {
		s = fby_slot_open(p->space, s, w->volume, flags, wake, decision);
		if (!s)
			return NULL;
	}
	w->chunk = s->volume[w->volume].open;
	w->first_page = p->space->chunk[w->chunk].fill;
	FBY_ASSERT(p, w->first_page < p->space->store.chunk_pages);
	*room = p->space->store.chunk_pages - w->first_page;
	return s;
}

FBY_INLINE int begin(struct fby_cache *p, struct fby_write *w, u16 volume, enum fby_kind kind, u64 sector,
		     u32 nsectors, u32 flags)
{
	struct fby_slot *s;
	int decision;
	u32 room;

	w->volume = volume;
	w->kind = (u8)kind;
	w->wake = w->ticket = 0;
	decision = begin_lock(p, w, sector, nsectors, flags);
	if (decision == FBY_WAIT_BLOCK)
		return begin_wait(p, w, FBY_WAIT_BLOCK);
	if (decision != FBY_DONE)
		return decision;
	if (fby_unlikely(fby_load(&p->volume[volume].bypassing))) {
		begin_bypassing(p, w);
		if (w->npages == 0)
			return begin_wait(p, w, FBY_WAIT_BLOCK);
	}
	s = begin_slot(p, w, flags, &room, &w->wake, &decision);
	if (fby_unlikely(!s))
		return begin_wait(p, w, decision);
	begin_shrink(p, w, room < w->npages ? room : w->npages);
	w->slot = (u32)(s - p->space->slot);
	return FBY_DONE;
}

FBY_INLINE int begin_checked(struct fby_cache *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors)
{
	int decision = fby_request_check(p, volume, sector, nsectors, 1);

	if (fby_unlikely(decision != FBY_DONE))
		return decision;
	return begin(p, w, volume, FBY_KIND_DATA, sector, nsectors, 0);
}

/* Returns bytes [at, at + n) of the vector: a pointer into it, or a copy gathered in scratch. */
FBY_INLINE const u8 *vec_bytes(const struct fby_vec *vec, u32 nvec, u64 at, u32 n, u8 *scratch)
{
	u32 got = 0;

	for (u32 i = 0; i < nvec && got < n; i++) {
		const u8 *base = vec[i].base;
		u64 have = vec[i].len;
		u32 part;

		if (at >= have) {
			at -= have;
			continue;
		}
		part = have - at < n - got ? (u32)(have - at) : n - got;
		if (got == 0 && part == n)
			return base + at;
		fby_copy(scratch + got, base + at, part);
		got += part;
		at = 0;
	}
	FBY_ASSERT(scratch, got == n);
	return scratch;
}

/* Stores the sectors of mask from src, which holds them from sector base on. */
FBY_INLINE u32 store_runs(struct fby_cache *p, u32 page, u8 mask, u32 base, const u8 *src, bool checksum)
{
	const struct fby_store *st = &p->space->store;
	u32 crc = 0, s = 0, n;

	while ((n = fby_run(mask, s, &s)) != 0) {
		crc = media_data(st->media, fby_page_at(st, page) + s * FBY_SECTOR, src + (s - base) * FBY_SECTOR,
				 n * FBY_SECTOR, crc, checksum);
		s += n;
	}
	return crc;
}

/* Keeps the sectors of the cached page that this write does not cover.  True if the page's data,
 * now in scratch, has to be merged. */
static bool merge_old(struct fby_cache *p, const struct fby_write *w, struct fby_wpage *g, u8 *scratch)
{
	const struct fby_entry *e = &p->entry[g->old];
	u32 state = fby_load(&e->state);
	u8 keep = FBY_ES_VALID(state) & ~g->mask;

	g->lost = FBY_ES_LOST(state) & ~g->mask;
	if (state & FBY_ES_DAMAGED) {
		g->lost |= keep;
		return false;
	}
	if (keep == 0 || FBY_BUG(MERGE_LOSES_OLD))
		return false;
	if (FBY_ES_KIND(state) != FBY_KIND_DATA) {
		fby_zero(scratch, FBY_PAGE);
	} else if (fby_page_read(p, g->old, fby_key(w->volume, g->block), state, FBY_ES_VALID(state), 0, scratch,
				 !FBY_BUG(MERGE_UNVERIFIED)) != FBY_PAGE_OK) {
		g->lost |= keep;
		return false;
	}
	g->valid = g->mask | keep;
	return true;
}

/* Nothing but its checksum says whether a page of a group has arrived. */
static inline bool with_checksum(const struct fby_cache *p)
{
	return !fby_load(&p->space->opt.no_checksums) || p->space->store.unit;
}

FBY_INLINE void copy(struct fby_cache *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip)
{
	struct fby_slot *s = &p->space->slot[w->slot];
	/* Read once for the batch: the option may change before the commit. */
	bool checksum = with_checksum(p);

	for (u32 i = 0; i < w->npages; i++) {
		struct fby_wpage *g = &w->page[i];
		u32 page = fby_page_number(p->space, w->chunk, w->first_page + i);
		u32 n = fby_mask_count(g->mask);
		u32 first = (u32)__builtin_ctz(g->mask);
		const u8 *src;

		fby_prefetchw(&p->entry[page]);
		g->valid = g->mask;
		g->lost = 0;
		if (g->mask != 0xff)
			find_old(p, w, g);
		g->flags = checksum || w->kind != FBY_KIND_DATA ? 0 : FBY_PF_NOCRC;
		if (w->kind != FBY_KIND_DATA) {
			g->data_crc = 0;
		} else if (g->mask != 0xff && g->old != FBY_NO_PAGE && merge_old(p, w, g, s->scratch)) {
			u8 *at = s->scratch + first * FBY_SECTOR;

			src = vec_bytes(vec, nvec, skip, n * FBY_SECTOR, at);
			if (src != at)
				fby_copy(at, src, n * FBY_SECTOR);
			g->data_crc = store_runs(p, page, g->valid, 0, s->scratch, checksum);
			fby_count(&s->merges, 1);
		} else {
			src = vec_bytes(vec, nvec, skip, n * FBY_SECTOR, s->scratch);
			g->data_crc = store_runs(p, page, g->mask, first, src, checksum);
		}
		skip += n * FBY_SECTOR;
	}
}

/* Must the sequence numbers be above all those given out?  Yes if the replaced page may have a
 * higher one than the slot's next: otherwise the order of seq would differ from the order of
 * publishing, and recovery would choose the old page. */
FBY_INLINE bool commit_fresh(const struct fby_cache *p, const struct fby_slot *s, u32 chunk, u32 old)
{
	u32 c = fby_page_chunk(&p->space->store, old);

	return old != FBY_NO_PAGE && c != chunk && fby_load(&p->space->chunk[c].seq_max) >= s->seq_next;
}

FBY_INLINE void commit_line(struct fby_cache *p, const struct fby_write *w, const struct fby_wpage *g, u32 i,
			    struct fby_page_line *l)
{
	struct fby_chunk *ch = &p->space->chunk[w->chunk];
	u64 seq = w->seq + i;

	*l = (struct fby_page_line){
		.seq = seq,
		.block = g->block,
		.epoch = ch->epoch,
		.prev_block = ch->last_block,
		.chunk = w->chunk,
		.page = (u16)(w->first_page + i),
		.volume = w->volume,
		.batch_first = (u16)w->first_page,
		.batch_count = w->npages,
		.kind = w->kind,
		.valid = g->valid,
		.lost = g->lost,
		.flags = g->flags,
		.reserved = 0,
		.prev_seq = i > 0 ? seq - 1 : ch->last_block != FBY_NO_BLOCK ? ch->seq_last : 0,
		.data_crc = g->data_crc,
		.crc = 0,
	};
	fby_line_finish(p->space->store.line_seed, l);
	ch->last_block = g->block;
}

/* Counted before the fence: its wait hides these stores.  After the fence they would delay the
 * next write's data by 4 % of a write. */
static inline void count_write(struct fby_slot *s, const struct fby_write *w, bool user)
{
	fby_count(&s->commits, 1);
	fby_count(&s->media_bytes, (u64)w->npages * FBY_LINE + (u64)w->nsectors * FBY_SECTOR);
	if (user) {
		fby_count(&s->volume[w->volume].writes, 1);
		fby_count(&s->volume[w->volume].sectors, w->nsectors);
	}
}

/* Stores the headers from s->line, and fences.  In a grouped pool the pages have a ticket instead. */
FBY_INLINE void commit_lines(struct fby_cache *p, struct fby_write *w, struct fby_slot *s, u8 flags, bool user)
{
	/* Without a checksum the header vouches for the data, so the data must be durable first. */
	if (flags && !FBY_BUG(HEADER_BEFORE_DATA_NO_CRC))
		fby_fence_chunk(&p->space->store, w->chunk);
	media_lines(p->space->store.media, fby_line_at(&p->space->store, w->chunk, w->first_page), s->line,
		    w->npages * FBY_LINE);
	count_write(s, w, user);
	if (fby_unlikely(p->space->store.unit)) {
		w->ticket = fby_stream_pages_join(p->space, w->volume, w->chunk, s->line, w->npages);
		return;
	}
	/* The commit point: data and headers before the acknowledgement. */
	if (!FBY_BUG(WRITE_NO_FENCE))
		fby_fence_chunk(&p->space->store, w->chunk);
}

FBY_INLINE void commit(struct fby_cache *p, struct fby_write *w, bool user)
{
	struct fby_slot *s = &p->space->slot[w->slot];
	bool fresh = false;

	for (u32 i = 0; i < w->npages; i++) {
		find_old(p, w, &w->page[i]);
		fresh |= commit_fresh(p, s, w->chunk, w->page[i].old);
	}
	w->seq = fby_slot_seq(p->space, s, w->npages, fresh);
	for (u32 i = 0; i < w->npages; i++)
		commit_line(p, w, &w->page[i], i, &s->line[i]);
	commit_lines(p, w, s, w->page[0].flags, user);
}

/* Counts pages that become, or stop being, lost or clean.  It takes no pointers to the batch,
 * which need not be in memory. */
static void publish_counted(struct fby_cached *v, struct fby_slot_volume *by_slot, u32 before, bool was_clean,
			    bool now_lost, bool now_only)
{
	bool was_lost = FBY_ES_LOST(before) != 0 || (before & FBY_ES_DAMAGED);

	if (was_lost != now_lost)
		fby_fetch_add(&v->lost_blocks, was_lost ? ~0u : 1u);
	if (fby_lost_only(before) != now_only)
		fby_fetch_add(&v->lost_only, now_only ? 1u : ~0u);
	if (was_clean)
		fby_store_release(&by_slot->clean_replaced, by_slot->clean_replaced + 1);
}

#define COPIED 0x80u /* a flag next to enum fby_page_flags, set once the line is written */

/* In a grouped pool the page is in no chunk that is freed before its successor is durable. */
static void page_replaced(struct fby_cache *p, const struct fby_write *w, struct fby_slot *s, u32 old, bool copy)
{
	u64 *dead = &s->volume[w->volume].dead;

	fby_store_release(dead, fby_load(dead) + 1);
	fby_stream_replaces(p->space, w->volume, old, copy);
	if (FBY_BUG(PAGES_DEAD_AT_PUBLISH)) {
		u64 unused = 0;

		fby_page_dead(p->space, old, s->dead, &unused);
	}
}

FBY_INLINE void publish_page(struct fby_cache *p, const struct fby_write *w, struct fby_slot *s,
			     const struct fby_wpage *g, u32 page)
{
	u32 before = g->old == FBY_NO_PAGE ? 0 : fby_load(&p->entry[g->old].state);

	fby_index_put_locked(p, g->bucket, fby_key(w->volume, g->block), page,
			     FBY_ES(w->kind, g->valid, g->lost) |
			     (g->flags & COPIED ? FBY_ES_COPY | (before & FBY_ES_REFUSED) : 0), g->old);
	fby_index_release(p, g->bucket);
	if (fby_unlikely((before & FBY_ES_COUNTED) | g->lost))
		publish_counted(&p->volume[w->volume], &s->volume[w->volume], before,
				fby_page_is_clean(p, w->volume, g->old, before), g->lost != 0,
				g->lost != 0 && g->valid == 0);
	if (g->old == FBY_NO_PAGE)
		return;
	if (fby_unlikely(p->space->store.unit)) /* a cut may take the new page back */
		page_replaced(p, w, s, g->old, (g->flags & COPIED) || g->lost);
	else
		fby_page_dead(p->space, g->old, s->dead, &s->volume[w->volume].dead);
}

/* All pages are published. */
FBY_INLINE void publish_end(struct fby_cache *p, const struct fby_write *w, struct fby_slot *s, u32 *wake)
{
	struct fby_chunk *ch = &p->space->chunk[w->chunk];

	fby_store(&ch->fill, w->first_page + w->npages);
	ch->seq_last = w->seq + w->npages - 1;
	/* All that floor guarded is published: destage may pass it now. */
	fby_store_release(&s->floor, s->seq_next < s->seq_end ? s->seq_next : FBY_NO_SEQ);
	if (ch->fill == p->space->store.chunk_pages && fby_likely(!p->space->store.unit))
		fby_slot_close(p->space, s, w->volume, wake);
	fby_slot_release(s);
	*wake |= fby_load(&p->space->wait_mask) & (FBY_WAKE_SLOT | FBY_WAKE_BLOCK);
}

FBY_INLINE void publish(struct fby_cache *p, struct fby_write *w)
{
	struct fby_slot *s = &p->space->slot[w->slot];
	u32 page = fby_page_number(p->space, w->chunk, w->first_page);

	fby_count(&s->volume[w->volume].pages, w->npages);
	for (u32 i = 0; i < w->npages; i++)
		publish_page(p, w, s, &w->page[i], page + i);
	publish_end(p, w, s, &w->wake);
}

/* --- the steps one by one, and their sum: inlined, see slot.h --------------- */

int fby_begin(struct fby_cache *p, struct fby_write *w, u16 volume, enum fby_kind kind, u64 sector, u32 nsectors,
	      u32 flags)
{
	return begin(p, w, volume, kind, sector, nsectors, flags);
}

int fby_cache_write_begin(struct fby_cache *p, struct fby_write *w, u16 volume, u64 sector, u32 nsectors)
{
	int decision = begin_checked(p, w, volume, sector, nsectors);

	if (fby_unlikely(decision == -FBY_E_VOLUME_DETACHED))
		return fby_static_write_begin(p, w, volume, sector, nsectors);
	return decision;
}

void fby_cache_write_copy(struct fby_cache *p, struct fby_write *w, const struct fby_vec *vec, u32 nvec, u64 skip)
{
	if (fby_unlikely(w->npages == 0)) /* of a static volume, which has no other steps */
		fby_static_write_copy(p, w, vec, nvec, skip);
	else
		copy(p, w, vec, nvec, skip);
}

void fby_cache_write_commit(struct fby_cache *p, struct fby_write *w)
{
	if (fby_likely(w->npages))
		commit(p, w, true);
}

void fby_cache_write_publish(struct fby_cache *p, struct fby_write *w)
{
	if (fby_likely(w->npages))
		publish(p, w);
}

static int write_batches(struct fby_cache *p, u16 volume, u64 sector, u32 nsectors, const u8 *buf, u32 *done,
			 u32 *wake)
{
	const struct fby_vec vec = { buf, nsectors * FBY_SECTOR };
	struct fby_write w fby_uninitialized;

	do {
		int decision;

		w.wake = 0;
		decision = begin_checked(p, &w, volume, sector + *done, nsectors - *done);

		if (decision == -FBY_E_VOLUME_DETACHED)
			return fby_static_write(p, volume, sector, nsectors, buf, done, wake);
		if (decision != FBY_DONE) {
			*wake |= w.wake; /* it may have given back a slot or a chunk */
			return decision;
		}
		copy(p, &w, &vec, 1, (u64)*done * FBY_SECTOR);
		commit(p, &w, true);
		publish(p, &w);
		*done += w.nsectors;
		*wake |= w.wake;
	} while (*done < nsectors);
	return FBY_DONE;
}

/*
 * Writes a whole block from one piece of memory, as most writes do.  The steps are those above,
 * with nothing to split, gather or merge, and so without a batch in memory.
 */
FBY_INLINE int write_block(struct fby_cache *p, u16 volume, u64 block, const u8 *buf, u32 *wake)
{
	bool checksum = with_checksum(p);
	struct fby_write w = { .volume = volume, .kind = FBY_KIND_DATA, .npages = 1, .nsectors = FBY_PAGE_SECTORS };
	struct fby_wpage g = { .block = block, .old = FBY_OLD_UNKNOWN, .mask = 0xff, .valid = 0xff };
	int decision = FBY_WAIT_BLOCK;
	struct fby_slot *s = NULL;
	u32 page, room;

	g.bucket = fby_index_bucket(p, fby_key(volume, block));
	if (fby_unlikely(!fby_index_try(p, g.bucket)))
		return count_wait(p, FBY_WAIT_BLOCK);
	begin_prefetch(p, fby_load(&p->bucket[g.bucket]) & ~FBY_BUCKET_LOCK);
	if (fby_likely(!fby_load(&p->volume[volume].bypassing) || !fby_bypass_meets(&p->volume[volume], block)))
		s = begin_slot(p, &w, 0, &room, wake, &decision);
	if (fby_unlikely(!s)) {
		fby_index_release(p, g.bucket);
		return count_wait(p, decision);
	}
	page = fby_page_number(p->space, w.chunk, w.first_page);
	fby_prefetchw(&p->entry[page]);
	g.data_crc = media_data(p->space->store.media, fby_page_at(&p->space->store, page), buf, FBY_PAGE, 0, checksum);
	g.flags = checksum ? 0 : FBY_PF_NOCRC;
	find_old(p, &w, &g);
	w.seq = fby_slot_seq(p->space, s, 1, commit_fresh(p, s, w.chunk, g.old));
	commit_line(p, &w, &g, 0, &s->line[0]);
	commit_lines(p, &w, s, g.flags, true);
	fby_count(&s->volume[volume].pages, 1);
	publish_page(p, &w, s, &g, page);
	publish_end(p, &w, s, wake);
	return FBY_DONE;
}

int fby_cache_write(struct fby_cache *p, u16 volume, u64 sector, u32 nsectors, const void *buf, u32 *done, u32 *wake)
{
	int decision;

	/* Issued before any store: stores would wait for the last write's fence. */
	fby_prefetchw(&p->bucket[fby_index_bucket(p, fby_key(volume, sector / FBY_PAGE_SECTORS))]);
	if (fby_unlikely(nsectors != FBY_PAGE_SECTORS || sector % FBY_PAGE_SECTORS != 0))
		return write_batches(p, volume, sector, nsectors, buf, done, wake);
	decision = fby_request_check(p, volume, sector, nsectors, 1);
	if (fby_unlikely(decision != FBY_DONE)) /* refused, or a static volume: try again there */
		return write_batches(p, volume, sector, nsectors, buf, done, wake);
	decision = write_block(p, volume, sector / FBY_PAGE_SECTORS, buf, wake);
	if (fby_likely(decision == FBY_DONE))
		*done = nsectors;
	return decision;
}

/* Begins an entry of the engine's own that replaces page.  DONE with no page in w: page is not
 * the block's any more. */
static int begin_again(struct fby_cache *p, struct fby_write *w, u16 volume, u64 block, u32 page, u32 flags,
		       u32 *wake)
{
	int decision = fby_begin(p, w, volume, FBY_KIND_DATA, block * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS,
				 FBY_BEGIN_CACHED | flags);

	*wake |= w->wake;
	if (decision != FBY_DONE) {
		w->npages = 0;
		return decision == FBY_ORIGIN ? FBY_DONE : decision;
	}
	FBY_ASSERT(p, w->npages == 1);
	if (w->page[0].old != page) { /* overwritten since */
		w->npages = 0;
		fby_index_release(p, w->page[0].bucket);
		fby_slot_give(p->space, &p->space->slot[w->slot], wake);
	}
	return FBY_DONE;
}

static void finish_again(struct fby_cache *p, struct fby_write *w, u8 flags, u32 *wake)
{
	commit(p, w, false);
	w->page[0].flags |= flags;
	publish(p, w);
	*wake |= w->wake;
}

int fby_carry(struct fby_cache *p, u16 volume, u64 block, u32 page, bool damaged, u32 *slot,
	      u32 *wake)
{
	struct fby_write w fby_uninitialized;
	struct fby_wpage *g = &w.page[0];
	int decision = begin_again(p, &w, volume, block, page, FBY_BEGIN_RESERVE, wake);
	u32 state;

	*slot = ~0u;
	if (decision != FBY_DONE || w.npages == 0)
		return decision;
	state = fby_load(&p->entry[g->old].state);
	g->valid = 0;
	g->flags = 0;
	g->lost = FBY_ES_LOST(state) | (damaged ? FBY_ES_VALID(state) : 0);
	g->data_crc = 0;
	w.nsectors = 0;
	FBY_ASSERT(p, g->lost != 0);
	*slot = w.slot;
	finish_again(p, &w, 0, wake);
	return FBY_DONE;
}

int fby_move(struct fby_cache *p, u16 volume, u64 block, u32 page, u32 flags, u32 *slot, u32 *wake)
{
	bool checksum = with_checksum(p);
	struct fby_write w fby_uninitialized;
	struct fby_wpage *g = &w.page[0];
	u64 since_ns = fby_page_since(p, page);
	int decision = begin_again(p, &w, volume, block, page, flags, wake);
	struct fby_chunk *to;
	u32 state;
	u8 *data;

	*slot = ~0u;
	if (decision != FBY_DONE || w.npages == 0)
		return decision;
	data = p->space->slot[w.slot].scratch;
	state = fby_load(&p->entry[page].state);
	w.kind = (u8)FBY_ES_KIND(state);
	g->valid = FBY_ES_VALID(state);
	g->lost = FBY_ES_LOST(state);
	g->flags = 0;
	g->data_crc = 0;
	/* A lost or damaged page is not moved: destage and readers handle it. */
	if ((state & FBY_ES_DAMAGED) || (g->lost && !(flags & FBY_BEGIN_REFUSED)) ||
	    (w.kind == FBY_KIND_DATA && fby_page_read(p, page, fby_key(volume, g->block), state, g->valid, 0, data,
						      !FBY_BUG(MOVE_UNVERIFIED)) != FBY_PAGE_OK)) {
		fby_index_release(p, g->bucket);
		fby_slot_give(p->space, &p->space->slot[w.slot], wake);
		return FBY_DONE;
	}
	w.nsectors = w.kind == FBY_KIND_DATA ? fby_mask_count(g->valid) : 0;
	if (w.kind == FBY_KIND_DATA) {
		g->flags = checksum ? 0 : FBY_PF_NOCRC;
		g->data_crc = store_runs(p, fby_page_number(p->space, w.chunk, w.first_page), g->valid, 0, data,
					 checksum);
	}
	*slot = w.slot;
	to = &p->space->chunk[w.chunk];
	if (since_ns < fby_load(&to->copies_ns) && !(flags & FBY_BEGIN_REFUSED) && !FBY_BUG(KEPT_AGE_LOST)) /* before it may be closed, and freed */
		fby_store(&to->copies_ns, since_ns);
	finish_again(p, &w, COPIED, wake);
	return FBY_DONE;
}
