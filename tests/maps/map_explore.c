// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_explore.c - recovers and judges what a power cut may leave: images of the medium and of the
 * disks.  Also after a second cut, inside that recovery.
 */
#include "map_test.h"

struct explored explored;
u32 images_of_cut = 6;

/* --- which images were seen ------------------------------------------------------------------ */

static u64 *seen, seen_room, seen_n;

static bool is_new(u64 hash)
{
	hash |= !hash;
	if (2 * seen_n >= seen_room) {
		u64 *old = seen, room = seen_room;

		seen_room = seen_room ? 2 * seen_room : 1u << 16;
		seen = calloc(seen_room, sizeof(*seen));
		seen_n = 0;
		for (u64 i = 0; i < room; i++)
			if (old[i])
				is_new(old[i]);
		free(old);
	}
	for (u64 at = hash & (seen_room - 1);; at = (at + 1) & (seen_room - 1)) {
		if (seen[at] == hash)
			return false;
		if (!seen[at]) {
			seen[at] = hash;
			seen_n++;
			return true;
		}
	}
}

static u64 hash_of(u64 seed, const void *p, u64 n)
{
	const u64 *word = p;

	for (u64 i = 0; i < n / 8; i++)
		seed = fby_mix(seed * 31 + word[i] + 1);
	return seed;
}

static u64 line_hash(u32 line, const void *words)
{
	return hash_of(line + 1, words, FBY_LINE);
}

/* --- images -------------------------------------------------------------------------------------- */

/* Memory that changes without a call: words of descriptors, and the lines of pages that
 * programs store to.  Frames are handed out again as they come back, so few are used. */
static void settle(struct world *w)
{
	const struct fby_map *m = &w->pool->maps.map[0];

	for (u32 i = 0; i < 6; i++) {
		medium_settle(&w->medium, fby_descriptor_at(m, i) + FBY_MAP_WORDS_AT, FBY_LINE);
		for (u32 page = 0; page < FRAME_PAGES; page++)
			for (u32 half = 0; half < HALVES; half++)
				medium_settle(&w->medium,
					      fby_frame_at(m, i) + (u64)page * FBY_PAGE + half_in_page(half), FBY_LINE);
	}
}

enum style { ALL_OLD, ALL_NEW, BY_LINE, BY_WORD, STYLES };

/* Chooses one of the possible contents of a line. */
static void choose(const struct pending *p, const u8 *durable, enum style style, u64 words[LINE_WORDS])
{
	u32 n;

	memcpy(words, durable, FBY_LINE);
	switch (style) {
	case ALL_OLD:
		return;
	case ALL_NEW:
		memcpy(words, p->version[p->n - 1].words, FBY_LINE);
		return;
	case BY_LINE:
		n = below(p->n + 1);
		if (n)
			memcpy(words, p->version[n - 1].words, FBY_LINE);
		return;
	default:
		for (u32 i = 0; i < LINE_WORDS; i++) {
			n = below(p->n + 1);
			if (n)
				words[i] = p->version[n - 1].words[i];
		}
	}
}

/* Restores `now` from what is durable. */
static void restore(void)
{
	struct medium *m = &other.medium;

	if (other.pool && m->ntouched)
		settle(&other);
	medium_power_off(m);
	for (u32 i = 0; i < m->ntouched; i++) {
		u64 at = (u64)m->touched[i] * FBY_LINE;

		memcpy(m->media.base + at, now.medium.durable + at, FBY_LINE);
		memcpy(m->latest + at, now.medium.durable + at, FBY_LINE);
		memcpy(m->durable + at, now.medium.durable + at, FBY_LINE);
		m->is_touched[m->touched[i]] = 0;
	}
	m->ntouched = 0;
}

/* Before the recovery another program appends to a file, also zeroes, if the file is then longer
 * than the map was told. */
static void append(u32 file, u64 pick)
{
	const struct model_file *f = &now.file[file];
	struct content *c = &other.disk[file].durable;
	u64 size = c->size > f->size ? c->size : f->size;
	u32 page, half;

	other.appended[file] = 0;
	size = fby_round_up(size > f->growing ? size : f->growing, FBY_PAGE) + FBY_PAGE / 2 * (1 + (pick >> 8) % 3);
	if (pick % 8 || f->cut != ~0ull || size > (u64)FILE_PAGES * FBY_PAGE)
		return;
	other.appended[file] = c->size = size;
	page = (u32)((size - 1) / FBY_PAGE);
	half = (size - 1) % FBY_PAGE >= half_in_page(1);
	if (size <= f->ahead || pick >> 16 & 1)
		c->page[page][half] = moment << 16 | file << 12 | page << 4 | half << 1 | 1;
	c->blocks = c->blocks > page ? c->blocks : page + 1u;
	other.disk[file].visible = *c;
}

static void load_disks(u64 pick)
{
	for (u32 i = 0; i < NFILES; i++) {
		struct disk_file *d = &other.disk[i];

		d->durable = now.disk[i].durable;
		d->visible = now.disk[i].visible;
		d->nops = now.disk[i].nops;
		memcpy(d->op, now.disk[i].op, d->nops * sizeof(d->op[0]));
		disk_crash(d, pick + i);
		append(i, fby_mix(pick + 77 + i));
	}
}

/* Loads an image of any style; returns its hash. */
static u64 load_image(u64 base, enum style style, u64 pick)
{
	u64 hash = base, words[LINE_WORDS];

	for (u32 i = 0; i < now.medium.npending; i++) {
		const struct pending *p = &now.medium.pending[i];
		const u8 *durable = now.medium.durable + (u64)p->line * FBY_LINE;

		choose(p, durable, style, words);
		hash ^= line_hash(p->line, durable) ^ line_hash(p->line, words);
		medium_set_line(&other.medium, p->line, words);
	}
	load_disks(pick);
	for (u32 i = 0; i < NFILES; i++)
		hash = hash_of(hash, &other.disk[i].durable, sizeof(other.disk[i].durable));
	return hash;
}

