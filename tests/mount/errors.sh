#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: where the tree's disk fails to write back, nothing that was told is durable is lost,
# and nothing is told that is not: an fsync whose bytes are gone from the page cache fails,
# and of two syncs at once of which one gets the error, the other does not empty the log.
# Method: ext4 without a journal, on a sparse file in a tmpfs that is then full; bytes that
# were allocated before, so that only their write-back fails.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 mkfs.ext4 losetup

back=$work/back
tree=$work/disk/tree
mkdir -p "$back" "$work/disk"
at_end 'umount -l "$work/disk" "$back" 2>/dev/null || true'
disk() { mount -o loop,errors=continue "$back/image" "$work/disk" || skip "ext4 cannot be mounted from a file here"; }
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
	umount "$work/disk"
	disk
	"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" || fail "replay: $(cat "$work/replay.log")"
	head -c 8 "$tree/f" >"$work/head"
	umount "$work/disk" "$back"
}
failure() { "$FOREBAY" status "$pool" --json | sed -n 's/^ *"failure": "\(.*\)",*$/\1/p'; }

begin 4
sleep 1.5 # nothing is on its way any more
python3 - "$tree/f" "$back" "$work/disk" <<'P' || fail "an fsync of bytes that are gone said nothing"
import os, subprocess, sys
file = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(file, b"PRECIOUS" * (32 << 10), 0) # more than the server keeps
subprocess.run(f"dd if=/dev/zero of={sys.argv[2]}/fill bs=64k; sync -f {sys.argv[3]}; echo 3 >/proc/sys/vm/drop_caches",
               shell=True, stderr=subprocess.DEVNULL)
try:
    os.fsync(file)
except OSError:
    sys.exit(0)
sys.exit(1)
P
[ -n "$(failure)" ] || fail "status does not show the failure"
end

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
