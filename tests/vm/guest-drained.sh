# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: every way to ask for a drain reports success only when the origin alone has all
# data, and otherwise reports the reason.
# Method: a table of devices (target, native) by kinds of volume (cache, static) by ways to
# ask (the command "flush", a suspend that flushes, a removal, forebay detach --flush, a
# cleaner) by states (nothing written, written, the same after one to four drains, an origin
# that fails, one that is well again, one whose last block is bad, one whose end is gone,
# one that shrank, one that was taken away, a pool that has lost a page), and a look at the
# device's origin after each.
#	$1 the module, if it is another
# shellcheck shell=bash
. "$(dirname "$0")/guest-lib.sh"
sectors=$((32 * 2048))
rows=0
dd() { /bin/dd "$@"; } # busybox's may write through the page cache, whatever is asked of it
limit=300 # seconds, of what takes one

origin_table() { # linear, error, last (block is bad), smaller
	local table="0 $sectors linear /dev/ram0 0" less=$((sectors - 8))
	case $1 in
	error) table="0 $sectors error" ;;
	last) table="0 $less linear /dev/ram0 0"$'\n'"$less 8 error" ;;
	end) table="0 $((sectors / 2)) linear /dev/ram0 0"$'\n'"$((sectors / 2)) $((sectors / 2)) error" ;;
	smaller) table="0 $less linear /dev/ram0 0" ;;
	esac
	dmsetup suspend --noflush --nolockfs org && dmsetup load org <<<"$table" &&
		dmsetup resume --noudevsync org && dmsetup mknodes org
}

put() { # 16 blocks, apart, that differ each time
	head -c 65536 /dev/urandom >/tmp/put
	for i in 0 1 2 3; do
		dd if=/tmp/put of="$device" bs=16k count=1 skip=$i seek=$((i * 19)) oflag=direct conv=notrunc status=none || return 1
	done
}

there() { # ORIGIN: it has what was put
	for i in 0 1 2 3; do
		dd if="$1" bs=16k count=1 skip=$((i * 19)) iflag=direct status=none
	done | cmp -s - /tmp/put
}

row() { # STATE, WAY: checks that the report is true of the origin
	there "$origin" || fail "$kind, $volume, $2, $1: told that it is done, and the origin lacks what was written"
	rows=$((rows + 1))
	echo "ok: $kind, $volume, $2: $1"
}

not_done() { # STATE, TEXT: a flush has to say so, itself or in the kernel's log
	dmesg -c >>/tmp/dmesg.before
	if dev_command d flush >/tmp/said 2>&1; then
		fail "$kind, $volume, flush, $1: told that it is done"
	fi
	dmesg >>/tmp/said
	grep -q "$2" /tmp/said || fail "$kind, $volume, flush, $1: $(cat /tmp/said)"
	rows=$((rows + 1))
	echo "ok: $kind, $volume, flush: $1: not done"
}

flushed() { # STATE
	dev_command d flush >/tmp/said 2>&1 || fail "$kind, $volume, flush, $1: $(cat /tmp/said)"
	row "$1" flush
}

# The pool has the volume while the origin is used, and is empty after it.
add_volume() {
	local share=
	[ $volume = static ] && share="--static 8M"
	step "a volume, $volume" forebay volume add $pool $volume "$origin" $share --origin-by-name
}
remove_volume() {
	forebay volume remove $pool $volume >/tmp/said 2>&1 || fail "$kind, $volume: the pool is not empty: $(cat /tmp/said)"
}

attach_again() {
	dev_attach d "$origin" "$volume" >/tmp/said || fail "$kind, $volume: attach: $(cat /tmp/said)"
}

# Tests each way in which a device ends with a drain.
ends() {
	put || fail "$kind: write"
	if [ "$kind" = target ]; then
		dev_command d flush_on_suspend
		dmsetup suspend d || fail "suspend"
		row "written" suspend
		dmsetup resume --noudevsync d
		put
		dev_detach d >/tmp/said || fail "remove"
		row "written" remove
		attach_again
	else
		for state in "written" "not written since"; do
			timeout $limit "$root/out/vm/forebay" detach "$(node d)" --flush >/tmp/said 2>&1 ||
				fail "$kind, $volume, detach --flush: code $?: $(cat /tmp/said)"
			grep -q "the origin alone is complete" /tmp/said || fail "$(cat /tmp/said)"
			row "$state" "detach --flush"
			attach_again
		done
	fi
}

