// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_script.c - two programs that store and sync, and the server.  The server brings in, writes
 * back, reclaims, lets files grow, truncates them and writes past the frames.  All are coroutines
 * that take turns at each flush, fence and write of the engine, and in between.
 */
#include <ucontext.h>

#include "map_test.h"

#define STACK (512u << 10)
#define NONE (~0u)

u32 script_did[16];
enum did {
	SYNCED, STORED, SHOWN, WRITTEN, STAYED, DROPPED, GROWN, CUT, PAST, REMOVED, REFUSED, CHECKED, THROUGH,
	LATE, GIVEN_UP, PROMISED
};

static ucontext_t scheduler, turn[ACTORS];
static u8 *stack[ACTORS];
static u32 steps_left;

/* The frame, the users and the record of each segment, and the operations that programs may not do
 * now. */
static u32 frame_of[NFILES][SEGMENTS], users[NFILES][SEGMENTS], record_of[NFILES];
static bool closing[NFILES][SEGMENTS], wanted[NFILES][SEGMENTS], cutting[NFILES];
static u64 grow_to[NFILES];
static struct fby_frame view[NFILES][SEGMENTS]; /* also of a frame that was dropped */
static u32 late[NFILES]; /* syncs that the server does not know of */
static bool alone[NFILES]; /* the server does something that excludes syncs */
static bool stored[NFILES][FILE_PAGES]; /* since a sync began */

static void yield(void)
{
	u32 actor = now.medium.actor;

	if (actor < ACTORS)
		swapcontext(&turn[actor], &scheduler);
}

static void at_event(struct medium *m)
{
	(void)m;
	if (one_in(3))
		explore_cut();
	yield();
}

/* --- a page ----------------------------------------------------------------------------------- */

static u64 *half_at(const struct fby_frame *f, u32 page, u32 half)
{
	return (u64 *)(f->memory + (u64)(page % FRAME_PAGES) * FBY_PAGE + half_in_page(half));
}

static u64 new_word(u32 file, u32 page, u32 half)
{
	return ++moment << 16 | file << 12 | page << 4 | half << 1 | 1;
}

static u64 moment_of(const struct expected *e)
{
	return e->live ? e->live >> 16 : e->zeroed;
}

static bool in_file(u32 file, u32 page, u32 half)
{
	return (u64)page * FBY_PAGE + half_in_page(half) < now.file[file].size;
}

static int sync_pages(u32 file, u32 segment, const struct fby_pages *pages)
{
	u64 seen[FRAME_PAGES][HALVES];
	struct fby_frame f = view[file][segment];
	int rc;

	for (u32 i = 0; i < FRAME_PAGES; i++) {
		u32 page = segment * FRAME_PAGES + i;

		if (!fby_pages_has(pages, i))
			continue;
		stored[file][page] = false;
		for (u32 half = 0; half < HALVES; half++)
			seen[i][half] = moment_of(&now.file[file].half[page][half]);
	}
	rc = fby_frame_sync(&f, pages);
	for (u32 i = 0; i < FRAME_PAGES && rc == FBY_DONE; i++) {
		u32 page = segment * FRAME_PAGES + i;

		for (u32 half = 0; half < HALVES && fby_pages_has(pages, i); half++) {
			struct expected *e = &now.file[file].half[page][half];

			if (seen[i][half] > e->least)
				e->least = seen[i][half];
		}
	}
	return rc;
}

/* --- programs ------------------------------------------------------------------------------------ */

static void store(u32 file, u32 page)
{
	struct fby_frame *f = &view[file][page / FRAME_PAGES];

	for (u32 half = 0; half < HALVES; half++) {
		struct expected *e = &now.file[file].half[page][half];

		if (!in_file(file, page, half) || one_in(3))
			continue;
		if (*half_at(f, page, half) != e->live)
			fail("a program reads %llx of file %u page %u, which it has not stored last",
			     (unsigned long long)*half_at(f, page, half), file, page);
		stored[file][page] = true;
		e->live = new_word(file, page, half);
		*half_at(f, page, half) = e->live;
		script_did[STORED]++;
		if (one_in(3))
			yield();
	}
}

