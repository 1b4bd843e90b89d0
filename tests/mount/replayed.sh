#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a replay on a real file system after a power cut restores what programs had made.  That is
# every name, link, attribute, ACL, extended attribute and synced byte.
# Method: same.c makes random operations by several processes on a mount and on a plain directory,
# and every file is synced.  The disk under the mount is cut (volatile_disk.c), and the server
# killed.  File system and mount come back, and both directories are compared as during the run.
# The log holds all of it, or the last moments of it.  With the log thrown away there has to be a
# difference.
#
#	replayed.sh [ROUNDS [OPERATIONS [FILE SYSTEM...]]]	(2; 2000 of each process; ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3

rounds=${1:-2}
ops=${2:-2000}
shift $(($# < 2 ? $# : 2))
systems=("$@")
[ $# -gt 0 ] || systems=(ext4)
seed=${SEED:-1}
bytes=$((512 << 20))
pool_size=1G
compile same -I"$root/tests/mount" "$root/tests/mount/same.c"

# The plain directory lies on a file system of the same kind, which is not disturbed.
make_plain() { # SYSTEM
	rm -f "$work/plain.image"
	truncate -s $bytes "$work/plain.image"
	case $1 in
	ext4) mkfs.ext4 -qF "$work/plain.image" ;;
	*) "mkfs.$1" -qf "$work/plain.image" >/dev/null ;;
	esac
	mkdir -p "$work/stable"
	mount_image "$work/plain.image" "$work/stable" || skip "$1 cannot be mounted from a file here"
	mkdir "$work/stable/plain"
}
at_end 'umount -l "$work/stable" 2>/dev/null || true'

sync_files() { # DIRECTORY
	python3 - "$1" <<'P'
import os, stat, sys
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(directory, name)
        if stat.S_ISREG(os.lstat(path).st_mode):
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
P
}
compare() { "$work/same" "$work/stable/plain" "$work/disk/tree" ops=0 compare=1 >"$work/compare.log" 2>&1; }

# Makes a new file system, runs the programs and cuts the power.  The disk is there again,
# and not mounted yet.
cut_behind() { # SYSTEM SYNC-INTERVAL
	truncate -s 0 "$work/platter"
	truncate -s $bytes "$work/platter"
	rm -f "$pool"
	make_plain "$1"
	start_disk "$1"
	mkdir "$work/disk/tree"
	start_mount "$work/disk/tree" --sync-interval "$2" --sync-bytes 600M
	"$work/same" "$work/stable/plain" "$work/disk/tree" ops="$ops" user=1 old=1 seed="$seed" >"$work/same.log" 2>&1 ||
		{ tail -n 24 "$work/same.log" >&2; fail "$1: the mount is not as the plain directory (seed $seed)"; }
	sync_files "$work/disk/tree"
	entries=$("$FOREBAY" status "$pool" --json | sed -n 's/^ *"unsynced_bytes": \([0-9]*\),*$/\1/p' | head -n 1)
	cut_disk
	kill_mount
	stop_disk
	start_disk
}
end() {
	stop_disk
	umount "$work/stable"
}

for system in "${systems[@]}"; do
	need "mkfs.$system"
	told=''
	for ((round = 1; round <= rounds; round++)); do
		interval=$( ((round % 2)) && echo 600s || echo 0.3s)
		cut_behind "$system" "$interval"
		start_mount "$work/disk/tree"
		compare || { cat "$work/compare.log" >&2; fail "$system, round $round: not what there was (seed $seed, synced each $interval)"; }
		told+=" $entries"
		stop_mount
		compare || { cat "$work/compare.log" >&2; fail "$system, round $round: not what there was, after the end (seed $seed)"; }
		end
	done
	say "$system: $rounds times $ops operations of two processes, cut and replayed: all is there (bytes of the log:$told)"
done

cut_behind "${systems[0]}" 600s
"$FOREBAY" log destroy "$pool" mount --discard >/dev/null
"$FOREBAY" unmark "$work/disk/tree" --accept-loss >/dev/null
! compare || fail "with the log thrown away nothing is lost: the test finds nothing"
say "with the log thrown away: $(head -n 1 "$work/compare.log")"

# The tree's root does not let the mark go.  The server that has replayed names the way out, and
# replays again when it is asked.
need chattr
start_mount "$work/disk/tree" --sync-interval 600s
echo precious >"$work/disk/tree/kept" && sync "$work/disk/tree/kept"
kill_mount
mkdir "$work/disk/other"
start_mount "$work/disk/other" --log other
chattr +a "$work/disk/tree"
code=0
"$FOREBAY" mount "$pool" "$work/disk/tree" >"$work/out" 2>&1 || code=$?
chattr -a "$work/disk/tree"
[ $code = 9 ] && grep -q 'chattr -a' "$work/out" || fail "a root with chattr +a: code $code: $(cat "$work/out")"
"$FOREBAY" mount "$pool" "$work/disk/tree" >"$work/out" 2>&1 || fail "after chattr -a: code $?: $(cat "$work/out")"
[ "$(cat "$work/disk/tree/kept")" = precious ] || fail "after chattr -a: what was synced is not there"
"$FOREBAY" umount "$work/disk/tree" >/dev/null
stop_mount
[ ! -L "$work/disk/tree/.forebay-mount" ] || fail "after chattr -a: the mark is left"
say "a replay whose end was refused was tried again"
