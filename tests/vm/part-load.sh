# SPDX-License-Identifier: MIT OR Apache-2.0
# [quick|full]: a full cache on a disk of a steady rate, and mixes, compared with dm-writecache, bcache and, from 6.18 on, dm-pcache; bench/out/vm-load.json.
part() {
	. "$here/slow-disks.sh"
	. "$here/pcache.sh"
	# Cache MiB, and six times as much data; what else: guest-load.sh.
	local mib=64 seconds=25 rounds=3 each=4 jobs=1:16
	# dm-pcache takes no less than 512 MiB; it has six times as much data, too.
	local pcache_mib=520
	local speed=(2000 100 500 1000)
	case ${1:-} in
	'') ;;
	quick) seconds=15 rounds=1 each=1 ;;
	full) seconds=60 jobs=1:2:4:8:16 ;;
	*) say "load: $1 is not known; use quick, full or nothing"; return 2 ;;
	esac
	command -v jq >/dev/null || { say "jq is missing: apt-get install jq"; return 77; }
	slow_disks 5 $(((6 * mib + 16) << 20)) "${speed[@]}" || return
	get_bcache
	pmem_map="${mib}M!4G,${mib}M!4352M,${mib}M!4608M,${mib}M!4864M"
	guest_mb=5120
	get_pcache
	if [ -e "$out_vm/dm-pcache-$release.ko" ]; then
		slow_disks 1 $(((6 * pcache_mib + 16) << 20)) "${speed[@]}" || return
		pmem_map+=",${pcache_mib}M!5120M"
		guest_mb=$((guest_mb + 640))
	else
		pcache_mib=0
	fi
	show='^(load|FAIL)' guest load 4000 guest-load.sh $seconds $mib $rounds $each $jobs $pcache_mib >"$out_vm/load.txt" || {
		grep '^FAIL' "$out_vm/load.txt"
		return 1
	}
	out=${BENCH_OUT:-$root/bench/out}
	mkdir -p "$out"
	python3 -B "$here/load_table.py" "$out_vm/load.txt" "$out/vm-load.json" command="tests/vm/run load${1:+ $1}" \
		guest_kernel="$release" cache_mib=$mib pcache_mib=$pcache_mib data_mib=$((6 * mib)) seconds=$seconds rounds=$rounds round_seconds=$each \
		disk="{\"requests_per_s\": ${speed[0]}, \"megabytes_per_s\": ${speed[1]}, \"latency_us\": ${speed[2]}, \"flush_us\": ${speed[3]}}"
}
