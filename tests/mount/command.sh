#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: forebay mount, umount and the commands that show a mount do what their help says.  A
# killed server leaves programs with errors and not with hangs.  Synced data is there after
# the next mount.
# Method: an ext4 on a file, the command, and what it prints and exits with.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3

make_disk ext4 64M
tree=$work/disk/tree
mkdir "$tree"
echo before >"$tree/before"
"$FOREBAY" create "$pool" --size 64M >/dev/null

shows() { # FILE TEXT
	[ "$(cat "$1")" = "$2" ] || fail "$1 is not '$2'"
}
synced() { # FILE TEXT
	python3 -c 'import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(file, sys.argv[2].encode() + b"\n")
os.fsync(file)' "$1" "$2"
}
uuid_of() { "$FOREBAY" dump superblock "$1" --json | sed -n 's/^ *"uuid": "\(.*\)",*$/\1/p' | head -n 1; }
says() { # TEXT COMMAND...
	local text=$1
	shift
	"$@" >"$work/says.log" 2>&1 || { cat "$work/says.log" >&2; fail "exit code $?: $*"; }
	grep -q "$text" "$work/says.log" || { cat "$work/says.log" >&2; fail "it does not say $text: $*"; }
}
refused() { # CODE COMMAND...
	local code=$1 got=0
	shift
	"$@" >"$work/refused.log" 2>&1 || got=$?
	[ $got = "$code" ] || { cat "$work/refused.log" >&2; fail "exit code $got, not $code: $*"; }
}

# The command runs in the background: it returns when programs can use the mount, and holds
# no terminal.
"$FOREBAY" mount "$pool" "$tree" >"$work/out" || fail "mount"
grep -q "^mounted $tree" "$work/out" || fail "mount says: $(cat "$work/out")"
server=$("$FOREBAY" status "$pool" --json | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)
mounted=$tree
grep -q " $tree fuse" /proc/mounts || fail "it is not over the tree"
shows "$tree/before" before
synced "$tree/new" one
"$FOREBAY" status "$pool" --json | grep -q '"kind": "mount"' || fail "status does not show the mount"
"$FOREBAY" exporter "$pool" --once >"$work/metrics" 2>/dev/null || true
refused 4 "$FOREBAY" mount "$pool" "$tree"
# A file handle never opens another file.  Either there are no handles, or an older kernel's
# handle fails when its file is gone and another file has the number.
python3 - "$tree/handle" <<'P' || fail "a file handle opens another file"
import ctypes, errno, itertools, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
path, handle, mount = sys.argv[1].encode(), ctypes.create_string_buffer(136), ctypes.c_int()
open(path, "w").write("first")
number = os.stat(path).st_ino
ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
if libc.name_to_handle_at(-100, path, handle, ctypes.byref(mount), 0):
    sys.exit(ctypes.get_errno() != errno.EOPNOTSUPP)
os.unlink(path)
# The number is free when the removal is synced.
end = time.monotonic() + 10
for i in itertools.count():
    another = path + str(i).encode()
    open(another, "w").write("another")
    if os.stat(another).st_ino == number:
        break
    if time.monotonic() > end:
        sys.exit("no other file got the number")
    time.sleep(0.01)
top = os.open(os.path.dirname(path), os.O_RDONLY)
found = libc.open_by_handle_at(top, handle, os.O_RDONLY)
sys.exit(found >= 0 or ctypes.get_errno() != errno.ESTALE)
P
# The same server makes a second mount with a log of its own.  Without its own log it is
# refused.
mkdir "$work/disk/second" "$work/second"
refused 4 "$FOREBAY" mount "$pool" "$work/disk/second" "$work/second"
"$FOREBAY" mount "$pool" "$work/disk/second" "$work/second" --log second --sync-interval 600s >/dev/null ||
	fail "a second mount"
