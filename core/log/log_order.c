// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * log_order.c - counters of a log's entries when they are appended, and the same
 * counters when they are replayed (log_order.h).
 */
#include "log/log_order.h"

/* --- counters ---------------------------------------------------------------- */

static u64 count_of(const struct fby_log_counters *c, u64 txg)
{
	return txg <= c->txg && c->txg - txg < FBY_LOG_TXGS ? c->n[c->txg - txg] : 0;
}

/* Advances the counters to txg as the newest. */
static void move_on(struct fby_log_counters *c, u64 txg)
{
	struct fby_log_counters moved = { .txg = txg };

	if (txg <= c->txg)
		return;
	for (u32 i = 0; i < FBY_LOG_TXGS && i < txg; i++)
		moved.n[i] = count_of(c, txg - i);
	*c = moved;
}

bool fby_log_count(struct fby_log_counters *c, u64 txg)
{
	if (fby_unlikely(txg > c->txg))
		move_on(c, txg);
	if (c->txg - txg >= FBY_LOG_TXGS)
		return false;
	c->n[c->txg - txg]++;
	return true;
}

void fby_log_count_all(struct fby_log_counters *c, const struct fby_log_counters *more)
{
	move_on(c, more->txg);
	for (u32 i = 0; i < FBY_LOG_TXGS && i < c->txg; i++)
		c->n[i] += count_of(more, c->txg - i);
}

static bool counts_agree(const struct fby_log_counters *a, const struct fby_log_counters *b, u64 synced)
{
	for (u32 i = 0; i < FBY_LOG_TXGS && a->txg > i; i++)
		if (a->txg - i > synced && a->n[i] != count_of(b, a->txg - i))
			return false;
	return true;
}

/* Are both equal for the txgs above synced? */
static bool counters_match(const struct fby_log_counters *a, const struct fby_log_counters *b, u64 synced)
{
	return counts_agree(a, b, synced) && counts_agree(b, a, synced);
}

/* --- append ------------------------------------------------------------------ */

enum fby_log_refusal fby_log_admit(u64 synced, u64 txg)
{
	if (txg <= synced)
		return FBY_LOG_OBSOLETE;
	return txg - synced > FBY_LOG_TXGS ? FBY_LOG_SKIPS : FBY_LOG_OK;
}

enum fby_log_refusal fby_log_append_order(struct fby_log_position *at, u64 txg, bool new_generation,
					  struct fby_log_node *node)
{
	bool next = new_generation || at->gen == 0;
	enum fby_log_refusal refusal = fby_log_admit(at->synced, txg);

	if (refusal != FBY_LOG_OK)
		return refusal;
	if (at->gen + next == 0 || (!next && at->id + 1 == 0))
		return FBY_LOG_FULL;
	if (next) {
		at->gen++;
		at->id = 0;
		at->last = at->live;
	}
	at->id++;
	if (!fby_log_count(&at->live, txg))
		FBY_ASSERT(at, false); /* a txg above synced + 3 was counted */
	node->txg = txg;
	node->gen = at->gen;
	node->id = at->id;
	node->before = at->last;
	return FBY_LOG_OK;
}

enum fby_log_refusal fby_log_sync_order(struct fby_log_position *at, u64 txg)
{
	if (txg < at->synced)
		return FBY_LOG_BACKWARDS;
	at->synced = txg;
	return FBY_LOG_OK;
}

/* --- the order of a set ------------------------------------------------------- */

static bool node_after(const struct fby_log_node *a, const struct fby_log_node *b)
{
	return a->gen > b->gen || (a->gen == b->gen && a->id > b->id);
}

/* Restores the max-heap [0, n) below i. */
static void node_down(struct fby_log_node *a, u64 n, u64 i)
{
	struct fby_log_node x = a[i];

	for (;;) {
		u64 child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && node_after(&a[child + 1], &a[child]))
			child++;
		if (!node_after(&a[child], &x))
			break;
		a[i] = a[child];
		i = child;
	}
	a[i] = x;
}

/* Heap sort: in place, and no input makes it slow.  A log that was scanned in
 * the order of its appends is sorted already. */
static void nodes_sort(struct fby_log_node *a, u64 n)
{
	u64 sorted = 1;

	while (sorted < n && !node_after(&a[sorted - 1], &a[sorted]))
		sorted++;
	if (sorted >= n)
		return;
	for (u64 i = n / 2; i-- > 0;)
		node_down(a, n, i);
	while (n > 1) {
		struct fby_log_node x = a[--n];

		a[n] = a[0];
		a[0] = x;
		node_down(a, n, 0);
	}
}

static bool same_name(const struct fby_log_node *a, const struct fby_log_node *b)
{
	return a->gen == b->gen && a->id == b->id;
}

/* Is a neighbour of node[i] its twin?  Nobody can tell which of the two is forged. */
static bool has_twin(const struct fby_log_node *node, u64 n, u64 i)
{
	return (i > 0 && same_name(&node[i - 1], &node[i])) || (i + 1 < n && same_name(&node[i], &node[i + 1]));
}

