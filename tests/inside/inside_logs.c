// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_logs.c - logs in the place of a volume, logs that end during an append, and logs with
 * spoilt chunks.
 */
#include "inside_log.h"

const u8 log_guid[16] = { 9, 8, 7 }, next_guid[16] = { 1 };
static struct fby_recovery_report report;

struct fby_log_node log_node[4];
u64 log_found;
struct fby_log_result log_result;

int log_claim(u16 log, u64 synced, u32 state)
{
	struct fby_log_header h = log_header(state);

	log_found = 4;
	return fby_log_claim(pool, log, synced, &h, log_node, &log_found, &log_result);
}

int log_append(u64 txg)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	u32 wake = 0;

	return fby_log_append(pool, LOG, txg, true, &body, 1, &name, &wake);
}

void log_add(u16 volume, u32 flags)
{
	char name[] = "log0";
	u16 log;

	name[3] = (char)('0' + volume);
	EXPECT(fby_volume_detach(pool, volume) == FBY_DONE && fby_volume_remove(pool, volume, true) == FBY_DONE);
	EXPECT(fby_log_add(pool, name, flags, &log) == FBY_DONE && log == volume);
}

void log_make(u32 flags)
{
	u32 wake = 0;

	log_add(LOG, flags);
	EXPECT(fby_log_create(pool, LOG, log_guid, 0, NULL, &wake) == FBY_DONE);
}

struct fby_log_header log_header(u32 state)
{
	struct fby_log_header h = { .state = state, .at.seal_gen = state == FBY_LOG_REPLAYING };

	memcpy(h.guid, log_guid, sizeof(h.guid));
	return h;
}

struct fby_log_info log_info(void)
{
	struct fby_log_info i;

	EXPECT(fby_log_info(pool, LOG, &i) == FBY_DONE);
	return i;
}

static void recover(void)
{
	pool_recover(&report);
}

static void close_pool(void)
{
	for (u16 v = 0; v < 2; v++)
		EXPECT(fby_volume_detach(pool, v) == FBY_DONE);
	EXPECT(fby_pool_close(pool) == FBY_DONE);
}

/* The place of a log is no volume's: no call for volumes removes anything of it. */
static void no_volume(void)
{
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	EXPECT(fby_volume_remove(pool, LOG, false) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_remove(pool, LOG, true) == -FBY_E_NO_VOLUME);
	EXPECT(fby_volume_rebind(pool, LOG, "other", VOLUME_SECTORS) == -FBY_E_NO_VOLUME);
	recover();
	EXPECT(log_info().found == 1 && log_info().header.state == FBY_LOG_LOGGING);
	pool_restore();
}

/* The owner of the place is unknown.  So no log is added, because the unknown owner might be that
 * log.  When the owner is removed, it has no chunk: the next volume there would destage the lines
 * of a log's chunk as pages. */
static void record_lost(void)
{
	u16 index;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	memset(media.base + FBY_VT_OFFSET + 2 * LOG * sizeof(struct fby_volume_record), 0x55,
	       2 * sizeof(struct fby_volume_record));
	recover();
	EXPECT(pool->space.owner[LOG].damaged && pool->space.owner[LOG].nchunks == 1);
	EXPECT(fby_log_remove(pool, LOG, true) == -FBY_E_VOLUME_DAMAGED);
	EXPECT(fby_log_add(pool, "another", 0, &index) == -FBY_E_VOLUME_DAMAGED);
	EXPECT(fby_volume_remove(pool, LOG, false) == -FBY_E_VOLUME_DIRTY);
	EXPECT(fby_volume_remove(pool, LOG, true) == FBY_DONE);
	EXPECT(pool->space.owner[LOG].nchunks == 0 && pool->space.owner[LOG].first == FBY_NO_CHUNK);
	EXPECT(fby_log_add(pool, "another", 0, &index) == FBY_DONE && index == LOG);
	pool_restore();
}

/* --- ended while an entry is appended ------------------------------------------- */

static void remove_log(void)
{
	EXPECT(fby_log_remove(pool, LOG, true) == FBY_DONE);
}

