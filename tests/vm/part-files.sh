# SPDX-License-Identifier: MIT OR Apache-2.0
# [target|native [OPS [SEED]]]: ext4 and xfs of existing disks attached in place, fio, fsx, the disks alone again.
part() {
	local kind rc=0
	for kind in ${1:-target native}; do
		guest files-"$kind" $((1200 + ${2:-34000} / 10)) guest-files.sh "$kind" "${2:-34000}" "${3:-1}" || rc=1
	done
	return $rc
}
