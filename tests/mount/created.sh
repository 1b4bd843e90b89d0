#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: what a caller makes has the mode and the ACLs that its directory and its umask give it.
# This holds also after a replay, whatever umask the server and the replay have.  What a replay
# salvages is its caller's alone, and goes to no file that was there.
# Method: callers with several umasks make files below a directory with a default ACL and below one
# without; the same on the plain directory.  The mount's tree is put back to its state before that,
# and replayed.  The umask of the server and of the replay is 077.  Then a synced file is removed
# from the tree of a killed mount.  The names at which a replay would salvage it are a link to a
# file of root, a file that others may read, and a dangling link.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 fsfreeze

tree=$work/disk/tree
# look DIRECTORY make|show: makes everything there, and prints its attributes.
look() {
	python3 -B - "$root/tests/mount" "$@" <<'P'
import os, stat, sys
sys.path.insert(0, sys.argv[1])
import rights
top, makes = sys.argv[2], sys.argv[3] == "make"
named = rights.acl(("u", 7, None), ("U", 5, 7777), ("g", 5, None), ("m", 7, None), ("o", 4, None))
def synced(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
if makes:
    os.umask(0)
    for kind in ("acl", "plain"):
        for mask in (0, 0o022, 0o027):
            at = f"{top}/{kind}-{mask:o}"
            os.umask(0)
            os.mkdir(at, 0o777)
            if kind == "acl":
                os.setxattr(at, rights.DEFAULT, named)
            os.umask(mask)
            for above in (at, f"{at}/d", f"{at}/d/d"):
                for mode in (0o666, 0o600, 0o750):
                    os.close(os.open(f"{above}/f{mode:o}", os.O_CREAT | os.O_WRONLY, mode))
                    synced(f"{above}/f{mode:o}")
                os.mknod(f"{above}/p", stat.S_IFIFO | 0o666)
                os.mkdir(f"{above}/d", 0o777)
                synced(f"{above}/d")
for above, dirs, files in sorted(os.walk(top)):
    for name in sorted(dirs + files):
        path = f"{above}/{name}"
        if name.startswith(".forebay") or "/.forebay" in above:
            continue
        acls = [rights.acl_of(path, which) for which in (rights.ACCESS, rights.DEFAULT)]
        print(os.path.relpath(path, top), oct(os.lstat(path).st_mode), *acls)
P
}

make_disk ext4 64M
mkdir "$tree" "$work/disk/plain"
look "$work/disk/plain" make >"$work/plain"
grep -q "acl-0/d/d/d .* 0200.* 0200" "$work/plain" || fail "no ACL is inherited on the plain directory: this test shows nothing"
umask 077
start_mount "$tree" --sync-interval 600s
copy_frozen "$work/image" "$work/before"
look "$tree" make >"$work/mounted"
diff -u "$work/plain" "$work/mounted" >&2 || fail "with a umask of 077 the server gives other modes or ACLs than the directory"
kill_mount
umount_disk
cp "$work/before" "$work/image"
mount_image "$work/image" "$work/disk"
[ -z "$(look "$tree" show)" ] || fail "the older tree is not empty: this test shows nothing of the replay"
"$FOREBAY" replay "$pool" "$tree" >"$work/replayed.log" 2>&1 || fail "replay: $(cat "$work/replayed.log")"
look "$tree" show >"$work/replayed"
diff -u "$work/plain" "$work/replayed" >&2 || fail "a replay with a umask of 077 gives other modes or ACLs"
umask 022
say "$(wc -l <"$work/plain") files and directories have their modes and ACLs, by a server and by a replay with a umask of 077"
umount_disk

# --- what is salvaged ------------------------------------------------------------

make_disk ext4 64M
rm -f "$pool"
mkdir "$tree"
(umask 077 && echo old >"$tree/secret")
start_mount "$tree" --sync-interval 600s
(umask 077 && echo private >"$tree/secret")
sync "$tree/secret"
kill_mount
rm "$tree/secret"
cp "$pool" "$work/pool.kept"
umount_disk
cp --sparse=always "$work/image" "$work/before"
# salvage DIRECTORY: salvages the same pool and tree each time, as a process without a
# umask.
salvage() {
	umount_disk
	cp "$work/before" "$work/image"
	mount_image "$work/image" "$work/disk"
	cp "$work/pool.kept" "$pool"
	(umask 0 && "$FOREBAY" replay "$pool" "$tree" --accept=moved --salvage "$1" >"$work/salvaged.log" 2>&1) || fail "salvage: $(cat "$work/salvaged.log")"
	saved=$(sed -n 's/^.*salvaged: .*: \(\/.*\)$/\1/p' "$work/salvaged.log")
	[ -f "$saved" ] && [ ! -L "$saved" ] || fail "nothing is salvaged: $(cat "$work/salvaged.log")"
	[ "$(cat "$saved")" = private ] || fail "$saved has $(cat "$saved")"
	[ "$(stat -c %a "$saved")" = 600 ] || fail "$saved has mode $(stat -c %a "$saved")"
}
salvage "$work/first"
name=$(basename "$saved")
echo "a file of root" >"$work/victim"
for planted in link dangling file; do
	mkdir "$work/$planted"
	case $planted in
	link) ln -s "$work/victim" "$work/$planted/$name" ;;
	dangling) ln -s "$work/nowhere" "$work/$planted/$name" ;;
	file) echo of another >"$work/$planted/$name" && chmod 644 "$work/$planted/$name" ;;
	esac
	salvage "$work/$planted"
	[ "$(cat "$work/victim")" = "a file of root" ] || fail "$planted: a file is written to through a link: $(cat "$work/victim")"
	[ ! -e "$work/nowhere" ] || fail "$planted: a file is made through a link"
	[ $planted != file ] || [ "$(cat "$work/file/$name")" = "of another" ] || fail "$planted: a file that was there is written over"
done
umount_disk
say "what is salvaged has mode 600 and a file of its own, also where a link has its name"
