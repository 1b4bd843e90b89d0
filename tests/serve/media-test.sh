#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: `forebay media-test` tells a disk that keeps its word from one that does not.  What it or
# `forebay media-info` writes to is nothing that anybody needs.
# Method: a disk with a volatile cache (volatile_disk.c) is written through FUSE and as a block
# device.  Its power is cut in the middle of a run, and what is left is verified.  There are disks
# that keep their word in every way that a cut may leave them, disks whose flush, or whose FUA, does
# nothing, and disks that a cut damages elsewhere.  Then devices that are empty, full, and in use.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need gcc losetup mkfs.ext4 od
[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root: the disk with a volatile cache is a FUSE file system"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/volatile_disk" "$root/tests/serve/volatile_disk.c"

bytes=$((8 << 20))
seed=${SEED:-1}
mkdir "$work/drive"
disk='' loop='' device='' receiver='' server='' writer=''

# await_disk PID DIRECTORY ERRORS: waits until the disk of that process is there.
await_disk() {
	local tries
	for ((tries = 0; tries < 400; tries++)); do
		[ -s "$2/disk" ] && return
		kill -0 "$1" 2>/dev/null || { disk=''; skip "cannot mount: $(cat "$3")"; }
		sleep 0.02
	done
	fail "there is no disk in $2: $(cat "$3")"
}
start_disk() { # FILE or BLOCK, KEY=NUMBER...
	local kind=$1
	shift
	seed=$((seed + 1))
	: >"$work/disk.log"
	"$work/volatile_disk" "$work/drive" "$work/platter" $bytes seed=$seed "$@" >"$work/disk.log" 2>>"$work/disk.err" &
	disk=$!
	await_disk "$disk" "$work/drive" "$work/disk.err"
	device=$work/drive/disk
	[ "$kind" = file ] && return
	attach "$device"
	device=$loop
}
attach() { # FILE; sets loop
	loop=$(loop_device "$1") || { loop='' && skip "$(cat "$work/no-loop")"; }
}
stop_disk() {
	[ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
	[ -z "$disk" ] || { kill -TERM "$disk" && wait "$disk"; } 2>/dev/null || true
	umount -l "$work/drive" 2>/dev/null || true
	disk='' loop=''
}
at_end stop_disk
cut_disk() {
	kill -USR1 "$disk"
	await_cut "$disk" "$work/disk.log"
}

# start_receiver DIRECTORY LOG: sets receiver, and server, its address.
start_receiver() {
	"$FOREBAY" media-test --receive 127.0.0.1:0 --directory "$1" --json >"$2" 2>&1 &
	receiver=$!
	until grep -qs listening "$2"; do
		kill -0 $receiver || fail "the receiver ended: $(cat "$2")"
		sleep 0.02
	done
	server=$(sed -n 's/.*"address":"\([^"]*\)".*/\1/p' "$2")
}

runs=$work/runs
# The steps that the receiver has of the newest run.
newest() { find "$runs" -name '*.run' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2; }
steps() { od -An -v -tu8 -w16 -j512 "$1" 2>/dev/null | awk 'NR == 1 || NR == 33 { if ($1 > n) n = $1 } END { print n + 0 }'; }

# said WORD: prints a string or number of the last JSON.
said() { sed -n "s/^ *\"$1\": \"*\([^\",]*\)\"*,*\$/\1/p" "$work/json" | head -n 1; }
expect() { # CODE COMMAND...
	local wanted=$1 got=0
	shift
	"$FOREBAY" "$@" --json >"$work/json" 2>"$work/error" || got=$?
	[ $got = "$wanted" ] || { cat "$work/json" "$work/error" >&2; fail "$* ended with code $got instead of $wanted (seed $seed)"; }
}

# start_writer MODE: sets writer, and returns when the receiver has 40 steps of its run.
start_writer() {
	local tries file
	rm -f "$runs"/*.run
	"$FOREBAY" media-test "$device" --server "$server" --mode "$1" --json >"$work/written" 2>&1 &
	writer=$!
	for ((tries = 0; tries < 3000; tries++)); do
		file=$(newest)
		[ -z "$file" ] || [ "$(steps "$file")" -lt 40 ] || return 0
		kill -0 $writer 2>/dev/null || { cat "$work/written" >&2; fail "the writer ended before the cut"; }
		sleep 0.02
	done
	fail "the receiver does not get 40 steps of the writer"
}

# pull KIND MODE KEY=NUMBER...: runs the test on a new disk, whose power is cut after some
# steps.
pull() {
	local kind=$1 mode=$2 code=0
	shift 2
	rm -f "$work/platter"
	truncate -s $bytes "$work/platter"
	start_disk "$kind" "$@"
	start_writer "$mode"
	cut_disk
	wait $writer || code=$?
	[ $code = 7 ] || { cat "$work/written" >&2; fail "the writer on a disk without power ended with code $code"; }
	# A disk that is gone does not count as one with damaged blocks.
	expect 7 media-test "$device" --verify --journal "$(newest)"
	stop_disk
	start_disk "$kind" "$@"
}

# One disk has flushes that take longer than a step may; it may have been away.
mkdir "$work/slow"
"$work/volatile_disk" "$work/slow" "$work/slow.platter" $((1 << 20)) flush_us=3200000 >"$work/slow.log" 2>&1 &
slow=$!
at_end 'kill -TERM $slow 2>/dev/null; umount -l "$work/slow" 2>/dev/null || true'
await_disk $slow "$work/slow" "$work/slow.log"
start_receiver "$work/slow.runs" "$work/slow.receiver"
slow_receiver=$receiver
at_end 'kill -TERM $slow_receiver 2>/dev/null || true'
"$FOREBAY" media-test "$work/slow/disk" --json --mode flush --server "$server" >"$work/stalled" 2>&1 &
slow_writer=$!

start_receiver "$runs" "$work/receiver.log"
tried=0
for honest in "file both keep=0" "file fua keep=1" "file flush keep=1" "block both keep=1" "file flush keep=0 lie=2"; do
	# shellcheck disable=SC2086 # words
	pull $honest
	expect 0 media-test "$device" --server "$server" --verify
	[ "$(said verdict)" = kept ] && [ "$(said steps)" -ge 40 ] || { cat "$work/json" >&2; fail "$honest: not kept"; }
	tried=$((tried + $(said steps)))
	stop_disk
done
say "5 disks that keep their word: none is accused, $tried steps"

# The blocks that the run has filled are there, and they identify the disk.
for lying in "file fua keep=0 lie=1 lie_after=2" "file flush keep=0 lie=1 lie_after=2" \
	"block both keep=0 lie=1 lie_after=2" "file fua keep=0 lie=2"; do
	# shellcheck disable=SC2086 # words
	pull $lying
	expect 11 media-test "$device" --server "$server" --verify --run "$(basename "$(newest)" .run)"
	[ "$(said verdict)" = lost ] || fail "$lying: not found"
	expect 11 media-test "$device" --verify --journal "$(newest)"
	stop_disk
done
say "4 disks that lie: each is found, by the receiver and by its file"

# A disk that has nothing of the run and no serial number may be another disk.
pull file both keep=0 lie=1
expect 17 media-test "$device" --server "$server" --verify --run "$(basename "$(newest)" .run)"
grep -q 'another one, or has lost everything' "$work/json" || { cat "$work/json" >&2; fail "a disk without a run is accused"; }
stop_disk

# The disk has power all the time, and its machine does not restart.  So nothing is known.
pull_nothing() { # SIGNAL
	rm -f "$work/platter"
	truncate -s $bytes "$work/platter"
	start_disk block keep=0
	start_writer fua
	kill -"$1" $writer
	wait $writer 2>/dev/null || true
	expect 17 media-test "$device" --server "$server" --verify
	grep -q '"verdict": "inconclusive"' "$work/json" || fail "SIG$1: a disk that kept its power has a verdict"
}
for signal in KILL HUP; do
	pull_nothing $signal
	stop_disk
done
say "a writer that is killed, or whose terminal goes, has tested nothing"

# FUA on a block device is not followed by a flush.  A loop device has no FUA, so the kernel
# makes a write and a flush of it.  There is one flush for each step, and not two.
flushes() { awk '{ print $16 }' "/sys/block/${1#/dev/}/stat"; }
rm -f "$work/platter"
truncate -s $bytes "$work/platter"
attach "$work/platter"
before=$(flushes "$loop")
expect 17 media-test "$loop" --server "$server" --mode fua --time 1s
grep -q '"fua_is": "write-and-flush"' "$work/json" || fail "FUA mode does not say what it is: $(cat "$work/json")"
if [ -n "$before" ]; then
	made=$(($(flushes "$loop") - before)) wrote=$(said steps)
	[ "$wrote" -gt 0 ] && [ $made -ge "$wrote" ] && [ $made -le $((wrote + 10)) ] ||
		fail "$made flushes for $wrote writes with FUA"
	say "$wrote writes with FUA: $made flushes"
fi

# A loop device over the device claims nothing, and neither does a program that writes to it.
upper=$(loop_device "$loop") || skip "$(cat "$work/no-loop")"
at_end '[ -z "$upper" ] || losetup -d "$upper" 2>/dev/null || true'
expect 4 media-test "$loop" --server "$server" --overwrite
grep -q "is the disk of $upper" "$work/error" || fail "a loop device over it is not seen: $(cat "$work/error")"
expect 10 media-info "$loop"
losetup -d "$upper"
upper=''
exec 8<>"$loop"
expect 4 media-test "$loop" --server "$server" --overwrite
grep -q 'open for writing in process' "$work/error" || fail "a writer is not seen: $(cat "$work/error")"
exec 8>&-
losetup -d "$loop"
loop=''
say "a loop device over a disk, and a program that writes to it, are seen"

code=0
wait $slow_writer || code=$?
[ $code = 17 ] && grep -q '"end": "stalled"' "$work/stalled" ||
	{ cat "$work/stalled" >&2; fail "a step that took too long ended with code $code"; }
expect 17 media-test "$work/slow/disk" --verify --journal "$work/slow.runs"/*.run
grep -q '"end": "stalled"' "$work/json" || { cat "$work/json" >&2; fail "a step that took too long is not told"; }
say "a step that took too long is not told to the receiver"

# More blocks are damaged than a step has, so nothing was writing to some of them.
pull file both keep=0
stop_disk
dd if=/dev/urandom of="$work/platter" bs=4096 seek=300 count=160 conv=notrunc status=none
start_disk file
expect 16 media-test "$device" --server "$server" --verify
[ "$(said verdict)" = collateral ] || fail "damaged blocks are not found"
say "damage elsewhere is found"

# Everything on the disk stays: a run, a file system, a partition table.
before=$(sha256sum <"$work/platter")
expect 12 media-test "$device" --server "$server"
grep -q 'media-test' "$work/error" || fail "what is there is not named: $(cat "$work/error")"
expect 2 media-test "$device" --server "$server" --over # an option is typed in full
stop_disk
[ "$(sha256sum <"$work/platter")" = "$before" ] || fail "a refused run has written"

# The image is in memory, because a loop device is refused for the disk below its file.
image=$shm/image
mv "$work/platter" "$image"
attach "$image"
expect 12 media-info "$loop" --write
mkfs.ext4 -qF "$loop"
expect 12 media-info "$loop" --write
grep -q 'ext4' "$work/error" || fail "the file system is not named: $(cat "$work/error")"
expect 12 media-test "$loop" --server "$server"
mkdir "$work/mounted"
mount "$loop" "$work/mounted" || skip "ext4 cannot be mounted here"
at_end 'umount -l "$work/mounted" 2>/dev/null || true'
expect 10 media-info "$loop"
grep -q '"in-use"' "$work/json" || fail "a mounted device is not refused"
expect 4 media-test "$loop" --server "$server" --overwrite
umount "$work/mounted"
losetup -d "$loop"
rm "$image"
truncate -s 32M "$image"
attach "$image"
expect 0 media-info "$loop"
grep -q '"measured": null' "$work/json" || fail "a device is measured without --write"
expect 0 media-info "$loop" --write --time 2s
grep -q '"way": "fua"' "$work/json" || fail "nothing was measured"
losetup -d "$loop"
loop=''
cmp -n $((32 << 20)) "$image" /dev/zero || fail "a device that was measured is not empty again"
say "devices that hold something or are in use are refused; an empty one is measured, and empty again"

# A receiver that does not answer does no damage.
truncate -s $bytes "$work/platter"
kill -TERM $receiver
wait $receiver || fail "the receiver ended with code $?"
expect 18 media-test "$work/platter" --server "$server"
cmp -n $bytes "$work/platter" /dev/zero || fail "a run without a receiver has written"
