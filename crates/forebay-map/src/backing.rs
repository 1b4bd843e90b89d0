// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that is mapped, in its file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::{FileMark, FoundMark, MapClaim};
use forebay_engine::lasting::{self, Lasting};
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::system;

/// How long an open waits for a process that has a lease of the file.
const LEASED: Duration = Duration::from_millis(1500);

/// The time of a file's last change in seconds and nanoseconds, as its file system reports it.
pub type Time = (i64, u32);

/// The operations of this library on a file.  Tests simulate them.
pub trait Backing: Send + Sync + std::fmt::Debug {
    /// The path, for messages.
    fn path(&self) -> &Path;
    /// The identity by which the file is recognized.
    fn identity(&self) -> &[u8];
    /// The current size.
    fn size(&self) -> io::Result<u64>;
    /// The file itself, if it is a file of the kernel.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Reads; short only at the end of the file.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Writes all bytes.
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// Makes the written data, the size and the block allocation durable (fdatasync).
    fn sync(&self) -> io::Result<()>;
    /// Makes the data and all metadata durable, with the modification time (fsync).
    fn sync_all(&self) -> io::Result<()>;
    /// Makes changes of attributes and names by others durable with `sync`, if there are any.
    fn settle_attributes(&self, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        let _ = sync;
        Ok(())
    }
    /// Others have changed attributes.
    fn attributes_changed(&self) {}
    /// The time of the last change of the content.
    fn changed(&self) -> io::Result<Time>;
    /// The mark on the file.
    fn marked(&self) -> io::Result<FoundMark>;
    /// The directory that has to be changed to remove the mark.  None: the file bears the mark.
    fn mark_directory(&self) -> Option<&Path>;
    /// Sets the mark; durable after `sync_mark`.
    fn set_mark(&self, by: &MapClaim) -> io::Result<()>;
    /// Removes the mark; durable after `sync_mark`.
    fn take_mark(&self) -> io::Result<()>;
    /// Makes durable what became of the mark, and syncs the file if it bears that.  It is called once:
    /// the kernel tells a failure once.  An error is one of [`of_mark_sync`](forebay::of_mark_sync):
    /// whatever it is, the mark could be set.
    fn sync_mark(&self) -> io::Result<()>;
    /// Sets the mark, durably.
    fn mark(&self, by: &MapClaim) -> io::Result<()> {
        self.set_mark(by)?;
        self.sync_mark()
    }
    /// Removes the mark, durably.
    fn unmark(&self) -> io::Result<()> {
        self.take_mark()?;
        self.sync_mark()
    }
    /// Truncates or extends.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// Frees the blocks that are allocated after the end of the file.  The modification time
    /// does not change.
    fn cut_behind(&self, size: u64) -> io::Result<()> {
        self.set_size(size)
    }
    /// Allocates blocks for a range within the size.  Does nothing on a file system without
    /// such a call.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;
    /// Whether a range has a hole, as far as the file system reports it.
    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool>;
    /// Checks that the descriptor still refers to our file and that our locks are still held.
    fn check_ours(&self) -> io::Result<()> {
        Ok(())
    }
    /// Whether another process that opened the file waits for this process to answer (a lease).
    fn is_waited_for(&self) -> bool {
        false
    }
    /// Ends the use of the file by this object.  Its locks stay with the open file description,
    /// for the next user of that.
    fn hand_over(&self) {}
    /// Releases the locks, so that others may use the file, although this object still exists:
    /// a thread may hold it for a while.  Nothing is done with the file afterwards.
    fn free(&self) {}
}

/// A regular file that is locked.  Other processes that map it are refused.  Programs that use
/// record locks (fcntl), such as SQLite, are excluded too: they would read and write the file
/// without the pool's memory.
#[derive(Debug)]
pub struct RegularFile {
    file: Lasting<File>,
    path: PathBuf,
    identity: Vec<u8>,
    mark: FileMark,
    /// The process that opened it.
    of: u32,
    attributes: Attributes,
    /// The locks now belong to another object, possibly with the same open file description.
    freed: AtomicBool,
}

impl RegularFile {
    /// Opens an existing file and locks it.
    pub fn open(path: &Path) -> Result<RegularFile> {
        not_leased(path)?;
        RegularFile::look(path)?.lock()
    }

    /// Locks a file again by an open file description that it had before its locks were freed.
    /// It does not wait for a holder, and it breaks no lease.
    pub(crate) fn again(file: OwnedFd, path: &Path) -> Result<RegularFile> {
        RegularFile::of(file.into(), path.to_owned())?.lock()
    }

