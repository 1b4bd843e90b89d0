# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: when the disk of a pool fails, nothing acknowledged is lost while the machine lives, and
# everybody is told.
# Method: the pool's disk is a mapping, which is made to fail.  What was written before is read, goes
# to the origin by a drain, and is compared there.
#	$1 target or native
. "$(dirname "$0")/guest-lib.sh"
kind=$1
origin=/dev/ram1
pool=/dev/mapper/pooldisk
sectors=131072

becomes() { # TABLE
	dmsetup suspend --noudevsync --noflush pooldisk && dmsetup reload pooldisk --table "0 $sectors $1" && dmsetup resume --noudevsync pooldisk
}
written() { # MIB AT: new content for the device, which is also kept
	dd if=/dev/urandom of=/tmp/kept bs=1M count="$1" seek="$2" conv=notrunc status=none &&
		dd if=/tmp/kept of="$device" bs=64k skip=$(($2 * 16)) seek=$(($2 * 16)) count=$(($1 * 16)) oflag=direct,dsync status=none
}
is() { cmp -n $((6 << 20)) "$1" /tmp/kept; }

load_module
dmsetup create --noudevsync --noudevrules pooldisk --table "0 $sectors linear /dev/ram0 0" || fail "the pool's disk"
dmsetup mknodes
step "make the pool" forebay create $pool --medium ssd
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
read_only_refused $origin disk
dmsetup create --noudevsync --noudevrules large --table "0 524288 linear /dev/ram2 0" && dmsetup mknodes
step "make a larger pool" forebay create /dev/mapper/large --medium ssd
step "add the volume" forebay volume add /dev/mapper/large disk $origin --origin-by-name
large() { local pool=/dev/mapper/large; dev_attach y $origin disk; }
mkdir -p /tmp/mem && mount -t tmpfs -o size=4G none /tmp/mem
fallocate -l $(($(awk '/MemAvailable/ { print $2 }' /proc/meminfo) / 1024 - 300))M /tmp/mem/filler || fail "fallocate"
refused "a pool for which there is no memory" "too little memory" large
rm -f /tmp/mem/filler

for durable in always flush; do
	step "attach, durable $durable" dev_attach x $origin disk durable $durable max_age 0 idle 0
	step "write" written 4 0
	[ "$(dev_counter x pages)" -ge 1024 ] || fail "nothing is cached: $(dev_status x)"
	step "the disk fails" becomes error
	dmesg -c >>/tmp/dmesg.before
	! written 1 4 2>/tmp/step.log || fail "durable $durable: a write to a pool whose disk fails succeeds"
	# What was not acknowledged may be there or not.
	dd if="$origin" of=/tmp/kept bs=1M skip=4 seek=4 count=2 conv=notrunc status=none
	dmesg | grep -q 'forebay: dm-.*a write of a group failed' || fail "durable $durable: the kernel's log does not say it: $(dmesg)"
	dmesg | grep -q 'forebay: dm-.*the pool has failed' || fail "durable $durable: the kernel's log does not say what it means: $(dmesg)"
	[ "$(dev_counter x medium)" = failed ] || fail "durable $durable: status does not say it: $(dev_status x)"
	[ "$(dev_state x)" = medium_failed ] || fail "durable $durable: the state is $(dev_state x)"
	step "read what was written" cmp -n $((4 << 20)) "$device" /tmp/kept
	step "drain, from memory" dev_command x flush
	step "the origin has it" cmp -n $((4 << 20)) $origin /tmp/kept
	step "detach" dev_detach x
	step "the disk is back" becomes "linear /dev/ram0 0"
	step "check" forebay check $pool
	# What the pool has is no newer than the origin.
	step "attach again" dev_attach x $origin disk
	step "drain again" dev_command x flush
	step "the same is there" cmp -n $((4 << 20)) "$device" /tmp/kept
	step "detach" dev_detach x
done

# What memory alone has is not thrown away by those who say nothing of it.  The origin is slow, so that
# the drain of a failed pool has not ended.
dmsetup create --noudevsync --noudevrules slow --table "0 65536 delay /dev/ram3 0 0 /dev/ram3 0 4000 /dev/ram3 0 4000" && dmsetup mknodes
step "the disk is back" becomes "linear /dev/ram0 0"
step "add a volume with a slow origin" forebay volume add $pool slow /dev/mapper/slow --origin-by-name
begins() {
	step "attach" dev_attach x /dev/mapper/slow slow durable always max_age 0 idle 0
	step "write" written 4 0
	step "the disk fails" becomes error
}
has() { dd if=/dev/ram3 bs=1M count=4 iflag=direct status=none | cmp -n $((4 << 20)) - /tmp/kept; }
fails() {
	begins
	! written 1 4 2>/tmp/step.log || fail "a write to a pool whose disk fails succeeds"
	! has 2>/tmp/step.log || fail "the origin has it already"
}
case $kind in
target)
	fails
	step "remove" dmsetup remove --noudevsync --retry x
	;;
