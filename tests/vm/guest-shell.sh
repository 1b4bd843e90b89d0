# SPDX-License-Identifier: MIT OR Apache-2.0
# For a person: the module loaded, a pool and a device made, a shell.
. "$(dirname "$0")/guest-lib.sh"
load_module
step "make the pool" forebay create $pool
step "attach" attach fast /dev/ram0 disk create
echo "/dev/mapper/fast: pool $pool before /dev/ram0; what you write here is gone afterwards; exit ends the guest"
cd "$root" && exec setsid -c bash -i
