# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: the module works at all, and its pool is the same for user space.
# Method: a pool made by the command. ext4 and fio with verification run on the target while it
# destages; table reload, suspend, messages.  After a drain the origin alone has everything; then
# the command checks the pool.
. "$(dirname "$0")/guest-lib.sh"
origin=/dev/ram0

load_module
step "make the pool" forebay create $pool
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
refused "a volume that is not there" "no such volume" attach x $origin other
kind=target read_only_refused $origin disk
refused "an origin of another id" "not the one the volume was made for" attach x $origin disk origin_id wrong:1
step "attach" attach fast $origin disk
dmsetup table fast
dmsetup status fast
refused "the pool by the command while the module has it" "busy\|in use" forebay check $pool
refused "a second device on the volume" "in use by another" attach x $origin disk

step "mkfs.ext4" mkfs.ext4 -q -F /dev/mapper/fast
mkdir -p /tmp/mnt
step "mount" mount /dev/mapper/fast /tmp/mnt
step "fio on a file, with verification" fio --name=f --filename=/tmp/mnt/file --size=8m --rw=randwrite --bsrange=512-64k \
	--blockalign=512 --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=7
dmsetup message fast 0 set low_watermark 2 && dmsetup message fast 0 set high_watermark 5 || fail "message set"
step "fio while it destages" fio --name=g --directory=/tmp/mnt --size=8m --rw=randwrite --bs=4k --ioengine=psync \
	--fsync=4 --verify=crc32c --verify_fatal=1 --numjobs=2 --io_size=4m
step "reload the table in use" bash -c "dmsetup table fast > /tmp/t && dmsetup reload fast /tmp/t && dmsetup resume --noudevsync fast"
step "verify the first file again" fio --name=f --filename=/tmp/mnt/file --size=8m --rw=randwrite --bsrange=512-64k \
	--blockalign=512 --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=7 --verify_only=1
cp -r "$root/core" /tmp/mnt/
# What the kernel would write back after the drain is on the volume before it.
sync
step "drain" dmsetup message fast 0 flush
[ "$(counter fast pages)" -lt 64 ] || fail "pages left after the drain: $(counter fast pages)"
[ "$(counter fast origin_writes)" -gt 0 ] || fail "nothing was destaged"
trim /dev/mapper/fast /tmp/mnt
step "unmount" umount /tmp/mnt
step "drain again" dmsetup message fast 0 flush
dmsetup status fast
step "remove" dmsetup remove --noudevsync fast

step "forebay check" forebay check $pool
forebay volume list $pool
step "fsck of the origin alone" e2fsck -fn $origin
step "mount the origin alone" mount -o ro $origin /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/core
step "unmount it" umount /tmp/mnt
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "smoke: $passed passed"
