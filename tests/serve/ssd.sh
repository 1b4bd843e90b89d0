#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a volume whose pool lies on an SSD keeps what its clients were promised, with the whole
# program over NBD. With --durable always that is each acknowledged write, and with --durable flush
# what had FUA or a later flush.  This holds after the server is killed, where flushes fail, and
# after a power cut that takes from the pool's disk and from the origin's what was not flushed.
# When the pool's disk is lost, the origin gets everything from memory, and the server says so with
# an exit code of its own.
# Method: two disks that forget what was not flushed (volatile_disk.c), the pool's as a block
# device. nbdload.c writes, flushes and reads concurrently and knows what is promised.  The pool is
# smaller than what is written, so destage and waits for space take part.  A disk whose flush does
# nothing must be found in each mode.
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
# Reads a field of the volume's status.
field() { "$FOREBAY" status "$pool" --json | grep "\"$1\":" | tail -n 1 | sed 's/.*: //; s/,$//'; }
because() { "$FOREBAY" status "$pool" --json | sed -n 's/^ *"durable_because": "\(.*\)",*$/\1/p'; }
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
# Drains, cuts the power, and checks the origin alone.
drained() { # WHAT
	start_disks
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || { show "$work/drain.log"; fail "$1: drain"; }
	"$FOREBAY" check "$pool" >"$work/check.log" 2>&1 || { show "$work/check.log"; fail "$1: check"; }
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "$1: drained, and the origin alone lacks something (seed $seed)"; }
}

for durable in always flush; do
	# The server is killed, on disks that keep their power.
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

	# The power fails, and then again with the remaining data.
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

# --- one error of the pool's disk ------------------------------------------------------------

# The error of one request is noticed and loses nothing.  Reads go wrong while the pool is opened.
all_again=0
for durable in always flush; do
	for trouble in fail_write=60 fail_flush=20 fail_read=40; do
		new_case
		start_disks
		begin_load $durable
		sleep 0.4
		cut_all
		end_load "$durable, before $trouble"
		stop_disks
		verified || { show "$work/verify.log"; fail "$durable, before $trouble: promised and not there (seed $seed)"; }
		start_disks $trouble
		begin_load $durable
		# One that is not that of a group, but of a record, is sent once more and counted nowhere.
		for ((tries = 0; tries < 20; tries++)); do
			sleep 0.1
			again=$(field again)
			[ "$again" = 0 ] || break
		done
		cut_all
		end_load "$durable, $trouble"
		errors=$(sed -n 's/^cut:.* \([0-9]*\) failed,.*/\1/p' "$work/ssd.log" | head -n 1)
		stop_disks
		[ "$errors" = 1 ] || fail "$durable, $trouble: $errors requests failed, and not one"
		verified || { show "$work/verify.log"; fail "$durable, $trouble: promised and not there (seed $seed)"; }
		drained "$durable, $trouble"
		all_again=$((all_again + again))
		say "one error, $durable, $trouble: $again groups again; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
	done
done

[ $all_again -gt 0 ] || fail "no group was written again: the test tested less than it says"

# --- how the server decides --------------------------------------------------------------

new_case
for us in 0 3000; do
	start_disks flush_us=$us
	start_server
	case $us in 0) ;; *) [ "$(field durable)" = '"flush"' ] || fail "a flush of $us us: writes are durable by $(field durable)" ;; esac
	case $(field durable)$(because) in
	'"always"auto: '*', less than 200 us' | '"flush"auto: '*', 200 us or more') ;;
	*) fail "a flush of $us us: writes are durable by $(field durable), because $(because)" ;;
	esac
	say "a flush of $us us: by itself $(field durable); $("$FOREBAY" status "$pool" | grep -o 'durable by .* at best')"
	"$FOREBAY" set "$pool" --durable always >"$work/set.log" 2>&1 || fail "set: $(cat "$work/set.log")"
	[ "$(field durable)$(because)" = '"always"it was asked for' ] || fail "set --durable always: $(field durable), because $(because)"
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
	# Writes that were not promised may be there too.  The cut of the origin removes nothing
	# that was flushed.
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "a lost disk, $durable: the origin lacks what was acknowledged (seed $seed)"; }
	# The disk returns.  Its pool must not reach an origin that may have been written since.
	start_disks
	code=0
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || code=$?
	[ $code = 6 ] || fail "a disk that came back, $durable: drain ends with $code: $(cat "$work/drain.log")"
	stop_disks
	load verify-file "$shm/origin.platter" "$work/log" >"$work/verify.log" || fail "a disk that came back, $durable: the origin was changed"
	say "a lost disk, $durable: exit code 20, all is on the origin, and the disk that comes back is refused; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
done

# --- the server ends in the middle of a rescue -----------------------------------------------

# The disk comes back, and nothing that was acknowledged is lost.  Until then the origin says that it
# may lack writes.
for ends in KILL TERM; do
	for durable in always flush; do
		new_case
		of_origin="write_us=4000000 flush_us=500000"
		start_disks
		of_origin=''
		begin_load $durable
		# On a busy machine nothing is cached for a while.  Status is not asked: it waits for the origin.
		sleep 2
		cut_drive ssd "$ssd"
		for ((tries = 0; tries < 600; tries++)); do
			! grep -q 'is being written to their origins' "$work/server.log" || break
			sleep 0.05
		done
		[ $tries -lt 600 ] || fail "a rescue, $durable: the server does not say that its disk has failed: $(cat "$work/server.log")"
		sleep 0.3
		if [ $ends = KILL ]; then
			kill_server 2>/dev/null
		else # the second signal gives it up
			# A second one less than half a second later counts as the same.
			kill -TERM "$server"
			for ((tries = 0; tries < 60; tries++)); do
				sleep 0.8
				kill -TERM "$server" 2>/dev/null || break
			done
			code=0
			wait "$server" || code=$?
			server=''
			[ $code = 19 ] || fail "a rescue that was given up, $durable: the server ends with $code: $(tail -n 2 "$work/server.log")"
		fi
		end_load "a rescue, $durable"
		code=0
		"$FOREBAY" origin status "$work/origin/disk" >"$work/origin.log" 2>&1 || code=$?
		[ $code = 14 ] || fail "a rescue that did not end, $durable: origin status ends with $code: $(cat "$work/origin.log")"
		stop_disks
		verified || { show "$work/verify.log"; fail "a rescue and SIG$ends, $durable: promised and not there when the disk is back (seed $seed)"; }
		drained "a rescue and SIG$ends, $durable"
		say "SIG$ends in a rescue, $durable: the origin says that it may lack writes, and nothing is lost when the disk is back; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
	done
done

# --- a disk that lies must be found ----------------------------------------------------------

# A pool that cannot be opened counts as found too.
search() {
	(
		trap 'kill -KILL "$server" 2>/dev/null || true; stop_disks' EXIT
		verified
	) >"$work/lie.log" 2>&1
}
for durable in always flush; do
	for try in 1 2 3 4; do # a load that gets no time has nothing promised
		new_case
		cut_load $durable 1 lie=1 keep=0
		: >"$work/verify.log"
		search || break
		[ $try != 4 ] || fail "a pool's disk whose flush does nothing was not found ($durable)"
	done
	say "a flush that does nothing is found, $durable: $(cat "$work/verify.log" "$work/lie.log" | grep -m 1 -e 'nbdload: ' -e FAILED); $(tail -n 1 "$work/server.log" | grep -o 'the pool is an older copy' || true)"
done
