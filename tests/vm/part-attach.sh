# SPDX-License-Identifier: MIT OR Apache-2.0
# forebay attach, detach and list against the module; start_sector.
part() {
	guest attach 900 guest-attach.sh
}
