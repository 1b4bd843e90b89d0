// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_log_api.c - the answers of the calls of logs.  Each call is made in each state of a log,
 * in a pool that is read-only or not recovered yet, and for an owner that is no log.
 */
#include "inside_log.h"

enum call { APPEND, SYNC, CREATE, CLAIM, REPLAY, RELEASE, REMOVE, DESTROY, CALLS };

static struct fby_recovery_report report;

static enum fby_log_verdict replayed(void *arg, const struct fby_log_node *n, const struct fby_log_position *next)
{
	(void)arg;
	(void)n;
	(void)next;
	return FBY_LOG_REPLAYED;
}

static int call(enum call what, u16 log)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	u32 wake = 0;

	switch (what) {
	case APPEND:
		return fby_log_append(pool, log, 1, false, &body, 1, &name, &wake);
	case SYNC:
		return fby_log_sync(pool, log, 0, NULL, &wake);
	case CREATE:
		return fby_log_create(pool, log, next_guid, 0, NULL, &wake);
	case CLAIM:
		return log_claim(log, 0, FBY_LOG_LOGGING);
	case REPLAY:
		return fby_log_replay(pool, log, log_node, log_found, replayed, NULL, &log_result);
	case RELEASE:
		return fby_log_release(pool, log, &wake);
	case REMOVE:
		return fby_log_remove(pool, log, false);
	case DESTROY:
		return fby_log_destroy(pool, log, NULL, &wake);
	case CALLS:
		break;
	}
	return 1;
}

/* --- in each state ------------------------------------------------------------------- */

enum state { NONE, LOGGING, LEFT, REPLAYING, LEFT_REPLAYING, LEFT_NONE, STATES }; /* left: by a crash, unclaimed */

static void enter(enum state state, u32 flags)
{
	u32 wake = 0;

	log_make(flags);
	if (state == NONE || state == LEFT_NONE)
		EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
	else
		EXPECT(log_append(1) == FBY_DONE);
	if (state != NONE && state != LOGGING)
		pool_recover(&report);
	if (state == REPLAYING || state == LEFT_REPLAYING)
		EXPECT(log_claim(LOG, 0, FBY_LOG_LOGGING) == FBY_DONE);
	if (state == LEFT_REPLAYING)
		pool_recover(&report);
}

#define WRONG (-FBY_E_LOG_STATE)
#define FIRST (-FBY_E_LOG_UNCLAIMED)

static const int embedded[STATES][CALLS] = {
	/*		    append sync   create claim  replay release remove destroy */
	[NONE]		  = { WRONG, WRONG, 0,     WRONG, WRONG, 0,     0,     0 },
	[LOGGING]	  = { 0,     0,     WRONG, WRONG, WRONG, WRONG, WRONG, 0 },
	[LEFT]		  = { FIRST, FIRST, WRONG, 0,     FIRST, WRONG, WRONG, 0 },
	[REPLAYING]	  = { WRONG, WRONG, WRONG, WRONG, 0,     WRONG, WRONG, 0 },
	[LEFT_REPLAYING]  = { WRONG, WRONG, WRONG, 0,     FIRST, WRONG, WRONG, 0 },
	[LEFT_NONE]	  = { WRONG, WRONG, 0,     0,     FIRST, 0,     0,     0 },
};

/* The table for logs whose header is with the consumer.  Only the consumer knows which of the three
 * states the log was left in. */
static const int consumers[STATES][CALLS] = {
	[NONE]		  = { WRONG, WRONG, 0,     WRONG, WRONG, 0,     0,     0 },
	[LOGGING]	  = { 0,     0,     WRONG, WRONG, WRONG, WRONG, WRONG, 0 },
	[LEFT]		  = { FIRST, FIRST, FIRST, 0,     FIRST, FIRST, FIRST, 0 },
	[REPLAYING]	  = { WRONG, WRONG, WRONG, WRONG, 0,     WRONG, WRONG, 0 },
	[LEFT_REPLAYING]  = { FIRST, FIRST, FIRST, 0,     FIRST, FIRST, FIRST, 0 },
	[LEFT_NONE]	  = { FIRST, FIRST, FIRST, 0,     FIRST, FIRST, FIRST, 0 },
};

static void in_each_state(u32 flags)
{
	for (u32 state = 0; state < STATES; state++)
		for (u32 what = 0; what < CALLS; what++) {
			const int want = flags ? consumers[state][what] : embedded[state][what];
			int rc;

			enter(state, flags);
			rc = call(what, LOG);
			EXPECT(rc == want);
			if (rc != want)
				printf("flags %u, state %u, call %u: %d, not %d\n", flags, state, what, rc, want);
			pool_restore();
		}
}

