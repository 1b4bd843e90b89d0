// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that is mapped, in its file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// What this library does with a file.  Simulated in tests.
pub trait Backing: Send + Sync + std::fmt::Debug {
    /// For messages.
    fn path(&self) -> &Path;
    /// By which it is known again.
    fn identity(&self) -> &[u8];
    /// Its size now.
    fn size(&self) -> io::Result<u64>;
    /// Reads; short only at the end of the file.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Writes all of it.
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// What was written, and its size and blocks, are durable.
    fn sync(&self) -> io::Result<()>;
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
    file: File,
    path: PathBuf,
    identity: Vec<u8>,
}

impl RegularFile {
    /// Opens a file that is there.
    pub fn open(path: &Path) -> Result<RegularFile> {
        let path = std::path::absolute(path).map_err(Error::system(path, "its path"))?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(flags as i32).open(&path);
        let file = opened.map_err(Error::system(&path, "open"))?;
        let kind = file.metadata().map_err(Error::system(&path, "stat"))?;
        if !kind.is_file() {
            return Err(Error::Refused { path, why: "it is not a regular file".into() });
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Locked { path });
            }
            Err(e) => return Err(Error::system(&path, "lock")(e.into())),
        }
        let identity = identity(&file).map_err(Error::system(&path, "its identity"))?;
        Ok(RegularFile { file, path, identity })
    }
}

/// Device, inode and birth: another file that is given the number again was born later.
fn identity(file: &File) -> io::Result<Vec<u8>> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let s = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let mut bytes = Vec::with_capacity(32);
    bytes.extend(s.stx_dev_major.to_le_bytes());
    bytes.extend(s.stx_dev_minor.to_le_bytes());
    bytes.extend(s.stx_ino.to_le_bytes());
    bytes.extend(s.stx_btime.tv_sec.to_le_bytes());
    bytes.extend(s.stx_btime.tv_nsec.to_le_bytes());
    Ok(bytes)
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

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
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
        self.file.write_all_at(from, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        match rustix::fs::seek(&self.file, SeekFrom::Hole(at)) {
            Ok(hole) => Ok(hole < at + len),
            // Behind the end there is nothing but holes.
            Err(Errno::NXIO) => Ok(true),
            // A file system that does not tell: it is asked for blocks.
            Err(_) => Ok(true),
        }
    }
}
