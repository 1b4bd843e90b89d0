#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: volatile.sh finds each way in which the host could drop what the engine asked
# for.  Method: a copy of the tree, one mistake at a time, built, and volatile.sh has to
# fail on it.  Several minutes; not in `make check`.
set -euo pipefail
cd "$(dirname "$0")/../.."
copy=$(mktemp -d "${TMPDIR:-/tmp}/forebay-planted.XXXXXX")
trap 'rm -rf "$copy"' EXIT
cp -r Cargo.* core port host crates tests "$copy"
export CARGO_TARGET_DIR=$PWD/target/planted-host

# name | file | what stands there | what takes its place
mistakes='
the file is not flushed|crates/forebay/src/origin/file.rs|Ok(retry(.. rustix::fs::fdatasync(&self.fd))?)|Ok(())
a durable write past the cache is not flushed|host/client_request.c|if (r->covered && !flushed_later(r)) {|if (r->covered && flushed_later(r)) {
write-through does not wait for the origin|host/client_request.c|next = fby_unlikely(is_write_through(r))|next = false && fby_unlikely(is_write_through(r))
a flush is not passed on|crates/forebay-server/src/nbd/connection.rs|command::FLUSH => flusher.flush()?,|command::FLUSH => {}
'
failed=0 found=0
while IFS='|' read -r name file from to; do
	[ -n "$name" ] || continue
	from=${from//../||}
	FROM=$from TO=$to perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/ or die "nothing to replace\n"' "$copy/$file" ||
		{ echo "planted: $file no longer has: $from" >&2; exit 1; }
	(cd "$copy" && RUSTFLAGS=-Awarnings cargo build -q --release -p forebay-cli)
	if FOREBAY=$CARGO_TARGET_DIR/release/forebay tests/serve/volatile.sh 4 >"$copy/log" 2>&1; then
		echo "planted mistake \"$name\": NOT FOUND"
		failed=$((failed + 1))
	else
		echo "planted mistake \"$name\": found: $(grep -m 1 '^volatile: FAILED' "$copy/log")"
		found=$((found + 1))
	fi
	cp "$file" "$copy/$file"
done <<<"$mistakes"
echo "planted mistakes of the host: $found found, $failed not"
[ $failed = 0 ]
