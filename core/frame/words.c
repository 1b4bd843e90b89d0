// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * words.c - which pages of a frame are dirty: words that any number of threads and processes
 * change at the same time, each by one atomic store of 8 bytes.  So no cut tears a word, and its
 * check detects a damaged one, or one of an earlier use of the frame.
 *
 * The stores are made in place, not through medium.h: a process has the memory of a frame and its
 * descriptor, but no pool.
 */
#include "frame/frame.h"

u32 fby_frame_seed(u32 map_seed, u32 frame, u64 epoch)
{
	struct {
		u64 epoch;
		u64 frame;
	} of = { epoch, frame };

	return fby_crc32c(map_seed, &of, sizeof(of));
}

u64 fby_frame_word(u32 seed, u32 i, u32 bits)
{
	u32 of[2] = { bits, i };

	return (u64)fby_crc32c(seed, of, sizeof(of)) << 32 | bits;
}

bool fby_frame_word_ok(u32 seed, u32 i, u64 word)
{
	return FBY_BUG(MAP_WORDS_UNCHECKED) ||
	       (fby_frame_word(seed, i, (u32)word) == word &&
		((u32)word == FBY_MW_CLOSED || !(FBY_MW_WRITING(word) & ~FBY_MW_DIRTY(word))));
}

/* The pages of word i in a bitmap. */
static u32 pages_of(const struct fby_pages *pages, u32 i)
{
	return (u32)(pages->bit[i / 4] >> (i % 4 * 16)) & 0xffff;
}

static void pages_put(struct fby_pages *pages, u32 i, u32 of)
{
	u32 shift = i % 4 * 16;

	pages->bit[i / 4] = (pages->bit[i / 4] & ~(0xffffull << shift)) | (u64)of << shift;
}

static u32 count_of(u32 pages)
{
	return fby_mask_count((u8)pages) + fby_mask_count((u8)(pages >> 8));
}

static u32 words_of(const struct fby_frame *f)
{
	return f->npages / 16;
}

/* Pages of word i that the file has. */
static u32 within(const struct fby_frame *f, u32 i)
{
	if (f->limit >= (i + 1) * 16)
		return 0xffff;
	return f->limit > i * 16 ? (1u << (f->limit - i * 16)) - 1 : 0;
}

static bool load_word(const struct fby_frame *f, u32 i, u64 *word)
{
	*word = fby_load_acquire(&f->words[i]);
	return fby_frame_word_ok(f->seed, i, *word);
}

static void flush_words(const struct fby_frame *f, u32 first, u32 end)
{
	if (first < end)
		f->port->flush(f->host, &f->words[first], (end - first) * sizeof(u64));
}

/* --- sync -------------------------------------------------------------------------- */

/* Writes runs of pages back to the media. */
static void flush_pages(const struct fby_frame *f, const struct fby_pages *pages)
{
	u32 first = 0, n;

	while (first < f->npages) {
		u64 left = pages->bit[first / 64] >> (first % 64);

		if (!left) {
			first = (first / 64 + 1) * 64;
			continue;
		}
		first += (u32)left ? (u32)__builtin_ctz((u32)left) : 32 + (u32)__builtin_ctz((u32)(left >> 32));
		for (n = 0; first + n < f->npages && fby_pages_has(pages, first + n);)
			n++;
		if (n)
			f->port->flush(f->host, f->memory + (size_t)first * FBY_PAGE, (size_t)n * FBY_PAGE);
		first += n + 1;
	}
}

/* Marks pages as dirty and, if a write back has begun, as synced since. */
static int mark(const struct fby_frame *f, u32 i, u32 pages)
{
	u64 word, now;

	do {
		u32 writing;

		if (!load_word(f, i, &word))
			return -FBY_E_MAP_DAMAGED;
		if ((u32)word == FBY_MW_CLOSED)
			return -FBY_E_NO_MAP;
		writing = FBY_MW_WRITING(word);
		if (!FBY_BUG(MAP_SYNC_LEAVES_WRITING))
			writing &= ~pages;
		now = fby_frame_word(f->seed, i, FBY_MW_BITS(FBY_MW_DIRTY(word) | pages, writing));
	} while (!fby_cmpxchg(&f->words[i], word, now));
	return FBY_DONE;
}

