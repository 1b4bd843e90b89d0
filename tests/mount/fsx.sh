#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a file in a mount is what was written to it, whichever way.  The ways are through the page
# cache, past it, through mappings, by copies of ranges, with holes, truncated, allocated.
# Method: fsx.c, a file against a copy in memory, by several processes at once.  Then the server is
# killed with SIGKILL, and what the replay makes is compared.  Four planted mistakes must be found.
#
#	fsx.sh [SECONDS [FILE SYSTEM...]]	of each (10; ext4 xfs btrfs)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"

seconds=${1:-10}
shift || true
systems=("$@")
[ $# -gt 0 ] || systems=(ext4 xfs btrfs)
processes=3
operations=5000
seed=${SEED:-1}
compile fsx "$root/tests/vm/fsx.c"

at_end '[ ${#jobs[@]} -eq 0 ] || kill "${jobs[@]}" 2>/dev/null'
jobs=()
# The processes run at the same time, each with its own file and its own seed.
round() {
	local i job ok=1
	jobs=()
	for ((i = 0; i < processes; i++)); do
		seed=$((seed + 1))
		"$work/fsx" "$tree/file-$i" "$operations" $seed $((256 << (10 + i))) >"$work/fsx-$i.log" 2>&1 &
		jobs+=($!)
	done
	for job in "${jobs[@]}"; do wait "$job" || ok=0; done
	jobs=()
	[ $ok = 1 ] || { tail -n 30 "$work"/fsx-*.log >&2; fail "$system: a file is not what was written (seeds up to $seed)"; }
}
sums() { (cd "$tree" && sync -- file-* && sha256sum -- file-*); }

for system in "${systems[@]}"; do
	make_disk "$system" 512M
	tree=$work/disk/tree
	mkdir "$tree"
	start_mount "$tree"
	for mistake in lost stale byte moved; do
		! "$work/fsx" --plant $mistake 500 "$tree/planted" 20000 3 >"$work/planted.log" 2>&1 ||
			fail "$system: the planted mistake was not found: $mistake"
		grep -q '^fsx: .*\(bytes differ\|gave\|mapped byte\)' "$work/planted.log" ||
			{ cat "$work/planted.log" "$work/mount.log" >&2; fail "$system: fsx broke, with the mistake $mistake"; }
	done
	rounds=0 end=$((SECONDS + seconds))
	while :; do
		round
		rounds=$((rounds + 1))
		before=$(sums)
		kill_mount
		start_mount "$tree"
		[ "$(sums)" = "$before" ] || fail "$system: a replay made something else of files that were synced (seeds up to $seed)"
		[ $SECONDS -lt $end ] || break
	done
	say "$system: $rounds times $processes processes, $operations operations each, killed and replayed: all as the copy in memory says"
	stop_mount
	umount_disk
done