/* --- a second cut -------------------------------------------------------------------------------- */

static jmp_buf out_of_recovery;
static u64 cut_at;

static void at_recovery_event(struct medium *m)
{
	if (m->events == cut_at)
		longjmp(out_of_recovery, 1);
}

/* Cuts the power in the middle of a recovery. */
static void cut_other(void)
{
	struct medium *m = &other.medium;
	enum style style = (enum style)below(STYLES);
	u64 words[LINE_WORDS];

	settle(&other);
	for (u32 i = 0; i < m->ntouched; i++) {
		u64 at = (u64)m->touched[i] * FBY_LINE;

		if (m->at[m->touched[i]]) {
			choose(&m->pending[m->at[m->touched[i]] - 1], m->durable + at, style, words);
			memcpy(m->durable + at, words, FBY_LINE);
		}
		memcpy(m->media.base + at, m->durable + at, FBY_LINE);
		memcpy(m->latest + at, m->durable + at, FBY_LINE);
	}
	medium_power_off(m);
	for (u32 i = 0; i < NFILES; i++)
		disk_crash(&other.disk[i], random_next());
}

static void second_cut(u64 events)
{
	explored.nested++;
	cut_at = other.medium.events + 1 + below((u32)events);
	other.medium.event = at_recovery_event;
	if (setjmp(out_of_recovery) == 0)
		world_recover(&other, false);
	other.medium.event = NULL;
	cut_other();
	world_recover(&other, false);
	world_judge(&other);
	if (wrong[0])
		strcat(wrong, "; after a second cut");
}

/* --- cuts ----------------------------------------------------------------------------------------- */

void explore_begin(void)
{
	struct medium *m = &other.medium;

	medium_power_off(m);
	memcpy(m->media.base, now.medium.durable, m->media.size);
	memcpy(m->latest, now.medium.durable, m->media.size);
	memcpy(m->durable, now.medium.durable, m->media.size);
	memset(m->is_touched, 0, m->media.size / FBY_LINE);
	m->ntouched = 0;
}

static u64 base_hash(void)
{
	u64 hash = 0;

	for (u32 i = 0; i < now.medium.ntouched; i++) {
		u32 line = now.medium.touched[i];
		u64 at = (u64)line * FBY_LINE;

		hash ^= line_hash(line, now.medium.durable + at);
		if (memcmp(other.medium.durable + at, now.medium.durable + at, FBY_LINE)) {
			memcpy(other.medium.media.base + at, now.medium.durable + at, FBY_LINE);
			memcpy(other.medium.latest + at, now.medium.durable + at, FBY_LINE);
			memcpy(other.medium.durable + at, now.medium.durable + at, FBY_LINE);
		}
	}
	return hash;
}

/* Adds a map, or removes one with all its content: as a whole or not at all. */
void explore_table(void)
{
	const struct fby_map_spec s = { .name = "m", .uuid = { 6 }, .bytes = FBY_MAP_UNIT,
					.frame_bytes = FRAME_BYTES, .nfiles = 2 };
	struct fby_map_info info;
	struct medium *m = &other.medium;
	u64 base = base_hash(), began;
	u16 map;

	for (u32 n = 0; n < 600 && !wrong[0]; n++) {
		bool add = n & 1;

		load_image(base, ALL_OLD, 0);
		if (world_open(&other) || fby_map_detach(other.pool, 0) || fby_map_remove(other.pool, 0, true))
			fail("a map cannot be removed");
		if (add) { /* all of that is durable; then it is added again */
			settle(&other);
			memcpy(m->durable, m->latest, m->media.size);
			medium_power_off(m);
		} else {
			load_image(base, ALL_OLD, 0);
			world_open(&other);
			fby_map_detach(other.pool, 0);
		}
		began = m->events;
		cut_at = began + 1 + (add && !one_in(4) ? below(1500) : (add ? 1200 + below(70) : below(8)));
		m->event = at_recovery_event;
		if (setjmp(out_of_recovery) == 0)
			add ? fby_map_add(other.pool, &s, &map) : fby_map_remove(other.pool, 0, true);
		m->event = NULL;
		cut_other();
		explored.cuts++;
		if (!world_opens(&other))
			fail("the pool cannot be opened after a cut while a map is %s", add ? "added" : "removed");
		else if (fby_map_find(other.pool, "m", &map) == FBY_DONE &&
			 (world_recover(&other, false) || fby_map_info(other.pool, 0, &info) || (add && info.used)))
			fail("a map that was being added is not whole");
		explore_begin();
	}
}

void explore_cut(void)
{
	u64 base;

	if (wrong[0])
		return;
	settle(&now);
	explored.cuts++;
	base = base_hash();
	for (u32 n = 0; n < images_of_cut && !wrong[0]; n++) {
		enum style style = n < STYLES ? (enum style)n : (enum style)(BY_LINE + below(2));
		u64 pick = random_next(), state = random_state, events;

		explored.images++;
		if (!is_new(load_image(base, style, pick)) && n >= STYLES) {
			restore();
			continue;
		}
		events = other.medium.events;
		world_recover(&other, false);
		world_judge(&other);
		events = other.medium.events - events;
		restore();
		if (events && !wrong[0] && one_in(8)) {
			u64 after = random_state;

			random_state = state;
			load_image(base, style, pick);
			random_state = after;
			second_cut(events);
			restore();
		}
	}
	explored.distinct = seen_n;
}
