// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* policy.c - see policy.h. */
#include "host/policy.h"

#define NAME "name:"
#define NAME_WITHOUT_CONSENT "blk:"

u32 fby_policy_limit(u64 bytes)
{
	u64 sectors = (bytes >> 9) + ((bytes & 511) != 0);

	return sectors < ~0u ? (u32)sectors : ~0u;
}

u64 fby_policy_delay(struct fby_pool *p, u16 volume, u64 nsectors, u64 now_ns)
{
	u64 delay = fby_write_delay(p, volume, nsectors < ~0u ? (u32)nsectors : ~0u, now_ns);

	return delay < FBY_DEFAULT_THROTTLE_SHORTEST_NS ? 0 : delay;
}

/* --- origins --------------------------------------------------------------------- */

/* Returns the text after prefix, or NULL if it does not begin with prefix. */
static const char *after(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return NULL;
	return text;
}

/* Is the id of a recorded identity, up to its path, this one? */
static bool id_is(const char *recorded, const char *id)
{
	const char *rest = after(recorded, id);

	return rest && (*rest == '|' || *rest == '\0');
}

bool fby_origin_is_name(const char *id)
{
	return after(id, NAME) != NULL;
}

bool fby_origin_is_unasked_name(const char *recorded, const char *id)
{
	const char *was = after(recorded, NAME_WITHOUT_CONSENT), *is = after(id, NAME);

	return was && is && id_is(was, is);
}

u64 fby_origin_usable(u32 block_size, u64 sectors)
{
	return sectors & ~(u64)(block_size / FBY_SECTOR - 1);
}

static enum fby_origin_verdict judge_id(const struct fby_volume_spec *recorded, const struct fby_origin_found *found)
{
	bool name = fby_origin_is_name(found->id);
	bool unasked = fby_origin_is_unasked_name(recorded->identity, found->id);

	if (id_is(recorded->identity, found->id))
		return FBY_ORIGIN_IS_SAME;
	if (found->cannot_see_ids && found->by_name && found->same_path)
		return FBY_ORIGIN_IS_SAME;
	if (name && !found->by_name && (unasked || found->accept_changed))
		return FBY_ORIGIN_IS_NAME;
	if (!unasked && !found->accept_changed)
		return name && found->cannot_see_ids && !found->by_name ? FBY_ORIGIN_IS_NAME : FBY_ORIGIN_IS_OTHER;
	return FBY_ORIGIN_IS_RENEWED;
}

enum fby_origin_verdict fby_origin_judge(const struct fby_volume_spec *recorded, const struct fby_origin_found *found)
{
	enum fby_origin_verdict id = judge_id(recorded, found);

	if (found->logical_block > recorded->block_size)
		return FBY_ORIGIN_IS_BLOCK;
	if (id != FBY_ORIGIN_IS_SAME && id != FBY_ORIGIN_IS_RENEWED)
		return id;
	if (found->sectors < recorded->origin_sectors)
		return FBY_ORIGIN_IS_SMALLER;
	if (found->sectors == recorded->origin_sectors)
		return id;
	return found->accept_changed ? FBY_ORIGIN_IS_RENEWED : FBY_ORIGIN_IS_LARGER;
}

const char *fby_origin_cause(enum fby_origin_verdict v)
{
	static const char *const causes[FBY_ORIGIN_COUNT] = {
#define FBY_ORIGIN_ROW(name, cause) [FBY_ORIGIN_IS_##name] = cause,
		FBY_ORIGINS(FBY_ORIGIN_ROW)
#undef FBY_ORIGIN_ROW
	};

	return causes[v];
}

/* --- marks --------------------------------------------------------------------------------- */

bool fby_volume_holds(const struct fby_volume_info *v)
{
	return v->pages || !v->counted || v->holes || v->holes_unknown;
}

/* May the record go with an origin whose mark says this as the last number?  See fby_mark_step. */
static bool is_last(u32 marks, u32 number)
{
	u32 behind = marks - number; /* the number may wrap around */

	switch (marks & 7) {
	case 3:
	case 4: /* one that was, and one that is to take its place */
		return behind == (marks & 7) || number == fby_mark_number(marks);
	case 6:
		return false;
	default:
		return behind == (marks & 1 ? 1 : marks & 2);
	}
}

