# SPDX-License-Identifier: MIT OR Apache-2.0
# FOREBAY_VM_KERNEL=kcsan: see kernel-debug.
. "$root/tests/vm/kernel-debug.sh"
get_kernel_kcsan() { use_debug_kernel kcsan; }
