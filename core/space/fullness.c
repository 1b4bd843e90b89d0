// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * fullness.c - how full the pool is, as seen by a volume that needs a chunk, by relocation, by
 * destage and by the throttle.  In ascending order:
 *
 *	pressure	so much is live that destage works until it is less
 *	level		how far a volume is between where it is throttled and full
 *	short		so few chunks are free that relocation begins
 *	starved writers get none, except entitled ones
 */
#include "space/space.h"

/* --- what each volume is entitled to ----------------------------------------------
 *
 * An attached volume can have so many chunks, whatever others hold: two, one to write
 * while the other is destaged, and as many as hold ENTITLED_PAGES where these are more
 * and no great part of the pool.  A volume that has as many leaves what others have less.  It leaves half of the pool at most, so that the
 * other half is for whoever writes.  Where the volumes are too many for that, a first
 * chunk is kept for each before a second for some; and where half of the pool has not
 * even so many chunks, they are for those that come first.
 * A pool of fewer than 16 keeps none: there the chunks that lost blocks hold are much.
 */

#define ENTITLED_CHUNKS 2u
/* Two chunks of 64 KiB hold 30 pages, which a light volume fills while its origin takes a round
 * of them. */
#define ENTITLED_PAGES 64u

u32 fby_entitled(const struct fby_store *st)
{
	u32 pages = st->chunk_pages - st->first_page, n = (ENTITLED_PAGES + pages - 1) / pages;

	if (n > st->sb.nchunks / 8)
		n = st->sb.nchunks / 8;
	return n > ENTITLED_CHUNKS ? n : ENTITLED_CHUNKS;
}

u32 fby_owed_to(const struct fby_space *p, const struct fby_owner *v)
{
	u32 n = fby_load(&v->nchunks);

	return v->active && n < p->entitled ? p->entitled - n : 0;
}

void fby_owed_count(struct fby_space *p, const struct fby_owner *v, u32 add)
{
	u32 owed = fby_owed_to(p, v);

	fby_store(&p->owed, p->owed + add * owed);
	p->owed_first += add * (owed == p->entitled);
	fby_store(&p->holders, p->holders + add * (v->active && v->nchunks > 0));
}

static u32 half_at_most(const struct fby_space *p, u32 n)
{
	u32 half = p->store.sb.nchunks < 16 ? 0 : (p->store.sb.nchunks - fby_reserve(p) + 1) / 2;

	return n < half ? n : half;
}

u32 fby_owed(const struct fby_space *p)
{
	return half_at_most(p, fby_load(&p->owed));
}

void fby_entitle(struct fby_space *p, struct fby_owner *v, bool attached)
{
	fby_lock(&p->lock);
	fby_owed_count(p, v, ~0u);
	v->active = attached;
	fby_owed_count(p, v, 1);
	fby_unlock(&p->lock);
	/* A writer that was refused in favour of another may get a chunk now. */
	fby_fetch_or(&p->wake_owed, fby_fetch_and(&p->wait_mask, ~(u32)FBY_WAKE_SPACE) & FBY_WAKE_SPACE);
}

/* --- free chunks ------------------------------------------------------------------- */

/* Chunks in reserve: one for destage, which must be able to carry damage forward; and, unless
 * that is a great part of the pool, one for relocation, which frees more. */
u32 fby_reserve(const struct fby_space *p)
{
	return p->store.sb.nchunks >= 16 ? 2 : 1;
}

u32 fby_spare(const struct fby_space *p)
{
	u32 nfree = fby_load(&p->nfree), owed = fby_owed(p);

	return nfree > owed ? nfree - owed : 0;
}

u32 fby_first_leaves(const struct fby_space *p)
{
	return fby_load(&p->holders) > 0 ? 1 : 0;
}

u32 fby_kept_free(const struct fby_space *p, u16 owner, u32 flags)
{
	u32 reserve = flags & FBY_BEGIN_RELOCATE ? 1 : fby_reserve(p), owed = fby_owed_to(p, &p->owner[owner]);

	if (flags & FBY_BEGIN_RESERVE)
		return 0;
	if (FBY_BUG(OWED_IGNORED))
		return reserve;
	if (owed == p->entitled)
		return fby_first_leaves(p);
	return reserve + (owed ? half_at_most(p, p->owed_first) : fby_owed(p));
}

bool fby_starved(const struct fby_space *p)
{
	return fby_spare(p) <= fby_reserve(p);
}

