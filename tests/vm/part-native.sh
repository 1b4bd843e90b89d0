# SPDX-License-Identifier: MIT OR Apache-2.0
# The native device: xfs, the same; its volume through the mapper and back.
part() {
	guest native 900 guest-native.sh
}