/* A log is given up unread, with the consumer's header.  Its chunks become free, and it begins
 * anew. */
static void given_up_unread(u32 flags)
{
	for (u32 state = LEFT; state < STATES; state++) {
		struct fby_log_header h = log_header(FBY_LOG_LOGGING);
		u32 wake = 0;

		if (state == REPLAYING)
			continue;
		enter(state, flags);
		EXPECT(fby_log_destroy(pool, LOG, &h, &wake) == FBY_DONE && h.state == FBY_LOG_NONE);
		EXPECT(fby_log_release(pool, LOG, &wake) == FBY_DONE && log_info().chunks == 0);
		EXPECT(call(CREATE, LOG) == FBY_DONE && call(APPEND, LOG) == FBY_DONE);
		pool_restore();
	}
}

/* With the order to discard, a log is removed in each of the states. */
static void discarded(u32 flags)
{
	for (u32 state = 0; state < STATES; state++) {
		u16 log;

		enter(state, flags);
		EXPECT(fby_log_remove(pool, LOG, true) == FBY_DONE);
		EXPECT(fby_log_find(pool, "log2", &log) == -FBY_E_NO_LOG);
		EXPECT(pool->space.owner[LOG].nchunks == 0);
		pool_recover(&report);
		EXPECT(fby_log_find(pool, "log2", &log) == -FBY_E_NO_LOG);
		pool_restore();
	}
}

/* --- of what is no log, and in a pool that cannot --------------------------------------- */

static void no_log(void)
{
	struct fby_log_info i;

	for (u32 what = 0; what < CALLS; what++) {
		EXPECT(call(what, 0) == -FBY_E_NO_LOG); /* a volume */
		EXPECT(call(what, (u16)pool->space.store.sb.nvolumes) == -FBY_E_NO_LOG);
		log_make(0);
		pool->space.owner[LOG].damaged = true;
		EXPECT(what == APPEND || call(what, LOG) == -FBY_E_VOLUME_DAMAGED);
		pool_restore();
		log_make(0);
		pool->space.usable = false;
		EXPECT(call(what, LOG) == -FBY_E_RECOVERY_INCOMPLETE);
		pool_restore();
	}
	/* The memory after the table may have any content. */
	for (u32 what = 0; what < CALLS; what++) {
		u16 behind = (u16)pool->space.store.sb.nvolumes;

		log_make(0);
		pool->space.owner[behind] = pool->space.owner[LOG];
		pool->logs.log[behind] = pool->logs.log[LOG];
		EXPECT(call(what, behind) == -FBY_E_NO_LOG && fby_log_info(pool, behind, &i) == -FBY_E_NO_LOG);
		EXPECT(memcmp(&pool->logs.log[behind], &pool->logs.log[LOG], sizeof(struct fby_log)) == 0);
		pool_restore();
	}
	EXPECT(fby_log_info(pool, 0, &i) == -FBY_E_NO_LOG && !i.used && !i.damaged);
	EXPECT(fby_log_info(pool, (u16)pool->space.store.sb.nvolumes, &i) == -FBY_E_NO_LOG);
	log_make(0);
	pool->space.owner[LOG].damaged = true;
	EXPECT(fby_log_info(pool, LOG, &i) == -FBY_E_NO_LOG && !i.used && i.damaged);
	pool_restore();
}

/* A read-only pool allows claim, replay and read, and leaves the media as it is. */
static void read_only(u32 flags)
{
	static const int want[CALLS] = { -FBY_E_READ_ONLY, -FBY_E_READ_ONLY, -FBY_E_READ_ONLY, 0, 0,
					 -FBY_E_READ_ONLY, -FBY_E_READ_ONLY, -FBY_E_READ_ONLY };
	struct fby_options o = { .nslots = 2, .read_only = true };
	static u8 media_before[(NCHUNKS + 1) * CHUNK_BYTES], body[FBY_LINE];
	u64 bytes = pool->memory_bytes;
	u32 length;

	enter(LEFT, flags);
	memcpy(media_before, media.base, sizeof(media_before));
	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, &report) == FBY_DONE);
	for (u32 what = 0; what < CALLS; what++) {
		EXPECT(call(what, LOG) == want[what]);
		EXPECT(what == CLAIM || what == REPLAY || call(what, 0) == -FBY_E_NO_LOG);
	}
	EXPECT(fby_log_read(pool, LOG, &log_node[0], body, sizeof(body), &length) == FBY_DONE && length == 8);
	EXPECT(memcmp(media_before, media.base, sizeof(media_before)) == 0);
	pool_restore();
}

