# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: each kind of persistent memory is recognized, and made durable in its own way.
# Method: the same memory as each of the kinds in turn, with the library's own test on it.
. "$(dirname "$0")/guest-lib.sh"
test=$1
modules=$2/lib/modules/$release/kernel/drivers/dax

# media KIND PERSIST PATH [BYTES]
media() {
	step "$1, $2" env FOREBAY_TEST_MEDIA="$3 $1 $2 ${4:-}" \
		"$test" --exact media::on_the_media_named --ignored --nocapture
	grep -a "$3: " /tmp/step.log
}

insert() {
	xz -dc "$modules/$1.ko.xz" >/tmp/"${1##*/}".ko 2>/dev/null || cp "$modules/$1.ko" /tmp/
	/run/busybox insmod /tmp/"${1##*/}".ko
}

media fsdax-block msync $pool

mkfs.ext4 -q -F -b 4096 $pool || fail mkfs
mkdir -p /tmp/mnt
step "mount with dax" mount -o dax $pool /tmp/mnt
media dax-file nt /tmp/mnt/pool $((64 << 20))
umount /tmp/mnt
mount $pool /tmp/mnt || fail "mount without dax"
media file msync /tmp/mnt/file $((32 << 20))
umount /tmp/mnt

# The namespace becomes a devdax device.
nd=/sys/bus/nd
namespace=$(basename "$(ls -d $nd/devices/namespace* | head -n 1)")
seed=$(basename "$(ls -d $nd/devices/dax* | head -n 1)")
[ -e $nd/drivers/dax_pmem ] || insert dax_pmem
[ -e /sys/bus/dax/drivers/device_dax ] || insert device_dax
echo "$namespace" >$nd/drivers/nd_pmem/unbind
echo 2097152 >$nd/devices/"$seed"/align
echo pmem >$nd/devices/"$seed"/mode
cat /proc/sys/kernel/random/uuid >$nd/devices/"$seed"/uuid
echo "$namespace" >$nd/devices/"$seed"/namespace
echo "$seed" >$nd/drivers/dax_pmem/bind
for _ in 1 2 3 4 5 6 7 8 9 10; do
	ls /dev/dax* >/dev/null 2>&1 && break
	sleep 0.3
done
ls -l /dev/dax* $nd/devices/"$seed"/ || fail "no devdax device"
media devdax nt "$(ls /dev/dax* | head -n 1)"
echo "media: $passed passed"
