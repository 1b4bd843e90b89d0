# SPDX-License-Identifier: MIT OR Apache-2.0
# [SECONDS [ROUNDS [WAY...]]]: what a bad origin costs the other volume of its pool: a table; asserts only that all goes on.
part() {
	show='FAIL|^isolation' guest isolation 3600 guest-isolation.sh "${1:-3}" "${2:-2}" "${@:3}"
}
