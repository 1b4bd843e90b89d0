// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * client_request.c - see client_request.h.  From top to bottom: data, what is asked of the host, reads,
 * writes, ranges, what comes before the acknowledgement, the calls.
 */
#include "host/client_request.h"

#include "medium/planted.h"

#define BATCH_SECTORS (FBY_BATCH_PAGES * FBY_PAGE_SECTORS)
#define NOINLINE __attribute__((__noinline__))

enum state {
	STATE_READ,
	STATE_WRITE,
	STATE_RANGE,
	STATE_FLUSH,
	STATE_SETTLE,
	STATE_DURABLE,
	STATE_HELD,
	STATE_ENDED,
};

/* --- the client's memory ------------------------------------------------------------ */

static void consume(struct fby_request *r, u64 bytes)
{
	while (bytes) {
		u32 left = r->data->len - r->skip;

		if (bytes < left) {
			r->skip += (u32)bytes;
			return;
		}
		bytes -= left;
		r->data++;
		r->ndata--;
		r->skip = 0;
	}
}

/* Sectors that all pieces have, to the number of most. */
static u32 available(const struct fby_request *r, u64 most)
{
	u64 bytes = 0, enough = most * FBY_SECTOR;
	u32 i;

	for (i = 0; i < r->ndata && bytes < enough + r->skip; i++)
		bytes += r->data[i].len;
	bytes -= bytes < r->skip ? bytes : r->skip;
	return (u32)((bytes < enough ? bytes : enough) / FBY_SECTOR);
}

/* --- asking the host ------------------------------------------------------------------ */

static int ask(struct fby_request *r, enum fby_next next)
{
	r->asked = (u8)next;
	return (int)next;
}

static int wait_for(struct fby_request *r, int decision)
{
	if (decision < 0)
		return decision;
	r->why = (u8)decision;
	r->awaits = 0;
	return ask(r, FBY_NEXT_WAIT);
}

/* Until what has this ticket is durable. */
static NOINLINE int wait_for_ticket(struct fby_request *r, u64 ticket)
{
	r->why = FBY_WAIT_TICKET;
	r->awaits = ticket;
	return ask(r, FBY_NEXT_WAIT);
}

static void foreground(struct fby_request *r, bool begin)
{
	if (r->foreground == begin)
		return;
	r->foreground = begin;
	fby_origin_foreground(r->pool, r->volume, begin);
}

static int ask_origin(struct fby_request *r, enum fby_request_op op, u64 sector, u64 nsectors)
{
	r->io = (struct fby_asked){ .op = (u8)op, .nruns = 1, .sector = sector, .nsectors = nsectors };
	return ask(r, FBY_NEXT_ORIGIN);
}

/* --- read ------------------------------------------------------------------------------- */

/* Puts what is missing of a block into runs.  False: those that there are come first. */
static bool add_missing(struct fby_request *r)
{
	while (r->missing) {
		u32 bit = (u32)__builtin_ctz(r->missing), n = (u32)__builtin_ctz(~((u32)r->missing >> bit));
		u32 at = r->base + bit;
		struct fby_run *last = r->nruns ? &r->runs[r->nruns - 1] : NULL;

		if (last && last->end == at)
			last->end += n;
		else if (last && (r->nruns == r->max_runs || at - last->end > FBY_DEFAULT_JOIN_GAP))
			return false;
		else
			r->runs[r->nruns++] = (struct fby_run){ at, at + n };
		r->missing &= (u8) ~(((1u << n) - 1) << bit);
	}
	return true;
}

static int ask_runs(struct fby_request *r)
{
	const struct fby_run *first = &r->runs[r->alone ? r->run : 0];
	u32 n = r->alone ? 1 : r->nruns;

	foreground(r, true);
	ask_origin(r, FBY_OP_READ, r->sector + first->start, first[n - 1].end - first->start);
	r->io.nruns = n;
	return FBY_NEXT_ORIGIN;
}

