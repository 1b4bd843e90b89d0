#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: what fio writes through NBD is what it reads, whatever the size of the
# blocks, while destage runs, and after the server was stopped or killed; and in
# the end it is on the origin.  Method: a volume eight times as large as its
# pool; for each block size fio writes, reads, trims and flushes it with
# verify=crc32c, several jobs at once.
. "$(dirname "$0")/lib.sh"
need nbdkit fio nbdinfo
fio --enghelp=nbd >/dev/null 2>&1 || skip "this fio has no nbd engine"

make_pool 32M data=256M
start_server

# fio_job NAME OPTIONS: on the volume, failing on the first wrong byte.
fio_job() {
	local name=$1
	shift
	fio --name="$name" --ioengine=nbd --uri="$(uri data)" --verify=crc32c --verify_fatal=1 \
		--verify_dump=0 --randseed=7 --output-format=terse --output="$work/fio.out" "$@" ||
		{ cat "$work/fio.out" >&2; fail "fio $name"; }
}

# One job verifies what it writes and trims; beside it one reads, writes, trims
# and flushes another part of the volume.
mixed() {
	local bs=$1 bytes=$2
	fio_job "mixed-$bs" --bs="$bs" --iodepth=16 --rw=randrw --rwmixread=30 \
		--offset=0 --size=192m --io_size="$bytes" --verify_backlog=256 \
		--trim_percentage=10 --trim_backlog=64 --fdatasync=64 \
		--name="beside-$bs" --ioengine=nbd --uri="$(uri data)" --bs="$bs" --iodepth=8 \
		--rw=randtrimwrite --offset=192m --size=64m --io_size="$((bytes / 4))" --fdatasync=32
	say "bs $bs: mixed reads, writes, trims and flushes verified"
}
mixed 512 8m
mixed 4k 64m
mixed 64k 192m
mixed 1m 192m
fio_job mixed-range --bsrange=512-1m --bs_unaligned=0 --iodepth=16 --rw=randwrite --size=192m \
	--io_size=128m --norandommap=0 --verify_backlog=64
say "blocks of 512 B to 1 MiB in one run verified"

written=$("$FOREBAY" status "$pool" --json | grep -o '"origin_writes": [0-9]*' | grep -o '[0-9]*$')
[ "$written" -gt 0 ] || fail "destage did not run: the test tested less than it says"
say "destage ran beside it: $written origin writes"

# Acknowledged is there after a stop, after a kill, and on the origin alone.
# Twice: randseed and block size differ, so the second does not verify the first.
for way in stop kill; do
	case $way in stop) seed=11 ;; kill) seed=12 ;; esac
	opts=(--rw=randwrite --bs=4k --size=256m --io_size=96m --iodepth=16 --randseed=$seed)
	fio_job "write-$way" "${opts[@]}" --do_verify=0
	"${way}_server"
	start_server
	fio_job "write-$way" "${opts[@]}" --verify_only=1
	say "all there after $way and restart"
done
stop_server
"$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain"
"$FOREBAY" check "$pool" >/dev/null || fail "check"
fio --name=write-kill --ioengine=psync --filename="$work/data.img" --verify=crc32c \
	--verify_fatal=1 "${opts[@]}" --verify_only=1 --output="$work/fio.out" ||
	{ cat "$work/fio.out" >&2; fail "the origin alone"; }
say "all there on the origin alone"
