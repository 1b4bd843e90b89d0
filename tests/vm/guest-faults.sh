# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a failing or slow origin, a full cache and damaged media are contained, reported and
# recovered from.
# Method: a small pool (48 MiB) in front of an origin whose table dm-error, dm-flakey or dm-delay
# takes the place of, and back.  The hung-task watchdog is set to ten seconds, and writers wait for
# longer.  A data page is overwritten on the media while nothing is attached.
#	$1 target or native
. "$(dirname "$0")/guest-lib.sh"
kind=$1
sectors=$((300 * 2048))

origin_table() { # linear, error, writes (fail, reads do not), flaky (fails and recovers in turns) or delay
	local target
	case $1 in
	linear) target="linear /dev/ram0 0" ;;
	error) target="error" ;;
	writes) target="flakey /dev/ram0 0 0 60 1 error_writes" ;;
	flaky) target="flakey /dev/ram0 0 1 1" ;;
	delay) target="delay /dev/ram0 0 0 /dev/ram0 0 20" ;;
	esac
	dmsetup suspend --noflush org && dmsetup load org --table "0 $sectors $target" && dmsetup resume --noudevsync org
}
write_all() {
	fio --name=w --filename="$device" --size=56m --rw=write --bs=64k --ioengine=libaio --iodepth=4 \
		--direct=1 --verify=crc32c --verify_fatal=1 --randseed=3 "$@"
}
counted() { [ "$(dev_counter fast "$1")" -gt "${2:-0}" ]; }
is_state() { [ "$(dev_state fast)" = "$1" ]; }
reads_back() { # BLOCK FILE
	dd if="$device" bs=4096 skip="$1" count=1 iflag=direct of=/tmp/back status=none && cmp "$2" /tmp/back
}
put() { dd if="$1" of="$device" bs=4096 seek="$2" count=1 oflag=direct status=none; }
alive() { kill -0 "$1" || { cat /tmp/w.log; fail "the writer ended"; }; }

load_module
step "an origin" dmsetup create --noudevsync --noudevrules --uuid FBY-org org --table "0 $sectors linear /dev/ram0 0"
dmsetup mknodes org
step "make the pool" forebay create $pool
step "attach, and make the volume" dev_attach fast /dev/mapper/org disk create
echo 10 >/proc/sys/kernel/hung_task_timeout_secs || fail "no hung-task watchdog"

step "the origin fails" origin_table error
write_all --do_verify=0 >/tmp/w.log 2>&1 &
writer=$!
step "the cache runs full, and the writer waits" until_true 500 counted waits_space
# This writer waits in the kernel, where the watchdog looks, unlike fio in its event loop.
dd if=/dev/zero of="$device" bs=1M count=2 seek=200 oflag=direct status=none &
second=$!
step "the failure is reported" until_true 150 is_state origin_failed
sleep 24 # more than twice the watchdog's time
alive $writer
alive $second
refused "detaching a busy device" "busy\|is open" dev_detach fast
[ "$kind" = target ] && step "suspend and resume without flush meanwhile" bash -c \
	"dmsetup suspend --noflush fast && dmsetup resume --noudevsync fast"
alive $writer
step "the origin is well again" origin_table linear
step "the writer ends" wait $writer
step "and the second one" wait $second
echo 600 >/proc/sys/kernel/hung_task_timeout_secs
step "all is there" write_all --verify_only=1
step "drain" dev_command fast flush
is_state ok || fail "state is $(dev_state fast)"
dev_status fast

step "only writes of the origin fail" origin_table writes
for i in 1 2; do
	yes "block $i of the damaged pair" | head -c 4096 >/tmp/block$i
	step "write block $i" put /tmp/block$i $i
done
head -c 4096 /dev/zero >/tmp/zero
step "read what is cached" reads_back 1 /tmp/block1
step "read what the origin has" dd if="$device" bs=4096 skip=9 count=1 iflag=direct of=/dev/null status=none
refused "a drain" "error" dev_command fast flush
step "the failure is reported" until_true 150 is_state origin_failed
step "read what is cached" reads_back 2 /tmp/block2
step "the origin fails altogether" origin_table error
step "read what is cached, still" reads_back 2 /tmp/block2
refused "reading what the origin has" "input/output error" dd if="$device" bs=4096 skip=9 count=1 iflag=direct of=/dev/null
step "the origin comes and goes each second" origin_table flaky
step "write more than fits meanwhile" write_all --do_verify=0
step "the origin is well again" origin_table linear
step "all is there" write_all --verify_only=1
step "drain" dev_command fast flush
is_state ok || fail "state is $(dev_state fast)"

step "a slow origin" origin_table delay
step "write more than fits, throttled" write_all --do_verify=0
echo "throttled for $(($(dev_counter fast throttle_ns) / 1000000)) ms, waits for space: $(dev_counter fast waits_space)"
step "verify" write_all --verify_only=1
step "a fast one" origin_table linear
step "drain" dev_command fast flush

# Two blocks are damaged that the script can find on the media.
for i in 1 2; do step "write block $i" put /tmp/block$i $i; done
step "detach" dev_detach fast
at=$(grep -abo -m 1 "block 1 of the damaged pair" $pool | head -n 1 | cut -d: -f1)
[ -n "$at" ] || fail "the block is not on the media"
printf X | dd of=$pool bs=1 seek=$((at + 100)) conv=notrunc,fsync status=none
step "attach" dev_attach fast /dev/mapper/org disk
refused "reading the damaged block" "input/output error" reads_back 1 /tmp/block1
step "its neighbour is well" reads_back 2 /tmp/block2
is_state lost_data || fail "state is $(dev_state fast)"
step "a partial write" dd if=/tmp/block2 of="$device" bs=512 seek=8 count=1 oflag=direct status=none
refused "reading what is still lost" "input/output error" reads_back 1 /tmp/block1
step "overwrite it" put /tmp/block2 1
step "healed" reads_back 1 /tmp/block2
is_state ok || fail "state is $(dev_state fast)"
step "drain" dev_command fast flush
step "detach" dev_detach fast
step "forebay check" forebay check $pool
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "faults-$kind: $passed passed"
