# SPDX-License-Identifier: MIT OR Apache-2.0
# build DIR | try NAME: the module with the mutants of DIR; a guest that tries those it is told (by tests/mutants/run.py kernel).
part() {
	local out=$root/out/kernel-$release-mutants
	case ${1:-} in
	build)
		make -s -C "$root/kernel" tree OUT="$out" || return
		(cat "$root/kernel/Kbuild" && echo 'obj-m += mutant.o') >"$2/kernel/Kbuild"
		cp -p --remove-destination "$2"/kernel/* "$out/kernel/" || return # in place of links; what is as it was keeps its time
		make -k -s -C "$KDIR" M="$out/kernel" CONFIG_DEBUG_INFO_BTF_MODULES= modules 2>&1 || return
		# The rest of them for this kernel.
		make -s -C "$KDIR" M="$out/kernel" $(cd "$2/kernel" && ls ./*.c | grep -v mutant | sed 's|./\(.*\)c|\1i|') 2>&1 || return
		echo "preprocessed: $out/kernel"
		;;
	try)
		append=slab_nomerge pmem_map='24M!4G,40M!4352M' cpus=1 # half the emulation, and a mutant is seldom in a race
		input=/proc/$$/fd/0
		start_guest "$out_vm/$2.console" "$here/guest-mutants.sh"
		wait_guest 36000 "$out_vm/$2.console"
		;;
	*)
		say "run by tests/mutants/run.py kernel"
		return 2
		;;
	esac
}