/* The runs were read, or sent.  The sectors between them are cached, and their state on the
 * origin must not matter: if one read of several runs fails, each run is read separately. */
static int runs_read(struct fby_request *r, int result)
{
	FBY_ASSERT(r->pool, result != FBY_SENT || r->io.nruns == 1);
	if (result > 0 && r->io.nruns > 1 && !FBY_BUG(REQUEST_JOINED_FAILS)) {
		r->alone = true;
		r->run = 0;
		return FBY_DONE;
	}
	if (result > 0)
		return -FBY_E_ORIGIN_IO;
	if (r->alone && ++r->run < r->nruns)
		return FBY_DONE;
	r->alone = false;
	r->nruns = 0;
	return FBY_DONE;
}

/* A sector whose memory lies in pieces. */
static NOINLINE int read_split(struct fby_request *r, u64 sector, u8 *origin, u8 *lost)
{
	u8 data[FBY_SECTOR] fby_uninitialized;
	const struct fby_vec *piece = r->data;
	u32 at = 0, skip = r->skip;
	int rc = fby_read_block(r->pool, r->volume, sector / FBY_PAGE_SECTORS, sector % FBY_PAGE_SECTORS, 1, data,
				origin, lost);

	while (rc == FBY_DONE && at < FBY_SECTOR) {
		u32 n = piece->len - skip < FBY_SECTOR - at ? piece->len - skip : FBY_SECTOR - at;

		fby_copy((u8 *)piece->base + skip, data + at, n);
		at += n;
		skip = 0;
		piece++;
	}
	return rc;
}

/* The engine has said what it has of n sectors of a block, the first of which is at. */
static inline int block_read(struct fby_request *r, int rc, u64 at, u32 n, u8 origin)
{
	if (rc < 0 && rc != -FBY_E_LOST)
		return rc;
	if (rc != FBY_DONE) {
		/* The pool's data is not durable: a read shows nothing that a cut takes back. */
		if (fby_unlikely(rc == FBY_WAIT_TICKET))
			return wait_for_ticket(r, fby_volume_ticket(r->pool, r->volume));
		r->missing = origin;
		r->base = (u32)r->done - at % FBY_PAGE_SECTORS;
	}
	r->done += n;
	if (fby_likely(rc != -FBY_E_LOST))
		return FBY_DONE;
	r->any_lost = true;
	r->lost = at;
	return ask(r, FBY_NEXT_LOST);
}

/* The next block, or what the request has of it. */
static int read_block(struct fby_request *r)
{
	u64 at = r->sector + r->done, left = r->nsectors - r->done;
	u32 first = at % FBY_PAGE_SECTORS, n = FBY_PAGE_SECTORS - first;
	u8 origin = 0, lost = 0;
	u32 bytes;
	int rc;

	if (!r->ndata)
		return ask(r, FBY_NEXT_DATA);
	bytes = r->data->len - r->skip;
	n = n < left ? n : (u32)left;
	if (fby_likely(bytes >= FBY_SECTOR)) {
		n = n < bytes / FBY_SECTOR ? n : bytes / FBY_SECTOR;
		rc = fby_read_block(r->pool, r->volume, at / FBY_PAGE_SECTORS, first, n, (u8 *)r->data->base + r->skip,
				    &origin, &lost);
	} else if (available(r, 1)) {
		n = 1;
		rc = read_split(r, at, &origin, &lost);
	} else {
		return ask(r, FBY_NEXT_DATA);
	}
	if (rc == FBY_DONE || rc == FBY_ORIGIN || rc == -FBY_E_LOST)
		consume(r, (u64)n * FBY_SECTOR);
	return block_read(r, rc, at, n, origin);
}

/* Reads cached sectors first, and after that each of the other sectors from the origin: while a
 * request reads the origin, a block may enter the cache and leave it for the origin. */
