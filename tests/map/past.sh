#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: no access to a mapped file bypasses the library unseen.  The program ends with one
# message, and everything that it has stored is in the file.  An earlier user of the file
# keeps it from being mapped.  Another program that reads waits until everything is in the
# file.
# Method: the table of past.c, each way after and before the library's open.  There are older
# mappings, concurrent readers and writers, a child of the program, a file that grows, a program
# that is stopped, and another root directory.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/beside.sh"
. "$(dirname "$0")/../serve/lease-time.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile past -rdynamic
gcc -shared -fPIC -o "$work/deep.so" "$root/tests/map/deep.c" || fail "deep.c does not compile"
make_map 128M 64M
past=$work/past file=$work/past.map

lease_time_stays
run() { timeout 60 "$FOREBAY" map-run --pool "$pool" --files '*.map' --room 16M -- "$@"; }

ways=0
while read -r way leaves; do
	fresh
	code=0
	run "$past" after "$way" "$file" "$work/deep.so" >"$work/said" 2>"$work/says" || code=$?
	[ "$code" = 6 ] || fail "$way after: ended with $code: $(cat "$work/said" "$work/says")"
	[ "$(grep -c 'past the library' "$work/says")" = 1 ] || fail "$way after: not told once: $(cat "$work/says")"
	case $way in
	creat | *trunc*) ;; # the stores may be cut off by then, as without the library
	*) stored_there || fail "$way after: what was stored is not in the file" ;;
	esac
	if [ "$leaves" = 1 ]; then
		fresh
		run "$past" before "$way" "$file" "$work/deep.so" >"$work/said" 2>"$work/says" || fail "$way before: $(cat "$work/says")"
		grep -q '^refused$' "$work/said" || fail "$way before: $(cat "$work/said")"
		grep -q 'is open or mapped by what goes past' "$work/says" || fail "$way before: not told: $(cat "$work/says")"
	fi
	ways=$((ways + 1))
done < <("$past" list)
[ "$ways" -ge 14 ] || fail "only $ways ways"
fresh
run "$past" mapping "$file" >"$work/said" 2>"$work/says" || fail "an older mapping: $(cat "$work/says")"
grep -q '^refused$' "$work/said" || fail "an older mapping: $(cat "$work/said")"
# On overlayfs the kernel gives a lease although the file is mapped.
if overlay; then
	file=$work/overlay/past.map
	fresh
	run "$past" mapping "$file" >"$work/said" 2>"$work/says" || fail "overlayfs, an older mapping: $(cat "$work/says")"
	grep -q '^refused$' "$work/said" || fail "overlayfs, an older mapping: $(cat "$work/said")"
	fresh
	code=0
	run "$past" after mmap-read "$file" "$work/deep.so" >"$work/said" 2>"$work/says" || code=$?
	[ "$code" = 6 ] || fail "overlayfs, a later mapping: ended with $code: $(cat "$work/said" "$work/says")"
	fresh
	python3 -c 'import mmap, os, sys, time
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 4096)
os.close(f)
for n in os.listdir("/proc/self/fd"):
    if os.path.realpath("/proc/self/fd/" + n) == sys.argv[1]:
        os.close(int(n))
print("mapped", flush=True)
time.sleep(60)' "$file" >"$work/said" &
	pid=$!
	says mapped
	opens() { run python3 -c 'import os, sys; os.open(sys.argv[1], os.O_RDWR)' "$file" 2>"$work/says"; }
	if opens; then fail "overlayfs: a file that another process has mapped is opened"; fi
	grep -q 'is open or mapped by what goes past' "$work/says" || fail "overlayfs: not told: $(cat "$work/says")"
	kill $pid
	wait $pid || true
	opens || fail "overlayfs: $(cat "$work/says")"
	file=$work/past.map
else
	skip_part "older mappings on overlayfs" "no overlayfs"
fi
say "$ways ways past it: passed"