static void destroy_log(void)
{
	u32 wake = 0;

	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
}

static void volume_instead(void)
{
	struct fby_volume_spec s = { .name = "again", .identity = "i", .origin_sectors = VOLUME_SECTORS,
				     .block_size = 512 };
	u16 index;

	remove_log();
	EXPECT(fby_volume_add(pool, &s, &index) == FBY_DONE && index == LOG);
}

/* No slot keeps a chunk of an ended log open. */
static void ended(void (*end)(void), bool new_generation, int error)
{
	const struct fby_vec body = { .base = "an entry", .len = 8 };
	struct fby_log_name name;
	char text[200];
	u32 wake = 0;

	log_make(0);
	cpu_meanwhile = end;
	EXPECT(fby_log_append(pool, LOG, 1, new_generation, &body, 1, &name, &wake) == error);
	EXPECT(cpu_meanwhile == NULL);
	EXPECT(pool->space.slot[0].volume[LOG].open == FBY_NO_CHUNK && pool->space.owner[LOG].nchunks == 0);
	EXPECT(pool->space.slot[0].log == FBY_NO_OWNER && pool->space.slot[0].busy == 0);
	EXPECT(fby_check(pool, true, text, sizeof(text)) == FBY_DONE);
	pool_restore();
}

static void sync_first(void)
{
	u32 wake = 0;

	EXPECT(fby_log_sync(pool, LOG, 1, NULL, &wake) == FBY_DONE);
}

/* The log is synced after the append was admitted, and before the entry has its place.  Neither an
 * entry nor a count of one is left. */
static void synced_meanwhile(void)
{
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	cpu_meanwhile = sync_first;
	EXPECT(log_append(1) == -FBY_E_LOG_OBSOLETE);
	EXPECT(cpu_meanwhile == NULL);
	EXPECT(pool->space.slot[0].log == FBY_NO_OWNER && pool->space.slot[0].busy == 0);
	EXPECT(log_info().unsynced == 0 && log_append(2) == FBY_DONE && log_info().unsynced == 1);
	recover();
	EXPECT(log_info().found == 2 && log_info().missing == 0);
	pool_restore();
}

/* --- what it is told ---------------------------------------------------------------- */

/* Too high a number would be written to the record, and the next start would not believe it. */
static void claimed_too_high(void)
{
	struct fby_log_header h = { 0 };
	struct fby_log_result r;
	struct fby_log_node node[2];
	u64 n = 2;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	recover();
	EXPECT(fby_log_claim(pool, LOG, FBY_NUMBER_END, &h, node, &n, &r) == -FBY_E_NUMBERS);
	recover();
	EXPECT(fby_log_claim(pool, LOG, 0, &h, node, &n, &r) == FBY_DONE && n == 2 && r.replayed == 2);
	pool_restore();
}

static enum fby_log_verdict nobody_asks(void *arg, const struct fby_log_node *node,
					const struct fby_log_position *next)
{
	(void)arg;
	(void)node;
	(void)next;
	EXPECT(false);
	return FBY_LOG_STOP;
}

/* A replay is refused before the claim, for a log in use, and for one in state none. */
static void replayed_too_early(void)
{
	struct fby_log_node node[1] = { { .txg = 1, .gen = 1, .id = 1 } };
	struct fby_log_result r;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	EXPECT(fby_log_replay(pool, LOG, node, 1, nobody_asks, NULL, &r) == -FBY_E_LOG_STATE);
	recover();
	EXPECT(fby_log_replay(pool, LOG, node, 1, nobody_asks, NULL, &r) == -FBY_E_LOG_UNCLAIMED);
	destroy_log();
	EXPECT(fby_log_replay(pool, LOG, node, 1, nobody_asks, NULL, &r) == -FBY_E_LOG_STATE);
	pool_restore();
}

