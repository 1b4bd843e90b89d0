# SPDX-License-Identifier: MIT OR Apache-2.0
# [ITEM...]: every way to write to a device x every way to ask that it be durable; pool and disk cut. ITEM: cached-, large-, static-, through- and target or native; planted.
part() {
	set -- ${@:-cached-native cached-target large-native large-target static-native through-native planted}
	if [[ " $* " == *" planted "* ]]; then
		build_planted asked-past kernel/volume_io.c 's/submit_bio_noacct\(&v->flush_bio/bio_endio(\&v->flush_bio/' || return
	fi
	pmem_mb=96
	guest asked 1500 guest-asked.sh "$@"
}
