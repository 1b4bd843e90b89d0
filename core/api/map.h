/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * map.h - the hosts' interface to maps: files mapped onto memory of the pool.  A map has a share
 * of the pool with frames of 2 MiB, each of which holds one segment of a file.  Programs load
 * from and store to the frames.  A sync makes their stores durable in the frame; the host writes
 * dirty pages back to the file later.  docs/design/map.md has the protocols.
 *
 *	bring in	fby_map_take, the host fills the memory from the file, fby_map_show
 *	sync		fby_frame_sync: durable when it returns
 *	write back	fby_frame_write_begin, the host copies the pages out AFTER that,
 *			writes and fsyncs the file, fby_frame_write_end
 *	reclaim		nobody can store to the frame any more; what is out of sync is
 *			synced, what is dirty written back; fby_map_drop
 *	grow		the host makes size and blocks durable in the file system, then
 *			fby_map_file_size; before that a sync of these pages answers ORIGIN
 *	grow, promised	the host makes blocks durable in the file system, and tells how long it
 *			may make the file: fby_map_file_grows; it extends the file, and
 *			fby_map_file_promise: durable though the file may not be so long yet.
 *			Once it is, and that is durable, fby_map_file_size
 *	truncate	nobody can store behind the new end any more; fby_map_file_cut, the
 *			host truncates and fsyncs the file, fby_map_file_cut_end
 *	recover		fby_map_attach; for each file that has CUT: truncate to its size,
 *			fsync, fby_map_file_cut_end; that GROWS: give it its size, fsync,
 *			fby_map_file_size; then for each frame in use: write back
 *			as above, up to the file's size, and fby_map_drop
 *
 * Threads: fby_frame_* in any number of threads and processes that have the memory; one write
 * back of a frame at a time.  All others exclude each other and the volume calls, by the mutex
 * that the host holds around those (forebay.h).
 *
 * Errors that any call may return: -FBY_E_NO_MAP (no such map, frame or file),
 * -FBY_E_MAP_DAMAGED, and of those that write -FBY_E_READ_ONLY.
 */
#ifndef FOREBAY_MAP_H
#define FOREBAY_MAP_H

#include "api/forebay.h"
#include "format/map_format.h"

/* --- frames: for processes that have their memory; no pool is needed ------------- */

/* How a process makes stores to its memory durable.  flush: begins to write [p, p + n) back;
 * fence: everything that this thread flushed is durable.  If caches are in the power-fail domain,
 * flush does nothing. */
struct fby_frame_port {
	void (*flush)(void *host, const void *p, size_t n);
	void (*fence)(void *host);
};

/* One bit for each page of a frame; the first page is the lowest bit of the first word. */
struct fby_pages {
	u64 bit[FBY_FRAME_MAX / FBY_PAGE / 64];
};

/* A frame in use, as a process sees it.  It may be copied, and sent to a process that has the
 * memory at another address, which then sets words, memory, port and host. */
struct fby_frame {
	u64 *words; /* of its descriptor */
	u8 *memory; /* its pages */
	const struct fby_frame_port *port;
	void *host; /* argument for port */
	u32 npages;
	u32 limit; /* pages that the file has; later ones cannot be synced */
	u32 seed;
};

/*
 * Makes all stores to the pages durable, whoever made them before the call.  ORIGIN: a page is
 * past the limit, nothing was done.  -FBY_E_MAP_DAMAGED: a word is damaged, or of another use of
 * the frame, and its pages may not be durable; the others are.  -FBY_E_NO_MAP: the frame was
 * dropped, nothing is promised.  The call takes two fences, however many pages there are.
 */
int fby_frame_sync(const struct fby_frame *f, const struct fby_pages *pages);
/* Reports which pages are dirty; returns how many.  unknown: pages whose words are damaged. */
u32 fby_frame_dirty(const struct fby_frame *f, struct fby_pages *dirty, struct fby_pages *unknown);
/* Leaves in pages those to be written to the file: dirty ones, within the limit.  The host copies
 * them only after this call.  Returns how many. */
u32 fby_frame_write_begin(const struct fby_frame *f, struct fby_pages *pages);
/* Ends a write back: the pages of write_begin are in the file, which was fsynced.  The call
 * leaves in pages those that stay dirty because they were synced meanwhile.  The result is
 * durable. */
