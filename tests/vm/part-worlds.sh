# SPDX-License-Identifier: MIT OR Apache-2.0
# One pool in both worlds: served on the host and killed, opened in the guest and killed, drained on the host, and again.
forebay=$built/forebay

ok() {
	local what=$1
	shift
	if ! "$@" >"$dir/step.log" 2>&1; then
		tail -n 30 "$dir/step.log"
		echo "FAIL: $what: $*"
		return 1
	fi
	echo "ok: $what"
}

uri() { echo "nbd+unix:///$1?socket=$run/nbd"; }

# serve: the host serves the pool, its disks on other paths than the guest's.
serve() {
	local tries
	: >"$dir/ready"
	"$forebay" serve "$memory" "${origins[@]}" --socket "$run/nbd" --json >"$dir/ready" 2>>"$dir/server.log" &
	server=$!
	for ((tries = 0; tries < 6000; tries++)); do
		grep -q '"ready":true' "$dir/ready" && return
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	cat "$dir/server.log" >&2
	say "the server was not ready"
	return 1
}
crash() {
	kill -KILL "$server"
	wait "$server" 2>/dev/null
	rm -f "$run/nbd"
}
stop() { kill -TERM "$server" && wait "$server"; }

# e2fsck replays a journal that was in use, and then exits with 1.
fsck_replay() {
	e2fsck -fy "$1"
	[ $? -le 1 ] && e2fsck -fn "$1"
}
has_synced() { mkdir -p "$dir/tree" && debugfs -R "rdump /synced $dir/tree" "$dir/fs" && diff -r "$root/core" "$dir/tree/synced"; }

round_trip() {
	ok "host: make the pool" "$forebay" create "$memory" --size "${pmem_mb}M" &&
		ok "host: add a volume" "$forebay" volume add "$memory" raw "$dir/raw" &&
		ok "host: add a volume" "$forebay" volume add "$memory" fs "$dir/fs" || return 1
	head -c 16M /dev/urandom >"$dir/image"

	serve && ok "host: write by NBD" nbdcopy "$dir/image" "$(uri raw)" || return 1
	crash
	echo "ok: host: the server killed"

	start_guest "$out_vm/worlds.console" "$here/guest-worlds.sh" target crashed
	until_said "$out_vm/worlds.console" 'ackload: started' && sleep 2
	kill -9 "$guest_pid" 2>/dev/null
	wait "$guest_pid" 2>/dev/null
	tr -d '\r' <"$out_vm/worlds.console" | grep -aE '^(ok|FAIL|worlds)\b' | sed 's/^ok: /ok: guest: /'
	grep -aq 'ackload: started' "$out_vm/worlds.console" || {
		say "worlds failed; console: $out_vm/worlds.console"
		return 1
	}
	echo "ok: guest: killed under load"

	ok "host: check" "$forebay" check "$memory" &&
		ok "host: status" "$forebay" status "$memory" --json &&
		ok "host: dump" "$forebay" dump chunks "$memory" &&
		ok "host: drain" "$forebay" drain "$memory" "${origins[@]}" &&
		ok "host: all that was acknowledged is on the disk" "$out_vm/ackload" verify "$dir/raw" "$dir/log" &&
		ok "host: the file system after its journal" fsck_replay "$dir/fs" &&
		ok "host: its synced files" has_synced || return 1

	head -c 16M /dev/urandom >"$dir/image"
	serve && ok "host: write by NBD" nbdcopy "$dir/image" "$(uri raw)" &&
		ok "host: the server ends" stop || return 1

	guest worlds 900 guest-worlds.sh native closed | sed 's/^ok: /ok: guest: /'
	[ "${PIPESTATUS[0]}" = 0 ] || return 1

	dd if="$dir/image" of="$dir/image" bs=64k skip=1 seek=128 count=8 conv=notrunc status=none
	ok "host: check" "$forebay" check "$memory" || return 1
	serve && ok "host: read by NBD" nbdcopy "$(uri raw)" "$dir/back" &&
		ok "host: what the guest wrote, over what the host wrote" cmp -n 16777216 "$dir/image" "$dir/back" &&
		ok "host: the server ends" stop &&
		ok "host: drain" "$forebay" drain "$memory" "${origins[@]}" &&
		ok "host: the disk alone has it" cmp -n 16777216 "$dir/image" "$dir/raw" &&
		ok "host: the file system of the disk alone" e2fsck -fn "$dir/fs"
}

part() {
	local rc server=''
	dir=$out_vm/worlds.kept
	rm -rf "$dir"
	mkdir -p "$dir"
	run=$(mktemp -d) # for the socket: a path of few characters
	export FOREBAY_RUNTIME_DIR=$run
	memory=$dir/memory
	origins=(--origin "raw=$dir/raw" --origin "fs=$dir/fs" --accept-changed-origin)
	disks=("$dir/raw" "$dir/fs" "$dir/log" "$dir/image")
	truncate -s 64M "$dir/raw" "$dir/log" "$dir/fs"
	round_trip
	rc=$?
	[ -n "$server" ] && kill -9 "$server" 2>/dev/null
	rm -rf "$run"
	[ $rc = 0 ] || {
		say "the pool and its disks are kept in $dir"
		return $rc
	}
	rm -rf "$dir"
	echo "worlds: one pool, both worlds, both directions, also killed"
}
