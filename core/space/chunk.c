// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * chunk.c - commit slots, the chunks they append to, and sequence numbers.
 *
 * A slot belongs to one writer at a time and has at most one chunk open for
 * each volume, so all entries of a chunk are of one volume: an origin that
 * fails holds back its own chunks and no other's.
 *
 * Sequence numbers are handed to slots in blocks, so writers do not share the counter's cache
 * line for each write.  Two rules keep that sound: a write takes a fresh block when its own
 * numbers might not exceed that of a page it replaces; and a slot publishes in floor a lower
 * bound of the numbers that it may still publish, which the destage cut respects.
 */
#include "space/slot.h"

/* When a chunk is opened, the hand moves over at most one chunk in this many of the pool. */
#define SWEEP_OPEN 16u
/* Counts of dead pages that are read under one lock: 3 us. */
#define SWEEP_COUNTS 4096u

void fby_slot_retire(struct fby_slot *s)
{
	FBY_ASSERT(s, fby_load(&s->busy) == 1);
	s->seq_next = s->seq_end = 0;
	fby_store_release(&s->floor, FBY_NO_SEQ);
}

/* --- lists ------------------------------------------------------------------------- */

void fby_chunk_list_append(struct fby_space *p, struct fby_owner *v, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	fby_owed_count(p, v, ~0u);
	ch->next = FBY_NO_CHUNK;
	ch->prev = v->last;
	if (v->last != FBY_NO_CHUNK)
		p->chunk[v->last].next = c;
	else
		v->first = c;
	v->last = c;
	fby_store(&v->nchunks, v->nchunks + 1);
	fby_owed_count(p, v, 1);
}

static void chunk_list_remove(struct fby_space *p, struct fby_owner *v, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	FBY_ASSERT(p, v->nchunks > 0);
	fby_owed_count(p, v, ~0u);
	if (ch->prev != FBY_NO_CHUNK)
		p->chunk[ch->prev].next = ch->next;
	else
		v->first = ch->next;
	if (ch->next != FBY_NO_CHUNK)
		p->chunk[ch->next].prev = ch->prev;
	else
		v->last = ch->prev;
	fby_store(&v->nchunks, v->nchunks - 1);
	fby_owed_count(p, v, 1);
}

void fby_chunk_to_free(struct fby_space *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	ch->state = FBY_CS_FREE;
	ch->owner = FBY_NO_OWNER;
	ch->next = FBY_NO_CHUNK;
	if (p->nfree == 0)
		p->free_first = c;
	else
		p->chunk[p->free_last].next = c;
	p->free_last = c;
	fby_store(&p->nfree, p->nfree + 1);
}

u16 *fby_dead_row(const struct fby_space *p, const struct fby_slot *s)
{
	return p->dead + (u64)(s ? (u32)(s - p->slot) : p->opt.nslots) * p->store.sb.nchunks;
}

static u16 dead_sum(const struct fby_space *p, u32 c)
{
	const u16 *n = p->dead + c;
	u16 sum = 0;

	/* Acquire: all work on its dead pages is complete. */
	for (u32 i = fby_dead_rows(&p->store.sb, p->opt.nslots); i > 0; i--, n += p->store.sb.nchunks)
		sum += fby_load_acquire(n);
	return sum;
}

u32 fby_chunk_live(const struct fby_space *p, u32 c)
{
	const struct fby_chunk *ch = &p->chunk[c];
	u16 dead = dead_sum(p, c) - ch->dead_base;
	u32 filled = fby_load(&ch->fill) - p->store.first_page;

	return filled > dead ? filled - dead : 0; /* while open, fill may lag behind */
}

void fby_chunk_give_back(struct fby_space *p, u32 c)
{
	u16 *dead = fby_dead_row(p, NULL);

	fby_store_release(&dead[c], (u16)(dead[c] + fby_chunk_live(p, c)));
}

/*
 * Pool lock held.  The pages of an empty chunk are superseded by durable ones
 * or below the watermark, so it may be opened again at once.
 */
static bool free_if_empty(struct fby_space *p, u32 c)
{
	struct fby_chunk *ch = &p->chunk[c];

	if (ch->state != FBY_CS_CLOSED || ch->pinned || p->owner[ch->owner].held || fby_chunk_live(p, c) != 0)
		return false;
	chunk_list_remove(p, &p->owner[ch->owner], c);
	fby_chunk_to_free(p, c);
	return true;
}

static void wake_waiting(struct fby_space *p, u32 *wake)
{
	*wake |= fby_fetch_and(&p->wait_mask, ~(u32)FBY_WAKE_SPACE) & FBY_WAKE_SPACE;
}

