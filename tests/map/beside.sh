# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Programs next to one of map-run that has $file open: past.c, compiled as $past.  On top of lib.sh.

fresh() { rm -f "$file" && truncate -s 64K "$file"; }
stored_there() { [ "$(dd if="$file" bs=1 skip=8192 count=6 status=none)$(dd if="$file" bs=1 skip=12288 count=7 status=none)" = storedwritten ]; }
says() { # WORD: waits until the program has said it
	for _ in $(seq 1500); do grep -q "$1" "$work/said" && return; sleep 0.02; done
	fail "the program does not say '$1': $(cat "$work/said" "$work/says")"
}
beside() { # WHAT COMMAND...: while past.c's WHAT has the file
	fresh
	# Clears the words of the program before.
	: >"$work/said"
	rm -f "$work/in"
	mkfifo "$work/in"
	"$FOREBAY" map-run --pool "$pool" --files '*.map' --room 16M -- "$past" "$1" "$file" \
		<"$work/in" >"$work/said" 2>"$work/says" &
	pid=$!
	exec 9>"$work/in"
	says stored
	"${@:2}" || fail "beside $1: ${*:2}"
	exec 9>&-
	timeout 60 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
	code=0
	wait "$pid" || code=$?
}
# As /proc/locks names the file: its file system's device, and its number.
place() {
	local device
	device=$(findmnt -no MAJ:MIN -T "$file" | tr -d ' ')
	printf '%02x:%02x:%s' "${device%:*}" "${device#*:}" "$(stat -c %i "$file")"
}
waits_for() { # READ|WRITE: until one waits so for the file
	local at
	at=$(place)
	for _ in $(seq 500); do
		! grep -A9 "LEASE *BREAKING .* $at 0 EOF" /proc/locks | grep -Eq "> LEASE *BREAKER *$1" || return 0
		sleep 0.02
	done
	fail "nobody waits for the file: $(cat /proc/locks)"
}
disk_to_freeze() {
	mkdir "$work/disk"
	truncate -s 64M "$work/image" && mkfs.ext4 -q -F "$work/image" && mount_image "$work/image" "$work/disk" || return 1
	at_end "umount '$work/disk'"
	at_end "fsfreeze -u '$work/disk' 2>/dev/null || true"
}
# A writer comes behind a reader while the file is written back, to a disk that stands still.
behind() {
	local first second
	fsfreeze -f "$work/disk"
	cat "$file" >"$work/cat" &
	first=$!
	waits_for READ
	sleep 0.3
	python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(f, b"WRITER", 30000)
os.fsync(f)' "$file" &
	second=$!
	waits_for WRITE
	fsfreeze -u "$work/disk"
	wait "$first" "$second"
}
is_seen_behind() {
	# shellcheck disable=SC2015
	[ "$code" = 6 ] && stored_there || fail "a writer behind a reader: $code $(cat "$work/says")"
	grep -q 'to be written or truncated' "$work/says" || fail "a writer behind a reader is not told: $(cat "$work/says")"
	[ "$(dd if="$file" bs=1 skip=30000 count=6 status=none)" = WRITER ] || fail "what a writer behind a reader has written is lost"
}
# Mounts an overlayfs at $work/overlay.
overlay() {
	local parts=$shm/overlay
	mkdir -p "$work/overlay" "$parts"
	mount -t tmpfs none "$parts" || return 1
	mkdir "$parts/lower" "$parts/upper" "$parts/work"
	mount -t overlay overlay -o "lowerdir=$parts/lower,upperdir=$parts/upper,workdir=$parts/work" "$work/overlay" || return 1
}
