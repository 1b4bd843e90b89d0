# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Makes a file system on a disk that loses what was not flushed when its power is cut.  Set seed and
# bytes, make the file $work/platter of so many bytes, then start_disk.  A cut waits for a write
# that is not synced, at most cut_waits_ms.
need gcc losetup
compile volatile_disk "$root/tests/serve/volatile_disk.c"

disk='' loop=''
start_disk() { # SYSTEM, or nothing: as it is
	local tries
	mkdir -p "$work/drive" "$work/disk"
	seed=$((seed + 1))
	: >"$work/disk.log"
	# ext4 does not mount where one of its superblock's two sectors is torn off.
	"$work/volatile_disk" "$work/drive" "$work/platter" $bytes seed=$seed keep=$((seed % 2)) unit=8 wait_ms="${cut_waits_ms:-0}" >"$work/disk.log" 2>>"$work/disk.err" &
	disk=$!
	# The disk clears twice its bytes of memory.  On a virtual machine that has given its free
	# memory to the host, that takes 3 s a GiB.
	for ((tries = 0; ; tries++)); do
		[ -s "$work/drive/disk" ] && break
		[ $tries -lt 3000 ] || fail "volatile_disk is not there after 60 s: $(cat "$work/disk.err")"
		kill -0 "$disk" 2>/dev/null || { disk=''; skip "cannot mount: $(cat "$work/disk.err")"; }
		sleep 0.02
	done
	loop=$(loop_device "$work/drive/disk") || { loop='' && skip "$(cat "$work/no-loop")"; }
	case ${1:-} in
	'') ;;
	ext4) mkfs.ext4 -qF "$loop" ;;
	*) "mkfs.$1" -qf "$loop" >/dev/null ;;
	esac
	mount "$loop" "$work/disk" || fail "the file system cannot be mounted after the cut"
}
stop_disk() {
	umount -l "$work/disk" 2>/dev/null || true
	[ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
	[ -z "$disk" ] || { kill -TERM "$disk" && wait "$disk"; } 2>/dev/null || true
	umount -l "$work/drive" 2>/dev/null || true
	disk='' loop=''
}
at_end stop_disk

cut_disk() {
	kill -USR1 "$disk"
	await_cut "$disk" "$work/disk.log"
}
sectors_lost() { sed -n '/^cut:/{s/.* \([0-9]*\) sectors lost/\1/p;q}' "$work/disk.log"; }
