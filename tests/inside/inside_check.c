// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_check.c - each invariant of fby_check is broken, and fby_check has to report it in its
 * words; allowed states at the bound have to pass.
 */
#include "inside.h"

#define QUIET true
static char text[256];

static bool passes(void)
{
	return fby_check(pool, QUIET, text, sizeof(text)) == FBY_DONE && text[0] == 0;
}

static void says_at(const char *file, int line, const char *message)
{
	int r = fby_check(pool, QUIET, text, sizeof(text));

	checks++;
	if (r != -FBY_E_INVARIANT || strncmp(text, message, strlen(message)) != 0) {
		failures++;
		fprintf(stderr, "inside: %s:%d: want '%s', got %d '%s'\n", file, line, message, r, text);
	}
	pool_restore();
	if (!passes())
		expect_at(false, file, line, text);
}
#define SAYS(message) says_at(__FILE__, __LINE__, message)

static void allowed_at(const char *file, int line)
{
	bool good = passes();

	expect_at(good, file, line, text);
	pool_restore();
}
#define ALLOWED() allowed_at(__FILE__, __LINE__)

static u32 page_of(u32 chunk, u32 place)
{
	return fby_page_number(&pool->space, chunk, place);
}

/* --- lists ---------------------------------------------------------------- */

static void lists(void)
{
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_chunk *first = &pool->space.chunk[owner->first], *last = &pool->space.chunk[owner->last];
	u32 spare = pool->space.free_first;

	EXPECT(owner->first == closed_chunk && owner->last == open_chunk && pool->space.nfree == NCHUNKS - 3);
	pool->space.free_first = pool->space.store.sb.nchunks;
	SAYS("the free list is broken: after 0x0, chunk 0x8");
	pool->space.chunk[spare].state = FBY_CS_CLOSED;
	SAYS("a chunk in use is on the free list");
	pool->space.chunk[spare].fill = FIRST_PAGE + 1;
	SAYS("a free chunk has live pages");
	pool->space.free_last = spare;
	SAYS("the free list ends elsewhere");

	last->next = pool->space.store.sb.nchunks;
	SAYS("a volume's chunk list is broken");
	first->owner = 1;
	SAYS("a chunk is on the wrong list");
	first->state = FBY_CS_FREE;
	SAYS("a chunk is on the wrong list");
	first->prev = open_chunk;
	SAYS("a chunk list does not lead back");
	last->prev = FBY_NO_CHUNK;
	SAYS("a chunk list does not lead back");
	first->seq_min = last->seq_min + 1;
	SAYS("a volume's chunks are out of order");
	last->fill = FIRST_PAGE - 1;
	SAYS("a chunk's fill is out of range");
	first->fill = pool->space.store.chunk_pages + 1;
	SAYS("a chunk's fill is out of range");
	owner->nchunks++;
	SAYS("a volume's chunk list is miscounted");
	owner->last = closed_chunk;
	SAYS("a volume's chunk list is miscounted");
	pool->space.owner[2].last = other_chunk; /* a chunk of an empty volume */
	SAYS("a volume's chunk list is miscounted");

	pool->space.owed++;
	SAYS("what volumes are entitled to is miscounted");
	pool->space.owed_first++;
	SAYS("what volumes are entitled to is miscounted");
	pool->space.holders--;
	SAYS("what volumes are entitled to is miscounted");

	pool->space.nfree--; /* and the list is one shorter */
	for (u32 c = spare; c != pool->space.free_last; c = pool->space.chunk[c].next)
		if (pool->space.chunk[c].next == pool->space.free_last) {
			pool->space.free_last = c;
			break;
		}
	SAYS("chunks are on no list: listed 0x7, of 0x8");
}

/* --- slots ---------------------------------------------------------------- */