/* To an origin that is to be marked first a write may have come that nobody was told of. */
static bool may_be_missing(const struct fby_volume_info *v, bool exact)
{
	return !(v->marks & 1) || (!exact && !fby_volume_holds(v));
}

enum fby_mark_verdict fby_mark_judge(const struct fby_volume_info *v, const struct fby_mark_found *found)
{
	if (!found->marked)
		return may_be_missing(v, found->exact) ? FBY_MARK_IS_RIGHT : FBY_MARK_IS_MISSING;
	if (found->names && !fby_equal(found->uuid, v->spec.uuid, 16))
		return FBY_MARK_IS_OTHER;
	if (found->exact && is_last(v->marks, found->least))
		return FBY_MARK_IS_RIGHT;
	if (v->marks - found->least > ~0u / 2) /* the number may wrap around */
		return FBY_MARK_IS_NEWER;
	return found->exact ? FBY_MARK_IS_OLDER : FBY_MARK_IS_RIGHT;
}

const char *fby_mark_cause(enum fby_mark_verdict v)
{
	static const char *const causes[FBY_MARK_COUNT] = {
#define FBY_MARK_ROW(name, cause) [FBY_MARK_IS_##name] = cause,
		FBY_MARKS(FBY_MARK_ROW)
#undef FBY_MARK_ROW
	};

	return causes[v];
}

/* --- exit codes ------------------------------------------------------------------------ */

/* The numbers are a contract with scripts: EXIT_CODES of the library has their meaning. */
enum {
	EXIT_USAGE = 2,
	EXIT_NOT_FOUND = 3,
	EXIT_BUSY = 4,
	EXIT_DAMAGED = 5,
	EXIT_WRONG_ORIGIN = 6,
	EXIT_IO = 7,
	EXIT_NO_SPACE = 8,
	EXIT_NOT_ALLOWED = 9,
	EXIT_LOST = 11,
	EXIT_HOLDS_DATA = 12,
};

u32 fby_error_exit(int error)
{
	switch (-error) {
	case FBY_E_NO_VOLUME:
	case FBY_E_NO_LOG:
	case FBY_E_NO_MAP:
		return EXIT_NOT_FOUND;
	case FBY_E_VOLUME_BUSY:
	case FBY_E_BUSY:
	case FBY_E_LOG_UNCLAIMED:
		return EXIT_BUSY;
	case FBY_E_VOLUME_DIRTY:
	case FBY_E_MAP_DIRTY:
		return EXIT_HOLDS_DATA;
	case FBY_E_VOLUME_DAMAGED:
	case FBY_E_INVARIANT:
	case FBY_E_LOG_ENTRY:
	case FBY_E_MAP_DAMAGED:
		return EXIT_DAMAGED;
	case FBY_E_ORIGIN_SIZE:
	case FBY_E_ORIGIN_IDENTITY:
		return EXIT_WRONG_ORIGIN;
	case FBY_E_ORIGIN_IO:
	case FBY_E_MEDIUM:
		return EXIT_IO;
	case FBY_E_VOLUME_TABLE_FULL:
	case FBY_E_STATIC_FULL:
	case FBY_E_ERAS:
	case FBY_E_MAP_FULL:
		return EXIT_NO_SPACE;
	case FBY_E_READ_ONLY:
		return EXIT_NOT_ALLOWED;
	case FBY_E_HOLES:
	case FBY_E_HOLES_KNOWN:
	case FBY_E_LOST:
		return EXIT_LOST;
	default:
		return EXIT_USAGE;
	}
}

/* Linux's numbers, spelled out because there is no errno.h here. */
u32 fby_errno_exit(int error)
{
	switch (error) {
	case 1:	 /* EPERM */
	case 13: /* EACCES */
	case 30: /* EROFS */
		return EXIT_NOT_ALLOWED;
	case 2: /* ENOENT */
		return EXIT_NOT_FOUND;
	case 16: /* EBUSY */
		return EXIT_BUSY;
	case 27:  /* EFBIG */
	case 28:  /* ENOSPC */
	case 122: /* EDQUOT */
		return EXIT_NO_SPACE;
	default:
		return EXIT_IO;
	}
}
