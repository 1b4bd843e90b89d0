#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a file system on a volume survives a SIGKILL of the server: synced data is there, and e2fsck
# finds nothing wrong.
# Method: nbdfuse and a loop device, so no module is needed. ext4 is made and filled, and the server
# is killed in the middle.  All are started again, the journal is replayed, more is written, and
# ext4 is unmounted and checked.  In the end the drained origin is checked by itself.
# shellcheck disable=SC2119,SC2016 # no arguments on purpose; expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdfuse mkfs.ext4 e2fsck losetup mount fusermount3
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "no /dev/fuse"
loops_work || skip "no loop devices"

mkdir "$work/fuse" "$work/mnt"
make_pool 64M disk=256M

fuse='' loop=''
connect() {
	start_server
	nbdfuse "$work/fuse/nbd" "$(uri disk)" 2>>"$work/fuse.log" &
	fuse=$!
	local tries
	for ((tries = 0; tries < 1200; tries++)); do
		[ -s "$work/fuse/nbd" ] && break
		kill -0 "$fuse" 2>/dev/null || { cat "$work/fuse.log" >&2; fail "nbdfuse"; }
		sleep 0.05
	done
	[ -s "$work/fuse/nbd" ] || fail "nbdfuse shows no disk: $(cat "$work/fuse.log")"
	loop=$(loop_device "$work/fuse/nbd") || skip "$(cat "$work/no-loop")"
}
disconnect() {
	[ -n "$loop" ] && losetup -d "$loop"
	loop=''
	[ -n "$fuse" ] && { fusermount3 -u "$work/fuse" 2>/dev/null || fusermount3 -uz "$work/fuse"; await_end "$fuse" 60 || kill -KILL "$fuse"; wait "$fuse" || true; }
	fuse=''
}
at_end disconnect
at_end 'mountpoint -q "$work/mnt" && umount -l "$work/mnt"'

# fill DIRECTORY FILES: of many sizes, with their checksums in a file next to them.
fill() {
	local i
	mkdir -p "$1"
	for ((i = 0; i < $2; i++)); do
		head -c $((RANDOM * 8 % 200000 + 1)) /dev/urandom >"$1/$i" || return
	done
	(cd "$1" && sha256sum -- [0-9]*) >"$work/$(basename "$1").sums"
}
verify() { (cd "$work/mnt/$1" && sha256sum --quiet -c "$work/$1.sums") || fail "files of $1"; }

connect
mkfs.ext4 -q -F "$loop" || fail "mkfs.ext4"
mount "$loop" "$work/mnt"
fill "$work/mnt/synced" 200
sync -f "$work/mnt"
say "ext4 made and filled"

# The rest is written while the server dies.
(while :; do fill "$work/mnt/torn" 200; rm -rf "$work/mnt/torn"; done) >/dev/null 2>&1 &
filler=$!
sleep 1.5
kill_server
say "server killed in the middle"
kill "$filler" 2>/dev/null || true
wait "$filler" 2>/dev/null || true
umount "$work/mnt" 2>/dev/null || umount -l "$work/mnt"
disconnect 2>/dev/null || true

connect
mount "$loop" "$work/mnt" || fail "mount after the kill"
verify synced
fill "$work/mnt/after" 100
umount "$work/mnt"
e2fsck -fn "$loop" >"$work/e2fsck.out" 2>&1 || { cat "$work/e2fsck.out" >&2; fail "e2fsck"; }
mount "$loop" "$work/mnt"
verify synced
verify after
umount "$work/mnt"
disconnect
stop_server
say "restarted: all synced files there, e2fsck finds nothing"

"$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain"
e2fsck -fn "$work/disk.img" >"$work/e2fsck.out" 2>&1 || { cat "$work/e2fsck.out" >&2; fail "e2fsck of the origin"; }
say "drained: the origin alone is a clean file system"
