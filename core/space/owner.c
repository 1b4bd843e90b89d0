// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * owner.c - a volume's record, and its number of pages, from counts with one writer each.
 */
#include "format/kind.h"
#include "space/space.h"

u64 fby_owner_dead(const struct fby_space *p, u16 owner)
{
	u64 dead = fby_load_acquire(&p->owner[owner].dead);

	for (u32 i = 0; i < p->opt.nslots; i++)
		dead += fby_load_acquire(&p->slot[i].volume[owner].dead);
	return dead;
}

/* Reads the dead pages first: a page is counted before it is linked, and so before it can die.
 * In the other order pages replaced meanwhile would be subtracted. */
u64 fby_owner_pages(const struct fby_space *p, u16 owner)
{
	u64 dead = fby_owner_dead(p, owner), pages = p->owner[owner].recovered;

	for (u32 i = 0; i < p->opt.nslots; i++)
		pages += fby_load(&p->slot[i].volume[owner].pages);
	return pages - dead;
}

static u32 clean_replaced(const struct fby_space *p, u16 owner)
{
	u32 n = 0;

	for (u32 i = 0; i < p->opt.nslots; i++)
		n += fby_load_acquire(&p->slot[i].volume[owner].clean_replaced);
	return n;
}

/* Reads the replaced pages first: each of them became clean before. */
u64 fby_owner_clean(const struct fby_space *p, u16 owner)
{
	u32 replaced = clean_replaced(p, owner);

	return fby_load(&p->owner[owner].cleaned) - replaced;
}

void fby_owner_attach(struct fby_space *p, u16 owner)
{
	p->owner[owner].attachment++;
	fby_store(&p->owner[owner].cleaned, clean_replaced(p, owner));
	fby_owner_count(p, owner);
}

void fby_owner_count(struct fby_space *p, u16 owner)
{
	struct fby_owner *v = &p->owner[owner];
	u64 pages, clean;

	fby_lock(&p->lock);
	pages = fby_chunk_kinds[v->chunk_kind].whole ?
			(u64)v->nchunks * (p->store.chunk_pages - p->store.first_page) :
			fby_owner_pages(p, owner);
	clean = fby_owner_clean(p, owner); /* read a moment later, and never more than are linked */
	pages -= clean < pages ? clean : pages;
	fby_store(&p->live, p->live + pages - v->counted);
	fby_store(&v->counted, pages);
	fby_unlock(&p->lock);
}

void fby_owner_write(struct fby_space *p, u16 owner)
{
	fby_record_write(&p->store, owner, &p->owner[owner].rec);
}
