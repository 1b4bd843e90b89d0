#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Commands that keep numbers, each number by a run of its own or by one that goes on.
#
#	commands.sh list                    those that are there; the others with "-" before
#	commands.sh write STORE DIR [MOST]  adds numbers after those that are there, and says each when it is durable
#	commands.sh dump STORE DIR          says up to which number all are there, each with its own value
set -euo pipefail
here=$(dirname "$0")
value() { printf '%d-%.*s' "$1" $(($1 % 200)) "$(printf 'v%.0s' $(seq 200))"; }

# The command that each store needs; `put_X N`; and `all_X`, which prints lines with a
# number and its value.
declare -A needs=(
	[sqlite3]=sqlite3 [gdbm]=gdbmtool [tokyo-btree]=tcbmgr [tokyo-hash]=tchmgr [tokyo-fixed]=tcfmgr
	[kyoto-hash]=kchashmgr [kyoto-tree]=kctreemgr [qdbm]=vlmgr [berkeley-db]=db5.3_load [lmdb-load]=mdb_load
	[rrdtool]=rrdtool [qemu-qcow2]=qemu-io [dd]=dd [perl-db-file]=perl [perl-gdbm]=perl [perl-sdbm]=perl
	[ruby-pstore]=ruby [php-flatfile]=php8.2 [gawk]=gawk [lua]=lua5.4 [node]=node [redis]=redis-server [git]=git
)

