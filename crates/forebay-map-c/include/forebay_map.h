/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * forebay_map.h - files mapped onto the memory of a pool
 *
 * A program loads and stores in the mapping; a sync makes durable, in the pool, what was
 * stored, and the file follows later.  docs/manual/map-files.md has what is promised.
 *
 *	struct forebay_map_pool *pool;
 *	struct forebay_map_file *file;
 *
 *	if (forebay_map_pool_open("/dev/pmem0", NULL, NULL, &pool) ||
 *	    forebay_map_file_open(pool, "/srv/db/data", 1 << 30, &file))
 *		errx(1, "%s", forebay_map_error());
 *	memcpy((char *)forebay_map_address(file) + 4096, "hello", 5);
 *	if (forebay_map_sync(file, 4096, 5))
 *		errx(1, "%s", forebay_map_error());
 *	forebay_map_file_close(file);
 *	forebay_map_pool_close(pool);
 *
 * Link with `pkg-config --cflags --libs forebay-map`.
 *
 * Results.  Each call that returns int returns 0, or a FOREBAY_MAP_E_ code; then
 * forebay_map_error() says what is the matter, why, and what can be done.
 *
 * Units.  Offsets, lengths and sizes are bytes, offsets from the beginning of the file.
 *
 * Ranges.  FOREBAY_MAP_REST as a length means up to the end.  A range of length 0 is
 * nothing.  One that begins, or without FOREBAY_MAP_REST ends, behind the room of a file
 * is refused, as FOREBAY_MAP_E_ARGUMENT, and nothing is done.  No alignment is asked
 * for: what a call does with ranges that are not aligned is said there.
 *
 * Ownership.  Handles are the library's: they are given by an open and are gone after the
 * close of the same kind.  A handle that is closed, or was none, is refused, as
 * FOREBAY_MAP_E_HANDLE; its number is never used again.  Strings that are passed are
 * copied; strings that are returned are the library's.
 *
 * Threads.  Each call may be made by any thread at any time, also for the same file.  None
 * is to be made by a handler of a signal.
 *
 * Pools.  Where `forebay serve` has the pool, an open gets a share of it, beside other
 * processes, each with files of its own; where nobody has it, the process has it alone
 * until it closes it, and others are refused, as FOREBAY_MAP_E_BUSY.  The server is found by
 * its socket: both have the same FOREBAY_RUNTIME_DIR, or none, and the same user.  What a
 * process that ends has synced a server brings home at once.  If the server ends, a sync
 * that needs nothing of it goes on, and is durable; everything else says that it has ended,
 * as FOREBAY_MAP_E_POOL, also when there is a new one: close files and pool, and open again.
 *
 * Processes.  A file is mapped by one process at a time; another is refused, as
 * FOREBAY_MAP_E_LOCKED, and told which one has it.  The mapping is not there in children (a touch is SIGSEGV), and
 * each call of a child is refused, as FOREBAY_MAP_E_CHILD, but for forebay_map_error()
 * and forebay_map_error_name().  Loads and stores of a segment that cannot be brought in
 * are SIGBUS; the options have who is told why.
 *
 * A mistake of the library itself ends the program with a message (SIGABRT): nothing is
 * acknowledged then.
 */
#ifndef FOREBAY_MAP_H
#define FOREBAY_MAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A map of a pool that this process has open, or a share of, and a file that is mapped onto it. */
struct forebay_map_pool;
struct forebay_map_file;

/* As a length: up to the end. */
#define FOREBAY_MAP_REST UINT64_MAX

/* A page; what was stored is known, synced and written in pages. */
#define FOREBAY_MAP_PAGE 4096

/* A segment: what is brought in, locked and dropped. */
#define FOREBAY_MAP_SEGMENT (2 << 20)

