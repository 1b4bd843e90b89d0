#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# apps.sh - programs that wait for their disk at every commit: on ext4 on a served
# volume, and on ext4 on the same kind of disk alone.
#
# Both sides cross NBD, nbdfuse and a loop device, so what differs is what is
# behind: the disk, or Forebay with its pool in shared memory in front of such a
# disk.  The disk is slow_disk.c over a file in memory.  Rounds alternate between
# the sides.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<END
usage: bench/apps.sh [--seconds N] [--rounds N] [--disk NAME]... [--out DIR] [APP...]

  --seconds N   of each round (3)
  --rounds N    of each program on each side (3)
  --disk NAME   sata, disk (default: both), or REQUESTS/S,MB/S,REQUEST_US,FLUSH_US
  --out DIR     where apps.json goes (bench/out)
  APP           redis, mariadb, rocksdb, postgresql, varmail (default: all)

example: bench/apps.sh --disk sata --seconds 10 redis varmail
END
	exit "${1:-0}"
}

seconds=3 rounds=3 disks=() apps=() out=$root/bench/out
while [ $# -gt 0 ]; do
	case $1 in
	--seconds) seconds=${2:?} && shift ;;
	--rounds) rounds=${2:?} && shift ;;
	--disk) disks+=("${2:?}") && shift ;;
	--out) out=${2:?} && shift ;;
	-h | --help) usage ;;
	redis | mariadb | rocksdb | postgresql | varmail) apps+=("$1") ;;
	*) usage 2 >&2 ;;
	esac
	shift
done
[ ${#disks[@]} -gt 0 ] || disks=(sata disk)
[ ${#apps[@]} -gt 0 ] || apps=(redis mariadb rocksdb postgresql varmail)
for disk in "${disks[@]}"; do disk_speed "$disk" >/dev/null; done

[ "$(id -u)" = 0 ] || fail "mounting needs root"
pgbin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
want cc gcc
want nbdkit nbdkit
want nbdfuse nbdfuse
want jq jq
want mkfs.ext4 e2fsprogs
want losetup mount
[ -f /usr/include/nbdkit-plugin.h ] || missing+=(nbdkit-plugin-dev)
for app in "${apps[@]}"; do
	case $app in
	redis) want redis-server redis-server && want redis-benchmark redis-tools ;;
	mariadb) want mariadbd mariadb-server && want sysbench sysbench ;;
	rocksdb) want db_bench rocksdb-tools ;;
	postgresql) want "${pgbin:-none}/initdb" postgresql && want "${pgbin:-none}/pgbench" postgresql-contrib ;;
	varmail) want fio fio ;;
	esac
done
wanted
[ -x "$FOREBAY" ] || fail "$FOREBAY: not built; run: make build"
start_work
mkdir -p "$out"
: >"$work/rows"
: >"$work/commands"

# as USER COMMAND...: servers that refuse to be root.
as() { setpriv --reuid="$1" --regid="$1" --clear-groups -- "${@:2}"; }
# Only with &: the process is then the server itself, and can be stopped.
serve_as() { exec setpriv --reuid="$1" --regid="$1" --clear-groups -- "${@:2}"; }
# own USER DIR...: a directory of the user's alone.
own() { mkdir -p "${@:2}" && chown "$1:$1" "${@:2}" && chmod 700 "${@:2}"; }

# Each program: prepare_ makes its data once, in memory; start_ SIDE copies it to
# the side's file system and starts the server; run_ SIDE leaves the command in
# `command` and the figure in `value`; stop_ SIDE.  mnt is where the side is.
declare -A server n
declare -A unit=([redis]=SET/s [mariadb]=transactions/s [postgresql]=transactions/s [rocksdb]=put/s [varmail]=requests/s)
command='' value=''
# timed COMMAND...: its output in $work/output.
timed() {
	command="$*"
	"$@" >"$work/output" 2>>"$work/run.log" </dev/null || { cat "$work/output" >&2; fail "$command"; }
}

