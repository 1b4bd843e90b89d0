#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program by map-run may write in any way, and ask in any way that this be durable.  Then
# what was acknowledged is there after the program is killed, or the call gives an error.
# Method: tests/mount/durable.c makes each way to write x each way to ask.  Each cell is a process,
# which notes elsewhere what was acknowledged and then kills itself.  The next one recovers the
# pool.  On a pool that is served the server keeps what was not synced, so the server is killed,
# too.  That is done for some of the cells, since each needs a new server.  Before all that nobody
# asks and all is noted: each cell that writes bytes must be found lost.
#
#	acknowledged.sh [EVERY]	one cell in EVERY with a server (11)
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/durable" "$root/tests/mount/durable.c" || fail "durable.c does not compile"
make_map 256M 128M
every=${1:-11}

# The manual says that these are refused: calls by which the kernel alone would write or
# sync, and rings next to a mapping.
refused_ways='splice|sendfile|copy_file_range|[a-z-]*-uring|[a-z-]*-aio'
refused_asks='aio|uring'

# cells EVERY FORGET: runs one cell in EVERY, and checks what is there.
cells() {
	local forget=$2 way ask code unexpected
	rm -rf "$work/files" "$work/record"
	mkdir "$work/files"
	"$work/durable" map-run prepare "$work/files"
	"$work/durable" map-run list "$work/files" | awk -v every="$1" 'NR % every == 0' >"$work/list"
	while read -r way ask; do
		code=0
		# shellcheck disable=SC2086
		ROOM=8M mapped "$work/durable" map-run cell "$work/files" "$work/record" $way $ask $forget 2>"$work/says" || code=$?
		[ $code = 137 ] || fail "the program broke: $code $(cat "$work/says")"
		[ -z "$server" ] || { kill_server; start_server; }
	done <"$work/list"
	recover || fail "not recovered"
	# shellcheck disable=SC2086
	"$work/durable" map-run check "$work/files" "$work/record" $forget >"$work/checked.log" ||
		{ grep -v ': refused, ' "$work/checked.log" >&2; fail "${forget:+a sync that nobody asked for was found to be there, so }the table does not hold"; }
	unexpected=$(grep ': refused, ' "$work/checked.log" | grep -vE "^  (($refused_ways)[a-z-]* [^ ]*|[^ ]* ($refused_asks)-[a-z_-]*): refused, (Invalid argument|Bad file descriptor)$|^  [^ ]* uring-[a-z_-]*: refused, Operation not permitted$" || true)
	[ -z "$unexpected" ] || fail "refused, and the manual does not say so: $unexpected"
}

cells 5 forget
say "nobody asks: $(head -n 1 "$work/checked.log")"
cells 1 ''
say "a pool of its own: $(head -n 1 "$work/checked.log")"
start_server
cells "$every" ''
say "a served pool: $(head -n 1 "$work/checked.log")"
share=--shared
cells "$every" ''
say "shared files: $(head -n 1 "$work/checked.log")"
stop_server
