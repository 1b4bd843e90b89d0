// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE, above [`Live`]: what the kernel asks, answered from the tree.
//!
//! The kernel checks permissions (`default_permissions`), keeps locks, and caches pages;
//! what a mapping makes dirty it writes back before each FSYNC, so that this part sees
//! exactly what is to be durable.  Files and directories are not opened here: requests name the inode, which
//! the kernel holds by its lookups, and a file that is open elsewhere costs nothing.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

mod asked;
mod callers;
mod helpers;
mod holes;
mod replacing;
mod terms;

use crate::affinity;
use crate::latency::Latency;
use crate::live::{Inode, Live};
use crate::log::PoolJournal;
use crate::mount::MountOptions;
use crate::record::{Allocate, Kind, SetAttr};
use crate::rights;
use crate::tree::{Attr, Result, Tree};
use crate::unix::{Node, UnixTree};
use callers::{caller, has_mode_of_file, without_set_ids};
use helpers::Helpers;
use terms::{empty, errno, file_type, kind_of, no_inode, system_time, time_or_now};

pub type TreeLive = Live<UnixTree, PoolJournal>;

/// What the kernel knows of names and attributes it may believe for so long: nothing but
/// the mount changes the tree.
const BELIEVED: Duration = Duration::from_secs(60);

/// FUSE's number of the root.
const FUSE_ROOT: u64 = 1;

thread_local! {
    /// What is read goes through here: a new buffer for each request would be new pages, which
    /// the kernel would clear first.  As long as the longest request: 1 MiB.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub struct Front {
    live: Arc<TreeLive>,
    latency: Arc<Latency>,
    root: u64,
    /// The kernel keeps what is written until it is synced, or long enough.
    write_back: bool,
    /// What is written is durable when it was written.
    log_writes: bool,
    read_only: bool,
    /// Threads that answer requests may act as their callers: see [`rights::prepare`].
    acts: Arc<OnceLock<bool>>,
    /// To tell it what changed by itself.
    kernel: Arc<OnceLock<Notifier>>,
    helpers: Helpers,
}

impl Front {
    pub fn new(live: Arc<TreeLive>, latency: Arc<Latency>, options: &MountOptions) -> Front {
        Front {
            root: live.root().ino,
            live,
            latency,
            write_back: options.write_back,
            log_writes: options.log_writes,
            read_only: options.read_only,
            acts: Arc::default(),
            kernel: Arc::default(),
            helpers: Helpers::default(),
        }
    }

