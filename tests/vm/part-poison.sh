# SPDX-License-Identifier: MIT OR Apache-2.0
# Memory that fails: data, headers and superblock poisoned, in use and before a start; bad blocks, memory_failure.
part() {
	local out=$root/out/poison-$release
	mkdir -p "$out" && cp "$here"/poison/* "$out"/ || return 1
	make -s -C "$KDIR" M="$out" CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$out.log" 2>&1 || {
		tail -n 20 "$out.log" >&2
		return 1
	}
	pmem_mb=64 guest poison 400 guest-poison.sh "$out/poison.ko"
}
