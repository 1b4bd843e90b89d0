// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * flush.c - the gate through which every flush of an origin goes, destage's and the hosts', and
 * the reports of a failed one.
 *
 * An origin may report only once, to the first flush, that it lost writes of its cache: the flush
 * after a failed one succeeds.  So at most one flush of a volume is in flight, and it holds the
 * gate until the engine knows its result.  Then
 *
 *	- whoever waits at the gate, or has a flush to begin, sees the failure
 *	  before it can get a success;
 *	- destage sees it before it sends its own flush, and does its round again,
 *	  since the blocks that it wrote may be lost too;
 *	- a flush that succeeded counts for everybody whose writes had ended when
 *	  it was sent.
 *
 * Failures are numbered (gate.lost).  A ticket holds the number up to which its
 * caller need not be told, and which requests past the cache it has to cover.
 *
 * A client that is one of several brings with it what it was told, so that each is told
 * of each failure; one that is new begins with what anybody was told.
 *
 * A flush of all that was written is told for all who have written.  But a failure may
 * have lost more than what it stands for.  What was acknowledged after it began is for a
 * later flush of all to tell, so the failure counts as told only when one was told that
 * stands for all requests which had ended by then (gate.lost_upto).  What was not
 * acknowledged yet is told by itself (fby_flush_later).
 * Nothing here takes a lock: the end of a flush may come from an interrupt.
 */
#include "cache/static_requests.h"

#define LOST_UPTO_UNKNOWN (~0ull)

/* --- the gate ----------------------------------------------------------------- */

static void gate_release(struct fby_gate *g)
{
	FBY_ASSERT(g, fby_load(&g->held) & FBY_GATE_HELD);
	fby_fetch_and(&g->held, ~FBY_GATE_HELD);
}

/* Bypassed data may be lost, and whoever waits for it has to be told.  Requests in flight may be
 * lost, too: the origin may have had them before.  The order matters: a request counts as ended
 * before its range is released. */
static bool gate_owes(const struct fby_cached *v)
{
	return fby_load_acquire(&v->bypassing) || fby_load(&v->gate.flushed) < fby_load(&v->gate.ended);
}

/* The flush that holds the gate failed.  Whoever sees the failure also sees for how many requests
 * it stands, or that this is unknown yet.  A request that is acknowledged meanwhile is one of
 * them, or finds the failure: see fby_flush_later. */
static u32 gate_failed(struct fby_gate *g)
{
	u32 lost;

	fby_store(&g->lost_upto, LOST_UPTO_UNKNOWN);
	lost = fby_fetch_add(&g->lost, 1u) + 1;
	fby_store(&g->lost_upto, fby_load_acquire(&g->ended));
	return lost;
}

/* The flush that holds the gate succeeded. */
static void gate_flushed(struct fby_gate *g)
{
	if (FBY_BUG(FLUSH_TAKES_LATER))
		g->upto = fby_load(&g->ended);
	if (fby_load(&g->flushed) < g->upto)
		fby_store_release(&g->flushed, g->upto);
}

void fby_gate_attach(struct fby_cached *v)
{
	struct fby_gate *g = &v->gate;

	if (FBY_BUG(ATTACH_FORGETS_FAILURE))
		fby_zero(g, sizeof(*g));
	g->held = 0; /* by a round of destage that the detach ended */
	if (!FBY_BUG(ATTACH_FORGETS_BYPASS))
		fby_fetch_add(&g->ended, 1ull);
}

/* --- destage -------------------------------------------------------------------- */

bool fby_gate_destage(struct fby_cached *v)
{
	/* First this: whoever ends a flush afterwards leaves the gate to destage. */
	fby_fetch_or(&v->gate.held, FBY_GATE_DESTAGE);
	return fby_cmpxchg(&v->gate.held, FBY_GATE_DESTAGE, FBY_GATE_HELD);
}

void fby_gate_destage_sends(struct fby_cached *v)
{
	v->gate.upto = fby_load_acquire(&v->gate.ended);
}

void fby_gate_destage_failed(struct fby_cached *v)
{
	if (gate_owes(v))
		(void)gate_failed(&v->gate);
}

void fby_gate_destage_ends(struct fby_cache *p, struct fby_cached *v, int error)
{
	if (!error)
		gate_flushed(&v->gate);
	else if (error != FBY_NOT_SENT && !FBY_BUG(FLUSH_FAILURE_TOLD_LATE))
		fby_gate_destage_failed(v);
	gate_release(&v->gate);
	fby_fetch_or(&p->space->wake_owed, FBY_WAKE_FLUSH);
}

void fby_gate_destage_leaves(struct fby_cached *v, u32 *wake)
{
	gate_release(&v->gate);
	*wake |= FBY_WAKE_FLUSH;
}

/* --- tickets ------------------------------------------------------------------- */

enum ticket_state { TICKET_NEW = 0, TICKET_ALL, TICKET_PAST, TICKET_SENT };

