# SPDX-License-Identifier: MIT OR Apache-2.0
# sparse has nothing to say of the module, and finds a user's pointer that is followed; no guest.
part() {
	local out=$root/out/kernel-$release-sparse log=$root/out/vm/sparse.said
	command -v sparse >/dev/null || {
		say "sparse is missing (package sparse)"
		return 77
	}
	make -s -C "$root/kernel" tree OUT="$out" || return
	look "$out" "$log" || return
	if grep -E 'warning:|error:' "$log"; then
		say "sparse has something to say"
		return 1
	fi
	rm -f "$out/kernel/native.c"
	sed 's/copy_to_user(to, \(.*\), n))/!memcpy(to, \1, n))/' "$root/kernel/native.c" >"$out/kernel/native.c"
	look "$out" "$log"
	grep -q 'different address spaces' "$log" || {
		say "sparse does not find a user's pointer that is followed"
		return 1
	}
	echo "sparse: nothing in the module; the planted mistake is found"
}
look() { "${module_env[@]}" make -s -C "$KDIR" M="$1/kernel" CONFIG_DEBUG_INFO_BTF_MODULES= C=2 modules >"$2" 2>&1; }
