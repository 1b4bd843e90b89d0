#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# fio_headers.sh - prints a directory with the headers of the fio that is installed, configured,
# for engines of one's own; FIO_SOURCE names one that is there already.
#
# No package has these headers, and an engine fits one version of them.  So this takes the
# sources of the package, from where apt has the package, once; what it takes is kept in
# ${XDG_CACHE_HOME:-~/.cache}/forebay/fio-VERSION.  Needs fio, gcc and make.
set -euo pipefail

fail() { echo "fio_headers: $*" >&2; exit 1; }

if [ -n "${FIO_SOURCE:-}" ]; then
	[ -f "$FIO_SOURCE/config-host.h" ] || fail "$FIO_SOURCE: no config-host.h; run its ./configure"
	echo "$FIO_SOURCE"
	exit
fi
for tool in fio dpkg-query apt-get gcc make; do
	command -v $tool >/dev/null || fail "$tool is not installed; or name fio's sources by FIO_SOURCE"
done
version=$(dpkg-query -W -f '${source:Version}' fio 2>/dev/null) || fail "fio is not Debian's: name its sources by FIO_SOURCE"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/forebay/fio-$version
if [ ! -f "$cache/.complete" ]; then
	# "  500 http://deb.debian.org/debian bookworm/main amd64 Packages"
	read -r uri suite component < <(apt-cache policy fio |
		awk '$1 ~ /^[0-9]+$/ && $2 ~ /^http/ { split($3, s, "/"); print $2, s[1], s[2] }') ||
		fail "apt does not know where fio $version came from; run apt-get update"
	rm -rf "$cache"
	mkdir -p "$cache"/apt/{lists/partial,cache/archives/partial}
	echo "deb-src $uri $suite $component" >"$cache/apt/sources.list"
	options=(-qq -o "APT::Sandbox::User=root" -o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o Dir::Etc::sourceparts=-
		-o "Dir::State::Lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt/cache")
	# Debian's keys, wherever the machine's own sources name them.
	keys=$(ls /usr/share/keyrings/debian-archive-keyring.gpg 2>/dev/null) &&
		sed -i "s,deb-src ,&[signed-by=$keys] ," "$cache/apt/sources.list"
	# Each step by &&: set -e counts for nothing where the whole has an `||`.
	{
		cd "$cache" && apt-get "${options[@]}" update &&
			apt-get "${options[@]}" source --download-only "fio=$version" && mkdir source &&
			tar xf "$(ls fio_*.orig.tar.* | grep -v '\.asc$')" --strip-components=1 -C source &&
			cd source && ./configure --disable-native
	} >"$cache.log" 2>&1 || { tail -n 5 "$cache.log" >&2; fail "fio $version: its sources cannot be had; log: $cache.log"; }
	rm -rf "$cache/apt"
	touch "$cache/.complete"
fi
echo "$cache/source"
