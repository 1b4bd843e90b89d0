#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program that ends in any way that runs code of its own keeps what it has stored.  Signals,
# jumps, cancellation, handlers in children and locks in a mapping do what they do without us.
# Method: ends.c, each way with and without map-run, several times where threads race.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile_ends
make_map 128M 64M
ends=$work/ends

ends_so() { # WAY
	local tries=1 try code
	case $1 in beside-open | beside-copy | handler-* | two-exits) tries=${TRIES:-8} ;; esac
	for ((try = 0; try < tries; try++)); do
		rm -f "$work"/end.map*
		code=0
		ROOM=8M mapped timeout -s KILL 40 "$ends" end "$1" "$work/end.map" 2>"$work/says" || code=$?
		[ "$code" = 0 ] || fail "$1: ended with $code: $(cat "$work/says")"
		grep -aq 'last, ' "$work/end.map" || fail "$1: what was stored last is lost: $(cat "$work/says")"
		[ ! -s "$work/says" ] || fail "$1: $(cat "$work/says")"
	done
}
ways=0
while read -r way; do
	rm -f "$work"/plain*
	"$ends" end "$way" "$work/plain.dat" || fail "$way of a plain file"
	grep -aq 'last, ' "$work/plain.dat" || fail "$way of a plain file: not stored"
	ends_so "$way"
	ways=$((ways + 1))
done < <("$ends" list)
say "$ways ways to end: passed"

rm -f "$work"/end.map*
code=0
ROOM=8M mapped timeout -s KILL 40 "$ends" syncs "$work/end.map" 2>"$work/says" || code=$?
[ "$code" = 137 ] || fail "a sync next to a close: $code $(cat "$work/says")"
recover || fail "a sync next to a close: not recovered"
grep -aq 'last, ' "$work/end.map" || fail "a sync next to a close: what was synced is lost"
say "a sync next to a close: passed"

for call in msync fsync store msync-handler fsync-handler store-handler; do
	for ((try = 0; try < 3; try++)); do
		rm -f "$work"/end.map* "$work/ack"
		code=0
		ROOM=32M mapped timeout -s KILL 60 "$ends" acks "$call" "$work/ack" "$work/end.map" 2>"$work/says" || code=$?
		[ "$code" = 0 ] || fail "$call beside an end: $code $(cat "$work/says")"
		"$ends" acked "$work/ack" "$work/end.map" || fail "$call beside an end: what it has acknowledged is lost"
	done
	say "$call beside an end: passed"
done

for what in signals cancel futex children; do
	rm -f "$work"/plain* "$work"/what.map*
	timeout -s KILL 60 "$ends" "$what" "$work/plain.dat" || fail "$what of a plain file"
	ROOM=256M mapped timeout -s KILL 60 "$ends" "$what" "$work/what.map" 2>"$work/says" || fail "$what: $? $(cat "$work/says")"
	say "$what: passed"
done
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
