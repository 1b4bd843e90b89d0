# SPDX-License-Identifier: MIT OR Apache-2.0
# [SERIES...]: the module builds without a warning, smoke, native and devices pass, and writers hardly ever wait for a slot, on each (6.1 7.2 7.3).
part() {
	local name items rc=0 bad done=0 asked=$#
	[ $# -gt 0 ] || set -- 6.1 7.2 7.3
	for series; do
		release= module_env=()
		if ! (prepare) 2>"$out_vm/kernels-$series.log"; then
			cat "$out_vm/kernels-$series.log"
			# A missing kernel is no failure, unless it was asked for by name.
			grep -q 'cannot be had' "$out_vm/kernels-$series.log" && [ "$asked" = 0 ] || rc=1
			continue
		fi
		prepare || return
		bad=0
		for name in smoke native devices neighbours; do
			[ $name = neighbours ] && items=slots || items=
			show='FAIL|passed$' guest "$name-$series" 900 "guest-$name.sh" $items || bad=1
			grep -a "^$name: " "$out_vm/$name-$series.console" | tr -d '\r' | sed "s/^/$release: /"
		done
		if [ $bad = 0 ]; then done=$((done + 1)); else rc=1; fi
	done
	echo "kernels: $done of $# built, and smoke, native, devices and neighbours slots passed"
	return $rc
}
