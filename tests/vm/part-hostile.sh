# SPDX-License-Identifier: MIT OR Apache-2.0
# [POOLS [SEED]]: mutated pools (2000) into the module on a kernel with KASAN and lockdep; planted mistakes first.

# planted NAME SCRIPT: a module with a mistake, by sed on a copy of the engine.
build_planted() {
	local out=$root/out/kernel-$release-$1 file=$2
	make -s -C "$root/kernel" tree OUT="$out" && rm -f "$out/$file" && sed -E "$3" "$root/$file" >"$out/$file" || return 1
	if cmp -s "$root/$file" "$out/$file"; then
		say "the mistake $1 no longer fits $file"
		return 1
	fi
	make -s -C "$KDIR" M="$out/kernel" CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$out.log" 2>&1 || {
		tail -n 20 "$out.log" >&2
		return 1
	}
}

# caught NAME FILE SED PATTERN: with that mistake, the tool finds PATTERN.
caught() {
	local console=$out_vm/hostile-$1.console found
	build_planted "$1" "$2" "$3" || return 1
	start_guest "$console" "$here/guest-hostile.sh" "$out_vm/hostile" 2000 1 "$1"
	wait_guest 600 "$console"
	found=$(tr -d '\r' <"$console" | grep -a -B 100 '^FAIL: hostile: seed' | grep -aE "$4" | head -n 1)
	if [ -z "$found" ]; then
		say "the planted mistake $1 was not caught; console: $console"
		tr -d '\r' <"$console" | tail -n 10 >&2
		return 1
	fi
	echo "ok: the planted mistake $1 was caught: $found"
}

part() {
	series=${FOREBAY_VM_KERNEL:-kasan}
	prepare || return
	pmem_map='4M!4G,12M!4352M'
	gcc -O2 -Wall -Wextra -Werror -pthread -I"$root/core" -I"$root/port" -o "$out_vm/hostile" \
		"$here"/hostile.c "$here"/hostile_host.c "$here"/hostile_mutate.c || return 1
	caught range core/recovery.c 's/if \(out_of_range\(p, s, l\)\)/if (0 \&\& out_of_range(p, s, l))/' \
		'outside the volumes|beyond end of device' || return 1
	caught fill core/lines.c 's/ && out->fill <= p->chunk_pages//' 'KASAN: ' || return 1
	guest hostile 2400 guest-hostile.sh "$out_vm/hostile" "${1:-2000}" "${2:-1}"
}
