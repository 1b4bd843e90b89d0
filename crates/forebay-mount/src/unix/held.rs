// SPDX-License-Identifier: MIT OR Apache-2.0
//! This module holds inodes with as few descriptors as possible.
//!
//! If the process may open by file handle, an inode is held by its handle, and its descriptors
//! are a cache: when there are many, the oldest ones that were not used lately are closed.  An
//! inode that may lose its last name is pinned before ([`Node::pin`]), since a handle cannot
//! open an inode without a name.  Otherwise the O_PATH descriptor stays, and those for reading
//! and writing are the cache.
//!
//! If a descriptor is closed after a write and no other one holds the inode, no one can learn
//! any more whether the write-back failed ([`Node::has_lost_sight`]).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_engine::handle::{file_handle, open_handle};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

use super::{kind_of, HELD, LISTED};
use crate::record::Kind;
use crate::tree::{Handle, Result};
use crate::waiters::Waiters;

/// An open descriptor.  The cache counts it.
#[derive(Debug)]
pub struct Descriptor {
    fd: OwnedFd,
    cache: Arc<Cache>,
}

impl Descriptor {
    /// A path that is this inode, whatever its names are, and also if it is a symlink; as
    /// long as this lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    pub fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        fs::open(self.path(), flags | OFlags::CLOEXEC, Mode::empty())
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.cache.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The descriptors of a tree.
#[derive(Debug)]
pub struct Cache {
    /// A directory of the file system, where this process may open by handle.
    mount: Option<OwnedFd>,
    open: AtomicUsize,
    most: usize,
    /// Inodes with descriptors, the oldest first; some may be gone.
    queue: Mutex<VecDeque<Weak<Held>>>,
    /// Reading leaves times of access alone.
    quiet_files: AtomicBool,
    quiet_directories: AtomicBool,
    /// Nobody's lease is waited for.
    hasty: AtomicBool,
    /// For leases, and for room.
    waiting: Arc<Waiters>,
}

impl Cache {
    /// The cache for the file system of the directory `root`.
    pub fn of(root: &OwnedFd) -> Arc<Cache> {
        const MOST: u64 = 1 << 16;
        let mount = fs::openat(root, ".", LISTED, Mode::empty()).ok().filter(|mount| {
            let handle = file_handle(root.as_fd());
            handle.is_ok_and(|handle| open_handle(mount.as_fd(), &handle, HELD).is_ok())
        });
        // The other half is for the rest of the process.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = (limit / 2).clamp(16, MOST) as usize;
        Arc::new(Cache {
            mount,
            open: AtomicUsize::new(0),
            most,
            queue: Mutex::default(),
            quiet_files: AtomicBool::new(false),
            quiet_directories: AtomicBool::new(false),
            hasty: AtomicBool::new(false),
            waiting: Arc::default(),
        })
    }

    /// As for a process that may open few, and perhaps none by handle.
    #[cfg(test)]
    pub(super) fn limit(self: Arc<Cache>, most: usize, by_handle: bool) -> Arc<Cache> {
        let cache = Arc::into_inner(self).expect("nothing is held yet");
        Arc::new(Cache { most, mount: cache.mount.filter(|_| by_handle), ..cache })
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn leave_times_of_access(&self, files: bool, directories: bool) {
        self.quiet_files.store(files, Ordering::Relaxed);
        self.quiet_directories.store(directories, Ordering::Relaxed);
    }

    pub(super) fn wait_for_nobody(&self) {
        self.hasty.store(true, Ordering::Relaxed);
    }

    /// For what is opened to be read.
    pub(crate) fn quiet(&self, kind: Kind) -> OFlags {
        let quiet = match kind {
            Kind::Directory => &self.quiet_directories,
            _ => &self.quiet_files,
        };
        match quiet.load(Ordering::Relaxed) {
            true => OFlags::NOATIME,
            false => OFlags::empty(),
        }
    }

    pub(super) fn waiters(&self) -> Arc<Waiters> {
        self.waiting.clone()
    }

    pub(super) fn opens_by_handle(&self) -> bool {
        self.mount.is_some()
    }

    fn counted(self: &Arc<Cache>, fd: OwnedFd) -> Arc<Descriptor> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Descriptor { fd, cache: self.clone() })
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Weak<Held>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what was not used lately while more than `most` are open; looks at no more
    /// than `looks` inodes.
    fn close(&self, most: usize, looks: usize) {
        let mut queue = self.queue();
        if queue.len() > 64 + 4 * self.open.load(Ordering::Relaxed) {
            queue.retain(|held| held.strong_count() > 0);
        }
        for _ in 0..looks {
            if self.open.load(Ordering::Relaxed) <= most {
                break;
            }
            let Some(weak) = queue.pop_front() else { break };
            let Some(held) = weak.upgrade() else { continue };
            // Who opens another of this one has it locked, and does not wait for it here.
            let closed = held.slot.try_lock().is_ok_and(|mut slot| slot.close(held.fixed));
            if !closed {
                queue.push_back(weak);
            }
        }
    }

