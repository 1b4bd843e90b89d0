# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: an origin that hangs holds up its own volume and no other, and what is asked of a volume
# that is in use has an end.
# Method: volumes a and b of one pool, each over a linear mapping.  So an origin hangs when the
# mapping is suspended and fails when it is replaced.  Nothing here depends on how long something
# takes but by limits far beyond it.
#	$1...	the items, all by default
. "$(dirname "$0")/guest-lib.sh"
kind=native
failed=0
limit=40 # seconds

# expect TEXT COMMAND...: as step, but goes on.
expect() {
	local what=$1
	shift
	if "$@" >/tmp/step.log 2>&1; then
		passed=$((passed + 1))
		echo "ok: $what"
	else
		failed=$((failed + 1))
		echo "FAIL: $what: $(tail -n 2 /tmp/step.log | tr '\n' ' ')"
	fi
}

ended() { ! kill -0 "$1" 2>/dev/null; }
# ends TEXT COMMAND...: the command succeeds within the limit.  This is not timeout(1),
# which waits for a program that hangs in the kernel.
ends() {
	local what=$1 pid
	shift
	"$@" >/tmp/ends.log 2>&1 &
	pid=$!
	expect "$what" until_true $limit ended $pid
	ended $pid && expect "$what, without an error" wait $pid
}

linear() { echo "0 $(blockdev --getsz "$1") linear $1 0"; }
reload() { # NAME TABLE
	dmsetup suspend --noflush --nolockfs "$1" && dmsetup load "$1" --table "$2" && dmsetup resume --noudevsync "$1"
}
fill() { dd if=/dev/zero of="$1" bs=1M count=200 oflag=direct status=none; }
written() { dmsetup status b >/tmp/now 2>&1; ! cmp -s /tmp/now /tmp/then; }

begin() { # OPTIONS of b
	local o n=0
	forebay create $pool --force >/tmp/step.log 2>&1 || fail "create: $(cat /tmp/step.log)"
	for o in a b; do
		dmsetup create --noudevsync --noudevrules o$o --table "$(linear /dev/ram$n)"
		dmsetup mknodes o$o
		n=$((n + 1))
	done
	dev_attach a /dev/mapper/oa a create max_age 0 idle 0 || fail "attach a: $(cat /tmp/answer)"
	a=$device
	kind=target dev_attach b /dev/mapper/ob b create "$@" || fail "attach b"
	b=/dev/mapper/b
}
finish() {
	wait
	dev_detach a || fail "detach a: $(cat /tmp/answer)"
	kind=target dev_detach b || fail "detach b"
	dmsetup remove --noudevsync --retry oa
	dmsetup remove --noudevsync --retry ob
}

all_stuck() { [ "$(grep -ls blkdiscard /proc/[0-9]*/comm | sed 's/comm/stat/' | xargs cat 2>/dev/null | grep -c ') D ')" = 20 ]; }
# 20 zeroings of a hang, and those of b continue.
item_ranges() {
	local i
	begin
	dmsetup suspend --nolockfs oa
	for i in {0..19}; do
		blkdiscard -f -z -o $((i << 20)) -l 1048576 "$a" &
	done
	until_true 120 all_stuck || fail "the zeroings do not hang"
	ends "zero a range of another volume" blkdiscard -z -l 1048576 $b
	dmsetup resume --noudevsync oa
	finish
}

# a has filled the pool, and its writers wait.
item_waiting() {
	begin when_full bypass
	dmsetup suspend --nolockfs oa
	fill "$a" &
	sleep 4
	ends "a write that goes past the full cache" dd if=/dev/zero of=$b bs=4k count=2000 oflag=direct status=none
	expect "change what a full cache means" dmsetup message b 0 set when_full wait
	reload ob "0 $(blockdev --getsz /dev/ram1) error"
	fill $b &
	sleep 4
	ends "suspend a volume whose writers wait" dmsetup suspend --noflush --nolockfs b
	reload ob "$(linear /dev/ram1)"
	dmsetup resume --noudevsync b
	dmsetup resume --noudevsync oa
	finish
}

