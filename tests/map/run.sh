#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program sees the same under `forebay map-run` as without.  A program that cannot
# be followed is refused by name.  Acknowledged data is there after a kill.
# Method: program.c both ways.  Programs that are static, of another user or of another C library,
# children, and a second process are tried. raw.c makes system calls of its own, with children with
# and without its library.  The program is killed in each of five ways to make data durable.  Then
# on a pool that is served: the calls, two programs, the end of one, and of the server.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../serve/lease-time.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile program
compile raw -pthread
compile twice
compile answers
make_map 128M 64M
lease_time_stays
program=$work/program

"$program" calls "$work/plain.dat" || fail "the calls of a plain file"
mapped "$program" calls "$work/calls.map" 2>"$work/says" || { cat "$work/says" >&2; fail "the calls"; }
cmp -s "$work/plain.dat" "$work/calls.map" && fail "the file is as the plain one: it was not mapped?"
[ "$(wc -l <"$work/says")" -eq "$(sort -u "$work/says" | wc -l)" ] || fail "a message comes twice: $(cat "$work/says")"
for word in 'syscall(' sendfile fopen rename daemon mprotect fallocate; do
	grep -q "forebay map-run: .*$word" "$work/says" || fail "no message about $word"
done
say "calls: passed"

# Tests several mappings of a file, and sizes that are not possible.
for what in mappings random sizes appends child past; do
	"$work/twice" $what "$work/plain.dat" || fail "twice $what of a plain file"
	mapped "$work/twice" $what "$work/twice.map" 2>"$work/says" || { cat "$work/says" >&2; fail "twice $what"; }
	case $what in
	sizes) grep -q 'vm.max_map_count' "$work/says" || fail "no message about a size: $(cat "$work/says")" ;;
	appends) grep -q 'append in smaller pieces' "$work/says" || fail "no message about an append: $(cat "$work/says")" ;;
	esac
done
rm "$work/twice.map"
say "mappings and sizes: passed"

# A file whose content the kernel makes when it is read is a plain one.
"$FOREBAY" map-run --pool "$pool" --files '*' -- cat /proc/sys/vm/swappiness /proc/self/cgroup /sys/kernel/uevent_seqnum \
	>"$work/said" 2>"$work/says" || fail "files of the kernel: $(cat "$work/says")"
[ -s "$work/said" ] && ! [ -s "$work/says" ] || fail "files of the kernel: $(cat "$work/says")"
say "files of the kernel: passed"

# Tests the answers of rare calls, and a file as stdout.
"$work/answers" all "$work/plain.dat" >"$work/answers.plain" || fail "answers of a plain file"
mapped "$work/answers" all "$work/answers.map" >"$work/answers.mapped" 2>"$work/says" || { cat "$work/says" >&2; fail "answers"; }
diff "$work/answers.plain" "$work/answers.mapped" >&2 || fail "other answers than of a plain file"
# The program is started with a limit for the size of files, in KiB, below a frame and above one.
for limit in 10 3072; do
	(ulimit -f $limit && exec "$work/answers" limit "$work/plain.dat") >"$work/answers.plain" || fail "answers of a plain file below a limit"
	rm -f "$work/answers.map"
	(ulimit -f $limit && mapped "$work/answers" limit "$work/answers.map") >"$work/answers.mapped" 2>"$work/says" || { cat "$work/says" >&2; fail "answers below a limit of $limit KiB"; }
	diff "$work/answers.plain" "$work/answers.mapped" >&2 || fail "other answers below a limit of $limit KiB than of a plain file"
done
"$work/answers" stdio "$work/plain.dat" >/dev/null || fail "a plain file as stdout"
mapped "$work/answers" stdio "$work/answers.map" >"$work/said" 2>"$work/says" || { cat "$work/says" >&2; fail "a file as stdout"; }
grep -q 'as it was' "$work/said" || fail "what was printed is lost"
grep -q 'stdio would read and write past' "$work/says" || fail "no message about stdout"
# The name of the pool is not UTF-8.  The program must not run without mappings.
(
	bad=$shm/$(printf 'p\377l')
	"$FOREBAY" create "$bad" --size 64M --maps 32M >/dev/null && "$FOREBAY" map add "$bad" db >/dev/null
	"$FOREBAY" map-run --pool "$bad" --files '*.map' -- "$program" calls "$work/utf.map" 2>"$work/says"
) || { cat "$work/says" >&2; fail "a pool whose name is not UTF-8"; }
grep -q 'syscall(' "$work/says" || fail "a pool whose name is not UTF-8: the file was not mapped"
rm "$work"/answers.* "$work/utf.map"
say "answers: passed"

