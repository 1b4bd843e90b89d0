#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a server tells an unmount from the end of its session, whichever way either comes.  An
# unmount is exit code 0; a session that ended under its users is 7 and names the cause.  The server
# never ends the connection of a mount that is not its own, whatever numbers the kernel gives that
# one.
# Method: a table of ways to unmount and to abort.  The mounts are root's and an ordinary user's,
# with and without fusectl mounted where the server looks for it.  For one of them another FUSE
# mount gets the device number before the server looks.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 setpriv flock

tree=$work/tree top=$work/top at=$work/top/at control=/sys/fs/fuse/connections
mkdir "$tree" "$top"
# With "without-fusectl", the script runs in a mount namespace of its own.  Only this script has
# fusectl, at another place.
alone=${1:-}
"$FOREBAY" create "$pool" --size "$pool_size" >/dev/null
at_end 'umount -l "$at" "$top" 2>/dev/null || true'
if [ -n "$alone" ]; then
	umount -l "$control" 2>/dev/null || true
	control=$work/control
	mkdir "$control"
fi
# Without fusectl no process can abort a connection.
mountpoint -q "$control" || {
	mount -t fusectl none "$control" || skip "fusectl cannot be mounted"
	at_end 'umount -l "$control" 2>/dev/null || true'
}

connection() { python3 -c 'import os, sys; print(os.minor(os.stat(sys.argv[1]).st_dev))' "$1"; }
until_mounted() { # PID LOG
	local tries
	for ((tries = 0; tries < 1200; tries++)); do
		! grep -qs '^mounted' "$2" || return 0
		kill -0 "$1" 2>/dev/null || fail "the mount ended before it was there: $(cat "$2")"
		sleep 0.05
	done
	fail "no mount after 60 s: $(cat "$2")"
}
begin() {
	mount -t tmpfs none "$top"
	mkdir "$at"
	: >"$work/mount.log" # that of the server before says that it is mounted
	"$FOREBAY" mount "$pool" "$tree" "$at" --foreground >"$work/mount.log" 2>&1 &
	server=$!
	until_mounted "$server" "$work/mount.log"
	abort=$control/$(connection "$at")/abort
	echo served >"$at/file"
}
# ended NAME CODE
ended() {
	local code=0
	timeout 30 tail --pid="$server" -f /dev/null || fail "$1: the server does not end"
	wait "$server" || code=$?
	server=''
	exec 8>&- 9>&-
	[ -z "${holder:-}" ] || { kill "$holder" 2>/dev/null; wait "$holder" 2>/dev/null; holder=''; } || true
	umount -l "$at" 2>/dev/null || true
	umount -l "$top" 2>/dev/null || true
	[ "$code" = "$2" ] || fail "$1: exit code $code, not $2: $(tail -n 2 "$work/mount.log")"
	[ "$2" = 0 ] || grep -q "its session ended while it was mounted" "$work/mount.log" || fail "$1: $(tail -n 2 "$work/mount.log")"
	[ ! -L "$tree/.forebay-mount" ] || fail "$1: the mark is left"
	[ "$(cat "$tree/file")" = served ] || fail "$1: the file is not in the tree"
}
apart() { # a process of another mount namespace holds it
	"$root/tests/apart" "$work" --propagation=private sleep 600 &
	holder=$!
	until [ "$(cat "/proc/$holder/comm")" = sleep ]; do
		kill -0 "$holder" || fail "no mount namespace can be made"
		sleep 0.05
	done
}
holder=''
at_end '[ -z "${holder:-}" ] || kill "$holder" 2>/dev/null || true'