/* A read-only claim does not free chunks that a claim would free. */
static void read_only_earlier(bool may_write, u32 chunks)
{
	struct fby_options o = { .nslots = 2, .read_only = !may_write };
	struct fby_log_header h;
	u64 bytes = pool->memory_bytes;
	u32 wake = 0;

	log_make(FBY_LOG_CONSUMER);
	EXPECT(log_append(1) == FBY_DONE);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE && fby_log_release(pool, LOG, &wake) == FBY_DONE);
	EXPECT(fby_log_create(pool, LOG, next_guid, 0, &h, &wake) == FBY_DONE && log_append(1) == FBY_DONE);
	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, &report) == FBY_DONE);
	EXPECT(log_info().chunks == 2);
	log_found = 4;
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == FBY_DONE && log_found == 1);
	EXPECT(log_info().chunks == chunks);
	pool_restore();
}

/* --- what create and claim are told -------------------------------------------------- */

/* No two logs have the same GUID, because it identifies their entries. */
static void one_guid(void)
{
	static const u8 zero[16], last[16] = { [15] = 1 };
	struct fby_log_header h = log_header(FBY_LOG_LOGGING);
	u32 wake = 0;

	log_make(0);
	log_add(SECOND_LOG, 0);
	EXPECT(fby_log_create(pool, SECOND_LOG, zero, 0, NULL, &wake) == -FBY_E_LOG_GUID);
	EXPECT(fby_log_create(pool, SECOND_LOG, log_guid, 0, NULL, &wake) == -FBY_E_LOG_GUID);
	EXPECT(fby_log_create(pool, SECOND_LOG, last, FBY_NUMBER_START, NULL, &wake) == -FBY_E_NUMBERS);
	EXPECT(fby_log_create(pool, SECOND_LOG, last, FBY_NUMBER_START - 1, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_destroy(pool, SECOND_LOG, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
	memcpy(pool->logs.log[LOG].header.guid, log_guid, 16); /* nobody has it, whatever is left there */
	EXPECT(fby_log_create(pool, SECOND_LOG, log_guid, 0, NULL, &wake) == FBY_DONE);
	pool_restore();
	/* A claim refuses it too, because a consumer may have confused the headers. */
	log_make(0);
	log_add(SECOND_LOG, FBY_LOG_CONSUMER);
	pool_recover(&report);
	EXPECT(log_claim(SECOND_LOG, 0, FBY_LOG_LOGGING) == -FBY_E_LOG_GUID);
	EXPECT(log_claim(SECOND_LOG, 0, FBY_LOG_NONE) == FBY_DONE);
	pool_restore();
	/* A log may state its own GUID again. */
	log_make(FBY_LOG_CONSUMER);
	EXPECT(log_append(1) == FBY_DONE);
	pool_recover(&report);
	log_found = 0;
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == -FBY_E_NO_MEMORY);
	EXPECT(log_claim(LOG, 0, FBY_LOG_LOGGING) == FBY_DONE && log_found == 1);
	pool_restore();
}

static void claimed(void)
{
	struct fby_log_header h = log_header(FBY_LOG_REPLAYING + 1);

	enter(LEFT, FBY_LOG_CONSUMER);
	log_found = 4;
	EXPECT(fby_log_claim(pool, LOG, 0, NULL, log_node, &log_found, &log_result) == -FBY_E_LOG_HEADER);
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == -FBY_E_LOG_HEADER);
	EXPECT(log_claim(LOG, FBY_NUMBER_START, FBY_LOG_LOGGING) == -FBY_E_NUMBERS);
	EXPECT(log_claim(LOG, FBY_NUMBER_START - 1, FBY_LOG_LOGGING) == FBY_DONE && log_result.obsolete == 1);
	pool_restore();
	/* In state none nothing is replayed, whatever the log holds. */
	enter(LEFT, FBY_LOG_CONSUMER);
	memset(&log_result, 0x55, sizeof(log_result));
	EXPECT(log_claim(LOG, 0, FBY_LOG_NONE) == FBY_DONE && log_found == 0);
	EXPECT(log_result.replayed == 0 && log_result.left == 0);
	pool_restore();
	/* Entries are synced up to the later of two numbers: that of the record and that of the
	 * consumer.  The caller need not ask for a header. */
	for (u64 synced = 0; synced < 4; synced++) {
		u32 wake = 0;

		log_make(0);
		EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE && log_append(3) == FBY_DONE);
		EXPECT(fby_log_sync(pool, LOG, 1, NULL, &wake) == FBY_DONE);
		pool_recover(&report);
		log_found = 4;
		EXPECT(fby_log_claim(pool, LOG, synced, NULL, log_node, &log_found, &log_result) == FBY_DONE && log_found == 3);
		EXPECT(log_info().header.at.synced == (synced < 1 ? 1 : synced));
		EXPECT(log_result.replayed == (synced < 1 ? 2 : 3 - synced) && log_result.end == FBY_LOG_COMPLETE);
		pool_restore();
	}
}

