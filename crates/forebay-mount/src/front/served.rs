// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers to requests, on whichever thread they are made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    FileAttr, FileType, Generation, INodeNo, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyStatfs, ReplyWrite, ReplyXattr, WriteFlags,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::callers::{has_mode_of_file, without_set_ids};
use super::helpers::{Class, Helpers, MOST_WRITE_BACKS};
use super::parked::{Awaited, Parked};
use super::rooms::{self, Slots};
use super::terms::{empty, errno, file_type, kind_of, no_inode, system_time};
use super::{asked, holes, TreeLive};
use crate::latency::Latency;
use crate::live::{Fsync, Inode};
use crate::log::PoolJournal;
use crate::notified::Kernel;
use crate::options::MountOptions;
use crate::record::{Allocate, Kind, SetAttr};
use crate::rights::{self, Caller};
use crate::tree::{Attr, Result, Tree};
use crate::unix::{Node, UnixTree};

type TreeFsync = Fsync<UnixTree, PoolJournal>;

impl Awaited for TreeFsync {
    fn number(&self) -> u64 {
        Fsync::number(self)
    }

    fn is_settled(&self) -> bool {
        Fsync::is_settled(self)
    }

    fn wait(self) -> Result<()> {
        Fsync::wait(self)
    }
}

/// How long the kernel may trust its cached names and attributes.  Only the mount changes the
/// tree.
const BELIEVED: Duration = Duration::from_secs(60);

/// FUSE's number of the root.
pub(super) const FUSE_ROOT: u64 = 1;

/// See [`Served::swap`]: the conversion works in both directions.
pub(crate) fn number_for_kernel(ino: u64, root: u64) -> u64 {
    match ino {
        FUSE_ROOT => root,
        _ if ino == root => FUSE_ROOT,
        _ => ino,
    }
}

/// An inode and an offset in it.
type Place = (INodeNo, u64);

/// A name in a directory.
pub(super) type Name<'a> = (INodeNo, &'a OsStr);

pub(super) struct Served {
    pub live: Arc<TreeLive>,
    latency: Arc<Latency>,
    root: u64,
    /// The kernel keeps writes until they are synced or old enough.
    pub write_back: bool,
    /// A write is durable when it returns.
    pub log_writes: bool,
    pub read_only: bool,
    /// Threads that answer requests may act as their callers: see [`rights::prepare`].
    pub acts: Arc<OnceLock<bool>>,
    /// For notices to the kernel of changes that it did not request.
    pub kernel: Arc<Kernel>,
    pub helpers: Helpers,
    parked: Parked<TreeFsync>,
    write_backs: Slots,
    /// The kernel's reports of written-back pages are true: see [`holes::kernel_waits`].
    finds_holes: bool,
}

impl Served {
    pub fn new(live: Arc<TreeLive>, latency: Arc<Latency>, options: &MountOptions) -> Served {
        Served {
            root: live.root().ino,
            live,
            latency,
            write_back: options.write_back,
            log_writes: options.log_writes,
            read_only: options.read_only,
            acts: Arc::default(),
            kernel: Arc::default(),
            helpers: Helpers::default(),
            parked: Parked::default(),
            write_backs: Slots::new(MOST_WRITE_BACKS),
            finds_holes: options.read_only || holes::kernel_waits(),
        }
    }

    pub fn does_act(&self) -> bool {
        self.acts.get().copied().unwrap_or_default()
    }

    /// The kernel's numbers are the tree's, except that the root trades places with the inode
    /// of number 1.
    pub fn swap(&self, ino: u64) -> u64 {
        number_for_kernel(ino, self.root)
    }

    pub fn inode(&self, ino: INodeNo) -> Result<Arc<Inode<Node>>> {
        self.live.inode(self.swap(ino.0))
    }

