# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: whatever lies below a pool or a volume, the module serves it or refuses it by name.  The
# kernel has nothing to say of it.
# Method, an item each:
#	unbind	a pool on a mapped device over pmem, and on two pmem devices in stripes; pmem is
#		unbound below it
#	zoned	an origin with zones
#	unmap	an origin that unmaps by writing zeroes
#	limits	the device's limits are the origin's where they count
#	list	more devices than one page of answers has; all of them are listed and detached
#	$1 the module, if it is another; or -   $2... the items
# shellcheck shell=bash
. "$(dirname "$0")/guest-lib.sh"
sectors=$((32 * 2048))
nd=/sys/bus/nd/drivers/nd_pmem
dd() { /bin/dd "$@"; } # busybox's may write through the page cache, whatever is asked of it
limit=300 # seconds, of what takes one

null_blk() { # NAME SETTING=VALUE...: sets $disk
	local name=$1 at=/sys/kernel/config/nullb/$1 setting
	shift
	mkdir "$at" || return 1
	for setting; do echo "${setting#*=}" >"$at/${setting%%=*}" || return 1; done
	echo 1 >"$at/power" || return 1
	disk=/dev/$name
	test -b "$disk" || disk=/dev/nullb$(tr -d '[:space:]' <"$at/index")
	test -b "$disk"
}

# Writes until the device fails.
write_on() { while dd if=/dev/zero of=/dev/forebay0 bs=4k count=8192 oflag=direct status=none 2>/dev/null; do :; done; }
has_written() { control status forebay0 | grep -q " writes=[1-9]"; }

# Makes a pool on /dev/mapper/below.  The pmem DEVICE is unbound while the pool writes.
unbind_below() { # WHAT DEVICE
	local namespace writer
	dmsetup mknodes below
	step "make the pool on $1" forebay create /dev/mapper/below --force
	step "add a volume" forebay volume add /dev/mapper/below v /dev/ram0 --origin-by-name
	step "attach it" control attach /dev/mapper/below /dev/ram0 v $by_name
	write_on &
	writer=$!
	step "it is written to" until_true $limit has_written
	namespace=$(basename "$(readlink -f "/sys/block/$(basename "$2")/device")")
	step "unbind $2 below $1" timeout $limit bash -c "echo $namespace >$nd/unbind"
	wait $writer
	control status forebay0 | grep -q "media_gone" || fail "$1: $(cat /tmp/answer)"
	step "what is known of it" control list
	refused "a write to it" "error" dd if=/dev/zero of=/dev/forebay0 bs=4k count=1 oflag=direct status=none
	refused "a flush of it" "taken away" control command forebay0 flush
	step "detach it" control detach forebay0
	step "remove what is below" dmsetup remove --noudevsync below
	step "bind $2 again" bash -c "echo $namespace >$nd/bind"
	until_true $limit test -b "$2"
}

item_unbind() {
	local size
	size=$(($(blockdev --getsz /dev/pmem0) - 2048))
	step "a mapped device over pmem" dmsetup create --noudevsync --noudevrules below --table "0 $size linear /dev/pmem0 2048"
	unbind_below "a mapped device" /dev/pmem0
	[ -b /dev/pmem1 ] || return
	size=$((64 * 2048))
	step "stripes over two" dmsetup create --noudevsync --noudevrules below --table "0 $size striped 2 2048 /dev/pmem0 0 /dev/pmem1 0"
	unbind_below "stripes" /dev/pmem1
	dd if=/dev/zero of=/dev/pmem0 bs=1M count=4 oflag=direct status=none
}

item_zoned() {
	step "a disk with zones" null_blk zones size=64 zoned=1 zone_size=4 memory_backed=1
	refused "a native device before it" "zoned disk" control attach $pool "$disk" z create $by_name
	refused "a target before it" "zoned" dmsetup create --noudevsync --noudevrules z \
		--table "0 $(blockdev --getsz "$disk") forebay $disk $pool z 2 create $by_name"
}

