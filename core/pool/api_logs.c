// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * api_logs.c - logs of the pool: add, remove, info; other calls are passed to their layer.
 */
#include "pool/parts.h"

/* A change that did not reach the device has not been made. */
static int changed(const struct fby_pool *p, int rc)
{
	return rc >= 0 && media_failed(p->space.store.media) ? -FBY_E_MEDIUM : rc;
}

int fby_log_find(struct fby_pool *p, const char *name, u16 *log)
{
	return fby_table_find(p, FBY_OWNER_LOG, name, log) ? FBY_DONE : -FBY_E_NO_LOG;
}

/* An unreadable record may have any name: no name is known to be free. */
static bool names_known(const struct fby_pool *p)
{
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++)
		if (p->space.owner[i].damaged)
			return false;
	return true;
}

/* Resets the counts of the next or the last user of this place in the table.  Nobody appends or
 * writes there now. */
static void count_anew(struct fby_pool *p, u32 place)
{
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		fby_store(&p->space.slot[i].volume[place].writes, (u64)0);
		fby_store(&p->space.slot[i].volume[place].bytes, (u64)0);
	}
}

int fby_log_add(struct fby_pool *p, const char *name, u32 flags, u16 *log)
{
	struct fby_log_record r = { .kind = FBY_OWNER_LOG, .home = flags };
	struct fby_owner *owner;
	u32 i;
	int rc = fby_table_writable(p);

	if (rc)
		return rc;
	if (!fby_text_ends(name, sizeof(r.name)) || !fby_name_ok(name))
		return -FBY_E_NAME;
	if (fby_table_find(p, FBY_OWNER_KINDS, name, log))
		return -FBY_E_VOLUME_EXISTS;
	if (!names_known(p))
		return -FBY_E_VOLUME_DAMAGED;
	i = fby_table_place(p);
	if (i == p->space.store.sb.nvolumes)
		return -FBY_E_VOLUME_TABLE_FULL;
	if (flags & ~(u32)FBY_LOG_CONSUMER)
		return -FBY_E_GEOMETRY;
	owner = &p->space.owner[i];
	r.counter = owner->rec.counter;
	r.index = i;
	for (u32 n = 0; name[n]; n++)
		r.name[n] = name[n];
	owner->log = r;
	fby_owner_write(&p->space, (u16)i);
	fby_zero(&p->logs.log[i].header, sizeof(p->logs.log[i].header));
	p->logs.log[i].gate = 0;
	p->logs.log[i].claimed = true;
	owner->chunk_kind = FBY_CHUNK_LOG;
	count_anew(p, i);
	fby_entitle(&p->space, owner, true);
	*log = (u16)i;
	return changed(p, FBY_DONE);
}

int fby_log_remove(struct fby_pool *p, u16 log, bool discard)
{
	int rc = fby_logs_check(&p->logs, log);
	struct fby_owner *owner;
	u32 wake = 0;

	if (rc)
		return rc;
	if (p->space.opt.read_only)
		return -FBY_E_READ_ONLY;
	owner = &p->space.owner[log];
	if (p->logs.log[log].header.state != FBY_LOG_NONE && !discard)
		return -FBY_E_LOG_STATE;
	if (!p->logs.log[log].claimed && (owner->log.home & FBY_LOG_CONSUMER) && !discard)
		return -FBY_E_LOG_UNCLAIMED;
	rc = fby_logs_destroy(&p->logs, log, NULL, &wake);
	if (rc == FBY_DONE)
		rc = fby_logs_release(&p->logs, log, &wake);
	fby_fetch_or(&p->space.wake_owed, wake);
	if (rc)
		return rc;
	owner->chunk_kind = FBY_CHUNK_CACHE;
	count_anew(p, log);
	owner->log = (struct fby_log_record){ .counter = owner->log.counter, .index = log };
	fby_owner_write(&p->space, log);
	fby_entitle(&p->space, owner, false);
	return changed(p, FBY_DONE);
}