synced "$work/second/x" two
shows "$work/disk/second/x" two
# A mount that is in use stays.
exec 8>"$work/second/held"
refused 4 "$FOREBAY" umount "$work/second"
exec 8>&-
# The unmount waits for a use that is about to end, because the kernel closes files a moment after
# the end of a process.
mkdir "$work/disk/soon"
"$FOREBAY" mount "$pool" "$work/disk/soon" --log soon >/dev/null || fail "a mount"
echo x >"$work/disk/soon/x"
sleep 0.2 <"$work/disk/soon/x" &
"$FOREBAY" umount "$work/disk/soon" >/dev/null || fail "an unmount does not wait for a moment"
wait $!
# An unmount does not remove a mount that someone has made over it.
mount -t tmpfs none "$work/second"
at_end 'umount "$work/second" 2>/dev/null || true'
echo precious >"$work/second/other"
refused 4 "$FOREBAY" umount "$work/second"
grep -q "something else is mounted over it" "$work/refused.log" || fail "$(cat "$work/refused.log")"
shows "$work/second/other" precious
umount "$work/second"
shows "$work/second/x" two
# A mount that is bound elsewhere is named by that place, and ends with it.
mkdir "$work/bound"
at_end 'umount "$work/bound" 2>/dev/null || true'
mount --make-private --bind "$work/second" "$work/bound"
refused 4 "$FOREBAY" umount "$work/second"
grep -q "umount $work/bound" "$work/refused.log" || fail "$(cat "$work/refused.log")"
refused 4 "$FOREBAY" umount "$work/second"
grep -q "umount $work/bound" "$work/refused.log" || fail "again: $(cat "$work/refused.log")"
shows "$work/bound/x" two
umount "$work/bound"
"$FOREBAY" mount "$pool" "$work/disk/second" "$work/second" --log second --sync-interval 600s >/dev/null ||
	fail "a mount that was bound elsewhere has not ended with that"
# A refused replay can be tried again in the server, which stays.  Data of a file that
# somebody has removed goes to the directory of found files, and a file that somebody has
# changed stays.
synced "$work/second/y" kept
synced "$work/second/z" kept
"$FOREBAY" drain "$pool" >/dev/null || fail "drain" # their creation is in the tree: they cannot be made from the log
synced "$work/second/y" KEPT
synced "$work/second/z" LOGGED
"$FOREBAY" umount "$work/second" --keep >/dev/null || fail "umount --keep of the second"
rm "$work/disk/second/y"
sleep 6
echo changed >"$work/disk/second/z"
mv "$work/disk/second" "$work/disk/elsewhere"
for again in 1 2; do
	refused 11 "$FOREBAY" mount "$pool" "$work/disk/elsewhere" "$work/second" --log second
	grep -q "the tree was at $work/disk/second" "$work/refused.log" || fail "try $again: $(cat "$work/refused.log")"
done
mv "$work/disk/elsewhere" "$work/disk/second"
"$FOREBAY" mount "$pool" "$work/disk/second" "$work/second" --log second >"$work/out" || fail "a changed file refuses the mount"
grep -q "in dispute" "$work/out" || fail "nothing is said of it: $(cat "$work/out")"
shows "$work/second/z" changed
for logged in KEPT LOGGED; do
	grep -qx "$logged" "$work/second/.forebay-found/"* || fail "$logged is not found: $(ls "$work/second/.forebay-found")"
done
[ "$(stat -c %a "$work/second/.forebay-found")" = 700 ] || fail "others may look at what was found"
# An unmount names another mount namespace that holds the mount, and does not wait for it
# without end.
"$root/tests/apart" "$work" --propagation=private sleep 600 &
holds=$!
at_end 'kill "$holds" 2>/dev/null || true'
until [ "$(cat "/proc/$holds/comm")" = sleep ]; do
	kill -0 "$holds" || fail "no mount namespace can be made"
	sleep 0.05
done
refused 4 timeout 60 "$FOREBAY" umount "$work/second"
grep -q "process $holds (sleep)" "$work/refused.log" || fail "who holds it is not named: $(cat "$work/refused.log")"
refused 4 timeout 60 "$FOREBAY" umount "$work/second"
kill "$holds"
wait "$holds" 2>/dev/null || true
for ((tries = 0; tries < 600; tries++)); do
	"$FOREBAY" status "$pool" --json | grep -q '"name": ".*/second"' || break
	sleep 0.05
