#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: an origin that refuses some writes, always the same ones or now and then, gets all others.
# A drain says what it lacks, and nothing of that is lost.
# Method: an export of nbdkit with a part of it that takes no write, and that fails three other
# writes of a hundred.  Write, drain for a while, compare; kill server and origin; mend it.
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need nbdkit nbdcopy

size=$((32 << 20))
head -c $size /dev/urandom >"$work/data"
far=''
at_end '[ -z "$far" ] || kill -KILL "$far" 2>/dev/null'

# start_far [OPTIONS]: starts nbdkit.
start_far() {
	rm -f "$work/far" "$work/far.pid"
	nbdkit -f -P "$work/far.pid" -U "$work/far" "$@" 2>>"$work/far.log" &
	far=$!
	listens far
}

truncate -s $size "$work/disk"
# One bad range covers parts of two blocks, and the other lies within a block.
bad=(protect=1048576-1056767 protect=20000256-20000511)
start_far --filter=protect --filter=error file "$work/disk" "${bad[@]}" \
	error=EIO error-pwrite-rate=3%
"$FOREBAY" create "$pool" --size 64M >/dev/null
"$FOREBAY" volume add "$pool" v "nbd+unix:///?socket=$work/far" >/dev/null
start_server
nbdcopy --connections=1 "$work/data" "$(uri v)"

# This repeats until only the bad blocks are left.  Pauses grow while the origin takes
# nothing.
for ((tries = 0; tries < 40; tries++)); do
	"$FOREBAY" drain "$pool" --timeout 2s >"$work/drain.out" 2>&1 && fail "a drain says that it is complete"
	grep -q "3 pages that it refused are not written back, the first at offset 1048576" "$work/drain.out" && break
done
[ "$tries" -lt 40 ] || fail "a drain does not name what is left: $(cat "$work/drain.out")"
say "$(grep -o '[0-9]* pages that it refused.*offset [0-9]*' "$work/drain.out" | tail -n 1)"
"$FOREBAY" status "$pool" --json >"$work/status"
grep -q '"pages_refused": 3' "$work/status" || fail "status does not count them"
left=$({ cmp -l "$work/data" "$work/disk" || true; } | awk '{print int(($1 - 1) / 4096)}' | sort -nu | tr '\n' ' ')
[ "$left" = "256 257 4882 " ] || fail "the origin lacks the blocks $left"
say "all else is on the origin"

# Server and origin end.  The refused blocks are in the pool.
kill_server
kill -KILL "$far"
wait "$far" 2>/dev/null || true
start_far file "$work/disk"
start_server
nbdcopy "$(uri v)" "$work/back"
cmp "$work/data" "$work/back" || fail "the volume is not what was written"
timeout 60 "$FOREBAY" drain "$pool" >/dev/null || fail "drain after the repair"
cmp "$work/data" "$work/disk" || fail "the origin is not what was written"
stop_server
say "mended: the origin has everything"
