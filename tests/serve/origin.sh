#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: an origin that fails costs no acknowledged write, stops no other volume,
# and does not keep the server from stopping; repaired, it gets everything.
# Method: two volumes, one on a file system that runs full; write until nothing
# more fits, look, stop, repair, drain, compare.
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo mount
[ "$(id -u)" = 0 ] || skip "mounting a file system that runs full needs root"

mkdir "$work/small"
mount -t tmpfs -o size=4M forebay-test "$work/small" || skip "cannot mount a tmpfs"
at_end 'umount -l "$work/small"'
make_pool 32M good=64M
truncate -s 64M "$work/small/bad.img"
"$FOREBAY" volume add "$pool" bad "$work/small/bad.img" >/dev/null
start_server --high-watermark 50 --low-watermark 40

# More than pool and file system together can take: the writer has to wait.
head -c 64M /dev/urandom >"$work/data"
nbdcopy --connections=1 "$work/data" "$(uri bad)" 2>"$work/writer.log" &
writer=$!
# The origin is full when some write waited for space and nothing more fitted for a second.
number() { sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" "$work/status" | head -n 1; }
before=0 still=0
for ((tries = 0; tries < 400 && still < 10; tries++)); do
	sleep 0.1
	"$FOREBAY" status "$pool" --json >"$work/status"
	if [ "$(number waits_space)" -gt 0 ] && [ "$(number pages_cached)" = "$before" ]; then
		still=$((still + 1))
	else
		still=0
	fi
	before=$(number pages_cached)
done
[ "$still" -ge 10 ] || fail "the pool does not fill up"
kill -0 "$writer" 2>/dev/null || fail "the writer did not wait for space"
grep -q '"last_error": ".*[Nn]o space' "$work/status" || fail "status does not name the origin's error: $(cat "$work/status")"
say "origin full: the writer waits, status says why"

# The other volume can be read at once.
timeout 10 nbdcopy "$(uri good)" "$work/back" || fail "the other volume does not answer"
cmp -s -n 67108864 "$work/back" /dev/zero || fail "the other volume's content"
say "the other volume answers"

# A stop must not wait for space without end.
start=$SECONDS
stop_server
kill "$writer" 2>/dev/null || true
wait "$writer" 2>/dev/null || true
grep -q "stayed full" "$work/server.log" || fail "no write was waiting: the test tested less than it says"
say "stopped, clean, after $((SECONDS - start)) s although a write waited"

# Before the repair the server says so, and keeps everything.
start_server
"$FOREBAY" volume list "$pool" --json | grep -q '"name": "bad"' || fail "the volume is gone"
nbdcopy "$(uri bad)" "$work/before" || fail "reading the volume whose origin fails"
# When there is room, everything goes to the origin by itself.
mount -o remount,size=128M "$work/small"
timeout 60 "$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain after the repair"
stop_server
cmp "$work/before" "$work/small/bad.img" || fail "the origin is not what was acknowledged"
say "repaired: the origin has everything"

# The acknowledged bytes are a prefix of the data, then zeroes: nbdcopy writes from the
# front, a few requests at a time.
acknowledged=$({ cmp "$work/data" "$work/small/bad.img" || true; } | sed "s/.* byte \([0-9]*\),.*/\1/")
[ "${acknowledged:-0}" -gt 16777216 ] || fail "only ${acknowledged:-0} bytes arrived"
say "$((acknowledged >> 20)) MiB had been taken, through a pool of 32 MiB and a disk of 4 MiB"

# The origin has been replaced by another one.  Its volume is not served, and the other
# volume is.
mv "$work/small/bad.img" "$work/small/moved.img"
truncate -s 64M "$work/small/bad.img"
start_server
grep -q '"unserved":\[{"name":"bad"' "$work/ready" || fail "a wrong origin was served: $(cat "$work/ready")"
nbdinfo --size "$(uri good)" >/dev/null || fail "the other volume must be served"
nbdinfo --size "$(uri bad)" >/dev/null 2>&1 && fail "the volume without its origin was served"
stop_server
start_server --origin "bad=$work/small/moved.img"
nbdinfo --size "$(uri bad)" >/dev/null || fail "the moved origin"
stop_server
say "a wrong origin is refused, the other volume served; a moved one is found where it is said to be"
