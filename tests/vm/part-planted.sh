# SPDX-License-Identifier: MIT OR Apache-2.0
# The lab's own checkers find planted mistakes; a guest that hangs is ended, its console kept.
part() {
	local console=$out_vm/planted.console rc
	start_guest "$console" "$here/guest-planted.sh"
	until_said "$console" 'planted: hangs now'
	wait_guest 2 "$console" 2>"$out_vm/planted.said"
	rc=$?
	tr -d '\r' <"$console" | grep -aE '^(ok|FAIL|planted): '
	if ! grep -aq 'planted: hangs now' "$console"; then
		say "planted failed; console: $console"
		tr -d '\r' <"$console" | tail -n 25 >&2
		return 1
	fi
	[ $rc = 124 ] && ! kill -0 "$guest_pid" 2>/dev/null && grep -q "$console" "$out_vm/planted.said" || {
		say "a guest that hung was not ended as it should (code $rc):"
		cat "$out_vm/planted.said" >&2
		return 1
	}
	echo "ok: the guest that hung was ended, and its console is there and named"
}
