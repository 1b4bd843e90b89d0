/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * frame.h - frames: memory of the pool that programs have mapped, and the files that it belongs
 * to.  core/api/map.h is the hosts' interface; docs/design/map.md has the protocols.
 */
#ifndef FBY_FRAME_H
#define FBY_FRAME_H

#include "api/map.h"
#include "format/store.h"

struct fby_map_frame {
	u64 epoch; /* of the newest line */
	u64 segment; /* if in use, or taken */
	u32 file; /* if in use, or taken */
	u32 next; /* next of the free list, or of a used list that a check builds; FBY_NO_FRAME: the last */
	u8 state; /* enum fby_frame_state */
	bool stray; /* its file is unknown */
};

enum fby_file_state { FBY_FILE_FREE = 0, FBY_FILE_USED, FBY_FILE_DAMAGED };

struct fby_map_known {
	u64 epoch, size;
	u32 frames; /* that refer to it */
	u8 state; /* enum fby_file_state */
	bool cut;
};

#define FBY_NO_FRAME (~0u)

/* A map; all fields except the first group belong to an attachment. */
struct fby_map {
	u64 at, bytes, descriptors, frames; /* offsets of the share, and in the media */
	u32 nframes, nfiles, frame_bytes, frame_pages, seed;
	bool sound; /* the share lies within the pool */

	bool attached;
	const struct fby_frame_port *port;
	void *host;
	struct fby_map_frame *frame;
	struct fby_map_known *file;
	struct fby_map_file_record *record, *copy; /* room for two */
	u32 free_first, nfree, nused;
	u32 ndamaged; /* frames */
	u32 files, damaged_files;
};

/* The layer's view of the pool. */
struct fby_maps {
	struct fby_store *store;
	struct fby_map *map; /* by owner; NULL: the pool has no room for maps */
	bool read_only;
};

/* --- words.c --------------------------------------------------------------------------- */
u32 fby_frame_seed(u32 map_seed, u32 frame, u64 epoch);
u64 fby_frame_word(u32 seed, u32 i, u32 bits);
bool fby_frame_word_ok(u32 seed, u32 i, u64 word);
/* Clears the dirty bits of pages from there on, durably. */
void fby_frame_forget(const struct fby_frame *f, u32 from);
/* Gives the frame up: every later sync is refused, whoever calls it.  unknown: words that are
 * damaged, or cannot be read.  False: a page is dirty, and nothing has changed; with discard it
 * never returns that. */
bool fby_frame_close(const struct fby_frame *f, const struct fby_pages *unknown, bool discard);

/* --- map_share.c: where it lies --------------------------------------------------------- */
u32 fby_map_frames(u64 bytes, u32 nfiles, u32 frame_bytes); /* frames in a share of this size */
/* Computes the places from the record. */
void fby_map_locate(const struct fby_maps *p, struct fby_map *m, const struct fby_map_record *r);
void fby_map_format(const struct fby_maps *p, const struct fby_map *m);
u64 fby_map_memory(const struct fby_map *m);
void fby_map_lay_out(struct fby_map *m, void *mem);

/* --- descriptors.c: identity lines ---------------------------------------------------------- */
struct fby_map_seen {
	struct fby_map_line line; /* the newest line, if there is any */
	bool any; /* false: the frame is damaged */
	bool hidden; /* a newer line, with dirty pages, existed and is lost: the frame is damaged, too */
	u8 bad; /* copies of the newest that are damaged */
};
void fby_descriptor_look(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_map_seen *out);
/* Writes both copies of l; durable.  An odd epoch means in use. */
void fby_descriptor_write(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_map_line *l);
/* Makes all words of the epoch clean; durable. */
void fby_descriptor_clean(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch);
/* For a frame in use: the dirty pages according to the media, and those that cannot be
 * determined. */
void fby_descriptor_pages(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch,
			  struct fby_pages *dirty, struct fby_pages *unknown);
/* Counts them. */
u32 fby_descriptor_dirty(const struct fby_maps *p, const struct fby_map *m, u32 frame, u64 epoch, u32 *unknown);

/* --- map_files.c: file records ------------------------------------------------------------- */
/* Reads the newest copy into m->record; false: neither is sound.  *repaired: one was not. */
bool fby_file_read(const struct fby_maps *p, struct fby_map *m, u32 file, bool *repaired);
/* Increments the counter of m->record and writes both copies; durable. */
void fby_file_write(const struct fby_maps *p, struct fby_map *m, u32 file);

/* --- the rest of these: as the calls of api/map.h that are named like them; map_files.c ------ */
int fby_files_add(const struct fby_maps *p, struct fby_map *m, const struct fby_map_file *f, u32 *file);
int fby_files_info(const struct fby_maps *p, struct fby_map *m, u32 file, struct fby_map_file *out);
int fby_files_size(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size);
int fby_files_grows(const struct fby_maps *p, struct fby_map *m, u32 file, u64 ahead);
int fby_files_promise(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size);
int fby_files_path(const struct fby_maps *p, struct fby_map *m, u32 file, const char *path);
int fby_files_identity(const struct fby_maps *p, struct fby_map *m, u32 file, const void *identity, u16 bytes);
int fby_files_cut(const struct fby_maps *p, struct fby_map *m, u32 file, u64 size);
int fby_files_cut_end(const struct fby_maps *p, struct fby_map *m, u32 file);
int fby_files_remove(const struct fby_maps *p, struct fby_map *m, u32 file);

/* --- frames.c ---------------------------------------------------------------------------------- */
int fby_frames_take(struct fby_map *m, u32 file, u64 segment, u32 *frame);
int fby_frames_show(const struct fby_maps *p, struct fby_map *m, u32 frame);
int fby_frames_drop(const struct fby_maps *p, struct fby_map *m, u32 frame, bool discard);
int fby_frames_get(const struct fby_maps *p, const struct fby_map *m, u32 frame, struct fby_frame *out);
/* Finds all descriptors and records when an attachment begins. */
void fby_frames_find(const struct fby_maps *p, struct fby_map *m, struct fby_map_report *r);

static inline u64 fby_descriptor_at(const struct fby_map *m, u32 frame)
{
	return m->descriptors + (u64)frame * FBY_PAGE;
}

static inline u64 fby_frame_at(const struct fby_map *m, u32 frame)
{
	return m->frames + (u64)frame * m->frame_bytes;
}

#endif
