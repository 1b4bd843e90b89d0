// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_scenes.c - rare errors and races, each step by step.  They are: a flush that fails next to
 * others, a full pool, a chunk that is freed while its array is late, a log that is removed during
 * an append, a format with an error, and an array that is lost after a group was appended again.
 */
#include "group_model.h"
#include "group_test.h"

#define HALF 23000u /* two of them leave a block of a chunk */
#define TRIES 12u /* by seed, of what a device leaves after an error */

static struct world w, cut;
static struct fby_pool *pool;
static void *memory, *cut_memory;
static u64 bytes, cut_bytes;
static u32 numbers;

struct sent {
	struct fby_medium_io io;
	u32 number;
};

/* --- steps ------------------------------------------------------------------------------- */

static void start(enum fby_durable durable, u32 n)
{
	const struct fby_format f = { .uuid = { 9 }, .chunk_size = CHUNK, .nvolumes = 2, .unit = UNIT };
	struct fby_recovery_report report;
	u32 wake = 0;

	world_make(&w, durable);
	world_make(&cut, durable);
	must(fby_format(&w.media, &f) == FBY_DONE, "format");
	world_load(&w);
	pool = open_pool(&w, &memory, &bytes, &report);
	nlogs = n;
	for (u32 i = 0; i < n; i++) {
		const u8 guid[16] = { 1, (u8)i };

		must(fby_log_add(pool, i ? "b" : "a", 0, &logs[i].index) == FBY_DONE, "add");
		must(fby_log_create(pool, logs[i].index, guid, 0, NULL, &wake) == FBY_DONE, "create");
	}
}

static bool send(struct sent *s)
{
	u32 wake = 0;

	if (fby_medium_next(pool, &s->io, &wake) != FBY_DONE)
		return false;
	s->number = ++numbers;
	world_send(&w, &s->io, s->number);
	return true;
}

static void end(const struct sent *s, int error)
{
	u32 wake = 0;

	world_end(&w, &s->io, s->number, error);
	fby_medium_end(pool, &s->io, error, &wake);
}

static void must_send(struct sent *s)
{
	must(send(s), "there is nothing to send");
}

/* Carries out all requests, one after the other. */
static void settle(void)
{
	struct sent s;

	for (u32 i = 0; send(&s); i++) {
		end(&s, 0);
		must(i < 1000, "requests without end");
	}
}

static int append(u32 log, u64 txg, u32 length, u64 *ticket)
{
	static const u8 body[HALF];
	const struct fby_vec vec = { .base = body, .len = length };
	struct fby_log_name name = { 0 };
	u32 wake = 0;
	int rc = fby_log_append(pool, logs[log].index, txg, true, &vec, 1, &name, &wake);

	if (ticket)
		*ticket = name.ticket;
	return rc;
}

static void must_append(u32 log, u64 txg, u32 length, u64 *ticket)
{
	must(append(log, txg, length, ticket) == FBY_DONE, "append");
}

static void must_be_durable(u64 ticket)
{
	must(fby_ticket_state(pool, ticket) == FBY_TICKET_DURABLE, "an entry is not durable");
}

/* Cuts the power.  unreadable: a block that cannot be read then, or 0. */
static void must_find(u64 n, u32 unreadable, const char *what)
{
	struct fby_recovery_report report;
	struct found found;

	world_copy(&cut, &w);
	if (unreadable)
		cut.unreadable[unreadable] = 1;
	world_load(&cut);
	find_all(open_pool(&cut, &cut_memory, &cut_bytes, &report), &report, &found);
	must(found.n == n, what);
}

