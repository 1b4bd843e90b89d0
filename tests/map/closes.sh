#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a close of one file, or its write-back for another program, holds up no other file.  Stores
# to any file before the end of the program are kept, even if the program is killed while it closes
# the first one.
# Method: closes.c, with and without map-run.  A thread is stopped in its close by ptrace, a file
# system is frozen, and the server of a file system is stopped.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../serve/lease-time.sh"
need mkfs.ext4 fsfreeze
[ "$(id -u)" = 0 ] || skip "not root"
compile closes
make_map 64M 32M
lease_time_stays

mkfifo "$work/ends"
for what in paths others; do
	timeout 60 "$work/closes" $what "$work/plain.dat" </dev/null >/dev/null || fail "$what of a plain file"
	: >"$work/said"
	ROOM=4M mapped timeout -s KILL 120 "$work/closes" $what "$work/$what.map" <"$work/ends" >"$work/said" 2>"$work/says" &
	pid=$!
	exec 3>"$work/ends"
	if [ $what = others ]; then
		# Another program reads the file meanwhile.
		for _ in $(seq 1500); do [ ! -s "$work/said" ] || break; sleep 0.02; done
		read=$(timeout 20 head -c 6 "$work/others.map" 3>&-) || fail "a reader waits for a close of another file: $(cat "$work/says")"
		[ "$read" = stored ] || fail "a reader during a close of another file does not see what was stored: $(cat "$work/says")"
	fi
	exec 3>&-
	wait $pid || fail "$what: $? $(cat "$work/says")"
	[ ! -s "$work/says" ] || fail "$what: $(cat "$work/says")"
	say "$what: passed"
done

timeout 30 "$work/closes" numbers "$work/plain.dat" || fail "numbers of a plain file"
ROOM=4M mapped timeout -s KILL 60 "$work/closes" numbers "$work/numbers.map" 2>"$work/says" || fail "numbers: $? $(cat "$work/says")"
grep -q 'has closed a descriptor of the library' "$work/says" || fail "numbers: not told: $(cat "$work/says")"
[ "$(tr -d o <"$work/numbers.map.2.map" | wc -c)" = 0 ] || fail "numbers: a file has what is another one's"
[ "$(stat -c %s "$work/numbers.map" "$work/numbers.map.2.map" | tr '\n' ' ')" = "65536 65536 " ] || fail "numbers: a file has another size"
recover || fail "numbers: not recovered: $(cat "$work/recovered")"
[ "$(grep -ao first "$work/numbers.map" | wc -l)" = 8 ] || fail "numbers: what was synced is lost"
say "numbers: passed"

# Other programs read files whose file system is frozen, and one file elsewhere.
slow=8
truncate -s 64M "$work/image"
mkfs.ext4 -q "$work/image"
mkdir "$work/frozen"
mount_image "$work/image" "$work/frozen" || fail "readers: no file system"
at_end 'fsfreeze -u "$work/frozen" 2>/dev/null || true'
: >"$work/said"
ROOM=4M mapped timeout -s KILL 120 "$work/closes" readers "$work/readers.map" "$work/frozen/slow" $slow <"$work/ends" >"$work/said" 2>"$work/says" &
pid=$!
exec 3>"$work/ends"
for _ in $(seq 600); do [ ! -s "$work/said" ] || break; sleep 0.02; done
[ -s "$work/said" ] || fail "readers: nothing is stored: $(cat "$work/says")"
fsfreeze -f "$work/frozen"
waiting=()
for ((i = 1; i <= slow; i++)); do
	head -c 6 "$work/frozen/slow.$i.map" >"$work/read.$i" 3>&- &
	waiting+=($!)
done
sleep 0.3
# The kernel lets the readers above continue after 45 s.
read=$(timeout 20 head -c 6 "$work/readers.map") || fail "readers: a reader waits for files of a frozen file system"
[ "$read" = stored ] || fail "readers: a reader does not see what was stored: $(cat "$work/says")"
# Without a frozen file system the readers above would not wait at all.
for one in "${waiting[@]}"; do kill -0 "$one" 2>/dev/null || fail "readers: a file of a frozen file system is read before it is written"; done
fsfreeze -u "$work/frozen"
for one in "${waiting[@]}"; do wait "$one" || fail "readers: a reader fails"; done
for ((i = 1; i <= slow; i++)); do
	[ "$(cat "$work/read.$i")" = stored ] || fail "readers: a reader of file $i does not see what was stored"
