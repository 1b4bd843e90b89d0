#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a clock that is set back is nobody's change.  Files that were synced before it have later
# times than the last entry of the log.  They are replayed, with all that was synced after it.  A
# tree may have another clock than the server, as on NFS: what the mount changed is no change after
# the crash, and what comes then is one.
# Method: a server that is an hour ahead at first, by a library that answers for its clock.  Its
# clock is set back, or both clocks differ.  Then the server is killed, and the next one replays.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need gcc

cat >"$work/clock.c" <<'C'
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, ts);
	FILE *file;
	long seconds;

	if (!rc && clock == CLOCK_REALTIME && (file = fopen(getenv("CLOCK"), "re"))) {
		if (fscanf(file, "%ld", &seconds) == 1)
			ts->tv_sec += seconds;
		fclose(file);
	}
	return rc;
}
C
compile clock.so -shared -fPIC "$work/clock.c"
real=$FOREBAY
FOREBAY=$work/forebay
printf '#!/bin/sh\nCLOCK=%s LD_PRELOAD=%s exec %s "$@"\n' "$work/clock" "$work/clock.so" "$real" >"$FOREBAY"
chmod +x "$FOREBAY"

clock() { # SECONDS: sets how far the server's clock is ahead
	echo "$1" >"$work/clock.new" && mv "$work/clock.new" "$work/clock"
}
synced() { # FILE
	echo "$1" >"$tree/$1" && sync "$tree/$1"
}

make_disk ext4 64M
tree=$work/disk/tree
mkdir "$tree"
rounds=0
# Each line has how far the server's clock is ahead of the file system's for the first file,
# for the second file, and for the replay.
while read -r first second replay; do
	rounds=$((rounds + 1))
	clock "$first"
	start_mount "$tree" --sync-interval 600s
	synced "first$rounds"
	clock "$second"
	synced "second$rounds"
	kill_mount
	clock "$replay"
	start_mount "$tree"
	for file in "first$rounds" "second$rounds"; do
		[ "$(cat "$tree/$file")" = "$file" ] || fail "$first, $second, $replay s ahead: $file is not what was synced"
	done
	[ ! -e "$tree/.forebay-found" ] || fail "$first, $second, $replay s ahead: in dispute: $(ls "$tree/.forebay-found")"
	stop_mount
	[ ! -e "$tree/.forebay-found" ] || fail "$first, $second, $replay s ahead: in dispute: $(ls "$tree/.forebay-found")"
done <<'ROUNDS'
0 -3600 -3600
0 -3600 0
-3600 -7200 0
0 3600 0
-86400 0 -86400
ROUNDS
say "$rounds clocks that were set: all that was synced is there"

# A program writes once more and does not sync, or another program writes after the crash.
for ahead in -3600 3600; do
	for other in no yes; do
		clock "$ahead"
		start_mount "$tree" --sync-interval 600s
		synced file
		echo unsynced >>"$tree/file"
		kill_mount
		if [ "$other" = yes ]; then
			sleep 7
			echo later >"$tree/file"
		fi
		"$FOREBAY" replay "$pool" "$tree" >>"$work/replay.log" 2>&1 || [ $? = 11 ] || fail "replay: $(tail -n 3 "$work/replay.log")"
		case $other in
		no) [ ! -e "$tree/.forebay-found" ] || fail "$ahead s ahead: the mount's own write is in dispute" ;;
		yes) [ "$(cat "$tree/file")" = later ] || fail "$ahead s ahead: a write after the crash was overwritten" ;;
		esac
		rm -rf "$tree/.forebay-found" "$tree/file"
	done
done
say "a tree with another clock: only what came after the crash is in dispute"
