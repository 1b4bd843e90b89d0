#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: with --write-back, data that the kernel still holds is not lost where the mount promises
# it.  The mount promises it when a rename replaces a file, whose old content is gone then, and when
# the server is told to end.  Blocks after the end of a file are freed as in the plain directory.
# Method: programs that write, keep the file open and sync nothing.  Then the server is killed and
# the log replayed, or the server gets SIGTERM while the tree's file system is frozen.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 fsfreeze

make_disk ext4 256M
tree=$work/disk/tree
mkdir "$tree"

# Each of these replaces a file of its own, and holds the new one open until it is killed.
cat >"$work/replace.py" <<'P'
import ctypes, mmap, os, sys, threading, time

tree = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
WHITEOUT = 4


def plain(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    assert os.write(fd, b"N" * size) == size
    return fd


def pieces(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for at in range(0, size, 4096):
        os.pwrite(fd, b"N" * min(4096, size - at), at)
    return fd


def mapped(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    held.append(mmap.mmap(fd, size))
    held[-1][:] = b"N" * size
    return fd


def rename(old, new, flags=0):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


held, errors = [], []
ways = {f"{make.__name__}-{size}-{flags}": (make, size, flags)
        for make in (plain, pieces, mapped)
        for size in (9, 4096, 70000, 3 << 20)
        for flags in (0, WHITEOUT)}
if sys.argv[2:] == ["judge"]:
    bad = []
    for name, (_, size, _) in ways.items():
        with open(f"{tree}/{name}", "rb") as file:
            found = file.read()
        if found not in (b"N" * size, b"OLD" * 1000):
            bad.append(f"{name}: {len(found)} bytes, {found.count(b'N')} of them of {size}")
    if bad:
        raise SystemExit("\n".join([f"{len(bad)} of {len(ways)} files have neither content"] + bad))
    print(f"{len(ways)} files replaced")
    sys.exit()
for name in ways:
    with open(f"{tree}/{name}", "wb") as file:
        file.write(b"OLD" * 1000)
        file.flush()
        os.fsync(file.fileno())


def one(name):
    try:
        make, size, flags = ways[name]
        held.append(make(f"{tree}/{name}.new", size))
        rename(f"{tree}/{name}.new", f"{tree}/{name}", flags)
    except Exception as e:
        errors.append(f"{name}: {e}")


# The threads run at the same time, and are more than the server has.
threads = [threading.Thread(target=one, args=(name,)) for name in ways]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(errors) or "done", flush=True)
time.sleep(600)
P
start_mount "$tree" --write-back --sync-interval 600s
python3 "$work/replace.py" "$tree" >"$work/replaced" 2>&1 &
program=$!
at_end 'kill -9 "$program" 2>/dev/null || true'
for ((tries = 0; tries < 600; tries++)); do
	[ ! -s "$work/replaced" ] || break
	sleep 0.05
done
[ "$(cat "$work/replaced")" = "done" ] || fail "files cannot be replaced: $(cat "$work/replaced")"
kill_mount
kill -9 "$program"
wait "$program" 2>/dev/null || true
"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" || fail "replay: $(cat "$work/replay.log")"
python3 "$work/replace.py" "$tree" judge >"$work/judged" || fail "a rename over a file and a kill lost both"
say "--write-back, the server killed: $(cat "$work/judged"), none lost"
rm -rf "${tree:?}"/*

# A file for which the tree has no room replaces nothing.
start_mount "$tree" --write-back
dd if=/dev/zero of="$work/disk/fill" bs=1M 2>/dev/null && fail "the disk does not get full"
python3 - "$tree" <<'P' || fail "a file whose bytes have no room replaces another one"
import os, sys
tree = sys.argv[1]
with open(f"{tree}/old", "wb") as file:
    file.write(b"OLD")
new = os.open(f"{tree}/new", os.O_WRONLY | os.O_CREAT)
os.write(new, b"N" * (1 << 20))
try:
    os.rename(f"{tree}/new", f"{tree}/old")
except OSError:
    pass
else:
    sys.exit("the rename is done")
if open(f"{tree}/old", "rb").read() != b"OLD":
    sys.exit("the old file is not what it was")
P
rm "$work/disk/fill"
stop_mount
say "--write-back, no room: the old file stays"
rm -rf "${tree:?}"/*

# Both directories must have the same number of blocks after the end of a file.
preallocated() { # DIRECTORY
	python3 - "$1" <<'P'
import os, subprocess, sys, time
path = f"{sys.argv[1]}/preallocated"
for written, size in ((100, 100), (5000, 5000), (5000, 100), (100000, 70000), (100, 0)):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    subprocess.run(["fallocate", "-n", "-l", "1M", path], check=True)
    os.write(fd, b"x" * written)
    os.ftruncate(fd, size)
    os.fsync(fd)
    os.close(fd)
    # With --write-back the kernel asks for blocks again after a second.
    deadline = time.monotonic() + 1.5
    most = -(-size // 4096) * 8
    while os.stat(path).st_blocks > max(most, 1) and time.monotonic() < deadline:
        time.sleep(0.1)
    print(written, size, max(os.stat(path).st_blocks, 1))
P
}
mkdir "$work/disk/plain"
preallocated "$work/disk/plain" >"$work/plain"
start_mount "$tree" --write-back
preallocated "$tree" >"$work/mounted"
stop_mount
cmp -s "$work/plain" "$work/mounted" ||
	fail "blocks beyond the end (written, size, blocks) differ: $(diff "$work/plain" "$work/mounted")"
say "--write-back, preallocated: blocks as in the plain directory"
rm -rf "${tree:?}"/* "$work/disk/plain"

# A server is told to end while the tree's disk takes nothing.  It waits for the disk, and longer
# than the 10 s that a server waits for a mere look at a path.
cat >"$work/write.py" <<'P'
import mmap, os, sys, time
tree, size = sys.argv[1], int(sys.argv[2])
held = []
for i in range(4):
    fd = os.open(f"{tree}/{i}", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    if i % 2:
        held.append(mmap.mmap(fd, size))
        held[-1][:] = b"N" * size
    else:
        os.write(fd, b"N" * size)
    held.append(fd)
print("done", flush=True)
time.sleep(600)
P
writing() { # BYTES: writes to each of four files, which stay open
	rm -f "$work/written"
	python3 "$work/write.py" "$tree" "$1" >"$work/written" 2>&1 &
	program=$!
	for ((tries = 0; tries < 600; tries++)); do
		[ ! -s "$work/written" ] || break
		sleep 0.05
	done
	[ "$(cat "$work/written")" = "done" ] || fail "$(cat "$work/written")"
}
# ended: the exit code of the server, in $code.
ended() {
	code=0
	wait "$server" || code=$?
	server='' mounted=''
	kill -9 "$program" 2>/dev/null || true
	wait "$program" 2>/dev/null || true
}
start_mount "$tree" --write-back
writing $((4 << 20))
fsfreeze -f "$work/disk"
at_end 'fsfreeze -u "$work/disk" 2>/dev/null || true'
kill "$server"
sleep 11
fsfreeze -u "$work/disk"
ended
[ $code = 0 ] || fail "a server that lost nothing ends with $code: $(tail -n 3 "$work/mount.log")"
for ((i = 0; i < 4; i++)); do
	[ "$(tr -d N <"$tree/$i" | wc -c) $(stat -c %s "$tree/$i")" = "0 $((4 << 20))" ] ||
		fail "the server ended with 0, and $i lacks $(tr -d N <"$tree/$i" | wc -c) bytes"
done
say "--write-back, SIGTERM while the disk is frozen: what the kernel held is there"

# The server does not report data that the tree does not take.
rm -rf "${tree:?}"/*
start_mount "$tree" --write-back
dd if=/dev/zero of="$work/disk/fill" bs=1M 2>/dev/null && fail "the disk does not get full"
writing $((1 << 20))
kill "$server"
ended
[ $code = 7 ] || fail "bytes were lost, and the server ends with $code"
grep -q "no sync covers, are lost: the tree's file system refused" "$work/mount.log" ||
	fail "nothing is said of what was lost: $(tail -n 3 "$work/mount.log")"
say "--write-back, SIGTERM and no room: exit code 7"
umount_disk
