# SPDX-License-Identifier: MIT OR Apache-2.0
# [ROUNDS [SECONDS]]: durable writes of 4 KiB next to dm-writecache (mode s) and bcache, each on an NVMe drive; out/vm-ssd-bench.json.
part() {
	local rounds=${1:-3} seconds=${2:-4} n
	. "$here/slow-disks.sh"
	get_bcache
	for n in 0 1 2 3 4; do
		nvmes+=("$out_vm/ssd-bench.$n")
		rm -f "$out_vm/ssd-bench.$n"
		truncate -s 256M "$out_vm/ssd-bench.$n"
	done
	poll=1
	show='^ssd-bench' guest ssd-bench 1500 guest-ssd-bench.sh "$rounds" "$seconds" >"$out_vm/ssd-bench.txt" || return 1
	rm -f "${nvmes[@]}"
	python3 "$here/ssd_bench_table.py" "$out_vm/ssd-bench.txt" "$root/out/vm-ssd-bench.json"
}
