// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE, on top of [`Live`]: answers the kernel's requests from the tree ([`served`]).
//!
//! The kernel checks permissions (`default_permissions`), keeps locks and caches pages.  It
//! writes back the dirty pages of mappings before each FSYNC, so this part sees exactly what
//! must be durable.  Files and directories are not opened here: requests name the inode, which
//! the kernel holds by its lookups, and a file that is open elsewhere costs nothing.
//!
//! # Which thread answers
//! The thread that reads a request answers it, as long as another thread is left to read the
//! next.  The last one waits a moment for another and then hands its request to helpers
//! ([`helpers`]): first to those that answer from the kernel's caches of the tree, if that may
//! suffice, and otherwise to those that may wait.  So any number of requests may wait, for a
//! disk or for space in the pool, and the next one is read.
//!
//! A sync whose entry is not durable yet is answered later without a thread of its own
//! ([`parked`]).
//!
//! A request for a helper is copied.  The number of copied bytes is bounded ([`rooms`]): above
//! the bound the last thread waits with a write(2), and the kernel keeps the other requests.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

mod asked;
mod callers;
mod helpers;
mod holes;
mod parked;
mod replacing;
mod rooms;
mod served;
mod terms;

use crate::affinity;
use crate::latency::Latency;
use crate::live::Live;
use crate::log::PoolJournal;
use crate::notified::Kernel;
use crate::options::MountOptions;
use crate::record::SetAttr;
use crate::unix::UnixTree;
use callers::caller;
use helpers::Class;
pub(crate) use helpers::Helpers;
pub(crate) use holes::kernel_waits;
use rooms::{Room, Rooms};
pub(crate) use served::number_for_kernel;
use served::Served;
use terms::time_or_now;

pub type TreeLive = Live<UnixTree, PoolJournal>;

/// Runs when all threads that read requests have ended.
pub(crate) type AtEnd = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