/* The number of last chunks that are throttled by chunks in use; not so few that one of them is
 * half of the range. */
static u32 last_chunks(const struct fby_space *p)
{
	u32 n = p->store.sb.nchunks, last = n / 8 < 8 ? n / 8 : 8;

	return last < n / 32 ? n / 32 : last;
}

u32 fby_spare_wanted(const struct fby_space *p)
{
	return last_chunks(p) + p->store.sb.nchunks / 32 + 1;
}

bool fby_short(const struct fby_space *p)
{
	u32 n = p->store.sb.nchunks / 8, least = fby_reserve(p) + 2;

	return fby_spare(p) < (n > least ? n : least);
}

/*
 * Above the watermark most chunks may be overwritten ones, which the next opening takes back.
 * Then a look for every 64th of the pool is enough, and each tick has one.  Relocation keeps pace
 * with openings.
 */
bool fby_destage_due(const struct fby_space *p)
{
	u32 n = p->store.sb.nchunks, free = fby_spare(p);

	if (free * 100ull > (u64)n * (100 - fby_load(&p->opt.high_watermark)))
		return false;
	return fby_short(p) || fby_load(&p->chunks_opened) - fby_load(&p->stepped_opens) >= n / 64;
}

/* --- live pages ------------------------------------------------------------------------ */

/* Judged by dirty pages: relocation takes dead pages back, unless it finds none. */
void fby_pressure_update(struct fby_space *p)
{
	u64 live = fby_load(&p->live), high = fby_load(&p->opt.high_watermark);
	u64 room = (u64)(p->store.sb.nchunks - fby_owed(p)) * (p->store.chunk_pages - p->store.first_page);
	bool in_vain = fby_short(p) && p->looked_opens == fby_load(&p->chunks_opened);

	if (live * 100 >= room * high || live >= fby_throttled_span(p).start || in_vain || fby_starved(p))
		p->pressure = true;
	else if (live * 100 <= room * fby_load(&p->opt.low_watermark))
		p->pressure = false;
}

/* Maps used from [start, top] to 0 .. FBY_LEVEL_FULL. */
static u32 level_between(u64 used, u64 start, u64 top)
{
	u64 above = used > start ? used - start : 0, range = top > start ? top - start : 0;

	if (above == 0)
		return 0;
	while (range >> 20) {
		range >>= 1;
		above >>= 1;
	}
	return above >= range ? FBY_LEVEL_FULL : ((u32)above << 10) / (u32)range;
}

static u32 part_of(u32 n, u32 parts, u32 of)
{
	return n / of * parts + n % of * parts / of;
}

/*
 * The range of fullness in which writes are spaced, of the chunks that are owed to nobody else.
 * Dirty pages may use all of them, except those that the planner keeps free.  A part of the used
 * pages must be dead or clean, or relocation would copy without end: the fuller the pool, the
 * more copies a freed chunk costs.  If copies are cheap, the range lies closer to full (tight).
 */
struct fby_span fby_throttled_span(const struct fby_space *p)
{
	u32 n = p->store.sb.nchunks - fby_owed(p), percent = (100 + fby_load(&p->opt.high_watermark)) / 2;
	u32 pages = p->store.chunk_pages - p->store.first_page; /* pages in the pool: below 2^32 */
	u32 room = (n > fby_spare_wanted(p) ? n - fby_spare_wanted(p) : 1) * pages;
	u32 left = (100 - percent) * 16, shift = left * 3 / 8 * fby_load(&p->tight) / FBY_TIGHT_MOST; /* of 1600 */
	struct fby_span r = { part_of(room, 1600 - left + shift, 1600), part_of(room, 1600 - left / 4 + shift, 1600) };

	if (percent >= 100) /* never */
		r.start = r.top = (u64)n * pages;
	return r;
}

/* Pages that writers can fill, in chunks that are owed to nobody else. */
static u64 full_at(const struct fby_space *p)
{
	return (u64)(p->store.sb.nchunks - fby_owed(p) - fby_reserve(p)) * (p->store.chunk_pages - p->store.first_page);
}

/*
 * Divides the pool among the volumes that hold much of it: all except those with less than half
 * of such a share, whose pages are subtracted first.  That makes the share larger, and again some
 * may be below the half.  The throttle's range moves a step towards the lowest wish of these
 * volumes.
 */