static void checked(void)
{
	char text[200];

	if (fby_check(pool, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
}

/* --- flushes that fail beside others --------------------------------------------------------- */

/* The group is in flight when a flush fails. */
static void lost_in_flight(void)
{
	struct sent group, other;
	u32 wake = 0;
	u64 ticket;

	start(FBY_DURABLE_FLUSH, 2);
	must_append(0, 1, 100, NULL);
	settle();
	must_append(0, 1, 100, &ticket);
	must_send(&group);
	w.refuse = 1;
	must(fby_log_sync(pool, logs[1].index, 1, NULL, &wake) == FBY_DONE, "sync");
	must(!send(&other), "something beside a group in flight"); /* and looks */
	end(&group, 0);
	settle();
	must_be_durable(ticket);
	must_find(2, 0, "a group is lost that was in flight when a flush failed");
}

static void flush_fails(const char *what)
{
	(void)what;
	race = NULL;
	world_flush_fails(&w);
}

/* A flush fails, and a second one is sent before anybody has noticed. */
static void lost_before_flush(void)
{
	struct sent group;
	u64 ticket;

	start(FBY_DURABLE_FLUSH, 1);
	must_append(0, 1, 100, NULL);
	settle();
	must_append(0, 1, 100, &ticket);
	must_send(&group);
	end(&group, 0);
	race = flush_fails;
	settle();
	must(!race, "nobody looked");
	must_be_durable(ticket);
	must_find(2, 0, "a group is lost that was written when a flush failed");
}

/* --- chunks ------------------------------------------------------------------------------------ */

/* A log leaves its chunk while the open line of the next chunk is in flight. */
static void left_while_opening(void)
{
	struct sent group, ahead;
	u32 wake = 0;

	start(FBY_DURABLE_FUA, 2);
	must_append(0, 1, HALF, NULL);
	must_append(1, 1, HALF, NULL);
	settle();
	must_append(0, 1, HALF, NULL);
	must_append(1, 1, HALF, NULL);
	settle();
	must_append(0, 1, 100, NULL); /* opens one ahead */
	must_send(&ahead);
	must_send(&group);
	end(&group, 0);
	must_append(1, 1, HALF, NULL); /* chunks are scarce from now on */
	must(fby_log_sync(pool, logs[0].index, 1, NULL, &wake) == FBY_DONE, "sync");
	must_append(0, 2, 100, NULL);
	end(&ahead, 0);
	settle();
	checked();
	must_find(4, 0, "entries are lost");
}

static u32 chunks_free(void)
{
	struct fby_pool_info info;

	fby_pool_info(pool, &info);
	return info.chunks_free;
}

/* The pool is full, and requests fail. */
static void full(enum fby_durable durable)
{
	u32 n = 0, wake = 0;
	u64 ticket;

	start(durable, 2);
	must_append(0, 1, HALF, NULL);
	for (n = 1; chunks_free() > 1; n++) {
		must(n < 100, "the pool is never full");
		must_append(1, 1, HALF, NULL);
		settle();
	}
	must(append(0, 1, HALF, NULL) == FBY_DONE && append(0, 1, HALF, NULL) != FBY_DONE, "the pool is not full");
	n++;
	settle();
	must(append(0, 1, HALF, NULL) == FBY_WAIT_SPACE, "the pool is not full");
	for (u32 i = 0; i < 4; i++) {
		struct sent group, flush;

		must_append(1, 1, 40, &ticket);
		n++;
		must_send(&group);
		end(&group, durable == FBY_DURABLE_FLUSH ? 0 : 5);
		if (durable == FBY_DURABLE_FLUSH) {
			must_send(&flush);
			must(flush.io.kind == FBY_MEDIUM_FLUSH, "a flush");
			end(&flush, 5);
		}
		settle();
		must_be_durable(ticket);
	}
	must_find(n, 0, "entries are lost in a full pool");
	/* The pool regains the space that errors took from it. */
	for (u32 log = 0; log < 2; log++)
		must(fby_log_sync(pool, logs[log].index, 1, NULL, &wake) == FBY_DONE, "sync");
	settle();
	for (u32 log = 0; log < 2; log++)
		must(fby_log_sync(pool, logs[log].index, 1, NULL, &wake) == FBY_DONE, "sync");
	settle();
	checked();
	must(chunks_free() + 2 >= CHUNKS, "chunks are not given back after errors");
	must_append(0, 2, HALF, &ticket);
	settle();
	must_be_durable(ticket);
}

/* Carries out all requests except one, which does not end. */
static void settle_beside(const struct sent *late)
{
	struct sent s;

	for (u32 i = 0; send(&s); i++) {
		must(s.number != late->number && i < 1000, "requests without end");
		end(&s, 0);
	}
}

/* In a full pool a chunk is freed while its last group is on its way.  Its array waits for that
 * group: the log has synced what was durable.  Another log must not get the chunk before the array
 * is durable.  Otherwise the late group overwrites its entries, and the array states the wrong end.
 */
static void array_late(enum fby_durable durable)
{
	static const u32 lengths[] = { HALF, HALF, 100, 200, 300 };
	struct sent late;
	u32 wake = 0;

	start(durable, 2);
	must_append(0, 1, 100, NULL);
	settle();
	while (append(1, 1, HALF, NULL) == FBY_DONE)
		settle();
	must(append(0, 1, 5000, NULL) == FBY_DONE, "append");
	must_send(&late);
	for (u32 log = 0; log < 2; log++)
		must(fby_log_sync(pool, logs[log].index, 1, NULL, &wake) == FBY_DONE, "sync");
	for (u32 i = 0; i < 5; i++) {
		u64 ticket = 0;

		if (append(1, 2, lengths[i], &ticket) != FBY_DONE) {
			settle_beside(&late);
			must_append(1, 2, lengths[i], &ticket);
		}
		settle_beside(&late);
		if (i == 2) {
			end(&late, 0);
			settle();
		}
		must_be_durable(ticket);
	}
	must_find(5, 0, "entries are lost in a chunk that was given back");
}

/* A log is removed while one thread appends to it and another one sends the pending groups.  A pool
 * with larger blocks than a page may have no other chunks than those of logs. */
static void send_it(const char *what)
{
	struct sent s;

	if (what[1] != 'f' || !strstr(what, "open"))
		return;
	race = NULL;
	if (send(&s))
		end(&s, 0);
}

static void remove_it(const char *what)
{
	if (strcmp(what, "&l->gate") != 0)
		return;
	race = NULL;
	must(fby_log_remove(pool, logs[0].index, true) == FBY_DONE, "remove");
	race = send_it;
}

static void removed(void)
{
	start(FBY_DURABLE_FUA, 1);
	race = remove_it;
	must(append(0, 1, 100, NULL) < 0, "an append to a log that is no more");
	race = NULL;
	settle();
	must_find(0, 0, "entries of a log that is no more");
	checked();
}

/* A lone client sleeps until the slot is free that another call holds. */
static void woken(void)
{
	struct fby_io io;
	u64 next;
	u32 wake = 0;

	start(FBY_DURABLE_FUA, 1);
	fby_wait_prepare(pool, FBY_WAIT_SLOT);
	must(fby_log_destroy(pool, logs[0].index, NULL, &wake) == FBY_DONE, "destroy");
	must(wake & FBY_WAKE_SLOT, "destroy wakes nobody");
	start(FBY_DURABLE_FUA, 1);
	must_append(0, 1, 100, NULL);
	fby_wait_prepare(pool, FBY_WAIT_SLOT);
	must(fby_pool_close(pool) == FBY_WAIT_TICKET, "close");
	wake = 0;
	(void)fby_destage_step(pool, 1, &io, &next, &wake);
	must(wake & FBY_WAKE_SLOT, "a close that has to wait wakes nobody");
}

/* --- format, and arrays ---------------------------------------------------------------------------- */

/* The flush that covers a whole format fails, and succeeds when it is repeated. */
static void formatted(void)
{
	const struct fby_format f = { .uuid = { 9 }, .chunk_size = CHUNK, .nvolumes = 2, .unit = UNIT };
	struct fby_recovery_report report;

	world_make(&w, FBY_DURABLE_FLUSH);
	w.more = true;
	w.refuse = 1;
	w.refuse_after = 1;
	must(fby_format(&w.media, &f) == FBY_DONE && w.refuse == 0, "format");
	world_load(&w);
	(void)open_pool(&w, &memory, &bytes, &report);
	must(report.chunk_headers_lost == 0 && report.holes == 0, "a format has not written all of it");
}

/* A group fails, reaches the device nevertheless, and is appended again.  Then the array is lost
 * that says where the group is not. */
static void array_lost(void)
{
	struct sent group;
	u64 ticket;

	start(FBY_DURABLE_FUA, 1);
	must_append(0, 1, 100, NULL);
	settle();
	must_append(0, 1, 200, NULL);
	must_append(0, 1, 5000, &ticket);
	must_send(&group);
	end(&group, 5);
	settle();
	must_be_durable(ticket);
	for (u32 c = 0; c < CHUNKS; c++)
		must_find(3, (1 + c) * (CHUNK / UNIT) + 2, "entries are lost with an array");
}

void group_scenes(void)
{
	geometry = geometries;
	for (u32 i = 0; i < TRIES; i++) {
		seed = i * 0x9e3779b97f4a7c15ull | 1;
		lost_in_flight();
		lost_before_flush();
		formatted();
		array_lost();
	}
	left_while_opening();
	full(FBY_DURABLE_FUA);
	full(FBY_DURABLE_FLUSH);
	for (u32 durable = 0; durable < 3; durable++)
		array_late((enum fby_durable)durable);
	for (; geometry < geometries + GEOMETRIES; geometry++)
		removed();
	geometry = geometries;
	woken();
}
