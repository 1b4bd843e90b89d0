// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * share.c - the share of a static volume: its layout, its head, and the eras.
 *
 * A page that fails its checksum is damaged, or a torn write that was never acknowledged.  The
 * era in its tag distinguishes them: the head says which eras are settled, so that none of their
 * writes can be torn.  The era in which a pool was killed is not settled.  It remains a window
 * until all slots were examined (the survey) and torn pages are removed.  So nothing has to be
 * examined before a volume is used.
 */
#include "static/static.h"

#define BREATH_SLOTS 4096u /* between two breaths of a loop over all slots */

/* --- where it is ------------------------------------------------------------------ */

/* Includes the head's copy. */
static u64 lines_bytes(u64 slots)
{
	return fby_round_up(slots * FBY_LINE + FBY_STATIC_HEAD, FBY_PAGE);
}

static u64 used_by(u64 slots)
{
	return FBY_PAGE + lines_bytes(slots) + slots * FBY_STATIC_WAYS * FBY_PAGE;
}

u32 fby_static_slots(u64 bytes)
{
	u64 slots = bytes >> 13;

	/* Rounds to a few too few: a line is 1/128 of a slot's pages. */
	slots -= slots >> 7;
	while (slots && used_by(slots) > bytes)
		slots--;
	while (used_by(slots + 1) <= bytes)
		slots++;
	return slots < 1u << 31 ? (u32)slots : 0;
}

u32 fby_static_far_slot(u64 block, u32 slots)
{
	u32 slot = (u32)(block >> 32) % slots;

	for (u32 bit = 32; bit-- > 0;) {
		slot = slot << 1 | ((u32)(block >> bit) & 1);
		if (slot >= slots)
			slot -= slots;
	}
	return slot;
}

static u64 bytes_of(u32 slots)
{
	return fby_round_up(used_by(slots), FBY_STATIC_UNIT);
}

bool fby_share_find(const struct fby_statics *p, u64 bytes, u32 *first)
{
	const struct fby_store *st = &p->space->store;
	u64 at = 0, begin, end;
	bool moved;

	do {
		moved = false;
		for (u32 i = 0; i < st->sb.nvolumes; i++) {
			const struct fby_static_record *r = &p->space->owner[i].share;

			if (r->kind != FBY_OWNER_STATIC)
				continue;
			begin = (u64)r->first * FBY_STATIC_UNIT;
			end = begin + bytes_of(r->slots);
			if (at < end && begin < at + bytes) {
				at = end;
				moved = true;
			}
		}
	} while (moved);
	*first = (u32)(at / FBY_STATIC_UNIT);
	return bytes <= st->sb.static_bytes && at <= st->sb.static_bytes - bytes;
}

