# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: which mutants of the module the other scripts find.  Method: one after the other
# is put on, and its steps are run until one fails.  After a failure the module has to
# go and to work again without a mutant; else the guest ends, and the next one goes on.
# The console has lines of a number, the seconds that a step may be silent, and
# STEP[:ARGUMENT]...; -1 is no mutant, but tells which ones a step comes past.
. "$(dirname "$0")/guest-lib.sh"
export planted=mutants
plain_path=$PATH # for the steps, which take the quick tools if those suffice
quick_tools
parameters=/sys/module/mutant/parameters

blank() {
	local disk
	for disk in /dev/pmem?; do dd if=/dev/zero of="$disk" bs=1M oflag=direct status=none 2>/dev/null; done
	for disk in /dev/ram?; do blkdiscard -f "$disk" 2>/dev/null; done
	rm -rf /tmp/*
	mkdir -p /tmp
	: >/tmp/dmesg.before
	dmesg -c >/dev/null
}

# Removes everything that a step left, even in the kernel.
tidy() {
	local name
	echo 0 >$parameters/on
	for name in fio dd fsx ackload requests blkdiscard; do /run/busybox killall -9 "$name" 2>/dev/null; done
	exec 9<&-
	dmsetup ls | cut -f1 | while read -r name; do dmsetup resume --noudevsync "$name"; done 2>/dev/null
	umount /tmp/mnt 2>/dev/null
	[ ! -e /dev/forebay-control ] || control list | sed -n 's/^\(forebay[0-9]*\) .*/\1/p' | while read -r name; do control detach "$name"; done
	dmsetup remove_all --noudevsync --retry 2>/dev/null
	dmsetup remove_all --noudevsync --retry 2>/dev/null
	losetup -D
	[ ! -e /sys/module/forebay ] || /run/busybox rmmod forebay || return
	! dmsetup ls | grep -q . && dmesg >/tmp/line && ! complaints /tmp/line && blank
}
works() {
	(load_module && dev_attach a /dev/ram0 a create && dd if=/dev/zero of="$device" bs=64K count=4 oflag=direct status=none &&
		dev_command a flush && dev_detach a && /run/busybox rmmod forebay && clean_dmesg) && blank && blkdiscard -z -l 4096 $pool
}

# listen PID SECONDS: reads the output of a step.  Returns 124 after ending a step that was
# silent for this long.  Sets $longest, the longest silence.
listen() {
	local last=$SECONDS silent
	longest=0
	exec 6</run/said
	while ! ended "$1"; do
		silent=$((SECONDS - last))
		[ $silent -le $longest ] || longest=$silent
		if [ $silent -ge "$2" ]; then
			kill "$1" # timeout, and so all that it started
			wait "$1"
			return 124
		fi
		while read -r -u 6; do last=$SECONDS; done
		read -r -t 0.5 -u 7 # sleeps, and starts no program
	done
	wait "$1"
}

# try NUMBER SECONDS STEP...: returns 1 if a step failed or was silent for so long, and left
# something.
try() {
	local number=$1 seconds=$2 name began rc
	shift 2
	for name; do
		echo "mutant: $number $name begins"
		blank
		echo "$number" >$parameters/on
		began=$SECONDS
		: >/run/said
		# shellcheck disable=SC2046 # words
		PATH=$plain_path timeout -k 5 36000 bash "$root/tests/vm/guest-${name%%:*}.sh" $(tr : ' ' <<<"${name#"${name%%:*}"}") \
			>/run/said 2>&1 </dev/null &
		listen $! "$seconds"
		rc=$?
		[ "$number" != -1 ] || echo "mutant: $number $name reached $(cat $parameters/reached)"
		if [ $rc = 0 ]; then
			echo "mutant: $number $name passed $((SECONDS - began)) $longest"
			continue
		fi
		echo "mutant: $number $name failed $((SECONDS - began)) $rc $( (grep -aE -m 1 '^FAIL' /run/said || tail -n 1 /run/said) | cut -c1-150)"
		[ $rc != 124 ] || return # who does not end cannot be made to
		(tidy && kind=native works) >/run/said 2>&1 &
		until_true 40 ended $! && wait $!
		return
	done
}
ended() { ! kill -0 "$1" 2>/dev/null; }

step "load mutant.ko" /run/busybox insmod "$root/out/kernel-$release-mutants/kernel/mutant.ko"
stty -echo
mkfifo /run/never && exec 7<>/run/never
echo "mutant: ready"
while read -r line; do
	# shellcheck disable=SC2086 # words
	try ${line%$'\r'} || {
		echo "mutant: ${line%% *} left"
		exit 0
	}
	echo "mutant: ${line%% *} done"
done