done
[ $tries -lt 600 ] || fail "a mount that nobody holds any more did not end"
refused 3 "$FOREBAY" umount "$work/second"
refused 3 "$FOREBAY" mount "$pool" "$work/nowhere"

# If the server is stopped, the unmount says so and does not wait for ever.
kill -STOP "$server"
got=0
timeout 60 "$FOREBAY" umount "$tree" >"$work/refused.log" 2>&1 || got=$?
kill -CONT "$server"
[ $got = 7 ] || fail "exit code $got of umount, with its server stopped: $(cat "$work/refused.log")"
grep -q "kill -CONT" "$work/refused.log" || fail "the way out is not named: $(cat "$work/refused.log")"

# After a kill there are errors and no hang, and the next mount has everything.
synced "$tree/new" ONE
kill_server
timeout 10 cat "$tree/new" 2>/dev/null && fail "a mount without its server was read"
[ $? != 124 ] || fail "a program hangs on a mount whose server died"
refused 7 "$FOREBAY" umount "$tree"
refused 1 "$FOREBAY" replay "$pool" "$tree" --dry-run
grep -q "server died is in the way" "$work/refused.log" || fail "$(cat "$work/refused.log")"
start_mount "$tree"
shows "$tree/new" ONE
stop_mount
grep -q " $tree " /proc/mounts && fail "it is still mounted"
shows "$tree/new" ONE
shows "$tree/before" before
"$FOREBAY" log show "$pool" mount --json | grep -q '"entries": 0' || fail "the log still holds entries"

# An unmount with --keep leaves the log, which is replayed by itself.
start_mount "$tree"
synced "$tree/kept" kept
"$FOREBAY" umount "$tree" --keep >/dev/null || fail "umount --keep"
wait "$server" || fail "the server ended with code $?"
server='' mounted=''
"$FOREBAY" replay "$pool" "$tree" --dry-run >/dev/null || fail "replay --dry-run"
says '"empty": false' "$FOREBAY" replay "$pool" "$tree" --json
says '"empty": true' "$FOREBAY" replay "$pool" "$tree" --json
shows "$tree/kept" kept

# A signal ends the server while a program has a file open.  All data is in the tree, the log
# is empty, and the program gets errors.  The same holds with --write-back, where the kernel
# held written data.
for how in '' --write-back; do
	# shellcheck disable=SC2086
	start_mount "$tree" $how
	exec 8>"$tree/open"
	echo "open $how" >&8
	kill -TERM "$server"
	wait "$server" || fail "it was ended by a signal with a file open${how:+, $how}: code $?, $(tail -n 3 "$work/mount.log")"
	server='' mounted=''
	# With --write-back the kernel reports it at the sync.
	{ echo more >&8 && sync -d /dev/fd/8; } 2>/dev/null && fail "a program could write when the server had ended"
	exec 8>&-
	shows "$tree/open" "open $how"
	[ -z "$(find "$tree" -name '.forebay*')" ] || fail "a mark is left${how:+, $how}"
done

# The server of the volumes mounts the tree.
start_server --mount "$tree"
mounted=$tree
synced "$tree/served" served
stop_server
mounted=''
shows "$tree/served" served

# This is the helper that mount(8) calls.
helper() { FOREBAY=echo "$root/packaging/mount.forebay" "$@"; }
[ "$(helper /dev/pmem0 /srv/x -o rw,nofail,x-systemd.automount,tree=/t,log=l,ro)" = \
	"mount --log l --read-only -- /dev/pmem0 /t /srv/x" ] || fail "mount.forebay"
[ "$(helper /dev/pmem0 '/srv/a b')" = "mount -- /dev/pmem0 /srv/a b /srv/a b" ] || fail "mount.forebay"
refused 1 helper /dev/pmem0 /srv/x -o odd
# The table has options of any file system, each alone and with those that change it again.
while read -r options wanted; do
	[ "$(helper /p /t -o "$options")" = "mount${wanted:+ $wanted} -- /p /t /t" ] || fail "mount.forebay -o $options: $(helper /p /t -o "$options")"
