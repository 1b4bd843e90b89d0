#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: an ordinary user, who may not have userfaultfd, runs programs by `forebay map-run` with the
# defaults.  The map is smaller than the room for a file to grow.  A file that does not fit is
# refused with the way out.  The program ends with its own exit code, even if a thread that blocks
# all signals touches the mapping while access to it is withdrawn.
# A file whose mode is changed under it is complete after its close.
# Method: program.c, ends.c and alike.c as nobody, with a file that is new, one that grows, and one that is too large.
. "$(dirname "$0")/../serve/lib.sh"
needs_userfaultfd=no
. "$(dirname "$0")/lib.sh"
need setpriv
[ "$(id -u)" = 0 ] || skip "not root: it cannot become another user"
[ "$(cat /proc/sys/vm/unprivileged_userfaultfd 2>/dev/null || echo 0)" = 0 ] || skip "every user may have userfaultfd here"
touch "$work/probe" && chown nobody "$work/probe" 2>/dev/null || skip "no file can be given to another user (it needs CAP_CHOWN)"
compile program
compile ends -ldl
compile alike "$root/tests/map/often.c" "$root/tests/map/mark.c" -rdynamic
make_map 160M 128M
mkdir "$work/home" "$work/home/run"
chmod 711 "$work" "$shm"
chmod 700 "$work/home/run"
chown -R nobody "$work/home" "$pool"
as_user() {
	setpriv --reuid nobody --clear-groups --inh-caps=-all env HOME="$work/home" FOREBAY_RUNTIME_DIR="$work/home/run" \
		FOREBAY_STATE_DIR="$work/home/state" "$FOREBAY" map-run --pool "$pool" --files '*.map' -- "$@"
}
install -m 755 "$work/program" "$work/ends" "$work/alike" "$FOREBAY" "$(dirname "$FOREBAY")/libforebay_map_preload.so" "$work/home"
FOREBAY=$work/home/forebay

as_user "$work/home/program" exit "$work/home/new.map" 2>"$work/says" || { cat "$work/says" >&2; fail "a new file"; }
grep -q 'not synced' "$work/home/new.map" || fail "what was stored is not there after the end"
as_user "$work/home/ends" end beside-blocked "$work/home/blocked.map" >"$work/says" 2>&1 ||
	fail "an end beside a thread that blocks all signals: $? $(cat "$work/says")"
grep -q 'last, beside a thread' "$work/home/blocked.map" || fail "what was stored before the end is lost"
# Who may not write to a file any more cannot remove its mark: that goes before, or was never set.
for way in modes lists; do
	setpriv --reuid nobody --clear-groups --inh-caps=-all "$work/home/alike" $way "$work/home/$way.dat" >"$work/plain" ||
		fail "$way, plainly"
	as_user "$work/home/alike" $way "$work/home/$way.map" >"$work/said" 2>"$work/says" || fail "$way: $? $(cat "$work/said" "$work/says")"
	diff "$work/plain" "$work/said" >&2 || fail "$way without the right to write: $(cat "$work/says")"
	cmp "$work/home/$way.dat" "$work/home/$way.map" || fail "$way: another file"
	python3 -c 'import os, sys; sys.exit(os.listxattr(sys.argv[1]) != os.listxattr(sys.argv[2]))' "$work/home/$way.dat" "$work/home/$way.map" ||
		fail "$way: a complete file is marked"
done
compile taken
install -m 755 "$work/taken" "$work/home"
plainly() { setpriv --reuid nobody --clear-groups --inh-caps=-all "$@"; }
attributes() { python3 -c 'import os, sys; print(os.listxattr(sys.argv[1]))' "$1"; }
for way in chmod fchmod lchmod fchmodat2 empty-path of-another; do
	rm -f "$work/home"/taken.*
	plainly "$work/home/taken" $way "$work/home/taken.dat" >"$work/plain" || fail "taken $way, plainly"
	as_user "$work/home/taken" $way "$work/home/taken.map" >"$work/said" 2>"$work/says" || fail "taken $way: $? $(cat "$work/says")"
	diff "$work/plain" "$work/said" >&2 || fail "taken $way: other answers than of a plain file: $(cat "$work/says")"
	cmp "$work/home/taken.dat" "$work/home/taken.map" || fail "taken $way: another file"
	[ "$(attributes "$work/home/taken.map")" = "[]" ] || fail "taken $way: a complete file is marked"
