// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_verify.c - opens a pool after a cut, a kill or damage.  It compares the content of the
 * pool's logs with the entries that were appended and acknowledged.
 */
#include "group_model.h"

struct model logs[LOGS], *it = logs;
u32 nlogs = 1;

void must(bool good, const char *what)
{
	if (!good)
		lost(what);
}

/* --- a pool ------------------------------------------------------------------------- */

struct fby_pool *open_pool(struct world *w, void **memory, u64 *bytes, struct fby_recovery_report *report)
{
	const struct fby_options o = { .nslots = 2 };
	struct fby_pool *p;
	struct fby_probe probe;

	fby_probe(&w->media, &probe);
	must(probe.state == FBY_PROBE_POOL && probe.error == 0, "the pool is not found");
	if (!*memory || *bytes != fby_pool_bytes(&probe.sb, o.nslots)) {
		free(*memory);
		*bytes = fby_pool_bytes(&probe.sb, o.nslots);
		*memory = aligned_alloc(64, (*bytes + 63) & ~63ull);
	}
	memset(*memory, 0, *bytes);
	must(fby_pool_open(&p, *memory, *bytes, &w->media, &o) == FBY_DONE, "the pool does not open");
	must(fby_recover_chunks(p, 0, CHUNKS) == FBY_DONE, "recovery of chunks");
	must(fby_recover_finish(p, report) == FBY_DONE, "recovery");
	return p;
}

void body_of(u32 i, u8 *to, u32 length)
{
	for (u32 k = 0; k < length; k++)
		to[k] = (u8)(i * 31 + it->index * 101 + k * 7 + (k >> 8));
	memcpy(to, &i, 4);
}

/* --- what a cut leaves ----------------------------------------------------------------- */

struct replaying {
	struct fby_pool *p;
	u32 first, last;
	bool seen[ENTRIES];
};

static enum fby_log_verdict replay(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	static u8 is[BODY_MOST + 64], be[BODY_MOST];
	struct replaying *r = arg;
	u32 length, i;

	(void)next;
	must(fby_log_read(r->p, it->index, node, is, sizeof(is), &length) == FBY_DONE, "an entry cannot be read");
	memcpy(&i, is, 4);
	must(i >= 1 && i <= it->appended, "an entry that was never appended");
	must(it->entry[i].length == length && it->entry[i].txg == node->txg, "an entry is another one");
	body_of(i, be, length);
	must(memcmp(is, be, length) == 0, "an entry has other bytes");
	must(r->last == 0 || i == r->last + 1, "an entry is missing between two");
	if (!r->first)
		r->first = i;
	r->last = i;
	return FBY_LOG_REPLAYED;
}

/* --- what damage leaves ------------------------------------------------------------------ */

static enum fby_log_verdict replay_readable(void *arg, const struct fby_log_node *node,
					    const struct fby_log_position *next)
{
	static u8 is[BODY_MOST + 64];
	struct replaying *r = arg;
	u32 length, i;

	(void)next;
	if (fby_log_read(r->p, it->index, node, is, sizeof(is), &length) != FBY_DONE)
		return FBY_LOG_DAMAGED;
	memcpy(&i, is, 4);
	must(i >= 1 && i <= it->appended && it->entry[i].length == length, "an entry that was never appended");
	r->seen[i] = true;
	return FBY_LOG_REPLAYED;
}

static void damage_one(struct fby_pool *p, const struct fby_recovery_report *report, u32 last, bool whole)
{
	static struct fby_log_node node[ENTRIES];
	static struct replaying r;
	struct fby_log_result claimed, replayed = { 0 };
	struct fby_log_header header = { 0 };
	struct fby_log_info info;
	u64 n = ENTRIES;
	u32 missing = 0;

	memset(&r, 0, sizeof(r));
	r.p = p;
	if (!it->logging || fby_log_info(p, it->index, &info) != FBY_DONE)
		return;
	must(info.header.state == FBY_LOG_LOGGING, "the log has ended by damage");
	must(fby_log_claim(p, it->index, 0, &header, node, &n, &claimed) == FBY_DONE, "claim");
	must(fby_log_replay(p, it->index, node, n, replay_readable, &r, &replayed) == FBY_DONE, "replay");
	for (u32 i = 1; i <= it->acknowledged; i++)
		missing += it->entry[i].txg > it->syncing && !r.seen[i];
	must(!whole || missing == 0, "an entry is lost though no group is damaged");
	if (missing && !report->holes && !info.incomplete && !info.missing && claimed.end == FBY_LOG_COMPLETE &&
	    replayed.end == FBY_LOG_COMPLETE && !replayed.damaged)
		must(missing <= last && !r.seen[it->acknowledged], "an entry is lost without a word");
}

