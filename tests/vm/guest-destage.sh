# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: measure how many writes a disk's request carries, compared with the other caches.  More is
# written than the disk takes, with a full cache in front of it.
# Method: one cache after the other on the same persistent memory in front of the same disk.  Random
# writes go over some times as much data as the cache holds.
#	$1 seconds of each load   $2 MiB of the cache
#	$3 how many times as much data, as 2:3:6   $4 the disks' requests/s, as 400:2000
#	$5 which caches, as native:writecache
# Without checksums, which the others do not have and which the guest emulates: there
# they take longer than a fast disk's request.  `native+crc` has them.
# Prints lines of guest-sustained.sh, where NAME is KIND@RATE@TIMES, or disk@RATE
# without a cache, and "load asked NAME REQUESTS SECTORS": of the disk, to write.
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
. "$(dirname "$0")/guest-sustained.sh"
seconds=$1 cache=$2 times=${3//:/ } rates=${4//:/ }
kinds=${5//:/ }
[ -x "$root/out/vm/make-bcache" ] || kinds=${kinds/bcache /}
[ -e "$root/out/vm/dm-pcache-$release.ko" ] || kinds=${kinds/pcache /}
disks=(/dev/vd{a..z})
load_threads=8
chunk_size=2M

asked() { awk '{ print $5, $7 }' "/sys/block/$(basename "$disk")/stat"; }

load_module
for rate in $rates; do
	disk=${disks[0]} disks=("${disks[@]:1}")
	cache_up origin "$disk" ''
	mib=$((cache * 2))
	sustained "disk@$rate" 10
	for n in $times; do
		mib=$((cache * n))
		for kind in $kinds; do
			name=$kind@$rate@$n
			# This removes bcache's superblock.
			dd if=/dev/zero of="$disk" bs=1M count=1 oflag=direct status=none || fail "$disk cannot be written"
			cache_up "${kind%+crc}" "$disk" "$pool"
			[ "$kind" != native ] || control command "$(basename "$device")" set checksums off >/dev/null ||
				fail "$(cat /tmp/answer)"
			read -r -a before <<<"$(asked)"
			sustained "$name" "$seconds"
			read -r -a after <<<"$(asked)"
			echo "load asked $name $((after[0] - before[0])) $((after[1] - before[1]))"
			echo "status of $name: $(cache_status "${kind%+crc}")"
			cache_down "${kind%+crc}"
		done
	done
done
clean_dmesg
