// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_world.c - file systems with a cache of which a power cut loses parts.  It also opens and
 * recovers a pool as a host does, and knows the data that may be read afterwards.
 */
#include <stdarg.h>

#include "map_test.h"

struct world now, other;
u64 moment = 1, random_state;
char wrong[300];
u32 host_bug;

void fail(const char *format, ...)
{
	va_list list;

	if (wrong[0])
		return;
	va_start(list, format);
	vsnprintf(wrong, sizeof(wrong), format, list);
	va_end(list);
}

/* --- disks ------------------------------------------------------------------------------ */

/* Returns a word as the end of a file of this size leaves it. */
static u64 kept(u64 size, u32 page, u32 half, u64 word)
{
	return (u64)page * FBY_PAGE + half_in_page(half) < size ? word : 0;
}

static u64 pages_of(u64 size)
{
	return fby_round_up(size, FBY_PAGE) / FBY_PAGE;
}

static void apply(struct content *c, const struct file_op *op)
{
	if (op->sized && op->size <= c->size && c->blocks > pages_of(op->size))
		c->blocks = pages_of(op->size);
	if (op->sized)
		c->size = op->size;
	if (op->allotted && c->blocks < op->size)
		c->blocks = op->size;
	if (!op->sized && !op->allotted && c->blocks <= op->page)
		c->blocks = op->page + 1u;
	for (u32 half = 0; half < HALVES; half++)
		if (!op->sized && !op->allotted)
			c->page[op->page][half] = kept(c->size, op->page, half, op->word[half]);
	for (u32 page = 0; op->sized && page < FILE_PAGES; page++)
		for (u32 half = 0; half < HALVES; half++)
			c->page[page][half] = kept(c->size, page, half, c->page[page][half]);
}

static void add_op(struct disk_file *d, const struct file_op *op)
{
	if (d->nops == PENDING_OPS)
		disk_fsync(d);
	d->op[d->nops++] = *op;
	apply(&d->visible, op);
}

void disk_write(struct disk_file *d, u32 page, const u64 word[HALVES])
{
	struct file_op op = { .page = page, .word = { word[0], word[1] } };

	add_op(d, &op);
}

void disk_resize(struct disk_file *d, u64 size)
{
	struct file_op op = { .sized = true, .size = size };

	add_op(d, &op);
}

void disk_allot(struct disk_file *d, u64 pages)
{
	struct file_op op = { .allotted = true, .size = pages };

	add_op(d, &op);
}

void disk_fsync(struct disk_file *d)
{
	d->durable = d->visible;
	d->nops = 0;
}

void disk_crash(struct disk_file *d, u64 pick)
{
	for (u32 i = 0; i < d->nops; i++)
		if (pick % 3 == 0 || (pick % 3 == 1 && (fby_mix(pick + i) & 1)))
			apply(&d->durable, &d->op[i]);
	d->visible = d->durable;
	d->nops = 0;
}

/* --- opening --------------------------------------------------------------------------------- */

static int open_pool(struct world *w)
{
	struct fby_options o = { .nslots = 1, .maps = true };
	struct fby_recovery_report report;
	struct fby_probe probe;
	u64 bytes;
	int rc;

	fby_probe(&w->medium.media, &probe);
	if (probe.error)
		return probe.error;
	bytes = fby_pool_bytes(&probe.sb, 1);
	if (!w->memory || w->memory_bytes != bytes) {
		free(w->memory);
		w->memory = aligned_alloc(FBY_PAGE, fby_round_up(bytes, FBY_PAGE));
		w->memory_bytes = bytes;
	}
	memset(w->memory, 0, bytes);
	rc = fby_pool_open(&w->pool, w->memory, bytes, &w->medium.media, &o);
	if (!rc)
		rc = fby_recover_chunks(w->pool, 0, w->pool->space.store.sb.nchunks);
	return rc ? rc : fby_recover_finish(w->pool, &report);
}

