# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: the native device does what the target does, on the same pools.
# Method: the device is attached over the control device, with xfs, and fio with reads, writes,
# trims and verification while it destages.  Then the same volume goes through the device mapper and
# back; refusals.
. "$(dirname "$0")/guest-lib.sh"
origin=/dev/ram0

value() { control status forebay0 | tr ' ' '\n' | sed -n "s/^$1=//p"; }

load_module
step "make the pool" forebay create $pool
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
refused "a volume that is not there" "no such volume" control attach $pool $origin other
kind=native read_only_refused $origin disk
refused "a word that means nothing" "wanted" control frob
refused "an option that is none" "unknown option" control attach $pool $origin disk frob 1
step "attach" control attach $pool $origin disk low_watermark 2 high_watermark 5
test -b /dev/forebay0 || fail "no /dev/forebay0"
step "list" control list
cat /tmp/answer
refused "the volume twice" "for us alone" control attach $pool $origin disk
refused "the volume through the mapper" "cannot be opened" attach x $origin disk
refused "the origin beside us" "busy\|already" mount $origin /mnt
cat /sys/block/forebay0/queue/{write_cache,logical_block_size,physical_block_size,discard_max_bytes,write_zeroes_max_bytes} | tr '\n' ' '
echo

mkdir -p /tmp/mnt
step "mkfs.xfs" make_fs xfs /dev/forebay0
step "mount" mount /dev/forebay0 /tmp/mnt
refused "detaching a busy device" "is open" control detach forebay0
step "fio on a file, with verification" fio --name=f --filename=/tmp/mnt/file --size=8m --rw=randwrite --bsrange=512-64k \
	--blockalign=512 --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=7
step "fio, mixed, two files" fio --name=g --directory=/tmp/mnt --size=4m --rw=randrw --bs=4k --ioengine=psync \
	--direct=1 --fsync=8 --verify=crc32c --verify_fatal=1 --numjobs=2
cp -r "$root/core" /tmp/mnt/
trim /dev/forebay0 /tmp/mnt
step "unmount" umount /tmp/mnt
[ "$(value origin_writes)" -gt 0 ] || fail "nothing was destaged"
control status forebay0
step "a command" control command forebay0 clear_stats
step "detach, not drained" control detach forebay0
test -b /dev/forebay0 && fail "/dev/forebay0 is still there"

step "forebay check" forebay check $pool
step "the same volume through the mapper" attach fast $origin disk
step "mount" mount /dev/mapper/fast /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/core
step "verify the file of fio" fio --name=f --filename=/tmp/mnt/file --size=8m --rw=randwrite --bsrange=512-64k \
	--blockalign=512 --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=7 --verify_only=1
step "unmount" umount /tmp/mnt
step "remove" dmsetup remove --noudevsync fast
step "natively again" control attach $pool $origin disk
step "drain" control command forebay0 drain
step "unload with an idle device" /run/busybox rmmod forebay
step "forebay check" forebay check $pool
step "mount the origin alone" mount -o ro $origin /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/core
step "unmount it" umount /tmp/mnt
clean_dmesg
echo "native: $passed passed"
