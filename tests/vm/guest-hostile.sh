# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Mutated pools into the module: see hostile.h.  Arguments: the tool, how many,
# the first seed, and what is planted, if anything.
. "$(dirname "$0")/guest-lib.sh"
command=$root/out/vm/forebay
[ -x "$command" ] || command=$root/target/release/forebay
tool=$1 pools=$2 seed=$3 planted=${4:-}

if [ -n "$planted" ]; then
	step "load a forebay.ko with a mistake" /run/busybox insmod "$root/out/kernel-$release-$planted/kernel/forebay.ko"
	dmesg -n 1
else
	load_module
fi
# A pool's attach and detach would wait for ten grace periods, most of its time.
echo 1 >/sys/kernel/rcu_expedited
"$tool" /dev/pmem0 /dev/pmem1 /dev/ram0 "$command" "$pools" "$seed" || exit 1
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "hostile: $passed passed"
