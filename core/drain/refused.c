// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * refused.c - pages that the origin did not take.  docs/design/destage.md has the rules and why
 * they are safe.
 *
 * An origin with bad sectors refuses some requests and takes the others.  A round continues after
 * a refused request.  Pages that were taken are flushed and released.  Refused pages are copied
 * forward before the watermark passes them, as kept pages are.  Such a page and its copies carry
 * FBY_ES_REFUSED until the block is written anew.  It is tried again after a pause, alone, since
 * others of its request may be sound.
 *
 * If the origin takes nothing, destage assumes that it fails as a whole and abandons the round.
 */
#include "cache/index.h"
#include "drain/round.h"

#define PAUSE_MIN_NS 100000000ull
#define PAUSE_MAX_NS 30000000000ull
#define STREAK 4u /* requests refused in a row: from then on pages are left out */
#define COPIES_MOST 64u /* copies for each released page, except in a round that retries refused pages */

void fby_refused_begin(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;

	f->trying = p->space->now_ns >= f->retry_ns || d->backoff_ns || FBY_BUG(REFUSED_TRIED_AT_ONCE);
	f->doubt = d->backoff_ns != 0;
	f->again_taken = f->again_failed = f->reserve = f->waits = false;
	f->failed = f->held = 0;
	fby_zero(f->streak, sizeof(f->streak));
}

/* --- requests that end ------------------------------------------------------------------ */

void fby_refused_taken(struct fby_destage *d, const struct fby_io_slot *io)
{
	struct fby_refused *f = &d->refused;

	f->again_taken |= io->again;
	f->doubt = false;
	fby_zero(&f->streak[io->again], sizeof(f->streak[0]));
}

/*
 * After some refused requests others may be refused, too, and each may take the origin long.  So
 * while none is taken, only one request is in flight, and before each a number of pages is left
 * out, with a growing bound.  A failing origin is asked some twenty times in a round, and the
 * round reaches the pages after a large bad area.  The number is random, so that rounds do not
 * leave out the same pages.  Retries and first tries are counted separately.
 */
static void streak_grows(struct fby_refused *f, struct fby_refused_streak *streak)
{
	if (++streak->failed < STREAK)
		return;
	streak->most = 4 * streak->most + 1;
	f->random = f->random * 1664525u + 1013904223u;
	streak->leave = (u32)((u64)f->random * (streak->most + 1) >> 32);
}

bool fby_refused_leaves(struct fby_refused *f, u32 state)
{
	struct fby_refused_streak *streak = &f->streak[(state & FBY_ES_REFUSED) != 0];

	if (streak->leave == 0)
		return false;
	streak->leave--;
	return true;
}

void fby_refused_note(struct fby_refused *f, const struct fby_io_slot *io)
{
	f->again_failed |= io->again;
	f->failed++;
	f->doubt = true;
	streak_grows(f, &f->streak[io->again]);
}

static void refuse(struct fby_drain *p, u16 volume, struct fby_round_page *r)
{
	if (r->keep || r->carry == FBY_CARRY_DAMAGED)
		return;
	r->carry = FBY_CARRY_REFUSED;
	fby_page_mark(p->cache, r->page, fby_key(volume, r->k), FBY_ES_REFUSED);
}

void fby_refused_failed(struct fby_drain *p, u16 volume, const struct fby_io_slot *io)
{
	u64 first = io->sector / FBY_PAGE_SECTORS;
	u64 end = (io->sector + io->nsectors + FBY_PAGE_SECTORS - 1) / FBY_PAGE_SECTORS;
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;

	for (u32 i = fby_round_from(d, first); i < d->n && d->page[i].k < end; i++) {
		refuse(p, volume, &d->page[i]);
		if (FBY_BUG(REFUSED_FIRST_KEPT))
			break;
	}
	/* Neighbours that were written along: the latest are at the end. */
	for (u32 i = d->pulled; i > 0 && d->page[d->cap - i].k >= first && !FBY_BUG(REFUSED_ALONG_CLEAN); i--) {
		struct fby_round_page *r = &d->page[d->cap - i];

		if (r->k >= end || r->page == FBY_NO_PAGE)
			continue;
		fby_page_mark(p->cache, r->page, fby_key(volume, r->k), FBY_ES_REFUSED);
		r->page = FBY_NO_PAGE;
	}
	f->last = fby_load_acquire(&p->space->seq) - 1;
	fby_refused_note(f, io);
}

