#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: real programs do by `forebay map-run` what they do without, and lose nothing that they have
# acknowledged when they are killed.
# Method: programs/ has a writer of each, which says a number when its library has made it durable.
# The writer writes 40 numbers plainly and by map-run, and both are read plainly.  Then it is killed
# KILLS times (10) within a second of its first word, recovered, and read plainly: all that it has
# said has to be there.  A program that is not on the machine is named; one that map-run refuses,
# too.
#
#	programs.sh [KILLS [NAME...]]
#
# PYTHON, JARS (a class path), NODE_PATH and PATH say where programs are.  RESULTS: a file that
# gets a line of each.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
kills=${1:-10}
shift || true
here=$root/tests/map/programs
results=${RESULTS:-$work/results}
: >"$results"
tried=0 passed=0 itself=0 refused=0 wrong=0 absent=0

# Runs a writer by its kind.
of_kind() {
	case $1 in
	python) run=("${PYTHON:-python3}" "$here/stores.py") ;;
	java) run=(java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$work/classes:${JARS:-}" Stores) ;;
	node) run=(node "$here/stores.js") ;;
	commands) run=("$here/commands.sh") ;;
	esac
}
# All files of a store are mapped.  Of a store whose files stdio or its own system calls
# reach, only some are.
declare -A some=([rocksdb]=rocks/*.sst [speedb]=rocks/*.sst [tantivy]='*.store' [redis]='appendonlydir/*.incr.aof')
by_map_run() { "$FOREBAY" map-run --pool "$pool" --files "${globs[@]}" --room 64M -- "$@"; }
new_place() {
	"$FOREBAY" create "$pool" --size 640M --maps 512M --replace >/dev/null 2>&1 || { rm -f "$pool"; "$FOREBAY" create "$pool" --size 640M --maps 512M >/dev/null; }
	"$FOREBAY" map add "$pool" db >/dev/null
	rm -rf "$dir"
	mkdir "$dir"
}
told() { # NAME RESULT WHY
	printf '%s | %s | %s\n' "$1" "$2" "$3" | tee -a "$results"
}
# Prints map-run's messages, or that the kernel refused one of the program's own system
# calls.
why_refused() {
	{
		sed -n "s/^forebay map-run: //p" "$1" | grep -v 'written back to .* files first' || true
		if grep -q -e 'Bad file descriptor' -e EBADF "$1"; then echo 'EBADF by the kernel: a system call of its own with such a descriptor'; fi
	} | head -n 1 | sed "s,$dir/,,g; s,$work/,,g" | cut -c 1-160
}

# killed_plainly NAME: prints which kill without map-run loses acknowledged data, or nothing.  A
# store that may lose it at one moment only (dbm.dumb, while it renames its index) does so in one of
# 40 kills.
killed_plainly() {
	local i said last
	for ((i = 1; i <= 20 * kills; i++)); do
		rm -rf "$dir"
		mkdir "$dir"
		setsid "${run[@]}" write "$1" "$dir" >"$work/said" 2>/dev/null &
		pid=$!
		for _ in $(seq 600); do [ -s "$work/said" ] && break; sleep 0.05; done
		sleep "0.$(printf %03d $((RANDOM % 900)))"
		kill -KILL -- -$pid 2>/dev/null || true
		wait $pid 2>/dev/null || true
		said=$(sed '$!b; /^[0-9]*$/!d' "$work/said" | tail -n 1)
		last=$(timeout 120 "${run[@]}" dump "$1" "$dir" 2>/dev/null) || last=damaged
		[[ $last =~ ^[0-9]+$ ]] && [ "$last" -ge "${said:-0}" ] || { echo $i; return; }
	done
}
# not_here NAME WHY: notes that it is not tried.
not_here() {
	absent=$((absent + 1))
	told "$1" 'not here' "$2"
	skip_part "$1" "$2"
}
# lost NAME WHY: told as its own flaw if a kill without map-run shows it, too.
declare -A asks_no_sync=([h2]=1 [h2-nio-mapped]=1) # by strace: no fsync, fdatasync or msync in 40 commits
lost() {
	local plainly
	if [ -n "${asks_no_sync[$1]:-}" ]; then
		itself=$((itself + 1))
		told "$1" 'its own' "$2; it asks for no sync when it commits"
		return
	fi
	plainly=$(killed_plainly "$1")
	if [ -n "$plainly" ]; then
		itself=$((itself + 1))
		told "$1" 'its own' "$2; without map-run kill $plainly loses as much"
	else
		wrong=$((wrong + 1))
		told "$1" WRONG "$2"
	fi
}

one() { # KIND NAME
	local name=$2 plain mapped code=0 kill last said there least=999999 most=0 home=0 note=''
	of_kind "$1"
	dir=$work/dir
	new_place
	timeout 120 "${run[@]}" write "$name" "$dir" 40 >"$work/plain" 2>"$work/plain.says" || { not_here "$name" "fails without map-run: $(tail -n 1 "$work/plain.says")"; return; }
	plain=$(timeout 120 "${run[@]}" dump "$name" "$dir" 2>/dev/null)
	rm -rf "$dir"
	mkdir "$dir"
	tried=$((tried + 1))
	globs=("$dir/*" "$dir/*/*" "$dir/*/*/*")
	by_map_run timeout 180 "${run[@]}" write "$name" "$dir" 40 >"$work/said" 2>"$work/says" || code=$?
	if [ "$code" != 0 ] && [ -n "${some[$name]:-}" ]; then
		note="; of its files ${some[$name]} alone, else: $(why_refused "$work/says")"
		globs=("$dir/${some[$name]}") code=0
		rm -rf "$dir"
		mkdir "$dir"
		by_map_run timeout 180 "${run[@]}" write "$name" "$dir" 40 >"$work/said" 2>"$work/says" || code=$?
	fi
	if [ "$code" != 0 ]; then
		if [ -n "$(why_refused "$work/says")" ]; then
			refused=$((refused + 1))
			told "$name" refused "$(why_refused "$work/says")"
		else
			wrong=$((wrong + 1))
			told "$name" WRONG "ends with $code by map-run: $(tail -n 1 "$work/says")"
		fi
		return
	fi
	cmp -s "$work/plain" "$work/said" || { wrong=$((wrong + 1)); told "$name" WRONG "says something else by map-run"; return; }
	mapped=$(timeout 120 "${run[@]}" dump "$name" "$dir" 2>"$work/dump.says") || true
	[ "$plain" = 40 ] && [ "$mapped" = 40 ] || { wrong=$((wrong + 1)); told "$name" WRONG "plainly '$plain', by map-run '$mapped': $(tail -n 1 "$work/dump.says")"; return; }
	for ((kill = 1; kill <= kills; kill++)); do
		: >"$work/said"
		# The program has a process group of its own, so that all of it is killed.
		setsid "$FOREBAY" map-run --pool "$pool" --files "${globs[@]}" --room 64M -- \
			"${run[@]}" write "$name" "$dir" >"$work/said" 2>"$work/says" &
		pid=$!
		for _ in $(seq 3600); do [ -s "$work/said" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.05; done
		sleep "0.$(printf %03d $((RANDOM % 900)))"
		kill -KILL -- -$pid 2>/dev/null || true
		code=0
		wait $pid 2>/dev/null || code=$?
		[ $code = 137 ] || { wrong=$((wrong + 1)); told "$name" WRONG "before kill $kill: it ended by itself with $code: $(tail -n 1 "$work/says")"; return; }
		said=$(sed '$!b; /^[0-9]*$/!d' "$work/said" | tail -n 1)
		[ -n "$said" ] || { wrong=$((wrong + 1)); told "$name" WRONG "kill $kill: it says nothing: $(tail -n 1 "$work/says")"; return; }
		# The last of its processes may end a moment later.
		for _ in $(seq 100); do
			recover 2>/dev/null && cp "$work/recovered" "$work/brought" && break
			grep -q 'in use by process' "$work/recovered" || break
			sleep 0.1
		done
		recover 2>/dev/null || { wrong=$((wrong + 1)); told "$name" WRONG "kill $kill: not recovered: $(grep -v '^ *$' "$work/recovered" | tail -n 1)"; return; }
		code=0
		last=$(timeout 120 "${run[@]}" dump "$name" "$dir" 2>"$work/dump.says") || code=$?
		[ $code != 124 ] || { wrong=$((wrong + 1)); told "$name" WRONG "kill $kill: it cannot be read within 120 s"; return; }
		[ $code = 0 ] || last=$(tail -n 1 "$work/dump.says")
		[[ $last =~ ^[0-9]+$ ]] && [ "$last" -ge "$said" ] ||
			{ lost "$name" "kill $kill: $said was acknowledged, and there is '$last'"; return; }
		if grep -q 'wrote back [1-9]' "$work/brought"; then home=$((home + 1)); fi
		if [ "$last" -ge 8000 ]; then rm -rf "$dir"; mkdir "$dir"; fi
		there=$said
		[ "$there" -ge "$least" ] || least=$there
		[ "$there" -le "$most" ] || most=$there
	done
	passed=$((passed + 1))
	told "$name" passed "$kills kills, $home with pages written back, up to $most numbers acknowledged$note"
}

if command -v javac >/dev/null; then javac -d "$work/classes" "$here/Stores.java" || fail "Stores.java does not compile"; fi
for kind in python commands java node; do
	of_kind "$kind"
	tool=${run[0]}
	command -v "$tool" >/dev/null || { not_here "all of $kind" "$tool is not installed"; continue; }
	while read -r name other; do
		if [ "$name" = - ]; then
			not_here "${other%% *}" "is not installed: $other"
			continue
		fi
		[ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
		one "$kind" "$name"
	done < <("${run[@]}" list)
done
if [ $# = 0 ] && ! command -v go >/dev/null; then
	not_here go "it is not installed"
elif [ $# = 0 ]; then
	printf 'package main\nfunc main() {}\n' >"$work/none.go"
	dir=$work
	(cd "$work" && GOFLAGS=-mod=mod GOCACHE=$work/go go build -o "$work/none" none.go 2>/dev/null)
	tried=$((tried + 1)) code=0
	by_map_run "$work/none" 2>"$work/says" || code=$?
	[ "$code" = 6 ] && refused=$((refused + 1)) || wrong=$((wrong + 1))
	told 'go (bbolt, badger, pebble and others)' "$([ "$code" = 6 ] && echo refused || echo WRONG)" "$(sed 's/^forebay[^:]*: //' "$work/says" | head -n 1 | sed "s,$work/,,g")"
fi
say "$tried programs: $passed passed with $kills kills each, $refused refused by name, $itself with a flaw of their own, $wrong wrong; $absent are not there"
[ "$wrong" = 0 ]
