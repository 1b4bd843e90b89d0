#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount whose pool's file is removed, replaced or cut short acknowledges nothing that a crash
# would take, and says what has happened.
# Method: a file is synced through a mount whose log is synced to the tree once an hour; then the
# pool's file is lost.  Each sync from the time on that status says so gets EIO.  The tree's disk
# loses what was not flushed, and the server is killed: without the log the tree has the file, and
# bears no mark.  In a second round the mount ends in order, with its exit code.  A pool that is
# moved goes on.  At the end a server has a volume, too, and its exit code says that nothing is lost.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
need python3 mkfs.ext4

seed=${SEED:-1}
bytes=$((64 << 20))
memory_pool=$pool ssd_pool=$work/ssd.pool
tree=$work/disk/tree

lose() { # WAY
	case $1 in
	removed) rm "$pool" ;;
	replaced) echo another >"$pool.new" && mv "$pool.new" "$pool" ;;
	cut-short) truncate -s -1M "$pool" ;;
	moved) mv "$pool" "$pool.elsewhere" ;;
	esac
}
status_of() { "$FOREBAY" status "/proc/$server/fd/$fd" "$@" 2>/dev/null; }
# The descriptor of the pool's file in the server.
find_fd() {
	local link
	for link in "/proc/$server/fd"/*; do
		[ "$(readlink "$link")" != "$pool" ] || { fd=${link##*/} && return; }
	done
	fail "the server has no descriptor of $pool"
}
# until_status KEY VALUE: in the JSON, as python says it.
until_status() {
	local tries
	for ((tries = 0; tries < 200; tries++)); do
		status_of --json | python3 -c "
import json, sys
s = json.load(sys.stdin)
sys.exit(0 if $1 else 1)" 2>/dev/null && return
		sleep 0.1
	done
	fail "$what: status does not say $1: $(status_of --json)"
}
new_tree() {
	truncate -s 0 "$work/platter"
	truncate -s $bytes "$work/platter"
	rm -f "$pool" "$pool.elsewhere"
	start_disk ext4
	mkdir "$tree"
	sync -f "$work/disk"
}
begin() {
	new_tree
	start_mount "$tree" --sync-interval 1h
	find_fd
	echo precious >"$tree/a" && sync "$tree/a"
	mkdir "$tree/d"
}
# A sync that is acknowledged ends with 0.
synced() { python3 - "$tree/$1" <<'P'
import errno, os, sys
try:
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    os.write(file, b"later")
    os.fsync(file)
except OSError as e:
    sys.exit(5 if e.errno == errno.EIO else f"errno {e.errno}")
P
}
kept() {
	[ "$(cat "$tree/a")" = precious ] && [ -d "$tree/d" ] || fail "$what: the tree lacks what was acknowledged: $(ls -lA "$tree")"
	[ ! -L "$tree/.forebay-mount" ] || fail "$what: the tree bears a mark of a log that nobody has: $(ls -lA "$tree")"
}

for medium in memory ssd; do
	MOUNT_OPTIONS='' pool=$memory_pool
	[ $medium != ssd ] || MOUNT_OPTIONS=--slow-log pool=$ssd_pool
	for way in removed replaced cut-short; do
		what="$medium, $way"
		begin
		lose $way
		until_status "s['file_trouble']['what'] == '${way/replaced/removed}'"
		code=0
		synced a || code=$?
		[ $code = 5 ] || fail "$what: a sync is acknowledged, or fails otherwise: $code"
		until_status "any('is complete, with everything that programs were told' in t for m in s['services'] for t in m['trouble'])"
		status_of | grep -Eq '^LOST +its file was (deleted|cut short)' || fail "$what: status does not say it: $(status_of)"
		"$FOREBAY" exporter "/proc/$server/fd/$fd" --textfile "$work/figures" || fail "$what: exporter"
		grep -Eq '^forebay_pool_file_lost\{.*\} 1$' "$work/figures" || fail "$what: the exporter does not say it"
		[ $way = cut-short ] || grep -q "forebay drain /proc/$server/fd/" "$work/mount.log" || fail "$what: the log has no way out"
		if [ $way = removed ]; then
			"$FOREBAY" status "$pool" | grep -q '^LOST' || fail "$what: status of its path"
		fi
		cut_disk
		kill_mount
		stop_disk
		start_disk
		kept
		stop_disk

		begin
		lose $way
		until_status "s['file_trouble']['what'] == '${way/replaced/removed}'"
		timeout 60 "$FOREBAY" drain "/proc/$server/fd/$fd" >"$work/out" 2>&1 || fail "$what: drain ends with $?: $(cat "$work/out")"
		code=0
		"$FOREBAY" umount "$tree" >"$work/out" 2>&1 || code=$?
		[ $code = 7 ] || fail "$what: umount ends with $code: $(cat "$work/out")"
		grep -q "$tree is complete, with everything that was acknowledged" "$work/out" || fail "$what: umount does not say that the tree is complete: $(cat "$work/out")"
		code=0
		wait "$server" || code=$?
		[ $code = 7 ] || [ $code = 5 ] || fail "$what: the server ends with $code"
		server='' mounted=''
		kept
		stop_disk
		say "$what: told, no sync is acknowledged, the tree is complete"
	done
	what="$medium, moved"
	begin
	lose moved
	until_status "s['file_trouble']['what'] == 'moved'"
	synced a || fail "$what: a sync fails"
	status_of | grep -Eq '^MOVED +its file was moved' || fail "$what: status does not say it: $(status_of)"
	stop_mount
	stop_disk
	say "$what: told, and goes on"
done

what="a mount and a volume"
pool=$memory_pool
new_tree
"$FOREBAY" create "$pool" --size 64M >/dev/null
truncate -s 4M "$work/v.img"
"$FOREBAY" volume add "$pool" v "$work/v.img" >/dev/null
start_server
"$FOREBAY" mount "$pool" "$tree" --sync-interval 1h >"$work/out" 2>&1 || fail "$what: $(cat "$work/out")"
mounted=$tree
find_fd
echo precious >"$tree/a" && sync "$tree/a"
mkdir "$tree/d"
lose removed
until_status "any('is complete, with everything that programs were told' in t for m in s['services'] for t in m['trouble'])"
kill -TERM "$server"
code=0
wait "$server" || code=$?
server='' mounted=''
[ $code = 20 ] || fail "$what: the server ends with $code: $(cat "$work/server.log")"
! grep -q 'is lost' "$work/server.log" || fail "$what: told as lost: $(cat "$work/server.log")"
kept
say "$what: the server ends with 20"

# The tree keeps the proof that it is complete.  A mount for reading takes it as it is.
what="read-only, after a loss"
[ -L "$tree/.forebay-done" ] && [ -e "$tree/.forebay-group" ] || fail "$what: the proof is not kept: $(ls -lA "$tree")"
mkdir -p "$work/read-only"
mount --bind "$tree" "$work/read-only"
at_end 'umount -l "$work/read-only" 2>/dev/null || true'
mount -o remount,bind,ro "$work/read-only"
rm -f "$pool"
medium=memory MOUNT_OPTIONS=''
start_mount "$work/read-only" --read-only
[ "$(cat "$work/read-only/a")" = precious ] || fail "$what: $(ls -lA "$work/read-only")"
stop_mount
[ -L "$tree/.forebay-done" ] && [ -e "$tree/.forebay-group" ] || fail "$what: the proof is gone: $(ls -lA "$tree")"
umount "$work/read-only"
stop_disk
say "$what: mounted, and nothing is removed"
