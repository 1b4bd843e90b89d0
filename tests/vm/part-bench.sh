# SPDX-License-Identifier: MIT OR Apache-2.0
# [ROUNDS [SECONDS [short|all [MIB]]]]: beside the bare pmem device and dm-writecache; out/vm-bench.json.
# The memory of guest-bench.sh's devices.
bench_memory() { pmem_map='340M!4G,340M!4480M,340M!4864M,340M!5248M,340M!5632M' guest_mb=5120; }

part() {
	local rounds=${1:-3} seconds=${2:-1} form=${3:-all} mib=${4:-96}
	bench_memory
	poll=1
	show='^bench' guest bench 3000 guest-bench.sh "$rounds" "$seconds" "$form" "$mib" >"$out_vm/bench.txt" || return 1
	python3 "$here/bench_table.py" "$out_vm/bench.txt" "$root/out/vm-bench.json"
}
