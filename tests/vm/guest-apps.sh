# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: measure what programs that wait for their disk at every commit gain from the native device,
# compared with dm-writecache and the disk alone.
# Method: ext4 on each, on a disk of its own.  The programs are those of bench/programs.sh, the
# sides in turn.  The databases were made on the host (part-apps.sh), since all is slow here.
#	$1 rounds   $2 seconds of one   $3 disks, as sata:disk   $4 programs, as redis:varmail
#	$5 sides, of which each but the disk alone has a /dev/pmemN, in order   $6 of FIO-12, MiB for a GB
# Prints lines "apps DISK PROGRAM SIDE ROUND FIGURE" and "apps command DISK PROGRAM SIDE ...".
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
. "$root/bench/programs.sh"
rounds=$1 seconds=$2 disk_names=${3//:/ } apps=${4//:/ }
IFS=: read -r -a sides <<<"$5"
work=/tmp/apps
mkdir -m 711 $work
mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm # PostgreSQL asks for it

[ -z "${6:-}" ] || gb=$6
# These are settings of programs.sh.  Everything is slow here, and a new process slowest.
mounts=$work/m- sockets=$work/ patience=90
least=([redis]=100 [postgresql]=4)
fio_options=(--thread)
mariadb_options=(--innodb-log-file-size=16M) # as part-apps.sh made its data
put() { tar -C "$mnt" -xpf "$root/out/vm/apps/$1.tar" || fail "$1.tar"; }
result() {
	[ "$4" -gt 1 ] || echo "apps command $1 $2 $3 ${command//$work/WORK}"
	echo "apps $* $value"
}

load_module
letters=({a..z})
at=0
declare -A up
for disk in $disk_names; do
	memory=0
	for side in "${sides[@]}"; do
		pmem=
		[ "$side" = origin ] || pmem=/dev/pmem$((memory++))
		cache_up "$side" "/dev/vd${letters[at++]}" "$pmem"
		up[$side]=$device
		make_fs ext4 "$device" "${ext4_whole[@]}" || fail "mkfs.ext4 on $side"
		mkdir -p "$mounts$side"
		mount "$device" "$mounts$side" || fail "mount $side"
		chmod 711 "$mounts$side"
	done
	for app in $apps; do
		began=$SECONDS
		measure "$disk" "$app"
		echo "ok: $disk $app ($((SECONDS - began)) s)"
	done
	for side in "${sides[@]}"; do
		until_true 20 umount "$mounts$side" 2>>$work/said || fail "umount $side: $(tail -n 1 $work/said)"
		device=${up[$side]}
		echo "status of $disk $side: $(cache_status "$side")"
		cache_down "$side"
	done
done
clean_dmesg
