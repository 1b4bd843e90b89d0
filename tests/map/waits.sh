#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# waits.sh [ROUNDS] - a program is killed, and its file is copied at once (20).
# Goal: who opens the file of a killed program waits until the server has written it back, and
# sees all that was acknowledged.
# Method: waits.c fills a file, syncs, and kills itself before much is written back.  cp, cat of the
# second half, and a shell that appends follow at once.  So they do where a child of the program
# lives on.  After an exec by an instruction nobody waits for long, and the file has everything
# later.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../serve/lease-time.sh"
rounds=${1:-20}
file=$work/file.map
mib=32
compile waits
make_map 128M 64M
lease_time_stays
# Zeroes, so that each round's bytes are other ones than those before.
fresh() { rm -f "$file"; dd if=/dev/zero of="$file" bs=1M count=$mib status=none; }
# filled FILE NUMBER: the whole of it is that number, and nothing else.
filled() { python3 - "$1" "$2" "$mib" <<'EOF'
import sys
data = open(sys.argv[1], "rb").read()
want = bytes([int(sys.argv[2])])
sys.exit(data[:int(sys.argv[3]) << 20] != want * (int(sys.argv[3]) << 20))
EOF
}
# ends WAY NUMBER: runs it to its end, which the shell reports for a kill.
ends() {
	local code=0
	mapped "$work/waits" "$1" "$file" "$2" >"$work/said" 2>"$work/says" || code=$?
	[ "$(cat "$work/said")" = "$2" ] || { cat "$work/says" >&2; fail "$1: nothing was acknowledged"; }
	[ $code = 137 ] || fail "$1: it ended with $code"
}

start_server
for way in kill child; do
	late=0
	[ $way = kill ] || rounds=3
	for ((i = 1; i <= rounds; i++)); do
		fresh
		ends $way $i
		"$FOREBAY" map list "$pool" | grep -q 'nothing to recover' || late=$((late + 1))
		cat "$file" >"$work/cat" &
		cat=$!
		echo more >>"$file" &
		append=$!
		cp "$file" "$work/copy"
		filled "$work/copy" $i || fail "$way, round $i: the copy lacks what was acknowledged"
		wait $cat || fail "$way, round $i: cat"
		filled "$work/cat" $i || fail "$way, round $i: cat lacks what was acknowledged"
		wait $append || fail "$way, round $i: append"
		[ "$(tail -c 5 "$file")" = more ] || fail "$way, round $i: what was appended is lost"
		recover
	done
	[ $late -gt 0 ] || fail "$way: each file was written back before it was opened: nothing was tested"
	say "$way: $((i - 1)) rounds, $late with pages left at the open"
done

# The program that was executed answers nobody.
fresh
begin exec "$work/waits" exec "$file" 77
for ((tries = 0; tries < 600; tries++)); do
	[ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" = '/bin/sleep 60 ' ] && break
	sleep 0.05
done
begun=$EPOCHREALTIME
cp "$file" "$work/copy"
awk "BEGIN { exit $EPOCHREALTIME - $begun > 25 }" || fail "exec: an open waits for a program that is not there"
killed $pid
recover
filled "$file" 77 || fail "exec: lost"
stop_server
