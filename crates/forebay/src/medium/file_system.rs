// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file system that a file lies on, and what it does with a durable write.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

use crate::procfs::{self, Mount};

/// The file system of a file, from the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemFacts {
    /// As the kernel calls it: `ext4`, `xfs`, `nfs4`.
    pub kind: String,
    pub class: FsClass,
    #[serde(flatten, with = "crate::report::path::mounted_on")]
    pub mounted_on: PathBuf,
    /// The device or server that is mounted there.
    pub source: String,
    pub options: String,
    /// Device number; 0:n where the file system has no single device.
    #[serde(skip)]
    pub(super) device: (u32, u32),
}

/// How a file system treats a block of a file that is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsClass {
    /// It writes where the block is.
    InPlace,
    /// It writes elsewhere, and metadata with it.
    CopyOnWrite,
    /// Another machine has the disk, or the host of this one.
    Network,
    /// A program answers (FUSE).
    UserSpace,
    /// Its files lie in memory.
    Memory,
    /// Its fsync writes, and sends the disk no flush.
    NoFlush,
    /// Layers of other file systems.
    Overlay,
    Unknown,
}

impl FsClass {
    pub(super) fn of(kind: &str) -> FsClass {
        match kind {
            "ext2" | "ext3" | "ext4" | "xfs" => FsClass::InPlace,
            "jfs" | "hfs" | "hpfs" | "affs" => FsClass::NoFlush,
            "btrfs" | "zfs" | "bcachefs" | "f2fs" | "nilfs2" => FsClass::CopyOnWrite,
            "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "9p" | "virtiofs" | "afs"
            | "lustre" | "gfs2" | "ocfs2" | "beegfs" | "gpfs" | "orangefs" | "vboxsf" => {
                FsClass::Network
            }
            "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs" => FsClass::Memory,
            "overlay" | "overlayfs" | "aufs" | "ecryptfs" => FsClass::Overlay,
            "fuse" | "fuseblk" => FsClass::UserSpace,
            k if k.starts_with("fuse.") => FsClass::UserSpace,
            _ => FsClass::Unknown,
        }
    }
}

impl FileSystemFacts {
    pub(super) fn of(file: impl AsFd, path: &Path) -> Option<FileSystemFacts> {
        let mounts = procfs::mounts().ok()?;
        let id = procfs::mount_id(file).ok();
        let by_id = id.and_then(|id| in_table(&mounts, |m| m.id == id));
        by_id.or_else(|| {
            let path = fs::canonicalize(path).ok()?;
            let above = |mount: &Path| path.starts_with(mount).then_some(mount.as_os_str().len());
            let deepest = mounts.iter().filter_map(|m| above(&m.at)).max()?;
            in_table(&mounts, |m| above(&m.at) == Some(deepest))
        })
    }

    fn of_mount(mount: &Mount) -> FileSystemFacts {
        let mut options: Vec<&str> = mount.options.split(',').collect();
        for option in mount.of_system.split(',') {
            if !option.is_empty() && !options.contains(&option) {
                options.push(option);
            }
        }
        FileSystemFacts {
            kind: mount.kind.clone(),
            class: FsClass::of(&mount.kind),
            mounted_on: mount.at.clone(),
            source: mount.source.to_string_lossy().into_owned(),
            options: options.join(","),
            device: (major(mount.device), minor(mount.device)),
        }
    }

    /// A mount option that keeps an fsync from flushing the disk.
    pub(super) fn flushes_nothing(&self) -> Option<&str> {
        let told = |o: &&str| matches!(*o, "nobarrier" | "barrier=0" | "volatile");
        self.options.split(',').find(told)
    }
}

/// The last one counts: it lies over the others.
fn in_table(mounts: &[Mount], mut is: impl FnMut(&Mount) -> bool) -> Option<FileSystemFacts> {
    mounts.iter().rfind(|mount| is(mount)).map(FileSystemFacts::of_mount)
}

/// The places where the device with this number is mounted.
pub(super) fn mounts_of(device: (u32, u32)) -> Vec<PathBuf> {
    let is_it = |m: &Mount| (major(m.device), minor(m.device)) == device && device.0 != 0;
    let mounts = procfs::mounts().unwrap_or_default();
    let mut found: Vec<_> = mounts.into_iter().filter(is_it).map(|m| m.at).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_shown_with_its_options() {
        let line = br"36 35 8:2 / /srv/a\040b rw,relatime shared:1 - ext4 /dev/sda2 rw,nobarrier";
        let m = in_table(&procfs::mounts_in(line), |m| m.id == 36).unwrap();
        assert_eq!((m.device, m.source.as_str()), ((8, 2), "/dev/sda2"));
        assert_eq!(m.mounted_on, Path::new("/srv/a b"));
        assert_eq!((m.kind.as_str(), m.class), ("ext4", FsClass::InPlace));
        assert_eq!(m.options, "rw,relatime,nobarrier");
        assert_eq!(m.flushes_nothing(), Some("nobarrier"));
    }

    #[test]
    fn a_mount_that_lies_over_another_counts() {
        let table = b"1 0 8:1 / /a rw - ext4 /dev/sda1 rw\n2 1 0:5 / /a rw - tmpfs tmpfs rw\n";
        let mounts = procfs::mounts_in(table);
        let found = in_table(&mounts, |m| m.at == Path::new("/a")).unwrap();
        assert_eq!(found.class, FsClass::Memory);
        assert_eq!(in_table(&mounts, |m| m.id == 1).unwrap().kind, "ext4");
        assert!(in_table(&mounts, |m| m.id == 3).is_none());
    }

    #[test]
    fn the_kinds_have_their_classes() {
        for (class, kinds) in [
            (FsClass::InPlace, &["ext4", "xfs"][..]),
            (FsClass::CopyOnWrite, &["btrfs", "zfs", "bcachefs", "f2fs"]),
            (FsClass::Network, &["nfs", "nfs4", "cifs", "9p", "virtiofs", "ceph"]),
            (FsClass::UserSpace, &["fuse", "fuseblk", "fuse.sshfs"]),
            (FsClass::Memory, &["tmpfs", "ramfs"]),
            (FsClass::NoFlush, &["jfs", "hfs", "hpfs", "affs"]),
            (FsClass::Overlay, &["overlay"]),
            (FsClass::Unknown, &["newfs"]),
        ] {
            for kind in kinds {
                assert_eq!(FsClass::of(kind), class, "{kind}");
            }
        }
    }

    #[test]
    fn the_root_is_found_by_its_mount() {
        let root = fs::File::open("/").unwrap();
        let found = FileSystemFacts::of(&root, Path::new("/")).unwrap();
        assert_eq!(found.mounted_on, Path::new("/"));
    }
}