static void slots(void)
{
	struct fby_slot *s = &pool->space.slot[0], *idle = &pool->space.slot[1];

	EXPECT(s->volume[0].open == open_chunk && s->volume[1].open == other_chunk);
	EXPECT(s->seq_next < s->seq_end && s->floor == s->seq_next && s->seq_end == pool->space.seq);
	idle->busy = 1;
	SAYS("a slot is busy while all is quiet: slot 0x1");
	s->seq_next = s->seq_end + 1;
	SAYS("a slot has sequence numbers not given out");
	s->seq_end++;
	SAYS("a slot has sequence numbers not given out");
	s->seq_next = s->seq_end; /* none is left: no floor is needed */
	s->floor = FBY_NO_SEQ;
	ALLOWED();
	s->floor = s->seq_next + 1;
	SAYS("a slot's floor is above its next");
	idle->volume[0].open = pool->space.free_first;
	SAYS("a slot's open chunk is not open");
	idle->volume[0].open = pool->space.store.sb.nchunks;
	SAYS("a slot's open chunk is not open");
	idle->volume[0].open = pool->space.store.sb.nchunks;
	pool->space.chunk[pool->space.store.sb.nchunks].state = FBY_CS_OPEN;
	pool->space.chunk[pool->space.store.sb.nchunks].owner = 0;
	SAYS("a slot's open chunk is not open");
	idle->volume[0].open = other_chunk;
	SAYS("a slot's open chunk is not open");
	idle->volume[0].open = open_chunk;
	SAYS("an open chunk has not one slot");
	s->volume[0].open = FBY_NO_CHUNK;
	SAYS("an open chunk has not one slot");
}

/* --- index ---------------------------------------------------------------- */

static u32 bucket_of(u32 page)
{
	return fby_index_bucket(&pool->cache, pool->cache.entry[page].key);
}

static void chains(void)
{
	u32 page = page_of(open_chunk, FIRST_PAGE), other = page + 1;
	u32 pages = pool->space.store.sb.nchunks << pool->space.store.chunk_shift;

	EXPECT(pool->cache.entry[page].next == FBY_NO_PAGE && pool->cache.bucket[bucket_of(page)] == page);
	pool->cache.bucket[bucket_of(page)] |= FBY_BUCKET_LOCK;
	SAYS("a bucket's chain is broken or held");
	pool->cache.entry[page].next = pages;
	SAYS("a bucket's chain is broken or held");
	pool->cache.entry[page].state &= ~FBY_ES_LINKED;
	SAYS("a page in a chain is not linked");
	pool->cache.entry[page].key = pool->cache.entry[other].key;
	SAYS("a page hangs in the wrong bucket");
	/* One block is twice in its bucket. */
	pool->cache.bucket[bucket_of(other)] = FBY_NO_PAGE;
	pool->cache.entry[other].key = pool->cache.entry[page].key;
	pool->cache.entry[page].next = other;
	SAYS("a block has two pages");
	pool->cache.bucket[bucket_of(page)] = FBY_NO_PAGE;
	SAYS("linked pages are in no chain");
}

/* Makes a chain that leads into a ring. */
static void ring(void)
{
	u32 page[3], b = bucket_of(page_of(open_chunk, FIRST_PAGE));
	u64 block = 0;

	for (u32 i = 0; i < 3; i++, block++) {
		page[i] = page_of(open_chunk, FIRST_PAGE + i);
		pool->cache.bucket[bucket_of(page[i])] = FBY_NO_PAGE;
		while (fby_index_bucket(&pool->cache, fby_key(0, block)) != b)
			block++;
		pool->cache.entry[page[i]].key = fby_key(0, block);
	}
	pool->cache.bucket[b] = page[0];
	pool->cache.entry[page[0]].next = page[1];
	pool->cache.entry[page[1]].next = page[2];
	pool->cache.entry[page[2]].next = page[1];
	SAYS("a block has two pages");
}

/* Puts a page in the place of another one in the index, with this key. */
static void relink(u32 page, u32 old, u64 key)
{
	u32 state = pool->cache.entry[old].state & ~FBY_ES_LINKED, from = bucket_of(old), b = fby_index_bucket(&pool->cache, key);

	EXPECT(fby_index_try(&pool->cache, from));
	fby_index_del_locked(&pool->cache, from, old);
	fby_index_release(&pool->cache, from);
	EXPECT(fby_index_try(&pool->cache, b));
	fby_index_put_locked(&pool->cache, b, key, page, state, FBY_NO_PAGE);
	fby_index_release(&pool->cache, b);
}

/* --- lines ---------------------------------------------------------------- */

static struct fby_page_line *line(u32 chunk, u32 place)
{
	return (struct fby_page_line *)memory_at(fby_line_at(&pool->space.store, chunk, place));
}

static void finish(struct fby_page_line *l)
{
	fby_line_finish(pool->space.store.line_seed, l);
}

