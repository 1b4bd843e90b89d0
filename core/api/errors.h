/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * errors.h - every error that the engine can return: name, parent errno, message.  A function
 * returns 0 or a positive fby_decision on success and -FBY_E_x otherwise; hosts translate in one
 * place with fby_error_errno() and fby_error_message().
 */
#ifndef FBY_ERRORS_H
#define FBY_ERRORS_H

/* X(name, errno number, message) - errno numbers are Linux's, spelled out
 * because the engine has no errno.h */
#define FBY_ERRORS(X) \
	X(NO_SUPERBLOCK, 22, "no Forebay superblock: the media is not a pool") \
	X(BAD_SUPERBLOCK, 74, "both superblock copies are damaged") \
	X(VERSION, 95, "the pool is not of format version 2, the only one that this Forebay knows") \
	X(FEATURE, 95, "the pool uses a feature this version does not know") \
	X(FEATURE_RO, 30, "the pool uses a feature this version can only read") \
	X(MEDIA_SIZE, 28, "the media is smaller than the superblock says") \
	X(GEOMETRY, 22, "geometry out of range") \
	X(MEDIA_SMALL, 28, "the media is too small for a pool") \
	X(NO_MEMORY, 12, "the memory handed over is too small") \
	X(READ_ONLY, 30, "the pool is open read-only") \
	X(RECOVERY_INCOMPLETE, 16, "recovery has not finished") \
	X(NO_VOLUME, 2, "no such volume") \
	X(VOLUME_EXISTS, 17, "a volume of this name exists") \
	X(VOLUME_TABLE_FULL, 28, "the volume table is full") \
	X(VOLUME_DAMAGED, 74, "both copies of the volume's record are damaged") \
	X(VOLUME_BUSY, 16, "the volume is attached") \
	X(VOLUME_DETACHED, 107, "the volume is not attached") \
	X(VOLUME_DIRTY, 16, "the volume holds data that is not on its origin yet") \
	X(ORIGIN_SIZE, 22, "the origin's size is not what the volume recorded") \
	X(ORIGIN_IDENTITY, 22, "the origin is not the one the volume was made for") \
	X(HOLES, 74, "entries of this volume are lost and their blocks unknown") \
	X(HOLES_KNOWN, 74, "entries of this volume are lost; isolating them was not allowed") \
	X(NAME, 22, "the name is empty or too long, is . or .., begins with -, or has characters outside A-Z a-z 0-9 . _ -") \
	X(RANGE, 28, "the request lies beyond the end of the volume") \
	X(ALIGNMENT, 22, "the request is not aligned to the logical block size") \
	X(LOST, 5, "the block was lost: its cached copy failed its checksum") \
	X(ORIGIN_IO, 5, "the origin reported an I/O error") \
	X(BUSY, 16, "requests are in flight") \
	X(INVARIANT, 117, "an internal invariant does not hold") \
	X(NUMBERS, 74, "a number is higher than a pool can reach: the media is damaged, or forged") \
	X(GROUP, 95, "the pool is for media of which a cut may tear more at once than this Forebay knows") \
	X(CHUNK_KIND, 95, "a chunk is of a kind that this Forebay does not know") \
	X(OWNER_KIND, 95, "a record of the volume table is of a kind that this Forebay does not know") \
	X(NO_LOG, 2, "no such log") \
	X(LOG_STATE, 22, "the log is not in the state for this") \
	X(LOG_UNCLAIMED, 16, "the log holds entries of before the pool was opened, which are to be claimed and replayed first") \
	X(LOG_OBSOLETE, 116, "the transaction group is synced already") \
	X(LOG_SKIPS, 34, "the transaction group is more than three above the last one synced") \
	X(LOG_BACKWARDS, 22, "a later transaction group is synced already") \
	X(LOG_TOO_LARGE, 90, "the entry is larger than a chunk of the pool can hold") \
	X(LOG_GUID, 17, "another log or period has this GUID, or it is zero") \
	X(LOG_HEADER, 22, "the log's header is not one that this log has handed out") \
	X(LOG_ENTRY, 74, "the entry cannot be read, or is not what it was when the log was claimed") \
	X(LOG_PERIOD, 116, "the header is older than the log's newest period") \
	X(STATIC_FULL, 28, "the pool has no room of this size left for a static volume") \
	X(NO_MAP, 2, "no such map, or it has no such file or frame") \
	X(MAP_FULL, 28, "no room: of the pool for a map of this size, or of the map for another file or segment") \
	X(MAP_DIRTY, 16, "pages are mapped whose file lacks what they have, or may lack it") \
	X(MAP_DAMAGED, 74, "what the map says of its files or pages is damaged there") \
	X(MAP_MEDIA, 95, "files can be mapped only where the media is memory") \
	X(ERAS, 28, "the static volume's eras are used up") \
	X(GROUPED, 95, "the pool is grouped: it lies on a block device, and this host opens pools in memory only") \
	X(NOT_GROUPED, 22, "the pool is not grouped: it is to be opened as memory, not as a block device") \
	X(UNIT, 22, "the device writes larger blocks than those that the pool was made for") \
	X(MEDIUM, 5, "the pool's device has failed: nothing more becomes durable in the pool") \
	X(LOGS_ONLY, 95, "a pool on a block device holds logs, and volumes in blocks of 4096 bytes: others and maps need one in memory or a plain pool file")

enum fby_error {
	FBY_E_NONE = 0,
#define FBY_ERROR_ENUM(name, parent, message) FBY_E_##name,
	FBY_ERRORS(FBY_ERROR_ENUM)
#undef FBY_ERROR_ENUM
	FBY_E_COUNT
};

#endif