/* After chunks were freed.  Without that, fewer chunks are kept only after fby_entitle, which wakes,
 * too: a volume that opens a chunk takes one of those that were kept for it. */
static void wake_space(struct fby_space *p, u32 *wake)
{
	/* enough for a volume that has none; see fby_kept_free */
	if (fby_load(&p->nfree) > fby_first_leaves(p))
		wake_waiting(p, wake);
}

u32 fby_sweep_most(const struct fby_space *p)
{
	return SWEEP_COUNTS / (p->opt.nslots + 1);
}

/* Pool lock held.  Ends early when enough chunks are free. */
static bool sweep(struct fby_space *p, u32 n, u32 enough)
{
	bool freed = false;

	if (n > p->store.sb.nchunks)
		n = p->store.sb.nchunks;
	while (n-- > 0 && p->nfree <= enough) {
		freed |= free_if_empty(p, p->hand);
		p->hand = p->hand + 1 < p->store.sb.nchunks ? p->hand + 1 : 0;
	}
	return freed;
}

void fby_chunk_sweep(struct fby_space *p, u32 n, u32 *wake)
{
	bool freed;

	fby_lock(&p->lock);
	freed = sweep(p, n, ~0u);
	fby_unlock(&p->lock);
	if (freed)
		wake_space(p, wake);
}

/* A grouped pool may have chunks of logs alone; one of another kind would keep it from being opened. */
static u8 kind_of(const struct fby_space *p, u16 owner)
{
	return !fby_volumes_allowed(p) && !FBY_BUG(STREAM_REMOVED_OPENS) ? FBY_CHUNK_LOG : p->owner[owner].chunk_kind;
}

static u32 chunk_open(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, bool ahead, u32 *wake)
{
	struct fby_open_line l = { .magic = FBY_OPEN_MAGIC, .kind = kind_of(p, owner), .owner = owner };
	struct fby_chunk *ch;
	bool freed;
	u32 c, kept;

	fby_lock(&p->lock);
	freed = sweep(p, SWEEP_OPEN, ~0u);
	kept = fby_kept_free(p, owner, flags);
	/* It does not sweep the whole pool, or a full one would cost each writer that: the hand
	 * continues where it is, and destage's goes round while writers wait. */
	if (p->nfree <= kept) {
		freed |= sweep(p, fby_sweep_most(p), kept);
		kept = fby_kept_free(p, owner, flags);
	}
	if (p->nfree <= kept) {
		fby_unlock(&p->lock);
		if (freed)
			wake_space(p, wake);
		return FBY_NO_CHUNK;
	}
	c = p->free_first;
	ch = &p->chunk[c];
	p->free_first = ch->next;
	fby_store(&p->nfree, p->nfree - 1);
	if (freed)
		wake_space(p, wake);
	FBY_ASSERT(p, ch->state == FBY_CS_FREE && fby_chunk_live(p, c) == 0);
	ch->state = FBY_CS_OPEN;
	ch->owner = owner;
	if (FBY_BUG(OPEN_LINE_OF_BEFORE) && ch->kind != FBY_CHUNK_FREE)
		l.kind = ch->kind;
	ch->kind = kind_of(p, owner);
	fby_store(&ch->fill, p->store.first_page);
	ch->sealed = ch->tick_fill = p->store.first_page;
	ch->stays = false;
	if (p->store.unit && !FBY_BUG(ARRAY_OVERTAKES_OPEN))
		ch->pinned = FBY_PIN_GROUP; /* until its array is durable */
	ch->last_block = FBY_NO_BLOCK;
	fby_store(&ch->clean_for, 0u);
	fby_store(&ch->opened_ns, fby_load(&p->now_ns)); /* read without the lock */
	fby_store(&ch->copies_ns, FBY_NO_SEQ);
	/* Release: a thread that sees opens changed also sees earlier unlinks; one that sees the
	 * new epoch sees opens changed. */
	fby_store_release(&p->opens, p->opens + 1);
	fby_store(&ch->durable, p->store.first_page);
	if (!FBY_BUG(STALE_EPOCH))
		fby_store_release(&ch->epoch, ch->epoch + 1);
	fby_store(&ch->seq_max, FBY_NO_SEQ);
	ch->dead_base = dead_sum(p, c);
	fby_store(&ch->seq_min, fby_load(&p->seq));
	ch->seq_last = ch->seq_min;
	fby_chunk_list_append(p, &p->owner[owner], c);
	fby_count(&p->chunks_opened, 1);
	if (!ahead)
		fby_store(&s->volume[owner].open, c); /* a thread that finds the old chunk missing finds this one */
	fby_unlock(&p->lock);
	/* readers see the new epoch before any new byte, new entries after opens */
	fby_wmb();
	fby_slot_retire(s); /* so that no seq in the chunk is below seq_min */
	l.chunk = c;
	l.epoch = ch->epoch;
	l.seq_min = ch->seq_min;
	fby_line_finish(p->store.line_seed, &l);
	media_lines(p->store.media, fby_open_at(&p->store, c, l.epoch & 1), &l, FBY_LINE);
	if (fby_unlikely(p->store.unit))
		return c; /* its stream writes the line before the first group */
	/* Fenced before any page line: otherwise a crash could leave torn lines of the previous
	 * epoch under an open line that still states that epoch. */
	if (!FBY_BUG(OPEN_NO_FENCE))
		fby_fence_chunk(&p->store, c);
	return c;
}

