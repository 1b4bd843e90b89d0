# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The part that the scripts of this directory share, on top of tests/serve/lib.sh: a pool with a map,
# and programs that are run by `forebay map-run`.
need gcc

# Without userfaultfd, as for an ordinary user or in a container, map-run refuses growth of
# a file and more.  A script that tests what is still possible sets needs_userfaultfd=no.
has_userfaultfd() {
	python3 -c 'import ctypes, os, platform, sys
call = {"x86_64": 323, "aarch64": 282}[platform.machine()]
if ctypes.CDLL(None).syscall(call, os.O_CLOEXEC) < 0:
    os.open("/dev/userfaultfd", os.O_RDWR)' 2>/dev/null
}
[ "${needs_userfaultfd:-yes}" = no ] || has_userfaultfd || skip "userfaultfd is refused here"

make_map() { # SIZE MAPS
	"$FOREBAY" create "$pool" --size "$1" --maps "$2" >/dev/null
	"$FOREBAY" map add "$pool" db >/dev/null
}

compile() { # NAME gcc's arguments...
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$work/$1" "$root/tests/map/$1.c" "${@:2}" -pthread || fail "$1.c does not compile"
}

# Compiles it with a library that has a destructor of its own.
compile_ends() {
	gcc -shared -fPIC -o "$work/libendlib.so" "$root/tests/map/endlib.c" || fail "endlib.c does not compile"
	compile ends -rdynamic -Wl,--no-as-needed "-L$work" -lendlib "-Wl,-rpath,$work"
}

# mapped PROGRAM...: maps files whose names end with .map.  $share: --shared, or nothing.
share=
# shellcheck disable=SC2086 # an option or none
mapped() { "$FOREBAY" map-run $share --pool "$pool" --files '*.map' '*.incr.aof' --room "${ROOM:-128M}" -- "$@"; }

# Writes synced data to the files.  A server does that itself, and this waits for it.
recover() {
	local tries
	[ -n "$server" ] || { "$FOREBAY" map recover "$pool" >"$work/recovered" 2>&1 || { cat "$work/recovered" >&2; return 1; }; return; }
	for ((tries = 0; tries < 600; tries++)); do
		"$FOREBAY" map list "$pool" >"$work/recovered"
		grep -q 'nothing to recover' "$work/recovered" && return
		sleep 0.05
	done
	cat "$work/recovered" >&2
	return 1
}

# begin NAME PROGRAM...: runs it by map-run until its first word; sets $pid.  Its output is in
# $work/NAME.said, and messages about it are in NAME.says.
begin() {
	local said=$work/$1.said says=$work/$1.says tries
	: >"$said"
	# shellcheck disable=SC2086 # an option or none; by itself, as a function would have another pid
	"$FOREBAY" map-run $share --pool "$pool" --files '*.map' '*.incr.aof' --room "${ROOM:-128M}" -- "${@:2}" >"$said" 2>"$says" &
	pid=$!
	for ((tries = 0; tries < 1200; tries++)); do
		[ -s "$said" ] && return
		kill -0 $pid 2>/dev/null || { cat "$says" >&2; fail "$1: it ended before it said anything"; }
		sleep 0.05
	done
	fail "$1: it says nothing"
}

# killed PID: kills the process and waits for its end.
killed() { kill -KILL "$1" 2>/dev/null && { wait "$1" 2>/dev/null || true; }; }

# last_said NAME: the last number that NAME has said; the last line may be incomplete.
last_said() { sed '$!b; /^[0-9]*$/!d' "$work/$1.said" | tail -n 1; }

# kill_one KIND FILE PROGRAM...: runs it by map-run, and within a second of its first word
# kills the process that $ends names.  That is the program (the default), its server, after
# which the program continues as long as it can, or both.  Then it recovers, and leaves the
# last acknowledged number in $acknowledged.
kill_one() {
	local served=$server
	begin "$1" "${@:3}"
	sleep "0.$(printf %03d $((RANDOM % 700)))"
	[ "${ends:=program}" != server ] || { kill_server; sleep "0.$(printf %03d $((RANDOM % 700)))"; }
	killed $pid || [ "$ends" = server ] || { cat "$work/$1.says" >&2; fail "$1: it ended by itself"; }
	[ "$ends" != both ] || kill_server
	[ -z "$served" ] || [ -n "$server" ] || start_server
	recover || fail "$1: $2: not recovered"
	acknowledged=$(last_said "$1")
}
