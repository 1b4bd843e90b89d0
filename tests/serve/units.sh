#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: each feature that the documents name works under the units as shipped.  The units start when
# what they need is there, however late that is, and stop in order.
# Method: systemd itself is the first process of a container made by unshare(1), over the files of
# this machine, with nothing of it but the units of the packages.  Inside are pools on files, with
# origins of each kind that is to be had, one of them late, and a mount.
# UNITS=DIR: others than those of packaging/systemd.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need unshare systemctl nbdkit nbdcopy ip mkfs.ext4
[ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || skip "a container needs root, and a mount /dev/fuse"
units=${UNITS:-$root/packaging/systemd}

# The overlay's upper directory is in memory, so that nothing of this machine changes.
shared=$work/shared
mkdir -p "$shared/bin" "$shared/units"
cp "$FOREBAY" "$shared/bin/forebay"
for unit in serve mount; do
	sed -e 's,@bindir@,/shared/bin,' "$units/forebay-$unit@.service.in" >"$shared/units/forebay-$unit@.service"
done
truncate -s 64M "$work/tree.image"
mkfs.ext4 -q -F "$work/tree.image"
loop=$(loop_device "$work/tree.image") || skip "$(cat "$work/no-loop")"

cat >"$work/container.sh" <<'S'
set -e
box=$1 shared=$2
mount -t tmpfs none "$box"
mkdir "$box/upper" "$box/work" "$box/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$box/upper,workdir=$box/work" "$box/root"
cd "$box/root"
mkdir -p shared host sys/fs/cgroup
mount --bind "$shared" shared
mount -t proc proc proc
mount -t tmpfs none run
mount -t tmpfs none tmp
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
# None of this machine's own services is started.
rm -rf etc/systemd/system/*.wants
: >etc/fstab
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket \
	systemd-modules-load.service systemd-sysctl.service systemd-sysusers.service systemd-binfmt.service \
	systemd-random-seed.service systemd-journal-flush.service systemd-logind.service dbus.service dbus.socket \
	dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
	ln -sf /dev/null "etc/systemd/system/$unit"
done
cp shared/units/*.service etc/systemd/system/
cat >etc/systemd/system/inside.service <<U
[Unit]
Requires=basic.target
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /shared/inside.sh
ExecStopPost=/bin/systemctl exit --force
StandardOutput=append:/shared/out
StandardError=append:/shared/out
U
pivot_root . host
umount -l /host
export container=forebay-test
exec /lib/systemd/systemd --system --unit=inside.service --log-target=journal --show-status=0
S

cat >"$shared/inside.sh" <<'S'
PATH=/shared/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export -n FOREBAY_RUNTIME_DIR FOREBAY_STATE_DIR XDG_RUNTIME_DIR
unset FOREBAY_RUNTIME_DIR FOREBAY_STATE_DIR XDG_RUNTIME_DIR
fail() {
	echo "FAILED: $*"
	journalctl --no-pager -o cat -n 40 | sed 's/^/  journal: /'
	exit 1
}
# within SECONDS COMMAND...: it succeeds before long.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/tmp/said 2>&1; do
		[ $SECONDS -lt $end ] || { cat /tmp/said; fail "$*"; }
		sleep 0.2
	done
	echo "ok: $*"
}
served() { forebay status "$1" --json | grep -q "\"summary\": \"$2\""; }
active() { [ "$(systemctl is-active "$1")" = active ]; }
restarted() { [ "$(systemctl show -P NRestarts "$1")" -ge "$2" ] && active "$1"; }
uri() { echo "nbd+unix:///$1?socket=/run/forebay/$(forebay status /tmp/pool --json | sed -n 's/^ *"uuid": "\(.*\)",/\1/p' | head -n 1).nbd"; }
ip link set lo up
[ "$(cat /proc/1/comm)" = systemd ] || fail "systemd is not the first process"

# The pool appears after its unit was started, on file systems and exports of all kinds.
systemctl start --no-block forebay-serve@tmp-pool
sleep 3
active forebay-serve@tmp-pool && fail "it is active without a pool"
truncate -s 8M /tmp/file /tmp/far /tmp/late
nbdkit -i 127.0.0.1 -p 10809 -P /tmp/nbdkit.pid file /tmp/far || fail "nbdkit"
mkdir /tmp/disk
mount "$(cat /shared/loop)" /tmp/disk && mkdir -p /tmp/disk/tree || fail "no disk for the tree"
mkdir -p /etc/systemd/system/forebay-serve@tmp-pool.service.d
cat >/etc/systemd/system/forebay-serve@tmp-pool.service.d/options.conf <<U
[Service]
Environment="SERVE_OPTIONS=--mount /tmp/disk/tree"
U
systemctl daemon-reload
forebay create /tmp/new --size 64M >/dev/null
forebay volume add /tmp/new file /tmp/file >/dev/null && forebay volume add /tmp/new far nbd://127.0.0.1:10809 >/dev/null &&
	forebay volume add /tmp/new late /tmp/late >/dev/null || fail "volumes"
mv /tmp/late /tmp/later
mv /tmp/new /tmp/pool
within 20 active forebay-serve@tmp-pool
within 10 served /tmp/pool "2 of 3 volumes"
# All users may use the mount.
within 10 mountpoint -q /tmp/disk/tree
echo hello >/tmp/disk/tree/hello && sync /tmp/disk/tree/hello || fail "the mount cannot be written"
chmod 4755 /tmp/disk/tree/hello && chown 7:7 /tmp/disk/tree/hello && mknod /tmp/disk/tree/null c 1 3 || fail "what root does in the tree is refused"
head -c 8M /dev/urandom >/tmp/data
for volume in file far; do nbdcopy /tmp/data "$(uri $volume)" || fail "volume $volume cannot be written"; done
# An origin appears late.
mv /tmp/later /tmp/late
within 20 served /tmp/pool "3 of 3 volumes"
nbdcopy /tmp/data "$(uri late)" || fail "the late volume cannot be written"

# A killed server is started again, and nothing is lost.
systemctl kill -s KILL forebay-serve@tmp-pool
within 20 restarted forebay-serve@tmp-pool 1
within 20 served /tmp/pool "3 of 3 volumes"
within 10 mountpoint -q /tmp/disk/tree
[ "$(cat /tmp/disk/tree/hello)" = hello ] || fail "the mount lost a file"
for volume in file far late; do
	nbdcopy "$(uri $volume)" - | cmp - /tmp/data || fail "volume $volume is not as it was written"
done

# The server stops in order: the mount has gone, and its tree and the pool are whole.
systemctl stop forebay-serve@tmp-pool || fail "stop"
[ "$(systemctl show -P Result forebay-serve@tmp-pool)" = success ] || fail "it did not end well"
mountpoint -q /tmp/disk/tree && fail "the mount is still there"
[ "$(cat /tmp/disk/tree/hello)" = hello ] || fail "the tree lacks a file"
forebay status /tmp/pool | grep -q "closed cleanly" || fail "the pool was not closed: $(forebay status /tmp/pool)"
forebay drain /tmp/pool >/dev/null || fail "drain"
for file in file far late; do cmp /tmp/$file /tmp/data || fail "the origin $file is not complete"; done

# An error that only a person can correct is not retried.
mkdir -p /etc/systemd/system/forebay-serve@tmp-wrong.service.d
cat >/etc/systemd/system/forebay-serve@tmp-wrong.service.d/options.conf <<U
[Service]
Environment=SERVE_OPTIONS=--no-such-option
U
systemctl daemon-reload
systemctl start forebay-serve@tmp-wrong 2>/dev/null && fail "an option that there is not was taken"
sleep 3
[ "$(systemctl is-active forebay-serve@tmp-wrong)" = failed ] || fail "it is tried again: $(systemctl is-active forebay-serve@tmp-wrong)"

# The unit forebay-mount@ runs forebay mount.
forebay create /tmp/logs --size 64M >/dev/null
mkdir -p /tmp/disk/data /etc/systemd/system/forebay-mount@tmp-disk-data.service.d
cat >/etc/systemd/system/forebay-mount@tmp-disk-data.service.d/options.conf <<U
[Service]
Environment=POOL=/tmp/logs
U
systemctl daemon-reload
systemctl start forebay-mount@tmp-disk-data || fail "forebay-mount@"
mountpoint -q /tmp/disk/data && echo kept >/tmp/disk/data/kept && sync /tmp/disk/data/kept || fail "its mount"
systemctl kill -s KILL forebay-mount@tmp-disk-data
within 20 restarted forebay-mount@tmp-disk-data 1
within 10 mountpoint -q /tmp/disk/data
[ "$(cat /tmp/disk/data/kept)" = kept ] || fail "the mount lost a file"
systemctl stop forebay-mount@tmp-disk-data || fail "stop of forebay-mount@"
[ "$(cat /tmp/disk/data/kept)" = kept ] || fail "the tree lacks a file"
# The unit is stopped while it starts and waits for the tree, which another process has.  It
# ends at once, and that is no failure.
for unit in forebay-mount@tmp-disk-data:data forebay-serve@tmp-pool:tree; do
	tree=/tmp/disk/${unit#*:} unit=${unit%:*}
	flock "$tree" sleep 60 &
	locked=$!
	within 5 sh -c "! flock -n $tree true"
	systemctl start --no-block "$unit"
	sleep 2
	[ "$(systemctl is-active "$unit")" = activating ] || fail "$unit does not wait for the tree"
	begun=$SECONDS
	systemctl stop "$unit" || fail "stop of $unit that starts"
	[ $((SECONDS - begun)) -le 30 ] || fail "$unit that starts was stopped after $((SECONDS - begun)) s"
	[ "$(systemctl is-active "$unit")" = inactive ] ||
		fail "a stop while it starts: $(systemctl show -P Result -P ExecMainStatus "$unit")"
	kill "$(cat /proc/$locked/task/$locked/children)"
	wait $locked
done
umount /tmp/disk || fail "the disk is busy"
kill "$(cat /tmp/nbdkit.pid)"
echo ALL WELL
S
echo "$loop" >"$shared/loop"
mkdir "$work/box"
timeout -s KILL 400 "$root/tests/apart" "$work" --pid --cgroup --ipc --uts --net --fork --kill-child \
	bash "$work/container.sh" "$work/box" "$shared" >"$work/container.log" 2>&1 || true
[ -e "$shared/out" ] || { tail "$work/container.log" >&2; skip "systemd does not start in a container here"; }
grep -q '^ALL WELL$' "$shared/out" || { cat "$shared/out" >&2; fail "under the units"; }
say "$(grep -c '^ok:' "$shared/out") waits under forebay-serve@ and forebay-mount@: origins on a file and an NBD server, one late, a mount, kills, an ordered end, a stop while one starts"
