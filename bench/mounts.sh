#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# mounts.sh - what `forebay mount` makes slower, and dpkg: beside the plain directory, and beside
# the plain directory with libeatmydata, which makes every sync nothing.  Programs that wait for
# their syncs: apps.sh.
#
#	mounts.sh [ROUNDS [CASE...]]	(5; all)
#
# The directories lie on one ext4 in a file of $TMPDIR, the pool in memory.  The sides take turns
# in each round; printed are the medians, and of each round's ratio to the plain directory the
# median.  More than 1: faster than the plain directory.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

rounds=${1:-5}
shift || true
cases=(tar status dpkg cold warm again write rm)
[ $# -eq 0 ] || cases=("$@")
sides=(plain eatmydata mount)
preload=${EATMYDATA:-/usr/lib/$(uname -m)-linux-gnu/libeatmydata.so}
[ -e "$preload" ] || missing+=(libeatmydata1)
[ "$(id -u)" = 0 ] || fail "only root can mount an ext4 on a file"
want git git
want dpkg-deb dpkg
want python3 python3
want mkfs.ext4 e2fsprogs
wanted

start_work
disk=$(mktemp -d "${TMPDIR:-/tmp}/forebay-mounts.XXXXXX")
chmod 711 "$disk"
at_end "rm -rf '$disk'"
truncate -s 4G "$disk/image"
mkfs.ext4 -qF "$disk/image"
mkdir "$disk/fs"
mount -o loop "$disk/image" "$disk/fs"
at_end "umount '$disk/fs' || umount -l '$disk/fs'"
mkdir "$disk/fs/"{plain,eatmydata,tree} "$disk/mount"
"$FOREBAY" create "$work/pool" --size 1G >/dev/null
"$FOREBAY" mount "$work/pool" "$disk/fs/tree" "$disk/mount" --allow-other --foreground >"$work/mount.log" 2>&1 &
at_end "'$FOREBAY' umount '$disk/mount' >/dev/null; wait $!"
until_true grep -q . "$work/mount.log"
until_true test "$(stat -f -c %T "$disk/mount")" = fuseblk
chmod 711 "$disk/fs" "$disk/fs/"* "$disk/mount"

declare -A at=([plain]=$disk/fs/plain [eatmydata]=$disk/fs/eatmydata [mount]=$disk/mount)
# below SIDE: where the tree's file system has it.
below() { echo "${at[$1]/#$disk\/mount/$disk/fs/tree}"; }
# on SIDE COMMAND...
on() {
	if [ "$1" = eatmydata ]; then LD_PRELOAD=$preload "${@:2}"; else "${@:2}"; fi
}

# The cases work on these files.
git -C "$root" archive --prefix=tree/ HEAD >"$work/tree.tar"
make_packages() {
	local i j dir=$work/package
	mkdir "$work/packages"
	for ((i = 0; i < 100; i++)); do
		rm -rf "$dir"
		mkdir -p "$dir/DEBIAN" "$dir/usr/share/p$i"
		printf 'Package: p%d\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: p\n' $i >"$dir/DEBIAN/control"
		for ((j = 0; j < 20; j++)); do head -c $((j * 500 + 100)) "$work/tree.tar" >"$dir/usr/share/p$i/$j"; done
		dpkg-deb -Znone --root-owner-group -b "$dir" "$work/packages/p$i.deb" >/dev/null
	done
}

# drop FILE...: out of the page caches.
drop() {
	python3 - "$@" <<'P'
import os, sys
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
P
}

# Each: prepare_CASE SIDE, which is not timed, and run_CASE SIDE.
prepare_tar() { rm -rf "${at[$1]}/tree"; }
run_tar() { on "$1" tar -xf "$work/tree.tar" -C "${at[$1]}"; }
prepare_status() {
	local tree=${at[$1]}/tree
	[ -d "$tree/.git" ] && return
	[ -d "$tree" ] || run_tar "$1"
	git -c init.defaultBranch=main init -q "$tree"
	git -C "$tree" add -A
	git -C "$tree" -c user.name=n -c user.email=n@example.org commit -qm all
	git -C "$tree" status >/dev/null
}
run_status() { on "$1" git -C "${at[$1]}/tree" status >/dev/null; }
prepare_dpkg() {
	local dir=${at[$1]}/dpkg
	[ -d "$work/packages" ] || make_packages
	rm -rf "$dir"
	mkdir -p "$dir/var/lib/dpkg/"{info,updates}
	: >"$dir/var/lib/dpkg/status"
}
run_dpkg() {
	local dir=${at[$1]}/dpkg
	on "$1" dpkg --log=/dev/null --instdir="$dir" --admindir="$dir/var/lib/dpkg" --force-all --unpack "$work"/packages/*.deb >"$work/dpkg.log" 2>&1
}
big() { [ -e "${at[$1]}/big" ] || head -c 300M /dev/urandom >"${at[$1]}/big"; }
# In no page cache, in the tree's alone, in the mount's as well.
prepare_cold() { big "$1" && drop "${at[$1]}/big" "$(below "$1")/big"; }
prepare_warm() {
	big "$1" && drop "${at[$1]}/big" && cat "$(below "$1")/big" >/dev/null
}
prepare_again() { big "$1" && cat "${at[$1]}/big" >/dev/null; }
run_read() { on "$1" dd if="${at[$1]}/big" of=/dev/null bs=128k status=none; }
run_cold() { run_read "$1"; }
run_warm() { run_read "$1"; }
run_again() { run_read "$1"; }
prepare_write() { rm -f "${at[$1]}/written"; }
run_write() { on "$1" dd if=/dev/zero of="${at[$1]}/written" bs=128k count=1600 status=none; }
prepare_rm() { [ -d "${at[$1]}/tree" ] || run_tar "$1"; }
run_rm() { on "$1" rm -rf "${at[$1]}/tree"; }

say "load at the start: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) CPUs, Linux $(uname -r)"
for ((round = 0; round < rounds; round++)); do
	for case in "${cases[@]}"; do
		for side in "${sides[@]}"; do
			"prepare_$case" "$side"
			began=$EPOCHREALTIME
			"run_$case" "$side" || fail "$case on $side"
			echo "$case $side $((${EPOCHREALTIME/./} - ${began/./}))"
		done
	done
done >"$work/times"
python3 - "$work/times" "${cases[@]}" <<'P'
import statistics, sys
times = {}
for line in open(sys.argv[1]):
    case, side, us = line.split()
    times.setdefault((case, side), []).append(int(us))
print(f"{'case':12} {'plain ms':>10} {'eatmydata':>10} {'mount':>10}")
for case in sys.argv[2:]:
    plain = times[case, "plain"]
    ratio = {s: statistics.median(p / t for p, t in zip(plain, times[case, s])) for s in ("eatmydata", "mount")}
    print(f"{case:12} {statistics.median(plain) / 1000:10.1f} {ratio['eatmydata']:10.2f} {ratio['mount']:10.2f}")
P