item_limits() {
	local name theirs ours
	for setting in "discard=1" "blocksize=4096" "blocksize=512"; do
		step "a disk, $setting" null_blk "limits${setting//=/}" size=64 memory_backed=1 $setting
		step "attach it" control attach $pool "$disk" limits create $by_name
		for name in logical_block_size dma_alignment virt_boundary_mask max_segments discard_granularity; do
			theirs=$(cat "/sys/block/$(basename "$disk")/queue/$name" 2>/dev/null) || continue
			ours=$(cat /sys/block/forebay0/queue/$name)
			case $name in
			discard_granularity) [ $((theirs > 0)) = $((ours > 0)) ] ;;
			*) [ "$ours" -ge "$theirs" ] || [ $name = max_segments ] ;;
			esac || fail "$setting: $name is $ours, and the disk's $theirs"
		done
		[ "$(cat /sys/block/forebay0/queue/write_zeroes_max_bytes)" -gt 0 ] || fail "$setting: no zeroing"
		step "write" dd if=/dev/urandom of=/dev/forebay0 bs=64k count=4 oflag=direct status=none
		step "zero" blkdiscard -z -f -o 0 -l 65536 /dev/forebay0
		step "detach" control detach forebay0
		forebay volume remove $pool limits --discard >/tmp/said 2>&1 || fail "$(cat /tmp/said)"
	done
}

# The disk unmaps by writing zeroes, for which newer kernels have limits.
item_unmap() {
	local at kmod=("$FOREBAY_VM/bin/kmod")
	load_scsi() {
		LD_LIBRARY_PATH=$FOREBAY_VM/lib/x86_64-linux-gnu:$FOREBAY_VM/usr/lib/x86_64-linux-gnu \
			bash -c 'exec -a modprobe "$0" "$@"' "${kmod[@]}" -d "$FOREBAY_VM" -S "$release" "$@"
	}
	step "disks of SCSI" load_scsi sd_mod
	step "one that unmaps" load_scsi scsi_debug dev_size_mb=64 lbpu=1 lbpws=1 lbpws10=1 lbprz=1
	until_true $limit eval 'at=$(ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/* 2>/dev/null) && [ -n "$at" ]'
	disk=/dev/$(basename "$at")
	until_true $limit test -b "$disk"
	[ ! -e "$at/queue/write_zeroes_unmap_max_hw_bytes" ] ||
		echo "ok: it says $(cat "$at/queue/write_zeroes_unmap_max_hw_bytes") bytes of it"
	step "attach it" control attach $pool "$disk" unmap create $by_name
	step "write" dd if=/dev/urandom of=/dev/forebay0 bs=64k count=4 oflag=direct status=none
	step "zero" blkdiscard -z -f -o 0 -l 65536 /dev/forebay0
	step "flush" control command forebay0 flush
	step "detach" control detach forebay0
	forebay volume remove $pool unmap >/tmp/said 2>&1 || fail "$(cat /tmp/said)"
	step "a target before it" attach unmap "$disk" unmap create
	step "write" dd if=/dev/urandom of=/dev/mapper/unmap bs=64k count=4 oflag=direct status=none
	step "zero" blkdiscard -z -f -o 0 -l 65536 /dev/mapper/unmap
	step "remove" dmsetup remove --noudevsync unmap
}

item_list() {
	local i id n=64
	id=id:$(printf 'x%.0s' $(seq 80))
	for i in $(seq $n); do
		dmsetup create --noudevsync --noudevrules o$i --table "0 2048 linear /dev/ram0 $((i * 2048))" || fail "disk $i"
	done
	dmsetup mknodes
	for i in $(seq $n); do
		control attach $pool /dev/mapper/o$i volume$i create origin_id "$id$i" \
			metadata_only flush_on_suspend slots 4 bypass_limit 1048576 when_full bypass >/tmp/said || fail "attach $i: $(cat /tmp/said)"
		echo "ok: attached $i"
	done
	control list >/tmp/said || fail "list"
	[ "$(wc -c </tmp/said)" -gt 16384 ] || fail "the list is too short to show anything: $(wc -c </tmp/said)"
	[ "$(grep -c "^forebay[0-9]* .* origin_id $id" /tmp/said)" = $n ] || fail "$(grep -c ^forebay /tmp/said) of $n devices are listed"
	step "detach all $n" forebay detach --all
	[ "$(control list | wc -l)" = 1 ] || fail "left: $(control list)"
	for i in $(seq $n); do dmsetup remove --noudevsync o$i; done
}

module=${1:--}
shift || true
[ "$module" = - ] && module=
load_module $module
quick_tools
mkdir -p /sys/kernel/config
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
for item in ${*:-unbind zoned unmap limits list}; do
	[ "$item" = unbind ] || step "make the pool" forebay create $pool --force
	item_$item
done
clean_dmesg
echo "devices: $passed passed"