    /// Locks a file by a descriptor that another process had of it, so that no lease is broken.
    pub fn handed(file: OwnedFd, path: &Path) -> Result<RegularFile> {
        RegularFile::again(file, path)
    }

    fn lock(self) -> Result<RegularFile> {
        let file = self.file.as_fd();
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => match system::lock_records(file, true) {
                Ok(()) => Ok(self),
                // The holder cannot be named: fcntl(2) reports only a lock that conflicts with
                // one of the process itself.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    Err(Error::Locked { path: self.path.clone(), by: None })
                }
                Err(e) => Err(Error::system(&self.path, "lock its records")(e)),
            },
            Err(Errno::WOULDBLOCK) => {
                let by = forebay::file_holder(&self.file);
                Err(Error::Locked { path: self.path.clone(), by })
            }
            Err(e) => Err(Error::system(&self.path, "lock")(e.into())),
        }
    }

    /// Opens a file without locking it, also if another process has it.
    pub(crate) fn look(path: &Path) -> Result<RegularFile> {
        let path = std::path::absolute(path).map_err(Error::system(path, "its path"))?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let begun = Instant::now();
        // The pause grows, because each attempt may disturb the holder of the lease.
        let mut pause = Duration::from_millis(2);
        let opened = loop {
            let mut how = OpenOptions::new();
            match how.read(true).write(true).custom_flags(flags as i32).open(&path) {
                // Another process has a lease and will release it, or a child has a copy of a
                // leased descriptor until it executes its program.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < LEASED => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                // The holder keeps the lease. /proc/locks does not show who holds it.  The holder
                // is in another PID namespace, or the file system has a device number that stat
                // does not report.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Error::Locked { path, by: None });
                }
                opened => break opened,
            }
        };
        RegularFile::of(opened.map_err(Error::system(&path, "open"))?, path)
    }

    fn of(file: File, path: PathBuf) -> Result<RegularFile> {
        let kind = file.metadata().map_err(Error::system(&path, "stat"))?;
        if !kind.is_file() {
            return Err(Error::Refused { path, why: "it is not a regular file".into() });
        }
        let mark = FileMark::of(file.as_fd()).map_err(Error::system(&path, "its identity"))?;
        let identity = mark.name().into_bytes();
        let (of, freed) = (std::process::id(), AtomicBool::new(false));
        let attributes = Attributes::of(file.as_fd());
        Ok(RegularFile { file: file.into(), path, identity, mark, of, attributes, freed })
    }
}

impl RegularFile {
    /// Releases this process's record locks: the processes that share the file use such locks
    /// themselves.
    pub(crate) fn free_records(&self) -> io::Result<()> {
        system::lock_records(self.file.as_fd(), false)
    }

    fn by_us<R>(&self, act: impl FnOnce() -> R) -> R {
        self.attributes.by_us(self.file.as_fd(), act)
    }

    /// Checks that the descriptor still refers to this file: the program may have closed it.
    fn check(&self) -> io::Result<()> {
        lasting::check(self.file.as_fd())
    }
}

impl Drop for RegularFile {
    /// Its locks last until the last copy of the descriptor is closed, and a child that is about
    /// to execute a program has one.
    fn drop(&mut self) {
        self.free();
    }
}

impl Backing for RegularFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> &[u8] {
        &self.identity
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        self.check()?;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        self.by_us(|| self.file.write_all_at(from, at))
    }

    fn sync(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_all()
    }

    fn settle_attributes(&self, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        self.attributes.settle(self.file.as_fd(), sync)
    }

    fn attributes_changed(&self) {
        self.attributes.touched();
    }

    fn check_ours(&self) -> io::Result<()> {
        self.check()
    }

    fn changed(&self) -> io::Result<Time> {
        let st = rustix::fs::fstat(self.file.as_fd())?;
        Ok((st.st_mtime, st.st_mtime_nsec as u32))
    }

    fn marked(&self) -> io::Result<FoundMark> {
        self.mark.find()
    }

    fn mark_directory(&self) -> Option<&Path> {
        self.mark.directory()
    }

    fn set_mark(&self, by: &MapClaim) -> io::Result<()> {
        let mark = by.mark(&self.mark.name());
        self.by_us(|| self.mark.put(&mark))
    }

    fn take_mark(&self) -> io::Result<()> {
        self.by_us(|| self.mark.take_away())
    }

    fn sync_mark(&self) -> io::Result<()> {
        self.mark.sync()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.check()?;
        self.by_us(|| self.file.set_len(size))
    }

    fn cut_behind(&self, size: u64) -> io::Result<()> {
        self.check()?;
        let st = rustix::fs::fstat(self.file.as_fd())?;
        self.by_us(|| self.file.set_len(size))?;
        let was =
            Timespec { tv_sec: st.st_mtime, tv_nsec: st.st_mtime_nsec.try_into().unwrap_or(0) };
        let access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: access, last_modification: was };
        Ok(self.by_us(|| rustix::fs::futimens(self.file.as_fd(), &times))?)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.check()?;
        let file = self.file.as_fd();
        match self.by_us(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        match rustix::fs::seek(self.file.as_fd(), SeekFrom::Hole(at)) {
            Ok(hole) => Ok(hole < at + len),
            // After the end of the file there are only holes.
            Err(Errno::NXIO) => Ok(true),
            // The file system does not report holes, so it is asked for blocks.
            Err(_) => Ok(true),
        }
    }

    fn is_waited_for(&self) -> bool {
        !system::has_lease(self.file.as_fd())
    }

    fn hand_over(&self) {
        self.freed.store(true, Ordering::SeqCst);
    }

    fn free(&self) {
        // In a child the locks belong to its parent.
        if std::process::id() != self.of || self.check().is_err() {
            return;
        }
        if self.freed.swap(true, Ordering::SeqCst) {
            return;
        }
        let _ = self.free_records();
        let _ = rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock);
    }
}