static int attach(struct world *w, struct fby_map_report *r)
{
	struct fby_map_attach a = { .port = &medium_port, .host = &w->medium, .mem_bytes = fby_map_bytes(w->pool, 0) };

	if (!w->attached || w->attached_bytes != a.mem_bytes) {
		free(w->attached);
		w->attached = aligned_alloc(FBY_PAGE, fby_round_up(a.mem_bytes + 1, FBY_PAGE));
		w->attached_bytes = a.mem_bytes;
	}
	memset(w->attached, 0, a.mem_bytes);
	a.mem = w->attached;
	return fby_map_attach(w->pool, 0, &a, r);
}

int world_open(struct world *w)
{
	struct fby_map_report r;
	int rc = open_pool(w);

	return rc ? rc : attach(w, &r);
}

bool world_opens(struct world *w)
{
	return open_pool(w) == FBY_DONE;
}

void world_make(struct world *w)
{
	struct fby_format f = { .uuid = { 5 }, .chunk_size = 65536, .nvolumes = 2, .map_bytes = FBY_MAP_UNIT };
	struct fby_map_spec s = { .name = "m", .uuid = { 6 }, .bytes = FBY_MAP_UNIT, .frame_bytes = FRAME_BYTES,
				  .nfiles = 2 };
	u16 map;

	medium_make(&w->medium, 2 * FBY_MAP_UNIT);
	if (fby_format(&w->medium.media, &f) || open_pool(w) || fby_map_add(w->pool, &s, &map))
		fail("a pool cannot be made");
	memcpy(w->medium.durable, w->medium.media.base, w->medium.media.size);
	memcpy(w->medium.latest, w->medium.media.base, w->medium.media.size);
	medium_power_off(&w->medium);
}

/* --- recovery ----------------------------------------------------------------------------------- */

static int model_of(const struct fby_map_file *f)
{
	return f->path[0] == '/' && f->path[1] >= 'a' && f->path[1] < 'a' + (int)NFILES ? f->path[1] - 'a' : -1;
}

static bool is_zero(const struct content *c, u64 from)
{
	for (u32 page = 0; page < FILE_PAGES; page++)
		for (u32 half = 0; half < HALVES; half++)
			if ((u64)page * FBY_PAGE + half_in_page(half) >= from && c->page[page][half])
				return false;
	return true;
}

/* Gives the file its promised size.  Data after that stays, unless it is the host's own: zeroes, no
 * further than announced. */
static void keep_promise(struct world *w, u32 record, struct disk_file *d, const struct fby_map_file *f)
{
	u64 size = d->visible.size;
	bool own = HOST_BUG(APPENDED_CUT) ||
		   (size <= f->ahead && (HOST_BUG(TAIL_NOT_READ) || is_zero(&d->visible, f->size)));

	if ((size < f->size && !HOST_BUG(PROMISE_IGNORED)) || (size > f->size && own && !HOST_BUG(TAIL_LEFT)))
		disk_resize(d, f->size);
	disk_fsync(d);
	fby_map_file_size(w->pool, 0, record, f->size);
}

static void end_cuts(struct world *w)
{
	struct fby_map_file f;

	for (u32 i = 0; i < w->pool->maps.map[0].nfiles; i++) {
		int of;

		if (fby_map_file_info(w->pool, 0, i, &f) || !f.used)
			continue;
		of = model_of(&f);
		if (of < 0) {
			fail("record %u is of no file that there is", i);
			continue;
		}
		if (w->disk[of].visible.size < f.made)
			fail("file %d is of %llu bytes, and was made of %llu", of,
			     (unsigned long long)w->disk[of].visible.size, (unsigned long long)f.made);
		if (f.grows && !f.cut)
			keep_promise(w, i, &w->disk[of], &f);
		if (!f.cut || HOST_BUG(CUT_NOT_ENDED))
			continue;
		disk_resize(&w->disk[of], f.size);
		disk_fsync(&w->disk[of]);
		fby_map_file_cut_end(w->pool, 0, i);
	}
}

