#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: the installed files mount a tree by a line of fstab and by a unit.
# Method: `make install` into a directory.  Its mount.forebay is put where mount(8) looks, in a
# mount namespace of its own, with lines of an fstab of its own. systemd-analyze checks the unit.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need unshare python3 make

# The debian package installs the same way, and tests/packages/run looks for these there.
to=$work/root
make -s -C "$root" install DESTDIR="$to" PREFIX=/usr >"$work/install.log" 2>&1 || { tail "$work/install.log" >&2; fail "make install"; }
for file in usr/bin/forebay usr/sbin/mount.forebay usr/sbin/umount.forebay usr/sbin/mount.fuse.forebay usr/sbin/umount.fuse.forebay usr/lib/systemd/system/forebay-mount@.service \
	usr/share/man/man1/forebay-mount.1 usr/share/man/man1/forebay-unmark.1; do
	[ -e "$to/$file" ] || fail "$file is not installed"
	case $file in
	usr/lib/* | *.1) ;;
	*) [ -x "$to/$file" ] || fail "$file cannot be run" ;;
	esac
done
grep -q "PREFIX=/usr DESTDIR" "$root/packaging/debian/rules" || fail "the package is installed in another way"

# The unit is the installed one, with the command at its present place.  A unit with a
# mistake is found.
verify_unit() { MANPATH=$to/usr/share/man systemd-analyze verify "$1" >"$work/verify.log" 2>&1; }
if command -v systemd-analyze >/dev/null; then
	unit=$work/forebay-mount@srv-data.service
	sed "s,/usr/bin/forebay,$to/usr/bin/forebay," "$to/usr/lib/systemd/system/forebay-mount@.service" >"$unit"
	verify_unit "$unit" || { cat "$work/verify.log" >&2; fail "systemd-analyze verify"; }
	for mistake in 's/^Type=notify/Type=notifies/' 's,^ExecStart=,&/nowhere,' 's/forebay-mount(1)/forebay-mounts(1)/'; do
		mkdir -p "$work/wrong"
		sed "$mistake" "$unit" >"$work/wrong/${unit##*/}"
		verify_unit "$work/wrong/${unit##*/}" && [ ! -s "$work/verify.log" ] && fail "a unit with a mistake is not found: $mistake"
	done
	# An error that only a person can correct is not retried: for example, the tree
	# belongs to another log.
	for code in 2 5 6 9 10 11 12; do
		grep -q "^RestartPreventExitStatus=.*\b$code\b" "$unit" || fail "the unit tries again after exit code $code"
	done
else
	skip_part "the unit" "systemd-analyze is not installed"
fi