static void behind_the_end(u32 file, u32 segment, u32 page)
{
	struct fby_pages pages = { { 0 } };

	fby_pages_set(&pages, page % FRAME_PAGES, 1);
	if (one_in(2)) {
		grow_to[file] = (u64)page * FBY_PAGE + FBY_PAGE / 2 * (1 + below(2));
		return;
	}
	if (fby_frame_sync(&view[file][segment], &pages) != FBY_ORIGIN)
		fail("a page behind the end was synced");
	script_did[REFUSED]++;
}

/* The pages are few, so that programs and the server meet. */
static u32 some_page(u32 file, u32 segment)
{
	u64 end = fby_round_up(now.file[file].size, FBY_PAGE) / FBY_PAGE;

	if (one_in(8) && end / FRAME_PAGES == segment)
		return (u32)end;
	return segment * FRAME_PAGES + (one_in(3) ? 15 + below(3) : below(3));
}

static void act(u32 file, u32 segment)
{
	u32 page = some_page(file, segment);
	struct fby_pages pages = { { 0 } };

	if (page % FRAME_PAGES >= view[file][segment].limit) {
		behind_the_end(file, segment, page);
		return;
	}
	if (one_in(2)) {
		store(file, page);
		return;
	}
	fby_pages_set(&pages, page % FRAME_PAGES, 1);
	if (one_in(3))
		fby_pages_set(&pages, 0, 1);
	if (pages.bit[0] >> view[file][segment].limit && view[file][segment].limit < 64)
		return;
	if (sync_pages(file, segment, &pages) != FBY_DONE)
		fail("a sync was refused");
	script_did[SYNCED]++;
}

/* Syncs without the server's knowledge: the frame may be given up before or meanwhile, and belong
 * to another file. */
static void late_sync(u32 file, u32 segment)
{
	u32 page = below(3), in = segment * FRAME_PAGES + page;
	struct expected *e = now.file[file].half[in];
	bool there = frame_of[file][segment] != NONE;
	struct fby_frame f = view[file][segment];
	struct fby_pages pages = { { 1ull << page } };
	u64 seen[HALVES] = { moment_of(&e[0]), moment_of(&e[1]) };
	int rc;

	if (!f.words || page >= f.limit || cutting[file] || alone[file])
		return;
	late[file]++;
	rc = fby_frame_sync(&f, &pages);
	late[file]--;
	script_did[LATE]++;
	script_did[GIVEN_UP] += rc < 0;
	if (rc != FBY_DONE && rc != -FBY_E_NO_MAP && rc != -FBY_E_MAP_DAMAGED)
		fail("a sync by an old view ended with %d", rc);
	if (rc == FBY_DONE && !there)
		fail("a sync of a frame that was given up was acknowledged");
	for (u32 half = 0; half < HALVES && rc == FBY_DONE; half++)
		if (seen[half] > e[half].least)
			e[half].least = seen[half];
}

static void program(void)
{
	for (;;) {
		u32 file = below(4) == 0, segment = below(4) == 0;

		if (now.file[file].known && one_in(8))
			late_sync(file, segment);
		if (!now.file[file].known || closing[file][segment] || cutting[file]) {
			yield();
			continue;
		}
		if (frame_of[file][segment] == NONE) {
			wanted[file][segment] = true;
			yield();
			continue;
		}
		users[file][segment]++;
		act(file, segment);
		users[file][segment]--;
		yield();
	}
}

/* --- the server ------------------------------------------------------------------------------------ */

static void look_again(u32 file)
{
	for (u32 segment = 0; segment < SEGMENTS; segment++)
		if (frame_of[file][segment] != NONE)
			fby_map_frame(now.pool, 0, frame_of[file][segment], &view[file][segment]);
}