/*
 * Two fences.  The first makes the bytes durable before a word says that they count, since data
 * filled in from the file may never have been durable.  The second makes the word durable before
 * the sync returns.  A bit that is already set saves nothing: the thread that set it may not have
 * reached its fence yet, and a write back may have cleared it in between.
 */
int fby_frame_sync(const struct fby_frame *f, const struct fby_pages *pages)
{
	u32 first = words_of(f), end = 0;
	int done = FBY_DONE;

	for (u32 i = 0; i < words_of(f); i++)
		if ((pages_of(pages, i) & ~within(f, i)) && !FBY_BUG(MAP_LIMIT_IGNORED))
			return FBY_ORIGIN;
	if (!FBY_BUG(MAP_SYNC_NO_DATA))
		flush_pages(f, pages);
	if (!FBY_BUG(MAP_SYNC_ONE_FENCE))
		f->port->fence(f->host);
	for (u32 i = 0; i < words_of(f); i++) {
		u32 of = pages_of(pages, i);
		u64 word;

		if (!of)
			continue;
		if (FBY_BUG(MAP_SYNC_TRUSTS_DIRTY) && load_word(f, i, &word) && (FBY_MW_DIRTY(word) & of) == of) {
			mark(f, i, of);
			continue;
		}
		switch (mark(f, i, of)) {
		case -FBY_E_NO_MAP:
			return -FBY_E_NO_MAP;
		case -FBY_E_MAP_DAMAGED:
			done = -FBY_E_MAP_DAMAGED;
			break;
		}
		first = i < first ? i : first;
		end = i + 1;
	}
	if (FBY_BUG(MAP_BIT_AFTER_ACK))
		return FBY_DONE;
	flush_words(f, first, end);
	f->port->fence(f->host);
	return done;
}

/* --- write back ------------------------------------------------------------------------ */

u32 fby_frame_dirty(const struct fby_frame *f, struct fby_pages *dirty, struct fby_pages *unknown)
{
	u32 n = 0;

	fby_zero(dirty, sizeof(*dirty));
	fby_zero(unknown, sizeof(*unknown));
	for (u32 i = 0; i < words_of(f); i++) {
		u64 word;

		if (!load_word(f, i, &word)) {
			pages_put(unknown, i, 0xffff);
			continue;
		}
		pages_put(dirty, i, FBY_MW_DIRTY(word));
		n += count_of(FBY_MW_DIRTY(word));
	}
	return n;
}

u32 fby_frame_write_begin(const struct fby_frame *f, struct fby_pages *pages)
{
	u32 n = 0;

	for (u32 i = 0; i < words_of(f); i++) {
		u32 of = pages_of(pages, i) & within(f, i);
		u64 word, now;

		/* A word that nobody asks for is not touched: its memory may be bad. */
		if (!of) {
			pages_put(pages, i, 0);
			continue;
		}
		do {
			of = load_word(f, i, &word) ? of & FBY_MW_DIRTY(word) : 0;
			now = fby_frame_word(f->seed, i, FBY_MW_BITS(FBY_MW_DIRTY(word), FBY_MW_WRITING(word) | of));
		} while (of && !fby_cmpxchg(&f->words[i], word, now));
		pages_put(pages, i, of);
		n += count_of(of);
	}
	/* The pages are read after this.  A thread that stores too late to be read then reaches
	 * its word later, and clears the bit again. */
	fby_mb_after_atomic();
	return n;
}