# The disk of a takes one request at a time, each for half a second.  A thread that has a request to
# send sleeps for it.
one_at_a_time() {
	local disk=/sys/kernel/config/nullb/slow word
	mkdir $disk || return 1
	for word in size=1024 blocksize=512 queue_mode=2 submit_queues=1 hw_queue_depth=1 irqmode=2 completion_nsec=500000000 \
		memory_backed=0 power=1; do
		echo "${word#*=}" >$disk/"${word%=*}" || return 1
	done
	slow=/dev/slow
	test -b "$slow"
}
sleeps() { grep -ls fbk_retry_work /proc/[0-9]*/stack | xargs -r grep -qs blk_mq_get_tag; }
item_tags() {
	local writers
	begin
	finish
	mount -t configfs none /sys/kernel/config 2>/dev/null
	step "a disk that takes one request at a time" one_at_a_time
	forebay create $pool --force >/tmp/step.log 2>&1 || fail "create"
	dmsetup create --noudevsync --noudevrules ob --table "$(linear /dev/ram1)"
	dmsetup mknodes ob
	dev_attach a "$slow" a create max_age 0 idle 0 when_full bypass || fail "attach a: $(cat /tmp/answer)"
	a=$device
	kind=target dev_attach b /dev/mapper/ob b create || fail "attach b"
	fio --name=past --filename="$a" --rw=write --bs=64k --size=512M --direct=1 --ioengine=libaio --iodepth=16 \
		--time_based --runtime=300 >/tmp/fio.log 2>&1 &
	writers=$!
	past() { [ "$(dev_counter a bypassing)" -gt 0 ]; }
	expect "a's writes go past the full cache" until_true $limit past
	expect "its retries sleep until the disk takes one" until_true $limit sleeps
	ends "write to another volume" dd if=/dev/zero of=$b bs=4k count=200 oflag=direct status=none
	ends "zero a range of it" blkdiscard -z -l 1048576 $b
	ends "drain it" dmsetup message b 0 flush
	expect "a's retries still sleep" until_true $limit sleeps
	kill $writers
	wait
	dev_detach a || fail "detach a: $(cat /tmp/answer)"
	kind=target dev_detach b || fail "detach b"
	dmsetup remove --noudevsync --retry ob
	rmdir /sys/kernel/config/nullb/slow
}

# Somebody writes all the time, and destage ends nevertheless.
item_flush() {
	local writer
	begin
	fio --name=steady --filename="$a" --rw=randwrite --bs=4k --size=32M --direct=1 --ioengine=psync --numjobs=2 \
		--time_based --runtime=300 >/tmp/fio.log 2>&1 &
	writer=$!
	sleep 3
	for _ in 1 2 3; do
		ends "flush beside a steady writer" dev_command a flush
	done
	expect "the writer still writes" kill -0 $writer
	kill $writer
	finish
}

# A thread that has a slot has a CPU, and there are as many slots as CPUs.  So no thread
# finds all slots taken, except one that looks while others change places.
item_slots() {
	local waits writes
	begin
	fio --name=jobs --filename="$a" --rw=randwrite --bs=4k --size=16M --direct=1 --ioengine=psync --numjobs=4 \
		--time_based --runtime=5 >/tmp/fio.log 2>&1
	waits=$(dev_counter a waits_slot) writes=$(dev_counter a writes)
	echo "neighbours: $waits waits for a slot, $writes writes by 4 jobs on $(nproc) CPUs"
	expect "slots for as many writers as there are CPUs" test $((waits * 100)) -lt "$writes"
	finish
}

# The disk reports its origin's limits, and a request that may not wait does not wait.
nowait() {
	python3 - "$1" <<-'END'
		import mmap, os, sys
		fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
		page = mmap.mmap(-1, 4096)
		for offset, want in ((1 << 20, "EAGAIN"), (0, "data")):
		    try:
		        n = os.preadv(fd, [page], offset, os.RWF_NOWAIT)
		        print("at", offset, n, "bytes, wanted", want)
		        if want != "data":
		            sys.exit(1)
		    except BlockingIOError:
		        print("at", offset, "EAGAIN, wanted", want)
		        if want != "EAGAIN":
		            sys.exit(1)
	END
}
item_limits() {
	echo 1 >/sys/block/ram2/queue/stable_writes
	dmsetup create --noudevsync --noudevrules slow --table "0 $(blockdev --getsz /dev/ram2) delay /dev/ram2 0 0"
	dmsetup mknodes slow
	forebay create $pool --force >/tmp/step.log 2>&1 || fail "create"
	dev_attach l /dev/mapper/slow l create max_age 0 idle 0 || fail "attach: $(cat /tmp/answer)"
	dd if=/dev/urandom of="$device" bs=4k count=1 oflag=direct status=none
	expect "a read that may not wait, of an origin that cannot do that" nowait "$device"
	expect "stable writes are wanted, as the origin wants them" grep -q 1 "/sys/block/$(basename "$device")/queue/stable_writes"
	dev_detach l
	dmsetup remove --noudevsync slow
}

