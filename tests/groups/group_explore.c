// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_explore.c - goal: no acknowledged entry of a log on a block device is ever lost, whatever
 * a power cut leaves of what was not durable.
 *
 * Method: a log lives through random appends, syncs, periods and errors of the device, by seed.
 * After each request that is sent or ends, and in each persist, the power may be cut: all states of
 * the pending blocks are enumerated where these are few, and sampled where they are many.  Each
 * state is opened, recovered, checked, claimed and replayed.  The entries must be a prefix of what
 * was appended, with all that was acknowledged, and nothing may be reported as missing.
 *
 *	group_explore [SEEDS] [FIRST SEED]
 */
#include <signal.h>

#include "group_device.h"
#include "group_test.h"
#include "medium/planted.h"

#define IN_FLIGHT 8u
#define LIVES 40u /* steps of a seed, times 10 */
#define BODY_MOST 3000u

static struct world live, after; /* what runs, and what a cut leaves of it */
static struct fby_pool *pool;
static void *pool_memory, *after_memory;
static u64 pool_bytes, after_bytes;

/* The log's entries, by index from 1 in the order of their appends. */
#define ENTRIES 4096u
static struct {
	u64 txg, ticket;
	u32 length;
} entry[ENTRIES];
static u32 appended, acknowledged;
static u64 synced, syncing; /* txg: synced for certain; perhaps */
static u64 period; /* of the log; an odd one is one that may be beginning, or ending */
static bool logging;

static u64 cuts, states, first_seed, this_seed;
static u32 seeds_run;
static u64 total_groups, total_records, total_again, total_failed, total_opened, total_errors, total_flushes;

void lost(const char *what)
{
	printf("groups: %s: seed %llu, %u appended, %u acknowledged\n", what, (unsigned long long)this_seed, appended,
	       acknowledged);
	fflush(stdout);
	abort();
}

/* An assertion of the engine's has failed. */
static void aborted(int number)
{
	(void)number;
	fprintf(stderr, "groups: seed %llu\n", (unsigned long long)this_seed);
}

static void must(bool good, const char *what)
{
	if (!good)
		lost(what);
}

/* --- a pool ------------------------------------------------------------------------- */

static struct fby_pool *open_pool(struct world *w, void **memory, u64 *bytes, struct fby_recovery_report *report)
{
	const struct fby_options o = { .nslots = 2 };
	struct fby_pool *p;
	struct fby_probe probe;

	fby_probe(&w->media, &probe);
	must(probe.state == FBY_PROBE_POOL && probe.error == 0, "the pool is not found");
	if (!*memory) {
		*bytes = fby_pool_bytes(&probe.sb, o.nslots);
		*memory = aligned_alloc(64, (*bytes + 63) & ~63ull);
	}
	memset(*memory, 0, *bytes);
	must(fby_pool_open(&p, *memory, *bytes, &w->media, &o) == FBY_DONE, "the pool does not open");
	must(fby_recover_chunks(p, 0, CHUNKS) == FBY_DONE, "recovery of chunks");
	must(fby_recover_finish(p, report) == FBY_DONE, "recovery");
	return p;
}

static void body_of(u32 i, u8 *to, u32 length)
{
	for (u32 k = 0; k < length; k++)
		to[k] = (u8)(i * 31 + k * 7 + (k >> 8));
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
	must(fby_log_read(r->p, 0, node, is, sizeof(is), &length) == FBY_DONE, "an entry cannot be read");
	memcpy(&i, is, 4);
	must(i >= 1 && i <= appended, "an entry that was never appended");
	must(entry[i].length == length && entry[i].txg == node->txg, "an entry is another one");
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
	if (fby_log_read(r->p, 0, node, is, sizeof(is), &length) != FBY_DONE)
		return FBY_LOG_DAMAGED;
	memcpy(&i, is, 4);
	must(i >= 1 && i <= appended && entry[i].length == length, "an entry that was never appended");
	r->seen[i] = true;
	return FBY_LOG_REPLAYED;
}

/* A block that was durable cannot be read.  What is lost has to be reported; only the last group of
 * a chunk that was open may pass for a torn one. */
