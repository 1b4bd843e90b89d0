// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * inside_log_lines.c - the lines of a log on the media.  Each field of an entry, of a header and of
 * a record is refused one off its bound, with a right checksum, and accepted at its bound.
 */
#include "inside_log.h"

static u32 chunk, line; /* of the second entry of the log */

static struct fby_log_entry *at_entry(void)
{
	return (struct fby_log_entry *)memory_at(fby_log_line_at(&pool->space.store, chunk, line));
}

#define ENTRY(good, change) \
	do { \
		const struct fby_log_entry before = *at_entry(); \
		struct fby_log_entry e = before, out; \
\
		change; \
		fby_log_entry_finish(&pool->space.store, &e); \
		*at_entry() = e; \
		EXPECT(fby_log_entry_read(&pool->space.store, chunk, line, &out) == (good)); \
		*at_entry() = before; \
	} while (0)

static void entry(void)
{
	const struct fby_store *st = &pool->space.store;
	u32 lines = fby_log_lines(st);
	struct fby_log_entry out, first;
	struct fby_open_line open;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE);
	chunk = pool->space.owner[LOG].first;
	line = FBY_CHUNK_LINES + fby_entry_lines(8);
	first = *at_entry();
	first.previous = 0;
	ENTRY(true, (void)e);
	ENTRY(true, e = first);
	ENTRY(false, e.magic++);
	ENTRY(false, e.chunk++);
	ENTRY(false, e.line++);
	ENTRY(true, e.length = (lines - line - FBY_ENTRY_LINES) * FBY_LINE);
	ENTRY(false, e.length = (lines - line - FBY_ENTRY_LINES) * FBY_LINE + 1);
	ENTRY(false, e.length = ~0u);
	ENTRY(true, e.epoch = FBY_NUMBER_END - 1);
	ENTRY(false, e.epoch = FBY_NUMBER_END);
	ENTRY(true, e.txg = 1);
	ENTRY(false, e.txg = 0);
	ENTRY(true, e.txg = FBY_NUMBER_START - 1);
	ENTRY(false, e.txg = FBY_NUMBER_START);
	ENTRY(true, e.gen = 1);
	ENTRY(false, e.gen = 0);
	ENTRY(true, e.gen = FBY_NUMBER_START - 1);
	ENTRY(false, e.gen = FBY_NUMBER_START);
	ENTRY(true, e.id = 1);
	ENTRY(false, e.id = 0);
	ENTRY(true, e.id = FBY_NUMBER_START - 1);
	ENTRY(false, e.id = FBY_NUMBER_START);
	ENTRY(true, e.log = (u16)(st->sb.nvolumes - 1));
	ENTRY(false, e.log = (u16)st->sb.nvolumes);
	ENTRY(true, e.previous = 0);
	ENTRY(true, e.previous = FBY_CHUNK_LINES);
	ENTRY(false, e.previous = FBY_CHUNK_LINES - 1);
	ENTRY(true, e.previous = line - 1);
	ENTRY(false, e.previous = line);
	for (u32 i = 0; i < sizeof(out.reserved); i++)
		ENTRY(false, e.reserved[i] = 1);
	ENTRY(true, e.before.txg = FBY_NUMBER_START - 1);
	ENTRY(false, e.before.txg = FBY_NUMBER_START);
	for (u32 i = 0; i < FBY_LOG_TXGS; i++) {
		ENTRY(true, e.before.txg = i + 1; e.before.n[i] = FBY_NUMBER_START - 1);
		ENTRY(false, e.before.txg = i + 1; e.before.n[i] = FBY_NUMBER_START);
		ENTRY(true, memset(&e.before, 0, sizeof(e.before)); e.before.txg = i);
		ENTRY(false, memset(&e.before, 0, sizeof(e.before)); e.before.txg = i; e.before.n[i] = 1);
	}
	EXPECT(fby_log_first(st, chunk, &open) && open.kind == FBY_CHUNK_LOG && open.owner == LOG);
	EXPECT(open.epoch == pool->space.chunk[chunk].epoch && open.seq_min == 1);
	/* No header is searched for before the first line or after the last one. */
	line = FBY_CHUNK_LINES - 1;
	out = *at_entry();
	*at_entry() = (struct fby_log_entry){ 0 };
	ENTRY(false, e = first; e.line = line);
	*at_entry() = out;
	EXPECT(!fby_log_entry_read(st, chunk, lines - 1, &out) && !fby_log_entry_read(st, chunk, lines, &out));
	pool_restore();
}

