// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fuzz_image.c - open, recovery, check, dump, attach, reads, writes, destage and
 * close of an arbitrary image; and what can be done with the logs that it has
 * (fuzz_logs.c begins with images that have some).
 *
 * The first byte chooses: 0 to 2, the rest is the image as it is; 3, the same
 * with every checksum put right; above, patches (fuzz_patch) on base image
 * byte % FUZZ_BASES.  The second byte chooses the options.
 */
#include <string.h>

#include "fuzz.h"
#include "log.h"

static struct fby_options options_of(u32 bits)
{
	struct fby_options o = {
		.nslots = 1 + (bits & 3),
		.read_only = (bits & 0x1c) == 0x1c,
		.verify = bits >> 5 & 1 ? FBY_VERIFY_FIRST : FBY_VERIFY_ALWAYS,
		.statics = true,
		.no_checksums = bits >> 6 & 1,
		.high_watermark = bits >> 7 ? 1 : 100,
		.low_watermark = bits >> 7 ? 0 : 90,
	};

	return o;
}

static void build(struct fuzz_input *in, u32 mode)
{
	u32 left = (u32)(in->end - in->at);

	if (mode < 4) {
		fuzz_media_set(in->at, left, left < FUZZ_MEDIA_MAX ? left : FUZZ_MEDIA_MAX);
		if (mode == 3)
			fuzz_fix_all();
		return;
	}
	fuzz_media_base(mode);
	for (u32 i = 0; i < 64 && fuzz_left(in); i++)
		fuzz_patch(in);
}

static void write_some(struct fby_pool *p, u16 volume, u32 bits)
{
	static const u8 data[32 * FBY_SECTOR];
	struct fby_bypass past;
	u64 range_done = 0;
	u32 done = 0, wake = 0;

	fby_write(p, volume, bits % 64 & ~7u, 32, data, &done, &wake);
	done = 0;
	fby_write(p, volume, bits % 61, 1 + bits % 7, data, &done, &wake);
	for (u32 i = 0; i < 100; i++) {
		int rc = fby_range(p, volume, bits & 1 ? FBY_KIND_ZERO : FBY_KIND_DISCARD, 0, 72, &range_done,
				   &past, &wake);

		if (rc != FBY_ORIGIN)
			return;
		fby_bypass_end(p, &past, 0, &wake);
		range_done += past.nsectors;
	}
	fuzz_finding("a range does not end", volume, range_done);
}

/* Attach, read, write, destage, detach of each volume. */
static void use(struct fby_pool *p, u32 bits)
{
	struct fby_pool_info info;

	fby_pool_info(p, &info);
	for (u32 v = 0; v < info.sb.nvolumes; v++) {
		u16 volume = (u16)v;

		if (fuzz_attach(p, volume, FBY_HOLES_FAIL) && fuzz_attach(p, volume, FBY_HOLES_ISOLATE) &&
		    fuzz_attach(p, volume, FBY_HOLES_ACCEPT))
			continue;
		fuzz_read_volume(p, volume, 256);
		if (!info.sb.nchunks)
			continue;
		write_some(p, volume, bits);
		fby_volume_drain(p, volume, true);
		if (!fuzz_destage(p, NULL, 20000))
			fuzz_finding("destage does not come to rest", v, bits);
		fuzz_read_volume(p, volume, 256);
		fuzz_look(p);
		if (v & 1)
			fby_volume_detach(p, volume);
	}
}

static bool has_log(struct fby_pool *p)
{
	struct fby_log_info log;
	struct fby_pool_info info;

	fby_pool_info(p, &info);
	for (u32 i = 0; i < info.sb.nvolumes; i++)
		if (fby_log_info(p, (u16)i, &log) == FBY_DONE)
			return true;
	return false;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct fuzz_input in = { data, data + size };
	u32 mode = fuzz_take(&in, 1), bits = fuzz_take(&in, 1);
	struct fby_options o = options_of(bits);
	const struct fby_log_header none = { 0 };
	struct fby_pool *p;

	if (size < 3 || size > FUZZ_MEDIA_MAX)
		return 0;
	build(&in, mode);
	p = fuzz_open(&o);
	if (!p)
		return 0;
	fuzz_look(p);
	use(p, bits);
	fuzz_look(p);
	if (has_log(p))
		fuzz_use_logs(&p, &o, bits, &none);
	if (bits & 4)
		fby_pool_close(p);
	/* The pool that the engine left, clean or not, must open again. */
	if (!fuzz_open(&o))
		fuzz_finding("a pool that opened does not open again", mode, bits);
	fuzz_free();
	return 0;
}
