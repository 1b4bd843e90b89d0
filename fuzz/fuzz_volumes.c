// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_volumes.c - the volume table: records patched with their checksums put
 * right, then add, remove, rebind, attach, detach, write, drain and reopen in
 * any order, on the records that result.
 *
 * After each step the table must be sane as its users see it: names end, sizes
 * are in range, no name is there twice among those added here, and what was
 * added is still there after a reopening.
 */
#include <stdio.h>
#include <string.h>

#include "fuzz.h"

static struct fby_pool *pool;

static void check_info(const struct fby_volume_info *v, u32 index)
{
	if (!v->used)
		return;
	if (!memchr(v->spec.name, 0, sizeof(v->spec.name)) ||
	    !memchr(v->spec.identity, 0, sizeof(v->spec.identity)))
		fuzz_finding("a volume's text has no end", index, 0);
	if (v->spec.origin_sectors == 0 || v->spec.origin_sectors > 1ull << 51 ||
	    (v->spec.block_size != 512 && v->spec.block_size != 4096))
		fuzz_finding("a volume's geometry is out of range", v->spec.origin_sectors, v->spec.block_size);
}

static void check_table(void)
{
	struct fby_volume_info v;

	for (u32 i = 0; i < FUZZ_VOLUMES; i++)
		if (fby_volume_info(pool, (u16)i, &v) == 0)
			check_info(&v, i);
}

static bool reopen(const struct fby_options *o)
{
	struct fby_volume_info before[FUZZ_VOLUMES], after;
	struct fby_pool_info info;
	u32 n;

	fby_pool_info(pool, &info);
	n = info.sb.nvolumes < FUZZ_VOLUMES ? info.sb.nvolumes : FUZZ_VOLUMES;
	for (u32 i = 0; i < n; i++)
		fby_volume_info(pool, (u16)i, &before[i]);
	pool = fuzz_open(o);
	if (!pool)
		fuzz_finding("the pool does not open again", 0, 0);
	for (u32 i = 0; i < n; i++) {
		fby_volume_info(pool, (u16)i, &after);
		if (before[i].damaged != after.damaged || before[i].used != after.used ||
		    (after.used && memcmp(&before[i].spec, &after.spec, sizeof(after.spec)) != 0))
			fuzz_finding("a volume changed by a reopening", i, after.used);
		if (after.used && after.watermark < before[i].watermark)
			fuzz_finding("a watermark fell", before[i].watermark, after.watermark);
	}
	return true;
}

static void text_from(struct fuzz_input *in, char *text, u32 max)
{
	u32 n = fuzz_take(in, 1);

	n = n % 8 == 7 ? n % (max + 1) : n % 8; /* mostly short */
	for (u32 i = 0; i < n; i++)
		text[i] = (char)(n > 4 ? fuzz_take(in, 1) : 'a' + fuzz_take(in, 1) % 3);
}

static void add(struct fuzz_input *in)
{
	struct fby_volume_spec s = { .block_size = fuzz_take(in, 1) & 1 ? 512 : 4096 };
	u16 index, found;
	u32 shape = fuzz_take(in, 1);

	s.origin_sectors = (u64)fuzz_take(in, 2) << (shape % 40);
	text_from(in, s.name, sizeof(s.name));
	text_from(in, s.identity, sizeof(s.identity));
	if (fby_volume_add(pool, &s, &index))
		return;
	if (fby_volume_find(pool, s.name, &found) || found != index)
		fuzz_finding("a volume added is not found", index, found);
}

static void step(struct fuzz_input *in, const struct fby_options *o)
{
	static const u8 data[32 * FBY_SECTOR];
	u32 what = fuzz_take(in, 1), at = fuzz_take(in, 1);
	u16 volume = at % (FUZZ_VOLUMES + 1);
	char identity[FBY_IDENTITY_MAX + 2] = "";
	struct fby_volume_info v;
	u32 done = 0, wake = 0;

	switch (what % 10) {
	case 0:
		add(in);
		break;
	case 1:
		fby_volume_remove(pool, volume, at & 0x80);
		break;
	case 2:
		text_from(in, identity, FBY_IDENTITY_MAX + 1);
		fby_volume_rebind(pool, volume, identity, (u64)fuzz_take(in, 4) << (at >> 4));
		break;
	case 3:
		fuzz_attach(pool, volume, at >> 4 & 1 ? FBY_HOLES_ACCEPT : FBY_HOLES_FAIL);
		break;
	case 4:
		fby_volume_detach(pool, volume);
		break;
	case 5:
		if (!fby_volume_info(pool, volume, &v) && v.attached)
			fby_write(pool, volume, v.spec.origin_sectors - 1 - fuzz_take(in, 1), 8, data, &done, &wake);
		break;
	case 6:
		fby_write(pool, volume, fuzz_take(in, 2) & ~7u, 8 + at / 16, data, &done, &wake);
		break;
	case 7:
		fby_volume_drain(pool, volume, true);
		if (!fuzz_destage(pool, NULL, 20000))
			fuzz_finding("destage does not come to rest", volume, 0);
		break;
	case 8:
		reopen(o);
		break;
	case 9:
		fuzz_read_volume(pool, volume, 64);
		break;
	}
	check_table();
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	const struct fby_options o = { .nslots = 2, .high_watermark = 100, .low_watermark = 90 };
	struct fuzz_input in = { data, data + size };
	u32 head = fuzz_take(&in, 1), patches = fuzz_take(&in, 1) % 8;

	if (size < 4)
		return 0;
	fuzz_media_base(head);
	while (patches-- > 0) {
		u8 patch[9] = { 1 };
		struct fuzz_input one = { patch, patch + sizeof(patch) };

		for (u32 i = 1; i < sizeof(patch); i++)
			patch[i] = (u8)fuzz_take(&in, 1);
		fuzz_patch(&one);
	}
	pool = fuzz_open(&o);
	if (!pool)
		return 0;
	fuzz_look(pool);
	for (u32 i = 0; i < 100 && fuzz_left(&in); i++)
		step(&in, &o);
	fuzz_look(pool);
	reopen(&o);
	fuzz_look(pool);
	fuzz_free();
	return 0;
}