thread_local! {
    /// The buffer for reads: a new buffer for each request would be new pages, which the kernel
    /// would clear first.  It is as long as the longest request: 1 MiB.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The number of threads that read requests, if this many may wait at once.
pub(crate) const fn threads(waiting: usize) -> usize {
    waiting + 1
}

pub struct Front {
    served: Arc<Served>,
    rooms: Rooms,
    at_end: AtEnd,
}

/// Answers in the room that [`Rooms`] gives, or in `$room`.  Borrowed parts of the request are
/// copied for a helper of the class.
macro_rules! answer {
    ($front:ident, $class:ident, [$($borrowed:ident),*], |$served:ident| $answer:expr) => {
        answer!($front.rooms.room(0 $(+ $borrowed.len())*) => $front, $class, [$($borrowed),*],
            |$served| $answer)
    };
    ($room:expr => $front:ident, $class:ident, [$($borrowed:ident),*],
        |$served:ident| $answer:expr) => {
        match $room {
            Room::Here(_slot) => {
                let $served = &*$front.served;
                $answer
            }
            Room::Later(held) => {
                $(let $borrowed = $borrowed.to_owned();)*
                $front.later(Class::$class, move |$served| {
                    let _held = held;
                    $(let $borrowed = &*$borrowed;)*
                    $answer
                });
            }
        }
    };
}

impl Front {
    /// `waiting`: how many threads that read requests may wait, out of [`threads`].
    pub fn new(
        live: Arc<TreeLive>,
        latency: Arc<Latency>,
        options: &MountOptions,
        waiting: usize,
    ) -> Front {
        let rooms = Rooms::new(waiting, live.journal().log().is_on_disk());
        let served = Arc::new(Served::new(live, latency, options));
        Front { served, rooms, at_end: AtEnd::default() }
    }

    /// Set this once the kernel's notifier exists, before the first request.
    pub fn kernel(&self) -> Arc<Kernel> {
        self.served.kernel.clone()
    }

    /// Set this at the same time.
    pub fn acts(&self) -> Arc<OnceLock<bool>> {
        self.served.acts.clone()
    }

    /// Set this before the session is run.
    pub fn at_end(&self) -> AtEnd {
        self.at_end.clone()
    }

    /// A thread of its own must run [`Helpers::lead`].
    pub fn helpers(&self) -> Helpers {
        self.served.helpers.clone()
    }

    fn later(&self, class: Class, answer: impl FnOnce(&Arc<Served>) + Send + 'static) {
        later(&self.served, class, answer);
    }
}

fn later(served: &Arc<Served>, class: Class, answer: impl FnOnce(&Arc<Served>) + Send + 'static) {
    let also = served.clone();
    served.helpers.run(class, move || answer(&also));
}

impl Drop for Front {
    fn drop(&mut self) {
        self.served.helpers.close();
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
            // The kernel leaves set-user-ID bits and capabilities to the server and does not
            // ask for them before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // A handle cannot be opened once the kernel has forgotten its inode, so the kernel
            // gives out none (Linux 6.10).
            InitFlags::FUSE_NO_EXPORT_SUPPORT,
            // An abort of the connection is told from an unmount.
            InitFlags::FUSE_ABORT_ERROR,
        ] {
            // These features help, but nothing depends on them.
            let _ = config.add_capabilities(flag);
        }
        if self.served.write_back {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        // Requests that the kernel makes by itself (it reads ahead and writes back, also for
        // asynchronous reads and writes of O_DIRECT) and that may wait.  While so many do it makes
        // no others.  They are taken whole.
        let _ = config.set_max_background(self.rooms.most_background());
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(done) = self.at_end.get() {
            done();
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.rooms.here() {
            Some(_slot) => self.served.lookup((parent, name), reply),
            None => {
                let name = name.to_owned();
                self.later(Class::Cached, move |served| {
                    let left = served.lookup_now((parent, &name), reply);
                    if let Some(reply) = left {
                        later(served, Class::Names, move |served| {
                            served.lookup((parent, &name), reply);
                        });
                    }
                });
            }
        }
        affinity::follow(req.pid());
    }

    /// The last close of a file without a name frees its space on the disk.
    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        answer!(self, Changes, [], |served| served.forget(ino, lookups));
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.rooms.here() {
            Some(_slot) => self.served.getattr(ino, reply),
            None => self.later(Class::Cached, move |served| {
                if let Some(reply) = served.getattr_now(ino, reply) {
                    later(served, Class::Names, move |served| served.getattr(ino, reply));
                }
            }),
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
        let set = SetAttr {
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
        };
        let caller = caller(req);
        answer!(self, Changes, [], |served| served.setattr(caller, ino, (size, set), reply));
        affinity::follow(req.pid());
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        answer!(self, Names, [], |served| served.readlink(ino, reply));
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
        let (caller, what) = (caller(req), (mode, umask, rdev));
        answer!(self, Changes, [name], |served| served.mknod(caller, (parent, name), what, reply));
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
        let (caller, what) = (caller(req), (mode, umask));
        answer!(self, Changes, [name], |served| served.mkdir(caller, (parent, name), what, reply));
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
        let (caller, target) = (caller(req), target.as_os_str());
        answer!(self, Changes, [name, target], |served| {
            served.symlink(caller, (parent, name), target, reply);
        });
        affinity::follow(req.pid());
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let caller = caller(req);
        answer!(self, Changes, [name], |served| served.link(caller, ino, (parent, name), reply));
        affinity::follow(req.pid());
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(req);
        answer!(self, Changes, [name], |served| {
            served.remove(caller, (parent, name), false, reply);
        });
        affinity::follow(req.pid());
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(req);
        answer!(self, Changes, [name], |served| {
            served.remove(caller, (parent, name), true, reply);
        });
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
        let caller = caller(req);
        answer!(self, Changes, [name, new_name], |served| {
            served.rename(caller, (parent, name), (new_parent, new_name), flags, reply);
        });
        affinity::follow(req.pid());
    }

    /// See the head of this file: ENOSYS makes the kernel stop asking.
    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    /// The kernel then uses MKNOD instead.
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

    /// Pages written back at the close of the file have arrived already.
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

    /// With `default_permissions` the kernel checks access itself.
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
        let size = size as usize;
        let place = (ino, offset);
        if let Some(_slot) = self.rooms.here() {
            return READ.with_borrow_mut(|bytes| {
                if bytes.len() < size {
                    bytes.resize(size, 0);
                }
                self.served.read(place, &mut bytes[..size], reply);
            });
        }
        self.later(Class::Cached, move |served| {
            let left = served.read_now(place, &mut vec![0; size], reply);
            if let Some(reply) = left {
                later(served, Class::Reads, move |served| {
                    served.read(place, &mut vec![0; size], reply);
                });
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
        if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.served.live.counters.write_backs.fetch_add(1, Ordering::AcqRel);
        }
        let (caller, place, how) = (caller(req), (ino, offset), (write_flags, flags));
        let room = match asked::write_is_whole(write_flags, flags) {
            true => self.rooms.room(data.len()),
            false => self.rooms.room_for_write(data.len()),
        };
        answer!(room => self, Changes, [data], |served| {
            served.write(caller, place, data, how, reply);
        });
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
        if self.served.log_writes && !self.served.live.names_wait_for_syncs() {
            // The kernel does not ask again.
            return reply.error(fuser::Errno::ENOSYS);
        }
        answer!(self, Changes, [], |served| served.fsync(ino, reply));
        affinity::follow(req.pid());
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if !self.served.live.names_wait_for_syncs() {
            // Names are durable since they changed, and the kernel does not ask again.
            return reply.error(fuser::Errno::ENOSYS);
        }
        answer!(self, Changes, [], |served| served.fsync(ino, reply));
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        answer!(self, Reads, [], |served| served.readdir(ino, offset, reply));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer!(self, Names, [], |served| served.statfs(reply));
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
        let caller = caller(req);
        answer!(self, Changes, [name, value], |served| {
            served.setxattr(caller, ino, (name, value, flags), reply);
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer!(self, Names, [name], |served| served.getxattr(ino, name, size, reply));
        affinity::follow(req.pid());
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(req);
        answer!(self, Names, [], |served| served.listxattr(caller, ino, size, reply));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(req);
        answer!(self, Changes, [name], |served| served.removexattr(caller, ino, name, reply));
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
        let (caller, place) = (caller(req), (ino, offset));
        answer!(self, Changes, [], |served| {
            served.fallocate(caller, place, length, mode, reply);
        });
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
        answer!(self, Reads, [], |served| served.lseek(ino, offset, hole, reply));
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
        let (caller, from, to) = (caller(req), (from, from_at), (to, to_at));
        answer!(self, Changes, [], |served| served.copy(caller, from, to, length, reply));
    }
}
