// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_explore.c - goal: no acknowledged entry of a log on a block device is ever lost,
 * whichever pending blocks a power cut drops.
 *
 * Method: a log lives through random appends, syncs, periods and errors of the device, by seed. The
 * power may be cut after each request that is sent or ends, and in each persist.  All states of the
 * pending blocks are enumerated if they are few, and sampled if they are many.  Each state is
 * opened, recovered, checked, claimed and replayed.  The entries must be a prefix of the appended
 * ones, with all that were acknowledged, and nothing may be reported as missing.
 *
 *	group_explore [SEEDS] [FIRST SEED]
 */
#include <signal.h>

#include "group_model.h"
#include "group_test.h"
#include "medium/planted.h"

#define IN_FLIGHT 8u
#define LIVES 40u /* steps of a seed, times 10 */

static struct world live, after; /* what runs, and what a cut leaves of it */
static struct fby_pool *pool;
static void *pool_memory, *after_memory;
static u64 pool_bytes, after_bytes;

static u64 cuts, states, kills, first_seed;
u64 this_seed;
static u32 seeds_run;
static u64 total_groups, total_records, total_again, total_failed, total_opened, total_errors, total_flushes;

void lost(const char *what)
{
	printf("groups: %s: seed %llu, %u appended, %u acknowledged\n", what, (unsigned long long)this_seed, it->appended,
	       it->acknowledged);
	fflush(stdout);
	abort();
}

/* Handles a failed assertion of the engine. */
static void aborted(int number)
{
	(void)number;
	fprintf(stderr, "groups: seed %llu\n", (unsigned long long)this_seed);
}

/* --- cuts ---------------------------------------------------------------------------- */

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

static void cut_state(const struct world *from, const u8 *which)
{
	world_cut(&after, from, which);
	try_state();
}

/* Tries all states of up to three pending blocks.  With more, it tries none durable, all, each
 * alone, each missing, and some at random. */
static void cut(const struct world *from)
{
	u8 which[PENDING];
	u32 n = from->npending;

	if (chance(geometry->rare))
		return;
	cuts++;
	if (n <= 3 && geometry->rare == 1) {
		for (u32 state = 0; state < 1u << (2 * n); state++) {
			for (u32 i = 0; i < n; i++)
				which[i] = state >> (2 * i) & 3;
			cut_state(from, which);
		}
		return;
	}
	for (u32 k = geometry->rare == 1 ? 0 : 2 * n; k < 2 * n + (geometry->rare == 1 ? 10 : 4); k++) {
		for (u32 i = 0; i < n; i++)
			which[i] = k < n ? i == k : k < 2 * n ? i != k - n : k == 2 * n ? 0 : k == 2 * n + 1 ? 1 : (u8)chance(4);
		cut_state(from, which);
	}
}

/* Whether the block belongs to a chunk but holds no group. */
static bool beside_groups(u32 b)
{
	u32 in_chunk = b % (CHUNK / UNIT);

	return b >= CHUNK / UNIT && in_chunk < 3;
}

/* Makes one block after the other unreadable, while nothing is pending. */
static void damage(void)
{
	struct fby_recovery_report report;
	u32 last = 0;

	for (u32 i = 0; i < nlogs; i++) {
		struct fby_medium_load load = { 0 };

		if (logs[i].appended)
			fby_medium_load(pool, logs[i].entry[logs[i].appended].ticket, &load);
		if (load.last > last)
			last = load.last;
	}
	for (u32 b = chance(geometry->rare); b < BLOCKS; b += geometry->rare) {
		memcpy(after.durable, live.durable, MEDIA);
		memcpy(after.unreadable, live.unreadable, BLOCKS);
		after.unreadable[b] = 1;
		world_load(&after);
		states++;
		verify_damage(open_pool(&after, &after_memory, &after_bytes, &report), &report, last, beside_groups(b));
	}
}

static void live_persists(struct world *w)
{
	cut(w);
}

/* Cuts the power once more, in recovery.  It tries one state, whose recovery is not cut
 * again. */
static void recovery_cut(struct world *w)
{
	world_cut_again(w, &after_memory, &depth, try_state);
}

/* Kills the host.  Entries that its next recovery finds must survive a power cut too. */
static void kill_host(void)
{
	struct fby_recovery_report report;
	struct found first, second;

	world_copy(&after, &live);
	after.persists = NULL;
	after.refuse = 0;
	world_kill(&after);
	kills++;
	after.killed = true;
	find_all(open_pool(&after, &after_memory, &after_bytes, &report), &report, &first);
	after.killed = false;
	world_load(&after);
	find_all(open_pool(&after, &after_memory, &after_bytes, &report), &report, &second);
	must(first.n == second.n && first.sum == second.sum, "what a recovery has found is lost by a cut");
}

/* --- a life ----------------------------------------------------------------------------- */

static struct {
	struct fby_medium_io io;
	u32 number;
} flight[IN_FLIGHT];
static u32 nflight, numbers, errors; /* errors that may still be made */

/* Acts as a thread that writes a record: its flush fails, and it tries again. */
static void flush_fails(const char *what)
{
	(void)what;
	if (!errors || live.below.durable != FBY_DURABLE_FLUSH || chance(8))
		return;
	errors--;
	world_flush_fails(&live);
}

