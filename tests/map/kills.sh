#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# kills.sh [N] - N kills (5) of each of four unmodified programs, on a pool of their own.  It makes
# as many on a pool that is served.
# Goal: LMDB's commits, and what a log has synced by msync, are there after kill -9.
# Method: three kinds of program.  LMDB of Debian, with and without MDB_WRITEMAP. A log that is
# appended to by a mapping whose file grows.  Lines that are written to a file's end, each with an
# fdatasync.  After the last line only the one under way may follow, zero from a page on.  They run
# by `forebay map-run`.  Within 0.7 s of their first word the program, its server, or both are
# killed.  After a recovery everything is read without Forebay.  The files stay the same all the
# time.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need mdb_stat mdb_copy
[ -f /usr/include/lmdb.h ] || skip "no lmdb.h (Debian: apt install liblmdb-dev)"
kills=${1:-5}
compile program
compile lmdb -llmdb
make_map 160M 128M

total=0 lost=0
ended() { # NUMBER: prints what to kill
	[ -n "$server" ] || { echo program; return; }
	local all=(program server both)
	echo "${all[$1 % 3]}"
}
round() { # NUMBER
	local i=$1 how file last ends
	for how in writemap pwrite; do
		file=$work/$how.map
		ends=$(ended $((i + ${#how})))
		kill_one "lmdb $how" "$file" "$work/lmdb" run "$file" $how
		last=$("$work/lmdb" check "$file") || fail "lmdb $how: the environment is damaged"
		[ "$last" -ge "$acknowledged" ] || { lost=$((lost + 1)); say "lmdb $how: $acknowledged was acknowledged, $last is there"; }
		mdb_stat -an "$file" >/dev/null || fail "lmdb $how: mdb_stat"
		rm -f "$work/copy"
		mdb_copy -n "$file" "$work/copy" || fail "lmdb $how: mdb_copy"
		total=$((total + 1))
	done
	file=$work/log.map
	[ $((i % 8)) -ne 0 ] || rm -f "$file"
	ends=$(ended "$i")
	kill_one log "$file" "$work/program" log "$file"
	last=$("$work/program" last-log "$file")
	[ "$last" -ge "$acknowledged" ] || { lost=$((lost + 1)); say "log: $acknowledged was acknowledged, $last is there"; }
	total=$((total + 1))
	file=$work/lines.map
	[ $((i % 8)) -ne 0 ] || rm -f "$file"
	ends=$(ended $((i + 1)))
	kill_one lines "$file" "$work/program" lines "$file"
	last=$("$work/program" last-line "$file") || fail "lines: one is damaged, or there is more behind the last"
	[ "$last" -ge "$acknowledged" ] || { lost=$((lost + 1)); say "lines: $acknowledged was acknowledged, $last is there"; }
	total=$((total + 1))
}
for ((i = 0; i < kills; i++)); do round "$i"; done
say "$total kills of programs that have the pool alone"
start_server
for ((i = 0; i < kills; i++)); do round "$i"; done
stop_server
say "$total kills, $lost with something lost; lmdb has $("$work/lmdb" check "$work/writemap.map") commits by writemap, $("$work/lmdb" check "$work/pwrite.map") by pwrite; the log $("$work/program" last-log "$work/log.map") records, and $("$work/program" last-line "$work/lines.map") lines"
[ "$lost" -eq 0 ] || fail "acknowledged and lost: $lost"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
