# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: after a power cut of the kernel every commit that programs on a mount were told of is
# there, with its bytes.  Method: the pool on /dev/pmem0; replay and verify what the boot before
# left (tests/mount/commits.py), then load until killed.
# Disks: vdb has the tree's file system, vdc the numbers of the commits, each there before the
# next commit begins.
#	$1 round, from 1   $2 seconds of load; 0: verify, unmount, verify the tree alone
#	$3 ext4 or xfs
. "$(dirname "$0")/guest-lib.sh"
round=$1
seconds=$2
fs=$3
kinds=(sqlite-delete sqlite-truncate sqlite-wal maildir)
tree=/tmp/disk/tree
mkdir -p /tmp/disk /tmp/acknowledged

commits() { # run|verify KIND
	/usr/bin/python3 -B "$root/tests/mount/commits.py" "$1" "$2" "$tree/$2" "/tmp/acknowledged/$2"
}
verify() { # WHERE
	local kind
	for kind in "${kinds[@]}"; do
		step "verify $kind $1" commits verify "$kind"
		cat /tmp/step.log
	done
}

if [ "$round" = 1 ]; then
	step "make the pool" forebay create $pool
	step "make a file system" make_fs "$fs" /dev/vdb
	step "make a file system" make_fs ext4 /dev/vdc
fi
step "mount the disk" mount /dev/vdb /tmp/disk
step "mount the numbers" mount -o sync /dev/vdc /tmp/acknowledged
mkdir -p "${kinds[@]/#/$tree/}"
step "mount the tree, which replays" forebay mount $pool $tree
cat /tmp/step.log
verify "on the mount"
if [ "$seconds" = 0 ]; then
	step "unmount the tree" forebay umount $tree
	verify "on the tree alone"
	step "unmount the disk" umount /tmp/disk
	step "check the file system" check_fs "$fs" /dev/vdb
	step "forebay check" forebay check $pool
	clean_dmesg
	echo "cut-$fs: $passed passed"
	exit 0
fi
clean_dmesg
for kind in "${kinds[@]}"; do commits run "$kind" & done
began=$(cat /tmp/acknowledged/* 2>/dev/null | wc -l)
until_true 300 eval '[ "$(cat /tmp/acknowledged/* | wc -l)" -gt $((began + 20)) ]' || fail "no load"
echo "load: started"
sleep "$seconds"
