#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: zeroes that are drained onto a full file system lose nothing and hold nothing up.  Data for
# which it has no blocks is told, kept, and there when it has.
# Method: a sparse origin on a small ext4 that a filler fills.  Zeroes are written over data and over
# holes, with blocks asked for (NO_HOLE) and without; then a drain has to end.  Then data over a hole.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need qemu-io mkfs.ext4
[ "$(id -u)" = 0 ] || skip "mounting a file system that runs full needs root"
loops_work || skip "no loop devices"

truncate -s 48M "$work/image"
mkfs.ext4 -qF -m 0 "$work/image"
mkdir "$work/small"
mount_image "$work/image" "$work/small" || skip "$(cat "$work/no-loop")"
origin=$work/small/origin
truncate -s 64M "$origin"
"$FOREBAY" create "$pool" --size 32M >/dev/null
"$FOREBAY" volume add "$pool" v "$origin" >/dev/null
start_server
io() { qemu-io -f raw -c "$*" "$(uri v)" >"$work/io.log" 2>&1 && ! grep -qi 'failed\|error' "$work/io.log" || fail "$*: $(cat "$work/io.log")"; }
reads() { io "read -P $1 $2 $3"; ! grep -q 'verification failed' "$work/io.log" || fail "at $2 there is no $1"; }
# drain CODES: must end within a minute, with one of these codes.
drain() {
	local code=0
	timeout 60 "$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || code=$?
	[[ " $* " == *" $code "* ]] || fail "drain: code $code: $(cat "$work/drain.log")"
}

io "write -q -P 0xaa 0 8M"
drain 0
dd if=/dev/zero of="$work/small/filler" bs=64K status=none 2>/dev/null && fail "the file system does not run full"
[ "$(df --output=avail -B1K "$work/small" | tail -n 1)" -le 64 ] || fail "the file system is not full: $(df "$work/small")"

# Zeroes are written over data, and over holes.  The server frees blocks for the second
# request of each.
io "write -q -z 1M 1M"
for ((at = 16384; at < 20480; at += 64)); do io "write -q -z ${at}k 16k"; done
drain 0
# So many zeroes exceed the pool.  The client gets an error, or they are written.
if qemu-io -f raw -c "write -q -z 16M 4M" "$(uri v)" >"$work/io.log" 2>&1 && ! grep -q . "$work/io.log"; then
	large='are zeroes'
else
	grep -q 'No space left' "$work/io.log" || fail "zeroes without blocks: $(cat "$work/io.log")"
	large='are refused (ENOSPC)'
fi
reads 0 16M 4M
io "write -q -z -u 3M 1M"
io "write -q -z -u 24M 4M"
drain 0
for at in 1 3 16 24; do cmp -s <(dd if="$origin" bs=1M skip=$at count=1 status=none) <(head -c 1M /dev/zero) || fail "no zeroes at $at MiB of the origin"; done
for at in 0 2 4 7; do cmp -s <(dd if="$origin" bs=1M skip=$at count=1 status=none) <(head -c 1M /dev/zero | tr '\0' '\252') || fail "the data beside the zeroes is lost at $at MiB of the origin"; done
say "zeroes over data and holes of a full file system are drained; 4 MiB at once for which blocks are asked $large"

# Data over holes needs more blocks than the zeroes have freed.
io "write -q -P 0xbb 32M 8M"
io "write -q -z 5M 1M"
code=0
timeout 20 "$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || code=$?
[ $code != 0 ] || fail "a drain that had no blocks says it is done"
"$FOREBAY" status "$pool" --json >"$work/status"
grep -q '"last_error": ".*[Nn]o space' "$work/status" || fail "status does not say why: $(cat "$work/drain.log")"
reads 0xbb 32M 8M
reads 0 5M 1M
reads 0xaa 6M 2M
rm "$work/small/filler"
drain 0
stop_server
for at in 32 39; do cmp -s <(dd if="$origin" bs=1M skip=$at count=1 status=none) <(head -c 1M /dev/zero | tr '\0' '\273') || fail "what was acknowledged is not on the origin at $at MiB"; done
cmp -s <(dd if="$origin" bs=1M skip=5 count=1 status=none) <(head -c 1M /dev/zero) || fail "no zeroes at 5 MiB of the origin"
say "data without blocks: told (code $code), kept, and on the origin when there is room"
