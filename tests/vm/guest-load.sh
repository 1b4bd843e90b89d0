# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: what a cache that is full makes of a disk that serves a steady rate, and
# mixed reads and writes, beside dm-writecache and bcache.  Method: each cache in
# front of a disk of its own; fio writes from 16 threads, and what is complete is
# counted every half second; then short rounds of mixes, the devices in turn.
#	$1 seconds of the sustained load   $2 MiB of it
#	$3 rounds of each mix   $4 seconds of one   $5 jobs, as 1:4:16
# Prints lines "load window DEVICE US BLOCKS", "load latency DEVICE P50 P99 P999 MAX"
# in us, "load mix ROUND WRITES JOBS DEVICE PER_S", "load cpu DEVICE PERCENT", and
# "load command ...".
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
seconds=$1 mib=$2 rounds=$3 each=$4 jobs=${5//:/ }
kinds="writecache bcache target native"
[ -x "$root/out/vm/make-bcache" ] || kinds=${kinds/bcache /}
declare -A disk=([origin]=/dev/vda [writecache]=/dev/vdb [bcache]=/dev/vdc [target]=/dev/vdd [native]=/dev/vde)
declare -A pmem=([origin]='' [writecache]=/dev/pmem0 [bcache]=/dev/pmem1 [target]=/dev/pmem2 [native]=/dev/pmem3)

mkfifo /tmp/never && exec 9<>/tmp/never
busy() { awk '$1 == "cpu" { print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat; }

# sample NAME DEVICE: until it is killed.  Without a process of its own for each look.
sample() {
	local stat start now next before after nothing
	stat=/sys/dev/block/$((0x$(stat -c %t "$2"))):$((0x$(stat -c %T "$2")))/stat
	read -r -a before <"$stat"
	start=${EPOCHREALTIME/./} next=$start
	while :; do
		next=$((next + 500000)) now=${EPOCHREALTIME/./}
		[ $next -gt "$now" ] || next=$((now + 500000)) # a late look makes one long window, not short ones
		read -r -t "$(printf '%d.%06d' $(((next - now) / 1000000)) $(((next - now) % 1000000)))" -u 9 nothing
		read -r -a after <"$stat"
		echo "load window $1 $((${EPOCHREALTIME/./} - start)) $(((after[6] - before[6]) / 8))"
	done
}

writers=(--rw=randwrite --bs=4k --direct=1 --ioengine=psync --thread --numjobs=16 --norandommap --randrepeat=0
	--time_based --group_reporting --output-format=json)

# sustained NAME SECONDS
sustained() {
	local command sampler before after queue
	queue=/sys/dev/block/$((0x$(stat -c %t "$device"))):$((0x$(stat -c %T "$device")))/queue
	echo 1 >"$queue/iostats" # not every device counts by itself
	command=(fio --name=load --filename="$device" --size="${mib}m" --runtime="$2" "${writers[@]}")
	echo "load command $1 ${command[*]}"
	read -r -a before <<<"$(busy)"
	sample "$1" "$device" &
	sampler=$!
	chrt -f -p 50 $sampler
	"${command[@]}" >/tmp/fio.json 2>/tmp/fio.err || fail "$(cat /tmp/fio.err)"
	kill $sampler
	wait $sampler 2>/dev/null
	read -r -a after <<<"$(busy)"
	echo "load cpu $1 $((100 * (after[0] - before[0]) / (after[1] - before[1] + 1)))"
	jq -r '.jobs[0].write | .clat_ns | [.percentile["50.000000", "99.000000", "99.900000"], .max] | map(. / 1000 | round) |
		"load latency '"$1"' \(map(tostring) | join(" "))"' /tmp/fio.json
}

# mixes WRITES: all jobs, rounds and devices in one run of fio, one after the other.
# While others have their turn a cache makes room; six seconds fill that first, and let it settle.
mixes() {
	local round n kind groups=()
	for n in $jobs; do
		for ((round = 1; round <= rounds; round++)); do
			for kind in $mixed; do
				groups+=(--name="$round $1 $n $kind" --stonewall --new_group --filename="${up[$kind]}" --numjobs="$n")
			done
		done
	done
	fio --rw=randrw --rwmixwrite="$1" --bs=4k --direct=1 --ioengine=psync --thread --norandommap --randrepeat=0 \
		--size="${mib}m" --time_based --ramp_time=6 --runtime="$each" --group_reporting --output-format=json "${groups[@]}" \
		>/tmp/fio.json 2>/tmp/fio.err || fail "$(cat /tmp/fio.err)"
	jq -r '.jobs[] | "load mix \(.jobname) \(.read.iops + .write.iops)"' /tmp/fio.json
}

load_module
cache_up origin "${disk[origin]}" ''
sustained origin-before 10
for kind in $kinds; do
	cache_up "$kind" "${disk[$kind]}" "${pmem[$kind]}"
	sustained "$kind" "$seconds"
	echo "status of $kind: $(cache_status "$kind")"
	cache_down "$kind"
done
cache_up origin "${disk[origin]}" ''
sustained origin-after 10

# New caches, all at once.
declare -A up
mixed="writecache target native"
for kind in $mixed; do
	cache_up "$kind" "${disk[$kind]}" "${pmem[$kind]}"
	up[$kind]=$device
done
for writes in 99 90 70 50 0; do mixes $writes; done
for kind in $mixed; do
	device=${up[$kind]}
	echo "status of $kind: $(cache_status "$kind")"
	cache_down "$kind"
done
clean_dmesg