/* --- what becomes of the round ------------------------------------------------------------ */

static u64 writes_of(const struct fby_drain *p, u16 volume)
{
	u64 writes = 0;

	for (u32 i = 0; i < p->space->opt.nslots; i++)
		writes += fby_load(&p->space->slot[i].volume[volume].writes);
	return writes;
}

/* One pause for all refused pages; it grows while the origin takes none of them. */
void fby_refused_pause(struct fby_drain *p, struct fby_refused *f)
{
	if (!f->trying || !(f->failed || f->again_taken))
		return;
	if (f->again_taken || !f->pause_ns)
		f->pause_ns = PAUSE_MIN_NS;
	else if (f->again_failed)
		f->pause_ns = f->pause_ns < PAUSE_MAX_NS / 2 ? 2 * f->pause_ns : PAUSE_MAX_NS;
	f->retry_ns = p->space->now_ns + f->pause_ns;
}

/*
 * While an origin took nothing, the rounds became longer and longer, to reach past the refused
 * pages.  When it takes a request, it has usually recovered, and writers should not wait for all
 * of such a long list.  So the round is abandoned for one of the usual length.  That happens only
 * once until a round has ended, since perhaps only the later pages are sound.
 */
bool fby_refused_heals(const struct fby_destage *d)
{
	const struct fby_refused *f = &d->refused;

	return d->backoff_ns && f->longer && d->pos < d->n && !f->doubt && (!f->cut_short || FBY_BUG(REFUSED_CUT_AGAIN));
}

enum fby_phase fby_refused_cut_short(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;

	f->cut_short = true;
	f->behind = 0;
	f->retry_ns = p->space->now_ns;
	d->backoff_ns = 0;
	return FBY_PH_IDLE;
}

enum fby_phase fby_refused_judge(struct fby_drain *p, u16 volume)
{
	struct fby_destage *d = &p->volume[volume].destage;
	struct fby_refused *f = &d->refused;
	u32 refused = 0, let_go = 0, home = 0;

	if (f->last == 0) /* there are none */
		return FBY_PH_FLUSH;
	for (u32 i = 0; i < d->n; i++) {
		const struct fby_round_page *r = &d->page[i];

		if (r->keep || !fby_round_listed(p, volume, r, d->cut))
			continue;
		refused += r->carry == FBY_CARRY_REFUSED;
		let_go += r->carry == FBY_CARRY_NO;
		/* The sectors that are not lost were taken. */
		home += r->carry == FBY_CARRY_LOST && FBY_ES_VALID(fby_load(&p->cache->entry[r->page].state)) != 0;
	}
	home += let_go;
	f->reserve = refused <= let_go;
	if (refused == 0 || (home > 0 && (f->trying || refused / COPIES_MOST <= home)) ||
	    FBY_BUG(REFUSED_COPIED_FOR_NOTHING)) {
		fby_refused_pause(p, f);
		f->behind = 0;
		return FBY_PH_FLUSH;
	}
	if (f->failed) { /* each such round looks further, after a pause */
		f->behind = 2 * refused;
		d->failed = true;
		return FBY_PH_BACKOFF;
	}
	/* The round made no request, so it achieved nothing.  Later pages in the log may be
	 * sound. */
	if (f->asked < fby_round_most(d) && refused > f->behind) {
		f->behind = refused;
		return FBY_PH_IDLE;
	}
	/* There is nothing else to do until some are written, or it is time to retry. */
	f->waits = true;
	f->waits_writes = home ? FBY_NO_SEQ : writes_of(p, volume);
	return FBY_PH_IDLE;
}

bool fby_refused_waits(struct fby_drain *p, u16 volume)
{
	struct fby_refused *f = &p->volume[volume].destage.refused;

	if (f->waits && (p->space->now_ns >= f->retry_ns ||
			 (f->waits_writes != FBY_NO_SEQ && f->waits_writes != writes_of(p, volume))))
		f->waits = false;
	if (f->waits && f->retry_ns < p->retry_ns)
		p->retry_ns = f->retry_ns;
	return f->waits;
}

void fby_refused_passed(struct fby_drain *p, u16 volume, u64 watermark)
{
	struct fby_drained *v = &p->volume[volume];

	if (v->destage.refused.last > watermark)
		return;
	v->destage.refused.last = v->destage.refused.pause_ns = 0;
	v->destage.refused.areas = 0;
	fby_store(&v->last_error, 0);
}
