#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a pool whose file shares its blocks with a copy (cp --reflink) has its own when it is served,
# or is refused while the disk is full.  No store to it finds no space then.
# Method: a pool on a small file system is copied, the file system is filled, and the pool is served
# without room, and with room that is taken again before a client writes.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need qemu-io filefrag
[ "$(id -u)" = 0 ] || skip "not root"

disk=$work/disk
mkdir "$disk"
fill() { # NAME: all that is left
	dd if=/dev/zero of="$disk/$1" bs=1M status=none 2>/dev/null || true
	dd if=/dev/zero of="$disk/$1.rest" bs=4k status=none 2>/dev/null || true
	sync -f "$disk"
}
shared() { filefrag -v "$disk/pool" | grep -c 'shared' || true; }
truncate -s 64M "$work/origin"
head -c 4M /dev/urandom >"$work/data"

for fs in xfs btrfs; do
	command -v mkfs.$fs >/dev/null || { skip_part "a pool on $fs" "there is no mkfs.$fs"; continue; }
	truncate -s 500M "$work/$fs.img"
	mkfs.$fs -q "$work/$fs.img" >/dev/null 2>&1
	mount -o loop "$work/$fs.img" "$disk" 2>"$work/why" || { skip_part "a pool on $fs" "$(cat "$work/why")"; continue; }
	"$FOREBAY" create "$disk/pool" --size 64M >/dev/null
	"$FOREBAY" volume add "$disk/pool" v "$work/origin" >/dev/null
	cp --reflink=always "$disk/pool" "$disk/copy" || fail "$fs: cp --reflink=always"
	sync -f "$disk"
	[ "$(shared)" -gt 0 ] || fail "$fs: nothing is shared: $(filefrag -v "$disk/pool")"
	fallocate -l 120M "$disk/spare"
	fill full
	code=0
	timeout 60 "$FOREBAY" serve "$disk/pool" >"$work/out" 2>&1 || code=$?
	[ $code = 8 ] || fail "$fs: served without room, or refused wrongly: exit code $code: $(cat "$work/out")"
	grep -q "disk/pool" "$work/out" || fail "$fs: it is not named: $(cat "$work/out")"
	rm "$disk/spare"
	sync -f "$disk"
	pool=$disk/pool
	start_server
	[ "$(shared)" = 0 ] || fail "$fs: blocks are shared while it is served: $(filefrag -v "$disk/pool")"
	if [ $fs = xfs ]; then # btrfs takes new blocks for each store, shared or not
		fill full-again
		uri=$(uri v)
		for at in 0 8M 16M 24M; do
			qemu-io -f raw -c "write -q -s $work/data $at 4M" "$uri" >"$work/io.log" 2>&1 || fail "$fs: a write on a full disk: $(cat "$work/io.log")"
		done
	fi
	stop_server
	"$FOREBAY" check "$disk/pool" >"$work/out" || fail "$fs: $(cat "$work/out")"
	[ $fs = btrfs ] || "$FOREBAY" drain "$disk/pool" >"$work/out" || fail "$fs: drain: $(cat "$work/out")"
	[ $fs = btrfs ] || cmp -n $((4 << 20)) "$work/origin" "$work/data" || fail "$fs: the origin lacks what was written"
	umount "$disk"
	say "$fs: refused on a full disk, and with blocks of its own after"
done