prepare_redis() { :; }
start_redis() {
	own redis "$mnt/redis" "$work/sock-redis-$1"
	serve_as redis redis-server --port 0 --unixsocket "$work/sock-redis-$1/s" --unixsocketperm 700 \
		--dir "$mnt/redis" --appendonly yes --appendfsync always --save '' \
		--auto-aof-rewrite-percentage 0 >>"$work/redis.log" 2>&1 &
	server[$1]=$!
	until_true test -S "$work/sock-redis-$1/s"
	# It counts requests, not seconds: find how many fit.
	n[$1]=200
	run_redis "$1"
	n[$1]=$(awk -v r="$value" -v s="$seconds" 'BEGIN { n = int(r * s); print n < 200 ? 200 : n }')
}
run_redis() {
	timed redis-benchmark -s "$work/sock-redis-$1/s" -t set -n "${n[$1]}" -c 16 -d 512 -r 100000 --csv
	value=$(tail -n 1 "$work/output" | cut -d'"' -f4)
}

insert=(oltp_insert --db-driver=mysql --mysql-user=root --tables=4 --table-size=1000 --threads=8
	--time="$seconds" --events=0)
prepare_mariadb() {
	own mysql "$work/mariadb"
	mariadb-install-db --no-defaults --user=mysql --datadir="$work/mariadb" --skip-test-db \
		--auth-root-authentication-method=normal >>"$work/mariadb.log" 2>&1
}
start_mariadb() {
	own mysql "$work/sock-mariadb-$1"
	cp -a "$work/mariadb" "$mnt/mariadb"
	mariadbd --no-defaults --user=mysql --datadir="$mnt/mariadb" --skip-networking \
		--socket="$work/sock-mariadb-$1/s" --pid-file="$work/sock-mariadb-$1/pid" \
		--innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=128M >>"$work/mariadb.log" 2>&1 &
	server[$1]=$!
	until_true mariadb --no-defaults -S "$work/sock-mariadb-$1/s" -u root -e 'CREATE DATABASE IF NOT EXISTS sbtest'
	sysbench "${insert[@]}" --mysql-socket="$work/sock-mariadb-$1/s" prepare >>"$work/mariadb.log" 2>&1
}
run_mariadb() {
	timed sysbench "${insert[@]}" --mysql-socket="$work/sock-mariadb-$1/s" run
	value=$(sed -n 's/.*transactions:.*(\([0-9.]*\) per sec.*/\1/p' "$work/output")
}

prepare_postgresql() {
	own postgres "$work/postgresql" "$work/sock-postgresql"
	as postgres "$pgbin/initdb" -D "$work/postgresql" --no-sync --auth=trust -U postgres >>"$work/postgresql.log" 2>&1
	server_postgresql "$work/postgresql" "$work/sock-postgresql"
	as postgres "$pgbin/pgbench" -h "$work/sock-postgresql" -U postgres -i -s 5 -q postgres >>"$work/postgresql.log" 2>&1
	stop "$pid"
}
server_postgresql() {
	serve_as postgres "$pgbin/postgres" -D "$1" -k "$2" -c listen_addresses= -c unix_socket_permissions=0700 \
		-c shared_buffers=128MB >>"$work/postgresql.log" 2>&1 &
	pid=$!
	until_true as postgres "$pgbin/pg_isready" -h "$2" -U postgres
}
start_postgresql() {
	own postgres "$work/sock-postgresql-$1"
	cp -a "$work/postgresql" "$mnt/postgresql"
	server_postgresql "$mnt/postgresql" "$work/sock-postgresql-$1"
	server[$1]=$pid
}
run_postgresql() {
	timed setpriv --reuid=postgres --regid=postgres --clear-groups -- "$pgbin/pgbench" \
		-h "$work/sock-postgresql-$1" -U postgres -n -T "$seconds" -c 8 -j 2 postgres
	value=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/output")
}

prepare_rocksdb() { :; }
start_rocksdb() { :; }
run_rocksdb() {
	timed db_bench --benchmarks=fillsync --db="$mnt/rocksdb" --num=100000000 --duration="$seconds" \
		--threads=4 --value_size=400 --compression_type=none
	value=$(sed -n 's/^fillsync .* \([0-9.]*\) ops\/sec.*/\1/p' "$work/output")
}

prepare_varmail() { :; }
start_varmail() { own root "$mnt/mail"; }
run_varmail() {
	timed fio --name=varmail --directory="$mnt/mail" --nrfiles=64 --filesize=16k-64k --openfiles=16 \
		--file_service_type=random --rw=randrw --rwmixread=50 --bs=4k-16k --bs_unaligned=0 --fsync=1 \
		--numjobs=4 --time_based --runtime="$seconds" --group_reporting --output-format=json
	value=$(sed -n '/^{/,$p' "$work/output" | jq '.jobs[0] | .read.iops + .write.iops')
}

