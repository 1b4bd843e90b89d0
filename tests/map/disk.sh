#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: a program by map-run goes on where it goes on without: on a full disk, with files that it may
# not open again, while another process replaces its file, and while it looks at a file that grows.
# Method: disk.c, each part with and without map-run.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "not root"
need mkfs.ext4
compile disk
make_map 128M 64M
disk=$work/disk

# The mark needs a block in such an inode, and there is none.
for how in plain mapped; do
	img=$shm/$how.img mnt=$work/$how
	mkdir "$mnt"
	truncate -s 40M "$img"
	mkfs.ext4 -q -I 256 -m 0 "$img"
	mount_image "$img" "$mnt" || skip "no loop device"
	at_end "umount -l '$mnt'"
	dd if=/dev/urandom of="$mnt/full.map" bs=1M count=4 status=none
	dd if=/dev/zero of="$mnt/rest" bs=4K status=none 2>/dev/null || true
	dd if=/dev/zero of="$mnt/last" bs=1K status=none 2>/dev/null || true
	sync "$mnt"
	if [ $how = plain ]; then
		"$disk" full "$mnt/full.map" "$mnt/rest" || fail "a full disk"
	else
		ROOM=8M mapped "$disk" full "$mnt/full.map" "$mnt/rest" 2>"$work/says" || fail "a full disk: $(cat "$work/says")"
	fi
	[ "$(dd if="$mnt/full.map" bs=1M skip=20 count=1 status=none)" = space ] || fail "$how: what was written last is lost"
	[ "$(dd if="$mnt/full.map" bs=1M skip=1 count=1 status=none | head -c 4)" = yyyy ] || fail "$how: what was overwritten is lost"
done
say "a full disk: passed"

chmod 711 "$work" "$shm"
chmod 666 "$pool"
for how in plain mapped; do
	mkdir "$work/modes.$how"
	chmod 777 "$work/modes.$how"
	other=(setpriv --reuid 65534 --regid 65534 --clear-groups)
	if [ $how = plain ]; then
		"${other[@]}" "$disk" modes "$work/modes.$how" || fail "modes"
	else
		"${other[@]}" "$FOREBAY" map-run --pool "$pool" --files '*.map' --room 4M -- "$disk" modes "$work/modes.$how" 2>"$work/says" ||
			fail "modes: $(cat "$work/says")"
	fi
	[ "$(cat "$work/modes.$how/read.map")$(cat "$work/modes.$how/write.map")" = readwrite ] || fail "$how: modes: not written"
done
say "files that it may not open again: passed"

echo >"$work/other.map"
(while [ ! -e "$work/stop" ]; do
	echo >"$work/new"
	mv "$work/new" "$work/other.map"
	sleep 0.02
done) &
replaces=$!
code=0
mapped "$disk" opens "$work/other.map" 2>"$work/says" || code=$?
touch "$work/stop"
wait $replaces
[ $code = 0 ] || fail "a file that is replaced: $(cat "$work/says")"
say "a file that is replaced: passed"

for chunk in 4096 1000000 2097152; do
	"$disk" size "$work/plain.dat" $chunk || fail "a file that grows by $chunk"
	mapped "$disk" size "$work/size.map" $chunk 2>"$work/says" || fail "a file that grows by $chunk: $(cat "$work/says")"
done
say "a file that grows: passed"
"$FOREBAY" check "$pool" >/dev/null || fail "the pool is damaged"