/* A read-only pool does not remove the log, and can be read afterwards. */
static void read_only(void)
{
	struct fby_options o = { .nslots = 2, .read_only = true };
	u64 bytes = pool->memory_bytes, n = 1;
	struct fby_log_header h = { 0 };
	struct fby_log_result r;
	struct fby_log_node node;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	memset(pool, 0, bytes);
	EXPECT(fby_pool_open(&pool, pool, bytes, &media, &o) == FBY_DONE);
	EXPECT(fby_recover_chunks(pool, 0, NCHUNKS) == FBY_DONE && fby_recover_finish(pool, &report) == FBY_DONE);
	EXPECT(fby_log_remove(pool, LOG, true) == -FBY_E_READ_ONLY);
	EXPECT(fby_log_claim(pool, LOG, 0, &h, &node, &n, &r) == FBY_DONE && r.replayed == 1);
	pool_restore();
}

/* --- its chunks spoilt --------------------------------------------------------------- */

/* Three seals of a chunk are gone, or all.  The chunk may have had more entries, even after a clean
 * close, because the digest covers volumes only.  The next period is whole. */
static void doubtful(u32 flags, bool clean, u32 seals)
{
	u32 c, wake = 0;

	log_make(flags);
	EXPECT(log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	EXPECT(!log_info().incomplete);
	if (clean)
		close_pool();
	for (u32 which = 0; which < seals; which++)
		memset(memory_at(fby_seal_at(&pool->space.store, c, which)), 0x55, FBY_LINE);
	recover();
	EXPECT(report.clean == clean && log_info().incomplete && log_info().found == 1);
	EXPECT(!clean || pool->space.owner[0].rec.flags == 0); /* that of volumes adds up */
	recover();
	EXPECT(log_info().incomplete);
	if (flags & FBY_LOG_CONSUMER) {
		struct fby_log_header none = log_header(FBY_LOG_NONE);
		struct fby_log_result r;
		u64 n = 0;

		EXPECT(fby_log_claim(pool, LOG, 0, &none, NULL, &n, &r) == FBY_DONE);
	} else {
		EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE);
	}
	EXPECT(fby_log_create(pool, LOG, next_guid, 0, NULL, &wake) == FBY_DONE && !log_info().incomplete);
	recover();
	EXPECT(!log_info().incomplete);
	pool_restore();
}

/* Nothing is left of a chunk after a clean close whose digest is right for volumes.  The chunk was
 * the log's, or nobody's. */
static void all_lost(u32 flags)
{
	u32 c;

	log_make(flags);
	EXPECT(log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	close_pool();
	memset(memory_at(fby_chunk_at(&pool->space.store, c)), 0x55, CHUNK_BYTES);
	recover();
	EXPECT(report.clean && report.holes == 1 && log_info().incomplete && log_info().found == 0);
	for (u16 v = 0; v < 2; v++)
		EXPECT(pool->space.owner[v].rec.flags == 0 && pool->recovery.volume[v].holes_unknown == 0);
	pool_restore();
}

/* After a clean close a free chunk in doubt means no loss. */
static void free_in_doubt(bool used)
{
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	c = used ? pool->space.owner[LOG].first : NCHUNKS - 1;
	EXPECT(fby_log_remove(pool, LOG, true) == FBY_DONE && pool->space.chunk[c].owner == FBY_NO_OWNER);
	close_pool();
	for (u32 which = 0; which < FBY_SEALS; which++)
		memset(memory_at(fby_seal_at(&pool->space.store, c, which)), 0x55, FBY_LINE);
	recover();
	EXPECT(report.clean && report.holes == 0);
	for (u16 v = 0; v < 2; v++)
		EXPECT(pool->space.owner[v].rec.flags == 0);
	pool_restore();
}

/* The line that names the owner of a chunk is lost.  The first entry names it too. */
static void open_line_lost(bool sealed)
{
	u32 c, wake = 0;
	u64 epoch;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	epoch = pool->space.chunk[c].epoch;
	if (sealed)
		fby_chunk_seal(&pool->space, c, false);
	memset(memory_at(fby_open_at(&pool->space.store, c, epoch & 1)), 0x55, FBY_LINE);
	for (u32 n = 0; n < 2; n++) {
		recover();
		EXPECT(report.chunk_headers_lost == !n && log_info().found == 2 && log_info().missing == 0);
		EXPECT(pool->space.owner[LOG].first == c && pool->space.chunk[c].epoch == epoch);
	}
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE && pool->space.owner[LOG].nchunks == 0);
	pool_restore();
}