# At once: what they would still write on a slow disk is of no use to anybody.
stop_app() {
	local side how=KILL
	[ "${app:-}" = postgresql ] && how=QUIT # its own word for at once; KILL leaves children
	for side in "${!server[@]}"; do stop "${server[$side]}" "$how"; done
	server=()
}

measure() {
	local disk=$1 app=$2 round side mnt
	server=() n=()
	at_end stop_app
	for side in origin forebay; do mnt=$work/$side && "start_$app" "$side"; done
	for ((round = 1; round <= rounds; round++)); do
		for side in origin forebay; do
			mnt=$work/$side
			"run_$app" "$side"
			[[ $value =~ ^[0-9.]+$ ]] || { cat "$work/output" >&2; fail "$app: no figure in its output"; }
			printf '%s\t%s\t%s\t%s\t%s\n' "$disk" "$app" "$side" "$round" "$value" >>"$work/rows"
			[ "$round" -gt 1 ] || printf '%s\t%s\t%s\t%s\n' "$disk" "$app" "$side" "${command//$work/WORK}" >>"$work/commands"
			say "$disk, $app, round $round, $side: $value ${unit[$app]}"
		done
	done
	stop_app
	for side in origin forebay; do rm -rf "${work:?}/$side/"{redis,mariadb,postgresql,rocksdb,mail}; done
}

started=$(date -u +%FT%TZ) facts=$(machine)
for app in "${apps[@]}"; do
	say "$app: its data, once"
	"prepare_$app"
done
for disk in "${disks[@]}"; do
	say "$disk: making both sides"
	slow_disk origin "$disk" 3G
	fuse origin "$(uri "$work/origin.sock")"
	mounted origin
	volume forebay "$disk" 3G 512M
	mounted forebay
	for app in "${apps[@]}"; do measure "$disk" "$app"; done
	run_undo
done

speeds=$(for disk in "${disks[@]}"; do
	read -r -a s <<<"$(disk_speed "$disk")"
	printf '{"%s": {"requests_per_s": %d, "megabytes_per_s": %d, "latency_us": %d, "flush_us": %d}}\n' "$disk" "${s[@]}"
done | jq -s add)
units=$(for app in "${apps[@]}"; do printf '{"%s": "%s"}\n' "$app" "${unit[$app]}"; done | jq -s add)
jq -n --rawfile rows "$work/rows" --rawfile commands "$work/commands" --argjson machine "$facts" \
	--argjson disks "$speeds" --argjson units "$units" --arg started "$started" \
	--argjson seconds "$seconds" --argjson rounds "$rounds" \
	--arg command "bench/apps.sh --seconds $seconds --rounds $rounds ${disks[*]/#/--disk } ${apps[*]}" '
	def lines: split("\n") | map(select(. != "") | split("\t"));
	def middle: sort | if length % 2 == 1 then .[length / 2 | floor]
		else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def spread: {median: middle, low: min, high: max, rounds: .};
	($rows | lines | map({disk: .[0], app: .[1], side: .[2], value: (.[4] | tonumber)})) as $all |
	($commands | lines) as $commands |
	{started: $started, command: $command, machine: $machine, seconds: $seconds, rounds: $rounds, disks: $disks,
	 cells: [$all | group_by([.disk, .app])[] | . as $cell | {
		disk: .[0].disk, app: .[0].app, unit: $units[.[0].app],
		commands: [$commands[] | select(.[0] == $cell[0].disk and .[1] == $cell[0].app) | {(.[2]): .[3]}] | add,
		origin: [.[] | select(.side == "origin").value] | spread,
		forebay: [.[] | select(.side == "forebay").value] | spread}
		| .ratio = ([.forebay.rounds, .origin.rounds] | transpose | map(.[0] / .[1]) | spread)]}
	' >"$out/apps.json"
jq -r '.cells[] | "\(.disk)\t\(.app)\t\(.origin.median | round)\t\(.forebay.median | round)\t\(.unit)\t\(.ratio.median * 100 | round / 100)\t(\(.ratio.low * 100 | round / 100) to \(.ratio.high * 100 | round / 100))"' \
	"$out/apps.json" | column -t -s "$(printf '\t')" -N disk,program,origin,forebay,unit,ratio,spread
say "medians of $rounds interleaved rounds of $seconds s; all of it in $out/apps.json"
