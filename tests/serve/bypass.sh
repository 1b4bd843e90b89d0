#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: writes past the cache, by size and because the pool is full, lose nothing that was
# acknowledged when the server is killed.  Small writes go to the same blocks meanwhile.
# Method: tests/vm/ackload.c over nbdfuse writes 512 B to 64 KiB on 16 MiB through a pool of 4 MiB
# and logs what was acknowledged.  Then SIGKILL in the middle, start, verify; each way several
# times, then drained and verified on the origin alone.  It also runs once with a pool that nothing
# leaves and an origin that forgets the last moments, so that only writes past the cache are lost.
# The test must find that.
# shellcheck disable=SC2119,SC2016 # no arguments on purpose; expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdfuse fusermount3 gcc
[ -e /dev/fuse ] || skip "no /dev/fuse"

gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/ackload" "$root/tests/vm/ackload.c"

mkdir "$work/fuse"
fuse=''
connect() {
	start_server "$@"
	nbdfuse "$work/fuse/nbd" "$(uri data)" 2>>"$work/fuse.log" &
	fuse=$!
	local tries
	for ((tries = 0; tries < 200; tries++)); do
		[ -s "$work/fuse/nbd" ] && return
		sleep 0.05
	done
	cat "$work/fuse.log" >&2
	fail "nbdfuse"
}
disconnect() {
	[ -n "$fuse" ] && { fusermount3 -u "$work/fuse" 2>/dev/null || fusermount3 -uz "$work/fuse"; wait "$fuse" 2>/dev/null || true; }
	fuse=''
}
at_end disconnect
counter() { "$FOREBAY" status "$pool" --json | sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" | awk '{ sum += $1 } END { print sum + 0 }'; }
fresh() { # SIZE of the pool
	rm -f "$pool" "$work/data.img" "$work/log"
	"$FOREBAY" create "$pool" --size "$1" --chunk-size 64K >/dev/null
	truncate -s 16M "$work/data.img"
	"$FOREBAY" volume add "$pool" data "$work/data.img" >/dev/null
	truncate -s 128K "$work/log"
}

# halfway, when it is a command, runs in the middle of the load.
halfway=:
# killed SECONDS OPTIONS...: load, SIGKILL in the middle; adds to past, through, acked.
past=0 through=0
killed() {
	local seconds=$1 loader
	shift
	connect "$@"
	"$work/ackload" load "$work/fuse/nbd" "$work/log" 60 $((RANDOM + 1)) >>"$work/ackload.log" 2>&1 &
	loader=$!
	sleep "$seconds"
	$halfway
	past=$((past + $(counter bypasses)))
	through=$((through + $(counter commits)))
	kill -0 $loader 2>/dev/null || { cat "$work/ackload.log" >&2; fail "the load ended by itself"; }
	kill_server 2>/dev/null
	wait $loader 2>/dev/null && fail "the load ended well although the server was killed"
	disconnect
}
verified() {
	connect "$@"
	"$work/ackload" verify "$work/fuse/nbd" "$work/log" >"$work/verify.log" 2>&1
	local rc=$?
	disconnect
	return $rc
}

for way in large full; do
	case $way in
	large) options=(--bypass-limit 16K) size=4M ;;
	full) options=(--when-full bypass --high-watermark 95 --low-watermark 90) size=1536K ;; # soon full
	esac
	fresh $size
	past=0 through=0
	for seconds in 0.7 1.5 1; do
		killed $seconds "${options[@]}"
		verified "${options[@]}" || { cat "$work/verify.log" >&2; fail "$way: acknowledged and not there"; }
		kill_server # found well after a kill, and after one more
	done
	if [ "$past" -lt 5 ] || [ "$through" -lt 100 ]; then
		fail "$way: $past writes past the cache and $through commits through it: the test tested less than it says"
	fi
	verified "${options[@]}" || { cat "$work/verify.log" >&2; fail "$way: not there after one more kill"; }
	stop_server
	"$FOREBAY" check "$pool" >/dev/null || fail "check"
	"$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain"
	"$work/ackload" verify "$work/data.img" "$work/log" >"$work/verify.log" || { cat "$work/verify.log" >&2; fail "$way: the origin alone"; }
	say "$way: killed three times, $past writes past the cache and $through commits through it; $(sed -n 's/^ackload: //p' "$work/verify.log")"
done

# All writes bypass the cache.  Otherwise a fast machine soon has every block in the cache.
fresh 64M
past=0
remember() {
	cp "$work/data.img" "$work/before"
	sleep 0.7
}
halfway=remember
killed 0.7 --bypass-limit 512
[ "$past" -gt 20 ] || fail "nothing to forget"
cat "$work/before" >"$work/data.img"
verified --bypass-limit 512 && fail "an origin that forgets writes past the cache was not found"
grep -q ' [1-9][0-9]* bad' "$work/verify.log" || { cat "$work/verify.log" >&2; fail "the verification broke instead of finding anything"; }
[ "$(counter origin_writes)" = 0 ] || fail "not only what went past the cache was forgotten"
kill_server
say "an origin that forgets what went past is found: $(sed -n 's/^ackload: //p' "$work/verify.log")"