/* A cursor that no call returned leads nowhere. */
static void cursor_made_up(void)
{
	struct fby_log_cursor at = { 0 }, far = { .line = ~0u };
	struct fby_log_entry_info e;
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	EXPECT(fby_log_entry_info(pool, c, &at, true, &e) == FBY_DONE && e.found && e.data_ok && !e.gap);
	EXPECT(e.node.txg == 1);
	EXPECT(fby_log_entry_info(pool, c, &at, true, &e) == FBY_DONE && !e.found);
	EXPECT(!e.data_ok && !e.gap && e.node.txg == 0);
	EXPECT(fby_log_entry_info(pool, c, &far, true, &e) == FBY_DONE && !e.found);
	pool_restore();
}

/* --- chunks that it does not need --------------------------------------------------- */

static void append_big(u64 txg)
{
	static u8 data[40000];
	const struct fby_vec body = { .base = data, .len = sizeof(data) };
	struct fby_log_name name;
	u32 wake = 0;

	EXPECT(fby_log_append(pool, LOG, txg, true, &body, 1, &name, &wake) == FBY_DONE);
}

/* A period that begins at a lower txg than the previous one has ended.  After a later crash,
 * entries of the previous period on the media do not belong to this one. */
static void lower_txgs(u32 flags)
{
	struct fby_log_header header;
	struct fby_log_result r;
	struct fby_log_node node[4];
	u32 wake = 0;
	u64 n = 4;

	log_make(flags);
	for (u64 txg = 1; txg <= 50; txg++)
		EXPECT(fby_log_sync(pool, LOG, txg, NULL, &wake) == FBY_DONE);
	append_big(51);
	append_big(52);
	EXPECT(log_info().chunks == 2);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE && fby_log_release(pool, LOG, &wake) == FBY_DONE);
	EXPECT(fby_log_create(pool, LOG, next_guid, 0, &header, &wake) == FBY_DONE);
	EXPECT(log_append(1) == FBY_DONE);
	recover();
	EXPECT(flags || (log_info().chunks == 1 && log_info().found == 1));
	EXPECT(fby_log_claim(pool, LOG, 0, &header, node, &n, &r) == FBY_DONE && n == 1 && r.replayed == 1);
	EXPECT(log_info().chunks == 1 && log_info().found == 1 && log_info().missing == 0);
	recover();
	n = 4;
	EXPECT(fby_log_claim(pool, LOG, 0, &header, node, &n, &r) == FBY_DONE && n == 1 && r.replayed == 1);
	pool_restore();
}

/* If no entry of a chunk is readable, its period is unknown, and the chunk stays. */
static void period_unknown(void)
{
	u32 wake = 0, c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	fby_chunk_seal(&pool->space, c, true);
	memset(memory_at(fby_log_line_at(&pool->space.store, c, FBY_CHUNK_LINES)), 0x55, FBY_LINE);
	recover();
	EXPECT(log_info().chunks == 1 && log_info().found == 0 && log_info().missing == 1);
	EXPECT(fby_log_destroy(pool, LOG, NULL, &wake) == FBY_DONE && log_info().chunks == 0);
	recover(); /* a destroyed log holds nothing, whoever owned it */
	EXPECT(log_info().chunks == 0);
	pool_restore();
}

static void tick(void)
{
	static u64 now_ns;
	struct fby_io io;
	u64 next_ns;
	u32 wake = 0;

	now_ns += 1000000000;
	EXPECT(fby_destage_step(pool, now_ns, &io, &next_ns, &wake) >= 0);
}

/* Fills a volume.  Few chunks are free then, and relocation has not freed any. */
static void fill_volume(u16 volume)
{
	static u8 data[FBY_PAGE];

	for (u64 block = 2; block < 50; block++) { /* none twice: no chunk becomes empty */
		u32 done = 0, wake = 0;

		if (fby_short(&pool->space))
			tick();
		if (fby_short(&pool->space))
			return;
		EXPECT(fby_write(pool, volume, block * FBY_PAGE_SECTORS, FBY_PAGE_SECTORS, data, &done, &wake) ==
		       FBY_DONE);
	}
}

