# SPDX-License-Identifier: MIT OR Apache-2.0
# A failing and a slow origin, a full cache with writers waiting, a flipped bit on the media.
part() {
	pmem_mb=96 guest faults 400 guest-faults.sh
}
