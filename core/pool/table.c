// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * table.c - the volume table, whatever its records are: names, places, and whether it may be
 * written.
 */
#include "pool/parts.h"

bool fby_name_equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* A name that is .  or .., or that begins with -, cannot name a file, and a command would
 * misinterpret it. */
bool fby_name_ok(const char *name)
{
	for (u32 n = 0; name[n]; n++) {
		char c = name[n];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
		      c == '_' || c == '-'))
			return false;
	}
	return name[0] != 0 && name[0] != '-' && !fby_name_equal(name, ".") && !fby_name_equal(name, "..");
}

bool fby_table_find(const struct fby_pool *p, u32 kind, const char *name, u16 *index)
{
	for (u32 i = 0; i < p->space.store.sb.nvolumes; i++) {
		const struct fby_volume_record *r = &p->space.owner[i].rec;

		if ((r->kind == kind || (kind == FBY_OWNER_KINDS && r->kind != FBY_OWNER_FREE)) &&
		    fby_name_equal(r->name, name)) {
			*index = (u16)i;
			return true;
		}
	}
	return false;
}

u32 fby_table_place(const struct fby_pool *p)
{
	u32 i = 0;

	while (i < p->space.store.sb.nvolumes &&
	       (p->space.owner[i].rec.kind != FBY_OWNER_FREE || p->space.owner[i].damaged))
		i++;
	return i;
}

/* A failed device takes no record.  A change that is not there when it comes back was not made. */
static bool takes_none(const struct fby_pool *p)
{
	return media_failed(p->space.store.media) && !FBY_BUG(PAGES_RECORD_TOLD);
}

int fby_table_writable(const struct fby_pool *p)
{
	if (p->space.opt.read_only)
		return -FBY_E_READ_ONLY;
	if (!p->space.usable)
		return -FBY_E_RECOVERY_INCOMPLETE;
	return takes_none(p) ? -FBY_E_MEDIUM : FBY_DONE;
}

int fby_table_record(struct fby_pool *p, u16 index, const struct fby_volume_record *was)
{
	if (!takes_none(p))
		fby_owner_write(&p->space, index);
	if (!takes_none(p))
		return FBY_DONE;
	p->space.owner[index].rec = *was;
	return -FBY_E_MEDIUM;
}
