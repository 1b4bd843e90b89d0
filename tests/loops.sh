# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# loops.sh - sourced by the libraries of the scripts, which set me and work: loop devices.
#
# A machine may have only a few loop devices, and tests run at the same time.  So a script
# waits for one, and says who has them if it gets none.

loop_tries=600 # of 0.1 s each

loops_attached() { losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null; }

# loops_work: whether loop devices are available here, at once or later.
loops_work() { losetup --find >/dev/null 2>&1 || [ -n "$(loops_attached)" ]; }

# loop_device FILE [OPTIONS OF losetup]: attaches a loop device to the file and prints its
# name.  If that fails, $work/no-loop has the reason.
loop_device() {
	local tries error
	for ((tries = 1; tries <= loop_tries; tries++)); do
		LC_ALL=C losetup "${@:2}" --find --show "$1" 2>"$work/no-loop" && return
		# Another process may take the device that was found.  Otherwise a wait helps only
		# if others have all devices.
		[ $tries -lt 20 ] || grep -q 'resource busy' "$work/no-loop" || { [ ! -b "$(losetup --find 2>/dev/null)" ] && [ -n "$(loops_attached)" ]; } || break
		sleep 0.1
	done
	error=$(tail -n 1 "$work/no-loop")
	echo "no loop device for $1 ($error); attached: $(loops_attached | tr -s ' \n' ' ;')" >"$work/no-loop"
	cat "$work/no-loop" >&2
	return 1
}

# mount_image IMAGE DIRECTORY [OPTIONS OF THE FILE SYSTEM]: mounts like mount -o loop.  The loop
# device is detached when the directory is unmounted.
mount_image() {
	local device code=0
	device=$(loop_device "$1") || return
	mount ${3:+-o "$3"} "$device" "$2" || code=$?
	losetup --detach "$device"
	return $code
}
