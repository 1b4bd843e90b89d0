# SPDX-License-Identifier: MIT OR Apache-2.0
# a mount and the directory below it, to callers: quotas and fs.protected_*.
part() {
	guest rights 900 guest-rights.sh
}
