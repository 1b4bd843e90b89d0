#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: sparse data stays sparse.  Clients learn which ranges have data and read nothing
# else, and zeroes that they write take no blocks, unless they want them.
# Method: nbdinfo, nbdcopy and qemu-img on a sparse volume of 8 GiB, with data in the pool and on
# the origin.  The server counts the bytes read, the file system the blocks.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy qemu-img qemu-io jq

disk=$work/origin # blocks are counted: not in memory
truncate -s 8G "$disk"
"$FOREBAY" create "$pool" --size 64M >/dev/null
"$FOREBAY" volume add "$pool" v "$disk" >/dev/null
start_server
head -c 4M /dev/urandom >"$work/data"
write_at() { qemu-io -f raw -c "write -q -s $work/data $1 4M" "$uri" >"$work/io.log" 2>&1 || { cat "$work/io.log" >&2; fail "write at $1"; }; }
blocks() { echo $(($(stat -c %b "$disk") / 2)); } # KiB
counter() { "$FOREBAY" status "$pool" --json | jq "$1"; }
data_bytes() { nbdinfo --map --json "$uri" | jq '[.[] | select(.type == 0) | .length] | add // 0'; }

uri=$(uri v)
[ "$(data_bytes)" = 0 ] || fail "an empty volume has data: $(nbdinfo --map "$uri")"
write_at 1G
"$FOREBAY" drain "$pool" >/dev/null
write_at 3G
[ "$(data_bytes)" = $((8 << 20)) ] || fail "the map is wrong: $(nbdinfo --map "$uri")"
qemu-img map --output=json -f raw "$uri" | jq -e '[.[] | select(.data) | .length] | add == 8388608' >/dev/null ||
	fail "qemu-img map: $(qemu-img map --output=json -f raw "$uri")"

# A copy reads only the data, and equals the volume.
read_before=$(counter '.counters.read_hit_bytes + .counters.read_miss_bytes')
qemu-img convert -f raw -O raw "$uri" "$work/copy"
nbdcopy "$uri" "$work/copy2"
read=$(($(counter '.counters.read_hit_bytes + .counters.read_miss_bytes') - read_before))
[ $read -le $((20 << 20)) ] || fail "two copies of 8 MiB of data have read $((read >> 20)) MiB"
for copy in copy copy2; do
	for at in 1024 3072; do
		cmp <(dd if="$work/$copy" bs=1M skip=$at count=4 status=none) "$work/data" || fail "$copy differs at $at MiB"
	done
	[ "$(stat -c %b "$work/$copy")" -le $((9 << 11)) ] || fail "$copy is not sparse"
done

# An empty image is copied onto the volume.  The volume is then zeroes, and has no blocks.
truncate -s 8G "$work/empty"
before=$(blocks)
nbdcopy "$work/empty" "$uri" || fail "nbdcopy of an empty image"
"$FOREBAY" drain "$pool" >/dev/null
[ "$(data_bytes)" -le $((8 << 20)) ] || fail "an empty image has made $(data_bytes) bytes of data"
[ "$(blocks)" -le $((before + 8192)) ] || fail "an empty image has taken $(($(blocks) - before)) KiB"
stop_server
say "8 GiB with 8 MiB of data: two copies read $((read >> 20)) MiB; an empty image takes $(($(blocks) - before)) KiB"
