# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The part that the scripts of this directory share, on top of tests/serve/lib.sh: a file system
# on a file, a pool, and a mount.

[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root"

pool_size=${POOL_SIZE:-64M}
mounted=''

# MEDIUM=ssd runs any of the tests with a pool that is written in groups, in a file on a disk.
medium=${MEDIUM:-memory}
if [ "$medium" = ssd ]; then
	pool=$work/ssd.pool
	MOUNT_OPTIONS="${MOUNT_OPTIONS:-} --slow-log"
fi

make_pool() {
	case $medium in
	ssd) "$FOREBAY" create "$pool" --size "${SSD_SIZE:-64M}" --medium ssd >"$work/create.log" 2>&1 || skip "no place for a pool in groups: $(cat "$work/create.log")" ;;
	*) "$FOREBAY" create "$pool" --size "$pool_size" >/dev/null ;;
	esac
}

compile() { # PROGRAM gcc's arguments...
	local program=$1
	shift
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/$program" "$@"
}

# make_disk SYSTEM SIZE: a new file system at $work/disk; skips what cannot be had.
make_disk() {
	need "mkfs.$1" losetup
	rm -f "$work/image"
	truncate -s "$2" "$work/image"
	case $1 in
	ext4) mkfs.ext4 -qF "$work/image" ;;
	*) "mkfs.$1" -qf "$work/image" >/dev/null ;;
	esac
	mkdir -p "$work/disk"
	mount_image "$work/image" "$work/disk" || skip "$1 cannot be mounted from a file here"
}
# copy_frozen DISK COPY: copies the disk of the file system at $work/disk as it is at one moment.
copy_frozen() {
	local code=0
	fsfreeze -f "$work/disk"
	cp --sparse=always "$1" "$2" || code=$?
	fsfreeze -u "$work/disk" # whatever came, since a frozen file system stops all who use it
	[ $code = 0 ] || fail "$1 cannot be copied to $2"
}
umount_disk() { ! mountpoint -q "$work/disk" || umount "$work/disk"; }
at_end 'umount -l "$work/disk" 2>/dev/null || true'
# First of all, since no path leads to a disk that was unmounted.
at_end 'timeout -k 5 5 fsfreeze -u "$work/disk" 2>/dev/null || true'

# start_mount TREE [OPTIONS]: over the tree itself; returns when programs can use it.
# MOUNT_OPTIONS="--log-writes" runs any of the tests with that.
start_mount() {
	local tree=$1 tries said
	shift
	[ -e "$pool" ] || make_pool
	# The server also says that when its status names the mount, a moment after the kernel has it.
	: >>"$work/mount.log"
	said=$(grep -ac '^mounted ' "$work/mount.log") || true
	# shellcheck disable=SC2086
	"$FOREBAY" mount "$pool" "$tree" --allow-other --foreground ${MOUNT_OPTIONS:-} "$@" >>"$work/mount.log" 2>&1 &
	server=$!
	mounted=$tree
	for ((tries = 0; tries < 1200; tries++)); do
		[ "$(grep -ac '^mounted ' "$work/mount.log")" -gt "$said" ] && return
		kill -0 "$server" 2>/dev/null || { tail -n 20 "$work/mount.log" >&2; fail "the mount ended before it was there"; }
		sleep 0.05
	done
	fail "no mount after 60 s"
}

# Unmounts in order, so that the log's content is in the tree.
stop_mount() {
	# A mount namespace that another test has just begun has a copy of the mount for a moment.  The
	# server ends with the last copy.
	"$FOREBAY" umount "$mounted" >"$work/umount.log" 2>&1 || grep -q "not in another mount namespace" "$work/umount.log" ||
		{ tail -n 5 "$work/umount.log" >&2; fail "umount failed"; }
	cat "$work/umount.log" >>"$work/mount.log"
	await_end "$server" 200 || fail "the mount's process does not end: $(cat "$work/umount.log"; stacks_of "$server")"
	wait "$server" || fail "the mount's process ended with code $?"
	server='' mounted=''
}

# Kills the server without notice.
# Leaders of the process groups that use the mount; end_programs ends them.
programs=()
end_programs() {
	local program
	for program in "${programs[@]}"; do kill -KILL -- "-$program" 2>/dev/null || true; done
	wait "${programs[@]}" 2>/dev/null || true
	programs=()
}
at_end end_programs
# Without its mount a path leads to the tree itself: a program that went on there would change what
# no log has.  Whoever waits in the kernel has found its way already.
stop_programs() {
	local program tries
	for program in "${programs[@]}"; do kill -STOP -- "-$program" 2>/dev/null || true; done
	for ((tries = 0; tries < 500; tries++)); do
		# shellcheck disable=SC2009
		ps -eL -o pgid=,stat= | grep -Eq "^ *($(IFS='|' && echo "${programs[*]:-none}")) +R" || return 0
		sleep 0.01
	done
	fail "the programs do not stop"
}

kill_mount() {
	kill -KILL "$server"
	stop_programs
	# A thread of the server that has just asked its own mount for something would keep it from
	# ending: -f makes the kernel answer.
	[ -z "$mounted" ] || umount -f -l "$mounted" 2>/dev/null || true
	await_end "$server" 60 || fail "the mount's process that was killed does not end: $(stacks_of "$server")"
	wait "$server" 2>/dev/null || true
	server=''
	mounted=''
}
at_end '[ -z "$mounted" ] || umount -l "$mounted" 2>/dev/null || true'
