// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file systems keep no later change of names or attributes without an earlier one.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use forebay::procfs::{self, Mount};
use rustix::fs::{fstat, fstatfs, major, minor};

use crate::tree::Unordered;

/// They write such changes as transactions, one after another.
///
/// Btrfs does so, too, but two things are not in order there.  The time of a write becomes durable
/// with its data only, so a replay that takes the tree's times would lose one that was synced.  And
/// a sync of a directory next to the mount keeps changes without the time of the mark.
///
/// A fast commit of ext4 has single inodes.  The mark is a symlink, so its time makes the next
/// commit a whole one.
const XFS: u64 = 0x5846_5342;
/// With a journal.
const EXT: u64 = 0xef53;
/// A crash leaves nothing of a tmpfs.
const TMPFS: u64 = 0x0102_1994;

/// The options of a file system that end this, with what they do and the way out.  All others
/// leave the order of names and attributes as it is: `data=writeback` is about content, which the log
/// has, and an ext4 without its journal (`noload`) shows as one that has none.
const ENDS_ORDER: [(&str, &str, &str); 4] = [
    // The replay of a tree that is ahead of its log takes the tree's times.
    (
        "lazytime",
        "keeps the time of a synced write from the disk for a day",
        "mount -o remount,nolazytime",
    ),
    ("nobarrier", "lets the disk reorder the journal", "mount -o remount,barrier"),
    ("barrier=0", "lets the disk reorder the journal", "mount -o remount,barrier"),
    // A commit is on its way together with what it commits.
    ("journal_async_commit", "does not wait for the journal before it commits", "mount it without"),
];

pub(super) fn keeps_order(root: impl AsFd) -> Result<(), Unordered> {
    let system = fstatfs(&root).map_err(|_| Unordered::Unknown)?;
    let device = fstat(&root).map_err(|_| Unordered::Unknown)?.st_dev;
    match system.f_type as u64 & 0xffff_ffff {
        TMPFS => return Ok(()),
        EXT if !has_journal(device) => return Err(Unordered::NoJournal),
        EXT | XFS => {}
        _ => return Err(Unordered::FileSystem),
    }
    // They may be changed at any time (`mount -o remount`).
    let mounts = procfs::mounts().map_err(|_| Unordered::Unknown)?;
    match ends_order(options_of(&mounts, device).ok_or(Unordered::Unknown)?) {
        Some(unordered) => Err(unordered),
        None => Ok(()),
    }
}

/// The kernel tells the number of the journal's thread.
fn has_journal(device: u64) -> bool {
    let block = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let name = fs::canonicalize(block).ok().and_then(|at| Some(at.file_name()?.to_owned()));
    let task = name.map(|name| Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    let task = task.and_then(|task| procfs::text(task).ok());
    task.is_some_and(|number| number.trim().parse::<u64>().is_ok())
}

/// The options of the file system, which all its mounts share.
fn options_of(mounts: &[Mount], device: u64) -> Option<&str> {
    mounts.iter().find(|mount| mount.device == device).map(|mount| &mount.of_system[..])
}

fn ends_order(options: &str) -> Option<Unordered> {
    let has = |name: &str| options.split(',').any(|option| option == name);
    let (option, what, instead) = ENDS_ORDER.into_iter().find(|(name, ..)| has(name))?;
    Some(Unordered::Option { option, what, instead })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_keep_order_does() {
        let of = |path| keeps_order(fs::File::open(path).unwrap());
        assert_eq!(of("/proc"), Err(Unordered::FileSystem));
        assert_eq!(of("/sys"), Err(Unordered::FileSystem));
        // A device that is no ext4.
        assert!(!has_journal(rustix::fs::makedev(0, 0)));
    }

    /// As the kernel shows them.
    #[test]
    fn options_that_end_the_order_are_refused_by_name() {
        let table = [
            ("rw", None),
            ("rw,lazytime", Some("lazytime")),
            ("rw,errors=remount-ro,lazytime", Some("lazytime")),
            ("rw,nobarrier", Some("nobarrier")),
            ("rw,barrier=0,data=ordered", Some("barrier=0")),
            ("rw,barrier=1", None),
            (
                "rw,journal_checksum,journal_async_commit,data=writeback",
                Some("journal_async_commit"),
            ),
            ("rw,journal_checksum", None),
            // Content has no order without a sync, and what was synced is in the log.
            ("rw,data=writeback", None),
            ("rw,data=journal", None),
            ("rw,nodelalloc,noauto_da_alloc,discard,dioread_nolock", None),
            ("rw,sync,dirsync", None),
            ("rw,attr2,inode64,logbufs=8,logbsize=32k,noquota", None),
            ("rw,wsync,logdev=/dev/sdb,swalloc,usrquota,prjquota", None),
            // Neither of them takes a change.
            ("ro,norecovery", None),
            ("ro,norecovery,noload", None),
            // A name that another one begins with.
            ("rw,nolazytime", None),
            ("", None),
        ];
        for (options, refused) in table {
            let found = ends_order(options);
            let name = found.as_ref().map(|found| match found {
                Unordered::Option { option, .. } => *option,
                other => panic!("{other:?}"),
            });
            assert_eq!(name, refused, "{options}");
            let told = found.map_or(String::new(), |found| found.to_string());
            assert!(refused.is_none_or(|name| told.contains(name)), "{options}: {told}");
        }
    }

    #[test]
    fn the_options_are_those_of_the_file_system() {
        let mounts = b"\
            22 1 0:21 / /proc rw,nosuid - proc proc rw\n\
            30 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
            31 30 8:2 / /a\\040b rw,lazytime - xfs /dev/sda2 rw,attr2\n\
            32 30 8:3 /sub /c ro - xfs /dev/sda3 rw,lazytime\n\
            33 30 8:4 / /d rw - ext4 /dev/sda4\n";
        let mounts = procfs::mounts_in(mounts);
        let of = |major, minor| options_of(&mounts, rustix::fs::makedev(major, minor));
        assert_eq!(of(8, 1), Some("rw,errors=remount-ro"));
        assert_eq!(of(8, 2), Some("rw,attr2"), "that is no option of the file system");
        assert_eq!(of(8, 3), Some("rw,lazytime"), "another mount of it may write");
        assert_eq!(of(8, 4), Some(""));
        assert_eq!(of(8, 5), None);
    }
}
