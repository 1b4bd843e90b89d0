#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a volume on an RBD image loses nothing that was acknowledged.  That holds when an OSD is
# killed, when all OSDs stand still, and when Forebay and all OSDs are killed together.  A lock that
# another client takes stops destage and keeps the data.  A resized image is reported.  An image
# that cannot be an origin is refused by name, soon.  The image bears the mark for as long as it
# lacks acknowledged data, and other hosts see the mark.  A volume on a file in the same pool goes
# on.
# Method: a cluster of this host (cluster), nbdload.c on the volume, fio on the second
# volume, whose rate in each phase is printed.  In the end the pool is drained, and `rbd
# export` alone has what was acknowledged.
#	origin.sh [SECONDS]	that all OSDs stand still (30)
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
for tool in ceph-mon ceph-osd rbd; do
	command -v $tool >/dev/null || skip "$tool is not installed (Debian: apt install --no-install-recommends ceph-mon ceph-osd ceph-common librbd1)"
done
need gcc fio nbdinfo nbdcopy python3

still=${1:-30}
bytes=$((16 << 20))
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/nbdload" "$root/tests/serve/nbdload.c"
ceph=$shm/ceph
export CEPH_CONF=$ceph/ceph.conf
loads=()
at_end '"$root/tests/ceph/cluster" down "$ceph"'
at_end 'kill -KILL "${loads[@]}" 2>/dev/null'
"$root/tests/ceph/cluster" up "$ceph" 3

rbd() { timeout 60 rbd "$@"; }
osds() { local n; for n in 0 1 2; do cat "$ceph/osd.$n.pid"; done; }
signal_osds() { kill "$1" $(osds); }
image() { rbd create --size 16M --image-feature exclusive-lock "rbd/$1"; }

