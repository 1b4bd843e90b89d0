// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_ops_requests.c - see fuzz_ops_requests.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_ops_requests.h"

#define NWRITE 3u
#define NPAST 3u
#define NPENDING 4u
#define BATCH_SECTORS (FBY_BATCH_PAGES * FBY_PAGE_SECTORS)

struct fby_pool *pool;

static struct reading *looking; /* the read that others come beside of */

/* Writes between begin and publish. */
static struct write {
	struct fby_write w;
	u64 sector;
	u32 version;
	enum { WRITE_NONE, WRITE_BEGUN, WRITE_COPIED, WRITE_COMMITTED } stage;
} held[NWRITE];

/* Requests that bypass the cache: writes, zeroings, discards. */
static struct past {
	struct fby_bypass b;
	u64 sector;
	u32 version, began;
	enum fby_kind kind;
	bool failed; /* on the origin */
	enum { PAST_NONE, PAST_BEGUN, PAST_ON_ORIGIN } stage;
} past[NPAST];

/* Requests of destage. */
static struct fby_io pending[NPENDING];
static u32 npending;

static void trace(const char *what, u32 volume, u64 sector, u64 n)
{
	if (getenv("FUZZ_TRACE"))
		fprintf(stderr, "  %s: volume %u sector %llu n %llu\n", what, volume, (unsigned long long)sector,
			(unsigned long long)n);
}

static void put(u8 *sector, u32 value)
{
	for (u32 i = 0; i < FBY_SECTOR; i += 4)
		memcpy(sector + i, &value, 4);
}

static u32 get(const u8 *sector, u32 volume, u64 at)
{
	u32 value, other;

	memcpy(&value, sector, 4);
	for (u32 i = 4; i < FBY_SECTOR; i += 4) {
		memcpy(&other, sector + i, 4);
		if (other != value)
			fuzz_finding("torn sector", volume, at);
	}
	return value;
}

/* --- what is held ------------------------------------------------------------------- */

static bool writes_held(void)
{
	for (u32 i = 0; i < NWRITE; i++)
		if (held[i].stage)
			return true;
	return false;
}

bool held_of(u32 volume)
{
	bool found = false;

	for (u32 i = 0; i < NWRITE; i++)
		found |= held[i].stage && held[i].w.volume == volume;
	for (u32 i = 0; i < NPAST; i++)
		found |= past[i].stage && past[i].b.volume == volume;
	for (u32 i = 0; i < NTICKET; i++)
		found |= ticket[i].stage && ticket[i].volume == volume;
	for (u32 i = 0; i < NREADING; i++)
		found |= reading[i].on && reading[i].volume == volume;
	return found;
}

bool held_any(void)
{
	return held_of(0) || held_of(1);
}

static bool same_block(u64 a, u64 na, u64 b, u64 nb)
{
	return a / FBY_PAGE_SECTORS <= (b + nb - 1) / FBY_PAGE_SECTORS &&
	       b / FBY_PAGE_SECTORS <= (a + na - 1) / FBY_PAGE_SECTORS;
}

/* No two writes of one block at a time: one has it from its begin to its end. */
static void check_alone(u32 volume, u64 sector, u64 n, const void *self)
{
	for (u32 i = 0; n && i < NWRITE; i++)
		if (held[i].stage && &held[i] != self && held[i].w.volume == volume &&
		    same_block(sector, n, held[i].sector, held[i].w.nsectors))
			fuzz_finding("a block is written twice at a time", sector, held[i].sector);
	for (u32 i = 0; n && i < NPAST; i++)
		if (past[i].stage && &past[i] != self && past[i].b.volume == volume &&
		    same_block(sector, n, past[i].sector, past[i].b.nsectors))
			fuzz_finding("a block is written beside a write past the cache", sector, past[i].sector);
}

/* Nor on the origin.  Destage may write disjoint sectors of one page. */
static void check_origin_alone(u32 volume, u64 sector, u64 n, bool destage)
{
	for (u32 i = 0; i < npending; i++)
		if (pending[i].op != FBY_IO_FLUSH && pending[i].volume == volume &&
		    same_block(sector, n, pending[i].sector, pending[i].nsectors) &&
		    (!destage || (sector < pending[i].sector + pending[i].nsectors && pending[i].sector < sector + n)))
			fuzz_finding("two origin writes for one block in flight", sector, pending[i].sector);
}

