#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a tree is mounted whatever the bytes of its path are, by a new server and by one that runs.
# The printed command to unmount it can be pasted, and JSON has the whole path.  A path that is no
# mount is refused with its cause.
# Method: paths with a newline, a quote, and bytes that are no text; the printed command in a shell.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3

make_pool
plain=$work/plain
mkdir "$plain"
"$FOREBAY" mount "$pool" "$plain" --log first >"$work/out" 2>&1 || fail "mount: $(cat "$work/out")"
mounted=$plain
n=0
for name in "a b'c" $'a\nforged: b' $'\xff\'\\\xfe1' $'\x1b[2J\xc2\x9b'; do
	n=$((n + 1)) tree=$work/$name
	mkdir "$tree"
	at_end "umount -l $(printf %q "$tree") 2>/dev/null || true"
	# The server runs already, and is asked by JSON.
	"$FOREBAY" mount "$pool" "$tree" --log "log$n" >"$work/out" 2>"$work/err" || fail "mount of path $n: $(cat "$work/err")"
	! grep -q '^forged' "$work/out" || fail "path $n: a line of its own: $(cat "$work/out")"
	"$FOREBAY" status "$pool" >"$work/status"
	! grep -q '^forged' "$work/status" || fail "path $n: a line of its own in status: $(cat "$work/status")"
	echo kept >"$tree/file" && sync "$tree/file"
	"$FOREBAY" status "$pool" --json | python3 -c '
import json, os, sys
details = [s["details"] for s in json.load(sys.stdin)["services"] if s["kind"] == "mount"]
whole = lambda d: bytes.fromhex(d["tree_bytes"]) if "tree_bytes" in d else d["tree"].encode()
sys.exit(0 if os.fsencode(sys.argv[1]) in [whole(d) for d in details] else f"{details}")' "$tree" || fail "path $n: JSON has not the path"
	command=$(sed -n 's/^its end: forebay //p' "$work/out")
	[ -n "$command" ] || fail "path $n: no command: $(cat "$work/out")"
	(eval "$FOREBAY $command") >"$work/out" 2>&1 || fail "path $n: $command: $(cat "$work/out")"
	! grep -q '^forged' "$work/out" || fail "path $n: umount has a line of its own: $(cat "$work/out")"
	[ "$(cat "$tree/file")" = kept ] || fail "path $n: the tree lacks the file"
done
say "4 paths: mounted, shown, unmounted by what was printed"

# Two names that are the same text once their bytes are replaced.
one=$work/$'b\344r' other=$work/$'b\366r'
for tree in "$one" "$other"; do
	mkdir "$tree"
	at_end "umount -l $(printf %q "$tree") 2>/dev/null || true"
	"$FOREBAY" mount "$pool" "$tree" --log "$(basename "$tree" | od -An -tx1 | tr -d ' \n')" >"$work/out" 2>&1 ||
		fail "mount of $(printf %q "$tree"): $(cat "$work/out")"
done
"$FOREBAY" exporter "$pool" --textfile "$work/figures" || fail "no figures"
same=$(grep -v '^#' "$work/figures" | sed 's/ [^ ]*$//' | sort | uniq -d)
[ -z "$same" ] || fail "figures of two mounts are one: $same"
"$FOREBAY" umount "$other" >"$work/out" 2>&1 || fail "umount: $(cat "$work/out")"
mountpoint -q "$one" || fail "the other mount has ended"
! mountpoint -q "$other" || fail "the mount is there still"
"$FOREBAY" umount "$one" >"$work/out" 2>&1 || fail "umount: $(cat "$work/out")"
say "two names that differ in bytes that are no text are two mounts"

# refused CODE TEXT COMMAND...
refused() {
	local code=$1 text=$2 got=0
	shift 2
	"$FOREBAY" "$@" >"$work/out" 2>&1 || got=$?
	[ $got = "$code" ] && grep -q "$text" "$work/out" || fail "$*: $got, not $code and '$text': $(cat "$work/out")"
}
echo file >"$work/file"
mkdir "$work/directory"
refused 3 'there is no such directory; findmnt' umount "$work/nothing"
refused 3 'a part of the path is not a directory; findmnt' umount "$work/file/x"
refused 2 'is not a directory; findmnt' umount "$work/file"
refused 3 'no server of a pool has a mount there; findmnt' umount "$work/directory"
refused 2 'name a directory' mount "$pool" "$work/file" --log l
refused 2 'name a directory' mount "$pool" "$work/directory" "$work/file" --log l
refused 3 'check the path' mount "$pool" "$work/nothing" --log l
refused 2 'name a directory' unmark "$work/file"
refused 3 'check the path' unmark "$work/nothing"
"$FOREBAY" umount "$plain" >"$work/out" 2>&1 || fail "umount: $(cat "$work/out")"
mounted=''
refused 2 'name a directory' replay "$pool" "$work/file" --log l
say "what is no mount and no directory: refused with its cause"
