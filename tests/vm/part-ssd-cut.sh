# SPDX-License-Identifier: MIT OR Apache-2.0
# [CUTS [ITEM...]]: the disk of a pool loses what was not flushed (dm-log-writes), power cuts; planted mistakes found.
# ITEM: always, flush, fua (how a write is made durable); planted.
part() {
	local cuts=${1:-6}
	shift
	set -- "${@:-always flush fua planted}"
	if [[ " $* " == *" planted "* ]]; then
		# A write is acknowledged before its group is durable; a flush of the pool's disk reports
		# success without being done; a flush of the device waits for nothing.
		build_planted ssd-early kernel/volume_io.c 's/flags \|= FBY_REQ_TICKETS \| \(v->later/flags |= (v->later/' || return
		build_planted ssd-flush kernel/media_blk.c 's/s->error = flush_device\(&p->claim\)/s->error = 0/' || return
		build_planted ssd-preflush kernel/volume_io.c 's/if \(unlikely\(v->later && bio->bi_opf & REQ_PREFLUSH\)\)/if (0)/; s/if \(unlikely\(v->later\)\)$/if (0)/' || return
	fi
	# shellcheck disable=SC2068 # words
	guest ssd-cut 1500 guest-ssd-cut.sh "$cuts" $@
}