static int read_on(struct fby_request *r)
{
	for (;;) {
		int next;

		if (r->alone || !add_missing(r))
			return ask_runs(r);
		if (r->done == r->nsectors)
			break;
		next = read_block(r);
		if (next)
			return next;
	}
	if (r->nruns && !FBY_BUG(REQUEST_LAST_RUN_FORGOTTEN))
		return ask_runs(r);
	return r->any_lost ? -FBY_E_LOST : FBY_DONE;
}

/* Most reads are of one block whose memory is in one piece: most of these are done here. */
static int read_first(struct fby_request *r)
{
	u32 first = r->sector % FBY_PAGE_SECTORS, n = (u32)r->nsectors;
	u8 origin = 0, lost = 0;
	int rc;

	if (fby_unlikely(r->nsectors > FBY_PAGE_SECTORS - first || !r->nsectors || !r->ndata ||
			 r->data->len - r->skip < n * FBY_SECTOR))
		return read_on(r);
	rc = fby_read_block(r->pool, r->volume, r->sector / FBY_PAGE_SECTORS, first, n, (u8 *)r->data->base + r->skip,
			    &origin, &lost);
	rc = block_read(r, rc, r->sector, n, origin);
	return rc || !r->missing ? rc : read_on(r);
}

/* --- write, through the cache ---------------------------------------------------------------- */

/* fby_write_begin.  A write that waits, or is refused, may have given back a slot or a chunk that
 * others wait for. */
static int begin_copy(struct fby_request *r, struct fby_write *w, u32 n)
{
	int decision;

	w->wake = 0;
	decision = fby_write_begin(r->pool, w, r->volume, r->sector + r->done, n);
	if (decision != FBY_DONE && !FBY_BUG(REQUEST_WAKE_DROPPED))
		r->wake |= w->wake;
	return decision;
}

/* A batch whose memory lies in pieces. */
static NOINLINE int copy_pieces(struct fby_request *r, u64 want)
{
	u32 n = available(r, want < BATCH_SECTORS ? want : BATCH_SECTORS);
	struct fby_write w fby_uninitialized;
	int decision;

	if (!n)
		return ask(r, FBY_NEXT_DATA);
	decision = begin_copy(r, &w, n);
	if (decision)
		return decision;
	fby_write_copy(r->pool, &w, r->data, r->ndata, r->skip);
	fby_write_commit(r->pool, &w);
	fby_write_publish(r->pool, &w);
	r->wake |= w.wake;
	if (w.ticket)
		r->appended = w.ticket;
	r->done += w.nsectors;
	consume(r, (u64)w.nsectors * FBY_SECTOR);
	return FBY_DONE;
}

/* Copies one step at a time. */
static NOINLINE int copy_step(struct fby_request *r, u64 want)
{
	struct fby_write *w = r->steps;
	int decision;

	switch (r->step) {
	case 0:
		decision = begin_copy(r, w, available(r, want));
		if (decision)
			return decision;
		break;
	case 1:
		fby_write_copy(r->pool, w, r->data, r->ndata, r->skip);
		break;
	case 2:
		fby_write_commit(r->pool, w);
		break;
	default:
		fby_write_publish(r->pool, w);
		r->wake |= w->wake;
		if (w->ticket)
			r->appended = w->ticket;
		r->done += w->nsectors;
		consume(r, (u64)w->nsectors * FBY_SECTOR);
	}
	r->step = (r->step + 1) & 3;
	return ask(r, FBY_NEXT_STEP);
}

static int copy_in(struct fby_request *r)
{
	u64 want = r->through - r->done;
	u32 n, written = 0;
	int decision;

	if (fby_unlikely(!r->ndata))
		return ask(r, FBY_NEXT_DATA);
	if (fby_unlikely(r->steps != NULL))
		return copy_step(r, want);
	n = (r->data->len - r->skip) / FBY_SECTOR;
	/* The steps return the ticket. */
	if (fby_unlikely((n < want && n < BATCH_SECTORS && (r->ndata > 1 || !n)) || r->flags & FBY_REQ_TICKETS))
		return copy_pieces(r, want);
	n = n < want ? n : (u32)want;
	decision = fby_write(r->pool, r->volume, r->sector + r->done, n, (const u8 *)r->data->base + r->skip, &written,
			     &r->wake);
	r->done += written;
	consume(r, (u64)written * FBY_SECTOR);
	return decision;
}