/* An error must be the one that the arguments ask for, and who waits, wait for somebody. */
static void check_answer(int rc, u32 volume, u64 sector, u64 n)
{
	bool beyond = n == 0 || sector + n > volume_sectors[volume];
	bool odd = volume_block[volume] == 4096 && (sector | n) % FBY_PAGE_SECTORS;
	bool others = writes_held();

	if (rc == FBY_WAIT_SLOT && !others)
		fuzz_finding("waits for a slot that nobody holds", sector, n);
	for (u32 i = 0; i < NPAST; i++)
		others |= past[i].stage && past[i].b.volume == volume;
	if (rc == FBY_WAIT_BLOCK && !others)
		fuzz_finding("waits for a block that nobody holds", sector, n);
	if (rc == FBY_WAIT_BLOCK || rc == FBY_WAIT_SLOT || rc == FBY_WAIT_SPACE)
		return;
	if (rc >= 0 ? beyond || odd : !(rc == -FBY_E_RANGE && beyond) && !(rc == -FBY_E_ALIGNMENT && odd))
		fuzz_finding("wrong answer to arguments", sector, n);
}

/* --- writes through the cache ---------------------------------------------------------- */

void write_now(u32 volume, u64 sector, u32 n)
{
	static u8 buf[256 * FBY_SECTOR];
	u32 done = 0, wake = 0, version;
	int rc;

	version = model_version();
	for (u32 i = 0; i < n; i++)
		put(buf + i * FBY_SECTOR, version);
	rc = fby_write(pool, (u16)volume, sector, n, buf, &done, &wake);
	if (done > n || (rc == FBY_DONE && done != n))
		fuzz_finding("a write counts wrong", done, n);
	check_answer(rc, volume, sector, n);
	check_alone(volume, sector, done, NULL);
	model_show(volume, sector, done, version);
}

void write_hold(u32 volume, u64 sector, u32 n)
{
	struct write *h = held;
	int rc;

	while (h < held + NWRITE && h->stage)
		h++;
	if (h == held + NWRITE)
		return;
	rc = fby_write_begin(pool, &h->w, (u16)volume, sector, n);
	check_answer(rc, volume, sector, n);
	if (rc != FBY_DONE)
		return;
	h->sector = sector;
	h->version = model_version();
	h->stage = WRITE_BEGUN;
	check_alone(volume, sector, h->w.nsectors, h);
}

/* Data in pieces, the first bytes of the vector not part of the batch. */
static void write_copy(struct write *h, u32 shape)
{
	static u8 buf[BATCH_SECTORS * FBY_SECTOR + 64];
	u32 skip = shape % 64, bytes = h->w.nsectors * FBY_SECTOR, cut = skip + shape * 37 % (bytes + 1);
	struct fby_vec vec[2] = { { buf, cut }, { buf + cut, skip + bytes - cut } };

	for (u32 i = 0; i < h->w.nsectors; i++)
		put(buf + skip + i * FBY_SECTOR, h->version);
	fby_write_copy(pool, &h->w, vec, 2, skip);
}

static void write_advance(struct write *h, u32 shape)
{
	switch (h->stage) {
	case WRITE_NONE:
		return;
	case WRITE_BEGUN:
		write_copy(h, shape);
		h->stage = WRITE_COPIED;
		return;
	case WRITE_COPIED:
		fby_write_commit(pool, &h->w);
		h->stage = WRITE_COMMITTED;
		return;
	case WRITE_COMMITTED:
		fby_write_publish(pool, &h->w);
		model_show(h->w.volume, h->sector, h->w.nsectors, h->version);
		h->stage = WRITE_NONE;
		return;
	}
}

void write_go_on(u32 how, u32 shape)
{
	write_advance(&held[how % NWRITE], shape);
}

/* --- flushes ---------------------------------------------------------------------------- */

