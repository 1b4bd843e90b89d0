# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: what volumes of a pool on a disk acknowledged as durable is there after a power cut, which
# takes from the pool's disk and from the origins all that was not flushed.
# Method: writes of known generation (ackload.c) to a target and a native device, during destage.
# The pool's disk is slow.  The cut comes under load: the acknowledgements are copied, and then each
# disk's log (dm-log-writes) gets a mark, the pool's first.  The disk is made anew from what had been
# flushed before the mark (replay.c).  Then all is verified by the same devices: what was acknowledged
# before the copy is there, or something later.
#	$1 cuts	$2... always, flush, fua: how a write is durable; planted: mistakes that must be found
. "$(dirname "$0")/guest-lib.sh"
ackload=$root/out/vm/ackload
replay=$root/out/vm/replay
cuts=$1
shift
names=(t n) # volumes: on the target and on the native device
declare -A kinds=([t]=target [n]=native) sectors=([t]=32768 [n]=32768 [pool]=49152) devices
disks=(pool "${names[@]}")
lost=0 # writes that were not flushed
delay_ms=20 # of a write and of a flush of the pool's disk

# live is what the guest sees, platter what survives; log and acks are nobody's to cut.
make_disks() {
	local n=0 name
	for name in "${disks[@]}"; do
		dmsetup create --noudevsync --noudevrules live.$name --table "0 ${sectors[$name]} linear /dev/ram0 $((n * 262144))"
		dmsetup create --noudevsync --noudevrules platter.$name --table "0 ${sectors[$name]} linear /dev/ram0 $((n * 262144 + 131072))"
		dmsetup create --noudevsync --noudevrules log.$name --table "0 917504 linear /dev/ram$((1 + n / 2)) $((n % 2 * 1048576))"
		dmsetup create --noudevsync --noudevrules acks.$name --table "0 2048 linear /dev/ram$((1 + n / 2)) $((n % 2 * 1048576 + 983040))"
		n=$((n + 1))
	done
	dmsetup mknodes
	for name in "${disks[@]}"; do test -b /dev/mapper/platter.$name -a -b /dev/mapper/acks.$name || return; done
}
copied() { dd if="$1" of="$2" bs=1M oflag=direct status=none 2>/dev/null || true; }

fresh() {
	local name
	for name in "${disks[@]}"; do
		copied /dev/zero /dev/mapper/platter.$name
		copied /dev/zero /dev/mapper/acks.$name
	done
	step "make the pool" forebay create /dev/mapper/platter.pool --medium ssd --chunk-size 256K
	create=create
}

start() { # WAY
	local name
	for name in "${disks[@]}"; do
		copied /dev/mapper/platter.$name /dev/mapper/live.$name
		dd if=/dev/zero of=/dev/mapper/log.$name bs=4096 count=1 oflag=direct status=none
		[ $name != pool ] || dmsetup create --noudevsync --noudevrules slow.pool --table "0 ${sectors[pool]} delay \
			/dev/mapper/live.pool 0 0 /dev/mapper/live.pool 0 $delay_ms /dev/mapper/live.pool 0 $delay_ms" || fail "dm-delay"
		dmsetup mknodes
		below=/dev/mapper/live.$name
		[ $name != pool ] || below=/dev/mapper/slow.pool
		dmsetup create --noudevsync --noudevrules disk.$name \
			--table "0 ${sectors[$name]} log-writes $below /dev/mapper/log.$name" || fail "dm-log-writes"
		dmsetup mknodes disk.$name
	done
	pool=/dev/mapper/disk.pool
	for name in "${names[@]}"; do
		kind=${kinds[$name]} step "attach" dev_attach $name /dev/mapper/disk.$name $name $create origin_id serial:$name \
			max_age 2000 high_watermark 10 low_watermark 5 durable "${1/fua/flush}"
		devices[$name]=$device
	done
	create=''
}

verify() { # through the devices
	local name rc=0
	for name in "${names[@]}"; do
		ACKLOAD_NEWER=1 "$ackload" verify "${devices[$name]}" /dev/mapper/acks.$name >>/tmp/verified 2>&1 || rc=1
	done
	return $rc
}

loads=()
load() { # WAY SECONDS SEED
	local name seed=$3
	loads=()
	for name in "${names[@]}"; do
		seed=$((seed + 1))
		case $1 in
		always) "$ackload" load "${devices[$name]}" /dev/mapper/acks.$name 600 $seed >>/tmp/load.log 2>&1 & ;;
		*) ACKLOAD_SYNC=$1 "$ackload" load "${devices[$name]}" /dev/mapper/acks.$name 600 $seed >>/tmp/load.log 2>&1 & ;;
		esac
		loads+=($!)
	done
	sleep "$2"
}

