# SPDX-License-Identifier: MIT OR Apache-2.0
#
# lab.sh - sourced by the scripts here: the guest's kernel, its initial RAM
# disk, and how to boot it.  What is downloaded or made from that is kept
# outside the repository, in ${XDG_CACHE_HOME:-~/.cache}/forebay/vm.
#
# The guest is a Debian kernel under software emulation.  Its root is an overlay of the host's, over
# 9p.  So every program of the host runs there, and nothing that the guest writes reaches the host.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/forebay/vm
built=${FOREBAY_BUILT:-$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")/release}
series=${FOREBAY_VM_KERNEL:-6.12} # or 6.1, where apt does not know this one
module_env=() # the command that runs the module's build, or nothing

# Modules that the guest loads at boot, with those that they depend on.
modules=(virtio_pci virtio_blk 9p 9pnet_virtio overlay nd_e820 nd_btt nd_pmem dm-mod dm-delay dm-flakey
	dm-log-writes dm-writecache nvme brd null_blk loop fuse ext4 quota_v2 xfs crc32c_generic libcrc32c)

say() { echo "vm: $*" >&2; }

# Whether Debian 12 has no packages of the series.
is_newer() { [[ $series == [7-9].* || $series == 6.1[3-9] ]]; }

# Finds the newest Debian kernel of the series with headers.  Sets $release.
find_release() {
	local pattern
	case $series in
	6.1) pattern='linux-headers-6\.1\.[0-9-]+-amd64' ;;
	*) pattern="linux-headers-${series//./\\.}\.[0-9]+\+deb12-amd64" ;;
	esac
	release=$(ls -d "$cache"/*/boot/vmlinuz-"$series".* 2>/dev/null | sort -V | tail -n 1)
	if [ -n "$release" ]; then
		release=${release##*/vmlinuz-}
		return
	fi
	release=$(apt-cache search --names-only "^$pattern\$" 2>/dev/null | cut -d' ' -f1 | sort -V | tail -n 1)
	release=${release#linux-headers-}
	if [ -z "$release" ] && [ -z "${FOREBAY_VM_KERNEL:-}" ] && [ "$series" = 6.12 ]; then
		series=6.1
		find_release
		return
	fi
	if [ -z "$release" ]; then
		say "apt knows no kernel $series for Debian 12: add bookworm-security to its sources and run apt-get update"
		return 1
	fi
}