static int send_one(void)
{
	u32 wake = 0;
	int rc;

	if (nflight == IN_FLIGHT || live.npending > PENDING - 80)
		return FBY_WAIT_TICKET;
	race = flush_fails;
	rc = fby_medium_next(pool, &flight[nflight].io, &wake);
	race = NULL;
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
	log_look(pool);
	if (chance(3) == 0)
		cut(&live);
	if (chance((error ? 2 : 12) * geometry->rare) == 0)
		kill_host();
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

static void between(void)
{
	for (u32 i = chance(3); i > 0; i--)
		(void)(chance(2) ? send_one() : (end_one(), 0));
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
	for (u32 i = 0; i < nlogs && rc == FBY_DONE; i++)
		must(logs[i].acknowledged == logs[i].appended, "the pool is closed over entries that are not durable");
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
	struct log_host h = { .w = &live, .errors = &errors, .between = between, .pump = pump };
	u64 now = 1;

	world_make(&live, durable);
	world_make(&after, durable);
	must(fby_format(&live.media, &f) == FBY_DONE, "format");
	world_load(&live);
	nflight = numbers = 0;
	errors = this_seed % 3 == 0 ? 2 : this_seed % 3 == 1 ? 0 : 6;
	h.pool = pool = open_pool(&live, &pool_memory, &pool_bytes, &report);
	for (it = logs; it < logs + nlogs; it++) {
		memset(it, 0, sizeof(*it));
		must(fby_log_add(pool, it == logs ? "log" : "other", 0, &it->index) == FBY_DONE, "add");
	}
	live.persists = live_persists;
	for (u32 i = 0; i < nlogs; i++) {
		it = &logs[i];
		log_next_period(&h);
	}
	for (u32 i = 0; i < LIVES * 10 && !live.below.failed; i++) {
		it = &logs[chance(nlogs)];
		switch (chance(12)) {
		case 0: case 1: case 2: case 3: case 4:
			log_append(&h);
			break;
		case 5: case 6: case 7:
			(void)send_one();
			break;
		case 8: case 9: case 10:
			end_one();
			break;
		default:
			if (chance(3) == 0)
				log_sync(&h);
			else if (chance(4) == 0)
				tick(&now);
			else if (chance(12) == 0)
				log_next_period(&h);
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
	for (u32 i = 0; i < nlogs && !live.below.failed; i++)
		must(logs[i].acknowledged == logs[i].appended, "all requests have ended, and an entry is not durable");
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
		geometry = &geometries[this_seed % 8 == 5 ? 1 : this_seed % 8 == 7 ? 2 : 0];
		nlogs = 1 + chance(2);
		one_life((enum fby_durable)(this_seed / 3 % 3));
	}
}

#ifdef FBY_PLANTED_BUGS
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool named(const char *name, const char *const *list, u32 n)
{
	for (u32 i = 0; i < n; i++)
		if (strncmp(name, list[i], strlen(list[i])) == 0)
			return true;
	return false;
}

/* Runs in a process of its own, which has to fail. */
static bool found(u32 id, u64 seeds, bool of_volumes)
{
	struct timespec from, to;
	int status = 0;
	pid_t child;
	bool is;

	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &from);
	child = fork();
	if (child == 0) {
		fby_planted = id;
		alarm(60); /* then it was not found */
		if (of_volumes) {
			volume_scenes();
			volume_failed(1, seeds / 4);
			volume_lives(1, 4 * seeds);
		} else {
			group_scenes();
			lives(seeds);
		}
		_exit(0);
	}
	must(child > 0 && waitpid(child, &status, 0) == child, "fork");
	clock_gettime(CLOCK_MONOTONIC, &to);
	is = status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
	printf("%s: %-30s %s, %.1f s\n", of_volumes ? "volumes" : "groups", fby_planted_name(id), is ? "found" : "NOT FOUND",
	       (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
	return is;
}

/* Hunts each planted bug of groups, and those that concern volumes. */
static int planted(u64 seeds)
{
	static const char *const of_logs[] = { "GROUP_", "STREAM_", "ARRAY_" };
	static const char *const of_volumes[] = {
		"PAGES_", "ARRAY_", "GROUP_ACK_SENT", "GROUP_NO_FUA", "GROUP_FLUSH_COVERS_SENT", "GROUP_FLUSH_ERROR_FORGOTTEN",
		"GROUP_BEFORE_OPEN", "GROUP_OVER_APPEND", "GROUP_GAP_ENDS_WALK", "GROUP_ARRAY_OF_BEFORE",
		"GROUP_CLOSED_EARLY", "GROUP_ERROR_IGNORED", "TORN_TAIL_ACCEPTED",
	};
	int missed = 0;

	for (u32 id = 1; id < FBY_BUG_COUNT; id++) {
		const char *name = fby_planted_name(id);

		if (named(name, of_logs, sizeof(of_logs) / sizeof(of_logs[0])))
			missed += !found(id, seeds, false);
		if (named(name, of_volumes, sizeof(of_volumes) / sizeof(of_volumes[0])))
			missed += !found(id, seeds, true);
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
	group_scenes();
	lives(seeds);
	volume_scenes();
	volume_lives(first_seed, 2 * seeds);
	volume_failed(first_seed, seeds);
	printf("groups: %u lives, %llu cuts, %llu kills, %llu states: nothing acknowledged was lost\n", seeds_run,
	       (unsigned long long)cuts, (unsigned long long)kills, (unsigned long long)states);
	printf("groups: %llu groups of %llu entries, %llu flushes, %llu chunks opened, %llu errors, %llu groups again, %llu "
	       "pools failed\n", (unsigned long long)total_groups, (unsigned long long)total_records,
	       (unsigned long long)total_flushes, (unsigned long long)total_opened, (unsigned long long)total_errors,
	       (unsigned long long)total_again, (unsigned long long)total_failed);
	volume_told();
	volume_failed_told();
	return 0;
}
