# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND]: a pool on a disk, written in groups: file systems and fio while it destages, the origin alone.
# The target's pool is on an NVMe drive with FUA, the native device's on one without.
part() {
	local kind own
	for kind in ${1:-target native}; do
		own=("$out_vm/ssd-$kind.pool" "$out_vm/ssd-$kind.origin")
		rm -f "${own[@]}"
		truncate -s 64M "${own[0]}"
		truncate -s 320M "${own[1]}"
		case $kind in
		target) nvmes=("${own[0]}") disks=("${own[1]}") ;;
		native) nvmes=() disks=("${own[1]}" "${own[0]}") ;;
		esac
		guest "ssd-$kind" 900 guest-ssd.sh "$kind" || return
		rm -f "${own[@]}"
	done
}
