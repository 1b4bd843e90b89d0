#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program may write in any way, and ask in any way that this be durable.  Then what was
# acknowledged is there after a power cut, or the call gives an error.
# Method: durable.c makes each way to write x each way to ask, and notes elsewhere what was
# acknowledged.  Then the disk below loses what was not flushed (volatile_disk.c), and the server is
# killed.  File system and mount come back, in each mode of the mount.  Before that nobody asks and
# all is noted: each cell whose way to write is not durable by itself must be found lost.
#
#	durable.sh [FILE SYSTEM...]	(ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"

systems=("$@")
[ $# -gt 0 ] || systems=(ext4)
seed=${SEED:-1}
pool_size=512M
compile durable "$root/tests/mount/durable.c"

# cut_after SYSTEM WHAT [OPTIONS OF THE MOUNT]: all cells, a cut, and what is there.  Nothing is
# synced by itself meanwhile, and the cut takes all that was not flushed.
cut_after() {
	local system=$1 forget=$2
	shift 2
	unset WRITE_BACK
	[[ " $* " != *" --write-back "* ]] || export WRITE_BACK=1
	truncate -s 0 "$work/platter"
	truncate -s $bytes "$work/platter"
	rm -f "$pool"
	seed=$((seed | 1))
	start_disk "$system"
	[ "$system" != ext4 ] || mount -o remount,commit=300 "$work/disk"
	mkdir "$work/disk/tree"
	"$work/durable" prepare "$work/disk/tree"
	start_mount "$work/disk/tree" --sync-interval 600s --sync-bytes 400M "$@"
	# shellcheck disable=SC2086
	"$work/durable" run "$work/disk/tree" "$shm/record" $forget || fail "$system $*: the program broke"
	cut_disk
	kill_mount
	stop_disk
	start_disk
	start_mount "$work/disk/tree" "$@"
	# shellcheck disable=SC2086
	"$work/durable" check "$work/disk/tree" "$shm/record" $forget >"$work/checked.log" || {
		cat "$work/checked.log" >&2
		fail "$system $*: ${forget:+a sync that nobody asked for was found to be there, so }the table does not hold"
	}
	stop_mount
	stop_disk
}

for system in "${systems[@]}"; do
	need "mkfs.$system"
	bytes=$((256 << 20))
	[ "$system" = ext4 ] || bytes=$((512 << 20)) # the least that mkfs.xfs takes is 300M
	for mode in '' --write-back; do
		# shellcheck disable=SC2086
		cut_after "$system" forget $mode
		say "$system ${mode:-by default}, nobody asks: $(head -n 1 "$work/checked.log")"
	done
	for mode in '' --write-back --log-writes '--log-writes --write-back'; do
		# shellcheck disable=SC2086
		cut_after "$system" '' $mode
		say "$system ${mode:-by default}: $(cat "$work/checked.log")"
	done
done