power_cut() {
	local name said
	for name in "${names[@]}"; do dd if=/dev/mapper/acks.$name of=/tmp/acks.$name bs=1M iflag=direct status=none || fail "acks"; done
	for name in "${disks[@]}"; do dmsetup message disk.$name 0 mark cut || fail "mark"; done
	kill -KILL "${loads[@]}"
	wait "${loads[@]}" 2>/dev/null
	for name in "${names[@]}"; do dd if=/tmp/acks.$name of=/dev/mapper/acks.$name bs=1M oflag=direct status=none || fail "acks"; done
	for name in "${names[@]}"; do kind=${kinds[$name]} step "detach" dev_detach $name; done
	for name in "${disks[@]}"; do
		end_disk $name
		said=$("$replay" /dev/mapper/log.$name /dev/mapper/platter.$name cut) || fail "replay"
		echo "ssd-cut: $name: ${said#replay: }"
		lost=$((lost + $(sed 's/.*flushed, \([0-9]*\) .*/\1/' <<<"$said")))
	done
}

end_disk() {
	step "the log is written" dmsetup remove --noudevsync disk.$1
	[ $1 != pool ] || step "and the delay is gone" dmsetup remove --noudevsync slow.pool
}

shows() { grep -h 'generation\|ackload: ' /tmp/verified | head -n 20; }

item() { # WAY
	local round way=$1 said name kept
	lost=0
	dmesg -c >>/tmp/dmesg.before
	load_module
	fresh
	for ((round = 1; round <= cuts + 1; round++)); do
		start "$way"
		: >/tmp/verified
		[ $round = 1 ] || verify || { shows; fail "$way: acknowledged and not there, cut $((round - 1))"; }
		said=$(kind=target dev_status t)
		[[ $said == *medium_by=flush* ]] || fail "$way: the pool's disk is not flushed: $said"
		[ $round -gt "$cuts" ] && break
		load "$way" 1.$((RANDOM % 10)) $((round * 10))
		said=$(kind=target dev_status t)
		echo "ssd-cut: $way: $(tr ' ' '\n' <<<"$said" | grep -E '^(volatile|groups|records|medium_flushes|pages_destaged|waits_space)=' | tr '\n' ' ')"
		power_cut
	done
	for name in "${names[@]}"; do kind=${kinds[$name]} step "drain" dev_command $name flush; done
	: >/tmp/verified
	for name in "${names[@]}"; do
		kind=${kinds[$name]} step "detach" dev_detach $name
		"$ackload" verify /dev/mapper/live.$name /dev/mapper/acks.$name >>/tmp/verified 2>&1 || { shows; fail "$way: drained, and not on disk $name alone"; }
	done
	shows
	for name in "${disks[@]}"; do end_disk $name; done
	step "forebay check" forebay check /dev/mapper/live.pool
	kept=$(dmesg | sed -n 's/.*recovered, \([0-9]*\) entries.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
	[ $lost -gt 0 ] && [ "$kept" -gt 0 ] || fail "$way: the cuts took $lost writes, and the pool alone had $kept entries: it tests less than it says"
	echo "ok: $way: $cuts power cuts took $lost writes away; $kept entries were recovered"
	step "unload" /run/busybox rmmod forebay
}

mistake() { # NAME WAY
	local tries name
	load_module "ssd-$1"
	fresh
	for tries in 1 2 3 4 5; do
		start "$2"
		: >/tmp/verified
		[ $tries = 1 ] || verify || break
		[ $tries = 5 ] && fail "the mistake $1 is not found"
		load "$2" 1.5 $tries
		power_cut
	done
	for name in "${names[@]}"; do kind=${kinds[$name]} step "detach" dev_detach $name; done
	for name in "${disks[@]}"; do end_disk $name; done
	echo "ok: $1: found, cut $((tries - 1))"
	step "unload" /run/busybox rmmod forebay
}

step "disks" make_disks
for item; do
	case $item in
	planted)
		delay_ms=300
		mistake early always
		mistake flush flush
		mistake preflush flush
		delay_ms=20
		;;
	*) item "$item" ;;
	esac
done
clean_dmesg
echo "ssd-cut: $passed passed"
