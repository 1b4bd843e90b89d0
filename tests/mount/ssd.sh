#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount whose log is in a pool on a disk keeps what it acknowledged, says what the disk
# costs, and says it when the disk fails.
# Method: the pool lies in a file on this disk.  Programs note what was acknowledged (commits.py,
# and a writer of large files).  Flushes are delayed by strace, where it is installed.  A pool in a
# file system in memory that is full, in a file with holes, is a disk that fails.  `MEDIUM=ssd
# tests/mount/cuts.sh` cuts the tree's disk.
# shellcheck source-path=SCRIPTDIR
MEDIUM=ssd
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 setsid
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 without sqlite3"

tree=$work/tree
kinds=(sqlite-wal maildir)
mkdir "$tree"
make_pool

# --- a disk that is slow for names -------------------------------------------------

# slowly COMMAND...: each flush takes 3 ms more.
slowly() { strace -f -qq -o /dev/null -e trace=fdatasync -e inject=fdatasync:delay_enter=3000 "$@"; }
if command -v strace >/dev/null; then
	code=0
	slowly timeout 60 "$FOREBAY" mount "$pool" "$tree" --foreground >"$work/refused" 2>&1 || code=$?
	[ $code = 10 ] || fail "a slow disk: exit code $code: $(cat "$work/refused")"
	grep -Eq "ssd.pool: a durable write to its disk takes at least [0-9]{4,} us" "$work/refused" || fail "a slow disk: not told by its time: $(cat "$work/refused")"
	grep -q -- '--slow-log' "$work/refused" || fail "a slow disk: no way out: $(cat "$work/refused")"
	[ -z "$(ls -A "$tree")" ] || fail "a slow disk: a mount that was refused leaves $(ls -A "$tree")"
	say "a flush of 3 ms: $(grep -Eo 'takes at least [0-9]+ us' "$work/refused"), refused"
else
	skip_part "the refusal of a slow disk" "strace is not installed"
fi
"$FOREBAY" mount "$pool" "$tree" --read-only >"$work/out" 2>&1 || fail "read-only: $(cat "$work/out")"
! touch "$tree/file" 2>/dev/null || fail "a read-only mount takes a file"
"$FOREBAY" umount "$tree" >"$work/out" 2>&1 || fail "umount of a read-only mount: $(cat "$work/out")"
"$FOREBAY" mount "$pool" "$tree" --slow-log >"$work/out" 2>&1 || fail "--slow-log: $(cat "$work/out")"
echo in the background >"$tree/file"
sync "$tree/file"
"$FOREBAY" exporter "$pool" --textfile "$work/figures" >"$work/out" 2>&1 || fail "exporter: $(cat "$work/out")"
for figure in groups entries writes written_bytes; do
	awk -v name="forebay_medium_${figure}_total{" 'index($1, name) == 1 && $2 > 0 { found = 1 } END { exit !found }' "$work/figures" || fail "exporter: no ${figure}: $(grep medium "$work/figures")"
done
grep -Eq '^forebay_medium_failed\{.*\} 0$' "$work/figures" || fail "exporter: the disk has failed? $(grep medium_failed "$work/figures")"
"$FOREBAY" umount "$tree" >"$work/out" 2>&1 || fail "umount: $(cat "$work/out")"
[ "$(cat "$tree/file")" = "in the background" ] || fail "the tree lacks what was written"

# --- kills, in each mode -----------------------------------------------------------

