# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The kernel's patience with a lease (fs.lease-break-time) is one setting of the whole machine.
# Tests of several runs use it at the same time.  So who changes it has a lock alone, and who needs
# it as it is shares that lock.  The lock's file has the value to restore while it is changed: the
# next test restores it after one that was killed.  Source it after lib.sh.
lease_time=/proc/sys/fs/lease-break-time
lease_lock=/run/forebay-lease-break-time
lease_stays=-u # or -s
lease_was=''

lease_time_opened() {
	[ -w "$lease_time" ] && [ -w /run ] || return 1
	[ -n "${lease_fd:-}" ] && return
	exec {lease_fd}>>"$lease_lock"
	at_end lease_time_ends
}

# lease_time_locks HOW: a process that a killed test started may have the lock for good.
lease_time_locks() {
	local fd pid
	flock -w "${LEASE_TIME_WAITS:-600}" "$1" "$lease_fd" && return
	echo "$lease_lock is locked; these processes have it open:" >&2
	for fd in /proc/[0-9]*/fd/*; do
		[ "$fd" -ef "$lease_lock" ] || continue
		pid=${fd#/proc/}
		pid=${pid%%/*}
		[ "$pid" = $$ ] || echo "  $pid $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)" >&2
	done
	fail "$lease_lock is locked by others: end those that no test has"
}

# From now on no other test changes the time.
lease_time_stays() {
	lease_time_opened || return 0
	lease_stays=-s
	lease_time_locks -x
	[ ! -s "$lease_lock" ] || { cat "$lease_lock" >"$lease_time" && : >"$lease_lock"; }
	lease_time_locks -s
}

# lease_time_is SECONDS: sets it until lease_time_back; false if it cannot be changed.
lease_time_is() {
	lease_time_opened || return 1
	if [ -z "$lease_was" ]; then
		lease_time_locks -x
		lease_was=$(<"$lease_lock")
		lease_was=${lease_was:-$(<"$lease_time")}
		echo "$lease_was" >"$lease_lock"
	fi
	(echo "$1" >"$lease_time") 2>/dev/null || { lease_time_back; return 1; }
}

lease_time_back() {
	[ -n "$lease_was" ] || return 0
	(echo "$lease_was" >"$lease_time") 2>/dev/null || true
	: >"$lease_lock"
	lease_was=''
	lease_time_locks "$lease_stays"
}

# Processes that this script has started may have a copy of the descriptor.
lease_time_ends() {
	lease_stays=-u
	lease_time_back
	flock -u "$lease_fd"
}
