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
	local disk s between=
	printf '{'
	for disk; do
		read -r -a s <<<"$(disk_speed "$disk")"
		printf '%s"%s": {"requests_per_s": %d, "megabytes_per_s": %d, "latency_us": %d, "flush_us": %d}' \
			"$between" "$disk" "${s[@]}"
		between=', '
	done
	printf '}'
}