    /// Runs `open`, which opens something for a moment; runs it again if the process has too
    /// many open files.
    pub fn room<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.close_half();
                open()
            }
            opened => opened,
        }
    }

    pub(super) fn close_half(&self) {
        let most = self.open.load(Ordering::Relaxed) / 2;
        let looks = 2 * self.queue().len();
        self.close(most, looks);
    }
}

/// An inode of a [`super::UnixTree`].
#[derive(Clone, Debug)]
pub struct Node(Arc<Held>);

#[derive(Debug)]
pub struct Held {
    cache: Arc<Cache>,
    handle: Result<Handle>,
    kind: Kind,
    ino: u64,
    /// A closed descriptor could not be opened again.
    fixed: bool,
    slot: Mutex<Slot>,
}

/// The open descriptors of an inode.
#[derive(Debug, Default)]
struct Slot {
    /// An O_PATH descriptor; of a file that was made here, one for reading and writing.
    held: Option<Arc<Descriptor>>,
    made: bool,
    /// A descriptor for reading and writing, if it is a file.
    both: Option<Arc<Descriptor>>,
    /// A descriptor for reading, if it is a directory or a file that allows no more.
    reading: Option<Arc<Descriptor>>,
    pinned: bool,
    /// How many operations keep its descriptors.
    operations: u32,
    queued: bool,
    /// Used since the cache last looked at it.
    used: bool,
    /// At any time.
    written: bool,
    /// It was closed after it was written.
    lost_sight: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Any,
    Reading,
    Writing,
}

/// An operation of several steps, which all need the inode's descriptor.
#[derive(Debug)]
pub struct Operation(Node);

impl Drop for Operation {
    fn drop(&mut self) {
        self.0.slot().operations -= 1;
    }
}

impl Slot {
    fn has(&self, want: Want) -> Option<&Arc<Descriptor>> {
        let made = || self.held.as_ref().filter(|_| self.made);
        match want {
            Want::Any => self.held.as_ref().or(self.both.as_ref()).or(self.reading.as_ref()),
            Want::Reading => self.reading.as_ref(),
            Want::Writing => made().or(self.both.as_ref()),
        }
    }

    /// `false`: it was used lately, or is to stay.
    fn close(&mut self, fixed: bool) -> bool {
        if self.pinned || self.operations > 0 || std::mem::take(&mut self.used) {
            return false;
        }
        (self.both, self.reading) = (None, None);
        if !fixed {
            self.held = None;
            self.made = false;
            self.lost_sight |= self.written;
        }
        self.queued = false;
        true
    }
}

