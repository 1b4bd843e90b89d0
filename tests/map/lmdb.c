// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Goal: committed data of LMDB is there.  The program is linked to Debian's unmodified liblmdb.
 *
 *	lmdb run FILE writemap|pwrite          commits, says "N" after each, for ever
 *	lmdb share FILE writemap|pwrite        the same, while others do so too
 *	lmdb watch FILE                        reads all again and again meanwhile, says N
 *	lmdb check FILE                        reads all, says the last N
 *	lmdb bench FILE writemap|pwrite COUNT  commits COUNT, says how many a second, and the
 *	                                       microseconds of CPU time that each took
 */
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define KEYS 997
#define VALUE 256

static void ok(int rc, const char *what)
{
	if (rc) {
		fprintf(stderr, "lmdb: %s: %s\n", what, mdb_strerror(rc));
		exit(1);
	}
}

static MDB_env *env;
static MDB_dbi dbi;

static void start(const char *path, unsigned int flags)
{
	MDB_txn *txn;

	ok(mdb_env_create(&env), "create");
	ok(mdb_env_set_mapsize(env, 64ul << 20), "mapsize");
	ok(mdb_env_open(env, path, MDB_NOSUBDIR | flags, 0600), "open");
	ok(mdb_txn_begin(env, NULL, flags & MDB_RDONLY, &txn), "begin");
	ok(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi");
	ok(mdb_txn_commit(txn), "commit");
}

static uint64_t last_of(MDB_txn *txn)
{
	MDB_val count = { 5, "count" }, number;
	uint64_t n = 0;
	int rc = mdb_get(txn, dbi, &count, &number);

	if (rc != MDB_NOTFOUND) {
		ok(rc, "get");
		memcpy(&n, number.mv_data, sizeof(n));
	}
	return n;
}

/* Commits number n, or with 0 the next one.  Its key has a value full of the number, and "count"
 * has it. */
static uint64_t commit(uint64_t n)
{
	uint64_t k, filled[VALUE / 8];
	MDB_val key = { sizeof(k), &k }, value = { sizeof(filled), filled };
	MDB_val count = { 5, "count" }, number = { sizeof(n), &n };
	MDB_txn *txn;
	size_t i;

	ok(mdb_txn_begin(env, NULL, 0, &txn), "begin");
	if (!n)
		n = last_of(txn) + 1;
	k = n % KEYS;
	for (i = 0; i < VALUE / 8; i++)
		filled[i] = n;
	ok(mdb_put(txn, dbi, &key, &value, 0), "put");
	ok(mdb_put(txn, dbi, &count, &number, 0), "put");
	ok(mdb_txn_commit(txn), "commit");
	return n;
}

static uint64_t last(void)
{
	uint64_t n;
	MDB_txn *txn;

	ok(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
	n = last_of(txn);
	mdb_txn_abort(txn);
	return n;
}

static void say(uint64_t n)
{
	char line[32];
	int len = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)n);

	if (write(1, line, (size_t)len) != len)
		exit(1);
}

static void check(void)
{
	uint64_t n, seen = 0, k, v[VALUE / 8];
	MDB_val key, value;
	MDB_cursor *cursor;
	MDB_txn *txn;
	size_t i;
	int rc;

	ok(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
	n = last_of(txn);
	ok(mdb_cursor_open(txn, dbi, &cursor), "cursor");
	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
		if (key.mv_size == 5)
			continue;
		memcpy(&k, key.mv_data, sizeof(k));
		ok(key.mv_size != 8 || value.mv_size != VALUE, "a key or value of another size");
		memcpy(v, value.mv_data, sizeof(v));
		for (i = 0; i < VALUE / 8; i++)
			ok(v[i] != v[0], "a value is torn");
		ok(v[0] % KEYS != k || v[0] > n || v[0] + KEYS <= n, "a value that is not the last one");
		seen++;
	}
	ok(rc != MDB_NOTFOUND, "cursor");
	ok(seen != (n < KEYS ? n : KEYS), "keys are missing");
	mdb_txn_abort(txn);
	say(n);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The CPU time of all threads. */
static double cpu_time(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	int writemap = argc > 3 && strcmp(argv[3], "writemap") == 0;
	double from, took, on_cpu;
	uint64_t n;
	long count;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "check") == 0) {
		start(argv[2], MDB_RDONLY);
		check();
		mdb_env_close(env);
		return 0;
	}
	if (strcmp(argv[1], "watch") == 0) {
		start(argv[2], MDB_RDONLY);
		for (;;)
			check();
	}
	start(argv[2], writemap ? MDB_WRITEMAP : 0);
	if (strcmp(argv[1], "share") == 0)
		for (;;)
			say(commit(0));
	n = last();
	if (strcmp(argv[1], "bench") == 0) {
		count = atol(argv[4]);
		on_cpu = cpu_time();
		from = now();
		while (count--)
			commit(++n);
		took = now() - from;
		on_cpu = cpu_time() - on_cpu;
		count = atol(argv[4]);
		printf("%.1f %.2f\n", (double)count / took, on_cpu * 1e6 / (double)count);
		mdb_env_close(env);
		return 0;
	}
	for (;;)
		say(commit(++n));
}
