#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: whatever waits for the tree's disk, and however many do, keeps nobody who asks for what is
# there without it: names, attributes, bytes in the page cache, lists, `forebay status`, and the
# unmount of another tree of the same server.
# Method: waits.py has more than 200 operations wait, of each kind that may: those that change the
# tree on a file system that is frozen; those that read, and the syncs, on a disk that is stopped.
# Meanwhile each kind that need not wait is to answer within a second.  Then the disk goes on, and
# all that waited end without an error.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3 fsfreeze mkfs.ext4

# shellcheck disable=SC2034 # of volatile.sh
seed=1 bytes=$((256 << 20)) pool_size=512M
truncate -s $bytes "$work/platter"
start_disk ext4
tree=$work/disk/tree other=$work/other
mkdir "$tree" "$other"
python3 "$root/tests/mount/waits.py" prepare "$tree"
# So that nothing is in the page cache.
umount "$work/disk"
mount "$loop" "$work/disk"
at_end 'fsfreeze -u "$work/disk" 2>/dev/null; [ -z "$disk" ] || kill -CONT "$disk"'

for how in freeze stop; do
	start_mount "$tree" --sync-interval 600s
	"$FOREBAY" mount "$pool" "$other" --log other >/dev/null
	at_end 'umount -l "$other" 2>/dev/null || true'
	case $how in
	freeze) stall="fsfreeze -f $work/disk" go_on="fsfreeze -u $work/disk" ;;
	stop) stall="kill -STOP $disk" go_on="kill -CONT $disk" ;;
	esac
	python3 "$root/tests/mount/waits.py" "$how" "$tree" "$other" "$stall" "$go_on" "$FOREBAY" "$pool" ||
		fail "$how: somebody was kept by those who wait"
	stop_mount
done
