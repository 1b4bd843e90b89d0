// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * append.c - appends an entry: the protocol of a page write (cache/write.c), with one
 * fence.  Body and header are stored in any order; the checksums of both tell recovery
 * whether all of it arrived.
 *
 * An entry gets its place in the log before its first store to the media.  A locked instruction
 * waits for all earlier stores, so after those of the body it would act as a second fence.
 */
#include "log/logs.h"
#include "space/slot.h"

static const int refused[] = {
	[FBY_LOG_OK] = FBY_DONE,
	[FBY_LOG_OBSOLETE] = -FBY_E_LOG_OBSOLETE,
	[FBY_LOG_SKIPS] = -FBY_E_LOG_SKIPS,
	[FBY_LOG_BACKWARDS] = -FBY_E_LOG_BACKWARDS,
	[FBY_LOG_FULL] = -FBY_E_NUMBERS,
};

bool fby_logs_in_flight(const struct fby_logs *p, u16 log)
{
	for (u32 i = 0; i < p->space->opt.nslots; i++)
		if (fby_load_acquire(&p->space->slot[i].log) == log)
			return true;
	return false;
}

/* Called before a slot is taken: a refused append opens no chunk, and waits for none. */
static int append_check(const struct fby_logs *p, u16 log, u64 txg, u64 length)
{
	const struct fby_log *l;

	if (log >= p->space->store.sb.nvolumes || p->space->owner[log].rec.kind != FBY_OWNER_LOG)
		return -FBY_E_NO_LOG;
	l = &p->log[log];
	if (p->space->opt.read_only)
		return -FBY_E_READ_ONLY;
	if (!p->space->usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	if (length > fby_entry_most(&p->space->store))
		return -FBY_E_LOG_TOO_LARGE;
	if (txg >= FBY_NUMBER_START)
		return -FBY_E_LOG_SKIPS;
	if (!(fby_load(&l->gate) & FBY_GATE_OPEN))
		return fby_logs_shut(p, log);
	return refused[fby_log_admit(fby_load(&l->synced), txg)];
}

static u64 length_of(const struct fby_vec *vec, u32 nvec)
{
	u64 n = 0;

	for (u32 i = 0; i < nvec; i++)
		n += vec[i].len;
	return n;
}

static u32 free_line(const struct fby_logs *p, u32 c)
{
	return fby_log_line_of(&p->space->store, p->space->chunk[c].fill);
}

/* Returns the line of its open chunk at which the next entry of the log begins. */
FBY_INLINE u32 next_line(const struct fby_logs *p, u16 log, u32 c)
{
	return fby_unlikely(p->space->store.unit) ? fby_stream_line(p->space, log) : free_line(p, c);
}

void fby_logs_chunk_begin(struct fby_logs *p, u32 c)
{
	struct fby_chunk *ch = &p->space->chunk[c];

	if (ch->fill != p->space->store.first_page)
		return;
	ch->seq_last = 0; /* highest txg */
	ch->last_block = 0; /* entries */
	p->chunk[c] = (struct fby_log_chunk){ 0 };
}

static void append_release(struct fby_logs *p, struct fby_slot *s, u32 *wake)
{
	fby_slot_give(p->space, s, wake);
}

/* After the log has ended, the slot must leave no chunk open: the thread that ended it has
 * already checked, and the next owner of this place in the table may be a volume. */
static void refuse(struct fby_logs *p, struct fby_slot *s, u16 log, u32 *wake)
{
	fby_slot_close(p->space, s, log, wake);
	append_release(p, s, wake);
}

/* Chooses the slot in a grouped pool, where a log has one. */
static struct fby_slot *slot_of_stream(struct fby_logs *p, u16 log, u32 lines, u32 *wake, int *decision)
{
	struct fby_slot *s = fby_stream_slot(p->space, log);

	*decision = FBY_WAIT_SLOT;
	if (!fby_slot_try(s))
		return NULL;
	/* Whoever ends or removes the log shuts the gate first, and then needs the slot: so no chunk
	 * is opened for a log that is no more. */
	if (fby_unlikely(!(fby_load(&p->log[log].gate) & FBY_GATE_OPEN)) && !FBY_BUG(STREAM_REMOVED_OPENS))
		*decision = -FBY_E_LOG_STATE;
	else
		*decision = fby_stream_room(p->space, s, log, lines, wake);
	if (*decision != FBY_DONE) {
		append_release(p, s, wake);
		return NULL;
	}
	fby_logs_chunk_begin(p, s->volume[log].open);
	return s;
}

/* Returns a slot with so many lines free in its open chunk of the log.  NULL: *decision. */
static struct fby_slot *slot_with_room(struct fby_logs *p, u16 log, u32 lines, u32 *wake, int *decision)
{
	struct fby_slot *s;

	if (fby_unlikely(p->space->store.unit))
		return slot_of_stream(p, log, lines, wake, decision);
	s = fby_slot_take(p->space);
	if (!s) {
		*decision = FBY_WAIT_SLOT;
		return NULL;
	}
	/* If chunks are scarce, the chunk that another slot has open is handed over; it may be as
	 * full. */
	for (u32 i = 0; i < 3; i++) {
		if (s->volume[log].open == FBY_NO_CHUNK) {
			s = fby_slot_open(p->space, s, log, 0, wake, decision);
			if (!s)
				return NULL;
		}
		if (fby_unlikely(p->space->chunk[s->volume[log].open].kind != FBY_CHUNK_LOG)) {
			refuse(p, s, log, wake);
			*decision = -FBY_E_NO_LOG; /* it was removed meanwhile */
			return NULL;
		}
		fby_logs_chunk_begin(p, s->volume[log].open);
		if (free_line(p, s->volume[log].open) + lines <= fby_log_lines(&p->space->store))
			return s;
		fby_slot_close(p->space, s, log, wake);
	}
	append_release(p, s, wake);
	*decision = FBY_WAIT_SLOT;
	return NULL;
}

/* Stores the body from line on; returns its checksum, which includes the zeroes to the line's
 * end. */
static u32 store_body(const struct fby_store *st, u64 at, const struct fby_vec *vec, u32 nvec, u8 *scratch)
{
	u32 crc = 0, held = 0; /* bytes of a line in scratch */

	for (u32 i = 0; i < nvec; i++) {
		const u8 *src = vec[i].base;
		u32 n = vec[i].len, part;

		if (held) {
			part = n < FBY_LINE - held ? n : FBY_LINE - held;
			fby_copy(scratch + held, src, part);
			held += part;
			src += part;
			n -= part;
			if (held < FBY_LINE)
				continue;
			crc = media_data(st->media, at, scratch, FBY_LINE, crc, true);
			at += FBY_LINE;
			held = 0;
		}
		part = n & ~(FBY_LINE - 1);
		if (part)
			crc = media_data(st->media, at, src, part, crc, true);
		at += part;
		held = n - part;
		fby_copy(scratch, src + part, held);
	}
	if (held) {
		fby_zero(scratch + held, FBY_LINE - held);
		crc = media_data(st->media, at, scratch, FBY_LINE, crc, true);
	}
	return crc;
}

/* Generation gen ends: entries that slots have counted in it count for the next one. */
static void next_generation(struct fby_logs *p, u16 log)
{
	struct fby_log *l = &p->log[log];

	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		const struct fby_log_part *part = fby_log_part(p, i, log);

		if (part->gen == l->gen)
			fby_log_count_all(&l->live, &part->live);
	}
	l->last = l->live;
	l->gen++;
}

