// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_log_periods.c - a log whose header is with its consumer, claimed with one that is
 * older than its newest period.
 */
#include "inside_log.h"

static struct fby_recovery_report report;

/* No two periods have the same GUID.  A header of an earlier period gives up nothing of the newest
 * one. */
static void newest(void)
{
	struct fby_log_header zeroed = { 0 }, h;
	u32 wake = 0;

	log_make(FBY_LOG_CONSUMER);
	EXPECT(fby_log_destroy(pool, LOG, &h, &wake) == FBY_DONE && memcmp(h.guid, log_guid, 16) == 0);
	EXPECT(fby_log_release(pool, LOG, &wake) == FBY_DONE);
	EXPECT(fby_log_create(pool, LOG, log_guid, 0, NULL, &wake) == -FBY_E_LOG_GUID);
	EXPECT(fby_log_create(pool, LOG, next_guid, 0, &h, &wake) == FBY_DONE && log_append(1) == FBY_DONE);
	pool_recover(&report);
	EXPECT(memcmp(log_info().header.guid, next_guid, 16) == 0 && log_info().header.state == FBY_LOG_NONE);
	for (u32 state = FBY_LOG_NONE; state <= FBY_LOG_LOGGING; state++)
		EXPECT(log_claim(LOG, 0, state) == -FBY_E_LOG_PERIOD && !log_info().claimed);
	EXPECT(fby_log_claim(pool, LOG, 0, &zeroed, log_node, &log_found, &log_result) == -FBY_E_LOG_PERIOD);
	log_found = 4;
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == FBY_DONE && log_found == 1);
	pool_restore();
	/* Without an entry recovery believes the end of the last period: the consumer may not
	 * have stored what create returned.  It does not believe its beginning.  Once the newest
	 * header was seen stored, it believes neither. */
	for (u32 stored = 0; stored < 2; stored++) {
		log_make(FBY_LOG_CONSUMER);
		EXPECT(fby_log_sync(pool, LOG, 1, NULL, &wake) == FBY_DONE); /* of the first period */
		EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
		EXPECT(fby_log_release(pool, LOG, &wake) == FBY_DONE);
		EXPECT(fby_log_create(pool, LOG, next_guid, 0, &h, &wake) == FBY_DONE);
		if (stored)
			EXPECT(fby_log_sync(pool, LOG, 1, &h, &wake) == FBY_DONE);
		pool_recover(&report);
		EXPECT(log_claim(LOG, 0, FBY_LOG_LOGGING) == -FBY_E_LOG_PERIOD);
		EXPECT(log_claim(LOG, 0, FBY_LOG_NONE) == (stored ? -FBY_E_LOG_PERIOD : FBY_DONE));
		EXPECT(!(pool->space.owner[LOG].log.home & FBY_LOG_STORED) == !stored); /* not by that */
		pool_restore();
	}
	/* A claim shows it too.  A claim in a read-only pool writes nothing. */
	log_make(FBY_LOG_CONSUMER);
	pool_recover(&report);
	EXPECT(pool->space.owner[LOG].log.home == FBY_LOG_CONSUMER && log_claim(LOG, 0, FBY_LOG_LOGGING) == FBY_DONE);
	EXPECT(pool->space.owner[LOG].log.home == (FBY_LOG_CONSUMER | FBY_LOG_STORED));
	pool_recover(&report);
	EXPECT(fby_log_claim(pool, LOG, 0, &zeroed, log_node, &log_found, &log_result) == -FBY_E_LOG_PERIOD);
	pool_restore();
	/* After a release the beginning of the log's own period is past, and any end is right. */
	log_make(FBY_LOG_CONSUMER);
	EXPECT(log_append(1) == FBY_DONE && fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
	EXPECT(fby_log_release(pool, LOG, &wake) == FBY_DONE);
	pool_recover(&report);
	EXPECT(log_claim(LOG, 0, FBY_LOG_LOGGING) == -FBY_E_LOG_PERIOD);
	log_found = 4;
	EXPECT(fby_log_claim(pool, LOG, 0, &zeroed, log_node, &log_found, &log_result) == FBY_DONE && log_found == 0);
	pool_restore();
}

/* A seal of a chunk alone, or the mark that entries may be lost, shows that the newest period
 * exists. */
static void traces(void)
{
	for (u32 lost = 0; lost < 3; lost++) {
		u32 c, wake = 0;

		log_make(FBY_LOG_CONSUMER);
		EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
		EXPECT(fby_log_release(pool, LOG, &wake) == FBY_DONE);
		EXPECT(fby_log_create(pool, LOG, next_guid, 0, NULL, &wake) == FBY_DONE);
		if (lost < 2)
			EXPECT(log_append(1) == FBY_DONE);
		c = pool->space.owner[LOG].first;
		pool_recover(&report);
		if (lost == 0)
			pool->logs.chunk[c].missing = 1;
		if (lost == 1)
			pool->space.owner[LOG].log.flags = FBY_VF_HOLES_UNKNOWN;
		if (lost < 2)
			memset(memory_at(fby_log_line_at(&pool->space.store, c, FBY_CHUNK_LINES)), 0x55, FBY_LINE);
		EXPECT(log_claim(LOG, 0, FBY_LOG_NONE) == (lost < 2 ? -FBY_E_LOG_PERIOD : FBY_DONE));
		pool_restore();
	}
}

/* No two logs of the pool have the same GUID, even if one of them is not claimed yet. */
static void swapped(void)
{
	struct fby_log_header h, second;
	u32 wake = 0;

	log_make(FBY_LOG_CONSUMER);
	log_add(SECOND_LOG, FBY_LOG_CONSUMER);
	EXPECT(fby_log_create(pool, SECOND_LOG, next_guid, 0, &second, &wake) == FBY_DONE);
	pool_recover(&report);
	h = log_header(FBY_LOG_LOGGING);
	log_found = 4;
	EXPECT(fby_log_claim(pool, SECOND_LOG, 0, &h, log_node, &log_found, &log_result) == -FBY_E_LOG_GUID);
	EXPECT(fby_log_claim(pool, LOG, 0, &second, log_node, &log_found, &log_result) == -FBY_E_LOG_GUID);
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == FBY_DONE);
	EXPECT(fby_log_claim(pool, SECOND_LOG, 0, &second, log_node, &log_found, &log_result) == FBY_DONE);
	pool_restore();
}

/* A claim that has no room for the entries changes nothing. */
static void no_room(void)
{
	struct fby_log_header h = log_header(FBY_LOG_LOGGING);

	log_make(FBY_LOG_CONSUMER);
	EXPECT(log_append(1) == FBY_DONE);
	pool_recover(&report);
	log_found = 0;
	EXPECT(fby_log_claim(pool, LOG, 0, &h, log_node, &log_found, &log_result) == -FBY_E_NO_MEMORY);
	EXPECT(log_info().header.state == FBY_LOG_NONE && pool->space.owner[LOG].log.home == FBY_LOG_CONSUMER);
	pool_restore();
}

void test_log_periods(void)
{
	newest();
	traces();
	swapped();
	no_room();
}
