# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a failing origin, a full cache and damaged media are contained, reported
# and recovered from.  Method: a small pool (96 MiB) in front of an origin that
# a table turns into one that fails, and back; a data page overwritten on the
# media while nothing is attached.
. "$(dirname "$0")/guest-lib.sh"
: >/tmp/dmesg.before
sectors=$((300 * 2048))

origin_table() { # linear or error
	local target
	case $1 in
	linear) target="linear /dev/ram0 0" ;;
	error) target="error" ;;
	delay) target="delay /dev/ram0 0 0 /dev/ram0 0 20" ;;
	esac
	dmsetup suspend --noflush org && dmsetup load org --table "0 $sectors $target" && dmsetup resume --noudevsync org
}
write_all() {
	fio --name=w --filename=/dev/mapper/fast --size=160m --rw=write --bs=64k --ioengine=libaio --iodepth=4 \
		--direct=1 --verify=crc32c --verify_fatal=1 --randseed=3 "$@"
}
state() { dmsetup status fast | cut -d' ' -f4; }
until_true() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}
waits() { [ "$(counter fast waits_space)" -gt 0 ]; }
reads_back() { # BLOCK FILE
	dd if=/dev/mapper/fast bs=4096 skip="$1" count=1 iflag=direct of=/tmp/back status=none && cmp "$2" /tmp/back
}

load_module
step "an origin" dmsetup create --noudevsync --noudevrules --uuid FBY-org org --table "0 $sectors linear /dev/ram0 0"
dmsetup mknodes org
step "make the pool" forebay create $pool
step "attach, and make the volume" attach fast /dev/mapper/org disk create
dmsetup table fast

step "the origin fails" origin_table error
write_all --do_verify=0 >/tmp/w.log 2>&1 &
writer=$!
step "the cache runs full, and the writer waits" until_true 100 waits
step "the failure is reported" until_true 20 test "$(state)" = origin_failed
sleep 1
kill -0 $writer || { cat /tmp/w.log; fail "the writer ended"; }
refused "removing a busy device" "busy" dmsetup remove --noudevsync --retry fast
step "suspend and resume without flush meanwhile" bash -c \
	"dmsetup suspend --noflush fast && dmsetup resume --noudevsync fast"
kill -0 $writer || { cat /tmp/w.log; fail "the writer ended"; }
step "the origin is well again" origin_table linear
step "the writer ends" wait $writer
step "all is there" write_all --verify_only=1
step "drain" dmsetup message fast 0 flush
[ "$(state)" = ok ] || fail "state is $(state)"
dmsetup status fast

step "a slow origin" origin_table delay
step "write more than fits, throttled" write_all --do_verify=0
echo "throttled for $(($(counter fast throttle_ns) / 1000000)) ms, waits for space: $(counter fast waits_space)"
step "verify" write_all --verify_only=1
step "a fast one" origin_table linear
step "drain" dmsetup message fast 0 flush

# Damage: two blocks that we can find on the media.
for i in 1 2; do
	yes "block $i of the damaged pair" | head -c 4096 >/tmp/block$i
	step "write block $i" dd if=/tmp/block$i of=/dev/mapper/fast bs=4096 seek=$i count=1 oflag=direct status=none
done
step "detach" dmsetup remove --noudevsync fast
at=$(grep -abo -m 1 "block 1 of the damaged pair" $pool | head -n 1 | cut -d: -f1)
[ -n "$at" ] || fail "the block is not on the media"
printf X | dd of=$pool bs=1 seek=$((at + 100)) conv=notrunc,fsync status=none
step "attach" attach fast /dev/mapper/org disk
refused "reading the damaged block" "input/output error" reads_back 1 /tmp/block1
step "its neighbour is well" reads_back 2 /tmp/block2
[ "$(state)" = lost_data ] || fail "state is $(state)"
step "a partial write" dd if=/tmp/block2 of=/dev/mapper/fast bs=512 seek=8 count=1 oflag=direct status=none
refused "reading what is still lost" "input/output error" reads_back 1 /tmp/block1
step "overwrite it" dd if=/tmp/block2 of=/dev/mapper/fast bs=4096 seek=1 count=1 oflag=direct status=none
step "healed" reads_back 1 /tmp/block2
[ "$(state)" = ok ] || fail "state is $(state)"
step "drain" dmsetup message fast 0 flush
step "detach" dmsetup remove --noudevsync fast
step "forebay check" forebay check $pool
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "faults: $passed passed"