# A stopped server that another directory of sockets does not show is waited for once.
stopped() {
	local second=$shm/stopped begun took
	mkdir "$work/stopped" "$work/stopped-at"
	"$FOREBAY" create "$second" --size "$pool_size" >/dev/null
	FOREBAY_RUNTIME_DIR=$work/run-3 "$FOREBAY" mount "$second" "$work/stopped" "$work/stopped-at" --foreground >"$work/stopped.log" 2>&1 &
	stopped_server=$!
	until_mounted "$stopped_server" "$work/stopped.log"
	kill -STOP "$stopped_server"
	begun=$SECONDS code=0
	"$FOREBAY" umount "$work/stopped-at" >"$work/stopped.log" 2>&1 || code=$?
	took=$((SECONDS - begun))
	kill -CONT "$stopped_server"
	kill -TERM "$stopped_server"
	wait "$stopped_server" || true
	[ $code = 7 ] || fail "a stopped server: exit code $code: $(cat "$work/stopped.log")"
	grep -q "does not answer" "$work/stopped.log" || fail "a stopped server: $(cat "$work/stopped.log")"
	[ $took -lt 30 ] || fail "a stopped server was waited for $took s"
	say "a stopped server is told from none, after $took s"
}
# A server that looks at the silent mount again and again has one process that waits for the answer.
# The commands do not see the mount, and leave the look to the server.
asked_by_server() {
	local second=$shm/asked log=$work/asked-server.log serving tries look
	"$FOREBAY" create "$second" --size "$pool_size" >/dev/null
	truncate -s 4M "$work/asked.image"
	"$FOREBAY" volume add "$second" v "$work/asked.image" >/dev/null
	FOREBAY_RUNTIME_DIR=$work/run-5 "$FOREBAY" serve "$second" --socket "$work/run-5/nbd" --json >"$log" 2>&1 &
	serving=$!
	for ((tries = 0; tries < 1200; tries++)); do ! grep -qs '"ready":true' "$log" || break; sleep 0.05; done
	grep -qs '"ready":true' "$log" || fail "a server of an empty pool: $(cat "$log")"
	for look in 1 2 3; do
		# shellcheck disable=SC2016 # the other shell expands it
		FOREBAY_RUNTIME_DIR=$work/run-5 "$root/tests/apart" "$work" --propagation=private bash -c 'umount -l "$3"; exec "$0" "$@"' \
			"$FOREBAY" mount "$second" "$work/asked" >"$work/asked.log" 2>&1 && fail "look $look: it is mounted: $(cat "$work/asked.log")"
		grep -q "no answer" "$work/asked.log" || fail "look $look: $(cat "$work/asked.log" "$log")"
	done
	[ "$(pgrep -c -P $serving -f "^forebay look $work/asked\$")" = 1 ] || fail "a server left these: $(pgrep -a -P $serving)"
	kill -TERM $serving
	timeout 60 tail --pid=$serving -f /dev/null || fail "a server that has looked at a silent mount does not end: $(cat "$log")"
	wait $serving || fail "a server that has looked at a silent mount: $(cat "$log")"
	say "a server looks at a silent mount once at a time"
}
# A server is stopped after it has read a request: no signal ends who waits for the answer.
# The command ends all the same.
asked() {
	local silent command tries
	mkdir "$work/asked"
	python3 "$root/tests/map/silent.py" "$work/asked" forebay >"$work/asked.log" 2>&1 &
	silent=$!
	for ((tries = 0; tries < 400; tries++)); do [ ! -s "$work/asked.log" ] || break; sleep 0.05; done
	grep -q mounted "$work/asked.log" || fail "silent.py: $(cat "$work/asked.log")"
	for command in "umount $work/asked" "mount $pool $work/asked"; do
		rm -f "$work/asked.code"
		# shellcheck disable=SC2086 # words
		{ FOREBAY_RUNTIME_DIR=$work/run-4 "$FOREBAY" $command >"$work/asked.log" 2>&1 && code=0 || code=$?; echo $code >"$work/asked.code"; } &
		for ((tries = 0; tries < 1000; tries++)); do [ ! -s "$work/asked.code" ] || break; sleep 0.05; done
		[ -s "$work/asked.code" ] || { kill -KILL $silent; fail "${command%% *} does not end: $(cat "$work/asked.log")"; }
		[ "$(cat "$work/asked.code")" != 0 ] && grep -Eq "does not answer|no answer" "$work/asked.log" ||
			fail "$command: exit code $(cat "$work/asked.code"): $(cat "$work/asked.log")"
	done
	asked_by_server
	kill -KILL $silent
	wait $silent 2>/dev/null || true
	umount -l "$work/asked" || true
	say "umount and mount end next to a server that has read what they ask, and does not answer"
}
[ -n "$alone" ] || {
	stopped & # beside the others, since they wait for most of their time
	stopped=$!
	asked &
	asked=$!
}

