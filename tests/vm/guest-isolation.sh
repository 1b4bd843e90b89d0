# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: measure what a bad origin costs the other volumes of its pool.
# Method: volume a is written all the time, first with a healthy origin and then with a bad one, and
# again.  Volume b of the same pool is measured: requests a second, and the slowest in a thousand.
# Prints a table.  The only assertion is that all goes on: b writes without an error, and
# once the origin is well again everything ends, and is drained.
#	$1 seconds of a measurement   $2 rounds   $3... ways, instead of all; "none" leaves a as
#	it is, so its ratios are what two measurements of the same differ by
. "$(dirname "$0")/guest-lib.sh"
kind=native
seconds=${1:-3}
rounds=${2:-2}
ways=("${@:3}")
[ ${#ways[@]} -gt 0 ] || ways=(none errors hung slow past discards)
limit=120
sectors=$((256 << 11)) # of each origin
half=$((sectors / 2))

good="0 $sectors linear /dev/ram0 0"
declare -A bad=(
	[none]=$good
	[errors]="0 $sectors flakey /dev/ram0 0 0 3600 1 error_writes"
	[slow]="0 $sectors delay /dev/ram0 0 10"
	# The requests of a's writer to the second half bypass the cache or are discards.
	[past]="0 $half linear /dev/ram0 0
$half $half error"
	[discards]="0 $half linear /dev/ram0 0
$half $half error"
)

reload() { # TABLE
	dmsetup suspend --noflush --nolockfs oa
	echo "$1" | dmsetup load oa || fail "load: $1"
	dmsetup resume --noudevsync oa
}
go_bad() { if [ "$1" = hung ]; then dmsetup suspend --noflush --nolockfs oa; else reload "${bad[$1]}"; fi; }
go_well() { if [ "$1" = hung ]; then dmsetup resume --noudevsync oa; else reload "$good"; fi; }

# Starts the writers of a, which run until they are killed.  Their rate is the same with a good and
# with a bad origin, and takes less than a CPU.  Otherwise a writer that is refused at once would
# try more often, and take CPU time from b.
load_a() {
	local fio=(fio --filename="$a" --direct=1 --ioengine=psync --time_based --runtime=3600 --continue_on_error=all
		--max_latency=0 --size=100M)
	"${fio[@]}" --name=cached --rate_iops=5000 --rw=randwrite --bs=4k >/tmp/a.log 2>&1 &
	writers=($!)
	case $1 in
	past) "${fio[@]}" --name=past --rate_iops=500 --offset=$((half * 512)) --rw=randwrite --bs=64k >/tmp/a2.log 2>&1 & ;;
	discards) "${fio[@]}" --name=trim --rate_iops=500 --offset=$((half * 512)) --rw=randtrim --bs=64k >/tmp/a2.log 2>&1 & ;;
	*) return ;;
	esac
	writers+=($!)
}

# measure light|heavy: loads b; prints requests a second and the slowest in a thousand, in
# us.
measure() {
	local options=(--numjobs=2)
	[ "$1" = light ] && options=(--rate_iops=200)
	fio --name=b --filename="$b" --direct=1 --ioengine=psync --rw=randwrite --bs=4k --size=100M --time_based \
		--runtime="$seconds" "${options[@]}" --group_reporting --percentile_list=99.9 --output-format=json \
		>/tmp/b.json 2>/tmp/b.err || return 1
	jq -r '.jobs[0].write | "\(.iops | floor) \((.clat_ns.percentile["99.900000"] // 0) / 1000 | floor)"' /tmp/b.json
}

median() { tr ' ' '\n' <<<"$*" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# Measures b while a's origin is good and bad by turns.
compare() { # WAY WEIGHT
	local way=$1 weight=$2 round well ill w=() i=() wl=() il=()
	load_a "$way"
	for ((round = 0; round < rounds; round++)); do
		sleep 1
		well=$(measure "$weight") || fail "b fails beside a healthy origin: $(cat /tmp/b.err)"
		go_bad "$way"
		sleep 1
		ill=$(measure "$weight") || fail "b fails beside $way: $(cat /tmp/b.err)"
		go_well "$way"
		w+=("${well% *}") wl+=("${well#* }") i+=("${ill% *}") il+=("${ill#* }")
	done
	kill "${writers[@]}"
	until_true $limit gone "${writers[@]}" || fail "the writers of a do not end after $way"
	wait
	[ "$(median "${i[@]}")" -gt 0 ] || fail "b stands still beside $way"
	awk -v way="$way" -v weight="$weight" -v w="$(median "${w[@]}")" -v i="$(median "${i[@]}")" -v wl="$(median "${wl[@]}")" \
		-v il="$(median "${il[@]}")" 'BEGIN { printf "isolation: %-9s %-6s %9d %9d %8.2f %9d %9d %8.2f\n",
			way, weight, w, i, i / w, wl, il, wl ? il / wl : 0 }'
}
gone() { local p; for p; do ! kill -0 "$p" 2>/dev/null || return 1; done; }

load_module
forebay create $pool --force --chunk-size 256K >/tmp/step.log 2>&1 || fail "create"
dmsetup create --noudevsync --noudevrules oa --table "$good"
dmsetup create --noudevsync --noudevrules ob --table "0 $sectors linear /dev/ram1 0"
dmsetup mknodes
step "attach a" dev_attach a /dev/mapper/oa a create bypass_limit 65536
a=$device
step "attach b" dev_attach b /dev/mapper/ob b create
b=$device
echo "isolation: a's origin b is    b/s beside a:     well       bad    ratio  99.9 us:  well       bad    ratio"
for way in "${ways[@]}"; do
	for weight in light heavy; do
		compare $way $weight
	done
	for v in a b; do
		step "drain $v after $way" dev_command $v flush
	done
done
step "detach" dev_detach a
step "detach" dev_detach b
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "isolation: $passed passed"