    fn shown(&self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: INodeNo(self.swap(attr.ino)),
            size: attr.size,
            blocks: self.blocks(attr),
            atime: system_time(attr.atime),
            mtime: system_time(attr.mtime),
            ctime: system_time(attr.ctime),
            crtime: UNIX_EPOCH,
            kind: file_type(attr.kind),
            perm: attr.mode as u16,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.device as u32,
            blksize: attr.block_size,
            flags: 0,
        }
    }

    /// The number of blocks to report.  Programs take a file without blocks for one without
    /// data, and the kernel may hold data of it.  So only an empty file whose size the kernel
    /// asks for is reported without blocks.
    fn blocks(&self, attr: &Attr) -> u64 {
        let may_have_data = attr.size > 0 || self.write_back;
        match attr.kind {
            Kind::File if may_have_data => attr.blocks.max(1),
            _ => attr.blocks,
        }
    }

    /// How long the kernel may trust an inode's attributes.  With `--write-back` it does not
    /// ask for a file's blocks again after it has written to it.
    fn believed(&self, attr: &Attr) -> Duration {
        match attr.kind {
            Kind::File if self.write_back => Duration::from_secs(1),
            _ => BELIEVED,
        }
    }

    fn attributes(&self, reply: ReplyAttr, attr: Result<Attr>) {
        rooms::replies();
        match attr {
            Ok(attr) => reply.attr(&self.believed(&attr), &self.shown(&attr)),
            Err(e) => reply.error(errno(e)),
        }
    }

    /// Replies with an entry.  The kernel takes a number with another generation for another
    /// inode: a file handle of the previous inode does not open the new one.
    fn entry(&self, reply: ReplyEntry, done: Result<(Arc<Inode<Node>>, Attr)>) {
        match done {
            Ok((inode, attr)) => {
                let generation = Generation(inode.node.generation().into());
                let (attributes, name) = (self.believed(&attr), BELIEVED);
                // The last drop closes the file, which may wait.
                drop(inode);
                rooms::replies();
                reply.entry_with_ttls(&attributes, &name, &self.shown(&attr), generation);
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    /// Syncs the file and then answers, perhaps on another thread.
    fn answer_synced(
        &self,
        inode: Arc<Inode<Node>>,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let start = Instant::now();
        let begun = self.live.begin_fsync(&inode);
        // The last drop closes the file, which may wait.
        drop(inode);
        match begun {
            Err(e) => answer(Err(e)),
            Ok(fsync) => {
                let latency = self.latency.clone();
                self.parked.answer(fsync, move |done| {
                    latency.took(start.elapsed());
                    answer(done);
                });
            }
        }
    }

    // --- what is answered without a wait: `None`, or a reply that is still to be made -----

    pub fn lookup_now(&self, (parent, name): Name<'_>, reply: ReplyEntry) -> Option<ReplyEntry> {
        let dir = self.inode(parent).ok();
        let found = |dir: Arc<Inode<Node>>| self.live.tree().finds_now(&dir.node, name.as_bytes());
        if !dir.is_some_and(found) {
            return Some(reply);
        }
        self.lookup((parent, name), reply);
        None
    }

    pub fn getattr_now(&self, ino: INodeNo, reply: ReplyAttr) -> Option<ReplyAttr> {
        let inode = self.inode(ino).ok();
        let Some(attr) = inode.and_then(|inode| self.live.tree().attr_now(&inode.node)) else {
            return Some(reply);
        };
        self.attributes(reply, Ok(attr));
        None
    }

    pub fn read_now(
        &self,
        (ino, offset): Place,
        bytes: &mut [u8],
        reply: ReplyData,
    ) -> Option<ReplyData> {
        let inode = self.inode(ino).ok();
        let read = |inode: Arc<Inode<Node>>| self.live.tree().read_now(&inode.node, offset, bytes);
        let Some(n) = inode.and_then(read) else { return Some(reply) };
        reply.data(&bytes[..n]);
        None
    }

    // --- what may wait -------------------------------------------------------

    pub fn lookup(&self, (parent, name): Name<'_>, reply: ReplyEntry) {
        let found = self.inode(parent).and_then(|dir| self.live.lookup(&dir, name.as_bytes()));
        match found {
            Err(Errno::NOENT) => {
                rooms::replies();
                reply.entry(&BELIEVED, &no_inode(), Generation(0));
            }
            found => self.entry(reply, found),
        }
    }

    pub fn forget(&self, ino: INodeNo, lookups: u64) {
        if ino.0 != FUSE_ROOT {
            self.live.forget(self.swap(ino.0), lookups);
        }
    }

    pub fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        self.attributes(reply, self.inode(ino).and_then(|inode| self.live.attr(&inode)));
    }

    pub fn setattr(
        &self,
        caller: Caller,
        ino: INodeNo,
        (size, mut set): (Option<u64>, SetAttr),
        reply: ReplyAttr,
    ) {
        let done = self.changing(caller).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if let Some(size) = size {
                self.content_changes(caller, &inode)?;
                self.cut(&inode, size)?;
            }
            let new_owner = set.uid.is_some() || set.gid.is_some();
            if new_owner && has_mode_of_file(inode.kind) && set.mode.is_none() {
                // As chown does: the log must record the effect.
                let now = self.live.attr(&inode)?;
                let without = without_set_ids(caller, &now);
                set.mode = Some(without).filter(|without| *without != now.mode);
            }
            if set != SetAttr::default() {
                self.live.set_attr(&inode, &set)?;
            } else if size.is_none() && has_mode_of_file(inode.kind) {
                // The kernel asks for no attribute if set-ID bits must go, and in no other
                // case.  It also does so for a chown, by any user.
                if caller.uid == 0 || caller.uid == self.live.attr(&inode)?.uid {
                    self.drop_privileges(caller, &inode)?;
                }
            }
            self.live.attr(&inode)
        });
        self.attributes(reply, done);
    }

    pub fn readlink(&self, ino: INodeNo, reply: ReplyData) {
        match self.inode(ino).and_then(|inode| self.live.tree().read_link(&inode.node)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub fn mknod(
        &self,
        caller: Caller,
        name: Name<'_>,
        (mode, umask, rdev): (u32, u32, u32),
        reply: ReplyEntry,
    ) {
        let made = kind_of(mode)
            .and_then(|kind| self.make(caller, name, (kind, mode, umask), (rdev.into(), b"")));
        self.entry(reply, made);
    }

    pub fn mkdir(
        &self,
        caller: Caller,
        name: Name<'_>,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let what = (Kind::Directory, mode, umask);
        self.entry(reply, self.make(caller, name, what, (0, b"")));
    }

    pub fn symlink(&self, caller: Caller, name: Name<'_>, target: &OsStr, reply: ReplyEntry) {
        let what = (Kind::Symlink, 0o777, 0);
        self.entry(reply, self.make(caller, name, what, (0, target.as_bytes())));
    }

    pub fn link(&self, caller: Caller, ino: INodeNo, (parent, name): Name<'_>, reply: ReplyEntry) {
        let linked = self.changing(caller).and_then(|_acting| {
            let inode = self.inode(ino)?;
            let attr = self.live.link(&inode, &self.inode(parent)?, name.as_bytes())?;
            Ok((inode, attr))
        });
        self.entry(reply, linked);
    }

    pub fn remove(
        &self,
        caller: Caller,
        (parent, name): Name<'_>,
        directory: bool,
        reply: ReplyEmpty,
    ) {
        let done = self
            .changing(caller)
            .and_then(|_acting| self.live.unlink(&self.inode(parent)?, name.as_bytes(), directory));
        empty(reply, done);
    }

    /// Reads as much as there is room for in `bytes`.
    pub fn read(&self, (ino, offset): Place, bytes: &mut [u8], reply: ReplyData) {
        let read =
            self.inode(ino).and_then(|inode| self.live.tree().read(&inode.node, offset, bytes));
        match read {
            Ok(n) => reply.data(&bytes[..n]),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub fn write(
        &self,
        caller: Caller,
        (ino, offset): Place,
        data: &[u8],
        (write_flags, flags): (WriteFlags, OpenFlags),
        reply: ReplyWrite,
    ) {
        let written = self.writing(caller, ino, write_flags).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_privileges(caller, &inode)?;
            }
            let mut done = self.live.write(&inode, offset, data)?;
            while done < data.len() && asked::write_is_whole(write_flags, flags) {
                done += self.live.write(&inode, offset + done as u64, &data[done..])?;
            }
            Ok((done, inode, self.log_writes || asked::write_syncs(write_flags, flags)))
        });
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let cached = cached.then(|| self.swap(ino.0));
        match written {
            Ok((n, inode, true)) => {
                let live = self.live.clone();
                self.answer_synced(inode, move |done| {
                    answer_written(&live, cached, done.map(|()| n), reply);
                });
            }
            written => answer_written(&self.live, cached, written.map(|(n, ..)| n), reply),
        }
    }

    pub fn fsync(&self, ino: INodeNo, reply: ReplyEmpty) {
        match self.inode(ino) {
            Ok(inode) => self.answer_synced(inode, move |done| empty(reply, done)),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub fn readdir(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.inode(ino).and_then(|inode| {
            let tree = self.live.tree();
            tree.list(&inode.node, offset, |name, ino, kind, next| {
                // Programs rely on the kind, and there is no way to report it as unknown.
                let asked = || Some(tree.attr_of(&inode.node, name).ok()??.kind);
                let kind = kind.or_else(asked).map_or(FileType::RegularFile, file_type);
                !reply.add(INodeNo(self.swap(ino)), next, kind, OsStr::from_bytes(name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub fn statfs(&self, reply: ReplyStatfs) {
        match self.live.tree().space() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(e) => reply.error(errno(e)),
        }
    }

    pub fn setxattr(
        &self,
        caller: Caller,
        ino: INodeNo,
        (name, value, flags): (&OsStr, &[u8], i32),
        reply: ReplyEmpty,
    ) {
        const XATTR_CREATE: i32 = 1;
        const XATTR_REPLACE: i32 = 2;
        let done = self.changing(caller).and_then(|_acting| {
            let inode = self.inode(ino)?;
            self.may_change_xattr(caller, &inode, name.as_bytes())?;
            if flags != 0 {
                let there = self.live.tree().xattr(&inode.node, name.as_bytes())?.is_some();
                match flags {
                    XATTR_CREATE if there => return Err(Errno::EXIST),
                    XATTR_REPLACE if !there => return Err(Errno::NODATA),
                    XATTR_CREATE | XATTR_REPLACE => {}
                    _ => return Err(Errno::INVAL),
                }
            }
            match self.loses_set_group_id(caller, &inode, name.as_bytes())? {
                Some(mode) => self.live.set_acl_without_set_group_id(&inode, mode, value),
                None => self.live.set_xattr(&inode, name.as_bytes(), Some(value)),
            }
        });
        empty(reply, done);
    }

    pub fn getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self
            .inode(ino)
            .and_then(|inode| self.live.xattr(&inode, name.as_bytes())?.ok_or(Errno::NODATA));
        xattr(reply, size, value);
    }

    pub fn listxattr(&self, caller: Caller, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.inode(ino).and_then(|inode| {
            let mut list = Vec::new();
            let mut sees_trusted = None;
            let mut may_see = || {
                *sees_trusted.get_or_insert_with(|| rights::may(&caller, CapabilitySet::SYS_ADMIN))
            };
            for name in self.live.tree().xattr_names(&inode.node)? {
                if name.starts_with(b"trusted.") && !may_see() {
                    continue;
                }
                list.extend_from_slice(&name);
                list.push(0);
            }
            Ok(list)
        });
        xattr(reply, size, names);
    }

    pub fn removexattr(&self, caller: Caller, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.changing(caller).and_then(|_acting| {
            let inode = self.inode(ino)?;
            self.may_change_xattr(caller, &inode, name.as_bytes())?;
            if self.live.tree().xattr(&inode.node, name.as_bytes())?.is_none() {
                return Err(Errno::NODATA);
            }
            self.live.set_xattr(&inode, name.as_bytes(), None)
        });
        empty(reply, done);
    }

    pub fn fallocate(
        &self,
        caller: Caller,
        (ino, offset): Place,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP_SIZE: i32 = 1;
        const PUNCH_HOLE: i32 = 2;
        const ZERO_RANGE: i32 = 16;
        let how = match mode {
            0 => Ok(Allocate::Extend),
            KEEP_SIZE => Ok(Allocate::KeepSize),
            m if m == PUNCH_HOLE | KEEP_SIZE => Ok(Allocate::Punch),
            ZERO_RANGE => Ok(Allocate::Zero),
            m if m == ZERO_RANGE | KEEP_SIZE => Ok(Allocate::ZeroKeepSize),
            _ => Err(Errno::OPNOTSUPP),
        };
        let done = how.and_then(|how| {
            let _acting = self.changing(caller)?;
            let inode = self.inode(ino)?;
            self.content_changes(caller, &inode)?;
            self.live.allocate(&inode, how, offset, length)
        });
        empty(reply, done);
    }

    pub fn lseek(&self, ino: INodeNo, offset: i64, hole: bool, reply: ReplyLseek) {
        if !self.finds_holes {
            // This is final: the kernel then calls everything data, up to the end of the file
            // that it knows.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let found = self.inode(ino).and_then(|inode| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            // Data of the tree is data whatever the kernel holds, and for a read-only mount it
            // holds nothing.
            let here = match self.live.tree().seek(&inode.node, offset, hole) {
                Ok(at) if self.read_only || (!hole && at == offset) => Some(Ok(at)),
                Err(e) if self.read_only || e != Errno::NXIO => Some(Err(e)),
                _ => None,
            };
            Ok((inode, offset, here))
        });
        let (inode, offset) = match found {
            Ok((inode, offset, None)) => (inode, offset),
            Ok((_, _, Some(found))) => return holes::seeked(reply, found),
            Err(e) => return reply.error(errno(e)),
        };
        let slot = self.write_backs.take();
        if slot.is_none() {
            let size = self.live.attr(&inode).map(|attr| attr.size);
            let all_data = size.map(|size| holes::all_data(offset, hole, size, self.write_back));
            match all_data {
                Ok(Some(found)) => return holes::seeked(reply, found),
                // The request waits for one of the other kind of helper.
                Ok(None) => {}
                Err(e) => return reply.error(errno(e)),
            }
        }
        let (live, kernel) = (self.live.clone(), self.kernel.clone());
        self.helpers.run(Class::WriteBacks, move || {
            let _slot = slot;
            let seeker = holes::Seeker {
                ask: |offset, hole| live.tree().seek(&inode.node, offset, hole),
                write_back: |start, end| holes::write_back(&kernel, ino, start, end),
            };
            holes::seeked(reply, seeker.seek(offset, hole));
        });
    }

    pub fn copy(
        &self,
        caller: Caller,
        (from, from_at): Place,
        (to, to_at): Place,
        length: u64,
        reply: ReplyWrite,
    ) {
        // The reply counts the bytes in 32 bits.
        let length = length.min(1 << 30);
        let number = to.0;
        let copied = self.changing(caller).and_then(|_acting| {
            let from = self.inode(from)?;
            let to = self.inode(to)?;
            self.content_changes(caller, &to)?;
            let n = self.live.copy(&to, to_at, length, || {
                self.live.tree().copy(&from.node, from_at, &to.node, to_at, length)
            })?;
            Ok((n, to, self.log_writes || asked::copy_syncs(caller.pid, number)))
        });
        let answer = |copied: Result<u64>| match copied {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(e)),
        };
        match copied {
            Ok((n, to, true)) => self.answer_synced(to, move |done| answer(done.map(|()| n))),
            copied => answer(copied.map(|(n, ..)| n)),
        }
    }
}

/// `cached`: the inode, if the kernel has written its pages back.
fn answer_written(live: &TreeLive, cached: Option<u64>, done: Result<usize>, reply: ReplyWrite) {
    match done {
        Ok(n) => {
            rooms::replies();
            reply.written(n as u32);
        }
        Err(e) => {
            if let Some(ino) = cached {
                live.write_back_was_refused(ino);
            }
            reply.error(errno(e));
        }
    }
    if cached.is_some() {
        live.counters.ended_write_backs.fetch_add(1, Ordering::AcqRel);
    }
}

fn xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(e)),
    }
}