static int ticket_answer(struct ticket *t, int rc)
{
	switch (rc) {
	case FBY_DONE:
		model_ticket_done(t);
		break;
	case -FBY_E_ORIGIN_IO:
		model_ticket_told(t);
		break;
	case FBY_ORIGIN:
		for (u32 i = 0; i < npending; i++)
			if (pending[i].op == FBY_IO_FLUSH && pending[i].volume == t->volume)
				fuzz_finding("two flushes of one origin", t->volume, 0);
		for (u32 i = 0; i < NTICKET; i++)
			if (ticket[i].stage == TICKET_SENT && ticket[i].volume == t->volume)
				fuzz_finding("two flushes of one origin", t->volume, i);
		model_flush_sent(t->volume);
		t->stage = TICKET_SENT;
		break;
	case FBY_WAIT_FLUSH:
		break;
	default:
		fuzz_finding("flush", t->volume, (u64)rc);
	}
	trace(rc == FBY_DONE ? "flush: done" : rc == FBY_ORIGIN ? "flush: sent" : rc > 0 ? "flush: waits" : "flush: told",
	      t->volume, t->began, t->all);
	return rc;
}

static int ticket_begin(struct ticket *t)
{
	return ticket_answer(t, fby_flush_begin(pool, (u16)t->volume, &t->t));
}

static int ticket_end(struct ticket *t, u32 how)
{
	bool done = how >> 4 & 3;
	u32 wake = 0;

	if (done)
		model_flush_done(t->volume, how >> 6 & 1);
	else
		model_flush_failed(t->volume, how >> 6 & 1);
	t->stage = TICKET_WAITS;
	return ticket_answer(t, fby_flush_end(pool, &t->t, done ? 0 : 5, &wake));
}

/* One of its own, not among those held. */
static int ticket_now(struct ticket *t)
{
	int rc = ticket_begin(t);

	return rc == FBY_ORIGIN ? ticket_end(t, 0x10) : rc;
}

int flush_now(u32 volume)
{
	struct ticket t;

	model_ticket(&t, volume, false);
	return ticket_now(&t);
}

static struct ticket *ticket_free(void)
{
	for (u32 i = 0; i < NTICKET; i++)
		if (!ticket[i].stage)
			return &ticket[i];
	return NULL;
}

void flush_hold(u32 volume, bool aside)
{
	struct ticket *t = ticket_free();

	if (!t)
		return;
	model_ticket(t, volume, aside);
	ticket_begin(t);
}

static void ticket_advance(struct ticket *t, u32 how)
{
	if (t->stage == TICKET_WAITS)
		ticket_begin(t);
	else if (t->stage == TICKET_SENT)
		ticket_end(t, how);
}

void flush_go_on(u32 which, u32 how)
{
	ticket_advance(&ticket[which % NTICKET], how);
}

void flush_waiting(void)
{
	for (u32 i = 0; i < NTICKET; i++) {
		ticket_advance(&ticket[i], 0x10);
		ticket_advance(&ticket[i], 0x10);
		if (ticket[i].stage)
			fuzz_finding("a flush waits for nobody", ticket[i].volume, i);
	}
}

/* --- past the cache ---------------------------------------------------------------------- */

static struct past *past_free(void)
{
	for (u32 i = 0; i < NPAST; i++)
		if (!past[i].stage)
			return &past[i];
	return NULL;
}

/* The engine has given out x->b for a request that begins there. */
static void past_begun(struct past *x, u32 volume, u64 sector, u64 most, enum fby_kind kind, u32 began)
{
	trace("past the cache", volume, sector, x->b.nsectors);
	if (x->b.nsectors == 0 || x->b.nsectors > most)
		fuzz_finding("sectors past the cache", x->b.nsectors, most);
	x->sector = sector;
	x->kind = kind;
	x->began = began;
	x->failed = false;
	x->version = kind == FBY_KIND_DATA ? model_version() : 0;
	x->stage = PAST_BEGUN;
	check_alone(volume, sector, x->b.nsectors, x);
	check_origin_alone(volume, sector, x->b.nsectors, false);
}