static void appended(void)
{
	static u8 data[CHUNK_BYTES];
	struct fby_vec body = { .base = data, .len = fby_entry_most(&pool->space.store) + 1 };
	struct fby_log_name name;
	u32 wake = 0;

	log_make(0);
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &name, &wake) == -FBY_E_LOG_TOO_LARGE);
	body.len--;
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &name, &wake) == FBY_DONE);
	EXPECT(log_info().most == body.len);
	EXPECT(fby_log_append(pool, LOG, 0, false, &body, 0, &name, &wake) == -FBY_E_LOG_OBSOLETE);
	EXPECT(fby_log_append(pool, LOG, 4, false, &body, 0, &name, &wake) == -FBY_E_LOG_SKIPS);
	EXPECT(fby_log_append(pool, LOG, 3, false, &body, 0, &name, &wake) == FBY_DONE);
	EXPECT(fby_log_sync(pool, LOG, FBY_NUMBER_START, NULL, &wake) == -FBY_E_NUMBERS);
	EXPECT(fby_log_sync(pool, LOG, FBY_NUMBER_START - 1, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_sync(pool, LOG, FBY_NUMBER_START - 1, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_sync(pool, LOG, FBY_NUMBER_START - 2, NULL, &wake) == -FBY_E_LOG_BACKWARDS);
	EXPECT(fby_log_append(pool, LOG, FBY_NUMBER_START, false, &body, 0, &name, &wake) == -FBY_E_LOG_SKIPS);
	pool_restore();
}

/* Unsynced entries are counted over two slots and over generations. */
static void counted(void)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	u32 wake = 0;

	for (u32 first = 0; first < 2; first++) {
		log_make(0);
		cpu = first;
		EXPECT(log_append(1) == FBY_DONE);
		EXPECT(log_info().unsynced == 1 && log_info().unsynced_txgs == 1);
		cpu = !first;
		EXPECT(log_append(1) == FBY_DONE); /* the next generation: the other slot counts the last one */
		EXPECT(log_info().unsynced == 2 && log_info().unsynced_txgs == 1);
		EXPECT(fby_log_append(pool, LOG, 3, false, &body, 1, &name, &wake) == FBY_DONE);
		cpu = first;
		EXPECT(fby_log_append(pool, LOG, 3, false, &body, 1, &name, &wake) == FBY_DONE);
		EXPECT(log_info().unsynced == 4 && log_info().unsynced_txgs == 2);
		EXPECT(log_info().appends == 4 && log_info().bytes == 32);
		EXPECT(fby_log_sync(pool, LOG, 1, NULL, &wake) == FBY_DONE);
		EXPECT(log_info().unsynced == 2 && log_info().unsynced_txgs == 1);
		EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
		EXPECT(log_info().unsynced == 0 && log_info().unsynced_txgs == 0);
		cpu = 0;
		pool_restore();
	}
}

/* At the end of the numbers, entries of this generation are refused, and a new generation is not.
 */
static void numbers_end(void)
{
	struct fby_log_position at = { .gen = 1, .id = ~0ull };
	struct fby_log_node n;

	EXPECT(fby_log_append_order(&at, 1, false, &n) == FBY_LOG_FULL);
	EXPECT(fby_log_append_order(&at, 1, true, &n) == FBY_LOG_OK && n.gen == 2 && n.id == 1);
	at.gen = ~0ull;
	EXPECT(fby_log_append_order(&at, 1, true, &n) == FBY_LOG_FULL);
	EXPECT(fby_log_append_order(&at, 1, false, &n) == FBY_LOG_OK && n.id == 2);
}

/* Tests the counters after an append, and the names of entries: numbers of a generation begin with
 * 1. */
