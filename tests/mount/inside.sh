#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount that would hold or hide what its own server needs is refused by name, before
# anything is changed.  A pool may lie in its tree all the same, or the mountpoint above the tree.
# Then a killed server leaves nothing that needs another command than mount or replay.
# Method: an ext4 on a file; pools in the tree, by several paths; servers that are killed.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"

make_disk ext4 96M
tree=$work/disk/tree
mkdir -p "$tree/sub" "$work/at" "$work/bound"
ln -s "$tree/sub" "$work/link"
# Other tests have mounts, too.
is_mounted_here() {
	awk -v work="$work/" -v shm="$shm/" '
		/ fuse\.forebay / && (index($5, work) == 1 || index($5, shm) == 1 || $5 ~ "^/(dev|proc|sys|tmp)?$") { found = 1 }
		END { exit !found }' /proc/self/mountinfo
}
refused() { # CODE TEXT COMMAND...
	local code=$1 text=$2 got=0
	shift 2
	timeout 60 "$@" >"$work/refused.log" 2>&1 || got=$?
	[ $got = "$code" ] && grep -q "$text" "$work/refused.log" ||
		{ cat "$work/refused.log" >&2; fail "exit code $got, not $code with '$text': $*"; }
	! find "$tree" -maxdepth 1 -name '.forebay-*' | grep -q . || fail "the tree was changed: $*"
	! is_mounted_here || fail "it is mounted: $*"
}
pid_of() { "$FOREBAY" status "$1" --json | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1; }
kill_server_of() { # POOL
	local pid tries
	pid=$(pid_of "$1")
	kill -KILL "$pid"
	for ((tries = 0; tries < 1200; tries++)); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.05; done
	fail "the server $pid does not end"
}
at_end 'umount -l "$work/bound" "$work/disk/tree" 2>/dev/null || true'

# The pool is in the tree, and is named by each path that leads there.
inside=$tree/sub/pool
"$FOREBAY" create "$inside" --size 32M >/dev/null
mount --bind "$tree/sub" "$work/bound"
for path in "$inside" "$work/link/pool" "$work/bound/pool"; do
	for at in "$tree" "$work/at"; do
		refused 2 "the pool, lies in the tree" "$FOREBAY" mount "$path" "$tree" "$at"
	done
done
umount "$work/bound"
# A bind mount shows the tree elsewhere.
mount --bind "$tree" "$work/bound"
refused 2 "the pool, lies in the tree" "$FOREBAY" mount "$inside" "$work/bound"
umount "$work/bound"
truncate -s 32M "$tree/sub/disk"
if loop=$(loop_device "$tree/sub/disk" 2>/dev/null); then
	if "$FOREBAY" create "$loop" --medium ssd >"$work/loop.log" 2>&1; then
		refused 2 "the pool, lies in the tree" "$FOREBAY" mount "$loop" "$tree" --slow-log
	else
		skip_part "a pool on a loop device" "$(head -n 1 "$work/loop.log")"
	fi
	losetup -d "$loop"
else
	skip_part "a pool on a loop device" "there is no loop device"
fi
rm "$tree/sub/disk"

# The mountpoint would hide these.
"$FOREBAY" create "$pool" --size 64M >/dev/null
refused 2 "would hide .*the pool" "$FOREBAY" mount "$pool" "$tree" "$(dirname "$pool")"
refused 2 "would hide /dev/fuse" "$FOREBAY" mount "$pool" "$tree" /dev
refused 2 "would hide /proc," "$FOREBAY" mount "$pool" "$tree" /proc
refused 2 "would hide /sys/fs/fuse" "$FOREBAY" mount "$pool" "$tree" /sys
refused 2 "a mount at / would hide" "$FOREBAY" mount "$pool" "$tree" /
mkdir -m 700 "$tree/run"
FOREBAY_RUNTIME_DIR=$tree/run refused 2 FOREBAY_RUNTIME_DIR "$FOREBAY" mount "$pool" "$tree"
FOREBAY_RUNTIME_DIR=$tree/run/new refused 2 FOREBAY_RUNTIME_DIR "$FOREBAY" mount "$pool" "$tree"
rm -r "$tree/run"
# The tree has an origin of the same pool.
truncate -s 4M "$tree/disk"
"$FOREBAY" volume add "$pool" v "$tree/disk" >/dev/null
refused 2 "the origin of its volume v, lies in the tree" "$FOREBAY" mount "$pool" "$tree"
"$FOREBAY" volume remove "$pool" v >/dev/null
say "what a mount needs is refused in its tree, and below its mountpoint"

# A pool is in its tree below a dead mount, as an earlier version left it.
synced() { echo "$1" >"$1" && sync "$1"; }
mount --bind "$tree" "$work/bound"
rm "$inside"
for first in mount replay; do
	"$FOREBAY" mount "$pool" "$tree" --sync-interval 600s >/dev/null
	(cd "$tree" && synced "in-$first")
	kill_server_of "$pool"
	cp "$pool" "$work/bound/sub/pool"
	got=0
	"$FOREBAY" status "$inside" >"$work/dead.log" 2>&1 || got=$?
	[ $got != 0 ] && grep -q "whose server has died" "$work/dead.log" || fail "status of a pool below a dead mount: $got, $(cat "$work/dead.log")"
	if [ $first = mount ]; then
		got=0
		"$FOREBAY" mount "$inside" "$tree" >"$work/dead.log" 2>&1 || got=$?
		[ $got = 2 ] && grep -q "forebay replay" "$work/dead.log" || fail "mount of a pool below a dead mount: $got, $(cat "$work/dead.log")"
	fi
	"$FOREBAY" replay "$inside" "$tree" >"$work/dead.log" 2>&1 || fail "replay of a pool in its tree: $(cat "$work/dead.log")"
	[ "$(cat "$tree/in-$first")" = "in-$first" ] || fail "what was synced is lost"
	cp "$inside" "$pool" && rm "$inside"
done
umount "$work/bound"

# The mountpoint lies above the tree.
above=$work/disk
"$FOREBAY" mount "$pool" "$tree" "$above" >/dev/null || fail "no mount above the tree"
for how in mount replay unmark; do
	(cd "$above" && synced "$how")
	kill_server_of "$pool"
	case $how in
	mount) "$FOREBAY" mount "$pool" "$tree" "$above" >"$work/above.log" 2>&1 || fail "mount: $(cat "$work/above.log")" ;;
	replay) "$FOREBAY" replay "$pool" "$tree" >"$work/above.log" 2>&1 || fail "replay: $(cat "$work/above.log")" ;;
	unmark)
		got=0
		"$FOREBAY" unmark "$tree" >"$work/above.log" 2>&1 || got=$?
		[ $got = 12 ] || fail "unmark: $got, $(cat "$work/above.log")"
		"$FOREBAY" replay "$pool" "$tree" >/dev/null || fail "replay after unmark"
		;;
	esac
	[ "$how" = mount ] || [ "$(cat "$tree/$how")" = "$how" ] || fail "$how: what was synced is lost"
	[ "$how" = mount ] || "$FOREBAY" mount "$pool" "$tree" "$above" >/dev/null
done
"$FOREBAY" umount "$above" >/dev/null
say "dead mounts above the tree, and over it, are removed first"