u32 fby_frame_write_end(const struct fby_frame *f, struct fby_pages *pages);

/* --- maps of a pool ------------------------------------------------------------------ */

struct fby_map_spec {
	char name[FBY_NAME_MAX + 1];
	u8 uuid[16]; /* random */
	u64 bytes; /* its share, a multiple of 2 MiB */
	u32 frame_bytes; /* most files that the map can have; 0: derived from its size */
	u32 nfiles; /* that it can have; 0: as its size suggests */
};

struct fby_map_info {
	struct fby_map_spec spec;
	bool damaged; /* the record is, or the place of the share */
	bool attached;
	u32 nframes;
	/* attached: */
	u32 free, used; /* frames; the rest is damaged */
	u32 damaged_frames;
	u32 files, damaged_files;
};

/* A new map.  -FBY_E_MAP_FULL: the pool has no such room left.  -FBY_E_NAME,
 * -FBY_E_VOLUME_EXISTS, -FBY_E_VOLUME_TABLE_FULL, -FBY_E_VOLUME_DAMAGED,
 * -FBY_E_GEOMETRY as of volumes and logs. */
int fby_map_add(struct fby_pool *p, const struct fby_map_spec *s, u16 *map);
/* -FBY_E_VOLUME_BUSY while it is attached; without discard -FBY_E_MAP_DIRTY if a file lacks data,
 * or might. */
int fby_map_remove(struct fby_pool *p, u16 map, bool discard);
int fby_map_find(struct fby_pool *p, const char *name, u16 *map);
int fby_map_info(struct fby_pool *p, u16 map, struct fby_map_info *out);

/* Memory that attach needs. */
u64 fby_map_bytes(struct fby_pool *p, u16 map);

struct fby_map_attach {
	void *mem; /* fby_map_bytes of zeroed memory, 64-byte aligned; the host's, until detach */
	u64 mem_bytes;
	const struct fby_frame_port *port; /* of the process that has the pool */
	void *host;
};

/* The result of an attach.  Everything that it names stays as it is until the host acts on it. */
struct fby_map_report {
	u32 frames; /* in use: with pages that their files lack, or may lack */
	u64 dirty; /* pages */
	u64 unknown; /* pages of frames in use that may or may not be dirty */
	u32 cut; /* files whose truncation must be completed */
	u32 damaged_frames; /* frames whose owner is unknown, or that may or may not be dirty */
	u32 damaged_files; /* records */
	u32 stray; /* frames whose file is unknown */
	u32 repaired; /* damaged copies that were repaired */
};

/* Reads all descriptors and file records.  Frames in use without a dirty page become free: their
 * content may never have been made durable.  No process may have a frame of this map in its
 * memory.  -FBY_E_MAP_MEDIA: the media is not memory. */
int fby_map_attach(struct fby_pool *p, u16 map, const struct fby_map_attach *a, struct fby_map_report *report);
int fby_map_detach(struct fby_pool *p, u16 map);

/* --- files ----------------------------------------------------------------------------- */

struct fby_map_file {
	/* The file's blocks are durable in the file system, and so is the size.  A file that
	 * grows is at least `made` long, durable, and its host makes it no longer than `ahead`. */
	u64 size, made, ahead;
	u16 identity_bytes;
	bool used, damaged;
	bool cut; /* a truncation to size is under way */
	bool grows;
	u32 frames; /* that refer to it */
	u8 identity[FBY_MAP_IDENTITY_MAX];
	char path[FBY_MAP_PATH_MAX + 1];
};

/* Durable when it returns; only size, identity and path are used.  -FBY_E_NAME: the path or the
 * identity is too long.  -FBY_E_MAP_FULL: no record is free. */
int fby_map_file_add(struct fby_pool *p, u16 map, const struct fby_map_file *f, u32 *file);
int fby_map_file_info(struct fby_pool *p, u16 map, u32 file, struct fby_map_file *out);
/* Records that the file has this size, durable in its file system.  The record is durable when
 * the call returns, and no promise is left.  Frames have a new limit: fby_map_frame.
 * -FBY_E_RANGE: the size is smaller.  -FBY_E_BUSY: the file is being truncated. */
