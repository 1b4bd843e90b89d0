// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* drained.c - see drained.h. */
#include "host/drained.h"

#define LOST_PART 4u /* slots that one look for lost blocks reads */
#define ANEW 3u /* times that a drain begins anew for pages that were found damaged and read well again */

int fby_drained_begin(struct fby_drain_wait *d, struct fby_pool *p, u16 volume, struct fby_volume_info *info)
{
	int rc = fby_volume_drain_upto(p, volume, &d->upto);

	if (rc)
		return rc;
	rc = fby_volume_info(p, volume, info);
	d->pool = p;
	d->volume = volume;
	d->errors = info->origin_errors;
	d->origin = 0;
	d->anew = false;
	d->lost = (struct fby_lost_at){ .most = LOST_PART };
	return rc;
}

int fby_drained_look(struct fby_drain_wait *d, struct fby_volume_info *info)
{
	int rc = fby_volume_info(d->pool, d->volume, info);

	if (rc)
		return rc;
	if (!info->attached)
		return -FBY_E_VOLUME_DETACHED;
	if (info->home >= d->upto || fby_volume_clean(d->pool, d->volume))
		return FBY_DONE;
	if (info->origin_errors != d->errors && info->last_error) {
		d->origin = info->last_error;
		return -FBY_E_ORIGIN_IO;
	}
	/* Destage ends a drain that had nothing to do for a moment. */
	rc = fby_volume_drain(d->pool, d->volume, true);
	return rc ? rc : FBY_AGAIN;
}

int fby_drained_lost(struct fby_drain_wait *d, struct fby_volume_info *info, struct fby_report_block *blocks, u32 max)
{
	if (!info->slots || !info->lost_blocks)
		return FBY_DONE;
	fby_lost_list(d->pool, d->volume, &d->lost, blocks, max);
	if (!d->lost.ended)
		return FBY_AGAIN;
	info->lost_blocks = d->lost.listed + d->lost.passed_over;
	d->anew = d->lost.passed_over && d->again < ANEW;
	d->again += d->anew;
	return FBY_DONE;
}

/* --- is the origin complete? ---------------------------------------------------------- */

void fby_complete_of(struct fby_complete *c, const struct fby_volume_info *v, bool drained)
{
	*c = (struct fby_complete){
		.damaged = v->damaged,
		.attached = v->attached,
		.failing = v->last_error,
		.counted = v->counted || drained,
		.lost_entries = v->holes > v->holes_unknown ? v->holes : v->holes_unknown,
		.lost_blocks = v->lost_blocks,
		.pages_left = drained || v->pages < v->lost_blocks ? 0 : v->pages - v->lost_blocks,
	};
}

enum fby_completeness fby_complete_judge(const struct fby_complete *c)
{
	if (c->damaged)
		return FBY_IS_RECORD_DAMAGED;
	if (c->origin_changed)
		return FBY_IS_ORIGIN_CHANGED;
	if (c->lost_entries)
		return FBY_IS_LOST_ENTRIES;
	if (c->lost_blocks)
		return FBY_IS_LOST_BLOCKS;
	if (!c->pages_left)
		return c->counted ? FBY_IS_WHOLE : FBY_IS_UNKNOWN;
	if (!c->attached)
		return FBY_IS_NOT_ATTACHED;
	return c->failing ? FBY_IS_ORIGIN_FAILS : FBY_IS_CACHED;
}

const char *fby_complete_text(enum fby_completeness c)
{
	static const char *const texts[FBY_COMPLETENESS_COUNT] = {
#define FBY_COMPLETENESS_ROW(name, what) [FBY_IS_##name] = what,
		FBY_COMPLETENESS(FBY_COMPLETENESS_ROW)
#undef FBY_COMPLETENESS_ROW
	};

	return texts[c];
}
