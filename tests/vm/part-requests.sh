# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND...]: single requests of every shape against a copy, counters, options, commands, refusals; KIND: native, target.
part() {
	local kind rc=0
	for kind in ${*:-native target}; do
		cpus=1 pmem_map='24M!4G,40M!4352M' guest requests-"$kind" 900 guest-requests.sh "$kind" || rc=1
	done
	return $rc
}