table() {
	local n
	origin=/dev/mapper/org
	dd if=/dev/zero of=/tmp/put bs=64k count=1 status=none
	dd if=/dev/zero of=$origin bs=1M count=2 oflag=direct status=none || fail "an empty disk"
	add_volume
	attach_again
	flushed "nothing written"
	for n in 1 2 3 4 5; do
		put || fail "$kind: write"
		flushed "written, after $((n - 1)) drains"
	done
	ends
	dev_command d cleaner >/tmp/said || fail "cleaner"
	put || fail "$kind: write as a cleaner"
	flushed "a cleaner"
	dev_command d set mode write-back >/tmp/said || fail "set mode"
	flushed "nothing written since"
	origin_table error || fail "origin_table"
	not_done "the origin fails, nothing written" "origin does not answer\|could not be written\|cannot be flushed"
	put || fail "$kind: write to the cache of an origin that fails"
	not_done "the origin fails" "could not be written"
	origin_table linear || fail "origin_table"
	until_true $limit dev_command d flush >/tmp/said 2>&1 || fail "$kind, $volume: never well again: $(cat /tmp/said)"
	row "well again" flush
	origin_table last || fail "origin_table"
	put || fail "$kind: write"
	flushed "its last block is bad"
	origin_table end || fail "origin_table"
	not_done "its end is gone" "origin does not answer"
	origin_table smaller || fail "origin_table"
	not_done "the origin is smaller" "or is smaller"
	origin_table linear || fail "origin_table"
	flushed "it is as large as it was"
	[ $volume = cache ] || loses
	dev_detach d >/tmp/said || fail "detach"
	remove_volume
}

says_lost() {
	dmesg -c >>/tmp/dmesg.before
	! dev_command d flush >/tmp/said 2>&1 || fail "$kind: flush, a page is lost: told that it is done"
	dmesg >>/tmp/said
	grep -q "newest data of some blocks is lost" /tmp/said
}

# A page of the pool is damaged before the drain.  The module then reads the whole share in many
# parts, and releases the pool's lock between them.
loses() {
	local at statics=$(($(blockdev --getsz $pool) / 2048 - 16)) word="lost$RANDOM$RANDOM" trace=/sys/kernel/tracing
	yes $word | head -c 4096 >/tmp/page
	origin_table error || fail "origin_table" # or the page is there before it is damaged
	put || fail "$kind: write"
	dd if=/tmp/page of="$device" bs=4k count=1 seek=3 oflag=direct conv=notrunc status=none || fail "write a page"
	at=$(dd if=$pool bs=1M skip=$statics iflag=direct status=none | /bin/grep -abo -m 1 $word | head -n 1)
	[ -n "$at" ] || fail "the page is not in the pool"
	at=$((statics * 2048 + ${at%%:*} / 512))
	dd if=/dev/zero of=$pool bs=512 count=1 seek=$at oflag=direct conv=notrunc status=none || fail "damage"
	echo "p:looks forebay:fby_drained_lost" >$trace/kprobe_events || fail "no probe"
	echo 1 >$trace/events/kprobes/looks/enable
	origin_table linear || fail "origin_table"
	until_true $limit says_lost || fail "$kind: flush, a page is lost: $(cat /tmp/said)"
	rows=$((rows + 1))
	at=$(awk '$1 == "looks" { print $2 }' $trace/kprobe_profile)
	echo 0 >$trace/events/kprobes/looks/enable
	echo >$trace/kprobe_events
	[ "$at" -gt 4 ] || fail "the share was read in $at parts"
	echo "ok: $kind, $volume, flush: a page is lost: not done, and the share was read in $at parts"
	put || fail "$kind: write"
	flushed "the lost page was overwritten"
}

# The origin is removed while it is attached.
gone() {
	local index disk
	disk=/sys/kernel/config/nullb/$kind$volume
	mkdir "$disk" && echo $((sectors / 2048)) >"$disk/size" && echo 1 >"$disk/memory_backed" && echo 1 >"$disk/power"
	index=$(tr -d '[:space:]' <"$disk/index")
	origin=/dev/$kind$volume
	test -b "$origin" || origin=/dev/nullb$index
	test -b "$origin" || fail "no null_blk device: $(ls /dev | tr '\n' ' ')"
	add_volume
	attach_again
	put || fail "$kind: write"
	flushed "a disk that will go"
	echo 0 >"$disk/power"
	not_done "the origin is gone, nothing written" "does not answer"
	dev_detach d >/tmp/said || fail "detach"
	rmdir "$disk"
	remove_volume
}

load_module $1
quick_tools
mkdir -p /sys/kernel/config
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
step "a disk" dmsetup create --noudevsync --noudevrules --uuid FBY-org org --table "0 $sectors linear /dev/ram0 0"
dmsetup mknodes org
step "make the pool" forebay create $pool --static 16M
for kind in target native; do
	for volume in static cache; do
		table
		gone
	done
done
clean_dmesg
echo "drained: $passed passed, $rows rows"