/* Takes a slot that has a chunk of the volume open.  NULL: none has, or *busy: it could not be
 * taken. */
static struct fby_slot *slot_with_chunk(struct fby_space *p, u16 owner, bool *busy)
{
	*busy = false;
	for (u32 i = 0; i < p->opt.nslots; i++) {
		struct fby_slot *s = &p->slot[i];

		if (fby_load(&s->volume[owner].open) == FBY_NO_CHUNK)
			continue;
		if (!fby_slot_try(s)) {
			*busy = true;
			continue;
		}
		if (s->volume[owner].open != FBY_NO_CHUNK)
			return s;
		fby_slot_release(s);
	}
	return NULL;
}

u32 fby_slot_open_chunk(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, bool ahead, u32 *wake)
{
	u32 c = chunk_open(p, s, owner, flags, ahead, wake);

	fby_destage_look(p, owner);
	if (c == FBY_NO_CHUNK)
		return c;
	/* Writers of the volume, which may have none of the reserve, may use the room in it. */
	if (flags & (FBY_BEGIN_RESERVE | FBY_BEGIN_RELOCATE))
		wake_waiting(p, wake);
	if (fby_destage_due(p))
		*wake |= FBY_WAKE_DESTAGE;
	fby_owner_count(p, owner);
	fby_level_update(p, owner);
	return c;
}

/* Should the volume fill one chunk after the other, whatever slots its writers use?  Of its
 * entitled chunks, the others are for the time in which one is destaged.  With few chunks this
 * begins before the pool is full; otherwise the chunks open in its slots would become full all at
 * once. */
static bool one_by_one(const struct fby_space *p, u16 owner)
{
	return fby_starved(p) ||
	       (fby_short(p) && fby_load(&p->owner[owner].nchunks) <= 2 * p->entitled);
}

/* If the volume gets no chunk, there may be room in that of another slot. */
struct fby_slot *fby_slot_open(struct fby_space *p, struct fby_slot *s, u16 owner, u32 flags, u32 *wake,
			       int *decision)
{
	struct fby_slot *other = NULL;
	bool busy = false;

	FBY_ASSERT(p, s->volume[owner].open == FBY_NO_CHUNK);
	if (one_by_one(p, owner))
		other = slot_with_chunk(p, owner, &busy);
	if (!other && !busy) {
		if (fby_slot_open_chunk(p, s, owner, flags, false, wake) != FBY_NO_CHUNK)
			return s;
		/* The previous holder may have opened one since. */
		other = slot_with_chunk(p, owner, &busy);
	}
	if (busy) /* whoever has the other one tells */
		fby_slot_release(s);
	else
		fby_slot_give(p, s, wake);
	*decision = busy ? FBY_WAIT_SLOT : FBY_WAIT_SPACE;
	return other;
}

void fby_chunk_seal_store(struct fby_space *p, u32 c, bool closed)
{
	struct fby_chunk *ch = &p->chunk[c];
	struct fby_seal_line l = { .magic = FBY_SEAL_MAGIC, .chunk = c };

	l.fill = (u16)ch->fill;
	l.closed = closed;
	l.owner = ch->owner;
	l.kind = ch->kind;
	l.counter = ++ch->seal_counter;
	l.epoch = ch->epoch;
	l.seq_max = ch->seq_last;
	l.last_block = ch->last_block;
	fby_line_finish(p->store.line_seed, &l);
	media_lines(p->store.media, fby_seal_at(&p->store, c, l.counter & 1), &l, FBY_LINE);
	if (!FBY_BUG(SEAL_ONE_COPY))
		media_lines(p->store.media, fby_seal_at(&p->store, c, (l.counter & 1) + FBY_SEALS / 2), &l, FBY_LINE);
}

void fby_chunk_seal(struct fby_space *p, u32 c, bool closed)
{
	struct fby_chunk *ch = &p->chunk[c];

	fby_chunk_seal_store(p, c, closed);
	/* Ordered before the chunk can be freed and sealed again by another CPU, whose store this
	 * one must not overtake. */
	fby_settle_line(&p->store, c, fby_seal_at(&p->store, c, 0));
	fby_store(&ch->sealed, ch->fill);
}

