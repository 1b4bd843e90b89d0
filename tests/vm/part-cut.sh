# SPDX-License-Identifier: MIT OR Apache-2.0
# [N]: the guest killed N times under load; every acknowledged write verified, ext4 clean.

# until_started CONSOLE: waits for the load to begin.
until_started() {
	local began=$SECONDS
	until grep -aq 'ackload: started' "$1"; do
		kill -0 "$guest_pid" 2>/dev/null || return 1
		[ $((SECONDS - began)) -lt 300 ] || return 1
		sleep 0.1
	done
}

# Each cut comes at a random moment of the load; then a last boot.
part() {
	local rounds=${1:-3} dir console='' round rc=0
	gcc -O2 -Wall -Wextra -Werror -pthread -o "$out_vm/ackload" "$here/ackload.c" || return 1
	dir=$(mktemp -d "${TMPDIR:-/tmp}/forebay-cut.XXXXXX")
	memory=$dir/memory
	disks=("$dir/raw" "$dir/fs" "$dir/log")
	truncate -s 64M "${disks[@]}"
	for ((round = 1; round <= rounds && rc == 0; round++)); do
		console=$out_vm/cut-$round.console
		start_guest "$console" "$here/guest-cut.sh" "$round" 600
		until_started "$console" || rc=1
		[ $rc = 0 ] && sleep $((1 + RANDOM % 4)).$((RANDOM % 1000))
		kill -9 "$guest_pid" 2>/dev/null
		wait "$guest_pid" 2>/dev/null
		[ $rc = 0 ] && echo "cut $round: $(tr -d '\r' <"$console" | grep -a 'sectors acknowledged' || echo first load)"
	done
	if [ $rc = 0 ]; then
		show='FAIL|passed$' guest cut 300 guest-cut.sh "$round" 0
		rc=$?
	else
		say "cut $((round - 1)) failed; console: $console"
		tr -d '\r' <"$console" | tail -n 25 >&2
	fi
	if [ $rc = 0 ]; then
		rm -rf "$dir"
		echo "cut: $rounds power cuts, all that was acknowledged is there"
	else
		say "memory and disks of the failed round are kept in $dir"
	fi
	return $rc
}