enum forebay_map_code {
	FOREBAY_MAP_OK = 0,
	FOREBAY_MAP_E_ARGUMENT = 1, /* a null pointer, a range outside, a string not UTF-8 */
	FOREBAY_MAP_E_HANDLE = 2,   /* closed, or never opened */
	FOREBAY_MAP_E_CHILD = 3,    /* called in a child of the process that opened */
	FOREBAY_MAP_E_SYSTEM = 4,   /* a system call failed: forebay_map_errno() */
	FOREBAY_MAP_E_POOL = 5,     /* the pool cannot be had, or refuses; its server has ended */
	FOREBAY_MAP_E_FULL = 6,	    /* no frame could be made free */
	FOREBAY_MAP_E_LOCKED = 7,   /* another process has the file */
	FOREBAY_MAP_E_REFUSED = 8,  /* not with this file, or not with these numbers */
	FOREBAY_MAP_E_IN_USE = 9,   /* files are open, or another thread is in a call */
	FOREBAY_MAP_E_BUSY = 10,    /* another process has the pool, and does not serve it */
};

/*
 * How a map is opened.  Zeroes are the defaults: set struct_bytes to sizeof, the rest to
 * zero, and then what matters.  Later versions add members at the end; what struct_bytes
 * leaves out has its default.
 */
struct forebay_map_options {
	size_t struct_bytes;
	/* Milliseconds between two rounds of write-back; 0: 500. */
	uint32_t interval_ms;
	/* Dirty pages from which on a round begins at once; 0: 16384. */
	uint32_t most_dirty_pages;
	/* Segments that may be locked, of all files; 0: 64.  Never more than half of the pool's. */
	uint32_t most_locked_segments;
	/* FOREBAY_MAP_ flags, below. */
	uint32_t flags;
	/*
	 * auto, nt, clwb, eadr or msync; NULL: auto, what the media needs.  A server's own
	 * counts: one that has another than is named here is refused, as FOREBAY_MAP_E_POOL.
	 */
	const char *persist;
	/*
	 * Told of a segment that was touched and cannot be brought in: of which file, from
	 * which byte on, and why; whoever touched it gets SIGBUS afterwards.  NULL: nobody is
	 * told.  A thread of the library calls it: it may take no time, touch no mapping and
	 * call nothing of this header; the strings are good until it returns.
	 */
	void (*unreadable)(const char *path, uint64_t offset, const char *why);
};

/* Bring home first what a crash has left, as `forebay map recover` and each server do. */
#define FOREBAY_MAP_RECOVER 1u
/* Accept a persist method weaker than the media needs: what was synced may be lost. */
#define FOREBAY_MAP_ALLOW_WEAKER 2u

/* What the kernel can do for a file; what is missing makes syncs slower, never weaker. */
#define FOREBAY_MAP_FAULTS 1u /* segments are brought in when they are touched */
#define FOREBAY_MAP_WATCH 2u  /* segments that are clean are not looked at by a sync */
#define FOREBAY_MAP_SCAN 4u   /* only pages that were stored to are written */

/* The library's version, as "0.1.0". */
const char *forebay_map_version(void);

/*
 * What the last call of this thread that failed says, for a person: never NULL, empty if
 * none has failed.  It is good until the next call of this thread that fails.
 */
const char *forebay_map_error(void);

/* The errno of that, if it was FOREBAY_MAP_E_SYSTEM and the system gave one; else 0. */
int forebay_map_errno(void);

/* The name of a code, as "FOREBAY_MAP_E_LOCKED"; "unknown" for what is none. */
const char *forebay_map_error_name(int code);

/*
 * Opens a pool (a device or file) and its map of that name; NULL: the only one.  It is a
 * share of a pool that is served, or else the pool itself, which is this process's until it
 * is closed.  options may be NULL.  *pool is set on success and
 * not touched otherwise; to be closed by forebay_map_pool_close.
 */
int forebay_map_pool_open(const char *path, const char *map,
			  const struct forebay_map_options *options,
			  struct forebay_map_pool **pool);

/*
 * Closes it.  Refused as FOREBAY_MAP_E_IN_USE while files are open, and then the handle
 * stays good.  After another error it is closed.
 */
int forebay_map_pool_close(struct forebay_map_pool *pool);

/*
 * Opens a regular file that is there, for loads and stores, with room for it to grow to
 * so many bytes; its own size if that is larger.  Room is address space and little
 * memory; a file that is empty needs some.  Refused while the pool has pages of the file
 * since a crash: recover first.  *file is set on success and not touched otherwise; to be
 * closed by forebay_map_file_close.
 */
