#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program under `forebay map-run` may change its own open file from outside (its
# times by path, the name of its directory).  A recovery still writes back what the program
# has synced.
# Method: changes.c is killed while it does so in each way; the file has what the program
# reported.
. "$(dirname "$0")/../serve/lib.sh"
needs_userfaultfd=no
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
compile changes
make_map 48M 24M
for way in utimensat utimes lutimes utime rename; do
	mkdir "$work/$way"
	truncate -s 4096 "$work/$way/x.map"
	ends=program
	kill_one $way x.map "$work/changes" $way "$work/$way/x.map"
	there=$work/$way
	[ $way != rename ] || there=$work/rename.renamed
	found=$(od -An -t d8 -N 8 "$there/x.map" | tr -d ' ')
	[ "$found" -ge "$acknowledged" ] || fail "$way: $found is in the file, and $acknowledged was synced"
	say "$way: killed after $acknowledged"
done
