#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: volumes on exports of NBD servers lose nothing that was acknowledged when these are killed,
# or stand still for ten seconds.  The servers have a cache of their own that forgets.  Everything
# ends, and a volume on a file in the same pool goes on.
# Method: one pool with a volume on nbdkit (its cache filter loses what was not flushed), one on
# qemu-nbd, one on a file. nbdload.c writes to the first two, fio to the third, whose rate in each
# phase is printed beside that before.  In the end the pool is drained, nbdkit is killed once more,
# and the files alone have what was acknowledged.
# fio writes to the first two and verifies.  It must also find a server that forgets what it was
# told to flush.  Where no nameserver answers, a host that is named is refused in bounded time.  A
# drain before a server that does not answer ends in time and says why.
#
#	far.sh [SECONDS [SIZE]]	that the servers stand still (10); of the pool (24M, which is
#				full; with room, as 1G, the volume beside them is to go on as before)
#	far.sh rates [ROUNDS]	only the rate of the volume beside them, in a pool of 1G, while
#				they are well, killed, and stand still, in turns (9); medians
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need gcc nbdkit qemu-nbd fio nbdinfo
fio --enghelp=nbd >/dev/null 2>&1 || skip "this fio has no nbd engine"

rounds=''
if [ "${1:-}" = rates ]; then
	rounds=${2:-9}
	set -- 10 1G
fi
still=${1:-10}
size=${2:-24M}
# A pool with room must give the servers something to do as well.
marks=(--low-watermark 20 --high-watermark 40)
[ "$size" = 24M ] || marks=(--low-watermark 1 --high-watermark 2)
bytes=$((16 << 20))
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o "$work/nbdload" "$root/tests/serve/nbdload.c"

declare -A far=() # the servers' processes
cache=writeback # nbdkit's; unsafe: its flushes do nothing
loads=()
at_end 'kill -KILL "${far[@]}" "${loads[@]}" 2>/dev/null'

# start_far NAME: it listens when this returns.
start_far() {
	local name=$1
	rm -f "$work/$name.far" "$work/$name.pid"
	case $name in
	kit) nbdkit -f -P "$work/kit.pid" -U "$work/kit.far" --filter=cache file "$work/kit.disk" cache=$cache 2>>"$work/kit.log" & ;;
	qemu) qemu-nbd -t -e 8 --pid-file "$work/qemu.pid" -f raw -k "$work/qemu.far" "$work/qemu.disk" 2>>"$work/qemu.log" & ;;
	esac
	far[$name]=$!
	listens "$name"
}

kill_far() {
	kill -KILL "${far[$1]}"
	wait "${far[$1]}" 2>/dev/null || true
}

