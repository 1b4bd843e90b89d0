#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a volume whose pool lies on an SSD keeps what its clients were promised, with the whole
# program over NBD: each acknowledged write with --durable always, and with --durable flush what had
# FUA or a later flush.  So after the server is killed, after a power cut that takes from the pool's
# disk and from the origin's what was not flushed, and where flushes fail.  When the pool's disk is
# lost, the origin gets everything from memory, and the server says so with an exit code of its own.
# Method: two disks that forget what was not flushed (volatile_disk.c), the pool's as a block device;
# nbdload.c writes, flushes and reads concurrently and knows what is promised.  The pool is smaller
# than what is written, so destage and waits for space take part.  A disk whose flush does nothing must
# be found in each mode.
#	ssd.sh [ROUNDS]	cuts and kills of each kind (2)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
rounds=${1:-2}
seed=${SEED:-1}
bytes=$((16 << 20)) # of the volume: nbdload's
. "$(dirname "$0")/ssd-disks.sh"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/nbdload" "$root/tests/serve/nbdload.c"
load() { "$work/nbdload" "$@"; }
new_case() { rm -f "$work/log" && fresh; }
show() { sed 's/^/  /' "$1" >&2; }

make_template

# --- loads -----------------------------------------------------------------------------

declare -A promise=([always]="" [flush]=past)
# shellcheck disable=SC2086 # a word or none
begin_load() { # DURABLE
	start_server --durable "$1"
	load load "$work/run/nbd" data "$work/log" 60 $seed ${promise[$1]} >"$work/load.log" 2>&1 &
	loader=$!
}
end_load() { # WHAT
	wait "$loader" || { show "$work/load.log"; fail "$1: the load found what must not be (seed $seed)"; }
	grep -q 'the server is gone' "$work/load.log" || { show "$work/load.log"; fail "$1: the load ended before the cut"; }
}
# Of the volume.
field() { "$FOREBAY" status "$pool" --json | grep "\"$1\":" | tail -n 1 | sed 's/.*: //; s/,$//'; }
# cut_load DURABLE SECONDS KEY=NUMBER...: the power fails under it.
total=0
cut_load() {
	local durable=$1 seconds=$2
	shift 2
	start_disks keep=$((seed % 2)) "$@"
	begin_load "$durable"
	sleep "$seconds"
	cut_all
	total=$((total + lost))
	end_load "$durable"
	stop_disks
}
verified() {
	local rc=0
	start_disks
	start_server
	load verify "$work/run/nbd" data "$work/log" >"$work/verify.log" 2>&1 || rc=$?
	kill_server 2>/dev/null
	stop_disks
	return $rc
}
# The origin alone, after a drain, with the power cut after it.
drained() { # WHAT
	start_disks
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || { show "$work/drain.log"; fail "$1: drain"; }
	"$FOREBAY" check "$pool" >"$work/check.log" 2>&1 || { show "$work/check.log"; fail "$1: check"; }
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "$1: drained, and the origin alone lacks something (seed $seed)"; }
}

for durable in always flush; do
	# Killed, on disks that keep their power.
	new_case
	start_disks
	for ((round = 0; round < 2 * rounds; round++)); do
		begin_load $durable
		sleep 0.4
		[ "$(field durable)" = "\"$durable\"" ] || fail "status says that writes are durable by $(field durable), not $durable"
		kill_server 2>/dev/null
		end_load "killed, $durable"
		start_server
		load verify "$work/run/nbd" data "$work/log" >"$work/verify.log" 2>&1 || { show "$work/verify.log"; fail "killed, $durable: promised and not there (seed $seed)"; }
		kill_server 2>/dev/null
	done
	stop_disks
	drained "killed, $durable"
	say "killed $round times, $durable: $(sed -n 's/^nbdload: //p' "$work/verify.log")"

	# The power fails; then again on what is left.
	for trouble in flush_us=0 flush_us=3000 "flush_us=500 fail=9"; do
		new_case
		before=$total
		for ((round = 0; round < rounds; round++)); do
			# shellcheck disable=SC2086 # words
			cut_load $durable 0.7 $trouble
			verified || { show "$work/verify.log"; fail "$durable, $trouble: promised and not there (seed $seed)"; }
		done
		drained "$durable, $trouble"
		say "$round power cuts, $durable, $trouble: $((total - before)) sectors lost of the pool's disk; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
	done
