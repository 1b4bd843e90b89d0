# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Shared by the scripts of this directory: a pool of their own, a server, and an end that
# leaves nothing behind.  Source it; then use start_server and stop_server.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for build in "${FOREBAY_BUILT:-}" "$root/target/release" "$root/target/debug"; do
	[ -x "${FOREBAY:-}" ] || FOREBAY=$build/forebay
done
[ -x "$FOREBAY" ] || { echo "$FOREBAY: not built; run: cargo build --release -p forebay-cli" >&2; exit 1; }

me=$(basename "$0" .sh)
say() { echo "$me: $*"; }
fail() { echo "$me: FAILED: $*" >&2; exit 1; }

# Says visibly what was not tested.
skip() {
	echo "$me: SKIPPED, NOTHING WAS TESTED: $*" >&2
	exit "${FOREBAY_SKIP_CODE:-0}"
}

# skip_part PART WHY: a part of this test cannot run here, and the rest does.  scripts/check counts
# and names it; with --strict it is a failure unless tests/may-skip.txt has "TEST: PART".
skip_part() {
	echo "$me: SKIPPED: $1: $2" >&2
	[ -z "${FOREBAY_SKIPS:-}" ] || echo "$me: $1: $2" >>"$FOREBAY_SKIPS"
}

need() {
	local tool
	for tool in "$@"; do
		command -v "$tool" >/dev/null || skip "$tool is not installed (Debian: apt install libnbd-bin nbdfuse fio e2fsprogs)"
	done
}

work=$(mktemp -d "${TMPDIR:-/tmp}/forebay-$me.XXXXXX")
# Uses a directory in memory if it has room for a pool: a container has 64 MiB of /dev/shm.
in_memory() {
	local free
	free=$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -n 1) && [ "$free" -ge 512 ] &&
		mktemp -d "/dev/shm/forebay-$me.XXXXXX" 2>/dev/null
}
shm=$(in_memory || mktemp -d "$work/shm.XXXXXX")
export FOREBAY_RUNTIME_DIR=$work/run FOREBAY_STATE_DIR=$work/state
pool=$shm/pool
server=''
undo=() # commands to run at the end, last one first

at_end() { undo+=("$1"); }

# Prints the processes that this script started and that still run, a line each with their command.
# These are the processes whose FOREBAY_RUNTIME_DIR is below its directory, whoever their parent is
# now, and the script's descendants.
still_running() {
	local self=$BASHPID
	{
		grep -lsz "^FOREBAY_RUNTIME_DIR=$work/" /proc/[0-9]*/environ
		cat /proc/[0-9]*/stat 2>/dev/null
	} | awk -v script=$$ -v self="$self" '
		/^\/proc/ { split($0, part, "/"); mine[part[3]] = 1; next }
		{ pid = $1; name = $0; sub(/^[^(]*/, "", name); sub(/[^)]*$/, "", name)
		  sub(/^.*\) /, ""); if ($1 != "Z") { parent[pid] = $2; named[pid] = name } }
		END { for (pid in named) {
			above = pid; of_script = 0; of_self = 0
			for (i = 0; i < 64 && above > 1; i++) {
				if (above == self) of_self = 1
				if (above == script && pid != script) of_script = 1
				above = parent[above]
			}
			if (pid != script && !of_self && (of_script || pid in mine)) print pid, named[pid]
		} }'
}

# Ends these processes and waits until they have ended.
end_all() {
	local tries left
	for ((tries = 0; tries < 600; tries++)); do
		left=$(still_running)
		[ -n "$left" ] || return 0
		# shellcheck disable=SC2046 # a word each
		kill -KILL $(cut -d' ' -f1 <<<"$left") 2>/dev/null
		sleep 0.05
	done
	echo "$me: these do not end: $left" >&2
	return 1
}

