#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: programs that give up rights, get many signals, have private mappings or make small calls do with a file
# of map-run what they do with a plain one.
# Method: the table of alike.c and often.c, each case with and without map-run: what it says, its exit status, and
# what is in its file afterwards.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile alike "$root/tests/map/often.c" -rdynamic
make_map 64M 32M
chmod 711 "$work" # for two-users
# A file with a private mapping, which outlives its close, is refused to other programs (EBUSY).  When the mapping is
# gone they have it.
left() {
	start_server
	rm -f "$work/alike.map" "$work/in"
	mkfifo "$work/in"
	exec 8<>"$work/in"
	begin holds "$work/alike" holds "$work/alike.map" "$work/in"
	local code=0 tries
	mapped "$work/alike" unwound "$work/alike.map" >"$work/said" 2>"$work/says" || code=$?
	[ $code = 1 ] && grep -q 'open or mapped' "$work/says" || fail "a file with a private mapping: $code: $(cat "$work/says")"
	echo >&8
	for ((tries = 0; tries < 100; tries++)); do
		grep -q 2 "$work/holds.said" && break
		sleep 0.05
	done
	mapped "$work/alike" unwound "$work/alike.map" >"$work/said" 2>"$work/says" ||
		fail "after the end of a private mapping: $(cat "$work/says")"
	echo >&8
	wait "$pid" || fail "holds: $(cat "$work/holds.says")"
	stop_server
}
# Other names that the C library exports of a function that the library replaces.  Those for its own use
# (GLIBC_PRIVATE) are not replaced.
names() {
	need nm
	local libc library=${FOREBAY_MAP_PRELOAD:-$(dirname "$FOREBAY")/libforebay_map_preload.so} name short missing=
	libc=$(ldd "$work/alike" | sed -n 's/.*libc\.so\.6 => \([^ ]*\) .*/\1/p')
	nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort -u >"$work/ours"
	nm -D --defined-only --with-symbol-versions "$libc" | awk '{print $NF}' | grep -v GLIBC_PRIVATE |
		sed -n 's/^\(_[^@]*\)@.*/\1/p' | sort -u >"$work/names"
	grep -qx open64 "$work/ours" && grep -qx __read "$work/names" || fail "no names of $library or $libc"
	while read -r name; do
		short=$(sed -E 's/^_+(libc_|IO_)?//; s/(_2|_chk)$//' <<<"$name")
		grep -qxE "$short|${short}64" "$work/ours" || continue
		grep -qx "$name" "$work/ours" || missing+=" $name"
	done <"$work/names"
	[ -z "$missing" ] || fail "the library replaces functions, and not their other names:$missing"
}
if [ "${1:-}" = left ]; then left; exit; fi
if [ "${1:-}" = names ]; then names; exit; fi
cases=0
for name in ${1:-$("$work/alike" list)}; do
	rm -f "$work/alike.map" "$work/alike.dat"
	plain=0 code=0
	timeout -s KILL 100 "$work/alike" "$name" "$work/alike.dat" >"$work/plain" 2>"$work/says" || plain=$?
	ROOM=64M mapped timeout -s KILL 100 "$work/alike" "$name" "$work/alike.map" >"$work/said" 2>"$work/says" || code=$?
	[ $code = $plain ] || fail "$name: ended with $code, and plainly with $plain: $(cat "$work/said" "$work/says")"
	diff "$work/plain" "$work/said" >&2 || fail "$name: other answers than of a plain file: $(cat "$work/says")"
	recover || fail "$name: not recovered"
	cmp "$work/alike.dat" "$work/alike.map" || fail "$name: another file"
	cases=$((cases + 1))
done
[ -z "${1:-}" ] || { say "$1: passed"; exit; }
[ $cases -ge 21 ] || fail "only $cases cases"
# The first lease of a file is had by the thread's own rights, also beside files of the program.
rm -f "$work/first.map"
: >"$work/first.map"
chown nobody "$work/first.map" && chmod 666 "$work/first.map"
mapped "$work/alike" first "$work/first.map" >"$work/said" 2>"$work/says" || fail "first: $? $(cat "$work/says")"
grep -q '^open: error 1$' "$work/said" || fail "a thread without the right to a lease: $(cat "$work/said" "$work/says")"
# A program that has no such file, and a filter of its own.
"$work/alike" filter >"$work/plain" 2>"$work/says" || fail "a filter: $(cat "$work/says")"
code=0
mapped timeout -s KILL 100 "$work/alike" filter >"$work/said" 2>"$work/says" || code=$?
[ $code = 0 ] && diff "$work/plain" "$work/said" >&2 || fail "a filter of a program without a file: ended with $code: $(cat "$work/says")"
left
names
say "$cases cases: passed"