# map-run selects files by name and by place, and no others.
"$FOREBAY" map-run --pool "$pool" --files '*.none' "$work/other/*.dat" -- "$program" exit "$work/free.dat" 2>"$work/says"
mkdir "$work/other"
ln -s other "$work/link"
is_mapped() { # GLOB FILE: whether a program that is run by it has the file in the pool
	local held
	: >"$work/said"
	(cd "$work" && exec "$FOREBAY" map-run --pool "$pool" --files '*.none' "$1" -- "$program" msync "$2") \
		>"$work/said" 2>"$work/says" &
	pid=$!
	for _ in $(seq 200); do [ -s "$work/said" ] && break; sleep 0.05; done
	held=$("$FOREBAY" map list "$pool" 2>&1 >/dev/null || true)
	kill -KILL $pid
	wait $pid 2>/dev/null || true
	recover
	[[ $held == *'in use'* ]]
}
for glob in "$work/other/*.dat" "$work/link/*.dat" 'other/*.dat' './link/x.dat'; do
	is_mapped "$glob" "$work/other/x.dat" || fail "$glob: other/x.dat is not mapped"
done
if is_mapped "$work/other/*.dat" "$work/x.dat"; then fail "x.dat is mapped"; fi
for glob in '' "$work/other" "$work/link" 'other/'; do
	if (cd "$work" && "$FOREBAY" map-run --pool "$pool" --files "$glob" -- true) 2>"$work/says"; then fail "'$glob' is taken, which fits no file"; fi
	grep -q -- '--files' "$work/says" || fail "'$glob': $(cat "$work/says")"
done
say "patterns: passed"

mapped "$program" exit "$work/exit.map" || fail "a program that ends without a sync"
grep -q 'not synced' "$work/exit.map" || fail "what was stored is not there after the end"
mapped "$program" busy "$work/busy.map" || fail "a program that ends while threads store: $?"
grep -q 'not synced' "$work/busy.map" || fail "what was stored is not there after such an end"
mapped "$program" across "$work/across.map" && fail "it was not killed"
recover && grep -q 'from below' "$work/across.map" || fail "a sync that began below the mapping was nothing"
ROOM=4M mapped "$program" replaced "$work/replaced.map" 2>"$work/says" || fail "a file that was replaced: $(cat "$work/says")"
rm "$work/busy.map" "$work/replaced.map"
mapped "$program" fork "$work/fork.map" 2>"$work/says" || { cat "$work/says" >&2; fail "children"; }
grep -q 'child' "$work/says" || fail "no message to the child"
mapped "$program" daemon "$work/daemon.map" 2>"$work/says" || { cat "$work/says" >&2; fail "a fork before the open"; }
mapped "$program" exec "$work/exec.map" /bin/true >"$work/said" 2>"$work/says" || { cat "$work/says" >&2; fail "exec with a file open"; }
grep -q refused "$work/said" || fail "a form of exec is not refused"
grep -q 'exec' "$work/says" || fail "no message about exec"
# Programs run one after the other, also from a shell, which has no file open.
mapped sh -c "'$program' exit '$work/a.map' && '$program' exit '$work/b.map' && '$program' last-log '$work/plain.dat'" >/dev/null ||
	fail "programs one after the other"
say "processes: passed"

# The program makes system calls of its own.
raw=$work/raw
gcc -static -pthread -std=gnu11 -O2 -o "$raw.static" "$root/tests/map/raw.c" || skip "no static C library"
for what in calls others; do "$raw" $what "$work/plain.dat" || fail "raw $what of a plain file"; done
for what in calls child; do
	mapped "$raw" $what "$work/$what.map" 2>"$work/says" || { cat "$work/says" >&2; fail "raw $what"; }
	grep -q 'instruction of its own' "$work/says" || fail "no message about an instruction"
done
# The program closes descriptors that it has not opened, by the C library and without it.
for what in closes closed stale; do
	"$raw" $what "$work/plain.dat" || fail "raw $what of a plain file"
	mapped "$raw" $what "$work/$what.map" 2>"$work/says" || { cat "$work/says" >&2; fail "raw $what"; }
