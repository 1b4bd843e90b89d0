# SPDX-License-Identifier: MIT OR Apache-2.0
# [MODULE|- [ITEM...]]: what lies below pools and volumes: pmem unbound below a mapped device, zones, limits, more devices than a page lists.
part() {
	pmem_map='64M!4G,64M!4224M' # with a gap, or the kernel joins them
	guest devices 900 guest-devices.sh "$@"
}
