# SPDX-License-Identifier: MIT OR Apache-2.0
#
# pcache.sh - sourced by parts that compare dm-pcache with the others.  Debian's kernels
# have it in their source only, from 6.18 on; it builds as a module of its own against the
# same kernel's headers.

# get_pcache: makes out/vm/dm-pcache-$release.ko, if the kernel has it and its source is
# available.
get_pcache() {
	local source=linux-source-$series dir module=$out_vm/dm-pcache-$release.ko
	local kept=$cache/$release/md archive
	[ -e "$module" ] && return
	if ! is_newer || [[ $series == 6.1[3-7] ]]; then
		say "kernel $series has no dm-pcache: it is left out (FOREBAY_VM_KERNEL=7.2 has it)"
		return 0
	fi
	if ! [ -e "$kept/.complete" ]; then
		dir=$(mktemp -d "$cache/pcache.XXXXXX")
		mkdir -p "$kept"
		(newer_lists && cd "$dir" && newer_apt apt-get download "$source" && dpkg -x ./*.deb .) >&2 &&
			archive=$(ls "$dir/usr/src/$source".tar.*) &&
			tar -C "$kept" --strip-components=3 --wildcards -xf "$archive" \
				"$source/drivers/md/dm-pcache" "$source/drivers/md/*.h" && touch "$kept/.complete"
		rm -rf "$dir"
	fi
	[ -e "$kept/.complete" ] || {
		say "$source cannot be had: dm-pcache is left out"
		return 0
	}
	# Debian's configuration does not set it.
	"${module_env[@]}" make -s -C "$KDIR" M="$kept/dm-pcache" CONFIG_DM_PCACHE=m CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$module.log" 2>&1 || {
		tail -n 5 "$module.log" >&2
		say "dm-pcache of $source does not build: it is left out; log: $module.log"
		return 0
	}
	cp "$kept/dm-pcache/dm-pcache.ko" "$module"
}
