// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file systems keep no later change of names or attributes without an earlier one.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{fstat, fstatfs, major, minor};

/// They write such changes as transactions, one after another.  Of a tmpfs a crash leaves nothing.
const KNOWN: [u64; 3] = [XFS, BTRFS, TMPFS];
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const TMPFS: u64 = 0x0102_1994;
/// So does an ext4 with a journal.
const EXT: u64 = 0xef53;

/// `false`: that is not known.
pub(super) fn keeps_order(root: impl AsFd) -> bool {
    let Ok(system) = fstatfs(&root) else { return false };
    match system.f_type as u64 & 0xffff_ffff {
        EXT => fstat(&root).is_ok_and(|root| has_journal(root.st_dev)),
        known => KNOWN.contains(&known),
    }
}

/// The kernel tells the number of the journal's thread.
fn has_journal(device: u64) -> bool {
    let block = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let name = fs::canonicalize(block).ok().and_then(|at| Some(at.file_name()?.to_owned()));
    let task = name.map(|name| Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    let task = task.and_then(|task| fs::read_to_string(task).ok());
    task.is_some_and(|number| number.trim().parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_keep_order_does() {
        let of = |path| keeps_order(fs::File::open(path).unwrap());
        assert!(!of("/proc") && !of("/sys"));
        // A device that is no ext4.
        assert!(!has_journal(rustix::fs::makedev(0, 0)));
    }
}