done
[ $total -gt 0 ] || fail "the cuts took nothing away: the test tested less than it says"

# --- how the server decides --------------------------------------------------------------

new_case
for us in 0 3000; do
	start_disks flush_us=$us
	start_server
	case $us in 0) ;; *) [ "$(field durable)" = '"flush"' ] || fail "a flush of $us us: writes are durable by $(field durable)" ;; esac
	say "a flush of $us us: by itself $(field durable); $("$FOREBAY" status "$pool" | grep -o 'durable by .* at best')"
	"$FOREBAY" set "$pool" --durable always >"$work/set.log" 2>&1 || fail "set: $(cat "$work/set.log")"
	[ "$(field durable)" = '"always"' ] || fail "set --durable always: $(field durable)"
	stop_server
	stop_disks
done

# --- the pool's disk is lost ---------------------------------------------------------------

for durable in always flush; do
	new_case
	start_disks
	begin_load $durable
	sleep 0.7
	cut_drive ssd "$ssd"
	for ((tries = 0; tries < 600; tries++)); do
		[ "$(field rescued)" = true ] && break
		sleep 0.05
	done
	[ $tries -lt 600 ] || fail "a lost disk, $durable: the origin does not get everything in 30 s: $("$FOREBAY" status "$pool")"
	"$FOREBAY" status "$pool" >"$work/status"
	grep -q "the pool's disk has failed, and the origin alone is complete" "$work/status" || fail "a lost disk: status does not say it: $(cat "$work/status")"
	code=0
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || code=$?
	[ $code = 20 ] || fail "a lost disk, $durable: drain ends with $code: $(cat "$work/drain.log")"
	kill -TERM "$server"
	code=0
	wait "$server" || code=$?
	server=''
	[ $code = 20 ] || fail "a lost disk, $durable: the server ends with $code"
	end_lost=0
	wait "$loader" || end_lost=$?
	[ $end_lost = 0 ] || { show "$work/load.log"; fail "a lost disk, $durable: the load found what must not be"; }
	"$FOREBAY" origin status "$work/origin/disk" >"$work/origin.log" 2>&1 || fail "a lost disk, $durable: the origin is not said to be complete: $(cat "$work/origin.log")"
	# What nobody was promised may be there too, and what the origin's own cut may take was flushed.
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "a lost disk, $durable: the origin lacks what was acknowledged (seed $seed)"; }
	# The disk comes back: its pool does not get at an origin that may have been written since.
	start_disks
	code=0
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || code=$?
	[ $code = 6 ] || fail "a disk that came back, $durable: drain ends with $code: $(cat "$work/drain.log")"
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || fail "a disk that came back, $durable: the origin was changed"
	say "a lost disk, $durable: exit code 20, all is on the origin, and the disk that comes back is refused; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
done

# --- a disk that lies must be found ----------------------------------------------------------

# A pool that does not even open is found, too.
search() {
	(
		trap 'kill -KILL "$server" 2>/dev/null || true; stop_disks' EXIT
		verified
	) >"$work/lie.log" 2>&1
}
for durable in always flush; do
	new_case
	cut_load $durable 1 lie=1 keep=0
	: >"$work/verify.log"
	! search || fail "a pool's disk whose flush does nothing was not found ($durable)"
	say "a flush that does nothing is found, $durable: $(cat "$work/verify.log" "$work/lie.log" | grep -m 1 -e 'nbdload: ' -e FAILED); $(tail -n 1 "$work/server.log" | grep -o 'the pool is an older copy' || true)"
done
