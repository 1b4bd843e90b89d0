// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that hold a mount in another mount namespace.

use std::collections::HashSet;
use std::fs;

use rustix::fs::{major, minor};

/// A mount as /proc/self/mountinfo shows it in each namespace.  A device number alone does not
/// identify it, since another file system may get the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    device: String,
    /// Type and source; `None`: they could not be read.
    named: Option<(String, String)>,
}

/// Its number, and what it is listed as.
fn parse(line: &str) -> Option<(u64, Listed)> {
    let (of_mount, of_system) = line.split_once(" - ")?;
    let mut of_mount = of_mount.split(' ');
    let (id, _, device) = (of_mount.next()?.parse().ok()?, of_mount.next()?, of_mount.next()?);
    let mut of_system = of_system.split(' ');
    let named = Some((of_system.next()?.into(), of_system.next()?.into()));
    Some((id, Listed { device: device.into(), named }))
}

impl Listed {
    /// A mount of this device; the one with this number, if that is known.
    pub fn find(device: u64, id: Option<u64>) -> Listed {
        let device = format!("{}:{}", major(device), minor(device));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found = mounts
            .lines()
            .filter_map(parse)
            .filter(|(of, listed)| listed.device == device && id.is_none_or(|id| id == *of));
        found.next().map_or(Listed { device, named: None }, |(_, listed)| listed)
    }

    #[cfg(test)]
    pub fn named(device: u64, kind: &str, source: &str) -> Listed {
        let device = format!("{}:{}", major(device), minor(device));
        Listed { device, named: Some((kind.into(), source.into())) }
    }

    fn is_in(&self, mounts: &str) -> bool {
        mounts.lines().filter_map(parse).any(|(_, listed)| match self.named {
            Some(_) => listed == *self,
            None => listed.device == self.device,
        })
    }
}

/// This process's own namespace has the mount; `None`: nobody says.
pub fn is_here(listed: &Listed) -> Option<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(listed.is_in(&mounts))
}

/// A process of each mount namespace that has the mount, in words; as far as this process may look
/// at others.
pub fn that_see(listed: &Listed) -> Vec<String> {
    const SHOWN: usize = 5;
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
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
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        if listed.is_in(&mounts) {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("process {pid} ({})", command.trim_end()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_that_another_file_system_has_is_not_the_mount() {
        const OURS: &str = "57 22 0:45 / /mnt/a\\040b rw,nosuid shared:3 master:1 - fuse.forebay /tree\\040x rw,user_id=0";
        const OTHER: &str = "57 22 0:45 / /mnt/a\\040b rw,nosuid - fuse.sshfs host:/x rw,user_id=0";
        let (id, listed) = parse(OURS).expect("a line");
        assert_eq!((id, listed.device.as_str()), (57, "0:45"));
        assert_eq!(listed.named, Some(("fuse.forebay".into(), "/tree\\040x".into())));
        assert!(listed.is_in(&format!("{OTHER}\n{OURS}\n")));
        assert!(!listed.is_in(OTHER) && !listed.is_in(""));
        let unnamed = Listed { named: None, ..listed };
        assert!(unnamed.is_in(OTHER));
        assert_eq!(parse("57 22 0:45"), None);
    }
}
