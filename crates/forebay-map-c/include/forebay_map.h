/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * forebay_map.h - files mapped onto the memory of a pool
 *
 * A program loads and stores in the mapping.  A sync makes the stores durable in the pool, and
 * the file follows later.  docs/manual/map-files.md states the guarantees.
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
 * Results.  Each call that returns int returns 0 or a FOREBAY_MAP_E_ code.  After an error
 * forebay_map_error() states the problem, the cause and the way out.
 *
 * Units.  Offsets, lengths and sizes are in bytes.  Offsets count from the beginning of the file.
 *
 * Ranges.  FOREBAY_MAP_REST as a length means up to the end.  A range of length 0 is empty.  A
 * range that begins after the room of the file, or ends there without FOREBAY_MAP_REST, is
 * refused with FOREBAY_MAP_E_ARGUMENT, and nothing is done.  No alignment is required; each call
 * states what it does with ranges that are not aligned.
 *
 * Ownership.  Handles belong to the library.  An open returns one, and the matching close ends
 * it.  A handle that is closed or was never valid is refused with FOREBAY_MAP_E_HANDLE; its
 * number is never used again.  The library copies strings that it is given.  Strings that it
 * returns belong to the library.
 *
 * Threads.  Any thread may make any call at any time, also for the same file.  A signal handler
 * must make no call.
 *
 * Pools.  If `forebay serve` has the pool, an open gets a share of it, next to other processes
 * with files of their own.  Otherwise the process has the pool exclusively until it closes it,
 * and others are refused with FOREBAY_MAP_E_BUSY.  The server is found by its socket: both
 * processes must have the same FOREBAY_RUNTIME_DIR, or none, and the same user.  When a process
 * ends, the server at once writes back what the process has synced.  If the server ends, a sync
 * that needs nothing from it still works and is durable.  Every other call fails with
 * FOREBAY_MAP_E_POOL, even if there is a new server: close the files and the pool, and open them
 * again.
 *
 * Processes.  Only one process at a time maps a file.  Another one is refused with
 * FOREBAY_MAP_E_LOCKED, and the error names the process that has the file.  Children do not
 * inherit the mapping: a touch is SIGSEGV.  Each call of a child is refused with
 * FOREBAY_MAP_E_CHILD, except forebay_map_error() and forebay_map_error_name().  A load or store
 * in a segment that cannot be brought in is SIGBUS; the options can set a callback that gets the
 * cause.
 *
 * A bug in the library itself ends the program with a message (SIGABRT).  Nothing is acknowledged
 * then.
 */
#ifndef FOREBAY_MAP_H
#define FOREBAY_MAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A map of a pool that this process has open, or a share of one; and a file mapped onto it. */
struct forebay_map_pool;
struct forebay_map_file;

/* As a length: up to the end of the file. */
#define FOREBAY_MAP_REST UINT64_MAX

/* A page: the unit in which stores are detected, synced and written. */
#define FOREBAY_MAP_PAGE 4096

/* A segment: the unit in which memory is brought in, locked and dropped. */
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
 * How a map is opened.  Zero is the default of each member: set struct_bytes to sizeof, the rest
 * to zero, and then the members that matter.  Later versions add members at the end; members
 * beyond struct_bytes have their defaults.
 */
struct forebay_map_options {
	size_t struct_bytes;
	/* Milliseconds between two rounds of write-back; 0: 500. */
	uint32_t interval_ms;
	/* The number of dirty pages at which a round begins at once; 0: 16384. */
	uint32_t most_dirty_pages;
	/* Segments of all files that may be locked; 0: 64.  Never more than half of the pool's. */
	uint32_t most_locked_segments;
	/* FOREBAY_MAP_ flags, below. */
	uint32_t flags;
	/*
	 * auto, nt, clwb, eadr or msync; NULL: auto, which is what the media needs.  The method
	 * of a server cannot be changed: a server with another method than the one named here is
	 * refused with FOREBAY_MAP_E_POOL.
	 */
	const char *persist;
	/*
	 * Called for a segment that was touched and cannot be brought in, with the file, the
	 * offset of the segment and the cause.  The thread that touched it then gets SIGBUS.
	 * NULL: nothing is called.  A thread of the library makes the call: it must be quick,
	 * must not touch a mapping and must call nothing of this header.  The strings are valid
	 * until it returns.
	 */
	void (*unreadable)(const char *path, uint64_t offset, const char *why);
};

/* First recover what a crash left, as `forebay map recover` and each server do. */
#define FOREBAY_MAP_RECOVER 1u
/* Accept a persist method weaker than the media needs: synced data may be lost. */
#define FOREBAY_MAP_ALLOW_WEAKER 2u

/* The kernel features used for a file.  A missing one makes syncs slower, never weaker. */
#define FOREBAY_MAP_FAULTS 1u /* segments are brought in when they are touched */
#define FOREBAY_MAP_WATCH 2u  /* segments that are clean are not looked at by a sync */
#define FOREBAY_MAP_SCAN 4u   /* only pages that were stored to are written */

/* The library's version, such as "0.1.0". */
const char *forebay_map_version(void);

/*
 * The message of the last failed call of this thread.  Never NULL; empty if no call has failed.
 * Valid until the next failed call of this thread.
 */
const char *forebay_map_error(void);