static void linked_lines(void)
{
	u32 place = FIRST_PAGE + 1;
	struct fby_page_line *l = line(open_chunk, place);
	struct fby_chunk *ch = &pool->space.chunk[open_chunk];
	struct fby_owner *owner = &pool->space.owner[0];
	struct fby_cached *cv = &pool->cache.volume[0];

	EXPECT(l->block == 16 && l->volume == 0);
	ch->fill--;
	SAYS("a page is linked where nothing was written");
	relink(page_of(pool->space.free_first, FIRST_PAGE), page_of(open_chunk, place), fby_key(0, 16));
	pool->space.slot[0].dead[open_chunk]++;
	SAYS("a page is linked where nothing was written: chunk 0x3");
	l->volume = 1; /* and the index agrees */
	finish(l);
	relink(page_of(open_chunk, place), page_of(open_chunk, place), fby_key(1, 16));
	SAYS("a line and the index differ on the block");
	l->block++;
	finish(l);
	SAYS("a line and the index differ on the block");
	l->valid = 0x7f;
	finish(l);
	SAYS("a line and the index differ on the content");
	l->valid = 0x7f;
	l->lost = 0x80;
	pool->cache.entry[page_of(open_chunk, place)].state = FBY_ES(FBY_KIND_DATA, 0x7f, 0) | FBY_ES_LINKED;
	finish(l);
	SAYS("a line and the index differ on the content");
	l->kind = FBY_KIND_ZERO;
	finish(l);
	SAYS("a line and the index differ on the content");
	l->seq = pool->space.seq;
	finish(l);
	SAYS("a sequence number was never given out");
	l->seq = ch->seq_min - 1;
	l->prev_seq = 0;
	finish(l);
	SAYS("a page is older than its chunk");
	owner->rec.watermark = l->seq; /* those before it are lower */
	SAYS("a page below the watermark is linked");
	cv->blocks = 17; /* the page holds block 17 */
	SAYS("a block is beyond its volume: page");
	cv->blocks = 18;
	ALLOWED();
	cv->blocks = 17; /* a damaged record says nothing of it; nor is it compared */
	owner->damaged = true;
	ALLOWED();
}

/* The result of a recovery for pages that are not linked. */
static void unlinked_lines(void)
{
	struct fby_page_line *old = line(closed_chunk, FIRST_PAGE), *now = line(open_chunk, FIRST_PAGE);
	struct fby_slot *s = &pool->space.slot[0];
	u32 page = page_of(open_chunk, FIRST_PAGE + 2), b = bucket_of(page);

	EXPECT(old->block == 0 && now->block == 0 && old->seq < now->seq);
	EXPECT(fby_index_try(&pool->cache, b));
	fby_index_del_locked(&pool->cache, b, page);
	fby_index_release(&pool->cache, b);
	fby_page_dead(&pool->space, page, s->dead, &s->volume[0].dead);
	SAYS("recovery would bring back a block that is not cached");
	old->seq = now->seq + 1;
	finish(old);
	SAYS("recovery would bring back another page of a block");
	old->seq = now->seq;
	finish(old);
	ALLOWED();
	old->seq = now->seq + 1; /* at or below the watermark it does not count */
	finish(old);
	pool->space.opt.read_only = true; /* and read only, nobody settled it */
	ALLOWED();
	old->seq = now->seq + 1;
	old->kind = FBY_KIND_VOID;
	old->valid = 0;
	finish(old);
	ALLOWED();
}

static void chunks(void)
{
	struct fby_chunk *ch = &pool->space.chunk[open_chunk];
	struct fby_open_line *l = (struct fby_open_line *)memory_at(fby_open_at(&pool->space.store, open_chunk, ch->epoch & 1));

	l->epoch += 2;
	fby_line_finish(pool->space.store.line_seed, l);
	SAYS("a chunk's epoch is not that of the media");
	l->epoch += 2;
	fby_line_finish(pool->space.store.line_seed, l);
	pool->space.opt.read_only = true;
	ALLOWED();
	memory_at(fby_open_at(&pool->space.store, open_chunk, ~ch->epoch & 1))[5] ^= 1; /* the older one is damaged */
	ALLOWED();
	l->magic ^= 1; /* the newest is damaged */
	ALLOWED();
	pool->space.slot[0].dead[closed_chunk]++;
	SAYS("a chunk's live count is wrong");
}

/* --- volumes -------------------------------------------------------------- */