while read -r code name; do
	begin
	case $name in
	umount) umount -i "$at" ;;
	lazily) umount -l "$at" ;;
	lazily-in-use) exec 8>"$at/held"; umount -l "$at"; sleep 2; exec 8>&- ;;
	lazily-above) umount -l "$top" ;;
	without-its-directory) kill -STOP "$server"; umount -l "$at"; rmdir "$at"; kill -CONT "$server" ;;
	abort) echo 1 >"$abort" ;;
	abort-in-use) exec 8>"$at/held"; echo 1 >"$abort" ;;
	abort-below-another) mount -t tmpfs none "$at"; echo 1 >"$abort"; sleep 2; umount "$at" ;;
	abort-lazily-unmounted) exec 8>"$at/held"; umount -l "$at"; echo 1 >"$abort" ;;
	abort-elsewhere) apart; umount -i "$at"; sleep 0.5; echo 1 >"$abort" ;;
	esac
	ended "$name" "$code"
done <<'T'
0 umount
0 lazily
0 lazily-in-use
0 lazily-above
0 without-its-directory
7 abort
7 abort-in-use
7 abort-below-another
7 abort-lazily-unmounted
7 abort-elsewhere
T

# The server is stopped while its mount goes.  The kernel gives the device number to a mount of
# another FUSE server, which must still exist when the first server has ended.
reused=''
other_number() {
	local second=$shm/second number first
	mkdir "$work/other" "$work/other-at"
	"$FOREBAY" create "$second" --size "$pool_size" >/dev/null
	at_end 'umount -l "$work/other-at" 2>/dev/null || true'
	begin
	number=$(connection "$at")
	first=$server
	kill -STOP "$first"
	umount -l "$at"
	rmdir "$at"
	FOREBAY_RUNTIME_DIR=$work/run-2 "$FOREBAY" mount "$second" "$work/other" "$work/other-at" >/dev/null || fail "another mount"
	reused=no
	[ "$(connection "$work/other-at")" != "$number" ] || reused=yes
	kill -CONT "$first"
	ended "a number that is used again" 0
	echo there >"$work/other-at/file" || fail "the server ended the connection of another mount"
	FOREBAY_RUNTIME_DIR=$work/run-2 "$FOREBAY" umount "$work/other-at" >/dev/null || fail "umount of the other"
}
[ -n "$alone" ] || {
	wait "$stopped" || fail "umount with a stopped server"
	wait "$asked" || fail "commands next to a server that does not answer"
	other_number
}
say "10 ways to end a session are told apart${alone:+ where the server has no fusectl}${reused:+; device number used again: $reused}"