/* A failing request may have come to its first half. */
static void past_on_origin(struct past *x, u32 how)
{
	u32 n = x->b.nsectors;

	x->failed = !(how >> 4 & 3);
	if (x->failed)
		n = how >> 6 & 1 ? (n + 1) / 2 : 0;
	model_past(x->b.volume, x->sector, n, x->version, x->kind);
	x->stage = PAST_ON_ORIGIN;
}

static bool past_lost(const struct past *x)
{
	for (u32 i = 0; i < x->b.nsectors; i++)
		if (sector_of[x->b.volume][x->sector + i].shown != x->version)
			return true;
	return false;
}

/* Acknowledges the request when it is durable.  No room to wait: it is never acknowledged. */
static void past_durable(const struct past *x, struct ticket *t, struct fby_flush covers)
{
	memset(t, 0, sizeof(*t));
	t->t = covers;
	t->stage = TICKET_WAITS;
	t->volume = x->b.volume;
	t->began = x->began;
	t->sector = x->sector;
	t->n = x->b.nsectors;
	t->version = x->version;
	t->must_fail = past_lost(x);
}

static void past_end(struct past *x, u32 how)
{
	struct fby_flush covers = { 0 };
	struct ticket *t = ticket_free(), own;
	u32 wake = 0;

	fby_bypass_end(pool, &x->b, x->failed ? 5 : 0, &wake);
	x->stage = PAST_NONE;
	if (x->failed || x->kind == FBY_KIND_DISCARD)
		return;
	fby_flush_cover(pool, &covers, &x->b);
	if (x->kind == FBY_KIND_DATA && how & 1) { /* acknowledged at once */
		if (fby_flush_later(pool, &covers) != FBY_DONE) {
			model_told(x->b.volume, x->began);
			return;
		}
		if (past_lost(x))
			fuzz_finding("acknowledged although it is lost", x->b.volume, x->sector);
		model_ack(x->b.volume, x->sector, x->b.nsectors, x->version);
	} else if (how & 2 && t) {
		past_durable(x, t, covers);
		ticket_begin(t);
	} else {
		past_durable(x, &own, covers);
		ticket_now(&own);
	}
}

static void past_advance(struct past *x, u32 how)
{
	if (x->stage == PAST_BEGUN)
		past_on_origin(x, how);
	else if (x->stage == PAST_ON_ORIGIN)
		past_end(x, how);
}

void past_go_on(u32 which, u32 how)
{
	past_advance(&past[which % NPAST], how);
}

/* NULL: it is done as far as it goes, *done sectors of it. */
static struct past *past_begin(u32 volume, u64 sector, u32 n, u32 *done)
{
	struct past *x = past_free();
	u32 began = model_now();
	int rc;

	*done = 0;
	if (!x)
		return NULL;
	rc = fby_bypass_begin(pool, &x->b, (u16)volume, sector, n, 1 + sector % 12);
	check_answer(rc == FBY_CACHED ? FBY_DONE : rc, volume, sector, n);
	if (rc == FBY_CACHED) {
		if (x->b.nsectors == 0 || x->b.nsectors > n)
			fuzz_finding("cached sectors", x->b.nsectors, n);
		*done = x->b.nsectors;
		write_now(volume, sector, *done);
	}
	if (rc != FBY_DONE)
		return NULL;
	past_begun(x, volume, sector, n, FBY_KIND_DATA, began);
	return x;
}

void past_hold(u32 volume, u64 sector, u32 n)
{
	u32 done;

	past_begin(volume, sector, n, &done);
}

void past_now(u32 volume, u64 sector, u32 n)
{
	struct past *x;
	u32 done;

	while (n > 0) {
		x = past_begin(volume, sector, n, &done);
		if (x) {
			done = x->b.nsectors;
			past_advance(x, 0x10);
			past_advance(x, 1);
		}
		if (done == 0)
			return;
		sector += done;
		n -= done;
	}
}

/* As far as it is entries; then the part that goes past the cache, or NULL. */
static struct past *range_begin(u32 volume, enum fby_kind kind, u64 sector, u64 n, u64 *done)
{
	struct past *x = past_free();
	u32 wake = 0, began = model_now();
	u64 before = *done;
	int rc;