/* For an append that has to wait before begin_generation: the next append begins a generation. */
static void want_generation(struct fby_logs *p, u16 log)
{
	struct fby_log *l = &p->log[log];

	fby_lock(&l->lock);
	if (fby_load(&l->gate) & FBY_GATE_OPEN)
		fby_fetch_or(&l->gate, (u32)FBY_GATE_NEXT);
	fby_unlock(&l->lock);
}

/* Called while the slot is not in flight.  DONE: it is in flight, in a generation of its own if
 * it should begin one, or in one that another has begun. */
static int begin_generation(struct fby_logs *p, u16 log, struct fby_slot *s, bool new_generation)
{
	struct fby_log *l = &p->log[log];
	int decision = FBY_DONE;

	fby_lock(&l->lock);
	if (!(fby_load(&l->gate) & FBY_GATE_OPEN)) {
		decision = -FBY_E_LOG_STATE;
	} else if (new_generation || (fby_load(&l->gate) & FBY_GATE_NEXT)) {
		/* Whoever comes from now on takes this branch, and the first to find no entry in
		 * flight begins the generation: nobody depends on the one who wanted it. */
		fby_fetch_or(&l->gate, (u32)FBY_GATE_NEXT);
		fby_mb_after_atomic();
		if (fby_logs_in_flight(p, log) && !FBY_BUG(GENERATION_NOT_WAITED))
			decision = FBY_WAIT_SLOT;
		else
			next_generation(p, log);
	}
	if (decision == FBY_DONE) {
		fby_store_release(&s->log, log);
		fby_fetch_and(&l->gate, ~(u32)FBY_GATE_NEXT);
	}
	fby_unlock(&l->lock);
	return decision;
}