/* The errno of that call, if it failed with FOREBAY_MAP_E_SYSTEM and the system gave one;
 * otherwise 0. */
int forebay_map_errno(void);

/* The name of a code, such as "FOREBAY_MAP_E_LOCKED"; "unknown" for any other number. */
const char *forebay_map_error_name(int code);

/*
 * Opens a pool (a device or file) and its map of that name; NULL: the only map.  If the pool has
 * a server, this opens a share of it; otherwise the pool belongs to this process until it is
 * closed.  options may be NULL.  *pool is set only on success; close it with
 * forebay_map_pool_close.
 */
int forebay_map_pool_open(const char *path, const char *map,
			  const struct forebay_map_options *options,
			  struct forebay_map_pool **pool);

/*
 * Closes a pool.  Refused with FOREBAY_MAP_E_IN_USE while files are open; the handle then stays
 * valid.  After any other error the pool is closed.
 */
int forebay_map_pool_close(struct forebay_map_pool *pool);

/*
 * Opens an existing regular file for loads and stores, with room for it to grow to that many
 * bytes, or its own size if that is larger.  Room is address space and little memory; an empty
 * file needs some.  Refused while the pool has pages of the file from a crash: recover first.
 * *file is set only on success; close it with forebay_map_file_close.
 */
int forebay_map_file_open(struct forebay_map_pool *pool, const char *path, uint64_t room,
			  struct forebay_map_file **file);

/*
 * Opens a file that other processes open with this call at the same time.  All share the memory
 * and the size, and a sync by one of them makes the stores of all durable.  Requires a pool with
 * a server (`forebay serve`); otherwise FOREBAY_MAP_E_REFUSED.  FOREBAY_MAP_E_LOCKED if a process
 * has the file exclusively.  Room is the largest of what the first process asks for, 1 GiB, and
 * twice the size.  docs/design/map-served.md describes the cost of a sync of a shared file, and
 * what happens when a process is killed or stopped.
 */
int forebay_map_file_open_shared(struct forebay_map_pool *pool, const char *path,
				 uint64_t room, struct forebay_map_file **file);

/*
 * Syncs everything, writes it to the file, makes it durable there, and frees the memory: no
 * address of the mapping may be used any more.  Refused with FOREBAY_MAP_E_IN_USE while another
 * thread is in a call for the file; the handle then stays valid.  After any other error the file
 * is closed, and synced data is kept in the pool for a recovery.
 */
int forebay_map_file_close(struct forebay_map_file *file);

/*
 * The address of byte 0 of the file, aligned to a segment.  The mapping is as long as the room,
 * and stays until the file is closed.  NULL: the handle is not valid.  Loads and stores after the
 * file's end are possible; they are not synced, and the bytes are zero when the file grows.
 */
void *forebay_map_address(struct forebay_map_file *file);

/* The size of the file in bytes. */
int forebay_map_size(struct forebay_map_file *file, uint64_t *size);

/* The number of mapped bytes. */
int forebay_map_room(struct forebay_map_file *file, uint64_t *room);

/*
 * Makes durable what any thread has stored or written to pages of the range before the call, and
 * the file's size.  A page that lies partly in the range is synced whole.  Bytes after the end of
 * the file are not synced, which is no error.  An error means that nothing more is known to be
 * durable than before.
 */
int forebay_map_sync(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * Brings in the segments that the range touches and keeps them until they have been unlocked as
 * often.  Refused above the limit of the options.
 */
int forebay_map_lock(struct forebay_map_file *file, uint64_t offset, uint64_t length);
int forebay_map_unlock(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * Frees segments that lie wholly in the range and are not locked.  Synced data is written to the
 * file before.  Stores that were not synced are LOST, except in pages that had synced data: sync
 * first to keep them.
 */
int forebay_map_drop(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/*
 * Like pread(2) and pwrite(2), on the same content as the mapping; durable after a sync.  *done
 * is the number of bytes read, which is smaller only at the end of the file.  A write is done as
 * a whole; after an error any part of it may have been done.  The file grows within its room.
 * buffer may be in a mapping.
 */
int forebay_map_read(struct forebay_map_file *file, uint64_t offset, void *buffer,
		     size_t length, size_t *done);
int forebay_map_write(struct forebay_map_file *file, uint64_t offset, const void *buffer,
		      size_t length);

/*
 * Truncates or extends, within the room.  A smaller size is durable at once, and bytes that were
 * cut off do not return.  A larger size adds zeroes and is durable after a sync.
 */
int forebay_map_truncate(struct forebay_map_file *file, uint64_t size);

/*
 * Allocates blocks of the file system for the range, as fallocate(2) does.  The file grows if
 * necessary.  Durable after a sync.
 */
int forebay_map_allocate(struct forebay_map_file *file, uint64_t offset, uint64_t length);

/* Writes synced data to the file and makes it durable there. */
int forebay_map_write_back(struct forebay_map_file *file);

/* *dirty is 1 if the file lacks synced data, otherwise 0. */
int forebay_map_is_dirty(struct forebay_map_file *file, int *dirty);

/*
 * The kernel features used for a file: FOREBAY_MAP_FAULTS, _WATCH, _SCAN.  A missing one is no
 * error; docs/design/map-tracking.md states its cost.
 */
int forebay_map_features(struct forebay_map_file *file, uint32_t *features);

#ifdef __cplusplus
}
#endif

#endif