/* The longest entry is alone in its chunk.  The last possible header is one without a body in the
 * last two lines. */
static void longest(void)
{
	const struct fby_store *st = &pool->space.store;
	u32 lines = fby_log_lines(st);
	struct fby_log_entry e, out;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	chunk = pool->space.owner[LOG].first;
	line = FBY_CHUNK_LINES;
	ENTRY(true, e.length = fby_entry_most(st));
	ENTRY(false, e.length = fby_entry_most(st) + 1);
	EXPECT(fby_entry_most(st) == (lines - FBY_CHUNK_LINES - FBY_ENTRY_LINES) * FBY_LINE);
	e = *at_entry();
	line = lines - FBY_ENTRY_LINES;
	e.line = line;
	e.length = 0;
	fby_log_entry_finish(st, &e);
	*at_entry() = e;
	EXPECT(fby_log_entry_read(st, chunk, line, &out) && out.line == line);
	ENTRY(false, e.length = 1);
	pool_restore();
}

static struct fby_log_node node[4];
static struct fby_log_result result;

static int claim(void)
{
	u64 n = 4;

	return fby_log_claim(pool, LOG, 0, NULL, node, &n, &result);
}

static enum fby_log_verdict replayed(void *arg, const struct fby_log_node *n, const struct fby_log_position *next)
{
	(void)arg;
	(void)n;
	(void)next;
	return FBY_LOG_REPLAYED;
}

/* No record is written that a later recovery would refuse, whatever entries say. */
static void highest(void)
{
	struct fby_recovery_report report;

	for (u32 what = 0; what < 4; what++) {
		struct fby_log_entry e;

		log_make(0);
		EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
		chunk = pool->space.owner[LOG].first;
		line = FBY_CHUNK_LINES + fby_entry_lines(8);
		e = *at_entry();
		*(what == 0 ? &e.gen : what == 1 ? &e.id : &e.before.n[0]) = FBY_NUMBER_END - 1;
		if (what == 3) {
			e.before.txg = FBY_NUMBER_END - 1;
			e.txg = FBY_NUMBER_END - 1;
		}
		fby_log_entry_finish(&pool->space.store, &e);
		*at_entry() = e;
		pool_recover(&report);
		EXPECT(claim() == FBY_DONE);
		EXPECT(fby_log_replay(pool, LOG, node, 1, replayed, NULL, &result) == FBY_DONE);
		pool_recover(&report);
		EXPECT(claim() == FBY_DONE);
		pool_restore();
	}
	/* This holds for any content of a record. */
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(1) == FBY_DONE);
	pool_recover(&report);
	EXPECT(claim() == FBY_DONE && node[1].before.n[0] == 1);
	pool->logs.log[LOG].header.at.gen = node[1].gen;
	pool->logs.log[LOG].header.at.last = node[1].before;
	pool->logs.log[LOG].header.at.live = (struct fby_log_counters){ 1, { FBY_NUMBER_END - 1 } };
	EXPECT(fby_log_replay(pool, LOG, node, 2, replayed, NULL, &result) == FBY_DONE);
	EXPECT(result.replayed == 0 && result.end == FBY_LOG_MISSING);
	pool_recover(&report);
	EXPECT(claim() == FBY_DONE);
	pool_restore();
}

#define HEADER(good, change) \
	do { \
		struct fby_log_header h = log_header(FBY_LOG_REPLAYING); \
\
		change; \
		EXPECT(fby_log_header_sane(&h) == (good)); \
	} while (0)

