#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount whose log is in a pool on a disk keeps what it acknowledged.  It says what the disk
# costs, and says it when the disk fails.
# Method: the pool lies in a file on this disk.  Programs note what was acknowledged (commits.py,
# and a writer of large files).  Flushes are delayed by strace, where it is installed.  A pool in a
# file system in memory that is full, in a file with holes, is a disk that fails.  `MEDIUM=ssd
# tests/mount/cuts.sh` cuts the tree's disk.
# shellcheck source-path=SCRIPTDIR
MEDIUM=ssd
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 setsid
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 without sqlite3"

tree=$work/tree
kinds=(sqlite-wal maildir)
mkdir "$tree"
make_pool

# --- a disk that is slow for names -------------------------------------------------

# slowly COMMAND...: runs it while each flush takes 3 ms more.
slowly() { strace -f -qq -o /dev/null -e trace=fdatasync -e inject=fdatasync:delay_enter=3000 "$@"; }
if command -v strace >/dev/null; then
	code=0
	slowly timeout 60 "$FOREBAY" mount "$pool" "$tree" --foreground >"$work/refused" 2>&1 || code=$?
	[ $code = 10 ] || fail "a slow disk: exit code $code: $(cat "$work/refused")"
	grep -Eq "ssd.pool: a durable write to its disk takes at least [0-9]{4,} us" "$work/refused" || fail "a slow disk: not told by its time: $(cat "$work/refused")"
	grep -q -- '--slow-log' "$work/refused" || fail "a slow disk: no way out: $(cat "$work/refused")"
	[ -z "$(ls -A "$tree")" ] || fail "a slow disk: a mount that was refused leaves $(ls -A "$tree")"
	grep -q -- '--names-at-sync' "$work/refused" || fail "a slow disk: names at sync are not offered: $(cat "$work/refused")"
	say "a flush of 3 ms: $(grep -Eo 'takes at least [0-9]+ us' "$work/refused"), refused"
else
	skip_part "the refusal of a slow disk" "strace is not installed"
fi
"$FOREBAY" mount "$pool" "$tree" --read-only >"$work/out" 2>&1 || fail "read-only: $(cat "$work/out")"
! touch "$tree/file" 2>/dev/null || fail "a read-only mount takes a file"
"$FOREBAY" umount "$tree" >"$work/out" 2>&1 || fail "umount of a read-only mount: $(cat "$work/out")"
"$FOREBAY" mount "$pool" "$tree" --slow-log >"$work/out" 2>&1 || fail "--slow-log: $(cat "$work/out")"
echo in the background >"$tree/file"
sync "$tree/file"
"$FOREBAY" exporter "$pool" --textfile "$work/figures" >"$work/out" 2>&1 || fail "exporter: $(cat "$work/out")"
for figure in groups entries writes written_bytes; do
	awk -v name="forebay_medium_${figure}_total{" 'index($1, name) == 1 && $2 > 0 { found = 1 } END { exit !found }' "$work/figures" || fail "exporter: no ${figure}: $(grep medium "$work/figures")"
done
grep -Eq '^forebay_medium_failed\{.*\} 0$' "$work/figures" || fail "exporter: the disk has failed? $(grep medium_failed "$work/figures")"
"$FOREBAY" umount "$tree" >"$work/out" 2>&1 || fail "umount: $(cat "$work/out")"
[ "$(cat "$tree/file")" = "in the background" ] || fail "the tree lacks what was written"

# --- kills, in each mode -----------------------------------------------------------

