# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash disable=SC2154 # what the caller has
#
# programs.sh - sourced by apps.sh, dynamic.sh, and tests/vm/part-apps.sh and guest-apps.sh:
# programs that wait for their disk at every commit.  Each one's data, server,
# exact command and figure are here; which file systems they run on is the caller's.
#
#	needs PROGRAM		what it takes, as COMMAND:PACKAGE
#	make_PROGRAM DIR	mariadb and postgresql: their data, DIR/PROGRAM
#	measure DISK PROGRAM	start_PROGRAM SIDE for each side, then rounds of
#				run_PROGRAM SIDE, the sides in turn; both as `around SIDE COMMAND...`
#	stop_servers		at once, whatever runs
#
# The caller has
#	work			a directory for what the programs say
#	sides, rounds, seconds
#	mounts			$mounts$side is a side's file system, `mnt` in what is below
#	sockets			$sockets$program-$side is to have its socket; other users can reach it
#	put PROGRAM		brings to $mnt what make_PROGRAM made
#	result DISK PROGRAM SIDE ROUND	takes `command` and `value`, which is in unit[PROGRAM]
#	fail TEXT		does not return
# and after this file sets what it wants otherwise:
patience=30 # s until a server answers
declare -gA least=([redis]=200 [postgresql]=1) # of a round: requests, s
mariadb_options=() initdb_options=() postgres_options=() fio_options=()
around() { "${@:2}"; }

# shellcheck disable=SC2034 # for the callers
programs=(redis mariadb rocksdb postgresql varmail sqlite-delete sqlite-wal etcd)
# shellcheck disable=SC2034
declare -gA unit=([redis]=SET/s [mariadb]=transactions/s [rocksdb]=put/s [postgresql]=transactions/s
	[varmail]=requests/s [fio-12]=MB/s [sqlite-delete]=commits/s [sqlite-wal]=commits/s [etcd]=put/s)
# units_json PROGRAM...: theirs, as the results have them.
units_json() {
	local app pairs=()
	for app; do pairs+=("\"$app\": \"${unit[$app]}\""); done
	(IFS=, && echo "{${pairs[*]}}")
}
pgbin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)

needs() {
	case $1 in
	redis) echo redis-server:redis-server redis-benchmark:redis-tools ;;
	mariadb) echo mariadbd:mariadb-server sysbench:sysbench ;;
	rocksdb) echo db_bench:rocksdb-tools ;;
	postgresql) echo "$pgbin/initdb:postgresql $pgbin/pgbench:postgresql-contrib" ;;
	varmail | fio-12) echo fio:fio jq:jq ;;
	sqlite-*) echo python3:python3 ;;
	etcd) echo etcd:etcd-server ab:apache2-utils python3:python3 curl:curl ;;
	esac
}

# as USER COMMAND...: servers that refuse to be root.
as() { setpriv --reuid="$1" --regid="$1" --clear-groups -- "${@:2}"; }
# Only with &: the process is then the server itself, and can be stopped.
serve_as() { exec setpriv --reuid="$1" --regid="$1" --clear-groups -- "${@:2}"; }
# own USER DIR...: a directory of the user's alone.
own() {
	{ mkdir -p "${@:2}" && chown "$1:$1" "${@:2}" && chmod 700 "${@:2}"; } || fail "no directory of $1's: ${*:2}"
}

broken() {
	tail -n 20 "$work/output" "$work/said" >&2 2>/dev/null || : # there may be no output yet
	fail "$*"
}
quietly() { "$@" >>"$work/said" 2>&1 </dev/null || broken "$*"; }

# server[NAME]: its process.  `signal` ends it at once: what it would still write on
# a slow disk is of no use to anybody.
declare -gA server=()
signal=KILL
# answers NAME COMMAND...: waits until the server answers.
answers() {
	local end=$((SECONDS + patience))
	until "${@:2}" >/dev/null 2>&1; do
		kill -0 "${server[$1]}" 2>/dev/null || broken "the server ended, before: ${*:2}"
		[ $SECONDS -lt $end ] || broken "after $patience s still not: ${*:2}"
		sleep 0.1
	done
}
# shut NAME: with all that it still has to write.
shut() {
	kill "${server[$1]}"
	wait "${server[$1]}" || broken "the server did not end in order"
	unset "server[$1]"
}
stop_servers() {
	local name
	for name in "${!server[@]}"; do
		kill "-$signal" "${server[$name]}" 2>/dev/null || :
		wait "${server[$name]}" 2>/dev/null || :
	done
	server=()
}

