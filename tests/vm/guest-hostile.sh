# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Mutated pools into the module: see hostile.h.  Arguments: the tool, how many,
# the first seed, and what is planted, if anything.
. "$(dirname "$0")/guest-lib.sh"
command=$root/out/vm/forebay
[ -x "$command" ] || command=${FOREBAY_BUILT:-$root/target/release}/forebay
tool=$1 pools=$2 seed=$3 planted=${4:-}

load_module $planted
# The tool's programs are in a root of their own, in memory.  Programs of the host come over
# 9p.  The guest would be idle until the host has answered.  Its clock then goes from timer
# to timer at once, and would be minutes ahead, which looks like a hang.
own_root() {
	local file name
	mkdir -p "$1"/{bin,dev,proc,sys,tmp}
	for file in "$tool" "$command" "$(command -v dmsetup)"; do
		ldd "$file" | grep -o '/[^ ]*' | xargs cp -L --parents -t "$1" && cp "$file" "$1/bin/" || return 1
	done
	for name in sh dmesg tail; do
		cp /run/busybox "$1/bin/$name" || return 1
	done
	for name in dev proc sys; do
		mount --bind "/$name" "$1/$name" || return 1
	done
}
step "programs in memory" own_root /tmp/root
# Otherwise the attach and the detach of a pool would wait for ten grace periods, most of
# its time.
echo 1 >/sys/kernel/rcu_expedited
chroot /tmp/root "${tool##*/}" /dev/pmem0 /dev/pmem1 /dev/ram0 "${command##*/}" "$pools" "$seed" || exit 1
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "hostile: $passed passed"
