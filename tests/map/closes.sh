#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a close of one file holds up no other file.  Stores to any file before the end of
# the program are kept, even if the program is killed while it closes the first one.
# Method: closes.c, with and without map-run; a thread is stopped in its close by ptrace.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile closes
make_map 64M 32M

for what in paths others; do
	timeout 30 "$work/closes" $what "$work/plain.dat" >/dev/null || fail "$what of a plain file"
	: >"$work/said"
	ROOM=4M mapped timeout -s KILL 60 "$work/closes" $what "$work/$what.map" >"$work/said" 2>"$work/says" &
	pid=$!
	if [ $what = others ]; then
		# Another program reads the file meanwhile.
		for _ in $(seq 600); do [ ! -s "$work/said" ] || break; sleep 0.02; done
		began=$(date +%s%N)
		[ "$(head -c 6 "$work/others.map")" = stored ] || fail "a reader during a close of another file does not see what was stored: $(cat "$work/says")"
		took=$((($(date +%s%N) - began) / 1000000))
		[ "$took" -lt 1500 ] || fail "a reader waits $took ms for a close of another file"
	fi
	wait $pid || fail "$what: $? $(cat "$work/says")"
	[ ! -s "$work/says" ] || fail "$what: $(cat "$work/says")"
	say "$what: passed"
done

timeout 30 "$work/closes" numbers "$work/plain.dat" || fail "numbers of a plain file"
ROOM=4M mapped timeout -s KILL 60 "$work/closes" numbers "$work/numbers.map" 2>"$work/says" || fail "numbers: $? $(cat "$work/says")"
grep -q 'has closed a descriptor of the library' "$work/says" || fail "numbers: not told: $(cat "$work/says")"
[ "$(tr -d o <"$work/numbers.map.2.map" | wc -c)" = 0 ] || fail "numbers: a file has what is another one's"
[ "$(stat -c %s "$work/numbers.map" "$work/numbers.map.2.map" | tr '\n' ' ')" = "65536 65536 " ] || fail "numbers: a file has another size"
recover || fail "numbers: not recovered: $(cat "$work/recovered")"
[ "$(grep -ao first "$work/numbers.map" | wc -l)" = 8 ] || fail "numbers: what was synced is lost"
say "numbers: passed"

code=0
ROOM=4M mapped timeout -s KILL 60 "$work/closes" killed "$work/killed.map" 2>"$work/says" || code=$?
[ "$code" = 137 ] || fail "killed in the first close: ended with $code: $(cat "$work/says")"
recover || fail "killed in the first close: not recovered"
for file in "$work/killed.map" "$work/killed.map.2.map"; do
	grep -aq 'last, before the end' "$file" || fail "killed in the first close: what was stored in ${file##*/} is lost"
done
say "killed in the first close of the end: passed"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
