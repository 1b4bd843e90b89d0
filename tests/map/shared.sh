#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# shared.sh [N] - programs that know of nothing, and share files: N kills (6).
# Goal: processes that have the same file by `forebay map-run --shared` have one file.  LMDB's
# readers and writers run in several processes, several processes write to its end, and there are
# locks between them.  What any of them has committed is there after kill -9 of one, of the server,
# of all.
# Method: LMDB of Debian, two processes that commit and one that reads all again and again.  One
# process, the server, or all are killed.  Then all is read without Forebay.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need mdb_stat mdb_copy jq
[ -f /usr/include/lmdb.h ] || skip "no lmdb.h (Debian: apt install liblmdb-dev)"
kills=${1:-6}
compile program
compile lmdb -llmdb
compile together
make_map 160M 128M
share=--shared

refused() { # WORDS PROGRAM...: it ends, and says so
	"${@:2}" >"$work/refused" 2>&1 && fail "not refused: ${*:2}"
	grep -q "$1" "$work/refused" || { cat "$work/refused" >&2; fail "it does not say: $1"; }
}

refused 'forebay serve' mapped "$work/together" append "$work/a.map" 1 1
start_server

# Two processes append records to one file.  All records are there, whole, and none
# overwrites another.  A third one sees no record before its bytes.
mapped "$work/together" watches "$work/a.map" 8000 & third=$!
mapped "$work/together" append "$work/a.map" 1 4000 & one=$!
mapped "$work/together" append "$work/a.map" 2 4000 & two=$!
wait $third || fail "append: a size before the bytes"
wait $one || fail "append: the first one"
wait $two || fail "append: the second one"
"$work/together" appended "$work/a.map" 1 4000 2 4000 || fail "append: a record is missing, or torn"
# Processes share a counter in the mapping, under a lock of fcntl.
mapped "$work/together" count "$work/b.map" 3000 & one=$!
mapped "$work/together" count "$work/b.map" 3000 & two=$!
wait $one || fail "count: the first one"
wait $two || fail "count: the second one"
[ "$("$work/together" counted "$work/b.map")" = 6000 ] || fail "count: locks are not kept: $("$work/together" counted "$work/b.map")"
# Other processes see a lock.  It ends with its process, though a child of that process lives,
# and when the process closes any descriptor of the file.
begin holder "$work/together" holds "$work/b.map"
child=$(last_said holder)
mapped "$work/together" tests "$work/b.map" locked || fail "locks: not seen by another process"
killed $pid
mapped "$work/together" tests "$work/b.map" free || fail "locks: a child has that of its parent, which is dead"
kill -KILL "$child"
begin holder "$work/together" closes "$work/b.map"
mapped "$work/together" tests "$work/b.map" free || fail "locks: one is there still whose file was closed"
killed $pid
# A program that does not share the file is refused by name, and the other way round.
begin holder "$work/program" log "$work/c.map"
share='' refused 'has it mapped' mapped "$work/program" last-log "$work/c.map"
killed $pid
recover || fail "holder: not recovered"
share='' begin holder "$work/program" log "$work/c.map"
refused 'has it mapped' mapped "$work/program" last-log "$work/c.map"
killed $pid
recover || fail "holder: not recovered"
say "appends, locks and refusals of processes that share files"

# The server keeps a file in memory, for programs that share it.
head -c 10M /dev/urandom >"$work/kept.map"
cp "$work/kept.map" "$work/as-it-was"
"$FOREBAY" map pin "$pool" "$work/kept.map" --from 2M --to 8M | grep -q '6 MiB' || fail "pin: it does not say how much"
"$FOREBAY" map list "$pool" | grep -q 'kept.map.*6 MiB kept' || fail "pin: not in the list"
"$FOREBAY" map status "$pool" --json | jq -e '.[0].frames_locked == 3' >/dev/null || fail "pin: not in the status"
share='' refused 'has it mapped' mapped "$work/program" last-log "$work/kept.map"
mapped cmp "$work/kept.map" "$work/as-it-was" || fail "pin: it is not what it was"
truncate -s 1G "$work/large.map"
refused 'segments to be locked' "$FOREBAY" map pin "$pool" "$work/large.map"
refused 'nothing is between' "$FOREBAY" map pin "$pool" "$work/kept.map" --from 4M --to 4M
refused 'none.map' "$FOREBAY" map pin "$pool" "$work/none.map"
"$FOREBAY" map pin "$pool" "$work/kept.map" --off >/dev/null || fail "pin: --off"
"$FOREBAY" map list "$pool" | grep -q 'nothing to recover' || { "$FOREBAY" map list "$pool" >&2; fail "pin: something stays"; }
cmp "$work/kept.map" "$work/as-it-was" || fail "pin: the file is not what it was"
say "a file that is kept in memory"

lost=0
for ((i = 0; i < kills; i++)); do
	how=writemap
	[ $((i % 2)) = 0 ] || how=pwrite
	file=$work/$how.map
	pids=() most=0
	for n in 1 2; do
		begin "writer$n" "$work/lmdb" share "$file" $how
		pids+=("$pid")
	done
	begin watcher "$work/lmdb" watch "$file"
	pids+=("$pid")
	sleep "0.$(printf %03d $((RANDOM % 700)))"
	case $((i % 3)) in
	0) # one of those that commit: the others go on
		killed "${pids[0]}" || fail "$how: the first one ended by itself"
		unset 'pids[0]'
		before=$(last_said writer2)
		for ((tries = 0; tries < 400; tries++)); do
			[ "$(last_said writer2)" -gt "$((before + 50))" ] && break
			sleep 0.05
		done
		[ "$(last_said writer2)" -gt "$((before + 50))" ] || { cat "$work"/*.says >&2; fail "$how: beside one that was killed the other one does not go on"; } ;;
	1) kill_server ;;
	esac
	for pid in "${pids[@]}"; do killed "$pid" || [ $((i % 3)) = 1 ] || { cat "$work"/*.says >&2; fail "$how: one ended by itself"; }; done
	[ -n "$server" ] || start_server
	recover || fail "$how: $file: not recovered"
	for n in 1 2; do
		said=$(last_said "writer$n")
		[ "${said:-0}" -le "$most" ] || most=$said
	done
	last=$("$work/lmdb" check "$file") || fail "$how: the environment is damaged"
	[ "$last" -ge "$most" ] || { lost=$((lost + 1)); say "$how: $most was acknowledged, $last is there"; }
	mdb_stat -an "$file" >/dev/null || fail "$how: mdb_stat"
	rm -f "$file-lock"
done
stop_server
say "$kills kills of processes that share an LMDB, $lost with something lost; $("$work/lmdb" check "$work/writemap.map") commits by writemap, $("$work/lmdb" check "$work/pwrite.map") by pwrite"
[ "$lost" -eq 0 ] || fail "acknowledged and lost: $lost"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
