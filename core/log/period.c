// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * period.c - a log from its creation to its end: changes of its header, and freeing of its
 * chunks.  The header is always made durable before the chunks are freed: otherwise a crash in
 * between leaves a header that waits for entries which are gone.
 */
#include "log/logs.h"
#include "space/slot.h"

int fby_logs_check(const struct fby_logs *p, u16 log)
{
	if (log >= p->space->store.sb.nvolumes)
		return -FBY_E_NO_LOG;
	if (p->space->owner[log].damaged)
		return -FBY_E_VOLUME_DAMAGED;
	if (p->space->owner[log].rec.kind != FBY_OWNER_LOG)
		return -FBY_E_NO_LOG;
	return p->space->usable ? FBY_DONE : -FBY_E_RECOVERY_INCOMPLETE;
}

int fby_logs_shut(const struct fby_logs *p, u16 log)
{
	const struct fby_log *l = &p->log[log];
	bool left = l->header.state == FBY_LOG_LOGGING || (p->space->owner[log].log.home & FBY_LOG_CONSUMER);

	return left && !l->claimed ? -FBY_E_LOG_UNCLAIMED : -FBY_E_LOG_STATE;
}

static int writable(const struct fby_logs *p, u16 log)
{
	int rc = fby_logs_check(p, log);

	return rc == FBY_DONE && p->space->opt.read_only ? -FBY_E_READ_ONLY : rc;
}

static void header_to_record(const struct fby_log_header *h, struct fby_log_record *r)
{
	fby_copy(r->guid, h->guid, sizeof(r->guid));
	r->state = h->state;
	r->at = h->at;
}

void fby_logs_open(struct fby_logs *p, u16 log)
{
	const struct fby_log_record *r = &p->space->owner[log].log;
	struct fby_log *l = &p->log[log];

	fby_copy(l->header.guid, r->guid, sizeof(r->guid));
	if (r->home & FBY_LOG_CONSUMER)
		return; /* the consumer's state counts */
	l->header.state = r->state;
	l->header.at = r->at;
}

void fby_logs_header(struct fby_log *l, const struct fby_log_header *h)
{
	fby_lock(&l->lock);
	l->header = *h;
	fby_unlock(&l->lock);
}

void fby_logs_write(struct fby_logs *p, u16 log)
{
	struct fby_log_record *r = &p->space->owner[log].log;

	if ((r->home & FBY_LOG_CONSUMER) || p->space->opt.read_only)
		return;
	header_to_record(&p->log[log].header, r);
	fby_owner_write(p->space, log);
}

bool fby_logs_guid_none(const u8 guid[16])
{
	u8 any = 0;

	for (u32 i = 0; i < 16; i++)
		any |= guid[i];
	return any == 0;
}

/* Does the log have the GUID in its present state, or in one that it may have before the claim? */
static bool has_guid(const struct fby_logs *p, u16 log, const u8 guid[16])
{
	const struct fby_log_record *r = &p->space->owner[log].log;
	const struct fby_log_header *h = &p->log[log].header;

	return p->space->owner[log].rec.kind == FBY_OWNER_LOG &&
	       ((h->state != FBY_LOG_NONE && fby_equal(h->guid, guid, 16)) ||
		(r->state != FBY_LOG_NONE && fby_equal(r->guid, guid, 16)));
}

bool fby_logs_guid_taken(const struct fby_logs *p, u16 log, const u8 guid[16])
{
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++)
		if (i != log && has_guid(p, (u16)i, guid))
			return true;
	return false;
}

void fby_logs_stored(struct fby_logs *p, u16 log)
{
	struct fby_log_record *r = &p->space->owner[log].log;

	if (!(r->home & FBY_LOG_CONSUMER) || (r->home & FBY_LOG_STORED) || p->space->opt.read_only ||
	    !fby_equal(p->log[log].header.guid, r->guid, 16) || fby_logs_guid_none(r->guid) ||
	    FBY_BUG(STORED_NOT_RECORDED))
		return;
	r->home |= FBY_LOG_STORED;
	fby_owner_write(p->space, log);
}

void fby_logs_free(struct fby_logs *p, u16 log, u64 txg, u32 *wake)
{
	for (u32 c = fby_chunk_walk(p->space, log, FBY_NO_CHUNK, wake); c != FBY_NO_CHUNK;
	     c = fby_chunk_walk(p->space, log, c, wake)) {
		if (fby_load(&p->space->chunk[c].seq_max) <= txg) /* ~0 while it is open */
			fby_chunk_give_back(p->space, c);
	}
}