int fby_map_file_size(struct fby_pool *p, u16 map, u32 file, u64 size);
/* Allows the host to extend the file to this size with zeroes, before the size is promised or
 * durable.  Whatever recovery finds past the recorded size is then the host's own extension, if
 * it is no longer than this and zero.  -FBY_E_BUSY as above; -FBY_E_RANGE: less than the file's
 * size.  ORIGIN: the pool's version has no promises: use fby_map_file_size. */
int fby_map_file_grows(struct fby_pool *p, u16 map, u32 file, u64 ahead);
/* Sets the size, even if the file in its file system is still shorter; the file system has the
 * blocks, durable.  The size is durable when the call returns.  Errors as for fby_map_file_grows;
 * -FBY_E_RANGE: not between the file's size and that of fby_map_file_grows. */
int fby_map_file_promise(struct fby_pool *p, u16 map, u32 file, u64 size);
int fby_map_file_path(struct fby_pool *p, u16 map, u32 file, const char *path);
/* Replaces the identity by which the host knows the file; at most FBY_MAP_IDENTITY_MAX bytes,
 * durable. */
int fby_map_file_identity(struct fby_pool *p, u16 map, u32 file, const void *identity, u16 bytes);
/* The truncation counts from the first call on, whatever happens.  The second call clears dirty
 * bits past the new end and zeroes the rest of its last page.  -FBY_E_LOST: the media cannot read
 * that page; the truncation is still under way. */
int fby_map_file_cut(struct fby_pool *p, u16 map, u32 file, u64 size);
int fby_map_file_cut_end(struct fby_pool *p, u16 map, u32 file);
/* -FBY_E_BUSY: a frame refers to it. */
int fby_map_file_remove(struct fby_pool *p, u16 map, u32 file);

/* --- frames, to who has the pool ---------------------------------------------------------- */

enum fby_frame_state {
	FBY_FRAME_FREE = 0,
	FBY_FRAME_TAKEN, /* being filled; the media does not list it */
	FBY_FRAME_USED,
	FBY_FRAME_FOUND, /* found in use by attach: only its dirty pages are sound */
	FBY_FRAME_DAMAGED, /* neither known to be free nor whose it is */
};

struct fby_frame_info {
	enum fby_frame_state state;
	u32 file;
	bool stray; /* its file is not known */
	u64 segment;
	u64 epoch;
	u64 at; /* offsets of memory and descriptor on the media */
	u64 descriptor_at;
};

/* Takes a free frame for a segment of the file.  The host makes sure that no other frame has that
 * segment.  -FBY_E_MAP_FULL: none is free. */
int fby_map_take(struct fby_pool *p, u16 map, u32 file, u64 segment, u32 *frame);
/* The host has filled the frame: from now on it is in use, durably. */
int fby_map_show(struct fby_pool *p, u16 map, u32 frame);
/* Describes a frame that is taken (only its memory, for the host to fill), in use, or found. */
int fby_map_frame(struct fby_pool *p, u16 map, u32 frame, struct fby_frame *out);
/* Frees the frame, durably; whoever still has it mapped can sync nothing to it any more.
 * -FBY_E_MAP_DIRTY: its file lacks a page, or might, perhaps because of a sync that just ended;
 * with discard the frame is freed all the same, unless its number is forged (-FBY_E_NUMBERS). */
int fby_map_drop(struct fby_pool *p, u16 map, u32 frame, bool discard);
int fby_map_frame_info(struct fby_pool *p, u16 map, u32 frame, struct fby_frame_info *out);
/* Reports, for a frame in use or found, the dirty pages as the media has them, and the unknown
 * ones, whose words are damaged or unreadable.  It is meant for recovery: a media error on bad
 * memory is an error here and not a fault. */
int fby_map_frame_dirty(struct fby_pool *p, u16 map, u32 frame, struct fby_pages *dirty, struct fby_pages *unknown);
/* Copies a page for the file; -FBY_E_LOST: the media reported an error. */
int fby_map_page_read(struct fby_pool *p, u16 map, u32 frame, u32 page, void *dst);

/* --- bitmaps ---------------------------------------------------------------------------- */

static inline void fby_pages_set(struct fby_pages *p, u32 first, u32 n)
{
	for (u32 i = first; i < first + n; i++)
		p->bit[i / 64] |= 1ull << (i % 64);
}

static inline bool fby_pages_has(const struct fby_pages *p, u32 page)
{
	return p->bit[page / 64] >> (page % 64) & 1;
}

#endif
