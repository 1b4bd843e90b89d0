# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a request that has to wait ends when it may and not before, and leaves nothing behind.
# These are writes that wait for one past the cache, killed drains, writers of a full pool, and
# writes held back by the throttle.  It holds also if the cache is removed while they wait.
# Method: an origin that is suspended stands still for as long as a step wants it to, so every state
# is met for certain.  Nothing here depends on how long anything takes.
#	$1 target or native   $2... the items, all by default
. "$(dirname "$0")/guest-lib.sh"
kind=$1
shift
requests=$root/out/vm/requests

same() { # TEXT WANTED HAS
	[ "$2" = "$3" ] || fail "$1: $3, wanted $2"
	passed=$((passed + 1))
}
hang() { step "the origin stands still" dmsetup suspend --noflush --nolockfs o; }
go_on() { step "the origin goes on" dmsetup resume --noudevsync o; }
put() { # FILE BLOCK_SIZE AT [COUNT]: AT in blocks of that size
	dd if="$1" of="$device" bs="$2" seek="$3" count="${4:-1}" oflag=direct status=none
}
has() { # COUNTER NUMBER: or more
	local n
	n=$(dev_counter v "$1")
	[ "$n" -ge "$2" ]
}
is() { [ "$(dev_counter v "$1")" = "$2" ]; }
drain() { # no shell between, so that it can be killed
	if [ "$kind" = target ]; then
		exec dmsetup message v 0 drain
	else
		control command "$(node v)" drain
	fi
}
gone() { ! kill -0 "$1" 2>/dev/null; }
waiting() { # TEXT PID
	kill -0 "$2" 2>/dev/null || fail "$1 did not wait"
}
ends() { # TEXT PID: well
	step "$1 ends" until_true 90 gone "$2"
	wait "$2" || fail "$1: error $?"
}
ends_badly() { # TEXT PID
	step "$1 ends" until_true 90 gone "$2"
	wait "$2" && fail "$1: no error"
	passed=$((passed + 1))
}

# Makes a pool and a volume for each item.  The upper half of the origin can be suspended by
# itself.
begin() {
	load_module
	step "half of an origin" dmsetup create --noudevsync --noudevrules upper --table "0 32768 linear /dev/ram0 32768"
	dmsetup mknodes upper
	step "all of it" dmsetup create --noudevsync --noudevrules o \
		--table "$(printf '0 32768 linear /dev/ram0 0\n32768 32768 linear /dev/mapper/upper 0')"
	dmsetup mknodes o
	step "attach" dev_attach v /dev/mapper/o v create max_age 0 idle 0
}
finish() {
	same "state" ok "$(dev_state v)"
	step "detach" dev_detach v
	step "forebay check" forebay check $pool
	end
}
# Checks that nothing is left, in memory either.
end() {
	step "the origin ends" dmsetup remove --noudevsync --retry o
	step "both halves" dmsetup remove --noudevsync --retry upper
	grep -F '[forebay]' /proc/vmallocinfo && fail "the module has memory without a pool"
	step "unload" /run/busybox rmmod forebay
	[ ! -e /sys/kernel/slab/fbk_io ] || fail "its kind of memory outlives the module"
	dd if=/dev/zero of=$pool bs=1M count=24 oflag=direct status=none 2>/dev/null
}

# The throttle delays writes.
item_late() {
	begin
	# Nothing was destaged yet, so the engine uses its initial rate.
	step "set" dev_command v set low_watermark 2
	step "set" dev_command v set high_watermark 5
	hang
	step "a part of the pool" put /dev/zero 1M 0 8
	at=64 # in units of 128 KiB
	throttled() { [ "$(dev_counter v intake_limit)" -gt 0 ] && [ "$(dev_counter v intake_limit)" -lt 9000 ]; }
	until throttled; do
		[ $at -lt 180 ] || fail "the throttle holds nothing back: $(dev_status v)"
		put /dev/zero 128K $at || fail "a write that may be held back"
		at=$((at + 1))
	done
	if [ "$kind" = native ]; then # the mapper may divide it
		sleep 0.1 # a volume may save up less than this
		before=$(dev_counter v throttle_ns)
		step "a large write" put /dev/zero 512K 56
		held=$(($(dev_counter v throttle_ns) - before))
		[ $held -gt 5000000 ] || fail "128 pages were held back for $held ns, at $(dev_counter v intake_limit) pages a second"
	fi
	step "writes that are begun together" "$requests" "$device" /tmp/late late
	same "nobody waits for space" 0 "$(dev_counter v waits_space)"
	go_on
	step "drain" dev_command v drain
	finish
}

