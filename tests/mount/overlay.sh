#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount can be the upper layer of an overlay, as storage of containers needs it.  A killed
# server loses none of it: each removal and rename of the lower layer stays covered.
# Method: the same changes are made through an overlay on a mount and on a plain directory.  What
# the overlay shows, and the whiteouts below it, are the same, also after a kill at once.
# Usage: overlay.sh [KILLS]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3
kills=${1:-3}

make_disk ext4 64M
mkdir "$work/disk/tree" "$work/plain" "$work/lower" "$work/at-mount" "$work/at-plain"
mount -t tmpfs none "$work/plain"
at_end 'umount -l "$work/at-mount" "$work/at-plain" "$work/plain" 2>/dev/null || true'
for i in $(seq 40); do
	mkdir "$work/lower/d$i"
	echo "lower $i" >"$work/lower/f$i"
	echo "inner $i" >"$work/lower/d$i/inner"
done

over() { # AT DIRECTORY
	mkdir -p "$2/upper" "$2/work"
	mount -t overlay overlay -o "lowerdir=$work/lower,upperdir=$2/upper,workdir=$2/work" "$1"
}
change() { # AT NUMBERS...
	python3 - "$@" <<'P'
import os, sys
at = sys.argv[1]
for i in map(int, sys.argv[2:]):
    f, d = f"{at}/f{i}", f"{at}/d{i}"
    if i % 5 == 0:  # gone
        os.unlink(f)
        os.unlink(f"{d}/inner")
        os.rmdir(d)
    elif i % 5 == 1:  # moved, within the directory and into another
        os.rename(f, f"{at}/moved{i}")
        os.rename(f"{d}/inner", f"{at}/inner{i}")
    elif i % 5 == 2:  # moved over another
        os.rename(f, f"{d}/inner")
    elif i % 5 == 3:  # made anew where something was
        os.unlink(f)
        os.mkdir(f)
        open(f"{f}/new", "w").write(f"new {i}\n")
        os.unlink(f"{d}/inner")
        os.rmdir(d)
        os.mkdir(d)
    else:  # changed
        open(f, "a").write("and more\n")
        os.chmod(d, 0o711)
        os.setxattr(f, "user.x", b"y")
    fd = os.open(at, os.O_RDONLY)
    os.fsync(fd)
P
	# The bytes of copied files are durable by the overlay's own sync alone.
	find "$1" -type f -exec sync -d {} +
}
shown() { # AT
	(cd "$1" && find . -mindepth 1 -printf '%P %M %U:%G %n %l\n' | sort && find . -type f | sort | xargs tail -n +1 --)
}
covered() { # DIRECTORY: whiteouts and opaque directories
	python3 - "$1/upper" <<'P'
import os, stat, sys
for at, directories, files in sorted(os.walk(sys.argv[1])):
    names = [n for n in os.listxattr(at) if "opaque" in n]
    print("d", os.path.relpath(at, sys.argv[1]), names)
    for name in sorted(files):
        s = os.lstat(f"{at}/{name}")
        if stat.S_ISCHR(s.st_mode):
            print("c", os.path.relpath(f"{at}/{name}", sys.argv[1]), oct(s.st_mode), s.st_uid, s.st_gid, s.st_rdev)
P
}
same() { # WHEN
	shown "$work/at-plain" >"$work/plain.shown"
	shown "$work/at-mount" >"$work/mount.shown"
	diff -u "$work/plain.shown" "$work/mount.shown" >&2 || fail "$1: the overlays differ"
	covered "$work/plain" >"$work/plain.covered"
	covered "$work/disk/tree" >"$work/mount.covered"
	diff -u "$work/plain.covered" "$work/mount.covered" >&2 || fail "$1: the upper layers differ"
}

over "$work/at-plain" "$work/plain" || skip "no overlay can be had here"
start_mount "$work/disk/tree"
over "$work/at-mount" "$work/disk/tree" || fail "a mount cannot be an upper layer"
each=$((40 / (kills + 1)))
for ((round = 0; round <= kills; round++)); do
	numbers=$(seq $((1 + round * each)) $(((round + 1) * each)))
	# shellcheck disable=SC2086
	change "$work/at-plain" $numbers
	# shellcheck disable=SC2086
	change "$work/at-mount" $numbers
	same "round $round"
	[ "$round" != "$kills" ] || break
	kill_mount
	umount -l "$work/at-mount"
	start_mount "$work/disk/tree"
	over "$work/at-mount" "$work/disk/tree"
	same "after kill $((round + 1))"
done
grep -q '^c' "$work/mount.covered" || fail "there is no whiteout to compare"
umount "$work/at-mount"
stop_mount
over "$work/at-mount" "$work/disk/tree"
same "on the tree alone"
umount "$work/at-mount"
umount_disk
say "an overlay on a mount and on a directory: $((each * (kills + 1))) changes, $kills kills, $(grep -c '^c' "$work/mount.covered") whiteouts: the same"
