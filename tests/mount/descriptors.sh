#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a server that may open few files serves, syncs and replays a tree of many.  A file that is
# open and has no name any more stays what it is.
# Method: 256 descriptors and 5,000 files on ext4: walked, read, written, renamed, removed,
# synced; then killed with SIGKILL and replayed.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3

make_disk ext4 128M
tree=$work/disk/tree
mkdir "$tree"
python3 - "$tree" <<'P'
import os, sys
for d in range(50):
    os.mkdir(f"{sys.argv[1]}/{d}")
    for f in range(100):
        with open(f"{sys.argv[1]}/{d}/{f}", "w") as file:
            file.write(f"{d} {f}\n")
P
cat >"$work/use.py" <<'P'
import os, subprocess, sys
root, disk = sys.argv[1:]
def of(d, f): return f"{root}/{d}/{f}"
# These files are held open without a name.
held = []
for f in range(40):
    held.append(os.open(of(0, f), os.O_RDWR))
    os.unlink(of(0, f))
seen = sum(len(files) for _, _, files in os.walk(root))
assert seen == 4960, seen
for d in range(50):
    for f in range(100):
        if d == 0 and f < 40:
            continue
        assert os.stat(of(d, f)).st_nlink == 1
        with open(of(d, f)) as file:
            assert file.read() == f"{d} {f}\n", (d, f)
for d in range(1, 50):
    for f in range(100):
        with open(of(d, f), "a") as file:
            file.write("more\n")
            file.flush()
            if f % 2 == 0:
                os.fsync(file.fileno())
        if f % 4 == 0:
            os.rename(of(d, f), of(d, f"moved-{f}"))
        if f % 4 == 2:
            os.link(of(d, f), of(d, f"link-{f}"))
            os.unlink(of(d, f))
for f, fd in enumerate(held):
    assert os.pread(fd, 100, 0) == f"0 {f}\n".encode(), f
    os.pwrite(fd, b"without a name", 0)
    os.fsync(fd)
    assert os.fstat(fd).st_nlink == 0
for f in range(40, 100):
    os.unlink(of(0, f))
os.rmdir(f"{root}/0")
# Only this file system is synced, because others of the machine may have much to write.
subprocess.run(["sync", "-f", disk], check=True)
for f, fd in enumerate(held):
    assert os.pread(fd, 100, 0) == b"without a name", f
with open(of(1, 1), "a") as file:
    file.write("last\n")
    file.flush()
    os.fsync(file.fileno())
P
cat >"$work/judge.py" <<'P'
import os, sys
root = sys.argv[1]
assert not os.path.exists(f"{root}/0")
for d in range(1, 50):
    names = set(os.listdir(f"{root}/{d}"))
    wanted = {f"moved-{f}" if f % 4 == 0 else f"link-{f}" if f % 4 == 2 else str(f) for f in range(100)}
    assert names == wanted, (d, names ^ wanted)
    for name in names:
        f = name.split("-")[-1]
        last = "last\n" if (d, name) == (1, "1") else ""
        with open(f"{root}/{d}/{name}") as file:
            assert file.read() == f"{d} {f}\nmore\n{last}", (d, name)
P

# As many entries of names and of data as the log takes wait for the replay.
FOREBAY_FULL=$FOREBAY
printf '#!/bin/sh\nulimit -n 256\nexec "%s" "$@"\n' "$FOREBAY_FULL" >"$work/forebay"
chmod +x "$work/forebay"
FOREBAY=$work/forebay
start_mount "$tree" --sync-interval 600s
python3 "$work/use.py" "$tree" "$work/disk" || fail "a program had errors"
python3 "$work/judge.py" "$tree" || fail "the mount is not as it was left"
kill_mount
start_mount "$tree"
python3 "$work/judge.py" "$tree" || fail "the tree is not as it was left"
stop_mount
python3 "$work/judge.py" "$tree" || fail "the tree is not as it was left"
umount_disk
say "5,000 files through 256 descriptors, killed, replayed"
