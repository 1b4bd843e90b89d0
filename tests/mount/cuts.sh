#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: after everything was killed and the disk lost what was not flushed, every commit is there
# that SQLite, PostgreSQL, etcd and a mail server reported.
# Method: a disk with a volatile cache (tests/serve/volatile_disk.c), a file system on it, a
# mount of that, programs that note each commit elsewhere (commits.py).  At a random moment
# the power of the disk is cut and all is killed.  Then file system and mount return, and
# every noted commit is checked with its bytes.  A run that discards the log must find lost
# commits, or the test tests nothing.
#
#	cuts.sh [CUTS [FILE SYSTEM...]]	(10; ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3 setsid
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 without sqlite3"

cuts=${1:-10}
shift || true
systems=("$@")
[ $# -gt 0 ] || systems=(ext4)
seed=${SEED:-1}
cut_waits_ms=3000 # so that a cut takes something away
# Programs write as fast as they can, and etcd keeps much.
bytes=$((2 << 30))
kinds=(sqlite-delete sqlite-truncate sqlite-wal maildir)
command -v postgres >/dev/null && command -v initdb >/dev/null && kinds+=(postgres) ||
	skip_part postgres "it is not installed (Debian: postgresql)"
command -v etcd >/dev/null && kinds+=(etcd) || skip_part etcd "it is not installed (Debian: etcd-server)"

# postgres runs as another user.
chmod 711 "$work" "$shm"

run_programs() {
	local kind
	for kind in "${kinds[@]}"; do
		setsid python3 "$root/tests/mount/commits.py" run "$kind" "$work/disk/tree/$kind" "$shm/$kind.acknowledged" >>"$work/$kind.log" 2>&1 &
		programs+=($!)
	done
}
# Each program leads its own process group.  The mount's server is killed too.
cut_power() {
	cut_disk
	kill_mount
	end_programs
	stop_disk
}

verify() {
	local kind
	: >"$work/verify.log"
	for kind in "${kinds[@]}"; do
		python3 "$root/tests/mount/commits.py" verify "$kind" "$work/disk/tree/$kind" "$shm/$kind.acknowledged" >>"$work/verify.log" 2>&1 || return 1
	done
}

# Makes a new file system and pool; the files that programs make at their start are
# replayed.
prepare() { # SYSTEM
	local kind
	rm -f "$work/platter" "$pool" "$shm"/*.acknowledged
	truncate -s $bytes "$work/platter"
	start_disk "$1"
	mkdir -p "$work/disk/tree"
	for kind in "${kinds[@]}"; do
		mkdir "$work/disk/tree/$kind"
		: >"$shm/$kind.acknowledged"
	done
	start_mount "$work/disk/tree"
	verify || { cat "$work/verify.log" >&2; fail "$1: the programs do not start"; }
}

# Runs programs on a mount, cuts the power, and lets the disk return, without mounting it.
cut_under_load() {
	run_programs
	sleep "$((1 + RANDOM % 3)).$((RANDOM % 10))"
	cut_power
	lost=$((lost + $(sectors_lost)))
	# Sometimes the machine is off for a while, because changes by ext4 at its next mount
	# have a time of their own.
	((round % 3)) || sleep 6
	start_disk
}

acknowledged() { cat "$shm"/*.acknowledged | wc -l; }

for system in "${systems[@]}"; do
	need "mkfs.$system"
	lost=0 before=0
	prepare "$system"
	# If the disk keeps some version of each sector, a cut may take nothing.  Then there are
	# more rounds.
	for ((round = 1; round <= cuts || (lost == 0 && round <= cuts + 8); round++)); do
		cut_under_load
		start_mount "$work/disk/tree"
		verify || { cat "$work/verify.log" >&2; fail "$system, cut $round: a commit that was acknowledged is lost (seed $seed)"; }
		# Every check reads everything, and the disk is small, so the test begins
		# again.
		if ((round % 5 == 0 && round < cuts)); then
			before=$((before + $(acknowledged)))
			stop_mount
			stop_disk
			prepare "$system"
		fi
	done
	[ $lost -gt 0 ] || fail "the cuts took nothing away: the test tested less than it says"
	say "$system: $cuts cuts took $lost sectors, and none of $((before + $(acknowledged))) commits; at the end $(tr '\n' ';' <"$work/verify.log")"
	stop_mount
	stop_disk
done

# Without the log the tree has only the data of the file system, which is less than was
# promised.
kinds=(maildir)
prepare "${systems[0]}"
for ((round = 1; round <= 5; round++)); do
	cut_under_load
	"$FOREBAY" log destroy "$pool" mount --discard >/dev/null
	! "$FOREBAY" mount "$pool" "$work/disk/tree" 2>/dev/null || fail "a tree whose log was thrown away is mounted"
	"$FOREBAY" unmark "$work/disk/tree" --accept-loss >/dev/null
	start_mount "$work/disk/tree"
	verify || break
done
grep -q 'lost \[[0-9]' "$work/verify.log" || { cat "$work/verify.log" >&2; fail "5 cuts whose log was thrown away lost nothing: the test finds nothing"; }
say "a cut whose log was thrown away: $(head -n 1 "$work/verify.log")"
stop_mount