# Concurrent programs: a reader sees everything and the program continues; a writer ends it.
# The kernel revokes a lease after 45 s.
reads() {
	local began=$SECONDS
	stored_there || fail "a reader beside the program does not see what was stored"
	[ $((SECONDS - began)) -lt 15 ] || fail "a reader beside the program waits for $((SECONDS - began)) s"
}
beside reader reads
[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "a reader ends the program: $code $(cat "$work/says")"
beside child reads
[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "a reader beside a child: $code $(cat "$work/says")"
# The library has its lease again a tenth of a second after the last reader has closed the file.
has_lease() {
	local at
	at=$(place)
	for _ in $(seq 1000); do
		! grep -Eq "LEASE +ACTIVE +WRITE +[0-9]+ $at 0 EOF" /proc/locks || return 0
		sleep 0.02
	done
	fail "the library has no lease of $file: $(cat /proc/locks)"
}
reads_twice() { # and the program gets more room for the file before it takes its lease again
	exec 8<"$file"
	sleep 0.2
	printf . >&9
	sleep 0.2
	exec 8<&-
	says grown
	has_lease
	reads
}
beside grows reads_twice
[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "a reader after the file has grown: $code $(cat "$work/says")"
# The locks stay while the file gets more room, so a reader that waits for a lock does not
# get it.
locks() {
	local locker
	rm -f "$work/taken"
	exec 8<"$file"
	sleep 0.2
	{ flock -w 2 8 && touch "$work/taken"; } &
	locker=$!
	sleep 0.2
	printf . >&9
	says grown
	wait "$locker" || true
	[ ! -e "$work/taken" ] || fail "a file is not locked while it gets more room"
	exec 8<&-
}
beside grows locks
[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "a reader that waits for a lock: $code $(cat "$work/says")"
writes() { printf 'other' >>"$file"; }
beside reader writes
[ "$code" = 6 ] && stored_there || fail "a writer beside the program: $code $(cat "$work/says")"
grep -q 'past the library' "$work/says" || fail "a writer beside the program is not told"
tail -c 5 "$file" | grep -q other || fail "the writer's bytes are lost"
# A program is stopped while others come, so that it finds them all at once.
# An open to write that is refused (touch), and a reader: the program continues.
touches() {
	local head
	kill -STOP "$pid"
	touch "$file"
	head -c 5 "$file" >"$work/head" &
	head=$!
	waits_for READ
	kill -CONT "$pid"
	wait "$head"
	has_lease
}
beside reader touches
[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "touch and a reader end the program: $code $(cat "$work/says")"
# A writer that comes behind a reader during the write-back is not let in as a reader.
if disk_to_freeze; then
	file=$work/disk/past.map
	beside reader behind
	is_seen_behind
	file=$work/past.map
else
	skip_part "a writer behind a reader" "no loop device"
fi
# A writer comes while a reader has the file, and the library sees it when it has its lease again.
# A change that the library makes after the writer's would count as the last one, so its changes for
# the reader have to be over.
unseen() {
	exec 8<"$file"
	for _ in $(seq 500); do
		! python3 -c 'import os, sys; sys.exit("user.forebay" not in os.listxattr(sys.argv[1]))' "$file" || { sleep 0.02; continue; }
		break
	done
	sync "$file"
	sleep 0.3
	printf WRITER | dd of="$file" bs=1 seek=30000 conv=notrunc,fsync status=none
	exec 8<&-
	timeout 20 tail --pid="$pid" -f /dev/null || fail "a writer beside a reader is not noticed"
}
beside reader unseen
[ "$code" = 6 ] && grep -q 'past the library before' "$work/says" || fail "a writer beside a reader: $code $(cat "$work/says")"
[ "$(dd if="$file" bs=1 skip=30000 count=6 status=none)" = WRITER ] || fail "what a writer beside a reader has written is lost"
"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || fail "not recovered: $(cat "$work/recovered")"
# The program does not answer in time.  The kernel lets the writer continue, and the program
# ends.
by_force() { # COMMAND...
	kill -STOP "$pid"
	lease_time_is 1
	"$@"
	lease_time_back
	kill -CONT "$pid"
	sleep 1
}
if lease_time_is 1 && lease_time_back; then
	beside reader by_force writes
	[ "$code" = 6 ] || fail "a writer by force: $code $(cat "$work/said" "$work/says")"
	grep -q 'past the library.*kept in the pool' "$work/says" || fail "a writer by force is not told: $(cat "$work/says")"
	[ "$(wc -l <"$work/says")" = 1 ] || fail "a writer by force is not told once: $(cat "$work/says")"
	if grep -q stored "$file"; then fail "the file is written after others have changed it"; fi
	"$FOREBAY" map recover "$pool" >"$work/recovered" 2>&1 && fail "a file that others have changed is recovered: $(cat "$work/recovered")"
	"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || fail "not recovered: $(cat "$work/recovered")"
	stored_there || fail "what was stored before a writer by force is lost: $(cat "$work/recovered")"
	tail -c 5 "$file" | grep -q other || fail "the bytes of a writer by force are lost"
	busies() { # HOW: runs a program that stores, syncs and writes, until it has done so
		fresh
		: >"$work/said"
		"$FOREBAY" map-run --pool "$pool" --files '*.map' --room 16M -- "$past" busy "$file" "$1" >"$work/said" 2>"$work/says" &
		pid=$!
		says stored
	}
	# A writer by force meets syncs and writes.  No recovery overwrites its data unless told to.
	for ((try = 0; try < 8; try++)); do
		how=stays
		[ $((try % 2)) = 0 ] || how=grows
		busies $how
		sleep "0.$((RANDOM % 900 + 100))"
		kill -STOP "$pid"
		lease_time_is 1
		printf other | dd of="$file" bs=1 seek=20580 conv=notrunc,fsync status=none
		lease_time_back
		kill -CONT "$pid"
		timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
		code=0
		wait "$pid" || code=$?
		[ "$code" = 6 ] || [ "$code" = 1 ] || fail "a writer by force beside syncs: $code $(cat "$work/says")"
		"$FOREBAY" map recover "$pool" >"$work/recovered" 2>&1 || true
		[ "$(dd if="$file" bs=1 skip=20580 count=5 status=none)" = other ] || fail "$how: what a writer by force has written is written over: $(cat "$work/says" "$work/recovered")"
		"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || fail "not recovered: $(cat "$work/recovered")"
	done
	# The program is killed before it continues.
	for how in stays grows; do
		lease_time_is 2
		busies $how
		kill -STOP "$pid"
		printf other | dd of="$file" bs=1 seek=20580 conv=notrunc,fsync status=none
		lease_time_back
		kill -KILL "$pid"
		wait "$pid" 2>/dev/null || true
		"$FOREBAY" map recover "$pool" >"$work/recovered" 2>&1 && fail "$how: after a writer by force and a kill nobody is asked: $(cat "$work/recovered")"
		[ "$(dd if="$file" bs=1 skip=20580 count=5 status=none)" = other ] || fail "$how: after a kill what a writer by force has written is written over: $(cat "$work/recovered")"
		"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || fail "not recovered: $(cat "$work/recovered")"
	done
	# Another program has opened the file by force and has not written to it yet.  A recovery
	# leaves the file alone unless told to.
	opens() { exec 7>>"$file"; }
	beside reader by_force opens
	[ "$code" = 6 ] || fail "an open by force: $code $(cat "$work/said" "$work/says")"
	if "$FOREBAY" map recover "$pool" >"$work/recovered" 2>&1 || grep -q stored "$file"; then
		fail "a file that others have open by force is written to: $(cat "$work/recovered")"
	fi
	grep -q 'left it to others' "$work/recovered" || fail "it is not told why: $(cat "$work/recovered")"
	exec 7>&-
	"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 && stored_there || fail "an open by force: $(cat "$work/recovered")"
else
	skip_part "programs that open by force" "$lease_time cannot be written"
fi
say "programs beside it: passed"

# A program changes its user.  It ends before that if the new user could not keep the file.
for how in setuid setreuid setresuid seteuid in-steps handler other-user; do
	for owner in root nobody; do
		fresh
		chown $owner "$file"
		rm -f "$work/in"
		mkfifo "$work/in"
		: >"$work/said"
		run "$past" becomes $how "$file" <"$work/in" >"$work/said" 2>"$work/says" &
		pid=$!
		exec 9>"$work/in"
		code=0
		if [ $owner = root ]; then
			wait "$pid" || code=$?
			[ "$code" = 6 ] && [ ! -s "$work/said" ] || fail "$how, a file of $owner: $code $(cat "$work/said" "$work/says")"
			grep -q 'changes its user' "$work/says" || fail "$how, a file of $owner: not told: $(cat "$work/says")"
			grep -aq stored "$file" || fail "$how: what was stored before is not in the file"
		else
			says stored
			# An open that does not wait is refused, and the program continues.
			if dd if=/dev/zero of="$file" oflag=nonblock conv=notrunc count=1 status=none 2>/dev/null; then
				fail "$how, a file of $owner: it is opened to write next to the program"
			fi
			exec 9>&-
			wait "$pid" || code=$?
			[ "$code" = 0 ] && grep -q '^done$' "$work/said" || fail "$how, a file of $owner: $code $(cat "$work/said" "$work/says")"
			stored_there || fail "$how, a file of $owner: what was written is lost"
		fi
		exec 9>&-
	done
done
# The program has three users, each of which could keep one of the files.
second=$work/second.map
fresh
rm -f "$second" && cp "$file" "$second"
chown nobody "$file"
chown 1 "$second"
code=0
run "$past" between "$file" "$second" >"$work/said" 2>"$work/says" || code=$?
[ "$code" = 6 ] && [ ! -s "$work/said" ] || fail "three users: $code $(cat "$work/said" "$work/says")"
grep -q 'second.map: .*changes its user' "$work/says" || fail "three users: not told: $(cat "$work/says")"
stored_there || fail "three users: what was stored is lost"
# The program ends as well if the lease cannot be tried.
fresh
code=0
run "$past" alone "$file" >"$work/said" 2>"$work/says" || code=$?
[ "$code" = 6 ] && [ ! -s "$work/said" ] || fail "a change that cannot be tried: $code $(cat "$work/said" "$work/says")"
grep -q 'changes its user.*cannot be tried' "$work/says" || fail "a change that cannot be tried: not told: $(cat "$work/says")"
stored_there || fail "a change that cannot be tried: what was stored is lost"
"$FOREBAY" map list "$pool" | grep -q 'nothing to recover' || fail "the pool has pages: $("$FOREBAY" map list "$pool")"
say "programs that change their user: passed"

# Below another root there is no /proc, and names mean other files.
mkdir "$work/root"
fresh
ln "$file" "$work/root/same.map"
"$past" chroot "$file" "$work/root" || fail "chroot of a plain file"
fresh
ln -f "$file" "$work/root/same.map"
run "$past" chroot "$file" "$work/root" 2>"$work/says" || fail "chroot: $(cat "$work/says")"
[ "$(dd if="$file" bs=1 skip=8192 count=5 status=none)" = again ] || fail "chroot: what was written there is lost"
grep -q 'other.map is refused' "$work/says" || fail "chroot: not told: $(cat "$work/says")"
say "another root: passed"