int fby_log_info(struct fby_pool *p, u16 log, struct fby_log_info *out)
{
	const struct fby_owner *o;
	const struct fby_log *l;

	fby_zero(out, sizeof(*out));
	if (log >= p->space.store.sb.nvolumes)
		return -FBY_E_NO_LOG;
	o = &p->space.owner[log];
	l = &p->logs.log[log];
	out->damaged = o->damaged;
	out->used = !o->damaged && o->rec.kind == FBY_OWNER_LOG;
	if (!out->used)
		return -FBY_E_NO_LOG;
	fby_copy(out->name, o->log.name, sizeof(out->name));
	out->consumer = o->log.home & FBY_LOG_CONSUMER;
	out->claimed = l->claimed;
	out->incomplete = o->log.flags != 0;
	fby_lock(&p->logs.log[log].lock);
	out->header = l->header;
	fby_unlock(&p->logs.log[log].lock);
	fby_logs_unsynced(&p->logs, log, &out->unsynced, &out->unsynced_txgs);
	out->chunks = fby_load(&o->nchunks);
	out->most = fby_entry_most(&p->space.store);
	fby_lock(&p->space.lock);
	for (u32 c = o->first; c != FBY_NO_CHUNK; c = p->space.chunk[c].next) {
		out->found += p->logs.chunk[c].found;
		out->missing += p->logs.chunk[c].missing;
	}
	fby_unlock(&p->space.lock);
	for (u32 i = 0; i < p->space.opt.nslots; i++) {
		const struct fby_slot_volume *v = &p->space.slot[i].volume[log];

		out->appends += fby_load(&v->writes);
		out->bytes += fby_load(&v->bytes);
	}
	return FBY_DONE;
}

/* --- to the layer ---------------------------------------------------------------- */

int fby_log_create(struct fby_pool *p, u16 log, const u8 guid[16], u64 synced, struct fby_log_header *header, u32 *wake)
{
	return changed(p, fby_logs_create(&p->logs, log, guid, synced, header, wake));
}

int fby_log_append(struct fby_pool *p, u16 log, u64 txg, bool new_generation, const struct fby_vec *vec, u32 nvec,
		   struct fby_log_name *name, u32 *wake)
{
	return fby_logs_append(&p->logs, log, txg, new_generation, vec, nvec, name, wake);
}

int fby_log_append_begin(struct fby_pool *p, struct fby_append *a, u16 log, u64 txg, bool new_generation,
			 const struct fby_vec *vec, u32 nvec, u32 *wake)
{
	return fby_logs_append_begin(&p->logs, a, log, txg, new_generation, vec, nvec, wake);
}

void fby_log_append_commit(struct fby_pool *p, struct fby_append *a, struct fby_log_name *name, u32 *wake)
{
	fby_logs_append_commit(&p->logs, a, name, wake);
}

int fby_log_sync(struct fby_pool *p, u16 log, u64 txg, struct fby_log_header *header, u32 *wake)
{
	return changed(p, fby_logs_sync(&p->logs, log, txg, header, wake));
}

int fby_log_claim(struct fby_pool *p, u16 log, u64 synced, struct fby_log_header *header, struct fby_log_node *node,
		  u64 *n, struct fby_log_result *result)
{
	return changed(p, fby_logs_claim(&p->logs, log, synced, header, node, n, result));
}

int fby_log_replay(struct fby_pool *p, u16 log, struct fby_log_node *node, u64 n, fby_log_replay_fn *replay, void *arg,
		   struct fby_log_result *result)
{
	return changed(p, fby_logs_replay(&p->logs, log, node, n, replay, arg, result));
}

int fby_log_read(struct fby_pool *p, u16 log, const struct fby_log_node *node, void *dst, u32 room, u32 *length)
{
	return fby_logs_read(&p->logs, log, node, dst, room, length);
}

int fby_log_destroy(struct fby_pool *p, u16 log, struct fby_log_header *header, u32 *wake)
{
	return changed(p, fby_logs_destroy(&p->logs, log, header, wake));
}

int fby_log_release(struct fby_pool *p, u16 log, u32 *wake)
{
	return changed(p, fby_logs_release(&p->logs, log, wake));
}
