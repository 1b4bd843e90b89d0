#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a mount that lacks descriptors or memory fails with an exit code other than 0, says why, and
# leaves neither a mount nor a mark.  A mount that succeeds serves.
# Method: a table of limits: every small number of descriptors, and a range of address spaces.  The
# exit code is what the command claims.  The mount table says what is true, and so does a file that
# is written and synced through the mount.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need pgrep

tree=$work/tree
mkdir "$tree"
"$FOREBAY" create "$pool" --size "$pool_size" >/dev/null
at_end 'umount -l "$tree" 2>/dev/null || true'

served=0 refused=0 least='' wrong=()
# row LIMIT VALUE: runs in a subshell, so that the limit applies to the command alone.
row() {
	local code=0 what="ulimit $1 $2"
	(ulimit "$1" "$2" && exec timeout 60 "$FOREBAY" mount "$pool" "$tree") >"$work/out" 2>&1 || code=$?
	if [ $code = 0 ]; then
		served=$((served + 1))
		least=${least:-$2}
		if ! { echo "$what" >"$tree/file" && sync "$tree/file" && [ "$(cat "$tree/file")" = "$what" ]; } 2>"$work/said"; then
			wrong+=("$what: exit code 0, and no mount: $(cat "$work/said")")
		fi
		timeout 60 "$FOREBAY" umount "$tree" >"$work/out" 2>&1 || wrong+=("$what: umount: $(cat "$work/out")")
		[ "$(cat "$tree/file" 2>/dev/null)" = "$what" ] || wrong+=("$what: the file is not in the tree")
	else
		refused=$((refused + 1))
		[ $code != 124 ] || {
			wrong+=("$what: the command hangs")
			# The command's server is killed, or each later row would find it.
			pgrep -f -- "foreground.* $pool " | xargs -r kill -KILL
		}
		[ -s "$work/out" ] || wrong+=("$what: exit code $code, and nothing is said")
		grep -q "ulimit $1" "$work/out" || wrong+=("$what: the way out is not named: $(cat "$work/out")")
	fi
	# A server that fails may take a moment to end.
	for ((tries = 0; tries < 600; tries++)); do
		grep -q " $tree " /proc/self/mountinfo || break
		sleep 0.05
	done
	if [ $tries = 600 ]; then
		wrong+=("$what: exit code $code leaves a mount: $(tail -n 1 "$work/out")")
		umount -l "$tree"
	fi
	rm -f "$tree/file"
	[ -z "$(ls -A "$tree")" ] || {
		wrong+=("$what: exit code $code leaves $(ls -A "$tree"): $(tail -n 1 "$work/out")")
		"$FOREBAY" replay "$pool" "$tree" >/dev/null 2>&1 || "$FOREBAY" unmark "$tree" --accept-loss >/dev/null 2>&1 || true
	}
}

table() { # WHAT LIMIT VALUES...
	local what=$1 limit=$2 value
	shift 2
	served=0 refused=0 least=''
	for value in "$@"; do row "$limit" "$value"; done
	say "$what: $refused limits refused, $served served, from $least on"
}
# shellcheck disable=SC2046
{
	table descriptors -n $(seq 4 40)
	table "address space in KiB" -v $(seq 100000 200000 2500000)
}
[ ${#wrong[@]} = 0 ] || fail "$(printf '%s\n' "${#wrong[@]} rows are wrong" "${wrong[@]}")"

# The command raises the limit on the size of files, or names it.  No program under the mount meets
# the server's limit.
limited() { # COMMAND...
	local code=0
	(ulimit -f 100 && exec timeout 60 "$FOREBAY" "$@") >"$work/out" 2>&1 || code=$?
	[ $code != 8 ] || grep -q "ulimit -f" "$work/out" || fail "ulimit -f 100: $*: $(cat "$work/out")"
	[ $code = 0 ] || [ $code = 8 ] || fail "ulimit -f 100: $*: exit code $code: $(cat "$work/out")"
	return $code
}
named=0
"$FOREBAY" create "$work/ssd" --medium ssd --size 64M >/dev/null
limited create "$shm/limited" --size 64M || named=$((named + 1))
limited create "$work/limited" --medium ssd --size 64M || named=$((named + 1))
for medium in "$pool" "$work/ssd"; do
	if limited mount "$medium" "$tree" --slow-log; then
		head -c 300000 /dev/zero >"$tree/large" || fail "ulimit -f 100: $medium: a program meets the server's limit"
		"$FOREBAY" umount "$tree" >/dev/null
	else
		named=$((named + 1))
	fi
	"$FOREBAY" check "$medium" >"$work/out" || fail "ulimit -f 100: $medium: $(cat "$work/out")"
done
say "ulimit -f: of 4 commands $named named it, the others raised it"

# If the kernel ends the session of a mount, that is reported.  An unmount by force that succeeds is
# an unmount.  Either way the tree has the written data.
for use in busy idle; do
	start_mount "$tree"
	echo "$use" >"$tree/$use"
	[ $use = idle ] || exec 8>"$tree/held"
	umount -f "$tree" 2>/dev/null || true
	code=0
	wait "$server" || code=$?
	server='' mounted=''
	exec 8>&-
	grep -q " $tree " /proc/self/mountinfo && fail "$use, umount -f: a mount is left"
	[ "$(cat "$tree/$use")" = "$use" ] || fail "$use, umount -f: the file is not in the tree"
	[ ! -L "$tree/.forebay-mount" ] || fail "$use, umount -f: the mark is left"
	case $use in
	busy) [ $code = 7 ] && grep -q "its session ended while it was mounted" "$work/mount.log" ;;
	idle) [ $code = 0 ] ;;
	esac || fail "$use, umount -f: exit code $code: $(tail -n 1 "$work/mount.log")"
done
say "umount -f: told where it was in use, an unmount where it was not"