/// Releases the lease that a process took by this descriptor, before it handed that over and died.
pub fn release_lease(file: &OwnedFd) {
    system::release_lease(file.as_fd());
}

/// Refuses a file of which another process has a lease (fcntl(2), F_SETLEASE).  A process that
/// maps a file may take a lease to be notified when others open the file without the pool.
pub(crate) fn not_leased(path: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // If this open fails, the real open reports the reason.
    let Ok(looked) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else {
        return Ok(());
    };
    match forebay::lease_holder(&looked) {
        Some(pid) if pid != std::process::id() => {
            Err(Error::Locked { path: path.to_owned(), by: Some(pid) })
        }
        _ => Ok(()),
    }
}

/// The identity of a file, found without opening it.
pub fn identity_at(path: &Path) -> Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let looked = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let looked = looked.map_err(|e| Error::system(path, "open")(e.into()))?;
    let found = forebay::file_identity(looked.as_fd());
    Ok(found.map_err(Error::system(path, "its identity"))?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        (path, file.expect("a file"))
    }

    /// SQLite and similar programs do not use flock.
    #[test]
    fn who_locks_records_is_kept_out_and_keeps_out() {
        let (path, plain) = file("records");
        let lock = |how| rustix::fs::fcntl_lock(&plain, how);
        let ours = RegularFile::open(&path).expect("nobody has it");
        assert_eq!(lock(FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
        ours.free_records().expect("freed");
        lock(FlockOperation::NonBlockingLockExclusive).expect("it is shared");
        // Closing this descriptor releases the record lock too: such locks belong to the
        // process.
        drop(ours);
        lock(FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
        let held = RegularFile::open(&path).expect_err("it is locked");
        assert!(matches!(held, Error::Locked { .. }), "{held}");
        lock(FlockOperation::Unlock).expect("unlocked");
        RegularFile::open(&path).expect("nobody has it");
        let _ = std::fs::remove_file(path);
    }

    /// A child has a copy until it executes its program, and may never do so.
    #[test]
    fn who_has_dropped_it_has_it_locked_no_more_whoever_has_a_copy() {
        let (path, _plain) = file("copies");
        let ours = RegularFile::open(&path).expect("nobody has it");
        let copy = ours.file.try_clone().expect("a copy");
        assert!(matches!(RegularFile::open(&path), Err(Error::Locked { .. })));
        drop(ours);
        let again = RegularFile::open(&path).expect("nobody has it");
        again.free();
        RegularFile::open(&path).expect("it was freed");
        drop((copy, again));
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn blocks_behind_the_end_go_and_the_time_stays() {
        let (path, plain) = file("behind");
        plain.set_len(4096).expect("its size");
        let ours = RegularFile::open(&path).expect("nobody has it");
        ours.allocate(0, 1 << 20).expect("blocks");
        let blocks = |f: &File| rustix::fs::fstat(f).expect("stat").st_blocks;
        let had = blocks(&plain);
        let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 5_000);
        plain.set_modified(old).expect("a time");
        ours.cut_behind(4096).expect("cut");
        assert_eq!(ours.changed().expect("stat"), (1_000_000, 5_000));
        assert!(blocks(&plain) < had || had <= 8, "{had}");
        let _ = std::fs::remove_file(path);
    }
}
