// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_damage.c - flips each bit of a share outside the frames, and zeroes each line of it and pairs
 * of copies.  Synced data is there nevertheless, or the damage is reported.
 */
#include "map_test.h"

static u8 *image;
static u64 flipped;
static u32 told_words, told_in_all;

/* Makes two files.  Each has a frame with dirty pages; there is also a clean frame, and one that
 * was used twice. */
static void make_image(void)
{
	struct medium *m = &now.medium;
	u32 file[NFILES], frame;

	moment = 1000;
	for (u32 i = 0; i < NFILES; i++) {
		struct fby_map_file f = { .size = 40 * FBY_PAGE, .path = { '/', (char)('a' + i) } };

		memset(&now.file[i], 0, sizeof(now.file[i]));
		now.file[i].size = f.size;
		now.file[i].cut = ~0ull;
		now.disk[i].visible.size = f.size;
		now.disk[i].visible.blocks = f.size / FBY_PAGE + 2;
		disk_fsync(&now.disk[i]);
		fby_map_file_add(now.pool, 0, &f, &file[i]);
		if (i) {
			now.file[i].size += 2 * FBY_PAGE;
			fby_map_file_grows(now.pool, 0, file[i], 44 * FBY_PAGE);
			fby_map_file_promise(now.pool, 0, file[i], now.file[i].size);
		}
	}
	for (u32 i = 0; i < 4; i++) {
		u32 of = i & 1, segment = i >> 1;
		struct fby_pages pages = { { 0 } };
		struct fby_frame f;

		if (fby_map_take(now.pool, 0, file[of], segment, &frame) || fby_map_show(now.pool, 0, frame) ||
		    fby_map_frame(now.pool, 0, frame, &f)) {
			fail("no frame");
			return;
		}
		for (u32 page = 0; page < 5 && i < 3; page++) {
			u32 in_file = segment * FRAME_PAGES + page;

			for (u32 half = 0; half < HALVES; half++) {
				struct expected *e = &now.file[of].half[in_file][half];

				e->live = ++moment << 16 | of << 12 | in_file << 4 | half << 1 | 1;
				e->least = moment;
				memcpy(f.memory + page * FBY_PAGE + half_in_page(half), &e->live, 8);
			}
			fby_pages_set(&pages, page, 1);
		}
		if (i == 3) { /* used, and clean again */
			fby_map_drop(now.pool, 0, frame, false);
			continue;
		}
		fby_frame_sync(&f, &pages);
	}
	medium_settle(m, 0, m->media.size);
	medium_power_off(m);
	memcpy(m->durable, m->media.base, m->media.size);
	image = malloc(m->media.size);
	memcpy(image, m->media.base, m->media.size);
	medium_make(&other.medium, m->media.size);
	memcpy(other.medium.media.base, image, m->media.size);
	memcpy(other.medium.latest, image, m->media.size);
	memcpy(other.medium.durable, image, m->media.size);
}

static void put_back(void)
{
	struct medium *m = &other.medium;
	const struct fby_map *map = &now.pool->maps.map[0];

	medium_settle(m, map->at, map->frames - map->at);
	medium_power_off(m);
	for (u32 i = 0; i < m->ntouched; i++) {
		u64 at = (u64)m->touched[i] * FBY_LINE;

		medium_set_line(m, m->touched[i], (const u64 *)(image + at));
		m->is_touched[m->touched[i]] = 0;
	}
	m->ntouched = 0;
}

/* If the damage was reported, fewer pages may have been recovered, but never other data. */
static void judge_less(void)
{
	for (u32 file = 0; file < NFILES; file++)
		for (u32 page = 0; page < FILE_PAGES; page++)
			for (u32 half = 0; half < HALVES; half++) {
				u64 word = other.disk[file].durable.page[page][half];

				if (word && word != now.file[file].half[page][half].live)
					fail("file %u page %u holds what is not its own", file, page);
			}
}

static void recovered(const char *what, u64 at)
{
	bool told;

	for (u32 i = 0; i < NFILES; i++) {
		other.disk[i].durable = other.disk[i].visible = now.disk[i].durable;
		other.disk[i].nops = 0;
	}
	told = world_recover(&other, true);
	told_in_all += told;
	if (told)
		judge_less();
	else
		world_judge(&other);
	if (wrong[0]) {
		char was[300];

		strcpy(was, wrong);
		snprintf(wrong, sizeof(wrong), "%.160s; %s at %llu of the share", was, what,
			 (unsigned long long)(at - now.pool->maps.map[0].at));
	}
	put_back();
}

static void flip_range(u64 at, u64 n, u32 every)
{
	for (u64 bit = at * 8; bit < (at + n) * 8 && !wrong[0]; bit += every) {
		u64 line = bit / 8 / FBY_LINE, words[LINE_WORDS];

		memcpy(words, image + line * FBY_LINE, FBY_LINE);
		words[bit / 64 % LINE_WORDS] ^= 1ull << (bit % 64);
		medium_set_line(&other.medium, (u32)line, words);
		flipped++;
		recovered("a bit flipped", bit / 8);
	}
}

static void zero_lines(u64 at, u64 n)
{
	static const u64 zero[LINE_WORDS];

	for (u64 line = at / FBY_LINE; line < (at + n) / FBY_LINE && !wrong[0]; line++)
		medium_set_line(&other.medium, (u32)line, zero);
}

u64 damage_all(void)
{
	const struct fby_map *m;

	if (world_open(&now))
		fail("the pool cannot be opened");
	make_image();
	m = &now.pool->maps.map[0];
	flip_range(FBY_VT_OFFSET, 512, 1); /* the map's record in the table */
	if (told_in_all)
		fail("a damaged copy of the map's record was not made up for");
	for (u32 file = 0; file < NFILES && !wrong[0]; file++) {
		for (u32 copy = 0; copy < 2; copy++) {
			u64 at = m->at + (2 * file + copy) * FBY_PAGE;

			flip_range(at, 400, 1);
			flip_range(at + 400, FBY_PAGE - FBY_LINE - 400, 7); /* zeroes */
			flip_range(at + FBY_PAGE - FBY_LINE, FBY_LINE, 1);
		}
		zero_lines(m->at + 2 * file * FBY_PAGE, 2 * FBY_PAGE);
		recovered("both copies of a record zeroed", m->at + 2 * file * FBY_PAGE);
	}
	for (u32 frame = 0; frame < 4 && !wrong[0]; frame++) {
		u64 at = fby_descriptor_at(m, frame);
		u32 told = told_in_all;

		flip_range(at, 2 * FBY_LINE, 1);
		flip_range(at + FBY_MAP_LINE_COPY, 2 * FBY_LINE, 1);
		if (told != told_in_all)
			fail("a single damaged line of frame %u could not be put right", frame);
		told = told_in_all;
		flip_range(at + FBY_MAP_WORDS_AT, FBY_LINE, 1);
		told_words += told_in_all - told;
		for (u32 parity = 0; parity < 2; parity++) {
			zero_lines(at + parity * FBY_LINE, FBY_LINE);
			zero_lines(at + FBY_MAP_LINE_COPY + parity * FBY_LINE, FBY_LINE);
			recovered("both copies of a line zeroed", at);
		}
		zero_lines(at, FBY_PAGE);
		recovered("a descriptor zeroed", at);
	}
	if (!wrong[0] && told_words < 3 * 2 * 64)
		fail("of %u flips of words in use %u were told", 3 * 2 * 64, told_words);
	return flipped;
}
