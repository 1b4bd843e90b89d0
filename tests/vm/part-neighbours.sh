# SPDX-License-Identifier: MIT OR Apache-2.0
# [ITEM...]: an origin that hangs holds up no other volume; flush beside a writer, limits, names, the cache unbound.
part() {
	show='^FAIL|^neighbours|ok:' guest neighbours 900 guest-neighbours.sh "$@"
}
