# SPDX-License-Identifier: MIT OR Apache-2.0
# [ITEM...]: disks that lose what was not flushed (dm-log-writes), power cuts of pool and disks; planted mistakes found.
# ITEM: cached; large (writes past the cache by size); planted.
part() {
	set -- "${@:-cached large planted}"
	if [[ " $* " == *" planted "* ]]; then
		# Each of these flushes reports success without being done: destage, writes past
		# the cache, zeroings.
		build_planted volatile-destage kernel/origin_io.c \
			's/if \(READ_ONCE\(v->stopping\)/if (io->op == FBY_IO_FLUSH) {\n fby_destage_complete(v->pool->engine, io->id, 0);\n fbk_kick_destage(v->pool);\n let_go(v);\n return;\n}\n&/' || return
		build_planted volatile-past kernel/volume_io.c 's/submit_bio_noacct\(&v->flush_bio/bio_endio(\&v->flush_bio/' || return
		build_planted volatile-range host/client_request.c 's/if \(op != FBY_OP_DISCARD\) \{/if (op == FBY_OP_WRITE) {/' || return
	fi
	pmem_mb=24
	# shellcheck disable=SC2068 # words
	guest volatile 1500 guest-volatile.sh $@
}
