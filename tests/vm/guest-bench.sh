# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: ratios between devices of one boot.  Method: each row is measured on
# each device in turn, and that three times; the median counts.  The guest is
# emulated: times mean nothing, ratios a little, and only on an idle machine.
#	$1 rounds   $2 seconds for each figure   $3 short: only 4 KiB writes
# Prints lines "bench ROUND ROW DEVICE KIOPS CPU", CPU in microseconds a request.
. "$(dirname "$0")/guest-lib.sh"
rounds=$1
seconds=$2
short=${3:-}
size=24m # of 160 MiB: nothing is ever full, but the pool is past its high watermark at times

control() {
	exec 3<>/dev/forebay-control
	echo "$*" >&3
	cat <&3 >/tmp/answer
	exec 3>&-
	grep -q '^ok' /tmp/answer || fail "$(cat /tmp/answer)"
}

origin_sectors=$((96 * 2048))
linear() { # NAME DEVICE FIRST COUNT
	dmsetup create --noudevsync --noudevrules "$1" --table "0 $4 linear $2 $3" && dmsetup mknodes "$1"
}
load_module
for i in 0 1 2; do test -b /dev/pmem$i || fail "no /dev/pmem$i"; done
linear o1 /dev/ram0 0 $origin_sectors
linear o2 /dev/ram0 $((1 << 18)) $origin_sectors
linear o3 /dev/ram0 $((1 << 19)) $origin_sectors
dmsetup create --noudevsync --noudevrules wc --table "0 $origin_sectors writecache p /dev/mapper/o1 /dev/pmem1 4096 0" ||
	fail "dm-writecache"
dmsetup mknodes wc
forebay create /dev/pmem2 >/tmp/step.log 2>&1 || fail "$(cat /tmp/step.log)"
dmsetup create --noudevsync --noudevrules target \
	--table "0 $origin_sectors forebay /dev/mapper/o2 /dev/pmem2 t 3 create checksums ${checksums:=on}" || fail "target"
dmsetup mknodes target
control attach /dev/pmem2 /dev/mapper/o3 n create

device() {
	case $1 in
	pmem) echo /dev/pmem0 ;;
	writecache) echo /dev/mapper/wc ;;
	target) echo /dev/mapper/target ;;
	native) echo /dev/forebay0 ;;
	esac
}
busy_us() { awk '$1 == "cpu" { print ($2 + $3 + $4 + $7 + $8) * 10000 }' /proc/stat; }

# row NAME FIO-ARGUMENTS
row() {
	local name=$1 dev before after out ios
	shift
	for d in pmem writecache target native; do
		dev=$(device $d)
		test -b "$dev" || fail "$dev is no block device"
		before=$(busy_us)
		out=$(fio --name=b --filename="$dev" --size=$size --direct=1 --ioengine=psync --time_based --runtime="$seconds" \
			--group_reporting --minimal --norandommap --randrepeat=0 "$@" 2>&1) || fail "$out"
		after=$(busy_us)
		# terse version 3: 8 read IOPS, 49 write IOPS
		ios=$(echo "$out" | tail -n 1 | awk -F';' '{ print $8 + $49 }')
		echo "bench $round $name $d $ios $(((after - before) / (ios * seconds + 1)))"
	done
}

for ((round = 1; round <= rounds; round++)); do
	for sum in on off; do
		dmsetup message target 0 set checksums $sum
		for jobs in 1 2 ${short:-4}; do
			[ "$jobs" = short ] && continue
			row "write-$jobs-crc_$sum" --rw=randwrite --bs=4k --numjobs="$jobs"
			row "fsync-$jobs-crc_$sum" --rw=randwrite --bs=4k --fsync=1 --numjobs="$jobs"
		done
		[ "$short" ] && continue
		for mix in 99 90 70 50 0; do
			row "mix_$mix-2-crc_$sum" --rw=randrw --rwmixwrite=$mix --bs=4k --numjobs=2
		done
		row "write64k-1-crc_$sum" --rw=randwrite --bs=64k
		row "write1m-1-crc_$sum" --rw=randwrite --bs=1m
	done
done
cat /sys/devices/system/clocksource/clocksource0/current_clocksource
dmsetup status wc
dmsetup status target
clean_dmesg
