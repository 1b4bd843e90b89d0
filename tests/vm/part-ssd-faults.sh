# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND]: the disk of a pool fails; what was acknowledged goes to the origin from memory.
part() {
	local kind
	for kind in ${1:-target native}; do
		guest "ssd-faults-$kind" 900 guest-ssd-faults.sh "$kind" || return
	done
}
