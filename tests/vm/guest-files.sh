# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: existing file systems work on Forebay, and without it again.
# Method: for ext4 and xfs, on one kind of device.  A file system is made and filled on the bare
# disk, and the disk is attached in place.  Then fio with verification while it destages, fsx,
# files.  After drain and detach it is mounted straight from the disk, and everything is compared
# and checked.  One file system is on a static volume, and fsx is on the device itself of both
# kinds.
#	$1 target or native   $2 operations of fsx on each file system   $3 its seed
. "$(dirname "$0")/guest-lib.sh"
kind=$1
operations=$2
seed=$3
sectors=$((320 * 2048))
mkdir -p /tmp/mnt

verified() { # NAME, and more for fio
	fio --name="$1" --directory=/tmp/mnt --size=8m --rw=randwrite --bsrange=512-64k --blockalign=512 --ioengine=libaio \
		--iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed="$seed" "${@:2}"
}
tree() { (cd /tmp/mnt && find . -type f -exec sha256sum {} + | sort -k 2); }

# old_disk FS DISK: as somebody has it who never heard of us.
old_disk() {
	make_fs "$1" "$2" && mount "$2" /tmp/mnt && cp -r "$root/core" /tmp/mnt/old && tree >/tmp/tree.old && umount /tmp/mnt
}

one_fs() { # FS DISK, and more for the volume
	local fs=$1 disk=$2 volume=$1
	step "$fs: a file system on the bare disk" old_disk "$fs" "$disk"
	step "add the disk as a volume" forebay volume add $pool "$volume" "$disk" "${@:3}"
	step "attach it in place" dev_attach "$volume" "$disk" "$volume" low_watermark 2 high_watermark 5
	step "mount" mount "$device" /tmp/mnt
	tree >/tmp/tree.now
	step "its old files" cmp /tmp/tree.old /tmp/tree.now
	refused "detaching a busy device" "busy\|is open" dev_detach "$volume"
	step "fio, with verification, while it destages" verified f
	[ "$(dev_counter "$volume" origin_writes)" -gt 0 ] || fail "nothing was destaged"
	step "fsx, $operations operations, seed $seed" "$root/out/vm/fsx" /tmp/mnt/fsx "$operations" "$seed" 1048576
	cat /tmp/step.log
	step "fio, mixed, with fsync" fio --name=g --directory=/tmp/mnt --size=4m --rw=randrw --bs=4k --ioengine=psync --fsync=8 \
		--verify=crc32c --verify_fatal=1 --numjobs=2
	step "copy files" cp -r "$root/kernel" /tmp/mnt/new
	rm -r /tmp/mnt/old/pool
	trim "$device" /tmp/mnt
	sync
	tree >/tmp/tree.last
	step "unmount" umount /tmp/mnt
	step "check the file system" check_fs "$fs" "$device"
	dev_status "$volume"
	step "drain" dev_command "$volume" flush
	[ "$(dev_counter "$volume" pages)" = 0 ] || fail "$(dev_counter "$volume" pages) pages are left after the drain"
	step "detach" dev_detach "$volume"
	step "check the file system on the disk alone" check_fs "$fs" "$disk"
	step "mount the disk alone" mount "$disk" /tmp/mnt
	tree >/tmp/tree.now
	step "all its files" cmp /tmp/tree.last /tmp/tree.now
	step "fio's file, on the disk alone" verified f --verify_only=1
	step "unmount" umount /tmp/mnt
}

# Runs fsx on the device itself, and then compares it with the disk.
bare_device() { # DISK, and more for the volume
	local disk=$1
	step "add a volume" forebay volume add $pool bare "$disk" "${@:2}"
	step "attach it" dev_attach bare "$disk" bare low_watermark 2 high_watermark 5
	step "fsx on the device, $operations operations" "$root/out/vm/fsx" --device "$device" "$operations" "$seed" 4194304
	cat /tmp/step.log
	head -c 4194304 "$device" | sha256sum >/tmp/sum.device
	step "drain" dev_command bare flush
	step "detach" dev_detach bare
	head -c 4194304 "$disk" | sha256sum >/tmp/sum.disk
	step "the disk alone has the same" cmp /tmp/sum.device /tmp/sum.disk
	step "remove the volume" forebay volume remove $pool bare
}

load_module
step "make the pool" forebay create $pool --static 24M
for i in 0 1 2; do
	dmsetup create --noudevsync --noudevrules --uuid "FBY-disk$i" "disk$i" --table "0 $sectors linear /dev/ram0 $((i * sectors))" ||
		fail "a disk"
done
dmsetup mknodes
for i in 0 1 2; do test -b /dev/mapper/disk$i || fail "no disk"; done
one_fs ext4 /dev/mapper/disk0
one_fs xfs /dev/mapper/disk1 --static 20M
bare_device /dev/mapper/disk2
bare_device /dev/mapper/disk2 --static 2M --flush-every 10ms
step "unload" /run/busybox rmmod forebay
step "forebay check" forebay check $pool
clean_dmesg
echo "files-$kind: $passed passed"