/* A log that is idle keeps no open chunks that it does not need, if others need them. */
static void silent(u64 synced, u32 kept)
{
	u32 wake = 0;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	cpu = 1;
	EXPECT(log_append(2) == FBY_DONE);
	cpu = 0;
	EXPECT(fby_log_sync(pool, LOG, synced, NULL, &wake) == FBY_DONE);
	tick();
	EXPECT(log_info().chunks == 2); /* there is enough for all */
	fill_volume(1);
	tick();
	EXPECT(log_info().chunks == kept);
	for (u32 i = 0; i < 2; i++) /* the chunks that they need are unchanged */
		EXPECT((pool->space.slot[i].volume[LOG].open != FBY_NO_CHUNK) == (i + 1 > synced));
	EXPECT(log_append(3) == FBY_DONE);
	recover();
	EXPECT(log_info().found == 3 - synced && log_info().missing == 0);
	pool_restore();
}

/* An entry cannot be read, in a chunk that was never sealed.  The next entry shows that it existed.
 */
static void gap_unsealed(void)
{
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE && log_append(3) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	EXPECT(pool->space.chunk[c].sealed == pool->space.store.first_page);
	memset(memory_at(fby_log_line_at(&pool->space.store, c, FBY_CHUNK_LINES + fby_entry_lines(8))), 0x55, FBY_LINE);
	recover();
	EXPECT(log_info().found == 2 && log_info().missing == 1);
	recover();
	EXPECT(log_info().found == 2 && log_info().missing == 1);
	pool_restore();
}

/* A seal with too high a count does not hide the entries. */
static void seal_that_lies(u64 entries)
{
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	pool->space.chunk[c].last_block = entries;
	fby_chunk_seal(&pool->space, c, true);
	recover();
	EXPECT(log_info().found == 2 && log_info().missing == CHUNK_BYTES / FBY_LINE - 2);
	pool_restore();
}

/* A seal that counts pages does not apply to a log's chunk. */
static void seal_of_pages(void)
{
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	c = pool->space.owner[LOG].first;
	fby_chunk_seal(&pool->space, c, false);
	pool->space.chunk[c].kind = FBY_CHUNK_CACHE;
	pool->space.chunk[c].last_block = 9;
	pool->space.chunk[c].fill = pool->space.store.first_page + 1;
	fby_chunk_seal(&pool->space, c, true);
	recover();
	EXPECT(pool->space.chunk[c].kind == FBY_CHUNK_LOG && log_info().found == 2 && log_info().missing == 0);
	pool_restore();
}

void test_logs(void)
{
	seal_that_lies(1ull << 32);
	seal_that_lies((1ull << 32) - 1);
	seal_that_lies(~0ull);
	gap_unsealed();
	seal_of_pages();
	cursor_made_up();
	no_volume();
	record_lost();
	for (u32 new_generation = 0; new_generation < 2; new_generation++) {
		ended(remove_log, new_generation, -FBY_E_NO_LOG);
		ended(destroy_log, new_generation, -FBY_E_LOG_STATE);
		ended(volume_instead, new_generation, -FBY_E_NO_LOG);
	}
	synced_meanwhile();
	claimed_too_high();
	replayed_too_early();
	read_only();
	for (u32 flags = 0; flags <= FBY_LOG_CONSUMER; flags++) {
		for (u32 seals = 3; seals <= FBY_SEALS; seals++) {
			doubtful(flags, false, seals);
			doubtful(flags, true, seals);
		}
		all_lost(flags);
	}
	free_in_doubt(false);
	free_in_doubt(true);
	lower_txgs(0);
	lower_txgs(FBY_LOG_CONSUMER);
	period_unknown();
	silent(0, 2);
	silent(1, 1);
	silent(2, 0);
	open_line_lost(false);
	open_line_lost(true);
}
