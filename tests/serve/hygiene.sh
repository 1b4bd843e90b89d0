#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a test that fails, or is stopped, leaves no process, mount, loop device or file.  No test
# takes the python3 that comes first in the PATH. A test waits for a loop device that others have,
# and says who has them.  The mount namespace of one test holds no mount of another.
# Method: a planted test starts a server, a process that has left its session, a shell in the
# background, mounts, a loop device and a tree mounted by Forebay.  Then it fails or is stopped.  A
# python3 that can do nothing comes first in the PATH of one that uses it, and so does a losetup
# that finds no free device until it was asked some times.  A copy of another test's mount is looked
# for in a namespace by tests/apart, and in a plain one.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need setsid

cat >"$work/planted.sh" <<'S'
. "$1/tests/serve/lib.sh"
told=$2 how=$3 with=$4
make_pool 32M data=8M
start_server
setsid --fork sleep 3600
(while :; do sleep 3600; done) &
(sleep 3600 & sleep 3600) &
if [[ $with == *mounts* ]]; then
	mkdir "$work/memory" "$work/memory/inner"
	mount -t tmpfs none "$work/memory"
	mkdir "$work/memory/inner"
	mount -t tmpfs none "$work/memory/inner"
	exec 9>"$work/memory/inner/open" # it is busy
fi
if [[ $with == *loop* ]]; then
	truncate -s 8M "$work/loop.image"
	loop_device "$work/loop.image" >"$told.loop"
fi
if [[ $with == *fuse* ]]; then
	mkdir "$work/tree"
	"$FOREBAY" create "$work/logs" --size 64M >/dev/null
	"$FOREBAY" mount "$work/logs" "$work/tree" >/dev/null
fi
echo "$work $shm" >"$told"
[ "$how" != exit ] || exit 1
[ "$how" != fails ] || false
sleep 3600
S

with=''
if [ "$(id -u)" = 0 ]; then
	mkdir "$work/probe"
	! mount -t tmpfs none "$work/probe" 2>/dev/null || with+=' mounts'
	! loops_work || with+=' loop'
	[[ $with != *mounts* || ! -e /dev/fuse ]] || with+=' fuse'
fi
for kind in mounts loop fuse; do
	[[ $with == *$kind* ]] || skip_part "what is left of $kind" "not root, or there are none here"
done
for how in exit fails stopped; do
	told=$work/told.$how
	# The step is run as scripts/check runs it; a signal goes to its process group.
	timeout -k 30 600 bash "$work/planted.sh" "$root" "$told" "$how" "$with" >"$work/says.$how" 2>&1 &
	planted=$!
	for ((tries = 0; tries < 1200; tries++)); do
		[ ! -s "$told" ] || break
		kill -0 $planted 2>/dev/null || fail "$how: the planted test has not begun: $(cat "$work/says.$how")"
		sleep 0.05
	done
	[ "$how" != stopped ] || kill -TERM $planted
	got=0
	wait $planted || got=$?
	[ $got != 0 ] || fail "$how: the planted test passed"
	read -r its_work its_shm <"$told"
	left=$(grep -lsz "^FOREBAY_RUNTIME_DIR=$its_work/" /proc/[0-9]*/environ || true)
	[ -z "$left" ] || fail "$how: processes are left: $left"
	grep -F -e " $its_work/" -e " $its_shm/" /proc/self/mountinfo && fail "$how: mounts are left"
	[ ! -e "$its_work" ] && [ ! -e "$its_shm" ] || fail "$how: files are left"
	[ ! -s "$told.loop" ] || ! losetup "$(cat "$told.loop")" 2>/dev/null | grep -qF "$its_work" || fail "$how: a loop device is left"
done
say "a test that fails or is stopped leaves nothing (a server, programs in the background$with)"

