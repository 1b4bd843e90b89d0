// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * claim.c - the entries that a log has after a crash: which exist, in which order, and their
 * replay one after the other.
 */
#include "log/logs.h"

void fby_log_node_of(const struct fby_store *st, const struct fby_log_entry *e, struct fby_log_node *node)
{
	node->txg = e->txg;
	node->gen = e->gen;
	node->id = e->id;
	node->before = e->before;
	node->place = fby_log_place(st, e->chunk, e->line);
}

/* Collects entries of the period, as many as fit; returns how many there are. */
static u64 collect(const struct fby_logs *p, u16 log, const u8 guid[16], struct fby_log_node *node, u64 room)
{
	const struct fby_space *space = p->space;
	u64 n = 0;

	for (u32 c = space->owner[log].first; c != FBY_NO_CHUNK; c = space->chunk[c].next) {
		struct fby_log_walk w = fby_log_walk(&space->store, c, fby_log_line_of(&space->store, space->chunk[c].fill));
		struct fby_log_entry e;

		while (fby_log_next(space, &w, &e)) {
			if (!fby_equal(e.guid, guid, sizeof(e.guid)) && !FBY_BUG(GUID_IGNORED))
				continue;
			if (n < room)
				fby_log_node_of(&space->store, &e, &node[n]);
			n++;
		}
	}
	return n;
}

static bool entry_of(const struct fby_store *st, const struct fby_log_node *node, struct fby_log_entry *e)
{
	return fby_log_entry_read(st, (u32)(node->place >> (st->chunk_shift + 6)),
				  (u32)(node->place & (fby_log_lines(st) - 1)), e);
}

static bool bodies_equal(const struct fby_store *st, const struct fby_log_entry *a, const struct fby_log_entry *b)
{
	u8 of_a[FBY_LINE], of_b[FBY_LINE];

	for (u32 i = FBY_ENTRY_LINES; i < fby_entry_lines(a->length); i++)
		if (!media_read(st->media, of_a, fby_log_line_at(st, a->chunk, a->line + i), FBY_LINE) ||
		    !media_read(st->media, of_b, fby_log_line_at(st, b->chunk, b->line + i), FBY_LINE) ||
		    !fby_equal(of_a, of_b, FBY_LINE))
			return false;
	return true;
}

/* The engine appends the entries of a group that failed again, and some of the group may be there
 * all the same.  So these say the same, but for their places. */
static enum fby_log_copy copy_of(void *arg, const struct fby_log_node *first, const struct fby_log_node *second)
{
	const struct fby_store *st = arg;
	struct fby_log_entry a, b;

	if (!entry_of(st, first, &a) || !entry_of(st, second, &b) || a.length != b.length || a.body_crc != b.body_crc ||
	    !fby_equal(a.guid, b.guid, sizeof(a.guid)))
		return FBY_LOG_ANOTHER;
	if (!fby_log_body_read(st, &b, NULL))
		return FBY_LOG_COPY_DROPPED;
	if (!fby_log_body_read(st, &a, NULL))
		return FBY_LOG_COPY_COUNTS;
	return bodies_equal(st, &a, &b) ? FBY_LOG_COPY_DROPPED : FBY_LOG_ANOTHER;
}

/* Is there any trace of an entry of the period? */
static bool traces(const struct fby_logs *p, u16 log, const u8 guid[16])
{
	const struct fby_space *space = p->space;
	bool any = space->owner[log].log.flags != 0;

	for (u32 c = space->owner[log].first; c != FBY_NO_CHUNK; c = space->chunk[c].next)
		any |= p->chunk[c].missing > 0;
	return any || collect(p, log, guid, NULL, 0) > 0;
}

/*
 * Is a consumer's header older than the newest period, which the record knows?  An older one is
 * right only if that period's beginning was interrupted: its header was not stored, no entry was
 * appended, and the previous period had ended.
 */
static bool header_stale(const struct fby_logs *p, u16 log, const struct fby_log_header *h)
{
	const struct fby_log_record *r = &p->space->owner[log].log;
	bool ended = h->state == FBY_LOG_NONE;

	if (fby_logs_guid_none(r->guid) || FBY_BUG(STALE_HEADER_TAKEN))
		return false;
	if (r->state == FBY_LOG_NONE)
		return !ended;
	if (fby_equal(h->guid, r->guid, sizeof(h->guid)))
		return false;
	return !ended || (r->home & FBY_LOG_STORED) || traces(p, log, r->guid);
}

/* For a log whose header is with its consumer, only a claim shows which chunks are of periods
 * that have ended. */
static void free_earlier(struct fby_logs *p, u16 log)
{
	u32 wake = 0;

	for (u32 c = fby_chunk_walk(p->space, log, FBY_NO_CHUNK, &wake); c != FBY_NO_CHUNK;
	     c = fby_chunk_walk(p->space, log, c, &wake)) {
		if (fby_logs_earlier(p, c))
			fby_chunk_give_back(p->space, c);
	}
	fby_fetch_or(&p->space->wake_owed, wake);
}

static enum fby_log_verdict dry(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	(void)arg;
	(void)node;
	(void)next;
	return FBY_LOG_REPLAYED;
}