	if (!x)
		return NULL;
	rc = fby_range(pool, (u16)volume, kind, sector, n, done, &x->b, &wake);
	if (*done > n)
		fuzz_finding("a range counts wrong", *done, n);
	if (n)
		check_answer(rc, volume, sector, n);
	for (u64 s = before; s < *done; s++) /* a discard of part of a block is advice */
		if (kind == FBY_KIND_ZERO ||
		    ((sector + s) / 8 * 8 >= sector && (sector + s) / 8 * 8 + 8 <= sector + n)) {
			check_alone(volume, sector + s, 1, NULL);
			model_show(volume, sector + s, 1, 0);
		}
	if (rc != FBY_ORIGIN)
		return NULL;
	past_begun(x, volume, sector + *done, n - *done, kind, began);
	return x;
}

void range_hold(u32 volume, enum fby_kind kind, u64 sector, u64 n)
{
	u64 done = 0;

	range_begin(volume, kind, sector, n, &done);
}

void range_now(u32 volume, enum fby_kind kind, u64 sector, u64 n)
{
	struct past *x;
	u64 done = 0;
	u32 rounds = 0;

	while ((x = range_begin(volume, kind, sector, n, &done))) {
		done += x->b.nsectors;
		past_advance(x, 0x10);
		past_advance(x, 0);
		if (rounds++ > 600)
			fuzz_finding("a range does not end", sector, n);
	}
}

/* --- reads ------------------------------------------------------------------------------- */

static void read_begin(struct reading *r, u32 volume, u64 block, u32 first, u32 n)
{
	u8 buf[FBY_PAGE], origin, lost;
	int rc;

	memset(buf, 0xee, sizeof(buf));
	rc = fby_read_block(pool, (u16)volume, block, first, n, buf, &origin, &lost);
	if (rc != FBY_DONE && rc != FBY_ORIGIN)
		fuzz_finding("read fails", r->sector, (u64)-rc);
	r->from_origin = origin >> first;
	for (u32 i = 0; i < n; i++)
		if (!(r->from_origin >> i & 1))
			model_read(r, i, get(buf + i * FBY_SECTOR, volume, r->sector + i));
}

static void read_end(struct reading *r)
{
	for (u32 i = 0; r->on && i < r->n; i++)
		if (r->from_origin >> i & 1)
			model_read(r, i, sector_of[r->volume][r->sector + i].origin);
	r->on = false;
}

void read_now(u32 volume, u64 block, u32 first, u32 n)
{
	struct reading r;

	if (block * FBY_PAGE_SECTORS + first + n > volume_sectors[volume])
		return;
	model_read_begin(&r, volume, block * FBY_PAGE_SECTORS + first, n);
	read_begin(&r, volume, block, first, n);
	read_end(&r);
}

void read_hold(u32 volume, u64 block, u32 first, u32 n, void (*beside)(void))
{
	struct reading *r = reading;

	while (r < reading + NREADING && r->on)
		r++;
	if (r == reading + NREADING || block * FBY_PAGE_SECTORS + first + n > volume_sectors[volume])
		return;
	model_read_begin(r, volume, block * FBY_PAGE_SECTORS + first, n);
	looking = r;
	fuzz_media_beside = beside;
	read_begin(r, volume, block, first, n);
	fuzz_media_beside = NULL;
	looking = NULL;
	if (!r->from_origin)
		r->on = false;
}

void read_go_on(u32 which)
{
	if (&reading[which % NREADING] != looking)
		read_end(&reading[which % NREADING]);
}

/* --- the origin, and destage ---------------------------------------------------------------- */

static void origin_write(const struct fby_io *io, u64 n)
{
	for (u64 s = 0; s < n; s++)
		sector_of[io->volume][io->sector + s].origin =
			io->op == FBY_IO_WRITE ? get((const u8 *)io->buf + s * FBY_SECTOR, io->volume, io->sector + s) : 0;
}

