// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * slot_line.c - interprets a slot's line: which of its two ways hold a page that the origin
 * lacks, and of which block.
 *
 * A cut leaves any mix of the words of a line, old and new, and of the data.  The control word is
 * one of them, so it is the old one or the new.  With the old one, the way being written did not
 * count, and still does not.  With the new one, that way is the newest, and its tag and data may
 * not have arrived.  Then they do not match the control word, and its era says whether a cut can
 * be the cause.  If so, the write never happened, and the other way is in the state that the
 * control word gives it; if not, the page is damaged, and lost.
 */
#include "static/static.h"

#define FBY_FLIPS_MAX 8u

static u64 control_check(const struct fby_static *v, u32 slot, u64 bits)
{
	return fby_crc32c(v->seed ^ slot, &bits, sizeof(bits)) & 0xfffu;
}

u64 fby_static_control(const struct fby_static *v, u32 slot, u64 bits)
{
	FBY_ASSERT(v, bits >> FBY_SC_CHECK_SHIFT == 0);
	return bits | control_check(v, slot, bits) << FBY_SC_CHECK_SHIFT;
}

static bool control_ok(const struct fby_static *v, u32 slot, u64 control)
{
	return control_check(v, slot, control & ((1ull << FBY_SC_CHECK_SHIFT) - 1)) == control >> FBY_SC_CHECK_SHIFT;
}

static u32 tag_crc(const struct fby_static *v, u32 slot, u32 way, const struct fby_static_tag *t)
{
	return fby_crc32c(v->seed + slot * 2 + way, t, __builtin_offsetof(struct fby_static_tag, crc));
}

void fby_static_tag_finish(const struct fby_static *v, u32 slot, u32 way, struct fby_static_tag *t)
{
	t->crc = tag_crc(v, slot, way, t);
}

static bool masks_sane(const struct fby_static_tag *t)
{
	u8 valid = FBY_ST_VALID(t), lost = FBY_ST_LOST(t);

	switch (FBY_ST_KIND(t)) {
	case FBY_KIND_DATA:
		return (valid & lost) == 0 && (valid | lost) != 0;
	case FBY_KIND_ZERO:
	case FBY_KIND_DISCARD:
		return valid == 0xff && lost == 0;
	}
	return false;
}

static bool tag_ok(const struct fby_static *v, u32 slot, u32 way, const struct fby_static_tag *t)
{
	return tag_crc(v, slot, way, t) == t->crc && FBY_ST_BLOCK(t) < v->blocks &&
	       fby_static_slot(v, FBY_ST_BLOCK(t)) == slot && masks_sane(t);
}

/* Whether a is the newer one of two sound control words that differ, as a cut may leave them. */
static bool newer(u64 a, u64 b)
{
	if (FBY_SC_ERA_OF(a) != FBY_SC_ERA_OF(b))
		return FBY_SC_ERA_OF(a) > FBY_SC_ERA_OF(b);
	return ((FBY_SC_NUMBER_OF(a) - FBY_SC_NUMBER_OF(b)) & (FBY_SC_NUMBERS - 1)) < FBY_SC_NUMBERS / 2;
}

/* Do they differ in only a few bits? */
static bool alike(u64 a, u64 b)
{
	u32 n = 0;

	for (u64 bits = a ^ b; bits; bits &= bits - 1)
		n++;
	return n <= FBY_FLIPS_MAX;
}

static bool says_empty(u64 c)
{
	u32 newest = (c & FBY_SC_NEWEST) != 0;

	return !(c >> newest & 1) && (!(c >> !newest & 1) || (c & FBY_SC_SOLE));
}

/* Finds the control word that counts; false: both are damaged.  A check of 12 bits accepts one
 * random word in 4,096.  A word that says that the slot is empty, so that the origin answers, has
 * no tag that confirms it.  So, if the other word is damaged, it counts only if that one said the
 * same. */
