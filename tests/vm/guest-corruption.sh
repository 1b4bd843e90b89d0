# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Damage to the media of dm-writecache and of Forebay: see corruption.py.
. "$(dirname "$0")/guest-lib.sh"
command=$root/out/vm/forebay
[ -x "$command" ] || command=${FOREBAY_BUILT:-$root/target/release}/forebay

load_module
python3 "$root/tests/vm/corruption.py" "$pool" /dev/ram0 "$command" || exit 1
step "unload" /run/busybox rmmod forebay
echo "corruption: $passed passed"
