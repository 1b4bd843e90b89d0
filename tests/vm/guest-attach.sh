# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: the commands attach, detach and list do with the module what their help says, and
# each refusal names a way out.
# Method: without the module; with it, by hand and by a configuration.  There are a busy device, a
# busy pool, a wrong origin, and a pool after a start_sector.
# shellcheck shell=bash
. "$(dirname "$0")/guest-lib.sh"
: >/tmp/dmesg.before
origin=/dev/ram0

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

step "make the pool" forebay create $pool
step "add a volume" forebay volume add $pool data $origin --origin-by-name
said "no module" 10 "modprobe forebay" forebay list
said "no module" 10 "modprobe forebay" forebay attach $pool data $origin
load_module

said "nothing attached" 0 "forebay attach POOL" forebay list
said "no such volume" 3 "no such volume" forebay attach $pool other $origin
said "a pool in a file" 2 "forebay serve takes files" forebay attach /etc/passwd data $origin
said "the origin as pool" 10 "no DAX access" forebay attach $origin data $pool
said "no origin" 3 "no such file" forebay attach $pool data /dev/nothing

step "attach" forebay attach $pool data $origin --low-watermark 2 --high-watermark 5 --jobs 8
cat /tmp/step.log
test -b /dev/forebay0 || fail "no /dev/forebay0"
[ "$(cat /sys/block/forebay0/forebay/volume)" = data ] || fail "no name in sysfs"
uuid=$(forebay status $pool --json 2>/dev/null | jq -r '.uuid // empty') # an error is JSON, too
[ -n "$uuid" ] || uuid=$(forebay dump superblock $pool --json | jq -r .uuid)
[ "$(cat /sys/block/forebay0/forebay/pool)" = "$uuid" ] || fail "pool $(cat /sys/block/forebay0/forebay/pool), not $uuid"
step "list" forebay list
cat /tmp/step.log
forebay list --json >/tmp/list.json
jq -e --arg uuid "$uuid" '.[0] | .device == "/dev/forebay0" and .volume == "data" and .pool == "/dev/pmem0"
	and .origin == "/dev/ram0" and .state == "ok" and .pool_uuid == $uuid and .options.writeback_jobs == 8
	and .options.high_watermark == 5 and .size_bytes == 1073741824' /tmp/list.json >/tmp/step.log ||
	fail "list --json: $(cat /tmp/list.json)"

mkdir -p /tmp/mnt
says_state() { # CODE TEXT: the state that the origin reports without the pool
	said "the origin's mark" "$1" "$2" forebay origin status $origin
}
says_state 14 "may lack writes since .* of volume data of pool $uuid"
step "mkfs" mkfs.ext4 -q -F /dev/forebay0
step "mount" mount /dev/forebay0 /tmp/mnt
said "attached twice" 4 "attached already, as /dev/forebay0" forebay attach $pool data $origin
said "detach, mounted" 4 "mounted on /tmp/mnt" forebay detach data
said "detach, unknown" 3 "there are forebay0 (data)" forebay detach other
cp -r "$root/core" /tmp/mnt/
step "unmount" umount /tmp/mnt
said "detach" 0 "stays in the pool" forebay detach data
test -b /dev/forebay0 && fail "/dev/forebay0 is still there"
says_state 14 "forebay drain"
said "a pool that is waited for" 14 "write that back first" forebay create $pool --force
forebay volume list $pool --json | jq -e '.[0].pages > 0' >/tmp/step.log || fail "nothing is cached"

# The origin is recognized by its id, so another disk of the same size is refused.
insmod_null() {
	/run/busybox modprobe null_blk 2>/dev/null
	mkdir -p /sys/kernel/config
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir /sys/kernel/config/nullb/other &&
		echo 1024 >/sys/kernel/config/nullb/other/size &&
		echo 1 >/sys/kernel/config/nullb/other/memory_backed &&
		echo 1 >/sys/kernel/config/nullb/other/power
}
step "another disk of the same size" insmod_null
other=/dev/other
index=/sys/kernel/config/nullb/other/index
test -b "$other" || other=/dev/nullb$(tr -d '[:space:]' <$index)
test -b "$other" || fail "no null_blk device: $(ls /dev | tr '\n' ' ')"
said "the wrong origin" 6 "accept-changed-origin" forebay attach $pool data "$other"

