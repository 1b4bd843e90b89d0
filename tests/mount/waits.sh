#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: whatever waits for the tree's disk, and however many do, keeps nobody who asks for what is
# there without it: names, attributes, bytes in the page cache, lists, `forebay status`, and the
# unmount of another tree of the same server.
# Method: waits.py has more than 200 operations wait, of each kind that may: those that change the
# tree on a file system that is frozen; those that read, and the syncs, on a disk that is stopped.
# Meanwhile each kind that need not wait is to answer within a second.  Then the disk goes on, and
# all that waited end without an error.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3 fsfreeze mkfs.ext4

# shellcheck disable=SC2034 # of volatile.sh
seed=1 bytes=$((512 << 20)) pool_size=512M
truncate -s $bytes "$work/platter"
start_disk ext4
tree=$work/disk/tree other=$work/other
mkdir "$tree" "$other"
python3 "$root/tests/mount/waits.py" prepare "$tree"
# So that nothing is in the page cache.
umount "$work/disk"
mount "$loop" "$work/disk"
at_end 'fsfreeze -u "$work/disk" 2>/dev/null; [ -z "$disk" ] || kill -CONT "$disk"'

for how in freeze stop; do
	start_mount "$tree" --sync-interval 600s
	"$FOREBAY" mount "$pool" "$other" --log other >/dev/null
	at_end 'umount -l "$other" 2>/dev/null || true'
	case $how in
	freeze) stall="fsfreeze -f $work/disk" go_on="fsfreeze -u $work/disk" ;;
	stop) stall="kill -STOP $disk" go_on="kill -CONT $disk" ;;
	esac
	python3 "$root/tests/mount/waits.py" "$how" "$tree" "$other" "$stall" "$go_on" "$FOREBAY" "$pool" ||
		fail "$how: somebody was kept by those who wait"
	stop_mount
done

# Large writes that wait are held in the server: so many bytes at most, and all are written at the end.
start_mount "$tree" --sync-interval 600s
python3 - "$tree" "$server" "$work/disk" <<'P' || fail "writes that wait take the server's memory"
import os, subprocess, sys, threading, time
tree, server, disk = sys.argv[1:]
COUNT, SIZE, MOST = 180, 1 << 20, 160 << 20  # 128 MiB, and what else a server takes
def anonymous():
    lines = open(f"/proc/{server}/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])
files = [os.open(f"{tree}/large-{i}", os.O_RDWR | os.O_CREAT) for i in range(COUNT)]
before, written = anonymous(), []
threads = [threading.Thread(target=lambda fd=fd: written.append(os.pwrite(fd, b"L" * SIZE, 0))) for fd in files]
subprocess.run(["fsfreeze", "-f", disk], check=True)
try:
    for thread in threads:
        thread.start()
    most, last = 0, time.monotonic()
    # Until it takes no more.
    while time.monotonic() - last < 2:
        if anonymous() > most + (1 << 20):
            most, last = anonymous(), time.monotonic()
        time.sleep(0.05)
finally:
    subprocess.run(["fsfreeze", "-u", disk], check=True)
for thread in threads:
    thread.join()
assert written == [SIZE] * COUNT, f"{len(written)} of {COUNT} are written"
print(f"{COUNT} MiB of writes wait, {most - before >> 20} MiB of them in the server")
assert most - before < MOST, f"{most - before} bytes are held"
P
stop_mount
