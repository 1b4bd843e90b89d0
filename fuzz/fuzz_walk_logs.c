// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_walk_logs.c - all that can be done with the logs of an open pool, whatever its media
 * hold: looked at, claimed, replayed, ended, begun anew, and found again after a crash.
 * See fuzz.h.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "log.h"

#define APPENDS 5u
#define ENTRY_HEADER 128u

struct replay {
	struct fby_pool *p;
	u16 log;
	u64 gen, id, synced; /* of the last entry handed out */
	u64 n;
	u64 stop_at;
	bool own; /* bodies are those of append_some */
	u32 seen; /* of these; in one generation they come by slot, and not as they were appended */
	u8 *room;
	u32 most;
};

static u8 body_byte(u64 entry)
{
	return (u8)(0x5a ^ entry);
}

static void own_body(struct replay *r, u32 length)
{
	u32 entry = 0;

	while (entry < APPENDS && body_byte(entry) != r->room[0])
		entry++;
	if (entry == APPENDS || length == 0 || (r->seen >> entry & 1))
		fuzz_finding("a body that was not appended, or twice", r->gen, entry);
	r->seen |= 1u << entry;
	for (u32 i = 1; i < length; i++)
		if (r->room[i] != r->room[0])
			fuzz_finding("a body that was not appended", r->gen, i);
}

static enum fby_log_verdict take(void *arg, const struct fby_log_node *node, const struct fby_log_position *next)
{
	struct replay *r = arg;
	u32 length;

	if (r->n++ == r->stop_at)
		return FBY_LOG_STOP;
	if (node->gen < r->gen || (node->gen == r->gen && node->id <= r->id))
		fuzz_finding("entries out of order", node->gen, node->id);
	if (node->txg <= r->synced)
		fuzz_finding("an obsolete entry is replayed", node->txg, r->synced);
	if (next->gen != node->gen || next->id != node->id)
		fuzz_finding("a position that is not the entry's", next->gen, next->id);
	r->gen = node->gen;
	r->id = node->id;
	if (fby_log_read(r->p, r->log, node, r->room, r->most, &length)) {
		if (r->own)
			fuzz_finding("an entry of our own cannot be read", node->gen, node->id);
		return FBY_LOG_DAMAGED;
	}
	if (r->own)
		own_body(r, length);
	return FBY_LOG_REPLAYED;
}

static void check_result(const struct fby_log_result *r, u64 n)
{
	if (r->replayed + r->obsolete + r->earlier + r->twins + r->damaged + r->left != n)
		fuzz_finding("a replay's counts do not add up", r->replayed, n);
	if (r->end == FBY_LOG_COMPLETE && r->left)
		fuzz_finding("a replay is complete and leaves entries", r->left, n);
}

/* Claims, and replays in two parts.  How many entries came, ~0: the claim was refused. */
static u64 claim(struct fby_pool *p, u16 log, u64 synced, struct fby_log_header *header, bool own)
{
	struct fby_log_info info;
	struct fby_log_result result = { 0 };
	struct fby_log_node *node;
	struct replay r = { .p = p, .log = log, .own = own, .stop_at = own ? ~0ull : 1 };
	u64 n, replayed = 0;
	int rc = fby_log_info(p, log, &info);

	if (rc)
		return ~0ull;
	if (info.found > fuzz_media.size / ENTRY_HEADER || info.missing > (u64)info.chunks * (FUZZ_MEDIA_MAX / FBY_LINE))
		fuzz_finding("more entries than the media has room for", info.found, info.missing);
	n = info.found;
	node = calloc(n + 1, sizeof(*node)); /* found is to be enough */
	rc = fby_log_claim(p, log, synced, header, node, &n, &result);
	if (rc == -FBY_E_NO_MEMORY)
		fuzz_finding("a claim finds more entries than recovery", n, info.found);
	fby_log_info(p, log, &info);
	if (rc == FBY_DONE && info.header.state == FBY_LOG_REPLAYING) {
		r.synced = info.header.at.synced;
		r.most = (info.most + FBY_LINE - 1) / FBY_LINE * FBY_LINE;
		r.room = malloc(r.most);
		check_result(&result, n);
		for (u32 part = 0; part < 2; part++, r.stop_at = ~0ull) {
			r.gen = r.id = 0;
			r.n = 0;
			rc = fby_log_replay(p, log, node, n, take, &r, &result);
			if (rc)
				fuzz_finding("a claimed log is not replayed", (u64)-rc, part);
			check_result(&result, n);
			replayed += result.replayed;
		}
		free(r.room);
	}
	free(node);
	return rc == FBY_DONE ? replayed : ~0ull;
}

