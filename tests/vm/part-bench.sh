# SPDX-License-Identifier: MIT OR Apache-2.0
# [ROUNDS [SECONDS [short]]]: beside the bare pmem device and dm-writecache; out/vm-bench.json.
part() {
	pmem_map='160M!4G,160M!4352M,160M!4608M' poll=1
	show='^bench' guest bench 3000 guest-bench.sh "${1:-3}" "${2:-2}" "${3:-}" >"$out_vm/bench.txt" || return 1
	python3 "$here/bench_table.py" "$out_vm/bench.txt" "$root/out/vm-bench.json"
}