static void verify_damage(struct fby_pool *p, const struct fby_recovery_report *report, u32 last)
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
	if (!logging || fby_log_info(p, 0, &info) != FBY_DONE)
		return;
	must(info.header.state == FBY_LOG_LOGGING, "the log has ended by damage");
	must(fby_log_claim(p, 0, 0, &header, node, &n, &claimed) == FBY_DONE, "claim");
	must(fby_log_replay(p, 0, node, n, replay_readable, &r, &replayed) == FBY_DONE, "replay");
	for (u32 i = 1; i <= acknowledged; i++)
		missing += entry[i].txg > syncing && !r.seen[i];
	if (missing && !report->holes && !info.incomplete && !info.missing && claimed.end == FBY_LOG_COMPLETE &&
	    replayed.end == FBY_LOG_COMPLETE && !replayed.damaged)
		must(missing <= last && !r.seen[acknowledged], "an entry is lost without a word");
}

/* --- the log of the period, as it is found ------------------------------------------------ */

static bool guid_is(const struct fby_log_info *info)
{
	return info->header.guid[0] + ((u64)info->header.guid[1] << 8) == (period & 0xffff);
}

static void verify(struct fby_pool *p, const struct fby_recovery_report *report)
{
	static struct fby_log_node node[ENTRIES];
	struct fby_log_result result;
	struct fby_log_header header = { 0 };
	struct fby_log_info info;
	static struct replaying r;
	u64 n = ENTRIES;
	char text[200];
	u32 wake = 0;

	r.p = p;
	r.first = r.last = 0;
	if (fby_check(p, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
	must(report->holes == 0 && report->damaged == 0, "a plain cut is reported as a loss");
	must(fby_log_info(p, 0, &info) == FBY_DONE && !info.incomplete && info.missing == 0, "entries are said to be missing");
	must(!logging || info.header.state == FBY_LOG_LOGGING, "the log has ended");
	must(!logging || guid_is(&info), "the log is of another period");
	if (info.header.state != FBY_LOG_LOGGING || !guid_is(&info))
		return; /* a period is beginning, or ending: nothing is acknowledged in it */
	must(fby_log_claim(p, 0, 0, &header, node, &n, &result) == FBY_DONE, "claim");
	must(result.end == FBY_LOG_COMPLETE && result.damaged == 0 && result.twins == 0 && result.left == 0,
	     "the claim finds an entry missing");
	must(fby_log_replay(p, 0, node, n, replay, &r, &result) == FBY_DONE && result.end == FBY_LOG_COMPLETE, "replay");
	for (u32 i = 1; i <= acknowledged; i++)
		if (entry[i].txg > syncing)
			must(i >= r.first && i <= r.last, "an acknowledged entry is lost");
	must(fby_log_destroy(p, 0, NULL, &wake) == FBY_DONE, "destroy");
}

static void recovery_cut(struct world *w);
static u32 depth;

static void try_state(void)
{
	struct fby_recovery_report report;
	struct fby_pool *p;

	states++;
	world_load(&after);
	after.persists = depth == 0 && chance(8) == 0 ? recovery_cut : NULL;
	p = open_pool(&after, &after_memory, &after_bytes, &report);
	after.persists = NULL;
	verify(p, &report);
}

/* What is on the device after a cut: of each pending block one of the variants. */
static void variant(struct world *to, const struct pending *p, u32 which)
{
	u8 *at = to->durable + (u64)p->block * UNIT;

	switch (which) {
	case 1:
		memcpy(at, p->bytes, UNIT);
		to->unreadable[p->block] = 0;
		break;
	case 2:
		for (u32 s = 0; s < UNIT; s += 512)
			if (chance(2))
				memcpy(at + s, p->bytes + s, 512);
		break;
	case 3:
		to->unreadable[p->block] = 1;
		break;
	}
}

static void cut_state(const struct world *from, const u8 *which)
{
	memcpy(after.durable, from->durable, MEDIA);
	memcpy(after.unreadable, from->unreadable, BLOCKS);
	after.below.durable = from->below.durable;
	for (u32 i = 0; i < from->npending; i++)
		variant(&after, &from->pending[i], which[i]);
	try_state();
}

/* All states of up to three pending blocks; else none, all, each alone, each missing, and some. */
static void cut(const struct world *from)
{
	u8 which[PENDING];
	u32 n = from->npending;

	cuts++;
	if (n <= 3) {
		for (u32 state = 0; state < 1u << (2 * n); state++) {
			for (u32 i = 0; i < n; i++)
				which[i] = state >> (2 * i) & 3;
			cut_state(from, which);
		}
		return;
	}
	for (u32 k = 0; k < 2 * n + 10; k++) {
		for (u32 i = 0; i < n; i++)
			which[i] = k < n ? i == k : k < 2 * n ? i != k - n : k == 2 * n ? 0 : k == 2 * n + 1 ? 1 : (u8)chance(4);
		cut_state(from, which);
	}
}

/* One block after the other cannot be read, while nothing is pending. */
static void damage(void)
{
	struct fby_recovery_report report;
	struct fby_medium_load load = { 0 };

	if (appended)
		fby_medium_load(pool, entry[appended].ticket, &load);
	for (u32 b = 0; b < BLOCKS; b++) {
		memcpy(after.durable, live.durable, MEDIA);
		memcpy(after.unreadable, live.unreadable, BLOCKS);
		after.unreadable[b] = 1;
		world_load(&after);
		states++;
		verify_damage(open_pool(&after, &after_memory, &after_bytes, &report), &report, load.last);
	}
}

static void live_persists(struct world *w)
{
	cut(w);
}

/* The power is cut once more, in recovery: one state, whose recovery is not cut again. */
static void recovery_cut(struct world *w)
{
	static struct world saved;
	void *memory = after_memory;

	if (chance(3))
		return;
	memcpy(&saved, w, sizeof(saved));
	after_memory = NULL;
	depth++;
	for (u32 i = 0; i < saved.npending; i++)
		variant(w, &saved.pending[i], chance(4));
	try_state();
	depth--;
	free(after_memory);
	after_memory = memory;
	memcpy(w, &saved, sizeof(saved));
}

/* --- a life ----------------------------------------------------------------------------- */

static struct {
	struct fby_medium_io io;
	u32 number;
} flight[IN_FLIGHT];
static u32 nflight, numbers, errors; /* errors that may still be made */

static void look_at_tickets(void)
{
	while (acknowledged < appended && fby_ticket_state(pool, entry[acknowledged + 1].ticket) == FBY_TICKET_DURABLE)
		acknowledged++;
}

static int send_one(void)
{
	u32 wake = 0;
	int rc;

	if (nflight == IN_FLIGHT || live.npending > PENDING - 20)
		return FBY_WAIT_TICKET;
	rc = fby_medium_next(pool, &flight[nflight].io, &wake);
	if (rc != FBY_DONE)
		return rc;
	flight[nflight].number = ++numbers;
	world_send(&live, &flight[nflight].io, numbers);
	nflight++;
	if (chance(2))
		cut(&live);
	return rc;
}

static void end_one(void)
{
	u32 i = chance(nflight ? nflight : 1), wake = 0;
	struct fby_medium_io io;
	u32 number;
	int error = 0;

	if (nflight == 0)
		return;
	io = flight[i].io;
	number = flight[i].number;
	flight[i] = flight[--nflight];
	if (errors && chance(6) == 0) {
		errors--;
		error = 5;
	}
	world_end(&live, &io, number, error);
	if (chance(2))
		cut(&live);
	fby_medium_end(pool, &io, error, &wake);
	must(wake & FBY_WAKE_TICKET, "nobody is woken");
	look_at_tickets();
	if (chance(3) == 0)
		cut(&live);
}

static void pump(void)
{
	for (u32 i = 0; i < 100; i++) {
		int rc = send_one();

		if (rc != FBY_DONE && nflight == 0) {
			must(rc == FBY_WAIT_TICKET || rc == -FBY_E_MEDIUM, "nothing is in flight, and nothing goes on");
			return;
		}
		if (rc != FBY_DONE || chance(2))
			end_one();
	}
	lost("requests without end");
}

/* Between the two steps the group is not to be closed. */
static int append_in_two(u64 txg, const struct fby_vec *vec, struct fby_log_name *name)
{
	struct fby_append a;
	u32 wake = 0;
	int rc = fby_log_append_begin(pool, &a, 0, txg, chance(2), vec, 1, &wake);

	if (rc != FBY_DONE)
		return rc;
	for (u32 i = chance(3); i > 0; i--)
		(void)(chance(2) ? send_one() : (end_one(), 0));
	fby_log_append_commit(pool, &a, name, &wake);
	return rc;
}

static void append(void)
{
	static u8 body[BODY_MOST];
	u32 length = 4 + (chance(3) ? chance(200) : chance(BODY_MOST - 4)), wake = 0;
	const struct fby_vec vec = { .base = body, .len = length };
	u64 txg = (syncing > synced ? syncing : synced) + 1 + chance(2);
	struct fby_log_name name;
	int rc;

	if (!logging || appended + 1 >= ENTRIES)
		return;
	if (appended && txg < entry[appended].txg)
		txg = entry[appended].txg;
	body_of(appended + 1, body, length);
	rc = chance(3) ? fby_log_append(pool, 0, txg, chance(2), &vec, 1, &name, &wake) :
			 append_in_two(txg, &vec, &name);
	if (rc == FBY_DONE) {
		must(name.ticket != 0, "an append on a device is durable at once");
		appended++;
		entry[appended].txg = txg;
		entry[appended].length = length;
		entry[appended].ticket = name.ticket;
		return;
	}
	must(rc == FBY_WAIT_TICKET || rc == FBY_WAIT_SPACE || rc == FBY_WAIT_SLOT || rc == -FBY_E_MEDIUM, "append");
}

static void sync_log(void)
{
	u32 wake = 0;
	u64 txg;

	if (!logging || !acknowledged)
		return;
	txg = entry[acknowledged].txg;
	/* Only what is all acknowledged. */
	if (acknowledged < appended && entry[acknowledged + 1].txg == txg)
		txg--;
	if (txg <= synced)
		return;
	syncing = txg;
	if (errors && chance(3) == 0) {
		errors--;
		live.refuse = 1;
	}
	if (fby_log_sync(pool, 0, txg, NULL, &wake) == FBY_DONE)
		synced = txg;
}

static void next_period(void)
{
	u8 guid[16] = { 0 };
	u32 wake = 0;
	int rc;

	logging = false;
	for (u32 i = 0; i < 100; i++) {
		rc = fby_log_destroy(pool, 0, NULL, &wake);
		if (rc != FBY_WAIT_TICKET)
			break;
		pump();
	}
	if (rc == -FBY_E_MEDIUM)
		return;
	must(rc == FBY_DONE, "destroy");
	appended = acknowledged = 0;
	synced = syncing = 0;
	if (errors && chance(3) == 0) {
		errors--;
		live.refuse = 1;
	}
	period++;
	memcpy(guid, &period, 2);
	guid[2] = 1;
	rc = fby_log_create(pool, 0, guid, 0, NULL, &wake);
	must(rc == FBY_DONE || rc == -FBY_E_MEDIUM, "create");
	logging = rc == FBY_DONE;
}

static void close_pool(void)
{
	int rc = FBY_WAIT_TICKET;

	for (u32 i = 0; i < 100 && rc == FBY_WAIT_TICKET; i++) {
		rc = fby_pool_close(pool);
		if (rc == FBY_WAIT_TICKET)
			pump();
	}
	must(rc == FBY_DONE || rc == -FBY_E_MEDIUM, "close");
	if (rc == FBY_DONE)
		must(acknowledged == appended, "the pool is closed over entries that are not durable");
}

static void tick(u64 *now)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;

	*now += 300000000;
	while (fby_destage_step(pool, *now, &io, &next, &wake) == FBY_AGAIN)
		;
}

static void one_life(enum fby_durable durable)
{
	const struct fby_format f = { .uuid = { (u8)this_seed, 1 }, .chunk_size = CHUNK, .nvolumes = 2, .unit = UNIT };
	struct fby_recovery_report report;
	u64 now = 1;
	u16 log;

	world_make(&live, durable);
	world_make(&after, durable);
	must(fby_format(&live.media, &f) == FBY_DONE, "format");
	world_load(&live);
	nflight = numbers = appended = acknowledged = 0;
	synced = syncing = 0;
	period = 0;
	logging = false;
	errors = this_seed % 3 == 0 ? 2 : this_seed % 3 == 1 ? 0 : 6;
	pool = open_pool(&live, &pool_memory, &pool_bytes, &report);
	must(fby_log_add(pool, "log", 0, &log) == FBY_DONE && log == 0, "add");
	live.persists = live_persists;
	next_period();
	for (u32 i = 0; i < LIVES * 10 && !live.below.failed; i++) {
		switch (chance(12)) {
		case 0: case 1: case 2: case 3: case 4:
			append();
			break;
		case 5: case 6: case 7:
			(void)send_one();
			break;
		case 8: case 9: case 10:
			end_one();
			break;
		default:
			if (chance(3) == 0)
				sync_log();
			else if (chance(4) == 0)
				tick(&now);
			else if (chance(12) == 0)
				next_period();
			else if (chance(4) == 0)
				pump();
		}
		if (chance(10) == 0) {
			char text[200];

			if (fby_check(pool, true, text, sizeof(text)) != FBY_DONE)
				lost(text);
		}
	}
	pump();
	{
		struct fby_medium_info info;
		struct fby_pool_info pi;

		fby_medium_info(pool, &info);
		fby_pool_info(pool, &pi);
		total_groups += info.groups;
		total_records += info.records;
		total_again += info.again;
		total_failed += info.failed;
		total_errors += info.write_errors + info.flush_errors;
		total_flushes += info.flushes;
		total_opened += pi.chunks_opened;
	}
	if (!live.below.failed)
		must(acknowledged == appended, "all requests have ended, and an entry is not durable");
	cut(&live);
	if (!live.below.failed && live.npending == 0)
		damage();
	if (chance(2))
		close_pool();
	cut(&live);
	seeds_run++;
}

static void lives(u64 seeds)
{
	for (this_seed = first_seed; this_seed < first_seed + seeds; this_seed++) {
		seed = this_seed * 0x9e3779b97f4a7c15ull | 1;
		for (u32 i = 0; i < 4; i++)
			(void)chance(2);
		one_life((enum fby_durable)(this_seed / 3 % 3));
	}
}

#ifdef FBY_PLANTED_BUGS
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Each planted bug of groups in a process of its own, which has to fail. */
static int planted(u64 seeds)
{
	int missed = 0;

	for (u32 id = 1; id < FBY_BUG_COUNT; id++) {
		struct timespec from, to;
		int status;
		pid_t child;

		if (strncmp(fby_planted_name(id), "GROUP_", 6) != 0)
			continue;
		fflush(stdout);
		clock_gettime(CLOCK_MONOTONIC, &from);
		child = fork();
		if (child == 0) {
			fby_planted = id;
			alarm(60); /* an endless loop is found, too */
			lives(seeds);
			_exit(0);
		}
		must(child > 0 && waitpid(child, &status, 0) == child, "fork");
		clock_gettime(CLOCK_MONOTONIC, &to);
		printf("groups: %-30s %s, %.1f s\n", fby_planted_name(id),
		       status ? "found" : "NOT FOUND", (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
		missed += status == 0;
	}
	return missed != 0;
}
#endif

int main(int argc, char **argv)
{
	u64 seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 30;

	signal(SIGABRT, aborted);
	first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
#ifdef FBY_PLANTED_BUGS
	return planted(seeds);
#endif
	group_refusals();
	lives(seeds);
	printf("groups: %u lives, %llu cuts, %llu states: nothing acknowledged was lost\n", seeds_run,
	       (unsigned long long)cuts, (unsigned long long)states);
	printf("groups: %llu groups of %llu entries, %llu flushes, %llu chunks opened, %llu errors, %llu groups again, %llu "
	       "pools failed\n", (unsigned long long)total_groups, (unsigned long long)total_records,
	       (unsigned long long)total_flushes, (unsigned long long)total_opened, (unsigned long long)total_errors,
	       (unsigned long long)total_again, (unsigned long long)total_failed);
	return 0;
}
