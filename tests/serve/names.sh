#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a pool is opened whatever other devices of the machine have: a file whose server hangs, or one
# of the same path in another container.  A pool of a partition is locked by the file below it.  A
# lock of readers is called one.
# Method: a loop device over a FUSE file whose server is stopped; a mount namespace with another
# directory at the path of a loop device's file, and without nodes of loop devices; one with the node
# of the partition alone; a user who locks the file of a pool's loop device.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need gcc losetup partx setpriv
[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root: the file that hangs is of a FUSE file system"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/volatile_disk" "$root/tests/serve/volatile_disk.c"

disk=''
at_end '[ -z "$disk" ] || kill -KILL "$disk" 2>/dev/null; umount -l "$work/disk" 2>/dev/null'
attach() { # FILE [OPTIONS OF losetup]: sets device
	device=$(loop_device "$@") || skip "$(cat "$work/no-loop")"
}
# said CODE PATTERN COMMAND...: exits with it in time, and says that.
said() {
	local code=$1 pattern=$2 rc=0
	shift 2
	timeout -k 1 40 "$@" >"$work/said.log" 2>&1 || rc=$?
	[ $rc = "$code" ] && grep -q -- "$pattern" "$work/said.log" && return
	cat "$work/said.log" >&2
	fail "exit code $rc and not $code with \"$pattern\": $*"
}

# --- a file that does not answer -------------------------------------------------------------

make_pool 32M data=8M
truncate -s 64M "$work/free.img" "$work/new.img"
attach "$work/free.img"
free=$device
mkdir "$work/disk"
truncate -s 64M "$work/platter"
"$work/volatile_disk" "$work/disk" "$work/platter" $((64 << 20)) >"$work/disk.log" 2>"$work/disk.err" &
disk=$!
for ((tries = 0; tries < 3000; tries++)); do
	[ ! -s "$work/disk/disk" ] || break
	kill -0 "$disk" 2>/dev/null || { disk=''; skip "cannot mount: $(cat "$work/disk.err")"; }
	sleep 0.02
done
attach "$work/disk/disk"
kill -STOP "$disk"
said 0 'no errors' "$FOREBAY" check "$pool"
said 0 '' "$FOREBAY" volume add "$pool" more "$work/new.img"
said 0 '' "$FOREBAY" create "$free" --medium ssd --chunk-size 64K
start_server
said 0 '' "$FOREBAY" drain "$pool"
stop_server
kill -CONT "$disk"
losetup -d "$device"
say "a loop device whose file does not answer holds nobody up"

# --- a container with the same path ----------------------------------------------------------

mkdir "$work/there" "$work/here" "$work/dev"
truncate -s 16M "$work/there/pool" "$work/there/origin"
for file in pool origin; do attach "$work/there/$file"; done
"$FOREBAY" create "$work/here/pool" --size 32M >/dev/null
truncate -s 16M "$work/here/origin"
cat >"$work/inside.sh" <<'I'
set -e
work=$1 FOREBAY=$2 nodes=("${@:3}")
mount -t tmpfs none "$work/dev"
mkdir "$work/dev/shm"
cp -a /dev/null /dev/zero /dev/urandom "${nodes[@]}" "$work/dev/"
mount --bind "$work/here" "$work/there"
mount --rbind "$work/dev" /dev
I
cat "$work/inside.sh" - >"$work/container.sh" <<'I'
"$FOREBAY" check "$work/there/pool"
"$FOREBAY" volume add "$work/there/pool" v "$work/there/origin"
I
apart=("$root/tests/apart" "$work" bash)
said 0 'no errors' "${apart[@]}" "$work/container.sh" "$work" "$FOREBAY"
say "a loop device of another container is nobody's, whatever its path"

# --- a partition of a loop device that has no node -------------------------------------------

truncate -s 64M "$work/parts.img"
{ # one of 32 MiB, from 1 MiB on
	printf '\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x01\0' | dd of="$work/parts.img" bs=1 seek=446 conv=notrunc
	printf '\x55\xaa' | dd of="$work/parts.img" bs=1 seek=510 conv=notrunc
} 2>/dev/null
attach "$work/parts.img"
at_end "partx -d $device"
partx -a "$device" 2>/dev/null || true # not each kernel finds it itself
for ((tries = 0; tries < 100; tries++)); do [ ! -b "${device}p1" ] || break; sleep 0.05; done
if [ -b "${device}p1" ]; then
	"$FOREBAY" create "${device}p1" --medium ssd --chunk-size 64K >/dev/null
	cat "$work/inside.sh" - >"$work/part.sh" <<'I'
"$FOREBAY" check "$3"
I
	said 0 'no errors' "${apart[@]}" "$work/part.sh" "$work" "$FOREBAY" "${device}p1"
	exec 9<"$work/parts.img"
	flock -x 9
	said 4 'parts.img: in use' "${apart[@]}" "$work/part.sh" "$work" "$FOREBAY" "${device}p1"
	exec 9<&-
	say "a partition is locked by the file below its disk"
else
	skip_part "a partition of a loop device" "it gets no node here"
fi

# --- a lock of readers -----------------------------------------------------------------------

setpriv --reuid 65534 --regid 65534 --clear-groups flock -s -F /dev/fd/9 sleep 1000 9<"$work/free.img" &
for ((tries = 0; tries < 100; tries++)); do flock -n -x "$work/free.img" true || break; sleep 0.05; done
said 4 "free.img: in use.*locked for reading alone.*process $! (sleep) of user .*chmod" "$FOREBAY" drain "$free"
say "a lock of readers is called one, with the way out"