void verify_damage(struct fby_pool *p, const struct fby_recovery_report *report, u32 last, bool whole)
{
	struct model *was = it;

	for (it = logs; it < logs + nlogs; it++)
		damage_one(p, report, last, whole);
	it = was;
}

/* --- the log of the period, as it is found ------------------------------------------------ */

static bool guid_is(const struct fby_log_info *info)
{
	return info->header.guid[0] + ((u64)info->header.guid[1] << 8) == (it->period & 0xffff);
}

static void verify_one(struct fby_pool *p)
{
	static struct fby_log_node node[ENTRIES];
	struct fby_log_result result;
	struct fby_log_header header = { 0 };
	struct fby_log_info info;
	static struct replaying r;
	u64 n = ENTRIES;
	u32 wake = 0;

	r.p = p;
	r.first = r.last = 0;
	must(fby_log_info(p, it->index, &info) == FBY_DONE && !info.incomplete && info.missing == 0, "entries are said to be missing");
	must(!it->logging || info.header.state == FBY_LOG_LOGGING, "the log has ended");
	must(!it->logging || guid_is(&info), "the log is of another period");
	if (info.header.state != FBY_LOG_LOGGING || !guid_is(&info))
		return; /* a period is beginning, or ending: nothing is acknowledged in it */
	must(fby_log_claim(p, it->index, 0, &header, node, &n, &result) == FBY_DONE, "claim");
	must(result.end == FBY_LOG_COMPLETE && result.damaged == 0 && result.twins == 0 && result.left == 0,
	     "the claim finds an entry missing");
	must(info.found == n, "entries are there twice");
	must(fby_log_replay(p, it->index, node, n, replay, &r, &result) == FBY_DONE && result.end == FBY_LOG_COMPLETE, "replay");
	for (u32 i = 1; i <= it->acknowledged; i++)
		if (it->entry[i].txg > it->syncing)
			must(i >= r.first && i <= r.last, "an acknowledged entry is lost");
	must(fby_log_destroy(p, it->index, NULL, &wake) == FBY_DONE, "destroy");
}

static void nothing_told(struct fby_pool *p, const struct fby_recovery_report *report)
{
	char text[200];

	if (fby_check(p, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
	must(report->holes == 0 && report->damaged == 0, "a plain cut is reported as a loss");
}

void verify(struct fby_pool *p, const struct fby_recovery_report *report)
{
	struct model *was = it;

	nothing_told(p, report);
	for (it = logs; it < logs + nlogs; it++)
		verify_one(p);
	it = was;
}

void find_all(struct fby_pool *p, const struct fby_recovery_report *report, struct found *out)
{
	static struct fby_log_node node[ENTRIES];

	nothing_told(p, report);
	memset(out, 0, sizeof(*out));
	for (u32 i = 0; i < nlogs; i++) {
		struct fby_log_header header = { 0 };
		struct fby_log_result result;
		struct fby_log_info info;
		u64 n = ENTRIES;

		if (fby_log_info(p, logs[i].index, &info) != FBY_DONE || info.header.state == FBY_LOG_NONE)
			continue;
		must(!info.incomplete && !info.missing, "entries are said to be missing");
		must(fby_log_claim(p, logs[i].index, 0, &header, node, &n, &result) == FBY_DONE, "claim");
		must(result.end == FBY_LOG_COMPLETE && !result.twins, "the claim finds an entry missing");
		for (u64 k = 0; k < n; k++)
			out->sum += (node[k].gen * 1000003 + node[k].id) * 1000003 + node[k].txg + i;
		out->n += n;
	}
}
