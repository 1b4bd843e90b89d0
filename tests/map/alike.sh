#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: programs that give up rights, get many signals, have private mappings or make small calls do with a file
# of map-run what they do with a plain one.
# Method: the table of alike.c, often.c and mark.c, each case with and without map-run: what it says, its exit status, and
# what is in its file afterwards.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile alike "$root/tests/map/often.c" "$root/tests/map/mark.c" -rdynamic
make_map 64M 32M
# Another user opens the pool in "before".
chown nobody "$pool" && chmod 711 "$shm"
mkdir -m 777 "$work/run" "$work/state"
mkdir "$work/state/marks"
chmod 711 "$work" # for nobody
# A file with a private mapping, which outlives its close, is refused to other programs (EBUSY).  When the mapping is
# gone they have it.
left() {
	chmod 700 "$work/run" "$work/state"
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
# ended BY HOW DIR: a program that changes rights so while it has a file in DIR open ends before it, and everything is
# in the file.
ended() {
	local by=$1 how=$2 dir=$3 code=0
	rm -f "$dir/alike.map" "$dir/alike.dat"
	"$work/alike" "$by" "$dir/alike.dat" "$how" >"$work/plain" 2>"$work/says" && grep -q 'goes on' "$work/plain" ||
		fail "$by $how, plainly: $(cat "$work/says")"
	mapped timeout -s KILL 30 "$work/alike" "$by" "$dir/alike.map" "$how" >"$work/said" 2>"$work/says" || code=$?
	[ $code = 6 ] && [ ! -s "$work/said" ] || fail "$by $how: ended with $code: $(cat "$work/said" "$work/says")"
	[ "$(grep -c 'changes its .*all that was stored is in the file' "$work/says")" = 1 ] || fail "$by $how: not told once: $(cat "$work/says")"
	"$FOREBAY" map list "$pool" | grep -q 'nothing to recover' || fail "$by $how: $("$FOREBAY" map list "$pool")"
	cmp "$dir/alike.dat" "$dir/alike.map" || fail "$by $how: another file"
}
# Changes of rights that the library's threads would not have, or with which the file could not be kept.
ends() {
	local how by
	for by in ends ends-thread; do
		for how in seteuid seteuid-readonly capset-own-number setfsuid setfsgid capset capset-syscall setresuid-syscall setgroups-syscall keepcaps securebits; do
			ended $by $how "$work"
		done
	done
	# A file system without attributes: the mark is a file in a directory of root's.
	mkdir "$work/ram"
	mount -t ramfs none "$work/ram" || { skip_part "a mark that is a file" "no ramfs"; return; }
	at_end "umount -l '$work/ram'"
	chmod 755 "$work/ram"
	ended ends given-away "$work/ram"
}
# A program that has given up the right to userfaultfd gets no more room, and keeps its file.
grows() {
	rm -f "$work/alike.map"
	mapped timeout -s KILL 30 "$work/alike" grows "$work/alike.map" >"$work/said" 2>"$work/says" || fail "grows: $? $(cat "$work/said" "$work/says")"
	grep -q 'given up the right' "$work/says" || fail "grows: not told: $(cat "$work/says")"
	grep -q after "$work/alike.map" || fail "grows: what was written is lost"
}
case "${1:-}" in left | names | ends | grows) "$1"; exit ;; esac
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
[ $cases -ge 20 ] || fail "only $cases cases"
ends
if [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 0 ]; then grows; fi
# A program that has no such file, and a filter of its own.
"$work/alike" filter >"$work/plain" 2>"$work/says" || fail "a filter: $(cat "$work/says")"
code=0
mapped timeout -s KILL 100 "$work/alike" filter >"$work/said" 2>"$work/says" || code=$?
[ $code = 0 ] && diff "$work/plain" "$work/said" >&2 || fail "a filter of a program without a file: ended with $code: $(cat "$work/says")"
left
names
say "$cases cases: passed"
