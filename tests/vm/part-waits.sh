# SPDX-License-Identifier: MIT OR Apache-2.0
# [KIND...]: requests and commands that have to wait, over an origin that stands still: each ends, in its order; the cache taken away meanwhile.
part() {
	local kind rc=0
	for kind in ${*:-native target}; do
		append=slab_nomerge pmem_map='24M!4G,40M!4352M' guest waits-"$kind" 900 guest-waits.sh "$kind" || rc=1
	done
	return $rc
}
