# SPDX-License-Identifier: MIT OR Apache-2.0
#
# guest-caches.sh - sourced by guest-load.sh, guest-destage.sh, guest-bench.sh and
# guest-apps.sh: several caches, each on persistent memory of its own in front of a disk of
# its own.

# A device counts as blank only if many places of it show no pool, so all of it is zeroed.
blank() { dd if=/dev/zero of="$1" bs=1M oflag=direct status=none 2>/dev/null || :; }

# Small pools stand for large ones.  Their chunks are small, so that they have as many.
chunk_size=256K
make_pool() { # PMEM DISK
	pool=$1
	blank "$1"
	forebay create "$1" --chunk-size $chunk_size >/tmp/step.log 2>&1 && forebay volume add "$1" v "$2" --origin-by-name >>/tmp/step.log 2>&1 ||
		fail "a pool on $1: $(cat /tmp/step.log)"
}

# All but 16 MiB of the pool is the share of a static volume, which is flushed every 10 ms.
make_static_pool() { # PMEM DISK
	local mib=$(($(blockdev --getsize64 "$1") / 1048576 - 16))
	pool=$1
	blank "$1"
	forebay create "$1" --chunk-size $chunk_size --static ${mib}M >/tmp/step.log 2>&1 &&
		forebay volume add "$1" v "$2" --origin-by-name --static ${mib}M --flush-every 10ms >>/tmp/step.log 2>&1 ||
		fail "a static volume on $1: $(cat /tmp/step.log)"
}

# cache_up KIND DISK PMEM: sets $device.  KIND is origin, writecache, bcache,
# pcache, target, native, or static, which is native, too.
cache_up() {
	local kind=$1 disk=$2 pmem=$3 sectors answer
	test -b "$disk" || fail "no $disk"
	sectors=$(blockdev --getsz "$disk")
	case $kind in
	origin) device=$disk ;;
	writecache)
		blank "$pmem"
		dmsetup create --noudevsync --noudevrules wc --table "0 $sectors writecache p $disk $pmem 4096 0" || fail "dm-writecache"
		dmsetup mknodes wc
		device=/dev/mapper/wc
		;;
	bcache) bcache_up "$disk" "$pmem" ;;
	pcache)
		blank "$pmem"
		pcache_up "$disk" "$pmem"
		device=/dev/mapper/pcache
		;;
	target)
		make_pool "$pmem" "$disk"
		attach target "$disk" v || fail "target"
		device=/dev/mapper/target
		;;
	native | static)
		if [ "$kind" = static ]; then make_static_pool "$pmem" "$disk"; else make_pool "$pmem" "$disk"; fi
		answer=$(control attach "$pmem" "$disk" v) || fail "native: $answer"
		device=/dev/${answer#ok }
		;;
	esac
	test -b "$device" || fail "$device is no block device"
}

insmod_from() { # FILE
	/run/busybox insmod "$1" || fail "$(basename "$1") does not load: $(dmesg | tail -n 3)"
}

pcache_up() { # DISK PMEM
	grep -q '^dm_pcache ' /proc/modules || insmod_from "$root/out/vm/dm-pcache-$release.ko"
	dmsetup create --noudevsync --noudevrules pcache \
		--table "0 $(blockdev --getsz "$1") pcache $2 $1 4 cache_mode writeback data_crc false" || fail "dm-pcache"
	dmsetup mknodes pcache
}

bcache_up() {
	local dir file
	"$root/out/vm/make-bcache" -w 4k -b 64k --writeback -B "$1" -C "$2" >/tmp/step.log 2>&1 || fail "make-bcache: $(cat /tmp/step.log)"
	if ! [ -d /sys/fs/bcache ]; then
		file=$(ls "$FOREBAY_VM/lib/modules/$release/kernel/drivers/md/bcache/"bcache.ko*)
		case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac >/tmp/bcache.ko
		insmod_from /tmp/bcache.ko
	fi
	echo "$2" >/sys/fs/bcache/register || fail "bcache does not take $2"
	echo "$1" >/sys/fs/bcache/register || fail "bcache does not take $1"
	until_true 20 test -d /sys/block/bcache0/bcache/cache || fail "bcache does not attach"
	dir=/sys/block/bcache0/bcache
	# bcache is made for random writes, so the ways around it are switched off.
	echo 0 >$dir/sequential_cutoff
	echo 0 >$dir/cache/congested_write_threshold_us
	echo 0 >$dir/cache/congested_read_threshold_us
	device=/dev/bcache0
}

# cache_down KIND: cached data stays where it is.
cache_down() {
	case $1 in
	writecache) dmsetup remove --noudevsync --retry wc || fail "removing dm-writecache" ;;
	pcache) dmsetup remove --noudevsync --retry pcache || fail "removing dm-pcache" ;;
	bcache)
		local set
		set=$(readlink -f /sys/block/bcache0/bcache/cache)
		echo 1 >/sys/block/bcache0/bcache/stop
		echo 1 >"$set/stop"
		until_true 60 test ! -e /sys/block/bcache0 || fail "bcache does not stop"
		;;
	target) dmsetup remove --noudevsync --retry target || fail "removing the target" ;;
	native | static) until_true 10 control detach "$(basename "$device")" || fail "$(cat /tmp/answer)" ;;
	esac
	return 0
}

cache_status() {
	case $1 in
	writecache) dmsetup status wc ;;
	pcache) dmsetup status pcache ;;
	bcache) cat /sys/block/bcache0/bcache/dirty_data ;;
	target) dmsetup status target ;;
	native | static) control status "$(basename "$device")" ;;
	esac
}