# A name counts as an id only if the user says so.
turned_down() { ! control attach $pool "$@" && grep -q origin_by_name /tmp/answer; }
item_names() {
	forebay create $pool --force >/tmp/step.log 2>&1 || fail "create"
	expect "make a volume on an origin with an id" control attach $pool /dev/ram0 x create origin_id serial:1
	control detach "$(sed 's/ok //' /tmp/answer)"
	expect "the path alone is refused" turned_down /dev/ram0 x
	expect "making one by name is refused" turned_down /dev/ram1 y create
	expect "and with consent is not" control attach $pool /dev/ram1 y create origin_by_name
	control detach "$(sed 's/ok //' /tmp/answer)"
	expect "which is recorded" control attach $pool /dev/ram1 y
	control detach "$(sed 's/ok //' /tmp/answer)"
	expect "another name is another origin" refuses_other
}
refuses_other() { ! control attach $pool /dev/ram2 y origin_by_name && grep -q 'not the one' /tmp/answer; }

# c's origin hangs while c is attached, and then while it is detached.
detach_waits() { ! control detach "$1" && grep -q "being attached or detached" /tmp/answer; }
not_again() { ! control attach $pool /dev/mapper/oc c && grep -q "for us alone\|in use" /tmp/answer; }
listed() { control list | grep -q "^$1 "; }
others_go_on() { # WHILE
	ends "list while $1" listed "$c"
	ends "the status of another volume while $1" dev_status a
	ends "its own status while $1" control status "$c"
	ends "attach another volume while $1" dev_attach d /dev/mapper/od d create
	ends "detach it while $1" dev_detach d
	ends "a command of another volume while $1" dev_command a flush
	ends "detach it while $1: it is told to wait" detach_waits "$c"
	ends "attach it while $1: it is told that it is in use" not_again
}
destages() { control status "$c" | grep -q destage=writing; }
item_control() {
	local c=forebay1 o pid
	begin
	for o in oc od; do
		dmsetup create --noudevsync --noudevrules $o --table "0 65536 linear /dev/ram2 $([ $o = oc ] && echo 0 || echo 65536)"
	done
	dmsetup mknodes
	dmsetup suspend --nolockfs oc
	dev_attach c /dev/mapper/oc c create max_age 0 idle 0 >/tmp/attach.c 2>&1 &
	pid=$!
	ends "a device is listed while it is attached" until_true $limit listed $c
	others_go_on "an origin hangs in an attach"
	dmsetup resume --noudevsync oc
	expect "the attach ends" wait $pid
	dd if=/dev/zero of=/dev/$c bs=1M count=2 oflag=direct status=none
	dmsetup suspend --noflush --nolockfs oc
	control command $c cleaner >/dev/null
	expect "c destages" until_true $limit destages
	control detach $c >/tmp/detach.c 2>&1 &
	pid=$!
	until_true $limit test ! -e /dev/$c
	others_go_on "an origin hangs in a detach"
	dmsetup resume --noudevsync oc
	expect "the detach ends" wait $pid
	expect "attach it again" dev_attach c /dev/mapper/oc c
	dev_detach c
	dmsetup remove --noudevsync --retry oc
	dmsetup remove --noudevsync --retry od
	finish
}

# The cache device is unbound under load.  There are errors, and the device has everything
# that was acknowledged.
item_unbind() {
	local namespace writer
	begin
	dd if=/dev/urandom of=/tmp/data bs=1M count=1 status=none
	dd if=/tmp/data of="$a" bs=64k oflag=direct status=none
	fio --name=load --filename="$a" --offset=16M --rw=randrw --bs=16k --size=32M --direct=1 --ioengine=psync --numjobs=2 \
		--time_based --runtime=300 >/tmp/fio.log 2>&1 &
	writer=$!
	sleep 3
	namespace=$(basename "$(readlink -f /sys/block/pmem0/device)")
	ends "unbind the cache device" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/unbind"
	expect "its writers get errors" until_true $limit ended $writer
	expect "its state says so" test "$(dev_state a)" = media_gone
	finish
	expect "bind it again" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/bind"
	expect "it is back" until_true $limit test -b $pool
	dmsetup create --noudevsync --noudevrules oa --table "$(linear /dev/ram0)"
	dmsetup mknodes oa
	expect "attach it again" dev_attach a /dev/mapper/oa a
	expect "what was written is there" cmp -n 1048576 /tmp/data "$device"
	expect "detach it" dev_detach a
	dmsetup remove --noudevsync oa
}

