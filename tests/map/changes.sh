#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: what a program by `forebay map-run` does to its own file while it has that open (its times by
# path, another name of its directory) keeps no recovery from bringing home what it has synced.
# Method: changes.c is killed while it does so in each way; the file has what it has said.
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
