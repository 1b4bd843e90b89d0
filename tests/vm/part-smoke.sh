# SPDX-License-Identifier: MIT OR Apache-2.0
# The target: ext4, fio with verification while it destages, reload, drain, the origin alone.
part() {
	guest smoke 900 guest-smoke.sh
}
