/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * parts.h - the pool and its layers.
 */
#ifndef FBY_PARTS_H
#define FBY_PARTS_H

#include "drain/drain.h"
#include "frame/frame.h"
#include "log/logs.h"
#include "recover/recovery.h"
#include "static/static.h"

struct fby_pool {
	struct fby_space space;
	struct fby_cache cache;
	struct fby_statics statics;
	struct fby_maps maps;
	struct fby_logs logs;
	struct fby_drain drain;
	struct fby_recovery recovery;
	u64 memory_bytes;
};

/* --- api_statics.c: what the pool does for static volumes --------------------------- */
/* Is a record of this kind (enum fby_owner_kind) a volume of some sort? */
static inline bool fby_is_volume(u32 kind)
{
	return kind == FBY_OWNER_VOLUME || kind == FBY_OWNER_STATIC;
}

int fby_pool_static_add(struct fby_pool *p, u32 index, const struct fby_volume_spec *s, struct fby_volume_record *r);
void fby_pool_static_info(struct fby_pool *p, u16 index, struct fby_volume_info *out);
/* The slot or page before which a call of fby_lost_list stops; end is their number. */
static inline u32 fby_lost_stop(const struct fby_lost_at *at, u32 end)
{
	return at->most && at->page < end && end - at->page > at->most ? at->page + at->most : end;
}

/* fby_lost_list; at->page is a slot. */
u32 fby_pool_static_lost(struct fby_pool *p, u16 volume, struct fby_lost_at *at, struct fby_report_block *out,
			 u32 max);
/* The checks of fby_check; false: see v. */
bool fby_pool_static_check(struct fby_pool *p, u16 index, struct fby_violation *v);

/* --- api_maps.c ---------------------------------------------------------------------- */
bool fby_pool_map_check(struct fby_pool *p, u16 map, struct fby_violation *v); /* false: see v */

/* --- table.c: zero-terminated texts ---------------------------------------------------- */
bool fby_name_equal(const char *a, const char *b);
bool fby_name_ok(const char *name);
/* Finds the owner of this name, of one kind (enum fby_owner_kind) or of any (FBY_OWNER_KINDS). */
bool fby_table_find(const struct fby_pool *p, u32 kind, const char *name, u16 *index);
u32 fby_table_place(const struct fby_pool *p); /* the first that is free; nvolumes: none */
int fby_table_writable(const struct fby_pool *p); /* DONE or -FBY_E_x */
/* Writes the record, which was `was`.  -FBY_E_MEDIUM: the device has failed, and it is that again. */
int fby_table_record(struct fby_pool *p, u16 index, const struct fby_volume_record *was);

#endif