if [ -x /usr/bin/python3 ]; then
	mkdir "$work/venv"
	printf '#!/bin/sh\necho "this is the python3 of a venv" >&2\nexit 1\n' >"$work/venv/python3"
	chmod +x "$work/venv/python3"
	! PATH=$work/venv:$PATH python3 -c '' 2>/dev/null || fail "the planted python3 works: this test shows nothing"
	# shellcheck disable=SC2016 # for the shell inside
	PATH=$work/venv:$PATH bash -c '. "$1" && python3 -c "import ctypes, sqlite3"' python "$root/tests/serve/lib.sh" >"$work/says" 2>&1 ||
		fail "a test takes the python3 that comes first in the PATH: $(cat "$work/says")"
	say "a test takes Debian's python3"
fi

mkdir "$work/few"
printf '#!/bin/sh\n' >"$work/few/sleep"
cat >"$work/few/losetup" <<'S'
#!/bin/sh
case "$*" in
--list*) [ ! -s "$FEW/held" ] || cat "$FEW/held" ;;
--find) cat "$FEW/free" ;;
*)
	echo >>"$FEW/asked"
	[ "$(wc -l <"$FEW/asked")" -lt "$(cat "$FEW/granted")" ] || { echo /dev/its-own && exit; }
	echo "losetup: cannot find an unused loop device" >&2
	exit 1
	;;
esac
S
chmod +x "$work/few/sleep" "$work/few/losetup"
export FEW=$work/few
# ask GRANTED HELD FREE: asks for a loop device.  It is granted at the GRANTED-th attempt, while
# others hold HELD and FREE is shown as free.  Sets got and asked.
ask() {
	rm -f "$FEW/asked"
	echo "$1" >"$FEW/granted"
	echo "$3" >"$FEW/free"
	printf %s "$2" >"$FEW/held"
	got=$(PATH=$FEW:$PATH loop_device a-file 2>/dev/null) || got=none
	asked=$(wc -l <"$FEW/asked")
}
loop_tries=40
ask 30 '/dev/loop0 /of-another' /dev/loop8-is-not-there
[ "$got" = /dev/its-own ] || fail "a test does not wait for a loop device that others have: $got"
ask 10 '' /dev/loop8-is-not-there
[ "$got" = /dev/its-own ] || fail "a test does not try again where another one took the device: $got"
ask 9999 '/dev/loop0 /of-another' /dev/loop8-is-not-there
[ "$got" = none ] && [ "$asked" = "$loop_tries" ] || fail "asked $asked times, and got $got"
grep -q 'no loop device for a-file (losetup: cannot.*/dev/loop0 /of-another' "$work/no-loop" || fail "it does not say who has them: $(cat "$work/no-loop")"
ask 9999 '/dev/loop0 /of-another' "$(find /dev -maxdepth 1 -type b -print -quit)"
[ -z "$(cat "$FEW/free")" ] || [ "$asked" = 20 ] || fail "it waits for others while a device is free: asked $asked times"
ask 9999 '' /dev/loop8-is-not-there
[ "$asked" = 20 ] || fail "it waits where nobody has a loop device: asked $asked times"
say "a test waits for a loop device that others have, and says who has them"

[[ $with == *mounts* ]] && unshare --mount true 2>/dev/null || { skip_part "a namespace of a test" "no mount namespace can be made"; exit; }
other=$(mktemp -d "${TMPDIR:-/tmp}/forebay-other.XXXXXX")
at_end "umount -l '$other' 2>/dev/null; rmdir '$other'"
mount -t tmpfs none "$other"
copies() { "$@" cat /proc/self/mountinfo | grep -cF -e " $other " -e " $work/probe " || true; }
[ "$(copies unshare --mount)" = 2 ] || fail "a plain namespace has no copies: this test shows nothing"
[ "$(copies "$root/tests/apart" "$work")" = 1 ] || fail "a namespace of tests/apart has a mount of another test, or lacks its own"
say "a namespace of a test holds no mount of another test"
