# SPDX-License-Identifier: MIT OR Apache-2.0
# Damaged media under dm-writecache and Forebay, side by side; out/vm-corruption.json.
part() {
	pmem_mb=16 show='FAIL|passed$' guest corruption 1500 guest-corruption.sh || return 1
	python3 "$here/corruption_table.py" "$out_vm/corruption.console" "$root/out/vm-corruption.json"
}
