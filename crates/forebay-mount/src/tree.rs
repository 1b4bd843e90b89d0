// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface to the directory tree below a mount, for the live part and the replay.  One
//! trait serves the tree on a file system and the simulated one of the tests.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::record::{Allocate, Kind, SetAttr, Time};
use crate::waiters::Waiters;

/// A directory's ACL for new inodes, and the ACL of an inode.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The ACL of an inode by NFS: the whole of it, and the part of it that is about access.
const NFS_ACLS: [&[u8]; 2] = [b"system.nfs4_acl", b"system.nfs4_dacl"];
/// A program with it runs with rights of root.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Whether an extended attribute of this name is an ACL that changes the mode, and is changed by it.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || NFS_ACLS.contains(&name)
}

pub type Result<T> = std::result::Result<T, Errno>;

/// The identity of an inode while its file system runs: the kernel's file handle, preceded by
/// its type.  It is not given to another inode in that time, even if the inode's number is
/// reused.  After a crash it may be: btrfs gives an inode that it has lost, and one that is
/// made after the crash, the same number and the same generation.  The identity says nothing
/// about the inode's place.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub Vec<u8>);

impl Handle {
    /// Distinguishes an inode from others that have, had or will have its number: handles with
    /// the same number differ only in the word of the generation.
    pub fn generation(&self) -> u32 {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, b| all << 8 | u32::from(*b));
        self.0.chunks(4).map(word).fold(0, |all, word| all ^ word)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The identity of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeIdentity {
    /// The file system's UUID, or the id that statfs reports.
    pub file_system: [u8; 16],
    pub root: Handle,
    /// The path, for messages.
    pub path: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub kind: Kind,
    /// The inode's number.
    pub ino: u64,
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub block_size: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

/// The seals of an inode: they forbid changes to everyone, including root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seals {
    /// `chattr +i`.
    pub immutable: bool,
    /// `chattr +a`.
    pub append_only: bool,
    /// fs-verity: only the content is sealed.
    pub verity: bool,
}

impl Seals {
    /// Whether a sealed directory keeps its names: none is removed from it, or none made in it
    /// either.
    pub fn keeps_names(&self) -> bool {
        self.immutable || self.append_only
    }
}

/// The properties of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    /// The target of a symlink.
    pub target: &'a [u8],
    /// Whether the directory's default ACL, if there is one, is inherited and restricts the
    /// mode; the umask of the caller must not count then.  Otherwise the inode gets exactly
    /// this mode and no ACL.
    pub inherit_acl: bool,
    /// Whether the directory is known to have none.
    pub no_acl_above: bool,
}

impl New<'static> {
    /// An inode of this process's user without an ACL; neither a device nor a symlink.
    pub fn plain(kind: Kind, mode: u32) -> New<'static> {
        New {
            kind,
            mode,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            device: 0,
            target: b"",
            inherit_acl: false,
            no_acl_above: false,
        }
    }
}

/// Why names at sync have no effect: the order in which a tree keeps changes, or how it could say how
/// far it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unordered {
    #[error(
        "its file system is not known to keep changes in their order: use ext4 with a journal, or xfs"
    )]
    FileSystem,
    #[error("its ext4 has no journal (tune2fs -O has_journal), or is mounted without (noload)")]
    NoJournal,
    #[error("its file system is mounted with {option}, which {what}: {instead}")]
    Option { option: &'static str, what: &'static str, instead: &'static str },
    #[error("/proc does not show how its file system is mounted")]
    Unknown,
    #[error("its root belongs to another user: mount as that user, or as root")]
    Owner,
    #[error("its file system does not keep the exact time of a symlink")]
    Time,
}

/// A tree.  Several threads may make all calls at once.  A name is one component and not a
/// path, and no symlink is ever followed.
pub trait Tree: Send + Sync {
    /// An inode that is held.  It stays the same until it is dropped, even without a name if it
    /// was pinned before it lost the last one.
    type Node: Clone + Send + Sync;