static bool control_of(const struct fby_static *v, u32 slot, const struct fby_static_line *l, u64 *control)
{
	u64 copy = ~l->copy;
	bool first = control_ok(v, slot, l->control), second;

	*control = l->control;
	if (fby_likely(first && l->control == copy))
		return true;
	second = control_ok(v, slot, copy);
	if (!first || (second && !newer(l->control, copy)))
		*control = copy;
	if (first && second)
		return true;
	return (first || second) && (!says_empty(*control) || alike(l->control, copy) || FBY_BUG(STATIC_EMPTY_BELIEVED));
}

/* The whole slot is unreadable. */
static void all_lost(const struct fby_static *v, struct fby_static_view *s)
{
	fby_zero(&s->line, sizeof(s->line));
	s->newest = 1;
	s->live = s->unknown = 2;
	s->sole = s->over = false;
	s->gone = true;
	s->era = v->era;
	s->number = 0;
}

/* The newest write was never acknowledged. */
static void take_back(struct fby_static_view *s)
{
	s->torn = true;
	s->sole = false;
	if (s->over) /* it overwrote a lost page, which may have been of this block */
		s->unknown |= (u8)(1u << s->newest);
	else
		s->live &= (u8)~(1u << s->newest);
}

static void look_newest(const struct fby_statics *p, const struct fby_static *v, struct fby_static_view *s)
{
	const struct fby_static_tag *t = &s->line.tag[s->newest];
	bool fits = tag_ok(v, s->slot, s->newest, t) &&
		    (FBY_BUG(STATIC_STAMP_IGNORED) ||
		     (FBY_ST_ERA(t) == s->era && FBY_ST_NUMBER(t) % FBY_SC_NUMBERS == s->number));

	if (fby_unlikely(fby_load(&v->nwindows)) && fby_in_doubt(v, s->era)) {
		if (!fits || (!FBY_BUG(STATIC_TORN_ACCEPTED) && !fby_place_read(p, v, s->slot, s->newest, t, 0, 0, NULL)))
			take_back(s);
	} else if (!fits) {
		s->unknown |= (u8)(1u << s->newest);
	}
	if (fits)
		s->number = FBY_ST_NUMBER(t);
}

void fby_static_look(const struct fby_statics *p, const struct fby_static *v, u32 slot, struct fby_static_view *s)
{
	u64 c;
	u32 other;

	s->slot = slot;
	s->torn = s->gone = false;
	if (fby_unlikely(!media_read(p->space->store.media, &s->line, fby_static_line_at(v, slot), FBY_LINE) ||
			 !control_of(v, slot, &s->line, &c))) {
		all_lost(v, s);
		return;
	}
	s->live = (u8)(c & 3);
	s->newest = (c & FBY_SC_NEWEST) != 0;
	s->sole = c & FBY_SC_SOLE;
	s->over = c & FBY_SC_OVER;
	s->era = FBY_SC_ERA_OF(c);
	s->number = FBY_SC_NUMBER_OF(c);
	s->unknown = 0;
	if (s->live >> s->newest & 1)
		look_newest(p, v, s);
	other = !s->newest;
	if (fby_static_counts(s, other) && !tag_ok(v, slot, other, &s->line.tag[other]))
		s->unknown |= (u8)(1u << other);
}

enum fby_static_has fby_static_find(const struct fby_static_view *s, u64 block, u32 *way)
{
	for (u32 i = 0; i < FBY_STATIC_WAYS; i++) {
		if (fby_static_counts(s, i) && !(s->unknown >> i & 1) && FBY_ST_BLOCK(&s->line.tag[i]) == block) {
			*way = i;
			return FBY_HAS_PAGE;
		}
	}
	/* The tag of an older page does not name the block of the lost one: it may be that of a
	 * torn write. */
	return s->unknown ? FBY_HAS_LOST : FBY_HAS_NOTHING;
}