void fby_cache_flush_cover(struct fby_cache *p, struct fby_flush *t, const struct fby_bypass *b)
{
	FBY_ASSERT(p, t->state == TICKET_NEW || t->state == TICKET_PAST);
	if (t->state == TICKET_NEW)
		t->seen = b->seen;
	t->state = TICKET_PAST;
	t->volume = b->volume;
	t->upto = fby_load_acquire(&p->volume[b->volume].gate.ended) - FBY_BUG(FLUSH_COVERS_NOTHING);
}

int fby_cache_flush_later(struct fby_cache *p, struct fby_flush *t)
{
	struct fby_gate *g = &p->volume[t->volume].gate;

	FBY_ASSERT(p, t->state == TICKET_PAST);
	if (FBY_BUG(FLUSH_TELLS_FOR_LATER))
		return FBY_DONE;
	/* Counted once more: a flush of everything that began before covers only parts of the
	 * request. */
	fby_fetch_add(&g->ended, 1ull);
	/* A locked instruction as well, so that the two are ordered; see gate_failed. */
	return fby_fetch_add(&g->lost, 0u) == t->seen ? FBY_DONE : -FBY_E_ORIGIN_IO;
}

static void ticket_new(struct fby_cache *p, struct fby_flush *t, u16 volume)
{
	struct fby_gate *g = &p->volume[volume].gate;

	t->state = TICKET_ALL;
	t->all = true;
	t->volume = volume;
	t->seen = t->client ? t->told : fby_load(&g->told);
	t->upto = fby_load_acquire(&g->ended);
	fby_fetch_add(&p->space->slot[fby_cpu() % p->space->opt.nslots].flushes, 1ull);
}

/* The caller is told of all failures so far.  The next caller need not be told, if this ticket
 * stands for everything that may be lost. */
static int ticket_fails(struct fby_gate *g, struct fby_flush *t, u32 lost)
{
	if (t->all && !t->aside && (t->upto >= fby_load(&g->lost_upto) || FBY_BUG(FLUSH_TELLS_FOR_LATER)))
		fby_store(&g->told, t->told = lost);
	return -FBY_E_ORIGIN_IO;
}

u32 fby_cache_flush_told(struct fby_cache *p, u16 volume)
{
	FBY_ASSERT(p, volume < p->space->store.sb.nvolumes);
	return fby_load(&p->volume[volume].gate.told);
}

/* DONE, an error, or ORIGIN: neither yet.  The order matters: the success of a flush must not
 * hide that an earlier one failed.  A ticket that is told while it is unknown how much the
 * failure stands for would count for nobody, and the next one would be told again.  So it waits:
 * the failed flush holds the gate until that is known. */
static int ticket_look(struct fby_gate *g, struct fby_flush *t)
{
	bool flushed = fby_load_acquire(&g->flushed) >= t->upto;
	u32 lost = fby_load_acquire(&g->lost);

	if (FBY_BUG(FLUSH_OVERLAP_ONE_TOLD) && t->all)
		t->seen = fby_load(&g->told);
	if (lost != t->seen) {
		if (t->all && !t->aside && fby_load(&g->lost_upto) == LOST_UPTO_UNKNOWN)
			return FBY_WAIT_FLUSH;
		return ticket_fails(g, t, lost);
	}
	return flushed ? FBY_DONE : FBY_ORIGIN;
}

int fby_cache_flush_begin(struct fby_cache *p, u16 volume, struct fby_flush *t)
{
	struct fby_owner *o;
	struct fby_cached *v;
	int decision;

	if (volume >= p->space->store.sb.nvolumes)
		return -FBY_E_NO_VOLUME;
	o = &p->space->owner[volume];
	v = &p->volume[volume];
	if (!o->attached && !fby_is_static(p, volume))
		return -FBY_E_VOLUME_DETACHED;
	if (t->state == TICKET_NEW)
		ticket_new(p, t, volume);
	FBY_ASSERT(p, t->state != TICKET_SENT && t->volume == volume);
	if (p->space->opt.read_only || FBY_BUG(FLUSH_FORGETS_BYPASS))
		return FBY_DONE;
	decision = ticket_look(&v->gate, t);
	if (decision != FBY_ORIGIN)
		return decision;
	if (!fby_cmpxchg(&v->gate.held, 0u, FBY_GATE_HELD))
		return FBY_WAIT_FLUSH;
	v->gate.upto = fby_load_acquire(&v->gate.ended);
	t->state = TICKET_SENT;
	return FBY_ORIGIN;
}

int fby_cache_flush_end(struct fby_cache *p, struct fby_flush *t, int error, u32 *wake)
{
	struct fby_gate *g = &p->volume[t->volume].gate;
	int decision;

	FBY_ASSERT(p, t->state == TICKET_SENT);
	t->state = t->all ? TICKET_ALL : TICKET_PAST;
	if (error) {
		/* The failed flush may also have lost destage's blocks, if everything it covers
		 * has been flushed since. */
		u32 lost = gate_failed(g);

		decision = ticket_fails(g, t, lost);
	} else {
		gate_flushed(g);
		decision = ticket_look(g, t);
	}
	gate_release(g);
	fby_destage_look(p->space, t->volume); /* it may wait for the gate */
	*wake |= FBY_WAKE_FLUSH | FBY_WAKE_DESTAGE;
	return decision;
}
