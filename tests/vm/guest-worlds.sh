# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a pool is the same for the module and for the command on the host.
# Method: part-worlds.sh takes the pool to and fro; this is the guest's half.  Disks: vda is
# the origin of volume raw, vdb that of volume fs; vdc is the log of ackload, and vdd an
# image that the host wrote to raw over NBD.
#	$1 target or native   $2 crashed: then load until killed; closed: leave it undrained
. "$(dirname "$0")/guest-lib.sh"
kind=$1
mkdir -p /tmp/mnt
here_and_there() { dd if="$raw" bs=1M count=16 iflag=direct of=/tmp/back status=none && cmp -n 16777216 /tmp/back /dev/vdd; }

load_module
# The host knew the disks by other paths.
step "attach" dev_attach raw /dev/vda raw accept_changed_origin
raw=$device
step "attach" dev_attach fs /dev/vdb fs accept_changed_origin
files=$device
[ "$(dev_counter raw pages)" -gt 0 ] || fail "nothing of the host is in the pool"
step "what the host wrote" here_and_there
if [ "$2" = crashed ]; then
	step "make a file system" make_fs ext4 "$files"
	step "mount" mount "$files" /tmp/mnt
	step "files" cp -r "$root/core" /tmp/mnt/synced
	sync -f /tmp/mnt
	clean_dmesg
	step "zeroes, as ackload begins" dd if=/dev/zero of="$raw" bs=1M count=16 oflag=direct
	echo "worlds: $passed passed"
	(while cp -r "$root/core" /tmp/mnt/torn; do rm -r /tmp/mnt/torn; done) &
	exec "$root/out/vm/ackload" load "$raw" /dev/vdc 600 1
fi
step "check the file system" check_fs ext4 "$files"
step "mount" mount "$files" /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/synced
step "more" cp -r "$root/kernel" /tmp/mnt/later
step "unmount" umount /tmp/mnt
step "write over a part" dd if=/dev/vdd of="$raw" bs=64k skip=1 seek=128 count=8 oflag=direct
[ "$(dev_counter fs pages)" -gt 0 ] || fail "nothing is left in the pool for the host"
step "detach, not drained" dev_detach raw
step "detach, not drained" dev_detach fs
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "worlds: $passed passed"