static void volumes(void)
{
	struct fby_owner *owner = &pool->space.owner[0], *empty = &pool->space.owner[2];
	struct fby_cached *v = &pool->cache.volume[0];
	struct fby_bypass bypass;

	owner->dead++;
	SAYS("a volume's pages are miscounted");
	v->lost_blocks++;
	SAYS("a volume's lost blocks are miscounted");
	v->lost_only++;
	SAYS("a volume's lost blocks are miscounted");
	pool->cache.entry[page_of(open_chunk, FIRST_PAGE)].state |= FBY_ES_DAMAGED;
	SAYS("a volume's lost blocks are miscounted: volume 0x0, counted 0x1");
	/* a dead page may be damaged */
	pool->cache.entry[page_of(closed_chunk, FIRST_PAGE)].state = FBY_ES_DAMAGED;
	ALLOWED();
	empty->rec.watermark = pool->space.seq;
	SAYS("a watermark is above all sequence numbers");
	empty->rec.watermark = pool->space.seq - 1;
	SAYS("a volume's record is not that of the media: volume 0x2, copy 0x0");
	empty->rec.watermark = pool->space.seq - 1;
	fby_record_write(&pool->space.store, 2, &pool->space.owner[2].rec);
	ALLOWED();
	owner->rec.marks ^= 1;
	SAYS("a volume's record is not that of the media: volume 0x0");
	owner->rec.kind = FBY_OWNER_FREE; /* a recovery would not take what the volume holds */
	SAYS("a volume's record is not that of the media: volume 0x0");
	media.base[FBY_VT_OFFSET] ^= 1; /* a damaged copy is not compared */
	ALLOWED();
	owner->rec.marks ^= 1;
	pool->space.opt.read_only = true;
	ALLOWED();
	empty->rec.kind = FBY_OWNER_FREE;
	empty->rec.watermark = pool->space.seq;
	fby_record_write(&pool->space.store, 2, &pool->space.owner[2].rec);
	ALLOWED();

	EXPECT(fby_bypass_begin(pool, &bypass, 0, 40 * FBY_PAGE_SECTORS, 2 * FBY_PAGE_SECTORS, 1) == FBY_DONE);
	EXPECT(passes());
	v->range[bypass.place].first = 17;
	SAYS("a block is cached while it is written past the cache: volume 0x0, block 0x11");
	EXPECT(fby_bypass_begin(pool, &bypass, 0, 40 * FBY_PAGE_SECTORS, 2 * FBY_PAGE_SECTORS, 1) == FBY_DONE);
	v->range[bypass.place].first = 18;
	ALLOWED();
}

/* --- what it says --------------------------------------------------------- */

static void words(void)
{
	char small[12];

	pool->space.owner[0].dead += 0x123456789abcull;
	EXPECT(fby_check(pool, QUIET, text, sizeof(text)) == -FBY_E_INVARIANT);
	EXPECT(strcmp(text, "a volume's pages are miscounted: volume 0x0, counted 0xa") == 0);
	EXPECT(fby_check(pool, false, text, sizeof(text)) == FBY_DONE); /* in use: the lists alone */
	memset(small, 'x', sizeof(small));
	EXPECT(fby_check(pool, QUIET, small, 9) == -FBY_E_INVARIANT);
	EXPECT(strcmp(small, "a volume") == 0 && small[9] == 'x');
	EXPECT(fby_check(pool, QUIET, small, 1) == -FBY_E_INVARIANT && small[0] == 0);
	small[0] = 'y';
	EXPECT(fby_check(pool, QUIET, small, 0) == -FBY_E_INVARIANT && small[0] == 'y');
	pool_restore();
	pool->space.owner[0].nchunks += 0x12345670;
	EXPECT(fby_check(pool, false, text, sizeof(text)) == -FBY_E_INVARIANT);
	pool_restore();
	pool->space.owner[1].rec.watermark = 0xfedcba9876543210ull;
	EXPECT(fby_check(pool, QUIET, text, sizeof(text)) == -FBY_E_INVARIANT);
	pool_restore();
	pool->space.owner[2].rec.watermark = 0xfedcba9876543210ull;
	SAYS("a watermark is above all sequence numbers: volume 0x2, watermark 0xfedcba9876543210");
	pool->space.usable = false;
	EXPECT(fby_check(pool, QUIET, text, sizeof(text)) == -FBY_E_RECOVERY_INCOMPLETE && text[0] == 0);
	pool_restore();
}

void test_check(void)
{
	EXPECT(passes());
	lists();
	slots();
	chains();
	ring();
	linked_lines();
	unlinked_lines();
	chunks();
	volumes();
	words();
}
