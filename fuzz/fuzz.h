/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz.h - what the fuzz targets share: a media in memory that catches every
 * access outside it, base images made by the engine itself, patches to them
 * with the checksums put right, and a walk through all that can be done with
 * what opens.
 *
 * Goal: whatever the media holds, the engine answers with data that it vouches
 * for or with an error: no fault, no failed assertion, no endless loop, no
 * origin request beyond the origin, no memory beyond what the media's size
 * justifies.  The sanitizers see the first, the harness checks the others.
 */
#ifndef FBY_FUZZ_H
#define FBY_FUZZ_H

#include "forebay.h"
#include "groups.h"

#define FUZZ_MEDIA_MAX (1u << 20)
#define FUZZ_CHUNK (64u << 10)
#define FUZZ_PAGES (FUZZ_CHUNK / FBY_PAGE)
#define FUZZ_CHUNKS 6u
#define FUZZ_VOLUMES 4u
#define FUZZ_SECTORS 512u /* of the base images' volumes */

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

/* Ends the process with a message: a finding. */
_Noreturn void fuzz_finding(const char *what, u64 a, u64 b);

/* --- input, as a stream of numbers; zeroes when it is used up ---------------- */
struct fuzz_input {
	const u8 *at, *end;
};
u32 fuzz_take(struct fuzz_input *in, u32 bytes); /* 1 to 4 */
static inline bool fuzz_left(const struct fuzz_input *in)
{
	return in->at < in->end;
}

/* --- media ---------------------------------------------------------------------- */
extern struct fby_media fuzz_media;
void fuzz_media_set(const u8 *image, u32 bytes, u32 size); /* the rest is zero */
void fuzz_media_poison(u64 offset); /* reads of that line fail from now on */
void fuzz_media_heal(void); /* and those of no line any more */
/* The media is the image of a device with blocks of this size; 0: it is memory. */
void fuzz_media_device(u32 unit);
extern void (*fuzz_media_beside)(void); /* called once, before the next read of data */

/* Base image i of fuzz_base_count: formatted; unclean with open chunks; clean;
 * drained; without checksums. */
#define FUZZ_BASES 7u
void fuzz_media_base(u32 i);

/* Recomputes every checksum by the geometry that the superblock at 0 claims. */
void fuzz_fix_all(void);
/* One change from the input: where, what, and whether its checksum is put right. */
void fuzz_patch(struct fuzz_input *in);

/* --- walks ------------------------------------------------------------------------ */

/* Opens, recovers, checks; NULL if the engine refuses.  Memory: fuzz_close. */
struct fby_pool *fuzz_open(const struct fby_options *o);
void fuzz_free(void);
/* Carries out the requests of a grouped pool until there are none. */
void fuzz_settle(struct fby_pool *p);
/* Makes all read-only calls on an open pool. */
void fuzz_look(struct fby_pool *p);
/* Attaches with the policy; 0 or an error. */
int fuzz_attach(struct fby_pool *p, u16 volume, enum fby_holes holes);
/* Runs destage until it has nothing to do; requests go to sink (NULL: checked
 * for range and dropped).  False if it does not come to rest. */
extern u64 fuzz_now_ns; /* the clock of destage */
typedef int (*fuzz_sink)(const struct fby_io *io);
bool fuzz_destage(struct fby_pool *p, fuzz_sink sink, u32 steps);
/* Claims, replays, ends each log and begins it anew, crashes, and replays again: *p is another
 * then.  stored: the header that the consumer of a log says it has. */
struct fby_log_header;
void fuzz_use_logs(struct fby_pool **p, const struct fby_options *o, u32 bits, const struct fby_log_header *stored);
/* Reads each block of the volume, at most max. */
void fuzz_read_volume(struct fby_pool *p, u16 volume, u64 max);

#endif