static void header(void)
{
	for (u32 state = 0; state <= FBY_LOG_REPLAYING; state++)
		HEADER(true, h.state = state);
	HEADER(false, h.state = FBY_LOG_REPLAYING + 1);
	HEADER(false, h.reserved = 1);
	HEADER(false, h.at.seal_gen = 0); /* nothing would tell of what was lost last */
	HEADER(true, h.at.seal_gen = 0; h.state = FBY_LOG_LOGGING);
	HEADER(true, h.at.synced = FBY_NUMBER_END - 1);
	HEADER(false, h.at.synced = FBY_NUMBER_END);
	HEADER(true, h.at.gen = FBY_NUMBER_END - 1);
	HEADER(false, h.at.gen = FBY_NUMBER_END);
	HEADER(true, h.at.id = FBY_NUMBER_END - 1);
	HEADER(false, h.at.id = FBY_NUMBER_END);
	HEADER(true, h.at.seal_gen = FBY_NUMBER_END - 1);
	HEADER(false, h.at.seal_gen = FBY_NUMBER_END);
	HEADER(true, h.at.live.txg = h.at.last.txg = h.at.seal.txg = FBY_NUMBER_END - 1);
	HEADER(false, h.at.live.txg = FBY_NUMBER_END);
	HEADER(false, h.at.last.txg = FBY_NUMBER_END);
	HEADER(false, h.at.seal.txg = FBY_NUMBER_END);
}

/* --- what is read of it ---------------------------------------------------------------- */

static const struct fby_media_ops *sound;
static u64 bad_first, bad_end;

static int failing_read(struct fby_media *m, void *dst, u64 at, size_t n, u32 *crc)
{
	return at < bad_end && at + n > bad_first ? 1 : sound->read_crc(m, dst, at, n, crc);
}

/* Tests an entry that cannot be read, one whose body alone cannot be read, and one without a body.
 */
static void unreadable(void)
{
	struct fby_media_ops failing = *media.ops;
	const struct fby_store *st = &pool->space.store;
	struct fby_log_name name;
	struct fby_log_entry e;
	u32 wake = 0, empty;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	chunk = pool->space.owner[LOG].first;
	line = FBY_CHUNK_LINES;
	empty = line + fby_entry_lines(8);
	EXPECT(fby_log_append(pool, LOG, 1, false, NULL, 0, &name, &wake) == FBY_DONE);
	sound = media.ops;
	failing.read_crc = failing_read;
	media.ops = &failing;
	for (bad_first = fby_log_line_at(st, chunk, line); line < empty; line++, bad_first += FBY_LINE) {
		bad_end = bad_first + FBY_LINE;
		EXPECT(fby_log_entry_read(st, chunk, FBY_CHUNK_LINES, &e) == (line == empty - 1));
		EXPECT(line < empty - 1 || !fby_log_body_read(st, &e, NULL)); /* its line is the last of these */
	}
	EXPECT(fby_log_entry_read(st, chunk, empty, &e) && e.length == 0 && fby_log_body_read(st, &e, NULL));
	e.body_crc++;
	EXPECT(!fby_log_body_read(st, &e, NULL));
	media.ops = sound;
	EXPECT(fby_log_entry_read(st, chunk, FBY_CHUNK_LINES, &e) && fby_log_body_read(st, &e, NULL));
	pool_restore();
}

/* A body in two pieces, with an empty piece between them, is divided anywhere.  Its bytes stay the
 * same, with zeroes after them in the last line. */
static void pieces(void)
{
	static u8 data[4 * FBY_LINE], back[4 * FBY_LINE];
	const u32 most = sizeof(data) - 3;

	for (u32 i = 0; i < sizeof(data); i++)
		data[i] = (u8)(i * 7 + 1);
	for (u32 cut = 0; cut <= most; cut++) {
		const struct fby_vec body[3] = { { data, cut }, { data, 0 }, { data + cut, most - cut } };
		struct fby_log_name name;
		struct fby_log_entry e;
		u32 wake = 0;

		log_make(0);
		EXPECT(fby_log_append(pool, LOG, 1, false, body, 3, &name, &wake) == FBY_DONE);
		EXPECT(fby_log_entry_read(&pool->space.store, pool->space.owner[LOG].first, FBY_CHUNK_LINES, &e));
		EXPECT(e.length == most && fby_log_body_read(&pool->space.store, &e, back));
		EXPECT(memcmp(back, data, most) == 0 && back[most] == 0 && back[most + 2] == 0);
		pool_restore();
	}
}

/* The entry after the last seal may be the first one or a later one.  If a crash has torn it, it
 * does not exist, and none is missing. */
