# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a pool of the module has one user at a time, whatever names its bytes have.
# Method: linear windows on one disk, and loop devices of one file; each command by each name.
# shellcheck shell=bash
. "$(dirname "$0")/guest-lib.sh"
: >/tmp/dmesg.before
other=/dev/ram0

# said TEXT CODE PATTERN COMMAND...: exits with CODE, its message has PATTERN.
said() {
	local what=$1 code=$2 pattern=$3 rc
	shift 3
	"$@" >/tmp/step.log 2>&1
	rc=$?
	[ $rc = "$code" ] && grep -q -- "$pattern" /tmp/step.log || {
		cat /tmp/step.log
		fail "$what: exit code $rc and not $code with \"$pattern\": $*"
	}
	passed=$((passed + 1))
	echo "ok: $what: $(head -n 1 /tmp/step.log | cut -c1-160)"
}

load_module

# A pool of a disk by two names: the claim of the first is none of the second, and two images of one
# pool destroy it.
window() { # NAME SECTORS DISK START
	dmsetup create --noudevsync --noudevrules "$1" --table "0 $2 linear $3 $4" && dmsetup mknodes
}
wider=/dev/mapper/wider below=/dev/mapper/below first=/dev/mapper/first
step "two parts of a disk" window first 65536 /dev/ram2 0
step "and one" window apart 65536 /dev/ram2 65536
step "a pool in the first" forebay create $first --medium ssd --chunk-size 64K --force
step "a pool in the other" forebay create /dev/mapper/apart --medium ssd --chunk-size 64K --force
step "a volume" forebay volume add $first v "$other" --origin-by-name
step "attach it" forebay attach $first v "$other" --origin-by-name
step "a second name of its bytes" window wider 65536 /dev/ram2 0
step "a name of a name" window below 65536 /dev/mapper/apart 0
for name in "$wider" "$first"; do
	said "$name is attached by another name" 4 "in use" forebay attach "$name" v /dev/ram1 --origin-by-name
	said "$name is served by another name" 4 "in use" forebay serve "$name"
	said "a volume is added by $name" 4 "in use" forebay volume add "$name" w /dev/ram1 --origin-by-name
	said "$name is checked by another name" 4 "in use" forebay check "$name"
done
said "whose name it is" 4 "/dev/mapper/first has the same bytes.*dmsetup remove" forebay check $wider
step "detach" forebay detach v
said "nobody has it" 4 "/dev/mapper/wider has the same bytes" forebay attach $first v "$other" --origin-by-name
step "one name less" dmsetup remove --noudevsync wider
step "attach it again" forebay attach $first v "$other" --origin-by-name
step "another part" forebay check $below
step "detach it" forebay detach v
step "its bytes are whole" forebay check $first
for name in below apart first; do step "remove $name" dmsetup remove --noudevsync $name; done
# A table of so many parts, as of a volume of LVM, is longer than the kernel tells at once.
parts() {
	local n
	for ((n = 0; n < 400; n++)); do echo "$((n * 256)) 256 linear /dev/ram2 $((n * 256))"; done
}
for name in one two; do step "a window of many parts" dmsetup create --noudevsync --noudevrules $name --table "$(parts)"; done
dmsetup mknodes
for name in one two; do
	said "$name has another of its bytes" 4 "has the same bytes" forebay create /dev/mapper/$name --medium ssd --force
done
for name in one two; do step "remove $name" dmsetup remove --noudevsync $name; done
mkfs.ext4 -qF /dev/ram3 && mkdir -p /tmp/disk && mount /dev/ram3 /tmp/disk || fail "no file system for a pool's file"
file=/tmp/disk/pool
step "a pool in a file" forebay create $file --size 32M --medium ssd --chunk-size 64K
step "a volume" forebay volume add $file v /dev/ram1 --origin-by-name
step "its loop device" losetup /dev/loop0 $file
step "attach it" forebay attach /dev/loop0 v /dev/ram1 --origin-by-name
step "a second one" losetup /dev/loop1 $file
said "attached by the second" 4 "/dev/loop0 has the same bytes" forebay attach /dev/loop1 v /dev/ram0 --origin-by-name
said "served by the second" 4 "/dev/loop0 has the same bytes" forebay serve /dev/loop1
said "served by the file" 4 "it is the disk of /dev/loop" forebay serve $file
step "detach" forebay detach v
for loop in 0 1; do step "take it away" losetup -d /dev/loop$loop; done
step "its bytes are whole" forebay check $file
step "unmount" umount /tmp/disk
clean_dmesg
echo "names: $passed passed"
