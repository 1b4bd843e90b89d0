// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_ops_model.c - see fuzz_ops_model.h.  Nothing here asks the engine.
 */
#include <string.h>

#include "fuzz_ops_model.h"

const u32 volume_sectors[NVOL] = { 509, 512 };
const u32 volume_block[NVOL] = { 512, 4096 };

struct sector sector_of[NVOL][SECTORS];
struct reading reading[NREADING];
struct ticket ticket[NTICKET];

static u32 clock, version;
/* For each volume: when a flush of its origin last failed, and the last such failure that was
 * reported to a flush of everything which began after it. */
static u32 failed[NVOL], told[NVOL];

void model_reset(void)
{
	memset(sector_of, 0, sizeof(sector_of));
	memset(reading, 0, sizeof(reading));
	memset(ticket, 0, sizeof(ticket));
	clock = version = 0;
	for (u32 v = 0; v < NVOL; v++)
		failed[v] = told[v] = 0;
}

u32 model_now(void)
{
	return ++clock;
}

u32 model_version(void)
{
	return ++version;
}

/* --- reads ------------------------------------------------------------------------- */

/* A read that is in flight may get it. */
static void may_show(u32 volume, u64 sector, u32 version)
{
	for (struct reading *r = reading; r < reading + NREADING; r++) {
		u64 i = sector - r->sector;

		if (!r->on || r->volume != volume || sector < r->sector || i >= r->n)
			continue;
		if (r->nmay[i] < sizeof(r->may[0]) / sizeof(r->may[0][0]))
			r->may[i][r->nmay[i]] = version;
		r->nmay[i]++;
	}
}

void model_read_begin(struct reading *r, u32 volume, u64 sector, u32 n)
{
	memset(r, 0, sizeof(*r));
	r->on = true;
	r->volume = volume;
	r->sector = sector;
	r->n = n;
	for (u32 i = 0; i < n; i++)
		r->may[i][r->nmay[i]++] = sector_of[volume][sector + i].shown;
}

void model_read(const struct reading *r, u32 i, u32 version)
{
	u32 room = sizeof(r->may[0]) / sizeof(r->may[0][0]);

	for (u32 k = 0; k < r->nmay[i] && k < room; k++)
		if (r->may[i][k] == version)
			return;
	if (r->nmay[i] <= room)
		fuzz_finding("not what was acknowledged", version, sector_of[r->volume][r->sector + i].shown);
}

/* --- writes ------------------------------------------------------------------------ */

void model_show(u32 volume, u64 sector, u64 n, u32 version)
{
	for (u64 s = sector; s < sector + n; s++) {
		struct sector *x = &sector_of[volume][s];

		x->shown = version;
		x->past = x->untold = false;
		may_show(volume, s, version);
	}
}

void model_past(u32 volume, u64 sector, u64 n, u32 version, enum fby_kind kind)
{
	model_show(volume, sector, n, version);
	for (u64 s = sector; s < sector + n; s++) {
		struct sector *x = &sector_of[volume][s];

		x->origin = version;
		x->acked = MODEL_NEVER;
		x->past = kind != FBY_KIND_DISCARD;
		if (kind == FBY_KIND_DISCARD) /* no flush vouches for it */
			x->durable = x->sent = version;
	}
}

void model_ack(u32 volume, u64 sector, u64 n, u32 version)
{
	u32 now = model_now();

	for (u64 s = sector; s < sector + n; s++)
		if (sector_of[volume][s].past && sector_of[volume][s].shown == version)
			sector_of[volume][s].acked = now;
}

/* --- flushes ----------------------------------------------------------------------- */

void model_flush_sent(u32 volume)
{
	for (struct sector *x = sector_of[volume]; x < sector_of[volume] + SECTORS; x++)
		x->sent = x->origin;
}

void model_flush_done(u32 volume, bool what_came_later)
{
	for (struct sector *x = sector_of[volume]; x < sector_of[volume] + SECTORS; x++)
		x->durable = what_came_later ? x->origin : x->sent;
}