done <<'O'
defaults
noatime --flags noatime
nodiratime,nosuid --flags nodiratime,nosuid
relatime
strictatime,lazytime,atime,diratime
nosuid,nodev,noexec,nosymfollow --flags nosuid,nodev,noexec,nosymfollow
nosuid,suid,nodev,nodev --flags nodev
user --flags nosuid,nodev,noexec
users,exec --flags nosuid,nodev
owner,dev,suid,exec
ro,rw
rw,ro --read-only
slow_log,sync_interval=2s,sync_bytes=1M --slow-log --sync-interval 2s --sync-bytes 1M
slow_log,sync_interval=2s,sync_bytes=1M,sync,names_at_sync,ro --read-only
sync --log-writes
sync,async
dirsync,nouser,silent,uhelper=forebay,comment=x
O
# A tree that lacks changes in its log is marked.  No other pool or log may have it, nor an
# older copy of the pool, and the mark is not visible through the mount.
other=$shm/other
"$FOREBAY" create "$other" --size 64M >/dev/null
cp "$pool" "$shm/older"
start_mount "$tree"
ls -A "$tree" | grep -q '^\.forebay' && fail "the mark is seen through the mount"
ln -s x "$tree/.forebay-mount" 2>/dev/null && fail "a program can have the mark's name"
synced "$tree/marked" acknowledged
kill_mount
refused 12 "$FOREBAY" mount "$other" "$tree"
grep -q "log mount of pool $(uuid_of "$pool")" "$work/refused.log" || fail "the log is not named: $(cat "$work/refused.log")"
grep -q "forebay unmark" "$work/refused.log" || fail "the way out is not named"
refused 12 "$FOREBAY" mount "$pool" "$tree" --log elsewhere
refused 12 "$FOREBAY" replay "$other" "$tree"
mkdir -p "$tree/below"
refused 12 "$FOREBAY" mount "$other" "$tree/below"
# A mount that shows only that part does not allow it either, whether the mark is covered or
# not.
mkdir -p "$work/disk/a b/c" "$work/part" "$work/all"
mount --bind "$tree/below" "$work/part"
mount --bind "$tree" "$work/all"
at_end 'umount "$work/part" "$work/all" 2>/dev/null || true'
refused 12 "$FOREBAY" mount "$other" "$work/part"
grep -q "is marked, and this tree is a part of it" "$work/refused.log" || fail "$(cat "$work/refused.log")"
start_mount "$tree"
refused 12 "$FOREBAY" mount "$other" "$work/part"
refused 4 "$FOREBAY" mount "$other" "$work/all"
kill_mount
umount "$work/part" "$work/all"
refused 11 "$FOREBAY" mount "$shm/older" "$tree"
mv "$pool" "$shm/newer" && mv "$shm/older" "$pool"
refused 11 "$FOREBAY" replay "$pool" "$tree" --dry-run
mv "$shm/newer" "$pool"
start_mount "$tree"
shows "$tree/marked" acknowledged
stop_mount
ls -A "$tree" | grep -q '^\.forebay' && fail "a mark is left in a tree that has everything"
# A tree without a mark may be mounted in part.  A file with the mark's name is refused, and is
# not visible, at any depth.
mount --bind "$tree/below" "$work/part"
mkdir -p "$tree/deep/er/in" "$tree/deep/er/done"
start_mount "$tree"
ln -s x "$tree/deep/.forebay-mount" 2>/dev/null && fail "a program can have the mark's name below the root"
ln -s x "$tree/deep/.forebay-done" 2>/dev/null && fail "a program can have the other mark's name below the root"
stop_mount
"$FOREBAY" mount "$other" "$work/part" >/dev/null || fail "a part of a tree without a mark is not mounted"
"$FOREBAY" umount "$work/part" >/dev/null || fail "umount of a part"
umount "$work/part"
ln -s '{}' "$tree/deep/er/in/.forebay-mount"
ln -s '{}' "$tree/deep/er/done/.forebay-done"
start_mount "$tree"
ls "$tree/deep/er/in" 2>/dev/null && fail "a directory with a mark of its own is entered"
[ -z "$(ls -A "$tree/deep/er/done")" ] || fail "a mark that is over is seen"
rmdir "$tree/deep/er/done" || fail "a directory that shows nothing is not empty"
stop_mount
rm -r "$tree/deep"