static void bring_in(u32 file, u32 segment)
{
	struct disk_file *d = &now.disk[file];
	struct fby_frame f;
	u32 frame;

	if (fby_map_take(now.pool, 0, record_of[file], segment, &frame) || fby_map_frame(now.pool, 0, frame, &f)) {
		fail("no frame can be had");
		return;
	}
	for (u32 i = 0; i < FRAME_PAGES; i++) {
		for (u32 half = 0; half < HALVES; half++) {
			u32 page = segment * FRAME_PAGES + i;

			*half_at(&f, page, half) = d->visible.page[page][half];
			if (d->visible.page[page][half] != now.file[file].half[page][half].live)
				fail("file %u page %u is %llx when it is brought in, not %llx", file, page,
				     (unsigned long long)d->visible.page[page][half],
				     (unsigned long long)now.file[file].half[page][half].live);
		}
		if (one_in(40))
			yield();
	}
	if (fby_map_show(now.pool, 0, frame) || fby_map_frame(now.pool, 0, frame, &f))
		fail("a frame cannot be shown");
	frame_of[file][segment] = frame;
	view[file][segment] = f;
	wanted[file][segment] = false;
	script_did[SHOWN]++;
}

static void write_back(u32 file, u32 segment, bool all)
{
	struct fby_frame f = view[file][segment];
	struct fby_pages pages = { { 0 } };
	u64 before[FRAME_PAGES][HALVES];

	if (all)
		memset(&pages, 0xff, sizeof(pages));
	else
		fby_pages_set(&pages, below(3), 1 + below(18));
	for (u32 page = 0; page < FRAME_PAGES; page++)
		for (u32 half = 0; half < HALVES; half++)
			before[page][half] = *half_at(&f, page, half);
	for (u32 i = 0; i < 12 && HOST_BUG(COPIED_BEFORE_BEGIN); i++)
		yield();
	if (!fby_frame_write_begin(&f, &pages))
		return;
	yield();
	for (u32 i = 0; i < FRAME_PAGES; i++) {
		u64 word[HALVES];

		if (!fby_pages_has(&pages, i))
			continue;
		word[0] = *half_at(&f, i, 0);
		if (one_in(4))
			yield();
		word[1] = *half_at(&f, i, 1);
		if (HOST_BUG(COPIED_BEFORE_BEGIN))
			memcpy(word, before[i], sizeof(word));
		disk_write(&now.disk[file], segment * FRAME_PAGES + i, word);
		if (one_in(3))
			yield();
	}
	yield();
	if (!HOST_BUG(END_BEFORE_FSYNC))
		disk_fsync(&now.disk[file]);
	yield();
	script_did[STAYED] += fby_frame_write_end(&f, &pages) > 0;
	yield();
	disk_fsync(&now.disk[file]);
	script_did[WRITTEN]++;
}

static void try_to_drop(u32 file, u32 segment)
{
	struct fby_pages dirty, unknown;

	if (fby_frame_dirty(&view[file][segment], &dirty, &unknown) &&
	    fby_map_drop(now.pool, 0, frame_of[file][segment], false) != -FBY_E_MAP_DIRTY)
		fail("a frame was dropped that has dirty pages");
}

static void reclaim(u32 file, u32 segment)
{
	struct fby_pages pages = { { 0 } }, dirty, unknown;
	bool any = false;
	int rc;

	closing[file][segment] = true;
	while (users[file][segment])
		yield();
	for (u32 i = 0; i < view[file][segment].limit; i++) {
		if (stored[file][segment * FRAME_PAGES + i]) {
			fby_pages_set(&pages, i, 1);
			any = true;
		}
	}
	if (any && !HOST_BUG(UNSYNCED_DROPPED) && sync_pages(file, segment, &pages))
		fail("what is out of sync cannot be synced");
	if (one_in(2))
		try_to_drop(file, segment);
	do {
		while (!wrong[0] && fby_frame_dirty(&view[file][segment], &dirty, &unknown))
			write_back(file, segment, true);
		rc = fby_map_drop(now.pool, 0, frame_of[file][segment], false);
	} while (rc == -FBY_E_MAP_DIRTY && !wrong[0] && fby_frame_dirty(&view[file][segment], &dirty, &unknown));
	if (rc)
		fail("a frame that was written back cannot be dropped");
	frame_of[file][segment] = NONE;
	closing[file][segment] = false;
	script_did[DROPPED]++;
}

