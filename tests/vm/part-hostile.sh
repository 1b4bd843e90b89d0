# SPDX-License-Identifier: MIT OR Apache-2.0
# [POOLS [SEED [GUESTS]]]: mutated pools, until 2000 were attached, on a kernel with KASAN and lockdep; planted mistakes first.
# PLANTED=0: without those.

# caught NAME SEED PATTERN [FILE SED]...: with that mistake, the first that the tool
# or the kernel says of it fits PATTERN.  From SEED on it is near; nothing else
# depends on that number.
caught() {
	local console=$out_vm/hostile-$1.console found=
	build_planted "$1" "${@:4}" || return 1
	start_guest "$console" "$here/guest-hostile.sh" "$out_vm/hostile" 2000 "$2" "$1"
	# The tool reports it, or a kernel that stopped before the tool could.
	wait_guest 600 "$console" ||
		found=$(tr -d '\r' <"$console" | sed -n '/^hostile: .* bases/,$p' | grep -aE -m 1 '^kernel: |^FAIL|BUG: ')
	if ! grep -qE "$3" <<<"$found"; then
		say "the planted mistake $1 was not caught${found:+, but: $found}; console: $console"
		tr -d '\r' <"$console" | tail -n 10 >&2
		return 1
	fi
	echo "ok: the planted mistake $1 was caught: $found"
}

# side_by_side: waits for all that was started; 1 if one of them failed.
side_by_side() {
	local pid rc=0
	for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
	pids=()
	return $rc
}

part() {
	local pools=${1:-2000} seed=${2:-1} guests=${3:-2} g n pids=()
	series=${FOREBAY_VM_KERNEL:-kasan}
	prepare || return
	pmem_map='4M!4G,12M!4352M'
	# Nothing here waits for the host.  When all its CPUs are idle, the guest continues
	# at its next timer at once.
	accel=("${accel[@]/%shift=1/shift=1,sleep=off}")
	gcc -O2 -Wall -Wextra -Werror -pthread -I"$root/core" -I"$root/core/api" -I"$root/port" -o "$out_vm/hostile" \
		"$here"/hostile.c "$here"/hostile_host.c "$here"/hostile_mutate.c || return 1
	if [ "${PLANTED:-1}" = 1 ]; then
		caught range 35 'outside the volumes|beyond end of device' \
			core/recover/scan.c 's/if \(out_of_range\(p, s, l\)\)/if (0 \&\& out_of_range(p, s, l))/' &
		pids+=($!)
		# The engine's own assertion would report it before the kernel does.
		caught fill 1 'KASAN: |BUG: unable to handle page fault' \
			core/format/lines.c 's/ && out->fill <= st->chunk_pages//; s/ && i < st->chunk_pages//' &
		pids+=($!)
		side_by_side || return 1
		# A seal may reach as far as in the largest chunk there can be; recovery minds
		# the end of this pool's, destage does not.  What it looks at past the last
		# entry of the index is zero, and means nothing.
		caught past 35552 'BUG: KASAN: vmalloc-out-of-bounds ' \
			core/format/lines.c 's/out->fill <= st->chunk_pages/out->fill <= FBY_CHUNK_PAGES_MAX/' \
			core/recover/scan.c 's/(ch->fill = )(s\.sealed > p->space->store.first_page)/\1s.sealed > p->space->store.chunk_pages ? p->space->store.chunk_pages : \2/' ||
			return 1
	fi
	for ((g = 0; g < guests; g++)); do
		n=$(((pools + g) / guests))
		[ $n = 0 ] || guest "hostile-$g" 2400 guest-hostile.sh "$out_vm/hostile" $n $((seed + g * 1000000)) &
		pids+=($!)
	done
	side_by_side || return 1
	for ((g = 0; g < guests; g++)); do
		[ $(((pools + g) / guests)) = 0 ] || tr -d '\r' <"$out_vm/hostile-$g.console" | grep -a '^hostile: ' | grep -av ' s$'
	done | tee "$out_vm/hostile.said"
	sed -nE 's/^hostile: ([0-9]+) pools from seed .*: ([0-9]+) attached, ([0-9]+) refused.*/\1 \2 \3/p' "$out_vm/hostile.said" |
		awk '{ p += $1; a += $2; r += $3 } END { print "hostile: " a+0 " mutated pools attached, " r+0 " of " p+0 " refused, nothing found" }'
}
