# SPDX-License-Identifier: MIT OR Apache-2.0
# Writes past the cache: large ones, and all when the pool is full; verified through it and on the origin alone.
part() {
	pmem_mb=16 guest bypass 900 guest-bypass.sh
}
