// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file system that a file lies on, and what it does with a durable write.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};

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
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        /// STATX_MNT_ID, of linux/stat.h.
        const MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);
        let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, MOUNT_ID).ok();
        let by_id = statx
            .filter(|st| StatxFlags::from_bits_retain(st.stx_mask).contains(MOUNT_ID))
            .and_then(|st| in_table(&table, |id, _| id == st.stx_mnt_id));
        by_id.or_else(|| {
            let path = fs::canonicalize(path).ok()?;
            let above = |mount: &Path| path.starts_with(mount).then_some(mount.as_os_str().len());
            let depth = table.lines().filter_map(parse).filter_map(|(_, m)| above(&m.mounted_on));
            let deepest = depth.max()?;
            in_table(&table, |_, mount| above(mount) == Some(deepest))
        })
    }

    /// A mount option that keeps an fsync from flushing the disk.
    pub(super) fn flushes_nothing(&self) -> Option<&str> {
        let told = |o: &&str| matches!(*o, "nobarrier" | "barrier=0" | "volatile");
        self.options.split(',').find(told)
    }
}

/// The last one counts: it lies over the others.
fn in_table(table: &str, mut is: impl FnMut(u64, &Path) -> bool) -> Option<FileSystemFacts> {
    let mounts = table.lines().filter_map(parse);
    mounts.filter(|(id, m)| is(*id, &m.mounted_on)).map(|(_, m)| m).last()
}

/// A line of mountinfo: `36 35 98:0 /root /mount options - ext4 /dev/sda1 options`.
fn parse(line: &str) -> Option<(u64, FileSystemFacts)> {
    let (mount, system) = line.split_once(" - ")?;
    let mount: Vec<_> = mount.split(' ').collect();
    let mut system = system.split(' ');
    let (kind, source) = (system.next()?, system.next()?);
    let (major, minor) = mount.get(2)?.split_once(':')?;
    let mut options: Vec<&str> = mount.get(5)?.split(',').collect();
    for option in system.next().unwrap_or("").split(',') {
        if !option.is_empty() && !options.contains(&option) {
            options.push(option);
        }
    }
    Some((
        mount.first()?.parse().ok()?,
        FileSystemFacts {
            kind: kind.into(),
            class: FsClass::of(kind),
            mounted_on: unescaped(mount.get(4)?).into(),
            source: unescaped(source),
            options: options.join(","),
            device: (major.parse().ok()?, minor.parse().ok()?),
        },
    ))
}

/// Tables of /proc write a blank in a name as `\040`.
pub(super) fn unescaped(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(b) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).filter(|_| *b == b'\\');
        let value = octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        out.push(value.unwrap_or(*b));
        at += if value.is_some() { 4 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The places where the device with this number is mounted.
pub(super) fn mounts_of(device: (u32, u32)) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<_> = table
        .lines()
        .filter_map(parse)
        .filter(|(_, m)| m.device == device && device.0 != 0)
        .map(|(_, m)| m.mounted_on)
        .collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_with_its_options_and_blanks() {
        let line = r"36 35 8:2 / /srv/a\040b rw,relatime shared:1 - ext4 /dev/sda2 rw,nobarrier";
        let (id, m) = parse(line).unwrap();
        assert_eq!((id, m.device), (36, (8, 2)));
        assert_eq!(m.mounted_on, Path::new("/srv/a b"));
        assert_eq!((m.kind.as_str(), m.class), ("ext4", FsClass::InPlace));
        assert_eq!(m.options, "rw,relatime,nobarrier");
        assert_eq!(m.flushes_nothing(), Some("nobarrier"));
        for broken in [
            "",
            "36",
            "36 35 8:2 / /a rw",
            "x 35 8:2 / /a rw - ext4 /dev/sda2 rw",
            "36 35 82 / /a rw - a b c",
        ] {
            assert!(parse(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn a_mount_that_lies_over_another_counts() {
        let table = "1 0 8:1 / /a rw - ext4 /dev/sda1 rw\n2 1 0:5 / /a rw - tmpfs tmpfs rw\n";
        let found = in_table(table, |_, at| at == Path::new("/a")).unwrap();
        assert_eq!(found.class, FsClass::Memory);
        assert_eq!(in_table(table, |id, _| id == 1).unwrap().kind, "ext4");
        assert!(in_table(table, |id, _| id == 3).is_none());
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
