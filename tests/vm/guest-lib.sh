# SPDX-License-Identifier: MIT OR Apache-2.0
#
# guest-lib.sh - sourced by the scripts that run in the guest.

export FOREBAY_STATE_DIR=/tmp/state # /var/lib is the host's
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
release=$(uname -r)
pool=/dev/pmem0
passed=0

: >/tmp/dmesg.before # what the kernel said before the buffer was emptied

# fail TEXT: prints the cause last, because perhaps only the end of the console is kept.
fail() {
	dmesg | tail -n 40
	echo "FAIL: $*"
	exit 1
}

# step TEXT COMMAND...: must succeed.
step() {
	local what=$1 began=$EPOCHREALTIME
	shift
	if ! "$@" >/tmp/step.log 2>&1; then
		tail -n 30 /tmp/step.log
		fail "$what: $*"
	fi
	passed=$((passed + 1))
	echo "ok: $what ($(((${EPOCHREALTIME/./} - ${began/./}) / 1000)) ms)"
}

# refused TEXT PATTERN COMMAND...: must fail, with PATTERN in its output or the kernel's.
refused() {
	local what=$1 pattern=$2
	shift 2
	dmesg -c >>/tmp/dmesg.before
	if "$@" >/tmp/step.log 2>&1; then
		fail "$what was not refused"
	fi
	dmesg >>/tmp/step.log
	grep -qi -- "$pattern" /tmp/step.log || {
		cat /tmp/step.log
		fail "$what was refused, but not with \"$pattern\""
	}
	passed=$((passed + 1))
	echo "ok: refused: $what"
}

forebay() { "$root/out/vm/forebay" "$@"; }

load_module() { # [MISTAKE]: the module, or the one of that name by build_planted
	local mistake=${1:-${planted:-}}
	step "load forebay.ko${mistake:+ with the mistake $mistake}" \
		/run/busybox insmod "$root/out/kernel-$release${mistake:+-$mistake}/kernel/forebay.ko"
	dmesg -n 1
}

# The disks of these tests keep their names, so the names will do as ids.
by_name=origin_by_name

# attach NAME ORIGIN VOLUME [OPTIONS...]
attach() {
	local name=$1 origin=$2 volume=$3 sectors
	shift 3
	set -- $by_name "$@"
	sectors=$(blockdev --getsz "$origin")
	dmsetup create --noudevsync --noudevrules "$name" \
		--table "0 $sectors forebay $origin $pool $volume $# $*" || return 1
	dmsetup mknodes "$name"
	test -b "/dev/mapper/$name"
}

# counter NAME COUNTER: from dmsetup status.
counter() { dmsetup status "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }

# complaints FILE: those of the kernel's messages that none of our doings may cause.
complaints() {
	grep -E 'WARNING|BUG|Oops|Call Trace|blocked for more than|self-detected stall|detected stalls|hung task|assertion|lockdep|locking dependency|general protection|KASAN|KCSAN|UBSAN|refcount_t|Kernel panic' "$1" | grep -vE 'RCU lockdep checking is enabled|kcsan: non-strict mode configured'
}

# The kernel's messages since boot must hold no complaint.
clean_dmesg() {
	dmesg >>/tmp/dmesg.before
	if complaints /tmp/dmesg.before; then
		fail "the kernel complained"
	fi
	passed=$((passed + 1))
	echo "ok: nothing in dmesg"
}

# trim DEVICE MOUNTPOINT, where the origin knows discards.
trim() {
	local disk
	disk=$(stat -L -c %Hr:%Lr "$1")
	[ "$(cat "/sys/dev/block/$disk/queue/discard_max_bytes")" = 0 ] && return
	step "fstrim" fstrim "$2"
}

# control WORDS...: to the native devices' control; prints the answer, fails unless it is ok.
control() {
	local answer
	exec 3<>/dev/forebay-control
	echo "$*" >&3
	IFS= read -r -d '' -u 3 answer
	exec 3>&-
	printf '%s' "$answer" >/tmp/answer
	printf '%s' "$answer"
	[[ $answer == ok* ]]
}

# quick_tools: replaces these programs by a static one in memory.  A program of the host
# comes over 9p and is linked when it starts, which costs ten times as much.
quick_tools() {
	local name
	mkdir -p /run/quick
	for name in basename cat cmp cut dd dmesg grep head ln mkdir readlink rm sed sleep tail tr wc xargs; do
		ln -sfn /run/busybox /run/quick/$name
	done
	PATH=/run/quick:$PATH
}

# Both kinds of device by the same words; $kind is target or native.
#	dev_attach NAME ORIGIN VOLUME [OPTION [VALUE]]...	sets $device
#	dev_detach NAME		dev_command NAME WORDS...	dev_status NAME
dev_attach() {
	local name=$1 answer
	if [ "$kind" = target ]; then
		device=/dev/mapper/$name
		attach "$@"
	else
		answer=$(control attach $pool "${@:2}" $by_name) || { echo "$answer"; return 1; }
		device=/dev/${answer#ok }
		ln -sfn "$device" "/tmp/native.$name"
		test -b "$device"
	fi
}
node() { basename "$(readlink "/tmp/native.$1")"; }
dev_detach() {
	if [ "$kind" = target ]; then
		dmsetup remove --noudevsync --retry "$1"
	else
		control detach "$(node "$1")"
	fi
}
dev_command() {
	if [ "$kind" = target ]; then
		dmsetup message "$1" 0 "${@:2}"
	else
		control command "$(node "$1")" "${@:2}"
	fi
}
dev_status() {
	local answer
	if [ "$kind" = target ]; then
		dmsetup status "$1" | cut -d' ' -f4-
	else
		answer=$(control status "$(node "$1")") && echo "${answer#* }"
	fi
}
dev_counter() {
	local status
	status=$(dev_status "$1")
	[[ $status =~ \ $2=([^ ]*) ]] && echo "${BASH_REMATCH[1]}"
}
dev_state() {
	local status
	status=$(dev_status "$1")
	echo "${status%% *}"
}

# read_only_refused ORIGIN VOLUME: neither the pool's device nor the origin may be read-only.
read_only_refused() {
	local disk
	for disk in "$pool" "$1"; do
		blockdev --setro "$disk" || fail "blockdev --setro $disk"
		refused "read-only, $disk" "is read-only" dev_attach ro "$@"
		blockdev --setrw "$disk"
	done
}

# until_true SECONDS COMMAND...
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}

# File systems by name: ext4 or xfs.  Debian's xfsprogs come with the guest's kernel.
xfs_tool() {
	LD_LIBRARY_PATH="$FOREBAY_VM/usr/lib/x86_64-linux-gnu:$FOREBAY_VM/lib/x86_64-linux-gnu" "$FOREBAY_VM/sbin/$1" "${@:2}"
}
# Makes all of ext4 at once.  Otherwise a thread of the mounted file system makes the rest
# during a measurement.
ext4_whole=(-N 16384 -E lazy_itable_init=0,lazy_journal_init=0)
make_fs() { # FS DEVICE [OPTIONS of ext4's]
	case $1 in
	ext4) mkfs.ext4 -q -F "${@:3}" "$2" ;;
	xfs) xfs_tool mkfs.xfs -q -f "$2" ;;
	esac
}
check_fs() { # FS DEVICE, not mounted
	case $1 in
	ext4) e2fsck -fn "$2" ;;
	xfs) xfs_tool xfs_repair -n "$2" ;;
	esac
}
