# SPDX-License-Identifier: MIT OR Apache-2.0
#
# guest-lib.sh - sourced by the scripts that run in the guest.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
release=$(uname -r)
pool=/dev/pmem0
passed=0

fail() {
	echo "FAIL: $*"
	dmesg | tail -n 40
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
	dmesg -c >/tmp/dmesg.before
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

forebay() { "$root/target/release/forebay" "$@"; }

load_module() {
	step "load forebay.ko" /run/busybox insmod "$root/out/kernel-$release/kernel/forebay.ko"
	dmesg -n 1
}

# attach NAME ORIGIN VOLUME [OPTIONS...]
attach() {
	local name=$1 origin=$2 volume=$3 sectors
	shift 3
	sectors=$(blockdev --getsz "$origin")
	dmsetup create --noudevsync --noudevrules "$name" \
		--table "0 $sectors forebay $origin $pool $volume $# $*" || return 1
	dmsetup mknodes "$name"
	test -b "/dev/mapper/$name"
}

# counter NAME COUNTER: from dmsetup status.
counter() { dmsetup status "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }

# What the kernel has said since boot must hold no complaint.
clean_dmesg() {
	dmesg >>/tmp/dmesg.before
	if grep -E 'WARNING|BUG|Oops|Call Trace|hung task|assertion|lockdep|KASAN' /tmp/dmesg.before; then
		fail "the kernel complained"
	fi
	passed=$((passed + 1))
	echo "ok: nothing in dmesg"
}

# trim DEVICE MOUNTPOINT, where the origin knows discards.
trim() {
	local disk
	disk=$(basename "$(readlink -f "$1")")
	[ "$(cat "/sys/block/$disk/queue/discard_max_bytes")" = 0 ] && return
	step "fstrim" fstrim "$2"
}
