// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_flight.c - requests that end in any order, in a ring of buffers.  As many are in flight as
 * have room, and none has another's pages.  Also, how the engine judges the time that requests
 * take.
 */
#include "inside.h"

#include "drain/round.h"

#define REQUESTS 64u
#define STEPS 20000u

static u64 state;

static u32 below(u32 n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (u32)(state >> 33) % n;
}

/* Requests in flight, oldest first.  A request has pages from `first` on; `left_out` counts skipped
 * pages before them. */
struct request {
	u32 id, first, pages, left_out;
	bool ended;
};

static struct request flying[REQUESTS];
static u32 n, next_id, head;

static u32 taken_pages(void)
{
	u32 sum = 0;

	for (u32 i = 0; i < n; i++)
		sum += flying[i].left_out + flying[i].pages;
	return sum;
}

/* Whether the ring has as many free pages in a row as the longest run needs, after the last request
 * or from the ring's beginning. */
static bool room(const struct fby_destage *d, u32 most, struct request *r)
{
	*r = (struct request){ .id = next_id, .first = head };
	if (head + most > d->ring_pages) {
		r->left_out = d->ring_pages - head;
		r->first = 0;
	}
	return n < d->nrequests && taken_pages() + r->left_out + most <= d->ring_pages;
}

static void issue(struct fby_destage *d, u32 most)
{
	u32 length = 1 + below(below(3) && most > 2 ? 2 : most), sectors = length * FBY_PAGE_SECTORS, id = ~0u;
	struct request r;
	bool good = true;

	EXPECT(fby_flight_room(d, &id) == room(d, most, &r));
	if (!room(d, most, &r))
		return;
	if (below(10) == 0)
		sectors = length = 0; /* zeroes, which need no buffer */
	else
		sectors -= below(FBY_PAGE_SECTORS);
	r.pages = length;
	EXPECT(id == r.id && d->io[id].buf == d->ring + (u64)r.first * FBY_PAGE);
	EXPECT(d->io[id].status == FBY_IOS_FREE && r.first + length <= d->ring_pages);
	for (u32 i = 0; i < n; i++)
		good = good && (r.first + length <= flying[i].first || flying[i].first + flying[i].pages <= r.first);
	EXPECT(good);
	fby_flight_take(d, id, sectors);
	d->io[id].status = FBY_IOS_BUSY;
	d->outstanding++;
	if (length)
		head = r.first + length;
	else
		r.left_out = 0;
	flying[n++] = r;
	next_id = (next_id + 1) % d->nrequests;
}

static void end(struct fby_destage *d)
{
	u32 left = 0, gone = 0;

	for (u32 some = below(4), i = 0; i < some && n; i++) {
		struct request *r = &flying[below(n)];

		if (!r->ended)
			d->io[r->id].status = FBY_IOS_DONE;
		r->ended = true;
	}
	fby_flight_reap(&pool->drain, 0);
	while (gone < n && flying[gone].ended)
		gone++;
	n -= gone;
	for (u32 i = 0; i < n; i++) {
		flying[i] = flying[i + gone];
		left += !flying[i].ended;
	}
	if (n == 0)
		next_id = head = 0;
	EXPECT(d->outstanding == left && d->taken == n && d->ring_used == taken_pages());
}

static void flies(u32 nrequests, u32 most)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 deepest = 0;

	state = nrequests * 1000 + most;
	n = next_id = head = 0;
	fby_flight_start(d, d->ring, nrequests, most * FBY_PAGE);
	EXPECT(d->ring_pages == (nrequests < 16 ? nrequests : 16) * most);
	for (u32 i = 0; i < STEPS; i++) {
		/* In turns, more requests begin than end, and fewer. */
		if (below(8) < (i / 100 % 2 ? 6 : 3))
			issue(d, most);
		else
			end(d);
		deepest = n > deepest ? n : deepest;
	}
	EXPECT(deepest == nrequests || deepest > 16 || most == 1);
	while (n)
		end(d);
	EXPECT(d->ring_used == 0 && d->ring_head == 0 && d->oldest == 0);
	pool_restore();
}

/* --- what they take -------------------------------------------------------------------- */

static u8 buffer[FBY_PAGE];
static u32 wake;

static void put(u64 block)
{
	EXPECT(write_block(0, block, buffer, &wake) == FBY_DONE);
}

