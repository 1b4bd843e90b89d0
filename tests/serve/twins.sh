#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: of two disks that show the same serial number neither is taken for the other.
# Nothing that was written for one reaches the other.
# Method: loop devices, and a directory of our own over /sys in a mount namespace, which
# sets each device's serial number.  A volume is made on one; then the other takes its
# place.
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$0")
if [ -z "${TWINS_INSIDE:-}" ] && "$here/../apart" "$here" true 2>/dev/null; then
	TWINS_INSIDE=1 exec "$here/../apart" "$here" "$0" "$@"
fi
. "$here/lib.sh"
[ -n "${TWINS_INSIDE:-}" ] || skip "no mount namespace can be had here, or not root"
need losetup qemu-io

devices=()
at_end 'umount /sys 2>/dev/null'
new_device() { # NAME: makes a device of 16 MiB, at $work/NAME
	local device
	truncate -s 16M "$work/$1.image"
	device=$(loop_device "$work/$1.image") || skip "$(cat "$work/no-loop")"
	devices+=("$device")
	ln -sfn "$device" "$work/$1"
}
# A disk as the system shows it, with a serial number or none.
shown() { # NAME SERIAL
	local device number
	device=$(readlink "$work/$1")
	number=$(stat -c '%Hr:%Lr' "$device")
	mkdir -p "/sys/devices/$1/block/${device##*/}"
	ln -sfn "../../devices/$1/block/${device##*/}" "/sys/dev/block/$number"
	ln -sfn "../devices/$1/block/${device##*/}" "/sys/block/${device##*/}"
	ln -sfn ../.. "/sys/devices/$1/block/${device##*/}/device"
	echo "$2" >"/sys/devices/$1/block/${device##*/}/serial"
}
untouched() { # NAME
	cmp -s -n $((16 << 20)) "$work/$1.image" /dev/zero || fail "the other disk was written to"
}
written() { # prints what the volume has and its origin lacks
	start_server
	qemu-io -f raw -c 'write -P 66 4096 512' "$(uri data)" >"$work/write.log" || fail "write"
	kill_server
}

new_device first
new_device second
mount -t tmpfs tmpfs /sys || skip "nothing can be mounted over /sys here"
mkdir -p /sys/dev/block /sys/block /sys/devices
"$FOREBAY" create "$pool" --size 32M >/dev/null
shown first SAME
at=$work/disk
ln -sfn "$(readlink "$work/first")" "$at"
"$FOREBAY" volume add "$pool" data "$at" >/dev/null || fail "volume add"
written

# Both disks are there.  At first the second one is in the place of the first.
refused() { # MESSAGE
	local code=0
	"$FOREBAY" drain "$pool" >"$work/refused.log" 2>&1 || code=$?
	[ $code != 0 ] || fail "$1: the drain was done"
	untouched second
}
shown second SAME
ln -sfn "$(readlink "$work/second")" "$at"
refused "both are there, the second in its place"
grep -q "${devices[0]}" "$work/refused.log" || { cat "$work/refused.log" >&2; fail "the message does not name the other disk"; }
ln -sfn "$(readlink "$work/first")" "$at"
refused "both are there, each in its own place"

# With its own serial number the second disk is nobody's twin.
shown second OTHER
"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || { cat "$work/drain.log" >&2; fail "the first alone is refused"; }
[ "$(tail -c +4097 "$work/first.image" | head -c 3)" = BBB ] || fail "the first lacks what was written"
untouched second
say "two disks of one serial number: none is written to"