# A user who is not root replays onto files of his own, whatever their modes are.
if ! command -v setpriv >/dev/null; then
	skip_part "one who is not root" "setpriv is not installed"
else
	mkdir "$tree/own" && chown 1000:1000 "$tree/own"
	chmod 711 "$shm" "$work"
	as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups env FOREBAY_RUNTIME_DIR="$work/user-run" "$@"; }
	own=$pool pool=$shm/of-user
	start_mount "$tree/own" --sync-interval 600s
	as_user python3 - "$tree/own" <<'P' || fail "a program of the user"
import os, sys
os.chdir(sys.argv[1])
def write(name, data):
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
os.mkdir("d")
write("d/kept", b"kept")
write("read-only", b"first")
os.chmod("d", 0o500)
P
	stop_mount
	start_mount "$tree/own" --sync-interval 600s
	as_user python3 - "$tree/own" <<'P' || fail "a program of the user"
import os, sys
os.chdir(sys.argv[1])
file = os.open("read-only", os.O_RDWR)
os.pwrite(file, b"SECOND", 0)
os.fchmod(file, 0o400)
os.fsync(file)
os.chmod("d", 0o700)
os.rename("d/kept", "d/moved")
os.chmod("d", 0o500)
P
	kill_mount
	# A crash may leave the tree like this: with earlier names and bytes, and with the
	# modes.
	(cd "$tree/own" && mv d/moved d/kept && chmod 644 read-only && echo -n first >read-only && chmod 400 read-only)
	chown 1000:1000 "$pool" "$tree/own"
	as_user "$FOREBAY" replay "$pool" "$tree/own" >"$work/replay.log" 2>&1 || fail "the user's replay: $(cat "$work/replay.log")"
	[ "$(stat -c %a "$tree/own/read-only" "$tree/own/d" | tr '\n' ' ')" = "400 500 " ] || fail "the modes are others: $(ls -la "$tree/own")"
	[ "$(cat "$tree/own/read-only")" = SECOND ] || fail "what was synced is lost"
	[ -e "$tree/own/d/moved" ] && [ ! -e "$tree/own/d/kept" ] || fail "a rename is lost"
	# The user mounts, and unmounts the dead mount of his own server.
	if as_user sh -c 'exec 3<>/dev/fuse' 2>/dev/null && command -v fusermount3 >/dev/null; then
		chmod 711 "$work/disk" "$tree"
		mkdir -m 700 "$work/user-run" && chown 1000:1000 "$work/user-run"
		as_user "$FOREBAY" mount "$pool" "$tree/own" >"$work/user.log" 2>&1 || fail "the user's mount: $(cat "$work/user.log")"
		at_end 'umount -l "$tree/own" 2>/dev/null || true'
		as_user sh -c 'echo his >"$1/his" && sync "$1/his"' sh "$tree/own"
		server=$(as_user "$FOREBAY" status "$pool" --json | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)
		of_user=$server
		kill_server
		for ((tries = 0; tries < 1200; tries++)); do kill -0 "$of_user" 2>/dev/null || break; sleep 0.05; done
		as_user "$FOREBAY" mount "$pool" "$tree/own" >"$work/user.log" 2>&1 || fail "over his dead mount: $(cat "$work/user.log")"
		as_user "$FOREBAY" umount "$tree/own" >"$work/user.log" 2>&1 || fail "the user's umount: $(cat "$work/user.log")"
		shows "$tree/own/his" his
	else
		skip_part "a mount of one who is not root" "/dev/fuse is not his to open, or fusermount3 is not installed"
	fi
	pool=$own
fi