done
# A served pool keeps what a program has stored, and a kill loses nothing.  The server may not open the file either.
# A process that shares files needs a userfaultfd for the kernel's accesses, which CAP_SYS_PTRACE gives.
serve=(setpriv --reuid nobody --clear-groups --inh-caps=-all,+sys_ptrace --ambient-caps=-all,+sys_ptrace env HOME="$work/home"
	FOREBAY_RUNTIME_DIR="$work/home/run" FOREBAY_STATE_DIR="$work/home/state" "$FOREBAY")
"${serve[@]}" serve "$pool" --json >"$work/ready" 2>"$work/server.log" &
server=$!
at_end 'kill $server 2>/dev/null'
for _ in $(seq 600); do grep -q '"ready":true' "$work/ready" && break; sleep 0.05; done
grep -q '"ready":true' "$work/ready" || fail "no server: $(cat "$work/server.log")"
for way in kill-not kill-chmod kill-lchmod kill-nothing; do
	rm -f "$work/home"/taken.*
	plainly "$work/home/taken" $way "$work/home/taken.dat" >"$work/plain" 2>/dev/null || true
	as_user "$work/home/taken" $way "$work/home/taken.map" >"$work/said" 2>"$work/says" || true
	diff "$work/plain" "$work/said" >&2 || fail "$way: other answers than of a plain file: $(cat "$work/says")"
	for _ in $(seq 100); do cmp -s "$work/home/taken.dat" "$work/home/taken.map" && break; sleep 0.05; done
	cmp "$work/home/taken.dat" "$work/home/taken.map" || fail "$way: stores are lost: $(cat "$work/server.log")"
	[ $way = kill-nothing ] && continue
	for _ in $(seq 100); do "${serve[@]}" map list "$pool" >"$work/left"; grep -q 'nothing to recover' "$work/left" && break; sleep 0.05; done
	grep -q 'nothing to recover' "$work/left" || fail "$way: $(cat "$work/left" "$work/server.log")"
done
# Nobody may read the mark of a file without rights: what is kept of it is named until somebody may.
chmod 644 "$work/home/taken.map"
for _ in $(seq 100); do "${serve[@]}" map list "$pool" >"$work/left"; grep -q 'nothing to recover' "$work/left" && break; "${serve[@]}" map recover "$pool" >/dev/null 2>&1 || true; sleep 0.05; done
grep -q 'nothing to recover' "$work/left" || fail "with its rights back: $(cat "$work/left" "$work/server.log")"
# Processes share a file: its mark is the server's.
if "${serve[@]}" map-run --shared --pool "$pool" --files '*.map' --room 8M -- "$work/home/taken" chmod "$work/home/shared.map" >"$work/said" 2>"$work/says"; then
	[ "$(head -n 1 "$work/said")" = "taken: Operation not permitted" ] && [ "$(tail -n 1 "$work/said")" = "close: done" ] ||
		fail "taken shared: $(cat "$work/said" "$work/says")"
	grep -q 'is refused while processes share' "$work/says" || fail "taken shared: no reason: $(cat "$work/says")"
else
	skip_part "chmod of a shared file" "$(tail -n 1 "$work/says")"
fi
kill $server
wait $server || fail "the server ended with $?: $(cat "$work/server.log")"
server=
truncate -s 256M "$work/home/large.map"
chown nobody "$work/home/large.map"
if as_user "$work/home/program" exit "$work/home/large.map" 2>"$work/says"; then fail "a file is mapped that is larger than the map"; fi
for word in userfaultfd "create --maps" "--room"; do
	grep -q -- "$word" "$work/says" || fail "the message does not name $word: $(cat "$work/says")"
done
say passed