command='' value=''
# timed COMMAND...: its output in $work/output.
timed() {
	command="$*"
	"$@" >"$work/output" 2>>"$work/said" </dev/null || broken "$command"
}

declare -gA requests=()
start_redis() {
	local dir=${sockets}redis-$1
	own redis "$mnt/redis" "$dir"
	serve_as redis redis-server --port 0 --unixsocket "$dir/s" --unixsocketperm 700 --dir "$mnt/redis" \
		--appendonly yes --appendfsync always --save '' --auto-aof-rewrite-percentage 0 >>"$work/said" 2>&1 &
	server[$1]=$! signal=KILL
	answers "$1" test -S "$dir/s"
	# It counts requests, not seconds: find how many fit.
	requests[$1]=${least[redis]}
	run_redis "$1"
	requests[$1]=$(awk -v r="$value" -v s="$seconds" -v least="${least[redis]}" \
		'BEGIN { n = int(r * s); print n < least ? least : n }')
}
run_redis() {
	timed redis-benchmark -s "${sockets}redis-$1/s" -t set -n "${requests[$1]}" -c 16 -d 512 -r 100000 --csv
	value=$(tail -n 1 "$work/output" | cut -d'"' -f4)
}

# Databases: serve_ NAME DATA SOCKETS is their server.

oltp_insert=(oltp_insert --db-driver=mysql --mysql-user=root --tables=4 --table-size=1000)
serve_mariadb() {
	mariadbd --no-defaults --user=mysql --datadir="$2" --skip-networking --socket="$3/s" --pid-file="$3/pid" \
		--innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=128M "${mariadb_options[@]}" >>"$work/said" 2>&1 &
	server[$1]=$! signal=KILL
	answers "$1" mariadb-admin --no-defaults -S "$3/s" -u root ping
}
make_mariadb() {
	local sock=$1/sock-mariadb
	own mysql "$1/mariadb" "$sock"
	quietly mariadb-install-db --no-defaults --user=mysql --datadir="$1/mariadb" --skip-test-db \
		--auth-root-authentication-method=normal "${mariadb_options[@]}"
	serve_mariadb make "$1/mariadb" "$sock"
	quietly mariadb --no-defaults -S "$sock/s" -u root -e 'CREATE DATABASE sbtest'
	quietly sysbench "${oltp_insert[@]}" --mysql-socket="$sock/s" prepare
	shut make
}
start_mariadb() {
	own mysql "${sockets}mariadb-$1"
	put mariadb
	serve_mariadb "$1" "$mnt/mariadb" "${sockets}mariadb-$1"
}
run_mariadb() {
	timed sysbench "${oltp_insert[@]}" --threads=8 --time="$seconds" --events=0 \
		--mysql-socket="${sockets}mariadb-$1/s" run
	value=$(sed -n 's/.*transactions:.*(\([0-9.]*\) per sec.*/\1/p' "$work/output")
}

serve_postgresql() {
	serve_as postgres "$pgbin/postgres" -D "$2" -k "$3" -c listen_addresses= -c unix_socket_permissions=0700 \
		-c shared_buffers=128MB "${postgres_options[@]}" >>"$work/said" 2>&1 &
	server[$1]=$! signal=QUIT # its own word for at once; KILL leaves children
	answers "$1" as postgres "$pgbin/pg_isready" -h "$3" -U postgres
}
make_postgresql() {
	local sock=$1/sock-postgresql
	own postgres "$1/postgresql" "$sock"
	quietly as postgres "$pgbin/initdb" -D "$1/postgresql" --no-sync --auth=trust -U postgres "${initdb_options[@]}"
	serve_postgresql make "$1/postgresql" "$sock"
	quietly as postgres "$pgbin/pgbench" -h "$sock" -U postgres -i -s 5 -q postgres
	shut make
}
start_postgresql() {
	own postgres "${sockets}postgresql-$1"
	put postgresql
	serve_postgresql "$1" "$mnt/postgresql" "${sockets}postgresql-$1"
}
run_postgresql() {
	local s=$((seconds < least[postgresql] ? least[postgresql] : seconds))
	timed setpriv --reuid=postgres --regid=postgres --clear-groups -- "$pgbin/pgbench" \
		-h "${sockets}postgresql-$1" -U postgres -n -T $s -c 8 -j 2 postgres
	value=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/output")
}

