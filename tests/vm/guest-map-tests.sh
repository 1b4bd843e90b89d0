# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: forebay-map gives the same guarantees on DAX, where the kernel does not report
# stores to clean segments, as on memory.  Method: its own tests with their memory on ext4
# with DAX: those of the tracker, and those with the engine, files and kills.
. "$(dirname "$0")/guest-lib.sh"
tests=$root/out/vm/map-tests
mkdir -p /tmp/dax /dev/shm
mount -t tmpfs tmpfs /dev/shm
step "a file system" mkfs.ext4 -q -F -b 4096 $pool
step "mount it with DAX" mount -o dax $pool /tmp/dax
export MAP_MEMORY=/tmp/dax MAP_KILLS=3
for test in "left" "kill" "forebay_map tracker"; do
	read -ra words <<<"$test"
	step "$test" timeout 900 "$tests/${words[0]}" "${words[@]:1}" --test-threads=1 --nocapture
	grep -aE '(^|\.\.\. )(skipped|test result|Features|[0-9]+ kills)' /tmp/step.log
done
step "unmount it" umount /tmp/dax
step "the file system" check_fs ext4 $pool
clean_dmesg
echo "map-tests: $passed passed"
