# SPDX-License-Identifier: MIT OR Apache-2.0
# [MODULE]: whoever asks for a drain, in any way, of any kind of volume, is told what is true of the origin.
part() {
	guest drained 900 guest-drained.sh "$@"
}