# A drain of a pool syncs the trees of its mounts, and names the logs that it cannot empty.
start_mount "$tree" --sync-interval 600s
synced "$tree/drained" drained
"$FOREBAY" status "$pool" --json | grep -q '"groups_unsynced": 0' && fail "nothing is left to drain"
says '"complete": true' "$FOREBAY" drain "$pool" --json
says '"groups_unsynced": 0' "$FOREBAY" status "$pool" --json
synced "$tree/drained" DRAINED
kill_mount
refused 14 "$FOREBAY" drain "$pool"
grep -q "log mount: NOT drained: it holds" "$work/refused.log" || fail "drain says nothing of the log: $(cat "$work/refused.log")"
refused 14 "$FOREBAY" drain "$pool" --json
grep -q '"complete": false' "$work/refused.log" || fail "drain --json: $(cat "$work/refused.log")"
start_mount "$tree"
stop_mount
shows "$tree/drained" DRAINED
says "nothing left to drain" "$FOREBAY" drain "$pool"

# The loss has to be accepted by name, and the first log is not replayed onto later changes.
start_mount "$tree"
synced "$tree/lost" "to be lost"
kill_mount
refused 12 "$FOREBAY" unmark "$tree"
refused 12 "$FOREBAY" unmark "$tree" --json
grep -q '"removed": false' "$work/refused.log" || fail "unmark --json: $(cat "$work/refused.log")"
says '"removed": true' "$FOREBAY" unmark "$tree" --accept-loss --json
says '"marked": false' "$FOREBAY" unmark "$tree" --json
own=$pool pool=$other
start_mount "$tree"
synced "$tree/lost" "by another"
stop_mount
pool=$own
refused 11 "$FOREBAY" mount "$pool" "$tree"
refused 11 "$FOREBAY" replay "$pool" "$tree"
shows "$tree/lost" "by another"
"$FOREBAY" log destroy "$pool" mount --discard >/dev/null || fail "log destroy"

# A server whose directory others may enter cannot be asked, and says so.  Without its mount
# it ends.
mkdir -m 755 "$work/open"
says "umount cannot reach this server: .*chmod 700" env FOREBAY_RUNTIME_DIR="$work/open" "$FOREBAY" mount "$pool" "$tree"
umount "$tree"
for ((tries = 0; tries < 200; tries++)); do
	"$FOREBAY" dump superblock "$pool" --json 2>/dev/null | grep -q '"clean": true' && break
	sleep 0.05
done
((tries < 200)) || fail "the server of a mount that was taken away does not end"
# After an unmount the log can be mounted again at once, because its server has closed the
# pool.
own=$pool pool=$shm/large
"$FOREBAY" create "$pool" --size 256M >/dev/null
for again in 1 2 3 4 5 6 7 8; do
	"$FOREBAY" mount "$pool" "$tree" >"$work/again.log" 2>&1 || fail "mounted again, try $again: $(cat "$work/again.log")"
	"$FOREBAY" umount "$tree" >/dev/null || fail "umount, try $again"
done
pool=$own
umount_disk

# Programs get the kinds of directory entries even if the file system does not store them.
truncate -s 16M "$work/image" && mkfs.ext4 -qF -O ^filetype "$work/image"
mount_image "$work/image" "$work/disk"
mkdir -p "$tree/a/b" && touch "$tree/a/b/c" && ln -s c "$tree/a/b/s"
start_mount "$tree"
kinds() { find "$tree" -mindepth 1 -printf '%y %P\n' | sort | tr '\n' ' '; }
[ "$(kinds)" = "d a d a/b f a/b/c l a/b/s " ] || fail "kinds are told as $(kinds)"
# A replay onto a full tree says so and keeps the log.  It succeeds when there is room.
synced "$tree/a/b/c" kept
kill_mount
dd if=/dev/zero of="$work/disk/fill" bs=64k 2>/dev/null || true
dd if=/dev/zero of="$work/disk/fill2" bs=1k 2>/dev/null || true
refused 8 "$FOREBAY" mount "$pool" "$tree"
grep -q "No space left.*make room" "$work/refused.log" || fail "$(cat "$work/refused.log")"
rm "$work"/disk/fill*
start_mount "$tree"
shows "$tree/a/b/c" kept
stop_mount
umount_disk
say "mounted, killed, kept, replayed, served"
