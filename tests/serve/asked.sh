#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: any command may change a volume, and a client may ask in any way that this be durable.  Then
# what was acknowledged is there after the server is killed and the origin loses what it was not
# told to keep, or the command gives an error.
# Method: asked.c makes each command x each way to ask x simple and structured replies.  As soon as
# a cell is acknowledged, the disk (volatile_disk.c) cuts its range.  Then the server is killed,
# all ranges are read through a new one, and after a drain and another cut from the disk alone.
# In each mode of the volume.  Where nobody asks, the ways that this mode acknowledges before they
# are durable must be found lost.  A server that answers and does nothing must be found, and a flush
# that does nothing.
#
# MEDIUM=ssd has the table of a pool on an SSD. Each cell then has a pool of its own.  When the cell
# is acknowledged, the server is stopped, and the pool's disk and the origin lose what was not
# flushed.
# EACH=N takes each Nth cell alone (3: ways to write and to ask meet in turns; 1: all).
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

# These ways are acknowledged before they are durable.
long=write-long,write-long-trimmed
writes=write-sector,write-part,write,write-cached,write-long-cached,write-trimmed,$long

# --- a pool on an SSD ----------------------------------------------------------------------

# The pool's disk is slow.  So some data that nobody waits for is not there yet at the cut.  With
# --durable flush the server sends it after a millisecond, so it may be there as well.
ssd_table() { # MODE DURABLE BLOCK MAY_BE_LOST [lie=1]
	local name=$1 durable=$2 block=$3 may=$4 lie=${5:-} number said before=0 wrong=0 each=${EACH:-3}
	local lost # cut_all sets it
	local -A sums=([durable]=0 [refused]=0 [lost]=0 [unasked]=0)
	make_template --block-size "$block"
	for number in $(asked cells "$block"); do
		# A few cells are enough if each must be found lost.
		[ $((before++ % (${lie:+20 + }each))) -eq 0 ] || continue
		fresh
		# shellcheck disable=SC2086 # a word or none
		start_disks keep=0 write_us=2000 flush_us=4000 $lie
		start_server --durable "$durable"
		asked run-one "$work/run/nbd" data "$number" "$block" >"$work/record" || fail "$name: the program broke in cell $number"
		cut_all
		stop_disks
		start_disks
		if [ -n "$lie" ]; then
			# A pool that cannot be opened counts as found too.
			(
				trap 'kill -KILL "$server" 2>/dev/null || true' EXIT
				start_server
				asked check "$work/run/nbd" data "$work/record" "$block" "$may" one
			) >"$work/lie.log" 2>&1 || sums[lost]=$((sums[lost] + 1))
			stop_disks
			continue
		fi
		start_server
		code=0
		asked check "$work/run/nbd" data "$work/record" "$block" "$may" one >"$work/judged.log" || code=$?
		[ $code -le 1 ] || fail "$name: the program broke in the check of cell $number"
		kill_server 2>/dev/null
		stop_disks
		said=$(tail -n 1 "$work/judged.log")
		[[ $said =~ ^1\ cells:\ ([0-9]+)\ durable,\ ([0-9]+)\ refused,\ ([0-9]+)\ lost\;\ ([0-9]+)\ lost\ where ]] || fail "$name: cell $number: $said"
		sums[durable]=$((sums[durable] + BASH_REMATCH[1])) sums[refused]=$((sums[refused] + BASH_REMATCH[2]))
		sums[lost]=$((sums[lost] + BASH_REMATCH[3])) sums[unasked]=$((sums[unasked] + BASH_REMATCH[4]))
		if grep -v -e '^1 cells' -e ': durable, though nobody asked$' -e '^  zeroes-[a-z-]*fast .*: refused, ' "$work/judged.log" >&2; then
			wrong=$((wrong + 1))
		fi
	done
	[ $wrong = 0 ] || fail "$name: the table does not hold"
	if [ -n "$lie" ]; then
		[ "${sums[lost]}" -gt 0 ] || fail "$name: a flush that does nothing was not found"
		say "a flush that does nothing is found, $name: ${sums[lost]} cells lost"
		return
	fi
	# The server sends by itself after a millisecond, so the cut may find everything on the
	# disk.
	say "$name: ${sums[durable]} cells durable, ${sums[refused]} refused, ${sums[lost]} lost; ${sums[unasked]} lost where nobody asked"
}
if [ "${MEDIUM:-}" = ssd ]; then
	seed=1
	bytes=$((1 << 20))
	old_byte='\245'
	. "$(dirname "$0")/ssd-disks.sh"
	for mode in "${@:-all}"; do
		case $mode in all | always) ssd_table "on an SSD, always" always 512 '' ;;& all | flush) ssd_table "on an SSD, flush" flush 512 "$writes" ;;& all | blocks) ssd_table "on an SSD, flush, blocks of 4096" flush 4096 "$writes" ;; esac
	done
	ssd_table "on an SSD, always" always 512 '' lie=1
	exit
fi

# --- a pool in memory ------------------------------------------------------------------------

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
# Ends the disk, which loses data that was not synced.
stop_disk() {
	[ -n "$disk" ] || return 0
	kill -TERM "$disk" && wait "$disk" || true
	umount -l "$work/disk" 2>/dev/null || true
	disk=''
}
at_end stop_disk

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
