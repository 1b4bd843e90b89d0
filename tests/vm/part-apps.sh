# SPDX-License-Identifier: MIT OR Apache-2.0
# [quick|PROGRAM...]: databases and the like on ext4 on the native device, compared with dm-writecache and the disk alone; bench/out/vm-apps.json.

. "$root/bench/programs.sh"
. "$root/bench/disks.sh"

# make_data NAME: out/vm/apps/NAME.tar, small, since the guest unpacks it on slow disks.
make_data() ( # a shell of its own, which fail ends
	tar=$out_vm/apps/$1.tar work=$out_vm/apps dir=$disks_dir/$1
	[ "$tar" -nt "$here/part-apps.sh" ] && [ "$tar" -nt "$root/bench/programs.sh" ] && exit
	# shellcheck disable=SC2317 # programs.sh calls it
	fail() {
		say "$1"
		exit 1
	}
	trap stop_servers EXIT
	mariadb_options=(--innodb-log-file-size=16M)
	initdb_options=(--wal-segsize=4) postgres_options=(-c min_wal_size=8MB -c max_wal_size=16MB)
	say "making $1's data, once"
	mkdir -p "$work" "$dir" && chmod 711 "$dir" && : >"$work/said" || exit
	"make_$1" "$dir"
	tar -C "$dir" -cpf "$tar.new" "$1" && mv "$tar.new" "$tar" && rm -rf "$dir"
)

part() {
	. "$here/slow-disks.sh"
	local rounds=3 seconds=5 apps=() app lacking=() pair disk names=(sata disk) speed
	local all=(redis varmail rocksdb mariadb postgresql)
	for app; do
		case $app in
		quick) seconds=2 all=(redis varmail mariadb rocksdb) ;; # not what takes longest here
		*)
			[[ " ${programs[*]} " == *" $app "* ]] || {
				say "apps: $app is not known; use quick, ${programs[*]}"
				return 2
			}
			apps+=("$app")
			;;
		esac
	done
	[ ${#apps[@]} -gt 0 ] || apps=("${all[@]}")
	for app in "${apps[@]}"; do
		for pair in $(needs "$app"); do
			command -v "${pair%:*}" >/dev/null || lacking+=("${pair#*:}")
		done
	done
	[ ${#lacking[@]} -eq 0 ] || { say "missing: apt-get install --no-install-recommends ${lacking[*]}"; return 77; }

	for disk in "${names[@]}"; do
		read -r -a speed <<<"$(disk_speed "$disk")"
		slow_disks 3 1G "${speed[@]}" || return
	done
	for app in "${apps[@]}"; do
		! declare -F "make_$app" >/dev/null || make_data "$app" || return
	done
	pmem_map='384M!4G,384M!4608M' guest_mb=6144
	show='^(apps|FAIL)' guest apps 2400 guest-apps.sh $rounds $seconds "$(IFS=: && echo "${names[*]}")" "$(IFS=: && echo "${apps[*]}")" origin:writecache:native >"$out_vm/apps.txt" || {
		grep -a '^FAIL' "$out_vm/apps.txt"
		return 1
	}
	out=${BENCH_OUT:-$root/bench/out}
	mkdir -p "$out"
	python3 -B "$here/apps_table.py" "$out_vm/apps.txt" "$out/vm-apps.json" command="tests/vm/run apps${*:+ $*}" \
		guest_kernel="$release" rounds=$rounds seconds=$seconds cache_mib=384 \
		disks="$(disks_json "${names[@]}")" units="$(units_json "${apps[@]}")"
}