/* Puts the slot's entry in flight, in the present generation or a new one. */
FBY_INLINE int enter(struct fby_logs *p, u16 log, struct fby_slot *s, bool new_generation)
{
	struct fby_log *l = &p->log[log];

	if (!new_generation) {
		(void)fby_cmpxchg(&s->log, (u32)FBY_NO_OWNER, (u32)log);
		fby_mb_after_atomic();
		if (fby_likely(fby_load_acquire(&l->gate) == FBY_GATE_OPEN))
			return FBY_DONE;
		fby_store_release(&s->log, FBY_NO_OWNER);
	}
	return begin_generation(p, log, s, new_generation);
}

/* Chooses the entry's place in the log.  Slot in flight. */
FBY_INLINE int take_order(struct fby_logs *p, u16 log, u32 slot, u64 txg, struct fby_log_entry *e)
{
	struct fby_log_part *part = fby_log_part(p, slot, log);
	const struct fby_log *l = &p->log[log];
	int decision = refused[fby_log_admit(fby_load_acquire(&l->synced), txg)];

	if (fby_unlikely(decision != FBY_DONE))
		return decision;
	if (fby_unlikely(part->gen != l->gen))
		*part = (struct fby_log_part){ .gen = l->gen };
	if (!fby_log_count(&part->live, txg))
		return -FBY_E_LOG_OBSOLETE; /* synced since */
	e->txg = txg;
	e->gen = l->gen;
	e->id = part->entries++ * p->space->opt.nslots + slot + 1;
	/* Only after the entry is in flight: the log may have been another's until then. */
	fby_copy(e->guid, l->guid, sizeof(e->guid));
	if (!FBY_BUG(COUNTERS_NOT_STORED))
		e->before = l->last;
	return FBY_DONE;
}

/* Fills the header, except the place in the log and checksums. */
FBY_INLINE void append_header(const struct fby_logs *p, struct fby_append *a, u32 length)
{
	struct fby_log_entry *e = &a->entry;

	*e = (struct fby_log_entry){
		.magic = FBY_ENTRY_MAGIC,
		.chunk = a->chunk,
		.line = next_line(p, a->log, a->chunk),
		.length = length,
		.epoch = p->space->chunk[a->chunk].epoch,
		.log = a->log,
		.previous = p->chunk[a->chunk].last_line,
	};
}

