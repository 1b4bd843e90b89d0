#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: the mount makes the same checks for a caller as the tree's file system.
# Method: tests/mount/rights.py has a table of operations, callers and rules.  Its lines of a
# directory, and of a mount of one on a new file system of the same kind, have to be the same.
# Quotas, and fs.protected_* where this kernel has them off, are in a guest:
# tests/vm/part-rights.sh.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 tune2fs

# Reserves blocks for root, group 3333 and processes with CAP_SYS_RESOURCE.
new_disk() { # MOUNT OPTIONS
	umount_disk
	make_disk ext4 32M
	umount "$work/disk"
	tune2fs -r 8192 -g 3333 "$work/image" >/dev/null
	mount_image "$work/image" "$work/disk" "$1"
	mkdir "$work/disk/tree"
	chmod 755 "$work/disk/tree"
}
table() { python3 -B "$(dirname "$0")/rights.py" "$work/disk/tree" "${@:2}" >"$work/$1" || fail "the table of $*"; }
chmod 755 "$work" # for its users

cells=0 differs=0
compare() { # OPTIONS OF THE FILE SYSTEM, PARTS
	local parts
	read -ra parts <<<"$2"
	new_disk "$1"
	table plain "${parts[@]}"
	new_disk "$1"
	rm -f "$pool"
	start_mount "$work/disk/tree"
	table mount "${parts[@]}"
	stop_mount
	grep -q broken "$work/plain" && fail "of the table: $(grep broken "$work/plain")"
	diff -u "$work/plain" "$work/mount" >"$work/diff" || {
		grep '^[-+]' "$work/diff" >&2
		say "the mount differs: $2 on a file system with $1" >&2
		differs=1
	}
	cells=$((cells + $(wc -l <"$work/plain")))
}
compare rw "names modes limits xattrs flags"
compare nosuid,nodev,noexec flags
compare rw reserve
# ext4 knows no such name, so that the answer says who was asked: the file system, or the server.
new_disk rw
rm -f "$pool"
start_mount "$work/disk/tree"
touch "$work/disk/tree/of-root" "$work/disk/tree/of-65534"
chown 65534 "$work/disk/tree/of-65534"
for row in "of-root:Operation not permitted" "of-65534:Operation not supported"; do
	said=$(setpriv --reuid=65534 --regid=65534 --clear-groups python3 -c '
import os, sys
try:
    os.setxattr(sys.argv[1], "system.nfs4_acl", b"x")
except OSError as e:
    print(e.strerror)' "$work/disk/tree/${row%:*}")
	[ "$said" = "${row#*:}" ] || fail "an attribute that the file system alone knows, ${row%:*}: $said"
done
stop_mount
umount_disk
[ $differs = 0 ] || fail "the mount is not the directory to its callers"
say "$cells cells of the table are the same"