mkdir -p /etc/forebay.d
cat >/etc/forebay.d/fast.toml <<'END'
pool = "/dev/pmem0"
max_age = "off"
[volume.data]
origin = "/dev/ram0"
writeback_jobs = 4
END
said "a dry run" 0 "^attach $(stat -c %Hr:%Lr $pool) $(stat -c %Hr:%Lr $origin) data max_age 0 writeback_jobs 4 origin_id name:ram0" forebay attach --all --dry-run
said "attach all" 0 "/dev/forebay0 in front of /dev/ram0" forebay attach --all
said "again" 0 "as before" forebay attach --all
echo 'pool = 5' >/etc/forebay.d/wrong.toml
said "another file is wrong" 2 "wrong.toml:1: " forebay attach --all
said "which does not concern data" 0 "as before" forebay attach --all --only data
rm /etc/forebay.d/wrong.toml
step "mount" mount /dev/forebay0 /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/core
step "unmount" umount /tmp/mnt

# A long flush keeps nobody else waiting, and the device stays.
sectors=$(blockdev --getsz $origin)
step "detach" forebay detach --all
step "a slow disk" dmsetup create --noudevsync --noudevrules slow --table "0 $sectors delay $origin 0 0 $origin 0 700"
dmsetup mknodes slow
step "attach, moved" forebay attach $pool data /dev/mapper/slow --accept-changed-origin --accept-mark --origin-by-name --jobs 1
# The file system has no data there, and the blocks are far apart, so that the drain takes a
# while.
for i in $(seq 24); do
	dd if=/dev/urandom of=/dev/forebay0 bs=4k count=1 seek=$((200000 + 100 * i)) oflag=direct status=none || fail "write"
done
forebay detach data --flush >/tmp/flush.log 2>&1 &
flush=$!
for _ in $(seq 50); do
	forebay list --json | jq -e '.[0].counters.draining == 1' >/dev/null && break
	sleep 0.1
done
began=$SECONDS
said "list meanwhile" 0 "forebay0" forebay list
[ $((SECONDS - began)) -le 5 ] || fail "list waited for the flush"
if kill -0 $flush 2>/dev/null; then
	said "detach meanwhile" 4 "a command is running" forebay detach data
else
	fail "the flush was over before it could be looked at: $(cat /tmp/flush.log)"
fi
wait $flush || fail "the flush: $(cat /tmp/flush.log)"
grep -q "origin alone is complete" /tmp/flush.log || fail "$(cat /tmp/flush.log)"
passed=$((passed + 1))
echo "ok: $(cat /tmp/flush.log)"
step "remove the slow disk" dmsetup remove --noudevsync slow
step "mount the origin alone" mount -o ro $origin /tmp/mnt
step "its files" diff -r "$root/core" /tmp/mnt/core
step "unmount it" umount /tmp/mnt

# The pool begins after other data on the first MiB of the device.
says_state 14 "may lack writes" # its drained data is on the slow disk, which replaced it by order
said "its loss" 0 "given up" forebay origin accept-loss $origin
says_state 0 "as far as this host knows"
step "something at the start" dd if=/dev/urandom of=$pool bs=1M count=1 conv=fsync status=none
step "zero behind it" dd if=/dev/zero of=$pool bs=1M count=2 seek=1 conv=fsync status=none
said "a pool over traces of another" 5 "superblock" forebay attach $pool tail $origin --origin-by-name --create --start-sector 2048
step "zero all behind it" dd if=/dev/zero of=$pool bs=1M count=$(($(blockdev --getsize64 $pool) / 1048576 - 1)) seek=1 \
	conv=fsync status=none
said "a pool over what is none" 12 "not blank" forebay attach $pool tail $origin --origin-by-name --create
before=$(dd if=$pool bs=1M count=1 status=none | sha256sum)
said "start_sector that is no page" 2 "invalid value" forebay attach $pool tail $origin --origin-by-name --create --start-sector 2049
said "start_sector beyond the end" 2 "beyond the end" forebay attach $pool tail $origin --origin-by-name --create --start-sector 99999992
step "a pool from sector 2048 on" forebay attach $pool tail $origin --origin-by-name --create --start-sector 2048
forebay list --json | jq -e '.[0].options.start_sector == 2048' >/tmp/step.log || fail "start_sector is not listed"
said "another start_sector" 2 "another start_sector" forebay attach $pool second "$other" --start-sector 4096
step "write" dd if=/dev/urandom of=/dev/forebay0 bs=64k count=16 oflag=direct status=none
data=$(dd if=/dev/forebay0 bs=64k count=16 iflag=direct status=none | sha256sum)
step "detach" forebay detach tail
[ "$(dd if=$pool bs=1M count=1 iflag=direct status=none | sha256sum)" = "$before" ] || fail "the first MiB was written"
step "it is remembered by its table too" dmsetup create --noudevsync --noudevrules viadm \
	--table "0 $sectors forebay $origin $pool tail 2 start_sector 2048"
