# SPDX-License-Identifier: MIT OR Apache-2.0
# [quick|PROGRAM...]: databases and the like on ext4 on the native device, beside dm-writecache and the disk alone; bench/out/vm-apps.json.

# The databases, made on the host once.
make_mariadb() {
	local dir=$1/mariadb socket=$1/sock/s pid
	mkdir -m 700 "$dir" && chown mysql:mysql "$dir" && chmod 711 "$1"
	mkdir -m 700 "$1/sock" && chown mysql:mysql "$1/sock"
	mariadb-install-db --no-defaults --user=mysql --datadir="$dir" --skip-test-db --innodb-log-file-size=16M \
		--auth-root-authentication-method=normal || return
	mariadbd --no-defaults --user=mysql --datadir="$dir" --skip-networking --socket="$socket" \
		--pid-file="$1/sock/pid" --innodb-log-file-size=16M 8>&- &
	pid=$!
	until mariadb --no-defaults -S "$socket" -u root -e 'CREATE DATABASE sbtest'; do
		kill -0 $pid || return
		sleep 0.2
	done
	sysbench oltp_insert --db-driver=mysql --mysql-user=root --tables=4 --table-size=1000 --mysql-socket="$socket" prepare || return
	mariadb-admin --no-defaults -S "$socket" -u root shutdown && wait $pid
}
make_postgresql() {
	local dir=$1/postgresql bin
	bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
	mkdir -m 700 "$dir" "$1/pgsock" && chown postgres:postgres "$dir" "$1/pgsock" && chmod 711 "$1"
	as_postgres "$bin/initdb" -D "$dir" --no-sync --auth=trust -U postgres --wal-segsize=4 || return
	as_postgres "$bin/pg_ctl" -D "$dir" -w -l "$1/pgsock/log" -o "-k $1/pgsock -c listen_addresses= -c min_wal_size=8MB -c max_wal_size=16MB" start 8>&- || return
	as_postgres "$bin/pgbench" -h "$1/pgsock" -U postgres -i -s 5 -q postgres
	as_postgres "$bin/pg_ctl" -D "$dir" -w -m fast stop
}
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"; }

# make_data NAME: out/vm/apps/NAME.tar
make_data() {
	local tar=$out_vm/apps/$1.tar
	[ "$tar" -nt "$here/part-apps.sh" ] && return
	mkdir -p "$out_vm/apps" "$disks_dir/$1"
	say "making $1's data, once"
	"make_$1" "$disks_dir/$1" >"$out_vm/apps/$1.log" 2>&1 || { tail -n 20 "$out_vm/apps/$1.log" >&2; say "$1's data cannot be made"; return 1; }
	tar -C "$disks_dir/$1" -cpf "$tar.new" "$1" && mv "$tar.new" "$tar"
	rm -rf "${disks_dir:?}/$1"
}

part() {
	. "$here/slow-disks.sh"
	local rounds=3 seconds=5 apps=() app lacking=() pairs
	local all=(redis varmail rocksdb mariadb postgresql)
	for app; do
		case $app in
		quick) seconds=2 all=(redis varmail mariadb rocksdb) ;; # not what takes longest here
		redis | mariadb | rocksdb | postgresql | varmail) apps+=("$app") ;;
		*) say "apps: $app is not known; use quick, redis, mariadb, rocksdb, postgresql, varmail"; return 2 ;;
		esac
	done
	[ ${#apps[@]} -gt 0 ] || apps=("${all[@]}")
	for app in "${apps[@]}"; do
		case $app in
		redis) pairs="redis-server:redis-server redis-benchmark:redis-tools" ;;
		mariadb) pairs="mariadbd:mariadb-server sysbench:sysbench" ;;
		rocksdb) pairs="db_bench:rocksdb-tools" ;;
		postgresql) pairs="/usr/lib/postgresql/*/bin/initdb:postgresql /usr/lib/postgresql/*/bin/pgbench:postgresql-contrib" ;;
		varmail) pairs="fio:fio" ;;
		esac
		for pair in $pairs jq:jq; do
			# shellcheck disable=SC2086 # its pattern
			command -v ${pair%%:*} >/dev/null || lacking+=("${pair#*:}")
		done
	done
	[ ${#lacking[@]} -eq 0 ] || { say "missing: apt-get install --no-install-recommends ${lacking[*]}"; return 77; }

	# As bench/lib.sh has them.
	slow_disks 3 1G 20000 400 80 500 && slow_disks 3 1G 400 150 2000 8000 || return
	for app in "${apps[@]}"; do
		case $app in mariadb | postgresql) make_data "$app" || return ;; esac
	done
	pmem_map='384M!4G,384M!4608M' guest_mb=6144
	show='^(apps|FAIL)' guest apps 2400 guest-apps.sh $rounds $seconds sata:disk "$(IFS=: && echo "${apps[*]}")" >"$out_vm/apps.txt" || {
		grep -a '^FAIL' "$out_vm/apps.txt"
		return 1
	}
	out=${BENCH_OUT:-$root/bench/out}
	mkdir -p "$out"
	python3 -B "$here/apps_table.py" "$out_vm/apps.txt" "$out/vm-apps.json" command="tests/vm/run apps${*:+ $*}" \
		guest_kernel="$release" rounds=$rounds seconds=$seconds cache_mib=384
}
