#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: if the tree's disk fails to write back, no data that was reported durable is lost,
# and no lost data is reported durable.  An fsync whose bytes are gone from the page cache
# fails.  If one of two concurrent syncs gets the error, the other one does not empty the
# log.
# Method: ext4 without a journal, on a sparse file in a tmpfs that is then full.  The bytes were
# allocated before, so that only their write-back fails.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 mkfs.ext4 losetup

back=$work/back
tree=$work/disk/tree
mkdir -p "$back" "$work/disk"
at_end 'umount -l "$work/disk" "$back" 2>/dev/null || true'
disk() { mount_image "$back/image" "$work/disk" errors=continue || skip "ext4 cannot be mounted from a file here"; }
begin() { # MIB OF THE FILE
	mount -t tmpfs -o size=24M none "$back"
	truncate -s 128M "$back/image"
	mkfs.ext4 -qF -O ^has_journal -E lazy_itable_init=0 "$back/image"
	disk
	mkdir "$tree"
	fallocate -l "$1M" "$tree/f"
	sync -f "$tree"
	rm -f "$pool"
	start_mount "$tree"
}
end() { # killed, room made, replayed
	kill_mount
	rm -f "$back/fill"
	# The unmount still writes dirty pages to the disk, and the replay needs room after
	# that.
	mount -o remount,size=256M "$back"
	umount "$work/disk"
	disk
	"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" || fail "replay: $(cat "$work/replay.log")"
	head -c 8 "$tree/f" >"$work/head"
	umount "$work/disk" "$back"
}
failure() { "$FOREBAY" status "$pool" --json | sed -n 's/^ *"failure": "\(.*\)",*$/\1/p'; }

# On a loaded machine the kernel may write the bytes back before the disk is full.  Then the
# bytes are there, and a success is true.  Such a try says nothing, and another one is made.
for try in 1 2 3 4 5; do
	begin 4
	sleep 1.5 # nothing is on its way any more
	told=0
	python3 - "$tree/f" "$back" "$work/disk" <<'P' || told=$?
import os, subprocess, sys
BYTES = b"PRECIOUS" * (32 << 10) # more than the server keeps
file = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(file, BYTES, 0)
drop = "sync -f %s; echo 1 >/proc/sys/vm/drop_caches" % sys.argv[3]
shell = lambda command: subprocess.run(command, shell=True, stderr=subprocess.DEVNULL)
shell(f"dd if=/dev/zero of={sys.argv[2]}/fill bs=64k; {drop}")
try:
    os.fsync(file)
except OSError:
    sys.exit(0)
shell(drop)
sys.exit(2 if os.pread(file, len(BYTES), 0) == BYTES else 1)
P
	[ $told != 1 ] || fail "an fsync of bytes that are gone said nothing"
	[ $told != 0 ] || { [ -n "$(failure)" ] || fail "status does not show the failure"; }
	end
	[ $told != 0 ] || break
	[ "$try" != 5 ] || fail "in five tries the bytes were written back before the disk was full"
done

# The background's sync comes a second after the first entry.
for after in 0.97 0.985 0.995; do
	begin 64
	sleep 1.5
	python3 - "$tree/f" "$back" "$after" <<'P'
import os, subprocess, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
subprocess.run(f"dd if=/dev/zero of={sys.argv[2]}/fill bs=64k", shell=True, stderr=subprocess.DEVNULL)
os.pwrite(file, b"PRECIOUS" * 512, 0)
began = time.monotonic()
os.fsync(file)
for mib in range(48):
    os.pwrite(file, b"B" * (1 << 20), (mib + 4) << 20)
time.sleep(max(0, began + float(sys.argv[3]) - time.monotonic()))
try:
    os.fsync(file)
except OSError:
    pass
P
	end
	[ "$(cat "$work/head")" = PRECIOUS ] || fail "what was synced is lost, with a large sync after $after s: $(cat "$work/replay.log")"
done
echo "ok: errors of the tree's disk"
