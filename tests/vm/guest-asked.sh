# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a program may write in any way to a device of the module, and ask in any way that this be
# durable.  Then what was acknowledged is there after a power cut of the pool and of the disk, which
# loses what was not flushed, or the call gives an error.
# Method: device_asked.c makes each way to write x each way to ask.  As soon as a cell is
# acknowledged, its range of the disk is cut (a mark of dm-log-writes).  A second device over the
# first says what the volume has: the page cache's is lost.  The pool's power is cut as in
# guest-volatile.sh.
#	$1...	MODE-KIND: cached, large, static, through; target or native; planted: a module that
#		tells writes past the cache that they were flushed must be found
. "$(dirname "$0")/guest-lib.sh"
asked=$root/out/vm/device_asked
replay=$root/out/vm/replay
sectors=$("$asked" sectors) cell=$("$asked" cell)
declare -A options=([cached]="" [static]="" [large]="bypass_limit 16384" [through]="mode write-through")
namespace=$(basename "$(readlink -f "/sys/block/${pool##*/}/device")")

# live is what the guest sees, platter what survives.
step "disks" eval "
dmsetup create --noudevsync --noudevrules live --table '0 $sectors linear /dev/ram0 0'
dmsetup create --noudevsync --noudevrules platter --table '0 $sectors linear /dev/ram1 0'
dmsetup create --noudevsync --noudevrules log --table '0 1900000 linear /dev/ram2 0'
dmsetup mknodes && test -b /dev/mapper/log"

attach_disk() { # MODE [create]
	dd if=/dev/mapper/platter of=/dev/mapper/live bs=1M iflag=direct oflag=direct status=none
	dd if=/dev/zero of=/dev/mapper/log bs=4096 count=1 oflag=direct status=none
	step "a disk" dmsetup create --noudevsync --noudevrules disk --table "0 $sectors log-writes /dev/mapper/live /dev/mapper/log"
	dmsetup mknodes disk
	[ "$1" != static ] || [ -z "${2:-}" ] ||
		step "a static volume" forebay volume add $pool v /dev/mapper/disk --origin-by-name --static 24M
	[ "$1" = static ] || set -- "$1" "${2:-}"
	# Nothing is written back by itself.
	# shellcheck disable=SC2086 # words
	step "attach" dev_attach v /dev/mapper/disk v $([ "$1" = static ] || echo "${2:-}") max_age 0 idle 0 high_watermark 95 low_watermark 90 ${options[$1]}
}

# table MODE: exit code of the check.
table() {
	local mode=$1 code=0
	step "make the pool" forebay create $pool --force --chunk-size 256K $([ "$mode" != static ] || echo --static 24M)
	step "old bytes" "$asked" old /dev/mapper/platter
	attach_disk "$mode" create
	step "a view" dmsetup create --noudevsync --noudevrules view --table "0 $sectors linear $device 0"
	dmsetup mknodes view
	step "all cells" "$asked" run "$device" /dev/mapper/view disk /tmp/record
	step "the power of the pool is cut" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/unbind"
	dmsetup message disk 0 mark cut || fail "mark"
	step "the view" dmsetup remove --noudevsync --retry view
	step "detach" dev_detach v
	step "the log is written" dmsetup remove --noudevsync --retry disk
	step "the disk of each cell" "$replay" /dev/mapper/log /dev/mapper/platter cut "$cell"
	step "it is back" eval "echo $namespace >/sys/bus/nd/drivers/nd_pmem/bind"
	until_true 60 test -b $pool || fail "no $pool"
	if [ "$mode" = through ]; then
		"$asked" check /dev/mapper/platter /tmp/record >/tmp/checked || code=$?
	else
		attach_disk "$mode"
		"$asked" check "$device" /tmp/record >/tmp/checked || code=$?
		step "detach" dev_detach v
		step "the disk" dmsetup remove --noudevsync --retry disk
	fi
	return $code
}

for item in "$@"; do
	if [ "$item" = planted ]; then
		kind=native mode=large
		load_module asked-past
		if table large; then fail "not found: a write past the cache that is not flushed"; fi
		grep -q 'LOST: the volume had it' /tmp/checked || fail "the check broke: $(tail -n 3 /tmp/checked)"
		echo "ok: found: $(tail -n 1 /tmp/checked)"
	else
		kind=${item#*-} mode=${item%-*}
		load_module
		table "$mode" || { grep -v refused /tmp/checked; fail "$item: the table does not hold"; }
		# A block device always refuses these calls.
		grep 'refused: ' /tmp/checked | grep -vE 'copy_file_range|punch' && fail "$item: refused"
		grep 'refused: ' /tmp/checked | sed 's/^asked: refused: \([^ ]*\) [^:]*: /asked: \1: refused, /' | sort | uniq -c | sed 's/^ *\([0-9]*\) asked: /asked: \1 of /'
		echo "ok: $item: $(tail -n 1 /tmp/checked | sed 's/^asked: //')"
	fi
	step "unload" /run/busybox rmmod forebay
done
clean_dmesg
echo "asked: $passed passed"
