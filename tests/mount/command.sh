#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: forebay mount, umount and what shows a mount do what their help says; a server that
# is killed leaves programs with errors and not with hangs; what was synced is there after
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
refused() { # CODE COMMAND...
	local code=$1 got=0
	shift
	"$@" >"$work/refused.log" 2>&1 || got=$?
	[ $got = "$code" ] || { cat "$work/refused.log" >&2; fail "exit code $got, not $code: $*"; }
}

# In the background: it returns when programs can use it, and holds no terminal.
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
# A second one by the same server, with a log of its own; without that it is refused.
mkdir "$work/disk/second" "$work/second"
refused 4 "$FOREBAY" mount "$pool" "$work/disk/second" "$work/second"
"$FOREBAY" mount "$pool" "$work/disk/second" "$work/second" --log second >/dev/null || fail "a second mount"
synced "$work/second/x" two
shows "$work/disk/second/x" two
# What is in use stays.
exec 8>"$work/second/held"
refused 4 "$FOREBAY" umount "$work/second"
exec 8>&-
"$FOREBAY" umount "$work/second" >/dev/null || fail "umount of the second"
refused 3 "$FOREBAY" umount "$work/second"
refused 3 "$FOREBAY" mount "$pool" "$work/nowhere"

# Killed: errors and no hang, and the next mount has it all.
synced "$tree/new" ONE
kill_server
timeout 10 cat "$tree/new" 2>/dev/null && fail "a mount without its server was read"
[ $? != 124 ] || fail "a program hangs on a mount whose server died"
refused 7 "$FOREBAY" umount "$tree"
start_mount "$tree"
shows "$tree/new" ONE
stop_mount
grep -q " $tree " /proc/mounts && fail "it is still mounted"
shows "$tree/new" ONE
shows "$tree/before" before
"$FOREBAY" log show "$pool" mount --json | grep -q '"entries": 0' || fail "the log still holds entries"

# Kept, and replayed alone.
start_mount "$tree"
synced "$tree/kept" kept
"$FOREBAY" umount "$tree" --keep >/dev/null || fail "umount --keep"
wait "$server" || fail "the server ended with code $?"
server='' mounted=''
"$FOREBAY" replay "$pool" "$tree" --dry-run >/dev/null || fail "replay --dry-run"
"$FOREBAY" replay "$pool" "$tree" --json | grep -q '"empty": false' || fail "replay"
"$FOREBAY" replay "$pool" "$tree" --json | grep -q '"empty": true' || fail "a second replay"
shows "$tree/kept" kept

# By the server of the volumes.
start_server --mount "$tree"
mounted=$tree
synced "$tree/served" served
stop_server
mounted=''
shows "$tree/served" served

# What mount(8) calls.
helper() { FOREBAY=echo "$root/packaging/mount.forebay" "$@"; }
[ "$(helper /dev/pmem0 /srv/x -o rw,nofail,x-systemd.automount,tree=/t,log=l,ro)" = \
	"mount --log l --read-only -- /dev/pmem0 /t /srv/x" ] || fail "mount.forebay"
[ "$(helper /dev/pmem0 '/srv/a b')" = "mount -- /dev/pmem0 /srv/a b /srv/a b" ] || fail "mount.forebay"
refused 1 helper /dev/pmem0 /srv/x -o odd
umount_disk
say "mounted, killed, kept, replayed, served"
