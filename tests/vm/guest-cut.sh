# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: after a power cut every acknowledged write is there and file systems are
# clean.  Method: verify what the boot before left, then load until killed.
# Disks: vda behind volume raw, vdb behind volume fs, vdc the log of
# acknowledgements, which is outside the guest.
#	$1 round, from 1   $2 seconds of load; 0: verify, drain, and check the origins
. "$(dirname "$0")/guest-lib.sh"
round=$1
seconds=$2
ackload=$root/out/vm/ackload
mkdir -p /tmp/mnt

if [ "$round" = 1 ]; then
	step "make the pool" forebay create $pool
	step "add a volume" forebay volume add $pool raw /dev/vda
	step "add a volume" forebay volume add $pool fs /dev/vdb
elif [ $((round % 2)) = 0 ]; then
	step "forebay check" forebay check $pool # recovers it first, every second time
fi
load_module
step "attach" attach raw /dev/vda raw max_age 300
step "attach" attach fs /dev/vdb fs
dmesg | grep forebay:
if [ "$round" = 1 ]; then
	step "mkfs.ext4" mkfs.ext4 -q -F /dev/mapper/fs
else
	step "verify what was acknowledged" "$ackload" verify /dev/mapper/raw /dev/vdc
	cat /tmp/step.log
	step "mount, which replays the journal" mount /dev/mapper/fs /tmp/mnt
	step "unmount" umount /tmp/mnt
	step "fsck" e2fsck -fn /dev/mapper/fs
fi
if [ "$seconds" = 0 ]; then
	step "drain" dmsetup message raw 0 flush
	step "drain" dmsetup message fs 0 flush
	step "remove" dmsetup remove --noudevsync raw fs
	step "verify the origin alone" "$ackload" verify /dev/vda /dev/vdc
	step "fsck of the origin alone" e2fsck -fn /dev/vdb
	step "unload" /run/busybox rmmod forebay
	step "forebay check" forebay check $pool
	clean_dmesg
	echo "cut: $passed passed"
	exit 0
fi
clean_dmesg
mount /dev/mapper/fs /tmp/mnt
(
	while :; do
		rm -rf /tmp/mnt/a
		cp -r "$root/core" /tmp/mnt/a
		sync
	done
) &
"$ackload" load /dev/mapper/raw /dev/vdc "$seconds" "$round"
