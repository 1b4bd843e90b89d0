#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: calls that programs make seldom do with a file of map-run what they do with a plain one, or are
# refused.
# Method: the table of rare.c and used.c, each case with and without map-run: what it says, its exit status, and
# what is in its file afterwards.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile rare "$root/tests/map/used.c" -rdynamic
make_map 64M 32M
# A file whose reads take long.
mkdir "$work/late"
python3 "$root/tests/map/late.py" "$work/late" >"$work/late.said" 2>"$work/late.says" &
at_end "kill $! 2>/dev/null || true"
at_end "umount -l '$work/late' 2>/dev/null || true"
for _ in $(seq 250); do [ -s "$work/late.said" ] || [ -s "$work/late.says" ] || sleep 0.02; done
export LATE=$work/late/file
cases=0
for name in ${1:-$("$work/rare" list)}; do
	rm -f "$work"/rare.*map "$work"/rare.*dat
	case $name in
	direct | moved | jump-direct) [ -s "$work/late.said" ] || { skip_part "$name" "no FUSE: $(cat "$work/late.says")"; cases=$((cases + 1)); continue; } ;;
	esac
	plain=0 code=0
	timeout -s KILL 60 "$work/rare" "$name" "$work/rare.dat" "$work/rare.b.dat" >"$work/plain" 2>"$work/says" || plain=$?
	ROOM=64M mapped timeout -s KILL 60 "$work/rare" "$name" "$work/rare.map" "$work/rare.b.map" >"$work/said" 2>"$work/says" || code=$?
	[ $code = $plain ] || fail "$name: ended with $code, and plainly with $plain: $(cat "$work/said" "$work/says")"
	diff "$work/plain" "$work/said" >&2 || fail "$name: other answers than of a plain file: $(cat "$work/says")"
	recover || fail "$name: not recovered"
	case $name in
	blocked | zerocopy | printed) ;; # the memory of locks, or addresses
	*) cmp "$work/rare.dat" "$work/rare.map" || fail "$name: another file" ;;
	esac
	cases=$((cases + 1))
done
[ -n "${1:-}" ] || [ $cases -ge 22 ] || fail "only $cases cases"
say "$cases cases: passed"
