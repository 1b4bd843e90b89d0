#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: while the disk of a mount's pool hangs, everything that an operator asks is answered at
# once, and says since when it hangs.  Errors of its flushes and of records of the pool cost nothing
# that was acknowledged, and are told.
# Method: the pool lies in a file system on a loop device.  Frozen, that takes no write, and refuses
# none: the disk hangs.  Errors are injected into the system calls of the server by strace.
# shellcheck source-path=SCRIPTDIR
MEDIUM=ssd
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 fsfreeze mkfs.ext4 losetup

tree=$work/tree
mkdir "$tree" "$work/disk"
truncate -s 128M "$work/image"
# The file system has blocks of the pool's size.
mkfs.ext4 -qF -b 4096 "$work/image"
mount_image "$work/image" "$work/disk" || skip "ext4 cannot be mounted from a file here"
at_end 'fsfreeze --unfreeze "$work/disk" 2>/dev/null || true'
pool=$work/disk/ssd.pool
make_pool

# --- questions -----------------------------------------------------------------------

# answered COMMAND...: must answer at once; its output goes to $work/out and $work/told.
answered() {
	local code=0
	timeout -k 1 5 "$@" >"$work/out" 2>"$work/told" || code=$?
	[ $code = 0 ] || fail "${*:2:2}: no answer while the disk hangs: code $code: $(cat "$work/told")"
}
# medium FIELD: prints a field of the pool's disk, from status.
medium() {
	answered "$FOREBAY" status "$pool" --json
	python3 -c 'import json, sys; print(json.load(sys.stdin)["medium"][sys.argv[1]])' "$1" <"$work/out"
}
# changed FILE: a program in the background writes and syncs it.
writers=()
changed() {
	dd if=/dev/zero of="$tree/$1" bs=4k count=1 conv=fsync 2>"$work/$1.log" &
	writers+=($!)
}
# waits SECONDS WHAT COMMAND...: waits until the command succeeds.
waits() {
	local tries
	for ((tries = 0; tries < $1 * 20; tries++)); do
		"${@:3}" && return
		sleep 0.05
	done
	fail "$2: not after $1 s: $(tail -n 5 "$work/mount.log")"
}

# --- the disk hangs ------------------------------------------------------------------

start_mount "$tree" --sync-interval 1s
changed before
wait "${writers[@]}" || fail "a write before the disk hangs: $(cat "$work/before.log")"
writers=()
fsfreeze --freeze "$work/disk"
# The sync of the tree has ended by now, and that of the log hangs.
hangs() { [ "$(awk '/^forebay_medium_unanswered_seconds/ { print int($2) }' "$work/figures" 2>/dev/null)" -ge 1 ] 2>/dev/null; }
asks() {
	answered "$FOREBAY" exporter "$pool" --textfile "$work/figures"
	hangs
}
waits 20 "the gauge of a disk that hangs" asks
changed during
sleep 1
answered "$FOREBAY" status "$pool"
grep -Eq "^HANGS +the disk $pool has not answered a write for [0-9]+ s" "$work/out" || fail "status does not say that the disk hangs: $(cat "$work/out")"
grep -q dmesg "$work/out" || fail "status names no way out: $(cat "$work/out")"
said=$(grep -Eo 'has not answered a write for [0-9]+ s' "$work/out")
answered "$FOREBAY" log list "$pool"
grep -q '^mount ' "$work/out" || fail "log list lacks the log: $(cat "$work/out")"
grep -q 'has not answered' "$work/told" || fail "log list does not say that the disk hangs: $(cat "$work/told")"
answered "$FOREBAY" log list "$pool" --json
answered "$FOREBAY" log show "$pool" mount
grep -q 'has not answered' "$work/told" || fail "log show does not say that the disk hangs: $(cat "$work/told")"
if command -v strace >/dev/null; then
	answered strace -f -qq -e trace=open,openat,openat2 -o "$work/opened" "$FOREBAY" status "$pool"
	! grep -q 'ssd[.]pool' "$work/opened" || fail "status opens the pool, whose disk hangs: $(grep 'ssd[.]pool' "$work/opened")"
else
	skip_part "that nobody opens a disk that hangs" "strace is not installed"
