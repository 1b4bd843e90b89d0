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

use crate::error::{Error, Result};
use crate::store::Time;
use crate::system;

/// For so long who has a lease of a file is waited for.
const LEASED: Duration = Duration::from_millis(1500);

/// What this library does with a file.  Simulated in tests.
pub trait Backing: Send + Sync + std::fmt::Debug {
    /// For messages.
    fn path(&self) -> &Path;
    /// By which it is known again.
    fn identity(&self) -> &[u8];
    /// Its size now.
    fn size(&self) -> io::Result<u64>;
    /// The file itself, if the kernel has it.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Reads; short only at the end of the file.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Writes all of it.
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// What was written, and its size and blocks, are durable.
    fn sync(&self) -> io::Result<()>;
    /// The same, and when it was changed.
    fn sync_all(&self) -> io::Result<()>;
    /// When its content was changed last.
    fn changed(&self) -> io::Result<Time>;
    /// The mark that it bears.
    fn marked(&self) -> io::Result<FoundMark>;
    /// Marks it; durable.
    fn mark(&self, by: &MapClaim) -> io::Result<()>;
    /// Takes the mark away; durable.
    fn unmark(&self) -> io::Result<()>;
    /// Truncates or extends.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// Gives blocks back that it has behind its end; the time of its last change stays.
    fn cut_behind(&self, size: u64) -> io::Result<()> {
        self.set_size(size)
    }
    /// Blocks for a range within the size; a file system that has no such call does
    /// nothing.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;
    /// Whether a range has a hole, as far as the file system tells.
    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool>;
    /// Whether the descriptor is still ours, and nobody has taken from us that others keep out.
    fn check_ours(&self) -> io::Result<()> {
        Ok(())
    }
    /// Others may have it from now on, though this is not dropped yet: a thread may be at it for
    /// a while.  Nothing is done with the file any more.
    fn free(&self) {}
}

/// A regular file.  Another process that maps it is refused, and who keeps others out by locks of
/// records (fcntl), as SQLite does, is kept out: he would read and write past the memory.
#[derive(Debug)]
pub struct RegularFile {
    file: Lasting<File>,
    path: PathBuf,
    identity: Vec<u8>,
    mark: FileMark,
    /// The process that has opened it.
    of: u32,
    /// Its locks are another one's from now on, which may be of the same open file description.
    freed: AtomicBool,
}

impl RegularFile {
    /// Opens a file that is there.
    pub fn open(path: &Path) -> Result<RegularFile> {
        not_leased(path)?;
        RegularFile::look(path)?.lock()
    }

    /// The same by an open file description by which it was open before, and of which the locks
    /// were freed.  Nobody is waited for, and no lease of it is broken.
    pub(crate) fn again(file: OwnedFd, path: &Path) -> Result<RegularFile> {
        RegularFile::of(file.into(), path.to_owned())?.lock()
    }

    fn lock(self) -> Result<RegularFile> {
        let file = self.file.as_fd();
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => match system::lock_records(file, true) {
                Ok(()) => Ok(self),
                // Who has one cannot be asked for: fcntl(2) tells of the process's own alone.
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

    /// The same, though another process has it.
    pub(crate) fn look(path: &Path) -> Result<RegularFile> {
        let path = std::path::absolute(path).map_err(Error::system(path, "its path"))?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let begun = Instant::now();
        // Each try may disturb who has the lease.
        let mut pause = Duration::from_millis(2);
        let opened = loop {
            let mut how = OpenOptions::new();
            match how.read(true).write(true).custom_flags(flags as i32).open(&path) {
                // Somebody has a lease of it, which he gives back; or had one of a descriptor of
                // which a child has a copy until it executes its program.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < LEASED => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                // He keeps it.  /proc/locks does not tell who that is: he is in another PID
                // namespace, or the file system has a device number that stat does not tell.
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
        Ok(RegularFile { file: file.into(), path, identity, mark, of, freed })
    }
}

impl RegularFile {
    /// Locks of records are those of the processes that share it.
    pub(crate) fn free_records(&self) -> io::Result<()> {
        system::lock_records(self.file.as_fd(), false)
    }

    /// That it is still this file, where somebody may have closed it.
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
        self.file.write_all_at(from, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_all()
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

    fn mark(&self, by: &MapClaim) -> io::Result<()> {
        self.mark.put(&by.mark(&self.mark.name()))
    }

    fn unmark(&self) -> io::Result<()> {
        self.mark.take_away()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(size)
    }

    fn cut_behind(&self, size: u64) -> io::Result<()> {
        self.check()?;
        let st = rustix::fs::fstat(self.file.as_fd())?;
        self.file.set_len(size)?;
        let was =
            Timespec { tv_sec: st.st_mtime, tv_nsec: st.st_mtime_nsec.try_into().unwrap_or(0) };
        let access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: access, last_modification: was };
        Ok(rustix::fs::futimens(self.file.as_fd(), &times)?)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.check()?;
        match rustix::fs::fallocate(self.file.as_fd(), FallocateFlags::KEEP_SIZE, at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        match rustix::fs::seek(self.file.as_fd(), SeekFrom::Hole(at)) {
            Ok(hole) => Ok(hole < at + len),
            // Behind the end there is nothing but holes.
            Err(Errno::NXIO) => Ok(true),
            // A file system that does not tell: it is asked for blocks.
            Err(_) => Ok(true),
        }
    }

    fn free(&self) {
        // In a child they are its parent's.
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

/// A process that has a file mapped may have a lease of it (fcntl(2), F_SETLEASE), by which it
/// is told of who opens the file past the pool: such a file is not opened.
pub(crate) fn not_leased(path: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What is wrong the open itself says.
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

/// What a file is known by, without opening it.
pub(crate) fn identity_at(path: &Path) -> Result<Vec<u8>> {
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

    /// SQLite and the like know of no flock.
    #[test]
    fn who_locks_records_is_kept_out_and_keeps_out() {
        let (path, plain) = file("records");
        let lock = |how| rustix::fs::fcntl_lock(&plain, how);
        let ours = RegularFile::open(&path).expect("nobody has it");
        assert_eq!(lock(FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
        ours.free_records().expect("freed");
        lock(FlockOperation::NonBlockingLockExclusive).expect("it is shared");
        // With it goes the lock: of fcntl's kind, and of this process.
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
