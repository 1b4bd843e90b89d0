#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: whichever command changes a volume, and whichever way a client asks that this be durable,
# what was acknowledged is there after the server is killed and the origin loses what it was not
# told to keep; or the command gives an error.
# Method: asked.c makes each command x each way to ask x simple and structured replies.  As soon as
# a cell is acknowledged, the disk (volatile_disk.c) cuts its range.  Then the server is killed,
# all ranges are read through a new one, and after a drain and another cut from the disk alone.
# In each mode of the volume.  Where nobody asks, the ways that this mode acknowledges before they
# are durable must be found lost.  A server that answers and does nothing must be found, and a flush
# that does nothing.
#
#	asked.sh [MODE...]	(all)
# shellcheck disable=SC2119 # no arguments on purpose
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need gcc
[ -e /dev/fuse ] && [ "$(id -u)" = 0 ] || skip "no /dev/fuse, or not root: the disk with a volatile cache is a FUSE file system"
for program in volatile_disk asked; do
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/$program" "$root/tests/serve/$program.c"
done
asked() { "$work/asked" "$@"; }
bytes=$(asked bytes)
platter=$shm/platter

mkdir "$work/disk"
disk=''
start_disk() { # KEY=NUMBER...
	: >"$work/disk.log"
	"$work/volatile_disk" "$work/disk" "$platter" "$bytes" keep=0 flush_us=2000 "$@" >"$work/disk.log" 2>"$work/disk.err" &
	disk=$!
	local tries
	for ((tries = 0; tries < 3000; tries++)); do
		[ -s "$work/disk/disk" ] && return
		kill -0 "$disk" 2>/dev/null || { disk=''; skip "cannot mount: $(cat "$work/disk.err")"; }
		sleep 0.02
	done
	fail "the disk does not come up in 60 s: $(cat "$work/disk.err")"
}
# Loses what was not synced.
stop_disk() {
	[ -n "$disk" ] || return 0
	kill -TERM "$disk" && wait "$disk" || true
	umount -l "$work/disk" 2>/dev/null || true
	disk=''
}
at_end stop_disk

# The ways that a server acknowledges before they are durable.
long=write-long,write-long-trimmed
writes=write-sector,write-part,write,write-cached,write-long-cached,write-trimmed,$long

# name | options of create | of volume add | of serve | block | what may be lost where nobody asks
modes="
write-back||||512|
write-back, no checksums|||--checksums false|512|
blocks of 4096||--block-size 4096||4096|
static|--static 64M|--static 64M||512|
bypass|||--bypass-limit 16K|512|$long
static, bypass|--static 64M|--static 64M|--bypass-limit 16K|512|$long
write-through|||--mode write-through|512|
cleaner|||--mode cleaner|512|$writes
"

# table MODE CREATE ADD SERVE BLOCK MAY_BE_LOST [early | lie=1]: what is planted.
table() {
	local name=$1 create=$2 add=$3 serve=$4 block=$5 lost=$6 planted=${7:-} from
	local early=${planted#lie=1} lie=${planted#early}
	rm -rf "$pool" "$work/state" "$work/record"
	head -c "$bytes" /dev/zero | tr '\0' '\245' >"$platter"
	# shellcheck disable=SC2086 # a word or none
	start_disk $lie
	# shellcheck disable=SC2086 # words
	"$FOREBAY" create "$pool" --size 192M $create >/dev/null
	# shellcheck disable=SC2086
	"$FOREBAY" volume add "$pool" v "$work/disk/disk" $add >/dev/null
	# shellcheck disable=SC2086
	start_server $serve
	# shellcheck disable=SC2086
	asked run "$work/run/nbd" v "$work/disk/disk" "$work/record" "$block" $early || fail "$name: the program broke"
	kill_server 2>/dev/null
	stop_disk
	if [ "$name" = write-through ]; then
		rm "$pool"
		from="the origin alone, without the pool"
	else
		start_disk
		# shellcheck disable=SC2086
		start_server $serve
		judged "$name, a new server" asked check "$work/run/nbd" v "$work/record" "$block" "$lost"
		"$FOREBAY" drain "$pool" >"$work/drain.log" 2>&1 || { cat "$work/drain.log" >&2; fail "$name: drain"; }
		kill_server 2>/dev/null
		stop_disk
		from="the origin alone, after a drain"
	fi
	judged "$name, $from" asked check-file "$platter" "$work/record" "$block" "$lost"
	[ -z "$lie" ] || return 0
	say "${early:+a server that answers and does nothing, }$name: $(tail -n 1 "$work/judged.log")"
}
judged() { # WHAT COMMAND...
	local what=$1 refused
	shift
	if [ -n "${lie:-}" ]; then
		if "$@" >"$work/judged.log" || ! grep -q ': LOST$' "$work/judged.log"; then
			tail -n 20 "$work/judged.log" >&2
			fail "$what: a flush that does nothing was not found"
		fi
		say "a flush that does nothing is found, $what: $(tail -n 1 "$work/judged.log")"
		return
	fi
	"$@" >"$work/judged.log" || { cat "$work/judged.log" >&2; fail "$what: the table does not hold"; }
	# The protocol lets a server refuse fast zeroes, and nothing else.
	refused=$(grep ': refused, ' "$work/judged.log" | grep -v '^  zeroes-[a-z-]*fast ' || true)
	[ -z "$refused" ] || fail "$what: $refused"
}

wanted=("$@")
while IFS='|' read -r name create add serve block lost; do
	[ -n "$name" ] || continue
	[ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || continue
	table "$name" "$create" "$add" "$serve" "$block" "$lost"
done <<<"$modes"
table write-back '' '' '' 512 all early
table write-through '' '' '--mode write-through' 512 all early
table bypass '' '' '--bypass-limit 16K' 512 "$long" lie=1
table write-through '' '' '--mode write-through' 512 '' lie=1
