// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that is mapped, in its file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay::{FileMark, FoundMark, MapClaim};
use forebay_engine::lasting::{self, Lasting};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::store::Time;

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
    /// Blocks for a range within the size; a file system that has no such call does
    /// nothing.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;
    /// Whether a range has a hole, as far as the file system tells.
    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool>;
}

/// A regular file.  Another process that maps it is refused.
#[derive(Debug)]
pub struct RegularFile {
    file: Lasting<File>,
    path: PathBuf,
    identity: Vec<u8>,
    mark: FileMark,
}

impl RegularFile {
    /// Opens a file that is there.
    pub fn open(path: &Path) -> Result<RegularFile> {
        let file = RegularFile::look(path)?;
        match rustix::fs::flock(file.file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => {
                let by = forebay::file_holder(&file.file);
                Err(Error::Locked { path: file.path, by })
            }
            Err(e) => Err(Error::system(&file.path, "lock")(e.into())),
        }
    }

    /// The same, though another process has it.
    pub(crate) fn look(path: &Path) -> Result<RegularFile> {
        let path = std::path::absolute(path).map_err(Error::system(path, "its path"))?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(flags as i32).open(&path);
        let file = opened.map_err(Error::system(&path, "open"))?;
        let kind = file.metadata().map_err(Error::system(&path, "stat"))?;
        if !kind.is_file() {
            return Err(Error::Refused { path, why: "it is not a regular file".into() });
        }
        let mark = FileMark::of(file.as_fd()).map_err(Error::system(&path, "its identity"))?;
        let identity = mark.name().into_bytes();
        Ok(RegularFile { file: file.into(), path, identity, mark })
    }
}

impl RegularFile {
    /// That it is still this file, where somebody may have closed it.
    fn check(&self) -> io::Result<()> {
        lasting::check(self.file.as_fd())
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
}
