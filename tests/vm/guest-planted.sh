# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: the checks of the lab can fail.
# Method: planted bugs, each of which must be found: in writes under fsx, in what ackload finds
# after a cut, in the kernel's messages.  Then this guest hangs, and the host has to end it.
. "$(dirname "$0")/guest-lib.sh"
fsx=$root/out/vm/fsx
ackload=$root/out/vm/ackload
device=/dev/mapper/load
log=/dev/mapper/log

# found TEXT COMMAND...: the mistake is found, which is exit code 1 and no other.
found() {
	local what=$1 code began=$EPOCHREALTIME
	shift
	"$@" >/tmp/step.log 2>&1
	code=$?
	[ $code = 1 ] || {
		cat /tmp/step.log
		fail "not found, exit code $code: $what"
	}
	passed=$((passed + 1))
	echo "ok: found: $what ($(((${EPOCHREALTIME/./} - ${began/./}) / 1000)) ms)"
}

clean_in_a_shell() (clean_dmesg)
hung() { dmesg >/tmp/line && complaints /tmp/line | grep 'blocked for more than'; }

# The emulated hardware clock shows the host's time.
hardware() { cat /sys/class/rtc/rtc0/since_epoch; }
clock_is_right() {
	local began=$EPOCHSECONDS theirs passed
	theirs=$(hardware)
	sleep 10
	theirs=$(($(hardware) - theirs)) passed=$((EPOCHSECONDS - began))
	echo "$passed s by the guest's clock, $theirs s by the host's"
	[ $((passed - theirs)) -le $((2 + theirs / 5)) ] && [ $((theirs - passed)) -le $((2 + theirs / 5)) ]
}
step "the clock goes as the host's" clock_is_right

for i in load:1048576 log:1310720 files:0; do
	dmsetup create --noudevsync --noudevrules ${i%:*} --table "0 131072 linear /dev/ram0 ${i#*:}" || fail "devices"
done
dmsetup mknodes
mkfs.ext4 -q -F /dev/mapper/files && mkdir -p /tmp/mnt && mount /dev/mapper/files /tmp/mnt || fail "a file system"

for mistake in lost stale byte moved; do
	found "fsx: $mistake" "$fsx" --device --plant $mistake 500 "$device" 20000 3
done
step "fsx without a mistake" "$fsx" --device "$device" 2000 3
for mistake in lost stale byte moved; do
	found "fsx, on a file: $mistake" "$fsx" --plant $mistake 500 /tmp/mnt/f 20000 4
done
step "fsx on a file without a mistake" "$fsx" /tmp/mnt/f 2000 4
umount /tmp/mnt

# The acknowledged data is replaced by the earlier data of the device, and then a sector is
# torn.
dd if=/dev/zero of="$device" bs=1M count=16 oflag=direct status=none
step "ackload" "$ackload" load "$device" "$log" 1 1
dd if="$device" of=/tmp/older bs=1M count=16 iflag=direct status=none
step "ackload verifies" "$ackload" verify "$device" "$log"
step "ackload" "$ackload" load "$device" "$log" 2 2
dd if="$device" of=/tmp/newer bs=1M count=16 iflag=direct status=none
dd if=/tmp/older of="$device" bs=1M oflag=direct status=none
found "ackload: older data" "$ackload" verify "$device" "$log"
dd if=/tmp/newer of="$device" bs=1M oflag=direct status=none
step "ackload, the newer again" "$ackload" verify "$device" "$log"
at=$((($(cmp /tmp/older /tmp/newer | sed 's/.* byte \([0-9]*\).*/\1/') - 1) / 512))
dd if=/tmp/older of=/tmp/newer bs=256 skip=$((at * 2 + 1)) seek=$((at * 2 + 1)) count=1 conv=notrunc status=none
dd if=/tmp/newer of="$device" bs=1M oflag=direct status=none
found "ackload: a torn sector" "$ackload" verify "$device" "$log"

# The list has a line of each kind of message of the kernel, and a line that is always
# there.
while read -r line; do
	echo "$line" >/tmp/line
	step "seen in the kernel's messages: ${line:0:40}" complaints /tmp/line
done <<-END
	[   12.3] WARNING: CPU: 0 PID: 12 at mm/slub.c:123 foo+0x1/0x2
	[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000000
	[   12.3] INFO: task fio:123 blocked for more than 10 seconds.
	[   12.3] WARNING: possible circular locking dependency detected
	[   12.3] watchdog: BUG: soft lockup - CPU#1 stuck for 23s!
	[   12.3] rcu: INFO: rcu_preempt self-detected stall on CPU
	[   12.3] Oops: general protection fault, probably for non-canonical address 0xdead
	[   12.3] BUG: KASAN: slab-use-after-free in fby_write_begin+0x1/0x2
	[   12.3] forebay: assertion failed at core/cache/write.c:1
END
dmesg >/tmp/line
found "nothing in the messages of this boot" complaints /tmp/line
echo "WARNING: planted" >/dev/kmsg
found "a warning of the kernel" clean_in_a_shell

# A writer has a disk that does not answer.  This shows that the watchdog works, on which
# guest-faults.sh relies.
echo 2 >/proc/sys/kernel/hung_task_timeout_secs
dmesg -c >/dev/null
dmsetup suspend load
dd if=/dev/zero of="$device" bs=1M count=1 conv=fsync status=none &
step "the hung-task watchdog barks" until_true 100 hung
dmsetup resume --noudevsync load
wait
echo "planted: $passed passed"
echo "planted: hangs now"
while :; do sleep 1000; done