# A mount that fusermount3 made for an ordinary user is unmounted when the session ends.
if command -v fusermount3 >/dev/null && setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'exec 3<>/dev/fuse' 2>/dev/null; then
	as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups env FOREBAY_RUNTIME_DIR="$work/user" "$@"; }
	chmod 711 "$shm" "$work"
	mkdir "$work/own" && mkdir -m 700 "$work/user"
	cp --sparse=always "$pool" "$shm/own"
	chown 1000:1000 "$work/own" "$work/user" "$shm/own"
	for way in 0:umount 7:abort 7:abort-lazily-unmounted; do
		as_user "$FOREBAY" mount "$shm/own" "$work/own" --foreground >"$work/mount.log" 2>&1 &
		server=$!
		for ((tries = 0; tries < 1200; tries++)); do
			grep -q " $work/own fuse.forebay " /proc/mounts && as_user ls "$work/own" >/dev/null 2>&1 && break
			kill -0 "$server" 2>/dev/null || fail "the user's mount: $(cat "$work/mount.log")"
			sleep 0.05
		done
		minor=$(awk -v at="$work/own" '$5 == at { split($3, n, ":"); print n[2] }' /proc/self/mountinfo)
		sleep 0.5
		case $way in
		*umount) as_user fusermount3 -u "$work/own" ;;
		*abort) echo 1 >"$control/$minor/abort" ;;
		*)
			# shellcheck disable=SC2016 # the user's shell expands it
			as_user bash -c 'exec 8>"$1/held"; exec sleep 600' _ "$work/own" &
			holder=$!
			until as_user test -e "$work/own/held"; do sleep 0.05; done
			as_user fusermount3 -u -z "$work/own"
			echo 1 >"$control/$minor/abort"
			;;
		esac
		code=0
		wait "$server" || code=$?
		server=''
		[ -z "$holder" ] || { kill "$holder" 2>/dev/null; wait "$holder" 2>/dev/null; holder=''; } || true
		[ $code = "${way%%:*}" ] || fail "a user's mount, ${way#*:}: exit code $code: $(tail -n 2 "$work/mount.log")"
		grep -q " $work/own " /proc/mounts && fail "a user's mount, ${way#*:}: a mount is left"
	done
	say "the same of a mount by fusermount3"
else
	skip_part "a mount by fusermount3" "an ordinary user has no fusermount3, or may not open /dev/fuse"
fi
# The signal comes before anything has to be ended: while the pool is opened.  Another process has
# the pool, with a server or without one.
interrupted() { # NAME CODE: it is what mount.log says, too
	[ "$2" = 13 ] || fail "$1: exit code $2: $(cat "$work/mount.log")"
	grep -q "forebay: interrupted: " "$work/mount.log" || fail "$1: $(cat "$work/mount.log")"
	! mountpoint -q "$work/early" || fail "$1: it is mounted all the same"
	[ ! -L "$tree/.forebay-mount" ] || fail "$1: the mark is left"
}
early() {
	local how tries
	mkdir "$work/early"
	for how in '' --foreground; do
		exec 7<"$pool"
		flock 7
		# shellcheck disable=SC2086 # it may be empty
		"$FOREBAY" mount "$pool" "$tree" "$work/early" $how >"$work/mount.log" 2>&1 7<&- &
		starting=$!
		sleep 1.2
		kill -TERM "$starting"
		code=0
		wait "$starting" || code=$?
		exec 7<&-
		interrupted "a signal while the pool is opened${how:+, $how}" "$code"
	done
	# The server is stopped at any point of its start, and then gets the signal.  It cannot mount
	# before, since another has its tree.
	exec 7<"$tree"
	flock 7
	"$FOREBAY" mount "$pool" "$tree" "$work/early" >"$work/mount.log" 2>&1 7<&- &
	starting=$!
	child=''
	for ((tries = 0; tries < 3000; tries++)); do
		kill -0 "$starting" || fail "it has ended: $(cat "$work/mount.log")"
		# Another child asks whether what is mounted there answers.
		for child in $(cat "/proc/$starting/task/$starting/children") ''; do
			! grep -qsz -- --foreground "/proc/$child/cmdline" || break
		done
		[ -z "$child" ] || break
		sleep 0.02
	done
	[ -n "$child" ] || fail "no server is started: $(cat "$work/mount.log")"
	kill -STOP "$child"
	exec 7<&-
	kill -TERM "$starting"
	sleep 0.3
	kill -CONT "$child"
	code=0
	wait "$starting" || code=$?
	interrupted "a signal for a server that begins" "$code"
	say "a signal before there is a mount is 13"
}
# Containers whose system calls are filtered lack pidfd_open.
without_pidfd() {
	python3 - "$@" <<'P'
import ctypes, os, struct, sys
PIDFD_OPEN, SECCOMP, FILTER = 434, 22, 2
code = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, PIDFD_OPEN, 6, 0, 0, 0x00050001, 6, 0, 0, 0x7fff0000)
program = ctypes.create_string_buffer(code)
head = ctypes.create_string_buffer(struct.pack("H6xQ", 4, ctypes.addressof(program)))
if ctypes.CDLL(None, use_errno=True).prctl(SECCOMP, FILTER, head, 0, 0):
    sys.exit(77)
