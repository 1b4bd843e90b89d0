# SPDX-License-Identifier: MIT OR Apache-2.0
#
# slow-disks.sh - sourced by parts whose guest has disks of a given speed:
# bench/slow_disk.c, served to QEMU by nbdkit from files in memory.  They end
# with the shell that starts them.

# slow_disks COUNT BYTES REQUESTS/S MB/S REQUEST_US FLUSH_US: so many more in disks.
slow_disks() {
	local count=$1 bytes=$2 plugin=$out_vm/slow-disk.so n socket tries
	if [ -z "${disks_dir:-}" ]; then
		[ -f /usr/include/nbdkit-plugin.h ] || {
			say "the disks' plugin needs nbdkit-plugin.h: apt-get install nbdkit-plugin-dev"
			return 77
		}
		gcc -std=gnu11 -O2 -Wall -Wextra -shared -fPIC "$root/bench/slow_disk.c" -o "$plugin.$$" && mv "$plugin.$$" "$plugin" || return 1
		disks_dir=$(mktemp -d /dev/shm/forebay-vm.XXXXXX)
		chmod 711 "$disks_dir" # whoever makes data there has a directory of its own
		trap 'rm -rf "$disks_dir"' EXIT
		disks=()
	fi
	for ((n = ${#disks[@]}; count > 0; n++, count--)); do
		socket=$disks_dir/$n.sock
		truncate -s "$bytes" "$disks_dir/$n.img"
		nbdkit -f --exit-with-parent -P "$socket.pid" -U "$socket" "$plugin" file="$disks_dir/$n.img" requests-per-s="$3" \
			megabytes-per-s="$4" latency-us="$5" flush-us="$6" 2>"$disks_dir/$n.log" 8>&- &
		for ((tries = 0; tries < 100; tries++)); do
			[ -e "$socket.pid" ] && break
			sleep 0.05
		done
		[ -e "$socket.pid" ] || { cat "$disks_dir/$n.log" >&2; say "nbdkit does not serve the disk"; return 1; }
		disks+=("nbd+unix:///?socket=$socket")
	done
}

# make-bcache lies where the guest finds it.  Without it, bcache is left out.
get_bcache() {
	local tools=$cache/bcache-tools
	[ -x "$out_vm/make-bcache" ] && return
	[ -e "$tools/usr/sbin/make-bcache" ] || unpack "$tools" bcache-tools ||
		{ say "bcache-tools cannot be had: bcache is left out"; return 0; }
	cp "$tools/usr/sbin/make-bcache" "$out_vm/make-bcache"
}
