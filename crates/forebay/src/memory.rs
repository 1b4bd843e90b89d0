// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory this process may have: the machine's, or less by a limit of its cgroup or of one
//! above that.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::procfs;

/// The limit in bytes.  The kernel ends a server that takes more, and every client with it.
fn memory_limit() -> u64 {
    let meminfo = procfs::text("/proc/meminfo").unwrap_or_default();
    let cgroups = fs::read("/proc/self/cgroup").unwrap_or_default();
    let machine = machine(&meminfo).unwrap_or(u64::MAX);
    machine.min(of_cgroups(&cgroups, Path::new("/sys/fs/cgroup")))
}

/// How much of the limit is free now, without paging anything out.
pub(crate) fn memory_available() -> u64 {
    let meminfo = procfs::text("/proc/meminfo").unwrap_or_default();
    memory_limit().min(meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX))
}

/// A part of the limit, for what clients make the server hold: a quarter, between these bounds.
pub fn memory_share(least: usize, most: usize) -> usize {
    share_of(memory_limit(), least, most)
}

fn share_of(limit: u64, least: usize, most: usize) -> usize {
    usize::try_from(limit / 4).unwrap_or(usize::MAX).clamp(least, most)
}

/// The memory of the machine, by /proc/meminfo.
fn machine(meminfo: &str) -> Option<u64> {
    meminfo_bytes(meminfo, "MemTotal:")
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least limit of the process's cgroups, by /proc/self/cgroup, where cgroups are mounted at
/// `root`.
fn of_cgroups(cgroups: &[u8], root: &Path) -> u64 {
    const UNIFIED: [&str; 2] = ["memory.max", "memory.high"];
    const FIRST: [&str; 1] = ["memory.limit_in_bytes"];
    let mut least = u64::MAX;
    for line in cgroups.split(|byte| *byte == b'\n') {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mount, files) = match controllers {
            b"" => (root.to_path_buf(), &UNIFIED[..]),
            _ if controllers.split(|byte| *byte == b',').any(|c| c == b"memory") => {
                (root.join("memory"), &FIRST[..])
            }
            _ => continue,
        };
        let own = Path::new(OsStr::from_bytes(path)).components();
        let own: PathBuf = own.filter(|c| matches!(c, Component::Normal(_))).collect();
        // With a namespace of its own, or in a container, a process sees its cgroup as the root.
        for place in own.ancestors().map(|above| mount.join(above)) {
            for file in files {
                let text = procfs::text(place.join(file)).unwrap_or_default();
                // "max" is none, and the first version writes a number that no machine has.
                least = text.trim().parse().map_or(least, |limit: u64| limit.min(least));
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path and content.
    type Files<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn the_least_limit_counts() {
        const MIB: u64 = 1 << 20;
        let root = std::env::temp_dir().join(format!("fby-memory-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        #[rustfmt::skip]
        let table: [(&str, &str, Files<'_>, u64); 9] = [
            ("no cgroups", "", &[], u64::MAX),
            ("without a limit", "0::/a", &[("a/memory.max", "max")], u64::MAX),
            ("its own", "0::/a/b", &[("a/b/memory.max", "134217728")], 128 * MIB),
            ("one above it", "0::/a/b", &[("a/memory.max", "67108864"), ("a/b/memory.max", "134217728")], 64 * MIB),
            ("throttled from there on", "0::/a", &[("a/memory.high", "33554432"), ("a/memory.max", "67108864")], 32 * MIB),
            ("a container", "0::/", &[("memory.max", "67108864")], 64 * MIB),
            ("above its namespace", "0::/../x", &[("memory.max", "67108864"), ("x/memory.max", "max")], 64 * MIB),
            ("the first version", "5:cpu:/c\n4:memory,hugetlb:/a\n0::/", &[("memory/a/memory.limit_in_bytes", "67108864")], 64 * MIB),
            ("the first version, of another place", "4:memory:/host/a", &[("memory/memory.limit_in_bytes", "67108864")], 64 * MIB),
        ];
        for (at, (what, cgroups, files, limit)) in table.into_iter().enumerate() {
            let root = root.join(at.to_string());
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
            assert_eq!(of_cgroups(cgroups.as_bytes(), &root), limit, "{what}");
        }
        // Another user may have named a cgroup next to it, or it itself.
        let own = root.join(OsStr::from_bytes(b"a\xff"));
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("memory.max"), "67108864\n").unwrap();
        assert_eq!(of_cgroups(b"5:cpu:/\xfe\n0::/a\xff", &root), 64 * MIB);
        let _ = fs::remove_dir_all(&root);
        assert_eq!(machine("MemTotal:        2048 kB\nMemFree: 7 kB\n"), Some(2 * MIB));
        assert_eq!(machine("MemFree: 7 kB\n"), None);
        assert!(memory_limit() > 0 && memory_limit() < u64::MAX, "this machine has some");
    }

    #[test]
    fn a_share_has_bounds() {
        let share = |limit| share_of(limit, 64, 256);
        assert_eq!([0, 256, 260, 1024, u64::MAX].map(share), [64, 64, 65, 256, 256]);
    }
}
