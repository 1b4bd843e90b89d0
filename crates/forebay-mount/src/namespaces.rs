// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that hold a mount in another mount namespace.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use forebay::procfs::{self, Mount};

/// A mount as /proc/self/mountinfo shows it in each namespace.  A device number alone does not
/// identify it, since another file system may get the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    device: u64,
    /// Type and source; `None`: they could not be read.
    named: Option<(String, PathBuf)>,
}

impl Listed {
    /// A mount of this device; the one with this number, if that is known.
    pub fn find(device: u64, id: Option<u64>) -> Listed {
        let is_it = |m: &Mount| m.device == device && id.is_none_or(|id| id == m.id);
        let found = procfs::mounts().unwrap_or_default().into_iter().find(is_it);
        Listed { device, named: found.map(|mount| (mount.kind, mount.source)) }
    }

    #[cfg(test)]
    pub fn named(device: u64, kind: &str, source: &str) -> Listed {
        Listed { device, named: Some((kind.into(), source.into())) }
    }

    fn is(&self, mount: &Mount) -> bool {
        let named = self.named.as_ref();
        let is_so = named.is_none_or(|(k, s)| mount.kind == *k && mount.source == *s);
        mount.device == self.device && is_so
    }

    fn is_in(&self, mounts: &[Mount]) -> bool {
        mounts.iter().any(|mount| self.is(mount))
    }
}

/// The mountpoints of the mount in this process's own namespace: a bind mount is one more.  `None`:
/// nobody says.
pub fn places(listed: &Listed) -> Option<Vec<PathBuf>> {
    let mounts = procfs::mounts().ok()?.into_iter();
    Some(mounts.filter(|mount| listed.is(mount)).map(|mount| mount.at).collect())
}

/// A process of each other mount namespace that has the mount, in words; as far as this process may
/// look at others.
pub fn that_see(listed: &Listed) -> Vec<String> {
    const SHOWN: usize = 5;
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let (mut seen, mut found) = (HashSet::<_>::from_iter(own), Vec::new());
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let pid = process.file_name();
        let Some(pid) = pid.to_str().filter(|p| p.bytes().all(|b| b.is_ascii_digit())) else {
            continue;
        };
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if found.len() == SHOWN || !seen.insert(namespace) {
            continue;
        }
        let Ok(pid) = pid.parse() else { continue };
        if procfs::mounts_of(pid).is_ok_and(|mounts| listed.is_in(&mounts)) {
            let command = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("process {pid} ({})", forebay::printable(command.trim_end())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    #[test]
    fn a_device_number_that_another_file_system_has_is_not_the_mount() {
        const OURS: &str = "57 22 0:45 / /mnt/a\\040b rw,nosuid shared:3 master:1 - fuse.forebay /tree\\040x rw,user_id=0";
        const OTHER: &str = "57 22 0:45 / /mnt/a\\040b rw,nosuid - fuse.sshfs host:/x rw,user_id=0";
        let listed = Listed::named(makedev(0, 45), "fuse.forebay", "/tree x");
        let is_in = |listed: &Listed, text: &str| listed.is_in(&procfs::mounts_in(text.as_bytes()));
        assert!(is_in(&listed, &format!("{OTHER}\n{OURS}\n")));
        assert!(!is_in(&listed, OTHER) && !is_in(&listed, ""));
        let unnamed = Listed { named: None, ..listed };
        assert!(is_in(&unnamed, OTHER));
    }
}
