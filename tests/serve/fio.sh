#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: fio reads through NBD what it wrote, whatever the size of the blocks, during
# destage, and after the server was stopped or killed.  In the end the data is on the
# origin.  Method: a volume eight times as large as its pool.  For each block size fio
# writes, reads, trims and flushes it with verify=crc32c, with several jobs at once.
# shellcheck disable=SC2119 # no arguments on purpose
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need fio nbdinfo
fio --enghelp=nbd >/dev/null 2>&1 || skip "this fio has no nbd engine"

make_pool 32M data=256M
start_server

# fio_job NAME OPTIONS: runs on the volume, and fails on the first wrong byte.
fio_job() {
	local name=$1
	shift
	fio --aux-path="$work" --name="$name" --ioengine=nbd --uri="$(uri data)" --verify=crc32c --verify_fatal=1 \
		--verify_dump=0 --randseed=7 --output-format=terse --output="$work/fio.out" "$@" ||
		{ cat "$work/fio.out" >&2; fail "fio $name"; }
}

# mixed BS MIB: one job writes, reads back and verifies, and flushes.  Meanwhile two others
# read, write and trim another part of the volume.  Then each block is trimmed, written and
# verified, twice, so that the second time it is cached.  These steps follow each other,
# since fio does not wait for the trim before it writes.
mixed() {
	local bs=$1 mib=$2 beside
	beside=(--ioengine=nbd --uri="$(uri data)" --bs="$bs" --iodepth=8 --verify=0
		--offset=192m --size=64m --io_size="$((mib / 4))m")
	fio_job "mixed-$bs" --bs="$bs" --iodepth=16 --rw=randrw --rwmixread=30 \
		--size=192m --io_size="${mib}m" --verify_backlog=256 --fsync=64 \
		--name="trim-$bs" --rw=randtrimwrite --fsync=32 "${beside[@]}" \
		--name="read-$bs" --rw=randread "${beside[@]}"
	fio_job "trimmed-$bs" --bs="$bs" --iodepth=1 --rw=randtrimwrite --fsync=32 \
		--size=4m --loops=2
	say "bs $bs: mixed reads, writes, trims and flushes verified"
}
mixed 512 8
mixed 4k 48
mixed 64k 128
mixed 1m 128
fio_job mixed-range --bsrange=512-1m --bs_unaligned=0 --iodepth=16 --rw=randwrite --size=192m \
	--io_size=128m --norandommap=0 --verify_backlog=64
say "blocks of 512 B to 1 MiB in one run verified"

# counter NAME: prints a counter of the server's status, or the sum if there are several.
counter() {
	"$FOREBAY" status "$pool" --json | sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" |
		awk '{ sum += $1 } END { print sum + 0 }'
}
for what in origin_writes discards flushes read_hit_bytes read_miss_bytes merges; do
	[ "$(counter $what)" -gt 0 ] || fail "no $what: the test tested less than it says"
done
say "beside it: $(counter origin_writes) origin writes, $(counter discards) discards, $(counter flushes) flushes"

# Acknowledged data is there after a stop, after a kill, and on the origin alone.  This runs
# twice: randseed and block size differ, so the second run does not verify the first one's
# data.
for way in stop kill; do
	case $way in stop) seed=11 ;; kill) seed=12 ;; esac
	opts=(--rw=randwrite --bs=4k --size=256m --io_size=96m --iodepth=16 --randseed="$seed")
	fio_job "write-$way" "${opts[@]}" --do_verify=0
	"${way}_server"
	start_server
	fio_job "write-$way" "${opts[@]}" --verify_only=1
	say "all there after $way and restart"
done
stop_server
"$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain"
"$FOREBAY" check "$pool" >/dev/null || fail "check"
fio --aux-path="$work" --name=write-kill --ioengine=psync --filename="$work/data.img" --verify=crc32c \
	--verify_fatal=1 "${opts[@]}" --verify_only=1 --output="$work/fio.out" ||
	{ cat "$work/fio.out" >&2; fail "the origin alone"; }
say "all there on the origin alone"
