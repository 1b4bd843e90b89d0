// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * witness.c - groups that were durable and are gone.
 *
 * A group names groups of other chunks that were durable when it was made.  A power cut takes
 * none of these.  If one is missing, its device has lost what it had said to be durable: it lies
 * about flushes, or the block is damaged.  Without its witness such a group would pass for one
 * that the cut has torn.
 *
 * This is reported once: recovery closes the chunk, and a witness says nothing about a chunk
 * that is closed, since its array counts its entries.
 */
#include "recover/recovery.h"

/* How many openings the chunk lacks that the witness has seen; below 0: the chunk was opened again
 * since. */
static int behind(const struct fby_recovery *p, const struct fby_witness *w)
{
	return (int)(w->epoch - (u32)p->space->chunk[w->chunk].epoch);
}

static bool gone(const struct fby_recovery *p, const struct fby_witness *w)
{
	const struct fby_chunk *ch = &p->space->chunk[w->chunk];

	if (w->chunk == FBY_NO_CHUNK || (p->scanned[w->chunk].found & CR_WITNESSED) || behind(p, w) < 0)
		return false;
	if (behind(p, w) > 0)
		return true;
	return !(p->scanned[w->chunk].found & CR_CLOSED) && w->line >= fby_fill_line(&p->space->store, ch->kind, ch->fill);
}

/* The chunk's newest open line is lost, too.  Its next epoch must be above those of all groups that
 * may be in it. */
static void begin_after(struct fby_recovery *p, const struct fby_witness *w)
{
	struct fby_chunk *ch = &p->space->chunk[w->chunk];

	if (p->scanned[w->chunk].linked) /* it holds entries, which count */
		return;
	ch->epoch += (u32)behind(p, w);
	ch->kind = FBY_CHUNK_FREE;
	ch->owner = FBY_NO_OWNER;
	ch->fill = ch->sealed = p->space->store.first_page;
	ch->seq_min = ch->seq_max = 0;
	if (ch->epoch > p->max_epoch)
		p->max_epoch = ch->epoch;
	p->scanned[w->chunk].found &= (u8)~CR_CLOSED;
	p->scanned[w->chunk].found |= ch->epoch & 1 ? CR_OPEN1 : CR_OPEN0;
}

static void tell(struct fby_recovery *p, const struct fby_witness *w)
{
	const struct fby_report_block b = { .block = FBY_NO_BLOCK, .chunk = w->chunk, .page = w->line, .volume = w->owner };
	const struct fby_owner *o = &p->space->owner[w->owner];

	p->report.groups_lost++;
	fby_report_add(p->report.groups_named, &p->report.ngroups_named, &b);
	if (o->damaged || o->rec.kind == FBY_OWNER_VOLUME ||
	    (o->rec.kind == FBY_OWNER_LOG && (o->log.state != FBY_LOG_NONE || (o->log.home & FBY_LOG_CONSUMER)))) {
		p->volume[w->owner].holes_unknown++;
		p->report.holes++;
	}
	if (behind(p, w) > 0)
		begin_after(p, w);
	p->scanned[w->chunk].found |= CR_WITNESSED;
}

static void witnesses_of(struct fby_recovery *p, u32 c)
{
	const struct fby_chunk *ch = &p->space->chunk[c];
	const struct fby_store *st = &p->space->store;
	struct fby_group_line g;
	u32 line = st->log_first, previous = 0;

	while (fby_group_next(p->space, c, ch->owner, line, previous, &g)) {
		for (u32 i = 0; i < FBY_WITNESSES; i++)
			if (gone(p, &g.witness[i]) && !FBY_BUG(WITNESS_SILENT))
				tell(p, &g.witness[i]);
		previous = g.line;
		line = fby_group_start(st, (u32)g.line + g.lines);
	}
}

void fby_witness_all(struct fby_recovery *p)
{
	for (u32 c = 0; c < p->space->store.sb.nchunks; c++) {
		const struct fby_chunk *ch = &p->space->chunk[c];

		if (ch->kind != FBY_CHUNK_FREE && ch->owner != FBY_NO_OWNER)
			witnesses_of(p, c);
		fby_breathe();
	}
}
