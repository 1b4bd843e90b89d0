# SPDX-License-Identifier: MIT OR Apache-2.0
# [native|planted...]: zeroings past the cache during destage, over an origin whose flushes fail and tell once.

# The native device alone: where an origin cannot zero, the mapper's gets writes instead.

# If a zeroing flushes by itself and the engine does not learn of it, destage counts lost
# data as written.
planted_flush() {
	local console=$out_vm/flush-planted.console
	build_planted flush-untold host/client_request.c 's/if \(op != FBY_OP_DISCARD\) \{/if (op == FBY_OP_WRITE) {/' \
		kernel/volume_io.c 's/(int rc = origin_range\(.*\);)/\1\n\n\tif (!rc)\n\t\trc = blkdev_issue_flush(io->volume->origin);/' || return 1
	start_guest "$console" "$here/guest-flush.sh" native 3 flush-untold
	wait_guest 600 "$console"
	tr -d '\r' <"$console" | grep -aE -m 1 '^FAIL: (drain [0-9]+ was not refused|all is there)' >"$out_vm/flush-planted.said" || {
		say "a flush that the engine does not hear of was not found; console: $console"
		tr -d '\r' <"$console" | tail -n 25 >&2
		return 1
	}
	echo "ok: a flush that the engine does not hear of is found: $(cat "$out_vm/flush-planted.said")"
}

part() {
	local kind rc=0
	pmem_mb=16
	for kind in ${*:-native planted}; do
		case $kind in
		planted) planted_flush ;;
		*) guest flush-"$kind" 600 guest-flush.sh "$kind" 3 ;;
		esac || rc=1
	done
	return $rc
}
