#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# apps.sh - programs that wait for their disk at every commit: on ext4 on a served
# volume, and on ext4 on the same kind of disk alone.
#
# Both sides cross NBD, nbdfuse and a loop device, so what differs is what is
# behind: the disk, or Forebay with its pool in shared memory in front of such a
# disk.  The disk is slow_disk.c over a file in memory.  Rounds alternate between
# the sides.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/programs.sh"

usage() {
	cat <<END
usage: bench/apps.sh [--seconds N] [--rounds N] [--disk NAME]... [--out DIR] [APP...]

  --seconds N   of each round (3)
  --rounds N    of each program on each side (3)
  --disk NAME   sata, disk (default: both), or REQUESTS/S,MB/S,REQUEST_US,FLUSH_US
  --out DIR     where apps.json goes (bench/out)
  APP           redis, mariadb, rocksdb, postgresql, varmail (default: all)

example: bench/apps.sh --disk sata --seconds 10 redis varmail
END
	exit "${1:-0}"
}

seconds=3 rounds=3 disks=() apps=() out=$root/bench/out
while [ $# -gt 0 ]; do
	case $1 in
	--seconds) seconds=${2:?} && shift ;;
	--rounds) rounds=${2:?} && shift ;;
	--disk) disks+=("${2:?}") && shift ;;
	--out) out=${2:?} && shift ;;
	-h | --help) usage ;;
	*)
		[[ " ${programs[*]} " == *" $1 "* ]] || usage 2 >&2
		apps+=("$1")
		;;
	esac
	shift
done
[ ${#disks[@]} -gt 0 ] || disks=(sata disk)
[ ${#apps[@]} -gt 0 ] || apps=("${programs[@]}")
for disk in "${disks[@]}"; do disk_speed "$disk" >/dev/null; done

[ "$(id -u)" = 0 ] || fail "mounting needs root"
"$root/scripts/need" bench
# Servers are not installed by the way.
for app in "${apps[@]}"; do
	for pair in $(needs "$app"); do want "${pair%:*}" "${pair#*:}"; done
done
wanted
[ -x "$FOREBAY" ] || fail "$FOREBAY: not built; run: make build"
start_work
mkdir -p "$out"
: >"$work/rows"
: >"$work/commands"

# What programs.sh asks for.
sides=(origin forebay) mounts=$work/ sockets=$work/sock-
put() { cp -a "$work/data/$1" "$mnt/"; }
result() {
	printf '%s\t%s\t%s\t%s\t%s\n' "$@" "$value" >>"$work/rows"
	[ "$4" -gt 1 ] || printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${command//$work/WORK}" >>"$work/commands"
	say "$1, $2, round $4, $3: $value ${unit[$2]}"
}

at_end stop_servers
started=$(date -u +%FT%TZ) facts=$(machine)
mkdir -m 711 "$work/data"
for app in "${apps[@]}"; do
	declare -F "make_$app" >/dev/null || continue
	say "$app: its data, once"
	"make_$app" "$work/data"
done
for disk in "${disks[@]}"; do
	say "$disk: making both sides"
	slow_disk origin "$disk" 3G
	fuse origin "$(uri "$work/origin.sock")"
	mounted origin
	volume forebay "$disk" 3G 512M
	mounted forebay
	at_end stop_servers # before what they are on goes
	for app in "${apps[@]}"; do measure "$disk" "$app"; done
	run_undo
done

jq -n --rawfile rows "$work/rows" --rawfile commands "$work/commands" --argjson machine "$facts" \
	--argjson disks "$(disks_json "${disks[@]}")" --argjson units "$(units_json "${apps[@]}")" --arg started "$started" \
	--argjson seconds "$seconds" --argjson rounds "$rounds" \
	--arg command "bench/apps.sh --seconds $seconds --rounds $rounds ${disks[*]/#/--disk } ${apps[*]}" '
	def lines: split("\n") | map(select(. != "") | split("\t"));
	def middle: sort | if length % 2 == 1 then .[length / 2 | floor]
		else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def spread: {median: middle, low: min, high: max, rounds: .};
	($rows | lines | map({disk: .[0], app: .[1], side: .[2], value: (.[4] | tonumber)})) as $all |
	($commands | lines) as $commands |
	{started: $started, command: $command, machine: $machine, seconds: $seconds, rounds: $rounds, disks: $disks,
	 cells: [$all | group_by([.disk, .app])[] | . as $cell | {
		disk: .[0].disk, app: .[0].app, unit: $units[.[0].app],
		commands: [$commands[] | select(.[0] == $cell[0].disk and .[1] == $cell[0].app) | {(.[2]): .[3]}] | add,
		origin: [.[] | select(.side == "origin").value] | spread,
		forebay: [.[] | select(.side == "forebay").value] | spread}
		| .ratio = ([.forebay.rounds, .origin.rounds] | transpose | map(.[0] / .[1]) | spread)]}
	' >"$out/apps.json"
jq -r '.cells[] | "\(.disk)\t\(.app)\t\(.origin.median | round)\t\(.forebay.median | round)\t\(.unit)\t\(.ratio.median * 100 | round / 100)\t(\(.ratio.low * 100 | round / 100) to \(.ratio.high * 100 | round / 100))"' \
	"$out/apps.json" | column -t -s "$(printf '\t')" -N disk,program,origin,forebay,unit,ratio,spread
say "medians of $rounds interleaved rounds of $seconds s; all of it in $out/apps.json"