fresh() {
	rm -f "$pool" "$work"/*.load
	"$FOREBAY" create "$pool" --size 24M --chunk-size 256K >/dev/null
	truncate -s 64M "$work/near.img"
	"$FOREBAY" volume add "$pool" near "$work/near.img" >/dev/null
	image "$1"
	"$FOREBAY" volume add "$pool" "$1" "rbd:rbd/$1" >/dev/null
}
serve() { start_server --low-watermark 20 --high-watermark 40 "$@"; }
load() { # IMAGE SECONDS
	"$work/nbdload" load "$work/run/nbd" "$1" "$work/$1.load" "$2" $((RANDOM + 1)) >"$work/$1.out" 2>&1 &
	loads=($!)
}
load_ends() {
	wait "${loads[0]}" || { cat "$work"/*.out >&2; fail "a request failed, did not end, or read something else"; }
	loads=()
}
verify() { # IMAGE
	"$work/nbdload" verify "$work/run/nbd" "$1" "$work/$1.load" >"$work/$1.out" 2>&1 ||
		{ cat "$work/$1.out" >&2; fail "$1: acknowledged writes are lost"; }
	say "$1: $(tail -n 1 "$work/$1.out")"
}
rate() {
	timeout $(($1 + 60)) fio --aux-path="$work" --name=near --ioengine=nbd --uri="$(uri near)" --rw=randwrite --bs=4k --size=8m \
		--time_based --runtime="$1" --iodepth=1 --output-format=terse --terse-version=3 |
		awk -F';' '{ print $49 }' | grep . || fail "the volume beside it does not go on"
}
status_says() {
	local tries
	for ((tries = 0; tries < 200; tries++)); do
		! "$FOREBAY" status "$pool" 2>&1 | grep -q "$1" || return 0
		sleep 0.1
	done
	fail "status does not say \"$1\": $("$FOREBAY" status "$pool")"
}

# refused SECONDS TEXT PLACE
refused() {
	local began=$SECONDS
	! "$FOREBAY" volume add "$pool" wrong "$3" >"$work/refused" 2>&1 || fail "$3 is taken"
	grep -q "$2" "$work/refused" || fail "$3: not \"$2\" but $(cat "$work/refused")"
	[ $((SECONDS - began)) -le "$1" ] || fail "$3 is refused after $((SECONDS - began)) s"
}

# stands for a command on another host
elsewhere() { FOREBAY_STATE_DIR=$work/elsewhere timeout 60 "$FOREBAY" "$@"; }
# told CODE TEXT: what an image's mark says
told() {
	local code=0
	elsewhere origin status rbd:rbd/vm >"$work/told" 2>&1 || code=$?
	[ $code = "$1" ] || fail "origin status ends with $code, not $1: $(cat "$work/told")"
	grep -q "$2" "$work/told" || fail "origin status: not \"$2\" but $(cat "$work/told")"
}
taken_by_another() {
	local code=0
	rm -f "$shm/other"
	elsewhere create "$shm/other" --size 24M --chunk-size 256K >/dev/null
	elsewhere volume add "$shm/other" vm rbd:rbd/vm >"$work/refused" 2>&1 || code=$?
	[ $code = 6 ] || fail "another pool may have the image: $code: $(cat "$work/refused")"
}

fresh vm
told 0 "complete"
rbd create --size 16M --image-feature layering rbd/unlocked
refused 10 "no such image" rbd:rbd/missing
refused 10 "no such pool" rbd:missing/vm
refused 10 "rbd feature enable" rbd:rbd/unlocked
refused 10 "without a configuration" "rbd:rbd/vm@$work/missing.conf"
sed 's/^mon host.*/mon host = [v2:127.0.0.1:1]/' "$CEPH_CONF" >"$work/away.conf"
refused 40 "not to be reached" "rbd:rbd/vm@$work/away.conf"
sed 's/^keyring.*/keyring = none/' "$CEPH_CONF" >"$work/keyless.conf"
refused 40 "see its key\|without a key" "rbd:rbd/vm@$work/keyless.conf"
ceph-authtool --create-keyring "$work/wrong.keyring" --gen-key --name client.admin >/dev/null
sed "s|^keyring.*|keyring = $work/wrong.keyring|" "$CEPH_CONF" >"$work/wrong.conf"
refused 40 "not allowed to this client" "rbd:rbd/vm@$work/wrong.conf"
timeout 60 ceph auth get-or-create client.poor mon 'allow r' -o "$work/poor.keyring"
sed "s|^keyring.*|keyring = $work/poor.keyring|" "$CEPH_CONF" >"$work/poor.conf"
CEPH_ARGS='--id poor' refused 40 "not allowed to this client" "rbd:rbd/vm@$work/poor.conf"
say "what cannot be an origin is refused"

serve
! "$FOREBAY" volume add "$pool" twice rbd:rbd/vm >"$work/refused" 2>&1 || fail "an image is taken twice"
load vm $((still + 15))
sleep 1
before=$(rate 3)
kill -KILL "$(cat "$ceph/osd.1.pid")"
one=$(rate 4)
"$root/tests/ceph/cluster" osds "$ceph"
signal_osds -STOP
halted=$(rate "$still")
status_says "it does not answer"
signal_osds -CONT
say "an OSD killed and started: the volume beside it $one writes/s; all stand still for $still s: $halted; before $before"
load_ends
verify vm

load vm 30
sleep 3
kill_server
signal_osds -KILL
wait "${loads[0]}" 2>/dev/null || true
loads=()
"$root/tests/ceph/cluster" osds "$ceph"
told 14 "may lack writes"
rbd image-meta get rbd/vm forebay_mark | grep -q '^forebay-mark ' || fail "no mark in its metadata"
taken_by_another
grep -q "accept-loss" "$work/refused" || fail "no way out: $(cat "$work/refused")"
serve
verify vm
say "Forebay and all OSDs killed together: nothing lost"

# A client that breaks the lock shuts its owner out.
steal() {
	local locker id
	read -r locker id < <(rbd lock list rbd/vm --format json |
		python3 -c 'import json, sys; lock = json.load(sys.stdin)[0]; print(lock["locker"], lock["id"])')
	rbd lock remove rbd/vm "$id" "$locker"
}
load vm 4
sleep 2
steal
status_says "another client has taken its lock"
wait "${loads[0]}" || true # a read that the pool does not have may fail
loads=()
rate 2 >/dev/null
kill_server
serve
verify vm
say "the lock stolen: destage stops, status says so, nothing lost"
steal
status_says "another client has taken its lock"
kill_server
serve
verify vm
say "stolen from an image that nobody writes to: status says so"

# Another client asks who has the lock to resize it.
rbd resize --size 24M --no-progress rbd/vm
status_says "has 25165824 bytes"
rbd resize --size 16M --allow-shrink --no-progress rbd/vm
! rbd rm --no-progress rbd/vm >"$work/removed" 2>&1 || fail "Ceph removes an image that is attached"
stop_server
"$FOREBAY" drain "$pool" >"$work/drain.out" 2>&1 || { cat "$work/drain.out" >&2; fail "drain"; }
told 0 "complete"
rbd export --no-progress rbd/vm "$work/vm.img"
"$work/nbdload" verify-file "$work/vm.img" "$work/vm.load" >"$work/vm.out" 2>&1 ||
	{ cat "$work/vm.out" >&2; fail "the image alone lacks acknowledged writes"; }
say "drained: rbd export has everything"

rbd image-meta set rbd/vm forebay_mark nonsense >/dev/null
told 5 "cannot be read"
taken_by_another
elsewhere origin accept-loss rbd:rbd/vm >/dev/null
told 0 "complete"
say "the image bears its mark itself, and another pool is refused"

rbd resize --size 8M --allow-shrink --no-progress rbd/vm
start_server # for the second volume
status_says "detached"
grep -q "vm.*8388608" "$work/server.log" || fail "an image that has shrunk is not told of: $(tail -n 3 "$work/server.log")"
stop_server
say "an image that has shrunk is refused"

rbd rm --no-progress rbd/vm
before=$(wc -l <"$work/server.log")
start_server # for the second volume
status_says "detached"
tail -n +$((before + 1)) "$work/server.log" | grep -q "rbd:rbd/vm.*there is no such\|rbd:rbd/vm.*No such\|rbd:rbd/vm.*not there" ||
	fail "an image that was removed is not told of: $(tail -n 3 "$work/server.log")"
stop_server
say "an image that is attached is not removed, and one that was removed is told by name"

# A clone has its parent's data until it is written.
head -c 1M /dev/urandom >"$work/parent"
rbd import --no-progress --image-feature layering "$work/parent" rbd/parent
rbd snap create --no-progress rbd/parent@then
rbd snap protect rbd/parent@then
refused 10 "without a configuration" rbd:rbd/parent@then
rbd clone --image-feature layering,exclusive-lock rbd/parent@then rbd/clone
rm -f "$pool"
"$FOREBAY" create "$pool" --size 24M --chunk-size 256K >/dev/null
"$FOREBAY" volume add "$pool" clone rbd:rbd/clone >/dev/null
start_server
timeout 60 fio --aux-path="$work" --name=clone --ioengine=nbd --uri="$(uri clone)" --rw=write --bs=4k --size=64k --offset=256k \
	--buffer_pattern=0x5a >/dev/null
nbdcopy "$(uri clone)" "$work/clone.served"
stop_server
"$FOREBAY" drain "$pool" >/dev/null
rbd export --no-progress rbd/clone "$work/clone.img"
head -c 64K /dev/zero | tr '\0' 'Z' | dd of="$work/parent" bs=4k seek=64 conv=notrunc status=none
cmp "$work/parent" "$work/clone.served" || fail "a clone reads as something else through a volume"
cmp "$work/parent" "$work/clone.img" || fail "a clone alone lacks what was written"
say "a clone is an origin, a snapshot is none"