/* Ends a request that found the origin idle, a second after it was sent. */
static void ends_in(enum fby_phase phase, int error)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 id;

	EXPECT(fby_flight_room(d, &id));
	fby_flight_take(d, id, FBY_PAGE_SECTORS);
	d->phase = phase;
	d->io[id].start_ns = pool->space.now_ns;
	d->heard_ns = pool->space.now_ns;
	d->io[id].alone = true;
	d->io[id].error = error;
	d->io[id].status = FBY_IOS_DONE;
	d->outstanding++;
	pool->space.now_ns += 1000000000;
	fby_flight_reap(&pool->drain, 0);
	EXPECT(d->outstanding == 0 && d->heard_ns == pool->space.now_ns);
}

/* A flush, and a request that was refused, say nothing about the number of requests that suits an
 * origin. */
static void flush_is_no_request(void)
{
	struct fby_pace *pace = &pool->drain.volume[0].pace;

	pace->base_ns = pace->latency_ns = 1u << 20;
	ends_in(FBY_PH_FLUSHING, 0);
	EXPECT(pace->base_ns == 1u << 20 && pace->latency_ns == 1u << 20);
	ends_in(FBY_PH_WRITE, 5);
	EXPECT(pace->base_ns == 1u << 20 && pace->latency_ns == 1u << 20);
	EXPECT(pool->drain.volume[0].destage.plan.refused_ns == 1000000000);
	ends_in(FBY_PH_WRITE, 0);
	EXPECT(pool->drain.volume[0].destage.plan.refused_ns == 1000000000);
	EXPECT(pace->base_ns > 1u << 20 && pace->latency_ns > 1u << 20);
	pool_restore();
}

/* Two refused requests took the origin the time until the second refusal, and not twice that time.
 */
static void refused_together(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	u32 id[2];

	d->phase = FBY_PH_WRITE;
	d->heard_ns = pool->space.now_ns;
	for (u32 i = 0; i < 2; i++) {
		EXPECT(fby_flight_room(d, &id[i]));
		fby_flight_take(d, id[i], FBY_PAGE_SECTORS);
		d->io[id[i]].start_ns = pool->space.now_ns;
		d->io[id[i]].error = 5;
		d->io[id[i]].status = FBY_IOS_BUSY;
		d->outstanding++;
	}
	for (u32 i = 0; i < 2; i++) {
		pool->space.now_ns += 1000000000;
		d->io[id[i]].status = FBY_IOS_DONE;
		fby_flight_reap(&pool->drain, 0);
		EXPECT(d->outstanding == 1 - i && d->plan.refused_ns == (i + 1) * 1000000000ull);
	}
	pool_restore();
}

/* While somebody reads, a quarter of the depth is left, and at least one request.  The depth is
 * never exceeded. */
static void depths(void)
{
	struct fby_pace *pace = &pool->drain.volume[0].pace;
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;

	for (u32 depth = 1; depth <= 64; depth++) {
		pace->depth = depth;
		EXPECT(fby_pace_depth(&pool->drain, 0) == depth);
		fby_origin_foreground(pool, 0, true);
		EXPECT(fby_pace_depth(&pool->drain, 0) == (depth <= 4 ? 1 : (depth + 3) / 4));
		fby_origin_foreground(pool, 0, false);
		pool->space.now_ns += 1000000000;
	}
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	d->buffer_sectors = FBY_PAGE_SECTORS;
	pace->depth = 1;
	EXPECT(next_request(pool->space.now_ns, &io, &wake) == FBY_ORIGIN && d->pos < d->n);
	EXPECT(next_request(pool->space.now_ns, &io, &wake) == FBY_DONE && d->outstanding == 1);
	/* After a refused request there is only one in flight, whatever the depth is. */
	pace->depth = 2;
	d->refused.doubt = true;
	fby_destage_look(&pool->space, 0);
	EXPECT(next_request(pool->space.now_ns, &io, &wake) == FBY_DONE && d->outstanding == 1);
	d->refused.doubt = false;
	fby_destage_look(&pool->space, 0);
	EXPECT(next_request(pool->space.now_ns, &io, &wake) == FBY_ORIGIN && d->outstanding == 2);
	pool_restore();
}

