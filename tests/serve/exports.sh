#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: the server offers its exports and starts and ends as documented.  Method: nbdinfo
# and nbdcopy, ls, and signals.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy

make_pool 16M one=64M two=32M
start_server --threads 4

list=$(nbdinfo --list "nbd+unix://?socket=$work/run/nbd")
for name in one two; do
	grep -q "export=\"$name\"" <<<"$list" || fail "$name is not listed: $list"
done
info=$(nbdinfo "$(uri one)")
for word in 'export-size: 67108864' 'can_flush: true' 'can_fua: true' 'can_multi_conn: true' \
	'can_trim: true' 'can_zero: true' 'block_size_minimum: 512' 'is_read_only: false'; do
	grep -q "$word" <<<"$info" || fail "no \"$word\" in: $info"
done
nbdinfo --size "$(uri three)" >/dev/null 2>&1 && fail "an export that does not exist was opened"
say "exports, sizes and features as they should be"

[ "$(stat -c %a "$work/run/nbd")" = 600 ] || fail "the socket's mode"
[ "$(stat -c %a "$work/run")" = 700 ] || fail "its directory's mode"
say "socket 0600 in a directory 0700"

head -c 32M /dev/urandom >"$work/data"
nbdcopy --connections=4 "$work/data" "$(uri two)"
nbdcopy "$(uri two)" "$work/back"
cmp "$work/data" "$work/back" || fail "what was copied in does not come out"
say "32 MiB in over 4 connections, and out, through a pool of 16 MiB"

# nbdcopy writes zeroes over cached data, for the holes of a file.
truncate -s 0 "$work/holes"
truncate -s 32M "$work/holes"
for ((mib = 0; mib < 32; mib += 5)); do
	dd if=/dev/urandom of="$work/holes" bs=64k count=3 seek=$((mib * 16)) conv=notrunc status=none
done
nbdcopy "$work/holes" "$(uri two)"
nbdcopy "$(uri two)" "$work/back"
cmp "$work/holes" "$work/back" || fail "zeroes written over data"
"$FOREBAY" status "$pool" --json | grep -q '"zeroes": [1-9]' || fail "no zeroes: the test tested less than it says"
nbdcopy "$work/data" "$(uri two)"
say "zeroes written over data are zeroes"

"$FOREBAY" status "$pool" --json | grep -q '"attached": true' || fail "status of a served pool"
code=0
message=$("$FOREBAY" volume add "$pool" x "$work/data" 2>&1) || code=$?
[ "$code" = 4 ] || fail "a served pool must be busy, not $code: $message"
code=0
message=$("$FOREBAY" serve "$pool" --socket "$work/run/nbd" 2>&1) || code=$?
[ "$code" = 4 ] || fail "a second server must find it busy, not $code: $message"
"$FOREBAY" drain "$pool" two >/dev/null 2>&1 || fail "drain of a served pool"
cmp -n 33554432 "$work/data" "$work/two.img" || fail "the origin after the drain"
say "status and drain while it is served; a second server is refused"

stop_server
say "stopped by SIGTERM: clean"
start_server --read-only
nbdinfo "$(uri one)" | grep -q 'is_read_only: true' || fail "--read-only"
nbdcopy "$(uri two)" "$work/back"
cmp "$work/data" "$work/back" || fail "read-only read"
kill -INT "$server"
wait "$server" || fail "code $? after SIGINT"
server=''
say "served read-only, stopped by SIGINT"

# Every option arrives, and idle volumes go to their origins by themselves.
start_server --slots 2 --checksums false --verify first --high-watermark 70 --low-watermark 30 \
	--max-age 1h --idle 300ms --kernel generic --holes isolate --accept-changed-origin
head -c 1M /dev/urandom >"$work/data"
nbdcopy "$work/data" "$(uri one)"
"$FOREBAY" status "$pool" --json >"$work/status"
for word in '"slots": 2' '"checksums": false' '"verify": "first"' '"high_watermark_percent": 70' \
	'"low_watermark_percent": 30' '"max_age_seconds": 3600' '"idle_seconds": 0.3' '"kernel": "generic"'; do
	grep -q "$word" "$work/status" || fail "no $word in: $(cat "$work/status")"
done
for ((tries = 0; tries < 100; tries++)); do
	cmp -s -n 1048576 "$work/data" "$work/one.img" && break
	sleep 0.1
done
cmp -n 1048576 "$work/data" "$work/one.img" || fail "an idle volume was not written to its origin"
stop_server
say "options arrive; an idle volume drains by itself"

# A killed server leaves its socket, which does not obstruct the next one.
start_server
head -c 4M /dev/urandom >"$work/data"
nbdcopy "$work/data" "$(uri two)"
kill_server
[ -S "$work/run/nbd" ] || fail "no socket was left: the test tested less than it says"
start_server
nbdcopy "$(uri two)" "$work/back"
cmp -n 4194304 "$work/data" "$work/back" || fail "what was acknowledged before the kill"
stop_server
say "killed and started again on the same socket, all there"

# A file that is not the server's own, in the place of its socket, is left alone.
mkdir -p "$work/run" # private, and a file in the socket's place
echo precious >"$work/run/nbd"
echo precious >"$work/ready-file"
for options in "--socket $work/run/nbd" "--socket $work/run/other --ready-file $work/ready-file"; do
	code=0
	# shellcheck disable=SC2086 # words on purpose
	message=$("$FOREBAY" serve "$pool" $options 2>&1) || code=$?
	[ "$code" = 2 ] && [[ $message == *"left as it is"* ]] || fail "$options: code $code: $message"
done
[ "$(cat "$work/run/nbd" "$work/ready-file")" = "$(printf 'precious\nprecious')" ] || fail "a file was destroyed"
rm "$work/run/nbd"
: >"$work/ready-file"
start_server --ready-file "$work/ready-file"
[ -f "$work/ready-file" ] || fail "no ready file"
stop_server
[ ! -e "$work/ready-file" ] || fail "a ready file without a server"
say "files in the way are left alone; the ready file comes and goes"