/* In a grouped pool each group settles those before it, and there is no seal of an open chunk.
 * Damage of a log's last group is told by the log's own counters. */
static void seal_stream(struct fby_space *p, struct fby_slot *s, u16 owner, bool before)
{
	u32 wake = 0;

	if (p->owner[owner].chunk_kind != FBY_CHUNK_CACHE || !fby_volumes_allowed(p) || fby_stream_slot(p, owner) != s)
		return;
	(void)fby_stream_settle(p, s, owner, before ? FBY_SETTLE_TICK : FBY_SETTLE_PAGES, &wake);
	if (wake)
		fby_fetch_or(&p->wake_owed, wake);
}

void fby_slot_seal(struct fby_space *p, struct fby_slot *s, u16 owner, bool before)
{
	u32 c = s->volume[owner].open, fill;
	struct fby_chunk *ch;

	if (fby_unlikely(p->store.unit)) {
		seal_stream(p, s, owner, before);
		return;
	}
	if (c == FBY_NO_CHUNK)
		return;
	ch = &p->chunk[c];
	fill = fby_load(&ch->fill);
	if (fby_load(&ch->sealed) < (before ? ch->tick_fill : fill))
		fby_chunk_seal(p, c, false);
	if (before)
		ch->tick_fill = fill;
}

void fby_slot_close(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake)
{
	u32 c = s->volume[owner].open;
	struct fby_chunk *ch;
	bool freed;

	FBY_ASSERT(s, fby_load(&s->busy) == 1);
	if (fby_unlikely(p->store.unit)) {
		if (fby_stream_slot(p, owner) == s)
			(void)fby_stream_leave(p, s, owner, wake);
		return;
	}
	if (c == FBY_NO_CHUNK)
		return;
	ch = &p->chunk[c];
	fby_chunk_seal(p, c, true);
	fby_store(&s->volume[owner].open, FBY_NO_CHUNK);
	fby_store(&ch->seq_max, ch->seq_last);
	fby_lock(&p->lock);
	ch->state = FBY_CS_CLOSED;
	freed = free_if_empty(p, c);
	fby_unlock(&p->lock);
	if (freed) {
		wake_space(p, wake);
	} else if (fby_starved(p)) { /* it should be freed before the next one is full */
		fby_destage_look(p, owner);
		*wake |= FBY_WAKE_DESTAGE;
	}
}

void fby_slot_age(struct fby_space *p, struct fby_slot *s, u16 owner, u32 *wake)
{
	u32 c = s->volume[owner].open;
	struct fby_chunk *ch;
	bool newest;

	if (c == FBY_NO_CHUNK)
		return;
	ch = &p->chunk[c];
	if (ch->kind != FBY_CHUNK_CACHE || ch->seq_last > fby_load(&p->owner[owner].rec.watermark))
		return;
	fby_lock(&p->lock);
	newest = ch->next == FBY_NO_CHUNK;
	fby_unlock(&p->lock);
	if (!newest && fby_load(&p->opt.max_age_ns)) {
		fby_slot_close(p, s, owner, wake);
		return;
	}
	fby_store(&ch->opened_ns, fby_load(&p->now_ns));
	fby_store(&ch->copies_ns, FBY_NO_SEQ);
}

/* Pool lock held. */
static bool unpin(struct fby_space *p, u32 c, enum fby_pin pin)
{
	p->chunk[c].pinned &= (u8)~pin;
	return free_if_empty(p, c);
}

void fby_chunk_unpin(struct fby_space *p, u32 c, enum fby_pin pin, u32 *wake)
{
	bool freed;

	fby_lock(&p->lock);
	freed = unpin(p, c, pin);
	fby_unlock(&p->lock);
	if (freed)
		wake_space(p, wake);
}

u32 fby_chunk_walk(struct fby_space *p, u16 owner, u32 after, u32 *wake)
{
	bool freed = false;
	u32 c;

	fby_lock(&p->lock);
	c = after == FBY_NO_CHUNK ? p->owner[owner].first : p->chunk[after].next;
	if (c != FBY_NO_CHUNK)
		p->chunk[c].pinned |= FBY_PIN_WALK;
	if (after != FBY_NO_CHUNK)
		freed = unpin(p, after, FBY_PIN_WALK);
	fby_unlock(&p->lock);
	if (freed)
		wake_space(p, wake);
	return c;
}

void fby_chunk_walk_end(struct fby_space *p, u32 at, u32 *wake)
{
	if (at != FBY_NO_CHUNK)
		fby_chunk_unpin(p, at, FBY_PIN_WALK, wake);
}