# A write waits for one past the cache.
item_past() {
	begin
	step "past the cache from 64 KiB" dev_command v set bypass_limit 65536
	hang
	put /tmp/a 64K 16 &
	past=$!
	step "a write is past the cache" until_true 90 is bypassing 1
	pids=()
	for n in 20 24 28; do
		put /tmp/ab 64K $n &
		pids+=($!)
	done
	step "four are" until_true 90 is bypassing 4
	put /tmp/b 4K 256 &
	cached=$!
	step "one to the cache waits for the block" until_true 90 has waits_block 1
	blkdiscard -f -z -o $((16 * 65536 + 32768)) -l 4096 "$device" &
	zeroes=$!
	sleep 0.5
	waiting "the write past the cache" $past
	waiting "the write behind it" $cached
	waiting "the zeroing behind it" $zeroes
	go_on
	ends "the write past the cache" $past
	for n in "${pids[@]}"; do ends "another" "$n"; done
	ends "the write behind it" $cached
	ends "the zeroing behind it" $zeroes
	(head -c 4096 /tmp/b && head -c 32768 /tmp/a | tail -c +4097 && head -c 4096 /dev/zero && tail -c +36865 /tmp/a) >/tmp/wanted
	dd if="$device" bs=64K skip=16 count=1 iflag=direct status=none >/tmp/back
	step "in this order" cmp /tmp/wanted /tmp/back
	same "none is past the cache" 0 "$(dev_counter v bypassing)"
	finish
}

# A part of a write is past the cache, and its rest waits for a block that another request
# holds.
item_rest() {
	local half=$((16 << 20))
	begin
	step "past the cache from 64 KiB" dev_command v set bypass_limit 65536
	step "half of the origin stands still" dmsetup suspend --noflush --nolockfs upper
	put /tmp/a 64K 256 &
	upper=$!
	step "a write is past the cache" until_true 90 is bypassing 1
	dd if=/tmp/ab of="$device" bs=128K seek=$((half - 65536)) count=1 oflag=direct,seek_bytes status=none &
	both=$!
	step "another, to both halves, waits" until_true 90 has waits_block 1
	sleep 0.5
	waiting "the write" $upper
	waiting "the other" $both
	step "it goes on" dmsetup resume --noudevsync upper
	ends "the write" $upper
	ends "the other" $both
	dd if="$device" bs=64K skip=255 count=2 iflag=direct status=none >/tmp/back
	step "in this order" cmp /tmp/ab /tmp/back
	finish
}

# Drains are killed.
item_drains() {
	begin
	step "write" put /tmp/b 64K 4
	hang
	drain >/dev/null 2>&1 &
	first=$!
	step "a drain" until_true 90 is draining 1
	drain >/dev/null 2>&1 &
	second=$!
	sleep 0.5
	waiting "the drain" $first
	waiting "the second drain" $second
	kill -9 $second
	step "it is killed" until_true 90 gone $second
	same "the other drains" 1 "$(dev_counter v draining)"
	kill -9 $first
	step "so is the other" until_true 90 gone $first
	step "nobody drains" until_true 90 is draining 0
	go_on
	finish
}

# Writers wait for space, or write past the full pool.
item_full() {
	begin
	hang
	step "a block that is cached" put /tmp/a 64K 497
	dd if=/dev/zero of="$device" bs=1M count=30 oflag=direct status=none &
	writer=$!
	step "the pool is full" until_true 90 has waits_space 1
	step "past the cache from 64 KiB" dev_command v set bypass_limit 65536
	put /tmp/ab 128K 248 &
	mixed=$!
	step "a write begins past the cache, and not all of it may" until_true 90 has bypassing 1
	step "the full pool may be passed by" dev_command v set when_full bypass
	step "who waited goes past it" until_true 90 has bypassing 2
	waiting "the writer" $writer
	waiting "the mixed write" $mixed
	step "no more" dev_command v set when_full wait
	go_on
	ends "the writer" $writer
	ends "the mixed write" $mixed
	same "what it wrote" 0 "$(head -c 31457280 "$device" | tr -d '\0' | wc -c)"
	dd if="$device" bs=128K skip=248 count=1 iflag=direct status=none >/tmp/back
	step "what the other wrote" cmp /tmp/ab /tmp/back
	step "drain" dev_command v drain
	dd if=/dev/mapper/o bs=128K skip=248 count=1 iflag=direct status=none >/tmp/back
	step "so has the origin" cmp /tmp/ab /tmp/back
	finish
}

# A writer that waits for space is woken.  Otherwise it looks every 20 ms, and not all the
# time.
tries_seldom() {
	local began=$EPOCHREALTIME before tries most
	before=$(dev_counter v waits_space)
	sleep 0.5
	tries=$(($(dev_counter v waits_space) - before))
	most=$((20 + (${EPOCHREALTIME/./} - ${began/./}) / 5000))
	[ $tries -le $most ] || fail "who waits for space tried $tries times, wanted $most at most"
}