    /// To be set when there is one, before the first request.
    pub fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.kernel.clone()
    }

    /// The same.
    pub fn acts(&self) -> Arc<OnceLock<bool>> {
        self.acts.clone()
    }

    fn does_act(&self) -> bool {
        self.acts.get().copied().unwrap_or_default()
    }

    /// The kernel's numbers are the tree's, but for the root: it changes places with
    /// whatever has number 1.
    fn swap(&self, ino: u64) -> u64 {
        match ino {
            FUSE_ROOT => self.root,
            _ if ino == self.root => FUSE_ROOT,
            _ => ino,
        }
    }

    fn inode(&self, ino: INodeNo) -> Result<Arc<Inode<Node>>> {
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

    /// Programs take a file without blocks for one without data, and the kernel may hold data of
    /// it: no file is told to have none, but an empty one whose size the kernel asks for.
    fn blocks(&self, attr: &Attr) -> u64 {
        let may_have_data = attr.size > 0 || self.write_back;
        match attr.kind {
            Kind::File if may_have_data => attr.blocks.max(1),
            _ => attr.blocks,
        }
    }

    /// How long the kernel may believe an inode's attributes.  With `--write-back` it does not ask
    /// for a file's blocks again after it has written to it.
    fn believed(&self, attr: &Attr) -> Duration {
        match attr.kind {
            Kind::File if self.write_back => Duration::from_secs(1),
            _ => BELIEVED,
        }
    }

    /// The kernel takes a number with another generation for another inode: a file handle of the
    /// one that had it before does not open the new one.
    fn entry(&self, reply: ReplyEntry, done: Result<(Arc<Inode<Node>>, Attr)>) {
        match done {
            Ok((inode, attr)) => {
                let generation = Generation(inode.node.generation().into());
                let (attributes, name) = (self.believed(&attr), BELIEVED);
                reply.entry_with_ttls(&attributes, &name, &self.shown(&attr), generation);
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn sync(&self, inode: &Arc<Inode<Node>>) -> Result<()> {
        let start = Instant::now();
        let done = self.live.fsync(inode);
        self.latency.took(start.elapsed());
        done
    }

    /// The file's content was changed, and the program is about to be told.
    /// `asked`: it is to be durable then.
    fn written(&self, inode: &Arc<Inode<Node>>, asked: impl FnOnce() -> bool) -> Result<()> {
        match self.log_writes || asked() {
            true => self.sync(inode),
            false => Ok(()),
        }
    }

    fn remove(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
        directory: bool,
    ) -> Result<()> {
        let _acting = self.changing(caller(req))?;
        self.live.unlink(&self.inode(parent)?, name.as_bytes(), directory)
    }
}

impl Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let needed = [
            (InitFlags::FUSE_NO_OPEN_SUPPORT, "files that are not opened (Linux 3.16)"),
            (InitFlags::FUSE_NO_OPENDIR_SUPPORT, "directories that are not opened (Linux 5.1)"),
            (InitFlags::FUSE_DONT_MASK, "the umask (Linux 2.6.31)"),
        ];
        for (flag, what) in needed {
            config.add_capabilities(flag).map_err(|_| {
                std::io::Error::other(format!("this kernel's FUSE lacks {what}: use a newer one"))
            })?;
        }
        for flag in [
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_MAX_PAGES,
            // The kernel leaves set-user-ID bits and capabilities to us, and does not ask
            // for them before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // A handle cannot be opened once the kernel has forgotten its inode, so it gives
            // none (Linux 6.10).
            InitFlags::FUSE_NO_EXPORT_SUPPORT,
        ] {
            // Better with it, right without.
            let _ = config.add_capabilities(flag);
        }
        if self.write_back {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.inode(parent).and_then(|dir| self.live.lookup(&dir, name.as_bytes()));
        match found {
            Err(Errno::NOENT) => reply.entry(&BELIEVED, &no_inode(), Generation(0)),
            found => self.entry(reply, found),
        }
        affinity::follow(req.pid());
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        if ino.0 != FUSE_ROOT {
            self.live.forget(self.swap(ino.0), lookups);
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.inode(ino).and_then(|inode| self.live.attr(&inode)) {
            Ok(attr) => reply.attr(&self.believed(&attr), &self.shown(&attr)),
            Err(e) => reply.error(errno(e)),
        }
        affinity::follow(req.pid());
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = self.changing(caller(req)).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if let Some(size) = size {
                self.content_changes(req, &inode)?;
                self.cut(&inode, size)?;
            }
            let mut mode = mode.map(|m| m & 0o7777);
            if (uid.is_some() || gid.is_some()) && has_mode_of_file(inode.kind) && mode.is_none() {
                // As chown does it: the log is to say what comes of it.
                let now = self.live.attr(&inode)?;
                mode = Some(without_set_ids(req, &now)).filter(|without| *without != now.mode);
            }
            let set = SetAttr {
                mode,
                uid,
                gid,
                atime: atime.map(time_or_now),
                mtime: mtime.map(time_or_now),
            };
            if set != SetAttr::default() {
                self.live.set_attr(&inode, &set)?;
            } else if size.is_none() && has_mode_of_file(inode.kind) {
                // The kernel asks for nothing where set-ID bits are to go, and only there;
                // for a chown too, which may be anybody's.
                if req.uid() == 0 || req.uid() == self.live.attr(&inode)?.uid {
                    self.drop_privileges(req, &inode)?;
                }
            }
            self.live.attr(&inode)
        });
        match done {
            Ok(attr) => reply.attr(&self.believed(&attr), &self.shown(&attr)),
            Err(e) => reply.error(errno(e)),
        }
        affinity::follow(req.pid());
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.inode(ino).and_then(|inode| self.live.tree().read_link(&inode.node)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = kind_of(mode).and_then(|kind| {
            self.make(req, (parent, name), (kind, mode, umask), (rdev.into(), b""))
        });
        self.entry(reply, made);
        affinity::follow(req.pid());
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let what = (Kind::Directory, mode, umask);
        self.entry(reply, self.make(req, (parent, name), what, (0, b"")));
        affinity::follow(req.pid());
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let what = (Kind::Symlink, 0o777, 0);
        self.entry(reply, self.make(req, (parent, name), what, (0, target)));
        affinity::follow(req.pid());
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.changing(caller(req)).and_then(|_acting| {
            let inode = self.inode(ino)?;
            let attr = self.live.link(&inode, &self.inode(parent)?, name.as_bytes())?;
            Ok((inode, attr))
        });
        self.entry(reply, linked);
        affinity::follow(req.pid());
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(req, (parent, name), false));
        affinity::follow(req.pid());
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(req, (parent, name), true));
        affinity::follow(req.pid());
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        match self.asked_to_rename(req, from, to, flags) {
            Ok(rename) => self.do_rename(rename, reply),
            Err(e) => reply.error(errno(e)),
        }
        affinity::follow(req.pid());
    }

    /// See the head of this file: ENOSYS says so for good.
    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    /// The kernel makes it of MKNOD then.
    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    /// What was written back when the file was closed is here already.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    /// With `default_permissions` the kernel knows.
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        const MUCH: u32 = 128 << 10;
        if size >= MUCH {
            affinity::leave();
        }
        READ.with_borrow_mut(|bytes| {
            if bytes.len() < size as usize {
                bytes.resize(size as usize, 0);
            }
            let bytes = &mut bytes[..size as usize];
            let read =
                self.inode(ino).and_then(|inode| self.live.tree().read(&inode.node, offset, bytes));
            match read {
                Ok(n) => reply.data(&bytes[..n]),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.writing(req, ino, write_flags).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_privileges(req, &inode)?;
            }
            let mut done = self.live.write(&inode, offset, data)?;
            while done < data.len() && asked::write_is_whole(write_flags, flags) {
                done += self.live.write(&inode, offset + done as u64, &data[done..])?;
            }
            self.written(&inode, || asked::write_syncs(write_flags, flags))?;
            Ok(done)
        });
        match written {
            Ok(n) => reply.written(n as u32),
            Err(e) => {
                if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                    self.live.write_back_was_refused(self.swap(ino.0));
                }
                reply.error(errno(e));
            }
        }
        affinity::follow(req.pid());
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if self.log_writes {
            // For good.
            return reply.error(fuser::Errno::ENOSYS);
        }
        empty(reply, self.inode(ino).and_then(|inode| self.sync(&inode)));
        affinity::follow(req.pid());
    }

    /// Names are in the log since they changed: nothing is to be asked for.
    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.inode(ino).and_then(|inode| {
            let tree = self.live.tree();
            tree.list(&inode.node, offset, |name, ino, kind, next| {
                // Programs go by it, and there is no way to say that it is not known.
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

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
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

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        const XATTR_CREATE: i32 = 1;
        const XATTR_REPLACE: i32 = 2;
        let done = self.changing(caller(req)).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if flags != 0 {
                let there = self.live.tree().xattr(&inode.node, name.as_bytes())?.is_some();
                match flags {
                    XATTR_CREATE if there => return Err(Errno::EXIST),
                    XATTR_REPLACE if !there => return Err(Errno::NODATA),
                    XATTR_CREATE | XATTR_REPLACE => {}
                    _ => return Err(Errno::INVAL),
                }
            }
            match self.loses_set_group_id(req, &inode, name.as_bytes())? {
                Some(mode) => self.live.set_acl_without_set_group_id(&inode, mode, value),
                None => self.live.set_xattr(&inode, name.as_bytes(), Some(value)),
            }
        });
        empty(reply, done);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self
            .inode(ino)
            .and_then(|inode| self.live.xattr(&inode, name.as_bytes())?.ok_or(Errno::NODATA));
        xattr(reply, size, value);
        affinity::follow(req.pid());
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.inode(ino).and_then(|inode| {
            let mut list = Vec::new();
            let mut sees_trusted = None;
            let mut may_see = || {
                *sees_trusted
                    .get_or_insert_with(|| rights::may(&caller(req), CapabilitySet::SYS_ADMIN))
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

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.changing(caller(req)).and_then(|_acting| {
            let inode = self.inode(ino)?;
            if self.live.tree().xattr(&inode.node, name.as_bytes())?.is_none() {
                return Err(Errno::NODATA);
            }
            self.live.set_xattr(&inode, name.as_bytes(), None)
        });
        empty(reply, done);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
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
            let _acting = self.changing(caller(req))?;
            let inode = self.inode(ino)?;
            self.content_changes(req, &inode)?;
            self.live.allocate(&inode, how, offset, length)
        });
        empty(reply, done);
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let found = self.inode(ino).and_then(|inode| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            // Data is data, whatever the kernel holds; a mount for reading holds nothing.
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
        let (live, kernel) = (self.live.clone(), self.kernel.clone());
        self.helpers.run(move || {
            let seeker = holes::Seeker {
                ask: |offset, hole| live.tree().seek(&inode.node, offset, hole),
                write_back: |start, end| holes::write_back(&kernel, ino, start, end),
            };
            holes::seeked(reply, seeker.seek(offset, hole));
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        from: INodeNo,
        _fh_in: FileHandle,
        from_at: u64,
        to: INodeNo,
        _fh_out: FileHandle,
        to_at: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The reply counts in 32 bits.
        let length = length.min(1 << 30);
        let number = to.0;
        let copied = self.changing(caller(req)).and_then(|_acting| {
            let from = self.inode(from)?;
            let to = self.inode(to)?;
            self.content_changes(req, &to)?;
            let n = self.live.copy(&to, to_at, length, || {
                self.live.tree().copy(&from.node, from_at, &to.node, to_at, length)
            })?;
            self.written(&to, || asked::copy_syncs(req.pid(), number)).map(|()| n)
        });
        match copied {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(e)),
        }
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