done
exec 3>&-
wait $pid || fail "readers: $? $(cat "$work/says")"
[ ! -s "$work/says" ] || fail "readers: $(cat "$work/says")"
umount "$work/frozen"
say "readers: passed"

# The program has a plain file of a server that does not answer, and another program has a mapped
# file open to read.  The library checks whether the program itself has the mapped file open.
silent_server() {
	mkdir "$work/silent"
	: >"$work/mounted"
	python3 "$root/tests/map/silent.py" "$work/silent" >"$work/mounted" 2>&1 &
	silent=$!
	at_end 'kill -KILL $silent 2>/dev/null'
	for _ in $(seq 600); do [ ! -s "$work/mounted" ] || break; sleep 0.02; done
	grep -q mounted "$work/mounted" || fail "silent: $(cat "$work/mounted")"
	# This close teaches the kernel that the server wants no call at a close.
	: <"$work/silent/file"
	: >"$work/said"
	ROOM=4M mapped timeout -s KILL 120 "$work/closes" silent "$work/silent.map" "$work/silent/file" 0 <"$work/ends" >"$work/said" 2>"$work/says" &
	pid=$!
	exec 3>"$work/ends"
	for _ in $(seq 600); do [ ! -s "$work/said" ] || break; sleep 0.02; done
	[ -s "$work/said" ] || fail "silent: nothing is stored: $(cat "$work/says")"
	kill -STOP $silent
	timeout 1 stat "$work/silent/file" >/dev/null 2>&1 && fail "silent: the server answers" # else nothing would be tested
	exec 4<"$work/silent.map"
	[ "$(head -c 6 <&4)" = stored ] || fail "silent: a reader does not see what was stored: $(cat "$work/says")"
	sleep 0.3 # the library asks for its lease again each 0.1 s
	exec 3>&-
	wait $pid || fail "silent: $? $(cat "$work/says")"
	exec 4<&-
	[ ! -s "$work/says" ] || fail "silent: $(cat "$work/says")"
	kill -CONT $silent
	umount "$work/silent"
	wait $silent || fail "silent: the server fails"
	say "silent: passed"
}
if [ -e /dev/fuse ] && command -v python3 >/dev/null; then silent_server; else skip_part "a server that does not answer" "no /dev/fuse or no python3"; fi

# Nobody reads the program's messages.  It continues, and is ended.
: >"$work/said"
ROOM=4M mapped timeout -s KILL 120 "$work/closes" mute "$work/mute.map" <"$work/ends" >"$work/said" 2>"$work/says" &
pid=$!
exec 3>"$work/ends"
for _ in $(seq 600); do [ ! -s "$work/said" ] && kill -0 $pid 2>/dev/null || break; sleep 0.02; done
[ -s "$work/said" ] || { wait $pid && code=0 || code=$?; fail "mute: a call that is refused with a message that nobody reads: $code $(cat "$work/says")"; }
timeout 30 sh -c ': >>"$1"' sh "$work/mute.map" 3>&- || fail "mute: who opens the file waits for a reader of the message: $(cat "$work/says")"
code=0
wait $pid || code=$?
exec 3>&-
[ "$code" = 6 ] || fail "mute: ended with $code: $(cat "$work/says")"
[ "$(head -c 6 "$work/mute.map")" = stored ] || fail "mute: what was stored is lost"
say "mute: passed"

code=0
ROOM=4M mapped timeout -s KILL 60 "$work/closes" killed "$work/killed.map" 2>"$work/says" || code=$?
[ "$code" = 137 ] || fail "killed in the first close: ended with $code: $(cat "$work/says")"
recover || fail "killed in the first close: not recovered"
for file in "$work/killed.map" "$work/killed.map.2.map"; do
	grep -aq 'last, before the end' "$file" || fail "killed in the first close: what was stored in ${file##*/} is lost"
done
say "killed in the first close of the end: passed"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