run_programs() {
	local kind
	for kind in "${kinds[@]}"; do
		mkdir -p "$tree/$kind"
		setsid python3 "$root/tests/mount/commits.py" run "$kind" "$tree/$kind" "$shm/$kind.acknowledged" >>"$work/$kind.log" 2>&1 &
		programs+=($!)
	done
}
verify() {
	local kind
	for kind in "${kinds[@]}"; do
		python3 "$root/tests/mount/commits.py" verify "$kind" "$tree/$kind" "$shm/$kind.acknowledged" >"$work/verify.log" 2>&1 ||
			fail "$1: $(cat "$work/verify.log")"
	done
}
acknowledged() { cat "$shm"/*.acknowledged | wc -l; }
for kind in "${kinds[@]}"; do : >"$shm/$kind.acknowledged"; done

for mode in '' --write-back --log-writes; do
	before=$(acknowledged)
	# shellcheck disable=SC2086
	start_mount "$tree" $mode
	run_programs
	for ((tries = 0; tries < 1200; tries++)); do
		[ "$(acknowledged)" -le "$before" ] || break
		sleep 0.05
	done
	sleep 0.5
	"$FOREBAY" status "$pool" >"$work/status" || fail "status of a mounted pool"
	grep -q "$tree" "$work/status" || fail "status does not name the mount: $(cat "$work/status")"
	kill_mount
	end_programs
	if [ "$mode" = --write-back ]; then
		"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 || fail "replay: $(cat "$work/replay.log")"
	fi
	start_mount "$tree"
	verify "killed ${mode:-by default}"
	stop_mount
	verify "killed ${mode:-by default}, in the tree"
	[ "$(acknowledged)" -gt "$before" ] || fail "${mode:-by default}: nothing was acknowledged in a minute"
done
"$FOREBAY" check "$pool" >"$work/check" 2>&1 || fail "check: $(cat "$work/check")"
say "killed in three modes: $(acknowledged) commits are there"

# --- more than the pool holds ------------------------------------------------------

# Nothing is synced by itself, so the server has to make space.
start_mount "$tree" --sync-interval 600s --sync-bytes 1G
python3 - "$tree" <<'P' || fail "a full pool"
import os, sys
for n in range(160):
    file = os.open(f"{sys.argv[1]}/large.{n % 8}", os.O_RDWR | os.O_CREAT)
    for part in range(4):
        os.pwrite(file, bytes([n]) * (200 << 10), part * (200 << 10))
        os.fdatasync(file)
    os.close(file)
P
stop_mount
for n in 0 1 2 3 4 5 6 7; do
	[ "$(tr -d "\\$(printf %o $((152 + n)))" <"$tree/large.$n" | wc -c)/$(stat -c %s "$tree/large.$n")" = 0/819200 ] || fail "a full pool: large.$n is not what was written"
done
say "125 MiB through a pool of 64 MiB: all is there"

# --- the disk fails ------------------------------------------------------------------

back=$work/back
mkdir "$back"
at_end 'umount -l "$back" 2>/dev/null || true'
mount -t tmpfs -o size=96M none "$back"
# A new pool takes its chunks in order.
rm "$pool"
make_pool
cp "$pool" "$back/ssd.pool"
pool=$back/ssd.pool
start_mount "$tree" --sync-interval 600s --sync-bytes 1G
run_programs
sleep 0.5
# Existing blocks stay.  The others become holes, for which there is no room.
kill -STOP "$server"
python3 - "$pool" <<'P'
import ctypes, os, sys
BLOCK, KEEP_SIZE_PUNCH = 64 << 10, 3
file = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
for at in range(0, os.fstat(file).st_size, BLOCK):
    if not any(os.pread(file, BLOCK, at)):
        assert libc.fallocate(file, KEEP_SIZE_PUNCH, ctypes.c_long(at), ctypes.c_long(BLOCK)) == 0, at
P
dd if=/dev/zero of="$back/fill" bs=64k 2>/dev/null || true
kill -CONT "$server"
code=0
timeout 60 python3 - "$tree" <<'P' || code=$?
import errno, os, sys
for n in range(4000):
    try:
        file = os.open(f"{sys.argv[1]}/late.{n % 4}", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, bytes([n % 256]) * (100 << 10), 0)
        os.fsync(file)
        os.close(file)
    except OSError as e:
        sys.exit(0 if e.errno == errno.EIO else f"errno {e.errno}")
sys.exit("syncs succeed on a disk that is full")
P
[ $code = 0 ] || fail "a disk that fails: exit code $code of the writer"
end_programs
"$FOREBAY" status "$pool" >"$work/status" 2>&1 || true
grep -q 'ssd.pool.*failed' "$work/status" || fail "a disk that fails: status does not say it: $(cat "$work/status")"
code=0
timeout 60 "$FOREBAY" umount "$tree" >"$work/out" 2>&1 || code=$?
[ $code = 7 ] || fail "a disk that fails: umount ends with $code: $(cat "$work/out")"
grep -q 'ssd.pool' "$work/out" || fail "a disk that fails: the pool is not named: $(cat "$work/out")"
grep -q "$tree is complete, with everything that was acknowledged" "$work/out" || fail "a disk that fails: the tree is not said to be complete: $(cat "$work/out")"
for ((tries = 0; tries < 200; tries++)); do
	kill -0 "$server" 2>/dev/null || break
	sleep 0.1
done
[ $tries -lt 200 ] || fail "a disk that fails: the server does not end: $(cat "$work/out")"
code=0
wait "$server" || code=$?
[ $code != 0 ] || fail "a disk that fails: the server ends with 0"
server='' mounted=''
# The tree has everything without its log, and says so.
verify "after the disk has failed, without it"
[ -L "$tree/.forebay-done" ] && [ ! -L "$tree/.forebay-mount" ] || fail "a disk that fails: the tree does not say that it is complete: $(ls -lA "$tree")"
rm "$back/fill"
cp --sparse=never "$pool" "$work/came-back.pool"
umount "$back"

# The disk returns to a copy of the tree.  Its log is dropped, and does not undo later changes.
copy=$work/copy
cp -a "$tree" "$copy"
cp --sparse=never "$work/came-back.pool" "$work/first.pool"
echo later >"$copy/maildir/later"
"$FOREBAY" replay "$work/first.pool" "$copy" >"$work/replay.log" 2>&1 || fail "replay after the disk came back: $(cat "$work/replay.log")"
[ "$(cat "$copy/maildir/later")" = later ] || fail "a replay after the disk came back undoes what came after"
rm "$copy/maildir/later"
tree=$copy verify "after the disk came back"
[ -z "$(ls -A "$copy" | grep '^[.]forebay')" ] || fail "the copy still bears marks: $(ls -A "$copy")"

# Another pool takes the tree, and the disk returns only then.  It is refused.
pool=$work/ssd.pool
rm -f "$pool"
make_pool
start_mount "$tree"
verify "by another pool"
stop_mount
code=0
"$FOREBAY" replay "$work/came-back.pool" "$tree" >"$work/replay.log" 2>&1 || code=$?
[ $code != 0 ] || fail "a pool that came back is let at a tree that another has had: $(cat "$work/replay.log")"
verify "after a pool that came back was refused"
"$FOREBAY" check "$work/came-back.pool" >"$work/check" 2>&1 || fail "check of the pool that came back: $(cat "$work/check")"
say "a disk that fails under the mount: EIO, told at the end, $(acknowledged) commits are in the tree without it, and it undoes nothing when it is back"

# --- names at sync -------------------------------------------------------------------

# names.py run TREE ACKNOWLEDGED: changes names in rounds, and notes each synced round.
# names.py verify TREE ACKNOWLEDGED: after a kill the tree has all that was done, and the log less.
cat >"$work/names.py" <<'P'
import os, sys
what, tree, acknowledged = sys.argv[1:]
LEFT = 40
def content(n):
    return b"round %d\n" % n * (1 + n % 200)
def run():
    file = open(acknowledged, "a")
    done = open(acknowledged).read().split()
    n = int(done[-1]) if done else 0
    def rename(n):
        if os.path.exists(f"{tree}/dir.{n}/name"):
            os.rename(f"{tree}/dir.{n}/name", f"{tree}/dir.{n}/renamed")
    for earlier in range(max(n - LEFT, 1), n - 2):
        rename(earlier)
    while True:
        n += 1
        new = f"{tree}/new.{n}"
        with open(new, "xb") as f:
            f.write(content(n))
            f.flush()
            os.chmod(new, 0o640)
            if n % 5 == 0:
                os.fsync(f.fileno())
        os.link(new, f"{tree}/link.{n}")
        os.mkdir(f"{tree}/dir.{n}")
        os.rename(new, f"{tree}/dir.{n}/name")
        os.unlink(f"{tree}/link.{n}")
        if n % 5 == 0:
            dir = os.open(tree, os.O_RDONLY)
            os.fsync(dir)
            os.close(dir)
            file.write(f"{n}\n")
            file.flush()
        # The log may have the first name of this directory, and lack this one.
        rename(n - 3)
        if n > LEFT:
            os.unlink(f"{tree}/dir.{n - LEFT}/renamed")
            os.rmdir(f"{tree}/dir.{n - LEFT}")
def verify():
    names = sorted(os.listdir(tree))
    dirs = sorted(int(name[4:]) for name in names if name.startswith("dir."))
    last = int(open(acknowledged).read().split()[-1])
    assert dirs and dirs[-1] >= last, f"{dirs[-1:]}, and {last} was acknowledged"
    assert dirs == list(range(dirs[0], dirs[-1] + 1)) and dirs[0] in (1, *range(dirs[-1] - LEFT - 1, dirs[-1] - LEFT + 2)), dirs
    for n in dirs:
        there = os.listdir(f"{tree}/dir.{n}")
        # The operations under way may be the first and the last, and the rename.
        allowed = [["renamed"]] * (n <= dirs[-1] - 3) + [["name"]] * (n >= dirs[-1] - 3)
        assert there in allowed or (there == [] and n in (dirs[0], dirs[-1])), f"dir.{n} of {dirs[-1]}: {there}"
        if there and n != dirs[-1]:
            stat = os.stat(f"{tree}/dir.{n}/{there[0]}")
            assert (stat.st_mode & 0o7777, stat.st_nlink) == (0o640, 1), f"{n}: {stat}"
        if there and n % 5 == 0 and n <= last:
            assert open(f"{tree}/dir.{n}/{there[0]}", "rb").read() == content(n), f"content of {n}"
    others = [name for name in names if not name.startswith("dir.")]
    under_way = {f"{kind}.{n}" for kind in ("new", "link") for n in (dirs[-1], dirs[-1] + 1)}
    assert set(others) <= under_way, f"{others}, and the last is {dirs[-1]}"
    # The next run continues after this name.
    for name in others:
        os.unlink(f"{tree}/{name}")
    if os.listdir(f"{tree}/dir.{dirs[-1]}") == []:
        os.rmdir(f"{tree}/dir.{dirs[-1]}")
        dirs.pop()
    for n in [n for n in dirs if n <= dirs[-1] - LEFT]:
        for name in os.listdir(f"{tree}/dir.{n}"):
            os.unlink(f"{tree}/dir.{n}/{name}")
        os.rmdir(f"{tree}/dir.{n}")
    open(acknowledged, "a").write(f"{dirs[-1]}\n")
run() if what == "run" else verify()
P
# The tree is on a file system with a journal.
make_disk ext4 256M
tree=$work/disk/tree
rm -f "$pool"
make_pool
mkdir -p "$tree/names"
: >"$shm/names.acknowledged"
start_mount "$tree" --names-at-sync
for round in 1 2 3 4 5 6; do
	had=$(wc -l <"$shm/names.acknowledged")
	setsid python3 "$work/names.py" run "$tree/names" "$shm/names.acknowledged" >>"$work/names.log" 2>&1 &
	programs+=($!)
	for ((tries = 0; tries < 3000; tries++)); do
		[ "$(wc -l <"$shm/names.acknowledged")" -le "$had" ] || break
		sleep 0.02
	done
	sleep "0.$((round * 15 % 90 + 10))"
	kill_mount
	end_programs
	# A mark without a number has a date.
	[ "$(stat -c %Y "$tree/.forebay-mount")" -lt 1000000000 ] || fail "names at sync: the tree was never ahead"
	"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 || fail "names at sync: replay: $(cat "$work/replay.log")"
	[ ! -e "$tree/.forebay-found" ] || fail "names at sync: in dispute, round $round: $(cat "$work/replay.log" "$tree"/.forebay-found/*-report)"
	python3 "$work/names.py" verify "$tree/names" "$shm/names.acknowledged" >"$work/verify.log" 2>&1 || fail "names at sync, round $round: $(cat "$work/verify.log")"
	start_mount "$tree" --names-at-sync
done
# The tree is ahead of the log.  A replay writes content and leaves attributes as they are, also if
# it is interrupted after the content.  A write removes a capability.
if command -v strace >/dev/null; then
	stop_mount
	dd if=/dev/zero of="$tree/able" bs=4k count=4 status=none
	start_mount "$tree" --names-at-sync --sync-interval 600s
	printf new | dd of="$tree/able" conv=notrunc,fsync status=none
	python3 -c 'import os, sys
able = os.open(sys.argv[1], os.O_RDONLY)
os.setxattr(able, "security.capability", bytes.fromhex("01000002002" + "0" * 29))
os.fsync(able)' "$tree/able"
	touch "$tree/ahead"
	kill_mount
	strace -f -o "$work/strace" -e trace=setxattr,fsetxattr,lsetxattr -e inject=setxattr,fsetxattr,lsetxattr:signal=KILL:when=1 \
		"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 && fail "the replay was not cut"
	[ "$(head -c 3 "$tree/able")" = new ] || fail "the replay was cut before the content"
	"$FOREBAY" replay "$pool" "$tree" >"$work/replay.log" 2>&1 || fail "the replay again: $(cat "$work/replay.log")"
	python3 -c 'import os, sys
assert len(os.getxattr(sys.argv[1], "security.capability")) == 20' "$tree/able" || fail "a replay that was cut took a capability: $(cat "$work/replay.log")"
	start_mount "$tree" --names-at-sync
	say "names at sync: a replay that is cut keeps a capability"
else
	skip_part "a replay that is cut" "strace is not installed"
fi
stop_mount
say "names at sync, killed 6 times: $(tail -n 1 "$shm/names.acknowledged") rounds"
umount_disk
