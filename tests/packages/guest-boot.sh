#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: on a Debian with the packages installed, the entries of /etc/forebay.d are attached
# and mounted at boot and detached in order at shutdown.
# Method: boot 1 makes pool, volume, file system and configuration.  Boots 2 and 3 find all
# of it up, with the data of the boot before.  Each ends by poweroff.
boot=$(sed -n 's/.*fby.boot=\([0-9]*\).*/\1/p' /proc/cmdline)
origin=/dev/disk/by-id/virtio-FBYORIGIN

finish() {
	echo "FOREBAY-RESULT $1"
	systemctl poweroff --no-block
	exit "$1"
}
fail() {
	echo "FAIL: $*"
	journalctl -b --no-pager -u 'forebay@*' -u srv.mount | tail -n 30
	dmesg | tail -n 20
	finish 1
}
step() {
	local what=$1
	shift
	"$@" >/tmp/step.log 2>&1 || {
		cat /tmp/step.log
		fail "$what: $*"
	}
	echo "ok: $what"
}
# since UNIT PROPERTY: a time, in microseconds since boot.
since() { systemctl show -P "$2" "$1"; }

first_boot() {
	step "load the module" modprobe forebay
	step "make the pool" forebay create /dev/pmem0
	step "add the volume" forebay volume add /dev/pmem0 data $origin
	mkdir -p /etc/forebay.d
	cat >/etc/forebay.d/fast.toml <<-END
	pool = "/dev/pmem0"
	max_age = "off"
	idle = "off"
	[volume.data]
	origin = "$origin"
	END
	step "the configuration" forebay attach --all --dry-run
	step "units" systemctl daemon-reload
	step "start" systemctl start forebay@data.service
	step "udev" udevadm settle
	step "by name" test -b /dev/forebay/by-name/data
	step "mkfs" mkfs.ext4 -q -F -L fbytest /dev/forebay/by-name/data
	mkdir -p /srv
	echo '/dev/forebay/by-name/data /srv ext4 defaults,x-systemd.requires=forebay@data.service 0 2' >>/etc/fstab
	step "units" systemctl daemon-reload
	step "mount" mount /srv
	cp -r /etc /srv/etc
	step "what is mounted is not stopped" bash -c '! forebay detach data'
	grep -q "mounted on /srv" <(forebay detach data 2>&1) || fail "detach: $(forebay detach data 2>&1)"
	# The unit stops and starts it, and the mount goes first.
	step "stop" systemctl stop forebay@data.service
	mountpoint -q /srv && fail "/srv is still mounted"
	[ ! -e /dev/forebay/by-name/data ] || fail "the link is still there"
	step "list" bash -c 'forebay list | grep -q "no devices"'
	step "mount starts it" systemctl start srv.mount
	step "mounted" mountpoint -q /srv
}

later_boot() {
	step "attached" systemctl is-active forebay@data.service
	step "mounted" mountpoint -q /srv
	[ "$(findmnt -no SOURCE /srv)" = /dev/forebay0 ] || fail "/srv is $(findmnt -no SOURCE /srv)"
	uuid=$(cat /sys/block/forebay0/forebay/pool)
	for link in forebay/by-name/data "forebay/by-pool/$uuid/data" disk/by-label/fbytest; do
		[ "$(readlink -f "/dev/$link")" = /dev/forebay0 ] || fail "/dev/$link leads to $(readlink -f "/dev/$link")"
	done
	echo "ok: links lead to the volume, not to its origin"
	step "what was there" diff -r /srv/etc/pam.d /etc/pam.d
	step "of the boot before" test -e "/srv/boot-$((boot - 1))"
	# The recovery of a pool that was closed in order is told so.
	dmesg | grep -q 'pmem0: closed cleanly' || fail "pool: $(dmesg | grep forebay)"
	echo "ok: the last shutdown closed the pool"
	[ "$(since forebay@data.service ActiveEnterTimestampMonotonic)" -le "$(since srv.mount ActiveEnterTimestampMonotonic)" ] ||
		fail "mounted before it was attached"
	# The journal shows the order at the last shutdown.
	journalctl -b -1 --no-pager -o short-monotonic -u forebay@data.service -u srv.mount | tail -n 6 >/tmp/last
	awk '/Unmounted.*srv/ { u = NR } /[Ss]topped.*Forebay/ { s = NR } END { exit !(u && s && u < s) }' /tmp/last ||
		fail "order at shutdown: $(cat /tmp/last)"
	echo "ok: unmounted before it was detached"
	step "something is cached" bash -c 'forebay list --json | grep -q "\"cached_bytes\": [1-9]"'
	systemctl --failed --no-legend | grep -E 'forebay|srv' && fail "failed units"
	grep -aE 'WARNING|BUG|Oops|Call Trace' <(dmesg) && fail "the kernel complained"
	[ "$boot" = 2 ] || return 0
	# The last boot tests the rest: each stop flushes, and the origin alone is complete.
	echo 'flush_on_detach = true' >>/etc/forebay.d/fast.toml
	step "units" systemctl daemon-reload
	step "stop" systemctl stop forebay@data.service
	step "the origin alone" mount -o ro $origin /mnt
	step "its files" diff -r /mnt/etc/pam.d /etc/pam.d
	step "unmount it" umount /mnt
	step "start" systemctl start srv.mount
	# A mistake in another file is reported, and affects no other volume.
	echo 'pool = 3' >/etc/forebay.d/wrong.toml
	step "units" systemctl daemon-reload
	journalctl -b --no-pager | grep -q 'wrong.toml:1: ' || fail "the generator said nothing of a mistake"
	echo "ok: the mistake is in the log"
	step "restart" systemctl restart forebay@data.service
	step "mount" systemctl start srv.mount
	rm /etc/forebay.d/wrong.toml
}

case $boot in
1) first_boot ;;
*) later_boot ;;
esac
touch "/srv/boot-$boot"
sync
finish 0
