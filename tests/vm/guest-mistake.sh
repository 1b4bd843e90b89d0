# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: a kernel that looks for mistakes finds them, and our scripts read its
# report.  Method: a module that makes one at a time.
. "$(dirname "$0")/guest-lib.sh"

found() { # MISTAKE PATTERN
	dmesg -C
	/run/busybox insmod "$module" what="$1" || fail "the module does not load"
	/run/busybox rmmod mistake
	dmesg >/tmp/said
	complaints /tmp/said | grep -E -m 1 "$2"
}

module=$1
shift
for what; do
	case $what in
	beyond) pattern='KASAN: slab-out-of-bounds' ;;
	freed) pattern='KASAN: slab-use-after-free' ;;
	sleep) pattern='BUG: .*(sleeping function|scheduling while atomic)' ;;
	order) pattern='circular locking dependency' ;;
	race) pattern='BUG: KCSAN' ;;
	esac
	step "the kernel reports the mistake \"$what\"" found "$what" "$pattern"
done
echo "mistake: $passed passed"
