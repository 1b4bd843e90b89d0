// SPDX-License-Identifier: MIT OR Apache-2.0
//! A [`Tree`] that is a directory of a file system.
//!
//! An inode is held by a descriptor of O_PATH or by its handle ([`held`]) and reached
//! through that, never by a path, so that the mount may lie over the tree.  What such a
//! descriptor cannot do is done by another one, opened through /proc/self/fd.  So the
//! process that opens a tree must be the one that uses it: a child's /proc/self/fd is its
//! own.
//!
//! Who may do what is the kernel's to decide, at the mount.  Where the file system checks more
//! than that, it is asked as the caller ([`as_caller`]).

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::handle::{file_system_uuid, open_handle, write_back_error};
use rustix::fs::{
    self, AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags,
    ResolveFlags, SeekFrom, Stat, StatVfs, StatxAttributes, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags, UTIME_OMIT,
};
use rustix::io::Errno;

mod above;
mod held;
mod now;
mod ordered;
mod search;

pub(crate) use above::mounts_of_fuse;
pub use above::{is_mounted, is_mounted_at, lies_in, tree_mounted_at};
use held::Cache;
pub use held::Node;
use search::Places;

use crate::record::{Allocate, Kind, SetAttr, Time};
use crate::rights::as_caller;
use crate::tree::{
    Attr, Handle, New, RenameHow, Result, Seals, Tree, TreeIdentity, Unordered, ACCESS_ACL,
    DEFAULT_ACL,
};
use crate::waiters::Waiters;

const HELD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const SET_IDS: u32 = 0o6000;
/// FS_CASEFOLD_FL of linux/fs.h.
const CASEFOLD: u32 = 0x4000_0000;

/// `None`: the file system does not say.
pub(crate) fn kind_of(t: FileType) -> Option<Kind> {
    Some(match t {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return None,
    })
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(t) => Timespec { tv_sec: t.seconds, tv_nsec: t.nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    }
}

fn attr_of_stat(kind: Kind, s: &Stat) -> Attr {
    let time = |seconds: i64, nanoseconds| Time { seconds, nanoseconds };
    Attr {
        kind,
        ino: s.st_ino,
        mode: s.st_mode & 0o7777,
        nlink: s.st_nlink as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        device: s.st_rdev,
        size: s.st_size as u64,
        blocks: s.st_blocks as u64,
        block_size: s.st_blksize as u32,
        atime: time(s.st_atime, s.st_atime_nsec as u32),
        mtime: time(s.st_mtime, s.st_mtime_nsec as u32),
        ctime: time(s.st_ctime, s.st_ctime_nsec as u32),
    }
}

/// A component that the kernel takes for nothing else.
fn component(name: &[u8]) -> Result<&OsStr> {
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        _ if name.contains(&b'/') => Err(Errno::INVAL),
        _ => Ok(OsStr::from_bytes(name)),
    }
}

/// What ext4 makes of its UUID for statfs: one half and the other.
fn folded(uuid: &[u8; 16]) -> [u8; 16] {
    let mut id = [0; 16];
    for (at, byte) in id[..8].iter_mut().enumerate() {
        *byte = uuid[at] ^ uuid[at + 8];
    }
    id
}

/// By the type of the file system: those whose directories say it each for itself (ext4,
/// f2fs, tmpfs, bcachefs).
fn may_fold_case(file_system: u64) -> bool {
    const OF: [u64; 4] = [0xef53, 0xf2f5_2010, 0x0102_1994, 0xca45_1a4e];
    OF.contains(&(file_system & 0xffff_ffff))
}

/// A directory of a file system, as it is without what is mounted in it.
#[derive(Debug)]
pub struct UnixTree {
    root: Node,
    device: u64,
    path: PathBuf,
    /// The file system has directories in which names that differ in case are one.
    may_fold_case: bool,
    cache: Arc<Cache>,
    places: Places,
}

impl UnixTree {
    /// The root may be reached by symlinks; nothing in the tree is.
    pub fn open(path: &Path) -> Result<UnixTree> {
        UnixTree::open_as(path, Cache::of)
    }

    /// As for a process that may not open by handle.
    #[cfg(test)]
    pub(crate) fn open_without_handles(path: &Path) -> Result<UnixTree> {
        UnixTree::open_as(path, |fd| Cache::of(fd).limit(64, false))
    }

