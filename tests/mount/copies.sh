#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a copy of a file has what programs see in it, whichever way the copier looks for holes.
# This holds also while programs have the file open, mapped and not synced.
# Method: copies.py on a mount in each mode, and on the plain directory, which it has to pass.
#
#	copies.sh [FILE SYSTEM...]	(ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 tar qemu-img rsync

systems=("$@")
[ $# -gt 0 ] || systems=(ext4)
for system in "${systems[@]}"; do
	make_disk "$system" 512M
	mkdir "$work/disk/tree"
	python3 "$root/tests/mount/copies.py" "$work/disk/tree" "$shm" plain >"$work/copies.log" ||
		{ cat "$work/copies.log" >&2; fail "$system: the plain directory does not pass"; }
	for mode in '' --write-back --log-writes '--log-writes --write-back'; do
		# shellcheck disable=SC2086
		start_mount "$work/disk/tree" $mode
		python3 "$root/tests/mount/copies.py" "$work/disk/tree" "$shm" >"$work/copies.log" ||
			{ cat "$work/copies.log" >&2; fail "$system ${mode:-by default}: a copy is not what programs see"; }
		say "$system ${mode:-by default}: $(tail -n 1 "$work/copies.log")"
		stop_mount
	done
	umount_disk
done
