#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# peers.sh - 4 KiB random writes that are durable when they return: Forebay beside
# PMDK's libpmemblk, which writes blocks of persistent memory atomically, and
# beside the origin alone.  All in one run, each getting its turn in each round.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<END
usage: bench/peers.sh [--seconds N] [--rounds N] [--jobs N,...] [--disk NAME] [--out DIR]

  --seconds N   of each round (2)
  --rounds N    of each (5)
  --jobs N,...  numbers of writers (1,2)
  --disk NAME   of the origin: sata (default), disk, or REQUESTS/S,MB/S,REQUEST_US,FLUSH_US
  --out DIR     where peers.json goes (bench/out)
END
	exit "${1:-0}"
}

seconds=2 rounds=5 jobs=1,2 disk=sata out=$root/bench/out
while [ $# -gt 0 ]; do
	case $1 in
	--seconds) seconds=${2:?} && shift ;;
	--rounds) rounds=${2:?} && shift ;;
	--jobs) jobs=${2:?} && shift ;;
	--disk) disk=${2:?} && shift ;;
	--out) out=${2:?} && shift ;;
	-h | --help) usage ;;
	*) usage 2 >&2 ;;
	esac
	shift
done
disk_speed "$disk" >/dev/null

"$root/scripts/need" bench
[ -x "$FOREBAY" ] || fail "$FOREBAY: not built; run: make build"
engines=$(fio --enghelp)
for engine in nbd pmemblk; do
	grep -q "^[[:space:]]*$engine\$" <<<"$engines" ||
		fail "this fio ($(fio --version)) is built without its engine $engine; Debian's has it"
done

start_work
mkdir -p "$out" "$work/media"
: >"$work/rows"
facts=$(machine)
slow_disk origin "$disk" 1G
volume forebay "$disk" 1G 1G

fio_run() {
	command="fio --name=w --rw=randwrite --bs=4k --time_based --runtime=$seconds --group_reporting --randrepeat=0 --output-format=json $*"
	$command >"$work/output" 2>>"$work/fio.log" || { cat "$work/output" >&2; fail "$command"; }
	value=$(sed -n '/^{/,$p' "$work/output" | jq '.jobs[0].write.iops')
}
# Each peer has a function: run_NAME JOBS leaves `command` and `value`.
command='' value=''
run_library() {
	local arguments=(bench slots --media-rate 0 --dir "$work/media" --pool-size 1G --blocks 65536
		--threads "$1" --slots 4 --rounds 1 --turn "${seconds}s" --json)
	command="forebay ${arguments[*]}"
	"$FOREBAY" "${arguments[@]}" >"$work/output"
	value=$(jq '.cells[0].writes_per_s' "$work/output")
}
# libpmemblk is to treat memory as persistent memory, and not to call msync.
run_pmemblk() {
	export PMEM_IS_PMEM_FORCE=1
	fio_run --ioengine=pmemblk --thread --numjobs="$1" --size=256m --filename="$work/media/blk,4096,512"
	command="PMEM_IS_PMEM_FORCE=1 $command"
	unset PMEM_IS_PMEM_FORCE
}
run_served() {
	fio_run --ioengine=nbd --uri="$(uri "$work/run/forebay" v)" --size=256m --numjobs="$1" --iodepth=1
}
# Its own writes are durable only after a flush.
run_origin() {
	fio_run --ioengine=nbd --uri="$(uri "$work/origin.sock")" --size=256m --numjobs="$1" --iodepth=1 --fsync=1
}
declare -A names=(
	[library]='Forebay, in the process'
	[pmemblk]='libpmemblk, in the process (fio)'
	[served]='Forebay over NBD (fio)'
	[origin]='the origin alone over NBD, a flush after each write (fio)'
)

for ((round = 1; round <= rounds; round++)); do
	for n in ${jobs//,/ }; do
		for what in library pmemblk served origin; do
			"run_$what" "$n"
			[[ $value =~ ^[0-9.]+$ ]] || fail "$command: no figure in its output"
			printf '%s\t%s\t%s\t%s\n' "${names[$what]}" "$n" "$value" "${command//$work/WORK}" >>"$work/rows"
			say "round $round, $n jobs, ${names[$what]}: ${value%.*} writes/s"
		done
	done
done

note="In the process: the same CPU, caches and memory file system, no server between. libpmemblk writes each
block out of place and flips an entry of a table (BTT); it checks no data and caches nothing, so it is a floor for
what a write must do and no peer in what a pool is. Over NBD a request costs tens of microseconds, whatever is behind
it. Origin: $(disk_speed "$disk") (requests/s, MB/s, us a request, us a flush)."
jq -n --rawfile rows "$work/rows" --argjson machine "$facts" --argjson seconds "$seconds" \
	--argjson rounds "$rounds" --arg note "${note//$'\n'/ }" \
	--arg command "bench/peers.sh --seconds $seconds --rounds $rounds --jobs $jobs --disk $disk" '
	def middle: sort | if length % 2 == 1 then .[length / 2 | floor]
		else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def spread: {median: middle, low: min, high: max, rounds: .};
	{command: $command, machine: $machine, seconds: $seconds, rounds: $rounds, note: $note,
	 cells: [$rows | split("\n") | map(select(. != "") | split("\t")) | group_by([.[1], .[0]])[] |
		{name: .[0][0], jobs: (.[0][1] | tonumber), command: .[0][3],
		 writes_per_s: (map(.[2] | tonumber) | spread)}]}
	' >"$out/peers.json"
jq -r '.cells[] | "\(.jobs)\t\(.name)\t\(.writes_per_s.median | round)\t(\(.writes_per_s.low | round) to \(.writes_per_s.high | round))"' \
	"$out/peers.json" | column -t -s "$(printf '\t')" -N jobs,what,writes/s,spread
say "medians of $rounds interleaved rounds of $seconds s; all of it in $out/peers.json"
