#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# map-run.sh - programs that know of nothing, plain and by `forebay map-run`, on the same file
# system; fio also by an engine on libforebay-map.  The sides take turns in each round, program
# after program.
#
#	lmdb-writemap	LMDB of Debian, MDB_WRITEMAP: commits, each of one small value
#	lmdb-pwrite	the same without it
#	redis, valkey	SETs with appendonly yes, appendfsync always; one client
#	fio		its engine mmap: 4 KiB to random places of 64 MiB, an msync of each
#
# CPU time is that of the process with the library's own threads; of fio, of the thread that
# writes.  What the kernel does for it elsewhere (the file system's journal) is not in it.
# shellcheck source-path=SCRIPTDIR
usage() {
	cat <<END
usage: bench/map-run.sh [--seconds N] [--rounds N] [--dir DIR] [--out DIR] [--json] [PROGRAM...]

  --seconds N   of each program on each side in each round (2)
  --rounds N    (5)
  --dir DIR     where the files are (TMPDIR or /tmp); the pool is in /dev/shm
  --out DIR     where map-run.json goes (bench/out)
  --json        prints it, and no table
  PROGRAM       lmdb-writemap, lmdb-pwrite, redis, valkey, fio (default: all that are here)
END
	exit "${1:-0}"
}

json=0 rounds=5 seconds=2 dir=${TMPDIR:-/tmp} out=$(dirname "$0")/out asked=()
known=(lmdb-writemap lmdb-pwrite redis valkey fio)
while [ $# -gt 0 ]; do
	case $1 in
	--json) json=1 ;;
	--rounds) rounds=${2:?} && shift ;;
	--seconds) seconds=${2:?} && shift ;;
	--dir) dir=${2:?} && shift ;;
	--out) out=${2:?} && shift ;;
	-h | --help) usage ;;
	*)
		[[ " ${known[*]} " == *" $1 "* ]] || usage 2 >&2
		asked+=("$1")
		;;
	esac
	shift
done
export TMPDIR=$dir
. "$(dirname "$0")/../tests/serve/lib.sh"
. "$(dirname "$0")/../tests/map/lib.sh"
. "$root/bench/facts.sh"
say() { echo "$me: $*" >&2; } # the results alone on stdout
need jq
mkdir -p "$out"
make_map 192M 160M
by_map_run=("$FOREBAY" map-run --pool "$pool" --files '*.map' '*.incr.aof' --room 128M --)

# has PROGRAM: what it takes is here; else says what is not.
has() {
	local command package
	case $1 in
	lmdb-*)
		[ -f /usr/include/lmdb.h ] && return
		command=lmdb.h package=liblmdb-dev
		;;
	redis | valkey)
		command -v "$1-server" >/dev/null && command -v "$1-benchmark" >/dev/null && return
		command=$1-server package=$1
		;;
	fio)
		command -v fio >/dev/null && return
		command=fio package=fio
		;;
	esac
	say "$1 is left out: no $command (Debian: apt install $package)"
	return 1
}

# run_PROGRAM SIDE PLACE COUNT: sets `value`, of a second, and `cpu_us`, of each.  COUNT is how
# many; of fio the seconds.  `by` is what the command is put behind.
by=()
run_lmdb() { # writemap|pwrite SIDE PLACE COUNT
	read -r value cpu_us < <("${by[@]}" "$work/lmdb" bench "$3.map" "$1" "$4") || fail "lmdb $1, $2"
}
run_lmdb-writemap() { run_lmdb writemap "$@"; }
run_lmdb-pwrite() { run_lmdb pwrite "$@"; }

