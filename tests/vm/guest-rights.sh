# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a mount makes the same checks for a caller as its file system.
# Method: tests/mount/rights.py on a directory and on a mount of one.  They are on new file systems
# with quotas of users, groups and projects, with fs.protected_* on, and by a root with all
# capabilities.
. "$(dirname "$0")/guest-lib.sh"
disk=/tmp/disk tree=/tmp/disk/tree
mkdir -p $disk
for what in hardlinks symlinks; do echo 1 >/proc/sys/fs/protected_$what; done
for what in regular fifos; do echo 2 >/proc/sys/fs/protected_$what; done

rights() { /usr/bin/python3 -B "$root/tests/mount/rights.py" "$@"; }
new_disk() {
	local loop
	umount $disk 2>/dev/null
	rm -f /tmp/image
	truncate -s 48M /tmp/image
	mkfs.ext4 -qF -O quota,project -E quotatype=usrquota:grpquota:prjquota /tmp/image
	tune2fs -r 8192 -g 3333 /tmp/image >/dev/null
	mount -o loop,usrquota,grpquota,prjquota /tmp/image $disk || return 1
	mkdir -p $tree/quota/project
	chmod 777 $tree/quota $tree/quota/project
	chattr -p 77 +P $tree/quota/project || return 1
	loop=$(findmnt -fnro SOURCE $disk)
	# In the test of reserved blocks no limit may apply before them.
	[ "$1" = reserve ] || rights --limits "$loop"
}
table() { # WHERE PARTS...
	rights $tree "${@:2}" >"/tmp/$1" || return 1
	! grep broken "/tmp/$1"
}
compare() { # PARTS...
	step "a file system" new_disk "$1"
	step "the table of a directory: $*" table plain "$@"
	step "a file system" new_disk "$1"
	step "make the pool" forebay create --force $pool
	step "mount" forebay mount $pool $tree
	step "the table of a mount: $*" table mount "$@"
	step "unmount" forebay umount $tree
	diff /tmp/plain /tmp/mount >/tmp/diff || {
		grep "^[<>]" /tmp/diff | sed "s,^,rights: ,"
		fail "the mount differs: $*"
	}
	cells=$((cells + $(wc -l </tmp/plain)))
	grep "^quota" /tmp/plain >>/tmp/quota-lines
}
cells=0
compare names modes limits xattrs quota
compare reserve
# Checks that the table covers its subject.
for says in 'quota of the user, write / user: EDQUOT' 'quota of the user, write / root: ok' \
	'quota of the user, write / root less sys_resource: EDQUOT' 'quota of the user, write / user with sys_resource: ok'; do
	grep -qx "$says" /tmp/quota-lines || fail "the table does not say: $says"
done
clean_dmesg
echo "rights: $cells cells are the same"
