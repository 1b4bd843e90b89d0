# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: memory that fails is contained, reported and healed by overwriting.
# Method: lines of the media whose loads fail (poison/poison.c).  They are of a page of data in use,
# of a header, and of the superblock and a volume's record before a start.  Then the kernel's own
# ways: a bad block of the device, and memory_failure() on its page.
. "$(dirname "$0")/guest-lib.sh"
module=$1
count=20
params=/sys/module/poison/parameters

poison() { echo "$1" >$params/add; }
state() { dmsetup status fast | cut -d' ' -f4; }
block() { yes "block $1 of the poison test, $2." | head -c 4096; }
put() { block "$1" "$2" | dd of=/dev/mapper/fast bs=4096 seek="$1" count=1 oflag=direct iflag=fullblock status=none; }
get() { # BLOCK VERSION
	dd if=/dev/mapper/fast bs=4096 skip="$1" count=1 iflag=direct of=/tmp/back status=none && block "$1" "$2" | cmp - /tmp/back
}
others() { # VERSION BUT...: all but these are there
	local i version=$1
	shift
	for ((i = 1; i <= count; i++)); do
		case " $* " in *" $i "*) continue ;; esac
		get "$i" "$version" || return 1
	done
}
# place BLOCK VERSION: the offset of its data in the pool
place() {
	grep -abo -m 1 "block $1 of the poison test, $2" "$pool" | head -n 1 | cut -d: -f1
}
# header OFFSET: the offset of the page's line, in chunks of 2 MiB
header() { echo $(($1 / 2097152 * 2097152 + $1 % 2097152 / 4096 * 64)); }
fill() {
	local i
	for ((i = 1; i <= count; i++)); do put "$i" "$1" || return 1; done
}
insert() { # one of the kernel's modules, where it is not built in
	local file
	file=$(find "$FOREBAY_VM/lib/modules/$release" -name "$1.ko*" 2>/dev/null | head -n 1)
	[ -n "$file" ] || return 0
	xz -dc "$file" >/tmp/"$1".ko && /run/busybox insmod /tmp/"$1".ko
}

load_module
step "make the pool" forebay create "$pool"
step "load the failing memory" /run/busybox insmod "$module"
step "attach" attach fast /dev/ram0 disk create high_watermark 90 low_watermark 80
step "write $count blocks" fill first

# The poison is in a page of data in use.
at=$(place 5 first)
[ -n "$at" ] || fail "block 5 is not on the media"
poison $((at + 1024))
refused "reading a block whose memory fails" "input/output error" get 5 first
[ "$(cat $params/hits)" -gt 0 ] || fail "no read failed: the test tests nothing"
step "its neighbours are well" others first 5
[ "$(state)" = lost_data ] || fail "state is $(state)"
[ "$(counter fast lost_blocks)" = 1 ] || fail "lost_blocks is $(counter fast lost_blocks)"
step "a sector of it written" dd if=/dev/zero of=/dev/mapper/fast bs=512 seek=40 count=1 oflag=direct status=none
refused "reading what is still lost" "input/output error" get 5 first
step "drain past it" dmsetup message fast 0 flush
refused "lost still after the drain" "input/output error" get 5 first
step "its neighbours, from the origin" others first 5
step "overwrite it" put 5 second
step "healed" get 5 second
[ "$(state)" = ok ] || fail "state is $(state)"

# The chunk is used again, and writes over the poison heal the memory.
[ "$(cat $params/lines)" = 1 ] || fail "$(cat $params/lines) lines are poisoned, not 1"
step "use all the pool" fio --name=w --filename=/dev/mapper/fast --offset=1m --size=160m --rw=write --bs=64k \
	--ioengine=psync --direct=1 --verify=crc32c --verify_fatal=1 --randseed=5
[ "$(cat $params/lines)" = 0 ] || fail "the poisoned line was not written again"
step "drain" dmsetup message fast 0 flush

# Before a start, a header, a page of data, and one copy of superblock and record are
# poisoned.
step "write $count blocks" fill third
step "detach" dmsetup remove --noudevsync fast
data=$(place 7 third)
line=$(header "$(place 12 third)")
poison "$data"
poison "$line"
poison 0
poison 8192
refused "attach without consent" "lost" attach fast /dev/ram0 disk
step "attach, isolating what is lost" attach fast /dev/ram0 disk holes isolate
refused "reading the block whose data fails" "input/output error" get 7 third
refused "reading the block whose header fails" "input/output error" get 12 third
step "all others are well" others third 7 12
[ "$(state)" = lost_data ] || fail "state is $(state)"
step "overwrite the one" put 7 fourth
step "overwrite the other" put 12 fourth
step "healed" get 7 fourth
step "healed" get 12 fourth
[ "$(state)" = ok ] || fail "state is $(state)"
step "drain" dmsetup message fast 0 flush
step "detach" dmsetup remove --noudevsync fast
[ "$(cat $params/missed)" = 0 ] || fail "$(cat $params/missed) calls were missed"
step "attach again, without consent" attach fast /dev/ram0 disk
step "all is there" others third 7 12
step "write $count blocks" fill fifth
step "detach" dmsetup remove --noudevsync fast

# The kernel reports bad memory in its own ways.  In this machine the loads do not fail.
at=$(place 9 fifth)
step "a bad block of the device" bash -c "echo $((at / 512)) 8 >/sys/block/${pool#/dev/}/badblocks"
refused "reading the device there" "input/output error" dd if="$pool" bs=4096 skip=$((at / 4096)) count=1 \
	iflag=direct of=/dev/null status=none
step "attach over the bad block" attach fast /dev/ram0 disk
step "all is there" others fifth
insert hwpoison-inject || fail "hwpoison-inject"
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
if [ -e /sys/kernel/debug/hwpoison/corrupt-pfn ]; then
	start=$((4 << 30))
	echo $(((start + at) >> 12)) >/sys/kernel/debug/hwpoison/corrupt-pfn
	echo "memory_failure on a page in use: $(dmesg | grep -a 'Memory failure' | tail -n 1)"
	step "all is there, or EIO" bash -c "$(declare -f get others block); count=$count; others fifth 9"
	step "overwrite it" put 9 sixth
	step "healed" get 9 sixth
else
	echo "no hwpoison-inject in this kernel"
fi
step "drain" dmsetup message fast 0 flush
step "detach" dmsetup remove --noudevsync fast
step "unload the failing memory" /run/busybox rmmod poison
step "forebay check" forebay check "$pool"
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "poison: $passed passed"