static void named(void)
{
	static const u8 data[200];
	const struct fby_vec body[] = { { .base = data, .len = 60 }, { .base = data, .len = 0 }, { .base = data, .len = 69 } };
	struct fby_pool_info before, after;
	struct fby_log_name name;
	u64 gen;
	u32 wake = 0;

	log_make(0);
	fby_pool_info(pool, &before);
	EXPECT(fby_log_append(pool, LOG, 1, false, body, 3, &name, &wake) == FBY_DONE && name.id == 1);
	gen = name.gen;
	fby_pool_info(pool, &after);
	EXPECT(after.commits - before.commits == 1);
	EXPECT(after.media_bytes - before.media_bytes == (FBY_ENTRY_LINES + 3) * FBY_LINE);
	EXPECT(log_info().appends == 1 && log_info().bytes == 129);
	EXPECT(fby_log_append(pool, LOG, 1, false, body, 3, &name, &wake) == FBY_DONE);
	EXPECT(name.gen == gen && name.id == 1 + pool->space.opt.nslots); /* no other slot gives this */
	cpu = 1;
	EXPECT(fby_log_append(pool, LOG, 1, false, body, 3, &name, &wake) == FBY_DONE);
	EXPECT(name.gen == gen && name.id == 2);
	cpu = 0;
	EXPECT(fby_log_append(pool, LOG, 1, true, body, 3, &name, &wake) == FBY_DONE);
	EXPECT(name.gen == gen + 1 && name.id == 1);
	pool_restore();
}

/* The numbers change during the call.  The call counts the three txgs and no others, names the
 * owner of each part, and says who must be woken. */
static void counted_of(void)
{
	struct fby_log_part *behind = fby_log_part(&pool->logs, pool->space.opt.nslots, LOG);
	struct fby_log *l = &pool->logs.log[LOG];
	struct fby_log_part kept;
	u32 wake = 0;

	log_make(0);
	for (u64 txg = 1; txg <= 6; txg++) {
		EXPECT(log_append(txg) == FBY_DONE);
		EXPECT(txg > 3 || fby_log_sync(pool, LOG, txg, NULL, &wake) == FBY_DONE);
	}
	l->synced = 0; /* as it was when the look began */
	EXPECT(log_info().unsynced == 3 && log_info().unsynced_txgs == 3);
	EXPECT(pool->space.wake_owed == 0);
	pool->space.wait_mask = FBY_WAKE_BLOCK | FBY_WAKE_SPACE;
	EXPECT(log_info().unsynced == 3 && pool->space.wake_owed == FBY_WAKE_BLOCK);
	pool_restore();

	/* The memory after the last slot's parts belongs to something else. */
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	kept = *behind;
	*behind = (struct fby_log_part){ .gen = l->gen, .live = { .txg = 1, .n = { 5 } } };
	EXPECT(log_info().unsynced == 1);
	EXPECT(log_append(1) == FBY_DONE);
	*behind = kept;
	EXPECT(log_info().unsynced == 2);
	pool_restore();
}

/* Each entry states the number of entries of each txg, in whichever order they came.  Any entry of
 * a generation may come first. */
static void in_any_order(void)
{
	static const u64 order[][4] = { { 3, 1, 2, 1 }, { 1, 3, 1, 3 }, { 2, 3, 1, 1 }, { 3, 2, 1, 3 } };

	for (u32 i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		for (u32 slots = 0; slots < 16; slots++) {
			log_make(0);
			for (u32 n = 0; n < 4; n++) {
				cpu = slots >> n & 1;
				EXPECT(log_append(order[i][n]) == FBY_DONE);
			}
			cpu = 0;
			EXPECT(log_info().unsynced == 4);
			pool_recover(&report);
			EXPECT(log_claim(LOG, 0, FBY_LOG_NONE) == FBY_DONE && log_found == 4);
			EXPECT(log_result.replayed == 4 && log_result.end == FBY_LOG_COMPLETE && log_result.left == 0);
			for (u32 n = 0; n < 4; n++)
				EXPECT(log_node[n].txg == order[i][n] && log_node[n].gen == log_node[0].gen + n);
			EXPECT(log_node[3].before.n[0] + log_node[3].before.n[1] + log_node[3].before.n[2] == 3);
			pool_restore();
		}
}

/* The next period counts from nothing, whatever the last period counted. */
static void period_after_period(void)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	u32 wake = 0;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE && log_append(3) == FBY_DONE);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_create(pool, LOG, next_guid, 0, NULL, &wake) == FBY_DONE && log_info().unsynced == 0);
	EXPECT(fby_log_append(pool, LOG, 2, false, &body, 1, &name, &wake) == FBY_DONE && log_info().unsynced == 1);
	pool_recover(&report);
	EXPECT(log_claim(LOG, 0, FBY_LOG_NONE) == FBY_DONE && log_found == 1 && log_result.replayed == 1);
	EXPECT(log_result.end == FBY_LOG_COMPLETE);
	pool_restore();
}

