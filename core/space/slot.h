/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * slot.h - operations of each write on its slot and on the chunk of the page it replaces.  They
 * are inline, because a call's saved registers are stores that queue after the previous write's
 * fence; chunk.c has the rare ones.
 */
#ifndef FBY_SLOT_H
#define FBY_SLOT_H

#include "space/space.h"

static inline bool fby_slot_try(struct fby_slot *s)
{
	if (fby_load(&s->busy))
		return false;
	fby_pin();
	if (fby_likely(fby_cmpxchg(&s->busy, 0u, 1u)))
		return true;
	fby_unpin();
	return false;
}

/* Takes a slot, preferably this CPU's; NULL: all are busy. */
static inline struct fby_slot *fby_slot_take(struct fby_space *p)
{
	u32 n = p->opt.nslots;
	u32 cpu = fby_cpu(), first = cpu < n ? cpu : cpu % n;

	for (u32 i = 0; i < n; i++) {
		struct fby_slot *s = &p->slot[first + i < n ? first + i : first + i - n];

		if (fby_slot_try(s))
			return s;
	}
	return NULL;
}

static inline void fby_slot_release(struct fby_slot *s)
{
	FBY_ASSERT(s, fby_load(&s->busy) == 1);
	fby_store_release(&s->busy, 0u);
	fby_unpin();
}

/* Off the hot paths: releases the slot, and tells who may sleep for it. */
static inline void fby_slot_give(const struct fby_space *p, struct fby_slot *s, u32 *wake)
{
	fby_slot_release(s);
	*wake |= fby_load(&p->wait_mask) & (FBY_WAKE_SLOT | FBY_WAKE_BLOCK);
}

/* Releases a slot for a caller that cannot reach its host. */
static inline void fby_slot_give_owed(struct fby_space *p, struct fby_slot *s)
{
	u32 wake = 0;

	fby_slot_give(p, s, &wake);
	if (wake)
		fby_fetch_or(&p->wake_owed, wake);
}

/* Returns n sequence numbers; fresh: above all those given out before. */
static inline u64 fby_slot_seq(struct fby_space *p, struct fby_slot *s, u32 n, bool fresh)
{
	u64 seq;

	FBY_ASSERT(s, n >= 1 && n <= FBY_SEQ_BLOCK);
	if (s->seq_end - s->seq_next < n || (fresh && !FBY_BUG(SEQ_NOT_FRESH))) {
		/* floor first: a thread that sees the counter changed sees floor, too */
		fby_store(&s->floor, fby_load(&p->seq));
		s->seq_next = fby_fetch_add(&p->seq, (u64)FBY_SEQ_BLOCK);
		s->seq_end = s->seq_next + FBY_SEQ_BLOCK;
		FBY_ASSERT(s, s->seq_end < FBY_NUMBER_END);
	}
	seq = s->seq_next;
	s->seq_next += n;
	return seq;
}

/* Counts an unlinked page; the counts are the caller's own, of a slot or of destage. */
static inline void fby_page_dead(const struct fby_space *p, u32 page, u16 *by_chunk, u64 *by_volume)
{
	u16 *n = &by_chunk[fby_page_chunk(&p->store, page)];

	/* Release: a thread that counts the page as dead sees all work on it. */
	fby_store_release(n, (u16)(fby_load(n) + 1));
	fby_store_release(by_volume, fby_load(by_volume) + 1);
}

#endif