static void torn(void)
{
	struct fby_recovery_report report;

	for (u32 behind = 0; behind < 2; behind++) {
		log_make(0);
		EXPECT(log_append(1) == FBY_DONE);
		chunk = pool->space.owner[LOG].first;
		fby_chunk_seal(&pool->space, chunk, false);
		for (u32 i = 0; i <= behind; i++)
			EXPECT(log_append(1) == FBY_DONE);
		line = FBY_CHUNK_LINES + (1 + behind) * fby_entry_lines(8);
		memory_at(fby_log_line_at(&pool->space.store, chunk, line + FBY_ENTRY_LINES))[3] ^= 1;
		pool_recover(&report);
		EXPECT(log_info().found == 1 + behind && log_info().missing == 0);
		pool_restore();
	}
}

/* Returns the lines of the three entries in a walk to `end`, as digits.  A small letter: after a
 * gap. */
static const char *walked(u32 end)
{
	struct fby_log_walk w = fby_log_walk(&pool->space.store, chunk, end);
	static char text[8];
	struct fby_log_entry e;
	u32 n = 0;

	while (fby_log_next(&pool->space, &w, &e) && n < sizeof(text) - 1) {
		text[n++] = (char)((w.gap ? 'a' : 'A') + (w.last - FBY_CHUNK_LINES) / fby_entry_lines(8));
		EXPECT(w.line == w.last + fby_entry_lines(8));
	}
	text[n] = 0;
	return text;
}

#define WALK(want, change) \
	do { \
		const struct fby_log_entry before = *at_entry(); \
		struct fby_log_entry e = before; \
\
		change; \
		fby_log_entry_finish(&pool->space.store, &e); \
		*at_entry() = e; \
		EXPECT(strcmp(walked(fby_log_lines(&pool->space.store)), want) == 0); \
		*at_entry() = before; \
	} while (0)

/* These are whole entries that do not belong to their place in the chunk: entries of an earlier
 * use, and entries that the consumer has put into a body. */
static void walks(void)
{
	u32 lines = fby_entry_lines(8);
	struct fby_log_entry_info e;
	struct fby_log_cursor at = { 0 };

	log_make(0);
	for (u64 txg = 1; txg <= 3; txg++)
		EXPECT(log_append(txg) == FBY_DONE);
	chunk = pool->space.owner[LOG].first;
	for (u32 end = 0; end <= 3 * lines; end++) {
		static const char *const want[] = { "", "A", "AB", "ABC" };

		EXPECT(strcmp(walked(FBY_CHUNK_LINES + end), want[end / lines]) == 0);
	}
	line = FBY_CHUNK_LINES;
	WALK("ABC", (void)e);
	WALK("bC", e.epoch -= 2);
	WALK("bC", e.log = SECOND_LOG);
	WALK("bC", e.magic++);
	line += lines;
	WALK("ABC", e.length = FBY_LINE); /* as long */
	WALK("Ac", e.epoch += 2);
	WALK("Ac", e.previous = 0);
	WALK("Ac", e.previous = FBY_CHUNK_LINES + 1);
	line += lines;
	WALK("AB", e.previous = FBY_CHUNK_LINES);
	WALK("AB", e.epoch++);
	/* After a gap, the previous entry lies in the gap, or is the one that cannot be read. */
	memset(memory_at(fby_log_line_at(&pool->space.store, chunk, FBY_CHUNK_LINES + lines)), 0, FBY_LINE);
	WALK("Ac", (void)e);
	WALK("Ac", e.previous = line - 1);
	WALK("A", e.previous = FBY_CHUNK_LINES);
	WALK("A", e.previous = 0);
	EXPECT(fby_log_entry_info(pool, chunk, &at, false, &e) == FBY_DONE && e.found && !e.gap && !e.data_ok);
	memset(memory_at(fby_log_line_at(&pool->space.store, chunk, line + FBY_ENTRY_LINES)), 0x55, FBY_LINE);
	EXPECT(fby_log_entry_info(pool, chunk, &at, true, &e) == FBY_DONE && e.found && e.gap && !e.data_ok);
	EXPECT(e.entry.line == line && e.node.txg == 3 && at.last == line && at.line == line + lines);
	pool_restore();
}