/* Appends until there is no free chunk.  The last append waits for space and changes nothing. */
static void full(void)
{
	static u8 data[CHUNK_BYTES];
	const struct fby_vec body = { .base = data, .len = fby_entry_most(&pool->space.store) };
	struct fby_log_name name;
	u32 wake = 0, n = 0;
	int rc;

	log_make(0);
	while ((rc = fby_log_append(pool, LOG, 1, false, &body, 1, &name, &wake)) == FBY_DONE && n < NCHUNKS)
		n++;
	EXPECT(rc == FBY_WAIT_SPACE && n > 0 && log_info().chunks == n && log_info().unsynced == n);
	EXPECT(pool->space.slot[0].busy == 0 && pool->space.slot[0].log == FBY_NO_OWNER);
	EXPECT(fby_log_sync(pool, LOG, 1, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_append(pool, LOG, 2, false, &body, 1, &name, &wake) == FBY_DONE);
	pool_restore();
}

/* --- concurrent calls --------------------------------------------------------------------- */

/* Two slots are busy; then one has an entry under way. */
static void slots_busy(void)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	struct fby_append a;
	u32 wake = 0;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	EXPECT(fby_slot_take(&pool->space) && fby_slot_take(&pool->space));
	EXPECT(log_append(1) == FBY_WAIT_SLOT);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_WAIT_SLOT); /* one has its chunk open */
	EXPECT(log_append(1) == -FBY_E_LOG_STATE);
	EXPECT(log_info().unsynced == 0 && pool->space.slot[0].busy == 1 && pool->space.slot[1].busy == 1);
	pool_restore();

	log_make(0);
	EXPECT(fby_log_append_begin(pool, &a, LOG, 1, false, &body, 1, &wake) == FBY_DONE);
	EXPECT(log_append(1) == FBY_WAIT_SLOT); /* a generation waits for those before it */
	EXPECT(fby_log_remove(pool, LOG, true) == FBY_WAIT_SLOT);
	EXPECT(log_info().header.state == FBY_LOG_LOGGING && fby_log_sync(pool, LOG, 1, NULL, &wake) == -FBY_E_LOG_STATE);
	fby_log_append_commit(pool, &a, &name, &wake);
	EXPECT(fby_log_remove(pool, LOG, true) == FBY_DONE);
	pool_restore();
}

/* A caller that wanted to begin a generation and had to wait calls again without that wish.  Its
 * entry is in a generation that began since, whoever began it, and whatever the caller waited for.
 */
static void generation_wanted(void)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name before, between, after;
	struct fby_append a;
	u32 wake = 0;

	/* The caller waits for entries in flight, and another caller overtakes it. */
	log_make(0);
	EXPECT(fby_log_append_begin(pool, &a, LOG, 1, false, &body, 1, &wake) == FBY_DONE);
	EXPECT(fby_log_append(pool, LOG, 1, true, &body, 1, &after, &wake) == FBY_WAIT_SLOT);
	fby_log_append_commit(pool, &a, &before, &wake);
	EXPECT(fby_log_append_begin(pool, &a, LOG, 1, false, &body, 1, &wake) == FBY_DONE);
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &after, &wake) == FBY_DONE);
	fby_log_append_commit(pool, &a, &between, &wake);
	EXPECT(between.gen == before.gen + 1 && after.gen == between.gen);
	pool_restore();

	/* The caller waits for a slot. */
	log_make(0);
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &before, &wake) == FBY_DONE);
	EXPECT(fby_slot_take(&pool->space) && fby_slot_take(&pool->space));
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &after, &wake) == FBY_WAIT_SLOT);
	EXPECT(fby_log_append(pool, LOG, 1, true, &body, 1, &after, &wake) == FBY_WAIT_SLOT);
	fby_slot_release(&pool->space.slot[0]);
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &after, &wake) == FBY_DONE);
	EXPECT(after.gen == before.gen + 1);
	EXPECT(fby_log_append(pool, LOG, 1, false, &body, 1, &between, &wake) == FBY_DONE);
	EXPECT(between.gen == after.gen);
	pool_restore();
}

/* Checks the message, and restores the chunk. */
static void says(struct fby_chunk *ch, const struct fby_chunk *before, const char *message)
{
	char text[200];
	int rc = fby_check(pool, true, text, sizeof(text));

	EXPECT(rc == -FBY_E_INVARIANT && strncmp(text, message, strlen(message)) == 0);
	if (strncmp(text, message, strlen(message)) != 0)
		fprintf(stderr, "inside: want '%s', got '%s'\n", message, text);
	*ch = *before;
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
}