    fn open_as(path: &Path, cache: impl Fn(&OwnedFd) -> Arc<Cache>) -> Result<UnixTree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty())?;
        let stat = fs::fstat(&fd)?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let cache = cache(&fd);
        let root = Node::new(&cache, fd, &stat, false);
        // Its lock is its descriptor's, and so is what a sync of the file system tells.
        root.pin()?;
        let may_fold_case = may_fold_case(fs::fstatfs(root.fd()?)?.f_type as u64);
        let device = stat.st_dev;
        Ok(UnixTree { root, device, path, may_fold_case, cache, places: Places::default() })
    }

    /// Holds what was opened, if it is of this file system; `made`: for reading and writing.
    fn hold(&self, fd: OwnedFd, made: bool) -> Result<(Node, Attr)> {
        let stat = fs::fstat(&fd)?;
        if stat.st_dev != self.device {
            return Err(Errno::XDEV);
        }
        let node = Node::new(&self.cache, fd, &stat, made);
        let attr = attr_of_stat(node.kind(), &stat);
        Ok((node, attr))
    }

    fn child(&self, dir: &Node, name: &OsStr) -> Result<Node> {
        self.child_with_attr(dir, name).map(|(node, _)| node)
    }

    /// Follows no symlink, and enters no other mount.
    fn child_with_attr(&self, dir: &Node, name: &OsStr) -> Result<(Node, Attr)> {
        let dir = dir.fd()?;
        let fd = self.cache.room(|| {
            match fs::openat2(&dir, name, HELD, Mode::empty(), ResolveFlags::NO_XDEV) {
                Err(Errno::NOSYS) => fs::openat(&dir, name, HELD, Mode::empty()),
                opened => opened,
            }
        });
        self.hold(fd?, false)
    }

    /// Makes the name; some of what was asked for may still be missing.
    fn make(&self, dir: &Node, name: &OsStr, new: &New<'_>) -> Result<Node> {
        let mode = permissions(new.mode);
        let _held = dir.hold()?;
        match new.kind {
            Kind::File => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                // By who made it a file may be written, whatever its mode is.
                let (dir, flags) = (dir.fd()?, flags | OFlags::NOFOLLOW | self.quiet(Kind::File));
                let open = || self.cache.room(|| fs::openat(&dir, name, flags, mode));
                let fd = as_caller(open)?;
                return self.hold(fd, true).map(|(node, _)| node);
            }
            Kind::Directory => {
                let dir = dir.fd()?;
                as_caller(|| fs::mkdirat(&dir, name, mode))?;
            }
            Kind::Symlink => {
                let (dir, target) = (dir.fd()?, OsStr::from_bytes(new.target));
                as_caller(|| fs::symlinkat(target, &dir, name))?;
            }
            kind => {
                let dir = dir.fd()?;
                as_caller(|| fs::mknodat(&dir, name, file_type(kind), mode, new.device))?;
            }
        }
        self.child(dir, name).inspect_err(|_| {
            // Without a descriptor nobody can finish it, so nothing may remain.
            let _ = self.unlink(dir, name.as_bytes(), new.kind == Kind::Directory);
        })
    }

    /// Gives what was made the owner, the mode and the ACL that were asked for.
    fn finish(&self, dir: &Node, node: &Node, new: &New<'_>) -> Result<()> {
        let may_have = new.kind != Kind::Symlink && !new.no_acl_above;
        let from_dir = may_have && self.xattr(dir, DEFAULT_ACL)?.is_some();
        if from_dir && !new.inherit_acl {
            for acl in [ACCESS_ACL, DEFAULT_ACL] {
                match self.set_xattr(node, acl, None) {
                    Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        let made = fs::fstat(node.fd()?)?;
        let owner = (made.st_uid, made.st_gid) != (new.uid, new.gid);
        if owner {
            let set = SetAttr { uid: Some(new.uid), gid: Some(new.gid), ..Default::default() };
            self.set_attr(node, &set)?;
        }
        if new.kind == Kind::Symlink {
            return Ok(());
        }
        // The part of the mode that the directory's ACL left stays.
        let wanted = match from_dir && new.inherit_acl {
            true => made.st_mode & 0o1777 | new.mode & SET_IDS,
            false => new.mode & 0o7777,
        };
        if made.st_mode & 0o7777 != wanted || (owner && wanted & SET_IDS != 0) {
            self.set_attr(node, &SetAttr { mode: Some(wanted), ..Default::default() })?;
        }
        Ok(())
    }

    /// See [`Cache::room`].
    pub(crate) fn room<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        self.cache.room(open)
    }

    pub(crate) fn quiet(&self, kind: Kind) -> OFlags {
        self.cache.quiet(kind)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For one mount at a time: WOULDBLOCK if there is another, of whatever pool.
    pub fn lock(&self) -> Result<()> {
        fs::flock(self.root.reading()?, FlockOperation::NonBlockingLockExclusive)
    }

    /// The holders of the lock, in words, as far as this process may inspect others.
    pub fn locked_by(&self) -> Vec<String> {
        let holders = self.root.reading().map(forebay::lock_holders).unwrap_or_default();
        holders.into_iter().map(forebay::process_in_words).collect()
    }

    pub fn unlock(&self) {
        if let Ok(root) = self.root.reading() {
            let _ = fs::flock(root, FlockOperation::Unlock);
        }
    }

    /// Through FUSE: the kernel does not forward syncfs to its servers.
    pub fn is_fuse(&self) -> Result<bool> {
        const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
        Ok(fs::fstatfs(self.root.fd()?)?.f_type as u64 & 0xffff_ffff == FUSE_SUPER_MAGIC)
    }

    /// On another host, which knows only who asks: it would refuse this user what his root has
    /// opened.
    pub fn is_remote(&self) -> bool {
        const NFS: u64 = 0x6969;
        const CIFS: u64 = 0xff53_4d42;
        const SMB2: u64 = 0xfe53_4d42;
        const PLAN9: u64 = 0x0102_1997;
        const CEPH: u64 = 0x00c3_6400;
        let kind = |fd| Ok(fs::fstatfs(fd)?.f_type as u64 & 0xffff_ffff);
        let kind = self.root.fd().and_then(kind);
        kind.is_ok_and(|kind| [NFS, CIFS, SMB2, PLAN9, CEPH].contains(&kind))
    }

    /// The flags of the mount through which the tree is reached, as statvfs reports them.
    pub fn mount_flags(&self) -> Result<u64> {
        Ok(self.space()?.f_flag.bits())
    }

    /// Later opens leave the access times of files, or of directories, unchanged.
    pub fn leave_times_of_access(&self, files: bool, directories: bool) {
        self.cache.leave_times_of_access(files, directories);
    }

    /// A file that somebody holds a lease of is not opened, and nobody is waited for (AGAIN).
    pub fn wait_for_nobody(&self) {
        self.cache.wait_for_nobody();
    }

    /// The space of the file system.
    pub fn space(&self) -> Result<StatVfs> {
        fs::fstatvfs(self.root.fd()?)
    }

    /// Asks for nothing else: one who has asked for times makes later writes slower.
    pub fn owner(&self, node: &Node) -> Result<(u32, u32)> {
        let of = StatxFlags::UID | StatxFlags::GID;
        let s = fs::statx(node.fd()?, "", AtFlags::EMPTY_PATH, of)?;
        Ok((s.stx_uid, s.stx_gid))
    }

    /// The names of an inode's extended attributes.
    pub fn xattr_names(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![0u8; 0x10000];
        let length = fs::listxattr(node.fd()?.path(), &mut names[..])?;
        let names = names[..length].split(|b| *b == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    /// The UUID of the file system, which Linux tells from 6.9 on.  `None`: it does not, or the UUID
    /// is zero, which is that of no file system.
    fn uuid(&self) -> Result<Option<[u8; 16]>> {
        let uuid = file_system_uuid(self.root.reading()?.as_fd()).ok();
        Ok(uuid.filter(|uuid| *uuid != [0; 16]))
    }

    /// The id that statfs gives.  Ext4 and btrfs derive it from the UUID, XFS from the number of the
    /// device.
    fn id_of_statfs(&self) -> Result<[u8; 16]> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.space()?.f_fsid.to_le_bytes());
        Ok(id)
    }

    /// The next byte that is data, or with `hole` the next that is none.
    pub fn seek(&self, node: &Node, offset: u64, hole: bool) -> Result<u64> {
        // While the file is open for reading nobody gets a lease that the next open waits for.
        let _reading = node.reading()?;
        // A descriptor of its own: the place in the file is the descriptor's.
        let held = node.fd()?;
        let fd = self.cache.room(|| held.reopen(OFlags::RDONLY))?;
        fs::seek(&fd, if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) })
    }
}

