#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a tree on overlayfs, as a container's own file system is one.  Its handles tell inodes apart
# and open none.  A killed server loses nothing there.
# Method: files and directories are made and changed through the mount, and each is synced.  The
# server is killed, and the replay must find every inode where it is.  A file of the lower layer is
# another inode once it has been changed: its bytes are in the file, or the replay names where.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3

make_disk ext4 64M
mkdir -p "$work/disk/lower/tree" "$work/disk/upper" "$work/disk/work" "$work/over"
echo lower >"$work/disk/lower/tree/low"
mount -t overlay overlay -o "lowerdir=$work/disk/lower,upperdir=$work/disk/upper,workdir=$work/disk/work" "$work/over" ||
	skip "no overlay over ext4 can be had here"
at_end 'umount -l "$work/over" 2>/dev/null || true'
tree=$work/over/tree
echo before >"$tree/up"
mkdir "$tree/old"

start_mount "$tree"
python3 - "$tree" <<'P'
import os, sys
at = sys.argv[1]
def put(name, text):
    f = os.open(f"{at}/{name}", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    os.write(f, text)
    os.fsync(f)
    os.close(f)
put("up", b"acknowledged\n")
put("new", b"first\n")
os.link(f"{at}/new", f"{at}/new.link")
os.mkdir(f"{at}/d")
put("d/z", b"inner\n")
put("moved", b"moved\n")
os.rename(f"{at}/moved", f"{at}/old/here")
put("low", b"over the lower layer\n")
put("gone", b"gone\n")
os.unlink(f"{at}/gone")
for i in range(200):
    put(f"d/many{i}", b"many\n")
P
kill_mount
"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 || { cat "$work/replay.log" >&2; fail "replay: code $?"; }
holds() { [ "$(cat "$tree/$1" 2>/dev/null)" = "$2" ] || { cat "$work/replay.log" >&2; fail "$1 has '$(cat "$tree/$1")', not '$2'"; }; }
holds up acknowledged
holds new first
holds new.link first
[ "$tree/new" -ef "$tree/new.link" ] || fail "new and new.link are two files"
holds d/z inner
holds old/here moved
[ ! -e "$tree/gone" ] || fail "a file that was removed is back"
for i in $(seq 0 199); do holds "d/many$i" many; done
found=$(find "$tree" -path "*/.forebay-found/*" -type f | wc -l)
# Of the lower layer's file alone, which became another inode.
[ "$found" -le 2 ] || { cat "$work/replay.log" >&2; fail "$found files were moved to .forebay-found"; }
[ "$(cat "$tree/low")" = "over the lower layer" ] || grep -rq "over the lower layer" "$tree/.forebay-found" ||
	fail "what was written to the lower layer's file is lost"
umount "$work/over" || fail "the overlay is busy"
umount_disk
say "a tree on overlayfs: each inode found after a kill, $found in .forebay-found"