# Downloads packages and unpacks them into $1, without installing.
unpack() {
	local into=$1 deb
	shift
	mkdir -p "$into/.deb"
	(cd "$into/.deb" && apt-get -qq -o APT::Sandbox::User=root download "$@") || return 1
	for deb in "$into"/.deb/*.deb; do
		dpkg -x "$deb" "$into" || return 1
	done
	rm -rf "$into/.deb"
}

# Gets kernel, headers and tools.  Sets $release, $kernel (a directory) and $KDIR.
# FOREBAY_VM_KERNEL may also name a kernel that tests/vm/kernel-NAME.sh knows.  Its
# get_kernel_NAME sets the same three, with $kernel/boot/vmlinuz-$release,
# $kernel/bin/busybox and kmod, and $kernel/lib/modules/$release.
get_kernel() {
	local common kbuild
	if is_newer; then
		. "$root/tests/vm/kernel-newer.sh"
		get_kernel_newer
		return
	fi
	if [ -e "$root/tests/vm/kernel-$series.sh" ]; then
		# shellcheck source=/dev/null
		. "$root/tests/vm/kernel-$series.sh"
		"get_kernel_$series"
		return
	fi
	find_release || return 1
	kernel=$cache/$release
	KDIR=$kernel/usr/src/linux-headers-$release
	[ -e "$kernel/.complete" ] && return
	say "downloading Debian's kernel $release, once"
	common=${release%-amd64}-common
	case $release in
	6.1.*) kbuild=linux-kbuild-6.1 ;;
	*) kbuild=linux-kbuild-${release%-amd64} ;;
	esac
	rm -rf "$kernel"
	unpack "$kernel" "linux-image-$release-unsigned" "linux-headers-$release" "linux-headers-$common" \
		"$kbuild" busybox-static cpio kmod libkmod2 xfsprogs libinih1 liburcu8 || return 1
	# The headers' Makefile names where the package would have been installed.
	sed -i "s#^include .*#include $kernel/usr/src/linux-headers-$common/Makefile#" "$KDIR/Makefile"
	touch "$kernel/.complete"
}

build_module() {
	out=$root/out/kernel-$release
	"${module_env[@]}" make -s -C "$root/kernel" module KDIR="$KDIR" OUT="$out" >"$root/out/kernel-$release.log" 2>&1 || {
		tail -n 30 "$root/out/kernel-$release.log" >&2
		say "the module does not build; log: out/kernel-$release.log"
		return 1
	}
	if grep -i 'warning:' "$root/out/kernel-$release.log" | grep -vE 'compiler differs|pahole version' >&2; then
		say "the module builds with warnings; log: out/kernel-$release.log"
		return 1
	fi
}

# build_planted NAME [FILE SED]...: builds a module with a mistake, by sed on a copy of the
# sources.  The guest loads it by load_module NAME.
build_planted() {
	local out=$root/out/kernel-$release-$1 file
	make -s -C "$root/kernel" tree OUT="$out" || return 1
	for (( ; $# > 1; )); do
		file=$2
		rm -f "$out/$file" && sed -E "$3" "$root/$file" >"$out/$file" || return 1
		if cmp -s "$root/$file" "$out/$file"; then
			say "the mistake ${out##*-} no longer fits $file"
			return 1
		fi
		shift 2
	done
	"${module_env[@]}" make -s -C "$KDIR" M="$out/kernel" CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$out.log" 2>&1 || {
		tail -n 20 "$out.log" >&2
		return 1
	}
}

run_kmod() { # NAME ARGS: the package's kmod under one of its names
	LD_LIBRARY_PATH=$kernel/lib/x86_64-linux-gnu:$kernel/usr/lib/x86_64-linux-gnu \
		bash -c 'exec -a "$0" "$1" "${@:2}"' "$1" "$kernel/bin/kmod" "${@:2}"
}

# Builds the initial RAM disk: busybox, the modules in their order, init.
build_initrd() {
	local dir list name file
	initrd=$root/out/vm/initrd-$release.gz
	[ "$initrd" -nt "$root/tests/vm/lab.sh" ] && [ "$initrd" -nt "$root/tests/vm/init" ] && return
	dir=$(mktemp -d)
	mkdir -p "$dir"/{bin,mods,proc,sys,dev,host,rw,new}
	cp "$kernel/bin/busybox" "$dir/bin/busybox"
	cp "$root/tests/vm/init" "$dir/init"
	chmod 755 "$dir/init"
	[ -e "$kernel/lib/modules/$release/modules.dep.bin" ] || run_kmod depmod -b "$kernel" "$release" || return 1
	for name in "${modules[@]}"; do
		run_kmod modprobe -d "$kernel" -S "$release" --show-depends "$name" 2>/dev/null
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$dir/list"
	while read -r file; do
		name=$(basename "${file%.xz}")
		case $file in
		*.xz) xz -dc "$file" >"$dir/mods/$name" ;;
		*) cp "$file" "$dir/mods/$name" ;;
		esac
		echo "$name" >>"$dir/order"
	done <"$dir/list"
	rm "$dir/list"
	(cd "$dir" && find . | "$kernel/bin/cpio" -o -H newc --quiet | gzip -1) >"$initrd.new" || return 1
	mv "$initrd.new" "$initrd"
	rm -rf "$dir"
}

# Guest memory: RAM of which the range [4 GiB, +$pmem_mb) is persistent memory;
# or pmem_map, for several devices, with gaps, or the kernel joins them.
: "${pmem_mb:=128}" "${guest_mb:=4096}"
memory=
disks=() nvmes=()
# The CPUs of the guest are emulated on threads of their own, by the host's clock.
accel=(-accel "tcg,thread=multi")
guest_pid=

# Sets the rate of the counter that the guest's clock uses.  On a busy machine the guest's
# kernel finds a wrong rate, and all its time limits are wrong then.  A guest that counts
# instructions does not need this.
clock_rate() {
	[[ ${accel[*]} == *icount* ]] && return
	build_program ticks && echo "tsc_early_khz=$("$root/out/vm/ticks")"
}

# start_guest CONSOLE SCRIPT [ARGS]: boots in the background; sets $guest_pid.
#	memory=FILE	of $pmem_mb MiB: is the persistent memory, whatever becomes of the guest
#	disks=(FILE...)	of /dev/vda, ...
#	nvmes=(FILE...)	of /dev/nvme0n1, ...: with a volatile write cache and FUA
#	poll=1		idle CPUs spin, as a benchmark wants it; else they leave the host alone
#	append=WORDS	for the kernel's command line
# The guest ends with this shell, however that ends.  Its watchdogs are slow:
# an emulated CPU of a loaded machine may stand still for a while.
start_guest() {
	local console=$1 script=$2
	shift 2
	[ "$console" = /dev/stdout ] || : >"$console"
	local ram=(-m "$guest_mb") disk_args=() disk args n=0
	args="console=ttyS0 panic=1 quiet memmap=${pmem_map:-${pmem_mb}M!4G} ${poll:+idle=poll} mitigations=off log_buf_len=4M"
	# A busy machine's guest may fail the timer check at boot.  Where its TSC is found
	# unstable, patching the kernel's code for that was seen to trap on the other CPU.
	args+=" no_timer_check tsc=reliable watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120"
	args+=" sysctl.kernel.hung_task_timeout_secs=600 $(clock_rate) ${append:-}"
	[ -n "$memory" ] && ram=(-m "$((3072 + pmem_mb))" -machine max-ram-below-4g=3G
		-object "memory-backend-ram,id=low,size=3G" -numa "node,memdev=low"
		-object "memory-backend-file,id=high,share=on,mem-path=$memory,size=${pmem_mb}M" -numa "node,memdev=high")
	for disk in "${disks[@]}"; do
		disk_args+=(-drive "file=$disk,if=virtio,format=raw,cache=writeback")
	done
	for disk in "${nvmes[@]}"; do
		disk_args+=(-drive "file=$disk,if=none,id=nvme$n,format=raw,cache=writeback" -device "nvme,drive=nvme$n,serial=forebay$n")
		n=$((n + 1))
	done
	qemu=(setpriv --pdeathsig KILL qemu-system-x86_64 "${accel[@]}" -cpu max -smp "${cpus:-2}" "${ram[@]}" -nographic -no-reboot \
		-nic none -kernel "$kernel/boot/vmlinuz-$release" -initrd "$initrd" "${disk_args[@]}" \
		-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
		-append "$args fby.kernel=$kernel fby.root=$root fby.run=$script fby.args=$(printf '%s,' "$@")")
	boots_left=5
	boot_guest "$console"
}

boot_guest() {
	"${qemu[@]}" <"${input:-/dev/null}" >>"$1" 2>&1 &
	guest_pid=$!
}

# guest_runs CONSOLE: whether it has not ended yet.  On a busy machine a kernel may trap in
# code that it patches while the emulator runs it on the other CPU, before there is an
# init.  That says nothing about the tests.  Such a guest is booted again, which is counted.
guest_runs() {
	kill -0 "$guest_pid" 2>/dev/null && return
	! grep -aq FOREBAY-INIT "$1" && [ $boots_left -gt 0 ] || return 1
	boots_left=$((boots_left - 1))
	wait "$guest_pid" 2>/dev/null
	say "the guest of $1 died before its init; booting it again"
	echo "$1: $(tr -d '\r' <"$1" | grep -aE 'Oops|panic|qemu' | head -n 1)" >>"$root/out/vm/booted-again"
	boot_guest "$1"
}

# A guest that prints nothing for a long time hangs.  A limit for the whole run would be one
# for the machine, which may be slow and have other work.
listen() { heard_at=$SECONDS heard=0; }
silent() { # CONSOLE SECONDS: has it printed nothing for so long?  after listen
	local bytes
	bytes=$(stat -c %s "$1")
	[ "$bytes" = "$heard" ] || heard=$bytes heard_at=$SECONDS
	[ $((SECONDS - heard_at)) -ge "$2" ]
}

# until_said CONSOLE WORDS: waits until the guest has said so, or has been silent for a
# quarter of an hour.
until_said() {
	local heard_at heard
	listen
	until grep -aq "$2" "$1"; do
		guest_runs "$1" || return 1
		! silent "$1" 900 || return 1
		sleep 0.1
	done
}

# wait_guest SECONDS CONSOLE: returns 0 when the script in the guest ended with 0.  A guest
# that is silent for so long is ended, and so is one that runs for ten times as long.
wait_guest() {
	local began=$SECONDS heard_at heard why=
	listen
	while guest_runs "$2"; do
		! silent "$2" "$1" || why="has printed nothing for $1 s"
		[ $((SECONDS - began)) -lt $((10 * $1)) ] || why="did not end within $((10 * $1)) s"
		if [ -n "$why" ]; then
			kill -9 "$guest_pid"
			wait "$guest_pid" 2>/dev/null
			say "the guest $why; its console is in $2"
			return 124
		fi
		sleep 0.2
	done
	wait "$guest_pid" 2>/dev/null
	grep -aq '^FOREBAY-RESULT 0' "$2"
}

# Prints what is missing here to run a guest, one line each; 1 if anything is missing.
missing() {
	local command found=0
	for command in qemu-system-x86_64:qemu-system-x86 fio:fio dmsetup:dmsetup mkfs.ext4:e2fsprogs nbdcopy:libnbd-bin apt-get:apt \
		dpkg:dpkg gcc:gcc make:make xz:xz-utils strip:binutils setpriv:util-linux flock:util-linux; do
		command -v "${command%:*}" >/dev/null && continue
		echo "${command%:*} (package ${command#*:})"
		found=1
	done
	[ "$(uname -m)" = x86_64 ] || {
		echo "an x86-64 machine: this is $(uname -m)"
		found=1
	}
	[ $found = 0 ] || return 1
	[ -e "$root/tests/vm/kernel-$series.sh" ] || is_newer || find_release 2>/dev/null || {
		echo "a kernel of Debian 12, ${FOREBAY_VM_KERNEL:-6.12 or 6.1}: not in $cache, and apt does not know its packages"
		return 1
	}
}

# Copies the module to where the guest finds it, as is the command.
prepare() {
	missing >&2 || {
		say "these are missing"
		return 77
	}
	mkdir -p "$root/out/vm" "$cache"
	exec 8>"$cache/lock" && flock 8
	get_kernel || {
		say "the kernel's packages cannot be had"
		return 77
	}
	build_module && build_initrd && build_tools
	local rc=$?
	exec 8>&-
	return $rc
}

# Copies what the guest runs: the command, without the symbols that are most of its size,
# and the programs that load and check.
build_tools() {
	local command=$built/forebay name
	[ -x "$command" ] || {
		say "$command: not built; run: cargo build --release -p forebay-cli"
		return 1
	}
	# The command may be of a release build, or of a build for tests.
	if [ "$command" -nt "$root/out/vm/forebay" ] || [ "$(cat "$root/out/vm/forebay.from" 2>/dev/null)" != "$command" ]; then
		strip -o "$root/out/vm/forebay.new" "$command" && mv "$root/out/vm/forebay.new" "$root/out/vm/forebay" || return 1
		echo "$command" >"$root/out/vm/forebay.from"
	fi
	for name in ackload device_asked fsx replay requests; do
		build_program $name || return 1
	done
}
build_program() { # NAME: out/vm/NAME
	[ "$root/out/vm/$1" -nt "$root/tests/vm/$1.c" ] && return
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$root/out/vm/$1.$BASHPID" "$root/tests/vm/$1.c" &&
		mv "$root/out/vm/$1.$BASHPID" "$root/out/vm/$1"
}