static void promise(u32 file, u64 size)
{
	struct model_file *f = &now.file[file];
	struct disk_file *d = &now.disk[file];
	u64 step = 4 * FBY_PAGE, pages = fby_round_up(size, step) / FBY_PAGE;

	if (d->durable.blocks < pages) {
		disk_allot(d, pages);
		yield();
		if (!HOST_BUG(PROMISED_UNALLOTTED))
			disk_fsync(d);
	}
	if (size > f->ahead) {
		f->ahead = fby_round_up(size, step);
		if (fby_map_file_grows(now.pool, 0, record_of[file], f->ahead))
			fail("a file cannot grow ahead");
	}
	disk_resize(d, size);
	yield();
	f->growing = size;
	if (fby_map_file_promise(now.pool, 0, record_of[file], size))
		fail("a size cannot be promised");
	script_did[PROMISED]++;
}

/* Gives the file its promised size. */
static void settle_size(u32 file)
{
	struct model_file *f = &now.file[file];

	if (!f->ahead)
		return;
	yield();
	if (!HOST_BUG(SETTLED_BEFORE_FSYNC))
		disk_fsync(&now.disk[file]);
	if (fby_map_file_size(now.pool, 0, record_of[file], f->size))
		fail("a promised size cannot be settled");
	f->ahead = 0;
}

static void grow(u32 file, u64 size)
{
	struct model_file *f = &now.file[file];

	grow_to[file] = 0;
	if (size <= f->size || size > (u64)FILE_PAGES * FBY_PAGE)
		return;
	if (one_in(3)) {
		f->growing = size;
		disk_allot(&now.disk[file], fby_round_up(size, FBY_PAGE) / FBY_PAGE);
		disk_resize(&now.disk[file], size);
		yield();
		if (!HOST_BUG(SIZE_BEFORE_FSYNC))
			disk_fsync(&now.disk[file]);
		if (fby_map_file_size(now.pool, 0, record_of[file], size))
			fail("a file cannot grow");
		f->ahead = 0;
	} else {
		promise(file, size);
	}
	f->size = size;
	f->growing = 0;
	look_again(file);
	script_did[GROWN]++;
}

static void zero_behind(u32 file)
{
	for (u32 page = 0; page < FILE_PAGES; page++) {
		for (u32 half = 0; half < HALVES; half++) {
			struct expected *e = &now.file[file].half[page][half];

			if (in_file(file, page, half))
				continue;
			e->live = 0;
			e->zeroed = e->least = ++moment;
			stored[file][page] = stored[file][page] && in_file(file, page, 0);
		}
	}
}

