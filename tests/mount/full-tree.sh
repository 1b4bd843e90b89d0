#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: on a file system that is full a program is told how much of what it wrote is there.  It has
# the room of a file that it removed at once, as in the plain directory.
# Method: files are written until there is no more room, by write(2), past the page cache and
# through it, in each mode of the mount.  The count that was told is compared with the file.  Then
# comes a removal and the next write, with groups that are not synced by themselves.  A tmpfs is
# full in the middle of a write; ext4 refuses the whole of it.
#
#	full-tree.sh [FILE SYSTEM...]	(tmpfs ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3

systems=("$@")
[ $# -gt 0 ] || systems=(tmpfs ext4)

fill() { # DIRECTORY: fills, compares and removes
	python3 - "$1" <<'P'
import errno, mmap, os, sys

tree = sys.argv[1]
CHUNK = 512 << 10
LIMIT = 400 << 20
PAGE = 4096
room = mmap.mmap(-1, CHUNK)
room.write(b"x" * CHUNK)


def write(fd, data):
    """0: there is no room."""
    try:
        return os.write(fd, data)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        return 0


def fill(path, flags, first):
    """Writes until there is no room; the bytes that were told."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    told = write(fd, first) if first else 0
    # With --write-back the kernel accepts more than there is room for, and a sync reports
    # that.
    for size in (CHUNK, 128 << 10, PAGE) if flags & os.O_DIRECT else (524283, 100001, 4097):
        n = size
        while told < LIMIT and n == size:
            n = write(fd, memoryview(room)[:size])
            told += n
        there = os.fstat(fd).st_size
        if there != told and not flags:
            raise SystemExit(f"{path}: {told} bytes were told, and the file has {there}")
    failed = False
    try:
        os.fsync(fd)
    except OSError as e:
        failed = e.errno == errno.ENOSPC
        if not failed:
            raise
    os.close(fd)
    return told, failed


# Each of them fills the file system.  If the count is wrong, it is wrong by part of a page.
for i, (flags, first) in enumerate(((0, b"12345"), (os.O_DIRECT, b""), (0, b""), (os.O_SYNC, b"1"))):
    path = f"{tree}/full-{i}"
    told, failed = fill(path, flags, first)
    size = os.stat(path).st_size
    # A sync reports bytes for which a later write-back would find no room.  A direct or
    # synchronous write that fails may have written a part.
    wrong = told > size if flags else told != size
    if wrong and not failed:
        raise SystemExit(f"{path}: {told} bytes were told, and the file has {size}")
    if told < CHUNK:
        raise SystemExit(f"{path}: a file that was removed before it has kept its room: {told} bytes")
    os.unlink(path)

# Names are made until there is no room for one more, and removed, and then all are made
# again at once.
os.mkdir(f"{tree}/names")
told, _ = fill(f"{tree}/most", 0, b"")
made = 0
try:
    while made < 20000:
        os.symlink("t" * 1000, f"{tree}/names/{made:05}" + "n" * 200)
        made += 1
except OSError as e:
    if e.errno != errno.ENOSPC:
        raise
os.unlink(f"{tree}/most")
os.mkdir(f"{tree}/names/more")
for i in range(20):
    os.symlink("t" * 1000, f"{tree}/names/more/{i:05}" + "n" * 200)
P
}

for system in "${systems[@]}"; do
	case $system in
	tmpfs)
		mkdir -p "$work/disk"
		mount -t tmpfs -o size=40M tmpfs "$work/disk"
		;;
	ext4) make_disk ext4 48M ;;
	*) make_disk "$system" 320M ;;
	esac
	mkdir "$work/disk/plain" "$work/disk/tree"
	fill "$work/disk/plain" || fail "$system: the plain directory does not pass"
	rm -rf "$work/disk/plain"
	for mode in '' --log-writes --write-back; do
		# shellcheck disable=SC2086
		start_mount "$work/disk/tree" --sync-interval 600s $mode
		fill "$work/disk/tree" || fail "$system ${mode:-by default}: not as the plain directory"
		rm -rf "$work/disk/tree"/*
		stop_mount
	done
	say "$system: counts are right and room is there at once, by default, with --log-writes and with --write-back"
	umount_disk
done

# The number of the last synced group needs no room. btrfs, which writes everything else anew, is
# full when the group is synced, and stays usable.
# Under load it frees the room of a removed file a moment after the sync, so a write is tried again.
written() { # TEXT FILE
	local tries
	for ((tries = 0; tries < 50; tries++)); do
		{ echo "$1" >"$2" && sync "$2"; } 2>/dev/null && return
		sleep 0.1
	done
	return 1
}
make_disk btrfs 320M
mkdir "$work/disk/tree"
start_mount "$work/disk/tree" --sync-interval 200ms
dd if=/dev/urandom of="$work/disk/tree/big" bs=64k 2>/dev/null && fail "btrfs: it does not get full"
for ((i = 0; i < 4; i++)); do
	mkdir "$work/disk/tree/$i" || fail "btrfs: a full tree takes no names after a group was synced"
	sleep 0.4
done
rm "$work/disk/tree/big" || fail "btrfs: nothing can be removed from a full tree"
for ((i = 0; i < 4; i++)); do
	written "$i" "$work/disk/tree/$i/file" || fail "btrfs: a tree that was full takes nothing"
	sleep 0.4
done
stop_mount
umount_disk
say "btrfs: a full tree bears the number of its last group"