/* Closes the chunks that slots have open, if they have nothing above txg.  False: a slot is busy. */
static bool close_open(struct fby_logs *p, u16 log, u64 txg, u32 *wake)
{
	bool all = true;

	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		struct fby_slot *s = &p->space->slot[i];
		u32 c;

		/* A stream may have a chunk that was opened ahead. */
		if (fby_load(&s->volume[log].open) == FBY_NO_CHUNK && !p->space->store.unit)
			continue;
		if (!fby_slot_try(s)) {
			all = false;
			continue;
		}
		c = s->volume[log].open;
		if (c == FBY_NO_CHUNK || p->space->chunk[c].seq_last <= txg)
			fby_slot_close(p->space, s, log, wake);
		fby_slot_give(p->space, s, wake);
	}
	return all;
}

void fby_logs_tick(struct fby_logs *p, u32 *wake)
{
	if (!fby_short(p->space) || FBY_BUG(SILENT_LOG_KEEPS))
		return;
	for (u32 i = 0; i < p->space->store.sb.nvolumes; i++) {
		const struct fby_log *l = &p->log[i];

		if (p->space->owner[i].rec.kind != FBY_OWNER_LOG || !(fby_load(&l->gate) & FBY_GATE_OPEN))
			continue;
		(void)close_open(p, (u16)i, l->header.at.synced, wake);
		fby_logs_free(p, (u16)i, l->header.at.synced + FBY_BUG(SILENT_BY_WRONG_TXG), wake);
	}
}

int fby_logs_release(struct fby_logs *p, u16 log, u32 *wake)
{
	struct fby_log_record *r = &p->space->owner[log].log;
	int rc = writable(p, log);

	if (rc)
		return rc;
	if (p->log[log].header.state != FBY_LOG_NONE)
		return -FBY_E_LOG_STATE;
	if (!p->log[log].claimed && (p->space->owner[log].log.home & FBY_LOG_CONSUMER))
		return -FBY_E_LOG_UNCLAIMED; /* its consumer may know it in another state */
	if (media_failed(p->space->store.media))
		return -FBY_E_MEDIUM;
	if (!close_open(p, log, FBY_NUMBER_END, wake))
		return FBY_WAIT_SLOT;
	if (p->space->store.unit && !fby_stream_quiet(p->space, log))
		return FBY_WAIT_TICKET;
	if ((r->home & FBY_LOG_CONSUMER) && r->state != FBY_LOG_NONE) { /* the consumer has stored its end */
		r->state = FBY_LOG_NONE;
		if (!FBY_BUG(END_NOT_RECORDED))
			fby_owner_write(p->space, log);
	}
	fby_logs_free(p, log, FBY_NUMBER_END, wake);
	return FBY_DONE;
}

int fby_logs_create(struct fby_logs *p, u16 log, const u8 guid[16], u64 synced, struct fby_log_header *header,
		    u32 *wake)
{
	struct fby_log *l = &p->log[log];
	struct fby_log_record *r = &p->space->owner[log].log;
	struct fby_log_header h = { .state = FBY_LOG_LOGGING, .at.synced = synced };
	int rc = fby_logs_release(p, log, wake); /* chunks left of the last period */

	if (rc)
		return rc;
	if (fby_logs_guid_none(guid) || fby_equal(guid, r->guid, 16) || fby_logs_guid_taken(p, log, guid))
		return -FBY_E_LOG_GUID;
	if (synced >= FBY_NUMBER_START)
		return -FBY_E_NUMBERS;
	fby_copy(h.guid, guid, 16);
	fby_logs_header(l, &h);
	/* Unreadable entries of the last period do not concern this one. */
	r->flags = 0;
	header_to_record(&h, r);
	r->home &= ~(u32)FBY_LOG_STORED;
	if (!FBY_BUG(CREATE_NOT_RECORDED))
		fby_owner_write(p->space, log);
	l->claimed = true;
	/* This excludes what slots have of the last period: the generation is another. */
	l->gen++;
	l->synced = synced;
	fby_copy(l->guid, guid, 16);
	fby_zero(&l->live, sizeof(l->live));
	l->last = l->live;
	fby_store_release(&l->gate, FBY_GATE_OPEN);
	if (header)
		*header = l->header;
	return FBY_DONE;
}

