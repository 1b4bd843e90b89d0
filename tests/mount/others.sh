#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a replay writes to nothing but what the log is of.  A crash may take a file.  Then a file
# system gives the file's number, generation and handle to a file that is made after the crash.
# Method: files are made and synced through a mount; the disk is cut, the server killed.  Then root
# makes private files outside the tree, and one in it.  After the next mount these have the owner,
# mode, links and bytes that root gave them, and the tree has all that was synced.  Names may also
# be changed by a directory that was open before the mount, or by another mount of the file system.
# Such changes cost what they touch.
#
#	others.sh [FILE SYSTEM...]	(btrfs ext4)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/volatile.sh"
. "$(dirname "$0")/../serve/lease-time.sh"

systems=("$@")
[ $# -gt 0 ] || systems=(btrfs ext4)
seed=${SEED:-1}
bytes=$((256 << 20))
pool_size=256M

synced() { # FILE TEXT
	printf '%s\n' "$2" >"$1" && sync "$1"
}
has() { # FILE TEXT
	[ "$(cat "$1" 2>/dev/null)" = "$2" ] || fail "$system: $1 is '$(cat "$1" 2>/dev/null)', and not '$2'"
}
# Makes a new file system with a tree, and an empty log.
begin() {
	truncate -s 0 "$work/platter"
	truncate -s $bytes "$work/platter"
	rm -f "$pool"
	start_disk "$system"
	mkdir -m 777 "$work/disk/tree" "$work/disk/tree/d"
	mkdir "$work/disk/outside"
	sync -f "$work/disk"
}
cut() {
	cut_disk
	kill_mount
	stop_disk
	start_disk
}

for system in "${systems[@]}"; do
	need fsfreeze "mkfs.$system"
	begin
	start_mount "$work/disk/tree" --sync-interval 600s
	for i in {1..20}; do synced "$work/disk/tree/f$i" "synced $i"; done
	chmod 666 "$work/disk/tree/"f*
	cut
	for i in {1..40}; do
		(umask 077 && echo "private $i" >"$work/disk/outside/p$i")
	done
	(umask 077 && echo private >"$work/disk/tree/d/mine")
	sync -f "$work/disk"
	private=$(cd "$work/disk" && stat -c '%n %u %a %h %s' outside/* tree/d/mine)
	start_mount "$work/disk/tree"
	[ "$(cd "$work/disk" && stat -c '%n %u %a %h %s' outside/* tree/d/mine)" = "$private" ] ||
		fail "$system: private files were given away: $(cd "$work/disk" && stat -c '%n %u %a %h %s' outside/* tree/d/mine | diff - <(echo "$private"))"
	for i in {1..40}; do has "$work/disk/outside/p$i" "private $i"; done
	has "$work/disk/tree/d/mine" private
	for i in {1..20}; do has "$work/disk/tree/f$i" "synced $i"; done
	stop_mount
	say "$system: 41 files that were made after the cut are as they were made, 20 that were synced are there"

	# A program that had a directory open before the mount reaches the tree without the
	# mount.
	exec 9<"$work/disk/tree/d"
	start_mount "$work/disk/tree" --sync-interval 600s
	synced "$work/disk/tree/root" "synced by root"
	synced "$work/disk/tree/d/x" one
	rm "$work/disk/tree/d/x"
	echo beside >"/proc/self/fd/9/x"
	mv "$work/disk/tree/d/x" "$work/disk/tree/d/z"
	synced "$work/disk/tree/d/x" two
	synced "$work/disk/tree/last" "synced last"
	exec 9<&-
	cut
	start_mount "$work/disk/tree"
	has "$work/disk/tree/root" "synced by root"
	has "$work/disk/tree/last" "synced last"
	has "$work/disk/tree/d/x" two
	"$FOREBAY" status "$pool" --json | grep -q "and before of nobody" ||
		fail "$system: what is in dispute is not told: $("$FOREBAY" status "$pool" --json)"
	stop_mount
	say "$system: names that were changed beside the mount cost nothing else"

	# A user has a directory of his own open from before the mount, and removes names there between
	# two steps of a rename through the mount.  That costs his rename alone.
	mkdir "$work/disk/tree/his"
	chown 65534 "$work/disk/tree/his"
	exec 9<"$work/disk/tree/his"
	start_mount "$work/disk/tree" --sync-interval 600s
	python3 - "$work/disk/tree/his" 2000 >"$work/raced" <<'P' || fail "$system: $(cat "$work/raced"): $(tail -n 2 "$work/mount.log")"
import ctypes, os, signal, sys
os.chdir(sys.argv[1])
os.setuid(65534)
libc = ctypes.CDLL(None, use_errno=True)
def rename(a, b, flags):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), f"renameat2 with {flags}")
def removes(name):
    child = os.fork()
    while child == 0:
        try:
            os.unlink(name, dir_fd=9)
        except OSError:
            pass
    return child
lost = 0
for flags, name, to in (0, "t", "target"), (4, "f", "g"):
    child = removes(name)
    try:
        for i in range(int(sys.argv[2])):
            try:
                file = os.open(f"new-{name}", os.O_RDWR | os.O_CREAT, 0o600)
                os.close(file)
                os.rename(f"new-{name}", name)  # over a whiteout, too
                rename(name, to, flags)
            except FileNotFoundError:
                lost += 1
            except OSError as e:
                print(f"rename {i}: {e}")
                sys.exit(1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
print(f"{lost} of {2 * int(sys.argv[2])} found no file")
P
	exec 9<&-
	synced "$work/disk/tree/of-root" "synced by root"
	kill_mount
	start_mount "$work/disk/tree"
	has "$work/disk/tree/of-root" "synced by root"
	stop_mount
	stop_disk
	say "$system: names that were removed between two steps of a rename cost that rename: $(cat "$work/raced")"

	# A user runs a file of his own, holds a lease of another one, and changes a third one
	# after the crash.
	begin
	start_mount "$work/disk/tree"
	for name in run lease touched other; do cp "$(command -v sleep)" "$work/disk/tree/$name"; done
	chown 1000:1000 "$work/disk/tree/"{run,lease,touched}
	stop_mount
	start_mount "$work/disk/tree" --sync-interval 600s
	for name in run lease touched other; do
		printf 'LOGGED %s\n' $name | dd of="$work/disk/tree/$name" conv=notrunc,fsync oflag=append status=none
	done
	kill_mount
	sleep 6
	echo changed >"$work/disk/tree/touched"
	: >"$work/held"
	python3 - "$work/disk/tree" >"$work/held" <<'P' &
import fcntl, os, signal, subprocess, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.chdir(sys.argv[1])
os.setuid(1000)
program = subprocess.Popen(["./run", "600"], stdout=subprocess.DEVNULL)
lease = os.open("lease", os.O_RDONLY)
fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("holds", flush=True)
signal.sigwait([signal.SIGTERM])
program.kill()
program.wait()
P
	holder=$!
	at_end 'kill "$holder" 2>/dev/null || true'
	for ((tries = 0; tries < 1200; tries++)); do [ ! -s "$work/held" ] || break; sleep 0.05; done
	kill -0 $holder && [ -s "$work/held" ] || fail "$system: nobody holds the files"
	# The kernel revokes the lease after this time.
	lease_time_is 3 || true
	began=$SECONDS
	# A replay writes files that are larger than its caller may write.
	ulimit -Sf 32
	start_mount "$work/disk/tree"
	ulimit -Sf unlimited
	lease_time_back
	[ $((SECONDS - began)) -lt 90 ] || fail "$system: the replay has waited for more than a lease"
	tail -n 1 "$work/disk/tree/lease" | grep -qa "LOGGED lease" || fail "$system: what the log has of a file with a lease is not there"
	tail -n 1 "$work/disk/tree/other" | grep -qa "LOGGED other" || fail "$system: what others have is not there"
	has "$work/disk/tree/touched" changed
	for name in run touched; do
		grep -qa "LOGGED $name" "$work/disk/tree/.forebay-found/"*-$name ||
			fail "$system: what the log has of $name is not found: $(ls "$work/disk/tree/.forebay-found")"
		"$FOREBAY" status "$pool" --json | grep -q "$name: now .forebay-found" ||
			fail "$system: $name is not told: $("$FOREBAY" status "$pool" --json)"
	done
	stop_mount
	kill $holder
	wait $holder 2>/dev/null || true
	stop_disk
	say "$system: files that a user runs, holds or has changed cost nothing else"

	# The disk is an older copy, from the same period.
	begin
	start_mount "$work/disk/tree" --sync-interval 0.2s
	synced "$work/disk/tree/older" older
	sleep 1
	copy_frozen "$work/drive/disk" "$work/older"
	synced "$work/disk/tree/newer" newer
	sleep 1
	synced "$work/disk/tree/older" changed
	kill_mount
	stop_disk
	cp "$work/older" "$work/platter"
	start_disk
	got=0
	"$FOREBAY" replay "$pool" "$work/disk/tree" >"$work/refused.log" 2>&1 || got=$?
	[ $got = 11 ] || fail "$system: exit code $got for an older copy of the tree: $(cat "$work/refused.log")"
	grep -q "an older copy of the tree" "$work/refused.log" || fail "$system: $(cat "$work/refused.log")"
	# Another kind of consent does not allow it.
	for other in "" =moved,no-group,unmarked,under-way,lost-entries; do
		got=0
		"$FOREBAY" replay "$pool" "$work/disk/tree" "--accept$other" >"$work/refused.log" 2>&1 || got=$?
		[ $got = 11 ] || fail "$system: exit code $got for an older copy with --accept$other"
	done
	"$FOREBAY" replay "$pool" "$work/disk/tree" --accept=older-tree >"$work/accepted" || fail "$system: not with --accept=older-tree"
	grep -q "accepted (older-tree)" "$work/accepted" || fail "$system: what was accepted is not told: $(cat "$work/accepted")"
	grep -q "accepted (older-tree)" "$work/disk/tree/.forebay-found/"*-report || fail "$system: the report lacks what was accepted"
	has "$work/disk/tree/older" changed
	stop_disk
	say "$system: an older copy of the tree is refused"
done

# Names differ only in case.
truncate -s 64M "$work/folding"
if mkfs.ext4 -qF -O casefold "$work/folding" 2>/dev/null && mkdir -p "$work/fold" &&
	mount_image "$work/folding" "$work/fold" 2>/dev/null; then
	at_end 'umount -l "$work/fold" 2>/dev/null || true'
	mkdir -p "$work/fold/tree/folds" "$work/fold/tree/plain"
	chattr +F "$work/fold/tree/folds"
	rm -f "$pool"
	start_mount "$work/fold/tree"
	synced "$work/fold/tree/plain/Foo" one
	ls "$work/fold/tree/folds" 2>"$work/refused.log" && fail "a directory that folds case is entered"
	grep -q "not supported" "$work/refused.log" || fail "$(cat "$work/refused.log")"
	stop_mount
	got=0
	"$FOREBAY" mount "$pool" "$work/fold/tree/folds" >"$work/refused.log" 2>&1 || got=$?
	[ $got = 1 ] && grep -q "differ in case" "$work/refused.log" || fail "code $got: $(cat "$work/refused.log")"
	[ -z "$(ls -A "$work/fold/tree/folds")" ] || fail "something is left: $(ls -A "$work/fold/tree/folds")"
	umount "$work/fold"
	say "a directory that folds case is refused"
else
	skip_part "directories that fold case" "the kernel's ext4, or mkfs.ext4, has none"
fi