/* A lost write past the cache must be reported: to whoever waits for it, and if it was
 * acknowledged, to all who flush. */
static void lost(u32 volume, u64 s)
{
	struct sector *x = &sector_of[volume][s];

	for (struct ticket *t = ticket; t < ticket + NTICKET; t++)
		if (t->stage && t->volume == volume &&
		    (t->all ? x->acked < t->began : s >= t->sector && s - t->sector < t->n && t->version == x->shown))
			t->must_fail = true;
	x->untold = x->acked != MODEL_NEVER;
	x->past = false;
	x->shown = x->durable;
}

void model_flush_failed(u32 volume, bool loses)
{
	failed[volume] = model_now();
	for (u64 s = 0; loses && s < SECTORS; s++) {
		struct sector *x = &sector_of[volume][s];

		if (x->origin == x->durable)
			continue;
		if (x->past)
			lost(volume, s);
		may_show(volume, s, x->durable);
		x->origin = x->durable;
	}
}

void model_ticket(struct ticket *t, u32 volume, bool aside)
{
	memset(t, 0, sizeof(*t));
	t->stage = TICKET_WAITS;
	t->volume = volume;
	t->all = true;
	t->aside = t->t.aside = aside;
	t->told = told[volume];
	for (struct sector *x = sector_of[volume]; x < sector_of[volume] + SECTORS; x++)
		t->must_fail |= x->untold;
	t->began = model_now();
}

static bool stands_for(const struct ticket *t, u64 s)
{
	const struct sector *x = &sector_of[t->volume][s];

	if (!x->past)
		return false;
	return t->all ? x->acked < t->began : s >= t->sector && s - t->sector < t->n && x->shown == t->version;
}

void model_ticket_done(struct ticket *t)
{
	if (t->must_fail)
		fuzz_finding("a flush succeeds although something is lost", t->volume, t->began);
	for (u64 s = 0; s < SECTORS; s++) {
		struct sector *x = &sector_of[t->volume][s];

		if (!stands_for(t, s))
			continue;
		if (x->durable != x->shown)
			fuzz_finding("flushed, and not durable", t->volume, s);
		x->past = false;
	}
	t->stage = TICKET_NONE;
}

void model_told(u32 volume, u32 began)
{
	if (failed[volume] <= began)
		fuzz_finding("told of a failure before it began", volume, began);
}

void model_ticket_told(struct ticket *t)
{
	t->stage = TICKET_NONE;
	if (!t->all) {
		model_told(t->volume, t->began);
		return;
	}
	if (failed[t->volume] <= t->told)
		fuzz_finding("told of no failure", t->volume, t->began);
	if (t->aside)
		return;
	if (t->began > failed[t->volume])
		told[t->volume] = failed[t->volume];
	for (struct sector *x = sector_of[t->volume]; x < sector_of[t->volume] + SECTORS; x++)
		if (x->acked < t->began)
			x->untold = false;
}

/* --- ends -------------------------------------------------------------------------- */

void model_open(void)
{
	for (u32 v = 0; v < NVOL; v++) {
		failed[v] = told[v] = 0;
		for (u32 s = 0; s < SECTORS; s++)
			sector_of[v][s].untold = false;
	}
}

void model_attach(u32 volume)
{
	for (struct ticket *t = ticket; t < ticket + NTICKET; t++)
		if (t->volume == volume)
			t->stage = TICKET_NONE;
	for (struct reading *r = reading; r < reading + NREADING; r++)
		if (r->volume == volume)
			r->on = false;
}

void model_crash(bool power)
{
	for (u32 i = 0; power && i < NVOL * SECTORS; i++) {
		struct sector *x = &sector_of[i / SECTORS][i % SECTORS];

		x->origin = x->durable;
		if (x->past)
			x->shown = x->durable;
	}
}
