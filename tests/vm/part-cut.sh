# SPDX-License-Identifier: MIT OR Apache-2.0
# [N [CHAINS]]: the guest killed N times under load; every acknowledged write verified, ext4 and xfs clean.
# A chain is one pool and one file system through all its cuts; chains run side by side.

# The script that runs in the guest.  vdb is the file system's disk, and vdc keeps what must
# be known after a cut.
cut_script=guest-cut.sh

# chain NAME FS CUTS: each cut comes at a random moment of the load; then a last boot.
chain() {
	local name=$1 fs=$2 rounds=$3 console='' round rc=0
	local dir=$out_vm/cut-$name.kept
	rm -rf "$dir"
	mkdir -p "$dir"
	memory=$dir/memory
	disks=("$dir/raw" "$dir/fs" "$dir/log")
	truncate -s "${pmem_mb}M" "$memory"
	truncate -s 64M "$dir/raw" "$dir/log"
	truncate -s 320M "$dir/fs"
	for ((round = 1; round <= rounds && rc == 0; round++)); do
		console=$out_vm/cut-$name.$round.console
		start_guest "$console" "$here/$cut_script" "$round" 600 "$fs"
		until_said "$console" 'load: started' || rc=1
		[ $rc = 0 ] && sleep $((RANDOM % 4)).$((1000 + RANDOM % 9000))
		kill -9 "$guest_pid" 2>/dev/null
		wait "$guest_pid" 2>/dev/null
		[ $rc = 0 ] && echo "cut $name.$round: $(tr -d '\r' <"$console" | grep -a ' acknowledged' || echo first load)"
	done
	if [ $rc != 0 ]; then
		say "cut $name.$((round - 1)) failed; console: $console"
		tr -d '\r' <"$console" | tail -n 25 >&2
	else
		show='FAIL|passed$' guest "cut-$fs" 900 "$cut_script" "$round" 0 "$fs"
		rc=$?
	fi
	if [ $rc = 0 ]; then
		rm -rf "$dir"
		echo "cut: $name: $rounds power cuts, all that was acknowledged is there"
	else
		say "memory and disks of the failed round are kept in $dir"
	fi
	return $rc
}

part() {
	local cuts=${1:-4} chains=${2:-2} c pids=() pid rc=0 fs=(ext4 xfs)
	rm -f "$out_vm"/cut*.console
	for ((c = 0; c < chains; c++)); do
		chain "${fs[c % 2]}-$c" "${fs[c % 2]}" $(((cuts + c) / chains)) &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
	return $rc
}