    fn identity(&self) -> Result<TreeIdentity>;
    /// Whether [`TreeIdentity::file_system`] of an earlier time is this file system.  Another
    /// kernel may have given another id of it.
    fn is_in(&self, file_system: &[u8; 16]) -> Result<bool> {
        Ok(self.identity()?.file_system == *file_system)
    }
    fn root(&self) -> Self::Node;
    /// Those that wait for somebody's lease of an inode.  Those that wait for room count with
    /// them.  Without leases, a new count.
    fn waiters(&self) -> Arc<Waiters> {
        Arc::default()
    }

    /// The inode with this identity, wherever it is; `None`: it no longer exists.  `path` is
    /// its earlier path relative to the root, for processes that may not open by handle.
    fn open(&self, handle: &Handle, path: &[u8]) -> Result<Option<Self::Node>>;
    /// A replay begins to look for inodes: nothing that was found before is believed.
    fn begin_to_look(&self) {}
    fn handle(&self, node: &Self::Node) -> Result<Handle>;
    /// Whether [`Tree::open`] does without a path.
    fn opens_by_handle(&self) -> bool {
        true
    }
    /// Pins an inode that may lose its last name, so that it stays reachable until it is
    /// unpinned.
    fn pin(&self, node: &Self::Node, pinned: bool) -> Result<()> {
        let _ = (node, pinned);
        Ok(())
    }
    /// The present path relative to the root, if it is known: for [`Tree::open`], and for a
    /// replay that checks whether the inode lies in the tree.
    fn path_hint(&self, node: &Self::Node) -> Vec<u8> {
        let _ = node;
        Vec::new()
    }
    /// The time when the file system made the inode; `None`: it does not say.
    fn born(&self, node: &Self::Node) -> Result<Option<Time>> {
        let _ = node;
        Ok(None)
    }
    /// The present time of the clock that gives changed inodes their times, as a change of this one
    /// shows it; `None`: unknown.
    fn clock(&self, node: &Self::Node) -> Result<Option<Time>> {
        let _ = node;
        Ok(None)
    }
    /// The parent of a directory; `None`: the mount of this tree shows none.
    fn above(&self, dir: &Self::Node) -> Result<Option<Self::Node>>;
    /// Whether names that differ in case are one name in this directory.
    fn folds_case(&self, dir: &Self::Node) -> Result<bool> {
        let _ = dir;
        Ok(false)
    }
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    fn lookup_with_attr(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> Result<Option<(Self::Node, Attr)>> {
        let Some(node) = self.lookup(dir, name)? else { return Ok(None) };
        let attr = self.attr(&node)?;
        Ok(Some((node, attr)))
    }
    /// The attributes of the inode with the name, without holding it.
    fn attr_of(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Attr>> {
        self.lookup(dir, name)?.map(|node| self.attr(&node)).transpose()
    }
    /// The names in a directory, without `.` and `..`.
    fn names(&self, dir: &Self::Node) -> Result<Vec<Vec<u8>>>;
    fn attr(&self, node: &Self::Node) -> Result<Attr>;
    /// Gives the inode the project, which has a quota, that it would have if it had been made
    /// in this directory.
    fn join_project(&self, node: &Self::Node, dir: &Self::Node) -> Result<()> {
        let _ = (node, dir);
        Err(Errno::XDEV)
    }
    /// Whether a crash leaves no later change of names or attributes without an earlier one, unless
    /// a single file was synced.  The answer may be another one later.
    fn keeps_order(&self) -> std::result::Result<(), Unordered> {
        Err(Unordered::FileSystem)
    }
    /// The seals of an inode, as far as the file system shows them.
    fn seals(&self, node: &Self::Node) -> Result<Seals> {
        let _ = node;
        Ok(Seals::default())
    }

    /// Makes an inode; fails if the name exists.  Owner, group and mode are those of `new`,
    /// whatever the directory's set-group-ID bit says.
    fn create(&self, dir: &Self::Node, name: &[u8], new: &New<'_>) -> Result<Self::Node>;
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;
    fn unlink(&self, dir: &Self::Node, name: &[u8], directory: bool) -> Result<()>;
    /// Replaces the inode with the new name; with `exchange` the two trade names, with
    /// `no_replace` the call fails if there is one.
    fn rename(
        &self,
        from: (&Self::Node, &[u8]),
        to: (&Self::Node, &[u8]),
        how: RenameHow,
    ) -> Result<()>;

    /// Keeps what later calls need of the inode, such as its descriptor, until the value is dropped:
    /// then a call of several steps finds it for all of them, or fails before the first.
    fn keep_open(&self, node: &Self::Node) -> Result<Box<dyn std::any::Any>> {
        let _ = node;
        Ok(Box::new(()))
    }

    /// Asks the file system to write this empty file in place, if it would otherwise move the
    /// data.
    fn write_in_place(&self, node: &Self::Node) {
        let _ = node;
    }

    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>>;
    /// Reads as many bytes as there are up to the file's end.
    fn read(&self, node: &Self::Node, offset: u64, bytes: &mut [u8]) -> Result<usize>;
    /// All of them, or an error, after which a part of them may be there.
    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> Result<()>;
    /// As many of them as there is room for, and how many those are; an error if that is none.
    fn write_some(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write(node, offset, bytes).map(|()| bytes.len())
    }
    fn truncate(&self, node: &Self::Node, size: u64) -> Result<()>;
    fn allocate(&self, node: &Self::Node, mode: Allocate, offset: u64, length: u64) -> Result<()>;
    fn set_attr(&self, node: &Self::Node, set: &SetAttr) -> Result<()>;
    fn xattr(&self, node: &Self::Node, name: &[u8]) -> Result<Option<Vec<u8>>>;
    fn set_xattr(&self, node: &Self::Node, name: &[u8], value: Option<&[u8]>) -> Result<()>;

    /// No write-back of a file's bytes is known to have failed; told once.  `false`: it
    /// cannot be known, but by [`Tree::sync`].
    fn is_intact(&self, node: &Self::Node) -> Result<bool> {
        let _ = node;
        Ok(true)
    }
    /// Another node of this inode was dropped with bytes that no sync covers.
    fn was_dropped(&self, node: &Self::Node) {
        let _ = node;
    }
    /// A change of the file's content comes soon.  The call waits for what would hold that change up,
    /// such as another process's lease.  Its caller holds nothing that other files need.
    /// With an error the change must not be begun.
    fn ready_to_write(&self, node: &Self::Node) -> Result<()> {
        let _ = node;
        Ok(())
    }
    /// Durable when it returns: the file's data and what finds it, or the directory's
    /// names.
    fn sync(&self, node: &Self::Node) -> Result<()>;
    /// All of the tree's file system.
    fn sync_all(&self) -> Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
    /// As [`RenameHow::Replace`], and a character device 0:0 has the old name then.
    Whiteout,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the file systems make them: the type, then for ext4 (1) number and generation, for xfs
    /// (0x81) a number of two words and the generation, for btrfs (0x4d) the number, the
    /// subvolume and the generation.
    #[test]
    fn a_number_that_is_used_again_has_another_generation() {
        let handle = |words: &[u32]| Handle(words.iter().flat_map(|w| w.to_le_bytes()).collect());
        for kind in [&[1, 12][..], &[0x81, 131, 0], &[0x4d, 257, 0, 5, 0]] {
            let with = |generation| handle(&[kind, &[generation]].concat()).generation();
            let base = with(0);
            for generation in [1, 2, 0x8000_0000, u32::MAX] {
                assert_eq!(with(generation), base ^ generation);
            }
        }
    }
}
