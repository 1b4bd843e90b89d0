# SPDX-License-Identifier: MIT OR Apache-2.0
#
# guest-sustained.sh - sourced by guest-load.sh and guest-destage.sh. $load_threads threads make
# random writes over the first $mib MiB of $device, and what is complete is counted every half
# second.
#
# Prints lines "load window NAME US BLOCKS", "load latency NAME P50 P99 P999 MAX" in
# us, "load cpu NAME PERCENT" and "load command NAME COMMAND".

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

writers=(--rw=randwrite --bs=4k --direct=1 --ioengine=psync --thread --norandommap --randrepeat=0
	--time_based --group_reporting --output-format=json)

# sustained NAME SECONDS
sustained() {
	local command sampler before after queue
	queue=/sys/dev/block/$((0x$(stat -c %t "$device"))):$((0x$(stat -c %T "$device")))/queue
	echo 1 >"$queue/iostats" # not every device counts by itself
	command=(fio --name=load --filename="$device" --size="${mib}m" --runtime="$2" --numjobs="$load_threads" "${writers[@]}")
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
