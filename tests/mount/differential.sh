#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount is to programs what its tree is: results, errors, bytes, attributes.
# Method: same.c makes random operations by several processes on a mount and on a plain directory of
# the same file system.  Both are compared, on ext4, xfs and btrfs.  Two plain directories must
# pass, and each of six deliberately wrong ones must be found.
#
#	differential.sh [OPERATIONS [FILE SYSTEM...]]	of each process (5000; ext4 xfs btrfs)
#
# Without loop devices it runs on the file system of the temporary directory.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"

ops=${1:-5000}
shift || true
systems=("$@")
[ $# -gt 0 ] || systems=(ext4 xfs btrfs)
loops_work || systems=(here)
seed=${SEED:-1}
compile same -I"$root/tests/mount" "$root/tests/mount/same.c"

same() { # DIRECTORY DIRECTORY KEY=NUMBER...
	rm -rf "${1:?}"/* "${2:?}"/*
	"$work/same" "$@" seed="$seed" >"$work/same.log" 2>&1
}

for system in "${systems[@]}"; do
	if [ "$system" = here ]; then mkdir "$work/disk"; else make_disk "$system" 1G; fi
	mkdir "$work/disk/plain" "$work/disk/tree"
	same "$work/disk/plain" "$work/disk/tree" ops=2000 user=1 tmpfile=1 old=1 ||
		{ tail -n 24 "$work/same.log" >&2; fail "$system: two plain directories are said to differ"; }
	for wrong in 1 2 3 4 5 6; do
		if same "$work/disk/plain" "$work/disk/tree" ops=5000 wrong=$wrong; then
			fail "$system: the directory that is wrong in way $wrong was not found"
		fi
		grep -q '^same: process' "$work/same.log" || { cat "$work/same.log" >&2; fail "same broke"; }
	done
	rm -rf "$work"/disk/plain/* "$work"/disk/tree/*

	start_mount "$work/disk/tree"
	same "$work/disk/plain" "$work/disk/tree" ops="$ops" user=1 old=1 ||
		{ tail -n 24 "$work/same.log" >&2; fail "$system: the mount is not as the plain directory (seed $seed)"; }
	say "$system: $(sed -n 's/^same: process 0: //p' "$work/same.log"), and another process: the same on the mount"
	stop_mount
	umount_disk
done