done
(ulimit -n 32; mapped "$raw" stale "$work/few.map" 2>"$work/says") || { cat "$work/says" >&2; fail "few descriptors"; }
mapped "$raw" closed "$work/closed.map" 2>"$work/says" || true
grep -q 'closed a descriptor of the library' "$work/says" || fail "no message about descriptors"
recover || fail "what was synced before descriptors were closed"
grep -q 'synced before' "$work/closed.map" || fail "what was synced is lost"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
# Children inherit the filter.  A program there has memory of its own, with the library or
# without.
for program_there in "$raw" "$raw.static"; do
	mapped "$raw" run "$work/run.map" "$program_there" others "$work/plain.dat" 2>"$work/says" ||
		{ cat "$work/says" >&2; fail "a child of a program with a file"; }
done
mapped "$raw" nest "$work/nest.map" 3 2>"$work/says" || { cat "$work/says" >&2; fail "programs that run each other"; }
grep -q 'with 0 left' "$work/nest.map" || fail "the last of them has stored nothing"
# There are 24 windows; the 25th is refused.
mapped "$raw" nest "$work/nest.map" 23 2>"$work/says" || { cat "$work/says" >&2; fail "24 programs"; }
if mapped "$raw" nest "$work/nest.map" 24 2>"$work/says"; then fail "more programs than windows"; fi
grep -q 'no addresses are left' "$work/says" || fail "not told: $(cat "$work/says")"
grep -q 'with 1 left' "$work/nest.map" || fail "$(head -c 30 "$work/nest.map")"
say "system calls of its own: passed"

# A second process is refused by name, at the start and at the open.
begin busy "$program" msync "$work/busy.map"
if mapped "$program" last "$work/busy.map" 2>"$work/second"; then fail "a second process has the pool"; fi
grep -q "process $pid has it open.*forebay serve" "$work/second" || fail "not told: $(cat "$work/second")"
killed $pid
mapped "$program" last "$work/busy.map" >/dev/null 2>"$work/says" || fail "after a crash: $(cat "$work/says")"
grep -q 'written back to .* files first' "$work/says" || fail "nobody said what was written back"
say "two processes: passed"

# The calls of these programs would not be seen.
printf 'int main(void) { return 0; }\n' >"$work/static.c"
gcc -static -o "$work/static" "$work/static.c" || skip "no static C library"
cp "$program" "$work/setuid" && chown nobody "$work/setuid" && chmod u+s "$work/setuid"
printf '#!%s\n' "$work/static" >"$work/script" && chmod +x "$work/script"
gcc -o "$work/musl" "$work/static.c" -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1
echo nonsense >"$work/nonsense" && chmod +x "$work/nonsense"
for pair in 'static static' 'setuid setuid' 'script static' 'musl GNU' 'nonsense ELF'; do
	read -r file word <<<"$pair"
	code=0
	mapped "$work/$file" 2>"$work/says" || code=$?
	[ "$code" = 6 ] || fail "$file is not refused: $code"
	grep -q "$word" "$work/says" || fail "$file: $(cat "$work/says")"
	[ "$(wc -l <"$work/says")" -eq 1 ] || fail "$file: more than one message"
done
if FOREBAY_MAP_PRELOAD=$work/nowhere.so mapped true 2>"$work/says"; then fail "runs without the library"; fi
if mapped "$work/nowhere" 2>"$work/says"; then fail "a program that is not there"; fi
if "$FOREBAY" map-run --pool "$work/nowhere" --files '*.map' -- true 2>"$work/says"; then fail "no pool"; fi
say "refused at the start: passed"

for way in msync fsync write dsync raw; do
	kill_one "$way" "$work/$way.map" "$program" "$way" "$work/$way.map"
	last=$("$program" last "$work/$way.map") || fail "$way: numbers are missing"
	[ "$last" -ge "$acknowledged" ] || fail "$way: $acknowledged was acknowledged, $last is there"
	say "$way: killed after $acknowledged"
done