/* --- write, past the cache -------------------------------------------------------------------- */

static int past_begin(struct fby_request *r, u32 least)
{
	u64 left = r->nsectors - r->done;
	int decision = fby_bypass_begin(r->pool, &r->past, r->volume, r->sector + r->done,
					left < ~0u ? (u32)left : ~0u, least);

	if (decision != FBY_DONE)
		return decision;
	r->looks = 0;
	foreground(r, true);
	return ask_origin(r, FBY_OP_WRITE, r->sector + r->done, r->past.nsectors);
}

/* The origin has ended the part that it was asked for, of a write or a range. */
static int past_ended(struct fby_request *r, int error)
{
	u8 op = r->io.op;

	foreground(r, false);
	fby_bypass_end(r->pool, &r->past, error, &r->wake);
	if (error && !FBY_BUG(REQUEST_ORIGIN_ERROR_DROPS))
		return -FBY_E_ORIGIN_IO;
	if (op != FBY_OP_DISCARD) {
		if (!r->covered)
			fby_zero(&r->ticket, sizeof(r->ticket));
		r->covered = true;
		fby_flush_cover(r->pool, &r->ticket, &r->past);
	}
	r->done += r->past.nsectors;
	r->past_sectors += r->past.nsectors;
	if (op == FBY_OP_WRITE && r->ndata)
		consume(r, available(r, r->past.nsectors) * (u64)FBY_SECTOR);
	return FBY_DONE;
}

/* --- waiting for destage ------------------------------------------------------------------------ */

static NOINLINE u64 origin_errors(const struct fby_request *r)
{
	struct fby_volume_info info;

	return fby_volume_info(r->pool, r->volume, &info) < 0 ? ~0ull : info.origin_errors;
}

static NOINLINE bool nearly_clean(const struct fby_request *r)
{
	struct fby_volume_info info;

	return fby_volume_info(r->pool, r->volume, &info) == FBY_DONE && info.pages <= FBY_DEFAULT_NEARLY_CLEAN_PAGES;
}

enum held { HELD_NOTHING, HELD_LOST, HELD_DATA };

/* Returns what the pool has of n sectors of a block: nothing, lost sectors, or data that destage
 * can write. */
static NOINLINE int held(const struct fby_request *r, u64 sector, u32 n)
{
	u8 data[FBY_SECTOR] fby_uninitialized;
	enum held most = HELD_NOTHING;

	for (; n; n--, sector++) {
		u8 origin, lost;
		int rc = fby_read_block(r->pool, r->volume, sector / FBY_PAGE_SECTORS, sector % FBY_PAGE_SECTORS, 1, data,
					&origin, &lost);

		if (rc == FBY_DONE || rc == FBY_WAIT_TICKET)
			return HELD_DATA;
		if (rc == -FBY_E_LOST)
			most = HELD_LOST;
		else if (rc == -FBY_E_RANGE) /* the volume ends within the block */
			break;
		else if (rc < 0)
			return rc;
	}
	return (int)most;
}

/* When the device of a grouped pool has failed, no page is released any more. */
static NOINLINE bool releases_none(const struct fby_request *r)
{
	struct fby_medium_info info;

	fby_medium_info(r->pool, &info);
	return info.failed && !FBY_BUG(REQUEST_TICKET_FAILED);
}

static int wait_for_destage(struct fby_request *r)
{
	if (releases_none(r))
		return -FBY_E_MEDIUM;
	if (r->gave_up)
		return -FBY_E_ORIGIN_IO;
	if (!r->watching)
		r->failures = origin_errors(r);
	r->watching = true;
	r->looks++;
	return ask(r, FBY_NEXT_DRAIN);
}

/* The next block is cached, and is to go past the cache.  Write-through waits until it is let
 * go of, and a cleaner for a while: blocks that are written again and again would keep
 * the pool from emptying. */