/* Data does not count as written if the origin hangs or refuses it. */
static void counted_when_taken(void)
{
	struct fby_volume_info info;
	struct fby_io io;
	u64 before;

	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE);
	before = info.origin_sectors_written;
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	EXPECT(next_request(pool->space.now_ns, &io, &wake) == FBY_ORIGIN && io.op == FBY_IO_WRITE);
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.origin_sectors_written == before);
	fby_destage_complete(pool, io.id, 5);
	fby_flight_reap(&pool->drain, 0);
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.origin_sectors_written == before);
	EXPECT(next_request(pool->space.now_ns + 60000000000ull, &io, &wake) == FBY_ORIGIN && io.op == FBY_IO_WRITE);
	fby_destage_complete(pool, io.id, 0);
	fby_flight_reap(&pool->drain, 0);
	EXPECT(fby_volume_info(pool, 0, &info) == FBY_DONE && info.origin_sectors_written == before + io.nsectors);
	pool_restore();
}

/* A round releases at most an eighth of the throttle's range. */
static void steps_are_small(void)
{
	struct fby_span span;

	pool->space.store.sb.nchunks = 4096;
	pool->drain.volume[0].pace.measured = true;
	pool->drain.volume[0].pace.rate = 1u << 20;
	span = fby_throttled_span(&pool->space);
	EXPECT(span.top > span.start + 8 * 64 && (span.top - span.start) / 8 < 1u << 18);
	EXPECT(fby_pace_round(&pool->drain, 0, 1u << 20) == 1u << 18);
	pool->space.pressure = true;
	EXPECT(fby_pace_round(&pool->drain, 0, 1u << 20) == (span.top - span.start) / 8);
	pool_restore();
}

/* --- what is moved ------------------------------------------------------------------------ */

/* Only block 7 is left in the closed chunk, and few chunks are free. */
static void mostly_dead(void)
{
	for (u64 block = 40; pool->space.nfree > 2; block++)
		put(block);
	for (u64 block = 1; block < BLOCKS - 1; block++)
		put(block);
	pool->space.looked_opens = FBY_NO_SEQ;
}

static bool moves(u64 now_ns)
{
	u64 moved = pool->drain.volume[0].moved;

	pool->space.now_ns = now_ns;
	pool->space.looked_opens = FBY_NO_SEQ;
	for (u32 i = 0; i < 100 && fby_relocate_step(&pool->drain, &wake); i++)
		;
	return pool->drain.volume[0].moved != moved;
}

/* While an origin is slow, a drain moves nothing, as long as the origin completes requests, and for
 * twice the time of its flush. */
static void slow_and_hung(void)
{
	const u64 second = 1000000000ull;

	for (u32 hung = 0; hung < 3; hung++) {
		struct fby_destage *d = &pool->drain.volume[0].destage;

		mostly_dead();
		d->drain = hung != 2;
		d->phase = FBY_PH_FLUSHING;
		d->cut = pool->space.chunk[closed_chunk].seq_min;
		d->ahead = 1;
		d->plan.began_ns = second;
		d->plan.flush_ns = 4000000000u;
		d->heard_ns = 10 * second;
		if (hung == 2) { /* nobody drains: the round is old */
			EXPECT(moves(10 * second));
		} else if (hung == 1) {
			EXPECT(!moves(18 * second - 1) && moves(18 * second));
		} else {
			d->phase = FBY_PH_WRITE;
			EXPECT(!moves(12 * second - 1) && moves(12 * second));
		}
		pool_restore();
	}
}

/* Up to half of a chunk is worth a move: 7 of 15 pages, and not 8. */
static void half_is_worth_it(void)
{
	for (u32 live = 7; live <= 8; live++) {
		for (u64 block = 40; pool->space.nfree > 2; block++)
			put(block);
		fby_dead_row(&pool->space, NULL)[closed_chunk] -= live - 7;
		EXPECT(fby_chunk_live(&pool->space, closed_chunk) == live);
		EXPECT(moves(pool->space.now_ns) == (live == 7));
		pool_restore();
	}
}

/* A moved copy keeps its age, and its refused mark. */
static void moved_as_it_is(void)
{
	struct fby_drained *v = &pool->drain.volume[0];
	struct fby_found f;

	mostly_dead();
	pool->space.chunk[closed_chunk].opened_ns = 1000;
	pool->space.chunk[closed_chunk].copies_ns = 5;
	fby_index_find(&pool->cache, fby_key(0, 7), &f);
	pool->cache.entry[f.page].state |= FBY_ES_COPY | FBY_ES_REFUSED;
	v->destage.refused.last = 1;
	v->last_error = 5;
	EXPECT(moves(2000) && v->moved_ns == 5);
	fby_index_find(&pool->cache, fby_key(0, 7), &f);
	EXPECT((f.state & FBY_ES_REFUSED) && v->destage.refused.last == v->moved_last);
	fby_refused_passed(&pool->drain, 0, v->destage.refused.last - 1);
	EXPECT(v->last_error == 5);
	pool_restore();
}

