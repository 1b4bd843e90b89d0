// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * volume_origin.c - whether an origin is the one of its volume.
 */
#include "fbk.h"

/* Whether the recorded path, which follows the id, leads to the origin. */
static bool at_path(const struct fbk_volume *v, const char *recorded)
{
	const char *path = strchr(recorded, '|');
	dev_t dev;

	return path && path[1] && !lookup_bdev(path + 1, &dev) && dev == v->origin->bd_dev;
}

int fbk_identity_of(const struct fbk_volume *v, const char *origin_id, char *identity, size_t bytes, char **text)
{
	if (!origin_id && !v->by_name) {
		*text = "What the origin is called is no id, as disks may change their names: give origin_id, or say origin_by_name";
		return -EINVAL;
	}
	if (origin_id)
		snprintf(identity, bytes, "%s|/dev/%pg", origin_id, v->origin);
	else
		snprintf(identity, bytes, "name:%pg|/dev/%pg", v->origin, v->origin);
	return 0;
}

int fbk_check_origin(struct fbk_volume *v, struct fby_volume_info *info, const char *origin_id,
		     bool accept_changed, bool *renewed, char **text)
{
	static const struct {
		char *text;
		int error;
	} refused[FBY_ORIGIN_COUNT] = {
		[FBY_ORIGIN_IS_BLOCK] = { "The origin's logical block is larger than the volume's", -EINVAL },
		[FBY_ORIGIN_IS_OTHER] = { "The origin is not the one the volume was made for; if it holds the same data, say accept_changed_origin", -ESTALE },
		[FBY_ORIGIN_IS_NAME] = { "The origin cannot be told from another: give origin_id, or say origin_by_name if it keeps its name", -ESTALE },
		[FBY_ORIGIN_IS_SMALLER] = { "The target is smaller than the volume", -EINVAL },
		[FBY_ORIGIN_IS_LARGER] = { "The target is larger than the volume; to let it grow, say accept_changed_origin", -EINVAL },
	};
	char name[FBY_IDENTITY_MAX + 1];
	struct fby_origin_found found = {
		.id = origin_id ? origin_id : name,
		.logical_block = bdev_logical_block_size(v->origin),
		.accept_changed = accept_changed,
		.by_name = v->by_name || origin_id, /* whoever gives an id has seen to that */
		.cannot_see_ids = true,
		.same_path = !origin_id && v->by_name && at_path(v, info->spec.identity),
	};
	enum fby_origin_verdict verdict;

	snprintf(name, sizeof(name), "name:%pg", v->origin);
	/* A device may end in the middle of a block; a target has the size that it was given. */
	if (v->whole)
		v->sectors = fby_origin_usable(info->spec.block_size, v->sectors);
	found.sectors = v->sectors;
	verdict = fby_origin_judge(&info->spec, &found);
	*renewed = verdict == FBY_ORIGIN_IS_RENEWED;
	if (verdict == FBY_ORIGIN_IS_SAME)
		strscpy(v->identity, info->spec.identity, sizeof(v->identity));
	if (verdict == FBY_ORIGIN_IS_SAME || *renewed)
		return 0;
	*text = refused[verdict].text;
	return refused[verdict].error;
}

int fbk_check_mark(struct fbk_volume *v, struct fby_volume_info *info, char **text)
{
	static char *const refused[FBY_MARK_COUNT] = {
		[FBY_MARK_IS_NEWER] = "The pool is an older copy of the one that marked the origin: attach that one; forebay origin status tells more",
		[FBY_MARK_IS_OLDER] = "The origin is an older state of itself: the pool has marked it again since; forebay origin status tells more",
		[FBY_MARK_IS_OTHER] = "The origin's mark is of another volume that has, or had, this name in the pool: attach it with the pool as it was then; forebay origin status tells more",
		[FBY_MARK_IS_MISSING] = "The pool holds what the origin lacks, and the mark that it had set there is gone: it may have been given up or used since; if not, say --accept-mark",
	};
	enum fby_mark_verdict verdict = fby_mark_judge(info, &v->mark);

	*text = refused[verdict];
	return v->marked && verdict != FBY_MARK_IS_RIGHT ? -ESTALE : 0;
}