/* Computes the places from the record; false: the share does not lie within the pool. */
static bool locate(const struct fby_statics *p, struct fby_static *v, const struct fby_static_record *r)
{
	const struct fby_store *st = &p->space->store;
	u64 begin = (u64)r->first * FBY_STATIC_UNIT;

	if (!p->nstripes) /* and no room for v */
		return false;
	v->bytes = bytes_of(r->slots);
	if (v->bytes > st->sb.static_bytes || begin > st->sb.static_bytes - v->bytes)
		return false;
	v->at = fby_shares_at(st) + begin;
	v->lines = v->at + FBY_PAGE;
	v->pages = v->lines + lines_bytes(r->slots);
	v->slots = r->slots;
	v->blocks = (r->origin_sectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	v->tail = (u8)(0xffu >> (v->blocks * FBY_PAGE_SECTORS - r->origin_sectors));
	v->bit = r->first;
	v->stripe = v->bit * FBY_GROUP_SLOTS;
	v->seed = fby_crc32c(st->line_seed, r->uuid, sizeof(r->uuid));
	return true;
}

/* --- head ---------------------------------------------------------------------------- */

static u64 head_at(const struct fby_static *v, u32 copy)
{
	return copy ? v->pages - FBY_STATIC_HEAD : v->at;
}

static u32 head_crc(const struct fby_static *v, const struct fby_static_head *h)
{
	return fby_crc32c(v->seed, h, __builtin_offsetof(struct fby_static_head, crc));
}

static bool head_sane(const struct fby_static *v, const struct fby_static_head *h)
{
	if (h->magic != FBY_STATIC_MAGIC || h->slots != v->slots || h->counter >= FBY_NUMBER_START ||
	    h->limit > FBY_ERA_MAX || h->settled > h->limit || h->nwindows > FBY_STATIC_WINDOWS)
		return false;
	for (u32 i = 0; i < h->nwindows; i++)
		if (h->window[i].after > h->window[i].upto || h->window[i].upto > h->settled)
			return false;
	return true;
}

static bool head_read_one(const struct fby_statics *p, const struct fby_static *v, u32 copy,
			  struct fby_static_head *out)
{
	u32 unused = 0;

	return media_read_crc(p->space->store.media, out, head_at(v, copy), sizeof(*out), &unused) &&
	       head_crc(v, out) == out->crc && head_sane(v, out);
}

static bool head_read(const struct fby_statics *p, struct fby_static *v)
{
	struct fby_static_head a, b;
	bool a_ok = head_read_one(p, v, 0, &a), b_ok = head_read_one(p, v, 1, &b);

	v->head = a_ok && (!b_ok || a.counter >= b.counter) ? a : b;
	return a_ok || b_ok;
}

static void head_write(const struct fby_statics *p, struct fby_static *v)
{
	struct fby_static_head other;
	/* The one that counts is written last: a cut may have left the other torn. */
	u32 first = !head_read_one(p, v, 1, &other) || other.counter < v->head.counter;

	v->head.counter++;
	v->head.crc = head_crc(v, &v->head);
	for (u32 i = 0; i < 2; i++) {
		u64 at = head_at(v, first ^ i);

		media_lines(p->space->store.media, at, &v->head, sizeof(v->head));
		media_fence(p->space->store.media, at, sizeof(v->head));
	}
}

/* Formats lines that say that nothing was ever written. */
static void lines_format(struct fby_statics *p, struct fby_static *v)
{
	struct fby_media *m = p->space->store.media;
	struct fby_static_line l;

	fby_zero(&l, sizeof(l));
	for (u32 slot = 0; slot < v->slots; slot++) {
		fby_static_say(v, slot, 0, &l);
		media_lines(m, fby_static_line_at(v, slot), &l, sizeof(l));
		if (slot % BREATH_SLOTS == 0)
			fby_breathe();
	}
	media_fence(m, v->at, v->bytes);
}

void fby_share_format(struct fby_statics *p, const struct fby_static_record *r, u32 flush_us)
{
	struct fby_static *v = &p->volume[r->index];

	if (!locate(p, v, r))
		return;
	lines_format(p, v);
	fby_zero(&v->head, sizeof(v->head));
	v->head.magic = FBY_STATIC_MAGIC;
	v->head.flags = FBY_STATIC_CLEAN | FBY_STATIC_COUNTED;
	v->head.slots = v->slots;
	v->head.flush_us = flush_us;
	fby_copy(v->head.uuid, r->uuid, sizeof(r->uuid));
	head_write(p, v);
	v->nwindows = 0;
	v->sound = true;
}

/* --- eras ------------------------------------------------------------------------------- */

static u64 writes_so_far(const struct fby_static *v)
{
	u64 n = 0;

	for (u32 i = 0; i < FBY_STATIC_COUNTS; i++)
		n += fby_load(&v->count[i].writes);
	return n;
}

u64 fby_static_live(const struct fby_static *v)
{
	u64 n = 0;

	for (u32 i = 0; i < FBY_STATIC_COUNTS; i++)
		n += fby_load(&v->count[i].live);
	/* The count is doubtful, or changed while it was added up. */
	return n >> 63 ? 0 : n;
}

/* Has each writer that may have seen the previous era ended?  A writer that takes a stripe after
 * the era has advanced sees the new one.  So each stripe must be seen once without a writer, or
 * with a later one than at first: a continuous stream of writers does not matter. */
static bool stripes_passed(const struct fby_statics *p, struct fby_static *v)
{
	u32 spins = 0;

	for (; v->settling_at < p->nstripes; v->settling_at++, v->settling_word = 0) {
		u64 word;

		while ((word = fby_load_acquire(&p->stripe[v->settling_at])) & FBY_STRIPE_STORES) {
			if (v->settling_word && word != v->settling_word)
				break;
			v->settling_word = word;
			if (++spins > 10000)
				return false;
			fby_relax();
		}
	}
	return true;
}

bool fby_static_settled(const struct fby_static *v)
{
	return !v->settling && writes_so_far(v) == v->settled_writes;
}

bool fby_static_settle(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];
	u64 writes = writes_so_far(v), unused = 0;

	if (!v->settling) {
		if (writes == v->settled_writes)
			return true;
		FBY_ASSERT(v, v->era < v->head.limit);
		v->settled_writes = writes;
		v->settling = true;
		v->settling_at = 0;
		v->settling_word = 0;
		if (v->era + 1 < FBY_ERA_MAX)
			fby_store(&v->era, v->era + 1);
		/* A locked instruction: the era is read before the stripes. */
		fby_fetch_add(&unused, 1ull);
		fby_mb_after_atomic();
	}
	if (!stripes_passed(p, v))
		return false;
	v->settling = false;
	v->head.settled = v->era - !FBY_BUG(STATIC_SETTLED_EARLY);
	v->head.limit = v->era + 1 < FBY_ERA_MAX ? v->era + 1 : FBY_ERA_MAX;
	head_write(p, v);
	return true;
}

