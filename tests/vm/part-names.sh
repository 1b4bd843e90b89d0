# SPDX-License-Identifier: MIT OR Apache-2.0
# A pool by two names: windows on one disk, loop devices of one file.
part() {
	guest names 300 guest-names.sh
}
