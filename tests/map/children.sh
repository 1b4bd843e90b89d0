#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: memory and descriptors of a pool go to no child of a process that maps files onto it.
# Method: children.c by the library in C and by `forebay map-run`, on a pool that the process has
# alone and on one that is served.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root: no child can drop its rights"
need cargo
# The caller has to name another build, so that no older build is tested by mistake.
libraries=${FOREBAY_BUILT:-$root/target/release}
[ -n "${FOREBAY_BUILT:-}" ] || (cd "$root" && cargo build -q --release -p forebay-map-c) || fail "libforebay-map does not build"
make_map 48M 24M
compile children
mv "$work/children" "$work/program"
# A child that has dropped its rights executes it, too.
chmod 711 "$work"
ln -s "$libraries/libforebay_map_c.so" "$work/libforebay-map.so.0"
compile children -DLIBRARY -I "$root/crates/forebay-map-c/include" "$work/libforebay-map.so.0" -Wl,-rpath,"$work"

try() { # HOW
	timeout 120 "$work/children" alone "$pool" "$work/by-library" || fail "by the library, $1"
	timeout 120 "$FOREBAY" map-run --pool "$pool" --files '*.map' -- "$work/program" run "$pool" "$work/children.map" 2>"$work/says" ||
		{ cat "$work/says" >&2; fail "by map-run, $1"; }
}
try 'a pool of its own'
start_server
try 'a pool that is served'
stop_server
say passed
