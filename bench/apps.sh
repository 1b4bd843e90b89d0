#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# apps.sh - programs that wait for their disk at every commit, on ext4 on a disk:
#
#	origin		on the disk alone
#	eatmydata	the same with libeatmydata, which makes every sync nothing: the ceiling
#	mount		the same under `forebay mount`
#	forebay		on a volume in front of the disk, served
#
# Each side has a disk of its own.  A slow disk is slow_disk.c over a file in memory;
# what is on it crosses NBD, nbdfuse and a loop device, and the volume does so also on
# this machine's own disk (`own`), the others only the loop device.  Pools are in
# shared memory.  Rounds take turns between the sides.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/programs.sh"

usage() {
	cat <<END
usage: bench/apps.sh [--seconds N] [--rounds N] [--disk NAME]... [--out DIR] [APP...]

  --seconds N   of each round (3)
  --rounds N    of each program on each side (3)
  --disk NAME   own (this machine's, in \$TMPDIR), sata, disk, or
                REQUESTS/S,MB/S,REQUEST_US,FLUSH_US (default: own sata disk)
  --out DIR     where apps.json goes (bench/out)
  APP           redis, mariadb, rocksdb, postgresql, varmail, sqlite-delete, sqlite-wal,
                etcd (default: all)

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
[ ${#disks[@]} -gt 0 ] || disks=(own sata disk)
[ ${#apps[@]} -gt 0 ] || apps=("${programs[@]}")
for disk in "${disks[@]}"; do [ "$disk" = own ] || disk_speed "$disk" >/dev/null; done

[ "$(id -u)" = 0 ] || fail "mounting needs root"
"$root/scripts/need" bench
# Servers are not installed by the way.
for app in "${apps[@]}"; do
	for pair in $(needs "$app"); do want "${pair%:*}" "${pair#*:}"; done
done
preload=${EATMYDATA:-/usr/lib/$(uname -m)-linux-gnu/libeatmydata.so}
[ -e "$preload" ] || missing+=(libeatmydata1)
wanted
[ -x "$FOREBAY" ] || fail "$FOREBAY: not built; run: make build"
start_work
mkdir -p "$out"
: >"$work/rows"
: >"$work/commands"

# programs.sh reads these variables.
sides=(origin eatmydata mount forebay) mounts=$work/ sockets=$work/sock-
around() {
	[ "$1" != eatmydata ] || local -x LD_PRELOAD=$preload
	"${@:2}"
}
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
	say "$disk: making the sides"
	for side in origin eatmydata tree; do
		disk $side "$disk" 3G
		mounted $side
	done
	tree tree 512M
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
	def over($a; $b): [$a, $b] | transpose | map(.[0] / .[1]) | spread;
	($rows | lines | map({disk: .[0], app: .[1], side: .[2], value: (.[4] | tonumber)})) as $all |
	($commands | lines) as $commands |
	{started: $started, command: $command, machine: $machine, seconds: $seconds, rounds: $rounds, disks: $disks,
	 cells: [$all | group_by([.disk, .app])[] | . as $cell |
		(group_by(.side) | map({(.[0].side): map(.value)}) | add) as $of | {
		disk: .[0].disk, app: .[0].app, unit: $units[.[0].app],
		commands: [$commands[] | select(.[0] == $cell[0].disk and .[1] == $cell[0].app) | {(.[2]): .[3]}] | add,
		sides: ($of | map_values(spread)),
		over_origin: ($of | del(.origin) | map_values(over(.; $of.origin))),
		mount_over_eatmydata: over($of.mount; $of.eatmydata)}]}
	' >"$out/apps.json"
jq -r '.cells[] | [.disk, .app, (.sides | .origin, .eatmydata, .mount, .forebay | .median | round), .unit,
	(.over_origin | .eatmydata, .mount, .forebay | "\(.median * 100 | round / 100) (\(.low * 100 | round / 100) to \(.high * 100 | round / 100))"),
	(.mount_over_eatmydata.median * 100 | round / 100)] | @tsv' \
	"$out/apps.json" | column -t -s "$(printf '\t')" -N disk,program,origin,eatmydata,mount,volume,unit,eatmydata/origin,mount/origin,volume/origin,mount/eatmydata
say "medians of $rounds interleaved rounds of $seconds s; all of it in $out/apps.json"
