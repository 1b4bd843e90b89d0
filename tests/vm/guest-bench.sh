# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: ratios between devices of one boot.  Method: each row is measured on
# each device in turn, and that in several rounds; the median counts.  The guest
# is emulated: times mean nothing, ratios a little, and only on an idle machine.
#	$1 rounds   $2 seconds for each figure   $3 short: only 4 KiB writes, 1 and 2 jobs; one: 4 KiB, 1 job; large: 64 KiB and 1 MiB on pmem and native; all: as without
#	$4 MiB of data
# Prints lines "bench ROUND ROW SUM DEVICE IOPS CPU_US CPU_S". CPU time is in microseconds a request
# and in seconds a GiB; SUM: checksums off or on.  The others than Forebay's have none, so they are
# measured once a round.
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
rounds=$1
seconds=$2
form=${3:-all}
devices=(pmem linear writecache target native)
# dm-pcache takes part if the kernel has it and pcache.sh built it.
[ -e "$root/out/vm/dm-pcache-$release.ko" ] && devices+=(pcache)
size=${4:-96} # MiB of 1000, in each cache: nothing is ever full; vm-load has the full cache

origin_sectors=$((1000 * 2048))
linear() { # NAME DEVICE FIRST COUNT
	dmsetup create --noudevsync --noudevrules "$1" --table "0 $4 linear $2 $3" && dmsetup mknodes "$1"
}
load_module
for i in 0 1 2 3 4 5; do test -b /dev/pmem$i || fail "no /dev/pmem$i"; done
for i in 0 1 2 3; do linear o$i /dev/ram$i 0 $origin_sectors; done
dmsetup create --noudevsync --noudevrules wc --table "0 $origin_sectors writecache p /dev/mapper/o0 /dev/pmem1 4096 0" ||
	fail "dm-writecache"
dmsetup mknodes wc
case " ${devices[*]} " in *" pcache "*) pcache_up /dev/mapper/o3 /dev/pmem5 ;; esac
# This device shows the cost of the mapper over the same kind of memory.
linear linear /dev/pmem4 0 $origin_sectors
# Each device has its own pool, as dm-writecache has its own cache.
for i in 2 3; do
	forebay create /dev/pmem$i >/tmp/step.log 2>&1 || fail "$(cat /tmp/step.log)"
done
dmsetup create --noudevsync --noudevrules target \
	--table "0 $origin_sectors forebay /dev/mapper/o1 /dev/pmem2 t 2 create origin_by_name" || fail "target"
dmsetup mknodes target
control attach /dev/pmem3 /dev/mapper/o2 n create origin_by_name >/tmp/step.log || fail "$(cat /tmp/step.log)"

device() {
	case $1 in
	pmem) echo /dev/pmem0 ;;
	linear) echo /dev/mapper/linear ;;
	writecache) echo /dev/mapper/wc ;;
	pcache) echo /dev/mapper/pcache ;;
	target) echo /dev/mapper/target ;;
	native) echo /dev/forebay0 ;;
	esac
}
busy_us() { awk '$1 == "cpu" { print ($2 + $3 + $4 + $7 + $8) * 10000 }' /proc/stat; }
run_fio() {
	fio --name=b --ioengine=psync --group_reporting --minimal --norandommap --randrepeat=0 "$@" 2>&1
}

# figure ROW SUM DEVICE FIO-ARGUMENTS.  Terse version 3: 6 KiB read, 8 reads/s, 47 and 49 of writes.
figure() {
	local row=$1 sum=$2 d=$3 before after out
	shift 3
	before=$(busy_us)
	out=$(run_fio --time_based --runtime="$seconds" "$@") || fail "$out"
	after=$(busy_us)
	echo "$out" | tail -n 1 | awk -F';' -v busy=$((after - before)) -v seconds="$seconds" -v head="bench $round $row $sum $d" \
		'{ n = $8 + $49; print head, n, int(busy / (n * seconds + 1)), busy / ($6 + $47 + 1) * 1.048576 }'
}

# Measures both checksum settings on each device of $these.
row() { # NAME FIO-ARGUMENTS
	local name=$1 d dev
	shift
	for d in "${these[@]}"; do
		dev=$(device "$d")
		test -b "$dev" || fail "$dev is no block device"
		figure "$name" $sum "$d" --filename="$dev" --size=${size}m --direct=1 "$@"
	done
}

file_row() { # NAME JOBS
	local d
	for d in "${these[@]}"; do
		figure "$1" $sum "$d" --directory="/tmp/$d" --size=$((size / $2))m --rw=randwrite --bs=4k --fsync=1 --numjobs="$2"
	done
}

file_system() { # FS
	local d
	for d in "${these[@]}"; do
		make_fs "$1" "$(device "$d")" "${ext4_whole[@]}" >/tmp/step.log 2>&1 || fail "$(cat /tmp/step.log)"
		mkdir -p "/tmp/$d"
		mount "$(device "$d")" "/tmp/$d" || fail "mount $1 of $d"
	done
	file_row "$1-fsync-1" 1
	file_row "$1-fsync-4" 4
	for d in "${these[@]}"; do umount "/tmp/$d"; done
}

large_rows() {
	row "write64k-1" --rw=randwrite --bs=64k
	row "write1m-1" --rw=randwrite --bs=1m
}

rows() {
	local d jobs mix numbers
	# Everything is cached, with checksums or without, before anything is read.
	for d in "${these[@]}"; do
		run_fio --filename="$(device "$d")" --size=${size}m --direct=1 --rw=write --bs=1m >/tmp/step.log || fail "$(cat /tmp/step.log)"
	done
	case $form in
	large) numbers= ;;
	one) numbers=1 ;;
	short) numbers="1 2" ;;
	*) numbers="1 2 4" ;;
	esac
	for jobs in $numbers; do
		row "write-$jobs" --rw=randwrite --bs=4k --numjobs="$jobs"
		row "fsync-$jobs" --rw=randwrite --bs=4k --fsync=1 --numjobs="$jobs"
	done
	[ "$form" != one ] || row "mix_50-1" --rw=randrw --rwmixwrite=50 --bs=4k
	[ "$form" != large ] || large_rows
	[ "$form" = all ] || return
	for mix in 99 90 70 50 0; do
		row "mix_$mix-2" --rw=randrw --rwmixwrite=$mix --bs=4k --numjobs=2
	done
	large_rows
	file_system ext4
	file_system xfs
}

for ((round = 1; round <= rounds; round++)); do
	for sum in off on; do
		these=("${devices[@]}")
		[ $sum = on ] && these=(target native)
		[ "$form" != large ] || these=(pmem native)
		[ "$form$sum" != largeon ] || continue
		dmsetup message target 0 set checksums $sum
		control command forebay0 set checksums $sum >/tmp/step.log || fail "$(cat /tmp/step.log)"
		rows
	done
done
cat /sys/devices/system/clocksource/clocksource0/current_clocksource
dmsetup status wc
dmsetup status target
control status forebay0
clean_dmesg
