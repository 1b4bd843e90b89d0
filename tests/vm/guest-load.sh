# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: measure what a full cache makes of a disk with a steady rate, and mixed reads and writes,
# compared with dm-writecache, bcache and dm-pcache.
# Method: each cache in front of a disk of its own. fio writes from 16 threads, and what is complete
# is counted every half second.  Then short rounds of mixes, the devices in turn.
#	$1 seconds of the sustained load   $2 MiB of a cache, six times as much is written to
#	$3 rounds of each mix   $4 seconds of one   $5 jobs, as 1:4:16
#	$6 MiB of dm-pcache's cache, which has twice the seconds to get full; 0: it is left out
# Prints lines "load window DEVICE US BLOCKS", "load latency DEVICE P50 P99 P999 MAX"
# in us, "load mix ROUND WRITES JOBS DEVICE PER_S", "load cpu DEVICE PERCENT", and
# "load command ...".
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
. "$(dirname "$0")/guest-sustained.sh"
seconds=$1 cache=$2 rounds=$3 each=$4 jobs=${5//:/ } pcache=$6
kinds="writecache bcache pcache target native"
[ "$pcache" != 0 ] || kinds=${kinds/pcache /}
[ -x "$root/out/vm/make-bcache" ] || kinds=${kinds/bcache /}
declare -A disk=([origin]=/dev/vda [writecache]=/dev/vdb [bcache]=/dev/vdc [target]=/dev/vdd [native]=/dev/vde [pcache]=/dev/vdf)
declare -A pmem=([origin]='' [writecache]=/dev/pmem0 [bcache]=/dev/pmem1 [target]=/dev/pmem2 [native]=/dev/pmem3 [pcache]=/dev/pmem4)
cache_mib() { [ "$1" = pcache ] && echo "$pcache" || echo "$cache"; } # KIND

# mixes WRITES: runs all jobs, rounds and devices in one run of fio, one after the other.  While
# others have their turn a cache makes room.  Six seconds fill that first, and let it settle.
mixes() {
	local round n kind groups=()
	for n in $jobs; do
		for ((round = 1; round <= rounds; round++)); do
			for kind in $mixed; do
				groups+=(--name="$round $1 $n $kind" --stonewall --new_group --filename="${up[$kind]}" --numjobs="$n"
					--size="$(($(cache_mib "$kind") * 6))m")
			done
		done
	done
	fio --rw=randrw --rwmixwrite="$1" --bs=4k --direct=1 --ioengine=psync --thread --norandommap --randrepeat=0 \
		--time_based --ramp_time=6 --runtime="$each" --group_reporting --output-format=json "${groups[@]}" \
		>/tmp/fio.json 2>/tmp/fio.err || fail "$(cat /tmp/fio.err)"
	jq -r '.jobs[] | "load mix \(.jobname) \(.read.iops + .write.iops)"' /tmp/fio.json
}

load_module
load_threads=16
mib=$((cache * 6))
cache_up origin "${disk[origin]}" ''
sustained origin-before 10
for kind in $kinds; do
	cache_up "$kind" "${disk[$kind]}" "${pmem[$kind]}"
	mib=$(($(cache_mib "$kind") * 6))
	if [ "$kind" = pcache ]; then sustained pcache $((2 * seconds)); else sustained "$kind" "$seconds"; fi
	echo "status of $kind: $(cache_status "$kind")"
	cache_down "$kind"
done
mib=$((cache * 6))
cache_up origin "${disk[origin]}" ''
sustained origin-after 10

# All caches are new.
declare -A up
mixed=${kinds/bcache /}
for kind in $mixed; do
	cache_up "$kind" "${disk[$kind]}" "${pmem[$kind]}"
	up[$kind]=$device
	[ "$kind" = pcache ] || continue
	# Six seconds do not fill this cache.
	fio --name=fill --filename="$device" --size=$((pcache * 6))m --io_size=$((pcache / 16))m --numjobs=16 --rw=randwrite --bs=4k \
		--direct=1 --ioengine=psync --thread --norandommap --randrepeat=0 >/tmp/fio.err 2>&1 || fail "$(cat /tmp/fio.err)"
done
for writes in 99 90 70 50 0; do mixes $writes; done
for kind in $mixed; do
	device=${up[$kind]}
	echo "status of $kind: $(cache_status "$kind")"
	cache_down "$kind"
done
clean_dmesg
