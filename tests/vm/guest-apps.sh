# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Goal: what programs that wait for their disk at every commit gain from the native
# device, beside dm-writecache and the disk alone.  Method: ext4 on each, on a disk
# of its own; a server for each side, then short rounds, the sides in turn.  The
# programs and what they do are those of bench/apps.sh; the databases were made on
# the host (part-apps.sh), since all is slow here.
#	$1 rounds   $2 seconds of one   $3 disks, as sata:disk   $4 programs, as redis:varmail
# Prints lines "apps DISK PROGRAM SIDE ROUND FIGURE" and "apps command DISK PROGRAM SIDE ...".
. "$(dirname "$0")/guest-lib.sh"
. "$(dirname "$0")/guest-caches.sh"
rounds=$1 seconds=$2 disk_names=${3//:/ } apps=${4//:/ }
sides="origin writecache native"
data=$root/out/vm/apps
pgbin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
work=/tmp/apps
mkdir -m 711 $work
mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm # PostgreSQL asks for it

# Only with &: the process is then the server itself.
serve_as() { exec setpriv --reuid="$1" --regid="$1" --clear-groups -- "${@:2}"; }
own() { mkdir -p "${@:2}" && chown "$1:$1" "${@:2}" && chmod 700 "${@:2}"; }
stop() { # PID [SIGNAL]
	kill -"${2:-KILL}" "$1" 2>/dev/null
	wait "$1" 2>/dev/null
	return 0
}
ready() { until_true 90 "$@" >/dev/null 2>&1 || { tail -n 20 $work/log; fail "after 90 s still not: $*"; }; }

declare -A server n
command='' value=''
# timed COMMAND...: its output in $work/output.
timed() {
	command="$*"
	"$@" >$work/output 2>>$work/log </dev/null || { tail -n 20 $work/output $work/log; fail "$command"; }
}

# start_ SIDE, run_ SIDE; mnt is the side's file system.
start_redis() {
	own redis "$mnt/redis" "$work/redis-$1"
	serve_as redis redis-server --port 0 --unixsocket "$work/redis-$1/s" --unixsocketperm 700 --dir "$mnt/redis" \
		--appendonly yes --appendfsync always --save '' --auto-aof-rewrite-percentage 0 >>$work/log 2>&1 &
	server[$1]=$!
	ready test -S "$work/redis-$1/s"
	# It counts requests, not seconds: find how many fit.
	n[$1]=100
	run_redis "$1"
	n[$1]=$(awk -v r="$value" -v s="$seconds" 'BEGIN { n = int(r * s); print n < 100 ? 100 : n }')
}
run_redis() {
	timed redis-benchmark -s "$work/redis-$1/s" -t set -n "${n[$1]}" -c 16 -d 512 -r 100000 --csv
	value=$(tail -n 1 $work/output | cut -d'"' -f4)
}

start_mariadb() {
	own mysql "$work/mariadb-$1"
	tar -C "$mnt" -xpf "$data/mariadb.tar" || fail "$data/mariadb.tar"
	mariadbd --no-defaults --user=mysql --datadir="$mnt/mariadb" --skip-networking --socket="$work/mariadb-$1/s" \
		--pid-file="$work/mariadb-$1/pid" --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=128M \
		--innodb-log-file-size=16M >>$work/log 2>&1 &
	server[$1]=$!
	ready mariadb-admin --no-defaults -S "$work/mariadb-$1/s" -u root ping
}
run_mariadb() {
	timed sysbench oltp_insert --db-driver=mysql --mysql-user=root --tables=4 --table-size=1000 --threads=8 \
		--time="$seconds" --events=0 --mysql-socket="$work/mariadb-$1/s" run
	value=$(sed -n 's/.*transactions:.*(\([0-9.]*\) per sec.*/\1/p' $work/output)
}

start_postgresql() {
	own postgres "$work/postgresql-$1"
	tar -C "$mnt" -xpf "$data/postgresql.tar" || fail "$data/postgresql.tar"
	serve_as postgres "$pgbin/postgres" -D "$mnt/postgresql" -k "$work/postgresql-$1" -c listen_addresses= \
		-c unix_socket_permissions=0700 -c shared_buffers=128MB >>$work/log 2>&1 &
	server[$1]=$!
	ready setpriv --reuid=postgres --clear-groups "$pgbin/pg_isready" -h "$work/postgresql-$1" -U postgres
}
run_postgresql() {
	timed setpriv --reuid=postgres --regid=postgres --clear-groups -- "$pgbin/pgbench" -h "$work/postgresql-$1" \
		-U postgres -n -T $((seconds < 4 ? 4 : seconds)) -c 8 -j 2 postgres
	value=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' $work/output)
}

start_rocksdb() { :; }
run_rocksdb() {
	timed db_bench --benchmarks=fillsync --db="$mnt/rocksdb" --num=100000000 --duration="$seconds" --threads=4 \
		--value_size=400 --compression_type=none
	value=$(sed -n 's/^fillsync .* \([0-9.]*\) ops\/sec.*/\1/p' $work/output)
}

start_varmail() { own root "$mnt/mail"; }
run_varmail() {
	timed fio --name=varmail --directory="$mnt/mail" --nrfiles=64 --filesize=16k-64k --openfiles=16 \
		--file_service_type=random --rw=randrw --rwmixread=50 --bs=4k-16k --bs_unaligned=0 --fsync=1 \
		--numjobs=4 --thread --time_based --runtime="$seconds" --group_reporting --output-format=json
	value=$(sed -n '/^{/,$p' $work/output | jq '.jobs[0] | .read.iops + .write.iops')
}

# measure DISK APP
measure() {
	local side round mnt how=KILL
	[ "$2" = postgresql ] && how=QUIT # its own word for at once; KILL leaves children
	server=() n=()
	for side in $sides; do mnt=$work/m-$side && "start_$2" "$side"; done
	for ((round = 1; round <= rounds; round++)); do
		for side in $sides; do
			mnt=$work/m-$side
			"run_$2" "$side"
			[[ $value =~ ^[0-9.]+$ ]] || { cat $work/output; fail "$2: no figure in its output"; }
			[ "$round" -gt 1 ] || echo "apps command $1 $2 $side ${command//$work/WORK}"
			echo "apps $1 $2 $side $round $value"
		done
	done
	for side in "${!server[@]}"; do stop "${server[$side]}" $how; done
	for side in $sides; do rm -rf "$work/$2-$side" "$work/m-$side/"{redis,mariadb,postgresql,rocksdb,mail}; done
}

load_module
letters=(a b c d e f)
at=0
declare -A up
for disk in $disk_names; do
	for side in $sides; do
		case $side in writecache) pmem=/dev/pmem0 ;; native) pmem=/dev/pmem1 ;; *) pmem= ;; esac
		cache_up "$side" "/dev/vd${letters[at++]}" "$pmem"
		up[$side]=$device
		mkfs.ext4 -q -F -N 16384 -E lazy_itable_init=0,lazy_journal_init=0 "$device" || fail "mkfs.ext4 on $side"
		mkdir -p "$work/m-$side"
		mount "$device" "$work/m-$side" || fail "mount $side"
		chmod 711 "$work/m-$side"
	done
	for app in $apps; do
		began=$SECONDS
		measure "$disk" "$app"
		echo "ok: $disk $app ($((SECONDS - began)) s)"
	done
	for side in $sides; do
		until_true 20 umount "$work/m-$side" 2>>$work/log || fail "umount $side: $(tail -n 1 $work/log)"
		device=${up[$side]}
		echo "status of $disk $side: $(cache_status "$side")"
		cache_down "$side"
	done
done
clean_dmesg