impl Node {
    /// `made`: for reading and writing.
    pub(super) fn new(cache: &Arc<Cache>, fd: OwnedFd, stat: &Stat, made: bool) -> Node {
        let handle = file_handle(fd.as_fd()).map(Handle);
        let held = cache.counted(fd);
        let node = Node(Arc::new(Held {
            cache: cache.clone(),
            fixed: !cache.opens_by_handle() || handle.is_err(),
            handle,
            kind: kind_of(FileType::from_raw_mode(stat.st_mode)).unwrap_or(Kind::File),
            ino: stat.st_ino,
            slot: Mutex::new(Slot { held: Some(held), made, ..Slot::default() }),
        }));
        node.opened(node.slot());
        node
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has a descriptor more.
    fn opened(&self, mut slot: MutexGuard<'_, Slot>) {
        const LOOKS: usize = 64;
        let queued = std::mem::replace(&mut slot.queued, true);
        drop(slot);
        let cache = &self.0.cache;
        if !queued {
            cache.queue().push_back(Arc::downgrade(&self.0));
        }
        if cache.open.load(Ordering::Relaxed) > cache.most {
            cache.close(cache.most, LOOKS);
        }
    }

    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The inode's number.
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    pub fn handle(&self) -> Result<Handle> {
        self.0.handle.clone()
    }

    /// See [`Handle::generation`].
    pub fn generation(&self) -> u32 {
        self.0.handle.as_ref().map_or(0, Handle::generation)
    }

    /// `writes`: for that, and not only to be open for it.
    fn get(&self, want: Want, writes: bool) -> Result<Arc<Descriptor>> {
        self.get_as(want, writes, true)
    }

    /// Without `waits` a lease of another process is an error: AGAIN.  Any user may have leases of
    /// his own files, and give them up after 45 s.  So nothing is held meanwhile, and of those who
    /// wait for files of one user all but a few get the error, too.
    fn get_as(&self, want: Want, writes: bool, waits: bool) -> Result<Arc<Descriptor>> {
        match self.get_now(want, writes) {
            Err(Errno::AGAIN) if waits && !self.0.cache.hasty.load(Ordering::Relaxed) => {}
            got => return got,
        }
        let held = self.fd()?;
        let owner = fs::fstat(&*held)?.st_uid;
        let _waiting = self.0.cache.waiting.begin(owner).ok_or(Errno::AGAIN)?;
        // An open that waits keeps the holder from a new lease, and the kernel ends the wait
        // after fs.lease-break-time.
        let writes_too = if want == Want::Writing { OFlags::RDWR } else { OFlags::RDONLY };
        let _opened = held.reopen(writes_too)?;
        self.get_now(want, writes)
    }

    /// A lease of another process is an error: AGAIN.
    fn get_now(&self, want: Want, writes: bool) -> Result<Arc<Descriptor>> {
        const TRIES: u32 = 3;
        for last in (0..TRIES).rev() {
            let mut slot = self.slot();
            slot.used = true;
            slot.written |= writes;
            if let Some(fd) = slot.has(want) {
                return Ok(fd.clone());
            }
            match self.open(&slot, want) {
                Ok(fd) => {
                    let fd = self.0.cache.counted(fd);
                    *match want {
                        Want::Any => &mut slot.held,
                        Want::Reading => &mut slot.reading,
                        Want::Writing => &mut slot.both,
                    } = Some(fd.clone());
                    self.opened(slot);
                    return Ok(fd);
                }
                Err(Errno::MFILE | Errno::NFILE) if last > 0 => {
                    drop(slot);
                    self.0.cache.close_half();
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::MFILE)
    }

    fn open(&self, slot: &Slot, want: Want) -> Result<OwnedFd> {
        let flags = match (want, self.kind()) {
            (Want::Any, _) => HELD,
            (Want::Reading, Kind::Directory) => LISTED,
            (Want::Reading, _) => OFlags::RDONLY,
            (Want::Writing, _) => OFlags::RDWR,
        };
        let open = |flags| match (slot.has(Want::Any), &self.0.cache.mount, &self.0.handle) {
            (Some(fd), ..) => fd.reopen(flags),
            (None, Some(mount), Ok(handle)) => open_handle(mount.as_fd(), &handle.0, flags),
            _ => Err(Errno::STALE),
        };
        let quiet = match want {
            Want::Any => OFlags::empty(),
            _ => self.0.cache.quiet(self.kind()),
        };
        let flags = match want {
            Want::Any => flags,
            Want::Reading | Want::Writing => flags | OFlags::NONBLOCK,
        };
        match open(flags | quiet) {
            // Only an owner's times can be left alone by one who is not root.
            Err(Errno::PERM) if !quiet.is_empty() => open(flags),
            opened => opened,
        }
    }

    /// Any descriptor, for what O_PATH can do.
    pub fn fd(&self) -> Result<Arc<Descriptor>> {
        self.get(Want::Any, false)
    }

    /// A descriptor that is open already, for what O_PATH can do; `None`: none is open, or
    /// another thread is opening one.
    pub(super) fn open_now(&self) -> Option<Arc<Descriptor>> {
        let mut slot = self.0.slot.try_lock().ok()?;
        slot.used = true;
        slot.has(Want::Any).cloned()
    }

    /// For reading, and for writing where the file lets itself be opened so.  Waits until another
    /// process has given up its lease.
    pub fn reading(&self) -> Result<Arc<Descriptor>> {
        self.reading_as(true)
    }

    /// The same, and a lease is an error: AGAIN.
    pub fn reading_now(&self) -> Result<Arc<Descriptor>> {
        self.reading_as(false)
    }

    fn reading_as(&self, waits: bool) -> Result<Arc<Descriptor>> {
        let get = |want| self.get_as(want, false, waits);
        match self.kind() {
            Kind::File => {}
            Kind::Directory => return get(Want::Reading),
            _ => return Err(Errno::INVAL),
        }
        if let Some(fd) = self.slot().has(Want::Reading) {
            return Ok(fd.clone());
        }
        match get(Want::Writing) {
            // Another process has a lease, or too many wait for one.
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            // A program that runs, a file that is immutable or another's.
            Err(_) => get(Want::Reading),
            opened => opened,
        }
    }

    pub fn writing(&self) -> Result<Arc<Descriptor>> {
        self.writing_as(true)
    }

    /// The same, and a lease is an error: AGAIN.
    pub fn writing_now(&self) -> Result<Arc<Descriptor>> {
        self.writing_as(false)
    }

    fn writing_as(&self, waits: bool) -> Result<Arc<Descriptor>> {
        match self.kind() {
            Kind::File => self.get_as(Want::Writing, true, waits),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Its descriptor stays until the returned value is dropped.
    pub fn hold(&self) -> Result<Operation> {
        self.slot().operations += 1;
        let operation = Operation(self.clone());
        self.fd().map(|_| operation)
    }

    /// It may lose its last name: from now on its descriptor stays.
    pub fn pin(&self) -> Result<()> {
        self.fd()?;
        self.slot().pinned = true;
        // It may have been closed in between.
        self.fd().map(drop)
    }

    pub fn unpin(&self) {
        self.slot().pinned = false;
    }

    /// An inode's own sync, and what is read of it, does not know of an error of its
    /// write-back.
    pub fn has_lost_sight(&self) -> bool {
        self.slot().lost_sight
    }

    pub fn lose_sight(&self) {
        self.slot().lost_sight = true;
    }

    /// For one who syncs all then.  To be asked after the inode's own sync, whose
    /// descriptor may have been closed and opened before it.
    pub fn take_lost_sight(&self) -> bool {
        std::mem::take(&mut self.slot().lost_sight)
    }
}