start_rocksdb() { :; }
run_rocksdb() {
	timed db_bench --benchmarks=fillsync --db="$mnt/rocksdb" --num=100000000 --duration="$seconds" \
		--threads=4 --value_size=400 --compression_type=none
	value=$(sed -n 's/^fillsync .* \([0-9.]*\) ops\/sec.*/\1/p' "$work/output")
}

start_varmail() { own root "$mnt/mail"; }
run_varmail() {
	timed fio --name=varmail --directory="$mnt/mail" --nrfiles=64 --filesize=16k-64k --openfiles=16 \
		--file_service_type=random --rw=randrw --rwmixread=50 --bs=4k-16k --bs_unaligned=0 --fsync=1 \
		--numjobs=4 "${fio_options[@]}" --time_based --runtime="$seconds" --group_reporting --output-format=json
	value=$(sed -n '/^{/,$p' "$work/output" | jq '.jobs[0] | .read.iops + .write.iops')
}

# Not among `programs`: it takes a time of its own.  bench/dynamic.sh and the guest's part have it.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/fio12.sh"

# run_sqlite JOURNAL: one connection, a row a transaction.
run_sqlite() {
	timed python3 "$(dirname "${BASH_SOURCE[0]}")/sqlite_commits.py" "$mnt/sqlite-$1.db" "$1" "$seconds"
	value=$(cat "$work/output")
}
start_sqlite-delete() { :; }
run_sqlite-delete() { run_sqlite delete; }
start_sqlite-wal() { :; }
run_sqlite-wal() { run_sqlite wal; }

# A member alone.  It takes TCP alone, so ports of the loopback that are free now.
declare -gA etcd_port=()
start_etcd() {
	local ports url=http://127.0.0.1
	read -r -a ports < <(python3 -c '
import socket
two = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in two))')
	etcd_port[$1]=${ports[0]}
	etcd --name one --data-dir "$mnt/etcd" --listen-client-urls "$url:${ports[0]}" \
		--advertise-client-urls "$url:${ports[0]}" --listen-peer-urls "$url:${ports[1]}" \
		--initial-advertise-peer-urls "$url:${ports[1]}" --initial-cluster "one=$url:${ports[1]}" >>"$work/said" 2>&1 &
	server[$1]=$! signal=KILL
	answers "$1" curl -sf "$url:${ports[0]}/health"
	# A key, and a value of 256 bytes, as its gateway takes them.
	python3 -c 'import base64, json; print(json.dumps({k: base64.b64encode(v).decode() for k, v in
		(("key", b"key"), ("value", bytes(256)))}))' >"$work/put.json"
}
run_etcd() {
	timed ab -q -k -c 8 -t "$seconds" -n 10000000 -T application/json -p "$work/put.json" \
		"http://127.0.0.1:${etcd_port[$1]}/v3/kv/put"
	grep -q '^Non-2xx' "$work/output" && broken "etcd refuses"
	value=$(sed -n 's/^Requests per second: *\([0-9.]*\).*/\1/p' "$work/output")
}

measure() {
	local side round mnt
	for side in "${sides[@]}"; do mnt=$mounts$side && around "$side" "start_$2" "$side"; done
	for ((round = 1; round <= rounds; round++)); do
		for side in "${sides[@]}"; do
			mnt=$mounts$side
			around "$side" "run_$2" "$side"
			[[ $value =~ ^[0-9.]+$ ]] || broken "$2: no figure in its output"
			result "$1" "$2" "$side" "$round"
		done
	done
	stop_servers
	for side in "${sides[@]}"; do rm -rf "$sockets$2-$side" "${mounts:?}$side/"{"$2"*,mail}; done
}
