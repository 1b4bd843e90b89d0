# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND...]: single requests of every shape against a copy, counters, options, commands, refusals; KIND: native, or target (not seen to its end yet).
part() {
	local kind rc=0
	for kind in ${*:-native}; do
		pmem_mb=24 guest requests-"$kind" 900 guest-requests.sh "$kind" || rc=1
	done
	return $rc
}
