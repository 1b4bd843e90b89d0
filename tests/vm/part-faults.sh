# SPDX-License-Identifier: MIT OR Apache-2.0
# [target|native]: a failing, flaky and slow origin, a full cache with writers waiting, a flipped bit on the media.
part() {
	local kind rc=0
	for kind in ${1:-target native}; do
		pmem_mb=48 guest faults-"$kind" 1200 guest-faults.sh "$kind" || rc=1
	done
	return $rc
}
