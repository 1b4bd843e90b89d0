#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a disk that forgets unsynced data in a power cut loses nothing that a client was promised.
# The whole program (server, library, with and without io_uring) is in front of it.  After a drain
# the disk alone has everything.  On a slow disk, and on one whose flushes fail, every request ends.
# Method: volatile_disk.c, a file that sees each write and each fsync that reaches it. nbdload.c
# writes, flushes and reads concurrently, with FUA too, and knows what is promised.  The power of
# disk and server is cut in the middle; then start, verify, and again.  Each search must also find a
# disk whose flush does nothing.
#	volatile.sh [ROUNDS]	power cuts of each kind (2)
# shellcheck disable=SC2119,SC2016 # no arguments on purpose; expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need gcc
[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root: the disk with a volatile cache is a FUSE file system"

rounds=${1:-2}
seed=${SEED:-1}
bytes=$((16 << 20))
for program in volatile_disk nbdload; do
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/$program" "$root/tests/serve/$program.c"
done
load() { "$work/nbdload" "$@"; }

mkdir "$work/disk"
disk=''
start_disk() { # KEY=NUMBER...
	seed=$((seed + 1))
	: >"$work/disk.log"
	"$work/volatile_disk" "$work/disk" "$work/platter" $bytes seed=$seed "$@" >"$work/disk.log" 2>>"$work/disk.err" &
	disk=$!
	local tries
	for ((tries = 0; tries < 3000; tries++)); do
		[ -s "$work/disk/disk" ] && return
		kill -0 "$disk" 2>/dev/null || { disk=''; skip "cannot mount: $(cat "$work/disk.err")"; }
		sleep 0.02
	done
	fail "the disk does not come up in 60 s: $(cat "$work/disk.err")"
}
# Cuts the power.  Sets lost: the number of written sectors that are not there.
cut_disk() {
	kill -USR1 "$disk"
	await_cut "$disk" "$work/disk.log"
	lost=$(sed -n 's/^cut:.* \([0-9]*\) sectors lost/\1/p' "$work/disk.log")
}
stop_disk() {
	[ -n "$disk" ] || return 0
	kill -TERM "$disk" && wait "$disk" || true
	umount -l "$work/disk" 2>/dev/null || true
	disk=''
}
at_end stop_disk
show() { sed 's/^/  /' "$1" >&2; }

fresh() {
	rm -rf "$pool" "$work/platter" "$work/log" "$FOREBAY_STATE_DIR" # the next disk has the same id
	truncate -s $bytes "$work/platter"
	start_disk
	"$FOREBAY" create "$pool" --size 1536K --chunk-size 64K >/dev/null
	"$FOREBAY" volume add "$pool" data "$work/disk/disk" >/dev/null
	stop_disk
}

past=0 total=0
counter() { "$FOREBAY" status "$pool" --json | sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" | awk '{ sum += $1 } END { print sum + 0 }'; }

# For each way of writing, the options of the server; its clients have that promise.
declare -A served=(
	[cached]=""
	[large]="--bypass-limit 16K"
	[full]="--when-full bypass --high-watermark 95 --low-watermark 90"
	[through]="--write-through"
)
promise() { # WAY KEY=NUMBER...
	case "$*" in
	cached* | through*) ;;
	*fail=*) echo losing ;;
	*) echo past ;;
	esac
}

# Runs a load that a power cut ends.  KEY=NUMBER... sets options of the disk.
cut_load() { # WAY SECONDS KEY=NUMBER...
	local way=$1 seconds=$2 loader
	shift 2
	start_disk "$@"
	# shellcheck disable=SC2086 # words
	start_server ${served[$way]}
	load load "$work/run/nbd" data "$work/log" 60 $seed $(promise "$way" "$@") >"$work/load.log" 2>&1 &
	loader=$!
	sleep "$seconds"
	past=$((past + $(counter bypasses)))
	cut_disk
	total=$((total + lost))
	kill_server 2>/dev/null
	wait $loader || { show "$work/load.log"; fail "$way: the load found what must not be (seed $seed)"; }
	grep -q 'the server is gone' "$work/load.log" || fail "the load ended before the cut"
	stop_disk
	cp "$work/disk.log" "$work/cut.log"
}
# Verifies through the cache after the cut, and kills the server again.
verified() { # WAY
	local rc
	start_disk
	# shellcheck disable=SC2086 # words
	start_server ${served[$1]}
	load verify "$work/run/nbd" data "$work/log" >"$work/verify.log" 2>&1
	rc=$?
	kill_server 2>/dev/null
	stop_disk
	return $rc
}

