# SPDX-License-Identifier: MIT OR Apache-2.0
# [one|large]: instructions that a request executes in the guest, program and kernel, on each device; no load of the machine shows in it.
. "$here/part-bench.sh"

part() {
	# The guest's clock counts them, one a nanosecond: so many go to a request as its
	# devices serve fewer a second.
	accel=(-accel "tcg,thread=single" -icount "shift=0,sleep=off")
	bench_memory
	cpus=1
	show='^bench' guest bench 900 guest-bench.sh 1 1 "${1:-one}" 24 >"$out_vm/instructions.txt" || return 1
	awk '{ n[$3 " " $4 " " $5] = 1e9 / $6; rows[$3] }
		function cell(r, d) { return (r " off " d) in n ? sprintf("%d", n[r " off " d]) : "" }
		END {
			for (r in rows)
				printf "%-10s %8s %8s %10s %8s %8s %8d %8d\n", r, cell(r, "pmem"), cell(r, "linear"),
					cell(r, "writecache"), cell(r, "target"), cell(r, "native"), n[r " on target"], n[r " on native"]
		}' "$out_vm/instructions.txt" | sort -r |
		(printf '%-10s %8s %8s %10s %8s %8s   with checksums\n' '' pmem linear writecache target native && cat)
}