int fby_logs_claim(struct fby_logs *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		   u64 *n, struct fby_log_result *result)
{
	struct fby_log *l = &p->log[log];
	int rc = fby_logs_check(p, log);
	struct fby_log_header h = l->header;
	struct fby_log_position at;
	bool consumer;
	u64 found = 0;

	if (rc)
		return rc;
	if (l->claimed)
		return -FBY_E_LOG_STATE;
	if (synced >= FBY_NUMBER_START) /* for an embedded log, too: synced would be stored in the record */
		return -FBY_E_NUMBERS;
	consumer = p->space->owner[log].log.home & FBY_LOG_CONSUMER;
	if (consumer) {
		if (!header || !fby_log_header_sane(header))
			return -FBY_E_LOG_HEADER;
		if (header->state != FBY_LOG_NONE && fby_logs_guid_taken(p, log, header->guid))
			return -FBY_E_LOG_GUID;
		if (header_stale(p, log, header))
			return -FBY_E_LOG_PERIOD;
		h = *header;
	}
	if (h.state != FBY_LOG_NONE)
		found = collect(p, log, h.guid, node, *n);
	if (found > *n)
		return -FBY_E_NO_MEMORY;
	if (p->space->store.unit && !FBY_BUG(STREAM_COPY_IS_TWIN))
		found = fby_log_copies_drop(node, found, copy_of, &p->space->store);
	*n = found;
	fby_zero(result, sizeof(*result));
	if (consumer) {
		fby_logs_header(l, &h);
		fby_logs_stored(p, log);
	}
	if (h.state == FBY_LOG_NONE) { /* and there is nothing to replay */
		l->claimed = true;
		return FBY_DONE;
	}
	if (h.state == FBY_LOG_LOGGING) {
		if (synced < h.at.synced)
			synced = h.at.synced;
		fby_log_claim_order(&h.at, synced, node, found);
		if (FBY_BUG(SEAL_OF_LOG_FORGOTTEN))
			h.at.seal_gen = 0;
		h.state = FBY_LOG_REPLAYING;
		fby_logs_header(l, &h);
		fby_logs_write(p, log);
	}
	l->claimed = true;
	if (!p->space->opt.read_only)
		free_earlier(p, log);
	if (header)
		*header = l->header;
	at = l->header.at;
	fby_log_replay_order(&at, node, found, dry, NULL, result);
	return FBY_DONE;
}

/* --- replay ------------------------------------------------------------------------ */

struct replaying {
	struct fby_logs *p;
	u16 log;
	fby_log_replay_fn *replay;
	void *arg;
};

static void moved_to(struct fby_log *l, const struct fby_log_position *at)
{
	fby_lock(&l->lock);
	l->header.at = *at;
	fby_unlock(&l->lock);
}

static void checkpoint(const struct replaying *r, const struct fby_log_position *next)
{
	moved_to(&r->p->log[r->log], next);
	fby_logs_write(r->p, r->log);
}

static enum fby_log_verdict replay_entry(void *arg, const struct fby_log_node *node,
					 const struct fby_log_position *next)
{
	const struct replaying *r = arg;
	enum fby_log_verdict verdict;

	if (FBY_BUG(CHECKPOINT_BEFORE_EFFECT))
		checkpoint(r, next);
	verdict = r->replay(r->arg, node, next);
	if (verdict == FBY_LOG_REPLAYED && !FBY_BUG(CHECKPOINT_FORGOTTEN))
		checkpoint(r, next);
	return verdict;
}

int fby_logs_replay(struct fby_logs *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
		    void *arg, struct fby_log_result *result)
{
	struct replaying r = { .p = p, .log = log, .replay = replay, .arg = arg };
	struct fby_log *l = &p->log[log];
	struct fby_log_position at;
	int rc = fby_logs_check(p, log);

	if (rc)
		return rc;
	if (!l->claimed || l->header.state != FBY_LOG_REPLAYING)
		return l->claimed ? -FBY_E_LOG_STATE : -FBY_E_LOG_UNCLAIMED;
	at = l->header.at;
	fby_log_replay_order(&at, node, n, replay_entry, &r, result);
	moved_to(l, &at);
	return FBY_DONE;
}

/* Reads the header again: the media may return something else than at the claim. */
int fby_logs_read(struct fby_logs *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length)
{
	const struct fby_store *st = &p->space->store;
	u64 at = node->place & (fby_log_lines(st) - 1);
	struct fby_log_entry e;
	struct fby_log_node now;
	u64 c = node->place >> (st->chunk_shift + 6);

	*length = 0;
	if (log >= st->sb.nvolumes || c >= st->sb.nchunks)
		return -FBY_E_NO_LOG;
	if (!fby_log_entry_read(st, (u32)c, (u32)at, &e) || e.log != log)
		return -FBY_E_LOG_ENTRY;
	fby_zero(&now, sizeof(now));
	fby_log_node_of(st, &e, &now);
	if (!fby_equal(&now, node, sizeof(now)) || !fby_equal(e.guid, p->log[log].header.guid, sizeof(e.guid)))
		return -FBY_E_LOG_ENTRY;
	if (room < (fby_entry_lines(e.length) - FBY_ENTRY_LINES) * FBY_LINE)
		return -FBY_E_NO_MEMORY;
	if (!fby_log_body_read(st, &e, dst))
		return -FBY_E_LOG_ENTRY;
	*length = e.length;
	return FBY_DONE;
}
