#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# ceph.sh - durable writes of 4 KiB to an RBD image, by one client: librbd alone with its
# cache off and on, a volume on the image over NBD, and the volume in the process.  The
# cluster is one of this host (tests/ceph/cluster: a monitor, three OSDs, in memory, so
# without a disk's time), and all sides write in turn, round by round.
#
#	ceph.sh [--seconds N] [--rounds N] [--json FILE]
#
# The volume's figures are those of a cache with room: an image of 256 MiB, a pool of 1 GiB.
# "steady" is the volume with a pool of 64 MiB, where each write waits until destage has
# made room.  librbd's own persistent write log is not in Debian's build of it.
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

seconds=5 rounds=3 json=''
while [ $# -gt 0 ]; do
	case $1 in
	--seconds) seconds=$2; shift 2 ;;
	--rounds) rounds=$2; shift 2 ;;
	--json) json=$2; shift 2 ;;
	*) sed -n '4,14p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
	esac
done
want ceph-mon ceph-mon
want ceph-osd ceph-osd
want rbd ceph-common
want fio fio
want jq jq
want nbdinfo libnbd-bin
wanted
durable=${CARGO_TARGET_DIR:-$root/target}/release/examples/durable
[ -x "$durable" ] || fail "not built: cargo build --release -p forebay --example durable"

start_work
cluster=$work/ceph
export CEPH_CONF=$cluster/ceph.conf FOREBAY_STATE_DIR=$work/state
at_end '"$root/tests/ceph/cluster" down "$cluster"'
say "starting a cluster"
"$root/tests/ceph/cluster" up "$cluster" 3
image() { timeout 60 rbd create --size 256M --image-feature exclusive-lock "rbd/$1"; }
image plain
# pool NAME BYTES: with a volume v on an image.
pool() {
	image "$1"
	"$FOREBAY" create "$work/$1.pool" --size "$2" >/dev/null
	"$FOREBAY" volume add "$work/$1.pool" v "rbd:rbd/$1" >/dev/null
}
pool nbd 1G
pool process 1G
pool steady 64M

# by_fio ENGINE...: a write and a flush in turn.
by_fio() {
	timeout $((seconds + 60)) fio --aux-path="$work" --name=durable --rw=randwrite --bs=4k --iodepth=1 --fsync=1 \
		--time_based --runtime="$seconds" --output-format=json --output="$work/fio" "$@" >"$work/fio.log" 2>&1
	# Its engines may write before it.
	sed -n '/^{/,$p' "$work/fio" | jq -c '.jobs[0] | {writes_per_s: .write.iops, p50_us: ((.write.clat_ns.percentile["50.000000"] + .sync.lat_ns.percentile["50.000000"]) / 1000),
			p99_us: ((.write.clat_ns.percentile["99.000000"] + .sync.lat_ns.percentile["99.000000"]) / 1000)}'
}
librbd() { # CACHE
	sed "s/^\[client\]/[client]\nrbd cache = $1\nrbd cache writethrough until flush = false/" "$CEPH_CONF" >"$work/cache.conf"
	CEPH_CONF=$work/cache.conf by_fio --ioengine=rbd --clientname=admin --pool=rbd --rbdname=plain
}
run_rbd() { librbd false; }
run_rbd_cache() { librbd true; }
run_nbd() {
	local server
	"$FOREBAY" serve "$work/nbd.pool" --socket "$work/run/nbd" --json >"$work/nbd.ready" 2>>"$work/nbd.log" &
	server=$!
	until_true grep -q '"ready":true' "$work/nbd.ready"
	by_fio --ioengine=nbd --uri="$(uri "$work/run/nbd" v)" --size=256m
	stop $server
	rm -f "$work/run/nbd"
}
run_process() { "$durable" "$work/process.pool" v "$seconds"; }
run_steady() { "$durable" "$work/steady.pool" v "$seconds"; }

say "load at the start: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) CPUs, Linux $(uname -r), $rounds rounds of $seconds s"
cases=(rbd rbd_cache nbd process steady)
for ((round = 0; round < rounds; round++)); do
	for case in "${cases[@]}"; do
		figures=$("run_$case") || fail "$case"
		jq -c --arg what "$case" '{what: $what} + .' <<<"$figures"
	done
done >"$work/rows"
jq -s --argjson machine "$(machine)" '
	def median: sort | .[length / 2 | floor];
	{machine: $machine, rows: [group_by(.what)[] | {what: .[0].what, writes_per_s: (map(.writes_per_s) | median | round),
		p50_us: (map(.p50_us) | median), p99_us: (map(.p99_us) | median)}]}
	| (.rows[] | select(.what == "rbd") | .writes_per_s) as $alone
	| .rows |= map(. + {over_librbd: (.writes_per_s / $alone * 100 | round / 100)})' "$work/rows" >"$work/result"
jq -r '["what", "writes/s", "p50 us", "p99 us", "times librbd"], (.rows[] | [.what, .writes_per_s, .p50_us, .p99_us, .over_librbd]) | @tsv' \
	"$work/result" | column -t -s "$(printf '\t')"
[ -z "$json" ] || cp "$work/result" "$json"
