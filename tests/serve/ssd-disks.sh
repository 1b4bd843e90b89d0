# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Makes two disks that forget what was not flushed (volatile_disk.c): a pool's, as a block device,
# and an origin's. It also makes a pool with a volume, of which each case gets a copy.  Set bytes,
# of the volume, and seed before; then make_template, fresh, start_disks.
need gcc losetup nsenter
[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root: the disk with a volatile cache is a FUSE file system"
loops_work || skip "no loop devices"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/volatile_disk" "$root/tests/serve/volatile_disk.c"

ssd='' origin='' loop=''
# start_drive NAME KEY=NUMBER...: $work/NAME/disk, on $shm/NAME.platter; its process is $!, started
# by $starter.
starter=''
start_drive() {
	local name=$1 tries
	shift
	seed=$((seed + 1))
	mkdir -p "$work/$name"
	: >"$work/$name.log"
	# shellcheck disable=SC2086 # words
	$starter "$work/volatile_disk" "$work/$name" "$shm/$name.platter" "$(stat -c %s "$shm/$name.platter")" seed=$seed "$@" >"$work/$name.log" 2>>"$work/$name.err" &
	for ((tries = 0; tries < 3000; tries++)); do
		[ -s "/proc/$!/root$work/$name/disk" ] && return
		kill -0 $! 2>/dev/null || skip "cannot mount: $(cat "$work/$name.err")"
		sleep 0.02
	done
	fail "the disk $name does not come up in 60 s: $(cat "$work/$name.err")"
}
# KEY=NUMBER... sets options of the pool's disk.  of_origin: those of the origin's.
of_origin=''
start_disks() {
	# shellcheck disable=SC2086 # words
	start_drive origin keep=$((seed % 2)) $of_origin
	origin=$!
	starter="$root/tests/apart $work" start_drive ssd unit=8 "$@"
	ssd=$!
	# A pool is refused on a disk that a program serves.  A path through another namespace leads to
	# that disk, and looks like one to a plain file.
	mkdir -p "$work/cover"
	truncate -s 4096 "$work/cover/disk"
	nsenter --mount="/proc/$ssd/ns/mnt" mount --bind "$work/ssd" "$work/cover"
	ln -sfn "/proc/$ssd/root$work/cover/disk" "$work/ssd/disk"
	loop=$(
		losetup() { nsenter --mount="/proc/$ssd/ns/mnt" losetup "$@"; }
		loop_device "$work/ssd/disk"
	) || { loop='' && skip "$(cat "$work/no-loop")"; }
	pool=$loop
}
cut_drive() { # NAME PROCESS; sets lost
	kill -USR1 "$2"
	await_cut "$2" "$work/$1.log"
	lost=$(sed -n 's/^cut:.* \([0-9]*\) sectors lost/\1/p' "$work/$1.log")
}
# Cuts the power of both disks and of the server.  Sets lost, for the pool's disk.
cut_all() {
	local of_pool
	kill -STOP "$server" # or memory would save what the disk has lost
	cut_drive ssd "$ssd"
	of_pool=$lost
	cut_drive origin "$origin"
	lost=$of_pool
	kill_server 2>/dev/null
}
# Ends both disks, which lose data that was not flushed.
stop_disks() {
	[ -n "$ssd$origin" ] || return 0
	[ -z "$loop" ] || losetup -d "$loop"
	# shellcheck disable=SC2086 # a word each
	kill -TERM $ssd $origin 2>/dev/null || true
	# shellcheck disable=SC2086
	wait $ssd $origin 2>/dev/null || true
	umount -l "$work/origin" 2>/dev/null || true
	ssd='' origin='' loop=''
}
at_end stop_disks

# make_template [OPTIONS OF volume add]: a pool with the volume "data".
make_template() {
	# The server of the last case was killed: its origin bears a mark, and this one has the same id.
	rm -rf "$FOREBAY_STATE_DIR"
	rm -f "$work/template" "$shm/origin.platter"
	"$FOREBAY" create "$work/template" --size 10M --chunk-size 256K --medium ssd >"$work/create.log" 2>&1 || skip "no place for a pool in groups: $(cat "$work/create.log")"
	truncate -s "$bytes" "$shm/origin.platter"
	start_drive origin
	origin=$!
	"$FOREBAY" volume add "$work/template" data "$work/origin/disk" "$@" >"$work/add.log" 2>&1 || fail "volume add: $(cat "$work/add.log")"
	stop_disks
}
# Makes a copy of the template, and an origin full of zeroes or of old_byte.
fresh() {
	rm -rf "$FOREBAY_STATE_DIR" # the next origin has the same id
	cp "$work/template" "$shm/ssd.platter"
	rm -f "$shm/origin.platter"
	truncate -s "$bytes" "$shm/origin.platter"
	[ -z "${old_byte:-}" ] || head -c "$bytes" /dev/zero | tr '\0' "$old_byte" >"$shm/origin.platter"
}