int fby_logs_sync(struct fby_logs *p, u16 log, u64 txg, struct fby_log_header *header, u32 *wake)
{
	struct fby_log *l = &p->log[log];
	int rc = writable(p, log);

	if (rc)
		return rc;
	if (!(fby_load(&l->gate) & FBY_GATE_OPEN))
		return fby_logs_shut(p, log);
	if (txg < l->header.at.synced)
		return -FBY_E_LOG_BACKWARDS;
	if (txg >= FBY_NUMBER_START)
		return -FBY_E_NUMBERS;
	if (txg > l->header.at.synced) {
		/* The media is updated first: entries of the txgs that this makes room for must
		 * not exist while the record says that three older ones are unsynced. */
		struct fby_log_header h = { .state = FBY_LOG_LOGGING, .at.synced = txg };

		fby_copy(h.guid, l->header.guid, sizeof(h.guid));
		if (!FBY_BUG(SYNC_NOT_RECORDED) && !(p->space->owner[log].log.home & FBY_LOG_CONSUMER)) {
			header_to_record(&h, &p->space->owner[log].log);
			fby_owner_write(p->space, log);
		}
		fby_logs_header(l, &h);
		fby_logs_stored(p, log); /* before chunks are freed, which would reveal it */
		fby_store_release(&l->synced, txg);
	}
	if (fby_short(p->space))
		(void)close_open(p, log, txg, wake);
	fby_logs_free(p, log, FBY_BUG(GC_BY_WRONG_TXG) ? txg + 1 : txg, wake);
	if (header) {
		fby_zero(header, sizeof(*header));
		fby_copy(header->guid, l->header.guid, 16);
		header->state = FBY_LOG_LOGGING;
		header->at.synced = txg;
	}
	return FBY_DONE;
}

int fby_logs_destroy(struct fby_logs *p, u16 log, struct fby_log_header *header, u32 *wake)
{
	struct fby_log *l = &p->log[log];
	struct fby_log_header none = { .state = FBY_LOG_NONE };
	int rc = writable(p, log);
	bool busy;

	if (rc)
		return rc;
	/* Under the lock, like the threads that begin a generation. */
	fby_lock(&l->lock);
	fby_fetch_and(&l->gate, ~(u32)FBY_GATE_OPEN);
	fby_mb_after_atomic();
	busy = fby_logs_in_flight(p, log);
	fby_unlock(&l->lock);
	if (busy)
		return FBY_WAIT_SLOT; /* nobody can begin an append any more: call again */
	l->claimed = true; /* for a consumer's log, too, whose state is unknown */
	if (l->header.state != FBY_LOG_NONE) {
		fby_copy(none.guid, l->header.guid, 16);
		fby_logs_header(l, &none);
		if (!FBY_BUG(DESTROY_NOT_RECORDED))
			fby_logs_write(p, log);
	}
	if (header)
		*header = l->header;
	return p->space->owner[log].log.home & FBY_LOG_CONSUMER ? FBY_DONE : fby_logs_release(p, log, wake);
}

/* False: the slot stayed busy, as between the two steps of an append. */
static bool slot_soon(struct fby_slot *s)
{
	for (u32 i = 0; i < 1000; i++) {
		if (fby_slot_try(s))
			return true;
		fby_relax();
	}
	return false;
}

/*
 * Reads first what the slots have counted in the newest generation.  If another generation begins
 * meanwhile, its base includes all of that.
 */
void fby_logs_unsynced(struct fby_logs *p, u16 log, u64 *entries, u32 *txgs)
{
	struct fby_log_counters parts = { 0 }, all = { 0 };
	struct fby_log *l = &p->log[log];
	u64 gen = 0, synced = fby_load(&l->synced);

	*entries = 0;
	*txgs = 0;
	if (!(fby_load(&l->gate) & FBY_GATE_OPEN))
		return;
	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		const struct fby_log_part *part = fby_log_part(p, i, log);

		if (!slot_soon(&p->space->slot[i]))
			continue;
		if (part->gen > gen) {
			gen = part->gen;
			fby_zero(&parts, sizeof(parts));
		}
		if (part->gen == gen)
			fby_log_count_all(&parts, &part->live);
		fby_slot_give_owed(p->space, &p->space->slot[i]);
	}
	fby_lock(&l->lock);
	all = l->live;
	if (gen == l->gen)
		fby_log_count_all(&all, &parts);
	fby_unlock(&l->lock);
	for (u32 i = 0; i < FBY_LOG_TXGS && all.txg > synced + i; i++) {
		*entries += all.n[i];
		*txgs += all.n[i] > 0;
	}
}
