#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# dynamic.sh - First Responder's dynamic load (FIO-12) and a mail load, on ext4 on
#
#	origin		a disk alone
#	volume		a volume of chunks in front of it, served
#	static		a static volume, with a pool of the same memory, that flushes every 10 ms
#
# fio12.sh has what it is.
# shellcheck disable=SC2154,SC2034 # what lib.sh and programs.sh share
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/programs.sh"

usage() {
	cat <<END
usage: bench/dynamic.sh [--disk NAME] [--gb MIB] [--rounds N] [--seconds N] [--json] [--out DIR] [LOAD...]

  --disk NAME   sata, disk, own or REQUESTS/S,MB/S,REQUEST_US,FLUSH_US (sata)
  --gb MIB      what stands for a GB of the talk's files, in MiB (4)
  --rounds N    of each load on each side (3)
  --seconds N   of a round of varmail (10)
  --json        the result on standard output, too
  --out DIR     where dynamic.json goes (bench/out)
  LOAD          fio-12, varmail (default: both)
END
	exit "${1:-0}"
}

kind=sata gb=4 rounds=3 seconds=10 json='' out=$root/bench/out loads=()
while [ $# -gt 0 ]; do
	case $1 in
	--disk) kind=${2:?} && shift ;;
	--gb) gb=${2:?} && shift ;;
	--rounds) rounds=${2:?} && shift ;;
	--seconds) seconds=${2:?} && shift ;;
	--json) json=1 ;;
	--out) out=${2:?} && shift ;;
	fio-12 | varmail) loads+=("$1") ;;
	-h | --help) usage ;;
	*) usage 2 >&2 ;;
	esac
	shift
done
[ ${#loads[@]} -gt 0 ] || loads=(fio-12 varmail)
[ "$kind" = own ] || disk_speed "$kind" >/dev/null
[ "$(id -u)" = 0 ] || fail "mounting needs root"
want fio fio
want jq jq
want nbdkit nbdkit
want nbdfuse nbdfuse
wanted
[ -x "$FOREBAY" ] || fail "$FOREBAY: not built; run: make build"
start_work
export FOREBAY_STATE_DIR=$work/state
mkdir -p "$out"

# Counts how often writers met at a slot of the volume, where it has slots.
conflicts() {
	[ -e "$work/$1.pool" ] || { echo 0; return; }
	"$FOREBAY" status "$work/$1.pool" --json 2>/dev/null | jq '[.. | .conflicts? // empty] | add // 0' || echo 0
}
# Each 250 ms: MB/s of all files together.
timeline() {
	cat "$work/logs"/*.log | awk -F', *' '{ at = int($1 / 250); sum[at] += $2 } END { for (t in sum) print t * 0.25, sum[t] * 1.024 / 1000 }' |
		sort -n | jq -R -s 'split("\n") | map(select(. != "") | split(" ") | map(tonumber))' -c
}
result() {
	local line='[]' ms=0
	[ "$2" != fio-12 ] || { line=$(timeline) ms=$elapsed; }
	jq -n -c --arg load "$2" --arg side "$3" --argjson round "$4" --argjson value "$value" --argjson ms "$ms" \
		--argjson timeline "$line" --argjson conflicts "$(conflicts "$3")" --arg command "${command//$work/WORK}" \
		'{$load, $side, $round, $value, seconds: ($ms / 1000), $timeline, $conflicts, $command}' >>"$work/rows"
	say "$2, round $4, $3: $value ${unit[$2]}"
}

at_end stop_servers
started=$(date -u +%FT%TZ) facts=$(machine)
sides=(origin volume static) mounts=$work/ sockets=$work/sock-
bytes=$((gb * 400)) # of the disk, in MiB; 100 are the files
pool=$((gb * 128))
share=$(((pool - 16) / 2 * 2))
say "making the sides: a disk of $bytes MiB ($kind), pools of $pool MiB"
disk origin "$kind" "${bytes}M"
volume volume "$kind" "${bytes}M" "${pool}M"
volume static "$kind" "${bytes}M" "${pool}M" "${share}M" 10ms
for side in "${sides[@]}"; do mounted "$side"; done
at_end stop_servers # before what they are on goes
for load in "${loads[@]}"; do measure "$kind" "$load"; done

jq -s --argjson machine "$facts" --argjson disks "$(disks_json "$kind")" --arg started "$started" --arg disk "$kind" \
	--argjson gb "$gb" --argjson pool "$pool" --argjson share "$share" --argjson units "$(units_json "${loads[@]}")" \
	--arg files "$fio12_files" --argjson rounds "$rounds" --argjson seconds "$seconds" \
	--arg command "bench/dynamic.sh --disk $kind --gb $gb --rounds $rounds --seconds $seconds ${loads[*]}" '
	def middle: sort | if length % 2 == 1 then .[length / 2 | floor]
		else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def spread: {median: middle, low: min, high: max, rounds: .};
	def over($a; $b): [$a, $b] | transpose | map(.[0] / .[1]) | spread;
	. as $rows |
	{started: $started, command: $command, machine: $machine, disk: $disk, disks: $disks, rounds: $rounds,
	 varmail_seconds: $seconds, gb_mib: $gb, pool_mib: $pool, share_mib: $share,
	 files: [$files | split("\n")[] | [splits(" +")] | map(select(. != "")) | {size: (.[0] | tonumber),
		distribution: .[1], kib: (.[2] | tonumber), reads: (.[3] | tonumber), fsyncs: (.[4] | tonumber),
		interval_us: (.[5] | tonumber), begin_ms: (.[6] | tonumber)}],
	 loads: [$rows | group_by(.load)[] | (group_by(.side) | map({(.[0].side): .}) | add) as $of |
		($of | map_values(map(.value))) as $values | {
		load: .[0].load, unit: $units[.[0].load],
		sides: ($of | map_values({value: (map(.value) | spread), seconds: (map(.seconds) | spread),
			conflicts: (last | .conflicts), timeline: .[0].timeline, command: .[0].command})),
		over_origin: ($values | del(.origin) | map_values(over(.; $values.origin))),
		static_over_volume: over($values.static; $values.volume)}]}
	' "$work/rows" >"$out/dynamic.json"
jq -r '.loads[] | [.load, (.sides | .origin, .volume, .static | .value.median * 10 | round / 10), .unit,
	(.sides | .origin, .volume, .static | .seconds.median), (.over_origin | .volume, .static | .median * 100 | round / 100)] | @tsv' \
	"$out/dynamic.json" | column -t -s "$(printf '\t')" -N load,disk,volume,static,unit,disk-s,volume-s,static-s,volume/disk,static/disk >&2
[ -z "$json" ] || cat "$out/dynamic.json"
say "medians of $rounds interleaved rounds; all of it in $out/dynamic.json"