static int past_cached(struct fby_request *r)
{
	u64 at = r->sector + r->done;
	u8 mode = fby_load(&r->policy->mode);
	int has = HELD_LOST;

	if (mode == FBY_MODE_WRITE_THROUGH ||
	    (mode == FBY_MODE_CLEANER && !r->gave_up &&
	     (r->looks ? r->looks < FBY_DEFAULT_CLEANER_PATIENCE : nearly_clean(r))))
		has = held(r, at - at % FBY_PAGE_SECTORS, FBY_PAGE_SECTORS);
	if (has < 0)
		return has;
	if (has == HELD_NOTHING) { /* released, or the part before a cached block was too small */
		r->least = 1;
		return FBY_DONE;
	}
	if (has == HELD_DATA)
		return wait_for_destage(r);
	r->through = r->done + r->past.nsectors;
	r->looks = 0;
	return FBY_DONE;
}

/* Waits until only lost blocks of the request are cached.  Destage releases a block only when the
 * flushed origin has it.  A number that destage has passed would not be enough: the block may
 * have been written again meanwhile, and the newer data is destaged. */
static int settle_on(struct fby_request *r)
{
	while (r->settled < r->nsectors && !FBY_BUG(REQUEST_UNSETTLED)) {
		u64 at = r->sector + r->settled, left = r->nsectors - r->settled;
		u32 n = FBY_PAGE_SECTORS - at % FBY_PAGE_SECTORS;
		int has;

		n = n < left ? n : (u32)left;
		has = held(r, at, n);
		if (has < 0)
			return has;
		if (has == HELD_DATA)
			return wait_for_destage(r);
		r->settled += n;
	}
	return FBY_DONE;
}

/* --- writes and ranges ---------------------------------------------------------------------------- */

static int write_through(struct fby_request *r)
{
	bool may_pass = !(r->flags & (FBY_REQ_NOWAIT | FBY_REQ_BEHIND)) && fby_load(&r->policy->full_bypasses);
	int next;

	if (fby_unlikely(r->flags & FBY_REQ_BEHIND))
		return wait_for(r, FBY_WAIT_SPACE);
	next = copy_in(r);
	if (fby_likely(next == FBY_DONE) || next >= FBY_NEXT_WAIT)
		return next;
	if (next == FBY_WAIT_SPACE && may_pass) {
		next = past_begin(r, 1);
		return next < 0 || next == FBY_NEXT_ORIGIN ? next : wait_for(r, FBY_WAIT_SPACE);
	}
	return wait_for(r, next);
}

static int write_on(struct fby_request *r)
{
	int next = FBY_DONE;

	while (next == FBY_DONE && r->done < r->nsectors) {
		if (r->done < r->through)
			next = write_through(r);
		else
			next = past_begin(r, r->least);
		if (next == FBY_CACHED)
			next = past_cached(r);
		else if (next == FBY_WAIT_BLOCK)
			next = wait_for(r, next);
	}
	return next;
}

static int range_on(struct fby_request *r)
{
	enum fby_kind kind = r->op == FBY_OP_ZERO ? FBY_KIND_ZERO : FBY_KIND_DISCARD;
	int decision;

	do
		decision = fby_range(r->pool, r->volume, kind, r->sector, r->nsectors, &r->done, &r->past, &r->wake);
	while (decision == FBY_AGAIN);
	if (decision == FBY_ORIGIN)
		return ask_origin(r, (enum fby_request_op)r->op, r->sector + r->done, r->past.nsectors);
	if (decision == FBY_DONE && fby_unlikely(r->flags & FBY_REQ_TICKETS))
		r->appended = fby_volume_ticket(r->pool, r->volume);
	return decision == FBY_DONE ? FBY_DONE : wait_for(r, decision);
}

/* --- before the acknowledgement ------------------------------------------------------------------- */

static bool is_write_through(const struct fby_request *r)
{
	return fby_load(&r->policy->mode) == FBY_MODE_WRITE_THROUGH;
}