/* A count of unsynced entries does not wait for a slot that stays busy. */
static void counted_busy(void)
{
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	EXPECT(fby_slot_take(&pool->space) == &pool->space.slot[0]);
	EXPECT(log_info().unsynced == 1 && pool->space.slot[0].busy == 1 && pool->space.slot[1].busy == 0);
	pool_restore();
}

/* For a log in state none the tick frees nothing, because its consumer may not know the state yet.
 */
static void tick_of_none(void)
{
	u32 wake = 0;

	log_make(FBY_LOG_CONSUMER);
	EXPECT(log_append(1) == FBY_DONE);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE && log_info().chunks == 1);
	pool->logs.log[LOG].header.at.synced = 1;
	pool->space.nfree = 0;
	EXPECT(fby_short(&pool->space));
	fby_logs_tick(&pool->logs, &wake);
	EXPECT(log_info().chunks == 1 && pool->space.slot[0].volume[LOG].open != FBY_NO_CHUNK);
	pool->logs.log[LOG].gate = FBY_GATE_OPEN;
	fby_logs_tick(&pool->logs, &wake);
	EXPECT(pool->space.slot[0].volume[LOG].open == FBY_NO_CHUNK);
	pool_restore();
}

/* --- the table, and looks ------------------------------------------------------------------ */

