# SPDX-License-Identifier: MIT OR Apache-2.0
# [SECONDS [TIMES [RATE...]]]: a full cache of 520 MiB before disks of 400, 2000, 20000 requests/s, compared with dm-writecache, bcache, dm-pcache; bench/out/vm-destage.json.
part() {
	. "$here/slow-disks.sh"
	. "$here/pcache.sh"
	# For each rate of requests: MB/s, latency and flush in us; like a hard disk, SATA,
	# NVMe.
	local -A speeds=([400]='100 2500 5000' [2000]='100 500 1000' [20000]='400 80 500')
	# dm-pcache takes no less than 512 MiB.
	local kinds=${FOREBAY_VM_CACHES:-writecache:bcache:pcache:native:native+crc}
	local cache_mib=520 seconds=${1:-75} times=${2:-2:3:6} rate speed list
	shift $(($# < 2 ? $# : 2))
	[ $# -gt 0 ] || set -- 400 2000 20000
	for rate; do
		speed=${speeds[$rate]:-}
		[ -n "$speed" ] || { say "destage: $rate is not known; disks of ${!speeds[*]} requests/s are"; return 2; }
		# shellcheck disable=SC2086 # three numbers
		slow_disks 1 $(((${times##*:} * cache_mib + 16) << 20)) "$rate" $speed || return
	done
	get_bcache
	get_pcache
	printf -v list ':%s' "$@"
	pmem_mb=$cache_mib guest_mb=4096
	show='^(load|FAIL)' guest destage $(($# * 15 * (seconds + 30) + 900)) guest-destage.sh "$seconds" $cache_mib "$times" "${list#:}" "$kinds" >"$out_vm/destage.txt" || {
		grep '^FAIL' "$out_vm/destage.txt"
		return 1
	}
	out=${BENCH_OUT:-$root/bench/out}
	mkdir -p "$out"
	python3 -B "$here/destage_table.py" "$out_vm/destage.txt" "$out/vm-destage.json" command="tests/vm/run destage $seconds $times $*" \
		guest_kernel="$release" cache_mib=$cache_mib seconds="$seconds" threads=8
}