os.execvp(sys.argv[1], sys.argv[1:])
P
}
filtered() {
	code=0
	without_pidfd true || code=$?
	[ $code = 0 ] || { skip_part "a mount without pidfd_open" "system calls cannot be filtered here"; return; }
	mkdir "$work/filtered"
	without_pidfd "$FOREBAY" mount "$pool" "$tree" "$work/filtered" >"$work/mount.log" 2>&1 || fail "without pidfd_open: $(cat "$work/mount.log")"
	mountpoint -q "$work/filtered" || fail "without pidfd_open: no mount"
	without_pidfd "$FOREBAY" umount "$work/filtered" >"$work/mount.log" 2>&1 || fail "umount without pidfd_open: $(cat "$work/mount.log")"
	say "a mount starts and ends without pidfd_open"
}
# The signal comes when the mount is there, and the command cannot print that yet, since nobody
# reads its output.  Its later report must be true.
late() {
	mkdir "$work/late"
	python3 - "$FOREBAY" "$pool" "$tree" "$work/late" <<'P' || fail "a signal while the command reports its mount"
import os, signal, subprocess, sys, time
at = sys.argv[-1]
def mounted():
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[4] == at for line in mounts)
output, full = os.pipe()
os.set_blocking(full, False)
try:
    while os.write(full, b"x" * 4096):
        pass
except BlockingIOError:
    pass
os.set_blocking(full, True)
process = subprocess.Popen([sys.argv[1], "mount", *sys.argv[2:]], stdout=full)
os.close(full)
limit = time.monotonic() + 60
while not mounted():
    assert process.poll() is None and time.monotonic() < limit, "there is no mount"
    time.sleep(0.05)
time.sleep(1)  # for what the server does before it says so
process.send_signal(signal.SIGTERM)
time.sleep(0.5)
printed = b""
while part := os.read(output, 65536):
    printed += part