/* For a volume that was attached when the pool was killed: its last writes are in doubt. */
static void add_window(struct fby_static *v)
{
	struct fby_static_window *w = &v->window[v->nwindows];

	w->after = v->head.settled;
	w->upto = v->head.limit;
	v->nwindows += !FBY_BUG(STATIC_WINDOW_FORGOTTEN);
}

static void windows_to_head(struct fby_static *v)
{
	FBY_ASSERT(v, v->nwindows <= FBY_STATIC_WINDOWS);
	fby_zero(v->head.window, sizeof(v->head.window));
	v->head.nwindows = v->nwindows;
	for (u32 i = 0; i < v->nwindows; i++)
		v->head.window[i] = v->window[i];
}

static void begin_session(struct fby_statics *p, struct fby_static *v)
{
	v->head.flags = 0;
	v->head.live = 0;
	v->head.settled = v->head.limit;
	v->head.limit += 2;
	windows_to_head(v);
	head_write(p, v);
	v->era = v->head.limit - 1;
}

static void reset(struct fby_static *v)
{
	fby_zero(v->count, sizeof(v->count));
	fby_zero(v->wanted, sizeof(v->wanted));
	v->surveyed = v->lost = v->found = v->hand = v->left = 0;
	v->recounting = false;
	v->settling = v->pressure = v->passing = v->gave_back = v->crowded = v->miscounted = false;
	v->settled_writes = v->era_ns = v->done_era = v->over_era = 0;
	v->era_asked = false;
}

bool fby_static_open(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];

	if (!locate(p, v, &p->space->owner[volume].share))
		return false;
	v->sound = head_read(p, v);
	if (!v->sound)
		return false;
	for (v->nwindows = 0; v->nwindows < v->head.nwindows; v->nwindows++)
		v->window[v->nwindows] = v->head.window[v->nwindows];
	if (!(v->head.flags & FBY_STATIC_CLEAN))
		add_window(v);
	v->era = v->head.limit;
	return true;
}

/* If half of the numbers are used up and the origin has everything, eras begin at the first
 * again.  The lines are cleared first, while the old head is still valid: they hold nothing under
 * either head. */
static void begin_anew(struct fby_statics *p, struct fby_static *v)
{
	bool empty = (v->head.flags & FBY_STATIC_COUNTED) && !v->nwindows &&
		     (v->head.live == 0 || FBY_BUG(STATIC_ANEW_DIRTY));

	if (v->head.limit <= FBY_ERA_HALF || !empty)
		return;
	lines_format(p, v);
	v->head.settled = v->head.limit = 0;
}

int fby_static_attach(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];
	bool empty;

	if (!fby_static_open(p, volume))
		return -FBY_E_VOLUME_DAMAGED;
	if (!p->space->opt.read_only)
		begin_anew(p, v);
	if (v->head.limit > FBY_ERA_MAX - 4)
		return -FBY_E_ERAS;
	reset(v);
	v->told = false;
	if ((v->head.flags & FBY_STATIC_COUNTED) && !v->nwindows) {
		v->told = v->head.live != 0;
		v->surveyed = v->slots;
		v->count[0].live = v->head.live;
	}
	empty = v->surveyed == v->slots && v->head.live == 0;
	for (u32 g = 0; g < fby_static_groups(v); g++) {
		if (empty)
			fby_static_dirty_clear(p, v, g);
		else
			fby_static_dirty_set(p, v, g);
		if (g % BREATH_SLOTS == 0)
			fby_breathe();
	}
	if (!p->space->opt.read_only) {
		/* After so many cuts in quick succession the survey runs at once. */
		while (v->nwindows > FBY_STATIC_WINDOWS)
			fby_static_survey(p, volume, v->slots);
		begin_session(p, v);
	}
	v->attached = true;
	return FBY_DONE;
}

