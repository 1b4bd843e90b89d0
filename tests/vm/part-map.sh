# SPDX-License-Identifier: MIT OR Apache-2.0
# [CUTS [tests]]: files mapped onto a pool, on DAX and on the device: the power cut CUTS times; the library's tests on DAX.

# chain KIND CUTS: one pool and one file through all cuts; each third comes while what the one
# before has left is recovered.
chain() {
	local kind=$1 cuts=$2 round console='' rc=0 moment last
	local dir=$out_vm/map-$kind.kept
	rm -rf "$dir"
	mkdir -p "$dir"
	memory=$dir/memory
	disks=("$dir/file" "$dir/synced")
	truncate -s "${pmem_mb}M" "$memory"
	truncate -s 128M "$dir/file"
	: >"$dir/said"
	for ((round = 1; round <= cuts && rc == 0; round++)); do
		console=$out_vm/map-$kind.$round.console
		cp "$dir/said" "$dir/synced"
		truncate -s 4M "$dir/synced"
		last=$(awk '$1 == "synced" && $4 == "." && $3 > n { n = $3 } END { print n + 1000 }' "$dir/said")
		start_guest "$console" "$here/guest-map.sh" "$kind" "$round" "$last"
		if [ $((round % 3)) = 0 ]; then
			until_said "$console" 'map: recovering' || rc=1
			sleep 0.$((RANDOM % 10))
			moment=recovering
		else
			until_said "$console" '^synced ' || rc=1
			[ $rc != 0 ] || sleep $((RANDOM % 3)).$((1000 + RANDOM % 9000))
			moment=loading
		fi
		kill -9 "$guest_pid" 2>/dev/null
		wait "$guest_pid" 2>/dev/null
		! grep -aq '^FAIL\|mapload:' "$console" || rc=1
		# Only whole lines: the last one may be cut.  Of each page the last value.
		tr -d '\r' <"$console" | grep -aE '^synced [0-9]+ [0-9]+ \.$' >>"$dir/said"
		awk '$3 > n[$2] { n[$2] = $3 } END { for (p in n) print "synced", p, n[p], "." }' "$dir/said" >"$dir/said.new"
		mv "$dir/said.new" "$dir/said"
		[ $rc != 0 ] || echo "cut $kind.$round, $moment: $(grep -a 'that were synced' "$console" | tr -d '\r' || echo first load)"
	done
	if [ $rc != 0 ]; then
		say "cut $kind.$((round - 1)) failed; console: $console"
		tr -d '\r' <"$console" | tail -n 25 >&2
	else
		cp "$dir/said" "$dir/synced"
		truncate -s 4M "$dir/synced"
		show='FAIL|passed$|there|used of' guest "map-$kind" 900 guest-map.sh "$kind" 0 0
		rc=$?
	fi
	if [ $rc = 0 ]; then
		rm -rf "$dir"
		echo "map: $kind: $cuts power cuts, all that was synced is there"
	else
		say "memory and disks of the failed round are kept in $dir"
	fi
	return $rc
}

build_mapload() {
	[ -e "$built/libforebay_map_c.a" ] || {
		say "libforebay_map_c.a: not built; run: cargo build --release -p forebay-map-c"
		return 1
	}
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -I "$root/crates/forebay-map-c/include" -o "$out_vm/mapload" \
		"$here/mapload.c" "$built/libforebay_map_c.a" -lgcc_s -ldl -lm && strip "$out_vm/mapload"
}

# The library's own tests, their memory on DAX.
library_tests() {
	local name binary
	rm -rf "$out_vm/map-tests"
	mkdir -p "$out_vm/map-tests"
	(cd "$root" && cargo test -q -p forebay-map --no-run --message-format=json) |
		sed -n 's/.*"name":"\([a-z_]*\)".*"executable":"\([^"]*\)".*/\1 \2/p' >"$out_vm/map-tests/list"
	while read -r name binary; do
		strip -o "$out_vm/map-tests/$name" "$binary" || return 1
	done <"$out_vm/map-tests/list"
	[ -x "$out_vm/map-tests/forebay_map" ] || { say "no tests of forebay-map"; return 1; }
	guest map-tests 1800 guest-map-tests.sh
}

part() {
	local cuts=${1:-20} kind pids=() pid rc=0
	build_mapload || return 1
	rm -f "$out_vm"/map-{dax,device}.*console
	for kind in dax device; do
		chain $kind $((cuts / 2)) &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
	[ "${2:-}" != tests ] || library_tests || rc=1
	return $rc
}