/* A later flush makes the bypassed writes durable, if true; otherwise they are flushed now. */
static bool flushed_later(const struct fby_request *r)
{
	return r->op == FBY_OP_WRITE && !(r->flags & FBY_REQ_DURABLE) && !fby_load(&r->policy->durable) &&
	       !is_write_through(r);
}

static int flush_on(struct fby_request *r)
{
	int decision;

	if (FBY_BUG(REQUEST_FLUSH_LEFT_OUT) && r->op != FBY_OP_FLUSH)
		return FBY_DONE;
	decision = fby_flush_begin(r->pool, r->volume, &r->ticket);
	r->told = r->ticket.told;
	if (decision == FBY_ORIGIN)
		return ask_origin(r, FBY_OP_FLUSH, r->sector, r->nsectors);
	return decision == FBY_DONE ? FBY_DONE : wait_for(r, decision);
}

static int flush_ended(struct fby_request *r, int error)
{
	int rc = fby_flush_end(r->pool, &r->ticket, error, &r->wake);

	r->told = r->ticket.told;
	r->covered = false;
	return rc;
}

/* In a grouped pool: what was appended is durable, or becomes so by a later flush. */
static NOINLINE int durable_on(struct fby_request *r)
{
	enum fby_ticket_state state;

	if ((r->flags & FBY_REQ_LATER && flushed_later(r)) || FBY_BUG(REQUEST_TICKET_LEFT_OUT))
		return FBY_DONE;
	state = fby_ticket_state(r->pool, r->appended);
	if (state == FBY_TICKET_PENDING)
		return wait_for_ticket(r, r->appended);
	return state == FBY_TICKET_DURABLE ? FBY_DONE : -FBY_E_MEDIUM;
}

/* Sectors of the request that the throttle counts. */
static u64 taken(const struct fby_request *r)
{
	if (r->op == FBY_OP_WRITE)
		return r->nsectors - r->past_sectors;
	return r->nsectors < FBY_DEFAULT_RANGE_THROTTLED ? r->nsectors : FBY_DEFAULT_RANGE_THROTTLED;
}

/*
 * The whole request is in the cache or on the origin; the throttle only delays the caller.  Data
 * for a later flush is checked after the delay: a flush that fails meanwhile may have lost it,
 * and that failure was reported before this request is acknowledged.
 */
static int taken_in(struct fby_request *r)
{
	int next;

	if (r->state <= STATE_FLUSH) {
		r->state = STATE_FLUSH;
		if (r->covered && !flushed_later(r)) {
			next = flush_on(r);
			if (next)
				return next;
			r->covered = false;
		}
	}
	if (r->state <= STATE_SETTLE) {
		r->state = STATE_SETTLE;
		next = fby_unlikely(is_write_through(r)) && r->op != FBY_OP_DISCARD && r->op != FBY_OP_FLUSH &&
				       r->past_sectors < r->nsectors ?
			       settle_on(r) :
			       FBY_DONE;
		if (next)
			return next;
	}
	if (r->state <= STATE_DURABLE && fby_unlikely(r->flags & FBY_REQ_TICKETS)) {
		r->state = STATE_DURABLE;
		next = durable_on(r);
		if (next)
			return next;
	}
	if (r->state < STATE_HELD) {
		r->state = STATE_HELD;
		if (r->op != FBY_OP_FLUSH && fby_unlikely(fby_write_throttled(r->pool, r->volume)))
			return ask(r, FBY_NEXT_THROTTLE);
	}
	r->state = STATE_ENDED;
	return fby_unlikely(r->covered) ? fby_flush_later(r->pool, &r->ticket) : FBY_DONE;
}

/* --- calls -------------------------------------------------------------------------------------------- */