/* A chunk whose pages cannot be moved is not tried again. */
static void cannot_be_moved(void)
{
	struct fby_found f;

	mostly_dead();
	fby_index_find(&pool->cache, fby_key(0, 7), &f);
	EXPECT(fby_page_chunk(&pool->space.store, f.page) == closed_chunk);
	fby_page_mark(&pool->cache, f.page, fby_key(0, 7), FBY_ES_DAMAGED);
	EXPECT(!moves(pool->space.now_ns) && pool->space.chunk[closed_chunk].stays);
	pool->space.chunk[pool->space.free_first].stays = true; /* until it is opened again */
	for (u64 block = 100; pool->space.nfree > 1; block++)
		put(block);
	EXPECT(!pool->space.chunk[pool->space.owner[0].last].stays);
	pool_restore();
}

/* Moved pages keep their age until the watermark has passed all of them, and no longer. */
static void old_to_the_last(void)
{
	pool->space.opt.max_age_ns = 100;
	pool->space.chunk[closed_chunk].opened_ns = pool->space.chunk[open_chunk].opened_ns = 1000;
	pool->space.now_ns = 1050;
	pool->space.seq = 1000;
	fby_moved_note(&pool->drain, 0, 949);
	pool->space.owner[0].rec.watermark = 998;
	EXPECT(fby_volume_aged(&pool->drain, 0));
	pool->space.owner[0].rec.watermark = 999;
	EXPECT(!fby_volume_aged(&pool->drain, 0));
	pool_restore();
}

/* --- the list ------------------------------------------------------------------------------- */

/* A run longer than the limit counts as long as the limit. */
static void longest_run(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;

	for (u64 block = BLOCKS; pool->space.slot[0].volume[0].open != FBY_NO_CHUNK || block < BLOCKS + 65; block++)
		put(block); /* to the end of a chunk */
	fby_owner_count(&pool->space, 0);
	pool->space.pressure = true;
	pool->space.share = 1;
	pool->space.nfree = fby_owed(&pool->space) + 4;
	d->plan.scale = 1u << 16;
	d->cap = 48;
	fby_round_collect(&pool->drain, 0, &wake);
	EXPECT(d->plan.keeps && d->n > 1);
	while (!fby_plan_step(&pool->drain, 0))
		;
	EXPECT(d->plan.runs[FBY_RUN_MOST] == 1 && d->page[1].run == FBY_RUN_MOST);
	pool_restore();
}

/* The block at which the next request may begin does not go ahead yet. */
static void next_stays(void)
{
	struct fby_destage *d = &pool->drain.volume[0].destage;
	struct fby_io io;
	u64 next;

	put(40); /* there is an open chunk */
	EXPECT(fby_volume_drain(pool, 0, true) == FBY_DONE);
	for (u32 i = 0; i < 100 && d->phase != FBY_PH_WRITE; i++)
		EXPECT(fby_destage_step(pool, 1000000000ull, &io, &next, &wake) == FBY_AGAIN);
	d->drain = false;
	for (u32 i = 0; i < d->n; i++)
		d->page[i].keep = d->page[i].k == 5;
	EXPECT(d->page[5].k == 5 && d->page[6].k == 6);
	d->pos = 6;
	d->outstanding = pool->drain.volume[0].pace.depth = 1;
	d->issued = 5;
	EXPECT(fby_destage_step(pool, 1000000000ull, &io, &next, &wake) == FBY_DONE && pool->drain.volume[0].moved == 0);
	d->issued = 6;
	fby_destage_look(&pool->space, 0);
	EXPECT(fby_destage_step(pool, 1000000000ull, &io, &next, &wake) == FBY_AGAIN && pool->drain.volume[0].moved == 1);
	d->outstanding = 0;
	pool_restore();
}

void test_flight(void)
{
	flies(1, 1);
	flies(1, 64);
	flies(2, 2);
	flies(3, 16);
	flies(15, 7);
	flies(16, 64);
	flies(17, 64);
	flies(63, 5);
	flies(64, 1);
	flies(64, 64);
	flush_is_no_request();
	refused_together();
	depths();
	counted_when_taken();
	steps_are_small();
	slow_and_hung();
	half_is_worth_it();
	moved_as_it_is();
	cannot_be_moved();
	old_to_the_last();
	longest_run();
	next_stays();
}