put_sqlite3() { sqlite3 app.db "pragma synchronous=extra; create table if not exists t (n integer primary key, v text); insert into t values ($1, '$(value "$1")')"; }
all_sqlite3() { [ ! -s app.db ] || sqlite3 -separator ' ' app.db 'create table if not exists t (n integer primary key, v text); select n, v from t order by n'; }
put_gdbm() { [ -s n.gdbm ] || gdbmtool --quiet --norc --newdb n.gdbm count >/dev/null; printf 'store %s %s\nsync\n' "$1" "$(value "$1")" | gdbmtool --quiet --norc n.gdbm; }
all_gdbm() { [ ! -s n.gdbm ] || gdbmtool --quiet --norc --read-only n.gdbm list | grep '^[0-9]' | sort -n; }
put_tokyo-btree() { [ -s n.tcb ] || tcbmgr create n.tcb; tcbmgr put n.tcb "$1" "$(value "$1")"; }
all_tokyo-btree() { [ ! -s n.tcb ] || tcbmgr list -pv n.tcb | tr '\t' ' ' | sort -n; }
put_tokyo-hash() { [ -s n.tch ] || tchmgr create n.tch; tchmgr put n.tch "$1" "$(value "$1")"; }
all_tokyo-hash() { [ ! -s n.tch ] || tchmgr list -pv n.tch | tr '\t' ' ' | sort -n; }
put_tokyo-fixed() { [ -s n.tcf ] || tcfmgr create n.tcf; tcfmgr put n.tcf "$1" "$(value "$1")"; }
all_tokyo-fixed() { [ ! -s n.tcf ] || tcfmgr list -pv n.tcf | tr '\t' ' ' | sort -n; }
put_kyoto-hash() { [ -s n.kch ] || kchashmgr create n.kch; kchashmgr set n.kch "$1" "$(value "$1")"; }
all_kyoto-hash() { [ ! -s n.kch ] || kchashmgr list -pv n.kch | tr '\t' ' ' | sort -n; }
put_kyoto-tree() { [ -s n.kct ] || kctreemgr create n.kct; kctreemgr set n.kct "$1" "$(value "$1")"; }
all_kyoto-tree() { [ ! -s n.kct ] || kctreemgr list -pv n.kct | tr '\t' ' ' | sort -n; }
put_qdbm() { [ -s n.qdbm ] || vlmgr create n.qdbm; vlmgr put n.qdbm "$1" "$(value "$1")"; }
all_qdbm() { [ ! -s n.qdbm ] || vlmgr list n.qdbm | tr '\t' ' ' | sort -n; }
put_berkeley-db() { printf '%s\n%s\n' "$1" "$(value "$1")" | db5.3_load -T -t btree n.bdb; }
all_berkeley-db() { [ ! -s n.bdb ] || db5.3_dump -p n.bdb | sed -n 's/^ //p' | paste -d ' ' - - | sort -n; }
put_lmdb-load() { printf '%s\n%s\n' "$1" "$(value "$1")" | mdb_load -n -T n.mdb; }
all_lmdb-load() { [ ! -s n.mdb ] || mdb_dump -n -p n.mdb | sed -n 's/^ //p' | paste -d ' ' - - | sort -n; }
put_rrdtool() { [ -s n.rrd ] || rrdtool create n.rrd --start 1000000000 --step 1 DS:n:GAUGE:10:U:U RRA:LAST:0.5:1:5000; rrdtool update n.rrd $((1000000000 + $1)):"$1"; }
all_rrdtool() { [ ! -s n.rrd ] || rrdtool fetch n.rrd LAST --start 1000000000 --end 1000005000 | sed -n 's/^\(1[0-9]*\): \([0-9].*\)/\1 \2/p' | while read -r at n; do n=$(printf %.0f "$n"); [ $((at - 1000000000)) = "$n" ] || continue; echo "$n $(value "$n")"; done; }
put_qemu-qcow2() { [ -s n.qcow2 ] || qemu-img create -q -f qcow2 n.qcow2 1G; qemu-io -f qcow2 -c "write -q -P $(($1 % 255 + 1)) $(($1 * 4096)) 4096" -c flush n.qcow2 >/dev/null; }
all_qemu-qcow2() { [ ! -s n.qcow2 ] || for ((n = 1; n <= 4096; n++)); do qemu-io -r -f qcow2 -c "read -P $((n % 255 + 1)) $((n * 4096)) 4096" n.qcow2 2>&1 | grep -q '^read 4096' || break; qemu-io -r -f qcow2 -c "read -P $((n % 255 + 1)) $((n * 4096)) 4096" n.qcow2 2>&1 | grep -q failed && break; echo "$n $(value "$n")"; done; }
put_dd() { printf '%-256s' "$1 $(value "$1")" | dd of=n.dat bs=256 seek="$1" conv=notrunc,fdatasync status=none; }
all_dd() { [ ! -s n.dat ] || tr '\0' ' ' <n.dat | fold -w 256 | sed '1d; s/ *$//' | grep . || true; }
perl_put() { perl -e "use $1; use Fcntl; use IO::Handle; my %h; my \$db = tie(%h, $2) or die \"tie: \$!\"; \$h{\$ARGV[0]} = \$ARGV[1]; \$db->sync if \$db->can('sync'); undef \$db; untie %h;" "$3" "$(value "$3")"; }
perl_all() { perl -e "use $1; use Fcntl; my %h; tie(%h, $2) or die \"tie: \$!\"; print \"\$_ \$h{\$_}\n\" for sort { \$a <=> \$b } keys %h;"; }
put_perl-db-file() { perl_put DB_File "'DB_File', 'n.db', O_RDWR|O_CREAT, 0600, \$DB_BTREE" "$1"; }
all_perl-db-file() { [ ! -s n.db ] || perl_all DB_File "'DB_File', 'n.db', O_RDWR|O_CREAT, 0600, \$DB_BTREE"; }
put_perl-gdbm() { perl_put GDBM_File "'GDBM_File', 'n.gdbm', GDBM_WRCREAT, 0600" "$1"; }
all_perl-gdbm() { [ ! -s n.gdbm ] || perl_all GDBM_File "'GDBM_File', 'n.gdbm', GDBM_WRCREAT, 0600"; }
put_perl-sdbm() { perl_put SDBM_File "'SDBM_File', 'n.sdbm', O_RDWR|O_CREAT, 0600" "$1"; }
all_perl-sdbm() { [ ! -s n.sdbm.dir ] && [ ! -s n.sdbm.pag ] || perl_all SDBM_File "'SDBM_File', 'n.sdbm', O_RDWR|O_CREAT, 0600"; }
put_ruby-pstore() { ruby -r pstore -e 's = PStore.new("n.pstore"); s.ultra_safe = true; s.transaction { s[ARGV[0].to_i] = ARGV[1] }' "$1" "$(value "$1")"; }
all_ruby-pstore() { [ ! -s n.pstore ] || ruby -r pstore -e 's = PStore.new("n.pstore"); s.transaction(true) { s.roots.sort.each { |n| puts "#{n} #{s[n]}" } }'; }
put_php-flatfile() { php8.2 -n -r '$f = fopen("n.txt", "c+"); flock($f, LOCK_EX) or exit(1); fseek($f, 256 * $argv[1]); fwrite($f, str_pad("$argv[1] $argv[2]", 256)); fsync($f) or exit(1);' "$1" "$(value "$1")"; }
all_php-flatfile() { [ ! -s n.txt ] || tr '\0' ' ' <n.txt | fold -w 256 | sed '1d; s/ *$//' | grep . || true; }
put_gawk() { gawk 'BEGIN { printf "%s %s\n", ARGV[1], ARGV[2] >> "n.txt"; close("n.txt"); exit }' "$1" "$(value "$1")"; sync n.txt; }
all_gawk() { [ ! -s n.txt ] || cat n.txt; }
put_lua() { lua5.4 -e 'f = io.open("n.txt", "a"); f:write(arg[1], " ", arg[2], "\n"); f:close()' - "$1" "$(value "$1")" </dev/null; sync n.txt; }
all_lua() { [ ! -s n.txt ] || cat n.txt; }
all_git() { [ ! -d .git ] || git log --reverse --format='%s' | while read -r n; do echo "$n $(git show "HEAD:$n" 2>/dev/null)"; done; }
put_git() { [ -d .git ] || git init -q; value "$1" >"$1"; git -c core.fsync=all -c core.fsyncMethod=fsync add "$1"; git -c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0 -c user.name=n -c user.email=n@n commit -q -m "$1"; }
all_node() { [ ! -s n.log ] || cat n.log; }
write_node() { node -e 'const fs = require("fs"), fd = fs.openSync("n.log", "a"); for (let n = +process.argv[1]; n <= +process.argv[2]; n++) { fs.writeSync(fd, `${n} ${n}-${"v".repeat(n % 200)}\n`); fs.fdatasyncSync(fd); fs.writeSync(1, `${n}\n`); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2); }' "$1" "$2"; }
redis_up() {
	redis-server --save '' --appendonly yes --appendfsync always --dir "$PWD" --unixsocket "$PWD/s" --port 0 --daemonize no >/dev/null 2>&1 &
	for _ in $(seq 400); do redis-cli -s s ping 2>/dev/null | grep -q PONG && return; sleep 0.02; done
	return 1
}
write_redis() { redis_up; for ((n = $1; n <= $2; n++)); do redis-cli -s s set "$n" "$(value "$n")" | grep -q OK; echo "$n"; done; redis-cli -s s shutdown; wait; }
all_redis() { [ -d appendonlydir ] || return 0; redis_up; for ((n = 1; ; n++)); do v=$(redis-cli -s s get "$n"); [ -n "$v" ] || break; echo "$n $v"; done; redis-cli -s s shutdown >/dev/null; wait; }

if [ "$1" = list ]; then
	for store in $(printf '%s\n' "${!needs[@]}" | sort); do
		if command -v "${needs[$store]}" >/dev/null; then echo "$store"; else echo "- $store ${needs[$store]}"; fi
	done
	exit
fi
store=$2 most=${4:-16383}
cd "$3"
# A line that a kill has truncated was not acknowledged, and the next line follows it.
last=$("all_$store" | {
	last=0
	while read -r n v; do
		if [ "$v" != "$(value "$n")" ]; then continue; fi
		[ "$n" -le "$last" ] && continue
		[ "$n" = $((last + 1)) ] || { echo "$last is followed by $n" >&2; exit 1; }
		last=$n
	done
	echo "$last"
})
if [ "$1" = dump ]; then
	echo "$last"
elif declare -F "write_$store" >/dev/null; then
	"write_$store" $((last + 1)) "$most"
else
	for ((n = last + 1; n <= most; n++)); do
		"put_$store" "$n"
		echo "$n"
	done
fi