# Microseconds on a CPU of all threads of the process; one may end meanwhile.
on_cpu() { { cat "/proc/$1"/task/*/schedstat 2>/dev/null || true; } | awk '{ n += $1 } END { printf "%.0f", n / 1000 }'; }
run_server() { # redis|valkey SIDE PLACE COUNT
	local socket=$work/server.sock server before
	rm -rf "$3"
	mkdir "$3"
	"${by[@]}" "$1-server" --port 0 --unixsocket "$socket" --dir "$3" --save '' \
		--appendonly yes --appendfsync always --daemonize no --protected-mode no \
		--auto-aof-rewrite-percentage 0 >"$work/server.said" 2>&1 &
	server=$!
	for _ in $(seq 200); do [ -S "$socket" ] && break; sleep 0.05; done
	before=$(on_cpu $server)
	value=$("$1-benchmark" -s "$socket" -t set -n "$4" -c 1 -q --csv | awk -F'"' '/SET/ { print $4 }')
	cpu_us=$(awk -v a="$(on_cpu $server)" -v b="$before" -v n="$4" 'BEGIN { print (a - b) / n }')
	"$1-cli" -s "$socket" shutdown nosave >/dev/null 2>&1 || kill "$server"
	wait "$server" || true
	[ -n "$value" ] || { cat "$work/server.said" >&2; fail "$1, $2: no figure"; }
}
run_redis() { run_server redis "$@"; }
run_valkey() { run_server valkey "$@"; }

run_fio() { # SIDE PLACE SECONDS
	local engine=(--ioengine=mmap)
	[ "$1" != library ] || engine=("--ioengine=external:$work/fio_map.so" "--pool=$pool")
	# direct=1 is how this engine is told to msync each write, its range alone.  The first second
	# finds the pages, and is not counted.
	"${by[@]}" fio --name=w --filename="$2.map" --rw=randwrite --bs=4k --size=64m --time_based --ramp_time=1 --runtime="$3" \
		--direct=1 --randrepeat=0 --fadvise_hint=0 --thread "${engine[@]}" --output-format=json \
		>"$work/fio.json" 2>"$work/fio.said" || { cat "$work/fio.said" >&2; fail "fio, $1"; }
	read -r value cpu_us < <(sed -n '/^{/,$p' "$work/fio.json" | jq -r '.jobs[0] |
		"\(.write.iops) \((.usr_cpu + .sys_cpu) / 100 * .job_runtime * 1000 / .write.total_ios)"')
}

declare -A unit=([lmdb-writemap]=commits [lmdb-pwrite]=commits [redis]=SETs [valkey]=SETs [fio]=writes) count=()
sides=(plain mapped)
# one PROGRAM SIDE COUNT
one() {
	by=()
	[ "$2" != mapped ] || by=("${by_map_run[@]}")
	"run_$1" "$2" "$work/$1-$2" "$3"
	[[ $value =~ ^[0-9.e+]+$ && $cpu_us =~ ^[0-9.e-]+$ ]] || fail "$1, $2: no figure: '$value' '$cpu_us'"
}

programs=()
for program in "${asked[@]:-${known[@]}}"; do has "$program" && programs+=("$program"); done
[ ${#programs[@]} -gt 0 ] || fail "nothing to run"
[[ " ${programs[*]} " != *" lmdb-"* ]] || compile lmdb -llmdb
library=()
if [[ " ${programs[*]} " == *" fio "* ]]; then
	if headers=$("$root/bench/fio_headers.sh"); then
		built=$(dirname "$FOREBAY")
		[ -f "$built/libforebay_map_c.a" ] || fail "libforebay_map_c.a: not built; run: make build"
		gcc -std=gnu11 -O2 -Wall -Werror -shared -fPIC -D_GNU_SOURCE -isystem "$headers" -include "$headers/config-host.h" \
			-I "$root/crates/forebay-map-c/include" -o "$work/fio_map.so" "$root/bench/fio_map.c" \
			"$built/libforebay_map_c.a" -lgcc_s -ldl -lm -pthread -Wl,--exclude-libs,ALL -Wl,--gc-sections ||
			fail "fio_map.c does not compile"
		library=(library)
	else
		say "fio's own mmap engine alone: for one on the library its headers are missing"
	fi
fi
sides_of() { echo "${sides[@]}" "$([ "$1" = fio ] && echo "${library[@]}")"; }

facts=$(machine) started=$(date -u +%FT%TZ)
# How many fit into the time; and what is new is so no more.
for program in "${programs[@]}"; do
	for side in $(sides_of "$program"); do
		if [ "$program" = fio ]; then
			dd if=/dev/zero of="$work/fio-$side.map" bs=1M count=64 conv=fsync status=none
			count[fio-$side]=$seconds
			continue
		fi
		one "$program" "$side" 200
		count[$program-$side]=$(awk -v v="$value" -v s="$seconds" 'BEGIN { n = int(v * s); print n < 100 ? 100 : n }')
	done
done
: >"$work/rows"
for ((round = 1; round <= rounds; round++)); do
	for program in "${programs[@]}"; do
		for side in $(sides_of "$program"); do
			one "$program" "$side" "${count[$program-$side]}"
			printf '%s\t%s\t%s\t%s\t%s\n' "$program" "${unit[$program]}" "$side" "$value" "$cpu_us" >>"$work/rows"
			say "round $round, $program, $side: ${value%.*} ${unit[$program]}/s, $cpu_us us of CPU time each"
		done
	done
done

jq -n --rawfile rows "$work/rows" --argjson machine "$facts" --arg started "$started" --argjson seconds "$seconds" \
	--argjson rounds "$rounds" --arg dir "$dir" --arg files "$(findmnt -no FSTYPE -T "$dir")" --arg load "$(cut -d' ' -f1-3 /proc/loadavg)" \
	--arg command "bench/map-run.sh --seconds $seconds --rounds $rounds ${asked[*]}" '
	def middle: sort | if length % 2 == 1 then .[length / 2 | floor]
		else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def spread: {median: middle, low: min, high: max, rounds: .};
	def over($a; $b): [$a, $b] | transpose | map(.[0] / .[1]) | spread;
	def of($i): group_by(.[2]) | map({(.[0][2]): map(.[$i] | tonumber)}) | add;
	[$rows | split("\n") | map(select(. != "") | split("\t"))] | .[0] as $all |
	{started: $started, command: $command, machine: $machine, load_at_end: $load, seconds: $seconds, rounds: $rounds,
	 dir: $dir, file_system: $files,
	 programs: [($all | map(.[0]) | unique_by(. as $p | $all | map(.[0]) | index($p))[]) as $program |
		$all | map(select(.[0] == $program)) | of(3) as $rate | of(4) as $cpu |
		{program: $program, unit: .[0][1], per_s: ($rate | map_values(spread)), cpu_us: ($cpu | map_values(spread)),
		 over_plain: ($rate | del(.plain) | map_values(over(.; $rate.plain)))}]}
	' >"$out/map-run.json"
if [ $json = 1 ]; then
	cat "$out/map-run.json"
	exit
fi
jq -r 'def short: . * 10 | round / 10;
	.programs[] | . as $p | .per_s | to_entries[] | [$p.program, .key, (.value.median | round), (.value | .low, .high | round), $p.unit,
	($p.over_plain[.key] // empty | "\(.median | short) (\(.low | short) to \(.high | short))") // "-", ($p.cpu_us[.key].median | short)] | @tsv' \
	"$out/map-run.json" | column -t -s "$(printf '\t')" -N program,side,a-second,lowest,highest,of,times-plain,CPU-us-each
say "medians of $rounds rounds of $seconds s in turns; all of it in $out/map-run.json"