u64 fby_log_copies_drop(struct fby_log_node *node, u64 n, fby_log_copy_fn *copy, void *arg)
{
	u64 kept = 0;

	nodes_sort(node, n);
	for (u64 i = 0; i < n; i++) {
		struct fby_log_node *last = kept ? &node[kept - 1] : NULL;
		enum fby_log_copy is = FBY_LOG_ANOTHER;

		if (last && same_name(last, &node[i]) && last->txg == node[i].txg &&
		    fby_equal(&last->before, &node[i].before, sizeof(last->before)))
			is = copy(arg, last, &node[i]);
		if (is == FBY_LOG_ANOTHER)
			node[kept++] = node[i];
		else if (is == FBY_LOG_COPY_COUNTS)
			*last = node[i];
	}
	return kept;
}

/* --- claim ---------------------------------------------------------------------- */

/*
 * The seal counts the entries that those of the last generation refer to, and these entries
 * themselves.  So it is right even if an earlier entry is missing now and readable at the time of
 * the replay.
 */
void fby_log_claim_order(struct fby_log_position *at, u64 synced, struct fby_log_node *node, u64 n)
{
	u64 gen = 0;

	fby_zero(at, sizeof(*at));
	at->synced = synced;
	nodes_sort(node, n);
	for (u64 i = n; i-- > 0 && (gen == 0 || node[i].gen == gen);) {
		if (node[i].txg <= synced || has_twin(node, n, i))
			continue;
		if (gen == 0) {
			gen = node[i].gen;
			at->seal = node[i].before;
		}
		(void)fby_log_count(&at->seal, node[i].txg); /* false: forged, and refused when it is replayed */
	}
	at->seal_gen = gen + 1;
}

/* --- replay ----------------------------------------------------------------------- */

/* Is the seal between the position and generation gen, and does its count differ? */
static bool seal_broken(const struct fby_log_position *at, u64 gen)
{
	return at->seal_gen && at->gen < at->seal_gen && gen >= at->seal_gen &&
	       !counters_match(&at->seal, &at->live, at->synced);
}

/* The position after the entry; false: something before it is missing. */
static bool follow(const struct fby_log_position *at, const struct fby_log_node *e, struct fby_log_position *next)
{
	*next = *at;
	if (e->gen > at->gen)
		next->last = at->live;
	next->gen = e->gen;
	next->id = e->id;
	return counters_match(&e->before, &next->last, at->synced) && fby_log_count(&next->live, e->txg) &&
	       count_of(&next->live, e->txg) < FBY_NUMBER_END; /* else the position is forged */
}

/* Should the node be replayed at all?  Counts the reason if not. */
static bool wanted(const struct fby_log_position *at, const struct fby_log_node *node, u64 n, u64 i,
		   struct fby_log_result *r)
{
	const struct fby_log_node *e = &node[i];

	if (e->txg <= at->synced)
		r->obsolete++;
	else if (e->gen < at->gen || (e->gen == at->gen && e->id <= at->id))
		r->earlier++;
	else if (has_twin(node, n, i))
		r->twins++;
	else
		return true;
	return false;
}

static void witness_seal(const struct fby_log_position *at, struct fby_log_result *r)
{
	r->end = FBY_LOG_MISSING;
	r->witness.gen = at->seal_gen;
	r->witness.id = 0;
	r->witness.before = at->seal;
}

/* Counts the nodes of node[i..)  that would have been replayed. */
static u64 count_wanted(const struct fby_log_position *at, const struct fby_log_node *node, u64 n, u64 i,
			struct fby_log_result *r)
{
	u64 left = 0;

	for (; i < n; i++)
		left += wanted(at, node, n, i, r);
	return left;
}

void fby_log_replay_order(struct fby_log_position *at, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay,
			  void *arg, struct fby_log_result *r)
{
	struct fby_log_position next;
	u64 i;

	fby_zero(r, sizeof(*r));
	nodes_sort(node, n);
	for (i = 0; i < n; i++) {
		enum fby_log_verdict verdict;

		if (!wanted(at, node, n, i, r))
			continue;
		if (seal_broken(at, node[i].gen)) {
			witness_seal(at, r);
			break;
		}
		if (!follow(at, &node[i], &next)) {
			r->end = FBY_LOG_MISSING;
			r->witness = node[i];
			break;
		}
		verdict = replay(arg, &node[i], &next);
		if (verdict == FBY_LOG_STOP) {
			r->end = FBY_LOG_STOPPED;
			break;
		}
		if (verdict == FBY_LOG_DAMAGED) {
			if (r->damaged++ == 0)
				r->first_damaged = node[i];
			continue;
		}
		*at = next;
		r->replayed++;
	}
	r->left = count_wanted(at, node, n, i, r);
	if (i == n && seal_broken(at, at->seal_gen))
		witness_seal(at, r);
}
