# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: data that bypasses the cache is there, on both devices, next to data that goes
# through it.
# Method: fio with overlapping writes of 512 bytes to 256 KiB while it destages, verified through
# the device.  Then a pool that is full; then all of it again on the origin alone.
. "$(dirname "$0")/guest-lib.sh"
origin=/dev/ram0

value() { control status forebay0 | tr ' ' '\n' | sed -n "s/^$1=//p"; }
dm_value() { dmsetup status past | tr ' ' '\n' | sed -n "s/^$1=//p"; }
job() { # DEVICE NAME SEED OPTIONS...
	fio --name="$2" --filename="$1" --size=24m --rw=randwrite --ioengine=libaio --iodepth=16 --direct=1 \
		--verify=crc32c --verify_fatal=1 --randseed="$3" "${@:4}"
}
full() { # DEVICE OPTIONS...
	fio --name=full --filename="$1" --size=96m --rw=randwrite --bs=64k --ioengine=libaio --iodepth=384 --direct=1 \
		--verify=crc32c --verify_fatal=1 --randseed=5 "${@:2}"
}
mixed=(--bsrange=512-256k --blockalign=512)

load_module
step "make the pool" forebay create $pool
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
refused "a policy that is none" "invalid value" control attach $pool $origin disk when_full frob
step "attach" control attach $pool $origin disk low_watermark 2 high_watermark 5 bypass_limit 65536
control list
grep -q "bypass_limit 65536" /tmp/answer || fail "list does not show the option"
step "small and large writes, verified" job /dev/forebay0 mixed 3 "${mixed[@]}"
[ "$(value bypasses)" -gt 0 ] || fail "nothing went past the cache"
[ "$(value writes)" -gt 0 ] || fail "nothing went through it"
control status forebay0
step "switch it off" control command forebay0 set bypass_limit 0
before=$(value bypasses)
step "the same writes again" job /dev/forebay0 mixed 3 "${mixed[@]}"
[ "$(value bypasses)" = "$before" ] || fail "large writes still go past the cache"

# The writes are more than the pool holds, and destage begins when no chunk is free.
step "past a full pool" control command forebay0 set when_full bypass
step "late destage" control command forebay0 set high_watermark 99
step "late destage" control command forebay0 set low_watermark 98
step "more at once than it holds" full /dev/forebay0
control status forebay0
past=$(($(value bypasses) - before))
echo "bypass: full: waits_space $(value waits_space), past the cache $past"
[ "$past" -gt 0 ] || fail "the pool was full, and nothing went past it"
step "drain" control command forebay0 drain
step "detach" control detach forebay0
step "the same through the mapper, and large writes" attach past $origin disk bypass_limit 65536 high_watermark 60
step "verify what the other wrote" full /dev/mapper/past --verify_only=1
step "small and large writes, verified" job /dev/mapper/past mixed 7 "${mixed[@]}"
[ "$(dm_value bypasses)" -gt 0 ] || fail "nothing went past the cache"
step "live" dmsetup message past 0 set bypass_limit 0

# The cache takes blocks that the file system marks as metadata, and not fio's data.
step "metadata alone" dmsetup message past 0 set metadata_only on
dmsetup table past | grep -q " metadata_only" || fail "the table does not show the option"
before=$(dm_value writes)
step "small writes of data, verified" job /dev/mapper/past data 9 --bs=4k --offset=64m
[ "$(dm_value writes)" = "$before" ] || fail "data was cached"
step "switch it off" dmsetup message past 0 set metadata_only off
step "drain" dmsetup message past 0 drain
step "a file system" mkfs.ext4 -q -F /dev/mapper/past
step "metadata alone" dmsetup message past 0 set metadata_only on
mkdir -p /tmp/mnt
step "mount" mount /dev/mapper/past /tmp/mnt
before=$(dm_value writes) past=$(dm_value bypasses)
step "a file" dd if=/dev/urandom of=/tmp/mnt/file bs=64k count=64 conv=fsync status=none
step "unmount" umount /tmp/mnt
[ "$(dm_value writes)" -gt "$before" ] || fail "no metadata was cached"
[ "$(dm_value bypasses)" -gt "$past" ] || fail "no data went past the cache"
step "e2fsck" e2fsck -fn /dev/mapper/past
step "switch it off" dmsetup message past 0 set metadata_only off
step "small and large writes, verified" job /dev/mapper/past mixed 7 "${mixed[@]}"
step "drain" dmsetup message past 0 drain
step "remove" dmsetup remove --noudevsync past
step "unload" /run/busybox rmmod forebay
step "forebay check" forebay check $pool
step "the origin alone" job $origin mixed 7 "${mixed[@]}" --verify_only=1
clean_dmesg