# The memory of a write is one piece, so the module writes it by one call.  The write finds
# no space in its middle, and its rest waits, or goes past the cache.
item_middle() {
	local sectors=$((2 << 11)) way
	begin
	echo 2 >/proc/sys/vm/nr_hugepages
	step "writers are not held back before the pool is full" dev_command v set high_watermark 100
	for way in waits passes; do
		hang
		"$requests" "$device" /tmp/whole whole &
		writer=$!
		step "the pool is full" until_true 90 has waits_space 1
		tries_seldom
		waiting "the writer" $writer
		[ $(($(dev_counter v written_sectors) % sectors)) != 0 ] || fail "it found no space at the start of a write"
		if [ $way = passes ]; then
			step "the full pool may be passed by" dev_command v set when_full bypass
			step "the rest goes past it" until_true 90 has bypassing 1
		fi
		go_on
		ends "the writer" $writer
		step "what it wrote" "$requests" "$device" /tmp/whole wholly
		step "drain" dev_command v drain
		step "so has the origin" "$requests" /dev/mapper/o /tmp/whole wholly
		step "clear the counters" dev_command v clear_stats
	done
	[ "$(dev_counter v bypassed_sectors)" != 0 ] || fail "nothing went past the full pool"
	finish
}

# The cache is removed while they wait.
item_gone() {
	begin
	step "write" put /tmp/a 64K 497
	hang
	dd if=/dev/zero of="$device" bs=1M count=30 oflag=direct status=none 2>/dev/null &
	writer=$!
	step "the pool is full" until_true 90 has waits_space 1
	drain >/dev/null 2>&1 &
	first=$!
	step "a drain" until_true 90 is draining 1
	blkdiscard -f -z -o 0 -l 4096 "$device" 2>/dev/null &
	zeroes=$!
	sleep 0.5
	waiting "the writer" $writer
	waiting "the drain" $first
	waiting "the zeroing" $zeroes
	namespace=$(basename "$(readlink -f /sys/block/pmem0/device)")
	(echo "$namespace" >/sys/bus/nd/drivers/nd_pmem/unbind) &
	ends "unbinding the cache device" $!
	ends_badly "the writer" $writer
	ends_badly "the drain" $first
	ends_badly "the zeroing" $zeroes
	same "state" media_gone "$(dev_state v)"
	go_on
	dd if="$device" of=/dev/null bs=4K count=1 iflag=direct status=none 2>/dev/null && fail "a read without the cache"
	put /tmp/a 4K 0 2>/dev/null && fail "a write without the cache"
	dev_command v drain >/dev/null 2>&1 && fail "a drain without the cache"
	dev_command v set idle 5 >/dev/null 2>&1 && fail "an option without the cache"
	step "detach" dev_detach v
	step "the pool could not be closed" eval 'dmesg | grep -q "not closed cleanly: the device was taken away"'
	echo "$namespace" >/sys/bus/nd/drivers/nd_pmem/bind
	step "the cache is back" until_true 90 test -b $pool
	step "attach" dev_attach v /dev/mapper/o v
	dd if="$device" bs=64K skip=497 count=1 iflag=direct status=none >/tmp/back
	step "what was acknowledged is there" cmp /tmp/a /tmp/back
	step "detach" dev_detach v
	step "forebay check" forebay check $pool
	end
}

# Nothing waits here: the cache lies in two pieces.
item_pieces() {
	begin
	step "detach" dev_detach v
	dd if=/dev/zero of=/dev/pmem1 bs=1M count=16 oflag=direct status=none
	dd if=/dev/zero of=$pool bs=1M count=16 oflag=direct status=none
	step "a cache of two pieces" dmsetup create --noudevsync --noudevrules two \
		--table "$(printf '0 16384 linear %s 0\n16384 16384 linear /dev/pmem1 0' $pool)"
	dmsetup mknodes two
	step "attach" eval "pool=/dev/mapper/two dev_attach w /dev/mapper/o w create"
	step "fill, and read" "$requests" "$device" /tmp/copy fill read
	dd if=/dev/zero of="$device" bs=1M count=12 seek=4 oflag=direct status=none || fail "writing to both pieces"
	step "read" "$requests" "$device" /tmp/copy read
	step "detach" dev_detach w
	step "forebay check" forebay check /dev/mapper/two
	dmsetup remove --noudevsync two
	end
}

quick_tools
for name in a b; do dd if=/dev/urandom of=/tmp/$name bs=64K count=1 status=none; done
cat /tmp/a /tmp/b >/tmp/ab
for item in ${*:-late past rest drains full middle gone pieces}; do
	item_$item
done
clean_dmesg
echo "waits-$kind: $passed passed"
