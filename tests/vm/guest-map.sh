# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: after a power cut what a program has synced of a file that is mapped onto a pool is in the
# file.  This holds also if the power went while that was recovered.
# Method: recover, verify what was said to be synced, load until killed.
# Disks: vda has the file, vdb what was said by the boots before, as the host has read it.
#	$1 dax: the pool is a file on ext4 with DAX; device: it is /dev/pmem0
#	$2 round, from 1; 0: verify only
#	$3 the value to begin with
. "$(dirname "$0")/guest-lib.sh"
kind=$1
round=$2
mapload=$root/out/vm/mapload
mkdir -p /tmp/file /tmp/dax
where=$pool
size=()
case $kind in dax) where=/tmp/dax/pool size=(--size 80M) ;; esac

if [ "$round" = 1 ]; then
	step "a file system for the file" mkfs.ext4 -q -F "${ext4_whole[@]}" /dev/vda
	[ "$kind" != dax ] || step "a file system for the pool" mkfs.ext4 -q -F -b 4096 $pool
fi
step "mount the file's" mount /dev/vda /tmp/file
[ "$kind" != dax ] || step "mount the pool's, with DAX" mount -o dax $pool /tmp/dax
if [ "$round" = 1 ]; then
	step "the file" truncate -s 48M /tmp/file/data
	step "make the pool" forebay create "$where" "${size[@]}" --maps 32M
	step "add a map" forebay map add "$where" db
	sync
fi
if [ "$round" != 1 ]; then
	echo "map: recovering"
	step "forebay map recover" forebay map recover "$where"
	cat /tmp/step.log
	[ -z "$(forebay map list "$where" | grep /data)" ] || fail "the pool has pages of it still"
	tr -d '\0' </dev/vdb >/tmp/synced
	step "what was synced is there" "$mapload" verify /tmp/file/data /tmp/synced
	cat /tmp/step.log
fi
if [ "$round" = 0 ]; then
	step "what the kernel has" "$mapload" features "$where" /tmp/file/data
	cat /tmp/step.log
	step "forebay check" forebay check "$where"
	umount /tmp/file
	step "the file's file system" check_fs ext4 /dev/vda
	[ "$kind" != dax ] || { umount /tmp/dax && step "the pool's file system" check_fs ext4 $pool; }
	clean_dmesg
	echo "map-$kind: $passed passed"
	exit 0
fi
clean_dmesg
echo "map: loading"
exec "$mapload" load "$where" /tmp/file/data "$3"