/* Recovery asks whether a claim may need the content of a chunk. */
static void held(void)
{
	struct fby_log *l = &pool->logs.log[LOG];
	struct fby_chunk *ch;
	u32 c;

	log_make(0);
	EXPECT(log_append(1) == FBY_DONE && log_append(2) == FBY_DONE);
	pool_recover(&(struct fby_recovery_report){ 0 });
	c = pool->space.owner[LOG].first;
	ch = &pool->space.chunk[c];
	EXPECT(fby_logs_held(&pool->logs, c) && !fby_logs_earlier(&pool->logs, c));
	l->header.at.synced = 1;
	EXPECT(fby_logs_held(&pool->logs, c));
	l->header.at.synced = 2;
	EXPECT(!fby_logs_held(&pool->logs, c));
	pool->space.owner[LOG].log.home = FBY_LOG_CONSUMER; /* who may know better */
	EXPECT(fby_logs_held(&pool->logs, c));
	pool->space.owner[LOG].rec.kind = FBY_OWNER_VOLUME;
	EXPECT(!fby_logs_held(&pool->logs, c));
	pool->space.owner[LOG].damaged = true;
	EXPECT(fby_logs_held(&pool->logs, c));
	ch->last_block = 0;
	EXPECT(!fby_logs_held(&pool->logs, c));
	ch->last_block = 2;
	ch->owner = FBY_NO_OWNER;
	EXPECT(!fby_logs_held(&pool->logs, c));
	pool_restore();
	log_make(0);
	EXPECT(log_append(1) == FBY_DONE);
	l->header.guid[15]++;
	c = pool->space.owner[LOG].first;
	pool->space.chunk[c].seq_max = 1;
	EXPECT(fby_logs_earlier(&pool->logs, c) && !fby_logs_held(&pool->logs, c));
	l->header.guid[15]--;
	EXPECT(!fby_logs_earlier(&pool->logs, c) && fby_logs_held(&pool->logs, c));
	l->header.state = FBY_LOG_NONE;
	EXPECT(!fby_logs_held(&pool->logs, c));
	pool_restore();
}

static struct fby_log_record *at_record(u32 copy)
{
	return (struct fby_log_record *)memory_at(FBY_VT_OFFSET +
						   (2 * LOG + copy) * sizeof(struct fby_log_record));
}

#define RECORD(good, change) \
	do { \
		const struct fby_log_record before = *at_record(copy); \
		struct fby_log_record r = before; \
\
		change; \
		r.crc = fby_crc32c(pool->space.store.line_seed, &r, sizeof(r) - 4); \
		*at_record(copy) = r; \
		EXPECT(fby_record_read(&pool->space.store, LOG, copy, &out) == (good)); \
		*at_record(copy) = before; \
	} while (0)

static void record(void)
{
	struct fby_volume_record out;

	log_make(0);
	for (u32 copy = 0; copy < 2; copy++) {
		RECORD(true, (void)r);
		RECORD(false, r.index++);
		RECORD(true, r.counter = FBY_NUMBER_END - 1);
		RECORD(false, r.counter = FBY_NUMBER_END);
		RECORD(true, r.home = FBY_LOG_CONSUMER);
		RECORD(true, r.home = FBY_LOG_CONSUMER | FBY_LOG_STORED);
		RECORD(false, r.home = FBY_LOG_STORED);
		RECORD(false, r.home = FBY_LOG_STORED << 1);
		RECORD(false, r.reserved0 = 1);
		RECORD(false, r.reserved1 = 1);
		RECORD(false, r.reserved2 = 1);
		RECORD(true, r.flags = FBY_VF_ALL);
		RECORD(false, r.flags = FBY_VF_ALL + 1);
		RECORD(false, memset(r.name, 'n', sizeof(r.name)));
		RECORD(true, memset(r.name, 'n', sizeof(r.name) - 1));
		RECORD(false, r.state = FBY_LOG_REPLAYING + 1);
		RECORD(false, r.at.synced = FBY_NUMBER_END);
	}
	pool_restore();
}

void test_log_lines(void)
{
	entry();
	longest();
	highest();
	header();
	record();
	unreadable();
	pieces();
	torn();
	walks();
	held();
}
