# SPDX-License-Identifier: MIT OR Apache-2.0
# [kasan|kcsan [PART...]]: a kernel that looks for mistakes finds planted ones; smoke, native and faults on it.

# mistakes NAME...: the kernel reports each of them.
mistakes() {
	local out=$root/out/mistake-$release
	mkdir -p "$out" && cp "$here"/mistake/* "$out"/ || return 1
	make -s -C "$KDIR" M="$out" modules >"$out.log" 2>&1 || {
		tail -n 20 "$out.log" >&2
		return 1
	}
	guest mistake 400 guest-mistake.sh "$out/mistake.ko" "$@"
}

part() {
	local planted=(order sleep beyond freed) parts=(smoke native faults) name rc=0
	series=${1:-kasan}
	[ $# -le 1 ] || parts=("${@:2}")
	prepare || return
	[ "$series" = kasan ] || planted=(race)
	mistakes "${planted[@]}" || return
	for name in "${parts[@]}"; do
		run_part "$name" || rc=1
	done
	return $rc
}