code = process.wait()
time.sleep(0.5)
# On a busy machine the signal may come before the server says that it has mounted.
found = (code, b"mounted " in printed, mounted())
assert found in [(0, True, True), (13, False, False)], (found, printed[-200:])
P
	! mountpoint -q "$work/late" || "$FOREBAY" umount "$work/late" >/dev/null || fail "umount of a mount that was reported late"
	say "a mount that is reported is left alone"
}
# A server that ends when it is asked, perhaps that of another mount, does not serve this
# mount.
gone() {
	mkdir -m 700 "$work/run-4"
	mkdir "$work/gone"
	python3 - "$work/run-4" "$FOREBAY" "$work/gone" <<'P' || fail "umount while the server of another mount ends"
import os, socket, subprocess, sys, threading
run, forebay, at = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.bind(f"{run}/01234567-89ab-4cde-8f01-23456789abcd.sock")
server.listen()
asked = 0
def end():
    global asked
    while True:
        client, _ = server.accept()
        asked += 1
        client.recv(1)
        client.close()
threading.Thread(target=end, daemon=True).start()
said = subprocess.run([forebay, "umount", at], env=os.environ | {"FOREBAY_RUNTIME_DIR": run}, capture_output=True, text=True)
assert asked and said.returncode == 3 and "no server of a pool has a mount there" in said.stderr, (asked, said)
P
	say "a server that ends is not that of another mount"
}
# A second signal ends a server in the middle of its end, which the disk of its tree delays.  That
# is no success, and the next mount has everything that was synced.
cut_off() {
	local disk=$work/slow tries
	{ command -v fsfreeze && command -v mkfs.ext4; } >/dev/null || { skip_part "an end that is cut off" "fsfreeze or mkfs.ext4 is not installed"; return; }
	mkdir "$disk"
	truncate -s 64M "$work/slow.image"
	mkfs.ext4 -qF "$work/slow.image"
	mount_image "$work/slow.image" "$disk" || { skip_part "an end that is cut off" "ext4 cannot be mounted from a file"; return; }
	at_end 'fsfreeze -u "$work/slow" 2>/dev/null; umount -l "$work/slow/tree" "$work/slow" 2>/dev/null || true'
	mkdir "$disk/tree"
	: >"$work/mount.log" # that of the server before says that it is mounted
	"$FOREBAY" mount "$pool" "$disk/tree" --foreground --write-back >"$work/mount.log" 2>&1 &
	server=$!
	until_mounted "$server" "$work/mount.log"
	echo synced >"$disk/tree/file"
	sync "$disk/tree/file"
	fsfreeze -f "$disk"
	kill -TERM "$server"
	sleep 1
	kill -0 "$server" || fail "the end of a server whose disk takes nothing"
	kill -TERM "$server"
	for ((tries = 0; tries < 100; tries++)); do
		! grep -q "cut off by a second signal" "$work/mount.log" || break
		sleep 0.05
	done
	sleep 0.2
	fsfreeze -u "$disk"
	code=0
	wait "$server" || code=$?
	server=''
	[ $code = 19 ] || fail "an end that a second signal cuts off: exit code $code: $(cat "$work/mount.log")"
	grep -q "cut off by a second signal" "$work/mount.log" || fail "an end that is cut off: $(cat "$work/mount.log")"
	"$FOREBAY" mount "$pool" "$disk/tree" >"$work/mount.log" 2>&1 || fail "a mount after one that was cut off: $(cat "$work/mount.log")"
	[ "$(cat "$disk/tree/file")" = synced ] || fail "what was synced is lost"
	"$FOREBAY" umount "$disk/tree" >"$work/mount.log" 2>&1 || fail "umount after a mount that was cut off: $(cat "$work/mount.log")"
	say "an end that a second signal cuts off is 19"
}
# A server is killed while the kernel writes pages back to it and its disk takes none: in its end,
# or while it searches a file for data.  It ends by itself when the disk goes on, and the next mount
# replaces its own.
killed() { # HOW [OPTION]: how a program changes its files
	local disk=$work/slow how=$1 program tries waits killed
	mountpoint -q "$disk" || return 0
	if [ "$how" = searched ] && [ "$(printf '6.16\n%s\n' "$(uname -r)" | sort -V | head -n 1)" != 6.16 ]; then
		skip_part "a server that is killed in a search" "Linux before 6.16: no search waits for the kernel"
		return 0
	fi
	if [ "$how" = searched ] && [ -z "$(cat /proc/self/stack 2>/dev/null)" ]; then
		skip_part "a server that is killed in a search" "/proc shows no stacks"
		return 0
	fi
	shift
	: >"$work/mount.log"
	rm -f "$work/pages".*
	"$FOREBAY" mount "$pool" "$disk/tree" --foreground "$@" >"$work/mount.log" 2>&1 &
	server=$!
	until_mounted "$server" "$work/mount.log"
	python3 - "$disk/tree" "$how" "$work/pages" <<'P' &
import mmap, os, sys, time
at, how, pages = sys.argv[1:]
files = [os.open(f"{at}/{how}{n}", os.O_RDWR | os.O_CREAT) for n in range(20)]
for file in files:
    os.ftruncate(file, 65536)
maps = [mmap.mmap(file, 65536) for file in files]
assert not any(page[0] for page in maps)
open(f"{pages}.ready", "w")
while not os.path.exists(f"{pages}.go"):
    time.sleep(0.01)
for file, page in zip(files, maps):
    if how == "written":
        os.pwrite(file, b"x" * 65536, 0)
    else:
        page[:] = b"x" * 65536
open(f"{pages}.dirty", "w")
if how == "searched":
    os.lseek(files[0], 0, os.SEEK_DATA)
time.sleep(600)
P
	program=$!
	for ((tries = 0; tries < 1200; tries++)); do [ ! -e "$work/pages.ready" ] || break; sleep 0.05; done
	fsfreeze -f "$disk"
	: >"$work/pages.go"
	for ((tries = 0; tries < 1200; tries++)); do [ ! -e "$work/pages.dirty" ] || break; sleep 0.05; done
	[ -e "$work/pages.dirty" ] || fail "$how: no page is changed: $(cat "$work/mount.log")"
	waits=mount-end
	if [ "$how" = searched ]; then waits=folio_wait_writeback; else kill -TERM "$server"; fi
	for ((tries = 0; tries < 1200; tries++)); do
		! grep -qs "$waits" "/proc/$server"/task/*/{comm,stack} || break
		sleep 0.05
	done
	sleep 1 # for the kernel's first request
	grep -qs "$waits" "/proc/$server"/task/*/{comm,stack} || fail "$how: the server does not wait for the disk: $(cat "$work/mount.log")"
	pgrep -f "^forebay guard $server\$" >/dev/null || [ "$how" != searched ] || fail "$how: no process guards the end of the server"
	killed=$server
	kill -KILL "$server"
	sleep 0.2
	fsfreeze -u "$disk"
	timeout 30 tail --pid="$server" -f /dev/null || {
		cat "/proc/$server"/task/*/stack >&2
		umount -f -l "$disk/tree"
		fail "$how: a server that is killed while the kernel writes back to it does not end"
	}
	wait "$server" 2>/dev/null || true
	server=''
	kill "$program" 2>/dev/null || true
	wait "$program" 2>/dev/null || true
	for ((tries = 0; tries < 600; tries++)); do pgrep -f "^forebay write-back $disk/tree\$" >/dev/null || break; sleep 0.05; done
	[ $tries -lt 600 ] || fail "$how: the process that asked for the write-back does not end"
	for ((tries = 0; tries < 600; tries++)); do pgrep -f "^forebay guard $killed\$" >/dev/null || break; sleep 0.05; done
	[ $tries -lt 600 ] || fail "$how: the process that guarded the end of the server does not end"
	"$FOREBAY" mount "$pool" "$disk/tree" >"$work/mount.log" 2>&1 || fail "$how: the next mount: $(cat "$work/mount.log")"
	"$FOREBAY" umount "$disk/tree" >"$work/mount.log" 2>&1 || fail "$how: umount: $(cat "$work/mount.log")"
	say "a server that is killed while the kernel writes back what is $how ends"
}
if [ -z "$alone" ]; then
	cut_off
	killed written --write-back
	killed mapped
	killed searched
	early
	filtered
	late
	gone
fi

# The command that starts a mount gets a signal while the server waits for the tree, which somebody
# keeps locked.  The command ends at once, and nothing is mounted, then or later.
if [ -z "$alone" ]; then
	place=$work/interrupted
	mkdir "$place"
	exec 7<"$tree"
	flock 7
	"$FOREBAY" mount "$pool" "$tree" "$place" >"$work/mount.log" 2>&1 7<&- &
	starting=$!
	sleep 2
	kill -TERM "$starting"
	begun=$SECONDS
	code=0
	wait "$starting" || code=$?
	exec 7<&-
	[ $((SECONDS - begun)) -le 5 ] || fail "a start that is interrupted ends after $((SECONDS - begun)) s"
	[ $code = 13 ] || fail "a start that is interrupted: exit code $code: $(cat "$work/mount.log")"
	sleep 1
	! mountpoint -q "$place" || fail "a start that is interrupted: it is mounted all the same"
	[ ! -L "$tree/.forebay-mount" ] || fail "a start that is interrupted: the mark is left"
	say "a start that is interrupted mounts nothing"
fi
[ -n "$alone" ] || "$root/tests/apart" "$work" --propagation=private "$root/tests/mount/ends.sh" without-fusectl ||
	fail "without fusectl"
