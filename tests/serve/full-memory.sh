#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a sparse pool in a file system in memory that is full is told as such and kills nobody.
# Even reading a hole needs a page there.
# Method: such a pool; each command that looks at one; then room is made, and all is as before.
# shellcheck disable=SC2016 # expanded at the end
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "mounting a file system that runs full needs root"

mkdir "$work/small"
mount -t tmpfs -o size=4M forebay-test "$work/small" || skip "cannot mount a tmpfs"
at_end 'umount -l "$work/small"'
make_pool 16M one=64M
cp --sparse=always "$pool" "$work/small/pool"
head -c 8M /dev/zero >"$work/small/filler" 2>/dev/null && fail "the file system does not run full"
for command in "status" "status --json" "check" "dump superblock" "dump chunks" "volume list" "drain"; do
	code=0
	# shellcheck disable=SC2086 # words on purpose
	message=$("$FOREBAY" ${command%% --*} "$work/small/pool" $(grep -o -- '--.*' <<<"$command") 2>&1) || code=$?
	[ "$code" = 8 ] && [[ $message == *"no space left"* ]] || fail "$command: code $code: $message"
done
say "full: each command says so"
mount -o remount,size=64M "$work/small"
"$FOREBAY" check "$work/small/pool" >/dev/null || fail "check with room again"
say "with room: sound"