dmsetup table viadm | grep -q 'start_sector 2048' || fail "$(dmsetup table viadm)"
step "remove" dmsetup remove --noudevsync viadm
step "the tools see it through a mapping of the tail" dmsetup create --noudevsync --noudevrules tail \
	--table "0 $(($(blockdev --getsz $pool) - 2048)) linear $pool 2048"
dmsetup mknodes tail
step "forebay check" forebay check /dev/mapper/tail
step "attach it there" forebay attach /dev/mapper/tail tail $origin
[ "$(dd if=/dev/forebay0 bs=64k count=16 iflag=direct status=none | sha256sum)" = "$data" ] || fail "other data"
step "detach with a flush" forebay detach /dev/forebay0 --flush
[ "$(dd if=$origin bs=64k count=16 iflag=direct status=none | sha256sum)" = "$data" ] || fail "other data on the origin"

# A pool that is served cannot be attached, and the reverse.
step "remove the mapping" dmsetup remove --noudevsync tail
step "a new pool" forebay create $pool --force --static 16M
step "add a volume" forebay volume add $pool data $origin --origin-by-name
"$root/out/vm/forebay" serve $pool --ready-file /tmp/ready >/tmp/serve.log 2>&1 &
server=$!
for _ in $(seq 100); do
	[ -e /tmp/ready ] && break
	sleep 0.2
done
[ -e /tmp/ready ] || fail "serve: $(cat /tmp/serve.log)"
said "a served pool" 4 "served by forebay serve (process" forebay attach $pool data $origin
kill $server
wait $server
step "attach after it" forebay attach $pool data $origin
said "a pool of the module, served" 4 "in use" forebay serve $pool
said "a pool of the module, checked" 4 "in use" forebay check $pool
step "detach all" forebay detach --all

# A static volume behaves like others.
step "add a static volume" forebay volume add $pool fixed "$other" --static 16M --origin-by-name
step "attach it" forebay attach $pool fixed "$other"
step "write" dd if=/dev/urandom of=/dev/forebay0 bs=64k count=32 oflag=direct status=none
data=$(dd if=/dev/forebay0 bs=64k count=32 iflag=direct status=none | sha256sum)
said "its status" 0 " pages=512 .* slots=[1-9].* counted=1 conflicts=0 eras_percent=0" control status forebay0
step "detach" forebay detach fixed
step "attach it again" forebay attach $pool fixed "$other"
[ "$(dd if=/dev/forebay0 bs=64k count=32 iflag=direct status=none | sha256sum)" = "$data" ] || fail "other data"
step "flush" control command forebay0 flush
said "what its requests carried" 0 "^/dev/forebay0: 0\.[0-9]* pages written for each request to the origin, [1-9][0-9.]* in each, 0.00 copied" forebay list
step "detach with a flush" forebay detach fixed --flush
[ "$(dd if="$other" bs=64k count=32 iflag=direct status=none | sha256sum)" = "$data" ] || fail "other data on the origin"

# The mark is set and removed again; then the pool's records are older than the mark.
step "attach" forebay attach $pool data $origin
step "detach with a flush" forebay detach data --flush
says_state 0 "as far as this host knows"
step "the pool's records" dd if=$pool of=/tmp/records bs=4k count=16 iflag=direct status=none
step "attach" forebay attach $pool data $origin
says_state 14 "may lack writes"
step "write" dd if=/dev/urandom of=/dev/forebay0 bs=4k count=4 oflag=direct status=none
step "detach" forebay detach data
step "the pool as it was" dd if=/tmp/records of=$pool bs=4k count=16 oflag=direct conv=fsync status=none
said "an older copy" 6 "older copy of the one that marked the origin" forebay attach $pool data $origin
clean_dmesg
echo "attach: $passed passed"