impl Tree for UnixTree {
    type Node = Node;

    fn identity(&self) -> Result<TreeIdentity> {
        let file_system = match self.uuid()? {
            Some(uuid) => uuid,
            None => self.id_of_statfs()?,
        };
        let path = self.path.as_os_str().as_bytes().to_vec();
        Ok(TreeIdentity { file_system, root: self.handle(&self.root)?, path })
    }

    fn waiters(&self) -> Arc<Waiters> {
        self.cache.waiters()
    }

    fn is_in(&self, file_system: &[u8; 16]) -> Result<bool> {
        if self.uuid()?.as_ref() == Some(file_system) {
            return Ok(true);
        }
        let id = self.id_of_statfs()?;
        Ok([*file_system, folded(file_system)].contains(&id))
    }

    fn keeps_order(&self) -> std::result::Result<(), Unordered> {
        self.root.fd().map_err(|_| Unordered::Unknown).and_then(ordered::keeps_order)
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn open(&self, handle: &Handle, path: &[u8]) -> Result<Option<Node>> {
        // Overlayfs and others tell inodes apart by handles that open nothing, and call each of
        // them stale.
        if self.cache.opens_by_handle() {
            match self.cache.room(|| open_handle(self.root.reading()?.as_fd(), &handle.0, HELD)) {
                Ok(fd) => return self.hold(fd, false).map(|(node, _)| Some(node)),
                Err(Errno::STALE) => return Ok(None),
                Err(Errno::PERM | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        self.search(handle, path)
    }

    fn handle(&self, node: &Node) -> Result<Handle> {
        node.handle()
    }

    fn begin_to_look(&self) {
        self.forget_places();
    }

    fn opens_by_handle(&self) -> bool {
        self.cache.opens_by_handle()
    }

    /// The kernel reports no path for an inode that it knows only by its handle.
    fn path_hint(&self, node: &Node) -> Vec<u8> {
        let path = node.fd().and_then(|fd| fs::readlink(fd.path(), Vec::new()));
        let path = path.map(|path| PathBuf::from(OsStr::from_bytes(path.as_bytes())));
        let below = path.ok().and_then(|path| Some(path.strip_prefix(&self.path).ok()?.to_owned()));
        below.map_or_else(Vec::new, |below| below.into_os_string().into_vec())
    }

    fn clock(&self, node: &Node) -> Result<Option<Time>> {
        let mtime = Some(Time::default());
        self.set_attr(node, &SetAttr { mtime, ..SetAttr::default() })?;
        let attr = self.attr(node)?;
        // Some file systems have one time for both.
        Ok(Some(attr.ctime).filter(|ctime| *ctime != attr.mtime))
    }

    fn born(&self, node: &Node) -> Result<Option<Time>> {
        let flags = AtFlags::EMPTY_PATH;
        let s = fs::statx(node.fd()?, "", flags, StatxFlags::BTIME)?;
        let time = s.stx_btime;
        let says = s.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(says.then_some(Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec }))
    }

    fn above(&self, dir: &Node) -> Result<Option<Node>> {
        // NOENT: the mount shows a part of the file system, in which the directory is not.
        match self.child(dir, OsStr::new("..")) {
            Err(Errno::XDEV | Errno::NOENT | Errno::STALE) => Ok(None),
            above => above.map(Some),
        }
    }

    fn folds_case(&self, dir: &Node) -> Result<bool> {
        if !self.may_fold_case {
            return Ok(false);
        }
        let fd = dir.fd()?;
        let fd = self.cache.room(|| fs::openat(&fd, ".", LISTED, Mode::empty()))?;
        match fs::ioctl_getflags(&fd) {
            Ok(flags) => Ok(flags.bits() & CASEFOLD != 0),
            Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn pin(&self, node: &Node, pinned: bool) -> Result<()> {
        match pinned {
            true => node.pin(),
            false => {
                node.unpin();
                Ok(())
            }
        }
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Option<Node>> {
        match self.child(dir, component(name)?) {
            Err(Errno::NOENT) => Ok(None),
            node => node.map(Some),
        }
    }

    fn lookup_with_attr(&self, dir: &Node, name: &[u8]) -> Result<Option<(Node, Attr)>> {
        match self.child_with_attr(dir, component(name)?) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    fn attr_of(&self, dir: &Node, name: &[u8]) -> Result<Option<Attr>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let s = match fs::statx(dir.fd()?, component(name)?, flags, StatxFlags::BASIC_STATS) {
            Err(Errno::NOENT) => return Ok(None),
            s => s?,
        };
        let known = s.stx_attributes_mask;
        let kind = kind_of(FileType::from_raw_mode(s.stx_mode.into()));
        // A mount there reports about itself; Linux before 5.8 does not say that it is one.
        let (true, Some(kind)) = (known.contains(StatxAttributes::MOUNT_ROOT), kind) else {
            return self.lookup(dir, name)?.map(|node| self.attr(&node)).transpose();
        };
        if s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            || fs::makedev(s.stx_dev_major, s.stx_dev_minor) != self.device
        {
            return Err(Errno::XDEV);
        }
        let time = |t: StatxTimestamp| Time { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
        Ok(Some(Attr {
            kind,
            ino: s.stx_ino,
            mode: u32::from(s.stx_mode) & 0o7777,
            nlink: s.stx_nlink,
            uid: s.stx_uid,
            gid: s.stx_gid,
            device: fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
            size: s.stx_size,
            blocks: s.stx_blocks,
            block_size: s.stx_blksize,
            atime: time(s.stx_atime),
            mtime: time(s.stx_mtime),
            ctime: time(s.stx_ctime),
        }))
    }

    fn names(&self, dir: &Node) -> Result<Vec<Vec<u8>>> {
        if dir.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let dir = dir.fd()?;
        let fd = self.cache.room(|| fs::openat(&dir, ".", LISTED, Mode::empty()))?;
        let mut names = Vec::new();
        for entry in Dir::new(fd)? {
            let entry = entry?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(name.to_vec()),
            }
        }
        Ok(names)
    }

    fn attr(&self, node: &Node) -> Result<Attr> {
        Ok(attr_of_stat(node.kind(), &fs::fstat(node.fd()?)?))
    }

    fn join_project(&self, node: &Node, dir: &Node) -> Result<()> {
        match node.kind() {
            Kind::File | Kind::Directory => {
                forebay::join_project(node.reading()?.as_fd(), dir.reading()?.as_fd())
            }
            // No system call gives one to the others.
            _ => Err(Errno::XDEV),
        }
    }

    fn seals(&self, node: &Node) -> Result<Seals> {
        let s = fs::statx(node.fd()?, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
        let has = |attribute| s.stx_attributes.contains(attribute);
        Ok(Seals {
            immutable: has(StatxAttributes::IMMUTABLE),
            append_only: has(StatxAttributes::APPEND),
            verity: has(StatxAttributes::VERITY),
        })
    }

    fn create(&self, dir: &Node, name: &[u8], new: &New<'_>) -> Result<Node> {
        let named = component(name)?;
        let node = self.make(dir, named, new)?;
        if let Err(e) = self.finish(dir, &node, new) {
            // The operation failed halfway, so nothing may remain.
            let _ = self.unlink(dir, name, new.kind == Kind::Directory);
            return Err(e);
        }
        Ok(node)
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        // The last step through /proc is to the inode itself, be it a symlink.
        let (held, dir, name) = (node.fd()?, dir.fd()?, component(name)?);
        let follow = AtFlags::SYMLINK_FOLLOW;
        as_caller(|| fs::linkat(fs::CWD, held.path(), &dir, name, follow))
    }

    fn unlink(&self, dir: &Node, name: &[u8], directory: bool) -> Result<()> {
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let (dir, name) = (dir.fd()?, component(name)?);
        as_caller(|| fs::unlinkat(&dir, name, flags))
    }

    fn rename(&self, from: (&Node, &[u8]), to: (&Node, &[u8]), how: RenameHow) -> Result<()> {
        let flags = match how {
            RenameHow::Replace => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
            RenameHow::Whiteout => RenameFlags::WHITEOUT,
        };
        let (from_dir, to_dir) = (from.0.fd()?, to.0.fd()?);
        let (from, to) = (component(from.1)?, component(to.1)?);
        as_caller(|| fs::renameat_with(&from_dir, from, &to_dir, to, flags))
    }

    fn keep_open(&self, node: &Node) -> Result<Box<dyn std::any::Any>> {
        Ok(Box::new(node.hold()?))
    }

    fn write_in_place(&self, node: &Node) {
        // Btrfs writes a file without this flag somewhere else; others do not have it.
        if let Ok(fd) = node.writing() {
            let flags = fs::ioctl_getflags(&fd).map(|flags| flags | fs::IFlags::NOCOW);
            let _ = flags.and_then(|flags| fs::ioctl_setflags(&fd, flags));
        }
    }

    fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        match node.kind() {
            Kind::Symlink => Ok(fs::readlinkat(node.fd()?, "", Vec::new())?.into_bytes()),
            _ => Err(Errno::INVAL),
        }
    }

    fn read(&self, node: &Node, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let fd = node.reading()?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&fd, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_some(node, offset + done as u64, &bytes[done..])?;
        }
        Ok(())
    }

    fn write_some(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<usize> {
        let fd = node.writing()?;
        let mut done = 0;
        while done < bytes.len() {
            match as_caller(|| rustix::io::pwrite(&fd, &bytes[done..], offset + done as u64)) {
                Ok(0) if done == 0 => return Err(Errno::IO),
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                // The next one is told why.
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn truncate(&self, node: &Node, size: u64) -> Result<()> {
        let fd = node.writing_now()?;
        as_caller(|| fs::ftruncate(&fd, size))
    }

    fn allocate(&self, node: &Node, mode: Allocate, offset: u64, length: u64) -> Result<()> {
        let flags = match mode {
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::Zero => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let fd = node.writing_now()?;
        as_caller(|| fs::fallocate(&fd, flags, offset, length))
    }

    /// The owner first: a new one takes the set-ID bits away.
    fn set_attr(&self, node: &Node, set: &SetAttr) -> Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            let held = node.fd()?;
            as_caller(|| fs::chownat(&held, "", uid, gid, AtFlags::EMPTY_PATH))?;
        }
        if let Some(mode) = set.mode {
            if node.kind() == Kind::Symlink {
                return Err(Errno::OPNOTSUPP);
            }
            let (path, mode) = (node.fd()?, permissions(mode));
            as_caller(|| fs::chmodat(fs::CWD, path.path(), mode, AtFlags::empty()))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            fs::utimensat(node.fd()?, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let fd = node.fd()?;
        let (path, name) = (fd.path(), OsStr::from_bytes(name));
        // Most are short; the longest there can be is tried after that.
        for most in [512, 0x10000] {
            let mut value = vec![0u8; most];
            match fs::getxattr(&path, name, &mut value[..]) {
                Ok(length) => {
                    value.truncate(length);
                    return Ok(Some(value));
                }
                Err(Errno::RANGE) => {}
                Err(Errno::NODATA) => return Ok(None),
                // A file system without ACLs has none.
                Err(Errno::OPNOTSUPP) if [DEFAULT_ACL, ACCESS_ACL].contains(&name.as_bytes()) => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::TOOBIG)
    }

    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let fd = node.fd()?;
        let (path, name) = (fd.path(), OsStr::from_bytes(name));
        as_caller(|| match value {
            Some(value) => fs::setxattr(&path, name, value, XattrFlags::empty()),
            None => fs::removexattr(&path, name),
        })
    }

    fn is_intact(&self, node: &Node) -> Result<bool> {
        // Others wait for the answer.
        if let Ok(fd) = node.reading_now() {
            write_back_error(fd.as_fd())?;
        }
        // After that: it may have been closed before it was opened here.
        Ok(!node.has_lost_sight())
    }

    fn was_dropped(&self, node: &Node) {
        node.lose_sight();
    }

    fn ready_to_write(&self, node: &Node) -> Result<()> {
        match node.writing() {
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            // Another error is that of the change itself.
            _ => Ok(()),
        }
    }

    fn sync(&self, node: &Node) -> Result<()> {
        let of_all = match node.kind() {
            Kind::File | Kind::Directory => match node.reading_now() {
                Ok(fd) => {
                    fs::fsync(fd)?;
                    node.take_lost_sight()
                }
                // An inode that cannot be opened has no sync of its own, nor one that another
                // process has a lease of: all would wait for that.
                Err(_) => true,
            },
            _ => true,
        };
        match of_all {
            true => self.sync_all(),
            false => Ok(()),
        }
    }

    fn sync_all(&self) -> Result<()> {
        fs::syncfs(self.root.reading()?)
    }
}

#[cfg(test)]
mod tests;
