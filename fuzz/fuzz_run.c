// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_run.c - a fuzz target without libFuzzer, for `make check`: every file
 * of the corpus, then so many mutations of them, and random inputs, by a seed.
 *
 *	fuzz_run [-n MUTATIONS] [-s SEED] [-o FINDING] FILE|DIRECTORY...
 *
 * An input that takes longer than 20 s counts as a hang.  On a finding the
 * input lies in FINDING.  Built with FBY_PLANTED_BUGS it takes -p BUG, and then
 * a finding is what is wanted.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "medium/planted.h"

#define INPUT_MAX (64u << 10)
#define FILES_MAX 4096u
#define HANG_SECONDS 20

static struct {
	u8 *data;
	size_t size;
} file[FILES_MAX];
static u32 nfiles;
static u8 now[INPUT_MAX];
static size_t now_size;
static const char *finding = "fuzz-finding.bin";

static u64 random_next(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1dull >> 11;
}

static void read_file(const char *path)
{
	FILE *f = fopen(path, "rb");

	if (!f) {
		perror(path);
		exit(2);
	}
	file[nfiles].data = malloc(INPUT_MAX);
	file[nfiles].size = fread(file[nfiles].data, 1, INPUT_MAX, f);
	fclose(f);
	nfiles++;
}

static void read_path(const char *path)
{
	struct dirent **entry;
	struct stat st;
	int n;

	if (nfiles == FILES_MAX)
		return;
	if (stat(path, &st)) {
		perror(path);
		exit(2);
	}
	if (!S_ISDIR(st.st_mode)) {
		read_file(path);
		return;
	}
	n = scandir(path, &entry, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		char inner[4096];

		if (entry[i]->d_name[0] != '.') {
			snprintf(inner, sizeof(inner), "%s/%s", path, entry[i]->d_name);
			read_path(inner);
		}
		free(entry[i]);
	}
	free(entry);
}

/* The input at fault, for a rerun. */
static void keep(void)
{
	int f = open(finding, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (f < 0 || write(f, now, now_size) != (ssize_t)now_size)
		perror(finding);
	else
		fprintf(stderr, "fuzz: the input is in %s\n", finding);
}

static void on_signal(int number)
{
	fprintf(stderr, "fuzz: signal %d%s\n", number, number == SIGALRM ? ", a hang" : "");
	keep();
	_exit(1);
}

/* From the sanitizers' runtime, if one is linked. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void run(const u8 *data, size_t size)
{
	u8 *exact = malloc(size ? size : 1);

	memcpy(exact, data, size);
	alarm(HANG_SECONDS);
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
}

/* One of: another file's head, bytes changed, a piece doubled, cut, or all random. */
static void mutate(u64 *seed)
{
	u64 r = random_next(seed);
	u32 pick = nfiles ? (u32)(r % nfiles) : 0, changes = 1 + (r >> 20) % 8;

	now_size = 0;
	if (nfiles && r >> 32 & 7) {
		now_size = file[pick].size;
		memcpy(now, file[pick].data, now_size);
	} else {
		now_size = 16 + random_next(seed) % 512;
		for (size_t i = 0; i < now_size; i++)
			now[i] = (u8)random_next(seed);
	}
	while (now_size && changes-- > 0) {
		u64 how = random_next(seed);
		size_t at = (how >> 8) % now_size, n = 1 + (how >> 40) % 16;

		switch (how % 4) {
		case 0:
			now[at] = (u8)(how >> 56);
			break;
		case 1:
			now[at] ^= (u8)(1u << (how >> 56 & 7));
			break;
		case 2:
			if (n > now_size - at)
				n = now_size - at;
			if (now_size + n <= INPUT_MAX) {
				memmove(now + at + n, now + at, now_size - at);
				now_size += n;
			}
			break;
		case 3:
			if (n < now_size - at) {
				memmove(now + at, now + at + n, now_size - at - n);
				now_size -= n;
			}
			break;
		}
	}
}

static void plant(const char *name)
{
#ifdef FBY_PLANTED_BUGS
	for (fby_planted = 1; fby_planted < FBY_BUG_COUNT; fby_planted++)
		if (!strcmp(fby_planted_name(fby_planted), name))
			return;
#endif
	fprintf(stderr, "fuzz: this build has no planted bug %s\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	u64 mutations = 0, seed = 1;
	int option;

	while ((option = getopt(argc, argv, "n:s:o:p:")) != -1) {
		switch (option) {
		case 'n':
			mutations = strtoull(optarg, NULL, 10);
			break;
		case 's':
			seed = strtoull(optarg, NULL, 10);
			break;
		case 'o':
			finding = optarg;
			break;
		case 'p':
			plant(optarg);
			break;
		default:
			fprintf(stderr, "usage: %s [-n MUTATIONS] [-s SEED] [-o FINDING] FILE|DIRECTORY...\n", argv[0]);
			return 2;
		}
	}
	signal(SIGABRT, on_signal);
	signal(SIGALRM, on_signal);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(keep);
	for (int i = optind; i < argc; i++)
		read_path(argv[i]);
	for (u32 i = 0; i < nfiles; i++) {
		memcpy(now, file[i].data, now_size = file[i].size);
		run(now, now_size);
	}
	printf("fuzz: %u corpus files: no finding\n", nfiles);
	fflush(stdout);
	seed = seed * 0x9e3779b97f4a7c15ull + 1;
	for (u64 i = 0; i < mutations; i++) {
		mutate(&seed);
		run(now, now_size);
	}
	printf("fuzz: %" PRIu64 " mutations: no finding\n", mutations);
	return 0;
}