native)
	fails
	step "list" forebay list
	grep -q "medium failed" /tmp/step.log || fail "list does not say it: $(cat /tmp/step.log)"
	refused "a plain detach by the command" "--flush" forebay detach slow
	step "detach as the unit does" forebay detach slow --rescue
	step "the origin has it" has
	# Perhaps nobody has noticed yet that the disk failed.
	step "the disk is back" becomes "linear /dev/ram0 0"
	begins
	refused "a plain detach" "memory alone" dev_detach x
	step "detach as the unit does" forebay detach slow --rescue
	step "the origin has it" has
	step "the disk is back" becomes "linear /dev/ram0 0"
	fails
	step "give it up" forebay detach slow --give-up
	grep -q "given up" /tmp/step.log || fail "detach does not say it: $(cat /tmp/step.log)"
	step "the disk is back" becomes "linear /dev/ram0 0"
	fails
	step "unload" /run/busybox rmmod forebay
	load_module
	;;
esac
step "the origin has it" has
step "the disk is back" becomes "linear /dev/ram0 0"
step "remove the slow origin" dmsetup remove --noudevsync slow

# Nor does the last device of the pool take with it what memory alone has of other volumes.
dd if=/dev/zero of=/dev/ram0 bs=1M count=64 oflag=direct status=none
step "a new pool" forebay create $pool --medium ssd
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
step "add another" forebay volume add $pool other /dev/ram3 --origin-by-name
other_fails() {
	step "attach" dev_attach x $origin disk
	step "attach the other" dev_attach y /dev/ram3 other durable always max_age 0 idle 0
	step "write to the other" written 4 0
	step "detach the other" dev_detach y
	step "the disk fails" becomes error
	! has 2>/tmp/step.log || fail "the other's origin has it already"
	dmesg -c >>/tmp/dmesg.before
}
lost_is_logged() {
	dmesg | grep -q 'forebay: dm-.*volume other: 4194304 bytes.*lost' || fail "the kernel's log does not say what is lost: $(dmesg)"
	! has 2>/tmp/step.log || fail "nothing is lost"
	step "the disk is back" becomes "linear /dev/ram0 0"
}
other_fails
case $kind in
target)
	step "remove the last" dmsetup remove --noudevsync --retry x
	lost_is_logged
	;;
native)
	refused "a plain detach of the last" "other (4194304 bytes).*attach" dev_detach x
	for how in --rescue --flush; do
		refused "a detach $how of the last" "other (4194304 bytes).*attach" forebay detach disk $how
	done
	! dd if=/dev/zero of="$(readlink /tmp/native.x)" bs=4k count=1 oflag=direct,dsync 2>/tmp/step.log || fail "a write to it succeeds"
	[ "$(dev_counter x detached_bytes)" = 4194304 ] || fail "status does not say it: $(dev_status x)"
	step "give it up" control detach "$(node x)" give-up
	grep -q "medium_failed other (4194304 bytes)" /tmp/answer || fail "the module does not say what: $(cat /tmp/answer)"
	lost_is_logged
	other_fails
	step "unload" /run/busybox rmmod forebay
	lost_is_logged
	load_module
	other_fails
	step "attach the other again" forebay attach $pool other /dev/ram3 --origin-by-name
	step "detach it as the unit does" forebay detach other --rescue
	step "its origin has it" has
	step "detach the last as the unit does" forebay detach disk --rescue
	step "the disk is back" becomes "linear /dev/ram0 0"
	;;
esac
dd if=/dev/zero of=/dev/ram0 bs=1M count=64 oflag=direct status=none
step "a pool of one volume" forebay create $pool --medium ssd
step "add the volume" forebay volume add $pool disk $origin --origin-by-name

# Devices above have asked whether there is a cache, and do not ask again.
if [ "$kind" = target ]; then
	table() { dmsetup table x | sed "s/durable [a-z]*/durable $1/" >/tmp/table; }
	step "attach" dev_attach x $origin disk durable always max_age 0 idle 0
	table flush
	refused "a cache where there was none" "no volatile cache" dmsetup reload x /tmp/table
	step "suspend" dmsetup suspend --noudevsync x
	refused "the same, suspended" "no volatile cache" dmsetup reload x /tmp/table
	table always
	step "the same as before" dmsetup reload x /tmp/table
	step "resume" dmsetup resume --noudevsync x
	refused "a cache where there was none, once more" "no volatile cache" eval "table flush && dmsetup reload x /tmp/table"
	step "detach" dev_detach x
	# The present table may be of another pool, or of another kind.
	step "a pool in pmem" forebay create /dev/pmem0 --force
	step "add a volume" forebay volume add /dev/pmem0 v /dev/ram3 --origin-by-name
	step "durable writes are slow" becomes "delay /dev/ram0 0 0 /dev/ram0 0 5"
	size=$(blockdev --getsz $origin)
	durable() { echo "0 $size forebay $origin $pool disk 3 origin_by_name durable $1"; }
	announced() { cat "/sys/block/dm-$(dmsetup info -c --noheadings -o minor "$1")/queue/write_cache"; }
	for first in "linear $origin 0" "forebay /dev/ram3 /dev/pmem0 v 1 origin_by_name"; do
		step "a device, ${first%% *}" dmsetup create --noudevsync --noudevrules x --table "0 $size $first"
		dmsetup mknodes
		step "one above it" dmsetup create --noudevsync --noudevrules above --table "0 $size linear /dev/mapper/x 0"
		refused "a cache below it" "no volatile cache" dmsetup reload x --table "$(durable flush)"
		step "what is durable without" dmsetup reload x --table "$(durable auto)"
		step "resume" dmsetup resume --noudevsync x
		[ "$(announced x)" = "write through" ] || fail "after $first it has a cache: $(announced x)"
		step "remove" dmsetup remove --noudevsync above
		step "detach" dev_detach x
	done
	step "durable writes are fast" becomes "linear /dev/ram0 0"
	step "attach" dev_attach x $origin disk durable flush
	table flush
	step "a cache as before" dmsetup reload x /tmp/table
	step "resume" dmsetup resume --noudevsync x
	[ "$(announced x)" = "write back" ] || fail "the cache is not announced: $(announced x)"
	table always
	step "no cache any more" dmsetup reload x /tmp/table
	step "resume" dmsetup resume --noudevsync x
	step "detach" dev_detach x
