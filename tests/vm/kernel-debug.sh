# SPDX-License-Identifier: MIT OR Apache-2.0
#
# kernel-debug.sh - sourced after lab.sh: a kernel of our own with the sanitizers,
# instead of Debian's, for the functions there.

debug_source=$cache/debug-source

# KASAN and lockdep spend their time in walks up the stack and in lockdep's graph.  These
# are not checked for memory errors, which halves the guest's time.
unwatched=(KASAN_SANITIZE_unwind_orc.o=n KASAN_SANITIZE_stacktrace.o=n KASAN_SANITIZE_extable.o=n KASAN_SANITIZE_lockdep.o=n)

# Unpacks Debian's source of the kernel, once.  It is not an upstream tree, so that this
# kernel differs from the stock kernel of the other tests only in its configuration.
get_debug_source() {
	local deb
	[ -e "$debug_source/.complete" ] && return
	say "unpacking linux-source-6.12, once"
	rm -rf "$debug_source"
	mkdir -p "$debug_source/.deb"
	deb=$(ls "$cache"/../src/linux-source-6.12_*.deb 2>/dev/null | sort -V | tail -n 1)
	if [ -n "$deb" ]; then
		dpkg -x "$deb" "$debug_source/.deb" || return 1
	else
		unpack "$debug_source/.deb" linux-source-6.12 || return 1
	fi
	tar -C "$debug_source" --strip-components=1 -xJf "$debug_source"/.deb/usr/src/linux-source-6.12.tar.xz || return 1
	rm -rf "$debug_source/.deb"
	touch "$debug_source/.complete"
}

# want_for_kernel: names the missing tools for building a kernel.
want_for_kernel() {
	local missing=() tool
	for tool in gcc make flex bison bc; do
		command -v $tool >/dev/null || missing+=("$tool")
	done
	echo '#include <libelf.h>' | gcc -E - >/dev/null 2>&1 || missing+=(libelf-dev)
	[ ${#missing[@]} = 0 ] && return
	say "building a kernel takes: apt install ${missing[*]}"
	return 1
}

# Every requested setting must have been taken: a missing dependency turns a setting off
# silently.
config_as_asked() { # CONFIG FRAGMENT...
	local config=$1 line lost=0
	shift
	while read -r line; do
		case $line in
		CONFIG_*=n) line="# ${line%=n} is not set" ;;
		CONFIG_*) ;;
		*) continue ;;
		esac
		grep -qxF "$line" "$config" && continue
		[ "${line%is not set}" != "$line" ] && ! grep -q "^$(cut -d' ' -f2 <<<"$line")=" "$config" && continue
		say "the kernel's configuration did not take: $line"
		lost=1
	done < <(cat "$@")
	return $lost
}

# make_debug_kernel kasan|kcsan: makes the kernel, unless it exists or another process makes
# it.
make_debug_kernel() {
	mkdir -p "$cache/debug-$1" && (
		flock 7 && build_debug_kernel "$1" 7>&-
	) 7>"$cache/debug-$1/lock"
}

# Prints the inputs of a kernel, to tell whether it must be built again.
debug_kernel_is() { # FRAGMENT...
	cat "$@"
	[ ${#unwatched[@]} = 0 ] || echo "${unwatched[@]}"
}

build_debug_kernel() {
	local build=$cache/debug-$1 here=$root/tests/vm log
	local fragments=("$here/kernel-debug.config" "$here/kernel-debug-$1.config") make
	[ "$1" = kasan ] || unwatched=()
	[ -e "$build/.complete" ] && cmp -s <(debug_kernel_is "${fragments[@]}") "$build/.complete" && return
	want_for_kernel && get_debug_source || return 1
	mkdir -p "$build/build"
	log=$build/build.log
	make=(nice -n 10 make -s -C "$debug_source" "O=$build/build" "-j${JOBS:-2}" KBUILD_BUILD_HOST=guest KBUILD_BUILD_USER=guest)
	make+=("${unwatched[@]}")
	say "building the kernel debug-$1, once; log: $log"
	"${make[@]}" tinyconfig >"$log" 2>&1 || return 1
	cat "${fragments[@]}" >>"$build/build/.config"
	"${make[@]}" olddefconfig >>"$log" 2>&1 || return 1
	config_as_asked "$build/build/.config" "${fragments[@]}" || return 1
	if ! "${make[@]}" bzImage modules_prepare >>"$log" 2>&1; then
		tail -n 20 "$log" >&2
		say "the kernel does not build; log: $log"
		return 1
	fi
	# modpost wants the exports of modules too, and there are none.
	cp "$build/build/vmlinux.symvers" "$build/build/Module.symvers" || return 1
	debug_kernel_is "${fragments[@]}" >"$build/.complete"
}

# use_debug_kernel kasan|kcsan: does the job of get_kernel for such a kernel.  The tools are
# those of Debian's kernel, and there are no modules to load.
use_debug_kernel() {
	local tools made=$cache/debug-$1 name
	series=6.12 get_kernel && make_debug_kernel "$1" || return 1
	tools=$kernel
	kernel=$made/guest
	KDIR=$made/build
	release=$(cat "$made/build/include/config/kernel.release") || return 1
	modules=()
	append="brd.rd_nr=1 brd.rd_size=1048576 null_blk.nr_devices=0 kasan_multi_shot ${append:-}"
	# ACPI's routing of interrupts runs into the interpreter's timeout here.
	append+=" pci=noacpi"
	mkdir -p "$kernel/boot" "$kernel/lib/modules/$release" || return 1
	ln -sfn "$made/build/arch/x86/boot/bzImage" "$kernel/boot/vmlinuz-$release"
	for name in bin sbin usr etc; do
		ln -sfn "$tools/$name" "$kernel/$name"
	done
	ln -sfn "$tools/lib/x86_64-linux-gnu" "$kernel/lib/x86_64-linux-gnu"
	for name in order builtin builtin.modinfo; do
		: >"$kernel/lib/modules/$release/modules.$name"
	done
	# The guest's time is what it has executed.  Otherwise a kernel this slow meets its
	# own timeouts, on a machine with other work.
	[ "$1" = kcsan ] || accel=(-accel "tcg,thread=single" -icount shift=1)
	be_patient 5
}

# be_patient N: gives guests N times the time, because the checkers are slow.
be_patient() {
	patience=$1
	declare -F wait_guest_hasty >/dev/null && return
	eval "$(declare -f wait_guest | sed '1s/wait_guest/wait_guest_hasty/')"
	wait_guest() { wait_guest_hasty $(($1 * patience)) "$2"; }
}
