# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: after a power cut every acknowledged write is there and file systems are clean.
# Method: verify what the boot before left, then load until killed.  Disks: vda is the
# origin of volume raw, vdb that of volume fs; vdc is the log of acknowledgements, which is
# outside the guest.  The two volumes use the two kinds of device, which they exchange in
# each round.
#	$1 round, from 1   $2 seconds of load; 0: verify, drain, and check the origins
#	$3 ext4 or xfs
. "$(dirname "$0")/guest-lib.sh"
round=$1
seconds=$2
fs=$3
ackload=$root/out/vm/ackload
mkdir -p /tmp/mnt

# The log counts the synced copies of a tree, at 1 MiB.
synced() { dd if=/dev/vdc bs=4096 skip=256 count=1 iflag=direct status=none | tr -d '\0'; }
log_synced() { echo "$1" | dd of=/dev/vdc bs=4096 seek=256 count=1 conv=sync,notrunc oflag=direct status=none; }
check_synced() {
	local n
	n=$(synced)
	[ -z "$n" ] || diff -r "$root/core" "/tmp/mnt/copy.$n"
}

if [ "$round" = 1 ]; then
	# One volume is static: a share in which blocks meet, or one for a file system.
	raw_share=() fs_share=()
	case $fs in ext4) raw_share=(--static 8M) ;; *) fs_share=(--static 24M --flush-every 50ms) ;; esac
	step "make the pool" forebay create $pool --static 24M
	step "add a volume" forebay volume add $pool raw /dev/vda --origin-by-name "${raw_share[@]}"
	step "add a volume" forebay volume add $pool fs /dev/vdb --origin-by-name "${fs_share[@]}"
elif [ $((round % 2)) = 0 ]; then
	step "forebay check" forebay check $pool # recovers it first, every second time
fi
load_module
kinds=(target native target)
raw_kind=${kinds[round % 2]}
fs_kind=${kinds[round % 2 + 1]}
kind=$raw_kind step "attach" dev_attach raw /dev/vda raw max_age 300
raw=$device
kind=$fs_kind step "attach" dev_attach fs /dev/vdb fs
files=$device
dmesg | grep forebay:
if [ "$round" = 1 ]; then
	step "make a file system" make_fs "$fs" "$files"
else
	step "verify what was acknowledged" "$ackload" verify "$raw" /dev/vdc
	cat /tmp/step.log
	step "mount, which replays the journal" mount "$files" /tmp/mnt
	step "the files that were synced" check_synced
	step "unmount" umount /tmp/mnt
	step "check the file system" check_fs "$fs" "$files"
fi
if [ "$seconds" = 0 ]; then
	kind=$raw_kind step "drain" dev_command raw flush
	kind=$fs_kind step "drain" dev_command fs flush
	kind=$raw_kind step "detach" dev_detach raw
	kind=$fs_kind step "detach" dev_detach fs
	step "verify the origin alone" "$ackload" verify /dev/vda /dev/vdc
	step "check the file system of the origin alone" check_fs "$fs" /dev/vdb
	step "unload" /run/busybox rmmod forebay
	step "forebay check" forebay check $pool
	clean_dmesg
	echo "cut-$fs: $passed passed"
	exit 0
fi
clean_dmesg
mount "$files" /tmp/mnt || fail "mount"
(
	n=$(synced)
	n=$((${n:-0} + 1))
	rm -rf /tmp/mnt/copy.$n
	while cp -r "$root/core" /tmp/mnt/copy.$n && sync -f /tmp/mnt && log_synced $n; do
		n=$((n + 1))
		rm -rf /tmp/mnt/copy.$((n - 2)) /tmp/mnt/copy.$n
	done
) &
exec "$ackload" load "$raw" /dev/vdc "$seconds" "$round"
