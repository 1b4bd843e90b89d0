// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * record.c - the records of the volume table: two copies each, at least one of which is intact at
 * any moment.
 */
#include "format/kind.h"
#include "format/log_entry.h"
#include "format/static_format.h"

u64 fby_record_at(const struct fby_store *st, u32 volume, u32 copy)
{
	if (st->unit)
		return copy * st->copy_at + fby_group_gap(&st->sb) + (u64)volume * st->unit;
	return FBY_VT_OFFSET + (volume * 2u + copy) * sizeof(struct fby_volume_record);
}

static u32 record_crc(const struct fby_store *st, const struct fby_volume_record *r)
{
	return fby_crc32c(st->line_seed, r, sizeof(*r) - 4);
}

bool fby_text_ends(const char *s, u32 n)
{
	while (n > 0 && *s++)
		n--;
	return n > 0;
}

bool fby_log_record_sane(const struct fby_volume_record *record)
{
	const struct fby_log_record *r = (const void *)record;
	struct fby_log_header h = { .state = r->state, .at = r->at };

	return r->home <= (FBY_LOG_CONSUMER | FBY_LOG_STORED) && r->home != FBY_LOG_STORED && r->reserved0 == 0 &&
	       r->reserved1 == 0 && r->reserved2 == 0 && (r->flags & ~FBY_VF_ALL) == 0 &&
	       fby_text_ends(r->name, sizeof(r->name)) && fby_log_header_sane(&h);
}

/* Checks the texts and sizes of a volume of any kind. */
static bool volume_sane(const struct fby_volume_record *r)
{
	return (r->block_size == FBY_SECTOR || r->block_size == FBY_PAGE) && r->origin_sectors > 0 &&
	       r->origin_sectors <= 1ull << (FBY_BLOCK_BITS + 3) &&
	       (r->origin_sectors & (r->block_size / FBY_SECTOR - 1)) == 0;
}

bool fby_volume_record_sane(const struct fby_volume_record *r)
{
	if ((r->flags & ~FBY_VF_ALL) || r->watermark >= FBY_NUMBER_END ||
	    !fby_text_ends(r->name, sizeof(r->name)) || !fby_text_ends(r->identity, sizeof(r->identity)))
		return false;
	return r->kind == FBY_OWNER_FREE || volume_sane(r);
}

bool fby_static_record_sane(const struct fby_volume_record *record)
{
	const struct fby_static_record *r = (const void *)record;

	return r->flags == 0 && r->slots > 0 && r->slots < 1u << 31 && fby_text_ends(r->name, sizeof(r->name)) &&
	       fby_text_ends(r->identity, sizeof(r->identity)) && volume_sane(record);
}

bool fby_map_record_sane(const struct fby_volume_record *record)
{
	const struct fby_map_record *r = (const void *)record;
	u8 any = 0;

	for (u32 i = 0; i < sizeof(r->reserved); i++)
		any |= r->reserved[i];
	return r->flags == 0 && r->reserved1 == 0 && any == 0 && r->units > 0 &&
	       r->units <= FBY_MAP_BYTES_MAX / FBY_MAP_UNIT && fby_power_of_two(r->frame_bytes) &&
	       r->frame_bytes >= FBY_FRAME_MIN && r->frame_bytes <= FBY_FRAME_MAX && r->nfiles > 0 &&
	       r->nfiles <= FBY_MAP_FILES_MAX && fby_text_ends(r->name, sizeof(r->name));
}

bool fby_record_sane(u32 volume, const struct fby_volume_record *r)
{
	/* Further rules for an unknown kind are unknown, too. */
	return r->index == volume && r->counter < FBY_NUMBER_END &&
	       (r->kind >= FBY_OWNER_KINDS || fby_owner_kinds[r->kind].sane(r));
}

static bool has_room(const struct fby_store *st, const struct fby_volume_record *r)
{
	return r->kind >= FBY_OWNER_KINDS || !fby_owner_kinds[r->kind].room ||
	       fby_owner_kinds[r->kind].room(&st->sb);
}

bool fby_record_read(const struct fby_store *st, u16 volume, u32 copy, struct fby_volume_record *out)
{
	u32 unused = 0;

	return media_read_crc(st->media, out, fby_record_at(st, volume, copy), sizeof(*out), &unused) &&
	       record_crc(st, out) == out->crc && fby_record_sane(volume, out) && has_room(st, out);
}

/* Writes both copies, with a fence after each: a crash leaves at least one intact, so the
 * volume's state is the older or the newer one at any moment.  The copy that counts is written
 * last: a crash or damage may have left the other one torn. */
void fby_record_write(const struct fby_store *st, u16 volume, struct fby_volume_record *r)
{
	struct fby_volume_record a, b;
	bool a_ok = fby_record_read(st, volume, 0, &a), b_ok = fby_record_read(st, volume, 1, &b);
	u32 first = a_ok && (!b_ok || a.counter > b.counter);

	r->counter++;
	r->index = volume;
	r->crc = record_crc(st, r);
	for (u32 i = 0; i < 2; i++) {
		u32 copy = first ^ i;

		media_lines(st->media, fby_record_at(st, volume, copy), r, sizeof(*r));
		if (!FBY_BUG(WATERMARK_NO_FENCE))
			fby_settle(st, fby_record_at(st, volume, copy), sizeof(*r));
	}
}

