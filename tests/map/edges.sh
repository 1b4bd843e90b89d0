#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: simultaneous acts of several threads, signals and other programs change nothing of what a
# program sees under `forebay map-run`.  They end no program that can go on.
# Method: edges.c, each part with and without map-run.  Meanwhile there are readers, another
# map-run in another PID namespace and on an overlay, and a full file system.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../serve/lease-time.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile edges
make_map 160M 96M
lease_time_stays
edges=$work/edges file=$work/edge.map

run() { timeout -s KILL 60 "$FOREBAY" map-run --pool "$pool" --files '*.map' --room 4M -- "$@"; }
for what in $("$edges" list) ; do
	truncate -s 64K "$work/plain.dat"
	timeout -s KILL 60 "$edges" "$what" "$work/plain.dat" >/dev/null || fail "$what of a plain file"
	rm -f "$work"/*.map "$work"/*.plain
	truncate -s 64K "$file"
	run "$edges" "$what" "$file" >"$work/said" 2>"$work/says" || fail "$what: $? $(cat "$work/said" "$work/says")"
	say "$what: passed $(cat "$work/said")"
done

# begin_beside NAME ARGUMENTS...: runs it by map-run until it says "stored".  Its input is
# descriptor 9.
begin_beside() {
	# Clears the words of the program before.
	: >"$work/said"
	rm -f "$work/in"
	mkfifo "$work/in"
	timeout -s KILL 60 "$FOREBAY" map-run --pool "$pool" --files '*.map' --room 4M -- "$edges" "$@" \
		<"$work/in" >"$work/said" 2>"$work/says" &
	pid=$!
	exec 9>"$work/in"
	says stored
}
says() {
	for _ in $(seq 600); do grep -q "$1" "$work/said" && return; sleep 0.02; done
	fail "the program does not say '$1': $(cat "$work/said" "$work/says")"
}
ended() { # sets $code
	exec 9>&-
	code=0
	wait "$pid" || code=$?
}
fresh() { rm -f "$file" && truncate -s 64K "$file"; }

# Syncs run while others read, and while others close files.
fresh
begin_beside syncs "$file"
while kill -0 "$pid" 2>/dev/null; do head -c 100 "$file" >/dev/null; done
ended
[ "$code" = 0 ] && grep -q done "$work/said" || fail "syncs: $code $(cat "$work/says")"
say "syncs beside readers: passed"

# The file gets more room while there are a reader and a private mapping.
fresh
begin_beside room "$file"
exec 8<"$file"
sleep 0.3
printf . >&9
says grown
[ "$(dd if="$file" bs=1 skip=8192 count=6 status=none <&-)" = stored ] || fail "room: a reader does not see what was stored"
ended
exec 8<&-
[ "$code" = 0 ] && grep -q done "$work/said" || fail "room: $code $(cat "$work/says")"
[ "$(dd if="$file" bs=1M skip=100 count=1 status=none | head -c 5)" = again ] || fail "room: what was written last is lost"
say "more room beside a reader: passed"

# Another map-run has the file, with another pool, and /proc/locks does not show it the first
# one.
"$FOREBAY" create "$pool.2" --size 64M --maps 16M >/dev/null
"$FOREBAY" map add "$pool.2" db >/dev/null
second() { # FILE COMMAND...: is refused, and the first goes on
	local there=$1 got=0
	begin_beside holds "$there"
	"${@:2}" "$FOREBAY" map-run --pool "$pool.2" --files '*.map' --room 4M -- "$edges" holds "$there" \
		</dev/null >"$work/second" 2>"$work/second.says" || got=$?
	[ "$got" = 1 ] || fail "the second map-run (${*:2}): $got $(cat "$work/second" "$work/second.says")"
	grep -q 'is refused' "$work/second.says" || fail "the second is not told: $(cat "$work/second.says")"
	# Any open that does not wait is refused.
	if dd if=/dev/null of="$there" oflag=nonblock conv=notrunc status=none 2>/dev/null; then fail "an open beside the lease"; fi
	ended
	[ "$code" = 0 ] && grep -q done "$work/said" || fail "a second map-run (${*:2}) has ended the first: $code $(cat "$work/says")"
}
# The second program makes the file at the same moment as the first one.
rm -f "$file" "$work/go"
mkfifo "$work/go"
timeout -s KILL 60 "$edges" stops "$file" "$FOREBAY" map-run --pool "$pool.2" --files '*.map' --room 4M -- \
	"$edges" make "$file" <"$work/go" >"$work/second" 2>"$work/second.says" &
late=$!
exec 7>"$work/go"
for _ in $(seq 600); do grep -q stopped "$work/second" && break; sleep 0.02; done
grep -q stopped "$work/second" || fail "it does not come to make the file: $(cat "$work/second.says")"
truncate -s 64K "$file"
begin_beside holds "$file"
printf . >&7
exec 7>&-
got=0
wait $late || got=$?
[ "$got" = 1 ] && grep -q 'is refused' "$work/second.says" || fail "making what the first has made: $got $(cat "$work/second.says")"
ended
[ "$code" = 0 ] && grep -q done "$work/said" || fail "a second one that makes the file has ended the first: $code $(cat "$work/says")"
say "a file that two make: passed"
fresh
second "$file" env
if unshare --pid --fork --mount-proc true 2>/dev/null; then
	second "$file" "$root/tests/apart" "$work" --pid --fork --mount-proc
	say "a second map-run in another PID namespace: passed"
else
	skip_part "another PID namespace" "none can be made"
fi
mkdir "$work"/{lower,over} "$shm"/{upper,inner}
truncate -s 64K "$work/lower/edge.map"
if mount -t overlay -o "lowerdir=$work/lower,upperdir=$shm/upper,workdir=$shm/inner" overlay "$work/over" 2>/dev/null; then
	at_end "umount '$work/over'"
	second "$work/over/edge.map" env
	say "a second map-run on an overlay: passed"
else
	skip_part "an overlay" "none can be mounted"
fi

# A writer opens the file while the library checks who was refused.
for ms in 2 10 30 60; do
	fresh
	begin_beside writes "$file" "$work/seen"
	timeout -s KILL 60 "$edges" comes "$file" "$work/seen" $ms >"$work/came" || fail "a writer after one that was refused: $(cat "$work/says")"
	ended
	[ "$code" = 6 ] || fail "a writer after one that was refused: $code $(cat "$work/says")"
	# If the writer came in the only moment in which nothing keeps it out, the rest
	# stays in the pool.
	grep -q 'kept in the pool' "$work/says" || [ ! -s "$work/came" ] || fail "it does not see what was stored: $(cat "$work/came" "$work/says")"
	[ "$(dd if="$file" bs=1 skip=20580 count=5 status=none)" = other ] || fail "what it has written is overwritten: $(cat "$work/says")"
done
say "a writer after one that was refused: passed"

# The stores cannot be written to the file.  That is reported, and the stores are kept.
mkdir "$work/full"
if mount -t tmpfs -o size=4M tmpfs "$work/full" 2>/dev/null; then
	at_end "umount -l '$work/full'"
	truncate -s 8M "$work/full/edge.map"
	begin_beside fills "$work/full/edge.map"
	dd if=/dev/zero of="$work/full/rest" bs=4K status=none 2>/dev/null || true
	printf . >&9
	says more
	# A refused open ends no program, since nobody waits.
	if dd if=/dev/null of="$work/full/edge.map" oflag=nonblock conv=notrunc status=none 2>/dev/null; then fail "an open beside the lease"; fi
	# The same holds when the kernel has revoked the lease.
	if lease_time_is 1; then
		sleep 3
		lease_time_back
	else
		skip_part "a lease that the kernel takes" "$lease_time cannot be written"
	fi
	kill -0 "$pid" 2>/dev/null || fail "an open that is refused ends a program on a full file system: $(cat "$work/says")"
	(printf other >>"$work/full/edge.map") 2>/dev/null || true
	ended
	[ "$code" = 6 ] || fail "a full file system: $code $(cat "$work/says")"
	if grep -q 'is in the file' "$work/says"; then fail "it says what is not so: $(cat "$work/says")"; fi
	grep -q 'cannot be written to it.*map recover' "$work/says" || fail "a full file system: $(cat "$work/says")"
	rm "$work/full/rest"
	"$FOREBAY" map recover "$pool" --accept >"$work/recovered" 2>&1 || fail "not recovered: $(cat "$work/recovered")"
	[ "$(dd if="$work/full/edge.map" bs=1 skip=8192 count=6 status=none)" = stored ] || fail "what was synced is lost: $(cat "$work/recovered")"
	say "a full file system: passed"
else
	skip_part "a full file system" "no tmpfs can be mounted"
fi

# A program ends while a thread waits for a file that another program has open.
fresh
exec 8>"$work/other.map"
begin_beside leaves "$file" "$work/other.map"
printf . >&9
began=$SECONDS
ended
exec 8>&-
[ "$code" = 0 ] || fail "an end beside an open: $code $(cat "$work/says")"
[ $((SECONDS - began)) -lt 15 ] || fail "an end beside an open takes $((SECONDS - began)) s"
[ "$(dd if="$file" bs=1 skip=12288 count=4 status=none | tr -d '\0')" = last ] || fail "what was stored last is lost: $(cat "$work/says")"
say "an end beside an open: passed"
# Each close of a shared file takes longer here.
start_server
fresh
share=--shared
ROOM=4M mapped timeout -s KILL 60 "$edges" closes "$file" 2>"$work/says" || fail "shared, closes: $? $(cat "$work/says")"
stop_server
say "closes of a file that is shared: passed"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