# Unmounts everything below this script's directories, the last mount first, and detaches the
# loop devices of files there.
unmount_all() {
	local mount file device
	awk -v work="$work/" -v shm="$shm/" 'index($5, work) == 1 || index($5, shm) == 1 { print $5 }' \
		/proc/self/mountinfo | tac | while read -r mount; do
		mount=$(printf %b "$mount")
		umount "$mount" 2>/dev/null || umount -l "$mount" 2>/dev/null
	done
	for file in /sys/block/loop*/loop/backing_file; do
		case $(cat "$file" 2>/dev/null) in
		"$work"/* | "$shm"/*)
			device=${file#/sys/block/}
			losetup -d "/dev/${device%%/*}" 2>/dev/null
			;;
		esac
	done
	true
}

cleanup() {
	local code=$? i
	trap - EXIT
	trap '' INT TERM
	set +e
	for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[$i]}"; done
	end_all || code=1
	unmount_all
	[ "$code" -ne 0 ] && [ -f "$work/server.log" ] && tail -n 30 "$work/server.log" | sed 's/^/  server: /' >&2
	rm -rf --one-file-system "$work" "$shm"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

. "$root/scripts/debian-python"
. "$root/tests/loops.sh"

# listens NAME: waits for another NBD server, which writes $work/NAME.pid when it listens (its
# socket is there a moment before) and its errors to $work/NAME.log.
listens() {
	local tries
	for ((tries = 0; tries < 400; tries++)); do
		[ -e "$work/$1.pid" ] && return
		sleep 0.02
	done
	fail "$1 does not start: $(cat "$work/$1.log")"
}

# await_cut PID LOG: waits until that volatile_disk has cut its power, as its log says.
await_cut() {
	until grep -q '^cut:' "$2"; do
		kill -0 "$1" 2>/dev/null || fail "the disk has ended: $(tail -n 3 "$work"/*.err 2>/dev/null)"
		sleep 0.01
	done
}

# uri NAME: the URI of an export of the running server.
uri() { echo "nbd+unix:///$1?socket=$work/run/nbd"; }

# make_pool SIZE NAME=BYTES...: a pool and volumes on new origin files.
make_pool() {
	local size=$1 pair
	shift
	"$FOREBAY" create "$pool" --size "$size" >/dev/null
	for pair in "$@"; do
		truncate -s "${pair#*=}" "$work/${pair%%=*}.img"
		"$FOREBAY" volume add "$pool" "${pair%%=*}" "$work/${pair%%=*}.img" >/dev/null
	done
}

# start_server [OPTIONS]: returns when it is ready; sets server.
start_server() {
	: >"$work/ready" # now: the message of the server before is not this one's
	"$FOREBAY" serve "$pool" --socket "$work/run/nbd" --json "$@" \
		>"$work/ready" 2>>"$work/server.log" &
	server=$!
	local tries
	for ((tries = 0; tries < 600; tries++)); do
		grep -q '"ready":true' "$work/ready" && return
		kill -0 "$server" 2>/dev/null || fail "the server ended before it was ready"
		sleep 0.05
	done
	fail "the server was not ready after 30 s"
}

# await_end PID SECONDS: waits until a child has ended; `wait` then has its code at once.
await_end() { timeout "$2" tail -s 0.02 --pid="$1" -f /dev/null; }
# What the threads of a process that does not end wait for.
stacks_of() { head -n 6 "/proc/$1"/task/*/{comm,stack} 2>/dev/null || true; }

# Stops the server in order: exit code 0, no socket left, the pool marked clean.
stop_server() {
	kill -TERM "$server"
	await_end "$server" 200 || fail "the server does not end: $(stacks_of "$server")"
	wait "$server" || fail "the server ended with code $?"
	server=''
	[ ! -e "$work/run/nbd" ] || fail "the server left its socket behind"
	"$FOREBAY" dump superblock "$pool" --json | grep -q '"clean": true' ||
		fail "the pool was not closed cleanly"
}

# Kills the server without notice.
kill_server() {
	kill -KILL "$server"
	await_end "$server" 60 || fail "the server that was killed does not end: $(stacks_of "$server")"
	wait "$server" 2>/dev/null || true
	server=''
}
