# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: each call of the module does what it says, and says what it did: requests of every shape,
# counters, options, commands, refusals.
# Method: small steps, one after the other, whose outcome is known to the last sector (requests.c
# has a copy of the device).  There is no file system and no fio, so it takes seconds.  The guest
# has one CPU. With two a writer takes the other slot where it meets the one that seals its own.
# Then it is chance which chunk a write ends, and so which is counted twice.
#	$1 target or native
. "$(dirname "$0")/guest-lib.sh"
kind=$1
requests=$root/out/vm/requests
copy=/tmp/copy

# same TEXT WANTED HAS
same() {
	[ "$2" = "$3" ] || fail "$1: $3, wanted $2"
	passed=$((passed + 1))
}
# counts NAME=DIFFERENCE...: since the last `counts` or `counted`.
declare -A was
counted() {
	local word
	for word in $(dev_status v); do was[${word%%=*}]=${word#*=}; done
}
counts() {
	local word name
	local -A before
	for name in "${!was[@]}"; do before[$name]=${was[$name]}; done
	counted
	for word; do
		name=${word%=*}
		same "the counter $name" "${word#*=}" $((was[$name] - before[$name]))
	done
}
at_least() { # NAME NUMBER
	local has
	has=$(dev_counter v "$1")
	[ "$has" -ge "$2" ] || fail "$1 is $has, wanted $2 or more"
	passed=$((passed + 1))
}
run() { step "$*" "$requests" "$device" $copy "$@"; }
# on_origin FILE BYTES [FROM]: the data of FILE is on the origin; FROM: in requests of
# BYTES.
on_origin() {
	dd if=$origin bs="$2" count=1 skip="${3:-0}" iflag=direct,fullblock status=none 2>/tmp/cmp | cmp -n "$2" "$1" - >>/tmp/cmp 2>&1 ||
		fail "the origin does not have what was written: $(cat /tmp/cmp)"
}
clean() { [ "$(dev_counter v pages)" = 0 ]; }
options_of() { # prints the device's options without its location
	if [ "$kind" = target ]; then
		dmsetup table v | sed 's/.* v \([0-9]\)/v \1/'
	else
		control list | sed -n 's/^forebay[0-9]* [^ ]* [^ ]* //p'
	fi
}
# wrong TEXT PATTERN ORIGIN VOLUME OPTIONS...: the attach is refused, with the reason.
wrong() {
	local device
	refused "$1" "$2" dev_attach x "${@:3}"
}
# not_now TEXT WORDS...: a command that is refused.
not_now() { refused "$1" "" dev_command v "${@:2}"; }
# unnamed ...: like dev_attach, without the word that the origin's name will do.
unnamed() { by_name='' dev_attach "$@"; }

quick_tools
load_module
# The mapper gives the device the abilities of its origin, and a RAM disk cannot zero.
disk=/dev/ram0
if [ "$kind" = target ]; then
	disk=/dev/loop0
	truncate -s 64M /run/disk
	step "a disk that can zero" losetup $disk /run/disk
fi
step "disks" dmsetup create --noudevsync --noudevrules o --table "0 65536 linear $disk 0"
dmsetup mknodes o
origin=/dev/mapper/o

# --- attaching -----------------------------------------------------------------

wrong "a pool where none is" "not a forebay\|no forebay\|no pool\|blank" $origin v
wrong "an option that is none" "unknown option" $origin v create frob 1
refused "an option without its value" "value is missing" unnamed x $origin v create idle
for word in "writeback_jobs 0" "writeback_jobs 65" "writeback_jobs x" "slots 0" "slots 65" "holes frob" "start_sector 4" \
	"start_sector x" "verify frob" "checksums frob" "max_age x" "bypass_limit x" "bypass_limit 2199023255041" "when_full frob" \
	"mode frob" \
	"origin_id $(printf '%0300d' 0)"; do
	# shellcheck disable=SC2086 # words
	wrong "$word" "invalid value" $origin v create $word
done
wrong "a start beyond the end" "beyond the end" $origin v create start_sector 8000000
wrong "a name that is too long" "too long" $origin "$(printf '%0300d' 0)" create
refused "an origin known by its name alone" "no id" unnamed v $origin v create
if [ "$kind" = target ]; then
	refused "the cache as its own origin" "same device" dev_attach x $pool v create
	refused "too few words" "wanted: origin" dmsetup create x --table "0 65536 forebay $origin $pool"
	refused "more words than said" "too many" dmsetup create x --table "0 65536 forebay $origin $pool v 1 create idle 1"
	refused "fewer words than said" "" dmsetup create x --table "0 65536 forebay $origin $pool v 9 create"
	refused "no such cache" "no such cache" dmsetup create x --table "0 65536 forebay $origin /dev/none v 1 create"
	refused "no such origin" "origin cannot be opened" dmsetup create x --table "0 65536 forebay /dev/none $pool v 1 create"
else
	refused "too few words" "wanted: attach" control attach $pool $origin
	refused "no such cache" "no such cache" control attach /dev/none $origin v create
	refused "no such origin" "no such origin" control attach $pool /dev/none v create
	refused "a number that is none" "no such cache" control attach 9:9x $origin v create
	for word in "" frob "frob x" detach "status" "command" "detach forebay9" "status forebay9" "command forebay9 flush"; do
		# shellcheck disable=SC2086 # words
		refused "control: $word" "wanted: attach, detach\|no such device" control $word
	done
fi
step "attach" dev_attach v $origin v create max_age 0 idle 0
same "options" "v 15 high_watermark 60 low_watermark 50 max_age 0 idle 0 verify always checksums on writeback_jobs 16 origin_by_name" "$(options_of)"
same "state" ok "$(dev_state v)"
same "size" 65536 "$(blockdev --getsz "$device")"
same "blocks" "512 4096" "$(blockdev --getss --getpbsz "$device" | xargs)"
node=$(node v)
[ "$kind" = native ] || node=$(dmsetup info -c --noheadings -o blkdevname v)
limit() { cat "/sys/block/$node/queue/$1"; }
same "limits" "4096 0 write through" "$(limit minimum_io_size) $(limit fua) $(limit write_cache)"
[ "$(limit discard_max_bytes)" -gt 1000000 ] && [ "$(limit write_zeroes_max_bytes)" -gt 1000000 ] || fail "limits of ranges"
if [ "$kind" = native ]; then
	same "sysfs" v "$(cat "/sys/block/$node/forebay/volume")"
	same "sysfs" "$(dev_status v | sed 's/.*pool=\([^ ]*\).*/\1/')" "$(cat "/sys/block/$node/forebay/pool")"
	same "the largest request" 2147483647 "$(limit max_hw_sectors_kb)"
	refused "the origin to others" "busy" mount -o ro $origin /mnt
fi
dev_command x flush 2>/dev/null && fail "a device that is not there took a command"
wrong "the volume once more" "in use by another\|for us alone" $origin v
first=$device
[ -e /dev/pmem1p1 ] || step "partitions" eval 'addpart /dev/pmem1 1 2048 32768 && addpart /dev/pmem1 2 36864 32768'
step "a volume of another pool" eval "pool=/dev/pmem1p1 dev_attach w /dev/ram2 w create"
step "one beside it on its device" eval "pool=/dev/pmem1p2 dev_attach x /dev/ram1 x create"
pool_of() { dev_status "$1" | sed 's/.*pool=\([^ ]*\).*/\1/'; }
[ "$(pool_of v)" != "$(pool_of w)" ] && [ "$(pool_of x)" != "$(pool_of w)" ] || fail "two devices are one pool"
step "detach" dev_detach w
step "again" eval "pool=/dev/pmem1p1 dev_attach w /dev/ram2 w"
step "detach" dev_detach x
step "detach" dev_detach w
device=$first

# --- requests, all cached ----------------------------------------------------------

counted
run fill
counts writes=128 written_sectors=1024 reads=0 zeroes=0 discards=0 merges=0 origin_writes=0 bypasses=0
same "pages" 128 "$(dev_counter v pages)"
run shapes
counts writes=256 written_sectors=2424 merges=51
run read
counted
run fill read
counts zeroes=0 origin_writes=0 bypasses=0 waits_space=0
[ "$(dev_counter v read_hit_sectors)" -gt 3000 ] && [ "$(dev_counter v read_miss_sectors)" -gt 10000 ] || fail "$(dev_counter v read_hit_sectors) hits and $(dev_counter v read_miss_sectors) misses"
run nowait read
run large read zeroes read discards read
at_least zeroes 30
at_least discards 5
same "destage has not begun" 0 "$(dev_counter v origin_writes)"
same "requests past the cache" 0 "$(dev_counter v bypasses)"

# --- drained, and partly cached ---------------------------------------------------

before=$(dev_counter v origin_flushes)
step "drain" dev_command v flush
same "pages" 0 "$(dev_counter v pages)"
[ "$(dev_counter v origin_writes)" -gt 0 ] && [ "$(dev_counter v origin_flushes)" -gt "$before" ] && [ "$(dev_counter v rounds)" -gt 0 ] ||
	fail "nothing was destaged"
on_origin $copy $((4 << 20))
run read shapes read
[ "$(dev_counter v draining)" = 0 ] || fail "it still drains"
step "drain once more, by the other name" dev_command v drain
same "pages" 0 "$(dev_counter v pages)"

# --- commands -----------------------------------------------------------------------

not_now "a command that is none" frob
not_now "a command with a word too many" flush now
not_now "half a command" set idle
for word in "verify frob" "idle x" "high_watermark 10" "low_watermark 100" "frob 1" "bypass_limit x" "when_full frob" "metadata_only x" "mode x"; do
	# shellcheck disable=SC2086 # words
	not_now "set $word" set $word
done
step "set" dev_command v set verify first
step "set" dev_command v set checksums off
step "set" dev_command v set low_watermark 20
step "set" dev_command v set high_watermark 70
step "set" dev_command v SET idle 1000
step "set" dev_command v set max_age 100000
step "set" dev_command v set bypass_limit 16385
step "set" dev_command v set when_full bypass
step "set" dev_command v set metadata_only on
same "options" "v 20 high_watermark 70 low_watermark 20 max_age 100000 idle 1000 verify first checksums off writeback_jobs 16 bypass_limit 16896 when_full bypass origin_by_name metadata_only" "$(options_of)"
run fill
at_least bypasses 128 # none of them is metadata
step "set" dev_command v set metadata_only off
step "set" dev_command v set when_full wait
step "set" dev_command v set checksums on
step "set" dev_command v set idle 0
same "options" "v 17 high_watermark 70 low_watermark 20 max_age 100000 idle 0 verify first checksums on writeback_jobs 16 bypass_limit 16896 origin_by_name" "$(options_of)"
step "drain" dev_command v drain
step "clear the counters" dev_command v clear_stats
for word in writes written_sectors reads zeroes origin_writes origin_flushes rounds pages_destaged; do
	same "$word, cleared" 0 "$(dev_counter v $word)"
done

counted
step "one zeroing" blkdiscard -f -z -o $((2 << 20)) -l 4096 "$device"
counts zeroes=1 discards=0
step "one discard" blkdiscard -f -o $((2 << 20)) -l 4096 "$device"
counts zeroes=0 discards=1
rm -f $copy && dd if="$device" of=$copy bs=1M count=4 iflag=direct status=none
if [ "$kind" = target ]; then # a zeroing may give up what the disk has there, or may not
	allocated() { stat -c %b /run/disk; }
	some_data() { dd if=/dev/urandom of="$device" bs=1M count=1 seek=24 oflag=direct status=none && dev_command v drain; }
	# The file cannot zero in place.  A loop device that has learnt that does not zero any
	# more.  So a new loop device is needed, and this order.
	disk=/dev/loop1
	step "the same disk, as new" losetup $disk /run/disk
	echo "0 65536 linear $disk 0" | dmsetup load o && dmsetup suspend --noflush --nolockfs o && dmsetup resume --noudevsync o
	step "write, and drain" some_data
	before=$(allocated)
	step "a zeroing that need not keep its place" fallocate -p -o $((24 << 20)) -l $((1 << 20)) "$device"
	same "what the disk has allocated" $((before - 2048)) "$(allocated)"
	step "write, and drain" some_data
	same "what the disk has allocated" "$before" "$(allocated)"
	step "one that keeps its place" blkdiscard -f -z -o $((24 << 20)) -l $((1 << 20)) "$device"
	same "what the disk has allocated" "$before" "$(allocated)"
fi

# --- past the cache -------------------------------------------------------------------

step "bypass from 64 KiB" dev_command v set bypass_limit 65536
counted
dd if=/dev/urandom of=/tmp/data bs=64K count=1 status=none
dd if=/tmp/data of="$device" bs=65024 count=1 seek=8454144 oflag=direct,seek_bytes iflag=fullblock status=none || fail "a write"
counts bypasses=0 writes=1
dd if=/tmp/data of="$device" bs=64K count=1 seek=160 oflag=direct status=none
counts bypasses=1 bypassed_sectors=128 writes=0
on_origin /tmp/data 65536 160
dd if=/tmp/data of="$device" bs=4K count=1 seek=$((160 * 16)) oflag=direct status=none
counted
dd if=/tmp/data of="$device" bs=64K count=1 seek=160 oflag=direct status=none
counts bypasses=1 bypassed_sectors=120 writes=1 # its first block is cached
run large read
[ "$(dev_counter v bypasses)" -gt 0 ] || fail "no large write went past the cache"
step "no bypass" dev_command v set bypass_limit 0
run large read
step "drain" dev_command v flush
on_origin $copy $((4 << 20))

# --- full, and an origin that does not answer or fails -----------------------------------

step "the origin stands still" dmsetup suspend --noflush --nolockfs o
dd if=/dev/zero of="$device" bs=1M count=30 oflag=direct status=none &
writer=$!
waits() { [ "$(dev_counter v waits_space)" -gt 0 ]; }
step "a writer waits for space" until_true 100 waits
kill -0 $writer || fail "it does not"
step "the origin goes on" dmsetup resume --noudevsync o
step "so does the writer" wait $writer
same "what it wrote" 0 "$(head -c 31457280 "$device" | tr -d '\0' | wc -c)"
counted
echo "0 65536 error" | dmsetup load o && dmsetup suspend --noflush --nolockfs o && dmsetup resume --noudevsync o
dd if=/tmp/data of="$device" bs=4K count=3 oflag=direct status=none || fail "a write to the cache beside an origin that fails"
refused "drain" "error" dev_command v drain
same "state" origin_failed "$(dev_state v)"
dd if="$device" of=/dev/null bs=4K count=1 skip=8000 iflag=direct status=none 2>/dev/null && fail "a read of an origin that fails"
dd if="$device" of=/tmp/back bs=4K count=3 iflag=direct status=none && cmp -n 12288 /tmp/data /tmp/back || fail "a read of the cache"
blkdiscard -f -z -o $((16 << 20)) -l 1048576 "$device" 2>/dev/null && fail "a zeroing of an origin that fails"
step "bypass" dev_command v set bypass_limit 4096
dd if=/tmp/data of="$device" bs=64K count=1 seek=200 oflag=direct status=none 2>/dev/null && fail "a write past the cache to an origin that fails"
step "no bypass" dev_command v set bypass_limit 0
echo "0 65536 linear $disk 0" | dmsetup load o && dmsetup suspend --noflush --nolockfs o && dmsetup resume --noudevsync o
sleep 1 # requests under way have failed
step "drain, when it is well again, and not what failed before" dev_command v drain
same "state" ok "$(dev_state v)"
on_origin /tmp/data 12288

# --- detaching, and again --------------------------------------------------------------------

dd if=$origin of=$copy bs=1M count=4 iflag=direct status=none
run fill
pages=$(dev_counter v pages)
exec 9<"$device"
refused "detaching what is open" "busy\|is open" dev_detach v
exec 9<&-
if [ "$kind" = native ]; then
	refused "detaching what is not clean, if clean" "written since" control detach "$(node v)" clean
fi
step "detach" dev_detach v
step "attach" dev_attach v $origin v cleaner slots 1 writeback_jobs 1 holes isolate max_age 0 idle 0 flush_on_suspend
same "options" "v 19 high_watermark 60 low_watermark 50 max_age 0 idle 0 verify always checksums on writeback_jobs 1 slots 1 origin_by_name cleaner flush_on_suspend" "$(options_of)"
run read
step "a cleaner needs no command" until_true 60 clean
run fill read
step "a cleaner needs no command" until_true 60 clean
if [ "$kind" = native ]; then
	step "detach, if clean" control detach "$(node v)" clean
	test -e "/dev/$node" && fail "its node is still there"
else
	step "detach" dev_detach v
fi
step "attach" dev_attach v $origin v max_age 0 idle 0
if [ "$kind" = target ]; then
	run fill
	step "flush on suspend" dev_command v flush_on_suspend
	step "suspend" dmsetup suspend v
	same "state" suspended "$(dev_state v)"
	same "pages" 0 "$(dev_counter v pages)"
	not_now "drain what is suspended" drain
	step "resume" dmsetup resume --noudevsync v
	same "state" ok "$(dev_state v)"
fi
step "a cleaner" dev_command v cleaner
run shapes read
step "a cleaner needs no command" until_true 60 clean
step "back to write-back" dev_command v set mode write-back
same "draining" 0 "$(dev_counter v draining)"
run fill
counted
step "write-through, over what is cached" dev_command v set mode write-through
run shapes read
on_origin $copy $((4 << 20)) # nothing is waited for
step "nor is it cached" until_true 60 clean
run large zeroes read
on_origin $copy $((4 << 20))
at_least bypasses 100
step "detach" dev_detach v
step "attach" dev_attach v $origin v mode write-through
same "options" "mode write-through" "$(options_of | grep -o "mode.*")"
run discards read
step "detach" dev_detach v
step "its pool" forebay check $pool

# --- other origins --------------------------------------------------------------------------------

dmsetup create --noudevsync --noudevrules p --table "0 65536 linear /dev/ram1 0"
dmsetup create --noudevsync --noudevrules less --table "0 65528 linear /dev/ram1 0"
dmsetup create --noudevsync --noudevrules more --table "0 65537 linear /dev/ram1 0"
dmsetup mknodes
wrong "another origin" "not the one" /dev/mapper/p v
wrong "another id" "not the one" $origin v origin_id serial:1
refused "a name without consent" "cannot be told" unnamed x /dev/mapper/p v
wrong "a smaller one" "smaller" /dev/mapper/less v accept_changed_origin
wrong "a larger one" "not the one" /dev/mapper/more v
step "a volume by id" dev_attach w /dev/mapper/p w create origin_id serial:7
step "detach" dev_detach w
step "by its path, if that will do" dev_attach w /dev/mapper/p w
step "detach" dev_detach w
refused "without its id" "cannot be told" unnamed w /dev/mapper/p w
wrong "by another id" "not the one" /dev/mapper/p w origin_id serial:77
step "by its id, elsewhere" unnamed w $origin w origin_id serial:7
step "detach" dev_detach w
wrong "its id, but larger" "larger" /dev/mapper/more w origin_id serial:7
step "its id, and it may grow" dev_attach w /dev/mapper/more w origin_id serial:7 accept_changed_origin
same "size" 65537 "$(blockdev --getsz "$device")"
step "detach" dev_detach w
wrong "a volume that is not there" "no such volume" $origin none
[ "$kind" = target ] || refused "it, with its number" "error 2 no such volume" control attach $pool $origin none $by_name
if [ "$kind" = target ]; then
	# One device holds the volume while another accepts a changed origin.
	step "attach" dev_attach v $origin v
	step "suspend" dmsetup suspend v
	step "another attaches it, on another origin" control attach $pool /dev/mapper/p v $by_name accept_changed_origin
	read -r _ other </tmp/answer
	refused "resuming beside it" "" dmsetup resume --noudevsync v
	step "detach the other" control detach "$other"
	refused "resuming on what is not its origin any more" "not the one the volume was made for" dmsetup resume --noudevsync v
	step "remove" dmsetup remove --noudevsync v
	step "attach, on the first again" dev_attach v $origin v accept_changed_origin
	step "detach" dev_detach v
fi
step "unload" /run/busybox rmmod forebay
step "the pool" forebay check $pool
step "the others" eval "forebay check /dev/pmem1p1 && forebay check /dev/pmem1p2"

# --- a part of the media ---------------------------------------------------------------------------

load_module
wrong "in the middle of a pool" "damaged\|not blank" $origin v create start_sector 2048
dd if=/dev/zero of=$pool bs=1M oflag=direct status=none 2>/dev/null
step "a pool in the middle" dev_attach v $origin v create start_sector 8 max_age 0 idle 0
wrong "the same with another start" "another start_sector\|for us alone" /dev/mapper/p x create
rm $copy
dd if=$origin of=$copy bs=1M count=4 iflag=direct status=none
run fill shapes read
same "options" "v 17 high_watermark 60 low_watermark 50 max_age 0 idle 0 verify always checksums on writeback_jobs 16 start_sector 8 origin_by_name" "$(options_of)"
step "detach" dev_detach v
same "nothing is written before it" 0 "$(dd if=$pool bs=4K count=1 iflag=direct status=none | tr -d '\0' | wc -c)"
step "unload" /run/busybox rmmod forebay
for name in o p less more; do dmsetup remove --noudevsync $name; done
[ "$kind" = native ] || losetup -d /dev/loop0 $disk
clean_dmesg
grep "not closed cleanly" /tmp/dmesg.before && fail "a pool was not closed cleanly"
echo "requests-$kind: $passed passed"