fi

# A read waits for a block whose write is on its way to a slow disk.  Then the origin has what is read.
step "the disk is slow" becomes "delay /dev/ram0 0 0 /dev/ram0 0 300 /dev/ram0 0 300"
step "attach" dev_attach x $origin disk durable always max_age 0 idle 0
[ "$(blockdev --getss "$device")" = 512 ] || fail "blocks of $(blockdev --getss "$device") bytes"
for sector in 16384 16392 16400; do
	dd if=/tmp/kept of="$device" bs=512 count=1 seek=$sector oflag=direct status=none &
	sleep 0.2
	step "a read of the rest of the block" dd if="$device" of=/tmp/rest bs=512 skip=$((sector + 1)) count=7 iflag=direct
	wait
	dd if=$origin of=/tmp/origin bs=512 skip=$((sector + 1)) count=7 iflag=direct status=none
	cmp /tmp/rest /tmp/origin || fail "the rest of the block is not the origin's: $(od -A d -t x1 /tmp/rest | head -n 3) $(od -A d -t x1 /tmp/origin | head -n 3)"
done
step "detach" dev_detach x
step "the disk is fast" becomes "linear /dev/ram0 0"

# The command marks the origin, and takes the mark away when that is complete without the pool.
if [ "$kind" = native ]; then
	step "attach by the command" forebay attach $pool disk $origin --origin-by-name --max-age none --idle none
	device=/dev/$(forebay list --json | jq -r '.[0].device' | sed 's#/dev/##')
	step "write" written 4 0
	step "the disk fails" becomes error
	! written 1 4 2>/tmp/step.log || fail "a write to a pool whose disk fails succeeds"
	step "detach by the command, drained from memory" forebay detach disk --flush
	step "the origin has it" cmp -n $((4 << 20)) $origin /tmp/kept
	step "the origin is complete" forebay origin status $origin
	dd if=/dev/urandom of=$origin bs=4k count=1 oflag=direct status=none # somebody uses it
	step "the disk is back" becomes "linear /dev/ram0 0"
	refused "the pool that came back" "mark" forebay attach $pool disk $origin --origin-by-name
fi
# A pool is opened once, whatever its device is called.  The commands refuse a pool of two names,
# so it gets the other one when it is made, and the module is asked by itself.
twice() { # DEVICE OTHER COMMAND...: the command gives the disk its other name
	local name
	name=$(basename "$(readlink -f "/sys/dev/block/$(stat -L -c %Hr:%Lr "$1")")")
	pool=$1
	step "a pool on $1" forebay create "$1" --force
	step "add a volume" forebay volume add "$1" a $origin --origin-by-name
	step "add another" forebay volume add "$1" b /dev/ram3 --origin-by-name
	step "name it $2" "${@:3}"
	step "attach one" dev_attach x $origin a
	pool=$2
	refused "the other by $2" "in use already, by the device $name" dev_attach y /dev/ram3 b
	pool=$1
	step "the other by $1" dev_attach y /dev/ram3 b
	step "detach it" dev_detach y
	step "detach the first" dev_detach x
	pool=$2
	step "attach by $2" dev_attach y /dev/ram3 b
	step "detach" dev_detach y
}
mapping() { dmsetup create --noudevsync --noudevrules "$1" --table "0 131072 linear $2 0" && dmsetup mknodes; }
dmsetup remove --noudevsync pooldisk
for disk in /dev/ram0 /dev/pmem0; do
	mapping one $disk || fail "mappings of $disk"
	twice /dev/mapper/one /dev/mapper/two mapping two $disk
	dmsetup remove --noudevsync one && dmsetup remove --noudevsync two || fail "the mappings"
done
truncate -s 64M /tmp/mem/pool
losetup /dev/loop0 /tmp/mem/pool || fail "losetup"
twice /dev/loop0 /dev/loop1 losetup /dev/loop1 /tmp/mem/pool
losetup -d /dev/loop0
losetup -d /dev/loop1
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "ssd-faults: $passed passed"
