# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
#
# lib.sh - sourced by apps.sh, mounts.sh and peers.sh: disks of a given speed, volumes in front
# of them, both as mounted ext4, and an end that leaves nothing behind.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
me=$(basename "$0" .sh)
. "$here/disks.sh"
. "$here/facts.sh"
. "$root/tests/loops.sh"
FOREBAY=${FOREBAY:-${CARGO_TARGET_DIR:-$root/target}/release/forebay}

say() { echo "$me: $*" >&2; }
fail() { echo "$me: FAILED: $*" >&2; exit 1; }

# want COMMAND PACKAGE: names what is missing, all at once (see wanted).
missing=()
want() { command -v "$1" >/dev/null 2>&1 || [ -x "$1" ] || missing+=("$2"); }
wanted() {
	[ ${#missing[@]} -eq 0 ] && return
	echo "$me: missing, by the names of Debian's packages: ${missing[*]}" >&2
	echo "$me: install them: apt-get install --no-install-recommends ${missing[*]}" >&2
	echo "$me: (Debian starts some of these servers at once; nothing here needs them running," >&2
	echo "$me: each is started anew, on a socket in a private directory, and stopped again)" >&2
	exit 1
}

work='' undo=()
# Everything lives in memory: the speed of this machine's disk must not matter.
start_work() {
	work=$(mktemp -d "/dev/shm/forebay-$me.XXXXXX")
	chmod 711 "$work" # servers of other users have a directory of their own below
	export FOREBAY_RUNTIME_DIR=$work/run
	trap end_work EXIT
	trap 'exit 130' INT TERM
	cc -std=gnu11 -O2 -Wall -Wextra -shared -fPIC "$here/slow_disk.c" -o "$work/slow-disk.so"
}
at_end() { undo+=("$1"); }
end_work() {
	local code=$? i
	trap - EXIT
	set +e
	for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[$i]}"; done
	[ "$code" -ne 0 ] && [ "$code" -ne 130 ] && tail -n 20 "$work"/*.log >&2 2>/dev/null
	rm -rf "$work"
	exit "$code"
}
# stop PID [SIGNAL]: and wait until it is gone.
stop() {
	kill -"${2:-TERM}" "$1" 2>/dev/null || true
	wait "$1" 2>/dev/null || true
}
run_undo() {
	local i
	set +e
	for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[$i]}"; done
	set -e
	undo=()
}

# until_true COMMAND...: within 30 s.
until_true() {
	local tries
	for ((tries = 0; tries < 600; tries++)); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.05
	done
	fail "after 30 s still not: $*"
}

# slow_disk NAME DISK BYTES: an NBD export on $work/NAME.sock.
slow_disk() {
	local speed
	read -r -a speed <<<"$(disk_speed "$2")"
	truncate -s "$3" "$work/$1.img"
	nbdkit -f -P "$work/$1.pid" -U "$work/$1.sock" "$work/slow-disk.so" file="$work/$1.img" \
		requests-per-s="${speed[0]}" megabytes-per-s="${speed[1]}" \
		latency-us="${speed[2]}" flush-us="${speed[3]}" 2>>"$work/$1.log" &
	at_end "stop $!; rm -f '$work/$1.img' '$work/$1.sock' '$work/$1.pid'"
	until_true test -e "$work/$1.pid" # it listens
}
# disk NAME DISK BYTES: as the file $work/NAME.fuse/nbd; `own` is a file on this machine's disk.
disk() {
	if [ "$2" = own ]; then
		[ -n "$own" ] || { own=$(mktemp -d "${TMPDIR:-/tmp}/forebay-$me.XXXXXX"); at_end "rmdir '$own'; own=''"; }
		truncate -s "$3" "$own/$1"
		mkdir "$work/$1.fuse"
		ln -s "$own/$1" "$work/$1.fuse/nbd"
		at_end "rm -rf '$own/$1' '$work/$1.fuse'"
	else
		slow_disk "$@"
		fuse "$1" "$(uri "$work/$1.sock")"
	fi
}
own='' # its directory, once there is one
# fuse NAME URI: the export as the file $work/NAME.fuse/nbd.
fuse() {
	mkdir "$work/$1.fuse"
	nbdfuse "$work/$1.fuse/nbd" "$2" 2>>"$work/$1.log" &
	at_end "fusermount3 -u '$work/$1.fuse'; stop $!; rmdir '$work/$1.fuse'"
	until_true test -s "$work/$1.fuse/nbd"
}
uri() { echo "nbd+unix:///${2:-}?socket=$1"; }
# mounted NAME: ext4 on $work/NAME.fuse/nbd, at $work/NAME.
mounted() {
	local loop
	loop=$(loop_device "$work/$1.fuse/nbd") || fail "$(cat "$work/no-loop")"
	at_end "losetup -d $loop"
	mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
	mkdir -m 711 "$work/$1"
	mount "$loop" "$work/$1"
	chmod 711 "$work/$1"
	at_end "umount '$work/$1' || umount -l '$work/$1'; rmdir '$work/$1'"
}
# volume NAME DISK BYTES POOL_BYTES [SHARE_BYTES PERIOD]: a volume on a slow disk, served, as
# $work/NAME.fuse/nbd; a static one, if it is to have a share of the pool.
volume() {
	disk "$1-disk" "$2" "$3"
	"$FOREBAY" create "$work/$1.pool" --size "$4" ${5:+--static "$5"} >/dev/null
	at_end "rm -f '$work/$1.pool'"
	"$FOREBAY" volume add "$work/$1.pool" v "$work/$1-disk.fuse/nbd" ${5:+--static "$5" --flush-every "$6"} >/dev/null
	"$FOREBAY" serve "$work/$1.pool" --socket "$work/run/$1" --json >"$work/$1.ready" 2>>"$work/$1.log" &
	at_end "stop $!"
	until_true grep -q '"ready":true' "$work/$1.ready"
	fuse "$1" "$(uri "$work/run/$1" v)"
}
# tree NAME POOL_BYTES: `forebay mount` of the file system NAME, at $work/mount.
tree() {
	"$FOREBAY" create "$work/mount.pool" --size "$2" >/dev/null
	at_end "rm -f '$work/mount.pool'"
	mkdir -m 711 "$work/mount"
	"$FOREBAY" mount "$work/mount.pool" "$work/$1" "$work/mount" --allow-other --foreground >"$work/mount.log" 2>&1 &
	at_end "'$FOREBAY' umount '$work/mount' >/dev/null; wait $!; rmdir '$work/mount'"
	until_true grep -q . "$work/mount.log"
	until_true test "$(stat -f -c %T "$work/mount")" = fuseblk
}
