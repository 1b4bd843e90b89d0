#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# map-run.sh [--json] [--rounds N] [--dir DIR] - programs by `forebay map-run` beside the same
# programs without it, on the same file system, in turns.
#
# LMDB of Debian: commits a second, each of one small value, with MDB_WRITEMAP and without.
# Redis: appends a second to an AOF with appendfsync always (redis-benchmark SET, one
# client), if it is installed.
#
# The files are in DIR (default: TMPDIR or /tmp), the pool in /dev/shm.
json=0 rounds=5 dir=${TMPDIR:-/tmp}
while [ $# -gt 0 ]; do
	case $1 in
	--json) json=1 ;;
	--rounds) rounds=$2; shift ;;
	--dir) dir=$2; shift ;;
	*) echo "usage: bench/map-run.sh [--json] [--rounds N] [--dir DIR]" >&2; exit 2 ;;
	esac
	shift
done
export TMPDIR=$dir
. "$(dirname "$0")/../tests/serve/lib.sh"
. "$(dirname "$0")/../tests/map/lib.sh"
need jq
compile lmdb -llmdb
make_map 192M 160M

lmdb() { # HOW COMMITS [mapped]
	"${@:3}" "$work/lmdb" bench "$work/${3:-plain}-$1.map" "$1" "$2"
}

redis() { # REQUESTS [mapped]
	local socket=$work/redis.sock server rate
	rm -rf "$work/redis-${2:-plain}"
	mkdir "$work/redis-${2:-plain}"
	"${@:2}" redis-server --port 0 --unixsocket "$socket" --dir "$work/redis-${2:-plain}" --save '' \
		--appendonly yes --appendfsync always --daemonize no --protected-mode no \
		--auto-aof-rewrite-percentage 0 >"$work/redis.log" 2>&1 &
	server=$!
	for _ in $(seq 200); do [ -S "$socket" ] && break; sleep 0.05; done
	rate=$(redis-benchmark -s "$socket" -t set -n "$1" -c 1 -q --csv | awk -F'"' '/SET/ { print $4 }')
	redis-cli -s "$socket" shutdown nosave >/dev/null 2>&1 || kill "$server"
	wait "$server" || true
	echo "$rate"
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

declare -A plain fast
measure() { # NAME PLAIN-COUNT MAPPED-COUNT COMMAND...
	local i name=$1
	: >"$work/plain.$name"
	: >"$work/fast.$name"
	for ((i = 0; i < rounds; i++)); do
		"${@:4}" "$2" >>"$work/plain.$name" || fail "$name, plain"
		"${@:4}" "$3" mapped >>"$work/fast.$name" || fail "$name, by map-run"
	done
	plain[$name]=$(median <"$work/plain.$name")
	fast[$name]=$(median <"$work/fast.$name")
}
names=(lmdb_writemap lmdb_pwrite)
measure lmdb_writemap 200 4000 lmdb writemap
measure lmdb_pwrite 200 4000 lmdb pwrite
if command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null; then
	names+=(redis_aof)
	measure redis_aof 500 5000 redis
fi

if [ $json = 1 ]; then
	for name in "${names[@]}"; do
		jq -n --arg what "$name" --argjson plain "${plain[$name]}" --argjson mapped "${fast[$name]}" \
			'{what: $what, plain_per_s: $plain, map_run_per_s: $mapped, ratio: ($mapped / $plain)}'
	done | jq -s --argjson rounds "$rounds" '{map_run: ., rounds: $rounds}'
	exit
fi
printf '%-14s %12s %12s %8s\n' what plain/s map-run/s ratio
for name in "${names[@]}"; do
	awk -v n="$name" -v a="${plain[$name]}" -v b="${fast[$name]}" \
		'BEGIN { printf "%-14s %12.0f %12.0f %8.1f\n", n, a, b, b / a }'
done