for way in cached large full; do
	fresh
	past=0
	for ((round = 0; round < rounds; round++)); do
		cut_load $way 0.6 keep=$((round % 2)) flush_us=5000
		verified $way || { show "$work/verify.log"; fail "$way: promised and not there (seed $seed)"; }
	done
	[ $way = cached ] || [ $past -gt 20 ] || fail "$way: $past writes past the cache: the test tested less than it says"
	# Either the server drains or the command does.  The cut leaves nothing that was not
	# synced.
	cut_load $way 0.5 keep=0 flush_us=5000
	start_disk keep=0
	start_server
	[ $way != cached ] || { kill_server 2>/dev/null; }
	"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || { show "$work/drain.log"; fail "$way: drain"; }
	cut_disk
	[ -z "$server" ] || kill_server 2>/dev/null
	stop_disk
	load verify-file "$work/platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "$way: drained, and the origin alone lacks something (seed $seed)"; }
	say "$way: $((rounds + 1)) power cuts, $past writes past the cache; $(sed -n 's/^nbdload: //p' "$work/verify.log")"
done
[ $total -gt 0 ] || fail "the cuts took nothing away: the test tested less than it says"
say "the cuts took $total sectors away"

# With write-through the pool is lost with the power, and the disk alone has everything that
# was acknowledged, even if flushes fail.
past=0
for ((round = 0; round < rounds; round++)); do
	for trouble in keep=0 keep=1 fail=5; do
		fresh
		cut_load through 0.6 flush_us=2000 $trouble
		rm "$pool"
		load verify-file "$work/platter" "$work/log" >"$work/verify.log" || { show "$work/verify.log"; fail "written through ($trouble), and the disk alone lacks it (seed $seed)"; }
		grep -q '^nbdload: [1-9]' "$work/verify.log" || fail "nothing was written through"
	done
done
[ $past -gt 20 ] || fail "$past writes past the cache: the test tested less than it says"
say "through: $((3 * rounds)) cuts of pool and disk, $past writes; the last: $(sed -n 's/^nbdload: //p' "$work/verify.log")"

# A failed flush loses the data that it should have kept.
for way in cached large full; do
	fresh
	for ((round = 0; round < rounds; round++)); do
		cut_load $way 1 keep=0 fail=5
		verified $way || { show "$work/verify.log"; fail "failing flushes, $way: promised and not there (seed $seed)"; }
	done
	say "flushes that fail, $way: $(sed -n 's/^cut: //p' "$work/cut.log"); $(sed -n 's/^nbdload: //p' "$work/verify.log")"
done

# On a slow disk, with concurrent flushes, writes past the cache and write-through, each
# request ends.
for way in large full; do
	fresh
	start_disk write_us=3000 flush_us=40000
	# shellcheck disable=SC2086 # words
	start_server ${served[$way]}
	load load "$work/run/nbd" data "$work/log" 2 $seed past >"$work/load.log" 2>&1 || { show "$work/load.log"; fail "slow, $way"; }
	grep -q ' 0 failed$' "$work/load.log" || { show "$work/load.log"; fail "slow, $way: requests failed"; }
	stop_server
	stop_disk
	say "slow, $way: $(sed -n 's/^nbdload: //p' "$work/load.log"); all ended"
done

# A disk that ignores flushes must be found, through the cache and after a drain.
for way in cached large; do
	for try in 1 2 3 4; do # a load that gets no time has nothing promised
		fresh
		cut_load $way 1.2 lie=1 keep=0
		verified $way || break
		[ $try != 4 ] || fail "a disk whose flush does nothing was not found ($way)"
	done
	grep -q ' [1-9][0-9]* bad' "$work/verify.log" || { show "$work/verify.log"; fail "the verification broke instead of finding anything"; }
	say "a flush that does nothing is found, $way: $(sed -n 's/^nbdload: //p' "$work/verify.log")"
done
fresh
cut_load cached 0.5
start_disk lie=1 keep=0
"$FOREBAY" drain "$pool" >/dev/null 2>&1 || fail "drain"
cut_disk
stop_disk
load verify-file "$work/platter" "$work/log" >"$work/verify.log" && fail "a drain whose flush does nothing was not found"
say "a flush that does nothing is found, drain: $(sed -n 's/^nbdload: //p' "$work/verify.log")"
