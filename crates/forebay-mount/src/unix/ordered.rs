// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file systems keep no later change of names or attributes without an earlier one.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{fstat, fstatfs, major, minor};

/// They write such changes as transactions, one after another.  Of a tmpfs a crash leaves nothing.
///
/// Btrfs does so, too, but two things are not in order there.  The time of a write becomes durable
/// with its data only, so a replay that takes the tree's times would lose one that was synced.  And
/// a sync of a directory next to the mount keeps changes without the time of the mark.
///
/// A fast commit of ext4 has single inodes.  The mark is a symlink, so its time makes the next
/// commit a whole one.
const KNOWN: [u64; 2] = [XFS, TMPFS];
const XFS: u64 = 0x5846_5342;
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