/* Marks those pages of word i as clean that nobody synced meanwhile.  Returns the others. */
static u32 clear(const struct fby_frame *f, u32 i, u32 pages)
{
	u32 done;
	u64 word, now;

	do {
		if (!load_word(f, i, &word))
			return pages;
		if ((u32)word == FBY_MW_CLOSED)
			return 0;
		done = FBY_BUG(MAP_WRITE_CLEARS_SYNCED) ? pages : pages & FBY_MW_WRITING(word);
		now = fby_frame_word(f->seed, i,
				     FBY_MW_BITS(FBY_MW_DIRTY(word) & ~done, FBY_MW_WRITING(word) & ~done));
	} while (!fby_cmpxchg(&f->words[i], word, now));
	return pages & ~done;
}

/* Durable at once, although an extra bit does no harm yet: from now on others may change the
 * file, and the frame's content must not overwrite that. */
u32 fby_frame_write_end(const struct fby_frame *f, struct fby_pages *pages)
{
	u32 first = words_of(f), end = 0, left = 0;

	for (u32 i = 0; i < words_of(f); i++) {
		u32 of = pages_of(pages, i), stay;

		if (!of)
			continue;
		stay = clear(f, i, of);
		pages_put(pages, i, stay);
		left += count_of(stay);
		first = i < first ? i : first;
		end = i + 1;
	}
	flush_words(f, first, end);
	if (!FBY_BUG(MAP_CLEAR_NO_FENCE))
		f->port->fence(f->host);
	return left;
}

/* --- truncation --------------------------------------------------------------------------- */

/* Writes back every later word, even one without a bit to clear: the thread that cleared it may
 * not have reached its fence. */
void fby_frame_forget(const struct fby_frame *f, u32 from)
{
	u32 first = from / 16;

	for (u32 i = first; i < words_of(f); i++) {
		u32 of = i * 16 >= from ? 0xffff : 0xffff & ~((1u << (from - i * 16)) - 1);
		u64 word, now;

		do {
			if (!load_word(f, i, &word) || (u32)word == FBY_MW_CLOSED)
				break; /* a damaged word stays so, and is reported */
			now = fby_frame_word(f->seed, i,
					     FBY_MW_BITS(FBY_MW_DIRTY(word) & ~of, FBY_MW_WRITING(word) & ~of));
		} while (!fby_cmpxchg(&f->words[i], word, now));
	}
	flush_words(f, first, words_of(f));
	f->port->fence(f->host);
}

/* --- given up -------------------------------------------------------------------------------- */

/* Makes words before `end` clean again. */
static void reopen(const struct fby_frame *f, u32 end)
{
	for (u32 i = 0; i < end && !FBY_BUG(MAP_CLOSE_NOT_UNDONE); i++)
		fby_cmpxchg(&f->words[i], fby_frame_word(f->seed, i, FBY_MW_CLOSED), fby_frame_word(f->seed, i, 0));
}

/*
 * Each word changes from clean to closed in one step.  So a sync either comes before that, and
 * the page is dirty, or it is refused.  The change is not made durable: a closed word means
 * clean, so it counts the same after a cut, and the caller that drops the frame writes the
 * frame's line next.
 */
bool fby_frame_close(const struct fby_frame *f, const struct fby_pages *unknown, bool discard)
{
	for (u32 i = 0; i < words_of(f) && !FBY_BUG(MAP_DROP_LEAVES_OPEN); i++) {
		u64 word, closed = fby_frame_word(f->seed, i, FBY_MW_CLOSED);

		if (pages_of(unknown, i))
			continue; /* its memory may be bad; and no sync accepts a damaged word */
		do {
			bool sound = load_word(f, i, &word);

			if (!discard && (!sound || (FBY_MW_DIRTY(word) && !FBY_BUG(MAP_CLOSE_OVER_SYNC)))) {
				reopen(f, i);
				return false;
			}
			if (!sound)
				break;
		} while (!fby_cmpxchg(&f->words[i], word, closed));
	}
	return true;
}
