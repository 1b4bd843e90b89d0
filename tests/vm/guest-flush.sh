# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: an origin in the page cache reports lost writes to one flush only.  Destage counts
# no write as done that may be lost, whichever flush got the error.
# Method: a loop device over a disk whose writes fail (dm-flakey), so that writes succeed and the
# flush after them fails, once.  Over that is a mapping that holds flushes back.  The mapping knows
# no zeroing, as that would fail by itself.  The flush of a zeroing past the cache is on its way
# when a drain begins.  It also covers what the drain has written by the time that it arrives.  No
# drain may succeed.  Then the disk is well again, and has to have all that was acknowledged.
#	$1 target or native   $2 how many rounds   $3 what is planted, if anything
. "$(dirname "$0")/guest-lib.sh"
kind=$1
sectors=$((100 * 2048))

origin_table() { # linear, or writes (fail, reads do not)
	local target="linear /dev/ram0 0"
	[ "$1" = writes ] && target="flakey /dev/ram0 0 0 600 1 error_writes"
	dmsetup suspend --noflush org && dmsetup load org --table "0 $sectors $target" && dmsetup resume --noudevsync org
}
written() { # sectors
	local n
	read -r _ _ _ _ _ _ n _ </sys/block/loop0/stat
	echo "$n"
}
zeroed() { [ "$(written)" -ge $((before + 2048)) ]; }
put() { # ROUND: 64 blocks of it
	yes "blocks of round $1" | head -c 262144 >/tmp/blocks
	dd if=/tmp/blocks of="$device" bs=4096 oflag=direct status=none
}
flushes_take() { # MILLISECONDS: far more than what else a round does
	dmsetup suspend --noflush cached &&
		dmsetup load cached --table "0 $sectors delay /dev/loop0 0 0 /dev/loop0 0 0 /dev/loop0 0 $1" && dmsetup resume --noudevsync cached
}

load_module $3
step "a disk" dmsetup create --noudevsync --noudevrules --uuid FBY-org org --table "0 $sectors linear /dev/ram0 0"
dmsetup mknodes org
step "an origin in the page cache" losetup /dev/loop0 /dev/mapper/org
step "which cannot zero" dmsetup create --noudevsync --noudevrules cached --table "0 $sectors delay /dev/loop0 0 0"
dmsetup mknodes cached
step "make the pool" forebay create $pool
step "attach, and make the volume" dev_attach fast /dev/mapper/cached disk create
step "write" put 0
step "drain" dev_command fast flush

step "writes of the disk fail" origin_table writes
step "flushes take long" flushes_take 4000
for ((round = 1; round <= $2; round++)); do
	step "write $round, to the cache" put "$round"
	before=$(written)
	blkdiscard -f -z -o $((32 << 20)) -l $((1 << 20)) "$device" >/dev/null 2>&1 &
	zeroing=$!
	step "zeroing $round has written, and flushes" until_true 90 zeroed
	sleep 0.3
	refused "drain $round" "error" dev_command fast flush
	wait $zeroing && fail "zeroing $round was not told that the disk fails"
done
step "flushes are short" flushes_take 0
step "the disk is well again" origin_table linear
echo 3 >/proc/sys/vm/drop_caches
dd if="$device" of=/tmp/back bs=4096 count=64 iflag=direct status=none
step "all is there" cmp /tmp/blocks /tmp/back
step "drain" until_true 300 dev_command fast flush
[ "$(dev_state fast)" = ok ] || fail "state is $(dev_state fast)"
step "zeroes past the cache" blkdiscard -f -z -o $((32 << 20)) -l $((1 << 20)) "$device"
step "detach" dev_detach fast
step "the mapping ends" dmsetup remove --noudevsync cached
step "the loop ends" losetup -d /dev/loop0
echo 3 >/proc/sys/vm/drop_caches
dd if=/dev/mapper/org of=/tmp/back bs=4096 count=64 iflag=direct status=none
step "the disk alone" cmp /tmp/blocks /tmp/back
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "flush-$kind: $passed passed"
