# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a pool on a disk, written in groups, works in the module as one in memory does, and is the
# same for user space.
# Method: vda is the origin.  The pool is on nvme0n1, which has FUA, or on vdb, which has none.  A file
# system and fio with verification while it
# destages, for each kind of device, and with each way to be durable.  After a drain the origin alone
# has everything; then the command checks the pool.
#	$1 target or native
. "$(dirname "$0")/guest-lib.sh"
kind=$1
origin=/dev/vda
case $kind in
target) pool=/dev/nvme0n1 means=fua ;;
native) pool=/dev/vdb means=flush ;;
esac
fs=(ext4 xfs)
mkdir -p /tmp/mnt

load_module
step "make the pool" forebay create $pool --medium ssd
step "add the volume" forebay volume add $pool disk $origin --origin-by-name
without_pool() { local pool=/dev/ram0; dev_attach x $origin disk; }
refused "a disk without a pool" "no DAX access" without_pool

verified=(--filename=/tmp/mnt/file --size=6m --rw=randwrite --bsrange=512-64k --blockalign=512 --ioengine=libaio
	--iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=7)
n=0
for durable in always flush; do
	step "attach, durable $durable" dev_attach fast $origin disk durable $durable
	dev_status fast
	[ "$(dev_counter fast medium_by)" = $means ] || fail "writes to $pool are made durable by $(dev_counter fast medium_by)"
	queue=/sys/dev/block/$(stat -L -c %Hr:%Lr "$device")/queue
	case $durable in always) cache="write through" ;; *) cache="write back" ;; esac
	[ "$(cat "$queue/write_cache")" = "$cache" ] || fail "durable $durable: the device says $(cat "$queue/write_cache")"
	step "make ${fs[n]}" make_fs "${fs[n]}" "$device"
	step "mount" mount "$device" /tmp/mnt
	step "fio on a file, with verification" fio --name=f "${verified[@]}"
	dev_command fast set low_watermark 2 && dev_command fast set high_watermark 5 || fail "set"
	step "fio while it destages" fio --name=g --directory=/tmp/mnt --size=4m --rw=randwrite --bs=4k --ioengine=psync \
		--fsync=4 --verify=crc32c --verify_fatal=1 --numjobs=2 --io_size=2m
	step "verify the first file again" fio --name=f "${verified[@]}" --verify_only=1
	cp -r "$root/core" /tmp/mnt/
	sync
	step "drain" dev_command fast flush
	[ "$(dev_counter fast pages)" -lt 64 ] || fail "pages left after the drain: $(dev_counter fast pages)"
	[ "$(dev_counter fast groups)" -gt 0 ] || fail "no groups"
	trim "$device" /tmp/mnt
	step "unmount" umount /tmp/mnt
	step "drain again" dev_command fast flush
	dev_status fast
	step "detach" dev_detach fast
	step "forebay check" forebay check $pool
	grep -q 'no errors' /tmp/step.log || fail "check: $(cat /tmp/step.log)"
	step "check ${fs[n]} of the origin alone" check_fs "${fs[n]}" $origin
	step "mount the origin alone" mount -o ro $origin /tmp/mnt
	step "its files" diff -r "$root/core" /tmp/mnt/core
	step "unmount it" umount /tmp/mnt
	n=$((n + 1))
done
# Everybody waits for a group, so it does not have the I/O priority of whoever sends it.
tracing=/sys/kernel/tracing
mountpoint -q $tracing || mount -t tracefs none $tracing
if grep -q ioprio $tracing/events/block/block_rq_issue/format; then
	step "attach" dev_attach fast $origin disk durable always max_age 0 idle 0
	: >$tracing/trace
	echo 1 >$tracing/events/block/block_rq_issue/enable
	step "durable writes with the priority idle" ionice -c3 dd if=/dev/zero of="$device" bs=4k count=20 oflag=direct,dsync
	echo 0 >$tracing/events/block/block_rq_issue/enable
	disk=$(stat -L -c %Hr,%Lr $pool)
	grep "issue: $disk W" $tracing/trace >/tmp/issued
	[ "$(wc -l </tmp/issued)" -ge 20 ] || fail "requests to $pool: $(tail -n 3 $tracing/trace)"
	! grep -v ' be,0,4 ' /tmp/issued >/tmp/step.log || fail "not of everybody's priority: $(head -n 3 /tmp/step.log)"
	step "detach" dev_detach fast
fi
if [ "$kind" = native ]; then
	step "attach by the command" forebay attach $pool disk $origin --origin-by-name --durable flush --no-fua
	step "list" forebay list
	cat /tmp/step.log
	forebay list --json >/tmp/list.json
	jq -e '.[0].options.durable == "flush" and (.[0].options | has("nofua")) and .[0].counters.volatile == 1' /tmp/list.json >/tmp/step.log ||
		fail "list --json: $(cat /tmp/list.json)"
	step "detach by the command, drained" forebay detach disk --flush
fi
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "ssd: $passed passed"
