// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * group_log.c - the appends, syncs and periods of the log under test, by seed.
 */
#include "group_model.h"

/* The group must stay open between the two steps. */
static int append_in_two(struct log_host *h, u64 txg, const struct fby_vec *vec, struct fby_log_name *name)
{
	struct fby_append a;
	u32 wake = 0;
	int rc = fby_log_append_begin(h->pool, &a, it->index, txg, chance(2), vec, 1, &wake);

	if (rc != FBY_DONE)
		return rc;
	h->between();
	fby_log_append_commit(h->pool, &a, name, &wake);
	return rc;
}

void log_append(struct log_host *h)
{
	static u8 body[BODY_MOST];
	u32 length = 4 + (chance(3) ? chance(200) : chance(geometry->body_most - 4)), wake = 0;
	const struct fby_vec vec = { .base = body, .len = length };
	u64 txg = (it->syncing > it->synced ? it->syncing : it->synced) + 1 + chance(2);
	struct fby_log_name name;
	int rc;

	if (!it->logging || it->appended + 1 >= ENTRIES)
		return;
	if (it->appended && txg < it->entry[it->appended].txg)
		txg = it->entry[it->appended].txg;
	body_of(it->appended + 1, body, length);
	rc = chance(3) ? fby_log_append(h->pool, it->index, txg, chance(2), &vec, 1, &name, &wake) :
			 append_in_two(h, txg, &vec, &name);
	if (rc == FBY_DONE) {
		must(name.ticket != 0, "an append on a device is durable at once");
		it->appended++;
		it->entry[it->appended].txg = txg;
		it->entry[it->appended].length = length;
		it->entry[it->appended].ticket = name.ticket;
		return;
	}
	must(rc == FBY_WAIT_TICKET || rc == FBY_WAIT_SPACE || rc == FBY_WAIT_SLOT || rc == -FBY_E_MEDIUM, "append");
}

void log_sync(struct log_host *h)
{
	u32 wake = 0;
	u64 txg;

	if (!it->logging || !it->acknowledged)
		return;
	txg = it->entry[it->acknowledged].txg;
	/* Syncs only entries that are all acknowledged. */
	if (it->acknowledged < it->appended && it->entry[it->acknowledged + 1].txg == txg)
		txg--;
	if (txg <= it->synced)
		return;
	it->syncing = txg;
	if (*h->errors && chance(3) == 0) {
		--*h->errors;
		h->w->refuse = 1;
	}
	if (fby_log_sync(h->pool, it->index, txg, NULL, &wake) == FBY_DONE)
		it->synced = txg;
}

void log_next_period(struct log_host *h)
{
	u8 guid[16] = { 0 };
	u32 wake = 0;
	int rc;

	it->logging = false;
	for (u32 i = 0; i < 100; i++) {
		rc = fby_log_destroy(h->pool, it->index, NULL, &wake);
		if (rc != FBY_WAIT_TICKET)
			break;
		h->pump();
	}
	if (rc == -FBY_E_MEDIUM)
		return;
	must(rc == FBY_DONE, "destroy");
	it->appended = it->acknowledged = 0;
	it->synced = it->syncing = 0;
	if (*h->errors && chance(3) == 0) {
		--*h->errors;
		h->w->refuse = 1;
	}
	it->period++;
	memcpy(guid, &it->period, 2);
	guid[2] = 1;
	guid[3] = (u8)it->index;
	rc = fby_log_create(h->pool, it->index, guid, 0, NULL, &wake);
	must(rc == FBY_DONE || rc == -FBY_E_MEDIUM, "create");
	it->logging = rc == FBY_DONE;
}

void log_look(struct fby_pool *p)
{
	for (struct model *m = logs; m < logs + nlogs; m++)
		while (m->acknowledged < m->appended &&
		       fby_ticket_state(p, m->entry[m->acknowledged + 1].ticket) == FBY_TICKET_DURABLE)
			m->acknowledged++;
}