fresh() {
	rm -f "$pool" "$work"/*.disk "$work"/*.load
	# The chunks are small, because a pool of few chunks keeps no space for one volume
	# while others fill it.
	"$FOREBAY" create "$pool" --size "$size" --chunk-size 256K >/dev/null
	truncate -s 64M "$work/near.img"
	"$FOREBAY" volume add "$pool" near "$work/near.img" >/dev/null
	local name
	for name in kit qemu; do
		truncate -s $bytes "$work/$name.disk"
		start_far $name
		"$FOREBAY" volume add "$pool" $name "nbd+unix:///?socket=$work/$name.far" >/dev/null
	done
	start_server "${marks[@]}"
}

# load SECONDS: on both, in the background; sets loads.
load() {
	loads=()
	local name
	for name in kit qemu; do
		"$work/nbdload" load "$work/run/nbd" $name "$work/$name.load" "$1" $((RANDOM + 1)) >"$work/$name.out" 2>&1 &
		loads+=($!)
	done
}

loads_end() {
	local pid
	for pid in "${loads[@]}"; do
		wait "$pid" || { cat "$work"/*.out >&2; fail "a request failed, did not end, or read something else"; }
	done
}

# rate SECONDS: writes a second to the volume on the file.
rate() {
	timeout $(($1 + 30)) fio --aux-path="$work" --name=near --ioengine=nbd --uri="$(uri near)" --rw=randwrite --bs=4k --size=8m \
		--time_based --runtime="$1" --iodepth=1 --output-format=terse --terse-version=3 |
		awk -F';' '{ print $49 }' | grep . || fail "the volume beside them does not go on"
}

# Runs as root in a mount namespace of its own, whose nameserver takes questions and answers
# none.
unanswered() {
	local asked said tries
	unshare --mount true 2>/dev/null || { skip_part "nameservers that do not answer" "no mount namespace can be made"; return; }
	python3 -c 'import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.83.83.83", 53))
print("ready", flush=True)
time.sleep(120)' >"$work/nameserver" &
	asked=$!
	for ((tries = 0; tries < 100; tries++)); do
		grep -q ready "$work/nameserver" && break
		sleep 0.05
	done
	grep -q ready "$work/nameserver" || fail "the nameserver does not start"
	printf 'nameserver 127.83.83.83\noptions timeout:30 attempts:5\n' >"$work/resolv.conf"
	"$FOREBAY" create "$work/names" --size 24M >/dev/null
	said=$("$root/tests/apart" "$work" bash -c 'mount --bind "$1/resolv.conf" /etc/resolv.conf &&
		exec timeout 25 "$2" volume add "$3" nobody nbd://nowhere.example/disk 2>&1' - "$work" "$FOREBAY" "$work/names") &&
		fail "a host without an address is an origin"
	kill "$asked"
	wait "$asked" 2>/dev/null || true
	[[ $said == *"no nameserver has answered"* ]] || fail "nameservers that do not answer: $said"
	say "nameservers that do not answer: refused by name"
}

# rates ROUNDS: each round has every state, and "well" twice, so that the two show the
# variation.
rates() {
	local round state
	load $((rounds * 20 + 30))
	sleep 3
	for ((round = 0; round < rounds; round++)); do
		for state in well killed well-again still; do
			case $state in
			killed) kill_far kit; kill_far qemu ;;
			still) kill -STOP "${far[@]}" ;;
			esac
			echo "$state $(rate 3)" >>"$work/rates"
			case $state in
			killed) start_far kit; start_far qemu; sleep 2.5 ;; # they are tried every two seconds
			still) kill -CONT "${far[@]}"; sleep 0.5 ;;
			esac
		done
	done
	python3 - "$work/rates" <<-'END'
		import statistics, sys
		rows = [line.split() for line in open(sys.argv[1])]
		rates = {}
		for state, rate in rows: rates.setdefault(state, []).append(float(rate))
		for state, of in rates.items():
		    each = [a / b for a, b in zip(of, rates["well"])]
		    print(f"far: {state}: {statistics.median(of):.0f} writes/s; to well, median of {len(of)} rounds: "
		          f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
	END
}
if [ -n "$rounds" ]; then
	fresh
	rates
	kill "${loads[@]}"
	exit
fi

# in_time SECONDS REGEX COMMAND...: must fail with such a text within this time.
in_time() {
	local limit=$1 text=$2 began=$SECONDS said
	shift 2
	said=$(timeout $((limit + 20)) "$@" 2>&1) && fail "$*: it succeeds"
	[ $((SECONDS - began)) -le "$limit" ] || fail "$*: after $((SECONDS - began)) s: $said"
	[[ $said =~ $text ]] || fail "$*: not \"$text\" but $said"
}

# The server takes a minute for a write.
slowly() {
	truncate -s 16M "$work/slow.disk"
	nbdkit -f -P "$work/slow.pid" -U "$work/slow.far" --filter=delay file "$work/slow.disk" wdelay=60 2>>"$work/slow.log" &
	far[slow]=$!
	listens slow
	rm -f "$pool"
	"$FOREBAY" create "$pool" --size 24M >/dev/null
	"$FOREBAY" volume add "$pool" slow "nbd+unix:///?socket=$work/slow.far" >/dev/null
	start_server --low-watermark 90 --high-watermark 95
	timeout 60 fio --name=slow --ioengine=nbd --uri="$(uri slow)" --rw=write --bs=4k --size=64k --aux-path="$work" >/dev/null
	stop_server
	# A write that is under way is waited for up to ten seconds more.
	in_time 25 "does not answer|ended while it was" "$FOREBAY" drain "$pool" --timeout 3s
	in_time 35 "it does not answer" "$FOREBAY" drain "$pool" --timeout 15s
	kill -STOP "${far[slow]}"
	in_time 15 "no answer in 3s" "$FOREBAY" drain "$pool" --timeout 3s
	kill_far slow
	unset "far[slow]"
	say "a drain before a server that does not answer: ends in time, says what it waits for"
}

# fio checks the data itself, in addition to nbdload.
verified() {
	local name
	for name in kit qemu; do
		timeout 120 fio --aux-path="$work" --name=$name --ioengine=nbd --uri="$(uri $name)" --rw=randwrite --bs=4k --size=8m \
			--iodepth=4 --verify=crc32c --verify_fatal=1 --do_verify=1 >"$work/fio.out" 2>&1 ||
			{ cat "$work/fio.out" >&2; fail "$name: fio reads something else than it wrote"; }
	done
	say "fio verifies what it wrote through nbdkit and qemu-nbd"
}

unanswered
slowly
fresh
verified
stop_server
"$FOREBAY" drain "$pool" >/dev/null
for name in kit qemu; do kill_far $name; done
fresh
load $((still + 12))
sleep 1
before=$(rate 3)
for name in kit qemu kit; do
	kill_far $name
	sleep 0.3
	start_far $name
	sleep 1
done
killed=$(rate 2)
say "servers killed and started again, three times: the volume beside them $killed writes/s, before $before"
kill -STOP "${far[@]}"
halted=$(rate "$still")
in_time 20 "does not answer" "$FOREBAY" drain "$pool" kit --timeout 7s
"$FOREBAY" status "$pool" | grep -q "it does not answer" || fail "status is silent about servers that stand still: $("$FOREBAY" status "$pool")"
kill -CONT "${far[@]}"
say "servers stand still for $still s: the volume beside them $halted writes/s; status says so"
loads_end
for name in kit qemu; do
	"$work/nbdload" verify "$work/run/nbd" $name "$work/$name.load" >"$work/$name.out" 2>&1 ||
		{ cat "$work/$name.out" >&2; fail "$name: acknowledged writes are lost"; }
	say "$name: $(tail -n 1 "$work/$name.out")"
done
# Drains, and then checks the exports alone: nbdkit ends and loses data that it has not
# flushed.
alone() {
	stop_server
	"$FOREBAY" drain "$pool" >"$work/drain.out" 2>&1 || { cat "$work/drain.out" >&2; fail "drain"; }
	local name
	for name in kit qemu; do
		kill_far $name
		"$work/nbdload" verify-file "$work/$name.disk" "$work/$name.load" >"$work/$name.out" 2>&1 || return 1
	done
}
alone || { cat "$work"/*.out >&2; fail "an export alone lacks acknowledged writes"; }
say "drained: the exports alone have everything"

cache=unsafe
fresh
load 2
loads_end
! alone || fail "a server that forgets what it was told to flush is not noticed: the test tests nothing"
say "a server whose flushes do nothing is noticed"
