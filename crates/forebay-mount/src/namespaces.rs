// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes hold a mount in another mount namespace.

use std::collections::HashSet;
use std::fs;

use rustix::fs::{major, minor};

fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

fn has(mounts: &str, device: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(device))
}

/// This process's own namespace has a mount of the device.
pub fn is_here(device: u64) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    has(&mounts, &number(device))
}

/// A process of each mount namespace that has a mount of this device, in words; as far as
/// this process may look at others.
pub fn that_see(device: u64) -> Vec<String> {
    const SHOWN: usize = 5;
    let device = number(device);
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
        if has(&mounts, &device) {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("process {pid} ({})", command.trim_end()));
        }
    }
    found
}
