# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: acknowledged data is there after a power cut of the pool and of its disks, which lose
# everything that was not flushed.
# Method: writes and zeroings of known generation (ackload.c) to a target and a native device of one
# pool, during destage and drains.  The cut: the cache device is unbound, after which nothing is
# stored to it.  Then each disk's log (dm-log-writes) gets a mark, and the disk is made anew from
# what had been flushed before it (replay.c).  Then all is verified by the same devices, drained,
# and verified on the disks alone.
#	$1...	cached, large: how writes go; planted (destage, past, range): bugs
#		that must be found
. "$(dirname "$0")/guest-lib.sh"
ackload=$root/out/vm/ackload
replay=$root/out/vm/replay
sectors=32768 # the size of a disk that ackload wants
names=(t n) # volumes: on the target and on the native device
declare -A kinds=([t]=target [n]=native) options=(
	[cached]="max_age 200 high_watermark 10 low_watermark 5"
	[large]="max_age 1000 high_watermark 20 low_watermark 10 bypass_limit 16384"
	[quiet]="max_age 0 idle 0 high_watermark 95 low_watermark 90" # nobody flushes but who must
)
namespace=$(basename "$(readlink -f "/sys/block/${pool##*/}/device")")
past=0 # the cache: writes, of a load
lost=0 # writes that were not flushed, all cuts of an item

# live is what the guest sees, platter what survives; log and acks are nobody's to cut.
make_disks() {
	local n=0 name
	for name in "${names[@]}"; do
		dmsetup create --noudevsync --noudevrules live.$name --table "0 $sectors linear /dev/ram$n 0"
		dmsetup create --noudevsync --noudevrules platter.$name --table "0 $sectors linear /dev/ram$n 131072"
		dmsetup create --noudevsync --noudevrules log.$name --table "0 917504 linear /dev/ram2 $((n * 1048576))"
		dmsetup create --noudevsync --noudevrules acks.$name --table "0 2048 linear /dev/ram2 $((n * 1048576 + 983040))"
		n=$((n + 1))
	done
	dmsetup mknodes
	for name in "${names[@]}"; do test -b /dev/mapper/platter.$name -a -b /dev/mapper/acks.$name || return; done
}

fresh() {
	local name
	step "make the pool" forebay create $pool --force --chunk-size 256K
	create=create
	for name in "${names[@]}"; do
		dd if=/dev/zero of=/dev/mapper/platter.$name bs=1M oflag=direct status=none 2>/dev/null
		dd if=/dev/zero of=/dev/mapper/acks.$name bs=1M oflag=direct status=none 2>/dev/null
	done
}

start() { # WAY
	local name
	for name in "${names[@]}"; do
		dd if=/dev/mapper/platter.$name of=/dev/mapper/live.$name bs=1M iflag=direct oflag=direct status=none
		dd if=/dev/zero of=/dev/mapper/log.$name bs=4096 count=1 oflag=direct status=none
		dmsetup create --noudevsync --noudevrules disk.$name \
			--table "0 $sectors log-writes /dev/mapper/live.$name /dev/mapper/log.$name" || fail "dm-log-writes"
		dmsetup mknodes disk.$name
		# shellcheck disable=SC2086 # words
		kind=${kinds[$name]} step "attach" dev_attach $name /dev/mapper/disk.$name $name $create origin_id serial:$name ${options[$1]}
		devices[$name]=$device
	done
	create=''
}
declare -A devices

verify() { # through the devices
	local name rc=0
	for name in "${names[@]}"; do
		"$ackload" verify "${devices[$name]}" /dev/mapper/acks.$name >>/tmp/verified 2>&1 || rc=1
	done
	return $rc
}

load() { # WAY SECONDS
	local name seed=1
	echo >/tmp/load.log
	for name in "${names[@]}"; do
		seed=$((seed + 1))
		"$ackload" load "${devices[$name]}" /dev/mapper/acks.$name 600 $seed zero >>/tmp/load.log 2>&1 &
	done
	[ "$1" = quiet ] || (while sleep 0.7; do
		for name in "${names[@]}"; do kind=${kinds[$name]} dev_command $name flush || exit; done
	done) >/dev/null 2>&1 &
	sleep "$2"
	[[ $1 = cached || $1 = quiet ]] || until_true 60 some_past || fail "$1: $past writes past the cache: it tests less than it says"
}
some_past() {
	local name
	past=0
	for name in "${names[@]}"; do past=$((past + $(kind=${kinds[$name]} dev_counter $name bypasses))); done
	[ $past -gt 10 ]
}

power_cut() {
	local name said
	step "the power of the pool is cut" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/unbind"
	for name in "${names[@]}"; do dmsetup message disk.$name 0 mark cut || fail "mark"; done
	wait
	for name in "${names[@]}"; do
		kind=${kinds[$name]} step "detach" dev_detach $name
		step "the log is written" dmsetup remove --noudevsync disk.$name
		said=$("$replay" /dev/mapper/log.$name /dev/mapper/platter.$name cut) || fail "replay"
		echo "volatile: $name: ${said#replay: }"
		lost=$((lost + $(sed 's/.*flushed, \([0-9]*\) .*/\1/' <<<"$said")))
	done
	step "it is back" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/bind"
	until_true 60 test -b $pool || fail "no $pool"
}

shows() { grep -h 'generation\|ackload: ' /tmp/verified | head -n 20; }

item() { # WAY
	local round way=$1 all=0
	lost=0
	load_module
	fresh
	for round in 1 2 3; do
		start "$way"
		: >/tmp/verified
		[ $round = 1 ] || verify || { shows; fail "$way: acknowledged and not there, cut $((round - 1))"; }
		[ $round = 3 ] && break
		load "$way" 3
		all=$((all + past))
		power_cut
	done
	for name in "${names[@]}"; do kind=${kinds[$name]} step "drain" dev_command $name flush; done
	power_cut
	: >/tmp/verified
	for name in "${names[@]}"; do
		"$ackload" verify /dev/mapper/platter.$name /dev/mapper/acks.$name >>/tmp/verified 2>&1 || {
			shows
			fail "$way: drained, and not on disk $name alone"
		}
	done
	shows
	echo "ok: $way: 3 power cuts took $lost writes away; $all writes went past the cache"
	step "unload" /run/busybox rmmod forebay
}

mistake() { # NAME WAY
	local tries
	load_module "volatile-$1"
	fresh
	for tries in 1 2 3 4; do
		start "$2"
		: >/tmp/verified
		[ $tries = 1 ] || verify || break
		[ $tries = 4 ] && break
		load "$2" 2.3
		power_cut
	done
	grep -q ' [1-9][0-9]* bad' /tmp/verified || { shows; fail "not found: $1"; }
	echo "ok: found by cut $((tries - 1)): $1: $(grep -h -m 1 ' [1-9][0-9]* bad' /tmp/verified)"
	for name in "${names[@]}"; do
		kind=${kinds[$name]} step "detach" dev_detach $name
		step "the disk" dmsetup remove --noudevsync disk.$name
	done
	step "unload" /run/busybox rmmod forebay
}

step "disks" make_disks
for item in ${*//planted/destage past range}; do
	case $item in
	destage) mistake destage cached ;;
	past) mistake past large ;;
	range) mistake range quiet ;;
	*) item "$item" ;;
	esac
done
clean_dmesg
echo "volatile: $passed passed"
