#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bluestore.sh - writes of 4 KiB by `rados bench` to a Ceph OSD whose store (BlueStore) is
# on a disk, on the disk with its write-ahead log and database in memory (block.wal and
# block.db, what Ceph offers for a fast device), and on a volume in front of the disk, with a
# pool of the same memory.  Three clusters of one OSD on this host, in turn, round by round.
#
#	bluestore.sh [--disk own|sata|disk] [--clients N,...] [--seconds N] [--rounds N] [--json FILE]
#
# The volume is served over NBD, and all stores are on loop devices.
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

kind=sata clients=1,16 seconds=10 rounds=3 json=''
while [ $# -gt 0 ]; do
	case $1 in
	--disk) kind=$2; shift 2 ;;
	--clients) clients=$2; shift 2 ;;
	--seconds) seconds=$2; shift 2 ;;
	--rounds) rounds=$2; shift 2 ;;
	--json) json=$2; shift 2 ;;
	*) sed -n '4,11p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
	esac
done
want ceph-mon ceph-mon
want ceph-osd ceph-osd
want rados ceph-common
want nbdkit nbdkit
want nbdfuse nbdfuse
want jq jq
wanted
[ "$(id -u)" = 0 ] || fail "loop devices need root"

start_work
export FOREBAY_STATE_DIR=$work/state
sides=(disk db volume)
declare -A store
# loop NAME FILE: as store[NAME].
loop() {
	store[$1]=$(loop_device "$2" --direct-io=on || loop_device "$2") || fail "$(cat "$work/no-loop")"
	at_end "losetup -d ${store[$1]}"
}
disk disk "$kind" 4G
disk db "$kind" 4G
volume volume "$kind" 4G 1G
for side in "${sides[@]}"; do loop "$side" "$work/$side.fuse/nbd"; done
for part in wal db; do truncate -s 512M "$work/$part.file"; loop "$part.file" "$work/$part.file"; done

# cluster SIDE LINE...
cluster() {
	at_end "'$root/tests/ceph/cluster' down '$work/ceph.$1'"
	"$root/tests/ceph/cluster" up "$work/ceph.$1" 1 "bluestore block path = ${store[$1]}" "${@:2}"
}
say "starting three clusters"
cluster disk
cluster db "bluestore block wal path = ${store[wal.file]}" "bluestore block db path = ${store[db.file]}"
cluster volume

# one SIDE CLIENTS: a line of figures.
one() {
	CEPH_CONF=$work/ceph.$1/ceph.conf timeout $((seconds + 120)) rados bench -p rbd "$seconds" write -b 4096 -t "$2" --run-name "$1" >"$work/bench" 2>&1 ||
		{ cat "$work/bench" >&2; fail "rados bench on $1"; }
	awk -v side="$1" -v clients="$2" -F': *' '/^Average IOPS/ { iops = $2 } /^Average Latency/ { latency = $2 } /^Max latency/ { most = $2 }
		END { printf "{\"store\":\"%s\",\"clients\":%d,\"writes_per_s\":%s,\"mean_ms\":%s,\"longest_ms\":%s}\n", side, clients, iops, latency * 1000, most * 1000 }' "$work/bench"
}
say "load at the start: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) CPUs, Linux $(uname -r), $rounds rounds of $seconds s"
IFS=, read -r -a counts <<<"$clients"
for ((round = 0; round < rounds; round++)); do
	for n in "${counts[@]}"; do
		for side in "${sides[@]}"; do one "$side" "$n"; done
	done
done >"$work/rows"
jq -s --argjson machine "$(machine)" --arg disk "$kind" '
	def median: sort | .[length / 2 | floor];
	{machine: $machine, disk: $disk, rows: [group_by([.clients, .store])[] | {store: .[0].store, clients: .[0].clients,
		writes_per_s: (map(.writes_per_s) | median), mean_ms: (map(.mean_ms) | median), longest_ms: (map(.longest_ms) | max)}]}
	| (.rows | map(select(.store == "disk") | {key: (.clients | tostring), value: .writes_per_s}) | from_entries) as $alone
	| .rows |= map(. + {over_disk: (.writes_per_s / $alone[.clients | tostring] * 100 | round / 100)})' "$work/rows" >"$work/result"
jq -r '["store", "clients", "writes/s", "mean ms", "longest ms", "times disk"],
	(.rows[] | [.store, .clients, .writes_per_s, .mean_ms, .longest_ms, .over_disk]) | @tsv' "$work/result" | column -t -s "$(printf '\t')"
[ -z "$json" ] || cp "$work/result" "$json"
