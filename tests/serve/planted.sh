#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: volatile.sh, and ssd.sh for pools on an SSD, find each way in which the host could drop what
# the engine asked for.
# Method: a copy of the tree is built with one mistake at a time.  The script has to fail on it, and
# not on the copy without a mistake.  The first build takes minutes.
#	planted.sh [SCRIPT...]	volatile, ssd (both)
set -euo pipefail
scripts=("${@:-volatile ssd}")
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=$PWD/target/planted-host
# The copy is at the same place each time and gets only changed files, so little is rebuilt.
copy=$CARGO_TARGET_DIR/tree
mkdir -p "$copy"
find Cargo.* core port host crates tests -type f | while read -r file; do
	cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/$(dirname "$file")" && cp "$file" "$copy/$file"; }
done

# name | file | what stands there | what takes its place | the script, if it is not volatile
mistakes='
the file is not flushed|crates/forebay/src/origin/file.rs|Ok(retry(.. rustix::fs::fdatasync(&self.fd))?)|Ok(())
a durable write past the cache is not flushed|host/client_request.c|if (r->covered && !flushed_later(r)) {|if (r->covered && flushed_later(r)) {
write-through does not wait for the origin|host/client_request.c|next = fby_unlikely(is_write_through(r))|next = false && fby_unlikely(is_write_through(r))
a flush is not passed on|crates/forebay-server/src/nbd/connection.rs|command::FLUSH => flusher.flush()?,|command::FLUSH => {}
a write is acknowledged before its group is durable|host/client_request.c|state = fby_ticket_state(r->pool, r->appended);|state = FBY_TICKET_DURABLE;|ssd
zeroes are acknowledged before they are durable|host/client_request.c|r->appended = fby_volume_ticket(r->pool, r->volume);|r->appended = 0;|ssd
a write with FUA is one for a later flush|host/client_request.c|if ((r->flags & FBY_REQ_LATER && flushed_later(r))|if ((r->flags & FBY_REQ_LATER && r->op == FBY_OP_WRITE)|ssd
the server ends while memory alone has it|crates/forebay-server/src/server.rs|*failed = rescue(self, self.patience.get_or_init(Patience::default));|*failed = None;|ssd
'
build() {
	(cd "$copy" && cargo build -q -p forebay-cli) 2>"$copy/build.log" || { cat "$copy/build.log" >&2; exit 1; }
}
# search SCRIPT ROUNDS [SEED]
search() { SEED=${3:-1} FOREBAY=$CARGO_TARGET_DIR/debug/forebay FOREBAY_SKIP_CODE=77 "tests/serve/$1.sh" "$2" >"$copy/log" 2>&1; }
# A cut may miss the moment that a mistake needs: it counts as not found after four searches.
found_by() { # SCRIPT
	local seed
	for seed in 1 1001 2001 3001; do
		search "$1" 4 $seed || return 0
	done
	return 1
}
wanted() { [[ " ${scripts[*]} " == *" $1 "* ]]; }

build
for script in volatile ssd; do
	wanted $script || continue
	code=0
	search $script 1 || code=$?
	[ $code != 77 ] || { cat "$copy/log" >&2; exit "${FOREBAY_SKIP_CODE:-0}"; }
	[ $code = 0 ] || { cat "$copy/log" >&2; echo "planted: $script.sh fails without a mistake" >&2; exit 1; }
done
failed=0 found=0
while IFS='|' read -r name file from to script; do
	[ -n "$name" ] && wanted "${script:=volatile}" || continue
	from=${from//../||}
	FROM=$from TO=$to perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/ or die "nothing to replace\n"' "$copy/$file" ||
		{ echo "planted: $file no longer has: $from" >&2; exit 1; }
	build
	began=$SECONDS
	if found_by "$script"; then
		echo "planted mistake \"$name\": found in $((SECONDS - began)) s: $(grep -m 1 -e "^$script: FAILED" -e "assertion failed" "$copy/log")"
		found=$((found + 1))
	else
		echo "planted mistake \"$name\": NOT FOUND in $((SECONDS - began)) s"
		failed=$((failed + 1))
	fi
	cp "$file" "$copy/$file"
done <<<"$mistakes"
echo "planted mistakes of the host: $found found, $failed not"
[ $failed = 0 ]