programs=()
run_programs() {
	local kind
	for kind in "${kinds[@]}"; do
		mkdir -p "$tree/$kind"
		setsid python3 "$root/tests/mount/commits.py" run "$kind" "$tree/$kind" "$shm/$kind.acknowledged" >>"$work/$kind.log" 2>&1 &
		programs+=($!)
	done
}
end_programs() {
	local program
	for program in "${programs[@]}"; do kill -KILL -- "-$program" 2>/dev/null || true; done
	wait "${programs[@]}" 2>/dev/null || true
	programs=()
}
at_end end_programs
verify() {
	local kind
	for kind in "${kinds[@]}"; do
		python3 "$root/tests/mount/commits.py" verify "$kind" "$tree/$kind" "$shm/$kind.acknowledged" >"$work/verify.log" 2>&1 ||
			fail "$1: $(cat "$work/verify.log")"
	done
}
acknowledged() { cat "$shm"/*.acknowledged | wc -l; }
for kind in "${kinds[@]}"; do : >"$shm/$kind.acknowledged"; done

for mode in '' --write-back --log-writes; do
	before=$(acknowledged)
	# shellcheck disable=SC2086
	start_mount "$tree" $mode
	run_programs
	sleep 1
	"$FOREBAY" status "$pool" >"$work/status" || fail "status of a mounted pool"
	grep -q "$tree" "$work/status" || fail "status does not name the mount: $(cat "$work/status")"
	kill_mount
	end_programs
	if [ "$mode" = --write-back ]; then
		"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 || fail "replay: $(cat "$work/replay.log")"
	fi
	start_mount "$tree"
	verify "killed ${mode:-by default}"
	stop_mount
	verify "killed ${mode:-by default}, in the tree"
	[ "$(acknowledged)" -gt "$before" ] || fail "${mode:-by default}: nothing was acknowledged in a second"
done
"$FOREBAY" check "$pool" >"$work/check" 2>&1 || fail "check: $(cat "$work/check")"
say "killed in three modes: $(acknowledged) commits are there"

# --- more than the pool holds ------------------------------------------------------

# Nothing is synced by itself, so space has to be made.
start_mount "$tree" --sync-interval 600s --sync-bytes 1G
python3 - "$tree" <<'P' || fail "a full pool"
import os, sys
for n in range(160):
    file = os.open(f"{sys.argv[1]}/large.{n % 8}", os.O_RDWR | os.O_CREAT)
    for part in range(4):
        os.pwrite(file, bytes([n]) * (200 << 10), part * (200 << 10))
        os.fdatasync(file)
    os.close(file)
P
stop_mount
for n in 0 1 2 3 4 5 6 7; do
	[ "$(tr -d "\\$(printf %o $((152 + n)))" <"$tree/large.$n" | wc -c)/$(stat -c %s "$tree/large.$n")" = 0/819200 ] || fail "a full pool: large.$n is not what was written"
done
say "125 MiB through a pool of 64 MiB: all is there"

# --- the disk fails ------------------------------------------------------------------

back=$work/back
mkdir "$back"
at_end 'umount -l "$back" 2>/dev/null || true'
mount -t tmpfs -o size=96M none "$back"
# A new one takes its chunks in order.
rm "$pool"
make_pool
cp "$pool" "$back/ssd.pool"
pool=$back/ssd.pool
start_mount "$tree" --sync-interval 600s --sync-bytes 1G
run_programs
sleep 0.5
# What is there stays; the rest becomes holes, for which there is no room.
kill -STOP "$server"
python3 - "$pool" <<'P'
import ctypes, os, sys
BLOCK, KEEP_SIZE_PUNCH = 64 << 10, 3
file = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
for at in range(0, os.fstat(file).st_size, BLOCK):
    if not any(os.pread(file, BLOCK, at)):
        assert libc.fallocate(file, KEEP_SIZE_PUNCH, ctypes.c_long(at), ctypes.c_long(BLOCK)) == 0, at
P
dd if=/dev/zero of="$back/fill" bs=64k 2>/dev/null || true
kill -CONT "$server"
code=0
timeout 60 python3 - "$tree" <<'P' || code=$?
import errno, os, sys
for n in range(4000):
    try:
        file = os.open(f"{sys.argv[1]}/late.{n % 4}", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, bytes([n % 256]) * (100 << 10), 0)
        os.fsync(file)
        os.close(file)
    except OSError as e:
        sys.exit(0 if e.errno == errno.EIO else f"errno {e.errno}")
sys.exit("syncs succeed on a disk that is full")
P
[ $code = 0 ] || fail "a disk that fails: exit code $code of the writer"
end_programs
"$FOREBAY" status "$pool" >"$work/status" 2>&1 || true
grep -q 'ssd.pool.*failed' "$work/status" || fail "a disk that fails: status does not say it: $(cat "$work/status")"
code=0
timeout 60 "$FOREBAY" umount "$tree" >"$work/out" 2>&1 || code=$?
[ $code = 7 ] || fail "a disk that fails: umount ends with $code: $(cat "$work/out")"
grep -q 'ssd.pool' "$work/out" || fail "a disk that fails: the pool is not named: $(cat "$work/out")"
grep -q "$tree has everything" "$work/out" || fail "a disk that fails: the tree is not said to be complete: $(cat "$work/out")"
for ((tries = 0; tries < 200; tries++)); do
	kill -0 "$server" 2>/dev/null || break
	sleep 0.1
done
[ $tries -lt 200 ] || fail "a disk that fails: the server does not end: $(cat "$work/out")"
code=0
wait "$server" || code=$?
[ $code != 0 ] || fail "a disk that fails: the server ends with 0"
server='' mounted=''
# Without its log the tree has everything, and says so.
verify "after the disk has failed, without it"
[ -L "$tree/.forebay-done" ] && [ ! -L "$tree/.forebay-mount" ] || fail "a disk that fails: the tree does not say that it is complete: $(ls -lA "$tree")"
rm "$back/fill"
cp --sparse=never "$pool" "$work/came-back.pool"
umount "$back"

# The disk comes back to a copy of the tree: its log is dropped, and does not undo what came after.
copy=$work/copy
cp -a "$tree" "$copy"
cp --sparse=never "$work/came-back.pool" "$work/first.pool"
echo later >"$copy/maildir/later"
"$FOREBAY" replay "$work/first.pool" "$copy" >"$work/replay.log" 2>&1 || fail "replay after the disk came back: $(cat "$work/replay.log")"
[ "$(cat "$copy/maildir/later")" = later ] || fail "a replay after the disk came back undoes what came after"
rm "$copy/maildir/later"
tree=$copy verify "after the disk came back"
[ -z "$(ls -A "$copy" | grep '^[.]forebay')" ] || fail "the copy still bears marks: $(ls -A "$copy")"

# Another pool takes the tree, and the disk comes back only then: it is refused.
pool=$work/ssd.pool
rm -f "$pool"
make_pool
start_mount "$tree"
verify "by another pool"
stop_mount
code=0
"$FOREBAY" replay "$work/came-back.pool" "$tree" >"$work/replay.log" 2>&1 || code=$?
[ $code != 0 ] || fail "a pool that came back is let at a tree that another has had: $(cat "$work/replay.log")"
verify "after a pool that came back was refused"
"$FOREBAY" check "$work/came-back.pool" >"$work/check" 2>&1 || fail "check of the pool that came back: $(cat "$work/check")"
say "a disk that fails under the mount: EIO, told at the end, $(acknowledged) commits are in the tree without it, and it undoes nothing when it is back"
