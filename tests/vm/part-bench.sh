# SPDX-License-Identifier: MIT OR Apache-2.0
# [ROUNDS [SECONDS [short|all [MIB]]]]: compared with the bare pmem device, dm-writecache and, from 6.18 on, dm-pcache; out/vm-bench.json.
# The memory of guest-bench.sh's devices.
bench_memory() { pmem_map='1000M!4G,1000M!5248M,1000M!6400M,1000M!7552M,1000M!8704M,1000M!9856M' guest_mb=10368; }

part() {
	local rounds=${1:-3} seconds=${2:-1} form=${3:-all} mib=${4:-96}
	. "$here/pcache.sh"
	get_pcache
	bench_memory
	poll=1
	show='^bench' guest bench 3000 guest-bench.sh "$rounds" "$seconds" "$form" "$mib" >"$out_vm/bench.txt" || return 1
	python3 "$here/bench_table.py" "$out_vm/bench.txt" "$root/out/vm-bench.json"
}
