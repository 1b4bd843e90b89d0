# SPDX-License-Identifier: MIT OR Apache-2.0
#
# kernel-newer.sh - sourced after lab.sh: kernels newer than Debian 12's own, from trixie-backports,
# by an apt configuration of our own.  The compiler that they want is in a tree of trixie's
# packages.  All of it is only unpacked, below $cache.

newer=$cache/trixie
newer_suites=(trixie trixie-backports)
# The packages, besides the headers, that a build of a module takes.
newer_tools=(gcc-14 make libelf1t64 dash bash coreutils sed grep mawk findutils diffutils base-files)

newer_apt() { # TOOL ARGS: apt's TOOL for those suites, as if nothing were installed
	"$1" -q -q -o "Dir::Etc::sourcelist=$newer/apt/sources" -o Dir::Etc::sourceparts=- \
		-o "Dir::State::Lists=$newer/apt/lists" -o "Dir::State::status=$newer/apt/status" \
		-o "Dir::Cache=$newer/apt/cache" -o APT::Sandbox::User=root "${@:2}"
}

# Downloads the lists of packages, once a day.
newer_lists() {
	local suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -n "$(find "$newer/apt/status" -mtime -1 2>/dev/null)" ] && return
	mkdir -p "$newer/apt/lists/partial" "$newer/apt/cache/archives/partial"
	for suite in "${newer_suites[@]}"; do
		echo "deb [signed-by=$keyring] http://deb.debian.org/debian $suite main"
	done >"$newer/apt/sources"
	newer_apt apt-get update >"$newer/apt/log" 2>&1 && : >"$newer/apt/status"
}

# Finds the newest release of the series, here or else in the lists.  Sets $release.
find_newer_release() {
	release=$(ls -d "$cache/$series".*+deb*-amd64/.complete 2>/dev/null | sort -V | tail -n 1)
	if [ -n "$release" ]; then
		release=$(basename "$(dirname "$release")")
		return
	fi
	newer_lists && release=$(newer_apt apt-cache search --names-only \
		"^linux-headers-${series//./\\.}\.[0-9]+\+deb[0-9]+-amd64\$" | cut -d' ' -f1 | sort -V | tail -n 1)
	release=${release#linux-headers-}
	[ -n "$release" ] || {
		say "no kernel $series in ${newer_suites[*]}: see https://packages.debian.org for those that there are"
		return 1
	}
}

# Makes the tree in which modules are built: unpacked packages, of which no script has run.
get_newer_tools() {
	local deb tree=$newer/tree
	[ -e "$newer/.complete" ] && return
	say "downloading trixie's compiler, once"
	rm -rf "$tree" "$newer/apt/cache"/archives/*.deb
	mkdir -p "$tree" "$newer/apt/cache/archives/partial"
	newer_lists && newer_apt apt-get -y --no-install-recommends --download-only -t trixie \
		install "${newer_tools[@]}" >"$newer/apt/log" 2>&1 || return 1
	for deb in "$newer/apt/cache"/archives/base-files_*.deb "$newer/apt/cache"/archives/*.deb; do
		dpkg --fsys-tarfile "$deb" | tar -C "$tree" --keep-directory-symlink -x || return 1
	done
	ln -sf mawk "$tree/usr/bin/awk"
	ln -sf gcc-14 "$tree/usr/bin/gcc"
	rm -f "$newer/apt/cache"/archives/*.deb
	touch "$newer/.complete"
}

# in_newer COMMAND...: runs it in that tree, with the directories of this project and the
# cache.
in_newer() {
	local apart=()
	[ "$(id -u)" != 0 ] || apart=("$root/tests/apart" "$cache")
	# shellcheck disable=SC2016 # for the shell inside
	"${apart[@]}" unshare --map-root-user --mount bash -euc 'tree=$1
		for dir in "$2" "$3" /dev /proc; do
			mkdir -p "$tree$dir"
			mount --rbind "$dir" "$tree$dir"
		done
		shift 3
		exec env -i PATH=/usr/bin:/usr/sbin chroot "$tree" "$@"' in_newer "$newer/tree" "$root" "$cache" "$@"
}

get_kernel_newer() {
	local common deb
	find_newer_release && get_newer_tools || return 1
	kernel=$cache/$release
	KDIR=$kernel/usr/src/linux-headers-$release
	module_env=(in_newer)
	[ -e "$kernel/.complete" ] && return
	say "downloading Debian's kernel $release, once"
	common=${release%-amd64}-common
	rm -rf "$kernel"
	unpack "$kernel" busybox-static cpio kmod libkmod2 xfsprogs libinih1 liburcu8 || return 1
	mkdir -p "$kernel/.deb" "$kernel/boot"
	(cd "$kernel/.deb" && newer_apt apt-get download "linux-base-$release" "linux-binary-$release" "linux-modules-$release" \
		"linux-headers-$release" "linux-headers-$common" "linux-kbuild-${release%-amd64}") || return 1
	for deb in "$kernel"/.deb/*.deb; do
		dpkg -x "$deb" "$kernel" || return 1
	done
	rm -rf "$kernel/.deb"
	ln -sfn "../usr/lib/modules/$release/vmlinuz" "$kernel/boot/vmlinuz-$release"
	ln -sfn ../usr/lib/modules "$kernel/lib/modules"
	# The headers' Makefile names where the package would have been installed.
	sed -i "s#/usr/src/linux-headers-#$kernel&#" "$KDIR/Makefile"
	touch "$kernel/.complete"
}