static int advance(struct fby_request *r)
{
	int next = FBY_DONE;

	switch ((enum state)r->state) {
	case STATE_READ:
		return read_on(r);
	case STATE_WRITE:
		next = write_on(r);
		break;
	case STATE_RANGE:
		next = range_on(r);
		break;
	case STATE_FLUSH:
	case STATE_SETTLE:
	case STATE_DURABLE:
	case STATE_HELD:
		break;
	case STATE_ENDED:
		return FBY_DONE;
	}
	return next ? next : taken_in(r);
}

int fby_request_begin(struct fby_request *r)
{
	static const u8 states[] = { STATE_READ, STATE_WRITE, STATE_RANGE, STATE_RANGE, STATE_FLUSH };

	FBY_ASSERT(r->pool, r->op != FBY_OP_READ || (r->max_runs && r->nsectors <= 1u << 31));
	r->wake = 0;
	r->why = 0;
	r->step = 0;
	r->foreground = false;
	r->io = (struct fby_asked){ 0 };
	r->lost = 0;
	r->done = 0;
	r->past_sectors = 0;
	r->state = states[r->op];
	r->asked = FBY_NEXT_DONE;
	if (r->op == FBY_OP_READ) {
		r->any_lost = false;
		r->alone = false;
		r->missing = 0;
		r->nruns = 0;
		r->awaits = 0;
		return read_first(r);
	}
	r->covered = r->op == FBY_OP_FLUSH;
	r->watching = false;
	r->gave_up = false;
	r->awaits = 0;
	r->appended = 0;
	if (fby_likely(r->op == FBY_OP_WRITE)) {
		if (fby_unlikely(r->flags & FBY_REQ_NOWAIT) && fby_load(&r->policy->mode) != FBY_MODE_WRITE_BACK)
			return wait_for(r, FBY_WAIT_SPACE); /* for the origin, but it may not */
		r->least = r->flags & FBY_REQ_NOWAIT ? 0 : fby_policy_past(r->policy, r->nsectors, r->flags & FBY_REQ_METADATA);
		r->through = r->least ? 0 : r->nsectors;
		r->looks = 0;
	} else if (r->op == FBY_OP_FLUSH) {
		fby_zero(&r->ticket, sizeof(r->ticket));
		r->ticket.aside = r->flags & FBY_REQ_ASIDE;
		r->ticket.client = r->flags & FBY_REQ_CLIENT;
		r->ticket.told = r->told;
		if (r->flags & FBY_REQ_TICKETS)
			r->appended = fby_volume_ticket(r->pool, r->volume);
	}
	r->settled = 0;
	return advance(r);
}

static int origin_ended(struct fby_request *r, int result)
{
	switch ((enum fby_request_op)r->io.op) {
	case FBY_OP_READ:
		return runs_read(r, result);
	case FBY_OP_FLUSH:
		return flush_ended(r, result);
	default:
		return past_ended(r, result);
	}
}

int fby_request_resume(struct fby_request *r, int result)
{
	u8 asked = r->asked;
	int next = FBY_DONE;

	r->wake = 0;
	r->asked = FBY_NEXT_DONE;
	if (asked != FBY_NEXT_WAIT || r->why == FBY_WAIT_SPACE)
		r->flags &= (u8)~FBY_REQ_BEHIND;
	if (asked == FBY_NEXT_ORIGIN)
		next = origin_ended(r, result);
	else if (asked == FBY_NEXT_DRAIN)
		r->gave_up = result || origin_errors(r) != r->failures;
	return next ? next : advance(r);
}

u64 fby_request_delay(const struct fby_request *r, u64 now_ns)
{
	return fby_policy_delay(r->pool, r->volume, taken(r), now_ns);
}

void fby_request_end(struct fby_request *r, u32 *wake)
{
	const int gone = 5; /* EIO */

	FBY_ASSERT(r->pool, r->step == 0);
	if (fby_unlikely(r->asked == FBY_NEXT_ORIGIN && r->io.op != FBY_OP_READ)) {
		r->wake = 0;
		(void)origin_ended(r, gone);
		*wake |= r->wake;
	}
	r->asked = FBY_NEXT_DONE;
	foreground(r, false);
}
