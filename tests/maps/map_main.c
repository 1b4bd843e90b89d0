// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_main.c - maps under power cuts, damage and threads.
 *
 * Goal: every synced page is there after any cut.  No older data returns, no page of another file
 * appears, and damage is reported.
 * Method: the real engine on media and disks that know what is durable.  Programs and a server are
 * coroutines.  At their events a cut leaves any possible state, which is recovered and judged.
 *
 *	map_test explore IMAGES [SEED]	IMAGES distinct images
 *	map_test damage			each bit of a share's metadata
 *	map_test threads SECONDS	real threads: syncs during write-backs
 *	map_test planted [NAME]		each planted bug of maps, and of a host, must be
 *					found by one of these
 */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "map_test.h"

static u8 *pristine;

static void begin_anew(void)
{
	struct medium *m = &now.medium;

	if (!pristine) {
		world_make(&now);
		medium_make(&other.medium, m->media.size);
		pristine = malloc(m->media.size);
		memcpy(pristine, m->media.base, m->media.size);
	}
	medium_power_off(m);
	memcpy(m->media.base, pristine, m->media.size);
	memcpy(m->latest, pristine, m->media.size);
	memcpy(m->durable, pristine, m->media.size);
	memset(m->is_touched, 0, m->media.size / FBY_LINE);
	m->ntouched = 0;
	m->event = NULL;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_explore(u64 images, u64 seed)
{
	double began = seconds();
	u64 first = seed;

	begin_anew();
	script_run(seed, 200);
	if (!wrong[0])
		explore_table();
	for (; explored.distinct < images && !wrong[0]; seed++) {
		begin_anew();
		script_run(seed, 1500);
	}
	if (wrong[0]) {
		printf("map: seed %llu: %s\n", (unsigned long long)seed - 1, wrong);
		return 1;
	}
	printf("map: %llu distinct images of %llu, %llu cuts, %llu second cuts, seeds %llu to %llu, %.0f s\n",
	       (unsigned long long)explored.distinct, (unsigned long long)explored.images,
	       (unsigned long long)explored.cuts, (unsigned long long)explored.nested, (unsigned long long)first,
	       (unsigned long long)seed - 1, seconds() - began);
	printf("map: %u stores, %u syncs, %u beyond the end; frames: %u shown, %u dropped, %u written back, %u of these "
	       "beside a sync; files: %u grown, %u of these by a promise, %u cut, %u removed, %u written past, %u through; %u syncs by old views, "
	       "%u of these refused\n",
	       script_did[1], script_did[0], script_did[10], script_did[2], script_did[5], script_did[3], script_did[4],
	       script_did[6], script_did[15], script_did[7], script_did[9], script_did[8], script_did[12], script_did[13],
	       script_did[14]);
	return 0;
}

static int run_damage(void)
{
	u64 bits;

	begin_anew();
	bits = damage_all();
	if (wrong[0]) {
		printf("map: damage: %s\n", wrong);
		return 1;
	}
	printf("map: %llu bits flipped, each harmless or told\n", (unsigned long long)bits);
	return 0;
}

#ifdef FBY_PLANTED_BUGS
/* Runs in a process of its own: a mistake may cause a failed assertion, or a loop. */
static bool caught(u32 id, int (*test)(void))
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		fby_planted = id;
		alarm(120);
		if (!freopen("/dev/null", "w", stderr))
			_exit(1);
		_exit(test());
	}
	return waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int explore_some(void)
{
	return run_explore(30000, 1);
}

static int threads_some(void)
{
	return threads_run(20);
}

/* Bugs in steps between which the coroutines have no turn. */
static bool of_threads_alone(const char *name)
{
	return !strcmp(name, "MAP_CLOSE_OVER_SYNC") || !strcmp(name, "MAP_CLOSE_NOT_UNDONE");
}

/* Bugs that real threads must find by themselves. */
static bool of_threads(const char *name)
{
	return !strcmp(name, "MAP_SYNC_LEAVES_WRITING") || !strcmp(name, "MAP_WRITE_CLEARS_SYNCED") ||
	       !strcmp(name, "MAP_DROP_LEAVES_OPEN") || of_threads_alone(name);
}

static const char *const host_bug_names[] = {
	"",
#define HOST_BUG_NAME(name, what) #name,
	HOST_BUGS(HOST_BUG_NAME)
#undef HOST_BUG_NAME
};

static int run_planted(const char *only)
{
	u32 found = 0, all = 0;

	for (u32 id = 1; id < FBY_BUG_COUNT; id++) {
		const char *name = fby_planted_name(id);

		if (strncmp(name, "MAP_", 4) || (only && strcmp(only, name)))
			continue;
		if (!of_threads_alone(name)) {
			all++;
			printf("%s: ", name);
			if (caught(id, explore_some) || (fflush(stdout), caught(id, run_damage)))
				found++;
			else
				printf("NOT CAUGHT: %s\n", fby_planted_what(id));
		}
		if (of_threads(name)) {
			all++;
			printf("%s, by threads: ", name);
			if (caught(id, threads_some))
				found++;
			else
				printf("NOT CAUGHT\n");
		}
	}
	for (u32 id = 1; id < HOST_BUG_COUNT; id++) {
		if (only && strcmp(only, host_bug_names[id]))
			continue;
		all++;
		printf("host's %s: ", host_bug_names[id]);
		host_bug = id;
		if (caught(0, explore_some))
			found++;
		else
			printf("NOT CAUGHT\n");
		host_bug = NO_HOST_BUG;
	}
	printf("map: %u of %u planted bugs caught\n", found, all);
	return found != all || !all;
}
#endif

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "explore") && argc > 2)
		return run_explore(strtoull(argv[2], NULL, 0), argc > 3 ? strtoull(argv[3], NULL, 0) : 1);
	if (!strcmp(what, "damage"))
		return run_damage();
	if (!strcmp(what, "threads") && argc > 2)
		return threads_run((u32)atoi(argv[2]));
#ifdef FBY_PLANTED_BUGS
	if (!strcmp(what, "planted"))
		return run_planted(argc > 2 ? argv[2] : NULL);
#endif
	fprintf(stderr, "usage: map_test explore IMAGES [SEED] | damage | threads SECONDS | planted [NAME]\n");
	return 2;
}