FBY_INLINE int append_begin(struct fby_logs *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			    const struct fby_vec *vec, u32 nvec, u32 *wake)
{
	u64 length = length_of(vec, nvec);
	int decision = append_check(p, log, txg, length);
	struct fby_slot *s;
	u64 at;

	if (decision != FBY_DONE)
		return decision;
	s = slot_with_room(p, log, fby_entry_lines((u32)length), wake, &decision);
	if (!s) {
		if (new_generation && decision > FBY_DONE)
			want_generation(p, log);
		return decision;
	}
	a->log = log;
	a->slot = (u32)(s - p->space->slot);
	a->chunk = s->volume[log].open;
	append_header(p, a, (u32)length);
	decision = enter(p, log, s, new_generation);
	if (fby_likely(decision == FBY_DONE)) {
		decision = take_order(p, log, a->slot, txg, &a->entry);
		if (fby_unlikely(decision != FBY_DONE))
			fby_store_release(&s->log, FBY_NO_OWNER);
	}
	if (fby_unlikely(decision != FBY_DONE)) {
		if (decision == -FBY_E_LOG_STATE)
			refuse(p, s, log, wake);
		else
			append_release(p, s, wake);
		return decision;
	}
	at = fby_log_line_at(&p->space->store, a->chunk, a->entry.line + FBY_ENTRY_LINES);
	a->entry.body_crc = store_body(&p->space->store, at, vec, nvec, s->scratch);
	return FBY_DONE;
}

/* Updates the chunk and the counts: before the fence, whose wait hides these stores. */
FBY_INLINE void append_count(struct fby_logs *p, struct fby_slot *s, const struct fby_append *a, u32 lines)
{
	struct fby_chunk *ch = &p->space->chunk[a->chunk];

	p->chunk[a->chunk].last_line = a->entry.line;
	ch->last_block++;
	if (a->entry.txg > ch->seq_last)
		ch->seq_last = a->entry.txg;
	fby_store(&ch->fill, fby_log_fill_of(&p->space->store, a->entry.line + lines));
	fby_count(&s->commits, 1);
	fby_count(&s->media_bytes, (u64)lines * FBY_LINE);
	fby_count(&s->volume[a->log].writes, 1);
	fby_count(&s->volume[a->log].bytes, a->entry.length);
}

FBY_INLINE void append_commit(struct fby_logs *p, struct fby_append *a, struct fby_log_name *name, u32 *wake)
{
	const struct fby_store *st = &p->space->store;
	struct fby_slot *s = &p->space->slot[a->slot];
	u32 lines = fby_entry_lines(a->entry.length);
	u64 at = fby_log_line_at(st, a->chunk, a->entry.line);

	fby_log_entry_finish(st, &a->entry);
	media_lines(st->media, at, &a->entry, FBY_ENTRY_BYTES);
	*name = (struct fby_log_name){ a->entry.gen, a->entry.id, 0 };
	if (fby_unlikely(st->unit))
		name->ticket = fby_stream_join(p->space, a->log, a->chunk, a->entry.line, lines, a->entry.txg);
	append_count(p, s, a, lines);
	/* The commit point, unless the entry has a ticket. */
	if (!FBY_BUG(APPEND_NO_FENCE) && fby_likely(!st->unit))
		media_fence(st->media, at, (u64)lines * FBY_LINE);
	/* A thread that finds the slot without an entry of the log knows that the entry is
	 * durable. */
	fby_store_release(&s->log, FBY_NO_OWNER);
	append_release(p, s, wake);
}

/* --- the steps one by one, and their sum ----------------------------------------- */

int fby_logs_append_begin(struct fby_logs *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			  const struct fby_vec *vec, u32 nvec, u32 *wake)
{
	return append_begin(p, a, log, txg, new_generation, vec, nvec, wake);
}

void fby_logs_append_commit(struct fby_logs *p, struct fby_append *a, struct fby_log_name *name, u32 *wake)
{
	append_commit(p, a, name, wake);
}

int fby_logs_append(struct fby_logs *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		    struct fby_log_name *name, u32 *wake)
{
	struct fby_append a fby_uninitialized;
	int decision = append_begin(p, &a, log, txg, new_generation, vec, nvec, wake);

	if (decision == FBY_DONE)
		append_commit(p, &a, name, wake);
	return decision;
}