static void added(void)
{
	static const char *const bad[] = { "", "-a", ".", "..", "a/b", "a b", "\xe4" };
	char longest[FBY_NAME_MAX + 2] = { 0 };
	struct fby_volume_info v;
	u16 log = 77;

	memset(longest, 'a', FBY_NAME_MAX + 1);
	EXPECT(fby_log_add(pool, "more", 0, &log) == -FBY_E_VOLUME_TABLE_FULL);
	EXPECT(fby_volume_detach(pool, LOG) == FBY_DONE && fby_volume_remove(pool, LOG, true) == FBY_DONE);
	for (u32 i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		EXPECT(fby_log_add(pool, bad[i], 0, &log) == -FBY_E_NAME);
	EXPECT(fby_log_add(pool, longest, 0, &log) == -FBY_E_NAME);
	EXPECT(fby_log_add(pool, "v0", 0, &log) == -FBY_E_VOLUME_EXISTS);
	EXPECT(fby_log_add(pool, "more", FBY_LOG_CONSUMER << 1, &log) == -FBY_E_GEOMETRY);
	pool->space.opt.read_only = true;
	EXPECT(fby_log_add(pool, "more", 0, &log) == -FBY_E_READ_ONLY);
	pool->space.opt.read_only = false;
	pool->space.usable = false;
	EXPECT(fby_log_add(pool, "more", 0, &log) == -FBY_E_RECOVERY_INCOMPLETE);
	pool->space.usable = true;
	EXPECT(fby_log_find(pool, "more", &log) == -FBY_E_NO_LOG && fby_log_find(pool, "v0", &log) == -FBY_E_NO_LOG);
	longest[FBY_NAME_MAX] = 0;
	EXPECT(fby_log_add(pool, longest, FBY_LOG_CONSUMER, &log) == FBY_DONE && log == LOG);
	EXPECT(fby_log_find(pool, longest, &log) == FBY_DONE && log == LOG && log_info().consumer);
	pool->space.owner[LOG].log.home = 0;
	EXPECT(!log_info().consumer);
	EXPECT(strcmp(log_info().name, longest) == 0);
	EXPECT(fby_volume_info(pool, LOG, &v) == -FBY_E_NO_VOLUME && fby_volume_info(pool, 1, &v) == FBY_DONE);
	EXPECT(fby_volume_find(pool, longest, &log) == -FBY_E_NO_VOLUME);
	EXPECT(fby_log_add(pool, "again", 0, &log) == -FBY_E_VOLUME_TABLE_FULL);
	pool_restore();
}

#define READ(want, change) \
	do { \
		struct fby_log_node at = log_node[0]; \
		u32 length = 77; \
\
		change; \
		EXPECT(fby_log_read(pool, LOG, &at, body, sizeof(body), &length) == (want)); \
		EXPECT(length == ((want) == FBY_DONE ? 8 : 0)); \
	} while (0)

/* A claimed entry is checked again.  It is read unchanged, or not at all. */
static void read_again(void)
{
	const struct fby_store *st = &pool->space.store;
	u8 body[FBY_LINE];
	u32 length, c;

	enter(REPLAYING, 0);
	c = pool->space.owner[LOG].first;
	EXPECT(log_found == 1 && log_node[0].place == fby_log_place(st, c, FBY_CHUNK_LINES));
	READ(FBY_DONE, (void)at);
	EXPECT(memcmp(body, "an entry", 8) == 0);
	READ(-FBY_E_NO_LOG, at.place = fby_log_place(st, NCHUNKS, FBY_CHUNK_LINES));
	READ(-FBY_E_LOG_ENTRY, at.place++);
	READ(-FBY_E_LOG_ENTRY, at.place = fby_log_place(st, NCHUNKS - 1, FBY_CHUNK_LINES));
	READ(-FBY_E_LOG_ENTRY, at.txg++);
	READ(-FBY_E_LOG_ENTRY, at.gen++);
	READ(-FBY_E_LOG_ENTRY, at.id++);
	READ(-FBY_E_LOG_ENTRY, at.before.n[2]++);
	EXPECT(fby_log_read(pool, (u16)st->sb.nvolumes, &log_node[0], body, sizeof(body), &length) == -FBY_E_NO_LOG);
	EXPECT(fby_log_read(pool, SECOND_LOG, &log_node[0], body, sizeof(body), &length) == -FBY_E_LOG_ENTRY);
	EXPECT(fby_log_read(pool, LOG, &log_node[0], body, sizeof(body) - 1, &length) == -FBY_E_NO_MEMORY && length == 0);
	pool->logs.log[LOG].header.guid[15]++;
	READ(-FBY_E_LOG_ENTRY, (void)at);
	pool->logs.log[LOG].header.guid[15]--;
	*memory_at(fby_log_line_at(st, c, FBY_CHUNK_LINES + FBY_ENTRY_LINES)) ^= 1;
	READ(-FBY_E_LOG_ENTRY, (void)at);
	pool_restore();
}

static void looked_at(void)
{
	struct fby_log_cursor at = { 0 };
	struct fby_log_entry_info e;

	log_make(0);
	for (u64 txg = 1; txg <= 3; txg++)
		EXPECT(log_append(txg) == FBY_DONE);
	for (u64 txg = 1; txg <= 3; txg++) {
		EXPECT(fby_log_entry_info(pool, pool->space.owner[LOG].first, &at, true, &e) == FBY_DONE && e.found);
		EXPECT(e.node.txg == txg && e.data_ok && !e.gap);
	}
	EXPECT(fby_log_entry_info(pool, pool->space.owner[LOG].first, &at, true, &e) == FBY_DONE && !e.found);
	at = (struct fby_log_cursor){ 0 };
	EXPECT(fby_log_entry_info(pool, NCHUNKS, &at, true, &e) == -FBY_E_GEOMETRY);
	EXPECT(fby_log_entry_info(pool, closed_chunk, &at, true, &e) == -FBY_E_NO_LOG);
	EXPECT(fby_log_entry_info(pool, pool->space.free_first, &at, true, &e) == -FBY_E_NO_LOG);
	EXPECT(at.line == 0 && at.last == 0);
	pool->space.usable = false;
	EXPECT(fby_log_entry_info(pool, pool->space.owner[LOG].first, &at, true, &e) == -FBY_E_RECOVERY_INCOMPLETE);
	pool_restore();
}

/* For a log, fby_check compares each chunk with its entries. */
static void checked(void)
{
	struct fby_chunk *ch, before;
	char text[200];

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE);
	ch = &pool->space.chunk[pool->space.owner[LOG].first];
	before = *ch;
	ch->seq_last = 1;
	says(ch, &before, "an entry is of a later txg than its chunk: chunk 0x");
	ch->last_block = 1;
	says(ch, &before, "a chunk's entries are miscounted: chunk 0x");
	ch->last_block = 3; /* one that cannot be read */
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	*ch = before;
	ch->dead_base--; /* one line of it is free */
	says(ch, &before, "a log's chunk is neither held nor free: chunk 0x");
	ch->epoch += 2;
	says(ch, &before, "a chunk's epoch is not that of the media");
	pool_restore();
}

void test_log_calls(void)
{
	for (u32 flags = 0; flags <= FBY_LOG_CONSUMER; flags++) {
		in_each_state(flags);
		discarded(flags);
		given_up_unread(flags);
		read_only(flags);
	}
	read_only_earlier(false, 2);
	read_only_earlier(true, 1);
	no_log();
	one_guid();
	claimed();
	appended();
	counted();
	counted_of();
	named();
	numbers_end();
	in_any_order();
	period_after_period();
	full();
	slots_busy();
	generation_wanted();
	counted_busy();
	tick_of_none();
	added();
	read_again();
	looked_at();
	checked();
}