# The pool is served.
start_server
rm -f "$work"/*.map
mapped "$program" calls "$work/calls.map" 2>"$work/says" || { cat "$work/says" >&2; fail "served: the calls"; }
mapped "$program" fork "$work/fork.map" 2>"$work/says" || { cat "$work/says" >&2; fail "served: children"; }
mapped "$program" daemon "$work/daemon.map" || fail "served: a fork before the open"
mapped "$program" exit "$work/exit.map" || fail "served: a program that ends without a sync"
grep -q 'not synced' "$work/exit.map" || fail "served: what was stored is not there after the end"
for what in mappings random sizes child; do
	mapped "$work/twice" $what "$work/twice.map" 2>"$work/says" || { cat "$work/says" >&2; fail "served: twice $what"; }
done
say "served, calls: passed"

# Two programs run at once.  A third one does not get a file of theirs.
begin one "$program" msync "$work/one.map"
one=$pid
begin two "$program" fsync "$work/two.map"
two=$pid
if mapped "$program" last "$work/one.map" 2>"$work/second"; then fail "a second process has the file"; fi
grep -q "one.map: process $one has it" "$work/second" || fail "not told: $(cat "$work/second")"
"$FOREBAY" map list "$pool" >"$work/listed"
for pid in $one $two; do grep -q "mapped by process $pid" "$work/listed" || fail "not listed: $(cat "$work/listed")"; done
"$FOREBAY" map status "$pool" >"$work/listed"
for pid in $one $two; do grep -Eq "^$pid +0 +1 +1 .* db +program$" "$work/listed" || fail "whose frames: $(cat "$work/listed")"; done
killed $one
# The next program waits for the recovery of the file.
mapped "$program" last "$work/one.map" >"$work/last" || fail "one.map after the end of its program"
[ "$(cat "$work/last")" -ge "$(last_said one)" ] || fail "one.map: $(last_said one) was acknowledged, $(cat "$work/last") is there"
say "served, two programs: passed"

# The look needs neither the pool nor an open that the program would have to answer.  A program that
# is stopped keeps what it has: for a moment that may be nothing that its file lacks.
origin_asked() { # ARGUMENTS...
	code=0
	"$FOREBAY" origin "$@" >"$work/listed" 2>&1 || code=$?
}
for _ in {1..100}; do
	kill -STOP "$two"
	origin_asked status "$work/two.map"
	[ $code = 0 ] || break
	kill -CONT "$two"
	sleep 0.05
done
[ $code = 14 ] && grep -q "process $two has it mapped onto that pool" "$work/listed" || fail "origin status of a mapped file: $code $(cat "$work/listed")"
origin_asked accept-loss "$work/two.map"
[ $code = 4 ] && grep -q "in use by process $two" "$work/listed" || fail "accept-loss of a mapped file: $code $(cat "$work/listed")"
# A look that breaks the lease makes the program write everything back, for which it needs its server.
inode=$(stat -c %i "$work/two.map")
grep -Eq "LEASE +ACTIVE +WRITE.*:$inode " /proc/locks || fail "a look broke the lease of a mapped file: $(grep -E ":$inode " /proc/locks)"
kill -CONT "$two"
# The next program has written back what the killed one left, and nothing is mapped any more.
origin_asked status "$work/one.map"
[ $code = 0 ] && grep -q 'has no mark' "$work/listed" || fail "origin status of a file that was mapped: $code $(cat "$work/listed")"

# Without the server, a program that does not need it continues, and no other process gets
# the pool.
goes_on() {
	local before
	before=$(last_said two)
	for _ in $(seq 400); do [ "$(last_said two)" -gt $((before + 100)) ] && return; sleep 0.05; done
	return 1
}
kill_server
goes_on || fail "without its server a program does not go on: $(cat "$work/two.says")"
if timeout 60 "$FOREBAY" serve "$pool" --socket "$work/run/nbd" >"$work/refused" 2>&1; then fail "another server has the pool"; fi
grep -q "$two" "$work/refused" || fail "it is not told who has files mapped: $(cat "$work/refused")"
if mapped true 2>"$work/refused"; then fail "another program has the pool"; fi
grep -q "$two" "$work/refused" || fail "not told: $(cat "$work/refused")"
killed $two
start_server
recover || fail "two.map: not recovered"
[ "$("$program" last "$work/two.map")" -ge "$(last_said two)" ] || fail "two.map: $(last_said two) was acknowledged"
# A program that needs the server ends with an error.
begin log "$program" log "$work/log.map"
kill_server
for _ in $(seq 400); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
killed $pid && fail "without its server a file grows for ever"
grep -q "its server, process [0-9]*, has ended" "$work/log.says" || fail "not told: $(cat "$work/log.says")"
start_server
recover || fail "log.map: not recovered"
[ "$("$program" last-log "$work/log.map")" -ge "$(last_said log)" ] || fail "log.map: $(last_said log) was acknowledged"
stop_server
say "served, without the server: passed"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