static void bring_home(struct world *w, u32 frame, const struct fby_frame_info *info, bool damaged)
{
	struct fby_map_file file;
	struct fby_pages pages, dirty, unknown;
	struct fby_frame f;
	static _Alignas(64) u8 page[FBY_PAGE];
	int of;

	if (fby_map_frame(w->pool, 0, frame, &f) || fby_map_file_info(w->pool, 0, info->file, &file) ||
	    (of = model_of(&file)) < 0) {
		fail("frame %u is of no file", frame);
		return;
	}
	memset(&pages, 0xff, sizeof(pages));
	if (fby_frame_write_begin(&f, &pages) != fby_frame_dirty(&f, &dirty, &unknown) && !damaged)
		fail("frame %u has dirty pages behind the end of its file", frame);
	for (u32 i = 0; i < FRAME_PAGES; i++) {
		u32 in_file = (u32)info->segment * FRAME_PAGES + i;
		u64 word[HALVES];

		if (!fby_pages_has(&pages, i))
			continue;
		if (in_file >= FILE_PAGES || fby_map_page_read(w->pool, 0, frame, i, page)) {
			fail("a page of frame %u cannot be had", frame);
			continue;
		}
		for (u32 half = 0; half < HALVES; half++)
			memcpy(&word[half], page + half_in_page(half), 8);
		/* The record's size of the file limits the data. */
		word[0] = kept(file.size, in_file, 0, word[0]);
		word[1] = kept(file.size, in_file, 1, word[1]);
		if (in_file >= w->disk[of].visible.blocks)
			fail("there is no room on the disk for page %u of file %d", in_file, of);
		disk_write(&w->disk[of], in_file, word);
	}
	if (!HOST_BUG(FOUND_BEFORE_FSYNC))
		disk_fsync(&w->disk[of]);
	fby_frame_write_end(&f, &pages);
	disk_fsync(&w->disk[of]);
	if (fby_map_drop(w->pool, 0, frame, false) && !damaged)
		fail("frame %u cannot be dropped after its pages were written", frame);
}

/* Returns 1 if damage was reported, which is allowed if the media was spoilt. */
int world_recover(struct world *w, bool damaged)
{
	struct fby_map_report r;
	struct fby_frame_info info;
	char text[200];
	int rc = open_pool(w);
	bool told;

	if (!rc)
		rc = attach(w, &r);
	if (rc) {
		if (!damaged)
			fail("the pool cannot be opened: %s", fby_error_message(rc));
		return 1;
	}
	told = r.unknown || r.damaged_frames || r.damaged_files || r.stray;
	if (told && !damaged)
		fail("no damage, but %llu pages not known, %u frames, %u files, %u stray", (unsigned long long)r.unknown,
		     r.damaged_frames, r.damaged_files, r.stray);
	end_cuts(w);
	for (u32 i = 0; i < w->pool->maps.map[0].nframes; i++)
		if (!fby_map_frame_info(w->pool, 0, i, &info) && info.state == FBY_FRAME_FOUND && !info.stray)
			bring_home(w, i, &info, damaged);
	if (fby_check(w->pool, true, text, sizeof(text)))
		fail("check: %s", text);
	return told;
}

/* --- judgement --------------------------------------------------------------------------------- */

static void judge_half(const struct world *w, u32 file, u32 page, u32 half)
{
	const struct expected *e = &now.file[file].half[page][half];
	u64 word = w->disk[file].durable.page[page][half];

	if (word == 0 ? e->zeroed >= e->least :
	    (word & 0xffff) == (file << 12 | page << 4 | half << 1 | 1) && word >> 16 >= e->least &&
			    word >> 16 <= moment)
		return;
	fail("file %u page %u half %u is %llx; zeroed at %llu, nothing older than %llu may show", file, page, half,
	     (unsigned long long)word, (unsigned long long)e->zeroed, (unsigned long long)e->least);
}

void world_judge(const struct world *w)
{
	for (u32 i = 0; i < NFILES; i++) {
		const struct model_file *f = &now.file[i];
		u64 size = w->disk[i].durable.size;

		if (w->appended[i] ? size != w->appended[i]
				   : size != f->size && size != f->cut && !(f->growing && size == f->growing)) {
			fail("file %u is of %llu bytes, not %llu", i, (unsigned long long)size,
			     (unsigned long long)f->size);
			continue;
		}
		for (u32 page = 0; page < FILE_PAGES; page++)
			for (u32 half = 0; half < HALVES; half++)
				if ((u64)page * FBY_PAGE + half_in_page(half) < size)
					judge_half(w, i, page, half);
	}
}