static void cut(u32 file)
{
	struct model_file *f = &now.file[file];
	u64 size = (u64)below(FILE_PAGES) * FBY_PAGE / (1 + 31 * below(2)) + FBY_PAGE / 2 * below(2);

	size = fby_round_up(size, FBY_PAGE / 2);
	if (size >= f->size)
		return;
	cutting[file] = true;
	while (users[file][0] || users[file][1] || late[file])
		yield();
	f->cut = size;
	if (HOST_BUG(TRUNCATED_FIRST)) {
		disk_resize(&now.disk[file], size);
		disk_fsync(&now.disk[file]);
		yield();
	}
	if (fby_map_file_cut(now.pool, 0, record_of[file], size))
		fail("a file cannot be cut");
	yield();
	disk_resize(&now.disk[file], size);
	yield();
	disk_fsync(&now.disk[file]);
	for (u32 page = 0; page < FILE_PAGES; page++)
		if (frame_of[file][page / FRAME_PAGES] != NONE && (u64)page * FBY_PAGE >= size)
			*half_at(&view[file][page / FRAME_PAGES], page, 0) =
				*half_at(&view[file][page / FRAME_PAGES], page, 1) = 0;
	yield();
	if (fby_map_file_cut_end(now.pool, 0, record_of[file]))
		fail("a cut cannot be ended");
	f->size = size;
	f->ahead = 0;
	f->cut = ~0ull;
	zero_behind(file);
	look_again(file);
	cutting[file] = false;
	script_did[CUT]++;
}

/* Does write(2) and fsync of a segment that no frame has. */
static void write_past(u32 file, u32 segment)
{
	u32 page = segment * FRAME_PAGES + below(3);
	struct expected *e = now.file[file].half[page];
	u64 word[HALVES];

	if (!in_file(file, page, 1))
		return;
	for (u32 half = 0; half < HALVES; half++)
		e[half].live = word[half] = new_word(file, page, half);
	disk_write(&now.disk[file], page, word);
	yield();
	disk_fsync(&now.disk[file]);
	e[0].least = word[0] >> 16;
	e[1].least = word[1] >> 16;
	script_did[PAST]++;
}

/* Does write(2) and fsync of clean pages in a frame: writes to the file, and to memory without a
 * sync. */
static void write_through(u32 file, u32 segment)
{
	struct fby_frame f = view[file][segment];
	struct fby_pages dirty, unknown;

	closing[file][segment] = alone[file] = true;
	while (users[file][segment] || late[file])
		yield();
	fby_frame_dirty(&f, &dirty, &unknown);
	for (u32 i = 0; i < 3; i++) {
		u32 page = segment * FRAME_PAGES + i;
		struct expected *e = now.file[file].half[page];
		u64 word[HALVES];

		if (stored[file][page] || !in_file(file, page, 1))
			continue;
		if (fby_pages_has(&dirty, i) && !HOST_BUG(WRITTEN_PAST_DIRTY))
			continue;
		for (u32 half = 0; half < HALVES; half++)
			e[half].live = word[half] = *half_at(&f, i, half) = new_word(file, page, half);
		disk_write(&now.disk[file], page, word);
		yield();
		disk_fsync(&now.disk[file]);
		e[0].least = word[0] >> 16;
		e[1].least = word[1] >> 16;
		script_did[THROUGH]++;
	}
	closing[file][segment] = alone[file] = false;
}

static void add_file(u32 file)
{
	struct fby_map_file f = { .size = now.file[file].size, .identity_bytes = 2, .identity = "id",
				  .path = { '/', (char)('a' + file) } };

	if (fby_map_file_add(now.pool, 0, &f, &record_of[file]))
		fail("a file cannot be added");
	now.file[file].known = true;
}

static void remove_file(u32 file)
{
	bool mapped = frame_of[file][0] != NONE || frame_of[file][1] != NONE;
	int rc;

	if (mapped && fby_map_file_remove(now.pool, 0, record_of[file]) != -FBY_E_BUSY)
		fail("a file was removed that has frames");
	for (u32 segment = 0; mapped && now.file[file].ahead && segment < SEGMENTS; segment++)
		if (frame_of[file][segment] != NONE)
			reclaim(file, segment);
	if (frame_of[file][0] != NONE || frame_of[file][1] != NONE)
		return;
	if (users[file][0] || users[file][1])
		return;
	if (!HOST_BUG(REMOVED_PROMISED))
		settle_size(file);
	now.file[file].known = false;
	now.file[file].ahead = 0;
	rc = fby_map_file_remove(now.pool, 0, record_of[file]);
	if (rc)
		fail("a file cannot be removed: %s", fby_error_message(rc));
	script_did[REMOVED]++;
}

