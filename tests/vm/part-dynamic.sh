# SPDX-License-Identifier: MIT OR Apache-2.0
# [ROUNDS [MIB [DISK]]]: FIO-12 and varmail on ext4 on the native device, static and not, compared with dm-writecache and the disk alone; bench/out/vm-dynamic.json.
# MIB stands for a GB of the talk's files (1); the caches hold 1.28 times the working set, as there.

. "$root/bench/programs.sh"
. "$root/bench/disks.sh"

part() {
	. "$here/slow-disks.sh"
	local rounds=${1:-3} gb=${2:-1} disk=${3:-sata} loads=(fio-12 varmail) sides=origin:writecache:native:static speed cache_mib
	cache_mib=$((gb * 128))
	read -r -a speed <<<"$(disk_speed "$disk")"
	slow_disks 4 $((gb * 400))M "${speed[@]}" || return
	pmem_map="${cache_mib}M!4G,${cache_mib}M!$((4096 + cache_mib + 128))M,${cache_mib}M!$((4096 + 2 * (cache_mib + 128)))M"
	guest_mb=$((4096 + 3 * (cache_mib + 128)))
	show='^(apps|FAIL)' guest apps 3000 guest-apps.sh "$rounds" 5 "$disk" "$(IFS=: && echo "${loads[*]}")" $sides "$gb" >"$out_vm/dynamic.txt" || {
		grep -a '^FAIL' "$out_vm/dynamic.txt"
		return 1
	}
	out=${BENCH_OUT:-$root/bench/out}
	mkdir -p "$out"
	python3 -B "$here/apps_table.py" "$out_vm/dynamic.txt" "$out/vm-dynamic.json" command="tests/vm/run dynamic $rounds $gb $disk" \
		guest_kernel="$release" rounds="$rounds" seconds=5 gb_mib="$gb" cache_mib="$cache_mib" \
		disks="$(disks_json "$disk")" units="$(units_json "${loads[@]}")"
}