void fby_share_update(struct fby_space *p)
{
	u32 top = (u32)fby_throttled_span(p).top, share = 0, before, room, n, tight; /* pages: below 2^32 */

	n = 0;
	for (u32 i = 0; i < p->store.sb.nvolumes; i++)
		n += p->owner[i].active;
	fby_store(&p->attached, n);
	do {
		before = share;
		room = top;
		n = 0;
		tight = ~0u;
		for (u32 i = 0; i < p->store.sb.nvolumes; i++) {
			const struct fby_owner *v = &p->owner[i];
			u64 counted = fby_load(&v->counted);

			if (v->active && 2 * counted >= share) {
				n++;
				if (v->attached && v->tight < tight)
					tight = v->tight;
			} else {
				room -= counted < room ? (u32)counted : room;
			}
		}
		share = n ? room / n : room;
	} while (n && share > before);
	fby_store(&p->share, share);
	if (tight != ~0u && tight != p->tight)
		fby_store(&p->tight, tight > p->tight ? p->tight + 1 : p->tight - 1);
}

/*
 * Level by live pages, since dead ones are taken back without the origin.  A volume with at least
 * half of its share feels how full the pool is; with more than its share, at least like a full
 * one.  A volume with less feels only how much of its own room is left: of its share, or of what
 * the others leave, whose origins may have stopped.
 */
static u32 level_by_live(const struct fby_space *p, const struct fby_owner *v)
{
	struct fby_span pool = fby_throttled_span(p);
	u64 mine = fby_load(&v->counted), live = fby_load(&p->live), share = fby_load(&p->share);
	u64 owed = (u64)fby_owed_to(p, v) * (p->store.chunk_pages - p->store.first_page);
	u32 level = level_between(live, pool.start, pool.top), above;
	u64 room = full_at(p) + owed + mine;

	if (2 * mine >= share) {
		above = level_between(mine, share, share + share / 8);
		return level ? level + ((FBY_LEVEL_FULL - level) * above >> 10) : 0;
	}
	room = room > live ? room - live : 0;
	if (room > share)
		room = share;
	above = level_between(mine, (u32)room / 100 * ((100 + fby_load(&p->opt.high_watermark)) / 2), room);
	return above < level ? above : level;
}

/* Level by chunks in use, if copying falls behind.  It applies to volumes that use them. */
static u32 level_by_use(const struct fby_space *p, const struct fby_owner *v)
{
	u32 n = p->store.sb.nchunks, last = last_chunks(p), spare = fby_spare(p), reserve = fby_reserve(p);
	u32 mine = fby_load(&v->nchunks);

	if (mine <= p->entitled || 2 * mine * fby_load(&p->attached) <= n)
		return 0;
	return level_between(n - spare, n - last, n - reserve);
}

void fby_level_update(struct fby_space *p, u16 owner)
{
	struct fby_owner *v = &p->owner[owner];
	u32 by_live = level_by_live(p, v), by_use = level_by_use(p, v);

	fby_store(&v->level, by_live > by_use ? by_live : by_use);
}

/* In a pool of few chunks each is a large part of the free room. */
static u32 tight_most(const struct fby_space *p)
{
	u32 n = (p->store.sb.nchunks - fby_owed(p)) / 4;

	return n < FBY_TIGHT_MOST ? n : FBY_TIGHT_MOST;
}

/*
 * Moves the range step by step from its present place.  So nobody asks for more and more while
 * another volume holds it back, or while dirty pages have not followed it: in a large pool they
 * need many rounds.  It moves no further while chunks are scarce: many are open, or their pages
 * belong to a volume that cannot release them.
 */
void fby_fullness_judge(struct fby_space *p, u16 owner, enum fby_copies copies)
{
	struct fby_owner *v = &p->owner[owner];
	u32 level = level_by_live(p, v), most = tight_most(p), tight = p->tight;

	if (fby_spare(p) < last_chunks(p) || tight > most)
		copies = FBY_COPIES_DEAR;
	if (copies == FBY_COPIES_CHEAP && level >= FBY_LEVEL_FULL / 4 && tight < most)
		tight++;
	else if (copies == FBY_COPIES_DEAR && level <= FBY_LEVEL_FULL / 4 * 3 && tight)
		tight--;
	v->tight = tight;
}

void fby_fullness_start(struct fby_space *p)
{
	struct fby_span r;

	for (u32 v = 0; v < p->store.sb.nvolumes; v++)
		fby_owner_count(p, (u16)v);
	for (u32 most = tight_most(p); p->tight < most; p->tight++) {
		r = fby_throttled_span(p);
		if (p->live <= (r.start + r.top) / 2)
			break;
	}
}