static void look(void)
{
	char text[200];

	if (fby_check(now.pool, true, text, sizeof(text)))
		fail("check beside programs: %s", text);
	script_did[CHECKED]++;
}

static void serve(u32 file, u32 segment)
{
	bool mapped = frame_of[file][segment] != NONE;

	if (wanted[file][segment] && !mapped)
		bring_in(file, segment);
	else if (grow_to[file])
		grow(file, grow_to[file]);
	else if (mapped && one_in(3))
		reclaim(file, segment);
	else if (mapped)
		write_back(file, segment, one_in(2));
	else if (one_in(2))
		write_past(file, segment);
	if (frame_of[file][segment] != NONE && one_in(4))
		write_through(file, segment);
	if (one_in(9))
		settle_size(file);
	if (one_in(9))
		cut(file);
	if (one_in(9))
		remove_file(file);
	if (one_in(20))
		look();
}

static void server(void)
{
	for (;;) {
		u32 file = below(3) == 0, segment = below(4) == 0;

		if (!now.file[file].known)
			add_file(file);
		else
			serve(file, segment);
		yield();
	}
}

/* --- all of it ----------------------------------------------------------------------------------------- */

static void begin_files(void)
{
	for (u32 file = 0; file < NFILES; file++) {
		struct model_file *f = &now.file[file];
		struct disk_file *d = &now.disk[file];

		memset(f, 0, sizeof(*f));
		d->nops = 0;
		f->cut = ~0ull;
		f->size = FBY_PAGE / 2 * (20 + below(2 * FILE_PAGES - 20));
		memset(&d->visible, 0, sizeof(d->visible));
		d->visible.size = f->size;
		d->visible.blocks = fby_round_up(f->size, FBY_PAGE) / FBY_PAGE;
		for (u32 page = 0; page < FILE_PAGES; page++)
			for (u32 half = 0; half < HALVES; half++)
				if (in_file(file, page, half))
					f->half[page][half].live = d->visible.page[page][half] =
						new_word(file, page, half);
		for (u32 page = 0; page < FILE_PAGES; page++)
			for (u32 half = 0; half < HALVES; half++)
				f->half[page][half].least = moment_of(&f->half[page][half]);
		disk_fsync(d);
		for (u32 segment = 0; segment < SEGMENTS; segment++)
			frame_of[file][segment] = NONE;
	}
	memset(users, 0, sizeof(users));
	memset(closing, 0, sizeof(closing));
	memset(wanted, 0, sizeof(wanted));
	memset(cutting, 0, sizeof(cutting));
	memset(view, 0, sizeof(view));
	memset(late, 0, sizeof(late));
	memset(alone, 0, sizeof(alone));
	memset(grow_to, 0, sizeof(grow_to));
	memset(stored, 0, sizeof(stored));
}

void script_run(u64 seed, u32 steps)
{
	void (*const runs[ACTORS])(void) = { program, program, server };

	random_state = seed << 20;
	moment = 1;
	begin_files();
	if (world_open(&now))
		fail("the pool cannot be opened");
	explore_begin();
	for (u32 i = 0; i < ACTORS; i++) {
		if (!stack[i])
			stack[i] = malloc(STACK);
		getcontext(&turn[i]);
		turn[i].uc_stack.ss_sp = stack[i];
		turn[i].uc_stack.ss_size = STACK;
		turn[i].uc_link = NULL;
		makecontext(&turn[i], runs[i], 0);
	}
	now.medium.event = at_event;
	for (steps_left = steps; steps_left > 0 && !wrong[0]; steps_left--) {
		now.medium.actor = below(ACTORS);
		swapcontext(&scheduler, &turn[now.medium.actor]);
	}
	now.medium.event = NULL;
	now.medium.actor = 0;
	if (!wrong[0])
		explore_cut();
}
