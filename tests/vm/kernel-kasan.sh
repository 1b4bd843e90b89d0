# SPDX-License-Identifier: MIT OR Apache-2.0
# FOREBAY_VM_KERNEL=kasan: see kernel-debug.
. "$root/tests/vm/kernel-debug.sh"
get_kernel_kasan() { use_debug_kernel kasan; }
