#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a clock that is set back is nobody's change.  Files that were synced before it have later
# times than the last entry of the log, and are replayed, with all that was synced after it.
# Method: a server that is an hour ahead at first, by a library that answers for its clock; its
# clock is set back, or both clocks differ; then the server is killed, and the next one replays.
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
# How far the server's clock is ahead of the file system's for the first file, for the
# second file, and for the replay.
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