# mount(8) finds the helper in this namespace.
make_disk ext4 64M
mkdir "$work/disk/tree" "$work/disk/other" "$work/at"
"$FOREBAY" create "$pool" --size 64M >/dev/null
cat >"$work/fstab" <<F
$pool $work/disk/tree forebay nofail,sync_interval=2s,x-systemd.automount 0 0
$pool $work/at forebay noauto,tree=$work/disk/other,log=other 0 0
/dev/shm/nowhere $work/wrong forebay noauto 0 0
$pool $work/odd forebay noauto,odd=1 0 0
$pool $work/flags forebay noauto,tree=$work/disk/flags,log=flags,user,noatime,sync 0 0
F
mkdir "$work/odd" "$work/upper" "$work/under" "$work/flags" "$work/disk/flags"
export root work to pool FOREBAY
cat >"$work/inside.sh" <<'S'
set -eu
. "$root/tests/loops.sh"
fail() { echo "fstab: FAILED: $*" >&2; exit 1; }
mount -t tmpfs none "$work/under"
mkdir "$work/under/upper" "$work/under/work"
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$work/under/upper,workdir=$work/under/work" /usr/sbin || exit 77
cp -P "$to"/usr/sbin/*mount*forebay /usr/sbin/
[ /sbin/mount.forebay -ef /usr/sbin/mount.forebay ] || exit 77
code() { # WANTED COMMAND...
	local wanted=$1 got=0
	shift
	"$@" >"$work/code.log" 2>&1 || got=$?
	[ $got = "$wanted" ] || { cat "$work/code.log" >&2; fail "line ${BASH_LINENO[0]} of inside.sh: exit code $got, not $wanted: $*"; }
}
is_mounted() { grep -q " $1 fuse.forebay " /proc/mounts; }
has() { [[ ,$(findmnt -fnro VFS-OPTIONS --mountpoint "$1"), == *,"$2",* ]]; }
# Checks that nothing holds the tree's disk when umount(8) returns.
free() {
	umount "$work/disk" || fail "the disk is busy after umount $1"
	mount_image "$work/image" "$work/disk"
}
sync_to() { python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); os.write(f, b"by fstab\n"); os.fsync(f)' "$1"; }
gone() { for _ in $(seq 600); do is_mounted "$1" || return 0; sleep 0.05; done; fail "$1 is still mounted"; }

code 0 mount -T "$work/fstab" -a -t forebay
is_mounted "$work/disk/tree" || fail "mount -a did not mount it"
is_mounted "$work/at" && fail "noauto was mounted"
code 0 mount -T "$work/fstab" "$work/at"
is_mounted "$work/at" || fail "a tree beside its mountpoint is not mounted"
sync_to "$work/disk/tree/a"
sync_to "$work/at/b"
[ "$(cat "$work/disk/other/b")" = "by fstab" ] || fail "tree= was not heeded"
"$FOREBAY" status "$pool" --json | grep -q '"log": "other"' || fail "log= was not heeded"
code 32 mount -T "$work/fstab" "$work/wrong"
code 1 mount -T "$work/fstab" "$work/odd"
grep -q "option odd=1 is not known" "$work/code.log" || fail "the unknown option is not named"
# The options are those of any file system.
code 0 mount -T "$work/fstab" "$work/flags"
for flag in nosuid nodev noexec noatime; do has "$work/flags" $flag || fail "$flag was not heeded"; done
"$FOREBAY" status "$pool" --json | grep -q '"log": "flags"' || fail "log= was not heeded"
echo x >"$work/flags/f"
code 0 mount -o remount,ro "$work/flags"
! (echo y >"$work/flags/f") 2>/dev/null || fail "remount,ro was not heeded"
for flag in nosuid nodev noexec noatime; do has "$work/flags" $flag || fail "$flag is gone after a remount"; done
code 0 mount -o remount,rw "$work/flags"
echo z >"$work/flags/f"
code 0 mount -o remount,exec "$work/flags"
has "$work/flags" noexec || fail "a remount took noexec away"
# A busy mount stays, and the message names its users and the way out.
exec 5>"$work/flags/open"
code 32 umount "$work/flags"
grep -q "is in use" "$work/code.log" || fail "a busy mount is not named"
is_mounted "$work/flags" || fail "a busy mount is gone"
exec 5>&-
# umount(8) returns when the tree has everything, and its disk can be unmounted.  The helper
# knows that only from its own table, which lists the mount for as long as it exists.
for at in flags at disk/tree; do
	grep -q " TARGET=$work/$at " /run/mount/utab || fail "umount(8) does not know of $at"
done
code 0 umount "$work/flags"
! grep -q " TARGET=$work/flags " /run/mount/utab || fail "umount(8) still knows of a mount that is gone"
code 0 umount "$work/at"
gone "$work/at"
code 0 umount "$work/disk/tree"
! is_mounted "$work/disk/tree" || fail "it is mounted after umount"
[ "$(find "$work/disk" -name '.forebay*')" = "" ] || fail "a mark is left after umount"
free "$work/disk/tree"
# The notes of umount(8) about the tree's own mount stay, whatever happens to the mount over
# it.
mount -i -f --no-canonicalize -t ext4 -o uhelper=ours,x-ours -- /dev/ours "$work/disk/tree"
code 0 "$FOREBAY" mount "$pool" "$work/disk/tree"
exec 5>"$work/disk/tree/open"
code 4 "$FOREBAY" umount "$work/disk/tree"
exec 5>&-
code 0 "$FOREBAY" umount "$work/disk/tree"
grep -q "^SRC=/dev/ours TARGET=$work/disk/tree " /run/mount/utab || fail "a line of the tree's own mount is gone"
flock /run/mount/utab.lock sed -i "\\,^SRC=/dev/ours TARGET=$work/,d" /run/mount/utab
# The same holds for a user who mounts the tree again at once.
for i in 1 2 3; do
	code 0 mount -T "$work/fstab" "$work/disk/tree"
	sync_to "$work/disk/tree/again$i"
	code 0 umount "$work/disk/tree"
done
free "the last"
# Here other tools unmount it: they do not call the helper, and the next mount waits for the
# end.
for i in 1 2 3; do
	code 0 mount -T "$work/fstab" "$work/disk/tree"
	sync_to "$work/disk/tree/plain$i"
	code 0 umount -i "$work/disk/tree"
done
code 0 mount -T "$work/fstab" "$work/disk/tree"
code 0 umount "$work/disk/tree"
# If a mount ends with an error, it is gone, forebay's message is shown, and the tree's own mount
# stays.
mount --bind "$work/disk/tree" "$work/disk/tree"
code 0 mount -T "$work/fstab" "$work/disk/tree"
cat >"$work/failed" <<F
#!/bin/sh
"$FOREBAY" umount "$work/disk/tree" >/dev/null || exit
echo "error: its pool has failed" >&2
exit 7
F
chmod +x "$work/failed"
FOREBAY=$work/failed code 32 umount "$work/disk/tree"
[ "$(cat "$work/code.log")" = "error: its pool has failed" ] || { cat "$work/code.log" >&2; fail "what forebay says of a mount that has failed is not shown"; }
! is_mounted "$work/disk/tree" || fail "a mount that has failed is still there"
findmnt -n --mountpoint "$work/disk/tree" >"$work/code.log" || fail "the tree's own mount was unmounted"
umount "$work/disk/tree"
# Nobody waits for a server that was killed, and the message names it.
code 0 mount -T "$work/fstab" "$work/disk/tree"
pid=$("$FOREBAY" status "$pool" --json | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)
kill -KILL "$pid"
for _ in $(seq 1200); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
code 0 umount "$work/disk/tree"
grep -q "has died" "$work/code.log" || { cat "$work/code.log" >&2; fail "a server that has died is not named"; }
! is_mounted "$work/disk/tree" || fail "the mount of a dead server is still there"
code 0 mount -T "$work/fstab" "$work/disk/tree"
code 0 umount "$work/disk/tree"
[ "$(cat "$work/disk/tree/a" "$work/disk/other/b")" = "by fstab
by fstab" ] || fail "the trees do not have what was synced"
"$FOREBAY" mount "$pool" "$work/disk/tree" >/dev/null 2>&1 && "$FOREBAY" umount "$work/disk/tree" >/dev/null
S
got=0
"$root/tests/apart" "$work" bash "$work/inside.sh" || got=$?
[ $got != 77 ] || skip "no overlay over /usr/sbin can be had here"
[ $got = 0 ] || fail "in the namespace"
umount_disk
say "installed, mounted by lines of an fstab; the unit verified"