int forebay_map_file_open(struct forebay_map_pool *pool, const char *path, uint64_t room,
			  struct forebay_map_file **file);

/*
 * The same of a file that other processes have open by this call at the same time: all have
 * the memory and the size, and a sync by one of them makes durable what any of them has
 * stored.  It takes a pool that is served (`forebay serve`); else FOREBAY_MAP_E_REFUSED, and
 * FOREBAY_MAP_E_LOCKED where a process has it for itself.  Room is what the first of them
 * has asked for, 1 GiB, or twice the size, whichever is most.  docs/design/map-served.md has what a
 * sync costs beside others, and what becomes of who is killed or stopped.
 */
int forebay_map_file_open_shared(struct forebay_map_pool *pool, const char *path,
				 uint64_t room, struct forebay_map_file **file);

/*
 * Syncs all, writes it to the file, durable there, and gives the memory back: no address
 * of the mapping may be used any more.  Refused as FOREBAY_MAP_E_IN_USE while another
 * thread is in a call for the file, and then the handle stays good.  After another error
 * the file is closed, and what was synced is kept in the pool, for a recovery.
 */
int forebay_map_file_close(struct forebay_map_file *file);

/*
 * Where byte 0 of the file is, as far as the room reaches, aligned to a segment; it stays
 * there until the file is closed.  NULL: no such handle.  Behind the file's end loads and
 * stores are possible, are not synced, and are zero when the file grows.
 */
void *forebay_map_address(struct forebay_map_file *file);

/* Bytes of the file. */
int forebay_map_size(struct forebay_map_file *file, uint64_t *size);

/* Bytes that are mapped. */
int forebay_map_room(struct forebay_map_file *file, uint64_t *room);

/*
 * What was stored or written before to pages of the range, by any thread, is durable when
 * it returns, and so is the file's size.  Of a page that lies in the range in part all is
 * synced.  What lies behind the end of the file is not, and is no error.  An error says
 * that nothing is known to be durable that was not before.
 */
int forebay_map_sync(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * Segments that the range touches are brought in, and stay until they are unlocked as
 * often.  Refused beyond the limit of the options.
 */
int forebay_map_lock(struct forebay_map_file *file, uint64_t offset, uint64_t length);
int forebay_map_unlock(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * Segments that are wholly in the range and not locked are given back.  What was synced
 * reaches the file before.  What was not is FORGOTTEN, except in pages that had something
 * that was synced: sync first to keep it.
 */
int forebay_map_drop(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * As pread(2) and pwrite(2), of the same content as the mapping, durable after a sync.
 * *done has how many bytes were read: fewer only at the end of the file.  A write is done
 * as a whole, or an error says that any part of it may have been; the file grows, within
 * its room.  buffer may be in a mapping.
 */
int forebay_map_read(struct forebay_map_file *file, uint64_t offset, void *buffer,
		     size_t length, size_t *done);
int forebay_map_write(struct forebay_map_file *file, uint64_t offset, const void *buffer,
		      size_t length);

/*
 * Truncates or extends, within the room.  Smaller: durable when it returns, and what was
 * cut off does not come back.  Larger: zeroes, durable after a sync.
 */
int forebay_map_truncate(struct forebay_map_file *file, uint64_t size);

/*
 * Blocks of the file system for the range, as fallocate(2); the file grows, if it has to.
 * Durable after a sync.
 */
int forebay_map_allocate(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/* What was synced is in the file when it returns, durable there. */
int forebay_map_write_back(struct forebay_map_file *file);

/* *dirty is 1 if the file lacks something that was synced, else 0. */
int forebay_map_is_dirty(struct forebay_map_file *file, int *dirty);

/*
 * What of the kernel is used for a file: FOREBAY_MAP_FAULTS, _WATCH, _SCAN.  Not an
 * error if some are missing; docs/design/map-tracking.md says what that costs.
 */
int forebay_map_features(struct forebay_map_file *file, uint32_t *features);

#ifdef __cplusplus
}
#endif

#endif
