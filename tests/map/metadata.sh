#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a sync of a file by map-run makes durable what the program has changed of it besides its
# bytes: mode, owner, attributes, times, names; and syncfs syncs its file system.
# Method: metadata.c changes one of them, asks, and stops itself after the answer, with all its threads.
# Then the disk image is copied, as a power cut would leave it.  The same is done without map-run.  As a
# control, what nobody has asked for must not be there: else the test would find no mistake.
#
#	metadata.sh [KIND...|failing]	all ways; with a KIND, that on a pool that nobody serves; or that part alone
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
need mkfs.ext4
compile metadata
compile taken
make_map 128M 64M
mkdir "$work/disk" "$work/cut"
img=$shm/disk.img
truncate -s 64M "$img"
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$img"
mount_image "$img" "$work/disk" || skip "no loop device"
at_end "umount -l '$work/disk'"
# The journal is written when somebody asks for it.
mount -o remount,commit=3600 "$work/disk" || fail "the file system cannot be mounted again"

# cut_now: copies the image and looks into the copy.  Sets $found.
cut_now() {
	cp "$img" "$img.cut"
	mount_image "$img.cut" "$work/cut" || fail "$1: the copy cannot be mounted"
	found=$(stat -c 'mode=%a owner=%u time=%Y links=%h' "$work/cut/$2" 2>&1 || true)
	found+=" attribute=$(python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.answer").decode())' "$work/cut/$2" 2>/dev/null || true)"
	found+=" other=$(cat "$work/cut/$2.other" 2>/dev/null || true)"
	umount "$work/cut"
	rm "$img.cut"
}
wanted() { # KIND
	case ${1#*-sync-} in
	mode | by-path | sync | list | list-by-path) echo mode=600 ;;
	control) echo mode=644 ;;
	owner | owner-by-path) echo owner=1234 ;;
	attribute | attribute-by-path) echo attribute=42 ;;
	attribute-gone) echo attribute= ;;
	time) echo time=2000000 ;;
	name) echo links=2 ;;
	syncfs) echo other=hello ;;
	esac
}
all() { # HOW [KIND...]
	local kinds=(control mode by-path sync owner owner-by-path attribute attribute-by-path attribute-gone list list-by-path time name syncfs
		rwf-sync-mode o-sync-mode o-sync-owner rwf-sync-attribute o-sync-name)
	[ $# = 1 ] || kinds=("${@:2}")
	for kind in "${kinds[@]}"; do
		file=$work/disk/$1-$kind.map
		if [ "$1" = plain ]; then
			: >"$work/plain.said"
			"$work/metadata" $kind "$file" >"$work/plain.said" 2>"$work/plain.says" &
			pid=$!
			for _ in $(seq 600); do [ -s "$work/plain.said" ] && break; sleep 0.02; done
			[ -s "$work/plain.said" ] || fail "$kind: $(cat "$work/plain.says")"
		else
			ROOM=8M begin "$1" "$work/metadata" $kind "$file"
		fi
		cut_now "$1 $kind" "$1-$kind.map"
		killed $pid
		case " $found " in
		*" $(wanted $kind) "*) ;;
		*) [ $kind != control ] || fail "$1: a change that nobody has asked for is there: the test sees nothing: $found"
			fail "$1: $kind was acknowledged and is not there after a power cut: $found" ;;
		esac
		[ "$1" = plain ] || recover || fail "$kind: not recovered"
		rm -f "$work/disk"/*.map*
	done
	say "$1: passed"
}
# held: a file gets more room while the kernel syncs its file system.
held() {
	file=$work/hold.map
	ROOM=8M begin hold "$work/metadata" hold "$file"
	local program
	program=$(pgrep -P $pid -f 'metadata hold' || echo $pid)
	strace -f -o "$work/hold.traced" -e trace=syncfs -e inject=syncfs:delay_enter=5s -p "$program" 2>"$work/hold.strace" &
	strace=$!
	for _ in $(seq 200); do grep -q attached "$work/hold.strace" && break; sleep 0.05; done
	grep -q attached "$work/hold.strace" || { kill $strace; killed $pid; skip_part "more room during a syncfs" "$(cat "$work/hold.strace")"; return; }
	touch "$file.go"
	wait $pid || fail "hold: $(cat "$work/hold.says")"
	wait $strace || true
	grep -q 'syncfs.*DELAYED' "$work/hold.traced" || fail "hold: nothing waited"
	[ "$(tail -n 1 "$work/hold.said")" = done ] || fail "hold: a write was $(tail -n 1 "$work/hold.said") by syncfs"
	say "hold: passed"
}
# failing: a server on the network refuses what the kernel writes back, and the sync of the mark is told.
failing() {
	local program strace error
	for error in EIO EACCES EPERM ENOSPC EDQUOT; do
		rm -f "$work"/failing.*
		truncate -s 8M "$work/failing.map"
		sync "$work/failing.map"
		ROOM=8M begin failing "$work/taken" failing "$work/failing.map"
		program=$(pgrep -P $pid -f 'taken failing' || echo $pid)
		strace -f -o "$work/failing.traced" -e trace=fsync -e inject=fsync:error=$error:when=1 -p "$program" 2>"$work/failing.strace" &
		strace=$!
		for _ in $(seq 200); do grep -q attached "$work/failing.strace" && break; sleep 0.05; done
		grep -q attached "$work/failing.strace" || { kill $strace; killed $pid; skip_part "a failed sync of the mark" "$(cat "$work/failing.strace")"; return; }
		touch "$work/failing.map.go"
		wait $pid || true
		wait $strace || true
		grep -q 'fsync.*INJECTED' "$work/failing.traced" || fail "failing: no sync failed"
		grep -q '^fsync: done\|^again: done' "$work/failing.said" &&
			fail "a sync of the mark failed with $error, and a later sync was acknowledged: $(cat "$work/failing.said")"
		"$FOREBAY" map recover "$pool" >/dev/null 2>&1 || "$FOREBAY" map recover --accept "$pool" >/dev/null || fail "failing: not recovered"
	done
	say "failing: passed"
}
if [ "${1:-}" = failing ]; then failing; exit; fi
[ $# = 0 ] || { all alone "$@"; exit; }
all plain
all alone
if command -v strace >/dev/null; then
	held
	failing
else skip_part "more room during a syncfs, a failed sync of the mark" "there is no strace"; fi
start_server
all served
# Their times cannot be set.
share=--shared
all shared mode by-path owner attribute attribute-by-path list list-by-path name syncfs rwf-sync-mode o-sync-mode o-sync-attribute
stop_server