void fby_static_detach(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];
	bool counted = fby_static_counted(v);

	v->attached = false;
	if (p->space->opt.read_only)
		return;
	v->head.settled = v->head.limit;
	v->head.flags = FBY_STATIC_CLEAN | (counted ? FBY_STATIC_COUNTED : 0);
	v->head.live = counted ? fby_static_live(v) : 0;
	windows_to_head(v);
	head_write(p, v);
}

/* --- survey -------------------------------------------------------------------------------- */

/* Stripe held: removes a torn page, counts the others.  Of two control words that differ, keeps
 * the one that counts. */
static void survey_slot(struct fby_statics *p, struct fby_static *v, u32 slot)
{
	struct fby_static_view s;
	u64 bits;

	fby_static_look(p, v, slot, &s);
	if (!s.gone && (s.torn ? !(s.unknown >> s.newest & 1) : s.line.control != ~s.line.copy)) {
		bits = s.live | (s.newest ? FBY_SC_NEWEST : 0) | (s.sole ? FBY_SC_SOLE : 0) |
		       (s.over && !s.torn ? FBY_SC_OVER : 0) | FBY_SC_NUMBER(s.number) | FBY_SC_ERA(s.era);
		fby_static_say(v, slot, bits, &s.line);
		media_lines(p->space->store.media, fby_static_line_at(v, slot), &s.line, sizeof(s.line));
		media_fence(p->space->store.media, v->at, v->bytes);
	}
	fby_fetch_add(&v->count[0].live, (u64)fby_static_counts(&s, 0) + fby_static_counts(&s, 1));
}

static void survey_ends(struct fby_statics *p, struct fby_static *v)
{
	/* Ordered after the stripes: a reader that sees no doubt, and a line from before its slot
	 * was surveyed, sees its stripe changed, and looks again. */
	fby_store_release(&v->nwindows, 0u);
	windows_to_head(v);
	head_write(p, v);
}

void fby_static_recount(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];

	FBY_ASSERT(v, v->surveyed == v->slots && v->nwindows == 0 && !v->recounting);
	fby_fetch_add(&v->recounts, 1u);
	fby_store(&v->surveyed, 0u);
	v->recounting = true;
	v->recounting_at = 0;
}

/* Writers that hold a stripe may count by the old state; none does after each stripe was free
 * once.  False: one is held. */
static bool recount_begins(struct fby_statics *p, struct fby_static *v)
{
	for (; v->recounting_at < p->nstripes; v->recounting_at++) {
		u64 *stripe = &p->stripe[v->recounting_at];

		if (!fby_stripe_try(stripe, 0))
			return false;
		fby_stripe_release(stripe);
	}
	for (u32 i = 0; i < FBY_STATIC_COUNTS; i++)
		fby_store_release(&v->count[i].live, 0ull); /* ordered after recounts */
	v->told = false;
	v->recounting = false;
	fby_store_release(&v->miscounted, false);
	return true;
}

void fby_static_survey(struct fby_statics *p, u16 volume, u32 n)
{
	struct fby_static *v = &p->volume[volume];

	if (v->recounting && !recount_begins(p, v))
		return;
	for (; n > 0 && v->surveyed < v->slots; n--) {
		u64 *stripe = fby_stripe(p, v, v->surveyed);

		if (v->surveyed % BREATH_SLOTS == 0)
			fby_breathe();
		if (!fby_stripe_try(stripe, FBY_STRIPE_STORES))
			return;
		survey_slot(p, v, v->surveyed);
		fby_store_release(&v->surveyed, v->surveyed + 1);
		fby_stripe_release(stripe);
	}
	if (v->surveyed == v->slots && v->nwindows)
		survey_ends(p, v);
}

bool fby_static_any(struct fby_statics *p, u16 volume)
{
	struct fby_static *v = &p->volume[volume];
	struct fby_static_view s;

	if (!fby_static_open(p, volume))
		return true;
	if ((v->head.flags & FBY_STATIC_CLEAN) && (v->head.flags & FBY_STATIC_COUNTED))
		return v->head.live != 0;
	for (u32 slot = 0; slot < v->slots; slot++) {
		fby_static_look(p, v, slot, &s);
		if (s.live) /* torn pages do not count */
			return true;
		if (slot % BREATH_SLOTS == 0)
			fby_breathe();
	}
	return false;
}