static void origin_do(const struct fby_io *io, bool what_came_later)
{
	trace(io->op == FBY_IO_FLUSH ? "origin: flushed" : "origin: written", io->volume, io->sector, io->nsectors);
	switch (io->op) {
	case FBY_IO_WRITE:
	case FBY_IO_ZERO:
	case FBY_IO_DISCARD:
		origin_write(io, io->nsectors);
		return;
	case FBY_IO_FLUSH:
		model_flush_done(io->volume, what_came_later);
		return;
	}
	fuzz_finding("unknown origin request", io->op, 0);
}

static void origin_fail(const struct fby_io *io, u32 how)
{
	trace(io->op == FBY_IO_FLUSH ? "origin: flush fails" : "origin: write fails", io->volume, io->sector,
	      io->nsectors);
	if (io->op == FBY_IO_FLUSH)
		model_flush_failed(io->volume, how & 1);
	else if (io->op == FBY_IO_WRITE && how)
		origin_write(io, (io->nsectors + 1) / 2);
}

int origin_at_once(const struct fby_io *io)
{
	if (io->op == FBY_IO_FLUSH)
		model_flush_sent(io->volume);
	origin_do(io, false);
	return 0;
}

void destage_step(u32 ms)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;

	if (npending == NPENDING)
		return;
	fuzz_now_ns += ms * 1000000ull;
	if (fby_destage_step(pool, fuzz_now_ns, &io, &next, &wake) != FBY_ORIGIN)
		return;
	if (io.op == FBY_IO_FLUSH) {
		for (u32 i = 0; i < NTICKET; i++)
			if (ticket[i].stage == TICKET_SENT && ticket[i].volume == io.volume)
				fuzz_finding("two flushes of one origin", io.volume, i);
		model_flush_sent(io.volume);
	} else {
		if (io.nsectors == 0 || io.sector + io.nsectors > volume_sectors[io.volume])
			fuzz_finding("origin request out of range", io.sector, io.nsectors);
		check_origin_alone(io.volume, io.sector, io.nsectors, true);
		for (u32 i = 0; i < NPAST; i++)
			if (past[i].stage && past[i].b.volume == io.volume &&
			    same_block(io.sector, io.nsectors, past[i].sector, past[i].b.nsectors))
				fuzz_finding("destage writes a block that is written past the cache", io.sector,
					     past[i].sector);
	}
	pending[npending++] = io;
}

bool destage_pending(void)
{
	return npending > 0;
}

/* how: low bits choose which; then done, failed, or failed after half of it. */
void destage_complete(u32 how)
{
	u32 i = how % (npending ? npending : 1);
	struct fby_io io;

	if (!npending)
		return;
	io = pending[i];
	pending[i] = pending[--npending];
	if (how >> 4 & 3)
		origin_do(&io, how >> 6 & 1);
	else
		origin_fail(&io, how >> 6);
	fby_destage_complete(pool, io.id, how >> 4 & 3 ? 0 : 5);
}

/* --- ends -------------------------------------------------------------------------------------- */

void held_finish(void)
{
	for (u32 i = 0; i < NWRITE; i++)
		while (held[i].stage)
			write_advance(&held[i], 3);
	for (u32 i = 0; i < NPAST; i++)
		while (past[i].stage)
			past_advance(&past[i], 0x10);
	for (u32 i = 0; i < NREADING; i++)
		read_end(&reading[i]);
	for (u32 i = 0; i < NTICKET; i++)
		if (ticket[i].stage == TICKET_SENT)
			ticket_end(&ticket[i], 0x10);
}

void held_crash(bool late)
{
	for (u32 i = 0; i < NWRITE; i++) {
		if (held[i].stage == WRITE_COMMITTED)
			model_show(held[i].w.volume, held[i].sector, held[i].w.nsectors, held[i].version);
		held[i].stage = WRITE_NONE;
	}
	for (u32 i = 0; i < NPAST; i++)
		past[i].stage = PAST_NONE;
	for (u32 i = 0; i < NTICKET; i++)
		ticket[i].stage = TICKET_NONE;
	for (u32 i = 0; i < NREADING; i++)
		reading[i].on = false;
	while (npending) {
		npending--;
		if (late)
			origin_do(&pending[npending], false);
	}
}