fi
kill -0 "${writers[@]}" 2>/dev/null || fail "a sync is acknowledged by a disk that hangs"
before=$(medium unanswered_seconds)
sleep 1
after=$(medium unanswered_seconds)
python3 -c 'import sys; sys.exit(not float(sys.argv[2]) > float(sys.argv[1]) + 0.9 > 1)' "$before" "$after" || fail "the age of the request does not grow: $before s, $after s"
fsfreeze --unfreeze "$work/disk"
wait "${writers[@]}" || fail "a write does not go on when the disk does: $(cat "$work/during.log")"
writers=()
goes_on() { [ "$(medium hangs)" = None ]; }
waits 20 "the disk goes on" goes_on
answered "$FOREBAY" status "$pool"
! grep -q HANGS "$work/out" || fail "status says that a disk hangs which does not: $(cat "$work/out")"
stop_mount
for file in before during; do
	[ "$(stat -c %s "$tree/$file")" = 4096 ] || fail "the tree lacks $file"
done
say "a disk that hangs: \"$said\" by status, log list and exporter, and all went on"

# --- errors of flushes, and of records -------------------------------------------------

command -v strace >/dev/null || {
	skip_part "errors of flushes and of records" "strace is not installed"
	exit 0
}
# injects CALL WHAT: injects into calls of the server on the pool.
injects() {
	strace -f -qq -o "$work/injected" -P "$pool" -e "trace=$1" -e "inject=$1:$2" -p "$server" 2>>"$work/mount.log" &
	tracer=$!
	waits 20 "strace" traced
}
traced() { ! grep -q '^TracerPid:[[:space:]]*0$' "/proc/$server/task/"*/status; }
# Whether anything was injected.
injected() { grep -q INJECTED "$work/injected"; }
ends_injecting() {
	kill -INT "$tracer" 2>/dev/null || true
	wait "$tracer" 2>/dev/null || true
}
at_end ends_injecting

start_mount "$tree" --sync-interval 600s
if [ "$(medium durable_by)" = flush ]; then
	# The first flush of each thread fails.
	injects fdatasync error=EIO:when=1
	changed flushed
	wait "${writers[@]}" || fail "a flush that fails is told to a program: $(cat "$work/flushed.log")"
	writers=()
	ends_injecting
	injected || fail "no flush has failed"
	[ "$(medium failed)" = False ] || fail "a flush that fails is the end of the pool"
	changed later
	wait "${writers[@]}"
	writers=()
	answered "$FOREBAY" status "$pool"
	grep -Eq '^mended +a flush of it failed (once,|[0-9]+ times, the last) [0-9]+ s ago: Input/output error' "$work/out" || fail "status does not tell of a flush that failed: $(cat "$work/out")"
	! grep -q '^trouble' "$work/out" || fail "an error that is over is still a trouble: $(cat "$work/out")"
	say "flushes that fail: $(grep '^mended' "$work/out")"
else
	skip_part "a flush that fails" "a write to this disk needs none"
fi
stop_mount

# The mount appends nothing, so the only write is that of the log's record.
start_mount "$tree" --sync-interval 3s
changed recorded
wait "${writers[@]}" || fail "a write before a record fails: $(cat "$work/recorded.log")"
writers=()
injects pwritev2 error=EIO:when=1+
waits 30 "the sync of the log" injected
waits 20 "the failure" bash -c "timeout 5 '$FOREBAY' status '$pool' | grep -q '^trouble   FAILED, nothing more becomes durable: a write to it failed'"
ends_injecting
code=0
dd if=/dev/zero of="$tree/refused" bs=4k count=1 conv=fsync 2>"$work/refused.log" || code=$?
[ $code != 0 ] || fail "a pool whose records cannot be written acknowledges a sync"
code=0
timeout 60 "$FOREBAY" umount "$tree" >"$work/out" 2>&1 || code=$?
[ $code = 7 ] || fail "records that fail: umount ends with $code: $(cat "$work/out")"
grep -q "$tree is complete, with everything that was acknowledged" "$work/out" || fail "records that fail: the tree is not said to be complete: $(cat "$work/out")"
wait "$server" || true
server='' mounted=''
[ "$(stat -c %s "$tree/recorded")" = 4096 ] || fail "the tree lacks what was acknowledged"
"$FOREBAY" check "$pool" >"$work/check" 2>&1 || fail "check after records failed: $(cat "$work/check")"
say "records that fail: told, EIO, and the tree has everything"
