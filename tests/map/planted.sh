#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: run.sh's checks find a preload library that is wrong.
# Method: a build of it with deliberate mistakes (crates/forebay-map-preload/src/planted.rs), one at
# a time. program.c has to fail with each mistake, and has to pass without one.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
planted=${CARGO_TARGET_DIR:-$root/target}/planted # of its own: others use the library without mistakes
(cd "$root" && cargo build -q -p forebay-map-preload --features planted-mistakes --target-dir "$planted") || fail "no build with mistakes"
cp "$planted/debug/libforebay_map_preload.so" "$work/preload.so"
export FOREBAY_MAP_PRELOAD=$work/preload.so
compile program
compile raw -pthread
compile answers
compile twice
compile_ends
make_map 128M 64M
program=$work/program

calls() { mapped timeout 60 "$program" calls "$work/calls.map"; }
forks() { mapped timeout 60 "$program" fork "$work/fork.map"; }
raw() { mapped timeout 60 "$work/raw" "$1" "$work/raw-$1.map"; }
answers() { # WHAT: as of a plain file
	rm -f "$work/answers.map" "$work/plain.dat"
	"$work/answers" "$1" "$work/plain.dat" >"$work/answers.plain" &&
		mapped timeout 60 "$work/answers" "$1" "$work/answers.map" >"$work/answers.mapped" &&
		diff "$work/answers.plain" "$work/answers.mapped"
}
limit() { # as of a plain file, and the program was started with a limit
	(ulimit -f 3072 && answers limit)
}
ends() {
	rm -f "$work/end.map"
	mapped "$program" exit "$work/end.map"
	local code=0
	grep -q 'not synced' "$work/end.map" || code=1
	recover
	return $code
}
stores() { # A thread stores while the program ends.
	rm -f "$work"/end.map* "$work/ack"
	ROOM=32M mapped timeout 60 "$work/ends" acks store "$work/ack" "$work/end.map" && "$work/ends" acked "$work/ack" "$work/end.map"
}
past() { mapped timeout 60 "$work/twice" past "$work/past.map"; }
busy() { mapped timeout 20 "$program" busy "$work/end.map"; }
replaced() { ROOM=4M mapped "$program" replaced "$work/replaced.map"; }
across() {
	rm -f "$work/across.map"
	mapped "$program" across "$work/across.map" && return 1
	recover
	grep -q 'from below' "$work/across.map"
}
closes() { # A file that is written and closed is read by another process.
	rm -f "$work/close.map"
	mapped sh -c "'$program' close '$work/close.map'" && grep -q 'closed' "$work/close.map"
}
killed_by() { # WAY
	rm -f "$work/killed.map"
	kill_one "$1" "$work/killed.map" "$program" "$1" "$work/killed.map"
	local last
	last=$("$program" last "$work/killed.map") && [ "$last" -ge "$acknowledged" ]
}
without_server() { # A log grows, and its server is killed.
	rm -f "$work/gone.map"
	start_server
	begin gone "$program" log "$work/gone.map"
	sleep 0.2
	kill_server
	sleep 1
	killed $pid || true
	recover
	[ "$("$program" last-log "$work/gone.map")" -ge "$(last_said gone)" ]
}
rare() { "$root/tests/map/rare.sh" "$1"; } # as of a plain file
durable() { "$root/tests/map/metadata.sh" "$1"; } # there after a power cut
compile past -rdynamic
. "$root/tests/map/beside.sh"
file=$work/past.map
writer_behind() {
	local file=$work/disk/past.map
	beside reader behind
	is_seen_behind
}
on_overlay() {
	local file=$work/overlay/past.map
	fresh && mapped "$past" mapping "$file" | grep -q '^refused$'
}
finds() { # NUMBER NAME CHECK...
	local number=$1 name=$2 tries
	shift 2
	unset FOREBAY_MAP_RUN_PLANTED
	("$@") >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "$name: fails without the mistake: $*"; }
	export FOREBAY_MAP_RUN_PLANTED=$number
	for ((tries = 0; ; tries++)); do # its moment may not come in each
		("$@") >"$work/out" 2>&1 || break
		[ "$tries" -lt 9 ] || fail "$name is not found by: $*"
	done
	unset FOREBAY_MAP_RUN_PLANTED
	recover || true
	say "$name: found by $*"
}
finds 1 MsyncWithoutSync killed_by msync
finds 2 FsyncIgnores killed_by write
finds 2 FsyncIgnores killed_by fsync
finds 3 WriteBypasses calls
finds 4 DsyncIgnored killed_by dsync
finds 5 FallocateNothing calls
finds 6 CloseForgets closes
finds 7 PrivateStale calls
finds 8 DupForgotten calls
finds 9 TruncateBypasses calls
finds 10 ChildAcknowledged forks
finds 11 EndForgets ends
finds 12 MsyncAcross across
finds 13 PlainBeside calls
finds 14 ReopenedByName replaced
finds 15 StoresAtEnd busy
finds 16 NoFilter raw calls
finds 16 NoFilter killed_by raw
finds 17 ChildUnseen raw child
finds 18 ClosesOurs raw closes
finds 19 ClosedUnseen raw closed
finds 20 NumberStale raw stale
finds 21 GoneAcknowledged without_server
finds 22 LimitIgnored answers all
finds 23 PrivateOver calls
finds 25 EndSyncs stores
finds 26 SecondNameFree calls
finds 28 LimitByNumber answers all
finds 29 RestIgnored past
finds 30 LimitNotRead limit
past=$work/past
finds 31 AttributesForgotten durable mode
finds 32 SyncfsForgotten durable syncfs
if disk_to_freeze; then
	finds 33 WriterUnseen writer_behind
	# The mistake leaves what the program stored.
	"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || true
else
	skip_part "a writer behind a reader" "no loop device"
fi
finds 34 ZerocopyLetThrough rare zerocopy
finds 35 ZerocopyNotCopied rare zerocopy-before
finds 36 VmspliceByNumber rare vmsplice
finds 37 PrintedPast rare printed
finds 38 SigsysBlocked rare blocked
finds 39 DirectUnseen rare direct
finds 40 AioUnseen rare aio
finds 41 RingsKept rare rings
finds 42 RemoteUnseen rare remote
if overlay; then finds 43 OverlayUnseen on_overlay; else skip_part "an older mapping on overlayfs" "no overlayfs"; fi
compile alike "$root/tests/map/often.c" "$root/tests/map/mark.c" -rdynamic
alike() { "$root/tests/map/alike.sh" "$1"; } # as of a plain file
finds 24 RightsUnseen alike ends
finds 27 WatcherStays alike user-namespace
finds 44 PrivateAnew alike private
finds 45 PrivateKept alike left
finds 46 OneSignal alike at-once
say "46 of 46 mistakes found"
