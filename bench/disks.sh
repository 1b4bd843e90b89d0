# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
#
# disks.sh - sourced by lib.sh and tests/vm/part-apps.sh: the disks that are known by
# name.  The caller has `fail TEXT`, which does not return.

# A disk by name: requests and megabytes a second, microseconds of a request and
# of a flush.  sata and disk are those of `forebay-load --disk`.
disk_speed() {
	case $1 in
	sata) echo 20000 400 80 500 ;;
	disk) echo 400 150 2000 8000 ;;
	*,*,*,*) tr ',' ' ' <<<"$1" ;;
	*) fail "--disk $1 is not known; use sata, disk, or REQUESTS/S,MB/S,REQUEST_US,FLUSH_US" ;;
	esac
}

# disks_json NAME...: them, as the results have them.
disks_json() {
	local disk s pairs=()
	for disk; do
		[ "$disk" != own ] || continue # measured by nobody
		read -r -a s <<<"$(disk_speed "$disk")"
		pairs+=("\"$disk\": {\"requests_per_s\": ${s[0]}, \"megabytes_per_s\": ${s[1]}, \"latency_us\": ${s[2]}, \"flush_us\": ${s[3]}}")
	done
	(IFS=, && echo "{${pairs[*]}}")
}