take_away() { # the cache device
	namespace=$(basename "$(readlink -f /sys/block/pmem0/device)")
	ends "unbind the cache device while $1" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/unbind"
}
bring_back() {
	expect "bind it again" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/bind"
	expect "it is back" until_true $limit test -b $pool
}
load_instead() { # [MISTAKE]
	step "unload" /run/busybox rmmod forebay
	load_module "$@"
}
is() { [ "$(dev_counter a "$1")" = "$2" ]; }

# Destage has asked for a request of a, and a is detached before the request is sent.
item_pause() {
	local drain
	load_instead neighbours-pause
	begin
	step "write" dd if=/dev/zero of="$a" bs=64k count=1 oflag=direct
	(exec 3<>/dev/forebay-control && echo "command $(node a) flush" >&3) &
	drain=$!
	expect "it destages" until_true $limit is destage writing
	take_away "a request is about to be sent"
	ends "the flush" wait_for_end $drain
	finish # when the pool is closed, the pause is over
	bring_back
	load_instead
}
wait_for_end() { until_true $limit ended "$1"; }

half() { echo "0 $(($(blockdev --getsz /dev/pmem0) / 2)) linear /dev/pmem0 $(($1 * $(blockdev --getsz /dev/pmem0) / 2))"; }

# An assertion of the engine fails, about one of two pools.
item_broken() {
	local c n
	load_instead neighbours-broken
	for n in 0 1; do
		step "half of the cache device" dmsetup create --noudevsync --noudevrules pool$n --table "$(half $n)"
	done
	dmsetup mknodes
	pool=/dev/mapper/pool1
	step "the other pool" forebay create $pool --force
	dev_attach c /dev/ram2 c create max_age 0 idle 0 || fail "attach c: $(cat /tmp/answer)"
	c=$device
	pool=/dev/mapper/pool0
	begin
	dmsetup suspend --noflush --nolockfs oa
	dd if=/dev/urandom of=/tmp/data bs=64k count=1 status=none
	step "write" dd if=/tmp/data of="$a" bs=64k count=1 oflag=direct
	dev_command a flush >/tmp/flush.a 2>&1 &
	drain=$!
	expect "it destages" until_true $limit is destage writing
	dev_command a clear_stats # the mistake
	expect "its state says so" test "$(dev_state a)" = broken
	expect "the flush ends" until_true $limit ended $drain
	ended $drain && expect "with an error" not wait $drain
	kill $drain 2>/dev/null
	expect "one more is refused" not dev_command a flush
	expect "so is a write" not dd if=/dev/zero of="$a" bs=64k count=1 oflag=direct
	dmsetup resume --noudevsync oa
	expect "the kernel's log names the pool" eval "dmesg | grep -q 'dm-$(dmsetup info -c --noheadings -o minor pool0): assertion failed'"
	dmesg -c >/dev/null
	: >/tmp/dmesg.before
	expect "the other pool is well" test "$(dev_state c)" = ok
	expect "it takes writes" dd if=/tmp/data of="$c" bs=64k count=1 oflag=direct status=none
	ends "it is flushed" dev_command c flush
	expect "its origin has the write" cmp -n 65536 /tmp/data /dev/ram2
	expect "a's neighbour in the broken pool is refused" not dd if=/dev/zero of=$b bs=64k count=1 oflag=direct
	finish
	dmsetup create --noudevsync --noudevrules oa --table "$(linear /dev/ram0)"
	dmsetup mknodes oa
	expect "the pool opens again" dev_attach a /dev/mapper/oa a
	expect "its state is well" test "$(dev_state a)" = ok
	expect "what was written is there" cmp -n 65536 /tmp/data "$device"
	expect "it is flushed" dev_command a flush
	dev_detach a
	dev_detach c
	dmsetup remove --noudevsync oa
	for n in 0 1; do dmsetup remove --noudevsync pool$n; done
	pool=/dev/pmem0
	load_instead
}
not() { ! "$@"; }

load_module
for item in ${*:-ranges waiting tags flush slots limits names control unbind}; do
	item_$item
done
step "unload" /run/busybox rmmod forebay
clean_dmesg
echo "neighbours: $passed passed, $failed failed"
[ $failed = 0 ]
