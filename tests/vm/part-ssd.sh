# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND]: a pool on a disk, written in groups: file systems and fio while it destages, the origin alone.
part() {
	local kind
	for kind in ${1:-target native}; do
		disks=("$out_vm/ssd-$kind.pool" "$out_vm/ssd-$kind.origin")
		rm -f "${disks[@]}"
		truncate -s 64M "${disks[0]}"
		truncate -s 320M "${disks[1]}"
		guest "ssd-$kind" 900 guest-ssd.sh "$kind" || return
		rm -f "${disks[@]}"
	done
}
