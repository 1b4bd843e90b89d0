#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: libforebay-map and its header as a program in C or C++ has them after `make install`.
# Method: both are installed to a directory of its own. library.c is built by gcc and clang, with
# the shared library and the static one, by what pkg-config says.  It runs on a pool of its own and
# on one that is served, whose server is killed.  The header is also compiled by C++, and the
# exported names are checked.
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need gcc g++ clang pkg-config nm

there=$work/installed
make -s -C "$root" install-map PREFIX="$there" || fail "make install-map"
export PKG_CONFIG_PATH=$there/lib/pkgconfig
read -ra flags < <(pkg-config --cflags --libs forebay-map)
read -ra static < <(pkg-config --cflags --libs --static forebay-map | sed 's/-lforebay-map/-l:libforebay-map.a/')
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
[ "$(pkg-config --modversion forebay-map)" = "$version" ] || fail "the version of pkg-config"

others=$(nm -D --defined-only "$there/lib/libforebay-map.so" | awk '$3 !~ /^forebay_map_/ { print $3 }')
[ -z "$others" ] || fail "exports more than forebay_map_*: $others"
sed -n 's/^.*\(forebay_map_[a-z_]*\)(.*/\1/p' "$there/include/forebay_map.h" | sort -u >"$work/declared"
for name in $(nm -D --defined-only "$there/lib/libforebay-map.so" | awk '{ print $3 }'); do
	grep -qx "$name" "$work/declared" || fail "the header does not declare $name"
done

warn=(-O2 -g -Wall -Wextra -Werror -pthread)
for compiler in g++ clang++; do
	command -v $compiler >/dev/null || { skip_part "$compiler" "it is not installed"; continue; }
	printf '#include <forebay_map.h>\nint main() { return forebay_map_version() == nullptr; }\n' >"$work/cxx.cc"
	$compiler -std=c++17 -pedantic "${warn[@]}" -o "$work/cxx" "$work/cxx.cc" "${flags[@]}" || fail "$compiler"
	LD_LIBRARY_PATH=$there/lib "$work/cxx" || fail "the program in C++"
done

"$FOREBAY" create "$pool" --size 48M --maps 24M >/dev/null
"$FOREBAY" map add "$pool" db >/dev/null
run() { # NAME COMPILER FLAGS...
	local name=$1
	shift
	"$1" -std=gnu11 "${warn[@]}" -o "$work/library" "$root/tests/map/library.c" "${@:2}" || fail "$name: does not compile"
	LD_LIBRARY_PATH=$there/lib timeout 120 "$work/library" "$pool" "$work" || fail "$name"
	start_server
	# The program kills the server.
	disown "$server"
	LD_LIBRARY_PATH=$there/lib timeout 120 "$work/library" "$pool" "$work" "$server" || fail "$name, served"
	server=''
	say "$name: passed"
}
run 'gcc, shared' gcc "${flags[@]}"
run 'gcc, static' gcc "${static[@]}"
run 'clang, shared' clang "${flags[@]}"