static void look(struct fby_pool *p)
{
	struct fby_log_entry_info e;
	struct fby_log_info info;
	struct fby_pool_info pool;

	fby_pool_info(p, &pool);
	for (u32 i = 0; i <= pool.sb.nvolumes; i++)
		fby_log_info(p, (u16)i, &info);
	for (u32 c = 0; c <= pool.sb.nchunks; c++) {
		struct fby_log_cursor at = { 0 };
		u32 n = 0;

		while (fby_log_entry_info(p, c, &at, true, &e) == FBY_DONE && e.found)
			if (n++ > pool.sb.chunk_size / ENTRY_HEADER)
				fuzz_finding("a walk that does not end", c, at.line);
	}
}

/* On a device it may have to wait for requests. */
static int append_one(struct fby_pool *p, u16 log, u64 txg, bool next, const struct fby_vec *body, u64 *ticket)
{
	struct fby_log_name name;
	u32 wake = 0;
	int rc = FBY_WAIT_TICKET;

	for (u32 i = 0; i < 8 && rc == FBY_WAIT_TICKET; i++) {
		rc = fby_log_append(p, log, txg, next, body, 2, &name, &wake);
		if (rc == FBY_WAIT_TICKET)
			fuzz_settle(p);
	}
	if (rc == FBY_DONE)
		*ticket = name.ticket;
	return rc;
}

/* A period of our own; how many entries it has. */
static u32 append_some(struct fby_pool *p, u16 log, struct fby_log_header *header)
{
	static u8 data[3000];
	const u8 guid[16] = { 0xf0, 0xf1, (u8)log };
	u32 wake = 0, appended = 0;
	u64 ticket = 0;
	int rc;

	do {
		rc = fby_log_destroy(p, log, header, &wake);
		fuzz_settle(p);
	} while ((rc == FBY_WAIT_SLOT || rc == FBY_WAIT_TICKET) && appended++ < 100);
	appended = 0;
	if (rc || fby_log_release(p, log, &wake))
		return 0;
	if (fby_log_create(p, log, guid, 7, header, &wake))
		return 0;
	for (u32 i = 0; i < APPENDS; i++) {
		struct fby_vec body[2] = { { data, 1 + 700 * i }, { data, 3 } };

		memset(data, body_byte(appended), sizeof(data));
		rc = append_one(p, log, 8 + i / 2, i & 1, body, &ticket);
		if (rc != FBY_DONE && rc != FBY_WAIT_SPACE)
			fuzz_finding("an append to a new log fails", log, (u64)(rc < 0 ? -rc : rc));
		appended += rc == FBY_DONE;
	}
	fuzz_settle(p);
	if (fby_ticket_state(p, ticket) != FBY_TICKET_DURABLE)
		fuzz_finding("an entry does not become durable", log, ticket);
	return appended;
}

static void after_crash(struct fby_pool **p, const struct fby_options *o)
{
	*p = fuzz_open(o);
	if (!*p)
		fuzz_finding("a pool with logs does not open again", 0, 0);
}

/* Whatever it finds, a claim leaves a state from which the next one can continue. */
static void claim_twice(struct fby_pool **p, const struct fby_options *o, u64 synced, struct fby_log_header *header,
			u32 nlogs)
{
	bool claimed[FBY_VOLUMES_MAX];

	for (u32 i = 0; i < nlogs; i++)
		claimed[i] = claim(*p, (u16)i, synced, &header[i], false) != ~0ull;
	after_crash(p, o);
	for (u32 i = 0; i < nlogs; i++)
		if (claimed[i] && claim(*p, (u16)i, synced, &header[i], false) == ~0ull)
			fuzz_finding("a log that was claimed cannot be claimed again", i, synced);
	after_crash(p, o);
}

void fuzz_use_logs(struct fby_pool **p, const struct fby_options *o, u32 bits, const struct fby_log_header *stored)
{
	struct fby_log_header header[FBY_VOLUMES_MAX] = { 0 };
	u32 appended[FBY_VOLUMES_MAX] = { 0 }, nlogs;
	struct fby_pool_info info;

	fby_pool_info(*p, &info);
	nlogs = info.sb.nvolumes;
	look(*p);
	for (u32 i = 0; i < nlogs; i++)
		header[i] = *stored;
	if (bits & 0x40 && !o->read_only)
		claim_twice(p, o, bits & 3, header, nlogs);
	for (u32 i = 0; i < nlogs; i++) {
		struct fby_log_info log;

		if (fby_log_info(*p, (u16)i, &log))
			continue;
		if (claim(*p, (u16)i, bits & 3, &header[i], false) == ~0ull && !(bits & 8))
			continue;
		look(*p);
		appended[i] = append_some(*p, (u16)i, &header[i]);
	}
	fuzz_look(*p);
	fuzz_media_heal(); /* data written now can be read */
	if (o->read_only)
		return;
	after_crash(p, o);
	for (u32 i = 0; i < nlogs; i++) {
		u64 replayed;

		if (!appended[i])
			continue;
		replayed = claim(*p, (u16)i, 0, &header[i], true);
		if (replayed != appended[i])
			fuzz_finding("not all that was appended is replayed", replayed, appended[i]);
	}
	look(*p);
}
