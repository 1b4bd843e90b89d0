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

# A user holds all descriptors of the server by files without a name, and takes each that becomes
# free.  Other programs get EMFILE, and nothing worse: a rename that leaves a whiteout is done or
# refused, what is refused leaves nothing, and the number of each group stays durable.
cat >"$work/hold.py" <<'P'
import ctypes, errno, os, sys, threading
os.chdir(sys.argv[1])
names, promises = open(sys.argv[3], "w"), open(sys.argv[5], "w")
below = os.open(sys.argv[4], os.O_PATH)
os.setgid(65534)
os.setuid(65534)
libc = ctypes.CDLL(None, use_errno=True)
def rename(a, b, flags):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2")
WHITEOUT = 4
# The log knows this file, so a rename of it needs no descriptor.
own = os.open("own", os.O_RDWR | os.O_CREAT, 0o600)
os.write(own, b"own")
os.fsync(own)
held, over, refused = [], threading.Event(), threading.Event()
for n in range(6):
    os.mkdir(f"of-{n}")
    os.close(os.open(f"of-{n}/file", os.O_RDWR | os.O_CREAT, 0o600))
def hold(n):
    i = 0
    while not over.is_set():
        try:
            name = f"hold-{n}-{i}"
            i += 1
            held.append(os.open(name, os.O_RDWR | os.O_CREAT, 0o600))
            os.unlink(name)
        except OSError as e:
            if e.errno not in (errno.EMFILE, errno.ENFILE):
                print(f"open: {e}", flush=True)
                os._exit(1)
            refused.set()
holders = [threading.Thread(target=hold, args=(n,), daemon=True) for n in range(2)]
for holder in holders:
    holder.start()
assert refused.wait(60), "no descriptor is refused"
rename("own", "other", WHITEOUT)
told = {}
def tried(what, call):
    try:
        call()
    except OSError as e:
        if e.errno not in (errno.EMFILE, errno.ENFILE):
            print(f"{what}: {e}", flush=True)
            os._exit(1)
        told[what] = told.get(what, 0) + 1
        return False
    return True
renamed, made = 1, []
# A rename over a file has several steps.  It is done as a whole, or nothing of it: at the mount and
# in the tree the name has the file that was promised last, and what was refused is where it was.
replaced, promised = 0, {}
def content(path, below):
    try:
        file = os.open(path, os.O_RDONLY, dir_fd=below)
    except FileNotFoundError:
        return None
    found = os.read(file, 100).decode()
    os.close(file)
    return found
def replace(i):
    global replaced
    at, new = f"of-{i % 6}", f"{i} of {sys.argv[2]}"
    def write():
        with open(f"{at}/new", "w") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
    if not tried("write", write):
        return
    for what in "replace", "replace again":
        if what == "replace":
            refused.clear()
            refused.wait(5)
        else:
            for file in [held.pop() for _ in range(20)]:
                os.close(file)
        done = tried(what, lambda: os.rename(f"{at}/new", f"{at}/file"))
        if done:
            promised[at] = new
            replaced += 1
        wanted = (promised.get(at, ""), None if done else new)
        is_there = tuple(content(f"{at}/{name}", below) for name in ("file", "new"))
        if is_there != wanted:
            print(f"{what}, done: {done}, and the tree has {is_there}, not {wanted}", flush=True)
            os._exit(1)
        if done:
            break
for i in range(int(sys.argv[2])):
    # A few descriptors become free, for whoever is first.
    for file in [held.pop() for _ in range(3)]:
        os.close(file)
    if tried("create", lambda: os.close(os.open(f"own-{i}", os.O_RDWR | os.O_CREAT, 0o600))):
        renamed += tried("whiteout", lambda: rename(f"own-{i}", f"other-{i}", WHITEOUT))
    replace(i)
    for what, make in ("mkdir", os.mkdir), ("fifo", os.mkfifo):
        if tried(what, lambda: make(f"{what}-{i}")):
            made.append(f"{what}-{i}")
over.set()
for holder in holders:
    holder.join()
names.writelines(f"{name}\n" for name in sorted(made))
names.close()
promises.writelines(f"{at} {new}\n" for at, new in promised.items())
promises.close()
print(f"{len(held)} files held, {renamed} whiteouts, {replaced} replaced, {len(made)} made, refused: {told}", flush=True)
sys.stdin.read()
P
number() { sed -zn 's/^[^ ]* 0*\([0-9][0-9]*\)\n.*/\1/p' "$work/below/.forebay-group" | tr -d '\0' | head -n 1; }
printf '#!/bin/sh\nulimit -n 400\nexec "%s" "$@"\n' "$FOREBAY" >"$work/forebay"
chmod +x "$work/forebay"
mkdir "$work/below"
mount --bind "$tree" "$work/below"
at_end 'umount -l "$work/below" 2>/dev/null || true'
chmod 777 "$tree"
full=$FOREBAY FOREBAY=$work/forebay
start_mount "$tree" --sync-interval 5s
FOREBAY=$full
mkfifo "$work/hold.go"
python3 "$work/hold.py" "$tree" 300 "$work/made" "$work/below" "$work/promised" <"$work/hold.go" >"$work/held" 2>&1 &
holder=$!
exec 7>"$work/hold.go"
at_end 'exec 7>&-; kill "$holder" 2>/dev/null || true'
for ((tries = 0; tries < 2400; tries++)); do
	[ ! -s "$work/held" ] || break
	kill -0 "$holder" 2>/dev/null || break
	sleep 0.05
done
grep -q 'files held' "$work/held" || fail "no descriptors: $(cat "$work/held"); $(tail -n 3 "$work/mount.log")"
find "$work/below" -maxdepth 1 '(' -name 'mkdir-*' -o -name 'fifo-*' ')' -printf '%f\n' | LC_ALL=C sort | diff - "$work/made" >"$work/left" ||
	fail "no descriptors: what was refused is left, or what was made is not there: $(head -n 3 "$work/left" | xargs)"
before=$(number)
# The root's descriptor is not one of those that a user can take.
touch "$tree" || fail "no descriptors: the mount has failed: $(tail -n 3 "$work/mount.log")"
for ((tries = 0; tries < 800; tries++)); do
	[ "$(number)" -le "$before" ] || break
	sleep 0.05
done
[ $tries != 800 ] || fail "no descriptors: the number of a group is not durable after $before: $(tail -n 3 "$work/mount.log")"
! grep -q 'cannot be made durable' "$work/mount.log" || fail "no descriptors: $(grep 'cannot be made durable' "$work/mount.log")"
kill_mount
exec 7>&-
wait "$holder" || fail "no descriptors: $(cat "$work/held")"
grep -q "'replace'" "$work/held" && [ -s "$work/promised" ] ||
	fail "no descriptors: no rename over a file was refused, or none was done: $(cat "$work/held")"
start_mount "$tree"
while read -r at content; do
	[ "$(cat "$tree/$at/file")" = "$content" ] || fail "no descriptors: after a replay $at/file has '$(cat "$tree/$at/file")', and '$content' was promised"
done <"$work/promised"
stop_mount
say "all descriptors held: $(cat "$work/held"); each number is durable, and the next mount asks for nothing"
