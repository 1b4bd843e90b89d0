#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: where an origin's mark cannot be set, nothing is acknowledged, by a message that names the
# place, and it goes on when there is room again.  An origin that says it is complete has what was
# acknowledged, wherever the server or a drain was killed.
# Method: the origins are on ext4 that is full and whose inodes have no room for an attribute, and
# on ramfs, which has no attributes.  The directory of marks is on ext4 that is full or read-only.
# fio makes one write of 4 KiB at a time.  Then rounds in which the server is killed during a write,
# and a drain after a random time, on this machine's disk.
#
#	marks.sh [ROUNDS]	of kills (12)
# shellcheck disable=SC2016,SC2119 # expanded at the end; no arguments on purpose
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need fio mkfs.ext4 losetup mount
[ "$(id -u)" = 0 ] || skip "mounting needs root"
loops_work || skip "no loop devices"
rounds=${1:-12}

# small NAME [MKFS OPTIONS]: ext4 of 8 MiB at $work/NAME.
small() {
	truncate -s 8M "$work/$1.ext4"
	mkfs.ext4 -q -F -O ^has_journal "${@:2}" "$work/$1.ext4" 2>/dev/null
	mkdir "$work/$1"
	mount_image "$work/$1.ext4" "$work/$1" || skip "$(cat "$work/no-loop")"
	at_end "umount -l '$work/$1'"
}
fill() { dd if=/dev/zero of="$1/fill" bs=4k 2>/dev/null || true; dd if=/dev/zero of="$1/rest" bs=512 2>/dev/null || true; }
empty() { rm -f "$1/fill" "$1/rest"; }
# write BYTE: writes 4 KiB of it; the exit code says whether the write was acknowledged.
write() {
	timeout 60 fio --aux-path="$work" --name=one --ioengine=nbd --uri="$(uri v)" --rw=write --bs=4k --size=4k \
		--buffer_pattern="$1" --output=/dev/null >/dev/null 2>&1
}
# ms FROM TO: a random time, in seconds.
ms() { printf '%d.%03d' 0 $((RANDOM % ($2 - $1) + $1)); }
byte() { od -An -tx1 -N1 "$1" | tr -d ' '; }
# marked CODE ORIGIN WHEN
marked() {
	local code=0
	"$FOREBAY" origin status "$2" >"$work/status" 2>&1 || code=$?
	[ $code = "$1" ] || fail "$3: origin status ends with $code, not $1: $(cat "$work/status")"
}
# begin ORIGIN: makes a pool for it and serves the pool, which is idle until it is told to
# drain.
begin() {
	rm -f "$pool"
	"$FOREBAY" create "$pool" --size 16M --chunk-size 256K >/dev/null
	"$FOREBAY" volume add "$pool" v "$1" >/dev/null
	start_server
}
finish() {
	stop_server
	"$FOREBAY" drain "$pool" >/dev/null
	marked 0 "$1" "drained"
}
# refused TEXT ORIGIN WHEN: a write fails, and the log has the text.
refused() {
	! write 0x11 || fail "$3: a write is acknowledged without a mark"
	grep -q "$1" "$work/server.log" || fail "$3: not \"$1\" but $(cat "$work/server.log")"
	: >"$work/server.log"
}

small full -I 128
fallocate -l 1M "$work/full/origin"
begin "$work/full/origin"
fill "$work/full"
refused "No space left" "$work/full/origin" "no room for the attribute"
empty "$work/full"
write 0x22 || fail "there is room, and a write fails"
marked 14 "$work/full/origin" "written"
finish "$work/full/origin"
[ "$(byte "$work/full/origin")" = 22 ] || fail "what was acknowledged is not there"
say "no room for an attribute: nothing is acknowledged until there is"

mkdir "$work/plain"
mount -t ramfs none "$work/plain"
at_end "umount -l '$work/plain'"
truncate -s 1M "$work/plain/origin"
small state
export FOREBAY_STATE_DIR=$work/state
begin "$work/plain/origin"
fill "$work/state"
refused "No space left" "$work/plain/origin" "the directory of marks is full"
empty "$work/state"
mount -o remount,ro "$work/state"
refused "Read-only" "$work/plain/origin" "the directory of marks is read-only"
mount -o remount,rw "$work/state"
write 0x33 || fail "the directory can be written to, and a write fails"
marked 14 "$work/plain/origin" "written"
grep -q "$work/state/marks" "$work/status" || fail "not told where the mark is: $(cat "$work/status")"
finish "$work/plain/origin"
say "no attributes, and a directory that is full or read-only: nothing is acknowledged until it can be written to"

truncate -s 1M "$work/origin"
begin "$work/origin"
acknowledged=00 early=0 complete=0
for ((round = 1; round <= rounds; round++)); do
	new=$(printf %02x $((round + 64)))
	write "0x$new" &
	writer=$!
	sleep "$(ms 30 500)"
	kill_server
	if wait $writer; then
		acknowledged=$new
		marked 14 "$work/origin" "round $round: acknowledged and killed"
		may=$new
	else
		early=$((early + 1))
		may=$acknowledged\|$new # it was not told of, and may be there
	fi
	(timeout -s KILL "$(ms 1 40)" "$FOREBAY" drain "$pool") >/dev/null 2>&1 || true
	code=0
	"$FOREBAY" origin status "$work/origin" >"$work/status" 2>&1 || code=$?
	if [ $code = 0 ]; then
		complete=$((complete + 1))
		[[ $(byte "$work/origin") =~ ^($may)$ ]] || fail "round $round: said to be complete, has $(byte "$work/origin") and not $may"
	else
		[ $code = 14 ] || fail "round $round: origin status ends with $code: $(cat "$work/status")"
	fi
	start_server
done
finish "$work/origin"
[[ $(byte "$work/origin") =~ ^($may)$ ]] || fail "what was acknowledged is not there"
say "$rounds kills beside a write, $early of them before its end; $complete of as many drains were over when they were killed"
