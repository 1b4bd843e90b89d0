# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: ratios between caches on an SSD, and what each asks of it for a durable write.
# Method: each cache has an NVMe drive of its own, with a volatile write cache, in front of a disk of
# its own that takes 5 ms.  4 KiB at random, each followed by a flush, by 1, 4 and 16 jobs.  All have
# their turn in each round.  The drive counts its requests.  The guest is emulated: times mean nothing,
# ratios a little, and only on an idle machine; counts are exact.
#	$1 rounds   $2 seconds for each figure
# Prints lines "ssd-bench ROUND JOBS DEVICE IOPS WRITES KIB FLUSHES": the drive's, for each write.
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
rounds=$1
seconds=$2
kinds=(bare writecache-s bcache target native)
[ -x "$root/out/vm/make-bcache" ] || kinds=(bare writecache-s target native)
size=64 # MiB: nothing is ever full
declare -A devices drives

load_module
n=0
for kind in "${kinds[@]}"; do
	drive=/dev/nvme${n}n1
	test -b $drive || fail "no $drive"
	drives[$kind]=${drive##*/}
	sectors=$((size * 2048))
	if [ "$kind" != bare ]; then
		dmsetup create --noudevsync --noudevrules o$n --table "0 $sectors delay /dev/ram$(((n - 1) % 4)) 0 5" || fail "dm-delay"
		dmsetup mknodes o$n
	fi
	case $kind in
	bare) device=$drive ;;
	writecache-s)
		dmsetup create --noudevsync --noudevrules wcs --table "0 $sectors writecache s /dev/mapper/o$n $drive 4096 0" || fail "dm-writecache"
		dmsetup mknodes wcs
		device=/dev/mapper/wcs
		;;
	bcache) bcache_up /dev/mapper/o$n $drive ;;
	*)
		forebay create $drive --medium ssd >/tmp/step.log 2>&1 &&
			forebay volume add $drive v /dev/mapper/o$n --origin-by-name >>/tmp/step.log 2>&1 || fail "$(cat /tmp/step.log)"
		pool=$drive
		dev_attach "$kind" /dev/mapper/o$n v durable flush || fail "$kind"
		;;
	esac
	devices[$kind]=$device
	n=$((n + 1))
done

# Writes, sectors written, and flushes that the drive has ended.
counts() { awk '{ print $5, $7, $16 }' "/sys/block/$1/stat"; }

figure() { # JOBS KIND
	local out before after
	before=$(counts "${drives[$2]}")
	out=$(fio --name=b --ioengine=psync --group_reporting --minimal --norandommap --randrepeat=0 --filename="${devices[$2]}" \
		--size=${size}m --direct=1 --rw=randwrite --bs=4k --fdatasync=1 --numjobs="$1" --time_based --runtime="$seconds" 2>&1) || fail "$2: $out"
	after=$(counts "${drives[$2]}")
	echo "$out" | tail -n 1 | awk -F';' -v counts="$before $after" -v seconds="$seconds" -v head="ssd-bench $round $1 $2" '{
		split(counts, c, " ")
		n = $47 / 4 + 0.000001 # KiB written
		print head, int(n / seconds), (c[4] - c[1]) / n, (c[5] - c[2]) / 2 / n, (c[6] - c[3]) / n
	}'
}

for ((round = 1; round <= rounds; round++)); do
	for jobs in 1 4 16; do
		for kind in "${kinds[@]}"; do figure $jobs "$kind"; done
	done
done
clean_dmesg
